//! What must hold of feeds: in one state, that at most one maintainer of each may act; of a change, that a
//! maintainer goes only where it is known which nodes are closed, and nowhere for a drain's sake while drains pause.

use std::collections::{BTreeMap, BTreeSet};

use model::{Cluster, Feed, FeedName, MaintainerEpoch, NodeId};

use crate::{Violation, observer::Step};

/// Nodes that could host feeds and may be given nothing.
pub fn closed_nodes(cluster: &Cluster) -> BTreeSet<NodeId> {
    let hosts = cluster.nodes().filter(|(_, node)| node.rec.roles.worker && !node.rec.foreign);
    hosts.filter(|(_, node)| node.is_closed()).map(|(_, node)| node.rec.id.clone()).collect()
}

/// A feed is about to change in this state: a node that is given its maintainer has acknowledged exactly the nodes
/// that are closed, and is none of them.
pub(crate) fn destination_was_told(cluster: &Cluster, feed: &Feed, step: &Step<'_>) -> Option<Violation> {
    let node = &feed.maintainer.as_ref()?.node;
    let before = cluster.feed(feed.name.as_str()).and_then(|feed| feed.maintainer.as_ref());
    if before.map(|before| before.epoch) == feed.maintainer.as_ref().map(|after| after.epoch) {
        return None;
    }
    let closed = closed_nodes(cluster);
    let what = match (step.acknowledged)(node) {
        _ if closed.contains(node) => "is closed".to_owned(),
        None => "has not acknowledged which nodes are closed".to_owned(),
        Some(known) if known != closed => {
            let list = |nodes: &BTreeSet<NodeId>| {
                format!("{:?}", nodes.iter().map(NodeId::as_str).collect::<Vec<_>>())
            };
            format!("has acknowledged that {} are closed, and {} are", list(&known), list(&closed))
        }
        Some(_) => return None,
    };
    Some(Violation::NotTold { feed: feed.name.clone(), node: node.clone(), what })
}

/// A feed is about to change in this state: while the coordinator's own node is closed, no maintainer is asked to
/// hand over. One whose node is lost has nobody to hand over from.
pub(crate) fn handed_over_in_pause(cluster: &Cluster, feed: &Feed, step: &Step<'_>) -> Option<Violation> {
    let origin = feed.maintainer.as_ref()?.from.as_ref().filter(|_| step.paused)?;
    let before = cluster.feed(feed.name.as_str()).and_then(|feed| feed.maintainer.as_ref())?;
    let begins = before.from.is_none() && before.epoch == origin.epoch;
    begins.then(|| Violation::HandedOverInPause { feed: feed.name.clone(), node: origin.node.clone() })
}

pub(crate) fn feeds_have_one_maintainer(cluster: &Cluster, found: &mut Vec<Violation>) {
    let mut epochs: BTreeMap<MaintainerEpoch, FeedName> = BTreeMap::new();
    let mut hosts: BTreeSet<(NodeId, FeedName)> = BTreeSet::new();
    for feed in cluster.feeds() {
        let mut wrong = |what: String| found.push(Violation::Feed { feed: feed.name.clone(), what });
        if feed.epoch.0 > cluster.meta().maintainer_epoch {
            let handed_out = cluster.meta().maintainer_epoch;
            wrong(format!(
                "its maintainer's epoch {} is above all that were given ({handed_out})",
                feed.epoch
            ));
        }
        for what in wrong_maintainer(feed) {
            wrong(what);
        }
        let Some(maintainer) = &feed.maintainer else { continue };
        if let Some(other) = epochs.insert(maintainer.epoch, feed.name.clone()) {
            wrong(format!("its maintainer has the epoch {} of that of {other}", maintainer.epoch));
        }
        hosts.insert((maintainer.node.clone(), feed.name.clone()));
        hosts.extend(maintainer.from.as_ref().map(|origin| (origin.node.clone(), feed.name.clone())));
    }
    for (_, node) in cluster.nodes() {
        let id = &node.rec.id;
        for name in cluster.maintainers_on(id) {
            if !hosts.remove(&(id.clone(), name.clone())) {
                let what = format!("it is listed on {id}, where no maintainer of it is");
                found.push(Violation::Feed { feed: name.clone(), what });
            }
        }
    }
    // A node that is in no record has no list.
    for (node, feed) in hosts.into_iter().filter(|(node, _)| cluster.node_by_id(node.as_str()).is_some()) {
        found.push(Violation::Feed { feed, what: format!("its maintainer on {node} is in no list") });
    }
}

fn wrong_maintainer(feed: &Feed) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(maintainer) = &feed.maintainer else { return wrong };
    if maintainer.epoch != feed.epoch {
        wrong.push(format!("its maintainer has epoch {}, its last was {}", maintainer.epoch, feed.epoch));
    }
    if let Some(origin) = maintainer.from.as_ref().filter(|origin| origin.epoch >= maintainer.epoch) {
        wrong.push(format!("epoch {} takes over from {}, which is no older", maintainer.epoch, origin.epoch));
    }
    wrong
}
