//! What tools that restart clusters of another system call: each answer, and each way in which they would
//! misread one.

use std::sync::Arc;

use model::FeedName;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use server::ApiState;
use store::memory::MemoryStore;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::daemon::{Daemon, TIMING, call, eventually, serve};
use crate::drains::{batch, cluster, db, part, quick_web, run, until_state};
use crate::node::FakeNode;

const V1_DRAIN: &str = "/api/v1/captures/drain";

fn v2(node: &str) -> String {
    format!("/api/v2/captures/{node}/drain")
}

async fn put_v2(daemon: &Daemon, node: &str) -> (StatusCode, Value) {
    call(daemon.api, Method::PUT, &v2(node), None).await
}

async fn put_v1(daemon: &Daemon, node: &str) -> (StatusCode, Value) {
    daemon.put(V1_DRAIN, json!({"capture_id": node})).await
}

/// What tiup makes of an answer: how many are left, or `None` for "again"; everything else is fatal.
fn as_tiup((status, body): &(StatusCode, Value)) -> Option<u64> {
    let text = body.to_string();
    if status.as_u16() == 404
        || text.contains("CDC:ErrVersionIncompatible")
        || text.contains("CDC:ErrSchedulerRequestFailed")
        || text.contains("CDC:ErrCaptureNotExist")
    {
        return Some(0);
    }
    match status.as_u16() {
        503 => None,
        202 => Some(body["current_table_count"].as_u64().unwrap()),
        _ => panic!("a hard restart: {status} {text}"),
    }
}

/// A feed that node-1 maintains, and that has `counts` dispatchers on each node.
pub async fn feed(daemon: &Daemon, nodes: &[FakeNode], counts: &[u32]) {
    let spec =
        json!({"source": {"kind": "log", "path": "/tmp/in"}, "sink": {"kind": "file", "path": "/tmp/out"}});
    let (status, body) = daemon.put("/v1/feeds/orders", spec).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    for (node, count) in nodes.iter().zip(counts) {
        give(node, *count);
    }
    eventually("the feed is maintained", async || {
        let feed = daemon.get("/v1/feeds/orders").await;
        feed["maintainer"]["phase"] == "working"
    })
    .await;
    assert_eq!(daemon.get("/v1/feeds/orders").await["maintainer"]["node"], "node-1");
}

pub fn give(node: &FakeNode, count: u32) {
    node.feeds.lock().unwrap().dispatchers.insert(FeedName::new("orders"), count);
}

fn counts(body: &Value) -> (u64, u64) {
    (body["current_maintainer_count"].as_u64().unwrap(), body["current_dispatcher_count"].as_u64().unwrap())
}

fn refusal(answer: &(StatusCode, Value)) -> (u16, &str) {
    (answer.0.as_u16(), answer.1["error"]["message"].as_str().unwrap())
}

#[tokio::test]
async fn the_checks_come_in_their_order() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let coordinator = FakeNode::join(daemon.rpc, "a", "127.0.0.1:1");
    let _candidate = FakeNode::join_candidate(daemon.rpc, "c");
    eventually("both are there", async || daemon.get("/v1/status").await["nodes"]["total"] == 2).await;
    let nobody = put_v2(&daemon, "nobody").await;
    assert_eq!(refusal(&nobody), (404, "capture not found"), "before there are too few");
    assert_eq!(refusal(&put_v2(&daemon, "c").await), (404, "capture not found"), "no worker, no capture");
    assert_eq!(call(daemon.api, Method::GET, &v2("c"), None).await.0, StatusCode::NOT_FOUND);
    let few = put_v2(&daemon, "a").await;
    assert_eq!(refusal(&few), (400, "at least 2 captures required for drain operation"));
    let _others = [
        FakeNode::join(daemon.rpc, "node-1", "127.0.0.1:1"),
        FakeNode::join(daemon.rpc, "node-2", "127.0.0.1:1"),
    ];
    eventually("all are up", async || daemon.get("/v1/status").await["nodes"]["by_health"]["up"] == 4).await;
    run(&daemon, batch(3)).await;
    let owner = put_v2(&daemon, "a").await;
    assert_eq!(refusal(&owner), (400, "cannot drain coordinator node"));
    assert_eq!(put_v2(&daemon, "node-1").await.0, StatusCode::ACCEPTED);
    let second = put_v2(&daemon, "node-2").await;
    assert_eq!(refusal(&second), (409, "another drain operation is in progress"));
    assert_eq!(refusal(&put_v2(&daemon, "a").await), (400, "cannot drain coordinator node"), "before 409");
    assert_eq!(refusal(&put_v2(&daemon, "nobody").await), (404, "capture not found"));
    assert_eq!(put_v2(&daemon, "node-1").await.0, StatusCode::ACCEPTED, "the same one again");
    assert_eq!(daemon.get("/v1/drains").await["items"].as_array().unwrap().len(), 1);
    drop(coordinator);
}

#[tokio::test]
async fn a_queued_target_keeps_another_one_out_as_well() {
    let (daemon, _nodes) = cluster(3).await;
    run(&daemon, batch(3)).await;
    daemon.post("/v1/drains", json!({"nodes": ["node-1", "node-2"]})).await;
    assert_eq!(part(&daemon, "node-2").await.state, "queued");
    let third = put_v2(&daemon, "node-3").await;
    assert_eq!(refusal(&third), (409, "another drain operation is in progress"));
    let third = put_v1(&daemon, "node-3").await;
    assert_eq!(third.0, StatusCode::ACCEPTED);
    assert!(as_tiup(&third) >= Some(1), "{third:?}");
}

#[tokio::test]
async fn a_drain_begun_here_stops_the_node_has_no_deadline_and_leaves_volumes() {
    let (daemon, nodes) = cluster(2).await;
    run(&daemon, batch(2)).await;
    assert_eq!(put_v2(&daemon, "node-1").await.0, StatusCode::ACCEPTED);
    let begun = part(&daemon, "node-1").await;
    assert_eq!((begun.options.deadline.as_str(), begun.options.then.as_str()), ("none", "stop"));
    assert!(begun.options.ack_stateful && !begun.options.include_stateful && begun.deadline.is_none());
    assert_eq!(begun.options.back, "restart");
    let status = daemon.get(&v2("node-1")).await;
    assert_eq!(
        status,
        json!({"is_draining": true, "draining_capture_id": "node-1", "remaining_maintainer_count": 0,
               "remaining_dispatcher_count": {}})
    );
    let idle = daemon.get(&v2("node-2")).await;
    assert_eq!((&idle["is_draining"], &idle["draining_capture_id"]), (&json!(false), &json!("")));
    daemon.put("/v1/nodes/node-1/drain", json!({"force": true})).await;
    until_state(&daemon, "node-1", "drained").await;
    eventually("its daemon may go", async || nodes[0].feeds.lock().unwrap().told_to_leave).await;
}

#[tokio::test]
async fn where_nothing_runs_the_answer_is_200_and_it_is_drained_all_the_same() {
    let (daemon, _nodes) = cluster(2).await;
    let (status, body) = put_v2(&daemon, "node-1").await;
    assert_eq!((status, counts(&body)), (StatusCode::OK, (0, 0)));
    until_state(&daemon, "node-1", "drained").await;
    assert_eq!(daemon.get("/v1/nodes/node-1").await["state"], "stopping");
    assert_eq!(put_v2(&daemon, "node-1").await.0, StatusCode::OK, "and again");
    assert_eq!(daemon.get("/v1/drains").await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_not_known_counts_as_one_at_least() {
    let (daemon, nodes) = cluster(3).await;
    feed(&daemon, &nodes, &[0, 0, 0]).await;
    nodes[1].feeds.lock().unwrap().mute = true;
    // It has said that it has none, but not since it knows that it is closed.
    let (status, body) = put_v2(&daemon, "node-2").await;
    assert_eq!((status, counts(&body)), (StatusCode::ACCEPTED, (0, 1)));
    let shown = daemon.get(&v2("node-2")).await;
    assert_eq!(shown["remaining_dispatcher_count"], json!({"orders": 1}));
    assert_eq!(as_tiup(&put_v1(&daemon, "node-2").await), Some(1));
    nodes[1].feeds.lock().unwrap().mute = false;
    until_state(&daemon, "node-2", "drained").await;
    let (status, body) = put_v2(&daemon, "node-2").await;
    assert_eq!((status, counts(&body)), (StatusCode::OK, (0, 0)));
}

#[tokio::test]
async fn tiup_sees_zero_only_when_the_node_has_nothing_and_the_daemon_stays_up() {
    let (daemon, nodes) = cluster(3).await;
    run(&daemon, quick_web(6)).await;
    feed(&daemon, &nodes, &[5, 1, 0]).await;
    let mut seen = Vec::new();
    let mut dispatchers = 5;
    loop {
        let left = as_tiup(&put_v1(&daemon, "node-1").await).unwrap();
        if left == 0 {
            break;
        }
        seen.push(left);
        // The maintainer, which is elsewhere by then, takes one after the other away.
        if dispatchers > 0 && daemon.get("/v1/feeds/orders").await["maintainer"]["node"] != "node-1" {
            dispatchers -= 1;
            give(&nodes[0], dispatchers);
        }
        tokio::task::yield_now().await;
    }
    assert!(seen[0] >= 5, "{seen:?}");
    assert_eq!(nodes[0].feeds.lock().unwrap().dispatchers[&FeedName::new("orders")], 0);
    let here = daemon.get("/v1/instances?node=node-1").await;
    let running = here["items"].as_array().unwrap().iter().filter(|i| i["actual"] != "stopped").count();
    assert_eq!(running, 0, "{here}");
    let node = daemon.get("/v1/nodes/node-1").await;
    assert_eq!((&node["state"], &node["counts"]["maintainers"]), (&json!("stopping"), &json!(0)));
    assert_eq!(part(&daemon, "node-1").await.options.then, "await_stop");
    // Heartbeats have come since, each of which would be answered with leave to go.
    let before = node["last_heartbeat"].clone();
    eventually("more heartbeats come", async || {
        daemon.get("/v1/nodes/node-1").await["last_heartbeat"].as_str() > before.as_str()
    })
    .await;
    assert!(!nodes[0].feeds.lock().unwrap().told_to_leave);
    assert_eq!(as_tiup(&put_v1(&daemon, "node-1").await), Some(0), "and stays zero");
}

#[tokio::test]
async fn a_second_target_waits_and_gets_its_turn() {
    let (daemon, nodes) = cluster(3).await;
    feed(&daemon, &nodes, &[0, 0, 0]).await;
    nodes[1].feeds.lock().unwrap().mute = true;
    assert_eq!(as_tiup(&put_v1(&daemon, "node-2").await), Some(1));
    let empty = put_v1(&daemon, "node-3").await;
    assert_eq!(as_tiup(&empty), Some(1), "it has nothing, and is not drained");
    assert_eq!(daemon.get("/v1/nodes/node-3").await["state"], "active");
    nodes[1].feeds.lock().unwrap().mute = false;
    until_state(&daemon, "node-2", "drained").await;
    eventually("the second one is done", async || as_tiup(&put_v1(&daemon, "node-3").await) == Some(0)).await;
    assert_eq!(daemon.get("/v1/nodes/node-3").await["state"], "stopping");
}

#[tokio::test]
async fn two_that_race_cannot_both_begin() {
    let (daemon, _nodes) = cluster(3).await;
    run(&daemon, batch(3)).await;
    let (one, two) = tokio::join!(put_v2(&daemon, "node-1"), put_v2(&daemon, "node-2"));
    let mut both = [one.0.as_u16(), two.0.as_u16()];
    both.sort_unstable();
    assert_eq!(both, [202, 409]);
    assert_eq!(daemon.get("/v1/drains").await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn volumes_are_counted_until_the_drain_has_ended_without_them() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, db(2)).await;
    eventually("it has ended", async || as_tiup(&put_v1(&daemon, "node-1").await) == Some(0)).await;
    let ended = part(&daemon, "node-1").await;
    assert_eq!((ended.state.as_str(), ended.left.len()), ("drained_except", 1));
}

#[tokio::test]
async fn a_disabled_node_is_no_zero_and_no_error_to_tiup() {
    let (daemon, _nodes) = cluster(3).await;
    daemon.put("/v1/nodes/node-1/intent", json!({"intent": "disabled"})).await;
    assert_eq!(put_v2(&daemon, "node-1").await.0, StatusCode::CONFLICT);
    assert_eq!(as_tiup(&put_v1(&daemon, "node-1").await), Some(1));
}

#[tokio::test]
async fn asking_every_second_writes_nothing_down() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, batch(2)).await;
    put_v1(&daemon, "node-1").await;
    let audited = || daemon.office.read(|coordinator, _| coordinator.cluster().audit().count());
    let before = audited().await.unwrap();
    for _ in 0..5 {
        put_v1(&daemon, "node-1").await;
        put_v2(&daemon, "node-1").await;
    }
    assert_eq!(audited().await.unwrap(), before);
}

#[tokio::test]
async fn without_a_capture_id_it_is_refused_with_what_is_missing() {
    let (daemon, _nodes) = cluster(2).await;
    let (status, body) = daemon.put(V1_DRAIN, json!({})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body["error"]["message"].as_str().unwrap().contains("capture_id"), "{body}");
    let unknown = put_v1(&daemon, "nobody").await;
    assert_eq!(refusal(&unknown), (404, "capture not found"));
}

#[tokio::test]
async fn captures_are_a_plain_list_that_says_who_the_owner_is() {
    let (daemon, _nodes) = cluster(2).await;
    let _own = FakeNode::join(daemon.rpc, "a", "127.0.0.1:2");
    let _candidate = FakeNode::join_candidate(daemon.rpc, "c");
    eventually("all are there", async || daemon.get("/v1/status").await["nodes"]["total"] == 4).await;
    assert_eq!(
        daemon.get("/api/v1/captures").await,
        json!([{"id": "a", "is_owner": true, "address": "127.0.0.1:2"},
               {"id": "node-1", "is_owner": false, "address": "127.0.0.1:1"},
               {"id": "node-2", "is_owner": false, "address": "127.0.0.1:1"}])
    );
    assert_eq!(daemon.get("/api/v1/health").await, json!({}));
}

async fn worker(
    id: &str,
    coordinator: Option<String>,
) -> (std::net::SocketAddr, watch::Sender<Option<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = listener.local_addr().unwrap();
    let (tell, told) = watch::channel(coordinator);
    serve(listener, ApiState::daemon(id, told).unwrap(), CancellationToken::new());
    (api, tell)
}

#[tokio::test]
async fn every_daemon_says_what_it_is_itself_and_passes_the_rest_on() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, batch(2)).await;
    let (api, tell) = worker("node-1", Some(daemon.api.to_string())).await;
    let status = async || call(api, Method::GET, "/api/v1/status", None).await.1;
    let alive = status().await;
    assert_eq!((&alive["id"], &alive["liveness"]), (&json!("node-1"), &json!(0)));
    assert_eq!((&alive["is_owner"], alive["pid"].is_u64()), (&json!(false), true));
    let body = Some(json!({"capture_id": "node-1"}));
    assert_eq!(call(api, Method::PUT, V1_DRAIN, body.clone()).await.0, StatusCode::ACCEPTED);
    assert_eq!(status().await["liveness"], 2);
    daemon.put("/v1/nodes/node-1/drain", json!({"force": true})).await;
    until_state(&daemon, "node-1", "drained").await;
    assert_eq!(status().await["liveness"], 1);
    assert_eq!(call(api, Method::GET, "/api/v1/health", None).await.0, StatusCode::OK);
    tell.send_replace(None);
    for (method, path) in [
        (Method::GET, "/api/v1/status"),
        (Method::GET, "/api/v1/health"),
        (Method::GET, "/api/v1/captures"),
        (Method::PUT, V1_DRAIN),
        (Method::POST, "/api/v1/owner/resign"),
    ] {
        let answer = call(api, method, path, body.clone()).await;
        assert_eq!(answer.0, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert_eq!(as_tiup(&answer), None, "{path}: asked again, not taken for done");
    }
}

#[tokio::test]
async fn the_owner_hands_over_when_it_is_asked_to() {
    let store = MemoryStore::new();
    let first = Daemon::acting(&store).await;
    let alone = first.post("/api/v1/owner/resign", json!({})).await;
    assert_eq!(
        (alone.0, &alone.1["error"]["code"]),
        (StatusCode::PRECONDITION_FAILED, &json!("no_candidate_left"))
    );
    assert!(first.office.is_acting());
    let second = Daemon::start("b", Arc::new(store.clone()), TIMING).await;
    eventually("the second one is there", async || {
        first.get("/v1/status").await["candidates"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await;
    // Any daemon will do.
    let (status, _) = second.surely(Method::POST, "/api/v1/owner/resign", None).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    second.until_acting().await;
    eventually("the first one follows", async || {
        first.office.leader().borrow().as_ref().is_some_and(|leader| leader.id == "b")
    })
    .await;
    let audit = second
        .office
        .read(|coordinator, _| coordinator.cluster().audit().next_back().map(|entry| entry.what.clone()));
    assert_eq!(audit.await.unwrap().as_deref(), Some("hand the office over"));
}
