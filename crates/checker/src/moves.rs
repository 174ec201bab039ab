//! Moves in flight never exceed their limits: those of each service over the whole cluster, those that even
//! things out, and maintainers that are handed over.
//!
//! What counts as a move follows from how a service is replaced:
//! - *with surge*, what is wanted beyond the count, and what was stopped so that its successor takes its
//!   scratch data over: at most as many as the budget, `max_parallel` of `migrate` while something is to leave its
//!   node and of `update` while something is to be updated;
//! - *without surge*, what is missing of the count: old ones and those that have proven themselves count as there;
//! - *in a numbered place or on each node*, every place whose instance is on its way out, missing or not proven.

use std::collections::BTreeMap;

use model::{
    Cluster, Code, Feed, FeedName, Instance, InstanceId, Kind, MaintainerEpoch, Millis, NodeIx, Time,
};

use crate::{Violation, members::Members, observer::Step, place::evens_out};

/// A hand-over that takes longer than this no longer holds up the next one.
const HAND_OVER_PATIENCE: Millis = Millis::secs(10);

fn beyond(what: String, in_flight: usize, limit: usize) -> Option<Violation> {
    (in_flight > limit).then_some(Violation::TooManyMoves { what, in_flight, limit })
}

/// `instance` was placed; `before` is the state that it was placed in.
pub(crate) fn begins(before: &Members<'_>, instance: &Instance) -> Option<Violation> {
    let (rec, spec) = (&before.entry.rec, before.spec());
    if spec.kind == Kind::System || spec.has_slots() || rec.removed {
        return None;
    }
    let (name, count) = (&rec.name, rec.count as usize);
    let wanted = before.count_wanted() + 1;
    let move_of = before.replaces_wanted(instance);
    if !before.surges() {
        // One that is on its way out still runs: there is nothing beyond the count.
        let may_run = |i: &&Instance| !i.is_over() && i.actual != model::Actual::Lost;
        let there = before.cluster.instances_of(before.service).filter(may_run).count() + 1;
        return beyond(format!("{name}: {} without surge", instance.id), there, count);
    }
    if instance.scratch.takes() && move_of.is_none() {
        // It fills the place of one that has stopped, whatever a rollout has beside that.
        let beside = replaced(before);
        return beyond(
            format!("{name}: {} takes scratch data", instance.id),
            wanted - beside.min(wanted),
            count,
        );
    }
    let spare = match move_of {
        Some(old) if evens_out(before, instance, old) => 1,
        Some(_) | None => before.budget().min(before.replaced_later().count()),
    };
    let there = wanted + before.still_leaving();
    beyond(format!("{name}: {} replaces {:?}", instance.id, instance.replaces), there, count + spare)
}

/// How many wanted ones have somebody beside them who is to replace them.
fn replaced(members: &Members<'_>) -> usize {
    let old = members.wanted().filter_map(|new| members.replaces_wanted(new)).map(|old| old.id);
    old.collect::<std::collections::BTreeSet<InstanceId>>().len()
}

/// A move that evens things out was begun in this step: few at a time, one per service, and none while
/// anything drains.
pub(crate) fn evens(before: &Members<'_>, instance: &Instance, limit: usize) -> Option<Violation> {
    let old = before.replaces_wanted(instance)?;
    if before.spec().kind != Kind::Service || !evens_out(before, instance, old) || !before.surges() {
        return None;
    }
    let name = &before.entry.rec.name;
    if before.cluster.drains().any(|drain| drain.is_unfinished()) {
        return beyond(format!("{name}: {} evens out while a drain runs", instance.id), 1, 0);
    }
    let under_way = |(ix, entry): (model::ServiceIx, &model::ServiceEntry)| {
        let complete = entry.rec.rollout.state == model::RolloutState::Complete;
        let members = Members::of(before.cluster, ix, before.now, before.paused);
        complete && members.is_some_and(|members| replaced(&members) > 0)
    };
    if before.count_wanted() > before.entry.rec.count as usize {
        return beyond(format!("{name}: {} evens out beside another", instance.id), 2, 1);
    }
    let others = before.cluster.services().filter(|(ix, _)| *ix != before.service);
    beyond("services that are evened out".to_owned(), others.filter(|one| under_way(*one)).count() + 1, limit)
}

/// How one that is about to be told to go is replaced, and how many may be on the move then.
pub(crate) enum Leaving {
    StopsFirst { limit: usize },
    Slot { limit: usize },
    System { limit: usize },
}

/// `instance`, which is wanted, is about to be told to go. `None`: no limit is asked.
pub(crate) fn leaves(before: &Members<'_>, instance: &Instance) -> Option<Leaving> {
    let (rec, spec) = (&before.entry.rec, before.spec());
    if rec.removed || before.is_forced(instance) {
        return None;
    }
    let limit = spec.update.max_parallel as usize;
    match spec.kind {
        Kind::Batch | Kind::Store => None,
        // When only system instances are left on a draining node, they go as well; so do those without a label.
        Kind::System => {
            let node = before.cluster.node(instance.node);
            let constraints = &rec.spec_of(rec.release_to_place()).constraints;
            let goes = node.is_draining() || !node.rec.satisfies(constraints);
            (!goes).then_some(Leaving::System { limit })
        }
        Kind::Service if spec.is_stateful() => {
            (instance.slot < Some(rec.count)).then_some(Leaving::Slot { limit })
        }
        Kind::Service => {
            let first = !before.surges() || before.stops_first(instance);
            (first && before.is_old(instance)).then(|| Leaving::StopsFirst { limit: before.budget() })
        }
    }
}

/// It was told to go.
pub(crate) fn left(after: &Members<'_>, instance: &Instance, how: Leaving) -> Option<Violation> {
    let given_up = after.cluster.instance(instance.id).is_some_and(|i| i.reason == Some(Code::Unhealthy));
    if given_up {
        return None;
    }
    let (in_flight, limit) = match how {
        Leaving::StopsFirst { limit } => (missing(after), limit),
        Leaving::Slot { limit } => (unsteady_slots(after), limit),
        Leaving::System { limit } => (unsteady_nodes(after, instance), limit),
    };
    beyond(format!("{}: {} goes", after.entry.rec.name, instance.id), in_flight, limit)
}

/// Old ones count as there, and those that have proven themselves.
fn missing(members: &Members<'_>) -> usize {
    let there = members.wanted().filter(|i| members.is_old(i) || members.is_proven(i)).count();
    (members.entry.rec.count as usize).saturating_sub(there)
}

/// A place whose instance is not there for good.
fn is_unsteady(members: &Members<'_>, occupant: &Instance) -> bool {
    let rec = &members.entry.rec;
    let current = occupant.release == rec.release || members.has_failed();
    !occupant.is_wanted() || (current && !members.is_proven(occupant))
}

fn unsteady_slots(members: &Members<'_>) -> usize {
    let count = members.entry.rec.count;
    let mut slots: BTreeMap<u32, Option<&Instance>> = (0..count).map(|slot| (slot, None)).collect();
    for other in members.cluster.instances_of(members.service).filter(|other| !other.is_over()) {
        if let Some(slot) = other.slot.and_then(|slot| slots.get_mut(&slot)) {
            *slot = Some(other);
        }
    }
    slots.values().filter(|slot| slot.is_none_or(|there| is_unsteady(members, there))).count()
}

fn unsteady_nodes(members: &Members<'_>, instance: &Instance) -> usize {
    let (cluster, rec) = (members.cluster, &members.entry.rec);
    let constraints = &rec.spec_of(rec.release_to_place()).constraints;
    let satisfies = |node: NodeIx| cluster.node(node).rec.satisfies(constraints);
    let mut here: BTreeMap<NodeIx, &Instance> = BTreeMap::new();
    for other in cluster.instances_of(members.service).filter(|other| !other.is_over()) {
        here.insert(other.node, other);
    }
    let empty = cluster.nodes().filter(|(ix, node)| node.may_place() && satisfies(*ix));
    let empty = empty.filter(|(ix, _)| !here.contains_key(ix)).count();
    // Those that leave a closed node are no part of a rollout.
    let unsteady = here.iter().filter(|(ix, other)| {
        let node = cluster.node(**ix);
        let stays = satisfies(**ix) && !node.rec.is_offline() && !node.is_closed();
        (stays || other.id == instance.id) && is_unsteady(members, other)
    });
    empty + unsteady.count()
}

/// Maintainers were handed over for a drain's sake in this step: `begun` are the feeds whose drain still has time,
/// `forced` those that got another without being waited for. No more are under way than may.
pub(crate) fn hand_overs(
    cluster: &Cluster,
    begun: &[FeedName],
    forced: &[FeedName],
    limit: usize,
    step: &Step<'_>,
) -> Option<Violation> {
    if begun.is_empty() {
        return None;
    }
    let leaves = |feed: &Feed| {
        let node = feed.maintainer.as_ref().and_then(|taker| cluster.node_by_id(taker.node.as_str()));
        node.is_none_or(|node| node.is_draining() || node.rec.is_closed())
    };
    let recent = |since: Time| step.now.since(since) < HAND_OVER_PATIENCE;
    let under_way = cluster.feeds().filter(|feed| {
        let Some(taker) = &feed.maintainer else { return false };
        let unfinished = taker.from.is_some() || !(step.at_work)(feed);
        let handed = taker.since > feed.created_at && unfinished && recent(taker.since);
        handed && !leaves(feed) && !forced.contains(&feed.name)
    });
    beyond("maintainers handed over".to_owned(), under_way.count(), limit)
}

/// Whether this change gives a feed another maintainer, and whether that waits for nobody: the one before is
/// lost, or its drain's time is over.
pub(crate) fn hands_over(cluster: &Cluster, after: &Feed) -> Option<bool> {
    let taker = after.maintainer.as_ref().filter(|taker| taker.epoch != cluster_epoch(cluster, after))?;
    let before = cluster.feed(after.name.as_str()).and_then(|feed| feed.maintainer.as_ref());
    let Some(before) = before.filter(|before| before.from.is_none() && taker.from.is_some()) else {
        return Some(true);
    };
    let node = cluster.node_by_id(before.node.as_str());
    Some(node.and_then(|node| node.drain.as_ref()).is_some_and(|drain| drain.deadline_reached))
}

fn cluster_epoch(cluster: &Cluster, feed: &Feed) -> MaintainerEpoch {
    cluster.feed(feed.name.as_str()).map(|known| known.epoch).unwrap_or_default()
}
