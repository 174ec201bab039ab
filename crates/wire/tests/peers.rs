//! Streams between nodes, over real sockets.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use model::{FeedName, MaintainerEpoch, NodeId, ProcessEpoch};
use protocol::message::feed::{Peer, PeerBody};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;
use wire::{Acceptor, ConnEvent, ConnId, ControlServer, NotCoordinator, PeerServer, PeerStream, dial_peer};

struct Nobody;

impl Acceptor for Nobody {
    fn accept(&self) -> Result<mpsc::Sender<(ConnId, ConnEvent)>, NotCoordinator> {
        Err(NotCoordinator::default())
    }
}

/// A node named `b` that takes streams.
async fn serve() -> (String, mpsc::Receiver<(NodeId, PeerStream)>, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (incoming, streams) = mpsc::channel(4);
    let server = PeerServer { me: NodeId::new("b"), incoming };
    let stop = CancellationToken::new();
    let control: Option<ControlServer<Nobody>> = None;
    tokio::spawn(wire::serve_all(listener, control, Some(server), stop.clone()));
    (address, streams, stop)
}

fn message(number: u64) -> Peer {
    Peer {
        from: NodeId::new("a"),
        from_epoch: ProcessEpoch(1),
        to_epoch: ProcessEpoch(2),
        feed: FeedName::new("orders"),
        maintainer: MaintainerEpoch(3),
        body: PeerBody::Same { number, load: 0 },
    }
}

#[tokio::test]
async fn what_either_says_arrives_over_the_one_stream() {
    let (address, mut streams, stop) = serve().await;
    let mut here = dial_peer(&address, &NodeId::new("a"), &NodeId::new("b")).await.unwrap();
    let (from, mut there) = streams.recv().await.unwrap();
    assert_eq!(from.as_str(), "a");
    for number in 0..100 {
        assert!(here.sender.send(&message(number)).await);
        assert_eq!(there.receiver.next().await, Some(message(number)));
        assert!(there.sender.send(&message(number)).await);
        assert_eq!(here.receiver.next().await, Some(message(number)));
    }
    // One that says no more is still told what the other has to say.
    drop(here.sender);
    assert_eq!(there.receiver.next().await, None);
    assert!(there.sender.send(&message(7)).await);
    drop(there.sender);
    assert_eq!(here.receiver.next().await, Some(message(7)));
    assert_eq!(here.receiver.next().await, None);
    stop.cancel();
}

#[tokio::test]
async fn a_node_that_is_not_meant_refuses() {
    let (address, mut streams, _stop) = serve().await;
    let refused = dial_peer(&address, &NodeId::new("a"), &NodeId::new("c")).await;
    let said = format!("{:?}", refused.err().unwrap());
    assert!(said.contains("this is b"), "{said}");
    assert!(streams.try_recv().is_err());
}

#[tokio::test]
async fn a_daemon_that_is_no_candidate_says_so_and_one_that_is_no_worker_too() {
    let (address, _streams, _stop) = serve().await;
    assert!(wire::connect(&address).await.is_err());

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stop = CancellationToken::new();
    tokio::spawn(wire::serve(listener, ControlServer::new(Nobody), stop.clone()));
    assert!(dial_peer(&address, &NodeId::new("a"), &NodeId::new("b")).await.is_err());
    stop.cancel();
}

#[tokio::test]
async fn a_node_that_hangs_up_is_noticed_by_who_sends() {
    let (address, mut streams, _stop) = serve().await;
    let here = dial_peer(&address, &NodeId::new("a"), &NodeId::new("b")).await.unwrap();
    let (_, there) = streams.recv().await.unwrap();
    drop(there);
    let sender = Arc::new(here.sender);
    // The network takes some before the end is known here.
    while sender.send(&message(1)).await {}
    sender.closed().await;
}
