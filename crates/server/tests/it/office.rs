//! Election, taking over, and what the store does to it.

use std::sync::Arc;

use model::Millis;
use protocol::Timing;
use reqwest::{Method, StatusCode};
use serde_json::json;
use store::embedded::EmbeddedStore;
use store::etcd::EtcdStore;
use store::memory::{Fault, MemoryStore};

use crate::daemon::{Daemon, TIMING, eventually, web};
use crate::node::FakeNode;
use crate::silent::Silent;

#[tokio::test]
async fn the_next_candidate_takes_over_with_everything_that_was_committed() {
    let store = MemoryStore::new();
    let first = Daemon::acting(&store).await;
    let second = Daemon::start("b", Arc::new(store.clone()), TIMING).await;
    first.put("/v1/services/web", web(3)).await;
    let before = first.get("/v1/services/web").await;
    let term = first.get("/v1/status").await["coordinator"]["term"].as_u64().unwrap();
    first.office.shutdown().await;
    second.until_acting().await;
    let after = second.get("/v1/services/web").await;
    assert_eq!((&after["name"], &after["created_at"]), (&before["name"], &before["created_at"]));
    let status = second.get("/v1/status").await;
    assert!(status["coordinator"]["term"].as_u64().unwrap() > term);
    assert_eq!(status["candidates"].as_array().unwrap().len(), 1);
    second.put("/v1/services/web/count", json!({"count": 5})).await;
    assert_eq!(second.get("/v1/services/web").await["count"], 5);
}

#[tokio::test]
async fn one_that_loses_office_campaigns_again_and_loads_what_is_stored() {
    let store = MemoryStore::new();
    let timing = Timing { lease: Millis::secs(1), ..TIMING };
    let daemon = Daemon::start("a", Arc::new(store.clone()), timing).await;
    daemon.until_acting().await;
    daemon.surely(Method::PUT, "/v1/services/web", Some(web(3))).await;
    let term = daemon.get("/v1/status").await["coordinator"]["term"].as_u64();
    store.depose();
    eventually("it is in office again", async || {
        daemon.get("/v1/status").await["coordinator"]["term"].as_u64() > term
    })
    .await;
    assert_eq!(daemon.get("/v1/services/web").await["count"], 3);
}

#[tokio::test]
async fn an_office_that_cannot_be_extended_ends_by_our_own_clock() {
    let store = Silent::new(MemoryStore::new());
    let timing = Timing { lease: Millis::secs(1), ..TIMING };
    let daemon = Daemon::start("a", Arc::new(store.clone()), timing).await;
    daemon.until_acting().await;
    store.silence(true);
    eventually("it stops acting", async || !daemon.office.is_acting()).await;
    let answer = daemon.office.read(|_, _| ()).await;
    assert_eq!(answer, Err(server::NotCoordinator));
    store.silence(false);
    daemon.until_acting().await;
}

#[tokio::test]
async fn when_one_is_cut_off_from_the_store_another_takes_over() {
    let (store, timing) = (MemoryStore::new(), Timing { lease: Millis::secs(1), ..TIMING });
    let cut_off = Silent::new(store.clone());
    let first = Daemon::start("a", Arc::new(cut_off.clone()), timing).await;
    first.until_acting().await;
    first.surely(Method::PUT, "/v1/services/web", Some(web(3))).await;
    let second = Daemon::start("b", Arc::new(store.clone()), timing).await;
    cut_off.silence(true);
    second.until_acting().await;
    assert_eq!(first.office.read(|_, _| ()).await, Err(server::NotCoordinator), "two in office");
    assert_eq!(second.get("/v1/services/web").await["count"], 3);
    cut_off.silence(false);
    eventually("the first one knows", async || {
        first.office.leader().borrow().as_ref().is_some_and(|leader| leader.id == "b")
    })
    .await;
    assert_eq!(first.get("/v1/status").await["coordinator"]["id"], "b");
}

#[tokio::test]
async fn streams_end_with_the_office() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let mut stream = wire::connect(&daemon.rpc.to_string()).await.unwrap();
    daemon.office.shutdown().await;
    while stream.receiver.recv().await.is_some() {}
    let end = stream.ended.await.unwrap();
    assert!(matches!(end, wire::End::NotCoordinator { .. } | wire::End::ByCoordinator), "{end}");
    assert!(wire::connect(&daemon.rpc.to_string()).await.is_err());
}

#[tokio::test]
async fn the_embedded_store_keeps_everything_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut terms = Vec::new();
    for _ in 0..2 {
        // The tasks of the daemon before let go of the file one after the other.
        let store = loop {
            match EmbeddedStore::open(dir.path().join("state")).await {
                Err(store::StoreError::Locked { .. }) => tokio::task::yield_now().await,
                other => break other.unwrap(),
            }
        };
        let daemon = Daemon::start("a", Arc::new(store), TIMING).await;
        daemon.until_acting().await;
        let (_, applied) = daemon.put("/v1/services/web", web(3)).await;
        terms.push((applied["outcome"].clone(), daemon.get("/v1/status").await["cluster"].clone()));
        daemon.office.shutdown().await;
        drop(daemon);
    }
    assert_eq!((&terms[0].0, &terms[1].0), (&json!("created"), &json!("unchanged")));
    assert_eq!(terms[0].1, terms[1].1, "the cluster is the same");
}

#[tokio::test]
async fn on_etcd_the_next_candidate_takes_over() {
    if !store::testing::is_installed() {
        eprintln!("skipped: no etcd in PATH");
        return;
    }
    let etcd = store::testing::EtcdCluster::start(1).await;
    let open = async || Arc::new(EtcdStore::open(&etcd.config("/tidegate/test")).await.unwrap());
    let first = Daemon::start("a", open().await, TIMING).await;
    first.until_acting().await;
    let _node = FakeNode::join(first.rpc, "node-1", "127.0.0.1:1");
    first.put("/v1/services/web", web(3)).await;
    eventually("the service is ok", async || first.get("/v1/services/web").await["state"] == "ok").await;
    let second = Daemon::start("b", open().await, TIMING).await;
    eventually("both are candidates", async || {
        second.office.leader().borrow().is_some()
            && first.get("/v1/status").await["candidates"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await;
    first.office.shutdown().await;
    second.until_acting().await;
    assert_eq!(second.get("/v1/instances").await["items"].as_array().unwrap().len(), 3);
    second.put("/v1/services/web/count", json!({"count": 1})).await;
    assert_eq!(second.get("/v1/doctor").await["items"], json!([]));
}

#[tokio::test]
async fn writes_whose_outcome_is_unclear_are_carried_out_once() {
    let faults = [
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::Unavailable,
        Fault::SpaceExhausted,
        Fault::SpaceExhaustedAfterApplying,
    ];
    let store = MemoryStore::new();
    let daemon = Daemon::acting(&store).await;
    let term = daemon.get("/v1/status").await["coordinator"]["term"].clone();
    daemon.put("/v1/services/web", web(1)).await;
    for (n, fault) in faults.into_iter().enumerate() {
        store.inject(fault);
        let count = 10 + n;
        let (status, body) = daemon.put("/v1/services/web/count", json!({"count": count})).await;
        assert_eq!((status, &body["count"]), (StatusCode::OK, &json!(count)), "{fault:?}: {body}");
    }
    let status = daemon.get("/v1/status").await;
    assert_eq!((&status["coordinator"]["term"], &status["reasons"]), (&term, &json!([])));
}

#[tokio::test]
async fn a_refused_write_ends_the_term_and_nothing_of_it_is_seen() {
    let store = MemoryStore::new();
    let daemon = Daemon::acting(&store).await;
    daemon.put("/v1/services/web", web(1)).await;
    let term = daemon.get("/v1/status").await["coordinator"]["term"].as_u64();
    store.inject(Fault::Refuse);
    let (status, body) = daemon.put("/v1/services/web/count", json!({"count": 9})).await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("no_coordinator")));
    daemon.until_acting().await;
    assert_eq!(daemon.get("/v1/services/web").await["count"], 1);
    assert!(daemon.get("/v1/status").await["coordinator"]["term"].as_u64() > term);
}

#[tokio::test]
async fn a_store_without_space_is_shown() {
    let store = MemoryStore::new();
    store.set_space_alarm(true);
    let daemon = Daemon::acting(&store).await;
    assert_eq!(daemon.get("/v1/status").await["reasons"][0]["code"], "store_space");
}

#[tokio::test]
async fn a_disabled_candidate_leaves_the_office_to_an_open_one() {
    let store = MemoryStore::new();
    let timing = Timing { lease: Millis::secs(1), ..TIMING };
    let first = Daemon::start("a", Arc::new(store.clone()), timing).await;
    first.until_acting().await;
    let _node = FakeNode::join(first.rpc, "a", "127.0.0.1:1");
    eventually("the node is there", async || first.get("/v1/nodes").await["items"] != json!([])).await;
    let disabled = Some(json!({"intent": "disabled"}));
    let (status, body) = first.surely(Method::PUT, "/v1/nodes/a/intent", disabled).await;
    assert_eq!((status, &body["state"]), (StatusCode::OK, &json!("disabled")));
    let second = Daemon::start("b", Arc::new(store.clone()), timing).await;
    eventually("the open one leads", async || second.office.is_acting() && !first.office.is_acting()).await;
    second.office.shutdown().await;
    eventually("the closed one takes care", async || first.office.is_acting()).await;
}
