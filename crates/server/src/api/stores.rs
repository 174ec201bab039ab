//! `/v1/store-groups` and `/v1/stores`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::StoreGroupName;
use model::spec::{COUNT_MAX, StoreGroupFile};
use protocol::coordinator::{Request, StoreAction};
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InBody, InPath, InQuery};
use super::services::{Files, named, put_one};
use super::state::ApiState;
use crate::Slice;
use crate::view::{
    AppliedView, ErrorView, List, StoreGroupShape, StoreGroupView, StoreMemberView, store_group_view,
    store_view,
};

/// Stores shown from one moment; heartbeats wait meanwhile.
const SLICE_STORES: usize = 1000;

/// All store groups, by name.
#[utoipa::path(get, path = "/v1/store-groups", tag = "stores", operation_id = "list_store_groups",
    responses((status = 200, body = List<StoreGroupView>), (status = "default", body = ErrorView)))]
pub(super) async fn groups(
    State(state): State<ApiState>,
    caller: Caller,
) -> Answer<Json<List<StoreGroupView>>> {
    let items = state.office()?.read(|coordinator, now| {
        let groups = coordinator.cluster().store_groups();
        groups.filter_map(|group| store_group_view(coordinator, group, now)).collect::<Vec<_>>()
    });
    let mut items = items.await?;
    if !caller.sees_secrets() {
        items.iter_mut().for_each(StoreGroupView::hide_secrets);
    }
    Ok(Json(List { items }))
}

/// One store group. Passwords are never shown.
#[utoipa::path(get, path = "/v1/store-groups/{name}", tag = "stores", operation_id = "get_store_group",
    params(("name" = String, Path)),
    responses((status = 200, body = StoreGroupView), (status = 404, body = ErrorView)))]
pub(super) async fn group(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
) -> Answer<Json<StoreGroupView>> {
    let wanted = name.clone();
    let seen = state.office()?.read(move |coordinator, now| {
        let group = coordinator.cluster().store_group(&wanted)?;
        store_group_view(coordinator, group, now)
    });
    let missing =
        || ApiFailure::not_found("store_group_not_found", format!("there is no store group {name:?}"));
    let mut view = seen.await?.ok_or_else(missing)?;
    if !caller.sees_secrets() {
        view.hide_secrets();
    }
    Ok(Json(view))
}

/// Creates or changes a store group. Idempotent. `name` may be left out of the body.
#[utoipa::path(put, path = "/v1/store-groups/{name}", tag = "stores", operation_id = "put_store_group",
    params(("name" = String, Path)), request_body = StoreGroupShape,
    responses((status = 200, body = AppliedView), (status = 201, body = AppliedView),
        (status = 400, body = ErrorView), (status = 409, body = ErrorView), (status = 422, body = ErrorView)))]
pub(super) async fn put_group(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
    InBody(body): InBody<Value>,
) -> Answer<(StatusCode, Json<AppliedView>)> {
    let file: StoreGroupFile = named(&name, body, |file: &StoreGroupFile| &file.name)?;
    let files = Files { groups: vec![file], ..Files::default() };
    put_one(&state, caller, &files).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DestroyQuery {
    /// Must be true: everything that its stores hold is gone afterwards.
    #[serde(default)]
    destroy_data: bool,
}

/// Removes a store group with all its data. 412 unless `destroy_data` says that this is wanted.
#[utoipa::path(delete, path = "/v1/store-groups/{name}", tag = "stores", operation_id = "delete_store_group",
    params(("name" = String, Path), DestroyQuery),
    responses((status = 202, description = "its stores are being stopped and destroyed"),
        (status = 404, body = ErrorView), (status = 412, body = ErrorView)))]
pub(super) async fn delete_group(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    InQuery(query): InQuery<DestroyQuery>,
    caller: Caller,
) -> Answer<StatusCode> {
    let request =
        Request::RemoveStoreGroup { group: StoreGroupName::new(&name), destroy_data: query.destroy_data };
    state.office()?.ask(caller.asks(request)).await??;
    Ok(StatusCode::ACCEPTED)
}

/// How many stores a group should have.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicasBody {
    replicas: u32,
}

/// Scales a store group. Fewer: some are taken offline in two steps. More: those on their way out come back first.
#[utoipa::path(put, path = "/v1/store-groups/{name}/replicas", tag = "stores", operation_id = "scale_store_group",
    params(("name" = String, Path)), request_body = ReplicasBody,
    responses((status = 200, body = StoreGroupView), (status = 400, body = ErrorView),
        (status = 404, body = ErrorView), (status = 409, body = ErrorView), (status = 422, body = ErrorView)))]
pub(super) async fn scale(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
    InBody(body): InBody<ReplicasBody>,
) -> Answer<Json<StoreGroupView>> {
    if body.replicas > COUNT_MAX {
        let message = format!("replicas: {} is more than {COUNT_MAX}", body.replicas);
        return Err(ApiFailure::invalid(message).with("key", "replicas"));
    }
    let request = Request::SetReplicas { group: StoreGroupName::new(&name), replicas: body.replicas };
    state.office()?.ask(caller.clone().asks(request)).await??;
    group(State(state), InPath(name), caller).await
}

/// All stores, by group and ordinal.
#[utoipa::path(get, path = "/v1/stores", tag = "stores", operation_id = "list_stores",
    responses((status = 200, body = List<StoreMemberView>), (status = "default", body = ErrorView)))]
pub(super) async fn list(State(state): State<ApiState>) -> Answer<Json<List<StoreMemberView>>> {
    let items = state
        .office()?
        .gather(|coordinator, now, after: Option<(StoreGroupName, u32)>| {
            let cluster = coordinator.cluster();
            let groups = cluster.store_groups();
            let stores = groups.flat_map(|group| cluster.stores_of(group.name.as_str()));
            let key = |store: &model::Store| (store.group.clone(), store.ordinal);
            let mut rest = stores
                .skip_while(|store| after.as_ref().is_some_and(|after| key(store) <= *after))
                .peekable();
            let part: Vec<_> = rest.by_ref().take(SLICE_STORES).collect();
            let last = part.last().map(|store| key(store));
            let items = part.iter().map(|store| store_view(coordinator, store, now)).collect();
            Slice { items, next: last.filter(|_| rest.peek().is_some()) }
        })
        .await?;
    Ok(Json(List { items }))
}

/// One store.
#[utoipa::path(get, path = "/v1/stores/{id}", tag = "stores", operation_id = "get_store",
    params(("id" = String, Path)),
    responses((status = 200, body = StoreMemberView), (status = 404, body = ErrorView)))]
pub(super) async fn one(
    State(state): State<ApiState>,
    InPath(id): InPath<String>,
) -> Answer<Json<StoreMemberView>> {
    let wanted = id.clone();
    let seen = state.office()?.read(move |coordinator, now| {
        coordinator.cluster().store(&wanted).map(|store| store_view(coordinator, store, now))
    });
    seen.await?
        .map(Json)
        .ok_or_else(|| ApiFailure::not_found("store_not_found", format!("there is no store {id:?}")))
}

async fn act(
    state: ApiState,
    id: String,
    caller: Caller,
    action: StoreAction,
) -> Answer<Json<StoreMemberView>> {
    let request = Request::Store { store: id.clone(), action };
    state.office()?.ask(caller.asks(request)).await??;
    one(State(state), InPath(id)).await
}

macro_rules! actions {
    ($($(#[doc = $doc:literal])+ $method:ident $path:literal $name:ident $operation:literal $action:ident;)+) => {$(
        $(#[doc = $doc])+
        #[utoipa::path($method, path = $path, tag = "stores", operation_id = $operation,
            params(("id" = String, Path)),
            responses((status = 200, body = StoreMemberView), (status = 404, body = ErrorView),
                (status = 409, body = ErrorView)))]
        pub(super) async fn $name(
            State(state): State<ApiState>,
            InPath(id): InPath<String>,
            caller: Caller,
        ) -> Answer<Json<StoreMemberView>> {
            act(state, id, caller, StoreAction::$action).await
        }
    )+};
}

actions! {
    /// Marks a store: when its group gets smaller, it goes first.
    put "/v1/stores/{id}/mark" mark "mark_store" Mark;
    /// Takes a mark back.
    delete "/v1/stores/{id}/mark" unmark "unmark_store" Unmark;
    /// Restarts a store gracefully: its leaders leave first, and come back when it is ready again.
    post "/v1/stores/{id}/restart" restart "restart_store" Restart;
    /// Ends a graceful restart: what has not happened yet does not.
    delete "/v1/stores/{id}/restart" cancel_restart "cancel_restart_store" CancelRestart;
    /// Moves a store's leaders away, and keeps them away.
    put "/v1/stores/{id}/evict-leader" evict_leader "evict_leader" EvictLeader;
    /// Lets leaders come back.
    delete "/v1/stores/{id}/evict-leader" cancel_evict_leader "cancel_evict_leader" CancelEvictLeader;
}
