//! The HTTP API: `/v1`, `/metrics`, `/healthz`, `/openapi.json`, and `/api` for tools of another system.
//!
//! A daemon that is not the coordinator forwards `/v1` and most of `/api`; see [`forward`]. Every error, those of the
//! framework included, has the one shape of [`crate::view::ErrorView`].

mod admit;
mod caller;
mod captures;
mod cluster;
mod document;
mod drains;
mod error;
mod events;
mod extract;
mod feeds;
mod forward;
#[cfg(test)]
mod hostile_tests;
mod instances;
mod logs;
mod nodes;
mod own;
mod refusals;
mod services;
mod state;
mod stores;
mod tokens;
mod volumes;

use axum::{Router, middleware};
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use error::ApiFailure;
pub use state::ApiState;

pub use tokens::{AuditView, NewTokenView, TokenView, WhoamiView};

pub use doors::limits::BODY_BYTES_MAX;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate",
        description = "Lists are {\"items\": […]}, times RFC 3339, errors {\"error\": {\"code\", \"message\", \"details\"}}.",
        license(name = "Apache-2.0 OR MIT")
    ),
    tags(
        (name = "nodes"), (name = "drains"), (name = "services"), (name = "feeds"), (name = "stores"), (name = "instances"), (name = "volumes"), (name = "cluster"),
        (name = "access", description = "Who may ask, and who asked for what. Where tokens are asked for, `Authorization: Bearer` carries one; 401 and 403 come before anything of a body is read."),
        (name = "captures", description = "What tools that restart clusters of another system call."),
        (name = "daemon", description = "Answered by every daemon for itself.")
    )
)]
struct Document;

/// Answered by the coordinator; other daemons forward.
fn v1() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::one))
        .routes(routes!(nodes::set_intent))
        .routes(routes!(nodes::confirm_dead))
        .routes(routes!(drains::get, drains::put, drains::delete))
        .routes(routes!(drains::plan))
        .routes(routes!(drains::plan_several))
        .routes(routes!(drains::list, drains::create))
        .routes(routes!(drains::one, drains::cancel))
        .routes(routes!(services::list))
        .routes(routes!(services::one, services::put, services::delete))
        .routes(routes!(services::apply))
        .routes(routes!(services::scale))
        .routes(routes!(services::instances))
        .routes(routes!(services::backends))
        .routes(routes!(feeds::list))
        .routes(routes!(feeds::one, feeds::put, feeds::delete))
        .routes(routes!(feeds::set_state))
        .routes(routes!(feeds::move_span))
        .routes(routes!(stores::groups))
        .routes(routes!(stores::group, stores::put_group, stores::delete_group))
        .routes(routes!(stores::scale))
        .routes(routes!(stores::list))
        .routes(routes!(stores::one))
        .routes(routes!(stores::mark, stores::unmark))
        .routes(routes!(stores::restart, stores::cancel_restart))
        .routes(routes!(stores::evict_leader, stores::cancel_evict_leader))
        .routes(routes!(instances::list))
        .routes(routes!(instances::one, instances::delete))
        .routes(routes!(logs::logs))
        .routes(routes!(volumes::list))
        .routes(routes!(volumes::one))
        .routes(routes!(volumes::set_home))
        .routes(routes!(events::events))
        .routes(routes!(captures::drain, captures::drain_status))
        .routes(routes!(captures::list))
        .routes(routes!(captures::drain_v1))
        .routes(routes!(captures::health))
        .routes(routes!(captures::resign))
        .routes(routes!(cluster::status))
        .routes(routes!(cluster::doctor))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(tokens::whoami))
        .routes(routes!(tokens::audit))
}

/// Answered by every daemon for itself.
fn own() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(captures::status))
        .routes(routes!(own::healthz))
        .routes(routes!(own::metrics))
        .routes(routes!(own::openapi_json))
}

/// The whole API. Serve it with [`crate::serve`], so that the audit log knows who asked. More routes may be merged into it.
pub fn router(state: ApiState) -> Router {
    let v1 = v1().route_layer(middleware::from_fn_with_state(state.clone(), forward::forward));
    let (router, _) = OpenApiRouter::new().merge(v1).merge(own()).split_for_parts();
    router
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(middleware::from_fn(caller::no_cross_site))
        .layer(middleware::from_fn_with_state(state.clone(), admit::admit))
        .with_state(state)
}

/// The OpenAPI document, as served and as committed in `docs/openapi.json`.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let (_, document) = OpenApiRouter::<ApiState>::with_openapi(Document::openapi())
        .merge(v1())
        .merge(own())
        .split_for_parts();
    document::complete(document)
}
