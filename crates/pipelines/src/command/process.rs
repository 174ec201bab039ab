//! One life of a feed's command under its guard: its streams, and how it ended.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::Spec;
use super::guard;
use super::message::{LINE_BYTES_MAX, Said, Told};
use crate::sys;

/// Messages on their way to a command that does not read them. All spans of a large feed may be started at
/// once.
const TOLD_MAX: usize = 16_384;
/// Messages that were read and not looked at; the command has to wait then.
const SAID_MAX: usize = 1_024;
/// What is remembered of stderr, and shown with trouble.
const TAIL_LINES: usize = 10;
const TAIL_LINE_BYTES: usize = 400;
/// A longer line of stderr is broken into several.
const LOGGED_LINE_BYTES: usize = 4 << 10;
/// Lines of stderr that reach the log within a second.
const LOGGED_PER_SECOND: u32 = 100;
/// What is shown of a line that is no message.
const RUBBISH_BYTES: usize = 200;
/// After the guard has ended, for what is left in the pipe of stderr.
const TAIL_WAIT: Duration = Duration::from_secs(1);

/// The user's process gets these of our own environment, and nothing else: a daemon's holds tokens.
const ENV_PASSED_ON: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR"];

pub enum Heard {
    Said(Said),
    /// Not a message, and the beginning of it.
    Rubbish(String),
}

pub struct Process {
    guard: Child,
    pub said: mpsc::Receiver<Heard>,
    told: mpsc::Sender<Vec<u8>>,
    tail: Arc<Mutex<Tail>>,
    stderr: JoinHandle<()>,
}

/// What it wrote to stderr last, and how it ended.
#[derive(Default)]
struct Tail {
    lines: VecDeque<String>,
    ending: Option<String>,
}

impl Process {
    /// The process, and the writing end of its guard's lease pipe: closing that ends it.
    pub fn start(spec: &Spec, fence_ms: u64) -> io::Result<(Process, OwnedFd)> {
        let Some((program, first)) = spec.guard.split_first() else {
            return Err(io::Error::other("this daemon has no guard for commands"));
        };
        let (leased, lease) = pipe_with(PipeFlags::CLOEXEC)?;
        // An extension that finds no room is lost, which is safe; the daemon must not wait for its guard.
        rustix::fs::fcntl_setfl(&lease, rustix::fs::OFlags::NONBLOCK)?;
        let mut command = std::process::Command::new(program);
        command.args(first).args(guard::arguments(leased.as_raw_fd(), fence_ms, &spec.command));
        command.env_clear().envs(ENV_PASSED_ON.iter().filter_map(|key| Some((key, std::env::var_os(key)?))));
        command.envs(&spec.env).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        sys::prepare_guard(&mut command, leased);
        // Not killed when it is dropped: its end is the lease pipe's, so that it can end all of the rest.
        let mut guard = Command::from(command).spawn()?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (guard.stdin.take(), guard.stdout.take(), guard.stderr.take())
        else {
            return Err(io::Error::other("a stream of the command is missing"));
        };
        let tail = Arc::new(Mutex::new(Tail::default()));
        let (told, to_tell) = mpsc::channel(TOLD_MAX);
        let (heard, said) = mpsc::channel(SAID_MAX);
        tokio::spawn(pump_in(to_tell, stdin));
        tokio::spawn(pump_out(BufReader::new(stdout), heard));
        let stderr = tokio::spawn(pump_err(BufReader::new(stderr), tail.clone(), spec.feed.to_string()));
        Ok((Process { guard, said, told, tail, stderr }, lease))
    }

    /// `Err`: the command does not read what it is told, or is gone.
    pub fn tell(&self, message: &Told) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(|e| e.to_string())?;
        line.push(b'\n');
        match self.told.try_send(line) {
            // Its death is noticed at its stdout, where the reason is known as well.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(format!("it does not read its stdin: {TOLD_MAX} messages wait"))
            }
        }
    }

    /// Lets it end by itself, if it does so soon.
    pub async fn left_alone(&mut self, patience: Duration) {
        let _ = timeout(patience, self.guard.wait()).await;
    }

    /// Waits until nothing of it runs, once its lease pipe was closed; says what is known of its end. However
    /// long that takes: until then its dispatchers may still write.
    pub async fn ended(mut self) -> String {
        drop(self.said);
        let waited = self.guard.wait().await;
        // Not before: at the end of its stdin a command may end well, and that would pass for the reason.
        drop(self.told);
        let _ = timeout(TAIL_WAIT, &mut self.stderr).await;
        let tail = lock(&self.tail);
        let mut words = match (&tail.ending, waited) {
            (Some(ending), _) => ending.clone(),
            (None, Ok(status)) => format!("its guard ended without a word ({status})"),
            (None, Err(e)) => format!("its guard ended, and how is unknown: {e}"),
        };
        if !tail.lines.is_empty() {
            let lines: Vec<&str> = tail.lines.iter().map(String::as_str).collect();
            words.push_str(&format!("; it wrote last: {}", lines.join(" | ")));
        }
        words
    }
}

fn lock(tail: &Mutex<Tail>) -> MutexGuard<'_, Tail> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn pump_in(mut lines: mpsc::Receiver<Vec<u8>>, mut stdin: ChildStdin) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}

async fn pump_out(mut stdout: BufReader<impl AsyncRead + Unpin>, heard: mpsc::Sender<Heard>) {
    while let Ok(Some(line)) = next_line(&mut stdout, LINE_BYTES_MAX).await {
        let message = match serde_json::from_slice(&line) {
            Ok(said) => Heard::Said(said),
            Err(e) => Heard::Rubbish(format!("{:?} ({e})", shortened(&line, RUBBISH_BYTES))),
        };
        if heard.send(message).await.is_err() {
            return;
        }
    }
}

async fn pump_err(mut stderr: BufReader<impl AsyncRead + Unpin>, tail: Arc<Mutex<Tail>>, feed: String) {
    let (mut since, mut logged, mut left_out) = (Instant::now(), 0, 0_u64);
    while let Ok(Some(line)) = next_line(&mut stderr, LOGGED_LINE_BYTES).await {
        let text = String::from_utf8_lossy(&line);
        if let Some(ending) = text.strip_prefix(guard::ENDING) {
            lock(&tail).ending = Some(ending.to_owned());
            continue;
        }
        let mut tail = lock(&tail);
        if tail.lines.len() == TAIL_LINES {
            tail.lines.pop_front();
        }
        tail.lines.push_back(shortened(&line, TAIL_LINE_BYTES));
        drop(tail);
        if since.elapsed() >= Duration::from_secs(1) {
            if left_out > 0 {
                tracing::warn!(feed, left_out, "the feed's command wrote more than is logged");
            }
            (since, logged, left_out) = (Instant::now(), 0, 0);
        }
        match logged < LOGGED_PER_SECOND {
            true => tracing::info!(feed, "command: {text}"),
            false => left_out += 1,
        }
        logged = logged.saturating_add(1);
    }
}

fn shortened(line: &[u8], bytes: usize) -> String {
    let text = String::from_utf8_lossy(line);
    match text.char_indices().find(|(at, _)| *at >= bytes) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into_owned(),
    }
}

/// The next line without its newline, or the first `max` bytes of a longer one. `None` at the end.
async fn next_line(from: &mut (impl AsyncBufRead + Unpin), max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let chunk = from.fill_buf().await?;
        if chunk.is_empty() {
            return Ok((!line.is_empty()).then_some(line));
        }
        let room = max - line.len();
        match chunk.iter().take(room).position(|byte| *byte == b'\n') {
            Some(end) => {
                line.extend_from_slice(&chunk[..end]);
                from.consume(end + 1);
                return Ok(Some(line));
            }
            None => {
                let taken = chunk.len().min(room);
                line.extend_from_slice(&chunk[..taken]);
                from.consume(taken);
            }
        }
        if line.len() == max {
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_cut_where_they_get_too_long() {
        let mut text: &[u8] = b"ab\n\nabcdefgh\nlast";
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut text, 4).await.expect("it is memory") {
            lines.push(String::from_utf8(line).expect("text"));
        }
        assert_eq!(lines, ["ab", "", "abcd", "efgh", "", "last"]);
    }

    #[test]
    fn what_is_shown_of_a_line_is_bounded_and_whole_characters() {
        assert_eq!(shortened("ååå".as_bytes(), 3), "åå…");
        assert_eq!(shortened(b"abc", 3), "abc");
    }
}
