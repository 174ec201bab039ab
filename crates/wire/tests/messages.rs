//! What goes in comes out; what is wrong is refused by name; nothing panics.
#![allow(clippy::unwrap_used)]

mod arbitrary;
mod hostile;

use std::sync::Arc;

use model::{Code, InstanceId};
use proptest::prelude::*;
use prost::Message;
use protocol::message::feed::Peer;
use protocol::message::{Down, DownBody, Heartbeat, Order, Up, UpBody, What};
use wire::{WireError, limits, pb};

fn sent_up(up: &Up) -> Result<Up, WireError> {
    Up::try_from(pb::Up::decode(pb::Up::from(up).encode_to_vec().as_slice()).unwrap())
}

fn sent_down(down: &Down) -> Result<Down, WireError> {
    Down::try_from(pb::Down::decode(pb::Down::from(down).encode_to_vec().as_slice()).unwrap())
}

proptest! {
    #[test]
    fn what_a_daemon_says_arrives_as_it_was_said(up in arbitrary::up()) {
        prop_assert_eq!(sent_up(&up).unwrap(), up);
    }

    #[test]
    fn what_the_coordinator_says_arrives_as_it_was_said(down in arbitrary::down()) {
        prop_assert_eq!(sent_down(&down).unwrap(), down);
    }

    #[test]
    fn what_a_node_says_to_another_arrives_as_it_was_said(peer in arbitrary::feeds::peer()) {
        let bytes = pb::PeerMessage::from(&peer).encode_to_vec();
        let taken = Peer::try_from(pb::PeerMessage::decode(bytes.as_slice()).unwrap());
        prop_assert_eq!(taken.unwrap(), peer);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        take(&bytes);
    }

    /// Random bytes rarely get past the first tag; damaged messages get further.
    #[test]
    fn damaged_messages_do_no_harm(
        up in arbitrary::up(),
        down in arbitrary::down(),
        peer in arbitrary::feeds::peer(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let peer = pb::PeerMessage::from(&peer).encode_to_vec();
        for mut bytes in [pb::Up::from(&up).encode_to_vec(), pb::Down::from(&down).encode_to_vec(), peer] {
            // An empty message has nothing to damage.
            let length = bytes.len().max(1);
            bytes.resize(length, 0);
            for (place, byte) in &damage {
                bytes[place.index(length)] = *byte;
            }
            take(&bytes);
        }
    }
}

fn take(bytes: &[u8]) {
    if let Ok(up) = pb::Up::decode(bytes) {
        drop(Up::try_from(up));
    }
    if let Ok(down) = pb::Down::decode(bytes) {
        drop(Down::try_from(down));
    }
    if let Ok(peer) = pb::PeerMessage::decode(bytes) {
        drop(Peer::try_from(peer));
    }
}

fn status(change: impl FnOnce(&mut pb::Status)) -> pb::Up {
    let mut status = pb::Status { instance: 7, actual: pb::Actual::Ready.into(), ..Default::default() };
    change(&mut status);
    heartbeat(|heartbeat| heartbeat.statuses.push(status))
}

fn heartbeat(change: impl FnOnce(&mut pb::Heartbeat)) -> pb::Up {
    let mut heartbeat = pb::Heartbeat { edge: Some(pb::EdgeReport::default()), ..Default::default() };
    change(&mut heartbeat);
    pb::Up { seq: 1, body: Some(pb::up::Body::Heartbeat(heartbeat)) }
}

fn down(body: pb::down::Body) -> pb::Down {
    pb::Down { seq: 1, cluster: 1, term: 1, body: Some(body) }
}

fn orders(specs: Vec<&[u8]>, order: pb::order::What) -> pb::Down {
    let orders = vec![pb::Order { instance: 1, revision: 1, what: Some(order) }];
    down(pb::down::Body::Orders(pb::Orders {
        specs: specs.into_iter().map(<[u8]>::to_vec).collect(),
        orders,
    }))
}

#[track_caller]
fn refused<M: TryInto<T, Error = WireError>, T: std::fmt::Debug>(message: M, field: &str) {
    assert_eq!(message.try_into().unwrap_err().field, field);
}

#[test]
fn what_a_daemon_says_wrongly_is_refused_by_name() {
    let refused = |up: pb::Up, field| refused::<_, Up>(up, field);
    refused(pb::Up { seq: 1, body: None }, "up.body");
    refused(status(|status| status.actual = 0), "status.actual");
    refused(status(|status| status.actual = 99), "status.actual");
    refused(status(|status| status.ports = vec![70_000]), "status.ports");
    refused(status(|status| status.ports = vec![1; limits::PORTS_MAX + 1]), "status.ports");
    refused(status(|status| status.exit = Some(pb::Exit { how: None })), "exit.how");
    let long = "x".repeat(limits::TEXT_BYTES_MAX + 1);
    refused(status(|status| status.message = Some(long.clone())), "status.message");
    refused(heartbeat(|heartbeat| heartbeat.edge = None), "heartbeat.edge");
    refused(
        heartbeat(|heartbeat| heartbeat.forgotten = vec![1; limits::UNITS_MAX + 1]),
        "heartbeat.forgotten",
    );
    let hello = |change: &dyn Fn(&mut pb::Hello)| {
        let mut hello = pb::Hello {
            node: "node-1".to_owned(),
            roles: Some(pb::Roles::default()),
            capacity: Some(pb::Resources::default()),
            memory_caps: Some(pb::MemoryCaps { kind: 1, why: String::new() }),
            edge: Some(pb::EdgeReport::default()),
            ..Default::default()
        };
        change(&mut hello);
        pb::Up { seq: 1, body: Some(pb::up::Body::Hello(hello)) }
    };
    assert!(Up::try_from(hello(&|_| ())).is_ok());
    for id in ["", "../up", "a b", "a\n"] {
        refused(hello(&|hello| hello.node = id.to_owned()), "hello.node");
    }
    refused(hello(&|hello| hello.memory_caps = Some(pb::MemoryCaps::default())), "memory_caps.kind");
    refused(hello(&|hello| hello.labels = [("rack".to_owned(), long.clone())].into()), "hello.labels");
    let foreign = pb::Inventory { service: "../../etc".to_owned(), status: None };
    refused(hello(&|hello| hello.inventory = vec![foreign.clone()]), "inventory.service");
}

#[test]
fn what_the_coordinator_says_wrongly_is_refused_by_name() {
    let refused = |down: pb::Down, field| refused::<_, Down>(down, field);
    refused(pb::Down::default(), "down.body");
    refused(down(pb::down::Body::Refused(pb::Refused::default())), "refused.why");
    let timing = Some(pb::Timing { heartbeat_ms: u64::MAX, ..Default::default() });
    refused(down(pb::down::Body::Welcome(pb::Welcome { timing, ..Default::default() })), "welcome.timing");
    let run = |spec| pb::order::What::Run(pb::Run { spec, ..Default::default() });
    refused(orders(vec![], run(0)), "run.spec");
    refused(orders(vec![b"{}"], run(0)), "orders.specs");
    refused(orders(vec![b"\xff"], run(0)), "orders.specs");
    refused(orders(vec![br#"{"name":"web","command":[],"memory":"64MiB"}"#], run(0)), "orders.specs");
    let volume = Some(pb::VolumeOrder { id: "../data".to_owned(), expected: true, mounted: String::new() });
    let run = pb::order::What::Run(pb::Run { volume, ..Default::default() });
    let spec = br#"{"name":"web","command":["serve"],"memory":"64MiB"}"#;
    refused(orders(vec![spec], run), "volume_order.id");
    let nothing = pb::Orders { specs: vec![], orders: vec![pb::Order::default()] };
    refused(down(pb::down::Body::Orders(nothing)), "order.what");
    refused(down(pb::down::Body::Sets(pb::Sets::default())), "sets.revision");
}

#[test]
fn what_a_node_says_wrongly_to_another_is_refused_by_name() {
    let refused = |body: Option<pb::peer_message::Body>, field| {
        let (from, feed) = ("node-1".to_owned(), "orders".to_owned());
        refused::<_, Peer>(pb::PeerMessage { from, feed, body, ..Default::default() }, field);
    };
    refused(None, "peer_message.body");
    let ask =
        |spec: &[u8]| pb::peer_message::Body::Ask(pb::Ask { spec: spec.to_vec(), ..Default::default() });
    refused(Some(ask(b"{}")), "ask.spec");
    refused(Some(ask(br#"{"name":"another","kind":"idle","spans":3}"#)), "ask.spec");
    let held = |held: pb::Held| {
        pb::peer_message::Body::News(pb::HeldSpans { held: vec![held], ..Default::default() })
    };
    refused(Some(held(pb::Held::default())), "held.state");
    let span = "x".repeat(limits::SPAN_BYTES_MAX + 1);
    refused(Some(held(pb::Held { span, ..Default::default() })), "held.span");
    let orders = pb::SpanOrders { roster: None, orders: vec![] };
    refused(Some(pb::peer_message::Body::Orders(orders)), "span_orders.roster");
    let spans = vec![pb::SpanProgress::default()];
    refused(Some(pb::peer_message::Body::Progress(pb::Progress { spans })), "span_progress.checkpoint");
}

#[test]
fn a_code_of_a_newer_node_is_kept_for_the_operator_and_never_read_as_healthy() {
    let up = status(|status| {
        status.reason = Some("moon_too_bright".to_owned());
        status.message = Some("at noon".to_owned());
    });
    let UpBody::Heartbeat(taken) = Up::try_from(up).unwrap().body else { panic!("no heartbeat") };
    assert_eq!(taken.statuses[0].reason, None);
    assert_eq!(taken.statuses[0].message.as_deref(), Some("moon_too_bright: at noon"));

    let up = heartbeat(|heartbeat| heartbeat.degraded = Some("moon_too_bright".to_owned()));
    let UpBody::Heartbeat(taken) = Up::try_from(up).unwrap().body else { panic!("no heartbeat") };
    assert_eq!(taken.degraded, Some(Code::MemoryPressure));
}

#[test]
fn words_that_are_too_long_are_cut_by_the_sender_and_taken_by_the_receiver() {
    let mut up = Up { seq: 1, body: UpBody::Heartbeat(Heartbeat::default()) };
    let UpBody::Heartbeat(heartbeat) = &mut up.body else { panic!("no heartbeat") };
    heartbeat.edge.failed = vec![(80, "é".repeat(5_000)); limits::LISTEN_FAILURES_MAX + 5];
    let UpBody::Heartbeat(taken) = sent_up(&up).unwrap().body else { panic!("no heartbeat") };
    assert_eq!(taken.edge.failed.len(), limits::LISTEN_FAILURES_MAX);
    assert_eq!(taken.edge.failed[0].1.len(), limits::TEXT_BYTES_MAX);
}

#[test]
fn a_specification_shared_by_many_orders_is_sent_once_and_shared_by_the_receiver() {
    let run = arbitrary::example(arbitrary::run());
    let runs = (0..100).map(|slot| {
        let run = protocol::message::Run { slot: Some(slot), ..run.clone() };
        Order { instance: InstanceId(u64::from(slot)), revision: 1, what: What::Run(Arc::new(run)) }
    });
    let body = DownBody::Orders(runs.collect());
    let message = Down { seq: 1, cluster: model::ClusterId(1), term: model::Term(1), body };
    let Some(pb::down::Body::Orders(orders)) = pb::Down::from(&message).body else { panic!("no orders") };
    assert_eq!((orders.specs.len(), orders.orders.len()), (1, 100));

    let DownBody::Orders(taken) = sent_down(&message).unwrap().body else { panic!("no orders") };
    let (What::Run(first), What::Run(last)) = (&taken[0].what, &taken[99].what) else { panic!("no run") };
    assert!(Arc::ptr_eq(&first.spec, &last.spec));
}
