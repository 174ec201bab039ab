use super::*;
use crate::shim::record::{ExitRecord, LaunchRecord, RunRecord};

fn exit(run: u32) -> ExitRecord {
    ExitRecord {
        version: 1,
        instance: "web-1".into(),
        run,
        code: Some(7),
        signal: None,
        start_failed: None,
        memory_exceeded: false,
        fenced: false,
        log_bytes_lost: 0,
        at_ms: 1,
    }
}

fn book(dir: &Path) -> Book {
    Book::next_run(open(dir, true).unwrap().unwrap()).unwrap()
}

fn read_exit(dir: &Path) -> Result<Option<ExitRecord>, String> {
    read_record(dir)
}

#[test]
fn an_exit_is_read_back_from_the_room_that_was_taken_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut book = book(dir.path());
    book.reserve().unwrap();
    assert_eq!(read_exit(dir.path()), Ok(None));
    book.add(&exit(3)).unwrap();
    book.sync(dir.path()).unwrap();
    assert_eq!(read_exit(dir.path()), Ok(Some(exit(3))));
}

#[test]
fn the_longest_reason_of_a_failed_start_fits_the_room_that_was_taken() {
    let why = record::one_line(&"\"\u{1F30A}".repeat(5000));
    let failed = ExitRecord { start_failed: Some(why), code: None, ..exit(1) };
    let long = serde_json::to_string(&failed).unwrap().len();
    assert!(2 * long < RESERVE, "{long}");
}

#[test]
fn of_each_word_the_last_line_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = book(dir.path());
    first.add(&exit(1)).unwrap();
    let mut second = book(dir.path());
    second.add(&exit(2)).unwrap();
    assert_eq!(read_exit(dir.path()), Ok(Some(exit(2))));
    assert_eq!(read_record::<RunRecord>(dir.path()), Ok(None));
}

#[test]
fn a_line_without_its_end_was_not_written_and_spoils_none_that_follows() {
    let dir = tempfile::tempdir().unwrap();
    book(dir.path()).add(&exit(1)).unwrap();
    let path = dir.path().join(BOOK);
    let whole = std::fs::read_to_string(&path).unwrap();
    for torn in ["e", "exit", "exit {\"version\":1", "launch {\"command\":[\"a b", "  "] {
        std::fs::write(&path, format!("{whole}{torn}")).unwrap();
        assert_eq!(read_exit(dir.path()), Ok(Some(exit(1))), "{torn:?}");
        assert_eq!(read_record::<LaunchRecord>(dir.path()), Ok(None), "{torn:?}");
        book(dir.path()).add(&exit(2)).unwrap();
        assert_eq!(read_exit(dir.path()), Ok(Some(exit(2))), "{torn:?}");
    }
}

#[test]
fn what_is_not_a_record_is_told_and_never_taken_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let check = |content: &[u8], why: &str| {
        std::fs::write(dir.path().join(BOOK), content).unwrap();
        let said = read_exit(dir.path()).unwrap_err();
        assert!(said.starts_with(BOOK) && said.contains(why), "{said}");
    };
    check(b"garbage", "not a record");
    check(b"garbage\n", "not a record");
    check(b"\0\0\0\0", "not a record");
    check(b"\xff\xfe", "cannot be read");
    check(b"exit\n", "exit: not JSON");
    check(b"exit {\"version\": 1, \"run\":\n", "exit: not JSON");
    check(b"exit {}\n", "no version");
    check(b"exit {\"version\": 9}\n", "version 9, this tidegate knows 1");
    check(b"exit {\"version\": 1}\n", "missing field");
}

#[test]
fn runs_that_are_over_are_cleared_away_when_there_are_many() {
    let dir = tempfile::tempdir().unwrap();
    for run in 0..2000 {
        book(dir.path()).add(&exit(run)).unwrap();
    }
    assert!(std::fs::metadata(dir.path().join(BOOK)).unwrap().len() < 2 * BOOK_BYTES_KEPT as u64);
    assert_eq!(read_exit(dir.path()), Ok(Some(exit(1999))));
}

#[test]
fn files_of_an_earlier_release_count_until_there_is_a_line() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("exit.json"), serde_json::to_vec_pretty(&exit(4)).unwrap()).unwrap();
    assert_eq!(read_exit(dir.path()), Ok(Some(exit(4))));
    let mut book = book(dir.path());
    assert_eq!(read_exit(dir.path()), Ok(Some(exit(4))));
    book.add(&exit(5)).unwrap();
    assert_eq!(read_exit(dir.path()), Ok(Some(exit(5))));
}

#[test]
fn what_somebody_spoils_under_the_writer_is_whole_again_with_its_next_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut book = book(dir.path());
    book.add(&exit(1)).unwrap();
    for spoilt in ["", "garbage", &"garbage".repeat(1000)] {
        std::fs::write(dir.path().join(BOOK), spoilt).unwrap();
        book.add(&exit(2)).unwrap();
        assert_eq!(read_exit(dir.path()), Ok(Some(exit(2))));
    }
}
