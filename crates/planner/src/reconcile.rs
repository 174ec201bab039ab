//! One service brought closer to what is asked of it: the one way in for everything that moves
//! instances, so that rollout, scaling and failures never work against each other.

use std::{collections::BTreeSet, sync::Arc};

use model::{
    Actual, Change, Cluster, Code, Desired, Instance, InstanceId, Intent, Kind, Millis, NodeIx, Reason,
    Scratch, Service, ServiceEntry, ServiceIx, ServiceSpec, Time, Txn,
};

use crate::{
    Ids, Placer, Wait,
    drain::{Leave, must_leave},
    place::{fits, short_by, why_not},
    rollout, scratch, slots, stateless, system,
};

/// Placements in one call: bounds how long one service can hold up the others.
pub const PLACEMENTS_PER_PLAN_MAX: usize = 4096;
/// Failures older than this are forgiven.
pub(crate) const FAILURE_WINDOW: Millis = Millis::secs(600);
/// The pause after the first failure; it doubles with each further one.
const BACKOFF_FIRST: Millis = Millis::secs(1);
const BACKOFF_MAX: Millis = Millis::secs(60);

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "what is not done carries its reason"]
pub struct Planned {
    /// Why the service is not as asked. Shown to the operator as it stands.
    pub reasons: Vec<Reason>,
    /// Nothing else happening, look again then.
    pub wake_at: Option<Time>,
    /// The limit of one call was reached: call again.
    pub more: bool,
    /// Something waits for room: look again when a node gets some.
    pub starved: bool,
}

/// Whether drains may begin to move anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drains {
    Go,
    /// What is on its way arrives; nothing else leaves a node for its drain's sake.
    Paused,
}

/// As [`reconcile_with`], with drains going on.
pub fn reconcile(txn: &mut Txn<'_>, ids: &mut Ids, service: ServiceIx) -> Planned {
    reconcile_with(txn, ids, service, Drains::Go)
}

/// Brings one service closer to what is asked.
pub fn reconcile_with(txn: &mut Txn<'_>, ids: &mut Ids, service: ServiceIx, drains: Drains) -> Planned {
    let Some(entry) = txn.service(service) else { return Planned::default() };
    let spec = entry.rec.spec().clone();
    let mut plan = Plan::new(txn, ids, service);
    plan.give_up_lost();
    plan.give_up_ended();
    if drains == Drains::Paused {
        let wanted = plan.instances().filter(|instance| instance.is_wanted());
        plan.moving = Some(wanted.filter_map(|instance| instance.replaces).collect());
    }
    if plan.service_rec().removed {
        plan.remove();
    } else if spec.kind == Kind::Store {
        // They are planned with their stores.
    } else if spec.kind == Kind::System {
        system::plan(&mut plan);
    } else if spec.has_slots() {
        slots::plan(&mut plan);
    } else {
        stateless::plan(&mut plan);
    }
    rollout::drop_unused_releases(&mut plan);
    plan.out
}

/// The work on one service, with what the kinds share.
pub(crate) struct Plan<'a, 'b> {
    pub txn: &'a mut Txn<'b>,
    ids: &'a mut Ids,
    pub service: ServiceIx,
    pub now: Time,
    placed: usize,
    pub out: Planned,
    /// While drains pause: those whose replacement is there or on its way.
    moving: Option<BTreeSet<InstanceId>>,
}

/// Why no instance was placed, beside [`Wait`].
pub(crate) enum NotPlaced {
    Wait(Wait),
    /// After failures, the next try is only due then.
    Backoff {
        code: Code,
        until: Time,
        failures: usize,
    },
    /// The limit of one call.
    Limit,
}

impl<'a, 'b> Plan<'a, 'b> {
    pub fn new(txn: &'a mut Txn<'b>, ids: &'a mut Ids, service: ServiceIx) -> Plan<'a, 'b> {
        let now = txn.now();
        Plan { txn, ids, service, now, placed: 0, out: Planned::default(), moving: None }
    }
}

impl Plan<'_, '_> {
    pub fn cluster(&self) -> &Cluster {
        self.txn
    }

    pub fn service_entry(&self) -> &ServiceEntry {
        // `reconcile` looked it up, and nothing here drops a service before it is done.
        self.txn.service(self.service).expect("the service is there while it is planned")
    }

    pub fn service_rec(&self) -> &Service {
        &self.service_entry().rec
    }

    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.txn.instances_of(self.service)
    }

    /// Those about which there may be something to decide: all but what is wanted, ready, of the
    /// release that is asked for and where it may stay.
    pub fn unsettled(&self) -> impl Iterator<Item = &Instance> {
        self.txn.unsettled_of(self.service)
    }

    pub fn wake_at(&mut self, at: Time) {
        self.out.wake_at = Some(self.out.wake_at.map_or(at, |other| other.min(at)));
    }

    pub fn reason(&mut self, code: Code, unit: Option<InstanceId>, since: Option<Time>, message: String) {
        let name = &self.service_rec().name;
        let unit = match unit {
            Some(id) => format!("instance/{}", id.named(name)),
            None => format!("service/{name}"),
        };
        self.out.reasons.push(Reason { code, unit, since, message });
    }

    /// Instances on offline nodes are lost, not moved. Stateful and system instances are left as they
    /// are: nobody may take their place before their node or an operator has spoken.
    fn give_up_lost(&mut self) {
        let rec = self.service_rec();
        if rec.spec().kind == Kind::System || rec.spec().is_stateful() {
            return;
        }
        let lost = self.unsettled().filter(|instance| {
            !instance.is_over()
                && instance.actual != Actual::Lost
                && self.txn.node(instance.node).rec.is_offline()
        });
        let lost: Vec<Instance> = lost.cloned().collect();
        for mut instance in lost {
            // It may have its data or not: nobody else is given that, but whoever follows says what is missing.
            if instance.awaits_scratch() {
                instance.scratch = instance.scratch.left();
            }
            leave(&mut instance);
            instance.actual = Actual::Lost;
            instance.reason = Some(Code::NodeUnreachable);
            self.txn.put(Change::Instance(instance));
        }
    }

    /// What ended by itself is not wanted back: should its node ever find it running, it is to stop. A
    /// batch instance that is done stays as it is; that is what says so.
    pub fn give_up_ended(&mut self) {
        let ended = self.unsettled().filter(|instance| {
            instance.is_over() && instance.desired == Desired::Running && !instance.is_complete()
        });
        let ended: Vec<Instance> = ended.cloned().collect();
        for mut instance in ended {
            instance.desired = Desired::Stopped;
            instance.order += 1;
            self.txn.put(Change::Instance(instance));
        }
    }

    /// Asks an instance to go: out of the edges' sets first, then its stop signal.
    pub fn retire(&mut self, id: InstanceId, reason: Option<Code>) {
        let Some(instance) = self.txn.instance(id) else { return };
        let mut instance = instance.clone();
        if instance.desired != Desired::Running {
            return;
        }
        // One that is given up for what is wrong with it leaves nothing worth taking.
        if reason.is_none() && scratch::leaves_some(self, &instance) {
            instance.scratch = instance.scratch.left();
        }
        leave(&mut instance);
        if let (Some(moving), Some(old)) = (&mut self.moving, instance.replaces) {
            moving.remove(&old);
        }
        instance.reason = reason.or(instance.reason);
        self.txn.put(Change::Instance(instance));
    }

    /// Lets up to `how_many` old instances go that are replaced in place, each only if its successor will
    /// find room where it was. Says what is missing otherwise: the old one keeps running.
    pub fn make_way(&mut self, old: impl Iterator<Item = InstanceId>, how_many: usize) -> Option<Code> {
        let spec = self.service_rec().spec().clone();
        let mut code = None;
        let mut gone = 0;
        for id in old {
            let Some(instance) = self.txn.instance(id).filter(|_| gone < how_many) else { continue };
            let node = self.txn.node(instance.node);
            let after = node.used.memory.saturating_sub(instance.memory).saturating_add(spec.memory);
            let short_by = after.saturating_sub(node.rec.capacity.memory);
            let wait = if !node.rec.satisfies(&spec.constraints) {
                Wait::constraints(&spec)
            } else if !node.may_place() {
                Wait::NoEligibleNode
            } else if short_by > 0 {
                Wait::NoCapacityMemory { needs: spec.memory, short_by, nodes: 1 }
            } else {
                self.retire(id, None);
                gone += 1;
                continue;
            };
            self.reason(wait.code(), Some(id), None, format!("its successor {}", wait.message()));
            self.out.starved = true;
            code = Some(wait.code());
        }
        code
    }

    /// Whether one more of this specification finds room, be it where this instance is once it has gone,
    /// after those that the service lacks already have found theirs.
    pub fn has_room_after(&self, id: InstanceId) -> bool {
        let rec = self.service_rec();
        let spec = rec.spec_of(rec.release_to_place());
        let instance = self.txn.instance(id);
        let wanted: u32 = self.txn.service(self.service).map_or(0, |entry| entry.on.values().sum());
        let needed = 1 + u64::from(rec.count.saturating_sub(wanted));
        let class = self.txn.place_index().class(&spec.constraints);
        let mut places = class.into_iter().flatten().scan(0, |places: &mut u64, node| {
            let freed = instance.filter(|i| i.node == node.ix).map_or(0, |i| i.memory);
            let node = self.txn.node(node.ix);
            let free = node.rec.capacity.memory.saturating_add(freed).saturating_sub(node.used.memory);
            *places = places.saturating_add(free / spec.memory.max(1));
            Some(*places)
        });
        places.any(|places| places >= needed)
    }

    /// Why one more of this service would find no place.
    pub fn no_room(&self) -> NotPlaced {
        let spec = self.service_rec().spec_of(self.service_rec().release_to_place());
        NotPlaced::Wait(why_not(self.txn, spec))
    }

    fn remove(&mut self) {
        let going: Vec<InstanceId> =
            self.instances().filter(|instance| !instance.is_over()).map(|instance| instance.id).collect();
        for id in going {
            self.retire(id, None);
        }
        // The last record goes when its node has cleared up.
        if self.instances().next().is_none() {
            let name = self.service_rec().name.clone();
            self.txn.put(Change::ServiceGone(name));
        }
    }

    /// Places up to `how_many` instances of a release; stops at the first that finds no place. `leaving` are
    /// the nodes of those that are to be replaced, be it by these or by others that are on their way.
    pub fn place(
        &mut self,
        release: u32,
        how_many: usize,
        replaces: &[InstanceId],
        leaving: &[NodeIx],
    ) -> Result<(), NotPlaced> {
        if how_many == 0 {
            return Ok(());
        }
        self.backoff(release, None)?;
        let spec = self.service_rec().spec_of(release).clone();
        let avoid = self.failed_lately(release);
        let leaving = leaving.iter().copied();
        let mut placer = Placer::new(self.txn, self.service, spec.clone(), avoid, leaving, how_many);
        for nth in 0..how_many {
            let node = placer.next(self.txn).map_err(NotPlaced::Wait)?;
            self.put_new(release, &spec, node, None, replaces.get(nth).copied())?;
        }
        Ok(())
    }

    /// Places one instance on a given node.
    pub fn place_on(&mut self, release: u32, node: NodeIx, slot: Option<u32>) -> Result<(), NotPlaced> {
        let spec = self.service_rec().spec_of(release).clone();
        if !self.txn.node(node).may_place() {
            return Err(NotPlaced::Wait(Wait::NoEligibleNode));
        }
        if !self.txn.node(node).rec.satisfies(&spec.constraints) {
            return Err(NotPlaced::Wait(Wait::constraints(&spec)));
        }
        if !fits(self.txn, node, &spec) {
            let short_by = short_by(self.txn, node, &spec);
            return Err(NotPlaced::Wait(Wait::NoCapacityMemory { needs: spec.memory, short_by, nodes: 1 }));
        }
        self.put_new(release, &spec, node, slot, None)
    }

    /// Whether a node may take one, and has room for it.
    pub fn fits_on(&self, release: u32, node: NodeIx) -> bool {
        let (spec, entry) = (self.service_rec().spec_of(release), self.txn.node(node));
        entry.may_place() && entry.rec.satisfies(&spec.constraints) && fits(self.txn, node, spec)
    }

    /// The node for one instance that is not bound to any.
    pub fn choose_node(&mut self, release: u32) -> Result<NodeIx, NotPlaced> {
        let spec = self.service_rec().spec_of(release).clone();
        let avoid = self.failed_lately(release);
        let none = std::iter::empty();
        Placer::new(self.txn, self.service, spec, avoid, none, 1).next(self.txn).map_err(NotPlaced::Wait)
    }

    fn put_new(
        &mut self,
        release: u32,
        spec: &Arc<ServiceSpec>,
        node: NodeIx,
        slot: Option<u32>,
        replaces: Option<InstanceId>,
    ) -> Result<(), NotPlaced> {
        if self.placed == PLACEMENTS_PER_PLAN_MAX {
            return Err(NotPlaced::Limit);
        }
        self.placed += 1;
        let id = self.ids.take(self.txn);
        let mut instance = Instance::new(id, self.service, node, release, spec, self.now);
        (instance.slot, instance.replaces) = (slot, replaces);
        let old = replaces.and_then(|old| self.txn.instance(old)).filter(|old| !old.is_wanted());
        if scratch::brings_it_along(spec) && old.is_some_and(|old| old.scratch.is_left()) {
            instance.scratch = Scratch::Takes;
        }
        self.txn.put(Change::Instance(instance));
        Ok(())
    }

    fn failures(&self, release: u32, slot: Option<u32>) -> impl Iterator<Item = (Time, NodeIx, Code)> {
        failures(self.service_entry(), self.now, release, slot)
    }

    fn failed_lately(&self, release: u32) -> BTreeSet<NodeIx> {
        self.failures(release, None).map(|(_, node, _)| node).collect()
    }

    /// After failures, placing again waits: 1 s, 2 s, 4 s, … so that a broken release does not thrash.
    pub fn backoff(&self, release: u32, slot: Option<u32>) -> Result<(), NotPlaced> {
        let (mut count, mut last) = (0, None);
        for (ended, _, code) in self.failures(release, slot) {
            count += 1;
            last = last.max(Some((ended, code)));
        }
        let Some((ended, code)) = last else { return Ok(()) };
        let pause = Millis(BACKOFF_FIRST.0 << (count - 1).min(10)).min(BACKOFF_MAX);
        let until = ended + pause;
        match self.now < until {
            true => Err(NotPlaced::Backoff { code, until, failures: count }),
            false => Ok(()),
        }
    }

    /// Turns "not placed" into a reason, a wake-up or another call. Returns the code, if it is one.
    pub fn explain(&mut self, why: NotPlaced, missing: usize) -> Option<Code> {
        match why {
            NotPlaced::Limit => {
                self.out.more = true;
                None
            }
            NotPlaced::Wait(wait) => {
                self.out.starved = true;
                let message = match missing {
                    0 | 1 => wait.message(),
                    _ => format!("{missing} instances wait: each {}", wait.message()),
                };
                self.reason(wait.code(), None, None, message);
                Some(wait.code())
            }
            NotPlaced::Backoff { code, until, failures } => {
                self.wake_at(until);
                let times = if failures == 1 { "once".to_owned() } else { format!("{failures} times") };
                let message = format!("failed {times} in the last 10m; tried again after a pause");
                self.reason(code, None, None, message);
                Some(code)
            }
        }
    }

    /// A check-less instance is ready at once and proven only later; nothing else happens then.
    pub fn wake_when_proven(&mut self) {
        let entry = self.service_entry();
        let held = |release: u32| entry.rec.spec_of(release).migrate.min_healthy_time;
        let due = entry.unsettled().filter(|instance| instance.is_available()).filter_map(|instance| {
            let at = instance.healthy_since? + held(instance.release);
            (at > self.now).then_some(at)
        });
        let settled = entry.settled.next_proven(self.now, held(entry.rec.release));
        if let Some(at) = due.chain(settled).min() {
            self.wake_at(at);
        }
    }

    /// Whether it must leave its node, and how.
    pub fn leave(&self, instance: &Instance) -> Leave {
        let leave = must_leave(self.txn, instance);
        let node = self.txn.node(instance.node);
        let by_drain = node.is_draining() && node.rec.intent != Intent::Disabled;
        match &self.moving {
            Some(moving) if by_drain && !moving.contains(&instance.id) => Leave::No,
            Some(_) | None => leave,
        }
    }
}

/// Instances of a release that failed lately; of one slot only, if given.
pub(crate) fn failures(
    entry: &ServiceEntry,
    now: Time,
    release: u32,
    slot: Option<u32>,
) -> impl Iterator<Item = (Time, NodeIx, Code)> {
    entry.unsettled().filter_map(move |instance| {
        let ended = instance.ended_at?;
        let failed = instance.actual == Actual::Failed || instance.reason == Some(Code::Unhealthy);
        let counts = instance.is_over()
            && failed
            && instance.release == release
            && (slot.is_none() || instance.slot == slot)
            && now.since(ended) < FAILURE_WINDOW;
        counts.then_some((ended, instance.node, instance.reason.unwrap_or(Code::CrashLooping)))
    })
}

/// Ready, and for as long as its specification asks.
pub(crate) fn is_proven(instance: &Instance, spec: &ServiceSpec, now: Time) -> bool {
    let held = instance.healthy_since.map(|since| now.since(since));
    instance.is_available() && held.is_some_and(|held| held >= spec.migrate.min_healthy_time)
}

fn leave(instance: &mut Instance) {
    if instance.desired == Desired::Running {
        instance.desired = Desired::Draining;
        instance.order += 1;
    }
}
