//! From the start of a run to its end.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;
use worker::logs;
use worker::runtime::{LaunchError, LogLimits};
use worker::shim::{book, record::ExitRecord};
use worker::sys;

use crate::stage::{Stage, daemon, dies, exit_of, until};

crate::tests![
    the_exit_code_is_known,
    death_by_a_signal_is_known,
    the_end_is_told_promptly_and_again_to_who_asks_later,
    a_command_that_cannot_start_says_why,
    the_environment_of_the_daemon_stays_with_the_daemon,
    what_the_daemon_holds_open_is_not_passed_on,
    signals_that_the_shim_ignores_are_not_ignored_by_the_instance,
    a_kill_takes_the_whole_group_that_ignores_sigterm,
    what_the_main_process_leaves_behind_is_killed,
    what_escapes_into_its_own_session_is_killed_even_without_cgroups,
    a_stop_waits_for_the_grace_period_and_not_longer,
    memory_beyond_the_cap_ends_the_instance,
    the_cap_kills_all_of_an_instance_when_it_kills_one_process,
    both_streams_are_logged_and_full_logs_are_put_aside,
    a_log_that_cannot_be_written_does_not_stop_the_instance,
    the_ending_is_recorded_on_a_disk_that_is_full,
    logs_are_followed_to_the_last_byte,
    a_second_run_is_told_from_the_first,
    a_thousand_lines_before_the_exit_are_all_there,
];

fn the_exit_code_is_known() {
    let stage = Stage::new();
    daemon(async {
        for (instance, code) in [("a", 0), ("b", 7)] {
            let handle = stage.runtime.launch(stage.shell(instance, &format!("exit {code}"))).await.unwrap();
            let exit = exit_of(&handle).await;
            assert_eq!((exit.code, exit.signal, exit.run), (Some(code), None, 1));
            assert!(!exit.memory_exceeded && !exit.fenced && exit.start_failed.is_none());
        }
    });
}

fn death_by_a_signal_is_known() {
    let stage = Stage::new();
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        handle.signal(libc::SIGTERM).await.unwrap();
        let exit = exit_of(&handle).await;
        assert_eq!((exit.code, exit.signal), (None, Some(libc::SIGTERM)));
        assert_eq!(exit.describe(), "killed by SIGTERM");
    });
}

fn the_end_is_told_promptly_and_again_to_who_asks_later() {
    let stage = Stage::new();
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "read x < gate; exit 4")).await;
        // The gate does not exist: the shell fails at once, and the handle must still tell it.
        let handle = handle.unwrap();
        let first = exit_of(&handle).await;
        assert_eq!(exit_of(&handle.clone()).await, first);
        let sleeper = stage.runtime.launch(stage.shell("b", "exec sleep 1000")).await.unwrap();
        let start = sys::proc_stat(sleeper.pid()).unwrap().start_time;
        let waiting = tokio::spawn({
            let sleeper = sleeper.clone();
            async move { (exit_of(&sleeper).await, Instant::now()) }
        });
        sleeper.kill().await.unwrap();
        let (_, told) = waiting.await.unwrap();
        assert!(!sys::is_alive(sleeper.pid(), start), "told before it was dead");
        assert!(told.elapsed() < Duration::from_secs(5));
        // Asking what is over already is no error.
        sleeper.signal(libc::SIGTERM).await.unwrap();
        sleeper.kill().await.unwrap();
    });
}

fn a_command_that_cannot_start_says_why() {
    let stage = Stage::new();
    let script = stage.data().join("script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut nowhere = stage.shell("c", "true");
    nowhere.workdir = stage.data().join("nowhere");
    let cases = [
        (stage.command("a", &["/no/such/command"]), "/no/such/command: No such file or directory"),
        (stage.command("b", &[script.to_str().unwrap()]), "Permission denied"),
        (nowhere, "nowhere: no such directory"),
        (stage.command("d", &[]), "the command is empty"),
    ];
    daemon(async {
        for (launch, why) in cases {
            let instance = launch.instance.clone();
            let Err(LaunchError::StartFailed(exit)) = stage.runtime.launch(launch).await else {
                panic!("{instance} started");
            };
            let said = exit.start_failed.unwrap();
            assert!(said.contains(why), "{said}");
            assert_eq!((exit.code, exit.signal), (None, None));
        }
    });
}

fn the_environment_of_the_daemon_stays_with_the_daemon() {
    let stage = Stage::new();
    daemon(async {
        let mut launch = stage.shell("a", "env > environment");
        launch.env.insert("PORT_HTTP".into(), "20001".into());
        let handle = stage.runtime.launch(launch).await.unwrap();
        exit_of(&handle).await;
        let text = std::fs::read_to_string(stage.data().join("environment")).unwrap();
        let has = |entry: &str| text.lines().any(|l| l.starts_with(entry));
        assert!(has("PORT_HTTP=20001") && has("PATH=") && has("TIDEGATE_INSTANCE=a"), "{text}");
        assert!(!has("CARGO"), "{text}");
    });
}

fn what_the_daemon_holds_open_is_not_passed_on() {
    let stage = Stage::new();
    let file = std::fs::File::create(stage.data().join("held")).unwrap();
    // Without close-on-exec, as what a careless parent hands down.
    let _held = rustix::io::dup(&file).unwrap();
    daemon(async {
        let handle = stage.runtime.launch(stage.command("a", &["sleep", "1000"])).await.unwrap();
        let open = |pid: i32| -> Vec<_> {
            let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            entries.filter_map(|e| std::fs::read_link(e.path()).ok()).collect()
        };
        assert_eq!(open(handle.pid()).len(), 3, "{:?}", open(handle.pid()));
        assert!(!open(handle.shim_pid()).iter().any(|path| path.ends_with("held")));
        handle.kill().await.unwrap();
        exit_of(&handle).await;
    });
}

fn signals_that_the_shim_ignores_are_not_ignored_by_the_instance() {
    let stage = Stage::new();
    daemon(async {
        for (instance, signal) in [("a", libc::SIGINT), ("b", libc::SIGHUP), ("c", libc::SIGPIPE)] {
            let handle = stage.runtime.launch(stage.command(instance, &["sleep", "1000"])).await.unwrap();
            // To the shim first, as Ctrl-C in a terminal would do: nothing happens.
            signal_one(sys::pid(handle.shim_pid()).unwrap(), signal);
            handle.signal(signal).await.unwrap();
            assert_eq!(exit_of(&handle).await.signal, Some(signal));
        }
    });
}

fn signal_one(pid: rustix::process::Pid, signal: i32) {
    let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Forks a child and a grandchild that all ignore SIGTERM, and writes the three pids.
const STUBBORN: &str = "trap '' TERM
    (sh -c 'sleep 1000 & echo $! >> pids.new; wait' & echo $! >> pids.new; wait) &
    echo $! >> pids.new
    while [ $(wc -l < pids.new) -lt 3 ]; do sleep 0.01; done
    mv pids.new pids
    wait";

fn a_kill_takes_the_whole_group_that_ignores_sigterm() {
    let stage = Stage::new();
    let handle_and_pids = daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", STUBBORN)).await.unwrap();
        let pids = stage.numbers("pids", 3);
        let pids: Vec<_> = pids.into_iter().map(|pid| (pid, stage.own(pid))).collect();
        handle.signal(libc::SIGTERM).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(300), handle.wait_exit()).await;
        assert!(early.is_err(), "it was to ignore SIGTERM: {early:?}");
        handle.kill().await.unwrap();
        assert_eq!(exit_of(&handle).await.signal, Some(libc::SIGKILL));
        pids
    });
    for (pid, start) in handle_and_pids {
        // Not "dies": when the end is told, nothing of it may be left.
        assert!(!sys::is_alive(pid, start), "{pid} lives on");
    }
}

fn what_the_main_process_leaves_behind_is_killed() {
    let stage = Stage::new();
    daemon(async {
        let script = "sleep 1000 & echo $! > pids; exit 3";
        let handle = stage.runtime.launch(stage.shell("a", script)).await.unwrap();
        let exit = exit_of(&handle).await;
        assert_eq!(exit.code, Some(3));
        let left = stage.numbers("pids", 1)[0];
        assert!(sys::proc_stat(left).is_none(), "{left} lives on");
    });
}

fn what_escapes_into_its_own_session_is_killed_even_without_cgroups() {
    for stage in [Stage::new(), Stage::with_v2(), Stage::without_cgroups()] {
        daemon(async {
            let script = "setsid sh -c 'echo $$ > pids; exec sleep 1000' & \
                          while [ ! -s pids ]; do sleep 0.01; done; exit 5";
            let handle = stage.runtime.launch(stage.shell("a", script)).await.unwrap();
            assert_eq!(exit_of(&handle).await.code, Some(5));
            let escaped = stage.numbers("pids", 1)[0];
            assert!(sys::proc_stat(escaped).is_none(), "{escaped} lives on");
        });
    }
}

fn a_stop_waits_for_the_grace_period_and_not_longer() {
    let stage = Stage::new();
    daemon(async {
        let polite = "trap 'sleep 0.2; exit 9' TERM; echo > ready; while :; do sleep 0.01; done";
        let handle = stage.runtime.launch(stage.shell("a", polite)).await.unwrap();
        until("the trap", || stage.data().join("ready").exists());
        let ended = handle.stop(libc::SIGTERM, Duration::from_secs(30)).await;
        assert!(matches!(ended, worker::runtime::Ended::Exited(e) if e.code == Some(9)));
        let stubborn = stage.shell("b", "trap '' TERM; echo > deaf; while :; do sleep 0.01; done");
        let handle = stage.runtime.launch(stubborn).await.unwrap();
        until("the trap", || stage.data().join("deaf").exists());
        let ended = handle.stop(libc::SIGTERM, Duration::from_millis(200)).await;
        assert!(matches!(ended, worker::runtime::Ended::Exited(e) if e.signal == Some(libc::SIGKILL)));
    });
}

/// The tests of the cap need a machine that has one; the reason is said where it does not.
fn has_cap(stage: &Stage) -> bool {
    let cap = stage.runtime.cgroups().memory_cap();
    if let Err(why) = cap {
        println!("no memory cap on this machine: {why}");
    }
    cap.is_ok()
}

fn memory_beyond_the_cap_ends_the_instance() {
    let stage = Stage::new();
    if !has_cap(&stage) {
        return;
    }
    daemon(async {
        // tail keeps all of an endless line in memory.
        let mut launch = stage.command("a", &["tail", "/dev/zero"]);
        launch.memory_limit = Some(32 << 20);
        let handle = stage.runtime.launch(launch).await.unwrap();
        let exit = exit_of(&handle).await;
        assert!(exit.memory_exceeded, "{exit:?}");
        assert_eq!(exit.signal, Some(libc::SIGKILL));
        let mut modest = stage.shell("b", "exit 0");
        modest.memory_limit = Some(32 << 20);
        let exit = exit_of(&stage.runtime.launch(modest).await.unwrap()).await;
        assert!(exit.success() && !exit.memory_exceeded);
    });
    let left = std::fs::read_dir(stage.runtime.cgroups().base().unwrap()).unwrap();
    let left: Vec<_> = left.flatten().filter(|e| e.path().is_dir()).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn the_cap_kills_all_of_an_instance_when_it_kills_one_process() {
    let stage = Stage::new();
    if !has_cap(&stage) {
        return;
    }
    daemon(async {
        // The shell would live on after its greedy child.
        let mut launch = stage.shell("a", "tail /dev/zero & sleep 1000 & wait; sleep 1000");
        launch.memory_limit = Some(32 << 20);
        let handle = stage.runtime.launch(launch).await.unwrap();
        let exit = exit_of(&handle).await;
        assert!(exit.memory_exceeded && exit.signal == Some(libc::SIGKILL), "{exit:?}");
    });
}

fn both_streams_are_logged_and_full_logs_are_put_aside() {
    let stage = Stage::new();
    daemon(async {
        let script = "n=0; while [ $n -lt 400 ]; do echo out $n; echo err $n >&2; n=$((n+1)); done";
        let mut launch = stage.shell("a", script);
        launch.log = LogLimits { file_bytes: 1000, files: 3 };
        exit_of(&stage.runtime.launch(launch).await.unwrap()).await;
    });
    let logs = stage.dir("a");
    let aside = logs::rotated(&logs).unwrap();
    assert_eq!(aside.len(), 2, "{aside:?}");
    let sizes = |p: &std::path::Path| std::fs::metadata(p).unwrap().len();
    assert!(aside.iter().all(|(_, p)| sizes(p) <= 1000) && sizes(&logs.join(logs::CURRENT)) <= 1000);
    let last = daemon(logs::tail(&stage.dir("a"), 4)).unwrap();
    assert_eq!(String::from_utf8(last).unwrap(), "out 398\nerr 398\nout 399\nerr 399\n");
}

fn a_log_that_cannot_be_written_does_not_stop_the_instance() {
    let stage = Stage::new();
    let logs = stage.dir("a").join("logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::os::unix::fs::symlink("/dev/full", logs.join(logs::CURRENT)).unwrap();
    daemon(async {
        // More than a pipe holds: it would block if nobody read.
        let script = "head -c 300000 /dev/zero; echo > done; exit 6";
        let exit = exit_of(&stage.runtime.launch(stage.shell("a", script)).await.unwrap()).await;
        assert_eq!((exit.code, exit.log_bytes_lost), (Some(6), 300_000));
        assert!(stage.data().join("done").exists());
    });
}

/// A small filesystem of its own, where this user may mount one.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(dir.path());
        let mounted = mount.stderr(std::process::Stdio::null()).status().is_ok_and(|s| s.success());
        mounted.then_some(Self(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn the_ending_is_recorded_on_a_disk_that_is_full() {
    let Some(mount) = Mount::new() else {
        println!("cannot mount a filesystem here");
        return;
    };
    let stage = Stage::at(tempfile::tempdir_in(mount.0.path()).unwrap(), None);
    daemon(async {
        // Its output fills the disk, and more of it comes after that.
        let script = "head -c 400000 /dev/zero; exit 11";
        let handle = stage.runtime.launch(stage.shell("a", script)).await.unwrap();
        let exit = exit_of(&handle).await;
        assert_eq!(exit.code, Some(11));
        assert!(exit.log_bytes_lost > 0, "the disk was not full");
        // A start that cannot be put on record does not happen.
        let refused = stage.runtime.launch(stage.shell("b", "echo > ran")).await;
        assert!(refused.is_err() && !stage.data().join("ran").exists(), "{refused:?}");
    });
    drop(stage);
}

fn logs_are_followed_to_the_last_byte() {
    let stage = Stage::new();
    daemon(async {
        let script = "n=0; while [ $n -lt 200 ]; do echo line $n; n=$((n+1)); done; sleep 0.3; echo end";
        let mut launch = stage.shell("a", script);
        launch.log = LogLimits { file_bytes: 400, files: 100 };
        let handle = stage.runtime.launch(launch).await.unwrap();
        let over = CancellationToken::new();
        let stream = logs::follow(&stage.dir("a"), logs::Start::Oldest, over.clone());
        let read = stream.map(|chunk| chunk.unwrap()).concat();
        let end = async {
            exit_of(&handle).await;
            over.cancel();
        };
        let (read, ()) = tokio::join!(read, end);
        let expected: String = (0..200).map(|n| format!("line {n}\n")).chain(["end\n".into()]).collect();
        assert_eq!(String::from_utf8(read).unwrap(), expected);
    });
}

fn a_second_run_is_told_from_the_first() {
    let stage = Stage::new();
    daemon(async {
        let first = stage.runtime.launch(stage.shell("a", "echo one; exit 1")).await.unwrap();
        assert_eq!(exit_of(&first).await.run, 1);
        let mut again = stage.shell("a", "echo two; exec sleep 1000");
        again.run = 2;
        let second = stage.runtime.launch(again).await.unwrap();
        assert_eq!(second.run(), 2);
        let exit = book::read_record::<ExitRecord>(&stage.dir("a")).unwrap();
        assert!(exit.is_none_or(|exit| exit.run == 1));
        second.kill().await.unwrap();
        let exit = exit_of(&second).await;
        assert_eq!((exit.run, exit.signal), (2, Some(libc::SIGKILL)));
        assert_eq!(logs::tail(&stage.dir("a"), 9).await.unwrap(), b"one\ntwo\n");
        stage.runtime.remove("a").await.unwrap();
        assert!(!stage.dir("a").exists());
    });
}

fn a_thousand_lines_before_the_exit_are_all_there() {
    let stage = Stage::new();
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "seq 1000")).await.unwrap();
        let (pid, start) = (handle.shim_pid(), sys::proc_stat(handle.shim_pid()).map(|s| s.start_time));
        exit_of(&handle).await;
        let expected: String = (1..=1000).map(|n| format!("{n}\n")).collect();
        assert_eq!(String::from_utf8(logs::tail(&stage.dir("a"), 5000).await.unwrap()).unwrap(), expected);
        if let Some(start) = start {
            dies(pid, start);
        }
        // Reaped, not only dead: a daemon that starts thousands must not collect zombies.
        for _ in 0..500 {
            if sys::proc_stat(pid).is_none_or(|s| Some(s.start_time) != start) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the shim is a zombie");
    });
}
