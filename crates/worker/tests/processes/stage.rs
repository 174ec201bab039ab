//! A data directory, a runtime, and the promise that nothing started here outlives the test.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use worker::cgroup::{Cgroups, Kind};
use worker::runtime::{Ended, ExitRecord, Handle, Launch, LogLimits, Runtime};
use worker::shim::book;
use worker::shim::record::RunRecord;
use worker::sys;

/// Far more than anything here takes, on a machine with other things to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Held while the group above those of all stages is made or removed.
static TOP_GROUP: Mutex<()> = Mutex::new(());

pub struct Stage {
    pub runtime: Runtime,
    cgroups: Cgroups,
    data: tempfile::TempDir,
    /// Pid and start time of processes that shims do not know of.
    strangers: Mutex<Vec<(i32, u64)>>,
}

impl Stage {
    pub fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap(), None)
    }

    pub fn without_cgroups() -> Self {
        Self::at(tempfile::tempdir().unwrap(), Some(Cgroups::none("not wanted")))
    }

    /// Instances in a v2 hierarchy, whether or not it can limit memory; none at all where there is no v2.
    pub fn with_v2() -> Self {
        let data = tempfile::tempdir().unwrap();
        let cgroups = detect(&[Kind::V2], data.path());
        Self::at(data, Some(cgroups))
    }

    pub fn at(data: tempfile::TempDir, cgroups: Option<Cgroups>) -> Self {
        let cgroups = cgroups.unwrap_or_else(|| detect(&[Kind::V2, Kind::V1], data.path()));
        let runtime = Self::runtime_in(data.path(), &cgroups);
        Self { runtime, cgroups, data, strangers: Mutex::default() }
    }

    fn runtime_in(data: &Path, cgroups: &Cgroups) -> Runtime {
        let exe = std::env::current_exe().unwrap();
        Runtime::new(&data.join("instances"), &exe, cgroups.clone()).unwrap()
    }

    /// What a daemon has after a restart: nothing but the disk.
    pub fn runtime_again(&self) -> Runtime {
        Self::runtime_in(self.data.path(), &self.cgroups)
    }

    pub fn data(&self) -> &Path {
        self.data.path()
    }

    pub fn dir(&self, instance: &str) -> PathBuf {
        self.runtime.dir(instance)
    }

    /// A run of a shell script.
    pub fn shell(&self, instance: &str, script: &str) -> Launch {
        self.command(instance, &["/bin/sh", "-c", script])
    }

    pub fn command(&self, instance: &str, command: &[&str]) -> Launch {
        Launch {
            instance: instance.into(),
            run: 1,
            command: command.iter().map(|s| s.to_string()).collect(),
            workdir: self.data.path().to_owned(),
            log: LogLimits::default(),
            ..Launch::default()
        }
    }

    /// Remembers a process for the clean-up, and returns its start time.
    pub fn own(&self, pid: i32) -> u64 {
        let start = sys::proc_stat(pid).unwrap().start_time;
        self.strangers.lock().unwrap().push((pid, start));
        start
    }

    /// Waits for a file the instance writes into the data directory, and takes the numbers in it.
    pub fn numbers(&self, file: &str, count: usize) -> Vec<i32> {
        let path = self.data.path().join(file);
        let mut found = Vec::new();
        until(&format!("{count} numbers in {file}"), || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            found = text.split_whitespace().filter_map(|w| w.parse().ok()).collect();
            found.len() == count && text.ends_with('\n')
        });
        found
    }
}

fn detect(kinds: &[Kind], data: &Path) -> Cgroups {
    let _top = TOP_GROUP.lock().unwrap_or_else(PoisonError::into_inner);
    Cgroups::detect_among(kinds, "test", data)
}

impl Drop for Stage {
    fn drop(&mut self) {
        let mut groups = Vec::new();
        for dir in self.runtime.scan().unwrap_or_default() {
            let Ok(Some(run)) = book::read_record::<RunRecord>(&dir) else { continue };
            kill(run.shim_pid, Some(run.shim_start));
            if let Some(pid) = run.child_pid {
                kill(pid, run.child_start);
            }
            groups.extend(run.cgroup);
        }
        for (pid, start) in self.strangers.lock().unwrap().drain(..) {
            kill(pid, Some(start));
        }
        for group in groups {
            let until = Instant::now() + Duration::from_secs(5);
            while !group.pids().is_empty() && Instant::now() < until {
                group.kill_all();
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = group.remove();
        }
        if let Some(base) = self.cgroups.base() {
            let _top = TOP_GROUP.lock().unwrap_or_else(PoisonError::into_inner);
            self.cgroups.remove_empty();
            let _ = std::fs::remove_dir(base);
            let _ = base.parent().map(std::fs::remove_dir);
        }
    }
}

/// SIGKILL to that very process and to nobody who got its number later.
pub fn kill(pid: i32, start: Option<u64>) {
    if start.is_some_and(|start| sys::is_alive(pid, start)) {
        let _ = rustix::process::kill_process(sys::pid(pid).unwrap(), rustix::process::Signal::KILL);
    }
}

/// Waits on a condition, and fails with its name.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
pub fn dies(pid: i32, start: u64) {
    until(&format!("the end of process {pid}"), || !sys::is_alive(pid, start));
}

/// Runs one life of a daemon: when this returns, everything async of it has been dropped.
pub fn daemon<T>(life: impl Future<Output = T>) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async { tokio::time::timeout(PATIENCE, life).await.expect("it takes too long") })
}

/// The ending, which must be known.
pub async fn exit_of(handle: &Handle) -> ExitRecord {
    match handle.wait_exit().await {
        Ended::Exited(exit) => exit,
        other => panic!("{other:?}"),
    }
}
