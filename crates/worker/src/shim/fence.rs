//! A timer on CLOCK_BOOTTIME. Sleeping on a condition variable would not do: those clocks stand still
//! while the machine is suspended, and the lease this stands for does not.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

pub struct FenceTimer(OwnedFd);

impl FenceTimer {
    pub fn new() -> io::Result<Self> {
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?))
    }

    /// An absolute time; one that has passed rings at once. `None` silences it.
    pub fn set(&self, deadline_ms: Option<u64>) -> io::Result<()> {
        // Zero would disarm the timer, and means "long ago" here.
        let value = deadline_ms.map_or(Timespec::default(), |ms| timespec(ms.max(1)));
        let spec = Itimerspec { it_interval: Timespec::default(), it_value: value };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }

    /// Blocks until it rings. A call of `set` meanwhile moves the time it waits for.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            match rustix::io::read(&self.0, &mut [0; 8]) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn timespec(ms: u64) -> Timespec {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let nanoseconds = (ms % 1000) * 1_000_000;
    Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ }
}
