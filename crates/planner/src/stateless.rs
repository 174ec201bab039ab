//! Services without a place of their own: any instance is as good as another.
//!
//! With surge a healthy instance comes before an old one goes; without, at most `max_parallel` are
//! missing at a time and no second copy starts before the first is known to have stopped.

use model::{Actual, Code, Instance, InstanceId, RolloutState};

use crate::{
    reconcile::{Plan, is_proven},
    rollout::{self, Progress},
};

/// An instance that is wanted, as far as replacing it is concerned.
#[derive(Clone, Debug)]
struct Member {
    id: InstanceId,
    /// Of the release that is asked for and on a node that it may stay on.
    current: bool,
    /// Of the release that is rolling out (or was, when it failed).
    newest: bool,
    available: bool,
    proven: bool,
    forced: bool,
    crowd: u32,
}

pub(crate) fn plan(plan: &mut Plan<'_, '_>) {
    drop_failed_release(plan);
    retire_surplus(plan);
    let missing_code = fill(plan);
    let members = members(plan);
    let old: Vec<&Member> = members.iter().filter(|member| !member.current).collect();
    let progress = Progress {
        ready: members.iter().filter(|member| member.newest && member.proven).count() as u32,
        done: old.is_empty()
            && members.len() == plan.service_rec().count as usize
            && members.iter().all(|member| member.newest && member.proven),
        waiting_for: missing_code,
    };
    plan.wake_when_proven();
    rollout::book(plan, progress);
}

fn surges(plan: &Plan<'_, '_>) -> bool {
    let spec = plan.service_rec().spec();
    spec.update.surge && spec.migrate.surge
}

fn members(plan: &Plan<'_, '_>) -> Vec<Member> {
    let rec = plan.service_rec();
    let failed = matches!(rec.rollout.state, RolloutState::Failed { .. });
    let entry_on = plan.cluster().service(plan.service).map(|entry| &entry.on);
    let member = |instance: &Instance| {
        let newest = instance.release == rec.release;
        // Once a release has failed nothing is replaced for its release's sake.
        let release_ok = newest || failed;
        Member {
            id: instance.id,
            current: release_ok && !plan.on_closed_node(instance),
            newest,
            available: instance.is_available(),
            proven: is_proven(instance, rec.spec_of(instance.release), plan.now),
            forced: plan.is_forced_out(instance),
            crowd: entry_on.and_then(|on| on.get(&instance.node)).copied().unwrap_or(0),
        }
    };
    plan.instances().filter(|instance| instance.is_wanted()).map(member).collect()
}

/// A release that failed leaves nothing behind but what became ready.
fn drop_failed_release(plan: &mut Plan<'_, '_>) {
    let rec = plan.service_rec();
    let RolloutState::Failed { .. } = rec.rollout.state else { return };
    if rec.healthy.is_none_or(|healthy| healthy == rec.release) {
        return;
    }
    let broken: Vec<InstanceId> = plan
        .instances()
        .filter(|instance| {
            instance.is_wanted() && instance.release == plan.service_rec().release && !instance.is_available()
        })
        .map(|instance| instance.id)
        .collect();
    for id in broken {
        plan.retire(id, Some(Code::Unhealthy));
    }
}

/// More than asked for: the old go first, then the unavailable, then from where most are.
fn retire_surplus(plan: &mut Plan<'_, '_>) {
    let count = plan.service_rec().count as usize;
    let surge = surges(plan);
    let max_parallel = plan.service_rec().spec().update.max_parallel as usize;
    let mut members = members(plan);
    // What is forced out goes anyway: it must not count for what else may go.
    members.sort_by_key(|member| {
        let forced_last = !member.forced;
        (member.current, forced_last, member.available, std::cmp::Reverse((member.crowd, member.id)))
    });
    let proven_current = members.iter().filter(|member| member.current && member.proven).count();
    let mut old = members.iter().filter(|member| !member.current).count();
    let mut total = members.len();
    for member in &members {
        let go = match (member.current, surge) {
            // Only what is beyond the count, and only once nothing old is left to go instead.
            (true, _) => old == 0 && total > count,
            (false, _) if member.forced => true,
            (false, true) => total > count && proven_current + old > count,
            (false, false) => count.saturating_sub(proven_current + old) < max_parallel,
        };
        if go {
            plan.retire(member.id, None);
            total -= 1;
            old -= usize::from(!member.current);
        }
    }
}

/// What is missing, and with surge up to `max_parallel` more while old ones are to be replaced.
fn fill(plan: &mut Plan<'_, '_>) -> Option<Code> {
    let (count, release) = (plan.service_rec().count as usize, plan.service_rec().release_to_place());
    let surge = surges(plan);
    let members = members(plan);
    let replaced: Vec<InstanceId> =
        members.iter().filter(|member| !member.current).map(|member| member.id).collect();
    let (old, total) = (replaced.len(), members.len());
    let places = match surge {
        true => {
            let extra = total.saturating_sub(count);
            let max_parallel = plan.service_rec().spec().update.max_parallel as usize;
            let for_old = old.saturating_sub(extra).min(max_parallel.saturating_sub(extra));
            count.saturating_sub(total) + if count == 0 { 0 } else { for_old }
        }
        // One that is on its way out still runs: its place is free when its node says so.
        false => count.saturating_sub(total + leaving(plan)),
    };
    match plan.place(release, places, &replaced) {
        Ok(()) => None,
        Err(why) => {
            let missing = places.min(count);
            plan.explain(why, missing)
        }
    }
}

fn leaving(plan: &Plan<'_, '_>) -> usize {
    let leaving = |instance: &&Instance| {
        !instance.is_wanted() && !instance.is_over() && instance.actual != Actual::Lost
    };
    plan.instances().filter(leaving).count()
}
