//! The daemon's side of running instances: launch a run through a shim, hold on to it, and find it again
//! after a restart.
//!
//! *Invariant:* this module establishes facts (it runs, it ended so, it is lost) and carries out orders. It
//! decides nothing: what to do about a fact is `protocol::node`'s.
//!
//! A directory per instance, `root/<instance>`; the files in it are described in [`crate::shim`]. Whoever
//! starts or settles a run holds the directory's lock; so two starts in one directory cannot both succeed,
//! not even from two daemons. Dropping a [`Handle`], or the whole runtime, never touches the instance.

mod adopt;
mod client;
mod handle;
mod nursery;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, IFlags, flock, ioctl_getflags, ioctl_setflags};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;

use crate::cgroup::Cgroups;
use crate::shim::GREETING;
use crate::shim::book::{self, BOOK, Book, Records};
use crate::shim::record::{self, LaunchRecord, Record, RunRecord};
use crate::{host, sys};
use nursery::Nursery;

pub use adopt::{Adopted, Found, RESTARTED};
pub use client::ControlError;
pub use handle::{Ended, Handle};

pub use crate::shim::control::Status;
pub use crate::shim::record::{ExitRecord, LogLimits};

/// A shim that says nothing for this long is stuck (a dead disk); what became of it is for `adopt` to find.
const GREETING_WITHIN: Duration = Duration::from_secs(60);

/// Longest line a shim says.
const GREETING_BYTES_MAX: u64 = 4096;

/// A probe of another task, or a fork of ours between fork and exec, may hold a lock for a moment.
const LOCK_WITHIN: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// One run to start.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    /// Never reused; names the directory below the root, so it is one component of a path.
    pub instance: String,
    /// Rises with every start of the same instance.
    pub run: u32,
    pub command: Vec<String>,
    /// In addition to PATH, HOME and the like, which are passed on.
    pub env: BTreeMap<String, String>,
    /// Must exist. Relative commands start from here.
    pub workdir: PathBuf,
    /// Hard cap in bytes; without cgroups it is not enforced ([`Cgroups::memory_cap`]).
    pub memory_limit: Option<u64>,
    pub log: LogLimits,
    /// For what must not run twice: the first fence, in milliseconds of CLOCK_BOOTTIME. `None` = no fence.
    pub fence_ms: Option<u64>,
    /// How it ends must be known even after a loss of power.
    pub lasting_exit: bool,
}

/// A run of which everything is written down and nothing is started.
#[derive(Debug)]
pub struct Prepared {
    instance: String,
    dir: PathBuf,
    lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A run lives in the directory, or is being started there.
    #[error("instance {instance} is running already")]
    Busy { instance: String },
    /// It did not start, and says why; recorded as its ending.
    #[error("instance {} {}", .0.instance, .0.describe())]
    StartFailed(Box<ExitRecord>),
    /// The shim itself did not come up; whether anything ran is for `adopt` to find out.
    #[error("the shim of instance {instance} failed: {why}")]
    Shim { instance: String, why: String },
    #[error("instance id {0:?} is not a plain name")]
    Name(String),
    #[error("cannot {what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> LaunchError {
    let what = what.into();
    move |source| LaunchError::Io { what, source }
}

/// Starts and finds the instances of one node.
#[derive(Debug, Clone)]
pub struct Runtime {
    root: PathBuf,
    cgroups: Cgroups,
    nursery: Arc<Nursery>,
}

impl Runtime {
    /// `root` holds a directory per instance; `exe` is run as `exe shims ROOT` once something is to start.
    pub fn new(root: &Path, exe: &Path, cgroups: Cgroups) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        // Shims work from elsewhere, so relative paths would mean something else to them.
        let root = fs::canonicalize(root)?;
        spread_apart(&root);
        Ok(Self { nursery: Arc::new(Nursery::new(exe, &root)), root, cgroups })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// Where the files of an instance are.
    pub fn dir(&self, instance: &str) -> PathBuf {
        self.root.join(instance)
    }

    /// All instance directories, whatever is in them, in the order of their names.
    pub fn scan(&self) -> io::Result<Vec<PathBuf>> {
        let mut dirs = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
            }
        }
        dirs.sort();
        Ok(dirs)
    }

    /// Starts a run and returns once its process is there (or is known not to be).
    pub async fn launch(&self, launch: Launch) -> Result<Handle, LaunchError> {
        let runtime = self.clone();
        self.start(blocking(move || runtime.prepare(launch)).await?).await
    }

    /// Writes down everything that must be there before the fork. Blocks on the disk.
    pub fn prepare(&self, launch: Launch) -> Result<Prepared, LaunchError> {
        check_name(&launch.instance)?;
        let (dir, instance) = (self.dir(&launch.instance), launch.instance.clone());
        let lock = prepare(&dir, launch, &self.cgroups)?;
        Ok(Prepared { instance, dir, lock })
    }

    /// The fork. Returns once the process is there (or is known not to be).
    pub async fn start(&self, prepared: Prepared) -> Result<Handle, LaunchError> {
        let Prepared { instance, dir, lock } = prepared;
        let (heard, says) = io::pipe().map_err(io_error("make a pipe for the shim's first word"))?;
        let heard = pipe::Receiver::from_owned_fd(heard.into()).map_err(io_error("read from a pipe"))?;
        let told = self.nursery.fork_shim(&dir, lock, says).await;
        told.map_err(io_error(format!("have a shim forked for {instance}")))?;
        self.greet(heard, dir, instance).await
    }

    async fn greet(
        &self,
        heard: pipe::Receiver,
        dir: PathBuf,
        instance: String,
    ) -> Result<Handle, LaunchError> {
        let mut line = String::new();
        let mut reader = BufReader::new(heard.take(GREETING_BYTES_MAX));
        // Silence and a broken pipe are both told by the empty line.
        let _ = tokio::time::timeout(GREETING_WITHIN, reader.read_line(&mut line)).await;
        let broken = |why: String| LaunchError::Shim { instance: instance.clone(), why };
        let said = line.trim().strip_prefix(GREETING).unwrap_or("").trim();
        let (word, text) = said.split_once(' ').unwrap_or((said, ""));
        match word {
            "started" => match book::read_record::<RunRecord>(&dir) {
                Ok(Some(run)) => {
                    Handle::of_started(&dir, run, self.cgroups.clone()).map_err(|e| broken(e.to_string()))
                }
                Ok(None) => Err(broken("it has left no record".into())),
                Err(why) => Err(broken(why)),
            },
            "ended" => match book::read_record::<ExitRecord>(&dir) {
                Ok(Some(exit)) => Err(LaunchError::StartFailed(Box::new(exit))),
                Ok(None) => Err(broken("it has left no ending".into())),
                Err(why) => Err(broken(why)),
            },
            "failed" => Err(broken(text.into())),
            _ => Err(broken("it said nothing".into())),
        }
    }

    /// Removes the directory of an instance that is over, logs and all. Refused while it runs.
    pub async fn remove(&self, instance: &str) -> Result<(), LaunchError> {
        check_name(instance)?;
        let (dir, instance) = (self.dir(instance), instance.to_owned());
        blocking(move || {
            if !dir.exists() {
                return Ok(());
            }
            let _lock = lock_exclusive(&dir, false)
                .map_err(io_error(format!("lock {}", dir.display())))?
                .ok_or(LaunchError::Busy { instance })?;
            fs::remove_dir_all(&dir).map_err(io_error(format!("remove {}", dir.display())))
        })
        .await
    }
}

/// Everything that must be written down before the fork. Returns the lock, for the shim to inherit.
fn prepare(dir: &Path, launch: Launch, cgroups: &Cgroups) -> Result<File, LaunchError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(io_error(format!("create {}", dir.display())))?;
    let lock = lock_exclusive(dir, true).map_err(io_error(format!("lock {}", dir.display())))?;
    let Some(Lock { book: Some(book), earlier }) = lock else {
        return Err(LaunchError::Busy { instance: launch.instance });
    };
    // An earlier run whose shim was killed may have left processes that nobody settled.
    let records = Records::of(dir);
    if !matches!(records.get::<RunRecord>(), Ok(None)) {
        adopt::kill_leftovers(dir, &records, cgroups).map_err(|why| LaunchError::Shim {
            instance: launch.instance.clone(),
            why: format!("of an earlier run, {why}"),
        })?;
    }
    let wanted = LaunchRecord {
        version: LaunchRecord::VERSION,
        cgroup: cgroups.group(&launch.instance),
        instance: launch.instance,
        run: launch.run,
        boot_id: host::boot_id(),
        mark: host::random_id().map_err(io_error("get a random mark"))?,
        at_ms: sys::unix_ms(),
        command: launch.command,
        env: launch.env,
        workdir: launch.workdir,
        memory_limit: launch.memory_limit,
        log: launch.log,
        fence_ms: launch.fence_ms,
        lasting_exit: launch.lasting_exit,
    };
    let written = Book::next_run(book).and_then(|mut book| {
        book.add(&wanted)?;
        if earlier.is_some() {
            record::remove_earlier(dir)?;
        }
        Ok(book.into_file())
    });
    written.map_err(io_error(format!("write {}", dir.join(BOOK).display())))
}

/// Tells ext4 that the directories in here have nothing to do with each other. Otherwise it makes all of them,
/// and what is in them, out of the same few blocks, and without a journal a file that is made there looks at every
/// one that was removed within minutes. Other filesystems do not know it, and need not.
fn spread_apart(root: &Path) {
    let tell = || -> io::Result<()> {
        let dir = File::open(root)?;
        let flags = ioctl_getflags(&dir)?;
        if !flags.contains(IFlags::TOPDIR) {
            ioctl_setflags(&dir, flags | IFlags::TOPDIR)?;
        }
        Ok(())
    };
    if let Err(fault) = tell() {
        tracing::debug!("{}: its directories cannot be spread: {fault}", root.display());
    }
}

fn check_name(instance: &str) -> Result<(), LaunchError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good =
        (1..=128).contains(&instance.len()) && instance.chars().all(plain) && !instance.starts_with('.');
    if good { Ok(()) } else { Err(LaunchError::Name(instance.into())) }
}

/// Held, nobody else starts or settles a run in the directory. Given back by name, not by closing: a process
/// forked by another thread may hold a copy for a moment.
#[derive(Debug)]
pub(crate) struct Lock {
    book: Option<File>,
    /// What a shim of an earlier release would hold.
    earlier: Option<File>,
}

impl Lock {
    fn files(&self) -> impl Iterator<Item = &File> {
        self.book.iter().chain(&self.earlier)
    }

    fn release(&self) {
        for file in self.files() {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

/// `None` when somebody holds it for longer than a moment. Without `make`, what is not there is not locked:
/// nothing was ever started where there is nothing.
pub(crate) fn lock_exclusive(dir: &Path, make: bool) -> io::Result<Option<Lock>> {
    let lock = Lock { book: book::open(dir, make)?, earlier: book::open_earlier_lock(dir)? };
    let until = std::time::Instant::now() + LOCK_WITHIN;
    for file in lock.files() {
        loop {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if std::time::Instant::now() < until => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    lock.release();
                    return Ok(None);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(Some(lock))
}

/// Files and locks of a slow disk must not hold up the daemon's other tasks.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only when the runtime shuts down, and then nobody waits for this future any more.
            Err(_) => std::future::pending().await,
        },
    }
}
