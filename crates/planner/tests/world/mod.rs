//! A small cluster to plan for, with nodes that do as they are told when the test says so.

#![allow(dead_code, clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Actual, Change, Cluster, ClusterId, Code, Desired, Drain, DrainNode, DrainOptions, DrainState, Ending,
    Exit, Health, Instance, InstanceId, Intent, Life, MemoryCaps, Meta, Millis, Node, NodeId, ProcessEpoch,
    Resources, Roles, Rollout, RolloutState, Service, ServiceSpec, Time, Txn, spec::ServiceFile,
};
use planner::{
    Drains, Ids, Planned,
    drain::{Dispatchers, Edges, Facts, Limits, advance_with},
    reconcile_with,
};

pub const MIB: u64 = 1 << 20;

pub struct World {
    pub cluster: Cluster,
    ids: Ids,
    pub now: Time,
    pub limits: Limits,
    /// When the drains want to be looked at again.
    pub wake: Option<Time>,
    pub drains: Drains,
    /// Edges that have said that they are gone; `None`: each is, as soon as it is told to.
    pub gone: Option<Vec<(&'static str, u64)>>,
    /// What the last round said of each service.
    pub planned: BTreeMap<String, Planned>,
}

pub fn file(name: &str) -> ServiceFile {
    let mut file: ServiceFile = ServiceFile::of(
        name,
        1,
        &ServiceFile {
            name: name.into(),
            kind: "service".into(),
            count: None,
            command: vec!["true".into()],
            env: BTreeMap::new(),
            memory: "64MiB".into(),
            cpu: 100,
            ports: vec![],
            check: None,
            edge: None,
            stop: Default::default(),
            migrate: Default::default(),
            update: Default::default(),
            volume: None,
            disk: Default::default(),
            rerun: true,
            constraints: BTreeMap::new(),
        }
        .check()
        .unwrap()
        .2,
    );
    file.count = None;
    file.migrate.min_healthy_time = "0ms".into();
    file
}

pub fn spec(file: &ServiceFile) -> Arc<ServiceSpec> {
    Arc::new(file.check().unwrap().2)
}

impl World {
    /// Nodes `n1` … of 1 GiB each.
    pub fn with_nodes(count: usize) -> World {
        let mut cluster = Cluster::default();
        cluster.apply(&Change::Meta(Meta {
            cluster: ClusterId(1),
            instance_ids_reserved: 1024,
            audit_next: 0,
            drain_epoch: 0,
            maintainer_epoch: 0,
        }));
        let ids = Ids::new(cluster.meta());
        let (drains, now, limits) = (Drains::Go, Time(1_000_000), World::LIMITS);
        let planned = BTreeMap::new();
        let mut world = World { cluster, ids, now, limits, wake: None, drains, gone: None, planned };
        for n in 1..=count {
            world.node(&format!("n{n}"), 1024 * MIB, &[]);
        }
        world
    }

    pub fn node(&mut self, id: &str, memory: u64, labels: &[(&str, &str)]) {
        self.cluster.apply(&Change::Node(Node {
            id: NodeId::new(id),
            roles: Roles::WORKER,
            intent: Intent::Active,
            health: Health::Up,
            health_since: self.now,
            labels: labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            capacity: Resources { memory, cpu: 4000 },
            process_epoch: ProcessEpoch(1),
            life: Life(1),
            host: "127.0.0.1".into(),
            api: String::new(),
            memory_caps: MemoryCaps::CgroupV2,
            foreign: false,
            registered_at: self.now,
            lingers: None,
            goodbye: false,
        }));
    }

    pub fn change_node(&mut self, id: &str, change: impl FnOnce(&mut Node)) {
        let mut node = self.cluster.node_by_id(id).unwrap().rec.clone();
        change(&mut node);
        self.cluster.apply(&Change::Node(node));
    }

    pub fn offline(&mut self, id: &str) {
        self.change_node(id, |node| node.health = Health::Offline);
    }

    /// Creates a service, or makes a new release of it.
    pub fn apply(&mut self, file: &ServiceFile, count: u32) {
        let rollout = Rollout { state: RolloutState::Rolling, progress_at: self.now, ready_max: 0 };
        let service = match self.cluster.service_by_name(&file.name) {
            Some(entry) => {
                let mut rec = entry.rec.clone();
                rec.count = count;
                if *rec.spec() != spec(file) {
                    rec.release += 1;
                    rec.releases.insert(rec.release, spec(file));
                    rec.rollout = rollout;
                }
                rec
            }
            None => Service {
                name: file.name.as_str().into(),
                count,
                release: 1,
                healthy: None,
                releases: BTreeMap::from([(1, spec(file))]),
                rollout,
                removed: false,
                created_at: self.now,
            },
        };
        self.cluster.apply(&Change::Service(service));
    }

    pub fn service(&self, name: &str) -> &Service {
        &self.cluster.service_by_name(name).unwrap().rec
    }

    pub const LIMITS: Limits =
        Limits { nodes_at_once: 1, stall_after: Millis::secs(120), default_deadline: None, balance_moves: 2 };

    /// Stores a drain of these nodes and returns its epoch.
    pub fn drain(&mut self, nodes: &[&str], options: DrainOptions) -> u64 {
        let epoch = self.cluster.drains().next_back().map_or(1, |drain| drain.epoch + 1);
        let nodes = nodes.iter().map(|node| DrainNode::queued(NodeId::new(node), options.clone()));
        self.cluster.apply(&Change::Drain(Drain {
            epoch,
            by: "test".into(),
            from: String::new(),
            message: String::new(),
            meta: BTreeMap::new(),
            created_at: self.now,
            nodes: nodes.collect(),
        }));
        epoch
    }

    /// Somebody takes this node out of its drain.
    pub fn change_drain_to_cancelled(&mut self, node: &str) {
        let mut drain = self.cluster.last_drain_of(node).unwrap().clone();
        for part in drain.nodes.iter_mut().filter(|part| part.node.as_str() == node) {
            (part.state, part.ended_at) = (DrainState::Ended(Ending::Cancelled), Some(self.now));
        }
        self.cluster.apply(&Change::Drain(drain));
    }

    /// Starts moves for balance; returns how many.
    pub fn balance(&mut self, how_many: usize) -> usize {
        let mut txn = Txn::new(&mut self.cluster, self.now);
        planner::balance::start(&mut txn, &mut self.ids, how_many)
    }

    pub fn part(&self, node: &str) -> DrainNode {
        self.cluster.last_drain_of(node).unwrap().part(node).unwrap().clone()
    }

    pub fn drain_state(&self, node: &str) -> &'static str {
        self.cluster.last_drain_of(node).unwrap().part(node).unwrap().state_str()
    }

    /// Everything that can happen by itself happens: placing, getting healthy, stopping.
    pub fn let_it_run(&mut self) {
        for _ in 0..200 {
            if self.plan() == 0 {
                self.become_ready();
                self.stop_leavers();
                if self.plan() == 0 {
                    return;
                }
            }
            self.become_ready();
            self.stop_leavers();
        }
        panic!("it does not come to rest:\n{}", self.show());
    }

    /// Asks for another number of instances.
    pub fn scale(&mut self, service: &str, count: u32) {
        let rec = Service { count, ..self.service(service).clone() };
        self.cluster.apply(&Change::Service(rec));
    }

    /// Asks for a service to go.
    pub fn remove(&mut self, service: &str) {
        let rec = Service { removed: true, ..self.service(service).clone() };
        self.cluster.apply(&Change::Service(rec));
    }

    /// Plans every service until nothing changes; asserts that planning again makes no change.
    pub fn plan(&mut self) -> usize {
        let services: Vec<_> =
            self.cluster.services().map(|(ix, entry)| (ix, entry.rec.name.to_string())).collect();
        let mut total = 0;
        let edges = match &self.gone {
            None => Edges::Assumed,
            Some(gone) => {
                let ix = |node: &str| self.cluster.node_ix(node).unwrap();
                Edges::Seen(gone.iter().map(|(node, drain)| (ix(node), *drain)).collect())
            }
        };
        let facts = Facts {
            edges,
            dispatchers: Dispatchers::Assumed,
            stuck: BTreeMap::new(),
            paused: self.drains == Drains::Paused,
        };
        let mut txn = Txn::new(&mut self.cluster, self.now);
        self.wake = advance_with(&mut txn, self.limits, &facts);
        total += txn.finish().0.len();
        for (ix, name) in services {
            for round in 0.. {
                assert!(round < 20, "{name} does not settle");
                let mut txn = Txn::new(&mut self.cluster, self.now);
                let planned = reconcile_with(&mut txn, &mut self.ids, ix, self.drains);
                let changes = txn.finish().0.len();
                total += changes;
                self.planned.insert(name.clone(), planned);
                if changes == 0 {
                    break;
                }
            }
        }
        total
    }

    pub fn instances(&self, service: &str) -> Vec<Instance> {
        let ix = self.cluster.service_ix(service).unwrap();
        self.cluster.instances_of(ix).cloned().collect()
    }

    pub fn wanted(&self, service: &str) -> Vec<Instance> {
        self.instances(service).into_iter().filter(|i| i.is_wanted()).collect()
    }

    pub fn set(&mut self, id: InstanceId, change: impl FnOnce(&mut Instance)) {
        let mut instance = self.cluster.instance(id).unwrap().clone();
        change(&mut instance);
        self.cluster.apply(&Change::Instance(instance));
    }

    /// Everything that is wanted and starting becomes ready.
    pub fn become_ready(&mut self) {
        let now = self.now;
        let starting: Vec<_> = self
            .cluster
            .instances()
            .filter(|i| i.is_wanted() && i.actual != Actual::Ready)
            .filter(|i| !self.cluster.node(i.node).rec.is_offline())
            .map(|i| i.id)
            .collect();
        for id in starting {
            self.set(id, |i| (i.actual, i.healthy_since) = (Actual::Ready, Some(now)));
        }
    }

    /// Everything that was told to go has gone, unless its node is offline.
    pub fn stop_leavers(&mut self) {
        let now = self.now;
        let leaving: Vec<_> = self
            .cluster
            .instances()
            .filter(|i| i.desired != Desired::Running && !i.is_over())
            .filter(|i| !self.cluster.node(i.node).rec.is_offline())
            .map(|i| i.id)
            .collect();
        for id in leaving {
            self.set(id, |i| {
                (i.desired, i.actual) = (Desired::Stopped, Actual::Stopped);
                (i.exit, i.ended_at) = (Some(Exit::Code(0)), Some(now));
            });
        }
    }

    pub fn fail(&mut self, id: InstanceId, code: Code) {
        let now = self.now;
        self.set(id, |i| (i.actual, i.reason, i.ended_at) = (Actual::Failed, Some(code), Some(now)));
    }

    pub fn pass(&mut self, time: Millis) {
        self.now = self.now + time;
    }

    /// `n1: web r1 ready, …` per node that has any that is not over.
    pub fn show(&self) -> String {
        let mut out = String::new();
        for (ix, node) in self.cluster.nodes() {
            let here = self.cluster.instances_on(ix).filter(|i| !i.is_over()).map(|i| {
                let service = &self.cluster.service(i.service).unwrap().rec.name;
                let slot = i.slot.map(|slot| format!("/{slot}")).unwrap_or_default();
                let desired = if i.desired == Desired::Running { "" } else { " leaving" };
                format!("{service}{slot} r{} {}{desired}", i.release, i.actual.as_str())
            });
            let here: Vec<String> = here.collect();
            out.push_str(&format!("{}: {}\n", node.rec.id, here.join(", ")));
        }
        out
    }

    pub fn reasons(&self, service: &str) -> String {
        let reasons = self.planned[service].reasons.iter();
        reasons.map(|reason| format!("{}: {}", reason.code, reason.message)).collect::<Vec<_>>().join("\n")
    }

    pub fn node_of(&self, instance: &Instance) -> String {
        self.cluster.node(instance.node).rec.id.to_string()
    }
}
