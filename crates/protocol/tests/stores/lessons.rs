//! How others' stores failed, and that ours do not. Numbers are those of docs/lessons.md.

use model::{Actual, BackendRefusal, FailureKind};
use protocol::coordinator::StoreAction;

use crate::{backend::Stage, bench::Bench};

#[test]
fn lesson_29_an_evictor_is_recorded_before_it_is_added_and_never_outlives_its_reason() {
    let mut bench = Bench::with_stores(3);
    bench.act("kv-0", StoreAction::Restart).unwrap();
    for _ in 0..60 {
        for (name, member) in &bench.backend.members {
            let recorded = bench.store(name).evictor.is_some();
            assert!(recorded || !member.evictors.contains("ours"), "{name} has one that nobody wrote down");
        }
        bench.second();
    }
    assert!(bench.is_quiet());
}

#[test]
fn lesson_29_somebody_elses_evictor_is_used_and_never_removed() {
    let mut bench = Bench::with_stores(3);
    bench.backend.of_mut("kv-0").evictors.insert("theirs");
    bench.act("kv-0", StoreAction::Restart).unwrap();
    bench.until("it has restarted", |bench| bench.store("kv-0").restart.is_none());
    bench.seconds(20);
    assert_eq!(bench.backend.of("kv-0").evictors.iter().collect::<Vec<_>>(), [&"theirs"]);
    assert!(bench.changes().is_empty(), "{:?}", bench.changes());
}

#[test]
fn lesson_29_an_evictor_is_kept_until_the_new_process_is_ready() {
    let mut bench = Bench::with_stores(3);
    bench.act("kv-0", StoreAction::Restart).unwrap();
    bench.office.manners("n1").starts = false;
    bench.seconds(60);
    assert_eq!(bench.waits("kv-0"), "replacement_starting");
    assert!(bench.backend.of("kv-0").evictors.contains("ours"), "leaders would come back to nobody");
    bench.office.manners("n1").starts = true;
    bench.until("it has restarted", |bench| bench.is_quiet());
}

#[test]
fn lesson_30_a_refusal_comes_before_anything_is_touched_and_is_a_blocker_in_the_backends_words() {
    let refusals = [
        (BackendRefusal::TooFewReplicas { left: 2, needed: 3 }, "replicas_not_enough", "needs 3"),
        (BackendRefusal::NoStoreForLeaders { leaders: 20 }, "no_store_for_leader", "20 leaders"),
        (BackendRefusal::Other { words: "region 7 has a down peer".into() }, "backend_error", "region 7"),
    ];
    for (refusal, code, words) in refusals {
        let mut bench = Bench::with_stores(4);
        bench.backend.refuses = Some(refusal);
        bench.scale(3).unwrap();
        bench.seconds(30);
        assert_eq!((bench.waits("kv-3"), bench.offlining("kv-3")), (code, "Pending"));
        let wait = bench.status("kv-3").wait.unwrap();
        assert!(wait.blocks && wait.message.contains(words), "{wait:?}");
        assert!(bench.changes().is_empty(), "{:?}", bench.changes());
        bench.backend.refuses = None;
        bench.until("it goes on by itself", |bench| bench.names().len() == 3);
    }
}

#[test]
fn lesson_31_a_backend_that_disagrees_with_what_was_recorded_is_believed() {
    let mut bench = Bench::with_stores(4);
    bench.backend.data_pace = 1;
    bench.scale(3).unwrap();
    bench.until("it moves", |bench| bench.backend.of("kv-3").stage == Stage::Removing);
    // Somebody cancels it behind our back: it is asked for again.
    bench.backend.of_mut("kv-3").stage = Stage::Serving;
    bench.until("it moves again", |bench| bench.backend.of("kv-3").stage == Stage::Removing);
    bench.scale(4).unwrap();
    bench.until("it serves", |bench| bench.is_quiet());
    // Somebody begins it behind our back: it is taken back.
    bench.backend.of_mut("kv-3").stage = Stage::Removing;
    bench.until("it serves again", |bench| bench.backend.of("kv-3").stage == Stage::Serving);
}

#[test]
fn lesson_32_the_wait_for_leaders_counts_from_its_own_start() {
    let mut bench = Bench::with_stores(4);
    bench.backend.leader_pace = 0;
    // The store is old, and so is everything else about it.
    bench.seconds(1000);
    bench.scale(3).unwrap();
    bench.until("it is evicting", |bench| bench.backend.of("kv-3").evictors.contains("ours"));
    bench.seconds(55);
    assert_eq!(bench.backend.of("kv-3").stage, Stage::Serving, "its minute is not over");
    bench.next_coordinator();
    bench.seconds(4);
    assert_eq!(bench.backend.of("kv-3").stage, Stage::Serving, "nor is it for the next coordinator");
    bench.seconds(10);
    assert_eq!(bench.backend.of("kv-3").stage, Stage::Removing, "then on, with leaders");
}

#[test]
fn lesson_33_those_who_were_marked_are_rescued_last() {
    let mut bench = Bench::with_stores(6);
    bench.backend.data_pace = 0;
    bench.act("kv-1", StoreAction::Mark).unwrap();
    bench.scale(4).unwrap();
    assert_eq!(bench.offline(), ["kv-1", "kv-5"]);
    bench.until("both move", |bench| bench.backend.serving() == 4);
    bench.seconds(2);
    bench.scale(5).unwrap();
    assert_eq!(bench.offline(), ["kv-1"], "the one that is marked goes on");
}

#[test]
fn lesson_33_of_the_others_the_one_with_most_data_left() {
    let mut bench = Bench::with_stores(6);
    bench.backend.data_pace = 0;
    bench.scale(4).unwrap();
    assert_eq!(bench.offline(), ["kv-4", "kv-5"]);
    bench.until("both move", |bench| bench.backend.serving() == 4);
    bench.backend.of_mut("kv-4").data = 7;
    bench.seconds(3);
    bench.scale(5).unwrap();
    assert_eq!(bench.offline(), ["kv-4"]);
}

#[test]
fn lesson_34_a_zero_that_is_not_complete_is_no_zero() {
    let mut bench = Bench::with_stores(4);
    bench.backend.incomplete = true;
    bench.act("kv-0", StoreAction::Restart).unwrap();
    bench.seconds(100);
    assert_eq!(bench.status("kv-0").process, Some(Actual::Ready));
    assert_eq!(bench.waits("kv-0"), "leaders_remaining");
    assert!(bench.status("kv-0").wait.unwrap().message.contains("not complete"));
    bench.backend.incomplete = false;
    bench.until("it has restarted", |bench| bench.is_quiet());
}

#[test]
fn lesson_34_nothing_is_forgotten_on_counts_that_are_not_complete() {
    let mut bench = Bench::with_stores(4);
    bench.backend.wants_forget = true;
    bench.scale(3).unwrap();
    bench.until("it moves", |bench| bench.backend.of("kv-3").stage == Stage::Removing);
    bench.backend.incomplete = true;
    bench.seconds(60);
    assert_eq!(bench.backend.of("kv-3").data, 0);
    assert_eq!(bench.backend.of("kv-3").stage, Stage::Removing);
    assert!(!bench.backend.log.contains(&"forget kv-3".to_owned()));
    bench.backend.incomplete = false;
    bench.until("it is gone", |bench| bench.names().len() == 3);
}

#[test]
fn lesson_35_without_room_for_its_data_a_store_stays_as_it_is() {
    let mut bench = Bench::with_stores(4);
    bench.backend.refuses = Some(BackendRefusal::NoRoom { data: 100, room: 10 });
    bench.scale(3).unwrap();
    bench.seconds(60);
    assert_eq!(bench.waits("kv-3"), "no_space_for_data");
    assert!(bench.changes().is_empty());
    assert_eq!(bench.backend.of("kv-3").leaders, 20);
}

#[test]
fn lesson_29_one_that_cannot_be_evicted_leaves_all_the_same() {
    let mut bench = Bench::with_stores(4);
    bench.backend.fails_at = Some(("evict leaders", FailureKind::NotPossible));
    bench.scale(3).unwrap();
    bench.until("it is gone", |bench| bench.names().len() == 3);
}
