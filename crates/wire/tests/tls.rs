//! Streams between daemons that have certificates.

#![allow(clippy::unwrap_used)]

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use doors::{Authority, Issued, KeyFiles, Keys};
use model::{Access, Life, MemoryCaps, NodeId, Resources, Roles};
use protocol::message::{EdgeReport, Hello, Up, UpBody};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};
use wire::{
    Acceptor, ConnEvent, ConnId, ControlServer, End, NotCoordinator, PeerServer, PeerStream, connect,
    connect_with, dial_peer_with, serve_door,
};

const PATIENCE: Duration = Duration::from_secs(30);

struct Office(mpsc::Sender<(ConnId, ConnEvent)>);

impl Acceptor for Office {
    fn accept(&self) -> Result<mpsc::Sender<(ConnId, ConnEvent)>, NotCoordinator> {
        Ok(self.0.clone())
    }
}

fn load(ca: &Path, issued: &Issued) -> Keys {
    let files = KeyFiles { ca: ca.to_owned(), cert: issued.cert.clone(), key: issued.key.clone() };
    Keys::load(files).unwrap()
}

fn tomorrow() -> SystemTime {
    SystemTime::now() + Duration::from_secs(24 * 3600)
}

fn localhost() -> Vec<String> {
    vec!["127.0.0.1".to_owned()]
}

/// The daemon n1, which takes streams of all others.
struct Cluster {
    authority: Authority,
    address: String,
    events: mpsc::Receiver<(ConnId, ConnEvent)>,
    peers: mpsc::Receiver<(NodeId, PeerStream)>,
    keys: Keys,
    _stop: DropGuard,
    _dir: tempfile::TempDir,
}

impl Cluster {
    async fn start(own_hosts: &[String]) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::init(dir.path()).unwrap();
        let own = authority.node("n1", own_hosts, tomorrow()).unwrap();
        let keys = load(&authority.certificate(), &own);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (to_events, events) = mpsc::channel(16);
        let (incoming, peers) = mpsc::channel(16);
        let stop = CancellationToken::new();
        let control = Some(ControlServer::new(Office(to_events)));
        let server = Some(PeerServer { me: NodeId::new("n1"), incoming });
        tokio::spawn(serve_door(listener, Some(keys.clone()), control, server, stop.clone()));
        Cluster { authority, address, events, peers, keys, _stop: stop.drop_guard(), _dir: dir }
    }

    fn node(&self, name: &str) -> Keys {
        load(&self.authority.certificate(), &self.authority.node(name, &localhost(), tomorrow()).unwrap())
    }

    async fn heard(&mut self) -> ConnEvent {
        tokio::time::timeout(PATIENCE, self.events.recv()).await.unwrap().unwrap().1
    }
}

fn hello(node: &str) -> Up {
    let hello = Hello {
        node: NodeId::new(node),
        life: Life(1),
        succeeds: None,
        roles: Roles::WORKER,
        labels: Default::default(),
        capacity: Resources { memory: 1, cpu: 1 },
        host: "127.0.0.1".to_owned(),
        api: String::new(),
        rpc: String::new(),
        memory_caps: MemoryCaps::CgroupV2,
        cluster: None,
        inventory: Vec::new(),
        edge: EdgeReport::default(),
    };
    Up { seq: 1, body: UpBody::Hello(hello) }
}

/// How the stream ends for a daemon that calls itself so.
async fn greeted(address: &str, keys: &Keys, name: &str) -> End {
    let connection = connect_with(address, Some(keys)).await.unwrap();
    connection.sender.send(hello(name)).await.unwrap();
    tokio::time::timeout(PATIENCE, connection.ended).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_daemon_speaks_for_the_node_of_its_certificate() {
    let mut cluster = Cluster::start(&localhost()).await;
    let keys = cluster.node("n2");
    let connection = connect_with(&cluster.address, Some(&keys)).await.unwrap();
    connection.sender.send(hello("n2")).await.unwrap();
    let ConnEvent::Opened(_outbox) = cluster.heard().await else { panic!("no stream") };
    assert!(matches!(cluster.heard().await, ConnEvent::Message(_)));
}

#[tokio::test]
async fn a_daemon_that_speaks_for_another_node_is_refused_and_nothing_of_it_is_heard() {
    let mut cluster = Cluster::start(&localhost()).await;
    let keys = cluster.node("n2");
    let address = cluster.address.clone();
    let lie = tokio::spawn(async move { greeted(&address, &keys, "n3").await });
    let ConnEvent::Opened(_outbox) = cluster.heard().await else { panic!("no stream") };
    assert!(matches!(cluster.heard().await, ConnEvent::Closed), "the message in between is not handed on");
    let end = lie.await.unwrap();
    assert!(end.is_refusal(), "{end:?}");
    let End::Failed(status) = end else { panic!("{end:?}") };
    assert_eq!(status.message(), "the certificate is node n2's: it may not speak for node n3");
}

#[tokio::test]
async fn strangers_get_no_stream() {
    let cluster = Cluster::start(&localhost()).await;
    let ca = cluster.authority.certificate();
    assert!(connect(&cluster.address).await.is_err(), "without TLS");
    let other = tempfile::tempdir().unwrap();
    let foreign = Authority::init(other.path()).unwrap();
    let issued = foreign.node("n2", &localhost(), tomorrow()).unwrap();
    // It would even believe us; we do not believe it.
    let both = other.path().join("both.pem");
    let pems = [&ca, &foreign.certificate()].map(|path| std::fs::read_to_string(path).unwrap());
    std::fs::write(&both, pems.concat()).unwrap();
    let error = connect_with(&cluster.address, Some(&load(&both, &issued))).await.unwrap_err();
    assert!(error.is_refusal(), "{error:?}");
    let person = cluster.authority.person("alice", Access::Operator, tomorrow()).unwrap();
    let error = connect_with(&cluster.address, Some(&load(&ca, &person))).await.unwrap_err();
    let words = std::error::Error::source(&error).unwrap().to_string();
    assert!(words.contains("the certificate is not a node's"), "{words}");
}

#[tokio::test]
async fn a_daemon_does_not_believe_one_that_answers_at_anothers_address() {
    let cluster = Cluster::start(&["10.9.9.9".to_owned()]).await;
    let error = connect_with(&cluster.address, Some(&cluster.node("n2"))).await.unwrap_err();
    assert!(error.is_refusal(), "{error:?}");
}

#[tokio::test]
async fn streams_between_nodes_are_between_the_nodes_that_were_meant() {
    let mut cluster = Cluster::start(&localhost()).await;
    let (n1, n2, n3) = (NodeId::new("n1"), NodeId::new("n2"), NodeId::new("n3"));
    let keys = cluster.node("n2");
    let stream = dial_peer_with(&cluster.address, &n2, &n1, Some(&keys)).await;
    assert!(stream.is_ok(), "{stream:?}");
    assert_eq!(cluster.peers.recv().await.unwrap().0, n2);
    let error = dial_peer_with(&cluster.address, &n3, &n1, Some(&keys)).await.unwrap_err();
    assert!(error.is_refusal(), "it is not n3: {error:?}");
    let error = dial_peer_with(&cluster.address, &n2, &n3, Some(&keys)).await.unwrap_err();
    assert!(format!("{error:?}").contains("the certificate there is n1's, n3 was meant"), "{error:?}");
}

#[tokio::test]
async fn connections_from_a_change_on_use_the_certificates_that_are_there() {
    let mut cluster = Cluster::start(&["10.9.9.9".to_owned()]).await;
    let keys = cluster.node("n2");
    assert!(connect_with(&cluster.address, Some(&keys)).await.is_err());
    cluster.authority.node("n1", &localhost(), tomorrow()).unwrap();
    assert!(cluster.keys.look(true).unwrap());
    let connection = connect_with(&cluster.address, Some(&keys)).await.unwrap();
    connection.sender.send(hello("n2")).await.unwrap();
    assert!(matches!(cluster.heard().await, ConnEvent::Opened(_)));
}
