//! When to look at something again. Setting one anew replaces it; an idle tick looks at the first only.

use std::collections::{BTreeMap, BTreeSet};

use model::{NodeIx, ServiceIx, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Service(ServiceIx),
    Node(NodeIx),
    Resend(NodeIx),
    Lingers(NodeIx),
    Drains,
    Balance,
    LastNode,
    Feeds,
    Roster,
    Commit,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    queue: BTreeSet<(Time, Timer)>,
    at: BTreeMap<Timer, Time>,
}

impl Timers {
    pub fn set(&mut self, timer: Timer, at: Time) {
        self.clear(timer);
        self.queue.insert((at, timer));
        self.at.insert(timer, at);
    }

    /// As [`set`](Self::set), unless it is due earlier already.
    pub fn set_sooner(&mut self, timer: Timer, at: Time) {
        if self.at.get(&timer).is_none_or(|due| at < *due) {
            self.set(timer, at);
        }
    }

    pub fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.at.remove(&timer) {
            self.queue.remove(&(at, timer));
        }
    }

    pub fn is_set(&self, timer: Timer) -> bool {
        self.at.contains_key(&timer)
    }

    pub fn next(&self) -> Option<Time> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes the first one that is due.
    pub fn due(&mut self, now: Time) -> Option<Timer> {
        let (at, timer) = *self.queue.first()?;
        if at > now {
            return None;
        }
        self.clear(timer);
        Some(timer)
    }
}
