//! Protobuf messages and the streams that carry them between daemons and the coordinator.
//!
//! Owns `proto/tidegate.proto`, the conversions from and to [`protocol::message`] ([`pb`] is what was
//! generated), the dialling side ([`connect`]) and the answering side ([`serve`]).
//!
//! Whatever comes from outside is checked on the way in: a [`protocol::message`] that leaves this crate
//! keeps to the [`limits`]. What goes out is cut to them where it is free text.
//!
//! *Invariant:* nothing here decides anything, keeps cluster state, retries or looks at a message beyond
//! its shape. Who dials again, where and when is the caller's; what a message means is `protocol`'s.

mod client;
mod convert;
mod error;
pub mod limits;
pub mod pb;
mod server;

pub use client::{ConnectError, Connection, End, connect};
pub use error::{Fault, WireError};
pub use server::{
    Acceptor, ConnEvent, ConnId, ControlServer, NotCoordinator, Outbox, SendError, ServeError, serve,
};

/// Metadata of a refusal: where the coordinator answers, as `host:port`.
pub const COORDINATOR_METADATA: &str = "tidegate-coordinator";
