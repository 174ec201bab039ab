//! A scratch directory as a stream, and a stream as a scratch directory.
//!
//! The stream is a tar archive: everything under `disk/`, then one entry that says that this was all, or why
//! it was not. An archive without it is half of one, wherever it was cut. Files, directories and symbolic
//! links are kept with their modes; links are never followed. Sockets, pipes and devices are left out: they
//! mean nothing on another node.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
    time::{Duration, SystemTime},
};

use tar::{Archive, Builder, EntryType, Header};

use crate::host;

/// The scratch directory in an instance's directory.
pub const DISK: &str = "disk";
/// A copy that is not whole yet. Never used: it becomes `disk` by being renamed when it is.
pub const HALF: &str = "disk.part";

/// Bytes of one scratch directory that are copied. More than a fast network brings over in the usual
/// `healthy_deadline`: the limit is for the disk, the deadline for patience.
pub const BYTES_MAX: u64 = 64 << 30;
/// Files and directories of one scratch directory: each takes an inode, which run out before space does.
pub const ENTRIES_MAX: u64 = 1_000_000;
/// The target's file system is looked at each time so much has come.
const LOOK_EVERY: u64 = 16 << 20;

const DATA: &str = "disk";
const ALL: &str = "all";
const FAILED: &str = "failed";
/// What the last entry says is short.
const LAST_WORD_MAX: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("the archive ends in the middle")]
    Half,
    #[error("the old node could not read it: {0}")]
    Source(String),
    #[error("the archive is refused: {0}")]
    Refused(String),
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    #[error("cannot write {}", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn cannot_write(path: &Path) -> impl FnOnce(io::Error) -> UnpackError {
    let path = path.to_owned();
    move |source| UnpackError::Write { path, source }
}

/// Why packing stopped: what cannot be read is told in the archive, whoever hung up is told nothing.
enum PackError {
    Read(String),
    Write(io::Error),
}

fn cannot_read(path: &Path) -> impl FnOnce(io::Error) -> PackError {
    let path = path.to_owned();
    move |fault| PackError::Read(format!("{}: {fault}", path.display()))
}

/// Writes the directory as an archive.
pub fn pack(disk: &Path, to: impl Write) -> io::Result<()> {
    let mut archive = Builder::new(to);
    archive.follow_symlinks(false);
    let (name, word) = match pack_all(disk, &mut archive) {
        Ok(entries) => (ALL, entries.to_string()),
        Err(PackError::Read(why)) => (FAILED, why),
        Err(PackError::Write(fault)) => return Err(fault),
    };
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o600);
    header.set_size(word.len() as u64);
    archive.append_data(&mut header, name, word.as_bytes())?;
    archive.into_inner()?.flush()
}

fn pack_all(disk: &Path, archive: &mut Builder<impl Write>) -> Result<u64, PackError> {
    let mut entries = 0;
    let mut left = vec![PathBuf::new()];
    while let Some(at) = left.pop() {
        let (from, to) = (disk.join(&at), Path::new(DATA).join(&at));
        let meta = fs::symlink_metadata(&from).map_err(cannot_read(&from))?;
        let mut header = Header::new_gnu();
        header.set_metadata(&meta);
        if meta.is_dir() {
            let children = fs::read_dir(&from).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let mut children: Vec<PathBuf> = children
                .map_err(cannot_read(&from))?
                .iter()
                .map(|child| at.join(child.file_name()))
                .collect();
            children.sort_unstable_by(|a, b| b.cmp(a));
            left.extend(children);
            archive.append_data(&mut header, &to, io::empty()).map_err(PackError::Write)?;
        } else if meta.is_symlink() {
            let target = fs::read_link(&from).map_err(cannot_read(&from))?;
            header.set_size(0);
            archive.append_link(&mut header, &to, &target).map_err(PackError::Write)?;
        } else if meta.is_file() {
            // What was a file a moment ago may be a link or a pipe now: neither is followed or waited for.
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let file = OpenOptions::new().read(true).custom_flags(flags).open(&from);
            let file = file.map_err(cannot_read(&from))?;
            let size = file.metadata().map_err(cannot_read(&from))?.size();
            header.set_size(size);
            archive.append_data(&mut header, &to, file.take(size)).map_err(PackError::Write)?;
        } else {
            continue;
        }
        entries += 1;
    }
    Ok(entries)
}

/// Where the copy of one directory stands.
struct Unpacking<'a> {
    into: &'a Path,
    /// The directories made so far, with the modes that they get in the end: one that may not be written
    /// to must be filled first. Nothing is written but into these, so that no link leads anywhere else.
    dirs: BTreeMap<PathBuf, u32>,
    entries: u64,
    bytes: u64,
    looked_at: u64,
    full_at: f64,
}

/// Reads an archive into a directory that is not there yet. When this returns well, all of it is on disk.
/// Stops where the file system gets fuller than `full_at` (0 to 1): other instances live on it too.
pub fn unpack(from: impl Read, into: &Path, full_at: f64) -> Result<(), UnpackError> {
    let mut archive = Archive::new(from);
    let mut work = Unpacking { into, dirs: BTreeMap::new(), entries: 0, bytes: 0, looked_at: 0, full_at };
    for entry in archive.entries().map_err(UnpackError::Read)? {
        let mut entry = entry.map_err(UnpackError::Read)?;
        let path = entry.path().map_err(UnpackError::Read)?.into_owned();
        if path == Path::new(ALL) || path == Path::new(FAILED) {
            let mut word = String::new();
            entry.take(LAST_WORD_MAX).read_to_string(&mut word).map_err(UnpackError::Read)?;
            return match path == Path::new(ALL) {
                true => work.finish(&word),
                false => Err(UnpackError::Source(word)),
            };
        }
        work.take(&path, &mut entry)?;
    }
    Err(UnpackError::Half)
}

impl Unpacking<'_> {
    fn take<R: Read>(&mut self, path: &Path, entry: &mut tar::Entry<'_, R>) -> Result<(), UnpackError> {
        let refused = |why: &str| UnpackError::Refused(format!("{}: {why}", path.display()));
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(refused(&format!("more than {ENTRIES_MAX} files")));
        }
        let rest = path.strip_prefix(DATA).map_err(|_| refused("not below the directory"))?;
        if !rest.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(refused("leads out of the directory"));
        }
        let parent = rest.parent().map(Path::to_owned);
        if parent.is_some_and(|parent| !self.dirs.contains_key(&parent)) {
            return Err(refused("its directory did not come before it"));
        }
        let target = self.into.join(rest);
        let header = entry.header();
        let mode = header.mode().map_err(UnpackError::Read)? & 0o7777;
        let modified = header.mtime().map_err(UnpackError::Read)?;
        match header.entry_type() {
            EntryType::Directory => {
                DirBuilder::new().mode(0o700).create(&target).map_err(cannot_write(&target))?;
                self.dirs.insert(rest.to_owned(), mode);
                Ok(())
            }
            EntryType::Symlink => {
                let to = entry.link_name().map_err(UnpackError::Read)?;
                let to = to.ok_or_else(|| refused("a link to nothing"))?;
                symlink(&to, &target).map_err(cannot_write(&target))
            }
            EntryType::Regular => self.file(&target, entry, mode, modified),
            _ => Err(refused("neither a file nor a directory nor a symbolic link")),
        }
    }

    fn file(&mut self, path: &Path, from: &mut impl Read, mode: u32, mtime: u64) -> Result<(), UnpackError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = file.map_err(cannot_write(path))?;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(fault) if fault.kind() == io::ErrorKind::Interrupted => continue,
                Err(fault) => return Err(UnpackError::Read(fault)),
            };
            self.bytes += read as u64;
            self.mind_the_room()?;
            file.write_all(&buffer[..read]).map_err(cannot_write(path))?;
        }
        file.set_permissions(Permissions::from_mode(mode)).map_err(cannot_write(path))?;
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(mtime.min(u64::from(u32::MAX)));
        file.set_modified(modified).map_err(cannot_write(path))
    }

    fn mind_the_room(&mut self) -> Result<(), UnpackError> {
        if self.bytes > BYTES_MAX {
            return Err(UnpackError::Refused(format!("more than {} GiB", BYTES_MAX >> 30)));
        }
        if self.looked_at > 0 && self.bytes < self.looked_at + LOOK_EVERY {
            return Ok(());
        }
        self.looked_at = self.bytes;
        match host::disk(self.into) {
            Ok(disk) if disk.fullness() >= self.full_at => {
                Err(UnpackError::Refused("it would fill the disk of this node".to_owned()))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn finish(self, entries: &str) -> Result<(), UnpackError> {
        if entries != self.entries.to_string() || self.dirs.is_empty() {
            return Err(UnpackError::Half);
        }
        // Before modes that may forbid to open it.
        let root = File::open(self.into).map_err(cannot_write(self.into))?;
        for (dir, mode) in self.dirs.iter().rev() {
            let path = self.into.join(dir);
            fs::set_permissions(&path, Permissions::from_mode(*mode)).map_err(cannot_write(&path))?;
        }
        // One call for a million files, not one for each.
        rustix::fs::syncfs(&root).map_err(|fault| cannot_write(self.into)(fault.into()))
    }
}
