//! How the figures of the planner and the coordinator grow with the cluster, for the curves in the docs.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::{
    cluster::{place, settle_instances},
    office,
    real::median,
    report::{Bar, Point, Report},
};

pub const NAME: &str = "scaling_points";

/// What is drawn, by what a point names.
pub const PLACING: &str = "placing";
pub const DRAIN: &str = "drain";
pub const TICK: &str = "tick";
pub const MEMORY: &str = "memory";

const NODES: [usize; 4] = [10, 100, 1_000, 10_000];
const UNITS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// What a node of the bench has memory for, less room for what a drain brings.
const UNITS_PER_NODE_MAX: usize = 1_500;
/// Small clusters are made several times: one would be measured in pages and microseconds.
const UNITS_IN_ALL: usize = 100_000;
/// Of which each is asked to drain a node.
const DRAINS: usize = 5;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let mut points = 0;
    for nodes in NODES {
        for units in UNITS.into_iter().filter(|units| units / nodes <= UNITS_PER_NODE_MAX) {
            for (chart, value) in apart(nodes, units)? {
                report.point(&Point { chart, nodes, units, value });
                points += 1;
            }
        }
    }
    report.line(NAME, f64::from(points), "points", Bar::None);
    Ok(())
}

/// In a process of its own: what a larger cluster has left behind would be taken for the memory of the next.
fn apart(nodes: usize, units: usize) -> anyhow::Result<Vec<(String, f64)>> {
    let mut command = Command::new(std::env::current_exe()?);
    let ended = command.args(["--size", &nodes.to_string(), &units.to_string()]).output()?;
    ensure!(
        ended.status.success(),
        "{units} units on {nodes} nodes: {}",
        String::from_utf8_lossy(&ended.stderr)
    );
    let said = String::from_utf8(ended.stdout)?;
    let point = |line: &str| {
        let (chart, value) = line.split_once(' ').context("a name and a value")?;
        Ok((chart.to_owned(), value.parse()?))
    };
    said.lines().map(point).collect()
}

/// For the one that started it.
pub fn size(nodes: &str, units: &str) -> anyhow::Result<()> {
    for (chart, value) in measure(nodes.parse()?, units.parse()?) {
        println!("{chart} {value}");
    }
    Ok(())
}

fn measure(nodes: usize, units: usize) -> [(&'static str, f64); 4] {
    let copies = (UNITS_IN_ALL / units).clamp(1, 20);
    let mut placed: Vec<_> = (0..copies).map(|_| place(nodes, units)).collect();
    let all = (copies * units) as f64;
    let rate = all / placed.iter().map(|one| one.seconds).sum::<f64>();
    let bytes = placed.iter().map(|one| one.bytes as f64).sum::<f64>() / all;
    placed.truncate(DRAINS);
    let mut drains = Vec::new();
    let mut tick = 0.0;
    for mut one in placed {
        settle_instances(&mut one.cluster);
        let coordinator = office::take(one.cluster);
        if drains.is_empty() {
            tick = office::idle(coordinator.clone()).tick_mean;
        }
        drains.push(office::decide_a_drain(&mut { coordinator }).0);
    }
    [(PLACING, rate), (MEMORY, bytes), (TICK, tick), (DRAIN, median(&drains))]
}
