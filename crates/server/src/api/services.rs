//! `/v1/services` and `/v1/apply`.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::spec::file::SpecFile;
use model::spec::{COUNT_MAX, FeedFile, ServiceFile, StoreGroupFile};
use model::{ServiceIx, ServiceName};
use protocol::coordinator::{Answer as Told, Apply, ApplyFeed, ApplyStoreGroup, Coordinator, Request};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use utoipa::ToSchema;

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InBody, InPath, InQuery};
use super::instances;
use super::state::ApiState;
use crate::Slice;
use crate::view::{
    AppliedView, ApplyView, BackendsView, ErrorView, InstanceView, List, ServiceShape, ServiceView,
    SpecFileShape, backends_view, is_of_stores, service_view,
};

/// Instances that a part of the list may count through; heartbeats wait meanwhile.
const SLICE_INSTANCES: usize = 20_000;
/// Services shown from one moment.
const SLICE_SERVICES: usize = 1000;

/// All services, by name.
#[utoipa::path(get, path = "/v1/services", tag = "services", operation_id = "list_services",
    responses((status = 200, body = List<ServiceView>), (status = "default", body = ErrorView)))]
pub(super) async fn list(State(state): State<ApiState>, caller: Caller) -> Answer<Json<List<ServiceView>>> {
    let part = |coordinator: &Coordinator, _, after: Option<ServiceName>| {
        let services = coordinator.cluster().services();
        let mut rest = services
            .skip_while(|(_, entry)| after.as_ref().is_some_and(|after| entry.rec.name <= *after))
            .peekable();
        let (mut items, mut counted, mut last) = (Vec::new(), 0, None);
        while items.len() < SLICE_SERVICES && counted < SLICE_INSTANCES {
            let Some((ix, entry)) = rest.next() else { break };
            last = Some(entry.rec.name.clone());
            if is_of_stores(&entry.rec) {
                continue;
            }
            counted += entry.instances.len();
            items.push(service_view(coordinator, ix, entry));
        }
        Slice { items, next: last.filter(|_| rest.peek().is_some()) }
    };
    let mut items = state.office()?.gather(part).await?;
    if !caller.sees_secrets() {
        items.iter_mut().for_each(ServiceView::hide_secrets);
    }
    Ok(Json(List { items }))
}

/// One service.
#[utoipa::path(get, path = "/v1/services/{name}", tag = "services", operation_id = "get_service",
    params(("name" = String, Path)),
    responses((status = 200, body = ServiceView), (status = 404, body = ErrorView)))]
pub(super) async fn one(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
) -> Answer<Json<ServiceView>> {
    let view = read(&state, &name, |coordinator, ix| {
        coordinator.cluster().service(ix).map(|entry| service_view(coordinator, ix, entry))
    });
    let mut view = view.await?;
    if !caller.sees_secrets() {
        view.hide_secrets();
    }
    Ok(Json(view))
}

async fn read<T: Send + 'static>(
    state: &ApiState,
    name: &str,
    look: impl FnOnce(&Coordinator, ServiceIx) -> Option<T> + Send + 'static,
) -> Answer<T> {
    let wanted = name.to_owned();
    let seen = state.office()?.read(move |coordinator, _| {
        let ix = coordinator.cluster().service_ix(&wanted)?;
        let entry = coordinator.cluster().service(ix)?;
        if is_of_stores(&entry.rec) { None } else { look(coordinator, ix) }
    });
    seen.await?.ok_or_else(|| no_such_service(name))
}

pub(super) fn no_such_service(name: &str) -> ApiFailure {
    ApiFailure::not_found("service_not_found", format!("there is no service {name:?}"))
}

/// Creates or updates a service. Idempotent. `name` may be left out of the body.
#[utoipa::path(put, path = "/v1/services/{name}", tag = "services", operation_id = "put_service",
    params(("name" = String, Path)), request_body = ServiceShape,
    responses((status = 200, body = AppliedView), (status = 201, body = AppliedView),
        (status = 400, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn put(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
    InBody(body): InBody<Value>,
) -> Answer<(StatusCode, Json<AppliedView>)> {
    let file: ServiceFile = named(&name, body, |file: &ServiceFile| &file.name)?;
    let files = Files { services: vec![file], ..Files::default() };
    put_one(&state, caller, &files).await
}

/// Carries out the one file of a `PUT`.
pub(super) async fn put_one(
    state: &ApiState,
    caller: Caller,
    files: &Files,
) -> Answer<(StatusCode, Json<AppliedView>)> {
    match carry_out(state, caller, files).await?.pop() {
        Some(applied) if applied.outcome == "created" => Ok((StatusCode::CREATED, Json(applied))),
        Some(applied) => Ok((StatusCode::OK, Json(applied))),
        None => Err(unexpected()),
    }
}

/// Nothing: a wish that is not known must not be passed over where it might be "only try".
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoQuery {}

/// Creates or updates several services, feeds and store groups: all or none. Idempotent; says what changed.
#[utoipa::path(post, path = "/v1/apply", tag = "services", operation_id = "apply",
    request_body = SpecFileShape,
    responses((status = 200, body = ApplyView), (status = 400, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn apply(
    State(state): State<ApiState>,
    caller: Caller,
    InQuery(NoQuery {}): InQuery<NoQuery>,
    InBody(file): InBody<SpecFile>,
) -> Answer<Json<ApplyView>> {
    let files = Files { services: file.service, feeds: file.feed, groups: file.store_group };
    if files.services.is_empty() && files.feeds.is_empty() && files.groups.is_empty() {
        return Ok(Json(ApplyView { items: Vec::new() }));
    }
    Ok(Json(ApplyView { items: carry_out(&state, caller, &files).await? }))
}

/// What is applied together: all of it, or nothing.
#[derive(Default)]
pub(super) struct Files {
    pub services: Vec<ServiceFile>,
    pub feeds: Vec<FeedFile>,
    pub groups: Vec<StoreGroupFile>,
}

/// The file in the body of a request whose path names it.
pub(super) fn named<F: DeserializeOwned>(
    name: &str,
    mut body: Value,
    name_of: impl Fn(&F) -> &String,
) -> Answer<F> {
    if let Some(fields) = body.as_object_mut() {
        fields.entry("name").or_insert_with(|| Value::from(name));
    }
    let file: F = serde_json::from_value(body)
        .map_err(|error| ApiFailure::invalid(format!("the body does not have the right shape: {error}")))?;
    if name_of(&file) != name {
        let message = format!("name: the body says {:?}, the path {name:?}", name_of(&file));
        return Err(ApiFailure::invalid(message).with("key", "name"));
    }
    Ok(file)
}

pub(super) async fn carry_out(state: &ApiState, caller: Caller, files: &Files) -> Answer<Vec<AppliedView>> {
    let request = Request::Apply {
        services: checked(&files.services)?,
        feeds: checked_feeds(&files.feeds)?,
        groups: checked_groups(&files.groups)?,
    };
    match state.office()?.ask(caller.asks(request)).await?? {
        Told::Applied(applied) => Ok(applied.iter().map(AppliedView::from).collect()),
        Told::Done | Told::Draining(_) => Err(unexpected()),
    }
}

/// Every specification looked at, before anything is asked of the coordinator.
fn checked(files: &[ServiceFile]) -> Answer<Vec<Apply>> {
    let mut names = BTreeSet::new();
    let mut applies = Vec::with_capacity(files.len());
    for file in files {
        let (name, count, spec) = file.check().map_err(|error| {
            ApiFailure::invalid(format!("service {:?}: {error}", file.name))
                .with("service", file.name.as_str())
                .with("key", error.key.as_str())
        })?;
        if !names.insert(name.clone()) {
            return Err(ApiFailure::invalid(format!("service {:?} is there twice", file.name)));
        }
        applies.push(Apply { name, count: file.count.map(|_| count), spec: Arc::new(spec) });
    }
    Ok(applies)
}

fn checked_feeds(files: &[FeedFile]) -> Answer<Vec<ApplyFeed>> {
    let mut names = BTreeSet::new();
    let mut applies = Vec::with_capacity(files.len());
    for file in files {
        let (name, spec) = file.check().map_err(|error| {
            ApiFailure::invalid(format!("feed {:?}: {error}", file.name))
                .with("feed", file.name.as_str())
                .with("key", error.key.as_str())
        })?;
        if !names.insert(name.clone()) {
            return Err(ApiFailure::invalid(format!("feed {:?} is there twice", file.name)));
        }
        applies.push(ApplyFeed { name, spec: Arc::new(spec) });
    }
    Ok(applies)
}

fn checked_groups(files: &[StoreGroupFile]) -> Answer<Vec<ApplyStoreGroup>> {
    let mut names = BTreeSet::new();
    let mut applies = Vec::with_capacity(files.len());
    for file in files {
        let (name, replicas, spec, process) = file.check().map_err(|error| {
            ApiFailure::invalid(format!("store group {:?}: {error}", file.name))
                .with("store_group", file.name.as_str())
                .with("key", error.key.as_str())
        })?;
        if !names.insert(name.clone()) {
            return Err(ApiFailure::invalid(format!("store group {:?} is there twice", file.name)));
        }
        applies.push(ApplyStoreGroup { name, replicas, spec: Arc::new(spec), process: Arc::new(process) });
    }
    Ok(applies)
}

pub(super) fn unexpected() -> ApiFailure {
    let message = "internal server error: the coordinator's answer does not fit the request";
    ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

/// Stops a service's instances, then forgets it. Its volumes stay.
#[utoipa::path(delete, path = "/v1/services/{name}", tag = "services", operation_id = "delete_service",
    params(("name" = String, Path)),
    responses((status = 202, description = "its instances are being stopped"), (status = 404, body = ErrorView)))]
pub(super) async fn delete(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
) -> Answer<StatusCode> {
    let asked = caller.asks(Request::Remove { service: ServiceName::new(&name) });
    state.office()?.ask(asked).await??;
    Ok(StatusCode::ACCEPTED)
}

/// How many instances a service should have.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CountBody {
    count: u32,
}

/// Scales a service. Makes no new release.
#[utoipa::path(put, path = "/v1/services/{name}/count", tag = "services", operation_id = "scale_service",
    params(("name" = String, Path)), request_body = CountBody,
    responses((status = 200, body = ServiceView), (status = 400, body = ErrorView), (status = 404, body = ErrorView)))]
pub(super) async fn scale(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
    InBody(body): InBody<CountBody>,
) -> Answer<Json<ServiceView>> {
    if body.count > COUNT_MAX {
        let message = format!("count: {} is more than {COUNT_MAX}", body.count);
        return Err(ApiFailure::invalid(message).with("key", "count"));
    }
    let asked = caller.clone().asks(Request::Scale { service: ServiceName::new(&name), count: body.count });
    state.office()?.ask(asked).await??;
    one(State(state), InPath(name), caller).await
}

/// A service's instances, oldest first.
#[utoipa::path(get, path = "/v1/services/{name}/instances", tag = "services", operation_id = "list_service_instances",
    params(("name" = String, Path)),
    responses((status = 200, body = List<InstanceView>), (status = 404, body = ErrorView)))]
pub(super) async fn instances(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
) -> Answer<Json<List<InstanceView>>> {
    read(&state, &name, |_, _| Some(())).await?;
    let items = instances::gather(&state, Some(name), None).await?;
    Ok(Json(List { items }))
}

/// Where the edges send a service's connections.
#[utoipa::path(get, path = "/v1/services/{name}/backends", tag = "services", operation_id = "list_service_backends",
    params(("name" = String, Path)),
    responses((status = 200, body = BackendsView), (status = 404, body = ErrorView)))]
pub(super) async fn backends(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
) -> Answer<Json<BackendsView>> {
    let view = read(&state, &name, |coordinator, ix| {
        coordinator.cluster().service(ix).map(|entry| backends_view(coordinator, ix, entry))
    });
    Ok(Json(view.await?))
}
