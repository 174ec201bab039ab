//! What is kept beside the records equals what a look at every record gives, whatever changes in
//! whatever order.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use model::{
    Actual, Change, Cluster, Code, Desired, Drain, DrainNode, DrainOptions, DrainState, Ending, Exit, Health,
    Instance, InstanceId, Intent, Life, MemoryCaps, Node, NodeId, NodeIx, ProcessEpoch, Resources, Roles,
    Rollout, RolloutState, Service, ServiceIx, ServiceSpec, Time, spec::ServiceFile,
};
use proptest::prelude::*;

const NODES: u32 = 4;
const SERVICES: u32 = 2;
const RELEASES: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Node { node: u32, intent: Intent, health: Health, zone: u8, edge: bool },
    Drain { node: u32, state: DrainState },
    Service { service: u32, release: u32, failed: bool, healthy: Option<u32> },
    Instance { id: u64, desired: Desired, actual: Actual, since: Option<u64>, release: u32 },
    Gone { id: u64 },
}

static SPECS: LazyLock<BTreeMap<u32, Arc<ServiceSpec>>> =
    LazyLock::new(|| (1..=RELEASES).map(|release| (release, spec(release))).collect());

fn spec(release: u32) -> Arc<ServiceSpec> {
    // The last release asks for a label that some nodes have.
    let constraints = match release {
        RELEASES => BTreeMap::from([("zone".to_owned(), "1".to_owned())]),
        _ => BTreeMap::new(),
    };
    let file = ServiceFile {
        name: "web".into(),
        kind: "service".into(),
        count: None,
        command: vec!["web".into()],
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
        constraints,
    };
    Arc::new(file.check().unwrap().2)
}

fn node(n: u32, intent: Intent, health: Health, zone: u8, edge: bool) -> Node {
    Node {
        id: NodeId::new(&format!("n{n}")),
        roles: Roles { edge, ..Roles::WORKER },
        intent,
        health,
        health_since: Time(0),
        labels: BTreeMap::from([("zone".to_owned(), zone.to_string())]),
        capacity: Resources { memory: 1 << 40, cpu: 4000 },
        process_epoch: ProcessEpoch(1),
        life: Life(1),
        host: "127.0.0.1".into(),
        api: String::new(),
        memory_caps: MemoryCaps::CgroupV2,
        foreign: false,
        registered_at: Time(0),
        lingers: None,
        goodbye: false,
    }
}

fn service(n: u32, release: u32, failed: bool, healthy: Option<u32>) -> Service {
    let state = match failed {
        true => RolloutState::Failed { reason: Code::Unhealthy, message: String::new() },
        false => RolloutState::Rolling,
    };
    Service {
        name: format!("s{n}").as_str().into(),
        count: 3,
        release,
        healthy,
        releases: SPECS.clone(),
        rollout: Rollout { state, progress_at: Time(0), ready_max: 0 },
        removed: false,
        created_at: Time(0),
    }
}

/// What never changes of an instance follows from its id: its service, its node, and whom it replaces.
fn fixed(id: u64) -> (ServiceIx, NodeIx, Option<InstanceId>) {
    let replaces = (id.is_multiple_of(3) && id > 4).then(|| InstanceId(id - 2 - (id % 2) * 2));
    (ServiceIx(id as u32 % SERVICES), NodeIx((id / 2) as u32 % NODES), replaces)
}

fn changed(step: &Step, epoch: u64) -> Change {
    match step.clone() {
        Step::Node { node: n, intent, health, zone, edge } => {
            Change::Node(node(n, intent, health, zone, edge))
        }
        Step::Drain { node, state } => {
            let mut part = DrainNode::queued(NodeId::new(&format!("n{node}")), DrainOptions::default());
            part.state = state;
            Change::Drain(Drain {
                // One drain per node, which goes on and ends and begins again.
                epoch: epoch + u64::from(node),
                by: String::new(),
                from: String::new(),
                message: String::new(),
                meta: BTreeMap::new(),
                created_at: Time(0),
                nodes: vec![part],
            })
        }
        Step::Service { service: n, release, failed, healthy } => {
            Change::Service(service(n, release, failed, healthy))
        }
        Step::Instance { id, desired, actual, since, release } => {
            let (service, node, replaces) = fixed(id);
            let mut instance =
                Instance::new(InstanceId(id), service, node, release, &SPECS[&release], Time(id));
            (instance.desired, instance.actual, instance.replaces) = (desired, actual, replaces);
            instance.healthy_since = since.map(Time);
            instance.exit = instance.is_over().then_some(Exit::Code(0));
            Change::Instance(instance)
        }
        Step::Gone { id } => Change::InstanceGone(InstanceId(id)),
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let intent =
        prop_oneof![3 => Just(Intent::Active), 1 => Just(Intent::Drained), 1 => Just(Intent::Disabled)];
    let health = prop_oneof![
        3 => Just(Health::Up),
        1 => Just(Health::Offline),
        1 => Just(Health::Degraded(Code::NodeUnreachable))
    ];
    let drain = prop_oneof![
        Just(DrainState::Queued),
        Just(DrainState::Draining),
        Just(DrainState::Ended(Ending::Cancelled))
    ];
    let desired =
        prop_oneof![4 => Just(Desired::Running), 1 => Just(Desired::Draining), 1 => Just(Desired::Stopped)];
    let actual = prop_oneof![
        4 => Just(Actual::Ready),
        1 => Just(Actual::Pending),
        1 => Just(Actual::Unready),
        1 => Just(Actual::Stopped),
        1 => Just(Actual::Failed),
        1 => Just(Actual::Lost)
    ];
    let release = 1..=RELEASES;
    let instance = (1..40u64, desired, actual, proptest::option::weighted(0.9, 0..5u64), release.clone());
    let healthy = proptest::option::of(release.clone());
    let step = prop_oneof![
        2 => (0..NODES, intent, health, 0..2u8, any::<bool>())
            .prop_map(|(node, intent, health, zone, edge)| Step::Node { node, intent, health, zone, edge }),
        2 => (0..NODES, drain).prop_map(|(node, state)| Step::Drain { node, state }),
        1 => (0..SERVICES, release, any::<bool>(), healthy)
            .prop_map(|(service, release, failed, healthy)| Step::Service { service, release, failed, healthy }),
        12 => instance.prop_map(|(id, desired, actual, since, release)| {
            Step::Instance { id, desired, actual, since, release }
        }),
        3 => (1..40u64).prop_map(|id| Step::Gone { id }),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn indexes_equal_a_recomputation_after_any_change(steps in steps()) {
        let mut cluster = Cluster::default();
        for n in 0..NODES {
            cluster.apply(&Change::Node(node(n, Intent::Active, Health::Up, 0, false)));
        }
        for n in 0..SERVICES {
            cluster.apply(&Change::Service(service(n, 1, false, None)));
        }
        for step in &steps {
            cluster.apply(&changed(step, 1));
            let found = checker::check(&cluster);
            let wrong: Vec<_> =
                found.iter().filter(|v| matches!(v, checker::Violation::IndexDisagrees { .. })).collect();
            prop_assert!(wrong.is_empty(), "after {step:?}: {wrong:?}");
        }
    }
}
