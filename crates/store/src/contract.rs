//! The contract every store keeps, and the words it is made of.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::error::{CommitError, KeepAliveError, LoadError, StoreError, WatchError};

/// The layout of keys and head that this binary reads and writes.
pub const FORMAT: u32 = 1;

/// Operations in one transaction. etcd takes 128 unless told otherwise; the head is one of them, and
/// the rest is margin.
pub const OPS_PER_TXN_MAX: usize = 120;
const _: () = assert!(OPS_PER_TXN_MAX < 128);

/// Bytes of keys and values in one transaction. etcd takes requests of 1.5 MiB unless told otherwise;
/// the margin is for the prefix on every key and the framing.
pub const BYTES_PER_TXN_MAX: usize = 1 << 20;

/// Transactions a follower may lag behind in this process's memory before the watch stops reading.
pub(crate) const FOLLOW_BUFFER: usize = 64;

/// One write to one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub key: Vec<u8>,
    /// `None` deletes.
    pub value: Option<Vec<u8>>,
}

impl Op {
    pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Op {
        Op { key: key.into(), value: Some(value.into()) }
    }

    pub fn delete(key: impl Into<Vec<u8>>) -> Op {
        Op { key: key.into(), value: None }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Vec::len)
    }
}

/// One that may be elected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Candidate {
    pub id: String,
    /// Where it is reached; opaque here, one line.
    pub addresses: String,
}

impl Candidate {
    pub fn new(id: impl Into<String>, addresses: impl Into<String>) -> Candidate {
        Candidate { id: id.into(), addresses: addresses.into() }
    }
}

/// The right to commit, as long as nobody else was elected since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Office {
    /// Rises with each election, over the whole life of the stored state.
    pub term: u64,
    pub candidate: Candidate,
    /// How long it holds without [`Store::keep_alive`], counted from before [`Store::office`] was called.
    pub valid_for: Duration,
    /// etcd's lease; 0 where there is none.
    pub(crate) lease: i64,
}

impl Office {
    /// An office as a store without leases grants it; for stores outside of this crate, and tests.
    pub fn new(term: u64, candidate: Candidate, valid_for: Duration) -> Office {
        Office { term, candidate, valid_for, lease: 0 }
    }
}

/// Who is in office.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub candidate: Candidate,
    pub term: u64,
}

/// How one try to take office ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Campaign {
    Elected(Office),
    HeldBy(Holder),
}

impl Campaign {
    pub fn elected(self) -> Option<Office> {
        match self {
            Campaign::Elected(office) => Some(office),
            Campaign::HeldBy(_) => None,
        }
    }
}

/// Keys from `start` up to, not including, `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Vec<u8>,
    pub end: Vec<u8>,
}

impl KeyRange {
    /// All keys that begin with `prefix`, which is neither empty nor ends in 0xff: keys are ASCII.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> KeyRange {
        let start: Vec<u8> = prefix.into();
        let mut end = start.clone();
        let last = end.last_mut().expect("a key prefix is not empty");
        *last = last.checked_add(1).expect("a key prefix is ASCII");
        KeyRange { start, end }
    }
}

/// One record as loaded. Both parts are slices of a buffer shared by their batch: decode and drop them
/// soon, copy what is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Bytes,
    pub value: Bytes,
}

/// What a load hands over at a time. Within one range keys ascend; batches of different ranges mix.
pub type Batch = Vec<Record>;

/// A point in the history of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The number of the last transaction contained.
    pub head: u64,
    /// The store's own counter. Only for [`Store::watch`] and [`Store::compact`].
    pub revision: u64,
}

/// One transaction, as a follower sees it. Keys are distinct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub head: u64,
    pub revision: u64,
    pub ops: Vec<Op>,
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// For people: what kind, which version, where.
    pub description: String,
    pub revision: u64,
    /// Space taken on disk, and how much of it is live.
    pub disk_bytes: u64,
    pub used_bytes: u64,
    /// etcd refuses writes until it is compacted, defragmented and the alarm is disarmed.
    pub space_alarm: bool,
}

/// Where the state lives.
///
/// All waiting is bounded, except for [`Follow::next`] and the receiver of [`Store::watch_holder`].
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Tries once to take office, for `ttl`. The embedded store has one candidate, so it always grants.
    async fn office(&self, candidate: &Candidate, ttl: Duration) -> Result<Campaign, StoreError>;

    /// Extends the office once. The result counts from *before* this was called.
    async fn keep_alive(&self, office: &Office) -> Result<Duration, KeepAliveError>;

    /// Gives the office back at once. One that is lost already is no error.
    async fn resign(&self, office: &Office) -> Result<(), StoreError>;

    async fn holder(&self) -> Result<Option<Holder>, StoreError>;

    /// Who is in office, kept up to date. While the store does not answer, the last known holder stays:
    /// a hint where to ask, never a right to write.
    async fn watch_holder(&self) -> Result<watch::Receiver<Option<Holder>>, StoreError>;

    /// Writes `ops` and the head `head` in one transaction, provided that `office` holds and the head is
    /// `head - 1`. Where a key occurs twice, the last one counts. Sent once, never retried; at most one
    /// may be in flight. Dropping the future leaves the outcome unknown.
    ///
    /// # Panics
    /// With more than [`OPS_PER_TXN_MAX`] operations, or with `head` = 0.
    async fn commit(&self, office: &Office, head: u64, ops: &[Op]) -> Result<(), CommitError>;

    /// The number of the last transaction; sees every one acknowledged to anybody before.
    async fn head(&self) -> Result<u64, StoreError>;

    /// Sends all records of these disjoint ranges, as of one moment, to `sink`. The receiver decodes
    /// while more arrives; a full channel holds the store back. Four ranges are fetched at a time, so
    /// many ranges of a few thousand records are best.
    async fn load(&self, ranges: &[KeyRange], sink: mpsc::Sender<Batch>) -> Result<Position, LoadError>;

    /// Follows what is committed after `after`, in order and without gaps. Broken connections are mended
    /// inside.
    async fn watch(&self, after: Position) -> Result<Follow, StoreError>;

    /// Shows that a candidate lives, until the returned value is dropped and `ttl` has passed.
    async fn announce(&self, candidate: &Candidate, ttl: Duration) -> Result<Presence, StoreError>;

    /// The candidates that are announced, by id.
    async fn candidates(&self) -> Result<Vec<Candidate>, StoreError>;

    /// Forgets the history up to `revision`; followers that are further behind must load again.
    async fn compact(&self, revision: u64) -> Result<(), StoreError>;

    async fn status(&self) -> Result<Status, StoreError>;
}

/// The transactions after a position, in order.
#[derive(Debug)]
pub struct Follow {
    received: mpsc::Receiver<Result<Committed, WatchError>>,
    task: JoinHandle<()>,
}

impl Follow {
    pub(crate) fn new(
        received: mpsc::Receiver<Result<Committed, WatchError>>,
        task: JoinHandle<()>,
    ) -> Follow {
        Follow { received, task }
    }

    /// The next transaction, waiting for it without bound. After an error there is nothing more. May be
    /// dropped and called again without losing anything.
    pub async fn next(&mut self) -> Result<Committed, WatchError> {
        self.received.recv().await.unwrap_or(Err(WatchError::Ended))
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A candidate's presence. Dropping it stops the extensions, so the candidate vanishes when the lease
/// runs out, as after a crash.
#[derive(Debug)]
pub struct Presence {
    withdraw: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Presence {
    /// `task` keeps the presence up; when `withdraw` fires it takes it back and ends, when the sender is
    /// dropped it just ends.
    pub(crate) fn new(withdraw: oneshot::Sender<()>, task: JoinHandle<()>) -> Presence {
        Presence { withdraw, task }
    }

    /// Vanishes at once.
    pub async fn withdraw(self) {
        // a task that is gone has nothing left to take back
        if self.withdraw.send(()).is_ok() {
            let _ended = self.task.await;
        }
    }
}

/// Asserts what the caller must keep, and measures.
pub(crate) fn check_transaction(head: u64, ops: &[Op]) -> Result<(), CommitError> {
    assert!(ops.len() <= OPS_PER_TXN_MAX, "{} operations in one transaction", ops.len());
    assert!(head > 0, "transactions are numbered from 1");
    let bytes: usize = ops.iter().map(Op::bytes).sum();
    if bytes > BYTES_PER_TXN_MAX {
        return Err(CommitError::TooLarge { head, bytes, max: BYTES_PER_TXN_MAX });
    }
    Ok(())
}

/// The operations that take effect: the last one for each key, in their order. etcd refuses a
/// transaction that names a key twice, and two groups packed together often do.
pub(crate) fn effective(ops: &[Op]) -> Vec<&Op> {
    let mut seen = std::collections::BTreeSet::new();
    let mut kept: Vec<&Op> = ops.iter().rev().filter(|op| seen.insert(op.key.as_slice())).collect();
    kept.reverse();
    kept
}

/// One line with the id, one with the addresses: readable with etcdctl.
pub(crate) fn encode_candidate(candidate: &Candidate) -> Vec<u8> {
    format!("{}\n{}", candidate.id, candidate.addresses).into_bytes()
}

pub(crate) fn decode_candidate(bytes: &[u8]) -> Option<Candidate> {
    let (id, addresses) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    Some(Candidate::new(id, addresses))
}
