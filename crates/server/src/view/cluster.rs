//! The cluster as a whole: its status, its figures, what the checker says of it.

use std::collections::BTreeMap;

use model::{ServiceName, Time};
use protocol::coordinator::Coordinator;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ReasonView, is_of_stores, node_state, service::Tally, visible_actual};
use crate::{Slice, metrics::Figures};

/// Instances looked at in one go; heartbeats wait meanwhile.
const CENSUS_INSTANCES: usize = 20_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusView {
    /// The id that nodes remember, in hexadecimal.
    pub cluster: String,
    pub coordinator: CoordinatorView,
    /// Those that may be elected and are alive; null if the store does not say.
    pub candidates: Option<Vec<CandidateView>>,
    pub nodes: NodeTotals,
    pub services: ServiceTotals,
    /// By actual state.
    pub instances: BTreeMap<String, u64>,
    pub volumes: u64,
    /// What runs on nodes and is in no record.
    pub unclaimed: u64,
    pub store: Option<StoreView>,
    pub reasons: Vec<ReasonView>,
    pub time: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CoordinatorView {
    pub id: String,
    pub api: String,
    pub rpc: String,
    pub term: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CandidateView {
    pub id: String,
    pub api: String,
    pub rpc: String,
    pub coordinator: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeTotals {
    pub total: u64,
    pub by_state: BTreeMap<String, u64>,
    pub by_health: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceTotals {
    pub total: u64,
    pub ok: u64,
    pub degraded: u64,
    pub pending: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreView {
    pub description: String,
    /// Space taken on disk, and how much of it is live; bytes.
    pub disk_bytes: u64,
    pub used_bytes: u64,
}

/// What the checker found; empty is well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorView {
    pub ok: bool,
    /// How many instances were looked at.
    pub instances: u64,
    pub items: Vec<ViolationView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ViolationView {
    /// The number of the invariant in the design.
    pub invariant: u32,
    pub message: String,
}

/// Part of a count over all services.
#[derive(Debug, Default)]
pub(crate) struct Census {
    pub services: ServiceTotals,
    pub instances: BTreeMap<&'static str, u64>,
}

impl Census {
    /// One part: the services after `after`, until enough instances were looked at.
    pub fn part(
        coordinator: &Coordinator,
        _now: Time,
        after: Option<ServiceName>,
    ) -> Slice<Census, ServiceName> {
        let cluster = coordinator.cluster();
        let (mut census, mut looked, mut last) = (Census::default(), 0, None);
        let services = cluster.services();
        for (ix, entry) in
            services.skip_while(|(_, entry)| after.as_ref().is_some_and(|after| entry.rec.name <= *after))
        {
            if looked > CENSUS_INSTANCES {
                return Slice { items: vec![census], next: last };
            }
            last = Some(entry.rec.name.clone());
            if is_of_stores(&entry.rec) {
                continue;
            }
            census.services.total += 1;
            match Tally::of(cluster, ix, entry).state() {
                "ok" => census.services.ok += 1,
                "degraded" => census.services.degraded += 1,
                _ => census.services.pending += 1,
            }
            for instance in cluster.instances_of(ix) {
                *census.instances.entry(visible_actual(cluster, instance)).or_default() += 1;
                looked += 1;
            }
        }
        Slice { items: vec![census], next: None }
    }

    pub fn sum(parts: Vec<Census>) -> Census {
        let mut sum = Census::default();
        for part in parts {
            sum.services.total += part.services.total;
            sum.services.ok += part.services.ok;
            sum.services.degraded += part.services.degraded;
            sum.services.pending += part.services.pending;
            for (actual, count) in part.instances {
                *sum.instances.entry(actual).or_default() += count;
            }
        }
        sum
    }
}

impl NodeTotals {
    pub(crate) fn of(coordinator: &Coordinator) -> NodeTotals {
        let mut totals = NodeTotals::default();
        for (_, node) in coordinator.cluster().nodes() {
            totals.total += 1;
            *totals.by_state.entry(node_state(node).to_owned()).or_default() += 1;
            *totals.by_health.entry(node.rec.health.as_str().to_owned()).or_default() += 1;
        }
        totals
    }
}

/// What is counted for a scrape, but for the services, instances and drains.
pub(crate) fn figures(coordinator: &Coordinator, now: Time) -> Figures {
    let cluster = coordinator.cluster();
    let newest = coordinator.sets_revision();
    let totals = NodeTotals::of(coordinator);
    let signed = |counts: BTreeMap<String, u64>| counts.into_iter().map(|(k, n)| (k, n as i64)).collect();
    let mut figures = Figures {
        node_states: signed(totals.by_state),
        node_healths: signed(totals.by_health),
        acting: true,
        ..Figures::default()
    };
    for (ix, node) in cluster.nodes() {
        let seen = coordinator.seen(ix);
        if node.rec.roles.edge {
            figures.edges += 1;
            let serves = seen.and_then(|seen| seen.edge.serves);
            figures.edges_behind += i64::from(serves.is_none_or(|serves| serves < newest));
        }
        if let Some(seen) = seen {
            let age = now.since(seen.last_heartbeat).as_duration().as_secs_f64();
            figures.heartbeat_ages.push((node.rec.id.to_string(), age));
            figures.unclaimed += seen.unclaimed.len() as i64;
        }
    }
    figures
}
