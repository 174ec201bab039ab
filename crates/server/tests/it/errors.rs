//! Whatever comes from outside, the answer has the one shape.

use expect_test::expect;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::memory::MemoryStore;

use crate::daemon::{Daemon, call, web};
use crate::node::FakeNode;

pub async fn told(daemon: &Daemon, method: Method, path: &str, body: Option<Value>) -> String {
    let (status, answer) = call(daemon.api, method.clone(), path, body).await;
    let error = &answer["error"];
    let (code, message) = (error["code"].as_str(), error["message"].as_str());
    assert!(error["details"].is_object(), "{method} {path}: {answer}");
    format!("{method} {path}\n  {} {}: {}\n", status.as_u16(), code.unwrap(), message.unwrap())
}

#[tokio::test]
async fn bad_requests_are_refused_with_a_reason() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let mut wrong_check = web(1);
    wrong_check["check"] = json!({"http": "/", "port": "nope"});
    let mut unknown_key = web(1);
    unknown_key["colour"] = json!("red");
    let mut text = String::new();
    let calls: Vec<(Method, &str, Option<Value>)> = vec![
        (Method::GET, "/nothing", None),
        (Method::GET, "/v1/nothing/here", None),
        (Method::DELETE, "/v1/nodes", None),
        (Method::GET, "/v1/nodes/nobody", None),
        (Method::GET, "/v1/nodes/%00%ff", None),
        (Method::PUT, "/v1/nodes/nobody/intent", Some(json!({"intent": "disabled"}))),
        (Method::PUT, "/v1/nodes/nobody/intent", Some(json!({"intent": "drained"}))),
        (Method::PUT, "/v1/nodes/nobody/intent", Some(json!({"intent": 7}))),
        (Method::POST, "/v1/nodes/nobody/confirm-dead", None),
        (Method::GET, "/v1/services/nobody", None),
        (Method::GET, "/v1/services/nobody/instances", None),
        (Method::GET, "/v1/services/nobody/backends", None),
        (Method::DELETE, "/v1/services/nobody", None),
        (Method::PUT, "/v1/services/other", Some(web(1))),
        (Method::PUT, "/v1/services/web", Some(unknown_key)),
        (Method::PUT, "/v1/services/web", Some(wrong_check)),
        (Method::PUT, "/v1/services/web", Some(json!([1, 2]))),
        (Method::PUT, "/v1/services/web/count", Some(json!({"count": -1}))),
        (Method::PUT, "/v1/services/web/count", Some(json!({"count": 4_000_000}))),
        (Method::PUT, "/v1/services/web/count", Some(json!({"count": 4}))),
        (Method::POST, "/v1/apply", Some(json!({"service": [web(1), web(2)]}))),
        (Method::POST, "/v1/apply", Some(json!([[web(1)]]))),
        (Method::POST, "/v1/apply?dry_run=true", Some(json!({"service": [web(1)]}))),
        (Method::GET, "/v1/instances/web-1", None),
        (Method::GET, "/v1/instances/%F0%9F%90%9F", None),
        (Method::DELETE, "/v1/instances/-", None),
        (Method::GET, "/v1/instances?service=nobody", None),
        (Method::GET, "/v1/instances?colour=red", None),
        (Method::GET, "/v1/instances/web-1/logs?lines=many", None),
        (Method::GET, "/v1/volumes/none", None),
        (Method::PUT, "/v1/volumes/none/home", Some(json!({"node": "node-1"}))),
        (Method::GET, "/v1/events?since=yesterday", None),
    ];
    for (method, path, body) in calls {
        text.push_str(&told(&daemon, method, path, body).await);
    }
    expect![[r#"
        GET /nothing
          404 path_not_found: there is nothing at /nothing
        GET /v1/nothing/here
          404 path_not_found: there is nothing at /v1/nothing/here
        DELETE /v1/nodes
          405 method_not_allowed: DELETE is not possible at /v1/nodes
        GET /v1/nodes/nobody
          404 node_not_found: there is no node "nobody"
        GET /v1/nodes/%00%ff
          400 invalid: in the path: Invalid URL: Invalid UTF-8 in `node`
        PUT /v1/nodes/nobody/intent
          404 node_not_found: there is no node nobody
        PUT /v1/nodes/nobody/intent
          400 invalid: intent: "drained" is neither "active" nor "disabled"
        PUT /v1/nodes/nobody/intent
          400 invalid: the body does not have the right shape: invalid type: integer `7`, expected a string at line 1 column 11
        POST /v1/nodes/nobody/confirm-dead
          404 node_not_found: there is no node nobody
        GET /v1/services/nobody
          404 service_not_found: there is no service "nobody"
        GET /v1/services/nobody/instances
          404 service_not_found: there is no service "nobody"
        GET /v1/services/nobody/backends
          404 service_not_found: there is no service "nobody"
        DELETE /v1/services/nobody
          404 service_not_found: there is no service nobody
        PUT /v1/services/other
          400 invalid: name: the body says "web", the path "other"
        PUT /v1/services/web
          400 invalid: the body does not have the right shape: unknown field `colour`, expected one of `name`, `kind`, `count`, `command`, `env`, `memory`, `cpu`, `ports`, `check`, `edge`, `stop`, `migrate`, `update`, `volume`, `disk`, `rerun`, `constraints`
        PUT /v1/services/web
          400 invalid: service "web": check.port: "nope" is not among the service's ports ["http"]
        PUT /v1/services/web
          400 invalid: the body is a list, not an object
        PUT /v1/services/web/count
          400 invalid: the body does not have the right shape: invalid value: integer `-1`, expected u32 at line 1 column 11
        PUT /v1/services/web/count
          400 invalid: count: 4000000 is more than 100000
        PUT /v1/services/web/count
          404 service_not_found: there is no service web
        POST /v1/apply
          400 invalid: service "web" is there twice
        POST /v1/apply
          400 invalid: the body is a list, not an object
        POST /v1/apply?dry_run=true
          400 invalid: in the query: Failed to deserialize query string: dry_run: unknown field `dry_run`, there are no fields
        GET /v1/instances/web-1
          404 instance_not_found: there is no instance "web-1"
        GET /v1/instances/%F0%9F%90%9F
          404 instance_not_found: there is no instance "🐟"
        DELETE /v1/instances/-
          404 instance_not_found: there is no instance "-"
        GET /v1/instances?service=nobody
          404 service_not_found: there is no service "nobody"
        GET /v1/instances?colour=red
          400 invalid: in the query: Failed to deserialize query string: colour: unknown field `colour`, expected `service` or `node`
        GET /v1/instances/web-1/logs?lines=many
          400 invalid: in the query: Failed to deserialize query string: lines: invalid digit found in string
        GET /v1/volumes/none
          404 volume_not_found: there is no volume "none"
        PUT /v1/volumes/none/home
          404 volume_not_found: there is no volume none
        GET /v1/events?since=yesterday
          400 invalid: in the query: Failed to deserialize query string: since: invalid digit found in string
    "#]].assert_eq(&text);
    assert_eq!(daemon.get("/v1/services").await["items"], json!([]), "nothing was written");
}

async fn raw(daemon: &Daemon, body: Vec<u8>) -> (StatusCode, Value) {
    let client = doors::http().no_proxy().build().unwrap();
    let url = format!("http://{}/v1/apply", daemon.api);
    let answer = client.post(url).body(body).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

#[tokio::test]
async fn bodies_that_are_no_json_or_too_large_are_refused() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let (status, body) = raw(&daemon, b"{\"service\": [".to_vec()).await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("invalid")));
    assert_eq!(body["error"]["details"], json!({"line": 1, "column": 13}));
    let (status, _) = raw(&daemon, vec![0xff; 100]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, body) = raw(&daemon, vec![b' '; server::api::BODY_BYTES_MAX + 1]).await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("body_too_large")));
}

#[tokio::test]
async fn a_page_of_another_site_changes_nothing() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let client = doors::http().no_proxy().build().unwrap();
    let url = format!("http://{}/v1/apply", daemon.api);
    let answer = client.post(url).header("sec-fetch-site", "cross-site").body("{}").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn only_an_offline_node_is_confirmed_dead() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let _node = FakeNode::join(daemon.rpc, "node-1", "127.0.0.1:1");
    crate::daemon::eventually("the node is there", async || {
        daemon.get("/v1/nodes").await["items"] != json!([])
    })
    .await;
    let (status, body) = daemon.post("/v1/nodes/node-1/confirm-dead", json!({})).await;
    assert_eq!(status, StatusCode::PRECONDITION_FAILED, "{body}");
}
