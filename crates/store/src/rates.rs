//! How fast a store is, for `cargo xtask bench`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::contract::{Candidate, KeyRange, OPS_PER_TXN_MAX, Office, Op, Store};
use crate::error::Cause;

/// Shards that instances are spread over, as the caller of the store does it.
const SHARDS: u64 = 256;

/// Bytes of a value in [`commit_rate`].
const CHANGE_BYTES: usize = 150;

/// Bytes of a value in [`fill_and_load`].
const RECORD_BYTES: usize = 180;

/// Records that [`commit_rate`] goes round in.
const WORKING_SET: u64 = 100_000;

/// Longer than any of this takes: nothing here keeps the office alive.
const OFFICE_TTL: Duration = Duration::from_secs(3600);

/// What [`fill_and_load`] found.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    pub records: u64,
    pub bytes: u64,
    pub filling: Duration,
    pub loading: Duration,
}

/// Changes committed per second, in full transactions, one in flight.
pub async fn commit_rate(store: &dyn Store, seconds: u64) -> Result<f64, Cause> {
    let office = take_office(store).await?;
    let mut head = store.head().await?;
    let (mut next, mut changes) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        let ops: Vec<Op> = (0..OPS_PER_TXN_MAX as u64)
            .map(|n| Op::put(key((next + n) % WORKING_SET), value(next + n + head, CHANGE_BYTES)))
            .collect();
        store.commit(&office, head + 1, &ops).await?;
        head += 1;
        next += ops.len() as u64;
        changes += ops.len();
    }
    let rate = changes as f64 / begun.elapsed().as_secs_f64();
    store.resign(&office).await?;
    Ok(rate)
}

/// Writes `records` records, then loads them all in 256 ranges and counts them.
pub async fn fill_and_load(store: Arc<dyn Store>, records: u64) -> Result<Loaded, Cause> {
    let begun = Instant::now();
    fill(&*store, records).await?;
    let filling = begun.elapsed();
    let begun = Instant::now();
    let (found, bytes) = load(store).await?;
    if found != records {
        return Err(format!("loaded {found} of {records} records").into());
    }
    Ok(Loaded { records, bytes, filling, loading: begun.elapsed() })
}

/// Writes `records` records into an empty store.
pub async fn fill(store: &dyn Store, records: u64) -> Result<(), Cause> {
    let office = take_office(store).await?;
    let mut head = store.head().await?;
    let mut next = 0;
    while next < records {
        let upto = records.min(next + OPS_PER_TXN_MAX as u64);
        let ops: Vec<Op> = (next..upto).map(|n| Op::put(key(n), value(n, RECORD_BYTES))).collect();
        store.commit(&office, head + 1, &ops).await?;
        head += 1;
        next = upto;
    }
    store.resign(&office).await?;
    Ok(())
}

/// Loads all of it, and says how many records and bytes there are.
pub async fn load(store: Arc<dyn Store>) -> Result<(u64, u64), Cause> {
    let ranges: Vec<KeyRange> =
        (0..SHARDS).map(|shard| KeyRange::prefix(format!("i/{shard:02x}/"))).collect();
    let (sink, mut batches) = mpsc::channel(4);
    let loading = tokio::spawn(async move { store.load(&ranges, sink).await });
    let (mut records, mut bytes) = (0, 0);
    while let Some(batch) = batches.recv().await {
        records += batch.len() as u64;
        bytes += batch.iter().map(|record| (record.key.len() + record.value.len()) as u64).sum::<u64>();
    }
    loading.await??;
    Ok((records, bytes))
}

async fn take_office(store: &dyn Store) -> Result<Office, Cause> {
    let campaign = store.office(&Candidate::new("bench", ""), OFFICE_TTL).await?;
    campaign.elected().ok_or_else(|| "somebody else is in office".into())
}

fn key(n: u64) -> Vec<u8> {
    format!("i/{:02x}/web-{:016x}", n % SHARDS, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

/// Not compressible to nothing, and the same for the same `seed`.
fn value(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(word).take(bytes).collect()
}
