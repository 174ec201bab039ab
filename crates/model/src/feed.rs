//! A feed: one stream of work, its spans, who maintains it and how far it is.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{FeedName, FeedSpec, MaintainerEpoch, NodeId, ProcessEpoch, SpanName, Time};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feed {
    pub name: FeedName,
    pub spec: Arc<FeedSpec>,
    pub state: FeedState,
    pub spans: SpanSet,
    /// `None`: nobody was found to maintain it.
    pub maintainer: Option<Maintainer>,
    /// Of its last maintainer.
    pub epoch: MaintainerEpoch,
    /// How far all spans are, as of the last time it was stored. Never goes back.
    pub checkpoint: Option<Checkpoint>,
    pub created_at: Time,
    /// Moves that people asked for and that are not made. Stored in a shape of its own where there are any.
    #[serde(skip)]
    pub asked: Vec<AskedMove>,
}

/// A span that somebody wants on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedMove {
    /// Rises with every one.
    pub number: u64,
    pub span: SpanName,
    pub to: NodeId,
}

/// What the operator wants of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FeedState {
    Running,
    /// Its dispatchers are stopped; the source holds back what they have not read.
    Paused,
    /// Its dispatchers stop, what it left in source and sink goes, then the record.
    Removing,
}

/// The spans of a feed, as its trigger dispatcher saw them last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanSet {
    /// Rises with every change. Zero: nobody has looked yet.
    pub generation: u64,
    /// Sorted.
    pub names: Arc<[SpanName]>,
}

/// Where a feed's maintainer is to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maintainer {
    pub node: NodeId,
    /// The life of the node that it belongs to: another one knows nothing of it.
    pub process: ProcessEpoch,
    pub epoch: MaintainerEpoch,
    /// The one before it, which has not confirmed that it stopped: until it has, or its lease has
    /// ended, this one does not start.
    pub from: Option<Origin>,
    pub since: Time,
}

/// A maintainer that is on its way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub node: NodeId,
    pub process: ProcessEpoch,
    pub epoch: MaintainerEpoch,
}

/// How far a span, or a feed as the least of its spans, is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Checkpoint {
    /// In the source's own count: bytes of a log, a position in a database's log. Within one span it
    /// only rises.
    pub position: u64,
    /// Everything that happened in the source before this is in the sink.
    pub at: Time,
}

impl Checkpoint {
    /// Neither part ever goes back.
    pub fn raise(&mut self, to: Checkpoint) {
        self.position = self.position.max(to.position);
        self.at = self.at.max(to.at);
    }

    /// What holds for both.
    pub fn least(self, other: Checkpoint) -> Checkpoint {
        Checkpoint { position: self.position.min(other.position), at: self.at.min(other.at) }
    }
}

impl FeedState {
    pub fn as_str(self) -> &'static str {
        match self {
            FeedState::Running => "running",
            FeedState::Paused => "paused",
            FeedState::Removing => "removing",
        }
    }
}
