//! A maintainer by itself: what it asks for, and when.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Checkpoint, FeedName, FeedSpec, FeedState, MaintainerEpoch, NodeId, PipelineSpec, ProcessEpoch,
    SpanEpoch, SpanName, SpanSet, Term, Time,
};
use protocol::{
    dispatchers::{Dispatchers, TaskNews, TaskWhat},
    maintainer::{Limits, Looked, Maintainer, Output},
    message::{
        SetRevision,
        feed::{Held, HeldState, Maintain, Peer, PeerBody, Phase, Roster, RosterNode, SpanOrder, SpanWhat},
    },
    roster::RosterView,
};

const NODE: &str = "n1";

fn revision(number: u64) -> SetRevision {
    SetRevision { term: Term(1), number }
}

fn roster() -> RosterView {
    let node = RosterNode {
        node: NodeId::new(NODE),
        epoch: ProcessEpoch(1),
        rpc: "127.0.0.1:1".to_owned(),
        closed: false,
        offline: false,
        labels: BTreeMap::new(),
    };
    let mut view = RosterView::default();
    let all = Roster { revision: revision(1), since: revision(0), full: true, nodes: vec![node] };
    assert!(view.take(&all));
    view
}

fn maintain(state: FeedState, spans: &[&str]) -> Arc<Maintain> {
    let names: Vec<SpanName> = spans.iter().map(|name| SpanName::new(name)).collect();
    Arc::new(Maintain {
        revision: revision(1),
        spec: Arc::new(FeedSpec { pipeline: PipelineSpec::Idle { spans: 3 }, constraints: BTreeMap::new() }),
        state,
        spans: SpanSet { generation: u64::from(!spans.is_empty()), names: names.into() },
        checkpoint: None,
        moves: 10,
        asked: Vec::new(),
    })
}

fn said_by_node(body: PeerBody) -> Peer {
    Peer {
        from: NodeId::new(NODE),
        from_epoch: ProcessEpoch(1),
        to_epoch: ProcessEpoch(1),
        feed: FeedName::new("orders"),
        maintainer: MaintainerEpoch(1),
        body,
    }
}

/// One whose only node has answered that it runs nothing, and everything that it said since.
fn begun(order: Arc<Maintain>) -> (Maintainer, RosterView, Vec<Output>) {
    let roster = roster();
    let id = (FeedName::new("orders"), MaintainerEpoch(1), NodeId::new(NODE));
    let mut maintainer = Maintainer::new(id, order, Limits { per_node: 10 }, &roster, Time(0));
    let mut said = maintainer.advance(&roster, Time(0));
    let nothing = PeerBody::Inventory { number: 0, load: 0, held: Vec::new() };
    maintainer.heard(&said_by_node(nothing), false, Time(10));
    said.extend(maintainer.advance(&roster, Time(10)));
    (maintainer, roster, said)
}

fn sweeps(said: &[Output]) -> Vec<Vec<&str>> {
    said.iter()
        .filter_map(|output| match output {
            Output::Sweep { keep } => Some(keep.iter().map(SpanName::as_str).collect()),
            Output::Peer { .. } | Output::Look => None,
        })
        .collect()
}

#[test]
fn a_feed_whose_spans_are_not_known_yet_is_not_swept_as_if_it_were_removed() {
    let (maintainer, _, said) = begun(maintain(FeedState::Running, &[]));
    assert_eq!(maintainer.phase(), Phase::Working);
    assert!(sweeps(&said).is_empty(), "{said:?}");
}

#[test]
fn one_that_takes_over_sweeps_what_is_not_among_its_spans() {
    let (_, _, said) = begun(maintain(FeedState::Running, &["a", "b"]));
    assert_eq!(sweeps(&said), [["a", "b"]]);
}

#[test]
fn a_feed_that_is_removed_is_swept_of_everything() {
    let (mut maintainer, roster, said) = begun(maintain(FeedState::Removing, &[]));
    assert_eq!(sweeps(&said), [Vec::<&str>::new()]);
    maintainer.swept(Ok(()), Time(20));
    maintainer.advance(&roster, Time(20));
    assert_eq!(maintainer.phase(), Phase::Cleaned);
}

#[test]
fn a_sweep_that_was_under_way_when_the_feed_was_removed_is_not_taken_for_the_last_one() {
    let (mut maintainer, roster, said) = begun(maintain(FeedState::Running, &["a", "b"]));
    assert_eq!(sweeps(&said), [["a", "b"]]);
    let removed = Maintain { revision: revision(2), ..(*maintain(FeedState::Removing, &["a", "b"])).clone() };
    maintainer.ordered(&Arc::new(removed), Time(20));
    let mut said = maintainer.advance(&roster, Time(20));
    // The answer to the one that kept both.
    maintainer.swept(Ok(()), Time(30));
    said.extend(maintainer.advance(&roster, Time(30)));
    assert_eq!(maintainer.phase(), Phase::Working, "what a and b left is still there");
    assert_eq!(sweeps(&said), [Vec::<&str>::new()], "one at a time, and the last one keeps nothing");
    maintainer.swept(Ok(()), Time(40));
    maintainer.advance(&roster, Time(40));
    assert_eq!(maintainer.phase(), Phase::Cleaned);
}

#[test]
fn a_checkpoint_that_is_told_with_new_spans_does_not_rise_before_they_are_known() {
    let (mut maintainer, roster, _) = begun(maintain(FeedState::Running, &["a"]));
    let (a, epoch) = (SpanName::new("a"), SpanEpoch(MaintainerEpoch(1).0 << 32 | 9));
    let at = |number| Checkpoint { position: number, at: Time(number) };
    let held =
        Held { span: a.clone(), epoch, state: HeldState::Running, checkpoint: Some(at(5)), trouble: None };
    maintainer.heard(
        &said_by_node(PeerBody::Inventory { number: 0, load: 1, held: vec![held] }),
        false,
        Time(20),
    );
    maintainer.advance(&roster, Time(20));
    let told = maintainer.report(&roster, Time(2000)).expect("a report");
    assert_eq!(told.checkpoint, Some(at(5)));
    let spans = vec![a.clone(), SpanName::new("b")];
    maintainer.looked(Ok(Looked { spans: spans.clone(), ..Looked::default() }), Time(2100));
    maintainer.heard(&said_by_node(PeerBody::Progress { spans: vec![(a, epoch, at(9))] }), false, Time(2200));
    let told = maintainer.report(&roster, Time(4000)).expect("a report");
    assert_eq!((told.spans.as_deref(), told.checkpoint), (Some(&spans[..]), Some(at(5))));
}

#[test]
fn the_mark_of_a_look_is_told_every_node_at_once_and_with_every_question() {
    let (mut maintainer, roster, _) = begun(maintain(FeedState::Running, &["a"]));
    let mark = Some("0123".to_owned());
    maintainer.looked(
        Ok(Looked { spans: vec![SpanName::new("a")], mark: mark.clone(), ..Looked::default() }),
        Time(20),
    );
    let said = maintainer.advance(&roster, Time(20));
    let asked = said.iter().find_map(|output| match output {
        Output::Peer { body: PeerBody::Ask { mark, .. }, .. } => Some(mark.clone()),
        Output::Peer { .. } | Output::Look | Output::Sweep { .. } => None,
    });
    assert_eq!(asked, Some(mark), "{said:?}");
}

fn said_by_a_maintainer(body: PeerBody) -> Peer {
    Peer {
        from: NodeId::new("n2"),
        from_epoch: ProcessEpoch(1),
        to_epoch: ProcessEpoch(1),
        feed: FeedName::new("orders"),
        maintainer: MaintainerEpoch(1),
        body,
    }
}

#[test]
fn a_node_forgets_a_feed_that_nobody_asks_about_unless_something_of_it_runs() {
    const HOURS: u64 = 3_600_000;
    for runs in [false, true] {
        let (mut host, roster) = (Dispatchers::new(NodeId::new(NODE), 10), roster());
        host.leased();
        let spec = maintain(FeedState::Running, &[]).spec.clone();
        let ask = said_by_a_maintainer(PeerBody::Ask { spec, mark: None, heard: None });
        host.heard(&ask, false, &roster, Time(0));
        if runs {
            let start = SpanWhat::Start { epoch: SpanEpoch(1 << 32), from: None };
            for what in [SpanWhat::Prepare, start] {
                let orders = vec![SpanOrder { span: SpanName::new("a"), what }];
                let orders = said_by_a_maintainer(PeerBody::Orders { roster: revision(1), orders });
                host.heard(&orders, false, &roster, Time(0));
                let (feed, span) = (FeedName::new("orders"), SpanName::new("a"));
                host.task(TaskNews { feed, span, run: 1, what: TaskWhat::Prepared }, Time(0));
            }
        }
        for hour in 0..3 {
            host.heard(&ask, false, &roster, Time(hour * HOURS));
            host.advance(Time(hour * HOURS));
            assert_eq!(host.feeds().count(), 1, "it is asked about");
        }
        host.advance(Time(5 * HOURS));
        assert_eq!((host.feeds().count(), host.live()), (usize::from(runs), usize::from(runs)));
    }
}

#[test]
fn an_inventory_that_was_overtaken_by_news_that_got_lost_says_nothing_of_what_runs() {
    let (mut maintainer, roster, _) = begun(maintain(FeedState::Running, &["a"]));
    let held = |state, epoch| {
        let span = SpanName::new("a");
        vec![Held { span, epoch: SpanEpoch(epoch), state, checkpoint: None, trouble: None }]
    };
    let mut hears = |body: PeerBody, at: u64| {
        maintainer.heard(&said_by_node(body), false, Time(at));
        let said = maintainer.advance(&roster, Time(at));
        let prepares = |output: &Output| match output {
            Output::Peer { body: PeerBody::Orders { orders, .. }, .. } => {
                orders.iter().any(|order| order.what == SpanWhat::Prepare)
            }
            Output::Peer { .. } | Output::Look | Output::Sweep { .. } => false,
        };
        said.iter().any(prepares)
    };
    hears(PeerBody::News { number: 1, load: 1, held: held(HeldState::Prepared, 0) }, 20);
    hears(PeerBody::News { number: 2, load: 1, held: held(HeldState::Running, (1 << 32) | 1) }, 30);
    // The third is lost, the fourth shows it; what was said before the first comes after all.
    hears(PeerBody::News { number: 4, load: 1, held: Vec::new() }, 40);
    let late = PeerBody::Inventory { number: 0, load: 0, held: Vec::new() };
    assert!(!hears(late, 50), "it runs, and is not started a second time");
    let present = PeerBody::Inventory { number: 4, load: 1, held: held(HeldState::Running, (1 << 32) | 1) };
    assert!(!hears(present, 60));
}
