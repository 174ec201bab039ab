//! Nodes as programs know them that were made for another system: their names and shapes, not ours.

use std::collections::BTreeMap;

use protocol::coordinator::{CaptureLeft, Coordinator, Liveness};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureView {
    pub id: String,
    /// Whether the coordinator is there.
    pub is_owner: bool,
    /// Where its daemon answers HTTP.
    pub address: String,
}

/// The daemon that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureStatusView {
    pub version: String,
    pub id: String,
    pub pid: u32,
    pub is_owner: bool,
    /// 0 alive, 1 stopping, 2 draining.
    pub liveness: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureCountsView {
    pub current_maintainer_count: u32,
    /// At least 1 while nobody can say.
    pub current_dispatcher_count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureDrainView {
    pub is_draining: bool,
    /// Empty if it does not drain.
    pub draining_capture_id: String,
    pub remaining_maintainer_count: u32,
    /// By feed. While nobody can say, every feed counts at least 1.
    pub remaining_dispatcher_count: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureBody {
    pub capture_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TableCountView {
    /// Everything that is left, services too. 0: the node may be killed.
    pub current_table_count: u32,
}

impl From<&CaptureLeft> for CaptureCountsView {
    fn from(left: &CaptureLeft) -> CaptureCountsView {
        CaptureCountsView {
            current_maintainer_count: left.maintainers,
            current_dispatcher_count: left.dispatcher_count(),
        }
    }
}

/// `acting` is the candidate that is the coordinator.
pub(crate) fn capture_views(coordinator: &Coordinator, acting: &str) -> Vec<CaptureView> {
    let view = |node: &model::NodeEntry| CaptureView {
        id: node.rec.id.to_string(),
        is_owner: node.rec.id.as_str() == acting,
        address: node.rec.api.clone(),
    };
    coordinator.captures().map(view).collect()
}

/// `None`: there is no such capture.
pub(crate) fn capture_drain_view(coordinator: &Coordinator, id: &str) -> Option<CaptureDrainView> {
    let left = coordinator.capture_left(coordinator.capture(id)?);
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (feed, count) in left.dispatchers.iter().filter(|(_, count)| **count > 0) {
        counts.insert(feed.to_string(), *count);
    }
    if left.unknown && left.draining {
        for feed in coordinator.cluster().feeds() {
            counts.entry(feed.name.to_string()).or_insert(1);
        }
    }
    Some(CaptureDrainView {
        is_draining: left.draining,
        draining_capture_id: if left.draining { id.to_owned() } else { String::new() },
        remaining_maintainer_count: left.maintainers,
        remaining_dispatcher_count: counts,
    })
}

/// What a node is to others: 0 alive, 1 stopping, 2 draining.
pub(crate) fn liveness(coordinator: &Coordinator, id: &str) -> Option<u8> {
    let node = coordinator.cluster().node_by_id(id)?;
    Some(Liveness::of(node).number())
}
