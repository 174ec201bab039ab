//! Whose turn it is, whose time is over, and who is done.

use std::collections::BTreeSet;

use model::{
    Change, Cluster, Code, Drain, DrainNode, DrainState, Ending, Instance, Intent, Millis, Node, NodeIx,
    ServiceIx, Then, Time, Txn,
};

use super::leave::{Class, class_of};
use crate::scratch;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Nodes that drain at a time; the others wait, closed, so that nothing hops from one to the next.
    pub nodes_at_once: u32,
    /// Without progress for this long, a drain says that it is stalled.
    pub stall_after: Millis,
    /// Of a drain that names none; `None` for none.
    pub default_deadline: Option<Millis>,
    /// Moves that give an open node its share back, at a time.
    pub balance_moves: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            nodes_at_once: 1,
            stall_after: Millis::secs(120),
            default_deadline: Some(Millis::secs(3600)),
            balance_moves: 2,
        }
    }
}

/// Brings every unfinished drain to where it stands now; returns when to look again.
pub fn advance(txn: &mut Txn<'_>, limits: Limits) -> Option<Time> {
    let unfinished: Vec<Drain> = txn.drains().filter(|drain| drain.is_unfinished()).cloned().collect();
    let mut wake: Option<Time> = None;
    for mut drain in unfinished.clone() {
        let before = drain.clone();
        for part in &mut drain.nodes {
            if part.state == DrainState::Draining {
                step(txn, part, limits);
            }
        }
        store(txn, &before, drain);
    }
    let mut slots = limits.nodes_at_once.saturating_sub(busy(txn));
    for epoch in unfinished.iter().map(|drain| drain.epoch) {
        let Some(before) = txn.drain(epoch).cloned() else { continue };
        let mut drain = before.clone();
        for part in drain.nodes.iter_mut().filter(|part| part.state == DrainState::Queued) {
            if slots == 0 {
                break;
            }
            slots -= 1;
            begin(txn, part);
            // It may have nothing on it, or no time at all.
            step(txn, part, limits);
        }
        store(txn, &before, drain);
    }
    for part in txn.drains().flat_map(|drain| &drain.nodes).filter(|part| part.state == DrainState::Draining)
    {
        let deadline = part.deadline.filter(|_| !part.deadline_reached);
        let stall = part.progress_at.map(|at| at + limits.stall_after).filter(|at| *at > txn.now());
        wake = [wake, deadline, stall].into_iter().flatten().min();
    }
    wake
}

fn store(txn: &mut Txn<'_>, before: &Drain, drain: Drain) {
    if *before == drain {
        return;
    }
    let ended: Vec<DrainNode> = drain
        .nodes
        .iter()
        .filter(|part| {
            part.ending().is_some() && before.part(part.node.as_str()).is_some_and(|b| b.ending().is_none())
        })
        .cloned()
        .collect();
    txn.put(Change::Drain(drain));
    for part in ended {
        follow_ending(txn, &part);
    }
}

/// A node that has drained stays out; one whose drain was cancelled or failed was never out.
fn follow_ending(txn: &mut Txn<'_>, part: &DrainNode) {
    let Some(Ending::Drained | Ending::DrainedExcept | Ending::NodeLost) = part.ending() else { return };
    let Some(entry) = txn.node_by_id(part.node.as_str()) else { return };
    let intent = match part.options.then {
        Then::Stay => Intent::Drained,
        Then::Stop => Intent::Stopping,
    };
    let next = Node { intent, ..entry.rec.clone() };
    txn.put(Change::Node(next));
}

/// Nodes that use a slot. One with nothing but blockers left gives it back.
fn busy(cluster: &Cluster) -> u32 {
    let draining = cluster.nodes().filter(|(ix, node)| {
        node.is_draining() && {
            let units = remaining(cluster, *ix);
            units.is_empty() || units.iter().any(|unit| !blocked(cluster, unit))
        }
    });
    draining.count() as u32
}

fn blocked(cluster: &Cluster, instance: &Instance) -> bool {
    let included = cluster.node(instance.node).drain.as_ref().is_some_and(|drain| drain.include_stateful);
    class_of(cluster, instance) == Class::Stateful && !included
}

fn begin(txn: &Txn<'_>, part: &mut DrainNode) {
    let now = txn.now();
    part.state = DrainState::Draining;
    part.started_at = Some(now);
    part.progress_at = Some(now);
    part.deadline = part.options.deadline.map(|span| now + span);
    part.total = txn.node_ix(part.node.as_str()).map_or(0, |ix| units(txn, ix, &part.options).len() as u32);
}

/// What a drain of this node still has to see off: everything the node has not reported stopped.
pub fn remaining(cluster: &Cluster, node: NodeIx) -> Vec<&Instance> {
    let ignore_system = cluster.node(node).drain.as_ref().is_some_and(|drain| drain.ignore_system);
    left_on(cluster, node, ignore_system)
}

fn units<'a>(cluster: &'a Cluster, node: NodeIx, options: &model::DrainOptions) -> Vec<&'a Instance> {
    left_on(cluster, node, options.ignore_system)
}

fn left_on(cluster: &Cluster, node: NodeIx, ignore_system: bool) -> Vec<&Instance> {
    let running = cluster.instances_on(node).filter(|instance| !instance.is_over());
    running.filter(|instance| !ignore_system || class_of(cluster, instance) != Class::System).collect()
}

/// One look at a node that drains.
fn step(txn: &Txn<'_>, part: &mut DrainNode, limits: Limits) {
    let now = txn.now();
    let Some(ix) = txn.node_ix(part.node.as_str()) else {
        return end(part, Ending::Failed, now);
    };
    if txn.node(ix).rec.is_offline() {
        return end(part, Ending::NodeLost, now);
    }
    part.deadline_reached |= part.deadline.is_some_and(|deadline| deadline <= now);
    let left = units(txn, ix, &part.options);
    let done = part.total.saturating_sub(left.len() as u32);
    if done > part.done {
        (part.done, part.progress_at) = (done, Some(now));
    }
    let stateful = |instance: &&&Instance| class_of(txn, instance) == Class::Stateful;
    let stays = left.iter().filter(stateful).count();
    part.blocked = stays > 0 && !part.options.include_stateful && !part.options.ack_stateful;
    part.stalled = part.progress_at.is_some_and(|at| now.since(at) >= limits.stall_after);
    // What is copied from the node needs the node; past the deadline nothing is waited for.
    let done_with = || replacements_are_up(txn, ix, part) && scratch::handed_over(txn, ix).is_empty();
    if left.is_empty() && (part.deadline_reached || done_with()) {
        return end(part, Ending::Drained, now);
    }
    let may_stay = !part.options.include_stateful && (part.options.ack_stateful || part.deadline_reached);
    if !left.is_empty() && stays == left.len() && may_stay {
        let unit =
            |instance: &&Instance| (format!("instance/{}", txn.instance_name(instance)), Code::VolumeLocal);
        part.left = left.iter().map(unit).collect();
        end(part, Ending::DrainedExcept, now);
    }
}

fn end(part: &mut DrainNode, ending: Ending, now: Time) {
    part.state = DrainState::Ended(ending);
    part.ended_at = Some(now);
    (part.blocked, part.stalled) = (false, false);
}

/// Without surge an instance stops before its replacement starts: the drain is done when that one is up.
fn replacements_are_up(cluster: &Cluster, node: NodeIx, part: &DrainNode) -> bool {
    let since = part.started_at.unwrap_or_default();
    let gone = cluster.instances_on(node).filter(|i| i.is_over() && i.ended_at.is_some_and(|at| at >= since));
    let stateless = gone.filter(|instance| class_of(cluster, instance) == Class::Stateless);
    let services: BTreeSet<ServiceIx> = stateless.map(|instance| instance.service).collect();
    services.into_iter().all(|service| {
        let Some(entry) = cluster.service(service) else { return true };
        let up = cluster.instances_of(service).filter(|other| other.is_available());
        entry.rec.removed || up.count() >= entry.rec.count as usize
    })
}
