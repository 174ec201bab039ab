//! `/v1/instances`.

use std::ops::Bound;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::{Cluster, Instance, InstanceId, ServiceIx, ServiceName};
use protocol::coordinator::{Coordinator, Request};
use serde::Deserialize;
use utoipa::IntoParams;

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InPath, InQuery};
use super::state::ApiState;
use super::{nodes::no_such_node, services::no_such_service};
use crate::Slice;
use crate::view::{ErrorView, InstanceView, List, instance_view};

/// Instances shown from one moment; heartbeats wait meanwhile.
const SLICE_INSTANCES: usize = 5000;
/// Services passed by in one go while there is nothing to show of them.
const SLICE_SERVICES: usize = 5000;

/// Which instances.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Filter {
    /// Of this service only.
    service: Option<String>,
    /// On this node only.
    node: Option<String>,
}

/// Instances, by service, then oldest first.
#[utoipa::path(get, path = "/v1/instances", tag = "instances", operation_id = "list_instances", params(Filter),
    responses((status = 200, body = List<InstanceView>), (status = 404, body = ErrorView)))]
pub(super) async fn list(
    State(state): State<ApiState>,
    InQuery(filter): InQuery<Filter>,
) -> Answer<Json<List<InstanceView>>> {
    let Filter { service, node } = filter.clone();
    let known = state.office()?.read(move |coordinator, _| {
        let cluster = coordinator.cluster();
        let no_service = service.filter(|name| cluster.service_ix(name).is_none());
        let no_node = node.filter(|id| cluster.node_ix(id).is_none());
        (no_service, no_node)
    });
    match known.await? {
        (Some(name), _) => return Err(no_such_service(&name)),
        (None, Some(node)) => return Err(no_such_node(&node)),
        (None, None) => {}
    }
    let items = gather(&state, filter.service, filter.node).await?;
    Ok(Json(List { items }))
}

/// Where a part of the list begins: after this instance of this service.
#[derive(Clone)]
struct Cursor {
    service: ServiceName,
    instance: Option<InstanceId>,
}

pub(super) async fn gather(
    state: &ApiState,
    service: Option<String>,
    node: Option<String>,
) -> Answer<Vec<InstanceView>> {
    let office = state.office()?;
    if let Some(node) = node {
        // A node has hundreds of them, not millions.
        let on_node = office.read(move |coordinator, _| on_node(coordinator, &node, service.as_deref()));
        return Ok(on_node.await?);
    }
    let step =
        move |coordinator: &Coordinator, _, at: Option<Cursor>| part(coordinator, service.as_deref(), at);
    Ok(office.gather(step).await?)
}

fn on_node(coordinator: &Coordinator, node: &str, service: Option<&str>) -> Vec<InstanceView> {
    let cluster = coordinator.cluster();
    let Some(ix) = cluster.node_ix(node) else { return Vec::new() };
    let wanted: Option<Option<ServiceIx>> = service.map(|name| cluster.service_ix(name));
    let all = cluster.instances_on(ix);
    let kept = all.filter(|instance| wanted.is_none_or(|wanted| wanted == Some(instance.service)));
    let mut items: Vec<_> = kept.map(|instance| instance_view(cluster, instance)).collect();
    // Stable: within a service they stay oldest first.
    items.sort_by(|a, b| a.service.cmp(&b.service));
    items
}

fn part(coordinator: &Coordinator, only: Option<&str>, at: Option<Cursor>) -> Slice<InstanceView, Cursor> {
    let cluster = coordinator.cluster();
    let mut items = Vec::new();
    let services =
        cluster.services().filter(|(_, entry)| only.is_none_or(|name| entry.rec.name.as_str() == name));
    let rest = services.skip_while(|(_, entry)| at.as_ref().is_some_and(|at| entry.rec.name < at.service));
    for (passed, (_, entry)) in rest.enumerate() {
        let name = &entry.rec.name;
        let after = at.as_ref().filter(|at| at.service == *name).and_then(|at| at.instance);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let room = SLICE_INSTANCES - items.len();
        if room == 0 || passed == SLICE_SERVICES {
            return Slice { items, next: Some(Cursor { service: name.clone(), instance: after }) };
        }
        let mut last = None;
        for (id, instance) in entry.instances.range((from, Bound::Unbounded)).take(room) {
            last = Some(*id);
            items.push(instance_view(cluster, instance));
        }
        if items.len() == SLICE_INSTANCES {
            return Slice { items, next: Some(Cursor { service: name.clone(), instance: last }) };
        }
    }
    Slice { items, next: None }
}

/// One instance.
#[utoipa::path(get, path = "/v1/instances/{id}", tag = "instances", operation_id = "get_instance",
    params(("id" = String, Path)),
    responses((status = 200, body = InstanceView), (status = 404, body = ErrorView)))]
pub(super) async fn one(
    State(state): State<ApiState>,
    InPath(id): InPath<String>,
) -> Answer<Json<InstanceView>> {
    Ok(Json(look_up(&state, &id, instance_view).await?))
}

pub(super) async fn look_up<T: Send + 'static>(
    state: &ApiState,
    id: &str,
    look: impl FnOnce(&Cluster, &Instance) -> T + Send + 'static,
) -> Answer<T> {
    let (number, text) = (parse(id)?, id.to_owned());
    let seen = state.office()?.read(move |coordinator, _| {
        let cluster = coordinator.cluster();
        find(cluster, number, &text).map(|instance| look(cluster, instance))
    });
    seen.await?.ok_or_else(|| no_such_instance(id))
}

/// The number alone, or with the right service's name before it.
fn find<'a>(cluster: &'a Cluster, number: InstanceId, text: &str) -> Option<&'a Instance> {
    let instance = cluster.instance(number)?;
    (!text.contains('-') || cluster.instance_name(instance) == text).then_some(instance)
}

fn parse(id: &str) -> Answer<InstanceId> {
    id.parse().map_err(|_| no_such_instance(id))
}

fn no_such_instance(id: &str) -> ApiFailure {
    ApiFailure::not_found("instance_not_found", format!("there is no instance {id:?}"))
}

/// Stops an instance. Its service's count brings a replacement.
#[utoipa::path(delete, path = "/v1/instances/{id}", tag = "instances", operation_id = "stop_instance",
    params(("id" = String, Path)),
    responses((status = 202, body = InstanceView), (status = 404, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn delete(
    State(state): State<ApiState>,
    InPath(id): InPath<String>,
    caller: Caller,
) -> Answer<(StatusCode, Json<InstanceView>)> {
    let number = look_up(&state, &id, |_, instance| instance.id).await?;
    state.office()?.ask(caller.asks(Request::StopInstance { id: number })).await??;
    Ok((StatusCode::ACCEPTED, Json(look_up(&state, &id, instance_view).await?)))
}
