//! Feeds, and whose maintainer is where.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Feed, FeedName, NodeId};

#[derive(Clone, Debug, Default)]
pub(crate) struct FeedTable {
    feeds: BTreeMap<FeedName, Feed>,
    on: BTreeMap<NodeId, BTreeSet<FeedName>>,
}

impl FeedTable {
    pub fn all(&self) -> impl Iterator<Item = &Feed> {
        self.feeds.values()
    }

    pub fn get(&self, name: &str) -> Option<&Feed> {
        self.feeds.get(name)
    }

    pub fn on(&self, node: &NodeId) -> impl Iterator<Item = &FeedName> {
        self.on.get(node).into_iter().flatten()
    }

    pub fn count_on(&self, node: &NodeId) -> usize {
        self.on.get(node).map_or(0, BTreeSet::len)
    }

    pub fn put(&mut self, feed: &Feed) {
        self.remove(&feed.name);
        for node in nodes(feed) {
            self.on.entry(node.clone()).or_default().insert(feed.name.clone());
        }
        self.feeds.insert(feed.name.clone(), feed.clone());
    }

    pub fn remove(&mut self, name: &FeedName) {
        let Some(old) = self.feeds.remove(name) else { return };
        for node in nodes(&old) {
            if let Some(here) = self.on.get_mut(node) {
                here.remove(name);
                if here.is_empty() {
                    self.on.remove(node);
                }
            }
        }
    }
}

/// Where its maintainer is to run, and where one has not confirmed that it stopped.
fn nodes(feed: &Feed) -> impl Iterator<Item = &NodeId> {
    let maintainer = feed.maintainer.as_ref();
    let origin = maintainer.and_then(|maintainer| maintainer.from.as_ref()).map(|origin| &origin.node);
    maintainer.map(|maintainer| &maintainer.node).into_iter().chain(origin)
}
