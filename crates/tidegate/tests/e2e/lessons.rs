//! What must hold of a drain whose coordinator is killed, wherever the drain stands. Numbers are those of
//! docs/lessons.md.

use std::path::Path;

use reqwest::Method;
use server::view::{DrainStatusView, InstanceView};
use store::testing::EtcdCluster;

use crate::{
    drains::{drain_of, names, on, until_drain, written},
    harness::{Api, Cluster, Pace, of_service, until, with_program},
};

const COUNT: usize = 9;

/// Writes its name into `starts` when it starts and into `stops` each time it is told to stop, and takes
/// its time to go.
fn scribe(dir: &Path) -> String {
    let dir = dir.display();
    let script = format!(
        "trap 'echo $INSTANCE >> {dir}/stops; gone=1' TERM; echo $INSTANCE >> {dir}/starts; \
         while [ -z \"$gone\" ]; do sleep 0.1; done; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done"
    );
    with_program("scribe", &script, &format!("count = {COUNT}\nmigrate = {{ min_healthy_time = \"1s\" }}"))
}

/// Drains a node, kills the coordinator when the drain is where `is_there` says, and looks at all of it.
async fn killed_when(what: &str, is_there: impl Fn(&DrainStatusView, &[InstanceView]) -> bool) {
    let etcd = EtcdCluster::start(1).await;
    let mut cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    cluster.apply(&scribe(cluster.dir())).await;
    let before = cluster.api.until_ready("scribe", COUNT).await;
    let leads = cluster.api.status().await.unwrap().coordinator;
    let others: Vec<&str> = ["n1", "n2", "n3"].into_iter().filter(|name| *name != leads.id).collect();
    let (drained, api) = (others[0], cluster.api_of(others[1]));
    let leaving = names(&on(&before, drained));
    assert_eq!(leaving.len(), 3, "{}", of_service(&before));

    let path = format!("/v1/nodes/{drained}/drain");
    let (status, body) = api.ask(Method::PUT, &path, Some("{}")).await.unwrap();
    assert_eq!(status, 202, "{body}");
    until(what, async || {
        let (drain, all) = (drain_of(&api, drained).await?, api.instances("scribe").await?);
        assert_eq!(drain.state, "draining", "it was over before {what}");
        if is_there(&drain, &all) { Ok(()) } else { Err(format!("{drain:?}")) }
    })
    .await;
    cluster.daemon_mut(&leads.id).kill();

    until("another coordinator", async || {
        enough_run(cluster.dir());
        let next = api.status().await?.coordinator;
        if next.id != leads.id && next.term > leads.term { Ok(()) } else { Err(next.id) }
    })
    .await;
    cluster.daemon_mut(&leads.id).start(&[]);
    let ended = until("the drain to end", async || {
        enough_run(cluster.dir());
        enough_ready(&api).await?;
        let drain = drain_of(&api, drained).await?;
        if drain.ended_at.is_some() { Ok(drain) } else { Err(format!("{drain:?}")) }
    })
    .await;
    assert_eq!((ended.state.as_str(), ended.epoch, ended.total, ended.done), ("drained", 1, 3, 3));
    let after = api.until_ready("scribe", COUNT).await;
    assert!(on(&after, drained).is_empty(), "{}", of_service(&after));
    assert_eq!(written(cluster.dir(), "stops"), leaving, "each once, and no other");
    assert_eq!(written(cluster.dir(), "starts").len(), COUNT + 3, "{}", of_service(&after));
    assert!(cluster.daemon(drained).runs().is_empty());
    let running: usize = ["n1", "n2", "n3"].iter().map(|name| cluster.daemon(name).runs().len()).sum();
    assert_eq!(running, COUNT, "none is left over: {}", of_service(&after));
}

/// By the processes' own word. Stops are read first: a start in between is no fault.
fn enough_run(dir: &Path) {
    let stops = written(dir, "stops").len();
    let starts = written(dir, "starts").len();
    assert!(starts >= stops + COUNT, "{starts} started, {stops} told to stop");
}

async fn enough_ready(api: &Api) -> Result<(), String> {
    let all = api.instances("scribe").await?;
    let ready = all.iter().filter(|i| i.desired == "running" && i.actual == "ready").count();
    assert!(ready >= COUNT, "{}", of_service(&all));
    Ok(())
}

fn waits_for(drain: &DrainStatusView, code: &str) -> bool {
    drain.waits.iter().any(|wait| wait.code == code)
}

#[tokio::test(flavor = "multi_thread")]
async fn lesson_14_a_drain_outlives_a_coordinator_that_is_killed_right_after_it_accepted_it() {
    killed_when("it to be accepted", |_, _| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lesson_14_a_drain_outlives_a_coordinator_that_is_killed_when_the_first_replacement_is_ready() {
    killed_when("the first replacement to be ready", |drain, all| {
        drain.done == 0 && all.iter().any(|i| i.replaces.is_some() && i.actual == "ready")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lesson_14_a_drain_outlives_a_coordinator_that_is_killed_while_an_old_one_is_in_its_grace_period() {
    killed_when("an old one to be told to stop", |drain, _| waits_for(drain, "grace_period")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lesson_14_a_drain_outlives_a_coordinator_that_is_killed_just_before_the_end() {
    killed_when("the last one to be told to stop", |drain, _| {
        drain.done == 2 && waits_for(drain, "grace_period")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lesson_39_who_drained_it_and_why_is_said_during_and_after_and_under_the_next_coordinator() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    cluster.apply(&with_program("job", "exec sleep 1000", "kind = \"batch\"")).await;
    let job = cluster.api.until_ready("job", 1).await.remove(0);
    let drain =
        ["node", "drain", &job.node, "--message", "kernel update", "--meta", "ticket=OPS-1", "--detach"];
    let done = cluster.run(&drain).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    let during = until_drain(&cluster.api, &job.node, "going", |drain| drain.state == "draining").await;
    let done = cluster.run(&["node", "cancel", &job.node]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    cluster.daemon_mut("control").kill();
    cluster.daemon_mut("control").start(&[]);
    let after = until_drain(&cluster.api, &job.node, "over", |drain| drain.state == "cancelled").await;
    for seen in [&during, &after] {
        assert_eq!((seen.message.as_str(), seen.meta["ticket"].as_str()), ("kernel update", "OPS-1"));
        assert!(!seen.by.is_empty());
    }
    let (_, kept) = cluster.api.ask(Method::GET, "/v1/drains/1", None).await.unwrap();
    assert!(kept["from"].as_str().is_some_and(|from| from.starts_with("127.0.0.1")), "{kept}");
}
