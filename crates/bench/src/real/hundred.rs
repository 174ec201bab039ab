//! A hundred real processes off a node, against the same processes started and stopped by hand.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    task::JoinSet,
};

use worker::shim::{
    book,
    record::{LaunchRecord, RunRecord},
};

use super::{
    machine_load, median,
    stage::{Api, Setup, Stage, cpu_seconds, free_port, until},
    worst,
};
use crate::report::{Bar, Report};

pub const NAME: &str = "moving_100_processes_over_floor";

pub const COUNT: usize = 100;
/// By hand and by Tidegate in turn; the middle one counts.
const ROUNDS: usize = 5;
pub const READY_AFTER_MS: &str = "200";
/// How closely readiness is watched by hand.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How closely the drain is watched: its status names a hundred units.
const ASK_EVERY: Duration = Duration::from_millis(20);

const SETUPS: [Setup; 3] = [
    Setup { name: "control", roles: &["coordinator", "edge"] },
    Setup { name: "n1", roles: &["worker"] },
    Setup { name: "n2", roles: &["worker"] },
];

/// A hundred on `n1`, nothing on `n2`.
pub async fn stage() -> anyhow::Result<Stage> {
    let stage = Stage::start(&SETUPS, "kind = \"embedded\"").await?;
    let api = stage.api("control")?;
    api.intend("n2", "disabled").await?;
    api.put_service("web", service(&stage.binary)?).await?;
    api.until_ready("web", COUNT).await.context("a hundred instances on n1")?;
    Ok(stage)
}

pub async fn run(report: &mut Report) -> anyhow::Result<()> {
    let stage = stage().await?;
    let api = stage.api("control")?;
    let (mut floors, mut drains, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut hand_cpu, mut drain_cpu, mut stages) = (Vec::new(), Vec::new(), Vec::new());
    let own_cpu = || cpu_seconds(std::process::id()).unwrap_or(f64::NAN);
    for round in 0..ROUNDS {
        let before = own_cpu();
        let floor = by_hand(&stage.binary).await.context("by hand")?;
        // It moves two hundred, of which one hundred are measured.
        hand_cpu.push((own_cpu() - before) / 2.0);
        let (from, to) = if round % 2 == 0 { ("n1", "n2") } else { ("n2", "n1") };
        let before = stage.cpu_seconds();
        let (drain, started) = by_drain(&api, from, to).await?;
        drain_cpu.push(stage.cpu_seconds() - before);
        stages.push(stages_of(&api, from, &stage.data(to)?, started).await?);
        floors.push(floor);
        drains.push(drain);
        ratios.push(drain / floor);
    }
    report.line("moving_100_processes_by_hand", median(&floors), "s", Bar::None);
    report.line("moving_100_processes_by_drain", median(&drains), "s", Bar::None);
    for (at, name) in STAGES.iter().enumerate() {
        let of =
            |share: fn(&[f64]) -> f64| median(&stages.iter().map(|all| share(&all[at])).collect::<Vec<_>>());
        report.line(&format!("moving_100_processes_{name}_median"), of(median), "s", Bar::None);
        report.line(&format!("moving_100_processes_{name}_last"), of(worst), "s", Bar::None);
    }
    report.line("moving_100_processes_cpu_by_hand", median(&hand_cpu), "cpu s", Bar::None);
    report.line("moving_100_processes_cpu_by_drain", median(&drain_cpu), "cpu s", Bar::None);
    let cpu: Vec<f64> = drain_cpu.iter().zip(&hand_cpu).map(|(drain, hand)| drain / hand).collect();
    report.line("moving_100_processes_cpu_over_floor", median(&cpu), "x", Bar::None);
    report.line(NAME, median(&ratios), "x", Bar::AtMost(1.5));
    report.line("moving_100_processes_machine_load", machine_load(), "", Bar::None);
    Ok(())
}

fn service(binary: &Path) -> anyhow::Result<serde_json::Value> {
    Ok(json!({
        "count": COUNT, "memory": "16MiB", "cpu": 10, "ports": ["http"],
        "command": [binary, "demo", "web", "--port", "${PORT_HTTP}"],
        "env": { "READY_AFTER_MS": READY_AFTER_MS, "GRACE_MS": "0" },
        "check": { "http": "/ready", "port": "http", "interval": "500ms", "timeout": "5s" },
        "edge": { "port": "http", "listen": free_port()? },
        "migrate": { "max_parallel": COUNT, "min_healthy_time": "0s" },
        "update": { "max_parallel": COUNT },
    }))
}

/// From the drain's acceptance to `drained`, and when it started.
pub async fn by_drain(api: &Api, from: &str, to: &str) -> anyhow::Result<(f64, Timestamp)> {
    let on = api.until_ready("web", COUNT).await?;
    ensure!(on.iter().all(|instance| instance.node == from), "not all hundred are on {from}");
    api.intend(to, "active").await?;
    api.drain(from).await?;
    let begun = Instant::now();
    let ended = api.until_drained(from, ASK_EVERY).await?;
    let took = begun.elapsed().as_secs_f64();
    ensure!(ended.done as usize == COUNT, "{} of {COUNT} moved", ended.done);
    Ok((took, ended.started_at.context("it started")?.parse()?))
}

/// What happens to a unit on its way.
const STAGES: [&str; 5] = ["placed", "written_down", "started", "ready", "old_one_ended"];

/// Seconds since the start of the drain at which each of the hundred came to each stage. Of the old ones only
/// those are known that are still listed.
async fn stages_of(api: &Api, from: &str, to: &Path, started: Timestamp) -> anyhow::Result<[Vec<f64>; 5]> {
    let since = |text: &str| anyhow::Ok(text.parse::<Timestamp>()?.duration_since(started).as_secs_f64());
    let since_ms = |ms: u64| (ms as f64 - started.as_millisecond() as f64) / 1000.0;
    let mut stages = [const { Vec::new() }; 5];
    let [placed, written, begun, ready, ended] = &mut stages;
    for instance in api.instances("web").await? {
        if instance.node == from {
            let at = instance.ended_at.as_deref().map(since).transpose()?;
            ended.extend(at.filter(|at| *at >= 0.0));
            continue;
        }
        placed.push(since(&instance.created_at)?);
        ready.extend(instance.healthy_since.as_deref().map(since).transpose()?);
        let dir = to.join("instances").join(&instance.id);
        let launch = book::read_record::<LaunchRecord>(&dir).ok().flatten();
        written.extend(launch.map(|launch| since_ms(launch.at_ms)));
        let run = book::read_record::<RunRecord>(&dir).ok().flatten();
        begun.extend(run.map(|run| since_ms(run.started_at_ms)));
    }
    Ok(stages)
}

/// The same, by somebody who knows all that there is to know: the others are started and watched until
/// they are ready, then the old ones are told to stop and waited for.
async fn by_hand(binary: &Path) -> anyhow::Result<f64> {
    let mut old = start(binary).await?;
    until_ready(&old).await?;
    let begun = Instant::now();
    let mut others = start(binary).await?;
    until_ready(&others).await?;
    stop(&mut old).await?;
    let took = begun.elapsed().as_secs_f64();
    stop(&mut others).await?;
    Ok(took)
}

struct Started {
    child: Child,
    port: u16,
}

async fn start(binary: &Path) -> anyhow::Result<Vec<Started>> {
    let mut ports = Vec::new();
    let held: Vec<std::net::TcpListener> = (0..COUNT)
        .map(|_| {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            ports.push(listener.local_addr()?.port());
            Ok(listener)
        })
        .collect::<std::io::Result<_>>()?;
    drop(held);
    let started = ports.into_iter().map(|port| {
        let mut command = Command::new(binary);
        command.args(["demo", "web", "--port", &port.to_string()]);
        command.env("READY_AFTER_MS", READY_AFTER_MS).env("GRACE_MS", "0");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        Ok(Started { child: command.spawn()?, port })
    });
    started.collect()
}

async fn until_ready(started: &[Started]) -> anyhow::Result<()> {
    let mut watchers = JoinSet::new();
    for port in started.iter().map(|one| one.port) {
        watchers.spawn(until("a process to be ready", LOOK_EVERY, async move || {
            Ok(is_ready((Ipv4Addr::LOCALHOST, port).into()).await.then_some(()))
        }));
    }
    while let Some(watched) = watchers.join_next().await {
        watched??;
    }
    Ok(())
}

pub async fn is_ready(addr: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with(b"HTTP/1.1 200"))
    };
    ask.await.unwrap_or(false)
}

async fn stop(started: &mut [Started]) -> anyhow::Result<()> {
    for one in started.iter() {
        let pid = one.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        kill_process(pid.context("it ended before it was told to")?, Signal::TERM)?;
    }
    for one in started.iter_mut() {
        one.child.wait().await?;
    }
    Ok(())
}
