//! Feeds: where their maintainers are, what they are told and what they report.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Change, Checkpoint, Code, EventKind, Feed, FeedName, FeedState, Maintainer, MaintainerEpoch, Millis,
    NodeIx, SpanSet, Time, Txn,
};
use planner::feeds::{self, Budget, Planned, Seen};

use super::{Coordinator, asked_moves::AskedMoves, roster::knows_roster, timers::Timer};
use crate::{
    maintainer::UNEVEN_FROM,
    message::{
        DownBody, FeedOrder, FeedReport, SetRevision,
        feed::{FeedWhat, Maintain, Phase, Stuck},
    },
};

/// Checkpoints are stored at most this often.
const CHECKPOINT_STORED_EVERY: Millis = Millis::secs(10);

/// What is known of a feed beside its record.
#[derive(Clone, Debug, Default)]
pub struct FeedSeen {
    pub report: Option<FeedReport>,
    /// Why its maintainer is not where it should be, and since when.
    pub wait: Option<(Code, String, Time)>,
    /// The highest that any maintainer told in this term. It outlives what a life of its node said.
    told: Option<Checkpoint>,
    order: Option<(MaintainerEpoch, Arc<Maintain>)>,
    /// The most moves in any order that its maintainer may still act on.
    told_moves: u32,
    sent_at: Time,
    stored_at: Time,
}

/// What became of moves in this term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedMoves {
    /// Maintainers that took over from another, and are at work.
    pub maintainers_done: u64,
    /// Maintainers that another took over from before they were at work.
    pub maintainers_failed: u64,
    pub dispatchers_done: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FeedDesk {
    pub moves: FeedMoves,
    /// Maintainers that take over from another and are not yet at work.
    handed_over: BTreeMap<FeedName, MaintainerEpoch>,
    pub seen: BTreeMap<FeedName, FeedSeen>,
    pub dirty: BTreeSet<FeedName>,
    /// Those whose `wait` says something: there may be many feeds, and few that wait.
    waiting: BTreeSet<FeedName>,
    /// Ordered and not acknowledged.
    unacked: BTreeSet<FeedName>,
    /// Dispatchers that each feed may have on the move.
    pub grants: BTreeMap<FeedName, u32>,
    /// Those whose maintainers have said that some are on the move.
    in_flight: BTreeSet<FeedName>,
    /// Maintainers of which an earlier coordinator decided how many they may have on the move, and that have not
    /// acknowledged what this one says.
    inherited: BTreeMap<FeedName, MaintainerEpoch>,
    pub asked: AskedMoves,
    /// Nodes that are to be left: it is theirs what has to move.
    leaving: BTreeSet<NodeIx>,
    /// Feeds that nodes have unequal shares of: they may move a few while no closed node is emptied.
    uneven: BTreeSet<FeedName>,
}

impl FeedDesk {
    fn note_moving(&mut self, name: &FeedName, moving: u32) {
        match moving > 0 {
            true => drop(self.in_flight.insert(name.clone())),
            false => drop(self.in_flight.remove(name)),
        }
    }
}

impl FeedSeen {
    /// How many dispatchers its maintainer may have on the move, whatever it was told last: as many as some order
    /// allowed that it may not have heard a later one of.
    fn may_move(&self) -> u32 {
        let moving = self.report.as_ref().map_or(0, |report| report.moving);
        let allowed = self.order.as_ref().map_or(0, |(epoch, order)| {
            let heard = |report: &FeedReport| report.epoch == *epoch && report.revision >= order.revision;
            match self.report.as_ref().is_some_and(heard) {
                true => order.moves,
                false => self.told_moves,
            }
        });
        moving.max(allowed)
    }
}

impl Coordinator {
    pub fn feed_seen(&self, feed: &FeedName) -> Option<&FeedSeen> {
        self.feeds.seen.get(feed)
    }

    /// How many dispatchers of each feed may be on the move.
    pub fn moves_granted(&self) -> impl Iterator<Item = (&FeedName, u32)> {
        self.feeds.grants.iter().map(|(feed, moves)| (feed, *moves))
    }

    pub fn feed_moves(&self) -> FeedMoves {
        self.feeds.moves
    }

    pub(super) fn plan_feeds(&mut self, now: Time) {
        self.allot_moves();
        if self.feeds.dirty.is_empty() {
            return;
        }
        // Nobody is a destination before it was told who is closed.
        self.send_roster(now);
        let dirty = std::mem::take(&mut self.feeds.dirty);
        let (sessions, revision, seen_of) = (&self.sessions, self.roster.revision(), &self.feeds.seen);
        let phase = |feed: &Feed| {
            let epoch = feed.maintainer.as_ref().map(|maintainer| maintainer.epoch);
            let report = seen_of.get(&feed.name).and_then(|seen| seen.report.as_ref());
            report.filter(|report| Some(report.epoch) == epoch).map(|report| report.phase)
        };
        let patience = Millis(2 * self.timing.heartbeat.0);
        let waits_since = |feed: &Feed| {
            let wait = seen_of.get(&feed.name).and_then(|seen| seen.wait.as_ref());
            wait.filter(|(code, _, _)| *code == Code::NoEligibleNode).map_or(now, |(_, _, since)| *since)
        };
        let seen = Seen {
            ready: &|node, rec| knows_roster(rec, sessions.get(&node), revision),
            paused: self.paused_since.is_some(),
            patient_until: &|feed| waits_since(feed) + patience,
            working: &|feed| matches!(phase(feed), Some(Phase::Working | Phase::Cleaned)),
            gave_up: &|feed| phase(feed) == Some(Phase::Quiesced),
        };
        let mut budget = Budget::new(self.feed_limits);
        let epoch = |cluster: &model::Cluster, name: &FeedName| {
            cluster.feed(name.as_str()).and_then(|feed| feed.maintainer.as_ref()).map(|taker| taker.epoch)
        };
        let mut planned: Vec<Planned> = Vec::with_capacity(dirty.len());
        let mut txn = Txn::new(&mut self.cluster, now);
        for name in &dirty {
            let before = epoch(&txn, name);
            planned.push(feeds::plan(&mut txn, name, &seen, &mut budget));
            let after = epoch(&txn, name);
            if let (Some(_), Some(taker)) = (before, after.filter(|_| before != after)) {
                let unfinished = self.feeds.handed_over.insert(name.clone(), taker);
                self.feeds.moves.maintainers_failed += u64::from(unfinished.is_some());
            }
        }
        let made = txn.finish();
        self.changed(made, now);
        for (name, planned) in dirty.into_iter().zip(planned) {
            self.feeds.dirty.remove(&name);
            self.planned_feed(&name, planned, now);
        }
    }

    fn planned_feed(&mut self, name: &FeedName, planned: Planned, now: Time) {
        if self.cluster.feed(name.as_str()).is_none() {
            self.feeds.seen.remove(name);
            self.feeds.waiting.remove(name);
            self.feeds.unacked.remove(name);
            self.feeds.grants.remove(name);
            self.feeds.in_flight.remove(name);
            self.feeds.uneven.remove(name);
            self.feeds.handed_over.remove(name);
            self.feeds.asked.forget(name);
            return;
        }
        if let Some(at) = planned.wake_at {
            self.timers.set_sooner(Timer::Feeds, at);
        }
        let seen = self.feeds.seen.entry(name.clone()).or_default();
        let since = seen.wait.as_ref().map(|(code, _, since)| (*code, *since));
        seen.wait = planned.wait.map(|(code, message)| {
            let since = since.filter(|(before, _)| *before == code).map_or(now, |(_, since)| since);
            (code, message, since)
        });
        match seen.wait.is_some() {
            true => drop(self.feeds.waiting.insert(name.clone())),
            false => drop(self.feeds.waiting.remove(name)),
        }
        self.order_feed(name, now, false);
    }

    /// Feeds that wait for something are looked at again.
    pub(super) fn wake_feeds(&mut self) {
        self.feeds.dirty.extend(self.feeds.waiting.iter().cloned());
    }

    /// Tells the nodes concerned what this feed asks of them.
    fn order_feed(&mut self, name: &FeedName, now: Time, again: bool) {
        let Some(feed) = self.cluster.feed(name.as_str()) else { return };
        let Some(maintainer) = feed.maintainer.clone() else { return };
        let (node, process, order) = match &maintainer.from {
            Some(origin) => {
                let what = FeedWhat::Quiesce;
                (
                    origin.node.clone(),
                    origin.process,
                    FeedOrder { feed: name.clone(), epoch: origin.epoch, what },
                )
            }
            None => {
                let moves = self.feeds.grants.get(name).copied().unwrap_or(0);
                let Some(order) = self.maintain(feed.clone(), &maintainer, moves) else { return };
                let what = FeedWhat::Maintain(order);
                let order = FeedOrder { feed: name.clone(), epoch: maintainer.epoch, what };
                (maintainer.node.clone(), maintainer.process, order)
            }
        };
        let said = self.feeds.seen.get(name).and_then(|seen| seen.report.as_ref());
        let gave_up = said.is_some_and(|r| r.epoch == maintainer.epoch && r.phase == Phase::Quiesced);
        let known = gave_up || self.acknowledged(name, &maintainer);
        let Some(ix) = self.cluster.node_ix(node.as_str()) else { return };
        if self.cluster.node(ix).rec.process_epoch != process {
            // Another life: what it was to do is planned anew.
            return;
        }
        let seen = self.feeds.seen.entry(name.clone()).or_default();
        let just_sent = seen.sent_at == now && !again;
        if known || (just_sent && self.feeds.unacked.contains(name)) {
            if known {
                self.feeds.unacked.remove(name);
            }
            return;
        }
        seen.sent_at = now;
        self.feeds.unacked.insert(name.clone());
        self.send(ix, DownBody::Feeds(vec![order]));
    }

    /// The order for the present maintainer, with a revision that rises when it changes.
    fn maintain(&mut self, feed: Feed, maintainer: &Maintainer, moves: u32) -> Option<Arc<Maintain>> {
        let first = SetRevision { term: self.term, number: 1 };
        let asked = self.feeds.asked.of(&feed.name);
        let seen = self.feeds.seen.entry(feed.name.clone()).or_default();
        let before = seen.order.as_ref().filter(|(epoch, _)| *epoch == maintainer.epoch).map(|(_, o)| o);
        // Its predecessor may have told more than is stored, and what was shown must not go back.
        let said = seen.told;
        let next = Maintain {
            revision: before.map_or(first, |before| before.revision),
            spec: feed.spec,
            state: feed.state,
            spans: feed.spans,
            // A floor for spans nobody knows: it need not follow every stored checkpoint.
            checkpoint: before.map_or_else(|| raised(feed.checkpoint, said), |before| before.checkpoint),
            moves,
            asked,
        };
        let order = match before {
            Some(before) if **before == next => before.clone(),
            Some(before) => {
                let number = before.revision.number + 1;
                Arc::new(Maintain { revision: SetRevision { number, ..before.revision }, ..next })
            }
            None => Arc::new(next),
        };
        seen.told_moves = seen.may_move().max(order.moves);
        seen.order = Some((maintainer.epoch, order.clone()));
        Some(order)
    }

    fn acknowledged(&self, name: &FeedName, maintainer: &Maintainer) -> bool {
        if maintainer.from.is_some() {
            return false;
        }
        let Some(seen) = self.feeds.seen.get(name) else { return false };
        let Some((epoch, order)) = &seen.order else { return false };
        *epoch == maintainer.epoch
            && seen.report.as_ref().is_some_and(|r| r.epoch == *epoch && r.revision >= order.revision)
    }

    /// What a node was told and has not acknowledged is said again, with its heartbeats.
    pub(super) fn catch_up_feeds(&mut self, node: NodeIx, now: Time) {
        let patience = Millis(2 * self.timing.heartbeat.0);
        let id = self.cluster.node(node).rec.id.clone();
        let unacked = &self.feeds.unacked;
        let here: Vec<FeedName> =
            self.cluster.maintainers_on(&id).filter(|name| unacked.contains(*name)).cloned().collect();
        for name in here {
            let waited = self.feeds.seen.get(&name).is_none_or(|seen| now.since(seen.sent_at) >= patience);
            if waited {
                self.order_feed(&name, now, true);
            }
        }
    }

    /// A daemon registered: what concerns it is said anew.
    pub(super) fn feeds_of_new_session(&mut self, node: NodeIx, now: Time) {
        if self.cluster.feeds().next().is_none() {
            return;
        }
        self.send_all_roster(node, now);
        let id = self.cluster.node(node).rec.id.clone();
        let here: Vec<FeedName> = self.cluster.maintainers_on(&id).cloned().collect();
        for name in here {
            if let Some(seen) = self.feeds.seen.get_mut(&name) {
                // Another life has nothing of it; what the one before said is over.
                seen.report = None;
            }
            self.feeds.dirty.insert(name.clone());
            self.order_feed(&name, now, true);
        }
        // What waits for a place may find one.
        self.wake_feeds();
    }

    /// What a heartbeat says of feeds. Returns what is answered.
    pub(super) fn take_feeds(
        &mut self,
        node: NodeIx,
        roster: Option<SetRevision>,
        reports: Vec<FeedReport>,
        dispatchers: Vec<(FeedName, u32)>,
        now: Time,
    ) -> Vec<(FeedName, u64)> {
        let Some(session) = self.sessions.get_mut(&node) else { return Vec::new() };
        let dispatchers: BTreeMap<FeedName, u32> = dispatchers.into_iter().collect();
        let heard = session.roster != roster;
        let counted = session.dispatchers != dispatchers;
        (session.roster, session.dispatchers) = (roster, dispatchers);
        if heard {
            self.wake_feeds();
        }
        if heard || counted {
            let entry = self.cluster.node(node);
            let closed = entry.is_closed();
            self.drains_dirty |= closed;
            if closed {
                self.allot_moves();
            }
        }
        let mut answered = Vec::new();
        for report in reports {
            answered.push((report.feed.clone(), report.number));
            self.take_report(node, report, now);
        }
        if self.cluster.feeds().next().is_some() {
            self.catch_up_roster(node, now);
            self.catch_up_feeds(node, now);
        }
        answered
    }

    /// A maintainer's word on its feed. Whose word counts is in the record.
    pub(super) fn take_report(&mut self, node: NodeIx, report: FeedReport, now: Time) {
        let id = self.cluster.node(node).rec.id.clone();
        let name = report.feed.clone();
        let Some(feed) = self.cluster.feed(name.as_str()).cloned() else {
            return self.forget_maintainer(node, &report);
        };
        let Some(maintainer) = feed.maintainer.clone() else {
            return self.forget_maintainer(node, &report);
        };
        let current = maintainer.node == id && maintainer.epoch == report.epoch && maintainer.from.is_none();
        let origin = maintainer.from.as_ref().is_some_and(|o| o.node == id && o.epoch == report.epoch);
        match (current, origin) {
            (true, _) => self.take_current(node, feed, report, now),
            (false, true) => self.take_origin(feed, maintainer, report, now),
            // Only one that was succeeded and has stopped is told to forget: others are left alone.
            (false, false) if report.epoch <= feed.epoch && !is_named(&feed, &report) => {
                self.forget_maintainer(node, &report);
            }
            (false, false) => {}
        }
    }

    fn forget_maintainer(&mut self, node: NodeIx, report: &FeedReport) {
        let what = FeedWhat::Forget;
        let order = FeedOrder { feed: report.feed.clone(), epoch: report.epoch, what };
        self.send(node, DownBody::Feeds(vec![order]));
    }

    /// The one that is on its way out: its last word counts until it says that it has stopped.
    fn take_origin(&mut self, feed: Feed, maintainer: Maintainer, report: FeedReport, now: Time) {
        if report.phase != Phase::Quiesced {
            return;
        }
        let next = Feed {
            checkpoint: raised(feed.checkpoint, report.checkpoint),
            maintainer: Some(Maintainer { from: None, ..maintainer }),
            ..feed
        };
        let name = next.name.clone();
        self.change(now, |txn, _| txn.put(Change::Feed(next)));
        self.feeds.unacked.remove(&name);
        self.feeds.dirty.insert(name);
    }

    fn take_current(&mut self, node: NodeIx, feed: Feed, report: FeedReport, now: Time) {
        let name = feed.name.clone();
        let seen = self.feeds.seen.entry(name.clone()).or_default();
        let before = seen.report.as_ref().filter(|before| before.epoch == report.epoch);
        if before.is_some_and(|before| before.number > report.number) {
            return;
        }
        let before_stuck = before.map(|before| before.stuck.clone()).unwrap_or_default();
        let phase_changed = before.is_none_or(|before| before.phase != report.phase);
        // What one that was there before this coordinator has moved was told by another.
        let ours = feed.maintainer.as_ref().is_some_and(|taker| taker.since >= self.in_office_since);
        let counted = before.map_or(if ours { 0 } else { report.moved }, |before| before.moved);
        let moved = report.moved - counted.min(report.moved);
        let due = now.since(seen.stored_at) >= CHECKPOINT_STORED_EVERY;
        let mut next = feed.clone();
        let seen_again = |names: &Arc<[_]>| feed.spans.generation > 0 && *names == feed.spans.names;
        if let Some(names) = report.spans.clone().filter(|names| !seen_again(names)) {
            next.spans = SpanSet { generation: feed.spans.generation + 1, names };
        }
        let checkpoint = raised(feed.checkpoint, report.checkpoint);
        if due || report.phase == Phase::Quiesced || next.spans != feed.spans {
            next.checkpoint = checkpoint;
        }
        if next.checkpoint != feed.checkpoint {
            seen.stored_at = now;
        }
        let knows_all = seen
            .order
            .as_ref()
            .is_some_and(|(epoch, order)| *epoch == report.epoch && report.revision >= order.revision);
        let mut done_with = Vec::new();
        if knows_all && report.phase == Phase::Working {
            done_with = self.feeds.asked.left(&name, &report.asked);
            next.asked = self.feeds.asked.of(&name);
        }
        self.drains_dirty |= before_stuck != report.stuck;
        let cleaned = report.phase == Phase::Cleaned && feed.state == FeedState::Removing;
        let said = report.clone();
        seen.told = raised(seen.told, report.checkpoint);
        seen.report = Some(report);
        self.feeds.note_moving(&name, said.moving);
        self.feeds.moves.dispatchers_done += moved;
        if said.phase == Phase::Working && self.feeds.handed_over.get(&name) == Some(&said.epoch) {
            self.feeds.handed_over.remove(&name);
            self.feeds.moves.maintainers_done += 1;
        }
        if cleaned {
            self.change(now, |txn, _| txn.put(Change::FeedGone(name.clone())));
            self.forget_maintainer(node, &said);
        } else if next != feed {
            self.change(now, |txn, _| txn.put(Change::Feed(next)));
        }
        self.done_with_asked(&feed, &done_with, now);
        if moved > 0 {
            let message = format!("{moved} dispatcher{} moved", if moved == 1 { "" } else { "s" });
            let fields = vec![("moved", moved.to_string())];
            self.change(now, |txn, _| {
                txn.tell(EventKind::FeedDispatcherMoved, format!("feed/{name}"), message, fields);
            });
        }
        if self.feeds.unacked.contains(&name) || phase_changed || cleaned {
            self.feeds.dirty.insert(name.clone());
            // Others may wait for this hand-over to end.
            if phase_changed {
                self.wake_feeds();
                self.drains_dirty = true;
                self.timers.set(Timer::Balance, now + super::BALANCE_AFTER);
            }
        }
    }

    /// Maintainers on a node, and what waits for nodes, are looked at again.
    pub(super) fn feeds_follow(&mut self, node: NodeIx) {
        let entry = self.cluster.node(node);
        let id = entry.rec.id.clone();
        match entry.is_draining() || entry.rec.is_closed() {
            true => self.feeds.leaving.insert(node),
            false => self.feeds.leaving.remove(&node),
        };
        let here: Vec<FeedName> = self.cluster.maintainers_on(&id).cloned().collect();
        self.feeds.dirty.extend(here);
        self.wake_feeds();
    }

    /// How many dispatchers a node says it has of each feed. `None`: this life of it has not
    /// acknowledged the present closed set and might be given more, an earlier one may still run, or it
    /// is silent.
    pub fn dispatchers_on(&self, node: NodeIx) -> Option<&BTreeMap<FeedName, u32>> {
        let session = self.sessions.get(&node)?;
        let knows = knows_roster(&self.cluster.node(node).rec, Some(session), self.roster.revision());
        (knows || self.cluster.feeds().next().is_none()).then_some(&session.dispatchers)
    }

    /// What a node said last of its dispatchers, whatever it knew then.
    pub fn dispatchers_last_said(&self, node: NodeIx) -> Option<&BTreeMap<FeedName, u32>> {
        self.sessions.get(&node).map(|session| &session.dispatchers)
    }

    /// For the nodes that are closed, as far as they have said.
    pub(super) fn dispatchers_of_closed(&self) -> BTreeMap<NodeIx, BTreeMap<FeedName, u32>> {
        let none = self.cluster.feeds().next().is_none();
        let counts = self.cluster.nodes_in_drains().filter_map(|(ix, entry)| match self.dispatchers_on(ix) {
            Some(counts) => Some((ix, counts.clone())),
            // Without feeds there is nothing to know; a node that is no worker has none.
            None => (none || !entry.rec.roles.worker).then(|| (ix, BTreeMap::new())),
        });
        counts.collect()
    }

    /// What was decided about feeds before this coordinator took office.
    pub(super) fn inherit_feeds(&mut self, now: Time) {
        for feed in self.cluster.feeds() {
            self.feeds.dirty.insert(feed.name.clone());
            self.feeds.asked.inherit(feed, now);
            if feed.maintainer.is_some() {
                self.feeds.inherited.insert(feed.name.clone(), feed.epoch);
            }
        }
        self.give_up_asked(now);
    }

    /// Every maintainer that moved something at an earlier coordinator's word has heard of this one, or is gone.
    fn knows_what_moves(&mut self) -> bool {
        let (cluster, seen, term) = (&self.cluster, &self.feeds.seen, self.term);
        self.feeds.inherited.retain(|name, epoch| {
            let feed = cluster.feed(name.as_str());
            let Some(maintainer) = feed.and_then(|feed| feed.maintainer.as_ref()) else { return false };
            let report = seen.get(name).and_then(|seen| seen.report.as_ref());
            let heard = report.is_some_and(|r| r.epoch == *epoch && r.revision.term >= term);
            let gone = feeds::is_gone(cluster, &maintainer.node, maintainer.process);
            maintainer.from.is_some() || (maintainer.epoch == *epoch && !heard && !gone)
        });
        self.feeds.inherited.is_empty()
    }

    /// Dispatchers on a node that every node that might take them has failed to make ready, as their maintainer
    /// says.
    pub fn stuck_on(&self, node: &model::NodeId, feed: &FeedName) -> Option<&Stuck> {
        let epoch = self.cluster.feed(feed.as_str())?.epoch;
        let report = self.feeds.seen.get(feed)?.report.as_ref().filter(|report| report.epoch == epoch)?;
        report.stuck.get(node)
    }

    /// For the nodes that are closed.
    pub(super) fn stuck_on_closed(&self) -> BTreeMap<NodeIx, BTreeMap<FeedName, (u32, Code)>> {
        let closed = self.cluster.nodes().filter(|(_, entry)| entry.drain.is_some());
        let stuck = closed.map(|(ix, entry)| {
            let feeds = self.dispatchers_on(ix).into_iter().flatten().map(|(feed, _)| feed);
            let stuck = feeds.filter_map(|feed| {
                let stuck = self.stuck_on(&entry.rec.id, feed)?;
                Some((feed.clone(), (stuck.count, stuck.code)))
            });
            (ix, stuck.collect())
        });
        stuck.collect()
    }

    /// How many dispatchers of each feed have to leave their nodes, and might. What has nowhere to go takes no turn
    /// from the others, and what nobody could make ready only once nothing else has to leave.
    fn wants_to_leave(&self) -> BTreeMap<FeedName, u32> {
        let mut wants: BTreeMap<FeedName, (u32, u32)> = BTreeMap::new();
        for ix in self.feeds.leaving.iter().filter(|_| self.paused_since.is_none()) {
            let id = &self.cluster.node(*ix).rec.id;
            for (feed, count) in self.sessions.get(ix).into_iter().flat_map(|session| &session.dispatchers) {
                let stuck = self.stuck_on(id, feed).map_or(0, |stuck| stuck.count.min(*count));
                let want = wants.entry(feed.clone()).or_default();
                *want = (want.0 + count, want.1 + stuck);
            }
        }
        let feed = |name: &FeedName| self.cluster.feed(name.as_str());
        wants.retain(|name, _| feed(name).is_some_and(|feed| feeds::has_destination(&self.cluster, feed)));
        if wants.values().any(|(count, stuck)| stuck < count) {
            wants.retain(|_, (count, stuck)| stuck < count);
        }
        wants.into_iter().map(|(name, (count, _))| (name, count)).collect()
    }

    /// Splits the moves that are allowed over all among the feeds that have something to move. What was
    /// granted counts until its maintainer has acknowledged less.
    fn allot_moves(&mut self) {
        let mut wants = self.wants_to_leave();
        if wants.is_empty() && self.paused_since.is_none() {
            let few = self.limits.balance_moves;
            wants.extend(self.feeds.uneven.iter().map(|name| (name.clone(), few)));
        }
        if wants.is_empty() && self.feeds.grants.is_empty() {
            return;
        }
        // What may be on the move at an earlier coordinator's word is not known: as much as may be.
        let total = match self.knows_what_moves() {
            true => self.feed_limits.moves_total.saturating_sub(self.feeds.asked.count() as u32),
            false => 0,
        };
        let share = (total / (wants.len() as u32).max(1)).max(1);
        let held = |desk: &FeedDesk, name: &FeedName| desk.seen.get(name).map_or(0, FeedSeen::may_move);
        let effective = |desk: &FeedDesk, name: &FeedName| {
            desk.grants.get(name).copied().unwrap_or(0).max(held(desk, name))
        };
        let moving: BTreeSet<&FeedName> = self.feeds.grants.keys().chain(&self.feeds.in_flight).collect();
        let mut used: u32 = moving.into_iter().map(|name| effective(&self.feeds, name)).sum();
        let idle: Vec<FeedName> =
            self.feeds.grants.keys().filter(|name| !wants.contains_key(*name)).cloned().collect();
        for name in idle {
            if self.feeds.grants.insert(name.clone(), 0) != Some(0) {
                self.feeds.dirty.insert(name);
            } else if held(&self.feeds, &name) == 0 {
                // Its maintainer has heard it, and nothing moves any more.
                self.feeds.grants.remove(&name);
            }
        }
        for (name, want) in wants {
            let has = self.feeds.grants.get(&name).copied().unwrap_or(0);
            let fair = share.min(want.next_power_of_two());
            let more = fair.saturating_sub(has).min(total.saturating_sub(used));
            let next = if fair < has { fair } else { has + more };
            if next != has {
                used += next.saturating_sub(effective(&self.feeds, &name));
                self.feeds.grants.insert(name.clone(), next);
                self.feeds.dirty.insert(name);
            }
        }
    }

    /// Lets feeds give open nodes their share back, as far as their maintainers say that it is unequal.
    pub(super) fn even_out_feeds(&mut self) -> bool {
        let open = self.cluster.nodes().filter(|(_, entry)| entry.may_place());
        let open: Vec<&model::Node> = open.map(|(_, entry)| &entry.rec).collect();
        let is_uneven = |feed: &Feed| {
            let report = self.feeds.seen.get(&feed.name).and_then(|seen| seen.report.as_ref());
            let Some(report) = report.filter(|report| report.epoch == feed.epoch) else { return false };
            let most = report.dispatchers.values().max().copied().unwrap_or(0);
            // Most feeds are even or small: nodes are looked at only where it may matter.
            let may = feed.state == FeedState::Running && most >= UNEVEN_FROM;
            let hosts = open.iter().filter(|node| node.satisfies(&feed.spec.constraints));
            let shares = hosts.map(|node| report.dispatchers.get(&node.id).copied().unwrap_or(0));
            may && shares.min().is_some_and(|least| most >= least + UNEVEN_FROM)
        };
        let uneven = self.cluster.feeds().filter(|feed| is_uneven(feed)).map(|feed| feed.name.clone());
        self.feeds.uneven = uneven.collect();
        self.allot_moves();
        !self.feeds.uneven.is_empty()
    }
}

fn is_named(feed: &Feed, report: &FeedReport) -> bool {
    let maintainer = feed.maintainer.as_ref();
    let origin = maintainer.and_then(|maintainer| maintainer.from.as_ref());
    maintainer.is_some_and(|maintainer| maintainer.epoch == report.epoch)
        || origin.is_some_and(|origin| origin.epoch == report.epoch)
}

fn raised(stored: Option<Checkpoint>, said: Option<Checkpoint>) -> Option<Checkpoint> {
    match (stored, said) {
        (Some(mut stored), Some(said)) => {
            stored.raise(said);
            Some(stored)
        }
        (stored, said) => stored.or(said),
    }
}
