//! Hash slots off a Redis node, by us and by `redis-cli --cluster reshard`: the same data in the same cluster, in turn.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use backends::{
    Backend, Memo, Moving, Preflight, RedisCluster, StoreId,
    testing::{RedisNodes, keys},
};

use crate::{
    real::{block, median},
    report::{Bar, Report},
};

pub const NAMES: [&str; 3] =
    ["redis_slots_moved", "redis_slots_moved_by_redis_cli", "redis_slots_over_redis_cli"];

const NODES: [usize; 4] = [0, 1, 2, 3];
/// A quarter of all.
const SLOTS: f64 = 4_096.0;
/// Of each, in turn: both see the same machine.
const ROUNDS: usize = 5;
const LONG: Duration = Duration::from_secs(600);

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let (ours, theirs) = block(measure())?;
    report.line(NAMES[0], ours, "slots/s", Bar::None);
    report.line(NAMES[1], theirs, "slots/s", Bar::None);
    report.line(NAMES[2], ours / theirs, "times", Bar::AtLeast(1.0));
    Ok(())
}

/// Slots a second, ours and theirs.
async fn measure() -> anyhow::Result<(f64, f64)> {
    let nodes = RedisNodes::start(4, 0).await;
    keys::fill(&nodes, &NODES).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(3).await;
    let memo = match backend.preflight(&store).await? {
        Preflight::Possible { memo } => memo,
        Preflight::Refused { refusal } => bail!("the node cannot be emptied: {refusal}"),
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _round in 0..ROUNDS {
        let begun = Instant::now();
        let moving = backend.begin_offline(&store, &memo, LONG).await?;
        ours.push(SLOTS / begun.elapsed().as_secs_f64());
        ensure!(moving == Moving::Complete, "slots are left after {LONG:?}");
        put_back(&nodes, &backend, &store, &memo).await?;
        let begun = Instant::now();
        reshard(&nodes, &store).await?;
        theirs.push(SLOTS / begun.elapsed().as_secs_f64());
        put_back(&nodes, &backend, &store, &memo).await?;
    }
    Ok((median(&ours), median(&theirs)))
}

/// Every key is looked for where it went, and where it came back to.
async fn put_back(
    nodes: &RedisNodes,
    backend: &RedisCluster,
    store: &StoreId,
    memo: &Memo,
) -> anyhow::Result<()> {
    keys::assert_all_there(nodes, &NODES).await;
    let moving = backend.cancel_offline(store, memo, LONG).await?;
    ensure!(moving == Moving::Complete, "slots are not back after {LONG:?}");
    keys::assert_all_there(nodes, &NODES).await;
    Ok(())
}

/// Its favourite case: one target, so that it starts and checks the cluster once.
async fn reshard(nodes: &RedisNodes, from: &StoreId) -> anyhow::Result<()> {
    let to = nodes.id(0).await;
    let status = Command::new("redis-cli")
        .args(["--cluster", "reshard", &nodes.address(0), "--cluster-from", &from.0])
        .args(["--cluster-to", &to.0, "--cluster-slots", "4096", "--cluster-yes"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("cannot run redis-cli")?;
    ensure!(status.success(), "redis-cli --cluster reshard failed ({status})");
    Ok(())
}
