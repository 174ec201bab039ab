//! `/v1/feeds`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::spec::FeedFile;
use model::{FeedName, FeedState};
use protocol::coordinator::Request;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InBody, InPath};
use super::services::{carry_out, unexpected};
use super::state::ApiState;
use crate::Slice;
use crate::view::{AppliedView, ErrorView, FeedShape, FeedView, List, feed_view};

/// Feeds shown from one moment; heartbeats wait meanwhile.
const SLICE_FEEDS: usize = 1000;

/// All feeds, by name.
#[utoipa::path(get, path = "/v1/feeds", tag = "feeds", operation_id = "list_feeds",
    responses((status = 200, body = List<FeedView>), (status = "default", body = ErrorView)))]
pub(super) async fn list(State(state): State<ApiState>, caller: Caller) -> Answer<Json<List<FeedView>>> {
    let mut items = state
        .office()?
        .gather(|coordinator, now, after: Option<FeedName>| {
            let feeds = coordinator.cluster().feeds();
            let mut rest =
                feeds.skip_while(|feed| after.as_ref().is_some_and(|after| feed.name <= *after)).peekable();
            let part: Vec<_> = rest.by_ref().take(SLICE_FEEDS).collect();
            let last = part.last().map(|feed| feed.name.clone());
            let items = part.iter().map(|feed| feed_view(coordinator, feed, now)).collect();
            Slice { items, next: last.filter(|_| rest.peek().is_some()) }
        })
        .await?;
    if !caller.sees_secrets() {
        items.iter_mut().for_each(FeedView::hide_secrets);
    }
    Ok(Json(List { items }))
}

/// One feed. Passwords are never shown.
#[utoipa::path(get, path = "/v1/feeds/{name}", tag = "feeds", operation_id = "get_feed",
    params(("name" = String, Path)),
    responses((status = 200, body = FeedView), (status = 404, body = ErrorView)))]
pub(super) async fn one(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
) -> Answer<Json<FeedView>> {
    let wanted = name.clone();
    let seen = state.office()?.read(move |coordinator, now| {
        coordinator.cluster().feed(&wanted).map(|feed| feed_view(coordinator, feed, now))
    });
    let no_such_feed = || ApiFailure::not_found("feed_not_found", format!("there is no feed {name:?}"));
    let mut view = seen.await?.ok_or_else(no_such_feed)?;
    if !caller.sees_secrets() {
        view.hide_secrets();
    }
    Ok(Json(view))
}

/// Creates or changes a feed. Idempotent. `name` may be left out of the body. 409 while it runs, if its
/// pipeline would change.
#[utoipa::path(put, path = "/v1/feeds/{name}", tag = "feeds", operation_id = "put_feed",
    params(("name" = String, Path)), request_body = FeedShape,
    responses((status = 200, body = AppliedView), (status = 201, body = AppliedView),
        (status = 400, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn put(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
    InBody(mut body): InBody<Value>,
) -> Answer<(StatusCode, Json<AppliedView>)> {
    if let Some(fields) = body.as_object_mut() {
        fields.entry("name").or_insert_with(|| Value::from(name.as_str()));
    }
    let file: FeedFile = serde_json::from_value(body)
        .map_err(|error| ApiFailure::invalid(format!("the body does not have the right shape: {error}")))?;
    if file.name != name {
        let message = format!("name: the body says {:?}, the path {name:?}", file.name);
        return Err(ApiFailure::invalid(message).with("key", "name"));
    }
    let mut applied = carry_out(&state, caller, Vec::new(), vec![file]).await?;
    match applied.pop() {
        Some(applied) if applied.outcome == "created" => Ok((StatusCode::CREATED, Json(applied))),
        Some(applied) => Ok((StatusCode::OK, Json(applied))),
        None => Err(unexpected()),
    }
}

/// Stops a feed's dispatchers, removes what it left in source and sink, then forgets it. What it has
/// written stays.
#[utoipa::path(delete, path = "/v1/feeds/{name}", tag = "feeds", operation_id = "delete_feed",
    params(("name" = String, Path)),
    responses((status = 202, description = "its dispatchers are being stopped"), (status = 404, body = ErrorView)))]
pub(super) async fn delete(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
) -> Answer<StatusCode> {
    let request = Request::SetFeedState { feed: FeedName::new(&name), state: FeedState::Removing };
    state.office()?.ask(caller.asks(request)).await??;
    Ok(StatusCode::ACCEPTED)
}

/// What the operator wants of a feed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FeedStateBody {
    /// `running` or `paused`.
    state: String,
}

/// Pauses a feed, or lets it run again. While it is paused its source holds back what was not read.
#[utoipa::path(put, path = "/v1/feeds/{name}/state", tag = "feeds", operation_id = "set_feed_state",
    params(("name" = String, Path)), request_body = FeedStateBody,
    responses((status = 200, body = FeedView), (status = 400, body = ErrorView), (status = 404, body = ErrorView),
        (status = 409, body = ErrorView)))]
pub(super) async fn set_state(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
    InBody(body): InBody<FeedStateBody>,
) -> Answer<Json<FeedView>> {
    let wanted = match body.state.as_str() {
        "running" => FeedState::Running,
        "paused" => FeedState::Paused,
        other => {
            let message = format!("state: {other:?} is neither \"running\" nor \"paused\"");
            return Err(ApiFailure::invalid(message).with("key", "state"));
        }
    };
    let request = Request::SetFeedState { feed: FeedName::new(&name), state: wanted };
    state.office()?.ask(caller.clone().asks(request)).await??;
    one(State(state), InPath(name), caller).await
}
