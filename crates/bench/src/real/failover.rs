//! The coordinator is killed in the middle of a drain: how long until the drain goes on.
//!
//! Candidates are daemons of their own here. One that is also an edge holds up stops until its lease is
//! over, and one that is also a worker may have been given a replacement: both are waits of their own.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use protocol::Timing;
use serde_json::json;
use store::testing::EtcdCluster;

use super::{
    machine_load, median,
    stage::{Api, Setup, Stage, until},
    worst,
};
use crate::report::{Bar, Report};

pub const NAME: &str = "coordinator_killed_until_drain_goes_on";

const COUNT: usize = 18;
const ROUNDS: usize = 5;
/// Rounds in which etcd changed its leader say nothing, and are made up for.
const ROUNDS_MAX: usize = 10;
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Beyond the office's lease.
const BEYOND_S: f64 = 2.0;

const CANDIDATES: [&str; 3] = ["c1", "c2", "c3"];
const SETUPS: [Setup; 6] = [
    Setup { name: "c1", roles: &["coordinator"] },
    Setup { name: "c2", roles: &["coordinator"] },
    Setup { name: "c3", roles: &["coordinator"] },
    Setup { name: "n1", roles: &["worker"] },
    Setup { name: "n2", roles: &["worker"] },
    Setup { name: "n3", roles: &["worker"] },
];

pub async fn run(report: &mut Report) -> anyhow::Result<()> {
    let etcd = EtcdCluster::start(3).await;
    let endpoints: Vec<String> = etcd.endpoints().iter().map(|url| format!("{url:?}")).collect();
    let store = format!("kind = \"etcd\"\nendpoints = [{}]", endpoints.join(", "));
    let mut stage = Stage::start(&SETUPS, &store).await?;
    let service = json!({
        "count": COUNT, "memory": "16MiB", "command": ["sleep", "100000"],
        "migrate": { "max_parallel": 1, "min_healthy_time": "300ms" },
    });
    stage.api("n1")?.put_service("job", service).await?;
    let (mut led, mut went_on) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS_MAX {
        let leader = etcd.leader().await;
        let node = if round % 2 == 0 { "n1" } else { "n2" };
        let (elected, moved) = one(&mut stage, node).await.with_context(|| format!("round {round}"))?;
        if etcd.leader().await != leader {
            eprintln!("round {round}: etcd changed its leader; not counted");
            continue;
        }
        led.push(elected);
        went_on.push(moved);
        if went_on.len() == ROUNDS {
            break;
        }
    }
    ensure!(went_on.len() == ROUNDS, "etcd changed its leader too often");
    let bar = Timing::default().lease.as_duration().as_secs_f64() + BEYOND_S;
    report.line("coordinator_killed_until_another_leads", worst(&led), "s worst", Bar::None);
    report.line(&format!("{NAME}_median"), median(&went_on), "s", Bar::None);
    report.line(NAME, worst(&went_on), "s worst", Bar::AtMost(bar));
    report.line("coordinator_killed_machine_load", machine_load(), "", Bar::None);
    Ok(())
}

/// One kill in one drain: seconds until another leads, and until a unit more has left than when it
/// began to.
async fn one(stage: &mut Stage, node: &str) -> anyhow::Result<(f64, f64)> {
    let api = stage.api("n3")?;
    settled(&api, node).await?;
    let old = api.status().await?.coordinator;
    api.drain(node).await?;
    until("the middle of the drain", ASK_EVERY, async || {
        Ok((api.drain_of(node).await?.done >= 2).then_some(()))
    })
    .await?;
    let killed = Instant::now();
    stage.kill(&old.id)?;
    let asked = CANDIDATES.into_iter().find(|name| *name != old.id).context("another candidate")?;
    let api = stage.api(asked)?;
    until("another coordinator", ASK_EVERY, async || {
        let leads = api.status().await?.coordinator;
        Ok((leads.term > old.term).then_some(()))
    })
    .await?;
    let elected = killed.elapsed().as_secs_f64();
    let first = until("its first word", ASK_EVERY, async || Ok(Some(api.drain_of(node).await?))).await?;
    ensure!(first.state == "draining", "the drain was {} before anybody led again", first.state);
    until("the drain to go on", ASK_EVERY, async || {
        Ok((api.drain_of(node).await?.done > first.done).then_some(()))
    })
    .await?;
    let moved = killed.elapsed().as_secs_f64();
    api.until_drained(node, ASK_EVERY).await?;
    stage.run(&old.id)?;
    Ok((elected, moved))
}

/// Everything runs, the node has its share, and it is open.
async fn settled(api: &Api, node: &str) -> anyhow::Result<()> {
    for other in ["n1", "n2"] {
        api.intend(other, "active").await?;
    }
    until("the node to have its share", Duration::from_millis(200), async || {
        let all = api.until_ready("job", COUNT).await?;
        let here = all.iter().filter(|instance| instance.node == node).count();
        Ok((here >= COUNT / 3).then_some(()))
    })
    .await
}
