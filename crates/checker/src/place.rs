//! Destinations are the least loaded, what is on its way included; and how that is told.
//!
//! Of the nodes that may take an instance, have its labels and its memory free, the first by these is the one:
//! 1. one on which the release has not failed in the last ten minutes,
//! 2. the fewest of the same service that are wanted there. A replacement is compared without those that are
//!    to be replaced: they are there at present, and will not be when it matters,
//! 3. the least utilised, by the fuller of memory and CPU in steps of 1/4096, of everything not known to be gone,
//! 4. the lowest id.
//!
//! A maintainer goes where the fewest are, those on their way out counted, then to the lowest id; nodes that have
//! not acknowledged which nodes are closed are none to choose from. Nothing is chosen for what is bound to a
//! node: system instances, and stateful ones whose volume is there.

use std::collections::BTreeSet;

use model::{
    Actual, Cluster, Code, Feed, FeedName, Instance, Kind, Millis, NodeEntry, NodeId, NodeIx, RolloutState,
    ServiceSpec, VolumeId,
};

use crate::{Violation, members::Members, observer::Step};

/// Failures older than this are forgiven.
const FAILURE_WINDOW: Millis = Millis::secs(600);
/// Utilisation is compared in steps.
const UTILISATION_STEPS: u128 = 4096;

type Score<'a> = (bool, usize, u128, &'a NodeId);

/// `instance` is about to be placed in this state. `volumes`: those that were made in the same step.
pub(crate) fn is_least_loaded(
    members: &Members<'_>,
    instance: &Instance,
    volumes: &BTreeSet<VolumeId>,
) -> Option<Violation> {
    let spec = members.entry.rec.spec_of(instance.release).clone();
    if spec.kind == Kind::System || is_at_home(members, instance, &spec, volumes) {
        return None;
    }
    let cluster = members.cluster;
    let eligible = cluster.nodes().filter(|(_, node)| may_take(node, &spec));
    let scores = eligible.map(|(ix, node)| score(members, instance, ix, node));
    let best = scores.min()?;
    let chosen = score(members, instance, instance.node, cluster.node(instance.node));
    (best < chosen).then(|| Violation::NotLeastLoaded {
        what: format!("instance {}", instance.id),
        node: chosen.3.clone(),
        better: best.3.clone(),
        scores: format!("{:?} and {:?}", (chosen.0, chosen.1, chosen.2), (best.0, best.1, best.2)),
    })
}

fn is_at_home(
    members: &Members<'_>,
    instance: &Instance,
    spec: &ServiceSpec,
    volumes: &BTreeSet<VolumeId>,
) -> bool {
    let (Some(volume), Some(slot)) = (&spec.volume, instance.slot) else { return false };
    let id = VolumeId::new(&format!("{}-{}-{slot}", members.entry.rec.name, volume.name));
    !volumes.contains(&id)
}

fn may_take(node: &NodeEntry, spec: &ServiceSpec) -> bool {
    let free = node.rec.capacity.memory.saturating_sub(node.used.memory);
    node.may_place() && node.rec.satisfies(&spec.constraints) && spec.memory <= free
}

fn score<'a>(members: &Members<'a>, instance: &Instance, ix: NodeIx, node: &'a NodeEntry) -> Score<'a> {
    let failed = |other: &Instance| {
        let lately = other.ended_at.is_some_and(|at| members.now.since(at) < FAILURE_WINDOW);
        let broken = other.actual == Actual::Failed || other.reason == Some(Code::Unhealthy);
        other.node == ix && other.is_over() && broken && lately && other.release == instance.release
    };
    let avoided = members.cluster.instances_of(members.service).any(failed);
    let replacement = is_replacement(members, instance);
    let goes = |other: &Instance| replacement && members.is_old(other) && !members.stops_first(other);
    let stay = members.wanted().filter(|other| other.node == ix && !goes(other)).count();
    (avoided, stay, utilisation(members.cluster, ix, node), &node.rec.id)
}

/// It comes in the stead of one that is to go, for the sake of a drain or a rollout. What fills a gap does not.
fn is_replacement(members: &Members<'_>, instance: &Instance) -> bool {
    let spec = members.spec();
    let surges = spec.kind == Kind::Service && !spec.is_stateful() && members.surges();
    match members.replaces_wanted(instance) {
        Some(old) => surges && !evens_out(members, instance, old),
        None => surges && members.is_full() && !instance.scratch.takes(),
    }
}

/// Placed to relieve the node of one that might stay where it is.
pub(crate) fn evens_out(members: &Members<'_>, new: &Instance, old: &Instance) -> bool {
    members.entry.rec.rollout.state == RolloutState::Complete
        && old.release == new.release
        && !members.leaves(old)
}

fn utilisation(cluster: &Cluster, ix: NodeIx, node: &NodeEntry) -> u128 {
    let (mut memory, mut cpu) = (0u128, 0u128);
    for instance in cluster.instances_on(ix).filter(|instance| !instance.is_over()) {
        memory += u128::from(instance.memory);
        cpu += u128::from(instance.cpu);
    }
    let share = |used: u128, capacity: u64| match capacity {
        0 => UTILISATION_STEPS,
        _ => used * UTILISATION_STEPS / u128::from(capacity),
    };
    share(memory, node.rec.capacity.memory).max(share(cpu, node.rec.capacity.cpu))
}

/// A feed's maintainer is about to change in this state.
pub(crate) fn maintainer_is_least_loaded(
    cluster: &Cluster,
    feed: &Feed,
    step: &Step<'_>,
) -> Option<Violation> {
    let chosen = &feed.maintainer.as_ref()?.node;
    let before = cluster.feed(feed.name.as_str()).and_then(|feed| feed.maintainer.as_ref());
    if before.map(|before| before.epoch) == feed.maintainer.as_ref().map(|after| after.epoch) {
        return None;
    }
    let count = |node: &NodeId| -> usize {
        let here: BTreeSet<&FeedName> = cluster
            .feeds()
            .filter(|feed| {
                let maintainer = feed.maintainer.as_ref();
                let origin = maintainer.and_then(|maintainer| maintainer.from.as_ref());
                maintainer.is_some_and(|maintainer| maintainer.node == *node)
                    || origin.is_some_and(|origin| origin.node == *node)
            })
            .map(|feed| &feed.name)
            .collect();
        here.len()
    };
    let may = |node: &NodeEntry| {
        node.may_place() && node.rec.satisfies(&feed.spec.constraints) && (step.ready)(&node.rec.id)
    };
    let eligible = cluster.nodes().filter(|(_, node)| may(node)).map(|(_, node)| &node.rec.id);
    let best = eligible.map(|id| (count(id), id)).min()?;
    let mine = (count(chosen), chosen);
    (best < mine).then(|| Violation::NotLeastLoaded {
        what: format!("the maintainer of {}", feed.name),
        node: chosen.clone(),
        better: best.1.clone(),
        scores: format!("{} and {}", mine.0, best.0),
    })
}
