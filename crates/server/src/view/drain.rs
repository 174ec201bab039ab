//! Drains as the API shows them, and what may be asked of one.

use std::collections::BTreeMap;

use model::{
    Cluster, Code, Drain, DrainNode, DrainOptions, Ending, Health, NodeEntry, Reason, Return, Then, Time,
};
use protocol::coordinator::{Class, Coordinator, DrainStatus, Preview, UnitStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{ReasonView, rfc3339};

/// What may be said of a drain. What is omitted has its default, or keeps its value in a drain that
/// runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainBody {
    /// `"1h"`, or `"none"`. Counts from the start of the node's turn, in a drain that runs from the
    /// request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// The deadline is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// System instances may stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_system: Option<bool>,
    /// The drain may end without the stateful instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_stateful: Option<bool>,
    /// Stateful instances are stopped as well; their volumes stay on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_stateful: Option<bool>,
    /// What becomes of the node: `stay` or `stop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// What makes it active again: `enable` or `restart`.
    #[serde(default, rename = "return", skip_serializing_if = "Option::is_none")]
    pub back: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<BTreeMap<String, String>>,
}

/// A drain of several nodes: by name, or by their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainsBody {
    /// In the order in which they take their turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// All nodes that have these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, String>,
    #[serde(flatten)]
    pub options: DrainBody,
}

/// One node's part of a drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DrainStatusView {
    pub epoch: u64,
    pub node: String,
    /// `queued`, `draining`, then `drained`, `drained_except`, `cancelled`, `node_lost` or `failed`.
    pub state: String,
    /// When its turn came.
    pub started_at: Option<String>,
    /// Null without one, and before its turn.
    pub deadline: Option<String>,
    pub ended_at: Option<String>,
    pub deadline_reached: bool,
    pub message: String,
    pub meta: BTreeMap<String, String>,
    /// Who asked for it.
    pub by: String,
    pub options: DrainOptionsView,
    /// Units on it when its turn came.
    pub total: u64,
    pub done: u64,
    /// From 0 to 1; never goes back.
    pub progress: f64,
    /// Null where nothing can be said.
    pub eta_seconds: Option<f64>,
    /// Where the estimate comes from.
    pub eta_basis: String,
    /// Nothing has left for `drain.stall_after`.
    pub stalled: bool,
    pub remaining: RemainingView,
    /// What was left when it ended.
    pub left: Vec<LeftView>,
    /// What needs a person.
    pub blockers: Vec<BlockerView>,
    pub waits: Vec<WaitView>,
}

/// As they stand, all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainOptionsView {
    /// `"1h"`, or `"none"`; `"0s"` was forced.
    pub deadline: String,
    pub ignore_system: bool,
    pub ack_stateful: bool,
    pub include_stateful: bool,
    /// `stay`, `stop`; `await_stop`: its daemon stays up until it is killed by who asked for the drain.
    pub then: String,
    #[serde(rename = "return")]
    pub back: String,
}

/// What the node has not reported stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemainingView {
    /// Stateless ones.
    pub instances: u64,
    pub batch: u64,
    pub system: u64,
    pub stateful: u64,
    pub maintainers: u64,
    /// By feed.
    pub dispatchers: BTreeMap<String, u64>,
    pub stores: u64,
    /// Of a node that does not answer; counted here instead of above.
    pub unknown: u64,
    pub units: Vec<UnitView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnitView {
    /// `instance/web-…`.
    pub unit: String,
    /// `stateless`, `stateful`, `batch`, `system`.
    pub class: String,
    /// Why it is still there.
    pub code: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftView {
    pub unit: String,
    pub code: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BlockerView {
    pub code: String,
    pub unit: String,
    pub since: Option<String>,
    pub message: String,
    /// What an operator can do about it.
    pub hint: String,
    /// `volume` where it is about one.
    #[schema(value_type = Object)]
    pub details: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitView {
    pub code: String,
    pub unit: String,
    pub since: Option<String>,
    pub message: String,
}

/// A drain: its nodes' parts, and how they stand together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DrainView {
    pub epoch: u64,
    /// `queued` until the first node's turn comes, then `draining`, then the worst ending.
    pub state: String,
    pub message: String,
    pub meta: BTreeMap<String, String>,
    /// Who asked for it, and from where.
    pub by: String,
    pub from: String,
    pub created_at: String,
    /// Null while a node is not done.
    pub ended_at: Option<String>,
    /// In the order in which they take their turn.
    pub nodes: Vec<DrainStatusView>,
}

/// What a drain would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanView {
    pub node: String,
    pub moves: Vec<MoveView>,
    pub blockers: Vec<BlockerView>,
    pub waits: Vec<WaitView>,
    pub waves: u32,
    pub eta_seconds: f64,
    pub eta_basis: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoveView {
    pub unit: String,
    /// Null: it stops, and nothing takes its place elsewhere.
    pub to: Option<String>,
    pub wave: u32,
}

/// One node's part of a drain, as it stands.
pub(crate) fn drain_status_view(
    coordinator: &Coordinator,
    drain: &Drain,
    part: &DrainNode,
    now: Time,
) -> DrainStatusView {
    let status = coordinator.drain_status(part, now);
    let (mut blockers, mut waits) = (Vec::new(), Vec::new());
    for unit in &status.units {
        match unit.blocks {
            true => blockers.push(blocker(coordinator, unit)),
            false => waits.push(wait(unit)),
        }
    }
    waits.extend(status.waits.iter().map(wait_view));
    let time = |time: Option<Time>| time.map(rfc3339);
    DrainStatusView {
        epoch: drain.epoch,
        node: part.node.to_string(),
        state: part.state_str().to_owned(),
        started_at: time(part.started_at),
        deadline: time(part.deadline),
        ended_at: time(part.ended_at),
        deadline_reached: part.deadline_reached,
        message: drain.message.clone(),
        meta: drain.meta.clone(),
        by: drain.by.clone(),
        options: (&part.options).into(),
        total: u64::from(part.total),
        done: u64::from(part.done),
        progress: status.progress,
        eta_seconds: status.eta.map(|eta| eta.as_duration().as_secs_f64()),
        remaining: remaining(coordinator, drain, part, &status),
        eta_basis: status.eta_basis,
        stalled: part.stalled,
        left: part
            .left
            .iter()
            .map(|(unit, code)| LeftView { unit: unit.clone(), code: code.as_str().to_owned() })
            .collect(),
        blockers,
        waits,
    }
}

pub(crate) fn drain_view(coordinator: &Coordinator, drain: &Drain, now: Time) -> DrainView {
    let ended = drain.nodes.iter().filter_map(|part| part.ended_at).max();
    DrainView {
        epoch: drain.epoch,
        state: drain.state_str().to_owned(),
        message: drain.message.clone(),
        meta: drain.meta.clone(),
        by: drain.by.clone(),
        from: drain.from.clone(),
        created_at: rfc3339(drain.created_at),
        ended_at: ended.filter(|_| !drain.is_unfinished()).map(rfc3339),
        nodes: drain.nodes.iter().map(|part| drain_status_view(coordinator, drain, part, now)).collect(),
    }
}

pub(crate) fn plan_view(cluster: &Cluster, node: &str, plan: &Preview) -> PlanView {
    let blocker = |reason: &Reason| BlockerView {
        code: reason.code.as_str().to_owned(),
        unit: reason.unit.clone(),
        since: reason.since.map(rfc3339),
        message: reason.message.clone(),
        hint: reason.code.hint().to_owned(),
        details: volume_details(cluster, reason.code, &reason.unit),
    };
    PlanView {
        node: node.to_owned(),
        moves: plan
            .moves
            .iter()
            .map(|step| MoveView { unit: step.unit.clone(), to: step.to.clone(), wave: step.wave })
            .collect(),
        blockers: plan.blockers.iter().map(blocker).collect(),
        waits: plan.waits.iter().map(wait_view).collect(),
        waves: plan.waves,
        eta_seconds: plan.eta.as_duration().as_secs_f64(),
        eta_basis: "min_healthy_time \u{d7} waves".to_owned(),
    }
}

/// Why a node's unfinished drain needs a person, or goes nowhere: each code once.
pub(crate) fn drain_reasons(coordinator: &Coordinator, node: &NodeEntry, now: Time) -> Vec<ReasonView> {
    let Some((drain, part)) = unfinished(coordinator, node) else { return Vec::new() };
    let unit = format!("node/{}", part.node);
    let mut found: Vec<ReasonView> = Vec::new();
    let status = coordinator.drain_status(part, now);
    for (code, units) in blocking(&status) {
        let (first, more) = (units[0], units.len() - 1);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let message = format!("{} keeps drain {}: {}{more}", first.unit, drain.epoch, first.message);
        found.push(ReasonView::new(code, unit.clone(), first.since, Some(&message)));
    }
    if part.stalled {
        let message =
            format!("{} of {} units have left in drain {}, none lately", part.done, part.total, drain.epoch);
        found.push(ReasonView::new(Code::DrainStalled, unit, part.progress_at, Some(&message)));
    }
    found
}

fn unfinished<'a>(coordinator: &'a Coordinator, node: &NodeEntry) -> Option<(&'a Drain, &'a DrainNode)> {
    let drain = coordinator.cluster().drain(node.drain.as_ref()?.epoch)?;
    Some((drain, drain.part(node.rec.id.as_str())?))
}

fn blocking(status: &DrainStatus) -> BTreeMap<Code, Vec<&UnitStatus>> {
    let mut codes: BTreeMap<Code, Vec<&UnitStatus>> = BTreeMap::new();
    for unit in status.units.iter().filter(|unit| unit.blocks) {
        codes.entry(unit.code).or_default().push(unit);
    }
    codes
}

/// What is counted of drains for a scrape.
#[derive(Debug, Default)]
pub(crate) struct DrainFigures {
    /// 1 for a node whose turn has come.
    pub draining: Vec<(String, i64)>,
    /// By node and class, of nodes in an unfinished drain.
    pub remaining: Vec<(String, &'static str, i64)>,
    /// Nodes whose drain needs a person, by why.
    pub blocked: BTreeMap<&'static str, i64>,
}

impl DrainFigures {
    pub fn of(coordinator: &Coordinator, now: Time) -> DrainFigures {
        let mut figures = DrainFigures::default();
        for (_, node) in coordinator.cluster().nodes() {
            let id = node.rec.id.to_string();
            figures.draining.push((id.clone(), i64::from(node.is_draining())));
            let Some((drain, part)) = unfinished(coordinator, node) else { continue };
            let status = coordinator.drain_status(part, now);
            for code in blocking(&status).into_keys() {
                *figures.blocked.entry(code.as_str()).or_default() += 1;
            }
            let left = remaining(coordinator, drain, part, &status);
            for (class, count) in left.by_class() {
                figures.remaining.push((id.clone(), class, count as i64));
            }
        }
        figures
    }
}

impl RemainingView {
    fn by_class(&self) -> [(&'static str, u64); 8] {
        [
            ("stateless", self.instances),
            ("stateful", self.stateful),
            ("batch", self.batch),
            ("system", self.system),
            ("maintainers", self.maintainers),
            ("dispatchers", self.dispatchers.values().sum()),
            ("stores", self.stores),
            ("unknown", self.unknown),
        ]
    }
}

/// Nothing that such a node said last can be relied on.
fn is_silent(node: &NodeEntry) -> bool {
    matches!(node.rec.health, Health::Offline | Health::Degraded(Code::HeartbeatsLate))
}

fn remaining(
    coordinator: &Coordinator,
    drain: &Drain,
    part: &DrainNode,
    status: &DrainStatus,
) -> RemainingView {
    let cluster = coordinator.cluster();
    let node = cluster.node_by_id(part.node.as_str());
    let silent = node.is_some_and(is_silent);
    let mut view = RemainingView::default();
    for unit in &status.units {
        let count = match (silent, unit.class) {
            (true, _) => &mut view.unknown,
            (false, Class::Stateless) => &mut view.instances,
            (false, Class::Stateful) => &mut view.stateful,
            (false, Class::Batch) => &mut view.batch,
            (false, Class::System) => &mut view.system,
            (false, Class::Store) => &mut view.stores,
        };
        *count += 1;
    }
    // It ended because nobody knows: what may run there is no zero before the node itself says so.
    let last = cluster.last_drain_of(part.node.as_str()).map(|last| last.epoch) == Some(drain.epoch);
    if part.ending() == Some(Ending::NodeLost) && last && silent {
        let ix = cluster.node_ix(part.node.as_str());
        let left = ix.map(|ix| cluster.instances_on(ix).filter(|instance| !instance.is_over()).count());
        view.unknown = left.unwrap_or(0) as u64;
    }
    view.units = status.units.iter().map(unit_view).collect();
    view.maintainers = u64::from(status.feeds.maintainers);
    view.dispatchers =
        status.feeds.dispatchers.iter().map(|(feed, count)| (feed.to_string(), u64::from(*count))).collect();
    // Nobody can say that there is nothing.
    let silent_about_feeds = status.feeds.unknown && part.ending().is_none();
    view.unknown += u64::from(silent_about_feeds && cluster.feeds().next().is_some());
    view
}

fn unit_view(unit: &UnitStatus) -> UnitView {
    UnitView {
        unit: unit.unit.clone(),
        class: unit.class.as_str().to_owned(),
        code: unit.code.as_str().to_owned(),
        message: unit.message.clone(),
    }
}

fn blocker(coordinator: &Coordinator, unit: &UnitStatus) -> BlockerView {
    BlockerView {
        code: unit.code.as_str().to_owned(),
        unit: unit.unit.clone(),
        since: unit.since.map(rfc3339),
        message: unit.message.clone(),
        hint: unit.code.hint().to_owned(),
        details: volume_details(coordinator.cluster(), unit.code, &unit.unit),
    }
}

fn wait_view(reason: &Reason) -> WaitView {
    WaitView {
        code: reason.code.as_str().to_owned(),
        unit: reason.unit.clone(),
        since: reason.since.map(rfc3339),
        message: reason.message.clone(),
    }
}

fn wait(unit: &UnitStatus) -> WaitView {
    WaitView {
        code: unit.code.as_str().to_owned(),
        unit: unit.unit.clone(),
        since: unit.since.map(rfc3339),
        message: unit.message.clone(),
    }
}

/// Which volume keeps an instance where it is.
fn volume_details(cluster: &Cluster, code: Code, unit: &str) -> Map<String, Value> {
    let find = || {
        let id = unit.strip_prefix("instance/")?.parse().ok()?;
        let instance = cluster.instance(id)?;
        let rec = &cluster.service(instance.service)?.rec;
        let volume = rec.spec_of(instance.release).volume.as_ref()?;
        let id = format!("{}-{}-{}", rec.name, volume.name, instance.slot?);
        cluster.volume(&id).map(|volume| volume.id.to_string())
    };
    let volume = if code == Code::VolumeLocal { find() } else { None };
    volume.map(|volume| ("volume".to_owned(), Value::from(volume))).into_iter().collect()
}

impl From<&DrainOptions> for DrainOptionsView {
    fn from(options: &DrainOptions) -> DrainOptionsView {
        DrainOptionsView {
            deadline: options.deadline.map_or_else(|| "none".to_owned(), model::units::format_duration),
            ignore_system: options.ignore_system,
            ack_stateful: options.ack_stateful,
            include_stateful: options.include_stateful,
            then: match options.then {
                Then::Stay => "stay",
                Then::Stop => "stop",
                Then::AwaitStop => "await_stop",
            }
            .to_owned(),
            back: match options.back {
                Return::Enable => "enable",
                Return::Restart => "restart",
            }
            .to_owned(),
        }
    }
}
