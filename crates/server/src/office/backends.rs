//! Calls to the backends of store groups.
//!
//! The coordinator decides what is asked and until when; here it is asked. Every order is answered exactly once while
//! the term lasts. *Invariant:* no call outlives its `until`, which is before the end of the office's lease for all that
//! change something, nor the term: its future is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use backends::{
    Backend, BackendError, CommandBackend, CommandConfig, Endpoint, Memo, Moving, Pd, PdConfig, Preflight,
    RedisCluster, RedisConfig, Refusal, StoreId, StoreState,
};
use model::{
    BackendAnswer, BackendCall, BackendFailure, BackendRefusal, BackendSpec, BackendState, Count,
    FailureKind, Millis, StoreGroupName, Time,
};
use protocol::coordinator::BackendOrder;

use crate::Clock;

/// A call that has less time than this is not begun.
const TIME_MIN: Duration = Duration::from_millis(100);
/// A call is told to end this long before it is dropped.
const MARGIN: Duration = Duration::from_millis(50);

/// Unless somebody says otherwise.
pub const PD_SETTLE: Millis = Millis::secs(PdConfig::SETTLE.as_secs());

type Answered = Result<BackendAnswer, BackendFailure>;

/// The backends that were called in this term: each remembers who answered it last.
pub(super) struct Backends {
    pd_settle: Duration,
    known: BTreeMap<StoreGroupName, Known>,
}

struct Known {
    spec: BackendSpec,
    seeds: BTreeSet<String>,
    backend: Arc<dyn Backend>,
}

impl Backends {
    pub fn new(pd_settle: Millis) -> Backends {
        Backends { pd_settle: pd_settle.as_duration(), known: BTreeMap::new() }
    }

    /// The call, to be awaited elsewhere.
    pub fn call(&mut self, order: &BackendOrder, clock: Clock) -> impl Future<Output = Answered> + use<> {
        let backend = self.backend(order);
        bounded(backend, order.call.clone(), order.until, clock)
    }

    /// Of a group that is gone nothing is kept.
    pub fn retain(&mut self, is_there: impl Fn(&StoreGroupName) -> bool) {
        self.known.retain(|group, _| is_there(group));
    }

    /// Groups of one backend share what is known of it.
    fn backend(&mut self, order: &BackendOrder) -> Arc<dyn Backend> {
        let spec = &order.spec.backend;
        let seeds = seeds(spec, &order.peers);
        let alike = |known: &&Known| known.spec == *spec && known.seeds == seeds;
        if let Some(known) = self.known.get(&order.group).filter(|known| alike(known)) {
            return Arc::clone(&known.backend);
        }
        let backend = match self.known.values().find(alike) {
            Some(known) => Arc::clone(&known.backend),
            None => self.make(spec, &seeds),
        };
        let known = Known { spec: spec.clone(), seeds, backend: Arc::clone(&backend) };
        self.known.insert(order.group.clone(), known);
        backend
    }

    fn make(&self, spec: &BackendSpec, seeds: &BTreeSet<String>) -> Arc<dyn Backend> {
        let endpoints = seeds.iter().map(Endpoint::new);
        match spec {
            BackendSpec::Pd { .. } => {
                let settle = self.pd_settle;
                Arc::new(Pd::new(PdConfig { settle, ..PdConfig::new(endpoints) }))
            }
            BackendSpec::RedisCluster { primaries_min, .. } => {
                let primaries_min = u64::from(*primaries_min);
                Arc::new(RedisCluster::new(RedisConfig { primaries_min, ..RedisConfig::new(endpoints) }))
            }
            BackendSpec::Command { command } => {
                let timeout = Duration::from_secs(5);
                Arc::new(CommandBackend::new(CommandConfig { argv: command.clone(), timeout }))
            }
        }
    }
}

/// Where a backend is asked. A Redis Cluster is its stores: those that are ready are asked as well, with the user and
/// password of the first endpoint.
fn seeds(spec: &BackendSpec, peers: &[String]) -> BTreeSet<String> {
    match spec {
        BackendSpec::Pd { endpoints } => endpoints.iter().cloned().collect(),
        BackendSpec::RedisCluster { endpoints, .. } => {
            let credentials = endpoints.first().map_or("", |endpoint| credentials(endpoint));
            let peers = peers.iter().map(|peer| format!("redis://{credentials}{peer}"));
            endpoints.iter().cloned().chain(peers).collect()
        }
        BackendSpec::Command { .. } => BTreeSet::new(),
    }
}

/// `user:password@`, or nothing.
fn credentials(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.rfind('@').map_or("", |at| &rest[..=at])
}

async fn bounded(backend: Arc<dyn Backend>, call: BackendCall, until: Time, clock: Clock) -> Answered {
    let left = until.since(clock.now()).as_duration();
    if left < TIME_MIN {
        let words = format!("there was no time left for the call {:?}", call.name());
        return Err(BackendFailure { kind: FailureKind::NotMade, words });
    }
    let name = call.name();
    match tokio::time::timeout(left, made(&*backend, call, left - MARGIN)).await {
        Ok(answered) => answered.map_err(failure),
        Err(_) => {
            let words = format!("{name}: no answer within {} ms", left.as_millis());
            Err(BackendFailure { kind: FailureKind::Unreachable, words })
        }
    }
}

async fn made(
    backend: &dyn Backend,
    call: BackendCall,
    within: Duration,
) -> Result<BackendAnswer, BackendError> {
    let moved = |moving: Moving| BackendAnswer::Moved { complete: moving == Moving::Complete };
    Ok(match call {
        BackendCall::Replicas => BackendAnswer::Replicas(backend.replicas().await?),
        BackendCall::Members => {
            let members = backend.members().await?;
            BackendAnswer::Members(members.into_iter().map(|member| (member.address, member.id.0)).collect())
        }
        BackendCall::Identify { address } => BackendAnswer::Identity(backend.identify(&address).await?.0),
        BackendCall::State { store, removal } => {
            let state = backend.state(&StoreId(store), removal.map(Memo).as_ref()).await?;
            BackendAnswer::State(state_of(state))
        }
        BackendCall::Evictors { store } => {
            let found = backend.evictors(&StoreId(store)).await?;
            let names = found.evictors.into_iter().map(|evictor| evictor.name).collect();
            BackendAnswer::Evictors { names, memo: found.memo.0 }
        }
        BackendCall::Preflight { store } => match backend.preflight(&StoreId(store)).await? {
            Preflight::Possible { memo } => BackendAnswer::Possible { memo: memo.0 },
            Preflight::Refused { refusal } => BackendAnswer::Refused(refusal_of(refusal)),
        },
        BackendCall::EvictLeaders { store, on, memo } => {
            backend.evict_leaders(&StoreId(store), on, &Memo(memo), within).await?;
            BackendAnswer::Done
        }
        BackendCall::BeginOffline { store, memo } => {
            moved(backend.begin_offline(&StoreId(store), &Memo(memo), within).await?)
        }
        BackendCall::CancelOffline { store, memo } => {
            moved(backend.cancel_offline(&StoreId(store), &Memo(memo), within).await?)
        }
        BackendCall::Forget { store } => {
            backend.forget(&StoreId(store), within).await?;
            BackendAnswer::Done
        }
    })
}

fn state_of(state: StoreState) -> BackendState {
    let count = |count: backends::Count| Count { value: count.value, complete: count.complete };
    match state {
        StoreState::Serving { leaders, data } => BackendState::Serving { leaders: count(leaders), data },
        StoreState::Removing { leaders, data_left, progress } => {
            BackendState::Removing { leaders: count(leaders), data_left, progress }
        }
        StoreState::Removed => BackendState::Removed,
        StoreState::Unknown => BackendState::Unknown,
    }
}

fn refusal_of(refusal: Refusal) -> BackendRefusal {
    match refusal {
        Refusal::TooFewReplicas { left, needed } => BackendRefusal::TooFewReplicas { left, needed },
        Refusal::NoStoreForLeaders { leaders } => BackendRefusal::NoStoreForLeaders { leaders },
        Refusal::NoRoom { data, room } => BackendRefusal::NoRoom { data, room },
        Refusal::Backend { words } => BackendRefusal::Other { words },
    }
}

fn failure(error: BackendError) -> BackendFailure {
    let (kind, operation) = match error {
        BackendError::Unreachable { operation, .. } => (FailureKind::Unreachable, operation),
        BackendError::Refused { operation, .. } => (FailureKind::Refused, operation),
        BackendError::NotFound { operation, .. } => (FailureKind::NotFound, operation),
        BackendError::NotPossible { operation, .. } => (FailureKind::NotPossible, operation),
    };
    // Which call it was, the coordinator says itself.
    let words = error.to_string();
    let words = words.strip_prefix(operation).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&words);
    BackendFailure { kind, words: words.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_of_a_redis_cluster_are_asked_with_the_password_of_the_first_endpoint() {
        let spec =
            BackendSpec::RedisCluster { endpoints: vec!["redis://u:p@ss@a:1".to_owned()], primaries_min: 3 };
        let seeds = seeds(&spec, &["b:2".to_owned()]);
        assert_eq!(seeds.into_iter().collect::<Vec<_>>(), ["redis://u:p@ss@a:1", "redis://u:p@ss@b:2"]);
    }
}
