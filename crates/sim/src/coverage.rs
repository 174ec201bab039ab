//! How often the interesting things happened: a simulator that never reaches them proves nothing.

use std::collections::BTreeMap;

/// Everything that a few hundred seeds must have reached at least once.
pub const EXPECTED: &[&str] = &[
    "adopted after a restart of the daemon",
    "availability kept by surge",
    "balance move",
    "batch complete",
    "capacity below use",
    "client connection cut",
    "client connection made",
    "client dial failed",
    "commit answer lost, it was applied",
    "commit answer lost, it was not applied",
    "commit applied late",
    "closed candidate stood back",
    "commit refused",
    "confirmed dead",
    "connection broken",
    "coordinator noticed late that its office was over",
    "closed coordinator handed over",
    "crash looping",
    "daemon crashed",
    "daemon left once drained",
    "daemon paused",
    "daemon stopped",
    "degraded by its own report",
    "drain blocked",
    "drain cancelled",
    "drain changed",
    "drain deadline reached",
    "drain left behind what may stay",
    "drain lost its node",
    "drain of several nodes",
    "drains paused under a caretaker",
    "drains paused while the office moves",
    "drained",
    "drained node back with a new life",
    "edge waited for",
    "edge came back before it had withdrawn",
    "edge withdrew",
    "ended while the daemon was dead",
    "fail-over",
    "fence fired in the daemon",
    "fence fired in a keeper",
    "forgotten",
    "instance lost",
    "killed after its grace",
    "machine destroyed",
    "machine rebooted",
    "machine suspended",
    "memory starved",
    "no eligible node",
    "no space",
    "node disabled",
    "node id refused",
    "node offline",
    "orders resent",
    "node's turn to drain",
    "partition",
    "partition one way",
    "request acknowledged",
    "request lost",
    "rollout complete",
    "rollout failed",
    "scratch copy begun anew by another life",
    "scratch copy broke off",
    "scratch data copied",
    "service removed",
    "service scaled",
    "service updated",
    "start failed",
    "started without its scratch data",
    "stateful placed",
    "stopped by an operator",
    "store cut off",
    "store unavailable",
    "system ready",
    "dispatcher failed",
    "feed applied",
    "feed removed",
    "late dispatcher refused by its sink",
    "maintainer handed over",
    "maintainer placed anew",
    "message between nodes lost",
    "preparation failed",
    "span appeared",
    "span taken over",
    "span vanished",
    "volume attached",
    "volume home offline",
    "withdrawn edge came back",
    "backend answer lost",
    "backend call failed",
    "backend meddled with",
    "store began to leave",
    "store group applied",
    "store group destroyed",
    "store group scaled",
    "store removed",
    "store rescued",
    "store restarted, or that was cancelled",
    "volume destroyed",
];

/// Seen in one of several hundred seeds: worth counting, not to be relied on.
const RARE: &[&str] = &["last node reopened", "scratch data not there"];

#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    pub fn hit(&mut self, what: &'static str) {
        debug_assert!(EXPECTED.contains(&what) || RARE.contains(&what), "{what} is not in the list");
        *self.0.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Coverage) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    pub fn times(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub fn missing(&self) -> Vec<&'static str> {
        EXPECTED.iter().copied().filter(|what| self.times(what) == 0).collect()
    }
}
