//! One test for each way in which systems of this kind failed, as far as feeds go.

use std::collections::{BTreeMap, BTreeSet};

use model::{Code, FeedName, Millis, Roles};
use protocol::{coordinator::FeedLimits, message::feed::Phase};

use crate::bench::*;

/// Spans that are at work on one node and made ready on another, or stopped and not yet started.
fn on_the_move(bench: &Bench) -> usize {
    let mut on: BTreeMap<&Key, BTreeSet<Name>> = BTreeMap::new();
    for machine in bench.machines.values() {
        for key in machine.tasks.keys() {
            on.entry(key).or_default().insert(machine.name);
        }
    }
    on.values().filter(|nodes| nodes.len() > 1).count()
}

#[test]
fn lesson_02_dispatchers_whose_maintainer_died_count_until_their_node_says_that_they_are_gone() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    bench.lose(|letter| letter.stops("n1"));
    bench.drain("n1");
    bench.pass(Millis(500));
    let left = bench.count("orders", "n1");
    assert!(left > 0);
    bench.kill("n3");
    bench.lift();
    bench.until("nobody maintains it", |bench| bench.acting("orders").is_empty());
    for _ in 0..100 {
        bench.pass(Millis(50));
        let empty = bench.tasks("n1") == 0;
        assert!(empty || bench.drained("n1") == "draining", "it ended with {} left", bench.tasks("n1"));
    }
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn lesson_02_a_node_that_falls_silent_is_not_taken_for_an_empty_one() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    bench.hold(|letter| letter.is_ready_at("n2") || letter.is_ready_at("n3"));
    bench.drain("n1");
    bench.pass(Millis(300));
    bench.cut("n1", COORDINATOR);
    bench.lift();
    bench.until("its last dispatcher has left", |bench| bench.tasks("n1") == 0);
    bench.pass(Millis(1000));
    assert_eq!(bench.drained("n1"), "draining", "it has not said so");
    bench.mend_all();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
}

#[test]
fn lesson_14_a_drain_outlives_its_coordinator_and_can_be_cancelled_under_the_next_one() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.lose(Letter::quiesces);
    bench.drain("n1");
    bench.pass(Millis(500));
    bench.fail_over();
    bench.pass(Millis(500));
    assert_eq!(bench.drained("n1"), "draining");
    // Whatever else there is to do goes on meanwhile.
    bench.feed("users", 3);
    assert_eq!((bench.count("users", "n1"), bench.maintainer("users") == "n1"), (0, false));
    bench.cancel("n1");
    assert_eq!(bench.drained("n1"), "cancelled");
    bench.lift();
    bench.goes_on("orders");
    bench.until("the node takes part again", |bench| bench.acting("orders").len() == 1);
    bench.feed("clicks", 9);
    assert!(bench.count("clicks", "n1") > 0);
}

#[test]
fn lesson_19_a_restarted_process_does_not_inherit_what_its_earlier_life_acknowledged() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.drain("n1");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert!(bench.inventory("n3").is_some());
    bench.lose(|letter| letter.announces_roster("n3"));
    bench.restart("n3");
    let since = bench.mark();
    bench.pass(Millis(1500));
    assert_eq!(bench.inventory("n3"), None, "this life has acknowledged nothing");
    bench.apply_together(&["a", "b", "c", "d"]);
    bench.pass(Millis(1500));
    for feed in ["a", "b", "c", "d"] {
        assert_eq!(bench.maintainer(feed), "n2");
    }
    assert!(bench.tables.begun.iter().all(|begun| begun.on != "n3" || begun.at < since));
    bench.lift();
    bench.until("it takes part again", |bench| bench.inventory("n3").is_some());
    bench.goes_on("orders");
}

#[test]
fn lesson_20_a_destination_that_does_not_answer_is_given_up_for_another_and_named() {
    let mut bench = Bench::new(&["n1", "n2", "n3", "n4"]);
    bench.apply_on_last("orders", 8);
    bench.cut("n4", "n2");
    bench.drain("n1");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert!(bench.all_run("orders"));
    bench.until("it is named", |bench| bench.troubles("orders").contains(&Code::PeerUnreachable));
    let report = bench.report("orders").expect("a report");
    assert!(report.troubles.iter().any(|trouble| trouble.node.as_str() == "n2"));
}

#[test]
fn lesson_20_but_a_timeout_never_frees_an_owner() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 3);
    bench.lose(|letter| letter.starts("n2"));
    bench.drain("n1");
    bench.until("one was told to start on n2", |bench| bench.sent.iter().any(|(_, l)| l.starts("n2")));
    let told = bench.sent.iter().filter(|(_, letter)| letter.starts("n2"));
    let owned: BTreeSet<Key> = told.flat_map(|(_, letter)| letter.started()).collect();
    let since = bench.mark();
    bench.pass(Millis::secs(60));
    let begun = bench.tables.begun.iter().find(|begun| begun.at >= since && owned.contains(&begun.key));
    assert!(begun.is_none(), "nobody else is told to start it: {begun:?}");
    assert!(!bench.all_run("orders"));
    let told = bench.sent.iter().filter(|(_, letter)| letter.starts("n2")).count();
    assert!((5..60).contains(&told), "it is said again, less and less often: {told}");
    bench.lift();
    bench.goes_on("orders");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
}

#[test]
fn lesson_21_a_node_that_lost_the_coordinator_stops_by_itself_before_others_take_over() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    bench.cut_off("n1");
    let cut = bench.now;
    bench.until("n1 has stopped", |bench| bench.tasks("n1") == 0);
    let stopped = bench.now.since(cut);
    assert!(stopped <= Millis(TIMING.fence_after.0 + 50), "{stopped}");
    assert!(!bench.all_run("orders"), "nobody has taken over");
    bench.until("others have taken over", |bench| bench.all_run("orders"));
    assert!(bench.now.since(cut).0 + TIMING.heartbeat.0 >= TIMING.offline_after.0);
    bench.mend_all();
    bench.goes_on("orders");
}

#[test]
fn lesson_21_a_maintainer_that_lost_the_coordinator_stops_acting_before_another_does() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    assert_eq!(bench.acting("orders"), ["n1"]);
    bench.cut("n1", COORDINATOR);
    bench.until("it has stopped acting", |bench| bench.acting("orders").is_empty());
    bench.until("another acts", |bench| bench.acting("orders").len() == 1);
    assert_ne!(bench.acting("orders"), ["n1"]);
    bench.mend_all();
    bench.goes_on("orders");
    assert_eq!(bench.acting("orders").len(), 1);
}

#[test]
fn lesson_21_a_node_that_wakes_after_its_fence_takes_on_no_maintainer_that_was_meant_for_it_before() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("users", 1);
    bench.pause("n2");
    bench.apply("orders", 1);
    assert_eq!(bench.maintainer("orders"), "n2");
    bench.until("another acts", |bench| {
        bench.maintainer("orders") != "n2" && bench.acting("orders").len() == 1
    });
    // It finds the order when it wakes, and nobody can tell it how late that is.
    bench.cut("n2", COORDINATOR);
    bench.wake("n2");
    bench.pass(Millis(1000));
    assert_eq!(bench.acting("orders"), [bench.maintainer("orders")]);
    bench.mend_all();
    bench.goes_on("orders");
}

#[test]
fn lesson_22_a_drain_is_undone_at_any_moment_and_the_node_takes_part_again() {
    for moment in 0..10 {
        let limits = FeedLimits { maintainer_batch: 1, moves_per_node: 1, moves_total: 2 };
        let mut bench = Bench::limited(limits, &["n1", "n2", "n3"]);
        bench.feed("orders", 9);
        bench.feed("users", 9);
        bench.drain("n1");
        bench.pass(Millis(50 * moment));
        if bench.drained("n1") == "drained" {
            bench.enable("n1");
        } else {
            bench.cancel("n1");
            assert_eq!(bench.drained("n1"), "cancelled");
        }
        bench.goes_on("orders");
        bench.goes_on("users");
        bench.until("it has its share", |bench| bench.count("orders", "n1") >= 2);
        bench.until("one acts, and as recorded", |bench| {
            bench.handed_over("orders") && bench.acting("orders") == [bench.maintainer("orders")]
        });
        bench.goes_on("orders");
    }
}

#[test]
fn lesson_23_the_drain_of_a_node_that_does_not_answer_is_cancelled_without_it() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.lose(Letter::quiesces);
    bench.drain("n1");
    bench.pass(Millis(300));
    bench.cut_off("n1");
    bench.cancel("n1");
    assert_eq!(bench.drained("n1"), "cancelled");
    bench.lift();
    bench.mend_all();
    bench.goes_on("orders");
    assert_eq!(bench.acting("orders").len(), 1);
}

#[test]
fn lesson_24_a_dispatcher_goes_on_exactly_where_the_one_before_it_stopped() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    bench.pass(Millis(730));
    let before = bench.tables.begun.len();
    bench.drain("n1");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    let moved = &bench.tables.begun[before..];
    assert!(moved.len() >= 2);
    for begun in moved {
        let from = begun.from.expect("a checkpoint").position;
        assert_eq!(from, begun.rows, "{begun:?}");
    }
}

#[test]
fn lesson_24_the_last_report_of_a_maintainer_counts_though_its_successor_has_a_higher_epoch() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.pass(Millis(4000));
    let known = bench.record("orders").checkpoint.unwrap_or_default();
    bench.drain("n1");
    bench.until("it is handed over", |bench| {
        bench.maintainer("orders") != "n1" && bench.handed_over("orders")
    });
    let mut last = bench.sent.iter().rev().flat_map(|(_, letter)| letter.reports());
    let last = last.find(|report| report.phase == Phase::Quiesced).expect("its last report");
    let said = last.checkpoint.expect("how far it was");
    assert!(said.position > known.position, "it had got further since it was last stored");
    assert_eq!(bench.record("orders").checkpoint, Some(said));
    assert!(last.epoch < bench.record("orders").epoch);
}

#[test]
fn lesson_25_nothing_stops_before_its_successor_is_ready() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    for node in ["n2", "n3"] {
        bench.hold(move |letter| letter.is_ready_at(node));
    }
    let since = bench.mark();
    bench.drain("n1");
    bench.pass(Millis(3000));
    assert_eq!(bench.sent_since(since, |letter| letter.stops("n1")), 0);
    assert!(bench.caught_up("orders", bench.now), "it writes on");
    let held = bench.held();
    assert!(held > 0);
    bench.lift();
    let now = bench.now;
    bench.until("all run", |bench| bench.all_run("orders") && bench.count("orders", "n1") == 0);
    assert!(bench.now.since(now) <= Millis(200), "ready ones start as soon as the others have stopped");
}

#[test]
fn lesson_26_what_an_old_maintainer_ordered_and_comes_late_changes_nothing() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    assert_eq!(bench.maintainer("orders"), "n1");
    // What it orders of the others stays under way for a while.
    bench.hold(|letter| letter.ends().0 == "n1" && letter.orders().next().is_some());
    bench.tables.sources.get_mut("orders").expect("a source").insert("u0".into());
    bench.tables.sources.get_mut("orders").expect("a source").insert("u1".into());
    bench.until("it has ordered something", |bench| bench.held() > 0);
    bench.drain("n1");
    bench.until("another acts", |bench| !["n1"].contains(&bench.maintainer("orders")));
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
    bench.pass(Millis(500));
    let (before, tasks) = (bench.at_work("orders"), [bench.tasks("n2"), bench.tasks("n3")]);
    let (epoch, prepared) = (bench.record("orders").epoch, bench.tables.prepared);
    bench.lift();
    bench.pass(Millis(1000));
    assert_eq!(bench.tables.prepared, prepared, "nothing is even made ready");
    assert_eq!((bench.at_work("orders"), [bench.tasks("n2"), bench.tasks("n3")]), (before, tasks));
    for node in ["n2", "n3"] {
        let node = bench.machines[node].node.as_ref().expect("a node");
        let of = node.dispatchers().maintainer_of(&FeedName::new("orders"));
        assert_eq!(of.map(|(epoch, _)| epoch), Some(epoch));
    }
}

#[test]
fn lesson_27_as_many_move_at_a_time_as_their_destinations_take_whatever_the_size_of_the_feed() {
    let mut bench = Bench::new(&["n1"]);
    bench.feed("orders", 100);
    bench.join("n2", Roles::WORKER);
    bench.join("n3", Roles::WORKER);
    bench.pass(Millis(500));
    for node in ["n2", "n3"] {
        bench.hold(move |letter| letter.is_ready_at(node));
    }
    bench.drain("n1");
    bench.pass(Millis(500));
    assert_eq!(on_the_move(&bench), 100, "there is room for all of them");
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
}

#[test]
fn lesson_28_there_is_a_limit_over_all_feeds() {
    let limits = FeedLimits { maintainer_batch: 8, moves_per_node: 4, moves_total: 6 };
    let mut bench = Bench::limited(limits, &["n1"]);
    let feeds = ["a", "b", "c", "d"];
    for feed in feeds {
        bench.feed(feed, 8);
    }
    for node in ["n2", "n3", "n4"] {
        bench.join(node, Roles::WORKER);
    }
    bench.pass(Millis(500));
    bench.drain("n1");
    let mut most = 0;
    while bench.drained("n1") != "drained" {
        bench.hold(|letter| ["n2", "n3", "n4"].iter().any(|node| letter.is_ready_at(node)));
        bench.pass(Millis(100));
        most = most.max(on_the_move(&bench));
        assert!(on_the_move(&bench) <= 6, "{} on the move", on_the_move(&bench));
        bench.lift();
        assert!(bench.now.0 < 1_200_000, "it never ends");
    }
    assert!(most > 1, "several at a time: {most}");
    feeds.into_iter().for_each(|feed| bench.goes_on(feed));
}

#[test]
fn lesson_46_a_paused_process_that_wakes_after_its_fence_writes_nothing() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    let had = bench.count("orders", "n1");
    assert!(had > 0);
    bench.pause("n1");
    let elsewhere = |bench: &Bench| bench.count("orders", "n2") + bench.count("orders", "n3");
    bench.until("others have taken over", |bench| elsewhere(bench) == 6);
    bench.pass(Millis(1000));
    assert_eq!(bench.tables.refused, []);
    bench.wake("n1");
    bench.pass(Millis(1000));
    let refused =
        bench.tables.refused.iter().filter(|(node, key)| *node == "n1" && key.0.as_str() == "orders");
    assert_eq!(refused.count(), had, "every one of its writes was refused");
    assert_eq!(bench.count("orders", "n1"), 0);
    bench.goes_on("orders");
}
