//! The same planner without the executor: what a drain would do, with budgets played through.

use std::collections::BTreeSet;

use model::{
    Actual, Change, Cluster, Desired, Drain, DrainNode, DrainOptions, Exit, InstanceId, Millis, Reason, Time,
    Txn,
};

use super::{
    leave::{Class, class_of},
    queue::{Limits, advance, remaining},
};
use crate::{Ids, reconcile};

/// More waves than this are not played through; the preview says so by its number.
const WAVES_MAX: u32 = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    pub unit: String,
    /// `None`: it stops, and nothing takes its place elsewhere.
    pub to: Option<String>,
    pub wave: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preview {
    pub moves: Vec<Move>,
    pub blockers: Vec<Reason>,
    pub waits: Vec<Reason>,
    pub waves: u32,
    pub eta: Millis,
}

/// Plays the drain of one node through on a copy: every replacement becomes healthy, every stop ends.
/// Changes nothing.
pub fn preview(cluster: &Cluster, node: &str, options: &DrainOptions, limits: Limits, now: Time) -> Preview {
    let mut world = cluster.clone();
    let Some(ix) = world.node_ix(node) else { return Preview::default() };
    let mut ids = Ids::new(world.meta());
    let epoch = u64::MAX;
    let part = DrainNode::queued(world.node(ix).rec.id.clone(), options.clone());
    let drain = Drain {
        epoch,
        by: String::new(),
        from: String::new(),
        message: String::new(),
        meta: Default::default(),
        created_at: now,
        nodes: vec![part],
    };
    world.apply(&Change::Drain(drain));
    let mut out = Preview::default();
    let mut at = now;
    // Alone: what else drains is another matter.
    let limits = Limits { nodes_at_once: u32::MAX, ..limits };
    for wave in 1..=WAVES_MAX {
        let gone = round(&mut world, &mut ids, ix, limits, at, &mut out, wave);
        if gone == 0 {
            break;
        }
        out.waves = wave;
        let longest = out.moves.iter().filter(|m| m.wave == wave).count() as u64;
        let pause = longest_hold(&world).max(Millis(longest.min(1) * 1000));
        (out.eta, at) = (Millis(out.eta.0 + pause.0), at + pause);
    }
    for instance in remaining(&world, ix) {
        leftover(&world, instance, &mut out, now);
    }
    out
}

/// One wave: plan, let what was placed become healthy, let what was told to go be gone. Returns how
/// many left the node.
fn round(
    world: &mut Cluster,
    ids: &mut Ids,
    ix: model::NodeIx,
    limits: Limits,
    now: Time,
    out: &mut Preview,
    wave: u32,
) -> usize {
    let before: BTreeSet<InstanceId> = remaining(world, ix).iter().map(|instance| instance.id).collect();
    plan_all(world, ids, ix, limits, now, out);
    let fresh: Vec<_> = world
        .instances()
        .filter(|instance| instance.is_wanted() && instance.actual == Actual::Pending)
        .cloned()
        .collect();
    for mut instance in fresh {
        let spec = world.service(instance.service).map(|entry| entry.rec.spec_of(instance.release).clone());
        let held = spec.map_or(Millis::ZERO, |spec| spec.migrate.min_healthy_time);
        (instance.actual, instance.healthy_since) = (Actual::Ready, Some(now - held));
        if let Some(old) = instance.replaces.filter(|old| before.contains(old)) {
            let unit = world.instance(old).map(|old| format!("instance/{}", world.instance_name(old)));
            let to = world.node(instance.node).rec.id.to_string();
            out.moves.extend(unit.map(|unit| Move { unit, to: Some(to), wave }));
        }
        world.apply(&Change::Instance(instance));
    }
    plan_all(world, ids, ix, limits, now, out);
    let leaving: Vec<_> =
        world.instances().filter(|i| i.desired != Desired::Running && !i.is_over()).cloned().collect();
    for mut instance in leaving {
        let unit = format!("instance/{}", world.instance_name(&instance));
        if instance.node == ix && !out.moves.iter().any(|m| m.unit == unit) {
            out.moves.push(Move { unit, to: None, wave });
        }
        (instance.desired, instance.actual) = (Desired::Stopped, Actual::Stopped);
        (instance.exit, instance.ended_at) = (Some(Exit::Code(0)), Some(now));
        world.apply(&Change::Instance(instance));
    }
    before.len() - remaining(world, ix).iter().filter(|i| before.contains(&i.id)).count()
}

fn plan_all(
    world: &mut Cluster,
    ids: &mut Ids,
    ix: model::NodeIx,
    limits: Limits,
    now: Time,
    out: &mut Preview,
) {
    let mut txn = Txn::new(world, now);
    let _wake = advance(&mut txn, limits);
    drop(txn);
    let services: BTreeSet<_> = world.instances_on(ix).map(|instance| instance.service).collect();
    out.waits.clear();
    for service in services {
        loop {
            let mut txn = Txn::new(world, now);
            let planned = reconcile(&mut txn, ids, service);
            let (changes, _) = txn.finish();
            if changes.is_empty() {
                out.waits.extend(planned.reasons);
                break;
            }
        }
    }
}

fn longest_hold(world: &Cluster) -> Millis {
    let specs = world.services().map(|(_, entry)| entry.rec.spec().migrate.min_healthy_time);
    specs.max().unwrap_or_default()
}

fn leftover(world: &Cluster, instance: &model::Instance, out: &mut Preview, now: Time) {
    let unit = format!("instance/{}", world.instance_name(instance));
    let reason = |code: model::Code, message: &str| Reason {
        code,
        unit: unit.clone(),
        since: Some(now),
        message: message.to_owned(),
    };
    match class_of(world, instance) {
        Class::Stateful => {
            out.blockers.push(reason(model::Code::VolumeLocal, "its data is on a volume of this node"));
        }
        Class::Batch => {
            out.waits.push(reason(model::Code::BatchRunning, "runs to its end, or to the deadline"))
        }
        Class::System => out.waits.push(reason(model::Code::SystemLast, "leaves when nothing else is left")),
        Class::Stateless => {}
    }
}
