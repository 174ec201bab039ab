//! What a daemon finds after a restart.

use worker::runtime::{Ended, Found, LaunchError};
use worker::shim::record::{self, RunRecord};
use worker::sys;

use crate::stage::{Stage, daemon, dies, exit_of, kill, until};

crate::tests![
    an_instance_outlives_the_daemon_and_is_found_with_the_same_pid,
    an_exit_nobody_watched_is_known_afterwards,
    a_killed_shim_takes_its_child_along_and_the_run_is_lost,
    a_killed_shim_leaves_no_grandchild_even_without_cgroups,
    a_run_of_another_boot_is_lost,
    a_launch_without_a_run_never_started,
    a_launch_of_another_boot_may_have_run_and_is_lost,
    an_exit_of_an_earlier_run_says_nothing_of_this_one,
    corrupted_records_are_told_and_never_panic,
    a_living_shim_answers_for_its_corrupted_record,
    two_starts_in_one_directory_cannot_both_succeed,
    a_new_run_clears_away_what_a_lost_one_left,
    empty_groups_are_removed_and_others_are_not,
    it_all_works_in_a_directory_with_a_very_long_path,
];

fn adopt(stage: &Stage, instance: &str) -> Found {
    daemon(async { stage.runtime_again().adopt(&stage.dir(instance)).await }).found
}

fn an_instance_outlives_the_daemon_and_is_found_with_the_same_pid() {
    let stage = Stage::new();
    let launch = stage.shell("a", "while :; do echo tick; sleep 0.01; done");
    let (pid, started) = daemon(async {
        let handle = stage.runtime.launch(launch).await.unwrap();
        (handle.pid(), handle.started_at_ms())
    });
    let log = stage.dir("a").join("logs/current.log");
    let size = || std::fs::metadata(&log).map_or(0, |m| m.len());
    let before = size();
    until("the log to grow without a daemon", || size() > before);
    assert_eq!(stage.runtime_again().scan().unwrap(), [stage.dir("a")]);
    daemon(async {
        let adopted = stage.runtime_again().adopt(&stage.dir("a")).await;
        assert_eq!(adopted.launch.unwrap().instance, "a");
        let Found::Running(handle) = adopted.found else { panic!("{:?}", adopted.found) };
        assert_eq!((handle.pid(), handle.started_at_ms(), handle.run()), (pid, started, 1));
        assert!(handle.status().await.unwrap().running);
        handle.kill().await.unwrap();
        assert_eq!(exit_of(&handle).await.signal, Some(libc::SIGKILL));
    });
}

fn an_exit_nobody_watched_is_known_afterwards() {
    let stage = Stage::new();
    let script = "while [ ! -e go ]; do sleep 0.01; done; exit 42";
    let shim = daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", script)).await.unwrap();
        (handle.shim_pid(), sys::proc_stat(handle.shim_pid()).unwrap().start_time)
    });
    std::fs::write(stage.data().join("go"), "").unwrap();
    dies(shim.0, shim.1);
    for _ in 0..2 {
        let Found::Exited(exit) = adopt(&stage, "a") else { panic!("not exited") };
        assert_eq!((exit.code, exit.run), (Some(42), 1));
    }
}

fn a_killed_shim_takes_its_child_along_and_the_run_is_lost() {
    let stage = Stage::new();
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        let start = stage.own(handle.pid());
        kill(handle.shim_pid(), sys::proc_stat(handle.shim_pid()).map(|s| s.start_time));
        let Ended::Lost { why } = handle.wait_exit().await else { panic!("not lost") };
        assert_eq!(why, "its shim was killed");
        assert!(!sys::is_alive(handle.pid(), start), "the child lives on");
    });
    assert!(matches!(adopt(&stage, "a"), Found::Lost { .. }));
    assert!(!stage.runtime.cgroups().group("a").is_some_and(|g| g.path.exists()));
}

fn a_killed_shim_leaves_no_grandchild_even_without_cgroups() {
    for stage in [Stage::new(), Stage::with_v2(), Stage::without_cgroups()] {
        let script = "sleep 1000 & echo $! > pids; wait";
        let shim = daemon(async {
            let handle = stage.runtime.launch(stage.shell("a", script)).await.unwrap();
            (handle.shim_pid(), sys::proc_stat(handle.shim_pid()).map(|s| s.start_time))
        });
        let grandchild = stage.numbers("pids", 1)[0];
        let start = stage.own(grandchild);
        kill(shim.0, shim.1);
        // Dying, it may still be found; its handle would then tell the loss.
        dies(shim.0, shim.1.unwrap());
        let found = adopt(&stage, "a");
        assert!(matches!(found, Found::Lost { .. }), "{found:?}");
        assert!(!sys::is_alive(grandchild, start), "{grandchild} lives on");
    }
}

/// Changes a record behind everybody's back.
fn edit(stage: &Stage, change: impl FnOnce(&mut RunRecord)) {
    let dir = stage.dir("a");
    let mut run = record::read::<RunRecord>(&dir).unwrap().unwrap();
    change(&mut run);
    record::write(&dir, &run).unwrap();
}

fn ended_run(stage: &Stage) {
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exit 1")).await.unwrap();
        exit_of(&handle).await;
    });
}

fn a_run_of_another_boot_is_lost() {
    let stage = Stage::new();
    ended_run(&stage);
    std::fs::remove_file(stage.dir("a").join("exit.json")).unwrap();
    edit(&stage, |run| run.boot_id = "00000000-0000-0000-0000-000000000000".into());
    let Found::Lost { why } = adopt(&stage, "a") else { panic!("not lost") };
    assert_eq!(why, "the machine restarted");
}

fn a_launch_without_a_run_never_started() {
    let stage = Stage::new();
    ended_run(&stage);
    for file in ["exit.json", "run.json"] {
        std::fs::remove_file(stage.dir("a").join(file)).unwrap();
    }
    assert!(matches!(adopt(&stage, "a"), Found::NeverStarted));
    std::fs::create_dir(stage.dir("empty")).unwrap();
    assert!(matches!(adopt(&stage, "empty"), Found::NeverStarted));
}

fn a_launch_of_another_boot_may_have_run_and_is_lost() {
    let stage = Stage::new();
    ended_run(&stage);
    for file in ["exit.json", "run.json"] {
        std::fs::remove_file(stage.dir("a").join(file)).unwrap();
    }
    let path = stage.dir("a").join("launch.json");
    let launch = std::fs::read_to_string(&path).unwrap().replace(&worker::host::boot_id(), "another");
    std::fs::write(&path, launch).unwrap();
    let Found::Lost { why } = adopt(&stage, "a") else { panic!("not lost") };
    assert_eq!(why, "the machine restarted");
}

fn an_exit_of_an_earlier_run_says_nothing_of_this_one() {
    let stage = Stage::new();
    ended_run(&stage);
    // The daemon wrote the next launch and died before it had cleared away the rest.
    let path = stage.dir("a").join("launch.json");
    let launch = std::fs::read_to_string(&path).unwrap().replace("\"run\": 1,", "\"run\": 2,");
    std::fs::write(&path, launch).unwrap();
    assert!(matches!(adopt(&stage, "a"), Found::NeverStarted));
    edit(&stage, |run| run.run = 2);
    assert!(matches!(adopt(&stage, "a"), Found::Lost { .. }));
}

fn corrupted_records_are_told_and_never_panic() {
    for (file, content) in [
        ("exit.json", &b"{\"version\":1,"[..]),
        ("exit.json", b"\x00\x00\x00\x00"),
        ("launch.json", b""),
        ("launch.json", b"{\"version\": 99}"),
    ] {
        let stage = Stage::new();
        ended_run(&stage);
        std::fs::write(stage.dir("a").join(file), content).unwrap();
        let Found::Lost { why } = adopt(&stage, "a") else { panic!("{file} {content:?}: not lost") };
        assert!(why.starts_with(file), "{why}");
    }
    let stage = Stage::new();
    ended_run(&stage);
    std::fs::remove_file(stage.dir("a").join("exit.json")).unwrap();
    std::fs::write(stage.dir("a").join("run.json"), b"[]").unwrap();
    let Found::Lost { why } = adopt(&stage, "a") else { panic!("not lost") };
    assert!(why.starts_with("run.json"), "{why}");
}

fn a_living_shim_answers_for_its_corrupted_record() {
    let stage = Stage::new();
    let pid = daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        stage.own(handle.shim_pid());
        handle.pid()
    });
    std::fs::write(stage.dir("a").join("run.json"), b"garbage").unwrap();
    daemon(async {
        let adopted = stage.runtime_again().adopt(&stage.dir("a")).await;
        let Found::Running(handle) = adopted.found else { panic!("{:?}", adopted.found) };
        assert_eq!(handle.pid(), pid);
        handle.kill().await.unwrap();
        exit_of(&handle).await;
    });
}

fn two_starts_in_one_directory_cannot_both_succeed() {
    let stage = Stage::new();
    daemon(async {
        let launch = || stage.runtime.launch(stage.shell("a", "echo $$ >> pids; exec sleep 1000"));
        let (a, b, c) = tokio::join!(launch(), launch(), launch());
        let (good, bad): (Vec<_>, Vec<_>) = [a, b, c].into_iter().partition(Result::is_ok);
        assert_eq!((good.len(), bad.len()), (1, 2));
        for error in bad {
            assert!(matches!(error, Err(LaunchError::Busy { .. })), "{error:?}");
        }
        let handle = good.into_iter().next().unwrap().unwrap();
        assert_eq!(stage.numbers("pids", 1), [handle.pid()]);
        assert!(matches!(stage.runtime.remove("a").await, Err(LaunchError::Busy { .. })));
        handle.kill().await.unwrap();
        exit_of(&handle).await;
    });
}

fn a_new_run_clears_away_what_a_lost_one_left() {
    let stage = Stage::new();
    let script = "sleep 1000 & echo $! > pids; wait";
    let shim = daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", script)).await.unwrap();
        (handle.shim_pid(), sys::proc_stat(handle.shim_pid()).map(|s| s.start_time))
    });
    let left = stage.numbers("pids", 1)[0];
    let start = stage.own(left);
    kill(shim.0, shim.1);
    dies(shim.0, shim.1.unwrap());
    daemon(async {
        let mut again = stage.shell("a", "exit 0");
        again.run = 2;
        let handle = stage.runtime.launch(again).await.unwrap();
        assert!(!sys::is_alive(left, start), "{left} lives on");
        assert_eq!(exit_of(&handle).await.run, 2);
    });
}

fn empty_groups_are_removed_and_others_are_not() {
    let stage = Stage::new();
    let cgroups = stage.runtime.cgroups();
    let Some(left) = cgroups.group("left") else {
        println!("no cgroups on this machine");
        return;
    };
    left.create(Some(64 << 20)).unwrap();
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        assert_eq!(cgroups.remove_empty(), 1);
        assert!(!left.path.exists());
        assert_eq!(cgroups.group("a").unwrap().pids(), [handle.pid()]);
        handle.kill().await.unwrap();
        exit_of(&handle).await;
    });
}

fn it_all_works_in_a_directory_with_a_very_long_path() {
    let long = std::env::temp_dir().join("tidegate-long").join("x".repeat(120)).join("y".repeat(120));
    std::fs::create_dir_all(&long).unwrap();
    let stage = Stage::at(tempfile::tempdir_in(&long).unwrap(), None);
    daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        assert!(handle.status().await.unwrap().running);
        handle.signal(libc::SIGTERM).await.unwrap();
        assert_eq!(exit_of(&handle).await.signal, Some(libc::SIGTERM));
    });
    drop(stage);
    let _ = std::fs::remove_dir_all(std::env::temp_dir().join("tidegate-long"));
}
