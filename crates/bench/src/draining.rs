//! Deciding the drain of a node with a thousand of a million instances.

use anyhow::ensure;

use crate::{
    cluster::{place, settle_instances},
    office,
    report::{Bar, Report},
};

pub const NAME: &str = "deciding_a_drain_of_1000_of_1m";

const NODES: usize = 1_000;
const UNITS: usize = 1_000_000;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let mut cluster = place(NODES, UNITS).cluster;
    settle_instances(&mut cluster);
    let (took, placed) = office::decide_a_drain(&mut office::take(cluster));
    // One service lets one go at a time unless it says otherwise, and there are a thousand of them.
    ensure!(placed > 0, "nothing was decided");
    report.line(NAME, took, "ms", Bar::AtMost(20.0));
    report.line("replacements_it_placed", placed as f64, "instances", Bar::None);
    Ok(())
}
