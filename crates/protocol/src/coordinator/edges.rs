//! Edges that leave with their node: what each is told, and which have gone.
//!
//! Level-triggered like orders: what an edge is to do follows from the records, it is told when that
//! changes, on every new stream, and again for as long as its reports say otherwise.

use std::collections::BTreeSet;

use model::{DrainState, Intent, Millis, NodeIx, Time};
use planner::drain::edge_leaves_for;

use super::Coordinator;
use crate::message::{DownBody, Duty};

impl Coordinator {
    /// It has closed its ports and sends nothing to anybody, until it is told to come back.
    pub(super) fn has_withdrawn(&self, node: NodeIx) -> bool {
        let said = self.sessions.get(&node).and_then(|session| session.edge.withdrawal);
        said.is_some_and(|said| said.done && self.leaves_for(node) == Some(said.drain))
    }

    /// For which drain's sake the edge of this node is to be away. That of a disabled node stays as it
    /// was told last.
    fn leaves_for(&self, node: NodeIx) -> Option<u64> {
        match (self.cluster.node(node).rec.intent, self.sessions.get(&node)) {
            (Intent::Disabled, Some(session)) => session.told_or_said(),
            (Intent::Disabled | Intent::Active | Intent::Drained | Intent::Stopping, _) => {
                edge_leaves_for(&self.cluster, node)
            }
        }
    }

    /// Edges that are gone for the sake of a drain that waits for nothing else.
    pub(super) fn withdrawn_edges(&self) -> BTreeSet<(NodeIx, u64)> {
        let unfinished = self.cluster.drains().filter(|drain| drain.is_unfinished());
        let parts = unfinished.flat_map(|drain| drain.nodes.iter().map(move |part| (drain.epoch, part)));
        let leaving =
            parts.filter(|(_, part)| part.state == DrainState::Draining && part.withdrawing_since.is_some());
        let leaving =
            leaving.filter_map(|(epoch, part)| Some((self.cluster.node_ix(part.node.as_str())?, epoch)));
        leaving.filter(|(node, _)| self.has_withdrawn(*node)).collect()
    }

    /// Tells the edges of nodes whose records changed.
    pub(super) fn send_duties(&mut self, now: Time) {
        for node in std::mem::take(&mut self.edges_touched) {
            self.tell_edge(node, now);
        }
    }

    /// Tells an edge what to do, unless it was told or is known to do it.
    pub(super) fn tell_edge(&mut self, node: NodeIx, now: Time) {
        let wanted = self.leaves_for(node);
        let Some(session) = self.sessions.get(&node) else { return };
        if session.told_or_said() != wanted {
            self.send_duty(node, wanted, now);
        }
    }

    /// Its report came: told again if it does otherwise.
    pub(super) fn remind_edge(&mut self, node: NodeIx, now: Time) {
        let entry = self.cluster.node(node);
        if !entry.rec.roles.edge {
            return;
        }
        let Some(session) = self.sessions.get(&node) else { return };
        let wanted = self.leaves_for(node);
        let patience = Millis(2 * self.timing.heartbeat.0);
        let waited = session.duty_sent.is_none() || now.since(session.duty_sent_at) >= patience;
        if session.edge.withdrawal.map(|said| said.drain) != wanted && waited {
            self.send_duty(node, wanted, now);
        }
    }

    fn send_duty(&mut self, node: NodeIx, wanted: Option<u64>, now: Time) {
        let rec = &self.cluster.node(node).rec;
        if !rec.roles.edge || rec.foreign {
            return;
        }
        if let Some(session) = self.sessions.get_mut(&node) {
            (session.duty_sent, session.duty_sent_at) = (Some(wanted), now);
        }
        let duty = match wanted {
            Some(drain) => Duty::Withdraw { drain },
            // Whatever left its set while this edge was not waited for is in none of these.
            None => Duty::Serve { from: self.sets.revision() },
        };
        self.send(node, DownBody::Duty(duty));
    }
}
