//! The writing side of an instance's log: what the process prints goes to `current.log` as it is.
//!
//! Full files are put aside as `<number>.log` with rising numbers, so that a reader who holds one of
//! them knows which comes next; the oldest go. Reading is in [`crate::logs`].
//!
//! Writing never fails towards the process: what cannot be written is dropped and counted, and once
//! writing works again the log says how much is missing. A service must not stop because a disk is full.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::LogLimits;
use crate::logs;

/// As much as a pipe holds by default.
const CHUNK_BYTES: usize = 64 << 10;

pub struct LogWriter {
    dir: PathBuf,
    limits: LogLimits,
    file: Option<File>,
    size: u64,
    /// Shared with the control socket's status.
    lost: Arc<AtomicU64>,
    lost_told: u64,
}

impl LogWriter {
    pub fn new(dir: &Path, limits: LogLimits, lost: Arc<AtomicU64>) -> Self {
        let limits = LogLimits { file_bytes: limits.file_bytes.max(1), files: limits.files.max(1) };
        Self { dir: dir.to_owned(), limits, file: None, size: 0, lost, lost_told: 0 }
    }

    /// Copies until the last holder of the other end has closed it.
    pub fn copy_from(&mut self, mut source: impl Read) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match source.read(&mut chunk) {
                Ok(0) => return,
                Ok(n) => self.write(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    pub fn write(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            match self.write_some(data) {
                Ok(written) => data = &data[written..],
                Err(_) => {
                    self.lost.fetch_add(data.len() as u64, Ordering::Relaxed);
                    // Opened again for the next chunk: the file may have been removed, the disk remounted.
                    self.file = None;
                    return;
                }
            }
        }
    }

    fn write_some(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.file.is_none() {
            self.open()?;
        }
        let room = self.limits.file_bytes.saturating_sub(self.size);
        let part = match usize::try_from(room) {
            Ok(room) if room < data.len() => up_to_last_line(data, room),
            _ => data,
        };
        if part.is_empty() && self.size > 0 {
            self.rotate()?;
            return Ok(0);
        }
        // A line longer than a whole file is cut: the limit is what protects the disk.
        let cut = usize::try_from(self.limits.file_bytes).unwrap_or(usize::MAX).min(data.len());
        let part = if part.is_empty() { &data[..cut] } else { part };
        self.tell_lost()?;
        let written = self.put(part)?;
        self.size += written as u64;
        Ok(written)
    }

    fn put(&mut self, data: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => match file.write(data)? {
                0 => Err(io::ErrorKind::WriteZero.into()),
                n => Ok(n),
            },
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn tell_lost(&mut self) -> io::Result<()> {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost == self.lost_told {
            return Ok(());
        }
        let note = format!("\n[tidegate: {} bytes of output could not be written]\n", lost - self.lost_told);
        let written = self.put(note.as_bytes())?;
        self.size += written as u64;
        self.lost_told = lost;
        Ok(())
    }

    fn open(&mut self) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let file = OpenOptions::new().create(true).append(true).open(self.dir.join(logs::CURRENT))?;
        self.size = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        let aside = logs::rotated(&self.dir)?;
        let next = aside.last().map_or(1, |(number, _)| number + 1);
        fs::rename(self.dir.join(logs::CURRENT), self.dir.join(logs::rotated_name(next)))?;
        let keep = self.limits.files as usize - 1;
        let mut all: Vec<_> = aside.into_iter().map(|(number, _)| number).chain([next]).collect();
        let surplus = all.len().saturating_sub(keep);
        for number in all.drain(..surplus) {
            fs::remove_file(self.dir.join(logs::rotated_name(number)))?;
        }
        Ok(())
    }
}

/// The whole lines that fit into `room` bytes; nothing when not even one does.
fn up_to_last_line(data: &[u8], room: usize) -> &[u8] {
    let fits = &data[..room.min(data.len())];
    match fits.iter().rposition(|b| *b == b'\n') {
        Some(end) => &fits[..=end],
        None => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(dir: &Path, file_bytes: u64, files: u32) -> (LogWriter, Arc<AtomicU64>) {
        let lost = Arc::new(AtomicU64::new(0));
        (LogWriter::new(dir, LogLimits { file_bytes, files }, lost.clone()), lost)
    }

    fn read(dir: &Path, name: &str) -> String {
        fs::read_to_string(dir.join(name)).unwrap()
    }

    #[test]
    fn full_files_are_put_aside_at_the_end_of_a_line_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, lost) = writer(dir.path(), 10, 3);
        for line in ["one\n", "two\n", "three\n", "four\n", "five\nsix\n", "seven\n"] {
            log.write(line.as_bytes());
        }
        let names: Vec<_> = logs::rotated(dir.path()).unwrap().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, [2, 3]);
        assert_eq!(read(dir.path(), &logs::rotated_name(2)), "three\n");
        assert_eq!(read(dir.path(), &logs::rotated_name(3)), "four\nfive\n");
        assert_eq!(read(dir.path(), logs::CURRENT), "six\nseven\n");
        assert_eq!(lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_line_longer_than_a_file_is_cut_and_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = writer(dir.path(), 4, 10);
        log.write(b"abcdefghij");
        let mut all = String::new();
        for (number, _) in logs::rotated(dir.path()).unwrap() {
            all += &read(dir.path(), &logs::rotated_name(number));
        }
        assert_eq!(all + &read(dir.path(), logs::CURRENT), "abcdefghij");
    }

    #[test]
    fn a_full_disk_drops_and_counts_and_the_gap_is_told_later() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", dir.path().join(logs::CURRENT)).unwrap();
        let (mut log, lost) = writer(dir.path(), 1000, 2);
        log.write(b"hello\n");
        assert_eq!(lost.load(Ordering::Relaxed), 6);
        fs::remove_file(dir.path().join(logs::CURRENT)).unwrap();
        log.write(b"again\n");
        assert_eq!(
            read(dir.path(), logs::CURRENT),
            "\n[tidegate: 6 bytes of output could not be written]\nagain\n"
        );
    }

    #[test]
    fn a_later_run_goes_on_in_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        writer(dir.path(), 100, 2).0.write(b"run 1\n");
        writer(dir.path(), 100, 2).0.write(b"run 2\n");
        assert_eq!(read(dir.path(), logs::CURRENT), "run 1\nrun 2\n");
    }
}
