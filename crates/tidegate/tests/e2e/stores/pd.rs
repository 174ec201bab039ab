//! Stores of a real PD: processes that the daemons started play TiKV to it, and it moves their leaders and regions.
//! Skipped with a word on stderr where there is no pd-server.

use std::path::PathBuf;
use std::time::Duration;

use backends::testing::PdServer;
use backends::testing::tikv::{Books, Region, Role, Tikv};
use reqwest::Method;
use serde_json::{Value, json};
use server::view::{InstanceView, List, StoreGroupView, StoreMemberView};

use crate::harness::{Cluster, Pace, Setup, process::Process, until_for};

/// PD looks every ten seconds whether a store is empty, and moves a few regions at a time.
const LONG: Duration = Duration::from_secs(240);
const REGIONS: u64 = 12;
/// Three of their reports: they make one each second.
const SETTLE: &str = "pd_settle = \"3s\"\n";

/// Not a test: what the stores below run, which is this very program. Does nothing unless it is one of them.
#[tokio::test]
async fn plays_a_store() {
    let var = |name: &str| std::env::var(name).ok();
    let (Some(pd), Some(books), Some(port)) = (var("PLAYS_FOR"), var("PLAYS_BY"), var("PORT_KV")) else {
        return;
    };
    let store = Tikv {
        pd,
        address: format!("127.0.0.1:{port}"),
        volume: PathBuf::from(var("VOLUME").expect("a store has a volume")),
        books: PathBuf::from(books),
        regions: REGIONS,
        tiflash: var("PLAYS_TIFLASH").is_some(),
    };
    store.play().await;
}

struct Stage {
    cluster: Cluster,
    pd: PdServer,
    books: Books,
    dir: PathBuf,
}

impl Stage {
    /// Three copies of each region over as many stores, on four nodes.
    async fn start(replicas: u32) -> Option<Stage> {
        let pd = PdServer::start().await?;
        let mut cluster = Cluster::empty(Pace::Steady).await;
        cluster.add(Setup { more: SETTLE.to_owned(), ..Setup::control() });
        for number in 1..=4 {
            cluster.add(Setup::worker(&format!("n{number}")));
        }
        cluster.until_up().await;
        let dir = cluster.dir().join("books");
        let books = Books::at(&dir).unwrap();
        let stage = Stage { cluster, pd, books, dir };
        let said = stage.cluster.apply(&stage.group("kv", replicas, "")).await;
        assert_eq!(said, "kv created (store group)\n");
        stage.until_serving("kv", replicas).await;
        stage.until_whole(replicas as usize).await;
        Some(stage)
    }

    fn group(&self, name: &str, replicas: u32, more: &str) -> String {
        let program = std::env::current_exe().unwrap();
        let (books, url) = (&self.dir, self.pd.url());
        format!(
            "[[store_group]]\nname = \"{name}\"\nreplicas = {replicas}\nmemory = \"128MiB\"\ncpu = 10\n\
             command = [{program:?}, \"--exact\", \"stores::pd::plays_a_store\", \"--nocapture\"]\n\
             env = {{ PLAYS_FOR = {url:?}, PLAYS_BY = {books:?}{more} }}\n\
             ports = [\"kv\"]\ncheck = {{ tcp = \"kv\" }}\nvolume = {{ name = \"data\" }}\n\
             backend = {{ kind = \"pd\", endpoints = [{url:?}] }}\n"
        )
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
        until_for(LONG, what, async || {
            let stores = self.stores().await?;
            if holds(&stores) { Ok(stores) } else { Err(format!("{stores:#?}")) }
        })
        .await
    }

    async fn until_store(
        &self,
        what: &str,
        id: &str,
        holds: impl Fn(&StoreMemberView) -> bool,
    ) -> StoreMemberView {
        let what = format!("{id}: {what}");
        let stores =
            self.until_stores(&what, |stores| stores.iter().any(|it| it.id == id && holds(it))).await;
        stores.into_iter().find(|store| store.id == id).unwrap()
    }

    /// As many serve as should, nothing is on its way, and no leader is kept away by us.
    async fn until_serving(&self, group: &str, count: u32) -> Vec<StoreMemberView> {
        until_for(LONG, "the group to be well", async || {
            let (_, body) =
                self.cluster.api.ask(Method::GET, &format!("/v1/store-groups/{group}"), None).await?;
            let view: StoreGroupView = serde_json::from_value(body).map_err(|error| error.to_string())?;
            let stores = self.stores().await?;
            let of_group: Vec<_> = stores.into_iter().filter(|store| store.group == group).collect();
            let quiet = |store: &StoreMemberView| {
                let ours = store.evictor.as_ref().is_some_and(|evictor| evictor.ours);
                !ours && store.restart.is_none() && !store.offline && store.state == "serving"
            };
            let well = view.serving == count && view.leaving == 0 && of_group.len() == count as usize;
            if well && of_group.iter().all(quiet) { Ok(of_group) } else { Err(format!("{of_group:#?}")) }
        })
        .await
    }

    /// Three voters of everything, each with the data in its volume, and leaders on so many stores.
    async fn until_whole(&self, leading: usize) {
        until_for(LONG, &format!("three copies of everything, led from {leading} stores"), async || {
            let regions = self.books.regions().map_err(|error| error.to_string())?;
            let mut leaders: Vec<u64> = regions.iter().filter_map(Region::led_from).collect();
            leaders.sort_unstable();
            leaders.dedup();
            let whole = regions.len() as u64 >= REGIONS && regions.iter().all(|region| self.is_whole(region));
            if whole && leaders.len() == leading { Ok(()) } else { Err(format!("{regions:?}")) }
        })
        .await;
    }

    fn is_whole(&self, region: &Region) -> bool {
        let has_data = |store: u64| {
            let place = self.books.data(store, region.id);
            place.and_then(|place| std::fs::read_to_string(place).ok()) == Some(region.data())
        };
        let voters: Vec<_> = region.peers.iter().filter(|peer| peer.role == Role::Voter).collect();
        voters.len() == 3 && voters.iter().all(|peer| peer.ready && has_data(peer.store))
    }

    /// As `pd-ctl` asks.
    async fn ask_pd(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let url = format!("{}/pd/api/v1{path}", self.pd.url());
        let request = doors::http().no_proxy().build().unwrap().request(method, url);
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        let answer = request.timeout(LONG).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or_default())
    }

    /// Stores that PD keeps leaders from.
    async fn evicted(&self) -> Vec<String> {
        let (_, body) = self.ask_pd(Method::GET, "/scheduler-config/evict-leader-scheduler/list", None).await;
        body["store-id-ranges"].as_object().into_iter().flatten().map(|(id, _)| id.clone()).collect()
    }

    /// As somebody else would.
    async fn evict_by_hand(&self, store: &str) {
        let body = json!({ "name": "evict-leader-scheduler", "store_id": store.parse::<u64>().unwrap() });
        let (status, said) = self.ask_pd(Method::POST, "/schedulers", Some(body)).await;
        assert_eq!(status, 200, "{said}");
    }

    async fn pd_says(&self, store: &str) -> String {
        let (_, body) = self.ask_pd(Method::GET, &format!("/store/{store}"), None).await;
        body["store"]["state_name"].as_str().unwrap_or("unknown to PD").to_owned()
    }

    async fn process(&self, store: &StoreMemberView) -> Process {
        let (_, body) = self.cluster.api.ask(Method::GET, "/v1/instances", None).await.unwrap();
        let list: List<InstanceView> = serde_json::from_value(body).unwrap();
        let mut of_store = list.items.into_iter().filter(|it| Some(&it.id) == store.instance.as_ref());
        Process::of(of_store.next().and_then(|it| it.pid).expect("it runs"))
    }

    async fn until_volume_is_gone(&self, volume: &str) {
        until_for(LONG, &format!("{volume} to be gone"), async || {
            let (_, body) = self.cluster.api.ask(Method::GET, "/v1/volumes", None).await?;
            let there = body["items"].as_array().into_iter().flatten().any(|found| found["id"] == volume);
            if there { Err(body.to_string()) } else { Ok(()) }
        })
        .await;
    }

    async fn run(&self, args: &[&str]) -> String {
        let done = self.cluster.run(args).await;
        assert_eq!(done.code, 0, "{args:?}: {}", done.stderr);
        done.stdout
    }
}

fn identity(store: &StoreMemberView) -> &str {
    store.identity.as_deref().expect("PD knows it")
}

fn is_active(store: &StoreMemberView) -> bool {
    store.state == "removing" && store.offlining.as_ref().is_some_and(|it| it.reason == "Active")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tikv_that_is_to_go_is_kept_by_count_and_goes_when_pd_has_buried_it() {
    let Some(mut stage) = Stage::start(4).await else { return };
    stage.run(&["store", "mark", "kv-1"]).await;
    stage.books.hold_peers(true).unwrap();
    stage.run(&["scale", "store-group/kv", "3"]).await;
    let leaving = stage.until_store("its data to move", "kv-1", is_active).await;
    assert_eq!(stage.pd_says(identity(&leaving)).await, "Offline");
    assert!(stage.evicted().await.contains(&identity(&leaving).to_owned()), "leaders went first");
    assert_eq!(stage.run(&["scale", "store-group/kv", "4"]).await, "kv scaled 3 -> 4\n");
    stage.until_serving("kv", 4).await;
    assert_eq!(stage.pd_says(identity(&leaving)).await, "Up");
    assert_eq!(stage.evicted().await, [""; 0], "nothing of ours is left in PD");
    stage.books.hold_peers(false).unwrap();
    stage.until_whole(4).await;

    let process = stage.process(&leaving).await;
    stage.books.hold_peers(true).unwrap();
    stage.run(&["scale", "store-group/kv", "3"]).await;
    stage.until_store("its data to move", "kv-1", is_active).await;
    stage.cluster.daemon_mut("control").kill();
    stage.cluster.daemon_mut("control").start(&[]);
    stage.until_store("the next coordinator to go on", "kv-1", is_active).await;
    assert!(process.is_alive());
    stage.books.hold_peers(false).unwrap();
    stage.until_stores("it to be gone", |stores| stores.iter().all(|store| store.id != "kv-1")).await;
    assert_eq!(stage.pd_says(identity(&leaving)).await, "Tombstone");
    assert!(!process.is_alive(), "its process outlives its record");
    stage.until_volume_is_gone("kv-data-1").await;
    stage.until_serving("kv", 3).await;
    stage.until_whole(3).await;
    assert_eq!(stage.evicted().await, [""; 0]);

    let refused = stage.cluster.run(&["scale", "store-group/kv", "2"]).await;
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(refused.stderr.contains("needs 3"), "PD's number is said: {}", refused.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_gives_its_tikv_up_though_pd_is_killed_in_the_middle() {
    let Some(mut stage) = Stage::start(3).await else { return };
    let before = stage.stores().await.unwrap();
    let leaving = before[0].clone();
    let process = stage.process(&leaving).await;
    stage.books.hold_peers(true).unwrap();
    let node = leaving.node.clone().unwrap();
    stage.run(&["node", "drain", &node, "--detach"]).await;
    let stores = stage.until_stores("one to be offline", |stores| stores.iter().any(|it| it.offline)).await;
    let is_other = |store: &&StoreMemberView| before.iter().all(|known| known.id != store.id);
    let stand_in = stores.iter().find(is_other).expect("another was made first");
    assert!(stand_in.state == "serving" && stand_in.node != leaving.node, "{stand_in:#?}");
    stage.until_store("its data to move", &leaving.id, is_active).await;

    stage.pd.kill();
    stage
        .until_store("it to say that PD is silent", &leaving.id, |store| {
            store.wait.as_ref().is_some_and(|wait| wait.code == "backend_unreachable")
        })
        .await;
    assert_eq!(stage.stores().await.unwrap().len(), 4, "nothing is deleted on a guess");
    assert!(process.is_alive());
    stage.pd.launch();
    stage.until_store("PD to go on", &leaving.id, is_active).await;
    assert!(process.is_alive() && stage.stores().await.unwrap().len() == 4);
    stage.books.hold_peers(false).unwrap();

    until_for(LONG, "the drain to end", async || {
        let done = stage.cluster.run(&["drain", "status", "1", "-o", "json"]).await;
        if done.stdout.contains("\"drained\"") { Ok(()) } else { Err(done.stdout) }
    })
    .await;
    let stores = stage.until_serving("kv", 3).await;
    assert!(stores.iter().all(|store| store.id != leaving.id && store.node.as_ref() != Some(&node)));
    assert_eq!(stage.pd_says(identity(&leaving)).await, "Tombstone");
    assert!(!process.is_alive());
    let volume = leaving.id.replace("kv-", "kv-data-");
    stage.until_volume_is_gone(&volume).await;
    stage.until_whole(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tikv_restarts_without_leaders_and_gets_them_back_and_only_our_evictors_go() {
    let Some(mut stage) = Stage::start(3).await else { return };
    let before =
        stage.until_store("its leaders", "kv-0", |it| it.leaders.is_some_and(|count| count > 0)).await;
    let process = stage.process(&before).await;
    stage.books.hold_leaders(true).unwrap();
    stage.run(&["store", "restart", "kv-0"]).await;
    stage.until_store("an evictor of ours", "kv-0", |it| it.evictor.as_ref().is_some_and(|it| it.ours)).await;
    until_for(LONG, "PD to have it", async || {
        let evicted = stage.evicted().await;
        if evicted == [identity(&before)] { Ok(()) } else { Err(format!("{evicted:?}")) }
    })
    .await;
    assert!(process.is_alive(), "it leads");
    stage.books.hold_leaders(false).unwrap();
    let after = stage
        .until_store("another process", "kv-0", |it| {
            it.instance != before.instance && it.process.as_deref() == Some("ready")
        })
        .await;
    assert!(!process.is_alive());
    assert_eq!(after.identity, before.identity, "by its volume it is who it was");
    stage.until_serving("kv", 3).await;
    assert_eq!(stage.evicted().await, [""; 0]);
    stage.until_whole(3).await;

    // Leaders alone; and what somebody else put there stays, on the same store and on another.
    let other = stage.stores().await.unwrap().into_iter().find(|store| store.id == "kv-1").unwrap();
    stage.run(&["store", "evict-leader", "kv-1"]).await;
    stage
        .until_store("no leader", "kv-1", |it| {
            it.leaders == Some(0) && it.leaders_complete && it.evictor.as_ref().is_some_and(|it| it.ours)
        })
        .await;
    assert_eq!(stage.evicted().await, [identity(&other)]);
    stage.run(&["store", "evict-leader", "kv-1", "--cancel"]).await;
    stage.until_serving("kv", 3).await;
    assert_eq!(stage.evicted().await, [""; 0]);
    stage.until_whole(3).await;

    stage.evict_by_hand(identity(&before)).await;
    // A PD that has just started has no evictors to show, whoever put them there.
    stage.pd.kill();
    stage.pd.launch();
    stage.run(&["store", "restart", "kv-0"]).await;
    stage
        .until_store("a third process", "kv-0", |it| {
            it.instance != after.instance && it.process.as_deref() == Some("ready") && it.restart.is_none()
        })
        .await;
    stage.run(&["store", "evict-leader", "kv-1"]).await;
    stage.until_store("no leader", "kv-1", |it| it.leaders == Some(0) && it.leaders_complete).await;
    stage.run(&["store", "evict-leader", "kv-1", "--cancel"]).await;
    stage.until_serving("kv", 3).await;
    assert_eq!(stage.evicted().await, [identity(&before)], "somebody else's stays, and nothing of ours");
    stage.until_whole(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tiflash_goes_where_a_tikv_may_not() {
    let Some(stage) = Stage::start(3).await else { return };
    stage.cluster.apply(&stage.group("flash", 2, ", PLAYS_TIFLASH = \"1\"")).await;
    stage.until_serving("flash", 2).await;
    let rule = json!({
        "group_id": "tiflash", "id": "copies", "start_key": "", "end_key": "", "role": "learner", "count": 1,
        "label_constraints": [{ "key": "engine", "op": "in", "values": ["tiflash"] }],
    });
    let (status, said) = stage.ask_pd(Method::POST, "/config/rule", Some(rule)).await;
    assert_eq!(status, 200, "{said}");
    let learners = async || {
        until_for(LONG, "a copy of everything on a TiFlash", async || {
            let regions = stage.books.regions().map_err(|error| error.to_string())?;
            let learns = |region: &Region| {
                region.peers.iter().any(|peer| peer.role == Role::Learner && peer.ready)
                    && stage.is_whole(region)
            };
            if regions.iter().all(learns) { Ok(()) } else { Err(format!("{regions:?}")) }
        })
        .await;
    };
    learners().await;

    // Of the TiKVs none may go, which PD says by its number.
    stage.run(&["scale", "store-group/kv", "2"]).await;
    stage
        .until_stores("a word of who may not go", |stores| {
            let refused = |store: &StoreMemberView| {
                store.wait.as_ref().is_some_and(|wait| {
                    wait.code == "replicas_not_enough" && wait.message.contains("needs 3")
                })
            };
            stores.iter().any(|store| store.group == "kv" && refused(store))
        })
        .await;
    stage.run(&["scale", "store-group/kv", "3"]).await;
    stage.until_serving("kv", 3).await;

    let leaving = stage.stores().await.unwrap().into_iter().find(|store| store.id == "flash-1").unwrap();
    stage.run(&["scale", "store-group/flash", "1"]).await;
    stage.until_serving("flash", 1).await;
    assert_eq!(stage.pd_says(identity(&leaving)).await, "Tombstone");
    learners().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_somebody_began_in_pd_is_taken_back_unless_the_group_is_to_be_smaller() {
    let Some(stage) = Stage::start(4).await else { return };
    stage.books.hold_peers(true).unwrap();
    let leaving = stage.stores().await.unwrap().into_iter().find(|store| store.id == "kv-2").unwrap();
    let remove_by_hand = async || {
        let path = format!("/store/{}", identity(&leaving));
        let (status, said) = stage.ask_pd(Method::DELETE, &path, None).await;
        assert_eq!(status, 200, "{said}");
    };
    remove_by_hand().await;
    until_for(LONG, "it to be called back", async || {
        let said = stage.pd_says(identity(&leaving)).await;
        if said == "Up" { Ok(()) } else { Err(format!("{said}: {:#?}", stage.stores().await)) }
    })
    .await;
    stage.until_serving("kv", 4).await;

    stage.run(&["store", "mark", "kv-2"]).await;
    stage.run(&["scale", "store-group/kv", "3"]).await;
    remove_by_hand().await;
    stage.until_store("its data to move", "kv-2", is_active).await;
    stage.books.hold_peers(false).unwrap();
    stage.until_serving("kv", 3).await;
    assert_eq!(stage.pd_says(identity(&leaving)).await, "Tombstone");
    assert_eq!(stage.evicted().await, [""; 0]);
    stage.until_whole(3).await;
}

#[tokio::test]
async fn who_is_not_pd_is_said_to_be_none() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let nobody = format!("http://127.0.0.1:{}", crate::harness::free_port());
    for (name, url, code, words) in [
        ("stranger", cluster.api.base(), "backend_error", "status 404"),
        ("nobody", nobody.as_str(), "backend_unreachable", "cannot be reached"),
    ] {
        cluster
            .apply(&format!(
                "[[store_group]]\nname = \"{name}\"\nreplicas = 1\nmemory = \"16MiB\"\nports = [\"kv\"]\n\
                 command = [\"sleep\", \"100000\"]\nvolume = {{ name = \"data\" }}\n\
                 backend = {{ kind = \"pd\", endpoints = [{url:?}] }}\n"
            ))
            .await;
        until_for(LONG, "a word about it", async || {
            let (_, body) = cluster.api.ask(Method::GET, "/v1/stores", None).await?;
            let list: List<StoreMemberView> =
                serde_json::from_value(body).map_err(|error| error.to_string())?;
            let wait =
                list.items.iter().find(|store| store.group == name).and_then(|store| store.wait.as_ref());
            let said = wait.is_some_and(|wait| wait.code == code && wait.message.contains(words));
            if said { Ok(()) } else { Err(format!("{:#?}", list.items)) }
        })
        .await;
    }
}
