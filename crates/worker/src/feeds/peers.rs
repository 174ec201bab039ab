//! One stream per pair of nodes, for all feeds together, opened by who needs it first.
//!
//! Two that dial each other at once end up with two streams: that of the lower node id is kept, the other is
//! read until its end. What finds no stream, or a node that does not take it, is dropped: everything that
//! nodes say to each other is said again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use doors::Keys;
use model::NodeId;
use protocol::message::feed::{Peer, PeerBody};
use tokio::sync::mpsc;
use wire::{PeerStream, limits::PEER_CAPACITY};

/// Messages of all nodes that wait for this daemon. Beyond it their streams are held back.
const HEARD_CAPACITY: usize = 1024;
/// Spans that messages may speak of while they wait for one node: a slow one must not hold our memory.
const QUEUED_SPANS_MAX: usize = 262_144;
/// Between two tries to reach a node; it doubles.
const DIAL_PAUSE: Duration = Duration::from_millis(100);
const DIAL_PAUSE_MAX: Duration = Duration::from_secs(3);
/// A stream that lived this long shows that the node is well.
const LIVED: Duration = Duration::from_secs(5);
/// How long a stream that is not used any more is read for its end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) enum PeerEvent {
    Heard { from: NodeId, message: Peer },
    Ended { node: NodeId, number: u64, lived: Duration },
}

/// The stream that is used for sending.
struct Line {
    number: u64,
    /// Where this side dialled; `None`: the other one did.
    dialled: Option<String>,
    queue: mpsc::Sender<Peer>,
    /// Spans that the queued messages speak of.
    weight: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Other {
    line: Option<Line>,
    failures: u32,
    not_before: Option<Instant>,
}

pub(crate) struct Peers {
    me: NodeId,
    keys: Option<Keys>,
    others: BTreeMap<NodeId, Other>,
    lines: u64,
    events: mpsc::Sender<PeerEvent>,
}

impl Peers {
    pub fn new(me: NodeId, keys: Option<Keys>) -> (Peers, mpsc::Receiver<PeerEvent>) {
        let (events, heard) = mpsc::channel(HEARD_CAPACITY);
        (Peers { me, keys, others: BTreeMap::new(), lines: 0, events }, heard)
    }

    pub fn send(&mut self, to: &NodeId, rpc: &str, message: Peer) {
        let other = self.others.entry(to.clone()).or_default();
        // It has moved: what was dialled leads to nobody, or to another.
        other.line.take_if(|line| line.dialled.as_deref().is_some_and(|dialled| dialled != rpc));
        if other.line.is_none() {
            if other.not_before.is_some_and(|at| Instant::now() < at) {
                return;
            }
            self.dial(to, rpc);
        }
        let line = self.others.get_mut(to).and_then(|other| other.line.as_mut());
        if let Some(line) = line {
            line.push(to, message);
        }
    }

    fn dial(&mut self, to: &NodeId, rpc: &str) {
        let (line, queue) = self.line(Some(rpc.to_owned()));
        let (me, node, address) = (self.me.clone(), to.clone(), rpc.to_owned());
        let (number, weight, events) = (line.number, line.weight.clone(), self.events.clone());
        let keys = self.keys.clone();
        tokio::spawn(async move {
            let lived = match wire::dial_peer_with(&address, &me, &node, keys.as_ref()).await {
                Ok(stream) => carry(&node, stream, queue, &weight, &events).await,
                Err(fault) if fault.is_refusal() => {
                    tracing::warn!("no stream to {node} at {address}: {}", chain(&fault));
                    Duration::ZERO
                }
                Err(fault) => {
                    tracing::debug!("cannot reach {node} at {address}: {}", chain(&fault));
                    Duration::ZERO
                }
            };
            let _ = events.send(PeerEvent::Ended { node, number, lived }).await;
        });
        self.others.entry(to.clone()).or_default().line = Some(line);
    }

    fn line(&mut self, dialled: Option<String>) -> (Line, mpsc::Receiver<Peer>) {
        let (queue, queued) = mpsc::channel(PEER_CAPACITY);
        self.lines += 1;
        (Line { number: self.lines, dialled, queue, weight: Arc::default() }, queued)
    }

    /// A stream that a node which is known here has opened.
    pub fn accept(&mut self, from: NodeId, stream: PeerStream) {
        let (line, queue) = self.line(None);
        let (number, weight, events) = (line.number, line.weight.clone(), self.events.clone());
        let node = from.clone();
        tokio::spawn(async move {
            let lived = carry(&node, stream, queue, &weight, &events).await;
            let _ = events.send(PeerEvent::Ended { node, number, lived }).await;
        });
        let other = self.others.entry(from.clone()).or_default();
        let ours_wins = self.me < from && other.line.as_ref().is_some_and(|line| line.dialled.is_some());
        // A line that is not kept has no sender: it is read until its end.
        if !ours_wins {
            other.line = Some(line);
        }
    }

    /// A stream has ended, or did not come about.
    pub fn ended(&mut self, node: &NodeId, number: u64, lived: Duration) {
        let Some(other) = self.others.get_mut(node) else { return };
        if other.line.take_if(|line| line.number == number).is_none() {
            return;
        }
        other.failures = if lived >= LIVED { 0 } else { other.failures.saturating_add(1) };
        let pause = DIAL_PAUSE * 2u32.pow(other.failures.min(10));
        other.not_before = Some(Instant::now() + pause.min(DIAL_PAUSE_MAX));
    }

    /// Nothing more is said; what is queued goes out.
    pub fn close(&mut self) {
        self.others.clear();
    }
}

impl Line {
    fn push(&self, to: &NodeId, message: Peer) {
        let weight = weight(&message);
        let queued = self.weight.load(Ordering::Relaxed);
        // One that is too heavy by itself has to get through some time.
        let fits = queued == 0 || queued + weight <= QUEUED_SPANS_MAX;
        self.weight.fetch_add(weight, Ordering::Relaxed);
        if !fits || self.queue.try_send(message).is_err() {
            self.weight.fetch_sub(weight, Ordering::Relaxed);
            tracing::debug!("{to} takes nothing; a message is dropped");
        }
    }
}

fn weight(message: &Peer) -> usize {
    match &message.body {
        PeerBody::Ask { .. } | PeerBody::Same { .. } => 1,
        PeerBody::Orders { orders, .. } => 1 + orders.len(),
        PeerBody::Inventory { held, .. } | PeerBody::News { held, .. } => 1 + held.len(),
        PeerBody::Progress { spans } => 1 + spans.len(),
    }
}

/// Carries messages both ways until the other side ends, and returns how long that took. Once nobody can
/// queue anything more, the rest goes out and only the other side is listened to.
async fn carry(
    node: &NodeId,
    stream: PeerStream,
    mut queue: mpsc::Receiver<Peer>,
    queued: &AtomicUsize,
    events: &mpsc::Sender<PeerEvent>,
) -> Duration {
    let began = Instant::now();
    let PeerStream { sender, mut receiver } = stream;
    let write = async move {
        while let Some(message) = queue.recv().await {
            let sent = sender.send(&message).await;
            queued.fetch_sub(weight(&message), Ordering::Relaxed);
            if !sent {
                break;
            }
        }
        drop(sender);
        tokio::time::sleep(DRAIN_PATIENCE).await;
    };
    let read = async {
        while let Some(message) = receiver.next().await {
            // Nobody speaks for another.
            if message.from != *node {
                tracing::warn!("{node} sent a message of {}: its stream is closed", message.from);
                return;
            }
            if events.send(PeerEvent::Heard { from: node.clone(), message }).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
    began.elapsed()
}

fn chain(fault: &dyn std::error::Error) -> String {
    let mut text = fault.to_string();
    let mut cause = fault.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
