//! Of feeds.

use std::sync::Arc;

use model::{
    Checkpoint, FeedName, FeedSpec, FeedState, MaintainerEpoch, NodeId, PipelineSpec, ProcessEpoch,
    SpanEpoch, SpanName, SpanSet, Time,
    spec::{Sink, Source},
};
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
};
use protocol::message::feed::{
    AskedMove, FeedOrder, FeedReport, FeedTrouble, FeedWhat, Held, HeldState, Maintain, Peer, PeerBody,
    Phase, Roster, RosterNode, SpanOrder, SpanWhat, Stuck,
};

use super::{address, argv, code, name, plain, revision, words};

pub fn feed() -> impl Strategy<Value = FeedName> {
    name().prop_map(|name| FeedName::new(&name))
}

fn node() -> impl Strategy<Value = NodeId> {
    "[A-Za-z0-9._-]{1,40}".prop_map(|id| NodeId::new(&id))
}

fn span() -> impl Strategy<Value = SpanName> {
    "\\PC{0,20}".prop_map(|name| SpanName::new(&name))
}

fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    any::<[u64; 2]>().prop_map(|[position, at]| Checkpoint { position, at: Time(at) })
}

fn spec() -> impl Strategy<Value = Arc<FeedSpec>> {
    let path = || "/[a-z/]{1,20}";
    let url = || "postgres://[a-z]{1,8}:[a-z]{1,8}@[a-z.]{1,20}/[a-z]{1,8}";
    let source = prop_oneof![
        (url(), "[a-z]{1,20}").prop_map(|(url, publication)| Source::Postgres { url, publication }),
        path().prop_map(|path| Source::Log { path }),
    ];
    let sink = prop_oneof![
        url().prop_map(|url| Sink::Postgres { url }),
        path().prop_map(|path| Sink::File { path })
    ];
    let pipeline = prop_oneof![
        (source, sink).prop_map(|(source, sink)| PipelineSpec::Copy { source, sink }),
        (argv(), btree_map("[A-Z_]{1,10}", plain(), 0..3))
            .prop_map(|(command, env)| PipelineSpec::Command { command, env }),
        (1..1000u32).prop_map(|spans| PipelineSpec::Idle { spans }),
    ];
    (pipeline, btree_map(name(), words(), 0..3))
        .prop_map(|(pipeline, constraints)| Arc::new(FeedSpec { pipeline, constraints }))
}

pub fn roster() -> impl Strategy<Value = Roster> {
    let node = (node(), any::<u64>(), address(), any::<[bool; 2]>(), btree_map(words(), words(), 0..3))
        .prop_map(|(node, epoch, rpc, [closed, offline], labels)| RosterNode {
            node,
            epoch: ProcessEpoch(epoch),
            rpc,
            closed,
            offline,
            labels,
        });
    (revision(), revision(), any::<bool>(), vec(node, 0..4))
        .prop_map(|(revision, since, full, nodes)| Roster { revision, since, full, nodes })
}

pub fn order() -> impl Strategy<Value = FeedOrder> {
    let state = select(vec![FeedState::Running, FeedState::Paused, FeedState::Removing]);
    let spans = (any::<u64>(), vec(span(), 0..4))
        .prop_map(|(generation, names)| SpanSet { generation, names: names.into() });
    let asked = (any::<u64>(), span(), node()).prop_map(|(number, span, to)| AskedMove { number, span, to });
    let moves = (any::<u32>(), vec(asked, 0..3));
    let maintain = (revision(), spec(), state, spans, option::of(checkpoint()), moves).prop_map(
        |(revision, spec, state, spans, checkpoint, (moves, asked))| {
            FeedWhat::Maintain(Arc::new(Maintain { revision, spec, state, spans, checkpoint, moves, asked }))
        },
    );
    let what = prop_oneof![3 => maintain, 1 => Just(FeedWhat::Quiesce), 1 => Just(FeedWhat::Forget)];
    (feed(), any::<u64>(), what).prop_map(|(feed, epoch, what)| FeedOrder {
        feed,
        epoch: MaintainerEpoch(epoch),
        what,
    })
}

pub fn report() -> impl Strategy<Value = FeedReport> {
    let phase = select(vec![Phase::Asking, Phase::Working, Phase::Quiesced, Phase::Cleaned]);
    let trouble = (code(), node(), option::of(span()), words())
        .prop_map(|(code, node, span, message)| FeedTrouble { code, node, span, message });
    let stuck = (any::<u32>(), code(), words());
    let stuck = stuck.prop_map(|(count, code, message)| Stuck { count, code, message });
    let head = (feed(), any::<[u64; 3]>(), revision(), phase);
    let counts = (btree_map(node(), any::<u32>(), 0..3), any::<[u32; 2]>(), option::of(any::<u64>()));
    let rest = (
        option::of(vec(span(), 0..4)),
        option::of(checkpoint()),
        vec(trouble, 0..3),
        vec(any::<u64>(), 0..3),
        btree_map(node(), stuck, 0..3),
    );
    (head, counts, rest).prop_map(
        |(
            (feed, [epoch, number, moved], revision, phase),
            (dispatchers, [moving, absent], held_back),
            rest,
        )| {
            let (spans, checkpoint, troubles, asked, stuck) = rest;
            FeedReport {
                feed,
                epoch: MaintainerEpoch(epoch),
                number,
                revision,
                phase,
                spans: spans.map(Into::into),
                checkpoint,
                dispatchers,
                moving,
                moved,
                absent,
                held_back,
                asked,
                troubles,
                stuck,
            }
        },
    )
}

fn held() -> impl Strategy<Value = Held> {
    let state = select(vec![
        HeldState::Preparing,
        HeldState::Prepared,
        HeldState::Running,
        HeldState::Stopping,
        HeldState::Stopped,
        HeldState::Absent,
    ]);
    (span(), any::<u64>(), state, option::of(checkpoint()), option::of((code(), words()))).prop_map(
        |(span, epoch, state, checkpoint, trouble)| Held {
            span,
            epoch: SpanEpoch(epoch),
            state,
            checkpoint,
            trouble,
        },
    )
}

fn span_order() -> impl Strategy<Value = SpanOrder> {
    let what = prop_oneof![
        Just(SpanWhat::Prepare),
        (any::<u64>(), option::of(checkpoint()))
            .prop_map(|(epoch, from)| SpanWhat::Start { epoch: SpanEpoch(epoch), from }),
        any::<u64>().prop_map(|epoch| SpanWhat::Stop { epoch: SpanEpoch(epoch) }),
        Just(SpanWhat::Release),
    ];
    (span(), what).prop_map(|(span, what)| SpanOrder { span, what })
}

pub fn peer() -> impl Strategy<Value = Peer> {
    let body = prop_oneof![
        (spec(), option::of(words()), option::of(any::<u64>()))
            .prop_map(|(spec, mark, heard)| PeerBody::Ask { spec, mark, heard }),
        (revision(), vec(span_order(), 0..4))
            .prop_map(|(roster, orders)| PeerBody::Orders { roster, orders }),
        (any::<u64>(), any::<u32>(), vec(held(), 0..4))
            .prop_map(|(number, load, held)| PeerBody::Inventory { number, load, held }),
        (any::<u64>(), any::<u32>()).prop_map(|(number, load)| PeerBody::Same { number, load }),
        (any::<u64>(), any::<u32>(), vec(held(), 0..4)).prop_map(|(number, load, held)| PeerBody::News {
            number,
            load,
            held
        }),
        vec((span(), any::<u64>().prop_map(SpanEpoch), checkpoint()), 0..4)
            .prop_map(|spans| PeerBody::Progress { spans }),
    ];
    (node(), any::<[u64; 3]>(), feed(), body).prop_map(|(from, [mine, yours, maintainer], feed, body)| Peer {
        from,
        from_epoch: ProcessEpoch(mine),
        to_epoch: ProcessEpoch(yours),
        feed,
        maintainer: MaintainerEpoch(maintainer),
        body,
    })
}
