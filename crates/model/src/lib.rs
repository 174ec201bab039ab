//! What exists: ids, nodes, services, instances, volumes, feeds, stores, reason codes, changes and events, and
//! [`Cluster`], the records with their indexes.
//!
//! Owns the shape of the state and the one place that mutates it, [`Cluster::apply`].
//!
//! *Invariant:* nothing here knows what time it is, does I/O, draws a random number or iterates a
//! `HashMap`. Nothing here decides anything: decisions are in `planner`.

#![forbid(unsafe_code)]

mod change;
mod cluster;
mod codec;
mod codec_v1;
mod drain;
mod event;
mod feed;
mod feed_table;
mod ids;
mod index;
mod instance;
mod node;
mod reason;
mod record;
mod service;
mod settled;
pub mod spec;
mod spread;
mod store;
mod store_events;
mod store_table;
mod time;
mod token;
mod txn;
pub mod units;

pub use change::{Change, Key};
pub use cluster::{Cluster, Here, NodeEntry, ServiceEntry};
pub use codec::{CodecError, decode_record, encode_change, key_of, load_ranges};
pub use drain::{Drain, DrainNode, DrainOptions, DrainState, Ending, NodeDrain, Return, Then};
pub use event::{Event, EventKind};
pub use feed::{AskedMove, Checkpoint, Feed, FeedState, Maintainer, Origin, SpanSet};
pub use ids::{
    ClusterId, FeedName, InstanceId, Life, MaintainerEpoch, NodeId, NodeIx, ParseIdError, ProcessEpoch,
    ServiceIx, ServiceName, SpanEpoch, SpanName, StoreGroupName, StoreId, Term, VolumeId,
};
pub use index::{Candidate, PlaceIndex};
pub use instance::{Actual, Desired, Exit, Instance, Scratch};
pub use node::{Health, Intent, Lingering, MemoryCaps, Node, Resources, Role, Roles};
pub use reason::{ALL_CODES, Code, Reason};
pub use record::{AuditEntry, Meta, Volume};
pub use service::{Rollout, RolloutState, Service};
pub use settled::Settled;
pub use spec::{BackendSpec, FeedSpec, Kind, PipelineSpec, ServiceSpec, StoreGroupSpec};
pub use spread::Spread;
pub use store::{
    BackendAnswer, BackendCall, BackendFailure, BackendRefusal, BackendState, Count, Evict, FailureKind,
    Offline, OfflineWhy, OwnEvictor, Removal, Restart, RestartWhy, Store, StoreGroup, Trouble,
};
pub use time::{Millis, Time};
pub use token::{Access, Token};
pub use txn::Txn;
