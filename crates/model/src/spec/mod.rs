//! What a service, a feed and a store group are: the specification as it is kept, and [`file`], as people write it.

pub mod feed;
pub mod file;
pub mod store_group;
mod validate;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Millis;

pub use feed::{FeedFile, FeedSpec, IDLE_SPANS_MAX, PipelineSpec, Sink, Source};
pub use file::{ServiceFile, SpecError};
pub use store_group::{BackendSpec, StoreGroupFile, StoreGroupSpec};
pub use validate::{expand, is_valid_name};

/// More instances of one service than this is taken for a slip of the finger.
pub const COUNT_MAX: u32 = 100_000;
/// A larger specification would not fit beside others into a transaction of the store.
pub const SPEC_BYTES_MAX: usize = 1 << 20;
/// No duration in a specification is longer.
pub const DURATION_MAX: Millis = Millis::secs(30 * 24 * 3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// `count` instances, kept running.
    Service,
    /// `count` instances, each run once to its end.
    Batch,
    /// One on every node that satisfies its constraints.
    System,
    /// The processes of a store group: one per store. Nobody applies it; it comes with its group.
    Store,
}

/// A checked specification of one release. `count` is not part of it: scaling makes no release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSpec {
    pub kind: Kind,
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Bytes; hard.
    pub memory: u64,
    /// Thousandths of a core; soft.
    pub cpu: u32,
    pub ports: Vec<String>,
    pub check: Option<Check>,
    pub edge: Option<EdgeSpec>,
    pub stop: Stop,
    pub migrate: Migrate,
    pub update: Update,
    pub volume: Option<VolumeSpec>,
    pub disk: Disk,
    pub rerun: bool,
    pub constraints: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub probe: Probe,
    pub interval: Millis,
    pub timeout: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probe {
    /// 2xx for a GET of the path.
    Http { path: String, port: String },
    /// A connection is accepted.
    Tcp { port: String },
    /// Ends with 0.
    Command(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeSpec {
    pub port: String,
    pub listen: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    pub signal: Signal,
    pub grace: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migrate {
    pub max_parallel: u32,
    pub min_healthy_time: Millis,
    pub healthy_deadline: Millis,
    pub surge: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    pub max_parallel: u32,
    pub healthy_deadline: Millis,
    pub surge: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    pub migrate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Signal {
    Term,
    Int,
    Quit,
    Hup,
    Usr1,
    Usr2,
    Kill,
}

impl ServiceSpec {
    pub fn is_stateful(&self) -> bool {
        self.volume.is_some()
    }

    /// Its instances fill numbered places: each place is filled by at most one at a time.
    pub fn has_slots(&self) -> bool {
        self.is_stateful() || self.kind == Kind::Batch
    }

    /// No second copy may start before the first is known to have stopped.
    pub fn must_not_run_twice(&self) -> bool {
        self.has_slots() || !self.migrate.surge || !self.update.surge
    }

    /// The node itself stops it at the fence. A stateful instance is not: nobody starts it elsewhere
    /// before its node or an operator says that it has stopped.
    pub fn is_fenced(&self) -> bool {
        self.kind == Kind::Service && !self.is_stateful() && (!self.migrate.surge || !self.update.surge)
    }

    /// Index of a named port among an instance's ports.
    pub fn port_index(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|port| port == name)
    }
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Service => "service",
            Kind::Batch => "batch",
            Kind::System => "system",
            Kind::Store => "store",
        }
    }
}

impl Signal {
    pub const ALL: [Signal; 7] =
        [Signal::Term, Signal::Int, Signal::Quit, Signal::Hup, Signal::Usr1, Signal::Usr2, Signal::Kill];

    pub fn as_str(self) -> &'static str {
        match self {
            Signal::Term => "SIGTERM",
            Signal::Int => "SIGINT",
            Signal::Quit => "SIGQUIT",
            Signal::Hup => "SIGHUP",
            Signal::Usr1 => "SIGUSR1",
            Signal::Usr2 => "SIGUSR2",
            Signal::Kill => "SIGKILL",
        }
    }

    /// The number on Linux.
    pub fn number(self) -> i32 {
        match self {
            Signal::Hup => 1,
            Signal::Int => 2,
            Signal::Quit => 3,
            Signal::Kill => 9,
            Signal::Usr1 => 10,
            Signal::Usr2 => 12,
            Signal::Term => 15,
        }
    }
}
