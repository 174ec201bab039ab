//! Several coordinators over a real etcd.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Instant,
};

use reqwest::Method;
use rustix::process::Signal;
use server::view::InstanceView;
use store::testing::EtcdCluster;
use tokio_util::sync::CancellationToken;

use crate::harness::{Api, Cluster, Pace, free_port, process::Process, tidegate, until, web, with_program};

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
    let done = tidegate(cluster.dir(), cluster.api_of(survivors[1]).base(), &["scale", "web", "4"]).await;
    assert_eq!(done.code, 0, "API calls work again: {}", done.stderr);

    cluster.daemon_mut(&leads.id).start(&[]);
    let api = cluster.api_of(survivors[0]);
    let after = pids(&api.until_ready("web", 4).await);
    assert!(before.iter().all(|(id, seen)| after.get(id) == Some(seen)), "{before:?} {after:?}");
    let traffic = cluster.load(port, 1).await;
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

    cluster.daemon(&old.id).suspend().await;
    // Both lie in its sockets until it wakes up: it believes to be in office when it reads them.
    let sleeper = cluster.api_of(&old.id);
    let body = r#"{"command": ["sleep", "1000"], "memory": "16MiB"}"#;
    let late = tokio::spawn(async move { sleeper.ask(Method::PUT, "/v1/services/late", Some(body)).await });
    let (next, term) = until_other_leads(&cluster.api_of(awake), &old.id).await;
    let path = cluster.file("during.toml", &job("during"));
    let done =
        tidegate(cluster.dir(), cluster.api_of(awake).base(), &["apply", path.to_str().unwrap()]).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn edges_keep_serving_while_coordinators_and_etcd_go_and_come_back() {
    let mut etcd = EtcdCluster::start(3).await;
    let mut cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    let port = free_port();
    cluster.apply(&web(3, port, "migrate = { min_healthy_time = \"200ms\" }")).await;
    let before = pids(&cluster.api.until_ready("web", 3).await);
    let leads = cluster.api.status().await.unwrap().coordinator;
    let number = DAEMONS.iter().position(|name| *name != leads.id).unwrap();
    let (here, edge) = (DAEMONS[number], [127, 0, 0, number as u8 + 1]);
    let traffic = cluster.load_at((edge, port).into(), 2).await;

    cluster.daemon_mut(&leads.id).kill();
    until_other_leads(&cluster.api_of(here), &leads.id).await;
    cluster.daemon_mut(&leads.id).start(&[]);
    cluster.api_of(here).until_health(&leads.id, "up").await;
    until("it to be back", async || cluster.api_of(&leads.id).status().await).await;
    let leader = etcd.leader().await;
    etcd.kill(leader);
    until("the API to work with two members", async || cluster.api_of(here).status().await).await;
    etcd.restart(leader).await;
    for member in 0..3 {
        etcd.pause(member);
    }
    until("nobody to lead", async || {
        match cluster.api_of(here).ask(Method::GET, "/v1/status", None).await? {
            (503, body) if body["error"]["code"] == "no_coordinator" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for member in 0..3 {
        etcd.resume(member);
    }
    let api = cluster.api_of(here);
    until("the API to work again", async || api.status().await).await;
    assert_eq!(pids(&api.until_ready("web", 3).await), before, "instances never noticed");
    let report = traffic.end().await;
    assert_eq!((report.failed_count, report.failed), (0, vec![]), "of {} requests", report.requests);
    let done = tidegate(cluster.dir(), api.base(), &["scale", "web", "4"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    api.until_ready("web", 4).await;
    for id in before.keys() {
        let logs = tidegate(cluster.dir(), api.base(), &["instance", "logs", id]).await;
        assert!(logs.stdout.contains("serving on port"), "any daemon shows any log: {}", logs.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_that_are_restarted_one_after_the_other_fail_no_request_of_another_edge() {
    let etcd = EtcdCluster::start(1).await;
    let mut cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    let port = free_port();
    cluster.apply(&web(3, port, "migrate = { min_healthy_time = \"200ms\" }")).await;
    let before = pids(&cluster.api.until_ready("web", 3).await);
    let traffic = cluster.load(port, 2).await;
    for name in ["n2", "n3"] {
        assert_eq!(cluster.daemon_mut(name).terminate().await.code(), Some(0));
        cluster.daemon_mut(name).start(&[]);
        until(&format!("{name} to be back"), async || {
            let seen = cluster.api.node(name).await?;
            if seen.process_epoch == 2 && seen.health == "up" { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    }
    let report = traffic.end().await;
    assert_eq!((report.failed_count, report.failed), (0, vec![]), "of {} requests", report.requests);
    // The last one may be the one that led: it hands over before it goes.
    assert_eq!(cluster.daemon_mut("n1").terminate().await.code(), Some(0));
    let (_, term) = until_other_leads(&cluster.api_of("n2"), "n1").await;
    assert!(term >= 1);
    cluster.daemon_mut("n1").start(&[]);
    assert_eq!(pids(&cluster.api_of("n2").until_ready("web", 3).await), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_died_holds_up_a_stop_only_until_its_lease_is_over() {
    let etcd = EtcdCluster::start(1).await;
    let mut cluster = Cluster::start_over_etcd(3, Pace::Quick, &etcd.endpoints()).await;
    let at_once = "migrate = { min_healthy_time = \"0s\" }";
    cluster.apply(&web(1, free_port(), at_once)).await;
    let only = cluster.api.until_ready("web", 1).await.remove(0);
    let leads = cluster.api.status().await.unwrap().coordinator.id;
    let edge = DAEMONS.into_iter().find(|name| *name != leads && *name != only.node).unwrap();
    cluster.daemon_mut(edge).kill();
    let api = cluster.api_of(&leads);
    let stopped = tidegate(cluster.dir(), api.base(), &["instance", "stop", &only.id]).await;
    assert_eq!(stopped.code, 0, "{}", stopped.stderr);
    until("it to be stopped all the same", async || {
        let seen = api.instance(&only.id).await?;
        if seen.actual == "stopped" { Ok(()) } else { Err(seen.actual) }
    })
    .await;
    assert_eq!(api.node(edge).await.unwrap().health, "offline", "not before its lease was over");
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_under_a_wrong_prefix_stop_nothing_and_find_everything_under_the_right_one() {
    let etcd = EtcdCluster::start(1).await;
    let mut cluster = Cluster::start_over_etcd(2, Pace::Steady, &etcd.endpoints()).await;
    cluster.apply(&web(2, free_port(), "migrate = { min_healthy_time = \"200ms\" }")).await;
    let before = pids(&cluster.api.until_ready("web", 2).await);
    let processes: Vec<_> = before.values().map(|(pid, _)| Process::of(pid.unwrap())).collect();
    let names = ["n1", "n2"];
    let configs: Vec<_> = names.iter().map(|name| cluster.daemon(name).config().to_owned()).collect();
    let right: Vec<String> = configs.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let wrong =
        right.iter().map(|text| text.replace("kind = \"etcd\"", "kind = \"etcd\"\nprefix = \"/other\""));
    for (texts, is_right) in [(wrong.collect::<Vec<_>>(), false), (right.clone(), true)] {
        names.iter().for_each(|name| cluster.daemon_mut(name).kill());
        configs.iter().zip(&texts).for_each(|(path, text)| std::fs::write(path, text).unwrap());
        names.iter().for_each(|name| cluster.daemon_mut(name).start(&[]));
        until("both to be known for what they are", async || {
            let nodes = cluster.api.nodes().await?;
            let told = |code: &str| nodes.iter().filter(|n| n.reasons.iter().any(|r| r.code == code)).count();
            let unclaimed: usize = nodes.iter().map(|node| node.unclaimed.len()).sum();
            let up = nodes.iter().filter(|node| node.connected).count();
            let expected = if is_right { (2, 0, 0) } else { (2, 2, 2) };
            let seen = (up, told("cluster_mismatch"), unclaimed);
            if seen == expected { Ok(()) } else { Err(format!("{seen:?} {nodes:?}")) }
        })
        .await;
        assert!(processes.iter().all(|process| process.is_alive()));
    }
    assert_eq!(pids(&cluster.api.until_ready("web", 2).await), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_coordinators_and_etcds_leader_are_killed() {
    let mut etcd = EtcdCluster::start(3).await;
    let mut cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    let apis: Vec<Api> = DAEMONS.iter().map(|name| cluster.api_of(name)).collect();
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    let (done, over) = (acknowledged.clone(), CancellationToken::new());
    let stop = over.clone();
    let writer = tokio::spawn(async move {
        let body = r#"{"command": ["true"], "memory": "16MiB", "count": 0}"#;
        for number in 0.. {
            let name = format!("s{number:04}");
            let api = &apis[number % apis.len()];
            let answer = api.ask(Method::PUT, &format!("/v1/services/{name}"), Some(body)).await;
            if let Ok((200 | 201, _)) = answer {
                done.lock().unwrap().insert(name);
            }
            if stop.is_cancelled() {
                return number;
            }
        }
        0
    });
    let until_more = async |by: usize| {
        let before = acknowledged.lock().unwrap().len();
        until("more to be acknowledged", async || {
            let now = acknowledged.lock().unwrap().len();
            if now >= before + by { Ok(()) } else { Err(format!("{now} of {}", before + by)) }
        })
        .await;
    };
    until_more(20).await;
    let leader = etcd.leader().await;
    etcd.kill(leader);
    until_more(20).await;
    let leads = until("a coordinator", async || cluster.api_of("n1").status().await).await.coordinator.id;
    cluster.daemon_mut(&leads).kill();
    until_more(20).await;
    etcd.restart(leader).await;
    cluster.daemon_mut(&leads).start(&[]);
    until_more(20).await;
    over.cancel();
    let tried = writer.await.unwrap();
    let there = until("the services", async || cluster.api_of("n2").services().await).await;
    let there: BTreeSet<String> = there.into_iter().map(|service| service.name).collect();
    let acknowledged = acknowledged.lock().unwrap().clone();
    let lost: Vec<_> = acknowledged.difference(&there).collect();
    assert!(lost.is_empty(), "{lost:?} of {} acknowledged, {tried} tried", acknowledged.len());
}
