//! One connection: dials as it is told, then copies both ways until both have ended or it is told to.

use std::{cell::RefCell, io, sync::Arc, time::Duration};

use protocol::edge::{Attempt, ConnId};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{OwnedSemaphorePermit, mpsc},
};

use crate::shell::Event;

/// How long a backend may take to accept. A lost SYN is sent again after one second; who has not
/// answered by then is passed over while the client still waits.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// An idle peer is probed: one whose machine vanished would otherwise keep its place for good. What is
/// alive answers and may stay idle as long as it likes.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// What is read at once. One buffer per thread: a connection that is idle has none.
const BUFFER: usize = 64 * 1024;

pub(crate) enum Command {
    Dial {
        attempt: Attempt,
        address: Arc<str>,
    },
    Hold,
    Copy,
    /// Close it, at whatever stage.
    End,
}

/// Runs a connection to its end and says so. The permit is its place among those that may be open.
pub(crate) async fn run(
    conn: ConnId,
    client: TcpStream,
    mut commands: mpsc::UnboundedReceiver<Command>,
    events: mpsc::Sender<Event>,
    permit: OwnedSemaphorePermit,
) {
    if let Err(error) = prepare(&client) {
        tracing::debug!(conn = conn.0, %error, "socket options of the client");
    }
    if let Some(backend) = backend(conn, &mut commands, &events).await {
        copy_both(conn, client, backend, &mut commands).await;
    } else {
        drop(client);
    }
    drop(permit);
    // Without an owner there is nobody left to tell.
    let _ = events.send(Event::Closed { conn }).await;
}

/// Dials as told until told to copy; `None` if it is to end instead. A command that comes while a dial
/// is in flight, or after it was answered, supersedes it.
async fn backend(
    conn: ConnId,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    events: &mpsc::Sender<Event>,
) -> Option<TcpStream> {
    let mut command = commands.recv().await?;
    loop {
        let Command::Dial { attempt, address } = command else {
            match command {
                Command::Hold => {
                    command = commands.recv().await?;
                    continue;
                }
                Command::Dial { .. } | Command::Copy | Command::End => return None,
            }
        };
        let dialled = tokio::select! {
            biased;
            next = commands.recv() => {
                command = next?;
                continue;
            }
            dialled = dial(&address) => dialled,
        };
        let (stream, event) = match dialled {
            Ok(stream) => (Some(stream), Event::Dialled { conn, attempt }),
            Err(error) => {
                tracing::debug!(conn = conn.0, %address, %error, "passed over");
                (None, Event::DialFailed { conn, attempt })
            }
        };
        events.send(event).await.ok()?;
        command = commands.recv().await?;
        if let Command::Copy = command {
            return stream;
        }
    }
}

async fn dial(address: &str) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await??;
    prepare(&stream)?;
    Ok(stream)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

async fn copy_both(
    conn: ConnId,
    mut client: TcpStream,
    mut backend: TcpStream,
    commands: &mut mpsc::UnboundedReceiver<Command>,
) {
    let (from_client, to_client) = client.split();
    let (from_backend, to_backend) = backend.split();
    let both = async {
        let up = pump(from_client, to_backend);
        let down = pump(from_backend, to_client);
        tokio::try_join!(up, down)
    };
    tokio::select! {
        ended = both => match ended {
            Ok((up, down)) => tracing::trace!(conn = conn.0, up, down, "ended"),
            Err(error) => tracing::debug!(conn = conn.0, %error, "broken"),
        },
        // Only an end can come here, or the owner is gone.
        _ = commands.recv() => {}
    }
}

/// Copies one way until the source has no more, then says so to the target, which may go on answering.
///
/// A source that breaks ends the whole connection. A target that takes no more does not: it may have
/// answered early and closed (HTTP 413 during an upload), and its answer is still on its way to the
/// other side, whose own pump ends by itself when the target's socket is read empty.
async fn pump(source: ReadHalf<'_>, mut target: WriteHalf<'_>) -> io::Result<u64> {
    let mut copied = 0;
    loop {
        tokio::select! {
            biased;
            readable = source.readable() => readable?,
            // A target that reset us is known without a write: a silent source would keep the rest open.
            _ = target.ready(Interest::ERROR) => return Ok(copied),
        }
        match pass(&source, &target) {
            Passed::Nothing => {}
            Passed::All(bytes) => copied += bytes as u64,
            Passed::Some(rest, bytes) => {
                if target.write_all(&rest).await.is_err() {
                    return Ok(copied);
                }
                copied += bytes as u64;
            }
            Passed::End => {
                // The target may be gone already, which is as good.
                let _ = target.shutdown().await;
                return Ok(copied);
            }
            Passed::TargetBroken => return Ok(copied),
            Passed::SourceBroken(error) => return Err(error),
        }
        // A transfer that never has to wait would keep this thread for itself.
        tokio::task::consume_budget().await;
    }
}

enum Passed {
    Nothing,
    All(usize),
    /// What the target did not take at once, and how much there was.
    Some(Vec<u8>, usize),
    End,
    TargetBroken,
    SourceBroken(io::Error),
}

/// Reads once and writes as much of it as the target takes without waiting.
fn pass(source: &ReadHalf<'_>, target: &WriteHalf<'_>) -> Passed {
    thread_local! {
        static SHARED: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into_boxed_slice());
    }
    SHARED.with_borrow_mut(|buffer| {
        let bytes = match source.try_read(buffer) {
            Ok(0) => return Passed::End,
            Ok(bytes) => bytes,
            Err(error) if is_not_now(&error) => return Passed::Nothing,
            Err(error) => return Passed::SourceBroken(error),
        };
        match target.try_write(&buffer[..bytes]) {
            Ok(written) if written == bytes => Passed::All(bytes),
            Ok(written) => Passed::Some(buffer[written..bytes].to_vec(), bytes),
            Err(error) if is_not_now(&error) => Passed::Some(buffer[..bytes].to_vec(), bytes),
            Err(_) => Passed::TargetBroken,
        }
    })
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
