//! What is left of the embedded store when its process is killed, or when the power is cut.
//!
//! Every transaction writes records that follow from its number alone, so that a file can be compared with what it
//! must hold whichever transaction was the last.
//!
//! `TIDEGATE_CRASH_SEED` and `TIDEGATE_CRASH_ROUNDS` give another order and more of it.

#![allow(clippy::unwrap_used)]

mod disk;
mod kills;
mod power;

use std::collections::BTreeMap;
use std::time::Duration;

use store::embedded::EmbeddedStore;
use store::{Candidate, KeyRange, Office, Op, Store};
use tokio::sync::mpsc;

/// Random numbers that come again with their seed.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
        Err(_) => otherwise,
    }
}

fn seed() -> u64 {
    let seed = setting("TIDEGATE_CRASH_SEED", 20_261_115);
    eprintln!("TIDEGATE_CRASH_SEED={seed}");
    seed
}

/// What the transaction with this number writes: it puts, writes over and deletes, little and a lot.
fn ops(head: u64) -> Vec<Op> {
    let mut dice = Dice(head);
    let count = 1 + dice.below(if head.is_multiple_of(7) { 60 } else { 6 });
    let mut ops: Vec<Op> = (0..count)
        .map(|_| {
            let (key, size) = (format!("n/{:03}", dice.below(200)), 10 + dice.below(400) as usize);
            match dice.below(4) {
                0 => Op::delete(key),
                _ => Op::put(key, format!("{head} ").repeat(size / 4)),
            }
        })
        .collect();
    ops.push(Op::put("m/head", head.to_string()));
    ops
}

/// What a file holds after the transaction with this number.
fn state_at(head: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut records = BTreeMap::new();
    for op in (1..=head).flat_map(ops) {
        match op.value {
            Some(value) => records.insert(op.key, value),
            None => records.remove(&op.key),
        };
    }
    records
}

async fn elect(store: &EmbeddedStore) -> Office {
    let campaign = store.office(&Candidate::new("a", ""), Duration::from_secs(5)).await.unwrap();
    campaign.elected().unwrap()
}

/// The file holds just what the transactions up to its head wrote; returns that head.
async fn is_whole(store: &EmbeddedStore, how: &str) -> u64 {
    let (sink, mut batches) = mpsc::channel(1000);
    let range = KeyRange { start: b"a".to_vec(), end: b"z".to_vec() };
    let position = store.load(&[range], sink).await.unwrap_or_else(|error| panic!("{how}: {error}"));
    let mut records = BTreeMap::new();
    while let Ok(batch) = batches.try_recv() {
        records.extend(batch.into_iter().map(|record| (record.key.to_vec(), record.value.to_vec())));
    }
    assert!(records == state_at(position.head), "{how}: not what {} transactions wrote", position.head);
    position.head
}
