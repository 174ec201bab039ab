//! A feed's maintainer: owns its dispatchers, places and moves them, and keeps its checkpoint.
//!
//! It stores nothing. It begins by asking every node what it runs of the feed, and goes on from the
//! answers; what nobody vouches for is left alone until all have answered or their leases have ended.
//!
//! *Invariant:* a span is started only once nobody runs it: its last owner said so, or its lease ended.
//! Once it has quiesced a maintainer says nothing more to any node.

mod hosts;
mod news;
mod plan;
mod report;
mod span;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{Checkpoint, FeedName, FeedState, MaintainerEpoch, Millis, NodeId, SpanEpoch, SpanName, Time};

use crate::{
    dispatchers::TaskFailure,
    message::{
        FeedReport,
        feed::{Maintain, Peer, PeerBody, Phase, SpanOrder, SpanWhat},
    },
    roster::RosterView,
};
use hosts::Hosts;
pub(crate) use plan::UNEVEN_FROM;
use span::{At, Span};

/// The first repetition of an order comes after this; it doubles.
const RETRY_FIRST: Millis = Millis(300);
const RETRY_MAX: Millis = Millis::secs(5);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Dispatchers on their way to one node.
    pub per_node: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// `relayed`: by way of the coordinator.
    Peer { to: NodeId, body: PeerBody, relayed: bool },
    /// Look at the source: which spans are there?
    Look,
    /// Remove what the feed left behind for other spans than these.
    Sweep { keep: Vec<SpanName> },
}

/// What a look at the source showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Sorted.
    pub spans: Vec<SpanName>,
    pub held_back: Option<u64>,
    pub warnings: Vec<String>,
    /// Tells the directories that every node must have from others at the same path.
    pub mark: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chore {
    Idle,
    Due { at: Time, failures: u32 },
    UnderWay { failures: u32 },
}

#[derive(Clone, Debug)]
pub struct Maintainer {
    feed: FeedName,
    epoch: MaintainerEpoch,
    me: NodeId,
    limits: Limits,
    order: Arc<Maintain>,
    phase: Phase,
    hosts: Hosts,
    spans: BTreeMap<SpanName, Span>,
    /// Nobody runs them.
    nowhere: BTreeSet<SpanName>,
    unknown: BTreeSet<SpanName>,
    /// Those that came to where they are and are not wanted there: looked at with the next plan.
    unwanted: BTreeSet<SpanName>,
    /// Those that some node could not make ready, and when such a node is to be asked again.
    failing: BTreeSet<SpanName>,
    failing_until: BTreeSet<Time>,
    moving: u32,
    moved: u64,
    /// Moves that were asked for and are still to be made, by number.
    asked: Vec<u64>,
    /// The lower half of the next span epoch.
    next_start: u32,
    retries: BTreeSet<(Time, SpanName)>,
    look: Chore,
    looked: Option<Looked>,
    /// What was seen there is not what is ordered.
    differs: bool,
    look_trouble: Option<TaskFailure>,
    sweep: Chore,
    /// The one that is under way was asked for before all was known that is to go.
    sweep_again: bool,
    swept: bool,
    checkpoint: Option<Checkpoint>,
    checkpoint_at: Time,
    report: Option<FeedReport>,
    number: u64,
    answered: u64,
    said_at: Time,
    out: Vec<Output>,
}

impl Maintainer {
    pub fn new(
        (feed, epoch, me): (FeedName, MaintainerEpoch, NodeId),
        order: Arc<Maintain>,
        limits: Limits,
        roster: &RosterView,
        now: Time,
    ) -> Maintainer {
        let mut this = Maintainer {
            feed,
            epoch,
            me,
            limits,
            checkpoint: order.checkpoint,
            order,
            phase: Phase::Asking,
            hosts: Hosts::default(),
            spans: BTreeMap::new(),
            nowhere: BTreeSet::new(),
            unknown: BTreeSet::new(),
            unwanted: BTreeSet::new(),
            failing: BTreeSet::new(),
            failing_until: BTreeSet::new(),
            moving: 0,
            moved: 0,
            asked: Vec::new(),
            next_start: 1,
            retries: BTreeSet::new(),
            look: Chore::Due { at: now, failures: 0 },
            looked: None,
            differs: false,
            look_trouble: None,
            sweep: Chore::Idle,
            sweep_again: false,
            swept: false,
            checkpoint_at: Time(0),
            report: None,
            number: 0,
            answered: 0,
            said_at: Time(0),
            out: Vec::new(),
        };
        this.take_spans(now);
        this.roster_changed(roster, now);
        this
    }

    pub fn epoch(&self) -> MaintainerEpoch {
        self.epoch
    }

    /// It may still say something to nodes.
    pub fn acts(&self) -> bool {
        match self.phase {
            Phase::Asking | Phase::Working => true,
            Phase::Quiesced | Phase::Cleaned => false,
        }
    }

    /// It has something to say that others wait for.
    pub fn is_urgent(&self) -> bool {
        let Some(report) = &self.report else { return true };
        let spans = self.differs && self.look_trouble.is_none() && report.spans.is_none();
        (report.phase, report.revision) != (self.phase, self.order.revision) || spans
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// How many dispatchers are on the move, counted anew, for the simulator's checks.
    pub fn moving(&self) -> usize {
        self.spans.values().filter(|span| span.at.is_move()).count()
    }

    /// Where spans are on their way to.
    pub fn destinations(&self) -> impl Iterator<Item = (&SpanName, &NodeId)> {
        self.spans.iter().filter_map(|(name, span)| Some((name, span.at.destination()?)))
    }

    /// Somebody asked for the span to be moved there.
    pub fn is_asked(&self, span: &SpanName, to: &NodeId) -> bool {
        self.order.asked.iter().any(|asked| asked.span == *span && asked.to == *to)
    }

    /// The nodes that might take this span, with how many of this feed each has, those on their way counted.
    pub fn may_take(&self, span: &SpanName, roster: &RosterView, now: Time) -> Vec<(NodeId, usize)> {
        let open = self.hosts.open(roster, &self.order.spec, self.limits.per_node, now);
        let tried = |id: &&NodeId| self.spans.get(span).is_none_or(|span| span.may_try(id, now));
        open.filter(tried).map(|id| (id.clone(), self.share(id))).collect()
    }

    /// How many spans of this feed a node has, those on their way counted anew.
    pub fn share(&self, node: &NodeId) -> usize {
        let there = |span: &&Span| match &span.at {
            At::Running { on, .. } => on == node,
            At::Unknown
            | At::Nowhere
            | At::Preparing { .. }
            | At::Starting { .. }
            | At::Moving { .. }
            | At::Stopping { .. } => span.at.destination() == Some(node),
        };
        self.spans.values().filter(there).count()
    }

    /// The coordinator's order, again or changed.
    pub fn ordered(&mut self, order: &Arc<Maintain>, now: Time) {
        if order.revision <= self.order.revision || self.phase == Phase::Quiesced {
            return;
        }
        if order.spec != self.order.spec {
            if let Some(looked) = &mut self.looked {
                looked.mark = None;
            }
            self.look = Chore::Due { at: now, failures: 0 };
        }
        self.order = order.clone();
        self.take_spans(now);
        let unwanted = self.spans.keys().filter(|name| !self.wanted(name)).cloned();
        self.unwanted = unwanted.collect();
        self.compare_spans();
    }

    /// Whether the source was last seen with other spans than those ordered.
    fn compare_spans(&mut self) {
        let seen = self.looked.as_ref().map(|looked| looked.spans.as_slice());
        let known = &self.order.spans;
        self.differs = seen.is_some_and(|seen| known.generation == 0 || *seen != *known.names);
    }

    /// Spans that are new in the set begin nowhere, or unknown while nodes have not answered.
    fn take_spans(&mut self, now: Time) {
        let names = self.order.spans.names.clone();
        for name in names.iter() {
            if !self.spans.contains_key(name) {
                let at = if self.phase == Phase::Asking { At::Unknown } else { At::Nowhere };
                self.insert(name, at, now);
                let floor = self.next_epoch();
                if let Some(span) = self.spans.get_mut(name).filter(|_| self.phase != Phase::Asking) {
                    span.floor = floor;
                }
            }
        }
    }

    fn insert(&mut self, name: &SpanName, at: At, now: Time) {
        match &at {
            At::Unknown => self.unknown.insert(name.clone()),
            At::Nowhere => self.nowhere.insert(name.clone()),
            At::Preparing { .. }
            | At::Starting { .. }
            | At::Running { .. }
            | At::Moving { .. }
            | At::Stopping { .. } => false,
        };
        self.spans.insert(name.clone(), Span::new(at, now));
        self.note_unwanted(name);
    }

    fn note_unwanted(&mut self, name: &SpanName) {
        if !self.wanted(name) {
            self.unwanted.insert(name.clone());
        }
    }

    /// It stops acting, for good; its dispatchers run on.
    pub fn quiesce(&mut self, now: Time) {
        if self.phase != Phase::Quiesced {
            self.raise_checkpoint(now, true);
            self.phase = Phase::Quiesced;
            self.out.clear();
        }
    }

    pub fn roster_changed(&mut self, roster: &RosterView, now: Time) {
        if self.phase == Phase::Quiesced {
            return;
        }
        for node in self.hosts.follow(roster, now) {
            self.lost(&node, now);
        }
    }

    /// A life of a node has ended, and with it what it ran.
    fn lost(&mut self, node: &NodeId, now: Time) {
        for name in self.failing.clone() {
            // Another life may do better.
            self.succeeded(&name, node);
        }
        let touched: Vec<SpanName> = self
            .spans
            .iter()
            .filter(|(_, span)| span.at.owner() == Some(node) || span.at.destination() == Some(node))
            .map(|(name, _)| name.clone())
            .collect();
        for name in touched {
            let Some(span) = self.spans.get(&name) else { continue };
            let next = match &span.at {
                At::Moving { on, to, .. } if on == node && to != node => At::Preparing { to: to.clone() },
                At::Moving { on, epoch, .. } if on != node => At::Running { on: on.clone(), epoch: *epoch },
                At::Stopping { on, epoch, .. } if on != node => {
                    At::Stopping { on: on.clone(), epoch: *epoch, to: None }
                }
                At::Stopping { to: Some(to), .. } if to != node => At::Preparing { to: to.clone() },
                At::Unknown
                | At::Nowhere
                | At::Preparing { .. }
                | At::Starting { .. }
                | At::Running { .. }
                | At::Moving { .. }
                | At::Stopping { .. } => At::Nowhere,
            };
            self.set(&name, next, now);
        }
    }

    /// The one place where a span changes hands; books and orders follow.
    fn set(&mut self, name: &SpanName, at: At, now: Time) {
        let Some(span) = self.spans.get_mut(name) else { return };
        let before = std::mem::replace(&mut span.at, at);
        let at = span.at.clone();
        (span.tries, span.since) = (0, now);
        if before.owner() != at.owner() {
            span.trouble = None;
        }
        if before.owner() != at.owner() && matches!(at, At::Running { .. }) {
            span.failed.clear();
            self.failing.remove(name);
        }
        if let Some(old) = span.retry_at.take() {
            self.retries.remove(&(old, name.clone()));
        }
        self.book(name, &before, false);
        self.book(name, &at, true);
        self.note_unwanted(name);
        self.order_again(name, now);
    }

    fn book(&mut self, name: &SpanName, at: &At, enters: bool) {
        let set = |set: &mut BTreeSet<SpanName>| match enters {
            true => set.insert(name.clone()),
            false => set.remove(name),
        };
        match at {
            At::Nowhere => set(&mut self.nowhere),
            At::Unknown => set(&mut self.unknown),
            At::Running { on, .. } => self.hosts.get_mut(on).is_some_and(|host| set(&mut host.running)),
            At::Preparing { .. } | At::Starting { .. } | At::Moving { .. } | At::Stopping { .. } => false,
        };
        let step = |count: &mut u32| *count = if enters { *count + 1 } else { count.saturating_sub(1) };
        if let Some(host) = at.destination().and_then(|to| self.hosts.get_mut(to)) {
            step(&mut host.incoming);
        }
        if at.is_move() {
            step(&mut self.moving);
        }
    }

    /// Says what the span's state asks for, and sets the time to say it again.
    fn order_again(&mut self, name: &SpanName, now: Time) {
        let Some(span) = self.spans.get_mut(name) else { return };
        let Some((to, what)) = span.at.order(span.checkpoint) else { return };
        let Some(host) = self.hosts.get_mut(to) else { return };
        host.orders.push(SpanOrder { span: name.clone(), what });
        let pause = Millis((RETRY_FIRST.0 << span.tries.min(8)).min(RETRY_MAX.0));
        let at = now + pause;
        span.retry_at = Some(at);
        self.retries.insert((at, name.clone()));
    }

    fn release(&mut self, node: &NodeId, name: &SpanName) {
        if let Some(host) = self.hosts.get_mut(node) {
            host.orders.push(SpanOrder { span: name.clone(), what: SpanWhat::Release });
        }
    }

    fn next_epoch(&mut self) -> SpanEpoch {
        let epoch = SpanEpoch((self.epoch.0 << 32) | u64::from(self.next_start));
        self.next_start += 1;
        epoch
    }

    /// A node's word. Which lives it means was checked.
    pub fn heard(&mut self, peer: &Peer, relayed: bool, now: Time) {
        if peer.maintainer != self.epoch || self.phase == Phase::Quiesced {
            return;
        }
        let Some(host) = self.hosts.get_mut(&peer.from) else { return };
        if host.epoch != peer.from_epoch {
            return;
        }
        match &peer.body {
            PeerBody::Inventory { number, load, held } => {
                // One that was overtaken by later news says nothing.
                if *number >= host.heard.unwrap_or(host.floor) {
                    host.answered(*number, *load, relayed, now);
                    self.inventory(&peer.from, held, now);
                }
            }
            PeerBody::Same { number, load } => {
                if host.heard == Some(*number) {
                    host.answered(*number, *load, relayed, now);
                }
            }
            PeerBody::News { number, load, held } => match host.heard {
                Some(heard) if *number == heard + 1 => {
                    host.answered(*number, *load, relayed, now);
                    for held in held {
                        self.learn(&peer.from, held, now);
                    }
                }
                // Some were missed: everything is asked for.
                Some(heard) if *number > heard + 1 => {
                    (host.heard, host.floor, host.ask_at) = (None, *number, now);
                }
                Some(_) | None => {}
            },
            PeerBody::Progress { spans } => {
                for (name, epoch, checkpoint) in spans {
                    self.progressed(&peer.from, name, *epoch, *checkpoint);
                }
            }
            PeerBody::Ask { .. } | PeerBody::Orders { .. } => {}
        }
    }

    fn wanted(&self, name: &SpanName) -> bool {
        self.order.state == FeedState::Running && self.is_in_set(name)
    }

    fn is_in_set(&self, name: &SpanName) -> bool {
        self.order.spans.names.binary_search(name).is_ok()
    }

    /// What the state and the time bring about, and everything that is to be said.
    pub fn advance(&mut self, roster: &RosterView, now: Time) -> Vec<Output> {
        if self.acts() {
            self.retry(now);
            self.plan(roster, now);
            self.do_chores(now);
            self.ask(now);
            self.send_orders(roster);
        }
        std::mem::take(&mut self.out)
    }

    /// One that does not answer is asked by way of the coordinator as well: all of it, for its checkpoints.
    fn ask(&mut self, now: Time) {
        let mark = self.looked.as_ref().and_then(|looked| looked.mark.as_ref());
        let ask = |heard| PeerBody::Ask { spec: self.order.spec.clone(), mark: mark.cloned(), heard };
        for (id, host) in self.hosts.iter_mut().filter(|(_, host)| host.ask_at <= now) {
            if host.is_silent() {
                self.out.push(Output::Peer { to: id.clone(), body: ask(None), relayed: true });
            }
            host.asked(now);
            self.out.push(Output::Peer { to: id.clone(), body: ask(host.heard), relayed: false });
        }
    }

    fn send_orders(&mut self, roster: &RosterView) {
        let Some(revision) = roster.revision() else { return };
        for (id, host) in self.hosts.iter_mut() {
            // One that has not answered does not know this maintainer.
            if host.orders.is_empty() || host.heard.is_none() {
                continue;
            }
            let orders = std::mem::take(&mut host.orders);
            let body = PeerBody::Orders { roster: revision, orders };
            self.out.push(Output::Peer { to: id.clone(), body, relayed: host.is_silent() });
        }
    }

    pub fn next_wake(&self) -> Option<Time> {
        if !self.acts() {
            return None;
        }
        let chore = |chore: &Chore| match chore {
            Chore::Due { at, .. } => Some(*at),
            Chore::Idle | Chore::UnderWay { .. } => None,
        };
        let retry = self.retries.first().map(|(at, _)| *at);
        let avoided = self.next_avoided().into_iter().chain(self.failing_until.first().copied()).min();
        let look = chore(&self.look).filter(|_| self.order.state != FeedState::Removing);
        [retry, self.hosts.next_wake(), look, chore(&self.sweep), avoided].into_iter().flatten().min()
    }
}
