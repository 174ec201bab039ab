//! A real Redis Cluster on loopback.
//!
//! Each node runs under a small shell that kills it when the [`RedisNodes`] are dropped, and also when the test
//! process itself ends without dropping them: the shell's input ends then, too.

use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::contract::StoreId;
use crate::redis::RedisConfig;
use crate::secret::Endpoint;

/// How long a test waits for something that must happen. Generous: machines are slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(180);

const POLL: Duration = Duration::from_millis(20);

/// Ports are picked by binding and letting go, so somebody else may grab one in between.
const START_TRIES: usize = 5;

/// `$0` is the node's directory, the rest is the command. Prints the pid and waits for a line, or the end of its
/// input; then kills. Without a line nobody is left who removes the directory.
const SUPERVISOR: &str = r#"
"$@" >>"$0/log" 2>&1 </dev/null &
echo $!
read -r keep
kill -9 $!
wait $!
[ -n "$keep" ] || { rm -rf "$0"; rmdir "$(dirname "$0")"; }
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

struct Running {
    supervisor: Child,
    pid: Pid,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut orders) = self.supervisor.stdin.take() {
            let _gone_already = orders.write_all(b"keep\n");
        }
        let _gone = self.supervisor.wait();
    }
}

/// Nodes of one cluster, each with its own directory; all are gone when this is dropped.
pub struct RedisNodes {
    running: Vec<Option<Running>>,
    ports: Vec<u16>,
    buses: Vec<u16>,
    password: Option<String>,
    directory: tempfile::TempDir,
}

impl RedisNodes {
    /// A cluster of `primaries` that share the slots, and `replicas` that follow them in turn.
    ///
    /// # Panics
    /// When Redis is not installed or does not start.
    pub async fn start(primaries: usize, replicas: usize) -> RedisNodes {
        RedisNodes::start_with(primaries, replicas, None).await
    }

    pub async fn start_with(primaries: usize, replicas: usize, password: Option<&str>) -> RedisNodes {
        let mut tries = 0;
        let nodes = loop {
            tries += 1;
            let mut nodes = RedisNodes::lay_out(primaries + replicas, password);
            (0..primaries + replicas).for_each(|node| nodes.launch(node));
            if nodes.all_answer().await {
                break nodes;
            }
            assert!(tries < START_TRIES, "Redis did not start:\n{}", nodes.log(0));
        };
        nodes.join(primaries).await;
        nodes
    }

    fn lay_out(count: usize, password: Option<&str>) -> RedisNodes {
        let directory = tempfile::Builder::new().prefix("tidegate-redis-").tempdir().expect("a directory");
        let sockets: Vec<TcpListener> =
            (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let port = |socket: &TcpListener| socket.local_addr().expect("bound").port();
        let ports = sockets[..count].iter().map(port).collect();
        let buses = sockets[count..].iter().map(port).collect();
        let password = password.map(str::to_owned);
        RedisNodes { running: (0..count).map(|_| None).collect(), ports, buses, password, directory }
    }

    /// Starts a node with the data it had.
    pub fn launch(&mut self, node: usize) {
        let directory = self.directory.path().join(format!("n{node}"));
        fs::create_dir_all(&directory).expect("a directory");
        let mut command = Command::new("sh");
        command.args(["-c", SUPERVISOR]).arg(&directory).arg("redis-server");
        command
            .args(["--port", &self.ports[node].to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(&directory);
        command.args(["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port"]);
        command.args([
            &self.buses[node].to_string(),
            "--cluster-node-timeout",
            "5000",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.args(["--repl-diskless-sync-delay", "0", "--cluster-require-full-coverage", "no"]);
        if let Some(password) = &self.password {
            command.args(["--requirepass", password, "--masterauth", password]);
        }
        // out of the terminal's group: an interrupt must reach it through its input only
        let spawned =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut supervisor = spawned.spawn().expect("a shell");
        let mut line = String::new();
        let output = supervisor.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("the shell says the pid");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
        self.running[node] = Some(Running { supervisor, pid });
    }

    async fn all_answer(&self) -> bool {
        let deadline = Instant::now() + PATIENCE / 6;
        for node in 0..self.ports.len() {
            while !self.try_ask(node, redis::cmd("PING")).await {
                if Instant::now() > deadline {
                    return false;
                }
                sleep(POLL).await;
            }
        }
        true
    }

    async fn try_ask(&self, node: usize, command: Cmd) -> bool {
        match self.try_connect(node).await {
            Some(mut connection) => command.query_async::<redis::Value>(&mut connection).await.is_ok(),
            None => false,
        }
    }

    async fn try_connect(&self, node: usize) -> Option<MultiplexedConnection> {
        let client = Client::open(self.url(node)).expect("our own URL");
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE / 30))
            .set_response_timeout(Some(PATIENCE));
        client.get_multiplexed_async_connection_with_config(&config).await.ok()
    }

    /// # Panics
    /// When the node does not answer.
    pub async fn connect(&self, node: usize) -> MultiplexedConnection {
        wait_for("a connection", || self.try_connect(node)).await
    }

    async fn join(&self, primaries: usize) {
        let mut first = self.connect(0).await;
        for node in 1..self.ports.len() {
            let port = self.ports[node];
            let mut meet = redis::cmd("CLUSTER");
            meet.arg("MEET").arg("127.0.0.1").arg(port).arg(self.buses[node]);
            meet.exec_async(&mut first).await.expect("met");
        }
        for node in 0..primaries {
            let (from, to) = (node * 16384 / primaries, (node + 1) * 16384 / primaries - 1);
            // an epoch of its own, so that none have to be settled between them while a test runs
            let mut connection = self.connect(node).await;
            let mut epoch = redis::cmd("CLUSTER");
            let _has_one = epoch.arg("SET-CONFIG-EPOCH").arg(node + 1).exec_async(&mut connection).await;
            let mut add = redis::cmd("CLUSTER");
            add.arg("ADDSLOTSRANGE").arg(from).arg(to).exec_async(&mut connection).await.expect("added");
        }
        self.all_know(self.ports.len()).await;
        for node in primaries..self.ports.len() {
            let primary = self.id((node - primaries) % primaries).await;
            let mut connection = self.connect(node).await;
            let mut replicate = redis::cmd("CLUSTER");
            replicate.arg("REPLICATE").arg(&primary.0).exec_async(&mut connection).await.expect("follows");
        }
        for node in primaries..self.ports.len() {
            wait_for("replicas to be in step", || async {
                self.ask(node, redis::cmd("ROLE")).await.contains("connected").then_some(())
            })
            .await;
        }
        self.all_agree(self.ports.len() - primaries).await;
    }

    async fn all_know(&self, count: usize) {
        for node in 0..self.ports.len() {
            wait_for("the nodes to know each other", || async {
                let nodes = self.ask(node, redis::cmd("CLUSTER").arg("NODES").clone()).await;
                let info = self.ask(node, redis::cmd("CLUSTER").arg("INFO").clone()).await;
                let known = nodes.matches(" connected").count() == count && !nodes.contains("handshake");
                (known && info.contains("cluster_state:ok")).then_some(())
            })
            .await;
        }
    }

    async fn all_agree(&self, replicas: usize) {
        for node in 0..self.ports.len() {
            wait_for("the nodes to know who follows whom", || async {
                let nodes = self.ask(node, redis::cmd("CLUSTER").arg("NODES").clone()).await;
                (nodes.matches("slave").count() == replicas).then_some(())
            })
            .await;
        }
    }

    /// A text answer, or the `Debug` of any other.
    pub async fn ask(&self, node: usize, command: Cmd) -> String {
        let mut connection = self.connect(node).await;
        let answer: redis::Value = command.query_async(&mut connection).await.expect("an answer");
        redis::from_redis_value(answer.clone()).unwrap_or_else(|_| format!("{answer:?}"))
    }

    pub async fn id(&self, node: usize) -> StoreId {
        StoreId(self.ask(node, redis::cmd("CLUSTER").arg("MYID").clone()).await)
    }

    pub fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.ports[node])
    }

    pub fn url(&self, node: usize) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@"));
        format!("redis://{}{}", password.unwrap_or_default(), self.address(node))
    }

    /// With time for each answer that a busy machine needs.
    pub fn config(&self) -> RedisConfig {
        let seeds = (0..self.ports.len()).map(|node| Endpoint::new(self.url(node)));
        RedisConfig { timeout: PATIENCE / 3, ..RedisConfig::new(seeds) }
    }

    pub fn count(&self) -> usize {
        self.ports.len()
    }

    pub fn log(&self, node: usize) -> String {
        fs::read_to_string(self.directory.path().join(format!("n{node}/log"))).unwrap_or_default()
    }

    fn signal(&self, node: usize, signal: Signal) {
        let running = self.running[node].as_ref().expect("the node runs");
        kill_process(running.pid, signal).expect("it is our process, not yet waited for");
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self, node: usize) {
        self.running[node] = None;
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub fn pause(&self, node: usize) {
        self.signal(node, Signal::STOP);
    }

    pub fn resume(&self, node: usize) {
        self.signal(node, Signal::CONT);
    }
}
