//! How long things take to be noticed. One set of values per cluster: the coordinator tells nodes.

use model::Millis;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub heartbeat: Millis,
    /// The coordinator's office.
    pub lease: Millis,
    pub degraded_after: Millis,
    /// The node itself stops what must not run twice, counted from sending its last answered heartbeat.
    pub fence_after: Millis,
    /// The coordinator gives the node's units up, counted from receiving.
    pub offline_after: Millis,
    pub last_node_after: Millis,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: Millis::secs(1),
            lease: Millis::secs(5),
            degraded_after: Millis::secs(5),
            fence_after: Millis::secs(45),
            offline_after: Millis::secs(60),
            last_node_after: Millis::secs(30),
        }
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("timing.{key}: {message}")]
pub struct TimingError {
    pub key: &'static str,
    pub message: String,
}

impl Timing {
    /// What `dev` uses: a person who kills a node wants to see something happen.
    pub const DEV: Timing = Timing {
        heartbeat: Millis(250),
        lease: Millis::secs(3),
        degraded_after: Millis::secs(2),
        fence_after: Millis::secs(4),
        offline_after: Millis::secs(6),
        last_node_after: Millis::secs(10),
    };

    /// A takeover must never happen before the fence, nor may an office outlast it.
    pub fn check(&self) -> Result<(), TimingError> {
        let wrong = |key, message: String| Err(TimingError { key, message });
        if self.heartbeat.0 < 10 {
            return wrong("heartbeat", format!("{} is shorter than 10ms", self.heartbeat));
        }
        if self.lease.0 < 1_000 {
            return wrong("lease", format!("{} is shorter than 1s", self.lease));
        }
        if self.degraded_after.0 < 2 * self.heartbeat.0 {
            return wrong("degraded_after", format!("{} is less than two heartbeats", self.degraded_after));
        }
        if self.lease > self.fence_after {
            return wrong(
                "lease",
                format!("{} is longer than fence_after ({})", self.lease, self.fence_after),
            );
        }
        if self.fence_after >= self.offline_after {
            return wrong(
                "fence_after",
                format!("{} is not shorter than offline_after ({})", self.fence_after, self.offline_after),
            );
        }
        if self.degraded_after >= self.offline_after {
            return wrong(
                "degraded_after",
                format!("{} is not shorter than offline_after ({})", self.degraded_after, self.offline_after),
            );
        }
        Ok(())
    }
}
