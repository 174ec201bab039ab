//! Streams between nodes, for feeds.
//!
//! Both ends are alike once a stream is open: frames are sent and received until either side is done.
//! Who dials whom, which of two streams is kept and what is dropped is the caller's to decide.

use std::pin::Pin;

use doors::Keys;
use futures_util::{Stream, StreamExt};
use model::NodeId;
use prost::Message;
use protocol::message::feed::Peer;
use tokio::{sync::mpsc, time};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    client::{ConnectError, open},
    error::in_full,
    limits::{
        CONNECT_TIMEOUT, PEER_BYTES_MAX, PEER_HELLO_TIMEOUT, PEER_KEEP_ALIVE_INTERVAL,
        PEER_KEEP_ALIVE_TIMEOUT,
    },
    pb::{
        self,
        peers_client::PeersClient,
        peers_server::{Peers, PeersServer as GeneratedServer},
    },
    server,
};

/// An open stream to another node.
#[derive(Debug)]
pub struct PeerStream {
    pub sender: PeerSender,
    pub receiver: PeerReceiver,
}

/// Dropping it says that nothing more will come.
#[derive(Debug)]
pub struct PeerSender {
    wire: mpsc::Sender<pb::PeerFrame>,
}

/// Dropping it hangs up.
#[derive(Debug)]
pub struct PeerReceiver {
    inbound: Streaming<pb::PeerFrame>,
    /// Keeps the HTTP/2 connection of the side that dialled.
    _client: Option<PeersClient<Channel>>,
}

impl PeerSender {
    /// Waits until the network takes it. `false`: the stream has ended.
    pub async fn send(&self, peer: &Peer) -> bool {
        let frame = frame(pb::peer_frame::What::Message(peer.into()));
        let bytes = frame.encoded_len();
        if bytes > PEER_BYTES_MAX {
            tracing::error!(feed = %peer.feed, bytes, max = PEER_BYTES_MAX, "message to a node is too large");
            return true;
        }
        self.wire.send(frame).await.is_ok()
    }

    /// The other side takes nothing more.
    pub async fn closed(&self) {
        self.wire.closed().await;
    }
}

impl PeerReceiver {
    /// `None`: the stream has ended, or says what cannot be understood.
    pub async fn next(&mut self) -> Option<Peer> {
        let frame = match self.inbound.message().await {
            Ok(frame) => frame?,
            Err(status) => {
                tracing::debug!(status = status.message(), "stream to a node failed");
                return None;
            }
        };
        let Some(pb::peer_frame::What::Message(message)) = frame.what else {
            tracing::warn!("a node sent something that is no message");
            return None;
        };
        match Peer::try_from(message) {
            Ok(peer) => Some(peer),
            Err(error) => {
                tracing::warn!(error = in_full(&error), "message of a node refused");
                None
            }
        }
    }
}

fn frame(what: pb::peer_frame::What) -> pb::PeerFrame {
    pb::PeerFrame { what: Some(what) }
}

/// Dials another node, and says who is meant.
pub async fn dial_peer(address: &str, from: &NodeId, to: &NodeId) -> Result<PeerStream, ConnectError> {
    dial_peer_with(address, from, to, None).await
}

/// As [`dial_peer`]; with keys, the certificate of whoever answers must be that node's.
pub async fn dial_peer_with(
    address: &str,
    from: &NodeId,
    to: &NodeId,
    keys: Option<&Keys>,
) -> Result<PeerStream, ConnectError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|source| ConnectError::Address { address: address.to_owned(), source })?
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PEER_KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(PEER_KEEP_ALIVE_TIMEOUT);
    let hello = pb::PeerHello { from: from.as_str().to_owned(), to: to.as_str().to_owned() };
    match time::timeout(CONNECT_TIMEOUT, dial(address, endpoint, hello, keys)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::Timeout { address: address.to_owned(), after: CONNECT_TIMEOUT }),
    }
}

async fn dial(
    address: &str,
    endpoint: Endpoint,
    hello: pb::PeerHello,
    keys: Option<&Keys>,
) -> Result<PeerStream, ConnectError> {
    let address = address.to_owned();
    let channel = match open(endpoint, keys, Some(&hello.to)).await {
        Ok(channel) => channel,
        Err(source) => return Err(ConnectError::Unreachable { address, source }),
    };
    let mut client = PeersClient::new(channel)
        .max_encoding_message_size(PEER_BYTES_MAX)
        .max_decoding_message_size(PEER_BYTES_MAX);
    // One at a time: what waits for a slow node stays in its bounded queue.
    let (wire, body) = mpsc::channel(1);
    // The greeting finds room: nothing else was sent.
    let greeted = wire.try_send(frame(pb::peer_frame::What::Hello(hello)));
    debug_assert!(greeted.is_ok(), "an empty channel takes one message");
    match client.exchange(ReceiverStream::new(body)).await {
        Ok(response) => {
            let receiver = PeerReceiver { inbound: response.into_inner(), _client: Some(client) };
            Ok(PeerStream { sender: PeerSender { wire }, receiver })
        }
        Err(status) => Err(ConnectError::Refused { address, status: Box::new(status) }),
    }
}

/// Takes streams of other nodes. Those that come are offered with the name that they gave, which is that of
/// their certificate where there are any; whoever takes them decides whether that node is known.
#[derive(Clone, Debug)]
pub struct PeerServer {
    pub me: NodeId,
    pub incoming: mpsc::Sender<(NodeId, PeerStream)>,
}

pub(crate) type PeerService = GeneratedServer<PeerServer>;

pub(crate) fn service(server: PeerServer) -> PeerService {
    GeneratedServer::new(server)
        .max_decoding_message_size(PEER_BYTES_MAX)
        .max_encoding_message_size(PEER_BYTES_MAX)
}

#[tonic::async_trait]
impl Peers for PeerServer {
    type ExchangeStream = Pin<Box<dyn Stream<Item = Result<pb::PeerFrame, Status>> + Send>>;

    async fn exchange(
        &self,
        request: Request<Streaming<pb::PeerFrame>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let caller = server::caller(&request)?;
        let mut inbound = request.into_inner();
        let from = match time::timeout(PEER_HELLO_TIMEOUT, greeting(&mut inbound, &self.me)).await {
            Ok(greeted) => greeted?,
            Err(_) => return Err(Status::deadline_exceeded("no greeting came")),
        };
        if let Some(refused) = caller.refuses(from.as_str()) {
            tracing::warn!(node = %from, "stream of a node refused: {}", refused.message());
            return Err(refused);
        }
        let (wire, body) = mpsc::channel(1);
        let receiver = PeerReceiver { inbound, _client: None };
        let stream = PeerStream { sender: PeerSender { wire }, receiver };
        if self.incoming.send((from, stream)).await.is_err() {
            return Err(Status::unavailable("this daemon is stopping"));
        }
        Ok(Response::new(Box::pin(ReceiverStream::new(body).map(Ok))))
    }
}

async fn greeting(inbound: &mut Streaming<pb::PeerFrame>, me: &NodeId) -> Result<NodeId, Status> {
    let first = inbound.message().await?.and_then(|frame| frame.what);
    let Some(pb::peer_frame::What::Hello(hello)) = first else {
        return Err(Status::invalid_argument("a stream begins with a greeting"));
    };
    if hello.to != me.as_str() {
        return Err(Status::not_found(format!("this is {me}, another node was meant")));
    }
    crate::convert::node("peer_hello.from", &hello.from)
        .map_err(|error| Status::invalid_argument(in_full(&error)))
}
