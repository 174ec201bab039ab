//! What the second release writes, beside what the first one wrote and it still does: feeds, store groups, stores and
//! tokens, and what nodes, drains and instances have learnt.

use std::sync::Arc;

use model::{
    Access, AskedMove, Change, Checkpoint, Code, Drain, DrainNode, DrainOptions, Evict, Feed, FeedState,
    Instance, InstanceId, Lingering, Maintainer, MaintainerEpoch, Meta, Node, NodeId, Offline, OfflineWhy,
    Origin, OwnEvictor, ProcessEpoch, Removal, Restart, RestartWhy, Scratch, Service, SpanName, SpanSet,
    Store, StoreGroup, Then, Time, Token, Trouble,
    spec::{FeedFile, StoreGroupFile},
};

use crate::first;

fn metas() -> Vec<Change> {
    let Change::Meta(meta) = first::meta() else { panic!("a record of another kind") };
    vec![Change::Meta(Meta { maintainer_epoch: 31, ..meta })]
}

fn nodes() -> Vec<Change> {
    let mut nodes = first::nodes();
    let Change::Node(node) = nodes[0].clone() else { panic!("a record of another kind") };
    let lingers = Some(Lingering { epoch: ProcessEpoch(2), until: Time(1_700_000_060_000) });
    nodes.push(Change::Node(Node { id: NodeId::new("n5"), lingers, ..node.clone() }));
    nodes.push(Change::Node(Node { id: NodeId::new("n6"), goodbye: true, lingers, ..node }));
    nodes
}

fn instances() -> Vec<Change> {
    let mut all = first::instances();
    let Change::Instance(instance) = all[0].clone() else { panic!("a record of another kind") };
    let scratch = [Scratch::Own, Scratch::Takes, Scratch::Left, Scratch::PassedOn];
    all.extend(scratch.into_iter().enumerate().map(|(number, scratch)| {
        let id = InstanceId(0x600 + number as u64);
        Change::Instance(Instance { id, scratch, desired_since: Time(321), ..instance.clone() })
    }));
    all
}

fn drains() -> Vec<Change> {
    let Change::Drain(drain) = first::drain() else { panic!("a record of another kind") };
    let mut leaving = DrainNode::queued(NodeId::new("n5"), DrainOptions::default());
    leaving.withdrawing_since = Some(Time(290));
    let awaited = DrainOptions { then: Then::AwaitStop, ..DrainOptions::default() };
    let awaited = DrainNode::queued(NodeId::new("n6"), awaited);
    let with = |epoch, nodes| Change::Drain(Drain { epoch, nodes, ..drain.clone() });
    vec![Change::Drain(drain.clone()), with(8, vec![leaving]), with(9, vec![awaited])]
}

const FEEDS: [&str; 5] = [
    r#"{"name": "orders", "source": {"kind": "postgres", "url": "postgres://me:pw@a/shop", "publication": "tide"},
        "sink": {"kind": "postgres", "url": "postgres://me:pw@b/copy"}, "constraints": {"rack": "r1"}}"#,
    r#"{"name": "lines", "source": {"kind": "log", "path": "/in"}, "sink": {"kind": "file", "path": "/out"}}"#,
    r#"{"name": "mixed", "source": {"kind": "log", "path": "/in"}, "sink": {"kind": "postgres", "url": "postgres://h/d"}}"#,
    r#"{"name": "ours", "kind": "command", "command": ["./feed"], "env": {"A": "1"}}"#,
    r#"{"name": "rest", "kind": "idle", "spans": 9}"#,
];

fn feeds() -> Vec<Change> {
    let states = [FeedState::Running, FeedState::Paused, FeedState::Removing];
    let feed = |(number, file): (usize, &&str)| {
        let file: FeedFile = serde_json::from_str(file).unwrap();
        let (name, spec) = file.check().unwrap();
        let origin = Origin { node: NodeId::new("n1"), process: ProcessEpoch(2), epoch: MaintainerEpoch(29) };
        let maintainer = Maintainer {
            node: NodeId::new("n2"),
            process: ProcessEpoch(3),
            epoch: MaintainerEpoch(30),
            from: (number % 2 == 0).then_some(origin),
            since: Time(500),
        };
        let asked = AskedMove { number: 7, span: SpanName::new("public.b"), to: NodeId::new("n1") };
        let names: Arc<[SpanName]> = ["public.a", "public.b"].into_iter().map(SpanName::new).collect();
        Change::Feed(Feed {
            name,
            spec: Arc::new(spec),
            state: states[number % states.len()],
            spans: SpanSet { generation: 4, names },
            maintainer: (number != 4).then_some(maintainer),
            epoch: MaintainerEpoch(30),
            checkpoint: (number != 3).then_some(Checkpoint { position: 123_456, at: Time(600) }),
            created_at: Time(400),
            asked: (number == 1).then_some(asked).into_iter().collect(),
        })
    };
    FEEDS.iter().enumerate().map(feed).collect()
}

const GROUPS: [&str; 3] = [
    r#"{"name": "kv", "replicas": 3, "command": ["redis-server"], "ports": ["kv", "bus"], "volume": {"name": "data"},
        "backend": {"kind": "redis-cluster", "endpoints": ["redis://me:pw@h:1"], "primaries_min": 4}, "topology": "rack"}"#,
    r#"{"name": "tikv", "command": ["tikv-server"], "ports": ["kv"], "volume": {"name": "data", "movable": true, "path": "/shared"},
        "backend": {"kind": "pd", "endpoints": ["http://pd:2379"]}, "max_eviction_time": "90s"}"#,
    r#"{"name": "own", "command": ["own"], "ports": ["a", "b"], "port": "b", "volume": {"name": "data"},
        "backend": {"kind": "command", "command": ["./backend"]}}"#,
];

/// Each with the service that its processes are instances of.
fn store_groups() -> Vec<Change> {
    let Change::Service(template) = first::services().remove(0) else { panic!("a record of another kind") };
    let group = |file: &&str| {
        let file: StoreGroupFile = serde_json::from_str(file).unwrap();
        let (name, replicas, spec, process) = file.check().unwrap();
        let service = Service {
            name: model::ServiceName::new(name.as_str()),
            releases: [(2, Arc::new(process))].into(),
            ..template.clone()
        };
        let group = StoreGroup {
            name,
            replicas: replicas.unwrap_or(3),
            spec: Arc::new(spec),
            next_ordinal: 5,
            destroyed: replicas.is_none(),
            created_at: Time(700),
        };
        [Change::Service(service), Change::StoreGroup(group)]
    };
    GROUPS.iter().flat_map(group).collect()
}

fn stores() -> Vec<Change> {
    let group = model::StoreGroupName::new("kv");
    let plain = Store::new(&group, 0, Time(701));
    let trouble = Trouble {
        code: Code::BackendError,
        message: "words".to_owned(),
        since: Time(710),
        failures: 2,
        next_try: Time(715),
        refusal: true,
        reading: true,
    };
    let leaving = Store {
        marked: true,
        offline: Some(Offline { since: Time(705), why: OfflineWhy::ScaleIn }),
        identity: Some("7".to_owned()),
        evictor: Some(OwnEvictor { began_at: Time(706), memo: "a".to_owned() }),
        removal: Some(Removal {
            memo: "b".to_owned(),
            since: Time(707),
            skip_eviction: true,
            begun: Some(Time(708)),
            forgetting: true,
        }),
        removed_at: Some(Time(709)),
        trouble: Some(trouble),
        ..Store::new(&group, 1, Time(702))
    };
    let restarts = [RestartWhy::Asked, RestartWhy::Update, RestartWhy::Drain];
    let restarting = restarts.into_iter().enumerate().map(|(number, why)| Store {
        offline: Some(Offline { since: Time(705), why: OfflineWhy::Drain }),
        cancelled_at: Some(Time(703)),
        restart: Some(Restart {
            began_at: Time(704),
            why,
            instance: Some(InstanceId(0x401)),
            stopped_at: Some(Time(720)),
        }),
        evict: Some(Evict { began_at: Time(721) }),
        ..Store::new(&group, 2 + number as u32, Time(702))
    });
    [plain, leaving].into_iter().chain(restarting).map(Change::Store).collect()
}

fn tokens() -> Vec<Change> {
    let token = |name: &str, access, expires_at| {
        Change::Token(Token {
            name: name.to_owned(),
            access,
            hash: std::array::from_fn(|at| at as u8),
            created_at: Time(800),
            created_by: "cert:root".to_owned(),
            expires_at,
        })
    };
    vec![token("alice", Access::Viewer, None), token("bob", Access::Operator, Some(Time(900)))]
}

/// In an order in which each finds what it refers to.
pub fn all() -> Vec<Change> {
    let rest = vec![first::volume(), first::audit()];
    let all = [
        metas(),
        nodes(),
        first::services(),
        store_groups(),
        instances(),
        rest,
        drains(),
        feeds(),
        stores(),
        tokens(),
    ];
    all.into_iter().flatten().collect()
}
