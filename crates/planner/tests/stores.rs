//! What to do next with a store: every cell of the table, and who goes or is rescued first.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use model::{
    Actual, BackendCall, BackendSpec, BackendState, Change, Cluster, ClusterId, Code, Count, Evict, Health,
    Instance, InstanceId, Intent, Life, MemoryCaps, Meta, Millis, Node, NodeId, Offline, OfflineWhy,
    OwnEvictor, ProcessEpoch, Removal, Resources, Restart, RestartWhy, Roles, Rollout, RolloutState, Service,
    Store, StoreGroup, StoreGroupName, StoreGroupSpec, StoreId, Time, Trouble, spec::StoreGroupFile,
};
use planner::stores::{
    Evictors, Moved, OffliningReason, Process, Sighting, Situation, Step, Wait, next, offlining,
    rescue_order, selection_order,
};

const NOW: Time = Time(1_000_000);
const OLD: InstanceId = InstanceId(1);
const NEW: InstanceId = InstanceId(2);

fn spec() -> StoreGroupSpec {
    StoreGroupSpec {
        backend: BackendSpec::Command { command: vec!["backend".into()] },
        port: "kv".into(),
        movable: None,
        max_eviction: Millis::secs(300),
        topology: None,
    }
}

fn joined() -> Store {
    Store { identity: Some("7".into()), ..Store::new(&StoreGroupName::new("kv"), 0, Time(1)) }
}

fn leaving() -> Store {
    Store { offline: Some(Offline { since: NOW, why: OfflineWhy::ScaleIn }), ..joined() }
}

fn removal(begun: bool, forgetting: bool) -> Option<Removal> {
    let begun = begun.then_some(NOW);
    Some(Removal { memo: "memo".into(), since: NOW, skip_eviction: false, begun, forgetting })
}

fn evictor() -> Option<OwnEvictor> {
    Some(OwnEvictor { began_at: NOW, memo: "evictors".into() })
}

fn restart() -> Option<Restart> {
    Some(Restart { began_at: NOW, why: RestartWhy::Asked, instance: Some(OLD), stopped_at: None })
}

fn count(value: u64) -> Count {
    Count { value, complete: true }
}

fn serving(leaders: u64) -> BackendState {
    BackendState::Serving { leaders: count(leaders), data: 100 }
}

fn removing(leaders: u64, data_left: u64) -> BackendState {
    BackendState::Removing { leaders: count(leaders), data_left, progress: 0.5 }
}

/// Just heard.
fn saw(store: &Store, state: BackendState) -> Sighting {
    let with_removal = store.removal.as_ref().is_some_and(|removal| removal.begun.is_some());
    Sighting { state: Some(state), at: NOW, heard: NOW, with_removal, ..Sighting::default() }
}

fn ready(id: InstanceId) -> Process {
    Process::Ready { id, address: Some("n1:1".into()) }
}

fn decide(store: &Store, seen: &Sighting) -> Step {
    decide_with(store, seen, ready(OLD))
}

fn decide_with(store: &Store, seen: &Sighting, process: Process) -> Step {
    next(&Situation {
        store,
        seen,
        spec: &spec(),
        process,
        held_up: None,
        alone: false,
        hurried: false,
        destroyed: false,
        now: NOW,
    })
}

/// The call, or what is recorded or waited for, in a word.
fn told(step: &Step, before: &Store) -> String {
    match step {
        Step::Rest { .. } => "rest".into(),
        Step::Call(call) => call.name().into(),
        Step::StopProcess => "stop process".into(),
        Step::Remove => "remove".into(),
        Step::Wait { wait, .. } => format!("wait {}", wait.code),
        Step::Record(after) => {
            let fields = [
                ("removed", before.removed_at != after.removed_at),
                ("removal", before.removal != after.removal),
                ("evictor", before.evictor != after.evictor),
                ("restart", before.restart != after.restart),
            ];
            let changed: Vec<&str> =
                fields.iter().filter(|(_, changed)| *changed).map(|(name, _)| *name).collect();
            format!("record {}", changed.join(" "))
        }
    }
}

#[test]
fn every_cell_of_the_table_offline_wanted_by_what_the_backend_says() {
    let begun = |store: Store| Store { removal: removal(true, false), ..store };
    let passed = |store: Store| Store { removal: removal(false, false), ..store };
    let evicted = |store: Store| Store { evictor: evictor(), ..store };
    let cases: Vec<(&str, Store, BackendState, &str)> = vec![
        ("not wanted, serving", joined(), serving(5), "rest"),
        ("not wanted, serving, preflight had passed", passed(joined()), serving(5), "record removal"),
        ("not wanted, serving, had been begun", begun(joined()), serving(5), "cancel offline"),
        ("not wanted, serving, an evictor of ours", evicted(joined()), serving(5), "stop evicting leaders"),
        ("not wanted, removing", begun(joined()), removing(0, 50), "cancel offline"),
        ("not wanted, removing, not by us", joined(), removing(0, 50), "cancel offline"),
        ("not wanted, removed", begun(joined()), BackendState::Removed, "record removed"),
        ("not wanted, unknown", joined(), BackendState::Unknown, "identify"),
        (
            "not wanted, unknown, an evictor of ours",
            evicted(joined()),
            BackendState::Unknown,
            "stop evicting leaders",
        ),
        ("wanted, serving", leaving(), serving(5), "preflight"),
        ("wanted, serving, preflight passed", passed(leaving()), serving(5), "evictors"),
        ("wanted, serving, evictor recorded", evicted(passed(leaving())), serving(5), "evict leaders"),
        ("wanted, serving, begun", begun(leaving()), serving(5), "begin offline"),
        ("wanted, removing", begun(leaving()), removing(3, 50), "begin offline"),
        ("wanted, removing, not by us", leaving(), removing(3, 50), "record removal"),
        ("wanted, removed", begun(leaving()), BackendState::Removed, "record removed"),
        ("wanted, removed, not by us", leaving(), BackendState::Removed, "record removed"),
        ("wanted, unknown", leaving(), BackendState::Unknown, "identify"),
    ];
    for (case, store, state, expected) in cases {
        let step = decide(&store, &saw(&store, state));
        assert_eq!(told(&step, &store), expected, "{case}");
    }
}

#[test]
fn nothing_is_decided_on_what_was_said_too_long_ago_or_in_answer_to_another_question() {
    let store = leaving();
    let old = Sighting { heard: NOW - Millis::secs(1), ..saw(&store, serving(0)) };
    assert_eq!(told(&decide(&store, &old), &store), "state");
    assert_eq!(told(&decide(&store, &Sighting::default()), &store), "state");
    let begun = Store { removal: removal(true, false), ..leaving() };
    let without_memo = Sighting { with_removal: false, ..saw(&begun, serving(0)) };
    let step = decide(&begun, &without_memo);
    assert_eq!(step, Step::Call(BackendCall::State { store: "7".into(), removal: Some("memo".into()) }));
}

#[test]
fn it_begins_when_leaders_are_surely_away_or_their_time_is_over() {
    let store = Store { removal: removal(false, false), evictor: evictor(), ..leaving() };
    let evicting = |state| Sighting { evicted_at: Some(NOW), ..saw(&store, state) };
    assert_eq!(told(&decide(&store, &evicting(serving(0))), &store), "record removal");
    assert_eq!(told(&decide(&store, &evicting(serving(1))), &store), "wait leaders_remaining");
    let unsure = BackendState::Serving { leaders: Count { value: 0, complete: false }, data: 1 };
    assert_eq!(told(&decide(&store, &evicting(unsure)), &store), "wait leaders_remaining");
    // A zero that was told before leaders were kept away is no zero.
    let before = Sighting { evicted_at: Some(NOW + Millis(1)), ..saw(&store, serving(0)) };
    assert_eq!(told(&decide(&store, &before), &store), "wait leaders_remaining");
    let mut late = store.clone();
    late.removal.as_mut().unwrap().since = NOW - Millis::secs(300);
    assert_eq!(told(&decide(&late, &evicting(serving(9))), &late), "record removal");
    let mut in_vain = store.clone();
    in_vain.removal.as_mut().unwrap().skip_eviction = true;
    assert_eq!(told(&decide(&in_vain, &saw(&in_vain, serving(9))), &in_vain), "record removal");
}

#[test]
fn of_two_that_passed_the_preflight_one_begins_and_the_other_asks_again() {
    let store = Store { removal: removal(false, false), evictor: evictor(), ..leaving() };
    let seen = Sighting { evicted_at: Some(NOW), ..saw(&store, serving(0)) };
    let held = |code: Code| {
        let held_up = Some(Wait::new(code, "another first"));
        let (spec, process) = (spec(), ready(OLD));
        let (alone, hurried, destroyed) = (false, false, false);
        let store = &store;
        told(
            &next(&Situation {
                store,
                seen: &seen,
                spec: &spec,
                process,
                held_up,
                alone,
                hurried,
                destroyed,
                now: NOW,
            }),
            store,
        )
    };
    assert_eq!(held(Code::MaxParallel), "record removal");
    assert_eq!(held(Code::StoreUnavailable), "wait store_unavailable");
}

#[test]
fn a_backend_that_contradicts_itself_is_not_asked_without_end() {
    let store = joined();
    let seen = Sighting { identified_at: Some(NOW), ..saw(&store, BackendState::Unknown) };
    assert_eq!(told(&decide(&store, &seen), &store), "wait store_not_joined");
}

#[test]
fn it_is_forgotten_only_when_nothing_is_left_and_that_was_written_down() {
    let store = Store { removal: removal(true, false), ..leaving() };
    let empty = |complete| Sighting { complete, moved_at: None, ..saw(&store, removing(0, 0)) };
    assert_eq!(told(&decide(&store, &empty(None)), &store), "begin offline");
    assert_eq!(told(&decide(&store, &empty(Some(Moved::Back))), &store), "begin offline");
    assert_eq!(told(&decide(&store, &empty(Some(Moved::Away))), &store), "record removal");
    let left = Sighting { complete: Some(Moved::Away), ..saw(&store, removing(0, 1)) };
    assert_eq!(told(&decide(&store, &left), &store), "begin offline");
    let leads = Sighting { complete: Some(Moved::Away), ..saw(&store, removing(1, 0)) };
    assert_eq!(told(&decide(&store, &leads), &store), "begin offline");
    let written = Store { removal: removal(true, true), ..leaving() };
    assert_eq!(told(&decide(&written, &empty(None)), &written), "forget");
    // It holds data again: nothing was forgotten, and it goes on where it was.
    assert_eq!(told(&decide(&written, &saw(&written, removing(0, 9))), &written), "record removal");
    assert!(!written.is_rescuable() && store.is_rescuable());
}

#[test]
fn what_was_begun_is_taken_back_until_nothing_is_left_to_bring() {
    let store = Store { removal: removal(true, false), ..joined() };
    for state in [serving(1), removing(0, 5)] {
        let back = Sighting { complete: Some(Moved::Back), ..saw(&store, state.clone()) };
        assert_eq!(told(&decide(&store, &back), &store), "record removal");
        let away = Sighting { complete: Some(Moved::Away), ..saw(&store, state) };
        assert_eq!(told(&decide(&store, &away), &store), "cancel offline");
    }
}

#[test]
fn a_removed_store_gives_its_evictor_back_before_its_record_goes() {
    let removed = Store { removed_at: Some(NOW), evictor: evictor(), ..leaving() };
    assert_eq!(told(&decide(&removed, &Sighting::default()), &removed), "stop evicting leaders");
    let done = Store { evictor: None, ..removed };
    assert_eq!(decide(&done, &Sighting::default()), Step::Remove);
}

#[test]
fn each_step_of_a_restart() {
    let store = Store { restart: restart(), ..joined() };
    let evicting = Store { evictor: evictor(), ..store.clone() };
    let sure = Sighting { evicted_at: Some(NOW), ..saw(&store, serving(0)) };
    let left = Sighting { evicted_at: Some(NOW), ..saw(&store, serving(2)) };
    let unasked = Sighting { evicted_at: None, ..left.clone() };
    let cases: Vec<(&str, &Store, &Sighting, Process, &str)> = vec![
        ("it reads first", &store, &left, ready(OLD), "evictors"),
        ("then adds", &evicting, &unasked, ready(OLD), "evict leaders"),
        ("then waits", &evicting, &left, ready(OLD), "wait leaders_remaining"),
        ("then stops", &evicting, &sure, ready(OLD), "stop process"),
        ("its node is heard", &evicting, &sure, Process::Stopping { id: OLD }, "wait grace_period"),
        ("it is placed", &evicting, &sure, Process::None { address: None }, "wait replacement_starting"),
        (
            "it starts",
            &evicting,
            &sure,
            Process::Starting { id: NEW, address: None },
            "wait replacement_starting",
        ),
        ("it is ready", &evicting, &sure, ready(NEW), "stop evicting leaders"),
        ("nobody knows", &evicting, &sure, Process::Unseen { id: OLD }, "wait node_unreachable"),
        (
            "it leads though not ready",
            &store,
            &left,
            Process::Starting { id: OLD, address: None },
            "evictors",
        ),
        ("it is down", &store, &sure, Process::Starting { id: OLD, address: None }, "stop process"),
        ("it is done", &store, &sure, ready(NEW), "record restart"),
    ];
    for (case, store, seen, process, expected) in cases {
        assert_eq!(told(&decide_with(store, seen, process), store), expected, "{case}");
    }
}

#[test]
fn an_evictor_that_is_not_recorded_is_somebody_elses() {
    let store = Store { evict: Some(Evict { began_at: NOW }), ..joined() };
    let read = |names: &[&str]| Evictors {
        names: names.iter().map(|name| name.to_string()).collect(),
        memo: "m".into(),
        at: NOW,
    };
    let theirs = Sighting { evictors: Some(read(&["theirs"])), ..saw(&store, serving(3)) };
    assert_eq!(told(&decide(&store, &theirs), &store), "wait leaders_remaining");
    let none = Sighting { evictors: Some(read(&[])), ..saw(&store, serving(3)) };
    let Step::Record(recorded) = decide(&store, &none) else { panic!("it is recorded first") };
    assert_eq!(recorded.evictor, Some(OwnEvictor { began_at: NOW, memo: "m".into() }));
    // Nobody asks any more: theirs stays.
    let done = Store { evict: None, ..store };
    assert_eq!(told(&decide(&done, &theirs), &done), "rest");
}

#[test]
fn a_store_that_never_joined() {
    let fresh = Store { identity: None, ..joined() };
    let gone = Store { identity: None, ..leaving() };
    let absent = Sighting { absent: true, ..Sighting::default() };
    let unlisted = Sighting { unlisted: true, ..Sighting::default() };
    let asked = Sighting { identified_at: Some(NOW), ..Sighting::default() };
    let (none, was) = (Process::None { address: None }, Process::None { address: Some("n1:1".into()) });
    let starting = Process::Starting { id: OLD, address: None };
    let unseen = Sighting::default();
    let cases: Vec<(&str, &Store, &Sighting, Process, &str)> = vec![
        ("it is ready", &fresh, &unseen, ready(OLD), "identify"),
        ("it starts", &fresh, &unseen, starting.clone(), "wait store_not_joined"),
        ("to go, never ran", &gone, &unseen, none, "record removed"),
        ("to go, starting", &gone, &unseen, starting, "stop process"),
        ("to go, ready", &gone, &unseen, ready(OLD), "identify"),
        ("to go, ready, not a member", &gone, &absent, ready(OLD), "stop process"),
        ("to go, has run", &gone, &unseen, was.clone(), "members"),
        ("to go, has run, not found at its address", &gone, &absent, was.clone(), "members"),
        ("to go, has run, another may be it", &gone, &asked, was.clone(), "wait store_not_joined"),
        ("to go, has run, no member may be it", &gone, &unlisted, was, "record removed"),
        ("lost, nobody knows where", &fresh, &unseen, Process::Lost, "wait store_not_joined"),
        ("to go, lost, may be a member", &gone, &unseen, Process::Lost, "members"),
        ("to go, lost, no member is nobody's", &gone, &unlisted, Process::Lost, "record removed"),
    ];
    for (case, store, seen, process, expected) in cases {
        assert_eq!(told(&decide_with(store, seen, process), store), expected, "{case}");
    }
}

fn trouble(refusal: bool) -> Option<Trouble> {
    let (code, message, next_try) = (Code::BackendError, "words".to_owned(), NOW + Millis::secs(9));
    Some(Trouble { code, message, since: NOW, failures: 3, next_try, refusal, reading: false })
}

#[test]
fn what_went_wrong_is_tried_again_when_it_is_due() {
    let store = Store { trouble: trouble(false), ..leaving() };
    let Step::Wait { wait, look_at } = decide(&store, &saw(&store, serving(0))) else { panic!("it waits") };
    assert_eq!((wait.code, wait.blocks, look_at), (Code::BackendError, true, NOW + Millis::secs(9)));
    let mut due = store.clone();
    due.trouble.as_mut().unwrap().next_try = NOW;
    assert_eq!(told(&decide(&due, &saw(&due, serving(0))), &due), "preflight");
}

#[test]
fn the_condition_offlining_in_every_state() {
    let begun = |store: Store| Store { removal: removal(true, false), ..store };
    let cancelled = Store { cancelled_at: Some(NOW), ..joined() };
    let cases: Vec<(&str, Store, Option<BackendState>, Option<OffliningReason>)> = vec![
        ("never asked for", joined(), Some(serving(1)), None),
        ("asked for", leaving(), Some(serving(1)), Some(OffliningReason::Pending)),
        ("refused", Store { trouble: trouble(true), ..leaving() }, None, Some(OffliningReason::Pending)),
        ("begun", begun(leaving()), Some(removing(0, 5)), Some(OffliningReason::Active)),
        (
            "failed",
            Store { trouble: trouble(false), ..begun(leaving()) },
            None,
            Some(OffliningReason::Failed),
        ),
        (
            "failed before",
            Store { trouble: trouble(false), ..leaving() },
            None,
            Some(OffliningReason::Failed),
        ),
        ("removed", Store { removed_at: Some(NOW), ..leaving() }, None, Some(OffliningReason::Completed)),
        (
            "too late",
            Store { removed_at: Some(NOW), ..cancelled.clone() },
            None,
            Some(OffliningReason::Completed),
        ),
        ("cancelling", begun(cancelled.clone()), Some(removing(0, 5)), Some(OffliningReason::Active)),
        (
            "cancelling fails",
            Store { trouble: trouble(false), ..begun(cancelled.clone()) },
            None,
            Some(OffliningReason::Failed),
        ),
        ("cancelled", cancelled.clone(), Some(serving(1)), Some(OffliningReason::Cancelled)),
        ("cancelled, not yet heard of", cancelled, Some(removing(0, 5)), Some(OffliningReason::Active)),
    ];
    for (case, store, state, expected) in cases {
        let seen = Sighting { state, ..Sighting::default() };
        assert_eq!(offlining(&store, &seen, None).map(|condition| condition.reason), expected, "{case}");
    }
}

/// Stores `kv-0` … on the nodes given, each ready.
fn site(nodes: &[(&str, &str)], on: &[&str]) -> Cluster {
    let mut cluster = Cluster::default();
    let meta = Meta { cluster: ClusterId(1), instance_ids_reserved: 1024, ..Meta::default() };
    cluster.apply(&Change::Meta(meta));
    for (id, zone) in nodes {
        cluster.apply(&Change::Node(Node {
            id: NodeId::new(id),
            roles: Roles::WORKER,
            intent: Intent::Active,
            health: Health::Up,
            health_since: NOW,
            labels: BTreeMap::from([("zone".to_owned(), zone.to_string())]),
            capacity: Resources { memory: 1 << 40, cpu: 4000 },
            process_epoch: ProcessEpoch(1),
            life: Life(1),
            host: id.to_string(),
            api: String::new(),
            memory_caps: MemoryCaps::CgroupV2,
            foreign: false,
            registered_at: NOW,
            lingers: None,
            goodbye: false,
        }));
    }
    let file: StoreGroupFile = serde_json::from_value(serde_json::json!({
        "name": "kv", "replicas": on.len(), "command": ["kv"], "ports": ["kv"], "topology": "zone",
        "volume": {"name": "data"}, "backend": {"kind": "pd", "endpoints": ["http://127.0.0.1:2379"]},
    }))
    .unwrap();
    let (name, replicas, spec, process) = file.check().unwrap();
    let replicas = replicas.unwrap();
    cluster.apply(&Change::StoreGroup(StoreGroup {
        name: name.clone(),
        replicas,
        spec: spec.into(),
        next_ordinal: replicas,
        destroyed: false,
        created_at: NOW,
    }));
    cluster.apply(&Change::Service(Service {
        name: "kv".into(),
        count: replicas,
        release: 1,
        healthy: Some(1),
        releases: BTreeMap::from([(1, process.clone().into())]),
        rollout: Rollout { state: RolloutState::Complete, progress_at: NOW, ready_max: 0 },
        removed: false,
        created_at: NOW,
    }));
    let service = cluster.service_ix("kv").unwrap();
    for (ordinal, node) in on.iter().enumerate() {
        let store = Store { identity: Some(ordinal.to_string()), ..Store::new(&name, ordinal as u32, NOW) };
        cluster.apply(&Change::Store(store));
        let node = cluster.node_ix(node).unwrap();
        let mut instance = Instance::new(InstanceId(ordinal as u64 + 1), service, node, 1, &process, NOW);
        (instance.slot, instance.actual, instance.healthy_since) =
            (Some(ordinal as u32), Actual::Ready, Some(NOW));
        cluster.apply(&Change::Instance(instance));
    }
    cluster
}

fn chosen(cluster: &Cluster, how_many: usize) -> Vec<String> {
    let staying: Vec<&Store> = cluster.stores_of("kv").collect();
    let spec = cluster.store_group("kv").unwrap().spec.clone();
    selection_order(cluster, &spec, &staying, how_many).iter().map(StoreId::to_string).collect()
}

fn change(cluster: &mut Cluster, id: &str, change: impl FnOnce(&mut Store)) {
    let mut store = cluster.store(id).unwrap().clone();
    change(&mut store);
    cluster.apply(&Change::Store(store));
}

const ZONES: [(&str, &str); 4] = [("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "c")];

#[test]
fn who_goes_first_marked_then_unhealthy_then_where_most_are_then_the_newest() {
    let mut cluster = site(&ZONES, &["n1", "n2", "n3", "n4"]);
    // Zone a has two: the newer of them goes, then the zones are even and the newest goes.
    assert_eq!(chosen(&cluster, 3), ["kv-1", "kv-3", "kv-2"]);
    let mut unready = cluster.instance(InstanceId(3)).unwrap().clone();
    unready.actual = Actual::Unready;
    cluster.apply(&Change::Instance(unready));
    assert_eq!(chosen(&cluster, 2), ["kv-2", "kv-1"], "the unhealthy before all the others");
    change(&mut cluster, "kv-0", |store| store.marked = true);
    assert_eq!(chosen(&cluster, 2), ["kv-0", "kv-2"], "the marked before the unhealthy");
    change(&mut cluster, "kv-3", |store| store.identity = None);
    assert_eq!(chosen(&cluster, 2), ["kv-0", "kv-3"], "one that never joined is not healthy, and newer");
}

#[test]
fn of_equals_the_newest_goes() {
    let nodes: Vec<(String, String)> = (0..12).map(|n| (format!("n{n}"), format!("z{n}"))).collect();
    let nodes: Vec<(&str, &str)> = nodes.iter().map(|(n, z)| (n.as_str(), z.as_str())).collect();
    let on: Vec<&str> = nodes.iter().map(|(node, _)| *node).collect();
    let cluster = site(&nodes, &on);
    assert_eq!(chosen(&cluster, 3), ["kv-11", "kv-10", "kv-9"], "by ordinal, not by letters");
}

#[test]
fn who_is_rescued_first_unmarked_then_with_most_data_left_then_the_lowest() {
    let mut cluster = site(&ZONES, &["n1", "n2", "n3", "n4"]);
    let mut seen: BTreeMap<StoreId, Sighting> = BTreeMap::new();
    for (ordinal, data) in [(0, 5), (1, 50), (2, 50), (3, 90)] {
        let id = format!("kv-{ordinal}");
        change(&mut cluster, &id, |store| {
            store.offline = Some(Offline { since: NOW, why: OfflineWhy::ScaleIn });
            store.removal = removal(true, false);
            store.marked = ordinal == 3;
        });
        let sighting = saw(cluster.store(&id).unwrap(), removing(0, data));
        seen.insert(StoreId::new(&id), sighting);
    }
    let order = |cluster: &Cluster| -> Vec<String> {
        rescue_order(cluster.stores_of("kv"), &seen).iter().map(|store| store.id.to_string()).collect()
    };
    assert_eq!(order(&cluster), ["kv-1", "kv-2", "kv-0", "kv-3"]);
    // One of which nothing has left yet has the most.
    change(&mut cluster, "kv-0", |store| store.removal = None);
    assert_eq!(order(&cluster), ["kv-0", "kv-1", "kv-2", "kv-3"]);
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_its_key() {
    let right = serde_json::json!({
        "name": "kv", "command": ["kv"], "ports": ["kv"], "volume": {"name": "data"},
        "backend": {"kind": "redis-cluster", "endpoints": ["redis://:secret@h:1"]},
    });
    let check = |key: &str, value: serde_json::Value| {
        let mut file = right.clone();
        match key.split_once('.') {
            Some((outer, inner)) => file[outer][inner] = value,
            None => file[key] = value,
        }
        let file: StoreGroupFile = serde_json::from_value(file).unwrap();
        file.check().map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(check("replicas", 3.into()), Ok(()));
    let cases: Vec<(&str, serde_json::Value, &str)> = vec![
        ("replicas", (-1).into(), "replicas"),
        ("backend.kind", "magic".into(), "backend.kind"),
        ("backend.endpoints", serde_json::json!(["http://x:secret@y"]), "backend.endpoints"),
        ("backend.command", serde_json::json!(["x"]), "backend.command"),
        ("backend.primaries_min", 0.into(), "backend.primaries_min"),
        ("volume.path", "/x".into(), "volume.path"),
        ("volume.movable", true.into(), "volume.path"),
        ("port", "http".into(), "port"),
        ("ports", serde_json::json!([]), "ports"),
        ("max_eviction_time", "soon".into(), "max_eviction_time"),
        ("name", "K V".into(), "name"),
    ];
    for (key, value, at) in cases {
        let message = check(key, value).expect_err(key);
        assert!(message.starts_with(at), "{key}: {message}");
        assert!(!message.contains("secret"), "{message}");
    }
}
