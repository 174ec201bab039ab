//! Backends that are commands: the example of the documentation, and commands that do wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backends::testing::wait_for;
use backends::{
    Backend, BackendError, CommandBackend, CommandConfig, Count, Memo, Moving, Preflight, Refusal, StoreId,
    StoreState,
};

const LONG: Duration = Duration::from_secs(60);

fn example(books: &Path) -> CommandBackend {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/store-backend.sh");
    let argv = [script, books.to_owned()].map(|word| word.display().to_string()).to_vec();
    CommandBackend::new(CommandConfig { argv, timeout: LONG })
}

fn books(stores: &[(&str, u64)]) -> tempfile::TempDir {
    let books = tempfile::tempdir().expect("a place for the books");
    for (store, leaders) in stores {
        fs::create_dir(books.path().join(store)).expect("a place for the books");
        fs::write(books.path().join(store).join("leaders"), leaders.to_string())
            .expect("a place for the books");
    }
    books
}

fn shell(script: &str, timeout: Duration) -> CommandBackend {
    let argv = ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
    CommandBackend::new(CommandConfig { argv, timeout })
}

fn store() -> StoreId {
    StoreId("a".to_owned())
}

fn count(value: u64) -> Count {
    Count { value, complete: true }
}

#[tokio::test]
async fn the_example_goes_through_a_stores_whole_life() {
    let books = books(&[("a", 12), ("b", 9)]);
    let backend = example(books.path());
    let a = backend.identify("a:1").await.unwrap();
    assert_eq!(a, store());
    assert_eq!(backend.members().await.unwrap().len(), 2);
    assert_eq!(backend.replicas().await, Ok(1));
    assert_eq!(backend.state(&a, None).await, Ok(StoreState::Serving { leaders: count(12), data: 12 }));

    let found = backend.evictors(&a).await.unwrap();
    assert_eq!(found.evictors, []);
    backend.evict_leaders(&a, true, &found.memo, LONG).await.unwrap();
    assert_eq!(backend.evictors(&a).await.unwrap().evictors.len(), 1);
    assert_eq!(backend.state(&a, None).await, Ok(StoreState::Serving { leaders: count(0), data: 0 }));
    backend.evict_leaders(&a, false, &found.memo, LONG).await.unwrap();

    let Ok(Preflight::Possible { memo }) = backend.preflight(&a).await else { panic!("it may go") };
    assert_eq!(backend.begin_offline(&a, &memo, LONG).await, Ok(Moving::Underway));
    assert_eq!(backend.begin_offline(&a, &memo, LONG).await, Ok(Moving::Complete));
    let empty = StoreState::Removing { leaders: count(0), data_left: 0, progress: 1.0 };
    assert_eq!(backend.state(&a, Some(&memo)).await, Ok(empty));
    assert_eq!(backend.cancel_offline(&a, &memo, LONG).await, Ok(Moving::Complete));
    assert_eq!(backend.state(&a, None).await, Ok(StoreState::Serving { leaders: count(12), data: 12 }));
    let full = backend.forget(&a, LONG).await;
    assert!(matches!(full, Err(BackendError::NotPossible { .. })), "{full:?}");

    while backend.begin_offline(&a, &memo, LONG).await.unwrap() == Moving::Underway {}
    backend.forget(&a, LONG).await.unwrap();
    backend.forget(&a, LONG).await.unwrap();
    assert_eq!(backend.state(&a, Some(&memo)).await, Ok(StoreState::Removed));
    assert_eq!(backend.state(&a, None).await, Ok(StoreState::Unknown));
    assert!(matches!(backend.preflight(&a).await, Err(BackendError::NotFound { .. })));
    assert!(matches!(backend.identify("a:1").await, Err(BackendError::NotFound { .. })));
    let last = Preflight::Refused { refusal: Refusal::NoStoreForLeaders { leaders: 9 } };
    assert_eq!(backend.preflight(&StoreId("b".to_owned())).await, Ok(last));
}

#[tokio::test]
async fn a_command_reads_the_question_and_is_named_the_call() {
    let backend = shell(r#"printf '{"ok":"%s"}' "$1 $(cat | tr -d '"')""#, LONG);
    let told = backend.identify("host:1").await.unwrap();
    assert_eq!(told.0, "identify {call:identify,address:host:1,within_ms:60000}");
}

#[tokio::test]
async fn an_exit_code_is_told_with_the_last_lines_of_stderr() {
    let backend = shell("for n in 1 2 3 4 5 6 7; do echo line $n >&2; done; exit 3", LONG);
    match backend.replicas().await.unwrap_err() {
        BackendError::Refused { operation: "replicas", whom, words } => {
            assert_eq!(whom, "sh");
            assert_eq!(words, "exit status: 3: line 3\nline 4\nline 5\nline 6\nline 7");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn rubbish_is_refused_with_what_was_wrong() {
    let rubbish = [
        "echo hello; echo why >&2",
        "true",
        "echo '{}'",
        r#"echo '{"ok":"three"}'"#,
        r#"echo '{"ok":3} more'"#,
        r#"echo '{"error":{"kind":"tired","words":""}}'"#,
        "printf '\\377\\376'",
    ];
    for script in rubbish {
        let error = shell(script, LONG).replicas().await.unwrap_err();
        assert!(matches!(error, BackendError::Refused { .. }), "{script}: {error:?}");
    }
    let error = shell(rubbish[0], LONG).replicas().await.unwrap_err();
    assert!(error.to_string().contains("why"), "{error}");
    let far = r#"echo '{"ok":{"state":"removing","leaders":{"value":0,"complete":true},"data_left":0,"progress":7}}'"#;
    let error = shell(far, LONG).state(&store(), None).await.unwrap_err();
    assert!(matches!(error, BackendError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn too_much_output_ends_the_command() {
    let error = shell("yes", LONG).replicas().await.unwrap_err();
    assert!(matches!(error, BackendError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn the_commands_own_errors_keep_their_kind() {
    let fail = |kind: &str| shell(&format!(r#"echo '{{"error":{{"kind":"{kind}","words":"w"}}}}'"#), LONG);
    let memo = Memo::default();
    let ask = async |kind| fail(kind).begin_offline(&store(), &memo, LONG).await.unwrap_err();
    assert!(matches!(ask("unreachable").await, BackendError::Unreachable { .. }));
    assert!(matches!(ask("refused").await, BackendError::Refused { .. }));
    assert!(matches!(ask("not_found").await, BackendError::NotFound { .. }));
    assert!(matches!(ask("not_possible").await, BackendError::NotPossible { .. }));
    let nothing = CommandBackend::new(CommandConfig { argv: vec!["/does/not/exist".into()], timeout: LONG });
    assert!(matches!(nothing.replicas().await, Err(BackendError::NotPossible { .. })));
}

/// Whether the process that wrote its number there is still there.
fn runs(file: &PathBuf) -> Option<bool> {
    let pid = fs::read_to_string(file).ok()?.trim().parse::<u32>().ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    Some(stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
}

#[tokio::test]
async fn a_command_that_hangs_is_killed_with_all_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
    // What it started must be there to be killed, and a busy machine takes its time to start a shell.
    let mut time = Duration::from_secs(1);
    while runs(&file).is_none() {
        let error = shell(&script, time).replicas().await.unwrap_err();
        assert!(matches!(error, BackendError::Unreachable { .. }), "{error:?}");
        time *= 2;
    }
    wait_for("its child to be gone", || async { (runs(&file) == Some(false)).then_some(()) }).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_takes_its_command_along() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let backend = shell(&format!("sleep 1000 & echo $! > {}; wait", file.display()), LONG);
    tokio::select! {
        answer = backend.replicas() => panic!("{answer:?}"),
        () = wait_for("its child to run", || async { (runs(&file) == Some(true)).then_some(()) }) => {}
    }
    wait_for("its child to be gone", || async { (runs(&file) == Some(false)).then_some(()) }).await;
}

#[tokio::test]
async fn what_a_command_leaves_in_the_background_does_not_hold_the_answer() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let script = format!(r#"sleep 1000 & echo $! > {}; echo '{{"ok":3}}'"#, file.display());
    assert_eq!(shell(&script, LONG).replicas().await, Ok(3));
    wait_for("what it left to be gone", || async { (runs(&file) == Some(false)).then_some(()) }).await;
}

#[test]
fn arguments_are_not_shown() {
    let argv = ["prog", "--password=hunter2"].map(str::to_owned).to_vec();
    let backend = CommandBackend::new(CommandConfig { argv, timeout: LONG });
    assert!(!format!("{backend:?}").contains("hunter2"));
}
