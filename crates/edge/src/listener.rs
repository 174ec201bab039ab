//! One listening port: opens it, accepts from it, closes it without losing who was in its queue.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_util::sync::CancellationToken;

use crate::shell::Event;

/// Connections the kernel keeps for us until they are accepted. A burst waits here instead of seeing
/// its handshakes dropped.
const BACKLOG: u32 = 1024;

/// The pause after `accept` failed for want of descriptors or memory; doubles up to the longest.
/// Without one the loop would spin, since the connection that could not be accepted stays in the queue.
const ACCEPT_PAUSE_FIRST: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// `SO_REUSEADDR`: connections of an earlier life that linger in TIME_WAIT must not keep us out.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts until `closed`, then takes who is in the queue and closes the port.
pub(crate) async fn run(
    listener: TcpListener,
    port: u16,
    permits: Arc<Semaphore>,
    events: mpsc::Sender<Event>,
    closed: CancellationToken,
) {
    let lost = tokio::select! {
        biased;
        () = closed.cancelled() => None,
        error = accept_all(&listener, port, &permits, &events) => error,
    };
    let lost = match lost {
        Some(error) => {
            tracing::warn!(port, %error, "the port was lost");
            Some(format!("cannot accept connections: {error}"))
        }
        None => {
            take_queue(listener, port, &permits, &events).await;
            None
        }
    };
    // Without an owner there is nobody left to tell.
    let _ = events.send(Event::ListenerClosed { port, lost }).await;
}

/// Returns why no more can be accepted; `None` when nobody wants them.
async fn accept_all(
    listener: &TcpListener,
    port: u16,
    permits: &Arc<Semaphore>,
    events: &mpsc::Sender<Event>,
) -> Option<io::Error> {
    let mut pause = ACCEPT_PAUSE_FIRST;
    loop {
        let permit = permit(port, permits).await?;
        match listener.accept().await {
            Ok((client, _)) => {
                pause = ACCEPT_PAUSE_FIRST;
                events.send(Event::Accepted { port, client, permit }).await.ok()?;
            }
            Err(error) => match judge(&error) {
                Trouble::OfOneConnection => {
                    tracing::debug!(port, %error, "a connection went before it was accepted")
                }
                Trouble::Shortage => {
                    tracing::warn!(port, %error, ?pause, "cannot accept; waiting");
                    drop(permit);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
                }
                Trouble::OfTheListener => return Some(error),
            },
        }
    }
}

async fn permit(port: u16, permits: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    match permits.clone().try_acquire_owned() {
        Ok(permit) => Some(permit),
        Err(_) => {
            tracing::warn!(port, "as many connections as there may be: new ones wait");
            permits.clone().acquire_owned().await.ok()
        }
    }
}

enum Trouble {
    OfOneConnection,
    Shortage,
    OfTheListener,
}

/// `accept` also reports errors of the connection it would have returned (accept(2), "Error handling").
fn judge(error: &io::Error) -> Trouble {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Trouble::Shortage,
        Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => Trouble::OfTheListener,
        Some(_) | None => Trouble::OfOneConnection,
    }
}

/// Closing a socket resets who is in its queue; they connected in time and are served.
async fn take_queue(
    listener: TcpListener,
    port: u16,
    permits: &Arc<Semaphore>,
    events: &mpsc::Sender<Event>,
) {
    // Past the runtime, which may not have heard yet that somebody is waiting.
    let Ok(listener) = listener.into_std() else { return };
    let mut waiting = Vec::new();
    while let Ok(permit) = permits.clone().try_acquire_owned() {
        let Ok((client, _)) = listener.accept() else { break };
        waiting.push((client, permit));
    }
    // Before anything that takes time: the port may be wanted again.
    drop(listener);
    for (client, permit) in waiting {
        let client = client.set_nonblocking(true).and_then(|()| TcpStream::from_std(client));
        if let Ok(client) = client
            && events.send(Event::Accepted { port, client, permit }).await.is_err()
        {
            return;
        }
    }
}
