//! A running instance, as the daemon holds it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::adopt::{self, Settled};
use super::client::{self, ControlError};
use super::{ExitRecord, Status, blocking};
use crate::cgroup::Cgroups;
use crate::shim::record::RunRecord;
use crate::sys::{self, Pidfd};

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Exited(ExitRecord),
    /// Its shim died without a word; nothing of it runs any more, but how it ended is not known.
    Lost {
        why: String,
    },
    /// It may still run: something of it could not be killed, or its lock is held by nobody we can ask.
    Unclear {
        why: String,
    },
}

/// Cheap to clone; all clones are of the same run. Dropping it does nothing to the instance.
#[derive(Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    run: RunRecord,
    cgroups: Cgroups,
    /// `None`: it had ended before anybody held it.
    shim: Option<Pidfd>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("run", &self.inner.run).finish_non_exhaustive()
    }
}

impl Handle {
    /// Fails with ESRCH when that shim does not live any more.
    pub(super) fn open(dir: &Path, run: RunRecord, cgroups: Cgroups) -> io::Result<Self> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let pid = sys::pid(run.shim_pid).ok_or_else(gone)?;
        let shim = Pidfd::open(pid)?;
        // Looked at after opening: if it matches now, the descriptor is of the process we mean.
        if !sys::exists(run.shim_pid, run.shim_start) {
            return Err(gone());
        }
        Ok(Self { inner: Arc::new(Inner { dir: dir.to_owned(), run, cgroups, shim: Some(shim) }) })
    }

    /// Of a shim that has said that it started: it may have ended since, and been reaped.
    pub(super) fn of_started(dir: &Path, run: RunRecord, cgroups: Cgroups) -> io::Result<Self> {
        match Self::open(dir, run.clone(), cgroups.clone()) {
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                Ok(Self { inner: Arc::new(Inner { dir: dir.to_owned(), run, cgroups, shim: None }) })
            }
            opened => opened,
        }
    }

    pub fn instance(&self) -> &str {
        &self.inner.run.instance
    }

    pub fn run(&self) -> u32 {
        self.inner.run.run
    }

    /// The main process.
    pub fn pid(&self) -> i32 {
        self.inner.run.child_pid.unwrap_or(0)
    }

    pub fn shim_pid(&self) -> i32 {
        self.inner.run.shim_pid
    }

    /// Milliseconds since 1970.
    pub fn started_at_ms(&self) -> u64 {
        self.inner.run.started_at_ms
    }

    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Returns as soon as the run is over: nothing of it is left and its ending is on disk. May be called
    /// any number of times, also after the end, and may be dropped and called again.
    pub async fn wait_exit(&self) -> Ended {
        if let Some(shim) = &self.inner.shim
            && let Err(e) = shim.ended().await
        {
            return Ended::Unclear { why: format!("waiting for the shim: {e}") };
        }
        let (dir, cgroups) = (self.inner.dir.clone(), self.inner.cgroups.clone());
        let run = self.inner.run.run;
        match blocking(move || adopt::settle(&dir, &cgroups)).await {
            Settled::Exited(exit) if exit.run == run => Ended::Exited(exit),
            Settled::Exited(exit) => Ended::Lost { why: format!("run {} took its place", exit.run) },
            Settled::Lost { why } => Ended::Lost { why },
            Settled::NeverStarted => Ended::Lost { why: "its record has gone".into() },
            Settled::Held => Ended::Lost { why: "another run has begun".into() },
            Settled::Unclear { why } => Ended::Unclear { why },
        }
    }

    /// To the whole process group. `Ok` when it is over already.
    pub async fn signal(&self, signal: i32) -> Result<(), ControlError> {
        match client::ask(&self.inner.dir, "signal", json!({"signal": signal})).await {
            Ok(_) | Err(ControlError::Gone) => Ok(()),
            Err(ControlError::Silent) => self.around_the_shim(signal),
            Err(e) => self.unless_over(e),
        }
    }

    /// SIGKILL to everything that belongs to it. [`Handle::wait_exit`] tells when it is done.
    pub async fn kill(&self) -> Result<(), ControlError> {
        match client::ask(&self.inner.dir, "kill", json!({})).await {
            Ok(_) | Err(ControlError::Gone) => Ok(()),
            Err(_) => self.around_the_shim(libc::SIGKILL),
        }
    }

    /// Kill it once CLOCK_BOOTTIME (milliseconds) passes that, daemon or not; `None` takes the fence away.
    pub async fn set_fence(&self, deadline_ms: Option<u64>) -> Result<(), ControlError> {
        client::ask(&self.inner.dir, "fence", json!({"deadline_ms": deadline_ms})).await.map(drop)
    }

    pub async fn status(&self) -> Result<Status, ControlError> {
        client::status(&self.inner.dir).await
    }

    /// Signal, wait for `grace`, kill, wait.
    pub async fn stop(&self, signal: i32, grace: Duration) -> Ended {
        // A signal that does not arrive is followed by one that does.
        if self.signal(signal).await.is_ok()
            && let Ok(ended) = tokio::time::timeout(grace, self.wait_exit()).await
        {
            return ended;
        }
        match self.kill().await {
            Ok(()) => self.wait_exit().await,
            Err(e) => Ended::Unclear { why: format!("cannot be killed: {e}") },
        }
    }

    /// A refusal because the main process has just ended is no error to who wanted it to end.
    fn unless_over(&self, error: ControlError) -> Result<(), ControlError> {
        match (self.inner.run.child_pid, self.inner.run.child_start) {
            (Some(pid), Some(start)) if sys::is_alive(pid, start) => Err(error),
            _ => Ok(()),
        }
    }

    /// For a shim that lives and does not answer (stopped, starved): the instance must not depend on it.
    fn around_the_shim(&self, signal: i32) -> Result<(), ControlError> {
        let run = &self.inner.run;
        if let (Some(pid), Some(start)) = (run.child_pid, run.child_start)
            && sys::exists(pid, start)
            && let Some(group) = sys::pid(pid)
        {
            sys::signal_group(group, signal)?;
        }
        if signal == libc::SIGKILL
            && let Some(group) = &run.cgroup
        {
            group.kill_all();
        }
        Ok(())
    }
}
