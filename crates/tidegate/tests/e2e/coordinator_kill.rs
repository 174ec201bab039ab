//! Several coordinators over a real etcd.

use std::{collections::BTreeMap, time::Instant};

use reqwest::Method;
use rustix::process::Signal;
use server::view::InstanceView;
use store::testing::EtcdCluster;

use crate::harness::{Api, Cluster, Pace, free_port, process::Process, until, web, with_program};

const DAEMONS: [&str; 3] = ["n1", "n2", "n3"];

fn pids(instances: &[InstanceView]) -> BTreeMap<String, (Option<u32>, u32)> {
    instances.iter().map(|i| (i.id.clone(), (i.pid, i.restarts))).collect()
}

/// Waits until a daemon says that somebody other than `old` is the coordinator; returns who and its term.
async fn until_other_leads(api: &Api, old: &str) -> (String, u64) {
    until("another coordinator", async || {
        let leads = api.status().await?.coordinator;
        if leads.id == old { Err(leads.id) } else { Ok((leads.id, leads.term)) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_coordinator_is_killed_another_leads_and_instances_never_notice() {
    let etcd = EtcdCluster::start(3).await;
    let mut cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    let port = free_port();
    cluster.apply(&web(3, port, "migrate = { min_healthy_time = \"200ms\" }")).await;
    let before = pids(&cluster.api.until_ready("web", 3).await);
    let processes: Vec<_> = before.values().map(|(pid, _)| Process::of(pid.unwrap())).collect();
    let leads = cluster.api.status().await.unwrap().coordinator;
    let survivors: Vec<&str> = DAEMONS.into_iter().filter(|name| *name != leads.id).collect();

    let killed = Instant::now();
    cluster.daemon_mut(&leads.id).kill();
    let (next, term) = until_other_leads(&cluster.api_of(survivors[0]), &leads.id).await;
    eprintln!("{next} leads {:?} after the kill of {}", killed.elapsed(), leads.id);
    assert!(term > leads.term);
    for name in &survivors {
        let api = cluster.api_of(name);
        assert_eq!(until_other_leads(&api, &leads.id).await, (next.clone(), term), "all agree");
    }
    assert!(processes.iter().all(|process| process.is_alive()));
    let done =
        crate::harness::tidegate(cluster.dir(), cluster.api_of(survivors[1]).base(), &["scale", "web", "4"])
            .await;
    assert_eq!(done.code, 0, "API calls work again: {}", done.stderr);

    cluster.daemon_mut(&leads.id).start(&[]);
    let api = cluster.api_of(survivors[0]);
    let after = pids(&api.until_ready("web", 4).await);
    assert!(before.iter().all(|(id, seen)| after.get(id) == Some(seen)), "{before:?} {after:?}");
    let traffic = cluster.load(port, 1);
    until("the first edge to have sent to all four", async || {
        let back = cluster.api_of(&leads.id).until_ready("web", 4).await;
        if back.len() == 4 { Ok(()) } else { Err(String::new()) }
    })
    .await;
    assert_eq!(traffic.end().await.failed, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_slept_past_its_lease_writes_nothing_and_steps_down() {
    let etcd = EtcdCluster::start(3).await;
    let cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    let job = |name: &str| with_program(name, "exec sleep 1000", "migrate = { min_healthy_time = \"0s\" }");
    cluster.apply(&job("before")).await;
    cluster.api.until_ready("before", 1).await;
    let old = cluster.api.status().await.unwrap().coordinator;
    let awake = DAEMONS.into_iter().find(|name| *name != old.id).unwrap();

    cluster.daemon(&old.id).signal(Signal::STOP);
    // Both lie in its sockets until it wakes up: it believes to be in office when it reads them.
    let sleeper = cluster.api_of(&old.id);
    let body = r#"{"command": ["sleep", "1000"], "memory": "16MiB"}"#;
    let late = tokio::spawn(async move { sleeper.ask(Method::PUT, "/v1/services/late", Some(body)).await });
    let (next, term) = until_other_leads(&cluster.api_of(awake), &old.id).await;
    let path = cluster.file("during.toml", &job("during"));
    let done = crate::harness::tidegate(
        cluster.dir(),
        cluster.api_of(awake).base(),
        &["apply", path.to_str().unwrap()],
    )
    .await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    cluster.daemon(&old.id).signal(Signal::CONT);

    let answer = late.await.unwrap();
    let woken = cluster.api_of(&old.id);
    assert_eq!(
        until_other_leads(&woken, &old.id).await,
        (next.clone(), term),
        "it sees that it was replaced"
    );
    until("it to step down", async || {
        let log = cluster.daemon(&old.id).log_tail(200);
        if log.contains("out of office") { Ok(()) } else { Err(log) }
    })
    .await;
    let names = |api: Api| async move {
        until("the services", async || api.services().await)
            .await
            .into_iter()
            .map(|s| s.name)
            .collect::<Vec<_>>()
    };
    // What reached the old one while it slept was refused, or carried out by the new one: never by itself.
    let mut expected = vec!["before".to_owned(), "during".to_owned()];
    match answer {
        Ok((201, _)) => expected.push("late".to_owned()),
        Ok((503, _)) => {}
        other => panic!("{other:?}"),
    }
    for name in DAEMONS {
        assert_eq!(names(cluster.api_of(name)).await, expected, "as {name} sees it");
        assert_eq!(cluster.api_of(name).status().await.unwrap().coordinator.term, term);
    }
    cluster.api_of(awake).until_ready("during", 1).await;
    assert_eq!(cluster.api_of(awake).until_ready("before", 1).await[0].restarts, 0);
}
