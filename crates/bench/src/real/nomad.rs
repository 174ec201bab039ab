//! The same drain by Nomad, if there is one on the PATH: the same hundred processes off one of two clients, in turn
//! with Tidegate on the same machine.
//!
//! Nomad stops an instance before it starts another: with all hundred at once nothing serves for a while, and its
//! drain is over before the others are ready. So the ratio is that of the time until all hundred are ready elsewhere,
//! which for Tidegate is when the drain ends.

use std::{
    fs::{self, File},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use reqwest::{Client, Method};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    block, hundred, median,
    stage::{Stage, binary, free_port, until},
};
use crate::{
    machine::load,
    report::number,
    runner::{is_there, show},
};

const NOMAD: &str = "nomad";
const COUNT: usize = hundred::COUNT;
const ROUNDS: usize = 3;
const ASK_EVERY: Duration = Duration::from_millis(50);
const CLIENTS: [&str; 2] = ["c1", "c2"];

pub fn compare() -> anyhow::Result<()> {
    if !is_there(NOMAD) {
        println!("no {NOMAD} on the PATH: there is nothing to compare with");
        return Ok(());
    }
    block(measure())
}

async fn measure() -> anyhow::Result<()> {
    let nomad = Agents::start().await?;
    nomad.run_job().await?;
    let stage = hundred::stage().await?;
    let (mut ours, mut theirs, mut until_ready) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (from, to) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        ours.push(tidegate_drains(&stage, from, to).await.context("by Tidegate")?);
        let (drained, ready) = nomad.drain(CLIENTS[from], CLIENTS[to]).await.context("by Nomad")?;
        theirs.push(drained);
        until_ready.push(ready);
    }
    let (ours, theirs, until_ready) = (median(&ours), median(&theirs), median(&until_ready));
    let line = |name: &str, value: f64, unit: &str| {
        let (name, unit, none) = (name.to_owned(), unit.to_owned(), "-".to_owned());
        show([name, number(value), unit, none.clone(), none]);
    };
    show(["name", "value", "unit", "bar", "verdict"].map(String::from));
    line("draining_100_processes_tidegate", ours, "s");
    line("draining_100_processes_nomad", theirs, "s");
    line("draining_100_processes_nomad_until_all_ready", until_ready, "s");
    line("draining_100_processes_nomad_over_tidegate", until_ready / ours, "times");
    line("machine_load", load(), "");
    Ok(())
}

async fn tidegate_drains(stage: &Stage, from: usize, to: usize) -> anyhow::Result<f64> {
    let nodes = ["n1", "n2"];
    Ok(hundred::by_drain(&stage.api("control")?, nodes[from], nodes[to]).await?.0)
}

/// A server and two clients, gone with what they run when this is dropped.
struct Agents {
    http: Client,
    base: String,
    dir: TempDir,
    children: Vec<Child>,
}

impl Agents {
    async fn start() -> anyhow::Result<Agents> {
        let dir = tempfile::Builder::new().prefix("tidegate-bench-nomad-").tempdir()?;
        let http = doors::http().no_proxy().timeout(Duration::from_secs(20)).build()?;
        let mut agents = Agents { http, base: String::new(), dir, children: Vec::new() };
        let [web, rpc, serf] = [free_port()?, free_port()?, free_port()?];
        agents.base = format!("http://127.0.0.1:{web}");
        agents.run("server", [web, rpc, serf], "server {\n enabled = true\n bootstrap_expect = 1\n}\n")?;
        for (at, name) in CLIENTS.into_iter().enumerate() {
            let ports = [free_port()?, free_port()?, free_port()?];
            let first = 26_000 + 400 * at;
            let role = format!(
                "client {{\n enabled = true\n servers = [\"127.0.0.1:{rpc}\"]\n network_interface = \"lo\"\n \
                 cpu_total_compute = 20000\n memory_total_mb = 16384\n min_dynamic_port = {first}\n \
                 max_dynamic_port = {}\n}}\nplugin \"raw_exec\" {{\n config {{\n enabled = true\n }}\n}}\n",
                first + 399
            );
            agents.run(name, ports, &role)?;
        }
        for name in CLIENTS {
            until(&format!("client {name} to be ready"), ASK_EVERY, async || {
                let node = agents.node(name).await?;
                Ok((node["Status"] == "ready" && node["Drivers"]["raw_exec"]["Healthy"] == true)
                    .then_some(()))
            })
            .await?;
        }
        Ok(agents)
    }

    fn run(&mut self, name: &str, [http, rpc, serf]: [u16; 3], role: &str) -> anyhow::Result<()> {
        let (data, config) = (self.dir.path().join(name), self.dir.path().join(format!("{name}.hcl")));
        fs::write(
            &config,
            format!(
                "name = \"{name}\"\ndata_dir = {data:?}\nbind_addr = \"127.0.0.1\"\ndisable_update_check = true\n\
                 advertise {{\n http = \"127.0.0.1\"\n rpc = \"127.0.0.1\"\n serf = \"127.0.0.1\"\n}}\n\
                 ports {{\n http = {http}\n rpc = {rpc}\n serf = {serf}\n}}\n{role}"
            ),
        )?;
        let log = File::create(self.dir.path().join(format!("{name}.log")))?;
        let mut command = Command::new(NOMAD);
        command.args(["agent", "-config"]).arg(&config).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        self.children.push(command.spawn().context("starting nomad")?);
        Ok(())
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await?;
        let (status, text) = (response.status(), response.text().await?);
        ensure!(status.is_success(), "{method} {path}: {status} {text}");
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    async fn node(&self, name: &str) -> anyhow::Result<Value> {
        let nodes = self.ask(Method::GET, "/v1/nodes", None).await?;
        let found = nodes.as_array().and_then(|all| all.iter().find(|node| node["Name"] == name));
        found.cloned().with_context(|| format!("no client {name}"))
    }

    async fn id(&self, name: &str) -> anyhow::Result<String> {
        Ok(self.node(name).await?["ID"].as_str().context("the id of a client")?.to_owned())
    }

    async fn eligible(&self, name: &str, may: bool) -> anyhow::Result<()> {
        let word = if may { "eligible" } else { "ineligible" };
        let path = format!("/v1/node/{}/eligibility", self.id(name).await?);
        self.ask(Method::PUT, &path, Some(json!({ "Eligibility": word }))).await.map(drop)
    }

    /// All on the first client.
    async fn run_job(&self) -> anyhow::Result<()> {
        self.eligible(CLIENTS[1], false).await?;
        self.ask(Method::PUT, "/v1/jobs", Some(json!({ "Job": job(&binary()?) }))).await?;
        self.all_on(CLIENTS[0]).await
    }

    /// All hundred are registered there, and answer. What Nomad itself says of their health comes later.
    async fn all_on(&self, name: &str) -> anyhow::Result<()> {
        let id = self.id(name).await?;
        until(&format!("{COUNT} of Nomad's on {name}"), ASK_EVERY, async || {
            let known = self.ask(Method::GET, "/v1/service/web", None).await?;
            let known: Vec<&Value> = known.as_array().into_iter().flatten().collect();
            if known.len() != COUNT || known.iter().any(|one| one["NodeID"] != id.as_str()) {
                return Ok(None);
            }
            let ports = known.iter().filter_map(|one| u16::try_from(one["Port"].as_u64()?).ok());
            for port in ports {
                if !hundred::is_ready((Ipv4Addr::LOCALHOST, port).into()).await {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
        .await
    }

    /// Seconds from the request until it says that nothing is left, and until all run elsewhere.
    async fn drain(&self, from: &str, to: &str) -> anyhow::Result<(f64, f64)> {
        self.all_on(from).await?;
        self.eligible(to, true).await?;
        let path = format!("/v1/node/{}", self.id(from).await?);
        let body = json!({ "DrainSpec": { "Deadline": 3_600_000_000_000u64 }, "MarkEligible": false });
        let begun = Instant::now();
        self.ask(Method::PUT, &format!("{path}/drain"), Some(body)).await?;
        until(&format!("{from} to be drained"), ASK_EVERY, async || {
            let node = self.ask(Method::GET, &path, None).await?;
            Ok((node["DrainStrategy"].is_null() && node["LastDrain"]["Status"] == "complete").then_some(()))
        })
        .await?;
        let drained = begun.elapsed().as_secs_f64();
        self.all_on(to).await?;
        Ok((drained, begun.elapsed().as_secs_f64()))
    }
}

/// As [`hundred`] has it; a second is the shortest interval between two checks that Nomad takes.
fn job(binary: &Path) -> Value {
    let check = json!({
        "Type": "http", "Path": "/ready", "PortLabel": "http", "Interval": 1_000_000_000u64,
        "Timeout": 1_000_000_000u64,
    });
    let moves = json!({
        "MaxParallel": COUNT, "HealthCheck": "checks", "MinHealthyTime": 0, "HealthyDeadline": 300_000_000_000u64,
    });
    json!({
        "ID": "web", "Name": "web", "Type": "service", "Datacenters": ["*"],
        "TaskGroups": [{
            "Name": "web", "Count": COUNT, "Migrate": moves,
            "EphemeralDisk": { "SizeMB": 10 },
            "Networks": [{ "DynamicPorts": [{ "Label": "http" }] }],
            "Services": [{ "Name": "web", "PortLabel": "http", "Provider": "nomad", "Checks": [check] }],
            "Tasks": [{
                "Name": "web", "Driver": "raw_exec",
                "Config": { "command": binary, "args": ["demo", "web", "--port", "${NOMAD_PORT_http}"] },
                "Env": { "READY_AFTER_MS": hundred::READY_AFTER_MS, "GRACE_MS": "0" },
                "Resources": { "CPU": 10, "MemoryMB": 16 },
                "LogConfig": { "MaxFiles": 1, "MaxFileSizeMB": 1 },
            }],
        }],
    })
}

impl Drop for Agents {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        // What it started outlives it; all of that works in our directory, or was told of it.
        let ours = self.dir.path().to_owned();
        for _ in 0..3 {
            for pid in processes_of(&ours) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        // As root it mounts directories of their own for secrets, and leaves them.
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for mounted in mounts.filter(|at| Path::new(at).starts_with(&ours)) {
            let _ = Command::new("umount").arg(mounted).status();
        }
    }
}

fn processes_of(dir: &Path) -> Vec<Pid> {
    let word = dir.display().to_string();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = all.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let works_there = |path: PathBuf| fs::read_link(path).is_ok_and(|cwd| cwd.starts_with(dir));
        let told = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let told = String::from_utf8_lossy(&told).contains(&word);
        (told || works_there(entry.path().join("cwd"))).then(|| Pid::from_raw(pid))?
    });
    ours.collect()
}
