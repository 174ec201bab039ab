//! Orders and notes as the next daemon reads them, also those of earlier releases.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;

fn run() -> Run {
    let file = ServiceFile {
        name: "web".into(),
        kind: "service".into(),
        count: None,
        command: vec!["true".into()],
        env: BTreeMap::new(),
        memory: "64MiB".into(),
        cpu: 100,
        ports: vec![],
        check: None,
        edge: None,
        stop: Default::default(),
        migrate: Default::default(),
        update: Default::default(),
        volume: None,
        disk: Default::default(),
        rerun: true,
        constraints: BTreeMap::new(),
    };
    let spec = Arc::new(file.check().unwrap().2);
    Run { service: ServiceName::new("web"), release: 4, slot: None, volume: None, disk_from: None, spec }
}

const FIRST: Note = Note { order: 1, wanted: Wanted::Run, ready: false, over: None, copied: Copied::Done };
const READY: Note = Note { ready: true, ..FIRST };
const OVER: Note =
    Note { order: 3, wanted: Wanted::Stop, ready: false, over: Some(Ending::Stopped), copied: Copied::Not };

fn ordered(start: Option<u32>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    save_order(dir.path(), &order_line(InstanceId(7), FIRST, &run(), &[8080], start)).unwrap();
    dir
}

#[test]
fn an_order_is_read_back_with_the_last_of_its_notes() {
    let dir = ordered(Some(2));
    let kept = load_order(dir.path()).unwrap();
    assert_eq!((kept.id, kept.note, kept.ports), (InstanceId(7), FIRST, vec![8080]));
    assert_eq!((kept.run.release, kept.started_before_boot), (4, None));
    save_note(dir.path(), READY).unwrap();
    assert_eq!(load_order(dir.path()).unwrap().note, READY);
    assert!(!is_over(dir.path()));
    save_note(dir.path(), OVER).unwrap();
    assert_eq!(load_order(dir.path()).unwrap().note, OVER);
    assert!(is_over(dir.path()));
}

#[test]
fn an_order_that_is_written_anew_leaves_none_of_the_notes_below_the_earlier_one() {
    let dir = ordered(Some(1));
    save_note(dir.path(), READY).unwrap();
    save_order(dir.path(), &order_line(InstanceId(7), FIRST, &run(), &[], Some(2))).unwrap();
    assert_eq!(load_order(dir.path()).unwrap().note, FIRST);
}

#[test]
fn a_note_that_was_cut_short_was_not_written_and_spoils_none_that_follows() {
    let dir = ordered(Some(1));
    let path = dir.path().join(ORDER);
    save_note(dir.path(), READY).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for cut in [&b"\n{\"order\":9,\"wan"[..], b"\n", b"\n\0\0\0\0"] {
        std::fs::write(&path, [&whole, cut].concat()).unwrap();
        assert_eq!(load_order(dir.path()).unwrap().note, READY);
        save_note(dir.path(), OVER).unwrap();
        assert_eq!(load_order(dir.path()).unwrap().note, OVER);
    }
}

#[test]
fn an_order_that_is_empty_or_broken_is_told_and_never_guessed() {
    let dir = ordered(Some(1));
    let whole = std::fs::read(dir.path().join(ORDER)).unwrap();
    for broken in [&b""[..], &whole[..whole.len() / 2], b"\0\0\0\0"] {
        std::fs::write(dir.path().join(ORDER), broken).unwrap();
        assert!(load_order(dir.path()).is_err());
        assert!(!is_over(dir.path()));
    }
}

#[test]
fn a_start_of_another_boot_is_told_from_one_of_this() {
    let dir = ordered(Some(5));
    let path = dir.path().join(ORDER);
    let text = std::fs::read_to_string(&path).unwrap().replace(&host::boot_id(), "another");
    std::fs::write(&path, text).unwrap();
    assert_eq!(load_order(dir.path()).unwrap().started_before_boot, Some(5));
    // Ordered, and never started: its data was still on the way.
    assert_eq!(load_order(ordered(None).path()).unwrap().started_before_boot, None);
}

/// As the release before wrote it: one value over many lines, written anew for every note.
const EARLIER: &str = include_str!("earlier_order.json");

#[test]
fn an_order_of_the_release_before_is_read_and_takes_notes() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(ORDER), EARLIER).unwrap();
    let kept = load_order(dir.path()).unwrap();
    assert_eq!(kept.run.service, ServiceName::new("web"));
    assert_eq!((kept.note.wanted, kept.note.ready, kept.note.over), (Wanted::Run, true, None));
    assert_eq!((kept.ports.len(), kept.started_before_boot), (1, None));
    save_note(dir.path(), OVER).unwrap();
    assert_eq!(load_order(dir.path()).unwrap().note, OVER);
    assert!(is_over(dir.path()));
}
