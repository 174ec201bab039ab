//! Which instances must leave their node, and how.

use model::{Cluster, Instance, Intent, Kind, NodeEntry, ServiceIx};

use super::queue::left;

/// How a unit leaves a node differs by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Stateless,
    Stateful,
    Batch,
    System,
    Store,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// It may stay.
    No,
    /// Once its replacement is healthy, or as `surge = false` says.
    Move,
    /// Without its replacement being waited for.
    Now,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Stateless => "stateless",
            Class::Stateful => "stateful",
            Class::Batch => "batch",
            Class::System => "system",
            Class::Store => "store",
        }
    }
}

pub fn class_of(cluster: &Cluster, instance: &Instance) -> Class {
    class_of_release(cluster, instance.service, instance.release)
}

pub(super) fn class_of_release(cluster: &Cluster, service: ServiceIx, release: u32) -> Class {
    let Some(entry) = cluster.service(service) else { return Class::Stateless };
    let spec = entry.rec.spec_of(release);
    match spec.kind {
        Kind::Batch => Class::Batch,
        Kind::System => Class::System,
        Kind::Store => Class::Store,
        Kind::Service if spec.is_stateful() => Class::Stateful,
        Kind::Service => Class::Stateless,
    }
}

/// Whether an instance must leave its node, by the node's intent and drain alone.
pub fn must_leave(cluster: &Cluster, instance: &Instance) -> Leave {
    let node = cluster.node(instance.node);
    let class = class_of(cluster, instance);
    match node.rec.intent {
        Intent::Disabled => match class {
            Class::Stateless | Class::Batch | Class::System => Leave::Now,
            Class::Stateful | Class::Store => Leave::No,
        },
        // Out already, and drained once more: for what was left behind.
        Intent::Drained | Intent::Stopping if node.is_draining() => by_drain(cluster, node, instance, class),
        Intent::Drained | Intent::Stopping => match class {
            Class::Stateless => Leave::Move,
            Class::Stateful | Class::Batch | Class::System | Class::Store => Leave::No,
        },
        Intent::Active => by_drain(cluster, node, instance, class),
    }
}

fn by_drain(cluster: &Cluster, node: &NodeEntry, instance: &Instance, class: Class) -> Leave {
    let Some(drain) = node.drain.as_ref().filter(|drain| drain.draining) else { return Leave::No };
    match class {
        Class::Stateless if drain.deadline_reached => Leave::Now,
        Class::Stateless => Leave::Move,
        Class::Batch if drain.deadline_reached => Leave::Now,
        Class::Batch => Leave::No,
        Class::Stateful if drain.include_stateful => Leave::Now,
        Class::Stateful => Leave::No,
        // Stores leave by their own rules: `planner::stores`.
        Class::Store => Leave::No,
        Class::System if drain.ignore_system => Leave::No,
        Class::System if drain.deadline_reached || nothing_else_left(cluster, instance) => Leave::Now,
        Class::System => Leave::No,
    }
}

/// System instances serve the others on their node: they go when only system instances are left, or
/// stateful ones that an operator has acknowledged.
fn nothing_else_left(cluster: &Cluster, instance: &Instance) -> bool {
    let acknowledged = cluster.node(instance.node).drain.as_ref().is_some_and(|drain| drain.ack_stateful);
    left(cluster, instance.node, false).all(|(_, class)| match class {
        Class::System => true,
        Class::Stateful => acknowledged,
        Class::Stateless | Class::Batch | Class::Store => false,
    })
}
