//! Many workers in one process: each the real state machine of a node behind a real stream of its own. Only their
//! processes are not there: what is to be started runs at once, what is to be stopped has ended at once.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use model::{Exit, Life, MemoryCaps, NodeId, Resources, Roles, Time};
use protocol::{
    Timing,
    message::{DownBody, UpBody},
    node::{Identity, Input, Memory, Node, Output},
};
use tokio::task::JoinSet;
use wire::Connection;

/// As a daemon's: between two tries to dial.
const DIAL_PAUSE: Duration = Duration::from_millis(200);
const DIAL_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Every so many heartbeats the time to the answer is kept.
const KEEP_EVERY: u64 = 16;

/// What they have seen together.
#[derive(Default)]
pub struct Seen {
    pub registered: AtomicUsize,
    /// Streams that ended, and dials that failed, after which they tried again.
    pub again: AtomicUsize,
    pub started: AtomicUsize,
    pub stopped: AtomicUsize,
    pub answered: AtomicU64,
    answers: Mutex<Vec<f64>>,
}

impl Seen {
    /// Milliseconds from heartbeats to their answers, since this was last asked.
    pub fn take_answers(&self) -> Vec<f64> {
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Workers that live as long as this does.
pub struct Crowd {
    pub seen: Arc<Seen>,
    _workers: JoinSet<()>,
}

pub fn name(n: usize) -> String {
    format!("worker-{n:05}")
}

impl Crowd {
    /// All dial at once, as after the death of a coordinator.
    pub fn gather(count: usize, coordinator: &str) -> Crowd {
        let (seen, mut workers) = (Arc::new(Seen::default()), JoinSet::new());
        let began = Instant::now();
        for n in 0..count {
            let (seen, coordinator) = (Arc::clone(&seen), coordinator.to_owned());
            let clock = Clock(began);
            let node = Node::new(identity(n), Timing::default(), clock.now());
            workers.spawn(Worker { node, clock, seen, sent: BTreeMap::new() }.live(coordinator));
        }
        Crowd { seen, _workers: workers }
    }
}

#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> Time {
        // The time 0 means that something is due.
        Time(self.0.elapsed().as_millis() as u64 + 1)
    }

    fn at(self, time: Time) -> tokio::time::Instant {
        (self.0 + Duration::from_millis(time.0)).into()
    }
}

fn identity(n: usize) -> Identity {
    Identity {
        node: NodeId::new(&name(n)),
        life: Life(n as u64 + 1),
        succeeds: None,
        roles: Roles::WORKER,
        labels: BTreeMap::from([("rack".to_owned(), format!("r{}", n % 100))]),
        capacity: Resources { memory: 8 << 30, cpu: 8_000 },
        host: "127.0.0.1".to_owned(),
        api: String::new(),
        rpc: String::new(),
        memory_caps: MemoryCaps::CgroupV2,
        memory: Memory::default(),
    }
}

struct Worker {
    node: Node,
    clock: Clock,
    seen: Arc<Seen>,
    /// When heartbeats were sent whose answer is watched.
    sent: BTreeMap<u64, Instant>,
}

impl Worker {
    async fn live(mut self, coordinator: String) {
        let mut pause = DIAL_PAUSE;
        loop {
            match wire::connect(&coordinator).await {
                Ok(connection) => {
                    pause = DIAL_PAUSE;
                    self.attend(connection).await;
                    self.node.handle(self.clock.now(), Input::Disconnected);
                    self.sent.clear();
                }
                Err(_) => pause = (pause * 2).min(DIAL_PAUSE_MAX),
            }
            self.seen.again.fetch_add(1, Relaxed);
            tokio::time::sleep(pause).await;
        }
    }

    /// Until the stream is of no more use.
    async fn attend(&mut self, mut connection: Connection) {
        let mut inputs = VecDeque::from([Input::Connected]);
        loop {
            while let Some(input) = inputs.pop_front() {
                let registers = self.node.epoch().is_none();
                let outputs = self.node.handle(self.clock.now(), input);
                if registers && self.node.epoch().is_some() {
                    self.seen.registered.fetch_add(1, Relaxed);
                }
                for output in outputs {
                    match output {
                        Output::Send(up) => {
                            if matches!(up.body, UpBody::Heartbeat(_)) && up.seq.is_multiple_of(KEEP_EVERY) {
                                self.sent.insert(up.seq, Instant::now());
                            }
                            if connection.sender.send(up).await.is_err() {
                                return;
                            }
                        }
                        Output::Reconnect { .. } | Output::GiveUp { .. } => return,
                        other => inputs.extend(self.carry_out(other)),
                    }
                }
            }
            let wake = self.node.next_wake().map(|wake| self.clock.at(wake));
            let wake = wake.unwrap_or_else(|| (Instant::now() + DIAL_PAUSE_MAX).into());
            tokio::select! {
                down = connection.receiver.recv() => {
                    let Some(down) = down else { return };
                    if let DownBody::Answer(answer) = &down.body {
                        self.answered(answer.heartbeat);
                    }
                    inputs.push_back(Input::Down(down));
                }
                () = tokio::time::sleep_until(wake) => inputs.push_back(Input::Tick),
            }
        }
    }

    fn answered(&mut self, heartbeat: u64) {
        self.seen.answered.fetch_add(1, Relaxed);
        if let Some(sent) = self.sent.remove(&heartbeat) {
            let mut answers = self.seen.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers.push(sent.elapsed().as_secs_f64() * 1000.0);
        }
    }

    /// What the machine would answer.
    fn carry_out(&self, output: Output) -> Option<Input> {
        match output {
            Output::Launch { id, run, what, .. } => {
                self.seen.started.fetch_add(1, Relaxed);
                let ports = (0..what.spec.ports.len() as u16).map(|port| 20_000 + port).collect();
                Some(Input::Launched { id, run, pid: 1 + run, ports })
            }
            Output::Watch { id, run, what } if what.spec.check.is_some() => {
                Some(Input::Checked { id, run, passed: true, message: String::new() })
            }
            Output::Signal { id, .. } | Output::Kill { id } => {
                self.seen.stopped.fetch_add(1, Relaxed);
                // None of them is started twice.
                Some(Input::Exited { id, run: 1, exit: Exit::Code(0), memory_exceeded: false, message: None })
            }
            Output::Erase { id, .. } => Some(Input::Erased { id }),
            Output::Watch { .. }
            | Output::Send(_)
            | Output::Reconnect { .. }
            | Output::Copy { .. }
            | Output::GiveUpCopy { .. }
            | Output::Note { .. }
            | Output::Remember(_)
            | Output::Lease { .. }
            | Output::Sets(_)
            | Output::Feed(_)
            | Output::Duty(_)
            | Output::Leave
            | Output::GiveUp { .. } => None,
        }
    }
}
