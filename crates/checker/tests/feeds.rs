//! What the checker says of feeds.

use std::{collections::BTreeMap, sync::Arc};

use checker::{Violation, check};
use model::{
    Change, Cluster, Feed, FeedName, FeedSpec, FeedState, Maintainer, MaintainerEpoch, Meta, NodeId, Origin,
    PipelineSpec, ProcessEpoch, SpanSet, Time,
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
