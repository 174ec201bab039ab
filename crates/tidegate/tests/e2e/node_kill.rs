//! Nodes that go, and come back.

use std::path::Path;

use crate::harness::{Cluster, Pace, TIDEGATE, free_port, of_service, process::Process, until, web};

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
