//! `/v1/nodes/{node}/drain` and `/v1/drains`.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::{Drain, Millis, Return, Then};
use protocol::coordinator::{Answer as Told, Coordinator, DrainRequest, Request};

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InBody, InBodyOrNone, InPath};
use super::nodes::no_such_node;
use super::services::unexpected;
use super::state::ApiState;
use crate::Slice;
use crate::view::{
    DrainBody, DrainStatusView, DrainView, DrainsBody, ErrorView, List, PlanView, drain_status_view,
    drain_view, plan_view,
};

/// Drains shown from one moment; heartbeats wait meanwhile.
const SLICE_DRAINS: usize = 20;

/// Starts the drain of a node, or changes the options of the one that runs: what is omitted keeps its
/// value.
#[utoipa::path(put, path = "/v1/nodes/{node}/drain", tag = "drains", operation_id = "drain_node",
    params(("node" = String, Path)), request_body = DrainBody,
    responses((status = 202, body = DrainStatusView), (status = 400, body = ErrorView), (status = 404, body = ErrorView),
        (status = 409, body = ErrorView), (status = 412, body = ErrorView), (status = 422, body = ErrorView)))]
pub(super) async fn put(
    State(state): State<ApiState>,
    InPath(node): InPath<String>,
    caller: Caller,
    InBodyOrNone(body): InBodyOrNone<DrainBody>,
) -> Answer<(StatusCode, Json<DrainStatusView>)> {
    let request = DrainRequest { nodes: vec![node.clone()], ..wanted(body)? };
    let epoch = carry_out(&state, caller, Request::Drain(request)).await?;
    part_of(&state, epoch, node).await
}

/// A node's present or last drain. 404 if it never had one.
#[utoipa::path(get, path = "/v1/nodes/{node}/drain", tag = "drains", operation_id = "get_node_drain",
    params(("node" = String, Path)),
    responses((status = 200, body = DrainStatusView), (status = 404, body = ErrorView)))]
pub(super) async fn get(
    State(state): State<ApiState>,
    InPath(node): InPath<String>,
) -> Answer<Json<DrainStatusView>> {
    let id = node.clone();
    let seen = state.office()?.read(move |coordinator, now| {
        let cluster = coordinator.cluster();
        cluster.node_ix(&id)?;
        let shown = cluster.last_drain_of(&id).and_then(|drain| Some((drain, drain.part(&id)?)));
        Some(shown.map(|(drain, part)| drain_status_view(coordinator, drain, part, now)))
    });
    let shown = seen.await?.ok_or_else(|| no_such_node(&node))?;
    let never = || ApiFailure::not_found("drain_not_found", format!("{node} was never drained"));
    shown.map(Json).ok_or_else(never)
}

/// Takes a node out of its drain. Works with a node that does not answer.
#[utoipa::path(delete, path = "/v1/nodes/{node}/drain", tag = "drains", operation_id = "cancel_node_drain",
    params(("node" = String, Path)),
    responses((status = 202, body = DrainStatusView), (status = 404, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn delete(
    State(state): State<ApiState>,
    InPath(node): InPath<String>,
    caller: Caller,
) -> Answer<(StatusCode, Json<DrainStatusView>)> {
    let epoch = carry_out(&state, caller, Request::CancelNode { node: node.clone() }).await?;
    part_of(&state, epoch, node).await
}

/// What a drain of this node would do: by the same planner, refused as the drain would be. Changes
/// nothing.
#[utoipa::path(post, path = "/v1/nodes/{node}/drain/plan", tag = "drains", operation_id = "plan_node_drain",
    params(("node" = String, Path)), request_body = DrainBody,
    responses((status = 200, body = PlanView), (status = 400, body = ErrorView), (status = 404, body = ErrorView),
        (status = 409, body = ErrorView), (status = 412, body = ErrorView), (status = 422, body = ErrorView)))]
pub(super) async fn plan(
    State(state): State<ApiState>,
    InPath(node): InPath<String>,
    InBodyOrNone(body): InBodyOrNone<DrainBody>,
) -> Answer<Json<PlanView>> {
    let request = DrainRequest { nodes: vec![node.clone()], ..wanted(body)? };
    let plans = rehearse(&state, request).await?;
    plans.into_iter().next().map(Json).ok_or_else(|| no_such_node(&node))
}

/// What a drain of several nodes would do, node by node in the order of their turns: all are closed
/// first, so that none takes what leaves another. Changes nothing.
#[utoipa::path(post, path = "/v1/drains/plan", tag = "drains", operation_id = "plan_drain",
    request_body = DrainsBody,
    responses((status = 200, body = List<PlanView>), (status = 400, body = ErrorView), (status = 404, body = ErrorView),
        (status = 409, body = ErrorView), (status = 412, body = ErrorView), (status = 422, body = ErrorView)))]
pub(super) async fn plan_several(
    State(state): State<ApiState>,
    InBody(body): InBody<DrainsBody>,
) -> Answer<Json<List<PlanView>>> {
    let request = DrainRequest { nodes: body.nodes, selector: body.selector, ..wanted(body.options)? };
    Ok(Json(List { items: rehearse(&state, request).await? }))
}

/// A copy is played through elsewhere, so that heartbeats wait for the copying alone.
async fn rehearse(state: &ApiState, request: DrainRequest) -> Answer<Vec<PlanView>> {
    let rehearsal = state.office()?.read(move |coordinator, now| coordinator.rehearse_drain(&request, now));
    let rehearsal = rehearsal.await??;
    let played = tokio::task::spawn_blocking(move || {
        let plans = rehearsal.play();
        plans.iter().map(|(node, plan)| plan_view(rehearsal.cluster(), node.as_str(), plan)).collect()
    });
    played.await.map_err(|error| {
        let message = format!("internal server error: the plan failed: {error}");
        ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })
}

/// Drains several nodes: all are closed at once, and take their turns.
#[utoipa::path(post, path = "/v1/drains", tag = "drains", operation_id = "create_drain",
    request_body = DrainsBody,
    responses((status = 202, body = DrainView), (status = 400, body = ErrorView), (status = 404, body = ErrorView),
        (status = 409, body = ErrorView), (status = 412, body = ErrorView), (status = 422, body = ErrorView)))]
pub(super) async fn create(
    State(state): State<ApiState>,
    caller: Caller,
    InBody(body): InBody<DrainsBody>,
) -> Answer<(StatusCode, Json<DrainView>)> {
    let request = DrainRequest { nodes: body.nodes, selector: body.selector, ..wanted(body.options)? };
    let epoch = carry_out(&state, caller, Request::Drain(request)).await?;
    Ok((StatusCode::ACCEPTED, one(State(state), InPath(epoch)).await?))
}

/// All drains that are kept, newest first.
#[utoipa::path(get, path = "/v1/drains", tag = "drains", operation_id = "list_drains",
    responses((status = 200, body = List<DrainView>), (status = "default", body = ErrorView)))]
pub(super) async fn list(State(state): State<ApiState>) -> Answer<Json<List<DrainView>>> {
    let part = |coordinator: &Coordinator, now, below: Option<u64>| {
        let drains = coordinator.cluster().drains().rev();
        let mut rest = drains.filter(|drain| below.is_none_or(|below| drain.epoch < below)).peekable();
        let some: Vec<&Drain> = rest.by_ref().take(SLICE_DRAINS).collect();
        let last = some.last().map(|drain| drain.epoch);
        let items = some.iter().map(|drain| drain_view(coordinator, drain, now)).collect();
        Slice { items, next: last.filter(|_| rest.peek().is_some()) }
    };
    Ok(Json(List { items: state.office()?.gather(part).await? }))
}

/// One drain.
#[utoipa::path(get, path = "/v1/drains/{epoch}", tag = "drains", operation_id = "get_drain",
    params(("epoch" = u64, Path)),
    responses((status = 200, body = DrainView), (status = 404, body = ErrorView)))]
pub(super) async fn one(
    State(state): State<ApiState>,
    InPath(epoch): InPath<u64>,
) -> Answer<Json<DrainView>> {
    let seen = state.office()?.read(move |coordinator, now| {
        let drain = coordinator.cluster().drain(epoch)?;
        Some(drain_view(coordinator, drain, now))
    });
    seen.await?.map(Json).ok_or_else(|| no_such_drain(epoch))
}

/// Cancels a drain: every node of it that is not done.
#[utoipa::path(delete, path = "/v1/drains/{epoch}", tag = "drains", operation_id = "cancel_drain",
    params(("epoch" = u64, Path)),
    responses((status = 202, body = DrainView), (status = 404, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn cancel(
    State(state): State<ApiState>,
    InPath(epoch): InPath<u64>,
    caller: Caller,
) -> Answer<(StatusCode, Json<DrainView>)> {
    carry_out(&state, caller, Request::CancelDrain { epoch }).await?;
    Ok((StatusCode::ACCEPTED, one(State(state), InPath(epoch)).await?))
}

fn no_such_drain(epoch: u64) -> ApiFailure {
    ApiFailure::not_found("drain_not_found", format!("there is no drain {epoch}"))
}

/// The epoch of the drain it is about.
async fn carry_out(state: &ApiState, caller: Caller, request: Request) -> Answer<u64> {
    match state.office()?.ask(caller.asks(request)).await?? {
        Told::Draining(epoch) => Ok(epoch),
        Told::Applied(_) | Told::Done => Err(unexpected()),
    }
}

/// That very drain, not the node's last one: it may be over, and another begun.
async fn part_of(state: &ApiState, epoch: u64, node: String) -> Answer<(StatusCode, Json<DrainStatusView>)> {
    let seen = state.office()?.read(move |coordinator, now| {
        let drain = coordinator.cluster().drain(epoch)?;
        Some(drain_status_view(coordinator, drain, drain.part(&node)?, now))
    });
    let view = seen.await?.ok_or_else(|| no_such_drain(epoch))?;
    Ok((StatusCode::ACCEPTED, Json(view)))
}

/// Looked at before anything is asked of the coordinator. Names no node yet.
pub(super) fn wanted(body: DrainBody) -> Answer<DrainRequest> {
    let force = body.force == Some(true);
    let deadline = match (body.deadline.as_deref(), force) {
        (Some(_), true) => {
            let message = "force: it is a deadline of now; leave out one of force and deadline";
            return Err(ApiFailure::invalid(message).with("key", "force"));
        }
        (None, true) => Some(Some(Millis::ZERO)),
        (Some(text), false) => Some(deadline(text)?),
        (None, false) => None,
    };
    Ok(DrainRequest {
        nodes: Vec::new(),
        selector: BTreeMap::new(),
        deadline,
        ignore_system: body.ignore_system,
        ack_stateful: body.ack_stateful,
        include_stateful: body.include_stateful,
        then: choice("then", body.then.as_deref(), [("stay", Then::Stay), ("stop", Then::Stop)])?,
        back: choice(
            "return",
            body.back.as_deref(),
            [("enable", Return::Enable), ("restart", Return::Restart)],
        )?,
        message: body.message,
        meta: body.meta,
    })
}

fn deadline(text: &str) -> Answer<Option<Millis>> {
    if text == "none" {
        return Ok(None);
    }
    let invalid = |why: String| Err(ApiFailure::invalid(format!("deadline: {why}")).with("key", "deadline"));
    if text.trim_start().starts_with('-') {
        return invalid(format!("{text:?} is before now; \"force\": true says now"));
    }
    match model::units::parse_duration(text) {
        Ok(Millis::ZERO) => invalid(format!("{text:?} is no time at all; \"force\": true says now")),
        Ok(span) => Ok(Some(span)),
        Err(why) => invalid(format!("{why}; \"none\" says none at all")),
    }
}

fn choice<T: Copy>(key: &str, text: Option<&str>, of: [(&str, T); 2]) -> Answer<Option<T>> {
    let Some(text) = text else { return Ok(None) };
    if let Some((_, value)) = of.iter().find(|(name, _)| *name == text) {
        return Ok(Some(*value));
    }
    let message = format!("{key}: {text:?} is neither {:?} nor {:?}", of[0].0, of[1].0);
    Err(ApiFailure::invalid(message).with("key", key))
}
