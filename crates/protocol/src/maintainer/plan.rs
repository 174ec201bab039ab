//! What a maintainer does next with its spans: stop what is not wanted, start what nobody runs, empty
//! closed nodes, even out.

use std::ops::Bound;

use model::{Code, FeedState, Millis, NodeId, SpanName, Time};

use super::{At, Chore, Looked, Maintainer, Output};
use crate::{
    dispatchers::TaskFailure,
    message::feed::{AskedMove, Phase},
    roster::RosterView,
};

/// A destination that has not prepared a span by then is given up for another.
const PREPARE_PATIENCE: Millis = Millis::secs(30);
/// Prepare orders without any answer before another destination is tried.
const PREPARE_TRIES_MAX: u32 = 3;
/// A destination that did not answer is left alone for this long.
const AVOID_SILENT: Millis = Millis::secs(5);
/// Between two looks at the source.
const LOOK_EVERY: Millis = Millis::secs(5);
const CHORE_RETRY_FIRST: Millis = Millis(500);
const CHORE_RETRY_MAX: Millis = Millis::secs(30);
/// Nodes differ by less than this: nothing is moved to even them out.
pub(crate) const UNEVEN_FROM: u32 = 2;

impl Maintainer {
    /// Orders that were not answered are said again; preparations that lead nowhere are given up.
    pub(super) fn retry(&mut self, now: Time) {
        while let Some((at, name)) = self.retries.first().cloned().filter(|(at, _)| *at <= now) {
            self.retries.remove(&(at, name.clone()));
            let Some(span) = self.spans.get_mut(&name) else { continue };
            (span.retry_at, span.tries) = (None, span.tries + 1);
            let answers = span.tries <= PREPARE_TRIES_MAX;
            let tired = !answers || now.since(span.since) >= PREPARE_PATIENCE;
            if let (true, true, Some(to)) = (tired, answers, prepared_on(&span.at).cloned()) {
                let why = format!("it was not ready after {PREPARE_PATIENCE}");
                self.has_failed(&to, &name, Code::DispatchersMoving, &why, now);
            }
            let Some(span) = self.spans.get_mut(&name) else { continue };
            match (tired, span.at.clone()) {
                (true, At::Preparing { to }) => {
                    self.give_up(&to, &name, now);
                    self.set(&name, At::Nowhere, now);
                }
                (true, At::Moving { on, epoch, to }) => {
                    self.give_up(&to, &name, now);
                    self.set(&name, At::Running { on, epoch }, now);
                }
                (
                    _,
                    At::Preparing { .. }
                    | At::Moving { .. }
                    | At::Starting { .. }
                    | At::Stopping { .. }
                    | At::Running { .. }
                    | At::Nowhere
                    | At::Unknown,
                ) => self.order_again(&name, now),
            }
        }
    }

    fn give_up(&mut self, to: &NodeId, name: &SpanName, now: Time) {
        self.release(to, name);
        if let Some(host) = self.hosts.get_mut(to) {
            host.avoid_until = now + AVOID_SILENT;
        }
    }

    pub(super) fn next_avoided(&self) -> Option<Time> {
        let waits = !self.nowhere.is_empty() || self.hosts.iter().any(|(_, host)| !host.running.is_empty());
        let avoided = self.hosts.iter().map(|(_, host)| host.avoid_until).filter(|at| *at > Time(0));
        if waits { avoided.min() } else { None }
    }

    pub(super) fn plan(&mut self, roster: &RosterView, now: Time) {
        while self.failing_until.first().is_some_and(|at| *at <= now) {
            self.failing_until.pop_first();
        }
        for (_, host) in self.hosts.iter_mut() {
            if host.avoid_until <= now {
                host.avoid_until = Time(0);
            }
        }
        if self.phase == Phase::Asking && self.hosts.all_answered() {
            self.begin(now);
        }
        self.stop_unwanted(now);
        self.drop_vanished(now);
        if self.phase == Phase::Working && self.order.state == FeedState::Running {
            self.start_missing(roster, now);
            self.move_as_asked(roster, now);
            self.empty_closed(roster, now);
            self.even_out(roster, now);
        }
        self.note_what_is_asked(roster);
        if self.phase == Phase::Working && self.order.state == FeedState::Removing && self.spans.is_empty() {
            self.clean(now);
        }
    }

    /// Everybody has answered: what nobody has, nobody runs.
    fn begin(&mut self, now: Time) {
        self.phase = Phase::Working;
        for name in std::mem::take(&mut self.unknown) {
            self.unknown.insert(name.clone());
            self.set(&name, At::Nowhere, now);
        }
        self.sweep = Chore::Due { at: now, failures: 0 };
    }

    fn stop_unwanted(&mut self, now: Time) {
        let unwanted: Vec<SpanName> = self.unwanted.iter().cloned().collect();
        for name in unwanted {
            match self.spans.get(&name).map(|span| span.at.clone()) {
                Some(At::Running { on, epoch }) => {
                    self.set(&name, At::Stopping { on, epoch, to: None }, now);
                }
                Some(At::Moving { on, epoch, to }) => {
                    self.release(&to, &name);
                    self.set(&name, At::Stopping { on, epoch, to: None }, now);
                }
                Some(At::Preparing { to }) => {
                    self.release(&to, &name);
                    self.set(&name, At::Nowhere, now);
                }
                Some(At::Unknown | At::Nowhere | At::Starting { .. } | At::Stopping { .. }) | None => {}
            }
        }
    }

    /// Spans that left the set and have stopped: what they left behind is swept.
    fn drop_vanished(&mut self, now: Time) {
        let gone = self.order.state == FeedState::Removing;
        let unwanted = std::mem::take(&mut self.unwanted).into_iter();
        let vanished: Vec<SpanName> =
            unwanted.filter(|name| self.nowhere.contains(name) && (gone || !self.is_in_set(name))).collect();
        for name in &vanished {
            self.nowhere.remove(name);
            self.failing.remove(name);
            let span = self.spans.remove(name);
            for node in span.into_iter().flat_map(|span| span.kept_on) {
                self.release(&node, name);
            }
        }
        if !vanished.is_empty() && self.phase == Phase::Working {
            self.swept = false;
            match self.sweep {
                Chore::UnderWay { .. } => self.sweep_again = true,
                Chore::Idle | Chore::Due { .. } => self.sweep = Chore::Due { at: now, failures: 0 },
            }
        }
    }

    /// One by one: there may be thousands, of which only a few find room at a time.
    fn start_missing(&mut self, roster: &RosterView, now: Time) {
        let mut next = self.nowhere.first().cloned();
        while let Some(name) = next {
            if let Some(to) = self.destination(roster, &name, now) {
                self.set(&name, At::Preparing { to }, now);
            } else if !self.failing.contains(&name) {
                return;
            }
            next =
                self.nowhere.range::<SpanName, _>((Bound::Excluded(&name), Bound::Unbounded)).next().cloned();
        }
    }

    /// The least loaded of those that may take this span, but for those that could not make it ready lately.
    fn destination(&self, roster: &RosterView, name: &SpanName, now: Time) -> Option<NodeId> {
        let span = self.spans.get(name).filter(|span| !span.failed.is_empty());
        let may = |id: &NodeId| span.is_none_or(|span| span.may_try(id, now));
        self.hosts.destination(roster, &self.order.spec, self.limits.per_node, now, may)
    }

    /// Closed nodes are emptied; the maintainer's own only once it has left: its successor would have to
    /// find out what it was doing. Others do not wait for that: its own node may have to wait for them.
    fn empty_closed(&mut self, roster: &RosterView, now: Time) {
        let closed = self.hosts.iter().filter(|(id, _)| roster.is_closed(id) && **id != self.me);
        // What nobody could make ready lately takes no turn from the others.
        let may =
            |name: &&SpanName| !self.failing.contains(*name) || self.destination(roster, name, now).is_some();
        let leaving: Vec<SpanName> = closed
            .flat_map(|(_, host)| host.running.iter())
            .filter(may)
            .take(self.order.moves.saturating_sub(self.moving) as usize)
            .cloned()
            .collect();
        for name in leaving {
            if !self.start_move(roster, &name, now) && !self.failing.contains(&name) {
                return;
            }
        }
    }

    fn start_move(&mut self, roster: &RosterView, name: &SpanName, now: Time) -> bool {
        let Some(At::Running { on, epoch }) = self.spans.get(name).map(|span| span.at.clone()) else {
            return true;
        };
        let to = self.destination(roster, name, now);
        let Some(to) = to.filter(|to| *to != on) else { return false };
        self.set(name, At::Moving { on, epoch, to }, now);
        true
    }

    /// Whoever asked has chosen the node; everything else holds as for any other move.
    fn move_as_asked(&mut self, roster: &RosterView, now: Time) {
        let order = self.order.clone();
        for asked in &order.asked {
            let at = self.spans.get(&asked.span).map(|span| span.at.clone());
            let Some(At::Running { on, epoch }) = at.filter(|_| self.may_be_moved(asked, roster)) else {
                continue;
            };
            let host = self
                .hosts
                .get(&asked.to)
                .filter(|_| self.spans.get(&asked.span).is_some_and(|span| span.may_try(&asked.to, now)));
            if on != asked.to && host.is_some_and(|host| host.may_take(self.limits.per_node, now)) {
                self.set(&asked.span, At::Moving { on, epoch, to: asked.to.clone() }, now);
            }
        }
    }

    /// A node that is closed, or that may not have it, does not get it, whoever asks.
    fn may_be_moved(&self, asked: &AskedMove, roster: &RosterView) -> bool {
        let to = roster.get(&asked.to);
        let may = to.is_some_and(|to| !to.closed && !to.offline && to.satisfies(&self.order.spec));
        may && self.wanted(&asked.span)
    }

    fn note_what_is_asked(&mut self, roster: &RosterView) {
        let is_there = |asked: &AskedMove| {
            let at = self.spans.get(&asked.span).map(|span| &span.at);
            matches!(at, Some(At::Running { on, .. }) if *on == asked.to)
        };
        let left = self.order.asked.iter();
        let left = left.filter(|asked| self.may_be_moved(asked, roster) && !is_there(asked));
        self.asked = left.map(|asked| asked.number).collect();
    }

    /// Gives nodes that are open again their share, a few at a time, while nothing else is going on.
    fn even_out(&mut self, roster: &RosterView, now: Time) {
        let closed = self.hosts.iter().any(|(id, host)| roster.is_closed(id) && !host.running.is_empty());
        if closed || !self.nowhere.is_empty() || self.moving >= self.order.moves {
            return;
        }
        for _ in self.moving..self.order.moves {
            let fullest = self.hosts.iter().max_by_key(|(id, host)| (host.share(), (*id).clone()));
            let Some((_, host)) = fullest else { return };
            let movable = host.running.iter().find(|name| !self.failing.contains(*name));
            let Some(name) = movable.cloned() else { return };
            let least = self.destination(roster, &name, now);
            let lower = least.and_then(|to| self.hosts.get(&to)).map(|least| least.share());
            let uneven = lower.is_some_and(|lower| host.share() >= lower + UNEVEN_FROM);
            if !uneven || !self.start_move(roster, &name, now) {
                return;
            }
        }
    }

    fn clean(&mut self, now: Time) {
        match (self.swept, self.sweep) {
            (true, _) => self.phase = Phase::Cleaned,
            (false, Chore::Idle) => self.sweep = Chore::Due { at: now, failures: 0 },
            (false, Chore::Due { .. } | Chore::UnderWay { .. }) => {}
        }
    }

    /// Looks at the source and sweeps, when they are due.
    pub(super) fn do_chores(&mut self, now: Time) {
        let removing = self.order.state == FeedState::Removing;
        if let Chore::Due { at, failures } = self.look
            && at <= now
            && !removing
        {
            self.look = Chore::UnderWay { failures };
            self.out.push(Output::Look);
        }
        let nothing_to_keep = self.order.spans.names.is_empty() && self.spans.is_empty();
        if nothing_to_keep && !removing {
            // To keep nothing is what is asked when a feed goes; one that has no spans has not gone.
            self.sweep = Chore::Idle;
        }
        if let Chore::Due { at, failures } = self.sweep
            && at <= now
        {
            let gone = removing && self.spans.is_empty();
            let keep = match gone {
                true => Vec::new(),
                false => {
                    let all = self.order.spans.names.iter().chain(self.spans.keys());
                    let all: std::collections::BTreeSet<&SpanName> = all.collect();
                    all.into_iter().cloned().collect()
                }
            };
            // To keep nothing means that the feed is to leave nothing: one whose spans are not known yet, or
            // that has none at the moment, is not swept.
            if gone || !keep.is_empty() {
                self.sweep = Chore::UnderWay { failures };
                self.out.push(Output::Sweep { keep });
            } else {
                self.sweep = Chore::Idle;
            }
        }
    }

    pub fn looked(&mut self, result: Result<Looked, TaskFailure>, now: Time) {
        let Chore::UnderWay { failures } = self.look else { return };
        match result {
            Ok(looked) => {
                self.look = Chore::Due { at: now + LOOK_EVERY, failures: 0 };
                let marked = self.looked.as_ref().and_then(|before| before.mark.as_ref());
                if looked.mark.is_some() && looked.mark.as_ref() != marked {
                    self.hosts.ask_all(now);
                }
                (self.looked, self.look_trouble) = (Some(looked), None);
                self.compare_spans();
            }
            Err(trouble) => {
                self.look = Chore::Due { at: now + chore_pause(failures), failures: failures + 1 };
                self.look_trouble = Some(trouble);
            }
        }
    }

    pub fn swept(&mut self, result: Result<(), TaskFailure>, now: Time) {
        let Chore::UnderWay { failures } = self.sweep else { return };
        let again = std::mem::take(&mut self.sweep_again);
        match result {
            Ok(()) if again => self.sweep = Chore::Due { at: now, failures: 0 },
            Ok(()) => {
                self.sweep = Chore::Idle;
                self.swept = self.order.state == FeedState::Removing && self.spans.is_empty();
            }
            Err(trouble) => {
                self.sweep = Chore::Due { at: now + chore_pause(failures), failures: failures + 1 };
                if self.order.state == FeedState::Removing {
                    self.look_trouble = Some(trouble);
                }
            }
        }
    }
}

/// The node that is to make it ready.
fn prepared_on(at: &At) -> Option<&NodeId> {
    match at {
        At::Preparing { to } | At::Moving { to, .. } => Some(to),
        At::Unknown | At::Nowhere | At::Starting { .. } | At::Running { .. } | At::Stopping { .. } => None,
    }
}

fn chore_pause(failures: u32) -> Millis {
    Millis((CHORE_RETRY_FIRST.0 << failures.min(8)).min(CHORE_RETRY_MAX.0))
}
