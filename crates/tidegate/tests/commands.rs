//! Commands without a cluster: help, usage, exit codes, and a reader that goes away.

mod common;

use std::{io::Read, process::Stdio};

use common::{Scratch, command, tidegate};

const COMMANDS: &[&[&str]] = &[
    &[],
    &["dev"],
    &["run"],
    &["apply"],
    &["remove"],
    &["status"],
    &["node"],
    &["node", "list"],
    &["node", "confirm-dead"],
    &["instance"],
    &["instance", "list"],
    &["instance", "logs"],
    &["volume"],
    &["volume", "attach"],
    &["scale"],
    &["events"],
    &["doctor"],
    &["completions"],
];

#[test]
fn every_command_explains_itself() {
    let scratch = Scratch::new();
    for words in COMMANDS {
        let args: Vec<&str> = words.iter().copied().chain(["--help"]).collect();
        let done = tidegate(scratch.path(), &args);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{words:?}");
        assert!(done.stdout.contains("Usage:"), "{words:?}");
        assert!(!done.stdout.contains("shim"), "{words:?}");
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    let scratch = Scratch::new();
    let wrong: &[&[&str]] = &[
        &[],
        &["frobnicate"],
        &["apply"],
        &["scale", "web"],
        &["scale", "web", "-1"],
        &["scale", "web", "many"],
        &["status", "-o", "xml"],
        &["status", "pod/web"],
        &["remove", "node/a"],
        &["node", "enable", "service/web"],
        &["dev", "--nodes", "0"],
        &["--addr", "https://h:1", "status"],
        &["--addr", "::", "status"],
    ];
    for args in wrong {
        let done = tidegate(scratch.path(), args);
        assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn a_cluster_that_is_not_there_is_named_with_what_to_do() {
    let scratch = Scratch::new();
    for args in [&["status"][..], &["node", "list"], &["scale", "web", "3"], &["events"], &["doctor"]] {
        let done = tidegate(scratch.path(), args);
        assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{args:?}");
        assert_eq!(
            done.stderr,
            "error: cannot reach http://127.0.0.1:1: connection refused; start a cluster here with `tidegate dev`, \
             or name another with --addr or TIDEGATE_ADDR\n"
        );
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    let scratch = Scratch::new();
    let mut command = command(scratch.path(), &["completions", "bash"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn completions_are_there_for_every_shell() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = tidegate(scratch.path(), &["completions", shell]);
        assert!(done.code == 0 && done.stdout.contains("confirm-dead"), "{shell}");
    }
}
