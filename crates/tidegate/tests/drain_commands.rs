//! Draining from the command line against canned answers: exit codes, what is printed, what is sent.

#![allow(clippy::unwrap_used)]

mod common;

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{Done, Scratch, command, tidegate};
use expect_test::expect;
use serde_json::{Value, json};

/// Answers by `METHOD path`: the next of its list, the last again and again. Keeps what it was asked.
struct Canned {
    addr: String,
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

type Answers = HashMap<String, Vec<(u16, Value)>>;

impl Canned {
    fn new(answers: &[(&str, &[(u16, Value)])]) -> Canned {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut answers: Answers =
            answers.iter().map(|(call, list)| ((*call).to_owned(), list.to_vec())).collect();
        let seen = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &mut answers, &seen);
            }
        });
        Canned { addr, asked }
    }

    fn run(&self, args: &[&str]) -> Done {
        let scratch = Scratch::new();
        let args: Vec<&str> = ["--addr", &self.addr].iter().chain(args).copied().collect();
        tidegate(scratch.path(), &args)
    }

    fn body_of(&self, call: &str) -> Value {
        let asked = self.asked.lock().unwrap();
        let (_, body) = asked.iter().find(|(asked, _)| asked == call).unwrap();
        serde_json::from_str(body).unwrap()
    }

    fn count(&self, call: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|(asked, _)| asked == call).count()
    }
}

fn answer(stream: TcpStream, answers: &mut Answers, seen: &Mutex<Vec<(String, String)>>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let call = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    seen.lock().unwrap().push((call.clone(), String::from_utf8(body).unwrap()));
    let missing = vec![(404, error("not_found", &format!("nothing is canned for {call}")))];
    let list = answers.entry(call).or_insert(missing);
    let (status, value) = if list.len() > 1 { list.remove(0) } else { list[0].clone() };
    let text = value.to_string();
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", text.len());
    let _ = reader.into_inner().write_all(format!("{head}{text}").as_bytes());
}

fn error(code: &str, message: &str) -> Value {
    json!({ "error": { "code": code, "message": message, "details": {} } })
}

/// One node's part of drain 7, with what a test changes in it.
fn part(node: &str, state: &str, change: Value) -> Value {
    let mut part = json!({
        "epoch": 7, "node": node, "state": state,
        "started_at": "2026-11-15T09:00:00.000Z", "deadline": null, "ended_at": null, "deadline_reached": false,
        "message": "kernel update", "meta": { "ticket": "OPS-1" }, "by": "token:alice",
        "options": {
            "deadline": "1h", "ignore_system": false, "ack_stateful": false, "include_stateful": false,
            "then": "stay", "return": "enable"
        },
        "total": 12, "done": 0, "progress": 0.0, "eta_seconds": 40.0, "eta_basis": "min_healthy_time × waves",
        "stalled": false,
        "remaining": remaining(0, 0, 0),
        "left": [], "blockers": [], "waits": []
    });
    for (key, value) in change.as_object().unwrap() {
        part[key] = value.clone();
    }
    part
}

fn remaining(stateless: u64, system: u64, stateful: u64) -> Value {
    json!({
        "instances": stateless, "batch": 0, "system": system, "stateful": stateful, "maintainers": 0,
        "dispatchers": {}, "stores": 0, "unknown": 0, "units": []
    })
}

fn drain(state: &str, parts: &[Value]) -> Value {
    json!({
        "epoch": 7, "state": state, "message": "kernel update", "meta": { "ticket": "OPS-1" }, "by": "token:alice",
        "from": "127.0.0.1", "created_at": "2026-11-15T09:00:00.000Z", "ended_at": null, "nodes": parts
    })
}

fn node(state: &str) -> Value {
    json!({
        "id": "node-2", "roles": ["worker"], "state": state, "intent": "active", "health": "up",
        "health_since": "2026-11-15T09:00:00.000Z", "coordinator": false, "connected": true, "last_heartbeat": null,
        "process_epoch": 3, "address": "", "host": "127.0.0.1", "labels": { "rack": "r1" },
        "capacity": { "memory": 0, "cpu": 0 }, "used": { "memory": 0, "cpu": 0 },
        "counts": { "instances": 0, "maintainers": 0, "dispatchers": 0, "stores": 0 }, "memory_caps": "none",
        "unclaimed": [], "drain_epoch": 7, "reasons": [], "registered_at": "2026-11-15T09:00:00.000Z"
    })
}

/// A drain of node-2 that is accepted, seen closed, and looked at in these states.
fn following(looks: &[Value]) -> Canned {
    let looks: Vec<(u16, Value)> =
        looks.iter().map(|part| (200, drain("draining", std::slice::from_ref(part)))).collect();
    Canned::new(&[
        ("PUT /v1/nodes/node-2/drain", &[(202, part("node-2", "draining", json!({})))]),
        ("GET /v1/nodes/node-2", &[(200, node("draining"))]),
        ("GET /v1/drains/7", &looks),
    ])
}

fn over(state: &str, change: Value) -> Value {
    let mut over = part(
        "node-2",
        state,
        json!({ "done": 12, "progress": 1.0, "ended_at": "2026-11-15T09:00:14.000Z", "eta_seconds": null, "eta_basis": "" }),
    );
    for (key, value) in change.as_object().unwrap() {
        over[key] = value.clone();
    }
    over
}

#[test]
fn only_a_drain_that_ended_as_asked_ends_with_0() {
    let forced = json!({ "deadline_reached": true, "options": {
        "deadline": "0s", "ignore_system": false, "ack_stateful": false, "include_stateful": false,
        "then": "stay", "return": "enable" } });
    let left = json!({ "done": 11, "left": [{ "unit": "instance/db-1", "code": "volume_local" }] });
    let endings = [
        (over("drained", json!({})), 0, "node-2 drained in 14s: 12 units gone\n"),
        (over("drained", forced), 0, "node-2 drained in 14s: 12 units gone\n"),
        (
            over("drained", json!({ "deadline_reached": true })),
            3,
            "node-2 drained in 14s: 12 units gone; the deadline was reached: not everything had its time\n",
        ),
        (
            over("drained_except", left),
            3,
            "node-2 drained in 14s except for 1: 11 of 12 units gone\n  left running: instance/db-1 volume_local — \
             Its data is on a volume of this node.\n",
        ),
        (
            over("cancelled", json!({ "done": 3 })),
            3,
            "node-2 not drained: drain 7 was cancelled after 3 of 12 units; it takes work again\n",
        ),
        (
            over("node_lost", json!({ "done": 3 })),
            3,
            "node-2 not drained: it went offline after 3 of 12 units; what could move was started elsewhere\n",
        ),
        (
            over("failed", json!({ "done": 0 })),
            3,
            "node-2 not drained: its turn came and it was refused; it takes work again\n",
        ),
    ];
    for (ending, code, text) in endings {
        let done = following(&[ending]).run(&["node", "drain", "node-2"]);
        assert_eq!((done.code, done.stdout.as_str()), (code, text), "{}", done.stderr);
    }
}

#[test]
fn the_worst_of_several_nodes_decides() {
    let parts = [part("node-2", "queued", json!({})), part("node-3", "queued", json!({}))];
    let mut lost = over("node_lost", json!({ "done": 3 }));
    lost["node"] = json!("node-3");
    let server = Canned::new(&[
        ("POST /v1/drains", &[(202, drain("queued", &parts))]),
        ("GET /v1/nodes/node-2", &[(200, node("draining"))]),
        ("GET /v1/nodes/node-3", &[(200, node("queued"))]),
        ("GET /v1/drains/7", &[(200, drain("node_lost", &[over("drained", json!({})), lost]))]),
    ]);
    let done = server.run(&["node", "drain", "node-2", "node/node-3", "node-2", "--then", "stop"]);
    assert_eq!(done.code, 3, "{}", done.stderr);
    assert!(done.stdout.starts_with("node-2 drained in 14s"), "{}", done.stdout);
    assert!(done.stdout.contains("node-3 not drained: it went offline"), "{}", done.stdout);
    assert_eq!(server.body_of("POST /v1/drains"), json!({ "nodes": ["node-2", "node-3"], "then": "stop" }));
}

#[test]
fn only_what_was_said_is_sent() {
    let server = following(&[over("drained", json!({}))]);
    server.run(&["node", "drain", "node-2"]);
    assert_eq!(server.body_of("PUT /v1/nodes/node-2/drain"), json!({}));
    let server = following(&[over("drained", json!({}))]);
    let flags = "--no-deadline --ignore-system --ack-stateful --include-stateful --yes --then stop --return enable \
                 --message why --meta a=1 --meta b=2=3";
    let args: Vec<&str> = ["node", "drain", "node-2"].into_iter().chain(flags.split_whitespace()).collect();
    assert_eq!(server.run(&args).code, 0);
    let said = json!({
        "deadline": "none", "ignore_system": true, "ack_stateful": true, "include_stateful": true, "then": "stop",
        "return": "enable", "message": "why", "meta": { "a": "1", "b": "2=3" }
    });
    assert_eq!(server.body_of("PUT /v1/nodes/node-2/drain"), said);
}

#[test]
fn without_a_terminal_there_is_a_line_per_change() {
    let blocker = json!({
        "code": "volume_local", "unit": "instance/db-1", "since": null, "message": "its data is on a volume of this node",
        "hint": "acknowledge it", "details": { "volume": "db-data-0" }
    });
    let wait = |code: &str| json!({ "code": code, "unit": "instance/web-1", "since": null, "message": "short by 96MiB" });
    let looks = [
        part("node-2", "draining", json!({ "remaining": remaining(10, 1, 1) })),
        part("node-2", "draining", json!({ "remaining": remaining(10, 1, 1), "eta_seconds": 39.0 })),
        part(
            "node-2",
            "draining",
            json!({
                "done": 7, "remaining": remaining(3, 1, 1), "eta_seconds": 13.2, "eta_basis": "pace of the last 7 moves",
                "blockers": [blocker], "waits": [wait("no_capacity_memory"), wait("max_parallel")]
            }),
        ),
        part("node-2", "draining", json!({ "done": 11, "remaining": remaining(0, 1, 0), "stalled": true })),
        over("drained", json!({})),
    ];
    let done = following(&looks).run(&["node", "drain", "node-2"]);
    assert_eq!(done.code, 0);
    // When it was seen depends on the machine; what was seen does not.
    let lines = done.stderr.lines().map(|line| match line.split_once(' ') {
        Some((time, rest)) if time.ends_with('s') && time.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("_ {rest}\n")
        }
        _ => format!("{line}\n"),
    });
    expect![[r#"
        drain 7: node-2 is closed: nothing new is placed there
        _ 0/12 done, 10 stateless, 1 system, 1 stateful left; eta 40s (min_healthy_time × waves)
        _ 7/12 done, 3 stateless, 1 system, 1 stateful left; eta 14s (pace of the last 7 moves)
        _ blocked: volume_local instance/db-1: its data is on a volume of this node — acknowledge it
        _ waits: 1 no_capacity_memory: short by 96MiB (web-1) — add nodes, scale something down, or ask for less memory
        _ 11/12 done, 1 system left; eta 40s (min_healthy_time × waves)
        _ stalled: nothing has left for a while
        _ no longer blocked: volume_local instance/db-1
        _ drained, 12/12 done
        bring it back with: tidegate node enable node-2
    "#]]
    .assert_eq(&lines.collect::<String>());
}

#[test]
fn a_failover_in_the_middle_is_waited_for_and_said_once() {
    let unavailable = || (503, error("no_coordinator", "there is no coordinator"));
    let going = || {
        (200, drain("draining", &[part("node-2", "draining", json!({ "remaining": remaining(2, 0, 0) }))]))
    };
    let server = Canned::new(&[
        ("PUT /v1/nodes/node-2/drain", &[(202, part("node-2", "draining", json!({})))]),
        ("GET /v1/nodes/node-2", &[(200, node("draining"))]),
        (
            "GET /v1/drains/7",
            &[
                going(),
                unavailable(),
                unavailable(),
                going(),
                (200, drain("drained", &[over("drained", json!({}))])),
            ],
        ),
    ]);
    let done = server.run(&["node", "drain", "node-2"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(done.stderr.matches("trying again").count(), 1, "{}", done.stderr);
    assert_eq!(done.stderr.matches("answers again").count(), 1, "{}", done.stderr);
}

#[test]
fn what_preflight_refuses_ends_with_4() {
    for (status, code) in [(409, "drain_in_progress"), (412, "no_candidate_left"), (422, "no_node_left")] {
        let refused = (status, error(code, "no open node would be left"));
        let server = Canned::new(&[
            ("PUT /v1/nodes/node-2/drain", std::slice::from_ref(&refused)),
            ("POST /v1/drains", std::slice::from_ref(&refused)),
            ("POST /v1/nodes/node-2/drain/plan", std::slice::from_ref(&refused)),
            ("POST /v1/drains/plan", std::slice::from_ref(&refused)),
        ]);
        for args in [
            &["node-2"][..],
            &["node-2", "node-3"],
            &["--selector", "rack=r1"],
            &["node-2", "--plan"],
            &["node-2", "node-3", "--plan"],
            &["--selector", "rack=r1", "--plan"],
        ] {
            let args: Vec<&str> = ["node", "drain"].iter().chain(args).copied().collect();
            let done = server.run(&args);
            assert_eq!(
                (done.code, done.stderr.as_str()),
                (4, "error: no open node would be left\n"),
                "{args:?}"
            );
        }
    }
}

#[test]
fn wrong_usage_of_a_drain_ends_with_2_and_sends_nothing() {
    let server = Canned::new(&[]);
    let wrong: &[&[&str]] = &[
        &["node", "drain"],
        &["node", "drain", "service/web"],
        &["node", "drain", "a", "--selector", "rack=r1"],
        &["node", "drain", "--selector", "rack"],
        &["node", "drain", "--selector", "rack=r1,rack=r2"],
        &["node", "drain", "a", "--force", "--no-deadline", "--yes"],
        &["node", "drain", "a", "--force", "--deadline", "1h", "--yes"],
        &["node", "drain", "a", "--deadline", "1h", "--no-deadline"],
        &["node", "drain", "a", "--deadline", "0s"],
        &["node", "drain", "a", "--deadline", "-5m"],
        &["node", "drain", "a", "--deadline", "soon"],
        &["node", "drain", "a", "--then", "explode"],
        &["node", "drain", "a", "--return", "never"],
        &["node", "drain", "a", "--meta", "ticket"],
        &["node", "drain", "a", "--plan", "--detach"],
        &["node", "cancel"],
        &["drain", "status", "seven"],
        &["drain", "status", "node/a"],
        &["drain", "cancel", "-1"],
    ];
    for args in wrong {
        let done = server.run(args);
        assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{args:?}: {}", done.stderr);
    }
    assert!(server.asked.lock().unwrap().is_empty());
}

#[test]
fn what_interrupts_service_needs_yes_where_nobody_can_be_asked() {
    let server = following(&[over("drained", json!({}))]);
    for flag in ["--force", "--include-stateful"] {
        let done = server.run(&["node", "drain", "node-2", flag]);
        assert_eq!(done.code, 2);
        assert!(done.stderr.contains(flag) && done.stderr.contains("--yes"), "{}", done.stderr);
    }
    assert!(server.asked.lock().unwrap().is_empty());
    assert_eq!(server.run(&["node", "drain", "node-2", "--force", "--yes"]).code, 0);
    assert_eq!(server.body_of("PUT /v1/nodes/node-2/drain"), json!({ "force": true }));
}

#[test]
fn a_node_that_is_not_seen_closed_does_not_drain_whatever_was_answered() {
    let server = Canned::new(&[
        ("PUT /v1/nodes/node-2/drain", &[(202, part("node-2", "draining", json!({})))]),
        ("GET /v1/nodes/node-2", &[(200, node("active"))]),
        ("GET /v1/drains/7", &[(200, drain("draining", &[part("node-2", "draining", json!({}))]))]),
    ]);
    let done = server.run(&["node", "drain", "node-2", "--detach"]);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""));
    assert!(done.stderr.contains("node-2 still takes work"), "{}", done.stderr);
}

#[test]
fn detached_it_returns_once_the_node_is_closed() {
    let server = following(&[part("node-2", "draining", json!({}))]);
    let done = server.run(&["node", "drain", "node-2", "--detach"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert_eq!(
        done.stdout,
        "drain 7: node-2 is closed; see: tidegate drain status 7, cancel: tidegate drain cancel 7\n"
    );
    assert_eq!((server.count("GET /v1/nodes/node-2"), server.count("GET /v1/drains/7")), (1, 0));
}

#[test]
fn ctrl_c_leaves_the_drain_going_and_says_so() {
    let server = following(&[part("node-2", "draining", json!({ "remaining": remaining(3, 0, 0) }))]);
    let scratch = Scratch::new();
    let mut command = command(scratch.path(), &["--addr", &server.addr, "node", "drain", "node-2"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while server.count("GET /v1/drains/7") == 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(
        said.ends_with("the drain goes on; see: tidegate drain status 7, cancel: tidegate drain cancel 7\n"),
        "{said}"
    );
    assert_eq!(server.count("DELETE /v1/drains/7"), 0);
}

#[test]
fn a_plan_says_where_everything_goes_and_what_is_in_the_way() {
    let plan = json!({
        "node": "node-2",
        "moves": [
            { "unit": "instance/web-1", "to": "node-1", "wave": 1 },
            { "unit": "instance/web-2", "to": "node-3", "wave": 2 },
            { "unit": "instance/agent-1", "to": null, "wave": 3 }
        ],
        "blockers": [{
            "code": "volume_local", "unit": "instance/db-1", "since": null,
            "message": "its data is on a volume of this node", "hint": "acknowledge it", "details": {}
        }],
        "waits": [{ "code": "batch_running", "unit": "instance/report-1", "since": null, "message": "runs to its end" }],
        "waves": 3, "eta_seconds": 40.0, "eta_basis": "min_healthy_time × waves"
    });
    let server = Canned::new(&[("POST /v1/nodes/node-2/drain/plan", &[(200, plan.clone())])]);
    let done = server.run(&["node", "drain", "node-2", "--plan", "--force"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    expect![[r#"
        node-2: 2 would move in 3 waves, 1 would stop, 1 blocked, 1 would wait; about 40s (min_healthy_time × waves); nothing was changed

        WAVE  UNIT     FROM    TO
        1     web-1    node-2  node-1
        2     web-2    node-2  node-3
        3     agent-1  node-2  (stops; nothing takes its place)

        blocked, a person is needed:
          volume_local db-1: its data is on a volume of this node
            what to do: acknowledge it

        waits:
          1 batch_running: runs to its end (report-1)
    "#]]
    .assert_eq(&done.stdout);
    assert_eq!(server.asked.lock().unwrap().len(), 1);
    let done = server.run(&["node", "drain", "node-2", "--plan", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&done.stdout).unwrap(), plan);
}

#[test]
fn a_plan_of_several_nodes_is_asked_for_once_and_shown_node_by_node() {
    let plan = |node: &str, unit: &str| {
        json!({
            "node": node, "moves": [{ "unit": unit, "to": "node-1", "wave": 1 }], "blockers": [], "waits": [],
            "waves": 1, "eta_seconds": 12.0, "eta_basis": "min_healthy_time × waves"
        })
    };
    let both = json!({ "items": [plan("node-2", "instance/web-1"), plan("node-3", "instance/web-2")] });
    let server = Canned::new(&[("POST /v1/drains/plan", &[(200, both.clone())])]);
    let done = server.run(&["node", "drain", "node-2", "node-3", "--plan"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    expect![[r#"
        node-2: 1 would move in 1 wave; about 12s (min_healthy_time × waves); nothing was changed

        WAVE  UNIT   FROM    TO
        1     web-1  node-2  node-1

        node-3: 1 would move in 1 wave; about 12s (min_healthy_time × waves); nothing was changed

        WAVE  UNIT   FROM    TO
        1     web-2  node-3  node-1
    "#]]
    .assert_eq(&done.stdout);
    assert_eq!(server.asked.lock().unwrap().len(), 1);
    let done = server.run(&["node", "drain", "--selector", "rack=r1", "--plan", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&done.stdout).unwrap(), both);
}

#[test]
fn drains_are_listed_shown_and_cancelled() {
    let mut rest = remaining(1, 0, 1);
    rest["units"] = json!([
        { "unit": "instance/web-1", "class": "stateless", "code": "replacement_starting", "message": "web-9 on node-1 is starting" },
        { "unit": "instance/db-1", "class": "stateful", "code": "volume_local", "message": "its data is on a volume" }
    ]);
    let going = part(
        "node-2",
        "draining",
        json!({
            "done": 10, "remaining": rest,
            "waits": [{ "code": "replacement_starting", "unit": "instance/web-1", "since": null, "message": "web-9 on node-1 is starting" }],
            "blockers": [{ "code": "volume_local", "unit": "instance/db-1", "since": null, "message": "its data is on a volume", "hint": "acknowledge it", "details": {} }]
        }),
    );
    let whole = drain("draining", &[going]);
    let server = Canned::new(&[
        ("GET /v1/drains", &[(200, json!({ "items": [whole.clone()] }))]),
        ("GET /v1/drains/7", &[(200, whole.clone())]),
        ("DELETE /v1/drains/7", &[(202, whole)]),
        ("DELETE /v1/nodes/node-2/drain", &[(202, json!({}))]),
        ("DELETE /v1/nodes/node-3/drain", &[(409, error("no_drain", "node-3 is in no drain"))]),
    ]);
    let list = server.run(&["drain", "list"]).stdout;
    assert!(list.starts_with("EPOCH  NODES   STATE     DONE   STARTED"), "{list}");
    assert!(list.contains("node-2") && list.contains("10/12") && list.contains("token:alice"), "{list}");
    let status = server.run(&["drain", "status", "7"]).stdout;
    let (_, status) = status.split_once("\n\n").unwrap();
    expect![[r#"
        node-2: draining (drain 7), 10/12 done, 1 stateless, 1 stateful left; eta 40s (min_healthy_time × waves); no deadline
          remaining: stateless 1, batch 0, system 0, stateful 1, unknown 0
          blocked: volume_local db-1: its data is on a volume
            what to do: acknowledge it
          waits: 1 replacement_starting: web-9 on node-1 is starting (web-1)

        UNIT   CLASS      WHY                   WHAT
        web-1  stateless  replacement_starting  web-9 on node-1 is starting
        db-1   stateful   volume_local          its data is on a volume
    "#]]
    .assert_eq(status);
    assert_eq!(server.run(&["status", "drain/7"]).code, 0);
    assert_eq!(
        server.run(&["drain", "cancel", "7"]).stdout,
        "drain 7 is cancelled: its nodes take work again\n"
    );
    assert_eq!(
        server.run(&["node", "cancel", "node-2"]).stdout,
        "node-2 is out of its drain and takes work again\n"
    );
    let done = server.run(&["node", "cancel", "node-3"]);
    assert_eq!((done.code, done.stderr.as_str()), (4, "error: node-3 is in no drain\n"));
}
