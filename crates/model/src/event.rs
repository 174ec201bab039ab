//! What happened, for people and programs that follow along.

use serde::{Deserialize, Serialize};

use crate::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventKind {
    NodeStateChanged,
    NodeHealthChanged,
    InstanceAllocated,
    InstanceDesiredStateChanged,
    InstanceStatusChanged,
    ServiceApplied,
    ServiceRemoved,
    RolloutChanged,
    VolumeMoved,
    CoordinatorElected,
    DrainStarted,
    DrainProgressed,
    DrainBlocked,
    DrainStalled,
    DrainEnded,
    DrainCancelled,
    FeedApplied,
    FeedRemoved,
    FeedStateChanged,
    FeedMaintainerMoved,
    FeedDispatcherMoved,
    FeedMoveGivenUp,
    StoreGroupApplied,
    StoreGroupRemoved,
    StoreOfflineChanged,
    StoreEvictorChanged,
    StoreRestartChanged,
}

impl EventKind {
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::NodeStateChanged => "node.state_changed",
            EventKind::NodeHealthChanged => "node.health_changed",
            EventKind::InstanceAllocated => "instance.allocated",
            EventKind::InstanceDesiredStateChanged => "instance.desired_state_changed",
            EventKind::InstanceStatusChanged => "instance.status_changed",
            EventKind::ServiceApplied => "service.applied",
            EventKind::ServiceRemoved => "service.removed",
            EventKind::RolloutChanged => "service.rollout_changed",
            EventKind::VolumeMoved => "volume.moved",
            EventKind::CoordinatorElected => "coordinator.elected",
            EventKind::DrainStarted => "drain.started",
            EventKind::DrainProgressed => "drain.progressed",
            EventKind::DrainBlocked => "drain.blocked",
            EventKind::DrainStalled => "drain.stalled",
            EventKind::DrainEnded => "drain.ended",
            EventKind::DrainCancelled => "drain.cancelled",
            EventKind::FeedApplied => "feed.applied",
            EventKind::FeedRemoved => "feed.removed",
            EventKind::FeedStateChanged => "feed.state_changed",
            EventKind::FeedMaintainerMoved => "feed.maintainer_moved",
            EventKind::FeedDispatcherMoved => "feed.dispatcher_moved",
            EventKind::FeedMoveGivenUp => "feed.move_given_up",
            EventKind::StoreGroupApplied => "store_group.applied",
            EventKind::StoreGroupRemoved => "store_group.removed",
            EventKind::StoreOfflineChanged => "store.offline_changed",
            EventKind::StoreEvictorChanged => "store.evictor_changed",
            EventKind::StoreRestartChanged => "store.restart_changed",
        }
    }
}

/// One thing that happened. `fields` are the values a program wants; `message` is for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    pub kind: EventKind,
    pub at: Time,
    /// `node/node-1`, `service/web`, `instance/web-…`.
    pub unit: String,
    pub message: String,
    pub fields: Vec<(&'static str, String)>,
}
