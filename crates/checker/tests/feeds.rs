//! What the checker says of feeds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use checker::{Limits, Observer, Step, Violation, check};
use model::{
    Change, Cluster, Drain, DrainNode, DrainOptions, DrainState, Feed, FeedName, FeedSpec, FeedState, Health,
    Intent, Life, Maintainer, MaintainerEpoch, MemoryCaps, Meta, Node, NodeId, Origin, PipelineSpec,
    ProcessEpoch, Resources, Roles, SpanSet, Time,
};

fn feed(name: &str, epoch: u64) -> Feed {
    let spec = FeedSpec { pipeline: PipelineSpec::Idle { spans: 1 }, constraints: BTreeMap::new() };
    let (epoch, process) = (MaintainerEpoch(epoch), ProcessEpoch(1));
    Feed {
        name: FeedName::new(name),
        spec: Arc::new(spec),
        state: FeedState::Running,
        spans: SpanSet::default(),
        maintainer: Some(Maintainer { node: NodeId::new("n1"), process, epoch, from: None, since: Time(1) }),
        epoch,
        checkpoint: None,
        created_at: Time(1),
        asked: Vec::new(),
    }
}

fn said(feeds: Vec<Feed>) -> Vec<String> {
    let mut cluster = Cluster::default();
    cluster.apply(&Change::Meta(Meta { maintainer_epoch: 5, ..Meta::default() }));
    for feed in feeds {
        cluster.apply(&Change::Feed(feed));
    }
    let found = check(&cluster);
    assert!(found.iter().all(|violation| matches!(violation, Violation::Feed { .. })), "{found:?}");
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn feeds_with_a_maintainer_each_are_well() {
    assert_eq!(said(vec![feed("a", 1), feed("b", 2)]), Vec::<String>::new());
}

#[test]
fn an_epoch_that_two_have_is_found() {
    assert_eq!(
        said(vec![feed("a", 1), feed("b", 1)]),
        ["feed b: its maintainer has the epoch 1 of that of a"]
    );
}

#[test]
fn an_epoch_that_nobody_gave_is_found() {
    let said = said(vec![feed("a", 6)]);
    assert_eq!(said, ["feed a: its maintainer's epoch 6 is above all that were given (5)"]);
}

#[test]
fn one_that_takes_over_from_a_younger_one_is_found() {
    let mut late = feed("a", 2);
    if let Some(maintainer) = &mut late.maintainer {
        let (node, process, epoch) = (NodeId::new("n2"), ProcessEpoch(1), MaintainerEpoch(3));
        maintainer.from = Some(Origin { node, process, epoch });
    }
    assert_eq!(said(vec![late]), ["feed a: epoch 2 takes over from 3, which is no older"]);
}

// Of changes: where maintainers go, and when.

fn node(id: &str) -> Node {
    Node {
        id: NodeId::new(id),
        roles: Roles::ALL,
        intent: Intent::Active,
        health: Health::Up,
        health_since: Time(1),
        labels: BTreeMap::new(),
        capacity: Resources { memory: 100, cpu: 100 },
        process_epoch: ProcessEpoch(1),
        life: Life(1),
        host: String::new(),
        api: String::new(),
        memory_caps: MemoryCaps::CgroupV2,
        foreign: false,
        registered_at: Time(1),
        lingers: None,
        goodbye: false,
    }
}

/// A drain of these nodes, whose turn has come.
fn drain(nodes: &[&str]) -> Change {
    let part = |id: &&str| DrainNode {
        state: DrainState::Draining,
        started_at: Some(Time(1)),
        ..DrainNode::queued(NodeId::new(id), DrainOptions::default())
    };
    Change::Drain(Drain {
        epoch: 1,
        by: String::new(),
        from: String::new(),
        message: String::new(),
        meta: BTreeMap::new(),
        created_at: Time(1),
        nodes: nodes.iter().map(part).collect(),
    })
}

/// `orders` on n1, and two nodes beside it.
fn three_nodes() -> Vec<Change> {
    let mut changes = vec![Change::Meta(Meta { maintainer_epoch: 5, drain_epoch: 1, ..Meta::default() })];
    changes.extend(["n1", "n2", "n3"].map(|id| Change::Node(node(id))));
    changes.push(Change::Feed(feed("orders", 1)));
    changes
}

/// `orders` goes to this node; `from` the one before, if that has to confirm.
fn goes_to(to: &str, from: bool) -> Change {
    let mut next = feed("orders", 2);
    let origin = Origin { node: NodeId::new("n1"), process: ProcessEpoch(1), epoch: MaintainerEpoch(1) };
    if let Some(maintainer) = &mut next.maintainer {
        (maintainer.node, maintainer.from) = (NodeId::new(to), from.then_some(origin));
    }
    Change::Feed(next)
}

/// What is said of feeds when `change` is made after `before`, by invariant. Every node has acknowledged
/// that `known` are closed; `None`: nothing.
fn said_of(before: &[Change], change: Change, known: Option<&[&str]>, paused: bool) -> Vec<(u32, String)> {
    let mut cluster = Cluster::default();
    three_nodes().iter().chain(before).for_each(|change| cluster.apply(change));
    let limits = Limits { nodes_at_once: 3, balance_moves: 2, maintainer_batch: 1 };
    let mut observer = Observer::new(&cluster, limits);
    let known = known.map(|ids| ids.iter().map(|id| NodeId::new(id)).collect::<BTreeSet<NodeId>>());
    let step =
        Step { now: Time(2), paused, ready: &|_| true, acknowledged: &|_| known.clone(), at_work: &|_| true };
    let found = observer.follow(&[change], &step);
    let told = |violation: &Violation| {
        matches!(violation, Violation::NotTold { .. } | Violation::HandedOverInPause { .. })
            .then(|| (violation.invariant(), violation.to_string()))
    };
    found.iter().filter_map(told).collect()
}

#[test]
fn a_maintainer_may_go_where_it_is_known_which_nodes_are_closed() {
    assert_eq!(said_of(&[drain(&["n1"])], goes_to("n2", true), Some(&["n1"]), false), []);
    assert_eq!(said_of(&[], goes_to("n2", false), Some(&[]), false), []);
}

#[test]
fn a_maintainer_that_goes_where_nothing_was_acknowledged_is_found() {
    let told = "the maintainer of orders goes to n2, which has not acknowledged which nodes are closed";
    assert_eq!(said_of(&[drain(&["n1"])], goes_to("n2", true), None, false), [(7, told.to_owned())]);
}

#[test]
fn a_maintainer_that_goes_where_an_older_closed_set_is_known_is_found() {
    let told = "the maintainer of orders goes to n2, which has acknowledged that [\"n1\"] are closed, and [\"n1\", \"n3\"] are";
    let closed = drain(&["n1", "n3"]);
    assert_eq!(said_of(&[closed], goes_to("n2", true), Some(&["n1"]), false), [(7, told.to_owned())]);
}

#[test]
fn a_maintainer_that_goes_where_a_node_is_still_called_closed_is_found() {
    let told =
        "the maintainer of orders goes to n2, which has acknowledged that [\"n3\"] are closed, and [] are";
    assert_eq!(said_of(&[], goes_to("n2", false), Some(&["n3"]), false), [(7, told.to_owned())]);
}

#[test]
fn a_maintainer_that_goes_to_a_closed_node_is_found_whatever_that_node_knows() {
    let told = "the maintainer of orders goes to n2, which is closed";
    let closed = drain(&["n1", "n2"]);
    assert_eq!(said_of(&[closed], goes_to("n2", true), Some(&["n1", "n2"]), false), [(7, told.to_owned())]);
}

#[test]
fn one_that_stays_where_it_is_needs_to_know_nothing() {
    let mut paused = feed("orders", 1);
    paused.state = FeedState::Paused;
    assert_eq!(said_of(&[drain(&["n1"])], Change::Feed(paused), None, false), []);
}

#[test]
fn a_hand_over_that_begins_while_drains_pause_is_found() {
    let told = "the maintainer of orders is handed over by n1 while drains pause";
    assert_eq!(said_of(&[drain(&["n1"])], goes_to("n2", true), Some(&["n1"]), true), [(9, told.to_owned())]);
}

#[test]
fn one_whose_node_is_lost_is_placed_anew_while_drains_pause() {
    let lost = Change::Node(Node { health: Health::Offline, ..node("n1") });
    assert_eq!(said_of(&[lost], goes_to("n2", false), Some(&[]), true), []);
}

#[test]
fn another_successor_of_a_hand_over_that_had_begun_is_chosen_while_drains_pause() {
    let begun = goes_to("n2", true);
    let mut next = feed("orders", 3);
    let origin = Origin { node: NodeId::new("n1"), process: ProcessEpoch(1), epoch: MaintainerEpoch(1) };
    if let Some(maintainer) = &mut next.maintainer {
        (maintainer.node, maintainer.from) = (NodeId::new("n3"), Some(origin));
    }
    let before = [drain(&["n1"]), begun];
    assert_eq!(said_of(&before, Change::Feed(next), Some(&["n1"]), true), []);
}
