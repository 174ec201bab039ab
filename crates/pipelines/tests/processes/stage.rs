//! What the tests share: a pipeline of the fake command, its processes, a daemon to be killed.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use model::{Checkpoint, FeedName, SpanEpoch, SpanName};
use pipelines::command::{CommandPipeline, Limits};
use pipelines::{Control, Host, Pipeline, Trouble};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Nothing here takes this long unless it hangs.
pub const HANGS_AFTER: Duration = Duration::from_secs(60);
/// A limit that a test waits for, and within which all else is answered on a busy machine.
pub const SHORT: Duration = Duration::from_secs(3);
/// A lease that does not end within a test.
pub const LONG_MS: u64 = 10 * 60 * 1000;

pub fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(HANGS_AFTER, test).await.expect("it hangs") });
}

pub fn boot_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

pub fn host() -> Host {
    let me = std::env::current_exe().unwrap();
    Host { node: "node-1".to_owned(), guard: vec![me.into(), "guard".into()] }
}

/// Short where a test waits for it to be over, long where it must not be.
pub fn limits() -> Limits {
    Limits { pause_first: Duration::from_millis(1), ..Limits::default() }
}

pub fn fake(dir: &Path, mode: &str, limits: Limits) -> Arc<CommandPipeline> {
    let me = std::env::current_exe().unwrap().display().to_string();
    let env = [("FAKE_DIR", dir.display().to_string()), ("FAKE_MODE", mode.to_owned())];
    let env: BTreeMap<String, String> = env.map(|(key, value)| (key.to_owned(), value)).into();
    Arc::new(CommandPipeline::new(&FeedName::new("f"), &host(), &[me, "fake".to_owned()], &env, limits))
}

/// A pipeline of the fake command with a long lease, and what it notes.
pub struct Stage {
    pub dir: TempDir,
    pub pipeline: Arc<CommandPipeline>,
}

impl Stage {
    pub fn new(mode: &str, limits: Limits) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let pipeline = fake(dir.path(), mode, limits);
        pipeline.lease(boot_ms() + LONG_MS);
        Stage { dir, pipeline }
    }

    pub fn pids(&self) -> Vec<i32> {
        pids(self.dir.path())
    }

    /// What all its lives were told, without the times at which pings happen to come.
    pub fn heard(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.path().join("heard")).unwrap_or_default();
        let messages = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let told = messages.map(|m| {
            let word = |key: &str| m[key].as_str().unwrap_or_default().to_owned();
            format!("{} {}", word("type"), word("span")).trim().to_owned()
        });
        told.filter(|told| told != "ping").collect()
    }

    pub async fn run(&self, span: &str, epoch: u64, from: Option<Checkpoint>) -> Dispatcher {
        run(&*self.pipeline, span, epoch, from).await.unwrap()
    }

    /// Lets slow stops go on.
    pub fn open_gate(&self) {
        std::fs::write(self.dir.path().join("gate"), "").unwrap();
    }
}

pub struct Dispatcher {
    pub task: JoinHandle<Result<Checkpoint, Trouble>>,
    pub progress: watch::Receiver<Option<Checkpoint>>,
    pub stop: CancellationToken,
}

pub async fn run(
    pipeline: &dyn Pipeline,
    span: &str,
    epoch: u64,
    from: Option<Checkpoint>,
) -> Result<Dispatcher, Trouble> {
    let prepared = pipeline.prepare(&SpanName::new(span)).await?;
    let (sender, progress) = watch::channel(None);
    let stop = CancellationToken::new();
    let control = Control { stop: stop.clone(), progress: sender };
    let task = tokio::spawn(prepared.run(SpanEpoch(epoch), from, control));
    Ok(Dispatcher { task, progress, stop })
}

impl Dispatcher {
    pub async fn reached(&mut self, position: u64) -> Checkpoint {
        let told = self.progress.wait_for(|told| told.is_some_and(|told| told.position >= position)).await;
        told.unwrap().unwrap()
    }

    pub async fn stopped(self) -> Result<Checkpoint, Trouble> {
        self.stop.cancel();
        self.task.await.unwrap()
    }

    pub async fn trouble(self) -> Trouble {
        self.task.await.unwrap().unwrap_err()
    }
}

pub fn pids(dir: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(dir.join("pids")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

pub fn parent(pid: i32) -> i32 {
    stat(pid).expect("it lives").1
}

pub fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    Some((rest.next()?.chars().next()?, rest.next()?.parse().ok()?))
}

/// Looks again and again until it is so. The time limit is for tests that would hang.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so() {
        assert!(begun.elapsed() < HANGS_AFTER, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A process that is stopped, and goes on with the end of this, however the test ends.
pub struct Stopped(i32);

impl Stopped {
    pub fn new(pid: i32) -> Stopped {
        signal(pid, rustix::process::Signal::STOP);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, rustix::process::Signal::CONT);
    }
}

/// Another process that hosts the fake command: one that can be stopped and killed. Ended with the test.
pub struct Daemon(Child);

impl Daemon {
    /// Returns once its command runs.
    pub fn start(dir: &Path, mode: &str, lease_ms: u64) -> Daemon {
        let me = std::env::current_exe().unwrap();
        let arguments = [dir.display().to_string(), mode.to_owned(), lease_ms.to_string()];
        let child = Command::new(me)
            .arg("daemon")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut daemon = Daemon(child);
        let mut line = String::new();
        BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        daemon
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn daemon_main(arguments: &[String]) {
    let [dir, mode, lease_ms] = arguments else { panic!("DIR MODE LEASE_MS") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let pipeline = fake(Path::new(dir), mode, limits());
        pipeline.lease(boot_ms() + lease_ms.parse::<u64>().unwrap());
        pipeline.look().await.unwrap();
        println!("up");
        std::future::pending::<()>().await
    });
}
