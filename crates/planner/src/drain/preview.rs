//! The same planner without the executor: what a drain would do, with budgets played through.

use std::collections::BTreeSet;

use model::{
    Actual, Change, Cluster, Desired, Drain, DrainNode, DrainOptions, DrainState, Ending, Exit, InstanceId,
    Millis, Reason, Time, Txn,
};

use super::{
    leave::{Class, class_of},
    queue::{Limits, advance, remaining},
    status::START_GUESS,
};
use crate::{Ids, reconcile};

/// More waves than this are not played through; the preview says so by its number.
const WAVES_MAX: u32 = 10_000;
/// A wave in which instances only stop: most do so well within their grace.
const STOP_GUESS: Millis = Millis::secs(1);

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
    take_out(&mut world, node, now);
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
        let (gone, hold) = round(&mut world, &mut ids, ix, limits, at, &mut out, wave);
        if gone == 0 {
            break;
        }
        out.waves = wave;
        let pause = hold.max(STOP_GUESS);
        (out.eta, at) = (Millis(out.eta.0 + pause.0), at + pause);
    }
    for instance in remaining(&world, ix) {
        leftover(&world, instance, &mut out, now);
    }
    out
}

/// A node that drains already would go on with these options instead.
fn take_out(world: &mut Cluster, node: &str, now: Time) {
    let Some(mut drain) = world.last_drain_of(node).cloned() else { return };
    for part in &mut drain.nodes {
        if part.node.as_str() == node && part.ending().is_none() {
            (part.state, part.ended_at) = (DrainState::Ended(Ending::Cancelled), Some(now));
        }
    }
    world.apply(&Change::Drain(drain));
}

/// One wave: plan, let what was placed become healthy, let what was told to go be gone. Returns how
/// many left the node, and how long the slowest of its replacements takes to count.
fn round(
    world: &mut Cluster,
    ids: &mut Ids,
    ix: model::NodeIx,
    limits: Limits,
    now: Time,
    out: &mut Preview,
    wave: u32,
) -> (usize, Millis) {
    let mut hold = Millis::ZERO;
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
            hold = hold.max(Millis(held.0 + START_GUESS.0));
            out.moves.extend(unit.map(|unit| Move { unit, to: Some(to), wave }));
        } else if let Some(old) = instance.replaces.and_then(|old| world.instance(old)) {
            // It stopped in an earlier wave, and what it left is taken from there.
            let unit = format!("instance/{}", world.instance_name(old));
            if let Some(gone) = out.moves.iter_mut().find(|m| m.unit == unit && m.to.is_none()) {
                gone.to = Some(world.node(instance.node).rec.id.to_string());
            }
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
    let gone = before.len() - remaining(world, ix).iter().filter(|i| before.contains(&i.id)).count();
    (gone, hold)
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
