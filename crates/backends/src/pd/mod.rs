//! PD, which places the data of TiKV and TiFlash, as a backend.
//!
//! A store's identity is its number in PD. PD moves leaders and data by itself: the calls here tell it what is wanted,
//! and `state` says how far it is.
//!
//! *Keeping leaders away* is a store's entry in `evict-leader-scheduler`, which PD keeps until somebody removes it.

#[cfg(test)]
mod hostile_tests;
mod http;
mod leadership;
mod preflight;
mod shapes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::contract::{
    Backend, Count, Eviction, Evictor, Member, Memo, Moving, Pace, Preflight, Refusal, Role, StoreId,
    StoreState,
};
use crate::error::BackendError;
use crate::pd::http::{Api, Call};
use crate::pd::leadership::{Tenure, Watch};
use crate::pd::preflight::Facts;
use crate::pd::shapes::{
    EvictLeader, Life, Limit, MIB, Progress, RegionCount, Replicate, Schedule, Store, Stores,
};
use crate::secret::Endpoint;

/// What keeps leaders away from stores.
const EVICTOR: &str = "evict-leader-scheduler";
/// How its kind begins in what PD has on disk.
const EVICTOR_KIND: &str = "evict-leader";

#[derive(Clone, Debug)]
pub struct PdConfig {
    /// `http://[user:password@]host:port` of some members of PD.
    pub endpoints: Vec<Endpoint>,
    /// For calls that only read.
    pub timeout: Duration,
    /// How long a PD must have led for its counts to be believed. Stores report each region once a minute.
    pub settle: Duration,
}

impl PdConfig {
    /// For stores that report as TiKV does by itself.
    pub const SETTLE: Duration = Duration::from_secs(120);

    pub fn new(endpoints: impl IntoIterator<Item = Endpoint>) -> PdConfig {
        PdConfig {
            endpoints: endpoints.into_iter().collect(),
            timeout: Duration::from_secs(5),
            settle: PdConfig::SETTLE,
        }
    }
}

#[derive(Debug)]
pub struct Pd {
    config: PdConfig,
    api: Api,
    watch: Watch,
}

/// What a store was before its removal, and where: another cluster's PD may answer at the same address one day, and what it
/// has never heard of must not count as removed.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    cluster: u64,
    data: u64,
    /// PD lifts the limit of a store that goes, and remembers it only as long as the same PD leads.
    limit: Option<Limit>,
}

/// Where leaders were kept away.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    cluster: u64,
}

/// PD's number of a store.
fn number(store: &StoreId, operation: &'static str) -> Result<u64, BackendError> {
    store.0.parse().map_err(|_| BackendError::NotPossible {
        operation,
        why: format!("{store} is no number, as stores of PD have"),
    })
}

fn read<T: serde::de::DeserializeOwned>(memo: &Memo, operation: &'static str) -> Result<T, BackendError> {
    serde_json::from_str(&memo.0).map_err(|why| BackendError::NotPossible {
        operation,
        why: format!("not a memo of this backend: {why}"),
    })
}

/// Of a removal that somebody else began there is nothing to remember.
fn read_before(memo: &Memo, operation: &'static str) -> Result<Option<Before>, BackendError> {
    if memo.0.is_empty() { Ok(None) } else { read(memo, operation).map(Some) }
}

fn write<T: Serialize>(value: &T) -> Memo {
    Memo(serde_json::to_string(value).unwrap_or_default())
}

/// One store; `None` if PD itself says that it does not know it.
async fn find(call: &Call<'_>, number: u64) -> Result<Option<Store>, BackendError> {
    let answer = call.get(&format!("/store/{number}")).await?;
    match answer.status {
        404 if answer.words().contains("ErrStoreNotFound") => Ok(None),
        _ => answer.read().map(Some),
    }
}

fn life(call: &Call<'_>, store: &Store) -> Result<Life, BackendError> {
    store.life().ok_or_else(|| BackendError::Refused {
        operation: call.operation,
        whom: "PD".to_owned(),
        words: format!(
            "store {} is in a state that is not known: {} ({}, {})",
            store.store.id, store.store.state_name, store.store.state, store.store.node_state
        ),
    })
}

/// All that are not tombstones.
async fn stores(call: &Call<'_>) -> Result<Vec<Store>, BackendError> {
    Ok(call.get("/stores").await?.read::<Stores>()?.stores)
}

/// Stores that leaders are kept from, by whomever.
async fn evicted(call: &Call<'_>) -> Result<BTreeSet<u64>, BackendError> {
    let answer = call.get(&format!("/scheduler-config/{EVICTOR}/list")).await?;
    if answer.status != 404 {
        let found: EvictLeader = answer.read()?;
        return Ok(found.store_id_ranges.keys().filter_map(|id| id.parse().ok()).collect());
    }
    // After a failover of PD the list was seen to be missing while the scheduler ran: that is not "none".
    let running: Vec<String> = call.get("/schedulers").await?.read()?;
    if running.iter().any(|name| name == EVICTOR) {
        return Err(answer.refused());
    }
    // A PD that has just begun to lead starts its schedulers once the stores have reported, and shows none before then.
    let schedule: Schedule = call.get("/config/schedule").await?.read()?;
    if schedule.schedulers.iter().any(|kept| kept.kind.starts_with(EVICTOR_KIND) && !kept.disable) {
        return Err(BackendError::Unreachable {
            operation: call.operation,
            whom: "PD".to_owned(),
            why: format!("it is to run {EVICTOR}, and has not started it yet"),
        });
    }
    Ok(BTreeSet::new())
}

/// `None` where PD has no such limits: those of its second version are not set by hand.
async fn limit(call: &Call<'_>, number: u64) -> Result<Option<Limit>, BackendError> {
    let answer = call.get("/stores/limit").await?;
    if answer.status == 400 {
        return Ok(None);
    }
    let limits: BTreeMap<String, Limit> = answer.read()?;
    Ok(limits.get(&number.to_string()).copied())
}

async fn right_cluster(call: &Call<'_>, expected: u64) -> Result<(), BackendError> {
    same_cluster(call, expected, leadership::cluster(call).await?)
}

fn same_cluster(call: &Call<'_>, expected: u64, found: u64) -> Result<(), BackendError> {
    if found == expected {
        return Ok(());
    }
    let why = format!("PD answers for cluster {found}, and this began in cluster {expected}");
    Err(BackendError::NotPossible { operation: call.operation, why })
}

async fn progress(call: &Call<'_>, number: u64) -> Result<Option<Progress>, BackendError> {
    let answer = call.get(&format!("/stores/progress?id={number}")).await?;
    match answer.status {
        404 => Ok(None),
        _ => answer.read().map(Some),
    }
}

impl Pd {
    pub fn new(config: PdConfig) -> Pd {
        let api = Api::new(config.endpoints.clone());
        Pd { config, api, watch: Watch::default() }
    }

    fn reading(&self, operation: &'static str) -> Call<'_> {
        self.api.call(operation, self.config.timeout)
    }

    /// Whether PD, led as it was before the counts were read, knows all there is to count.
    async fn is_complete(
        &self,
        call: &Call<'_>,
        before: Tenure,
        settled: bool,
    ) -> Result<bool, BackendError> {
        let regions: RegionCount = call.get("/regions/count").await?.read()?;
        let led: u64 = stores(call).await?.iter().map(|store| store.status.leader_count).sum();
        Ok(settled && led >= regions.count && leadership::tenure(call).await? == before)
    }

    async fn read_state(&self, store: &StoreId, removal: Option<&Memo>) -> Result<StoreState, BackendError> {
        let call = self.reading("state");
        let number = number(store, call.operation)?;
        let removal = removal.map(|memo| read_before(memo, call.operation)).transpose()?.flatten();
        let tenure = leadership::tenure(&call).await?;
        let settled = self.watch.seen_for(tenure) >= self.config.settle;
        if let Some(before) = &removal {
            same_cluster(&call, before.cluster, tenure.cluster)?;
        }
        let Some(found) = find(&call, number).await? else {
            return Ok(if removal.is_some() { StoreState::Removed } else { StoreState::Unknown });
        };
        let complete = found.is_tiflash() || self.is_complete(&call, tenure, settled).await?;
        let leaders = Count { value: found.status.leader_count, complete };
        let data = found.status.region_size.saturating_mul(MIB);
        match life(&call, &found)? {
            Life::Up => Ok(StoreState::Serving { leaders, data }),
            Life::Tombstone => Ok(StoreState::Removed),
            Life::Offline => {
                let told = progress(&call, number).await?.map_or(0.0, |found| found.progress);
                // PD begins again at zero when its leader changes; what was there before the removal is in the memo
                let ours = removal.filter(|before| complete && before.data > 0);
                let ours = ours.map_or(0.0, |before| 1.0 - data as f64 / before.data as f64);
                let progress = told.max(ours).clamp(0.0, 1.0);
                Ok(StoreState::Removing { leaders, data_left: data, progress })
            }
        }
    }

    async fn check(&self, store: &StoreId) -> Result<Preflight, BackendError> {
        let call = self.reading("preflight");
        let number = number(store, call.operation)?;
        let Some(found) = find(&call, number).await? else {
            return Err(BackendError::NotFound { operation: call.operation, store: store.clone() });
        };
        let refusal = match life(&call, &found)? {
            Life::Tombstone => {
                Some(Refusal::Backend { words: format!("store {number} was removed already") })
            }
            // PD has agreed to it
            Life::Offline => None,
            Life::Up => {
                let facts = Facts::read(&call, stores(&call).await?, evicted(&call).await?).await?;
                facts.refusal(&found)
            }
        };
        if let Some(refusal) = refusal {
            return Ok(Preflight::Refused { refusal });
        }
        let before = Before {
            cluster: leadership::cluster(&call).await?,
            data: found.status.region_size.saturating_mul(MIB),
            limit: limit(&call, number).await?,
        };
        Ok(Preflight::Possible { memo: write(&before) })
    }

    async fn keep_leaders_away(&self, call: Call<'_>, number: u64) -> Result<(), BackendError> {
        let Some(found) = find(&call, number).await? else {
            let store = StoreId(number.to_string());
            return Err(BackendError::NotFound { operation: call.operation, store });
        };
        // Some PDs stop evicting when they are told twice.
        if found.is_tiflash() || evicted(&call).await?.contains(&number) {
            return Ok(());
        }
        let body = json!({ "name": EVICTOR, "store_id": number });
        call.post("/schedulers", Some(body)).await?.read::<serde::de::IgnoredAny>().map(|_| ())
    }

    async fn let_leaders_return(&self, call: Call<'_>, number: u64) -> Result<(), BackendError> {
        if !evicted(&call).await?.contains(&number) {
            return Ok(());
        }
        let answer = call.delete(&format!("/schedulers/{EVICTOR}-{number}")).await?;
        match answer.status {
            // somebody was faster; or it is there, and cannot be found
            404 if !evicted(&call).await?.contains(&number) => Ok(()),
            _ => answer.read::<serde::de::IgnoredAny>().map(|_| ()),
        }
    }

    async fn restore_limit(
        &self,
        call: &Call<'_>,
        number: u64,
        before: Option<Limit>,
    ) -> Result<(), BackendError> {
        let (Some(before), Some(found)) = (before, limit(call, number).await?) else { return Ok(()) };
        let both = [
            ("add-peer", before.add_peer, found.add_peer),
            ("remove-peer", before.remove_peer, found.remove_peer),
        ];
        for (kind, before, _) in both.into_iter().filter(|(_, before, found)| before != found) {
            let body = json!({ "rate": before, "type": kind });
            call.post(&format!("/store/{number}/limit"), Some(body))
                .await?
                .read::<serde::de::IgnoredAny>()?;
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for Pd {
    async fn members(&self) -> Result<Vec<Member>, BackendError> {
        let call = self.reading("members");
        let member = |store: Store| Member {
            id: StoreId(store.store.id.to_string()),
            address: store.store.address.clone(),
            role: if store.is_tiflash() { Role::Replica } else { Role::Primary },
            // of one that goes PD does not say whether it is silent
            healthy: store.is_well() || store.life() == Some(Life::Offline),
        };
        Ok(stores(&call).await?.into_iter().map(member).collect())
    }

    async fn identify(&self, address: &str) -> Result<StoreId, BackendError> {
        let call = self.reading("identify");
        let is_there = |store: &Store| {
            let told = store.store.address.as_str();
            told.split_once("://").map_or(told, |(_, told)| told) == address
        };
        let found = stores(&call).await?.into_iter().find(is_there);
        found.map(|store| StoreId(store.store.id.to_string())).ok_or_else(|| BackendError::NotFound {
            operation: call.operation,
            store: StoreId(address.to_owned()),
        })
    }

    async fn replicas(&self) -> Result<u64, BackendError> {
        let call = self.reading("replicas");
        Ok(call.get("/config/replicate").await?.read::<Replicate>()?.max_replicas)
    }

    async fn state(&self, store: &StoreId, removal: Option<&Memo>) -> Result<StoreState, BackendError> {
        self.read_state(store, removal).await
    }

    async fn pace(&self, store: &StoreId) -> Result<Option<Pace>, BackendError> {
        let call = self.reading("pace");
        let found = progress(&call, number(store, call.operation)?).await?;
        Ok(found.map(|found| Pace {
            bytes_per_second: (found.current_speed.max(0.0) * MIB as f64) as u64,
            // when nothing moves PD gives the greatest number there is, which is no duration
            left: Duration::try_from_secs_f64(found.left_seconds).ok(),
        }))
    }

    async fn evictors(&self, store: &StoreId) -> Result<Eviction, BackendError> {
        let call = self.reading("evictors");
        let number = number(store, call.operation)?;
        let there = evicted(&call).await?.contains(&number);
        let evictors = there.then(|| Evictor { name: format!("{EVICTOR}-{number}") }).into_iter().collect();
        let memo = write(&Kept { cluster: leadership::cluster(&call).await? });
        Ok(Eviction { evictors, memo })
    }

    async fn evict_leaders(
        &self,
        store: &StoreId,
        on: bool,
        memo: &Memo,
        within: Duration,
    ) -> Result<(), BackendError> {
        let operation = if on { "evict leaders" } else { "stop evicting leaders" };
        let call = self.api.call(operation, within);
        let number = number(store, operation)?;
        right_cluster(&call, read::<Kept>(memo, operation)?.cluster).await?;
        match on {
            true => self.keep_leaders_away(call, number).await,
            false => self.let_leaders_return(call, number).await,
        }
    }

    async fn preflight(&self, store: &StoreId) -> Result<Preflight, BackendError> {
        self.check(store).await
    }

    async fn begin_offline(
        &self,
        store: &StoreId,
        memo: &Memo,
        within: Duration,
    ) -> Result<Moving, BackendError> {
        let call = self.api.call("begin offline", within);
        let number = number(store, call.operation)?;
        if let Some(before) = read_before(memo, call.operation)? {
            right_cluster(&call, before.cluster).await?;
        }
        let Some(found) = find(&call, number).await? else { return Ok(Moving::Complete) };
        match life(&call, &found)? {
            Life::Tombstone => Ok(Moving::Complete),
            Life::Offline => Ok(Moving::Underway),
            Life::Up => {
                let answer = call.delete(&format!("/store/{number}")).await?;
                match answer.status {
                    410 => Ok(Moving::Complete),
                    _ => answer.read::<serde::de::IgnoredAny>().map(|_| Moving::Underway),
                }
            }
        }
    }

    async fn cancel_offline(
        &self,
        store: &StoreId,
        memo: &Memo,
        within: Duration,
    ) -> Result<Moving, BackendError> {
        let call = self.api.call("cancel offline", within);
        let number = number(store, call.operation)?;
        let before = read_before(memo, call.operation)?;
        if let Some(before) = &before {
            right_cluster(&call, before.cluster).await?;
        }
        let too_late = || BackendError::NotPossible {
            operation: call.operation,
            why: format!("store {number} was removed already"),
        };
        let found = find(&call, number).await?.ok_or_else(too_late)?;
        match life(&call, &found)? {
            Life::Tombstone => return Err(too_late()),
            Life::Up => {}
            Life::Offline => {
                let answer = call.post(&format!("/store/{number}/state?state=Up"), None).await?;
                if answer.status == 410 {
                    return Err(too_late());
                }
                answer.read::<serde::de::IgnoredAny>()?;
            }
        }
        self.restore_limit(&call, number, before.and_then(|before| before.limit)).await?;
        Ok(Moving::Complete)
    }

    /// PD drops the records of all tombstones at once; it has no call for one.
    async fn forget(&self, store: &StoreId, within: Duration) -> Result<(), BackendError> {
        let call = self.api.call("forget", within);
        let number = number(store, call.operation)?;
        let Some(found) = find(&call, number).await? else { return Ok(()) };
        if life(&call, &found)? != Life::Tombstone {
            let why = format!("store {number} is {}, and no tombstone", found.store.state_name);
            return Err(BackendError::NotPossible { operation: call.operation, why });
        }
        let answer = call.delete("/stores/remove-tombstone").await?;
        // it also fails for the sake of another's record
        match answer.status {
            200 => Ok(()),
            _ if find(&call, number).await?.is_none() => Ok(()),
            _ => Err(answer.refused()),
        }
    }
}
