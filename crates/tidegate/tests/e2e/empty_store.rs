//! Absence is never an order: a coordinator that knows nothing stops nothing.

use crate::harness::{Cluster, Pace, free_port, of_service, until, web, with_program};

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_with_an_empty_store_stops_nothing_and_is_obeyed_only_after_adopt() {
    let mut cluster = Cluster::start(1, Pace::Steady).await;
    cluster.apply(&web(2, free_port(), "migrate = { min_healthy_time = \"200ms\" }")).await;
    cluster.api.until_ready("web", 2).await;
    let before: Vec<_> = cluster.daemon("n1").runs().into_iter().filter_map(|run| run.main).collect();
    assert_eq!(before.len(), 2);

    cluster.daemon_mut("control").kill();
    let data = cluster.daemon("control").data();
    std::fs::rename(data.join("store.redb"), data.join("store.redb.away")).unwrap();
    cluster.daemon_mut("control").start(&[]);
    let node = until("what runs to be shown as unclaimed", async || {
        let node = cluster.api.node("n1").await?;
        if node.unclaimed.len() == 2 { Ok(node) } else { Err(format!("{node:?}")) }
    })
    .await;
    assert!(node.reasons.iter().any(|reason| reason.code == "cluster_mismatch"), "{node:?}");
    let shown = cluster.run(&["node", "status", "n1"]).await.stdout;
    for word in ["unclaimed", "cluster_mismatch", "--adopt"] {
        assert!(shown.contains(word), "{shown}");
    }
    let job = with_program("job", "exec sleep 1000", "count = 3\nmigrate = { min_healthy_time = \"0s\" }");
    cluster.apply(&job).await;
    until("the job to wait for a node", async || {
        let service = cluster.api.service("job").await?;
        let told = service.reasons.iter().any(|reason| reason.code == "no_eligible_node");
        if told { Ok(()) } else { Err(format!("{service:?}")) }
    })
    .await;
    assert!(before.iter().all(|process| process.is_alive()), "nothing is stopped");

    cluster.daemon_mut("n1").kill();
    cluster.daemon_mut("n1").start(&["--adopt"]);
    let job = cluster.api.until_ready("job", 3).await;
    assert!(job.iter().all(|instance| instance.node == "n1"), "{}", of_service(&job));
    assert!(before.iter().all(|process| process.is_alive()), "nor by a node that was taken over");
    let node = cluster.api.node("n1").await.unwrap();
    assert_eq!(node.unclaimed.len(), 2, "{node:?}");
    assert!(node.reasons.iter().all(|reason| reason.code != "cluster_mismatch"), "{node:?}");
}
