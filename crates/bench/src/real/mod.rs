//! Figures of the real binary with real processes: what an operator would measure.

mod crowd;
pub mod failover;
pub mod feeds;
pub mod hundred;
pub mod nomad;
pub mod restarts;
pub mod stage;
pub mod traffic;
pub mod workers;

pub use crate::machine::load as machine_load;

/// Runs what is asynchronous to its end.
pub fn block<T>(bench: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(bench)
}

/// In the middle of what was measured.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The least that so many of them keep to.
fn share(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn worst(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}
