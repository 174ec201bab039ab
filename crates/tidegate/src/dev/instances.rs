//! Stopping the instances of a dev cluster once its daemons are gone.
//!
//! The state still wants them, so the next start finds them ended and starts them again.

use std::path::Path;

use futures_util::future::join_all;
use worker::{
    agent::stop_instances,
    cgroup::Cgroups,
    runtime::{Found, Runtime},
};

use super::layout::{Daemon, Layout};
use crate::out;

/// Each with its own signal and grace, all at once.
pub async fn stop_all(layout: &Layout, exe: &Path) {
    let workers = layout.daemons.iter().filter(|daemon| daemon.is_worker);
    let stopping = workers.map(|daemon| async move {
        let stopped = stop_instances(&daemon.data, exe).await;
        stopped.unwrap_or_else(|error| {
            out::note(format!("the instances of {} cannot all be stopped: {error}", daemon.name));
            0
        })
    });
    let count: usize = join_all(stopping).await.into_iter().sum();
    out::note(format!("{count} instances stopped"));
}

/// Without asking them.
pub async fn kill_all(layout: &Layout, exe: &Path) {
    for daemon in layout.daemons.iter().filter(|daemon| daemon.is_worker) {
        if let Err(error) = kill_those_of(daemon, exe).await {
            out::note(format!("the instances of {} cannot all be killed: {error}", daemon.name));
        }
    }
}

async fn kill_those_of(daemon: &Daemon, exe: &Path) -> anyhow::Result<()> {
    let root = daemon.data.join("instances");
    if !root.is_dir() {
        return Ok(());
    }
    let runtime = Runtime::new(&root, exe, Cgroups::none("not needed to kill"))?;
    for dir in runtime.scan()? {
        if let Found::Running(handle) = runtime.adopt(&dir).await.found {
            handle.kill().await?;
        }
    }
    Ok(())
}
