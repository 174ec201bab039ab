//! One span on this node, from being prepared to its last word.
//!
//! | state | left by | a crash here means |
//! |---|---|---|
//! | `Preparing` | the task says prepared, or fails | nothing: nobody relied on it |
//! | `Prepared` | `Start`, `Release`, the node is closed, its maintainer is silent | nothing |
//! | `Running` | `Stop`, the fence, the sink says that another epoch owns it | the maintainer asks the next life, which has nothing |
//! | `Stopping` | the task has ended | as above; the sink knows how far it was |
//! | `Stopped` | `Prepare`, `Release` | the checkpoint is the sink's, or the last that was reported |

use model::{Checkpoint, Code, Millis, SpanEpoch, SpanName, Time};

use super::{Task, TaskFailure};
use crate::message::feed::{Held, HeldState};

/// A dispatcher that was told to stop has this long to finish what is in flight; then it is aborted,
/// and what it had not committed is undone.
pub const STOP_PATIENCE: Millis = Millis::secs(10);
/// The pause after the first failure; it doubles with each further one.
const RETRY_FIRST: Millis = Millis(250);
const RETRY_MAX: Millis = Millis::secs(15);
/// What a person has to put right is looked at again only this often.
const RETRY_LASTING: Millis = Millis::secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Preparing,
    Prepared,
    Running(Work),
    Stopping { abort_at: Time, aborted: bool },
    Stopped,
}

/// What the task of a running span is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Going,
    /// After a failure: prepared again, then it goes on.
    Preparing,
    Waiting {
        until: Time,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Local {
    state: State,
    epoch: SpanEpoch,
    checkpoint: Option<Checkpoint>,
    trouble: Option<(Code, String)>,
    /// Rises with every task; what an earlier one says is out of date.
    run: u32,
    failures: u32,
    /// What the maintainer was last told of its progress.
    pub told: Option<Checkpoint>,
}

impl Local {
    pub fn preparing(tasks: &mut Vec<Task>) -> Local {
        let mut local = Local {
            state: State::Preparing,
            epoch: SpanEpoch(0),
            checkpoint: None,
            trouble: None,
            run: 0,
            failures: 0,
            told: None,
        };
        local.prepare_task(tasks);
        local
    }

    fn prepare_task(&mut self, tasks: &mut Vec<Task>) {
        self.run += 1;
        tasks.push(Task::Prepare { run: self.run });
    }

    pub fn held(&self, span: &SpanName) -> Held {
        let state = match self.state {
            State::Preparing => HeldState::Preparing,
            State::Prepared => HeldState::Prepared,
            State::Running(_) => HeldState::Running,
            State::Stopping { .. } => HeldState::Stopping,
            // It was only prepared, and failed: nobody's last word is kept here.
            State::Stopped if self.epoch == SpanEpoch(0) => HeldState::Absent,
            State::Stopped => HeldState::Stopped,
        };
        Held {
            span: span.clone(),
            epoch: self.epoch,
            state,
            checkpoint: self.checkpoint,
            trouble: self.trouble.clone(),
        }
    }

    pub fn epoch(&self) -> SpanEpoch {
        self.epoch
    }

    pub fn checkpoint(&self) -> Option<Checkpoint> {
        self.checkpoint
    }

    /// It has a task, or owns the span: it counts for the node.
    pub fn is_live(&self) -> bool {
        match self.state {
            State::Preparing | State::Prepared | State::Running(_) | State::Stopping { .. } => true,
            State::Stopped => false,
        }
    }

    /// On its way in: what a destination limits.
    pub fn is_arriving(&self) -> bool {
        matches!(self.state, State::Preparing | State::Prepared)
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Asked to prepare; what it is beyond that already is answer enough.
    pub fn prepare(&mut self, tasks: &mut Vec<Task>) {
        if self.state == State::Stopped {
            (self.state, self.trouble, self.failures) = (State::Preparing, None, 0);
            self.prepare_task(tasks);
        }
    }

    /// Whether the start was taken, or had been.
    pub fn start(&mut self, epoch: SpanEpoch, from: Option<Checkpoint>, tasks: &mut Vec<Task>) -> bool {
        match self.state {
            State::Prepared if epoch > self.epoch => {
                self.state = State::Running(Work::Going);
                self.epoch = epoch;
                // The maintainer's word counts, not that of an earlier stay: the span may have vanished and
                // come back in between.
                self.checkpoint = from;
                self.told = self.checkpoint;
                tasks.push(Task::Go { run: self.run, epoch, from: self.checkpoint });
                true
            }
            State::Running(_) | State::Stopping { .. } => self.epoch >= epoch,
            State::Prepared | State::Preparing | State::Stopped => false,
        }
    }

    pub fn stop(&mut self, epoch: SpanEpoch, now: Time, tasks: &mut Vec<Task>) {
        if self.epoch == epoch {
            self.stop_running(now + STOP_PATIENCE, tasks);
        }
    }

    pub fn stop_running(&mut self, abort_at: Time, tasks: &mut Vec<Task>) {
        let State::Running(work) = self.state else { return };
        match work {
            Work::Going => {
                self.state = State::Stopping { abort_at, aborted: false };
                tasks.push(Task::Stop { run: self.run });
            }
            Work::Preparing => {
                tasks.push(Task::Abort { run: self.run });
                self.state = State::Stopping { abort_at, aborted: true };
            }
            // Nothing of it is in flight.
            Work::Waiting { .. } => self.state = State::Stopped,
        }
    }

    /// At the fence: what is on its way in goes at once, what runs has until `abort_at`.
    pub fn fence(&mut self, abort_at: Time, tasks: &mut Vec<Task>) -> bool {
        match self.state {
            State::Running(_) => {
                self.trouble = Some((Code::Fenced, "its node had lost the coordinator".to_owned()));
                self.stop_running(abort_at, tasks);
                true
            }
            State::Stopping { abort_at: at, aborted } => {
                self.state = State::Stopping { abort_at: at.min(abort_at), aborted };
                false
            }
            State::Preparing | State::Prepared | State::Stopped => false,
        }
    }

    /// Gives up a preparation. Whether nothing of it need be kept.
    pub fn release(&mut self, tasks: &mut Vec<Task>) -> bool {
        match self.state {
            State::Preparing | State::Prepared => {
                tasks.push(Task::Abort { run: self.run });
                // A predecessor of the same span ran here: its last word may still be asked for.
                let ran = self.epoch != SpanEpoch(0);
                self.state = State::Stopped;
                !ran
            }
            State::Stopped => true,
            State::Running(_) | State::Stopping { .. } => false,
        }
    }

    pub fn prepared(&mut self, run: u32, tasks: &mut Vec<Task>) -> bool {
        match self.state {
            State::Preparing if run == self.run => {
                (self.state, self.trouble) = (State::Prepared, None);
                true
            }
            State::Running(Work::Preparing) if run == self.run => {
                self.state = State::Running(Work::Going);
                tasks.push(Task::Go { run, epoch: self.epoch, from: self.checkpoint });
                false
            }
            State::Preparing
            | State::Prepared
            | State::Running(_)
            | State::Stopping { .. }
            | State::Stopped => false,
        }
    }

    pub fn progressed(&mut self, run: u32, checkpoint: Checkpoint) -> bool {
        if run != self.run {
            return false;
        }
        self.raise(checkpoint);
        // It works again: that is worth telling.
        let mended = self.state == State::Running(Work::Going) && self.trouble.is_some();
        if mended {
            (self.trouble, self.failures) = (None, 0);
        }
        mended
    }

    fn raise(&mut self, checkpoint: Checkpoint) {
        match &mut self.checkpoint {
            Some(known) => known.raise(checkpoint),
            None => self.checkpoint = Some(checkpoint),
        }
    }

    /// The task is gone. Returns whether the maintainer should hear of it.
    pub fn ended(&mut self, run: u32, result: Result<Option<Checkpoint>, TaskFailure>, now: Time) -> bool {
        if run != self.run {
            return false;
        }
        if let Ok(Some(checkpoint)) = result {
            self.raise(checkpoint);
        }
        match (self.state, result) {
            (State::Stopping { .. }, _) => self.state = State::Stopped,
            (State::Running(_), Err(failure)) if failure.fenced => {
                (self.state, self.trouble) = (State::Stopped, Some((failure.code, failure.message)));
            }
            (State::Running(_), Err(failure)) => {
                self.state = State::Running(Work::Waiting { until: now + self.pause(failure.passes) });
                let trouble = Some((failure.code, failure.message));
                let same = self.trouble == trouble;
                self.trouble = trouble;
                return !same;
            }
            // It ended by itself, well: what was asked for is that it runs.
            (State::Running(_), Ok(_)) => {
                self.state = State::Running(Work::Waiting { until: now + RETRY_FIRST });
                return false;
            }
            (State::Preparing | State::Prepared, Err(failure)) => {
                (self.state, self.trouble) = (State::Stopped, Some((failure.code, failure.message)));
            }
            (State::Preparing | State::Prepared, Ok(_)) => self.state = State::Stopped,
            (State::Stopped, _) => return false,
        }
        true
    }

    fn pause(&mut self, passes: bool) -> Millis {
        let doubled = RETRY_FIRST.0 << self.failures.min(16);
        self.failures += 1;
        if passes { Millis(doubled.min(RETRY_MAX.0)) } else { RETRY_LASTING }
    }

    pub fn advance(&mut self, now: Time, tasks: &mut Vec<Task>) {
        match self.state {
            State::Running(Work::Waiting { until }) if until <= now => {
                self.state = State::Running(Work::Preparing);
                self.prepare_task(tasks);
            }
            State::Stopping { abort_at, aborted: false } if abort_at <= now => {
                self.state = State::Stopping { abort_at, aborted: true };
                tasks.push(Task::Abort { run: self.run });
            }
            State::Preparing
            | State::Prepared
            | State::Running(_)
            | State::Stopping { .. }
            | State::Stopped => {}
        }
    }

    pub fn next_wake(&self) -> Option<Time> {
        match self.state {
            State::Running(Work::Waiting { until }) => Some(until),
            State::Stopping { abort_at, aborted: false } => Some(abort_at),
            State::Preparing
            | State::Prepared
            | State::Running(Work::Going | Work::Preparing)
            | State::Stopping { aborted: true, .. }
            | State::Stopped => None,
        }
    }
}
