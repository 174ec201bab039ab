//! What outlives the daemon beside the shims' own files: what was ordered of each instance, and whom
//! this node obeys.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use model::{ClusterId, InstanceId, Life, ServiceName, Term, VolumeId, spec::ServiceFile};
use protocol::{
    message::{DiskFrom, Run, VolumeOrder},
    node::{Copied, Ending, Memory, Note, Wanted},
};
use serde::{Deserialize, Serialize};

use crate::sys::{self, write_atomic, write_for_this_boot};

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
    ports: Vec<u16>,
    spec: ServiceFile,
}

/// An order as read back.
pub(super) struct Kept {
    pub id: InstanceId,
    pub note: Note,
    pub run: Arc<Run>,
    pub ports: Vec<u16>,
}

/// The next daemon finds it; a loss of power only after [`sync_order`]. A disk takes milliseconds for
/// that, and a hundred orders at once would keep the node from everything else.
pub(super) fn save_order(dir: &Path, id: InstanceId, note: Note, run: &Run, ports: &[u16]) -> io::Result<()> {
    let wanted = match note.wanted {
        Wanted::Run => "run",
        Wanted::Drain => "drain",
        Wanted::Stop => "stop",
    };
    let file = OrderFile {
        version: VERSION,
        id: id.0,
        order: note.order,
        wanted: wanted.to_owned(),
        ready: note.ready,
        over: note.over.map(|ending| match ending {
            Ending::Stopped => "stopped".to_owned(),
            Ending::Failed => "failed".to_owned(),
        }),
        release: run.release,
        slot: run.slot,
        volume: run.volume.as_ref().map(|volume| (volume.id.to_string(), volume.expected)),
        mounted: run.volume.as_ref().and_then(|volume| volume.mounted.clone()),
        disk_from: run.disk_from.as_ref().map(|from| (from.instance.0, from.api.clone())),
        copied: match note.copied {
            Copied::Due => Some("due".to_owned()),
            Copied::Done => None,
            Copied::Not => Some("not".to_owned()),
        },
        ports: ports.to_vec(),
        spec: ServiceFile::of(run.service.as_str(), 0, &run.spec),
    };
    write_for_this_boot(&dir.join(ORDER), &serde_json::to_vec_pretty(&file)?)
}

/// Returns when the order is there for good: before a process is started for it.
pub(super) fn sync_order(dir: &Path) -> io::Result<()> {
    sys::sync(&dir.join(ORDER))
}

/// Brings later notes to the disk, one after the other, beside everything else. They are for the next
/// daemon of this boot; after a loss of power nothing runs and the coordinator orders anew.
pub(super) struct Syncer(std::sync::mpsc::Sender<PathBuf>);

impl Syncer {
    pub fn start() -> Syncer {
        let (sender, dirs) = std::sync::mpsc::channel::<PathBuf>();
        std::thread::spawn(move || {
            while let Ok(first) = dirs.recv() {
                let mut due = std::collections::BTreeSet::from([first]);
                due.extend(dirs.try_iter());
                for dir in due {
                    // Gone already is as good.
                    if let Err(fault) = sync_order(&dir)
                        && fault.kind() != io::ErrorKind::NotFound
                    {
                        tracing::warn!("{} is not on disk for good: {fault}", dir.join(ORDER).display());
                    }
                }
            }
        });
        Syncer(sender)
    }

    pub fn later(&self, dir: PathBuf) {
        // Its thread ends with us.
        let _ = self.0.send(dir);
    }
}

/// Reads an order back; what cannot be read is said, never guessed.
pub(super) fn load_order(dir: &Path) -> io::Result<Kept> {
    let bytes = std::fs::read(dir.join(ORDER))?;
    let mut file: OrderFile = serde_json::from_slice(&bytes)?;
    if file.version != VERSION {
        return Err(io::Error::other(format!("version {} of {ORDER} is not known", file.version)));
    }
    if file.spec.kind == "system" {
        file.spec.count = None;
    }
    let (service, _, spec) = file.spec.check().map_err(io::Error::other)?;
    let wanted = match file.wanted.as_str() {
        "run" => Wanted::Run,
        "drain" => Wanted::Drain,
        "stop" => Wanted::Stop,
        other => return Err(io::Error::other(format!("{other:?} in {ORDER} is not known"))),
    };
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
    let over = match file.over.as_deref() {
        None => None,
        Some("stopped") => Some(Ending::Stopped),
        Some("failed") => Some(Ending::Failed),
        Some(other) => return Err(io::Error::other(format!("{other:?} in {ORDER} is not known"))),
    };
    let copied = match file.copied.as_deref() {
        None => Copied::Done,
        Some("due") => Copied::Due,
        Some("not") => Copied::Not,
        Some(other) => return Err(io::Error::other(format!("{other:?} in {ORDER} is not known"))),
    };
    let note = Note { order: file.order, wanted, ready: file.ready, over, copied };
    Ok(Kept { id: InstanceId(file.id), note, run: Arc::new(run), ports: file.ports })
}

/// Whether the instance in this directory is over for good. What cannot be read is not.
pub(super) fn is_over(dir: &Path) -> bool {
    #[derive(Deserialize)]
    struct Ending {
        over: Option<String>,
    }
    let read = std::fs::read(dir.join(ORDER)).ok();
    read.and_then(|bytes| serde_json::from_slice::<Ending>(&bytes).ok())
        .is_some_and(|file| file.over.is_some())
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
    write_atomic(&path, format!("{:016x}\n", life.0).as_bytes())?;
    Ok(before)
}
