//! What may not happen from one state to the next, as one coordinator made them.

use std::collections::BTreeSet;

use model::{
    Change, Cluster, Desired, Drain, Feed, FeedName, Health, Instance, InstanceId, Intent, Kind, NodeId,
    Service, Time, VolumeId,
};

use crate::{
    Violation,
    drains::{self, Parts},
    feeds,
    members::Members,
    moves, place,
};

/// How much may go on at a time, as the coordinator was told.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub nodes_at_once: usize,
    pub balance_moves: usize,
    pub maintainer_batch: usize,
}

/// What is known of a step beside what it changed.
pub struct Step<'a> {
    pub now: Time,
    /// Drains were to rest in it.
    pub paused: bool,
    /// The node has acknowledged which nodes are closed.
    pub ready: &'a dyn Fn(&NodeId) -> bool,
    /// Which nodes are closed, as this life of the node has acknowledged; `None`: it has acknowledged nothing.
    pub acknowledged: &'a dyn Fn(&NodeId) -> Option<BTreeSet<NodeId>>,
    /// The feed's maintainer says that it works.
    pub at_work: &'a dyn Fn(&Feed) -> bool,
}

/// Follows one coordinator, change by change: a step decides several things, each by what the one before has
/// left. What only holds once a step is through is judged by the state that it ends with.
#[derive(Clone, Debug)]
pub struct Observer {
    /// The state, made from the changes alone.
    cluster: Cluster,
    limits: Limits,
    /// Every id below was given out before, or skipped.
    next_id: InstanceId,
    /// Stopped at an operator's wish: availability may fall by these.
    asked: BTreeSet<InstanceId>,
    drains: Parts,
    drain_epoch: u64,
    /// Nodes that gave their slot back to the drains that wait: with a blocker gone, they need none again.
    gave_back: BTreeSet<NodeId>,
}

/// What one step did.
#[derive(Default)]
struct Done {
    placed: Vec<InstanceId>,
    volumes: BTreeSet<VolumeId>,
    handed_over: Vec<FeedName>,
    handed_over_late: Vec<FeedName>,
}

impl Observer {
    pub fn new(cluster: &Cluster, limits: Limits) -> Observer {
        let last = cluster.instances().map(|instance| instance.id.0 + 1).max().unwrap_or(0);
        let busy: Vec<NodeId> = drains::busy(cluster).cloned().collect();
        Observer {
            next_id: InstanceId(cluster.meta().instance_ids_reserved.max(last)),
            asked: BTreeSet::new(),
            drains: drains::parts(cluster),
            drain_epoch: cluster.meta().drain_epoch,
            // Which of them was there first is in no record.
            gave_back: if busy.len() > limits.nodes_at_once {
                busy.into_iter().collect()
            } else {
                BTreeSet::new()
            },
            cluster: cluster.clone(),
            limits,
        }
    }

    /// An operator asked for this instance to be stopped.
    pub fn asked_to_stop(&mut self, id: InstanceId) {
        self.asked.insert(id);
    }

    /// Takes the changes of one step, in order.
    pub fn follow(&mut self, changes: &[Change], step: &Step<'_>) -> Vec<Violation> {
        let (mut found, mut done) = (Vec::new(), Done::default());
        if changes.is_empty() {
            return found;
        }
        for change in changes {
            self.look_at(change, step, &mut done, &mut found);
        }
        self.step_is_over(step, &done, &mut found);
        found
    }

    fn look_at(&mut self, change: &Change, step: &Step<'_>, done: &mut Done, found: &mut Vec<Violation>) {
        if let Change::Instance(instance) = change {
            return self.instance(instance, step, done, found);
        }
        if let Change::Node(node) = change {
            let before = self.cluster.node_by_id(node.id.as_str()).map(|old| old.rec.process_epoch);
            let to = node.process_epoch;
            if let Some(from) = before.filter(|from| *from > to) {
                found.push(Violation::EpochWentBack { node: node.id.clone(), from, to });
            }
        }
        if let Change::Service(service) = change {
            found.extend(self.release_went_back(service));
        }
        if let Change::Volume(volume) = change
            && self.cluster.volume(volume.id.as_str()).is_none()
        {
            done.volumes.insert(volume.id.clone());
        }
        if let Change::Feed(feed) = change {
            found.extend(place::maintainer_is_least_loaded(&self.cluster, feed, step));
            found.extend(feeds::destination_was_told(&self.cluster, feed, step));
            found.extend(feeds::handed_over_in_pause(&self.cluster, feed, step));
            match moves::hands_over(&self.cluster, feed) {
                Some(true) => done.handed_over_late.push(feed.name.clone()),
                Some(false) => done.handed_over.push(feed.name.clone()),
                None => {}
            }
        }
        self.cluster.apply(change);
        if let Change::Drain(drain) = change {
            self.turn_comes(drain, found);
        }
    }

    /// When a node's turn comes, there is a slot for it.
    fn turn_comes(&self, drain: &Drain, found: &mut Vec<Violation>) {
        let known = |node: &NodeId| self.drains.get(&(drain.epoch, node.clone())).copied();
        let began = drain.nodes.iter().any(|part| drains::began(known(&part.node), part));
        let busy = drains::busy(&self.cluster).count();
        let allowed = self.limits.nodes_at_once;
        if began && busy > allowed {
            found.push(Violation::TooManyDraining { draining: busy, allowed });
        }
    }

    fn release_went_back(&self, service: &Service) -> Option<Violation> {
        let before = self.cluster.service_by_name(service.name.as_str()).map(|entry| &entry.rec);
        // A service of the same name that was created anew begins anew.
        let (from, to) =
            (before.filter(|old| old.created_at == service.created_at)?.release, service.release);
        (from > to).then(|| Violation::ReleaseWentBack { service: service.name.clone(), from, to })
    }

    fn instance(
        &mut self,
        instance: &Instance,
        step: &Step<'_>,
        done: &mut Done,
        found: &mut Vec<Violation>,
    ) {
        let change = Change::Instance(instance.clone());
        let members = Members::of(&self.cluster, instance.service, step.now, step.paused);
        let Some(known) = self.cluster.instance(instance.id).cloned() else {
            if let Some(members) = &members {
                found.extend(place::is_least_loaded(members, instance, &done.volumes));
                found.extend(moves::begins(members, instance));
                found.extend(moves::evens(members, instance, self.limits.balance_moves));
            }
            if instance.id < self.next_id {
                found.push(Violation::IdReused { instance: instance.id });
            }
            self.next_id = self.next_id.max(InstanceId(instance.id.0 + 1));
            self.cluster.apply(&change);
            placed(&self.cluster, instance, found);
            volume_is_free(&self.cluster, instance, found);
            done.placed.push(instance.id);
            return;
        };
        changed(&known, instance, found);
        let told_to_go = known.desired == Desired::Running && instance.desired != Desired::Running;
        let wanted = known.is_wanted() && instance.actual == known.actual;
        if let Some(before) = members.as_ref().filter(|_| known.is_available() && told_to_go && wanted) {
            found.extend(self.availability_holds(&known, before));
        }
        if told_to_go && wanted && !self.asked.contains(&instance.id) {
            let how = members.as_ref().and_then(|members| moves::leaves(members, &known));
            self.cluster.apply(&change);
            let after = Members::of(&self.cluster, instance.service, step.now, step.paused);
            if let (Some(how), Some(after)) = (how, after) {
                found.extend(moves::left(&after, &known, how));
            }
            return;
        }
        self.cluster.apply(&change);
    }

    fn step_is_over(&mut self, step: &Step<'_>, done: &Done, found: &mut Vec<Violation>) {
        let placed = done.placed.iter().filter_map(|id| self.cluster.instance(*id));
        drains::follow(&self.drains, self.drain_epoch, &self.cluster, found);
        if step.paused {
            drains::rest(&self.drains, &self.cluster, placed, found);
        }
        let batch = self.limits.maintainer_batch;
        found.extend(moves::hand_overs(
            &self.cluster,
            &done.handed_over,
            &done.handed_over_late,
            batch,
            step,
        ));
        self.slots_hold(found);
        self.drains = drains::parts(&self.cluster);
        self.drain_epoch = self.drain_epoch.max(self.cluster.meta().drain_epoch);
    }

    /// At most so many nodes drain, whatever happens while they do. One that had nothing but blockers left has
    /// given its slot away and may go on beside the next when a person has removed them.
    fn slots_hold(&mut self, found: &mut Vec<Violation>) {
        let busy: BTreeSet<&NodeId> = drains::busy(&self.cluster).collect();
        let draining =
            self.cluster.nodes().filter(|(_, node)| node.is_draining()).map(|(_, node)| &node.rec.id);
        let draining: BTreeSet<&NodeId> = draining.collect();
        self.gave_back.retain(|node| draining.contains(node));
        self.gave_back.extend(draining.difference(&busy).map(|node| (*node).clone()));
        let held = busy.iter().filter(|node| !self.gave_back.contains(**node)).count();
        let allowed = self.limits.nodes_at_once;
        if held > allowed {
            found.push(Violation::TooManyDraining { draining: held, allowed });
        }
    }

    /// With surge nothing that is available is retired while fewer than the count would be left. Those that go
    /// anyway, without being waited for, stand in for nobody.
    fn availability_holds(&self, known: &Instance, before: &Members<'_>) -> Option<Violation> {
        let (rec, spec) = (&before.entry.rec, before.spec());
        let spared = rec.removed || !before.surges() || spec.has_slots() || spec.kind == Kind::System;
        let node = self.cluster.node(known.node);
        // What brings its scratch data along stops before its successor starts.
        let spared = spared || rec.spec_of(known.release).disk.migrate && node.is_closed();
        let forced = before.is_forced(known) || node.rec.is_offline() || self.asked.contains(&known.id);
        if spared || forced {
            return None;
        }
        let stays =
            |other: &&Instance| other.id != known.id && other.is_available() && !before.goes_anyway(other);
        let left = before.wanted().filter(stays).count();
        let (service, instance, count) = (rec.name.clone(), known.id, rec.count);
        (left < count as usize).then_some(Violation::AvailableLowered { service, instance, left, count })
    }

    /// What the coordinator holds is what its changes made: nothing else touches the state.
    pub fn disagrees(&self, with: &Cluster) -> Option<Violation> {
        let what = if !self.cluster.instances().eq(with.instances()) {
            "the instances"
        } else if !self.cluster.nodes().map(|(_, node)| &node.rec).eq(with.nodes().map(|(_, node)| &node.rec))
        {
            "the nodes"
        } else if !self.cluster.services().map(|(_, e)| &e.rec).eq(with.services().map(|(_, e)| &e.rec)) {
            "the services"
        } else if !self.cluster.drains().eq(with.drains()) {
            "the drains"
        } else if !self.cluster.feeds().eq(with.feeds()) {
            "the feeds"
        } else {
            return None;
        };
        Some(Violation::IndexDisagrees { what: format!("{what} are not what the changes made") })
    }
}

fn placed(after: &Cluster, instance: &Instance, found: &mut Vec<Violation>) {
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
fn volume_is_free(after: &Cluster, instance: &Instance, found: &mut Vec<Violation>) {
    let Some(entry) = after.service(instance.service) else { return };
    let Some(slot) = instance.slot.filter(|_| entry.rec.spec().is_stateful()) else { return };
    let mut others = after
        .instances_of(instance.service)
        .filter(|other| other.id != instance.id && other.slot == Some(slot) && !other.is_over());
    if let Some(one) = others.next() {
        let (service, one, other) = (entry.rec.name.clone(), one.id, instance.id);
        found.push(Violation::SlotTwice { service, slot, one, other });
    }
}

fn changed(known: &Instance, instance: &Instance, found: &mut Vec<Violation>) {
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
