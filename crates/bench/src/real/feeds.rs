//! Dispatchers off a node, over real daemons and streams: how long ten thousand take, and how long rows of one
//! stand still.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, ensure};
use reqwest::Method;
use serde_json::json;
use server::view::FeedView;
use tokio_util::sync::CancellationToken;

use super::{
    machine_load, share,
    stage::{Api, Setup, Stage, until},
};
use crate::report::{Bar, Report};

pub const OFF_A_NODE: &str = "dispatchers_10k_off_a_node";
pub const GAP: &str = "hand_over_gap_log_p99";
pub const GAP_POSTGRES: &str = "hand_over_gap_postgres_p99";

const DISPATCHERS: u64 = 10_000;
const LOGS: usize = 75;
/// Each has a slot, and each slot a process of the server's.
const TABLES: usize = 12;
/// How often every log grows by a line.
const GROWS_EVERY: Duration = Duration::from_millis(10);
/// How closely the sink is watched.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const ASK_EVERY: Duration = Duration::from_millis(50);
/// From the last row before the end of a drain to the first after it.
const SETTLE: Duration = Duration::from_secs(2);

const WORKERS: [&str; 3] = ["n1", "n2", "n3"];
const SETUPS: [Setup; 4] = [
    Setup { name: "control", roles: &["coordinator"] },
    Setup { name: "n1", roles: &["worker"] },
    Setup { name: "n2", roles: &["worker"] },
    Setup { name: "n3", roles: &["worker"] },
];

async fn feed(api: &Api, name: &str) -> anyhow::Result<FeedView> {
    Ok(serde_json::from_value(api.ask(Method::GET, &format!("/v1/feeds/{name}"), None).await?)?)
}

/// All spans have a dispatcher that runs, and none is on the move.
async fn until_settled(api: &Api, name: &str, spans: u64) -> anyhow::Result<FeedView> {
    let mut last = None;
    let settled = until(&format!("the {spans} dispatchers of {name}"), ASK_EVERY, async || {
        let view = feed(api, name).await?;
        let run: u64 = view.dispatchers.values().map(|count| u64::from(*count)).sum();
        let settled = run == spans && view.moving == 0 && view.absent == 0;
        last = Some(view.clone());
        Ok(settled.then_some(view))
    })
    .await;
    settled.with_context(|| format!("{last:?}"))
}

pub async fn off_a_node(report: &mut Report) -> anyhow::Result<()> {
    let stage = Stage::start(&SETUPS, "kind = \"embedded\"").await?;
    let api = stage.api("control")?;
    for others in &WORKERS[1..] {
        api.intend(others, "disabled").await?;
    }
    let body = json!({ "kind": "idle", "spans": DISPATCHERS });
    let begun = Instant::now();
    api.ask(Method::PUT, "/v1/feeds/idle", Some(body)).await?;
    until_settled(&api, "idle", DISPATCHERS).await?;
    report.line("dispatchers_10k_started", begun.elapsed().as_secs_f64(), "s", Bar::None);
    for others in &WORKERS[1..] {
        api.intend(others, "active").await?;
    }
    let before = stage.cpu_seconds();
    let begun = Instant::now();
    api.drain("n1").await?;
    let ended = api.until_drained("n1", ASK_EVERY).await?;
    let took = begun.elapsed().as_secs_f64();
    ensure!(ended.done >= DISPATCHERS, "{} of {DISPATCHERS} moved", ended.done);
    let after = until_settled(&api, "idle", DISPATCHERS).await?;
    ensure!(!after.dispatchers.contains_key("n1"), "n1 has some left: {:?}", after.dispatchers);
    report.line("dispatchers_10k_off_a_node_cpu", stage.cpu_seconds() - before, "cpu s", Bar::None);
    report.line(OFF_A_NODE, took, "s", Bar::AtMost(10.0));
    report.line("dispatchers_10k_machine_load", machine_load(), "", Bar::None);
    Ok(())
}

pub async fn gap(report: &mut Report) -> anyhow::Result<()> {
    let dirs = tempfile::Builder::new().prefix("tidegate-bench-feed-").tempdir()?;
    let (logs, copies) = (dirs.path().join("logs"), dirs.path().join("copies"));
    fs::create_dir_all(&logs)?;
    fs::create_dir_all(&copies)?;
    let stop = CancellationToken::new();
    let _ends = stop.clone().drop_guard();
    let growing = std::thread::spawn({
        let (logs, stop) = (logs.clone(), stop.clone());
        move || grow(&logs, &stop)
    });
    let gaps = gaps_of(json!({ "kind": "log", "path": logs }), &copies, LOGS, &stop).await?;
    growing.join().ok().context("the writer of the logs")??;
    tell(report, "log", GAP, &gaps, Bar::AtMost(250.0));
    Ok(())
}

/// The same for tables, into files as well: how long their rows stand still is seen there.
pub async fn gap_postgres(report: &mut Report) -> anyhow::Result<()> {
    let dirs = tempfile::Builder::new().prefix("tidegate-bench-feed-").tempdir()?;
    let copies = dirs.path().join("copies");
    fs::create_dir_all(&copies)?;
    let stop = CancellationToken::new();
    let _ends = stop.clone().drop_guard();
    let server = pipelines::testing::Postgres::start().await;
    let client = server.create("source").await;
    let names: Vec<String> = (0..TABLES).map(|table| format!("t{table:02}")).collect();
    for name in &names {
        client.batch_execute(&format!("CREATE TABLE {name} (id bigserial PRIMARY KEY, a int)")).await?;
    }
    client.batch_execute(&format!("CREATE PUBLICATION tide FOR TABLE {}", names.join(", "))).await?;
    let growing = tokio::spawn({
        let stop = stop.clone();
        async move {
            while !stop.is_cancelled() {
                for name in &names {
                    client.batch_execute(&format!("INSERT INTO {name} (a) VALUES (1)")).await?;
                }
                tokio::time::sleep(GROWS_EVERY).await;
            }
            anyhow::Ok(())
        }
    });
    let source = json!({ "kind": "postgres", "url": server.url("source"), "publication": "tide" });
    let gaps = gaps_of(source, &copies, TABLES, &stop).await?;
    growing.await??;
    tell(report, "postgres", GAP_POSTGRES, &gaps, Bar::None);
    Ok(())
}

/// Milliseconds for which rows of each span stood still while each node in turn was drained.
async fn gaps_of(
    source: serde_json::Value,
    copies: &Path,
    spans: usize,
    stop: &CancellationToken,
) -> anyhow::Result<Vec<f64>> {
    let stage = Stage::start(&SETUPS, "kind = \"embedded\"").await?;
    let api = stage.api("control")?;
    let mut looked = Instant::now();
    let body = json!({ "source": source, "sink": { "kind": "file", "path": copies } });
    api.ask(Method::PUT, "/v1/feeds/gap", Some(body)).await?;
    until_settled(&api, "gap", spans as u64).await?;
    let watching = std::thread::spawn({
        let (stop, dir) = (stop.clone(), copies.join("gap"));
        move || watch(&dir, &stop)
    });
    for node in WORKERS {
        api.drain(node).await?;
        api.until_drained(node, ASK_EVERY).await?;
        looked = Instant::now();
        until_settled(&api, "gap", spans as u64).await?;
        api.intend(node, "active").await?;
    }
    tokio::time::sleep(SETTLE.saturating_sub(looked.elapsed())).await;
    stop.cancel();
    watching.join().ok().context("the watcher of the files")?
}

fn tell(report: &mut Report, what: &str, p99: &str, gaps: &[f64], bar: Bar) {
    report.line(&format!("hand_over_gap_{what}_moves"), gaps.len() as f64, "", Bar::None);
    report.line(&format!("hand_over_gap_{what}_p50"), share(gaps, 0.50), "ms", Bar::None);
    report.line(p99, share(gaps, 0.99), "ms", bar);
    report.line(&format!("hand_over_gap_{what}_worst"), share(gaps, 1.0), "ms", Bar::None);
    report.line(&format!("hand_over_gap_{what}_machine_load"), machine_load(), "", Bar::None);
}

/// Every log a line, again and again.
fn grow(logs: &Path, stop: &CancellationToken) -> anyhow::Result<()> {
    let mut files: Vec<File> = (0..LOGS)
        .map(|log| File::options().create(true).append(true).open(logs.join(format!("log-{log:02}.log"))))
        .collect::<std::io::Result<_>>()?;
    for line in 0u64.. {
        for file in &mut files {
            file.write_all(format!("{{\"line\":{line}}}\n").as_bytes())?;
        }
        if stop.is_cancelled() {
            break;
        }
        std::thread::sleep(GROWS_EVERY);
    }
    Ok(())
}

/// For every segment that follows another, the milliseconds from the last write of that to its own first row.
fn watch(dir: &Path, stop: &CancellationToken) -> anyhow::Result<Vec<f64>> {
    let mut first_rows: BTreeMap<PathBuf, BTreeMap<PathBuf, Option<SystemTime>>> = BTreeMap::new();
    let mut begun = true;
    while !stop.is_cancelled() {
        for span in fs::read_dir(dir)? {
            let span = span?.path();
            let seen = first_rows.entry(span.clone()).or_default();
            for segment in fs::read_dir(&span)?.flatten().map(|file| file.path()) {
                let is_segment = segment.extension().is_some_and(|ending| ending == "ndjson");
                if is_segment && !seen.contains_key(&segment) && has_rows(&segment) {
                    seen.insert(segment, (!begun).then(SystemTime::now));
                }
            }
        }
        begun = false;
        std::thread::sleep(LOOK_EVERY);
    }
    let mut gaps = Vec::new();
    for segments in first_rows.values() {
        let pairs = segments.iter().zip(segments.iter().skip(1));
        for ((before, _), (_, first_row)) in pairs {
            let Some(first_row) = first_row else { continue };
            let last = fs::metadata(before)?.modified()?;
            gaps.push(first_row.duration_since(last).unwrap_or_default().as_secs_f64() * 1000.0);
        }
    }
    Ok(gaps)
}

/// More than the header.
fn has_rows(segment: &Path) -> bool {
    fs::read(segment).is_ok_and(|bytes| bytes.iter().filter(|byte| **byte == b'\n').count() > 1)
}
