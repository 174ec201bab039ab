//! After the faults: everything comes right within a bounded time, and then nothing more happens.

use std::collections::BTreeSet;

use model::{
    Cluster, Code, DrainNode, DrainState, Health, Instance, InstanceId, Intent, Kind, RolloutState,
    ServiceEntry, ServiceIx, ServiceSpec, Time, encode_change,
};
use protocol::coordinator::{Class, Coordinator};

use crate::{
    stores::group_waits,
    world::{Event, World},
};

/// Longest pauses that add up: a node found offline, backoff after failures (1 min), a rollout's
/// deadline, grace, restarts.
const CONVERGES_WITHIN: u64 = 400_000;
/// Nothing is written for this long.
const QUIET_FOR: u64 = 15_000;

impl World {
    /// First drains come to where they can get by themselves; then everything is opened again.
    pub fn look_whether_quiet(&mut self) {
        if self.swarm.drains == 0 {
            self.reopened = self.reopened.or(Some(self.swarm.safety_ms));
        }
        if self.reopened.is_some() {
            self.enable_all();
        }
        let head = self.store.head;
        let since = match self.quiet {
            Some((known, since)) if known == head => since,
            Some(_) | None => self.now,
        };
        self.quiet = Some((head, since));
        let wrong = match self.reopened {
            Some(_) => self.what_is_wrong(),
            None => self.drains_are_wrong(),
        };
        let late = self.now > self.reopened.unwrap_or(self.swarm.safety_ms) + CONVERGES_WITHIN;
        match wrong {
            None if self.reopened.is_none() && self.now - since >= QUIET_FOR => {
                self.say("drains are where they can get; every node is opened again".to_owned());
                (self.reopened, self.quiet) = (Some(self.now), None);
                self.after(1000, Event::LookWhetherQuiet);
            }
            None if self.now - since >= QUIET_FOR => {
                self.say("all is well".to_owned());
                self.done = true;
            }
            None if late => self.fail(18, "the state keeps changing".to_owned()),
            Some(wrong) if late => self.fail(18, wrong),
            None | Some(_) => self.after(1000, Event::LookWhetherQuiet),
        }
    }

    fn in_office(&self) -> Result<(usize, &Coordinator), String> {
        let mut in_office =
            (0..self.machines.len()).filter_map(|at| Some((at, &self.tenure(at)?.coordinator)));
        match (in_office.next(), in_office.count()) {
            (Some(one), 0) => Ok(one),
            (first, more) => {
                Err(format!("{} coordinators are in office", more + usize::from(first.is_some())))
            }
        }
    }

    /// Every drain has ended, or waits for something that is really so.
    fn drains_are_wrong(&self) -> Option<String> {
        let (machine, coordinator) = match self.in_office() {
            Ok(found) => found,
            Err(wrong) => return Some(wrong),
        };
        let cluster = coordinator.cluster();
        let closed = |at: usize| {
            let node = cluster.node_by_id(self.machines[at].id.as_str());
            node.is_some_and(|node| node.is_closed())
        };
        let open = (0..self.machines.len()).find(|at| {
            let here = &self.machines[*at];
            here.roles.coordinator && here.daemon.is_some() && !closed(*at)
        });
        if let Some(open) = open.filter(|_| closed(machine)) {
            return Some(format!("m{machine} is closed and leads, and m{open} could"));
        }
        for (_, node) in cluster.nodes() {
            let left = self.machines.iter().any(|machine| machine.left && machine.id == node.rec.id);
            if node.rec.health != Health::Up && !left {
                return Some(format!("{} is {:?}", node.rec.id, node.rec.health));
            }
            let part = cluster.last_drain_of(node.rec.id.as_str());
            let part = part.and_then(|drain| drain.part(node.rec.id.as_str()));
            let out = matches!(node.rec.intent, Intent::Drained | Intent::Stopping);
            let drained = part.filter(|part| out && part.ending() == Some(model::Ending::Drained));
            if let Some(id) = drained.and_then(|part| self.lives_on(part)) {
                return Some(format!("{} is drained, and {id} lives on it", node.rec.id));
            }
        }
        let now = self.local(machine);
        let mut parts = cluster.drains().flat_map(|drain| &drain.nodes);
        self.processes_disagree(cluster)
            .or_else(|| parts.find_map(|part| part_is_wrong(coordinator, part, now)))
    }

    fn what_is_wrong(&self) -> Option<String> {
        let coordinator = match self.in_office() {
            Ok((_, coordinator)) => coordinator,
            Err(wrong) => return Some(wrong),
        };
        let cluster = coordinator.cluster();
        for (_, node) in cluster.nodes() {
            if node.rec.health != Health::Up || node.rec.intent != Intent::Active {
                return Some(format!("{} is {:?} and {:?}", node.rec.id, node.rec.health, node.rec.intent));
            }
        }
        if let Some(drain) = cluster.drains().find(|drain| drain.is_unfinished()) {
            return Some(format!("drain {} is unfinished", drain.epoch));
        }
        self.processes_disagree(cluster)
            .or_else(|| self.edges_disagree(coordinator))
            .or_else(|| self.store_disagrees(cluster))
            .or_else(|| self.requests_lost(cluster))
            .or_else(|| self.feeds_are_wrong(coordinator))
            .or_else(|| self.evictors_are_wrong(coordinator))
            .or_else(|| self.stores_are_wrong(coordinator))
            .or_else(|| cluster.services().find_map(|(ix, entry)| service_is_wrong(coordinator, ix, entry)))
    }

    /// What runs is what the records say, no more and no less.
    fn processes_disagree(&self, cluster: &Cluster) -> Option<String> {
        let live = self.machines.iter().flat_map(|machine| {
            machine.slots.iter().filter(|(_, slot)| slot.live().is_some()).map(|(id, _)| *id)
        });
        let live: BTreeSet<InstanceId> = live.collect();
        let recorded: BTreeSet<InstanceId> =
            cluster.instances().filter(|instance| !instance.is_over()).map(|instance| instance.id).collect();
        if let Some(id) = live.difference(&recorded).next() {
            return Some(format!("{id} runs and no record says so"));
        }
        recorded.difference(&live).next().map(|id| {
            let at = cluster.instance(*id).map(|i| (i.desired, i.actual, i.reason));
            format!("{id} is recorded as {at:?} and does not run")
        })
    }

    fn edges_disagree(&self, coordinator: &Coordinator) -> Option<String> {
        let revision = coordinator.sets_revision();
        for (at, machine) in self.machines.iter().enumerate().filter(|(_, machine)| machine.roles.edge) {
            let serves = machine.daemon.as_ref().and_then(|daemon| daemon.serves());
            if serves != Some(revision) {
                return Some(format!("the edge on m{at} serves {serves:?}, not {revision:?}"));
            }
            let edge = machine.daemon.as_ref().and_then(|daemon| daemon.edge.as_ref())?;
            if let Some(withdrawal) = edge.withdrawal() {
                return Some(format!("the edge on m{at} does not serve: {withdrawal:?}"));
            }
            for set in edge.sets().into_iter().flat_map(|sets| sets.sets) {
                let ix = coordinator.cluster().service_ix(set.service.as_str());
                let wanted = ix.and_then(|ix| coordinator.backends(ix));
                if wanted.map(|wanted| &wanted.backends) != Some(&set.backends) {
                    return Some(format!("the edge on m{at} has another set of {}", set.service));
                }
            }
        }
        None
    }

    /// What the coordinator holds is what the store holds.
    fn store_disagrees(&self, cluster: &Cluster) -> Option<String> {
        let nodes = cluster.nodes().map(|(_, node)| model::Change::Node(node.rec.clone()));
        let services = cluster.services().map(|(_, entry)| model::Change::Service(entry.rec.clone()));
        let instances = cluster.instances().map(|instance| model::Change::Instance(instance.clone()));
        let volumes = cluster.volumes().map(|volume| model::Change::Volume(volume.clone()));
        let drains = cluster.drains().map(|drain| model::Change::Drain(drain.clone()));
        let feeds = cluster.feeds().map(|feed| model::Change::Feed(feed.clone()));
        let groups = cluster.store_groups().map(|group| model::Change::StoreGroup(group.clone()));
        let stores = cluster.store_groups().flat_map(|group| cluster.stores_of(group.name.as_str()));
        let stores = stores.map(|store| model::Change::Store(store.clone()));
        let tokens = cluster.tokens().map(|token| model::Change::Token(token.clone()));
        let units = nodes.chain(services).chain(instances).chain(volumes).chain(drains);
        let mut count = 0;
        for change in units.chain(feeds).chain(groups).chain(stores).chain(tokens) {
            let (key, value) = encode_change(cluster, &change);
            count += 1;
            if self.store.records.get(&key) != value.as_ref() {
                return Some(format!("{key} is not in the store as the coordinator has it"));
            }
        }
        let stored = self.store.records.keys().filter(|key| !key.starts_with("a/") && !key.starts_with("m/"));
        let stored = stored.count();
        (stored != count).then(|| format!("{stored} records are stored, the coordinator has {count}"))
    }

    fn requests_lost(&self, cluster: &Cluster) -> Option<String> {
        self.workload.services().find_map(|(name, may)| {
            let rec = cluster.service_by_name(name.as_str()).map(|entry| &entry.rec);
            let is = rec.filter(|rec| !rec.removed).map(|rec| (rec.count, rec.spec().clone()));
            (!may.contains(&is)).then(|| format!("{name} is not what was asked for"))
        })
    }
}

fn part_is_wrong(coordinator: &Coordinator, part: &DrainNode, now: Time) -> Option<String> {
    let cluster = coordinator.cluster();
    let node = &part.node;
    if part.ending().is_some() {
        return None;
    }
    let status = coordinator.drain_status(part, now);
    if let Some(paused) = coordinator.drains_paused(now) {
        // It has been looked at whether somebody else could lead.
        let says = status.waits.iter().any(|wait| wait.code == Code::CaretakerLeads);
        return (!says).then(|| format!("{node} waits for {}, and nobody can lead", paused.code));
    }
    if part.state == DrainState::Queued {
        let waits = cluster.nodes().any(|(ix, _)| checker::uses_a_slot(cluster, ix));
        return (!waits).then(|| format!("{node} is queued, and nothing drains"));
    }
    let short = |(ix, entry): (ServiceIx, &ServiceEntry)| {
        let reasons: Vec<Code> = coordinator.reasons(ix).iter().map(|reason| reason.code).collect();
        waits_truly(cluster, entry, &reasons)
    };
    if status.units.is_empty() {
        // Something stopped before it started elsewhere, and there is no room for it.
        let waits =
            cluster.services().any(short) || !part.deadline_reached && feeds_wait_truly(coordinator, part);
        return (!waits).then(|| format!("{node} is empty and still draining"));
    }
    let others = status.units.iter().any(|unit| unit.code != Code::SystemLast);
    status.units.iter().find_map(|unit| {
        let instance = cluster.instance(unit.id)?;
        let entry = cluster.service(instance.service)?;
        let truly = match unit.code {
            _ if unit.class == Class::Store => group_waits(coordinator, entry.rec.name.as_str()),
            Code::VolumeLocal => entry.rec.spec_of(instance.release).is_stateful(),
            Code::SystemLast => others,
            Code::ReplacementUnhealthy => true,
            Code::NoCapacityMemory | Code::NoEligibleNode | Code::ConstraintUnsatisfied => {
                short((instance.service, entry))
            }
            _ => false,
        };
        let why = (unit.code.as_str(), &unit.message);
        (!truly).then(|| format!("{node} drains, and {} waits: {why:?}", unit.unit))
    })
}

/// Feeds of the node have nowhere else to go.
fn feeds_wait_truly(coordinator: &Coordinator, part: &DrainNode) -> bool {
    let cluster = coordinator.cluster();
    let ix = cluster.node_ix(part.node.as_str());
    let here = |feed: &&model::Feed| {
        let dispatchers = ix.and_then(|ix| coordinator.dispatchers_on(ix));
        let runs = dispatchers.is_some_and(|counts| counts.contains_key(&feed.name));
        runs || cluster.maintainers_on(&part.node).any(|name| *name == feed.name)
    };
    cluster.feeds().filter(here).any(|feed| {
        !cluster.nodes().any(|(_, node)| node.may_place() && node.rec.satisfies(&feed.spec.constraints))
    })
}

/// Its instances stop before their successors start.
fn replaced_in_place(entry: &ServiceEntry) -> bool {
    let spec = entry.rec.spec();
    spec.kind == Kind::System || spec.is_stateful()
}

/// Whether a successor could take this instance's place: if not, the old one keeps running.
fn has_room_in_place(cluster: &Cluster, old: &Instance, spec: &ServiceSpec) -> bool {
    let node = cluster.node(old.node);
    let after = node.used.memory - old.memory + spec.memory;
    node.may_place() && node.rec.satisfies(&spec.constraints) && after <= node.rec.capacity.memory
}

fn service_is_wrong(coordinator: &Coordinator, ix: ServiceIx, entry: &ServiceEntry) -> Option<String> {
    let (cluster, rec) = (coordinator.cluster(), &entry.rec);
    let name = &rec.name;
    if rec.removed {
        return Some(format!("{name} is still being removed"));
    }
    // One that finds no place holds up the restarts of the others.
    if rec.spec().kind == Kind::Store && group_waits(coordinator, name.as_str()) {
        return None;
    }
    let reasons: Vec<Code> = coordinator.reasons(ix).iter().map(|reason| reason.code).collect();
    if let Some(instance) =
        cluster.instances_of(ix).find(|instance| !instance.is_over() && !instance.is_available())
    {
        let Instance { id, desired, actual, reason, .. } = instance;
        return Some(format!("{id} of {name} is {desired:?}, {actual:?}, {reason:?}; {reasons:?}"));
    }
    if rec.rollout.state == RolloutState::Rolling {
        return Some(format!("{name} is rolling out; {reasons:?}"));
    }
    let running: Vec<&Instance> = cluster.instances_of(ix).filter(|i| i.is_available()).collect();
    let failed = matches!(rec.rollout.state, RolloutState::Failed { .. });
    let missing = missing(cluster, ix, entry, running.len());
    let waits = waits_truly(cluster, entry, &reasons);
    let old = running.iter().find(|instance| instance.release != rec.release);
    // A system service does not walk on while one of its nodes waits for a replacement.
    let halted = failed || rec.spec().kind == Kind::System && missing > 0 && waits;
    let stuck = |old: &Instance| replaced_in_place(entry) && !has_room_in_place(cluster, old, rec.spec());
    if let Some(old) = old.filter(|old| !halted && rec.spec().kind != Kind::Batch && !stuck(old)) {
        return Some(format!("{} of {name} is of release {}", old.id, old.release));
    }
    if missing > 0 && !waits {
        return Some(format!("{missing} of {name} are missing; {reasons:?}"));
    }
    if missing < 0 {
        return Some(format!("{} of {name} are too many", -missing));
    }
    None
}

/// How many are not there; negative: too many.
fn missing(cluster: &Cluster, ix: ServiceIx, entry: &ServiceEntry, running: usize) -> i64 {
    let rec = &entry.rec;
    let spec = rec.spec_of(rec.release_to_place());
    match spec.kind {
        Kind::System => {
            let nodes =
                cluster.nodes().filter(|(_, node)| node.may_place() && node.rec.satisfies(&spec.constraints));
            nodes.count() as i64 - running as i64
        }
        Kind::Service => i64::from(rec.count) - running as i64,
        // Their own liveness is in `stores`.
        Kind::Store => 0,
        Kind::Batch => {
            let settled: BTreeSet<Option<u32>> = cluster
                .instances_of(ix)
                .filter(|i| {
                    i.is_available()
                        || i.release == rec.release
                            && (i.is_complete() || !spec.rerun && i.desired != model::Desired::Running)
                })
                .filter(|i| i.slot < Some(rec.count))
                .map(|i| i.slot)
                .collect();
            i64::from(rec.count) - settled.len() as i64
        }
    }
}

/// The reason that is given is a true one.
fn waits_truly(cluster: &Cluster, entry: &ServiceEntry, reasons: &[Code]) -> bool {
    let rec = &entry.rec;
    let spec = rec.spec_of(rec.release_to_place());
    let mut nodes =
        cluster.nodes().filter(|(_, node)| node.may_place() && node.rec.satisfies(&spec.constraints));
    let has_room = |node: &model::NodeEntry| node.used.memory + spec.memory <= node.rec.capacity.memory;
    // Bound to its home, or to each node: what other nodes have does not help.
    let bound = spec.is_stateful() || spec.kind == Kind::System;
    if reasons.contains(&Code::NoCapacityMemory) {
        return bound || !nodes.any(|(_, node)| has_room(node));
    }
    (reasons.contains(&Code::ConstraintUnsatisfied) || reasons.contains(&Code::NoEligibleNode))
        && (bound || nodes.next().is_none())
}
