//! An instance's logs, from the node that has them.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::error::{Answer, ApiFailure};
use super::extract::{InPath, InQuery};
use super::forward::{cause_of, relay};
use super::instances::look_up;
use super::state::ApiState;
use crate::view::ErrorView;

/// How much of the logs.
#[derive(Clone, Debug, Default, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// The last so many lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<u32>,
    /// Go on as more is written.
    #[serde(default)]
    follow: bool,
}

/// What an instance wrote, as text. Handed on as it comes from its node.
#[utoipa::path(get, path = "/v1/instances/{id}/logs", tag = "instances", operation_id = "get_instance_logs",
    params(("id" = String, Path), LogQuery),
    responses((status = 200, body = String, content_type = "text/plain"), (status = 404, body = ErrorView),
        (status = 502, body = ErrorView, description = "its node does not answer")))]
pub(super) async fn logs(
    State(state): State<ApiState>,
    InPath(id): InPath<String>,
    InQuery(query): InQuery<LogQuery>,
) -> Answer<Response> {
    let found = look_up(&state, &id, |cluster, instance| {
        let node = &cluster.node(instance.node).rec;
        (cluster.instance_name(instance), node.id.to_string(), node.api.clone())
    });
    let (name, node, api) = found.await?;
    let unreachable = |why: String| {
        let message = format!("the logs are on node {node}, whose daemon does not answer: {why}");
        ApiFailure::new(StatusCode::BAD_GATEWAY, "node_unreachable", message).with("node", node.as_str())
    };
    if api.is_empty() {
        return Err(unreachable("it has no API address".to_owned()));
    }
    let url = format!("{}/v1/local/instances/{name}/logs", state.base_url(&api));
    let sent = state.http().get(url).query(&query).send().await;
    sent.map(relay).map_err(|error| unreachable(cause_of(&error)))
}
