//! Two nodes drain in turn while requests go through the edge, over fresh and over kept connections.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::ensure;
use edge::load::{LoadReport, run_load};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::stage::{Setup, Stage, free_port, until};
use crate::report::{Bar, Report};

pub const NAME: &str = "requests_failed_while_nodes_drain";

const COUNT: usize = 6;
/// Of each sort.
const CLIENTS: usize = 8;
const QUIET: Duration = Duration::from_secs(5);
/// Kept connections are there before the drain begins, and see a little of what follows.
const AROUND: Duration = Duration::from_secs(1);
const ASK_EVERY: Duration = Duration::from_millis(50);

const SETUPS: [Setup; 4] = [
    Setup { name: "control", roles: &["coordinator", "edge"] },
    Setup { name: "n1", roles: &["worker"] },
    Setup { name: "n2", roles: &["worker"] },
    Setup { name: "n3", roles: &["worker"] },
];

pub async fn run(report: &mut Report) -> anyhow::Result<()> {
    let stage = Stage::start(&SETUPS, "kind = \"embedded\"").await?;
    let api = stage.api("control")?;
    let port = free_port()?;
    let service = json!({
        "count": COUNT, "memory": "32MiB", "ports": ["http"],
        "command": [stage.binary, "demo", "web", "--port", "${PORT_HTTP}"],
        "check": { "http": "/ready", "port": "http", "interval": "200ms", "timeout": "2s" },
        "edge": { "port": "http", "listen": port },
        "migrate": { "max_parallel": 2, "min_healthy_time": "300ms" },
    });
    api.put_service("web", service).await?;
    let first = api.until_ready("web", COUNT).await?;
    until("the edge to listen", ASK_EVERY, async || {
        Ok(tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok().map(drop))
    })
    .await?;

    let before = load_for(port, QUIET).await?;
    let stop = CancellationToken::new();
    let load = tokio::spawn(run_load((Ipv4Addr::LOCALHOST, port).into(), CLIENTS, CLIENTS, stop.clone()));
    tokio::time::sleep(AROUND).await;
    for node in ["n1", "n2"] {
        api.drain(node).await?;
        api.until_drained(node, ASK_EVERY).await?;
        api.intend(node, "active").await?;
    }
    tokio::time::sleep(AROUND).await;
    stop.cancel();
    let during = load.await?;
    let after = load_for(port, QUIET).await?;

    for old in first.iter().filter(|instance| instance.node != "n3") {
        ensure!(during.by_instance.contains_key(&old.id), "{} had no traffic before it left", old.id);
    }
    for failed in [&before, &during, &after].into_iter().flat_map(|load| &load.failed) {
        eprintln!("failed: {failed}");
    }
    let failed = before.failed_count + during.failed_count + after.failed_count;
    report.line(NAME, failed as f64, "requests", Bar::AtMost(0.0));
    for (when, load) in [("before", before), ("during", during), ("after", after)] {
        let millis = load.latency.p99.as_secs_f64() * 1000.0;
        report.line(&format!("requests_{when}_drains"), load.requests as f64, "requests", Bar::None);
        report.line(&format!("requests_p99_{when}_drains"), millis, "ms", Bar::None);
    }
    Ok(())
}

async fn load_for(port: u16, time: Duration) -> anyhow::Result<LoadReport> {
    let stop = CancellationToken::new();
    let load = tokio::spawn(run_load((Ipv4Addr::LOCALHOST, port).into(), CLIENTS, CLIENTS, stop.clone()));
    tokio::time::sleep(time).await;
    stop.cancel();
    Ok(load.await?)
}
