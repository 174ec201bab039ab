//! One instance on its node: started, checked, started again after a crash, stopped.
//!
//! | phase | entered | left |
//! |---|---|---|
//! | `Waiting` | ordered, or after a crash | its time comes: `Launching`, or `Copying` if data is to come first |
//! | `Copying` | the shell copies scratch data | it has ended: `Waiting` |
//! | `Launching` | the shell starts it | it runs, or could not be started |
//! | `Running` | the process runs | it ends, or its stop is ordered |
//! | `Stopping` | the stop signal was sent | it ended; killed when its grace is over |
//! | `Over` | nothing of it runs, for good | never |

use std::sync::Arc;

use model::{Actual, Code, Exit, Kind, Millis, Time};

use super::{
    Process,
    copy::{Copied, Copy, CopyEnd, Next},
};
use crate::message::{Run, Status, What};

/// Crashes without a stretch of [`STEADY_AFTER`] before the node gives an instance up.
pub const RESTARTS_MAX: u32 = 5;
/// The pause before the first restart; it doubles with each further one.
const RESTART_PAUSE_FIRST: Millis = Millis(200);
const RESTART_PAUSE_MAX: Millis = Millis::secs(30);
/// After running this long its crashes are forgiven.
const STEADY_AFTER: Millis = Millis::secs(60);
/// One failed check is noise; this many in a row are not.
pub const UNREADY_AFTER_FAILURES: u32 = 3;
/// Kill is repeated at this pace for as long as a process is still there.
const KILL_AGAIN_AFTER: Millis = Millis::secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    Run,
    Drain,
    Stop,
}

/// What the next life of the daemon has to know of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The revision of the last order.
    pub order: u32,
    pub wanted: Wanted,
    /// It was ready: it stays in the edges' sets while its daemon is away.
    pub ready: bool,
    /// Nothing of it runs, for good. The coordinator may have been told, and something else may have
    /// taken its place: the next life must not start it again.
    pub over: Option<Ending>,
    /// Scratch data that was to come before its first start.
    pub copied: Copied,
}

/// How an instance that is over ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Stopped,
    Failed,
}

/// What may be started now.
#[derive(Clone, Copy, Debug)]
pub(super) struct MayStart {
    pub any: bool,
    /// What must not run twice needs a lease.
    pub fenced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Waiting { until: Time },
    Copying { given_up: bool },
    Launching,
    Running { pid: u32, since: Time },
    Stopping { pid: u32, kill_at: Time, killed: bool },
    Over { failed: bool },
}

/// What an instance wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Do {
    Copy,
    GiveUpCopy,
    Launch {
        run: u32,
    },
    Watch {
        run: u32,
    },
    Signal,
    Kill,
    /// Its directory, and its volume as well if that is to be destroyed.
    Erase {
        destroy: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Local {
    pub order: u32,
    pub run: Arc<Run>,
    pub number: u64,
    /// The coordinator has stored the present status.
    pub stored: bool,
    wanted: Wanted,
    phase: Phase,
    copy: Copy,
    /// The number of the present start.
    runs: u32,
    crashes: u32,
    ports: Vec<u16>,
    reason: Option<Code>,
    message: Option<String>,
    exit: Option<Exit>,
    /// Passing its check without a break since then.
    healthy_since: Option<Time>,
    ready: bool,
    failures: u32,
    forget: bool,
    /// Ordered in this life of the daemon. What an earlier life was told may be out of date.
    confirmed: bool,
    /// The fence has come: nothing of it may be left then.
    fenced: Option<Time>,
    /// Which status was last sent, and when.
    pub said: Option<(u64, Time)>,
    /// Its start only waits for time.
    may_be_due: bool,
}

impl Local {
    pub fn ordered(order: u32, run: Arc<Run>, now: Time) -> Local {
        let copy = Copy::ordered(&run);
        let reason = copy.is_due().then_some(Code::DiskCopying);
        Local {
            order,
            run,
            number: 0,
            stored: false,
            wanted: Wanted::Run,
            phase: Phase::Waiting { until: now },
            copy,
            runs: 0,
            crashes: 0,
            ports: Vec::new(),
            reason,
            message: None,
            exit: None,
            healthy_since: None,
            ready: false,
            failures: 0,
            forget: false,
            confirmed: true,
            fenced: None,
            said: None,
            may_be_due: true,
        }
    }

    /// As found on disk. What runs goes on; what ended while nobody looked is handled as if seen now.
    pub fn found(note: Note, run: Arc<Run>, runs: u32, process: Process, now: Time) -> Local {
        let copy = Copy::found(&run, note.copied);
        let mut local = Local {
            runs,
            copy,
            wanted: note.wanted,
            confirmed: false,
            ..Local::ordered(note.order, run, now)
        };
        local.clear_reason();
        match process {
            Process::Ended { exit, .. } if note.over.is_some() => local.exit = Some(exit),
            Process::Running { pid, ports } => {
                local.ports = ports;
                // Its check decides anew; being adopted is no reason to lose traffic before it does.
                local.ready = note.ready || local.run.spec.check.is_none();
                local.healthy_since = local.ready.then_some(now);
                local.phase = Phase::Running { pid, since: now };
            }
            Process::Ended { exit, memory_exceeded, message } => {
                local.phase = Phase::Running { pid: 0, since: now };
                local.exited(runs, exit, memory_exceeded, message, now);
            }
            Process::Lost { message } => {
                (local.reason, local.message) = (Some(Code::ProcessLost), Some(message));
            }
            Process::NotStarted => {}
        }
        if let Some(ending) = note.over.filter(|_| !local.has_process()) {
            local.phase = Phase::Over { failed: ending == Ending::Failed };
        }
        local
    }

    /// Takes an order. Lower revisions are out of date.
    pub fn take(&mut self, revision: u32, what: What, wishes: &mut Vec<Do>) {
        if revision < self.order {
            return;
        }
        match what {
            What::Run(run) => {
                (self.wanted, self.run) = (Wanted::Run, run);
            }
            What::Drain => self.wanted = self.wanted.max(Wanted::Drain),
            What::Stop => self.wanted = Wanted::Stop,
            What::Forget | What::Destroy(_) => {
                // Only what is over is forgotten: an order to forget never stops anything.
                if matches!(self.phase, Phase::Over { .. }) && !self.forget {
                    self.forget = true;
                    wishes.push(Do::Erase { destroy: matches!(what, What::Destroy(_)) });
                }
                return;
            }
        }
        (self.order, self.confirmed) = (revision, true);
    }

    pub fn launched(&mut self, wishes: &mut Vec<Do>, run: u32, pid: u32, ports: Vec<u16>, now: Time) {
        if run != self.runs || self.phase != Phase::Launching {
            return;
        }
        self.ports = ports;
        self.phase = Phase::Running { pid, since: now };
        (self.healthy_since, self.ready, self.failures) = (None, false, 0);
        if self.run.spec.check.is_none() {
            (self.healthy_since, self.ready) = (Some(now), true);
            self.clear_reason();
        }
        wishes.push(Do::Watch { run });
    }

    pub fn launch_failed(&mut self, run: u32, code: Code, message: String, _now: Time) {
        if run == self.runs && self.phase == Phase::Launching {
            (self.reason, self.message) = (Some(code), Some(message));
            self.phase = Phase::Over { failed: self.wanted == Wanted::Run };
        }
    }

    pub fn exited(
        &mut self,
        run: u32,
        exit: Exit,
        memory_exceeded: bool,
        message: Option<String>,
        now: Time,
    ) {
        if run != self.runs {
            return;
        }
        let since = match self.phase {
            Phase::Running { since, .. } => since,
            Phase::Launching | Phase::Stopping { .. } => now,
            Phase::Waiting { .. } | Phase::Copying { .. } | Phase::Over { .. } => return,
        };
        (self.healthy_since, self.ready, self.exit) = (None, false, Some(exit));
        let code = if memory_exceeded { Code::MemoryExceeded } else { Code::Exited };
        let stopping = matches!(self.phase, Phase::Stopping { .. }) || self.wanted == Wanted::Stop;
        if stopping {
            self.phase = Phase::Over { failed: false };
            return;
        }
        if self.run.spec.kind == Kind::Batch && exit == Exit::Code(0) {
            (self.reason, self.message) = (None, None);
            self.phase = Phase::Over { failed: false };
            return;
        }
        let said = message.unwrap_or_else(|| describe(exit, memory_exceeded, &self.run));
        self.crashes = if now.since(since) >= STEADY_AFTER { 1 } else { self.crashes + 1 };
        if self.wanted == Wanted::Drain {
            // On its way out anyway: it is not brought back.
            (self.reason, self.message) = (Some(code), Some(said));
            self.phase = Phase::Over { failed: false };
        } else if self.crashes > RESTARTS_MAX {
            let code = if memory_exceeded { Code::MemoryExceeded } else { Code::CrashLooping };
            (self.reason, self.message) = (Some(code), Some(said));
            self.phase = Phase::Over { failed: true };
        } else {
            let code = if memory_exceeded { code } else { Code::Restarting };
            (self.reason, self.message) = (Some(code), Some(said));
            let pause = Millis(RESTART_PAUSE_FIRST.0 << (self.crashes - 1).min(16)).min(RESTART_PAUSE_MAX);
            self.phase = Phase::Waiting { until: now + pause };
        }
    }

    pub fn checked(&mut self, run: u32, passed: bool, message: String, now: Time) {
        let Phase::Running { .. } = self.phase else { return };
        if run != self.runs {
            return;
        }
        if passed {
            self.failures = 0;
            self.healthy_since = self.healthy_since.or(Some(now));
            self.clear_reason();
            return;
        }
        self.failures += 1;
        if !self.ready || self.failures >= UNREADY_AFTER_FAILURES {
            (self.healthy_since, self.ready) = (None, false);
            // While it starts, a check that fails is what is expected.
            if self.failures >= UNREADY_AFTER_FAILURES {
                (self.reason, self.message) = (Some(Code::Unhealthy), Some(message));
            }
        }
    }

    /// Nothing is wrong with it, but for what it never got.
    fn clear_reason(&mut self) {
        (self.reason, self.message) = match self.copy.state {
            Copied::Due => (Some(Code::DiskCopying), self.copy.cause.clone()),
            Copied::Done => (None, None),
            Copied::Not => (Some(Code::DiskNotCopied), self.copy.cause.clone()),
        };
    }

    /// `gone_after`: a node that is silent for so long counts as gone.
    pub fn copy_ended(&mut self, end: CopyEnd, gone_after: Millis, now: Time) {
        let Phase::Copying { .. } = self.phase else { return };
        self.phase = Phase::Waiting { until: now };
        if self.is_to_end() {
            // It never started: whatever came goes with it, and the data is still there for another.
            return;
        }
        match self.copy.ended(end, gone_after, now) {
            Next::Start => {}
            Next::Again { at } => self.phase = Phase::Waiting { until: at },
        }
        self.clear_reason();
    }

    fn is_to_end(&self) -> bool {
        self.wanted != Wanted::Run || self.fenced.is_some()
    }

    /// Its lease is over: it stops by itself, within what is left before others take over.
    pub fn fence(&mut self, wishes: &mut Vec<Do>, kill_at: Time) {
        if !self.run.spec.is_fenced() || self.fenced.is_some() {
            return;
        }
        self.fenced = Some(kill_at);
        // One that still waits for its data never started: nothing of it is killed.
        if !self.copy.is_due() {
            (self.reason, self.message) =
                (Some(Code::Fenced), Some("the coordinator was out of reach".to_owned()));
        }
        match self.phase {
            Phase::Running { pid, .. } => {
                wishes.push(Do::Signal);
                self.phase = Phase::Stopping { pid, kill_at, killed: false };
            }
            // Its own grace may be longer than what is left.
            Phase::Stopping { pid, kill_at: later, killed } => {
                self.phase = Phase::Stopping { pid, kill_at: later.min(kill_at), killed };
            }
            Phase::Waiting { .. } => self.phase = Phase::Over { failed: false },
            Phase::Copying { .. } | Phase::Launching | Phase::Over { .. } => {}
        }
    }

    /// What is due by now.
    pub fn advance(&mut self, wishes: &mut Vec<Do>, may_start: MayStart, now: Time) {
        let may_start = if self.run.spec.is_fenced() { may_start.fenced } else { may_start.any };
        // It may have been given up since an earlier life was told to run it: starting takes an order.
        let may_start = may_start && self.confirmed;
        self.may_be_due = may_start;
        match self.phase.clone() {
            Phase::Waiting { .. } if self.is_to_end() => {
                // It waited to be started again, and will not be.
                self.reason =
                    self.reason.map(|code| if code == Code::Restarting { Code::Exited } else { code });
                self.phase = Phase::Over { failed: false };
            }
            Phase::Waiting { until } if until <= now && may_start && self.copy.is_due() => {
                self.copy.begin(self.run.spec.migrate.healthy_deadline, now);
                self.phase = Phase::Copying { given_up: false };
                wishes.push(Do::Copy);
            }
            Phase::Copying { given_up: false }
                if self.is_to_end() || self.copy.gives_up_at().is_some_and(|at| at <= now) =>
            {
                self.phase = Phase::Copying { given_up: true };
                wishes.push(Do::GiveUpCopy);
            }
            Phase::Waiting { until } if until <= now && may_start => {
                self.runs += 1;
                self.phase = Phase::Launching;
                wishes.push(Do::Launch { run: self.runs });
            }
            Phase::Running { pid, since } => {
                if self.wanted == Wanted::Stop || self.fenced.is_some() {
                    wishes.push(Do::Signal);
                    let grace_ends = now + self.run.spec.stop.grace;
                    let kill_at = self.fenced.map_or(grace_ends, |fence| fence.min(grace_ends));
                    self.phase = Phase::Stopping { pid, kill_at, killed: false };
                } else {
                    self.become_ready(now);
                    if now.since(since) >= STEADY_AFTER {
                        self.crashes = 0;
                    }
                }
            }
            Phase::Stopping { pid, kill_at, .. } if kill_at <= now => {
                wishes.push(Do::Kill);
                self.phase = Phase::Stopping { pid, kill_at: now + KILL_AGAIN_AFTER, killed: true };
            }
            Phase::Waiting { .. }
            | Phase::Copying { .. }
            | Phase::Launching
            | Phase::Stopping { .. }
            | Phase::Over { .. } => {}
        }
    }

    fn become_ready(&mut self, now: Time) {
        if let Some(since) = self.healthy_since
            && !self.ready
            && now.since(since) >= self.settle_time()
        {
            self.ready = true;
            self.clear_reason();
        }
    }

    /// How long it must pass its check before it counts as ready.
    fn settle_time(&self) -> Millis {
        self.run.spec.migrate.min_healthy_time
    }

    pub fn next_wake(&self) -> Option<Time> {
        match self.phase {
            Phase::Waiting { until } => Some(until).filter(|_| self.may_be_due),
            Phase::Copying { given_up } => self.copy.gives_up_at().filter(|_| !given_up),
            Phase::Stopping { kill_at, .. } => Some(kill_at),
            Phase::Running { .. } if !self.ready => {
                self.healthy_since.map(|since| since + self.settle_time())
            }
            Phase::Running { .. } | Phase::Launching | Phase::Over { .. } => None,
        }
    }

    /// It has a directory, in which its note is kept.
    pub fn is_on_disk(&self) -> bool {
        self.runs > 0 || self.copy.on_disk
    }

    pub fn note(&self) -> Note {
        let over = match self.phase {
            Phase::Over { failed: true } => Some(Ending::Failed),
            Phase::Over { failed: false } => Some(Ending::Stopped),
            Phase::Waiting { .. }
            | Phase::Copying { .. }
            | Phase::Launching
            | Phase::Running { .. }
            | Phase::Stopping { .. } => None,
        };
        let copied = self.copy.state;
        Note { order: self.order, wanted: self.wanted, ready: self.ready, over, copied }
    }

    /// It has something to say that the coordinator has not stored, and did not say it just now.
    pub fn has_news(&mut self, now: Time, again_after: Millis) -> bool {
        let said = self.said.is_some_and(|(number, at)| number == self.number && now.since(at) < again_after);
        if self.stored || said {
            return false;
        }
        self.said = Some((self.number, now));
        true
    }

    pub fn has_process(&self) -> bool {
        matches!(self.phase, Phase::Launching | Phase::Running { .. } | Phase::Stopping { .. })
    }

    fn actual(&self) -> Actual {
        match self.phase {
            Phase::Waiting { .. } | Phase::Copying { .. } | Phase::Launching => Actual::Starting,
            Phase::Running { .. } if self.wanted != Wanted::Run => Actual::Unready,
            Phase::Running { .. } if self.ready => Actual::Ready,
            Phase::Running { .. } if self.reason == Some(Code::Unhealthy) => Actual::Unready,
            Phase::Running { .. } => Actual::Starting,
            Phase::Stopping { .. } => Actual::Stopping,
            Phase::Over { failed: true } => Actual::Failed,
            Phase::Over { failed: false } => Actual::Stopped,
        }
    }

    fn pid(&self) -> Option<u32> {
        match self.phase {
            Phase::Running { pid, .. } | Phase::Stopping { pid, .. } => Some(pid),
            Phase::Waiting { .. } | Phase::Copying { .. } | Phase::Launching | Phase::Over { .. } => None,
        }
    }

    /// What others see of it: a change of this is reported.
    pub fn shown(&self) -> impl PartialEq + use<> {
        let health = self.healthy_since.is_some() && self.ready;
        (
            self.order,
            self.confirmed,
            self.actual(),
            self.runs,
            self.pid(),
            self.ports.clone(),
            self.reason,
            self.exit,
            health,
        )
    }

    pub fn status(&self, instance: model::InstanceId, now: Time) -> Status {
        let actual = self.actual();
        Status {
            instance,
            number: self.number,
            // What an earlier life was told is acknowledged once it is told again.
            order: if self.confirmed { self.order } else { 0 },
            actual,
            restarts: self.runs.saturating_sub(1),
            pid: self.pid(),
            ports: self.ports.clone(),
            reason: self.reason,
            message: self.message.clone(),
            exit: self.exit,
            healthy_for: self.healthy_since.filter(|_| self.ready).map(|since| now.since(since)),
        }
    }
}

/// The status of an instance that was ordered to stop and is not here.
pub(super) fn never_here(instance: model::InstanceId, number: u64, order: u32) -> Status {
    Status {
        instance,
        number,
        order,
        actual: Actual::Stopped,
        restarts: 0,
        pid: None,
        ports: Vec::new(),
        reason: None,
        message: Some("it is not on this node".to_owned()),
        exit: Some(Exit::Unknown),
        healthy_for: None,
    }
}

fn describe(exit: Exit, memory_exceeded: bool, run: &Run) -> String {
    let how = match exit {
        Exit::Code(code) => format!("ended with code {code}"),
        Exit::Signal(signal) => format!("was killed by signal {signal}"),
        Exit::Unknown => "ended, nobody saw how".to_owned(),
    };
    match memory_exceeded {
        true => format!("{how}: it went over its {}", model::units::format_bytes(run.spec.memory)),
        false => how,
    }
}
