//! A command never outlives its fence, nor its daemon, nor its guard.

use std::path::Path;

use model::Code;
use pipelines::Pipeline;
use pipelines::command::Limits;
use rustix::process::Signal;

use crate::stage::{
    Daemon, LONG_MS, SHORT, Stage, Stopped, boot_ms, fake, is_alive, limits, parent, pids, run, signal, until,
};

crate::tests![
    a_stopped_daemons_command_is_dead_once_the_fence_has_passed,
    a_killed_daemon_takes_its_command_along_and_what_that_left_in_another_session,
    a_killed_guard_takes_its_command_along,
    a_lease_that_is_extended_keeps_the_command_alive,
    at_the_fence_dispatchers_are_told_that_the_lease_ended,
    a_pipeline_that_is_dropped_leaves_no_process,
    until_a_process_is_known_to_be_dead_nobody_is_told_that_its_dispatchers_ended,
];

/// A lease that ends within a test: long enough for a command to come up on a busy machine.
const LEASE_MS: u64 = 4000;

async fn all_dead(dir: &Path) {
    until("all of it is dead", || pids(dir).iter().all(|pid| !is_alive(*pid))).await;
}

async fn a_stopped_daemons_command_is_dead_once_the_fence_has_passed() {
    let dir = tempfile::tempdir().unwrap();
    // The daemon counts from a little later: it is not over before this.
    let fence_ms = boot_ms() + LEASE_MS;
    let daemon = Daemon::start(dir.path(), "escapes", LEASE_MS);
    signal(daemon.pid(), Signal::STOP);
    all_dead(dir.path()).await;
    assert!(boot_ms() >= fence_ms, "not before its time");
}

async fn a_killed_daemon_takes_its_command_along_and_what_that_left_in_another_session() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), "escapes", LONG_MS);
    let started = pids(dir.path());
    assert_eq!(started.len(), 2, "the command, and what it started");
    assert!(started.iter().all(|pid| is_alive(*pid)));
    signal(daemon.pid(), Signal::KILL);
    all_dead(dir.path()).await;
}

async fn a_killed_guard_takes_its_command_along() {
    let stage = Stage::new("", limits());
    let mut dispatcher = stage.run("a", 1, None).await;
    dispatcher.reached(1).await;
    let command = stage.pids()[0];
    signal(parent(command), Signal::KILL);
    let trouble = dispatcher.trouble().await;
    assert!(trouble.message.contains("its guard ended without a word"), "{trouble}");
    all_dead(stage.dir.path()).await;
    assert!(stage.pipeline.look().await.is_ok(), "it is started again");
}

async fn a_lease_that_is_extended_keeps_the_command_alive() {
    let stage = Stage::new("", limits());
    let pipeline = fake(stage.dir.path(), "", limits());
    let first_fence = boot_ms() + LEASE_MS;
    pipeline.lease(first_fence);
    pipeline.look().await.unwrap();
    pipeline.lease(boot_ms() + LONG_MS);
    pipeline.lease(1);
    until("the first fence has passed", || boot_ms() > first_fence + 200).await;
    pipeline.look().await.unwrap();
    assert_eq!(stage.pids().len(), 1, "the same process answers");
}

async fn at_the_fence_dispatchers_are_told_that_the_lease_ended() {
    let stage = Stage::new("", limits());
    let pipeline = fake(stage.dir.path(), "", limits());
    pipeline.lease(boot_ms() + LEASE_MS);
    let dispatcher = run(&*pipeline, "a", 1, None).await.unwrap();
    let trouble = dispatcher.trouble().await;
    assert!(trouble.code == Code::CommandFailed && trouble.passes);
    assert!(trouble.message.contains("the lease of the node ended"), "{trouble}");
    all_dead(stage.dir.path()).await;
}

async fn a_pipeline_that_is_dropped_leaves_no_process() {
    let Stage { dir, pipeline } = Stage::new("escapes", limits());
    pipeline.look().await.unwrap();
    let started = pids(dir.path());
    assert!(started.len() == 2 && started.iter().all(|pid| is_alive(*pid)));
    drop(pipeline);
    all_dead(dir.path()).await;
}

async fn until_a_process_is_known_to_be_dead_nobody_is_told_that_its_dispatchers_ended() {
    let stage = Stage::new("", Limits { answer: SHORT, ..limits() });
    let mut dispatcher = stage.run("a", 1, None).await;
    dispatcher.reached(1).await;
    let command = stage.pids()[0];
    let stopped = Stopped::new(parent(command));
    signal(command, Signal::KILL);
    // Whoever asks gets an answer all the same.
    let trouble = stage.pipeline.look().await.unwrap_err();
    assert!(trouble.passes && trouble.message.contains("does not end"), "{trouble}");
    assert!(!dispatcher.task.is_finished());
    drop(stopped);
    assert!(dispatcher.trouble().await.message.contains("signal 9"));
    assert!(stage.pipeline.look().await.is_ok());
}
