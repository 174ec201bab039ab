//! A feed as the API shows it.

use std::collections::BTreeMap;

use model::{Checkpoint, Feed, FeedState, Time, spec::FeedFile};
use protocol::{
    coordinator::Coordinator,
    message::feed::{FeedReport, Phase},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ReasonView, node::dispatchers_said, rfc3339};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FeedView {
    pub name: String,
    /// `running`, `warning` (something is in its way), `paused`, `removing`.
    pub state: String,
    /// How many spans its source has; null before its first look.
    pub spans: Option<u64>,
    pub maintainer: Option<MaintainerView>,
    /// Dispatchers by node, as its maintainer says.
    pub dispatchers: BTreeMap<String, u32>,
    /// Dispatchers on the move between nodes.
    pub moving: u32,
    /// Spans that nobody runs and somebody should.
    pub absent: u32,
    /// The least of all its spans. Null before its first one, and after a change of coordinators until the
    /// maintainer has told the present one: what is stored is older than what was shown.
    pub checkpoint: Option<CheckpointView>,
    /// How far the sink is behind the source.
    pub lag_seconds: Option<f64>,
    /// Bytes that the source keeps for this feed.
    pub held_back: Option<u64>,
    pub troubles: Vec<FeedTroubleView>,
    pub reasons: Vec<ReasonView>,
    #[schema(value_type = super::FeedShape)]
    pub spec: FeedFile,
    pub created_at: String,
}

impl FeedView {
    /// What its commands are told in confidence is not for those who only look.
    pub(crate) fn hide_secrets(&mut self) {
        super::service::hide(&mut self.spec.env);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MaintainerView {
    pub node: String,
    /// Rises with every maintainer.
    pub epoch: u64,
    /// `moving` (the one before has not confirmed that it stopped), `starting`, `asking`, `working`,
    /// `quiesced`, `cleaned`.
    pub phase: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointView {
    /// In the source's own count.
    pub position: u64,
    /// Everything that happened in the source before this is in the sink.
    pub at: String,
}

/// Something in a feed's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeedTroubleView {
    /// Stable, snake_case; see docs/reasons.md.
    pub code: String,
    pub node: String,
    /// Null: the feed as a whole.
    pub span: Option<String>,
    pub message: String,
    pub hint: String,
}

pub(crate) fn feed_view(coordinator: &Coordinator, feed: &Feed, now: Time) -> FeedView {
    let seen = coordinator.feed_seen(&feed.name);
    let maintained = feed.maintainer.as_ref();
    let report = seen.and_then(|seen| seen.report.as_ref());
    // What an earlier maintainer said last is better than nothing, but for how far this one is.
    let current = report.filter(|report| maintained.is_some_and(|now| now.epoch == report.epoch));
    let troubles = report.map(troubles).unwrap_or_default();
    let checkpoint = checkpoint(report, feed);
    let wait = seen.and_then(|seen| seen.wait.as_ref());
    FeedView {
        name: feed.name.to_string(),
        state: state(feed.state, !troubles.is_empty()).to_owned(),
        spans: (feed.spans.generation > 0).then_some(feed.spans.names.len() as u64),
        maintainer: maintained.map(|maintainer| MaintainerView {
            node: maintainer.node.to_string(),
            epoch: maintainer.epoch.0,
            phase: phase(maintainer.from.is_some(), current).to_owned(),
        }),
        dispatchers: report
            .map(|report| report.dispatchers.iter().map(|(node, count)| (node.to_string(), *count)).collect())
            .unwrap_or_default(),
        moving: report.map_or(0, |report| report.moving),
        absent: report.map_or(0, |report| report.absent),
        checkpoint: checkpoint
            .filter(|_| report.is_some())
            .map(|checkpoint| CheckpointView { position: checkpoint.position, at: rfc3339(checkpoint.at) }),
        lag_seconds: checkpoint.map(|checkpoint| now.since(checkpoint.at).as_duration().as_secs_f64()),
        held_back: report.and_then(|report| report.held_back),
        troubles,
        reasons: wait
            .map(|(code, message, since)| {
                ReasonView::new(*code, format!("feed/{}", feed.name), Some(*since), Some(message))
            })
            .into_iter()
            .collect(),
        spec: FeedFile::shown(&feed.name, &feed.spec),
        created_at: rfc3339(feed.created_at),
    }
}

fn checkpoint(report: Option<&FeedReport>, feed: &Feed) -> Option<Checkpoint> {
    match (report.and_then(|report| report.checkpoint), feed.checkpoint) {
        (Some(mut said), Some(stored)) => {
            said.raise(stored);
            Some(said)
        }
        (said, stored) => said.or(stored),
    }
}

/// What is counted of feeds for a scrape.
#[derive(Debug, Default)]
pub(crate) struct FeedFigures {
    /// Seconds, of feeds that have begun.
    pub lags: Vec<(String, f64)>,
    /// Maintainers and dispatchers of each worker.
    pub nodes: Vec<(String, i64, i64)>,
}

impl FeedFigures {
    pub fn of(coordinator: &Coordinator, now: Time) -> FeedFigures {
        let cluster = coordinator.cluster();
        let lag = |feed: &Feed| {
            let report = coordinator.feed_seen(&feed.name).and_then(|seen| seen.report.as_ref());
            let lag = now.since(checkpoint(report, feed)?.at);
            Some((feed.name.to_string(), lag.as_duration().as_secs_f64()))
        };
        let workers = cluster.nodes().filter(|(_, node)| node.rec.roles.worker);
        let nodes = workers.map(|(ix, node)| {
            let maintainers = cluster.maintainer_count(&node.rec.id) as i64;
            (node.rec.id.to_string(), maintainers, dispatchers_said(coordinator, ix) as i64)
        });
        FeedFigures { lags: cluster.feeds().filter_map(lag).collect(), nodes: nodes.collect() }
    }
}

fn state(state: FeedState, troubled: bool) -> &'static str {
    match state {
        FeedState::Running if troubled => "warning",
        FeedState::Running | FeedState::Paused | FeedState::Removing => state.as_str(),
    }
}

fn phase(moving: bool, report: Option<&FeedReport>) -> &'static str {
    match report.map(|report| report.phase) {
        _ if moving => "moving",
        None => "starting",
        Some(Phase::Asking) => "asking",
        Some(Phase::Working) => "working",
        Some(Phase::Quiesced) => "quiesced",
        Some(Phase::Cleaned) => "cleaned",
    }
}

fn troubles(report: &FeedReport) -> Vec<FeedTroubleView> {
    let show = |trouble: &protocol::message::feed::FeedTrouble| FeedTroubleView {
        code: trouble.code.as_str().to_owned(),
        node: trouble.node.to_string(),
        span: trouble.span.as_ref().map(ToString::to_string),
        message: trouble.message.clone(),
        hint: trouble.code.hint().to_owned(),
    };
    report.troubles.iter().map(show).collect()
}
