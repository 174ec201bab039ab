use model::{FeedName, MaintainerEpoch, ProcessEpoch};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use wire::{Acceptor, ConnEvent, ConnId, ControlServer, NotCoordinator, PeerServer};

use super::*;
use crate::feeds::Incoming;

/// Generous: machines are slow and shared.
const PATIENCE: Duration = Duration::from_secs(30);

struct Nobody;

impl Acceptor for Nobody {
    fn accept(&self) -> Result<mpsc::Sender<(ConnId, ConnEvent)>, NotCoordinator> {
        Err(NotCoordinator::default())
    }
}

struct Node {
    peers: Peers,
    events: mpsc::Receiver<PeerEvent>,
    incoming: Incoming,
    rpc: String,
    /// Streams that were seen to end.
    ends: usize,
    _stop: DropGuard,
}

impl Node {
    async fn start(name: &str) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let rpc = listener.local_addr().unwrap().to_string();
        let (incoming, streams) = mpsc::channel(4);
        let server = PeerServer { me: NodeId::new(name), incoming };
        let stop = CancellationToken::new();
        let control: Option<ControlServer<Nobody>> = None;
        tokio::spawn(wire::serve_all(listener, control, Some(server), stop.clone()));
        let (peers, events) = Peers::new(NodeId::new(name), None);
        Node { peers, events, incoming: streams, rpc, ends: 0, _stop: stop.drop_guard() }
    }

    fn say(&mut self, to: &str, rpc: &str, number: u64) {
        let message = Peer {
            from: self.peers.me.clone(),
            from_epoch: ProcessEpoch(1),
            to_epoch: ProcessEpoch(1),
            feed: FeedName::new("orders"),
            maintainer: MaintainerEpoch(1),
            body: PeerBody::Same { number, load: 0 },
        };
        self.peers.send(&NodeId::new(to), rpc, message);
    }

    async fn take_stream(&mut self) {
        let (from, stream) = self.incoming.recv().await.unwrap();
        self.peers.accept(from, stream);
    }

    async fn event(&mut self) -> Option<u64> {
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        match event.expect("something happens").unwrap() {
            PeerEvent::Heard { message, .. } => match message.body {
                PeerBody::Same { number, .. } => Some(number),
                other => panic!("{other:?}"),
            },
            PeerEvent::Ended { node, number, lived } => {
                self.peers.ended(&node, number, lived);
                self.ends += 1;
                None
            }
        }
    }

    /// The next message; streams may end before it.
    async fn hear(&mut self) -> u64 {
        loop {
            if let Some(number) = self.event().await {
                return number;
            }
        }
    }

    /// One stream has ended, or ends before anything is heard.
    async fn see_end(&mut self) {
        while self.ends == 0 {
            assert_eq!(self.event().await, None);
        }
    }

    fn dialled(&self, other: &str) -> Option<bool> {
        let line = self.peers.others.get(other).and_then(|other| other.line.as_ref());
        line.map(|line| line.dialled.is_some())
    }
}

#[tokio::test]
async fn an_answer_goes_over_the_stream_that_the_question_came_on() {
    let (mut a, mut b) = (Node::start("a").await, Node::start("b").await);
    a.say("b", &b.rpc, 1);
    b.take_stream().await;
    assert_eq!(b.hear().await, 1);
    b.say("a", "127.0.0.1:1", 2);
    assert_eq!(a.hear().await, 2);
    assert_eq!((a.dialled("b"), b.dialled("a")), (Some(true), Some(false)));
}

#[tokio::test]
async fn of_two_streams_that_of_the_lower_id_is_kept_and_the_other_is_read_to_its_end() {
    let (mut a, mut b) = (Node::start("a").await, Node::start("b").await);
    a.say("b", &b.rpc, 1);
    b.say("a", &a.rpc, 2);
    a.take_stream().await;
    b.take_stream().await;
    assert_eq!((a.hear().await, b.hear().await), (2, 1));
    assert_eq!((a.dialled("b"), b.dialled("a")), (Some(true), Some(false)));
    // Both say on over the one that is left; the other ends.
    a.see_end().await;
    b.see_end().await;
    a.say("b", &b.rpc, 3);
    b.say("a", &a.rpc, 4);
    assert_eq!((a.hear().await, b.hear().await), (4, 3));
    assert_eq!((a.dialled("b"), b.dialled("a")), (Some(true), Some(false)));
}

#[tokio::test]
async fn a_node_that_cannot_be_reached_is_left_alone_for_a_while_and_holds_nothing() {
    let mut a = Node::start("a").await;
    a.say("b", "127.0.0.1:1", 1);
    a.see_end().await;
    assert_eq!(a.dialled("b"), None);
    // Within the pause nothing is dialled, and nothing is kept.
    a.say("b", "127.0.0.1:1", 2);
    assert_eq!(a.dialled("b"), None);
    let other = &mut a.peers.others.get_mut("b").unwrap();
    assert_eq!(other.failures, 1);
    other.not_before = None;
    let mut b = Node::start("b").await;
    a.say("b", &b.rpc, 3);
    b.take_stream().await;
    assert_eq!(b.hear().await, 3);
}

#[tokio::test]
async fn a_node_that_takes_nothing_costs_no_more_than_its_queue() {
    let (mut a, b) = (Node::start("a").await, Node::start("b").await);
    for number in 0..2 * PEER_CAPACITY as u64 {
        a.say("b", &b.rpc, number);
    }
    let line = a.peers.others["b"].line.as_ref().unwrap();
    assert_eq!(line.queue.capacity(), 0);
    assert_eq!(line.weight.load(Ordering::Relaxed), PEER_CAPACITY);
}

#[tokio::test]
async fn a_node_that_is_reached_elsewhere_is_dialled_there() {
    let (mut a, mut b) = (Node::start("a").await, Node::start("b").await);
    a.say("b", &b.rpc, 1);
    b.take_stream().await;
    assert_eq!(b.hear().await, 1);
    let mut again = Node::start("b").await;
    a.say("b", &again.rpc, 2);
    again.take_stream().await;
    assert_eq!(again.hear().await, 2);
}
