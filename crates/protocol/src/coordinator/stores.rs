//! Store groups: planned like services, with calls to their backends.
//!
//! A call leaves like everything else, after what it depends on is committed. Backends know nothing of terms: a call
//! that changes something must be over before the office's lease is, and only one is under way per group.

use std::collections::BTreeMap;

use model::{
    BackendAnswer, BackendCall, BackendFailure, Change, FailureKind, Health, Instance, Millis, ServiceIx,
    Store, StoreGroupName, StoreGroupSpec, StoreId, Time,
};
use planner::{
    Drains,
    stores::{self, Asked, Planned, Process, Sighting, StoreStatus, Wait, Wanted},
};
use std::sync::Arc;

use super::{Coordinator, Output, timers::Timer};

/// No call takes longer.
pub const CALL_MAX: Millis = Millis::secs(5);
/// With less time than this a call that changes something is not begun.
const CALL_MIN: Millis = Millis(500);
/// Between a call's end and the lease's: clocks and the way there.
const LEASE_MARGIN: Millis = Millis(250);
/// A call whose end nobody told is taken for failed this long after it should have ended.
const ANSWER_GRACE: Millis = Millis::secs(2);
/// How many stores a backend needs is asked this often.
const REPLICAS_POLL: Millis = Millis::secs(60);
/// The time for a call is looked for again.
const NO_TIME_PAUSE: Millis = Millis(250);

/// Numbered by the coordinator; the answer carries it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A call that the shell makes of a group's backend.
#[derive(Clone, Debug)]
pub struct BackendOrder {
    pub id: CallId,
    pub group: StoreGroupName,
    /// `None`: it concerns the group.
    pub store: Option<StoreId>,
    pub spec: Arc<StoreGroupSpec>,
    /// Where stores of the group that are ready are reached, `host:port`.
    pub peers: Vec<String>,
    pub call: BackendCall,
    /// It must be over by then. One that cannot be begun in time is answered with [`FailureKind::NotMade`].
    pub until: Time,
}

#[derive(Clone, Debug)]
struct UnderWay {
    group: StoreGroupName,
    store: Option<StoreId>,
    asked: Asked,
    /// When it is taken for failed.
    given_up_at: Time,
}

#[derive(Clone, Debug, Default)]
pub(super) struct StoreDesk {
    seen: BTreeMap<StoreId, Sighting>,
    /// What each store waits for, and since when.
    waits: BTreeMap<StoreId, (Wait, Time)>,
    calls: BTreeMap<CallId, UnderWay>,
    last_call: u64,
    /// How many stores the backend of a group needs, and when that was asked.
    needed: BTreeMap<StoreGroupName, (Option<u64>, Time)>,
}

impl StoreDesk {
    fn changes_under_way(&self, group: &StoreGroupName) -> bool {
        self.calls.values().any(|call| call.group == *group && call.asked.call.changes_something())
    }

    /// One question at a time for each store; beside it something may be changed.
    fn is_asked(&self, group: &StoreGroupName, store: Option<&StoreId>) -> bool {
        let same = |other: &&UnderWay| other.group == *group && other.store.as_ref() == store;
        self.calls.values().filter(same).any(|other| !other.asked.call.changes_something())
    }
}

impl Coordinator {
    /// Everything that is shown of a store.
    pub fn store_status(&self, store: &Store, now: Time) -> StoreStatus {
        let blank = Sighting::default();
        let seen = self.stores.seen.get(&store.id).unwrap_or(&blank);
        let wait = self.stores.waits.get(&store.id).map(|(wait, _)| wait);
        stores::status(&self.cluster, store, seen, wait, now)
    }

    /// Since when a store waits for what its status says.
    pub fn store_waits_since(&self, store: &StoreId) -> Option<Time> {
        self.stores.waits.get(store).map(|(_, since)| *since)
    }

    /// What the backend said that it needs; `None` until it has.
    pub fn replicas_needed(&self, group: &StoreGroupName) -> Option<u64> {
        self.stores.needed.get(group).and_then(|(needed, _)| *needed)
    }

    pub(super) fn store_status_of(&self, instance: &Instance, now: Time) -> Option<StoreStatus> {
        Some(self.store_status(self.cluster.store_of(instance)?, now))
    }

    /// The group whose processes a service is.
    pub(super) fn group_of_service(&self, service: ServiceIx) -> Option<StoreGroupName> {
        let name = &self.cluster.service(service)?.rec.name;
        self.cluster.store_group(name.as_str()).map(|group| group.name.clone())
    }

    pub(super) fn plan_group(&mut self, service: ServiceIx, group: &StoreGroupName, now: Time) {
        self.give_up_calls(now);
        let drains = if self.paused_since.is_some() { Drains::Paused } else { Drains::Go };
        let seen = std::mem::take(&mut self.stores.seen);
        let planned = self.change(now, |txn, ids| stores::plan(txn, ids, group, &seen, drains));
        self.stores.seen = seen;
        if self.cluster.store_group(group.as_str()).is_none() {
            self.stores.needed.remove(group);
            self.dirty.insert(service);
            return;
        }
        self.dirty.remove(&service);
        let Planned { reasons, waits, calls, wake_at, starved } = planned;
        match starved {
            true => self.starved.insert(service),
            false => self.starved.remove(&service),
        };
        let late = self.make_calls(group, calls, now);
        let due = self.stores.calls.values().filter(|call| call.group == *group).map(|call| call.given_up_at);
        match wake_at.into_iter().chain(late).chain(due).min() {
            Some(at) => self.timers.set(Timer::Service(service), at.max(now + Millis(1))),
            None => self.timers.clear(Timer::Service(service)),
        }
        self.keep_waits(group, waits, now);
        self.keep_since(service, reasons, now);
        self.destroy_volumes(service, group, now);
        self.forget_old(service, now);
    }

    fn keep_waits(&mut self, group: &StoreGroupName, waits: BTreeMap<StoreId, Wait>, now: Time) {
        let cluster = &self.cluster;
        self.stores.seen.retain(|id, _| cluster.store(id.as_str()).is_some());
        self.stores.waits.retain(|id, _| {
            let store = cluster.store(id.as_str());
            store.is_some_and(|store| store.group != *group || waits.contains_key(id))
        });
        for (id, wait) in waits {
            let since = self.stores.waits.get(&id).filter(|(before, _)| before.code == wait.code);
            let since = since.map_or(now, |(_, since)| *since);
            self.stores.waits.insert(id, (wait, since));
        }
    }

    /// Sends the calls that may be made. Returns when to look again for those that may not yet.
    fn make_calls(&mut self, group: &StoreGroupName, calls: Vec<Wanted>, now: Time) -> Option<Time> {
        let mut again = None;
        let (needed, asked_at) = self.stores.needed.get(group).cloned().unwrap_or_default();
        let mut calls = calls;
        if self.cluster.store_group(group.as_str()).is_some_and(|group| !group.destroyed) {
            match asked_at == Time(0) || now.since(asked_at) >= REPLICAS_POLL {
                true => {
                    self.stores.needed.insert(group.clone(), (needed, now));
                    calls.push(Wanted { store: None, call: BackendCall::Replicas });
                }
                false => again = Some(asked_at + REPLICAS_POLL),
            }
        }
        for Wanted { store, call } in calls {
            let changes = call.changes_something();
            let busy = match changes {
                true => self.stores.changes_under_way(group),
                false => self.stores.is_asked(group, store.as_ref()),
            };
            if busy {
                // Its end is told, and then this is looked at again.
                continue;
            }
            match self.time_for(changes, now) {
                Some(until) => self.make_call(group, store, call, until, now),
                None => again = again.into_iter().chain([now + NO_TIME_PAUSE]).min(),
            }
        }
        again
    }

    /// Until when a call may take, if it may be made at all.
    fn time_for(&self, changes: bool, now: Time) -> Option<Time> {
        if !changes {
            return Some(now + CALL_MAX);
        }
        let until = (now + CALL_MAX).min(self.office_until - LEASE_MARGIN);
        (until >= now + CALL_MIN).then_some(until)
    }

    fn make_call(
        &mut self,
        name: &StoreGroupName,
        store: Option<StoreId>,
        call: BackendCall,
        until: Time,
        now: Time,
    ) {
        let Some(group) = self.cluster.store_group(name.as_str()) else { return };
        let process = |store: &Store| match stores::process_of(&self.cluster, store) {
            Process::Ready { address, .. } => address,
            Process::None { .. }
            | Process::Lost
            | Process::Starting { .. }
            | Process::Unseen { .. }
            | Process::Stopping { .. } => None,
        };
        let peers = self.cluster.stores_of(name.as_str()).filter_map(process).collect();
        let record = store.as_ref().and_then(|id| self.cluster.store(id.as_str()));
        let address = record.and_then(|store| match stores::process_of(&self.cluster, store) {
            Process::Ready { address, .. }
            | Process::Starting { address, .. }
            | Process::None { address } => address,
            Process::Lost | Process::Unseen { .. } | Process::Stopping { .. } => None,
        });
        if let Some(seen) = store.as_ref().and_then(|id| self.stores.seen.get_mut(id)) {
            stores::is_asked(seen, &call);
        }
        self.stores.last_call += 1;
        // An answer that comes late is not taken for one of another term.
        let id = CallId((self.term.0 << 32) + self.stores.last_call);
        let order = BackendOrder {
            id,
            group: name.clone(),
            store: store.clone(),
            spec: group.spec.clone(),
            peers,
            call: call.clone(),
            until,
        };
        let asked = Asked { call, at: now, address };
        let given_up_at = until + ANSWER_GRACE;
        self.stores.calls.insert(id, UnderWay { group: name.clone(), store, asked, given_up_at });
        self.outbox.push_back((self.log.last_group(), Output::Backend(order)));
    }

    /// Nobody told how they ended.
    fn give_up_calls(&mut self, now: Time) {
        let late: Vec<CallId> =
            self.stores.calls.iter().filter(|(_, call)| call.given_up_at <= now).map(|(id, _)| *id).collect();
        for id in late {
            let failure =
                BackendFailure { kind: FailureKind::Unreachable, words: "no answer in time".to_owned() };
            self.backend_answered(id, Err(failure), now);
        }
    }

    pub(super) fn backend_answered(
        &mut self,
        id: CallId,
        result: Result<BackendAnswer, BackendFailure>,
        now: Time,
    ) {
        let Some(call) = self.stores.calls.remove(&id) else { return };
        self.dirty.extend(self.cluster.service_ix(call.group.as_str()));
        let Some(store) = call.store else {
            if let Ok(BackendAnswer::Replicas(needed)) = result {
                self.stores.needed.insert(call.group, (Some(needed), call.asked.at));
            }
            return;
        };
        let mut seen = self.stores.seen.remove(&store).unwrap_or_default();
        self.change(now, |txn, _| stores::take_answer(txn, &store, &mut seen, &call.asked, result));
        self.stores.seen.insert(store, seen);
    }

    /// What a removed store leaves on its node is cleared away there first; on a node that is offline it is left.
    fn destroy_volumes(&mut self, service: ServiceIx, group: &StoreGroupName, now: Time) {
        for (id, _) in stores::to_destroy(&self.cluster, group.as_str()) {
            let Some(instance) = self.cluster.instance(id) else { continue };
            let node = instance.node;
            match self.cluster.node(node).rec.health {
                Health::Offline => {
                    self.change(now, |txn, _| txn.put(Change::InstanceGone(id)));
                    self.dirty.insert(service);
                }
                Health::Up | Health::Degraded(_) => self.order_forget(node, id, now),
            }
        }
    }
}
