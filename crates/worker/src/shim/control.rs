//! The control socket `DIR/shim.sock`: one line of JSON asks, one line of JSON answers, any number of times
//! per connection. A shim lives as long as its instance, through any number of upgrades of the daemon, so
//! both sides keep to these rules:
//!
//! - every line carries `"v"`, at present 1. A shim answers an unknown version with an error that names the
//!   ones it knows; a daemon that speaks a newer one must fall back to it.
//! - fields may be added to questions and answers under the same version and are ignored by who does not
//!   know them. Meaning never changes under one version.
//!
//! | question | does |
//! |---|---|
//! | `{"v":1,"op":"status"}` | answers with `"status": {…}` ([`Status`]) |
//! | `{"v":1,"op":"signal","signal":15}` | to the process group |
//! | `{"v":1,"op":"kill"}` | SIGKILL to the process group and everything in the cgroup |
//! | `{"v":1,"op":"fence","deadline_ms":123}` | kill it once CLOCK_BOOTTIME passes that; `null`: never |
//!
//! Answers: `{"v":1,"ok":true,…}` or `{"v":1,"ok":false,"error":"…"}`. Who may open the socket may do all
//! of this; it is readable by its owner only.

use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::charge::{Charge, Phase};
use super::record::RunRecord;
use super::spawn_thread;
use crate::sys;

pub const SOCKET: &str = "shim.sock";

pub const PROTOCOL_VERSION: u64 = 1;

/// Longest question that is read; ours are below a hundred bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Connections served at a time. The daemon uses one or two; more is somebody else's mistake.
const CONNECTIONS_MAX: usize = 8;

/// A connection that says nothing for this long is closed.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// What a shim says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub run: RunRecord,
    /// False once the main process has ended and its ending is being recorded.
    pub running: bool,
    pub fence_ms: Option<u64>,
    pub log_bytes_lost: u64,
    /// The release of tidegate the shim was started from.
    pub release: String,
}

/// Must be called by who holds the lock of the directory: it removes the socket of an earlier run.
pub fn bind(dir: &Path) -> io::Result<UnixListener> {
    let handle = File::open(dir)?;
    match std::fs::remove_file(dir.join(SOCKET)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(sys::short_path(&handle, SOCKET))?;
    std::fs::set_permissions(dir.join(SOCKET), Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// A thread of the shim: answers until the shim ends.
pub fn serve(listener: &UnixListener, charge: &Arc<Charge>, run: &RunRecord) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors or memory; it will pass, and the instance needs us meanwhile.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            let _ = send(&stream, &refuse("too many connections"));
            continue;
        }
        let (charge, run, served) = (charge.clone(), run.clone(), open.clone());
        let started = spawn_thread("control", move || {
            let _ = answer_all(&stream, &charge, &run);
            served.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer_all(stream: &UnixStream, charge: &Charge, run: &RunRecord) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_write_timeout(Some(IDLE_MAX))?;
    let mut reader = BufReader::with_capacity(1024, stream);
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            return send(stream, &refuse("not a line"));
        }
        send(stream, &answer(&line, charge, run))?;
    }
}

fn send(mut stream: &UnixStream, answer: &Value) -> io::Result<()> {
    stream.write_all(format!("{answer}\n").as_bytes())
}

fn refuse(why: &str) -> Value {
    json!({"v": PROTOCOL_VERSION, "ok": false, "error": why})
}

fn answer(line: &[u8], charge: &Charge, run: &RunRecord) -> Value {
    let Ok(question) = serde_json::from_slice::<Value>(line) else { return refuse("not JSON") };
    if question.get("v").and_then(Value::as_u64) != Some(PROTOCOL_VERSION) {
        return refuse(&format!("unknown version; known: {PROTOCOL_VERSION}"));
    }
    let done = match question.get("op").and_then(Value::as_str) {
        Some("status") => return tell_status(charge, run),
        Some("signal") => match question.get("signal").and_then(Value::as_i64) {
            Some(signal @ 1..=64) => charge.signal(signal as i32),
            _ => return refuse("signal: a number from 1 to 64"),
        },
        Some("kill") => {
            charge.kill();
            Ok(())
        }
        Some("fence") => match question.get("deadline_ms") {
            Some(Value::Null) => charge.set_fence(None),
            Some(Value::Number(n)) if n.is_u64() => charge.set_fence(n.as_u64()),
            _ => return refuse("deadline_ms: milliseconds, or null"),
        },
        Some(op) => return refuse(&format!("unknown op {op:?}; known: status, signal, kill, fence")),
        None => return refuse("no op"),
    };
    match done {
        Ok(()) => json!({"v": PROTOCOL_VERSION, "ok": true}),
        Err(e) => refuse(&e.to_string()),
    }
}

fn tell_status(charge: &Charge, run: &RunRecord) -> Value {
    let status = Status {
        run: run.clone(),
        running: matches!(charge.phase(), Phase::Running(_)),
        fence_ms: charge.fence_ms(),
        log_bytes_lost: charge.log_bytes_lost.load(Ordering::Relaxed),
        release: env!("CARGO_PKG_VERSION").into(),
    };
    json!({"v": PROTOCOL_VERSION, "ok": true, "status": status})
}
