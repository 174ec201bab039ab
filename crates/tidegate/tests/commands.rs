//! Commands without a cluster: help, usage, exit codes, and a reader that goes away.

#![allow(clippy::unwrap_used)]

mod common;

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::Stdio,
};

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
    &["node", "drain"],
    &["node", "cancel"],
    &["drain"],
    &["drain", "status"],
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

/// A server that gives these answers, one a connection, and its address.
fn server(answers: &'static [(&'static str, &'static str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    addr
}

fn error(code: &str) -> &'static str {
    match code {
        "refused" => r#"{"error": {"code": "x", "message": "not while it runs", "details": {}}}"#,
        _ => r#"{"error": {"code": "x", "message": "there is no node a", "details": {}}}"#,
    }
}

#[test]
fn what_the_server_refuses_ends_with_4_and_in_its_words() {
    let scratch = Scratch::new();
    for status in ["409 Conflict", "412 Precondition Failed", "422 Unprocessable Entity"] {
        let answers: &'static [_] = Box::leak(Box::new([(status, error("refused"))]));
        let done = tidegate(scratch.path(), &["--addr", &server(answers), "node", "confirm-dead", "a"]);
        assert_eq!((done.code, done.stderr.as_str()), (4, "error: not while it runs\n"));
    }
    let answers: &'static [_] = Box::leak(Box::new([("404 Not Found", error("unknown"))]));
    let done = tidegate(scratch.path(), &["--addr", &server(answers), "node", "enable", "a"]);
    assert_eq!((done.code, done.stderr.as_str()), (1, "error: there is no node a\n"));
}

#[test]
fn an_election_is_waited_for() {
    let scratch = Scratch::new();
    let answers = &[
        ("503 Service Unavailable\r\nretry-after: 1", r#"{"error": {"message": "no coordinator"}}"#),
        ("200 OK", r#"{"items": []}"#),
    ];
    let done = tidegate(scratch.path(), &["--addr", &server(answers), "volume", "list"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "no volumes\n"), "{}", done.stderr);
    assert_eq!(done.stderr, "no coordinator at the moment; waiting for one\n");
}

#[test]
fn a_server_of_another_sort_is_recognised() {
    let scratch = Scratch::new();
    for answer in [("200 OK", "<html>"), ("404 Not Found", "nothing here"), ("200 OK", "{\"a\": 1}")] {
        let answers: &'static [_] = Box::leak(Box::new([answer]));
        let done = tidegate(scratch.path(), &["--addr", &server(answers), "node", "list"]);
        assert_eq!((done.code, done.stdout.as_str()), (1, ""));
        assert!(done.stderr.contains("is it"), "{}", done.stderr);
    }
}
