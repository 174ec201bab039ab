//! The canonical form of a state: two states have the same if everything that can follow is the same.
//!
//! It is made from what `Debug` shows of every actor, so that no field can be forgotten. Numbers that only
//! ever rise are not compared as they are:
//!
//! - *times* become ages and delays. One that lies further back than [`OLD`] is only known by its rank
//!   among such: no rule of the protocol compares an age with more than that.
//! - *numbers* (ids, connections, messages, statuses, sets, groups) become ranks among those of their kind:
//!   the protocol compares them and makes greater ones, and does nothing else with them.
//! - the *head* of the store becomes its distance from the store's own.
//!
//! Left out is what nobody decides by: events and replies on their way, reasons for people, since when a
//! node is as it is; and, because nothing in the model takes long to get healthy and nothing that is asked for
//! there depends on it, since when instances exist, are healthy, and how long a rollout that is complete took.
//! When a node next looks for feeds to forget is left out as well: there are no feeds.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

use model::InstanceId;

/// Ages from here on count as one. Not shorter than any span that the protocol compares an age with,
/// under the timing of the model.
pub const OLD: u64 = 90_000;

/// A kind of number; those of one kind are compared with each other only. What belongs to a machine or a
/// term carries its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Id,
    Conn,
    Up(u64),
    Down(u64),
    Status(u64),
    Set,
    Group(u64),
    Served(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Text(u64),
    Time(u64),
    Number(Kind, u64),
    Head(u64),
}

/// What is shown of one part of a state, with its numbers and times apart.
#[derive(Clone, Debug, Default)]
pub struct Form(Vec<Token>);

/// Whose part it is: what its numbers are compared with.
#[derive(Clone, Debug, Default)]
pub struct Whose {
    /// Of a machine, or of a stream to it.
    pub machine: u64,
    /// Of a coordinator.
    pub term: u64,
    /// The machine of each node, by the coordinator's own numbers.
    pub machines: Vec<u64>,
}

/// Connections carry their machine in their number.
pub const MACHINES_MAX: u64 = 8;

impl Form {
    pub fn of(shown: &dyn fmt::Debug, whose: &Whose) -> Form {
        let text = format!("{shown:?}");
        Scanner::new(&text, whose).scan()
    }

    pub fn conn(conn: u64) -> Form {
        Form(vec![Token::Number(Kind::Conn, conn)])
    }

    pub fn append(&mut self, other: Form) {
        self.0.extend(other.0);
    }
}

/// One number for a whole state.
pub fn fingerprint<'a>(forms: impl Iterator<Item = &'a Form> + Clone, now: u64, head: u64) -> u64 {
    let (mut numbers, mut old) = (Vec::with_capacity(256), Vec::with_capacity(64));
    for token in forms.clone().flat_map(|form| &form.0) {
        match token {
            Token::Number(kind, number) => numbers.push((*kind, *number)),
            Token::Time(time) if is_old(*time, now) => old.push(*time),
            Token::Time(_) | Token::Text(_) | Token::Head(_) => {}
        }
    }
    // The first of each kind are named in the code.
    numbers.extend((1..=4).map(|term| (Kind::Set, set(term, 1))));
    numbers.sort_unstable();
    numbers.dedup();
    old.sort_unstable();
    old.dedup();
    let mut hasher = DefaultHasher::new();
    for token in forms.flat_map(|form| &form.0) {
        match token {
            Token::Text(text) => (0u8, *text).hash(&mut hasher),
            Token::Number(kind, number) => {
                let from = numbers.partition_point(|(other, _)| other < kind);
                let rank = numbers.binary_search(&(*kind, *number)).unwrap_or(from) - from;
                // Zero is what a counter begins with.
                (1u8, rank, *number == 0).hash(&mut hasher);
            }
            Token::Head(number) => (2u8, number.wrapping_sub(head)).hash(&mut hasher),
            Token::Time(0) => 3u8.hash(&mut hasher),
            Token::Time(u64::MAX) => 4u8.hash(&mut hasher),
            Token::Time(time) if is_old(*time, now) => (5u8, old.binary_search(time)).hash(&mut hasher),
            Token::Time(time) => (6u8, time.wrapping_sub(now)).hash(&mut hasher),
        }
    }
    hasher.finish()
}

fn is_old(time: u64, now: u64) -> bool {
    time != 0 && time.saturating_add(OLD) <= now
}

fn set(term: u64, number: u64) -> u64 {
    (term << 32) + number
}

/// Reads what `Debug` wrote.
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    whose: &'a Whose,
    machine: u64,
    tokens: Vec<Token>,
    literal: DefaultHasher,
    /// The last name before an opening brace.
    structure: &'a [u8],
    depth: usize,
    /// How deep the entries of the outbox are.
    outbox: Option<usize>,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str, whose: &'a Whose) -> Scanner<'a> {
        Scanner {
            text: text.as_bytes(),
            at: 0,
            whose,
            machine: whose.machine,
            tokens: Vec::new(),
            literal: DefaultHasher::new(),
            structure: b"",
            depth: 0,
            outbox: None,
        }
    }

    fn scan(mut self) -> Form {
        while let Some(byte) = self.text.get(self.at).copied() {
            match byte {
                b'"' => self.string(),
                b'#' => self.id(),
                b'(' | b'[' | b'{' => self.open(byte),
                b')' | b']' | b'}' => {
                    self.pass(1);
                    self.outbox = self.outbox.filter(|depth| self.depth >= *depth);
                }
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.word(),
                // How many of those that wait are left out does not show.
                b',' | b' ' if self.outbox == Some(self.depth) => self.at += 1,
                b'0'..=b'9' => {
                    let digits = self.digits_at(self.at);
                    self.pass(digits);
                }
                _ => self.pass(1),
            }
        }
        self.flush();
        Form(self.tokens)
    }

    fn pass(&mut self, count: usize) {
        for byte in &self.text[self.at..self.at + count] {
            match byte {
                b'(' | b'[' | b'{' => self.depth += 1,
                b')' | b']' | b'}' => self.depth -= 1,
                _ => {}
            }
        }
        self.pass_text(count);
    }

    /// Brackets in it mean nothing.
    fn pass_text(&mut self, count: usize) {
        self.literal.write(&self.text[self.at..self.at + count]);
        self.at += count;
    }

    fn flush(&mut self) {
        let literal = std::mem::take(&mut self.literal);
        self.tokens.push(Token::Text(literal.finish()));
    }

    fn push(&mut self, token: Token) {
        self.flush();
        self.tokens.push(token);
    }

    fn follows(&self, what: &[u8]) -> bool {
        self.text[self.at..].starts_with(what)
    }

    fn digits_at(&self, at: usize) -> usize {
        self.text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count()
    }

    /// The number here, if there is one.
    fn number(&mut self) -> Option<u64> {
        let digits = self.digits_at(self.at);
        let text = std::str::from_utf8(&self.text[self.at..self.at + digits]).unwrap_or_default();
        let number = text.parse().ok()?;
        self.at += digits;
        Some(number)
    }

    /// `before` and then a number, which is not taken for what it is.
    fn numbered(&mut self, before: &[u8], token: impl FnOnce(u64) -> Token) {
        if !self.follows(before) || self.digits_at(self.at + before.len()) == 0 {
            return;
        }
        self.pass(before.len());
        if let Some(number) = self.number() {
            self.push(token(number));
        }
    }

    fn string(&mut self) {
        let mut end = self.at + 1;
        while self.text[end] != b'"' {
            end += if self.text[end] == b'\\' { 2 } else { 1 };
        }
        self.pass_text(end + 1 - self.at);
    }

    fn id(&mut self) {
        let length = self.text[self.at + 1..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let text = std::str::from_utf8(&self.text[self.at + 1..self.at + 1 + length]).unwrap_or_default();
        let id: InstanceId = text.parse().unwrap_or_default();
        self.at += 1 + length;
        self.push(Token::Number(Kind::Id, id.0));
    }

    fn open(&mut self, byte: u8) {
        let waits = byte == b'(' && self.outbox == Some(self.depth);
        let what = &self.text[self.at + 1 + self.digits_at(self.at + 1)..];
        if waits && (what.starts_with(b", Event(") || what.starts_with(b", Reply {")) {
            // Nobody decides by it.
            self.at += 1;
            self.skip();
            self.at += 1;
            return;
        }
        self.pass(1);
        if waits {
            let term = self.whose.term;
            self.numbered(b"", |number| Token::Number(Kind::Group(term), number));
        }
    }

    /// Passes over a value without a trace, up to the comma or bracket behind it.
    fn skip(&mut self) {
        let mut deeper = 0;
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'"' => {
                    let literal = self.literal.clone();
                    self.string();
                    self.literal = literal;
                    continue;
                }
                b'(' | b'[' | b'{' => deeper += 1,
                b')' | b']' | b'}' if deeper == 0 => return,
                b')' | b']' | b'}' => deeper -= 1,
                b',' if deeper == 0 && self.outbox.is_none() => return,
                _ => {}
            }
            self.at += 1;
        }
    }

    fn word(&mut self) {
        let start = self.at;
        let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let length = self.text[start..].iter().take_while(is_word).count();
        let word = &self.text[start..start + length];
        self.pass(length);
        if self.follows(b" {") {
            self.structure = word;
        }
        let (machine, term) = (self.machine, self.whose.term);
        let status = move |number| Token::Number(Kind::Status(machine), number);
        let up = move |number| Token::Number(Kind::Up(machine), number);
        let down = move |number| Token::Number(Kind::Down(machine), number);
        match word {
            b"Time" => self.numbered(b"(", Token::Time),
            b"ConnId" => self.connection(),
            b"NodeIx" => self.node(),
            b"SetRevision" => self.set_revision(),
            b"seq" if self.structure == b"Up" => self.numbered(b": ", up),
            b"seq" | b"down_seq" => self.numbered(b": ", down),
            b"up_seq" | b"heartbeat" => self.numbered(b": ", up),
            b"sent" => self.list(b": {", b": ", false, up),
            b"number" | b"status_number" => self.numbered(b": ", status),
            b"said" => self.numbered(b": Some((", status),
            b"numbers" => self.list(b": {", b": ", true, status),
            b"stored" => self.list(b": [", b", ", true, status),
            b"Group" => self.numbered(b"(", |number| Token::Number(Kind::Group(term), number)),
            b"served" => self.list(b": [", b"", false, |number| Token::Number(Kind::Served(term), number)),
            b"made_from" => {
                self.list(b": {", b": ", true, |number| Token::Number(Kind::Served(term), number))
            }
            b"head" => self.numbered(b": ", Token::Head),
            b"flight" => self.numbered(b": Some((", Token::Head),
            b"next" | b"instance_ids_reserved" => {
                self.numbered(b": ", |number| Token::Number(Kind::Id, number));
            }
            b"outbox" if self.follows(b": [") => self.outbox = Some(self.depth + 1),
            b"reasons" | b"health_since" | b"registered_at" | b"desired_since" | b"created_at"
            | b"in_office_since" | b"forget_at"
                if self.follows(b": ") =>
            {
                self.skip();
            }
            b"progress_at" if self.structure == b"Rollout" => self.skip(),
            b"healthy_since" | b"withdrawing_since" | b"healthy_for" if self.follows(b": Some(") => {
                self.pass(b": Some(".len());
                self.skip();
            }
            _ => {}
        }
    }

    fn connection(&mut self) {
        let start = self.at;
        self.numbered(b"(", |number| Token::Number(Kind::Conn, number));
        let digits = self.digits_at(start + 1);
        let text = std::str::from_utf8(&self.text[start + 1..start + 1 + digits]).unwrap_or_default();
        self.machine = text.parse::<u64>().map_or(self.machine, |conn| conn % MACHINES_MAX);
    }

    /// What is kept of a node is kept under its number.
    fn node(&mut self) {
        let start = self.at;
        self.pass(1);
        let Some(number) = self.number() else { return };
        self.literal.write_u64(number);
        if self.text[start..].starts_with(format!("({number}): Session").as_bytes()) {
            self.machine = self.whose.machines.get(number as usize).copied().unwrap_or(number);
        }
    }

    fn set_revision(&mut self) {
        let before = b" { term: Term(";
        if !self.follows(before) {
            return;
        }
        self.pass(before.len());
        let term = self.number().unwrap_or_default();
        self.literal.write_u64(term);
        self.numbered(b"), number: ", |number| Token::Number(Kind::Set, set(term, number)));
    }

    /// A flat list or map of numbers: those behind `sign`, or else those before it.
    fn list(&mut self, opening: &[u8], sign: &[u8], behind: bool, token: impl Fn(u64) -> Token + Copy) {
        if !self.follows(opening) {
            return;
        }
        self.pass(opening.len());
        let close = if opening.ends_with(b"{") { b'}' } else { b']' };
        let mut counts = !behind;
        while self.text[self.at] != close {
            if counts && self.digits_at(self.at) > 0 {
                if let Some(number) = self.number() {
                    self.push(token(number));
                }
                counts = !behind && sign.is_empty();
            } else if self.text[self.at] == b'#' {
                self.id();
            } else if behind && self.follows(sign) {
                self.pass(sign.len());
                counts = true;
            } else if !behind && self.follows(b"), ") {
                self.pass(3);
                counts = true;
            } else if self.follows(b"Time(") {
                self.pass(4);
                self.numbered(b"(", Token::Time);
            } else {
                counts &= !behind;
                self.pass(1);
            }
        }
        self.pass(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        struct Shown<'a>(&'a str);
        impl fmt::Debug for Shown<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.0)
            }
        }
        let whose = Whose { machine: 1, term: 2, machines: vec![5] };
        let form = Form::of(&Shown(text), &whose);
        form.0.into_iter().filter(|token| !matches!(token, Token::Text(_))).collect()
    }

    #[test]
    fn numbers_are_told_from_each_other_by_where_they_stand() {
        use Kind::{Conn, Down, Group, Id, Served, Set, Status, Up};
        let number = |kind, number| Token::Number(kind, number);
        for (text, expected) in [
            ("Up { seq: 7, body: 3 }", vec![number(Up(1), 7)]),
            ("Down { seq: 7, body: 3 }", vec![number(Down(1), 7)]),
            (
                "sent: {4: Time(9), 5: Time(8)}, x: 5",
                vec![number(Up(1), 4), Token::Time(9), number(Up(1), 5), Token::Time(8)],
            ),
            (
                "numbers: {#1: 4, #2: 5}",
                vec![number(Id, 1), number(Status(1), 4), number(Id, 2), number(Status(1), 5)],
            ),
            (
                "stored: [(#1, 4), (#2, 5)]",
                vec![number(Id, 1), number(Status(1), 4), number(Id, 2), number(Status(1), 5)],
            ),
            ("stored: true, order: 3", vec![]),
            ("{NodeIx(0): Session { up_seq: 3, down_seq: 4 }}", vec![number(Up(5), 3), number(Down(5), 4)]),
            ("SetRevision { term: Term(3), number: 2 }", vec![number(Set, set(3, 2))]),
            ("served: [3, 4], x: [5]", vec![number(Served(2), 3), number(Served(2), 4)]),
            ("made_from: {ServiceIx(0): 6}", vec![number(Served(2), 6)]),
            (
                "outbox: [(3, Event(Event { a: \")\" })), (4, Send { conn: ConnId(9), seq: 2 })], y: (1, 2)",
                vec![number(Group(2), 4), number(Conn, 9), number(Down(1), 2)],
            ),
            ("head: 3, flight: Some((4, [\"i/1\"]", vec![Token::Head(3), Token::Head(4)]),
            (
                "outbox: [(4, Send { conn: ConnId(9), seq: 2 }), (5, Event(Event { at: Time(3) })), (6, Close)]",
                vec![number(Group(2), 4), number(Conn, 9), number(Down(1), 2), number(Group(2), 6)],
            ),
            ("reasons: {1: [Time(3)]}, at: Time(4)", vec![Token::Time(4)]),
            ("forget_at: Time(3), at: Time(4)", vec![Token::Time(4)]),
            ("healthy_since: Some(Time(3)), created_at: Time(4), x: Time(5)", vec![Token::Time(5)]),
        ] {
            assert_eq!(tokens(text), expected, "{text}");
        }
    }

    #[test]
    fn a_state_that_only_happens_later_is_the_same_state() {
        let form = |at: u64, id: u64| {
            let shown = (model::Time(at), InstanceId(id), InstanceId(id + 3));
            Form::of(&shown, &Whose::default())
        };
        let fingerprint = |at, id, now| fingerprint([form(at, id)].iter(), now, 0);
        assert_eq!(fingerprint(1000, 5, 2000), fingerprint(3000, 7, 4000));
        assert_ne!(fingerprint(1000, 5, 2000), fingerprint(3000, 7, 4001));
        assert_eq!(fingerprint(1, 5, 1 + OLD), fingerprint(1, 5, 2 + OLD));
        assert_ne!(fingerprint(1, 5, OLD), fingerprint(1, 5, 1 + OLD));
    }
}
