//! A real Redis Cluster on loopback.

use std::fs;
use std::net::TcpListener;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::contract::StoreId;
use crate::redis::RedisConfig;
use crate::secret::Endpoint;
use crate::testing::process::{PATIENCE, POLL, Running, wait_for};

/// Ports are picked by binding and letting go, so somebody else may grab one in between.
const START_TRIES: usize = 5;

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
        let (port, bus) = (self.ports[node].to_string(), self.buses[node].to_string());
        let place = directory.display().to_string();
        let mut argv = vec!["redis-server", "--port", &port, "--bind", "127.0.0.1", "--dir", &place];
        argv.extend([
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            "--cluster-port",
            &bus,
        ]);
        argv.extend(["--cluster-node-timeout", "5000", "--save", "", "--appendonly", "no"]);
        argv.extend(["--repl-diskless-sync-delay", "0", "--cluster-require-full-coverage", "no"]);
        if let Some(password) = &self.password {
            argv.extend(["--requirepass", password, "--masterauth", password]);
        }
        self.running[node] = Some(Running::start(&directory, &argv));
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
        self.running[node].as_ref().expect("the node runs").signal(signal);
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
