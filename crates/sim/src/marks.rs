//! What was reached: each step of a move, how it was cut short, and which reasons were shown.

use std::collections::BTreeSet;

use model::{
    Actual, Change, Cluster, Code, Desired, Drain, DrainState, Ending, Feed, Health, Instance, Intent, Kind,
    Time,
};
use protocol::{
    coordinator::Coordinator,
    message::feed::{HeldState, PeerBody, SpanWhat},
};

use crate::world::World;

/// Every code that operators would be shown.
pub fn codes_shown(coordinator: &Coordinator, now: Time) -> BTreeSet<Code> {
    let cluster = coordinator.cluster();
    let mut codes: BTreeSet<Code> =
        coordinator.cluster_reasons().into_iter().map(|reason| reason.code).collect();
    for (ix, _) in cluster.services() {
        codes.extend(coordinator.reasons(ix).iter().map(|reason| reason.code));
    }
    codes.extend(cluster.instances().filter_map(|instance| instance.reason));
    for (_, node) in cluster.nodes() {
        if let Health::Degraded(code) = node.rec.health {
            codes.insert(code);
        }
    }
    for part in cluster.drains().flat_map(|drain| &drain.nodes).filter(|part| part.ending().is_none()) {
        let status = coordinator.drain_status(part, now);
        codes.extend(part.stalled.then_some(Code::DrainStalled));
        codes.extend(status.units.iter().map(|unit| unit.code));
        codes.extend(status.waits.iter().map(|wait| wait.code));
    }
    for feed in cluster.feeds() {
        let Some(seen) = coordinator.feed_seen(&feed.name) else { continue };
        codes.extend(seen.wait.as_ref().map(|(code, _, _)| *code));
        let troubles = seen.report.iter().flat_map(|report| &report.troubles);
        codes.extend(troubles.map(|trouble| trouble.code));
    }
    for store in cluster.store_groups().flat_map(|group| cluster.stores_of(group.name.as_str())) {
        codes.extend(coordinator.store_status(store, now).wait.map(|wait| wait.code));
    }
    codes
}

/// Somebody stands in for one that is wanted as well.
fn moves_one<'a>(cluster: &'a Cluster, new: &Instance) -> Option<&'a Instance> {
    let old = cluster.instance(new.replaces?)?;
    old.is_wanted().then_some(old)
}

fn is_on_the_move(cluster: &Cluster) -> bool {
    cluster.instances().any(|new| {
        let old = moves_one(cluster, new).filter(|_| new.is_wanted());
        old.is_some_and(|old| cluster.node(old.node).is_draining())
    })
}

impl World {
    /// A change is about to be stored.
    pub fn mark_change(&mut self, change: &Change) {
        let mut marks = Vec::new();
        if let Change::Instance(instance) = change {
            mark_instance(&self.mirror, instance, &mut marks);
        }
        if let Change::Drain(drain) = change {
            mark_drain(&self.mirror, drain, &mut marks);
        }
        if let Change::Feed(feed) = change {
            mark_feed(&self.mirror, feed, &mut marks);
        }
        for mark in marks {
            self.cover.hit(mark);
        }
    }

    /// Somebody takes office with this.
    pub fn mark_fail_over(&mut self, cluster: &Cluster) {
        if cluster.drains().any(|drain| drain.is_unfinished()) {
            self.cover.hit("recovery: another coordinator in the middle of a drain");
        }
        if is_on_the_move(cluster) {
            self.cover.hit("recovery: another coordinator in the middle of a move");
        }
        let parts = cluster.drains().flat_map(|drain| &drain.nodes);
        if parts.filter(|part| part.state == DrainState::Draining).any(|part| part.total >= part.done + 300) {
            self.cover.hit("recovery: another coordinator with hundreds of dispatchers to move");
        }
        let handed = |feed: &Feed| feed.maintainer.as_ref().is_some_and(|taker| taker.from.is_some());
        if cluster.feeds().any(handed) {
            self.cover.hit("recovery: another coordinator in the middle of a hand-over");
        }
    }

    /// A daemon has ended, one way or another.
    pub fn mark_daemon_end(&mut self, machine: usize) {
        let node = self.mirror.node_by_id(self.machines[machine].id.as_str());
        if node.is_some_and(|node| node.is_draining()) {
            self.cover.hit("recovery: a daemon ended while its node drained");
        }
    }

    /// What goes between a maintainer and its hosts.
    pub fn mark_peer(&mut self, body: &PeerBody) {
        match body {
            PeerBody::Ask { .. } => self.cover.hit("dispatcher: maintainer asks what runs"),
            PeerBody::Orders { orders, .. } => {
                for order in orders {
                    self.cover.hit(match order.what {
                        SpanWhat::Prepare => "dispatcher: told to prepare",
                        SpanWhat::Start { .. } => "dispatcher: told to start",
                        SpanWhat::Stop { .. } => "dispatcher: told to stop",
                        SpanWhat::Release => "dispatcher: released",
                    });
                }
            }
            PeerBody::Inventory { held, .. } | PeerBody::News { held, .. } => {
                for held in held {
                    match held.state {
                        HeldState::Prepared => self.cover.hit("dispatcher: prepared"),
                        HeldState::Running => self.cover.hit("dispatcher: runs"),
                        HeldState::Stopped => self.cover.hit("dispatcher: said its last word"),
                        HeldState::Absent if held.trouble.is_some() => self.cover.hit("dispatcher: refused"),
                        HeldState::Preparing | HeldState::Stopping | HeldState::Absent => {}
                    }
                }
            }
            PeerBody::Same { .. } | PeerBody::Progress { .. } => {}
        }
    }
}

fn mark_instance(cluster: &Cluster, new: &Instance, marks: &mut Vec<&'static str>) {
    let Some(entry) = cluster.service(new.service) else { return };
    let spec = entry.rec.spec_of(new.release);
    let node = cluster.node(new.node);
    let drain = node.drain.as_ref().filter(|drain| drain.draining);
    let surge = spec.migrate.surge && spec.update.surge;
    let plain = spec.kind == Kind::Service && !spec.is_stateful();
    let stands_in = moves_one(cluster, new).filter(|old| cluster.node(old.node).is_draining()).is_some();
    let Some(old) = cluster.instance(new.id) else {
        marks.extend(stands_in.then_some("move: replacement placed"));
        let drains = cluster.drains().any(|drain| drain.is_unfinished());
        marks.extend((plain && !surge && drains).then_some("move without surge: successor placed"));
        return;
    };
    let became = |actual: Actual| new.actual == actual && old.actual != actual;
    marks.extend((stands_in && became(Actual::Ready)).then_some("move: replacement ready"));
    let lost = new.is_wanted() == old.is_wanted() || !old.is_wanted();
    marks.extend(
        (stands_in && became(Actual::Lost) && !lost)
            .then_some("recovery: a destination lost in the middle of a move"),
    );
    marks.extend(
        (old.actual == Actual::Lost && new.actual != Actual::Lost)
            .then_some("recovery: what was lost came back"),
    );
    marks.extend((stands_in && new.reason == Some(Code::Unhealthy)).then_some("move: replacement given up"));
    let Some(drain) = drain else {
        let forced = node.rec.intent == Intent::Disabled && old.desired != new.desired;
        marks.extend((forced && plain).then_some("forced off a disabled node"));
        return;
    };
    let told = old.desired == Desired::Running && new.desired != Desired::Running;
    let stopped = new.is_over() && !old.is_over();
    match (spec.kind, spec.is_stateful()) {
        (Kind::Batch, _) if told && drain.deadline_reached => marks.push("batch stopped at the deadline"),
        (Kind::Batch, _) if stopped && new.is_complete() => marks.push("batch finished on a draining node"),
        (Kind::System, _) if told => marks.push("system instance left last"),
        (Kind::Service, true) if told => marks.push("stateful instance stopped for a drain"),
        (Kind::Service, false) if told && drain.deadline_reached => marks.push("forced off at the deadline"),
        (Kind::Service, false) if told && surge => marks.push("move: taken out of the sets"),
        (Kind::Service, false) if told => marks.push("move without surge: stopped first"),
        (Kind::Service, false) if stopped && new.desired == Desired::Stopped => marks.push("move: stopped"),
        (Kind::Service | Kind::Batch | Kind::System | Kind::Store, _) => {}
    }
    if plain && old.desired == Desired::Draining && new.desired == Desired::Stopped {
        marks.push("move: told to stop");
    }
}

fn mark_drain(cluster: &Cluster, drain: &Drain, marks: &mut Vec<&'static str>) {
    let known = cluster.drain(drain.epoch);
    for part in &drain.nodes {
        let before = known.and_then(|known| known.part(part.node.as_str()));
        let was = before.map(|before| before.state);
        let told = before.is_some_and(|before| before.withdrawing_since.is_none());
        marks.extend((told && part.withdrawing_since.is_some()).then_some("edge told to withdraw"));
        if was.is_none() && part.state == DrainState::Queued {
            marks.push("drain queued");
        }
        let lost = part.state == DrainState::Ended(Ending::NodeLost) && was == Some(DrainState::Draining);
        let ix = cluster.node_ix(part.node.as_str()).filter(|_| lost);
        if ix.is_some_and(|ix| cluster.instances_on(ix).any(|instance| !instance.is_over())) {
            marks.push("recovery: a draining node lost with what was on it");
        }
        if part.state != DrainState::Ended(Ending::Cancelled) || was == Some(part.state) {
            continue;
        }
        marks.push(match was {
            Some(DrainState::Queued) => "recovery: cancelled before its turn",
            Some(DrainState::Draining) if is_on_the_move(cluster) => {
                "recovery: cancelled in the middle of a move"
            }
            Some(DrainState::Draining | DrainState::Ended(_)) | None => {
                "recovery: cancelled while it drained"
            }
        });
    }
}

fn mark_feed(cluster: &Cluster, feed: &Feed, marks: &mut Vec<&'static str>) {
    let before = cluster.feed(feed.name.as_str()).and_then(|known| known.maintainer.as_ref());
    let Some(after) = &feed.maintainer else { return };
    let Some(before) = before else { return marks.push("maintainer: placed") };
    let origin = before.from.as_ref();
    match (origin, &after.from) {
        (None, Some(_)) => marks.push("maintainer: told to hand over"),
        (Some(origin), None) => {
            let node = cluster.node_by_id(origin.node.as_str()).map(|entry| &entry.rec);
            let lives = node.is_some_and(|node| !node.is_offline() && node.process_epoch == origin.process);
            marks.push(match lives {
                true => "maintainer: said its last word",
                false => "recovery: a maintainer gone without its last word",
            });
        }
        (Some(_), Some(_)) if before.epoch != after.epoch => {
            marks.push("recovery: another successor in the middle of a hand-over");
        }
        (None, None) if before.epoch != after.epoch => {
            marks.push("recovery: a maintainer lost with its node")
        }
        (Some(_), Some(_)) | (None, None) => {}
    }
}
