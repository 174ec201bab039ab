//! How often the interesting things happened: a simulator that never reaches them proves nothing.

use std::collections::BTreeMap;

use model::{ALL_CODES, Code};

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
    "drain left a feed behind that nobody could make ready",
    "drain left feeds behind that had nowhere to go",
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
    "goodbye of a daemon whose dispatchers had stopped",
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
    "message between nodes by way of the coordinator",
    "message between nodes lost",
    "move asked for by hand",
    "preparation failed",
    "span appeared",
    "span taken over",
    "span vanished",
    "volume attached",
    "volume home offline",
    "withdrawn edge came back",
    "batch finished on a draining node",
    "batch stopped at the deadline",
    "dispatcher: maintainer asks what runs",
    "dispatcher: prepared",
    "dispatcher: refused",
    "dispatcher: released",
    "dispatcher: runs",
    "dispatcher: said its last word",
    "dispatcher: told to prepare",
    "dispatcher: told to start",
    "dispatcher: told to stop",
    "drain queued",
    "edge told to withdraw",
    "forced off a disabled node",
    "forced off at the deadline",
    "a drain of hundreds of dispatchers was cancelled",
    "hundreds of dispatchers left a draining node",
    "maintainer: placed",
    "maintainer: said its last word",
    "maintainer: told to hand over",
    "move without surge: stopped first",
    "move without surge: successor placed",
    "move: replacement given up",
    "move: replacement placed",
    "move: replacement ready",
    "move: stopped",
    "move: taken out of the sets",
    "move: told to stop",
    "recovery: a daemon ended while its node drained",
    "recovery: a destination lost in the middle of a move",
    "recovery: a maintainer gone without its last word",
    "recovery: a maintainer lost with its node",
    "recovery: a draining node lost with what was on it",
    "recovery: another coordinator in the middle of a drain",
    "recovery: another coordinator in the middle of a hand-over",
    "recovery: another coordinator in the middle of a move",
    "recovery: another coordinator with hundreds of dispatchers to move",
    "recovery: another successor in the middle of a hand-over",
    "recovery: cancelled before its turn",
    "recovery: cancelled in the middle of a move",
    "recovery: cancelled while it drained",
    "recovery: what was lost came back",
    "sets lost on their way to an edge",
    "stateful instance stopped for a drain",
    "system instance left last",
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

/// Codes that nothing in the simulated world leads to, and why.
pub const CODES_OUT_OF_REACH: &[(Code, &str)] = &[
    (Code::MemoryExceeded, "simulated processes use what they were given"),
    (Code::MemoryPressure, "simulated machines report a full disk instead"),
    (Code::MemoryUncapped, "every simulated machine has cgroups; shown from the node's record"),
    (Code::CapacityBelowUse, "shown by the API from the node's record; counted as \"capacity below use\""),
    (Code::VolumeNotPresent, "simulated volumes are always there"),
    (Code::ClusterMismatch, "there is one cluster"),
    (Code::EdgePortInUse, "each service has a port of its own"),
    (Code::EdgeListenFailed, "told by the edge's report, and shown by the API"),
    (Code::EdgeConnections, "shown by the edge's own status"),
    (Code::Stopping, "shown for what the API lists as unclaimed"),
    (Code::MaintainerMoving, "shown by the captures API"),
    (Code::NoStoreForLeader, "a simulated backend refuses for want of replicas"),
    (Code::NoSpaceForData, "a simulated backend has room"),
    (Code::SourceUnfit, "pipelines are simulated"),
    (Code::SinkUnfit, "pipelines are simulated"),
    (Code::RowRefused, "pipelines are simulated"),
    (Code::PathNotShared, "pipelines are simulated"),
    (Code::CommandFailed, "pipelines are simulated"),
];

/// Codes that operators are shown in a few hundred seeds.
pub fn codes_expected() -> impl Iterator<Item = Code> {
    let reached = |code: &Code| !CODES_OUT_OF_REACH.iter().any(|(out, _)| out == code);
    ALL_CODES.iter().copied().filter(reached)
}

/// Seen in one of several hundred seeds: worth counting, not to be relied on.
const RARE: &[&str] = &["last node reopened", "scratch data not there"];

#[derive(Clone, Debug, Default)]
pub struct Coverage {
    marks: BTreeMap<&'static str, u64>,
    codes: BTreeMap<Code, u64>,
}

impl Coverage {
    pub fn hit(&mut self, what: &'static str) {
        debug_assert!(EXPECTED.contains(&what) || RARE.contains(&what), "{what} is not in the list");
        *self.marks.entry(what).or_default() += 1;
    }

    /// Operators would be shown this.
    pub fn code(&mut self, code: Code) {
        *self.codes.entry(code).or_default() += 1;
    }

    pub fn add(&mut self, other: &Coverage) {
        for (what, times) in &other.marks {
            *self.marks.entry(what).or_default() += times;
        }
        for (code, times) in &other.codes {
            *self.codes.entry(*code).or_default() += times;
        }
    }

    pub fn times(&self, what: &str) -> u64 {
        self.marks.get(what).copied().unwrap_or(0)
    }

    pub fn times_shown(&self, code: Code) -> u64 {
        self.codes.get(&code).copied().unwrap_or(0)
    }

    /// What was never reached: marks, and codes by their names.
    pub fn missing(&self) -> Vec<&'static str> {
        let marks = EXPECTED.iter().copied().filter(|what| self.times(what) == 0);
        let codes = codes_expected().filter(|code| self.times_shown(*code) == 0).map(Code::as_str);
        marks.chain(codes).collect()
    }

    /// Everything that is expected, with how often it was reached.
    pub fn lines(&self) -> Vec<(u64, &'static str)> {
        let marks = EXPECTED.iter().chain(RARE).map(|what| (self.times(what), *what));
        let codes = ALL_CODES.iter().map(|code| (self.times_shown(*code), code.as_str()));
        marks.chain(codes).collect()
    }
}
