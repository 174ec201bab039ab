//! Processes of stores: ordinary instances, each with its store's ordinal as its slot, and their volumes.

use model::{Change, Cluster, Code, Desired, Exit, Instance, InstanceId, Intent, Store, Volume, VolumeId};

use super::decide::Process;
use crate::{
    reconcile::{NotPlaced, Plan},
    slots,
};

/// The process of a store that is not known to have ended, or else the last one.
pub(super) fn instance_of<'a>(cluster: &'a Cluster, store: &Store) -> Option<&'a Instance> {
    let service = cluster.service_ix(store.group.as_str())?;
    let mine = || cluster.instances_of(service).filter(|instance| instance.slot == Some(store.ordinal));
    mine().filter(|instance| !instance.is_over()).last().or_else(|| mine().last())
}

/// Where the backend knows a process by.
pub fn address_of(cluster: &Cluster, instance: &Instance) -> Option<String> {
    let entry = cluster.service(instance.service)?;
    let group = cluster.store_group(entry.rec.name.as_str())?;
    let at = entry.rec.spec_of(instance.release).port_index(&group.spec.port)?;
    let port = instance.ports.get(at)?;
    let host = &cluster.node(instance.node).rec.host;
    Some(match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    })
}

/// A store's process as deciding sees it.
pub fn process_of(cluster: &Cluster, store: &Store) -> Process {
    let Some(instance) = instance_of(cluster, store) else { return Process::None { address: None } };
    let (id, address) = (instance.id, address_of(cluster, instance));
    if instance.is_over() {
        return match (address, instance.exit) {
            (None, Some(Exit::Unknown)) => Process::Lost,
            (address, _) => Process::None { address },
        };
    }
    let reachable = !cluster.node(instance.node).rec.is_offline();
    match instance.desired {
        Desired::Draining | Desired::Stopped => Process::Stopping { id },
        Desired::Running if !reachable => Process::Unseen { id },
        Desired::Running if instance.is_available() => Process::Ready { id, address },
        Desired::Running => Process::Starting { id, address },
    }
}

/// Its node is to be emptied of it: it drains, or has drained and stays out.
pub fn is_to_leave(cluster: &Cluster, instance: &Instance) -> bool {
    let node = cluster.node(instance.node);
    node.is_draining() || matches!(node.rec.intent, Intent::Drained | Intent::Stopping)
}

/// Why a store has not left its node, by the records alone.
pub fn left_code(cluster: &Cluster, instance: &Instance) -> Code {
    let Some(store) = cluster.store_of(instance) else { return Code::DataMoving };
    let movable = cluster.store_group(store.group.as_str()).is_some_and(|group| group.spec.movable.is_some());
    match (&store.trouble, &store.removal) {
        (Some(trouble), _) => trouble.code,
        (None, Some(removal)) if removal.begun.is_some() => Code::DataMoving,
        (None, _) if store.offline.is_some() || movable => Code::LeadersRemaining,
        (None, _) => Code::ReplicasNotEnough,
    }
}

/// Processes of stores that are no more and have ended: their volumes are to be destroyed with what they left.
pub fn to_destroy(cluster: &Cluster, group: &str) -> Vec<(InstanceId, VolumeId)> {
    let Some(record) = cluster.store_group(group) else { return Vec::new() };
    let gone = cluster.stores_of(group).filter(|store| record.destroyed || store.removed_at.is_some());
    let last = gone.filter_map(|store| Some((store, instance_of(cluster, store)?)));
    let over = last.filter(|(_, instance)| instance.is_over());
    over.filter_map(|(store, instance)| Some((instance.id, volume_id(cluster, store)?))).collect()
}

pub(super) fn volume_id(cluster: &Cluster, store: &Store) -> Option<VolumeId> {
    let rec = &cluster.service_by_name(store.group.as_str())?.rec;
    let name = &rec.spec().volume.as_ref()?.name;
    Some(VolumeId::new(&format!("{}-{name}-{}", rec.name, store.ordinal)))
}

/// Starts what does not run and should.
pub(super) fn ensure(plan: &mut Plan<'_, '_>, store: &Store, movable: bool) -> Result<(), NotPlaced> {
    let release = plan.service_rec().release_to_place();
    plan.backoff(release, Some(store.ordinal))?;
    if !movable {
        return slots::place_at_home(plan, release, store.ordinal);
    }
    let Some(id) = volume_id(plan.cluster(), store) else { return Ok(()) };
    let known = plan.cluster().volume(id.as_str()).cloned();
    let home = known.as_ref().and_then(|volume| plan.cluster().node_ix(volume.home.as_str()));
    let node = match home.filter(|home| plan.fits_on(release, *home)) {
        Some(home) => home,
        None => plan.choose_node(release)?,
    };
    let at = plan.cluster().node(node).rec.id.clone();
    let volume = match known {
        Some(volume) => Volume { home: at, ..volume },
        None => {
            let name = plan.service_rec().spec().volume.as_ref().map_or(String::new(), |v| v.name.clone());
            slots::new_volume(plan, id, name, store.ordinal, node)
        }
    };
    if plan.cluster().volume(volume.id.as_str()) != Some(&volume) {
        plan.txn.put(Change::Volume(volume));
    }
    plan.place_on(release, node, Some(store.ordinal))
}

/// Whether the successor of this process will find room: where it was, or elsewhere if it must leave.
pub(super) fn finds_room(plan: &mut Plan<'_, '_>, id: InstanceId, movable: bool) -> Result<(), NotPlaced> {
    let Some(instance) = plan.cluster().instance(id) else { return Ok(()) };
    let release = plan.service_rec().release_to_place();
    let (node, memory) = (plan.cluster().node(instance.node), instance.memory);
    let needs = plan.service_rec().spec_of(release).memory;
    let free = node.rec.capacity.memory.saturating_add(memory).saturating_sub(node.used.memory);
    if node.may_place() && needs <= free {
        return Ok(());
    }
    match movable {
        true => plan.choose_node(release).map(|_| ()),
        false => Err(plan.no_room()),
    }
}
