//! One process per directory.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use crate::failure::{Failure, Outcome};

/// A predecessor that was told to stop may take a moment to go.
const HELD_FOR: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);

/// Held as long as it lives; the kernel gives it back whatever way the process ends.
#[derive(Debug)]
pub struct DirLock(#[expect(dead_code, reason = "held, not read")] File);

impl DirLock {
    /// Creates the directory where there is none. `what` is the sort of process: "daemon".
    pub fn take(dir: &Path, what: &str) -> Outcome<DirLock> {
        let cannot = |error: std::io::Error| Failure::error(format!("cannot use {}: {error}", dir.display()));
        // What services and feeds are told in confidence is kept there.
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(cannot)?;
        let path = path(dir, what);
        let mut file = open(&path).map_err(cannot)?;
        let until = Instant::now() + HELD_FOR;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > until {
                let pid = read_pid(&mut file).map_or("unknown".to_owned(), |pid| pid.to_string());
                return Err(Failure::error(format!("another {what} (pid {pid}) uses {}", dir.display())));
            }
            std::thread::sleep(PAUSE);
        }
        // Over what is there, and only then cut off: that needs no room on a disk that has none.
        let pid = format!("{}\n", std::process::id());
        let written = file
            .rewind()
            .and_then(|()| file.write_all(pid.as_bytes()))
            .and_then(|()| file.set_len(pid.len() as u64));
        written.map_err(cannot)?;
        Ok(DirLock(file))
    }
}

/// Who holds the lock, if somebody does.
pub fn holder(dir: &Path, what: &str) -> Option<i32> {
    let mut file = File::open(path(dir, what)).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => None,
        Err(_) => read_pid(&mut file),
    }
}

fn path(dir: &Path, what: &str) -> PathBuf {
    dir.join(format!("{}.lock", what.replace(' ', "-")))
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn read_pid(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_user_and_says_who() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::take(dir.path(), "daemon").unwrap();
        assert_eq!(holder(dir.path(), "daemon"), Some(std::process::id() as i32));
        let message = DirLock::take(dir.path(), "daemon").unwrap_err().message.unwrap();
        assert!(
            message.starts_with(&format!("another daemon (pid {}) uses", std::process::id())),
            "{message}"
        );
        drop(lock);
        assert_eq!(holder(dir.path(), "daemon"), None);
        assert!(DirLock::take(dir.path(), "daemon").is_ok());
    }
}
