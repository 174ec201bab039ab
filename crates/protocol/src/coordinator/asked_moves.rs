//! Moves of spans that people asked for, until their maintainers have made them.
//!
//! They are stored with their feed. What is kept here is how long each is waited for; a coordinator that takes over
//! waits for them anew.

use std::collections::BTreeMap;

use model::{AskedMove, Feed, FeedName, Millis, NodeId, SpanName, Time};

/// What could not be moved for this long is given up: whoever asked has looked elsewhere.
pub(super) const PATIENCE: Millis = Millis::secs(60);

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
    /// What a predecessor has stored.
    pub fn inherit(&mut self, feed: &Feed, now: Time) {
        for AskedMove { number, span, to } in &feed.asked {
            self.last = self.last.max(*number);
            let wish = Wish { number: *number, to: to.clone(), until: now + PATIENCE };
            self.of.entry(feed.name.clone()).or_default().insert(span.clone(), wish);
        }
    }

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

    /// A maintainer that knows of all of them says which are left. Those that are not.
    pub fn left(&mut self, feed: &FeedName, numbers: &[u64]) -> Vec<AskedMove> {
        self.keep(feed, |wish| numbers.contains(&wish.number))
    }

    pub fn forget(&mut self, feed: &FeedName) {
        self.of.remove(feed);
    }

    /// Those that have been waited for long enough, by feed.
    pub fn give_up(&mut self, now: Time) -> Vec<(FeedName, Vec<AskedMove>)> {
        let feeds: Vec<FeedName> = self.of.keys().cloned().collect();
        let given_up = feeds.into_iter().map(|feed| {
            let gone = self.keep(&feed, |wish| now < wish.until);
            (feed, gone)
        });
        given_up.filter(|(_, gone)| !gone.is_empty()).collect()
    }

    /// Keeps some of a feed's; the others.
    fn keep(&mut self, feed: &FeedName, which: impl Fn(&Wish) -> bool) -> Vec<AskedMove> {
        let before = self.of(feed);
        let Some(wishes) = self.of.get_mut(feed) else { return Vec::new() };
        wishes.retain(|_, wish| which(wish));
        let gone = before.into_iter().filter(|asked| !wishes.contains_key(&asked.span)).collect();
        if wishes.is_empty() {
            self.of.remove(feed);
        }
        gone
    }
}
