//! Nodes that are drained, with whatever can happen to them and to the cluster meanwhile.

use std::{collections::BTreeSet, net::Ipv4Addr, path::Path};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::Value;
use server::view::{BackendsView, DrainStatusView, InstanceView, NodeView};
use store::testing::EtcdCluster;

use crate::harness::{
    Api, Cluster, Pace, Setup, TIDEGATE, Talk, free_port, of_service, process::Process, tidegate, until, web,
    with_program,
};

/// A replacement counts as soon as it is seen well.
const AT_ONCE: &str = "migrate = { min_healthy_time = \"200ms\" }";

fn ledger() -> String {
    format!(
        "[[service]]\nname = \"ledger\"\ncommand = [{TIDEGATE:?}, \"demo\", \"store\"]\nmemory = \"32MiB\"\n\
         ports = [\"http\"]\ncheck = {{ http = \"/ready\", port = \"http\", interval = \"200ms\", timeout = \"2s\" }}\n\
         volume = {{ name = \"data\" }}\nmigrate = {{ min_healthy_time = \"200ms\" }}\n"
    )
}

/// Writes its name into `starts` when it starts and into `stops` when it is told to stop.
fn scribe(dir: &Path, more: &str) -> String {
    let dir = dir.display();
    let script = format!(
        "trap 'echo $INSTANCE >> {dir}/stops; exit 0' TERM; echo $INSTANCE >> {dir}/starts; \
         while :; do sleep 0.1; done"
    );
    with_program("scribe", &script, more)
}

pub fn written(dir: &Path, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

pub fn names(instances: &[&InstanceView]) -> Vec<String> {
    let names: BTreeSet<String> = instances.iter().map(|instance| instance.id.clone()).collect();
    names.into_iter().collect()
}

pub fn on<'a>(instances: &'a [InstanceView], node: &str) -> Vec<&'a InstanceView> {
    instances.iter().filter(|instance| instance.node == node).collect()
}

fn process_of(instance: &InstanceView) -> Process {
    Process::of(instance.pid.expect("it runs"))
}

/// The present or last drain of a node.
pub async fn drain_of(api: &Api, node: &str) -> Result<DrainStatusView, String> {
    match api.ask(Method::GET, &format!("/v1/nodes/{node}/drain"), None).await? {
        (200, body) => serde_json::from_value(body).map_err(|error| error.to_string()),
        other => Err(format!("{other:?}")),
    }
}

pub async fn until_drain(
    api: &Api,
    node: &str,
    what: &str,
    is: impl Fn(&DrainStatusView) -> bool,
) -> DrainStatusView {
    until(&format!("the drain of {node} to be {what}"), async || {
        let seen = drain_of(api, node).await?;
        if is(&seen) { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
    .await
}

async fn until_node(api: &Api, node: &str, state: &str) -> NodeView {
    until(&format!("{node} to be {state}"), async || {
        let seen = api.node(node).await?;
        if seen.state == state { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
    .await
}

/// Those that take traffic.
async fn backends(api: &Api, service: &str) -> Result<BTreeSet<String>, String> {
    match api.ask(Method::GET, &format!("/v1/services/{service}/backends"), None).await? {
        (200, body) => {
            let set: BackendsView = serde_json::from_value(body).map_err(|error| error.to_string())?;
            Ok(set.items.into_iter().map(|backend| backend.instance).collect())
        }
        other => Err(format!("{other:?}")),
    }
}

async fn succeeds(cluster: &Cluster, args: &[&str]) {
    let done = cluster.run(args).await;
    assert_eq!(done.code, 0, "{args:?}: {}{}", done.stderr, done.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_gets_nothing_new_and_its_instances_are_replaced_and_stopped() {
    let cluster = Cluster::start(3, Pace::Steady).await;
    cluster.apply(&web(6, free_port(), AT_ONCE)).await;
    let before = cluster.api.until_ready("web", 6).await;
    let leaving = on(&before, "n1");
    assert_eq!(leaving.len(), 2, "{}", of_service(&before));
    let processes: Vec<Process> = leaving.iter().map(|instance| process_of(instance)).collect();

    let done = cluster.run(&["node", "drain", "n1", "--message", "kernel update"]).await;
    assert_eq!(done.code, 0, "{}{}", done.stderr, done.stdout);
    // The command ended: no more waiting from here on.
    assert!(processes.iter().all(|process| !process.is_alive()));
    for old in &leaving {
        let seen = cluster.api.instance(&old.id).await.unwrap();
        assert_eq!((seen.desired.as_str(), seen.actual.as_str()), ("stopped", "stopped"), "{seen:?}");
    }
    let ended = drain_of(&cluster.api, "n1").await.unwrap();
    assert_eq!((ended.state.as_str(), ended.total, ended.done), ("drained", 2, 2));
    assert_eq!((ended.message.as_str(), ended.deadline_reached), ("kernel update", false));
    assert!(ended.remaining.units.is_empty() && ended.left.is_empty(), "{ended:?}");
    let node = cluster.api.node("n1").await.unwrap();
    assert_eq!((node.state.as_str(), node.counts.instances), ("drained", 0));
    let after = cluster.api.until_ready("web", 6).await;
    assert!(on(&after, "n1").is_empty(), "{}", of_service(&after));
    let kept = before.iter().filter(|old| old.node != "n1");
    assert!(
        kept.clone().all(|old| after.iter().any(|new| (&new.id, new.pid) == (&old.id, old.pid))),
        "what was elsewhere was left alone: {}",
        of_service(&after)
    );

    succeeds(&cluster, &["scale", "web", "9"]).await;
    let more = cluster.api.until_ready("web", 9).await;
    assert!(on(&more, "n1").is_empty(), "{}", of_service(&more));
    assert!(cluster.daemon("n1").runs().is_empty());

    succeeds(&cluster, &["node", "enable", "n1"]).await;
    assert_eq!(cluster.api.node("n1").await.unwrap().state, "active");
    succeeds(&cluster, &["scale", "web", "12"]).await;
    until("it to take work again", async || {
        let all = cluster.api.instances("web").await?;
        let ready = on(&all, "n1").iter().any(|i| i.desired == "running" && i.actual == "ready");
        if ready { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_drain_in_turn_under_load_and_no_request_fails() {
    let cluster = Cluster::start(3, Pace::Steady).await;
    let port = free_port();
    cluster.apply(&web(4, port, "migrate = { max_parallel = 2, min_healthy_time = \"300ms\" }")).await;
    let before = cluster.api.until_ready("web", 4).await;
    let traffic = cluster.load(port, 4).await;
    for node in ["n1", "n2"] {
        let done = cluster.run(&["node", "drain", node]).await;
        assert_eq!(done.code, 0, "{}{}", done.stderr, done.stdout);
        succeeds(&cluster, &["node", "enable", node]).await;
    }
    let report = traffic.end().await;
    assert_eq!(report.failed_count, 0, "{report:?}");
    assert!(report.requests > 100, "{report:?}");
    for old in before.iter().filter(|old| old.node != "n3") {
        assert_eq!(cluster.api.instance(&old.id).await.unwrap().actual, "stopped");
        assert!(report.by_instance.contains_key(&old.id), "it had traffic before it left: {report:?}");
    }
    assert!(report.by_instance.len() >= before.len() + 2, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_ignores_its_stop_signal_is_killed_after_its_grace_and_the_drain_ends() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    cluster.apply(&with_program("deaf", deaf, &format!("stop = {{ grace = \"1s\" }}\n{AT_ONCE}"))).await;
    let old = cluster.api.until_ready("deaf", 1).await.remove(0);
    let process = process_of(&old);
    succeeds(&cluster, &["node", "drain", &old.node]).await;
    assert!(!process.is_alive());
    let over = cluster.api.instance(&old.id).await.unwrap();
    assert_eq!((over.desired.as_str(), over.actual.as_str()), ("stopped", "stopped"));
    assert_eq!(over.exit.and_then(|exit| exit.signal), Some(9), "{over:?}");
    assert_eq!(drain_of(&cluster.api, &old.node).await.unwrap().state, "drained");
    let new = cluster.api.until_ready("deaf", 1).await.remove(0);
    assert_ne!(new.node, old.node);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_the_old_one_runs_on_and_the_drain_goes_on_when_a_node_joins() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    let more = format!("count = 2\n{AT_ONCE}");
    let big = with_program("big", "exec sleep 1000", &more).replace("\"32MiB\"", "\"600MiB\"");
    cluster.apply(&big).await;
    let before = cluster.api.until_ready("big", 2).await;
    let old = on(&before, "n1")[0].clone();
    let process = process_of(&old);
    let mut command = Talk::start(cluster.dir(), cluster.api.base(), &["node", "drain", "n1"]);

    let unit = format!("instance/{}", old.id);
    let waiting = until_drain(&cluster.api, "n1", "short of memory", |drain| {
        drain.waits.iter().any(|wait| wait.code == "no_capacity_memory" && wait.unit == unit)
    })
    .await;
    let wait = waiting.waits.iter().find(|wait| wait.code == "no_capacity_memory").unwrap();
    assert!(wait.message.contains("600MiB"), "what it needs: {wait:?}");
    assert!(wait.message.contains("176MiB"), "what is missing, of the 424 MiB that are free: {wait:?}");
    assert_eq!((waiting.state.as_str(), waiting.done), ("draining", 0));
    let service = cluster.api.service("big").await.unwrap();
    assert!(service.reasons.iter().any(|reason| reason.code == "no_capacity_memory"), "{service:?}");
    for node in ["n1", "n2"] {
        let node = cluster.api.node(node).await.unwrap();
        assert!(node.used.memory <= node.capacity.memory, "{node:?}");
    }
    let seen = cluster.api.instance(&old.id).await.unwrap();
    assert_eq!((seen.desired.as_str(), seen.actual.as_str()), ("running", "ready"), "{seen:?}");
    assert!(process.is_alive());

    cluster.add(Setup::worker("n3"));
    assert_eq!(command.ended().await.code(), Some(0));
    assert_eq!(drain_of(&cluster.api, "n1").await.unwrap().state, "drained");
    assert!(!process.is_alive());
    let after = cluster.api.until_ready("big", 2).await;
    assert_eq!((on(&after, "n2").len(), on(&after, "n3").len()), (1, 1), "{}", of_service(&after));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_goes_in_mid_drain_is_lost_and_what_could_move_runs_elsewhere() {
    let mut cluster = Cluster::start(3, Pace::Quick).await;
    let slowly = "migrate = { min_healthy_time = \"2s\" }";
    cluster.apply(&format!("{}{}", web(6, free_port(), slowly), ledger())).await;
    let home = cluster.api.until_ready("ledger", 1).await.remove(0).node;
    cluster.api.until_ready("web", 6).await;
    let mut command = Talk::start(cluster.dir(), cluster.api.base(), &["node", "drain", &home]);
    until_drain(&cluster.api, &home, "in the middle", |drain| {
        drain.remaining.units.iter().any(|unit| unit.code == "replacement_starting")
    })
    .await;

    cluster.lose(&home);
    assert_eq!(command.ended().await.code(), Some(3));
    let lost = drain_of(&cluster.api, &home).await.unwrap();
    assert_eq!(lost.state, "node_lost", "{lost:?}");
    until("the lost ones to be replaced", async || {
        let all = cluster.api.instances("web").await?;
        let ready = all.iter().filter(|i| i.desired == "running" && i.actual == "ready" && i.node != home);
        if ready.count() == 6 { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;
    until("the stateful one to say why it is away", async || {
        let reasons = cluster.api.service("ledger").await?.reasons;
        let said = reasons.iter().any(|reason| reason.code == "volume_home_node_offline");
        if said { Ok(()) } else { Err(format!("{reasons:?}")) }
    })
    .await;
    assert_eq!(cluster.api.instances("ledger").await.unwrap().len(), 1, "nobody took its place");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_leaves_the_backend_set_and_every_edge_confirms_before_it_is_told_to_stop() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    let edge_host = Ipv4Addr::new(127, 0, 0, 2);
    cluster.add(Setup { roles: &["edge"], edge_host, ..Setup::worker("edge") });
    cluster.until_up().await;
    let listen = free_port();
    let more = format!(
        "count = 2\nports = [\"http\"]\nedge = {{ port = \"http\", listen = {listen} }}\n\
         migrate = {{ min_healthy_time = \"0s\" }}"
    );
    cluster.apply(&scribe(cluster.dir(), &more)).await;
    let before = cluster.api.until_ready("scribe", 2).await;
    let old = on(&before, "n1")[0].clone();
    until("both to be backends", async || {
        let set = backends(&cluster.api, "scribe").await?;
        if set.len() == 2 && set.contains(&old.id) { Ok(()) } else { Err(format!("{set:?}")) }
    })
    .await;
    let process = process_of(&old);

    cluster.daemon("edge").suspend().await;
    let mut command = Talk::start(cluster.dir(), cluster.api.base(), &["node", "drain", "n1"]);
    let waiting = until_drain(&cluster.api, "n1", "waiting for the edge", |drain| {
        drain.waits.iter().any(|wait| wait.code == "edge_confirming")
    })
    .await;
    assert_eq!(waiting.waits[0].unit, format!("instance/{}", old.id));
    let set = backends(&cluster.api, "scribe").await.unwrap();
    assert!(!set.contains(&old.id) && set.len() == 2, "its replacement is there, it is not: {set:?}");
    let seen = until("it to be not ready", async || {
        let seen = cluster.api.instance(&old.id).await?;
        if seen.actual == "unready" { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
    .await;
    assert_eq!(seen.desired, "draining");
    assert!(process.is_alive());
    assert_eq!(written(cluster.dir(), "stops"), [""; 0], "nobody was told to stop");

    cluster.daemon("edge").signal(Signal::CONT);
    assert_eq!(command.ended().await.code(), Some(0));
    assert_eq!(written(cluster.dir(), "stops"), [old.id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_instance_blocks_its_drain_and_runs_on_until_the_operator_lets_it_stay() {
    let cluster = Cluster::start(3, Pace::Steady).await;
    cluster.apply(&format!("{}{}", web(3, free_port(), AT_ONCE), ledger())).await;
    cluster.api.until_ready("web", 3).await;
    let ledger = cluster.api.until_ready("ledger", 1).await.remove(0);
    let home = ledger.node.clone();
    let mut command = Talk::start(cluster.dir(), cluster.api.base(), &["node", "drain", &home]);
    let blocked = until_drain(&cluster.api, &home, "left with the stateful one", |drain| {
        drain.remaining.instances == 0 && drain.remaining.stateful == 1 && !drain.blockers.is_empty()
    })
    .await;
    let blocker = &blocked.blockers[0];
    assert_eq!((blocker.code.as_str(), blocked.blockers.len()), ("volume_local", 1), "{blocked:?}");
    assert_eq!(blocker.unit, format!("instance/{}", ledger.id));
    assert_eq!(blocker.details["volume"], "ledger-data-0");
    assert!(!blocker.hint.is_empty());
    assert_eq!(blocked.state, "draining");

    // The same drain, with one more option; who follows it sees it end.
    let told = cluster.run(&["node", "drain", &home, "--ack-stateful", "-o", "json"]).await;
    assert_eq!(told.code, 3, "{}{}", told.stderr, told.stdout);
    assert_eq!(command.ended().await.code(), Some(3));
    let ended = drain_of(&cluster.api, &home).await.unwrap();
    assert_eq!((ended.state.as_str(), ended.epoch), ("drained_except", blocked.epoch));
    assert_eq!(ended.left.len(), 1, "{ended:?}");
    assert_eq!(
        (ended.left[0].unit.as_str(), ended.left[0].code.as_str()),
        (blocker.unit.as_str(), "volume_local")
    );
    let seen = cluster.api.until_ready("ledger", 1).await.remove(0);
    assert_eq!((seen.id, seen.pid, seen.restarts), (ledger.id, ledger.pid, 0), "nobody touched it");
    let web = cluster.api.until_ready("web", 3).await;
    assert!(on(&web, &home).is_empty(), "{}", of_service(&web));
    succeeds(&cluster, &["node", "enable", &home]).await;
    assert_eq!(cluster.api.node(&home).await.unwrap().state, "active");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_drain_leaves_exactly_the_count_and_those_that_had_not_left() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let slowly = "count = 4\nmigrate = { max_parallel = 2, min_healthy_time = \"4s\" }";
    cluster.apply(&format!("{}{}", scribe(cluster.dir(), slowly), ledger())).await;
    let ledger = cluster.api.until_ready("ledger", 1).await.remove(0);
    let before = cluster.api.until_ready("scribe", 4).await;
    let home = ledger.node.clone();
    let mut command = Talk::start(cluster.dir(), cluster.api.base(), &["node", "drain", &home]);
    until("two replacements to run", async || {
        let all = cluster.api.instances("scribe").await?;
        let anew = all.iter().filter(|i| i.replaces.is_some() && i.actual == "ready").count();
        if anew == 2 { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;
    succeeds(&cluster, &["node", "cancel", &home]).await;
    assert_eq!(command.ended().await.code(), Some(3));
    assert_eq!(drain_of(&cluster.api, &home).await.unwrap().state, "cancelled");
    assert_eq!(cluster.api.node(&home).await.unwrap().state, "active");

    let after = cluster.api.until_ready("scribe", 4).await;
    assert_eq!(written(cluster.dir(), "starts").len(), 6);
    assert_eq!(written(cluster.dir(), "stops").len(), 2, "{}", of_service(&after));
    let old: Vec<&InstanceView> = before.iter().collect();
    assert_eq!(names(&after.iter().collect::<Vec<_>>()), names(&old), "{}", of_service(&after));
    let seen = cluster.api.until_ready("ledger", 1).await.remove(0);
    assert_eq!((seen.id, seen.pid), (ledger.id, ledger.pid));
    let refused = cluster.run(&["node", "cancel", &home]).await;
    assert_eq!(refused.code, 4, "there is nothing left to cancel: {}", refused.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_stopped_at_the_deadline_or_by_force_and_runs_anew_elsewhere() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let go = cluster.dir().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.1; done", go.display());
    cluster.apply(&with_program("batch", &script, "kind = \"batch\"")).await;
    let first = cluster.api.until_ready("batch", 1).await.remove(0);

    let done = cluster.run(&["node", "drain", &first.node, "--deadline", "1s"]).await;
    assert_eq!(done.code, 3, "not everything had its time: {}{}", done.stderr, done.stdout);
    let ended = drain_of(&cluster.api, &first.node).await.unwrap();
    assert_eq!((ended.state.as_str(), ended.deadline_reached), ("drained", true));
    assert_eq!(cluster.api.instance(&first.id).await.unwrap().actual, "stopped");
    let second = cluster.api.until_ready("batch", 1).await.remove(0);
    assert_ne!((&second.id, &second.node), (&first.id, &first.node));
    assert_ne!(second.node, first.node);

    succeeds(&cluster, &["node", "enable", &first.node]).await;
    let unsure = cluster.run(&["node", "drain", &second.node, "--force"]).await;
    assert_eq!(unsure.code, 2, "nobody can be asked: {}", unsure.stderr);
    assert_eq!(cluster.api.node(&second.node).await.unwrap().state, "active");
    succeeds(&cluster, &["node", "drain", &second.node, "--force", "--yes"]).await;
    let third = cluster.api.until_ready("batch", 1).await.remove(0);
    assert_eq!(third.node, first.node);
    assert_eq!(cluster.api.instance(&second.id).await.unwrap().actual, "stopped");
    std::fs::write(go, "").unwrap();
    until("the batch to be complete", async || {
        let service = cluster.api.service("batch").await?;
        if service.complete == 1 { Ok(()) } else { Err(format!("{service:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_goes_on_under_the_next_coordinator_and_nothing_is_done_twice() {
    let etcd = EtcdCluster::start(1).await;
    let mut cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    let slowly = "count = 9\nmigrate = { min_healthy_time = \"1500ms\" }";
    cluster.apply(&scribe(cluster.dir(), slowly)).await;
    let before = cluster.api.until_ready("scribe", 9).await;
    let leads = cluster.api.status().await.unwrap().coordinator;
    let others: Vec<&str> = ["n1", "n2", "n3"].into_iter().filter(|name| *name != leads.id).collect();
    let (drained, api) = (others[0], cluster.api_of(others[1]));
    let leaving = names(&on(&before, drained));
    assert_eq!(leaving.len(), 3, "{}", of_service(&before));
    let mut command = Talk::start(cluster.dir(), api.base(), &["node", "drain", drained]);
    let middle = until_drain(&api, drained, "in the middle", |drain| drain.done == 1).await;
    assert_eq!(middle.state, "draining");

    cluster.daemon_mut(&leads.id).kill();
    until("another coordinator", async || {
        let now = api.status().await?.coordinator;
        if now.id != leads.id && now.term > leads.term { Ok(()) } else { Err(now.id) }
    })
    .await;
    cluster.daemon_mut(&leads.id).start(&[]);
    assert_eq!(command.ended().await.code(), Some(0));
    let ended = drain_of(&api, drained).await.unwrap();
    assert_eq!((ended.state.as_str(), ended.epoch, ended.total, ended.done), ("drained", middle.epoch, 3, 3));
    let after = api.until_ready("scribe", 9).await;
    assert!(on(&after, drained).is_empty(), "{}", of_service(&after));
    assert_eq!(written(cluster.dir(), "stops"), leaving, "each once, and no other");
    assert_eq!(written(cluster.dir(), "starts").len(), 12, "{}", of_service(&after));
    assert!(cluster.daemon(drained).runs().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_coordinators_own_node_hands_over_and_its_drain_goes_on_under_the_next() {
    let etcd = EtcdCluster::start(1).await;
    let cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    let go = cluster.dir().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.1; done", go.display());
    let batch = with_program("batch", &script, "kind = \"batch\"\ncount = 3");
    let port = free_port();
    cluster.apply(&format!("{}{batch}", web(3, port, AT_ONCE))).await;
    let before = cluster.api.until_ready("web", 3).await;
    let batches = cluster.api.until_ready("batch", 3).await;
    let leads = cluster.api.status().await.unwrap().coordinator;
    assert_eq!(on(&batches, &leads.id).len(), 1, "it holds the drain until we say: {}", of_service(&batches));
    let edge = (1..=3).find(|number| format!("n{number}") != leads.id).unwrap();
    let traffic = cluster.load_at(([127, 0, 0, edge], port).into(), 2).await;
    // Asked of the coordinator itself: the command follows the office.
    let api = cluster.api_of(&leads.id);
    let mut command = Talk::start(cluster.dir(), api.base(), &["node", "drain", &leads.id]);
    until("the office to move", async || {
        let next = api.status().await?.coordinator;
        if next.id != leads.id && next.term > leads.term { Ok(()) } else { Err(format!("{next:?}")) }
    })
    .await;
    let waiting = until_drain(&api, &leads.id, "left with the batch", |drain| {
        drain.remaining.instances == 0 && drain.remaining.batch == 1
    })
    .await;
    assert_eq!(waiting.state, "draining");
    std::fs::write(go, "").unwrap();
    assert_eq!(command.ended().await.code(), Some(0));
    let report = traffic.end().await;
    assert_eq!(report.failed_count, 0, "the edge of another node served all along: {report:?}");
    let node = api.node(&leads.id).await.unwrap();
    assert_eq!((node.state.as_str(), node.coordinator, node.connected), ("drained", false, true));
    let after = api.until_ready("web", 3).await;
    assert!(on(&after, &leads.id).is_empty(), "{}", of_service(&after));
    for old in on(&before, &leads.id) {
        assert_eq!(api.instance(&old.id).await.unwrap().actual, "stopped");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_drained_to_be_stopped_ends_its_daemon_and_is_active_when_started_again() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    cluster.apply(&web(2, free_port(), AT_ONCE)).await;
    cluster.api.until_ready("web", 2).await;
    // Asked of the very daemon that ends: the command still learns how it went.
    let own = cluster.api_of("n1");
    let done = tidegate(cluster.dir(), own.base(), &["node", "drain", "n1", "--then", "stop"]).await;
    assert_eq!(done.code, 0, "{}{}", done.stderr, done.stdout);
    let ended = cluster.daemon_mut("n1").ended().await;
    assert!(ended.success(), "{ended:?}");
    assert!(cluster.daemon("n1").runs().is_empty());
    let after = cluster.api.until_ready("web", 2).await;
    assert_eq!(on(&after, "n2").len(), 2, "{}", of_service(&after));
    assert_eq!(cluster.api.node("n1").await.unwrap().state, "stopping");

    cluster.daemon_mut("n1").start(&[]);
    let node = until_node(&cluster.api, "n1", "active").await;
    assert_eq!(node.process_epoch, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_drained_or_cancelled_is_refused_and_changes_nothing() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    cluster.apply(&with_program("job", "exec sleep 1000", AT_ONCE)).await;
    let before = cluster.api.until_ready("job", 1).await;
    let large = format!("k={}", "x".repeat(17 * 1024));
    let commands: &[(i32, &[&str], &str)] = &[
        (1, &["node", "drain", "n9"], "n9"),
        (4, &["node", "drain", "control"], "candidate"),
        (4, &["node", "drain", "n1"], "no open node"),
        (4, &["node", "drain", "n1", "--plan"], "no open node"),
        (2, &["node", "drain", "n1", "--force", "--no-deadline", "--yes"], "--no-deadline"),
        (2, &["node", "drain"], "drain"),
        (1, &["node", "drain", "--selector", "rack=r9"], "label"),
        (4, &["node", "cancel", "n1"], "no drain"),
        (1, &["node", "cancel", "n9"], "n9"),
        (1, &["drain", "cancel", "7"], "no drain 7"),
        (1, &["drain", "status", "7"], "no drain 7"),
        (1, &["node", "drain", "n1", "--meta", &large], "larger"),
        (1, &["node", "drain", "n1", "--deadline", "745h"], "longer"),
    ];
    for (code, args, word) in commands {
        let done = cluster.run(args).await;
        assert_eq!(done.code, *code, "{args:.80?}: {}{}", done.stderr, done.stdout);
        assert!(done.stderr.contains(word), "{args:.80?} without {word:?}: {}", done.stderr);
    }
    for deadline in ["0s", "-1s", "soon", "1000000000000h"] {
        let done = cluster.run(&["node", "drain", "n1", &format!("--deadline={deadline}")]).await;
        assert!(matches!(done.code, 1 | 2), "{deadline}: {} {}", done.code, done.stderr);
        assert!(done.stderr.contains("deadline"), "{deadline}: {}", done.stderr);
    }
    let meta = format!(r#"{{"meta": {{"k": "{}"}}}}"#, "x".repeat(17 * 1024));
    let calls: &[(Method, &str, &str, u16, &str)] = &[
        (Method::PUT, "/v1/nodes/n9/drain", "{}", 404, "node_not_found"),
        (Method::PUT, "/v1/nodes/control/drain", "{}", 412, "no_candidate_left"),
        (Method::PUT, "/v1/nodes/n1/drain", "{}", 422, "no_node_left"),
        (Method::PUT, "/v1/nodes/n1/drain", &meta, 400, "drain_invalid"),
        (Method::PUT, "/v1/nodes/n1/drain", r#"{"deadline": "745h"}"#, 400, "drain_invalid"),
        (Method::PUT, "/v1/nodes/n1/drain", r#"{"deadline": "0s"}"#, 400, "invalid"),
        (Method::PUT, "/v1/nodes/n1/drain", r#"{"force": true, "deadline": "none"}"#, 400, "invalid"),
        (Method::PUT, "/v1/nodes/n1/drain", r#"{"colour": "blue"}"#, 400, "invalid"),
        (Method::POST, "/v1/drains", r#"{"selector": {"rack": "r9"}}"#, 404, "selector_matches_none"),
        (Method::POST, "/v1/drains", "{}", 400, "drain_invalid"),
        (Method::DELETE, "/v1/nodes/n1/drain", "", 409, "no_drain"),
        (Method::DELETE, "/v1/drains/7", "", 404, "drain_not_found"),
        (Method::GET, "/v1/nodes/n1/drain", "", 404, "drain_not_found"),
    ];
    for (method, path, body, status, code) in calls {
        let body = Some(*body).filter(|body| !body.is_empty());
        let (got, answer) = cluster.api.ask(method.clone(), path, body).await.unwrap();
        let said = answer["error"]["code"].as_str().unwrap_or_default();
        assert_eq!((got, said), (*status, *code), "{method} {path} {body:.80?}: {answer}");
    }
    let (_, drains) = cluster.api.ask(Method::GET, "/v1/drains", None).await.unwrap();
    assert_eq!(drains["items"], Value::Array(Vec::new()));
    assert!(cluster.api.nodes().await.unwrap().iter().all(|node| node.state == "active"));
    let after = cluster.api.until_ready("job", 1).await;
    assert_eq!((&after[0].id, after[0].pid), (&before[0].id, before[0].pid));
}
