//! A command that prints rubbish, dies or falls silent.

use std::time::Duration;

use model::{Checkpoint, Code, FeedName, SpanName, Time};
use pipelines::Pipeline;
use pipelines::command::{CommandPipeline, Limits};

use crate::stage::{LONG_MS, SHORT, Stage, boot_ms, host, is_alive, limits, run};

crate::tests![
    what_a_dispatcher_does_to_its_process_is_trouble_in_its_words_and_another_goes_on_from_its_checkpoint,
    silence_is_trouble_and_ends_the_process,
    a_command_that_never_comes_up_says_why,
    trouble_of_one_span_leaves_the_process_and_the_others_alone,
    a_span_that_cannot_be_stopped_costs_the_process_its_life,
    without_a_lease_nothing_is_started,
];

async fn what_a_dispatcher_does_to_its_process_is_trouble_in_its_words_and_another_goes_on_from_its_checkpoint()
 {
    let cases = [
        ("dies", "it ended with exit code 3; it wrote last: about to die"),
        ("crashes", "it was ended by signal 6"),
        ("rubbish", "printed what is no message: \"Traceback: this is no message\""),
        ("closes", "closed its stdout"),
    ];
    for (span, words) in cases {
        let stage = Stage::new("", limits());
        let mut other = stage.run("a", 1, None).await;
        let reached = other.reached(1).await;
        let first = stage.pids()[0];
        let bad = stage.run(span, 1, None).await;
        for trouble in [bad.trouble().await, other.trouble().await] {
            assert!(trouble.code == Code::CommandFailed && trouble.passes, "{trouble}");
            assert!(trouble.message.contains(words), "{trouble}");
        }
        assert!(!is_alive(first), "trouble is told once it is dead");
        let mut again = stage.run("a", 1, Some(reached)).await;
        assert_eq!(again.reached(2).await.position, 2);
        assert_eq!(stage.pids().len(), 2);
    }
}

async fn silence_is_trouble_and_ends_the_process() {
    let stage = Stage::new("", Limits { answer: SHORT, ..limits() });
    let silent = stage.run("silent", 1, None).await;
    let trouble = silent.trouble().await;
    assert!(trouble.message.contains("did not answer \"start of silent\" within 3000 ms"), "{trouble}");
    assert!(!is_alive(stage.pids()[0]));
}

async fn a_command_that_never_comes_up_says_why() {
    let cases = [
        ("mute", "said no hello within 300 ms"),
        ("old", "speaks version 99 of the protocol"),
        ("dies", "it ended with exit code 7; it wrote last: no configuration found"),
        ("endless", "printed what is no message: \"xxxx"),
    ];
    for (mode, words) in cases {
        let limits = match mode {
            "mute" => Limits { hello: Duration::from_millis(300), ..limits() },
            _ => limits(),
        };
        let stage = Stage::new(mode, limits);
        let trouble = stage.pipeline.look().await.unwrap_err();
        assert!(trouble.message.contains(words), "{mode}: {trouble}");
        assert!(trouble.message.len() < 2000, "{trouble}");
        assert!(stage.pids().iter().all(|pid| !is_alive(*pid)));
        assert!(stage.pipeline.look().await.is_err(), "it is tried again, and fails again");
    }
    let missing = ["/does/not/exist".to_owned()];
    let missing = CommandPipeline::new(&FeedName::new("f"), &host(), &missing, &Default::default(), limits());
    missing.lease(boot_ms() + LONG_MS);
    let trouble = missing.look().await.unwrap_err();
    assert!(trouble.message.contains("cannot start /does/not/exist: No such file"), "{trouble}");
}

async fn trouble_of_one_span_leaves_the_process_and_the_others_alone() {
    let stage = Stage::new("", limits());
    let mut other = stage.run("a", 1, None).await;
    other.reached(1).await;
    let unknown = run(&*stage.pipeline, "unknown", 1, None).await.err().unwrap();
    assert!(!unknown.passes && unknown.message == "no such span", "{unknown}");
    let fenced = stage.run("fenced", 1, None).await.trouble().await;
    assert!(fenced.fenced && fenced.code == Code::Fenced, "{fenced}");
    let failed = stage.run("fails", 1, None).await.trouble().await;
    assert!(failed.passes && failed.message == "cannot go on", "{failed}");
    assert_eq!(other.stopped().await.unwrap(), Checkpoint { position: 50, at: Time(60) });
    assert_eq!(stage.pids().len(), 1);
}

async fn a_span_that_cannot_be_stopped_costs_the_process_its_life() {
    let stage = Stage::new("", limits());
    let mut sticky = stage.run("sticky", 1, None).await;
    sticky.reached(1).await;
    let process = stage.pids()[0];
    let trouble = sticky.stopped().await.unwrap_err();
    assert!(trouble.message.contains("cannot stop sticky: it sticks"), "{trouble}");
    assert!(!is_alive(process), "told once it is dead");
}

async fn without_a_lease_nothing_is_started() {
    let stage = Stage::new("", limits());
    let bare = crate::stage::fake(stage.dir.path(), "", limits());
    for lease in [None, Some(boot_ms() - 1)] {
        lease.into_iter().for_each(|lease| bare.lease(lease));
        let trouble = bare.prepare(&SpanName::new("a")).await.err().unwrap();
        assert!(trouble.passes && trouble.message.contains("no lease"), "{trouble}");
    }
    assert!(stage.pids().is_empty());
    bare.lease(boot_ms() + LONG_MS);
    assert!(bare.prepare(&SpanName::new("a")).await.is_ok());
}
