//! Ten thousand workers and one coordinator, over ten thousand real streams: what it costs when nothing happens, and
//! how long a hundred of them take to drain.

use std::{
    collections::BTreeMap,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use reqwest::Method;
use serde_json::json;
use server::view::{DrainView, ServiceView};

use super::{
    crowd::{Crowd, name},
    share,
    stage::{Api, Setup, Stage, cpu_seconds, until},
};
use crate::report::{Bar, Report};

pub const NAMES: [&str; 4] = [
    "workers_10k_drain_100",
    "workers_10k_idle_cpu",
    "workers_10k_memory",
    "workers_10k_commit_p99_draining",
];

const WORKERS: usize = 10_000;
const SERVICES: usize = 100;
const INSTANCES_EACH: usize = 1_000;
const DRAINED: usize = 100;
/// How long it is watched while nothing happens.
const QUIET: Duration = Duration::from_secs(10);
/// Nodes that have just come get their share only after this; it is not what is measured.
const SETTLE: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_millis(100);

const SETUPS: [Setup; 1] = [Setup { name: "control", roles: &["coordinator"] }];

pub async fn run(report: &mut Report) -> anyhow::Result<()> {
    let store = format!("kind = \"embedded\"\n[drain]\nnodes_at_once = {DRAINED}");
    let stage = Stage::start(&SETUPS, &store).await?;
    let api = stage.api("control")?;
    let watch = Watch { api: api.clone(), pid: stage.pid("control")? };

    let begun = Instant::now();
    let crowd = Crowd::gather(WORKERS, &stage.rpc("control")?);
    until("all workers to be registered", ASK_EVERY, async || {
        Ok((crowd.seen.registered.load(Relaxed) >= WORKERS).then_some(()))
    })
    .await
    .with_context(|| format!("{} are", crowd.seen.registered.load(Relaxed)))?;
    report.line("workers_10k_registered", begun.elapsed().as_secs_f64(), "s", Bar::None);
    report.line("workers_10k_dialled_again", crowd.seen.again.load(Relaxed) as f64, "times", Bar::None);

    let begun = Instant::now();
    for n in 0..SERVICES {
        let service = json!({
            "count": INSTANCES_EACH, "memory": "16MiB", "cpu": 10, "command": ["played"],
            "migrate": { "max_parallel": INSTANCES_EACH, "min_healthy_time": "0s" },
            "update": { "max_parallel": INSTANCES_EACH },
        });
        api.put_service(&format!("service-{n:03}"), service).await?;
    }
    all_ready(&api).await?;
    report.line("workers_10k_100k_instances_ready", begun.elapsed().as_secs_f64(), "s", Bar::None);

    tokio::time::sleep(SETTLE).await;
    idle(report, &watch, &crowd).await?;
    drain(report, &watch, &crowd).await?;
    ensure!(crowd.seen.started.load(Relaxed) >= SERVICES * INSTANCES_EACH + DRAINED, "they were not moved");
    Ok(())
}

async fn all_ready(api: &Api) -> anyhow::Result<()> {
    for n in 0..SERVICES {
        let path = format!("/v1/services/service-{n:03}");
        until(&format!("service {n} to be ready"), ASK_EVERY, async || {
            let service: ServiceView = serde_json::from_value(api.ask(Method::GET, &path, None).await?)?;
            Ok((service.ready as usize == INSTANCES_EACH).then_some(()))
        })
        .await?;
    }
    Ok(())
}

async fn idle(report: &mut Report, watch: &Watch, crowd: &Crowd) -> anyhow::Result<()> {
    let (before, begun) = (watch.look().await?, Instant::now());
    crowd.seen.take_answers();
    let answered = crowd.seen.answered.load(Relaxed);
    tokio::time::sleep(QUIET).await;
    let (after, took) = (watch.look().await?, begun.elapsed().as_secs_f64());
    let answers = crowd.seen.take_answers();
    let rate = (crowd.seen.answered.load(Relaxed) - answered) as f64 / took;
    report.line("workers_10k_heartbeats", rate, "/s", Bar::None);
    report.line("workers_10k_heartbeat_answered_p50", share(&answers, 0.5), "ms", Bar::None);
    report.line("workers_10k_heartbeat_answered_p99", share(&answers, 0.99), "ms", Bar::None);
    report.line(NAMES[1], 100.0 * (after.cpu - before.cpu) / took, "% of a core", Bar::None);
    report.line(NAMES[2], after.memory / f64::from(1 << 20), "MiB", Bar::None);
    report.line("workers_10k_commits_while_idle", after.commits.count - before.commits.count, "", Bar::None);
    Ok(())
}

async fn drain(report: &mut Report, watch: &Watch, crowd: &Crowd) -> anyhow::Result<()> {
    // Every hundredth, so that they are spread over the services.
    let nodes: Vec<String> = (0..DRAINED).map(|n| name(n * (WORKERS / DRAINED))).collect();
    let (before, stopped) = (watch.look().await?, crowd.seen.stopped.load(Relaxed));
    let begun = Instant::now();
    let answer = watch.api.ask(Method::POST, "/v1/drains", Some(json!({ "nodes": nodes }))).await?;
    let asked = begun.elapsed().as_secs_f64();
    let epoch = answer["epoch"].as_u64().context("the epoch of the drain")?;
    let path = format!("/v1/drains/{epoch}");
    let ended: DrainView = until("all of them to be drained", ASK_EVERY, async || {
        let drain: DrainView = serde_json::from_value(watch.api.ask(Method::GET, &path, None).await?)?;
        Ok(Some(drain).filter(|drain| drain.ended_at.is_some()))
    })
    .await?;
    let took = begun.elapsed().as_secs_f64();
    let after = watch.look().await?;
    ensure!(ended.state == "drained", "the drain ended {}", ended.state);
    let moved = crowd.seen.stopped.load(Relaxed) - stopped;
    let commits = after.commits.since(&before.commits);
    report.line("workers_10k_drain_100_accepted", asked, "s", Bar::None);
    report.line("workers_10k_drain_100_instances", moved as f64, "instances", Bar::None);
    report.line(NAMES[0], took, "s", Bar::None);
    report.line(
        "workers_10k_drain_100_cpu",
        100.0 * (after.cpu - before.cpu) / took,
        "% of a core",
        Bar::None,
    );
    report.line("workers_10k_commit_p50_draining", commits.share(0.5) * 1000.0, "ms", Bar::None);
    report.line(NAMES[3], commits.share(0.99) * 1000.0, "ms", Bar::None);
    Ok(())
}

/// The coordinator's process, seen from outside.
struct Watch {
    api: Api,
    pid: u32,
}

struct Look {
    cpu: f64,
    memory: f64,
    commits: Histogram,
}

impl Watch {
    async fn look(&self) -> anyhow::Result<Look> {
        let metrics = self.api.text("/metrics").await?;
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.pid))?;
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
        Ok(Look {
            cpu: cpu_seconds(self.pid).context("the coordinator is gone")?,
            memory: pages.context("the coordinator's memory")? * 4096.0,
            commits: Histogram::read(&metrics, "tidegate_commit_seconds"),
        })
    }
}

/// As Prometheus has them.
struct Histogram {
    count: f64,
    /// How many took at most so many seconds, by the bits of the bound: all are positive.
    buckets: BTreeMap<u64, f64>,
}

impl Histogram {
    fn read(metrics: &str, name: &str) -> Histogram {
        let mut histogram = Histogram { count: 0.0, buckets: BTreeMap::new() };
        for line in metrics.lines().filter_map(|line| line.strip_prefix(name)) {
            let Some((what, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let bound = what.strip_prefix("_bucket{le=\"").and_then(|rest| rest.strip_suffix("\"}"));
            match bound.map(str::parse::<f64>) {
                Some(Ok(bound)) => drop(histogram.buckets.insert(bound.to_bits(), value)),
                _ if what == "_count" => histogram.count = value,
                _ => {}
            }
        }
        histogram
    }

    fn since(&self, before: &Histogram) -> Histogram {
        let earlier = |bound: &u64| before.buckets.get(bound).copied().unwrap_or(0.0);
        let buckets = self.buckets.iter().map(|(bound, count)| (*bound, count - earlier(bound)));
        Histogram { count: self.count - before.count, buckets: buckets.collect() }
    }

    /// Within a bucket they are taken to be spread evenly.
    fn share(&self, share: f64) -> f64 {
        let wanted = self.count * share;
        let (mut from, mut below) = (0.0, 0.0);
        for (bound, count) in &self.buckets {
            let bound = f64::from_bits(*bound);
            if *count >= wanted && *count > below {
                return from + (bound - from) * (wanted - below) / (count - below);
            }
            (from, below) = (bound, *count);
        }
        from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_found_within_its_bucket() {
        let text = "a_count 4\na_bucket{le=\"0.1\"} 0\na_bucket{le=\"0.3\"} 4\na_bucket{le=\"+Inf\"} 4\n";
        let histogram = Histogram::read(text, "a");
        assert!((histogram.share(0.5) - 0.2).abs() < 1e-9);
        let later = Histogram::read("a_count 5\na_bucket{le=\"0.1\"} 1\na_bucket{le=\"0.3\"} 5\n", "a");
        assert!(later.since(&histogram).share(0.5) < 0.1);
    }
}
