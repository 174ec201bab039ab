//! Memory is a hard cap.

use crate::harness::{Cluster, Pace, of_service, until, with_program};

#[tokio::test(flavor = "multi_thread")]
async fn a_process_over_its_memory_is_killed_and_that_is_what_is_said() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let node = cluster.api.node("n1").await.unwrap();
    if node.memory_caps == "none" {
        assert!(node.reasons.iter().any(|reason| reason.code == "memory_uncapped"), "{node:?}");
        eprintln!("SKIPPED: memory is not capped on this machine: {:?}", node.reasons);
        return;
    }
    // Reads a line that never ends.
    let greedy = with_program("greedy", "exec tail /dev/zero", "").replace("32MiB", "24MiB");
    let modest = with_program("modest", "exec sleep 1000", "migrate = { min_healthy_time = \"0s\" }");
    cluster.apply(&format!("{greedy}{modest}")).await;
    let seen = until("the kill to be told", async || {
        let all = cluster.api.instances("greedy").await?;
        let told = all.iter().find(|i| i.reasons.iter().any(|reason| reason.code == "memory_exceeded"));
        told.cloned().ok_or_else(|| of_service(&all))
    })
    .await;
    assert_eq!(seen.exit.unwrap().signal, Some(9), "{}", of_service(&[seen]));
    assert_eq!(cluster.api.until_ready("modest", 1).await[0].restarts, 0, "its neighbour did not notice");
}
