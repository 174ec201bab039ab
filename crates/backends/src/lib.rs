//! Outside systems that own the data of stores, behind one small contract: [`Backend`].
//!
//! A *store* is one process of a replicated data store (a Redis Cluster node, a TiKV). Tidegate starts and stops the
//! process; where its data and its leaders are is for the backend to say, and to change.
//!
//! *Invariant:* this crate knows nothing of services, drains or terms. What must outlive a call is a [`Memo`] in the
//! caller's hands. All that is remembered between two calls is who answered last and, of PD, since when its leader was
//! seen to lead: a process that has forgotten it believes counts later, never sooner.
//! *Invariant:* every call may be dropped at any point, and made again.
//! *Invariant:* a password is in no error and in no `Debug`.

#![forbid(unsafe_code)]

mod command;
mod contract;
mod error;
mod pd;
mod redis;
mod secret;
#[cfg(feature = "testing")]
pub mod testing;

pub use command::{CommandBackend, CommandConfig};
pub use contract::{
    Backend, Count, Eviction, Evictor, Member, Memo, Moving, Pace, Preflight, Refusal, Role, StoreId,
    StoreState,
};
pub use error::BackendError;
pub use pd::{Pd, PdConfig};
pub use redis::{RedisCluster, RedisConfig};
pub use secret::Endpoint;
