//! The JSON shapes of the API, shared with the commands: plain structs, built from the coordinator's
//! state in its own task.

mod capture;
mod cluster;
mod drain;
mod event;
mod feed;
mod instance;
mod node;
mod service;
mod spec;
mod store;
mod volume;

#[cfg(test)]
mod tests;

use model::{Code, Reason, Time};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use capture::{
    CaptureBody, CaptureCountsView, CaptureDrainView, CaptureStatusView, CaptureView, TableCountView,
};
pub(crate) use capture::{capture_drain_view, capture_views, liveness};
pub use cluster::{
    CandidateView, CoordinatorView, DoctorView, NodeTotals, ServiceTotals, StatusView, StoreView,
    ViolationView,
};
pub(crate) use cluster::{Census, figures};
pub use drain::{
    BlockerView, DrainBody, DrainOptionsView, DrainStatusView, DrainView, DrainsBody, LeftView, MoveView,
    PlanView, RemainingView, UnitView, WaitView,
};
pub(crate) use drain::{DrainFigures, drain_reasons, drain_status_view, drain_view, plan_view};
pub use event::{EventView, ResetView};
pub use feed::{CheckpointView, FeedTroubleView, FeedView, MaintainerView};
pub(crate) use feed::{FeedFigures, feed_view};
pub use instance::{ExitView, InstanceView};
pub(crate) use instance::{instance_view, visible_actual};
pub use node::{CountsView, NodeView, ResourcesView, UnclaimedView};
pub(crate) use node::{node_state, node_view};
pub use service::{AppliedView, ApplyView, BackendView, BackendsView, CountChange, RolloutView, ServiceView};
pub(crate) use service::{backends_view, service_view};
pub use spec::{
    BackendShape, CheckShape, DiskShape, EdgeShape, FeedShape, FeedSinkShape, FeedSourceShape, MigrateShape,
    ServiceShape, SpecFileShape, StopShape, StoreGroupShape, StoreVolumeShape, UpdateShape, VolumeShape,
};
pub use store::{EvictorView, OffliningView, StoreGroupView, StoreMemberView, StoreWorkView};
pub(crate) use store::{StoreFigures, is_of_stores, store_group_view, store_view};
pub use volume::VolumeView;
pub(crate) use volume::volume_view;

/// A list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct List<T> {
    pub items: Vec<T>,
}

/// Why something is not as asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReasonView {
    /// Stable, snake_case; see docs/reasons.md.
    pub code: String,
    /// What it is about: `instance/web-…`, `service/web`, `node/node-1`.
    pub unit: String,
    /// RFC 3339.
    pub since: Option<String>,
    pub message: String,
    /// What an operator can do about it.
    pub hint: String,
}

impl ReasonView {
    pub(crate) fn new(code: Code, unit: String, since: Option<Time>, message: Option<&str>) -> ReasonView {
        ReasonView {
            code: code.as_str().to_owned(),
            unit,
            since: since.map(rfc3339),
            message: message
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| code.meaning().trim())
                .to_owned(),
            hint: code.hint().to_owned(),
        }
    }

    pub(crate) fn of(reason: &Reason) -> ReasonView {
        ReasonView::new(reason.code, reason.unit.clone(), reason.since, Some(&reason.message))
    }
}

/// The body of every error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorView {
    pub error: ErrorBody,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Stable, snake_case.
    pub code: String,
    pub message: String,
    #[schema(value_type = Object)]
    pub details: serde_json::Map<String, serde_json::Value>,
}

/// A time as programs and people read it. One that is beyond the calendar is shown as its last day.
pub(crate) fn rfc3339(time: Time) -> String {
    let millis = i64::try_from(time.0).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    // Always as long, so that texts sort as times do.
    format!("{time:.3}")
}
