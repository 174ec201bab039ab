//! Which instances take connections: the backend sets that edges are sent and confirm.

use std::collections::BTreeMap;

use model::{Cluster, Instance, InstanceId, NodeIx, ServiceIx, Term, Time};

use super::{Coordinator, Output, sessions::Session};
use crate::message::{Backend, BackendSet, DownBody, SetRevision, Sets};

/// The sets of all services behind the edge, with the revision that rises at every change.
#[derive(Clone, Debug)]
pub(super) struct SetTable {
    revision: SetRevision,
    sets: BTreeMap<ServiceIx, BackendSet>,
    /// What of each service its set was made from: a set is as long as its service is large.
    made_from: BTreeMap<ServiceIx, u64>,
    /// At which revision an instance left its set.
    left: BTreeMap<InstanceId, SetRevision>,
    /// Changed since edges were last told.
    changed: BTreeMap<ServiceIx, BackendSet>,
    told: SetRevision,
}

impl SetTable {
    pub fn new(term: Term) -> SetTable {
        let revision = SetRevision { term, number: 1 };
        SetTable {
            revision,
            sets: BTreeMap::new(),
            made_from: BTreeMap::new(),
            left: BTreeMap::new(),
            changed: BTreeMap::new(),
            told: revision,
        }
    }

    pub fn get(&self, service: ServiceIx) -> Option<&BackendSet> {
        self.sets.get(&service)
    }

    pub fn revision(&self) -> SetRevision {
        self.revision
    }

    pub fn forget(&mut self, id: InstanceId) {
        self.left.remove(&id);
    }

    /// The revision that every edge must serve before this instance may be stopped. `None`: no edge
    /// ever sent anything there. An instance that left its set in an earlier term is in no set of this
    /// one: serving any of this term's sets will do.
    pub fn must_serve(&self, cluster: &Cluster, instance: &Instance) -> Option<SetRevision> {
        if let Some(left) = self.left.get(&instance.id) {
            return Some(*left);
        }
        let entry = cluster.service(instance.service)?;
        let behind_edge = entry.rec.releases.values().any(|spec| spec.edge.is_some());
        behind_edge.then_some(SetRevision { term: self.revision.term, number: 1 })
    }

    fn put(&mut self, service: ServiceIx, set: Option<BackendSet>) {
        if self.sets.get(&service) == set.as_ref() {
            return;
        }
        self.revision.number += 1;
        let before = match &set {
            Some(set) => self.sets.insert(service, set.clone()),
            None => self.sets.remove(&service),
        };
        let stays = |id| set.as_ref().is_some_and(|set| set.backends.iter().any(|b| b.instance == id));
        for backend in before.iter().flat_map(|set| &set.backends) {
            if !stays(backend.instance) {
                self.left.insert(backend.instance, self.revision);
            }
        }
        for backend in set.iter().flat_map(|set| &set.backends) {
            self.left.remove(&backend.instance);
        }
        let told = set.or_else(|| before.map(|set| BackendSet { listen: None, backends: Vec::new(), ..set }));
        self.changed.extend(told.map(|set| (service, set)));
    }

    fn full(&self) -> Sets {
        let sets = self.sets.values().cloned().collect();
        Sets { revision: self.revision, since: SetRevision::default(), full: true, sets }
    }

    fn delta(&mut self) -> Option<Sets> {
        if self.changed.is_empty() {
            return None;
        }
        let sets = std::mem::take(&mut self.changed).into_values().collect();
        let delta = Sets { revision: self.revision, since: self.told, full: false, sets };
        self.told = self.revision;
        Some(delta)
    }
}

impl Coordinator {
    /// What edges should send to for this service, from its instances as they are.
    pub(super) fn recompute_set(&mut self, service: ServiceIx) {
        match self.cluster.service(service).map(|entry| entry.served) {
            Some(served) if self.sets.made_from.insert(service, served) == Some(served) => {
                debug_assert_eq!(self.sets.get(service).cloned(), self.backend_set(service));
                return;
            }
            Some(_) => {}
            None => {
                self.sets.made_from.remove(&service);
            }
        }
        let set = self.backend_set(service);
        self.sets.put(service, set);
    }

    fn backend_set(&self, service: ServiceIx) -> Option<BackendSet> {
        let rec = &self.cluster.service(service)?.rec;
        let spec = rec.spec_of(rec.release_to_place());
        let edge = spec.edge.as_ref().filter(|_| !rec.removed)?;
        let backend = |instance: &Instance| {
            let port = rec.spec_of(instance.release).port_index(&edge.port)?;
            let port = instance.ports.get(port)?;
            let host = &self.cluster.node(instance.node).rec.host;
            Some(Backend { instance: instance.id, address: format!("{host}:{port}") })
        };
        let available = self.cluster.instances_of(service).filter(|instance| instance.is_available());
        Some(BackendSet {
            service: rec.name.clone(),
            listen: Some(edge.listen),
            grace: spec.stop.grace,
            backends: available.filter_map(backend).collect(),
        })
    }

    /// Tells edges what changed; one that has no set of this term yet is told everything.
    pub(super) fn send_sets(&mut self, now: Time) {
        let Some(delta) = self.sets.delta() else { return };
        let edges: Vec<NodeIx> = self.open_edges().collect();
        for node in edges {
            let known = self.sessions.get(&node).and_then(|session| session.sets_sent);
            match known {
                Some(sent) if sent == delta.since => self.send_set(node, delta.clone(), now),
                _ => self.send_all_sets(node, now),
            }
        }
    }

    fn open_edges(&self) -> impl Iterator<Item = NodeIx> {
        let open = self.sessions.iter().filter(|(ix, session)| {
            session.is_open()
                && self.cluster.node(**ix).rec.roles.edge
                && !self.cluster.node(**ix).rec.foreign
        });
        open.map(|(ix, _)| *ix)
    }

    pub(super) fn send_all_sets(&mut self, node: NodeIx, now: Time) {
        let all = self.sets.full();
        self.send_set(node, all, now);
    }

    fn send_set(&mut self, node: NodeIx, sets: Sets, now: Time) {
        if let Some(session) = self.sessions.get_mut(&node) {
            session.sets_sent = Some(sets.revision);
            session.sets_sent_at = now;
        }
        self.send(node, DownBody::Sets(sets));
    }

    /// An edge that does not confirm what it was sent missed something: it is told everything again.
    pub(super) fn catch_up_edge(&mut self, node: NodeIx, now: Time) {
        let Some(session) = self.sessions.get(&node) else { return };
        let patience = model::Millis(2 * self.timing.heartbeat.0);
        let behind = session.edge.serves != Some(self.sets.revision);
        let waited = session.sets_sent.is_none() || now.since(session.sets_sent_at) >= patience;
        if behind && waited && self.cluster.node(node).rec.roles.edge {
            self.send_all_sets(node, now);
        }
    }

    /// Sends to a daemon once everything decided so far is committed.
    pub(super) fn send(&mut self, node: NodeIx, body: DownBody) {
        let (cluster, term) = (self.cluster.meta().cluster, self.term);
        let Some(session) = self.sessions.get_mut(&node).filter(|session| session.is_open()) else { return };
        let (conn, message) = Session::next_down(session, cluster, term, body);
        self.outbox.push_back((self.log.last_group(), Output::Send { conn, message }));
    }
}
