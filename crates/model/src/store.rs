//! Store groups and stores: members of a replicated data store whose leaders and data an outside system, the
//! *backend*, owns.
//!
//! No phase is stored. The record holds facts: what is wanted and since when, what was begun in the backend, what went
//! wrong last. What to do next follows from these and from what the backend says.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Code, InstanceId, StoreGroupName, StoreGroupSpec, StoreId, Time};

/// How many stores, of what kind. Their processes are the instances of the service of the same name (of
/// [`Kind::Store`](crate::Kind::Store)), each with its store's ordinal as its slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreGroup {
    pub name: StoreGroupName,
    pub replicas: u32,
    pub spec: Arc<StoreGroupSpec>,
    /// Every store so far has a lower one.
    pub next_ordinal: u32,
    /// Asked to go with all its data: nothing is moved elsewhere.
    pub destroyed: bool,
    pub created_at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    pub id: StoreId,
    pub group: StoreGroupName,
    pub ordinal: u32,
    /// Should one have to go, this one goes first.
    pub marked: bool,
    /// It is to leave the backend, then its process and its volume go.
    pub offline: Option<Offline>,
    /// When offline was last taken back.
    pub cancelled_at: Option<Time>,
    pub restart: Option<Restart>,
    pub evict: Option<Evict>,
    /// What of ours keeps leaders away: recorded before it is added, cleared after it is gone.
    pub evictor: Option<OwnEvictor>,
    /// What the backend calls it.
    pub identity: Option<String>,
    /// Its way out of the backend; there until it is cancelled in full.
    pub removal: Option<Removal>,
    /// The backend has said that it is gone, or never knew it: process and volume may go.
    pub removed_at: Option<Time>,
    pub trouble: Option<Trouble>,
    pub created_at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offline {
    pub since: Time,
    pub why: OfflineWhy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum OfflineWhy {
    /// There are more than asked for.
    ScaleIn,
    /// Its node is to be emptied and its volume cannot move.
    Drain,
}

/// Leaders away, stop, start, leaders back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    pub began_at: Time,
    pub why: RestartWhy,
    /// The process that is to end; any other is the new one.
    pub instance: Option<InstanceId>,
    /// When its process was told to stop.
    pub stopped_at: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RestartWhy {
    Asked,
    /// Its process is of an older release.
    Update,
    /// Its node is to be emptied.
    Drain,
}

/// Leaders are to stay away until this is taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evict {
    pub began_at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnEvictor {
    pub began_at: Time,
    pub memo: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Of the preflight; handed back with every call.
    pub memo: String,
    /// When the preflight passed: what the wait for leaders counts from.
    pub since: Time,
    /// Leaders cannot be moved away beforehand: they go with the data.
    pub skip_eviction: bool,
    /// The backend may have been asked to begin: only a cancel undoes it.
    pub begun: Option<Time>,
    /// The backend may have been asked to forget it: nothing undoes that.
    pub forgetting: bool,
}

/// The last call to the backend failed, or it refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    pub code: Code,
    /// In the backend's own words.
    pub message: String,
    pub since: Time,
    pub failures: u32,
    pub next_try: Time,
    /// It was not a failure but a considered no, given before anything was touched.
    pub refusal: bool,
    /// Only asking was in vain; otherwise what was to be changed, or begun, was not.
    pub reading: bool,
}

impl Store {
    pub fn new(group: &StoreGroupName, ordinal: u32, now: Time) -> Store {
        Store {
            id: StoreId::new(&format!("{group}-{ordinal}")),
            group: group.clone(),
            ordinal,
            marked: false,
            offline: None,
            cancelled_at: None,
            restart: None,
            evict: None,
            evictor: None,
            identity: None,
            removal: None,
            removed_at: None,
            trouble: None,
            created_at: now,
        }
    }

    /// Something is asked of it or under way with it.
    pub fn is_busy(&self) -> bool {
        self.offline.is_some()
            || self.restart.is_some()
            || self.evict.is_some()
            || self.evictor.is_some()
            || self.removal.is_some()
            || self.removed_at.is_some()
    }

    /// Its way out can still be taken back.
    pub fn is_rescuable(&self) -> bool {
        self.offline.is_some() && !self.is_past_return()
    }

    /// The backend has removed it, or may have been told to.
    pub fn is_past_return(&self) -> bool {
        self.removed_at.is_some() || self.removal.as_ref().is_some_and(|removal| removal.forgetting)
    }
}

/// What a backend says of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BackendState {
    /// `data` in bytes.
    Serving {
        leaders: Count,
        data: u64,
    },
    /// `data_left` in bytes, `progress` from 0 to 1.
    Removing {
        leaders: Count,
        data_left: u64,
        progress: f64,
    },
    Removed,
    /// It has never heard of it.
    Unknown,
}

/// A number that a backend told, and whether it may be believed: just after a failover of its own it may be too low.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub value: u64,
    pub complete: bool,
}

impl Count {
    pub fn is_surely_zero(self) -> bool {
        self.complete && self.value == 0
    }
}

impl BackendState {
    pub fn as_str(&self) -> &'static str {
        match self {
            BackendState::Serving { .. } => "serving",
            BackendState::Removing { .. } => "removing",
            BackendState::Removed => "removed",
            BackendState::Unknown => "unknown",
        }
    }

    pub fn leaders(&self) -> Option<Count> {
        match self {
            BackendState::Serving { leaders, .. } | BackendState::Removing { leaders, .. } => Some(*leaders),
            BackendState::Removed | BackendState::Unknown => None,
        }
    }

    /// Bytes that are still there.
    pub fn data(&self) -> Option<u64> {
        match self {
            BackendState::Serving { data, .. } => Some(*data),
            BackendState::Removing { data_left, .. } => Some(*data_left),
            BackendState::Removed => Some(0),
            BackendState::Unknown => None,
        }
    }
}

/// One thing that is asked of a backend. Every call is idempotent and bounded; see [`BackendCall::changes_something`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendCall {
    /// How many stores the data needs.
    Replicas,
    Members,
    /// Which store the process at this address (`host:port`) is.
    Identify {
        address: String,
    },
    /// `removal` is the memo of one that was begun and not cancelled.
    State {
        store: String,
        removal: Option<String>,
    },
    Evictors {
        store: String,
    },
    Preflight {
        store: String,
    },
    EvictLeaders {
        store: String,
        on: bool,
        memo: String,
    },
    BeginOffline {
        store: String,
        memo: String,
    },
    CancelOffline {
        store: String,
        memo: String,
    },
    Forget {
        store: String,
    },
}

impl BackendCall {
    pub fn name(&self) -> &'static str {
        match self {
            BackendCall::Replicas => "replicas",
            BackendCall::Members => "members",
            BackendCall::Identify { .. } => "identify",
            BackendCall::State { .. } => "state",
            BackendCall::Evictors { .. } => "evictors",
            BackendCall::Preflight { .. } => "preflight",
            BackendCall::EvictLeaders { on: true, .. } => "evict leaders",
            BackendCall::EvictLeaders { on: false, .. } => "stop evicting leaders",
            BackendCall::BeginOffline { .. } => "begin offline",
            BackendCall::CancelOffline { .. } => "cancel offline",
            BackendCall::Forget { .. } => "forget",
        }
    }

    /// At most one of these is under way per group.
    pub fn changes_something(&self) -> bool {
        match self {
            BackendCall::EvictLeaders { .. }
            | BackendCall::BeginOffline { .. }
            | BackendCall::CancelOffline { .. }
            | BackendCall::Forget { .. } => true,
            BackendCall::Replicas
            | BackendCall::Members
            | BackendCall::Identify { .. }
            | BackendCall::State { .. }
            | BackendCall::Evictors { .. }
            | BackendCall::Preflight { .. } => false,
        }
    }
}

/// What a backend answered; which variant belongs to which call is said at each.
#[derive(Clone, Debug, PartialEq)]
pub enum BackendAnswer {
    /// To `Replicas`.
    Replicas(u64),
    /// To `Members`: the address of each, `host:port`, and what the backend calls it.
    Members(Vec<(String, String)>),
    /// To `Identify`.
    Identity(String),
    /// To `State`.
    State(BackendState),
    /// To `Evictors`: whatever keeps leaders away, whoever set it.
    Evictors { names: Vec<String>, memo: String },
    /// To `Preflight`.
    Possible { memo: String },
    /// To `Preflight`.
    Refused(BackendRefusal),
    /// To `EvictLeaders` and `Forget`.
    Done,
    /// To `BeginOffline` and `CancelOffline`: nothing is left to move. Otherwise, call again.
    Moved { complete: bool },
}

/// Why a store cannot go, found before anything was touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendRefusal {
    TooFewReplicas { left: u64, needed: u64 },
    NoStoreForLeaders { leaders: u64 },
    NoRoom { data: u64, room: u64 },
    Other { words: String },
}

impl BackendRefusal {
    pub fn code(&self) -> Code {
        match self {
            BackendRefusal::TooFewReplicas { .. } => Code::ReplicasNotEnough,
            BackendRefusal::NoStoreForLeaders { .. } => Code::NoStoreForLeader,
            BackendRefusal::NoRoom { .. } => Code::NoSpaceForData,
            BackendRefusal::Other { .. } => Code::BackendError,
        }
    }

    pub fn words(&self) -> String {
        match self {
            BackendRefusal::TooFewReplicas { left, needed } => {
                format!("{left} stores would be left while the backend needs {needed}")
            }
            BackendRefusal::NoStoreForLeaders { leaders } => {
                format!("no store is left that could take its {leaders} leaders")
            }
            BackendRefusal::NoRoom { data, room } => format!(
                "its {} do not fit into the {} that the other stores have free",
                crate::units::format_bytes(*data),
                crate::units::format_bytes(*room)
            ),
            BackendRefusal::Other { words } => format!("the backend says: {words}"),
        }
    }
}

/// How a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendFailure {
    pub kind: FailureKind,
    /// In the backend's own words.
    pub words: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Nobody answered, or not in time. What was asked may have happened.
    Unreachable,
    Refused,
    /// The backend knows no such store.
    NotFound,
    /// Not as things stand; nothing was touched.
    NotPossible,
    /// It came too late to be made within the office's time: nothing was asked.
    NotMade,
}

impl FailureKind {
    pub fn code(self) -> Code {
        match self {
            FailureKind::Unreachable | FailureKind::NotMade => Code::BackendUnreachable,
            FailureKind::Refused | FailureKind::NotFound | FailureKind::NotPossible => Code::BackendError,
        }
    }
}
