//! A small cluster in every state that it can be in: the real coordinator, nodes and edges of `protocol`,
//! with every order of what is on its way between them, and a few faults at every moment.
//!
//! Owns the world around the actors, what counts as one state, and what must hold in each. The simulator
//! draws long runs of large clusters; this one leaves out no run of a small one.
//!
//! *Invariant:* nothing here decides what a cluster does. What happens is what `protocol` says; the search
//! only chooses what happens next.

#![forbid(unsafe_code)]

mod agree;
mod canon;
mod config;
mod laws;
mod liveness;
mod machine;
mod office;
mod search;
mod step;
mod suite;
mod world;

pub use agree::futures_agree;
pub use config::{Broken, Budget, Config};
pub use liveness::Distances;
pub use search::{Broke, Outcome, beginning, explore};
pub use suite::{broken, large, small};
