//! A million instances on ten thousand nodes, with the planner and the coordinator alone.

use std::time::Instant;

use crate::{
    cluster::{place, settle_instances},
    office,
    report::{Bar, Report},
};

pub const NAMES: [&str; 3] =
    ["placing_1m_instances_on_10k_nodes", "memory_per_instance", "idle_tick_1m_instances_mean"];

const NODES: usize = 10_000;
const UNITS: usize = 1_000_000;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let placed = place(NODES, UNITS);
    report.line(NAMES[0], UNITS as f64 / placed.seconds, "/s", Bar::AtLeast(200_000.0));
    report.line(NAMES[1], placed.bytes as f64 / UNITS as f64, "bytes", Bar::AtMost(600.0));
    let mut cluster = placed.cluster;
    settle_instances(&mut cluster);
    let begun = Instant::now();
    let coordinator = office::take(cluster);
    report.line("taking_office_warm_1m", begun.elapsed().as_secs_f64(), "s", Bar::None);
    let idle = office::idle(coordinator);
    report.line(NAMES[2], idle.tick_mean, "ms", Bar::AtMost(1.0));
    report.line("idle_step_1m_instances_worst", idle.step_worst, "ms", Bar::None);
    Ok(())
}
