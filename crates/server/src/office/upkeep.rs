//! What the store needs now and then from whoever is in office.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;

/// History kept for followers and for whoever wants to look back. A follower further behind loads anew.
const HISTORY_KEPT: Duration = Duration::from_secs(300);
/// How often the store is asked how it is.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// Compacts the store's history and watches its space, until dropped.
pub(super) async fn upkeep(shared: Arc<Shared>) {
    let store = &shared.config.store;
    let mut compact_to = None;
    let looks_per_compaction = HISTORY_KEPT.as_secs() / LOOK_EVERY.as_secs();
    for look in 0u64.. {
        match store.status().await {
            Ok(status) => {
                let was = shared.space_alarm.swap(status.space_alarm, Ordering::Relaxed);
                if status.space_alarm && !was {
                    tracing::error!(
                        "the store is out of space: raise its quota or compact and defragment it"
                    );
                }
                if look % looks_per_compaction == 0 {
                    if let Some(revision) = compact_to
                        && let Err(error) = store.compact(revision).await
                    {
                        tracing::warn!(%error, "the store's history could not be compacted");
                    }
                    compact_to = Some(status.revision);
                }
            }
            Err(error) => tracing::warn!(%error, "the store does not say how it is"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
