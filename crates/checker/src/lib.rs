//! The invariants of the design as code: [`check`] looks at one state, [`Observer`] at what a
//! coordinator made of it since.
//!
//! Owns no decision and no state of the cluster. A [`Violation`] is always a bug of ours, never of an
//! operator or a machine.
//!
//! *Invariant:* the checker knows `model` alone. It recomputes what it compares with; it never asks the
//! planner or the protocol.

#![forbid(unsafe_code)]

mod drains;
mod feeds;
mod members;
mod moves;
mod observer;
mod place;
mod state;
mod stores;
mod violation;

pub use drains::uses_a_slot;
pub use feeds::closed_nodes;
pub use observer::{Limits, Observer, Step};
pub use state::{capacity_below_use, check};
pub use violation::Violation;
