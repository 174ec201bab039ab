//! One run of a service on a node.

use serde::{Deserialize, Serialize};

use crate::{Code, InstanceId, NodeIx, ServiceIx, ServiceSpec, Time};

/// What the coordinator wants of an instance. It only ever goes down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Desired {
    Running,
    /// Out of every backend set; gets its stop signal once every edge has confirmed.
    Draining,
    Stopped,
}

/// What is known of an instance.
///
/// `Stopped` and `Failed` are the node's own word that no process is left. `Lost` is not: its node
/// went offline with it, and it counts as running there until the node or an operator says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Actual {
    /// Placed; the node has not acknowledged it.
    Pending,
    Starting,
    Ready,
    Unready,
    Stopping,
    Stopped,
    Failed,
    Lost,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// Nobody saw it end.
    Unknown,
}

/// What is to become of an instance's scratch data (`disk.migrate`), beside going with the instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scratch {
    /// It begins empty and nobody waits for it.
    #[default]
    Own,
    /// It takes over what the instance that it replaces has left, before its first start.
    Takes,
    /// It left its node for a drain's sake: whoever replaces it takes its data over.
    Left,
    /// It took data over, and left with it in its turn.
    PassedOn,
}

impl Scratch {
    /// What the instance that it replaces has left is its own, or is to be.
    pub fn takes(self) -> bool {
        match self {
            Scratch::Takes | Scratch::PassedOn => true,
            Scratch::Own | Scratch::Left => false,
        }
    }

    /// Its own data is there for whoever replaces it.
    pub fn is_left(self) -> bool {
        match self {
            Scratch::Left | Scratch::PassedOn => true,
            Scratch::Own | Scratch::Takes => false,
        }
    }

    /// As it is once it is clear that nobody will take what it left.
    pub fn stays(self) -> Scratch {
        match self {
            Scratch::Own | Scratch::Left => Scratch::Own,
            Scratch::Takes | Scratch::PassedOn => Scratch::Takes,
        }
    }

    /// As it is once the instance was told to leave for a drain's sake.
    pub fn left(self) -> Scratch {
        match self {
            Scratch::Own | Scratch::Left => Scratch::Left,
            Scratch::Takes | Scratch::PassedOn => Scratch::PassedOn,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub id: InstanceId,
    pub service: ServiceIx,
    pub node: NodeIx,
    pub release: u32,
    /// What it takes of its node, from its release's specification.
    pub memory: u64,
    pub cpu: u32,
    /// Which of the service's numbered places it fills; only for batch and stateful services.
    pub slot: Option<u32>,
    pub desired: Desired,
    pub actual: Actual,
    /// Rises with every change of what is ordered; the node acknowledges it.
    pub order: u32,
    pub restarts: u32,
    pub pid: Option<u32>,
    /// In the order of the specification's `ports`.
    pub ports: Box<[u16]>,
    pub reason: Option<Code>,
    pub message: Option<Box<str>>,
    pub exit: Option<Exit>,
    pub replaces: Option<InstanceId>,
    pub scratch: Scratch,
    pub created_at: Time,
    pub healthy_since: Option<Time>,
    pub ended_at: Option<Time>,
    /// When `desired` took its value; kept by [`Txn::put`](crate::Txn::put).
    pub desired_since: Time,
}

impl Instance {
    pub fn new(
        id: InstanceId,
        service: ServiceIx,
        node: NodeIx,
        release: u32,
        spec: &ServiceSpec,
        now: Time,
    ) -> Instance {
        Instance {
            id,
            service,
            node,
            release,
            memory: spec.memory,
            cpu: spec.cpu,
            slot: None,
            desired: Desired::Running,
            actual: Actual::Pending,
            order: 1,
            restarts: 0,
            pid: None,
            ports: Box::default(),
            reason: None,
            message: None,
            exit: None,
            replaces: None,
            scratch: Scratch::Own,
            created_at: now,
            healthy_since: None,
            ended_at: None,
            desired_since: now,
        }
    }

    /// The node itself said that nothing of it runs any more.
    pub fn is_over(&self) -> bool {
        match self.actual {
            Actual::Stopped | Actual::Failed => true,
            Actual::Pending
            | Actual::Starting
            | Actual::Ready
            | Actual::Unready
            | Actual::Stopping
            | Actual::Lost => false,
        }
    }

    /// Wanted, and neither over nor lost.
    pub fn is_wanted(&self) -> bool {
        self.desired == Desired::Running && !self.is_over() && self.actual != Actual::Lost
    }

    /// Wanted and able to take work.
    pub fn is_available(&self) -> bool {
        self.desired == Desired::Running && self.actual == Actual::Ready
    }

    /// The scratch data that it takes over has not come yet, nor been given up. Its node says
    /// `disk_copying` from its first word on, for as long as that is so.
    pub fn awaits_scratch(&self) -> bool {
        let copying = self.actual == Actual::Pending || self.reason == Some(Code::DiskCopying);
        self.scratch == Scratch::Takes && !self.is_over() && self.actual != Actual::Lost && copying
    }

    /// It was to take scratch data over and ended, by its node's own word, before it was started with it.
    pub fn never_had_scratch(&self) -> bool {
        self.scratch == Scratch::Takes && self.is_over() && self.reason == Some(Code::DiskCopying)
    }

    /// It ended by itself, well: a batch instance that is done.
    pub fn is_complete(&self) -> bool {
        self.actual == Actual::Stopped && self.desired == Desired::Running && self.exit == Some(Exit::Code(0))
    }
}

impl Desired {
    pub fn as_str(self) -> &'static str {
        match self {
            Desired::Running => "running",
            Desired::Draining => "draining",
            Desired::Stopped => "stopped",
        }
    }
}

impl Actual {
    pub fn as_str(self) -> &'static str {
        match self {
            Actual::Pending => "pending",
            Actual::Starting => "starting",
            Actual::Ready => "ready",
            Actual::Unready => "unready",
            Actual::Stopping => "stopping",
            Actual::Stopped => "stopped",
            Actual::Failed => "failed",
            Actual::Lost => "lost",
        }
    }
}
