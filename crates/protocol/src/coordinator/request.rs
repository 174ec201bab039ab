//! What people and programs ask of the coordinator, and what it answers.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Access, Code, FeedName, FeedSpec, FeedState, InstanceId, Millis, Return, ServiceName, ServiceSpec,
    SpanName, StoreGroupName, StoreGroupSpec, Then, Time,
};

/// One request, with who asks and from where for the audit log.
#[derive(Clone, Debug)]
pub struct Asked {
    pub who: String,
    pub from: String,
    pub request: Request,
}

#[derive(Clone, Debug)]
pub enum Request {
    /// Create or update services, feeds and store groups; all or none.
    Apply {
        services: Vec<Apply>,
        feeds: Vec<ApplyFeed>,
        groups: Vec<ApplyStoreGroup>,
    },
    SetReplicas {
        group: StoreGroupName,
        replicas: u32,
    },
    /// A store group goes with all its data; only if that was said in so many words.
    RemoveStoreGroup {
        group: StoreGroupName,
        destroy_data: bool,
    },
    Store {
        store: String,
        action: StoreAction,
    },
    SetFeedState {
        feed: FeedName,
        state: FeedState,
    },
    /// Have a span of a feed worked on this node.
    MoveSpan {
        feed: FeedName,
        span: SpanName,
        node: String,
    },
    Remove {
        service: ServiceName,
    },
    Scale {
        service: ServiceName,
        count: u32,
    },
    SetIntent {
        node: String,
        intent: WantedIntent,
    },
    /// An operator vouches that an offline node's processes have stopped.
    ConfirmDead {
        node: String,
    },
    /// Stop an instance; the service's count brings a replacement.
    StopInstance {
        id: InstanceId,
    },
    AttachVolume {
        volume: String,
        node: String,
    },
    /// Start a drain of these nodes, or change the options of one that runs.
    Drain(DrainRequest),
    /// As a drain of this node, by the rules of those who know nodes as captures.
    DrainCapture {
        capture: String,
        then: Then,
    },
    /// Give the office to another candidate.
    HandOver,
    /// Take one node out of its drain.
    CancelNode {
        node: String,
    },
    /// Cancel a whole drain.
    CancelDrain {
        epoch: u64,
    },
    /// Somebody may ask from now on; what they show is known by its hash alone.
    CreateToken {
        name: String,
        access: Access,
        hash: [u8; 32],
        expires_at: Option<Time>,
    },
    RevokeToken {
        name: String,
    },
    /// Somebody was turned away: for the audit log, and nothing else.
    NoteRefusal {
        what: String,
    },
    /// Answered once everything applied so far is committed: what a read waits for.
    Barrier,
}

impl Request {
    /// Services alone.
    pub fn apply(services: Vec<Apply>) -> Request {
        Request::Apply { services, feeds: Vec::new(), groups: Vec::new() }
    }
}

/// What is omitted keeps its value, or has its default.
#[derive(Clone, Debug, Default)]
pub struct DrainRequest {
    pub nodes: Vec<String>,
    /// Instead of nodes: all that have these labels.
    pub selector: BTreeMap<String, String>,
    /// `Some(None)`: no deadline. Counts from the request if the node drains already.
    pub deadline: Option<Option<Millis>>,
    pub ignore_system: Option<bool>,
    pub ack_stateful: Option<bool>,
    pub include_stateful: Option<bool>,
    pub then: Option<Then>,
    pub back: Option<Return>,
    pub message: Option<String>,
    pub meta: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug)]
pub struct Apply {
    pub name: ServiceName,
    /// `None` keeps the count that the service has (1 for a new one).
    pub count: Option<u32>,
    pub spec: Arc<ServiceSpec>,
}

#[derive(Clone, Debug)]
pub struct ApplyFeed {
    pub name: FeedName,
    pub spec: Arc<FeedSpec>,
}

#[derive(Clone, Debug)]
pub struct ApplyStoreGroup {
    pub name: StoreGroupName,
    /// `None` keeps what the group has (1 for a new one).
    pub replicas: Option<u32>,
    pub spec: Arc<StoreGroupSpec>,
    /// Of [`Kind::Store`](model::Kind::Store).
    pub process: Arc<ServiceSpec>,
}

/// What is asked of one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreAction {
    Mark,
    Unmark,
    Restart,
    CancelRestart,
    EvictLeader,
    CancelEvictLeader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedIntent {
    Active,
    Disabled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Applied(Vec<Applied>),
    /// The epoch of the drain.
    Draining(u64),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// `service`, `feed`, `store-group`.
    pub kind: &'static str,
    pub name: String,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    /// A new release; `scaled` from and to, if the count changed as well.
    Updated {
        release: u32,
        scaled: Option<(u32, u32)>,
    },
    Scaled {
        from: u32,
        to: u32,
    },
    /// Of a feed, or of a store group beside its processes: these have no releases.
    Changed,
    Unchanged,
}

/// Why a request was not carried out. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub kind: ErrorKind,
    /// Stable, snake_case: `service_not_found`, `volume_in_use`, ….
    pub code: &'static str,
    pub message: String,
}

/// Maps one to one to an HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// 400
    Invalid,
    /// 404
    NotFound,
    /// 409: conflicts with what is going on.
    Conflict,
    /// 412: not possible now.
    NotNow,
    /// 422: refused before anything was touched.
    Refused,
    /// 503: this daemon is not the coordinator any more.
    Unavailable,
}

impl ApiError {
    pub fn new(kind: ErrorKind, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { kind, code, message: message.into() }
    }
    pub fn not_found(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::NotFound, code, message)
    }
    pub fn conflict(code: Code, message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Conflict, code.as_str(), message)
    }
}
