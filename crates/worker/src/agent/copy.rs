//! Scratch data on its way from one node to another: served here, fetched there.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use doors::Http;
use protocol::{message::Run, node::CopyEnd};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{disk, http::error, launch::chain};
use crate::{
    scratch::{self, DISK, HALF, UnpackError},
    sys::sync_parent,
};

/// A daemon that takes a connection and then says nothing for so long is asked anew.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Chunks between the network and the disk: memory that a slow one of them may hold.
const CHUNKS: usize = 16;
const CHUNK_BYTES: usize = 64 << 10;

type Chunk = io::Result<Bytes>;

/// Bytes written here go out as the body of a response.
struct ChunkWriter {
    to: mpsc::Sender<Chunk>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.to.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The body of a response, read where blocking is allowed.
struct ChunkReader {
    from: mpsc::Receiver<Chunk>,
    rest: Bytes,
    /// Why the network failed: what came until then is nobody's fault here.
    broken: Option<String>,
}

impl Read for ChunkReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.from.blocking_recv() {
                Some(Ok(bytes)) => self.rest = bytes,
                Some(Err(fault)) => {
                    self.broken = Some(fault.to_string());
                    return Err(fault);
                }
                None => return Ok(0),
            }
        }
        let taken = self.rest.len().min(into.len());
        into[..taken].copy_from_slice(&self.rest.split_to(taken));
        Ok(taken)
    }
}

/// The scratch directory of an instance that is over, as an archive.
pub(super) async fn serve(dir: PathBuf, name: &str) -> Response {
    if !disk::is_over(&dir) {
        let message = format!("{name} is not over: its scratch data may still change");
        return error(StatusCode::CONFLICT, "instance_running", &message);
    }
    let disk = dir.join(DISK);
    if !std::fs::symlink_metadata(&disk).is_ok_and(|meta| meta.is_dir()) {
        let message = format!("this node has no scratch data of {name}");
        return error(StatusCode::NOT_FOUND, "disk_not_found", &message);
    }
    let (to, chunks) = mpsc::channel::<Chunk>(CHUNKS);
    tokio::task::spawn_blocking(move || {
        let writer = io::BufWriter::with_capacity(CHUNK_BYTES, ChunkWriter { to: to.clone() });
        if let Err(fault) = scratch::pack(&disk, writer) {
            // The body ends with an error, so that nobody takes what came for all.
            tracing::warn!("{} is not served to its end: {fault}", disk.display());
            let _ = to.blocking_send(Err(fault));
        }
    });
    ([("content-type", "application/x-tar")], Body::from_stream(ReceiverStream::new(chunks))).into_response()
}

/// Copies what the order names into the instance's directory. Returns when nothing of it goes on.
pub(super) async fn fetch(
    what: &Run,
    dir: &Path,
    full_at: f64,
    cancel: CancellationToken,
    http: &Http,
) -> CopyEnd {
    let impossible = |message: String| CopyEnd::Impossible { message };
    let Some(from) = &what.disk_from else { return CopyEnd::Done };
    // By its name alone: it came whole in an earlier life of this daemon, which had no time to note it.
    if dir.join(DISK).is_dir() {
        return CopyEnd::Done;
    }
    let name = from.instance.named(&what.service);
    if from.api.is_empty() {
        return impossible(format!("the node that had the data of {name} is gone"));
    }
    let url = format!("{}/v1/local/instances/{name}/disk", http.base_url(&from.api));
    let answer = tokio::select! {
        answer = ask(&url, http) => answer,
        () = cancel.cancelled() => return cut_short(),
    };
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(end) => return end,
    };
    let (to, chunks) = mpsc::channel::<Chunk>(CHUNKS);
    let at = dir.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || unpack(chunks, &at, full_at));
    let mut heard = false;
    loop {
        let chunk = tokio::select! {
            chunk = tokio::time::timeout(SILENCE_MAX, answer.chunk()) => chunk,
            () = cancel.cancelled() => {
                let _ = to.send(Err(io::Error::other("it was cut short"))).await;
                break;
            }
        };
        let chunk = match chunk {
            Ok(Ok(Some(bytes))) => Ok(bytes),
            Ok(Ok(None)) => break,
            Ok(Err(fault)) => Err(io::Error::other(chain(&fault))),
            Err(_) => Err(io::Error::other(format!("nothing came for {}s", SILENCE_MAX.as_secs()))),
        };
        heard |= chunk.is_ok();
        let failed = chunk.is_err();
        // Nobody takes it: unpacking has ended, well or not.
        if to.send(chunk).await.is_err() || failed {
            break;
        }
    }
    drop(to);
    match unpacking.await {
        Ok((Ok(()), _)) => CopyEnd::Done,
        Ok((Err(_), Some(broken))) => CopyEnd::Broken { heard, message: broken },
        // A stream that seemed to end well and did not hold what it should.
        Ok((Err(fault @ (UnpackError::Half | UnpackError::Read(_))), None)) => {
            CopyEnd::Broken { heard, message: chain(&fault) }
        }
        Ok((Err(fault), None)) => impossible(chain(&fault)),
        Err(fault) => impossible(format!("unpacking it ended: {fault}")),
    }
}

fn cut_short() -> CopyEnd {
    CopyEnd::Broken { heard: true, message: "it was cut short".to_owned() }
}

/// A body that begins to come; or why not.
async fn ask(url: &str, http: &Http) -> Result<reqwest::Response, CopyEnd> {
    let broken = |heard: bool, message: String| CopyEnd::Broken { heard, message };
    let answer = match tokio::time::timeout(SILENCE_MAX, http.client().get(url).send()).await {
        Ok(answer) => answer.map_err(|fault| broken(false, chain(&fault)))?,
        Err(_) => return Err(broken(false, format!("{url} did not answer"))),
    };
    let status = answer.status();
    if status == StatusCode::OK {
        return Ok(answer);
    }
    let body = tokio::time::timeout(SILENCE_MAX, answer.json::<serde_json::Value>()).await;
    let said =
        body.ok().and_then(Result::ok).and_then(|body| Some(body["error"]["message"].as_str()?.to_owned()));
    let message = said.unwrap_or_else(|| format!("{url} answered {status}"));
    match status.is_server_error() {
        true => Err(broken(true, message)),
        false => Err(CopyEnd::Impossible { message }),
    }
}

/// Whole, on disk and then renamed; or not there at all.
fn unpack(
    from: mpsc::Receiver<Chunk>,
    dir: &Path,
    full_at: f64,
) -> (Result<(), UnpackError>, Option<String>) {
    let (half, whole) = (dir.join(HALF), dir.join(DISK));
    let mut reader = ChunkReader { from, rest: Bytes::new(), broken: None };
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| UnpackError::Write { path, source }
    };
    let unpacked = drop_half(dir)
        .map_err(failed(&half))
        .and_then(|()| scratch::unpack(&mut reader, &half, full_at))
        .and_then(|()| std::fs::rename(&half, &whole).map_err(failed(&whole)))
        .and_then(|()| sync_parent(&whole).map_err(failed(&whole)));
    if unpacked.is_err()
        && let Err(fault) = drop_half(dir)
    {
        tracing::warn!("cannot remove {}: {fault}", half.display());
    }
    (unpacked, reader.broken)
}

/// What an earlier try left is worth nothing.
pub(super) fn drop_half(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir.join(HALF)) {
        Err(fault) if fault.kind() != io::ErrorKind::NotFound => Err(fault),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
