//! What must hold in the world itself, whatever anybody believes: processes, memory, the store.

use checker::check;
use model::{Actual, Change, Code, Desired, Instance, InstanceId, RolloutState, Term, decode_record};
use protocol::coordinator::Op;

use crate::{marks::codes_shown, world::World};

impl World {
    fn machine_of(&self, instance: &Instance) -> Option<usize> {
        let node = &self.mirror.node(instance.node).rec.id;
        (0..self.machines.len()).find(|at| self.machines[*at].id == *node)
    }

    /// Its process lives and does something: a suspended machine does nothing.
    fn lives(&self, machine: usize, id: InstanceId) -> bool {
        let here = &self.machines[machine];
        !here.suspended && here.slots.get(&id).is_some_and(|slot| slot.live().is_some())
    }

    /// Streams keep what they are given, in order. An edge whose lease had run out was not waited for; on
    /// such a stream it has the sets of today before it has a lease again, on another it may lack them.
    fn is_reliable(&self) -> bool {
        let net = &self.swarm.net;
        net.loss == 0 && net.reorder == 0 && net.sets_lost == 0
    }

    /// A transaction is in the store.
    pub fn committed(&mut self, term: Term, head: u64, ops: &[Op]) {
        if term < self.store.head_term {
            self.fail(14, format!("a write of term {term} follows one of term {}", self.store.head_term));
        }
        self.store.apply(term, head, ops);
        let mut nodes = Vec::new();
        if ops.iter().any(|(key, _)| key.starts_with("n/")) {
            self.returning = self.nodes_that_return();
        }
        for (key, value) in ops {
            let change = match decode_record(&self.mirror, key, value.as_deref()) {
                Ok(change) => change,
                Err(error) => return self.fail(14, format!("what was written cannot be read: {error}")),
            };
            self.mark_change(&change);
            self.check_committed(&change);
            self.note_scratch(&change);
            if let Change::Node(node) = &change {
                nodes.extend(self.mirror.node_by_id(node.id.as_str()).map(|entry| entry.rec.clone()));
            }
            self.mirror.apply(&change);
        }
        // Records of a transaction come in any order.
        for old in nodes {
            self.check_intent_change(&old);
        }
        self.drain_ended.clear();
        self.note_closed();
        self.check_who_leads();
        self.say(format!("committed {head} of term {term}: {} records", ops.len()));
        if self.time_to_check() {
            for violation in check(&self.mirror) {
                self.fail(violation.invariant(), format!("in the store: {violation}"));
            }
        }
    }

    fn check_committed(&mut self, change: &Change) {
        match change {
            Change::Instance(instance) => {
                let gave_up = instance.is_over() || instance.actual == Actual::Lost;
                self.cover_instance(instance);
                if instance.desired == Desired::Stopped {
                    self.stop_decided.entry(instance.id).or_insert(self.now);
                }
                if gave_up {
                    self.check_given_up(&instance.clone());
                }
            }
            Change::InstanceGone(id) => {
                if let Some(instance) = self.mirror.instance(*id).cloned() {
                    self.check_given_up(&Instance { actual: Actual::Stopped, ..instance });
                }
            }
            // What operators expect of those is said of their group.
            Change::Service(service) if service.spec().kind == model::Kind::Store => {}
            Change::Service(service) => self.check_expected(&service.name, Some(service)),
            Change::ServiceGone(name) => self.check_expected(name, None),
            Change::Node(node) => {
                self.check_intent(node);
                self.check_goodbye(node);
            }
            Change::Drain(drain) => self.check_drain(drain),
            Change::Feed(feed) => self.check_feed(feed),
            Change::Audit(entry) if entry.who == "system:last_node" => self.cover.hit("last node reopened"),
            Change::Meta(_)
            | Change::Volume(_)
            | Change::VolumeGone(_)
            | Change::Audit(_)
            | Change::AuditGone(_)
            | Change::DrainGone(_)
            | Change::FeedGone(_)
            | Change::StoreGroupGone(_)
            | Change::Token(_)
            | Change::TokenGone(_) => {}
            Change::StoreGroup(group) => self.check_store_group(group),
            Change::Store(store) => self.check_store(store),
            Change::StoreGone(id) => self.check_store_gone(id),
        }
    }

    fn cover_instance(&mut self, instance: &Instance) {
        self.cover_balance(instance);
        match instance.actual {
            Actual::Lost => self.cover.hit("instance lost"),
            Actual::Failed if instance.reason == Some(Code::CrashLooping) => self.cover.hit("crash looping"),
            _ => {}
        }
        let spec = self.mirror.service(instance.service).map(|entry| entry.rec.spec().clone());
        if spec.as_ref().is_some_and(|spec| spec.is_stateful()) {
            self.cover.hit("stateful placed");
        }
        if spec.is_some_and(|spec| spec.kind == model::Kind::System) && instance.actual == Actual::Ready {
            self.cover.hit("system ready");
        }
    }

    /// The record says that nothing of it runs, or gives it up: then nothing may, where two would harm.
    fn check_given_up(&mut self, instance: &Instance) {
        let Some(machine) = self.machine_of(instance) else { return };
        if !self.lives(machine, instance.id) {
            return;
        }
        let fenced =
            self.machines[machine].slots.get(&instance.id).is_some_and(|slot| slot.run.spec.is_fenced());
        if instance.is_over() {
            let (id, actual) = (instance.id, instance.actual.as_str());
            self.fail(11, format!("{id} is recorded as {actual} and its process lives on m{machine}"));
        } else if fenced {
            let id = instance.id;
            self.fail(11, format!("{id} must not run twice, is given up and lives on m{machine}"));
        }
    }

    /// A process has started.
    pub fn check_start(&mut self, machine: usize, id: InstanceId) {
        let Some(slot) = self.machines[machine].slots.get(&id) else { return };
        let (run, spec) = (slot.run.clone(), slot.run.spec.clone());
        let record = self.mirror.instance(id);
        let given_up = record.is_none_or(|record| record.is_over() || record.actual == Actual::Lost);
        if given_up && (spec.is_fenced() || spec.is_stateful()) {
            let known = record.map_or("gone", |record| record.actual.as_str());
            self.fail(11, format!("{id} starts on m{machine}, and its record says {known}"));
        }
        for other in 0..self.machines.len() {
            let twin = self.machines[other].slots.iter().find(|(twin, slot)| {
                let same = run.volume.is_some()
                    && slot.run.volume.as_ref().map(|v| &v.id) == run.volume.as_ref().map(|v| &v.id);
                **twin != id && same && self.lives(other, **twin)
            });
            if let Some((twin, _)) = twin {
                let twin = *twin;
                self.fail(
                    11,
                    format!("{id} starts on m{machine}, {twin} lives on m{other} on the same volume"),
                );
            }
        }
        let here = &self.machines[machine];
        let used: u64 =
            here.slots.values().filter(|slot| slot.live().is_some()).map(|slot| slot.run.spec.memory).sum();
        if used > here.capacity_max {
            let capacity = here.capacity_max;
            self.fail(1, format!("processes on m{machine} take {used} of {capacity}"));
        }
    }

    /// A live process is sent its stop signal: it was ordered, or the fence is over.
    pub fn check_stop(&mut self, machine: usize, id: InstanceId) {
        let desired = self.mirror.instance(id).map(|instance| instance.desired);
        let daemon = self.machines[machine].daemon.as_ref();
        let (lease_until, leased_since) =
            daemon.map_or((0, 0), |daemon| (daemon.lease_until, daemon.leased_since));
        let Some(slot) = self.machines[machine].slots.get_mut(&id) else { return };
        // What was being launched when the fence came is stopped as soon as it runs.
        let over = lease_until <= self.now || leased_since >= slot.launched_at;
        let fenced = slot.run.spec.is_fenced() && over;
        if desired != Some(Desired::Stopped) {
            if fenced {
                self.cover.hit("fence fired in the daemon");
            } else {
                self.fail(17, format!("m{machine} stops {id}, which is {desired:?} and behind no fence"));
            }
            return;
        }
        if let crate::process::State::Live(live) = &mut slot.state {
            live.told_to_stop = true;
        }
        let decided_at = self.stop_decided.get(&id).copied().unwrap_or(self.now);
        for edge in 0..self.machines.len() {
            let Some(daemon) = self.machines[edge].daemon.as_ref() else { continue };
            // One that has withdrawn sends nothing, whatever sets it has.
            let serves = daemon.edge.as_ref().filter(|e| e.withdrawal().is_none_or(|said| !said.done));
            let sets = serves.and_then(|edge| edge.sets());
            let sends = sets.is_some_and(|sets| {
                sets.sets.iter().flat_map(|set| &set.backends).any(|backend| backend.instance == id)
            });
            let waited_for = self.is_reliable() || daemon.leased_since <= decided_at;
            if sends && daemon.lease_until > self.now && waited_for {
                self.fail(15, format!("m{machine} stops {id}, and the edge on m{edge} still sends there"));
            }
        }
    }

    /// An edge that was not waited for opens its ports again: it sends nothing to what was told to stop
    /// meanwhile. One that ended by itself was told so only for the record, and refuses by being gone.
    pub fn check_return(&mut self, machine: usize) {
        let Some(daemon) = self.machines[machine].daemon.as_ref() else { return };
        let leased = |decided_at: u64| {
            daemon.lease_until > self.now && (self.is_reliable() || daemon.leased_since <= decided_at)
        };
        let sets = daemon.edge.as_ref().and_then(|edge| edge.sets());
        let backends = sets.iter().flat_map(|sets| &sets.sets).flat_map(|set| &set.backends);
        let stale = backends
            .map(|backend| backend.instance)
            .filter(|id| (0..self.machines.len()).any(|at| self.lives(at, *id)))
            .find(|id| self.stop_decided.get(id).is_some_and(|decided_at| leased(*decided_at)));
        if let Some(id) = stale {
            self.fail(15, format!("the edge on m{machine} comes back and sends to {id}, which is to stop"));
        }
    }

    /// A client was connected to an instance.
    pub fn check_copy(&mut self, edge: usize, id: InstanceId) {
        let Some(daemon) = self.machines[edge].daemon.as_ref() else { return };
        let decided_at = self.stop_decided.get(&id).copied().unwrap_or(self.now);
        let waited_for = self.is_reliable() || daemon.leased_since <= decided_at;
        let leased = self.now < daemon.lease_until && waited_for;
        let stopping = self.machines.iter().any(|machine| {
            let live = machine.slots.get(&id).and_then(|slot| slot.live());
            live.is_some_and(|live| leased && live.told_to_stop)
        });
        if stopping {
            self.fail(15, format!("the edge on m{edge} connects a client to {id}, which was told to stop"));
        }
    }

    /// Everything that one coordinator believes.
    pub fn check_coordinator(&mut self, machine: usize) {
        let now = self.local(machine);
        let Some(tenure) = self.tenure(machine) else { return };
        let coordinator = &tenure.coordinator;
        let mut found = check(coordinator.cluster());
        found.extend(tenure.disagrees());
        let mut hits = Vec::new();
        for (ix, entry) in coordinator.cluster().services() {
            for reason in coordinator.reasons(ix) {
                hits.extend(match reason.code {
                    Code::NoCapacityMemory => Some("memory starved"),
                    Code::NoEligibleNode => Some("no eligible node"),
                    Code::VolumeHomeNodeOffline => Some("volume home offline"),
                    _ => None,
                });
            }
            let draining = coordinator.cluster().instances_of(ix).filter(|i| i.desired == Desired::Draining);
            if draining.map(|instance| coordinator.edges_left(instance.id)).sum::<usize>() > 0 {
                hits.push("edge waited for");
            }
            let rolling = entry.rec.rollout.state == RolloutState::Rolling && entry.rec.release > 1;
            let available = coordinator.cluster().instances_of(ix).filter(|i| i.is_available()).count();
            if rolling && available > entry.rec.count as usize {
                hits.push("availability kept by surge");
            }
        }
        if !checker::capacity_below_use(coordinator.cluster()).is_empty() {
            hits.push("capacity below use");
        }
        if coordinator.cluster().nodes().any(|(_, node)| node.rec.is_offline()) {
            hits.push("node offline");
        }
        let codes = codes_shown(coordinator, now);
        for hit in hits {
            self.cover.hit(hit);
        }
        for code in codes {
            self.cover.code(code);
        }
        for violation in found {
            self.fail(violation.invariant(), violation.to_string());
        }
    }
}
