//! A command whose spans are named after what they do. It notes its pid in `DIR/pids` and every message in
//! `DIR/heard`; DIR is given as FAKE_DIR. FAKE_MODE makes it misbehave from the start.

use std::io::{BufRead, Write};

use serde_json::{Value, json};

fn say(message: &Value) {
    let mut out = std::io::stdout();
    writeln!(out, "{message}").and_then(|()| out.flush()).unwrap();
}

fn note(file: &str, line: &str) {
    let path = std::path::Path::new(&std::env::var("FAKE_DIR").unwrap()).join(file);
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    writeln!(file, "{line}").unwrap();
}

pub fn main() {
    if std::env::var("FAKE_MODE").as_deref() == Ok("escapes") {
        escape();
    }
    note("pids", &std::process::id().to_string());
    match std::env::var("FAKE_MODE").unwrap_or_default().as_str() {
        "mute" => loop {
            std::thread::park();
        },
        "old" => return say(&json!({"type": "hello", "version": 99})),
        "endless" => {
            let x = [b'x'; 1 << 16];
            while std::io::stdout().write_all(&x).is_ok() {}
            return;
        }
        "dies" => {
            eprintln!("no configuration found");
            std::process::exit(7);
        }
        _ => {}
    }
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        note("heard", &line);
        hear(&serde_json::from_str(&line).unwrap());
    }
}

/// Leaves a process behind that is in another session: neither its group nor its parent's end reaches it.
#[allow(clippy::zombie_processes)]
fn escape() {
    let child = std::process::Command::new("setsid").args(["sleep", "100000"]).spawn().unwrap();
    note("pids", &child.id().to_string());
}

fn hear(message: &Value) {
    let (id, span) = (&message["id"], message["span"].as_str().unwrap_or_default());
    let done = json!({"type": "done", "id": id});
    match message["type"].as_str().unwrap() {
        "hello" => say(&json!({"type": "hello", "version": 1, "extra": "passed over"})),
        "spans" => say(&json!({"type": "spans", "id": id, "spans": ["b", "a", "b"],
                               "held_back": 5, "warnings": ["w"]})),
        "start" => start(message, id, span),
        "stop" if span == "slow" => {
            // Not before the test lets it; other messages are answered meanwhile.
            let stopped = json!({"type": "stopped", "id": id, "position": 50, "at": 60});
            let gate = std::path::Path::new(&std::env::var("FAKE_DIR").unwrap()).join("gate");
            std::thread::spawn(move || {
                while !gate.exists() {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                say(&stopped);
            });
        }
        "stop" if span == "sticky" => say(&json!({"type": "error", "id": id, "message": "it sticks"})),
        "stop" => say(&json!({"type": "stopped", "id": id, "position": 50, "at": 60})),
        "prepare" if span == "unknown" => {
            say(&json!({"type": "error", "id": id, "message": "no such span", "lasting": true}));
        }
        _ => say(&done),
    }
}

fn start(message: &Value, id: &Value, span: &str) {
    let epoch = &message["epoch"];
    let position = message["from"]["position"].as_u64().unwrap_or(0) + 1;
    let checkpoint =
        json!({"type": "checkpoint", "span": span, "epoch": epoch, "position": position, "at": 7});
    match span {
        "fenced" => return say(&json!({"type": "error", "id": id, "message": "higher", "fenced": true})),
        "silent" => return,
        _ => say(&json!({"type": "done", "id": id})),
    }
    say(&checkpoint);
    match span {
        "dies" => {
            eprintln!("about to die");
            std::process::exit(3);
        }
        "crashes" => std::process::abort(),
        "rubbish" => println!("Traceback: this is no message"),
        "closes" => {
            let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
            rustix::stdio::dup2_stdout(null).unwrap();
        }
        "fails" => say(&json!({"type": "failed", "span": span, "epoch": epoch, "message": "cannot go on"})),
        _ => {}
    }
}
