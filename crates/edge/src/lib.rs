//! The async shell of the edge: listeners, connections, and how they end.
//!
//! Owns the sockets. What to open, where each connection goes and when it is cut is decided by
//! [`protocol::edge::Edge`], which one task here owns and performs for; connections run in tasks of
//! their own and talk to it over channels. [`load`] makes traffic and counts what fails, for tests and
//! measurements.
//!
//! *Invariant:* no byte goes to a backend before the edge said `Copy`. Nothing here chooses a backend.

#![forbid(unsafe_code)]

mod connection;
mod handle;
mod listener;
pub mod load;
mod shell;

pub use handle::{EdgeHandle, Stats};
pub use protocol::edge::{Counters, ServiceStats};
