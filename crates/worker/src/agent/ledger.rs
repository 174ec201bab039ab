//! What was started on this node, in one file, so that it outlives a loss of power.
//!
//! Before a fork, instance and boot are on disk. A file of each instance's own would have to be synced for
//! each; here all starts that come together wait for one sync. Within a boot nobody reads it: what the
//! directories of the instances say is true. After a loss of power it brings back those orders that the disk
//! has lost, so that what may have run is known to have been there.
//!
//! A line of JSON each: that something starts, with its order, or that it has gone. The last line of an
//! instance counts. When most of the file is of the past, it is written anew with what is left.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::disk;
use crate::{host, sys};

const LEDGER: &str = "starts.log";
const VERSION: u32 = 1;

/// Below this it is not worth writing it anew.
const BYTES_MIN: usize = 1 << 20;
/// It is when it has grown to so many times what is left of it.
const BYTES_TIMES: usize = 4;

#[derive(Serialize, Deserialize)]
pub(super) struct Line {
    version: u32,
    instance: String,
    boot: String,
    /// As in its directory. Absent: it has gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order: Option<String>,
}

struct Request {
    instance: String,
    line: String,
    /// It starts; otherwise it has gone.
    lives: bool,
    done: oneshot::Sender<Result<(), Fault>>,
}

/// One for all who waited together.
type Fault = (io::ErrorKind, String);

/// Tells a thread of its own, which ends with it.
pub(super) struct Ledger(Sender<Request>);

impl Ledger {
    /// Brings back what the disk has lost of the instances below `instances`, and goes on from there.
    pub fn open(data_dir: &Path, instances: &Path) -> io::Result<Ledger> {
        let path = data_dir.join(LEDGER);
        let mut lines = read(&path)?;
        lines.retain(|_, line| keep(instances, line));
        let live =
            lines.into_iter().filter_map(|(name, line)| Some((name, serde_json::to_string(&line).ok()?)));
        let book = Book::begin(path, live.collect())?;
        let (sender, requests) = channel();
        std::thread::Builder::new().name("ledger".to_owned()).spawn(move || write_all(book, &requests))?;
        Ok(Ledger(sender))
    }

    /// Returns at once; what it returns is over when the start is on disk.
    pub fn begins(&self, instance: &str, order: &str) -> impl Future<Output = io::Result<()>> + use<> {
        self.ask(instance, Some(order.to_owned()))
    }

    /// As [`Ledger::begins`], of one whose directory is about to be removed.
    pub fn goes(&self, instance: &str) -> impl Future<Output = io::Result<()>> + use<> {
        self.ask(instance, None)
    }

    fn ask(&self, instance: &str, order: Option<String>) -> impl Future<Output = io::Result<()>> + use<> {
        let (done, answer) = oneshot::channel();
        let lives = order.is_some();
        let line = Line { version: VERSION, instance: instance.to_owned(), boot: host::boot_id(), order };
        let line = serde_json::to_string(&line).unwrap_or_default();
        let asked = self.0.send(Request { instance: instance.to_owned(), line, lives, done });
        async move {
            let over = || io::Error::other("its thread has ended");
            asked.map_err(|_| over())?;
            let answer = answer.await.map_err(|_| over())?;
            answer.map_err(|(kind, text)| io::Error::new(kind, text))
        }
    }
}

fn write_all(mut book: Book, requests: &Receiver<Request>) {
    while let Ok(first) = requests.recv() {
        let group: Vec<Request> = std::iter::once(first).chain(requests.try_iter()).collect();
        let written = book.add(&group).map_err(|fault| (fault.kind(), fault.to_string()));
        for request in group {
            let _ = request.done.send(written.clone());
        }
    }
}

/// The last line of each instance.
pub(super) fn read(path: &Path) -> io::Result<BTreeMap<String, Line>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(fault) => return Err(fault),
    };
    let mut lines = BTreeMap::new();
    // What a loss of power left half of was waited for by nobody who went on.
    for line in
        bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok())
    {
        if line.version != VERSION {
            let text = format!("{}: version {} is not known", path.display(), line.version);
            return Err(io::Error::other(text));
        }
        match line.order {
            Some(_) => lines.insert(line.instance.clone(), line),
            None => lines.remove(&line.instance),
        };
    }
    Ok(lines)
}

/// Whether there is still something of it here. What another boot has lost is brought back.
fn keep(instances: &Path, line: &Line) -> bool {
    let dir = instances.join(&line.instance);
    if disk::load_order(&dir).is_ok() {
        return true;
    }
    let Some(order) = line.order.as_ref().filter(|_| line.boot != host::boot_id()) else {
        // Within a boot nothing gets lost: somebody removed it.
        return dir.is_dir();
    };
    match disk::save_order(&dir, order) {
        Ok(()) => tracing::warn!("{}: its order was lost with the power and is back", dir.display()),
        Err(fault) => tracing::error!("{}: its order cannot be brought back: {fault}", dir.display()),
    }
    true
}

struct Book {
    path: PathBuf,
    file: File,
    bytes: usize,
    live: BTreeMap<String, String>,
    /// Something could not be written: the file may end in the middle of a line.
    torn: bool,
}

impl Book {
    /// On a full disk what is there stays as it is: a daemon that cannot come back would leave what runs here to itself.
    /// The first start writes it anew, or waits in vain for room like any other.
    fn begin(path: PathBuf, live: BTreeMap<String, String>) -> io::Result<Book> {
        let (bytes, torn) = match rewrite(&path, &live) {
            Ok(bytes) => (bytes, false),
            Err(fault) if sys::is_full(&fault) => {
                tracing::warn!(
                    "{}: the disk is full; nothing is started until there is room",
                    path.display()
                );
                (0, true)
            }
            Err(fault) => return Err(fault),
        };
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        Ok(Book { path, file, bytes, live, torn })
    }

    fn add(&mut self, group: &[Request]) -> io::Result<()> {
        let mut text = String::new();
        for Request { instance, line, lives, .. } in group {
            match lives {
                true => self.live.insert(instance.clone(), line.clone()),
                false => self.live.remove(instance),
            };
            text.push_str(line);
            text.push('\n');
        }
        let left: usize = self.live.values().map(String::len).sum();
        if self.torn || self.bytes + text.len() > BYTES_MIN.max(left * BYTES_TIMES) {
            self.bytes = rewrite(&self.path, &self.live)?;
            self.file = OpenOptions::new().append(true).open(&self.path)?;
            self.torn = false;
            return Ok(());
        }
        self.torn = true;
        self.file.write_all(text.as_bytes())?;
        self.file.sync_data()?;
        (self.torn, self.bytes) = (false, self.bytes + text.len());
        Ok(())
    }
}

/// Returns its length.
fn rewrite(path: &Path, live: &BTreeMap<String, String>) -> io::Result<usize> {
    let text: String = live.values().flat_map(|line| [line.as_str(), "\n"]).collect();
    sys::write_atomic(path, text.as_bytes())?;
    Ok(text.len())
}

#[cfg(test)]
mod tests;
