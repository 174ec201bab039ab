//! Placing a million instances on ten thousand nodes, with the planner alone.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use model::{
    Change, Cluster, ClusterId, Health, Intent, Life, MemoryCaps, Meta, Node, NodeId, ProcessEpoch,
    Resources, Roles, Rollout, RolloutState, Service, ServiceName, ServiceSpec, Time, Txn, spec::ServiceFile,
};
use planner::{Ids, reconcile};

use crate::report::{Bar, Report};

const NODES: usize = 10_000;
const SERVICES: usize = 1_000;
const INSTANCES_EACH: u32 = 1_000;

/// Places them all, and returns the cluster for what comes next.
pub fn run(report: &mut Report) -> Cluster {
    let (cluster, placed, took, bytes) = place_a_million(NODES);
    report.line("placing_1m_instances_on_10k_nodes", placed as f64 / took, "/s", Bar::AtLeast(200_000.0));
    report.line("memory_per_instance", bytes, "bytes", Bar::AtMost(600.0));
    cluster
}

/// A thousand services of a thousand instances, spread over so many nodes: the cluster, how many were
/// placed in how many seconds, and bytes per instance.
pub fn place_a_million(nodes: usize) -> (Cluster, usize, f64, f64) {
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
    for n in 0..SERVICES {
        cluster.apply(&Change::Service(service(n)));
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
    let took = started.elapsed().as_secs_f64();
    assert_eq!(placed, SERVICES * INSTANCES_EACH as usize);
    let bytes = resident_bytes().saturating_sub(before) as f64 / placed as f64;
    (cluster, placed, took, bytes)
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

fn service(n: usize) -> Service {
    Service {
        name: ServiceName::new(&format!("service-{n:04}")),
        count: INSTANCES_EACH,
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
