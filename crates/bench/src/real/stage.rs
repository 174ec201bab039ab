//! A cluster of real daemons on this machine, gone with its instances when its value is dropped.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use reqwest::{Client, Method};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use server::view::{DrainStatusView, InstanceView, List, NodeView, StatusView};
use tempfile::TempDir;
use worker::{
    cgroup::Cgroups,
    runtime::{Found, Runtime},
};

/// How long anything may take before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(120);
/// What `/proc` counts processor time in, on every Linux.
const PROC_TICKS_PER_SECOND: f64 = 100.0;
/// Instances of one node have this many ports.
const PORTS_PER_NODE: u16 = 300;
/// Below those that Linux gives to outgoing connections, above those that tests use.
const PORTS_FROM: u16 = 20_000;

/// The release binary beside this one.
pub fn binary() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("tidegate");
    ensure!(path.is_file(), "{} is not there: cargo build --release --package tidegate", path.display());
    Ok(path)
}

pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Waits until `look` gives something; what it says otherwise is shown when patience is over.
pub async fn until<T>(
    what: &str,
    every: Duration,
    mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        let seen = look().await;
        match seen {
            Ok(Some(found)) => return Ok(found),
            Ok(None) if Instant::now() >= end => bail!("waited {PATIENCE:?} for {what}"),
            Err(fault) if Instant::now() >= end => return Err(fault.context(format!("waiting for {what}"))),
            Ok(None) | Err(_) => tokio::time::sleep(every).await,
        }
    }
}

/// Where one daemon answers.
#[derive(Clone)]
pub struct Api {
    http: Client,
    base: String,
}

impl Api {
    fn at(addr: SocketAddr) -> anyhow::Result<Api> {
        let http = doors::http().no_proxy().timeout(Duration::from_secs(20)).build()?;
        Ok(Api { http, base: format!("http://{addr}") })
    }

    pub async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await?;
        let status = response.status();
        let text = response.text().await?;
        ensure!(status.is_success(), "{method} {path}: {status} {text}");
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// What is not JSON.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.http.get(format!("{}{path}", self.base)).send().await?;
        Ok(response.error_for_status()?.text().await?)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        Ok(serde_json::from_value(self.ask(Method::GET, path, None).await?)?)
    }

    pub async fn instances(&self, service: &str) -> anyhow::Result<Vec<InstanceView>> {
        Ok(self.get::<List<InstanceView>>(&format!("/v1/services/{service}/instances")).await?.items)
    }

    pub async fn status(&self) -> anyhow::Result<StatusView> {
        self.get("/v1/status").await
    }

    pub async fn put_service(&self, name: &str, body: Value) -> anyhow::Result<()> {
        self.ask(Method::PUT, &format!("/v1/services/{name}"), Some(body)).await.map(drop)
    }

    pub async fn intend(&self, node: &str, intent: &str) -> anyhow::Result<()> {
        let body = json!({ "intent": intent });
        self.ask(Method::PUT, &format!("/v1/nodes/{node}/intent"), Some(body)).await.map(drop)
    }

    pub async fn drain(&self, node: &str) -> anyhow::Result<()> {
        self.ask(Method::PUT, &format!("/v1/nodes/{node}/drain"), Some(json!({}))).await.map(drop)
    }

    pub async fn drain_of(&self, node: &str) -> anyhow::Result<DrainStatusView> {
        self.get(&format!("/v1/nodes/{node}/drain")).await
    }

    /// Waits for the end of a drain; anything but `drained` is an error.
    pub async fn until_drained(&self, node: &str, every: Duration) -> anyhow::Result<DrainStatusView> {
        let ended = until(&format!("{node} to be drained"), every, async || {
            Ok(Some(self.drain_of(node).await?).filter(|drain| drain.ended_at.is_some()))
        })
        .await;
        let ended = match ended {
            Ok(ended) => ended,
            Err(fault) => {
                let left = self.drain_of(node).await?;
                let waits = left.waits.iter().map(|wait| format!("{} {}", wait.code, wait.message));
                let blocked = left.blockers.iter().map(|one| format!("{} {}", one.code, one.message));
                let why: std::collections::BTreeSet<String> = waits.chain(blocked).collect();
                return Err(fault.context(format!("{} of {} have left: {why:?}", left.done, left.total)));
            }
        };
        ensure!(ended.state == "drained", "the drain of {node} ended {}", ended.state);
        Ok(ended)
    }

    /// Exactly `count` of them run, and nothing else is left.
    pub async fn until_ready(&self, service: &str, count: usize) -> anyhow::Result<Vec<InstanceView>> {
        until(&format!("{count} of {service}"), Duration::from_millis(100), async || {
            let mut all = self.instances(service).await?;
            all.retain(|instance| !matches!(instance.actual.as_str(), "stopped" | "failed"));
            let well = all.iter().all(|i| i.desired == "running" && i.actual == "ready");
            Ok((well && all.len() == count).then_some(all))
        })
        .await
    }
}

/// What a daemon is to be.
#[derive(Clone, Copy)]
pub struct Setup {
    pub name: &'static str,
    pub roles: &'static [&'static str],
}

struct Daemon {
    name: &'static str,
    api: SocketAddr,
    rpc: SocketAddr,
    data: PathBuf,
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

pub struct Stage {
    pub binary: PathBuf,
    dir: TempDir,
    daemons: Vec<Daemon>,
}

impl Stage {
    /// Daemons with the times of production, all up. `store` is that section of their configuration.
    pub async fn start(setups: &[Setup], store: &str) -> anyhow::Result<Stage> {
        let dir = tempfile::Builder::new().prefix("tidegate-bench-").tempdir()?;
        let mut stage = Stage { binary: binary()?, dir, daemons: Vec::new() };
        let mut rpcs: Vec<SocketAddr> = Vec::new();
        for _ in setups {
            rpcs.push((Ipv4Addr::LOCALHOST, free_port()?).into());
        }
        let candidates = setups.iter().zip(&rpcs).filter(|(setup, _)| setup.roles.contains(&"coordinator"));
        let candidates: Vec<String> = candidates.map(|(_, rpc)| format!("\"{rpc}\"")).collect();
        for (number, (setup, rpc)) in setups.iter().zip(&rpcs).enumerate() {
            let daemon = stage.write(number as u16, *setup, *rpc, &candidates.join(", "), store)?;
            stage.daemons.push(daemon);
            stage.run(setup.name)?;
        }
        let api = stage.api(setups[0].name)?;
        until("all daemons to be up", Duration::from_millis(50), async || {
            let nodes = api.get::<List<NodeView>>("/v1/nodes").await?.items;
            let up = nodes.iter().filter(|node| node.connected && node.health == "up").count();
            Ok((up >= setups.len()).then_some(()))
        })
        .await?;
        Ok(stage)
    }

    fn write(
        &self,
        number: u16,
        setup: Setup,
        rpc: SocketAddr,
        candidates: &str,
        store: &str,
    ) -> anyhow::Result<Daemon> {
        let Setup { name, roles } = setup;
        let (data, api) = (self.dir.path().join(name), SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)));
        let first = PORTS_FROM + number * PORTS_PER_NODE;
        let last = first + PORTS_PER_NODE - 1;
        let store =
            if roles.contains(&"coordinator") { format!("[store]\n{store}\n") } else { String::new() };
        let text = format!(
            "[node]\nid = \"{name}\"\nroles = {roles:?}\ndata_dir = {data:?}\nmemory = \"8GiB\"\ncpu = 2000\n\
             ports = \"{first}-{last}\"\n[listen]\napi = \"{api}\"\nrpc = \"{rpc}\"\n\
             [join]\ncoordinators = [{candidates}]\n{store}"
        );
        let config = self.dir.path().join(format!("{name}.toml"));
        std::fs::write(&config, text)?;
        let log = self.dir.path().join(format!("{name}.log"));
        Ok(Daemon { name, api, rpc, data, config, log, child: None })
    }

    fn daemon(&mut self, name: &str) -> anyhow::Result<&mut Daemon> {
        self.daemons
            .iter_mut()
            .find(|daemon| daemon.name == name)
            .with_context(|| format!("no daemon {name}"))
    }

    pub fn api(&self, name: &str) -> anyhow::Result<Api> {
        let daemon = self.daemons.iter().find(|daemon| daemon.name == name);
        Api::at(daemon.with_context(|| format!("no daemon {name}"))?.api)
    }

    /// Where a daemon keeps what it has.
    pub fn data(&self, name: &str) -> anyhow::Result<PathBuf> {
        let daemon = self.daemons.iter().find(|daemon| daemon.name == name);
        Ok(daemon.with_context(|| format!("no daemon {name}"))?.data.clone())
    }

    /// Where other daemons dial it.
    pub fn rpc(&self, name: &str) -> anyhow::Result<String> {
        let daemon = self.daemons.iter().find(|daemon| daemon.name == name);
        Ok(daemon.with_context(|| format!("no daemon {name}"))?.rpc.to_string())
    }

    pub fn pid(&self, name: &str) -> anyhow::Result<u32> {
        let daemon = self.daemons.iter().find(|daemon| daemon.name == name && daemon.child.is_some());
        let child = daemon.and_then(|daemon| daemon.child.as_ref());
        Ok(child.with_context(|| format!("{name} does not run"))?.id())
    }

    /// Starts a daemon; it ends with us.
    pub fn run(&mut self, name: &str) -> anyhow::Result<()> {
        let binary = self.binary.clone();
        let daemon = self.daemon(name)?;
        let log = File::options().create(true).append(true).open(&daemon.log)?;
        let mut command = Command::new(binary);
        command.arg("run").arg("--config").arg(&daemon.config).arg("--until-stdin-ends");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        daemon.child = Some(command.spawn().with_context(|| format!("starting {name}"))?);
        Ok(())
    }

    /// What all daemons have used of the processors, with everything that they started and that has ended.
    pub fn cpu_seconds(&self) -> f64 {
        let pids = self.daemons.iter().filter_map(|daemon| Some(daemon.child.as_ref()?.id()));
        // Shims are not their children, but those of a child.
        pids.flat_map(|pid| std::iter::once(pid).chain(children(pid))).filter_map(cpu_seconds).sum()
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        if let Some(mut child) = self.daemon(name)?.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

fn children(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let of = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(1));
        of.is_some_and(|of| of.parse() == Ok(parent))
    };
    pids.filter(is_child).collect()
}

/// Of a process and of its children that were waited for.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks = fields.split(' ').skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>();
    Some(ticks / PROC_TICKS_PER_SECOND)
}

impl Drop for Stage {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            if let Some(mut child) = daemon.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        let (binary, daemons) = (self.binary.clone(), &self.daemons);
        // Of its own: this may run within a runtime that must not be blocked, or while a panic passes.
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let Ok(runtime) = runtime else { return };
                for daemon in daemons {
                    if let Err(fault) = runtime.block_on(kill_instances(daemon.name, &daemon.data, &binary)) {
                        eprintln!("instances of {} may be left: {fault:#}", daemon.name);
                    }
                }
            });
        });
    }
}

/// Every instance of a node whose daemon is dead, without asking.
async fn kill_instances(node: &str, data: &Path, binary: &Path) -> anyhow::Result<()> {
    let root = data.join("instances");
    if !root.is_dir() {
        return Ok(());
    }
    let runtime = Runtime::new(&root, binary, Cgroups::detect(node, data))?;
    for dir in runtime.scan()? {
        if let Found::Running(handle) = runtime.adopt(&dir).await.found {
            handle.kill().await?;
            let _ = handle.wait_exit().await;
        }
    }
    runtime.cgroups().remove_empty();
    Ok(())
}
