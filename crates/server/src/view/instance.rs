//! An instance as the API shows it.

use std::collections::BTreeMap;

use model::{Actual, Cluster, Exit, Instance};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ReasonView, rfc3339};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceView {
    pub id: String,
    pub service: String,
    pub release: u32,
    pub node: String,
    /// `running`, `draining`, `stopped`.
    pub desired: String,
    /// `pending`, `starting`, `ready`, `unready`, `stopping`, `stopped`, `failed`, `lost`, `unknown`.
    pub actual: String,
    pub pid: Option<u32>,
    /// By the names in the specification.
    pub ports: BTreeMap<String, u16>,
    /// Where its ports are reached.
    pub host: String,
    /// Which of the service's numbered places it fills; only for batch and stateful services.
    pub slot: Option<u32>,
    pub restarts: u32,
    /// Bytes.
    pub memory: u64,
    /// Thousandths of a core.
    pub cpu: u32,
    pub exit: Option<ExitView>,
    pub replaces: Option<String>,
    pub reasons: Vec<ReasonView>,
    pub created_at: String,
    pub healthy_since: Option<String>,
    pub ended_at: Option<String>,
}

/// How its process ended; both null if nobody saw it end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExitView {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl From<Exit> for ExitView {
    fn from(exit: Exit) -> ExitView {
        match exit {
            Exit::Code(code) => ExitView { code: Some(code), signal: None },
            Exit::Signal(signal) => ExitView { code: None, signal: Some(signal) },
            Exit::Unknown => ExitView { code: None, signal: None },
        }
    }
}

/// What is known of it, seen from outside: what a silent node last said may not hold any more.
pub(crate) fn visible_actual(cluster: &Cluster, instance: &Instance) -> &'static str {
    let silent = cluster.node(instance.node).rec.is_offline();
    if silent && !instance.is_over() && instance.actual != Actual::Lost {
        return "unknown";
    }
    instance.actual.as_str()
}

pub(crate) fn instance_view(cluster: &Cluster, instance: &Instance) -> InstanceView {
    let node = &cluster.node(instance.node).rec;
    let service = cluster.service(instance.service);
    let id = cluster.instance_name(instance);
    let names = service.map(|entry| entry.rec.spec_of(instance.release).ports.clone()).unwrap_or_default();
    let since = instance.ended_at.or(instance.healthy_since);
    let reason = instance
        .reason
        .map(|code| ReasonView::new(code, format!("instance/{id}"), since, instance.message.as_deref()));
    let replaced = instance.replaces.map(|old| match (cluster.instance(old), service) {
        (Some(old), _) => cluster.instance_name(old),
        (None, Some(entry)) => old.named(&entry.rec.name),
        (None, None) => old.to_string(),
    });
    InstanceView {
        service: service.map(|entry| entry.rec.name.to_string()).unwrap_or_default(),
        release: instance.release,
        node: node.id.to_string(),
        desired: instance.desired.as_str().to_owned(),
        actual: visible_actual(cluster, instance).to_owned(),
        pid: instance.pid,
        ports: names.into_iter().zip(instance.ports.iter().copied()).collect(),
        host: node.host.clone(),
        slot: instance.slot,
        restarts: instance.restarts,
        memory: instance.memory,
        cpu: instance.cpu,
        exit: instance.exit.map(Into::into),
        replaces: replaced,
        reasons: reason.into_iter().collect(),
        created_at: rfc3339(instance.created_at),
        healthy_since: instance.healthy_since.map(rfc3339),
        ended_at: instance.ended_at.map(rfc3339),
        id,
    }
}
