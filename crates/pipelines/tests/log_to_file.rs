//! Logs to files, through the pipeline as a worker uses it, with real files.

#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use model::{Checkpoint, Code, FeedName, FeedSpec, PipelineSpec, SpanEpoch, SpanName, Time, spec};
use pipelines::file::{read, span_dir};
use pipelines::{Control, Host, Pipeline, Trouble};
use proptest::prelude::*;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Nothing here takes this long unless it hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

struct Stage {
    dir: TempDir,
}

/// One dispatcher under way, polled only when the test says so.
struct Dispatcher {
    run: Pin<Box<dyn Future<Output = Result<Checkpoint, Trouble>> + Send>>,
    progress: watch::Receiver<Option<Checkpoint>>,
    stop: CancellationToken,
}

impl Stage {
    fn new() -> Stage {
        Stage::within(tempfile::tempdir().unwrap())
    }

    /// In memory where that is possible: many orders are tried there, not a disk.
    fn quick() -> Stage {
        Stage::within(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn within(dir: TempDir) -> Stage {
        std::fs::create_dir(dir.path().join("in")).unwrap();
        std::fs::create_dir(dir.path().join("out")).unwrap();
        Stage { dir }
    }

    fn input(&self) -> PathBuf {
        self.dir.path().join("in")
    }

    fn output(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn append(&self, span: &str, text: &str) {
        let path = self.input().join(format!("{span}.log"));
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// As one node has it.
    fn pipeline(&self) -> Arc<dyn Pipeline> {
        pipeline(&self.input(), &self.output())
    }

    fn rows(&self, span: &str) -> Vec<String> {
        let dir = span_dir(&self.output(), &feed(), &SpanName::new(span));
        if !dir.is_dir() {
            return Vec::new();
        }
        read(&dir).unwrap().map(|row| row.unwrap().value.get().to_owned()).collect()
    }
}

fn feed() -> FeedName {
    FeedName::new("orders")
}

fn pipeline(input: &Path, output: &Path) -> Arc<dyn Pipeline> {
    let source = spec::Source::Log { path: input.display().to_string() };
    let sink = spec::Sink::File { path: output.display().to_string() };
    let pipeline = PipelineSpec::Copy { source, sink };
    let spec = FeedSpec { pipeline, constraints: Default::default() };
    pipelines::open(&feed(), &spec, &Host::default()).unwrap()
}

async fn start(
    pipeline: &Arc<dyn Pipeline>,
    span: &str,
    epoch: u64,
    from: Option<Checkpoint>,
) -> Result<Dispatcher, Trouble> {
    let prepared = pipeline.prepare(&SpanName::new(span)).await?;
    let (sender, progress) = watch::channel(None);
    let stop = CancellationToken::new();
    let control = Control { stop: stop.clone(), progress: sender };
    Ok(Dispatcher { run: prepared.run(SpanEpoch(epoch), from, control), progress, stop })
}

impl Dispatcher {
    /// Runs it until it has committed up to `position`, or ends.
    async fn until(&mut self, position: u64) -> Option<Result<Checkpoint, Trouble>> {
        let mut progress = self.progress.clone();
        let reached = progress.wait_for(|told| told.is_some_and(|told| told.position >= position));
        tokio::select! {
            ended = &mut self.run => Some(ended),
            reached = reached => { drop(reached); None }
            () = tokio::time::sleep(HANGS_AFTER) => panic!("position {position} was never reached"),
        }
    }

    async fn stopped(self) -> Result<Checkpoint, Trouble> {
        self.stop.cancel();
        tokio::time::timeout(HANGS_AFTER, self.run).await.expect("it stops")
    }

    async fn ended(&mut self) -> Result<Checkpoint, Trouble> {
        tokio::time::timeout(HANGS_AFTER, &mut self.run).await.expect("it ends")
    }

    /// Lets it go on for a number of wake-ups, as long as they come soon.
    async fn advance(&mut self, mut polls: u32) -> Option<Result<Checkpoint, Trouble>> {
        let stretch = std::future::poll_fn(|context| match self.run.as_mut().poll(context) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => {
                polls -= 1;
                Poll::Pending
            }
        });
        tokio::time::timeout(Duration::from_millis(20), stretch).await.ok().flatten()
    }
}

#[tokio::test]
async fn lines_arrive_once_each_in_order_over_a_hand_over() {
    let stage = Stage::new();
    stage.append("a", "{\"n\":1}\nplain text\n");
    let (node_1, node_2) = (stage.pipeline(), stage.pipeline());
    assert_eq!(node_1.look().await.unwrap().spans, [SpanName::new("a")]);
    let mut first = start(&node_1, "a", 1, None).await.unwrap();
    assert!(first.until(19).await.is_none());
    stage.append("a", "3\n");
    assert!(first.until(21).await.is_none());
    let done = first.stopped().await.unwrap();
    assert_eq!(done.position, 21);
    stage.append("a", "4\n");
    let mut second = start(&node_2, "a", 2, Some(done)).await.unwrap();
    assert!(second.until(23).await.is_none());
    let last = second.stopped().await.unwrap();
    assert!(last.position == 23 && last.at >= done.at, "{last:?}");
    assert_eq!(stage.rows("a"), ["{\"n\":1}", "\"plain text\"", "3", "4"]);
}

#[tokio::test]
async fn a_line_is_not_read_before_its_newline_is_there() {
    let stage = Stage::new();
    stage.append("a", "1\n{\"half\":");
    let node = stage.pipeline();
    node.look().await.unwrap();
    let mut dispatcher = start(&node, "a", 1, None).await.unwrap();
    assert!(dispatcher.until(2).await.is_none());
    // Looked at again and again, it is not there; that it was looked at is said.
    let before = dispatcher.progress.borrow().unwrap().at;
    let mut progress = dispatcher.progress.clone();
    tokio::select! {
        ended = &mut dispatcher.run => panic!("{ended:?}"),
        told = progress.wait_for(|told| told.is_some_and(|told| told.at > before)) => {
            assert_eq!(told.unwrap().unwrap().position, 2);
        }
    }
    assert_eq!(stage.rows("a"), ["1"]);
    stage.append("a", "2}\n");
    assert!(dispatcher.until(13).await.is_none());
    assert_eq!(stage.rows("a"), ["1", "{\"half\":2}"]);
}

#[tokio::test]
async fn the_sink_is_believed_whatever_a_start_is_told() {
    let stage = Stage::new();
    stage.append("a", "1\n2\n3\n");
    let node = stage.pipeline();
    node.look().await.unwrap();
    let mut first = start(&node, "a", 1, None).await.unwrap();
    assert!(first.until(6).await.is_none());
    drop(first);
    stage.append("a", "4\n");
    for (epoch, told) in [(2, None), (3, Some(2)), (4, Some(4000))] {
        let from = told.map(|position| Checkpoint { position, at: Time(5) });
        let mut next = start(&node, "a", epoch, from).await.unwrap();
        assert!(next.until(8).await.is_none());
        assert_eq!(next.stopped().await.unwrap().position, 8);
    }
    assert_eq!(stage.rows("a"), ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn what_was_known_of_the_time_is_kept_over_a_hand_over_and_not_claimed_for_an_emptied_sink() {
    let stage = Stage::new();
    stage.append("a", "");
    let node = stage.pipeline();
    node.look().await.unwrap();
    let at = Time(u64::MAX / 2);
    let empty = start(&node, "a", 1, Some(Checkpoint { position: 0, at })).await.unwrap();
    assert_eq!(empty.stopped().await.unwrap().at, at);
    stage.append("a", "1\n");
    let mut first = start(&node, "a", 2, Some(Checkpoint { position: 0, at })).await.unwrap();
    assert!(first.until(2).await.is_none());
    assert_eq!(first.stopped().await.unwrap(), Checkpoint { position: 2, at });
    std::fs::remove_dir_all(span_dir(&stage.output(), &feed(), &SpanName::new("a"))).unwrap();
    let mut anew = start(&node, "a", 3, Some(Checkpoint { position: 2, at })).await.unwrap();
    assert!(anew.until(2).await.is_none());
    assert!(anew.stopped().await.unwrap().at < at);
    assert_eq!(stage.rows("a"), ["1"]);
}

#[tokio::test]
async fn a_predecessor_that_goes_on_is_fenced_and_changes_nothing() {
    let stage = Stage::new();
    stage.append("a", "1\n");
    let node = stage.pipeline();
    node.look().await.unwrap();
    let mut old = start(&node, "a", 1, None).await.unwrap();
    assert!(old.until(2).await.is_none());
    let mut young = start(&node, "a", 2, None).await.unwrap();
    assert!(young.until(2).await.is_none());
    stage.append("a", "2\n");
    assert!(young.until(4).await.is_none());
    let trouble = old.ended().await.unwrap_err();
    assert!(trouble.fenced && trouble.code == Code::Fenced, "{trouble}");
    assert_eq!(stage.rows("a"), ["1", "2"]);
}

#[tokio::test]
async fn a_span_without_rows_to_write_learns_that_it_is_fenced_too() {
    let stage = Stage::new();
    stage.append("a", "1\n");
    let node = stage.pipeline();
    node.look().await.unwrap();
    let mut old = start(&node, "a", 1, None).await.unwrap();
    assert!(old.until(2).await.is_none());
    let mut young = start(&node, "a", 2, None).await.unwrap();
    assert!(young.until(2).await.is_none());
    assert!(old.ended().await.unwrap_err().fenced);
}

#[tokio::test]
async fn a_log_that_shrank_vanished_or_was_replaced_is_trouble_in_words_and_loses_nothing() {
    type Change = fn(&Path);
    let cases: [(&str, Code, Change); 4] = [
        ("has 2 bytes, and 6 of it were read", Code::SourceUnfit, |log| std::fs::write(log, "1\n").unwrap()),
        ("no line ends at byte 6", Code::SourceUnfit, |log| {
            std::fs::write(log, "another text\n").unwrap();
        }),
        ("No such file", Code::SourceUnreachable, |log| std::fs::remove_file(log).unwrap()),
        ("was replaced by another file", Code::SourceUnfit, |log| {
            std::fs::write(log.with_extension("next"), "1\n2\n3\n4\n").unwrap();
            std::fs::rename(log.with_extension("next"), log).unwrap();
        }),
    ];
    for (words, code, change) in cases {
        let stage = Stage::new();
        stage.append("a", "1\n2\n3\n");
        let node = stage.pipeline();
        node.look().await.unwrap();
        let mut dispatcher = start(&node, "a", 1, None).await.unwrap();
        assert!(dispatcher.until(6).await.is_none());
        change(&stage.input().join("a.log"));
        let trouble = dispatcher.ended().await.unwrap_err();
        assert!(trouble.message.contains(words) && trouble.code == code, "{words}: {trouble}");
        assert_eq!(stage.rows("a"), ["1", "2", "3"]);
    }
}

#[tokio::test]
async fn a_log_that_shrank_while_nobody_looked_is_refused_at_the_start() {
    let stage = Stage::new();
    stage.append("a", "1\n2\n");
    let node = stage.pipeline();
    node.look().await.unwrap();
    let mut first = start(&node, "a", 1, None).await.unwrap();
    assert!(first.until(4).await.is_none());
    let done = first.stopped().await.unwrap();
    std::fs::write(stage.input().join("a.log"), "9\n").unwrap();
    let trouble = start(&node, "a", 2, Some(done)).await.unwrap().ended().await.unwrap_err();
    assert!(trouble.code == Code::SourceUnfit && !trouble.passes, "{trouble}");
    assert_eq!(stage.rows("a"), ["1", "2"]);
}

#[tokio::test]
async fn a_node_without_the_directories_or_with_others_is_told_apart() {
    let stage = Stage::new();
    stage.append("a", "1\n");
    let here = stage.pipeline();
    let mark = here.look().await.unwrap().mark.unwrap();
    assert_eq!(here.look().await.unwrap().mark.as_deref(), Some(&*mark), "it stays");

    let elsewhere = Stage::new();
    let code = |result: Result<Dispatcher, Trouble>| result.err().expect("refused").code;
    let bare = pipeline(&stage.input(), &elsewhere.output());
    assert_eq!(code(start(&bare, "a", 1, None).await), Code::PathNotShared, "no mark in the sink");
    let missing = pipeline(&stage.input(), &elsewhere.output().join("none"));
    assert_eq!(missing.look().await.unwrap_err().code, Code::PathNotShared);
    let no_log = pipeline(&elsewhere.input(), &stage.output());
    assert_eq!(code(start(&no_log, "a", 1, None).await), Code::PathNotShared, "no log of this span");

    // One that was marked on its own is another one all the same, once it is known what to expect.
    elsewhere.append("a", "1\n");
    let other = elsewhere.pipeline();
    other.look().await.unwrap();
    other.expect(&mark);
    assert_eq!(other.look().await.unwrap_err().code, Code::PathNotShared);
    assert_eq!(code(start(&other, "a", 1, None).await), Code::PathNotShared);
    let same = stage.pipeline();
    same.expect(&mark);
    assert!(start(&same, "a", 1, None).await.is_ok());
    // Nor is a mark made where one was expected: the directory is not mounted.
    std::fs::remove_file(stage.output().join(".tidegate-orders")).unwrap();
    assert_eq!(same.look().await.unwrap_err().code, Code::PathNotShared);
}

#[tokio::test]
async fn files_that_are_no_spans_are_left_out_and_named() {
    let stage = Stage::new();
    for name in ["b", "a", ".hidden", "with space"] {
        stage.append(name, "1\n");
    }
    std::fs::write(stage.input().join("notes.txt"), "").unwrap();
    std::fs::create_dir(stage.input().join("dir.log")).unwrap();
    let outlook = stage.pipeline().look().await.unwrap();
    assert_eq!(outlook.spans, [SpanName::new("a"), SpanName::new("b")]);
    let all = outlook.warnings.join("\n");
    assert_eq!(outlook.warnings.len(), 3, "{all}");
    assert!(["hidden", "with space", "dir.log"].iter().all(|name| all.contains(name)), "{all}");
}

#[tokio::test]
async fn a_removed_feed_leaves_its_rows_and_gets_out_of_the_way_of_a_later_one() {
    let stage = Stage::new();
    stage.append("a", "1\n");
    let node = stage.pipeline();
    node.look().await.unwrap();
    let mut first = start(&node, "a", 1 << 40, None).await.unwrap();
    assert!(first.until(2).await.is_none());
    first.stopped().await.unwrap();
    node.sweep(&[SpanName::new("b")]).await.unwrap();
    assert_eq!(stage.rows("a"), ["1"], "what vanished from the source stays in the sink");
    node.sweep(&[]).await.unwrap();
    node.sweep(&[]).await.unwrap();
    let kept = span_dir(&stage.output(), &FeedName::new("orders.removed-1"), &SpanName::new("a"));
    assert_eq!(read(&kept).unwrap().count(), 1);

    let again = stage.pipeline();
    again.look().await.unwrap();
    let mut next = start(&again, "a", 1, None).await.unwrap();
    assert!(next.until(2).await.is_none());
    assert_eq!(stage.rows("a"), ["1"]);
}

/// What happens to one span, in the order of a seed.
#[derive(Clone, Debug)]
enum Act {
    /// Lines of these lengths, and whether the last one is left half-written.
    Append(Vec<usize>, bool),
    /// A dispatcher with the next epoch; those before it go on.
    Start,
    /// One of them goes on for a while.
    Advance(usize, u32),
    /// One is killed where it stands.
    Kill(usize),
    /// One is stopped in good order.
    Stop(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (prop::collection::vec(0..200usize, 0..6), any::<bool>()).prop_map(|(l, h)| Act::Append(l, h)),
        1 => Just(Act::Append(vec![300_000, 100, 300_000], false)),
        3 => Just(Act::Start),
        6 => (0..4usize, 0..12u32).prop_map(|(who, polls)| Act::Advance(who, polls)),
        2 => (0..4usize).prop_map(Act::Kill),
        1 => (0..4usize).prop_map(Act::Stop),
    ];
    prop::collection::vec(act, 1..40)
}

/// The source as it was written, beside the span that is copied.
struct Story {
    stage: Stage,
    text: String,
    node: Arc<dyn Pipeline>,
    epoch: u64,
    running: Vec<Dispatcher>,
    final_checkpoint: Option<Checkpoint>,
    reported: u64,
}

impl Story {
    fn whole_lines(&self) -> Vec<String> {
        let end = self.text.rfind('\n').map_or(0, |at| at + 1);
        self.text[..end].split_terminator('\n').map(|line| format!("{line:?}")).collect()
    }

    fn append(&mut self, lengths: &[usize], half: bool) {
        let mut added = String::new();
        for (at, length) in lengths.iter().enumerate() {
            added.push_str(&format!("line {} {}", self.text.len() + added.len(), "x".repeat(*length)));
            if !half || at + 1 < lengths.len() {
                added.push('\n');
            }
        }
        self.stage.append("a", &added);
        self.text.push_str(&added);
    }

    async fn play(&mut self, act: &Act) {
        match act {
            Act::Append(lengths, half) => self.append(lengths, *half),
            Act::Start => {
                self.epoch += 1;
                let next = start(&self.node, "a", self.epoch, self.final_checkpoint).await.unwrap();
                self.running.push(next);
            }
            Act::Advance(who, polls) => {
                let count = self.running.len();
                let Some(dispatcher) = self.running.get_mut(who % count.max(1)) else { return };
                if let Some(ended) = dispatcher.advance(*polls).await {
                    let trouble = ended.expect_err("nobody stopped it");
                    assert!(trouble.fenced, "{trouble}");
                    self.leave(who % count);
                }
            }
            Act::Kill(who) if !self.running.is_empty() => self.leave(who % self.running.len()),
            Act::Stop(who) if !self.running.is_empty() => {
                let gone = self.running.swap_remove(who % self.running.len());
                match gone.stopped().await {
                    Ok(done) => {
                        self.reported = self.reported.max(done.position);
                        self.final_checkpoint = Some(done);
                    }
                    Err(trouble) => assert!(trouble.fenced, "{trouble}"),
                }
            }
            Act::Kill(_) | Act::Stop(_) => {}
        }
        self.check();
    }

    fn leave(&mut self, who: usize) {
        let gone = self.running.swap_remove(who);
        self.reported = self.reported.max(gone.progress.borrow().map_or(0, |told| told.position));
    }

    /// What is in the sink is a beginning of the source, and holds what was reported.
    fn check(&self) {
        let told = |d: &Dispatcher| d.progress.borrow().map_or(0, |told| told.position);
        let reported = self.running.iter().map(told).fold(self.reported, u64::max);
        let (rows, lines) = (self.stage.rows("a"), self.whole_lines());
        assert!(rows.len() <= lines.len() && rows[..] == lines[..rows.len()], "{} rows", rows.len());
        let held: u64 = rows.iter().map(|row| row.len() as u64 - 1).sum();
        assert!(held >= reported, "{held} bytes are there, {reported} were reported");
    }

    async fn finish(mut self) {
        if self.text.is_empty() || !self.text.ends_with('\n') {
            self.append(&[5], false);
        }
        self.epoch += 1;
        let mut last = start(&self.node, "a", self.epoch, self.final_checkpoint).await.unwrap();
        assert!(last.until(self.text.len() as u64).await.is_none());
        last.stopped().await.unwrap();
        for mut zombie in std::mem::take(&mut self.running) {
            zombie.advance(8).await;
        }
        assert_eq!(self.stage.rows("a"), self.whole_lines());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whoever_is_killed_or_wakes_up_every_line_arrives_once_in_order(acts in acts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stage = Stage::quick();
            stage.append("a", "");
            let node = stage.pipeline();
            node.look().await.unwrap();
            let mut story = Story {
                stage, node, text: String::new(), epoch: 0, running: Vec::new(),
                final_checkpoint: None, reported: 0,
            };
            for act in &acts {
                story.play(act).await;
            }
            story.finish().await;
        });
    }
}
