//! A coordinator over a store, nodes, and what their feeds read and write, in one thread.
//!
//! Messages arrive in order and at once unless a test cuts, holds or drops them; time passes only when a
//! test lets it. Beside what a test asks, every step checks that one maintainer of a feed acts, that a
//! span is at work once, and that its sink gets every row once.

mod ask;
mod letter;
mod machine;
mod tables;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{Change, Cluster, Event, Millis, Roles, Term, Time, decode_record, load_ranges};
use protocol::{
    Timing,
    coordinator::{Answer, ApiError, Coordinator, FeedLimits, Input, Op, Output, RequestId, Start, Stored},
    node,
};

pub use ask::key;
pub use letter::Letter;
pub use machine::Machine;
pub use tables::{Key, Tables};

pub type Name = &'static str;

/// The coordinator's end of a link.
pub const COORDINATOR: Name = "coordinator";
pub const TIMING: Timing = Timing::DEV;
const STEP: Millis = Millis(50);
/// Nothing that a test waits for takes longer.
const PATIENCE: Millis = Millis::secs(120);
const BEGINNING: Time = Time(1_000_000);
/// More letters than this in one step are a conversation without end.
const LETTERS_MAX: usize = 200_000;
const LETTERS_SHOWN: usize = 60;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Held,
}

type Rule = (Fate, Box<dyn Fn(&Letter) -> bool>);

pub struct Bench {
    pub now: Time,
    pub coordinator: Option<Coordinator>,
    pub machines: BTreeMap<Name, Machine>,
    pub tables: Tables,
    /// Everything that was sent, arrived or not.
    pub sent: Vec<(Time, Letter)>,
    pub events: Vec<Event>,
    pub limits: FeedLimits,
    records: BTreeMap<String, Vec<u8>>,
    head: u64,
    term: u64,
    commits_held: bool,
    in_flight: Option<(u64, Vec<Op>)>,
    queue: VecDeque<Letter>,
    rules: Vec<Rule>,
    held: Vec<Letter>,
    cuts: BTreeSet<(Name, Name)>,
    conns: u64,
    replies: Vec<Result<Answer, ApiError>>,
}

impl Bench {
    pub fn new(nodes: &[Name]) -> Bench {
        Bench::limited(FeedLimits::default(), nodes)
    }

    pub fn limited(limits: FeedLimits, nodes: &[Name]) -> Bench {
        let mut bench = Bench {
            now: BEGINNING,
            coordinator: None,
            machines: BTreeMap::new(),
            tables: Tables::new(BEGINNING),
            sent: Vec::new(),
            events: Vec::new(),
            limits,
            records: BTreeMap::new(),
            head: 0,
            term: 0,
            commits_held: false,
            in_flight: None,
            queue: VecDeque::new(),
            rules: Vec::new(),
            held: Vec::new(),
            cuts: BTreeSet::new(),
            conns: 0,
            replies: Vec::new(),
        };
        bench.elect(COORDINATOR);
        for node in nodes {
            bench.join(node, Roles::WORKER);
        }
        bench.pass(Millis(500));
        bench
    }

    pub fn join(&mut self, name: Name, roles: Roles) {
        self.machines.insert(name, Machine::new(name, roles, &[], self.now));
    }

    pub fn join_labelled(&mut self, name: Name, labels: &[(&str, &str)]) {
        self.machines.insert(name, Machine::new(name, Roles::WORKER, labels, self.now));
    }

    // Offices.

    /// What it had not stored is lost with it.
    pub fn depose(&mut self) {
        self.coordinator = None;
        self.in_flight = None;
        for machine in self.machines.values_mut() {
            machine.stream_breaks();
        }
        self.disconnect_broken();
    }

    /// Takes office over what is stored.
    pub fn elect(&mut self, candidate: Name) {
        self.term += 1;
        let start = Start {
            cluster: self.stored(),
            head: self.head,
            term: Term(self.term),
            timing: TIMING,
            random: 77,
            candidate: candidate.to_owned(),
            api: String::new(),
            drain: Default::default(),
            feeds: self.limits,
        };
        let (coordinator, first) = Coordinator::new(start, self.now);
        self.coordinator = Some(coordinator);
        self.perform(first);
        self.tell(Input::OfficeHolds { until: self.now + Millis::secs(36_000) });
    }

    pub fn fail_over(&mut self) {
        self.fail_over_to(COORDINATOR);
    }

    pub fn fail_over_to(&mut self, candidate: Name) {
        self.depose();
        self.elect(candidate);
        self.pass(STEP);
    }

    /// The records as a successor would load them, through the real codec.
    pub fn stored(&self) -> Cluster {
        let mut cluster = Cluster::default();
        for (from, to) in load_ranges() {
            for (key, value) in self.records.range(from..to) {
                let change = decode_record(&cluster, key, Some(value)).expect("a record that can be read");
                cluster.apply(&change);
            }
        }
        cluster
    }

    fn tell(&mut self, input: Input) {
        let Some(coordinator) = &mut self.coordinator else { return };
        let out = coordinator.handle(self.now, input);
        self.perform(out);
    }

    fn perform(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { conn, message } => {
                    let to = self.machines.values().find(|machine| machine.conn == Some(conn));
                    if let Some(to) = to.map(|machine| machine.name) {
                        self.post(Letter::Down { to, conn, message });
                    }
                }
                Output::Close { conn } => {
                    for machine in self.machines.values_mut().filter(|m| m.conn == Some(conn)) {
                        machine.stream_breaks();
                    }
                }
                Output::Reply { id: RequestId(_), result } => self.replies.push(result),
                Output::Event(event) => self.events.push(event),
                Output::Transact { head, ops } => self.in_flight = Some((head, ops)),
                Output::ReadHead => panic!("no outcome is unknown here"),
                Output::Resign { why } => panic!("{why}"),
                Output::HandOver | Output::Backend(_) => panic!("nobody asked"),
            }
        }
        if !self.commits_held {
            self.commit();
        }
    }

    /// From here on nothing is stored until [`release_commits`](Self::release_commits).
    pub fn hold_commits(&mut self) {
        self.commits_held = true;
    }

    pub fn release_commits(&mut self) {
        self.commits_held = false;
        self.commit();
        self.settle();
    }

    fn commit(&mut self) {
        let Some((head, ops)) = self.in_flight.take() else { return };
        assert_eq!(head, self.head + 1, "transactions come one after the other");
        for (key, value) in ops {
            self.check_record(&key, value.as_deref());
            match value {
                Some(value) => self.records.insert(key, value),
                None => self.records.remove(&key),
            };
        }
        self.head = head;
        self.tell(Input::Stored(Stored::Committed));
    }

    /// A feed's checkpoint never goes back, nor past what a sink holds.
    fn check_record(&self, key: &str, value: Option<&[u8]>) {
        if !key.starts_with("f/") {
            return;
        }
        let read = |value: &[u8]| match decode_record(&Cluster::default(), key, Some(value)) {
            Ok(Change::Feed(feed)) => Some(feed),
            other => panic!("{key}: {other:?}"),
        };
        let (before, after) = (self.records.get(key).and_then(|old| read(old)), value.and_then(read));
        let (Some(before), Some(after)) = (before, after) else { return };
        let Some(known) = before.checkpoint else { return };
        let next = after.checkpoint.unwrap_or_default();
        if next.position < known.position || next.at < known.at {
            self.fail(&format!("{key}: the checkpoint goes back from {known:?} to {next:?}"));
        }
        for span in before.spans.names.iter().filter(|span| after.spans.names.contains(span)) {
            let rows = self.tables.rows(&(after.name.clone(), span.clone()));
            if next != known && rows.is_some_and(|rows| rows < next.position) {
                self.fail(&format!("{key}: {next:?} is past {span}, which has {rows:?} rows"));
            }
        }
    }

    // Letters.

    pub fn cut(&mut self, one: Name, other: Name) {
        self.cuts.extend([(one, other), (other, one)]);
    }

    /// Between this one and everybody, the coordinator too.
    pub fn cut_off(&mut self, one: Name) {
        let all: Vec<Name> = self.machines.keys().copied().filter(|name| *name != one).collect();
        all.into_iter().for_each(|other| self.cut(one, other));
        self.cut(one, COORDINATOR);
    }

    pub fn mend_all(&mut self) {
        self.cuts.clear();
    }

    /// Such letters stay where they are until [`lift`](Self::lift).
    pub fn hold(&mut self, which: impl Fn(&Letter) -> bool + 'static) {
        self.rules.push((Fate::Held, Box::new(which)));
    }

    pub fn lose(&mut self, which: impl Fn(&Letter) -> bool + 'static) {
        self.rules.push((Fate::Lost, Box::new(which)));
    }

    /// No more rules; what was held arrives, late.
    pub fn lift(&mut self) {
        self.rules.clear();
        self.queue.extend(std::mem::take(&mut self.held));
        self.settle();
    }

    /// No more rules; what was held arrives with [`lift`](Self::lift).
    pub fn hold_no_more(&mut self) {
        self.rules.clear();
    }

    /// No more rules, and what was held never arrives.
    pub fn lift_and_forget(&mut self) {
        self.rules.clear();
        self.held.clear();
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn post(&mut self, letter: Letter) {
        self.sent.push((self.now, letter.clone()));
        if self.cuts.contains(&letter.ends()) {
            return;
        }
        match self.rules.iter().find(|(_, which)| which(&letter)).map(|(fate, _)| *fate) {
            Some(Fate::Lost) => {}
            Some(Fate::Held) => self.held.push(letter),
            None => self.queue.push_back(letter),
        }
    }

    /// Everything that is under way arrives.
    pub fn settle(&mut self) {
        for _ in 0..LETTERS_MAX {
            let Some(letter) = self.queue.pop_front() else { return };
            self.deliver(letter);
        }
        self.fail("they talk without end");
    }

    fn deliver(&mut self, letter: Letter) {
        let Some(to) = letter.to() else {
            if let Letter::Up { from, conn, message } = letter {
                let open = self.machines.get(from).is_some_and(|machine| machine.conn == Some(conn));
                if open {
                    self.tell(Input::Up { conn, message });
                }
            }
            return;
        };
        let Some(machine) = self.machines.get_mut(to) else { return };
        if machine.paused {
            machine.inbox.push(letter);
            return;
        }
        match letter {
            Letter::Up { .. } => {}
            Letter::Down { conn, message, .. } => {
                if machine.conn == Some(conn) {
                    self.give(to, node::Input::Down(message));
                }
            }
            Letter::Peer { message, .. } => self.give(to, node::Input::Feed(node::FeedNews::Heard(message))),
            Letter::Shell { life, news, .. } => {
                if machine.life == life {
                    self.give(to, node::Input::Feed(news));
                }
            }
        }
    }

    // Time.

    pub fn pass(&mut self, span: Millis) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + STEP;
            self.step();
        }
    }

    /// A moment that is later than everything so far.
    pub fn mark(&mut self) -> Time {
        self.now = self.now + Millis(1);
        self.now
    }

    fn step(&mut self) {
        self.connect_waiting();
        let names: Vec<Name> = self.machines.keys().copied().collect();
        for name in names {
            // A process that stood still writes what it has before it notices how late it is.
            self.work(name);
            self.give(name, node::Input::Tick);
            self.take_inbox(name);
        }
        self.tell(Input::Tick);
        self.settle();
        self.disconnect_broken();
        self.check();
    }

    /// Lets time pass until it is so.
    pub fn until(&mut self, what: &str, so: impl Fn(&Bench) -> bool) {
        let end = self.now + PATIENCE;
        while !so(self) {
            if self.now >= end {
                self.fail(&format!("it never came to this: {what}"));
            }
            self.pass(STEP);
        }
    }

    fn check(&self) {
        let mut acting: BTreeMap<&str, Name> = BTreeMap::new();
        for machine in self.machines.values().filter(|machine| !machine.paused) {
            for (feed, maintainer) in machine.node.iter().flat_map(|node| node.maintainers()) {
                if !maintainer.acts() {
                    continue;
                }
                if let Some(other) = acting.insert(feed.as_str(), machine.name) {
                    self.fail(&format!("maintainers of {feed} act on {other} and {}", machine.name));
                }
            }
            let arriving = machine.tasks.values().filter(|task| task.is_arriving()).count();
            if arriving > self.limits.moves_per_node as usize {
                self.fail(&format!("{arriving} dispatchers arrive at {} at once", machine.name));
            }
        }
    }

    pub fn fail(&self, message: &str) -> ! {
        let told: Vec<&(Time, Letter)> =
            self.sent.iter().filter(|(_, letter)| !letter.is_progress()).collect();
        for (at, letter) in &told[told.len().saturating_sub(LETTERS_SHOWN)..] {
            eprintln!("{:>7} {letter}", at.since(BEGINNING).0);
        }
        panic!("at {}: {message}", self.now.since(BEGINNING).0);
    }
}
