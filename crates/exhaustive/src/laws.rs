//! What must hold in the world itself, whatever anybody believes. What coordinators believe is for
//! `checker` to see.

use model::{Actual, Change, Desired, DrainState, Ending, Instance, InstanceId, Intent, Time};

use crate::world::{Daemon, Proc, Slot, World};

impl World {
    fn machine_of(&self, instance: &Instance) -> Option<usize> {
        let node = &self.store.mirror.node(instance.node).rec.id;
        (0..self.machines.len()).find(|at| World::name(*at) == node.as_str())
    }

    fn live_on(&self, machine: usize, id: InstanceId) -> Option<&Slot> {
        self.machines[machine].slots.get(&id).filter(|slot| slot.is_live())
    }

    /// A record is about to be stored, in place of what is known.
    pub fn check_committed(&mut self, change: &Change) {
        match change {
            Change::Instance(instance) => {
                let gave_up = instance.is_over() || instance.actual == Actual::Lost;
                if gave_up {
                    self.check_given_up(instance);
                }
            }
            Change::InstanceGone(id) => {
                if let Some(instance) = self.store.mirror.instance(*id).cloned() {
                    self.check_given_up(&Instance { actual: Actual::Stopped, ..instance });
                }
            }
            Change::Drain(drain) => {
                let known = self.store.mirror.drain(drain.epoch).cloned();
                if known.is_none() && drain.epoch <= self.newest_drain() {
                    self.fail(2, format!("drain {} is stored, and is not the newest", drain.epoch));
                }
                for part in &drain.nodes {
                    let before = known.as_ref().and_then(|known| known.part(part.node.as_str()));
                    let ends = before.is_none_or(|before| before.ending().is_none());
                    if ends && part.state == DrainState::Ended(Ending::Drained) {
                        self.check_drained(part.node.as_str());
                    }
                }
            }
            Change::Meta(_)
            | Change::Node(_)
            | Change::Service(_)
            | Change::ServiceGone(_)
            | Change::Volume(_)
            | Change::VolumeGone(_)
            | Change::Audit(_)
            | Change::AuditGone(_)
            | Change::DrainGone(_)
            | Change::Feed(_)
            | Change::FeedGone(_)
            | Change::StoreGroup(_)
            | Change::StoreGroupGone(_)
            | Change::Store(_)
            | Change::StoreGone(_)
            | Change::Token(_)
            | Change::TokenGone(_) => {}
        }
    }

    fn newest_drain(&self) -> u64 {
        self.store.mirror.drains().map(|drain| drain.epoch).max().unwrap_or(0)
    }

    /// The record says that nothing of it runs, or gives it up: then nothing may, where two would harm.
    fn check_given_up(&mut self, instance: &Instance) {
        let Some(machine) = self.machine_of(instance) else { return };
        let Some(slot) = self.live_on(machine, instance.id) else { return };
        let (id, fenced) = (instance.id, slot.run.spec.is_fenced());
        if instance.is_over() {
            let actual = instance.actual.as_str();
            self.fail(11, format!("{id} is recorded as {actual} and its process lives on n{machine}"));
        } else if fenced {
            self.fail(11, format!("{id} must not run twice, is given up and lives on n{machine}"));
        }
    }

    /// A node is drained when nothing of it runs and its edge sends nothing.
    fn check_drained(&mut self, node: &str) {
        for machine in (0..self.machines.len()).filter(|at| World::name(*at) == node) {
            if self.machines[machine].slots.values().any(Slot::is_live) {
                self.fail(6, format!("{node} is drained and a process lives on it"));
            }
            let leased = self.daemon(machine).filter(|daemon| daemon.lease_until > self.time());
            let serves = leased.and_then(|daemon| daemon.edge.as_ref());
            if serves.is_some_and(|edge| edge.withdrawal().is_none_or(|said| !said.done)) {
                self.fail(6, format!("{node} is drained and its edge serves"));
            }
        }
    }

    /// What a transaction made of a node's intent.
    pub fn check_intent(&mut self, old: &model::Node) {
        let mirror = &self.store.mirror;
        let Some(node) = mirror.node_by_id(old.id.as_str()).map(|entry| entry.rec.clone()) else { return };
        let last = mirror.last_drain_of(node.id.as_str()).and_then(|drain| drain.part(node.id.as_str()));
        let ending = last.and_then(|part| part.ending());
        let last_node = mirror.nodes().all(|(_, other)| other.rec.id == node.id || other.rec.is_offline());
        let enabled = self.config.budget.enables > 0;
        let may = match (old.intent, node.intent) {
            (Intent::Drained | Intent::Stopping, Intent::Active) => {
                last_node || enabled || ending == Some(Ending::Cancelled)
            }
            (Intent::Active, Intent::Drained) => {
                matches!(ending, Some(Ending::Drained | Ending::DrainedExcept | Ending::NodeLost))
            }
            (from, to) => from == to,
        };
        if !may {
            let (from, to) = (old.intent.as_str(), node.intent.as_str());
            self.fail(4, format!("{} went from {from} to {to}, and nothing says so", node.id));
        }
    }

    /// A process has started.
    pub fn check_start(&mut self, machine: usize, id: InstanceId) {
        let Some(spec) = self.live_on(machine, id).map(|slot| slot.run.spec.clone()) else { return };
        let record = self.store.mirror.instance(id);
        let given_up = record.is_none_or(|record| record.is_over() || record.actual == Actual::Lost);
        if given_up && spec.is_fenced() {
            let known = record.map_or("gone", |record| record.actual.as_str());
            self.fail(11, format!("{id} starts on n{machine}, and its record says {known}"));
        }
        let running = self.machines.iter().flat_map(|machine| machine.slots.values());
        let running = running.filter(|slot| slot.is_live()).count();
        if spec.is_fenced() && running > self.config.count as usize {
            self.fail(11, format!("{id} starts on n{machine}, and {running} run that must not run twice"));
        }
        let live = self.machines[machine].slots.values().filter(|slot| slot.is_live());
        let used: u64 = live.map(|slot| slot.run.spec.memory).sum();
        if used > 1000 {
            self.fail(1, format!("processes on n{machine} take {used} of 1000"));
        }
    }

    /// A live process is sent its stop signal: it was ordered, or the fence is over; and nobody who holds
    /// a lease sends anything there.
    pub fn check_stop(&mut self, machine: usize, id: InstanceId) {
        let now = self.time();
        let desired = self.store.mirror.instance(id).map(|instance| instance.desired);
        let lease = self.daemon(machine).map_or(Time(0), |daemon| daemon.lease_until);
        let Some(slot) = self.live_on(machine, id) else { return };
        let again = matches!(slot.process, Proc::Live { ending: true, .. });
        if desired != Some(Desired::Stopped) {
            if !slot.run.spec.is_fenced() || lease > now {
                self.fail(17, format!("n{machine} stops {id}, which is {desired:?} and behind no fence"));
            }
            return;
        }
        for at in 0..self.machines.len() {
            let Some(daemon) = self.daemon(at).filter(|daemon| daemon.lease_until > now) else { continue };
            if sends_to(daemon, id) {
                self.fail(15, format!("n{machine} stops {id}, and the edge on n{at} still sends there"));
            }
        }
        if !again {
            self.check_available_without(id);
        }
    }

    /// An edge that was not waited for opens its ports again: it sends nothing to what was told to stop.
    pub fn check_return(&mut self, machine: usize) {
        let now = self.time();
        let Some(daemon) = self.daemon(machine).filter(|daemon| daemon.lease_until > now) else { return };
        let stopping = self.machines.iter().flat_map(|machine| &machine.slots);
        let stopping = stopping.filter(|(_, slot)| matches!(slot.process, Proc::Live { ending: true, .. }));
        let stale = stopping.map(|(id, _)| *id).find(|id| sends_to(daemon, *id));
        if let Some(id) = stale {
            self.fail(15, format!("the edge on n{machine} comes back and sends to {id}, which is to stop"));
        }
    }

    /// With surge as many as asked for run on, unless a machine was harmed or the drain is past its
    /// deadline.
    fn check_available_without(&mut self, leaving: InstanceId) {
        let late = self.store.mirror.drains().flat_map(|drain| &drain.nodes);
        if self.harmed || !self.config.surge || late.into_iter().any(|part| part.deadline_reached) {
            return;
        }
        let all = self.machines.iter().flat_map(|machine| &machine.slots);
        let runs = |(id, slot): &(&InstanceId, &Slot)| {
            **id != leaving && matches!(slot.process, Proc::Live { ending: false, .. })
        };
        let left = all.filter(runs).count();
        if left < self.config.count as usize {
            self.fail(12, format!("{leaving} stops, and {left} of {} are left", self.config.count));
        }
    }
}

/// An edge that has withdrawn sends nothing, whatever sets it has.
fn sends_to(daemon: &Daemon, id: InstanceId) -> bool {
    let serves = daemon.edge.as_ref().filter(|edge| edge.withdrawal().is_none_or(|said| !said.done));
    let sets = serves.and_then(|edge| edge.sets());
    sets.is_some_and(|sets| {
        sets.sets.iter().flat_map(|set| &set.backends).any(|backend| backend.instance == id)
    })
}
