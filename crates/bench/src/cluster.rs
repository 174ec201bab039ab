//! Clusters of any size, made by the planner alone.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use model::{
    Change, Cluster, ClusterId, Health, Intent, Life, MemoryCaps, Meta, Node, NodeId, ProcessEpoch,
    Resources, Roles, Rollout, RolloutState, Service, ServiceName, ServiceSpec, Time, Txn, spec::ServiceFile,
};
use planner::{Ids, reconcile};

/// Of one service; a cluster with more has more services.
const INSTANCES_EACH: usize = 1_000;

/// A cluster with everything placed.
pub struct Placed {
    pub cluster: Cluster,
    pub seconds: f64,
    /// What the process grew by.
    pub bytes: usize,
}

/// Services of a thousand instances each, as many as make so many units, spread over so many nodes.
pub fn place(nodes: usize, units: usize) -> Placed {
    let mut cluster = Cluster::default();
    cluster.apply(&Change::Meta(Meta {
        cluster: ClusterId(1),
        instance_ids_reserved: 1 << 30,
        audit_next: 0,
        drain_epoch: 0,
        maintainer_epoch: 0,
    }));
    for n in 0..nodes {
        cluster.apply(&Change::Node(node(n)));
    }
    let each = units.min(INSTANCES_EACH);
    for n in 0..units / each {
        cluster.apply(&Change::Service(service(n, each as u32)));
    }
    let before = resident_bytes();
    let mut ids = Ids::new(cluster.meta());
    let services: Vec<_> = cluster.services().map(|(ix, _)| ix).collect();
    let (started, mut placed) = (Instant::now(), 0);
    for service in services {
        loop {
            let mut txn = Txn::new(&mut cluster, Time(1));
            let planned = reconcile(&mut txn, &mut ids, service);
            let (changes, _events) = txn.finish();
            placed += changes.iter().filter(|change| matches!(change, Change::Instance(_))).count();
            if !planned.more {
                break;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!(placed, units);
    Placed { cluster, seconds, bytes: resident_bytes().saturating_sub(before) }
}

/// Everything placed is ready and acknowledged, and its rollout complete: nothing is left to decide.
pub fn settle_instances(cluster: &mut Cluster) {
    let instances: Vec<_> = cluster.instances().cloned().collect();
    for mut instance in instances {
        (instance.actual, instance.healthy_since) = (model::Actual::Ready, Some(Time(1)));
        cluster.apply(&Change::Instance(instance));
    }
    let services: Vec<_> = cluster.services().map(|(_, entry)| entry.rec.clone()).collect();
    for mut service in services {
        (service.rollout.state, service.healthy) = (model::RolloutState::Complete, Some(1));
        cluster.apply(&Change::Service(service));
    }
}

pub fn node(n: usize) -> Node {
    Node {
        id: NodeId::new(&format!("node-{n:05}")),
        roles: Roles::WORKER,
        intent: Intent::Active,
        health: Health::Up,
        health_since: Time(0),
        labels: BTreeMap::new(),
        capacity: Resources { memory: 512 << 30, cpu: 512_000 },
        process_epoch: ProcessEpoch(1),
        life: Life(n as u64 + 1),
        host: "10.0.0.1".into(),
        api: "10.0.0.1:7070".into(),
        memory_caps: MemoryCaps::CgroupV2,
        foreign: false,
        registered_at: Time(0),
        lingers: None,
        goodbye: false,
    }
}

fn service(n: usize, count: u32) -> Service {
    Service {
        name: ServiceName::new(&format!("service-{n:04}")),
        count,
        release: 1,
        healthy: None,
        releases: BTreeMap::from([(1, Arc::new(spec()))]),
        rollout: Rollout { state: RolloutState::Rolling, progress_at: Time(0), ready_max: 0 },
        removed: false,
        created_at: Time(0),
    }
}

fn spec() -> ServiceSpec {
    let file = ServiceFile {
        name: "web".into(),
        kind: "service".into(),
        count: None,
        command: vec!["web".into()],
        env: BTreeMap::new(),
        memory: "256MiB".into(),
        cpu: 100,
        ports: vec!["http".into()],
        check: None,
        edge: None,
        stop: Default::default(),
        migrate: Default::default(),
        update: Default::default(),
        volume: None,
        disk: Default::default(),
        rerun: true,
        constraints: BTreeMap::new(),
    };
    match file.check() {
        Ok((_, _, spec)) => spec,
        Err(fault) => panic!("the bench's own specification: {fault}"),
    }
}

/// What the kernel counts as ours.
pub fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}
