//! The asking side of the control socket; the protocol is in [`crate::shim::control`].

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::shim::control::{PROTOCOL_VERSION, SOCKET, Status};
use crate::sys;

/// A shim answers within microseconds; one that does not is stopped or starved.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody is there: it has ended, or its ending is being recorded.
    #[error("the shim is gone")]
    Gone,
    #[error("the shim does not answer")]
    Silent,
    #[error("the shim refused: {0}")]
    Refused(String),
    #[error("the control socket failed")]
    Io(#[from] io::Error),
}

pub async fn ask(dir: &Path, op: &str, mut question: Value) -> Result<Value, ControlError> {
    question["v"] = json!(PROTOCOL_VERSION);
    question["op"] = json!(op);
    let exchange = exchange(dir, format!("{question}\n"));
    let line = tokio::time::timeout(ANSWER_WITHIN, exchange).await.map_err(|_| ControlError::Silent)??;
    let answer: Value = serde_json::from_slice(&line).map_err(|e| ControlError::Refused(e.to_string()))?;
    if answer.get("ok").and_then(Value::as_bool) == Some(true) {
        return Ok(answer);
    }
    let why = answer.get("error").and_then(Value::as_str).unwrap_or("no reason given");
    Err(ControlError::Refused(why.into()))
}

async fn exchange(dir: &Path, question: String) -> Result<Vec<u8>, ControlError> {
    let gone = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
            ControlError::Gone
        }
        io::ErrorKind::BrokenPipe => ControlError::Gone,
        _ => ControlError::Io(e),
    };
    let handle = File::open(dir).map_err(gone)?;
    let mut stream = UnixStream::connect(sys::short_path(&handle, SOCKET)).await.map_err(gone)?;
    stream.write_all(question.as_bytes()).await.map_err(gone)?;
    let mut line = Vec::new();
    let mut reader = BufReader::new(stream.take(ANSWER_BYTES_MAX));
    reader.read_until(b'\n', &mut line).await.map_err(gone)?;
    if line.ends_with(b"\n") { Ok(line) } else { Err(ControlError::Gone) }
}

pub async fn status(dir: &Path) -> Result<Status, ControlError> {
    let mut answer = ask(dir, "status", json!({})).await?;
    serde_json::from_value(answer["status"].take()).map_err(|e| ControlError::Refused(e.to_string()))
}
