//! What nodes say to each other about feeds.

use model::{Code, MaintainerEpoch, ProcessEpoch, SpanEpoch};
use protocol::message::feed::{Held, HeldState, Peer, PeerBody, SpanOrder, SpanWhat};

use super::{
    Checked, clipped, count,
    feed::{span, spec_json, spec_of, trouble},
    feed_name, node, required, text,
};
use crate::{
    error::{Fault, WireError},
    limits::{MARK_BYTES_MAX, SPANS_MAX},
    pb,
};

impl From<&Peer> for pb::PeerMessage {
    fn from(peer: &Peer) -> pb::PeerMessage {
        let body = match &peer.body {
            PeerBody::Ask { spec, mark, heard } => pb::peer_message::Body::Ask(pb::Ask {
                spec: spec_json(&peer.feed, spec),
                mark: mark.clone(),
                heard: *heard,
            }),
            PeerBody::Orders { roster, orders } => pb::peer_message::Body::Orders(pb::SpanOrders {
                roster: Some((*roster).into()),
                orders: orders.iter().map(pb::SpanOrder::from).collect(),
            }),
            PeerBody::Inventory { number, load, held } => {
                pb::peer_message::Body::Inventory(held_out(*number, *load, held))
            }
            PeerBody::Same { number, load } => {
                pb::peer_message::Body::Same(pb::Same { number: *number, load: *load })
            }
            PeerBody::News { number, load, held } => {
                pb::peer_message::Body::News(held_out(*number, *load, held))
            }
            PeerBody::Progress { spans } => {
                let spans = spans.iter().map(|(span, epoch, checkpoint)| pb::SpanProgress {
                    span: span.as_str().to_owned(),
                    epoch: epoch.0,
                    checkpoint: Some((*checkpoint).into()),
                });
                pb::peer_message::Body::Progress(pb::Progress { spans: spans.collect() })
            }
        };
        pb::PeerMessage {
            from: peer.from.as_str().to_owned(),
            from_epoch: peer.from_epoch.0,
            to_epoch: peer.to_epoch.0,
            feed: peer.feed.as_str().to_owned(),
            maintainer: peer.maintainer.0,
            body: Some(body),
        }
    }
}

impl TryFrom<pb::PeerMessage> for Peer {
    type Error = WireError;

    fn try_from(peer: pb::PeerMessage) -> Checked<Peer> {
        let feed = feed_name("peer_message.feed", &peer.feed)?;
        let body = match required("peer_message.body", peer.body)? {
            pb::peer_message::Body::Ask(ask) => PeerBody::Ask {
                spec: spec_of("ask.spec", &ask.spec, &feed)?,
                mark: ask.mark.map(|mark| text("ask.mark", mark, MARK_BYTES_MAX)).transpose()?,
                heard: ask.heard,
            },
            pb::peer_message::Body::Orders(said) => {
                count("span_orders.orders", &said.orders, SPANS_MAX)?;
                PeerBody::Orders {
                    roster: required("span_orders.roster", said.roster)?.into(),
                    orders: said.orders.into_iter().map(SpanOrder::try_from).collect::<Result<_, _>>()?,
                }
            }
            pb::peer_message::Body::Inventory(said) => {
                PeerBody::Inventory { number: said.number, load: said.load, held: held_in(said.held)? }
            }
            pb::peer_message::Body::Same(pb::Same { number, load }) => PeerBody::Same { number, load },
            pb::peer_message::Body::News(said) => {
                PeerBody::News { number: said.number, load: said.load, held: held_in(said.held)? }
            }
            pb::peer_message::Body::Progress(progress) => {
                count("progress.spans", &progress.spans, SPANS_MAX)?;
                let spans = progress.spans.into_iter().map(|said| {
                    let checkpoint = required("span_progress.checkpoint", said.checkpoint)?.into();
                    Ok((span("span_progress.span", &said.span)?, SpanEpoch(said.epoch), checkpoint))
                });
                PeerBody::Progress { spans: spans.collect::<Result<_, _>>()? }
            }
        };
        Ok(Peer {
            from: node("peer_message.from", &peer.from)?,
            from_epoch: ProcessEpoch(peer.from_epoch),
            to_epoch: ProcessEpoch(peer.to_epoch),
            feed,
            maintainer: MaintainerEpoch(peer.maintainer),
            body,
        })
    }
}

impl From<&SpanOrder> for pb::SpanOrder {
    fn from(order: &SpanOrder) -> pb::SpanOrder {
        let what = match &order.what {
            SpanWhat::Prepare => pb::span_order::What::Prepare(pb::Prepare {}),
            SpanWhat::Start { epoch, from } => {
                pb::span_order::What::Start(pb::Start { epoch: epoch.0, from: from.map(Into::into) })
            }
            SpanWhat::Stop { epoch } => pb::span_order::What::Stop(pb::StopSpan { epoch: epoch.0 }),
            SpanWhat::Release => pb::span_order::What::Release(pb::Release {}),
        };
        pb::SpanOrder { span: order.span.as_str().to_owned(), what: Some(what) }
    }
}

impl TryFrom<pb::SpanOrder> for SpanOrder {
    type Error = WireError;

    fn try_from(order: pb::SpanOrder) -> Checked<SpanOrder> {
        let what = match required("span_order.what", order.what)? {
            pb::span_order::What::Prepare(pb::Prepare {}) => SpanWhat::Prepare,
            pb::span_order::What::Start(start) => {
                SpanWhat::Start { epoch: SpanEpoch(start.epoch), from: start.from.map(Into::into) }
            }
            pb::span_order::What::Stop(stop) => SpanWhat::Stop { epoch: SpanEpoch(stop.epoch) },
            pb::span_order::What::Release(pb::Release {}) => SpanWhat::Release,
        };
        Ok(SpanOrder { span: span("span_order.span", &order.span)?, what })
    }
}

fn held_out(number: u64, load: u32, held: &[Held]) -> pb::HeldSpans {
    pb::HeldSpans { number, load, held: held.iter().map(pb::Held::from).collect() }
}

fn held_in(held: Vec<pb::Held>) -> Checked<Vec<Held>> {
    count("held_spans.held", &held, SPANS_MAX)?;
    held.into_iter().map(Held::try_from).collect()
}

impl From<&Held> for pb::Held {
    fn from(held: &Held) -> pb::Held {
        let trouble = |(code, message): &(Code, String)| pb::HeldTrouble {
            code: code.as_str().to_owned(),
            message: clipped(message),
        };
        pb::Held {
            span: held.span.as_str().to_owned(),
            epoch: held.epoch.0,
            state: pb::HeldState::from(held.state).into(),
            checkpoint: held.checkpoint.map(Into::into),
            trouble: held.trouble.as_ref().map(trouble),
        }
    }
}

impl TryFrom<pb::Held> for Held {
    type Error = WireError;

    fn try_from(held: pb::Held) -> Checked<Held> {
        let said = held.trouble.map(|said| trouble("held_trouble.message", &said.code, said.message));
        Ok(Held {
            span: span("held.span", &held.span)?,
            epoch: SpanEpoch(held.epoch),
            state: state(held.state)?,
            checkpoint: held.checkpoint.map(Into::into),
            trouble: said.transpose()?,
        })
    }
}

impl From<HeldState> for pb::HeldState {
    fn from(state: HeldState) -> pb::HeldState {
        match state {
            HeldState::Preparing => pb::HeldState::Preparing,
            HeldState::Prepared => pb::HeldState::Prepared,
            HeldState::Running => pb::HeldState::Running,
            HeldState::Stopping => pb::HeldState::Stopping,
            HeldState::Stopped => pb::HeldState::Stopped,
            HeldState::Absent => pb::HeldState::Absent,
        }
    }
}

fn state(number: i32) -> Checked<HeldState> {
    match pb::HeldState::try_from(number) {
        Ok(pb::HeldState::Preparing) => Ok(HeldState::Preparing),
        Ok(pb::HeldState::Prepared) => Ok(HeldState::Prepared),
        Ok(pb::HeldState::Running) => Ok(HeldState::Running),
        Ok(pb::HeldState::Stopping) => Ok(HeldState::Stopping),
        Ok(pb::HeldState::Stopped) => Ok(HeldState::Stopped),
        Ok(pb::HeldState::Absent) => Ok(HeldState::Absent),
        Ok(pb::HeldState::Unspecified) | Err(_) => Err(Fault::UnknownValue(number).at("held.state")),
    }
}
