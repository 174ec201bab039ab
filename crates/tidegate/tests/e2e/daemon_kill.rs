//! Instances outlive the daemon that started them.

use std::collections::BTreeMap;

use server::view::InstanceView;

use crate::harness::{Cluster, Pace, free_port, of_service, process::Process, until, web, with_program};

fn pids(instances: &[InstanceView]) -> BTreeMap<String, (Option<u32>, u32)> {
    instances.iter().map(|i| (i.id.clone(), (i.pid, i.restarts))).collect()
}

/// Waits until a new life of the daemon has registered and told what it found.
async fn until_back(cluster: &Cluster, node: &str, epoch: u64) {
    until(&format!("{node} to be back"), async || {
        let seen = cluster.api.node(node).await?;
        let back = seen.connected && seen.health == "up" && seen.process_epoch == epoch;
        if back { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_and_traffic_do_not_notice_that_their_daemons_are_killed_and_come_back() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    let port = free_port();
    cluster.apply(&web(4, port, "migrate = { min_healthy_time = \"200ms\" }")).await;
    let before = pids(&cluster.api.until_ready("web", 4).await);
    let traffic = cluster.load(port, 2).await;

    cluster.daemon_mut("n1").kill();
    cluster.daemon_mut("n1").start(&[]);
    until_back(&cluster, "n1", 2).await;
    assert_eq!(pids(&cluster.api.until_ready("web", 4).await), before);

    let ended = cluster.daemon_mut("n2").terminate().await;
    assert_eq!(ended.code(), Some(0), "SIGTERM is an order, not an accident");
    assert_eq!(cluster.daemon("n2").runs().len(), 2, "its instances run on");
    cluster.daemon_mut("n2").start(&[]);
    until_back(&cluster, "n2", 2).await;
    assert_eq!(pids(&cluster.api.until_ready("web", 4).await), before);

    let report = traffic.end().await;
    assert_eq!(report.failed, Vec::<String>::new(), "of {} requests", report.requests);
    assert_eq!(report.by_instance.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_knows_how_those_ended_that_ended_while_it_was_away() {
    let mut cluster = Cluster::start(1, Pace::Steady).await;
    let go = cluster.dir().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    let batch = with_program("report", &wait, "kind = \"batch\"");
    // The second time it stays.
    let service = with_program(
        "worker",
        &format!("[ -e here ] && exec sleep 1000; touch here; {wait}; exit 7"),
        "migrate = { min_healthy_time = \"0s\" }",
    );
    cluster.apply(&format!("{batch}{service}")).await;
    let batch = cluster.api.until_ready("report", 1).await.remove(0);
    let service = cluster.api.until_ready("worker", 1).await.remove(0);
    let processes = [&batch, &service].map(|instance| Process::of(instance.pid.unwrap()));

    cluster.daemon_mut("n1").kill();
    std::fs::write(&go, "").unwrap();
    until("both to end by themselves", async || {
        if processes.iter().any(|process| process.is_alive()) {
            Err(format!("{processes:?}"))
        } else {
            Ok(())
        }
    })
    .await;
    cluster.daemon_mut("n1").start(&[]);

    until("the batch to be complete", async || {
        let seen = cluster.api.instance(&batch.id).await?;
        let complete = seen.actual == "stopped" && seen.exit.is_some_and(|exit| exit.code == Some(0));
        if complete && seen.restarts == 0 { Ok(()) } else { Err(of_service(&[seen])) }
    })
    .await;
    assert_eq!(cluster.api.service("report").await.unwrap().complete, 1);
    until("the service to be started again", async || {
        let seen = cluster.api.instance(&service.id).await?;
        let known = seen.exit.is_some_and(|exit| exit.code == Some(7));
        if seen.actual == "ready" && seen.restarts == 1 && known { Ok(()) } else { Err(of_service(&[seen])) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_is_killed_and_comes_back_finds_everything_as_it_was() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    let port = free_port();
    cluster.apply(&web(2, port, "migrate = { min_healthy_time = \"200ms\" }")).await;
    let before = pids(&cluster.api.until_ready("web", 2).await);
    let term = cluster.api.status().await.unwrap().coordinator.term;

    cluster.daemon_mut("control").kill();
    cluster.daemon_mut("control").start(&[]);
    cluster.until_up().await;
    assert_eq!(pids(&cluster.api.until_ready("web", 2).await), before);
    assert!(cluster.api.status().await.unwrap().coordinator.term > term);
    let traffic = cluster.load(port, 1).await;
    cluster.apply(&web(3, port, "migrate = { min_healthy_time = \"200ms\" }")).await;
    let after = pids(&cluster.api.until_ready("web", 3).await);
    assert!(before.iter().all(|(id, seen)| after.get(id) == Some(seen)), "{before:?} {after:?}");
    assert_eq!(traffic.end().await.failed, Vec::<String>::new());
}
