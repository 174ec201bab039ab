//! How many messages a stream may bring before it is read more slowly.

use std::time::Duration;

use doors::limits::{STREAM_BURST, STREAM_MESSAGES_PER_SECOND};
use tokio::time::Instant;

pub(crate) struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    pub fn new(now: Instant) -> Allowance {
        Allowance { left: f64::from(STREAM_BURST), at: now }
    }

    /// How long to wait before one more is read.
    pub fn take(&mut self, now: Instant) -> Duration {
        let rate = f64::from(STREAM_MESSAGES_PER_SECOND);
        let earned = (now - self.at).as_secs_f64() * rate;
        (self.left, self.at) = ((self.left + earned).min(f64::from(STREAM_BURST)), now);
        self.left -= 1.0;
        Duration::from_secs_f64((-self.left / rate).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads as many as it can until `end`, waiting as it is told, and says how many.
    fn read_until(allowance: &mut Allowance, mut now: Instant, end: Instant) -> u32 {
        let mut read = 0;
        loop {
            now += allowance.take(now);
            if now > end {
                return read;
            }
            read += 1;
        }
    }

    #[test]
    fn a_flood_is_a_burst_and_then_the_rate_and_a_quiet_time_earns_a_burst_again() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        for _ in 0..STREAM_BURST {
            assert_eq!(allowance.take(start), Duration::ZERO, "a burst is not held up");
        }
        let ten = Duration::from_secs(10);
        let read = read_until(&mut allowance, start, start + ten);
        let rate = 10 * STREAM_MESSAGES_PER_SECOND;
        assert!((rate - 1..=rate + 1).contains(&read), "{read} of {rate} in ten seconds");
        let later = start + ten + Duration::from_secs(3600);
        for _ in 0..STREAM_BURST {
            assert_eq!(allowance.take(later), Duration::ZERO);
        }
        assert!(allowance.take(later) > Duration::ZERO, "and no more than a burst");
    }

    #[test]
    fn heartbeats_are_never_held_up() {
        let mut now = Instant::now();
        let mut allowance = Allowance::new(now);
        for _ in 0..100_000 {
            assert_eq!(allowance.take(now), Duration::ZERO);
            now += Duration::from_millis(100);
        }
    }
}
