//! The dialling side: one stream from a daemon to the coordinator.

use std::{future, time::Duration};

use doors::Keys;
use futures_util::StreamExt;
use protocol::message::{Down, Up};
use tokio::{sync::mpsc, task::JoinHandle, time};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    COORDINATOR_METADATA,
    error::{WireError, in_full},
    limits::{
        ADDRESS_BYTES_MAX, CONNECT_TIMEOUT, DOWN_BYTES_MAX, DOWN_CAPACITY, FLUSH_TIMEOUT,
        KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, UP_BYTES_MAX, UP_CAPACITY,
    },
    pb::{self, control_client::ControlClient},
};

/// A stream to the coordinator.
///
/// Dropping `receiver` hangs up, once what is queued in `sender` has been taken (for two seconds at
/// most). Dropping `sender` says that nothing more will come; the coordinator then hangs up. When the
/// stream has ended, `sender` refuses and `receiver` returns `None` after the last message.
#[derive(Debug)]
pub struct Connection {
    pub sender: mpsc::Sender<Up>,
    pub receiver: mpsc::Receiver<Down>,
    /// Finishes with the stream, and says why it ended. A daemon that exits waits for it, so that its
    /// last words get out.
    pub ended: JoinHandle<End>,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    #[error("this side hung up")]
    Closed,
    #[error("the coordinator hung up")]
    ByCoordinator,
    #[error("the daemon asked is not the coordinator any more")]
    NotCoordinator { coordinator: Option<String> },
    #[error("the coordinator sent what cannot be understood")]
    Malformed(#[source] WireError),
    #[error("the stream failed")]
    Failed(#[source] Box<Status>),
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{address:?} is not an address (like \"host:7000\")")]
    Address {
        address: String,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("cannot reach {address}")]
    Unreachable {
        address: String,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("{address} did not answer within {after:?}")]
    Timeout { address: String, after: Duration },
    /// The daemon asked is a candidate; `coordinator` is the one in office, if it knows.
    #[error("the daemon asked is not the coordinator")]
    NotCoordinator { coordinator: Option<String> },
    #[error("{address} refused")]
    Refused {
        address: String,
        #[source]
        status: Box<Status>,
    },
}

impl ConnectError {
    /// The other side will not have us, or we not it: trying again changes nothing until somebody acts.
    pub fn is_refusal(&self) -> bool {
        match self {
            ConnectError::Refused { status, .. } if is_refusal(status) => true,
            ConnectError::Refused { .. } | ConnectError::Unreachable { .. } => {
                // The alerts of TLS reach us as texts within errors of three libraries.
                let text = in_full(self);
                text.contains("certificate") || text.contains("alert")
            }
            ConnectError::Address { .. }
            | ConnectError::Timeout { .. }
            | ConnectError::NotCoordinator { .. } => false,
        }
    }
}

impl End {
    /// As [`ConnectError::is_refusal`].
    pub fn is_refusal(&self) -> bool {
        match self {
            End::Failed(status) => is_refusal(status) || in_full(&**status).contains("alert"),
            End::Closed | End::ByCoordinator | End::NotCoordinator { .. } | End::Malformed(_) => false,
        }
    }
}

fn is_refusal(status: &Status) -> bool {
    matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated)
}

/// Dials a candidate. An answer of "not me" is an error that names the coordinator; whom to dial next
/// is the caller's to decide.
pub async fn connect(address: &str) -> Result<Connection, ConnectError> {
    connect_with(address, None).await
}

/// As [`connect`]; with keys, both sides show and check certificates.
pub async fn connect_with(address: &str, keys: Option<&Keys>) -> Result<Connection, ConnectError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|source| ConnectError::Address { address: address.to_owned(), source })?
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    match time::timeout(CONNECT_TIMEOUT, dial(address, endpoint, keys)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::Timeout { address: address.to_owned(), after: CONNECT_TIMEOUT }),
    }
}

async fn dial(address: &str, endpoint: Endpoint, keys: Option<&Keys>) -> Result<Connection, ConnectError> {
    let address = address.to_owned();
    let channel = match open(endpoint, keys, None).await {
        Ok(channel) => channel,
        Err(source) => return Err(ConnectError::Unreachable { address, source }),
    };
    let mut client = ControlClient::new(channel)
        .max_encoding_message_size(UP_BYTES_MAX)
        .max_decoding_message_size(DOWN_BYTES_MAX);
    let (sender, queue) = mpsc::channel(UP_CAPACITY);
    let (to_us, receiver) = mpsc::channel(DOWN_CAPACITY);
    // One at a time: what is queued stays in `queue`, where `sender` counts it.
    let (wire, body) = mpsc::channel(1);
    let inbound = match client.connect(ReceiverStream::new(body)).await {
        Ok(response) => response.into_inner(),
        Err(status) if status.code() == Code::FailedPrecondition => {
            return Err(ConnectError::NotCoordinator { coordinator: coordinator_of(&status) });
        }
        Err(status) => return Err(ConnectError::Refused { address, status: Box::new(status) }),
    };
    let ended = tokio::spawn(carry(client, queue, wire, inbound, to_us));
    Ok(Connection { sender, receiver, ended })
}

/// A connection to a daemon; with keys to one with a certificate, and to `node` alone if it is named.
pub(crate) async fn open(
    endpoint: Endpoint,
    keys: Option<&Keys>,
    node: Option<&str>,
) -> Result<Channel, tonic::transport::Error> {
    match keys {
        Some(keys) => keys.dial(endpoint, node).await,
        None => endpoint.connect().await,
    }
}

fn coordinator_of(status: &Status) -> Option<String> {
    let address = status.metadata().get(COORDINATOR_METADATA)?.to_str().ok()?;
    (!address.is_empty() && address.len() <= ADDRESS_BYTES_MAX).then(|| address.to_owned())
}

/// Carries messages both ways until the stream ends. `_client` keeps the HTTP/2 connection.
async fn carry(
    _client: ControlClient<Channel>,
    queue: mpsc::Receiver<Up>,
    wire: mpsc::Sender<pb::Up>,
    inbound: Streaming<pb::Down>,
    to_us: mpsc::Sender<Down>,
) -> End {
    let writing = async {
        write(queue, wire, &to_us).await;
        // The other side hears that nothing more comes, and ends the stream in its turn.
        future::pending::<End>().await
    };
    let hung_up = async {
        to_us.closed().await;
        time::sleep(FLUSH_TIMEOUT).await;
    };
    let end = tokio::select! {
        end = read(inbound, &to_us) => end,
        end = writing => end,
        () = hung_up => End::Closed,
    };
    match end {
        End::ByCoordinator if to_us.is_closed() => End::Closed,
        end => {
            tracing::debug!(end = in_full(&end), "stream to the coordinator ended");
            end
        }
    }
}

/// Sends what is queued until nothing more can come.
async fn write(mut queue: mpsc::Receiver<Up>, wire: mpsc::Sender<pb::Up>, to_us: &mpsc::Sender<Down>) {
    loop {
        let up = tokio::select! {
            biased;
            up = queue.recv() => up,
            () = to_us.closed(), if !queue.is_closed() => {
                queue.close();
                continue;
            }
        };
        let Some(up) = up else { return };
        if wire.send(pb::Up::from(&up)).await.is_err() {
            return;
        }
    }
}

/// Hands over what comes. Goes on after the receiver is dropped: the end of the stream is still to be
/// seen.
async fn read(mut inbound: Streaming<pb::Down>, to_us: &mpsc::Sender<Down>) -> End {
    while let Some(next) = inbound.next().await {
        let down = match next {
            Ok(down) => down,
            Err(status) if status.code() == Code::FailedPrecondition => {
                return End::NotCoordinator { coordinator: coordinator_of(&status) };
            }
            Err(status) => return End::Failed(Box::new(status)),
        };
        match Down::try_from(down) {
            Ok(down) => drop(to_us.send(down).await),
            Err(error) => {
                tracing::warn!(error = in_full(&error), "message of the coordinator refused");
                return End::Malformed(error);
            }
        }
    }
    End::ByCoordinator
}
