//! A machine that runs the daemon, as the cluster knows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Code, Life, NodeId, ProcessEpoch, Time};

/// What the operator wants of a node.
///
/// | | may place | may leave | counts as capacity |
/// |---|---|---|---|
/// | `Active` | if up | yes | yes |
/// | `Drained`, `Stopping`, `Disabled` | no | yes | no |
///
/// `draining` is not here: it is derived from an unfinished drain that names the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Intent {
    Active,
    Drained,
    Stopping,
    Disabled,
}

/// What is seen of a node.
///
/// | | may place | its units |
/// |---|---|---|
/// | `Up` | if active, and its daemon has not said goodbye | run |
/// | `Degraded` | no | run, and stay |
/// | `Offline` | no | are lost, not moved |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Health {
    Up,
    Degraded(Code),
    Offline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    Coordinator,
    Worker,
    Edge,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    pub coordinator: bool,
    pub worker: bool,
    pub edge: bool,
}

impl Roles {
    pub const ALL: Roles = Roles { coordinator: true, worker: true, edge: true };
    pub const WORKER: Roles = Roles { coordinator: false, worker: true, edge: false };

    pub fn iter(self) -> impl Iterator<Item = Role> {
        let roles =
            [(self.coordinator, Role::Coordinator), (self.worker, Role::Worker), (self.edge, Role::Edge)];
        roles.into_iter().filter(|(has, _)| *has).map(|(_, role)| role)
    }
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Coordinator => "coordinator",
            Role::Worker => "worker",
            Role::Edge => "edge",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Bytes. Hard: no placement goes over it.
    pub memory: u64,
    /// Thousandths of a core. Soft: it only weighs.
    pub cpu: u64,
}

/// How the node enforces memory caps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryCaps {
    CgroupV2,
    CgroupV1,
    /// Not at all, and why.
    None(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    pub roles: Roles,
    pub intent: Intent,
    pub health: Health,
    pub health_since: Time,
    pub labels: BTreeMap<String, String>,
    pub capacity: Resources,
    pub process_epoch: ProcessEpoch,
    pub life: Life,
    /// Where its instances are reached, without a port.
    pub host: String,
    /// Where its daemon answers HTTP.
    pub api: String,
    pub memory_caps: MemoryCaps,
    /// It remembers another cluster and takes no orders from this one.
    pub foreign: bool,
    pub registered_at: Time,
    /// An earlier life that nothing proved to be over: what it ran counts as running.
    pub lingers: Option<Lingering>,
    /// This life of its daemon has said goodbye: it runs nothing of any feed, and takes on nothing more. The
    /// record's version says it, so that those without it stay what earlier binaries read.
    #[serde(skip)]
    pub goodbye: bool,
}

/// A life of a daemon that another took over from without its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lingering {
    pub epoch: ProcessEpoch,
    /// Its lease is over by then.
    pub until: Time,
}

impl Node {
    pub fn is_closed(&self) -> bool {
        match self.intent {
            Intent::Active => false,
            Intent::Drained | Intent::Stopping | Intent::Disabled => true,
        }
    }

    /// Whether new work may be placed here at all.
    pub fn may_place(&self) -> bool {
        let up = self.health == Health::Up && !self.goodbye;
        self.roles.worker && !self.foreign && !self.is_closed() && up
    }

    /// Nothing of any feed runs there: by the end of its lease, or by its own last word.
    pub fn is_over(&self) -> bool {
        self.is_offline() || (self.goodbye && self.lingers.is_none())
    }

    pub fn is_offline(&self) -> bool {
        self.health == Health::Offline
    }

    /// The life whose dispatchers and maintainers count as running.
    pub fn life_that_counts(&self) -> ProcessEpoch {
        self.lingers.map_or(self.process_epoch, |lingers| lingers.epoch)
    }

    pub fn satisfies(&self, constraints: &BTreeMap<String, String>) -> bool {
        constraints.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }
}

impl Intent {
    pub fn as_str(self) -> &'static str {
        match self {
            Intent::Active => "active",
            Intent::Drained => "drained",
            Intent::Stopping => "stopping",
            Intent::Disabled => "disabled",
        }
    }
}

impl Health {
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Up => "up",
            Health::Degraded(_) => "degraded",
            Health::Offline => "offline",
        }
    }
}
