//! Stores: which leave, which stay, and what to do next with each.
//!
//! | part | here |
//! |---|---|
//! | how many, who goes, who is rescued, whose turn it is | [`group`], [`select`] |
//! | what to do next with one store: a pure function of what is wanted, what the backend says and what was recorded | [`decide`] |
//! | what an answer of the backend changes | [`answer`] |
//! | processes and volumes | [`process`] |
//! | what people are shown | [`show`] |
//!
//! *Invariant:* no phase is stored. A coordinator that dies between any two calls leaves records from which the next
//! one decides the same.

mod answer;
mod decide;
mod group;
mod process;
mod select;
mod show;

use model::{BackendCall, BackendState, Code, StoreId, Time, Trouble};

pub use answer::{Asked, is_asked, take_answer};
pub use decide::{Process, Situation, Step, next};
pub use group::{Planned, plan};
pub use process::{address_of, is_to_leave, left_code, process_of, to_destroy};
pub use select::{rescue_order, selection_order};
pub use show::{EvictorShown, Mode, Offlining, OffliningReason, StoreStatus, Work, offlining, status};

/// While something is under way with a store it is looked at this often.
pub const BUSY_POLL: model::Millis = model::Millis::secs(1);
/// A store with which nothing is under way.
pub const IDLE_POLL: model::Millis = model::Millis::secs(10);
/// Calls that move data, or keep leaders away, are begun no more often than this for one store.
pub const CALL_PACE: model::Millis = model::Millis::secs(1);
/// Whether leaders are still kept away is made sure of this often.
pub const EVICT_PACE: model::Millis = model::Millis::secs(5);

/// What is known of a store beside its record: what its backend said lately. Lost with a coordinator, and asked again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sighting {
    pub state: Option<BackendState>,
    /// When that was asked, and when it was answered.
    pub at: Time,
    pub heard: Time,
    /// It was asked with the memo of a removal.
    pub with_removal: bool,
    /// What was asked before this is out of date: something was changed since.
    pub floor: Time,
    /// What keeps leaders away, whoever set it, and when that was asked.
    pub evictors: Option<Evictors>,
    /// Which of the two calls that move data was made last and has left nothing to move.
    pub complete: Option<Moved>,
    /// When the last call that moves data was begun.
    pub moved_at: Option<Time>,
    /// When the backend last said who its process is.
    pub identified_at: Option<Time>,
    /// When the backend last said that it keeps leaders away for us.
    pub evicted_at: Option<Time>,
    /// The backend knows nobody at its address.
    pub absent: bool,
    /// The backend lists nobody who may be it, under whatever address.
    pub unlisted: bool,
    /// Of a store with which nothing is under way: its record is not written for it.
    pub trouble: Option<Trouble>,
    /// Data left when it was first seen on its way out, and when: what the estimate comes from.
    pub moving_since: Option<(Time, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// All is elsewhere.
    Away,
    /// All is back.
    Back,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evictors {
    pub names: Vec<String>,
    pub memo: String,
    pub at: Time,
}

/// What a store waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub code: Code,
    pub message: String,
    /// A person is needed.
    pub blocks: bool,
}

/// A call that is to be made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// `None`: it concerns the group.
    pub store: Option<StoreId>,
    pub call: BackendCall,
}

impl Wait {
    pub fn new(code: Code, message: impl Into<String>) -> Wait {
        Wait { code, message: message.into(), blocks: false }
    }

    pub fn blocker(code: Code, message: impl Into<String>) -> Wait {
        Wait { blocks: true, ..Wait::new(code, message) }
    }
}
