//! A feed by a command between real daemons: the example of the documents, as its file says.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use reqwest::Method;
use server::view::FeedView;

use crate::harness::{
    Cluster, Pace,
    net::say_loudly,
    process::{Process, below},
    until,
};

/// As in the example's file.
const FEED: &str = "lines";
const SPANS: usize = 6;

fn span(number: usize) -> String {
    format!("part-{number}")
}

/// Files that somebody writes numbered lines to.
struct Lines {
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<u64>>,
}

impl Lines {
    fn begin(dir: PathBuf) -> Lines {
        let open = move |number| {
            let path = dir.join(format!("{}.txt", span(number)));
            OpenOptions::new().create(true).append(true).open(path).unwrap()
        };
        let mut files: Vec<_> = (0..SPANS).map(open).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let writer = std::thread::spawn(move || {
            let mut lines = 0;
            while !stopped.load(Ordering::Relaxed) {
                files.iter_mut().for_each(|file| writeln!(file, "line {lines}").unwrap());
                lines += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            lines
        });
        Lines { stop, writer: Some(writer) }
    }

    /// How many lines each file has in the end.
    fn end(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.writer.take().expect("it ends once").join().unwrap()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Stage {
    cluster: Cluster,
    lines: Lines,
    out: PathBuf,
}

/// The example's file with directories of our own, or `None` where nothing can run it.
fn example(from: &Path, to: &Path) -> Option<String> {
    let works = Command::new("python3").args(["-c", "import fcntl, json, select"]).output();
    if !works.is_ok_and(|done| done.status.success()) {
        say_loudly("SKIPPED: there is no python3, and the example of a command is written in it");
        return None;
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().unwrap();
    let text = std::fs::read_to_string(examples.join("feed_command.toml")).unwrap();
    let program = examples.join("feed_command.py");
    let text = text
        .replace("examples/feed_command.py", program.to_str().unwrap())
        .replace("/tmp/tidegate-feed/in", from.to_str().unwrap())
        .replace("/tmp/tidegate-feed/out", to.to_str().unwrap());
    assert!(text.contains(program.to_str().unwrap()) && text.contains(FEED), "{text}");
    Some(text)
}

impl Stage {
    async fn start() -> Option<Stage> {
        let cluster = Cluster::start(3, Pace::Quick).await;
        let (from, out) = (cluster.dir().join("in"), cluster.dir().join("out"));
        let text = example(&from, &out)?;
        std::fs::create_dir_all(&from).unwrap();
        std::fs::create_dir_all(&out).unwrap();
        let lines = Lines::begin(from);
        let stage = Stage { cluster, lines, out };
        assert_eq!(stage.cluster.apply(&text).await, "lines created (feed)\n");
        stage.until_all_run("the feed to run").await;
        stage.until_lines_come().await;
        Some(stage)
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

    fn written(&self) -> BTreeMap<String, Vec<String>> {
        let lines = |span: &str| {
            let text = std::fs::read_to_string(self.out.join(format!("{span}.txt"))).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        };
        (0..SPANS).map(span).map(|span| (span.clone(), lines(&span))).collect()
    }

    /// Every span has more lines than it had.
    async fn until_lines_come(&self) {
        let before = self.written();
        until("lines to come", async || {
            let now = self.written();
            let counts: Vec<usize> = now.values().map(Vec::len).collect();
            let more = now.iter().all(|(span, lines)| lines.len() > before[span].len() + 5);
            if more { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .await;
    }

    /// What was written is there: every line once, in order.
    async fn until_complete(&mut self) {
        let count = self.lines.end();
        let expected: Vec<String> = (0..count).map(|line| format!("line {line}")).collect();
        until("all lines to be there", async || {
            let now = self.written();
            let all = now.values().all(|lines| lines.len() >= expected.len());
            if all { Ok(()) } else { Err(format!("{:?}", now.values().map(Vec::len).collect::<Vec<_>>())) }
        })
        .await;
        for (span, lines) in self.written() {
            assert!(lines == expected, "{span}: {lines:?}");
        }
    }

    /// What a daemon has started: the guard of the command, and the command.
    fn started_by(&self, node: &str) -> Vec<Process> {
        below(self.cluster.daemon(node).process())
    }
}

fn is_off(feed: &FeedView, node: &str) -> bool {
    let maintained = feed.maintainer.as_ref().is_some_and(|maintainer| maintainer.node == node);
    !maintained && feed.dispatchers.get(node).copied().unwrap_or(0) == 0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_moves_spans_from_command_to_command_and_every_line_arrives_once() {
    let Some(mut stage) = Stage::start().await else { return };
    let node = stage.until_all_run("the feed to run").await.maintainer.unwrap().node;
    assert!(stage.started_by(&node).len() >= 2, "a guard and a command");
    let path = format!("/v1/nodes/{node}/drain");
    let (status, said) = stage.cluster.api.ask(Method::PUT, &path, Some("{}")).await.unwrap();
    assert!(status < 300, "{status} {said}");
    stage.until_feed("the node to be empty", |feed| is_off(feed, &node)).await;
    stage.until_all_run("the feed to run elsewhere").await;
    until("the command to be gone from the drained node", async || {
        let left = stage.started_by(&node);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    stage.until_lines_come().await;
    stage.until_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_dies_with_its_daemon_and_its_spans_go_on_elsewhere() {
    let Some(mut stage) = Stage::start().await else { return };
    let feed = stage.until_all_run("the feed to run").await;
    let maintainer = feed.maintainer.unwrap().node;
    let host = feed.dispatchers.keys().find(|node| **node != maintainer).unwrap().clone();
    let started = stage.started_by(&host);
    assert!(started.len() >= 2, "a guard and a command: {started:?}");
    stage.cluster.daemon_mut(&host).kill();
    until("its command to die", async || {
        let left: Vec<_> = started.iter().filter(|process| process.is_alive()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    stage.until_feed("its spans to run elsewhere", |feed| is_off(feed, &host)).await;
    stage.until_all_run("the feed to run on two nodes").await;
    stage.until_lines_come().await;
    stage.cluster.daemon_mut(&host).start(&[]);
    stage.until_feed("the node to have its share again", |feed| feed.dispatchers.contains_key(&host)).await;
    stage.until_all_run("the feed to run on three nodes").await;
    stage.until_lines_come().await;
    stage.until_complete().await;

    let done = stage.cluster.run(&["remove", "feed/lines"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    until("nothing of it to run anywhere", async || {
        let left: Vec<_> = ["n1", "n2", "n3"].iter().flat_map(|node| stage.started_by(node)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}
