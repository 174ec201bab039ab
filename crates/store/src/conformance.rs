//! What holds for every store, as tests. [`conformance!`](crate::conformance) makes one test of each
//! function, for a fixture that gives an empty store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::contract::{
    BYTES_PER_TXN_MAX, Campaign, Candidate, Committed, Follow, KeyRange, OPS_PER_TXN_MAX, Office, Op,
    Position, Store,
};
use crate::error::{CommitError, KeepAliveError, LoadError, Refusal, WatchError};
use crate::testing::{PATIENCE, commit_surely, wait_for};

/// An empty state, and ways to get at it.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A handle of its own, as another candidate's process would have.
    async fn store(&self) -> Arc<dyn Store>;

    /// Whether it has more than one candidate, so that an office in use is not given away.
    fn is_contested(&self) -> bool;

    /// Whether [`Store::compact`] forgets.
    fn compacts(&self) -> bool;
}

/// One test for each function of this suite: `conformance!(fixture)`, where `fixture` is an async
/// function without arguments.
#[macro_export]
macro_rules! conformance {
    ($fixture:path) => {
        $crate::conformance!(@ $fixture:
            transactions_are_taken_in_order_and_raise_the_head
            a_transaction_with_another_head_is_refused_and_writes_nothing
            a_transaction_sent_twice_is_applied_once_and_the_second_says_so
            the_commit_of_an_office_that_was_given_back_is_refused
            the_commit_of_an_old_office_is_refused_once_another_is_elected
            the_term_rises_with_each_office
            an_office_in_use_is_not_given_to_another
            of_many_who_try_at_once_one_is_elected
            an_office_that_is_not_kept_alive_ends
            keeping_a_lost_office_alive_says_lost
            an_office_kept_alive_outlives_its_first_lease
            who_is_in_office_is_seen_by_others_and_watched
            resigning_twice_is_no_error
            deleted_records_are_gone
            of_two_writes_to_one_key_in_a_transaction_the_last_counts
            a_full_transaction_is_taken_and_an_oversized_one_is_not
            values_come_back_byte_for_byte
            a_load_gives_the_ranges_asked_for_and_nothing_else
            a_load_sees_one_moment_while_writes_go_on
            a_load_whose_receiver_went_away_ends
            a_follower_sees_every_transaction_after_its_position_in_order
            a_follower_that_comes_back_misses_nothing
            a_follower_behind_what_was_compacted_is_told_to_load_again
            load_then_follow_gives_the_same_records_as_a_later_load
            a_candidate_is_listed_until_it_withdraws
            a_candidate_vanishes_when_its_lease_runs_out
            the_status_can_be_asked_for
        );
    };
    (@ $fixture:path: $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::conformance::$name(&$fixture().await).await;
            }
        )*
    };
}

/// Not so short that a busy machine loses it between two lines.
const TTL: Duration = Duration::from_secs(20);

/// For tests that wait for its end. etcd makes at least 2 s of it.
const SHORT_TTL: Duration = Duration::from_secs(1);

fn candidate(id: &str) -> Candidate {
    Candidate::new(id, format!("{id}.example:4600"))
}

async fn elect(store: &dyn Store, id: &str, ttl: Duration) -> Office {
    wait_for("office", || async {
        store.office(&candidate(id), ttl).await.expect("the store answers").elected()
    })
    .await
}

/// What `prefix` holds, and when.
async fn load(store: &Arc<dyn Store>, ranges: &[KeyRange]) -> (BTreeMap<Vec<u8>, Vec<u8>>, Position) {
    let (sink, mut batches) = mpsc::channel(2);
    let (store, ranges) = (Arc::clone(store), ranges.to_vec());
    let loading = tokio::spawn(async move { store.load(&ranges, sink).await });
    let mut records = BTreeMap::new();
    while let Some(batch) = batches.recv().await {
        for record in batch {
            let twice = records.insert(record.key.to_vec(), record.value.to_vec());
            assert!(twice.is_none(), "{:?} was loaded twice", record.key);
        }
    }
    let position = loading.await.expect("no panic").expect("the store answers");
    (records, position)
}

async fn all(store: &Arc<dyn Store>) -> (BTreeMap<Vec<u8>, Vec<u8>>, Position) {
    load(store, &[KeyRange { start: b"a".to_vec(), end: b"z".to_vec() }]).await
}

async fn next(follow: &mut Follow) -> Result<Committed, WatchError> {
    timeout(PATIENCE, follow.next()).await.expect("a transaction in time")
}

fn number(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

fn expect_office_lost(result: Result<(), CommitError>) {
    match result {
        Err(CommitError::Refused { why: Refusal::OfficeLost { .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
}

pub async fn transactions_are_taken_in_order_and_raise_the_head(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    assert_eq!(store.head().await.expect("answers"), 0);
    for n in 1..=20 {
        store.commit(&office, n, &[Op::put("n/one", number(n))]).await.expect("taken");
        assert_eq!(store.head().await.expect("answers"), n);
    }
    let (records, position) = all(&store).await;
    assert_eq!(position.head, 20);
    assert_eq!(records, BTreeMap::from([(b"n/one".to_vec(), number(20))]));
}

pub async fn a_transaction_with_another_head_is_refused_and_writes_nothing(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    store.commit(&office, 1, &[Op::put("n/one", "1")]).await.expect("taken");
    for wrong in [1, 3, 100] {
        match store.commit(&office, wrong, &[Op::put("n/two", "2")]).await {
            Err(error @ CommitError::Refused { .. }) => {
                assert!(!error.may_be_applied());
                let CommitError::Refused { why, .. } = error else { unreachable!() };
                assert_eq!(why, Refusal::HeadIsOther { expected: wrong - 1, found: Some(1) });
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(all(&store).await.0.len(), 1);
}

pub async fn a_transaction_sent_twice_is_applied_once_and_the_second_says_so(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    let ops = [Op::put("n/one", "1")];
    store.commit(&office, 1, &ops).await.expect("taken");
    match store.commit(&office, 1, &ops).await {
        Err(CommitError::Refused { why: Refusal::HeadIsOther { found: Some(1), .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
    commit_surely(&*store, &office, 2, &ops).await.expect("taken");
    assert_eq!(store.head().await.expect("answers"), 2);
}

pub async fn the_commit_of_an_office_that_was_given_back_is_refused(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    store.resign(&office).await.expect("answers");
    expect_office_lost(store.commit(&office, 1, &[Op::put("n/one", "1")]).await);
    assert_eq!(store.head().await.expect("answers"), 0);
}

pub async fn the_commit_of_an_old_office_is_refused_once_another_is_elected(fixture: &dyn Fixture) {
    let (first, second) = (fixture.store().await, fixture.store().await);
    let old = elect(&*first, "a", SHORT_TTL).await;
    let new = elect(&*second, "b", TTL).await;
    // right number, right connection: only the office is wrong
    match first.commit(&old, 1, &[Op::put("n/one", "old")]).await {
        Err(CommitError::Refused { why: Refusal::OfficeLost { term, holder: Some(holder) }, .. }) => {
            assert_eq!((term, holder.term, holder.candidate), (old.term, new.term, candidate("b")));
        }
        other => panic!("{other:?}"),
    }
    second.commit(&new, 1, &[Op::put("n/one", "new")]).await.expect("taken");
    expect_office_lost(first.commit(&old, 2, &[Op::put("n/one", "old")]).await);
    assert_eq!(all(&second).await.0, BTreeMap::from([(b"n/one".to_vec(), b"new".to_vec())]));
}

pub async fn the_term_rises_with_each_office(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let mut last = 0;
    for id in ["a", "b", "a", "a"] {
        let office = elect(&*store, id, TTL).await;
        assert!(office.term > last, "{} after {last}", office.term);
        last = office.term;
        store.resign(&office).await.expect("answers");
    }
}

pub async fn an_office_in_use_is_not_given_to_another(fixture: &dyn Fixture) {
    if !fixture.is_contested() {
        return;
    }
    let (first, second) = (fixture.store().await, fixture.store().await);
    let office = elect(&*first, "a", TTL).await;
    match second.office(&candidate("b"), TTL).await.expect("answers") {
        Campaign::HeldBy(holder) => {
            assert_eq!((holder.candidate, holder.term), (candidate("a"), office.term))
        }
        Campaign::Elected(office) => panic!("{office:?}"),
    }
    first.commit(&office, 1, &[]).await.expect("still in office");
}

pub async fn of_many_who_try_at_once_one_is_elected(fixture: &dyn Fixture) {
    if !fixture.is_contested() {
        return;
    }
    let stores = [fixture.store().await, fixture.store().await, fixture.store().await];
    for _ in 0..10 {
        let tries = stores.iter().flat_map(|store| {
            ["a", "b", "c"].map(|id| async move { store.office(&candidate(id), TTL).await.expect("answers") })
        });
        let outcomes = futures_util::future::join_all(tries).await;
        let elected: Vec<Office> = outcomes.into_iter().filter_map(Campaign::elected).collect();
        assert_eq!(elected.len(), 1, "{elected:?}");
        stores[0].resign(&elected[0]).await.expect("answers");
    }
}

pub async fn an_office_that_is_not_kept_alive_ends(fixture: &dyn Fixture) {
    if !fixture.is_contested() {
        return;
    }
    let store = fixture.store().await;
    let office = elect(&*store, "a", SHORT_TTL).await;
    assert!(office.valid_for >= SHORT_TTL);
    wait_for("the office to end", || async {
        store.holder().await.expect("answers").is_none().then_some(())
    })
    .await;
    expect_office_lost(store.commit(&office, 1, &[]).await);
}

pub async fn keeping_a_lost_office_alive_says_lost(fixture: &dyn Fixture) {
    let (first, second) = (fixture.store().await, fixture.store().await);
    let old = elect(&*first, "a", SHORT_TTL).await;
    let new = elect(&*second, "b", TTL).await;
    assert!(matches!(first.keep_alive(&old).await, Err(KeepAliveError::Lost { term }) if term == old.term));
    assert!(second.keep_alive(&new).await.expect("holds") >= TTL);
    second.resign(&new).await.expect("answers");
    assert!(matches!(second.keep_alive(&new).await, Err(KeepAliveError::Lost { .. })));
}

pub async fn an_office_kept_alive_outlives_its_first_lease(fixture: &dyn Fixture) {
    let ttl = Duration::from_secs(3);
    let store = fixture.store().await;
    let office = elect(&*store, "a", ttl).await;
    let begun = std::time::Instant::now();
    let mut last = begun;
    while begun.elapsed() < office.valid_for * 2 {
        match store.keep_alive(&office).await {
            Ok(valid_for) => assert!(valid_for >= ttl),
            // this machine stood still for longer than the lease: nothing can be said
            Err(KeepAliveError::Lost { .. }) if last.elapsed() >= ttl => return,
            Err(error) => panic!("{error}"),
        }
        last = std::time::Instant::now();
        tokio::time::sleep(ttl / 10).await;
    }
    assert_eq!(store.holder().await.expect("answers").map(|holder| holder.term), Some(office.term));
}

pub async fn who_is_in_office_is_seen_by_others_and_watched(fixture: &dyn Fixture) {
    let (first, second) = (fixture.store().await, fixture.store().await);
    let mut seen = second.watch_holder().await.expect("answers");
    assert_eq!(*seen.borrow(), None);
    assert_eq!(second.holder().await.expect("answers"), None);
    for id in ["a", "b"] {
        let office = elect(&*first, id, TTL).await;
        let wanted = |holder: &Option<crate::contract::Holder>| {
            holder.as_ref().is_some_and(|h| h.candidate == candidate(id) && h.term == office.term)
        };
        timeout(PATIENCE, seen.wait_for(wanted)).await.expect("in time").expect("the watch goes on");
        assert!(wanted(&second.holder().await.expect("answers")));
        first.resign(&office).await.expect("answers");
        timeout(PATIENCE, seen.wait_for(Option::is_none)).await.expect("in time").expect("the watch goes on");
    }
}

pub async fn resigning_twice_is_no_error(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let old = elect(&*store, "a", TTL).await;
    store.resign(&old).await.expect("answers");
    store.resign(&old).await.expect("answers");
    let new = elect(&*store, "a", TTL).await;
    store.resign(&old).await.expect("answers");
    store.commit(&new, 1, &[]).await.expect("the old one's resignation does not end the new one");
}

pub async fn deleted_records_are_gone(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    store.commit(&office, 1, &[Op::put("n/one", "1"), Op::put("n/two", "2")]).await.expect("taken");
    store.commit(&office, 2, &[Op::delete("n/one"), Op::delete("n/never-was")]).await.expect("taken");
    assert_eq!(all(&store).await.0, BTreeMap::from([(b"n/two".to_vec(), b"2".to_vec())]));
}

pub async fn of_two_writes_to_one_key_in_a_transaction_the_last_counts(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    let ops = [
        Op::put("n/one", "1"),
        Op::put("n/two", "1"),
        Op::delete("n/one"),
        Op::put("n/three", "1"),
        Op::put("n/two", "2"),
        Op::delete("n/three"),
        Op::put("n/three", "3"),
    ];
    store.commit(&office, 1, &ops).await.expect("taken");
    let wanted = BTreeMap::from([(b"n/two".to_vec(), b"2".to_vec()), (b"n/three".to_vec(), b"3".to_vec())]);
    assert_eq!(all(&store).await.0, wanted);
}

pub async fn a_full_transaction_is_taken_and_an_oversized_one_is_not(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    let each = BYTES_PER_TXN_MAX / OPS_PER_TXN_MAX - 5;
    let op = |n: usize| Op::put(format!("n/{n:03}"), vec![b'x'; each]);
    let full: Vec<Op> = (0..OPS_PER_TXN_MAX).map(op).collect();
    store.commit(&office, 1, &full).await.expect("taken");
    assert_eq!(all(&store).await.0.len(), OPS_PER_TXN_MAX);
    let oversized = [Op::put("n/big", vec![b'x'; BYTES_PER_TXN_MAX])];
    match store.commit(&office, 2, &oversized).await {
        Err(error @ CommitError::TooLarge { .. }) => assert!(!error.may_be_applied()),
        other => panic!("{other:?}"),
    }
    store.commit(&office, 2, &[]).await.expect("an empty transaction is one, too");
}

pub async fn values_come_back_byte_for_byte(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    store
        .commit(&office, 1, &[Op::put("n/bytes", every_byte.clone()), Op::put("n/empty", "")])
        .await
        .expect("taken");
    let wanted = BTreeMap::from([(b"n/bytes".to_vec(), every_byte), (b"n/empty".to_vec(), Vec::new())]);
    assert_eq!(all(&store).await.0, wanted);
}

pub async fn a_load_gives_the_ranges_asked_for_and_nothing_else(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    let mut head = 0;
    for shard in 0..16 {
        head += 1;
        let op = |n: usize| Op::put(format!("i/{shard:02x}/{n:04}"), format!("{shard}-{n}"));
        store.commit(&office, head, &(0..100).map(op).collect::<Vec<_>>()).await.expect("taken");
    }
    store
        .commit(&office, head + 1, &[Op::put("s/web", "web"), Op::put("i0", "next to it")])
        .await
        .expect("taken");
    let ranges = [
        KeyRange::prefix("i/03/"),
        KeyRange::prefix("s/"),
        KeyRange::prefix("i/0f/"),
        KeyRange { start: b"i/07/0010".to_vec(), end: b"i/07/0020".to_vec() },
        KeyRange::prefix("v/"),
    ];
    let (records, position) = load(&store, &ranges).await;
    assert_eq!((records.len(), position.head), (100 + 1 + 100 + 10, head + 1));
    assert_eq!(records[&b"i/0f/0099".to_vec()], b"15-99");
    assert!(!records.contains_key(b"i/07/0020".as_slice()));
    assert_eq!(load(&store, &[]).await.0.len(), 0);
}

pub async fn a_load_sees_one_moment_while_writes_go_on(fixture: &dyn Fixture) {
    let (writer, reader) = (fixture.store().await, fixture.store().await);
    let office = elect(&*writer, "a", TTL * 3).await;
    let keys: Vec<String> = (0..32).map(|shard| format!("i/{shard:02x}/one")).collect();
    let ranges: Vec<KeyRange> = (0..32).map(|shard| KeyRange::prefix(format!("i/{shard:02x}/"))).collect();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let writing = tokio::spawn(async move {
        let mut head = 0;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            head += 1;
            let ops: Vec<Op> = keys.iter().map(|key| Op::put(key.as_str(), number(head))).collect();
            commit_surely(&*writer, &office, head, &ops).await.expect("taken");
        }
        head
    });
    let mut last = 0;
    for _ in 0..20 {
        let (records, position) = load(&reader, &ranges).await;
        assert!(position.head >= last);
        last = position.head;
        assert_eq!(records.len(), if last == 0 { 0 } else { 32 });
        assert!(records.values().all(|value| *value == number(last)), "torn at {last}");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let head = writing.await.expect("no panic");
    assert_eq!(load(&reader, &ranges).await.1.head, head);
}

pub async fn a_load_whose_receiver_went_away_ends(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    store.commit(&office, 1, &[Op::put("n/one", "1")]).await.expect("taken");
    let (sink, batches) = mpsc::channel(1);
    drop(batches);
    assert!(matches!(store.load(&[KeyRange::prefix("n/")], sink).await, Err(LoadError::SinkClosed)));
}

pub async fn a_follower_sees_every_transaction_after_its_position_in_order(fixture: &dyn Fixture) {
    let (writer, reader) = (fixture.store().await, fixture.store().await);
    let office = elect(&*writer, "a", TTL).await;
    for n in 1..=5 {
        writer.commit(&office, n, &[Op::put("n/one", number(n))]).await.expect("taken");
    }
    let (_, position) = all(&reader).await;
    let mut follow = reader.watch(position).await.expect("answers");
    for n in 6..=60 {
        let ops = [
            Op::put("n/one", number(n)),
            Op::put(format!("s/{n}"), number(n)),
            Op::delete(format!("s/{}", n - 1)),
        ];
        writer.commit(&office, n, &ops).await.expect("taken");
        // an office changing hands in between is none of a follower's business
        let presence = writer.announce(&candidate("c"), TTL).await.expect("answers");
        presence.withdraw().await;
    }
    let mut revision = position.revision;
    for n in 6..=60 {
        let committed = next(&mut follow).await.expect("goes on");
        assert_eq!(committed.head, n);
        assert!(committed.revision > revision);
        revision = committed.revision;
        assert!(committed.ops.contains(&Op::put("n/one", number(n))), "{committed:?}");
        assert!(committed.ops.contains(&Op::put(format!("s/{n}"), number(n))), "{committed:?}");
        assert!(n == 6 || committed.ops.contains(&Op::delete(format!("s/{}", n - 1))), "{committed:?}");
    }
}

pub async fn a_follower_that_comes_back_misses_nothing(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    let (_, mut position) = all(&store).await;
    for round in 0..5 {
        let mut follow = store.watch(position).await.expect("answers");
        for n in 1..=6 {
            store.commit(&office, round * 6 + n, &[Op::put("n/one", number(n))]).await.expect("taken");
        }
        // it goes away after half of them
        for _ in 0..3 {
            let committed = next(&mut follow).await.expect("goes on");
            assert_eq!(committed.head, position.head + 1);
            position = Position { head: committed.head, revision: committed.revision };
        }
    }
}

pub async fn a_follower_behind_what_was_compacted_is_told_to_load_again(fixture: &dyn Fixture) {
    if !fixture.compacts() {
        return;
    }
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    let (_, begin) = all(&store).await;
    for n in 1..=10 {
        store.commit(&office, n, &[Op::put("n/one", number(n))]).await.expect("taken");
    }
    let (_, now) = all(&store).await;
    store.compact(now.revision).await.expect("answers");
    store.compact(now.revision).await.expect("again is no error");
    let mut late = store.watch(begin).await.expect("answers");
    assert!(matches!(next(&mut late).await, Err(WatchError::Compacted { .. })));
    assert!(matches!(next(&mut late).await, Err(WatchError::Ended)));
    let mut follow = store.watch(now).await.expect("answers");
    store.commit(&office, 11, &[Op::put("n/one", "11")]).await.expect("taken");
    assert_eq!(next(&mut follow).await.expect("goes on").head, 11);
    assert_eq!(all(&store).await.0.len(), 1);
}

pub async fn load_then_follow_gives_the_same_records_as_a_later_load(fixture: &dyn Fixture) {
    let (writer, reader) = (fixture.store().await, fixture.store().await);
    let office = elect(&*writer, "a", TTL * 3).await;
    let writing = tokio::spawn(async move {
        for n in 1..=200_u64 {
            let ops =
                [Op::put(format!("n/{}", n * 7 % 31), number(n)), Op::delete(format!("n/{}", n * 5 % 31))];
            commit_surely(&*writer, &office, n, &ops).await.expect("taken");
        }
    });
    wait_for("some writes", || async { (reader.head().await.expect("answers") > 20).then_some(()) }).await;
    let (mut records, position) = all(&reader).await;
    let mut follow = reader.watch(position).await.expect("answers");
    for expected in position.head + 1..=200 {
        let committed = next(&mut follow).await.expect("goes on");
        assert_eq!(committed.head, expected);
        for op in committed.ops {
            match op.value {
                Some(value) => records.insert(op.key, value),
                None => records.remove(&op.key),
            };
        }
    }
    writing.await.expect("no panic");
    assert_eq!(records, all(&reader).await.0);
}

pub async fn a_candidate_is_listed_until_it_withdraws(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    assert_eq!(store.candidates().await.expect("answers"), []);
    let a = store.announce(&candidate("a"), TTL).await.expect("answers");
    let b = store.announce(&candidate("b"), TTL).await.expect("answers");
    assert_eq!(store.candidates().await.expect("answers"), [candidate("a"), candidate("b")]);
    a.withdraw().await;
    assert_eq!(store.candidates().await.expect("answers"), [candidate("b")]);
    b.withdraw().await;
    assert_eq!(store.candidates().await.expect("answers"), []);
}

pub async fn a_candidate_vanishes_when_its_lease_runs_out(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let stays = store.announce(&candidate("a"), SHORT_TTL).await.expect("answers");
    drop(store.announce(&candidate("b"), SHORT_TTL).await.expect("answers"));
    let gone =
        || async { (!store.candidates().await.expect("answers").contains(&candidate("b"))).then_some(()) };
    wait_for("the one that is not kept to vanish", gone).await;
    // a busy machine may let the other one's lease slip; then it appears again by itself
    let there =
        || async { store.candidates().await.expect("answers").contains(&candidate("a")).then_some(()) };
    wait_for("the one that is kept", there).await;
    stays.withdraw().await;
}

pub async fn the_status_can_be_asked_for(fixture: &dyn Fixture) {
    let store = fixture.store().await;
    let office = elect(&*store, "a", TTL).await;
    store.commit(&office, 1, &[Op::put("n/one", "1")]).await.expect("taken");
    let status = store.status().await.expect("answers");
    assert!(!status.description.is_empty() && status.used_bytes > 0 && !status.space_alarm);
    assert!(status.revision >= 1);
}
