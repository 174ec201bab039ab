//! What an operator sees of a cluster that works.

use axum::{Router, extract::Path, routing::get};
use reqwest::StatusCode;
use serde_json::{Value, json};
use store::memory::MemoryStore;
use tokio::net::TcpListener;

use crate::daemon::{Daemon, eventually, web};
use crate::node::FakeNode;

async fn two_nodes() -> (Daemon, [FakeNode; 2]) {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let nodes = [
        FakeNode::join(daemon.rpc, "node-1", "127.0.0.1:1"),
        FakeNode::join(daemon.rpc, "node-2", "127.0.0.1:1"),
    ];
    eventually("both nodes are up", async || {
        daemon.get("/v1/nodes").await["items"].as_array().unwrap().len() == 2
    })
    .await;
    (daemon, nodes)
}

async fn until_ok(daemon: &Daemon, ready: u32) {
    eventually("the service is ok", async || {
        let service = daemon.get("/v1/services/web").await;
        service["state"] == "ok" && service["ready"] == ready
    })
    .await;
}

#[tokio::test]
async fn a_service_is_applied_placed_and_shown() {
    let (daemon, _nodes) = two_nodes().await;
    let (status, body) = daemon.post("/v1/apply", json!({"service": [web(3)]})).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(body["items"][0]["outcome"], "created");
    until_ok(&daemon, 3).await;

    let service = daemon.get("/v1/services/web").await;
    assert_eq!(
        (&service["kind"], &service["count"], &service["release"]),
        (&json!("service"), &json!(3), &json!(1))
    );
    assert_eq!(service["spec"]["memory"], "64MiB");
    let instances = daemon.get("/v1/services/web/instances").await;
    let instances = instances["items"].as_array().unwrap();
    assert_eq!(instances.len(), 3);
    for instance in instances {
        assert_eq!(instance["desired"], "running");
        assert_eq!(instance["ports"], json!({"http": 20001}));
        assert_eq!(instance["healthy_since"].as_str().unwrap().len(), "2026-01-01T00:00:00.000Z".len());
        let one = daemon.get(&format!("/v1/instances/{}", instance["id"].as_str().unwrap())).await;
        assert_eq!(one["id"], instance["id"]);
    }
    assert_eq!(daemon.get("/v1/instances").await["items"].as_array().unwrap().len(), 3);
    let on_one = daemon.get("/v1/instances?node=node-1&service=web").await["items"].as_array().unwrap().len();
    let node = daemon.get("/v1/nodes/node-1").await;
    assert_eq!(node["counts"]["instances"], on_one);
    assert_eq!(node["used"]["memory"], on_one as u64 * (64 << 20));
    assert_eq!(node["reasons"][0]["code"], "memory_uncapped");
    let backends = daemon.get("/v1/services/web/backends").await;
    assert_eq!((&backends["listen"], backends["items"].as_array().unwrap().len()), (&json!(8080), 3));
}

#[tokio::test]
async fn applying_again_changes_nothing_and_scaling_makes_no_release() {
    let (daemon, _nodes) = two_nodes().await;
    assert_eq!(daemon.put("/v1/services/web", web(2)).await.0, StatusCode::CREATED);
    let (status, body) = daemon.put("/v1/services/web", web(2)).await;
    assert_eq!((status, &body["outcome"]), (StatusCode::OK, &json!("unchanged")));
    let (status, body) = daemon.put("/v1/services/web/count", json!({"count": 4})).await;
    assert_eq!((status, &body["count"], &body["release"]), (StatusCode::OK, &json!(4), &json!(1)));
    until_ok(&daemon, 4).await;
    assert_eq!(daemon.delete("/v1/services/web").await.0, StatusCode::ACCEPTED);
    eventually("the service is gone", async || daemon.get("/v1/services").await["items"] == json!([])).await;
}

#[tokio::test]
async fn a_stopped_instance_is_replaced() {
    let (daemon, _nodes) = two_nodes().await;
    daemon.put("/v1/services/web", web(1)).await;
    until_ok(&daemon, 1).await;
    let first = daemon.get("/v1/instances").await["items"][0]["id"].as_str().unwrap().to_owned();
    let (status, body) = daemon.delete(&format!("/v1/instances/{first}")).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{body}");
    eventually("another is ready", async || {
        let all = daemon.get("/v1/instances").await;
        all["items"].as_array().unwrap().iter().any(|i| i["id"] != first.as_str() && i["actual"] == "ready")
    })
    .await;
}

#[tokio::test]
async fn the_status_and_the_figures_tell_what_is_there() {
    let (daemon, _nodes) = two_nodes().await;
    daemon.put("/v1/services/web", web(2)).await;
    until_ok(&daemon, 2).await;
    let status = daemon.get("/v1/status").await;
    assert_eq!(status["coordinator"]["id"], "a");
    assert_eq!(status["coordinator"]["api"], daemon.api.to_string());
    assert_eq!(status["candidates"][0]["coordinator"], true);
    assert_eq!(status["nodes"]["by_health"], json!({"up": 2}));
    assert_eq!(status["services"], json!({"total": 1, "ok": 1, "degraded": 0, "pending": 0}));
    assert_eq!(status["instances"], json!({"ready": 2}));
    assert_eq!(status["reasons"], json!([]));
    let doctor = daemon.get("/v1/doctor").await;
    assert_eq!((&doctor["ok"], &doctor["items"]), (&json!(true), &json!([])));
    let Value::String(metrics) = daemon.get("/metrics").await else { panic!("not text") };
    for line in [
        "tidegate_nodes{state=\"active\"} 2",
        "tidegate_instances{state=\"ready\"} 2",
        "tidegate_services{state=\"ok\"} 1",
        "tidegate_placements_total 2",
        "tidegate_streams 2",
        "tidegate_coordinator 1",
        "tidegate_edges 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in\n{metrics}");
    }
    for name in
        ["tidegate_commit_seconds_bucket", "tidegate_plan_seconds_bucket", "tidegate_heartbeat_age_seconds{"]
    {
        assert!(metrics.contains(name), "no {name} in\n{metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"));
}

#[tokio::test]
async fn what_a_node_runs_and_nobody_ordered_is_shown() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let _node = FakeNode::join_with_unclaimed(daemon.rpc, "node-1");
    eventually("the node is there", async || daemon.get("/v1/nodes").await["items"] != json!([])).await;
    let node = daemon.get("/v1/nodes/node-1").await;
    assert_eq!(node["unclaimed"][0]["service"], "old");
    assert_eq!(daemon.get("/v1/status").await["unclaimed"], 1);
}

#[tokio::test]
async fn logs_come_from_the_node_that_has_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = listener.local_addr().unwrap().to_string();
    let logs = get(|Path(id): Path<String>, query: axum::extract::RawQuery| async move {
        format!("{id} {}\n", query.0.unwrap_or_default())
    });
    let worker = Router::new().route("/v1/local/instances/{id}/logs", logs);
    tokio::spawn(async move { axum::serve(listener, worker).await });
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let _node = FakeNode::join(daemon.rpc, "node-1", &api);
    daemon.put("/v1/services/web", web(1)).await;
    until_ok(&daemon, 1).await;
    let id = daemon.get("/v1/instances").await["items"][0]["id"].as_str().unwrap().to_owned();
    let text = daemon.get(&format!("/v1/instances/{id}/logs?lines=5&follow=true")).await;
    assert_eq!(text, format!("{id} lines=5&follow=true\n"));
}
