//! What a view says of a state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::spec::ServiceFile;
use model::{
    Actual, Change, Cluster, Exit, Health, Instance, InstanceId, Intent, Kind, Life, MemoryCaps, Node,
    NodeId, NodeIx, ProcessEpoch, Resources, Roles, Rollout, RolloutState, Service, ServiceIx, ServiceName,
    Time,
};

use super::service::Tally;
use super::*;

fn node(id: &str, health: Health) -> Node {
    Node {
        id: NodeId::new(id),
        roles: Roles::WORKER,
        intent: Intent::Active,
        health,
        health_since: Time(0),
        labels: BTreeMap::new(),
        capacity: Resources { memory: 1 << 30, cpu: 1000 },
        process_epoch: ProcessEpoch(1),
        life: Life(1),
        host: "10.0.0.1".to_owned(),
        api: "10.0.0.1:7070".to_owned(),
        memory_caps: MemoryCaps::CgroupV2,
        foreign: false,
        registered_at: Time(0),
        lingers: None,
        goodbye: false,
    }
}

fn file(kind: &str) -> ServiceFile {
    let text = format!(
        r#"{{"name": "web", "kind": "{kind}", "command": ["./web"], "memory": "64MiB", "ports": ["http", "admin"]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// One service on a node that is up and one that is silent.
fn cluster(kind: &str, count: u32) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.apply(&Change::Node(node("up", Health::Up)));
    cluster.apply(&Change::Node(node("silent", Health::Offline)));
    let (name, _, spec) = file(kind).check().unwrap();
    let state = RolloutState::Rolling;
    cluster.apply(&Change::Service(Service {
        name,
        count,
        release: 1,
        healthy: None,
        releases: BTreeMap::from([(1, Arc::new(spec))]),
        rollout: Rollout { state, progress_at: Time(0), ready_max: 0 },
        removed: false,
        created_at: Time(0),
    }));
    cluster
}

fn put(cluster: &mut Cluster, id: u64, on: u32, change: impl FnOnce(&mut Instance)) -> InstanceId {
    let spec = Arc::clone(cluster.service(ServiceIx(0)).unwrap().rec.spec());
    let mut instance =
        Instance::new(InstanceId(id), ServiceIx(0), NodeIx(on), 1, &spec, Time(1_700_000_000_000));
    change(&mut instance);
    cluster.apply(&Change::Instance(instance));
    InstanceId(id)
}

fn seen(cluster: &Cluster, id: InstanceId) -> InstanceView {
    instance_view(cluster, cluster.instance(id).unwrap())
}

#[test]
fn what_a_silent_node_last_said_is_unknown_but_lost_and_over_stay() {
    let mut cluster = cluster("service", 3);
    let ready = put(&mut cluster, 1, 1, |i| i.actual = Actual::Ready);
    let lost = put(&mut cluster, 2, 1, |i| i.actual = Actual::Lost);
    let over = put(&mut cluster, 3, 1, |i| i.actual = Actual::Failed);
    let here = put(&mut cluster, 4, 0, |i| i.actual = Actual::Ready);
    let shown = [ready, lost, over, here].map(|id| seen(&cluster, id).actual);
    assert_eq!(shown, ["unknown", "lost", "failed", "ready"]);
}

#[test]
fn an_instance_shows_its_ports_by_name_and_what_it_replaces() {
    let mut cluster = cluster("service", 2);
    let old = put(&mut cluster, 1 << 31, 0, |i| {
        i.actual = Actual::Failed;
        i.exit = Some(Exit::Signal(9));
        i.reason = Some(Code::MemoryExceeded);
    });
    let new = put(&mut cluster, 1 << 32, 0, |i| {
        i.ports = Box::new([20001, 20002]);
        i.replaces = Some(old);
    });
    let (old, new) = (seen(&cluster, old), seen(&cluster, new));
    assert_eq!(new.ports, BTreeMap::from([("http".to_owned(), 20001), ("admin".to_owned(), 20002)]));
    assert_eq!(new.replaces, Some(old.id.clone()));
    assert_eq!(old.exit, Some(ExitView { code: None, signal: Some(9) }));
    assert_eq!(
        (old.reasons[0].code.as_str(), old.reasons[0].unit.clone()),
        ("memory_exceeded", format!("instance/{}", old.id))
    );
    assert!(!old.reasons[0].message.is_empty() && !old.reasons[0].hint.is_empty());
    assert_eq!(new.created_at, "2023-11-14T22:13:20.000Z");
}

fn state(cluster: &Cluster) -> &'static str {
    Tally::of(cluster, ServiceIx(0), cluster.service(ServiceIx(0)).unwrap()).state()
}

#[test]
fn a_service_is_ok_degraded_or_pending_by_what_is_ready() {
    let mut cluster = cluster("service", 2);
    assert_eq!(state(&cluster), "pending");
    put(&mut cluster, 1, 1, |i| i.actual = Actual::Ready);
    assert_eq!(state(&cluster), "pending", "on a silent node it is not known to be ready");
    put(&mut cluster, 2, 0, |i| i.actual = Actual::Ready);
    assert_eq!(state(&cluster), "degraded");
    put(&mut cluster, 3, 0, |i| i.actual = Actual::Ready);
    assert_eq!(state(&cluster), "ok");
}

#[test]
fn a_batch_that_is_done_is_ok_and_a_service_of_none_too() {
    let mut done = cluster("batch", 1);
    put(&mut done, 1, 0, |i| {
        i.actual = Actual::Stopped;
        i.exit = Some(Exit::Code(0));
    });
    assert_eq!(state(&done), "ok");
    assert_eq!(state(&cluster("service", 0)), "ok");
}

#[test]
fn a_system_service_wants_one_on_every_node_that_may_have_it() {
    let mut cluster = cluster("system", 1);
    let wanted =
        |cluster: &Cluster| Tally::of(cluster, ServiceIx(0), cluster.service(ServiceIx(0)).unwrap()).wanted;
    assert_eq!(wanted(&cluster), 1);
    cluster.apply(&Change::Node(node("more", Health::Up)));
    assert_eq!(wanted(&cluster), 2);
    assert_eq!(cluster.service(ServiceIx(0)).unwrap().rec.spec().kind, Kind::System);
    assert_eq!(cluster.service_ix(ServiceName::new("web").as_str()), Some(ServiceIx(0)));
}

#[test]
fn times_beyond_the_calendar_are_shown_all_the_same() {
    assert_eq!(rfc3339(Time(0)), "1970-01-01T00:00:00.000Z");
    assert!(rfc3339(Time(u64::MAX)).starts_with("9999-12-30"));
}

/// Keys of an object, and of the objects in it.
fn keys(value: &serde_json::Value, at: &str, found: &mut BTreeSet<String>) {
    for (key, inner) in value.as_object().into_iter().flatten() {
        found.insert(format!("{at}{key}"));
        if !matches!(key.as_str(), "env" | "constraints") {
            keys(inner, &format!("{at}{key}."), found);
        }
    }
}

#[test]
fn the_documented_shape_of_a_service_file_is_the_real_one() {
    let mut file = file("service");
    file.count = Some(1);
    file.check =
        serde_json::from_str(r#"{"http": "/", "port": "http", "tcp": "http", "command": ["x"]}"#).unwrap();
    file.edge = serde_json::from_str(r#"{"port": "http", "listen": 80}"#).unwrap();
    file.volume = serde_json::from_str(r#"{"name": "data"}"#).unwrap();
    let real = serde_json::to_value(&file).unwrap();
    let shape: ServiceShape = serde_json::from_value(real.clone()).unwrap();
    let (mut documented, mut found) = (BTreeSet::new(), BTreeSet::new());
    keys(&serde_json::to_value(&shape).unwrap(), "", &mut documented);
    keys(&real, "", &mut found);
    assert_eq!(documented, found);
}
