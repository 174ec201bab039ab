//! Store groups and stores as the API shows them.

use model::{Kind, RestartWhy, Service, StoreGroup, Time, spec::StoreGroupFile};
use protocol::coordinator::{Coordinator, StoreStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ReasonView, rfc3339};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoreGroupView {
    pub name: String,
    /// How many stores are wanted.
    pub replicas: u32,
    /// How many serve in the backend while their process is ready.
    pub serving: u32,
    /// How many are on their way out.
    pub leaving: u32,
    /// `ok`, `degraded` (fewer serve than wanted), `pending` (none does), `removing`.
    pub state: String,
    /// `pd`, `redis-cluster`, `command`.
    pub backend: String,
    /// What the backend says that it needs; null before it said so.
    pub replicas_needed: Option<u64>,
    pub release: u32,
    pub stores: Vec<String>,
    pub reasons: Vec<ReasonView>,
    #[schema(value_type = super::StoreGroupShape)]
    pub spec: StoreGroupFile,
    pub created_at: String,
}

/// A member of a replicated data store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoreMemberView {
    pub id: String,
    pub group: String,
    pub node: Option<String>,
    /// Its process.
    pub instance: Option<String>,
    /// What its process does, as of an instance.
    pub process: Option<String>,
    /// What its backend calls it; null until it is known there.
    pub identity: Option<String>,
    /// What its backend says: `serving`, `removing`, `removed`, `unknown`.
    pub state: String,
    pub leaders: Option<u64>,
    /// False: the backend cannot be sure of that number yet.
    pub leaders_complete: bool,
    /// Bytes.
    pub data_left: Option<u64>,
    /// How much has left, from 0 to 1; null unless it leaves.
    pub progress: Option<f64>,
    /// Bytes a second.
    pub rate: Option<u64>,
    pub eta_seconds: Option<f64>,
    /// It is to go.
    pub offline: bool,
    /// It goes first when the group gets smaller.
    pub marked: bool,
    pub offlining: Option<OffliningView>,
    pub evictor: Option<EvictorView>,
    pub restart: Option<StoreWorkView>,
    /// What it waits for.
    pub wait: Option<ReasonView>,
    /// When the backend last said something of it.
    pub seen_at: Option<String>,
}

/// How far a store is on its way out, or back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OffliningView {
    /// `Pending`, `Active`, `Completed`, `Failed`, `Cancelled`.
    pub reason: String,
    pub message: String,
    pub since: String,
}

/// What keeps leaders away from a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvictorView {
    /// Otherwise somebody else's: used, never removed.
    pub ours: bool,
    pub names: Vec<String>,
    pub since: Option<String>,
}

/// A graceful restart, or the eviction of leaders alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreWorkView {
    /// `restart`, `evict-leader`.
    pub mode: String,
    /// `asked`, `update`, `drain`.
    pub why: String,
    pub began_at: String,
    /// When its present process was created; after `began_at`, it is the new one.
    pub created_at: Option<String>,
}

pub(crate) fn store_view(coordinator: &Coordinator, store: &model::Store, now: Time) -> StoreMemberView {
    let (cluster, status) = (coordinator.cluster(), coordinator.store_status(store, now));
    let since = coordinator.store_waits_since(&store.id);
    let wait = status.wait.as_ref().map(|wait| {
        ReasonView::new(wait.code, format!("store/{}", store.id), since, Some(wait.message.as_str()))
    });
    StoreMemberView {
        id: status.id.to_string(),
        group: status.group.to_string(),
        node: status.node.as_ref().map(ToString::to_string),
        instance: status
            .instance
            .and_then(|id| cluster.instance(id))
            .map(|instance| cluster.instance_name(instance)),
        process: status.process.map(|actual| actual.as_str().to_owned()),
        identity: status.identity.clone(),
        state: status.state.to_owned(),
        leaders: status.leaders.map(|leaders| leaders.value),
        leaders_complete: status.leaders.is_some_and(|leaders| leaders.complete),
        data_left: status.data,
        progress: status.progress,
        rate: status.rate,
        eta_seconds: status.eta.map(|eta| eta.as_duration().as_secs_f64()),
        offline: status.offline,
        marked: status.marked,
        offlining: status.offlining.as_ref().map(|offlining| OffliningView {
            reason: offlining.reason.as_str().to_owned(),
            message: offlining.message.clone(),
            since: rfc3339(offlining.since),
        }),
        evictor: status.evictor.as_ref().map(|evictor| EvictorView {
            ours: evictor.ours,
            names: evictor.names.clone(),
            since: evictor.since.map(rfc3339),
        }),
        restart: work(&status),
        wait,
        seen_at: status.seen_at.map(rfc3339),
    }
}

fn work(status: &StoreStatus) -> Option<StoreWorkView> {
    status.work.as_ref().map(|work| StoreWorkView {
        mode: work.mode.as_str().to_owned(),
        why: match work.why {
            RestartWhy::Asked => "asked",
            RestartWhy::Update => "update",
            RestartWhy::Drain => "drain",
        }
        .to_owned(),
        began_at: rfc3339(work.began_at),
        created_at: work.created_at.map(rfc3339),
    })
}

/// `None`: the service that is its processes is not there, which a group's creation rules out.
pub(crate) fn store_group_view(
    coordinator: &Coordinator,
    group: &StoreGroup,
    now: Time,
) -> Option<StoreGroupView> {
    let cluster = coordinator.cluster();
    let ix = cluster.service_ix(group.name.as_str())?;
    let service: &Service = &cluster.service(ix)?.rec;
    let stores: Vec<_> = cluster.stores_of(group.name.as_str()).collect();
    let statuses: Vec<_> = stores.iter().map(|store| coordinator.store_status(store, now)).collect();
    let serves = |status: &&StoreStatus| {
        status.state == "serving" && !status.offline && status.process == Some(model::Actual::Ready)
    };
    let serving = u32::try_from(statuses.iter().filter(serves).count()).unwrap_or(u32::MAX);
    let leaving = statuses.iter().filter(|status| status.offline || status.state == "removed").count();
    let state = match serving {
        _ if group.destroyed => "removing",
        enough if enough >= group.replicas => "ok",
        0 => "pending",
        _ => "degraded",
    };
    let mut reasons: Vec<_> = coordinator.reasons(ix).iter().map(ReasonView::of).collect();
    let waits = statuses.iter().filter_map(|status| {
        let wait = status.wait.as_ref()?;
        let since = coordinator.store_waits_since(&status.id);
        Some(ReasonView::new(wait.code, format!("store/{}", status.id), since, Some(&wait.message)))
    });
    reasons.extend(waits);
    Some(StoreGroupView {
        name: group.name.to_string(),
        replicas: group.replicas,
        serving,
        leaving: u32::try_from(leaving).unwrap_or(u32::MAX),
        state: state.to_owned(),
        backend: group.spec.backend.kind().to_owned(),
        replicas_needed: coordinator.replicas_needed(&group.name),
        release: service.release,
        stores: stores.iter().map(|store| store.id.to_string()).collect(),
        reasons,
        spec: StoreGroupFile::shown(group.name.as_str(), group.replicas, &group.spec, service.spec()),
        created_at: rfc3339(group.created_at),
    })
}

impl StoreGroupView {
    /// For those who may look and not touch: what is in variables and in a backend's command stays theirs who set it.
    pub(crate) fn hide_secrets(&mut self) {
        super::service::hide(&mut self.spec.env);
        self.spec.backend.command.truncate(1);
    }
}

/// A service that is the processes of a store group is shown as that, not as a service.
pub(crate) fn is_of_stores(service: &Service) -> bool {
    service.spec().kind == Kind::Store
}

/// What is counted of stores for a scrape.
#[derive(Debug, Default)]
pub(crate) struct StoreFigures {
    pub leaders: Vec<(String, i64)>,
    /// Bytes.
    pub data: Vec<(String, i64)>,
}

impl StoreFigures {
    pub fn of(coordinator: &Coordinator, now: Time) -> StoreFigures {
        let mut figures = StoreFigures::default();
        let cluster = coordinator.cluster();
        for store in cluster.store_groups().flat_map(|group| cluster.stores_of(group.name.as_str())) {
            let status = coordinator.store_status(store, now);
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            figures
                .leaders
                .extend(status.leaders.map(|leaders| (store.id.to_string(), number(leaders.value))));
            figures.data.extend(status.data.map(|data| (store.id.to_string(), number(data))));
        }
        figures
    }
}
