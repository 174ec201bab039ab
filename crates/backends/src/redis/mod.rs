//! A Redis Cluster (Redis 7) as a backend.
//!
//! A store is a node; its identity is the node id, its leaders are the hash slots that it serves as a primary. Redis
//! has nobody who moves data by himself, so the calls here do it, as long as they are given time.
//!
//! *Keeping leaders away* is `cluster-replica-no-failover` on the node: it cannot become a primary, and nothing here
//! gives slots to a node that has it set. It lasts as long as the process.

#[cfg(test)]
mod hostile_tests;
mod join;
mod link;
mod moves;
mod offline;
pub(crate) mod slots;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::contract::{
    Backend, Count, Eviction, Evictor, Member, Memo, Moving, Preflight, Refusal, Role, StoreId, StoreState,
};
use crate::error::BackendError;
use crate::redis::link::{Link, Session};
use crate::redis::view::Node;
use crate::secret::Endpoint;

/// What keeps leaders away from a node.
const KEEP_AWAY: &str = "cluster-replica-no-failover";
/// Without it an emptied primary stays one, and can be given its slots back.
const FOLLOW_SLOTS: &str = "cluster-allow-replica-migration";
/// How often a node is asked whether a failover has happened.
const FAILOVER_POLL: Duration = Duration::from_millis(50);
/// A little more than the time after which Redis gives up a failover it was asked for.
const FAILOVER_AGAIN: Duration = Duration::from_millis(5_500);

#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// `redis://[user:password@]host:port` of some nodes. All nodes take the same user and password.
    pub seeds: Vec<Endpoint>,
    /// Primaries that must stay. A majority of primaries elects the successor of a failed one, so with fewer than
    /// three there is none.
    pub primaries_min: u64,
    /// For one answer of one node, and for calls that only read.
    pub timeout: Duration,
}

impl RedisConfig {
    pub fn new(seeds: impl IntoIterator<Item = Endpoint>) -> RedisConfig {
        RedisConfig { seeds: seeds.into_iter().collect(), primaries_min: 3, timeout: Duration::from_secs(5) }
    }
}

/// One for each cluster: two would cut off each other's calls.
#[derive(Debug)]
pub struct RedisCluster {
    config: RedisConfig,
    /// Held by calls that change who leads what.
    mover: Mutex<()>,
}

/// What a node was before its removal.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    /// As `0-5,9`.
    slots: String,
    replicas: BTreeSet<StoreId>,
    /// The replicas of others, and whom each follows: Redis may give one to a primary whose own have left it.
    #[serde(default)]
    others: BTreeMap<StoreId, StoreId>,
    /// Its [`FOLLOW_SLOTS`].
    follow_slots: String,
}

/// What a node was before leaders were kept away.
#[derive(Debug, Serialize, Deserialize)]
struct Led {
    primary: bool,
}

impl RedisCluster {
    pub fn new(config: RedisConfig) -> RedisCluster {
        RedisCluster { config, mover: Mutex::new(()) }
    }

    async fn session(&self, operation: &'static str, within: Duration) -> Result<Session, BackendError> {
        Session::open(&self.config, operation, within).await
    }

    /// As [`Self::bounded`], one at a time.
    async fn alone<T>(
        &self,
        operation: &'static str,
        within: Duration,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let call = async {
            let _mover = self.mover.lock().await;
            call.await
        };
        self.bounded(operation, within, call).await
    }

    /// A call that takes no longer than it may, whatever the nodes do.
    async fn bounded<T>(
        &self,
        operation: &'static str,
        within: Duration,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        timeout(within, call).await.unwrap_or_else(|_| {
            Err(BackendError::Unreachable {
                operation,
                whom: "the cluster".to_owned(),
                why: format!("not finished within {within:?}"),
            })
        })
    }

    async fn read_state(&self, store: &StoreId, removal: Option<&Memo>) -> Result<StoreState, BackendError> {
        let session = self.session("state", self.config.timeout).await?;
        let survey = &session.survey;
        if !survey.is_known(store) {
            return Ok(if removal.is_some() { StoreState::Removed } else { StoreState::Unknown });
        }
        let slots = survey.slots_of(store);
        let open = survey.open_slots(store);
        // Complete when the node itself and every other that is not known to have failed give the same slots.
        // Slots that are half moved are led on both sides.
        let leaders = Count {
            value: slots.union(&open).count() as u64,
            complete: survey.agrees_on(store) && (survey.answered(store) || slots.is_empty()),
        };
        let data = match session.link(store) {
            Ok(link) if survey.node(store).is_some_and(|node| node.replica_of.is_none()) => {
                dataset(link).await?
            }
            Ok(_) => 0,
            // a dead node that leads nothing has nothing that others have not
            Err(_) if leaders.is_surely_zero() => 0,
            Err(error) => return Err(error),
        };
        match removal {
            Some(memo) => {
                let before = Before::read(memo, "state")?.slots("state")?.len().max(1) as f64;
                let progress = (1.0 - leaders.value as f64 / before).clamp(0.0, 1.0);
                let data_left = if leaders.is_surely_zero() { 0 } else { data };
                Ok(StoreState::Removing { leaders, data_left, progress })
            }
            None => Ok(StoreState::Serving { leaders, data }),
        }
    }

    async fn check(&self, store: &StoreId) -> Result<Preflight, BackendError> {
        let session = self.session("preflight", self.config.timeout).await?;
        let survey = &session.survey;
        let link = session.link(store)?;
        let state = link.text(redis::cmd("CLUSTER").arg("INFO")).await?;
        if !state.contains("cluster_state:ok") {
            let words = state.lines().next().unwrap_or("no cluster state").trim().to_owned();
            return Ok(Preflight::Refused { refusal: Refusal::Backend { words } });
        }
        let slots = survey.slots_of(store);
        // A replica that takes over has the data already, and there are as many primaries as before.
        let succeeds = !slots.is_empty() && successor(&session, store).await.is_ok();
        if !slots.is_empty() && !succeeds {
            let others = offline::takers(&session, store).await?;
            let left = others.len() as u64;
            let refusal = match left {
                0 => Some(Refusal::NoStoreForLeaders { leaders: slots.len() as u64 }),
                left if left < self.config.primaries_min => {
                    Some(Refusal::TooFewReplicas { left, needed: self.config.primaries_min })
                }
                _enough => no_room(&session, link, others.keys()).await?,
            };
            if let Some(refusal) = refusal {
                return Ok(Preflight::Refused { refusal });
            }
        }
        let replicas = survey.nodes().filter(|node| node.replica_of.as_ref() == Some(store));
        let follows = |node: &Node| Some((node.id.clone(), node.replica_of.clone()?));
        let others = survey.nodes().filter(|node| node.id != *store).filter_map(follows);
        let before = Before {
            slots: slots::to_text(&slots),
            replicas: replicas.map(|node| node.id.clone()).collect(),
            others: others.filter(|(_, primary)| primary != store).collect(),
            follow_slots: link.config(FOLLOW_SLOTS).await?,
        };
        Ok(Preflight::Possible { memo: write(&before) })
    }

    async fn keep_leaders_away(&self, store: &StoreId, within: Duration) -> Result<(), BackendError> {
        let operation = "evict leaders";
        let mut session = self.session(operation, within).await?;
        let link = session.link(store)?.clone();
        session.fence().await?;
        if session.survey.slots_of(store).is_empty() {
            return link.configure(KEEP_AWAY, "yes").await;
        }
        let successor = successor(&session, store).await?;
        link.configure(KEEP_AWAY, "yes").await?;
        let successor = session.link(&successor)?.clone();
        let followed =
            |session: &Session| session.survey.node(store).is_some_and(|node| node.replica_of.is_some());
        failover(&mut session, &successor, followed).await
    }

    async fn let_leaders_return(
        &self,
        store: &StoreId,
        memo: &Memo,
        within: Duration,
    ) -> Result<(), BackendError> {
        let operation = "stop evicting leaders";
        let led: Led = read(memo, operation)?;
        let mut session = self.session(operation, within).await?;
        let link = session.link(store)?.clone();
        session.fence().await?;
        link.configure(KEEP_AWAY, "no").await?;
        if !led.primary {
            return Ok(());
        }
        let leads =
            |session: &Session| session.survey.node(store).is_some_and(|node| node.replica_of.is_none());
        failover(&mut session, &link, leads).await
    }
}

/// Makes a replica the primary, without a write lost: the primary waits for it. Redis gives up after five seconds,
/// and others do not vote for the same shard twice within two node timeouts: so it is asked again.
async fn failover(
    session: &mut Session,
    replica: &Link,
    done: impl Fn(&Session) -> bool,
) -> Result<(), BackendError> {
    let mut asked: Option<Instant> = None;
    while !done(session) {
        let may_ask = asked.is_none_or(|asked| asked.elapsed() > FAILOVER_AGAIN);
        if may_ask && replica.info("replication", &["master_link_status"]).await? == ["up"] {
            replica.one(redis::cmd("CLUSTER").arg("FAILOVER")).await?;
            asked = Some(Instant::now());
        }
        sleep(FAILOVER_POLL).await;
        session.look_again().await?;
    }
    Ok(())
}

impl Before {
    fn read(memo: &Memo, operation: &'static str) -> Result<Before, BackendError> {
        read(memo, operation)
    }

    fn slots(&self, operation: &'static str) -> Result<BTreeSet<u16>, BackendError> {
        slots::from_text(&self.slots)
            .ok_or_else(|| BackendError::NotPossible { operation, why: "the memo lists no slots".to_owned() })
    }
}

fn read<T: serde::de::DeserializeOwned>(memo: &Memo, operation: &'static str) -> Result<T, BackendError> {
    serde_json::from_str(&memo.0).map_err(|why| BackendError::NotPossible {
        operation,
        why: format!("not a memo of this backend: {why}"),
    })
}

fn write<T: Serialize>(value: &T) -> Memo {
    Memo(serde_json::to_string(value).unwrap_or_default())
}

/// Bytes of a node's data, without what Redis itself needs.
async fn dataset(link: &Link) -> Result<u64, BackendError> {
    let found = link.info("memory", &["used_memory_dataset"]).await?;
    Ok(found.first().and_then(|bytes| bytes.parse().ok()).unwrap_or_default())
}

/// Everybody gets an equal share, so the fullest says how much fits. A node without `maxmemory` has no limit of its
/// own, and is not looked at.
async fn no_room(
    session: &Session,
    store: &Link,
    others: impl ExactSizeIterator<Item = &StoreId>,
) -> Result<Option<Refusal>, BackendError> {
    let data = dataset(store).await?;
    let count = others.len() as u64;
    let mut least: Option<u64> = None;
    for other in others {
        let found = session.link(other)?.info("memory", &["maxmemory", "used_memory"]).await?;
        let mut numbers = found.iter().map(|number| number.parse::<u64>().unwrap_or_default());
        let (limit, used) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        if limit > 0 {
            let free = limit.saturating_sub(used);
            least = Some(least.map_or(free, |least| least.min(free)));
        }
    }
    let room = least.map(|least| least.saturating_mul(count));
    Ok(room.filter(|room| *room < data).map(|room| Refusal::NoRoom { data, room }))
}

/// The replica that has read the most.
async fn successor(session: &Session, store: &StoreId) -> Result<StoreId, BackendError> {
    let replicas: Vec<&Node> =
        session.survey.nodes().filter(|node| node.replica_of.as_ref() == Some(store)).collect();
    let mut best: Option<(u64, StoreId)> = None;
    for replica in &replicas {
        let Ok(link) = session.link(&replica.id) else { continue };
        let found = link.info("replication", &["master_link_status", "slave_repl_offset"]).await?;
        let offset = found.get(1).and_then(|offset| offset.parse().ok()).unwrap_or_default();
        let keeps_away = link.config(KEEP_AWAY).await? == "yes";
        if found.first().is_some_and(|link| link == "up")
            && !keeps_away
            && best.as_ref().is_none_or(|(most, _)| *most < offset)
        {
            best = Some((offset, replica.id.clone()));
        }
    }
    best.map(|(_, id)| id).ok_or_else(|| BackendError::NotPossible {
        operation: session.operation,
        why: format!("of the {} replicas of {store} none is in step and may lead", replicas.len()),
    })
}

#[async_trait]
impl Backend for RedisCluster {
    async fn members(&self) -> Result<Vec<Member>, BackendError> {
        let session =
            self.bounded("members", self.config.timeout, self.session("members", self.config.timeout));
        let session = session.await?;
        let member = |node: &Node| Member {
            id: node.id.clone(),
            address: node.address.clone(),
            role: if node.replica_of.is_some() { Role::Replica } else { Role::Primary },
            healthy: node.healthy && session.survey.answered(&node.id),
        };
        Ok(session.survey.nodes().map(member).collect())
    }

    async fn identify(&self, address: &str) -> Result<StoreId, BackendError> {
        let call = async {
            let (link, id) = link::identify(&self.config, address).await?;
            let session = self.session("identify", self.config.timeout).await?;
            join::join(&session, &link, &id).await?;
            Ok(id)
        };
        // it may change who is a member: not while slots are on their way
        self.alone("identify", self.config.timeout * 2, call).await
    }

    async fn replicas(&self) -> Result<u64, BackendError> {
        Ok(self.config.primaries_min)
    }

    async fn state(&self, store: &StoreId, removal: Option<&Memo>) -> Result<StoreState, BackendError> {
        // one answer to connect, one to ask: a silent node must not use up the time of the others
        self.bounded("state", self.config.timeout * 3, self.read_state(store, removal)).await
    }

    async fn evictors(&self, store: &StoreId) -> Result<Eviction, BackendError> {
        let read = async {
            let session = self.session("evictors", self.config.timeout).await?;
            let set = session.link(store)?.config(KEEP_AWAY).await? == "yes";
            let evictors = if set { vec![Evictor { name: KEEP_AWAY.to_owned() }] } else { Vec::new() };
            let primary = session.survey.node(store).is_some_and(|node| node.replica_of.is_none());
            Ok(Eviction { evictors, memo: write(&Led { primary }) })
        };
        self.bounded("evictors", self.config.timeout * 3, read).await
    }

    async fn evict_leaders(
        &self,
        store: &StoreId,
        on: bool,
        memo: &Memo,
        within: Duration,
    ) -> Result<(), BackendError> {
        match on {
            true => self.alone("evict leaders", within, self.keep_leaders_away(store, within)).await,
            false => {
                let call = self.let_leaders_return(store, memo, within);
                self.alone("stop evicting leaders", within, call).await
            }
        }
    }

    async fn preflight(&self, store: &StoreId) -> Result<Preflight, BackendError> {
        self.bounded("preflight", self.config.timeout * 3, self.check(store)).await
    }

    async fn begin_offline(
        &self,
        store: &StoreId,
        memo: &Memo,
        within: Duration,
    ) -> Result<Moving, BackendError> {
        let call = async {
            let deadline = Instant::now() + within;
            Before::read(memo, "begin offline")?;
            let session = self.session("begin offline", within).await?;
            offline::begin(session, store, self.config.primaries_min, deadline).await
        };
        self.alone("begin offline", within, call).await
    }

    async fn cancel_offline(
        &self,
        store: &StoreId,
        memo: &Memo,
        within: Duration,
    ) -> Result<Moving, BackendError> {
        let call = async {
            let deadline = Instant::now() + within;
            let before = Before::read(memo, "cancel offline")?;
            let session = self.session("cancel offline", within).await?;
            offline::cancel(session, store, &before, deadline).await
        };
        self.alone("cancel offline", within, call).await
    }

    async fn forget(&self, store: &StoreId, within: Duration) -> Result<(), BackendError> {
        let call = async {
            let session = self.session("forget", within).await?;
            offline::forget(session, store).await
        };
        self.alone("forget", within, call).await
    }
}
