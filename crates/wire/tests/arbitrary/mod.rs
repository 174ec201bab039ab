//! Messages of every shape that `protocol` can make.

pub mod feeds;

use std::{collections::BTreeMap, sync::Arc};

use model::{
    ALL_CODES, Actual, ClusterId, Code, Exit, InstanceId, Kind, Life, MemoryCaps, Millis, NodeId,
    ProcessEpoch, Resources, Roles, ServiceName, ServiceSpec, Term, VolumeId,
    spec::{Check, Disk, EdgeSpec, Migrate, Probe, Signal, Stop, Update, VolumeSpec},
};
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::TestRunner,
};
use protocol::{
    Timing,
    message::{
        Backend, BackendSet, DiskFrom, Down, DownBody, Duty, EdgeReport, Heartbeat, HeartbeatAnswer, Hello,
        Inventory, Order, Refusal, Run, SetRevision, Sets, Status, Up, UpBody, VolumeOrder, Welcome, What,
        Withdrawal,
    },
};

pub fn example<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>) -> T {
    strategy.new_tree(&mut TestRunner::deterministic()).unwrap().current()
}

/// So many, no two drawn alike.
pub fn examples<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

fn name() -> impl Strategy<Value = String> {
    "[a-z]([a-z0-9-]{0,20}[a-z0-9])?"
}

fn service() -> impl Strategy<Value = ServiceName> {
    name().prop_map(|name| ServiceName::new(&name))
}

fn words() -> impl Strategy<Value = String> {
    "\\PC{0,40}"
}

fn address() -> impl Strategy<Value = String> {
    "[a-z0-9.]{1,30}:[0-9]{1,5}"
}

fn instance() -> impl Strategy<Value = InstanceId> {
    any::<u64>().prop_map(InstanceId)
}

fn code() -> impl Strategy<Value = Code> {
    select(ALL_CODES)
}

/// As long as a specification allows.
fn span() -> impl Strategy<Value = Millis> {
    (10..=model::spec::DURATION_MAX.0).prop_map(Millis)
}

pub fn up() -> impl Strategy<Value = Up> {
    let body = prop_oneof![
        hello().prop_map(UpBody::Hello),
        heartbeat().prop_map(UpBody::Heartbeat),
        Just(UpBody::Goodbye),
        ("[A-Za-z0-9._-]{1,40}", feeds::peer())
            .prop_map(|(to, message)| UpBody::Relay { to: NodeId::new(&to), message }),
    ];
    (any::<u64>(), body).prop_map(|(seq, body)| Up { seq, body })
}

fn hello() -> impl Strategy<Value = Hello> {
    let node = ("[A-Za-z0-9._-]{1,40}", any::<u64>(), any::<[bool; 3]>(), btree_map(words(), words(), 0..4));
    let caps = prop_oneof![
        Just(MemoryCaps::CgroupV2),
        Just(MemoryCaps::CgroupV1),
        words().prop_map(MemoryCaps::None),
    ];
    let place = (any::<[u64; 2]>(), "[a-z.]{0,40}", [address(), address()], caps);
    let inventory = (service(), status()).prop_map(|(service, status)| Inventory { service, status });
    (node, place, option::of(any::<u64>()), vec(inventory, 0..4), edge_report()).prop_map(
        |(
            (node, life, roles, labels),
            (capacity, host, [api, rpc], memory_caps),
            cluster,
            inventory,
            edge,
        )| Hello {
            node: NodeId::new(&node),
            life: Life(life),
            succeeds: (life % 2 == 0).then_some(Life(life / 2)),
            roles: Roles { coordinator: roles[0], worker: roles[1], edge: roles[2] },
            labels,
            capacity: Resources { memory: capacity[0], cpu: capacity[1] },
            host,
            api,
            rpc,
            memory_caps,
            cluster: cluster.map(ClusterId),
            inventory,
            edge,
        },
    )
}

fn heartbeat() -> impl Strategy<Value = Heartbeat> {
    let units = (vec(status(), 0..4), vec(instance(), 0..4));
    let feeds =
        (option::of(revision()), vec(feeds::report(), 0..3), vec((feeds::feed(), any::<u32>()), 0..3));
    (any::<u64>(), units, option::of(code()), edge_report(), feeds).prop_map(
        |(epoch, (statuses, forgotten), degraded, edge, (roster, feeds, dispatchers))| Heartbeat {
            epoch: ProcessEpoch(epoch),
            statuses,
            forgotten,
            degraded,
            edge,
            roster,
            feeds,
            dispatchers,
        },
    )
}

fn revision() -> impl Strategy<Value = SetRevision> {
    any::<[u64; 2]>().prop_map(|[term, number]| SetRevision { term: Term(term), number })
}

fn edge_report() -> impl Strategy<Value = EdgeReport> {
    let withdrawal = any::<(u64, bool)>().prop_map(|(drain, done)| Withdrawal { drain, done });
    (option::of(revision()), vec((any::<u16>(), words()), 0..3), option::of(withdrawal))
        .prop_map(|(serves, failed, withdrawal)| EdgeReport { serves, failed, withdrawal })
}

fn status() -> impl Strategy<Value = Status> {
    let actual = select(vec![
        Actual::Pending,
        Actual::Starting,
        Actual::Ready,
        Actual::Unready,
        Actual::Stopping,
        Actual::Stopped,
        Actual::Failed,
        Actual::Lost,
    ]);
    let exit = prop_oneof![
        any::<i32>().prop_map(Exit::Code),
        any::<i32>().prop_map(Exit::Signal),
        Just(Exit::Unknown),
    ];
    let numbers = (instance(), any::<u64>(), any::<u32>(), actual, any::<u32>(), option::of(any::<u32>()));
    let words = (option::of(code()), option::of(words()), option::of(exit), option::of(any::<u64>()));
    (numbers, vec(any::<u16>(), 0..4), words).prop_map(
        |((instance, number, order, actual, restarts, pid), ports, (reason, message, exit, healthy_for))| {
            let healthy_for = healthy_for.map(Millis);
            Status {
                instance,
                number,
                order,
                actual,
                restarts,
                pid,
                ports,
                reason,
                message,
                exit,
                healthy_for,
            }
        },
    )
}

pub fn down() -> impl Strategy<Value = Down> {
    let why = select(vec![Refusal::NodeIdInUse, Refusal::NotCoordinator]);
    let stored = vec((instance(), any::<u64>()), 0..4);
    let body = prop_oneof![
        (any::<u64>(), timing(), any::<bool>(), any::<u32>()).prop_map(|(epoch, timing, foreign, moves)| {
            DownBody::Welcome(Welcome {
                epoch: ProcessEpoch(epoch),
                timing,
                foreign,
                api: "127.0.0.1:7070".into(),
                moves_per_node: moves,
            })
        }),
        (why, words()).prop_map(|(why, message)| DownBody::Refused { why, message }),
        (any::<u64>(), stored, vec((feeds::feed(), any::<u64>()), 0..4)).prop_map(
            |(heartbeat, stored, feeds)| DownBody::Answer(HeartbeatAnswer { heartbeat, stored, feeds })
        ),
        feeds::roster().prop_map(|roster| DownBody::Roster(Arc::new(roster))),
        vec(feeds::order(), 0..4).prop_map(DownBody::Feeds),
        feeds::peer().prop_map(DownBody::Relay),
        vec(order(), 0..4).prop_map(DownBody::Orders),
        sets().prop_map(DownBody::Sets),
        Just(DownBody::Leave),
        revision().prop_map(|from| DownBody::Duty(Duty::Serve { from })),
        any::<u64>().prop_map(|drain| DownBody::Duty(Duty::Withdraw { drain })),
    ];
    (any::<[u64; 3]>(), body).prop_map(|([seq, cluster, term], body)| Down {
        seq,
        cluster: ClusterId(cluster),
        term: Term(term),
        body,
    })
}

fn timing() -> impl Strategy<Value = Timing> {
    (10..1_000_000u64, 1_000..1_000_000u64, 1..1_000_000u64, any::<u32>()).prop_map(
        |(heartbeat, lease, more, last)| Timing {
            heartbeat: Millis(heartbeat),
            lease: Millis(lease),
            degraded_after: Millis(2 * heartbeat),
            fence_after: Millis(lease + more),
            offline_after: Millis(lease + 2 * more + 2 * heartbeat),
            last_node_after: Millis(u64::from(last) / 2),
        },
    )
}

fn order() -> impl Strategy<Value = Order> {
    let what = prop_oneof![
        3 => run().prop_map(|run| What::Run(Arc::new(run))),
        1 => Just(What::Drain),
        1 => Just(What::Stop),
        1 => Just(What::Forget),
        1 => volume().prop_map(What::Destroy),
    ];
    (instance(), any::<u32>(), what).prop_map(|(instance, revision, what)| Order { instance, revision, what })
}

fn volume() -> impl Strategy<Value = VolumeOrder> {
    let mounted = option::of("/[a-z0-9/]{0,20}");
    ("[a-z0-9-]{1,60}", any::<bool>(), mounted).prop_map(|(id, expected, mounted)| VolumeOrder {
        id: VolumeId::new(&id),
        expected,
        mounted,
    })
}

pub fn run() -> impl Strategy<Value = Run> {
    let volume = volume();
    let from = (instance(), "[a-z0-9.:]{0,40}").prop_map(|(instance, api)| DiskFrom { instance, api });
    let from = option::of(from);
    (service(), any::<u32>(), option::of(any::<u32>()), option::of(volume), from, spec()).prop_map(
        |(service, release, slot, volume, disk_from, spec)| {
            let spec = Arc::new(spec);
            Run { service, release, slot, volume, disk_from, spec }
        },
    )
}

/// Without `$`, which stands for a variable.
fn plain() -> impl Strategy<Value = String> {
    "[^$\\x00]{0,20}"
}

fn argv() -> impl Strategy<Value = Vec<String>> {
    ("/[a-z]{1,10}", vec(plain(), 0..4)).prop_map(|(program, arguments)| [vec![program], arguments].concat())
}

fn check() -> impl Strategy<Value = Check> {
    let probe = prop_oneof![
        "/[a-z?=]{0,20}".prop_map(|path| Probe::Http { path, port: "http".to_owned() }),
        Just(Probe::Tcp { port: "http".to_owned() }),
        argv().prop_map(Probe::Command),
    ];
    (probe, span(), span()).prop_map(|(probe, interval, timeout)| Check { probe, interval, timeout })
}

fn spec() -> impl Strategy<Value = ServiceSpec> {
    let kind = select(vec![Kind::Service, Kind::Batch, Kind::System]);
    let what = (kind, argv(), btree_map("[A-Z_]{1,10}", plain(), 0..3), btree_map(name(), words(), 0..3));
    let size = ((1u64 << 20)..(1 << 50), 0..=1_000_000u32);
    let migrate =
        (1..=10_000u32, span(), span(), any::<bool>()).prop_map(|(max_parallel, min, deadline, surge)| {
            Migrate { max_parallel, min_healthy_time: min, healthy_deadline: deadline, surge }
        });
    let update = (1..=10_000u32, span(), any::<bool>())
        .prop_map(|(max_parallel, healthy_deadline, surge)| Update { max_parallel, healthy_deadline, surge });
    let stop = (select(Signal::ALL.to_vec()), span()).prop_map(|(signal, grace)| Stop { signal, grace });
    let parts = (option::of(check()), option::of(1..=u16::MAX), option::of(name()), any::<[bool; 2]>());
    (what, size, stop, migrate, update, parts).prop_map(
        |((kind, command, env, constraints), (memory, cpu), stop, migrate, update, parts)| {
            let (check, listen, volume, [disk, rerun]) = parts;
            let constraints: BTreeMap<_, _> = constraints;
            let edge = listen.filter(|_| kind == Kind::Service);
            let volume = volume.filter(|_| kind == Kind::Service);
            ServiceSpec {
                kind,
                command,
                env,
                memory,
                cpu,
                ports: vec!["http".to_owned(), "admin-2".to_owned()],
                check,
                edge: edge.map(|listen| EdgeSpec { port: "http".to_owned(), listen }),
                stop,
                migrate,
                update,
                volume: volume.map(|name| VolumeSpec { name }),
                disk: Disk { migrate: disk },
                rerun,
                constraints,
            }
        },
    )
}

fn sets() -> impl Strategy<Value = Sets> {
    let backend = (instance(), address()).prop_map(|(instance, address)| Backend { instance, address });
    let set = (service(), option::of(any::<u16>()), any::<u64>(), vec(backend, 0..4)).prop_map(
        |(service, listen, grace, backends)| BackendSet { service, listen, grace: Millis(grace), backends },
    );
    (revision(), revision(), any::<bool>(), vec(set, 0..4)).prop_map(|(revision, since, full, sets)| Sets {
        revision,
        since,
        full,
        sets,
    })
}
