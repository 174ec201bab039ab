//! The actors as pure state machines: [`coordinator`], [`node`], [`edge`], and the [`message`]s they
//! exchange.
//!
//! Each takes an input and the time and returns outputs; shells (`server`, `worker`, `edge`) and the
//! simulator perform them.
//!
//! *Invariant:* no async, no clock, no I/O, no randomness of its own. The same inputs give the same
//! outputs, byte for byte.

#![forbid(unsafe_code)]

pub mod candidacy;
pub mod commit;
pub mod coordinator;
pub mod dispatchers;
pub mod edge;
pub mod maintainer;
pub mod message;
pub mod node;
pub mod roster;
mod timing;

pub use timing::{Timing, TimingError};
