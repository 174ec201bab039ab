//! One daemon: its configuration, its process, its data.

use std::{
    fs::{File, OpenOptions},
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use model::Millis;
use protocol::Timing;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    Api, Pace, TIDEGATE, free_port,
    net::Place,
    ports::instance_ports,
    process::{self, Process, Run},
    until,
};

/// What a daemon is to be.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: String,
    pub roles: &'static [&'static str],
    pub memory: &'static str,
    pub labels: &'static str,
    pub store: String,
    pub edge_host: Ipv4Addr,
    pub withdraw_delay: &'static str,
    pub api: SocketAddr,
    pub rpc: SocketAddr,
    /// Of the network that it lives in, if that is not this machine's own.
    pub namespace: Option<String>,
    /// Where its data is, if not beside that of the others.
    pub data: Option<PathBuf>,
    /// Further sections, as they are written.
    pub more: String,
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

impl Setup {
    pub fn control() -> Setup {
        let store = "kind = \"embedded\"".to_owned();
        Setup { roles: &["coordinator", "edge"], store, ..Setup::worker("control") }
    }

    pub fn worker(name: &str) -> Setup {
        Setup {
            name: name.to_owned(),
            roles: &["worker"],
            memory: "1GiB",
            labels: "",
            store: String::new(),
            edge_host: Ipv4Addr::LOCALHOST,
            withdraw_delay: "1s",
            api: loopback(),
            rpc: loopback(),
            namespace: None,
            data: None,
            more: String::new(),
        }
    }

    /// The same daemon in a namespace of its own.
    pub fn living_at(mut self, place: Place) -> Setup {
        self.api.set_ip(place.addr.into());
        self.rpc.set_ip(place.addr.into());
        Setup { namespace: Some(place.namespace), ..self }
    }

    /// Each edge has an address of its own, so that all of them can open the same ports.
    pub fn with_all_roles(number: usize, endpoints: &[String]) -> Setup {
        let endpoints: Vec<String> = endpoints.iter().map(|url| format!("{url:?}")).collect();
        Setup {
            roles: &["coordinator", "worker", "edge"],
            store: format!("kind = \"etcd\"\nendpoints = [{}]", endpoints.join(", ")),
            edge_host: Ipv4Addr::new(127, 0, 0, number as u8),
            ..Setup::worker(&format!("n{number}"))
        }
    }

    fn config(&self, data: &Path, coordinators: &[SocketAddr], pace: Pace) -> String {
        let timing = match pace {
            Pace::Quick => Timing::DEV,
            Pace::Patient => Timing {
                lease: Millis::secs(5),
                degraded_after: Millis::secs(4),
                fence_after: Millis::secs(7),
                offline_after: Millis::secs(9),
                ..Timing::DEV
            },
            Pace::Steady => Timing { heartbeat: Timing::DEV.heartbeat, ..Timing::default() },
        };
        let coordinators: Vec<String> = coordinators.iter().map(|addr| format!("\"{addr}\"")).collect();
        let (ports, roles) = (instance_ports(), self.roles);
        let Setup { name, memory, labels, store, edge_host, withdraw_delay, api, rpc, more, .. } = self;
        format!(
            "[node]\nid = \"{name}\"\nroles = {roles:?}\ndata_dir = {data:?}\nlabels = {{ {labels} }}\n\
             memory = \"{memory}\"\ncpu = 2000\nports = \"{}-{}\"\n\
             [listen]\napi = \"{api}\"\nrpc = \"{rpc}\"\n[join]\ncoordinators = [{}]\n\
             [store]\n{store}\n[edge]\nhost = \"{edge_host}\"\nwithdraw_delay = \"{withdraw_delay}\"\n\
             [timing]\nheartbeat = \"{}\"\nlease = \"{}\"\ndegraded_after = \"{}\"\nfence_after = \"{}\"\n\
             offline_after = \"{}\"\n{more}",
            ports.start(),
            ports.end(),
            coordinators.join(", "),
            timing.heartbeat,
            timing.lease,
            timing.degraded_after,
            timing.fence_after,
            timing.offline_after,
        )
    }
}

pub struct Daemon {
    setup: Setup,
    data: PathBuf,
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    pub fn new(setup: Setup, dir: &Path, coordinators: &[SocketAddr], pace: Pace) -> Daemon {
        let name = setup.name.clone();
        let data = setup.data.clone().unwrap_or_else(|| dir.join(&name));
        let config = dir.join(format!("{name}.toml"));
        std::fs::write(&config, setup.config(&data, coordinators, pace)).expect("our own directory");
        Daemon { setup, data, config, log: dir.join(format!("{name}.log")), child: None }
    }

    pub fn name(&self) -> &str {
        &self.setup.name
    }

    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    pub fn config(&self) -> &Path {
        &self.config
    }

    pub fn api(&self) -> Api {
        Api::at(self.setup.api)
    }

    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    pub fn start(&mut self, more: &[&str]) {
        assert!(self.child.is_none(), "{} runs already", self.name());
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("our own directory");
        let mut command = match &self.setup.namespace {
            // It becomes the daemon: the pid is the same.
            Some(name) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{name}")).arg(TIDEGATE);
                command
            }
            None => Command::new(TIDEGATE),
        };
        // Held by us: a test that is killed takes its daemons along.
        command.arg("run").arg("--config").arg(&self.config).arg("--until-stdin-ends").args(more);
        if self.setup.namespace.is_some() {
            // Nobody but this machine is on that network.
            command.arg("--insecure");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).env_remove("RUST_LOG");
        // An interrupt from the terminal is for the tests; what they leave, `Drop` ends.
        command.process_group(0);
        self.child = Some(command.spawn().expect("the binary under test"));
    }

    fn pid(&self) -> Pid {
        let child = self.child.as_ref().expect("it was started");
        Pid::from_raw(child.id() as i32).expect("a pid")
    }

    pub fn process(&self) -> Process {
        Process::of(self.pid().as_raw_nonzero().get().cast_unsigned())
    }

    /// It is our child and not waited for: the pid is its own.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our own child");
    }

    /// SIGSTOP; returns when no thread of it runs.
    pub async fn suspend(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid().as_raw_nonzero());
        until("all threads to be stopped", async || {
            let entries = std::fs::read_dir(&tasks).map_err(|error| error.to_string())?;
            let stat = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("stat")).ok();
            let stats: Vec<String> = entries.flatten().filter_map(stat).collect();
            let stopped =
                stats.iter().all(|stat| stat.rsplit_once(") ").is_some_and(|(_, s)| s.starts_with('T')));
            if stopped { Ok(()) } else { Err(format!("{stats:?}")) }
        })
        .await;
    }

    pub fn signal_if_running(&self, signal: Signal) {
        if self.child.is_some() {
            let _ = kill_process(self.pid(), signal);
        }
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM; returns how it ended by itself.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    pub async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it was started");
        let status = until("the daemon to end", async || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        });
        status.await
    }

    /// Its instances that have a process.
    pub fn runs(&self) -> Vec<Run> {
        process::alive(&self.data)
    }

    /// Everything it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn log_tail(&self, lines: usize) -> String {
        let text = File::open(&self.log).and_then(std::io::read_to_string).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}
