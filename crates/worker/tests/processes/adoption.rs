//! What a daemon finds after a restart.

use worker::runtime::{Ended, Found, LaunchError};
use worker::shim::book;
use worker::shim::record::{ExitRecord, LaunchRecord, Record, RunRecord};
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
    what_an_earlier_release_left_is_judged_as_it_was,
    a_shim_of_an_earlier_release_is_found_by_its_lock_and_nothing_is_started_beside_it,
    the_next_run_clears_away_the_files_of_an_earlier_release,
    a_living_shim_answers_for_its_corrupted_record,
    shims_outlive_the_process_that_forked_them_and_another_takes_its_place,
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
    let log = stage.dir("a").join("current.log");
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

/// Changes the lines on record behind everybody's back: `None` takes one away.
fn edit(stage: &Stage, change: impl Fn(&str, String) -> Option<String>) {
    let path = stage.dir("a").join("run");
    let text = std::fs::read_to_string(&path).unwrap();
    let changed = text.lines().filter_map(|line| change(line.split_once(' ').unwrap().0, line.to_owned()));
    std::fs::write(&path, changed.map(|line| line + "\n").collect::<String>()).unwrap();
}

fn take_away(stage: &Stage, words: &[&str]) {
    edit(stage, |word, line| (!words.contains(&word)).then_some(line));
}

fn replace(stage: &Stage, word: &str, from: &str, to: &str) {
    edit(stage, |of, line| Some(if of == word { line.replace(from, to) } else { line }));
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
    take_away(&stage, &["exit"]);
    replace(&stage, "run", &worker::host::boot_id(), "00000000-0000-0000-0000-000000000000");
    let Found::Lost { why } = adopt(&stage, "a") else { panic!("not lost") };
    assert_eq!(why, "the machine restarted");
}

fn a_launch_without_a_run_never_started() {
    let stage = Stage::new();
    ended_run(&stage);
    take_away(&stage, &["exit", "run"]);
    assert!(matches!(adopt(&stage, "a"), Found::NeverStarted));
    std::fs::create_dir(stage.dir("empty")).unwrap();
    assert!(matches!(adopt(&stage, "empty"), Found::NeverStarted));
}

fn a_launch_of_another_boot_may_have_run_and_is_lost() {
    let stage = Stage::new();
    ended_run(&stage);
    take_away(&stage, &["exit", "run"]);
    replace(&stage, "launch", &worker::host::boot_id(), "another");
    let Found::Lost { why } = adopt(&stage, "a") else { panic!("not lost") };
    assert_eq!(why, "the machine restarted");
}

fn an_exit_of_an_earlier_run_says_nothing_of_this_one() {
    let stage = Stage::new();
    ended_run(&stage);
    // The daemon wrote the next launch and died before it had started the shim.
    replace(&stage, "launch", "\"run\":1,", "\"run\":2,");
    assert!(matches!(adopt(&stage, "a"), Found::NeverStarted));
    replace(&stage, "run", "\"run\":1,", "\"run\":2,");
    assert!(matches!(adopt(&stage, "a"), Found::Lost { .. }));
}

fn corrupted_records_are_told_and_never_panic() {
    for (word, content) in [
        ("exit", "exit {\"version\":1,"),
        ("exit", "exit \0\0\0\0"),
        ("exit", "\0\0\0\0"),
        ("launch", "launch"),
        ("launch", "launch {\"version\": 99}"),
        ("run", "run []"),
    ] {
        let stage = Stage::new();
        ended_run(&stage);
        if word == "run" {
            take_away(&stage, &["exit"]);
        }
        edit(&stage, |of, line| Some(if of == word { content.to_owned() } else { line }));
        let Found::Lost { why } = adopt(&stage, "a") else { panic!("{word} {content:?}: not lost") };
        assert!(why.starts_with("run: "), "{why}");
        assert!(why.contains(word) || content.starts_with('\0'), "{why}");
    }
}

/// The directory as an earlier release would have left it.
fn as_before(stage: &Stage) {
    let dir = stage.dir("a");
    fn put<R: Record>(dir: &std::path::Path) {
        if let Some(record) = book::read_record::<R>(dir).unwrap() {
            std::fs::write(dir.join(R::EARLIER_FILE), serde_json::to_vec_pretty(&record).unwrap()).unwrap();
        }
    }
    put::<LaunchRecord>(&dir);
    put::<RunRecord>(&dir);
    put::<ExitRecord>(&dir);
    std::fs::write(dir.join(book::EARLIER_LOCK), "").unwrap();
    std::fs::remove_file(dir.join("run")).unwrap();
}

fn what_an_earlier_release_left_is_judged_as_it_was() {
    let stage = Stage::new();
    ended_run(&stage);
    as_before(&stage);
    let file = |name: &str| stage.dir("a").join(name);
    let Found::Exited(exit) = adopt(&stage, "a") else { panic!("not exited") };
    assert_eq!((exit.code, exit.run), (Some(1), 1));
    let whole = std::fs::read(file("exit.json")).unwrap();
    for content in [&b"{\"version\":1,"[..], b"\x00\x00\x00\x00"] {
        std::fs::write(file("exit.json"), content).unwrap();
        let Found::Lost { why } = adopt(&stage, "a") else { panic!("not lost") };
        assert!(why.starts_with("exit.json"), "{why}");
    }
    std::fs::remove_file(file("exit.json")).unwrap();
    let Found::Lost { why } = adopt(&stage, "a") else { panic!("not lost") };
    assert_eq!(why, "its shim was killed");
    std::fs::remove_file(file("run.json")).unwrap();
    assert!(matches!(adopt(&stage, "a"), Found::NeverStarted));
    std::fs::write(file("exit.json"), whole).unwrap();
    std::fs::write(file("launch.json"), b"").unwrap();
    let Found::Lost { why } = adopt(&stage, "a") else { panic!("not lost") };
    assert!(why.starts_with("launch.json"), "{why}");
}

fn a_shim_of_an_earlier_release_is_found_by_its_lock_and_nothing_is_started_beside_it() {
    let stage = Stage::new();
    ended_run(&stage);
    let mut shim = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = i32::try_from(shim.id()).unwrap();
    let start = stage.own(pid);
    as_before(&stage);
    std::fs::remove_file(stage.dir("a").join("exit.json")).unwrap();
    let mut run = book::read_record::<RunRecord>(&stage.dir("a")).unwrap().unwrap();
    (run.shim_pid, run.shim_start) = (pid, start);
    std::fs::write(stage.dir("a").join("run.json"), serde_json::to_vec_pretty(&run).unwrap()).unwrap();
    let lock = std::fs::File::open(stage.dir("a").join("lock")).unwrap();
    lock.lock().unwrap();
    let Found::Running(handle) = adopt(&stage, "a") else { panic!("not running") };
    assert_eq!((handle.shim_pid(), handle.run()), (pid, 1));
    daemon(async {
        let again = stage.runtime.launch(stage.shell("a", "exit 0")).await;
        assert!(matches!(again, Err(LaunchError::Busy { .. })), "{again:?}");
        assert!(matches!(stage.runtime.remove("a").await, Err(LaunchError::Busy { .. })));
    });
    assert!(matches!(adopt(&stage, "a"), Found::Running(_)));
    kill(pid, Some(start));
    shim.wait().unwrap();
    drop(lock);
    assert!(matches!(adopt(&stage, "a"), Found::Lost { .. }));
}

fn the_next_run_clears_away_the_files_of_an_earlier_release() {
    let stage = Stage::new();
    ended_run(&stage);
    as_before(&stage);
    daemon(async {
        let mut again = stage.shell("a", "exit 3");
        again.run = 2;
        let handle = stage.runtime.launch(again).await.unwrap();
        let exit = exit_of(&handle).await;
        assert_eq!((exit.code, exit.run), (Some(3), 2));
    });
    for file in ["lock", "launch.json", "run.json", "exit.json"] {
        assert!(!stage.dir("a").join(file).exists(), "{file} is left");
    }
    let Found::Exited(exit) = adopt(&stage, "a") else { panic!("not exited") };
    assert_eq!(exit.run, 2);
}

fn a_living_shim_answers_for_its_corrupted_record() {
    let stage = Stage::new();
    let pid = daemon(async {
        let handle = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        stage.own(handle.shim_pid());
        handle.pid()
    });
    std::fs::write(stage.dir("a").join("run"), b"garbage").unwrap();
    daemon(async {
        let adopted = stage.runtime_again().adopt(&stage.dir("a")).await;
        let Found::Running(handle) = adopted.found else { panic!("{:?}", adopted.found) };
        assert_eq!(handle.pid(), pid);
        handle.kill().await.unwrap();
        exit_of(&handle).await;
    });
}

fn shims_outlive_the_process_that_forked_them_and_another_takes_its_place() {
    let stage = Stage::new();
    daemon(async {
        let first = stage.runtime.launch(stage.shell("a", "exec sleep 1000")).await.unwrap();
        let nursery = sys::proc_stat(first.shim_pid()).unwrap().parent;
        assert_ne!(nursery, i32::try_from(std::process::id()).unwrap());
        let start = sys::proc_stat(nursery).unwrap().start_time;
        kill(nursery, Some(start));
        dies(nursery, start);
        let second = stage.runtime.launch(stage.shell("b", "exec sleep 1000")).await.unwrap();
        for handle in [&first, &second] {
            assert!(handle.status().await.unwrap().running);
            handle.kill().await.unwrap();
            assert_eq!(exit_of(handle).await.signal, Some(libc::SIGKILL));
        }
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
