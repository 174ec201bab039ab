//! The `file` sink: newline-delimited JSON under `PATH/FEED/SPAN/`, one segment per span epoch.
//!
//! | file | |
//! |---|---|
//! | `<epoch>.ndjson` | a segment: a header line, then a line per row with its position ([`segment`]) |
//! | `<epoch>.claim` | raised before a segment is there; locked by its writer as long as that lives ([`writer`]) |
//! | `PATH/.tidegate-FEED` | the mark: tells this directory from another one at the same path ([`mark`]) |
//!
//! *A segment is valid up to its successor's start.* The header of a segment says which segment is
//! before it and how many bytes of that count. Readers begin with the highest segment and follow the
//! headers back ([`reader`]); what is written behind that length by a process that was paused and woke up,
//! or in a segment that no header names, is not there for them.
//!
//! *Invariant:* a row that is behind a reported checkpoint is within what the headers call valid, exactly
//! once.

pub mod mark;
mod reader;
mod segment;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use model::{Checkpoint, Code, FeedName, SpanEpoch, SpanName, Time};
use tokio::sync::Semaphore;

use crate::Trouble;
use crate::blocking;
use crate::rows::{Row, RowSink, SpanWriter};

pub use reader::{ReadError, Rows, read};
pub use writer::{Claim, Measured, Writer};

/// Writers of one feed that wait for the disk at the same time. A file system that hangs must not take
/// every thread that the daemon has for such things.
const WRITES_AT_ONCE: usize = 32;

/// Directories that a removed feed's output is moved to, before somebody has to tidy up.
const REMOVED_MAX: u32 = 10_000;

/// One feed's sink of files on one node.
pub struct FileSink {
    feed: FeedName,
    path: PathBuf,
    expected: Mutex<Option<String>>,
    slots: Arc<Semaphore>,
}

impl FileSink {
    pub fn new(feed: &FeedName, path: impl Into<PathBuf>) -> FileSink {
        FileSink {
            feed: feed.clone(),
            path: path.into(),
            expected: Mutex::new(None),
            slots: Arc::new(Semaphore::new(WRITES_AT_ONCE)),
        }
    }

    fn expected(&self) -> Option<String> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where the rows of a span are: what [`read`] takes.
pub fn span_dir(path: &Path, feed: &FeedName, span: &SpanName) -> PathBuf {
    path.join(feed.as_str()).join(dir_name(span))
}

/// Spans may have any name; a directory may not. Different spans get different directories.
fn dir_name(span: &SpanName) -> String {
    if span.as_str().is_empty() {
        return "%".to_owned();
    }
    let mut name = String::new();
    for (at, byte) in span.as_str().bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            b'.' if at > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

#[async_trait]
impl RowSink for FileSink {
    async fn look(&self) -> Result<Option<String>, Trouble> {
        let (path, feed, expected) = (self.path.clone(), self.feed.clone(), self.expected());
        blocking(&self.slots, move || mark::prove(&path, &feed, expected.as_deref(), true)).await.map(Some)
    }

    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn SpanWriter>, Trouble> {
        let (path, feed, expected) = (self.path.clone(), self.feed.clone(), self.expected());
        let dir = span_dir(&path, &feed, span);
        let made = dir.clone();
        blocking(&self.slots, move || {
            mark::prove(&path, &feed, expected.as_deref(), false)?;
            make_dirs(&path, &made).map_err(|e| trouble("creating", &made, &e))
        })
        .await?;
        let place = Place { dir, feed: self.feed.clone(), span: span.clone() };
        Ok(Box::new(FileWriter { place, slots: self.slots.clone(), writer: None }))
    }

    /// What was written is the user's. Only when the feed is removed it goes out of the way of a later
    /// feed of the same name, whose epochs begin anew, to `FEED.removed-N`.
    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble> {
        if !keep.is_empty() {
            return Ok(());
        }
        let (path, feed) = (self.path.clone(), self.feed.clone());
        blocking(&self.slots, move || {
            let from = path.join(feed.as_str());
            move_away(&path, &from).map_err(|e| trouble("moving away", &from, &e))?;
            mark::remove(&path, &feed)
        })
        .await
    }

    fn expect(&self, mark: &str) {
        *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark.to_owned());
    }
}

/// Which span of which feed, and where.
#[derive(Clone, Debug)]
pub struct Place {
    pub dir: PathBuf,
    pub feed: FeedName,
    pub span: SpanName,
}

struct FileWriter {
    place: Place,
    slots: Arc<Semaphore>,
    /// Away while a thread works with it. Should that never come back, nothing more is written.
    writer: Option<Writer>,
}

#[async_trait]
impl SpanWriter for FileWriter {
    async fn begin(
        &mut self,
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
    ) -> Result<Option<Checkpoint>, Trouble> {
        let place = self.place.clone();
        let writer = blocking(&self.slots, move || {
            let at = from.map(|from| from.at).unwrap_or_default();
            let mut writer = Claim::raise(&place, epoch)?.measure()?.publish(at)?;
            writer.confirm()?;
            writer.tidy();
            Ok::<_, Trouble>(writer)
        })
        .await?;
        let mut begun = writer.checkpoint();
        if from.is_some_and(|from| begun.map_or(0, |b| b.position) < from.position) {
            tracing::warn!(
                feed = %self.place.feed, span = %self.place.span, ?from, ?begun,
                "the sink holds less than was reported; its rows are written again from there"
            );
            // Nor does it hold what happened up to any time that was reported.
            begun = begun.map(|begun| Checkpoint { at: Time(0), ..begun });
        }
        self.writer = Some(writer);
        Ok(begun)
    }

    async fn commit(&mut self, rows: Vec<Row>) -> Result<(), Trouble> {
        self.with_writer(move |writer| writer.commit(&rows)).await
    }

    async fn advance(&mut self, position: u64) -> Result<(), Trouble> {
        self.with_writer(move |writer| writer.advance(position)).await
    }
}

impl FileWriter {
    async fn with_writer(
        &mut self,
        work: impl FnOnce(&mut Writer) -> Result<(), Trouble> + Send + 'static,
    ) -> Result<(), Trouble> {
        let Some(mut writer) = self.writer.take() else {
            let dir = self.place.dir.display();
            return Err(Trouble::passing(
                Code::SinkUnreachable,
                format!("{dir}: an earlier write has not ended"),
            ));
        };
        let (writer, result) = blocking(&self.slots, move || {
            let result = work(&mut writer);
            (writer, result)
        })
        .await;
        self.writer = Some(writer);
        result
    }
}

fn make_dirs(root: &Path, dir: &Path) -> io::Result<()> {
    let feed = dir.parent().unwrap_or(root);
    // The root itself is never made: where it is missing, something is not mounted.
    for (above, below) in [(root, feed), (feed, dir)] {
        match std::fs::create_dir(below) {
            Ok(()) => sync_dir(above)?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn move_away(root: &Path, from: &Path) -> io::Result<()> {
    for number in 1..=REMOVED_MAX {
        let mut to = from.as_os_str().to_owned();
        to.push(format!(".removed-{number}"));
        match std::fs::symlink_metadata(&to) {
            Ok(_) => continue,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        return match std::fs::rename(from, &to) {
            Ok(()) => sync_dir(root),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        };
    }
    Err(io::Error::other(format!("{REMOVED_MAX} removed feeds of this name are kept there")))
}

/// Makes what was created in, or renamed into, a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}

/// An error of the file system as trouble of the sink.
pub(crate) fn trouble(doing: &str, path: &Path, e: &io::Error) -> Trouble {
    let message = format!("{doing} {}: {e}", path.display());
    match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Trouble::lasting(Code::PathNotShared, message)
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Trouble::lasting(Code::SinkUnfit, message)
        }
        // Other kinds are the file system's to name, and most of them pass (no space, a server away).
        _ => Trouble::passing(Code::SinkUnreachable, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_any_name_get_directories_of_their_own() {
        let names = ["public.orders", "public/orders", "..", ".", "a b", "a%20b", "Å", ""];
        let dirs: std::collections::BTreeSet<String> =
            names.iter().map(|name| dir_name(&SpanName::new(name))).collect();
        assert_eq!(dirs.len(), names.len());
        assert!(dirs.iter().all(|dir| !dir.contains('/') && !dir.starts_with('.')), "{dirs:?}");
        assert_eq!(dir_name(&SpanName::new("public.orders")), "public.orders");
    }
}
