//! Nodes that go, and come back.

use std::path::Path;

use rustix::process::Signal;

use crate::harness::{
    Cluster, Pace, TIDEGATE, free_port, of_service, process::Process, until, web, with_program,
};

fn ledger() -> String {
    format!(
        "[[service]]\nname = \"ledger\"\ncommand = [{TIDEGATE:?}, \"demo\", \"store\"]\nmemory = \"32MiB\"\n\
         ports = [\"http\"]\ncheck = {{ http = \"/ready\", port = \"http\", interval = \"200ms\", timeout = \"2s\" }}\n\
         volume = {{ name = \"data\" }}\nmigrate = {{ min_healthy_time = \"200ms\" }}\n"
    )
}

fn starts_counted(volume: &Path) -> String {
    std::fs::read_to_string(volume.join("starts")).unwrap_or_default().trim().to_owned()
}

/// As many of `web` as wanted are ready, none of them on `gone`.
async fn until_replaced(cluster: &Cluster, count: usize, gone: &str) {
    until("the lost ones to be replaced", async || {
        let all = cluster.api.instances("web").await?;
        let ready = all.iter().filter(|i| i.desired == "running" && i.actual == "ready" && i.node != gone);
        if ready.count() == count { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;
}

async fn until_reason(cluster: &Cluster, service: &str, code: &str) {
    until(&format!("{service} to say {code}"), async || {
        let reasons = cluster.api.service(service).await?.reasons;
        if reasons.iter().any(|reason| reason.code == code) { Ok(()) } else { Err(format!("{reasons:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_daemon_left_running_is_replaced_and_stopped_when_it_comes_back() {
    let mut cluster = Cluster::start(3, Pace::Quick).await;
    cluster
        .apply(&format!("{}{}", web(3, free_port(), "migrate = { min_healthy_time = \"200ms\" }"), ledger()))
        .await;
    let ledger = cluster.api.until_ready("ledger", 1).await.remove(0);
    let web = cluster.api.until_ready("web", 3).await;
    let lost = web.iter().find(|instance| instance.node == ledger.node).expect("one on every node").clone();
    let left = Process::of(lost.pid.unwrap());

    cluster.daemon_mut(&ledger.node).kill();
    cluster.api.until_health(&ledger.node, "offline").await;
    until_replaced(&cluster, 3, &ledger.node).await;
    until_reason(&cluster, "ledger", "volume_home_node_offline").await;
    assert!(left.is_alive(), "for those that may run twice two are better than none");
    assert_eq!(cluster.api.instance(&lost.id).await.unwrap().actual, "lost");

    cluster.daemon_mut(&ledger.node).start(&[]);
    until("the old one to be stopped", async || {
        let seen = cluster.api.instance(&lost.id).await?;
        if seen.actual == "stopped" && !left.is_alive() { Ok(()) } else { Err(of_service(&[seen])) }
    })
    .await;
    let again = cluster.api.until_ready("ledger", 1).await.remove(0);
    assert_eq!((again.id, again.pid, again.restarts), (ledger.id, ledger.pid, 0), "nobody took its place");
    assert_eq!(cluster.api.until_ready("web", 3).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_instance_moves_only_by_the_operators_word_and_with_its_data() {
    let mut cluster = Cluster::start(3, Pace::Quick).await;
    cluster
        .apply(&format!("{}{}", web(3, free_port(), "migrate = { min_healthy_time = \"200ms\" }"), ledger()))
        .await;
    cluster.api.until_ready("web", 3).await;
    let ledger = cluster.api.until_ready("ledger", 1).await.remove(0);
    let home = ledger.node.clone();
    let next = ["n1", "n2", "n3"].into_iter().find(|node| *node != home).unwrap();
    let volume = |node: &str| cluster.daemon(node).data().join("volumes/ledger-data-0");
    let (from, to) = (volume(&home), volume(next));
    assert_eq!(starts_counted(&from), "1");

    let refused = cluster.run(&["node", "confirm-dead", &home]).await;
    assert_eq!(refused.code, 4, "only what is offline can be dead: {}", refused.stderr);

    cluster.lose(&home);
    cluster.api.until_health(&home, "offline").await;
    until_replaced(&cluster, 3, &home).await;
    until_reason(&cluster, "ledger", "volume_home_node_offline").await;
    let refused = cluster.run(&["volume", "attach", "ledger-data-0", "--node", next]).await;
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(refused.stderr.contains("confirm-dead"), "it says what to do: {}", refused.stderr);

    let done = cluster.run(&["node", "confirm-dead", &home]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    until_reason(&cluster, "ledger", "volume_home_node_offline").await;
    let done = cluster.run(&["volume", "attach", "ledger-data-0", "--node", next]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    until("what is missing to be said", async || {
        let all = cluster.api.instances("ledger").await?;
        let told = all.iter().flat_map(|i| &i.reasons).any(|reason| reason.code == "volume_not_present");
        if told { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;
    assert!(!to.join("starts").exists(), "nothing started on nothing");

    // The operator brings the data.
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(&from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let moved = cluster.api.until_ready("ledger", 1).await.remove(0);
    assert_eq!(moved.node, next);
    assert_ne!(moved.id, ledger.id);
    assert_eq!(starts_counted(&to), "2");
    assert_eq!(cluster.api.volume("ledger-data-0").await.unwrap().home, next);

    cluster.daemon_mut(&home).start(&[]);
    cluster.api.until_health(&home, "up").await;
    cluster.api.until_ready("ledger", 1).await;
    cluster.api.until_ready("web", 3).await;
    let runs = cluster.daemon(&home).runs();
    assert!(runs.iter().all(|run| run.instance != ledger.id), "the old one does not come back: {runs:?}");
    assert_eq!(starts_counted(&from), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_sleeps_past_its_lease_is_replaced_and_catches_up_when_it_wakes() {
    let cluster = Cluster::start(2, Pace::Quick).await;
    let witness = cluster.dir().join("go");
    let batch = with_program(
        "batch",
        &format!("while [ ! -e {} ]; do sleep 0.1; done", witness.display()),
        "kind = \"batch\"",
    );
    let at_once = "migrate = { min_healthy_time = \"200ms\" }";
    cluster.apply(&format!("{}{batch}", web(2, free_port(), at_once))).await;
    let web = cluster.api.until_ready("web", 2).await;
    let batch = cluster.api.until_ready("batch", 1).await.remove(0);
    let asleep = batch.node.clone();
    let lost = web.iter().find(|instance| instance.node == asleep).expect("one on every node");
    let left = [lost, &batch].map(|instance| Process::of(instance.pid.unwrap()));

    cluster.daemon(&asleep).suspend().await;
    cluster.api.until_health(&asleep, "offline").await;
    until_replaced(&cluster, 2, &asleep).await;
    until("the batch to run anew elsewhere", async || {
        let all = cluster.api.instances("batch").await?;
        let anew = all.iter().any(|i| i.id != batch.id && i.actual == "ready" && i.node != asleep);
        if anew { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;
    cluster.daemon(&asleep).signal(Signal::CONT);
    cluster.api.until_health(&asleep, "up").await;
    until("what it had to be stopped", async || {
        let alive: Vec<_> = left.iter().filter(|process| process.is_alive()).collect();
        if alive.is_empty() { Ok(()) } else { Err(format!("{alive:?}")) }
    })
    .await;
    cluster.api.until_ready("web", 2).await;
    let epoch = cluster.api.node(&asleep).await.unwrap().process_epoch;
    assert_eq!(
        epoch, 2,
        "its lease was over: what was heard of it before then does not hold of what it runs since"
    );
    std::fs::write(&witness, "").unwrap();
    until("the batch to be complete", async || {
        let service = cluster.api.service("batch").await?;
        if service.complete == 1 { Ok(()) } else { Err(format!("{service:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_dead_by_mistake_is_stopped_when_its_node_comes_back() {
    let mut cluster = Cluster::start(2, Pace::Quick).await;
    cluster.apply(&ledger()).await;
    let ledger = cluster.api.until_ready("ledger", 1).await.remove(0);
    let (home, next) = (ledger.node.as_str(), if ledger.node == "n1" { "n2" } else { "n1" });
    let alive = Process::of(ledger.pid.unwrap());
    cluster.daemon_mut(home).kill();
    cluster.api.until_health(home, "offline").await;
    assert_eq!(cluster.run(&["node", "confirm-dead", home]).await.code, 0);
    let volume = |node: &str| cluster.daemon(node).data().join("volumes/ledger-data-0");
    std::fs::create_dir_all(volume(next)).unwrap();
    std::fs::copy(volume(home).join("starts"), volume(next).join("starts")).unwrap();
    assert_eq!(cluster.run(&["volume", "attach", "ledger-data-0", "--node", next]).await.code, 0);
    let moved = cluster.api.until_ready("ledger", 1).await.remove(0);
    assert_eq!((moved.node.as_str(), alive.is_alive()), (next, true), "the operator was wrong");

    cluster.daemon_mut(home).start(&[]);
    until("the one that was not dead to be stopped", async || {
        if alive.is_alive() { Err(of_service(&cluster.api.instances("ledger").await?)) } else { Ok(()) }
    })
    .await;
    let only = cluster.api.until_ready("ledger", 1).await.remove(0);
    assert_eq!((only.id, only.pid, only.restarts), (moved.id, moved.pid, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_removed_while_its_node_is_away_goes_when_the_node_is_back() {
    let mut cluster = Cluster::start(1, Pace::Quick).await;
    let at_once = "migrate = { min_healthy_time = \"0s\" }";
    cluster.apply(&with_program("job", "exec sleep 1000", at_once)).await;
    let alive = Process::of(cluster.api.until_ready("job", 1).await[0].pid.unwrap());
    cluster.daemon_mut("n1").kill();
    cluster.api.until_health("n1", "offline").await;
    assert_eq!(cluster.run(&["remove", "service/job"]).await.code, 0);
    assert!(cluster.api.service("job").await.unwrap().removing, "unknown counts as running");
    assert!(alive.is_alive());
    cluster.daemon_mut("n1").start(&[]);
    until("it to go", async || {
        let services = cluster.api.services().await?;
        if services.is_empty() && !alive.is_alive() { Ok(()) } else { Err(format!("{services:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_for_a_coordinator_that_comes_later() {
    let mut cluster = Cluster::start(1, Pace::Steady).await;
    cluster.daemon_mut("control").kill();
    cluster.daemon_mut("n1").kill();
    cluster.daemon_mut("n1").start(&[]);
    let worker = cluster.api_of("n1");
    until("the worker to say that nobody decides", async || {
        match worker.ask(reqwest::Method::GET, "/v1/nodes", None).await? {
            (503, body) if body["error"]["code"] == "no_coordinator" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    cluster.daemon_mut("control").start(&[]);
    cluster.until_up().await;
    until("the worker to pass requests on", async || worker.nodes().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_late_gets_nothing_new_and_loses_nothing() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let at_once = "migrate = { min_healthy_time = \"0s\" }";
    cluster.apply(&with_program("job", "exec sleep 1000", &format!("count = 2\n{at_once}"))).await;
    let before = cluster.api.until_ready("job", 2).await;
    cluster.daemon("n1").suspend().await;
    cluster.api.until_health("n1", "degraded").await;
    let node = cluster.api.node("n1").await.unwrap();
    assert_eq!(node.reasons[0].code, "heartbeats_late", "{node:?}");
    assert_eq!(cluster.run(&["scale", "job", "6"]).await.code, 0);
    let more = cluster.api.until_ready("job", 6).await;
    assert_eq!(more.iter().filter(|instance| instance.node == "n1").count(), 1, "{}", of_service(&more));
    cluster.daemon("n1").signal(Signal::CONT);
    cluster.api.until_health("n1", "up").await;
    let after = cluster.api.until_ready("job", 6).await;
    let kept =
        |i: &&server::view::InstanceView| before.iter().any(|old| (&old.id, old.pid) == (&i.id, i.pid));
    assert_eq!(after.iter().filter(kept).count(), 2, "{}", of_service(&after));
    assert_eq!(cluster.run(&["scale", "job", "7"]).await.code, 0);
    let last = cluster.api.until_ready("job", 7).await;
    assert_eq!(last.iter().filter(|instance| instance.node == "n1").count(), 2, "{}", of_service(&last));
}
