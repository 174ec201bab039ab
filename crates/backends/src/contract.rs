//! What every backend can be asked, and what it answers.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::BackendError;

/// A store's identity in its backend, in the backend's own spelling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreId(pub String);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a backend must find again after a crash and has no place for itself: who owned what before. The caller
/// stores it before the call that needs it, and hands it back word for word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Memo(pub String);

/// A number that a backend told, and whether it may be believed. Just after a backend's own failover its counts may
/// be too low: an incomplete zero is not a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub value: u64,
    pub complete: bool,
}

impl Count {
    /// Nothing is left, and that is certain.
    pub fn is_surely_zero(self) -> bool {
        self.complete && self.value == 0
    }
}

/// | state | meaning | what may follow |
/// |---|---|---|
/// | `Serving` | a member like any other | `begin_offline`, `evict_leaders` |
/// | `Removing` | on its way out; data may be left | `begin_offline` again, `cancel_offline`; `forget` once empty |
/// | `Removed` | the backend does not count on it and knows where all its data is | the process and its volume may go |
/// | `Unknown` | the backend has never heard of it, or has forgotten it and no memo says that it was here | |
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum StoreState {
    /// `data` in bytes.
    Serving {
        leaders: Count,
        data: u64,
    },
    /// `data_left` in bytes; `progress` from 0 to 1.
    Removing {
        leaders: Count,
        data_left: u64,
        progress: f64,
    },
    Removed,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// May lead, and does or could.
    Primary,
    /// A copy of what others lead.
    Replica,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: StoreId,
    /// `host:port`.
    pub address: String,
    pub role: Role,
    /// As its peers see it.
    pub healthy: bool,
}

/// Something in the backend that keeps leaders away from a store. Backends do not say whose it is: one that the
/// caller has no record of is somebody else's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evictor {
    pub name: String,
}

/// What [`Backend::evictors`] found. The memo says what has to come back when eviction ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    pub evictors: Vec<Evictor>,
    pub memo: Memo,
}

/// How far a call that moves data came within its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moving {
    /// Call again.
    Underway,
    /// Nothing is left to move.
    Complete,
}

/// How fast a store that leaves is emptied, by the backend's own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    pub bytes_per_second: u64,
    /// Until nothing is left; unknown while nothing moves.
    pub left: Option<Duration>,
}

/// Why a store cannot go, found before anything was touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Refusal {
    #[error("{left} stores would be left while the backend needs {needed}")]
    TooFewReplicas { left: u64, needed: u64 },
    #[error("no store is left that could take its {leaders} leaders")]
    NoStoreForLeaders { leaders: u64 },
    #[error("its {data} bytes do not fit into the {room} bytes that the other stores have free")]
    NoRoom { data: u64, room: u64 },
    #[error("the backend says: {words}")]
    Backend { words: String },
}

/// The memo of a possible removal is to be stored before [`Backend::begin_offline`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Preflight {
    Possible { memo: Memo },
    Refused { refusal: Refusal },
}

/// An outside system that owns the data of stores.
///
/// Each call is idempotent, may be dropped at any point, and ends by itself within `within` (reads: within the
/// backend's configured time). A call that moves data does what it can in that time and says whether to call again.
///
/// At most one process makes calls that change something: a later call ends what an earlier one has left behind in the
/// backend before it begins, and would cut off one that is under way.
#[async_trait]
pub trait Backend: Send + Sync {
    async fn members(&self) -> Result<Vec<Member>, BackendError>;

    /// Which store the process at `address` (`host:port`) is.
    async fn identify(&self, address: &str) -> Result<StoreId, BackendError>;

    /// How many stores the backend needs to hold its data as it should.
    async fn replicas(&self) -> Result<u64, BackendError>;

    /// `removal` is the memo of a removal that was begun and not cancelled.
    async fn state(&self, store: &StoreId, removal: Option<&Memo>) -> Result<StoreState, BackendError>;

    /// For display. `None` when nothing leaves, and of backends that give no account of it.
    async fn pace(&self, _store: &StoreId) -> Result<Option<Pace>, BackendError> {
        Ok(None)
    }

    /// Read before [`Backend::evict_leaders`], and recorded.
    async fn evictors(&self, store: &StoreId) -> Result<Eviction, BackendError>;

    /// Moves leaders away and keeps them away, or lets those of the memo return.
    async fn evict_leaders(
        &self,
        store: &StoreId,
        on: bool,
        memo: &Memo,
        within: Duration,
    ) -> Result<(), BackendError>;

    /// Whether the store can go. Touches nothing.
    async fn preflight(&self, store: &StoreId) -> Result<Preflight, BackendError>;

    /// Takes the store's data elsewhere. Reversible until [`Backend::forget`], or until the backend itself has
    /// removed the store.
    async fn begin_offline(
        &self,
        store: &StoreId,
        memo: &Memo,
        within: Duration,
    ) -> Result<Moving, BackendError>;

    /// Brings back what the memo says was there.
    async fn cancel_offline(
        &self,
        store: &StoreId,
        memo: &Memo,
        within: Duration,
    ) -> Result<Moving, BackendError>;

    /// The last step, which cannot be undone: the backend drops an empty store from its books.
    async fn forget(&self, store: &StoreId, within: Duration) -> Result<(), BackendError>;
}
