//! Stores in the world: backends of their own beside the cluster, that move leaders and data by themselves, are slow,
//! fail, lose answers and restart.
//!
//! A backend knows a store by the process that runs on its volume. What a call does happens at one moment on the way;
//! the answer comes later, or never: a coordinator may die between any two calls.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    BackendAnswer, BackendCall, BackendFailure, BackendRefusal, BackendSpec, BackendState, Code, Count,
    FailureKind, Kind, Millis, ServiceSpec, Store, StoreGroup, StoreGroupName, StoreGroupSpec, StoreId, Term,
    spec::{Disk, Migrate, Signal, Stop, Update, VolumeSpec},
};
use protocol::{
    coordinator::{ApplyStoreGroup, BackendOrder, Coordinator, Request, StoreAction},
    message::VolumeOrder,
};

use crate::{
    office::OfficeInput,
    rng::Rng,
    swarm::Swarm,
    workload::About,
    world::{Event, ToDaemon, World},
};

/// `red` is on movable volumes, and its backend wants to be told to forget.
const GROUPS: [&str; 2] = ["kv", "red"];
const DATA: u64 = 100;
const LEADERS: u64 = 20;
/// Milliseconds in which a leader moves, or a piece of data.
const LEADER_EVERY: u64 = 40;
const DATA_EVERY: u64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    Removing,
    Removed,
}

#[derive(Clone, Debug)]
struct Member {
    address: String,
    stage: Stage,
    leaders: u64,
    data: u64,
    ours: bool,
    theirs: bool,
    /// Until when it has been played.
    at: u64,
}

#[derive(Clone, Debug)]
struct SimBackend {
    members: BTreeMap<u32, Member>,
    needed: u64,
    down_until: u64,
    /// Just after a restart its counts are too low.
    unsure_until: u64,
}

#[derive(Default)]
pub struct StoreWorld {
    backends: BTreeMap<&'static str, SimBackend>,
}

impl Swarm {
    /// Stores are drawn apart, so that seeds without them stay what they were.
    pub fn draw_stores(&mut self, rng: &mut Rng) {
        if rng.chance(400) {
            self.stores = rng.between(100, 500);
        }
    }
}

fn group_of(name: &str) -> Option<&'static str> {
    GROUPS.into_iter().find(|group| *group == name)
}

/// `kv/3` in the backend is `kv-3` here.
fn ordinal_of(identity: &str) -> Option<u32> {
    identity.rsplit_once('/')?.1.parse().ok()
}

fn fail(kind: FailureKind) -> Result<BackendAnswer, BackendFailure> {
    Err(BackendFailure { kind, words: "in its own words".to_owned() })
}

impl World {
    pub fn draw_store_request(&mut self) -> (About, Request) {
        let group = self.rng.pick(&GROUPS).copied().unwrap_or("kv");
        let needed = self.stores.backends.get(group).map_or(1, |backend| backend.needed);
        let replicas = (needed + self.rng.below(3)) as u32;
        let name = StoreGroupName::new(group);
        if self.rng.chance(80) {
            self.meddle(group);
        }
        let request = match self.rng.below(100) {
            0..25 => self.draw_group(group),
            25..50 => {
                self.cover.hit("store group scaled");
                Request::SetReplicas { group: name, replicas }
            }
            50..97 => {
                let stores: Vec<String> =
                    self.mirror.stores_of(group).map(|store| store.id.to_string()).collect();
                let actions = [
                    StoreAction::Mark,
                    StoreAction::Unmark,
                    StoreAction::Restart,
                    StoreAction::Restart,
                    StoreAction::CancelRestart,
                    StoreAction::EvictLeader,
                    StoreAction::CancelEvictLeader,
                ];
                let action = self.rng.pick(&actions).copied().unwrap_or(StoreAction::Mark);
                match self.rng.pick(&stores).cloned() {
                    Some(store) => Request::Store { store, action },
                    None => Request::Barrier,
                }
            }
            _ => {
                self.cover.hit("store group destroyed");
                Request::RemoveStoreGroup { group: name, destroy_data: true }
            }
        };
        (About::Other, request)
    }

    fn draw_group(&mut self, group: &'static str) -> Request {
        self.cover.hit("store group applied");
        let needed = match self.stores.backends.get(group) {
            Some(backend) => backend.needed,
            None => self.rng.between(1, 2),
        };
        let blank = SimBackend { members: BTreeMap::new(), needed, down_until: 0, unsure_until: 0 };
        self.stores.backends.entry(group).or_insert(blank);
        let replicas = (needed + self.rng.below(3)) as u32;
        let deadline = Millis::secs(20);
        let process = ServiceSpec {
            kind: Kind::Store,
            command: vec!["/bin/true".to_owned()],
            env: BTreeMap::from([("MARK".to_owned(), self.rng.below(2).to_string())]),
            memory: 40,
            cpu: 100,
            ports: vec!["kv".to_owned()],
            check: None,
            edge: None,
            stop: Stop { signal: Signal::Term, grace: Millis(2000) },
            migrate: Migrate {
                max_parallel: 1,
                min_healthy_time: Millis(0),
                healthy_deadline: deadline,
                surge: true,
            },
            update: Update { max_parallel: 1, healthy_deadline: deadline, surge: true },
            volume: Some(VolumeSpec { name: "data".to_owned() }),
            disk: Disk::default(),
            rerun: true,
            constraints: BTreeMap::new(),
        };
        let spec = StoreGroupSpec {
            backend: BackendSpec::Command { command: vec![group.to_owned()] },
            port: "kv".to_owned(),
            movable: (group == "red").then(|| "/mnt".to_owned()),
            max_eviction: Millis(4000),
            topology: None,
        };
        let apply = ApplyStoreGroup {
            name: StoreGroupName::new(group),
            replicas: Some(replicas),
            spec: Arc::new(spec),
            process: Arc::new(process),
        };
        Request::Apply { services: Vec::new(), feeds: Vec::new(), groups: vec![apply] }
    }

    /// People act on the backend behind our back; it restarts.
    fn meddle(&mut self, group: &'static str) {
        let now = self.now;
        let (what, down) = (self.rng.below(4), self.rng.between(500, 6000));
        let Some(backend) = self.stores.backends.get_mut(group) else { return };
        let ordinals: Vec<u32> = backend.members.keys().copied().collect();
        let Some(ordinal) = self.rng.pick(&ordinals).copied() else { return };
        let serving = backend.members.values().filter(|member| member.stage == Stage::Serving).count() as u64;
        let needed = backend.needed;
        let Some(member) = backend.members.get_mut(&ordinal) else { return };
        let said = match what {
            0 => {
                member.theirs = !member.theirs;
                "has an evictor of somebody else's, or loses it"
            }
            1 if member.stage == Stage::Serving && serving > needed + 1 => {
                member.stage = Stage::Removing;
                "is taken out by somebody else"
            }
            _ => {
                (backend.down_until, backend.unsure_until) = (now + down, now + down + 2000);
                "and the whole backend restarts"
            }
        };
        self.cover.hit("backend meddled with");
        self.say(format!("{group}/{ordinal} {said}"));
    }

    /// Everything in a backend goes on by itself until now.
    fn work_on_group(&mut self, group: &'static str) {
        let mut live: BTreeMap<u32, String> = BTreeMap::new();
        for machine in &self.machines {
            for slot in machine.slots.values().filter(|slot| slot.run.service.as_str() == group) {
                if let (Some(process), Some(ordinal)) = (slot.live(), slot.run.slot) {
                    let port = process.ports.first().copied().unwrap_or(0);
                    live.insert(ordinal, format!("{}:{port}", machine.id));
                }
            }
        }
        let now = self.now;
        let Some(backend) = self.stores.backends.get_mut(group) else { return };
        for (ordinal, address) in &live {
            let fresh = Member {
                address: address.clone(),
                stage: Stage::Serving,
                leaders: 0,
                data: 0,
                ours: false,
                theirs: false,
                at: now,
            };
            backend.members.entry(*ordinal).or_insert(fresh).address = address.clone();
        }
        for (ordinal, member) in &mut backend.members {
            let passed = now.saturating_sub(member.at);
            let (leaders, data) = (passed / LEADER_EVERY, passed / DATA_EVERY);
            if leaders == 0 || data == 0 {
                continue;
            }
            member.at = now;
            let away = member.ours || member.theirs || member.stage != Stage::Serving;
            member.leaders = match (live.contains_key(ordinal), away) {
                (false, _) => 0,
                (true, true) => member.leaders.saturating_sub(leaders),
                (true, false) => (member.leaders + leaders).min(LEADERS),
            };
            match member.stage {
                Stage::Serving => member.data = (member.data + data).min(DATA),
                Stage::Removing => member.data = member.data.saturating_sub(data),
                Stage::Removed => {}
            }
            if member.stage == Stage::Removing && member.data == 0 && member.leaders == 0 && group == "kv" {
                member.stage = Stage::Removed;
            }
        }
    }

    pub fn backend_asked(&mut self, machine: usize, order: BackendOrder) {
        let Some(term) = self.tenure(machine).map(|tenure| tenure.term) else { return };
        let life = self.machines[machine].life;
        let delay = self.rng.between(1, 100);
        self.say(format!("m{machine} asks {}: {:?}", order.group, order.call));
        self.after(delay, Event::Backend { machine, life, term, order: Box::new(order) });
    }

    /// A call arrives, or not: it is cut off when its time is over, and some were never sent.
    pub fn backend_reached(&mut self, machine: usize, life: u64, term: Term, order: BackendOrder) {
        let here = &self.machines[machine];
        let alive = here.life == life && here.daemon.is_some() && !here.paused && !here.suspended;
        let late = self.now > self.global(machine, order.until);
        if late || (!alive && self.rng.chance(500)) {
            return;
        }
        let Some(group) = group_of(order.group.as_str()) else { return };
        self.work_on_group(group);
        let result = self.backend_answers(group, &order);
        let delay = match !self.calm && self.rng.chance(40) {
            true => self.rng.between(2000, 9000),
            false => self.rng.between(1, 300),
        };
        if !self.calm && self.rng.chance(30) {
            self.cover.hit("backend answer lost");
            return;
        }
        if self.machines[machine].life == life {
            let input = OfficeInput::Backend { term, call: order.id, result };
            self.tell_daemon(delay, machine, ToDaemon::Office(input));
        }
    }

    fn backend_answers(
        &mut self,
        group: &'static str,
        order: &BackendOrder,
    ) -> Result<BackendAnswer, BackendFailure> {
        let kinds = [FailureKind::Unreachable, FailureKind::Refused, FailureKind::Unreachable];
        let kind = self.rng.pick(&kinds).copied().unwrap_or(FailureKind::Unreachable);
        if !self.calm && self.rng.chance(40) {
            self.cover.hit("backend call failed");
            return fail(kind);
        }
        let now = self.now;
        let (down, sure) = match self.stores.backends.get(group) {
            Some(backend) => (now < backend.down_until, now >= backend.unsure_until),
            None => return fail(FailureKind::Unreachable),
        };
        if down {
            return fail(FailureKind::Unreachable);
        }
        self.check_call(group, order);
        let Some(backend) = self.stores.backends.get_mut(group) else {
            return fail(FailureKind::Unreachable);
        };
        let serving = backend.members.values().filter(|member| member.stage == Stage::Serving).count() as u64;
        let needed = backend.needed;
        let identity = |ordinal: &u32| format!("{group}/{ordinal}");
        let store = match &order.call {
            BackendCall::Replicas => return Ok(BackendAnswer::Replicas(needed)),
            BackendCall::Members => {
                let there = backend.members.iter().filter(|(_, member)| member.stage != Stage::Removed);
                let members = there.map(|(ordinal, member)| (member.address.clone(), identity(ordinal)));
                return Ok(BackendAnswer::Members(members.collect()));
            }
            BackendCall::Identify { address } => {
                let there = |member: &Member| member.address == *address && member.stage != Stage::Removed;
                let found = backend.members.iter().find(|(_, member)| there(member));
                return match found {
                    Some((ordinal, _)) => Ok(BackendAnswer::Identity(identity(ordinal))),
                    None => fail(FailureKind::NotFound),
                };
            }
            BackendCall::State { store, .. }
            | BackendCall::Evictors { store }
            | BackendCall::Preflight { store }
            | BackendCall::EvictLeaders { store, .. }
            | BackendCall::BeginOffline { store, .. }
            | BackendCall::CancelOffline { store, .. }
            | BackendCall::Forget { store } => store,
        };
        let member = ordinal_of(store).and_then(|ordinal| backend.members.get_mut(&ordinal));
        let Some(member) = member else { return fail(FailureKind::NotFound) };
        let answer = member.does(&order.call, (sure, serving, needed), group == "red");
        if let (BackendCall::BeginOffline { .. }, Ok(_)) = (&order.call, &answer) {
            self.cover.hit("store began to leave");
        }
        answer
    }

    /// What must hold when a call arrives.
    fn check_call(&mut self, group: &'static str, order: &BackendOrder) {
        let Some(backend) = self.stores.backends.get(group) else { return };
        let store = order.store.as_ref().and_then(|id| self.mirror.store(id.as_str()));
        let member = |identity: &str| ordinal_of(identity).and_then(|ordinal| backend.members.get(&ordinal));
        let serving = backend.members.values().filter(|member| member.stage == Stage::Serving).count() as u64;
        let needed = backend.needed;
        let wrong = match &order.call {
            BackendCall::EvictLeaders { store: identity, on: true, .. } => {
                let recorded = store.is_some_and(|store| store.evictor.is_some());
                (!recorded)
                    .then(|| (14, format!("an evictor for {identity} is added that nobody wrote down")))
            }
            BackendCall::BeginOffline { store: identity, .. } => {
                let serves = member(identity).is_some_and(|member| member.stage == Stage::Serving);
                (serves && serving <= needed)
                    .then(|| (16, format!("{identity} leaves, {serving} serve and {needed} are needed")))
            }
            BackendCall::Forget { store: identity } => {
                let written =
                    store.and_then(|store| store.removal.as_ref()).is_some_and(|removal| removal.forgetting);
                (!written).then(|| (16, format!("{identity} is forgotten and nobody wrote that down")))
            }
            BackendCall::Replicas
            | BackendCall::Members
            | BackendCall::Identify { .. }
            | BackendCall::State { .. }
            | BackendCall::Evictors { .. }
            | BackendCall::Preflight { .. }
            | BackendCall::EvictLeaders { on: false, .. }
            | BackendCall::CancelOffline { .. } => None,
        };
        if let Some((invariant, what)) = wrong {
            self.fail(invariant, what);
        }
    }

    /// The data of a store goes for good.
    pub fn destroyed_volume(&mut self, machine: usize, volume: &VolumeOrder) {
        self.cover.hit("volume destroyed");
        self.say(format!("m{machine} destroys volume {}", volume.id));
        let Some((name, ordinal)) = volume.id.as_str().split_once("-data-") else { return };
        let (Some(group), Ok(ordinal)) = (group_of(name), ordinal.parse::<u32>()) else { return };
        let destroyed = self.mirror.store_group(name).is_none_or(|group| group.destroyed);
        let Some(backend) = self.stores.backends.get_mut(group) else { return };
        let stage = backend.members.get(&ordinal).map(|member| member.stage);
        backend.members.remove(&ordinal);
        if !destroyed && stage.is_some_and(|stage| stage != Stage::Removed) {
            self.fail(
                16,
                format!("the volume of {name}-{ordinal} is destroyed, and its backend has it as {stage:?}"),
            );
        }
    }

    pub fn check_store_gone(&mut self, id: &StoreId) {
        let Some(store) = self.mirror.store(id.as_str()).cloned() else { return };
        let destroyed = self.mirror.store_group(store.group.as_str()).is_none_or(|group| group.destroyed);
        // One that never joined may be removed and gone in one transaction.
        let Some(identity) = store.identity.as_ref().filter(|_| !destroyed) else { return };
        // One whose process has ended already may be removed and gone in one transaction as well.
        let service = self.mirror.service_ix(store.group.as_str());
        let processes = service.into_iter().flat_map(|service| self.mirror.instances_of(service));
        let runs = processes.into_iter().any(|it| it.slot == Some(store.ordinal) && !it.is_over());
        if store.removed_at.is_none() && runs {
            self.fail(16, format!("{id} is gone, and its backend never said that it was removed"));
        }
        let backend = group_of(store.group.as_str()).and_then(|group| self.stores.backends.get(group));
        let member = ordinal_of(identity).and_then(|ordinal| backend?.members.get(&ordinal));
        if member.is_some_and(|member| member.stage != Stage::Removed) {
            self.fail(16, format!("{id} is gone, and its backend still has it"));
        }
    }

    pub fn check_store_group(&mut self, group: &StoreGroup) {
        let before = self.mirror.store_group(group.name.as_str());
        if before.is_some_and(|before| before.next_ordinal > group.next_ordinal) {
            self.fail(16, format!("ordinals of {} are used again", group.name));
        }
    }

    /// A change of a store's record is committed.
    pub fn check_store(&mut self, store: &Store) {
        let before = self.mirror.store(store.id.as_str()).cloned();
        let stopped = |store: &Store| store.restart.as_ref().and_then(|restart| restart.stopped_at);
        if store.removed_at.is_some() && before.as_ref().is_some_and(|before| before.removed_at.is_none()) {
            self.cover.hit("store removed");
        }
        if store.cancelled_at.is_some() && before.as_ref().is_some_and(|before| before.cancelled_at.is_none())
        {
            self.cover.hit("store rescued");
        }
        if before.as_ref().is_some_and(|before| before.restart.is_some()) && store.restart.is_none() {
            self.cover.hit("store restarted, or that was cancelled");
        }
        // What never joined takes nothing from anybody.
        if stopped(store).is_none() || before.as_ref().and_then(stopped).is_some() || store.identity.is_none()
        {
            return;
        }
        let others = self.mirror.stores_of(store.group.as_str());
        let others = others.filter(|other| other.id != store.id && other.identity.is_some());
        let down = others.filter(|other| stopped(other).is_some()).map(|other| other.id.clone()).next();
        if let Some(other) = down {
            self.fail(16, format!("{} and {other} restart at the same time", store.id));
        }
        self.check_leaders_gone(store);
    }

    /// A process that is told to stop once its leaders were kept away leads nothing, by the backend's own truth. One that
    /// is down when that is decided has none to be kept away, and may come up in just that moment.
    fn check_leaders_gone(&mut self, store: &Store) {
        let Some(group) = group_of(store.group.as_str()).filter(|_| store.evictor.is_some()) else { return };
        self.work_on_group(group);
        let there = |other: &Store| other.identity.is_some() && other.removed_at.is_none();
        let alone = !self.mirror.stores_of(group).any(|other| other.id != store.id && there(other));
        let process = store.restart.as_ref().and_then(|restart| self.mirror.instance(restart.instance?));
        let hurried = process.is_none_or(|process| {
            let node = self.mirror.node(process.node);
            let late = node.drain.as_ref().is_some_and(|drain| drain.deadline_reached);
            late || node.is_closed() && node.drain.is_none() || process.actual != model::Actual::Ready
        });
        let leaders = self.stores.backends.get(group).and_then(|backend| backend.members.get(&store.ordinal));
        let leaders = leaders.map_or(0, |member| member.leaders);
        if leaders > 0 && !alone && !hurried {
            self.fail(16, format!("{} is stopped to be restarted, with {leaders} leaders", store.id));
        }
    }

    pub fn heal_backends(&mut self) {
        for backend in self.stores.backends.values_mut() {
            (backend.down_until, backend.unsure_until) = (0, 0);
            for member in backend.members.values_mut() {
                member.theirs = false;
            }
        }
    }

    /// Every store is as asked, or waits for something that is really so.
    pub fn stores_are_wrong(&self, coordinator: &Coordinator) -> Option<String> {
        let cluster = coordinator.cluster();
        for group in cluster.store_groups() {
            let name = &group.name;
            if group.destroyed {
                return Some(format!("{name} is still being destroyed"));
            }
            if group_waits(coordinator, name.as_str()) {
                continue;
            }
            let stores: Vec<&Store> = cluster.stores_of(name.as_str()).collect();
            if stores.len() != group.replicas as usize {
                return Some(format!("{} stores of {name}, not {}", stores.len(), group.replicas));
            }
            let backend = group_of(name.as_str()).and_then(|group| self.stores.backends.get(group))?;
            for store in stores {
                let member = backend.members.get(&store.ordinal);
                if !member.is_some_and(|member| member.stage == Stage::Serving) {
                    return Some(format!(
                        "{} is {:?} in its backend",
                        store.id,
                        member.map(|member| member.stage)
                    ));
                }
                let unasked = Store { evict: None, evictor: None, ..store.clone() };
                if unasked.is_busy() {
                    return Some(format!("{} is busy: {store:?}", store.id));
                }
            }
        }
        None
    }

    /// What of ours is in a backend has its reason, whatever else is wrong.
    pub fn evictors_are_wrong(&self, coordinator: &Coordinator) -> Option<String> {
        for (group, backend) in &self.stores.backends {
            for (ordinal, member) in backend.members.iter().filter(|(_, member)| member.ours) {
                let store = coordinator.cluster().store(&format!("{group}-{ordinal}"));
                let reason =
                    store.is_some_and(|s| s.evict.is_some() || s.restart.is_some() || s.offline.is_some());
                if !reason && member.stage != Stage::Removed {
                    return Some(format!("an evictor of ours on {group}/{ordinal} has outlived its reason"));
                }
            }
        }
        None
    }
}

impl Member {
    fn does(
        &mut self,
        call: &BackendCall,
        (sure, serving, needed): (bool, u64, u64),
        forgets: bool,
    ) -> Result<BackendAnswer, BackendFailure> {
        let leaders = Count { value: if sure { self.leaders } else { 0 }, complete: sure };
        match call {
            BackendCall::State { removal, .. } => Ok(BackendAnswer::State(match self.stage {
                Stage::Removed => BackendState::Removed,
                // It has no word for it but the memo's.
                Stage::Serving if forgets && removal.is_some() => {
                    BackendState::Removing { leaders, data_left: self.data, progress: 0.0 }
                }
                Stage::Serving => BackendState::Serving { leaders, data: self.data },
                Stage::Removing => BackendState::Removing { leaders, data_left: self.data, progress: 0.5 },
            })),
            BackendCall::Evictors { .. } => {
                let names = [(self.ours, "ours"), (self.theirs, "theirs")];
                let names =
                    names.iter().filter(|(there, _)| *there).map(|(_, name)| (*name).to_owned()).collect();
                Ok(BackendAnswer::Evictors { names, memo: "evictors".to_owned() })
            }
            BackendCall::Preflight { .. } if self.stage == Stage::Serving && serving <= needed => {
                let refusal = BackendRefusal::TooFewReplicas { left: serving.saturating_sub(1), needed };
                Ok(BackendAnswer::Refused(refusal))
            }
            BackendCall::Preflight { .. } => Ok(BackendAnswer::Possible { memo: "preflight".to_owned() }),
            BackendCall::EvictLeaders { on, .. } => {
                self.ours = *on;
                Ok(BackendAnswer::Done)
            }
            BackendCall::BeginOffline { .. } => {
                if self.stage == Stage::Serving {
                    self.stage = Stage::Removing;
                }
                let complete = self.stage == Stage::Removed || (forgets && self.data == 0);
                Ok(BackendAnswer::Moved { complete })
            }
            BackendCall::CancelOffline { .. } if self.stage == Stage::Removed => {
                fail(FailureKind::NotPossible)
            }
            BackendCall::CancelOffline { .. } => {
                self.stage = Stage::Serving;
                Ok(BackendAnswer::Moved { complete: true })
            }
            BackendCall::Forget { .. } if self.stage == Stage::Serving || self.data > 0 => {
                fail(FailureKind::NotPossible)
            }
            BackendCall::Forget { .. } => {
                self.stage = Stage::Removed;
                Ok(BackendAnswer::Done)
            }
            BackendCall::Replicas | BackendCall::Members | BackendCall::Identify { .. } => {
                fail(FailureKind::NotPossible)
            }
        }
    }
}

/// Something of the group finds no place, or is where nothing may be started.
pub fn group_waits(coordinator: &Coordinator, group: &str) -> bool {
    let Some(ix) = coordinator.cluster().service_ix(group) else { return false };
    coordinator.reasons(ix).iter().any(|reason| {
        matches!(
            reason.code,
            Code::NoCapacityMemory
                | Code::NoEligibleNode
                | Code::ConstraintUnsatisfied
                | Code::VolumeLocal
                | Code::VolumeHomeNodeOffline
        )
    })
}
