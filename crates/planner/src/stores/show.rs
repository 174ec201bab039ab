//! What people are shown of a store, derived from stored facts and from what its backend said last.

use model::{
    Actual, BackendState, Cluster, Count, InstanceId, Millis, NodeId, RestartWhy, Store, StoreGroupName,
    StoreId, Time, units::format_bytes,
};

use super::{Sighting, Wait, process::instance_of};

/// How far a store is on its way out, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffliningReason {
    /// Asked for, not begun.
    Pending,
    /// Begun in the backend, or being taken back.
    Active,
    Completed,
    /// The last call to the backend failed; it is tried again.
    Failed,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offlining {
    pub reason: OffliningReason,
    pub message: String,
    pub since: Time,
}

/// What is done about a store's leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Restart,
    EvictLeader,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub mode: Mode,
    pub why: RestartWhy,
    pub began_at: Time,
    /// When its present process was created: after `began_at`, it is the new one.
    pub created_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictorShown {
    /// Otherwise somebody else's: used, never removed.
    pub ours: bool,
    pub names: Vec<String>,
    pub since: Option<Time>,
}

/// Everything that is shown of a store.
#[derive(Clone, Debug)]
pub struct StoreStatus {
    pub id: StoreId,
    pub group: StoreGroupName,
    pub ordinal: u32,
    pub identity: Option<String>,
    pub node: Option<NodeId>,
    pub instance: Option<InstanceId>,
    pub process: Option<Actual>,
    /// `serving`, `removing`, `removed`, `unknown`.
    pub state: &'static str,
    pub leaders: Option<Count>,
    /// Bytes on it.
    pub data: Option<u64>,
    pub progress: Option<f64>,
    /// Bytes a second that leave it.
    pub rate: Option<u64>,
    pub eta: Option<Millis>,
    pub offline: bool,
    pub marked: bool,
    pub offlining: Option<Offlining>,
    pub evictor: Option<EvictorShown>,
    pub work: Option<Work>,
    pub wait: Option<Wait>,
    /// When the backend last said something of it.
    pub seen_at: Option<Time>,
}

impl OffliningReason {
    pub fn as_str(self) -> &'static str {
        match self {
            OffliningReason::Pending => "Pending",
            OffliningReason::Active => "Active",
            OffliningReason::Completed => "Completed",
            OffliningReason::Failed => "Failed",
            OffliningReason::Cancelled => "Cancelled",
        }
    }
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Restart => "restart",
            Mode::EvictLeader => "evict-leader",
        }
    }
}

/// The condition `Offlining`. `None`: it never was to go.
pub fn offlining(store: &Store, seen: &Sighting, wait: Option<&Wait>) -> Option<Offlining> {
    let waits = || wait.map_or(String::new(), |wait| wait.message.clone());
    if let Some(since) = store.removed_at {
        let message = match store.offline.is_some() {
            true => "the backend has removed it; its process and its volume go",
            false => "too late to cancel: the backend has removed it; its process and its volume go",
        };
        return Some(Offlining { reason: OffliningReason::Completed, message: message.to_owned(), since });
    }
    let begun = store.removal.as_ref().and_then(|removal| removal.begun);
    let failed = store.trouble.as_ref().filter(|trouble| !trouble.refusal);
    let cancels = store.offline.is_none() && begun.is_some();
    if let Some(trouble) = failed.filter(|_| store.offline.is_some() || cancels) {
        let prefix = if cancels { "cancelling: " } else { "" };
        let message = format!("{prefix}{}", trouble.message);
        return Some(Offlining { reason: OffliningReason::Failed, message, since: trouble.since });
    }
    match (&store.offline, begun) {
        (Some(_), Some(since)) => {
            let left = seen.state.as_ref().and_then(BackendState::data);
            let message = left.map_or_else(waits, |left| format!("{} left", format_bytes(left)));
            Some(Offlining { reason: OffliningReason::Active, message, since })
        }
        (Some(offline), None) => {
            let refused = store.trouble.as_ref().map(|trouble| trouble.message.clone());
            let message = refused.unwrap_or_else(waits);
            Some(Offlining { reason: OffliningReason::Pending, message, since: offline.since })
        }
        (None, Some(since)) => {
            let since = store.cancelled_at.unwrap_or(since);
            Some(Offlining { reason: OffliningReason::Active, message: "cancelling".to_owned(), since })
        }
        (None, None) => store.cancelled_at.map(|since| {
            // The backend may still have to hear of it.
            match seen.state {
                Some(BackendState::Removing { .. }) => {
                    Offlining { reason: OffliningReason::Active, message: "cancelling".to_owned(), since }
                }
                Some(BackendState::Serving { .. } | BackendState::Removed | BackendState::Unknown) | None => {
                    let message = "it stays after all".to_owned();
                    Offlining { reason: OffliningReason::Cancelled, message, since }
                }
            }
        }),
    }
}

pub fn status(
    cluster: &Cluster,
    store: &Store,
    seen: &Sighting,
    wait: Option<&Wait>,
    now: Time,
) -> StoreStatus {
    let instance = instance_of(cluster, store).filter(|instance| !instance.is_over());
    let state = if store.removed_at.is_some() { Some(&BackendState::Removed) } else { seen.state.as_ref() };
    let (rate, eta) = pace(seen, now);
    StoreStatus {
        id: store.id.clone(),
        group: store.group.clone(),
        ordinal: store.ordinal,
        identity: store.identity.clone(),
        node: instance.map(|instance| cluster.node(instance.node).rec.id.clone()),
        instance: instance.map(|instance| instance.id),
        process: instance.map(|instance| instance.actual),
        state: state.map_or("unknown", BackendState::as_str),
        leaders: state.and_then(BackendState::leaders),
        data: state.and_then(BackendState::data),
        progress: state.and_then(|state| match state {
            BackendState::Removing { progress, .. } => Some(*progress),
            BackendState::Removed => Some(1.0),
            BackendState::Serving { .. } | BackendState::Unknown => None,
        }),
        rate,
        eta,
        offline: store.offline.is_some(),
        marked: store.marked,
        offlining: offlining(store, seen, wait),
        evictor: evictor(store, seen),
        work: work(store, instance.map(|instance| instance.created_at)),
        wait: wait.cloned().or_else(|| trouble(store, seen)),
        seen_at: seen.state.as_ref().map(|_| seen.at),
    }
}

fn trouble(store: &Store, seen: &Sighting) -> Option<Wait> {
    let trouble = store.trouble.as_ref().or(seen.trouble.as_ref())?;
    Some(Wait::new(trouble.code, trouble.message.clone()))
}

fn evictor(store: &Store, seen: &Sighting) -> Option<EvictorShown> {
    let names = seen.evictors.as_ref().map(|read| read.names.clone()).unwrap_or_default();
    match &store.evictor {
        Some(own) => Some(EvictorShown { ours: true, names, since: Some(own.began_at) }),
        None if !names.is_empty() => Some(EvictorShown { ours: false, names, since: None }),
        None => None,
    }
}

/// Restart wins over evict.
fn work(store: &Store, created_at: Option<Time>) -> Option<Work> {
    let restart = store.restart.as_ref().map(|restart| (Mode::Restart, restart.why, restart.began_at));
    let evict = store.evict.as_ref().map(|evict| (Mode::EvictLeader, RestartWhy::Asked, evict.began_at));
    let (mode, why, began_at) = restart.or(evict)?;
    Some(Work { mode, why, began_at, created_at })
}

/// Bytes a second, and how long it takes at that.
fn pace(seen: &Sighting, now: Time) -> (Option<u64>, Option<Millis>) {
    let (Some((since, first)), Some(left)) =
        (seen.moving_since, seen.state.as_ref().and_then(BackendState::data))
    else {
        return (None, None);
    };
    let (moved, took) = (first.saturating_sub(left), now.since(since).0);
    if moved == 0 || took == 0 {
        return (None, None);
    }
    let rate = u128::from(moved) * 1000 / u128::from(took);
    let eta = u128::from(left) * u128::from(took) / u128::from(moved);
    (u64::try_from(rate).ok(), u64::try_from(eta).ok().map(Millis))
}
