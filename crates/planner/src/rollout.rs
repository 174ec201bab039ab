//! How the newest release of a service fares: complete, on its way, or failed with its reason.

use std::collections::BTreeSet;

use model::{Actual, Change, Code, Instance, Kind, RolloutState, Service};

use crate::reconcile::Plan;

/// What a kind of service found out about its newest release.
pub(crate) struct Progress {
    /// Instances of it that have proven themselves.
    pub ready: u32,
    /// Nothing is left to do.
    pub done: bool,
    /// Why something could not be placed.
    pub waiting_for: Option<Code>,
}

/// Books the progress in the service's record, and wakes when the deadline is due.
pub(crate) fn book(plan: &mut Plan<'_, '_>, progress: Progress) {
    let rec = plan.service_rec();
    let deadline = rec.rollout.progress_at + rec.spec().update.healthy_deadline;
    let mut next = rec.clone();
    match &rec.rollout.state {
        RolloutState::Complete => {}
        RolloutState::Rolling if progress.done => complete(&mut next),
        // With no release to fall back to, a late success is a success.
        RolloutState::Failed { .. } if progress.done && rec.healthy.is_none() => complete(&mut next),
        RolloutState::Failed { .. } => {}
        RolloutState::Rolling => {
            if progress.ready > rec.rollout.ready_max {
                (next.rollout.ready_max, next.rollout.progress_at) = (progress.ready, plan.now);
                let deadline = plan.now + rec.spec().update.healthy_deadline;
                plan.wake_at(deadline);
            } else if plan.now >= deadline && plan.instances().any(Instance::awaits_scratch) {
                // Data that is on its way has a deadline of its own, and is no fault of the release.
                next.rollout.progress_at = plan.now;
                let deadline = plan.now + rec.spec().update.healthy_deadline;
                plan.wake_at(deadline);
            } else if plan.now >= deadline {
                next.rollout.state = failed(plan, &progress);
            } else {
                plan.wake_at(deadline);
            }
        }
    }
    show_failure(plan, &next);
    if next != *plan.service_rec() {
        // What follows from it (a broken instance to stop, a fallback to place) is the next call's.
        plan.out.more |= next.rollout.state != plan.service_rec().rollout.state;
        plan.txn.put(Change::Service(next));
    }
}

fn complete(service: &mut Service) {
    service.rollout.state = RolloutState::Complete;
    // Batch has nothing to fall back to: what an older release had to do is done.
    if service.spec().kind != Kind::Batch {
        service.healthy = Some(service.release);
    }
}

/// The reason of a failed release: what the last thing that went wrong said.
fn failed(plan: &Plan<'_, '_>, progress: &Progress) -> RolloutState {
    let rec = plan.service_rec();
    let newest = plan.unsettled().filter(|instance| instance.release == rec.release);
    let broken = newest.filter(|instance| {
        instance.actual == Actual::Failed || (instance.is_wanted() && !instance.is_available())
    });
    let told = broken.filter_map(|instance| instance.reason).last();
    let reason = progress.waiting_for.or(told).unwrap_or(Code::Unhealthy);
    let within = rec.spec().update.healthy_deadline;
    let ready = rec.rollout.ready_max;
    let message = match plan.out.reasons.last().filter(|_| progress.waiting_for.is_some()) {
        Some(why) => format!("{ready} ready, no further one within {within}: {}", why.message),
        None => format!("{ready} ready, no further one within {within}"),
    };
    RolloutState::Failed { reason, message }
}

fn show_failure(plan: &mut Plan<'_, '_>, service: &Service) {
    if let RolloutState::Failed { reason, message } = &service.rollout.state {
        let message = format!("release {} failed: {message}", service.release);
        plan.reason(*reason, None, None, message);
    }
}

/// A specification is kept while it is asked for, fallen back to, or run by an instance.
pub(crate) fn drop_unused_releases(plan: &mut Plan<'_, '_>) {
    let Some(entry) = plan.cluster().service(plan.service) else { return };
    let rec = &entry.rec;
    if rec.releases.len() <= 1 {
        return;
    }
    let mut used: BTreeSet<u32> =
        plan.unsettled().filter(|instance| !instance.is_over()).map(|i| i.release).collect();
    // What is settled is of this one.
    used.insert(rec.release);
    used.extend(rec.healthy);
    if rec.releases.keys().all(|release| used.contains(release)) {
        return;
    }
    let mut next = rec.clone();
    next.releases.retain(|release, _| used.contains(release));
    plan.txn.put(Change::Service(next));
}
