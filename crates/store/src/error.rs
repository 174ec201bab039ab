//! What can go wrong, told apart by what the caller has to do about it.

use std::path::PathBuf;

use crate::contract::Holder;

/// Where an error came from, as the library that met it put it.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// An operation on the store that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Will pass by itself, or when the operator brings the store back. Trying again is right.
    #[error("{operation}: {place} does not answer: {source}")]
    Unavailable { operation: &'static str, place: String, source: Cause },
    /// The store answered, and trying again gives the same answer.
    #[error("{operation}: {place} refused: {source}")]
    Rejected { operation: &'static str, place: String, source: Cause },
    #[error("{place} holds state of format {found}; this binary knows {known}")]
    Format { place: String, found: String, known: u32 },
    #[error(
        "the state file {} is damaged ({source}): restore it from a backup, or move it away and start \
         empty: running instances are then shown as unclaimed", path.display()
    )]
    Damaged { path: PathBuf, source: Cause },
    #[error(
        "the state file {} is in use by another process: the embedded store serves exactly one daemon; \
         stop the other one, or give this one its own data directory", path.display()
    )]
    Locked { path: PathBuf },
    #[error("{operation}: the state file {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "{endpoint} belongs to another etcd cluster ({found:016x}) than the one seen before \
         ({expected:016x}): the endpoints must all be members of one cluster"
    )]
    OtherCluster { endpoint: String, expected: u64, found: u64 },
    #[error("{place} holds {key} in a form this binary does not write: {found:?}")]
    Malformed { place: String, key: String, found: String },
    #[error("the store's configuration: {what}")]
    Configuration { what: String },
}

/// Why a transaction was not taken. It was surely not applied by *this* call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("office of term {term} is over; it is held by {}", describe(.holder))]
    OfficeLost { term: u64, holder: Option<Holder> },
    /// After an [`CommitError::Unknown`] for this very transaction, `found` being its own number means
    /// that the lost one was applied.
    #[error("the head is {}, not {expected}", .found.map_or_else(|| "absent".to_owned(), |n| n.to_string()))]
    HeadIsOther { expected: u64, found: Option<u64> },
}

fn describe(holder: &Option<Holder>) -> String {
    match holder {
        Some(holder) => format!("{} in term {}", holder.candidate.id, holder.term),
        None => "nobody".to_owned(),
    }
}

/// What became of a transaction. Each variant says whether it may have been applied.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Not applied. The state the caller built this on is not the state that is stored.
    #[error("transaction {head} was refused: {why}")]
    Refused { head: u64, why: Refusal },
    /// The answer was lost. It may have been applied, or may still be: read the head and send the same
    /// bytes again under the same number.
    #[error("transaction {head}: its outcome is unknown: {source}")]
    Unknown { head: u64, source: Cause },
    /// Surely not applied, and never will be: it did not leave this process, or was turned away before
    /// it was proposed.
    #[error("transaction {head} was not sent: {source}")]
    Unavailable { head: u64, source: Cause },
    /// No space. **May have been applied:** the etcd that crosses its quota applies the transaction and
    /// answers with this error all the same. Resolve as [`CommitError::Unknown`], and show a blocker.
    #[error("transaction {head}: the store is out of space: {source}")]
    SpaceExhausted { head: u64, source: Cause },
    /// Not applied; no retry helps.
    #[error("transaction {head} of {bytes} bytes is too large (at most {max})")]
    TooLarge { head: u64, bytes: usize, max: usize },
    /// Something a retry does not mend. Whether it was applied is not known.
    #[error("transaction {head}: {source}")]
    Broken { head: u64, source: StoreError },
}

impl CommitError {
    /// Whether the transaction may have been applied, or may still be.
    pub fn may_be_applied(&self) -> bool {
        match self {
            CommitError::Unknown { .. } | CommitError::SpaceExhausted { .. } | CommitError::Broken { .. } => {
                true
            }
            CommitError::Refused { .. } | CommitError::Unavailable { .. } | CommitError::TooLarge { .. } => {
                false
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum KeepAliveError {
    /// Somebody else may be in office. For good: this term never holds again.
    #[error("office of term {term} is lost")]
    Lost { term: u64 },
    /// The office may still hold, until what was granted before runs out.
    #[error("office of term {term} could not be extended: {source}")]
    Unavailable { term: u64, source: StoreError },
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The revision being read was compacted away meanwhile: begin again.
    #[error("loading at revision {revision}: it was compacted away meanwhile")]
    Compacted { revision: u64 },
    #[error("loading: the receiving side went away")]
    SinkClosed,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a follower cannot go on. In every case it loads again and follows from there.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("following after revision {after}: compacted away, the records must be loaded again")]
    Compacted { after: u64 },
    /// A transaction is missing, or somebody wrote records without raising the head.
    #[error("following: expected transaction {expected}, found {}", .found.map_or_else(|| "a write without a number".to_owned(), |n| n.to_string()))]
    Gap { expected: u64, found: Option<u64> },
    #[error("following: {0}")]
    Store(#[from] StoreError),
    #[error("following has ended")]
    Ended,
}
