//! Nodes that leave with what is special about them: an edge, and the office of the coordinator.

use std::net::{Ipv4Addr, SocketAddr};

use reqwest::Method;
use rustix::process::Signal;
use server::view::DrainStatusView;
use store::testing::EtcdCluster;
use tokio::net::TcpStream;

use crate::harness::{Api, Cluster, Pace, Setup, Talk, free_port, until, web};

const AT_ONCE: &str = "migrate = { min_healthy_time = \"200ms\" }";
/// Longer than any connection of these tests lives: none is cut.
const LONG_GRACE: &str = "migrate = { min_healthy_time = \"200ms\" }\nstop = { grace = \"5m\" }";
const EDGE_HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

async fn drain_of(api: &Api, node: &str) -> Result<DrainStatusView, String> {
    match api.ask(Method::GET, &format!("/v1/nodes/{node}/drain"), None).await? {
        (200, body) => serde_json::from_value(body).map_err(|error| error.to_string()),
        other => Err(format!("{other:?}")),
    }
}

async fn until_drain(
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

fn waits_for(drain: &DrainStatusView, code: &str) -> bool {
    drain.waits.iter().any(|wait| wait.code == code && wait.since.is_some())
}

/// What a load balancer sees of a daemon: the status of its health check, and the word.
async fn health(api: &Api) -> Result<(u16, String), String> {
    let (status, body) = api.ask(Method::GET, "/healthz", None).await?;
    Ok((status, body["status"].as_str().unwrap_or_default().to_owned()))
}

async fn until_health(api: &Api, wanted: (u16, &str)) {
    until(&format!("the health check to say {wanted:?}"), async || {
        let seen = health(api).await?;
        if seen == (wanted.0, wanted.1.to_owned()) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

async fn until_port(addr: SocketAddr, open: bool) {
    until(&format!("{addr} to be {}", if open { "open" } else { "closed" }), async || {
        let connected = TcpStream::connect(addr).await;
        if connected.is_ok() == open { Ok(()) } else { Err(format!("{connected:?}")) }
    })
    .await;
}

/// A client whose connections stay open.
struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    fn of(addr: SocketAddr) -> Client {
        let http = doors::http().no_proxy().build().unwrap();
        Client { http, url: format!("http://{addr}/") }
    }

    async fn asks(&self) -> Result<(), String> {
        let answer = self.http.get(&self.url).send().await.map_err(|error| format!("{error:?}"))?;
        answer
            .error_for_status()
            .map_err(|error| error.to_string())?
            .bytes()
            .await
            .map(drop)
            .map_err(|e| e.to_string())
    }
}

/// `control`, two workers and a node that is nothing but an edge, with `web` behind it.
async fn with_an_edge_apart(withdraw_delay: &'static str, more: &str) -> (Cluster, SocketAddr) {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    let edge_host = EDGE_HOST;
    cluster.add(Setup { roles: &["edge"], edge_host, withdraw_delay, ..Setup::worker("edge") });
    cluster.until_up().await;
    let port = free_port();
    cluster.apply(&web(2, port, more)).await;
    cluster.api.until_ready("web", 2).await;
    let addr = SocketAddr::from((EDGE_HOST, port));
    until_port(addr, true).await;
    (cluster, addr)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_edge_of_a_draining_node_fails_its_health_check_first_then_closes_and_comes_back() {
    let (cluster, addr) = with_an_edge_apart("4s", LONG_GRACE).await;
    let own = cluster.api_of("edge");
    assert_eq!(health(&own).await.unwrap(), (200, "ok".to_owned()));
    let client = Client::of(addr);
    client.asks().await.unwrap();

    let mut command = Talk::start(cluster.dir(), cluster.api.base(), &["node", "drain", "edge"]);
    until_health(&own, (503, "withdrawing")).await;
    // It serves on: a load balancer has yet to see it.
    Client::of(addr).asks().await.unwrap();
    let seen =
        until_drain(&cluster.api, "edge", "withdrawing", |drain| waits_for(drain, "edge_withdrawing")).await;
    assert_eq!((seen.state.as_str(), waits_for(&seen, "only_edge")), ("draining", false), "{seen:?}");

    until_port(addr, false).await;
    assert_eq!(health(&own).await.unwrap(), (503, "withdrawing".to_owned()));
    // The port is closed, so that this can only be the connection that was open.
    client.asks().await.unwrap();
    assert_eq!(drain_of(&cluster.api, "edge").await.unwrap().state, "draining", "a connection is open");
    drop(client);
    assert_eq!(command.ended().await.code(), Some(0));
    assert_eq!(drain_of(&cluster.api, "edge").await.unwrap().state, "drained");
    assert_eq!(health(&own).await.unwrap(), (503, "withdrawn".to_owned()));

    let done = cluster.run(&["node", "enable", "edge"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    until_port(addr, true).await;
    until_health(&own, (200, "ok")).await;
    Client::of(addr).asks().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_drain_lets_an_edge_that_has_closed_its_ports_serve_again() {
    let (cluster, addr) = with_an_edge_apart("200ms", LONG_GRACE).await;
    let own = cluster.api_of("edge");
    let client = Client::of(addr);
    client.asks().await.unwrap();
    let mut command = Talk::start(cluster.dir(), cluster.api.base(), &["node", "drain", "edge"]);
    until_port(addr, false).await;

    let done = cluster.run(&["node", "cancel", "edge"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    until_port(addr, true).await;
    until_health(&own, (200, "ok")).await;
    client.asks().await.unwrap();
    assert_eq!(command.ended().await.code(), Some(3));
    assert_eq!(drain_of(&cluster.api, "edge").await.unwrap().state, "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_edge_stays_away_over_a_restart_of_its_daemon_and_of_the_coordinator() {
    let (mut cluster, addr) = with_an_edge_apart("200ms", AT_ONCE).await;
    let done = cluster.run(&["node", "drain", "edge"]).await;
    assert_eq!(done.code, 0, "{}{}", done.stderr, done.stdout);
    until_port(addr, false).await;
    for daemon in ["edge", "control"] {
        cluster.daemon_mut(daemon).kill();
        cluster.daemon_mut(daemon).start(&[]);
        cluster.until_up().await;
        until_health(&cluster.api_of("edge"), (503, "withdrawn")).await;
        assert!(TcpStream::connect(addr).await.is_err(), "it stays closed");
    }
    let done = cluster.run(&["node", "enable", "edge"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    until_port(addr, true).await;
    Client::of(addr).asks().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_drains_the_only_edge_is_told_so_before_and_while_it_happens() {
    let mut cluster = Cluster::empty(Pace::Steady).await;
    cluster.add(Setup { roles: &["coordinator"], ..Setup::control() });
    cluster.add(Setup::worker("n1"));
    cluster.add(Setup { roles: &["edge"], edge_host: EDGE_HOST, ..Setup::worker("edge") });
    cluster.until_up().await;
    let port = free_port();
    cluster.apply(&web(1, port, LONG_GRACE)).await;
    let addr = SocketAddr::from((EDGE_HOST, port));
    until_port(addr, true).await;
    let client = Client::of(addr);
    cluster.api.until_ready("web", 1).await;
    client.asks().await.unwrap();

    let plan = cluster.run(&["node", "drain", "edge", "--plan"]).await;
    assert_eq!(plan.code, 0, "{}", plan.stderr);
    assert!(plan.stdout.contains("only_edge: the only edge that is open"), "{}", plan.stdout);
    let plan = cluster.run(&["node", "drain", "n1", "--plan"]).await;
    assert!(!plan.stdout.contains("only_edge"), "{}", plan.stdout);

    let mut command = Talk::start(cluster.dir(), cluster.api.base(), &["node", "drain", "edge"]);
    until_drain(&cluster.api, "edge", "known as the only edge", |drain| waits_for(drain, "only_edge")).await;
    drop(client);
    assert_eq!(command.ended().await.code(), Some(0));
    assert!(TcpStream::connect(addr).await.is_err(), "it was asked for");
}

/// The term and the daemon that leads.
async fn leader(api: &Api) -> Result<(String, u64), String> {
    let coordinator = api.status().await?.coordinator;
    Ok((coordinator.id, coordinator.term))
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_caretaker_its_own_drain_waits_and_goes_on_when_an_open_candidate_is_back() {
    let etcd = EtcdCluster::start(1).await;
    let cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    cluster.apply(&web(3, free_port(), AT_ONCE)).await;
    let before = cluster.api.until_ready("web", 3).await;
    let (leads, term) = leader(&cluster.api).await.unwrap();
    let others: Vec<String> =
        (1..=3).map(|number| format!("n{number}")).filter(|name| *name != leads).collect();
    for other in &others {
        cluster.daemon(other).suspend().await;
    }
    let api = cluster.api_of(&leads);
    let (status, body) = api.ask(Method::PUT, &format!("/v1/nodes/{leads}/drain"), Some("{}")).await.unwrap();
    assert!(status < 300, "{status} {body:?}");
    // It may have offered its office to the others; nobody took it.
    until("the caretaker to lead", async || {
        let seen = leader(&api).await?;
        let drain = drain_of(&api, &leads).await?;
        if seen.0 == leads && waits_for(&drain, "caretaker_leads") {
            Ok(())
        } else {
            Err(format!("{seen:?} {drain:?}"))
        }
    })
    .await;
    let drain = drain_of(&api, &leads).await.unwrap();
    assert_eq!((drain.state.as_str(), drain.started_at), ("queued", None));
    let now = api.instances("web").await.unwrap();
    let ids = |all: &[server::view::InstanceView]| all.iter().map(|i| i.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&now), ids(&before), "nothing was placed and nothing left");

    for other in &others {
        cluster.daemon(other).signal(Signal::CONT);
    }
    let next = until("another to lead", async || {
        let seen = leader(&api).await?;
        if seen.0 != leads && seen.1 > term { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
    .await;
    assert!(others.contains(&next.0));
    until_drain(&api, &leads, "drained", |drain| drain.state == "drained").await;
    let after = api.until_ready("web", 3).await;
    assert!(after.iter().all(|instance| instance.node != leads));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_unit_leaves_the_coordinators_own_node_before_another_is_in_office() {
    let etcd = EtcdCluster::start(1).await;
    let cluster = Cluster::start_over_etcd(3, Pace::Steady, &etcd.endpoints()).await;
    cluster.apply(&web(6, free_port(), AT_ONCE)).await;
    cluster.api.until_ready("web", 6).await;
    let (leads, term) = leader(&cluster.api).await.unwrap();
    let api = cluster.api_of(&leads);
    let mut events = Talk::start(cluster.dir(), api.base(), &["events", "--follow", "-o", "json"]);
    events.until("coordinator.elected").await;
    let asked = Some(r#"{"deadline": "none"}"#);
    let (status, body) = api.ask(Method::PUT, &format!("/v1/nodes/{leads}/drain"), asked).await.unwrap();
    assert!(status < 300, "{status} {body:?}");
    events.until("coordinator.elected").await;
    let moved = events.heard.iter().filter(|line| line.contains("instance.allocated")).count();
    assert_eq!(moved, 6, "those of the beginning: {:?}", events.heard);
    assert!(!events.heard.iter().any(|line| line.contains("drain.started")), "{:?}", events.heard);
    events.until("drain.started").await;
    events.until("instance.allocated").await;
    assert!(leader(&api).await.unwrap().1 > term);
    until_drain(&api, &leads, "drained", |drain| drain.state == "drained").await;
    events.signal(Signal::TERM);
    events.ended().await;
}
