//! Why something is not as asked: the one list of codes, stable and shown to operators.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Time;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $hint:literal;)*) => {
        /// A stable, snake_case code. New ones are added at the end: stored records carry the number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $doc])+ $name,)*
        }

        /// Every code there is, in the order of `docs/reasons.md`.
        pub const ALL_CODES: &[Code] = &[$(Code::$name),*];

        impl Code {
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }
            /// What it means, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Code::$name => concat!($($doc),+),)* }
            }
            /// What an operator can do about it.
            pub fn hint(self) -> &'static str {
                match self { $(Code::$name => $hint,)* }
            }
        }
    };
}

codes! {
    /// No node that may take it has enough memory free.
    NoCapacityMemory = "no_capacity_memory", "add nodes, scale something down, or ask for less memory";
    /// No node takes new work: all are closed, degraded or offline.
    NoEligibleNode = "no_eligible_node", "see `tidegate node list`; enable a node or add one";
    /// No node has the labels that its constraints ask for.
    ConstraintUnsatisfied = "constraint_unsatisfied", "label a node, or change the service's constraints";
    /// As many of its instances as `max_parallel` allows are on the move already.
    MaxParallel = "max_parallel", "wait, or raise max_parallel";
    /// Its replacement is started and not ready yet.
    ReplacementStarting = "replacement_starting", "wait";
    /// Its replacements do not get healthy.
    ReplacementUnhealthy = "replacement_unhealthy", "look at the replacement: `tidegate instance logs`";
    /// It did not pass its check by healthy_deadline.
    Unhealthy = "unhealthy", "look at its check and its logs: `tidegate instance logs`";
    /// Its process ended again and again.
    CrashLooping = "crash_looping", "look at its logs: `tidegate instance logs`";
    /// It used more memory than its specification allows and was killed.
    MemoryExceeded = "memory_exceeded", "raise `memory` in its specification, or make it use less";
    /// Its command could not be started.
    StartFailed = "start_failed", "check `command` in its specification, and that it exists on the node";
    /// Its process ended, and is started again after a pause.
    Restarting = "restarting", "wait; `tidegate instance logs` shows why it ended";
    /// Its process ended with an error.
    Exited = "exited", "look at its logs: `tidegate instance logs`";
    /// Its node had no free port for it.
    NoPort = "no_port", "widen the node's port range, or stop what uses it";
    /// Its process was lost: its keeper was killed, or the machine was restarted.
    ProcessLost = "process_lost", "nothing: it is started again";
    /// It was killed because its node had lost the coordinator for `fence_after`.
    Fenced = "fenced", "nothing: it runs elsewhere, or again once the node is back";
    /// An edge has not yet confirmed that it sends nothing there any more.
    EdgeConfirming = "edge_confirming", "wait; an edge that does not answer is given up after offline_after";
    /// Connections through the edge are still open.
    EdgeConnections = "edge_connections", "wait; they are cut when its grace ends";
    /// It was told to stop and has its grace to do so.
    GracePeriod = "grace_period", "wait; it is killed when its grace ends";
    /// A batch instance runs to its end.
    BatchRunning = "batch_running", "wait, or set a deadline";
    /// Its scratch data is being copied to the new node.
    DiskCopying = "disk_copying", "wait";
    /// Its data is on a volume of this node.
    VolumeLocal = "volume_local", "let it stay (`--ack-stateful`), bring its data elsewhere and `tidegate volume attach`, or stop it (`--include-stateful`)";
    /// Its volume's home node is offline; whether it still runs there is unknown.
    VolumeHomeNodeOffline = "volume_home_node_offline", "bring the node back, or `tidegate node confirm-dead`, then `tidegate volume attach`";
    /// The volume's directory is not on its home node.
    VolumeNotPresent = "volume_not_present", "bring the data to the node, or attach the volume to the node that has it";
    /// Its node does not answer.
    NodeUnreachable = "node_unreachable", "look at the node's daemon and the network";
    /// Its heartbeats are late.
    HeartbeatsLate = "heartbeats_late", "look at the node's load and the network";
    /// The file system of its data directory is nearly full.
    DiskFull = "disk_full", "free space on the node";
    /// The node is short of memory.
    MemoryPressure = "memory_pressure", "stop something on the node";
    /// Memory caps cannot be enforced on this node.
    MemoryUncapped = "memory_uncapped", "give the daemon a writable memory cgroup";
    /// What runs on the node needs more memory than the node has now.
    CapacityBelowUse = "capacity_below_use", "raise the node's memory, or stop something on it";
    /// The node belongs to another cluster and takes no orders of this one.
    ClusterMismatch = "cluster_mismatch", "check the store's prefix; to take the node over, restart its daemon with --adopt";
    /// Another service takes connections on this port of the edge.
    EdgePortInUse = "edge_port_in_use", "choose another `edge.listen`";
    /// An edge could not listen on the service's port.
    EdgeListenFailed = "edge_listen_failed", "free the port on the edge's node, or choose another `edge.listen`";
    /// The maintainer is moving.
    MaintainerMoving = "maintainer_moving", "wait";
    /// Dispatchers are moving.
    DispatchersMoving = "dispatchers_moving", "wait";
    /// The old maintainer has not confirmed that it stopped.
    MaintainerUnconfirmed = "maintainer_unconfirmed", "wait; it counts as gone when its lease ends";
    /// The store still has leaders.
    LeadersRemaining = "leaders_remaining", "wait";
    /// The store's data is moving off.
    DataMoving = "data_moving", "wait";
    /// Too few replicas would be left.
    ReplicasNotEnough = "replicas_not_enough", "add a store first";
    /// No other store can take its leaders.
    NoStoreForLeader = "no_store_for_leader", "bring another store up first";
    /// The other stores have no room for its data.
    NoSpaceForData = "no_space_for_data", "add space or a store first";
    /// The backend does not answer.
    BackendUnreachable = "backend_unreachable", "look at the backend and the network";
    /// The backend refused.
    BackendError = "backend_error", "see the message: it holds the backend's words";
    /// The store that holds the cluster's state is out of space.
    StoreSpace = "store_space", "raise etcd's quota or compact and defragment it, then disarm its alarm";
    /// System instances leave a draining node last, when nothing else is left on it.
    SystemLast = "system_last", "wait; see what else is left";
    /// It was told to go and its node has not said that it has.
    Stopping = "stopping", "wait";
    /// Its node waits for its turn: other nodes are draining.
    DrainQueued = "drain_queued", "wait, or raise drain.nodes_at_once";
    /// Nothing has left the node for a while.
    DrainStalled = "drain_stalled", "see what waits and what blocks";
    /// Nothing else is left on the node: its edge fails its health check, then closes its ports, and its open connections finish.
    EdgeWithdrawing = "edge_withdrawing", "wait; connections are cut when their service's grace ends";
    /// No other edge is open: when this one has left, nobody takes connections for services.
    OnlyEdge = "only_edge", "give another node the edge role first, or cancel the drain";
    /// The coordinator is on a closed node and hands its office over; drains go on under the next one.
    OfficeMoving = "office_moving", "wait";
    /// The coordinator is on a closed node and no open candidate lives: drains pause, everything else works.
    CaretakerLeads = "caretaker_leads", "bring up a candidate whose node is open, or enable the node of one";
    /// Its scratch data could not be brought along: it began with an empty directory.
    DiskNotCopied = "disk_not_copied", "see the message; what its predecessor left may still be on the old node";
    /// The feed's source does not answer, or refuses.
    SourceUnreachable = "source_unreachable", "look at the source and the network; the feed goes on from its checkpoint by itself";
    /// The feed's sink does not answer, or refuses.
    SinkUnreachable = "sink_unreachable", "look at the sink and the network; the feed goes on from its checkpoint by itself";
    /// The source is not set up for this feed.
    SourceUnfit = "source_unfit", "the message says what to set";
    /// The sink is not set up for this feed.
    SinkUnfit = "sink_unfit", "the message says what to set";
    /// A row could not be written to the sink.
    RowRefused = "row_refused", "make the sink's table fit, or mend the row; the feed stands there until then";
    /// A directory that every node of the feed must have is missing here, or is another one.
    PathNotShared = "path_not_shared", "mount the same directory on every node that may run the feed, or constrain the feed";
    /// The feed's command ended, does not answer, or printed what it should not.
    CommandFailed = "command_failed", "look at what it wrote: `tidegate feed status`";
    /// The node cannot be reached by the feed's maintainer.
    PeerUnreachable = "peer_unreachable", "look at the network between the two nodes";
    /// The maintainer asks the nodes what they run.
    MaintainerStarting = "maintainer_starting", "wait";
    /// The store's backend does not know it.
    StoreNotJoined = "store_not_joined", "look at its process: it joins its backend by itself";
    /// Another store of its group is not available: one at a time.
    StoreUnavailable = "store_unavailable", "bring the other one up first";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A code with what it is about, as it reaches the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub code: Code,
    /// `instance/web-…`, `service/web`, `node/node-1`.
    pub unit: String,
    pub since: Option<Time>,
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_snake_case() {
        let mut seen = std::collections::BTreeSet::new();
        for code in ALL_CODES {
            assert!(seen.insert(code.as_str()));
            assert!(code.as_str().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(code.meaning().trim().ends_with('.'), "{code}");
        }
    }
}
