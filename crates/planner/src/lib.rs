//! Pure decisions over a [`model::Cluster`]: where instances go, how a release rolls out, what is done
//! about a node that is gone.
//!
//! Owns no state. A decision is a change in the given [`model::Txn`], so that the next one sees it;
//! what is not done carries its reason.
//!
//! *Invariant:* the planner does not know what time it is, whom it talks to, or what a unit is made of.
//! Planning again right after applying a plan makes no change.

#![forbid(unsafe_code)]

pub mod balance;
pub mod drain;
pub mod feeds;
mod history;
mod ids;
mod place;
mod reconcile;
mod rollout;
mod scratch;
mod slots;
mod stateless;
pub mod stores;
mod system;

pub use history::{HISTORY_KEPT, to_forget};
pub use ids::{IDS_PER_BLOCK, Ids};
pub use place::{Placer, Wait};
pub use reconcile::{Drains, PLACEMENTS_PER_PLAN_MAX, Planned, reconcile, reconcile_with};
