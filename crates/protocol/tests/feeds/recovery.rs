//! The ways a drain is disturbed, and how it goes on.

use model::{Code, Millis, Roles, Time};
use protocol::coordinator::{FeedLimits, Request};

use crate::bench::*;

const CANDIDATE: Roles = Roles { coordinator: true, worker: true, edge: false };

/// A few moves at a time, so that there is a middle to be disturbed in.
const SLOW: FeedLimits = FeedLimits { maintainer_batch: 1, moves_per_node: 1, moves_total: 2 };

#[test]
fn a_coordinator_that_dies_at_any_moment_of_a_drain_is_followed_by_one_that_goes_on() {
    for moment in 0..12 {
        let mut bench = Bench::limited(SLOW, &["n1", "n2", "n3"]);
        bench.feed("orders", 6);
        bench.feed("users", 6);
        bench.drain("n1");
        bench.pass(Millis(50 * moment));
        bench.fail_over();
        bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
        assert_eq!((bench.tasks("n1"), bench.cluster().maintainer_count(&"n1".into())), (0, 0));
        bench.goes_on("orders");
        bench.goes_on("users");
    }
}

#[test]
fn what_a_coordinator_had_not_stored_when_it_died_is_done_again_by_the_next() {
    for moment in 0..12 {
        let mut bench = Bench::limited(SLOW, &["n1", "n2", "n3"]);
        bench.feed("orders", 6);
        bench.feed("users", 6);
        bench.drain("n1");
        bench.pass(Millis(50 * moment));
        bench.hold_commits();
        bench.pass(Millis(300));
        bench.depose();
        bench.release_commits();
        bench.elect(COORDINATOR);
        bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
        bench.goes_on("orders");
        bench.goes_on("users");
        for feed in ["orders", "users"] {
            assert_eq!(bench.acting(feed), [bench.maintainer(feed)], "moment {moment}");
        }
    }
}

#[test]
fn a_store_that_is_slow_holds_up_hand_overs_and_no_dispatcher() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.lose(Letter::quiesces);
    bench.drain("n1");
    bench.hold_commits();
    bench.lift();
    bench.pass(Millis(1500));
    assert_eq!(bench.acting("orders"), [""; 0], "that the one before has stopped is not stored");
    assert!(bench.all_run("orders") && bench.caught_up("orders", bench.now));
    bench.release_commits();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn coordinators_that_die_one_after_the_other_do_not_hold_up_a_drain_for_ever() {
    let mut bench = Bench::limited(SLOW, &["n1", "n2", "n3"]);
    bench.feed("orders", 12);
    bench.drain("n1");
    for _ in 0..8 {
        bench.fail_over();
        bench.pass(Millis(150));
    }
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn a_drain_that_was_not_stored_never_happened() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.pass(Millis(1000));
    let before = bench.at_work("orders");
    bench.hold_commits();
    let since = bench.mark();
    bench.ask_in_vain(Request::Drain(protocol::coordinator::DrainRequest {
        nodes: vec!["n1".into()],
        ..Default::default()
    }));
    bench.pass(Millis(1000));
    assert_eq!(bench.sent_since(since, |letter| letter.orders().next().is_some() || letter.quiesces()), 0);
    bench.depose();
    bench.release_commits();
    bench.elect(COORDINATOR);
    bench.pass(Millis(3000));
    assert!(bench.cluster().last_drain_of("n1").is_none());
    assert_eq!(bench.at_work("orders"), before);
}

/// A feed whose maintainer is about to leave `n1` for another node, and has not confirmed that it stopped.
fn half_handed_over() -> (Bench, Name) {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    assert_eq!(bench.maintainer("orders"), "n1");
    bench.lose(Letter::quiesces);
    bench.drain("n1");
    bench.pass(Millis(500));
    assert!(!bench.handed_over("orders"));
    let to = bench.maintainer("orders");
    (bench, to)
}

#[test]
fn a_maintainers_destination_that_dies_before_the_origin_stopped_is_replaced_and_the_origin_acts_on() {
    let (mut bench, to) = half_handed_over();
    let epoch = bench.record("orders").epoch;
    bench.kill(to);
    bench.until("it is given up", |bench| bench.maintainer("orders") != to);
    assert_eq!(bench.acting("orders"), ["n1"], "it was not told to stop");
    assert!(!bench.handed_over("orders"), "it still has to confirm");
    assert!(bench.record("orders").epoch > epoch);
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
    assert_eq!(bench.acting("orders"), [bench.maintainer("orders")]);
}

#[test]
fn a_maintainers_destination_that_dies_after_the_origin_stopped_is_replaced() {
    let (mut bench, to) = half_handed_over();
    bench.lift();
    bench.until("the origin has stopped", |bench| bench.handed_over("orders"));
    bench.kill(to);
    bench.until("another has it", |bench| !["n1", to].contains(&bench.maintainer("orders")));
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
    assert_eq!(bench.acting("orders"), [bench.maintainer("orders")]);
}

#[test]
fn an_origin_that_dies_before_it_confirms_is_waited_for_until_its_lease_is_over() {
    let (mut bench, to) = half_handed_over();
    bench.kill("n1");
    let died = bench.now;
    bench.until("the other one acts", |bench| bench.acting("orders") == [to]);
    // Its last heartbeat came at most one interval before.
    assert!(bench.now.since(died).0 + TIMING.heartbeat.0 >= TIMING.offline_after.0);
}

#[test]
fn a_dispatchers_destination_that_dies_before_the_origin_stopped_leaves_it_at_its_origin() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    bench.hold(|letter| letter.is_ready_at("n2"));
    bench.drain("n1");
    bench.until("one is on its way to n2", |bench| bench.held() > 0);
    let left = bench.count("orders", "n1");
    assert!(left > 0);
    bench.kill("n2");
    bench.pass(Millis(1000));
    assert_eq!(bench.count("orders", "n1"), left, "what was to go there runs on where it was");
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
    assert_eq!(bench.count("orders", "n3"), 6);
}

#[test]
fn a_dispatchers_destination_that_restarts_before_the_origin_stopped_is_not_taken_for_the_owner() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    bench.hold(|letter| letter.is_ready_at("n2"));
    bench.drain("n1");
    bench.until("one is on its way to n2", |bench| bench.held() > 0);
    let left = bench.at_work("orders");
    bench.restart("n2");
    bench.pass(Millis(200));
    let began = bench.tables.begun.iter().filter(|begun| left.get(begun.key.1.as_str()) == Some(&"n1"));
    assert!(began.filter(|begun| begun.on == "n3").count() <= 1, "what n1 runs is moved, not started");
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn a_dispatchers_destination_that_dies_after_the_origin_stopped_is_replaced_once_its_lease_is_over() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    bench.hold(|letter| letter.starts("n2"));
    bench.drain("n1");
    bench.until("a start is on its way", |bench| bench.held() > 0);
    let before = bench.tables.begun.len();
    bench.kill("n2");
    let died = bench.now;
    bench.until("all run", |bench| bench.all_run("orders"));
    let again = bench.tables.begun[before..].iter().map(|begun| begun.at).min().expect("some began");
    assert!(again.since(died).0 + TIMING.heartbeat.0 >= TIMING.offline_after.0, "it might have begun there");
    bench.lift_and_forget();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn a_destination_that_is_gone_for_good_does_not_keep_the_drain_from_its_end() {
    let mut bench = Bench::limited(SLOW, &["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    bench.drain("n1");
    bench.pass(Millis(100));
    bench.kill("n2");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
    assert_eq!(bench.count("orders", "n3"), 9);
}

#[test]
fn a_draining_node_that_dies_is_lost_and_everything_of_it_runs_elsewhere() {
    for moment in [0, 1, 2, 4, 8] {
        let mut bench = Bench::limited(SLOW, &["n1", "n2", "n3"]);
        bench.feed("orders", 9);
        bench.drain("n1");
        bench.pass(Millis(50 * moment));
        if bench.drained("n1") == "drained" {
            panic!("moment {moment} is too late");
        }
        bench.kill("n1");
        bench.until("its part has ended", |bench| bench.drained("n1") != "draining");
        assert_eq!(bench.drained("n1"), "node_lost");
        bench.goes_on("orders");
        assert_eq!(bench.count("orders", "n1"), 0);
        assert_ne!(bench.maintainer("orders"), "n1");
    }
}

#[test]
fn a_drain_pauses_while_all_others_are_away_and_goes_on_when_one_is_back() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 3);
    bench.kill("n2");
    bench.kill("n3");
    bench.until("they are offline", |bench| {
        ["n2", "n3"].iter().all(|node| bench.cluster().node_by_id(node).unwrap().rec.is_offline())
    });
    bench.until("all run", |bench| bench.count("orders", "n1") == 3);
    bench.drain("n1");
    bench.pass(Millis(5000));
    assert_eq!((bench.drained("n1"), bench.waits("orders")), ("draining", Some(Code::NoEligibleNode)));
    assert_eq!((bench.acting("orders"), bench.count("orders", "n1")), (vec!["n1"], 3), "it runs on");
    bench.restart("n3");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
    assert_eq!((bench.maintainer("orders"), bench.count("orders", "n3")), ("n3", 3));
}

#[test]
fn a_drain_pauses_while_all_others_are_late_and_goes_on_with_them() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    for node in ["n2", "n3"] {
        bench.cut(node, COORDINATOR);
    }
    bench.pass(TIMING.degraded_after);
    bench.drain("n1");
    bench.pass(Millis(1000));
    assert_eq!((bench.drained("n1"), bench.waits("orders")), ("draining", Some(Code::NoEligibleNode)));
    assert!(bench.all_run("orders"));
    bench.mend_all();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn a_maintainer_that_one_node_does_not_answer_waits_for_it_and_says_so() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    let before = bench.at_work("orders");
    bench.cut("n2", "n3");
    bench.lose(Letter::is_relayed);
    bench.drain("n1");
    bench.pass(Millis(5000));
    let at = bench.maintainer("orders");
    assert_ne!(at, "n1");
    assert_eq!((bench.acting("orders"), bench.drained("n1")), (vec![at], "draining"));
    assert!(bench.troubles("orders").contains(&Code::PeerUnreachable), "{:?}", bench.troubles("orders"));
    assert_eq!(bench.at_work("orders"), before, "what may run somewhere is not started again");
    bench.mend_all();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn a_maintainer_that_one_node_never_answers_goes_on_when_that_nodes_lease_is_over() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.cut("n2", "n3");
    bench.lose(Letter::is_relayed);
    bench.drain("n1");
    bench.pass(Millis(2000));
    let at = bench.maintainer("orders");
    let other = if at == "n2" { "n3" } else { "n2" };
    bench.kill(other);
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
    assert_eq!(bench.count("orders", at), 6);
}

#[test]
fn a_maintainer_that_never_gets_to_work_is_replaced_with_its_node() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.cut("n2", "n3");
    bench.lose(Letter::is_relayed);
    bench.drain("n1");
    bench.pass(Millis(2000));
    let at = bench.maintainer("orders");
    bench.kill(at);
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn of_two_nodes_the_draining_one_takes_over_when_the_coordinators_node_dies() {
    let mut bench = Bench::limited(SLOW, &[]);
    bench.join("n1", CANDIDATE);
    bench.join("n2", CANDIDATE);
    bench.fail_over_to("n1");
    bench.pass(Millis(500));
    bench.feed("orders", 16);
    bench.machines.get_mut("n2").unwrap().hangs = true;
    bench.drain("n2");
    bench.pass(Millis(150));
    assert_eq!(bench.drained("n2"), "draining");
    bench.kill("n1");
    bench.fail_over_to("n2");
    bench.until("it is the last one", |bench| bench.drained("n2") == "cancelled");
    bench.goes_on("orders");
    assert_eq!((bench.maintainer("orders"), bench.count("orders", "n2")), ("n2", 16));
}

#[test]
fn the_only_node_that_is_left_is_active_again_and_runs_everything() {
    let mut bench = Bench::limited(SLOW, &["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    bench.drain("n1");
    bench.pass(Millis(150));
    assert_eq!(bench.drained("n1"), "draining");
    bench.kill("n2");
    bench.kill("n3");
    let died: Time = bench.now;
    bench.until("the drain is over", |bench| bench.drained("n1") == "cancelled");
    assert!(bench.now.since(died) >= TIMING.last_node_after);
    bench.goes_on("orders");
    assert_eq!((bench.maintainer("orders"), bench.count("orders", "n1")), ("n1", 9));
}

#[test]
fn what_was_prepared_for_a_feed_that_is_gone_is_given_up() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.hold(|letter| letter.prepares("n3"));
    bench.apply("orders", 6);
    bench.until("a preparation is on its way", |bench| bench.held() > 0);
    bench.hold_no_more();
    bench.remove("orders");
    bench.until("it is gone", |bench| bench.cluster().feeds().next().is_none());
    // It was overtaken by everything that followed.
    bench.lift();
    bench.pass(Millis::secs(1));
    assert!(bench.tasks("n3") > 0, "nobody tells it that it is not needed");
    bench.pass(Millis::secs(121));
    assert_eq!(bench.tasks("n3"), 0);
}

#[test]
fn a_late_word_of_a_lease_that_was_over_takes_no_span_from_who_has_it_since() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    let maintainer = bench.maintainer("orders");
    let away = if maintainer == "n3" { "n2" } else { "n3" };
    // The maintainer hears late that a node was offline, and that it is back.
    bench.hold(move |letter| letter.announces_roster(maintainer));
    bench.cut_off(away);
    let offline =
        move |bench: &Bench| bench.cluster().node_by_id(away).is_some_and(|node| node.rec.is_offline());
    bench.until("it is offline", offline);
    bench.mend_all();
    bench.until("it is back", move |bench| !offline(bench));
    bench.pass(Millis::secs(10));
    bench.lift();
    bench.goes_on("orders");
}

#[test]
fn a_node_whose_lease_was_over_registers_anew_with_a_higher_epoch() {
    let mut bench = Bench::new(&["n1", "n2"]);
    let epoch = |bench: &Bench| bench.cluster().node_by_id("n2").map(|node| node.rec.process_epoch);
    let before = epoch(&bench);
    bench.lose(|letter| letter.ends() == ("n2", COORDINATOR));
    let offline = |bench: &Bench| bench.cluster().node_by_id("n2").is_some_and(|node| node.rec.is_offline());
    bench.until("it is offline", offline);
    bench.lift();
    bench.until("it is back", move |bench| !offline(bench));
    assert!(epoch(&bench) > before, "on the same stream or on another");
}
