//! Figures of drains: each one read after a drain that must have moved it.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::captures::{feed, give};
use crate::daemon::Daemon;
use crate::drains::{batch, cluster, db, quick_web, run, until_state};

async fn metrics(daemon: &Daemon) -> String {
    let Value::String(text) = daemon.get("/metrics").await else { panic!("not text") };
    text
}

#[track_caller]
fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "no {line} in\n{text}");
    }
}

#[tokio::test]
async fn lesson_38_a_drain_moves_every_figure_of_drains() {
    let (daemon, _nodes) = cluster(3).await;
    run(&daemon, quick_web(3)).await;
    run(&daemon, db(3)).await;
    let body = json!({"nodes": ["node-1"]});
    assert_eq!(daemon.post("/v1/drains", body).await.0, StatusCode::ACCEPTED);
    crate::daemon::eventually("only the volume is left", async || {
        crate::drains::part(&daemon, "node-1").await.done == 1
    })
    .await;
    let text = metrics(&daemon).await;
    has(
        &text,
        &[
            "tidegate_nodes{state=\"draining\"} 1",
            "tidegate_nodes{state=\"active\"} 2",
            "tidegate_drain_status{node=\"node-1\"} 1",
            "tidegate_drain_status{node=\"node-2\"} 0",
            "tidegate_drain_remaining{node=\"node-1\",class=\"stateless\"} 0",
            "tidegate_drain_remaining{node=\"node-1\",class=\"stateful\"} 1",
            "tidegate_drain_remaining{node=\"node-1\",class=\"unknown\"} 0",
            "tidegate_drains_blocked{code=\"volume_local\"} 1",
            "tidegate_evictions_total{node=\"node-1\"} 1",
            "tidegate_reschedules_total{node=\"node-1\"} 1",
            "tidegate_drain_stateless_seconds_count 1",
        ],
    );
    for class in ["batch", "system", "maintainers", "dispatchers", "stores"] {
        has(&text, &[&format!("tidegate_drain_remaining{{node=\"node-1\",class=\"{class}\"}} 0")]);
    }
    daemon.put("/v1/nodes/node-1/drain", json!({"ack_stateful": true})).await;
    until_state(&daemon, "node-1", "drained_except").await;
    let text = metrics(&daemon).await;
    has(
        &text,
        &[
            "tidegate_nodes{state=\"drained\"} 1",
            "tidegate_drain_status{node=\"node-1\"} 0",
            "tidegate_drains_ended_total{ending=\"drained_except\"} 1",
            "tidegate_drain_duration_seconds_count{ending=\"drained_except\"} 1",
            "tidegate_drain_stateless_seconds_count 1",
        ],
    );
    assert!(!text.contains("tidegate_drains_blocked{") && !text.contains("tidegate_drain_remaining{"));
}

#[tokio::test]
async fn a_drain_that_is_cancelled_is_counted_as_such() {
    let (daemon, _nodes) = cluster(2).await;
    run(&daemon, db(2)).await;
    daemon.put("/v1/nodes/node-1/drain", json!({})).await;
    daemon.delete("/v1/nodes/node-1/drain").await;
    has(
        &metrics(&daemon).await,
        &[
            "tidegate_drains_ended_total{ending=\"cancelled\"} 1",
            "tidegate_drain_duration_seconds_count{ending=\"cancelled\"} 1",
            "tidegate_nodes{state=\"active\"} 2",
        ],
    );
}

#[tokio::test]
async fn a_node_that_waits_for_its_turn_is_counted_as_queued() {
    let (daemon, _nodes) = cluster(3).await;
    run(&daemon, batch(3)).await;
    let body = json!({"nodes": ["node-1", "node-2"]});
    assert_eq!(daemon.post("/v1/drains", body).await.0, StatusCode::ACCEPTED);
    has(
        &metrics(&daemon).await,
        &[
            "tidegate_nodes{state=\"queued\"} 1",
            "tidegate_nodes{state=\"draining\"} 1",
            "tidegate_drain_status{node=\"node-2\"} 0",
            "tidegate_drain_remaining{node=\"node-2\",class=\"batch\"} 1",
        ],
    );
}

#[tokio::test]
async fn a_drain_of_a_node_with_feeds_moves_the_figures_of_feeds() {
    let (daemon, nodes) = cluster(3).await;
    run(&daemon, quick_web(3)).await;
    feed(&daemon, &nodes, &[4, 2, 0]).await;
    daemon.put("/v1/nodes/node-1/drain", json!({})).await;
    crate::daemon::eventually("only dispatchers are left", async || {
        let left = crate::drains::part(&daemon, "node-1").await.remaining;
        left.maintainers == 0 && left.instances == 0 && left.unknown == 0
    })
    .await;
    let text = metrics(&daemon).await;
    has(
        &text,
        &[
            "tidegate_drain_remaining{node=\"node-1\",class=\"maintainers\"} 0",
            "tidegate_drain_remaining{node=\"node-1\",class=\"dispatchers\"} 4",
            "tidegate_drain_remaining{node=\"node-1\",class=\"unknown\"} 0",
            "tidegate_dispatchers{node=\"node-1\"} 4",
            "tidegate_dispatchers{node=\"node-2\"} 2",
            "tidegate_maintainers{node=\"node-1\"} 0",
            "tidegate_maintainers{node=\"node-2\"} 1",
            "tidegate_moves_total{class=\"stateless\",outcome=\"done\"} 1",
        ],
    );
    assert!(
        text.lines().any(|line| line.starts_with("tidegate_feed_checkpoint_lag_seconds{feed=\"orders\"} "))
    );
    // Its maintainer, on node-2 by then, has moved them.
    nodes[1].feeds.lock().unwrap().moved = 4;
    give(&nodes[0], 0);
    give(&nodes[2], 4);
    until_state(&daemon, "node-1", "drained").await;
    crate::daemon::eventually("all moves are counted", async || {
        let text = metrics(&daemon).await;
        let line = |line: &str| text.lines().any(|found| found == line);
        line("tidegate_moves_total{class=\"maintainers\",outcome=\"done\"} 1")
            && line("tidegate_moves_total{class=\"dispatchers\",outcome=\"done\"} 4")
            && line("tidegate_dispatchers{node=\"node-3\"} 4")
    })
    .await;
    let text = metrics(&daemon).await;
    assert!(!text.contains("outcome=\"failed\""), "{text}");
}
