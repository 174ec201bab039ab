//! A node as the API shows it.

use std::collections::BTreeMap;

use model::{Code, Health, MemoryCaps, NodeEntry, NodeIx, Resources, Time};
use protocol::coordinator::{Coordinator, Liveness, Seen};
use protocol::message::Inventory;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ReasonView, drain_reasons, rfc3339};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    pub id: String,
    /// `coordinator`, `worker`, `edge`.
    pub roles: Vec<String>,
    /// `draining`, or `queued` while it waits for its turn in a drain; else the intent.
    pub state: String,
    /// What the operator wants: `active`, `drained`, `stopping`, `disabled`.
    pub intent: String,
    /// What is seen: `up`, `degraded`, `offline`.
    pub health: String,
    pub health_since: String,
    /// Whether the coordinator is on this node.
    pub coordinator: bool,
    /// Whether its daemon has a stream to the coordinator.
    pub connected: bool,
    /// The last heartbeat in this term; null before the first.
    pub last_heartbeat: Option<String>,
    pub process_epoch: u64,
    /// Where its daemon answers HTTP.
    pub address: String,
    /// Where its instances are reached.
    pub host: String,
    pub labels: BTreeMap<String, String>,
    pub capacity: ResourcesView,
    /// What instances that are not over take.
    pub used: ResourcesView,
    pub counts: CountsView,
    /// How memory caps are enforced: `cgroup_v2`, `cgroup_v1`, `none`.
    pub memory_caps: String,
    /// What runs there and is in no record: shown, counted, left running.
    pub unclaimed: Vec<UnclaimedView>,
    pub drain_epoch: Option<u64>,
    /// What it is to those who know it as a capture: 0 alive, 1 stopping, 2 draining. Null from a coordinator
    /// that does not say.
    #[serde(default)]
    pub liveness: Option<u8>,
    pub reasons: Vec<ReasonView>,
    pub registered_at: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResourcesView {
    /// Bytes.
    pub memory: u64,
    /// Thousandths of a core.
    pub cpu: u64,
}

/// What is on the node and not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountsView {
    pub instances: u64,
    pub maintainers: u64,
    pub dispatchers: u64,
    pub stores: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnclaimedView {
    pub instance: String,
    pub service: String,
    pub actual: String,
    pub pid: Option<u32>,
    pub ports: Vec<u16>,
}

impl From<Resources> for ResourcesView {
    fn from(resources: Resources) -> ResourcesView {
        ResourcesView { memory: resources.memory, cpu: resources.cpu }
    }
}

impl From<&Inventory> for UnclaimedView {
    fn from(item: &Inventory) -> UnclaimedView {
        UnclaimedView {
            instance: item.status.instance.named(&item.service),
            service: item.service.to_string(),
            actual: item.status.actual.as_str().to_owned(),
            pid: item.status.pid,
            ports: item.status.ports.clone(),
        }
    }
}

pub(crate) fn node_state(entry: &NodeEntry) -> &'static str {
    match &entry.drain {
        Some(drain) if drain.draining => "draining",
        Some(_) => "queued",
        None => entry.rec.intent.as_str(),
    }
}

/// `acting` is the candidate that is the coordinator.
pub(crate) fn node_view(coordinator: &Coordinator, ix: NodeIx, acting: &str, now: Time) -> NodeView {
    let cluster = coordinator.cluster();
    let entry = cluster.node(ix);
    let (rec, seen) = (&entry.rec, coordinator.seen(ix));
    let running = || cluster.instances_on(ix).filter(|instance| !instance.is_over());
    let stores = running().filter(|instance| cluster.store_of(instance).is_some()).count();
    let instances = running().count() - stores;
    NodeView {
        id: rec.id.to_string(),
        roles: rec.roles.iter().map(|role| role.as_str().to_owned()).collect(),
        state: node_state(entry).to_owned(),
        intent: rec.intent.as_str().to_owned(),
        health: rec.health.as_str().to_owned(),
        health_since: rfc3339(rec.health_since),
        coordinator: rec.id.as_str() == acting,
        connected: seen.is_some_and(|seen| seen.connected),
        last_heartbeat: seen.map(|seen| rfc3339(seen.last_heartbeat)),
        process_epoch: rec.process_epoch.0,
        address: rec.api.clone(),
        host: rec.host.clone(),
        labels: rec.labels.clone(),
        capacity: rec.capacity.into(),
        used: entry.used.into(),
        counts: CountsView {
            instances: instances as u64,
            maintainers: cluster.maintainer_count(&rec.id) as u64,
            dispatchers: dispatchers_said(coordinator, ix),
            stores: stores as u64,
        },
        memory_caps: match rec.memory_caps {
            MemoryCaps::CgroupV2 => "cgroup_v2",
            MemoryCaps::CgroupV1 => "cgroup_v1",
            MemoryCaps::None(_) => "none",
        }
        .to_owned(),
        unclaimed: seen.map(|seen| seen.unclaimed.iter().map(Into::into).collect()).unwrap_or_default(),
        drain_epoch: entry.drain.as_ref().map(|drain| drain.epoch),
        liveness: Some(Liveness::of(entry).number()),
        reasons: reasons(entry, seen, now)
            .into_iter()
            .chain(drain_reasons(coordinator, entry, now))
            .collect(),
        registered_at: rfc3339(rec.registered_at),
    }
}

/// As the node itself said last.
pub(super) fn dispatchers_said(coordinator: &Coordinator, ix: NodeIx) -> u64 {
    let said = coordinator.dispatchers_last_said(ix);
    said.map_or(0, |counts| counts.values().map(|count| u64::from(*count)).sum())
}

fn reasons(entry: &NodeEntry, seen: Option<Seen<'_>>, now: Time) -> Vec<ReasonView> {
    let rec = &entry.rec;
    let unit = format!("node/{}", rec.id);
    let mut found = Vec::new();
    let mut say = |code: Code, since: Option<Time>, message: Option<String>| {
        found.push(ReasonView::new(code, unit.clone(), since, message.as_deref()));
    };
    match rec.health {
        Health::Up => {}
        Health::Degraded(code) => say(code, Some(rec.health_since), None),
        Health::Offline => {
            let silent = seen.map(|seen| now.since(seen.last_heartbeat));
            let message = silent.map(|silent| format!("no heartbeat for {}s", silent.0 / 1000));
            say(Code::NodeUnreachable, Some(rec.health_since), message);
        }
    }
    if rec.foreign {
        say(Code::ClusterMismatch, None, None);
    }
    if let (true, MemoryCaps::None(why)) = (rec.roles.worker, &rec.memory_caps) {
        say(Code::MemoryUncapped, None, Some(why.clone()));
    }
    if entry.used.memory > rec.capacity.memory {
        let (used, has) = (entry.used.memory, rec.capacity.memory);
        let text = |bytes| model::units::format_bytes(bytes);
        say(Code::CapacityBelowUse, None, Some(format!("{} of {} are in use", text(used), text(has))));
    }
    for (port, why) in seen.map(|seen| seen.edge.failed.as_slice()).unwrap_or_default() {
        say(Code::EdgeListenFailed, None, Some(format!("port {port}: {why}")));
    }
    found
}
