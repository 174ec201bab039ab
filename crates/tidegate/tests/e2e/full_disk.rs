//! Disks without room: under a worker, and under a coordinator that keeps the state itself.

use reqwest::Method;

use crate::harness::{Cluster, Pace, Setup, disks::Disks, net::say_loudly, until, with_program};

fn disks() -> Option<Disks> {
    let made = Disks::make(1);
    made.inspect_err(|why| say_loudly(&format!("SKIPPED: nothing can be mounted here: {why}"))).ok()
}

fn idle(count: u32) -> String {
    with_program("idle", "exec sleep 100000", &format!("count = {count}"))
}

#[tokio::test]
async fn a_daemon_comes_back_on_a_full_disk_and_what_runs_there_runs_on() {
    let Some(disks) = disks() else { return };
    let mut cluster = Cluster::empty(Pace::Steady).await;
    cluster.add(Setup::control());
    cluster.add(Setup { data: Some(disks.data(1)), ..Setup::worker("n1") });
    cluster.until_up().await;
    cluster.apply(&idle(1)).await;
    let before = cluster.api.until_ready("idle", 1).await;
    disks.fill(1);
    cluster.api.until_health("n1", "degraded").await;
    for _ in 0..2 {
        cluster.daemon_mut("n1").kill();
        cluster.daemon_mut("n1").start(&[]);
        let lives = cluster.api.node("n1").await.unwrap().process_epoch;
        until("it to be back", async || {
            let node = cluster.api.node("n1").await?;
            let back = node.connected && node.health == "degraded" && node.process_epoch >= lives;
            if back { Ok(()) } else { Err(format!("{node:?}")) }
        })
        .await;
    }
    assert!(disks.is_full(1), "nobody made room");
    let after = cluster.api.until_ready("idle", 1).await;
    assert_eq!((&after[0].id, after[0].pid), (&before[0].id, before[0].pid), "it runs on");
    cluster.add(Setup::worker("n2"));
    cluster.api.until_health("n2", "up").await;
    cluster.apply(&idle(3)).await;
    let all = cluster.api.until_ready("idle", 3).await;
    assert_eq!(
        all.iter().filter(|instance| instance.node == "n1").count(),
        1,
        "nothing is placed there: {all:?}"
    );
    disks.free(1);
    cluster.api.until_health("n1", "up").await;
}

#[tokio::test]
async fn a_coordinator_whose_disk_is_full_says_so_loses_nothing_and_goes_on_when_there_is_room() {
    let Some(disks) = disks() else { return };
    let mut cluster = Cluster::empty(Pace::Steady).await;
    cluster.add(Setup { data: Some(disks.data(1)), ..Setup::control() });
    cluster.add(Setup::worker("n1"));
    cluster.until_up().await;
    cluster.apply(&idle(2)).await;
    let before = cluster.api.until_ready("idle", 2).await;
    disks.fill(1);
    // The state file has some room of its own. Sooner or later something does not fit.
    let mut taken = 0;
    until("something not to be taken", async || {
        let name = format!("more-{taken}");
        let large = "x".repeat(30_000);
        let file = serde_json::json!({
            "name": name, "count": 0, "command": ["true"], "memory": "8MiB", "env": {"X": large}
        });
        let path = format!("/v1/services/{name}");
        match cluster.api.ask(Method::PUT, &path, Some(&file.to_string())).await {
            Ok((200..=299, _)) => {}
            Ok((503, _)) | Err(_) => return Ok(()),
            other => panic!("{other:?}"),
        }
        taken += 1;
        Err(format!("{taken} were taken"))
    })
    .await;
    disks.free(1);
    until("there to be room again", async || {
        let body = r#"{"count": 3}"#;
        match cluster.api.ask(Method::PUT, "/v1/services/idle/count", Some(body)).await? {
            (200 | 202, _) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let after = cluster.api.until_ready("idle", 3).await;
    for instance in &before {
        let kept = after.iter().find(|it| it.id == instance.id).expect("it is still known");
        assert_eq!(kept.pid, instance.pid, "it runs on");
    }
    let services = cluster.api.services().await.unwrap();
    for number in 0..taken {
        assert!(
            services.iter().any(|service| service.name == format!("more-{number}")),
            "{number} was taken"
        );
    }
}
