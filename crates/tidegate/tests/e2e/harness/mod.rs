//! A cluster of real daemons and real instances on this machine, gone when its value is dropped.

mod api;
mod daemon;
pub mod disks;
pub mod net;
mod ports;
pub mod process;
mod run;

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use edge::load::{LoadReport, run_load};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

pub use api::{Api, of_service};
pub use daemon::{Daemon, Setup};
pub use ports::{free_port, free_ports};
pub use run::{Done, TIDEGATE, Talk, tidegate, web, with_program};

/// How long a test waits for something that must happen. Generous: machines are slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Clusters at a time: each is half a dozen processes, and two cores are what there is.
static CLUSTERS: Semaphore = Semaphore::const_new(3);

/// A place among the clusters that may run at a time.
pub async fn take_turn() -> SemaphorePermit<'static> {
    CLUSTERS.acquire().await.expect("the semaphore is never closed")
}

/// How soon a silent node counts as offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As in `dev`: for tests in which a node goes.
    Quick,
    /// In between: for tests in which nodes go, and those that stay have a lot to do.
    Patient,
    /// As in production: a daemon that comes back, or a machine that is busy, is not taken for dead.
    Steady,
}

/// Waits until `look` gives something. What it says otherwise is shown when patience is over.
pub async fn until<T>(what: &str, look: impl AsyncFnMut() -> Result<T, String>) -> T {
    until_for(PATIENCE, what, look).await
}

/// The same, for what takes long by itself.
pub async fn until_for<T>(
    patience: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let end = Instant::now() + patience;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < end, "waited {patience:?} for {what}; last seen: {seen}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Bounds what has no condition to poll, like a process that should end.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("waited {PATIENCE:?} for {what}"),
    }
}

pub struct Cluster {
    pub api: Api,
    daemons: Vec<Daemon>,
    dir: TempDir,
    coordinators: Vec<SocketAddr>,
    pace: Pace,
    _turn: SemaphorePermit<'static>,
}

impl Cluster {
    /// One daemon that coordinates and holds the edge, and workers `n1`, `n2`, …, all up.
    pub async fn start(workers: usize, pace: Pace) -> Cluster {
        let mut cluster = Cluster::empty(pace).await;
        cluster.add(Setup::control());
        for number in 1..=workers {
            cluster.add(Setup::worker(&format!("n{number}")));
        }
        cluster.until_up().await;
        cluster
    }

    /// Daemons `n1`, `n2`, … with all roles each, over the etcd at these endpoints.
    pub async fn start_over_etcd(daemons: usize, pace: Pace, endpoints: &[String]) -> Cluster {
        let setups = (1..=daemons).map(|number| Setup::with_all_roles(number, endpoints)).collect();
        Cluster::start_all(setups, pace).await
    }

    /// Daemons each of which may be the coordinator.
    pub async fn start_all(setups: Vec<Setup>, pace: Pace) -> Cluster {
        let mut cluster = Cluster::empty(pace).await;
        cluster.coordinators = setups.iter().map(|setup| setup.rpc).collect();
        for setup in setups {
            cluster.add(setup);
        }
        cluster.until_up().await;
        cluster
    }

    pub async fn empty(pace: Pace) -> Cluster {
        let _turn = take_turn().await;
        let dir = tempfile::Builder::new().prefix("tidegate-e2e-").tempdir().expect("a directory");
        // Replaced by that of the first daemon.
        let api = Api::at("127.0.0.1:1".parse().expect("an address"));
        Cluster { api, daemons: Vec::new(), dir, coordinators: Vec::new(), pace, _turn }
    }

    /// Writes the configuration of a daemon and starts it.
    pub fn add(&mut self, setup: Setup) {
        if self.coordinators.is_empty() {
            self.coordinators.push(setup.rpc);
        }
        let mut daemon = Daemon::new(setup, self.dir.path(), &self.coordinators, self.pace);
        daemon.start(&[]);
        if self.daemons.is_empty() {
            self.api = daemon.api();
        }
        self.daemons.push(daemon);
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn daemon(&self, name: &str) -> &Daemon {
        self.daemons.iter().find(|daemon| daemon.name() == name).expect("a daemon of this cluster")
    }

    pub fn daemon_mut(&mut self, name: &str) -> &mut Daemon {
        self.daemons.iter_mut().find(|daemon| daemon.name() == name).expect("a daemon of this cluster")
    }

    pub fn api_of(&self, name: &str) -> Api {
        self.daemon(name).api()
    }

    /// All daemons that were started are connected and well.
    pub async fn until_up(&self) {
        let wanted = self.daemons.iter().filter(|daemon| daemon.is_started()).count();
        until("all daemons to be up", async || {
            let nodes = self.api.nodes().await?;
            let up = nodes.iter().filter(|node| node.connected && node.health == "up").count();
            if up >= wanted { Ok(()) } else { Err(format!("{up} of {wanted} are up")) }
        })
        .await;
    }

    /// The machine is gone: the daemon, the shims and the instances, all at once.
    pub fn lose(&mut self, name: &str) {
        let daemon = self.daemon_mut(name);
        daemon.kill();
        process::kill_everything(&daemon.data());
    }

    /// Runs a command of `tidegate` against this cluster.
    pub async fn run(&self, args: &[&str]) -> Done {
        tidegate(self.dir.path(), self.api.base(), args).await
    }

    /// A file for `apply`, of this text.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("a file in our own directory");
        path
    }

    /// Applies a text; it must be taken.
    pub async fn apply(&self, text: &str) -> String {
        let path = self.file("applied.toml", text);
        let done = self.run(&["apply", path.to_str().expect("plain path")]).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.stdout
    }

    /// Traffic on a port of the edge, once it is open, until [`Traffic::end`].
    pub async fn load(&self, port: u16, workers: usize) -> Traffic {
        self.load_at(SocketAddr::from(([127, 0, 0, 1], port)), workers).await
    }

    pub async fn load_at(&self, addr: SocketAddr, workers: usize) -> Traffic {
        until(&format!("{addr} to be open"), async || {
            tokio::net::TcpStream::connect(addr).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        let stop = CancellationToken::new();
        Traffic { task: tokio::spawn(run_load(addr, workers, workers, stop.clone())), stop }
    }
}

pub struct Traffic {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<LoadReport>,
}

impl Traffic {
    pub async fn end(self) -> LoadReport {
        self.stop.cancel();
        within("the load to end", self.task).await.expect("the load does not panic")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for daemon in &self.daemons {
                eprintln!("--- {} ---\n{}", daemon.name(), daemon.log_tail(40));
            }
        }
        for daemon in &mut self.daemons {
            daemon.signal_if_running(Signal::CONT);
            daemon.kill();
        }
        for daemon in &self.daemons {
            process::kill_everything(&daemon.data());
            process::remove_cgroups(&daemon.data());
        }
    }
}
