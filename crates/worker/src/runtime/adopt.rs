//! What became of a run nobody watched. Facts only.
//!
//! The lock comes first: held means that a shim lives (or is being born) and everything else is a question
//! to it; free means that no shim lives, and then the records say how far it came:
//!
//! | launch | run | exit | so |
//! |---|---|---|---|
//! | run n | – | – | never started: a run is on record before the fork |
//! | run n of another boot | – | – | lost: a loss of power may have taken the rest |
//! | run n | run n | run n | ended, and how |
//! | run n | – or run n | broken | lost |
//! | run n | run n | – or run m | lost: the machine restarted, or the shim was killed |
//! | broken | any | any | lost |
//!
//! "Lost" is said only when nothing of it is left: what a killed shim left in the cgroup is killed first.
//! Where that cannot be had, the answer is "unclear", and unclear counts as running.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use super::handle::Handle;
use super::{ExitRecord, Lock, Runtime, blocking, client, lock_exclusive};
use crate::cgroup::{Cgroups, Group};
use crate::shim::MARK_ENV;
use crate::shim::book::{self, Records};
use crate::shim::record::{LaunchRecord, RunRecord};
use crate::{host, sys};

/// A shim between taking the lock and recording the pid; longer only on a disk that hangs.
const BIRTH_WITHIN: Duration = Duration::from_secs(10);
const BIRTH_PAUSE: Duration = Duration::from_millis(20);

/// Killed processes are gone within milliseconds, unless they hang in the kernel.
const LEFTOVERS_WITHIN: Duration = Duration::from_secs(10);
const LEFTOVERS_PAUSE: Duration = Duration::from_millis(5);

/// Why a run of another boot is lost.
pub const RESTARTED: &str = "the machine restarted";

/// An instance directory and what is true of it.
#[derive(Debug)]
pub struct Adopted {
    pub dir: PathBuf,
    /// What was asked for, as far as that can be read.
    pub launch: Option<LaunchRecord>,
    pub found: Found,
}

#[derive(Debug)]
pub enum Found {
    Running(Handle),
    /// It ended while nobody watched.
    Exited(ExitRecord),
    /// It does not run, and how it ended is not known.
    Lost {
        why: String,
    },
    /// It was ordered and did not begin.
    NeverStarted,
    /// It may run. Something holds the lock and does not answer, or could not be killed.
    Unclear {
        why: String,
    },
}

/// What the records say once the lock is free.
#[derive(Debug)]
pub(super) enum Settled {
    /// It is not free.
    Held,
    Exited(ExitRecord),
    Lost {
        why: String,
    },
    NeverStarted,
    Unclear {
        why: String,
    },
}

impl Runtime {
    /// Finds out what became of the run in this directory. Kills only what a dead shim has left behind.
    pub async fn adopt(&self, dir: &Path) -> Adopted {
        let found = self.find(dir).await;
        let launch = book::read_record(dir).unwrap_or_default();
        Adopted { dir: dir.to_owned(), launch, found }
    }

    async fn find(&self, dir: &Path) -> Found {
        let until = Instant::now() + BIRTH_WITHIN;
        loop {
            let (at, cgroups) = (dir.to_owned(), self.cgroups.clone());
            // A cheap look first, so that a run that lives is not asked for its lock.
            let held = is_held(dir);
            let settled = if held { Settled::Held } else { blocking(move || settle(&at, &cgroups)).await };
            match settled {
                Settled::Exited(exit) => return Found::Exited(exit),
                Settled::Lost { why } => return Found::Lost { why },
                Settled::NeverStarted => return Found::NeverStarted,
                Settled::Unclear { why } => return Found::Unclear { why },
                Settled::Held => {}
            }
            let why = match self.hold_living(dir).await {
                Ok(handle) => return Found::Running(handle),
                Err(why) => why,
            };
            if Instant::now() >= until {
                return Found::Unclear { why };
            }
            tokio::time::sleep(BIRTH_PAUSE).await;
        }
    }

    /// The lock is held. `Err` is what is in the way, which may pass: it is being born, or is ending.
    async fn hold_living(&self, dir: &Path) -> Result<Handle, String> {
        let records = Records::of(dir);
        let run = match records.get::<RunRecord>() {
            Ok(Some(run)) if run.child_pid.is_some() && is_of_launch(&records, &run) => run,
            // The file is of no use; the shim itself knows.
            _ => client::status(dir).await.map_err(|e| format!("the lock is held, and {e}"))?.run,
        };
        if run.boot_id != host::boot_id() {
            return Err("the lock is held, and its run is of another boot".into());
        }
        if !sys::is_alive(run.shim_pid, run.shim_start) {
            return Err("the lock is held, and its shim is dead".into());
        }
        Handle::open(dir, run, self.cgroups.clone())
            .map_err(|e| format!("the lock is held, and its shim: {e}"))
    }
}

fn is_of_launch(records: &Records, run: &RunRecord) -> bool {
    // Where the launch cannot be read, a run with a living shim is believed.
    match records.get::<LaunchRecord>() {
        Ok(Some(launch)) => launch.run == run.run,
        Ok(None) | Err(_) => true,
    }
}

/// Shared on purpose: two who look at the same time must not take each other for a shim.
fn is_held(dir: &Path) -> bool {
    let (Ok(book), Ok(earlier)) = (book::open(dir, false), book::open_earlier_lock(dir)) else {
        return false;
    };
    let lock = Lock { book, earlier };
    let held = lock.files().any(|file| flock(file, FlockOperation::NonBlockingLockShared).is_err());
    lock.release();
    held
}

/// Reads the records under the lock, and kills what is left of a run that is lost.
pub(super) fn settle(dir: &Path, cgroups: &Cgroups) -> Settled {
    let lock = match lock_exclusive(dir, false) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Settled::Held,
        Err(e) => return Settled::Unclear { why: format!("{}: {e}", dir.display()) },
    };
    let records = Records::of(dir);
    let settled = match judge(&records) {
        Settled::Lost { why } => match kill_leftovers(dir, &records, cgroups) {
            Ok(()) => Settled::Lost { why },
            Err(left) => Settled::Unclear { why: format!("{why}; {left}") },
        },
        other => other,
    };
    lock.release();
    settled
}

fn judge(records: &Records) -> Settled {
    let run = records.get::<RunRecord>();
    let launch = match records.get::<LaunchRecord>() {
        Ok(Some(launch)) => launch,
        Ok(None) if matches!(run, Ok(None)) => return Settled::NeverStarted,
        Ok(None) => return Settled::Lost { why: "its launch is missing".into() },
        Err(why) => return Settled::Lost { why },
    };
    match records.get::<ExitRecord>() {
        Ok(Some(exit)) if exit.run == launch.run => return Settled::Exited(exit),
        Ok(_) => {}
        Err(why) => return Settled::Lost { why },
    }
    match run {
        Ok(Some(run)) if run.run == launch.run => {
            let rebooted = run.boot_id != host::boot_id();
            let why = if rebooted { RESTARTED } else { "its shim was killed" };
            Settled::Lost { why: why.into() }
        }
        Ok(_) if launch.boot_id != host::boot_id() => Settled::Lost { why: RESTARTED.into() },
        Ok(_) => Settled::NeverStarted,
        Err(why) => Settled::Lost { why },
    }
}

/// Kills whatever still runs of a run whose shim is dead. The caller holds the lock. `Err`: something
/// could not be killed.
pub(super) fn kill_leftovers(dir: &Path, records: &Records, cgroups: &Cgroups) -> Result<(), String> {
    let run = records.get::<RunRecord>().unwrap_or_default();
    let launch = records.get::<LaunchRecord>().unwrap_or_default();
    let name = dir.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let (mark, recorded) = match (run, launch) {
        (Some(run), _) => (Some(run.mark), run.cgroup),
        (None, Some(launch)) => (Some(launch.mark), launch.cgroup),
        (None, None) => (None, None),
    };
    let group = recorded.or_else(|| cgroups.group(name));
    let until = Instant::now() + LEFTOVERS_WITHIN;
    loop {
        let left = match (&group, &mark) {
            (Some(group), _) => kill_group(group),
            (None, Some(mark)) => kill_marked(mark),
            // Neither place nor mark can be read: there is nothing to go by.
            (None, None) => Vec::new(),
        };
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(format!("processes {left:?} cannot be killed"));
        }
        std::thread::sleep(LEFTOVERS_PAUSE);
    }
}

fn kill_group(group: &Group) -> Vec<i32> {
    let left = group.pids();
    if left.is_empty() {
        // A group that will not go yet is removed at the next start of the daemon.
        let _ = group.remove();
    } else {
        group.kill_all();
    }
    left
}

/// Without cgroups: every process carries the mark of its run in its environment, unless it took pains to
/// lose it.
fn kill_marked(mark: &str) -> Vec<i32> {
    let mark = format!("{MARK_ENV}={mark}");
    let marked = |pid: &i32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|b| *b == 0).any(|entry| entry == mark.as_bytes())
    };
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let found: Vec<i32> = sys::all_pids().into_iter().filter(|p| *p != me).filter(marked).collect();
    for pid in found.iter().copied().filter_map(sys::pid) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    found
}
