//! What earlier releases stored is read by this one. `README.md` says what to do at a release.

#![allow(clippy::unwrap_used)]

mod first;
mod second;

use std::collections::BTreeSet;
use std::path::PathBuf;

use model::{ALL_CODES, Change, Cluster, Code, Key, decode_record, encode_change};

/// A release by its name, and what its records say.
type Release = (&'static str, fn() -> Vec<Change>);

/// Oldest first. The last one is what this binary writes.
const RELEASES: [Release; 2] = [("first", first::all), ("second", second::all)];

fn path(release: &str, what: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/stored/{what}/{release}.txt"))
}

fn read(release: &str, what: &str) -> String {
    let path = path(release, what);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Keys and values, a line each.
fn records(release: &str) -> Vec<(String, Vec<u8>)> {
    let record = |line: &str| {
        let (key, hex) = line.split_once(' ').unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (key.to_owned(), (0..hex.len()).step_by(2).map(byte).collect())
    };
    read(release, "records").lines().map(record).collect()
}

/// From one list: a kind that is not in it does not compile, and one that is in it needs a record.
macro_rules! kinds {
    ($($kind:ident $fields:tt,)*) => {
        const KINDS: &[&str] = &[$(stringify!($kind)),*];

        fn kind(key: &Key) -> &'static str {
            match key { $(Key::$kind $fields => stringify!($kind),)* }
        }
    };
}

kinds! {
    Meta {},
    Node(_),
    Service(_),
    Instance(_),
    Volume(_),
    Audit(_),
    Drain(_),
    Feed(_),
    StoreGroup(_),
    Store(_),
    Token(_),
}

#[test]
fn every_record_of_an_earlier_release_is_read_as_what_it_said() {
    for (release, expected) in RELEASES {
        let (records, expected) = (records(release), expected());
        assert_eq!(records.len(), expected.len(), "records of {release}");
        let mut cluster = Cluster::default();
        for ((key, value), expected) in records.into_iter().zip(expected) {
            let read = decode_record(&cluster, &key, Some(&value));
            let read = read.unwrap_or_else(|error| panic!("{release}: {error}"));
            assert_eq!(read, expected, "{key} of {release}");
            cluster.apply(&read);
        }
    }
}

/// And is as it was when this binary writes it again: nothing of it is forgotten on the way.
#[test]
fn a_record_that_was_read_and_written_again_says_the_same() {
    for (release, expected) in RELEASES {
        let mut cluster = Cluster::default();
        for change in expected() {
            cluster.apply(&change);
            let (key, value) = encode_change(&cluster, &change);
            assert_eq!(
                decode_record(&cluster, &key, value.as_deref()).unwrap(),
                change,
                "{key} of {release}"
            );
        }
    }
}

#[test]
fn no_kind_of_record_is_without_an_example_of_what_this_binary_writes() {
    let (_, present) = RELEASES.last().unwrap();
    let there: BTreeSet<&str> = present().iter().map(|change| kind(&change.key())).collect();
    let missing: Vec<&&str> = KINDS.iter().filter(|kind| !there.contains(**kind)).collect();
    assert!(missing.is_empty(), "no record of {missing:?}: see crates/model/tests/stored/README.md");
}

/// What is written must be what the next release's tests will read; `TIDEGATE_WRITE_RECORDS=1` writes it.
#[test]
fn this_binary_writes_what_is_kept_as_its_own() {
    let (release, present) = RELEASES.last().unwrap();
    let (mut cluster, mut lines) = (Cluster::default(), String::new());
    for change in present() {
        cluster.apply(&change);
        let (key, value) = encode_change(&cluster, &change);
        let hex: String = value.unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        lines.push_str(&format!("{key} {hex}\n"));
    }
    let codes: String = ALL_CODES.iter().map(|code| format!("{code:?}\n")).collect();
    if std::env::var_os("TIDEGATE_WRITE_RECORDS").is_some() {
        std::fs::write(path(release, "records"), &lines).unwrap();
        std::fs::write(path(release, "codes"), &codes).unwrap();
    }
    for (kept, written) in read(release, "records").lines().zip(lines.lines()) {
        assert_eq!(kept, written, "a record has another shape: see crates/model/tests/stored/README.md");
    }
    assert_eq!(read(release, "records").lines().count(), lines.lines().count());
    assert_eq!(read(release, "codes"), codes, "see crates/model/tests/stored/README.md");
}

/// Records hold them by number.
#[test]
fn a_reason_code_keeps_its_number() {
    let there: Vec<String> = ALL_CODES.iter().map(|code: &Code| format!("{code:?}")).collect();
    for (release, _) in RELEASES {
        let then: Vec<String> = read(release, "codes").lines().map(str::to_owned).collect();
        assert_eq!(there[..then.len()], then, "codes of {release}");
    }
}
