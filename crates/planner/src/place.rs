//! Where a new instance goes.
//!
//! Memory is hard. Of the nodes that may take it and satisfy its constraints the least loaded wins:
//! not where it has just failed, fewest of the same service, then utilisation, then id. What is on its
//! way counts, because a placement is applied before the next one is decided.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use model::{Candidate, Cluster, Code, NodeIx, ServiceIx, ServiceSpec, units::format_bytes};

/// From this many placements on, one pass over all nodes is cheaper than a search for each.
const BULK_MIN: usize = 16;

/// Why nothing could be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    NoCapacityMemory { needs: u64, short_by: u64, nodes: usize },
    ConstraintUnsatisfied { constraints: String },
    NoEligibleNode,
}

impl Wait {
    pub(crate) fn constraints(spec: &ServiceSpec) -> Wait {
        let pairs = spec.constraints.iter().map(|(key, value)| format!("{key}={value}"));
        Wait::ConstraintUnsatisfied { constraints: pairs.collect::<Vec<_>>().join(", ") }
    }

    pub fn code(&self) -> Code {
        match self {
            Wait::NoCapacityMemory { .. } => Code::NoCapacityMemory,
            Wait::ConstraintUnsatisfied { .. } => Code::ConstraintUnsatisfied,
            Wait::NoEligibleNode => Code::NoEligibleNode,
        }
    }

    pub fn message(&self) -> String {
        match self {
            Wait::NoCapacityMemory { needs, short_by, nodes } => {
                let looked = match nodes {
                    1 => "the only node that may take it is".to_owned(),
                    _ => format!("the emptiest of {nodes} nodes that may take it is"),
                };
                format!("needs {}; {looked} short by {}", format_bytes(*needs), format_bytes(*short_by))
            }
            Wait::ConstraintUnsatisfied { constraints } => format!("no node has the labels {constraints}"),
            Wait::NoEligibleNode => "no node takes new work at the moment".to_owned(),
        }
    }
}

type Score = (bool, u32, u32, model::NodeId, NodeIx);

/// Places instances of one service, one after the other, with each applied before the next is asked for.
pub struct Placer {
    spec: std::sync::Arc<ServiceSpec>,
    /// Nodes on which it failed lately: taken only if there is no other.
    avoid: BTreeSet<NodeIx>,
    service: ServiceIx,
    /// Nodes that will have so many fewer of the service than they have.
    leaving: BTreeMap<NodeIx, u32>,
    bulk: Option<BinaryHeap<Reverse<Score>>>,
}

impl Placer {
    /// `leaving` are the nodes of instances that are about to be replaced: they are there now, and
    /// will not be when it matters.
    pub fn new(
        cluster: &Cluster,
        service: ServiceIx,
        spec: std::sync::Arc<ServiceSpec>,
        avoid: BTreeSet<NodeIx>,
        leaving: impl Iterator<Item = NodeIx>,
        how_many: usize,
    ) -> Placer {
        let mut fewer: BTreeMap<NodeIx, u32> = BTreeMap::new();
        for node in leaving {
            *fewer.entry(node).or_default() += 1;
        }
        let mut placer = Placer { spec, avoid, service, leaving: fewer, bulk: None };
        if how_many >= BULK_MIN {
            let nodes = cluster.place_index().class(&placer.spec.constraints);
            let scores = nodes.into_iter().flatten().map(|node| Reverse(placer.score(cluster, node)));
            placer.bulk = Some(scores.collect());
        }
        placer
    }

    /// The node for the next instance. What it said before is in the cluster by then.
    pub fn next(&mut self, cluster: &Cluster) -> Result<NodeIx, Wait> {
        let found = match &self.bulk {
            Some(_) => self.next_in_bulk(cluster),
            None => self.search(cluster),
        };
        found.ok_or_else(|| why_not(cluster, &self.spec))
    }

    fn score(&self, cluster: &Cluster, node: &Candidate) -> Score {
        let on = self.stay_on(cluster, node.ix);
        (self.avoid.contains(&node.ix), on, node.utilisation, node.id.clone(), node.ix)
    }

    /// How many of the service are on a node and will stay.
    fn stay_on(&self, cluster: &Cluster, node: NodeIx) -> u32 {
        let on = cluster.service(self.service).and_then(|entry| entry.on.get(&node)).copied().unwrap_or(0);
        on.saturating_sub(self.leaving.get(&node).copied().unwrap_or(0))
    }

    /// Walks the nodes from the least utilised on; the first with the fewest of this service is the one.
    fn search(&self, cluster: &Cluster) -> Option<NodeIx> {
        let nodes = cluster.place_index().class(&self.spec.constraints)?;
        let fewest = self.fewest(cluster, nodes.len());
        let mut best: Option<Score> = None;
        for node in nodes {
            if !fits(cluster, node.ix, &self.spec) {
                continue;
            }
            let score = self.score(cluster, node);
            if best.as_ref().is_none_or(|best| score < *best) {
                best = Some(score);
            }
            // No other has fewer, and those that follow are used more.
            if best.as_ref().is_some_and(|best| !best.0 && best.1 <= fewest) {
                break;
            }
        }
        let found = best.map(|score| score.4);
        debug_assert_eq!(found, self.least(cluster), "no node that was passed over is better");
        found
    }

    /// The same by looking at every node.
    fn least(&self, cluster: &Cluster) -> Option<NodeIx> {
        let nodes = cluster.place_index().class(&self.spec.constraints)?;
        let fitting = nodes.iter().filter(|node| fits(cluster, node.ix, &self.spec));
        fitting.map(|node| self.score(cluster, node)).min().map(|score| score.4)
    }

    /// No node that may take it will have fewer of the service than this.
    fn fewest(&self, cluster: &Cluster, nodes: usize) -> u32 {
        let Some(entry) = cluster.service(self.service) else { return 0 };
        let placed = entry.rec.spec_of(entry.rec.release_to_place());
        // The spread is over the nodes that may take what is placed at present.
        if placed.constraints != self.spec.constraints || (entry.spread.nodes() as usize) < nodes {
            return 0;
        }
        let takes = |ix: NodeIx| {
            let node = cluster.node(ix);
            node.may_place() && node.rec.satisfies(&self.spec.constraints)
        };
        let leaving = self.leaving.keys().filter(|node| takes(**node));
        let leaving = leaving.map(|node| self.stay_on(cluster, *node));
        leaving.chain(entry.spread.fewest()).min().unwrap_or(0)
    }

    fn next_in_bulk(&mut self, cluster: &Cluster) -> Option<NodeIx> {
        loop {
            let heap = self.bulk.as_mut()?;
            let Reverse(score) = heap.pop()?;
            let ix = score.4;
            let node = Candidate { utilisation: cluster.utilisation(ix), id: score.3.clone(), ix };
            let fresh = self.score(cluster, &node);
            let unchanged = fresh == score;
            if !fits(cluster, ix, &self.spec) {
                continue;
            }
            // Its turn came with the score it had before the last placement there: look again.
            if let Some(heap) = self.bulk.as_mut() {
                heap.push(Reverse(fresh));
            }
            if unchanged {
                return Some(ix);
            }
        }
    }
}

/// Whether a node has the memory for one more.
pub(crate) fn fits(cluster: &Cluster, node: NodeIx, spec: &ServiceSpec) -> bool {
    let node = cluster.node(node);
    node.used.memory.saturating_add(spec.memory) <= node.rec.capacity.memory
}

/// How much memory a node lacks for one more.
pub(crate) fn short_by(cluster: &Cluster, node: NodeIx, spec: &ServiceSpec) -> u64 {
    let node = cluster.node(node);
    node.used.memory.saturating_add(spec.memory).saturating_sub(node.rec.capacity.memory)
}

/// Why one more finds no place.
pub(crate) fn why_not(cluster: &Cluster, spec: &ServiceSpec) -> Wait {
    let eligible = cluster.place_index().class(&spec.constraints);
    let eligible: Vec<NodeIx> = eligible.into_iter().flatten().map(|node| node.ix).collect();
    let least = eligible.iter().map(|ix| short_by(cluster, *ix, spec)).min();
    if let Some(short_by) = least {
        return Wait::NoCapacityMemory { needs: spec.memory, short_by, nodes: eligible.len() };
    }
    let labelled = cluster.nodes().any(|(_, node)| node.rec.satisfies(&spec.constraints));
    if labelled || spec.constraints.is_empty() {
        return Wait::NoEligibleNode;
    }
    Wait::constraints(spec)
}
