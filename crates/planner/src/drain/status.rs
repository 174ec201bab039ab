//! What remains on a draining node, what it waits for and what blocks it.

use model::{
    Cluster, Code, Desired, DrainNode, DrainState, Instance, InstanceId, Millis, NodeIx, Reason, ServiceIx,
    Time,
};

use super::{
    feeds::{self, FeedsLeft, SeenFeeds},
    leave::{Class, Leave, class_of, must_leave},
    queue::is_only_edge,
    stores,
};
use crate::{scratch, stores::StoreStatus};

/// Starting a process and its first check take about this long, where nothing better is known.
pub(super) const START_GUESS: Millis = Millis::secs(2);

#[derive(Clone, Debug)]
pub struct UnitStatus {
    pub id: InstanceId,
    pub unit: String,
    pub class: Class,
    pub code: Code,
    /// A person is needed.
    pub blocks: bool,
    pub message: String,
    /// Since when, where that is known.
    pub since: Option<Time>,
}

#[derive(Clone, Debug, Default)]
pub struct Status {
    pub units: Vec<UnitStatus>,
    /// What the node as a whole waits for, and what its operator should know.
    pub waits: Vec<Reason>,
    pub feeds: FeedsLeft,
    pub progress: f64,
    pub eta: Option<Millis>,
    pub eta_basis: String,
}

/// What the coordinator knows beside the records.
pub struct Seen<'a> {
    pub reasons: &'a dyn Fn(ServiceIx) -> &'a [Reason],
    pub edges_left: &'a dyn Fn(InstanceId) -> usize,
    pub paused: Option<Paused>,
    /// `None` where nobody is there to look at.
    pub feeds: Option<SeenFeeds<'a>>,
    /// What is known of a store; `None` where nobody is there to look at.
    pub stores: &'a dyn Fn(&Instance) -> Option<StoreStatus>,
}

/// Why nothing begins to move for any drain's sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused {
    pub code: Code,
    pub since: Time,
}

pub fn status(cluster: &Cluster, part: &DrainNode, seen: &Seen<'_>, now: Time) -> Status {
    let Some(ix) = cluster.node_ix(part.node.as_str()) else { return Status::default() };
    if part.ending().is_some() {
        let progress = if part.total == 0 { 1.0 } else { f64::from(part.done) / f64::from(part.total) };
        return Status { progress, ..Status::default() };
    }
    let ignored =
        |instance: &Instance| part.options.ignore_system && class_of(cluster, instance) == Class::System;
    let left = cluster.instances_on(ix).filter(|instance| !instance.is_over() && !ignored(instance));
    let left: Vec<&Instance> = left.collect();
    let show = |instance: &&Instance| unit(cluster, part, instance, replacement(cluster, instance), seen);
    let handed_over = scratch::handed_over(cluster, ix);
    let handed_over = handed_over.into_iter().map(|(old, taker)| copying(cluster, old, taker, seen));
    let units: Vec<UnitStatus> = left.iter().map(show).chain(handed_over).collect();
    let progress = match (part.state, part.total) {
        (DrainState::Queued, _) => 0.0,
        (_, 0) => 1.0,
        (_, total) => f64::from(part.done) / f64::from(total),
    };
    let (eta, eta_basis) = match (seen.paused, part.withdrawing_since) {
        (Some(paused), _) => (None, format!("drains pause: {}", paused.code)),
        (None, Some(_)) => (None, "the edge's open connections finish".to_owned()),
        (None, None) => estimate(cluster, part, &units, seen, now),
    };
    let (feeds, feed_waits) =
        seen.feeds.as_ref().map(|seen| feeds::left(cluster, part, seen)).unwrap_or_default();
    let mut waits = waits(cluster, ix, part, seen, now);
    waits.extend(feed_waits);
    Status { units, waits, feeds, progress, eta, eta_basis }
}

fn waits(cluster: &Cluster, ix: NodeIx, part: &DrainNode, seen: &Seen<'_>, now: Time) -> Vec<Reason> {
    let unit = format!("node/{}", part.node);
    let mut waits = Vec::new();
    if let Some(Paused { code, since }) = seen.paused {
        let message = paused_message(code).to_owned();
        waits.push(Reason { code, unit: unit.clone(), since: Some(since), message });
    }
    if let Some(since) = part.withdrawing_since {
        let message = "its edge fails its health check, then closes its ports; open connections finish";
        let message = message.to_owned();
        waits.push(Reason { code: Code::EdgeWithdrawing, unit, since: Some(since), message });
    }
    if is_only_edge(cluster, ix) {
        waits.push(only_edge(part.node.as_str(), part.started_at.unwrap_or(now)));
    }
    waits
}

/// Said before and while it happens: nobody should be surprised by it.
pub(super) fn only_edge(node: &str, since: Time) -> Reason {
    Reason {
        code: Code::OnlyEdge,
        unit: format!("node/{node}"),
        since: Some(since),
        message: "the only edge that is open: it closes its ports at the end of the drain, and nobody takes \
                  connections for services then"
            .to_owned(),
    }
}

pub(super) fn paused_message(code: Code) -> &'static str {
    match code {
        Code::OfficeMoving => "the coordinator's own node is closed; it hands over first",
        _ => "the coordinator's own node is closed and no open candidate lives; drains pause",
    }
}

/// Why a unit has not left, whether a person is needed, and since when.
pub(super) type Why = (Code, bool, String, Option<Time>);

fn unit(
    cluster: &Cluster,
    part: &DrainNode,
    instance: &Instance,
    replacement: Option<&Instance>,
    seen: &Seen<'_>,
) -> UnitStatus {
    let class = class_of(cluster, instance);
    let started = part.started_at;
    let (code, blocks, message, since) = match class {
        _ if part.state == DrainState::Queued => {
            let node = cluster.node(instance.node).drain.as_ref();
            let asked = node.and_then(|drain| cluster.drain(drain.epoch)).map(|drain| drain.created_at);
            (Code::DrainQueued, false, "its node waits for its turn".to_owned(), asked)
        }
        Class::Stateful if !part.options.include_stateful => {
            let message = "its data is on a volume of this node".to_owned();
            (Code::VolumeLocal, !part.options.ack_stateful, message, started)
        }
        Class::Store => stores::why(cluster, part, instance, seen),
        _ if instance.desired == Desired::Draining => {
            let edges = (seen.edges_left)(instance.id);
            let message = format!("{edges} edges have not confirmed that they send nothing there");
            (Code::EdgeConfirming, false, message, Some(instance.desired_since))
        }
        _ if instance.desired == Desired::Stopped => {
            let message = "told to stop; its node has not said that it has".to_owned();
            (Code::GracePeriod, false, message, Some(instance.desired_since))
        }
        Class::Stateless | Class::Stateful | Class::System
            if let Some(Paused { code, since }) = seen.paused.filter(|_| replacement.is_none()) =>
        {
            (code, false, paused_message(code).to_owned(), Some(since))
        }
        Class::Batch => {
            (Code::BatchRunning, false, "runs to its end, or to the deadline".to_owned(), started)
        }
        Class::System if must_leave(cluster, instance) == Leave::No => {
            (Code::SystemLast, false, "leaves when nothing else is left".to_owned(), started)
        }
        Class::Stateless | Class::Stateful | Class::System => {
            waits_for(cluster, part, instance, replacement, seen)
        }
    };
    let unit = stores::unit_of(cluster, instance);
    UnitStatus { id: instance.id, unit, class, code, blocks, message, since }
}

/// One that is gone, and whose scratch data is still needed from here.
fn copying(cluster: &Cluster, old: &Instance, taker: Option<&Instance>, seen: &Seen<'_>) -> UnitStatus {
    let placed = taker.map(|taker| {
        let (name, node) = (cluster.instance_name(taker), &cluster.node(taker.node).rec.id);
        (Code::DiskCopying, format!("{name} on {node} takes its scratch data over"), Some(taker.created_at))
    });
    let told = || {
        let told = (seen.reasons)(old.service).first();
        told.map(|reason| (reason.code, reason.message.clone(), reason.since))
    };
    let waits = || (Code::DiskCopying, "its successor is to take its scratch data over".to_owned(), None);
    let (code, message, since) = placed.or_else(told).unwrap_or_else(waits);
    let unit = format!("instance/{}", cluster.instance_name(old));
    UnitStatus { id: old.id, unit, class: class_of(cluster, old), code, blocks: false, message, since }
}

/// Why a stateless instance has not begun to leave.
fn waits_for(
    cluster: &Cluster,
    part: &DrainNode,
    instance: &Instance,
    replacement: Option<&Instance>,
    seen: &Seen<'_>,
) -> Why {
    let told = (seen.reasons)(instance.service)
        .iter()
        .find(|reason| !matches!(reason.code, Code::VolumeHomeNodeOffline));
    // One that is up and lets nobody go fills a place that was missing meanwhile.
    let stands_in =
        |new: &&Instance| !(new.is_available() && told.is_some_and(|told| has_no_place(told.code)));
    if let Some(replacement) = replacement.filter(stands_in) {
        let (name, node) = (cluster.instance_name(replacement), &cluster.node(replacement.node).rec.id);
        let message = format!("{name} on {node} is {}", replacement.actual.as_str());
        return (Code::ReplacementStarting, false, message, Some(replacement.created_at));
    }
    if let Some(reason) = told {
        let blocks = reason.code == Code::ReplacementUnhealthy;
        return (reason.code, blocks, reason.message.clone(), reason.since);
    }
    (Code::MaxParallel, false, "others of its service are on the move".to_owned(), part.started_at)
}

/// What takes the place of an instance.
fn replacement<'a>(cluster: &'a Cluster, instance: &Instance) -> Option<&'a Instance> {
    let entry = cluster.service(instance.service)?;
    let coming = entry.settled.replacing(instance.id).filter_map(|id| entry.instances.get(&id));
    // One on a node that is to be left as well helps nobody.
    coming.filter(|new| new.is_wanted() && !cluster.node(new.node).is_closed()).last()
}

fn estimate(
    cluster: &Cluster,
    part: &DrainNode,
    units: &[UnitStatus],
    seen: &Seen<'_>,
    now: Time,
) -> (Option<Millis>, String) {
    let moving =
        units.iter().filter(|unit| matches!(unit.class, Class::Stateless | Class::System)).count() as u64;
    if units.iter().any(|unit| unit.blocks) {
        return (None, "something blocks it".to_owned());
    }
    if units.iter().any(|unit| unit.class == Class::Batch) {
        let until = part.deadline.map(|deadline| deadline.since(now));
        return (until, "batch instances run to their end, or to the deadline".to_owned());
    }
    if units.iter().any(|unit| has_no_place(unit.code)) {
        let until = part.deadline.filter(|_| !part.deadline_reached).map(|deadline| deadline.since(now));
        return (until, "there is no room elsewhere: until there is, or to the deadline".to_owned());
    }
    if let Some(estimate) = stores::estimate(cluster, units, seen) {
        return estimate;
    }
    if let Some(started) = part.started_at.filter(|_| part.done > 0) {
        let each = now.since(started).0 / u64::from(part.done);
        let basis = match part.done {
            1 => "pace of the one move so far".to_owned(),
            done => format!("pace of the last {done} moves"),
        };
        return (Some(Millis(each * moving)), basis);
    }
    // Only these wait for a replacement; the others just stop.
    let stateless = units.iter().filter(|unit| unit.class == Class::Stateless);
    let waves = stateless.filter_map(|unit| wave_time(cluster, unit.id));
    let longest = waves.max().unwrap_or_default();
    (Some(longest), "min_healthy_time \u{d7} waves".to_owned())
}

fn has_no_place(code: Code) -> bool {
    matches!(code, Code::NoCapacityMemory | Code::NoEligibleNode | Code::ConstraintUnsatisfied)
}

/// How long the moves of one service take by its policy.
fn wave_time(cluster: &Cluster, id: InstanceId) -> Option<Millis> {
    let instance = cluster.instance(id)?;
    let entry = cluster.service(instance.service)?;
    let migrate = &entry.rec.spec().migrate;
    let here = entry.on.get(&instance.node).copied().unwrap_or(1).max(1);
    let waves = u64::from(here.div_ceil(migrate.max_parallel));
    Some(Millis(waves * (migrate.min_healthy_time.0 + START_GUESS.0)))
}
