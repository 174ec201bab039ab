//! The Redis Cluster backend against real Redis nodes.

mod data;

use std::collections::BTreeMap;
use std::time::Duration;

use backends::testing::keys::{self, assert_all_there, fill, key, owners};
use backends::testing::{RedisNodes, wait_for};
use backends::{
    Backend, BackendError, Endpoint, Memo, Moving, Preflight, RedisCluster, RedisConfig, Refusal, Role,
    StoreId, StoreState,
};
use data::Writer;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(180);

async fn memo(backend: &RedisCluster, store: &StoreId) -> Memo {
    match backend.preflight(store).await.expect("an answer") {
        Preflight::Possible { memo } => memo,
        Preflight::Refused { refusal } => panic!("refused: {refusal}"),
    }
}

async fn serving(backend: &RedisCluster, store: &StoreId) -> u64 {
    wait_for("a count that is complete", || async {
        match backend.state(store, None).await.expect("an answer") {
            StoreState::Serving { leaders, .. } => leaders.complete.then_some(leaders.value),
            other => panic!("{other:?}"),
        }
    })
    .await
}

async fn progress(backend: &RedisCluster, store: &StoreId, memo: &Memo) -> f64 {
    match backend.state(store, Some(memo)).await.expect("an answer") {
        StoreState::Removing { progress, .. } => progress,
        other => panic!("{other:?}"),
    }
}

/// Times for calls that are cut short: a machine that is too slow for one is not for a later one.
fn growing_from(milliseconds: u64) -> impl Iterator<Item = Duration> {
    (0..).map(move |tries: u32| Duration::from_millis(milliseconds) * (10 + tries) / 10)
}

/// Drops a removal in the middle: some slots have gone, some are left. One that was faster than its time is taken back,
/// and has less the next time.
async fn go_half_way(backend: &RedisCluster, store: &StoreId, memo: &Memo) {
    let mut after = Duration::from_millis(20);
    loop {
        let _dropped = timeout(after, backend.begin_offline(store, memo, LONG)).await;
        let reached = progress(backend, store, memo).await;
        if reached >= 1.0 {
            assert_eq!(backend.cancel_offline(store, memo, LONG).await, Ok(Moving::Complete));
            after = after * 2 / 3;
        } else if reached >= 0.2 {
            return;
        } else {
            after += Duration::from_millis(5);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_there_after_a_primary_was_taken_off_under_a_writer() {
    let nodes = RedisNodes::start(4, 2).await;
    fill(&nodes, &[0, 1, 2, 3]).await;
    let backend = RedisCluster::new(nodes.config());
    let store = backend.identify(&nodes.address(1)).await.unwrap();
    let memo = memo(&backend, &store).await;
    let writer = Writer::start(&nodes).await;

    let mut seen = 0.0;
    for within in growing_from(300) {
        let moving = backend.begin_offline(&store, &memo, within).await;
        let progress = progress(&backend, &store, &memo).await;
        assert!(progress >= seen, "progress fell from {seen} to {progress}");
        seen = progress;
        if matches!(moving, Ok(Moving::Complete)) {
            break;
        }
    }
    wait_for("nothing to be left", || async {
        match backend.state(&store, Some(&memo)).await.unwrap() {
            StoreState::Removing { leaders, data_left: 0, .. } => leaders.is_surely_zero().then_some(()),
            StoreState::Removing { .. } => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
    backend.forget(&store, LONG).await.unwrap();
    assert!(writer.stop().await > 0);

    assert_eq!(backend.state(&store, Some(&memo)).await, Ok(StoreState::Removed));
    assert_eq!(backend.state(&store, None).await, Ok(StoreState::Unknown));
    assert!(backend.members().await.unwrap().iter().all(|member| member.id != store));
    assert_all_there(&nodes, &[0, 2, 3]).await;
    let shares = owners(&nodes, &[0, 2, 3]).await;
    for node in [0, 2, 3] {
        let share = shares.values().filter(|owner| **owner == node).count();
        assert!((5461..=5462).contains(&share), "node {node} has {share} slots");
    }
    // what is done may be asked for again
    assert_eq!(backend.begin_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    backend.forget(&store, LONG).await.unwrap();
    let cancelled = backend.cancel_offline(&store, &memo, LONG).await;
    assert!(matches!(cancelled, Err(BackendError::NotPossible { .. })), "{cancelled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_dropped_at_many_points_goes_on_where_it_stopped() {
    let nodes = RedisNodes::start(6, 0).await;
    fill(&nodes, &[0, 1, 2, 3, 4, 5]).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(5).await;
    let memo = memo(&backend, &store).await;
    let writer = Writer::start(&nodes).await;
    let mut drops = 0;
    for after in (5..).step_by(4) {
        // the time goes up until one call gets through: every point in between is hit
        match timeout(Duration::from_millis(after), backend.begin_offline(&store, &memo, LONG)).await {
            Ok(Ok(Moving::Complete)) => break,
            Ok(Ok(Moving::Underway) | Err(BackendError::Unreachable { .. })) => {}
            Ok(Err(error)) => panic!("after {drops} drops: {error}"),
            Err(_) => drops += 1,
        }
    }
    assert!(drops > 10, "only {drops} drops");
    writer.stop().await;
    backend.forget(&store, LONG).await.unwrap();
    assert_all_there(&nodes, &[0, 1, 2, 3, 4]).await;
}

/// Leaves slots of node 3 as crashes at each step of a move to node 0 would. Gives them.
async fn leave_slots_half_moved(nodes: &RedisNodes) -> Vec<u16> {
    let (from, to) = (nodes.id(3).await.0, nodes.id(0).await.0);
    let mut keys: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for n in (0..keys::KEYS).filter(|n| keys::slot(&key(*n)) >= 12_288) {
        keys.entry(keys::slot(&key(n))).or_default().push(n);
    }
    // the last one is a plain value, which can be changed at one side
    let full = keys.into_iter().filter(|(_, keys)| keys.len() > 1 && keys[0] % 10 == 9);
    let slots: Vec<(u16, Vec<usize>)> = full.take(8).collect();
    assert_eq!(slots.len(), 8);
    let port = nodes.address(0).split(':').next_back().map(str::to_owned).expect("a port");
    let run = async |node: usize, words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        nodes.ask(node, command).await
    };
    for (step, (slot, keys)) in slots.iter().enumerate() {
        let text = slot.to_string();
        let setslot = ["CLUSTER", "SETSLOT", text.as_str()];
        let migrate = async |keys: &[usize], copy: bool| {
            let keys: Vec<String> = keys.iter().map(|n| key(*n)).collect();
            let mut words = vec!["MIGRATE", "127.0.0.1", port.as_str(), "", "0", "5000"];
            words.extend(copy.then_some("COPY"));
            words.push("KEYS");
            words.extend(keys.iter().map(String::as_str));
            assert_eq!(run(3, &words).await, "OK");
        };
        if step != 6 {
            run(0, &[&setslot[..], &["IMPORTING", &from]].concat()).await;
        }
        if step >= 1 {
            run(3, &[&setslot[..], &["MIGRATING", &to]].concat()).await;
        }
        match step {
            2 => migrate(&keys[..1], false).await,
            3..=5 => migrate(keys, false).await,
            7 => {
                // the answer to a MIGRATE was lost, and a client has written since
                run(3, &["SET", &key(keys[0]), "old"]).await;
                migrate(&keys[..1], true).await;
                run(3, &["SET", &key(keys[0]), &keys[0].to_string()]).await;
            }
            _ => {}
        }
        if (4..=5).contains(&step) {
            run(0, &[&setslot[..], &["NODE", &to]].concat()).await;
        }
        if step == 5 {
            run(3, &[&setslot[..], &["NODE", &to]].concat()).await;
        }
    }
    slots.into_iter().map(|(slot, _)| slot).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_left_at_each_step_of_a_move_are_finished_with_every_key() {
    let nodes = RedisNodes::start(4, 0).await;
    let all = [0, 1, 2, 3];
    fill(&nodes, &all).await;
    let before = owners(&nodes, &all).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(3).await;
    let memo = memo(&backend, &store).await;

    let slots = leave_slots_half_moved(&nodes).await;
    assert_eq!(backend.begin_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    assert_all_there(&nodes, &all).await;
    let after = owners(&nodes, &all).await;
    assert!(after.values().all(|owner| *owner != 3));
    // what had begun to move went on to where it was going
    assert!(slots.iter().all(|slot| after[slot] == 0), "{slots:?}");

    assert_eq!(backend.cancel_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    assert_eq!(owners(&nodes, &all).await, before);
    leave_slots_half_moved(&nodes).await;
    assert_eq!(backend.cancel_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    assert_eq!(owners(&nodes, &all).await, before);
    assert_all_there(&nodes, &all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_dies_half_way_leaves_the_rest_to_its_replica() {
    let mut nodes = RedisNodes::start(4, 2).await;
    fill(&nodes, &[0, 1, 2, 3]).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(0).await;
    let memo = memo(&backend, &store).await;
    go_half_way(&backend, &store, &memo).await;
    nodes.kill(0);
    // slots that were open stay so until they are seen to; unreachable until the others have chosen
    wait_for("its replica to lead, and the removal to be complete", || async {
        matches!(backend.begin_offline(&store, &memo, LONG / 20).await, Ok(Moving::Complete)).then_some(())
    })
    .await;
    wait_for("the others to forget it", || async { backend.forget(&store, LONG).await.ok() }).await;
    assert_eq!(backend.state(&store, Some(&memo)).await, Ok(StoreState::Removed));
    assert_all_there(&nodes, &[1, 2, 3, 4, 5]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_cancelled_half_way_gives_back_what_was_moved() {
    let nodes = RedisNodes::start(4, 2).await;
    let all = [0, 1, 2, 3, 4, 5];
    fill(&nodes, &all).await;
    let before = owners(&nodes, &all).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(0).await;
    let memo = memo(&backend, &store).await;
    let writer = Writer::start(&nodes).await;
    go_half_way(&backend, &store, &memo).await;
    let mut after = 20;
    let mut drops = 0;
    loop {
        match timeout(Duration::from_millis(after), backend.cancel_offline(&store, &memo, LONG)).await {
            Ok(Ok(Moving::Complete)) => break,
            Ok(Ok(Moving::Underway) | Err(BackendError::Unreachable { .. })) => {}
            Ok(Err(error)) => panic!("after {drops} drops: {error}"),
            Err(_) => drops += 1,
        }
        after += 10;
    }
    writer.stop().await;
    assert!(drops > 0);
    assert_eq!(owners(&nodes, &all).await, before);
    assert_all_there(&nodes, &all).await;
    assert_eq!(serving(&backend, &store).await, 4096);
    wait_for("its replica to be back", || async {
        // on a fast machine it was empty for a moment, and its replica may show late that it has followed the slots
        assert_eq!(backend.cancel_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
        (self::memo(&backend, &store).await == memo).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_store_is_given_everything_back_and_its_replica_returns() {
    let nodes = RedisNodes::start(4, 2).await;
    let all = [0, 1, 2, 3, 4, 5];
    fill(&nodes, &all).await;
    let before = owners(&nodes, &all).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(0).await;
    let memo = memo(&backend, &store).await;
    assert_eq!(backend.begin_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    assert_eq!(backend.cancel_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    assert_eq!(owners(&nodes, &all).await, before);
    assert_all_there(&nodes, &all).await;
    wait_for("its replica to be back", || async {
        // one that has followed the slots away may show it late, so the call is made until it has nothing to do
        assert_eq!(backend.cancel_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
        (self::memo(&backend, &store).await == memo).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_redis_gave_to_an_emptied_store_is_sent_home() {
    let nodes = RedisNodes::start(4, 2).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(0).await;
    let memo = memo(&backend, &store).await;
    assert_eq!(backend.begin_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    // as Redis itself does for a primary that its own replicas have left
    let follow = redis::cmd("CLUSTER").arg("REPLICATE").arg(&store.0).clone();
    nodes.ask(5, follow).await;
    wait_for("everybody to follow whom they followed", || async {
        assert_eq!(backend.cancel_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
        (self::memo(&backend, &store).await == memo).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_store_that_follows_another_is_given_its_slots_and_no_others() {
    let nodes = RedisNodes::start(4, 0).await;
    let all = [0, 1, 2, 3];
    fill(&nodes, &all).await;
    let before = owners(&nodes, &all).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(3).await;
    let memo = memo(&backend, &store).await;
    assert_eq!(backend.begin_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    // as Redis itself does when an emptied primary was restarted in between
    let follow = redis::cmd("CLUSTER").arg("REPLICATE").arg(&nodes.id(0).await.0).clone();
    nodes.ask(3, follow).await;
    assert_eq!(backend.cancel_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    assert_eq!(owners(&nodes, &all).await, before);
    assert_all_there(&nodes, &all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_that_leave_at_once_give_nothing_to_each_other_in_the_end() {
    let nodes = RedisNodes::start(6, 0).await;
    fill(&nodes, &[0, 1, 2, 3, 4, 5]).await;
    let backend = RedisCluster::new(nodes.config());
    let (one, other) = (nodes.id(4).await, nodes.id(5).await);
    let memos = (memo(&backend, &one).await, memo(&backend, &other).await);
    let writer = Writer::start(&nodes).await;
    for within in growing_from(900) {
        let both = tokio::join!(
            backend.begin_offline(&one, &memos.0, within),
            backend.begin_offline(&other, &memos.1, within * 4 / 3),
        );
        if both == (Ok(Moving::Complete), Ok(Moving::Complete)) {
            break;
        }
    }
    writer.stop().await;
    backend.forget(&one, LONG).await.unwrap();
    backend.forget(&other, LONG).await.unwrap();
    assert_all_there(&nodes, &[0, 1, 2, 3]).await;
    let shares = owners(&nodes, &[0, 1, 2, 3]).await;
    for node in 0..4 {
        let share = shares.values().filter(|owner| **owner == node).count();
        assert!((4090..=4102).contains(&share), "node {node} has {share} slots");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_earlier_call_has_sent_does_not_arrive_in_the_middle_of_a_later_one() {
    let nodes = RedisNodes::start(4, 0).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(3).await;
    let memo = memo(&backend, &store).await;
    let mut earlier = nodes.connect(3).await;
    let name = redis::cmd("CLIENT").arg("SETNAME").arg("tidegate-mover").clone();
    name.exec_async(&mut earlier).await.unwrap();
    let mut stranger = nodes.connect(3).await;
    assert_eq!(backend.begin_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    let late = redis::cmd("PING").query_async::<String>(&mut earlier).await;
    assert!(late.is_err(), "the earlier call's connection is still open");
    redis::cmd("PING").exec_async(&mut stranger).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_go_to_a_replica_and_come_back() {
    let nodes = RedisNodes::start(3, 3).await;
    let all = [0, 1, 2, 3, 4, 5];
    fill(&nodes, &all).await;
    let backend = RedisCluster::new(nodes.config());
    let (store, replica) = (nodes.id(0).await, nodes.id(3).await);
    let found = backend.evictors(&store).await.unwrap();
    assert_eq!(found.evictors, []);
    for _twice in 0..2 {
        backend.evict_leaders(&store, true, &found.memo, LONG).await.unwrap();
        assert_eq!(serving(&backend, &store).await, 0);
    }
    assert_eq!(serving(&backend, &replica).await, 5461);
    let present = backend.evictors(&store).await.unwrap();
    assert_eq!(present.evictors.len(), 1);
    assert_all_there(&nodes, &all).await;
    for _twice in 0..2 {
        backend.evict_leaders(&store, false, &found.memo, LONG).await.unwrap();
        assert_eq!(serving(&backend, &store).await, 5461);
    }
    assert_eq!(backend.evictors(&store).await.unwrap().evictors, []);
    assert_all_there(&nodes, &all).await;

    // one that never led does not begin to
    let found = backend.evictors(&replica).await.unwrap();
    backend.evict_leaders(&replica, true, &found.memo, LONG).await.unwrap();
    backend.evict_leaders(&replica, false, &found.memo, LONG).await.unwrap();
    let members = backend.members().await.unwrap();
    assert!(members.iter().any(|member| member.id == replica && member.role == Role::Replica));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_without_a_replica_stay_and_the_error_says_why() {
    let nodes = RedisNodes::start(3, 0).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(0).await;
    let found = backend.evictors(&store).await.unwrap();
    let refused = backend.evict_leaders(&store, true, &found.memo, LONG).await;
    assert!(matches!(refused, Err(BackendError::NotPossible { .. })), "{refused:?}");
    assert_eq!(backend.evictors(&store).await.unwrap().evictors, [], "nothing was touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_answer_is_unreachable_and_not_empty() {
    let nodes = RedisNodes::start(4, 0).await;
    let seeds = [0, 2].map(|node| Endpoint::new(nodes.url(node)));
    let patient = RedisCluster::new(nodes.config());
    let config = RedisConfig { timeout: Duration::from_millis(1_500), ..RedisConfig::new(seeds) };
    let backend = RedisCluster::new(config);
    let (store, other) = (nodes.id(1).await, nodes.id(2).await);
    let memo = memo(&patient, &store).await;
    nodes.pause(1);
    // on a busy machine others may be late as well; silence of whomever is never taken for an answer
    let is_named = |error: BackendError| match error {
        BackendError::Unreachable { whom, .. } => (whom == nodes.address(1)).then_some(()),
        other => panic!("{other:?}"),
    };
    let long = "the silent store to be named";
    wait_for(long, || async { is_named(backend.state(&store, None).await.unwrap_err()) }).await;
    wait_for(long, || async { is_named(backend.preflight(&store).await.unwrap_err()) }).await;
    wait_for(long, || async { is_named(backend.begin_offline(&store, &memo, LONG).await.unwrap_err()) })
        .await;
    wait_for(long, || async { is_named(backend.cancel_offline(&store, &memo, LONG).await.unwrap_err()) })
        .await;
    wait_for(long, || async { is_named(backend.identify(&nodes.address(1)).await.unwrap_err()) }).await;
    wait_for("a refusal to forget", || async {
        match backend.forget(&store, LONG).await.unwrap_err() {
            BackendError::NotPossible { .. } => Some(()),
            BackendError::Unreachable { .. } => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
    let state = wait_for("the others to answer", || async { backend.state(&other, None).await.ok() }).await;
    match state {
        StoreState::Serving { leaders, .. } => assert!(!leaders.complete || leaders.value == 4096),
        other => panic!("{other:?}"),
    }
    nodes.resume(1);
    wait_for("the store to answer", || async { patient.state(&store, None).await.ok() }).await;
    assert_eq!(serving(&patient, &store).await, 4096);
    wait_for("the removal", || async {
        matches!(patient.begin_offline(&store, &memo, LONG).await, Ok(Moving::Complete)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_cannot_work_is_refused_with_numbers() {
    let nodes = RedisNodes::start(3, 0).await;
    fill(&nodes, &[0, 1, 2]).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(0).await;
    let refused = |refusal| Ok(Preflight::Refused { refusal });
    let too_few = Refusal::TooFewReplicas { left: 2, needed: 3 };
    assert_eq!(backend.preflight(&store).await, refused(too_few));

    let two = RedisCluster::new(RedisConfig { primaries_min: 2, ..nodes.config() });
    memo(&two, &store).await;
    let full = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1mb").clone();
    nodes.ask(1, full).await;
    match two.preflight(&store).await.unwrap() {
        Preflight::Refused { refusal: Refusal::NoRoom { data, room } } => assert!(data > room),
        other => panic!("{other:?}"),
    }

    let away = redis::cmd("CONFIG").arg("SET").arg("cluster-replica-no-failover").arg("yes").clone();
    nodes.ask(1, away.clone()).await;
    nodes.ask(2, away).await;
    assert_eq!(two.preflight(&store).await, refused(Refusal::NoStoreForLeaders { leaders: 5461 }));

    let nobody = StoreId("0000000000000000000000000000000000000000".to_owned());
    assert!(matches!(two.preflight(&nobody).await, Err(BackendError::NotFound { .. })));
    assert_eq!(two.state(&nobody, None).await, Ok(StoreState::Unknown));
    let full = two.forget(&store, LONG).await;
    assert!(matches!(full, Err(BackendError::NotPossible { .. })), "{full:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_opens_the_way_and_is_in_no_error() {
    let nodes = RedisNodes::start_with(4, 0, Some("hunter2hunter2")).await;
    fill(&nodes, &[0, 1, 2, 3]).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(3).await;
    let memo = memo(&backend, &store).await;
    assert_eq!(backend.begin_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
    assert_all_there(&nodes, &[0, 1, 2, 3]).await;
    assert!(!format!("{backend:?}").contains("hunter2"));

    let wrong = Endpoint::new(format!("redis://:wrongword@{}", nodes.address(0)));
    let error = RedisCluster::new(RedisConfig::new([wrong])).members().await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("wrongword"), "{error:?}");
    assert!(matches!(error, BackendError::Refused { .. }), "{error:?}");
    let gone = Endpoint::new("redis://me:wrongword@127.0.0.1:1");
    let error = RedisCluster::new(RedisConfig::new([gone])).members().await.unwrap_err();
    assert!(matches!(error, BackendError::Unreachable { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("wrongword"), "{error:?}");
}
