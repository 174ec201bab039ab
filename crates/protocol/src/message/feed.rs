//! What is said about feeds: between the coordinator and the maintainers' nodes, and between nodes.
//!
//! Orders between nodes are level-triggered: a maintainer repeats what it wants until the node's word
//! about the span shows it. Every message names the maintainer's epoch; nodes obey the highest only.

use std::{collections::BTreeMap, sync::Arc};

pub use model::AskedMove;
use model::{
    Checkpoint, Code, FeedName, FeedSpec, FeedState, MaintainerEpoch, NodeId, ProcessEpoch, SpanEpoch,
    SpanName, SpanSet,
};

use super::SetRevision;

/// The nodes that may host feeds, and which of them are closed. With `full`, nodes that are not named
/// are not there; otherwise they are as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    pub revision: SetRevision,
    /// What it was when this was computed; a node that has less asks for all by not acknowledging.
    pub since: SetRevision,
    pub full: bool,
    pub nodes: Vec<RosterNode>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterNode {
    pub node: NodeId,
    pub epoch: ProcessEpoch,
    /// Where other daemons reach it; empty while the coordinator does not know.
    pub rpc: String,
    /// Nothing may be placed there.
    pub closed: bool,
    /// Nothing runs there: its lease is over, and its own fence has stopped what ran; or this life of it has
    /// said goodbye.
    pub offline: bool,
    pub labels: BTreeMap<String, String>,
}

/// What a node is told of one feed's maintainer. Absence is never an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedOrder {
    pub feed: FeedName,
    pub epoch: MaintainerEpoch,
    pub what: FeedWhat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedWhat {
    Maintain(Arc<Maintain>),
    /// Stop acting, and say how far it is. Dispatchers run on.
    Quiesce,
    /// It is confirmed: nothing of it need be kept.
    Forget,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintain {
    /// Rises with every change of what is ordered, over terms too; reports carry it back.
    pub revision: SetRevision,
    pub spec: Arc<FeedSpec>,
    pub state: FeedState,
    pub spans: SpanSet,
    /// No span that nobody vouches for starts from less.
    pub checkpoint: Option<Checkpoint>,
    /// How many of its dispatchers may be on the move.
    pub moves: u32,
    /// Moves that people asked for, beside those.
    pub asked: Vec<AskedMove>,
}

/// What a maintainer says of its feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedReport {
    pub feed: FeedName,
    pub epoch: MaintainerEpoch,
    /// Rises with every change on this node; repeated until it is answered.
    pub number: u64,
    /// The highest order revision it has taken.
    pub revision: SetRevision,
    pub phase: Phase,
    /// The spans that its trigger dispatcher saw, where they differ from those ordered.
    pub spans: Option<Arc<[SpanName]>>,
    pub checkpoint: Option<Checkpoint>,
    /// Dispatchers by node.
    pub dispatchers: BTreeMap<NodeId, u32>,
    /// On the move between nodes.
    pub moving: u32,
    /// Moves that were completed under this epoch.
    pub moved: u64,
    /// Spans that nobody runs and somebody should.
    pub absent: u32,
    /// Bytes that the source keeps for this feed.
    pub held_back: Option<u64>,
    /// Of the moves that were asked for, by number, those that are not done and may still be.
    pub asked: Vec<u64>,
    pub troubles: Vec<FeedTrouble>,
    /// Dispatchers on closed nodes that every node that might take them has failed to make ready.
    pub stuck: BTreeMap<NodeId, Stuck>,
}

/// Dispatchers that cannot leave a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub count: u32,
    /// Of the first of them.
    pub code: Code,
    pub message: String,
}

/// How far a maintainer is with taking over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Asks the nodes what they run; until all have answered, what nobody vouches for stays as it is.
    Asking,
    Working,
    /// It has stopped acting, for good.
    Quiesced,
    /// All dispatchers have stopped and what the feed left behind is gone.
    Cleaned,
}

/// Something in a feed's way, for the operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FeedTrouble {
    pub code: Code,
    pub node: NodeId,
    /// `None`: the feed as a whole.
    pub span: Option<SpanName>,
    pub message: String,
}

/// From one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub from: NodeId,
    pub from_epoch: ProcessEpoch,
    /// The life of the receiver that is meant.
    pub to_epoch: ProcessEpoch,
    pub feed: FeedName,
    pub maintainer: MaintainerEpoch,
    pub body: PeerBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerBody {
    /// What do you run of this feed? `heard` is the number of the last news that came; if it is the
    /// host's last, the answer is short.
    /// `mark` tells the directories that every node must have from others at the same path, once the
    /// maintainer has looked.
    Ask { spec: Arc<FeedSpec>, mark: Option<String>, heard: Option<u64> },
    Orders {
        /// A host that knows less of the closed set refuses.
        roster: SetRevision,
        orders: Vec<SpanOrder>,
    },
    /// Everything of this feed on the host.
    Inventory { number: u64, load: u32, held: Vec<Held> },
    /// The maintainer has heard everything.
    Same { number: u64, load: u32 },
    /// What changed.
    News { number: u64, load: u32, held: Vec<Held> },
    /// How far running spans are. Never goes back, so that a lost one does no harm.
    Progress { spans: Vec<(SpanName, SpanEpoch, Checkpoint)> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanOrder {
    pub span: SpanName,
    pub what: SpanWhat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanWhat {
    Prepare,
    Start {
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
    },
    Stop {
        epoch: SpanEpoch,
    },
    /// Nothing of it need be kept here, unless it runs.
    Release,
}

/// What a host says of one span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub span: SpanName,
    /// Of its last start here; zero if it never was.
    pub epoch: SpanEpoch,
    pub state: HeldState,
    pub checkpoint: Option<Checkpoint>,
    pub trouble: Option<(Code, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldState {
    Preparing,
    Prepared,
    Running,
    Stopping,
    /// It ran here and does not any more; `checkpoint` is its last.
    Stopped,
    /// Not here: never was, released, or refused (then `trouble` says why).
    Absent,
}
