//! Where one span is, as its maintainer knows.
//!
//! A move goes `Running → Moving → Stopping → Starting → Running`. Only `Moving` may be given up for
//! another destination. From `Stopping` on the span's next owner is settled, and from `Starting` on that
//! owner has it until it denies it or its lease has ended: a timeout never frees an owner.

use model::{Checkpoint, Code, NodeId, SpanEpoch, Time};

use crate::message::feed::SpanWhat;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Not every node has said what it runs: somebody may have it.
    Unknown,
    /// Nobody runs it.
    Nowhere,
    /// Nobody runs it; it is made ready there.
    Preparing {
        to: NodeId,
    },
    /// Told to start there.
    Starting {
        on: NodeId,
        epoch: SpanEpoch,
        moved: bool,
    },
    Running {
        on: NodeId,
        epoch: SpanEpoch,
    },
    /// Runs, and is made ready elsewhere.
    Moving {
        on: NodeId,
        epoch: SpanEpoch,
        to: NodeId,
    },
    /// Told to stop; then it starts where it is ready, if anywhere.
    Stopping {
        on: NodeId,
        epoch: SpanEpoch,
        to: Option<NodeId>,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Span {
    pub at: At,
    pub checkpoint: Option<Checkpoint>,
    /// What is said of earlier starts is of a span that vanished, and had the same name.
    pub floor: SpanEpoch,
    pub trouble: Option<(NodeId, Code, String)>,
    /// Nodes that could not make it ready, until it runs elsewhere.
    pub failed: Vec<Failed>,
    /// Nodes that keep a last word of it, until it runs elsewhere.
    pub kept_on: Vec<NodeId>,
    /// Orders that were not answered in the present state.
    pub tries: u32,
    pub since: Time,
    pub retry_at: Option<Time>,
}

/// A node that was to make a span ready, and could not.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub node: NodeId,
    pub times: u32,
    /// It is not asked again before then.
    pub until: Time,
    pub code: Code,
    pub message: String,
}

impl Span {
    /// It may be tried there: it has not failed, or that is a while ago.
    pub fn may_try(&self, node: &NodeId, now: Time) -> bool {
        !self.failed.iter().any(|failed| failed.node == *node && now < failed.until)
    }

    pub fn has_failed_on(&self, node: &NodeId) -> bool {
        self.failed.iter().any(|failed| failed.node == *node)
    }

    pub fn new(at: At, now: Time) -> Span {
        Span {
            at,
            checkpoint: None,
            floor: SpanEpoch(0),
            trouble: None,
            failed: Vec::new(),
            kept_on: Vec::new(),
            tries: 0,
            since: now,
            retry_at: None,
        }
    }

    pub fn raise(&mut self, to: Option<Checkpoint>) {
        match (&mut self.checkpoint, to) {
            (Some(known), Some(to)) => known.raise(to),
            (None, to) => self.checkpoint = to,
            (Some(_), None) => {}
        }
    }
}

impl At {
    /// The node that runs it, or may.
    pub fn owner(&self) -> Option<&NodeId> {
        match self {
            At::Unknown | At::Nowhere | At::Preparing { .. } => None,
            At::Starting { on, .. }
            | At::Running { on, .. }
            | At::Moving { on, .. }
            | At::Stopping { on, .. } => Some(on),
        }
    }

    /// The node that it is on the way to.
    pub fn destination(&self) -> Option<&NodeId> {
        match self {
            At::Preparing { to } | At::Moving { to, .. } => Some(to),
            At::Stopping { to, .. } => to.as_ref(),
            At::Starting { on, .. } => Some(on),
            At::Unknown | At::Nowhere | At::Running { .. } => None,
        }
    }

    /// Under way from one node to another.
    pub fn is_move(&self) -> bool {
        match self {
            At::Moving { .. } | At::Stopping { to: Some(_), .. } | At::Starting { moved: true, .. } => true,
            At::Unknown
            | At::Nowhere
            | At::Preparing { .. }
            | At::Running { .. }
            | At::Starting { moved: false, .. }
            | At::Stopping { to: None, .. } => false,
        }
    }

    /// What has to be said to whom, until it shows.
    pub fn order(&self, checkpoint: Option<Checkpoint>) -> Option<(&NodeId, SpanWhat)> {
        match self {
            At::Unknown | At::Nowhere | At::Running { .. } => None,
            At::Preparing { to } | At::Moving { to, .. } => Some((to, SpanWhat::Prepare)),
            At::Starting { on, epoch, .. } => Some((on, SpanWhat::Start { epoch: *epoch, from: checkpoint })),
            At::Stopping { on, epoch, .. } => Some((on, SpanWhat::Stop { epoch: *epoch })),
        }
    }
}
