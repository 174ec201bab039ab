//! The coordinator with ten thousand feeds of a hundred dispatchers each, when nothing happens.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use model::{
    Change, Cluster, ClusterId, Feed, FeedName, FeedSpec, FeedState, Maintainer, MaintainerEpoch, Meta,
    NodeId, PipelineSpec, SpanName, SpanSet, Term, Time,
};
use protocol::{
    Timing,
    coordinator::{ConnId, Coordinator, Input, Start},
    message::{EdgeReport, FeedReport, Heartbeat, Hello, SetRevision, Up, UpBody, feed::Phase},
};

use crate::{
    cluster::{node, resident_bytes},
    office::commit_all,
    report::{Bar, Report},
};

pub const NAMES: [&str; 3] = ["feeds_10k_memory", "feeds_10k_tick", "feeds_10k_heartbeat"];

const FEEDS: usize = 10_000;
/// Each feed has one dispatcher on each.
const NODES: usize = 100;
const ROUNDS: u64 = 20;
const TICKS_PER_ROUND: u64 = 20;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let before = resident_bytes();
    let mut office = Office::take();
    office.all_say_hello();
    // The first round acknowledges what was ordered with the welcome.
    let first = office.round(true);
    report.line("feeds_10k_first_heartbeats_worst", first.beat_worst, "ms", Bar::None);
    let bytes = resident_bytes().saturating_sub(before) as f64;
    let mut sum = Times::default();
    for _ in 0..ROUNDS {
        sum.add(&office.round(false));
    }
    report.line(NAMES[0], bytes / (1 << 20) as f64, "MiB", Bar::None);
    report.line("feeds_10k_memory_per_dispatcher", bytes / (FEEDS * NODES) as f64, "bytes", Bar::None);
    report.line(NAMES[1], sum.tick / sum.ticks, "ms", Bar::None);
    report.line(NAMES[2], sum.beat / sum.beats, "ms", Bar::None);
    report.line("feeds_10k_heartbeat_worst", sum.beat_worst, "ms", Bar::None);
    Ok(())
}

/// Milliseconds.
#[derive(Default)]
struct Times {
    tick: f64,
    ticks: f64,
    beat: f64,
    beats: f64,
    beat_worst: f64,
}

impl Times {
    fn add(&mut self, other: &Times) {
        (self.tick, self.ticks) = (self.tick + other.tick, self.ticks + other.ticks);
        (self.beat, self.beats) = (self.beat + other.beat, self.beats + other.beats);
        self.beat_worst = self.beat_worst.max(other.beat_worst);
    }
}

struct Office {
    coordinator: Coordinator,
    nodes: Vec<model::Node>,
    feeds: Vec<FeedName>,
    now: Time,
    seq: u64,
}

impl Office {
    fn take() -> Office {
        let mut cluster = Cluster::default();
        cluster.apply(&Change::Meta(Meta {
            cluster: ClusterId(1),
            instance_ids_reserved: 1,
            audit_next: 0,
            drain_epoch: 0,
            maintainer_epoch: FEEDS as u64,
        }));
        let nodes: Vec<model::Node> = (0..NODES).map(node).collect();
        for node in &nodes {
            cluster.apply(&Change::Node(node.clone()));
        }
        let feeds: Vec<FeedName> = (0..FEEDS).map(|n| FeedName::new(&format!("feed-{n:05}"))).collect();
        for (n, name) in feeds.iter().enumerate() {
            cluster.apply(&Change::Feed(feed(n, name)));
        }
        let start = Start {
            cluster,
            head: 1,
            term: Term(2),
            timing: Timing::default(),
            random: 1,
            candidate: "bench".into(),
            api: "127.0.0.1:7070".into(),
            drain: Default::default(),
            feeds: Default::default(),
        };
        let now = Time(60_000);
        let (mut coordinator, outputs) = Coordinator::new(start, now);
        commit_all(&mut coordinator, outputs, now);
        coordinator.handle(now, Input::OfficeHolds { until: Time(u64::MAX) });
        Office { coordinator, nodes, feeds, now, seq: 1 }
    }

    fn up(&mut self, node: usize, body: UpBody) -> f64 {
        let message = Up { seq: self.seq, body };
        let begun = Instant::now();
        let outputs = self.coordinator.handle(self.now, Input::Up { conn: ConnId(node as u64), message });
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        commit_all(&mut self.coordinator, outputs, self.now);
        took
    }

    fn all_say_hello(&mut self) {
        for n in 0..NODES {
            let node = &self.nodes[n];
            let hello = Hello {
                node: node.id.clone(),
                life: node.life,
                succeeds: None,
                roles: node.roles,
                labels: node.labels.clone(),
                capacity: node.capacity,
                host: node.host.clone(),
                api: node.api.clone(),
                rpc: "10.0.0.1:7071".into(),
                memory_caps: node.memory_caps.clone(),
                cluster: Some(ClusterId(1)),
                inventory: Vec::new(),
                edge: EdgeReport::default(),
            };
            self.up(n, UpBody::Hello(hello));
        }
    }

    /// A heartbeat of every node, and ticks between them.
    fn round(&mut self, reports: bool) -> Times {
        let mut times = Times::default();
        self.seq += 1;
        for n in 0..NODES {
            let beat = self.heartbeat(n, reports);
            let took = self.up(n, UpBody::Heartbeat(beat));
            (times.beat, times.beats) = (times.beat + took, times.beats + 1.0);
            times.beat_worst = times.beat_worst.max(took);
        }
        for _ in 0..TICKS_PER_ROUND {
            self.now = Time(self.now.0 + 50);
            let begun = Instant::now();
            let outputs = self.coordinator.handle(self.now, Input::Tick);
            times.tick += begun.elapsed().as_secs_f64() * 1000.0;
            times.ticks += 1.0;
            commit_all(&mut self.coordinator, outputs, self.now);
        }
        times
    }

    fn heartbeat(&self, n: usize, reports: bool) -> Heartbeat {
        let mine = || self.feeds.iter().enumerate().filter(|(feed, _)| reports && feed % NODES == n);
        Heartbeat {
            epoch: self.nodes[n].process_epoch,
            dispatchers: self.feeds.iter().map(|feed| (feed.clone(), 1)).collect(),
            feeds: mine().map(|(feed, name)| self.working(feed, name)).collect(),
            ..Heartbeat::default()
        }
    }

    fn working(&self, n: usize, feed: &FeedName) -> FeedReport {
        FeedReport {
            feed: feed.clone(),
            epoch: MaintainerEpoch(n as u64 + 1),
            number: 1,
            revision: SetRevision { term: Term(2), number: 1 },
            phase: Phase::Working,
            spans: None,
            checkpoint: None,
            dispatchers: self
                .nodes
                .iter()
                .map(|node| (node.id.clone(), 1))
                .collect::<BTreeMap<NodeId, u32>>(),
            moving: 0,
            moved: 0,
            absent: 0,
            held_back: None,
            asked: Vec::new(),
            troubles: Vec::new(),
            stuck: BTreeMap::new(),
        }
    }
}

fn feed(n: usize, name: &FeedName) -> Feed {
    let names: Arc<[SpanName]> = (0..NODES).map(|span| SpanName::new(&format!("span-{span:04}"))).collect();
    let spec =
        FeedSpec { pipeline: PipelineSpec::Idle { spans: NODES as u32 }, constraints: BTreeMap::new() };
    let (on, epoch) = (node(n % NODES), MaintainerEpoch(n as u64 + 1));
    Feed {
        name: name.clone(),
        spec: Arc::new(spec),
        state: FeedState::Running,
        spans: SpanSet { generation: 1, names },
        maintainer: Some(Maintainer {
            node: on.id,
            process: on.process_epoch,
            epoch,
            from: None,
            since: Time(1),
        }),
        epoch,
        checkpoint: None,
        created_at: Time(1),
        asked: Vec::new(),
    }
}
