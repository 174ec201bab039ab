//! `/v1/volumes`.

use axum::Json;
use axum::extract::State;
use protocol::coordinator::Request;
use serde::Deserialize;
use utoipa::ToSchema;

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InBody, InPath};
use super::state::ApiState;
use crate::Slice;
use crate::view::{ErrorView, List, VolumeView, volume_view};

/// Volumes shown from one moment.
const SLICE_VOLUMES: usize = 500;

/// All volumes, by id.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", operation_id = "list_volumes",
    responses((status = 200, body = List<VolumeView>), (status = "default", body = ErrorView)))]
pub(super) async fn list(State(state): State<ApiState>) -> Answer<Json<List<VolumeView>>> {
    let office = state.office()?;
    let items = office
        .gather(|coordinator, _, after: Option<model::VolumeId>| {
            let cluster = coordinator.cluster();
            let skipped = cluster
                .volumes()
                .skip_while(|volume| after.as_ref().is_some_and(|after| volume.id <= *after));
            let mut rest = skipped.peekable();
            let part: Vec<_> = rest.by_ref().take(SLICE_VOLUMES).collect();
            let last = part.last().map(|volume| volume.id.clone());
            let items = part.iter().map(|volume| volume_view(cluster, volume)).collect();
            Slice { items, next: last.filter(|_| rest.peek().is_some()) }
        })
        .await?;
    Ok(Json(List { items }))
}

/// One volume.
#[utoipa::path(get, path = "/v1/volumes/{id}", tag = "volumes", operation_id = "get_volume",
    params(("id" = String, Path)),
    responses((status = 200, body = VolumeView), (status = 404, body = ErrorView)))]
pub(super) async fn one(
    State(state): State<ApiState>,
    InPath(id): InPath<String>,
) -> Answer<Json<VolumeView>> {
    let wanted = id.clone();
    let seen = state.office()?.read(move |coordinator, _| {
        let cluster = coordinator.cluster();
        cluster.volume(&wanted).map(|volume| volume_view(cluster, volume))
    });
    let missing = || ApiFailure::not_found("volume_not_found", format!("there is no volume {id:?}"));
    seen.await?.map(Json).ok_or_else(missing)
}

/// The node that has the data.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HomeBody {
    node: String,
}

/// Says that a volume's data is on another node. 409 while an instance runs on it.
#[utoipa::path(put, path = "/v1/volumes/{id}/home", tag = "volumes", operation_id = "set_volume_home",
    params(("id" = String, Path)), request_body = HomeBody,
    responses((status = 200, body = VolumeView), (status = 404, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn set_home(
    State(state): State<ApiState>,
    InPath(id): InPath<String>,
    caller: Caller,
    InBody(body): InBody<HomeBody>,
) -> Answer<Json<VolumeView>> {
    let asked = caller.asks(Request::AttachVolume { volume: id.clone(), node: body.node });
    state.office()?.ask(asked).await??;
    one(State(state), InPath(id)).await
}
