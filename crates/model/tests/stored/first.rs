//! What the first release wrote: the records of `records/first.txt`, as this binary has to understand them.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Actual, AuditEntry, Change, ClusterId, Code, Desired, Drain, DrainNode, DrainOptions, DrainState, Ending,
    Exit, Health, Instance, InstanceId, Intent, Life, MemoryCaps, Meta, Millis, Node, NodeId, NodeIx,
    ProcessEpoch, Resources, Return, Roles, Rollout, RolloutState, Scratch, Service, ServiceIx, ServiceName,
    Then, Time, Volume, VolumeId, spec::ServiceFile,
};

pub fn meta() -> Change {
    Change::Meta(Meta {
        cluster: ClusterId(0x0123_4567_89ab_cdef),
        instance_ids_reserved: 3072,
        audit_next: 12,
        drain_epoch: 7,
        maintainer_epoch: 0,
    })
}

fn node(id: &str) -> Node {
    Node {
        id: NodeId::new(id),
        roles: Roles { coordinator: true, worker: true, edge: false },
        intent: Intent::Active,
        health: Health::Up,
        health_since: Time(1_700_000_000_001),
        labels: BTreeMap::from([("rack".to_owned(), "r1".to_owned()), ("zone".to_owned(), "z".to_owned())]),
        capacity: Resources { memory: 8 << 30, cpu: 4000 },
        process_epoch: ProcessEpoch(3),
        life: Life(0xfeed_f00d),
        host: "10.0.0.1".to_owned(),
        api: "10.0.0.1:7070".to_owned(),
        memory_caps: MemoryCaps::CgroupV2,
        foreign: false,
        registered_at: Time(1_699_999_999_000),
        lingers: None,
        goodbye: false,
    }
}

pub fn nodes() -> Vec<Change> {
    let closed = Node {
        intent: Intent::Drained,
        health: Health::Degraded(Code::MemoryExceeded),
        memory_caps: MemoryCaps::None("no cgroups".to_owned()),
        foreign: true,
        ..node("n2")
    };
    let stopping = Node {
        intent: Intent::Stopping,
        health: Health::Offline,
        memory_caps: MemoryCaps::CgroupV1,
        labels: BTreeMap::new(),
        ..node("n3")
    };
    let disabled = Node { intent: Intent::Disabled, ..node("n4") };
    [node("n1"), closed, stopping, disabled].map(Change::Node).to_vec()
}

const WEB: &str = r#"{"name": "web", "count": 6, "command": ["./web", "--port", "${PORT_HTTP}"],
    "env": {"A": "1"}, "memory": "64MiB", "cpu": 100, "ports": ["http", "admin"],
    "check": {"http": "/ready", "port": "http", "interval": "500ms", "timeout": "2s"},
    "edge": {"port": "http", "listen": 8080}, "stop": {"signal": "SIGINT", "grace": "3s"},
    "migrate": {"max_parallel": 2, "min_healthy_time": "1s", "healthy_deadline": "1m", "surge": false},
    "update": {"max_parallel": 3, "healthy_deadline": "2m", "surge": true},
    "disk": {"migrate": true}, "constraints": {"rack": "r1"}}"#;
const DB: &str = r#"{"name": "db", "count": 2, "command": ["db"], "memory": "1GiB", "ports": ["sql"],
    "check": {"tcp": "sql"}, "volume": {"name": "data"}}"#;
const JOB: &str =
    r#"{"name": "job", "kind": "batch", "command": ["sh", "-c", "true"], "memory": "8MiB", "rerun": false}"#;
const LOGS: &str = r#"{"name": "logs", "kind": "system", "command": ["logs"], "memory": "8MiB",
    "check": {"command": ["test", "-e", "x"]}}"#;

fn service(file: &str, rollout: RolloutState) -> Service {
    let file: ServiceFile = serde_json::from_str(file).unwrap();
    let (name, count, spec) = file.check().unwrap();
    let spec = Arc::new(spec);
    Service {
        name,
        count,
        release: 2,
        healthy: Some(1),
        releases: BTreeMap::from([(1, spec.clone()), (2, spec)]),
        rollout: Rollout { state: rollout, progress_at: Time(5), ready_max: 4 },
        removed: false,
        created_at: Time(2),
    }
}

pub fn services() -> Vec<Change> {
    let failed = RolloutState::Failed { reason: Code::CrashLooping, message: "exit code 1".to_owned() };
    let gone = Service { removed: true, healthy: None, ..service(LOGS, RolloutState::Complete) };
    let all = [
        service(DB, RolloutState::Rolling),
        service(JOB, RolloutState::Complete),
        gone,
        service(WEB, failed),
    ];
    all.map(Change::Service).to_vec()
}

fn instance(number: u64, service: u32, node: u32) -> Instance {
    Instance {
        id: InstanceId(number),
        service: ServiceIx(service),
        node: NodeIx(node),
        release: 2,
        memory: 64 << 20,
        cpu: 100,
        slot: None,
        desired: Desired::Running,
        actual: Actual::Ready,
        order: 3,
        restarts: 1,
        pid: Some(4711),
        ports: Box::new([20_001, 20_002]),
        reason: None,
        message: None,
        exit: None,
        replaces: None,
        scratch: Scratch::Own,
        created_at: Time(100),
        healthy_since: Some(Time(140)),
        ended_at: None,
        desired_since: Time(100),
    }
}

/// One in each state that was reported; services and nodes by their place in the lists above.
pub fn instances() -> Vec<Change> {
    let actual = [
        (Actual::Pending, Desired::Running),
        (Actual::Starting, Desired::Running),
        (Actual::Unready, Desired::Draining),
        (Actual::Stopping, Desired::Stopped),
        (Actual::Lost, Desired::Stopped),
    ];
    let at =
        |(number, (actual, desired))| Instance { actual, desired, ..instance(0x300 + number as u64, 3, 0) };
    let mut all: Vec<Instance> = actual.into_iter().enumerate().map(at).collect();
    all.push(instance(0x400, 3, 1));
    all.push(Instance { slot: Some(1), replaces: Some(InstanceId(9)), ..instance(0x401, 0, 2) });
    let ends = [Exit::Code(3), Exit::Signal(9), Exit::Unknown];
    for (number, exit) in ends.into_iter().enumerate() {
        all.push(Instance {
            actual: if number == 0 { Actual::Failed } else { Actual::Stopped },
            desired: Desired::Stopped,
            exit: Some(exit),
            reason: Some(Code::CrashLooping),
            message: Some("ended".into()),
            pid: None,
            ended_at: Some(Time(150)),
            ..instance(0x500 + number as u64, 1, 3)
        });
    }
    all.into_iter().map(Change::Instance).collect()
}

pub fn volume() -> Change {
    Change::Volume(Volume {
        id: VolumeId::new("db-data-1"),
        service: ServiceName::new("db"),
        name: "data".to_owned(),
        slot: 1,
        home: NodeId::new("n3"),
        expected: true,
        created_at: Time(99),
    })
}

pub fn audit() -> Change {
    Change::Audit(AuditEntry {
        number: 11,
        at: Time(777),
        who: "anonymous".to_owned(),
        from: "10.0.0.9".to_owned(),
        what: "PUT /v1/nodes/n2/drain".to_owned(),
    })
}

fn part(node: &str, state: DrainState) -> DrainNode {
    DrainNode {
        node: NodeId::new(node),
        options: DrainOptions {
            deadline: Some(Millis(60_000)),
            ignore_system: true,
            ack_stateful: true,
            include_stateful: true,
            then: Then::Stop,
            back: Return::Restart,
        },
        state,
        started_at: Some(Time(200)),
        deadline: Some(Time(60_200)),
        deadline_reached: true,
        ended_at: Some(Time(300)),
        total: 4,
        progress_at: Some(Time(250)),
        done: 3,
        blocked: true,
        stalled: true,
        left: vec![("instance/db-1".to_owned(), Code::VolumeLocal)],
        withdrawing_since: None,
    }
}

pub fn drain() -> Change {
    let endings =
        [Ending::Drained, Ending::DrainedExcept, Ending::Cancelled, Ending::NodeLost, Ending::Failed];
    let ended = endings.into_iter().enumerate();
    let mut nodes: Vec<DrainNode> =
        ended.map(|(number, ending)| part(&format!("n{number}"), DrainState::Ended(ending))).collect();
    nodes.push(part("n8", DrainState::Draining));
    nodes.push(DrainNode::queued(NodeId::new("n9"), DrainOptions::default()));
    Change::Drain(Drain {
        epoch: 7,
        by: "anonymous".to_owned(),
        from: "10.0.0.9".to_owned(),
        message: "kernel update".to_owned(),
        meta: BTreeMap::from([("ticket".to_owned(), "OPS-1".to_owned())]),
        created_at: Time(190),
        nodes,
    })
}

/// In an order in which each finds what it refers to.
pub fn all() -> Vec<Change> {
    let mut all = vec![meta()];
    all.extend(nodes());
    all.extend(services());
    all.extend(instances());
    all.extend([volume(), audit(), drain()]);
    all
}
