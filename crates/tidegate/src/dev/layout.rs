//! What a dev cluster consists of, where it is kept, and the configurations of its daemons.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use protocol::Timing;

use crate::{
    cli::DevArgs,
    failure::{Failure, Outcome},
};

/// The daemon that coordinates and holds the edge, without `--ha`.
pub const CONTROL: &str = "control";
/// Each node chooses its instances' ports from so many; below what Linux gives to outgoing connections.
const PORTS_PER_NODE: u16 = 500;
const PORTS_FIRST: u16 = 20_000;
/// A node with less would hold next to nothing.
const MEMORY_MIN: u64 = 512 << 20;

/// One daemon to be.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub name: String,
    pub config: PathBuf,
    pub log: PathBuf,
    pub data: PathBuf,
    /// Runs instances.
    pub is_worker: bool,
}

#[derive(Clone, Debug)]
pub struct Etcd {
    pub client: SocketAddr,
    pub peer: SocketAddr,
    pub data: PathBuf,
    pub log: PathBuf,
}

#[derive(Clone, Debug)]
pub struct Layout {
    pub dir: PathBuf,
    pub api: SocketAddr,
    pub etcd: Option<Etcd>,
    pub daemons: Vec<Daemon>,
    pub nodes: u16,
}

impl Layout {
    /// Chooses ports and writes the configurations; an earlier run's are replaced.
    pub fn write(args: &DevArgs, dir: PathBuf) -> Outcome<Layout> {
        for sub in ["etc", "log"] {
            let path = dir.join(sub);
            std::fs::create_dir_all(&path)
                .map_err(|error| Failure::error(format!("cannot create {}: {error}", path.display())))?;
        }
        if !is_free(args.listen) {
            return Err(Failure::error(format!(
                "{} is in use already; choose another with --listen, or stop what listens there",
                args.listen
            )));
        }
        let mut layout = Layout { api: args.listen, etcd: None, daemons: Vec::new(), nodes: args.nodes, dir };
        let mut ports = FreePorts::default();
        if args.ha {
            layout.plan_ha(&mut ports)?
        } else {
            layout.plan_plain(&mut ports)?
        }
        Ok(layout)
    }

    fn plan_plain(&mut self, ports: &mut FreePorts) -> Outcome {
        let rpc = ports.near(self.api.ip(), self.api.port().saturating_add(1))?;
        let node = format!("[node]\nid = \"{CONTROL}\"\nroles = [\"coordinator\", \"edge\"]\n");
        let listen = format!("[listen]\napi = \"{}\"\nrpc = \"{rpc}\"\n", self.api);
        self.add(CONTROL, false, node, format!("{listen}[store]\nkind = \"embedded\"\n"))?;
        for number in 1..=self.nodes {
            let api = ports.near(self.api.ip(), self.api.port().saturating_add(1 + number))?;
            let own = ports.near(self.api.ip(), self.api.port().saturating_add(1 + self.nodes + number))?;
            let node = self.worker(number, "\"worker\"");
            let join =
                format!("[listen]\napi = \"{api}\"\nrpc = \"{own}\"\n[join]\ncoordinators = [\"{rpc}\"]\n");
            self.add(&format!("node-{number}"), true, node, join)?;
        }
        Ok(())
    }

    /// Every node has an address of its own on loopback, so that their edges can open the same ports.
    fn plan_ha(&mut self, ports: &mut FreePorts) -> Outcome {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let etcd = Etcd {
            client: ports.near(local, self.api.port().saturating_add(3))?,
            peer: ports.near(local, self.api.port().saturating_add(4))?,
            data: self.dir.join("etcd"),
            log: self.dir.join("log/etcd.log"),
        };
        let mut places = Vec::new();
        for number in 1..=self.nodes {
            let ip = IpAddr::V4(Ipv4Addr::new(127, 0, 0, number as u8));
            let api = if number == 1 { self.api } else { ports.near(ip, self.api.port())? };
            let rpc = ports.near(api.ip(), self.api.port().saturating_add(1))?;
            places.push((api, rpc));
        }
        let all: Vec<String> = places.iter().map(|(_, rpc)| format!("\"{rpc}\"")).collect();
        for (number, (api, rpc)) in (1..).zip(places) {
            let node = self.worker(number, "\"coordinator\", \"worker\", \"edge\"");
            let rest = format!(
                "[listen]\napi = \"{api}\"\nrpc = \"{rpc}\"\n[join]\ncoordinators = [{}]\n\
                 [store]\nkind = \"etcd\"\nendpoints = [\"http://{}\"]\n",
                all.join(", "),
                etcd.client
            );
            self.add(&format!("node-{number}"), true, node, rest)?;
        }
        self.etcd = Some(etcd);
        Ok(())
    }

    fn worker(&self, number: u16, roles: &str) -> String {
        let memory = (worker::host::memory_total() / 2 / u64::from(self.nodes)).max(MEMORY_MIN);
        let cpu = (worker::host::cpu_count() * 1000 / usize::from(self.nodes)).max(100);
        let first = PORTS_FIRST + (number - 1) * PORTS_PER_NODE;
        let last = first + PORTS_PER_NODE - 1;
        format!(
            "[node]\nid = \"node-{number}\"\nroles = [{roles}]\nlabels = {{ rack = \"r{number}\" }}\n\
             host = \"127.0.0.1\"\nmemory = \"{}MiB\"\ncpu = {cpu}\nports = \"{first}-{last}\"\n",
            memory >> 20
        )
    }

    fn add(&mut self, name: &str, is_worker: bool, node: String, rest: String) -> Outcome {
        let data = self.dir.join(name);
        let config = self.dir.join(format!("etc/{name}.toml"));
        let data_dir = toml::Value::String(data.display().to_string());
        let text = format!(
            "# Written by `tidegate dev`; written anew at every start.\n{node}data_dir = {data_dir}\n{rest}{}",
            timing()
        );
        std::fs::write(&config, text)
            .map_err(|error| Failure::error(format!("cannot write {}: {error}", config.display())))?;
        let log = self.dir.join(format!("log/{name}.log"));
        self.daemons.push(Daemon { name: name.to_owned(), config, log, data, is_worker });
        Ok(())
    }

    pub fn log_dir(&self) -> PathBuf {
        self.dir.join("log")
    }
}

fn timing() -> String {
    let timing = Timing::DEV;
    format!(
        "[timing]\nheartbeat = \"{}\"\nlease = \"{}\"\ndegraded_after = \"{}\"\nfence_after = \"{}\"\n\
         offline_after = \"{}\"\nlast_node_after = \"{}\"\n[edge]\nwithdraw_delay = \"1s\"\n",
        timing.heartbeat,
        timing.lease,
        timing.degraded_after,
        timing.fence_after,
        timing.offline_after,
        timing.last_node_after
    )
}

/// Ports that nobody listens on, none twice.
#[derive(Default)]
struct FreePorts {
    given: Vec<SocketAddr>,
}

impl FreePorts {
    /// This one, one of the next few, or any.
    fn near(&mut self, ip: IpAddr, port: u16) -> Outcome<SocketAddr> {
        let wanted = (port..port.saturating_add(50)).map(|port| SocketAddr::new(ip, port));
        let free = wanted.into_iter().find(|addr| !self.given.contains(addr) && is_free(*addr));
        let found = match free {
            Some(addr) => addr,
            None => TcpListener::bind((ip, 0))
                .and_then(|listener| listener.local_addr())
                .map_err(|error| Failure::error(format!("no free port on {ip}: {error}")))?,
        };
        self.given.push(found);
        Ok(found)
    }
}

fn is_free(addr: SocketAddr) -> bool {
    TcpListener::bind(addr).is_ok()
}

/// The directory as an absolute path: daemons and shims work from elsewhere.
pub fn absolute(dir: &Path) -> Outcome<PathBuf> {
    std::path::absolute(dir).map_err(|error| Failure::error(format!("{}: {error}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(ha: bool) -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let args = DevArgs { nodes: 3, listen: port, data: dir.path().to_owned(), demo: false, ha };
        let layout = Layout::write(&args, dir.path().to_owned()).unwrap();
        (dir, layout)
    }

    #[test]
    fn the_configurations_it_writes_are_right() {
        for ha in [false, true] {
            let (_dir, layout) = layout(ha);
            assert_eq!(layout.daemons.len(), if ha { 3 } else { 4 });
            let mut listeners = Vec::new();
            for daemon in &layout.daemons {
                let config = crate::config::load(&daemon.config, false).unwrap();
                assert_eq!((config.id.as_str(), config.timing), (daemon.name.as_str(), Timing::DEV));
                assert_eq!(config.roles.worker, daemon.is_worker);
                listeners.push(config.api);
                if config.roles.coordinator || config.roles.worker {
                    listeners.push(config.rpc);
                }
            }
            let count = listeners.len();
            listeners.sort();
            listeners.dedup();
            assert_eq!(listeners.len(), count);
        }
    }
}
