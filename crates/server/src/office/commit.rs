//! How a write to the store ended, told apart by what the commit log has to do about it.

use std::time::{Duration, Instant};

use model::Term;
use protocol::coordinator::{Op, Stored};
use store::{CommitError, Office as Won, StoreError};

use super::Shared;

/// Between two tries to read the head. The lease ends the trying.
const HEAD_PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn commit(shared: &Shared, won: &Won, head: u64, ops: Vec<Op>) -> Stored {
    let begun = Instant::now();
    let ops: Vec<store::Op> =
        ops.into_iter().map(|(key, value)| store::Op { key: key.into_bytes(), value }).collect();
    let error = match shared.config.store.commit(won, head, &ops).await {
        Ok(()) => {
            shared.metrics.commit.observe(begun.elapsed().as_secs_f64());
            return Stored::Committed;
        }
        Err(error) => error,
    };
    tracing::warn!(head, %error, "a write to the store did not succeed");
    match error {
        CommitError::Unknown { .. } => Stored::Unknown,
        CommitError::Unavailable { .. } => Stored::Unavailable,
        CommitError::SpaceExhausted { .. } => out_of_space(shared, won, head).await,
        // The reason may be that an earlier try of the same bytes was applied after all; resigning and
        // loading is right in that case too, only slower.
        CommitError::Refused { .. } => Stored::Refused,
        // Nothing that is tried again helps: begin anew from what is stored.
        CommitError::TooLarge { .. } | CommitError::Broken { .. } => Stored::Refused,
    }
}

/// The etcd that crosses its quota applies the transaction and answers with an error all the same.
async fn out_of_space(shared: &Shared, won: &Won, head: u64) -> Stored {
    match try_head(shared, won).await {
        Ok((number, by)) if number == head && by.0 == won.term => Stored::Committed,
        Ok((number, by)) if number + 1 == head && by.0 == won.term => Stored::NoSpace,
        Ok(_) => Stored::Refused,
        Err(_) => Stored::Unknown,
    }
}

/// The head and who wrote it, asked for until the store answers.
pub(super) async fn read_head(shared: &Shared, won: &Won) -> (u64, Term) {
    loop {
        match try_head(shared, won).await {
            Ok(answer) => return answer,
            Err(error) => tracing::warn!(%error, "the head cannot be read"),
        }
        tokio::time::sleep(HEAD_PAUSE).await;
    }
}

/// Whoever is in office *after* the head was read bounds who wrote it: if that is still us, nobody
/// else was in between. Otherwise it counts as a later term's, and we resign.
async fn try_head(shared: &Shared, won: &Won) -> Result<(u64, Term), StoreError> {
    let head = shared.config.store.head().await?;
    let holder = shared.config.store.holder().await?;
    let by = holder.map_or(u64::MAX, |holder| if holder.term == won.term { won.term } else { u64::MAX });
    Ok((head, Term(by)))
}
