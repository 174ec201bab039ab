//! What a node says of a span, against what the maintainer knows.

use std::collections::BTreeSet;

use model::{Checkpoint, Code, Millis, NodeId, SpanEpoch, SpanName, Time};

use super::{At, Maintainer, span::Failed};
use crate::message::feed::{Held, HeldState, SpanOrder, SpanWhat};

/// A node that is busy is asked again soon, one that refuses or fails later.
const AVOID_BUSY: Millis = Millis(100);
const AVOID_REFUSING: Millis = Millis::secs(2);
/// One that could not make a span ready is asked for that span again after this; it doubles.
const FAILED_FIRST: Millis = Millis::secs(2);
const FAILED_MAX: Millis = Millis::secs(60);

impl Maintainer {
    /// Everything a node has: what is not named is not there.
    pub(super) fn inventory(&mut self, node: &NodeId, held: &[Held], now: Time) {
        let named: BTreeSet<&SpanName> = held.iter().map(|held| &held.span).collect();
        for held in held {
            self.learn(node, held, now);
        }
        let gone = self.spans.iter().filter(|(name, span)| {
            // A start that is under way may not have arrived when this was said.
            let settled = matches!(span.at, At::Running { .. } | At::Moving { .. } | At::Stopping { .. });
            settled && span.at.owner() == Some(node) && !named.contains(name)
        });
        let gone: Vec<SpanName> = gone.map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.stopped(node, &name, now);
        }
    }

    pub(super) fn learn(&mut self, node: &NodeId, held: &Held, now: Time) {
        let name = &held.span;
        if !self.spans.contains_key(name) {
            // Of a set before this one: it is stopped like any other that is not wanted.
            match held.state {
                HeldState::Absent => return,
                HeldState::Preparing
                | HeldState::Prepared
                | HeldState::Running
                | HeldState::Stopping
                | HeldState::Stopped => self.insert(name, At::Nowhere, now),
            }
        }
        if self.spans.get(name).is_some_and(|span| held.epoch < span.floor) && held.epoch != SpanEpoch(0) {
            return self.of_earlier(node, held, now);
        }
        if let Some(span) = self.spans.get_mut(name) {
            span.raise(held.checkpoint);
            if span.at.owner() == Some(node) || span.at.destination() == Some(node) {
                span.trouble = held.trouble.clone().map(|(code, message)| (node.clone(), code, message));
            }
        }
        match held.state {
            HeldState::Running => self.runs(node, name, held.epoch, now),
            HeldState::Stopping => self.stops(node, name, held.epoch, now),
            HeldState::Stopped => {
                self.has_stopped(node, name, held.epoch, now);
                self.is_not_ready_again(node, name, held.trouble.as_ref(), now);
            }
            HeldState::Prepared => self.is_prepared(node, name, now),
            HeldState::Preparing => self.is_preparing(node, name),
            HeldState::Absent => self.is_absent(node, name, held.trouble.as_ref(), now),
        }
    }

    /// A word on a span that vanished and has come back under its name.
    fn of_earlier(&mut self, node: &NodeId, held: &Held, now: Time) {
        match held.state {
            HeldState::Running => self.stop_stray(node, &held.span, held.epoch),
            HeldState::Stopped => self.release(node, &held.span),
            HeldState::Prepared | HeldState::Preparing | HeldState::Absent => {
                // The state is of today, whatever was here before.
                let today = Held { epoch: SpanEpoch(0), checkpoint: None, ..held.clone() };
                self.learn(node, &today, now);
            }
            HeldState::Stopping => {}
        }
    }

    fn at(&self, name: &SpanName) -> At {
        self.spans.get(name).map_or(At::Nowhere, |span| span.at.clone())
    }

    fn runs(&mut self, node: &NodeId, name: &SpanName, epoch: SpanEpoch, now: Time) {
        let running = At::Running { on: node.clone(), epoch };
        match self.at(name) {
            At::Starting { on, epoch: started, moved } if on == *node && started == epoch => {
                self.moved += u64::from(moved);
                self.set(name, running, now);
                self.release_elsewhere(node, name);
            }
            At::Running { on, epoch: known } | At::Moving { on, epoch: known, .. }
                if on == *node && known == epoch => {}
            At::Stopping { on, epoch: known, .. } if on == *node && known == epoch => {}
            // Found: asked for by a predecessor, or by a start that was given up too early.
            At::Unknown | At::Nowhere => self.set(name, running, now),
            At::Preparing { to } => {
                self.set(name, running, now);
                if to != *node {
                    self.release(&to, name);
                }
            }
            At::Starting { epoch: known, .. }
            | At::Running { epoch: known, .. }
            | At::Moving { epoch: known, .. }
            | At::Stopping { epoch: known, .. } => {
                if epoch > known {
                    let (before, other) = (known, self.at(name).owner().cloned());
                    self.set(name, running, now);
                    if let Some(other) = other.filter(|other| other != node) {
                        self.stop_stray(&other, name, before);
                    }
                } else {
                    self.stop_stray(node, name, epoch);
                }
            }
        }
    }

    /// Two claim one span: the one with the lower epoch is out of date. Its sink refuses it already.
    fn stop_stray(&mut self, node: &NodeId, name: &SpanName, epoch: SpanEpoch) {
        if let Some(host) = self.hosts.get_mut(node) {
            host.orders.push(SpanOrder { span: name.clone(), what: SpanWhat::Stop { epoch } });
        }
    }

    /// Asked to stop by a predecessor, or by itself at the fence.
    fn stops(&mut self, node: &NodeId, name: &SpanName, epoch: SpanEpoch, now: Time) {
        let ours = match self.at(name) {
            At::Unknown | At::Nowhere => true,
            At::Running { on, epoch: known } | At::Moving { on, epoch: known, .. } => {
                on == *node && known == epoch
            }
            At::Starting { on, epoch: known, .. } => on == *node && known == epoch,
            At::Preparing { .. } | At::Stopping { .. } => false,
        };
        if ours {
            let to = match self.at(name) {
                At::Moving { to, .. } => Some(to),
                At::Unknown
                | At::Nowhere
                | At::Running { .. }
                | At::Starting { .. }
                | At::Preparing { .. }
                | At::Stopping { .. } => None,
            };
            // A destination that is not known to be ready is prepared once it has stopped.
            if let Some(to) = to {
                self.release(&to, name);
            }
            self.set(name, At::Stopping { on: node.clone(), epoch, to: None }, now);
        }
    }

    fn has_stopped(&mut self, node: &NodeId, name: &SpanName, epoch: SpanEpoch, now: Time) {
        match self.at(name) {
            At::Running { on, epoch: known }
            | At::Moving { on, epoch: known, .. }
            | At::Stopping { on, epoch: known, .. }
            | At::Starting { on, epoch: known, .. }
                if on == *node && epoch >= known =>
            {
                self.stopped(node, name, now);
            }
            // An old word of one that has moved on: it need not be kept once the span runs.
            At::Running { .. } => self.release(node, name),
            At::Unknown
            | At::Nowhere
            | At::Preparing { .. }
            | At::Starting { .. }
            | At::Moving { .. }
            | At::Stopping { .. } => self.kept_on(node, name),
        }
    }

    fn kept_on(&mut self, node: &NodeId, name: &SpanName) {
        if let Some(span) = self.spans.get_mut(name).filter(|span| !span.kept_on.contains(node)) {
            span.kept_on.push(node.clone());
        }
    }

    /// Its owner has it no more.
    fn stopped(&mut self, node: &NodeId, name: &SpanName, now: Time) {
        self.kept_on(node, name);
        let next = match self.at(name) {
            // Ready there: it starts from the last word of the one before.
            At::Stopping { to: Some(to), .. } if self.wanted(name) && to != *node => {
                let epoch = self.next_epoch();
                At::Starting { on: to, epoch, moved: true }
            }
            At::Stopping { to: Some(to), .. } => {
                self.release(&to, name);
                At::Nowhere
            }
            At::Moving { to, .. } if to != *node => At::Preparing { to },
            At::Unknown
            | At::Nowhere
            | At::Preparing { .. }
            | At::Starting { .. }
            | At::Running { .. }
            | At::Moving { .. }
            | At::Stopping { to: None, .. } => At::Nowhere,
        };
        self.set(name, next, now);
    }

    fn is_prepared(&mut self, node: &NodeId, name: &SpanName, now: Time) {
        self.succeeded(name, node);
        match self.at(name) {
            At::Preparing { to } if to == *node && self.wanted(name) => {
                let epoch = self.next_epoch();
                self.set(name, At::Starting { on: to, epoch, moved: false }, now);
            }
            At::Moving { on, epoch, to } if to == *node => {
                self.set(name, At::Stopping { on, epoch, to: Some(to) }, now);
            }
            At::Stopping { to: Some(to), .. } if to == *node => {}
            At::Starting { on, .. } if on == *node => {}
            At::Unknown
            | At::Nowhere
            | At::Preparing { .. }
            | At::Starting { .. }
            | At::Running { .. }
            | At::Moving { .. }
            | At::Stopping { .. } => self.release(node, name),
        }
    }

    /// It ran there once, was to be made ready again, and could not be.
    fn is_not_ready_again(
        &mut self,
        node: &NodeId,
        name: &SpanName,
        failed: Option<&(Code, String)>,
        now: Time,
    ) {
        let Some(failed) = failed.filter(|(code, _)| !is_refusal(*code)) else { return };
        if self.is_preparing_on(node, name) {
            self.not_prepared(node, name, failed, now);
        }
    }

    fn is_preparing_on(&self, node: &NodeId, name: &SpanName) -> bool {
        matches!(self.at(name), At::Preparing { to } | At::Moving { to, .. } if to == *node)
    }

    /// It stays with whoever has it.
    fn not_prepared(&mut self, node: &NodeId, name: &SpanName, why: &(Code, String), now: Time) {
        self.turned_down(node, name, why, now);
        let at = match self.at(name) {
            At::Moving { on, epoch, .. } => At::Running { on, epoch },
            At::Preparing { .. } => At::Nowhere,
            at @ (At::Unknown
            | At::Nowhere
            | At::Starting { .. }
            | At::Running { .. }
            | At::Stopping { .. }) => at,
        };
        self.set(name, at, now);
    }

    fn is_preparing(&mut self, node: &NodeId, name: &SpanName) {
        let wanted = self.at(name).destination() == Some(node);
        match (wanted, self.spans.get_mut(name)) {
            // It is at it: not a matter of an order that was lost.
            (true, Some(span)) => span.tries = 0,
            (true, None) => {}
            (false, _) => self.release(node, name),
        }
    }

    fn is_absent(&mut self, node: &NodeId, name: &SpanName, refused: Option<&(Code, String)>, now: Time) {
        match self.at(name) {
            At::Preparing { to } | At::Moving { to, .. } if to == *node => {
                if let Some(why) = refused {
                    self.not_prepared(node, name, why, now);
                }
            }
            // It denies: only now is it nobody's.
            At::Starting { on, .. } if on == *node => {
                if let Some(why) = refused {
                    self.turned_down(node, name, why, now);
                    self.set(name, At::Nowhere, now);
                }
            }
            At::Running { on, .. } | At::Moving { on, .. } | At::Stopping { on, .. } if on == *node => {
                self.stopped(node, name, now);
            }
            // What was ready there is not any more.
            At::Stopping { on, epoch, to: Some(to) } if to == *node => {
                self.set(name, At::Stopping { on, epoch, to: None }, now);
            }
            At::Unknown
            | At::Nowhere
            | At::Preparing { .. }
            | At::Starting { .. }
            | At::Running { .. }
            | At::Moving { .. }
            | At::Stopping { .. } => {}
        }
    }

    /// A node does not take it. One that has tried and failed is not asked for this span again soon.
    fn turned_down(&mut self, node: &NodeId, name: &SpanName, (code, message): &(Code, String), now: Time) {
        let pause = if *code == Code::MaxParallel { AVOID_BUSY } else { AVOID_REFUSING };
        if let Some(host) = self.hosts.get_mut(node) {
            host.avoid_until = host.avoid_until.max(now + pause);
        }
        if !is_refusal(*code) {
            self.has_failed(node, name, *code, message, now);
        }
    }

    pub(super) fn has_failed(&mut self, node: &NodeId, name: &SpanName, code: Code, why: &str, now: Time) {
        let Some(span) = self.spans.get_mut(name) else { return };
        let before = span.failed.iter().position(|failed| failed.node == *node);
        let times = before.map_or(0, |at| span.failed.swap_remove(at).times);
        let until = now + Millis((FAILED_FIRST.0 << times.min(8)).min(FAILED_MAX.0));
        let (node, message) = (node.clone(), why.to_owned());
        span.failed.push(Failed { node, times: times + 1, until, code, message });
        self.failing.insert(name.clone());
        self.failing_until.insert(until);
    }

    /// It is ready there, or nothing is known of that node any more.
    pub(super) fn succeeded(&mut self, name: &SpanName, node: &NodeId) {
        let Some(span) = self.spans.get_mut(name).filter(|span| !span.failed.is_empty()) else { return };
        span.failed.retain(|failed| failed.node != *node);
        if span.failed.is_empty() {
            self.failing.remove(name);
        }
    }

    /// Last words of earlier owners need not be kept once another runs.
    fn release_elsewhere(&mut self, owner: &NodeId, name: &SpanName) {
        let kept = self.spans.get_mut(name).map(|span| std::mem::take(&mut span.kept_on));
        for node in kept.into_iter().flatten().filter(|node| node != owner) {
            self.release(&node, name);
        }
    }

    pub(super) fn progressed(
        &mut self,
        node: &NodeId,
        name: &SpanName,
        epoch: SpanEpoch,
        checkpoint: Checkpoint,
    ) {
        let Some(span) = self.spans.get_mut(name) else { return };
        let known = match &span.at {
            At::Starting { on, epoch, .. }
            | At::Running { on, epoch }
            | At::Moving { on, epoch, .. }
            | At::Stopping { on, epoch, .. } => (on == node).then_some(*epoch),
            At::Unknown | At::Nowhere | At::Preparing { .. } => None,
        };
        if known == Some(epoch) {
            span.raise(Some(checkpoint));
        }
    }
}

/// A node says so of itself, and has not tried.
fn is_refusal(code: Code) -> bool {
    matches!(code, Code::MaxParallel | Code::NoEligibleNode | Code::Fenced | Code::PeerUnreachable)
}
