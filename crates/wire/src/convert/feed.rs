//! Feeds, between the coordinator and nodes: the roster, orders for maintainers, their reports.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Checkpoint, Code, FeedName, FeedSpec, FeedState, MaintainerEpoch, NodeId, ProcessEpoch, SpanName,
    SpanSet, Time, spec::FeedFile,
};
use protocol::message::feed::{
    AskedMove, FeedOrder, FeedReport, FeedTrouble, FeedWhat, Maintain, Phase, Roster, RosterNode, Stuck,
};

use super::{Checked, address, clipped, code_of, count, feed_name, labels, node, required, text};
use crate::{
    error::{Fault, WireError},
    limits::{FEEDS_MAX, SPAN_BYTES_MAX, SPANS_MAX, SPEC_JSON_BYTES_MAX, TEXT_BYTES_MAX, TROUBLES_MAX},
    pb,
};

/// What an unknown code of a trouble becomes: the operator has to look, and reads the code itself in the
/// message.
const TROUBLE_FALLBACK: Code = Code::SourceUnfit;

/// Nodes of one roster.
const NODES_MAX: usize = 65_536;

pub(super) fn spec_json(name: &FeedName, spec: &FeedSpec) -> Vec<u8> {
    // Only a map with keys that are not strings could fail; an empty one would be refused.
    serde_json::to_vec(&FeedFile::of(name, spec)).unwrap_or_default()
}

pub(super) fn spec_of(field: &'static str, json: &[u8], feed: &FeedName) -> Checked<Arc<FeedSpec>> {
    if json.len() > SPEC_JSON_BYTES_MAX {
        return Err(Fault::TooLong { bytes: json.len(), max: SPEC_JSON_BYTES_MAX }.at(field));
    }
    let file: FeedFile =
        serde_json::from_slice(json).map_err(|error| Fault::NotAFeedFile(error).at(field))?;
    let (name, spec) = file.check().map_err(|error| Fault::Spec(error).at(field))?;
    match name == *feed {
        true => Ok(Arc::new(spec)),
        false => Err(Fault::NotAName(clipped(name.as_str())).at(field)),
    }
}

pub(super) fn span(field: &'static str, name: &str) -> Checked<SpanName> {
    match name.len() {
        bytes if bytes > SPAN_BYTES_MAX => Err(Fault::TooLong { bytes, max: SPAN_BYTES_MAX }.at(field)),
        _ => Ok(SpanName::new(name)),
    }
}

fn spans(field: &'static str, names: &[String]) -> Checked<Arc<[SpanName]>> {
    count(field, names, SPANS_MAX)?;
    names.iter().map(|name| span(field, name)).collect()
}

/// A code from a newer node becomes part of the message.
pub(super) fn trouble(field: &'static str, code: &str, message: String) -> Checked<(Code, String)> {
    let message = text(field, message, TEXT_BYTES_MAX)?;
    Ok(match code_of(code) {
        Some(code) => (code, message),
        None => (TROUBLE_FALLBACK, clipped(&format!("{code}: {message}"))),
    })
}

impl From<Checkpoint> for pb::Checkpoint {
    fn from(checkpoint: Checkpoint) -> pb::Checkpoint {
        pb::Checkpoint { position: checkpoint.position, at_ms: checkpoint.at.0 }
    }
}

impl From<pb::Checkpoint> for Checkpoint {
    fn from(checkpoint: pb::Checkpoint) -> Checkpoint {
        Checkpoint { position: checkpoint.position, at: Time(checkpoint.at_ms) }
    }
}

impl From<&Roster> for pb::Roster {
    fn from(roster: &Roster) -> pb::Roster {
        let nodes = roster.nodes.iter().map(|node| pb::RosterNode {
            node: node.node.as_str().to_owned(),
            epoch: node.epoch.0,
            rpc: node.rpc.clone(),
            closed: node.closed,
            offline: node.offline,
            labels: node.labels.clone(),
        });
        pb::Roster {
            revision: Some(roster.revision.into()),
            since: Some(roster.since.into()),
            full: roster.full,
            nodes: nodes.collect(),
        }
    }
}

impl TryFrom<pb::Roster> for Roster {
    type Error = WireError;

    fn try_from(roster: pb::Roster) -> Checked<Roster> {
        count("roster.nodes", &roster.nodes, NODES_MAX)?;
        let nodes = roster.nodes.into_iter().map(|entry| {
            labels("roster_node.labels", &entry.labels)?;
            Ok(RosterNode {
                node: node("roster_node.node", &entry.node)?,
                epoch: ProcessEpoch(entry.epoch),
                rpc: address("roster_node.rpc", entry.rpc)?,
                closed: entry.closed,
                offline: entry.offline,
                labels: entry.labels,
            })
        });
        Ok(Roster {
            revision: required("roster.revision", roster.revision)?.into(),
            since: required("roster.since", roster.since)?.into(),
            full: roster.full,
            nodes: nodes.collect::<Result<_, _>>()?,
        })
    }
}

impl From<&[FeedOrder]> for pb::FeedOrders {
    fn from(orders: &[FeedOrder]) -> pb::FeedOrders {
        let orders = orders.iter().map(|order| pb::FeedOrder {
            feed: order.feed.as_str().to_owned(),
            epoch: order.epoch.0,
            what: Some(match &order.what {
                FeedWhat::Maintain(maintain) => {
                    pb::feed_order::What::Maintain(maintain_out(&order.feed, maintain))
                }
                FeedWhat::Quiesce => pb::feed_order::What::Quiesce(pb::Quiesce {}),
                FeedWhat::Forget => pb::feed_order::What::Forget(pb::Forget {}),
            }),
        });
        pb::FeedOrders { orders: orders.collect() }
    }
}

fn maintain_out(feed: &FeedName, maintain: &Maintain) -> pb::Maintain {
    let names = maintain.spans.names.iter().map(|name| name.as_str().to_owned());
    pb::Maintain {
        revision: Some(maintain.revision.into()),
        spec: spec_json(feed, &maintain.spec),
        state: pb::FeedState::from(maintain.state).into(),
        spans: Some(pb::SpanSet { generation: maintain.spans.generation, names: names.collect() }),
        checkpoint: maintain.checkpoint.map(Into::into),
        moves: maintain.moves,
        asked: maintain.asked.iter().map(asked_out).collect(),
    }
}

fn asked_out(asked: &AskedMove) -> pb::AskedMove {
    pb::AskedMove {
        number: asked.number,
        span: asked.span.as_str().to_owned(),
        to: asked.to.as_str().to_owned(),
    }
}

impl TryFrom<pb::FeedOrders> for Vec<FeedOrder> {
    type Error = WireError;

    fn try_from(orders: pb::FeedOrders) -> Checked<Vec<FeedOrder>> {
        count("feed_orders.orders", &orders.orders, FEEDS_MAX)?;
        let order = |order: pb::FeedOrder| {
            let feed = feed_name("feed_order.feed", &order.feed)?;
            let what = match required("feed_order.what", order.what)? {
                pb::feed_order::What::Maintain(maintain) => {
                    FeedWhat::Maintain(Arc::new(maintain_in(&feed, maintain)?))
                }
                pb::feed_order::What::Quiesce(pb::Quiesce {}) => FeedWhat::Quiesce,
                pb::feed_order::What::Forget(pb::Forget {}) => FeedWhat::Forget,
            };
            Ok(FeedOrder { feed, epoch: MaintainerEpoch(order.epoch), what })
        };
        orders.orders.into_iter().map(order).collect()
    }
}

fn maintain_in(feed: &FeedName, maintain: pb::Maintain) -> Checked<Maintain> {
    let set = required("maintain.spans", maintain.spans)?;
    count("maintain.asked", &maintain.asked, SPANS_MAX)?;
    let asked = maintain.asked.into_iter().map(|asked| {
        let (span, to) = (span("asked_move.span", &asked.span)?, node("asked_move.to", &asked.to)?);
        Ok(AskedMove { number: asked.number, span, to })
    });
    let asked = asked.collect::<Checked<_>>()?;
    Ok(Maintain {
        revision: required("maintain.revision", maintain.revision)?.into(),
        spec: spec_of("maintain.spec", &maintain.spec, feed)?,
        state: state(maintain.state)?,
        spans: SpanSet { generation: set.generation, names: spans("span_set.names", &set.names)? },
        checkpoint: maintain.checkpoint.map(Into::into),
        moves: maintain.moves,
        asked,
    })
}

impl From<FeedState> for pb::FeedState {
    fn from(state: FeedState) -> pb::FeedState {
        match state {
            FeedState::Running => pb::FeedState::Running,
            FeedState::Paused => pb::FeedState::Paused,
            FeedState::Removing => pb::FeedState::Removing,
        }
    }
}

fn state(number: i32) -> Checked<FeedState> {
    match pb::FeedState::try_from(number) {
        Ok(pb::FeedState::Running) => Ok(FeedState::Running),
        Ok(pb::FeedState::Paused) => Ok(FeedState::Paused),
        Ok(pb::FeedState::Removing) => Ok(FeedState::Removing),
        Ok(pb::FeedState::Unspecified) | Err(_) => Err(Fault::UnknownValue(number).at("maintain.state")),
    }
}

impl From<Phase> for pb::FeedPhase {
    fn from(phase: Phase) -> pb::FeedPhase {
        match phase {
            Phase::Asking => pb::FeedPhase::Asking,
            Phase::Working => pb::FeedPhase::Working,
            Phase::Quiesced => pb::FeedPhase::Quiesced,
            Phase::Cleaned => pb::FeedPhase::Cleaned,
        }
    }
}

fn phase(number: i32) -> Checked<Phase> {
    match pb::FeedPhase::try_from(number) {
        Ok(pb::FeedPhase::Asking) => Ok(Phase::Asking),
        Ok(pb::FeedPhase::Working) => Ok(Phase::Working),
        Ok(pb::FeedPhase::Quiesced) => Ok(Phase::Quiesced),
        Ok(pb::FeedPhase::Cleaned) => Ok(Phase::Cleaned),
        Ok(pb::FeedPhase::Unspecified) | Err(_) => Err(Fault::UnknownValue(number).at("feed_report.phase")),
    }
}

impl From<&FeedReport> for pb::FeedReport {
    fn from(report: &FeedReport) -> pb::FeedReport {
        let names = |names: &Arc<[SpanName]>| pb::Spans {
            names: names.iter().map(|name| name.as_str().to_owned()).collect(),
        };
        let dispatchers = report.dispatchers.iter();
        pb::FeedReport {
            feed: report.feed.as_str().to_owned(),
            epoch: report.epoch.0,
            number: report.number,
            revision: Some(report.revision.into()),
            phase: pb::FeedPhase::from(report.phase).into(),
            spans: report.spans.as_ref().map(names),
            checkpoint: report.checkpoint.map(Into::into),
            dispatchers: dispatchers.map(|(node, count)| (node.as_str().to_owned(), *count)).collect(),
            moving: report.moving,
            moved: report.moved,
            absent: report.absent,
            held_back: report.held_back,
            asked: report.asked.clone(),
            troubles: report.troubles.iter().take(TROUBLES_MAX).map(pb::FeedTrouble::from).collect(),
            stuck: report.stuck.iter().map(stuck_out).collect(),
        }
    }
}

impl TryFrom<pb::FeedReport> for FeedReport {
    type Error = WireError;

    fn try_from(report: pb::FeedReport) -> Checked<FeedReport> {
        count("feed_report.troubles", &report.troubles, TROUBLES_MAX)?;
        count("feed_report.asked", &report.asked, SPANS_MAX)?;
        count("feed_report.stuck", &report.stuck, NODES_MAX)?;
        if report.dispatchers.len() > NODES_MAX {
            let count = report.dispatchers.len();
            return Err(Fault::TooMany { count, max: NODES_MAX }.at("feed_report.dispatchers"));
        }
        let dispatchers = report.dispatchers.iter();
        let dispatchers = dispatchers.map(|(id, count)| Ok((node("feed_report.dispatchers", id)?, *count)));
        let seen = report.spans.map(|seen| spans("spans.names", &seen.names));
        Ok(FeedReport {
            feed: feed_name("feed_report.feed", &report.feed)?,
            epoch: MaintainerEpoch(report.epoch),
            number: report.number,
            revision: required("feed_report.revision", report.revision)?.into(),
            phase: phase(report.phase)?,
            spans: seen.transpose()?,
            checkpoint: report.checkpoint.map(Into::into),
            dispatchers: dispatchers.collect::<Checked<BTreeMap<_, _>>>()?,
            moving: report.moving,
            moved: report.moved,
            absent: report.absent,
            held_back: report.held_back,
            asked: report.asked,
            troubles: report.troubles.into_iter().map(FeedTrouble::try_from).collect::<Result<_, _>>()?,
            stuck: report.stuck.into_iter().map(stuck_in).collect::<Result<_, _>>()?,
        })
    }
}

fn stuck_out((node, stuck): (&NodeId, &Stuck)) -> pb::FeedStuck {
    pb::FeedStuck {
        node: node.as_str().to_owned(),
        count: stuck.count,
        code: stuck.code.as_str().to_owned(),
        message: clipped(&stuck.message),
    }
}

fn stuck_in(said: pb::FeedStuck) -> Checked<(NodeId, Stuck)> {
    let (code, message) = trouble("feed_stuck.message", &said.code, said.message)?;
    Ok((node("feed_stuck.node", &said.node)?, Stuck { count: said.count, code, message }))
}

impl From<&FeedTrouble> for pb::FeedTrouble {
    fn from(trouble: &FeedTrouble) -> pb::FeedTrouble {
        pb::FeedTrouble {
            code: trouble.code.as_str().to_owned(),
            node: trouble.node.as_str().to_owned(),
            span: trouble.span.as_ref().map(|span| span.as_str().to_owned()),
            message: clipped(&trouble.message),
        }
    }
}

impl TryFrom<pb::FeedTrouble> for FeedTrouble {
    type Error = WireError;

    fn try_from(said: pb::FeedTrouble) -> Checked<FeedTrouble> {
        let (code, message) = trouble("feed_trouble.message", &said.code, said.message)?;
        Ok(FeedTrouble {
            code,
            node: node("feed_trouble.node", &said.node)?,
            span: said.span.map(|name| span("feed_trouble.span", &name)).transpose()?,
            message,
        })
    }
}
