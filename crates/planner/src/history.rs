//! What is kept of instances that are over.

use std::collections::BTreeMap;

use model::{Cluster, Instance, InstanceId, Kind, ServiceIx};

use crate::{
    scratch::{Keep, is_taken_over, keep, takers},
    slots::settles_its_slot,
};

/// Over instances kept per service: enough to see what happened and to reach the longest backoff.
pub const HISTORY_KEPT: usize = 8;

/// The instances of a service whose records and directories may go, oldest first.
pub fn to_forget(cluster: &Cluster, service: ServiceIx) -> Vec<InstanceId> {
    let Some(entry) = cluster.service(service) else { return Vec::new() };
    // A batch instance that is done is what says that its slot needs no other.
    let needed = |instance: &Instance| !entry.rec.removed && settles_its_slot(&entry.rec, instance);
    let over = entry.unsettled().filter(|instance| instance.is_over() && !needed(instance));
    if entry.rec.removed {
        return over.map(|instance| instance.id).collect();
    }
    if entry.rec.spec().kind == Kind::Store {
        // The last process of a store is what its volume is destroyed with, or its successor follows.
        let followed = |old: &Instance| {
            let mut later =
                entry.instances.values().filter(|other| other.slot == old.slot && other.id > old.id);
            later.next().is_some() || cluster.store_of(old).is_none()
        };
        return over.filter(|instance| followed(instance)).map(|instance| instance.id).collect();
    }
    let over: Vec<&Instance> = over.collect();
    // Most services have nothing to hand on, and are not walked through for it.
    let left = over.iter().any(|instance| instance.scratch.is_left());
    let takers = if left { takers(cluster, service) } else { BTreeMap::new() };
    let taken = left && is_taken_over(cluster, service);
    let (mut history, mut forget) = (Vec::new(), Vec::new());
    for instance in over {
        match keep(instance, takers.get(&instance.id).copied(), taken) {
            Keep::AsHistory => history.push(instance.id),
            Keep::Must => {}
            Keep::No => forget.push(instance.id),
        }
    }
    forget.extend(&history[..history.len().saturating_sub(HISTORY_KEPT)]);
    forget.sort_unstable();
    forget
}
