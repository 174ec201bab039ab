//! A Redis Cluster whose nodes are stores: no acknowledged write is lost, whatever is taken out of service.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use redis::cluster_async::ClusterConnection;
use reqwest::Method;
use server::view::{InstanceView, List, StoreGroupView, StoreMemberView};
use tokio::task::JoinHandle;

use crate::harness::{Cluster, PATIENCE, Pace, until};

const SLOTS: u32 = 16_384;
const COUNTERS: usize = 300;

const GROUP: &str = r#"
[[store_group]]
name = "kv"
replicas = 6
memory = "64MiB"
cpu = 10
command = ["redis-server", "--port", "${PORT_KV}", "--cluster-port", "${PORT_BUS}", "--cluster-enabled", "yes",
    "--cluster-config-file", "${VOLUME}/nodes.conf", "--dir", "${VOLUME}", "--save", "", "--appendonly", "no",
    "--cluster-node-timeout", "15000", "--repl-diskless-sync-delay", "0", "--bind", "127.0.0.1"]
ports = ["kv", "bus"]
check = { tcp = "kv" }
volume = { name = "data" }
backend = { kind = "redis-cluster" }
"#;

struct Stage {
    cluster: Cluster,
}

impl Stage {
    /// Three primaries with a replica each, over four nodes.
    async fn start() -> Stage {
        let cluster = Cluster::start(4, Pace::Steady).await;
        assert_eq!(cluster.apply(GROUP).await, "kv created (store group)\n");
        let stage = Stage { cluster };
        let instances = until("six processes", async || {
            let instances = stage.processes().await?;
            let ready = instances.iter().filter(|instance| instance.actual == "ready").count();
            if ready == 6 { Ok(instances) } else { Err(format!("{instances:?}")) }
        })
        .await;
        form(&instances).await;
        stage.until_serving(6).await;
        stage
    }

    async fn processes(&self) -> Result<Vec<InstanceView>, String> {
        let (_, body) = self.cluster.api.ask(Method::GET, "/v1/instances", None).await?;
        let list: List<InstanceView> = serde_json::from_value(body).map_err(|error| error.to_string())?;
        let of_group = list.items.into_iter().filter(|instance| instance.service == "kv");
        Ok(of_group.filter(|instance| instance.desired == "running").collect())
    }

    async fn stores(&self) -> Result<Vec<StoreMemberView>, String> {
        let (_, body) = self.cluster.api.ask(Method::GET, "/v1/stores", None).await?;
        Ok(serde_json::from_value::<List<_>>(body).map_err(|error| error.to_string())?.items)
    }

    async fn until_stores(
        &self,
        what: &str,
        holds: impl Fn(&[StoreMemberView]) -> bool,
    ) -> Vec<StoreMemberView> {
        until(what, async || {
            let stores = self.stores().await?;
            if holds(&stores) { Ok(stores) } else { Err(format!("{stores:#?}")) }
        })
        .await
    }

    /// As many serve as should, and nothing is on its way.
    async fn until_serving(&self, count: u32) -> Vec<StoreMemberView> {
        until("the group to be well", async || {
            let (_, body) = self.cluster.api.ask(Method::GET, "/v1/store-groups/kv", None).await?;
            let group: StoreGroupView = serde_json::from_value(body).map_err(|error| error.to_string())?;
            let well = group.serving == count && group.leaving == 0 && group.stores.len() == count as usize;
            if well { Ok(()) } else { Err(format!("{:#?}", self.stores().await)) }
        })
        .await;
        self.until_stores("all slots to be led and no leader kept away", |stores| {
            let led: u64 = stores.iter().filter_map(|store| store.leaders).sum();
            let quiet = |store: &StoreMemberView| {
                store.evictor.is_none() && store.restart.is_none() && store.leaders_complete
            };
            led == u64::from(SLOTS) && stores.iter().all(quiet)
        })
        .await
    }

    async fn client(&self) -> ClusterConnection {
        let processes = self.processes().await.unwrap();
        let seeds: Vec<String> =
            processes.iter().map(|it| format!("redis://127.0.0.1:{}", it.ports["kv"])).collect();
        let client = redis::cluster::ClusterClientBuilder::new(seeds)
            .retries(50)
            .connection_timeout(PATIENCE)
            .response_timeout(PATIENCE)
            .build()
            .unwrap();
        client.get_async_connection().await.unwrap()
    }

    async fn ask(&self, method: Method, path: &str) -> u16 {
        self.cluster.api.ask(method, path, None).await.unwrap().0
    }
}

/// What `redis-cli --cluster create` does, for buses at ports of their own.
async fn form(instances: &[InstanceView]) {
    let address = |it: &InstanceView| format!("redis://127.0.0.1:{}", it.ports["kv"]);
    let mut nodes = Vec::new();
    for instance in instances {
        let client = redis::Client::open(address(instance)).unwrap();
        nodes.push(client.get_multiplexed_async_connection().await.unwrap());
    }
    let cluster = |words: &[&str]| {
        let mut command = redis::cmd("CLUSTER");
        command.arg(words);
        command
    };
    let mut ids = Vec::new();
    for (number, node) in nodes.iter_mut().enumerate() {
        ids.push(cluster(&["MYID"]).query_async::<String>(node).await.unwrap());
        // Without epochs of their own, primaries would have to argue first.
        let epoch = (number + 1).to_string();
        cluster(&["SET-CONFIG-EPOCH", &epoch]).query_async::<()>(node).await.unwrap();
    }
    for instance in &instances[1..] {
        let (port, bus) = (instance.ports["kv"].to_string(), instance.ports["bus"].to_string());
        cluster(&["MEET", "127.0.0.1", &port, &bus]).query_async::<()>(&mut nodes[0]).await.unwrap();
    }
    let bounds = ["0", "5460", "5461", "10922", "10923", "16383"];
    for (node, range) in nodes.iter_mut().zip(bounds.chunks(2)) {
        cluster(&["ADDSLOTSRANGE", range[0], range[1]]).query_async::<()>(node).await.unwrap();
    }
    for (number, node) in nodes.iter_mut().enumerate() {
        until("everybody to know everybody", async || {
            let text: String =
                cluster(&["NODES"]).query_async(&mut node.clone()).await.map_err(|e| e.to_string())?;
            let known = ids.iter().all(|id| text.contains(id.as_str())) && !text.contains("handshake");
            if known { Ok(()) } else { Err(text) }
        })
        .await;
        if number >= 3 {
            cluster(&["REPLICATE", &ids[number - 3]]).query_async::<()>(node).await.unwrap();
        }
    }
    for (number, node) in nodes.iter_mut().enumerate() {
        until("the cluster to be well", async || {
            let mut node = node.clone();
            let state: String = cluster(&["INFO"]).query_async(&mut node).await.map_err(|e| e.to_string())?;
            let link: String = redis::cmd("INFO")
                .arg("replication")
                .query_async(&mut node)
                .await
                .map_err(|e| e.to_string())?;
            let synced = number < 3 || link.contains("master_link_status:up");
            if state.contains("cluster_state:ok") && synced {
                Ok(())
            } else {
                Err(format!("{state}\n{link}"))
            }
        })
        .await;
    }
}

/// Counts up counters all over the keyspace, and remembers what was acknowledged.
struct Writer {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    task: JoinHandle<Vec<(u64, u64)>>,
    client: ClusterConnection,
}

impl Writer {
    async fn start(stage: &Stage) -> Writer {
        let client = stage.client().await;
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted, mut connection) = (stop.clone(), rounds.clone(), client.clone());
        let task = tokio::spawn(async move {
            // acknowledged, and doubtful: sent without an answer
            let mut counters = vec![(0, 0); COUNTERS];
            while !stopped.load(Ordering::Relaxed) {
                for (n, counter) in counters.iter_mut().enumerate() {
                    let key = format!("counter:{n}");
                    match redis::cmd("INCR").arg(key).query_async::<u64>(&mut connection).await {
                        Ok(_) => counter.0 += 1,
                        Err(_) => counter.1 += 1,
                    }
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
            counters
        });
        Writer { stop, rounds, task, client }
    }

    async fn until_it_wrote(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        until("more writes", async || {
            let rounds = self.rounds.load(Ordering::Relaxed);
            if rounds > before + 1 { Ok(()) } else { Err(format!("{rounds} rounds")) }
        })
        .await;
    }

    /// Every counter is what was acknowledged, and what was in doubt at the most.
    async fn check(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let counters = self.task.await.unwrap();
        for (n, (acknowledged, doubtful)) in counters.into_iter().enumerate() {
            let get = redis::cmd("GET").arg(format!("counter:{n}")).clone();
            let found = get.query_async::<Option<u64>>(&mut self.client).await.unwrap().unwrap_or_default();
            let right = acknowledged..=acknowledged + doubtful;
            assert!(right.contains(&found), "counter {n} is {found}, not within {right:?}");
        }
    }
}

fn ids(stores: &[StoreMemberView]) -> Vec<&str> {
    stores.iter().map(|store| store.id.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_loses_no_key_of_a_redis_cluster_though_the_coordinator_is_killed() {
    let mut stage = Stage::start().await;
    let writer = Writer::start(&stage).await;
    writer.until_it_wrote().await;
    // The node with a primary on it.
    let stores = stage.stores().await.unwrap();
    let primary = stores.iter().find(|store| store.leaders.is_some_and(|leaders| leaders > 0)).unwrap();
    let node = primary.node.clone().unwrap();
    let gone: Vec<String> = stores
        .iter()
        .filter(|store| store.node.as_ref() == Some(&node))
        .map(|store| store.id.clone())
        .collect();
    let done = stage.cluster.run(&["node", "drain", &node, "--detach"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    stage
        .until_stores("a store to be on its way out", |stores| stores.iter().any(|store| store.offline))
        .await;
    stage.cluster.daemon_mut("control").kill();
    stage.cluster.daemon_mut("control").start(&[]);
    until("the drain to end", async || {
        let done = stage.cluster.run(&["drain", "status", "1", "-o", "json"]).await;
        if done.stdout.contains("\"drained\"") { Ok(()) } else { Err(done.stdout) }
    })
    .await;
    let stores = stage.until_serving(6).await;
    assert!(gone.iter().all(|id| !ids(&stores).contains(&id.as_str())), "ordinals are never used again");
    assert!(stores.iter().all(|store| store.node.as_ref() != Some(&node)));
    writer.until_it_wrote().await;
    writer.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_store_restarts_gracefully_and_a_scale_in_is_taken_back_by_count() {
    let stage = Stage::start().await;
    let writer = Writer::start(&stage).await;
    let before = stage.stores().await.unwrap();
    let primary = before.iter().find(|store| store.leaders.is_some_and(|leaders| leaders > 0)).unwrap();
    let path = format!("/v1/stores/{}/restart", primary.id);
    assert_eq!(stage.ask(Method::POST, &path).await, 200);
    stage
        .until_stores("another process of the same store", |stores| {
            let now = stores.iter().find(|store| store.id == primary.id).unwrap();
            now.instance.is_some()
                && now.instance != primary.instance
                && now.process.as_deref() == Some("ready")
        })
        .await;
    let after = stage.until_serving(6).await;
    assert_eq!(ids(&after), ids(&before), "the same stores");
    let back = after.iter().find(|store| store.id == primary.id).unwrap();
    assert_eq!(back.identity, primary.identity, "by its volume it is who it was");
    writer.until_it_wrote().await;

    // One is asked to go and kept after all; then the marked one goes.
    assert_eq!(stage.ask(Method::PUT, "/v1/stores/kv-1/mark").await, 200);
    let done = stage.cluster.run(&["scale", "store-group/kv", "5"]).await;
    assert!(done.stdout.starts_with("kv scaled 6 -> 5; data leaves first"), "{}", done.stdout);
    let done = stage.cluster.run(&["scale", "store-group/kv", "6"]).await;
    assert_eq!(done.stdout, "kv scaled 5 -> 6\n");
    let stores = stage.until_serving(6).await;
    assert_eq!(stores.len(), 6);
    let done = stage.cluster.run(&["scale", "store-group/kv", "5"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    let stores = stage.until_serving(5).await;
    assert!(!ids(&stores).contains(&"kv-1"), "the marked one goes first: {stores:#?}");
    writer.until_it_wrote().await;
    writer.check().await;
    let refused = stage.cluster.run(&["scale", "store-group/kv", "2"]).await;
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(refused.stderr.contains("3"), "the backend's number is said: {}", refused.stderr);
}
