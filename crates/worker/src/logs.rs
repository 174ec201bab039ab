//! The reading side of an instance's log: the last lines, and everything that comes after.
//!
//! Files are named by [`crate::shim::log`]: `current.log` is written to, full ones are `<number>.log` with
//! rising numbers. A reader holds its file open, so a rotation takes nothing from it: when `current.log` is
//! another file than the one it holds, it reads its own to the end and goes on with the next number.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::Stream;
use tokio_util::sync::CancellationToken;

pub const CURRENT: &str = "current.log";

/// How often a follower looks for more.
const POLL: Duration = Duration::from_millis(100);

const CHUNK_BYTES: usize = 64 << 10;

/// The name of a file that was put aside.
pub fn rotated_name(number: u64) -> String {
    format!("{number:08}.log")
}

/// The files that were put aside, oldest first. None when there is no such directory.
pub fn rotated(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let number = path.file_name().and_then(|n| n.to_str()?.strip_suffix(".log")?.parse().ok());
        found.extend(number.map(|n| (n, path)));
    }
    found.sort();
    Ok(found)
}

/// Where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Oldest,
    LastLines(usize),
}

/// The last `lines` lines of the log of the instance in `dir`, over all its files. Empty when there is none.
pub async fn tail(dir: &Path, lines: usize) -> io::Result<Vec<u8>> {
    let logs = crate::shim::logs_in(dir);
    let read = move || {
        let mut reader = Reader::open(&logs, Start::LastLines(lines))?;
        let mut all = Vec::new();
        while let Some(chunk) = reader.read()? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    };
    tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
}

/// The log as it grows. Ends once `over` is cancelled and everything written before that has been read;
/// cancel it when the instance has ended, or when nobody listens any more. Dropping the stream is enough too.
pub fn follow(
    dir: &Path,
    start: Start,
    over: CancellationToken,
) -> impl Stream<Item = io::Result<Vec<u8>>> + Send + use<> {
    let logs = crate::shim::logs_in(dir);
    futures_util::stream::unfold(Some(Follower { logs, start, over, reader: None }), |follower| async move {
        let mut follower = follower?;
        match follower.next().await {
            Ok(Some(chunk)) => Some((Ok(chunk), Some(follower))),
            Ok(None) => None,
            Err(e) => Some((Err(e), None)),
        }
    })
}

struct Follower {
    logs: PathBuf,
    start: Start,
    over: CancellationToken,
    reader: Option<Reader>,
}

impl Follower {
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            // Asked before reading: what was written before the end is then still read.
            let over = self.over.is_cancelled();
            let (logs, start, reader) = (self.logs.clone(), self.start, self.reader.take());
            let read = move || {
                let mut reader = match reader {
                    Some(reader) => reader,
                    None => Reader::open(&logs, start)?,
                };
                let chunk = reader.read()?;
                Ok::<_, io::Error>((reader, chunk))
            };
            let (reader, chunk) = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
            self.reader = Some(reader);
            if chunk.is_some() || over {
                return Ok(chunk);
            }
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = self.over.cancelled() => {}
            }
        }
    }
}

/// A position in the log.
struct Reader {
    dir: PathBuf,
    file: Option<File>,
}

impl Reader {
    fn open(dir: &Path, start: Start) -> io::Result<Self> {
        let file = match start {
            Start::Oldest => oldest(dir)?,
            Start::LastLines(lines) => last_lines(dir, lines)?,
        };
        Ok(Self { dir: dir.to_owned(), file })
    }

    /// `None` when there is no more at the moment.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some(file) = &mut self.file else {
                self.file = oldest(&self.dir)?;
                if self.file.is_none() {
                    return Ok(None);
                }
                continue;
            };
            if let Some(chunk) = read_chunk(file)? {
                return Ok(Some(chunk));
            }
            match successor(&self.dir, file)? {
                Next::Same => return Ok(None),
                Next::File(next) => {
                    // Written to between our last read and the rotation.
                    if let Some(chunk) = read_chunk(file)? {
                        return Ok(Some(chunk));
                    }
                    self.file = Some(next);
                }
            }
        }
    }
}

enum Next {
    /// Nothing newer is there (yet).
    Same,
    File(File),
}

/// The file after the one we hold.
fn successor(dir: &Path, held: &File) -> io::Result<Next> {
    let held = held.metadata()?.ino();
    let aside = rotated(dir)?;
    let place = aside.iter().position(|(_, path)| fs::metadata(path).is_ok_and(|m| m.ino() == held));
    let newer = match place {
        Some(place) => &aside[place + 1..],
        None if current_inode(dir)? == Some(held) => return Ok(Next::Same),
        // Ours is gone: it rotated out while we were behind. What is left begins with the oldest.
        None => &aside[..],
    };
    if let Some((_, path)) = newer.first()
        && let Some(file) = open_if_there(path)?
    {
        return Ok(Next::File(file));
    }
    Ok(open_if_there(&dir.join(CURRENT))?.map_or(Next::Same, Next::File))
}

fn current_inode(dir: &Path) -> io::Result<Option<u64>> {
    match fs::metadata(dir.join(CURRENT)) {
        Ok(meta) => Ok(Some(meta.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn open_if_there(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn read_chunk(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let read = file.read(&mut chunk)?;
    chunk.truncate(read);
    Ok((read > 0).then_some(chunk))
}

fn oldest(dir: &Path) -> io::Result<Option<File>> {
    for (_, path) in rotated(dir)? {
        if let Some(file) = open_if_there(&path)? {
            return Ok(Some(file));
        }
    }
    open_if_there(&dir.join(CURRENT))
}

/// Goes backwards until enough line ends were seen, and leaves the file positioned there.
fn last_lines(dir: &Path, lines: usize) -> io::Result<Option<File>> {
    let mut paths: Vec<_> = rotated(dir)?.into_iter().map(|(_, path)| path).collect();
    paths.push(dir.join(CURRENT));
    let mut wanted = Wanted { lines, first: true };
    let mut earliest = None;
    for path in paths.iter().rev() {
        let Some(mut file) = open_if_there(path)? else { continue };
        let found = wanted.scan_back(&mut file)?;
        file.seek(SeekFrom::Start(found.unwrap_or(0)))?;
        earliest = Some(file);
        if found.is_some() {
            break;
        }
    }
    Ok(earliest)
}

struct Wanted {
    lines: usize,
    /// The very last byte of the log: a line end there ends the last line and begins none.
    first: bool,
}

impl Wanted {
    /// The offset at which the wanted lines begin, if that is in this file.
    fn scan_back(&mut self, file: &mut File) -> io::Result<Option<u64>> {
        let mut end = file.metadata()?.len();
        if self.lines == 0 {
            return Ok(Some(end));
        }
        let mut block = vec![0; CHUNK_BYTES];
        while end > 0 {
            let size = end.min(CHUNK_BYTES as u64);
            let begin = end - size;
            let block = &mut block[..size as usize];
            file.seek(SeekFrom::Start(begin))?;
            file.read_exact(block)?;
            for (at, byte) in block.iter().enumerate().rev() {
                let ends_log = std::mem::take(&mut self.first);
                if *byte != b'\n' || ends_log {
                    continue;
                }
                self.lines -= 1;
                if self.lines == 0 {
                    return Ok(Some(begin + at as u64 + 1));
                }
            }
            end = begin;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::StreamExt;

    use super::*;
    use crate::shim::log::LogWriter;
    use crate::shim::record::LogLimits;

    fn writer(dir: &Path, file_bytes: u64, files: u32) -> LogWriter {
        LogWriter::new(&crate::shim::logs_in(dir), LogLimits { file_bytes, files }, Arc::default())
    }

    #[tokio::test]
    async fn the_last_lines_are_found_over_all_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = writer(dir.path(), 8, 10);
        for n in 1..=9 {
            log.write(format!("no{n}\n").as_bytes());
        }
        assert_eq!(tail(dir.path(), 1).await.unwrap(), b"no9\n");
        assert_eq!(tail(dir.path(), 4).await.unwrap(), b"no6\nno7\nno8\nno9\n");
        assert_eq!(tail(dir.path(), 99).await.unwrap().len(), 36);
        assert_eq!(tail(dir.path(), 0).await.unwrap(), b"");
        log.write(b"unfinished");
        assert_eq!(tail(dir.path(), 2).await.unwrap(), b"no9\nunfinished");
    }

    #[tokio::test]
    async fn an_instance_that_printed_nothing_has_an_empty_log() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(tail(dir.path(), 5).await.unwrap(), b"");
    }

    #[tokio::test]
    async fn following_survives_rotations_and_ends_with_the_last_byte() {
        let dir = tempfile::tempdir().unwrap();
        let over = CancellationToken::new();
        let stream = follow(dir.path(), Start::Oldest, over.clone());
        let mut log = writer(dir.path(), 100, 1000);
        let mut expected = Vec::new();
        let write = async {
            for n in 0..500 {
                let line = format!("line number {n}\n");
                log.write(line.as_bytes());
                expected.extend_from_slice(line.as_bytes());
                if n % 50 == 0 {
                    tokio::time::sleep(Duration::from_millis(15)).await;
                }
            }
            over.cancel();
        };
        let read = stream.map(|chunk| chunk.unwrap()).concat();
        let (read, ()) = tokio::join!(read, write);
        assert_eq!(String::from_utf8(read), String::from_utf8(expected));
    }

    #[tokio::test]
    async fn a_follower_whose_file_rotated_away_goes_on_with_the_oldest() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = writer(dir.path(), 10, 2);
        log.write(b"a\n");
        let mut reader = Reader::open(dir.path(), Start::Oldest).unwrap();
        assert_eq!(reader.read().unwrap().unwrap(), b"a\n");
        for line in ["bbbbbbbb\n", "cccccccc\n", "dddddddd\n"] {
            log.write(line.as_bytes());
        }
        assert_eq!(reader.read().unwrap().unwrap(), b"cccccccc\n");
        assert_eq!(reader.read().unwrap().unwrap(), b"dddddddd\n");
        assert!(reader.read().unwrap().is_none());
    }
}
