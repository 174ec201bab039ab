//! A graceful restart of a store: how long its process outlives its last leader, and how long leaders are kept away from
//! the next one that is ready. Both in intervals of the reports that the coordinator acts on.
//!
//! The backend is the example's, whose books are files: what changes there, and when, is seen without asking anybody.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use protocol::Timing;
use reqwest::Method;
use serde_json::json;

use super::{
    machine_load, median,
    stage::{Api, Setup, Stage, until},
    worst,
};
use crate::report::{Bar, Report};

pub const STOPPED: &str = "store_without_leaders_until_stopped";
pub const EVICTOR: &str = "store_ready_until_evictor_removed";

const ROUNDS: usize = 11;
const LOOK_EVERY: Duration = Duration::from_millis(5);
const ASK_EVERY: Duration = Duration::from_millis(50);

const SETUPS: [Setup; 3] = [
    Setup { name: "c1", roles: &["coordinator"] },
    Setup { name: "n1", roles: &["worker"] },
    Setup { name: "n2", roles: &["worker"] },
];

pub async fn run(report: &mut Report) -> anyhow::Result<()> {
    let books = tempfile::tempdir()?;
    let stage = Stage::start(&SETUPS, "kind = \"embedded\"").await?;
    let api = stage.api("c1")?;
    api.ask(Method::PUT, "/v1/store-groups/kv", Some(group(books.path()))).await?;
    until("two stores that serve", ASK_EVERY, async || {
        let found = api.ask(Method::GET, "/v1/store-groups/kv", None).await?;
        Ok((found["serving"] == 2).then_some(()))
    })
    .await?;
    let (mut stopped, mut removed) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let phase = round as f64 / ROUNDS as f64;
        let (stop, remove) =
            one(&api, books.path(), phase).await.with_context(|| format!("round {round}"))?;
        stopped.push(stop);
        removed.push(remove);
    }
    for (name, values) in [(STOPPED, &stopped), (EVICTOR, &removed)] {
        report.line(name, median(values), "reports", Bar::AtMost(1.0));
        report.line(&format!("{name}_worst"), worst(values), "reports", Bar::None);
    }
    report.line("store_restarts_machine_load", machine_load(), "", Bar::None);
    Ok(())
}

/// A store joins by itself, under the port that it had first, and tells its pid.
fn group(books: &Path) -> serde_json::Value {
    let backend = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/store-backend.sh");
    let books = books.display();
    // What the file of a group has as `$$` is a `$`.
    let script = format!(
        "test -e $VOLUME/id || {{ mkdir -p {books}/$PORT_KV; echo 5 > {books}/$PORT_KV/leaders; echo $PORT_KV > $VOLUME/id; }}; \
         read -r id < $VOLUME/id; echo $$$$ > {books}/$$id/pid; exec sleep 100000"
    );
    // The evictor is there first and the last leader leaves when we say so.
    let wrapped = format!(
        "case $1 in evict_leaders) question=$(cat); case $question in *'\"on\":true'*) \
         id=$(printf '%s' \"$question\" | sed -n 's/.*\"store\":\"\\([^\"]*\\)\".*/\\1/p'); touch {books}/$id/evictor; \
         echo '{{\"ok\":null}}'; exit;; esac; printf '%s' \"$question\" | sh {0} {books} $1;; *) exec sh {0} {books} $1;; esac",
        backend.display()
    );
    json!({
        "replicas": 2, "memory": "16MiB", "cpu": 10, "ports": ["kv"], "command": ["sh", "-c", script],
        "volume": { "name": "data" },
        "backend": { "kind": "command", "command": ["sh", "-c", wrapped, "backend"] },
    })
}

/// Seconds of each, over the interval of reports.
async fn one(api: &Api, books: &Path, phase: f64) -> anyhow::Result<(f64, f64)> {
    let interval = Timing::default().heartbeat.as_duration().as_secs_f64();
    let here = store_of(api, books).await?;
    let before = fs::read_to_string(here.join("pid"))?;
    let process = PathBuf::from(format!("/proc/{}", before.trim()));
    api.ask(Method::POST, "/v1/stores/kv-0/restart", None).await?;
    seen("an evictor", || here.join("evictor").exists()).await?;
    // At every point between two looks at the backend, one after the other.
    tokio::time::sleep(Timing::default().heartbeat.as_duration().mul_f64(1.0 + phase)).await;
    ensure!(process.exists(), "it was stopped though it leads");
    fs::write(here.join("leaders"), "0\n")?;
    let none_left = Instant::now();
    seen("the process to end", || !process.exists()).await?;
    let stopped = none_left.elapsed().as_secs_f64() / interval;
    let next = || fs::read_to_string(here.join("pid")).is_ok_and(|pid| pid != before && pid.ends_with('\n'));
    seen("the next process", next).await?;
    let ready = Instant::now();
    ensure!(here.join("evictor").exists(), "leaders may return to a store that is not ready");
    seen("the evictor to go", || !here.join("evictor").exists()).await?;
    let removed = ready.elapsed().as_secs_f64() / interval;
    until("the restart to end", ASK_EVERY, async || {
        let store = api.ask(Method::GET, "/v1/stores/kv-0", None).await?;
        Ok((store["restart"].is_null() && store["leaders"].as_u64() > Some(0)).then_some(()))
    })
    .await?;
    Ok((stopped, removed))
}

/// Where the backend keeps what it knows of the store.
async fn store_of(api: &Api, books: &Path) -> anyhow::Result<PathBuf> {
    let store = api.ask(Method::GET, "/v1/stores/kv-0", None).await?;
    Ok(books.join(store["identity"].as_str().context("the backend knows it")?))
}

async fn seen(what: &str, look: impl Fn() -> bool) -> anyhow::Result<()> {
    until(what, LOOK_EVERY, async || Ok(look().then_some(()))).await
}
