//! Feeds on a node: its maintainers, its dispatchers, and what goes between nodes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use model::{FeedName, FeedSpec, MaintainerEpoch, Millis, NodeId, ProcessEpoch, SpanName, Time};

use super::{Node, Output};
use crate::{
    dispatchers::{self, Dispatchers, Task, TaskFailure, TaskNews},
    maintainer::{self, Looked, Maintainer},
    message::{
        FeedOrder, FeedReport, Roster, SetRevision, UpBody,
        feed::{FeedWhat, Peer, PeerBody, Phase},
    },
    roster::RosterView,
};

/// Before the coordinator says otherwise.
const MOVES_PER_NODE_DEFAULT: u32 = 64;
/// Reports that are worth a heartbeat of their own come at most this often.
const HURRY_PAUSE: Millis = Millis(50);

/// What the shell does for a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedWork {
    /// To another node; the shell keeps one stream per pair.
    Send { to: NodeId, rpc: String, message: Peer },
    Task {
        feed: FeedName,
        span: SpanName,
        spec: Arc<FeedSpec>,
        /// What the feed's directories here are compared with.
        mark: Option<String>,
        task: Task,
    },
    /// Look at the source; answered with [`FeedNews::Looked`].
    Look { feed: FeedName, epoch: MaintainerEpoch, spec: Arc<FeedSpec> },
    /// Remove what was left behind; answered with [`FeedNews::Swept`].
    Sweep { feed: FeedName, epoch: MaintainerEpoch, spec: Arc<FeedSpec>, keep: Vec<SpanName> },
}

/// What the shell says about feeds.
#[derive(Clone, Debug)]
pub enum FeedNews {
    Heard(Peer),
    Task(TaskNews),
    Looked { feed: FeedName, epoch: MaintainerEpoch, result: Result<Looked, TaskFailure> },
    Swept { feed: FeedName, epoch: MaintainerEpoch, result: Result<(), TaskFailure> },
}

/// What feeds on this node want done and said.
#[derive(Debug, Default)]
pub(super) struct Mail {
    work: Vec<FeedWork>,
    /// From this node to itself.
    own: VecDeque<Peer>,
    /// To nodes that cannot be reached, by way of the coordinator.
    relayed: Vec<(NodeId, Peer)>,
}

/// A maintainer, or what is left to say of one.
#[derive(Clone, Debug)]
struct Kept {
    maintainer: Maintainer,
    spec: Arc<FeedSpec>,
}

#[derive(Clone, Debug)]
pub(super) struct Feeds {
    me: NodeId,
    /// Of this life, once it was granted; a stream that breaks does not end it.
    epoch: Option<ProcessEpoch>,
    roster: RosterView,
    dispatchers: Dispatchers,
    maintainers: BTreeMap<FeedName, Kept>,
    /// Asked to quiesce what it does not have: it says so until it is answered.
    never_here: BTreeMap<FeedName, FeedReport>,
    moves_per_node: u32,
    told: Vec<(FeedName, u32)>,
    hurried_at: Time,
}

impl Feeds {
    pub fn new(me: NodeId) -> Feeds {
        Feeds {
            dispatchers: Dispatchers::new(me.clone(), MOVES_PER_NODE_DEFAULT),
            me,
            epoch: None,
            roster: RosterView::default(),
            maintainers: BTreeMap::new(),
            never_here: BTreeMap::new(),
            moves_per_node: MOVES_PER_NODE_DEFAULT,
            told: Vec::new(),
            hurried_at: Time(0),
        }
    }

    /// If another daemon had this id meanwhile, the coordinator counts what ran here as over before long:
    /// it stops as at the fence.
    pub fn welcomed(&mut self, epoch: ProcessEpoch, moves_per_node: u32, abort_at: Time, now: Time) {
        if self.epoch.is_some_and(|before| before != epoch) {
            self.fence(abort_at, now);
        }
        self.epoch = Some(epoch);
        self.moves_per_node = moves_per_node.max(1);
        self.dispatchers.set_limit(moves_per_node);
        for kept in self.maintainers.values_mut() {
            kept.maintainer.forget_answers();
        }
    }

    pub fn leased(&mut self) {
        self.dispatchers.leased();
    }

    /// Dispatchers stop, and maintainers with them: others take over before long.
    pub fn fence(&mut self, abort_at: Time, now: Time) {
        self.dispatchers.fence(abort_at);
        for kept in self.maintainers.values_mut() {
            kept.maintainer.quiesce(now);
        }
    }

    pub fn stop(&mut self, now: Time) {
        self.dispatchers.stop_all(now);
        for kept in self.maintainers.values_mut() {
            kept.maintainer.quiesce(now);
        }
    }

    pub fn is_quiet(&self) -> bool {
        self.dispatchers.live() == 0
    }

    /// Nothing of any feed would be missed.
    pub fn is_empty(&self) -> bool {
        self.is_quiet() && !self.maintainers.values().any(|kept| kept.maintainer.acts())
    }

    pub fn take_roster(&mut self, roster: &Roster, now: Time) -> bool {
        if !self.roster.take(roster) {
            return false;
        }
        self.dispatchers.roster_changed(&self.roster);
        for kept in self.maintainers.values_mut() {
            kept.maintainer.roster_changed(&self.roster, now);
        }
        true
    }

    pub fn roster(&self) -> Option<SetRevision> {
        self.roster.revision()
    }

    pub fn take_orders(&mut self, orders: Vec<FeedOrder>, now: Time) {
        for FeedOrder { feed, epoch, what } in orders {
            let known = self.maintainers.get_mut(&feed);
            match (what, known) {
                (FeedWhat::Maintain(order), Some(kept)) if kept.maintainer.epoch() == epoch => {
                    kept.maintainer.ordered(&order, now);
                    kept.spec = order.spec.clone();
                }
                (FeedWhat::Maintain(_), Some(kept)) if kept.maintainer.epoch() > epoch => {}
                // It may have been given to another since this was sent; if not, it is said again.
                (FeedWhat::Maintain(_), _) if self.dispatchers.is_fenced() => {}
                (FeedWhat::Maintain(order), _) => {
                    let limits = maintainer::Limits { per_node: self.moves_per_node };
                    let id = (feed.clone(), epoch, self.me.clone());
                    let spec = order.spec.clone();
                    let maintainer = Maintainer::new(id, order, limits, &self.roster, now);
                    self.never_here.remove(&feed);
                    self.maintainers.insert(feed, Kept { maintainer, spec });
                }
                (FeedWhat::Quiesce, Some(kept)) if kept.maintainer.epoch() <= epoch => {
                    kept.maintainer.quiesce(now);
                    if kept.maintainer.epoch() < epoch {
                        self.was_never_here(feed, epoch);
                    }
                }
                (FeedWhat::Quiesce, Some(_)) => {}
                (FeedWhat::Quiesce, None) => self.was_never_here(feed, epoch),
                (FeedWhat::Forget, known) => {
                    if known.is_some_and(|kept| kept.maintainer.epoch() <= epoch) {
                        self.maintainers.remove(&feed);
                    }
                    self.never_here.remove(&feed);
                }
            }
        }
    }

    fn was_never_here(&mut self, feed: FeedName, epoch: MaintainerEpoch) {
        let report = FeedReport {
            feed: feed.clone(),
            epoch,
            number: 1,
            revision: SetRevision::default(),
            phase: Phase::Quiesced,
            spans: None,
            checkpoint: None,
            dispatchers: BTreeMap::new(),
            moving: 0,
            moved: 0,
            absent: 0,
            held_back: None,
            asked: Vec::new(),
            troubles: Vec::new(),
            stuck: BTreeMap::new(),
        };
        self.never_here.insert(feed, report);
    }

    pub fn heard(&mut self, news: FeedNews, now: Time) {
        match news {
            FeedNews::Heard(peer) => self.heard_from(&peer, false, now),
            FeedNews::Task(news) => self.dispatchers.task(news, now),
            FeedNews::Looked { feed, epoch, result } => {
                if let Some(maintainer) = self.of(&feed, epoch) {
                    maintainer.looked(result, now);
                }
            }
            FeedNews::Swept { feed, epoch, result } => {
                if let Some(maintainer) = self.of(&feed, epoch) {
                    maintainer.swept(result, now);
                }
            }
        }
    }

    fn of(&mut self, feed: &FeedName, epoch: MaintainerEpoch) -> Option<&mut Maintainer> {
        let kept = self.maintainers.get_mut(feed).map(|kept| &mut kept.maintainer);
        kept.filter(|maintainer| maintainer.epoch() == epoch)
    }

    /// `relayed`: it came by way of the coordinator.
    pub fn heard_from(&mut self, peer: &Peer, relayed: bool, now: Time) {
        if !dispatchers::is_current(peer, self.epoch, &self.roster) {
            return;
        }
        match &peer.body {
            PeerBody::Ask { .. } | PeerBody::Orders { .. } => {
                self.dispatchers.heard(peer, relayed, &self.roster, now);
            }
            PeerBody::Inventory { .. }
            | PeerBody::Same { .. }
            | PeerBody::News { .. }
            | PeerBody::Progress { .. } => {
                if let Some(maintainer) = self.of(&peer.feed, peer.maintainer) {
                    maintainer.heard(peer, relayed, now);
                }
            }
        }
    }

    /// What follows, until nothing more does: a maintainer talks to its own node without a stream.
    pub fn advance(&mut self, now: Time) -> Mail {
        let mut mail = Mail::default();
        loop {
            self.advance_maintainers(now, &mut mail);
            for output in self.dispatchers.advance(now) {
                match output {
                    dispatchers::Output::Peer { to, feed, maintainer, body, relayed } => {
                        self.post(to, (feed, maintainer, body), relayed, &mut mail);
                    }
                    dispatchers::Output::Task { feed, span, spec, mark, task } => {
                        mail.work.push(FeedWork::Task { feed, span, spec, mark, task });
                    }
                }
            }
            if mail.own.is_empty() {
                return mail;
            }
            while let Some(peer) = mail.own.pop_front() {
                self.heard_from(&peer, false, now);
            }
        }
    }

    fn advance_maintainers(&mut self, now: Time, mail: &mut Mail) {
        let mut said = Vec::new();
        for (feed, kept) in &mut self.maintainers {
            let epoch = kept.maintainer.epoch();
            for output in kept.maintainer.advance(&self.roster, now) {
                match output {
                    maintainer::Output::Peer { to, body, relayed } => {
                        said.push((to, (feed.clone(), epoch, body), relayed));
                    }
                    maintainer::Output::Look => {
                        let (feed, spec) = (feed.clone(), kept.spec.clone());
                        mail.work.push(FeedWork::Look { feed, epoch, spec });
                    }
                    maintainer::Output::Sweep { keep } => {
                        let (feed, spec) = (feed.clone(), kept.spec.clone());
                        mail.work.push(FeedWork::Sweep { feed, epoch, spec, keep });
                    }
                }
            }
        }
        for (to, what, relayed) in said {
            self.post(to, what, relayed, mail);
        }
    }

    fn post(
        &self,
        to: NodeId,
        (feed, maintainer, body): (FeedName, MaintainerEpoch, PeerBody),
        relayed: bool,
        mail: &mut Mail,
    ) {
        let Some(from_epoch) = self.epoch else { return };
        let (Some(to_epoch), Some(node)) = (self.roster.epoch_of(&to), self.roster.get(&to)) else { return };
        let to_epoch = if to == self.me { from_epoch } else { to_epoch };
        let message = Peer { from: self.me.clone(), from_epoch, to_epoch, feed, maintainer, body };
        match to == self.me {
            true => mail.own.push_back(message),
            false if relayed => mail.relayed.push((to, message)),
            false if node.rpc.is_empty() => {}
            false => mail.work.push(FeedWork::Send { rpc: node.rpc.clone(), to, message }),
        }
    }

    /// What the next heartbeat says of feeds.
    pub fn reports(&mut self, now: Time) -> Vec<FeedReport> {
        let reports =
            self.maintainers.values_mut().filter_map(|kept| kept.maintainer.report(&self.roster, now));
        reports.chain(self.never_here.values().cloned()).collect()
    }

    pub fn answered(&mut self, feed: &FeedName, number: u64) {
        if let Some(kept) = self.maintainers.get_mut(feed) {
            kept.maintainer.answered(number);
        }
    }

    pub fn inventory(&mut self) -> Vec<(FeedName, u32)> {
        self.told = self.dispatchers.inventory();
        self.told.clone()
    }

    /// Something that others wait for is worth a heartbeat of its own.
    pub fn is_urgent(&mut self, now: Time) -> bool {
        let emptied =
            self.roster.is_closed(&self.me) && self.dispatchers.live() == 0 && !self.told.is_empty();
        let said = self.maintainers.values().any(|kept| kept.maintainer.is_urgent());
        let due = now.since(self.hurried_at) >= HURRY_PAUSE;
        if (emptied || said || !self.never_here.is_empty()) && due {
            self.hurried_at = now;
            return true;
        }
        false
    }

    pub fn next_wake(&self) -> Option<Time> {
        let maintainers = self.maintainers.values().filter_map(|kept| kept.maintainer.next_wake());
        let urgent = self.maintainers.values().any(|kept| kept.maintainer.is_urgent());
        let hurry = urgent.then(|| self.hurried_at + HURRY_PAUSE);
        maintainers.chain(self.dispatchers.next_wake()).chain(hurry).min()
    }

    pub fn dispatchers(&self) -> &Dispatchers {
        &self.dispatchers
    }

    pub fn maintainers(&self) -> impl Iterator<Item = (&FeedName, &Maintainer)> {
        self.maintainers.iter().map(|(feed, kept)| (feed, &kept.maintainer))
    }
}

impl Node {
    pub(super) fn advance_feeds(&mut self, now: Time) {
        let Mail { work, relayed, own: _ } = self.feeds.advance(now);
        self.out.extend(work.into_iter().map(Output::Feed));
        if self.epoch.is_some() {
            for (to, message) in relayed {
                self.send(UpBody::Relay { to, message });
            }
        }
        if self.feeds.is_urgent(now) {
            self.hurry(now);
        }
    }

    pub fn dispatchers(&self) -> &Dispatchers {
        self.feeds.dispatchers()
    }

    /// The coordinator has named this node among those that may host feeds.
    pub fn knows(&self, node: &NodeId) -> bool {
        self.feeds.roster.get(node).is_some()
    }

    /// The closed set as this node knows it.
    pub fn roster_view(&self) -> &RosterView {
        &self.feeds.roster
    }

    /// The maintainers here, for the shell and the simulator's checks.
    pub fn maintainers(&self) -> impl Iterator<Item = (&FeedName, &Maintainer)> {
        self.feeds.maintainers()
    }
}
