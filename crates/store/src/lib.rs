//! The Store contract and what implements it.
//!
//! Owns: who is in office and under which term, the one ordered and fenced way in which changes
//! become durable, loading all records at one revision, following them afterwards, and the presence
//! of candidates. Three implementations: [`memory`] for tests, [`embedded`] (redb, one file) for one
//! machine, [`etcd`] for every real cluster. One conformance suite holds for all three.
//!
//! The layout is the same everywhere: records under keys the caller chooses, and one number, the
//! *head*, that every transaction raises by one. A transaction takes effect only while its office
//! holds and the head is the one it expects, so a deposed coordinator writes nothing and nothing is
//! applied twice or out of order.
//!
//! *Invariant:* this crate does not know what a record means: it has no `model`, no decoding and no
//! decision about the cluster. It never retries a commit: what to do about a lost answer is decided
//! by the caller's commit loop.

#![forbid(unsafe_code)]

mod contract;
pub mod embedded;
mod error;
mod local;
pub mod memory;

#[cfg(feature = "testing")]
pub mod conformance;
pub mod etcd;
#[cfg(feature = "testing")]
pub mod rates;
#[cfg(feature = "testing")]
pub mod testing;

pub use contract::{
    BYTES_PER_TXN_MAX, Batch, Campaign, Candidate, Committed, FORMAT, Follow, Holder, KeyRange,
    OPS_PER_TXN_MAX, Office, Op, Position, Presence, Record, Status, Store,
};
pub use error::{Cause, CommitError, KeepAliveError, LoadError, Refusal, StoreError, WatchError};
