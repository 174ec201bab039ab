//! Feeds on this machine: the tasks of dispatchers ([`host`]) and the streams to other nodes ([`peers`]).
//!
//! What runs, with which epoch and when it stops is decided by [`protocol::node::Node`]; here it is carried
//! out, and what became of it is said.

pub(crate) mod host;
pub(crate) mod peers;

use model::NodeId;
use protocol::node::FeedNews;
use tokio::sync::mpsc;
use wire::PeerStream;

use peers::PeerEvent;

/// What happened is taken up to this many at a time.
const AT_ONCE: usize = 1024;

/// Streams that other nodes have opened to this daemon, with the names that they gave.
pub type Incoming = mpsc::Receiver<(NodeId, PeerStream)>;

/// What happened with feeds.
pub(crate) enum FeedEvent {
    News(Vec<FeedNews>),
    Peers(Vec<PeerEvent>),
    Stream(NodeId, Box<PeerStream>),
}

/// Where it is heard.
pub(crate) struct Ears {
    pub news: mpsc::UnboundedReceiver<FeedNews>,
    pub peers: mpsc::Receiver<PeerEvent>,
    /// `None`: this daemon takes no streams.
    pub incoming: Option<Incoming>,
}

impl Ears {
    /// Nothing is lost if it is not waited for to its end.
    pub async fn next(&mut self) -> FeedEvent {
        let (mut news, mut heard) = (Vec::new(), Vec::new());
        tokio::select! {
            _ = self.news.recv_many(&mut news, AT_ONCE) => FeedEvent::News(news),
            _ = self.peers.recv_many(&mut heard, AT_ONCE) => FeedEvent::Peers(heard),
            (from, stream) = stream(&mut self.incoming) => FeedEvent::Stream(from, Box::new(stream)),
        }
    }
}

/// The next stream of another node; never, if none can come.
async fn stream(incoming: &mut Option<Incoming>) -> (NodeId, PeerStream) {
    if let Some(streams) = incoming
        && let Some(stream) = streams.recv().await
    {
        return stream;
    }
    *incoming = None;
    std::future::pending().await
}
