//! Many things at once.

use std::collections::BTreeSet;

use crate::harness::{Cluster, Pace, free_port, of_service, process, until, web, with_program};

/// Every process that carries the mark of an instance is one that the cluster knows.
async fn assert_no_stray(cluster: &Cluster, services: &[&str]) {
    until("no stray process to be left", async || {
        let mut known = BTreeSet::new();
        for service in services {
            known.extend(cluster.api.instances(service).await?.into_iter().filter_map(|i| i.pid));
        }
        let marked = process::marked(cluster.dir());
        let running: BTreeSet<u32> = marked.iter().map(|(pid, _)| *pid).collect();
        if running == known { Ok(()) } else { Err(format!("{marked:?} run, {known:?} are known")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_on_the_heels_of_each_other_while_daemons_die_fail_no_request() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    let port = free_port();
    let release = |number: u32| {
        let more =
            "migrate = { max_parallel = 2, min_healthy_time = \"200ms\" }\nupdate = { max_parallel = 2 }";
        web(3, port, &format!("{more}\nenv = {{ NUMBER = \"{number}\" }}"))
    };
    cluster.apply(&release(0)).await;
    cluster.api.until_ready("web", 3).await;
    let traffic = cluster.load(port, 3).await;
    for number in 1..=6 {
        cluster.apply(&release(number)).await;
        let victim = if number % 2 == 0 { "n1" } else { "n2" };
        cluster.daemon_mut(victim).kill();
        cluster.daemon_mut(victim).start(&[]);
    }
    let last = cluster.api.until_ready("web", 3).await;
    assert!(last.iter().all(|instance| instance.release == 7), "{}", of_service(&last));
    let report = traffic.end().await;
    assert_eq!((report.failed_count, report.failed), (0, vec![]), "of {} requests", report.requests);
    assert_no_stray(&cluster, &["web"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_that_die_while_they_start_and_stop_instances_leave_no_stray() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    let job = |count: u32| {
        with_program(
            "job",
            "exec sleep 1000",
            &format!("count = {count}\nmigrate = {{ min_healthy_time = \"0s\" }}"),
        )
    };
    for round in 0..5 {
        cluster.apply(&job(8)).await;
        // At whatever it is doing.
        tokio::time::sleep(std::time::Duration::from_millis(40 * round)).await;
        cluster.daemon_mut("n1").kill();
        cluster.apply(&job(1)).await;
        cluster.daemon_mut("n1").start(&[]);
        tokio::time::sleep(std::time::Duration::from_millis(40 * round)).await;
        cluster.daemon_mut("n2").kill();
        cluster.daemon_mut("n2").start(&[]);
    }
    cluster.apply(&job(4)).await;
    cluster.api.until_ready("job", 4).await;
    assert_no_stray(&cluster, &["job"]).await;
    let doctor = cluster.run(&["doctor"]).await;
    assert_eq!(doctor.code, 0, "{}{}", doctor.stdout, doctor.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_instances_come_and_go() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let more = "count = 100\nmigrate = { min_healthy_time = \"0s\" }";
    cluster.apply(&with_program("many", "exec sleep 1000", more).replace("32MiB", "4MiB")).await;
    let all = cluster.api.until_ready("many", 100).await;
    assert_eq!(all.iter().filter(|instance| instance.node == "n1").count(), 50, "spread over the nodes");
    assert_no_stray(&cluster, &["many"]).await;
    assert_eq!(cluster.run(&["remove", "service/many"]).await.code, 0);
    until("all to be gone", async || {
        let marked = process::marked(cluster.dir());
        if marked.is_empty() { Ok(()) } else { Err(format!("{} are left", marked.len())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_power_cut_everything_runs_again_and_what_is_done_stays_done() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    let at_once = "migrate = { min_healthy_time = \"0s\" }";
    let count = "echo ran >> $VOLUME/runs; exec sleep 1000";
    let (job, batch) =
        (with_program("job", "exec sleep 1000", at_once), with_program("batch", "true", "kind = \"batch\""));
    let store =
        with_program("store", count, &format!("count = 2\nvolume = {{ name = \"data\" }}\n{at_once}"));
    cluster.apply(&format!("{job}{batch}{store}")).await;
    let before = cluster.api.until_ready("store", 2).await;
    cluster.api.until_ready("job", 1).await;
    until("the batch to be complete", async || {
        let service = cluster.api.service("batch").await?;
        if service.complete == 1 { Ok(()) } else { Err(format!("{service:?}")) }
    })
    .await;
    let batch = cluster.api.instances("batch").await.unwrap();
    let names = ["control", "n1", "n2"];
    names.iter().for_each(|name| cluster.daemon_mut(name).kill());
    names.iter().for_each(|name| cluster.lose(name));
    names.iter().for_each(|name| cluster.daemon_mut(name).start(&[]));
    cluster.until_up().await;
    cluster.api.until_ready("job", 1).await;
    let after = cluster.api.until_ready("store", 2).await;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!((&new.id, &new.node), (&old.id, &old.node), "in its place, on its data");
        let runs =
            cluster.daemon(&new.node).data().join(format!("volumes/store-data-{}/runs", new.slot.unwrap()));
        assert_eq!(std::fs::read_to_string(runs).unwrap(), "ran\nran\n");
    }
    assert_eq!(cluster.api.instances("batch").await.unwrap(), batch, "the batch is not run again");
    assert_no_stray(&cluster, &["job", "store"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_at_once_leave_what_one_of_them_asked_for() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let more = "migrate = { min_healthy_time = \"0s\" }";
    cluster.apply(&with_program("job", "exec sleep 1000", more).replace("32MiB", "4MiB")).await;
    let clients = (1..=40).map(|number| {
        let api = cluster.api_of(["control", "n1", "n2"][number % 3]);
        tokio::spawn(async move {
            let body = format!("{{\"count\": {}}}", number % 10);
            api.ask(reqwest::Method::PUT, "/v1/services/job/count", Some(&body)).await
        })
    });
    for client in clients.collect::<Vec<_>>() {
        let (status, body) = client.await.unwrap().unwrap();
        assert_eq!(status, 200, "{body}");
    }
    let wanted = cluster.api.service("job").await.unwrap().count as usize;
    assert!(wanted < 10);
    cluster.api.until_ready("job", wanted).await;
    assert_no_stray(&cluster, &["job"]).await;
}
