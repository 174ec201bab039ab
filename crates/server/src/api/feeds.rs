//! `/v1/feeds`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::spec::FeedFile;
use model::{FeedName, FeedState, SpanName};
use protocol::coordinator::Request;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InBody, InPath};
use super::services::{Files, named, put_one};
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
    InBody(body): InBody<Value>,
) -> Answer<(StatusCode, Json<AppliedView>)> {
    let file: FeedFile = named(&name, body, |file: &FeedFile| &file.name)?;
    let files = Files { feeds: vec![file], ..Files::default() };
    put_one(&state, caller, &files).await
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

/// A span, and where it is to be worked.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FeedMoveBody {
    span: String,
    node: String,
}

/// Has a span of a feed moved to a node: prepared there, stopped where it is, started from its checkpoint.
/// What cannot be moved within a minute stays where it is.
#[utoipa::path(post, path = "/v1/feeds/{name}/move", tag = "feeds", operation_id = "move_feed_span",
    params(("name" = String, Path)), request_body = FeedMoveBody,
    responses((status = 202, description = "its maintainer is told", body = FeedView),
        (status = 400, body = ErrorView), (status = 404, body = ErrorView),
        (status = 409, description = "the feed does not run (`feed_not_running`), the node is closed (`node_closed`), \
            or as many moves as are allowed were asked for (`max_parallel`)", body = ErrorView),
        (status = 412, description = "the node is not up, or has not acknowledged which nodes are closed \
            (`node_not_ready`)", body = ErrorView),
        (status = 422, description = "the node may not have it (`constraint_unsatisfied`)", body = ErrorView)))]
pub(super) async fn move_span(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
    InBody(body): InBody<FeedMoveBody>,
) -> Answer<(StatusCode, Json<FeedView>)> {
    let (feed, span) = (FeedName::new(&name), SpanName::new(&body.span));
    let request = Request::MoveSpan { feed, span, node: body.node };
    state.office()?.ask(caller.clone().asks(request)).await??;
    Ok((StatusCode::ACCEPTED, one(State(state), InPath(name), caller).await?))
}
