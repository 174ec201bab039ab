//! etcd: the suite against a real one, and what prefix, endpoints and members can go through.

// clippy takes only the test functions themselves for tests, not what they share
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use store::conformance::Fixture;
use store::etcd::{EtcdConfig, EtcdStore};
use store::testing::{EtcdCluster, PATIENCE, commit_surely, wait_for};
use store::{
    Candidate, CommitError, KeepAliveError, KeyRange, LoadError, Office, Op, Position, Refusal, Store,
    StoreError, WatchError,
};
use tokio::sync::{OnceCell, mpsc};
use tokio::time::timeout;

/// One member for all tests that do it no harm. It ends with this process, see `store::testing`.
static SHARED: OnceCell<EtcdCluster> = OnceCell::const_new();
static PREFIXES: AtomicUsize = AtomicUsize::new(0);

async fn shared() -> (&'static EtcdCluster, EtcdConfig) {
    let cluster = SHARED.get_or_init(|| EtcdCluster::start(1)).await;
    (cluster, cluster.config(&format!("/test/{}", PREFIXES.fetch_add(1, Ordering::Relaxed))))
}

struct Etcd {
    config: EtcdConfig,
    /// Compacting forgets for all prefixes, so it is for those who have an etcd to themselves.
    own: Option<EtcdCluster>,
}

#[async_trait]
impl Fixture for Etcd {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(EtcdStore::open(&self.config).await.unwrap())
    }

    fn is_contested(&self) -> bool {
        true
    }

    fn compacts(&self) -> bool {
        self.own.is_some()
    }
}

async fn fixture() -> Etcd {
    Etcd { config: shared().await.1, own: None }
}

store::conformance!(fixture);

#[tokio::test]
async fn a_follower_behind_what_etcd_compacted_is_told_to_load_again() {
    let cluster = EtcdCluster::start(1).await;
    let fixture = Etcd { config: cluster.config("/x"), own: Some(cluster) };
    store::conformance::a_follower_behind_what_was_compacted_is_told_to_load_again(&fixture).await;
}

async fn elect(store: &EtcdStore) -> Office {
    let candidate = Candidate::new("a", "");
    wait_for("office", || async { store.office(&candidate, Duration::from_secs(300)).await.ok()?.elected() })
        .await
}

async fn load(store: &EtcdStore, ranges: &[KeyRange]) -> (BTreeMap<Vec<u8>, Vec<u8>>, Position) {
    let (sink, mut batches) = mpsc::channel(1000);
    let position = store.load(ranges, sink).await.unwrap();
    let mut records = BTreeMap::new();
    while let Ok(batch) = batches.try_recv() {
        records.extend(batch.into_iter().map(|record| (record.key.to_vec(), record.value.to_vec())));
    }
    (records, position)
}

#[tokio::test]
async fn a_prefix_of_another_format_is_refused_with_a_clear_error() {
    let (cluster, config) = shared().await;
    drop(EtcdStore::open(&config).await.unwrap());
    cluster.meddle(&format!("{}/format", config.prefix), Some("7")).await;
    let error = EtcdStore::open(&config).await.err().unwrap();
    let wanted = format!("the etcd prefix {} holds state of format 7; this binary knows 1", config.prefix);
    assert_eq!(error.to_string(), wanted);
}

#[tokio::test]
async fn two_prefixes_in_one_etcd_do_not_see_each_other() {
    let (_, config) = shared().await;
    let inner = EtcdConfig { prefix: format!("{}/inner", config.prefix), ..config.clone() };
    let (one, two) = (EtcdStore::open(&config).await.unwrap(), EtcdStore::open(&inner).await.unwrap());
    let (first, second) = (elect(&one).await, elect(&two).await);
    one.commit(&first, 1, &[Op::put("n/one", "1")]).await.unwrap();
    two.commit(&second, 1, &[Op::put("n/two", "2")]).await.unwrap();
    let (records, _) = load(&one, &[KeyRange::prefix("n/")]).await;
    assert_eq!(records, BTreeMap::from([(b"n/one".to_vec(), b"1".to_vec())]));
}

#[tokio::test]
async fn unusable_configuration_is_named() {
    let (_, config) = shared().await;
    for prefix in ["", "/", "x", "/x/", "/x y"] {
        let error =
            EtcdStore::open(&EtcdConfig { prefix: prefix.to_owned(), ..config.clone() }).await.err().unwrap();
        assert!(matches!(error, StoreError::Configuration { .. }), "{error}");
    }
    for endpoints in
        [vec![], vec!["https://a:1".to_owned()], vec!["http://".to_owned()], vec!["nonsense".to_owned()]]
    {
        let error = EtcdStore::open(&EtcdConfig { endpoints, ..config.clone() }).await.err().unwrap();
        assert!(matches!(error, StoreError::Configuration { .. }), "{error}");
    }
}

/// A port where nobody listens, and one where connections are accepted and nothing is ever said.
fn dead_and_mute() -> (String, String, TcpListener) {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    (format!("http://{dead}"), format!("http://{}", mute.local_addr().unwrap()), mute)
}

#[tokio::test]
async fn an_etcd_that_is_down_is_named_within_bounded_time() {
    let (dead, mute, _listener) = dead_and_mute();
    let config = EtcdConfig { endpoints: vec![dead.clone(), mute.clone()], prefix: "/x".to_owned() };
    let error = timeout(PATIENCE, EtcdStore::open(&config)).await.expect("in bounded time").err().unwrap();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&dead) && text.contains(&mute) && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn endpoints_that_are_down_do_not_matter_as_long_as_one_answers() {
    let (_, mut config) = shared().await;
    let (dead, mute, _listener) = dead_and_mute();
    config.endpoints.splice(0..0, [dead, mute]);
    let store = EtcdStore::open(&config).await.unwrap();
    let office = elect(&store).await;
    store.commit(&office, 1, &[]).await.unwrap();
}

#[tokio::test]
async fn endpoints_of_two_clusters_are_refused() {
    let (_, mut config) = shared().await;
    let other = EtcdCluster::start(1).await;
    config.endpoints.extend(other.endpoints());
    let error = EtcdStore::open(&config).await.err().unwrap();
    assert!(matches!(error, StoreError::OtherCluster { .. }), "{error}");
    assert!(error.to_string().contains("belongs to another etcd cluster"), "{error}");
}

#[tokio::test]
async fn a_cluster_that_turns_into_another_one_is_refused() {
    let mut one = EtcdCluster::start(1).await;
    let mut other = EtcdCluster::start(1).await;
    other.kill(0);
    let endpoints = [one.endpoints(), other.endpoints()].concat();
    let config = EtcdConfig { endpoints, prefix: "/x".to_owned() };
    let store = EtcdStore::open(&config).await.unwrap();
    let office = elect(&store).await;
    store.commit(&office, 1, &[]).await.unwrap();
    one.kill(0);
    other.restart(0).await;
    let error = wait_for("the other cluster to be noticed", || async {
        store.head().await.err().filter(|error| !matches!(error, StoreError::Unavailable { .. }))
    })
    .await;
    assert!(matches!(error, StoreError::OtherCluster { .. }), "{error}");
    match store.commit(&office, 2, &[]).await {
        Err(CommitError::Broken { source: StoreError::OtherCluster { .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_office_key_deleted_by_hand_ends_the_office() {
    let (cluster, config) = shared().await;
    let store = EtcdStore::open(&config).await.unwrap();
    let office = elect(&store).await;
    cluster.meddle(&format!("{}/office", config.prefix), None).await;
    assert!(matches!(store.keep_alive(&office).await, Err(KeepAliveError::Lost { .. })));
    let refused = store.commit(&office, 1, &[]).await;
    let lost =
        matches!(&refused, Err(CommitError::Refused { why: Refusal::OfficeLost { holder: None, .. }, .. }));
    assert!(lost, "{refused:?}");
}

#[tokio::test]
async fn a_prefix_that_was_emptied_is_not_taken_for_a_beginning() {
    let (cluster, config) = shared().await;
    let store = EtcdStore::open(&config).await.unwrap();
    let office = elect(&store).await;
    store.commit(&office, 1, &[Op::put("n/one", "1")]).await.unwrap();
    cluster.meddle(&format!("{}/state/head", config.prefix), None).await;
    assert!(matches!(store.head().await, Err(StoreError::Malformed { .. })));
    let refused = store.commit(&office, 2, &[]).await;
    let other =
        matches!(&refused, Err(CommitError::Refused { why: Refusal::HeadIsOther { found: None, .. }, .. }));
    assert!(other, "{refused:?}");
    assert!(matches!(EtcdStore::open(&config).await, Err(StoreError::Malformed { .. })));
}

#[tokio::test]
async fn a_record_written_by_hand_makes_followers_load_again() {
    let (cluster, config) = shared().await;
    let store = EtcdStore::open(&config).await.unwrap();
    let (_, position) = load(&store, &[]).await;
    let mut follow = store.watch(position).await.unwrap();
    cluster.meddle(&format!("{}/state/r/n/one", config.prefix), Some("?")).await;
    let next = timeout(PATIENCE, follow.next()).await.unwrap();
    assert!(matches!(next, Err(WatchError::Gap { expected: 1, found: None })), "{next:?}");
}

#[tokio::test]
async fn a_load_whose_revision_is_compacted_meanwhile_says_so() {
    let cluster = EtcdCluster::start(1).await;
    let store = EtcdStore::open(&cluster.config("/x")).await.unwrap();
    let office = elect(&store).await;
    let keys = (0..32).map(|shard| Op::put(format!("i/{shard:02x}/one"), "1"));
    store.commit(&office, 1, &keys.collect::<Vec<_>>()).await.unwrap();
    let ranges: Vec<KeyRange> = (0..32).map(|shard| KeyRange::prefix(format!("i/{shard:02x}/"))).collect();
    let (sink, mut batches) = mpsc::channel(1);
    let loading = tokio::spawn({
        let store = store.clone();
        async move { store.load(&ranges, sink).await }
    });
    // the full channel holds most ranges back until the revision is gone
    assert!(batches.recv().await.is_some());
    store.commit(&office, 2, &[Op::put("i/00/one", "2")]).await.unwrap();
    store.compact(load(&store, &[]).await.1.revision).await.unwrap();
    while batches.recv().await.is_some() {}
    assert!(matches!(loading.await.unwrap(), Err(LoadError::Compacted { .. })));
}

#[tokio::test]
async fn running_out_of_space_is_told_and_its_outcome_can_be_read() {
    let cluster = EtcdCluster::start_with(1, &["--quota-backend-bytes", "8388608"]).await;
    let store = EtcdStore::open(&cluster.config("/x")).await.unwrap();
    let office = elect(&store).await;
    let mut head = 0;
    let error = loop {
        match store.commit(&office, head + 1, &[Op::put("n/one", vec![b'x'; 900_000])]).await {
            Ok(()) => head += 1,
            Err(error) => break error,
        }
        assert!(head < 100, "the quota does not hold");
    };
    assert!(matches!(error, CommitError::SpaceExhausted { .. }), "{error}");
    assert!(error.may_be_applied());
    let found = store.head().await.unwrap();
    assert!(found == head || found == head + 1, "{found} after {head}");
    wait_for("the alarm", || async { store.status().await.unwrap().space_alarm.then_some(()) }).await;
    store.keep_alive(&office).await.expect("office holds without space");
}

/// What one committing coordinator, one follower and one loader go through together.
struct Load {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

const SHARDS: u64 = 16;

impl Load {
    async fn begin(config: &EtcdConfig) -> Load {
        let (acknowledged, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let store = EtcdStore::open(config).await.unwrap();
        let office = elect(&store).await;
        let mut load = Load { acknowledged, stop, tasks: Vec::new() };
        let (done, stopped) = (Arc::clone(&load.acknowledged), Arc::clone(&load.stop));
        load.tasks.push(tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let head = done.load(Ordering::Relaxed) + 1;
                let mut ops: Vec<Op> =
                    (0..SHARDS).map(|n| Op::put(format!("i/{n:02x}/one"), head.to_string())).collect();
                ops.push(Op::put(format!("s/{head}"), "kept"));
                commit_surely(&store, &office, head, &ops).await.unwrap();
                done.store(head, Ordering::Relaxed);
            }
        }));
        let (done, stopped) = (Arc::clone(&load.acknowledged), Arc::clone(&load.stop));
        let follower = EtcdStore::open(config).await.unwrap();
        let (_, mut position) = self::load(&follower, &[]).await;
        load.tasks.push(tokio::spawn(async move {
            let mut follow = follower.watch(position).await.unwrap();
            let mut last = Instant::now();
            while !stopped.load(Ordering::Relaxed) || position.head < done.load(Ordering::Relaxed) {
                // looks up now and then: when commits have ended, no transaction comes to tell it
                let Ok(next) = timeout(Duration::from_millis(200), follow.next()).await else {
                    assert!(last.elapsed() < PATIENCE, "the watch does not go on after {position:?}");
                    continue;
                };
                let committed = next.unwrap();
                last = Instant::now();
                assert_eq!(committed.head, position.head + 1);
                assert_eq!(committed.ops.len() as u64, SHARDS + 1);
                position = Position { head: committed.head, revision: committed.revision };
            }
        }));
        let stopped = Arc::clone(&load.stop);
        let reader = EtcdStore::open(config).await.unwrap();
        load.tasks.push(tokio::spawn(async move {
            let ranges: Vec<KeyRange> =
                (0..SHARDS).map(|n| KeyRange::prefix(format!("i/{n:02x}/"))).collect();
            while !stopped.load(Ordering::Relaxed) {
                // nobody in office for a while is no reason to give up
                let (sink, mut batches) = mpsc::channel(100);
                let Ok(position) = reader.load(&ranges, sink).await else { continue };
                while let Ok(batch) = batches.try_recv() {
                    let wanted = position.head.to_string();
                    assert!(batch.iter().all(|record| record.value == wanted.as_bytes()), "torn at {wanted}");
                }
            }
        }));
        load
    }

    /// Waits until `more` further transactions are acknowledged.
    async fn goes_on(&self, more: u64) {
        let wanted = self.acknowledged.load(Ordering::Relaxed) + more;
        wait_for("further commits", || async {
            (self.acknowledged.load(Ordering::Relaxed) >= wanted).then_some(())
        })
        .await;
    }

    /// Ends it, and finds everything that was acknowledged.
    async fn end(self, config: &EtcdConfig) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            timeout(PATIENCE, task).await.expect("in time").unwrap();
        }
        let head = self.acknowledged.load(Ordering::Relaxed);
        let store = EtcdStore::open(config).await.unwrap();
        let (records, position) = self::load(&store, &[KeyRange::prefix("s/")]).await;
        assert_eq!((records.len() as u64, position.head), (head, head));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_leader_of_etcd_loses_nothing_acknowledged_and_commits_go_on() {
    let mut cluster = EtcdCluster::start(3).await;
    let config = cluster.config("/x");
    let load = Load::begin(&config).await;
    for _ in 0..3 {
        load.goes_on(30).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        load.goes_on(30).await;
        cluster.restart(leader).await;
    }
    load.end(&config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_member_dies_the_store_goes_on_with_another() {
    let mut cluster = EtcdCluster::start(3).await;
    let config = cluster.config("/x");
    let load = Load::begin(&config).await;
    for member in [0, 1, 2, 0] {
        load.goes_on(10).await;
        cluster.stop(member).await;
        load.goes_on(10).await;
        cluster.restart(member).await;
    }
    load.end(&config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_stands_still_is_left_for_another() {
    let mut cluster = EtcdCluster::start(3).await;
    // connected to member 0, because the other endpoint is down at first
    let config =
        EtcdConfig { endpoints: vec![cluster.endpoint(0), cluster.endpoint(1)], prefix: "/x".to_owned() };
    cluster.kill(1);
    // the member that was killed may have been the leader
    let store = wait_for("the store", || async { EtcdStore::open(&config).await.ok() }).await;
    let office = elect(&store).await;
    commit_surely(&store, &office, 1, &[]).await.unwrap();
    let mut holder = store.watch_holder().await.unwrap();
    cluster.restart(1).await;
    cluster.pause(0);
    commit_surely(&store, &office, 2, &[Op::put("n/one", "1")]).await.unwrap();
    wait_for("the lease to be extended", || async { store.keep_alive(&office).await.ok() }).await;
    wait_for("the office to be given back", || async { store.resign(&office).await.ok() }).await;
    timeout(PATIENCE, holder.wait_for(Option::is_none)).await.expect("the watch goes on elsewhere").unwrap();
    cluster.resume(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_cluster_that_goes_and_comes_back_is_found_again() {
    let mut cluster = EtcdCluster::start(1).await;
    let config = cluster.config("/x");
    let store = EtcdStore::open(&config).await.unwrap();
    let office = elect(&store).await;
    store.commit(&office, 1, &[]).await.unwrap();
    let (_, position) = load(&store, &[]).await;
    let mut follow = store.watch(position).await.unwrap();
    cluster.kill(0);
    let error = wait_for("a commit that surely did not leave", || async {
        store.commit(&office, 2, &[]).await.err().filter(|error| !error.may_be_applied())
    })
    .await;
    assert!(matches!(error, CommitError::Unavailable { .. }), "{error}");
    assert!(matches!(store.head().await, Err(StoreError::Unavailable { .. })));
    assert!(matches!(store.keep_alive(&office).await, Err(KeepAliveError::Unavailable { .. })));
    cluster.restart(0).await;
    commit_surely(&store, &office, 2, &[Op::put("n/one", "1")]).await.unwrap();
    let committed = timeout(PATIENCE, follow.next()).await.expect("the watch resumes").unwrap();
    assert_eq!((committed.head, committed.ops), (2, vec![Op::put("n/one", "1")]));
}
