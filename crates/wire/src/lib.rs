//! Protobuf messages and the streams that carry them between daemons and the coordinator.
//!
//! Owns `proto/tidegate.proto`, the conversions from and to [`protocol::message`] ([`pb`] is what was
//! generated), the dialling side ([`connect`]), the answering side ([`serve`]) and the streams between nodes
//! ([`dial_peer`], [`PeerServer`]).
//!
//! Whatever comes from outside is checked on the way in: a [`protocol::message`] that leaves this crate
//! keeps to the [`limits`]. What goes out is cut to them where it is free text.
//!
//! Where daemons have certificates, a stream speaks for the node of its certificate, or is ended.
//!
//! *Invariant:* nothing here decides anything, keeps cluster state, retries or looks at a message beyond
//! its shape and whom it names as its sender. Who dials again, where and when is the caller's; what a message means is `protocol`'s.

#![forbid(unsafe_code)]

mod allowance;
mod client;
mod convert;
mod error;
pub mod limits;
pub mod pb;
mod peer;
mod server;

pub use client::{ConnectError, Connection, End, connect, connect_with};
pub use error::{Fault, WireError};
pub use peer::{PeerReceiver, PeerSender, PeerServer, PeerStream, dial_peer, dial_peer_with};
pub use server::{
    Acceptor, ConnEvent, ConnId, ControlServer, NotCoordinator, Outbox, SendError, ServeError, serve,
    serve_all, serve_door,
};

/// Metadata of a refusal: where the coordinator answers, as `host:port`.
pub const COORDINATOR_METADATA: &str = "tidegate-coordinator";
