//! The nodes that may take work, ordered by how loaded they are: what makes placing fast.

use std::collections::{BTreeMap, BTreeSet};

use crate::{NodeEntry, NodeId, NodeIx};

/// Utilisation is compared in steps of 1/4096: finer differences are noise and would reorder the
/// index with every instance.
const UTILISATION_STEPS: u64 = 4096;

/// A node that may take work. Ordered by utilisation, then id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    pub utilisation: u32,
    pub id: NodeId,
    pub ix: NodeIx,
}

/// One ordered set per set of constraints in use.
#[derive(Clone, Debug, Default)]
pub struct PlaceIndex {
    classes: BTreeMap<BTreeMap<String, String>, BTreeSet<Candidate>>,
}

impl PlaceIndex {
    /// The nodes that satisfy these constraints and may take work, least utilised first. `None` if no
    /// service has these constraints.
    pub fn class(&self, constraints: &BTreeMap<String, String>) -> Option<&BTreeSet<Candidate>> {
        self.classes.get(constraints)
    }

    pub(crate) fn ensure_class(&mut self, constraints: &BTreeMap<String, String>, nodes: &[NodeEntry]) {
        if self.classes.contains_key(constraints) {
            return;
        }
        let members = nodes.iter().enumerate().filter(|(_, node)| node.rec.satisfies(constraints));
        let class = members.filter_map(|(at, node)| candidate(NodeIx(at as u32), node)).collect();
        self.classes.insert(constraints.clone(), class);
    }

    pub(crate) fn remove(&mut self, ix: NodeIx, node: &NodeEntry) {
        let Some(candidate) = candidate(ix, node) else { return };
        for (constraints, class) in &mut self.classes {
            if node.rec.satisfies(constraints) {
                class.remove(&candidate);
            }
        }
    }

    pub(crate) fn insert(&mut self, ix: NodeIx, node: &NodeEntry) {
        let Some(candidate) = candidate(ix, node) else { return };
        for (constraints, class) in &mut self.classes {
            if node.rec.satisfies(constraints) {
                class.insert(candidate.clone());
            }
        }
    }

    /// Drops classes that no service has any more.
    pub(crate) fn retain(&mut self, in_use: impl Fn(&BTreeMap<String, String>) -> bool) {
        self.classes.retain(|constraints, _| in_use(constraints));
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }
}

fn candidate(ix: NodeIx, node: &NodeEntry) -> Option<Candidate> {
    node.may_place().then(|| Candidate { utilisation: utilisation(node), id: node.rec.id.clone(), ix })
}

/// The fuller of memory and CPU, in steps. CPU may exceed its capacity: it only weighs.
pub(crate) fn utilisation(node: &NodeEntry) -> u32 {
    let share = |used: u64, capacity: u64| match capacity {
        0 => UTILISATION_STEPS,
        _ => (u128::from(used) * u128::from(UTILISATION_STEPS) / u128::from(capacity)) as u64,
    };
    let memory = share(node.used.memory, node.rec.capacity.memory);
    let cpu = share(node.used.cpu, node.rec.capacity.cpu);
    memory.max(cpu).min(u64::from(u32::MAX)) as u32
}
