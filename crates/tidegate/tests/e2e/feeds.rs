//! Feeds between real daemons: whatever happens to nodes and coordinators, every row is in the sink once
//! and in order.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use model::{FeedName, SpanName};
use pipelines::file;
use protocol::Timing;
use reqwest::Method;
use rustix::process::Signal;
use server::view::FeedView;

use crate::harness::{Cluster, Pace, until};

const FEED: &str = "journal";
const SPANS: usize = 6;

/// A directory of logs that somebody writes to all the while.
struct Logs {
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<u64>>,
}

fn span(number: usize) -> String {
    format!("part-{number}")
}

impl Logs {
    /// Lines are numbered in every file.
    fn begin(dir: PathBuf) -> Logs {
        std::fs::create_dir_all(&dir).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, into) = (stop.clone(), dir.clone());
        let writer = std::thread::spawn(move || {
            let open = |number| {
                let path = into.join(format!("{}.log", span(number)));
                OpenOptions::new().create(true).append(true).open(path).unwrap()
            };
            let mut files: Vec<_> = (0..SPANS).map(open).collect();
            let mut lines = 0;
            while !stopped.load(Ordering::Relaxed) {
                for file in &mut files {
                    writeln!(file, "{{\"line\":{lines}}}").unwrap();
                }
                lines += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            lines
        });
        Logs { dir, stop, writer: Some(writer) }
    }

    /// How many lines each file has in the end.
    fn end(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.writer.take().expect("it ends once").join().unwrap()
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Stage {
    cluster: Cluster,
    logs: Logs,
    out: PathBuf,
}

impl Stage {
    /// A feed over `workers` nodes, every span of which has begun.
    async fn start(workers: usize) -> Stage {
        let cluster = Cluster::start(workers, Pace::Quick).await;
        let logs = Logs::begin(cluster.dir().join("logs"));
        let out = cluster.dir().join("out");
        std::fs::create_dir_all(&out).unwrap();
        let stage = Stage { cluster, logs, out };
        let said = stage.cluster.apply(&stage.file()).await;
        assert_eq!(said, "journal created (feed)\n");
        stage.until_all_run("the feed to run").await;
        stage
    }

    fn file(&self) -> String {
        let (from, to) = (self.logs.dir.display(), self.out.display());
        format!(
            "[[feed]]\nname = \"{FEED}\"\nsource = {{ kind = \"log\", path = \"{from}\" }}\n\
             sink = {{ kind = \"file\", path = \"{to}\" }}\n"
        )
    }

    async fn feed(&self) -> FeedView {
        until("the feed to be shown", async || self.cluster.api.feed(FEED).await).await
    }

    async fn until_feed(&self, what: &str, holds: impl Fn(&FeedView) -> bool) -> FeedView {
        until(what, async || {
            let feed = self.cluster.api.feed(FEED).await?;
            if holds(&feed) { Ok(feed) } else { Err(format!("{feed:?}")) }
        })
        .await
    }

    async fn until_all_run(&self, what: &str) -> FeedView {
        self.until_feed(what, |feed| {
            let running: u32 = feed.dispatchers.values().sum();
            let works = feed.maintainer.as_ref().is_some_and(|maintainer| maintainer.phase == "working");
            works && running as usize == SPANS && feed.moving == 0 && feed.absent == 0
        })
        .await
    }

    /// Every span has more rows than it had.
    async fn until_rows_come(&self) {
        let before = self.rows();
        until("rows to come", async || {
            let now = self.rows();
            let more = now.iter().all(|(span, rows)| rows.len() > before[span].len() + 5);
            if more { Ok(()) } else { Err(format!("{:?}", counts(&now))) }
        })
        .await;
    }

    fn rows(&self) -> BTreeMap<String, Vec<u64>> {
        (0..SPANS).map(span).map(|span| (span.clone(), rows(&self.out, &span))).collect()
    }

    /// What was written is in the sink: every line once, in order.
    async fn until_complete(&mut self) {
        let lines = self.logs.end();
        until("all rows to be in the sink", async || {
            let now = self.rows();
            let all = now.values().all(|rows| rows.len() as u64 >= lines);
            if all { Ok(()) } else { Err(format!("{:?} of {lines}", counts(&now))) }
        })
        .await;
        for (span, rows) in self.rows() {
            let expected: Vec<u64> = (0..lines).collect();
            assert!(rows == expected, "{span}: {rows:?}");
        }
    }
}

fn counts(rows: &BTreeMap<String, Vec<u64>>) -> BTreeMap<&str, usize> {
    rows.iter().map(|(span, rows)| (span.as_str(), rows.len())).collect()
}

fn rows(out: &Path, span: &str) -> Vec<u64> {
    let dir = file::span_dir(out, &FeedName::new(FEED), &SpanName::new(span));
    if !dir.exists() {
        return Vec::new();
    }
    let rows = file::read(&dir).unwrap();
    let number = |row: pipelines::rows::Row| {
        let value: serde_json::Value = serde_json::from_str(row.value.get()).unwrap();
        value["line"].as_u64().unwrap()
    };
    rows.map(|row| number(row.unwrap())).collect()
}

/// A node that runs some of it, and is not the maintainer's.
fn host_of(feed: &FeedView) -> String {
    let maintainer = &feed.maintainer.as_ref().unwrap().node;
    feed.dispatchers.keys().find(|node| *node != maintainer).unwrap().clone()
}

fn is_off(feed: &FeedView, node: &str) -> bool {
    let maintained = feed.maintainer.as_ref().is_some_and(|maintainer| maintainer.node == node);
    !maintained && feed.dispatchers.get(node).copied().unwrap_or(0) == 0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_moves_dispatchers_and_the_maintainer_and_every_row_arrives_once() {
    let mut stage = Stage::start(3).await;
    stage.until_rows_come().await;
    let node = stage.feed().await.maintainer.unwrap().node;
    let path = format!("/v1/nodes/{node}/drain");
    let (status, said) = stage.cluster.api.ask(Method::PUT, &path, Some("{}")).await.unwrap();
    assert!(status < 300, "{status} {said}");
    stage.until_feed("the node to be empty", |feed| is_off(feed, &node)).await;
    stage.until_all_run("the feed to run elsewhere").await;
    stage.until_rows_come().await;
    stage.until_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_in_mid_stream_loses_and_doubles_nothing() {
    let mut stage = Stage::start(3).await;
    stage.until_rows_come().await;
    let host = host_of(&stage.feed().await);
    stage.cluster.daemon_mut(&host).kill();
    stage.until_feed("its dispatchers to run elsewhere", |feed| is_off(feed, &host)).await;
    stage.until_all_run("the feed to run on two nodes").await;
    let maintainer = stage.feed().await.maintainer.unwrap().node;
    stage.cluster.daemon_mut(&maintainer).kill();
    stage.cluster.daemon_mut(&host).start(&[]);
    stage.until_feed("another maintainer", |feed| is_off(feed, &maintainer)).await;
    stage.until_all_run("the feed to run again").await;
    stage.until_rows_come().await;
    stage.until_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_goes_on_without_a_coordinator_and_with_the_next() {
    let mut stage = Stage::start(3).await;
    stage.until_rows_come().await;
    stage.cluster.daemon_mut("control").kill();
    stage.until_rows_come().await;
    stage.cluster.daemon_mut("control").start(&[]);
    stage.cluster.until_up().await;
    stage.until_all_run("the feed to be known again").await;
    stage.until_rows_come().await;
    stage.until_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_suspended_beyond_its_fence_writes_nothing_twice() {
    let mut stage = Stage::start(3).await;
    stage.until_rows_come().await;
    let host = host_of(&stage.feed().await);
    stage.cluster.daemon(&host).suspend().await;
    stage.cluster.api.until_health(&host, "offline").await;
    stage.until_feed("its dispatchers to run elsewhere", |feed| is_off(feed, &host)).await;
    stage.until_all_run("the feed to run on two nodes").await;
    stage.until_rows_come().await;
    stage.cluster.daemon(&host).signal(Signal::CONT);
    stage.cluster.api.until_health(&host, "up").await;
    stage.until_rows_come().await;
    stage.until_complete().await;
    assert!(Timing::DEV.fence_after < Timing::DEV.offline_after);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_told_to_stop_hands_its_dispatchers_over_and_others_go_on() {
    let mut stage = Stage::start(3).await;
    stage.until_rows_come().await;
    let node = stage.feed().await.maintainer.unwrap().node;
    let ended = stage.cluster.daemon_mut(&node).terminate().await;
    assert!(ended.success(), "{ended:?}");
    stage.until_feed("others to have it", |feed| is_off(feed, &node)).await;
    stage.until_all_run("the feed to run on two nodes").await;
    stage.until_rows_come().await;
    stage.until_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_is_paused_resumed_and_removed_with_nothing_left_behind() {
    let mut stage = Stage::start(2).await;
    stage.until_rows_come().await;
    let done = stage.cluster.run(&["feed", "pause", FEED]).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "journal paused; its dispatchers are stopping\n"));
    let stopped = |feed: &FeedView| feed.state == "paused" && feed.dispatchers.values().sum::<u32>() == 0;
    stage.until_feed("its dispatchers to stop", stopped).await;
    let before = stage.rows();
    let done = stage.cluster.run(&["feed", "resume", FEED]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    stage.until_all_run("it to run again").await;
    stage.until_rows_come().await;
    let after = stage.rows();
    assert!(before.iter().all(|(span, rows)| after[span].starts_with(rows)));
    let shown = stage.cluster.run(&["feed", "status", FEED]).await;
    assert!(shown.stdout.starts_with("feed/journal: running, maintained on n"), "{}", shown.stdout);
    let listed = stage.cluster.run(&["status"]).await;
    assert!(listed.stdout.contains("journal"), "{}", listed.stdout);
    stage.until_complete().await;

    let done = stage.cluster.run(&["remove", "feed/journal"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "journal removed; its dispatchers are stopping\n"));
    until("it to be gone", async || {
        let feeds = stage.cluster.api.feeds().await?;
        if feeds.is_empty() { Ok(()) } else { Err(format!("{feeds:?}")) }
    })
    .await;
    let left: Vec<_> = std::fs::read_dir(&stage.out).unwrap().flatten().map(|entry| entry.path()).collect();
    let own: Vec<_> = left.iter().filter(|path| path.ends_with(format!(".tidegate-{FEED}"))).collect();
    assert!(own.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_drains_a_capture_is_told_what_is_left_until_the_daemon_has_ended() {
    let mut stage = Stage::start(3).await;
    stage.until_rows_come().await;
    let feed = stage.feed().await;
    let (node, other) = (feed.maintainer.as_ref().unwrap().node.clone(), host_of(&feed));
    // Asked of a daemon that does not decide: it knows who does.
    let path = format!("/api/v2/captures/{node}/drain");
    let (status, said) = stage.cluster.api_of(&other).ask(Method::PUT, &path, None).await.unwrap();
    assert_eq!((status, &said["current_maintainer_count"]), (202, &1.into()), "{said}");
    assert!(said["current_dispatcher_count"].as_u64() > Some(0), "{said}");
    let left = until("the drain to end", async || {
        let (status, said) = stage.cluster.api.ask(Method::GET, &path, None).await?;
        if (status, &said["is_draining"]) == (200, &false.into()) { Ok(said) } else { Err(said.to_string()) }
    });
    let left = left.await;
    assert_eq!(left["remaining_maintainer_count"], 0, "{left}");
    assert_eq!(left["remaining_dispatcher_count"], serde_json::json!({}), "{left}");
    let ended = stage.cluster.daemon_mut(&node).ended().await;
    assert!(ended.success(), "{ended:?}");
    let (_, drain) =
        stage.cluster.api.ask(Method::GET, &format!("/v1/nodes/{node}/drain"), None).await.unwrap();
    assert_eq!(drain["state"], "drained", "{drain}");
    let feed = stage.until_all_run("the feed to run elsewhere").await;
    assert!(is_off(&feed, &node), "{feed:?}");
    stage.until_rows_come().await;
    stage.cluster.daemon_mut(&node).start(&[]);
    stage.cluster.until_up().await;
    until("it to take work again", async || {
        let shown = stage.cluster.api.node(&node).await?;
        if shown.state == "active" { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
    stage.until_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatchers_are_moved_by_hand_and_not_to_a_node_that_is_closed() {
    let mut stage = Stage::start(2).await;
    stage.until_rows_come().await;
    let feed = stage.feed().await;
    let (closed, to) = (feed.maintainer.as_ref().unwrap().node.clone(), host_of(&feed));
    for number in 0..SPANS {
        let done = stage.cluster.run(&["feed", "move", FEED, &span(number), "--to", &to]).await;
        let said = format!("journal: {} moves to {to}\n", span(number));
        assert_eq!((done.code, done.stdout), (0, said), "{}", done.stderr);
    }
    stage.until_feed("all to be there", |feed| feed.dispatchers.get(&to) == Some(&(SPANS as u32))).await;
    stage.until_rows_come().await;
    let done = stage.cluster.run(&["feed", "move", FEED, "nothing", "--to", &to]).await;
    assert_eq!((done.code, done.stdout.as_str()), (1, ""));
    assert!(done.stderr.contains("feed journal has no span nothing"), "{}", done.stderr);
    let path = format!("/v1/nodes/{closed}/drain");
    let (status, said) = stage.cluster.api.ask(Method::PUT, &path, Some("{}")).await.unwrap();
    assert!(status < 300, "{status} {said}");
    let body = format!("{{\"span\": \"{}\", \"node\": \"{closed}\"}}", span(0));
    let path = format!("/v1/feeds/{FEED}/move");
    let (status, said) = stage.cluster.api.ask(Method::POST, &path, Some(&body)).await.unwrap();
    assert_eq!((status, &said["error"]["code"]), (409, &"node_closed".into()), "{said}");
    stage.until_feed("the maintainer to leave", |feed| is_off(feed, &closed)).await;
    stage.until_complete().await;
}
