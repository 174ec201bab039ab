//! Points and spans of time, in milliseconds. They come in as arguments; nothing here reads a clock.

use std::{
    fmt,
    ops::{Add, Sub},
};

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970. A shell anchors it once to the wall clock and lets it run on the boot
/// clock from there, so that a wall clock that jumps moves no deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

/// A span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Millis(pub u64);

impl Time {
    /// How long ago `earlier` was. A time in the future counts as just now: another coordinator's
    /// clock may have been ahead of ours.
    pub fn since(self, earlier: Time) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Millis {
    pub const ZERO: Millis = Millis(0);

    pub const fn secs(seconds: u64) -> Millis {
        Millis(seconds * 1000)
    }
    pub fn as_duration(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }
}

impl From<std::time::Duration> for Millis {
    fn from(duration: std::time::Duration) -> Millis {
        Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Add<Millis> for Time {
    type Output = Time;
    fn add(self, span: Millis) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub<Millis> for Time {
    type Output = Time;
    fn sub(self, span: Millis) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::units::format_duration(*self))
    }
}
