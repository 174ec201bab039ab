//! Destinations that cannot make a span ready, and what a coordinator does not know of its predecessor.

use model::{Code, EventKind, Millis};
use protocol::coordinator::{DrainRequest, FeedLimits, Request};

use crate::bench::{Bench, Letter, Name, key};

fn drain_until(bench: &mut Bench, node: Name, deadline: Option<Millis>) {
    let request =
        DrainRequest { nodes: vec![node.to_owned()], deadline: Some(deadline), ..Default::default() };
    bench.ask(Request::Drain(request)).expect("a drain that may begin");
}

fn left(bench: &Bench, node: Name) -> Vec<(String, Code)> {
    let drain = bench.cluster().last_drain_of(node).expect("a drain");
    drain.part(node).expect("its part").left.clone()
}

/// What the drain of a node waits for, as operators are shown.
fn waits(bench: &Bench, node: Name) -> Vec<(String, Code, String)> {
    let coordinator = bench.coordinator.as_ref().expect("a coordinator");
    let part = bench.cluster().last_drain_of(node).and_then(|drain| drain.part(node)).expect("its part");
    let waits = coordinator.drain_status(part, bench.now).waits;
    waits.into_iter().map(|wait| (wait.unit, wait.code, wait.message)).collect()
}

/// The sink of a feed is not reached from a node.
fn breaks(bench: &mut Bench, node: Name, feed: Name) {
    bench.tables.broken.insert((node, key(feed, "").0));
}

fn asks(bench: &mut Bench, span: &str, node: &str) {
    let (feed, span) = key("orders", span);
    bench.ask(Request::MoveSpan { feed, span, node: node.to_owned() }).expect("a move");
}

/// A span of `orders` that runs on this node.
fn one_on(bench: &Bench, node: Name) -> String {
    let at_work = bench.at_work("orders");
    at_work.into_iter().find(|(_, on)| *on == node).expect("one that runs there").0
}

/// Dispatchers that maintainers have on the move, all feeds together.
fn moving(bench: &Bench) -> usize {
    let nodes = bench.machines.values().filter_map(|machine| machine.node.as_ref());
    let acting = nodes.flat_map(|node| node.maintainers()).filter(|(_, maintainer)| maintainer.acts());
    acting.map(|(_, maintainer)| maintainer.moving()).sum()
}

// Destinations that cannot make a span ready.

#[test]
fn a_span_that_one_node_cannot_make_ready_goes_to_another() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 9);
    breaks(&mut bench, "n2", "orders");
    let here = bench.count("orders", "n2");
    drain_until(&mut bench, "n1", None);
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert_eq!((bench.count("orders", "n2"), bench.count("orders", "n3")), (here, 9 - here));
    bench.goes_on("orders");
}

#[test]
fn a_span_goes_to_another_also_from_a_node_that_ran_it_before() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 9);
    let span = one_on(&bench, "n2");
    asks(&mut bench, &span, "n1");
    bench.until("it is there", |bench| bench.at_work("orders").get(&span) == Some(&"n1"));
    breaks(&mut bench, "n2", "orders");
    let since = bench.now;
    drain_until(&mut bench, "n1", None);
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert!(bench.now.since(since) < Millis::secs(20), "it was not waited for in vain");
    bench.goes_on("orders");
}

#[test]
fn a_node_that_cannot_make_it_ready_is_asked_less_and_less_often() {
    let mut bench = Bench::new(&["n1", "n2"]);
    bench.apply_on_last("orders", 2);
    breaks(&mut bench, "n2", "orders");
    drain_until(&mut bench, "n1", None);
    bench.pass(Millis::secs(60));
    let since = bench.mark();
    bench.pass(Millis::secs(60));
    let asked = bench.tables.failed.iter().filter(|(at, on)| *at >= since && *on == "n2").count();
    assert!((1..=3).contains(&asked), "asked {asked} times in a minute");
    assert!(bench.all_run("orders"));
}

#[test]
fn a_drain_says_which_feed_nobody_can_make_ready_and_why() {
    let mut bench = Bench::new(&["n1", "n2"]);
    bench.apply_on_last("orders", 4);
    breaks(&mut bench, "n2", "orders");
    drain_until(&mut bench, "n1", None);
    bench.pass(Millis::secs(30));
    assert_eq!(bench.drained("n1"), "draining");
    let told = "2 of 2 dispatchers cannot be made ready elsewhere; n2: it failed";
    assert_eq!(waits(&bench, "n1"), [("feed/orders".to_owned(), Code::SinkUnreachable, told.to_owned())]);
    bench.tables.broken.clear();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn past_its_deadline_a_drain_ends_without_what_nobody_can_make_ready_and_it_runs_on() {
    let mut bench = Bench::new(&["n1", "n2"]);
    bench.apply_on_last("orders", 4);
    breaks(&mut bench, "n2", "orders");
    drain_until(&mut bench, "n1", Some(Millis::secs(20)));
    bench.pass(Millis::secs(18));
    assert_eq!(bench.drained("n1"), "draining", "its time is not over");
    bench.until("it ends", |bench| bench.drained("n1") == "drained_except");
    assert_eq!(left(&bench, "n1"), [("feed/orders".to_owned(), Code::SinkUnreachable)]);
    assert_eq!(bench.count("orders", "n1"), 2);
    bench.goes_on("orders");
    bench.tables.broken.clear();
    bench.until("it leaves all the same", |bench| bench.count("orders", "n1") == 0);
    bench.goes_on("orders");
}

#[test]
fn force_waits_until_every_destination_has_failed_and_no_longer() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    breaks(&mut bench, "n2", "orders");
    breaks(&mut bench, "n3", "orders");
    drain_until(&mut bench, "n1", Some(Millis::ZERO));
    bench.until("it ends", |bench| bench.drained("n1") == "drained_except");
    assert_eq!(left(&bench, "n1"), [("feed/orders".to_owned(), Code::SinkUnreachable)]);
    bench.goes_on("orders");
}

#[test]
fn what_can_be_made_ready_somewhere_is_waited_for_past_the_deadline() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    breaks(&mut bench, "n2", "orders");
    bench.hold(|letter| letter.is_ready_at("n3"));
    drain_until(&mut bench, "n1", Some(Millis::ZERO));
    bench.pass(Millis::secs(10));
    assert_eq!(bench.drained("n1"), "draining");
    bench.lift();
    bench.until("it ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

#[test]
fn a_feed_that_cannot_leave_takes_no_turn_from_one_that_can() {
    let limits = FeedLimits { maintainer_batch: 1, moves_per_node: 8, moves_total: 1 };
    let mut bench = Bench::limited(limits, &[]);
    bench.join_labelled("n1", &[("x", "1")]);
    bench.join_labelled("n2", &[]);
    bench.pass(Millis(500));
    bench.apply_where("orders", 4, &[("x", "1")]);
    bench.feed("users", 4);
    drain_until(&mut bench, "n1", None);
    bench.until("the other has left", |bench| bench.count("users", "n1") == 0);
    assert_eq!((bench.count("orders", "n1"), bench.drained("n1")), (4, "draining"));
}

#[test]
fn a_feed_that_nobody_can_make_ready_takes_no_turn_from_one_that_can_leave() {
    let limits = FeedLimits { maintainer_batch: 1, moves_per_node: 8, moves_total: 1 };
    let mut bench = Bench::limited(limits, &["n1", "n2"]);
    bench.feed("orders", 4);
    bench.feed("users", 4);
    breaks(&mut bench, "n2", "orders");
    drain_until(&mut bench, "n1", None);
    bench.until("the other has left", |bench| bench.count("users", "n1") == 0);
    assert_eq!((bench.count("orders", "n1"), bench.drained("n1")), (2, "draining"));
    bench.tables.broken.clear();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
}

// What a coordinator does not know of its predecessor.

#[test]
fn what_a_predecessor_let_move_counts_until_it_has_arrived() {
    let limits = FeedLimits { maintainer_batch: 1, moves_per_node: 8, moves_total: 2 };
    let mut bench = Bench::limited(limits, &[]);
    bench.join_labelled("n1", &[("x", "1")]);
    bench.join_labelled("n2", &[("y", "1")]);
    bench.join_labelled("n3", &[("x", "1"), ("y", "1")]);
    bench.pass(Millis(500));
    for (feed, label) in [("orders", ("x", "1")), ("users", ("y", "1"))] {
        bench.apply_where(feed, 8, &[label]);
        bench.until("it runs", |bench| bench.all_run(feed));
    }
    bench.hold(|letter| letter.is_ready_at("n3"));
    bench.drain("n1");
    bench.until("two are on the move", |bench| moving(bench) == 2);
    // Nothing says any more that `orders` has something to move but its maintainer's own word.
    bench.cancel("n1");
    bench.drain("n2");
    bench.until("its maintainer has left", |bench| {
        bench.maintainer("users") == "n3" && bench.handed_over("users")
    });
    bench.pass(Millis::secs(1));
    assert_eq!(moving(&bench), 2);
    bench.fail_over();
    for _ in 0..100 {
        bench.pass(Millis(50));
        assert!(moving(&bench) <= 2, "{} are on the move", moving(&bench));
    }
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n2") == "drained");
    bench.goes_on("orders");
    bench.goes_on("users");
}

#[test]
fn a_maintainer_that_a_new_coordinator_has_not_heard_of_holds_back_all_moves_until_its_lease_is_over() {
    let limits = FeedLimits { maintainer_batch: 1, moves_per_node: 8, moves_total: 2 };
    let mut bench = Bench::limited(limits, &["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.feed("users", 6);
    let (silent, other) = (bench.maintainer("orders"), bench.maintainer("users"));
    assert_ne!(silent, other);
    let drained = ["n1", "n2", "n3"].into_iter().find(|node| ![silent, other].contains(node)).expect("one");
    bench.hold(move |letter| matches!(letter, Letter::Up { from, .. } if *from == silent));
    bench.drain(drained);
    bench.fail_over();
    bench.pass(Millis::secs(2));
    assert_eq!(moving(&bench), 0, "nobody knows what the silent one was allowed");
    bench.lift_and_forget();
    bench.until("the drain ends", |bench| bench.drained(drained) == "drained");
    bench.goes_on("orders");
    bench.goes_on("users");
}

#[test]
fn a_move_that_was_asked_for_is_made_by_the_next_coordinator() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    assert_eq!(bench.maintainer("orders"), "n1");
    let span = one_on(&bench, "n2");
    bench.lose(|letter| matches!(letter, Letter::Down { to: "n1", .. }));
    asks(&mut bench, &span, "n3");
    bench.fail_over();
    bench.lift_and_forget();
    bench.until("it is there", |bench| bench.at_work("orders").get(&span) == Some(&"n3"));
    bench.pass(Millis::secs(2));
    assert_eq!(bench.stored().feed("orders").map(|feed| feed.asked.len()), Some(0), "it is done with");
}

#[test]
fn a_move_that_is_given_up_is_not_given_up_in_silence() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    let told = |bench: &Bench| -> Vec<String> {
        let events = bench.events.iter().filter(|event| event.kind == EventKind::FeedMoveGivenUp);
        events.map(|event| event.message.clone()).collect()
    };
    let span = one_on(&bench, "n1");
    bench.hold(|letter| letter.is_ready_at("n3"));
    asks(&mut bench, &span, "n3");
    bench.pass(Millis::secs(70));
    assert_eq!(told(&bench), [format!("{span} was to go to n3, and has not in 1m")]);
    asks(&mut bench, &span, "n3");
    bench.drain("n3");
    bench.pass(Millis::secs(2));
    assert_eq!(told(&bench)[1..], [format!("{span} was to go to n3, which is closed")]);
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n3") == "drained");
}

#[test]
fn a_checkpoint_that_was_shown_does_not_go_back_with_the_maintainer_that_told_it() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    let shown = |bench: &Bench| {
        let said = bench.report("orders").and_then(|report| report.checkpoint);
        said.map_or(0, |said| said.position)
    };
    let stored = |bench: &Bench| bench.record("orders").checkpoint.map_or(0, |stored| stored.position);
    bench.until("more is shown than stored", |bench| shown(bench) > stored(bench) + 25);
    let (before, silent) = (shown(&bench), bench.maintainer("orders"));
    bench.kill(silent);
    bench.until("another says how far it is", |bench| {
        let epoch = bench.report("orders").map(|report| report.epoch);
        bench.maintainer("orders") != silent && epoch == Some(bench.record("orders").epoch)
    });
    assert!(shown(&bench) >= before, "{} is shown after {before}", shown(&bench));
    bench.goes_on("orders");
}
