//! The power is cut: what was synced is on disk, and of what was not, anything.

use store::Store;
use store::embedded::EmbeddedStore;

use crate::disk::Recorder;
use crate::{Dice, elect, is_whole, ops, seed, setting};

const TRANSACTIONS: u64 = 60;
const CUTS: u64 = 250;

/// A disk, and what had been acknowledged after how many of its steps.
struct History {
    disk: Recorder,
    terms: Vec<(usize, u64)>,
    heads: Vec<(usize, u64)>,
}

fn at(acknowledged: &[(usize, u64)], steps: usize) -> u64 {
    acknowledged.iter().rev().find(|(when, _)| *when <= steps).map_or(0, |(_, what)| *what)
}

async fn open(disk: &Recorder, how: &str) -> EmbeddedStore {
    let on = disk.clone();
    let opened = EmbeddedStore::open_on("recorded", move || on.clone()).await;
    opened.unwrap_or_else(|error| panic!("{how}: {error}"))
}

impl History {
    /// Goes on for so many transactions, in lives of ten.
    async fn go_on(&mut self, transactions: u64) {
        let end = at(&self.heads, usize::MAX) + transactions;
        while at(&self.heads, usize::MAX) < end {
            let store = open(&self.disk, "going on").await;
            let office = elect(&store).await;
            self.terms.push((self.disk.steps(), office.term));
            let first = store.head().await.unwrap() + 1;
            for head in first..(first + 10).min(end + 1) {
                store.commit(&office, head, &ops(head)).await.unwrap();
                self.heads.push((self.disk.steps(), head));
            }
        }
    }

    async fn begin() -> History {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.redb");
        drop(EmbeddedStore::open(&path).await.unwrap());
        let disk = Recorder::with(std::fs::read(&path).unwrap());
        History { disk, terms: Vec::new(), heads: Vec::new() }
    }

    /// What is found after a cut is all that was acknowledged, and at most the transaction in flight beside it.
    async fn survives(&self, steps: usize, dice: &mut Dice) -> History {
        let how = format!("cut after {steps} of {} steps", self.disk.steps());
        let disk = Recorder::with(self.disk.image(steps, dice));
        let store = open(&disk, &how).await;
        let (found, acknowledged) = (is_whole(&store, &how).await, at(&self.heads, steps));
        assert!((acknowledged..=acknowledged + 1).contains(&found), "{how}: {found}, not {acknowledged}");
        let (office, term) = (elect(&store).await, at(&self.terms, steps));
        assert!(office.term > term, "{how}: term {} was granted after {term}", office.term);
        let terms = vec![(0, term), (disk.steps(), office.term)];
        store
            .commit(&office, found + 1, &ops(found + 1))
            .await
            .unwrap_or_else(|error| panic!("{how}: {error}"));
        let heads = vec![(0, found), (disk.steps(), found + 1)];
        drop(store);
        History { disk, terms, heads }
    }
}

#[tokio::test]
async fn whatever_a_power_cut_leaves_of_what_was_not_synced_nothing_acknowledged_is_lost() {
    let mut dice = Dice(seed());
    let mut history = History::begin().await;
    history.go_on(TRANSACTIONS).await;
    let steps = history.disk.steps();
    assert!(steps as u64 > 4 * TRANSACTIONS, "only {steps} steps were seen");
    for _ in 0..setting("TIDEGATE_CRASH_ROUNDS", CUTS) {
        let cut = dice.below(steps as u64 + 1) as usize;
        let left = history.survives(cut, &mut dice).await;
        // Another one while the file is opened and mended, or at the first transaction afterwards.
        let again = dice.below(left.disk.steps() as u64 + 1) as usize;
        left.survives(again, &mut dice).await;
    }
}

/// That it can fail: the last five transactions were acknowledged, and their syncs were lies.
#[tokio::test]
#[should_panic(expected = "not 10")]
async fn a_disk_that_forgets_what_was_synced_is_found_out() {
    let mut history = History::begin().await;
    history.go_on(10).await;
    let mut dice = Dice(seed());
    let disk = Recorder::with(history.disk.image(history.heads[4].0, &mut dice));
    let lied_to = History { disk, terms: Vec::new(), heads: vec![(0, 10)] };
    lied_to.survives(0, &mut dice).await;
}
