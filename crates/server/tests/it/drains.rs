//! Draining nodes over HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::Millis;
use protocol::{Timing, coordinator::DrainLimits};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use server::view::{DrainStatusView, DrainView, PlanView};
use store::memory::MemoryStore;

use crate::daemon::{Daemon, TIMING, call, eventually, web};
use crate::events;
use crate::node::FakeNode;

/// A daemon in office, and nodes `node-1` to `node-N`.
pub async fn cluster(nodes: usize) -> (Daemon, Vec<FakeNode>) {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let nodes = join(&daemon, nodes).await;
    (daemon, nodes)
}

async fn join(daemon: &Daemon, nodes: usize) -> Vec<FakeNode> {
    let ids = (1..=nodes).map(|n| format!("node-{n}"));
    let joined = ids.map(|id| FakeNode::join(daemon.rpc, &id, "127.0.0.1:1")).collect();
    eventually("the nodes are up", async || {
        let status = daemon.get("/v1/status").await;
        status["nodes"]["by_health"]["up"] == json!(nodes)
    })
    .await;
    joined
}

/// `web` whose replacements are believed at once.
pub fn quick_web(count: u32) -> Value {
    let mut web = web(count);
    web["migrate"] = json!({"min_healthy_time": "0s"});
    web
}

/// Has something on every node, and stays there.
pub fn db(count: u32) -> Value {
    json!({"name": "db", "count": count, "command": ["./db"], "memory": "64MiB", "volume": {"name": "data"}})
}

pub fn batch(count: u32) -> Value {
    json!({"name": "job", "kind": "batch", "count": count, "command": ["./job"], "memory": "64MiB"})
}

/// Applied, and running.
pub async fn run(daemon: &Daemon, service: Value) {
    let (name, count) = (service["name"].as_str().unwrap(), service["count"].as_u64().unwrap());
    let (status, body) = daemon.put(&format!("/v1/services/{name}"), service.clone()).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    eventually("the service runs", async || {
        let all = daemon.get(&format!("/v1/services/{name}/instances")).await;
        all["items"].as_array().unwrap().iter().filter(|i| i["actual"] == "ready").count() as u64 == count
    })
    .await;
}

pub async fn part(daemon: &Daemon, node: &str) -> DrainStatusView {
    serde_json::from_value(daemon.get(&format!("/v1/nodes/{node}/drain")).await).unwrap()
}

pub async fn until_state(daemon: &Daemon, node: &str, state: &str) -> DrainStatusView {
    eventually(&format!("the drain of {node} is {state}"), async || part(daemon, node).await.state == state)
        .await;
    part(daemon, node).await
}

async fn start(daemon: &Daemon, node: &str, body: Value) -> DrainStatusView {
    let (status, answer) = daemon.put(&format!("/v1/nodes/{node}/drain"), body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    serde_json::from_value(answer).unwrap()
}

/// Where each instance of `web` that is not over runs, and what it replaces.
async fn places(daemon: &Daemon) -> BTreeMap<String, (String, Option<String>)> {
    let all = daemon.get("/v1/services/web/instances").await;
    let wanted = all["items"].as_array().unwrap().iter().filter(|i| i["desired"] == "running");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    wanted.map(|i| (text(&i["id"]).unwrap(), (text(&i["node"]).unwrap(), text(&i["replaces"])))).collect()
}

/// The kinds of the events of drains, in order.
async fn told(daemon: &Daemon) -> Vec<String> {
    let events = events::read(daemon, "", None).await;
    events.into_iter().map(|sse| sse.event).filter(|kind| kind.starts_with("drain.")).collect()
}

#[tokio::test]
async fn a_drain_is_accepted_goes_on_and_ends_drained() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, quick_web(4)).await;
    let body = json!({"message": "kernel update", "meta": {"ticket": "OPS-1"}});
    let accepted = start(&daemon, "node-1", body).await;
    assert_eq!((accepted.epoch, accepted.node.as_str(), accepted.by.as_str()), (1, "node-1", "anonymous"));
    assert_eq!(accepted.total, 2);
    assert!(matches!(accepted.state.as_str(), "draining" | "drained"), "{accepted:?}");
    assert!(accepted.deadline.is_some() && accepted.started_at.is_some());
    let ended = until_state(&daemon, "node-1", "drained").await;
    assert_eq!((ended.done, ended.progress, ended.remaining.units.len()), (2, 1.0, 0));
    assert!(ended.ended_at.is_some() && !ended.deadline_reached && ended.left.is_empty());
    assert_eq!((ended.message.as_str(), ended.meta["ticket"].as_str()), ("kernel update", "OPS-1"));
    assert_eq!(told(&daemon).await, ["drain.started", "drain.progressed", "drain.progressed", "drain.ended"]);
    let node = daemon.get("/v1/nodes/node-1").await;
    assert_eq!((&node["state"], &node["drain_epoch"]), (&json!("drained"), &Value::Null));
    assert_eq!(node["counts"]["instances"], 0);
    assert!(places(&daemon).await.values().all(|(node, _)| node == "node-2"));
    let status = daemon.get("/v1/status").await;
    assert_eq!(status["nodes"]["by_state"], json!({"active": 1, "drained": 1}));
    let kept: DrainView = serde_json::from_value(daemon.get("/v1/drains/1").await).unwrap();
    assert_eq!((kept.state.as_str(), kept.nodes.len(), kept.nodes[0].clone()), ("drained", 1, ended));
    assert!(kept.from.starts_with("127.0.0.1:"), "{}", kept.from);
}

#[tokio::test]
async fn the_status_has_the_shape_that_programs_rely_on() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, db(2)).await;
    let status = serde_json::to_value(start(&daemon, "node-1", json!({})).await).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(&status),
        "blockers by deadline deadline_reached done ended_at epoch eta_basis eta_seconds left message meta \
         node options progress remaining stalled started_at state total waits"
    );
    assert_eq!(
        keys(&status["remaining"]),
        "batch dispatchers instances maintainers stateful stores system units unknown"
    );
    assert_eq!(keys(&status["remaining"]["units"][0]), "class code message unit");
    assert_eq!(keys(&status["blockers"][0]), "code details hint message since unit");
}

#[tokio::test]
async fn a_volume_blocks_until_it_is_acknowledged_and_is_listed_as_left() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, db(2)).await;
    let status = start(&daemon, "node-1", json!({})).await;
    assert_eq!((status.remaining.stateful, status.remaining.unknown), (1, 0));
    let blocker = &status.blockers[0];
    assert_eq!((blocker.code.as_str(), &blocker.since), ("volume_local", &status.started_at));
    let volume = blocker.details["volume"].as_str().unwrap();
    assert_eq!(daemon.get(&format!("/v1/volumes/{volume}")).await["home"], "node-1");
    let node = daemon.get("/v1/nodes/node-1").await;
    assert_eq!((&node["state"], &node["drain_epoch"]), (&json!("draining"), &json!(1)));
    assert_eq!(told(&daemon).await, ["drain.started", "drain.blocked"]);
    let reasons = daemon.get("/v1/status").await["reasons"].clone();
    assert_eq!((&reasons[0]["code"], &reasons[0]["unit"]), (&json!("volume_local"), &json!("node/node-1")));
    let unit = blocker.unit.clone();
    start(&daemon, "node-1", json!({"ack_stateful": true})).await;
    let ended = until_state(&daemon, "node-1", "drained_except").await;
    assert_eq!((ended.left[0].unit.clone(), ended.left[0].code.as_str()), (unit, "volume_local"));
    assert_eq!(daemon.get("/v1/status").await["reasons"], json!([]));
}

#[tokio::test]
async fn a_second_request_changes_the_deadline_and_keeps_the_rest() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, db(2)).await;
    let body = json!({"deadline": "2h", "ignore_system": true, "then": "stop", "message": "one", "meta": {"a": "b"}});
    let first = start(&daemon, "node-1", body).await;
    let second = start(&daemon, "node-1", json!({"deadline": "none"})).await;
    assert_eq!((second.epoch, second.deadline, &second.started_at), (first.epoch, None, &first.started_at));
    let mut options = first.options.clone();
    options.deadline = "none".to_owned();
    assert_eq!((&second.options, options.back.as_str()), (&options, "restart"));
    assert_eq!((&second.message, &second.meta), (&first.message, &first.meta));
    let third = start(&daemon, "node-1", json!({"deadline": "3h", "message": "two"})).await;
    assert!(third.deadline > first.deadline, "it counts from the request");
    assert_eq!((third.message.as_str(), third.options.then.as_str()), ("two", "stop"));
    let (status, _) = call(daemon.api, Method::PUT, "/v1/nodes/node-1/drain", None).await;
    assert_eq!(status, StatusCode::ACCEPTED, "no body at all");
    assert_eq!(part(&daemon, "node-1").await.deadline, third.deadline);
}

#[tokio::test]
async fn force_is_a_deadline_of_now() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, batch(2)).await;
    let status = start(&daemon, "node-1", json!({"force": true})).await;
    assert!(status.deadline_reached, "{status:?}");
    let ended = until_state(&daemon, "node-1", "drained").await;
    assert_eq!((ended.deadline_reached, ended.options.deadline.as_str()), (true, "0s"));
}

#[tokio::test]
async fn a_cancelled_drain_gives_the_node_back() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, batch(2)).await;
    start(&daemon, "node-1", json!({})).await;
    let (status, answer) = daemon.delete("/v1/nodes/node-1/drain").await;
    assert_eq!((status, &answer["state"]), (StatusCode::ACCEPTED, &json!("cancelled")));
    assert_eq!(daemon.get("/v1/nodes/node-1").await["state"], "active");
    let (status, answer) = daemon.delete("/v1/nodes/node-1/drain").await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::CONFLICT, &json!("no_drain")));
    let (status, answer) = daemon.delete("/v1/drains/1").await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::CONFLICT, &json!("drain_over")));
    assert_eq!(part(&daemon, "node-1").await.state, "cancelled");
    let again = start(&daemon, "node-1", json!({})).await;
    assert_eq!(again.epoch, 2);
    let list = daemon.get("/v1/drains").await;
    let epochs: Vec<_> = list["items"].as_array().unwrap().iter().map(|d| d["epoch"].clone()).collect();
    assert_eq!(epochs, [2, 1]);
}

#[tokio::test]
async fn nodes_of_one_drain_are_closed_at_once_and_take_turns() {
    let (daemon, _nodes) = cluster(3).await;
    run(&daemon, batch(3)).await;
    let body = json!({"nodes": ["node-2", "node-1"], "message": "racks"});
    let (status, answer) = daemon.post("/v1/drains", body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    let drain: DrainView = serde_json::from_value(answer).unwrap();
    let states: Vec<_> = drain.nodes.iter().map(|part| (part.node.as_str(), part.state.as_str())).collect();
    assert_eq!(
        (drain.state.as_str(), states),
        ("draining", vec![("node-2", "draining"), ("node-1", "queued")])
    );
    assert_eq!(drain.nodes[1].waits[0].code, "drain_queued");
    assert_eq!(drain.nodes[1].waits[0].since.as_ref(), Some(&drain.created_at));
    let by_state = &daemon.get("/v1/status").await["nodes"]["by_state"];
    assert_eq!(*by_state, json!({"active": 1, "draining": 1, "queued": 1}));
    assert_eq!(daemon.get("/v1/nodes/node-1").await["state"], "queued");
    let (status, answer) = daemon.delete("/v1/nodes/node-2/drain").await;
    assert_eq!((status, &answer["state"]), (StatusCode::ACCEPTED, &json!("cancelled")));
    until_state(&daemon, "node-1", "draining").await;
    let (status, answer) = daemon.delete("/v1/drains/1").await;
    assert_eq!((status, &answer["state"]), (StatusCode::ACCEPTED, &json!("cancelled")));
    assert!(answer["ended_at"].is_string());
    assert_eq!(daemon.get("/v1/status").await["nodes"]["by_state"], json!({"active": 3}));
}

#[tokio::test]
async fn lesson_37_a_plan_changes_nothing_and_is_what_the_drain_then_does() {
    let (daemon, _nodes) = cluster(3).await;
    run(&daemon, quick_web(6)).await;
    run(&daemon, db(3)).await;
    let before = places(&daemon).await;
    let (status, answer) = daemon.post("/v1/nodes/node-1/drain/plan", json!({"ack_stateful": true})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let plan: PlanView = serde_json::from_value(answer).unwrap();
    assert_eq!((plan.node.as_str(), plan.moves.len(), plan.waves), ("node-1", 2, 2));
    assert_eq!(plan.blockers[0].code, "volume_local");
    assert!(plan.blockers[0].details.contains_key("volume"));
    assert_eq!(places(&daemon).await, before);
    assert_eq!(daemon.get("/v1/drains").await["items"], json!([]));
    start(&daemon, "node-1", json!({"ack_stateful": true})).await;
    let ended = until_state(&daemon, "node-1", "drained_except").await;
    assert_eq!(ended.left[0].unit, plan.blockers[0].unit);
    let planned: BTreeMap<_, _> = plan.moves.into_iter().map(|step| (step.unit, step.to.unwrap())).collect();
    let done: BTreeMap<_, _> = places(&daemon)
        .await
        .into_values()
        .filter_map(|(node, replaces)| Some((format!("instance/{}", replaces?), node)))
        .collect();
    assert_eq!(planned, done);
}

#[tokio::test]
async fn a_plan_of_two_nodes_moves_nothing_onto_either_and_is_what_the_drain_then_does() {
    let (daemon, _nodes) = cluster(4).await;
    run(&daemon, quick_web(8)).await;
    let both = json!({"nodes": ["node-1", "node-2"]});
    let (status, answer) = daemon.post("/v1/drains/plan", both.clone()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let plans: Vec<PlanView> = serde_json::from_value(answer["items"].clone()).unwrap();
    let nodes: Vec<&str> = plans.iter().map(|plan| plan.node.as_str()).collect();
    assert_eq!(nodes, ["node-1", "node-2"]);
    assert_eq!(daemon.get("/v1/drains").await["items"], json!([]), "it changes nothing");
    let moves = plans.into_iter().flat_map(|plan| plan.moves);
    let planned: BTreeMap<_, _> = moves.map(|step| (step.unit, step.to.unwrap())).collect();
    assert_eq!(planned.len(), 4);
    assert!(planned.values().all(|to| ["node-3", "node-4"].contains(&to.as_str())), "{planned:?}");
    let (status, answer) = daemon.post("/v1/drains", both).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    until_state(&daemon, "node-2", "drained").await;
    let done: BTreeMap<_, _> = places(&daemon)
        .await
        .into_values()
        .filter_map(|(node, replaces)| Some((format!("instance/{}", replaces?), node)))
        .collect();
    assert_eq!(planned, done);
}

#[tokio::test]
async fn lesson_2_what_a_silent_node_has_is_unknown_and_remains() {
    let timing = Timing { degraded_after: Millis::secs(3), ..TIMING };
    let daemon = Daemon::start("a", Arc::new(MemoryStore::new()), timing).await;
    daemon.until_acting().await;
    let mut nodes = join(&daemon, 2).await;
    run(&daemon, batch(2)).await;
    assert_eq!(start(&daemon, "node-1", json!({})).await.remaining.batch, 1);
    drop(nodes.remove(0));
    eventually("its units are unknown", async || part(&daemon, "node-1").await.remaining.unknown == 1).await;
    let silent = part(&daemon, "node-1").await;
    assert_eq!((silent.remaining.batch, silent.state.as_str()), (0, "draining"));
    assert_eq!(silent.remaining.units.len(), 1);
    let (status, answer) = daemon.delete("/v1/nodes/node-1/drain").await;
    assert_eq!((status, &answer["state"]), (StatusCode::ACCEPTED, &json!("cancelled")), "lesson 23");
}

#[tokio::test]
async fn lesson_36_a_drain_that_goes_nowhere_says_so() {
    let limits = DrainLimits { stall_after: Millis(100), ..DrainLimits::default() };
    let daemon = Daemon::start_with("a", Arc::new(MemoryStore::new()), TIMING, limits).await;
    daemon.until_acting().await;
    let _nodes = join(&daemon, 2).await;
    run(&daemon, batch(2)).await;
    start(&daemon, "node-1", json!({})).await;
    eventually("it is stalled", async || part(&daemon, "node-1").await.stalled).await;
    let reasons = daemon.get("/v1/status").await["reasons"].clone();
    assert_eq!((&reasons[0]["code"], &reasons[0]["unit"]), (&json!("drain_stalled"), &json!("node/node-1")));
    assert_eq!(reasons[0]["message"], "0 of 1 units have left in drain 1, none lately");
    assert_eq!(part(&daemon, "node-1").await.waits[0].code, "batch_running");
    assert_eq!(told(&daemon).await, ["drain.started", "drain.stalled"]);
}

#[tokio::test]
async fn a_node_that_has_drained_is_taken_back_and_may_drain_again() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, quick_web(2)).await;
    start(&daemon, "node-1", json!({})).await;
    until_state(&daemon, "node-1", "drained").await;
    let (status, node) = daemon.put("/v1/nodes/node-1/intent", json!({"intent": "active"})).await;
    assert_eq!((status, &node["state"]), (StatusCode::OK, &json!("active")));
    assert_eq!(part(&daemon, "node-1").await.state, "drained", "what was stays on record");
    let again = start(&daemon, "node-2", json!({})).await;
    assert_eq!(again.epoch, 2);
    until_state(&daemon, "node-2", "drained").await;
    assert!(places(&daemon).await.values().all(|(node, _)| node == "node-1"));
}

#[tokio::test]
async fn the_preview_says_where_maintainers_go_and_that_is_where_they_go() {
    let (daemon, nodes) = cluster(3).await;
    let spec =
        json!({"source": {"kind": "log", "path": "/tmp/in"}, "sink": {"kind": "file", "path": "/tmp/out"}});
    let names: Vec<String> = (0..6).map(|n| format!("feed-{n}")).collect();
    let maintainers = async || {
        let all = daemon.get("/v1/feeds").await;
        let feeds = all["items"].as_array().unwrap().iter();
        feeds
            .filter(|feed| feed["maintainer"]["phase"] == "working")
            .map(|feed| (feed["name"].as_str().unwrap().to_owned(), feed["maintainer"]["node"].clone()))
            .collect::<BTreeMap<String, Value>>()
    };
    for name in &names {
        let (status, body) = daemon.put(&format!("/v1/feeds/{name}"), spec.clone()).await;
        assert_eq!(status, StatusCode::CREATED, "{body}");
    }
    eventually("all are maintained", async || maintainers().await.len() == 6).await;
    let before = maintainers().await;
    nodes[0].feeds.lock().unwrap().dispatchers.insert(model::FeedName::new("feed-5"), 3);
    eventually("its dispatchers are seen", async || {
        daemon.get("/v1/nodes/node-1").await["counts"]["dispatchers"] == 3
    })
    .await;
    let counted = daemon.get("/v1/nodes/node-1").await["counts"]["maintainers"].clone();
    assert_eq!(counted, 2, "{before:?}");
    let (status, body) = daemon.post("/v1/nodes/node-1/drain/plan", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let plan: PlanView = serde_json::from_value(body).unwrap();
    assert_eq!(plan.moves.iter().map(|step| step.wave).collect::<Vec<_>>(), [1, 2], "one at a time");
    assert_eq!((plan.waves, plan.waits.len()), (2, 1));
    assert_eq!(
        (plan.waits[0].code.as_str(), plan.waits[0].unit.as_str()),
        ("dispatchers_moving", "feed/feed-5")
    );
    // Both at once: nothing goes from one to the other.
    let (_, body) = daemon.post("/v1/drains/plan", json!({"nodes": ["node-1", "node-2"]})).await;
    let both = body["items"].as_array().unwrap().iter().flat_map(|plan| plan["moves"].as_array().unwrap());
    assert_eq!(both.map(|step| step["to"].clone()).collect::<Vec<_>>(), vec![json!("node-3"); 4]);
    assert_eq!(maintainers().await, before, "nothing was changed");
    nodes[0].feeds.lock().unwrap().dispatchers.clear();
    let begun = start(&daemon, "node-1", json!({})).await;
    assert_eq!(begun.total, 2, "maintainers count");
    until_state(&daemon, "node-1", "drained").await;
    eventually("all are maintained again", async || maintainers().await.len() == 6).await;
    let after = maintainers().await;
    for step in plan.moves {
        let name = step.unit.strip_prefix("maintainer/").unwrap();
        assert_eq!(after[name].as_str(), step.to.as_deref(), "{name}");
    }
}
