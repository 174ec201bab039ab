//! Scratch data that comes before an instance's first start: waited for, tried again, given up.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Actual, ClusterId, Code, Exit, InstanceId, Life, MemoryCaps, Millis, NodeId, ProcessEpoch, Resources,
    Roles, ServiceName, ServiceSpec, Term, Time,
    spec::{Disk, Migrate, Signal, Stop, Update},
};
use protocol::{
    Timing,
    message::{DiskFrom, Down, DownBody, HeartbeatAnswer, Order, Run, Status, UpBody, Welcome, What},
    node::{Copied, CopyEnd, Ending, Identity, Input, Memory, Node, Note, Output, Process, Wanted},
};

const ID: InstanceId = InstanceId(7);
const TIMING: Timing = Timing::DEV;
/// Longer than a node may be silent, so that both limits can be told apart.
const DEADLINE: Millis = Millis(4 * TIMING.offline_after.0);

struct Bench {
    node: Node,
    now: Time,
    seq: u64,
}

fn run(surge: bool) -> Arc<Run> {
    let migrate = Migrate { max_parallel: 1, min_healthy_time: Millis(0), healthy_deadline: DEADLINE, surge };
    let spec = ServiceSpec {
        kind: model::Kind::Service,
        command: vec!["true".into()],
        env: BTreeMap::new(),
        memory: 1,
        cpu: 1,
        ports: vec![],
        check: None,
        edge: None,
        stop: Stop { signal: Signal::Term, grace: Millis::secs(30) },
        migrate,
        update: Update { max_parallel: 1, healthy_deadline: DEADLINE, surge },
        volume: None,
        disk: Disk { migrate: true },
        rerun: true,
        constraints: BTreeMap::new(),
    };
    let disk_from = Some(DiskFrom { instance: InstanceId(3), api: "n2:7070".into() });
    let (service, spec) = (ServiceName::new("one"), Arc::new(spec));
    Arc::new(Run { service, release: 1, slot: None, volume: None, disk_from, spec })
}

fn broken(heard: bool) -> CopyEnd {
    CopyEnd::Broken { heard, message: "the stream broke".into() }
}

impl Bench {
    fn new() -> Bench {
        let identity = Identity {
            node: NodeId::new("n1"),
            life: Life(1),
            succeeds: None,
            roles: Roles::WORKER,
            labels: BTreeMap::new(),
            capacity: Resources { memory: 100, cpu: 100 },
            host: "n1".into(),
            api: "n1:1".into(),
            rpc: String::new(),
            memory_caps: MemoryCaps::CgroupV2,
            memory: Memory { cluster: Some(ClusterId(5)), term: Term(2) },
        };
        let now = Time(1_000_000);
        Bench { node: Node::new(identity, TIMING, now), now, seq: 0 }
    }

    /// Registered, with a lease, and told to run it.
    fn ordered(surge: bool) -> (Bench, Vec<Output>) {
        let mut bench = Bench::new();
        bench.register();
        let out = bench.order(1, What::Run(run(surge)));
        (bench, out)
    }

    fn register(&mut self) {
        self.give(Input::Connected);
        self.seq = 0;
        let welcome = Welcome {
            epoch: ProcessEpoch(1),
            timing: TIMING,
            foreign: false,
            api: String::new(),
            moves_per_node: 64,
        };
        let out = self.down(DownBody::Welcome(welcome));
        self.answer(&out);
    }

    fn give(&mut self, input: Input) -> Vec<Output> {
        self.node.handle(self.now, input)
    }

    fn answer(&mut self, out: &[Output]) {
        let heartbeats: Vec<u64> = out
            .iter()
            .filter_map(|output| match output {
                Output::Send(up) if matches!(up.body, UpBody::Heartbeat(_)) => Some(up.seq),
                _ => None,
            })
            .collect();
        for heartbeat in heartbeats {
            self.down(DownBody::Answer(HeartbeatAnswer { heartbeat, stored: vec![], feeds: vec![] }));
        }
    }

    /// Time passes with a coordinator that answers.
    fn pass(&mut self, span: Millis) -> Vec<Output> {
        let end = self.now + span;
        let mut all = Vec::new();
        while self.now < end {
            self.now = end.min(self.now + TIMING.heartbeat);
            let out = self.give(Input::Tick);
            self.answer(&out);
            all.extend(out);
        }
        all
    }

    fn down(&mut self, body: DownBody) -> Vec<Output> {
        self.seq += 1;
        self.give(Input::Down(Down { seq: self.seq, cluster: ClusterId(5), term: Term(2), body }))
    }

    fn order(&mut self, revision: u32, what: What) -> Vec<Output> {
        self.down(DownBody::Orders(vec![Order { instance: ID, revision, what }]))
    }

    fn ended(&mut self, end: CopyEnd) -> Vec<Output> {
        self.give(Input::CopyEnded { id: ID, end })
    }
}

fn copies(out: &[Output]) -> bool {
    out.iter().any(|output| matches!(output, Output::Copy { .. }))
}

fn launches(out: &[Output]) -> bool {
    out.iter().any(|output| matches!(output, Output::Launch { .. }))
}

fn last_status(out: &[Output]) -> Status {
    let mut statuses = out.iter().filter_map(|output| match output {
        Output::Send(up) => match &up.body {
            UpBody::Heartbeat(heartbeat) => heartbeat.statuses.last().cloned(),
            UpBody::Hello(hello) => hello.inventory.last().map(|item| item.status.clone()),
            UpBody::Goodbye | UpBody::Relay { .. } => None,
        },
        _ => None,
    });
    statuses.next_back().expect("it says something of it")
}

#[test]
fn it_starts_only_once_its_data_is_there_and_says_what_it_waits_for() {
    let (mut bench, out) = Bench::ordered(true);
    assert!(copies(&out) && !launches(&out));
    assert_eq!(last_status(&out).reason, Some(Code::DiskCopying));
    assert!(!launches(&bench.pass(Millis(DEADLINE.0 - 1))));
    let out = bench.ended(CopyEnd::Done);
    assert!(launches(&out));
    let out = bench.give(Input::Launched { id: ID, run: 1, pid: 9, ports: vec![] });
    let said = last_status(&out);
    assert_eq!((said.actual, said.reason), (Actual::Ready, None));
}

#[test]
fn what_cannot_be_copied_is_said_for_as_long_as_the_instance_lives() {
    let (mut bench, _) = Bench::ordered(true);
    let out = bench.ended(CopyEnd::Impossible { message: "this node has nothing of it".into() });
    assert!(launches(&out));
    let out = bench.give(Input::Launched { id: ID, run: 1, pid: 9, ports: vec![] });
    let said = last_status(&out);
    assert_eq!((said.actual, said.reason), (Actual::Ready, Some(Code::DiskNotCopied)));
    assert_eq!(said.message.as_deref(), Some("this node has nothing of it"));
    // After a crash it is started again, not copied again.
    bench.give(Input::Exited { id: ID, run: 1, exit: Exit::Code(1), memory_exceeded: false, message: None });
    let out = bench.pass(Millis::secs(1));
    assert!(launches(&out) && !copies(&out));
    let out = bench.give(Input::Launched { id: ID, run: 2, pid: 10, ports: vec![] });
    assert_eq!(last_status(&out).reason, Some(Code::DiskNotCopied));
}

#[test]
fn a_copy_that_breaks_off_is_begun_anew_until_its_deadline() {
    let (mut bench, _) = Bench::ordered(true);
    let mut tries = 0;
    let begun = bench.now;
    loop {
        let out = bench.ended(broken(true));
        if launches(&out) {
            assert_eq!(last_status(&out).reason, Some(Code::DiskNotCopied));
            break;
        }
        let out = bench.pass(Millis::secs(2));
        assert!(copies(&out), "it is tried again");
        tries += 1;
    }
    assert!(tries > 3 && bench.now.since(begun) >= DEADLINE);
}

#[test]
fn lesson_20_a_node_that_does_not_answer_is_waited_for_no_longer_than_until_it_counts_as_gone() {
    let (mut bench, _) = Bench::ordered(true);
    let begun = bench.now;
    while !launches(&bench.ended(broken(false))) {
        assert!(copies(&bench.pass(Millis::secs(1))));
    }
    let waited = bench.now.since(begun);
    assert!(waited >= TIMING.offline_after && waited < DEADLINE, "{waited}");
}

#[test]
fn at_the_deadline_the_copy_is_told_to_end_and_nothing_starts_before_it_has() {
    let (mut bench, _) = Bench::ordered(true);
    let out = bench.pass(DEADLINE);
    assert!(out.contains(&Output::GiveUpCopy { id: ID }));
    assert!(!launches(&out), "it may be writing still");
    assert!(!launches(&bench.pass(Millis::secs(5))));
    let out = bench.ended(broken(true));
    assert!(launches(&out));
    let said = last_status(&out);
    assert_eq!(said.reason, Some(Code::DiskNotCopied));
    assert!(said.message.as_deref().is_some_and(|why| why.starts_with("not done within")), "{said:?}");
}

#[test]
fn one_that_is_stopped_while_it_copies_ends_when_the_copy_has_and_says_that_it_never_had_it() {
    for end in [broken(true), CopyEnd::Done] {
        let (mut bench, _) = Bench::ordered(true);
        let out = bench.order(2, What::Stop);
        assert!(out.contains(&Output::GiveUpCopy { id: ID }));
        assert_eq!(last_status(&out).actual, Actual::Starting);
        let out = bench.ended(end);
        assert!(!launches(&out));
        let said = last_status(&out);
        assert_eq!((said.actual, said.reason), (Actual::Stopped, Some(Code::DiskCopying)));
        let noted = |output: &Output| matches!(output, Output::Note { note, .. } if note.over == Some(Ending::Stopped));
        assert!(out.iter().any(noted), "the next life must not begin it again");
    }
}

#[test]
fn a_daemon_that_died_while_it_copied_begins_anew_when_it_is_ordered_again() {
    let mut bench = Bench::new();
    let note = Note { order: 1, wanted: Wanted::Run, ready: false, over: None, copied: Copied::Due };
    bench.give(Input::Found { id: ID, note, run: run(true), runs: 0, process: Process::NotStarted });
    bench.register();
    let out = bench.pass(Millis::secs(1));
    assert!(!copies(&out) && !launches(&out), "it may have been given up in the meantime");
    let out = bench.order(1, What::Run(run(true)));
    assert!(copies(&out) && !launches(&out));
}

#[test]
fn a_daemon_that_died_after_the_copy_does_not_copy_over_what_is_there() {
    for (copied, reason) in [(Copied::Done, None), (Copied::Not, Some(Code::DiskNotCopied))] {
        let mut bench = Bench::new();
        let note = Note { order: 1, wanted: Wanted::Run, ready: true, over: None, copied };
        let process = Process::Running { pid: 9, ports: vec![] };
        bench.give(Input::Found { id: ID, note, run: run(true), runs: 1, process });
        bench.register();
        let out = bench.order(1, What::Run(run(true)));
        assert!(!copies(&out));
        assert_eq!(last_status(&out).reason, reason);
    }
}

#[test]
fn at_the_fence_a_copy_for_what_must_not_run_twice_ends_and_nothing_starts() {
    let (mut bench, _) = Bench::ordered(false);
    bench.now = bench.now + TIMING.fence_after;
    let out = bench.give(Input::Tick);
    assert!(out.contains(&Output::GiveUpCopy { id: ID }), "{out:?}");
    let out = bench.ended(CopyEnd::Done);
    assert!(!launches(&out));
}
