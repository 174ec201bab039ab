//! A real etcd on loopback, for the tests and benches of any crate.
//!
//! Each member runs under a small shell that kills it when the [`EtcdCluster`] is dropped, and also when
//! the test process itself ends without dropping it: the shell's input ends then, too.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Endpoint;

use crate::contract::{Office, Op, Store};
use crate::error::{CommitError, Refusal};
use crate::etcd::EtcdConfig;
use crate::etcd::proto::kv_client::KvClient;
use crate::etcd::proto::maintenance_client::MaintenanceClient;
use crate::etcd::proto::request_op::Request;
use crate::etcd::proto::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, StatusRequest, StatusResponse, TxnRequest,
};

/// How long a test waits for something that must happen. Generous: machines are slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(20);

/// Ports are picked by binding and letting go, so somebody else may grab one in between.
const START_TRIES: usize = 5;

/// `$0` is the directory, `$1` the member's name, the rest is the command. Prints the pid and waits for a
/// line, or the end of its input; then kills. Without a line nobody is left who removes the directory.
const SUPERVISOR: &str = r#"
name=$1; shift
"$@" >>"$0/$name.log" 2>&1 </dev/null &
echo $!
read -r keep
kill -9 $!
wait $!
[ -n "$keep" ] || { rm -rf "$0/$name" "$0/$name.log"; rmdir "$0"; }
"#;

/// Waits until `condition` gives something.
///
/// # Panics
/// When [`PATIENCE`] is over.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        sleep(POLL).await;
    }
}

/// What a caller's commit loop does about lost answers: read the head, send the same bytes again.
pub async fn commit_surely(store: &dyn Store, office: &Office, head: u64, ops: &[Op]) -> Result<(), Refusal> {
    let mut doubtful = false;
    loop {
        match store.commit(office, head, ops).await {
            Ok(()) => return Ok(()),
            // the one that was lost has landed after all
            Err(CommitError::Refused { why: Refusal::HeadIsOther { found, .. }, .. })
                if doubtful && found == Some(head) =>
            {
                return Ok(());
            }
            Err(CommitError::Refused { why, .. }) => return Err(why),
            Err(error) if error.may_be_applied() => {
                doubtful = true;
                let found = wait_for("the head", || async { store.head().await.ok() }).await;
                if found == head {
                    return Ok(());
                }
            }
            Err(CommitError::Unavailable { .. }) => sleep(POLL).await,
            Err(error) => panic!("{error}"),
        }
    }
}

struct Member {
    name: String,
    client_url: String,
    arguments: Vec<String>,
    log: PathBuf,
    running: Option<Running>,
}

struct Running {
    supervisor: Child,
    pid: Pid,
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("the member is our process, not yet waited for");
    }

    /// Whether etcd itself is still there; its shell waits for it only when told to.
    fn is_alive(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        let state = stat.ok().and_then(|stat| stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('Z')));
        state == Some(false)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // its order to kill and to wait; the data stays, for a restart or for whoever drops the directory
        if let Some(mut orders) = self.supervisor.stdin.take() {
            let _gone_already = orders.write_all(b"keep\n");
        }
        let _gone = self.supervisor.wait();
    }
}

/// One or more members, each with its own data; all are gone when this is dropped.
pub struct EtcdCluster {
    members: Vec<Member>,
    directory: tempfile::TempDir,
}

impl EtcdCluster {
    /// Starts `members` members and waits until all of them serve.
    ///
    /// # Panics
    /// When etcd is not installed or does not start.
    pub async fn start(members: usize) -> EtcdCluster {
        EtcdCluster::start_with(members, &[]).await
    }

    /// As [`EtcdCluster::start`], with further arguments for each member.
    pub async fn start_with(members: usize, arguments: &[&str]) -> EtcdCluster {
        EtcdCluster::start_at(Ipv4Addr::LOCALHOST, members, arguments).await
    }

    /// As [`EtcdCluster::start_with`], at another address of this machine.
    pub async fn start_at(host: Ipv4Addr, members: usize, arguments: &[&str]) -> EtcdCluster {
        assert!(is_installed(), "etcd is not installed: run cargo xtask test, which installs it");
        let mut tries = 0;
        loop {
            tries += 1;
            let mut cluster = EtcdCluster::lay_out(host, members, arguments);
            (0..members).for_each(|member| cluster.launch(member));
            match cluster.all_serve().await {
                Ok(()) => return cluster,
                Err(why) => assert!(tries < START_TRIES, "etcd did not start: {why}"),
            }
        }
    }

    fn lay_out(host: Ipv4Addr, members: usize, further: &[&str]) -> EtcdCluster {
        let directory = tempfile::Builder::new().prefix("tidegate-etcd-").tempdir().expect("a directory");
        let sockets: Vec<TcpListener> =
            (0..2 * members).map(|_| TcpListener::bind((host, 0)).expect("a free port")).collect();
        let urls: Vec<String> = sockets
            .iter()
            .map(|socket| format!("http://{}", socket.local_addr().expect("a bound socket has an address")))
            .collect();
        let peers: Vec<String> = (0..members).map(|n| format!("m{n}={}", urls[members + n])).collect();
        let token = directory.path().display().to_string();
        let member = |n: usize| {
            let pairs = [
                ("--name", format!("m{n}")),
                ("--data-dir", directory.path().join(format!("m{n}")).display().to_string()),
                ("--listen-client-urls", urls[n].clone()),
                ("--advertise-client-urls", urls[n].clone()),
                ("--listen-peer-urls", urls[members + n].clone()),
                ("--initial-advertise-peer-urls", urls[members + n].clone()),
                ("--initial-cluster", peers.join(",")),
                ("--initial-cluster-token", token.clone()),
                ("--initial-cluster-state", "new".to_owned()),
            ];
            let named = pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
            Member {
                name: format!("m{n}"),
                client_url: urls[n].clone(),
                arguments: named.chain(further.iter().map(ToString::to_string)).collect(),
                log: directory.path().join(format!("m{n}.log")),
                running: None,
            }
        };
        EtcdCluster { members: (0..members).map(member).collect(), directory }
    }

    fn launch(&mut self, member: usize) {
        let member = &mut self.members[member];
        let mut supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR])
            .arg(self.directory.path())
            .args([member.name.as_str(), "etcd"])
            .args(&member.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // out of the terminal's group: an interrupt must reach it through its input only
            .process_group(0)
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let output = supervisor.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("the shell says the pid");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
        member.running = Some(Running { supervisor, pid });
    }

    /// Waits until every running member serves. `Err` when one of them has ended.
    async fn all_serve(&self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        for member in &self.members {
            let Some(running) = &member.running else { continue };
            while !serves(&member.client_url).await {
                if !running.is_alive() {
                    return Err(format!("{} ended:\n{}", member.name, tail(&member.log)));
                }
                if Instant::now() >= deadline {
                    return Err(format!("{} does not serve:\n{}", member.name, tail(&member.log)));
                }
                sleep(POLL).await;
            }
        }
        Ok(())
    }

    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client_url.clone()).collect()
    }

    pub fn endpoint(&self, member: usize) -> String {
        self.members[member].client_url.clone()
    }

    pub fn config(&self, prefix: &str) -> EtcdConfig {
        EtcdConfig { endpoints: self.endpoints(), prefix: prefix.to_owned() }
    }

    pub fn pid(&self, member: usize) -> i32 {
        self.running(member).pid.as_raw_nonzero().get()
    }

    fn running(&self, member: usize) -> &Running {
        self.members[member].running.as_ref().expect("the member runs")
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self, member: usize) {
        self.running(member).signal(Signal::KILL);
        self.members[member].running = None;
    }

    /// SIGTERM; returns when it has ended by itself.
    pub async fn stop(&mut self, member: usize) {
        let running = self.running(member);
        running.signal(Signal::TERM);
        wait_for("the member to end", || async { (!running.is_alive()).then_some(()) }).await;
        self.members[member].running = None;
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub fn pause(&self, member: usize) {
        self.running(member).signal(Signal::STOP);
    }

    pub fn resume(&self, member: usize) {
        self.running(member).signal(Signal::CONT);
    }

    /// Starts a member that was killed or stopped, with the data it had, and waits until it serves.
    pub async fn restart(&mut self, member: usize) {
        assert!(self.members[member].running.is_none(), "the member runs");
        self.launch(member);
        if let Err(why) = self.all_serve().await {
            panic!("etcd did not start again: {why}");
        }
    }

    /// Writes a key as somebody with `etcdctl` would; `None` deletes it.
    pub async fn meddle(&self, key: &str, value: Option<&str>) {
        let key = bytes::Bytes::copy_from_slice(key.as_bytes());
        let request = match value {
            Some(value) => {
                let value = bytes::Bytes::copy_from_slice(value.as_bytes());
                Request::RequestPut(PutRequest { key, value, lease: 0 })
            }
            None => Request::RequestDeleteRange(DeleteRangeRequest { key, ..Default::default() }),
        };
        let txn = TxnRequest { success: vec![RequestOp { request: Some(request) }], ..Default::default() };
        let member = self.members.iter().find(|member| member.running.is_some()).expect("a member runs");
        let endpoint = Endpoint::from_shared(member.client_url.clone()).expect("our own URL");
        let channel = endpoint.connect().await.expect("etcd answers");
        KvClient::new(channel).txn(txn).await.expect("etcd takes it");
    }

    /// The running member that leads, once there is one that the others agree on.
    pub async fn leader(&self) -> usize {
        wait_for("etcd to have a leader", || async {
            let mut ids = BTreeMap::new();
            let mut leaders = Vec::new();
            for (n, member) in self.members.iter().enumerate().filter(|(_, member)| member.running.is_some())
            {
                let status = status(&member.client_url).await?;
                ids.insert(status.header?.member_id, n);
                leaders.push(status.leader);
            }
            leaders.dedup();
            ids.get(leaders.first().filter(|_| leaders.len() == 1)?).copied()
        })
        .await
    }
}

/// Whether etcd is on the PATH.
pub fn is_installed() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join("etcd").is_file())
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

async fn status(url: &str) -> Option<StatusResponse> {
    let asked = async {
        let channel = Endpoint::from_shared(url.to_owned()).ok()?.connect().await.ok()?;
        Some(MaintenanceClient::new(channel).status(StatusRequest {}).await.ok()?.into_inner())
    };
    timeout(Duration::from_secs(2), asked).await.ok().flatten()
}

/// A linearizable read succeeds, so it has joined a quorum.
async fn serves(url: &str) -> bool {
    let asked = async {
        let channel = Endpoint::from_shared(url.to_owned()).ok()?.connect().await.ok()?;
        let range = RangeRequest { key: bytes::Bytes::from_static(b"/"), ..Default::default() };
        KvClient::new(channel).range(range).await.ok()
    };
    timeout(Duration::from_secs(2), asked).await.ok().flatten().is_some()
}
