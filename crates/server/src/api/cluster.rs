//! `/v1/status` and `/v1/doctor`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::{Code, Time};
use protocol::coordinator::Coordinator;

use super::error::{Answer, ApiFailure};
use super::state::ApiState;
use crate::OfficeHandle;
use crate::office::read_addresses;
use crate::view::{
    CandidateView, Census, CoordinatorView, DoctorView, ErrorView, NodeTotals, ReasonView, StatusView,
    StoreView, ViolationView, drain_reasons, rfc3339,
};

/// The cluster in a few numbers: who decides, who else could, what is there, what is wrong.
#[utoipa::path(get, path = "/v1/status", tag = "cluster", operation_id = "get_status",
    responses((status = 200, body = StatusView), (status = "default", body = ErrorView)))]
pub(super) async fn status(State(state): State<ApiState>) -> Answer<Json<StatusView>> {
    let office = state.office()?;
    let census = Census::sum(office.gather(Census::part).await?);
    let unclaimed = office.peek(|coordinator, now| crate::view::figures(coordinator, now).unclaimed).await?;
    let candidate = office.candidate().to_owned();
    let leader = state.leader();
    let seen = office.read(move |coordinator, now| StatusView {
        cluster: format!("{:016x}", coordinator.cluster().meta().cluster.0),
        coordinator: CoordinatorView {
            id: candidate,
            api: leader.as_ref().map(|leader| leader.api.clone()).unwrap_or_default(),
            rpc: leader.as_ref().map(|leader| leader.rpc.clone()).unwrap_or_default(),
            term: coordinator.term().0,
        },
        candidates: None,
        nodes: NodeTotals::of(coordinator),
        services: census.services,
        instances: census.instances.into_iter().map(|(actual, n)| (actual.to_owned(), n)).collect(),
        volumes: coordinator.cluster().volumes().count() as u64,
        unclaimed: unclaimed.unsigned_abs(),
        store: None,
        reasons: reasons(coordinator, now),
        time: rfc3339(now),
    });
    let mut view = seen.await?;
    add_store(office, &mut view).await;
    Ok(Json(view))
}

/// What concerns the cluster as a whole, and the drains that need a person or go nowhere.
fn reasons(coordinator: &Coordinator, now: Time) -> Vec<ReasonView> {
    let cluster = coordinator.cluster_reasons();
    let nodes = coordinator.cluster().nodes();
    let drains = nodes.flat_map(|(_, node)| drain_reasons(coordinator, node, now));
    cluster.iter().map(ReasonView::of).chain(drains).collect()
}

/// What only the store knows. It may be silent; the rest is shown all the same.
async fn add_store(office: &OfficeHandle, view: &mut StatusView) {
    let (candidates, status) = tokio::join!(office.store().candidates(), office.store().status());
    view.candidates = candidates.ok().map(|all| {
        let show = |candidate: &store::Candidate| {
            let (api, rpc) = read_addresses(&candidate.addresses);
            let coordinator = candidate.id == view.coordinator.id;
            CandidateView { id: candidate.id.clone(), api, rpc, coordinator }
        };
        all.iter().map(show).collect()
    });
    let alarm = status.as_ref().is_ok_and(|status| status.space_alarm) || office.space_alarm();
    let code = Code::StoreSpace.as_str();
    if alarm && !view.reasons.iter().any(|reason| reason.code == code) {
        view.reasons.push(ReasonView::new(Code::StoreSpace, "cluster".to_owned(), None, None));
    }
    view.store = status.ok().map(|status| StoreView {
        description: status.description,
        disk_bytes: status.disk_bytes,
        used_bytes: status.used_bytes,
    });
}

/// Runs the checker on the live state.
#[utoipa::path(get, path = "/v1/doctor", tag = "cluster", operation_id = "run_doctor",
    responses((status = 200, body = DoctorView), (status = "default", body = ErrorView)))]
pub(super) async fn doctor(State(state): State<ApiState>) -> Answer<Json<DoctorView>> {
    // A copy is looked through, so that heartbeats wait for the copying alone.
    let cluster = state.office()?.read(|coordinator, _| coordinator.cluster().clone()).await?;
    let looked = tokio::task::spawn_blocking(move || {
        let found = checker::check(&cluster);
        let show = |violation: &checker::Violation| ViolationView {
            invariant: violation.invariant(),
            message: violation.to_string(),
        };
        let items: Vec<_> = found.iter().map(show).collect();
        DoctorView { ok: items.is_empty(), instances: cluster.instance_count() as u64, items }
    });
    looked.await.map(Json).map_err(|error| {
        let message = format!("internal server error: the checker failed: {error}");
        ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })
}
