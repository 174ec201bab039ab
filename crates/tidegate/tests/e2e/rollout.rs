//! Releases, counts and stops while people use the service.

use std::collections::BTreeSet;

use server::view::InstanceView;

use crate::harness::{Cluster, Pace, free_port, of_service, until, web};

const QUICK: &str =
    "migrate = { max_parallel = 2, min_healthy_time = \"200ms\" }\nstop = { grace = \"10s\" }";

fn ids(instances: &[InstanceView]) -> BTreeSet<String> {
    instances.iter().map(|instance| instance.id.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_a_scaling_and_a_stop_under_load_fail_no_request() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let port = free_port();
    let release = |count, mode: &str| {
        web(count, port, &format!("{QUICK}\nupdate = {{ max_parallel = 2 }}\nenv = {{ MODE = \"{mode}\" }}"))
    };
    cluster.apply(&release(4, "one")).await;
    let first = ids(&cluster.api.until_ready("web", 4).await);
    let traffic = cluster.load(port, 4).await;

    assert_eq!(cluster.apply(&release(4, "two")).await, "web updated to release 2\n");
    let second = cluster.api.until_ready("web", 4).await;
    assert!(second.iter().all(|instance| instance.release == 2), "{}", of_service(&second));
    assert!(first.is_disjoint(&ids(&second)));

    assert_eq!(cluster.apply(&release(6, "two")).await, "web scaled 4 -> 6\n");
    let more = ids(&cluster.api.until_ready("web", 6).await);
    assert!(more.is_superset(&ids(&second)), "scaling replaces nobody");
    let done = cluster.run(&["scale", "web", "2"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    let two = cluster.api.until_ready("web", 2).await;

    let done = cluster.run(&["instance", "stop", &two[0].id]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    until("the stopped one to be replaced", async || {
        let all = cluster.api.instances("web").await?;
        let stopped = all.iter().any(|i| i.id == two[0].id && i.actual == "stopped");
        let ready = all.iter().filter(|i| i.desired == "running" && i.actual == "ready").count();
        if stopped && ready == 2 { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;

    let report = traffic.end().await;
    assert_eq!((report.failed_count, report.failed), (0, vec![]), "of {} requests", report.requests);
    let seen: BTreeSet<String> = report.by_instance.into_keys().collect();
    assert!(!seen.is_disjoint(&first), "the old release was seen: {seen:?}");
    assert!(seen.is_superset(&ids(&second)), "the new release was seen: {seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_never_gets_healthy_fails_with_its_reason_and_leaves_the_old_one_running() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let port = free_port();
    let release =
        |more: &str| web(2, port, &format!("{QUICK}\nupdate = {{ healthy_deadline = \"3s\" }}\n{more}"));
    cluster.apply(&release("")).await;
    let old = cluster.api.until_ready("web", 2).await;
    let traffic = cluster.load(port, 1).await;

    let bad = release("env = { READY_AFTER_MS = \"3600000\" }");
    cluster.apply(&bad).await;
    let failed = until("the release to fail", async || {
        let service = cluster.api.service("web").await?;
        if service.rollout.state == "failed" { Ok(service) } else { Err(format!("{:?}", service.rollout)) }
    })
    .await;
    assert_eq!(failed.rollout.reason.as_deref(), Some("unhealthy"), "{:?}", failed.rollout);
    assert_eq!((failed.release, failed.rollout.healthy_release), (2, Some(1)));
    until("nothing of it to be left", async || {
        let all = cluster.api.instances("web").await?;
        let on: Vec<_> = all.iter().filter(|i| !matches!(i.actual.as_str(), "stopped" | "failed")).collect();
        if on.len() == 2 && on.iter().all(|i| i.release == 1) { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;
    let now = cluster.api.instances("web").await.unwrap();
    for before in &old {
        let after = now.iter().find(|instance| instance.id == before.id).unwrap();
        assert_eq!((after.pid, after.actual.as_str()), (before.pid, "ready"));
    }
    assert!(cluster.run(&["status", "web"]).await.stdout.contains("unhealthy"));
    let waited = cluster.run(&["apply", "--wait", cluster.file("bad.toml", &bad).to_str().unwrap()]).await;
    assert_eq!(waited.code, 3, "ended otherwise than asked: {}{}", waited.stdout, waited.stderr);
    assert_eq!(waited.stdout, "web unchanged\n");

    assert_eq!(cluster.apply(&release("env = { MODE = \"good\" }")).await, "web updated to release 3\n");
    let good = cluster.api.until_ready("web", 2).await;
    assert!(good.iter().all(|instance| instance.release == 3));
    let report = traffic.end().await;
    assert_eq!((report.failed_count, report.failed), (0, vec![]));

    let before = cluster.api.instances("web").await.unwrap();
    assert_eq!(cluster.apply(&release("env = { MODE = \"good\" }")).await, "web unchanged\n");
    assert_eq!(cluster.api.instances("web").await.unwrap(), before, "the same file changes nothing");
}
