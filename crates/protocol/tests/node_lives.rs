//! What a node does over the lives of its daemon and around its fence. The simulator found most of it.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Actual, ClusterId, Exit, InstanceId, Life, MemoryCaps, Millis, NodeId, ProcessEpoch, Resources, Roles,
    ServiceName, ServiceSpec, Term, Time, VolumeId,
    spec::{Disk, Migrate, Signal, Stop, Update},
};
use protocol::{
    Timing,
    message::{Down, DownBody, HeartbeatAnswer, Order, Run, Status, UpBody, VolumeOrder, Welcome, What},
    node::{Copied, Ending, Identity, Input, Memory, Node, Note, Output, Process, Wanted},
};

const ID: InstanceId = InstanceId(7);
const TIMING: Timing = Timing::DEV;

struct Bench {
    node: Node,
    now: Time,
    seq: u64,
}

fn run(surge: bool) -> Arc<Run> {
    let deadline = Millis::secs(60);
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
        migrate: Migrate { max_parallel: 1, min_healthy_time: Millis(0), healthy_deadline: deadline, surge },
        update: Update { max_parallel: 1, healthy_deadline: deadline, surge },
        volume: None,
        disk: Disk::default(),
        rerun: true,
        constraints: BTreeMap::new(),
    };
    let (service, spec) = (ServiceName::new("one"), Arc::new(spec));
    Arc::new(Run { service, release: 1, slot: None, volume: None, disk_from: None, spec })
}

fn note(over: Option<Ending>) -> Note {
    Note { order: 1, wanted: Wanted::Run, ready: true, over, copied: Copied::Done }
}

impl Bench {
    fn new() -> Bench {
        let memory = Memory { cluster: Some(ClusterId(5)), term: Term(2) };
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
            memory,
        };
        let now = Time(1_000_000);
        Bench { node: Node::new(identity, TIMING, now), now, seq: 0 }
    }

    fn give(&mut self, input: Input) -> Vec<Output> {
        self.node.handle(self.now, input)
    }

    fn pass(&mut self, span: Millis) -> Vec<Output> {
        self.now = self.now + span;
        self.give(Input::Tick)
    }

    fn down(&mut self, term: u64, body: DownBody) -> Vec<Output> {
        self.seq += 1;
        let down = Down { seq: self.seq, cluster: ClusterId(5), term: Term(term), body };
        self.give(Input::Down(down))
    }

    /// Registered, with a lease from now.
    fn leased(&mut self) -> Vec<Output> {
        self.give(Input::Connected);
        self.seq = 0;
        let welcome = Welcome {
            epoch: ProcessEpoch(1),
            timing: TIMING,
            foreign: false,
            api: String::new(),
            moves_per_node: 64,
        };
        let out = self.down(2, DownBody::Welcome(welcome));
        self.answer(&out)
    }

    /// Answers the last heartbeat among these.
    fn answer(&mut self, out: &[Output]) -> Vec<Output> {
        let heartbeat = out.iter().rev().find_map(|output| match output {
            Output::Send(up) if matches!(up.body, UpBody::Heartbeat(_)) => Some(up.seq),
            _ => None,
        });
        let heartbeat = heartbeat.expect("a heartbeat was sent");
        self.down(2, DownBody::Answer(HeartbeatAnswer { heartbeat, stored: vec![], feeds: vec![] }))
    }

    fn order(&mut self, revision: u32, what: What) -> Vec<Output> {
        self.down(2, DownBody::Orders(vec![Order { instance: ID, revision, what }]))
    }

    fn found(&mut self, note: Note, process: Process) {
        self.give(Input::Found { id: ID, note, run: run(false), runs: 1, process });
    }
}

fn launches(out: &[Output]) -> bool {
    out.iter().any(|output| matches!(output, Output::Launch { .. }))
}

fn statuses(out: &[Output]) -> Vec<Status> {
    let up = out.iter().filter_map(|output| match output {
        Output::Send(up) => Some(up),
        _ => None,
    });
    up.flat_map(|up| match &up.body {
        UpBody::Hello(hello) => hello.inventory.iter().map(|item| item.status.clone()).collect(),
        UpBody::Heartbeat(heartbeat) => heartbeat.statuses.clone(),
        UpBody::Goodbye | UpBody::Relay { .. } => vec![],
    })
    .collect()
}

#[test]
fn a_node_with_nothing_to_do_sleeps_until_its_next_heartbeat() {
    let mut bench = Bench::new();
    bench.leased();
    for _ in 0..40 {
        let wake = bench.node.next_wake().expect("heartbeats go on");
        assert!(wake > bench.now, "nothing is due");
        bench.now = wake;
        let out = bench.give(Input::Tick);
        bench.answer(&out);
    }
}

#[test]
fn what_ended_while_no_daemon_lived_is_started_only_when_it_is_ordered_again() {
    let mut bench = Bench::new();
    let exit = Exit::Signal(9);
    bench.found(note(None), Process::Ended { exit, memory_exceeded: false, message: None });
    let mut out = bench.pass(Millis::secs(1));
    out.extend(bench.leased());
    out.extend(bench.pass(Millis::secs(1)));
    assert!(!launches(&out), "it may have been given up in the meantime");
    assert!(statuses(&out).iter().all(|status| status.order == 0), "so that the order is sent again");
    let out = bench.order(1, What::Run(run(false)));
    assert!(launches(&out));
    assert_eq!(statuses(&out)[0].order, 1);
}

#[test]
fn what_was_over_in_an_earlier_life_stays_over() {
    for (ending, actual) in [(Ending::Failed, Actual::Failed), (Ending::Stopped, Actual::Stopped)] {
        let mut bench = Bench::new();
        let exit = Exit::Code(1);
        bench.found(note(Some(ending)), Process::Ended { exit, memory_exceeded: false, message: None });
        let mut out = bench.leased();
        out.extend(bench.order(1, What::Run(run(false))));
        out.extend(bench.pass(Millis::secs(5)));
        assert!(!launches(&out), "something else may have taken its place");
        assert!(statuses(&out).iter().all(|status| status.actual == actual));
    }
}

#[test]
fn that_an_instance_is_over_is_written_down_before_it_is_said() {
    let mut bench = Bench::new();
    bench.leased();
    bench.order(1, What::Run(run(false)));
    bench.give(Input::Launched { id: ID, run: 1, pid: 9, ports: vec![] });
    bench.order(2, What::Stop);
    let out = bench.give(Input::Exited {
        id: ID,
        run: 1,
        exit: Exit::Code(0),
        memory_exceeded: false,
        message: None,
    });
    let noted = out
        .iter()
        .position(|output| matches!(output, Output::Note { note, .. } if note.over == Some(Ending::Stopped)));
    let said = out.iter().position(|output| matches!(output, Output::Send(_)));
    assert!(noted.is_some() && noted < said, "{out:?}");
}

#[test]
fn a_daemon_that_was_stopped_past_its_fence_starts_nothing_that_must_not_run_twice() {
    let mut bench = Bench::new();
    bench.leased();
    bench.order(1, What::Run(run(false)));
    bench.give(Input::Launched { id: ID, run: 1, pid: 9, ports: vec![] });
    bench.give(Input::Exited { id: ID, run: 1, exit: Exit::Code(1), memory_exceeded: false, message: None });
    let out = bench.pass(TIMING.fence_after);
    assert!(!launches(&out));
}

#[test]
fn at_the_fence_a_long_grace_is_cut_short() {
    let mut bench = Bench::new();
    bench.leased();
    bench.order(1, What::Run(run(false)));
    bench.give(Input::Launched { id: ID, run: 1, pid: 9, ports: vec![] });
    bench.order(2, What::Stop);
    bench.pass(TIMING.fence_after);
    let out = bench.pass(Millis(TIMING.offline_after.0 - TIMING.fence_after.0 - 1));
    assert!(out.contains(&Output::Kill { id: ID }), "others take over at offline_after: {out:?}");
}

#[test]
fn what_was_being_launched_at_the_fence_is_gone_before_others_take_over() {
    let mut bench = Bench::new();
    bench.leased();
    bench.order(1, What::Run(run(false)));
    bench.pass(TIMING.fence_after);
    let out = bench.give(Input::Launched { id: ID, run: 1, pid: 9, ports: vec![] });
    assert!(out.contains(&Output::Signal { id: ID, signal: Signal::Term }));
    let out = bench.pass(Millis(TIMING.offline_after.0 - TIMING.fence_after.0 - 1));
    assert!(out.contains(&Output::Kill { id: ID }));
}

#[test]
fn orders_of_an_older_term_change_nothing() {
    let mut bench = Bench::new();
    bench.leased();
    let order = Order { instance: ID, revision: 1, what: What::Run(run(true)) };
    let out = bench.down(1, DownBody::Orders(vec![order]));
    assert!(!launches(&out));
    assert!(out.iter().any(|output| matches!(output, Output::Reconnect { .. })));
}

/// What is to be erased, and which volume with it.
fn erased(out: &[Output]) -> Vec<Option<VolumeOrder>> {
    let erase = |output: &Output| match output {
        Output::Erase { id: ID, volume } => Some(volume.clone()),
        _ => None,
    };
    out.iter().filter_map(erase).collect()
}

#[test]
fn a_volume_is_destroyed_only_when_its_process_is_over_and_it_is_said_that_it_is_to_be() {
    let volume = VolumeOrder { id: VolumeId::new("kv-data-0"), expected: true, mounted: None };
    let kept = Arc::new(Run { volume: Some(volume.clone()), slot: Some(0), ..(*run(true)).clone() });
    let over = note(Some(Ending::Stopped));
    let ended = Process::Ended { exit: Exit::Code(0), memory_exceeded: false, message: None };
    let found = |note: Note, process: Process| {
        let mut bench = Bench::new();
        bench.give(Input::Found { id: ID, note, run: kept.clone(), runs: 1, process });
        bench.leased();
        bench
    };
    let mut running = found(note(None), Process::Running { pid: 7, ports: vec![] });
    assert_eq!(
        erased(&running.order(9, What::Destroy(volume.clone()))),
        [],
        "an order to clear up stops nothing"
    );
    let mut stopped = found(over, ended.clone());
    assert_eq!(erased(&stopped.order(9, What::Forget)), [None], "what is forgotten leaves its volume");
    let mut stopped = found(over, ended);
    assert_eq!(erased(&stopped.order(9, What::Destroy(volume.clone()))), [Some(volume.clone())]);
    // A daemon that has forgotten the process still has its volume.
    let mut empty = Bench::new();
    empty.leased();
    assert_eq!(erased(&empty.order(9, What::Destroy(volume.clone()))), [Some(volume)]);
}
