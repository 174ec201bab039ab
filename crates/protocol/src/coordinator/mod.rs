//! The one elected daemon that decides, as a pure state machine.
//!
//! Everything comes in through [`Coordinator::handle`] and leaves as [`Output`]s. What an input
//! changes is applied to the [`Cluster`] at once; what may be seen from outside (orders, replies,
//! events) waits until those changes are committed.

mod request;

use model::{Cluster, Event, NodeIx, Reason, ServiceIx, Term, Time};

pub use request::{Answer, ApiError, Applied, Apply, Asked, ErrorKind, Outcome, Request, WantedIntent};

use crate::{
    Timing,
    message::{BackendSet, Down, EdgeReport, Inventory, SetRevision, Up},
};

/// One stream to a daemon. The shell numbers them and never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// Numbered by the shell; the reply carries it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A record as the store keeps it: key, and value or deletion.
pub type Op = (String, Option<Vec<u8>>);

#[derive(Clone, Debug)]
pub enum Input {
    /// A message of a daemon.
    Up { conn: ConnId, message: Up },
    /// The stream is gone.
    Closed { conn: ConnId },
    Request { id: RequestId, asked: Asked },
    /// The office lease was renewed and holds until then. Heartbeats are answered only while it does.
    OfficeHolds { until: Time },
    /// How the transaction in flight ended.
    Stored(Stored),
    /// What the head is and in which term it was written, asked for after an unknown outcome.
    Head { number: u64, by: Term },
    /// Time has passed; called when [`Coordinator::next_wake`] is due.
    Tick,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    Committed,
    /// The answer was lost: it may have been applied, or may still be.
    Unknown,
    /// Surely not applied; try again.
    Unavailable,
    /// The store holds nothing more: shown as `store_space`, tried again.
    NoSpace,
    /// Somebody else is in office, or the head is not ours.
    Refused,
}

#[derive(Clone, Debug)]
pub enum Output {
    Send { conn: ConnId, message: Down },
    /// End this stream.
    Close { conn: ConnId },
    Reply { id: RequestId, result: Result<Answer, ApiError> },
    Event(Event),
    /// One transaction: fenced by the office, comparing the head with `head - 1`.
    Transact { head: u64, ops: Vec<Op> },
    ReadHead,
    /// Give up office: drop this coordinator, campaign again.
    Resign { why: String },
}

/// What a coordinator takes office with.
#[derive(Debug)]
pub struct Start {
    /// As loaded from the store; empty if it holds nothing yet.
    pub cluster: Cluster,
    /// The number of the last transaction in it.
    pub head: u64,
    pub term: Term,
    pub timing: Timing,
    /// Random bits: the id of the cluster, if the store is empty.
    pub random: u64,
    /// Who takes office, for the event.
    pub candidate: String,
}

/// What is seen of a node, beside its record.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub connected: bool,
    pub last_heartbeat: Time,
    /// What runs there and is in no record.
    pub unclaimed: &'a [Inventory],
    pub edge: &'a EdgeReport,
}

pub struct Coordinator {
    cluster: Cluster,
}

impl Coordinator {
    pub fn new(start: Start, _now: Time) -> (Coordinator, Vec<Output>) {
        (Coordinator { cluster: start.cluster }, Vec::new())
    }

    pub fn handle(&mut self, _now: Time, _input: Input) -> Vec<Output> {
        Vec::new()
    }

    /// When `Tick` is due next.
    pub fn next_wake(&self) -> Option<Time> {
        None
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn term(&self) -> Term {
        Term(0)
    }

    /// `None`: not heard of in this term.
    pub fn seen(&self, _node: NodeIx) -> Option<Seen<'_>> {
        None
    }

    /// Why a service is not as asked.
    pub fn reasons(&self, _service: ServiceIx) -> &[Reason] {
        &[]
    }

    /// What concerns the cluster as a whole: the store is out of space, ….
    pub fn cluster_reasons(&self) -> Vec<Reason> {
        Vec::new()
    }

    /// The backends of a service as edges are told, if it is behind the edge.
    pub fn backends(&self, _service: ServiceIx) -> Option<&BackendSet> {
        None
    }

    pub fn sets_revision(&self) -> SetRevision {
        SetRevision::default()
    }
}
