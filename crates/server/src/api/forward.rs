//! Requests that reach a daemon which is not the coordinator.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::ApiFailure;
use super::caller;
use super::captures::RESIGN;
use super::state::ApiState;
use crate::OfficeHandle;

/// Which daemon passed a request on. One that has it is not passed on again: two daemons that each
/// take the other for the coordinator would play ball with it.
pub(super) const FORWARDED_BY: &str = "tidegate-forwarded-by";
/// Who asked the daemon that passed it on.
pub(super) const FORWARDED_FOR: &str = "tidegate-forwarded-for";

/// Headers that belong to one connection, not to the message.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// An answer begins within this time. What is asked of the coordinator waits for the store, which may
/// take nothing for as long as it has no space.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The coordinator's own word on what is wrong is better than ours.
const FORWARD_MAX: Duration = Duration::from_secs(15);
const _: () = assert!(FORWARD_MAX.as_secs() > ANSWER_MAX.as_secs());
const REASONS_MAX: Duration = Duration::from_secs(1);

pub(super) async fn forward(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let Some(office) = state.acting() else {
        return pass_on(&state, request).await.unwrap_or_else(IntoResponse::into_response);
    };
    match tokio::time::timeout(ANSWER_MAX, next.run(request)).await {
        Ok(response) => response,
        Err(_) => stuck(office).await.into_response(),
    }
}

/// Why the coordinator's answers do not come.
async fn stuck(office: &OfficeHandle) -> ApiFailure {
    let reasons = office.peek(|coordinator, _| coordinator.cluster_reasons());
    let reasons = match tokio::time::timeout(REASONS_MAX, reasons).await {
        Ok(Ok(reasons)) => reasons,
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    let later = "what was asked may still be carried out";
    match reasons.first() {
        Some(reason) => {
            let message = format!("{}; {later}", reason.message);
            ApiFailure::new(StatusCode::SERVICE_UNAVAILABLE, reason.code.as_str(), message)
                .with("hint", reason.code.hint())
        }
        None => {
            let seconds = ANSWER_MAX.as_secs();
            let message = format!("no answer within {seconds}s: the store may not be reached; {later}");
            ApiFailure::new(StatusCode::SERVICE_UNAVAILABLE, "no_answer_in_time", message)
        }
    }
}

async fn pass_on(state: &ApiState, request: Request) -> Result<Response, ApiFailure> {
    if let Some(by) = request.headers().get(FORWARDED_BY) {
        let by = by.to_str().unwrap_or("another daemon");
        let message = format!("{by} took this daemon for the coordinator; an election may be under way");
        return Err(ApiFailure::no_coordinator(message));
    }
    let Some(api) = state.leader_api() else {
        return Err(ApiFailure::no_coordinator("no coordinator is known; an election may be under way"));
    };
    let from = caller::from(request.headers(), request.extensions());
    let (parts, body) = request.into_parts();
    let resigns = parts.uri.path() == RESIGN;
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut headers = end_to_end(&parts.headers);
    headers.insert(FORWARDED_BY, header_text(state.id()));
    headers.insert(FORWARDED_FOR, header_text(&from));
    let sent = state
        .http()
        .request(parts.method, format!("{}{path}", state.base_url(&api)))
        .headers(headers)
        .body(reqwest::Body::wrap_stream(body.into_data_stream()));
    let answered = tokio::select! {
        biased;
        answered = tokio::time::timeout(FORWARD_MAX, sent.send()) => answered,
        // One that is stopped or cut off keeps its connections and says nothing on them.
        () = state.leader_left(&api) => return match resigns {
            // That is what was asked for; its answer may be lost on the way.
            true => Ok(StatusCode::ACCEPTED.into_response()),
            false => Err(replaced(&api)),
        },
    };
    let why = match answered {
        Ok(Ok(answer)) => return Ok(relay(answer)),
        Ok(Err(error)) => cause_of(&error),
        Err(_) => format!("nothing came within {}s", FORWARD_MAX.as_secs()),
    };
    Err(ApiFailure::no_coordinator(format!("the coordinator at {api} does not answer: {why}")))
}

fn replaced(api: &str) -> ApiFailure {
    let message = format!("the coordinator at {api} left office before it answered; look again, then retry");
    ApiFailure::no_coordinator(message)
}

/// Hands another daemon's answer on, as it comes in.
pub(super) fn relay(answer: reqwest::Response) -> Response {
    let (status, headers) = (answer.status(), end_to_end(answer.headers()));
    let mut response = Response::new(Body::from_stream(answer.bytes_stream()));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The innermost cause: the outer ones repeat the URL.
pub(super) fn cause_of(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| !HOP_BY_HOP.contains(name) && *name != "keep-alive");
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn header_text(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unprintable"))
}
