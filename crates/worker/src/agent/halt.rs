//! Stopping everything on a node together with its daemon, for whoever runs the whole on one machine.

use std::{path::Path, time::Duration};

use super::disk;
use crate::{
    cgroup::Cgroups,
    runtime::{Found, Runtime},
    sys,
};

/// Stops every instance in a data directory with its own signal and grace, all at once, and returns
/// how many ran. The next life of the daemon starts them again and counts it as no crash.
///
/// To be called when no daemon uses the directory.
pub async fn stop_instances(data_dir: &Path, exe: &Path) -> std::io::Result<usize> {
    let root = data_dir.join("instances");
    if !root.is_dir() {
        return Ok(0);
    }
    let runtime = Runtime::new(&root, exe, Cgroups::none("not needed to stop"))?;
    let mut stops = Vec::new();
    for dir in runtime.scan()? {
        let Found::Running(handle) = runtime.adopt(&dir).await.found else { continue };
        let (signal, grace) = match disk::load_order(&dir) {
            Ok(kept) => (kept.run.spec.stop.signal.number(), kept.run.spec.stop.grace.as_duration()),
            Err(_) => (sys::signal_number("SIGTERM").unwrap_or(15), Duration::from_secs(10)),
        };
        disk::mark_halted(&dir)?;
        stops.push(tokio::spawn(async move { handle.stop(signal, grace).await }));
    }
    let count = stops.len();
    for stop in stops {
        let _ = stop.await;
    }
    Ok(count)
}
