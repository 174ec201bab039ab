//! What a maintainer tells the coordinator: one summary of its feed.

use std::{collections::BTreeMap, sync::Arc};

use model::{Checkpoint, Code, FeedState, Millis, NodeId, SpanName, Time};

use super::{At, Maintainer};
use crate::{
    message::{
        FeedReport,
        feed::{FeedTrouble, Phase, Stuck},
    },
    roster::RosterView,
};

/// Checkpoints of spans are gathered this often.
const CHECKPOINT_EVERY: Millis = Millis::secs(1);
/// Of many troubles the first few tell the story.
const TROUBLES_TOLD_MAX: usize = 8;
/// What was not answered is said again after this.
const SAID_AGAIN_AFTER: Millis = Millis::secs(2);

impl Maintainer {
    /// The least of all spans. Nobody's word is no word: then it stays where it was.
    pub(super) fn raise_checkpoint(&mut self, now: Time, at_once: bool) {
        if !at_once && now.since(self.checkpoint_at) < CHECKPOINT_EVERY {
            return;
        }
        self.checkpoint_at = now;
        // Spans that were seen and are not in the set yet begin behind the others. What is told together with
        // them is where the feed stands without them.
        let seen = self.looked.iter().flat_map(|looked| &looked.spans);
        if self.order.state != FeedState::Removing && seen.into_iter().any(|name| !self.is_in_set(name)) {
            return;
        }
        let mut least: Option<Checkpoint> = None;
        for name in self.order.spans.names.iter() {
            let Some(of) = self.spans.get(name).and_then(|span| span.checkpoint) else { return };
            least = Some(least.map_or(of, |least| least.least(of)));
        }
        match (&mut self.checkpoint, least) {
            (Some(known), Some(least)) => known.raise(least),
            (None, least) => self.checkpoint = least,
            (Some(_), None) => {}
        }
    }

    fn dispatchers(&self) -> BTreeMap<NodeId, u32> {
        let mut by_node: BTreeMap<NodeId, u32> = BTreeMap::new();
        for (id, host) in self.hosts.iter().filter(|(_, host)| !host.running.is_empty()) {
            by_node.insert(id.clone(), host.running.len() as u32);
        }
        for (_, name) in &self.retries {
            if let Some(on) = self.spans.get(name).and_then(|span| span.at.owner()) {
                *by_node.entry(on.clone()).or_insert(0) += 1;
            }
        }
        by_node
    }

    fn troubles(&self) -> Vec<FeedTrouble> {
        let mut troubles = Vec::new();
        let mut tell = |code, node: &NodeId, span: Option<&SpanName>, message: String| {
            if troubles.len() < TROUBLES_TOLD_MAX {
                troubles.push(FeedTrouble { code, node: node.clone(), span: span.cloned(), message });
            }
        };
        if let Some(trouble) = &self.look_trouble {
            tell(trouble.code, &self.me, None, trouble.message.clone());
        }
        for (id, host) in self.hosts.iter().filter(|(_, host)| host.is_silent()) {
            let message = match host.heard {
                Some(_) if host.relayed => {
                    format!(
                        "{id} does not answer the maintainer on {}; the coordinator is between them",
                        self.me
                    )
                }
                Some(_) => format!("{id} does not answer the maintainer on {}", self.me),
                None => format!("{id} has not said what it runs: spans that nobody vouches for wait for it"),
            };
            tell(Code::PeerUnreachable, id, None, message);
        }
        for (name, span) in &self.spans {
            if let Some((node, code, message)) = &span.trouble
                && !matches!(code, Code::MaxParallel | Code::NoEligibleNode | Code::Fenced)
            {
                tell(*code, node, Some(name), message.clone());
            }
        }
        for warning in self.looked.iter().flat_map(|looked| &looked.warnings) {
            tell(Code::SourceUnfit, &self.me, None, warning.clone());
        }
        troubles
    }

    /// What is on closed nodes, and every node that might take it has tried to make it ready and failed. One that
    /// has not tried, or does not answer, may still do better.
    fn stuck(&self, roster: &RosterView) -> BTreeMap<NodeId, Stuck> {
        let mut stuck: BTreeMap<NodeId, Stuck> = BTreeMap::new();
        if self.failing.is_empty() || self.order.state != FeedState::Running {
            return stuck;
        }
        let open =
            roster.nodes().filter(|node| !node.closed && !node.offline && node.satisfies(&self.order.spec));
        let open: Vec<&NodeId> = open.map(|node| &node.node).collect();
        for span in self.failing.iter().filter_map(|name| self.spans.get(name)) {
            let on = match &span.at {
                At::Running { on, .. } | At::Moving { on, .. } if roster.is_closed(on) => on,
                At::Unknown
                | At::Nowhere
                | At::Preparing { .. }
                | At::Starting { .. }
                | At::Running { .. }
                | At::Moving { .. }
                | At::Stopping { .. } => continue,
            };
            if open.is_empty() || !open.iter().all(|node| span.has_failed_on(node)) {
                continue;
            }
            let Some(first) = span.failed.iter().find(|failed| open.contains(&&failed.node)) else {
                continue;
            };
            let said = || Stuck {
                count: 0,
                code: first.code,
                message: format!("{}: {}", first.node, first.message),
            };
            stuck.entry(on.clone()).or_insert_with(said).count += 1;
        }
        stuck
    }

    /// What is to be said, if anything is: what changed, and what was not answered.
    pub fn report(&mut self, roster: &RosterView, now: Time) -> Option<FeedReport> {
        if self.phase != Phase::Quiesced {
            self.raise_checkpoint(now, false);
        }
        let seen = self.looked.as_ref().map(|looked| looked.spans.as_slice());
        let spans: Option<Arc<[SpanName]>> = seen
            .filter(|_| {
                self.differs && self.order.state != FeedState::Removing && self.look_trouble.is_none()
            })
            .map(Into::into);
        let absent = match self.order.state {
            FeedState::Running => {
                let missing =
                    |span: &&super::Span| span.at.owner().is_none() || matches!(span.at, At::Starting { .. });
                self.spans.values().filter(missing).count() as u32
            }
            FeedState::Paused | FeedState::Removing => 0,
        };
        let next = FeedReport {
            feed: self.feed.clone(),
            epoch: self.epoch,
            number: self.number,
            revision: self.order.revision,
            phase: self.phase,
            spans,
            checkpoint: self.checkpoint,
            dispatchers: self.dispatchers(),
            moving: self.moving,
            moved: self.moved,
            absent,
            held_back: self.looked.as_ref().and_then(|looked| looked.held_back),
            asked: self.asked.clone(),
            troubles: self.troubles(),
            stuck: self.stuck(roster),
        };
        if self.report.as_ref() != Some(&next) {
            self.number += 1;
            let next = FeedReport { number: self.number, ..next };
            self.report = Some(next);
            self.said_at = Time(0);
        }
        let unanswered = self.answered < self.number && now.since(self.said_at) >= SAID_AGAIN_AFTER;
        if !unanswered {
            return None;
        }
        self.said_at = now;
        self.report.clone()
    }

    /// Everything is to be said again: the coordinator is another one.
    pub fn forget_answers(&mut self) {
        (self.answered, self.said_at) = (0, Time(0));
        if self.number == 0 {
            self.number = 1;
        }
    }

    /// The coordinator has taken the report with this number.
    pub fn answered(&mut self, number: u64) {
        if number <= self.number {
            self.answered = self.answered.max(number);
        }
    }
}
