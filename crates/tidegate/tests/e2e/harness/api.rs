//! The HTTP API, as a program would use it.

use std::{net::SocketAddr, time::Duration};

use reqwest::{Client, Method};
use serde::de::DeserializeOwned;
use serde_json::Value;
use server::view::{FeedView, InstanceView, List, NodeView, ServiceView, StatusView, VolumeView};

use super::until;

/// Where one daemon answers.
#[derive(Clone)]
pub struct Api {
    http: Client,
    base: String,
}

type Answer<T> = Result<T, String>;

impl Api {
    pub fn at(addr: SocketAddr) -> Api {
        // Shorter than a test's patience: an answer that never comes is asked for again.
        let http = doors::http().no_proxy().timeout(Duration::from_secs(20)).build();
        Api { http: http.expect("a client without TLS"), base: format!("http://{addr}") }
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    /// Status and body; `Err` if there was no answer.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&str>) -> Answer<(u16, Value)> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_owned());
        }
        let response = request.send().await.map_err(|error| format!("{error:?}"))?;
        let status = response.status().as_u16();
        let text = response.text().await.map_err(|error| format!("{error:?}"))?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Answer<T> {
        match self.ask(Method::GET, path, None).await? {
            (200, body) => serde_json::from_value(body).map_err(|error| format!("{path}: {error}")),
            (status, body) => Err(format!("{path}: {status} {body}")),
        }
    }

    pub async fn nodes(&self) -> Answer<Vec<NodeView>> {
        Ok(self.get::<List<NodeView>>("/v1/nodes").await?.items)
    }

    pub async fn node(&self, id: &str) -> Answer<NodeView> {
        self.get(&format!("/v1/nodes/{id}")).await
    }

    pub async fn services(&self) -> Answer<Vec<ServiceView>> {
        Ok(self.get::<List<ServiceView>>("/v1/services").await?.items)
    }

    pub async fn service(&self, name: &str) -> Answer<ServiceView> {
        self.get(&format!("/v1/services/{name}")).await
    }

    /// All of them, those that are over included.
    pub async fn instances(&self, service: &str) -> Answer<Vec<InstanceView>> {
        Ok(self.get::<List<InstanceView>>(&format!("/v1/services/{service}/instances")).await?.items)
    }

    pub async fn instance(&self, id: &str) -> Answer<InstanceView> {
        self.get(&format!("/v1/instances/{id}")).await
    }

    pub async fn volume(&self, id: &str) -> Answer<VolumeView> {
        self.get(&format!("/v1/volumes/{id}")).await
    }

    pub async fn feed(&self, name: &str) -> Answer<FeedView> {
        self.get(&format!("/v1/feeds/{name}")).await
    }

    pub async fn feeds(&self) -> Answer<Vec<FeedView>> {
        Ok(self.get::<List<FeedView>>("/v1/feeds").await?.items)
    }

    pub async fn status(&self) -> Answer<StatusView> {
        self.get("/v1/status").await
    }

    /// The instances of a service once exactly `count` are wanted and ready, and nothing else is left.
    pub async fn until_ready(&self, service: &str, count: usize) -> Vec<InstanceView> {
        until(&format!("{count} of {service} to be ready"), async || {
            let all = self.instances(service).await?;
            let on: Vec<_> = all.iter().filter(|i| !is_over(i)).cloned().collect();
            let well = on.iter().all(|i| i.desired == "running" && i.actual == "ready");
            let rolled = self.service(service).await?.rollout.state == "complete";
            if well && rolled && on.len() == count { Ok(on) } else { Err(of_service(&all)) }
        })
        .await
    }

    pub async fn until_health(&self, node: &str, health: &str) {
        until(&format!("{node} to be {health}"), async || {
            let seen = self.node(node).await?.health;
            if seen == health { Ok(()) } else { Err(seen) }
        })
        .await;
    }
}

fn is_over(instance: &InstanceView) -> bool {
    matches!(instance.actual.as_str(), "stopped" | "failed")
}

/// Instances for a message about what was seen.
pub fn of_service(instances: &[InstanceView]) -> String {
    instances.iter().map(one_line).collect::<Vec<_>>().join("; ")
}

fn one_line(instance: &InstanceView) -> String {
    let InstanceView { id, node, release, desired, actual, pid, restarts, exit, .. } = instance;
    let reasons: Vec<_> = instance.reasons.iter().map(|r| format!("{}: {}", r.code, r.message)).collect();
    format!(
        "{id} r{release} on {node} {desired}/{actual} pid {pid:?} restarts {restarts} {exit:?} {reasons:?}"
    )
}
