//! Draining nodes, as pure functions of state.
//!
//! The parts that others run as watchers and loops are all here, none of them running:
//!
//! | part | here |
//! |---|---|
//! | node watcher: which nodes drain, and when one is done | [`queue`] |
//! | job watcher: which instances may leave now | [`leave`], with the budget in `stateless` |
//! | deadline notifier: whose time is over | [`queue`], with the coordinator's timer |
//! | drain events (go) and migrated events (gone) | changes of `desired` and `actual` of instances |
//! | monitor: what remains and why | [`status`] |
//!
//! A drain moves nothing itself. It closes nodes and says which instances must leave; the ordinary
//! planner of services does the rest, so that a rollout, a drain and a failure share one plan and one
//! budget. Cancelling takes the drain out of its input, and what remains to do follows from that.

mod feeds;
mod leave;
mod preview;
mod queue;
mod status;
mod stores;

pub use feeds::{FeedsLeft, Loads, SeenFeeds, preview_feeds};
pub use leave::{Class, Leave, class_of, must_leave};
pub use preview::{Move, Preview, preview};
pub use queue::{
    DEADLINE_WINDOW, Dispatchers, Edges, Facts, Limits, advance, advance_with, edge_leaves_for, remaining,
};
pub use status::{Paused, Seen, Status, UnitStatus, status};
pub use stores::preview_stores;
