//! What every daemon answers for itself.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::{Answer, ApiFailure};
use super::state::ApiState;
use crate::metrics::Figures;
use crate::view::{Census, DrainFigures, FeedFigures, StoreFigures, figures};

/// The type of OpenMetrics, the text format that Prometheus reads.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether this daemon should get connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    /// `ok`; `withdrawing` or `withdrawn` while its edge leaves, and as long as its node is out; `stopping`
    /// while a daemon with an edge ends.
    pub status: String,
    pub node: String,
    /// Whether the coordinator is in this daemon.
    pub coordinator: bool,
    /// Where the coordinator's API is, as far as this daemon knows.
    pub leader: Option<String>,
}

/// Says that this daemon is alive, and where it takes the coordinator to be. Made for load balancers: it
/// fails, with the same body, before the edge of a draining node closes its ports.
#[utoipa::path(get, path = "/healthz", tag = "daemon", operation_id = "healthz",
    responses((status = 200, body = HealthView), (status = 503, body = HealthView)))]
pub(super) async fn healthz(State(state): State<ApiState>) -> (StatusCode, Json<HealthView>) {
    let away = state.away();
    let status = away.map_or(StatusCode::OK, |_| StatusCode::SERVICE_UNAVAILABLE);
    let view = HealthView {
        status: away.unwrap_or("ok").to_owned(),
        node: state.id().to_owned(),
        coordinator: state.acting().is_some(),
        leader: state.leader_api(),
    };
    (status, Json(view))
}

/// Figures for Prometheus. Those of the cluster come from the coordinator alone.
#[utoipa::path(get, path = "/metrics", tag = "daemon", operation_id = "metrics",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub(super) async fn metrics(State(state): State<ApiState>) -> Answer<Response> {
    let mut text = String::new();
    if let Some(office) = state.candidate_office() {
        let figures = if office.is_acting() { count(office).await } else { Figures::default() };
        text = office.metrics().encode(&figures).map_err(|error| {
            let message = format!("internal server error: the figures cannot be written: {error}");
            ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
        })?;
    }
    // The format has one end: that of the whole.
    const END: &str = "# EOF\n";
    let mut all = text.strip_suffix(END).unwrap_or(&text).to_owned();
    for more in state.more_metrics() {
        all.push_str(more.strip_suffix(END).unwrap_or(&more));
    }
    all.push_str(END);
    Ok(([(header::CONTENT_TYPE, OPENMETRICS)], all).into_response())
}

/// Empty if the coordinator went away meanwhile.
async fn count(office: &crate::OfficeHandle) -> Figures {
    let Ok(mut figures) = office.peek(figures).await else { return Figures::default() };
    let Ok(drains) = office.peek(DrainFigures::of).await else { return Figures::default() };
    figures.drains = drains;
    let Ok(feeds) = office.peek(FeedFigures::of).await else { return Figures::default() };
    figures.feeds = feeds;
    let Ok(stores) = office.peek(StoreFigures::of).await else { return Figures::default() };
    figures.stores = stores;
    let mut parts = Vec::new();
    let mut at = None;
    loop {
        let Ok(part) = office.peek(move |coordinator, now| Census::part(coordinator, now, at)).await else {
            return Figures::default();
        };
        parts.extend(part.items);
        match part.next {
            Some(next) => at = Some(next),
            None => break,
        }
    }
    let census = Census::sum(parts);
    figures.instances = census.instances.into_iter().map(|(state, n)| (state.to_owned(), n as i64)).collect();
    let services = census.services;
    let by_state = [("ok", services.ok), ("degraded", services.degraded), ("pending", services.pending)];
    figures.services = by_state.into_iter().map(|(state, n)| (state.to_owned(), n as i64)).collect();
    figures
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "daemon", operation_id = "openapi",
    responses((status = 200, body = Object)))]
pub(super) async fn openapi_json() -> Json<utoipa::openapi::OpenApi> {
    Json(super::openapi())
}
