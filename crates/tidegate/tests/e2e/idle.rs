//! Connections that say nothing, as many as one machine can open.

use reqwest::Method;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpStream;

use crate::harness::{Cluster, Pace, until};

/// As far as this process's own descriptors go; it needs some for other tests.
fn connections() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _as_before = setrlimit(Resource::Nofile, limit);
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
    10_000.min(usize::try_from(descriptors.saturating_sub(2_000)).unwrap_or(10_000))
}

#[tokio::test]
async fn ten_thousand_idle_connections_keep_nobody_from_being_answered_and_no_node_from_being_heard() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let address = cluster.api.base().trim_start_matches("http://").to_owned();
    let mut idle = Vec::new();
    for _ in 0..connections() {
        idle.push(TcpStream::connect(&address).await.unwrap());
    }
    let (status, body) = cluster.api.ask(Method::GET, "/v1/nodes", None).await.unwrap();
    assert_eq!(status, 200, "{body}");
    until("a change to be carried out", async || {
        let body = Some(r#"{"intent":"disabled"}"#);
        match cluster.api.ask(Method::PUT, "/v1/nodes/n1/intent", body).await? {
            (200, _) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    cluster.until_up().await;
    drop(idle);
    cluster.until_up().await;
}
