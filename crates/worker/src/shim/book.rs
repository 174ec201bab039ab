//! The file `run`: all that is known of the runs in a directory after everybody who watched has died, and the
//! lock that says whether somebody still does.
//!
//! | line | written by | when | means |
//! |---|---|---|---|
//! | `launch {…}` | daemon | before the shim is started | somebody wanted this run |
//! | `run {…}` | shim | before the fork, again with the pid after it | it may have run |
//! | `exit {…}` | shim | when nothing of it is left | it is over, and how |
//!
//! Making a file is what a disk takes its time for, so that there is one for all of this. Of each word the last
//! line counts. Lines are written only by who holds the lock; a line without its end was being written when its
//! writer died, and counts as not written: what it announces had not happened yet.
//!
//! Until there is a line in it, the files count in which earlier releases kept the same: `launch.json`,
//! `run.json`, `exit.json`, and `lock`. The next run clears them away.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::record::{self, Record, WORDS};
use crate::sys;

pub const BOOK: &str = "run";

/// Where earlier releases had the lock.
pub const EARLIER_LOCK: &str = "lock";

/// Larger files are not ours. Environments can be big, so this is generous.
const BOOK_BYTES_MAX: u64 = 4 << 20;

/// Beyond this, runs that are over are cleared away before the next one is written down.
const BOOK_BYTES_KEPT: usize = 64 << 10;

/// Bytes kept ready on disk for what a shim writes, so that a full disk does not make the ending unknown.
const RESERVE: usize = 6 << 10;

/// All that is on record in a directory, read at once.
pub struct Records {
    dir: PathBuf,
    text: Result<String, String>,
}

impl Records {
    pub fn of(dir: &Path) -> Records {
        let text = match read(dir) {
            Ok(text) => whole(text),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(e) => Err(format!("{BOOK} cannot be read: {e}")),
        };
        Records { dir: dir.to_owned(), text }
    }

    /// `Ok(None)`: there is none. `Err`: there is one and it cannot be believed; the text says why.
    pub fn get<R: Record>(&self) -> Result<Option<R>, String> {
        let text = self.text.as_ref().map_err(Clone::clone)?;
        if text.trim_ascii().is_empty() {
            return record::read_earlier(&self.dir);
        }
        let mut last = None;
        for line in text.lines().map(str::trim_ascii).filter(|line| !line.is_empty()) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            if !WORDS.contains(&word) {
                return Err(format!("{BOOK}: not a record"));
            }
            if word == R::WORD {
                last = Some(rest);
            }
        }
        let parsed = last.map(record::parse).transpose();
        parsed.map_err(|why| format!("{BOOK}: {}: {why}", R::WORD))
    }
}

fn read(dir: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(dir.join(BOOK))?.take(BOOK_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > BOOK_BYTES_MAX {
        return Err(io::Error::other("too long"));
    }
    Ok(text)
}

/// Without a line that has no end. What cannot be the beginning of one is somebody else's work.
fn whole(mut text: String) -> Result<String, String> {
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    let tail = text[end..].trim_ascii();
    let begun = |word: &&str| word.starts_with(tail) || tail.split(' ').next() == Some(*word);
    if !WORDS.iter().any(begun) {
        return Err(format!("{BOOK}: not a record"));
    }
    text.truncate(end);
    Ok(text)
}

/// `Ok(None)`: there is none. `Err`: there is one and it cannot be believed; the text says why.
pub fn read_record<R: Record>(dir: &Path) -> Result<Option<R>, String> {
    Records::of(dir).get()
}

/// The file, to be locked. `None`: it is not there, and was not to be made.
pub fn open(dir: &Path, make: bool) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).create(make).truncate(false).open(dir.join(BOOK));
    absent_is_none(file)
}

/// What a shim of an earlier release holds instead.
pub fn open_earlier_lock(dir: &Path) -> io::Result<Option<File>> {
    absent_is_none(OpenOptions::new().read(true).write(true).open(dir.join(EARLIER_LOCK)))
}

fn absent_is_none(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The writing side, of who holds the lock.
pub struct Book {
    file: File,
    /// The lines that are there; the next one follows.
    text: Vec<u8>,
}

impl Book {
    /// Goes on after the last whole line.
    pub fn resume(file: File) -> io::Result<Book> {
        let mut text = Vec::new();
        let mut reader = &file;
        reader.rewind()?;
        reader.take(BOOK_BYTES_MAX).read_to_end(&mut text)?;
        let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if end < text.len() {
            text.truncate(end);
            file.set_len(end as u64)?;
        }
        Ok(Book { file, text })
    }

    /// For another run, after those of which nothing is left.
    pub fn next_run(file: File) -> io::Result<Book> {
        let mut book = Book::resume(file)?;
        if book.text.len() > BOOK_BYTES_KEPT {
            book.file.set_len(0)?;
            book.text.clear();
        }
        Ok(book)
    }

    /// Adds a line. Who reads at that very moment may not see it.
    pub fn add<R: Record>(&mut self, record: &R) -> io::Result<()> {
        let line = format!("{} {}\n", R::WORD, serde_json::to_string(record)?);
        self.restore()?;
        self.file.write_all_at(line.as_bytes(), self.end())?;
        self.text.extend_from_slice(line.as_bytes());
        Ok(())
    }

    /// Somebody may have spoilt what was written. A line is worth nothing without those before it.
    fn restore(&self) -> io::Result<()> {
        let mut there = vec![0; self.text.len()];
        if self.file.read_exact_at(&mut there, 0).is_ok() && there == self.text {
            return Ok(());
        }
        self.file.set_len(0)?;
        self.file.write_all_at(&self.text, 0)
    }

    fn end(&self) -> u64 {
        self.text.len() as u64
    }

    /// Takes the room for what is left to say in advance.
    pub fn reserve(&self) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        // Taken from the disk at once; where a filesystem cannot do that, writing and syncing does.
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.end(), RESERVE as u64) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.file.write_all_at(&[b' '; RESERVE], self.end())?;
                self.file.sync_all()
            }
            Err(e) => Err(e.into()),
        }
    }

    /// What was added outlives a loss of power once this returns.
    pub fn sync(&self, dir: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        sys::sync_parent(&dir.join(BOOK))
    }

    /// For the shim, which inherits the lock with it.
    pub fn into_file(self) -> File {
        self.file
    }
}

#[cfg(test)]
mod tests;
