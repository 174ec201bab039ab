//! `/api/v2/captures` and `/api/v1`: what tools that restart clusters of another system call. They read
//! some errors as leave to kill a node, so that what is said here is said with them in mind.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::Then;
use protocol::coordinator::{ANOTHER_DRAIN, CaptureLeft, NODE_DISABLED, Request};

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InBody, InPath};
use super::forward::{FORWARDED_BY, cause_of};
use super::state::ApiState;
use crate::view::{
    CaptureBody, CaptureCountsView, CaptureDrainView, CaptureStatusView, CaptureView, ErrorView, NodeView,
    TableCountView, capture_drain_view, capture_views, liveness,
};

pub(super) const RESIGN: &str = "/api/v1/owner/resign";
/// The coordinator says within this time what a node is.
const LIVENESS_MAX: Duration = Duration::from_secs(5);

/// Drains a capture; asked again, says how many maintainers and dispatchers it has left. 200 when nothing
/// runs there. Its daemon ends by itself then.
#[utoipa::path(put, path = "/api/v2/captures/{id}/drain", tag = "captures", operation_id = "drain_capture",
    params(("id" = String, Path)),
    responses((status = 200, body = CaptureCountsView), (status = 202, body = CaptureCountsView),
        (status = 400, body = ErrorView), (status = 404, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn drain(
    State(state): State<ApiState>,
    InPath(id): InPath<String>,
    caller: Caller,
) -> Answer<(StatusCode, Json<CaptureCountsView>)> {
    let request = Request::DrainCapture { capture: id.clone(), then: Then::Stop };
    state.office()?.ask(caller.asks(request)).await??;
    let left = left(&state, id).await?;
    let status = if left.is_empty() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json((&left).into())))
}

/// Whether a capture drains, and what it has left.
#[utoipa::path(get, path = "/api/v2/captures/{id}/drain", tag = "captures", operation_id = "get_capture_drain",
    params(("id" = String, Path)),
    responses((status = 200, body = CaptureDrainView), (status = 404, body = ErrorView)))]
pub(super) async fn drain_status(
    State(state): State<ApiState>,
    InPath(id): InPath<String>,
) -> Answer<Json<CaptureDrainView>> {
    let seen = state.office()?.read(move |coordinator, _| capture_drain_view(coordinator, &id));
    seen.await?.map(Json).ok_or_else(no_such_capture)
}

/// Nodes with the worker role that are not offline. A plain list: those who read it know no other.
#[utoipa::path(get, path = "/api/v1/captures", tag = "captures", operation_id = "list_captures",
    responses((status = 200, body = Vec<CaptureView>), (status = "default", body = ErrorView)))]
pub(super) async fn list(State(state): State<ApiState>) -> Answer<Json<Vec<CaptureView>>> {
    let office = state.office()?;
    let me = office.candidate().to_owned();
    Ok(Json(office.read(move |coordinator, _| capture_views(coordinator, &me)).await?))
}

/// Fails while there is no coordinator.
#[utoipa::path(get, path = "/api/v1/health", tag = "captures", operation_id = "captures_health",
    responses((status = 200, body = Object), (status = 503, body = ErrorView)))]
pub(super) async fn health(State(state): State<ApiState>) -> Answer<Json<serde_json::Value>> {
    state.office()?;
    Ok(Json(serde_json::json!({})))
}

/// Drains a capture whose daemon then stays up until it is killed. Asked again, says what is left of
/// everything; 0 when the daemon may be killed, and not before. A second capture is told to wait.
#[utoipa::path(put, path = "/api/v1/captures/drain", tag = "captures", operation_id = "drain_capture_v1",
    request_body = CaptureBody,
    responses((status = 202, body = TableCountView), (status = 400, body = ErrorView),
        (status = 404, body = ErrorView)))]
pub(super) async fn drain_v1(
    State(state): State<ApiState>,
    caller: Caller,
    InBody(body): InBody<CaptureBody>,
) -> Answer<(StatusCode, Json<TableCountView>)> {
    let request = Request::DrainCapture { capture: body.capture_id.clone(), then: Then::AwaitStop };
    let waits = match state.office()?.ask(caller.asks(request)).await? {
        Ok(_) => false,
        // An error would have the node killed at once.
        Err(error) if matches!(error.code, ANOTHER_DRAIN | NODE_DISABLED) => true,
        Err(error) => return Err(error.into()),
    };
    let left = left(&state, body.capture_id).await?;
    let current_table_count = left.count().max(u32::from(waits));
    Ok((StatusCode::ACCEPTED, Json(TableCountView { current_table_count })))
}

/// Has the coordinator hand its office to another candidate. Waits for nobody.
#[utoipa::path(post, path = "/api/v1/owner/resign", tag = "captures", operation_id = "resign_owner",
    responses((status = 202, description = "it is about to"), (status = 412, body = ErrorView),
        (status = 503, body = ErrorView)))]
pub(super) async fn resign(State(state): State<ApiState>, caller: Caller) -> Answer<StatusCode> {
    let office = state.office()?;
    let closed = office.read(|coordinator, _| {
        let nodes = coordinator.cluster().nodes().filter(|(_, node)| node.is_closed());
        nodes.map(|(_, node)| node.rec.id.to_string()).collect::<Vec<_>>()
    });
    let closed = closed.await?;
    let candidates = office.store().candidates().await.map_err(|error| {
        ApiFailure::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", format!("candidates: {error}"))
    })?;
    let me = office.candidate();
    if !candidates.iter().any(|other| other.id != me && !closed.contains(&other.id)) {
        let message = "no other open candidate is there to coordinate the cluster";
        return Err(ApiFailure::new(StatusCode::PRECONDITION_FAILED, "no_candidate_left", message));
    }
    office.ask(caller.asks(Request::HandOver)).await??;
    Ok(StatusCode::ACCEPTED)
}

/// This daemon, and what its node is to the cluster.
#[utoipa::path(get, path = "/api/v1/status", tag = "captures", operation_id = "capture_status",
    responses((status = 200, body = CaptureStatusView), (status = 503, body = ErrorView)))]
pub(super) async fn status(State(state): State<ApiState>) -> Answer<Json<CaptureStatusView>> {
    let liveness = match state.acting() {
        Some(office) => {
            let id = state.id().to_owned();
            let seen = office.read(move |coordinator, _| liveness(coordinator, &id)).await?;
            seen.ok_or_else(not_registered)?
        }
        None => asked_of_coordinator(&state).await?,
    };
    Ok(Json(CaptureStatusView {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        id: state.id().to_owned(),
        pid: std::process::id(),
        is_owner: state.acting().is_some(),
        liveness,
    }))
}

/// Only the coordinator knows what it has decided.
async fn asked_of_coordinator(state: &ApiState) -> Answer<u8> {
    let Some(api) = state.leader_api() else {
        return Err(ApiFailure::no_coordinator("no coordinator is known; an election may be under way"));
    };
    let unanswered = |why: String| {
        ApiFailure::no_coordinator(format!("the coordinator at {api} does not say what this node is: {why}"))
    };
    let asked = state
        .http()
        .get(format!("{}/v1/nodes/{}", state.base_url(&api), state.id()))
        .header(FORWARDED_BY, state.id())
        .timeout(LIVENESS_MAX);
    let answer = asked.send().await.map_err(|error| unanswered(cause_of(&error)))?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(not_registered()),
        other => return Err(unanswered(format!("it answers {other}"))),
    }
    let node: NodeView = answer.json().await.map_err(|error| unanswered(cause_of(&error)))?;
    node.liveness.ok_or_else(|| unanswered("it is of an older version".to_owned()))
}

async fn left(state: &ApiState, id: String) -> Answer<CaptureLeft> {
    let seen = state.office()?.read(move |coordinator, _| {
        coordinator.capture(&id).map(|capture| coordinator.capture_left(capture))
    });
    seen.await?.ok_or_else(no_such_capture)
}

fn no_such_capture() -> ApiFailure {
    ApiFailure::not_found("capture_not_found", "capture not found")
}

fn not_registered() -> ApiFailure {
    ApiFailure::no_coordinator("this node is not registered with the coordinator yet")
}
