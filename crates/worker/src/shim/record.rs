//! What is written down of a run: what was wanted, what runs, how it ended. Where, and by whom, is in
//! [`super::book`].
//!
//! Each record holds the run's number: one of an earlier run says nothing about this one. Each holds a
//! version: fields may be added under the same version (unknown ones are ignored), a higher one is refused
//! in words. They are for readers of the same boot, who see what was written in the order in which it was; a
//! loss of power ends the run anyway, and whoever finds a launch of another boot knows that it may have run.
//! Only an ending may have to outlive that too: whoever launches says so.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::book::EARLIER_LOCK;
use crate::cgroup::Group;
use crate::sys;

/// Larger files are not ours. Environments can be big, so this is generous.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// Longest text of a failed start that is kept; with escaping it still fits what is reserved.
const START_FAILED_CHARS_MAX: usize = 500;

/// The first words of lines.
pub const WORDS: [&str; 3] = [LaunchRecord::WORD, RunRecord::WORD, ExitRecord::WORD];

/// A line of the book with its word and the version we write.
pub trait Record: Serialize + DeserializeOwned {
    const WORD: &'static str;
    /// The file that earlier releases had for it.
    const EARLIER_FILE: &'static str;
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
    const WORD: &'static str = "launch";
    const EARLIER_FILE: &'static str = "launch.json";
    const VERSION: u32 = 1;
    fn run(&self) -> u32 {
        self.run
    }
}

impl Record for RunRecord {
    const WORD: &'static str = "run";
    const EARLIER_FILE: &'static str = "run.json";
    const VERSION: u32 = 1;
    fn run(&self) -> u32 {
        self.run
    }
}

impl Record for ExitRecord {
    const WORD: &'static str = "exit";
    const EARLIER_FILE: &'static str = "exit.json";
    const VERSION: u32 = 1;
    fn run(&self) -> u32 {
        self.run
    }
}

/// As an earlier release left it.
pub(super) fn read_earlier<R: Record>(dir: &Path) -> Result<Option<R>, String> {
    let text = match read_bounded(&dir.join(R::EARLIER_FILE)) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("{} cannot be read: {e}", R::EARLIER_FILE)),
    };
    parse(&text).map(Some).map_err(|why| format!("{}: {why}", R::EARLIER_FILE))
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

/// Removes what earlier releases left, once there is a line in the book.
pub fn remove_earlier(dir: &Path) -> io::Result<()> {
    for file in [LaunchRecord::EARLIER_FILE, RunRecord::EARLIER_FILE, ExitRecord::EARLIER_FILE, EARLIER_LOCK]
    {
        match std::fs::remove_file(dir.join(file)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
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
    fn broken_and_foreign_files_of_earlier_releases_are_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let check = |content: &[u8], why: &str| {
            std::fs::write(dir.path().join("exit.json"), content).unwrap();
            let said = read_earlier::<ExitRecord>(dir.path()).unwrap_err();
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
