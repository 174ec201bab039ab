//! What daemons and the coordinator say to each other. `wire` carries these as protobuf.
//!
//! Both ways are level-triggered: a lost message is made good by the next heartbeat, a late or
//! repeated one is recognised by its number and dropped.

pub mod feed;

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Actual, ClusterId, Code, Exit, FeedName, InstanceId, Life, MemoryCaps, Millis, NodeId, ProcessEpoch,
    Resources, Roles, ServiceName, ServiceSpec, Term, VolumeId,
};

pub use feed::{FeedOrder, FeedReport, Peer, Roster};

use crate::Timing;

/// From a daemon to the coordinator. `seq` rises within one connection; what comes late is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Up {
    pub seq: u64,
    pub body: UpBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpBody {
    Hello(Hello),
    Heartbeat(Heartbeat),
    /// For a node that this one cannot reach: the coordinator passes it on.
    Relay {
        to: NodeId,
        message: Peer,
    },
    /// The daemon is stopping; its instances run on. Of feeds nothing runs in this life of it any more, and
    /// nothing will.
    Goodbye,
}

/// From the coordinator to a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    pub seq: u64,
    pub cluster: ClusterId,
    pub term: Term,
    pub body: DownBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownBody {
    Welcome(Welcome),
    Refused {
        why: Refusal,
        message: String,
    },
    Answer(HeartbeatAnswer),
    Orders(Vec<Order>),
    Sets(Sets),
    Roster(Arc<Roster>),
    Feeds(Vec<FeedOrder>),
    /// From a node that cannot reach this one.
    Relay(Peer),
    /// What the edge of this daemon is to do.
    Duty(Duty),
    /// The node has drained and was to stop then: the daemon ends.
    Leave,
}

/// Registration, on every new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub node: NodeId,
    pub life: Life,
    /// The life before this one in the same data directory, of which it holds the lock: that one is over.
    pub succeeds: Option<Life>,
    pub roles: Roles,
    pub labels: BTreeMap<String, String>,
    pub capacity: Resources,
    pub host: String,
    pub api: String,
    /// Where other daemons reach it, for feeds; empty if it takes none.
    pub rpc: String,
    pub memory_caps: MemoryCaps,
    /// The cluster it belongs to, as far as it remembers.
    pub cluster: Option<ClusterId>,
    /// Everything it has, whoever ordered it.
    pub inventory: Vec<Inventory>,
    pub edge: EdgeReport,
}

/// One instance that a node has on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    pub service: ServiceName,
    pub status: Status,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub epoch: ProcessEpoch,
    pub timing: Timing,
    /// The node remembers another cluster: it is known, gets no orders, and would refuse them.
    pub foreign: bool,
    /// Where the coordinator answers HTTP: daemons forward what they are asked.
    pub api: String,
    /// Dispatchers that a node takes on at a time.
    pub moves_per_node: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another daemon with this id is alive.
    NodeIdInUse,
    /// This daemon is not the coordinator (any more).
    NotCoordinator,
}

/// Renews the lease, repeats what was not acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    pub epoch: ProcessEpoch,
    /// Statuses that changed and were not acknowledged.
    pub statuses: Vec<Status>,
    /// Instances whose `Forget` has been carried out, until the coordinator stops asking.
    pub forgotten: Vec<InstanceId>,
    /// Why the node should get nothing new: disk nearly full, memory pressure.
    pub degraded: Option<Code>,
    pub edge: EdgeReport,
    /// The closed set it knows, in this life.
    pub roster: Option<SetRevision>,
    /// Of its maintainers, what changed and was not answered.
    pub feeds: Vec<FeedReport>,
    /// How many dispatchers it runs of each feed: its own inventory.
    pub dispatchers: Vec<(FeedName, u32)>,
}

/// What the edge of a daemon serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgeReport {
    /// Every set up to this revision is in force here.
    pub serves: Option<SetRevision>,
    /// Ports it could not listen on, and why.
    pub failed: Vec<(u16, String)>,
    /// It was told to withdraw, and has not been told to come back, or has no sets to come back with.
    pub withdrawal: Option<Withdrawal>,
}

/// How far an edge is with leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// The epoch of the drain for whose sake it leaves.
    pub drain: u64,
    /// Its ports are closed and its last connection has ended: it sends nothing to anybody, whatever
    /// sets it has.
    pub done: bool,
}

/// Whether an edge takes connections. It stays as it was last told; a daemon that starts serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// One that has withdrawn was not waited for: it opens its ports once it has sets of this revision.
    Serve { from: SetRevision },
    /// Fail the health check, serve on for `withdraw_delay`, close the ports, let connections finish.
    Withdraw { drain: u64 },
}

/// The coordinator's answer to the heartbeat with this number; grants a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    pub heartbeat: u64,
    /// Statuses that are stored: instance and the status's number.
    pub stored: Vec<(InstanceId, u64)>,
    /// Reports of feeds that were taken, with their numbers.
    pub feeds: Vec<(FeedName, u64)>,
}

/// What a node says of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub instance: InstanceId,
    /// Rises with every change on this node; a lower one is out of date.
    pub number: u64,
    /// The highest order revision it has taken.
    pub order: u32,
    pub actual: Actual,
    pub restarts: u32,
    pub pid: Option<u32>,
    pub ports: Vec<u16>,
    pub reason: Option<Code>,
    pub message: Option<String>,
    pub exit: Option<Exit>,
    /// For how long it has passed its check without a break.
    pub healthy_for: Option<Millis>,
}

/// What a node is told of one instance. Absence is never an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub instance: InstanceId,
    /// Lower revisions are out of date.
    pub revision: u32,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Run(Arc<Run>),
    /// On its way out: runs on, reports not ready.
    Drain,
    Stop,
    /// It is over and recorded: its directory may go.
    Forget,
    /// As `Forget`, and its volume goes with all its data: its store is no more.
    Destroy(VolumeOrder),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub service: ServiceName,
    pub release: u32,
    pub slot: Option<u32>,
    pub volume: Option<VolumeOrder>,
    /// Scratch data to be copied here before the first start.
    pub disk_from: Option<DiskFrom>,
    pub spec: Arc<ServiceSpec>,
}

/// Where the scratch data of an instance is that has left its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFrom {
    pub instance: InstanceId,
    /// Where the daemon that has it answers HTTP; empty if it is gone.
    pub api: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOrder {
    pub id: VolumeId,
    /// Data is expected there: a missing directory is an error, not a fresh start.
    pub expected: bool,
    /// It is in this directory, which is mounted on every node that may run its store, under its id; proved by its
    /// marker before each start. `None`: it is the node's own.
    pub mounted: Option<String>,
}

/// Rises with every change of any backend set, over terms too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetRevision {
    pub term: Term,
    pub number: u64,
}

/// Backend sets for an edge. With `full`, services that are not named have none; otherwise they keep
/// theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sets {
    pub revision: SetRevision,
    /// What it was when this was computed; an edge that serves less asks for all by not confirming.
    pub since: SetRevision,
    pub full: bool,
    pub sets: Vec<BackendSet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSet {
    pub service: ServiceName,
    /// `None`: the service has left the edge.
    pub listen: Option<u16>,
    /// How long connections to an instance that left may go on.
    pub grace: Millis,
    pub backends: Vec<Backend>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    pub instance: InstanceId,
    /// `host:port`.
    pub address: String,
}
