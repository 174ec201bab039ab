//! What follows from a change: services are planned, edges told, stop signals released, orders sent.

use model::{Change, Desired, Health, InstanceId, Millis, NodeIx, ServiceIx, Time};
use planner::Drains;

use super::{Coordinator, timers::Timer};

/// Rounds of planning for one input. Planning is idempotent, so that two suffice; should it ever not
/// be, the cluster goes on slowly instead of standing still.
const ROUNDS_MAX: usize = 64;
const ROUNDS_PAUSE: Millis = Millis(100);

impl Coordinator {
    pub(super) fn settle(&mut self, now: Time) {
        let mut rounds = 0;
        while !self.dirty.is_empty() || self.drains_dirty || !self.feeds.dirty.is_empty() {
            self.advance_drains(now);
            rounds += 1;
            if rounds > ROUNDS_MAX {
                for service in std::mem::take(&mut self.dirty) {
                    self.timers.set(Timer::Service(service), now + ROUNDS_PAUSE);
                }
                break;
            }
            for service in std::mem::take(&mut self.dirty) {
                self.plan_service(service, now);
                self.recompute_set(service);
            }
            self.release_stops(now);
            self.plan_feeds(now);
        }
        self.release_stops(now);
        self.send_urgent_roster(now);
        self.send_sets(now);
        self.send_duties(now);
        self.send_touched(now);
    }

    fn plan_service(&mut self, service: ServiceIx, now: Time) {
        if self.cluster.service(service).is_none() {
            self.forget_service(service);
            return;
        }
        if let Some(group) = self.group_of_service(service) {
            return self.plan_group(service, &group, now);
        }
        let drains = if self.paused_since.is_some() { Drains::Paused } else { Drains::Go };
        let planned = self.change(now, |txn, ids| planner::reconcile_with(txn, ids, service, drains));
        // Planning again right after would make no change; only a plan that stopped half-way goes on.
        match planned.more {
            true => self.dirty.insert(service),
            false => self.dirty.remove(&service),
        };
        match planned.wake_at {
            Some(at) => self.timers.set(Timer::Service(service), at),
            None => self.timers.clear(Timer::Service(service)),
        }
        match planned.starved {
            true => self.starved.insert(service),
            false => self.starved.remove(&service),
        };
        self.keep_since(service, planned.reasons, now);
        self.forget_old(service, now);
        if self.cluster.service(service).is_none() {
            self.forget_service(service);
        }
    }

    /// A reason that was there before keeps the time since when it holds.
    pub(super) fn keep_since(&mut self, service: ServiceIx, mut reasons: Vec<model::Reason>, now: Time) {
        let before = self.reasons.remove(&service).unwrap_or_default();
        for reason in &mut reasons {
            let known = before.iter().find(|old| old.code == reason.code && old.unit == reason.unit);
            reason.since = reason.since.or(known.and_then(|old| old.since)).or(Some(now));
        }
        if !reasons.is_empty() {
            self.reasons.insert(service, reasons);
        }
    }

    fn forget_service(&mut self, service: ServiceIx) {
        self.timers.clear(Timer::Service(service));
        self.starved.remove(&service);
        self.reasons.remove(&service);
        self.recompute_set(service);
    }

    /// Instances that are over and no longer needed for the record: their nodes clear up first. What
    /// was on a node that is offline is dropped at once; if it ever comes back with it, it is unclaimed.
    pub(super) fn forget_old(&mut self, service: ServiceIx, now: Time) {
        for id in planner::to_forget(&self.cluster, service) {
            let Some(instance) = self.cluster.instance(id) else { continue };
            let node = instance.node;
            match self.cluster.node(node).rec.health {
                Health::Offline => {
                    self.change(now, |txn, _| txn.put(Change::InstanceGone(id)));
                    self.dirty.insert(service);
                    self.roomier();
                }
                Health::Up | Health::Degraded(_) => self.order_forget(node, id, now),
            }
        }
    }

    /// Gives nodes that are open again their share back, a few moves at a time, until it is even.
    pub(super) fn balance(&mut self, now: Time) {
        let moving = planner::balance::in_flight(&self.cluster);
        let free = (self.limits.balance_moves as usize).saturating_sub(moving);
        let started = self.change(now, |txn, ids| planner::balance::start(txn, ids, free));
        let evens_out = self.even_out_feeds();
        if moving + started > 0 || evens_out {
            self.timers.set(Timer::Balance, now + super::BALANCE_PAUSE);
        }
    }

    /// Room appeared: what waits for it is looked at again.
    pub(super) fn roomier(&mut self) {
        self.dirty.extend(std::mem::take(&mut self.starved));
    }

    /// Instances that have left every edge get their stop order.
    pub(super) fn release_stops(&mut self, now: Time) {
        let ready: Vec<InstanceId> =
            self.draining.iter().copied().filter(|id| self.edges_let_go(*id)).collect();
        for id in ready {
            let Some(mut instance) = self.cluster.instance(id).cloned() else { continue };
            instance.desired = Desired::Stopped;
            instance.order += 1;
            self.change(now, |txn, _| txn.put(Change::Instance(instance)));
        }
    }

    /// Every edge whose lease holds has confirmed that it sends nothing there, or has withdrawn.
    fn edges_let_go(&self, id: InstanceId) -> bool {
        let Some(instance) = self.cluster.instance(id) else { return false };
        let Some(needed) = self.sets.must_serve(&self.cluster, instance) else { return true };
        self.edges_waited_for().all(|node| {
            let serves = self.sessions.get(&node).and_then(|session| session.edge.serves);
            serves.is_some_and(|serves| serves >= needed)
        })
    }

    fn edges_waited_for(&self) -> impl Iterator<Item = NodeIx> {
        let edges =
            self.cluster.edges().filter(|(_, node)| !node.rec.foreign && node.rec.health != Health::Offline);
        edges.map(|(ix, _)| ix).filter(|ix| !self.has_withdrawn(*ix))
    }

    /// How many edges have not yet confirmed that they send nothing to this instance.
    pub fn edges_left(&self, id: InstanceId) -> usize {
        let needed = self.cluster.instance(id).and_then(|i| self.sets.must_serve(&self.cluster, i));
        let Some(needed) = needed else { return 0 };
        let behind = |node: &NodeIx| {
            let serves = self.sessions.get(node).and_then(|session| session.edge.serves);
            serves.is_none_or(|serves| serves < needed)
        };
        self.edges_waited_for().filter(behind).count()
    }
}
