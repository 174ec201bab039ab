//! Figures of the real binary with real processes: what an operator would measure.

mod failover;
mod feeds;
mod hundred;
mod restarts;
mod stage;
mod traffic;

use crate::report::Report;

/// What is measured here. A filter that names only these skips the million instances of the others.
pub const NAMES: [&str; 8] = [
    hundred::NAME,
    traffic::NAME,
    failover::NAME,
    feeds::OFF_A_NODE,
    feeds::GAP,
    feeds::GAP_POSTGRES,
    restarts::STOPPED,
    restarts::EVICTOR,
];

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        if report.wants(hundred::NAME) {
            hundred::run(report).await?;
        }
        if report.wants(traffic::NAME) {
            traffic::run(report).await?;
        }
        if report.wants(failover::NAME) {
            failover::run(report).await?;
        }
        if report.wants(feeds::OFF_A_NODE) {
            feeds::off_a_node(report).await?;
        }
        if report.wants(feeds::GAP) {
            feeds::gap(report).await?;
        }
        if report.wants(feeds::GAP_POSTGRES) {
            feeds::gap_postgres(report).await?;
        }
        if report.wants(restarts::STOPPED) || report.wants(restarts::EVICTOR) {
            restarts::run(report).await?;
        }
        Ok(())
    })
}

/// In the middle of what was measured.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn worst(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}

/// What else this machine has to do: printed beside figures that are times.
fn machine_load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}
