//! A daemon with the coordinator role, in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use model::Millis;
use protocol::{
    Timing,
    coordinator::{DrainLimits, FeedLimits},
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use server::{ApiState, Office, OfficeConfig, OfficeHandle};
use store::{Store, memory::MemoryStore};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longer than any machine needs; only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

pub const TIMING: Timing = Timing {
    heartbeat: Millis(100),
    lease: Millis::secs(30),
    degraded_after: Millis::secs(40),
    fence_after: Millis::secs(45),
    offline_after: Millis::secs(60),
    last_node_after: Millis::secs(30),
};

pub struct Daemon {
    pub office: OfficeHandle,
    pub api: SocketAddr,
    pub rpc: SocketAddr,
    _stop: DropGuard,
}

impl Daemon {
    pub async fn start(id: &str, store: Arc<dyn Store>, timing: Timing) -> Daemon {
        Daemon::start_with(id, store, timing, DrainLimits::default()).await
    }

    pub async fn start_with(id: &str, store: Arc<dyn Store>, timing: Timing, drain: DrainLimits) -> Daemon {
        let api_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let rpc_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (api, rpc) = (api_listener.local_addr().unwrap(), rpc_listener.local_addr().unwrap());
        let office = Office::start(OfficeConfig {
            candidate: id.to_owned(),
            api: api.to_string(),
            rpc: rpc.to_string(),
            pd_settle: server::PD_SETTLE,
            timing,
            drain,
            feeds: FeedLimits::default(),
            store,
        });
        let stop = CancellationToken::new();
        let server = wire::ControlServer::new(office.clone());
        tokio::spawn(wire::serve(rpc_listener, server, stop.clone()));
        serve(api_listener, ApiState::candidate(office.clone()).unwrap(), stop.clone());
        Daemon { office, api, rpc, _stop: stop.drop_guard() }
    }

    /// One that is in office.
    pub async fn acting(store: &MemoryStore) -> Daemon {
        let daemon = Daemon::start("a", Arc::new(store.clone()), TIMING).await;
        daemon.until_acting().await;
        daemon
    }

    pub async fn until_acting(&self) {
        eventually("the candidate is in office", async || self.office.is_acting()).await;
    }

    /// Asked again while there is no coordinator.
    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = self.surely(Method::GET, path, None).await;
        assert_eq!(status, StatusCode::OK, "GET {path}: {body}");
        body
    }

    /// With a short lease, a slow machine loses office in the middle of things.
    pub async fn surely(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let asking = async {
            loop {
                let (status, answer) = call(self.api, method.clone(), path, body.clone()).await;
                if status != StatusCode::SERVICE_UNAVAILABLE {
                    return (status, answer);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.expect("no coordinator")
    }

    pub async fn put(&self, path: &str, body: Value) -> (StatusCode, Value) {
        call(self.api, Method::PUT, path, Some(body)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        call(self.api, Method::POST, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> (StatusCode, Value) {
        call(self.api, Method::DELETE, path, None).await
    }
}

pub fn serve(listener: TcpListener, state: ApiState, stop: CancellationToken) {
    let service = server::router(state).into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move {
        tokio::select! {
            served = axum::serve(listener, service) => served.unwrap(),
            () = stop.cancelled() => {}
        }
    });
}

pub async fn call(api: SocketAddr, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
    let client = doors::http().no_proxy().build().unwrap();
    let mut request = client.request(method, format!("http://{api}{path}"));
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Waits until it holds, however slow the machine.
pub async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "waited in vain until {what}");
}

pub fn web(count: u32) -> Value {
    json!({
        "name": "web", "count": count, "command": ["./web"], "memory": "64MiB", "ports": ["http"],
        "edge": {"port": "http", "listen": 8080}
    })
}
