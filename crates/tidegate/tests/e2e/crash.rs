//! Instances that end without being asked to.

use rustix::process::Signal;

use crate::harness::{Cluster, Pace, free_port, of_service, process::Process, until, web, with_program};

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_killed_is_started_again_in_its_place() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    cluster.apply(&web(1, free_port(), "migrate = { min_healthy_time = \"200ms\" }")).await;
    let before = cluster.api.until_ready("web", 1).await.remove(0);
    for killed in 1..=2 {
        let now = cluster.api.until_ready("web", 1).await.remove(0);
        Process::of(now.pid.unwrap()).signal(Signal::KILL);
        let after = until("it to be started again", async || {
            let seen = cluster.api.instance(&before.id).await?;
            if seen.actual == "ready" && seen.restarts == killed {
                Ok(seen)
            } else {
                Err(of_service(&[seen]))
            }
        })
        .await;
        assert_ne!(after.pid, now.pid);
        assert_eq!(after.exit.unwrap().signal, Some(9));
    }
    let history = cluster.api.instances("web").await.unwrap();
    assert_eq!(history.len(), 1, "no other took its place: {}", of_service(&history));
    assert_eq!(cluster.api.service("web").await.unwrap().rollout.state, "complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_always_crashes_is_given_up_and_tried_elsewhere() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    cluster.apply(&with_program("broken", "echo on my way; exit 3", "")).await;
    until("it to be tried on another node", async || {
        let all = cluster.api.instances("broken").await?;
        let given_up = all.iter().find(|i| i.actual == "failed" && i.reasons[0].code == "crash_looping");
        let other = given_up.and_then(|old| all.iter().find(|i| i.id != old.id && i.node != old.node));
        match given_up.zip(other) {
            Some((old, _)) => {
                assert_eq!(old.exit.unwrap().code, Some(3));
                assert_eq!(old.restarts, 5, "with a pause before each");
                Ok(())
            }
            None => Err(of_service(&all)),
        }
    })
    .await;
    let service = cluster.api.service("broken").await.unwrap();
    assert_ne!(service.state, "ok");
    let shown = cluster.run(&["instance", "list", "--service", "broken"]).await;
    assert!(shown.stdout.contains("crash_looping"), "{}", shown.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_does_not_exist_is_told_on_the_instance_and_hurts_nobody() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let steady = with_program("steady", "exec sleep 1000", "migrate = { min_healthy_time = \"0s\" }");
    let missing = "[[service]]\nname = \"missing\"\ncommand = [\"/nowhere/program\"]\nmemory = \"16MiB\"\n";
    cluster.apply(&format!("{steady}{missing}")).await;
    let pid = cluster.api.until_ready("steady", 1).await[0].pid;
    until("the failure to be told", async || {
        let all = cluster.api.instances("missing").await?;
        let told =
            all.iter().flat_map(|instance| &instance.reasons).find(|reason| reason.code == "start_failed");
        match told {
            Some(reason) if reason.message.contains("/nowhere/program") => Ok(()),
            _ => Err(of_service(&all)),
        }
    })
    .await;
    assert_eq!(cluster.api.node("n1").await.unwrap().process_epoch, 1, "the daemon lives");
    assert_eq!(cluster.api.until_ready("steady", 1).await[0].pid, pid);
    // A better file heals it.
    cluster
        .apply(&format!("{steady}{}", missing.replace("[\"/nowhere/program\"]", "[\"sleep\", \"1000\"]")))
        .await;
    until("the better one to run", async || {
        let service = cluster.api.service("missing").await?;
        if service.ready == 1 { Ok(()) } else { Err(format!("{service:?}")) }
    })
    .await;
}
