//! What outlives the daemon beside the shims' own files: what was ordered of each instance, and whom
//! this node obeys.
//!
//! `order.json` holds the order, and below it a line for every note that followed: the last one counts. Making
//! and syncing files is what a disk takes its time for, and a note is a line at the end of one that is there.
//! Notes are for the next daemon of this boot: after a loss of power nothing runs, and nothing is started
//! before the coordinator has ordered it anew. That an instance was started outlives it, in the
//! [`super::ledger`].

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use model::{ClusterId, InstanceId, Life, ServiceName, Term, VolumeId, spec::ServiceFile};
use protocol::{
    message::{DiskFrom, Run, VolumeOrder},
    node::{Copied, Ending, Memory, Note, Wanted},
};
use serde::{Deserialize, Serialize};

use crate::{
    host,
    sys::{is_full, write_atomic, write_for_this_boot},
};

const VERSION: u32 = 1;
const ORDER: &str = "order.json";
const HALTED: &str = "halted";
const MEMORY: &str = "node.json";
const LIFE: &str = "life";

/// What was ordered of an instance, in its directory.
#[derive(Serialize, Deserialize)]
struct OrderFile {
    version: u32,
    id: u64,
    order: u32,
    wanted: String,
    ready: bool,
    /// `stopped` or `failed`, once it is over.
    #[serde(default)]
    over: Option<String>,
    release: u32,
    slot: Option<u32>,
    volume: Option<(String, bool)>,
    /// Where that volume is mounted, if it is not the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mounted: Option<String>,
    /// Whose scratch data it takes over, and where that is.
    #[serde(default)]
    disk_from: Option<(u64, String)>,
    /// `due` or `not`, where that data has not come.
    #[serde(default)]
    copied: Option<String>,
    /// Which start this was written for, and in which boot. Absent before the first one.
    #[serde(default)]
    run: u32,
    #[serde(default)]
    boot: Option<String>,
    ports: Vec<u16>,
    spec: ServiceFile,
}

/// What changed since: a line below the order.
#[derive(Serialize, Deserialize)]
struct NoteLine {
    order: u32,
    wanted: String,
    ready: bool,
    #[serde(default)]
    over: Option<String>,
    #[serde(default)]
    copied: Option<String>,
}

impl NoteLine {
    fn of(note: Note) -> NoteLine {
        let wanted = match note.wanted {
            Wanted::Run => "run",
            Wanted::Drain => "drain",
            Wanted::Stop => "stop",
        };
        let over = note.over.map(|ending| match ending {
            Ending::Stopped => "stopped".to_owned(),
            Ending::Failed => "failed".to_owned(),
        });
        let copied = match note.copied {
            Copied::Due => Some("due".to_owned()),
            Copied::Done => None,
            Copied::Not => Some("not".to_owned()),
        };
        NoteLine { order: note.order, wanted: wanted.to_owned(), ready: note.ready, over, copied }
    }

    fn read(&self) -> io::Result<Note> {
        let unknown = |word: &str| Err(io::Error::other(format!("{word:?} in {ORDER} is not known")));
        let wanted = match self.wanted.as_str() {
            "run" => Wanted::Run,
            "drain" => Wanted::Drain,
            "stop" => Wanted::Stop,
            other => return unknown(other),
        };
        let over = match self.over.as_deref() {
            None => None,
            Some("stopped") => Some(Ending::Stopped),
            Some("failed") => Some(Ending::Failed),
            Some(other) => return unknown(other),
        };
        let copied = match self.copied.as_deref() {
            None => Copied::Done,
            Some("due") => Copied::Due,
            Some("not") => Copied::Not,
            Some(other) => return unknown(other),
        };
        Ok(Note { order: self.order, wanted, ready: self.ready, over, copied })
    }
}

/// An order as read back.
pub(super) struct Kept {
    pub id: InstanceId,
    pub note: Note,
    pub run: Arc<Run>,
    pub ports: Vec<u16>,
    /// The start it was written for, if that was in another boot: it is over, whatever else is found.
    pub started_before_boot: Option<u32>,
}

/// An order as it is written down: one line of JSON. `start` is the number of the start that follows.
pub(super) fn order_line(id: InstanceId, note: Note, run: &Run, ports: &[u16], start: Option<u32>) -> String {
    let NoteLine { order, wanted, ready, over, copied } = NoteLine::of(note);
    let file = OrderFile {
        version: VERSION,
        id: id.0,
        order,
        wanted,
        ready,
        over,
        release: run.release,
        slot: run.slot,
        volume: run.volume.as_ref().map(|volume| (volume.id.to_string(), volume.expected)),
        mounted: run.volume.as_ref().and_then(|volume| volume.mounted.clone()),
        disk_from: run.disk_from.as_ref().map(|from| (from.instance.0, from.api.clone())),
        copied,
        run: start.unwrap_or(0),
        boot: start.map(|_| host::boot_id()),
        ports: ports.to_vec(),
        spec: ServiceFile::of(run.service.as_str(), 0, &run.spec),
    };
    // Nothing in it can fail to become text: it was text when it came.
    serde_json::to_string(&file).unwrap_or_default()
}

/// The next daemon of this boot finds it.
pub(super) fn save_order(dir: &Path, line: &str) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    write_for_this_boot(&dir.join(ORDER), line.as_bytes())
}

/// Adds what changed.
pub(super) fn save_note(dir: &Path, note: Note) -> io::Result<()> {
    let line = serde_json::to_string(&NoteLine::of(note))?;
    // The line's end comes first: a line that a full disk cut short spoils none that follows.
    OpenOptions::new().append(true).open(dir.join(ORDER))?.write_all(format!("\n{line}").as_bytes())
}

/// Reads an order back; what cannot be read is said, never guessed.
pub(super) fn load_order(dir: &Path) -> io::Result<Kept> {
    let (file, noted) = read_order(dir)?;
    if file.version != VERSION {
        return Err(io::Error::other(format!("version {} of {ORDER} is not known", file.version)));
    }
    let note = noted.read()?;
    let mut spec = file.spec;
    if spec.kind == "system" {
        spec.count = None;
    }
    let (service, _, spec) = spec.check().map_err(io::Error::other)?;
    let mounted = file.mounted;
    let volume = file.volume.map(|(id, expected)| VolumeOrder { id: VolumeId::new(&id), expected, mounted });
    let run = Run {
        service: ServiceName::new(service.as_str()),
        release: file.release,
        slot: file.slot,
        volume,
        disk_from: file.disk_from.map(|(id, api)| DiskFrom { instance: InstanceId(id), api }),
        spec: Arc::new(spec),
    };
    let started_before_boot = file.boot.filter(|boot| *boot != host::boot_id()).map(|_| file.run);
    Ok(Kept { id: InstanceId(file.id), note, run: Arc::new(run), ports: file.ports, started_before_boot })
}

/// The order, and the last note.
fn read_order(dir: &Path) -> io::Result<(OrderFile, NoteLine)> {
    let bytes = std::fs::read(dir.join(ORDER))?;
    let mut orders = serde_json::Deserializer::from_slice(&bytes).into_iter::<OrderFile>();
    let file = orders.next().ok_or_else(|| io::Error::other(format!("{ORDER} is empty")))??;
    let rest = &bytes[orders.byte_offset()..];
    // One that is not whole was not written: the one before it counts.
    let last = rest.split(|byte| *byte == b'\n').rev().find_map(|line| serde_json::from_slice(line).ok());
    let first = || NoteLine {
        order: file.order,
        wanted: file.wanted.clone(),
        ready: file.ready,
        over: file.over.clone(),
        copied: file.copied.clone(),
    };
    let noted = last.unwrap_or_else(first);
    Ok((file, noted))
}

/// Whether the instance in this directory is over for good. What cannot be read is not.
pub(super) fn is_over(dir: &Path) -> bool {
    read_order(dir).is_ok_and(|(_, noted)| noted.over.is_some())
}

/// The instance was stopped together with its daemon, by whoever runs the whole: no crash of its own.
pub(super) fn mark_halted(dir: &Path) -> io::Result<()> {
    std::fs::write(dir.join(HALTED), b"")
}

/// Whether it was, once.
pub(super) fn take_halted(dir: &Path) -> bool {
    std::fs::remove_file(dir.join(HALTED)).is_ok()
}

#[derive(Serialize, Deserialize)]
struct MemoryFile {
    version: u32,
    cluster: Option<u64>,
    term: u64,
}

pub(super) fn load_memory(data_dir: &Path) -> io::Result<Memory> {
    let path: PathBuf = data_dir.join(MEMORY);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(Memory::default()),
        Err(fault) => return Err(fault),
    };
    let file: MemoryFile = serde_json::from_slice(&bytes).map_err(|fault| {
        let hint = "remove it to let the node join as a new one";
        io::Error::other(format!("{} cannot be read ({fault}); {hint}", path.display()))
    })?;
    Ok(Memory { cluster: file.cluster.map(ClusterId), term: Term(file.term) })
}

pub(super) fn save_memory(data_dir: &Path, memory: Memory) -> io::Result<()> {
    let file = MemoryFile {
        version: VERSION,
        cluster: memory.cluster.map(|cluster| cluster.0),
        term: memory.term.0,
    };
    write_atomic(&data_dir.join(MEMORY), &serde_json::to_vec_pretty(&file)?)
}

/// Writes down which life of the daemon has this directory. Returns the one before it.
pub(super) fn begin_life(data_dir: &Path, life: Life) -> io::Result<Option<Life>> {
    let path = data_dir.join(LIFE);
    let before = match std::fs::read_to_string(&path) {
        // One that cannot be read proves nothing, and nothing depends on it.
        Ok(text) => u64::from_str_radix(text.trim(), 16).ok().map(Life),
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => None,
        Err(fault) => return Err(fault),
    };
    match write_atomic(&path, format!("{:016x}\n", life.0).as_bytes()) {
        // The next life will not be able to say that it succeeds this one, and waits until its lease is over.
        Err(fault) if is_full(&fault) => tracing::warn!("{}: the disk is full", path.display()),
        written => written?,
    }
    Ok(before)
}

#[cfg(test)]
mod tests;
