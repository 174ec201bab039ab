//! Drains that are refused: each with its status, its code, and nothing changed.

use expect_test::expect;
use reqwest::Method;
use serde_json::{Value, json};

use crate::daemon::{call, eventually};
use crate::drains::{batch, cluster, quick_web, run};
use crate::errors::told;
use crate::node::FakeNode;

#[tokio::test]
async fn bad_drains_are_refused_with_a_reason_and_change_nothing() {
    let (daemon, _nodes) = cluster(2).await;
    const DRAIN: &str = "/v1/nodes/node-1/drain";
    let large = json!({"meta": {"a": "b".repeat(20_000)}});
    let calls: Vec<(Method, &str, Option<Value>)> = vec![
        (Method::PUT, "/v1/nodes/nobody/drain", None),
        (Method::GET, "/v1/nodes/nobody/drain", None),
        (Method::DELETE, "/v1/nodes/nobody/drain", None),
        (Method::POST, "/v1/nodes/nobody/drain/plan", None),
        (Method::GET, DRAIN, None),
        (Method::DELETE, DRAIN, None),
        (Method::PUT, DRAIN, Some(json!({"colour": "red"}))),
        (Method::PUT, DRAIN, Some(json!({"nodes": ["node-2"]}))),
        (Method::PUT, DRAIN, Some(json!([]))),
        (Method::PUT, DRAIN, Some(json!({"deadline": "0s"}))),
        (Method::PUT, DRAIN, Some(json!({"deadline": "-5m"}))),
        (Method::PUT, DRAIN, Some(json!({"deadline": "soon"}))),
        (Method::PUT, DRAIN, Some(json!({"deadline": "90000d"}))),
        (Method::PUT, DRAIN, Some(json!({"deadline": "99999999999999999999h"}))),
        (Method::PUT, DRAIN, Some(json!({"deadline": "1h", "force": true}))),
        (Method::PUT, DRAIN, Some(json!({"deadline": "none", "force": true}))),
        (Method::PUT, DRAIN, Some(json!({"then": "explode"}))),
        (Method::PUT, DRAIN, Some(json!({"return": "never"}))),
        (Method::PUT, DRAIN, Some(large.clone())),
        (Method::POST, "/v1/nodes/node-1/drain/plan", Some(json!({"deadline": "0s"}))),
        (Method::POST, "/v1/nodes/node-1/drain/plan", Some(large)),
        (Method::POST, "/v1/drains", None),
        (Method::POST, "/v1/drains", Some(json!({}))),
        (Method::POST, "/v1/drains", Some(json!({"nodes": []}))),
        (Method::POST, "/v1/drains", Some(json!({"nodes": ["node-1"], "colour": "red"}))),
        (Method::POST, "/v1/drains", Some(json!({"nodes": ["node-1", "nobody"]}))),
        (Method::POST, "/v1/drains", Some(json!({"nodes": ["node-1"], "selector": {"rack": "r1"}}))),
        (Method::POST, "/v1/drains", Some(json!({"selector": {"rack": "r9"}}))),
        (Method::POST, "/v1/drains", Some(json!({"selector": {"rack": "r1"}}))),
        (Method::GET, "/v1/drains/7", None),
        (Method::DELETE, "/v1/drains/7", None),
        (Method::GET, "/v1/drains/first", None),
    ];
    let mut text = String::new();
    for (method, path, body) in calls {
        text.push_str(&told(&daemon, method, path, body).await);
    }
    expect![[r#"
        PUT /v1/nodes/nobody/drain
          404 node_not_found: there is no node nobody
        GET /v1/nodes/nobody/drain
          404 node_not_found: there is no node "nobody"
        DELETE /v1/nodes/nobody/drain
          404 node_not_found: there is no node nobody
        POST /v1/nodes/nobody/drain/plan
          404 node_not_found: there is no node nobody
        GET /v1/nodes/node-1/drain
          404 drain_not_found: node-1 was never drained
        DELETE /v1/nodes/node-1/drain
          409 no_drain: node-1 is in no drain
        PUT /v1/nodes/node-1/drain
          400 invalid: the body does not have the right shape: unknown field `colour`, expected one of `deadline`, `force`, `ignore_system`, `ack_stateful`, `include_stateful`, `then`, `return`, `message`, `meta` at line 1 column 9
        PUT /v1/nodes/node-1/drain
          400 invalid: the body does not have the right shape: unknown field `nodes`, expected one of `deadline`, `force`, `ignore_system`, `ack_stateful`, `include_stateful`, `then`, `return`, `message`, `meta` at line 1 column 8
        PUT /v1/nodes/node-1/drain
          400 invalid: the body is a list, not an object
        PUT /v1/nodes/node-1/drain
          400 invalid: deadline: "0s" is no time at all; "force": true says now
        PUT /v1/nodes/node-1/drain
          400 invalid: deadline: "-5m" is before now; "force": true says now
        PUT /v1/nodes/node-1/drain
          400 invalid: deadline: "soon" is not a duration (write it like "500ms", "10s" or "1h30m"); "none" says none at all
        PUT /v1/nodes/node-1/drain
          400 drain_invalid: a deadline of 90000d is longer than 30d
        PUT /v1/nodes/node-1/drain
          400 invalid: deadline: "99999999999999999999h" is longer than anybody waits; "none" says none at all
        PUT /v1/nodes/node-1/drain
          400 invalid: force: it is a deadline of now; leave out one of force and deadline
        PUT /v1/nodes/node-1/drain
          400 invalid: force: it is a deadline of now; leave out one of force and deadline
        PUT /v1/nodes/node-1/drain
          400 invalid: then: "explode" is neither "stay" nor "stop"
        PUT /v1/nodes/node-1/drain
          400 invalid: return: "never" is neither "enable" nor "restart"
        PUT /v1/nodes/node-1/drain
          400 drain_invalid: message and meta are larger than 16384 bytes together
        POST /v1/nodes/node-1/drain/plan
          400 invalid: deadline: "0s" is no time at all; "force": true says now
        POST /v1/nodes/node-1/drain/plan
          400 drain_invalid: message and meta are larger than 16384 bytes together
        POST /v1/drains
          400 invalid: the body is not JSON: EOF while parsing a value at line 1 column 0
        POST /v1/drains
          400 drain_invalid: a drain names at least one node, or a selector
        POST /v1/drains
          400 drain_invalid: a drain names at least one node, or a selector
        POST /v1/drains
          400 invalid: the body does not have the right shape: unknown field `colour` at line 1 column 35
        POST /v1/drains
          404 node_not_found: there is no node nobody
        POST /v1/drains
          400 drain_invalid: a drain has nodes or a selector, not both
        POST /v1/drains
          404 selector_matches_none: no node has these labels
        POST /v1/drains
          412 no_candidate_left: no open candidate would be left to coordinate the cluster
        GET /v1/drains/7
          404 drain_not_found: there is no drain 7
        DELETE /v1/drains/7
          404 drain_not_found: there is no drain 7
        GET /v1/drains/first
          400 invalid: in the path: Invalid URL: Cannot parse `first` to a `u64`
    "#]]
    .assert_eq(&text);
    assert_eq!(daemon.get("/v1/drains").await["items"], json!([]));
    assert_eq!(daemon.get("/v1/status").await["nodes"]["by_state"], json!({"active": 2}));
}

#[tokio::test]
async fn drains_that_cannot_be_are_refused_before_anything_is_touched() {
    let (daemon, _nodes) = cluster(3).await;
    run(&daemon, batch(3)).await;
    let (status, body) = call(daemon.api, Method::PUT, "/v1/nodes/node-1/drain", None).await;
    assert_eq!(status.as_u16(), 202, "{body}");
    daemon.put("/v1/nodes/node-2/intent", json!({"intent": "disabled"})).await;
    let calls: Vec<(Method, &str, Option<Value>)> = vec![
        (Method::PUT, "/v1/nodes/node-1/intent", Some(json!({"intent": "disabled"}))),
        (Method::POST, "/v1/drains", Some(json!({"nodes": ["node-1", "node-3"]}))),
        (Method::PUT, "/v1/nodes/node-2/drain", None),
        (Method::PUT, "/v1/nodes/node-3/drain", None),
        (Method::POST, "/v1/nodes/node-3/drain/plan", None),
    ];
    let mut text = String::new();
    for (method, path, body) in calls {
        text.push_str(&told(&daemon, method, path, body).await);
    }
    expect![[r#"
        PUT /v1/nodes/node-1/intent
          409 drain_in_progress: node-1 is in drain 1; cancel that first
        POST /v1/drains
          409 drain_in_progress: node-1 is in drain 1 already
        PUT /v1/nodes/node-2/drain
          409 node_disabled: node-2 is disabled; enable it first
        PUT /v1/nodes/node-3/drain
          412 no_candidate_left: no open candidate would be left to coordinate the cluster
        POST /v1/nodes/node-3/drain/plan
          412 no_candidate_left: no open candidate would be left to coordinate the cluster
    "#]]
    .assert_eq(&text);
    assert_eq!(daemon.get("/v1/drains").await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_drain_that_leaves_no_node_to_move_to_is_refused_by_preflight() {
    let (daemon, _nodes) = cluster(1).await;
    let _candidate = FakeNode::join_candidate(daemon.rpc, "node-2");
    eventually("the candidate is there", async || {
        daemon.get("/v1/status").await["nodes"]["total"] == json!(2)
    })
    .await;
    run(&daemon, quick_web(1)).await;
    let text = told(&daemon, Method::PUT, "/v1/nodes/node-1/drain", None).await;
    expect![[r#"
        PUT /v1/nodes/node-1/drain
          422 no_node_left: no open node would be left to take what runs there
    "#]]
    .assert_eq(&text);
    assert_eq!(daemon.get("/v1/nodes/node-1").await["state"], "active");
}
