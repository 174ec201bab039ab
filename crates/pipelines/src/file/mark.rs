//! The mark of a directory that every node of a feed must have: `.tidegate-FEED`, with a random number in
//! it. Written once, by the first look; whoever finds another, or none, is not where it should be.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use model::{Code, FeedName};

use super::{sync_dir, trouble};
use crate::Trouble;

/// Longer ones were not written by us.
const MARK_BYTES_MAX: u64 = 64;

pub fn path_of(dir: &Path, feed: &FeedName) -> PathBuf {
    dir.join(format!(".tidegate-{feed}"))
}

/// The mark of `dir`. Where nothing is expected and none is there, `create` makes one.
pub fn prove(dir: &Path, feed: &FeedName, expected: Option<&str>, create: bool) -> Result<String, Trouble> {
    if !dir.is_dir() {
        return Err(missing(dir, "is no directory on this node"));
    }
    let path = path_of(dir, feed);
    let mark = match (read(&path)?, expected) {
        (Some(mark), _) => mark,
        (None, None) if create => make(dir, &path)?,
        (None, Some(_) | None) => {
            return Err(missing(dir, &format!("has no {} on this node", path.display())));
        }
    };
    match expected {
        Some(expected) if expected != mark => {
            let found = format!("is another directory on this node: its mark is {mark}, not {expected}");
            Err(missing(dir, &found))
        }
        Some(_) | None => Ok(mark),
    }
}

pub fn remove(dir: &Path, feed: &FeedName) -> Result<(), Trouble> {
    let path = path_of(dir, feed);
    // Looked at first: where nothing can be written, removing what is not there is refused as well.
    if read(&path)?.is_none() {
        return Ok(());
    }
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(trouble("removing", &path, &e)),
    }
}

fn missing(dir: &Path, what: &str) -> Trouble {
    Trouble::lasting(
        Code::PathNotShared,
        format!(
            "{} {what}; every node that may run the feed must have the same directory there",
            dir.display()
        ),
    )
}

fn read(path: &Path) -> Result<Option<String>, Trouble> {
    let read = File::open(path).and_then(|file| io::read_to_string(io::Read::take(file, MARK_BYTES_MAX)));
    match read {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(trouble("reading", path, &e)),
    }
}

/// Two nodes may look at the same time: a link is made with all of its content, by one of them.
fn make(dir: &Path, path: &Path) -> Result<String, Trouble> {
    let fail = |e: io::Error| trouble("marking", path, &e);
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| fail(e.into()))?;
    let mark = format!("{:016x}", u64::from_le_bytes(random));
    let temporary = dir.join(format!(".tidegate-{mark}.tmp"));
    let made = File::create_new(&temporary)
        .and_then(|mut file| writeln!(file, "{mark}").and_then(|()| file.sync_all()))
        .and_then(|()| match std::fs::hard_link(&temporary, path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            Ok(()) | Err(_) => sync_dir(dir),
        });
    let _ = std::fs::remove_file(&temporary);
    made.map_err(fail)?;
    match read(path)? {
        Some(mark) => Ok(mark),
        None => Err(Trouble::passing(Code::SinkUnreachable, format!("{}: vanished at once", path.display()))),
    }
}
