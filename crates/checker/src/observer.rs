//! What may not happen from one state to the next, as one coordinator made them.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Actual, Cluster, Desired, Health, Instance, InstanceId, Intent, Kind, NodeId, NodeIx, ProcessEpoch,
    ServiceIx, ServiceName, Time,
};

use crate::{
    Violation,
    drains::{self, Parts},
};

/// What is remembered of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    service: ServiceIx,
    node: NodeIx,
    release: u32,
    slot: Option<u32>,
    desired: Desired,
    order: u32,
    available: bool,
}

/// Follows the states of one coordinator. `observe` is called after each of its steps: a step places
/// last, so that a new instance is judged by the state that the step ends with.
#[derive(Clone, Debug)]
pub struct Observer {
    instances: BTreeMap<InstanceId, Known>,
    /// Every id below was given out before, or skipped.
    next_id: InstanceId,
    epochs: BTreeMap<NodeId, ProcessEpoch>,
    releases: BTreeMap<ServiceName, (Time, u32)>,
    /// Stopped at an operator's wish: availability may fall by these.
    asked: BTreeSet<InstanceId>,
    drains: Parts,
    drain_epoch: u64,
}

impl Observer {
    pub fn new(cluster: &Cluster) -> Observer {
        let mut observer = Observer {
            instances: BTreeMap::new(),
            next_id: InstanceId(cluster.meta().instance_ids_reserved),
            epochs: BTreeMap::new(),
            releases: BTreeMap::new(),
            asked: BTreeSet::new(),
            drains: Parts::new(),
            drain_epoch: 0,
        };
        observer.remember(cluster);
        observer
    }

    /// An operator asked for this instance to be stopped.
    pub fn asked_to_stop(&mut self, id: InstanceId) {
        self.asked.insert(id);
    }

    /// Compares with the state seen last, and remembers this one. `paused`: drains were to rest in the
    /// step between them.
    pub fn observe(&mut self, after: &Cluster, paused: bool) -> Vec<Violation> {
        let mut found = Vec::new();
        for instance in after.instances() {
            match self.instances.get(&instance.id) {
                None => self.placed(after, instance, &mut found),
                Some(known) => changed(known, instance, &mut found),
            }
        }
        self.volumes_are_free(after, &mut found);
        self.no_more_than_count_and_surge(after, &mut found);
        self.availability_holds(after, &mut found);
        self.epochs_rise(after, &mut found);
        self.releases_rise(after, &mut found);
        drains::follow(&self.drains, self.drain_epoch, after, &mut found);
        if paused {
            let placed = after.instances().filter(|instance| !self.instances.contains_key(&instance.id));
            drains::rest(&self.drains, after, placed, &mut found);
        }
        self.remember(after);
        found
    }

    fn remember(&mut self, cluster: &Cluster) {
        self.instances = cluster
            .instances()
            .map(|instance| {
                let known = Known {
                    service: instance.service,
                    node: instance.node,
                    release: instance.release,
                    slot: instance.slot,
                    desired: instance.desired,
                    order: instance.order,
                    available: instance.is_available(),
                };
                (instance.id, known)
            })
            .collect();
        if let Some((last, _)) = self.instances.last_key_value() {
            self.next_id = self.next_id.max(InstanceId(last.0 + 1));
        }
        self.drains = drains::parts(cluster);
        self.drain_epoch = self.drain_epoch.max(cluster.meta().drain_epoch);
        for (_, node) in cluster.nodes() {
            self.epochs.insert(node.rec.id.clone(), node.rec.process_epoch);
        }
        self.releases = cluster
            .services()
            .map(|(_, entry)| (entry.rec.name.clone(), (entry.rec.created_at, entry.rec.release)))
            .collect();
    }

    fn placed(&self, after: &Cluster, instance: &Instance, found: &mut Vec<Violation>) {
        if instance.id < self.next_id {
            found.push(Violation::IdReused { instance: instance.id });
        }
        let node = after.node(instance.node);
        let constraints = after.service(instance.service).map(|entry| {
            let spec = entry.rec.spec_of(instance.release);
            node.rec.satisfies(&spec.constraints)
        });
        let why = match (node.rec.health, node.rec.intent) {
            _ if !node.rec.roles.worker => Some("is no worker"),
            _ if node.rec.foreign => Some("belongs to another cluster"),
            (Health::Offline, _) => Some("is offline"),
            (Health::Degraded(_), _) => Some("is degraded"),
            (Health::Up, Intent::Drained | Intent::Stopping | Intent::Disabled) => Some("is closed"),
            (Health::Up, Intent::Active) if node.drain.is_some() => Some("is in a drain"),
            (Health::Up, Intent::Active) if constraints == Some(false) => Some("lacks its labels"),
            (Health::Up, Intent::Active) => None,
        };
        if let Some(why) = why {
            let node = node.rec.id.clone();
            found.push(Violation::PlacedWhereItMayNot { node, instance: instance.id, why });
        }
        let (used, capacity) = (node.used.memory, node.rec.capacity.memory);
        if !instance.is_over() && used > capacity {
            let node = node.rec.id.clone();
            found.push(Violation::OverCapacity { node, instance: instance.id, used, capacity });
        }
    }

    /// Nothing is placed on a volume whose last user is not known to have stopped.
    fn volumes_are_free(&self, after: &Cluster, found: &mut Vec<Violation>) {
        for instance in after.instances().filter(|instance| !self.instances.contains_key(&instance.id)) {
            let Some(entry) = after.service(instance.service) else { continue };
            let Some(slot) = instance.slot.filter(|_| entry.rec.spec().is_stateful()) else { continue };
            let mut others = after
                .instances_of(instance.service)
                .filter(|other| other.id != instance.id && other.slot == Some(slot) && !other.is_over());
            if let Some(one) = others.next() {
                let (service, one, other) = (entry.rec.name.clone(), one.id, instance.id);
                found.push(Violation::SlotTwice { service, slot, one, other });
            }
        }
    }

    /// Nothing is placed beyond the count and its surge. Having more is no mistake: a count that is
    /// lowered in the middle of a rollout takes effect as that goes on.
    fn no_more_than_count_and_surge(&self, after: &Cluster, found: &mut Vec<Violation>) {
        let placed = after.instances().filter(|instance| !self.instances.contains_key(&instance.id));
        let placed: BTreeMap<ServiceIx, InstanceId> =
            placed.map(|instance| (instance.service, instance.id)).collect();
        for (ix, instance) in placed {
            let Some(entry) = after.service(ix).filter(|entry| !entry.rec.removed) else { continue };
            let (service, count, spec) = (entry.rec.name.clone(), entry.rec.count, entry.rec.spec());
            if spec.kind == Kind::System {
                continue;
            }
            let surge = spec.update.surge && spec.migrate.surge && !spec.has_slots();
            let extra = if surge { spec.update.max_parallel.max(spec.migrate.max_parallel) } else { 0 };
            let allowed = (count + extra) as usize;
            let wanted = after.instances_of(ix).filter(|instance| instance.is_wanted()).count();
            if wanted > allowed {
                found.push(Violation::TooMany { service: service.clone(), wanted, allowed });
            }
            let may_run = |i: &&Instance| !i.is_over() && i.actual != Actual::Lost;
            let there = after.instances_of(ix).filter(may_run).count();
            if !surge && !spec.has_slots() && there > count as usize {
                found.push(Violation::PlacedTooEarly { service, instance, there, count });
            }
        }
    }

    /// With surge nothing that is available is retired while fewer than the count would be left.
    fn availability_holds(&self, after: &Cluster, found: &mut Vec<Violation>) {
        let mut left: BTreeMap<ServiceIx, usize> = BTreeMap::new();
        for (id, known) in self.instances.iter().filter(|(_, known)| known.available) {
            let Some(instance) = after.instance(*id) else { continue };
            let Some(entry) = after.service(known.service) else { continue };
            let (rec, spec) = (&entry.rec, entry.rec.spec());
            let surge = spec.update.surge && spec.migrate.surge;
            let spared = rec.removed || !surge || spec.has_slots() || spec.kind == Kind::System;
            let entry = after.node(instance.node);
            // What brings its scratch data along stops before its successor starts.
            let spared = spared || rec.spec_of(instance.release).disk.migrate && entry.is_closed();
            let (node, late) = (&entry.rec, entry.drain.as_ref().is_some_and(|drain| drain.deadline_reached));
            let forced =
                late || node.intent == Intent::Disabled || node.is_offline() || self.asked.contains(id);
            // One that ceased to be available by itself in the same step was not lowered by us.
            let by_itself = instance.actual != Actual::Ready;
            if instance.desired == Desired::Running || spared || forced || by_itself {
                continue;
            }
            let left = *left.entry(known.service).or_insert_with(|| {
                after.instances_of(known.service).filter(|instance| instance.is_available()).count()
            });
            if left < rec.count as usize {
                let (service, count) = (rec.name.clone(), rec.count);
                found.push(Violation::AvailableLowered { service, instance: *id, left, count });
            }
        }
    }

    fn epochs_rise(&self, after: &Cluster, found: &mut Vec<Violation>) {
        for (_, node) in after.nodes() {
            let to = node.rec.process_epoch;
            if let Some(from) = self.epochs.get(&node.rec.id).copied().filter(|from| *from > to) {
                found.push(Violation::EpochWentBack { node: node.rec.id.clone(), from, to });
            }
        }
    }

    fn releases_rise(&self, after: &Cluster, found: &mut Vec<Violation>) {
        for (_, entry) in after.services() {
            let (rec, to) = (&entry.rec, entry.rec.release);
            // A service of the same name that was created anew begins anew.
            let Some((created, from)) = self.releases.get(&rec.name).copied() else { continue };
            if created == rec.created_at && from > to {
                found.push(Violation::ReleaseWentBack { service: rec.name.clone(), from, to });
            }
        }
    }
}

fn changed(known: &Known, instance: &Instance, found: &mut Vec<Violation>) {
    let id = instance.id;
    let stays = (known.service, known.node, known.release, known.slot)
        == (instance.service, instance.node, instance.release, instance.slot);
    if !stays {
        found.push(Violation::InstanceMoved { instance: id });
    }
    if instance.desired < known.desired {
        found.push(Violation::DesiredWentBack { instance: id, from: known.desired, to: instance.desired });
    }
    let same_order = instance.desired == known.desired;
    if instance.order < known.order || (!same_order && instance.order == known.order) {
        found.push(Violation::OrderWentBack { instance: id, from: known.order, to: instance.order });
    }
}
