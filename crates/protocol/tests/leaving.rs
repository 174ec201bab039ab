//! Coordinators and the nodes that leave: the edge goes last, the coordinator's own node hands over first.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Actual, Cluster, Code, Desired, Instance, InstanceId, Life, MemoryCaps, Millis, NodeId, Resources, Roles,
    ServiceName, ServiceSpec, Term, Time,
    spec::{Disk, EdgeSpec, Migrate, Signal, Stop, Update},
};
use protocol::{
    Timing,
    coordinator::{
        Apply, Asked, ConnId, Coordinator, DrainRequest, Input, Output, Request, RequestId, Start, Stored,
        WantedIntent,
    },
    message::{
        DownBody, Duty, EdgeReport, Heartbeat, Hello, SetRevision, Status, Up, UpBody, Welcome, Withdrawal,
    },
};

const EDGE: Roles = Roles { coordinator: false, worker: false, edge: true };
const WORKER: Roles = Roles::WORKER;
const CANDIDATE: Roles = Roles { coordinator: true, worker: true, edge: false };

fn spec() -> Arc<ServiceSpec> {
    let deadline = Millis::secs(60);
    Arc::new(ServiceSpec {
        kind: model::Kind::Service,
        command: vec!["true".into()],
        env: BTreeMap::new(),
        memory: 1,
        cpu: 1,
        ports: vec!["http".into()],
        check: None,
        edge: Some(EdgeSpec { port: "http".into(), listen: 8080 }),
        stop: Stop { signal: Signal::Term, grace: Millis::secs(30) },
        migrate: Migrate {
            max_parallel: 1,
            min_healthy_time: Millis(0),
            healthy_deadline: deadline,
            surge: true,
        },
        update: Update { max_parallel: 1, healthy_deadline: deadline, surge: true },
        volume: None,
        disk: Disk::default(),
        rerun: true,
        constraints: BTreeMap::new(),
    })
}

/// What one daemon says and is told.
struct Daemon {
    conn: ConnId,
    roles: Roles,
    seq: u64,
    epoch: model::ProcessEpoch,
    numbers: u64,
    edge: EdgeReport,
    duties: Vec<Duty>,
}

/// A coordinator over a store that takes everything, and daemons that say what a test lets them say.
struct Bench {
    coordinator: Coordinator,
    now: Time,
    daemons: BTreeMap<&'static str, Daemon>,
    conns: u64,
}

impl Bench {
    fn new(candidate: &str, nodes: &[(&'static str, Roles)]) -> Bench {
        Bench::over(Cluster::default(), 0, 1, candidate, nodes)
    }

    fn over(
        cluster: Cluster,
        head: u64,
        term: u64,
        candidate: &str,
        nodes: &[(&'static str, Roles)],
    ) -> Bench {
        let now = Time(1_000_000 * term);
        let start = Start {
            cluster,
            head,
            term: Term(term),
            timing: Timing::default(),
            random: 77,
            candidate: candidate.to_owned(),
            api: String::new(),
            drain: Default::default(),
            feeds: Default::default(),
        };
        let (coordinator, first) = Coordinator::new(start, now);
        let mut bench = Bench { coordinator, now, daemons: BTreeMap::new(), conns: 0 };
        bench.perform(first);
        bench.give(Input::OfficeHolds { until: now + Millis::secs(3600) });
        for (node, roles) in nodes {
            bench.hello(node, *roles, EdgeReport::default());
        }
        bench
    }

    /// The next coordinator, over what this one has stored; its daemons come as they are.
    fn next(self, candidate: &str) -> Bench {
        let daemons: Vec<_> =
            self.daemons.iter().map(|(node, daemon)| (*node, daemon.roles, daemon.edge.clone())).collect();
        let cluster = self.coordinator.cluster().clone();
        let mut next = Bench::over(cluster, 1000, 2, candidate, &[]);
        for (node, roles, edge) in daemons {
            next.hello(node, roles, edge);
        }
        next
    }

    fn give(&mut self, input: Input) {
        let out = self.coordinator.handle(self.now, input);
        self.perform(out);
    }

    fn perform(&mut self, outputs: Vec<Output>) {
        let (mut stored, mut closed) = (false, Vec::new());
        for output in outputs {
            match output {
                Output::Transact { .. } => stored = true,
                Output::Close { conn } => closed.push(conn),
                Output::Send { conn, message } => {
                    let daemon = self.daemons.values_mut().find(|daemon| daemon.conn == conn);
                    match (daemon, message.body) {
                        (Some(daemon), DownBody::Welcome(Welcome { epoch, .. })) => daemon.epoch = epoch,
                        (Some(daemon), DownBody::Duty(duty)) => daemon.duties.push(duty),
                        _ => {}
                    }
                }
                Output::Reply { result, .. } => assert!(result.is_ok(), "{result:?}"),
                Output::Event(_) | Output::ReadHead => {}
                Output::Resign { why } => panic!("{why}"),
                Output::HandOver | Output::Backend(_) => panic!("nobody asked"),
            }
        }
        if stored {
            self.give(Input::Stored(Stored::Committed));
        }
        // A daemon whose stream is closed dials again.
        for conn in closed {
            let daemon = self.daemons.iter().find(|(_, daemon)| daemon.conn == conn);
            let known = daemon.map(|(node, daemon)| (*node, daemon.roles, daemon.edge.clone()));
            if let Some((node, roles, edge)) = known {
                self.hello(node, roles, edge);
            }
        }
    }

    fn hello(&mut self, node: &'static str, roles: Roles, edge: EdgeReport) {
        self.conns += 1;
        let conn = ConnId(self.conns);
        let daemon = Daemon {
            conn,
            roles,
            seq: 1,
            epoch: model::ProcessEpoch(0),
            numbers: 0,
            edge: edge.clone(),
            duties: Vec::new(),
        };
        self.daemons.insert(node, daemon);
        let hello = Hello {
            node: NodeId::new(node),
            life: Life(1),
            succeeds: None,
            roles,
            labels: BTreeMap::new(),
            capacity: Resources { memory: 100, cpu: 100 },
            host: node.to_owned(),
            api: String::new(),
            rpc: String::new(),
            memory_caps: MemoryCaps::CgroupV2,
            cluster: None,
            inventory: Vec::new(),
            edge,
        };
        self.give(Input::Up { conn, message: Up { seq: 1, body: UpBody::Hello(hello) } });
    }

    fn beat(&mut self, node: &'static str, statuses: Vec<Status>) {
        let daemon = self.daemons.get_mut(node).expect("a daemon");
        daemon.seq += 1;
        let (conn, seq, epoch, edge) = (daemon.conn, daemon.seq, daemon.epoch, daemon.edge.clone());
        let body = UpBody::Heartbeat(Heartbeat { epoch, statuses, edge, ..Default::default() });
        self.give(Input::Up { conn, message: Up { seq, body } });
    }

    fn pass(&mut self, span: Millis) {
        self.now = self.now + span;
        self.give(Input::Tick);
    }

    fn ask(&mut self, request: Request) {
        let asked = Asked { who: "test".into(), from: "test".into(), request };
        self.give(Input::Request { id: RequestId(1), asked });
    }

    fn drain(&mut self, node: &str) {
        self.ask(Request::Drain(DrainRequest { nodes: vec![node.to_owned()], ..Default::default() }));
    }

    fn apply_web(&mut self, count: u32) {
        let web = Apply { name: ServiceName::new("web"), count: Some(count), spec: spec() };
        self.ask(Request::apply(vec![web]));
        self.nodes_obey();
    }

    /// Everything that is ordered of nodes happens, and edges serve what they are told.
    fn nodes_obey(&mut self) {
        for _ in 0..20 {
            let names: Vec<&'static str> = self.daemons.keys().copied().collect();
            for node in names {
                let revision = self.coordinator.sets_revision();
                let cluster = self.coordinator.cluster();
                let here = cluster.node_ix(node).map(|ix| cluster.instances_on(ix).cloned().collect());
                let here: Vec<Instance> = here.unwrap_or_default();
                let daemon = self.daemons.get_mut(node).expect("a daemon");
                if daemon.roles.edge {
                    daemon.edge.serves = Some(revision);
                }
                let statuses = here.iter().map(|instance| {
                    daemon.numbers += 1;
                    status_of(instance, daemon.numbers)
                });
                let statuses = statuses.collect();
                self.beat(node, statuses);
            }
        }
    }

    fn instances(&self, node: &str) -> Vec<InstanceId> {
        let cluster = self.coordinator.cluster();
        let here = cluster.instances_on(cluster.node_ix(node).expect("a node"));
        here.filter(|instance| !instance.is_over()).map(|instance| instance.id).collect()
    }

    fn state(&self, node: &str) -> &'static str {
        let drain = self.coordinator.cluster().last_drain_of(node).expect("a drain");
        drain.part(node).expect("its part").state_str()
    }

    fn waits(&self, node: &str) -> Vec<Code> {
        let drain = self.coordinator.cluster().last_drain_of(node).expect("a drain");
        let status = self.coordinator.drain_status(drain.part(node).expect("its part"), self.now);
        status.waits.iter().map(|wait| wait.code).collect()
    }

    fn duties(&mut self, node: &str) -> Vec<Duty> {
        std::mem::take(&mut self.daemons.get_mut(node).expect("a daemon").duties)
    }

    fn says(&mut self, node: &'static str, withdrawal: Option<(u64, bool)>) {
        let withdrawal = withdrawal.map(|(drain, done)| Withdrawal { drain, done });
        self.daemons.get_mut(node).expect("a daemon").edge.withdrawal = withdrawal;
        self.beat(node, Vec::new());
    }
}

fn status_of(instance: &Instance, number: u64) -> Status {
    let runs = instance.desired != Desired::Stopped;
    Status {
        instance: instance.id,
        number,
        order: instance.order,
        actual: match instance.desired {
            Desired::Running => Actual::Ready,
            Desired::Draining => Actual::Unready,
            Desired::Stopped => Actual::Stopped,
        },
        restarts: 0,
        pid: runs.then_some(1),
        ports: vec![20_000 + instance.id.0 as u16 % 1000],
        reason: None,
        message: None,
        exit: (!runs).then_some(model::Exit::Code(0)),
        healthy_for: runs.then_some(Millis::secs(60)),
    }
}

const WITHDRAW: Duty = Duty::Withdraw { drain: 1 };

fn serves(duties: &[Duty]) -> Option<SetRevision> {
    match duties {
        [Duty::Serve { from }] => Some(*from),
        [] | [Duty::Withdraw { .. }] | [_, _, ..] => None,
    }
}

#[test]
fn a_drain_of_an_edge_ends_when_the_edge_says_that_it_has_withdrawn() {
    let mut bench = Bench::new("c", &[("e1", EDGE), ("e2", EDGE), ("n1", WORKER)]);
    bench.drain("e1");
    assert_eq!(bench.duties("e1"), [WITHDRAW]);
    assert_eq!((bench.state("e1"), bench.waits("e1")), ("draining", vec![Code::EdgeWithdrawing]));
    bench.says("e1", Some((1, false)));
    assert_eq!(bench.state("e1"), "draining");
    bench.says("e1", Some((1, true)));
    assert_eq!(bench.state("e1"), "drained");
    assert_eq!((bench.duties("e1"), bench.duties("e2")), (vec![], vec![]));
}

#[test]
fn an_edge_that_missed_what_it_was_told_is_told_again() {
    let mut bench = Bench::new("c", &[("e1", EDGE)]);
    bench.drain("e1");
    assert_eq!(bench.duties("e1"), [WITHDRAW]);
    bench.beat("e1", vec![]);
    assert_eq!(bench.duties("e1"), [], "it may be on its way");
    bench.pass(Millis::secs(2));
    bench.beat("e1", vec![]);
    assert_eq!(bench.duties("e1"), [WITHDRAW]);
}

#[test]
fn a_cancel_at_any_step_lets_it_serve_again_and_so_does_enable_after_the_drain() {
    for said in [None, Some((1, false))] {
        let mut bench = Bench::new("c", &[("e1", EDGE)]);
        bench.drain("e1");
        bench.duties("e1");
        bench.says("e1", said);
        bench.ask(Request::CancelNode { node: "e1".into() });
        assert!(serves(&bench.duties("e1")).is_some(), "{said:?}");
        assert_eq!(bench.state("e1"), "cancelled");
    }
    let mut bench = Bench::new("c", &[("e1", EDGE)]);
    bench.drain("e1");
    bench.duties("e1");
    bench.says("e1", Some((1, true)));
    assert_eq!(bench.state("e1"), "drained");
    bench.ask(Request::SetIntent { node: "e1".into(), intent: WantedIntent::Active });
    assert_eq!(serves(&bench.duties("e1")), Some(bench.coordinator.sets_revision()));
}

#[test]
fn the_edge_of_a_node_that_is_disabled_stays_as_it_is() {
    let disable = Request::SetIntent { node: "e1".into(), intent: WantedIntent::Disabled };
    let mut bench = Bench::new("c", &[("e1", EDGE)]);
    bench.ask(disable.clone());
    assert_eq!(bench.duties("e1"), [], "it serves on");
    bench.ask(Request::SetIntent { node: "e1".into(), intent: WantedIntent::Active });
    bench.drain("e1");
    bench.says("e1", Some((1, true)));
    bench.duties("e1");
    bench.ask(disable);
    let mut bench = bench.next("d");
    assert_eq!(bench.duties("e1"), [], "it stays away");
    bench.ask(Request::SetIntent { node: "e1".into(), intent: WantedIntent::Active });
    assert!(serves(&bench.duties("e1")).is_some());
}

#[test]
fn a_coordinator_may_die_between_any_two_steps() {
    for said in [None, Some((1, false)), Some((1, true))] {
        let mut bench = Bench::new("c", &[("e1", EDGE), ("n1", WORKER)]);
        bench.drain("e1");
        let heard = said.map(|(drain, done)| Withdrawal { drain, done });
        bench.daemons.get_mut("e1").expect("it").edge.withdrawal = heard;
        // It dies before it hears of that.
        let mut next = bench.next("d");
        match said {
            None => assert_eq!(next.duties("e1"), [WITHDRAW]),
            Some(_) => assert_eq!(next.duties("e1"), [], "it does what it is to do"),
        }
        if said != Some((1, true)) {
            assert_eq!((next.state("e1"), next.waits("e1")), ("draining", vec![Code::EdgeWithdrawing]));
            next.says("e1", Some((1, true)));
        }
        assert_eq!(next.state("e1"), "drained");
        // And its daemon, after the drain: it stays away.
        let mut last = next.next("c");
        last.daemons.get_mut("e1").expect("it").edge.withdrawal = None;
        last.hello("e1", EDGE, EdgeReport::default());
        assert_eq!(last.duties("e1"), [WITHDRAW]);
    }
}

#[test]
fn an_edge_that_has_withdrawn_is_not_waited_for_until_it_is_to_come_back() {
    let mut bench = Bench::new("c", &[("e1", EDGE), ("e2", EDGE), ("n1", WORKER), ("n2", WORKER)]);
    bench.apply_web(2);
    bench.drain("e1");
    bench.says("e1", Some((1, true)));
    let [first, second] = [bench.instances("n1")[0], bench.instances("n2")[0]];
    bench.ask(Request::StopInstance { id: first });
    assert_eq!(bench.coordinator.edges_left(first), 1, "only the other");
    bench.ask(Request::SetIntent { node: "e1".into(), intent: WantedIntent::Active });
    bench.ask(Request::StopInstance { id: second });
    assert_eq!(bench.coordinator.edges_left(second), 2, "whatever it says, it was told to serve");
}

#[test]
fn an_edge_whose_node_does_not_answer_holds_the_drain_until_it_is_offline() {
    let mut bench = Bench::new("c", &[("e1", EDGE), ("n1", WORKER)]);
    bench.drain("e1");
    bench.pass(Timing::default().degraded_after);
    assert_eq!(bench.state("e1"), "draining");
    bench.pass(Timing::default().offline_after);
    assert_eq!(bench.state("e1"), "node_lost");
}

#[test]
fn the_edge_leaves_after_the_last_unit_of_its_node() {
    let both = Roles { coordinator: false, worker: true, edge: true };
    let mut bench = Bench::new("c", &[("n1", both), ("n2", both)]);
    bench.apply_web(2);
    bench.drain("n1");
    assert_eq!(bench.duties("n1"), []);
    assert!(!bench.waits("n1").contains(&Code::EdgeWithdrawing));
    bench.nodes_obey();
    assert_eq!((bench.instances("n1"), bench.state("n1")), (vec![], "draining"));
    assert!(bench.duties("n1").contains(&WITHDRAW));
    bench.says("n1", Some((1, true)));
    assert_eq!(bench.state("n1"), "drained");
}

#[test]
fn the_only_edge_is_named_for_as_long_as_the_drain_goes_on() {
    let mut bench = Bench::new("c", &[("e1", EDGE), ("e2", EDGE), ("n1", WORKER)]);
    bench.apply_web(1);
    bench.drain("e1");
    assert_eq!(bench.waits("e1"), [Code::EdgeWithdrawing]);
    bench.ask(Request::SetIntent { node: "e2".into(), intent: WantedIntent::Disabled });
    assert_eq!(bench.waits("e1"), [Code::EdgeWithdrawing, Code::OnlyEdge]);
}

/// `n1` leads; its own node and `n2` are candidates.
fn two_candidates() -> Bench {
    let mut bench = Bench::new("n1", &[("n1", CANDIDATE), ("n2", CANDIDATE), ("n3", WORKER)]);
    bench.apply_web(3);
    assert_eq!(bench.instances("n1").len(), 1);
    bench
}

#[test]
fn the_coordinator_s_own_node_begins_to_drain_under_the_next_coordinator() {
    let mut bench = two_candidates();
    let before = bench.instances("n1");
    bench.drain("n1");
    bench.nodes_obey();
    assert_eq!((bench.state("n1"), bench.instances("n1")), ("queued", before));
    assert_eq!(bench.coordinator.cluster().instance_count(), 3, "nothing was placed");
    assert_eq!(bench.waits("n1"), [Code::OfficeMoving]);

    let mut next = bench.next("n2");
    assert_eq!(next.state("n1"), "draining");
    next.nodes_obey();
    assert_eq!((next.state("n1"), next.instances("n1")), ("drained", vec![]));
}

#[test]
fn under_a_caretaker_drains_pause_and_say_so_and_what_moved_arrives() {
    let apart = Roles { worker: false, ..CANDIDATE };
    let mut bench = Bench::new("n1", &[("n1", CANDIDATE), ("n2", apart), ("n3", WORKER), ("n4", WORKER)]);
    bench.apply_web(3);
    // n3 is in the middle of its drain when the coordinator's own node is closed.
    bench.drain("n3");
    assert_eq!(bench.coordinator.cluster().instance_count(), 4, "its replacement is placed");
    bench.drain("n1");
    bench.ask(Request::SetIntent { node: "n2".into(), intent: WantedIntent::Disabled });
    bench.nodes_obey();
    assert_eq!(bench.instances("n3"), [], "what was on its way arrived");
    assert_eq!((bench.state("n3"), bench.state("n1")), ("drained", "queued"));
    assert_eq!(bench.waits("n1"), [Code::CaretakerLeads]);
    bench.pass(Millis::secs(4000));
    bench.nodes_obey();
    assert_eq!(bench.state("n1"), "queued", "its time does not come");

    bench.ask(Request::SetIntent { node: "n2".into(), intent: WantedIntent::Active });
    let mut next = bench.next("n2");
    next.nodes_obey();
    assert_eq!((next.state("n1"), next.instances("n1")), ("drained", vec![]));
}

#[test]
fn a_caretaker_replaces_what_is_lost() {
    let mut bench = two_candidates();
    bench.drain("n1");
    for _ in 0..61 {
        bench.pass(Millis::secs(1));
        bench.beat("n1", vec![]);
        bench.beat("n3", vec![]);
    }
    let cluster = bench.coordinator.cluster();
    assert!(cluster.node_by_id("n2").expect("a node").rec.is_offline());
    assert_eq!(bench.waits("n1"), [Code::CaretakerLeads]);
    assert_eq!(bench.instances("n3").len(), 2, "in place of the one on n2");
    assert_eq!(bench.instances("n1").len(), 1);
}

#[test]
fn a_caretaker_that_is_open_again_lets_drains_go_on() {
    let mut bench = two_candidates();
    bench.drain("n1");
    bench.ask(Request::Drain(DrainRequest { nodes: vec!["n3".into()], ..Default::default() }));
    bench.nodes_obey();
    assert_eq!((bench.state("n1"), bench.state("n3")), ("queued", "queued"));
    bench.ask(Request::CancelNode { node: "n1".into() });
    bench.nodes_obey();
    assert_eq!((bench.state("n1"), bench.state("n3")), ("cancelled", "drained"));
}
