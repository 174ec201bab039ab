//! Scratch data that moves along (`disk.migrate`): who leaves some behind, who takes it over, and until
//! when the old node must keep it.
//!
//! Whoever leaves a node for a drain's sake stops first and is marked [`model::Scratch::Left`]; its successor is
//! placed once it is gone, marked [`model::Scratch::Takes`], and starts when its node has the data or has given it
//! up. Both marks are stored: a coordinator that takes over goes on from them.

use std::collections::{BTreeMap, BTreeSet};

use model::{Actual, Change, Cluster, Code, Instance, InstanceId, Kind, ServiceIx, ServiceSpec};

use crate::{drain::Leave, reconcile::Plan};

/// Whether instances of this specification bring their scratch data along. Others have a place of their
/// own, or run anew from nothing.
pub(crate) fn brings_it_along(spec: &ServiceSpec) -> bool {
    spec.disk.migrate && spec.kind == Kind::Service && !spec.is_stateful()
}

/// Whether an instance that is let go leaves data for its successor. One that never started has none, and
/// one that still waits for its own has not got it.
pub(crate) fn leaves_some(plan: &Plan<'_, '_>, instance: &Instance) -> bool {
    brings_it_along(plan.service_rec().spec_of(instance.release))
        && plan.leave(instance) != Leave::No
        && instance.actual != Actual::Pending
        && !instance.awaits_scratch()
}

/// What was left and is to be taken, by as many as the service lacks: of instances that are gone, or lost
/// with their node. What nobody will take loses its mark, lest it turn up in a successor of somebody else.
pub(crate) fn to_be_taken(plan: &mut Plan<'_, '_>, lacks: usize) -> Vec<InstanceId> {
    let rec = plan.service_rec();
    if !rec.releases.values().any(|spec| brings_it_along(spec)) {
        return Vec::new();
    }
    let lacks = if brings_it_along(rec.spec_of(rec.release_to_place())) { lacks } else { 0 };
    let takers = takers(plan.cluster(), plan.service);
    let gone = |instance: &&Instance| instance.is_over() || instance.actual == Actual::Lost;
    let left = plan.instances().filter(|instance| instance.scratch.is_left()).filter(gone);
    let mut left: Vec<InstanceId> = left.map(|i| i.id).filter(|id| !takers.contains_key(id)).collect();
    let needed = left.split_off(left.len().saturating_sub(lacks));
    for id in left {
        let Some(mut instance) = plan.cluster().instance(id).cloned() else { continue };
        instance.scratch = instance.scratch.stays();
        plan.txn.put(Change::Instance(instance));
    }
    needed
}

/// How many are on their way out whose successors wait for what they leave.
pub(crate) fn still_leaving(plan: &Plan<'_, '_>) -> usize {
    let rec = plan.service_rec();
    if !brings_it_along(rec.spec_of(rec.release_to_place())) {
        return 0;
    }
    let leaving = |i: &&Instance| i.scratch.is_left() && !i.is_over() && i.actual != Actual::Lost;
    plan.instances().filter(leaving).count()
}

/// Who takes over from whom. One that ended before it had anything does not count: what was left is there
/// for another.
pub(crate) fn takers(cluster: &Cluster, service: ServiceIx) -> BTreeMap<InstanceId, &Instance> {
    let takers = cluster
        .instances_of(service)
        .filter(|instance| instance.scratch.takes() && !instance.never_had_scratch());
    takers.filter_map(|instance| Some((instance.replaces?, instance))).collect()
}

/// What an instance that is over means for its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Like that of any other.
    AsHistory,
    /// Somebody copies from it, or is about to.
    Must,
    /// It lives on elsewhere.
    No,
}

/// Whether the directory of an instance that is over is still needed for its data. `taken`: what its service
/// places takes over what was left.
pub(crate) fn keep(old: &Instance, taker: Option<&Instance>, taken: bool) -> Keep {
    if !old.scratch.is_left() {
        return Keep::AsHistory;
    }
    match taker {
        None if taken => Keep::Must,
        None => Keep::AsHistory,
        Some(taker) if taker.awaits_scratch() => Keep::Must,
        // What could not be copied, or was lost on its way, is kept like any other: somebody may want to look
        // for it there.
        Some(taker) if taker.reason == Some(Code::DiskNotCopied) => Keep::AsHistory,
        Some(taker) if taker.actual == Actual::Lost => Keep::AsHistory,
        // A drain waits for the taker to be up and finds it by what was left.
        Some(taker) if taker.is_available() || taker.is_over() => Keep::No,
        Some(_) => Keep::Must,
    }
}

/// Instances gone from a node whose data is still to be copied from there, each with its taker, if it has
/// one yet.
pub(crate) fn handed_over(cluster: &Cluster, node: model::NodeIx) -> Vec<(&Instance, Option<&Instance>)> {
    let gone = cluster.instances_on(node).filter(|old| old.scratch.is_left() && old.is_over());
    let with_taker = gone.map(|old| {
        // Few are on the move at a time; a map of all takers would cost as much to build.
        let takes = |other: &&Instance| {
            other.scratch.takes() && other.replaces == Some(old.id) && !other.never_had_scratch()
        };
        (old, cluster.instances_of(old.service).find(takes))
    });
    let due = with_taker.filter(|(old, taker)| match taker {
        Some(taker) => taker.awaits_scratch(),
        None => is_taken_over(cluster, old.service),
    });
    due.collect()
}

/// What a service places takes over what was left; what nobody takes loses its mark.
pub(crate) fn is_taken_over(cluster: &Cluster, service: ServiceIx) -> bool {
    let entry = cluster.service(service).filter(|entry| !entry.rec.removed);
    entry.is_some_and(|entry| brings_it_along(entry.rec.spec_of(entry.rec.release_to_place())))
}

/// How many instances a service lacks that would take scratch data over. What a rollout has beside those
/// that it replaces fills no place: it takes one that is still filled.
pub(crate) fn places_free(cluster: &Cluster, service: ServiceIx) -> usize {
    let Some(entry) = cluster.service(service).filter(|_| is_taken_over(cluster, service)) else { return 0 };
    let wanted: u32 = entry.on.values().sum();
    let replaced = |instance: &Instance| {
        let old = instance.replaces.filter(|_| instance.is_wanted());
        old.filter(|old| cluster.instance(*old).is_some_and(Instance::is_wanted))
    };
    let beside: BTreeSet<InstanceId> = cluster.instances_of(service).filter_map(replaced).collect();
    (entry.rec.count as usize).saturating_sub((wanted as usize).saturating_sub(beside.len()))
}
