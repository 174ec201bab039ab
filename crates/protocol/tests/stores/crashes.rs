//! The coordinator dies between any two calls, and its successor goes on from the records.

use protocol::coordinator::{Request, StoreAction};

use crate::bench::Bench;

/// Plays a story with a crash before the `nth` answer: the call may have been made or not. Returns whether there was one.
fn with_a_crash(nth: usize, made: bool, movable: bool, story: &dyn Fn(&mut Bench)) -> bool {
    let mut bench = if movable { Bench::movable(4) } else { Bench::with_stores(4) };
    bench.backend.wants_forget = nth.is_multiple_of(2);
    story(&mut bench);
    bench.mute = true;
    let mut answered = 0;
    let mut crashed = false;
    for _ in 0..80 {
        bench.office.second();
        bench.backend.look_around(bench.office.coordinator.cluster());
        bench.backend.tick();
        while let Some(order) = bench.office.backend.pop_front() {
            let matters = order.call.name() != "replicas";
            answered += usize::from(matters);
            if matters && answered == nth {
                if made {
                    let _lost = bench.backend.answer(&order.call);
                }
                bench.next_coordinator();
                crashed = true;
                break;
            }
            bench.answer(order);
        }
        for (name, member) in &bench.backend.members {
            let store = bench.office.coordinator.cluster().store(name);
            let recorded = store.is_some_and(|store| store.evictor.is_some());
            assert!(
                recorded || !member.evictors.contains("ours"),
                "{nth} {made}: {name} has one nobody wrote down"
            );
        }
    }
    let quiet = bench.is_quiet();
    assert!(quiet, "{nth} {made}: {:#?}", bench.stores());
    assert_eq!(
        bench.names().len(),
        bench.office.coordinator.cluster().store_group("kv").unwrap().replicas as usize
    );
    crashed
}

fn between_any_two_calls(movable: bool, story: &dyn Fn(&mut Bench)) {
    let mut crashes = 0;
    for nth in 1.. {
        let crashed = [false, true].map(|made| with_a_crash(nth, made, movable, story));
        crashes += 1;
        // Beyond the last call that matters there are only looks at what rests.
        if !crashed[0] || nth > 30 {
            break;
        }
    }
    assert!(crashes > 20, "{crashes}");
}

#[test]
fn a_scale_in_survives_a_crash_between_any_two_calls() {
    between_any_two_calls(false, &|bench| drop(bench.scale(3)));
}

#[test]
fn a_scale_in_that_is_cancelled_survives_a_crash_between_any_two_calls() {
    between_any_two_calls(false, &|bench| {
        bench.backend.data_pace = 1;
        bench.scale(3).unwrap();
        bench.seconds(6);
        bench.scale(4).unwrap();
    });
}

#[test]
fn a_restart_survives_a_crash_between_any_two_calls() {
    between_any_two_calls(false, &|bench| drop(bench.act("kv-1", StoreAction::Restart)));
}

#[test]
fn the_drain_of_a_movable_store_survives_a_crash_between_any_two_calls() {
    between_any_two_calls(true, &|bench| assert!(bench.office.drain(&["n2"]).is_ok()));
}

#[test]
fn an_eviction_that_is_cancelled_survives_a_crash_between_any_two_calls() {
    between_any_two_calls(false, &|bench| {
        bench.act("kv-1", StoreAction::EvictLeader).unwrap();
        bench.second();
        let _done =
            bench.office.ask(Request::Store { store: "kv-1".into(), action: StoreAction::CancelEvictLeader });
    });
}
