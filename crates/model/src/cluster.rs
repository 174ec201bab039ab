//! The records with their indexes, and `apply`, the only place that mutates them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    AuditEntry, Change, Drain, DrainNode, DrainState, Feed, FeedName, Instance, InstanceId, Meta, Node,
    NodeDrain, NodeId, NodeIx, PlaceIndex, Resources, Service, ServiceIx, ServiceName, Settled, Spread,
    Store, StoreGroup, Token, Volume, VolumeId, feed_table::FeedTable, index, settled, spread,
    store_table::StoreTable, token::TokenTable,
};

/// A node with what is on it.
#[derive(Clone, Debug)]
pub struct NodeEntry {
    pub rec: Node,
    /// Everything placed here whose record is kept, over or not.
    pub instances: BTreeMap<InstanceId, Here>,
    /// What the instances that are not over take.
    pub used: Resources,
    /// The unfinished drain that names it.
    pub drain: Option<NodeDrain>,
}

/// What a node knows of an instance on it: enough to tell what a drain has to see off, without going
/// to a thousand records of a thousand services for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here {
    pub service: ServiceIx,
    pub release: u32,
    pub over: bool,
}

impl Here {
    fn of(instance: &Instance) -> Here {
        Here { service: instance.service, release: instance.release, over: instance.is_over() }
    }
}

impl NodeEntry {
    /// Nothing may be placed here: by the operator's intent, or because an unfinished drain names it.
    pub fn is_closed(&self) -> bool {
        self.rec.is_closed() || self.drain.is_some()
    }

    /// Whether new work may be placed here at all.
    pub fn may_place(&self) -> bool {
        self.rec.may_place() && self.drain.is_none()
    }

    /// Its turn in a drain has come.
    pub fn is_draining(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.draining)
    }
}

/// A service with its instances.
#[derive(Clone, Debug)]
pub struct ServiceEntry {
    pub rec: Service,
    /// Oldest first. They live here, beside each other: planning walks a service's instances often.
    pub instances: BTreeMap<InstanceId, Instance>,
    /// How many wanted instances are on each node.
    pub on: BTreeMap<NodeIx, u32>,
    /// Which of the instances need a look.
    pub settled: Settled,
    pub spread: Spread,
    /// Rises with every change that may change what edges are told of it.
    pub served: u64,
}

impl ServiceEntry {
    /// The instances that are not settled, oldest first.
    pub fn unsettled(&self) -> impl Iterator<Item = &Instance> {
        let others = self.settled.others();
        // Looking up each costs about as much as passing over this many.
        let few = others.len() < self.instances.len() / 8;
        let looked_up = few.then(|| others.iter().filter_map(|id| self.instances.get(id)));
        let mut next = others.iter().peekable();
        let passed =
            (!few).then(|| self.instances.values().filter(move |i| next.next_if_eq(&&i.id).is_some()));
        looked_up.into_iter().flatten().chain(passed.into_iter().flatten())
    }

    /// How many are wanted and able to take work.
    pub fn available(&self) -> usize {
        self.settled.count() as usize + self.unsettled().filter(|i| i.is_available()).count()
    }
}

/// Everything that is stored, in memory.
#[derive(Clone, Default)]
pub struct Cluster {
    meta: Meta,
    nodes: Vec<NodeEntry>,
    node_ix: BTreeMap<NodeId, NodeIx>,
    services: Vec<Option<ServiceEntry>>,
    service_ix: BTreeMap<ServiceName, ServiceIx>,
    /// Whose each instance is.
    instances: BTreeMap<InstanceId, ServiceIx>,
    volumes: BTreeMap<VolumeId, Volume>,
    audit: BTreeMap<u64, AuditEntry>,
    drains: BTreeMap<u64, Drain>,
    feeds: FeedTable,
    stores: StoreTable,
    tokens: TokenTable,
    place: PlaceIndex,
    /// Of ten thousand nodes few drain, and few are edges: both are asked for with every report.
    draining_or_queued: BTreeSet<NodeIx>,
    edges: BTreeSet<NodeIx>,
}

fn named_by(epoch: u64, part: &DrainNode) -> NodeDrain {
    NodeDrain {
        epoch,
        draining: part.state == DrainState::Draining,
        deadline_reached: part.deadline_reached,
        ignore_system: part.options.ignore_system,
        ack_stateful: part.options.ack_stateful,
        include_stateful: part.options.include_stateful,
    }
}

/// The records. The indexes follow from them, and the audit log from nothing that anybody decides by.
impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<(NodeIx, &Node)> = self.nodes().map(|(ix, node)| (ix, &node.rec)).collect();
        let services: Vec<(ServiceIx, &Service)> = self.services().map(|(ix, s)| (ix, &s.rec)).collect();
        let served: Vec<u64> = self.services().map(|(_, entry)| entry.served).collect();
        f.debug_struct("Cluster")
            .field("meta", &self.meta)
            .field("nodes", &nodes)
            .field("services", &services)
            .field("served", &served)
            .field("instances", &self.instances().collect::<Vec<_>>())
            .field("volumes", &self.volumes)
            .field("drains", &self.drains)
            .field("feeds", &self.feeds().collect::<Vec<_>>())
            .field("stores", &self.stores)
            .field("tokens", &self.tokens)
            .finish()
    }
}

impl Cluster {
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeIx, &NodeEntry)> {
        self.node_ix.values().map(|ix| (*ix, &self.nodes[ix.0 as usize]))
    }

    /// The nodes that an unfinished drain names.
    pub fn nodes_in_drains(&self) -> impl Iterator<Item = (NodeIx, &NodeEntry)> {
        self.draining_or_queued.iter().map(|ix| (*ix, &self.nodes[ix.0 as usize]))
    }

    /// The nodes with the edge role.
    pub fn edges(&self) -> impl Iterator<Item = (NodeIx, &NodeEntry)> {
        self.edges.iter().map(|ix| (*ix, &self.nodes[ix.0 as usize]))
    }

    pub fn node(&self, ix: NodeIx) -> &NodeEntry {
        &self.nodes[ix.0 as usize]
    }

    pub fn node_ix(&self, id: &str) -> Option<NodeIx> {
        self.node_ix.get(id).copied()
    }

    pub fn node_by_id(&self, id: &str) -> Option<&NodeEntry> {
        self.node_ix(id).map(|ix| self.node(ix))
    }

    /// All services, by name.
    pub fn services(&self) -> impl Iterator<Item = (ServiceIx, &ServiceEntry)> {
        self.service_ix.values().filter_map(|ix| self.service(*ix).map(|entry| (*ix, entry)))
    }

    pub fn service(&self, ix: ServiceIx) -> Option<&ServiceEntry> {
        self.services.get(ix.0 as usize).and_then(Option::as_ref)
    }

    pub fn service_ix(&self, name: &str) -> Option<ServiceIx> {
        self.service_ix.get(name).copied()
    }

    pub fn service_by_name(&self, name: &str) -> Option<&ServiceEntry> {
        self.service_ix(name).and_then(|ix| self.service(ix))
    }

    pub fn instance(&self, id: InstanceId) -> Option<&Instance> {
        let service = self.instances.get(&id)?;
        self.service(*service)?.instances.get(&id)
    }

    /// All instances, oldest first.
    pub fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.keys().filter_map(|id| self.instance(*id))
    }

    pub fn instance_count(&self) -> usize {
        self.instances.len()
    }

    /// The instances of a service, oldest first.
    pub fn instances_of(&self, service: ServiceIx) -> impl Iterator<Item = &Instance> {
        self.service(service).into_iter().flat_map(|entry| entry.instances.values())
    }

    /// The instances of a service about which there may be something to decide, oldest first.
    pub fn unsettled_of(&self, service: ServiceIx) -> impl Iterator<Item = &Instance> {
        self.service(service).into_iter().flat_map(ServiceEntry::unsettled)
    }

    /// The instances on a node, oldest first.
    pub fn instances_on(&self, node: NodeIx) -> impl Iterator<Item = &Instance> {
        let here = self.node(node).instances.iter();
        here.filter_map(|(id, here)| self.service(here.service)?.instances.get(id))
    }

    /// The name of an instance as people see it.
    pub fn instance_name(&self, instance: &Instance) -> String {
        match self.service(instance.service) {
            Some(entry) => instance.id.named(&entry.rec.name),
            None => instance.id.to_string(),
        }
    }

    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values()
    }

    pub fn volume(&self, id: &str) -> Option<&Volume> {
        self.volumes.get(id)
    }

    pub fn audit(&self) -> impl DoubleEndedIterator<Item = &AuditEntry> {
        self.audit.values()
    }

    /// All drains, oldest first, finished ones too.
    pub fn drains(&self) -> impl DoubleEndedIterator<Item = &Drain> {
        self.drains.values()
    }

    pub fn drain(&self, epoch: u64) -> Option<&Drain> {
        self.drains.get(&epoch)
    }

    /// The present or last drain that names a node.
    pub fn last_drain_of(&self, node: &str) -> Option<&Drain> {
        let naming = |drain: &&Drain| drain.part(node).is_some();
        let unfinished = |drain: &&Drain| drain.part(node).is_some_and(|part| part.ending().is_none());
        self.drains.values().rev().find(unfinished).or_else(|| self.drains.values().rev().find(naming))
    }

    /// All feeds, by name.
    pub fn feeds(&self) -> impl Iterator<Item = &Feed> {
        self.feeds.all()
    }

    pub fn feed(&self, name: &str) -> Option<&Feed> {
        self.feeds.get(name)
    }

    /// Feeds whose maintainer is on a node: it is to run there, or has not confirmed that it stopped.
    pub fn maintainers_on(&self, node: &NodeId) -> impl Iterator<Item = &FeedName> {
        self.feeds.on(node)
    }

    pub fn maintainer_count(&self, node: &NodeId) -> usize {
        self.feeds.count_on(node)
    }

    /// All store groups, by name.
    pub fn store_groups(&self) -> impl Iterator<Item = &StoreGroup> {
        self.stores.groups()
    }

    pub fn store_group(&self, name: &str) -> Option<&StoreGroup> {
        self.stores.group(name)
    }

    /// The stores of a group, by ordinal.
    pub fn stores_of(&self, group: &str) -> impl DoubleEndedIterator<Item = &Store> {
        self.stores.of(group)
    }

    pub fn store(&self, id: &str) -> Option<&Store> {
        self.stores.get(id)
    }

    /// The store whose process this is.
    pub fn store_of(&self, instance: &Instance) -> Option<&Store> {
        let group = &self.service(instance.service)?.rec.name;
        self.stores.at(group.as_str(), instance.slot?)
    }

    /// All tokens, by name.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = &Token> {
        self.tokens.all()
    }

    pub fn token(&self, name: &str) -> Option<&Token> {
        self.tokens.get(name)
    }

    pub fn token_with(&self, hash: &[u8; 32]) -> Option<&Token> {
        self.tokens.with(hash)
    }

    pub fn place_index(&self) -> &PlaceIndex {
        &self.place
    }

    /// How loaded a node is, in the steps that placing compares.
    pub fn utilisation(&self, node: NodeIx) -> u32 {
        index::utilisation(self.node(node))
    }

    /// Makes one change. The only place that mutates the state.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Meta(meta) => self.meta = meta.clone(),
            Change::Node(node) => self.put_node(node),
            Change::Service(service) => self.put_service(service),
            Change::ServiceGone(name) => self.drop_service(name),
            Change::Instance(instance) => self.put_instance(instance),
            Change::InstanceGone(id) => self.drop_instance(*id),
            Change::Volume(volume) => {
                self.volumes.insert(volume.id.clone(), volume.clone());
            }
            Change::VolumeGone(id) => {
                self.volumes.remove(id);
            }
            Change::Audit(entry) => {
                self.audit.insert(entry.number, entry.clone());
            }
            Change::AuditGone(number) => {
                self.audit.remove(number);
            }
            Change::Drain(drain) => self.put_drain(drain),
            Change::DrainGone(epoch) => {
                self.drains.remove(epoch);
            }
            Change::Feed(feed) => self.feeds.put(feed),
            Change::FeedGone(name) => self.feeds.remove(name),
            Change::StoreGroup(group) => self.stores.put_group(group),
            Change::StoreGroupGone(name) => self.stores.remove_group(name),
            Change::Store(store) => self.stores.put(store),
            Change::StoreGone(id) => self.stores.remove(id),
            Change::Token(token) => self.tokens.put(token),
            Change::TokenGone(name) => self.tokens.remove(name),
        }
    }

    fn put_node(&mut self, node: &Node) {
        let Some(ix) = self.node_ix.get(&node.id).copied() else {
            let ix = NodeIx(self.nodes.len() as u32);
            let entry = NodeEntry {
                rec: node.clone(),
                instances: BTreeMap::new(),
                used: Resources::default(),
                // Records are loaded in any order: its drain may have come first.
                drain: self.drain_naming(&node.id),
            };
            self.place.insert(ix, &entry);
            self.nodes.push(entry);
            self.node_ix.insert(node.id.clone(), ix);
            self.index_node(ix);
            return;
        };
        self.turn_node(ix, |entry| entry.rec = node.clone());
    }

    /// Changes a node's record or drain, and with it the indexes that depend on it: a node that closes
    /// or opens, or is lost or found, unsettles or settles what is on it.
    fn index_node(&mut self, ix: NodeIx) {
        let node = &self.nodes[ix.0 as usize];
        let within =
            [(&mut self.draining_or_queued, node.drain.is_some()), (&mut self.edges, node.rec.roles.edge)];
        for (index, belongs) in within {
            match belongs {
                true => index.insert(ix),
                false => index.remove(&ix),
            };
        }
    }

    fn turn_node(&mut self, ix: NodeIx, turn: impl FnOnce(&mut NodeEntry)) {
        let node = &mut self.nodes[ix.0 as usize];
        let was_quiet = settled::is_quiet(node);
        let (may_place, labels, host) = (node.may_place(), node.rec.labels.clone(), node.rec.host.clone());
        self.place.remove(ix, node);
        turn(node);
        self.place.insert(ix, node);
        self.index_node(ix);
        let node = &self.nodes[ix.0 as usize];
        let quiet_changed = settled::is_quiet(node) != was_quiet;
        let place_changed = node.may_place() != may_place || node.rec.labels != labels;
        let host_changed = node.rec.host != host;
        if !quiet_changed && !place_changed && !host_changed {
            return;
        }
        let node = &self.nodes[ix.0 as usize];
        let mut seen = BTreeSet::new();
        for (id, here) in &node.instances {
            let Some(entry) = &mut self.services[here.service.0 as usize] else { continue };
            entry.served += u64::from(host_changed);
            if quiet_changed {
                settled::look_again(entry, &self.nodes, *id);
            }
            if place_changed && seen.insert(here.service) {
                let constraints = &entry.rec.spec_of(entry.rec.release_to_place()).constraints;
                let could =
                    may_place && constraints.iter().all(|(key, value)| labels.get(key) == Some(value));
                let on = entry.on.get(&ix).copied().unwrap_or(0);
                match (could, spread::may_take(node, &entry.rec)) {
                    (true, false) => entry.spread.take(on),
                    (false, true) => entry.spread.add(on),
                    (true, true) | (false, false) => {}
                }
            }
        }
    }

    fn put_drain(&mut self, drain: &Drain) {
        self.drains.insert(drain.epoch, drain.clone());
        for part in &drain.nodes {
            let Some(ix) = self.node_ix.get(&part.node).copied() else { continue };
            let known = self.nodes[ix.0 as usize].drain.as_ref().map(|known| known.epoch);
            let now = match known == Some(drain.epoch) && part.ending().is_none() {
                // Looking for it among hundreds of parts, for each of them, is what takes long.
                true => Some(named_by(drain.epoch, part)),
                false => self.drain_naming(&part.node),
            };
            if self.nodes[ix.0 as usize].drain != now {
                self.turn_node(ix, |entry| entry.drain = now);
            }
        }
    }

    fn drain_naming(&self, node: &NodeId) -> Option<NodeDrain> {
        let mut parts =
            self.drains.values().filter_map(|drain| Some((drain.epoch, drain.part(node.as_str())?)));
        let (epoch, part) = parts.find(|(_, part)| part.ending().is_none())?;
        Some(named_by(epoch, part))
    }

    fn put_service(&mut self, service: &Service) {
        for spec in service.releases.values() {
            self.place.ensure_class(&spec.constraints, &self.nodes);
        }
        match self.service_ix.get(&service.name) {
            Some(ix) => {
                if let Some(entry) = &mut self.services[ix.0 as usize] {
                    turn_service(entry, service, &self.nodes);
                }
            }
            None => {
                let ix = ServiceIx(self.services.len() as u32);
                let (instances, on) = (BTreeMap::new(), BTreeMap::new());
                let (rec, settled, spread) = (service.clone(), Settled::default(), Spread::default());
                self.services.push(Some(ServiceEntry { rec, instances, on, settled, spread, served: 0 }));
                self.service_ix.insert(service.name.clone(), ix);
            }
        }
        self.drop_unused_classes();
    }

    fn drop_service(&mut self, name: &ServiceName) {
        let Some(ix) = self.service_ix.remove(name) else { return };
        // A transaction that packs both may name the service before the last of its instances.
        let instances: Vec<InstanceId> =
            self.services[ix.0 as usize].iter().flat_map(|entry| entry.instances.keys().copied()).collect();
        for id in instances {
            self.drop_instance(id);
        }
        self.services[ix.0 as usize] = None;
    }

    /// Amortised: classes are looked through only once they outnumber the services by far.
    fn drop_unused_classes(&mut self) {
        if self.place.len() <= 16 + 2 * self.service_ix.len() {
            return;
        }
        let services = &self.services;
        self.place.retain(|constraints| {
            let mut specs = services.iter().flatten().flat_map(|entry| entry.rec.releases.values());
            specs.any(|spec| spec.constraints == *constraints)
        });
    }

    fn put_instance(&mut self, instance: &Instance) {
        let Some(entry) = &mut self.services[instance.service.0 as usize] else { return };
        let before = entry.instances.insert(instance.id, instance.clone());
        let (took, was_wanted) = match &before {
            Some(old) => (taken(old), old.is_wanted()),
            None => (Resources::default(), false),
        };
        // Most changes are of an instance that stays where it is: its index entries stay too.
        if before.is_none() {
            self.instances.insert(instance.id, instance.service);
        }
        if before.as_ref().map(Here::of) != Some(Here::of(instance)) {
            self.nodes[instance.node.0 as usize].instances.insert(instance.id, Here::of(instance));
        }
        self.account(instance, took, taken(instance), was_wanted, instance.is_wanted());
        if let Some(entry) = &mut self.services[instance.service.0 as usize] {
            entry.served += u64::from(before.as_ref().and_then(backend) != backend(instance));
            settled::rebook(entry, &self.nodes, instance.id, before.as_ref());
        }
    }

    fn drop_instance(&mut self, id: InstanceId) {
        let Some(service) = self.instances.remove(&id) else { return };
        let entry = self.services[service.0 as usize].as_mut();
        let Some(old) = entry.and_then(|entry| entry.instances.remove(&id)) else { return };
        self.account(&old, taken(&old), Resources::default(), old.is_wanted(), false);
        self.nodes[old.node.0 as usize].instances.remove(&id);
        if let Some(entry) = &mut self.services[service.0 as usize] {
            entry.served += u64::from(backend(&old).is_some());
            settled::rebook(entry, &self.nodes, id, Some(&old));
        }
    }

    fn account(&mut self, of: &Instance, took: Resources, takes: Resources, was: bool, is: bool) {
        if took != takes {
            let node = &mut self.nodes[of.node.0 as usize];
            let before = index::utilisation(node);
            let used = Resources {
                memory: node.used.memory - took.memory + takes.memory,
                cpu: node.used.cpu - took.cpu + takes.cpu,
            };
            let changed = {
                let old = std::mem::replace(&mut node.used, used);
                let after = index::utilisation(node);
                node.used = old;
                before != after
            };
            if changed {
                self.place.remove(of.node, node);
            }
            node.used = used;
            if changed {
                self.place.insert(of.node, node);
            }
        }
        if was != is
            && let Some(entry) = &mut self.services[of.service.0 as usize]
        {
            let on = entry.on.entry(of.node).or_insert(0);
            let before = *on;
            *on = if is { before + 1 } else { before.saturating_sub(1) };
            let after = *on;
            if after == 0 {
                entry.on.remove(&of.node);
            }
            if spread::may_take(&self.nodes[of.node.0 as usize], &entry.rec) {
                entry.spread.take(before);
                entry.spread.add(after);
            }
        }
    }
}

fn turn_service(entry: &mut ServiceEntry, service: &Service, nodes: &[NodeEntry]) {
    let released = entry.rec.release != service.release;
    let constraints = |rec: &Service| rec.spec_of(rec.release_to_place()).constraints.clone();
    let moved = constraints(&entry.rec) != constraints(service);
    entry.rec = service.clone();
    entry.served += 1;
    if released {
        let ids: Vec<InstanceId> = entry.instances.keys().copied().collect();
        for id in ids {
            settled::look_again(entry, nodes, id);
        }
    }
    if moved {
        entry.spread = Spread::default();
        for (node, on) in &entry.on {
            if spread::may_take(&nodes[node.0 as usize], &entry.rec) {
                entry.spread.add(*on);
            }
        }
    }
}

/// What edges are told of an instance, beside where its node is.
fn backend(instance: &Instance) -> Option<(u32, &[u16])> {
    instance.is_available().then_some((instance.release, &instance.ports))
}

fn taken(instance: &Instance) -> Resources {
    match instance.is_over() {
        true => Resources::default(),
        false => Resources { memory: instance.memory, cpu: u64::from(instance.cpu) },
    }
}
