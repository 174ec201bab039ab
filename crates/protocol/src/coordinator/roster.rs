//! Which nodes may host feeds and which are closed: announced to all, with a revision that rises at
//! every change, until each has acknowledged it.

use std::{collections::BTreeMap, sync::Arc};

use model::{Change, Lingering, Millis, Node, NodeId, NodeIx, Term, Time};

use super::{Coordinator, sessions::Session, timers::Timer};
use crate::message::{
    DownBody, Hello, Peer, SetRevision,
    feed::{Roster, RosterNode},
};

/// Changes that close no node are gathered this long: after a fail-over all nodes come back at once.
const GATHERED_FOR: Millis = Millis(100);

#[derive(Clone, Debug)]
pub(super) struct RosterTable {
    revision: SetRevision,
    nodes: BTreeMap<NodeId, RosterNode>,
    /// Changed since nodes were last told.
    changed: BTreeMap<NodeId, RosterNode>,
    told: SetRevision,
    /// A node was closed or opened: that is told at once.
    urgent: bool,
}

impl RosterTable {
    pub fn new(term: Term) -> RosterTable {
        let revision = SetRevision { term, number: 1 };
        RosterTable {
            revision,
            nodes: BTreeMap::new(),
            changed: BTreeMap::new(),
            told: revision,
            urgent: false,
        }
    }

    pub fn revision(&self) -> SetRevision {
        self.revision
    }

    fn put(&mut self, node: RosterNode) -> bool {
        let before = self.nodes.get(&node.node);
        if before == Some(&node) {
            return false;
        }
        self.urgent |= before.is_none_or(|before| before.closed != node.closed);
        self.revision.number += 1;
        self.changed.insert(node.node.clone(), node.clone());
        self.nodes.insert(node.node.clone(), node);
        true
    }

    fn full(&self) -> Arc<Roster> {
        let nodes = self.nodes.values().cloned().collect();
        Arc::new(Roster { revision: self.revision, since: SetRevision::default(), full: true, nodes })
    }

    fn delta(&mut self) -> Option<Arc<Roster>> {
        if self.changed.is_empty() {
            return None;
        }
        let nodes = std::mem::take(&mut self.changed).into_values().collect();
        let delta = Roster { revision: self.revision, since: self.told, full: false, nodes };
        (self.told, self.urgent) = (self.revision, false);
        Some(Arc::new(delta))
    }
}

impl Coordinator {
    /// A node is, or may be, not as it was.
    pub(super) fn roster_follows(&mut self, node: NodeIx, now: Time) {
        let entry = self.cluster.node(node);
        if !entry.rec.roles.worker || entry.rec.foreign {
            return;
        }
        let rpc = self.sessions.get(&node).map(|session| session.rpc.clone()).unwrap_or_default();
        let known = self.roster.nodes.get(&entry.rec.id).map(|node| node.rpc.clone()).unwrap_or_default();
        let changed = self.roster.put(RosterNode {
            node: entry.rec.id.clone(),
            epoch: entry.rec.life_that_counts(),
            // A node that is away for a moment is where it was.
            rpc: if rpc.is_empty() { known } else { rpc },
            closed: entry.is_closed(),
            offline: entry.rec.is_over(),
            labels: entry.rec.labels.clone(),
        });
        if changed && !self.timers.is_set(Timer::Roster) {
            self.timers.set(Timer::Roster, now + GATHERED_FOR);
        }
    }

    /// A life of a node registers. What an earlier one ran counts as running until that is known to be
    /// over: by its own last word, by that of one that holds its lock, or by the end of its lease.
    pub(super) fn lingers(&self, before: Option<&Node>, hello: &Hello, now: Time) -> Option<Lingering> {
        let before = before.filter(|before| !before.is_offline())?;
        if before.life == hello.life || hello.succeeds == Some(before.life) || before.goodbye {
            return before.lingers;
        }
        let ix = self.cluster.node_ix(before.id.as_str());
        let heard = ix.and_then(|ix| self.heard.get(&ix).copied()).unwrap_or(now);
        let until = heard + self.timing.offline_after;
        Some(match before.lingers {
            Some(known) => Lingering { until: known.until.max(until), ..known },
            None => Lingering { epoch: before.process_epoch, until },
        })
    }

    /// Sees to it that an earlier life is given up in time. A new coordinator has heard of nobody: it
    /// waits for as long as for any silent node.
    pub(super) fn watch_lingering(&mut self, node: NodeIx, now: Time, in_office_since: Option<Time>) {
        if let Some(lingers) = self.cluster.node(node).rec.lingers {
            let until = in_office_since.map_or(lingers.until, |since| since + self.timing.offline_after);
            self.timers.set(Timer::Lingers(node), until.max(now));
        }
    }

    pub(super) fn lingers_no_more(&mut self, node: NodeIx, now: Time) {
        let rec = &self.cluster.node(node).rec;
        if rec.lingers.is_some() {
            let next = Node { lingers: None, ..rec.clone() };
            self.timers.clear(Timer::Lingers(node));
            self.change(now, |txn, _| txn.put(Change::Node(next)));
            self.drains_dirty = true;
        }
    }

    /// Passes on what a maintainer and a node that cannot reach each other have to say. Which lives it means
    /// is checked where it arrives, as of any message between nodes.
    pub(super) fn relay(&mut self, from: NodeIx, to: &NodeId, message: Peer) {
        let rec = &self.cluster.node(from).rec;
        let own = message.from == rec.id && message.from_epoch == rec.process_epoch && !rec.foreign;
        // Of one that has been succeeded nothing is passed on.
        let feed = self.cluster.feed(message.feed.as_str());
        let present = feed.is_some_and(|feed| feed.epoch == message.maintainer);
        if let Some(to) = self.cluster.node_ix(to.as_str()).filter(|_| own && present) {
            self.send(to, DownBody::Relay(message));
        }
    }

    /// Tells nodes what changed, if that cannot wait.
    pub(super) fn send_urgent_roster(&mut self, now: Time) {
        if self.roster.urgent {
            self.send_roster(now);
        }
    }

    pub(super) fn send_roster(&mut self, now: Time) {
        self.timers.clear(Timer::Roster);
        // Without feeds nobody asks; with the first of them everybody is told everything.
        if self.cluster.feeds().next().is_none() {
            return;
        }
        let Some(delta) = self.roster.delta() else { return };
        let open: Vec<NodeIx> = self.roster_readers().collect();
        for node in open {
            let sent = self.sessions.get(&node).and_then(|session| session.roster_sent);
            match sent {
                Some(sent) if sent == delta.since => self.send_roster_to(node, delta.clone(), now),
                _ => self.send_all_roster(node, now),
            }
        }
    }

    fn roster_readers(&self) -> impl Iterator<Item = NodeIx> {
        let open = self.sessions.iter().filter(|(ix, session)| {
            let rec = &self.cluster.node(**ix).rec;
            session.is_open() && rec.roles.worker && !rec.foreign
        });
        open.map(|(ix, _)| *ix)
    }

    pub(super) fn send_all_roster(&mut self, node: NodeIx, now: Time) {
        let all = self.roster.full();
        self.send_roster_to(node, all, now);
    }

    fn send_roster_to(&mut self, node: NodeIx, roster: Arc<Roster>, now: Time) {
        if let Some(session) = self.sessions.get_mut(&node) {
            (session.roster_sent, session.roster_sent_at) = (Some(roster.revision), now);
        }
        self.send(node, DownBody::Roster(roster));
    }

    /// A node that does not acknowledge what it was sent missed something: it is told everything again.
    pub(super) fn catch_up_roster(&mut self, node: NodeIx, now: Time) {
        let Some(session) = self.sessions.get(&node) else { return };
        let patience = Millis(2 * self.timing.heartbeat.0);
        let behind = session.roster != Some(self.roster.told);
        let waited = session.roster_sent.is_none() || now.since(session.roster_sent_at) >= patience;
        let rec = &self.cluster.node(node).rec;
        let asks = rec.roles.worker && !rec.foreign && self.cluster.feeds().next().is_some();
        if behind && waited && asks {
            self.send_all_roster(node, now);
        }
    }

    /// This life of the node knows which nodes are closed: it may be a destination.
    pub fn knows_roster(&self, node: &NodeId) -> bool {
        let session = self.cluster.node_ix(node.as_str()).and_then(|ix| self.sessions.get(&ix));
        let entry = self.cluster.node_by_id(node.as_str());
        entry.is_some_and(|entry| knows_roster(&entry.rec, session, self.roster.revision))
    }
}

/// This life of the node knows which nodes are closed: it may be a destination.
pub(super) fn knows_roster(rec: &Node, session: Option<&Session>, revision: SetRevision) -> bool {
    let open = session.filter(|session| session.is_open());
    rec.lingers.is_none() && open.is_some_and(|session| session.roster == Some(revision))
}
