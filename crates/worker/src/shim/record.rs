//! The three files by which a run is known after everybody who watched it has died.
//!
//! | file | written by | when | means |
//! |---|---|---|---|
//! | `launch.json` | daemon | before the shim is started | somebody wanted this run |
//! | `run.json` | shim | before the fork, again with the pid after it | it may have run |
//! | `exit.json` | shim | when nothing of it is left | it is over, and how |
//!
//! Each holds the run's number: a file of an earlier run says nothing about this one. Each holds a
//! version: fields may be added under the same version (unknown ones are ignored), a higher one is refused
//! in words. They are for readers of the same boot, who see what was written in the order in which it was; a
//! loss of power ends the run anyway, and whoever finds a launch of another boot knows that it may have run.
//! Only an ending may have to outlive that too: whoever launches says so.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::sys;

/// Room for `run.json`, which is written twice at the same place: the second must cover the first.
const RUN_BYTES: usize = 1024;

/// Larger files are not ours. Environments can be big, so this is generous.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// Bytes kept ready on disk for `exit.json`, so that a full disk does not make the ending unknown.
const EXIT_RESERVE: usize = 2048;

/// Longest text of a failed start that is kept; with escaping it still fits the reserve.
const START_FAILED_CHARS_MAX: usize = 500;

/// A file of the run with its name and the version we write.
pub trait Record: Serialize + DeserializeOwned {
    const FILE: &'static str;
    const VERSION: u32;
    fn run(&self) -> u32;
}

/// What to start. Holds everything: the shim reads no configuration and asks nobody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRecord {
    pub version: u32,
    pub instance: String,
    pub run: u32,
    pub boot_id: String,
    /// Random; the instance carries it in its environment. Instance ids are unique within a cluster only,
    /// and a machine may run nodes of several.
    pub mark: String,
    pub at_ms: u64,
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub workdir: PathBuf,
    pub memory_limit: Option<u64>,
    pub cgroup: Option<Group>,
    pub log: LogLimits,
    /// Kill it once CLOCK_BOOTTIME (milliseconds) passes this. Only for what must not run twice.
    pub fence_ms: Option<u64>,
    /// How it ends is synced before it is told.
    #[serde(default = "lasting")]
    pub lasting_exit: bool,
}

/// Of a launch by a daemon that did not say.
fn lasting() -> bool {
    true
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// Size at which `current.log` is put aside.
    pub file_bytes: u64,
    /// Files kept, `current.log` among them.
    pub files: u32,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { file_bytes: 10 << 20, files: 4 }
    }
}

/// Which processes the run consists of. Pid and start time together name one process within one boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    pub version: u32,
    pub instance: String,
    pub run: u32,
    pub boot_id: String,
    /// As in the launch.
    pub mark: String,
    pub shim_pid: i32,
    pub shim_start: u64,
    /// Absent in the file that is written before the fork.
    pub child_pid: Option<i32>,
    pub child_start: Option<u64>,
    pub started_at_ms: u64,
    pub cgroup: Option<Group>,
}

/// How the run ended. Exactly one of `code`, `signal` and `start_failed` is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub version: u32,
    pub instance: String,
    pub run: u32,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// It never ran: command not found, not executable, no working directory, …
    #[serde(default)]
    pub start_failed: Option<String>,
    /// The memory cap killed a process of it.
    pub memory_exceeded: bool,
    /// Its own shim killed it because its fence passed.
    #[serde(default)]
    pub fenced: bool,
    /// Output that could not be written to the log.
    #[serde(default)]
    pub log_bytes_lost: u64,
    pub at_ms: u64,
}

impl ExitRecord {
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        if let Some(why) = &self.start_failed {
            return format!("did not start: {why}");
        }
        let how = match (self.code, self.signal) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("killed by {}", sys::signal_name(signal)),
            (None, None) => "ended".into(),
        };
        match (self.memory_exceeded, self.fenced) {
            (true, _) => format!("{how}: it exceeded its memory"),
            (false, true) => format!("{how}: its node lost the lease"),
            (false, false) => how,
        }
    }
}

impl Record for LaunchRecord {
    const FILE: &'static str = "launch.json";
    const VERSION: u32 = 1;
    fn run(&self) -> u32 {
        self.run
    }
}

impl Record for RunRecord {
    const FILE: &'static str = "run.json";
    const VERSION: u32 = 1;
    fn run(&self) -> u32 {
        self.run
    }
}

impl Record for ExitRecord {
    const FILE: &'static str = "exit.json";
    const VERSION: u32 = 1;
    fn run(&self) -> u32 {
        self.run
    }
}

/// `Ok(None)`: there is none. `Err`: there is one and it cannot be believed; the text says why.
pub fn read<R: Record>(dir: &Path) -> Result<Option<R>, String> {
    let text = match read_bounded(&dir.join(R::FILE)) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("{} cannot be read: {e}", R::FILE)),
    };
    parse(&text).map(Some).map_err(|why| format!("{}: {why}", R::FILE))
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(RECORD_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > RECORD_BYTES_MAX {
        return Err(io::Error::other("too long"));
    }
    Ok(text)
}

pub(super) fn parse<R: Record>(text: &str) -> Result<R, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(R::VERSION) => {}
        Some(version) => return Err(format!("version {version}, this tidegate knows {}", R::VERSION)),
        None => return Err("no version".into()),
    }
    serde_json::from_value(value).map_err(|e| e.to_string())
}

pub fn write<R: Record>(dir: &Path, record: &R) -> io::Result<()> {
    sys::write_for_this_boot(&dir.join(R::FILE), &serde_json::to_vec_pretty(record)?)
}

/// Writes `run.json`, over the one from before the fork if that is there. Who reads at that very moment may see
/// neither, and asks the shim. JSON may be followed by blanks.
pub fn write_run(dir: &Path, record: &RunRecord) -> io::Result<()> {
    let mut content = serde_json::to_vec_pretty(record)?;
    content.resize(content.len().next_multiple_of(RUN_BYTES), b' ');
    let path = dir.join(RunRecord::FILE);
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.write_all(&content)
}

/// Removes what an earlier run left, `launch.json` apart: that one is written over *before*, so that a crash
/// in between leaves a launch without a run, not a run without its launch.
pub fn remove_earlier(dir: &Path) -> io::Result<()> {
    for file in [RunRecord::FILE, ExitRecord::FILE] {
        match std::fs::remove_file(dir.join(file)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// Takes the room for `exit.json` in advance.
pub fn reserve_exit(dir: &Path) -> io::Result<()> {
    let mut file = File::create(sys::tmp_path(&dir.join(ExitRecord::FILE)))?;
    // Taken from the disk at once; where a filesystem cannot do that, writing and syncing does.
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, EXIT_RESERVE as u64) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            file.write_all(&[b' '; EXIT_RESERVE])?;
            file.sync_all()
        }
        Err(e) => Err(e.into()),
    }
}

/// Writes `exit.json` into the room taken before. JSON may be followed by blanks. `lasting`: it outlives a loss
/// of power once this returns.
pub fn write_exit(dir: &Path, record: &ExitRecord, lasting: bool) -> io::Result<()> {
    let path = dir.join(ExitRecord::FILE);
    let tmp = sys::tmp_path(&path);
    let mut content = serde_json::to_vec_pretty(record)?;
    content.resize(content.len().max(EXIT_RESERVE - 1), b' ');
    content.push(b'\n');
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(&tmp)?;
    file.write_all(&content)?;
    if lasting {
        file.sync_all()?;
    }
    std::fs::rename(&tmp, &path)?;
    if !lasting {
        return Ok(());
    }
    // An ending is believed only beside the launch that it ends.
    match File::open(dir.join(LaunchRecord::FILE)) {
        Ok(launch) => launch.sync_all()?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    sys::sync_parent(&path)
}

/// Keeps the text of a failed start within the reserve and on one line.
pub fn one_line(text: &str) -> String {
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    line.take(START_FAILED_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit() -> ExitRecord {
        ExitRecord {
            version: 1,
            instance: "web-1".into(),
            run: 3,
            code: Some(7),
            signal: None,
            start_failed: None,
            memory_exceeded: false,
            fenced: false,
            log_bytes_lost: 0,
            at_ms: 1,
        }
    }

    #[test]
    fn an_exit_is_read_back_from_the_reserve_it_was_written_into() {
        let dir = tempfile::tempdir().unwrap();
        reserve_exit(dir.path()).unwrap();
        assert_eq!(read::<ExitRecord>(dir.path()), Ok(None));
        write_exit(dir.path(), &exit(), true).unwrap();
        assert_eq!(read::<ExitRecord>(dir.path()), Ok(Some(exit())));
        assert_eq!(std::fs::metadata(dir.path().join("exit.json")).unwrap().len(), EXIT_RESERVE as u64);
    }

    #[test]
    fn broken_and_foreign_files_are_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let check = |content: &[u8], why: &str| {
            std::fs::write(dir.path().join("exit.json"), content).unwrap();
            let said = read::<ExitRecord>(dir.path()).unwrap_err();
            assert!(said.contains(why), "{said}");
        };
        check(b"", "exit.json: not JSON");
        check(b"{\"version\": 1, \"run\":", "exit.json: not JSON");
        check(b"\xff\xfe", "cannot be read");
        check(b"{}", "no version");
        check(b"{\"version\": 9}", "version 9, this tidegate knows 1");
        check(b"{\"version\": 1}", "missing field");
    }

    #[test]
    fn fields_added_later_are_ignored_and_fields_missing_before_have_defaults() {
        let text = r#"{"version":1,"instance":"a","run":1,"code":0,"signal":null,
                       "memory_exceeded":false,"at_ms":5,"colour":"blue"}"#;
        let record: ExitRecord = parse(text).unwrap();
        assert!(record.success() && !record.fenced);
    }

    #[test]
    fn the_ending_is_described_for_people() {
        assert_eq!(exit().describe(), "exited with code 7");
        let killed = ExitRecord { code: None, signal: Some(9), memory_exceeded: true, ..exit() };
        assert_eq!(killed.describe(), "killed by SIGKILL: it exceeded its memory");
    }
}
