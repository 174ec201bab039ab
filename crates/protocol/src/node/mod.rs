//! A node as a pure state machine: what runs here, what is reported of it, and what is stopped at the
//! fence.
//!
//! The shell (`worker`) performs [`Output`]s with real processes; the simulator with simulated ones.
//!
//! *Invariant:* nothing here is stopped because the coordinator does not mention it. Orders of another
//! cluster or an older term change nothing.

mod copy;
mod feeds;
mod local;
mod session;

use std::{collections::BTreeMap, sync::Arc};

use model::{
    ClusterId, Code, Exit, InstanceId, Life, MemoryCaps, NodeId, ProcessEpoch, Resources, Roles, Term, Time,
};

use crate::{
    Timing,
    message::{Down, Duty, EdgeReport, Run, Sets, Status, Up, VolumeOrder},
};
pub use copy::{Copied, CopyEnd};
use feeds::Feeds;
pub use feeds::{FeedNews, FeedWork};
use local::Local;
pub use local::{Ending, Note, RESTARTS_MAX, UNREADY_AFTER_FAILURES, Wanted};

/// What a daemon knows of itself when it starts.
#[derive(Clone, Debug)]
pub struct Identity {
    pub node: NodeId,
    pub life: Life,
    /// The life before this one, as the data directory remembers it.
    pub succeeds: Option<Life>,
    pub roles: Roles,
    pub labels: BTreeMap<String, String>,
    pub capacity: Resources,
    pub host: String,
    pub api: String,
    /// Where other daemons reach it; empty if it takes part in no feeds.
    pub rpc: String,
    pub memory_caps: MemoryCaps,
    /// Remembered from earlier lives.
    pub memory: Memory,
}

/// What a node keeps on disk about whom it obeys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub cluster: Option<ClusterId>,
    /// The highest term it has seen.
    pub term: Term,
}

#[derive(Clone, Debug)]
pub enum Input {
    /// An instance that was on disk when the daemon started. Comes before everything else.
    Found {
        id: InstanceId,
        note: Note,
        run: Arc<Run>,
        runs: u32,
        process: Process,
    },
    /// A stream to the coordinator is open.
    Connected,
    Disconnected,
    Down(Down),
    /// The process runs. `run` is the number given with `Launch`.
    Launched {
        id: InstanceId,
        run: u32,
        pid: u32,
        ports: Vec<u16>,
    },
    LaunchFailed {
        id: InstanceId,
        run: u32,
        code: Code,
        message: String,
    },
    Exited {
        id: InstanceId,
        run: u32,
        exit: Exit,
        memory_exceeded: bool,
        message: Option<String>,
    },
    Checked {
        id: InstanceId,
        run: u32,
        passed: bool,
        message: String,
    },
    /// The copy that was asked for is over, or was given up, and nothing of it goes on.
    CopyEnded {
        id: InstanceId,
        end: CopyEnd,
    },
    /// The directory of an instance is gone.
    Erased {
        id: InstanceId,
    },
    /// What the machine says of itself, now and then.
    Machine {
        degraded: Option<Code>,
    },
    /// What the edge of this daemon serves.
    Edge(EdgeReport),
    Feed(FeedNews),
    /// Several at once, in this order.
    Feeds(Vec<FeedNews>),
    /// The daemon was told to end; its instances run on.
    Stopping,
    Tick,
}

/// What was found of an instance's process.
#[derive(Clone, Debug)]
pub enum Process {
    Running {
        pid: u32,
        ports: Vec<u16>,
    },
    Ended {
        exit: Exit,
        memory_exceeded: bool,
        message: Option<String>,
    },
    /// Gone, and nobody saw how: its keeper was killed, or the machine was restarted.
    Lost {
        message: String,
    },
    /// Written down, never started.
    NotStarted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Send(Up),
    /// The stream is of no use: dial again.
    Reconnect {
        why: String,
    },
    /// Write down what is ordered, then copy its scratch data here. What is half there from an earlier
    /// try is thrown away; what is whole stays.
    Copy {
        id: InstanceId,
        note: Note,
        what: Arc<Run>,
    },
    /// Stop copying, and say when that is so.
    GiveUpCopy {
        id: InstanceId,
    },
    /// Write down what is ordered, then start it. `run` rises with every start of the instance.
    Launch {
        id: InstanceId,
        note: Note,
        run: u32,
        what: Arc<Run>,
    },
    /// Write this down beside it: what the next life of the daemon has to know.
    Note {
        id: InstanceId,
        note: Note,
    },
    /// Check it from now on, until it ends.
    Watch {
        id: InstanceId,
        run: u32,
        what: Arc<Run>,
    },
    Signal {
        id: InstanceId,
        signal: model::spec::Signal,
    },
    /// SIGKILL to everything it started.
    Kill {
        id: InstanceId,
    },
    /// Remove its directory, after this volume with all its data.
    Erase {
        id: InstanceId,
        volume: Option<VolumeOrder>,
    },
    /// Remember whom to obey, before anything of it is carried out.
    Remember(Memory),
    /// The lease holds until then: keepers of fenced instances are told.
    Lease {
        fence_at: Time,
    },
    /// New backend sets for the edge of this daemon.
    Sets(Sets),
    Feed(FeedWork),
    /// What the edge of this daemon is to do.
    Duty(Duty),
    /// The node has drained and was to stop then: the daemon ends, well.
    Leave,
    /// The coordinator will not have this daemon; it should end with this message.
    GiveUp {
        message: String,
    },
}

/// One daemon's view of what it runs.
#[derive(Clone, Debug)]
pub struct Node {
    identity: Identity,
    timing: Timing,
    epoch: Option<ProcessEpoch>,
    connected: bool,
    foreign: bool,
    stopping: bool,
    /// The last word was said: nothing more comes.
    goodbye: bool,
    up_seq: u64,
    down_seq: u64,
    /// When each unanswered heartbeat was sent.
    sent: BTreeMap<u64, Time>,
    /// Sending time of the last heartbeat that was answered: the lease counts from there.
    lease_from: Option<Time>,
    connected_at: Time,
    next_heartbeat: Time,
    fenced: bool,
    refused_since: Option<Time>,
    status_number: u64,
    instances: BTreeMap<InstanceId, Local>,
    /// Directories that are gone, for as long as the coordinator may ask.
    forgotten: BTreeMap<InstanceId, Time>,
    /// Instances it was told to stop and does not have.
    absent: BTreeMap<InstanceId, (Status, Time)>,
    degraded: Option<Code>,
    edge: EdgeReport,
    feeds: Feeds,
    out: Vec<Output>,
}

impl Node {
    pub fn new(identity: Identity, timing: Timing, now: Time) -> Node {
        Node {
            feeds: Feeds::new(identity.node.clone()),
            identity,
            timing,
            epoch: None,
            connected: false,
            foreign: false,
            stopping: false,
            goodbye: false,
            up_seq: 0,
            down_seq: 0,
            sent: BTreeMap::new(),
            lease_from: None,
            connected_at: now,
            next_heartbeat: now,
            fenced: false,
            refused_since: None,
            status_number: 0,
            instances: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            absent: BTreeMap::new(),
            degraded: None,
            edge: EdgeReport::default(),
            out: Vec::new(),
        }
    }

    pub fn handle(&mut self, now: Time, input: Input) -> Vec<Output> {
        match input {
            Input::Found { id, note, run, runs, process } => {
                let watch = matches!(process, Process::Running { .. });
                let local = Local::found(note, run.clone(), runs, process, now);
                self.instances.insert(id, local);
                self.changed(id);
                if watch {
                    self.out.push(Output::Watch { id, run: runs, what: run });
                }
                // What else follows waits until everything that was found is known.
                return std::mem::take(&mut self.out);
            }
            Input::Connected => self.connected(now),
            Input::Disconnected => self.disconnected(),
            Input::Down(down) => self.take_down(down, now),
            Input::Launched { id, run, pid, ports } => {
                self.with(id, |local, at| local.launched(at, run, pid, ports, now));
            }
            Input::LaunchFailed { id, run, code, message } => {
                self.with(id, |local, _| local.launch_failed(run, code, message, now));
            }
            Input::Exited { id, run, exit, memory_exceeded, message } => {
                self.with(id, |local, _| local.exited(run, exit, memory_exceeded, message, now));
            }
            Input::Checked { id, run, passed, message } => {
                self.with(id, |local, _| local.checked(run, passed, message, now));
            }
            Input::CopyEnded { id, end } => {
                let gone_after = self.timing.offline_after;
                self.with(id, |local, _| local.copy_ended(end, gone_after, now));
            }
            Input::Erased { id } => {
                self.instances.remove(&id);
                self.forgotten.insert(id, now);
                self.hurry(now);
            }
            Input::Machine { degraded } => {
                if self.degraded != degraded {
                    self.degraded = degraded;
                    self.hurry(now);
                }
            }
            Input::Edge(report) => {
                if self.edge != report {
                    self.edge = report;
                    self.hurry(now);
                }
            }
            Input::Feed(news) => self.feeds.heard(news, now),
            Input::Feeds(all) => all.into_iter().for_each(|news| self.feeds.heard(news, now)),
            Input::Stopping => self.begin_stopping(now),
            Input::Tick => {}
        }
        self.advance(now);
        std::mem::take(&mut self.out)
    }

    /// What time alone brings about: starts after a pause, kills after a grace, the fence, heartbeats.
    fn advance(&mut self, now: Time) {
        // First of all: a daemon that was stopped for a while must not start what it has to stop.
        self.mind_the_fence(now);
        let ids: Vec<InstanceId> = self.instances.keys().copied().collect();
        let leased = self.lease_from.is_some() && !self.fenced;
        let may_start = local::MayStart { any: !self.stopping, fenced: !self.stopping && leased };
        for id in ids {
            self.with(id, |local, at| local.advance(at, may_start, now));
        }
        self.advance_feeds(now);
        self.say_goodbye(now);
        self.beat(now);
    }

    /// When `Tick` is due next.
    pub fn next_wake(&self) -> Option<Time> {
        let locals = self.instances.values().filter_map(Local::next_wake);
        locals.chain(self.session_wake()).chain(self.feeds.next_wake()).min()
    }

    /// Runs one step of an instance and takes up what it wants done and reported.
    fn with(&mut self, id: InstanceId, step: impl FnOnce(&mut Local, &mut Vec<local::Do>)) {
        let Some(local) = self.instances.get_mut(&id) else { return };
        let (before, noted) = (local.shown(), local.note());
        let mut wishes = Vec::new();
        step(local, &mut wishes);
        let changed = local.shown() != before;
        let (note, what) = (local.note(), local.run.clone());
        if note != noted && local.is_on_disk() {
            self.out.push(Output::Note { id, note });
        }
        for wish in wishes {
            self.out.push(match wish {
                local::Do::Copy => Output::Copy { id, note, what: what.clone() },
                local::Do::GiveUpCopy => Output::GiveUpCopy { id },
                local::Do::Launch { run } => Output::Launch { id, note, run, what: what.clone() },
                local::Do::Watch { run } => Output::Watch { id, run, what: what.clone() },
                local::Do::Signal => Output::Signal { id, signal: what.spec.stop.signal },
                local::Do::Kill => Output::Kill { id },
                local::Do::Erase { destroy } => {
                    Output::Erase { id, volume: what.volume.clone().filter(|_| destroy) }
                }
            });
        }
        if changed {
            self.changed(id);
        }
    }

    /// An instance's status is new: it goes out with the next heartbeat, which is now.
    fn changed(&mut self, id: InstanceId) {
        self.status_number += 1;
        if let Some(local) = self.instances.get_mut(&id) {
            local.number = self.status_number;
            local.stored = false;
        }
        self.next_heartbeat = Time(0);
    }

    pub fn epoch(&self) -> Option<ProcessEpoch> {
        self.epoch
    }

    /// It was told to end and has said its last word: the daemon may go.
    pub fn may_end(&self) -> bool {
        self.goodbye
    }

    /// The instances it has, with their service, for the shell and the simulator's checks.
    pub fn instances(&self) -> impl Iterator<Item = (InstanceId, &Run, bool)> {
        self.instances.iter().map(|(id, local)| (*id, local.run.as_ref(), local.has_process()))
    }
}
