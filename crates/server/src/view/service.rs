//! A service as the API shows it, and what applying one did.

use model::{Cluster, Kind, RolloutState, ServiceEntry, ServiceIx, spec::ServiceFile};
use protocol::coordinator::{Applied, Coordinator, Outcome};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ReasonView, rfc3339};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceView {
    pub name: String,
    /// `service`, `batch`, `system`.
    pub kind: String,
    /// How many are wanted; for `system`, how many nodes should have one.
    pub count: u32,
    /// How many are wanted and ready.
    pub ready: u32,
    /// Batch: how many have ended well.
    pub complete: u32,
    pub release: u32,
    /// `ok`: all ready; `degraded`: fewer than wanted; `pending`: none.
    pub state: String,
    /// Asked to go; its instances are being stopped.
    pub removing: bool,
    pub reasons: Vec<ReasonView>,
    pub rollout: RolloutView,
    #[schema(value_type = super::ServiceShape)]
    pub spec: ServiceFile,
    pub created_at: String,
}

impl ServiceView {
    /// What its instances are told in confidence is not for those who only look.
    pub(crate) fn hide_secrets(&mut self) {
        hide(&mut self.spec.env);
    }
}

/// Stands in the place of a value that the caller may not see.
pub(crate) fn hide(env: &mut std::collections::BTreeMap<String, String>) {
    env.values_mut().for_each(|value| *value = "(hidden)".to_owned());
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutView {
    pub release: u32,
    /// `rolling`, `complete`, `failed`.
    pub state: String,
    /// The code, if it failed.
    pub reason: Option<String>,
    pub message: Option<String>,
    /// What replacements are made of while the newest release is halted.
    pub healthy_release: Option<u32>,
}

/// Where the edges send a service's connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackendsView {
    pub service: String,
    /// The edge's port; null if the service is not behind the edge.
    pub listen: Option<u16>,
    /// Rises with every change of any set, as `term.number`.
    pub revision: String,
    pub items: Vec<BackendView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackendView {
    pub instance: String,
    /// `host:port`.
    pub address: String,
}

/// What a request to create or update services and feeds did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplyView {
    pub items: Vec<AppliedView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppliedView {
    /// `service`, `feed`.
    pub kind: String,
    pub name: String,
    /// `created`, `updated`, `scaled`, `unchanged`.
    pub outcome: String,
    /// The new release, if there is one.
    pub release: Option<u32>,
    /// How the count changed, if it did.
    pub count: Option<CountChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountChange {
    pub from: u32,
    pub to: u32,
}

impl From<&Applied> for AppliedView {
    fn from(applied: &Applied) -> AppliedView {
        let change = |(from, to)| CountChange { from, to };
        let (outcome, release, count) = match applied.outcome {
            Outcome::Created => ("created", (applied.kind == "service").then_some(1), None),
            Outcome::Updated { release, scaled } => ("updated", Some(release), scaled.map(change)),
            Outcome::Scaled { from, to } => ("scaled", None, Some(change((from, to)))),
            Outcome::Changed => ("updated", None, None),
            Outcome::Unchanged => ("unchanged", None, None),
        };
        AppliedView {
            kind: applied.kind.to_owned(),
            name: applied.name.clone(),
            outcome: outcome.to_owned(),
            release,
            count,
        }
    }
}

/// What of a service's instances counts for its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub wanted: u32,
    pub ready: u32,
    pub complete: u32,
}

impl Tally {
    pub fn of(cluster: &Cluster, ix: ServiceIx, entry: &ServiceEntry) -> Tally {
        let kind = entry.rec.spec().kind;
        let wanted = match kind {
            Kind::Service | Kind::Batch | Kind::Store => entry.rec.count,
            Kind::System => system_nodes(cluster, entry),
        };
        let mut tally = Tally { wanted, ready: 0, complete: 0 };
        for instance in cluster.instances_of(ix) {
            if instance.is_available() && !cluster.node(instance.node).rec.is_offline() {
                tally.ready += 1;
            } else if kind == Kind::Batch && instance.is_complete() && instance.release == entry.rec.release {
                tally.complete += 1;
            }
        }
        tally
    }

    pub fn state(self) -> &'static str {
        match self.ready + self.complete {
            enough if enough >= self.wanted => "ok",
            0 => "pending",
            _ => "degraded",
        }
    }
}

/// Nodes that should have an instance: those that may take one, and those that have one and may keep it.
fn system_nodes(cluster: &Cluster, entry: &ServiceEntry) -> u32 {
    let constraints = &entry.rec.spec().constraints;
    let should = cluster.nodes().filter(|(ix, node)| {
        node.rec.satisfies(constraints) && (node.may_place() || entry.on.contains_key(ix))
    });
    should.count() as u32
}

pub(crate) fn service_view(coordinator: &Coordinator, ix: ServiceIx, entry: &ServiceEntry) -> ServiceView {
    let rec = &entry.rec;
    let tally = Tally::of(coordinator.cluster(), ix, entry);
    let (state, reason, message) = match &rec.rollout.state {
        RolloutState::Rolling => ("rolling", None, None),
        RolloutState::Complete => ("complete", None, None),
        RolloutState::Failed { reason, message } => ("failed", Some(reason), Some(message)),
    };
    ServiceView {
        name: rec.name.to_string(),
        kind: rec.spec().kind.as_str().to_owned(),
        count: tally.wanted,
        ready: tally.ready,
        complete: tally.complete,
        release: rec.release,
        state: tally.state().to_owned(),
        removing: rec.removed,
        reasons: coordinator.reasons(ix).iter().map(ReasonView::of).collect(),
        rollout: RolloutView {
            release: rec.release,
            state: state.to_owned(),
            reason: reason.map(|code| code.as_str().to_owned()),
            message: message.cloned(),
            healthy_release: rec.healthy,
        },
        spec: ServiceFile::of(rec.name.as_str(), rec.count, rec.spec()),
        created_at: rfc3339(rec.created_at),
    }
}

pub(crate) fn backends_view(coordinator: &Coordinator, ix: ServiceIx, entry: &ServiceEntry) -> BackendsView {
    let revision = coordinator.sets_revision();
    let set = coordinator.backends(ix);
    let backends = set.map(|set| set.backends.as_slice()).unwrap_or_default();
    BackendsView {
        service: entry.rec.name.to_string(),
        listen: set.and_then(|set| set.listen),
        revision: format!("{}.{}", revision.term, revision.number),
        items: backends
            .iter()
            .map(|backend| BackendView {
                instance: backend.instance.named(&entry.rec.name),
                address: backend.address.clone(),
            })
            .collect(),
    }
}
