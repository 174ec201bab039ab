//! What this daemon answers itself: the logs of its instances, and the scratch data that they left.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use doors::Peer;
use futures_util::StreamExt;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{copy, disk};
use crate::logs::{self, Start};

/// Lines shown when nobody says how many.
const LINES_DEFAULT: usize = 100;
const LINES_MAX: usize = 100_000;

#[derive(Deserialize)]
struct LogQuery {
    lines: Option<usize>,
    #[serde(default)]
    follow: bool,
}

/// Who may ask for what is on this node: it goes around the coordinator and its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalCallers {
    /// Daemons, by their certificates.
    Nodes,
    /// Whoever is on this machine.
    Loopback,
    /// Whoever reaches it: what `--insecure` says.
    Anyone,
}

/// `GET /v1/local/instances/{id}/logs` and `…/disk`: what other daemons ask this one for.
pub fn local_router(instances: PathBuf, callers: LocalCallers) -> Router {
    Router::new()
        .route("/v1/local/instances/{id}/logs", get(serve_logs))
        .route("/v1/local/instances/{id}/disk", get(serve_disk))
        .route_layer(middleware::from_fn_with_state(callers, only))
        .with_state(Arc::new(instances))
}

async fn only(State(callers): State<LocalCallers>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>();
    let may = match callers {
        LocalCallers::Nodes => peer.and_then(|peer| peer.who.as_ref()?.node()).is_some(),
        LocalCallers::Loopback => peer.is_some_and(|peer| peer.addr.ip().to_canonical().is_loopback()),
        LocalCallers::Anyone => true,
    };
    match may {
        true => next.run(request).await,
        false => error(StatusCode::FORBIDDEN, "forbidden", "only daemons of the cluster may ask for this"),
    }
}

/// An instance's directory; its name may lead nowhere else.
fn dir_of(root: &std::path::Path, id: &str) -> Option<PathBuf> {
    let plain = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    Some(root.join(id)).filter(|dir| plain && dir.is_dir())
}

async fn serve_disk(State(root): State<Arc<PathBuf>>, Path(id): Path<String>) -> Response {
    match dir_of(&root, &id) {
        Some(dir) => copy::serve(dir, &id).await,
        None => error(StatusCode::NOT_FOUND, "disk_not_found", &format!("this node has nothing of {id}")),
    }
}

async fn serve_logs(
    State(root): State<Arc<PathBuf>>,
    Path(id): Path<String>,
    query: Result<Query<LogQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Ok(Query(query)) = query else {
        return error(StatusCode::BAD_REQUEST, "invalid", "lines is a number, follow is true or false");
    };
    let Some(dir) = dir_of(&root, &id) else {
        return error(StatusCode::NOT_FOUND, "logs_not_found", &format!("this node has no logs of {id}"));
    };
    let lines = query.lines.unwrap_or(LINES_DEFAULT).min(LINES_MAX);
    if !query.follow {
        return match logs::tail(&dir, lines).await {
            Ok(text) => ([("content-type", "text/plain; charset=utf-8")], text).into_response(),
            Err(fault) => error(StatusCode::INTERNAL_SERVER_ERROR, "internal", &fault.to_string()),
        };
    }
    // Ends when the instance is over for good; whoever follows ends it by hanging up.
    let over = CancellationToken::new();
    let gone = over.clone();
    let watched = dir.clone();
    let guard = over.clone().drop_guard();
    tokio::spawn(async move {
        while watched.is_dir() && !disk::is_over(&watched) {
            tokio::select! {
                () = gone.cancelled() => return,
                () = tokio::time::sleep(std::time::Duration::from_secs(1)) => {}
            }
        }
        gone.cancel();
    });
    let stream = logs::follow(&dir, Start::LastLines(lines), over).map(move |chunk| {
        let _keeps_watching = &guard;
        chunk
    });
    ([("content-type", "text/plain; charset=utf-8")], Body::from_stream(stream)).into_response()
}

pub(super) fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let body = serde_json::json!({ "error": { "code": code, "message": message, "details": {} } });
    (status, Json(body)).into_response()
}
