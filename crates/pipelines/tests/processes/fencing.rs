//! A command never outlives its fence, nor its daemon, nor its guard.

use std::path::Path;

use model::Code;
use pipelines::Pipeline;
use rustix::process::Signal;

use crate::stage::{
    Daemon, LONG_MS, Stage, boot_ms, fake, is_alive, limits, parent, pids, run, signal, until,
};

crate::tests![
    a_stopped_daemons_command_is_dead_once_the_fence_has_passed,
    a_killed_daemon_takes_its_command_along_and_what_that_left_in_another_session,
    a_killed_guard_takes_its_command_along,
    a_lease_that_is_extended_keeps_the_command_alive,
    at_the_fence_dispatchers_are_told_that_the_lease_ended,
    a_pipeline_that_is_dropped_leaves_no_process,
];

async fn all_dead(dir: &Path) {
    until("all of it is dead", || pids(dir).iter().all(|pid| !is_alive(*pid))).await;
}

async fn a_stopped_daemons_command_is_dead_once_the_fence_has_passed() {
    let dir = tempfile::tempdir().unwrap();
    let fence_ms = boot_ms() + 1500;
    let daemon = Daemon::start(dir.path(), "", 1500);
    signal(daemon.pid(), Signal::STOP);
    let command = pids(dir.path())[0];
    if boot_ms() < fence_ms {
        // The daemon counted from a little later, so that this is before its fence as well.
        assert!(is_alive(command) || boot_ms() >= fence_ms, "not before its time");
    }
    all_dead(dir.path()).await;
    assert!(boot_ms() >= fence_ms);
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
    let first_fence = boot_ms() + 1000;
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
    pipeline.lease(boot_ms() + 1000);
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
