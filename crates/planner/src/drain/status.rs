//! What remains on a draining node, what it waits for and what blocks it.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Cluster, Code, Desired, DrainNode, DrainState, Instance, InstanceId, Millis, Reason, ServiceIx, Time,
};

use super::leave::{Class, Leave, class_of, must_leave};

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
    pub progress: f64,
    pub eta: Option<Millis>,
    pub eta_basis: String,
}

/// What the coordinator knows beside the records.
pub struct Seen<'a> {
    pub reasons: &'a dyn Fn(ServiceIx) -> &'a [Reason],
    pub edges_left: &'a dyn Fn(InstanceId) -> usize,
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
    let coming = replacements(cluster, &left);
    let show = |instance: &&Instance| unit(cluster, part, instance, coming.get(&instance.id).copied(), seen);
    let units: Vec<UnitStatus> = left.iter().map(show).collect();
    let progress = match (part.state, part.total) {
        (DrainState::Queued, _) => 0.0,
        (_, 0) => 1.0,
        (_, total) => f64::from(part.done) / f64::from(total),
    };
    let (eta, eta_basis) = estimate(cluster, part, &units, now);
    Status { units, progress, eta, eta_basis }
}

/// Why a unit has not left, whether a person is needed, and since when.
type Why = (Code, bool, String, Option<Time>);

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
        _ if instance.desired == Desired::Draining => {
            let edges = (seen.edges_left)(instance.id);
            let message = format!("{edges} edges have not confirmed that they send nothing there");
            (Code::EdgeConfirming, false, message, Some(instance.desired_since))
        }
        _ if instance.desired == Desired::Stopped => {
            let message = "told to stop; its node has not said that it has".to_owned();
            (Code::GracePeriod, false, message, Some(instance.desired_since))
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
    let unit = format!("instance/{}", cluster.instance_name(instance));
    UnitStatus { id: instance.id, unit, class, code, blocks, message, since }
}

/// Why a stateless instance has not begun to leave.
fn waits_for(
    cluster: &Cluster,
    part: &DrainNode,
    instance: &Instance,
    replacement: Option<&Instance>,
    seen: &Seen<'_>,
) -> Why {
    if let Some(replacement) = replacement {
        let (name, node) = (cluster.instance_name(replacement), &cluster.node(replacement.node).rec.id);
        let message = format!("{name} on {node} is {}", replacement.actual.as_str());
        return (Code::ReplacementStarting, false, message, Some(replacement.created_at));
    }
    let told = (seen.reasons)(instance.service)
        .iter()
        .find(|reason| !matches!(reason.code, Code::VolumeHomeNodeOffline));
    if let Some(reason) = told {
        let blocks = reason.code == Code::ReplacementUnhealthy;
        return (reason.code, blocks, reason.message.clone(), reason.since);
    }
    (Code::MaxParallel, false, "others of its service are on the move".to_owned(), part.started_at)
}

/// What takes the place of what, in the services that have something on the node. Looked up once: a
/// search per unit would go through a large service a thousand times.
fn replacements<'a>(cluster: &'a Cluster, left: &[&Instance]) -> BTreeMap<InstanceId, &'a Instance> {
    let services: BTreeSet<ServiceIx> = left.iter().map(|instance| instance.service).collect();
    let wanted = services.into_iter().flat_map(|service| cluster.instances_of(service));
    wanted
        // One on a node that is to be left as well helps nobody.
        .filter(|instance| instance.is_wanted() && !cluster.node(instance.node).is_closed())
        .filter_map(|instance| Some((instance.replaces?, instance)))
        .collect()
}

fn estimate(
    cluster: &Cluster,
    part: &DrainNode,
    units: &[UnitStatus],
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
    if let Some(started) = part.started_at.filter(|_| part.done > 0) {
        let each = now.since(started).0 / u64::from(part.done);
        return (Some(Millis(each * moving)), format!("pace of the last {} moves", part.done));
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
