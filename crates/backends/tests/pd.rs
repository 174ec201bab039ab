//! The PD backend against answers as PD gives them. No PD runs here: what PD itself does is not shown by these.

mod stand_in;

use std::time::Duration;

use backends::testing::wait_for;
use backends::{
    Backend, BackendError, Count, Endpoint, Memo, Moving, Pace, Pd, PdConfig, Preflight, Refusal, Role,
    StoreId, StoreState,
};
use stand_in::{Ill, StandIn, Store, bytes};

const LONG: Duration = Duration::from_secs(60);

fn id(number: u64) -> StoreId {
    StoreId(number.to_string())
}

async fn memo(pd: &Pd, store: u64) -> Memo {
    match pd.preflight(&id(store)).await.expect("an answer") {
        Preflight::Possible { memo } => memo,
        Preflight::Refused { refusal } => panic!("refused: {refusal}"),
    }
}

async fn leaders(pd: &Pd, store: u64) -> Count {
    match pd.state(&id(store), None).await.expect("an answer") {
        StoreState::Serving { leaders, .. } => leaders,
        other => panic!("{other:?}"),
    }
}

fn sure(value: u64) -> Count {
    Count { value, complete: true }
}

#[tokio::test]
async fn a_store_is_found_by_its_address_and_counted() {
    let pd = StandIn::start(1).await;
    pd.books().stores.insert(5, Store { tiflash: true, leaders: 0, ..Store::up(0) });
    pd.books().stores.insert(6, Store { name: Some("Disconnected"), ..Store::up(1) });
    let backend = Pd::new(pd.config());
    assert_eq!(backend.identify("tikv-3:1").await, Ok(id(3)));
    let unknown = backend.identify("tikv-9:1").await;
    assert!(matches!(unknown, Err(BackendError::NotFound { .. })), "{unknown:?}");
    assert_eq!(backend.replicas().await, Ok(3));
    let members = backend.members().await.unwrap();
    assert_eq!(members.len(), 6);
    assert_eq!((members[0].role, members[0].healthy), (Role::Primary, true));
    assert_eq!((members[4].role, members[4].healthy), (Role::Replica, true));
    assert!(!members[5].healthy);
    let serving = StoreState::Serving { leaders: sure(10), data: bytes(96) };
    assert_eq!(backend.state(&id(1), None).await, Ok(serving));
    assert_eq!(backend.state(&id(99), None).await, Ok(StoreState::Unknown));
}

#[tokio::test]
async fn leaders_are_kept_away_by_one_entry_and_let_back_once() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    let found = backend.evictors(&id(4)).await.unwrap();
    assert_eq!(found.evictors, []);
    for _twice in 0..2 {
        backend.evict_leaders(&id(4), true, &found.memo, LONG).await.unwrap();
    }
    let there = backend.evictors(&id(4)).await.unwrap().evictors;
    assert_eq!(
        there.iter().map(|evictor| evictor.name.as_str()).collect::<Vec<_>>(),
        ["evict-leader-scheduler-4"]
    );
    // another's stays
    pd.books().evictors.get_or_insert_default().insert(2);
    for _twice in 0..2 {
        backend.evict_leaders(&id(4), false, &found.memo, LONG).await.unwrap();
    }
    assert_eq!(backend.evictors(&id(2)).await.unwrap().evictors.len(), 1);
    assert_eq!(
        pd.books().asked,
        [
            r#"POST /schedulers {"name":"evict-leader-scheduler","store_id":4}"#,
            "DELETE /schedulers/evict-leader-scheduler-4"
        ]
    );
    let unknown = backend.evict_leaders(&id(99), true, &found.memo, LONG).await;
    assert!(matches!(unknown, Err(BackendError::NotFound { .. })), "{unknown:?}");
}

#[tokio::test]
async fn a_list_of_evictors_that_is_missing_while_the_scheduler_runs_is_not_empty() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    pd.books().evictors = Some([4].into());
    pd.books().evictors_are_hidden = true;
    let hidden = backend.evictors(&id(4)).await;
    assert!(matches!(hidden, Err(BackendError::Refused { .. })), "{hidden:?}");
    assert!(matches!(backend.preflight(&id(3)).await, Err(BackendError::Refused { .. })));
}

#[tokio::test]
async fn a_pd_that_has_not_started_its_schedulers_yet_does_not_have_no_evictors() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    pd.books().schedulers_are_starting = true;
    assert_eq!(backend.evictors(&id(4)).await.map(|found| found.evictors), Ok(vec![]), "there was none");
    pd.books().evictors = Some([4].into());
    let memo = backend.evictors(&id(3)).await;
    assert!(matches!(memo, Err(BackendError::Unreachable { .. })), "it passes by itself: {memo:?}");
    assert!(matches!(backend.preflight(&id(3)).await, Err(BackendError::Unreachable { .. })));
    pd.books().schedulers_are_starting = false;
    assert_eq!(backend.evictors(&id(4)).await.map(|found| found.evictors.len()), Ok(1));
}

#[tokio::test]
async fn a_removal_that_somebody_else_began_goes_on_and_can_be_taken_back() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    let nothing = Memo::default();
    let theirs = memo(&backend, 4).await;
    assert_eq!(backend.begin_offline(&id(4), &theirs, LONG).await, Ok(Moving::Underway));
    assert_eq!(backend.begin_offline(&id(4), &nothing, LONG).await, Ok(Moving::Underway));
    let state = backend.state(&id(4), Some(&nothing)).await;
    assert!(matches!(state, Ok(StoreState::Removing { .. })), "{state:?}");
    assert_eq!(backend.cancel_offline(&id(4), &nothing, LONG).await, Ok(Moving::Complete));
    let state = backend.state(&id(4), Some(&nothing)).await;
    assert!(matches!(state, Ok(StoreState::Serving { .. })), "{state:?}");
    let gone = backend.state(&id(99), Some(&nothing)).await;
    assert_eq!(gone, Ok(StoreState::Unknown), "without a memo nobody knows that it was here");
}

#[tokio::test]
async fn a_removal_is_asked_for_once_and_is_complete_when_pd_has_buried_the_store() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    let memo = memo(&backend, 4).await;
    assert_eq!(pd.books().asked, [""; 0], "preflight touches nothing");
    for _twice in 0..2 {
        assert_eq!(backend.begin_offline(&id(4), &memo, LONG).await, Ok(Moving::Underway));
    }
    assert_eq!(pd.books().asked, ["DELETE /store/4"]);
    assert_eq!(backend.pace(&id(4)).await, Ok(None));
    pd.books().progress.insert(4, (0.25, 1.5, 810.0));
    let removing = |leaders, left, progress| StoreState::Removing {
        leaders: sure(leaders),
        data_left: bytes(left),
        progress,
    };
    assert_eq!(backend.state(&id(4), Some(&memo)).await, Ok(removing(10, 96, 0.25)));
    let pace = Pace { bytes_per_second: bytes(3) / 2, left: Some(Duration::from_secs(810)) };
    assert_eq!(backend.pace(&id(4)).await, Ok(Some(pace)));
    // nothing moves: PD gives the greatest number there is
    pd.books().progress.insert(4, (0.25, 0.0, f64::MAX));
    let still = Pace { bytes_per_second: 0, left: None };
    assert_eq!(backend.pace(&id(4)).await, Ok(Some(still)));
    // after a change of its leader PD begins again at zero; what has gone has gone
    pd.books().progress.clear();
    pd.books().stores.get_mut(&4).unwrap().region_mib = 24;
    assert_eq!(backend.state(&id(4), Some(&memo)).await, Ok(removing(10, 24, 0.75)));
    let early = backend.forget(&id(4), LONG).await;
    assert!(matches!(early, Err(BackendError::NotPossible { .. })), "{early:?}");

    pd.books().stores.get_mut(&4).unwrap().bury();
    assert_eq!(backend.state(&id(4), Some(&memo)).await, Ok(StoreState::Removed));
    assert_eq!(backend.begin_offline(&id(4), &memo, LONG).await, Ok(Moving::Complete));
    let late = backend.cancel_offline(&id(4), &memo, LONG).await;
    assert!(matches!(late, Err(BackendError::NotPossible { .. })), "{late:?}");
    for _twice in 0..2 {
        backend.forget(&id(4), LONG).await.unwrap();
    }
    assert_eq!(pd.books().asked, ["DELETE /store/4", "DELETE /stores/remove-tombstone"]);
    assert_eq!(backend.state(&id(4), Some(&memo)).await, Ok(StoreState::Removed));
    assert_eq!(backend.state(&id(4), None).await, Ok(StoreState::Unknown));
    assert_eq!(backend.begin_offline(&id(4), &memo, LONG).await, Ok(Moving::Complete));
}

#[tokio::test]
async fn a_removal_that_is_cancelled_leaves_the_store_with_its_own_limits() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    pd.books().stores.get_mut(&4).unwrap().limit = (15.0, 20.0);
    let memo = memo(&backend, 4).await;
    backend.begin_offline(&id(4), &memo, LONG).await.unwrap();
    // PD has lifted the limit, and forgets what it was when its leader changes
    pd.books().leader = 12;
    for _twice in 0..2 {
        assert_eq!(backend.cancel_offline(&id(4), &memo, LONG).await, Ok(Moving::Complete));
    }
    assert_eq!(leaders(&backend, 4).await, sure(10));
    assert_eq!(
        pd.books().asked,
        [
            "DELETE /store/4",
            "POST /store/4/state?state=Up",
            r#"POST /store/4/limit {"rate":20.0,"type":"remove-peer"}"#
        ]
    );
    // limits of the second version are PD's own business
    pd.books().limits_of_version_two = true;
    let memo = self::memo(&backend, 4).await;
    backend.begin_offline(&id(4), &memo, LONG).await.unwrap();
    assert_eq!(backend.cancel_offline(&id(4), &memo, LONG).await, Ok(Moving::Complete));
}

#[tokio::test]
async fn a_store_that_was_destroyed_by_another_is_not_called_back_and_pd_says_why() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    let memo = memo(&backend, 4).await;
    backend.begin_offline(&id(4), &memo, LONG).await.unwrap();
    pd.books().stores.get_mut(&4).unwrap().destroyed = true;
    match backend.cancel_offline(&id(4), &memo, LONG).await {
        Err(BackendError::Refused { words, .. }) => assert!(words.contains("ErrStoreDestroyed"), "{words}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_pd_refuses_is_told_in_its_own_words() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    let memo = memo(&backend, 4).await;
    let words = "[PD:cluster:ErrStoresNotEnough]can not remove store 4 since the number of up stores would be 2 while need 3";
    pd.books().refuses_to_remove = Some((400, words));
    match backend.begin_offline(&id(4), &memo, LONG).await {
        Err(BackendError::Refused { operation, words: told, .. }) => {
            assert_eq!((operation, told), ("begin offline", format!("status 400: {words}")));
        }
        other => panic!("{other:?}"),
    }
    // it became a tombstone in between
    pd.books().refuses_to_remove = Some((410, "[PD:core:ErrStoreRemoved]store 4 has been removed"));
    assert_eq!(backend.begin_offline(&id(4), &memo, LONG).await, Ok(Moving::Complete));
    pd.make(0, Ill::Status(500, "\"[PD:cluster:ErrNotBootstrapped]TiKV cluster not bootstrapped\""));
    let early = backend.state(&id(4), None).await;
    assert!(matches!(early, Err(BackendError::Refused { .. })), "{early:?}");
}

#[tokio::test]
async fn a_removal_that_cannot_work_is_refused_with_numbers() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    let refused = |refusal| Ok(Preflight::Refused { refusal });
    memo(&backend, 4).await;
    // PD itself would count one that is silent
    pd.books().stores.get_mut(&2).unwrap().name = Some("Disconnected");
    let too_few = Refusal::TooFewReplicas { left: 2, needed: 3 };
    assert_eq!(backend.preflight(&id(4)).await, refused(too_few.clone()));
    pd.books().stores.get_mut(&2).unwrap().name = None;
    pd.books().stores.insert(5, Store { tiflash: true, leaders: 0, used: "0B", ..Store::up(0) });
    pd.books().stores.get_mut(&1).unwrap().state = 1;
    assert_eq!(backend.preflight(&id(4)).await, refused(too_few));
    // a TiFlash store holds further copies
    memo(&backend, 5).await;
    pd.books().stores.get_mut(&5).unwrap().used = "1GiB";
    let alone = Refusal::NoRoom { data: 1 << 30, room: 0 };
    assert_eq!(backend.preflight(&id(5)).await, refused(alone));

    pd.books().stores.get_mut(&1).unwrap().state = 0;
    pd.books().evictors = Some([1, 2, 3].into());
    assert_eq!(backend.preflight(&id(4)).await, refused(Refusal::NoStoreForLeaders { leaders: 10 }));
    pd.books().evictors = Some([1, 2].into());
    memo(&backend, 4).await;
    // PD fills a store to four fifths
    for store in 1..=3 {
        pd.books().stores.get_mut(&store).unwrap().available = "230GiB";
    }
    match backend.preflight(&id(4)).await.unwrap() {
        Preflight::Refused { refusal: Refusal::NoRoom { data, room } } => {
            assert_eq!(data, 100 << 30);
            assert!((75 << 30..77 << 30).contains(&room), "{room}");
        }
        other => panic!("{other:?}"),
    }
    let unknown = backend.preflight(&id(99)).await;
    assert!(matches!(unknown, Err(BackendError::NotFound { .. })), "{unknown:?}");
}

#[tokio::test]
async fn a_tiflash_store_leads_nothing_and_that_is_certain() {
    let pd = StandIn::start(1).await;
    pd.books().stores.insert(5, Store { tiflash: true, ..Store::up(0) });
    pd.books().regions_without_leader = 9;
    let backend = Pd::new(PdConfig { settle: LONG, ..pd.config() });
    assert!(leaders(&backend, 5).await.is_surely_zero());
    let found = backend.evictors(&id(5)).await.unwrap();
    backend.evict_leaders(&id(5), true, &found.memo, LONG).await.unwrap();
    assert_eq!(pd.books().asked, [""; 0]);
}

#[tokio::test]
async fn counts_of_a_pd_that_has_just_begun_to_lead_are_incomplete() {
    let pd = StandIn::start(1).await;
    pd.books().stores.get_mut(&4).unwrap().leaders = 0;
    let believed = |count: Count| count.is_surely_zero().then_some(());
    let settled = async |backend: &Pd| {
        assert!(!leaders(backend, 4).await.complete, "nobody knows how long this one has led");
        wait_for("PD to have led for a while", || async { believed(leaders(backend, 4).await) }).await;
    };
    let backend = Pd::new(PdConfig { settle: Duration::from_millis(200), ..pd.config() });
    settled(&backend).await;
    // another member
    pd.books().leader = 12;
    settled(&backend).await;
    // the same one, started anew
    pd.books().started += 60;
    settled(&backend).await;
}

#[tokio::test]
async fn counts_are_incomplete_until_every_region_has_a_leader_that_pd_knows() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    pd.books().stores.get_mut(&4).unwrap().leaders = 0;
    pd.books().regions_without_leader = 1;
    assert_eq!(leaders(&backend, 4).await, Count { value: 0, complete: false });
    pd.books().regions_without_leader = 0;
    assert!(leaders(&backend, 4).await.is_surely_zero());
}

#[tokio::test]
async fn counts_are_incomplete_when_pd_changes_hands_while_they_are_read() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    pd.books().stores.get_mut(&4).unwrap().leaders = 0;
    pd.books().leader_changes_at_counts = true;
    assert_eq!(leaders(&backend, 4).await, Count { value: 0, complete: false });
}

#[tokio::test]
async fn another_member_is_asked_when_one_does_not_answer_for_a_leader() {
    for ill in [Ill::Hangs, Ill::FindsNoLeader, Ill::IsTakenForTheLeader, Ill::Status(502, "bad gateway")] {
        let pd = StandIn::start(3).await;
        pd.make(0, ill);
        pd.make(1, Ill::FindsNoLeader);
        // a third of it for each: long enough for a busy machine to answer
        let backend = Pd::new(PdConfig { timeout: Duration::from_secs(15), ..pd.config() });
        assert_eq!(backend.replicas().await, Ok(3), "{ill:?}");
        // who answered is asked first from then on
        assert_eq!(backend.replicas().await, Ok(3));
        assert_eq!(pd.books().heard, [1, 1, 2], "{ill:?}");
    }
}

#[tokio::test]
async fn nobody_who_answers_is_unreachable_and_says_who_was_asked() {
    let pd = StandIn::start(2).await;
    pd.make(0, Ill::FindsNoLeader);
    pd.make(1, Ill::Hangs);
    let backend = Pd::new(PdConfig { timeout: Duration::from_millis(500), ..pd.config() });
    match backend.state(&id(1), None).await {
        Err(BackendError::Unreachable { operation: "state", whom, .. }) => {
            assert!(pd.addresses.iter().any(|address| whom.contains(&address.to_string())), "{whom}");
        }
        other => panic!("{other:?}"),
    }
    let gone = Pd::new(PdConfig::new([Endpoint::new("http://127.0.0.1:1")]));
    match gone.members().await {
        Err(BackendError::Unreachable { why, .. }) => assert!(why.contains("refused"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_not_pd_is_never_taken_for_an_empty_one() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    let memo = memo(&backend, 4).await;
    for (status, text) in [
        (200, "<html>welcome</html>"),
        (404, "404 page not found"),
        (404, "<html>not found</html>"),
        (200, "{}"),
        (302, ""),
        (429, "\"rate limit exceeded\""),
    ] {
        pd.make(0, Ill::Status(status, text));
        for answer in [
            backend.state(&id(4), Some(&memo)).await.err(),
            backend.preflight(&id(4)).await.err(),
            backend.evictors(&id(4)).await.err(),
            backend.members().await.err(),
            backend.begin_offline(&id(4), &memo, LONG).await.err(),
            backend.forget(&id(4), LONG).await.err(),
        ] {
            assert!(matches!(answer, Some(BackendError::Refused { .. })), "{status} {text}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn another_cluster_at_the_same_address_is_not_the_one_that_was_meant() {
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    let (memo, kept) = (memo(&backend, 4).await, backend.evictors(&id(4)).await.unwrap().memo);
    pd.books().cluster += 1;
    pd.books().stores.remove(&4);
    for answer in [
        backend.state(&id(4), Some(&memo)).await.err(),
        backend.begin_offline(&id(4), &memo, LONG).await.err(),
        backend.cancel_offline(&id(4), &memo, LONG).await.err(),
        backend.evict_leaders(&id(4), true, &kept, LONG).await.err(),
        backend.evict_leaders(&id(4), false, &kept, LONG).await.err(),
    ] {
        assert!(matches!(answer, Some(BackendError::NotPossible { .. })), "{answer:?}");
    }
    assert_eq!(pd.books().asked, [""; 0]);
}

#[tokio::test]
async fn addresses_and_numbers_that_cannot_be_are_said_to_be_so() {
    for endpoint in ["https://127.0.0.1:2379", "127.0.0.1:2379", "http://", "redis://127.0.0.1:1", ""] {
        let answer = Pd::new(PdConfig::new([Endpoint::new(endpoint)])).members().await;
        assert!(matches!(answer, Err(BackendError::NotPossible { .. })), "{endpoint}: {answer:?}");
    }
    let nobody = Pd::new(PdConfig::new([])).members().await;
    assert!(matches!(nobody, Err(BackendError::NotPossible { .. })), "{nobody:?}");
    let pd = StandIn::start(1).await;
    let backend = Pd::new(pd.config());
    for name in ["kv-0", "", "-1", "4/state", "18446744073709551616"] {
        let answer = backend.state(&StoreId(name.to_owned()), None).await;
        assert!(matches!(answer, Err(BackendError::NotPossible { .. })), "{name}: {answer:?}");
    }
    let foreign = Memo("{\"slots\":\"0-5\"}".to_owned());
    let answer = backend.begin_offline(&id(4), &foreign, LONG).await;
    assert!(matches!(answer, Err(BackendError::NotPossible { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_password_opens_the_way_and_is_in_no_error() {
    let pd = StandIn::start(1).await;
    let endpoint = Endpoint::new(format!("http://me:hunter2hunter2@{}", pd.addresses[0]));
    let backend = Pd::new(PdConfig { endpoints: vec![endpoint], ..pd.config() });
    assert_eq!(backend.replicas().await, Ok(3));
    let sent = pd.books().authorization.clone();
    assert_eq!(sent.as_deref(), Some("Basic bWU6aHVudGVyMmh1bnRlcjI="));
    let mut shown = format!("{backend:?}");
    pd.make(0, Ill::Status(401, "wrong: me:hunter2hunter2"));
    shown += &format!("{:?}", backend.members().await);
    pd.make(0, Ill::Status(503, "wrong: me:hunter2hunter2"));
    shown += &format!("{:?}", backend.members().await);
    for url in [
        "http://me:hunter2hunter2@127.0.0.1:1",
        "https://me:hunter2hunter2@host",
        "http://me:hunter2hunter2@",
    ] {
        let gone = Pd::new(PdConfig::new([Endpoint::new(url)]));
        shown += &format!("{gone:?} {:?}", gone.members().await.unwrap_err());
    }
    assert!(!shown.contains("hunter2"), "{shown}");
}
