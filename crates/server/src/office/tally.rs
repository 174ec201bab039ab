//! Counters that follow from events.
//!
//! An event leaves the coordinator once it is committed; the state may be further on by then, so what
//! is looked up of it has to hold afterwards as well.

use std::collections::BTreeSet;

use model::{Actual, Cluster, Drain, DrainNode, Event, EventKind, Instance, InstanceId, Intent, NodeEntry};
use protocol::coordinator::{Class, FeedMoves, class_of};

use crate::metrics::Metrics;

#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Epoch and node of drains whose last stateless instance was seen to be gone.
    emptied: BTreeSet<(u64, String)>,
    /// Replacements that are counted.
    arrived: BTreeSet<InstanceId>,
    feeds: FeedMoves,
}

impl Tally {
    pub fn count(&mut self, metrics: &Metrics, cluster: &Cluster, event: &Event) {
        match event.kind {
            EventKind::InstanceAllocated => {
                metrics.placements.inc();
                if let Some(node) = replaced_on(cluster, event) {
                    metrics.rescheduled(node);
                }
            }
            EventKind::InstanceDesiredStateChanged => {
                if let Some(node) = evicted_from(cluster, event) {
                    metrics.evicted(node);
                }
            }
            EventKind::InstanceStatusChanged => {
                if let Some(took) = self.stateless_gone(cluster, event) {
                    metrics.drain_stateless.observe(took);
                }
                if let Some((class, outcome)) = self.moved(cluster, event) {
                    metrics.moved(class, outcome, 1);
                }
            }
            EventKind::DrainEnded | EventKind::DrainCancelled => self.ended(metrics, cluster, event),
            _ => {}
        }
    }

    /// Moves of feeds that came since the last look.
    pub fn count_feeds(&mut self, metrics: &Metrics, moves: FeedMoves) {
        let before = std::mem::replace(&mut self.feeds, moves);
        if before == moves {
            return;
        }
        metrics.moved("maintainers", "done", moves.maintainers_done - before.maintainers_done);
        metrics.moved("maintainers", "failed", moves.maintainers_failed - before.maintainers_failed);
        metrics.moved("dispatchers", "done", moves.dispatchers_done - before.dispatchers_done);
    }

    /// The class of an instance that a node empties of, once its replacement is up or has failed.
    fn moved(&mut self, cluster: &Cluster, event: &Event) -> Option<(&'static str, &'static str)> {
        let outcome = match field(event, "to") {
            Some("ready") => "done",
            Some("failed") => "failed",
            _ => return None,
        };
        let taker = instance_of(cluster, event)?;
        let old = cluster.instance(taker.replaces?)?;
        let moves = empties(cluster, cluster.node(old.node), event);
        (moves && self.arrived.insert(taker.id)).then(|| (class_of(cluster, old).as_str(), outcome))
    }

    fn ended(&mut self, metrics: &Metrics, cluster: &Cluster, event: &Event) {
        let (Some(epoch), Some(ending)) = (field(event, "epoch"), field(event, "state")) else { return };
        let (Ok(epoch), Some(node)) = (epoch.parse::<u64>(), event.unit.strip_prefix("node/")) else {
            return;
        };
        self.emptied.remove(&(epoch, node.to_owned()));
        let part = cluster.drain(epoch).and_then(|drain| drain.part(node));
        let started = part.and_then(|part| part.started_at);
        metrics.drain_ended(ending, started.map(|at| event.at.since(at).as_duration().as_secs_f64()));
    }

    /// How long it took from the node's turn, if this was the last stateless instance on it.
    fn stateless_gone(&mut self, cluster: &Cluster, event: &Event) -> Option<f64> {
        if !matches!(field(event, "to"), Some("stopped" | "failed")) {
            return None;
        }
        let stateless = |instance: &Instance| class_of(cluster, instance) == Class::Stateless;
        let instance = instance_of(cluster, event).filter(|instance| stateless(instance))?;
        let (drain, part) = drain_at(cluster, cluster.node(instance.node), event)?;
        let left = cluster.instances_on(instance.node).any(|other| !other.is_over() && stateless(other));
        if left || !self.emptied.insert((drain.epoch, part.node.to_string())) {
            return None;
        }
        part.started_at.map(|at| event.at.since(at).as_duration().as_secs_f64())
    }
}

fn field<'a>(event: &'a Event, name: &str) -> Option<&'a str> {
    event.fields.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
}

fn instance_of<'a>(cluster: &'a Cluster, event: &Event) -> Option<&'a Instance> {
    let id: InstanceId = event.unit.strip_prefix("instance/")?.parse().ok()?;
    cluster.instance(id)
}

/// The part of a drain in whose turn it happened.
fn drain_at<'a>(cluster: &'a Cluster, node: &NodeEntry, event: &Event) -> Option<(&'a Drain, &'a DrainNode)> {
    let drain = cluster.last_drain_of(node.rec.id.as_str())?;
    let part = drain.part(node.rec.id.as_str())?;
    let begun = part.started_at.is_some_and(|at| at <= event.at);
    (begun && part.ended_at.is_none_or(|at| at >= event.at)).then_some((drain, part))
}

fn empties(cluster: &Cluster, node: &NodeEntry, event: &Event) -> bool {
    node.rec.intent == Intent::Disabled || drain_at(cluster, node, event).is_some()
}

/// The node that an instance was told to leave because the node empties.
fn evicted_from<'a>(cluster: &'a Cluster, event: &Event) -> Option<&'a str> {
    let instance = instance_of(cluster, event).filter(|_| field(event, "from") == Some("running"))?;
    let node = cluster.node(instance.node);
    empties(cluster, node, event).then(|| node.rec.id.as_str())
}

/// The node whose loss or emptying made this placement necessary.
fn replaced_on<'a>(cluster: &'a Cluster, event: &Event) -> Option<&'a str> {
    let old = cluster.instance(instance_of(cluster, event)?.replaces?)?;
    let node = cluster.node(old.node);
    (old.actual == Actual::Lost || empties(cluster, node, event)).then(|| node.rec.id.as_str())
}
