//! A drain: a durable record with an epoch of its own, not a state of a node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Code, Millis, NodeId, Time};

/// Takes one or more nodes out of service. All are closed from the moment it is stored; each has its
/// own start, deadline and ending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    pub epoch: u64,
    pub by: String,
    pub from: String,
    pub message: String,
    pub meta: BTreeMap<String, String>,
    pub created_at: Time,
    /// In the order in which they take their turn.
    pub nodes: Vec<DrainNode>,
}

/// One node's part of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainNode {
    pub node: NodeId,
    pub options: DrainOptions,
    pub state: DrainState,
    pub started_at: Option<Time>,
    /// Absolute, from its start on.
    pub deadline: Option<Time>,
    pub deadline_reached: bool,
    pub ended_at: Option<Time>,
    /// Units on it when it started.
    pub total: u32,
    /// The last time a unit was done, for the stall.
    pub progress_at: Option<Time>,
    /// The most that has been done: progress never goes back.
    pub done: u32,
    /// A person is needed.
    pub blocked: bool,
    /// Nothing has left for `stall_after`.
    pub stalled: bool,
    /// What was left when it ended `drained_except`, and why.
    pub left: Vec<(String, Code)>,
    /// Since when the edge of this node is told to withdraw: nothing else of it is left.
    pub withdrawing_since: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainOptions {
    /// `None`: no deadline.
    pub deadline: Option<Millis>,
    pub ignore_system: bool,
    pub ack_stateful: bool,
    pub include_stateful: bool,
    pub then: Then,
    pub back: Return,
}

/// What becomes of the node when it is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    Stay,
    /// Its daemon ends by itself.
    Stop,
    /// Its daemon stays up until whoever asked for the drain ends it.
    AwaitStop,
}

/// What makes it active again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Return {
    Enable,
    /// The first new life of its daemon after the ending.
    Restart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainState {
    /// Closed, and waiting for its turn.
    Queued,
    Draining,
    Ended(Ending),
}

/// How a node's part finished, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Ending {
    Drained,
    /// Without what is listed in `left`.
    DrainedExcept,
    Cancelled,
    /// The node went offline in the middle of it.
    NodeLost,
    /// Its turn came and it was refused before any move.
    Failed,
}

/// What an unfinished drain means for a node; kept beside its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDrain {
    pub epoch: u64,
    /// Its turn has come.
    pub draining: bool,
    pub deadline_reached: bool,
    pub ignore_system: bool,
    pub ack_stateful: bool,
    pub include_stateful: bool,
}

impl Default for DrainOptions {
    fn default() -> DrainOptions {
        DrainOptions {
            deadline: Some(Millis::secs(3600)),
            ignore_system: false,
            ack_stateful: false,
            include_stateful: false,
            then: Then::Stay,
            back: Return::Enable,
        }
    }
}

impl DrainNode {
    pub fn queued(node: NodeId, options: DrainOptions) -> DrainNode {
        DrainNode {
            node,
            options,
            state: DrainState::Queued,
            started_at: None,
            deadline: None,
            deadline_reached: false,
            ended_at: None,
            total: 0,
            progress_at: None,
            done: 0,
            blocked: false,
            stalled: false,
            left: Vec::new(),
            withdrawing_since: None,
        }
    }

    pub fn ending(&self) -> Option<Ending> {
        match self.state {
            DrainState::Ended(ending) => Some(ending),
            DrainState::Queued | DrainState::Draining => None,
        }
    }

    pub fn state_str(&self) -> &'static str {
        match self.state {
            DrainState::Queued => "queued",
            DrainState::Draining => "draining",
            DrainState::Ended(ending) => ending.as_str(),
        }
    }
}

impl Drain {
    pub fn is_unfinished(&self) -> bool {
        self.nodes.iter().any(|node| node.ending().is_none())
    }

    pub fn part(&self, node: &str) -> Option<&DrainNode> {
        self.nodes.iter().find(|part| part.node.as_str() == node)
    }

    /// `queued` until the first node's turn comes, then `draining`, then the worst ending.
    pub fn state_str(&self) -> &'static str {
        if self.is_unfinished() {
            let begun = self.nodes.iter().any(|part| part.state != DrainState::Queued);
            return if begun { "draining" } else { "queued" };
        }
        self.nodes.iter().filter_map(DrainNode::ending).max().map_or("drained", Ending::as_str)
    }
}

impl Ending {
    pub fn as_str(self) -> &'static str {
        match self {
            Ending::Drained => "drained",
            Ending::DrainedExcept => "drained_except",
            Ending::Cancelled => "cancelled",
            Ending::NodeLost => "node_lost",
            Ending::Failed => "failed",
        }
    }
}
