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
    classes: BTreeMap<BTreeMap<String, String>, Class>,
}

#[derive(Clone, Debug, Default)]
struct Class {
    ordered: BTreeSet<Candidate>,
    members: NodeSet,
}

/// A set of nodes that is asked more often than it is changed.
#[derive(Clone, Debug, Default)]
pub struct NodeSet {
    bits: Vec<u64>,
}

impl NodeSet {
    pub fn contains(&self, node: NodeIx) -> bool {
        self.bits.get(node.0 as usize / 64).is_some_and(|word| word >> (node.0 % 64) & 1 == 1)
    }

    fn set(&mut self, node: NodeIx, is_in: bool) {
        let word = node.0 as usize / 64;
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        let bit = 1 << (node.0 % 64);
        self.bits[word] = if is_in { self.bits[word] | bit } else { self.bits[word] & !bit };
    }
}

impl Class {
    fn insert(&mut self, candidate: Candidate) {
        self.members.set(candidate.ix, true);
        self.ordered.insert(candidate);
    }

    fn remove(&mut self, candidate: &Candidate) {
        self.members.set(candidate.ix, false);
        self.ordered.remove(candidate);
    }
}

impl PlaceIndex {
    /// The nodes that satisfy these constraints and may take work, least utilised first. `None` if no
    /// service has these constraints.
    pub fn class(&self, constraints: &BTreeMap<String, String>) -> Option<&BTreeSet<Candidate>> {
        self.classes.get(constraints).map(|class| &class.ordered)
    }

    /// The same nodes, for asking whether one of them is among them.
    pub fn members(&self, constraints: &BTreeMap<String, String>) -> Option<&NodeSet> {
        self.classes.get(constraints).map(|class| &class.members)
    }

    pub(crate) fn ensure_class(&mut self, constraints: &BTreeMap<String, String>, nodes: &[NodeEntry]) {
        if self.classes.contains_key(constraints) {
            return;
        }
        let members = nodes.iter().enumerate().filter(|(_, node)| node.rec.satisfies(constraints));
        let mut class = Class::default();
        for candidate in members.filter_map(|(at, node)| candidate(NodeIx(at as u32), node)) {
            class.insert(candidate);
        }
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
