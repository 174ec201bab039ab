//! One service at the edge: its backends, the connections of each, and the choice among them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{InstanceId, Millis, ServiceName, Time};

use super::{ConnId, REFUSED_LAST_FOR};
use crate::message::{Backend, BackendSet};

/// One service's figures, for metrics and people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceStats {
    pub service: ServiceName,
    pub listen: Option<u16>,
    pub backends: usize,
    /// Connections that wait for a backend, are being dialled, are being copied.
    pub held: usize,
    pub dialling: usize,
    pub copying: usize,
    /// Of those being copied, the ones whose instance has left the set.
    pub leaving: usize,
    pub counters: Counters,
}

/// What has happened since the service came to this edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub accepted: u64,
    pub copied: u64,
    pub refused: u64,
    /// Dials that failed, so that another backend was tried or the connection refused.
    pub passed_over: u64,
    pub cut: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Service {
    /// `None`: it has left the edge, and is here only for its last connections.
    pub listen: Option<u16>,
    pub grace: Millis,
    backends: BTreeMap<InstanceId, Member>,
    leaving: BTreeMap<InstanceId, Leaving>,
    pub held: BTreeSet<ConnId>,
    pub counters: Counters,
    /// Rises with every pick: among equals the one picked longest ago is next.
    turn: u64,
}

#[derive(Clone, Debug)]
struct Member {
    address: Arc<str>,
    dialling: BTreeSet<ConnId>,
    copying: BTreeSet<ConnId>,
    picked: u64,
    /// It refused a connection and has taken none since.
    suspect_until: Option<Time>,
}

#[derive(Clone, Debug)]
struct Leaving {
    until: Time,
    copying: BTreeSet<ConnId>,
}

/// What a new set does to connections and deadlines.
#[derive(Default)]
pub(super) struct Displaced {
    /// Were being dialled to something that is no longer in the set.
    pub dials: BTreeSet<ConnId>,
    /// Came back within their grace, which was to end then.
    pub returned: Vec<(Time, InstanceId)>,
    /// Left with connections, which may go on until then.
    pub left: Vec<(Time, InstanceId)>,
}

impl Member {
    fn new(address: &str) -> Member {
        Member {
            address: address.into(),
            dialling: BTreeSet::new(),
            copying: BTreeSet::new(),
            picked: 0,
            suspect_until: None,
        }
    }

    /// After the pause one dial at a time finds out whether a suspect is back. Without that limit a
    /// node that swallows packets, having the fewest connections, would draw every new one.
    fn comes_last(&self, now: Time) -> bool {
        self.suspect_until.is_some_and(|until| now < until || !self.dialling.is_empty())
    }

    fn load(&self) -> usize {
        self.dialling.len() + self.copying.len()
    }
}

impl Service {
    pub fn has_backends(&self) -> bool {
        !self.backends.is_empty()
    }

    /// It has left the edge, and so has its last connection.
    pub fn is_over(&self) -> bool {
        self.listen.is_none() && self.backends.is_empty() && self.leaving.is_empty() && self.held.is_empty()
    }

    pub fn replace(&mut self, set: BackendSet, now: Time) -> Displaced {
        let mut displaced = Displaced::default();
        self.listen = set.listen;
        self.grace = set.grace;
        let backends = if set.listen.is_some() { set.backends } else { Vec::new() };
        let stay: BTreeMap<InstanceId, String> =
            backends.into_iter().map(|backend| (backend.instance, backend.address)).collect();
        let gone: Vec<InstanceId> =
            self.backends.keys().filter(|id| !stay.contains_key(id)).copied().collect();
        for instance in gone {
            let Some(member) = self.backends.remove(&instance) else { continue };
            displaced.dials.extend(member.dialling);
            if !member.copying.is_empty() {
                let until = now + self.grace;
                self.leaving.insert(instance, Leaving { until, copying: member.copying });
                displaced.left.push((until, instance));
            }
        }
        for (instance, address) in stay {
            let member = self.backends.entry(instance).or_insert_with(|| Member::new(&address));
            if *member.address != *address {
                // Its old port may be somebody else's by the time the dial gets there.
                displaced.dials.extend(std::mem::take(&mut member.dialling));
                member.address = address.into();
                member.suspect_until = None;
            }
            if let Some(leaving) = self.leaving.remove(&instance) {
                member.copying = leaving.copying;
                displaced.returned.push((leaving.until, instance));
            }
        }
        displaced
    }

    /// The backend with the fewest connections, dials in flight included; among equals the one picked
    /// longest ago. Counts the connection as being dialled.
    pub fn pick(&mut self, except: &[InstanceId], conn: ConnId, now: Time) -> Option<(InstanceId, Arc<str>)> {
        let (instance, member) = self
            .backends
            .iter_mut()
            .filter(|(instance, _)| !except.contains(instance))
            .min_by_key(|(instance, m)| (m.comes_last(now), m.load(), m.picked, **instance))?;
        self.turn += 1;
        member.picked = self.turn;
        member.dialling.insert(conn);
        Some((*instance, member.address.clone()))
    }

    pub fn dial_succeeded(&mut self, instance: InstanceId, conn: ConnId) {
        if let Some(member) = self.backends.get_mut(&instance) {
            member.dialling.remove(&conn);
            member.copying.insert(conn);
            member.suspect_until = None;
            self.counters.copied += 1;
        }
    }

    pub fn dial_failed(&mut self, instance: InstanceId, conn: ConnId, now: Time) {
        self.counters.passed_over += 1;
        if let Some(member) = self.backends.get_mut(&instance) {
            member.dialling.remove(&conn);
            member.suspect_until = Some(now + REFUSED_LAST_FOR);
        }
    }

    pub fn dial_over(&mut self, instance: InstanceId, conn: ConnId) {
        if let Some(member) = self.backends.get_mut(&instance) {
            member.dialling.remove(&conn);
        }
    }

    /// Returns the end of the instance's grace if this was the last connection it was for.
    pub fn copy_over(&mut self, instance: InstanceId, conn: ConnId) -> Option<Time> {
        if let Some(member) = self.backends.get_mut(&instance) {
            member.copying.remove(&conn);
        }
        let leaving = self.leaving.get_mut(&instance)?;
        leaving.copying.remove(&conn);
        let until = leaving.until;
        if !leaving.copying.is_empty() {
            return None;
        }
        self.leaving.remove(&instance);
        Some(until)
    }

    /// Connections of an instance that has left.
    pub fn leftovers(&self, instance: InstanceId) -> Vec<ConnId> {
        self.leaving
            .get(&instance)
            .map(|leaving| leaving.copying.iter().copied().collect())
            .unwrap_or_default()
    }

    pub fn connections(&self, instance: InstanceId) -> (usize, usize) {
        let (dialling, copying) = self
            .backends
            .get(&instance)
            .map_or((0, 0), |member| (member.dialling.len(), member.copying.len()));
        (dialling, copying + self.leaving.get(&instance).map_or(0, |leaving| leaving.copying.len()))
    }

    pub fn stats(&self, name: &ServiceName) -> ServiceStats {
        let leaving = self.leaving.values().map(|leaving| leaving.copying.len()).sum();
        ServiceStats {
            service: name.clone(),
            listen: self.listen,
            backends: self.backends.len(),
            held: self.held.len(),
            dialling: self.backends.values().map(|member| member.dialling.len()).sum(),
            copying: self.backends.values().map(|member| member.copying.len()).sum::<usize>() + leaving,
            leaving,
            counters: self.counters,
        }
    }

    /// The set as it came, or `None` if the service has left.
    pub fn as_set(&self, name: &ServiceName) -> Option<BackendSet> {
        let backend = |(instance, member): (&InstanceId, &Member)| Backend {
            instance: *instance,
            address: member.address.to_string(),
        };
        Some(BackendSet {
            service: name.clone(),
            listen: Some(self.listen?),
            grace: self.grace,
            backends: self.backends.iter().map(backend).collect(),
        })
    }
}
