//! Moves that people ask for.

use model::{FeedName, FeedState, Millis, SpanName};
use protocol::coordinator::{ApiError, ErrorKind, FeedLimits, Request};

use crate::bench::{Bench, Letter, Name};

fn ask(bench: &mut Bench, feed: &str, span: &str, node: &str) -> Result<(), ApiError> {
    let request =
        Request::MoveSpan { feed: FeedName::new(feed), span: SpanName::new(span), node: node.to_owned() };
    bench.ask(request).map(|_| ())
}

fn refusal(bench: &mut Bench, feed: &str, span: &str, node: &str) -> (ErrorKind, &'static str) {
    let error = ask(bench, feed, span, node).expect_err("a refusal");
    (error.kind, error.code)
}

/// A span of `orders` that runs on this node.
fn one_on(bench: &Bench, node: Name) -> String {
    let at_work = bench.at_work("orders");
    at_work.into_iter().find(|(_, on)| *on == node).expect("one that runs there").0
}

fn is_on(bench: &Bench, span: &str, node: Name) -> bool {
    bench.at_work("orders").get(span) == Some(&node)
}

fn three() -> Bench {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    bench
}

#[test]
fn a_span_goes_where_it_is_asked_to_and_goes_on_where_it_was() {
    let mut bench = three();
    let span = one_on(&bench, "n1");
    let since = bench.mark();
    ask(&mut bench, "orders", &span, "n3").expect("a move");
    bench.until("it is there", |bench| is_on(bench, &span, "n3"));
    let begun: Vec<_> = bench.tables.begun.iter().filter(|begun| begun.at >= since).collect();
    assert_eq!(begun.len(), 1, "nothing else moves");
    assert_eq!(begun[0].from.expect("a last word").position, begun[0].rows);
    bench.goes_on("orders");
    bench.pass(Millis::secs(5));
    assert!(is_on(&bench, &span, "n3"), "nobody takes it back");
}

#[test]
fn a_span_that_is_there_already_stays_and_nothing_moves() {
    let mut bench = three();
    let (before, span) = (bench.at_work("orders"), one_on(&bench, "n2"));
    ask(&mut bench, "orders", &span, "n2").expect("nothing to do");
    bench.pass(Millis::secs(5));
    assert_eq!(bench.at_work("orders"), before);
    assert_eq!(bench.report("orders").map(|report| report.asked.len()), Some(0));
}

#[test]
fn nothing_is_moved_by_hand_to_a_node_that_drains_has_drained_or_is_disabled() {
    let mut bench = three();
    let closed = (ErrorKind::Conflict, "node_closed");
    bench.drain("n3");
    assert_eq!(refusal(&mut bench, "orders", "t0", "n3"), closed);
    bench.until("the drain ends", |bench| bench.drained("n3") == "drained");
    assert_eq!(refusal(&mut bench, "orders", "t0", "n3"), closed);
    bench.enable("n3");
    bench.until("it takes part again", |bench| bench.inventory("n3").is_some());
    ask(&mut bench, "orders", "t0", "n3").expect("an open node");
    bench.until("it is there", |bench| is_on(bench, "t0", "n3"));
}

#[test]
fn what_cannot_be_is_refused_with_its_code() {
    let mut bench = three();
    bench.join_labelled("n4", &[("rack", "b")]);
    bench.pass(Millis::secs(1));
    bench.apply_where("users", 2, &[("rack", "b")]);
    bench.until("it runs", |bench| bench.all_run("users"));
    assert_eq!(refusal(&mut bench, "users", "t0", "n1"), (ErrorKind::Refused, "constraint_unsatisfied"));
    assert_eq!(refusal(&mut bench, "nobody", "t0", "n1").1, "feed_not_found");
    assert_eq!(refusal(&mut bench, "orders", "t99", "n1").1, "span_not_found");
    assert_eq!(refusal(&mut bench, "orders", "t0", "n9").1, "node_not_found");
    bench.kill("n2");
    assert_eq!(refusal(&mut bench, "orders", "t0", "n2"), (ErrorKind::NotNow, "node_not_ready"));
    bench.set_feed("orders", FeedState::Paused).expect("a feed to pause");
    assert_eq!(refusal(&mut bench, "orders", "t0", "n3"), (ErrorKind::Conflict, "feed_not_running"));
}

#[test]
fn no_more_are_asked_for_at_a_time_than_may_be_on_the_move() {
    let limits = FeedLimits { maintainer_batch: 1, moves_per_node: 8, moves_total: 2 };
    let mut bench = Bench::limited(limits, &["n1", "n2"]);
    bench.feed("orders", 6);
    bench.hold(|letter| letter.is_ready_at("n2"));
    let mine: Vec<String> =
        bench.at_work("orders").into_iter().filter(|(_, on)| *on == "n1").map(|(span, _)| span).collect();
    ask(&mut bench, "orders", &mine[0], "n2").expect("the first");
    ask(&mut bench, "orders", &mine[1], "n2").expect("the second");
    assert_eq!(refusal(&mut bench, "orders", &mine[2], "n2"), (ErrorKind::Conflict, "max_parallel"));
    bench.lift();
    bench.until("both are there", |bench| is_on(bench, &mine[0], "n2") && is_on(bench, &mine[1], "n2"));
    bench.pass(Millis::secs(1));
    ask(&mut bench, "orders", &mine[2], "n2").expect("there is room again");
}

#[test]
fn a_node_that_is_closed_after_it_was_asked_for_does_not_get_it() {
    let mut bench = three();
    let span = one_on(&bench, "n1");
    bench.hold(|letter| letter.is_ready_at("n3"));
    ask(&mut bench, "orders", &span, "n3").expect("a move");
    bench.pass(Millis::secs(1));
    bench.drain("n3");
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n3") == "drained");
    bench.pass(Millis::secs(5));
    assert_eq!((bench.tasks("n3"), bench.all_run("orders")), (0, true));
    assert_eq!(bench.report("orders").map(|report| report.asked.len()), Some(0), "it is not tried on");
}

#[test]
fn a_maintainer_that_takes_over_meanwhile_makes_the_move() {
    let mut bench = three();
    let span = one_on(&bench, "n2");
    assert_eq!(bench.maintainer("orders"), "n1");
    bench.lose(|letter| matches!(letter, Letter::Down { to: "n1", .. }));
    ask(&mut bench, "orders", &span, "n3").expect("a move");
    bench.kill("n1");
    bench.until("it is there", |bench| is_on(bench, &span, "n3") && bench.all_run("orders"));
}

#[test]
fn a_move_that_cannot_be_made_is_given_up_after_a_while() {
    let mut bench = three();
    let span = one_on(&bench, "n1");
    bench.hold(|letter| letter.is_ready_at("n3"));
    ask(&mut bench, "orders", &span, "n3").expect("a move");
    bench.pass(Millis::secs(70));
    bench.lift_and_forget();
    let since = bench.mark();
    bench.pass(Millis::secs(40));
    assert!(!bench.tables.begun.iter().any(|begun| begun.at >= since), "nobody tries on");
    assert!(is_on(&bench, &span, "n1") && bench.all_run("orders"));
}
