//! A schedule of faults and requests as text: a seed, and what of it happens.
//!
//! Each fault and each request draws what it is from the seed and its own number alone, so that a script may
//! leave others out and still say the same of those that are left.

use std::{collections::BTreeSet, fmt, str::FromStr};

use crate::swarm::Swarm;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    Fault(u64),
    Request(u64),
}

impl Item {
    /// What its draws begin with.
    pub fn seed(self, seed: u64) -> u64 {
        let (kind, number) = match self {
            Item::Fault(number) => (0xfa17_0000_0000_0000, number),
            Item::Request(number) => (0x5e0e_0000_0000_0000, number),
        };
        seed ^ kind ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// An item that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Played {
    pub item: Item,
    pub at: u64,
    pub what: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub seed: u64,
    /// Another course of everything that no item decides: delays, losses, how processes fare.
    pub noise: u64,
    /// What of the seed's swarm is switched off.
    pub off: BTreeSet<String>,
    /// Faults end then, and not when the seed says.
    pub end: Option<u64>,
    /// What happens; `None`: everything that the seed draws.
    pub items: Option<BTreeSet<Item>>,
}

type Switch = (&'static str, fn(&mut Swarm));

/// What can be switched off, and how.
const SWITCHES: &[Switch] = &[
    ("net.loss", |swarm| swarm.net.loss = 0),
    ("net.duplicate", |swarm| swarm.net.duplicate = 0),
    ("net.reorder", |swarm| swarm.net.reorder = 0),
    ("net.slow", |swarm| swarm.net.slow = 0),
    ("net.sets_lost", |swarm| swarm.net.sets_lost = 0),
    ("store.answer_lost", |swarm| swarm.store.answer_lost = 0),
    ("store.request_lost", |swarm| swarm.store.request_lost = 0),
    ("store.late", |swarm| swarm.store.late = 0),
    ("store.unavailable", |swarm| swarm.store.unavailable = 0),
    ("store.no_space", |swarm| swarm.store.no_space = 0),
    ("process.start_fails", |swarm| swarm.process.start_fails = 0),
    ("process.crashes", |swarm| swarm.process.crashes = 0),
    ("process.hangs_on_stop", |swarm| swarm.process.hangs_on_stop = 0),
    ("process.sick", |swarm| swarm.process.sick = 0),
    ("process.slow", |swarm| swarm.process.slow = 0),
];

/// The names of what can be switched off.
pub fn switches() -> impl Iterator<Item = &'static str> {
    SWITCHES.iter().map(|(name, _)| *name)
}

impl Script {
    /// Everything that a seed draws.
    pub fn whole(seed: u64) -> Script {
        Script { seed, noise: 0, off: BTreeSet::new(), end: None, items: None }
    }

    pub fn has(&self, item: Item) -> bool {
        self.items.as_ref().is_none_or(|items| items.contains(&item))
    }

    pub(crate) fn shape(&self, swarm: &mut Swarm) {
        for (_, switch) in SWITCHES.iter().filter(|(name, _)| self.off.contains(*name)) {
            switch(swarm);
        }
        if let Some(end) = self.end {
            swarm.safety_ms = swarm.safety_ms.min(end);
        }
    }

    /// The script as text, with what each item did beside it.
    pub fn explained(&self, played: &[Played], head: &str) -> String {
        let mut text = String::new();
        for line in head.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        for line in self.to_string().lines() {
            let item = line.parse::<Line>().ok().and_then(|line| line.item());
            let did = item.and_then(|item| played.iter().find(|played| played.item == item));
            match did {
                Some(did) => {
                    let at = did.at as f64 / 1000.0;
                    text.push_str(&format!("{line:<14}# t={at:.3} {}\n", did.what));
                }
                None => text.push_str(&format!("{line}\n")),
            }
        }
        text
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        if self.noise > 0 {
            writeln!(f, "noise {}", self.noise)?;
        }
        if let Some(end) = self.end {
            writeln!(f, "end {end}")?;
        }
        for name in &self.off {
            writeln!(f, "off {name}")?;
        }
        let Some(items) = &self.items else { return writeln!(f, "all") };
        for item in items {
            match item {
                Item::Fault(number) => writeln!(f, "fault {number}")?,
                Item::Request(number) => writeln!(f, "request {number}")?,
            }
        }
        Ok(())
    }
}

enum Line {
    Seed(u64),
    Noise(u64),
    End(u64),
    Off(String),
    All,
    Item(Item),
    Nothing,
}

impl Line {
    fn item(self) -> Option<Item> {
        match self {
            Line::Item(item) => Some(item),
            Line::Seed(_) | Line::Noise(_) | Line::End(_) | Line::Off(_) | Line::All | Line::Nothing => None,
        }
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(line: &str) -> Result<Line, String> {
        let said = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = said.split_whitespace().collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number"));
        match words.as_slice() {
            [] => Ok(Line::Nothing),
            ["all"] => Ok(Line::All),
            ["seed", text] => number(text).map(Line::Seed),
            ["noise", text] => number(text).map(Line::Noise),
            ["end", text] => number(text).map(Line::End),
            ["fault", text] => number(text).map(|number| Line::Item(Item::Fault(number))),
            ["request", text] => number(text).map(|number| Line::Item(Item::Request(number))),
            ["off", name] if switches().any(|known| known == *name) => Ok(Line::Off((*name).to_owned())),
            ["off", name] => Err(format!("there is no switch {name:?}")),
            _ => Err(format!("{said:?} says nothing that a script knows")),
        }
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Script, String> {
        let mut script = Script { items: Some(BTreeSet::new()), ..Script::whole(0) };
        let mut seed = None;
        for (at, line) in text.lines().enumerate() {
            match line.parse().map_err(|why: String| format!("line {}: {why}", at + 1))? {
                Line::Seed(number) => seed = Some(number),
                Line::Noise(number) => script.noise = number,
                Line::End(at) => script.end = Some(at),
                Line::Off(name) => drop(script.off.insert(name)),
                Line::All => script.items = None,
                Line::Item(item) => drop(script.items.get_or_insert_default().insert(item)),
                Line::Nothing => {}
            }
        }
        script.seed = seed.ok_or("a script says which seed it is of")?;
        Ok(script)
    }
}
