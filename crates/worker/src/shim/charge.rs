//! What the shim is in charge of: the processes of one run, and the ways to end them.
//!
//! *Invariant:* a signal goes only to a process that has not been reaped. The main process is reaped under
//! the same lock under which signals are sent, so its pid cannot be somebody else's by then.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::fence::FenceTimer;
use crate::cgroup::{Group, Kind, OomNotice};
use crate::sys;

/// Pauses while killed processes go away: short at first, then patient.
const SWEEP_PAUSE_MIN: Duration = Duration::from_millis(1);
const SWEEP_PAUSE_MAX: Duration = Duration::from_millis(50);

/// Where there is no notice of the memory cap, its counter is looked at this often.
const OOM_POLL: Duration = Duration::from_millis(500);
/// The notice comes before the kill; for this long the counter is watched after one.
const OOM_KILL_WITHIN: Duration = Duration::from_secs(2);
const OOM_KILL_PAUSE: Duration = Duration::from_millis(5);

pub struct Charge {
    state: Mutex<State>,
    group: Option<Group>,
    timer: FenceTimer,
    /// Output that could not be written to the log.
    pub log_bytes_lost: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Starting,
    Running(Pid),
    /// The main process has ended; what is left is being killed, the ending recorded.
    Ending,
}

struct State {
    phase: Phase,
    fence_ms: Option<u64>,
    fenced: bool,
}

/// The facts at the end.
pub struct Ending {
    pub status: WaitStatus,
    pub memory_exceeded: bool,
    pub fenced: bool,
}

impl Charge {
    pub fn new(group: Option<Group>, fence_ms: Option<u64>) -> io::Result<Self> {
        let timer = FenceTimer::new()?;
        timer.set(fence_ms)?;
        let state = State { phase: Phase::Starting, fence_ms, fenced: false };
        Ok(Self { state: Mutex::new(state), group, timer, log_bytes_lost: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn phase(&self) -> Phase {
        self.lock().phase
    }

    pub fn fence_ms(&self) -> Option<u64> {
        self.lock().fence_ms
    }

    /// The main process is there. The fence may have passed while it was forked.
    pub fn started(&self, main: Pid) {
        let mut state = self.lock();
        state.phase = Phase::Running(main);
        self.kill_if_fenced(&mut state);
    }

    /// To the process group; an error when it is over already.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match self.lock().phase {
            Phase::Running(main) => sys::signal_group(main, signal),
            Phase::Starting | Phase::Ending => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// SIGKILL to the process group and to everything in the cgroup.
    pub fn kill(&self) {
        self.kill_locked(&self.lock());
    }

    fn kill_locked(&self, state: &State) {
        if let Phase::Running(main) = state.phase {
            // Gone already is what we want.
            let _ = rustix::process::kill_process_group(main, Signal::KILL);
        }
        if let Some(group) = &self.group {
            group.kill_all();
        }
    }

    /// Moves the fence, or takes it away.
    pub fn set_fence(&self, deadline_ms: Option<u64>) -> io::Result<()> {
        let mut state = self.lock();
        state.fence_ms = deadline_ms;
        self.timer.set(deadline_ms)?;
        self.kill_if_fenced(&mut state);
        Ok(())
    }

    fn kill_if_fenced(&self, state: &mut State) {
        let passed = state.fence_ms.is_some_and(|deadline| deadline <= sys::boottime_ms());
        if passed && matches!(state.phase, Phase::Running(_)) {
            state.fenced = true;
            self.kill_locked(state);
        }
    }

    /// A thread of the shim: kills once the fence passes, whether or not a daemon lives.
    pub fn watch_fence(&self) {
        while self.timer.wait().is_ok() {
            let mut state = self.lock();
            // The fence may have been moved between the alarm and this line; an alarm that comes before its
            // time must not be the last one either. The clock decides, and the timer is set once more.
            self.kill_if_fenced(&mut state);
            if !state.fenced {
                let _ = self.timer.set(state.fence_ms.filter(|deadline| *deadline > sys::boottime_ms()));
            }
        }
    }

    /// A thread of the shim: when the cap kills one process of the instance, all of it goes.
    pub fn watch_memory(&self) {
        let Some(group) = self.group.as_ref().filter(|g| g.kind == Kind::V1 && g.memory) else { return };
        let mut notice = OomNotice::arm(group).ok();
        while self.phase() != Phase::Ending {
            if notice.as_mut().is_some_and(|n| n.wait().is_err()) {
                notice = None;
            }
            let killed = match notice {
                Some(_) => self.cap_has_killed(group),
                None => {
                    std::thread::sleep(OOM_POLL);
                    group.oom_kills() > 0
                }
            };
            if killed {
                self.kill();
                return;
            }
        }
    }

    fn cap_has_killed(&self, group: &Group) -> bool {
        let until = std::time::Instant::now() + OOM_KILL_WITHIN;
        loop {
            if group.oom_kills() > 0 {
                return true;
            }
            if self.phase() == Phase::Ending || std::time::Instant::now() >= until {
                return false;
            }
            std::thread::sleep(OOM_KILL_PAUSE);
        }
    }

    /// Waits for the main process to end, then for everything else it left behind. As a subreaper the shim
    /// inherits every process whose parent died, also those that left the group and the session.
    pub fn wait(&self, main: Pid) -> io::Result<Ending> {
        let status = loop {
            match sys::wait_any_child()? {
                Some(pid) if pid == main => break self.reap_main(main)?,
                Some(other) => {
                    rustix::process::waitpid(Some(other), WaitOptions::empty())?;
                }
                None => return Err(io::Error::from_raw_os_error(libc::ECHILD)),
            }
        };
        self.sweep();
        let memory_exceeded = self.group.as_ref().is_some_and(|g| g.memory && g.oom_kills() > 0);
        Ok(Ending { status, memory_exceeded, fenced: self.lock().fenced })
    }

    fn reap_main(&self, main: Pid) -> io::Result<WaitStatus> {
        let mut state = self.lock();
        // The group's number is ours as long as its dead leader is not reaped.
        self.kill_locked(&state);
        state.phase = Phase::Ending;
        match rustix::process::waitpid(Some(main), WaitOptions::empty())? {
            Some((_, status)) => Ok(status),
            None => Err(io::Error::from_raw_os_error(libc::ECHILD)),
        }
    }

    /// Without a bound on purpose: an ending is not reported while a process of the instance lives.
    fn sweep(&self) {
        let mut pause = SWEEP_PAUSE_MIN;
        loop {
            let children_left = reap_the_dead();
            let members_left = self.group.as_ref().is_some_and(|g| !g.pids().is_empty());
            if !children_left && !members_left {
                return;
            }
            self.kill_locked(&self.lock());
            if children_left {
                kill_children();
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(SWEEP_PAUSE_MAX);
        }
    }
}

/// Reaps all dead children; true when live ones are left.
fn reap_the_dead() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(e) if e == rustix::io::Errno::INTR => {}
            Err(_) => return false,
        }
    }
}

fn kill_children() {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let children = sys::all_pids().into_iter().filter(|p| sys::proc_stat(*p).is_some_and(|s| s.parent == me));
    for child in children.filter_map(sys::pid) {
        // A child of ours that died meanwhile is a zombie until we reap it: the pid is still its own.
        let _ = rustix::process::kill_process(child, Signal::KILL);
    }
}
