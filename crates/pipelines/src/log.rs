//! The `log` source: every `*.log` file of a directory is a span, every line of it a row.
//!
//! Files are only ever added to. A position is the byte behind a line's newline; a line without one is not
//! there yet. Lines that are JSON are rows as they stand, others are rows as JSON strings.
//!
//! `at`, how far a span is in time: a look at the file's length at some time shows everything that was
//! written before. Once all whole lines up to that length are in the sink, `at` is the time of that look. A
//! span that follows its file takes it from every look; one that is behind keeps one look as its goal
//! until that is reached, then takes the next: `at` lags and never claims too much. It only rises.

mod follow;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use model::{Checkpoint, Code, FeedName, SpanName, Time};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use crate::file::mark;
use crate::rows::{Batch, ROW_BYTES_MAX, Row, RowSource, SpanReader};
use crate::{Outlook, Trouble, blocking, wall_clock};
use follow::{Follower, Following, Look};

/// Read at once. Together with the rows made of it, what one span holds in memory.
const BATCH_BYTES: usize = 256 << 10;

/// Readers of one feed that wait for the disk at the same time.
const READS_AT_ONCE: usize = 32;

/// Names of spans become names of directories in a sink.
const SPAN_BYTES_MAX: usize = 200;

/// Files that are left out are named, up to here.
const WARNINGS_MAX: usize = 20;

const ENDING: &str = ".log";

/// One feed's directory of logs on one node.
pub struct LogSource {
    feed: FeedName,
    path: PathBuf,
    expected: Mutex<Option<String>>,
    follower: Follower,
    slots: Arc<Semaphore>,
}

impl LogSource {
    pub fn new(feed: &FeedName, path: impl Into<PathBuf>) -> LogSource {
        LogSource {
            feed: feed.clone(),
            path: path.into(),
            expected: Mutex::new(None),
            follower: Follower::default(),
            slots: Arc::new(Semaphore::new(READS_AT_ONCE)),
        }
    }

    fn expected(&self) -> Option<String> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn file_of(&self, span: &SpanName) -> PathBuf {
        self.path.join(format!("{span}{ENDING}"))
    }
}

#[async_trait]
impl RowSource for LogSource {
    async fn look(&self) -> Result<Outlook, Trouble> {
        let (path, feed, expected) = (self.path.clone(), self.feed.clone(), self.expected());
        blocking(&self.slots, move || {
            let mark = mark_source(&path, &feed, expected.as_deref())?;
            let mut outlook = spans_of(&path)?;
            outlook.mark = mark;
            Ok(outlook)
        })
        .await
    }

    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn SpanReader>, Trouble> {
        if !is_span_name(span.as_str()) {
            return Err(Trouble::lasting(
                Code::SourceUnfit,
                format!("{span:?} is no name of a span of a log"),
            ));
        }
        let (path, feed, expected) = (self.path.clone(), self.feed.clone(), self.expected());
        let file = self.file_of(span);
        let opened = blocking(&self.slots, move || {
            if expected.is_some() {
                mark::prove(&path, &feed, expected.as_deref(), false).map_err(of_source)?;
            }
            Opened::open(&file, true)
        })
        .await?;
        let following = self.follower.follow(&opened.path);
        Ok(Box::new(LogReader {
            following: following.map_err(|e| trouble("following", &opened.path, &e))?,
            opened: Arc::new(opened),
            slots: self.slots.clone(),
            position: 0,
            seen: None,
            goal: None,
        }))
    }

    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble> {
        if !keep.is_empty() {
            return Ok(());
        }
        let (path, feed) = (self.path.clone(), self.feed.clone());
        blocking(&self.slots, move || mark::remove(&path, &feed).map_err(of_source)).await
    }

    fn expect(&self, mark: &str) {
        *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark.to_owned());
    }
}

/// A source need not be writable; without a mark of its own it is proved by the span's file alone.
fn mark_source(path: &Path, feed: &FeedName, expected: Option<&str>) -> Result<Option<String>, Trouble> {
    match mark::prove(path, feed, expected, true).map_err(of_source) {
        Ok(mark) => Ok(Some(mark)),
        Err(trouble) if expected.is_none() && trouble.code == Code::SourceUnfit => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

/// Marks are mostly a sink's.
fn of_source(trouble: Trouble) -> Trouble {
    let code = match trouble.code {
        Code::SinkUnfit => Code::SourceUnfit,
        Code::SinkUnreachable => Code::SourceUnreachable,
        other => other,
    };
    Trouble { code, ..trouble }
}

fn spans_of(path: &Path) -> Result<Outlook, Trouble> {
    let fail = |e: io::Error| trouble("listing", path, &e);
    let mut outlook = Outlook::default();
    let mut left_out = 0;
    for entry in std::fs::read_dir(path).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        let Some(stem) = name.to_string_lossy().strip_suffix(ENDING).map(str::to_owned) else { continue };
        // Through links: a log may be one.
        let is_file = std::fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file());
        match is_file && name.to_str().is_some() && is_span_name(&stem) {
            true => outlook.spans.push(SpanName::new(&stem)),
            false => {
                left_out += 1;
                if left_out <= WARNINGS_MAX {
                    let shown = entry.path().display().to_string();
                    outlook.warnings.push(format!(
                        "{shown} is left out: not a file whose name is of letters, digits, '-', '_' and '.'"
                    ));
                }
            }
        }
    }
    if left_out > WARNINGS_MAX {
        outlook.warnings.push(format!("{} more files are left out", left_out - WARNINGS_MAX));
    }
    outlook.spans.sort();
    outlook.warnings.sort();
    Ok(outlook)
}

fn is_span_name(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= SPAN_BYTES_MAX && !name.starts_with('.') && name.bytes().all(fine)
}

/// A log file that was opened, and by what it is told from another one of the same name.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
}

impl Opened {
    /// `elsewhere`: other nodes have it, as far as anybody knows.
    fn open(path: &Path, elsewhere: bool) -> Result<Opened, Trouble> {
        let opened = File::open(path).and_then(|file| file.metadata().map(|meta| (file, meta)));
        match opened {
            Ok((file, meta)) => {
                Ok(Opened { path: path.to_owned(), file, identity: (meta.dev(), meta.ino()) })
            }
            Err(e) if elsewhere && e.kind() == io::ErrorKind::NotFound => Err(Trouble::lasting(
                Code::PathNotShared,
                format!(
                    "{} is not on this node; every node that may run the feed must have it",
                    path.display()
                ),
            )),
            Err(e) => Err(trouble("opening", path, &e)),
        }
    }

    /// The whole lines behind `position`, as many as fit.
    fn read(&self, position: u64) -> Result<Chunk, Trouble> {
        let fail = |e: io::Error| trouble("reading", &self.path, &e);
        // Before the look: what is written later may be in it, what was written earlier is.
        let at = wall_clock();
        let length = self.file.metadata().map_err(fail)?.len();
        if length < position {
            return Err(shrank(&self.path, length, position));
        }
        let mut room = BATCH_BYTES;
        loop {
            // One byte before: the newline that was read last must still be there, or this is another
            // text than the one whose rows are in the sink.
            let begin = position.saturating_sub(1);
            let whole = usize::try_from(length - begin).unwrap_or(usize::MAX);
            let mut bytes = vec![0; whole.min(room)];
            self.file.read_exact_at(&mut bytes, begin).map_err(fail)?;
            let fresh = match position {
                0 => &bytes[..],
                _ if bytes.first() == Some(&b'\n') => &bytes[1..],
                _ => return Err(another_text(&self.path, position)),
            };
            let all = bytes.len() == whole;
            match fresh.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => {
                    let rows = rows_of(&fresh[..=end], position);
                    return Ok(Chunk { rows, at, length, all });
                }
                None if all && fresh.len() <= ROW_BYTES_MAX => {
                    return Ok(Chunk { rows: Vec::new(), at, length, all });
                }
                None if fresh.len() > ROW_BYTES_MAX => return Err(too_long(&self.path, position)),
                None => room = room.saturating_mul(4).min(ROW_BYTES_MAX + 2),
            }
        }
    }
}

/// What one reading gave.
struct Chunk {
    rows: Vec<Row>,
    /// When the length was looked at.
    at: Time,
    length: u64,
    /// It goes to the end: no whole line is left up to `length`.
    all: bool,
}

/// `lines` ends with a newline and begins at `position`.
fn rows_of(lines: &[u8], mut position: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        position += line.len() as u64;
        rows.push(Row { position, key: None, value: value_of(&line[..line.len() - 1]), more: false });
    }
    rows
}

fn value_of(line: &[u8]) -> Box<RawValue> {
    let text = String::from_utf8_lossy(line);
    if let Ok(value) = serde_json::from_str::<&RawValue>(&text) {
        return value.to_owned();
    }
    // A string always has a form in JSON.
    serde_json::value::to_raw_value(&*text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

struct LogReader {
    opened: Arc<Opened>,
    following: Following,
    slots: Arc<Semaphore>,
    position: u64,
    /// The length up to which every whole line was given. `None`: there may be more.
    seen: Option<u64>,
    /// While behind: the look that has to be reached for `at` to rise.
    goal: Option<(Time, u64)>,
}

#[async_trait]
impl SpanReader for LogReader {
    async fn seek(&mut self, to: Checkpoint) -> Result<(), Trouble> {
        self.position = to.position;
        Ok(())
    }

    async fn next(&mut self) -> Result<Batch, Trouble> {
        if let Some(seen) = self.seen {
            let look = self.following.next().await;
            self.check(&look)?;
            if let Look::Length { at, length, .. } = look
                && length == seen
            {
                return Ok(Batch { rows: Vec::new(), at: Some(at) });
            }
        }
        let (opened, position) = (self.opened.clone(), self.position);
        let chunk = blocking(&self.slots, move || opened.read(position)).await?;
        Ok(self.take(chunk))
    }
}

impl LogReader {
    fn take(&mut self, chunk: Chunk) -> Batch {
        self.position = chunk.rows.last().map_or(self.position, |row| row.position);
        self.seen = chunk.all.then_some(chunk.length);
        let at = match (chunk.all, self.goal) {
            (true, _) => {
                self.goal = None;
                Some(chunk.at)
            }
            (false, Some((at, length))) if self.position >= length => {
                self.goal = Some((chunk.at, chunk.length));
                Some(at)
            }
            (false, Some(_)) => None,
            (false, None) => {
                self.goal = Some((chunk.at, chunk.length));
                None
            }
        };
        Batch { rows: chunk.rows, at }
    }

    fn check(&self, look: &Look) -> Result<(), Trouble> {
        let path = &self.opened.path;
        match look {
            Look::Nothing => Ok(()),
            Look::Gone(why) => Err(Trouble::passing(
                Code::SourceUnreachable,
                format!("{}: {why}; {} bytes of it were read", path.display(), self.position),
            )),
            Look::Length { identity, .. } if *identity != self.opened.identity => Err(Trouble::lasting(
                Code::SourceUnfit,
                format!(
                    "{} was replaced by another file after {} bytes of it were read; logs are only added to",
                    path.display(),
                    self.position
                ),
            )),
            // A length below what was read may just be an earlier look; reading finds out.
            Look::Length { .. } => Ok(()),
        }
    }
}

fn shrank(path: &Path, length: u64, position: u64) -> Trouble {
    Trouble::lasting(
        Code::SourceUnfit,
        format!("{} has {length} bytes, and {position} of it were read; {START_ANEW}", path.display()),
    )
}

fn another_text(path: &Path, position: u64) -> Trouble {
    Trouble::lasting(
        Code::SourceUnfit,
        format!(
            "{}: no line ends at byte {position}, up to which it was read: it is not what it was; {START_ANEW}",
            path.display()
        ),
    )
}

fn too_long(path: &Path, position: u64) -> Trouble {
    Trouble::lasting(
        Code::RowRefused,
        format!("{}: the line at byte {position} is longer than {} MiB", path.display(), ROW_BYTES_MAX >> 20),
    )
}

const START_ANEW: &str = "bring it back, or move the span's directory in the sink away to start anew";

fn trouble(doing: &str, path: &Path, e: &io::Error) -> Trouble {
    let message = format!("{doing} {}: {e}", path.display());
    match e.kind() {
        io::ErrorKind::PermissionDenied => Trouble::lasting(Code::SourceUnfit, message),
        // Other kinds are the file system's to name, and most of them pass.
        _ => Trouble::passing(Code::SourceUnreachable, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_rows_as_they_stand_and_text_becomes_a_string() {
        let cases = [
            ("{\"a\": 1.000000000000000000001}", "{\"a\": 1.000000000000000000001}"),
            ("12345678901234567890123", "12345678901234567890123"),
            ("plain \"text\"", "\"plain \\\"text\\\"\""),
            ("", "\"\""),
            ("{broken", "\"{broken\""),
        ];
        for (line, value) in cases {
            assert_eq!(value_of(line.as_bytes()).get(), value);
        }
        assert_eq!(value_of(b"\xff").get(), "\"\u{fffd}\"");
    }

    #[test]
    fn a_span_that_is_behind_says_how_far_it_is_in_time_by_the_look_it_has_reached() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.log");
        std::fs::write(&path, "x\n").expect("written");
        let opened = Arc::new(Opened::open(&path, true).expect("it is there"));
        let following = Follower::default().follow(&path).expect("followed");
        let slots = Arc::new(Semaphore::new(1));
        let mut reader = LogReader { opened, following, slots, position: 0, seen: None, goal: None };
        let mut step = |at, length, position, all| {
            let row = Row { position, key: None, value: RawValue::NULL.to_owned(), more: false };
            reader.take(Chunk { rows: vec![row], at: Time(at), length, all }).at
        };
        assert_eq!(step(10, 100, 40, false), None);
        assert_eq!(step(20, 150, 80, false), None);
        assert_eq!(step(30, 200, 120, false), Some(Time(10)), "all of the 100 bytes of then are given");
        assert_eq!(step(40, 200, 190, false), None);
        assert_eq!(step(50, 200, 200, true), Some(Time(50)));
    }
}
