//! What is kept of instances that are over.

use model::{Cluster, Instance, InstanceId, ServiceIx};

use crate::slots::settles_its_slot;

/// Over instances kept per service: enough to see what happened and to reach the longest backoff.
pub const HISTORY_KEPT: usize = 8;

/// The instances of a service whose records and directories may go, oldest first.
pub fn to_forget(cluster: &Cluster, service: ServiceIx) -> Vec<InstanceId> {
    let Some(entry) = cluster.service(service) else { return Vec::new() };
    // A batch instance that is done is what says that its slot needs no other.
    let needed = |instance: &Instance| !entry.rec.removed && settles_its_slot(&entry.rec, instance);
    let over = entry.unsettled().filter(|instance| instance.is_over() && !needed(instance));
    let over: Vec<InstanceId> = over.map(|instance| instance.id).collect();
    let kept = if entry.rec.removed { 0 } else { HISTORY_KEPT };
    over[..over.len().saturating_sub(kept)].to_vec()
}
