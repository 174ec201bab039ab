//! What to do next with one store.
//!
//! | offline | backend says | next |
//! |---|---|---|
//! | not wanted | serving | nothing; what was begun is taken back, evictors of ours without a reason go |
//! | not wanted | removing | cancel |
//! | not wanted | removed | too late: its process and volume go, the group makes another |
//! | wanted | serving | preflight, leaders away for as long as it takes but not longer than allowed, begin |
//! | wanted | removing | go on; once nothing is left, write down that it cannot be undone, then forget |
//! | wanted | removed | its process and volume go |
//! | either | unknown | wait: nothing is deleted on a guess; one that never joined goes at once |

use model::{
    BackendCall, BackendState, Code, Count, InstanceId, Millis, OwnEvictor, Removal, Restart, Store,
    StoreGroupSpec, Time,
};

use super::{BUSY_POLL, CALL_PACE, EVICT_PACE, IDLE_POLL, Moved, Sighting, Wait};

/// After this many failures, some three minutes, a backend is not waited for any longer by a store that is destroyed with
/// its group: it may be gone as well.
const DESTROY_TRIES_MAX: u32 = 8;

/// A store's process, as far as deciding goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// Nothing of it runs.
    None {
        /// Where the last one was reached.
        address: Option<String>,
    },
    /// Nothing of it runs. It may have run: nobody heard where it was reached, and nobody saw it end.
    Lost,
    /// Wanted, and not ready.
    Starting {
        id: InstanceId,
        address: Option<String>,
    },
    Ready {
        id: InstanceId,
        address: Option<String>,
    },
    /// Its node is offline: whether it runs, and what it leads, nobody knows.
    Unseen {
        id: InstanceId,
    },
    /// Told to stop; its node has not said that it has.
    Stopping {
        id: InstanceId,
    },
}

pub struct Situation<'a> {
    pub store: &'a Store,
    pub seen: &'a Sighting,
    pub spec: &'a StoreGroupSpec,
    pub process: Process,
    /// Why it may not begin to leave, or to restart, yet.
    pub held_up: Option<Wait>,
    /// No other store could take its leaders: there is none.
    pub alone: bool,
    /// The deadline of its node's drain is over: leaders are waited for no longer than allowed.
    pub hurried: bool,
    /// Its group is to be destroyed with all its data.
    pub destroyed: bool,
    pub now: Time,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// As it should be.
    Rest {
        look_at: Time,
    },
    Call(BackendCall),
    /// Write this down, then look again.
    Record(Box<Store>),
    /// Tell its process to stop; it starts again by itself.
    StopProcess,
    /// Process, volume and record may go.
    Remove,
    Wait {
        wait: Wait,
        look_at: Time,
    },
}

/// What to do next with a store. Pure: the same situation gives the same step.
pub fn next(s: &Situation<'_>) -> Step {
    if s.destroyed {
        return destroy(s);
    }
    if s.store.removed_at.is_some() {
        return match (&s.store.evictor, &s.store.identity) {
            (Some(evictor), Some(identity)) => s.unless_troubled(stop_evicting(identity, evictor)),
            (Some(_), None) => s.record(|store| store.evictor = None),
            (None, _) => Step::Remove,
        };
    }
    let Some(identity) = s.store.identity.as_deref() else { return not_joined(s) };
    if let Some(wait) = s.troubled() {
        return wait;
    }
    let Some(state) = s.fresh_state() else {
        let begun = s.store.removal.as_ref().filter(|removal| removal.begun.is_some());
        let removal = begun.map(|removal| removal.memo.clone());
        return Step::Call(BackendCall::State { store: identity.to_owned(), removal });
    };
    match (&s.store.offline, state) {
        (_, BackendState::Removed) => s.record(|store| store.removed_at = Some(s.now)),
        (_, BackendState::Unknown) => unknown(s, identity),
        (Some(_), BackendState::Serving { leaders, .. }) => leave(s, identity, *leaders),
        (Some(_), BackendState::Removing { leaders, data_left, .. }) => {
            go_on(s, identity, leaders.is_surely_zero() && *data_left == 0)
        }
        (None, BackendState::Removing { .. }) => cancel(s, identity),
        (None, BackendState::Serving { leaders, .. }) => stay(s, identity, *leaders),
    }
}

impl Situation<'_> {
    fn record(&self, change: impl FnOnce(&mut Store)) -> Step {
        let mut store = self.store.clone();
        change(&mut store);
        Step::Record(Box::new(store))
    }

    fn wait(&self, wait: Wait) -> Step {
        Step::Wait { wait, look_at: self.now + BUSY_POLL }
    }

    /// What went wrong last is tried again only when it is due.
    fn troubled(&self) -> Option<Step> {
        let trouble = self.store.trouble.as_ref().or(self.seen.trouble.as_ref())?;
        (trouble.next_try > self.now).then(|| {
            let wait = Wait {
                code: trouble.code,
                message: trouble.message.clone(),
                blocks: trouble.code != Code::BackendUnreachable,
            };
            Step::Wait { wait, look_at: trouble.next_try }
        })
    }

    fn unless_troubled(&self, call: BackendCall) -> Step {
        self.troubled().unwrap_or(Step::Call(call))
    }

    /// What the backend said, if that is not too long ago.
    fn fresh_state(&self) -> Option<&BackendState> {
        let poll = if self.store.is_busy() { BUSY_POLL } else { IDLE_POLL };
        let fresh = self.now.since(self.seen.heard) < poll && self.seen.with_removal == self.has_begun();
        self.seen.state.as_ref().filter(|_| fresh)
    }

    fn has_begun(&self) -> bool {
        self.store.removal.as_ref().is_some_and(|removal| removal.begun.is_some())
    }

    fn paced(&self, last: Option<Time>, pace: Millis, call: BackendCall, wait: Wait) -> Step {
        match last.map(|last| last + pace).filter(|due| *due > self.now) {
            Some(due) => Step::Wait { wait, look_at: due.min(self.now + BUSY_POLL) },
            None => Step::Call(call),
        }
    }

    /// Somebody else keeps leaders away.
    fn is_foreign(&self) -> bool {
        let read = self.seen.evictors.as_ref();
        self.store.evictor.is_none() && read.is_some_and(|read| !read.names.is_empty())
    }

    /// Leaders are kept away, and what the backend said of them was asked after that.
    fn is_evicting(&self) -> bool {
        match &self.store.evictor {
            Some(_) => self.seen.evicted_at.is_some_and(|at| at <= self.seen.at),
            None => self.is_foreign(),
        }
    }
}

/// No data is moved anywhere; what of ours is in the backend is taken out if it can be.
fn destroy(s: &Situation<'_>) -> Step {
    let tried = s.store.trouble.as_ref().map_or(0, |trouble| trouble.failures);
    match (&s.store.evictor, &s.store.identity) {
        (Some(evictor), Some(identity)) if tried < DESTROY_TRIES_MAX => {
            s.unless_troubled(stop_evicting(identity, evictor))
        }
        (Some(_), _) => s.record(|store| (store.evictor, store.trouble) = (None, None)),
        (None, _) => Step::Remove,
    }
}

/// The backend is not known to know it.
fn not_joined(s: &Situation<'_>) -> Step {
    let leaves = s.store.offline.is_some();
    if let (true, Process::None { address: None }) = (leaves, &s.process) {
        // It never ran: nobody can have heard of it.
        return s.record(|store| store.removed_at = Some(s.now));
    }
    if let Some(wait) = s.troubled() {
        return wait;
    }
    let restart = s.store.restart.as_ref();
    match &s.process {
        Process::Ready { address: Some(address), .. } if !(s.seen.absent && leaves) => {
            Step::Call(BackendCall::Identify { address: address.clone() })
        }
        Process::Ready { id, .. } | Process::Starting { id, .. } if leaves || is_old(restart, *id) => {
            // It would join while it is being given up.
            Step::StopProcess
        }
        Process::Ready { .. } if restart.is_some() => s.record(|store| store.restart = None),
        Process::None { address: Some(_) } | Process::Lost if leaves && s.seen.unlisted => {
            s.record(|store| store.removed_at = Some(s.now))
        }
        Process::None { address: Some(address) } if leaves => {
            let message = format!(
                "its backend does not know {address}, but has a member at that port that no store is known to be; \
                 nothing is deleted on a guess"
            );
            let wait = Wait::blocker(Code::StoreNotJoined, message);
            s.paced(s.seen.identified_at, EVICT_PACE, BackendCall::Members, wait)
        }
        Process::Lost if leaves => {
            let message = "its process was lost before anybody heard where it was reached, and its backend has a member \
                           that no store is known to be; nothing is deleted on a guess";
            let wait = Wait::blocker(Code::StoreNotJoined, message);
            s.paced(s.seen.identified_at, EVICT_PACE, BackendCall::Members, wait)
        }
        Process::Stopping { .. } => {
            s.wait(Wait::new(Code::GracePeriod, "told to stop; its node has not said that it has"))
        }
        Process::Unseen { .. } => s.wait(unseen()),
        Process::None { .. } | Process::Lost | Process::Starting { .. } | Process::Ready { .. } => s.wait(
            Wait::new(Code::StoreNotJoined, "its process is not ready: its backend does not know it yet"),
        ),
    }
}

fn unseen() -> Wait {
    Wait::new(Code::NodeUnreachable, "its node is offline; whether it runs is unknown")
}

/// The backend knew it and does not any more, or it has another identity there.
fn unknown(s: &Situation<'_>, identity: &str) -> Step {
    let wanted = s.store.evict.is_some() || s.store.restart.is_some() || s.store.offline.is_some();
    if let (Some(evictor), false) = (&s.store.evictor, wanted) {
        return Step::Call(stop_evicting(identity, evictor));
    }
    let message = format!("the backend does not know {identity}; nothing is deleted on a guess");
    let wait = Wait::blocker(Code::StoreNotJoined, message);
    match &s.process {
        Process::Ready { address: Some(address), .. } => {
            let call = BackendCall::Identify { address: address.clone() };
            s.paced(s.seen.identified_at, EVICT_PACE, call, wait)
        }
        Process::Ready { .. }
        | Process::None { .. }
        | Process::Lost
        | Process::Starting { .. }
        | Process::Unseen { .. }
        | Process::Stopping { .. } => s.wait(wait),
    }
}

/// Offline is wanted and it serves: preflight, leaders away, begin.
fn leave(s: &Situation<'_>, identity: &str, leaders: Count) -> Step {
    let Some(removal) = &s.store.removal else {
        return match &s.held_up {
            Some(wait) => s.wait(wait.clone()),
            None => Step::Call(BackendCall::Preflight { store: identity.to_owned() }),
        };
    };
    if removal.begun.is_some() {
        return go_on(s, identity, false);
    }
    match &s.held_up {
        // Another is on its way first: what the preflight said was said without it.
        Some(wait) if wait.code == Code::MaxParallel => return s.record(|store| store.removal = None),
        Some(wait) => return s.wait(wait.clone()),
        None => {}
    }
    let begin = |removal: &Removal| Removal { begun: Some(s.now), ..removal.clone() };
    let gone = s.is_evicting() && leaders.is_surely_zero();
    let late = s.now.since(removal.since) >= s.spec.max_eviction;
    if gone || late || s.alone || removal.skip_eviction {
        return s.record(|store| store.removal = Some(begin(removal)));
    }
    evict(s, identity, leaders)
}

/// It was begun, or may have been.
fn go_on(s: &Situation<'_>, identity: &str, empty: bool) -> Step {
    let Some(removal) = &s.store.removal else {
        // Begun by somebody else. Offline is wanted as well: from here on it is ours.
        let removal = Removal {
            memo: String::new(),
            since: s.now,
            skip_eviction: true,
            begun: Some(s.now),
            forgetting: false,
        };
        return s.record(|store| store.removal = Some(removal));
    };
    let store = identity.to_owned();
    if removal.forgetting && !empty {
        // What holds data is not forgotten.
        let not_yet = Removal { forgetting: false, ..removal.clone() };
        return s.record(|store| store.removal = Some(not_yet));
    }
    if removal.forgetting {
        let wait = Wait::new(Code::DataMoving, "the backend is to forget it");
        return s.paced(s.seen.moved_at, CALL_PACE, BackendCall::Forget { store }, wait);
    }
    if removal.begun.is_none() {
        // The backend removes it though we have not asked: it was asked in our name, or by somebody else.
        let begun = Removal { begun: Some(s.now), ..removal.clone() };
        return s.record(|store| store.removal = Some(begun));
    }
    if empty && s.seen.complete == Some(Moved::Away) {
        let last = Removal { forgetting: true, ..removal.clone() };
        return s.record(|store| store.removal = Some(last));
    }
    let call = BackendCall::BeginOffline { store, memo: removal.memo.clone() };
    s.paced(s.seen.moved_at, CALL_PACE, call, data_moving(s.seen))
}

fn data_moving(seen: &Sighting) -> Wait {
    let left = seen.state.as_ref().and_then(BackendState::data);
    let message = match left {
        Some(left) => format!("{} are left on it", model::units::format_bytes(left)),
        None => "its data is taken elsewhere".to_owned(),
    };
    Wait::new(Code::DataMoving, message)
}

/// Offline is not wanted any more: what was begun is taken back.
fn cancel(s: &Situation<'_>, identity: &str) -> Step {
    if s.store.removal.is_some() && s.seen.complete == Some(Moved::Back) {
        return s.record(|store| store.removal = None);
    }
    let memo = s.store.removal.as_ref().map_or(String::new(), |removal| removal.memo.clone());
    let call = BackendCall::CancelOffline { store: identity.to_owned(), memo };
    s.paced(
        s.seen.moved_at,
        CALL_PACE,
        call,
        Wait::new(Code::DataMoving, "cancelling: its data is brought back"),
    )
}

/// It is to stay, and serves.
fn stay(s: &Situation<'_>, identity: &str, leaders: Count) -> Step {
    match &s.store.removal {
        Some(removal) if removal.begun.is_some() => return cancel(s, identity),
        Some(_) => return s.record(|store| store.removal = None),
        None => {}
    }
    if let Some(restart) = &s.store.restart {
        return self::restart(s, identity, leaders, restart);
    }
    if s.store.evict.is_some() {
        return match s.is_evicting() && leaders.is_surely_zero() {
            true => keep_evicting(s, identity),
            false => evict(s, identity, leaders),
        };
    }
    match &s.store.evictor {
        Some(evictor) => Step::Call(stop_evicting(identity, evictor)),
        None => {
            let poll = if s.store.is_busy() { BUSY_POLL } else { IDLE_POLL };
            Step::Rest { look_at: s.seen.heard + poll }
        }
    }
}

/// Evict, none left, stop, start, ready, stop evicting.
fn restart(s: &Situation<'_>, identity: &str, leaders: Count, restart: &Restart) -> Step {
    match &s.process {
        Process::Ready { id, .. } if !is_old(Some(restart), *id) => {
            // Leaders stay away for those who asked for that alone.
            match (&s.store.evictor, &s.store.evict) {
                (Some(evictor), None) => Step::Call(stop_evicting(identity, evictor)),
                (_, _) => s.record(|store| store.restart = None),
            }
        }
        Process::Starting { id, .. } if !is_old(Some(restart), *id) => {
            s.wait(Wait::new(Code::ReplacementStarting, "its new process is not ready"))
        }
        Process::Ready { .. } | Process::Starting { .. } => {
            if let Some(wait) = &s.held_up {
                return s.wait(wait.clone());
            }
            // One that is not ready need not be kept from what it does not get anyway.
            let kept_away = s.is_evicting() || matches!(s.process, Process::Starting { .. });
            let begun = s.store.evictor.as_ref().map_or(restart.began_at, |evictor| evictor.began_at);
            let late = s.hurried && s.now.since(begun) >= s.spec.max_eviction;
            match s.alone || late || (kept_away && leaders.is_surely_zero()) {
                true => Step::StopProcess,
                false => evict(s, identity, leaders),
            }
        }
        Process::Unseen { .. } => s.wait(unseen()),
        Process::Stopping { .. } => {
            s.wait(Wait::new(Code::GracePeriod, "told to stop; its node has not said that it has"))
        }
        Process::None { .. } | Process::Lost => {
            s.wait(Wait::new(Code::ReplacementStarting, "its new process is to be placed"))
        }
    }
}

/// Whether a process is the one that a restart is to end.
fn is_old(restart: Option<&Restart>, id: InstanceId) -> bool {
    restart.is_some_and(|restart| restart.instance == Some(id))
}

/// One that is there and not recorded is somebody else's: used, never removed. Otherwise record, then add.
fn evict(s: &Situation<'_>, identity: &str, leaders: Count) -> Step {
    let wait = leaders_remaining(leaders);
    if s.store.evictor.is_some() {
        return add(s, identity, wait);
    }
    let read = s.seen.evictors.as_ref().filter(|read| s.now.since(read.at) < EVICT_PACE);
    match read {
        None => Step::Call(BackendCall::Evictors { store: identity.to_owned() }),
        Some(read) if read.names.is_empty() => {
            let evictor = OwnEvictor { began_at: s.now, memo: read.memo.clone() };
            s.record(|store| store.evictor = Some(evictor))
        }
        Some(_) => s.wait(wait),
    }
}

fn add(s: &Situation<'_>, identity: &str, wait: Wait) -> Step {
    let memo = s.store.evictor.as_ref().map_or(String::new(), |evictor| evictor.memo.clone());
    let call = BackendCall::EvictLeaders { store: identity.to_owned(), on: true, memo };
    s.paced(s.seen.evicted_at, EVICT_PACE, call, wait)
}

/// None is left: whoever asked sees that, and it stays so.
fn keep_evicting(s: &Situation<'_>, identity: &str) -> Step {
    let step = match s.store.evictor.is_some() {
        true => add(s, identity, Wait::new(Code::LeadersRemaining, String::new())),
        false => evict(s, identity, Count { value: 0, complete: true }),
    };
    match step {
        Step::Wait { look_at, .. } => Step::Rest { look_at },
        Step::Rest { .. } | Step::Call(_) | Step::Record(_) | Step::StopProcess | Step::Remove => step,
    }
}

fn leaders_remaining(leaders: Count) -> Wait {
    let message = match leaders {
        Count { value: 0, complete: true } => "its leaders are to be kept away first".to_owned(),
        Count { value, complete: true } => format!("{value} leaders are left on it"),
        Count { value, complete: false } => {
            format!("{value} leaders or more are left on it: the backend's count is not complete")
        }
    };
    Wait::new(Code::LeadersRemaining, message)
}

fn stop_evicting(identity: &str, evictor: &OwnEvictor) -> BackendCall {
    BackendCall::EvictLeaders { store: identity.to_owned(), on: false, memo: evictor.memo.clone() }
}
