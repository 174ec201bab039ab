//! The async shell of the coordinator: election, the commit loop, the HTTP API, events and metrics.
//!
//! Owns: one candidate ([`Office`]) that campaigns and, once elected, runs the one task that holds
//! the [`protocol::coordinator::Coordinator`]; the router ([`router`]) that answers from it or
//! forwards to whoever is in office; the JSON shapes ([`view`]) that the commands share.
//!
//! *Invariant:* nothing here decides anything about the cluster, and nothing mutates its state: every
//! wish becomes an `Input`, and what is seen from outside comes from an `Output` or from a read that
//! waited for the store.

#![forbid(unsafe_code)]

pub mod api;
mod clock;
mod events;
mod metrics;
mod office;
mod serve;
pub mod view;

pub use api::{ApiState, openapi, router};
pub use clock::Clock;
pub use events::{EVENTS_KEPT_MAX, EventLog};
pub use office::{Leader, NotCoordinator, Office, OfficeConfig, OfficeHandle, Slice};
pub use office::{Loaded, PD_SETTLE, StateError, load};
pub use serve::serve;
