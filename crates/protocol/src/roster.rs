//! The nodes that may host feeds, as a node knows them from the coordinator.

use std::collections::BTreeMap;

use model::{FeedSpec, NodeId, ProcessEpoch};

use crate::message::{
    SetRevision,
    feed::{Roster, RosterNode},
};

#[derive(Clone, Debug, Default)]
pub struct RosterView {
    revision: Option<SetRevision>,
    nodes: BTreeMap<NodeId, RosterNode>,
}

impl RosterView {
    /// Takes what the coordinator says, unless it is out of date or builds on what was missed.
    pub fn take(&mut self, roster: &Roster) -> bool {
        if self.revision.is_some_and(|known| roster.revision <= known) {
            return false;
        }
        if roster.full {
            self.nodes.clear();
        } else if self.revision != Some(roster.since) {
            return false;
        }
        self.nodes.extend(roster.nodes.iter().map(|node| (node.node.clone(), node.clone())));
        self.revision = Some(roster.revision);
        true
    }

    pub fn revision(&self) -> Option<SetRevision> {
        self.revision
    }

    pub fn get(&self, node: &NodeId) -> Option<&RosterNode> {
        self.nodes.get(node)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &RosterNode> {
        self.nodes.values()
    }

    pub fn epoch_of(&self, node: &NodeId) -> Option<ProcessEpoch> {
        self.nodes.get(node).map(|node| node.epoch)
    }

    /// Nothing may be placed there, or nobody knows.
    pub fn is_closed(&self, node: &NodeId) -> bool {
        self.nodes.get(node).is_none_or(|node| node.closed)
    }
}

impl RosterNode {
    /// It has the labels that the feed asks for.
    pub fn satisfies(&self, spec: &FeedSpec) -> bool {
        spec.constraints.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }
}
