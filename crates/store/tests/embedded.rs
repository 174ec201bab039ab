//! The embedded store: the suite, and what only a file can go through.

// clippy takes only the test functions themselves for tests, not what they share
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use store::conformance::Fixture;
use store::embedded::EmbeddedStore;
use store::{Candidate, CommitError, KeyRange, Office, Op, Position, Refusal, Store, StoreError, WatchError};
use tokio::sync::mpsc;

struct Embedded {
    store: EmbeddedStore,
    _directory: tempfile::TempDir,
}

#[async_trait]
impl Fixture for Embedded {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn is_contested(&self) -> bool {
        false
    }

    fn compacts(&self) -> bool {
        false
    }
}

async fn fixture() -> Embedded {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path().join("state.redb")).await.unwrap();
    Embedded { store, _directory: directory }
}

store::conformance!(fixture);

async fn elect(store: &EmbeddedStore) -> Office {
    let campaign = store.office(&Candidate::new("a", ""), Duration::from_secs(5)).await.unwrap();
    campaign.elected().unwrap()
}

async fn records(store: &EmbeddedStore) -> Result<(BTreeMap<Vec<u8>, Vec<u8>>, Position), store::LoadError> {
    let (sink, mut batches) = mpsc::channel(1000);
    let position = store.load(&[KeyRange { start: b"a".to_vec(), end: b"z".to_vec() }], sink).await?;
    let mut records = BTreeMap::new();
    while let Ok(batch) = batches.try_recv() {
        records.extend(batch.into_iter().map(|record| (record.key.to_vec(), record.value.to_vec())));
    }
    Ok((records, position))
}

#[tokio::test]
async fn a_new_life_finds_what_was_committed_and_gets_a_higher_term() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    let mut term = 0;
    let mut earlier = None;
    for life in 1..=5 {
        let store = EmbeddedStore::open(&path).await.unwrap();
        assert_eq!(store.head().await.unwrap(), life - 1);
        if let Some(office) = &earlier {
            let refused = store.commit(office, life, &[]).await;
            let lost = matches!(
                refused,
                Err(CommitError::Refused { why: Refusal::OfficeLost { holder: None, .. }, .. })
            );
            assert!(lost, "{refused:?}");
        }
        let office = elect(&store).await;
        assert!(office.term > term);
        term = office.term;
        store.commit(&office, life, &[Op::put(format!("n/{life}"), "x")]).await.unwrap();
        earlier = Some(office);
        let (found, position) = records(&store).await.unwrap();
        assert_eq!((found.len() as u64, position.head), (life, life));
        let before = Position { head: life - 1, revision: life - 1 };
        assert_eq!(store.watch(before).await.unwrap().next().await.unwrap().head, life);
        if life > 1 {
            let long_ago = Position { head: 0, revision: 0 };
            let next = store.watch(long_ago).await.unwrap().next().await;
            assert!(matches!(next, Err(WatchError::Compacted { .. })));
        }
    }
}

#[tokio::test]
async fn a_file_in_use_is_refused_with_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    let first = EmbeddedStore::open(&path).await.unwrap();
    let error = EmbeddedStore::open(&path).await.err().unwrap();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("is in use by another process"), "{error}");
    drop(first);
    EmbeddedStore::open(&path).await.unwrap();
}

#[tokio::test]
async fn a_file_of_another_format_is_refused_with_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    drop(EmbeddedStore::open(&path).await.unwrap());
    let database = redb::Database::open(&path).unwrap();
    let txn = database.begin_write().unwrap();
    txn.open_table(redb::TableDefinition::<&str, u64>::new("meta")).unwrap().insert("format", 7).unwrap();
    txn.commit().unwrap();
    drop(database);
    let error = EmbeddedStore::open(&path).await.err().unwrap();
    let wanted = format!("the state file {} holds state of format 7; this binary knows 1", path.display());
    assert_eq!(error.to_string(), wanted);
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_named() {
    let error = EmbeddedStore::open("/nonexistent/state.redb").await.err().unwrap();
    assert!(error.to_string().contains("/nonexistent/state.redb"), "{error}");
}

#[tokio::test]
async fn a_creation_that_was_cut_short_is_begun_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    fs::write(directory.path().join("state.redb.creating"), b"half a file").unwrap();
    let store = EmbeddedStore::open(&path).await.unwrap();
    assert_eq!(store.head().await.unwrap(), 0);
}

/// A file with some history, closed in order or copied while in use, and what it holds.
async fn history(directory: &Path, in_use: bool) -> (PathBuf, BTreeMap<Vec<u8>, Vec<u8>>) {
    let path = directory.join("original.redb");
    let store = EmbeddedStore::open(&path).await.unwrap();
    let office = elect(&store).await;
    for n in 1..=30_u64 {
        let mut ops: Vec<Op> =
            (0..20).map(|m| Op::put(format!("n/{:03}", n * 13 % 17 * 20 + m), vec![n as u8; 90])).collect();
        ops.push(Op::put("n/head", n.to_string()));
        store.commit(&office, n, &ops).await.unwrap();
    }
    let (found, _) = records(&store).await.unwrap();
    if !in_use {
        drop(store);
        return (path, found);
    }
    let copy = directory.join("copy.redb");
    fs::copy(&path, &copy).unwrap();
    (copy, found)
}

/// Opens a damaged file: either it is refused with advice, or nothing is missing. Says which.
async fn opens_whole_or_is_refused(path: &Path, wanted: &BTreeMap<Vec<u8>, Vec<u8>>, how: &str) -> bool {
    let store = match EmbeddedStore::open(path).await {
        Ok(store) => store,
        Err(error @ StoreError::Damaged { .. }) => {
            let text = error.to_string();
            assert!(text.contains("restore it from a backup, or move it away and start empty"), "{text}");
            assert!(text.contains(&path.display().to_string()), "{text}");
            return false;
        }
        Err(StoreError::Format { .. }) => return false,
        Err(error) => panic!("{how}: {error:?}"),
    };
    let (found, position) = records(&store).await.unwrap_or_else(|error| panic!("{how}: {error}"));
    assert!(found == *wanted && position.head == 30, "{how}: something is missing, head {}", position.head);
    let office = elect(&store).await;
    store
        .commit(&office, 31, &[Op::put("n/after", "1")])
        .await
        .unwrap_or_else(|error| panic!("{how}: {error}"));
    true
}

#[tokio::test]
async fn a_truncated_file_is_refused_and_never_panics() {
    for in_use in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (original, wanted) = history(directory.path(), in_use).await;
        let bytes = fs::read(&original).unwrap();
        let path = directory.path().join("truncated.redb");
        let lengths = (0..64).chain((64..bytes.len()).step_by(bytes.len() / 97)).chain([bytes.len() - 1]);
        let mut refused = 0;
        for length in lengths {
            fs::write(&path, &bytes[..length]).unwrap();
            let whole = opens_whole_or_is_refused(&path, &wanted, &format!("truncated to {length}")).await;
            refused += usize::from(!whole);
        }
        assert!(refused >= 64, "only {refused} were refused");
        fs::write(&path, &bytes).unwrap();
        assert!(opens_whole_or_is_refused(&path, &wanted, "untouched").await);
    }
}

#[tokio::test]
async fn a_file_with_flipped_bytes_is_refused_or_whole_and_never_panics() {
    for in_use in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (original, wanted) = history(directory.path(), in_use).await;
        let bytes = fs::read(&original).unwrap();
        let path = directory.path().join("flipped.redb");
        let mut refused = 0;
        let header = (0..320).flat_map(|place| [(place, 0x01), (place, 0xff)]);
        let pages = (320..bytes.len()).step_by(bytes.len() / 197).map(|place| (place, 0x10));
        for (place, mask) in header.chain(pages) {
            // the one bit by which redb commits: turning it over is taking the last commit back
            if in_use && (place, mask) == (9, 0x01) {
                continue;
            }
            let mut damaged = bytes.clone();
            damaged[place] ^= mask;
            fs::write(&path, &damaged).unwrap();
            let how = format!("byte {place} ^ {mask:#x} of {}, in use: {in_use}", bytes.len());
            refused += usize::from(!opens_whole_or_is_refused(&path, &wanted, &how).await);
        }
        assert!(refused > 20, "only {refused} were refused");
    }
}
