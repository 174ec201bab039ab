//! The control socket, and the fence.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use worker::runtime::{Ended, Found, LaunchError};
use worker::shim::control::SOCKET;
use worker::sys;

use crate::stage::{Stage, daemon, dies, exit_of};

crate::tests![
    the_fence_kills_when_no_daemon_lives,
    a_fence_that_is_moved_does_not_kill_at_the_old_time,
    a_fence_in_the_past_kills_at_once_and_before_the_start_prevents_it,
    unknown_questions_get_an_error_and_the_shim_lives_on,
    a_shim_that_does_not_answer_cannot_protect_its_instance,
];

fn the_fence_kills_when_no_daemon_lives() {
    let stage = Stage::new();
    let deadline = sys::boottime_ms() + 700;
    let (child, shim) = daemon(async {
        let mut launch = stage.shell("a", "trap '' TERM; sleep 1000 & wait; sleep 1000");
        launch.fence_ms = Some(deadline);
        let handle = stage.runtime.launch(launch).await.unwrap();
        let of = |pid| (pid, sys::proc_stat(pid).unwrap().start_time);
        (of(handle.pid()), of(handle.shim_pid()))
    });
    assert!(sys::is_alive(child.0, child.1) || sys::boottime_ms() >= deadline);
    dies(child.0, child.1);
    assert!(sys::boottime_ms() >= deadline, "killed before its time");
    dies(shim.0, shim.1);
    let found = daemon(async { stage.runtime_again().adopt(&stage.dir("a")).await }).found;
    let Found::Exited(exit) = found else { panic!("{found:?}") };
    assert!(exit.fenced && exit.signal == Some(libc::SIGKILL), "{exit:?}");
}

fn a_fence_that_is_moved_does_not_kill_at_the_old_time() {
    let stage = Stage::new();
    daemon(async {
        let mut launch = stage.shell("a", "exec sleep 1000");
        let first = sys::boottime_ms() + 1500;
        launch.fence_ms = Some(first);
        let handle = stage.runtime.launch(launch).await.unwrap();
        handle.set_fence(Some(first + 600_000)).await.unwrap();
        assert_eq!(handle.status().await.unwrap().fence_ms, Some(first + 600_000));
        while sys::boottime_ms() < first + 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(handle.status().await.unwrap().running);
        handle.set_fence(None).await.unwrap();
        assert_eq!(handle.status().await.unwrap().fence_ms, None);
        handle.set_fence(Some(sys::boottime_ms() + 100)).await.unwrap();
        assert!(exit_of(&handle).await.fenced);
    });
}

fn a_fence_in_the_past_kills_at_once_and_before_the_start_prevents_it() {
    let stage = Stage::new();
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        handle.set_fence(Some(0)).await.unwrap();
        assert!(exit_of(&handle).await.fenced);
        let mut late = stage.shell("b", "echo > ran");
        late.fence_ms = Some(sys::boottime_ms().saturating_sub(1));
        let Err(LaunchError::StartFailed(exit)) = stage.runtime.launch(late).await else { panic!("ran") };
        assert!(exit.start_failed.unwrap().contains("lease"));
        assert!(!stage.data().join("ran").exists());
    });
}

fn connect(dir: &Path) -> UnixStream {
    let handle = std::fs::File::open(dir).unwrap();
    let stream = UnixStream::connect(sys::short_path(&handle, SOCKET)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn unknown_questions_get_an_error_and_the_shim_lives_on() {
    let stage = Stage::new();
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        let mut stream = connect(&stage.dir("a"));
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let mut ask = |line: &[u8]| -> Value {
            stream.write_all(line).unwrap();
            stream.write_all(b"\n").unwrap();
            let mut answer = String::new();
            answers.read_line(&mut answer).unwrap();
            serde_json::from_str(&answer).unwrap()
        };
        for (line, why) in [
            (&b"{\"v\":2,\"op\":\"status\"}"[..], "unknown version; known: 1"),
            (b"{\"op\":\"status\"}", "unknown version; known: 1"),
            (b"{\"v\":1,\"op\":\"dance\"}", "unknown op \"dance\"; known: status, signal, kill, fence"),
            (b"{\"v\":1}", "no op"),
            (b"{\"v\":1,\"op\":\"signal\",\"signal\":0}", "signal: a number from 1 to 64"),
            (b"{\"v\":1,\"op\":\"signal\"}", "signal: a number from 1 to 64"),
            (b"{\"v\":1,\"op\":\"fence\",\"deadline_ms\":-1}", "deadline_ms: milliseconds, or null"),
            (b"{\"v\":1,\"op\":\"fence\"}", "deadline_ms: milliseconds, or null"),
            (b"\xff\xfe{", "not JSON"),
            (b"", "not JSON"),
        ] {
            assert_eq!(ask(line), json!({"v": 1, "ok": false, "error": why}));
        }
        let nested = ["[".repeat(5000), "[".repeat(126) + &"]".repeat(126)];
        assert_eq!(nested.map(|n| ask(n.as_bytes())["ok"].clone()), [json!(false), json!(false)]);
        let status = ask(b"{\"v\":1,\"op\":\"status\",\"later\":\"field\"}");
        assert_eq!(status["status"]["run"]["child_pid"], json!(handle.pid()));
        // A connection that floods is closed, and does not take the shim with it.
        let mut flood = connect(&stage.dir("a"));
        let _ = flood.write_all(&vec![b'x'; 1 << 20]);
        drop(flood);
        assert!(handle.status().await.unwrap().running);
        handle.kill().await.unwrap();
        exit_of(&handle).await;
    });
}

fn a_shim_that_does_not_answer_cannot_protect_its_instance() {
    let stage = Stage::new();
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        let start = sys::proc_stat(handle.pid()).unwrap().start_time;
        stage.own(handle.shim_pid());
        let shim = sys::pid(handle.shim_pid()).unwrap();
        rustix::process::kill_process(shim, rustix::process::Signal::STOP).unwrap();
        handle.kill().await.unwrap();
        dies(handle.pid(), start);
        rustix::process::kill_process(shim, rustix::process::Signal::CONT).unwrap();
        let ended = handle.wait_exit().await;
        assert!(matches!(ended, Ended::Exited(e) if e.signal == Some(libc::SIGKILL)));
    });
}
