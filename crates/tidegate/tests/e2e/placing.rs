//! What cannot be placed says why, and is placed as soon as it can be.

use crate::harness::{Cluster, Pace, Setup, of_service, until, with_program};

const AT_ONCE: &str = "migrate = { min_healthy_time = \"0s\" }";

#[tokio::test(flavor = "multi_thread")]
async fn what_finds_no_room_says_how_much_is_missing_and_is_placed_when_a_node_joins() {
    let mut cluster = Cluster::start(1, Pace::Steady).await;
    let script = "exec sleep 1000";
    let big = with_program("big", script, &format!("count = 2\n{AT_ONCE}")).replace("32MiB", "700MiB");
    let picky = with_program("picky", script, &format!("constraints = {{ rack = \"r9\" }}\n{AT_ONCE}"));
    cluster.apply(&format!("{big}{picky}")).await;
    for (service, code, number) in
        [("big", "no_capacity_memory", "376MiB"), ("picky", "constraint_unsatisfied", "")]
    {
        until(&format!("{service} to say {code}"), async || {
            let seen = cluster.api.service(service).await?;
            let told = seen.reasons.iter().find(|reason| reason.code == code);
            match told.filter(|reason| reason.message.contains(number)) {
                Some(_) => Ok(()),
                None => Err(format!("{seen:?}")),
            }
        })
        .await;
    }
    let shown = cluster.run(&["status"]).await;
    assert!(
        shown.stdout.contains("no_capacity_memory") && shown.stdout.contains("376MiB"),
        "{}",
        shown.stdout
    );

    cluster.add(Setup { labels: "rack = \"r9\"", ..Setup::worker("n2") });
    let big = cluster.api.until_ready("big", 2).await;
    assert_ne!(big[0].node, big[1].node, "{}", of_service(&big));
    assert_eq!(cluster.api.until_ready("picky", 1).await[0].node, "n2");
    let service = cluster.api.service("big").await.unwrap();
    assert!(service.reasons.is_empty() && service.state == "ok", "{service:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_node_is_left_at_once_and_takes_work_again_when_enabled() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let script = "exec sleep 1000";
    let agent = with_program("agent", script, &format!("kind = \"system\"\n{AT_ONCE}"));
    cluster.apply(&format!("{}{agent}", with_program("job", script, &format!("count = 2\n{AT_ONCE}")))).await;
    cluster.api.until_ready("job", 2).await;
    cluster.api.until_ready("agent", 2).await;
    let done = cluster.run(&["node", "disable", "n1"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    let left = cluster.api.until_ready("job", 2).await;
    assert!(left.iter().all(|instance| instance.node == "n2"), "{}", of_service(&left));
    let done = cluster.run(&["node", "enable", "n1"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    cluster.api.until_ready("agent", 2).await;
    let done = cluster.run(&["scale", "service/job", "4"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    let spread = cluster.api.until_ready("job", 4).await;
    assert_eq!(spread.iter().filter(|instance| instance.node == "n1").count(), 2, "{}", of_service(&spread));
}
