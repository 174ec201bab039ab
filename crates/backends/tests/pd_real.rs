//! The PD backend against a real PD, without a TiKV and with stores that play TiKV, whose regions PD really moves. Skipped
//! with a word on stderr where there is no pd-server.

use std::time::Duration;

use backends::testing::tikv::{Books, REGION_BYTES, REPORT_EVERY, Region, Role as PeerRole, Tikv};
use backends::testing::{PATIENCE, PdServer, wait_for};
use backends::{Backend, BackendError, Moving, Pd, PdConfig, Preflight, Refusal, Role, StoreId, StoreState};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const REGIONS: u64 = 20;

/// Stores of a real PD, each a task: aborted, it is a process that was killed.
struct Fleet {
    server: PdServer,
    pd: Pd,
    books: Books,
    directory: tempfile::TempDir,
    stores: Vec<(String, JoinHandle<()>)>,
}

impl Fleet {
    /// As many that all have their share of three copies of everything.
    async fn start(count: usize) -> Option<Fleet> {
        let server = PdServer::start().await?;
        let directory = tempfile::tempdir().expect("a directory");
        let books = Books::at(&directory.path().join("books")).expect("the books");
        let pd = Pd::new(PdConfig { settle: 2 * REPORT_EVERY, ..server.config() });
        let mut fleet = Fleet { server, pd, books, directory, stores: Vec::new() };
        for _ in 0..count {
            fleet.add(false);
        }
        fleet.until_well(count).await;
        Some(fleet)
    }

    fn add(&mut self, tiflash: bool) -> usize {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = socket.local_addr().expect("a bound socket").to_string();
        drop(socket);
        let number = self.stores.len();
        let task = tokio::spawn(self.player(number, &address, tiflash).play());
        self.stores.push((address, task));
        number
    }

    fn player(&self, number: usize, address: &str, tiflash: bool) -> Tikv {
        Tikv {
            pd: self.server.url().to_owned(),
            address: address.to_owned(),
            volume: self.directory.path().join(format!("volume-{number}")),
            books: self.directory.path().join("books"),
            regions: REGIONS,
            tiflash,
        }
    }

    async fn id(&self, number: usize) -> StoreId {
        self.pd.identify(&self.stores[number].0).await.expect("PD knows it")
    }

    fn regions(&self) -> Vec<Region> {
        self.books.regions().expect("the books")
    }

    /// Three voters each, on so many stores, none of which has no leader; nothing is on its way.
    async fn until_well(&self, count: usize) {
        wait_for("three copies of everything on every store", || async {
            let regions = self.regions();
            let whole = regions.len() as u64 >= REGIONS && regions.iter().all(is_whole);
            let mut leaders: Vec<u64> = regions.iter().filter_map(Region::led_from).collect();
            leaders.sort_unstable();
            leaders.dedup();
            (whole && leaders.len() == count).then_some(())
        })
        .await;
    }

    /// As `pd-ctl` would.
    async fn http(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> (u16, String) {
        let url = format!("{}/pd/api/v1{path}", self.server.url());
        let request =
            doors::http().no_proxy().build().expect("a client").request(method, url).timeout(PATIENCE);
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a whole answer"))
    }

    async fn until_state(
        &self,
        what: &str,
        store: &StoreId,
        holds: impl Fn(&StoreState) -> bool,
    ) -> StoreState {
        wait_for(what, || async { self.pd.state(store, None).await.ok().filter(|state| holds(state)) }).await
    }

    fn peers_on(&self, store: &StoreId) -> usize {
        let number: u64 = store.0.parse().expect("a number");
        let peers = self.regions().into_iter().flat_map(|region| region.peers);
        peers.filter(|peer| peer.store == number).count()
    }

    /// Every copy that PD counts on is there, and is what was written.
    fn check_data(&self) {
        for region in self.regions() {
            for peer in region.peers.iter().filter(|peer| peer.ready) {
                let place = self.books.data(peer.store, region.id).expect("a store of these books");
                let found = std::fs::read_to_string(&place);
                assert_eq!(found.ok(), Some(region.data()), "{}", place.display());
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stores.iter().for_each(|(_, task)| task.abort());
    }
}

fn is_whole(region: &Region) -> bool {
    let voters = region.peers.iter().filter(|peer| peer.ready && peer.role == PeerRole::Voter);
    voters.count() == 3 && region.peers.iter().all(|peer| peer.ready)
}

fn no_leaders(state: &StoreState) -> bool {
    match state {
        StoreState::Serving { leaders, .. } | StoreState::Removing { leaders, .. } => {
            leaders.is_surely_zero()
        }
        StoreState::Removed | StoreState::Unknown => false,
    }
}

fn some_leaders(state: &StoreState) -> bool {
    matches!(state, StoreState::Serving { leaders, .. } if leaders.complete && leaders.value > 0)
}

async fn memo(pd: &Pd, store: &StoreId) -> backends::Memo {
    match pd.preflight(store).await.expect("an answer") {
        Preflight::Possible { memo } => memo,
        Preflight::Refused { refusal } => panic!("{refusal}"),
    }
}

const WITHIN: Duration = PATIENCE;

#[tokio::test]
async fn a_pd_without_a_cluster_tells_its_replicas_and_refuses_the_rest_in_its_own_words() {
    let Some(server) = PdServer::start().await else { return };
    let pd = Pd::new(server.config());
    assert_eq!(pd.replicas().await, Ok(3));
    let store = StoreId("1".to_owned());
    for answer in [
        pd.members().await.err(),
        pd.state(&store, None).await.err(),
        pd.preflight(&store).await.err(),
        pd.identify("127.0.0.1:20160").await.err(),
    ] {
        match answer {
            Some(BackendError::Refused { words, .. }) => {
                assert!(words.contains("ErrNotBootstrapped"), "{words}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_pd_without_a_cluster_has_no_evictors() {
    let Some(server) = PdServer::start().await else { return };
    let pd = Pd::new(server.config());
    match pd.evictors(&StoreId("1".to_owned())).await {
        Ok(found) => assert_eq!(found.evictors, []),
        Err(BackendError::Refused { words, .. }) => assert!(words.contains("ErrNotBootstrapped"), "{words}"),
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_real_pd_moves_all_data_of_a_store_that_goes_and_buries_it() {
    let Some(fleet) = Fleet::start(4).await else { return };
    let pd = &fleet.pd;
    let members = pd.members().await.unwrap();
    assert_eq!(members.len(), 4);
    assert!(members.iter().all(|member| member.healthy && member.role == Role::Primary), "{members:?}");
    let leaving = fleet.id(1).await;
    let before = fleet.until_state("its leaders to be counted", &leaving, some_leaders).await;
    let StoreState::Serving { leaders, data } = before else { unreachable!() };
    assert_eq!(data, fleet.peers_on(&leaving) as u64 * REGION_BYTES);
    assert!(leaders.value < fleet.regions().len() as u64);
    let memo = memo(pd, &leaving).await;
    fleet.books.hold_peers(true).unwrap();
    assert_eq!(pd.begin_offline(&leaving, &memo, WITHIN).await, Ok(Moving::Underway));
    assert_eq!(pd.begin_offline(&leaving, &memo, WITHIN).await, Ok(Moving::Underway), "asked again");
    match pd.state(&leaving, Some(&memo)).await.unwrap() {
        StoreState::Removing { data_left, .. } => assert_eq!(data_left, data),
        other => panic!("{other:?}"),
    }
    match pd.forget(&leaving, WITHIN).await {
        Err(BackendError::NotPossible { why, .. }) => assert!(why.contains("no tombstone"), "{why}"),
        other => panic!("{other:?}"),
    }
    fleet.books.hold_peers(false).unwrap();
    wait_for("it to be removed", || async {
        (pd.state(&leaving, Some(&memo)).await == Ok(StoreState::Removed)).then_some(())
    })
    .await;
    assert_eq!(fleet.peers_on(&leaving), 0);
    fleet.until_well(3).await;
    fleet.check_data();
    assert_eq!(pd.begin_offline(&leaving, &memo, WITHIN).await, Ok(Moving::Complete));
    match pd.cancel_offline(&leaving, &memo, WITHIN).await {
        Err(BackendError::NotPossible { why, .. }) => assert!(why.contains("removed already"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(pd.forget(&leaving, WITHIN).await, Ok(()));
    assert_eq!(pd.forget(&leaving, WITHIN).await, Ok(()), "asked again");
    assert_eq!(pd.state(&leaving, Some(&memo)).await, Ok(StoreState::Removed));
    assert_eq!(pd.state(&leaving, None).await, Ok(StoreState::Unknown));
}

#[tokio::test]
async fn a_real_pd_takes_a_removal_back_and_the_store_has_its_limits_again() {
    let Some(mut fleet) = Fleet::start(4).await else { return };
    let store = fleet.id(2).await;
    let limits = async |fleet: &Fleet| {
        let (status, text) = fleet.http(reqwest::Method::GET, "/stores/limit", None).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()[&store.0].clone()
    };
    let body = json!({ "rate": 77.0, "type": "remove-peer" });
    let (status, text) =
        fleet.http(reqwest::Method::POST, &format!("/store/{store}/limit"), Some(body)).await;
    assert_eq!(status, 200, "{text}");
    let before = limits(&fleet).await;
    assert_eq!(before["remove-peer"], 77.0);
    for restarted in [false, true] {
        let memo = memo(&fleet.pd, &store).await;
        fleet.books.hold_peers(true).unwrap();
        fleet.pd.begin_offline(&store, &memo, WITHIN).await.unwrap();
        assert_ne!(limits(&fleet).await, before, "PD lifts the limit of a store that goes");
        if restarted {
            fleet.server.kill();
            match fleet.pd.state(&store, Some(&memo)).await {
                Err(BackendError::Unreachable { .. }) => {}
                other => panic!("{other:?}"),
            }
            fleet.server.launch();
            let state =
                wait_for("PD to be back", || async { fleet.pd.state(&store, Some(&memo)).await.ok() });
            match state.await {
                StoreState::Removing { leaders, .. } => assert!(!leaders.complete, "nobody has reported"),
                other => panic!("{other:?}"),
            }
        }
        let cancelled = fleet.pd.cancel_offline(&store, &memo, WITHIN).await;
        assert_eq!(cancelled, Ok(Moving::Complete));
        assert_eq!(limits(&fleet).await, before, "restarted: {restarted}");
        fleet.books.hold_peers(false).unwrap();
        fleet.until_state("it to serve", &store, some_leaders).await;
    }
    fleet.check_data();
}

#[tokio::test]
async fn a_real_pd_keeps_leaders_from_a_store_through_its_restart_until_told_otherwise() {
    let Some(mut fleet) = Fleet::start(3).await else { return };
    let (store, other) = (fleet.id(0).await, fleet.id(1).await);
    fleet.until_state("its leaders to be counted", &store, some_leaders).await;
    let found = fleet.pd.evictors(&store).await.unwrap();
    assert_eq!(found.evictors, []);
    for _again in 0..2 {
        assert_eq!(fleet.pd.evict_leaders(&store, true, &found.memo, WITHIN).await, Ok(()));
    }
    fleet.until_state("its leaders to be gone", &store, no_leaders).await;
    assert_eq!(fleet.pd.evictors(&store).await.unwrap().evictors.len(), 1);
    assert_eq!(fleet.pd.evictors(&other).await.unwrap().evictors, []);
    // somebody else's, on another store
    let body = json!({ "name": "evict-leader-scheduler", "store_id": other.0.parse::<u64>().unwrap() });
    let (status, text) = fleet.http(reqwest::Method::POST, "/schedulers", Some(body)).await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(fleet.pd.evictors(&other).await.unwrap().evictors.len(), 1);
    fleet.until_state("the other's leaders to be gone", &other, no_leaders).await;

    fleet.server.kill();
    fleet.server.launch();
    fleet.until_state("PD to be back, and to count", &store, no_leaders).await;
    // Until PD has started its schedulers it says that it cannot say.
    let kept = wait_for("PD to show its evictors", || async { fleet.pd.evictors(&store).await.ok() }).await;
    assert_eq!(kept.evictors.len(), 1, "it outlives PD's process");

    for _again in 0..2 {
        assert_eq!(fleet.pd.evict_leaders(&store, false, &found.memo, WITHIN).await, Ok(()));
    }
    assert_eq!(fleet.pd.evictors(&store).await.unwrap().evictors, []);
    assert_eq!(fleet.pd.evictors(&other).await.unwrap().evictors.len(), 1, "the other's stays");
    fleet.until_state("its leaders to be back", &store, some_leaders).await;
    fleet.until_state("the other to have none", &other, no_leaders).await;
}

#[tokio::test]
async fn a_real_pd_lets_nobody_go_while_too_few_would_be_left() {
    let Some(fleet) = Fleet::start(3).await else { return };
    let store = fleet.id(0).await;
    match fleet.pd.preflight(&store).await {
        Ok(Preflight::Refused { refusal }) => {
            assert_eq!(refusal, Refusal::TooFewReplicas { left: 2, needed: 3 });
        }
        other => panic!("{other:?}"),
    }
    // PD says the same when it is not asked before: with a memo from when there were more
    let memo = fleet.pd.evictors(&store).await.unwrap().memo;
    let cluster: Value = serde_json::from_str(&memo.0).unwrap();
    let memo = backends::Memo(json!({ "cluster": cluster["cluster"], "data": 0, "limit": null }).to_string());
    match fleet.pd.begin_offline(&store, &memo, WITHIN).await {
        Err(BackendError::Refused { words, .. }) => {
            assert!(words.contains("status 400") && words.contains("ErrStoresNotEnough"), "{words}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(fleet.pd.state(&store, None).await, Ok(StoreState::Serving { .. })));
}

#[tokio::test]
async fn a_tiflash_of_a_real_pd_leads_nothing_and_goes_though_there_are_few_stores() {
    let Some(mut fleet) = Fleet::start(3).await else { return };
    let numbers = [fleet.add(true), fleet.add(true)];
    wait_for("all to be there", || async {
        fleet.pd.members().await.ok().filter(|members| members.len() == 5)
    })
    .await;
    let rule = json!({
        "group_id": "tiflash", "id": "copies", "start_key": "", "end_key": "", "role": "learner", "count": 1,
        "label_constraints": [{ "key": "engine", "op": "in", "values": ["tiflash"] }],
    });
    let (status, text) = fleet.http(reqwest::Method::POST, "/config/rule", Some(rule)).await;
    assert_eq!(status, 200, "{text}");
    let learns = |region: &Region| {
        region.peers.iter().any(|peer| peer.ready && peer.role == PeerRole::Learner) && is_whole(region)
    };
    wait_for("a learner of everything", || async { fleet.regions().iter().all(learns).then_some(()) }).await;
    let mut stores = Vec::new();
    for number in numbers {
        stores.push(fleet.id(number).await);
    }
    stores.sort_by_key(|store| std::cmp::Reverse(fleet.peers_on(store)));
    let leaving = &stores[0];
    assert!(fleet.peers_on(leaving) > 0);
    let of_it = |member: &backends::Member| member.id == *leaving;
    let members = fleet.pd.members().await.unwrap();
    assert_eq!(members.into_iter().find(of_it).map(|member| member.role), Some(Role::Replica));
    let state = fleet.pd.state(leaving, None).await.unwrap();
    assert!(no_leaders(&state), "none at once: {state:?}");
    let evictors = fleet.pd.evictors(leaving).await.unwrap();
    assert_eq!(fleet.pd.evict_leaders(leaving, true, &evictors.memo, WITHIN).await, Ok(()));
    assert_eq!(fleet.pd.evictors(leaving).await.unwrap().evictors, [], "nothing to keep away");
    let memo = memo(&fleet.pd, leaving).await;
    fleet.pd.begin_offline(leaving, &memo, WITHIN).await.unwrap();
    wait_for("it to be removed", || async {
        (fleet.pd.state(leaving, Some(&memo)).await == Ok(StoreState::Removed)).then_some(())
    })
    .await;
    assert!(fleet.regions().iter().all(learns), "the other one has the copies");
    fleet.check_data();
}
