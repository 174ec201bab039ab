//! What must hold of drains, in one state and from one to the next.

use std::collections::{BTreeMap, BTreeSet};

use model::{Cluster, Code, DrainNode, DrainState, Ending, Instance, Intent, Kind, NodeId, NodeIx};

use crate::Violation;

pub(crate) type Parts = BTreeMap<(u64, NodeId), DrainState>;

pub(crate) fn parts(cluster: &Cluster) -> Parts {
    let parts = cluster.drains().flat_map(|drain| drain.nodes.iter().map(|part| (drain.epoch, part)));
    parts.map(|(epoch, part)| ((epoch, part.node.clone()), part.state)).collect()
}

/// What its drain still has to see off a node.
fn remaining(cluster: &Cluster, node: NodeIx, ignore_system: bool) -> impl Iterator<Item = &Instance> {
    cluster.instances_on(node).filter(move |instance| {
        let spec = cluster.service(instance.service).map(|entry| entry.rec.spec_of(instance.release));
        let system = spec.is_some_and(|spec| spec.kind == Kind::System);
        let ignored = system && ignore_system;
        !(instance.is_over() || ignored)
    })
}

/// It drains, and not only because of what a person has to decide about.
pub fn uses_a_slot(cluster: &Cluster, node: NodeIx) -> bool {
    let Some(drain) = cluster.node(node).drain.as_ref().filter(|drain| drain.draining) else { return false };
    let blocks = |instance: &Instance| {
        let spec = cluster.service(instance.service).map(|entry| entry.rec.spec_of(instance.release));
        let stateful = spec.is_some_and(|spec| spec.kind == Kind::Service && spec.is_stateful());
        let refused = cluster.store_of(instance).and_then(|store| store.trouble.as_ref());
        let refused = refused.is_some_and(|trouble| trouble.code != Code::BackendUnreachable);
        stateful && !drain.include_stateful || refused
    };
    let left: Vec<&Instance> = remaining(cluster, node, drain.ignore_system).collect();
    // A maintainer that has nowhere to go waits, like an instance that finds no room.
    let maintains = cluster.maintainer_count(&cluster.node(node).rec.id) > 0;
    maintains || left.is_empty() || !left.into_iter().all(blocks)
}

/// A node is in one unfinished drain at most.
pub(crate) fn nodes_are_in_one(cluster: &Cluster, found: &mut Vec<Violation>) {
    let mut seen = BTreeSet::new();
    for drain in cluster.drains() {
        for part in drain.nodes.iter().filter(|part| part.ending().is_none()) {
            if !seen.insert(&part.node) {
                found.push(wrong(2, drain.epoch, part, "is in two unfinished drains"));
            }
        }
    }
}

/// What one step made of the drains. `newest` is the highest epoch known before it.
pub(crate) fn follow(before: &Parts, newest: u64, after: &Cluster, found: &mut Vec<Violation>) {
    for drain in after.drains() {
        for part in &drain.nodes {
            let known = before.get(&(drain.epoch, part.node.clone())).copied();
            if known.is_none() && drain.epoch <= newest {
                found.push(wrong(2, drain.epoch, part, "is in a drain whose epoch was used before"));
            }
            let what = match (known, part.state) {
                (Some(DrainState::Ended(was)), now) if now != DrainState::Ended(was) => {
                    Some((2, "had ended and changed"))
                }
                (Some(DrainState::Draining), DrainState::Queued) => Some((2, "lost its turn")),
                (Some(DrainState::Ended(_)), _) => None,
                (_, state) => now_is(after, part, state),
            };
            found.extend(what.map(|(invariant, what)| wrong(invariant, drain.epoch, part, what)));
        }
    }
    nodes_are_in_one(after, found);
}

/// Its turn has come.
pub(crate) fn began(known: Option<DrainState>, part: &DrainNode) -> bool {
    part.state == DrainState::Draining && known != Some(DrainState::Draining)
}

/// The nodes that use a slot.
pub(crate) fn busy(cluster: &Cluster) -> impl Iterator<Item = &NodeId> {
    cluster.nodes().filter(|(ix, _)| uses_a_slot(cluster, *ix)).map(|(_, node)| &node.rec.id)
}

/// While drains pause no turn comes, and nothing is placed for a drain's sake.
pub(crate) fn rest<'a>(
    before: &Parts,
    after: &Cluster,
    placed: impl Iterator<Item = &'a Instance>,
    found: &mut Vec<Violation>,
) {
    for drain in after.drains() {
        for part in drain.nodes.iter().filter(|part| part.state == DrainState::Draining) {
            if before.get(&(drain.epoch, part.node.clone())) != Some(&DrainState::Draining) {
                found.push(wrong(9, drain.epoch, part, "begins to drain while drains pause"));
            }
        }
    }
    for instance in placed {
        // What stopped before the pause and left scratch data has its successor: that is on its way.
        let old = instance.replaces.and_then(|old| after.instance(old)).filter(|old| !old.is_over());
        let Some(old) = old else { continue };
        let updated = after.service(old.service).is_some_and(|entry| old.release == entry.rec.release);
        let node = after.node(old.node);
        let drain = node.drain.as_ref().filter(|drain| drain.draining);
        let Some(drain) = drain.filter(|_| updated && node.rec.intent != Intent::Disabled) else { continue };
        let part = after.drain(drain.epoch).and_then(|drain| drain.part(node.rec.id.as_str()));
        found.extend(part.map(|part| wrong(9, drain.epoch, part, "loses an instance while drains pause")));
    }
}

fn now_is(after: &Cluster, part: &DrainNode, state: DrainState) -> Option<(u32, &'static str)> {
    let ix = after.node_ix(part.node.as_str())?;
    let node = &after.node(ix).rec;
    let out = matches!(node.intent, Intent::Drained | Intent::Stopping);
    match state {
        DrainState::Queued => None,
        DrainState::Draining => node.is_offline().then_some((10, "is offline and drains on")),
        DrainState::Ended(Ending::NodeLost) if !node.is_offline() => Some((10, "is lost and not offline")),
        DrainState::Ended(Ending::Drained)
            if remaining(after, ix, part.options.ignore_system).next().is_some() =>
        {
            Some((6, "is drained and something is left"))
        }
        DrainState::Ended(Ending::Drained) if after.maintainer_count(&part.node) > 0 => {
            Some((6, "is drained and a maintainer is left"))
        }
        DrainState::Ended(Ending::DrainedExcept) if feeds_left_wrongly(after, part) => {
            Some((6, "is drained but for a feed that had to leave"))
        }
        DrainState::Ended(Ending::Drained | Ending::DrainedExcept)
            if node.roles.edge && !node.foreign && part.withdrawing_since.is_none() =>
        {
            Some((6, "is drained and its edge was not told to withdraw"))
        }
        DrainState::Ended(Ending::Drained) if !part.deadline_reached && is_copied_from(after, ix) => {
            Some((6, "is drained and scratch data is still copied from it"))
        }
        DrainState::Ended(Ending::Drained | Ending::DrainedExcept | Ending::NodeLost) if !out => {
            Some((4, "is through its drain and not out"))
        }
        DrainState::Ended(_) => None,
    }
}

/// Feeds stay only past the deadline, only where no open node may take them or could make them ready (which no
/// record shows), and never unsaid. A maintainer needs nothing made ready.
fn feeds_left_wrongly(after: &Cluster, part: &DrainNode) -> bool {
    let named = |unit: &str| part.left.iter().any(|(left, _)| left == unit);
    let unsaid = after.maintainers_on(&part.node).any(|name| !named(&format!("maintainer/{name}")));
    let wrong = part.left.iter().any(|(unit, code)| {
        let name = unit.strip_prefix("maintainer/").or_else(|| unit.strip_prefix("feed/"));
        let failed = unit.starts_with("feed/") && *code != Code::NoEligibleNode;
        let feed = name.and_then(|name| after.feed(name));
        let open = feed.is_some_and(|feed| {
            after.nodes().any(|(_, node)| node.may_place() && node.rec.satisfies(&feed.spec.constraints))
        });
        name.is_some() && (open && !failed || !part.deadline_reached)
    });
    unsaid || wrong
}

/// Somebody waits for what an instance has left on this node.
fn is_copied_from(cluster: &Cluster, node: NodeIx) -> bool {
    let mut left = cluster.instances_on(node).filter(|old| old.scratch.is_left() && old.is_over());
    left.any(|old| {
        let mut others = cluster.instances_of(old.service);
        others.any(|other| other.awaits_scratch() && other.replaces == Some(old.id))
    })
}

fn wrong(invariant: u32, epoch: u64, part: &DrainNode, what: &'static str) -> Violation {
    Violation::Drain { invariant, epoch, node: part.node.clone(), what }
}
