//! Which nodes are closed and who knows it (invariant 7), and who leads while its own node is closed
//! (invariant 9).
//!
//! What a node has acknowledged is taken from the messages themselves: each roster that was sent, as the set of nodes
//! that it calls closed, and the revision in each heartbeat. What it is compared with are the records.

use std::collections::{BTreeMap, BTreeSet};

use checker::closed_nodes;
use model::{NodeId, Term};
use protocol::{
    coordinator::{ConnId, Coordinator},
    message::{DownBody, SetRevision, Up, UpBody, feed::Roster},
};

use crate::world::World;

/// Messages arrive within this, unless they are slow.
const ON_THE_WAY: u64 = 100;
/// Both ways.
const SLOW_ON_THE_WAY: u64 = 6000;

/// The closed nodes of each roster that was ever sent.
pub type Told = BTreeMap<SetRevision, BTreeSet<NodeId>>;

/// One coordinator's nodes, and what they should know.
#[derive(Default)]
pub struct ClosedDesk {
    sessions: BTreeMap<NodeId, Session>,
    /// The closed nodes, if there are feeds, for whose sake nodes are told.
    closed: Option<BTreeSet<NodeId>>,
    /// Since when that is known to be in the store: nobody is told before.
    settled_at: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    conn: ConnId,
    welcomed_at: u64,
    acknowledged: Option<SetRevision>,
    /// Of the message that said so: an older one that comes late takes nothing back.
    seq: u64,
}

impl ClosedDesk {
    pub fn welcomed(&mut self, node: NodeId, conn: ConnId, now: u64) {
        self.sessions.insert(node, Session { conn, welcomed_at: now, acknowledged: None, seq: 0 });
    }

    pub fn heard(&mut self, conn: ConnId, message: &Up) {
        let mut sessions = self.sessions.values_mut();
        if let UpBody::Heartbeat(heartbeat) = &message.body
            && let Some(session) = sessions.find(|session| session.conn == conn && session.seq < message.seq)
        {
            (session.acknowledged, session.seq) = (heartbeat.roster, message.seq);
        }
    }

    pub fn closed(&mut self, conn: ConnId) {
        self.sessions.retain(|_, session| session.conn != conn);
    }

    /// What this life of a node has acknowledged.
    pub fn acknowledged(&self, node: &NodeId, told: &Told) -> Option<BTreeSet<NodeId>> {
        let revision = self.sessions.get(node)?.acknowledged?;
        told.get(&revision).cloned()
    }

    /// A step is through.
    pub fn follow(&mut self, coordinator: &Coordinator, now: u64) {
        let cluster = coordinator.cluster();
        let closed = cluster.feeds().next().map(|_| closed_nodes(cluster));
        if closed != self.closed {
            (self.closed, self.settled_at) = (closed, None);
        }
        if self.settled_at.is_none() && coordinator.unwritten().next().is_none() {
            self.settled_at = Some(now);
        }
    }
}

impl World {
    /// Something comes between a machine and others, or goes; the machine stands still, or goes on.
    pub fn disturb(&mut self, machine: usize) {
        self.machines[machine].disturbed_at = self.now;
    }

    /// A roster is on its way to somebody.
    pub fn note_roster(&mut self, roster: &Roster) {
        if self.told.contains_key(&roster.revision) {
            return;
        }
        let base = if roster.full { Some(BTreeSet::new()) } else { self.told.get(&roster.since).cloned() };
        let Some(mut closed) = base else {
            let (revision, since) = (roster.revision, roster.since);
            return self.fail(7, format!("roster {revision:?} builds on {since:?}, which nobody was sent"));
        };
        for node in &roster.nodes {
            match node.closed {
                true => closed.insert(node.node.clone()),
                false => closed.remove(&node.node),
            };
        }
        self.told.insert(roster.revision, closed);
    }

    /// What goes from a coordinator to a node, as far as it is about who is closed.
    pub fn note_told(&mut self, machine: usize, conn: ConnId, body: &DownBody) {
        match body {
            DownBody::Welcome(_) => {
                let now = self.now;
                let Some(node) = self.conns.get(&conn.0).map(|conn| conn.node.machine) else { return };
                let node = self.machines[node].id.clone();
                if let Some(tenure) = self.tenure_mut(machine) {
                    tenure.desk.welcomed(node, conn, now);
                }
            }
            DownBody::Roster(roster) => self.note_roster(roster),
            DownBody::Answer(_)
            | DownBody::Refused { .. }
            | DownBody::Sets(_)
            | DownBody::Orders(_)
            | DownBody::Relay(_)
            | DownBody::Duty(_)
            | DownBody::Feeds(_)
            | DownBody::Leave => {}
        }
    }

    /// The closed set as a node's daemon knows it, and of which revision.
    fn view_of(&self, machine: usize) -> Option<(SetRevision, BTreeSet<NodeId>)> {
        let view = self.machines[machine].daemon.as_ref()?.node.as_ref()?.roster_view();
        let closed = view.nodes().filter(|node| node.closed).map(|node| node.node.clone());
        Some((view.revision()?, closed.collect()))
    }

    /// A node that its coordinator has reached for a heartbeat knows which nodes are closed.
    pub fn check_knows_closed(&mut self, machine: usize) {
        let net = &self.swarm.net;
        if self.swarm.feeds == 0 || net.loss > 0 || net.reorder > 0 {
            return;
        }
        let Some(id) = self.machines[machine].daemon.as_ref().and_then(|daemon| daemon.conn) else { return };
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.node.open && conn.office.open) else {
            return;
        };
        let (office, term) = (conn.office.machine, conn.term);
        let cut = self.blocked.contains(&(machine, office)) || self.blocked.contains(&(office, machine));
        let stands_still = |at: usize| self.machines[at].paused || self.machines[at].suspended;
        if cut || stands_still(machine) || stands_still(office) {
            return;
        }
        let Some(tenure) = self.tenure(office).filter(|tenure| tenure.term == term) else { return };
        let session = tenure.desk.sessions.get(&self.machines[machine].id);
        let Some(session) = session.filter(|session| session.conn == ConnId(id)) else { return };
        let (Some(closed), Some(settled_at)) = (&tenure.desk.closed, tenure.desk.settled_at) else { return };
        let slow = if net.slow > 0 { SLOW_ON_THE_WAY } else { ON_THE_WAY };
        let [here, there] = [machine, office].map(|at| self.machines[at].disturbed_at);
        let since = settled_at.max(session.welcomed_at).max(here).max(there);
        let patience = self.swarm.timing.heartbeat.0 + slow;
        if self.now <= since + patience || !tenure.holds(self.now) {
            return;
        }
        let view = self.view_of(machine);
        let later = view.as_ref().is_some_and(|(revision, _)| revision.term > term);
        let knows = view.as_ref().is_some_and(|(_, known)| known == closed);
        if !knows && !later {
            let (closed, waited) = (closed.clone(), self.now - since);
            self.fail(
                7,
                format!("m{machine} was reached for {waited} ms: {closed:?} are closed, it knows {view:?}"),
            );
        }
    }

    /// A node takes a dispatcher on, told to by a maintainer that knows of this roster.
    pub fn check_takes_on(&mut self, machine: usize, what: &str, ordered: Option<SetRevision>) {
        let id = self.machines[machine].id.clone();
        let wrong = match (self.view_of(machine), ordered) {
            (None, _) => Some("and knows nothing of who is closed".to_owned()),
            (Some((_, closed)), _) if closed.contains(&id) => Some("and knows itself closed".to_owned()),
            (Some((known, _)), Some(ordered)) if known < ordered => {
                Some(format!("and knows {known:?}; its maintainer knows {ordered:?}"))
            }
            (Some((known, closed)), _) if self.told.get(&known).is_some_and(|told| *told != closed) => {
                let told = self.told.get(&known);
                Some(format!("and believes that {closed:?} are closed; it was told {told:?}"))
            }
            (Some(_), _) => None,
        };
        if let Some(wrong) = wrong {
            self.fail(7, format!("m{machine} takes on {what}, {wrong}"));
        }
    }

    /// Since when this machine could have led, or seen that another can.
    fn undisturbed(&self, machine: usize) -> Option<u64> {
        let here = &self.machines[machine];
        let idle = here.paused || here.suspended || self.store_cut.contains(&machine);
        let candidate = here.daemon.as_ref().and_then(|daemon| daemon.candidate.as_ref());
        candidate.filter(|_| !idle).map(|_| here.disturbed_at.max(here.closed_changed_at))
    }

    /// Records changed: who is closed by them since when.
    pub fn note_closed(&mut self) {
        for machine in 0..self.machines.len() {
            let closed = self.is_closed(machine);
            if closed != self.machines[machine].closed {
                (self.machines[machine].closed, self.machines[machine].closed_changed_at) =
                    (closed, self.now);
            }
        }
    }

    /// A closed node is coordinator only while no open candidate lives; it has a while to notice that one does.
    pub fn check_who_leads(&mut self) {
        let now = self.now;
        let Some(holder) = self.store.holder(now).cloned() else { return };
        let leads = self.tenure(holder.machine).filter(|tenure| tenure.term == holder.term);
        let Some(taken_at) = leads.map(|tenure| tenure.taken_at) else { return };
        if !self.machines[holder.machine].closed {
            return;
        }
        let Some(there) = self.undisturbed(holder.machine) else { return };
        let since = taken_at.max(there).max(self.store.failed_at);
        // It looks once in a lease, and others announce themselves as often.
        let patience = 3 * self.swarm.timing.lease.0 + 1000;
        let others =
            (0..self.machines.len()).filter(|at| *at != holder.machine && !self.machines[*at].closed);
        let other = others
            .filter_map(|at| Some((at, self.undisturbed(at)?)))
            .find(|(_, from)| now > since.max(*from) + patience);
        if let Some((other, _)) = other {
            let leader = holder.machine;
            self.fail(
                9,
                format!(
                    "m{leader} is closed and leads, and m{other} has been there for longer than {patience} ms"
                ),
            );
        }
    }

    /// Somebody takes office: not with its own node closed while an open candidate has been heard of.
    pub fn check_takes_office(&mut self, machine: usize, term: Term) {
        let heard = self.store.presence.iter().filter(|(_, until)| **until > self.now);
        let mut open = heard.map(|(at, _)| *at).filter(|at| *at != machine && !self.machines[*at].closed);
        if let Some(other) = open.next().filter(|_| self.machines[machine].closed) {
            self.fail(9, format!("m{machine} is closed and takes office in term {term}, and m{other} lives"));
        }
    }

    /// While the coordinator's own node is closed no dispatcher is to be moved for a drain's sake.
    pub fn check_rests(&mut self, machine: usize) {
        let Some(tenure) = self.tenure(machine) else { return };
        let granted = tenure.coordinator.moves_granted().find(|(_, moves)| *moves > 0);
        if let Some((feed, moves)) = granted {
            let message = format!("m{machine} is closed and lets {feed} move {moves} dispatchers");
            self.fail(9, message);
        }
    }
}
