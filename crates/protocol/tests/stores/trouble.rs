//! A backend in trouble: said in its own words, tried again with growing pauses, and nothing is deleted on a guess.

use model::{Actual, FailureKind, Millis};
use protocol::coordinator::{Input, StoreAction};

use crate::{backend::Stage, bench::Bench};

#[test]
fn one_that_does_not_answer_is_a_wait_and_one_that_refuses_is_a_blocker() {
    let cases = [
        (FailureKind::Unreachable, "backend_unreachable", false),
        (FailureKind::Refused, "backend_error", true),
        (FailureKind::NotPossible, "backend_error", true),
    ];
    for (kind, code, blocks) in cases {
        let mut bench = Bench::with_stores(4);
        bench.backend.data_pace = 1;
        bench.scale(3).unwrap();
        bench.until("it moves", |bench| bench.offlining("kv-3") == "Active");
        bench.backend.fails = Some(kind);
        bench.seconds(5);
        assert_eq!((bench.waits("kv-3"), bench.offlining("kv-3")), (code, "Failed"));
        let wait = bench.status("kv-3").wait.unwrap();
        assert_eq!(wait.blocks, blocks);
        assert!(wait.message.contains("its own words"), "{wait:?}");
        bench.backend.fails = None;
        bench.backend.data_pace = 50;
        bench.until("it goes on by itself", |bench| bench.names().len() == 3);
    }
}

#[test]
fn what_fails_can_be_cancelled() {
    let mut bench = Bench::with_stores(4);
    bench.backend.data_pace = 1;
    bench.backend.fails_at = Some(("begin offline", FailureKind::Refused));
    bench.scale(3).unwrap();
    bench.until("it failed", |bench| bench.offlining("kv-3") == "Failed");
    bench.scale(4).unwrap();
    assert_eq!(bench.offlining("kv-3"), "Active", "cancelling");
    bench.until("it is cancelled", |bench| bench.is_quiet());
    assert_eq!(bench.offlining("kv-3"), "Cancelled");
}

#[test]
fn a_cancel_that_fails_is_tried_again() {
    let mut bench = Bench::with_stores(4);
    bench.backend.data_pace = 0;
    bench.scale(3).unwrap();
    bench.until("it moves", |bench| bench.offlining("kv-3") == "Active");
    bench.backend.fails_at = Some(("cancel offline", FailureKind::Unreachable));
    bench.scale(4).unwrap();
    bench.seconds(5);
    let condition = bench.status("kv-3").offlining.unwrap();
    assert_eq!(condition.reason.as_str(), "Failed");
    assert!(condition.message.starts_with("cancelling"), "{}", condition.message);
    bench.backend.fails_at = None;
    bench.until("it serves", |bench| bench.is_quiet());
}

#[test]
fn pauses_between_tries_grow_up_to_a_minute() {
    let mut bench = Bench::with_stores(4);
    bench.backend.fails_at = Some(("preflight", FailureKind::Unreachable));
    bench.scale(3).unwrap();
    bench.seconds(600);
    let tries = bench.backend.log.iter().filter(|call| call.starts_with("preflight")).count();
    assert!((10..=20).contains(&tries), "{tries}");
    let trouble = bench.store("kv-3").trouble.unwrap();
    assert!(trouble.next_try.since(bench.office.now) <= Millis::secs(60));
}

#[test]
fn nothing_is_deleted_while_the_backend_is_silent() {
    let mut bench = Bench::with_stores(4);
    bench.scale(3).unwrap();
    bench.until("it moves", |bench| bench.backend.of("kv-3").stage == Stage::Removing);
    bench.backend.fails = Some(FailureKind::Unreachable);
    bench.seconds(300);
    assert_eq!(bench.status("kv-3").process, Some(Actual::Ready));
    assert!(bench.office.coordinator.cluster().volume("kv-data-3").is_some());
}

#[test]
fn a_store_that_the_backend_does_not_know_any_more_is_not_deleted_on_a_guess() {
    let mut bench = Bench::with_stores(4);
    bench.backend.joins = false;
    bench.scale(3).unwrap();
    bench.backend.members.remove("kv-3");
    bench.seconds(60);
    assert_eq!(bench.waits("kv-3"), "store_not_joined");
    assert_eq!(bench.status("kv-3").process, Some(Actual::Ready));
    assert!(bench.changes().is_empty());
}

#[test]
fn an_answer_that_never_comes_is_given_up_and_what_comes_late_is_not_believed() {
    let mut bench = Bench::with_stores(4);
    bench.scale(3).unwrap();
    bench.mute = true;
    bench.seconds(5);
    let held: Vec<_> = bench.office.backend.drain(..).collect();
    assert!(!held.is_empty());
    bench.seconds(5);
    assert_eq!(bench.waits("kv-3"), "backend_unreachable");
    bench.mute = false;
    bench.until("it is gone", |bench| bench.names().len() == 3);
    for order in held {
        let result = bench.backend.answer(&order.call);
        bench.office.give(Input::Backend { call: order.id, result });
    }
    bench.seconds(5);
    assert!(bench.is_quiet());
}

#[test]
fn a_state_that_was_asked_before_something_was_changed_says_nothing() {
    let mut bench = Bench::with_stores(4);
    bench.backend.data_pace = 0;
    bench.scale(3).unwrap();
    bench.until("it moves", |bench| bench.offlining("kv-3") == "Active");
    bench.seconds(2);
    bench.scale(4).unwrap();
    // The question is asked while it still is removing, the answer comes after the cancel.
    bench.mute = true;
    bench.office.second();
    let (reads, changes): (Vec<_>, Vec<_>) =
        bench.office.backend.drain(..).partition(|order| !order.call.changes_something());
    let old: Vec<_> = reads.into_iter().map(|order| (order.id, bench.backend.answer(&order.call))).collect();
    changes.into_iter().for_each(|order| bench.answer(order));
    for (call, result) in old {
        bench.office.give(Input::Backend { call, result });
    }
    bench.mute = false;
    bench.until("it serves", |bench| bench.is_quiet());
    let cancels = bench.changes().iter().filter(|call| call.starts_with("cancel")).count();
    assert!(cancels <= 2, "{cancels}");
}

#[test]
fn one_call_that_changes_something_is_under_way_per_group() {
    let mut bench = Bench::with_stores(5);
    bench.mute = true;
    for store in ["kv-0", "kv-1", "kv-2"] {
        bench.act(store, StoreAction::EvictLeader).unwrap();
    }
    for _ in 0..30 {
        bench.office.second();
        bench.backend.look_around(bench.office.coordinator.cluster());
        let changes = bench.office.backend.iter().filter(|order| order.call.changes_something()).count();
        assert!(changes <= 1, "{changes}");
        // Questions are answered, the change is not.
        let (reads, changes): (Vec<_>, Vec<_>) =
            bench.office.backend.drain(..).partition(|order| !order.call.changes_something());
        bench.office.backend.extend(changes);
        reads.into_iter().for_each(|order| bench.answer(order));
        if bench.office.now.0.is_multiple_of(7) {
            bench.office.backend.clear();
        }
    }
}

#[test]
fn nothing_is_changed_in_a_backend_without_time_left_in_office() {
    let mut bench = Bench::with_stores(4);
    let until = bench.office.now + Millis(600);
    bench.office.give(Input::OfficeHolds { until });
    bench.scale(3).unwrap();
    bench.seconds(30);
    assert!(bench.changes().is_empty(), "{:?}", bench.changes());
    let until = bench.office.now + Millis::secs(3);
    bench.office.give(Input::OfficeHolds { until });
    bench.mute = true;
    bench.office.second();
    let made: Vec<_> = bench.office.backend.iter().filter(|order| order.call.changes_something()).collect();
    assert!(made.iter().all(|order| order.until < until), "over before the lease is");
}

#[test]
fn without_the_store_nothing_is_asked_of_a_backend_that_depends_on_it() {
    let mut bench = Bench::with_stores(4);
    bench.act("kv-0", StoreAction::EvictLeader).unwrap();
    bench.office.store = crate::office::StoreIs::Away;
    bench.seconds(30);
    assert!(bench.changes().is_empty(), "{:?}", bench.changes());
    bench.office.store = crate::office::StoreIs::Well;
    bench.until("it is evicted", |bench| bench.backend.of("kv-0").evictors.contains("ours"));
}
