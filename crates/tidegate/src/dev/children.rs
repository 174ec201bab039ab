//! The processes that `dev` holds. Each is told to stop by the end of its standard input, which comes
//! by itself when `dev` dies in whatever way.

use std::{
    fs::OpenOptions,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    process::{ChildStdin, Command},
    sync::{mpsc, oneshot},
};

use super::layout::{Daemon, Etcd};
use crate::failure::{Failure, Outcome};

/// A daemon that is told to stop has nothing to wait for but its connections.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// One that ended.
#[derive(Debug)]
pub struct Ended {
    pub name: String,
    pub pid: u32,
    pub status: ExitStatus,
}

struct Held {
    name: String,
    pid: u32,
    /// Dropped to stop it.
    stdin: Option<ChildStdin>,
    kill: Option<oneshot::Sender<()>>,
}

pub struct Children {
    exe: PathBuf,
    held: Vec<Held>,
    tell: mpsc::UnboundedSender<Ended>,
    ended: mpsc::UnboundedReceiver<Ended>,
}

impl Children {
    pub fn new(exe: PathBuf) -> Children {
        let (tell, ended) = mpsc::unbounded_channel();
        Children { exe, held: Vec::new(), tell, ended }
    }

    pub fn start_daemon(&mut self, daemon: &Daemon) -> Outcome {
        let mut command = Command::new(&self.exe);
        command.arg("run").arg("--config").arg(&daemon.config).arg("--until-stdin-ends");
        self.start(&daemon.name, command, &daemon.log)
    }

    pub fn start_etcd(&mut self, etcd: &Etcd) -> Outcome {
        let (client, peer) = (format!("http://{}", etcd.client), format!("http://{}", etcd.peer));
        let mut command = Command::new(&self.exe);
        command.args(["leash", "--", "etcd", "--log-level", "warn", "--name", "dev", "--data-dir"]);
        command.arg(&etcd.data).args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("dev={peer}")]);
        self.start("etcd", command, &etcd.log)
    }

    fn start(&mut self, name: &str, mut command: Command, log: &Path) -> Outcome {
        let cannot = |error: std::io::Error| Failure::error(format!("cannot start {name}: {error}"));
        let log = OpenOptions::new().create(true).append(true).open(log).map_err(cannot)?;
        command.stdin(Stdio::piped()).stdout(log.try_clone().map_err(cannot)?).stderr(log);
        // Ctrl-C is for us alone: we stop them in order.
        command.process_group(0);
        let mut child = command.spawn().map_err(cannot)?;
        let (kill, killed) = oneshot::channel();
        let pid = child.id().unwrap_or_default();
        let held = Held { name: name.to_owned(), pid, stdin: child.stdin.take(), kill: Some(kill) };
        let (name, tell) = (held.name.clone(), self.tell.clone());
        self.held.push(held);
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = child.wait() => ended,
                Ok(()) = killed => {
                    let _ = child.start_kill();
                    child.wait().await
                }
            };
            if let Ok(status) = ended {
                let _ = tell.send(Ended { name, pid, status });
            }
        });
        Ok(())
    }

    /// The next one that ends. Never, if none is left.
    pub async fn next_ended(&mut self) -> Ended {
        loop {
            match self.ended.recv().await {
                Some(ended) => {
                    self.held.retain(|held| held.pid != ended.pid);
                    return ended;
                }
                // We hold a sender ourselves.
                None => std::future::pending().await,
            }
        }
    }

    /// Tells those that match to stop, waits, and kills what does not.
    pub async fn stop(&mut self, which: impl Fn(&str) -> bool) {
        for held in self.held.iter_mut().filter(|held| which(&held.name)) {
            held.stdin = None;
        }
        let all = async {
            while self.held.iter().any(|held| which(&held.name)) {
                self.next_ended().await;
            }
        };
        if tokio::time::timeout(STOP_WITHIN, all).await.is_err() {
            self.kill(&which);
            while self.held.iter().any(|held| which(&held.name)) {
                self.next_ended().await;
            }
        }
    }

    /// SIGKILL, at once.
    pub fn kill(&mut self, which: impl Fn(&str) -> bool) {
        for held in self.held.iter_mut().filter(|held| which(&held.name)) {
            if let Some(kill) = held.kill.take() {
                let _ = kill.send(());
            }
        }
    }
}

/// `killed by signal 9`, `code 1`.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

/// The last words in a log, for an error message.
pub fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let error = lines.iter().rev().take(20).find_map(|line| line.strip_prefix("error: "));
    error.or(lines.last().copied()).unwrap_or("it said nothing").to_owned()
}
