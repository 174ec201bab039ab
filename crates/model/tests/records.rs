//! Records as they are stored.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Access, Change, Cluster, Code, Health, Instance, InstanceId, Intent, Life, MemoryCaps, Node, NodeId,
    NodeIx, Offline, OfflineWhy, OwnEvictor, ProcessEpoch, Removal, Resources, Restart, RestartWhy, Roles,
    Rollout, RolloutState, Scratch, Service, ServiceIx, Store, StoreGroup, Time, Token, Trouble,
    decode_record, encode_change,
    spec::{ServiceFile, StoreGroupFile},
};

/// One node, one service, and an instance of it.
fn cluster() -> (Cluster, Instance) {
    let toml = r#"{"name": "web", "command": ["true"], "memory": "64MiB"}"#;
    let file: ServiceFile = serde_json::from_str(toml).unwrap();
    let (name, _, spec) = file.check().unwrap();
    let (mut cluster, now, spec) = (Cluster::default(), Time(1_000), Arc::new(spec));
    cluster.apply(&Change::Node(Node {
        id: NodeId::new("n1"),
        roles: Roles::WORKER,
        intent: Intent::Active,
        health: Health::Up,
        health_since: now,
        labels: BTreeMap::new(),
        capacity: Resources { memory: 1 << 30, cpu: 4000 },
        process_epoch: ProcessEpoch(1),
        life: Life(1),
        host: "127.0.0.1".into(),
        api: String::new(),
        memory_caps: MemoryCaps::CgroupV2,
        foreign: false,
        registered_at: now,
        lingers: None,
        goodbye: false,
    }));
    cluster.apply(&Change::Service(Service {
        name,
        count: 1,
        release: 1,
        healthy: None,
        releases: BTreeMap::from([(1, spec.clone())]),
        rollout: Rollout { state: RolloutState::Rolling, progress_at: now, ready_max: 0 },
        removed: false,
        created_at: now,
    }));
    let mut instance = Instance::new(InstanceId(9), ServiceIx(0), NodeIx(0), 1, &spec, now);
    (instance.replaces, instance.reason) = (Some(InstanceId(4)), Some(Code::DiskCopying));
    instance.message = Some("on its way".into());
    instance.desired_since = now + model::Millis::secs(9);
    (cluster, instance)
}

#[test]
fn an_instance_is_read_back_as_it_was_whatever_becomes_of_its_scratch_data() {
    let (cluster, instance) = cluster();
    for scratch in [Scratch::Own, Scratch::Takes, Scratch::Left, Scratch::PassedOn] {
        let change = Change::Instance(Instance { scratch, ..instance.clone() });
        let (key, value) = encode_change(&cluster, &change);
        let value = value.unwrap();
        assert_eq!(
            value[0],
            if scratch == Scratch::Own { 1 } else { 2 },
            "only those are of the later version"
        );
        assert_eq!(decode_record(&cluster, &key, Some(&value)).unwrap(), change);
        // One cut leaves just what earlier binaries wrote of an instance: that is read, without the rest.
        let read = (0..value.len()).filter_map(|cut| decode_record(&cluster, &key, Some(&value[..cut])).ok());
        let before = Change::Instance(Instance { desired_since: instance.created_at, ..instance.clone() });
        let earlier: Vec<Change> = read.collect();
        assert_eq!(earlier, if scratch == Scratch::Own { vec![before] } else { vec![] });
    }
}

#[test]
fn a_version_from_the_future_is_said_and_not_guessed_at() {
    let (cluster, instance) = cluster();
    let (key, value) = encode_change(&cluster, &Change::Instance(instance));
    let mut value = value.unwrap();
    value[0] = 9;
    let error = decode_record(&cluster, &key, Some(&value)).unwrap_err().to_string();
    assert!(error.contains("version 9") && error.contains("newer tidegate"), "{error}");
}

#[test]
fn a_store_and_its_group_are_read_back_as_they_were_and_a_name_holds_nothing_up() {
    let (cluster, now) = (Cluster::default(), Time(7));
    let file = r#"{"name": "kv", "command": ["kv"], "ports": ["kv"], "volume": {"name": "data"},
        "backend": {"kind": "redis-cluster", "endpoints": ["redis://me:secret@h:1"]}}"#;
    let file: StoreGroupFile = serde_json::from_str(file).unwrap();
    let (name, replicas, spec, process) = file.check().unwrap();
    assert_eq!(replicas, None);
    let written = StoreGroupFile::of("kv", 3, &spec, &process);
    assert_eq!(written.check().unwrap(), (name.clone(), Some(3), spec.clone(), process.clone()));
    let shown = format!("{:?}", StoreGroupFile::shown("kv", 3, &spec, &process));
    assert!(!shown.contains("secret"), "{shown}");
    let group = StoreGroup {
        name: name.clone(),
        replicas: 3,
        spec: spec.into(),
        next_ordinal: 4,
        destroyed: false,
        created_at: now,
    };
    let restart =
        Restart { began_at: now, why: RestartWhy::Drain, instance: Some(InstanceId(3)), stopped_at: None };
    let trouble = Trouble {
        code: Code::BackendError,
        message: "words".into(),
        since: now,
        failures: 2,
        next_try: now,
        refusal: true,
        reading: false,
    };
    let store = Store {
        marked: true,
        offline: Some(Offline { since: now, why: OfflineWhy::Drain }),
        restart: Some(restart),
        evictor: Some(OwnEvictor { began_at: now, memo: "a".into() }),
        identity: Some("7".into()),
        removal: Some(Removal {
            memo: "b".into(),
            since: now,
            skip_eviction: true,
            begun: Some(now),
            forgetting: true,
        }),
        trouble: Some(trouble),
        ..Store::new(&name, 3, now)
    };
    for change in [Change::StoreGroup(group), Change::Store(store)] {
        let (key, value) = encode_change(&cluster, &change);
        assert_eq!(decode_record(&cluster, &key, value.as_deref()).unwrap(), change);
        let gone = decode_record(&cluster, &key, None).unwrap();
        assert_eq!(gone.key(), change.key());
        let loaded = model::load_ranges().iter().any(|(from, to)| *from <= key && key < *to);
        assert!(loaded, "{key} is in no range that is loaded");
    }
}

#[test]
fn a_token_is_read_back_and_found_by_its_hash_until_it_is_gone() {
    let mut cluster = Cluster::default();
    for (access, expires_at) in [(Access::Viewer, None), (Access::Operator, Some(Time(9)))] {
        let token = Token {
            name: "alice".to_owned(),
            access,
            hash: [7; 32],
            created_at: Time(1),
            created_by: "cert:root".to_owned(),
            expires_at,
        };
        let change = Change::Token(token.clone());
        let (key, value) = encode_change(&cluster, &change);
        assert_eq!(key, "k/alice");
        assert_eq!(decode_record(&cluster, &key, value.as_deref()).unwrap(), change);
        cluster.apply(&change);
        assert_eq!(cluster.token_with(&[7; 32]), Some(&token));
        assert_eq!((token.is_good(Time(8)), token.is_good(Time(9))), (true, expires_at.is_none()));
    }
    let gone = decode_record(&cluster, "k/alice", None).unwrap();
    cluster.apply(&gone);
    assert_eq!((cluster.token_with(&[7; 32]), cluster.tokens().len()), (None, 0));
}

#[test]
fn tokens_are_among_what_is_loaded() {
    let covered = |(from, to): &(String, String)| from.as_str() <= "k/alice" && "k/alice" < to.as_str();
    assert_eq!(model::load_ranges().iter().filter(|range| covered(range)).count(), 1);
}
