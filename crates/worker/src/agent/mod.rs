//! The shell around [`protocol::node::Node`]: it performs what the node decides with real processes,
//! disks and streams.
//!
//! One task owns the node; everything else tells it what happened. [`disk`] is what outlives the
//! daemon, [`ledger`] what outlives a loss of power, [`copy`] how scratch data comes along, [`launch`] how an instance is started, [`link`] the stream to the coordinator, [`http`] what
//! this daemon answers itself, [`halt`] how `dev` stops everything.

mod copy;
mod disk;
mod halt;
#[cfg(test)]
mod hostile_tests;
mod http;
mod launch;
mod ledger;
mod link;
mod task;

use std::{
    collections::BTreeMap,
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
};

use doors::Http;
use model::{Life, MemoryCaps, NodeId, Resources, Roles, Time};
use protocol::{
    Timing,
    message::{Duty, EdgeReport, Sets},
    node::{Identity, Node},
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    cgroup::{Cgroups, Kind},
    feeds::{Ears, Incoming},
    host,
    runtime::Runtime,
};

pub use copy::SILENCE_MAX;
pub use halt::stop_instances;
pub use http::{LocalCallers, local_router};
pub use task::STOP_MAX;

pub struct AgentConfig {
    pub node: String,
    pub data_dir: PathBuf,
    pub roles: Roles,
    pub labels: BTreeMap<String, String>,
    /// Default: the machine's.
    pub memory: Option<u64>,
    pub cpu: Option<u64>,
    /// Where this node's instances are reached, without a port.
    pub host: String,
    /// Where this daemon answers HTTP, `host:port`.
    pub api: String,
    /// Where other daemons reach it for feeds, `host:port`; empty if it takes none.
    pub rpc: String,
    pub ports: RangeInclusive<u16>,
    /// Streams of any candidates, `host:port`.
    pub coordinators: Vec<String>,
    pub timing: Timing,
    /// How other daemons are reached, with which certificate.
    pub http: Http,
    /// Forget the cluster this node belonged to.
    pub adopt: bool,
    /// The binary that plays the shim.
    pub exe: PathBuf,
}

/// The edge of the same daemon, as far as the agent is concerned.
pub struct EdgeLink {
    pub apply: Box<dyn Fn(Sets) + Send>,
    pub duty: Box<dyn Fn(Duty) + Send>,
    pub report: watch::Receiver<EdgeReport>,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot use the data directory {}", .dir.display())]
    Data {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The coordinator will not have this daemon.
    #[error("{0}")]
    Refused(String),
}

/// What a node says of itself, for its metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// It is registered with a coordinator.
    pub registered: bool,
    /// Instances on its disk, and those of them with a process.
    pub instances: usize,
    pub running: usize,
}

/// A running agent.
pub struct AgentHandle {
    pub stats: watch::Receiver<NodeStats>,
    /// The coordinator's API address, once it is known.
    pub coordinator: watch::Receiver<Option<String>>,
    instances: Arc<Path>,
    ended: tokio::task::JoinHandle<Result<(), AgentError>>,
}

impl AgentHandle {
    /// Where instances have their directories.
    pub fn instances_dir(&self) -> &Path {
        &self.instances
    }

    /// Ends after `shutdown`, or when the coordinator will not have this daemon. Instances run on.
    pub async fn ended(self) -> Result<(), AgentError> {
        match self.ended.await {
            Ok(result) => result,
            Err(fault) => Err(AgentError::Refused(format!("the agent ended: {fault}"))),
        }
    }
}

/// Milliseconds since 1970, anchored once and running on the boot clock from there.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    wall_ms: u64,
    boot_ms: u64,
}

impl Clock {
    fn start() -> Clock {
        Clock { wall_ms: crate::sys::unix_ms(), boot_ms: host::boottime_ms() }
    }

    pub fn now(&self) -> Time {
        Time(self.wall_ms + (host::boottime_ms() - self.boot_ms))
    }

    /// A point in time on the boot clock, as shims count it.
    pub fn boottime(&self, at: Time) -> u64 {
        (at.0 + self.boot_ms).saturating_sub(self.wall_ms)
    }
}

/// Two lives of a node, or two daemons that claim its id, never draw the same.
fn random_life() -> io::Result<Life> {
    let id: String = host::random_id()?.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&id, 16).map(Life).map_err(io::Error::other)
}

pub struct Agent;

impl Agent {
    /// Finds what runs here, then connects and goes on until `shutdown`.
    pub async fn start(
        config: AgentConfig,
        edge: Option<EdgeLink>,
        incoming: Option<Incoming>,
        shutdown: CancellationToken,
    ) -> Result<AgentHandle, AgentError> {
        let data = |source| AgentError::Data { dir: config.data_dir.clone(), source };
        let root = config.data_dir.join("instances");
        std::fs::create_dir_all(&root).map_err(data)?;
        let cgroups = match config.roles.worker {
            true => Cgroups::detect(&config.node, &config.data_dir),
            false => Cgroups::none("this daemon runs no instances"),
        };
        let memory_caps = match cgroups.memory_cap() {
            Ok(Kind::V2) => MemoryCaps::CgroupV2,
            Ok(Kind::V1) => MemoryCaps::CgroupV1,
            Err(why) => MemoryCaps::None(why.to_owned()),
        };
        let runtime = Runtime::new(&root, &config.exe, cgroups).map_err(data)?;
        let mut memory = disk::load_memory(&config.data_dir).map_err(data)?;
        if config.adopt {
            memory = Default::default();
        }
        let life = random_life().map_err(data)?;
        // The daemon holds the lock of its data directory: whoever had it before is over.
        let succeeds = disk::begin_life(&config.data_dir, life).map_err(data)?;
        let clock = Clock::start();
        let identity = Identity {
            node: NodeId::new(&config.node),
            life,
            succeeds,
            roles: config.roles,
            labels: config.labels.clone(),
            capacity: Resources {
                memory: config.memory.unwrap_or_else(host::memory_total),
                cpu: config.cpu.unwrap_or(host::cpu_count() as u64 * 1000),
            },
            host: config.host.clone(),
            api: config.api.clone(),
            rpc: config.rpc.clone(),
            memory_caps,
            memory,
        };
        let node = Node::new(identity, config.timing, clock.now());
        let (coordinator_tx, coordinator) = watch::channel(None);
        let (stats_tx, stats) = watch::channel(NodeStats::default());
        let (events_tx, events) = mpsc::unbounded_channel();
        let instances: Arc<Path> = root.into();
        let ledger = ledger::Ledger::open(&config.data_dir, runtime.root()).map_err(data)?;
        let disk = task::Disk { runtime, ledger };
        let (task, ears) = task::Task::new(node, clock, config, disk, edge, events_tx, coordinator_tx);
        let ears = Ears { incoming, ..ears };
        let ended = tokio::spawn(task.run(events, ears, stats_tx, shutdown));
        Ok(AgentHandle { stats, coordinator, instances, ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_life_is_another() {
        let lives: std::collections::BTreeSet<Life> = (0..64).map(|_| random_life().unwrap()).collect();
        assert_eq!(lives.len(), 64);
    }
}
