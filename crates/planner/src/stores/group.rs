//! One store group brought closer to what is asked of it.

use std::collections::BTreeMap;

use model::{
    BackendState, Change, Cluster, Code, Offline, OfflineWhy, Reason, Restart, RestartWhy, Service, Store,
    StoreGroup, StoreGroupName, StoreId, Time, Txn,
};

use super::{
    Sighting, Wait, Wanted,
    decide::{Process, Situation, Step, next},
    process::{self, finds_room, instance_of, is_to_leave, process_of, volume_id},
    select::{rescue_order, selection_order},
};
use crate::{Drains, Ids, reconcile::Plan, rollout};

/// Facts that one call writes down for one store before it asks anything: each leads to the next.
const RECORDS_MAX: usize = 8;

/// What came of it.
#[derive(Clone, Debug, Default)]
#[must_use = "what is not done carries its reason"]
pub struct Planned {
    /// Why the group is not as asked.
    pub reasons: Vec<Reason>,
    /// What each store waits for.
    pub waits: BTreeMap<StoreId, Wait>,
    /// To be made now, unless one for the same store is under way.
    pub calls: Vec<Wanted>,
    pub wake_at: Option<Time>,
    pub starved: bool,
}

/// Brings one group closer to what is asked.
pub fn plan(
    txn: &mut Txn<'_>,
    ids: &mut Ids,
    name: &StoreGroupName,
    seen: &BTreeMap<StoreId, Sighting>,
    drains: Drains,
) -> Planned {
    let service = txn.service_ix(name.as_str());
    let (Some(service), Some(group)) = (service, txn.store_group(name.as_str()).cloned()) else {
        return Planned::default();
    };
    let mut work = Work { plan: Plan::new(txn, ids, service), group, seen, drains, out: Planned::default() };
    work.plan.give_up_ended();
    if work.group.destroyed {
        work.forget_removed();
        work.end_if_empty();
    } else {
        work.count();
        work.restarts();
    }
    work.steps();
    if !work.group.destroyed {
        work.forget_removed();
        work.start_processes();
        rollout::drop_unused_releases(&mut work.plan);
    }
    let out = work.plan.out;
    Planned {
        reasons: out.reasons.into_iter().chain(work.out.reasons).collect(),
        wake_at: [out.wake_at, work.out.wake_at].into_iter().flatten().min(),
        starved: out.starved,
        ..work.out
    }
}

struct Work<'a, 'b> {
    plan: Plan<'a, 'b>,
    group: StoreGroup,
    seen: &'a BTreeMap<StoreId, Sighting>,
    drains: Drains,
    out: Planned,
}

impl Work<'_, '_> {
    fn cluster(&self) -> &Cluster {
        self.plan.cluster()
    }

    fn stores(&self) -> Vec<Store> {
        self.cluster().stores_of(self.group.name.as_str()).cloned().collect()
    }

    fn put(&mut self, store: Store) {
        self.plan.txn.put(Change::Store(store));
    }

    fn is_movable(&self) -> bool {
        self.group.spec.movable.is_some()
    }

    /// Its node is to be emptied, and its volume cannot come along.
    fn must_go(&self, store: &Store) -> bool {
        let instance = instance_of(self.cluster(), store);
        !self.is_movable() && instance.is_some_and(|instance| is_to_leave(self.cluster(), instance))
    }

    /// Neither on its way out nor to be replaced.
    fn is_staying(&self, store: &Store) -> bool {
        store.offline.is_none() && store.removed_at.is_none() && !self.must_go(store)
    }

    /// Rescued are as many as are missing and can be; the rest are made anew. What is too much goes.
    fn count(&mut self) {
        self.take_back_for_drains();
        let wanted = self.group.replicas as usize;
        let stores = self.stores();
        let staying: Vec<&Store> = stores.iter().filter(|store| self.is_staying(store)).collect();
        if staying.len() > wanted {
            let chosen = selection_order(self.cluster(), &self.group.spec, &staying, staying.len() - wanted);
            for id in chosen {
                self.set_offline(&id, OfflineWhy::ScaleIn);
            }
            return self.replaced_may_go(wanted);
        }
        let missing = wanted - staying.len();
        let rescuable = stores.iter().filter(|store| store.is_rescuable() && !self.must_go(store));
        let rescued: Vec<StoreId> = rescue_order(rescuable, self.seen)
            .into_iter()
            .take(missing)
            .map(|store| store.id.clone())
            .collect();
        for id in &rescued {
            self.rescue(id);
        }
        for _ in rescued.len()..missing {
            self.create();
        }
        self.replaced_may_go(wanted);
    }

    /// A drain that is no more: what was to go for its sake alone stays, if it still can.
    fn take_back_for_drains(&mut self) {
        for store in self.stores() {
            let for_drain = store.offline.as_ref().is_some_and(|offline| offline.why == OfflineWhy::Drain);
            if for_drain && store.is_rescuable() && !self.must_go(&store) {
                self.rescue(&store.id);
            }
        }
    }

    /// One that is to be replaced goes once as many as asked for serve without it. A process that runs and that the
    /// backend does not count on is no replacement.
    fn replaced_may_go(&mut self, wanted: usize) {
        if self.drains == Drains::Paused {
            return;
        }
        let stores = self.stores();
        let up = |store: &&Store| {
            let ready = matches!(process_of(self.cluster(), store), Process::Ready { .. });
            let state = self.seen.get(&store.id).and_then(|seen| seen.state.as_ref());
            let serves = matches!(state, Some(BackendState::Serving { .. }));
            self.is_staying(store) && store.identity.is_some() && ready && serves
        };
        let up = stores.iter().filter(up).count();
        let going: Vec<StoreId> = stores
            .iter()
            .filter(|store| store.offline.is_none() && store.removed_at.is_none() && self.must_go(store))
            .map(|store| store.id.clone())
            .collect();
        for id in going {
            if up >= wanted {
                self.set_offline(&id, OfflineWhy::Drain);
            } else {
                let message = format!("{up} of {wanted} stores are up without it; another has to be, first");
                self.out.waits.insert(id, Wait::new(Code::ReplicasNotEnough, message));
            }
        }
    }

    fn set_offline(&mut self, id: &StoreId, why: OfflineWhy) {
        let Some(store) = self.cluster().store(id.as_str()).cloned() else { return };
        let offline = Some(Offline { since: self.plan.now, why });
        // A restart would be for nothing; a process that is down already comes back first.
        self.put(Store { offline, cancelled_at: None, restart: None, trouble: None, ..store });
    }

    fn rescue(&mut self, id: &StoreId) {
        let Some(store) = self.cluster().store(id.as_str()).cloned() else { return };
        self.put(Store { offline: None, cancelled_at: Some(self.plan.now), trouble: None, ..store });
    }

    fn create(&mut self) {
        let ordinal = self.group.next_ordinal;
        self.group.next_ordinal += 1;
        self.plan.txn.put(Change::StoreGroup(self.group.clone()));
        self.put(Store::new(&self.group.name, ordinal, self.plan.now));
    }

    /// Processes of an older release, and those whose volume can leave a closed node with them.
    fn restarts(&mut self) {
        for store in self.stores() {
            let Some(instance) = instance_of(self.cluster(), &store).filter(|instance| instance.is_wanted())
            else {
                continue;
            };
            let (id, release) = (instance.id, instance.release);
            let leaves = self.is_movable() && is_to_leave(self.cluster(), instance);
            let outdated = release != self.plan.service_rec().release;
            let why = match (leaves && self.drains == Drains::Go, outdated) {
                (true, _) => Some(RestartWhy::Drain),
                (false, true) => Some(RestartWhy::Update),
                (false, false) => None,
            };
            let free = store.offline.is_none() && store.removed_at.is_none();
            match (&store.restart, why) {
                (None, Some(why)) if free => {
                    let restart =
                        Restart { began_at: self.plan.now, why, instance: Some(id), stopped_at: None };
                    self.put(Store { restart: Some(restart), trouble: None, ..store });
                }
                // Its node stays after all, and its process still runs.
                (Some(restart), None) if restart.why == RestartWhy::Drain && !leaves => {
                    if restart.stopped_at.is_none() && restart.instance == Some(id) {
                        self.put(Store { restart: None, trouble: None, ..store });
                    }
                }
                (None, _) | (Some(_), _) => {}
            }
        }
    }

    fn steps(&mut self) {
        for store in self.stores() {
            for _ in 0..RECORDS_MAX {
                let Some(store) = self.cluster().store(store.id.as_str()).cloned() else { break };
                if !self.step(store) {
                    break;
                }
            }
        }
    }

    /// Whether there is more to decide at once.
    fn step(&mut self, store: Store) -> bool {
        let seen = self.seen.get(&store.id).cloned().unwrap_or_default();
        let process = process_of(self.cluster(), &store);
        let situation = Situation {
            store: &store,
            seen: &seen,
            spec: &self.group.spec,
            process: process.clone(),
            held_up: self.held_up(&store),
            alone: self.is_alone(&store),
            hurried: self.is_hurried(&store),
            destroyed: self.group.destroyed,
            now: self.plan.now,
        };
        match next(&situation) {
            Step::Rest { look_at } => self.wake_at(look_at),
            Step::Wait { wait, look_at } => {
                self.wake_at(look_at);
                self.out.waits.entry(store.id.clone()).or_insert(wait);
            }
            Step::Call(call) => self.out.calls.push(Wanted { store: Some(store.id.clone()), call }),
            Step::Record(next) => {
                let changed = *next != store;
                self.put(*next);
                return changed;
            }
            Step::StopProcess => return self.stop_process(store, &process),
            Step::Remove => self.remove_process(&store),
        }
        false
    }

    fn wake_at(&mut self, at: Time) {
        self.out.wake_at = Some(self.out.wake_at.map_or(at, |other| other.min(at)));
    }

    fn stop_process(&mut self, store: Store, process: &Process) -> bool {
        let (Process::Ready { id, .. } | Process::Starting { id, .. }) = process else { return false };
        if store.offline.is_none()
            && let Err(why) = finds_room(&mut self.plan, *id, self.group.spec.movable.is_some())
        {
            if let Some(code) = self.plan.explain(why, 1) {
                let wait = Wait::new(code, "there is no room for its new process");
                self.out.waits.insert(store.id.clone(), wait);
            }
            return false;
        }
        if let Some(restart) = &store.restart {
            let restart = Restart { stopped_at: Some(self.plan.now), ..restart.clone() };
            self.put(Store { restart: Some(restart), ..store });
        }
        self.plan.retire(*id, None);
        false
    }

    fn remove_process(&mut self, store: &Store) {
        let running = instance_of(self.cluster(), store).filter(|instance| !instance.is_over());
        if let Some(id) = running.map(|instance| instance.id) {
            self.plan.retire(id, None);
            let wait = Wait::new(Code::GracePeriod, "removed; its process is told to stop");
            self.out.waits.entry(store.id.clone()).or_insert(wait);
        }
    }

    /// A removed store's record goes with the last of its process and its volume.
    fn forget_removed(&mut self) {
        for store in self.stores() {
            let gone = store.removed_at.is_some() || self.group.destroyed;
            if !gone || store.evictor.is_some() || instance_of(self.cluster(), &store).is_some() {
                continue;
            }
            if let Some(volume) = volume_id(self.cluster(), &store)
                && self.cluster().volume(volume.as_str()).is_some()
            {
                self.plan.txn.put(Change::VolumeGone(volume));
            }
            self.plan.txn.put(Change::StoreGone(store.id));
        }
    }

    fn end_if_empty(&mut self) {
        if self.cluster().stores_of(self.group.name.as_str()).next().is_none() {
            let service = Service { removed: true, ..self.plan.service_rec().clone() };
            self.plan.txn.put(Change::Service(service));
            self.plan.txn.put(Change::StoreGroupGone(self.group.name.clone()));
        }
    }

    fn start_processes(&mut self) {
        for store in self.stores().into_iter().filter(|store| store.removed_at.is_none()) {
            let instance = instance_of(self.cluster(), &store);
            if let Some(instance) = instance.filter(|instance| !instance.is_over()) {
                let (id, node) = (instance.id, &self.cluster().node(instance.node).rec);
                if node.is_offline() {
                    let (since, message) = (node.health_since, format!("its home {} is offline", node.id));
                    self.plan.reason(Code::VolumeHomeNodeOffline, Some(id), Some(since), message.clone());
                    self.out.waits.insert(store.id, Wait::new(Code::VolumeHomeNodeOffline, message));
                }
                continue;
            }
            // One that never joined and is to go need not start for that.
            if store.offline.is_some() && store.identity.is_none() {
                continue;
            }
            if let Err(why) = process::ensure(&mut self.plan, &store, self.group.spec.movable.is_some()) {
                let code = self.plan.explain(why, 1);
                let wait = code.map(|code| Wait::new(code, "there is no place for its process"));
                self.out.waits.extend(wait.map(|wait| (store.id, wait)));
            }
        }
    }

    /// No other store of the group could take its leaders.
    fn is_alone(&self, store: &Store) -> bool {
        let mut others = self.cluster().stores_of(self.group.name.as_str());
        !others.any(|other| other.id != store.id && other.identity.is_some() && other.removed_at.is_none())
            && self.backend_is_ours()
    }

    /// No other group has the same backend.
    fn backend_is_ours(&self) -> bool {
        let same = |other: &&StoreGroup| {
            other.name != self.group.name && other.spec.backend == self.group.spec.backend
        };
        !self.cluster().store_groups().any(|other| same(&other))
    }

    fn is_hurried(&self, store: &Store) -> bool {
        let node = instance_of(self.cluster(), store).map(|instance| self.cluster().node(instance.node));
        node.is_some_and(|node| {
            let over = matches!(node.rec.intent, model::Intent::Drained | model::Intent::Stopping);
            over || node.drain.as_ref().is_some_and(|drain| drain.deadline_reached)
        })
    }

    /// One at a time begins to leave or restarts, and only while all the others are up: requests of all kinds share
    /// this one turn, so that they agree instead of fighting.
    fn held_up(&self, store: &Store) -> Option<Wait> {
        let of = || self.cluster().stores_of(self.group.name.as_str());
        let claims: Vec<(bool, bool, Time, u32, StoreId)> =
            of().filter_map(|other| self.claim(other)).collect();
        if let Some((active, .., id)) = claims.iter().min().filter(|(.., id)| *id != store.id) {
            let doing = if *active { "is on its way" } else { "is to begin" };
            return Some(Wait::new(Code::MaxParallel, format!("{id} of its group {doing} first")));
        }
        let down = of().find(|other| {
            let joined = other.identity.is_some() && other.offline.is_none() && other.removed_at.is_none();
            other.id != store.id
                && joined
                && !matches!(process_of(self.cluster(), other), Process::Ready { .. })
        });
        down.map(|other| {
            let message = format!("{} of its group is not available; one at a time", other.id);
            Wait::new(Code::StoreUnavailable, message)
        })
    }

    /// Who is on the way first, then who can begin, then who asked first.
    fn claim(&self, store: &Store) -> Option<(bool, bool, Time, u32, StoreId)> {
        let now = self.plan.now;
        let backs_off = store.trouble.as_ref().is_some_and(|trouble| trouble.next_try > now);
        let removing =
            self.seen.get(&store.id).and_then(|seen| seen.state.as_ref()).is_some_and(|state| match state {
                model::BackendState::Removing { .. } | model::BackendState::Removed => true,
                model::BackendState::Serving { .. } | model::BackendState::Unknown => false,
            });
        if store.removed_at.is_some() || store.identity.is_none() {
            return None;
        }
        let (active, since) = match (&store.offline, &store.restart) {
            // What is moving needs no turn any more.
            (Some(_), _)
                if store.removal.as_ref().is_some_and(|removal| removal.begun.is_some()) && removing =>
            {
                return None;
            }
            (Some(offline), _) => (store.removal.is_some(), offline.since),
            (None, Some(restart)) => {
                (restart.stopped_at.is_some() || store.evictor.is_some(), restart.began_at)
            }
            (None, None) => return None,
        };
        Some((!active, !active && backs_off, since, store.ordinal, store.id.clone()))
    }
}
