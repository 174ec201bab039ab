//! `/v1/nodes`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::NodeId;
use protocol::coordinator::{Request, WantedIntent};
use serde::Deserialize;
use utoipa::ToSchema;

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InBody, InPath};
use super::state::ApiState;
use crate::Slice;
use crate::view::{ErrorView, List, NodeView, node_view};

/// Nodes shown from one moment; heartbeats wait meanwhile.
const SLICE_NODES: usize = 1000;

/// All nodes, by id.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", operation_id = "list_nodes",
    responses((status = 200, body = List<NodeView>), (status = "default", body = ErrorView)))]
pub(super) async fn list(State(state): State<ApiState>) -> Answer<Json<List<NodeView>>> {
    let office = state.office()?;
    let acting = office.candidate().to_owned();
    let items = office
        .gather(move |coordinator, now, after: Option<NodeId>| {
            let nodes = coordinator.cluster().nodes();
            let mut rest = nodes
                .skip_while(|(_, node)| after.as_ref().is_some_and(|after| node.rec.id <= *after))
                .peekable();
            let part: Vec<_> = rest.by_ref().take(SLICE_NODES).collect();
            let last = part.last().map(|(_, node)| node.rec.id.clone());
            let items = part.iter().map(|(ix, _)| node_view(coordinator, *ix, &acting, now)).collect();
            Slice { items, next: last.filter(|_| rest.peek().is_some()) }
        })
        .await?;
    Ok(Json(List { items }))
}

/// One node.
#[utoipa::path(get, path = "/v1/nodes/{node}", tag = "nodes", operation_id = "get_node",
    params(("node" = String, Path)),
    responses((status = 200, body = NodeView), (status = 404, body = ErrorView)))]
pub(super) async fn one(
    State(state): State<ApiState>,
    InPath(node): InPath<String>,
) -> Answer<Json<NodeView>> {
    read_one(&state, node).await.map(Json)
}

async fn read_one(state: &ApiState, node: String) -> Answer<NodeView> {
    let office = state.office()?;
    let (acting, id) = (office.candidate().to_owned(), node.clone());
    let seen = office.read(move |coordinator, now| {
        let ix = coordinator.cluster().node_ix(&id)?;
        Some(node_view(coordinator, ix, &acting, now))
    });
    seen.await?.ok_or_else(|| no_such_node(&node))
}

pub(super) fn no_such_node(node: &str) -> ApiFailure {
    ApiFailure::not_found("node_not_found", format!("there is no node {node:?}"))
}

/// What the operator wants of a node.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IntentBody {
    /// `active` or `disabled`.
    intent: String,
}

/// Takes a node out of service, or back into it. 409 while a drain runs.
#[utoipa::path(put, path = "/v1/nodes/{node}/intent", tag = "nodes", operation_id = "set_node_intent",
    params(("node" = String, Path)), request_body = IntentBody,
    responses((status = 200, body = NodeView), (status = 400, body = ErrorView), (status = 404, body = ErrorView),
        (status = 409, body = ErrorView)))]
pub(super) async fn set_intent(
    State(state): State<ApiState>,
    InPath(node): InPath<String>,
    caller: Caller,
    InBody(body): InBody<IntentBody>,
) -> Answer<Json<NodeView>> {
    let intent = match body.intent.as_str() {
        "active" => WantedIntent::Active,
        "disabled" => WantedIntent::Disabled,
        other => {
            let message = format!("intent: {other:?} is neither \"active\" nor \"disabled\"");
            return Err(ApiFailure::invalid(message));
        }
    };
    let asked = caller.asks(Request::SetIntent { node: node.clone(), intent });
    state.office()?.ask(asked).await??;
    read_one(&state, node).await.map(Json)
}

/// Vouches that nothing of an offline node runs any more. 412 unless it is offline.
#[utoipa::path(post, path = "/v1/nodes/{node}/confirm-dead", tag = "nodes", operation_id = "confirm_node_dead",
    params(("node" = String, Path)),
    responses((status = 200, body = NodeView), (status = 404, body = ErrorView), (status = 412, body = ErrorView)))]
pub(super) async fn confirm_dead(
    State(state): State<ApiState>,
    InPath(node): InPath<String>,
    caller: Caller,
) -> Answer<(StatusCode, Json<NodeView>)> {
    let asked = caller.asks(Request::ConfirmDead { node: node.clone() });
    state.office()?.ask(asked).await??;
    Ok((StatusCode::OK, Json(read_one(&state, node).await?)))
}
