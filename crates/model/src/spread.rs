//! How a service is spread over the nodes that could take more of it.

use std::collections::BTreeMap;

use crate::{NodeEntry, Service};

/// Of the nodes that may take one more of the service, how many have how many of it already; those
/// that have none are not listed. What lets a search for the emptiest node end at the first that is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    nodes: BTreeMap<u32, u32>,
}

impl Spread {
    /// How many nodes have any of it.
    pub fn nodes(&self) -> u32 {
        self.nodes.values().sum()
    }

    /// The fewest that a node has which has any.
    pub fn fewest(&self) -> Option<u32> {
        self.nodes.keys().next().copied()
    }

    pub(crate) fn add(&mut self, on: u32) {
        if on > 0 {
            *self.nodes.entry(on).or_default() += 1;
        }
    }

    pub(crate) fn take(&mut self, on: u32) {
        if let Some(nodes) = self.nodes.get_mut(&on) {
            *nodes -= 1;
            if *nodes == 0 {
                self.nodes.remove(&on);
            }
        }
    }
}

/// Whether this node may take one more of a service, room apart.
pub(crate) fn may_take(node: &NodeEntry, service: &Service) -> bool {
    node.may_place() && node.rec.satisfies(&service.spec_of(service.release_to_place()).constraints)
}
