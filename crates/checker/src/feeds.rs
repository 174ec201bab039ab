//! What must hold of feeds in one state: at most one maintainer of each may act.

use std::collections::{BTreeMap, BTreeSet};

use model::{Cluster, Feed, FeedName, MaintainerEpoch, NodeId};

use crate::Violation;

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
