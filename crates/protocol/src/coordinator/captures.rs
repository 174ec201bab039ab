//! Captures: nodes with the worker role, as programs know them that were made for another system. They
//! ask again and again until nothing is left, and take a zero for leave to kill the node.

use std::collections::BTreeMap;

use model::{
    Code, DrainNode, DrainOptions, Ending, FeedName, Health, Instance, Intent, NodeEntry, NodeIx, Return,
    Then, Time,
};

use super::{Answer, ApiError, Coordinator, ErrorKind};

/// The code of the refusal because another node is in a drain.
pub const ANOTHER_DRAIN: &str = "another_drain";
/// The code of the refusal because an operator disabled the node.
pub const NODE_DISABLED: &str = "node_disabled";

/// How others count what a node is to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    Alive,
    /// It takes nothing, and may be killed when nothing is left.
    Stopping,
    Draining,
}

/// What is left on a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureLeft {
    /// It is in a drain that has not ended.
    pub draining: bool,
    pub maintainers: u32,
    pub dispatchers: BTreeMap<FeedName, u32>,
    /// Instances that are not over, but for those without which its drain has ended.
    pub instances: u32,
    /// Nobody can say that this is all.
    pub unknown: bool,
    /// Its drain has ended, and it is out: nothing comes any more.
    pub over: bool,
}

impl CaptureLeft {
    /// Never zero unless that is known.
    pub fn dispatcher_count(&self) -> u32 {
        self.dispatchers.values().sum::<u32>().max(u32::from(self.unknown))
    }

    /// Everything there is. Zero: it may be killed.
    pub fn count(&self) -> u32 {
        let all = self.instances + self.maintainers + self.dispatcher_count();
        all.max(u32::from(!self.over))
    }

    /// Not whether its drain has ended: an edge may still be leaving.
    pub fn is_empty(&self) -> bool {
        self.instances + self.maintainers + self.dispatcher_count() == 0
    }
}

impl Liveness {
    pub fn of(node: &NodeEntry) -> Liveness {
        match (&node.drain, node.rec.intent) {
            (Some(_), _) => Liveness::Draining,
            (None, Intent::Active) => Liveness::Alive,
            (None, Intent::Drained | Intent::Stopping | Intent::Disabled) => Liveness::Stopping,
        }
    }

    pub fn number(self) -> u8 {
        match self {
            Liveness::Alive => 0,
            Liveness::Stopping => 1,
            Liveness::Draining => 2,
        }
    }
}

impl Coordinator {
    /// The node of this name, if it is a capture.
    pub fn capture(&self, id: &str) -> Option<NodeIx> {
        self.cluster.node_ix(id).filter(|ix| self.cluster.node(*ix).rec.roles.worker)
    }

    /// Those that have not gone.
    pub fn captures(&self) -> impl Iterator<Item = &NodeEntry> {
        let alive = |node: &NodeEntry| node.rec.roles.worker && !node.rec.is_offline();
        self.cluster.nodes().map(|(_, node)| node).filter(move |node| alive(node))
    }

    /// Begins to drain a capture by this API's own rules, in their order; asked again, it changes nothing.
    /// `None`: nothing had to be begun.
    pub(super) fn drain_capture(
        &mut self,
        id: &str,
        then: Then,
        (by, from): (&str, &str),
        now: Time,
    ) -> Result<Option<Answer>, ApiError> {
        let invalid = |code, message: &str| Err(ApiError::new(ErrorKind::Invalid, code, message));
        let Some(ix) = self.capture(id) else {
            return Err(ApiError::not_found("capture_not_found", "capture not found"));
        };
        if self.captures().nth(1).is_none() {
            return invalid("too_few_captures", "at least 2 captures required for drain operation");
        }
        if self.candidate == id {
            return invalid("capture_is_coordinator", "cannot drain coordinator node");
        }
        if self.cluster.nodes().any(|(other, node)| other != ix && node.drain.is_some()) {
            let message = "another drain operation is in progress";
            return Err(ApiError::new(ErrorKind::Conflict, ANOTHER_DRAIN, message));
        }
        let node = self.cluster.node(ix);
        if node.rec.intent == Intent::Disabled {
            let message = format!("{id} is disabled; enable it first");
            return Err(ApiError::new(ErrorKind::Conflict, NODE_DISABLED, message));
        }
        let gone = node.rec.intent == Intent::Stopping && node.rec.is_offline();
        if node.drain.is_some() || gone || self.has_left(node).is_some() {
            return Ok(None);
        }
        let options = DrainOptions {
            deadline: None,
            ack_stateful: true,
            then,
            back: Return::Restart,
            ..DrainOptions::default()
        };
        let message = "asked for as a capture".to_owned();
        let epoch = self.store_drain(&[ix], &options, (message, BTreeMap::new()), (by, from), now);
        Ok(Some(Answer::Draining(epoch)))
    }

    /// The part of the drain by which a node that is to stop got empty.
    fn has_left(&self, node: &NodeEntry) -> Option<&DrainNode> {
        let id = node.rec.id.as_str();
        let part = self.cluster.last_drain_of(id)?.part(id)?;
        let emptied = matches!(part.ending(), Some(Ending::Drained | Ending::DrainedExcept));
        (emptied && node.drain.is_none() && node.rec.intent == Intent::Stopping).then_some(part)
    }

    /// What is left on a capture, as far as anybody knows.
    pub fn capture_left(&self, ix: NodeIx) -> CaptureLeft {
        let node = self.cluster.node(ix);
        let emptied = self.has_left(node);
        // Without these its drain was to end, and did.
        let stays = |instance: &Instance| {
            let unit = || format!("instance/{}", self.cluster.instance_name(instance));
            emptied.is_some_and(|part| {
                !part.left.is_empty() && part.left.iter().any(|(left, _)| *left == unit())
            })
        };
        let running = self.cluster.instances_on(ix).filter(|instance| !instance.is_over());
        // Feeds that had nowhere to go run on, and one that kills the node would end them.
        let feeds_stay = emptied.is_some_and(|part| {
            part.left.iter().any(|(unit, _)| unit.starts_with("feed/") || unit.starts_with("maintainer/"))
        });
        let silent = matches!(node.rec.health, Health::Offline | Health::Degraded(Code::HeartbeatsLate));
        let said = self.dispatchers_on(ix);
        let dispatchers = said.or_else(|| self.dispatchers_last_said(ix)).cloned().unwrap_or_default();
        CaptureLeft {
            draining: node.drain.is_some(),
            maintainers: self.cluster.maintainer_count(&node.rec.id) as u32,
            dispatchers,
            instances: running.filter(|instance| !stays(instance)).count() as u32,
            unknown: (emptied.is_none() || feeds_stay) && (silent || said.is_none()),
            over: emptied.is_some(),
        }
    }
}
