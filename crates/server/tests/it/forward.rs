//! Daemons that are not the coordinator.

use std::sync::Arc;

use reqwest::{Method, StatusCode};
use serde_json::json;
use server::ApiState;
use store::memory::MemoryStore;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::daemon::{Daemon, TIMING, call, eventually, serve, web};

async fn plain(coordinator: Option<String>) -> (std::net::SocketAddr, watch::Sender<Option<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = listener.local_addr().unwrap();
    let (tell, told) = watch::channel(coordinator);
    serve(listener, ApiState::daemon("worker-1", told).unwrap(), CancellationToken::new());
    (api, tell)
}

#[tokio::test]
async fn a_worker_passes_requests_on() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let (worker, _tell) = plain(Some(daemon.api.to_string())).await;
    let (status, body) = call(worker, Method::PUT, "/v1/services/web", Some(web(2))).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    let (_, body) = call(worker, Method::GET, "/v1/services/web", None).await;
    assert_eq!(body["count"], 2);
    let (status, _) = call(worker, Method::GET, "/v1/services/none", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let from = daemon.office.read(|coordinator, _| {
        coordinator.cluster().audit().next_back().map(|entry| (entry.who.clone(), entry.from.clone()))
    });
    let (who, from) = from.await.unwrap().unwrap();
    assert_eq!(who, "anonymous");
    assert!(from.starts_with("127.0.0.1:") && from.contains(" via 127.0.0.1:"), "{from}");
}

#[tokio::test]
async fn without_a_coordinator_the_answer_is_to_come_back() {
    let (worker, tell) = plain(None).await;
    let (status, body) = call(worker, Method::GET, "/v1/nodes", None).await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("no_coordinator")));
    let client = doors::http().no_proxy().build().unwrap();
    let answer = client.get(format!("http://{worker}/v1/nodes")).send().await.unwrap();
    assert_eq!(answer.headers()["retry-after"], "1");
    // a port that nobody listens on
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    tell.send_replace(Some(closed.to_string()));
    let (status, _) = call(worker, Method::GET, "/v1/nodes", None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let (status, body) = call(worker, Method::GET, "/healthz", None).await;
    assert_eq!((status, &body["coordinator"]), (StatusCode::OK, &json!(false)));
    assert_eq!(call(worker, Method::GET, "/metrics", None).await.0, StatusCode::OK);
}

#[tokio::test]
async fn the_health_check_fails_with_the_reason_for_as_long_as_there_is_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (_tell, told) = watch::channel(None);
    let (say, away) = watch::channel(Some("withdrawing"));
    let state = ApiState::daemon("edge-1", told).unwrap().with_health(move || *away.borrow());
    serve(listener, state, CancellationToken::new());
    let (status, body) = call(addr, Method::GET, "/healthz", None).await;
    assert_eq!((status, &body["status"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("withdrawing")));
    assert_eq!(body["node"], "edge-1");
    say.send_replace(None);
    let (status, body) = call(addr, Method::GET, "/healthz", None).await;
    assert_eq!((status, &body["status"]), (StatusCode::OK, &json!("ok")));
}

#[tokio::test]
async fn a_coordinator_that_says_nothing_is_waited_for_only_until_it_is_replaced() {
    // Takes connections and never answers, like one that is stopped.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (worker, tell) = plain(Some(silent.local_addr().unwrap().to_string())).await;
    let asked = tokio::spawn(call(worker, Method::GET, "/v1/nodes", None));
    let (_held, _) = silent.accept().await.unwrap();
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    tell.send_replace(Some(daemon.api.to_string()));
    let (status, body) = asked.await.unwrap();
    assert_eq!((status, &body["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("no_coordinator")));
    assert!(body["error"]["message"].as_str().unwrap().contains("left office"), "{body}");
    assert_eq!(call(worker, Method::GET, "/v1/nodes", None).await.0, StatusCode::OK);
}

#[tokio::test]
async fn two_daemons_that_take_each_other_for_the_coordinator_do_not_loop() {
    let (one, tell_one) = plain(None).await;
    let (two, _tell) = plain(Some(one.to_string())).await;
    tell_one.send_replace(Some(two.to_string()));
    let (status, body) = call(one, Method::GET, "/v1/nodes", None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
}

#[tokio::test]
async fn a_candidate_that_waits_passes_requests_on_and_redirects_streams() {
    let store = MemoryStore::new();
    let first = Daemon::acting(&store).await;
    let second = Daemon::start("b", Arc::new(store.clone()), TIMING).await;
    eventually("the second knows the first", async || {
        second.office.leader().borrow().as_ref().is_some_and(|leader| leader.id == "a")
    })
    .await;
    assert_eq!(second.get("/v1/status").await["coordinator"]["id"], "a");
    match wire::connect(&second.rpc.to_string()).await {
        Err(wire::ConnectError::NotCoordinator { coordinator }) => {
            assert_eq!(coordinator, Some(first.rpc.to_string()));
        }
        other => panic!("{other:?}"),
    }
}
