//! Moves of spans that people asked for, until their maintainers have made them.

use std::collections::BTreeMap;

use model::{FeedName, Millis, NodeId, SpanName, Time};

use crate::message::feed::AskedMove;

/// What could not be moved for this long is given up: whoever asked has looked elsewhere.
const PATIENCE: Millis = Millis::secs(60);

#[derive(Clone, Debug, Default)]
pub(super) struct AskedMoves {
    of: BTreeMap<FeedName, BTreeMap<SpanName, Wish>>,
    last: u64,
}

#[derive(Clone, Debug)]
struct Wish {
    number: u64,
    to: NodeId,
    until: Time,
}

impl AskedMoves {
    /// The last word on a span counts.
    pub fn add(&mut self, feed: &FeedName, span: SpanName, to: NodeId, now: Time) {
        self.last += 1;
        let wish = Wish { number: self.last, to, until: now + PATIENCE };
        self.of.entry(feed.clone()).or_default().insert(span, wish);
    }

    /// When the next of them is.
    pub fn given_up_at(&self) -> Option<Time> {
        self.of.values().flat_map(BTreeMap::values).map(|wish| wish.until).min()
    }

    pub fn of(&self, feed: &FeedName) -> Vec<AskedMove> {
        let wishes = self.of.get(feed).into_iter().flatten();
        wishes
            .map(|(span, wish)| AskedMove { number: wish.number, span: span.clone(), to: wish.to.clone() })
            .collect()
    }

    pub fn count(&self) -> usize {
        self.of.values().map(BTreeMap::len).sum()
    }

    /// A maintainer that knows of all of them says which are left. Whether that is fewer.
    pub fn left(&mut self, feed: &FeedName, numbers: &[u64]) -> bool {
        self.keep(feed, |wish| numbers.contains(&wish.number))
    }

    pub fn forget(&mut self, feed: &FeedName) {
        self.of.remove(feed);
    }

    /// The feeds of which some are given up.
    pub fn give_up(&mut self, now: Time) -> Vec<FeedName> {
        let feeds: Vec<FeedName> = self.of.keys().cloned().collect();
        feeds.into_iter().filter(|feed| self.keep(feed, |wish| now < wish.until)).collect()
    }

    fn keep(&mut self, feed: &FeedName, which: impl Fn(&Wish) -> bool) -> bool {
        let Some(wishes) = self.of.get_mut(feed) else { return false };
        let before = wishes.len();
        wishes.retain(|_, wish| which(wish));
        let fewer = wishes.len() < before;
        if wishes.is_empty() {
            self.of.remove(feed);
        }
        fewer
    }
}
