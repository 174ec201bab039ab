//! Dispatchers that come and go in a command, and the example that people start from.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use model::{Checkpoint, Code, FeedName, SpanEpoch, SpanName, Time, spec};
use pipelines::command::{CommandPipeline, Limits};
use pipelines::{Control, Pipeline, Prepared};
use rustix::process::Signal;

use crate::stage::{LONG_MS, Stage, boot_ms, host, limits, run, signal, until};

crate::tests![
    what_a_command_lists_is_sorted_and_once_each,
    a_dispatcher_starts_from_its_checkpoint_and_ends_with_a_final_one,
    one_that_is_dropped_is_stopped_and_its_successor_waits_for_that,
    a_start_with_an_earlier_epoch_than_the_one_that_runs_is_fenced,
    what_was_prepared_and_is_not_wanted_is_released,
    a_stop_does_not_wait_for_a_process_that_is_yet_to_come_up,
    a_start_that_nobody_wants_any_more_does_not_come_true_later,
    the_example_copies_lines_hands_over_and_fences,
    the_file_of_the_example_is_a_feed,
];

async fn what_a_command_lists_is_sorted_and_once_each() {
    let stage = Stage::new("", limits());
    let outlook = stage.pipeline.look().await.unwrap();
    assert_eq!(outlook.spans, [SpanName::new("a"), SpanName::new("b")]);
    assert_eq!((outlook.held_back, outlook.warnings), (Some(5), vec!["w".to_owned()]));
    stage.pipeline.sweep(&[SpanName::new("a")]).await.unwrap();
    assert_eq!(stage.heard(), ["hello", "spans", "sweep"]);
}

async fn a_dispatcher_starts_from_its_checkpoint_and_ends_with_a_final_one() {
    let stage = Stage::new("", limits());
    let from = Checkpoint { position: 10, at: Time(3) };
    let mut dispatcher = stage.run("a", 1 << 40, Some(from)).await;
    assert_eq!(dispatcher.reached(11).await, Checkpoint { position: 11, at: Time(7) });
    assert_eq!(dispatcher.stopped().await.unwrap(), Checkpoint { position: 50, at: Time(60) });
    assert_eq!(stage.heard(), ["hello", "prepare a", "start a", "stop a"]);
}

async fn one_that_is_dropped_is_stopped_and_its_successor_waits_for_that() {
    let stage = Stage::new("", limits());
    let mut first = stage.run("slow", 1, None).await;
    first.reached(1).await;
    first.task.abort();
    assert!(first.task.await.unwrap_err().is_cancelled());
    until("it is told to stop", || stage.heard().last().is_some_and(|told| told == "stop slow")).await;
    let (sender, _progress) = tokio::sync::watch::channel(None);
    let control = Control { stop: Default::default(), progress: sender };
    let prepared = stage.pipeline.prepare(&SpanName::new("slow")).await.unwrap();
    let mut second = prepared.run(SpanEpoch(2), None, control.clone());
    // Polled once, it has asked to be started. What is asked after that is answered; it is not started.
    assert!(second.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending());
    stage.pipeline.look().await.unwrap();
    let before = ["hello", "prepare slow", "start slow", "stop slow", "prepare slow", "spans"];
    assert_eq!(stage.heard(), before);
    stage.open_gate();
    let second = tokio::spawn(second);
    until("it is started", || stage.heard().len() > before.len()).await;
    assert_eq!(stage.heard().last().unwrap(), "start slow");
    control.stop.cancel();
    assert_eq!(second.await.unwrap().unwrap().position, 50);
}

async fn a_start_with_an_earlier_epoch_than_the_one_that_runs_is_fenced() {
    let stage = Stage::new("", limits());
    let mut young = stage.run("a", 5, None).await;
    young.reached(1).await;
    let old = stage.run("a", 4, None).await.trouble().await;
    assert!(old.fenced, "{old}");
    // The other way round, the successor stops the one that runs before it starts.
    let mut next = stage.run("a", 6, None).await;
    next.reached(1).await;
    assert!(young.trouble().await.fenced);
    assert!(next.stopped().await.is_ok());
}

async fn what_was_prepared_and_is_not_wanted_is_released() {
    let stage = Stage::new("", limits());
    drop(stage.pipeline.prepare(&SpanName::new("a")).await.unwrap());
    stage.pipeline.look().await.unwrap();
    assert_eq!(stage.heard(), ["hello", "prepare a", "release a", "spans"]);
}

/// A span that is prepared, and whose process has died since. The next one is started after `pause`.
async fn orphan(pause: Duration) -> (Stage, Box<dyn Prepared>) {
    let stage = Stage::new("", Limits { pause_first: pause, ..limits() });
    let prepared = stage.pipeline.prepare(&SpanName::new("a")).await.unwrap();
    let mut other = stage.run("b", 1, None).await;
    other.reached(1).await;
    signal(stage.pids()[0], Signal::KILL);
    assert_eq!(other.trouble().await.code, Code::CommandFailed);
    (stage, prepared)
}

async fn a_stop_does_not_wait_for_a_process_that_is_yet_to_come_up() {
    let (stage, prepared) = orphan(Duration::from_secs(3600)).await;
    let (progress, _told) = tokio::sync::watch::channel(None);
    let control = Control { stop: Default::default(), progress };
    let from = Checkpoint { position: 10, at: Time(3) };
    let run = tokio::spawn(prepared.run(SpanEpoch(1), Some(from), control.clone()));
    control.stop.cancel();
    assert_eq!(run.await.unwrap().unwrap(), from);
    assert_eq!(stage.pids().len(), 1);
}

async fn a_start_that_nobody_wants_any_more_does_not_come_true_later() {
    let (stage, prepared) = orphan(Duration::from_millis(200)).await;
    let (progress, _told) = tokio::sync::watch::channel(None);
    let control = Control { stop: Default::default(), progress };
    let mut run = prepared.run(SpanEpoch(1), None, control);
    assert!(run.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending());
    drop(run);
    stage.pipeline.look().await.unwrap();
    assert_eq!(stage.heard()[4..], ["hello", "spans"], "the second life is told nothing else");
}

fn example(input: &Path, output: &Path) -> Arc<CommandPipeline> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/feed_command.py");
    let command = ["python3".to_owned(), script.display().to_string()];
    let directories = [input.display().to_string(), output.display().to_string()];
    let command: Vec<String> = command.into_iter().chain(directories).collect();
    let pipeline =
        CommandPipeline::new(&FeedName::new("lines"), &host(), &command, &Default::default(), limits());
    pipeline.lease(boot_ms() + LONG_MS);
    Arc::new(pipeline)
}

fn append(file: &Path, text: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

async fn the_example_copies_lines_hands_over_and_fences() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in"), dir.path().join("out"));
    std::fs::create_dir(&input).unwrap();
    std::fs::create_dir(&output).unwrap();
    let copied = || std::fs::read_to_string(output.join("a.txt")).unwrap_or_default();
    append(&input.join("a.txt"), "one\ntwo\nhal");
    let (node_1, node_2) = (example(&input, &output), example(&input, &output));
    assert_eq!(node_1.look().await.unwrap().spans, [SpanName::new("a")]);
    assert!(node_1.prepare(&SpanName::new("none")).await.is_err_and(|t| t.message.contains("none.txt")));

    let mut first = run(&*node_1, "a", 1, None).await.unwrap();
    first.reached(8).await;
    assert_eq!(copied(), "one\ntwo\n");
    append(&input.join("a.txt"), "f\n");
    first.reached(13).await;
    let done = first.stopped().await.unwrap();
    assert_eq!(done.position, 13);

    let mut second = run(&*node_2, "a", 2, Some(done)).await.unwrap();
    append(&input.join("a.txt"), "three\n");
    let reached = second.reached(19).await;
    assert!(reached.at >= done.at);
    assert_eq!(copied(), "one\ntwo\nhalf\nthree\n");

    // The second goes on while a third takes over, and has to notice.
    let mut third = run(&*node_1, "a", 3, None).await.unwrap();
    append(&input.join("a.txt"), "four\n");
    third.reached(24).await;
    assert!(second.trouble().await.fenced);
    assert!(run(&*node_2, "a", 2, None).await.unwrap().trouble().await.fenced);
    assert_eq!(copied(), "one\ntwo\nhalf\nthree\nfour\n");
    third.stopped().await.unwrap();
}

async fn the_file_of_the_example_is_a_feed() {
    #[derive(serde::Deserialize)]
    struct File {
        feed: Vec<spec::FeedFile>,
    }
    let file: File = toml::from_str(include_str!("../../../../examples/feed_command.toml")).unwrap();
    let (name, spec) = file.feed[0].check().unwrap();
    assert_eq!(name.as_str(), "lines");
    assert!(pipelines::open(&name, &spec, &host()).is_ok());
}
