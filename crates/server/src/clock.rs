//! The coordinator's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::Time;
use rustix::time::{ClockId, clock_gettime};

/// The wall clock as it stood when this was made, running on the boot clock from there: a wall clock
/// that jumps moves no deadline, and time spent suspended counts.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall: Duration,
    boot: Duration,
}

impl Clock {
    /// Anchored to the wall clock as it stands.
    pub fn anchored() -> Clock {
        // A clock set before 1970 is as good an anchor as any.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { wall, boot: boot_clock() }
    }

    pub fn now(&self) -> Time {
        let now = self.wall + boot_clock().saturating_sub(self.boot);
        Time(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}

fn boot_clock() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
