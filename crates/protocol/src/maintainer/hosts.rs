//! The nodes as one maintainer sees them: who has answered, how loaded they are, whom to avoid.

use std::collections::{BTreeMap, BTreeSet};

use model::{FeedSpec, Millis, NodeId, ProcessEpoch, SpanName, Time};

use crate::{message::feed::SpanOrder, roster::RosterView};

/// An answered node is asked again this often: what was lost with a stream comes to light.
const ASK_EVERY: Millis = Millis::secs(5);
/// A node that has not answered is asked again after this; it doubles.
const ASK_FIRST: Millis = Millis(200);
const ASK_MAX: Millis = Millis::secs(5);
/// Unanswered that often, it is said to be unreachable.
const SILENT_AFTER_TRIES: u32 = 3;

#[derive(Clone, Debug)]
pub(super) struct Host {
    pub epoch: ProcessEpoch,
    /// The number of the last news; `None`: it has not answered.
    pub heard: Option<u64>,
    /// News of this number were seen and some before them missed: an older inventory, overtaken on its way, does not
    /// know of them.
    pub floor: u64,
    pub ask_at: Time,
    /// Asked that often without an answer from itself.
    pub tries: u32,
    /// Its last answer came by way of the coordinator.
    pub relayed: bool,
    /// Dispatchers of all feeds, as it says.
    pub load: u32,
    /// Spans of this feed that it runs and that stay.
    pub running: BTreeSet<SpanName>,
    /// On their way there.
    pub incoming: u32,
    /// Not a destination before then: it refused, or did not answer.
    pub avoid_until: Time,
    pub orders: Vec<SpanOrder>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    all: BTreeMap<NodeId, Host>,
}

impl Hosts {
    /// Takes over who is there. Returns the nodes of which a life has ended.
    pub fn follow(&mut self, roster: &RosterView, now: Time) -> Vec<NodeId> {
        let gone = self
            .all
            .iter()
            .filter(|(id, host)| roster.get(id).is_none_or(|node| node.offline || node.epoch != host.epoch));
        let gone: Vec<NodeId> = gone.map(|(id, _)| id.clone()).collect();
        for id in &gone {
            self.all.remove(id);
        }
        for node in roster.nodes().filter(|node| !node.offline) {
            self.all.entry(node.node.clone()).or_insert_with(|| Host {
                epoch: node.epoch,
                heard: None,
                floor: 0,
                ask_at: now,
                tries: 0,
                relayed: false,
                load: 0,
                running: BTreeSet::new(),
                incoming: 0,
                avoid_until: Time(0),
                orders: Vec::new(),
            });
        }
        gone
    }

    pub fn get(&self, node: &NodeId) -> Option<&Host> {
        self.all.get(node)
    }

    pub fn get_mut(&mut self, node: &NodeId) -> Option<&mut Host> {
        self.all.get_mut(node)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, &Host)> {
        self.all.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&NodeId, &mut Host)> {
        self.all.iter_mut()
    }

    pub fn all_answered(&self) -> bool {
        !self.all.is_empty() && self.all.values().all(|host| host.heard.is_some())
    }

    /// There is something that all have to know before they are ordered anything.
    pub fn ask_all(&mut self, now: Time) {
        for host in self.all.values_mut().filter(|host| host.heard.is_some()) {
            host.ask_at = now;
        }
    }

    /// The least loaded of those that may take one more of this feed, what is on its way counted.
    pub fn destination(
        &self,
        roster: &RosterView,
        spec: &FeedSpec,
        per_node: u32,
        now: Time,
        may: impl Fn(&NodeId) -> bool,
    ) -> Option<NodeId> {
        let score = |id: &&NodeId| {
            let (share, load) = self.all.get(*id).map_or((0, 0), |host| (host.share(), host.load));
            (share, load, (*id).clone())
        };
        self.open(roster, spec, per_node, now).filter(|id| may(id)).min_by_key(score).cloned()
    }

    /// Those that may take one more.
    pub fn open<'a>(
        &'a self,
        roster: &'a RosterView,
        spec: &'a FeedSpec,
        per_node: u32,
        now: Time,
    ) -> impl Iterator<Item = &'a NodeId> {
        let may = move |id: &NodeId, host: &Host| {
            host.may_take(per_node, now)
                && roster.get(id).is_some_and(|node| !node.closed && node.satisfies(spec))
        };
        self.all.iter().filter(move |(id, host)| may(id, host)).map(|(id, _)| id)
    }

    pub fn next_wake(&self) -> Option<Time> {
        self.all.values().map(|host| host.ask_at).min()
    }
}

impl Host {
    /// Spans of this feed there, what is on its way counted.
    pub fn share(&self) -> u32 {
        self.running.len() as u32 + self.incoming
    }

    pub fn may_take(&self, per_node: u32, now: Time) -> bool {
        self.heard.is_some() && !self.is_silent() && self.incoming < per_node && self.avoid_until <= now
    }

    pub fn is_silent(&self) -> bool {
        self.tries >= SILENT_AFTER_TRIES
    }

    /// It was asked: when to ask again if nothing comes.
    pub fn asked(&mut self, now: Time) {
        let pause = Millis((ASK_FIRST.0 << self.tries.min(8)).min(ASK_MAX.0));
        self.tries = self.tries.saturating_add(1);
        self.ask_at = now + pause;
    }

    /// One that answers by way of the coordinator is known, and still cannot be reached: it is asked on.
    pub fn answered(&mut self, number: u64, load: u32, relayed: bool, now: Time) {
        (self.heard, self.load, self.relayed) = (Some(number), load, relayed);
        if !relayed {
            (self.tries, self.ask_at) = (0, now + ASK_EVERY);
        }
    }
}
