//! Services without a place of their own: any instance is as good as another.
//!
//! With surge a healthy instance comes before an old one goes; without, at most `max_parallel` are
//! missing at a time and no second copy starts before the first is known to have stopped.

use std::{cmp::Reverse, collections::BTreeSet};

use model::{Actual, Code, Instance, InstanceId, Millis, NodeIx, RolloutState};

use crate::{
    balance::relieves,
    drain::Leave,
    reconcile::{Plan, is_proven},
    rollout::{self, Progress},
    scratch,
};

/// Replacements on a drain's behalf that failed before a person is asked for.
const REPLACEMENT_TRIES_MAX: usize = 3;
/// How far back those are counted.
const REPLACEMENT_WINDOW: Millis = Millis::secs(3600);

/// An instance that is wanted, as far as replacing it is concerned.
#[derive(Clone, Debug, PartialEq)]
struct Member {
    id: InstanceId,
    /// Of the release that is asked for and on a node that it may stay on.
    current: bool,
    /// Of the release that is rolling out (or was, when it failed).
    newest: bool,
    available: bool,
    proven: bool,
    leave: Leave,
    /// It brings its scratch data along: it stops before its successor starts, whatever `surge` says.
    stops_first: bool,
    /// The data that it takes over has not come: let go now, it would leave that behind.
    awaits_scratch: bool,
    /// It was to replace one that stays after all.
    spare: bool,
    /// Somebody is on the way to replace it.
    replaced: bool,
    crowd: u32,
}

pub(crate) fn plan(plan: &mut Plan<'_, '_>) {
    drop_failed_release(plan);
    drop_unhealthy_replacements(plan);
    let no_room = retire_surplus(plan);
    let missing_code = fill(plan).or(no_room);
    let members = members(plan);
    let ready = members.named.iter().filter(|member| member.newest && member.proven).count();
    let ready = ready + members.rest_proven;
    let progress = Progress {
        ready: ready as u32,
        done: members.named.iter().all(|member| member.current)
            && members.total() == plan.service_rec().count as usize
            && members.total() == ready,
        waiting_for: missing_code,
    };
    plan.wake_when_proven();
    rollout::book(plan, progress);
}

fn surges(plan: &Plan<'_, '_>) -> bool {
    let spec = plan.service_rec().spec();
    spec.update.surge && spec.migrate.surge
}

/// What is wanted of a service: those about which there may be something to decide, and how many there
/// are beside them.
struct Members {
    named: Vec<Member>,
    /// Settled ones that nobody replaces: current, newest, available, and in nobody's stead.
    rest: usize,
    rest_proven: usize,
}

impl Members {
    fn total(&self) -> usize {
        self.named.len() + self.rest
    }
}

fn members(plan: &Plan<'_, '_>) -> Members {
    let entry = plan.service_entry();
    // One that stands in for another is unsettled; the other may be settled, and is looked at with it.
    let mut ids: BTreeSet<InstanceId> = BTreeSet::new();
    let mut unsettled = 0;
    for instance in entry.unsettled().filter(|instance| instance.is_wanted()) {
        unsettled += usize::from(ids.insert(instance.id));
        let old = instance.replaces.filter(|old| !entry.settled.others().contains(old));
        ids.extend(old.filter(|old| entry.instances.get(old).is_some_and(Instance::is_wanted)));
    }
    let named = look_at(plan, ids.iter().filter_map(|id| entry.instances.get(id)));
    let pulled = ids.len() - unsettled;
    let held = entry.rec.spec().migrate.min_healthy_time;
    let proven_pulled =
        named.iter().filter(|member| !entry.settled.others().contains(&member.id) && member.proven);
    let rest_proven = entry.settled.proven(plan.now, held) as usize - proven_pulled.count();
    let rest = entry.settled.count() as usize - pulled;
    let members = Members { named, rest, rest_proven };
    debug_assert!(agree(&members, every_member(plan)), "what is settled needs no look");
    members
}

/// Whether those that are not named are as they are taken to be.
fn agree(members: &Members, every: Members) -> bool {
    let named: BTreeSet<InstanceId> = members.named.iter().map(|member| member.id).collect();
    let (named, rest): (Vec<Member>, Vec<Member>) =
        every.named.into_iter().partition(|member| named.contains(&member.id));
    let quiet = |member: &Member| {
        let stays = member.current && member.newest && member.leave == Leave::No;
        stays && member.available && !member.spare && !member.replaced
    };
    named == members.named
        && rest.len() == members.rest
        && rest.iter().filter(|member| member.proven).count() == members.rest_proven
        && rest.iter().all(quiet)
}

/// Every wanted one by itself.
fn every_member(plan: &Plan<'_, '_>) -> Members {
    let wanted = plan.instances().filter(|instance| instance.is_wanted());
    Members { named: look_at(plan, wanted), rest: 0, rest_proven: 0 }
}

fn look_at<'a>(plan: &'a Plan<'_, '_>, wanted: impl Iterator<Item = &'a Instance>) -> Vec<Member> {
    let rec = plan.service_rec();
    let failed = matches!(rec.rollout.state, RolloutState::Failed { .. });
    let on = &plan.service_entry().on;
    // Whoever stands in for one that is wanted is unsettled.
    let stand_ins = || {
        let wanted = plan.unsettled().filter(|instance| instance.is_wanted());
        wanted.filter_map(|new| Some((new, new.replaces?)))
    };
    let coming: BTreeSet<InstanceId> = stand_ins().map(|(_, old)| old).collect();
    let stays = |id: InstanceId| {
        let instance = plan.cluster().instance(id).filter(|instance| instance.is_wanted());
        instance.is_some_and(|i| plan.leave(i) == Leave::No && (i.release == rec.release || failed))
    };
    let complete = rec.rollout.state == RolloutState::Complete;
    let relieved: BTreeSet<InstanceId> = stand_ins()
        .filter(|_| complete)
        .filter_map(|(new, old)| Some((new, plan.cluster().instance(old)?)))
        .filter(|(new, old)| relieves(plan.cluster(), new, old))
        .map(|(_, old)| old.id)
        .collect();
    let member = |instance: &Instance| {
        let leave = plan.leave(instance);
        let newest = instance.release == rec.release;
        // Once a release has failed nothing is replaced for its release's sake.
        let release_ok = newest || failed;
        Member {
            id: instance.id,
            current: release_ok && leave == Leave::No && !relieved.contains(&instance.id),
            newest,
            available: instance.is_available(),
            proven: is_proven(instance, rec.spec_of(instance.release), plan.now),
            leave,
            stops_first: leave == Leave::Move && scratch::brings_it_along(rec.spec_of(instance.release)),
            awaits_scratch: instance.awaits_scratch(),
            spare: instance.replaces.is_some_and(|old| stays(old) && !relieved.contains(&old)),
            replaced: coming.contains(&instance.id),
            crowd: on.get(&instance.node).copied().unwrap_or(0),
        }
    };
    wanted.map(member).collect()
}

/// A release that failed leaves nothing behind but what became ready.
fn drop_failed_release(plan: &mut Plan<'_, '_>) {
    let rec = plan.service_rec();
    let RolloutState::Failed { .. } = rec.rollout.state else { return };
    if rec.healthy.is_none_or(|healthy| healthy == rec.release) {
        return;
    }
    let broken: Vec<InstanceId> = plan
        .unsettled()
        .filter(|instance| {
            instance.is_wanted() && instance.release == plan.service_rec().release && !instance.is_available()
        })
        .map(|instance| instance.id)
        .collect();
    for id in broken {
        plan.retire(id, Some(Code::Unhealthy));
    }
}

/// A replacement that does not get healthy is tried on another node; the one it was to replace stays.
fn drop_unhealthy_replacements(plan: &mut Plan<'_, '_>) {
    let deadline = plan.service_rec().spec().migrate.healthy_deadline;
    let moved = |instance: &&Instance| {
        let old = instance.replaces.and_then(|old| plan.cluster().instance(old));
        let complete = plan.service_rec().rollout.state == RolloutState::Complete;
        old.is_some_and(|old| old.is_wanted() && (complete || plan.leave(old) == Leave::Move))
    };
    let waiting = plan.unsettled().filter(|i| i.is_wanted() && !i.is_available()).filter(moved);
    let waiting: Vec<(InstanceId, model::Time)> = waiting.map(|i| (i.id, i.created_at + deadline)).collect();
    for (id, due) in waiting {
        if due <= plan.now {
            plan.retire(id, Some(Code::Unhealthy));
        } else {
            plan.wake_at(due);
        }
    }
}

/// How many replacements of instances on draining nodes have failed lately, since one last got healthy: a
/// few that fail among a hundred that do not are tried again, and no reason to ask a person.
fn failed_replacements(plan: &Plan<'_, '_>, release: u32) -> usize {
    let failed = plan.unsettled().filter(|instance| {
        let failed = instance.actual == Actual::Failed || instance.reason == Some(Code::Unhealthy);
        let lately = plan.now.since(instance.created_at) < REPLACEMENT_WINDOW;
        failed
            && lately
            && !instance.is_wanted()
            && instance.replaces.is_some()
            && instance.release == release
    });
    let failed: Vec<model::Time> = failed.map(|instance| instance.created_at).collect();
    if failed.len() < REPLACEMENT_TRIES_MAX {
        // Too few to matter: the service need not be gone through for the others.
        return failed.len();
    }
    let well = plan.instances().filter(|i| i.is_available() && i.replaces.is_some() && i.release == release);
    let last_well = well.map(|instance| instance.created_at).max();
    failed.into_iter().filter(|created_at| last_well.is_none_or(|well| *created_at > well)).count()
}

/// How many of a service may be on the move: one budget for rollouts and drains.
fn budget(plan: &Plan<'_, '_>, members: &[Member]) -> usize {
    let spec = plan.service_rec().spec();
    let moves = members.iter().any(|member| member.leave != Leave::No);
    let updates = members.iter().any(|member| !member.current && member.leave == Leave::No);
    let for_moves = if moves { spec.migrate.max_parallel } else { 0 };
    let for_updates = if updates { spec.update.max_parallel } else { 0 };
    for_moves.max(for_updates).max(1) as usize
}

/// More than asked for: the old go first, then the unavailable, then those who were to replace what
/// stays, then from where most are.
fn retire_surplus(plan: &mut Plan<'_, '_>) -> Option<Code> {
    let count = plan.service_rec().count as usize;
    let surge = surges(plan);
    let mut members = members(plan);
    let old = |members: &Members| members.named.iter().filter(|member| !member.current).count();
    // Of current ones some go only if there are too many of those alone; then it is for each to see.
    if members.total() - old(&members) > count {
        members = every_member(plan);
    }
    let budget = budget(plan, &members.named);
    members.named.sort_by_key(|member| {
        // Of the old, those that must leave their node go sooner, and those that go anyway first of
        // all: they stand in for nobody.
        let stays = match member.leave {
            Leave::Now => 0,
            Leave::Move => 1,
            Leave::No => 2,
        };
        // Of equals, those whose replacement has come.
        let waits = (!member.replaced, Reverse((member.crowd, member.id)));
        // What stops first stands in for nobody who waits for a healthy one.
        (member.current, stays, !member.stops_first, member.available, !member.spare, waits)
    });
    let (mut old, mut total, mut short) = (old(&members), members.total(), 0);
    let rest_proven = members.rest_proven;
    let members = members.named;
    let proven_current =
        members.iter().filter(|member| member.current && member.proven).count() + rest_proven;
    let mut old_available = members.iter().filter(|member| !member.current && member.available).count();
    for member in &members {
        let go = match (member.current, surge && !member.stops_first) {
            // Only what is beyond the count, and only once nothing old is left to go instead.
            (true, _) => old == 0 && total > count,
            (false, _) if member.leave == Leave::Now => true,
            (false, _) if member.awaits_scratch => false,
            // One that takes no connections anyway goes as soon as another stands in for it.
            (false, true) if !member.available => total > count && proven_current + old > count,
            (false, true) => total > count && proven_current + old_available > count,
            // Not before its successor is sure to find room.
            (false, false) => {
                let due = count.saturating_sub(proven_current + old) < budget;
                let room = due && plan.has_room_after(member.id);
                short += usize::from(due && !room);
                room
            }
        };
        if go {
            plan.retire(member.id, None);
            total -= 1;
            old -= usize::from(!member.current);
            old_available -= usize::from(!member.current && member.available);
        }
    }
    if short == 0 {
        return None;
    }
    let wait = plan.no_room();
    plan.explain(wait, short)
}

/// What is missing, and with surge up to the budget more while old ones are to be replaced.
fn fill(plan: &mut Plan<'_, '_>) -> Option<Code> {
    let (count, release) = (plan.service_rec().count as usize, plan.service_rec().release_to_place());
    let surge = surges(plan);
    let members = members(plan);
    let old = members.named.iter().filter(|member| !member.current && !member.stops_first);
    let old: Vec<&Member> = old.collect();
    let mut total = members.total();
    if !surge {
        // One that is on its way out still runs: its place is free when its node says so.
        let missing = count.saturating_sub(total + leaving(plan));
        let left = scratch::to_be_taken(plan, missing);
        return placed(plan, release, missing, &left, &[]);
    }
    // What was left is taken even while a rollout has more than the count.
    let still_leaving = scratch::still_leaving(plan);
    let lacks = scratch::places_free(plan.cluster(), plan.service).saturating_sub(still_leaving);
    let left = scratch::to_be_taken(plan, lacks);
    let code = placed(plan, release, left.len(), &left, &[]);
    if code.is_some() {
        return code;
    }
    total += left.len() + still_leaving;
    let missing = count.saturating_sub(total);
    let code = placed(plan, release, missing, &[], &[]);
    if code.is_some() || count == 0 || old.is_empty() {
        return code;
    }
    let extra = total.saturating_sub(count);
    let more = old.len().saturating_sub(extra).min(budget(plan, &members.named).saturating_sub(extra));
    let mut replaced: Vec<&&Member> = old.iter().filter(|member| !member.replaced).collect();
    replaced.sort_by_key(|member| (member.leave == Leave::No, member.id));
    let moves = replaced.iter().take(more).any(|member| member.leave == Leave::Move);
    if moves && failed_replacements(plan, release) >= REPLACEMENT_TRIES_MAX {
        let message =
            format!("{REPLACEMENT_TRIES_MAX} replacements did not get healthy; the old one keeps running");
        plan.reason(Code::ReplacementUnhealthy, None, None, message);
        return Some(Code::ReplacementUnhealthy);
    }
    let replaced: Vec<InstanceId> = replaced.into_iter().map(|member| member.id).collect();
    // Those whose replacement is on its way will be gone as well when it matters.
    let leaving = old.iter().filter_map(|member| Some(plan.cluster().instance(member.id)?.node));
    let leaving: Vec<NodeIx> = leaving.collect();
    placed(plan, release, more, &replaced, &leaving)
}

fn placed(
    plan: &mut Plan<'_, '_>,
    release: u32,
    how_many: usize,
    replaces: &[InstanceId],
    leaving: &[NodeIx],
) -> Option<Code> {
    match plan.place(release, how_many, replaces, leaving) {
        Ok(()) => None,
        Err(why) => plan.explain(why, how_many),
    }
}

fn leaving(plan: &Plan<'_, '_>) -> usize {
    let leaving = |instance: &&Instance| {
        !instance.is_wanted() && !instance.is_over() && instance.actual != Actual::Lost
    };
    plan.unsettled().filter(leaving).count()
}
