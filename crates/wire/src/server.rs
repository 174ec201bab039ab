//! The answering side: one stream per daemon, told to the coordinator as events.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use doors::{
    Callers, Door, Peer, Who,
    limits::{RPC_CONNECTIONS_MAX, STREAMS_PER_CONNECTION_MAX},
};
use futures_util::{Stream, StreamExt, future::ready, stream};
use prost::Message;
use protocol::message::{Down, Up, UpBody};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    time,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming, metadata::MetadataValue};

use crate::{
    COORDINATOR_METADATA,
    allowance::Allowance,
    error::{WireError, in_full},
    limits::{
        DOWN_BYTES_MAX, FLUSH_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, OUTBOX_CAPACITY, UP_BYTES_MAX,
    },
    pb::{
        self,
        control_server::{Control, ControlServer as GeneratedServer},
    },
    peer::{self, PeerServer},
};

/// One stream of one daemon. Never given twice in the life of a [`ControlServer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// For each stream: `Opened`, then messages, then `Closed`, once each and in this order.
#[derive(Debug)]
// Nearly all of them are messages: to box each would save nothing.
#[allow(clippy::large_enum_variant)]
pub enum ConnEvent {
    Opened(Outbox),
    Message(Up),
    Closed,
}

/// This daemon does not decide; `coordinator` does, as far as it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotCoordinator {
    /// `host:port` of its control address.
    pub coordinator: Option<String>,
}

/// Asked whenever a daemon dials.
pub trait Acceptor: Send + Sync + 'static {
    /// Where the new stream's events go. A full channel holds up the daemons, not the coordinator; when
    /// its receiver is dropped, as on losing office, the streams that use it end.
    fn accept(&self) -> Result<mpsc::Sender<(ConnId, ConnEvent)>, NotCoordinator>;
}

/// The way to one daemon. Never waits. The stream ends when the last clone is dropped, after what was
/// sent.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: mpsc::Sender<Down>,
    overflown: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The daemon has not taken anything for too long; its stream ends.
    #[error("the daemon does not take its messages")]
    Full,
    #[error("the stream has ended")]
    Closed,
}

impl Outbox {
    /// A daemon whose queue is full ([`OUTBOX_CAPACITY`]) is disconnected: nothing may be left out of
    /// a stream silently, and `Closed` follows as an event.
    pub fn send(&self, down: Down) -> Result<(), SendError> {
        match self.queue.try_send(down) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.overflown.cancel();
                Err(SendError::Full)
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(SendError::Closed),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot serve daemons")]
pub struct ServeError(#[source] tonic::transport::Error);

#[derive(Debug)]
pub struct ControlServer<A> {
    acceptor: A,
    next: AtomicU64,
}

impl<A: Acceptor> ControlServer<A> {
    pub fn new(acceptor: A) -> ControlServer<A> {
        ControlServer { acceptor, next: AtomicU64::new(1) }
    }
}

/// Answers daemons until `shutdown`, which ends their streams.
pub async fn serve<A: Acceptor>(
    listener: TcpListener,
    server: ControlServer<A>,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    serve_all(listener, Some(server), None, shutdown).await
}

/// Answers daemons as a candidate, as a worker, or as both, until `shutdown`.
pub async fn serve_all<A: Acceptor>(
    listener: TcpListener,
    control: Option<ControlServer<A>>,
    peers: Option<PeerServer>,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    serve_door(listener, None, control, peers, shutdown).await
}

/// As [`serve_all`]; with keys, daemons show their certificates, and each speaks for its own node alone.
pub async fn serve_door<A: Acceptor>(
    listener: TcpListener,
    keys: Option<doors::Keys>,
    control: Option<ControlServer<A>>,
    peers: Option<PeerServer>,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let door = Door {
        name: "rpc",
        keys,
        callers: Callers::Nodes,
        connections_max: RPC_CONNECTIONS_MAX,
        per_host_max: RPC_CONNECTIONS_MAX,
    };
    let incoming = ReceiverStream::new(doors::open(listener, door, shutdown.clone()));
    let control = control.map(|server| {
        let control = ControlService { server: Arc::new(server), shutdown: shutdown.clone() };
        GeneratedServer::new(control)
            .max_decoding_message_size(UP_BYTES_MAX)
            .max_encoding_message_size(DOWN_BYTES_MAX)
    });
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_concurrent_streams(Some(STREAMS_PER_CONNECTION_MAX))
        .add_optional_service(control)
        .add_optional_service(peers.map(peer::service))
        .serve_with_incoming_shutdown(
            incoming.map(Ok::<_, std::io::Error>),
            shutdown.clone().cancelled_owned(),
        );
    // A daemon that does not read would otherwise hold the shutdown until keep-alive gives it up.
    let overdue = async {
        shutdown.cancelled().await;
        time::sleep(FLUSH_TIMEOUT).await;
    };
    tokio::select! {
        result = serving => result.map_err(ServeError),
        () = overdue => Ok(()),
    }
}

struct ControlService<A> {
    server: Arc<ControlServer<A>>,
    shutdown: CancellationToken,
}

#[tonic::async_trait]
impl<A: Acceptor> Control for ControlService<A> {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<pb::Down, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<pb::Up>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let caller = caller(&request)?;
        let events = self.server.acceptor.accept().map_err(|error| not_coordinator(&error))?;
        let conn = ConnId(self.server.next.fetch_add(1, Ordering::Relaxed));
        // One at a time: what waits for a slow daemon stays in its bounded queue, which is freed as
        // soon as it is disconnected; what is in here is held until the daemon reads or is gone.
        let (wire, body) = mpsc::channel(1);
        let (last_word, status) = oneshot::channel();
        let stream = ConnStream { conn, caller, events, wire, shutdown: self.shutdown.clone() };
        tokio::spawn(stream.run(request.into_inner(), last_word));
        let end = stream::once(status).filter_map(|status| ready(status.ok().map(Err)));
        Ok(Response::new(Box::pin(ReceiverStream::new(body).map(Ok).chain(end))))
    }
}

/// The other side of a stream, and the one node that it may speak for, if certificates say so.
pub(crate) struct Caller {
    addr: String,
    node: Option<String>,
}

impl Caller {
    /// Why it may not speak for `node`.
    pub fn refuses(&self, node: &str) -> Option<Status> {
        let own = self.node.as_deref().filter(|own| *own != node)?;
        let message = format!("the certificate is node {own}'s: it may not speak for node {node}");
        Some(Status::permission_denied(message))
    }
}

pub(crate) fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let Some(peer) = request.extensions().get::<Peer>() else {
        return Ok(Caller { addr: String::new(), node: None });
    };
    let addr = peer.addr.to_string();
    match (&peer.who, peer.tls) {
        (Some(Who::Node(node)), _) => Ok(Caller { addr, node: Some(node.clone()) }),
        (None, false) => Ok(Caller { addr, node: None }),
        (Some(Who::Person { .. }) | None, _) => {
            tracing::warn!(peer = addr, "a stream is refused: its certificate is not a node's");
            Err(Status::permission_denied("the certificate is not a node's; `tidegate tls node` makes one"))
        }
    }
}

fn not_coordinator(error: &NotCoordinator) -> Status {
    let mut status = Status::failed_precondition("this daemon is not the coordinator");
    // An address that no header can hold is of no use to the caller either.
    if let Some(Ok(address)) = error.coordinator.as_deref().map(MetadataValue::try_from) {
        status.metadata_mut().insert(COORDINATOR_METADATA, address);
    }
    status
}

/// How a stream ended, seen from here.
enum Ended {
    ByDaemon,
    /// The coordinator dropped the outbox.
    LetGo,
    Malformed(String),
    /// It spoke for a node that it is not.
    Impostor(Status),
    Overflown,
    /// The coordinator made a message that no daemon would take: a mistake of ours.
    TooLarge {
        bytes: usize,
    },
    /// Nobody takes the events any more.
    Resigned,
    Shutdown,
}

impl Ended {
    /// What the daemon is told; `None` is a plain end.
    fn status(&self) -> Option<Status> {
        match self {
            Ended::ByDaemon | Ended::LetGo => None,
            Ended::Malformed(why) => Some(Status::invalid_argument(why)),
            Ended::Impostor(refused) => Some(refused.clone()),
            Ended::Overflown => Some(Status::resource_exhausted("too many messages wait to be taken")),
            Ended::TooLarge { bytes } => Some(Status::internal(format!("a message of {bytes} bytes"))),
            Ended::Resigned => Some(not_coordinator(&NotCoordinator::default())),
            Ended::Shutdown => Some(Status::unavailable("this daemon is stopping")),
        }
    }
}

struct ConnStream {
    conn: ConnId,
    caller: Caller,
    events: mpsc::Sender<(ConnId, ConnEvent)>,
    wire: mpsc::Sender<pb::Down>,
    shutdown: CancellationToken,
}

impl ConnStream {
    async fn run(self, inbound: Streaming<pb::Up>, last_word: oneshot::Sender<Status>) {
        let (queue, waiting) = mpsc::channel(OUTBOX_CAPACITY);
        let overflown = CancellationToken::new();
        let outbox = Outbox { queue, overflown: overflown.clone() };
        if self.events.send((self.conn, ConnEvent::Opened(outbox))).await.is_err() {
            drop(last_word.send(not_coordinator(&NotCoordinator::default())));
            return;
        }
        let ended = tokio::select! {
            ended = self.read(inbound) => ended,
            ended = self.write(waiting) => ended,
            () = overflown.cancelled() => Ended::Overflown,
            () = self.events.closed() => Ended::Resigned,
            () = self.shutdown.cancelled() => Ended::Shutdown,
        };
        self.log(&ended);
        let ConnStream { conn, events, wire, .. } = self;
        if let Some(status) = ended.status() {
            drop(last_word.send(status));
        }
        drop(wire);
        // Nobody is left to be told if this fails.
        drop(events.send((conn, ConnEvent::Closed)).await);
    }

    async fn read(&self, mut inbound: Streaming<pb::Up>) -> Ended {
        let mut allowance = Allowance::new(time::Instant::now());
        loop {
            let wait = allowance.take(time::Instant::now());
            if !wait.is_zero() {
                time::sleep(wait).await;
            }
            let up = match inbound.message().await {
                Ok(Some(up)) => up,
                Ok(None) => return Ended::ByDaemon,
                Err(status) => return unreadable(&status),
            };
            let up = match Up::try_from(up) {
                Ok(up) => up,
                Err(error) => return malformed(&error),
            };
            if let UpBody::Hello(hello) = &up.body
                && let Some(refused) = self.caller.refuses(hello.node.as_str())
            {
                return Ended::Impostor(refused);
            }
            if self.events.send((self.conn, ConnEvent::Message(up))).await.is_err() {
                return Ended::Resigned;
            }
        }
    }

    async fn write(&self, mut waiting: mpsc::Receiver<Down>) -> Ended {
        loop {
            let down = tokio::select! {
                down = waiting.recv() => down,
                () = self.wire.closed() => return Ended::ByDaemon,
            };
            let Some(down) = down else { return Ended::LetGo };
            let down = pb::Down::from(&down);
            let bytes = down.encoded_len();
            if bytes > DOWN_BYTES_MAX {
                return Ended::TooLarge { bytes };
            }
            if self.wire.send(down).await.is_err() {
                return Ended::ByDaemon;
            }
        }
    }

    fn log(&self, ended: &Ended) {
        let (conn, peer) = (self.conn.0, self.caller.addr.as_str());
        match ended {
            Ended::Impostor(refused) => {
                tracing::warn!(conn, peer, "stream of a daemon refused: {}", refused.message());
            }
            Ended::Malformed(error) => tracing::warn!(conn, peer, error, "message of a daemon refused"),
            Ended::Overflown => {
                tracing::warn!(conn, peer, "a daemon does not take its messages: disconnected")
            }
            Ended::TooLarge { bytes } => {
                tracing::error!(conn, peer, bytes, max = DOWN_BYTES_MAX, "message to a daemon is too large");
            }
            Ended::ByDaemon => tracing::debug!(conn, peer, "a daemon hung up"),
            Ended::LetGo | Ended::Resigned | Ended::Shutdown => {
                tracing::debug!(conn, peer, "stream of a daemon ended");
            }
        }
    }
}

fn malformed(error: &WireError) -> Ended {
    Ended::Malformed(in_full(error))
}

/// Bytes that are no message, or too many of them, come as these codes; the rest is a daemon that is
/// gone.
fn unreadable(status: &Status) -> Ended {
    match status.code() {
        Code::Internal | Code::OutOfRange | Code::Unimplemented => {
            Ended::Malformed(status.message().to_owned())
        }
        _ => Ended::ByDaemon,
    }
}
