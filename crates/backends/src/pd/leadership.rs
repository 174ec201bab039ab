//! Whether PD's counts may be believed.
//!
//! PD counts leaders by what stores report of their regions, once a minute. After a change of PD's own leader the next
//! one begins with what it has read from disk, and its counts are too low until all have reported: an eviction looked
//! finished at 40 with 53 leaders there. So counts are complete only when
//!
//! - the same PD process has led for [`PdConfig::settle`](super::PdConfig::settle), as far as was seen from here: a first sight is the beginning;
//! - it led before and after the counts were read;
//! - it knows a leader for every region.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::BackendError;
use crate::pd::http::Call;
use crate::pd::shapes::{Members, PdStatus};

/// A member that leads, and since when its process runs: the same one starts from its disk as any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    pub cluster: u64,
    member: u64,
    started: i64,
}

/// Who led when it was last looked at. Lost with the process, which only makes the next one wait.
#[derive(Debug, Default)]
pub struct Watch(Mutex<Option<(Tenure, Instant)>>);

impl Watch {
    /// How long this one has led, as far as was seen.
    pub fn seen_for(&self, tenure: Tenure) -> Duration {
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match *last {
            Some((known, since)) if known == tenure => since.elapsed(),
            Some(_) | None => {
                *last = Some((tenure, Instant::now()));
                Duration::ZERO
            }
        }
    }
}

/// The cluster that answers: an address may have passed to another.
pub async fn cluster(call: &Call<'_>) -> Result<u64, BackendError> {
    let members: Members = call.get("/members").await?.read()?;
    Ok(members.header.cluster_id)
}

pub async fn tenure(call: &Call<'_>) -> Result<Tenure, BackendError> {
    let members: Members = call.get("/members").await?.read()?;
    let leader = members.leader.ok_or_else(|| BackendError::Unreachable {
        operation: call.operation,
        whom: "PD".to_owned(),
        why: "it has no leader".to_owned(),
    })?;
    // answered by the leader, whoever is asked
    let status: PdStatus = call.get("/status").await?.read()?;
    Ok(Tenure {
        cluster: members.header.cluster_id,
        member: leader.member_id,
        started: status.start_timestamp,
    })
}
