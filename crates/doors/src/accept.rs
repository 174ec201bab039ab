//! Listeners: who connects is counted, asked for a certificate where there are any, and handed on.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use crate::{
    keys::{Certificate, Keys},
    limits::{HANDSHAKE_MAX, HANDSHAKES_MAX},
    watched::Watched,
    who::Who,
};

/// Connections that wait to be taken up.
const READY_MAX: usize = 64;
/// After an error that another try at once would only repeat, such as no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Refusals are said at most this often: whoever knocks all night must not fill the disk.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Who is asked for a certificate, where there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Everybody, and it must be a good one.
    Nodes,
    /// Whoever has one. A bad one is worse than none.
    Anyone,
}

/// How one listener is guarded.
#[derive(Clone)]
pub struct Door {
    /// In the log: `api`, `rpc`.
    pub name: &'static str,
    /// None: connections are plain.
    pub keys: Option<Keys>,
    pub callers: Callers,
    pub connections_max: usize,
    pub per_host_max: usize,
}

/// The other side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub addr: SocketAddr,
    /// The connection is encrypted; `who` is what the caller proved by it.
    pub tls: bool,
    pub who: Option<Who>,
}

/// An accepted connection, and its place among those that may be open.
pub struct Io {
    stream: Stream,
    peer: Peer,
    _place: Place,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<Watched<TlsStream<TcpStream>>>),
}

/// One of the connections that may be open, and of those of one address.
struct Place {
    _permit: OwnedSemaphorePermit,
    host: IpAddr,
    hosts: Arc<Hosts>,
}

#[derive(Default)]
struct Hosts(Mutex<BTreeMap<IpAddr, usize>>);

impl Hosts {
    fn enter(&self, host: IpAddr, max: usize) -> bool {
        let mut hosts = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = hosts.entry(host).or_default();
        let fits = *count < max;
        *count += usize::from(fits);
        fits
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut hosts = self.hosts.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(count) = hosts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                hosts.remove(&self.host);
            }
        }
    }
}

impl Io {
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// Accepts until `shutdown`, or until nobody takes what comes.
pub fn open(listener: TcpListener, door: Door, shutdown: CancellationToken) -> mpsc::Receiver<Io> {
    let (ready, taken) = mpsc::channel(READY_MAX);
    tokio::spawn(async move {
        let mut entrance = Entrance {
            places: Arc::new(Semaphore::new(door.connections_max)),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            hosts: Arc::default(),
            full: Hush::default(),
            ready,
            door,
        };
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = shutdown.cancelled() => return,
                () = entrance.ready.closed() => return,
            };
            match accepted {
                Ok((tcp, addr)) => entrance.enter(tcp, addr).await,
                Err(error) if is_the_callers(&error) => {}
                Err(error) => {
                    entrance.full.say(|| tracing::warn!(door = entrance.door.name, %error, "cannot accept"));
                    time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    taken
}

fn is_the_callers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

struct Entrance {
    door: Door,
    places: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    hosts: Arc<Hosts>,
    full: Hush,
    ready: mpsc::Sender<Io>,
}

impl Entrance {
    async fn enter(&mut self, tcp: TcpStream, addr: SocketAddr) {
        let name = self.door.name;
        let host = addr.ip().to_canonical();
        let permit = Arc::clone(&self.places).try_acquire_owned();
        let Ok(permit) = permit else {
            let max = self.door.connections_max;
            return self.full.say(|| tracing::warn!(door = name, max, "too many connections: one is closed"));
        };
        if !self.hosts.enter(host, self.door.per_host_max) {
            let max = self.door.per_host_max;
            let warn =
                || tracing::warn!(door = name, %host, max, "too many connections of one host: one is closed");
            return self.full.say(warn);
        }
        let place = Place { _permit: permit, host, hosts: Arc::clone(&self.hosts) };
        // One that is gone already is seen by whoever reads from it.
        let _ = tcp.set_nodelay(true);
        let Some(keys) = &self.door.keys else {
            let peer = Peer { addr, tls: false, who: None };
            let _ = self.ready.send(Io { stream: Stream::Plain(tcp), peer, _place: place }).await;
            return;
        };
        let material = keys.material();
        let config = match self.door.callers {
            Callers::Nodes => Arc::clone(&material.nodes),
            Callers::Anyone => Arc::clone(&material.anyone),
        };
        let Ok(handshake) = Arc::clone(&self.handshakes).acquire_owned().await else { return };
        let ready = self.ready.clone();
        let (said, keys) = (self.full.clone(), keys.clone());
        tokio::spawn(async move {
            let shaken = time::timeout(HANDSHAKE_MAX, TlsAcceptor::from(config).accept(tcp)).await;
            drop(handshake);
            match shaken {
                Ok(Ok(stream)) => {
                    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    let shown = shown.cloned();
                    let who = shown.as_deref().and_then(|der| Certificate::parse(der)?.who);
                    let peer = Peer { addr, tls: true, who };
                    let stream = Stream::Tls(Box::new(Watched::new(stream, &keys, shown.as_deref())));
                    let _ = ready.send(Io { stream, peer, _place: place }).await;
                }
                Ok(Err(error)) => {
                    said.say(|| tracing::warn!(door = name, peer = %addr, %error, "a connection is refused"));
                }
                Err(_) => {
                    said.say(|| tracing::warn!(door = name, peer = %addr, "a handshake took too long"));
                }
            }
        });
    }
}

/// Says something now and then.
#[derive(Clone, Default)]
struct Hush(Arc<Mutex<Option<Instant>>>);

impl Hush {
    fn say(&self, words: impl FnOnce()) {
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= SAY_EVERY) {
            *last = Some(Instant::now());
            words();
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

impl Connected for Io {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}
