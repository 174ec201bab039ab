//! Stored records of every kind and version. A known input is a key, a line's end, and the value below it.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Access, AskedMove, AuditEntry, Change, Checkpoint, Cluster, ClusterId, Code, Drain, DrainNode,
    DrainOptions, DrainState, Feed, FeedState, Health, Instance, InstanceId, Intent, Life, Maintainer,
    MaintainerEpoch, MemoryCaps, Meta, Node, NodeId, NodeIx, Origin, ProcessEpoch, Resources, Roles, Rollout,
    RolloutState, Scratch, Service, ServiceIx, ServiceName, SpanName, SpanSet, Store, StoreGroup, Then, Time,
    Token, Volume, VolumeId, decode_record, encode_change, spec::file::SpecFile,
};

const FILE: &str = r#"{
    "service": [{"name": "web", "command": ["serve", "${PORT_HTTP}"], "memory": "64MiB", "ports": ["http"],
        "check": {"http": "/", "port": "http"}, "edge": {"port": "http", "listen": 80}}],
    "feed": [{"name": "orders", "source": {"kind": "postgres", "url": "postgres://u:p@h/d", "publication": "p"},
        "sink": {"kind": "file", "path": "/to"}}],
    "store_group": [{"name": "kv", "command": ["kv"], "ports": ["kv"], "volume": {"name": "data"},
        "backend": {"kind": "redis-cluster", "endpoints": ["redis://me:secret@h:1"]}}]
}"#;

fn node() -> Node {
    Node {
        id: NodeId::new("n1"),
        roles: Roles::WORKER,
        intent: Intent::Active,
        health: Health::Degraded(Code::DiskFull),
        health_since: Time(3),
        labels: BTreeMap::from([("rack".to_owned(), "r1".to_owned())]),
        capacity: Resources { memory: 1 << 30, cpu: 4000 },
        process_epoch: ProcessEpoch(7),
        life: Life(8),
        host: "127.0.0.1".to_owned(),
        api: "127.0.0.1:7070".to_owned(),
        memory_caps: MemoryCaps::CgroupV2,
        foreign: false,
        registered_at: Time(9),
        lingers: None,
        goodbye: false,
    }
}

fn drain(then: Then) -> Drain {
    let options = DrainOptions { then, ..DrainOptions::default() };
    Drain {
        epoch: 7,
        by: "anonymous".to_owned(),
        from: "127.0.0.1:9".to_owned(),
        message: "kernel".to_owned(),
        meta: BTreeMap::from([("ticket".to_owned(), "OPS-1".to_owned())]),
        created_at: Time(4),
        nodes: vec![DrainNode::queued(NodeId::new("n1"), options)],
    }
}

/// One of each kind.
fn all() -> (Cluster, Vec<Change>) {
    let (mut cluster, now) = (Cluster::default(), Time(1_000));
    let file: SpecFile = serde_json::from_str(FILE).unwrap();
    let (name, count, spec) = file.service[0].check().unwrap();
    let spec = Arc::new(spec);
    let rollout = Rollout {
        state: RolloutState::Failed { reason: Code::StartFailed, message: "no such file".to_owned() },
        progress_at: now,
        ready_max: 1,
    };
    let service = Service {
        name,
        count,
        release: 2,
        healthy: Some(1),
        releases: BTreeMap::from([(1, spec.clone()), (2, spec.clone())]),
        rollout,
        removed: false,
        created_at: now,
    };
    let mut changes = vec![
        Change::Meta(Meta { cluster: ClusterId(3), audit_next: 5, ..Meta::default() }),
        Change::Node(node()),
        Change::Service(service),
    ];
    changes.iter().for_each(|change| cluster.apply(change));
    let mut instance = Instance::new(InstanceId(0x109), ServiceIx(0), NodeIx(0), 1, &spec, now);
    (instance.message, instance.ports) = (Some("on its way".into()), vec![8080].into_boxed_slice());
    changes.push(Change::Instance(Instance { scratch: Scratch::Takes, ..instance.clone() }));
    changes.push(Change::Instance(instance));
    changes.push(Change::Node(Node { id: NodeId::new("n2"), goodbye: true, ..node() }));
    changes.extend([Then::Stay, Then::AwaitStop].map(|then| Change::Drain(drain(then))));
    changes.extend(feeds(&file));
    changes.extend(groups(&file));
    changes.push(Change::Volume(Volume {
        id: VolumeId::new("db-data-0"),
        service: ServiceName::new("db"),
        name: "data".to_owned(),
        slot: 0,
        home: NodeId::new("n1"),
        expected: true,
        created_at: now,
    }));
    let (who, from, what) = ("token:ops".to_owned(), "127.0.0.1:9".to_owned(), "apply web".to_owned());
    changes.push(Change::Audit(AuditEntry { number: 4, at: now, who, from, what }));
    changes.push(Change::Token(Token {
        name: "ops".to_owned(),
        access: Access::Operator,
        hash: [7; 32],
        created_at: now,
        created_by: "cert:alice".to_owned(),
        expires_at: Some(Time(9_000)),
    }));
    (cluster, changes)
}

fn feeds(file: &SpecFile) -> [Change; 1] {
    let (name, spec) = file.feed[0].check().unwrap();
    let (process, epoch) = (ProcessEpoch(7), MaintainerEpoch(2));
    let from = Some(Origin { node: NodeId::new("n2"), process, epoch: MaintainerEpoch(1) });
    [Change::Feed(Feed {
        name,
        spec: Arc::new(spec),
        state: FeedState::Paused,
        spans: SpanSet { generation: 3, names: [SpanName::new("public.orders")].into() },
        maintainer: Some(Maintainer { node: NodeId::new("n1"), process, epoch, from, since: Time(5) }),
        epoch,
        checkpoint: Some(Checkpoint { position: 812, at: Time(4) }),
        created_at: Time(1),
        asked: vec![AskedMove { number: 6, span: SpanName::new("public.orders"), to: NodeId::new("n3") }],
    })]
}

fn groups(file: &SpecFile) -> [Change; 2] {
    let (name, _, spec, _) = file.store_group[0].check().unwrap();
    let store = Store::new(&name, 0, Time(2));
    let spec = spec.into();
    let group =
        StoreGroup { name, replicas: 3, spec, next_ordinal: 4, destroyed: false, created_at: Time(2) };
    [Change::StoreGroup(group), Change::Store(store)]
}

/// Records in their first shape, as the binaries that wrote them left them.
fn first_shapes() -> [(String, Vec<u8>); 3] {
    let (node, drain) = (node(), drain(Then::Stay));
    let part = (
        NodeId::new("n1"),
        DrainOptions::default(),
        DrainState::Draining,
        (Some(Time(5)), None::<Time>, false, None::<Time>, 4u32, Some(Time(6)), 3u32, false, true),
        vec![("instance/db-1".to_owned(), Code::VolumeLocal)],
    );
    let drain = (7u64, drain.by, drain.from, drain.message, drain.meta, Time(4), vec![part]);
    let node = (
        (node.id, node.roles, node.intent, node.health, node.health_since, node.labels, node.capacity),
        (node.process_epoch, node.life, node.host, node.api, node.memory_caps, node.foreign, Time(9)),
    );
    [
        ("m/meta".to_owned(), postcard::to_extend(&(3u64, 4u64, 5u64, 6u64), vec![1]).unwrap()),
        ("n/n1".to_owned(), postcard::to_extend(&node, vec![1]).unwrap()),
        ("d/0000000000000007".to_owned(), postcard::to_extend(&drain, vec![1]).unwrap()),
    ]
}

fn example(key: &str, value: &[u8]) -> Vec<u8> {
    [key.as_bytes(), b"\n", value].concat()
}

#[test]
fn a_stored_record_is_refused_or_read_as_what_is_stored_again() {
    let (cluster, changes) = all();
    let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
    for change in &changes {
        let (key, value) = encode_change(&cluster, change);
        let value = value.unwrap();
        assert_eq!(decode_record(&cluster, &key, Some(&value)).unwrap(), *change);
        kept.push((format!("{}-{}", key.replace('/', "_"), value[0]), example(&key, &value)));
    }
    for (key, value) in first_shapes() {
        assert!(decode_record(&cluster, &key, Some(&value)).is_ok(), "{key} of version 1");
        kept.push((format!("{}-1", key.replace('/', "_")), example(&key, &value)));
    }
    let kept: Vec<(&str, Vec<u8>)> =
        kept.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    hostile::keep!("records", &kept);
    hostile::throw!("records", |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let Ok(key) = std::str::from_utf8(&bytes[..end]) else { return };
        let value = bytes.get(end + 1..);
        let Ok(change) = decode_record(&cluster, key, value) else { return };
        let (key, value) = encode_change(&cluster, &change);
        assert_eq!(decode_record(&cluster, &key, value.as_deref()).ok(), Some(change), "{key}");
    });
}
