//! A drain whose time is over, and feeds that have nowhere to go.

use model::{Code, Ending, FeedState, Intent, Millis, Then};
use protocol::{
    coordinator::{DrainRequest, Request},
    message::DownBody,
};

use crate::bench::{Bench, Letter, Name};

/// `orders` may run on n1 alone, and does.
fn bound_to_n1() -> Bench {
    let mut bench = Bench::new(&[]);
    bench.join_labelled("n1", &[("rack", "a")]);
    bench.join_labelled("n2", &[("rack", "b")]);
    bench.pass(Millis(500));
    bench.apply_where("orders", 4, &[("rack", "a")]);
    bench.until("it runs", |bench| bench.all_run("orders"));
    bench
}

fn drain(bench: &mut Bench, deadline: Option<Millis>, then: Then) {
    let request = DrainRequest {
        nodes: vec!["n1".to_owned()],
        deadline: Some(deadline),
        then: Some(then),
        ..Default::default()
    };
    bench.ask(Request::Drain(request)).expect("a drain that may begin");
}

fn left(bench: &Bench, node: Name) -> Vec<(String, Code)> {
    let drain = bench.cluster().last_drain_of(node).expect("a drain");
    drain.part(node).expect("its part").left.clone()
}

fn what_is_left() -> Vec<(String, Code)> {
    let code = Code::NoEligibleNode;
    vec![("maintainer/orders".to_owned(), code), ("feed/orders".to_owned(), code)]
}

fn was_told_to_leave(letter: &Letter) -> bool {
    matches!(letter, Letter::Down { message, .. } if message.body == DownBody::Leave)
}

#[test]
fn past_its_deadline_a_drain_ends_without_feeds_that_have_nowhere_to_go_and_they_run_on() {
    let mut bench = bound_to_n1();
    drain(&mut bench, Some(Millis::secs(20)), Then::Stay);
    bench.pass(Millis::secs(18));
    assert_eq!(bench.drained("n1"), "draining", "its time is not over");
    bench.until("it ends", |bench| bench.drained("n1") == "drained_except");
    assert_eq!(left(&bench, "n1"), what_is_left());
    assert_eq!(bench.acting("orders"), ["n1"]);
    bench.goes_on("orders");
    assert_eq!(bench.count("orders", "n1"), 4);
}

#[test]
fn force_does_not_wait_for_feeds_that_have_nowhere_to_go_either() {
    let mut bench = bound_to_n1();
    drain(&mut bench, Some(Millis::ZERO), Then::Stay);
    bench.until("it ends", |bench| bench.drained("n1") == "drained_except");
    assert_eq!(left(&bench, "n1"), what_is_left());
    bench.goes_on("orders");
}

#[test]
fn without_a_deadline_a_drain_waits_and_says_that_there_is_nowhere_to_go() {
    let mut bench = bound_to_n1();
    drain(&mut bench, None, Then::Stay);
    bench.pass(Millis::secs(100));
    assert_eq!(bench.drained("n1"), "draining");
    let coordinator = bench.coordinator.as_ref().expect("a coordinator");
    let part = bench.cluster().last_drain_of("n1").and_then(|drain| drain.part("n1")).expect("its part");
    let waits = coordinator.drain_status(part, bench.now).waits;
    let waits: Vec<(String, Code)> = waits.into_iter().map(|wait| (wait.unit, wait.code)).collect();
    assert_eq!(waits, what_is_left());
    bench.goes_on("orders");
}

#[test]
fn a_feed_that_may_go_elsewhere_is_waited_for_past_the_deadline() {
    let mut bench = bound_to_n1();
    bench.feed("users", 6);
    assert!(bench.count("users", "n1") > 0);
    bench.lose(|letter| matches!(letter, Letter::Peer { from: "n2", .. } | Letter::Peer { to: "n2", .. }));
    bench.lose(Letter::is_relayed);
    drain(&mut bench, Some(Millis::ZERO), Then::Stay);
    bench.pass(Millis::secs(30));
    assert_eq!(bench.drained("n1"), "draining", "{:?}", left(&bench, "n1"));
    bench.lift();
    bench.until("it ends", |bench| bench.drained("n1") == "drained_except");
    assert_eq!(left(&bench, "n1"), what_is_left());
    assert_eq!(bench.count("users", "n2"), 6);
}

#[test]
fn what_nobody_knows_is_waited_for_past_the_deadline() {
    let mut bench = bound_to_n1();
    bench.lose(|letter| {
        matches!(letter, Letter::Down { to: "n1", message, .. } if matches!(message.body, DownBody::Roster(_)))
    });
    drain(&mut bench, Some(Millis::ZERO), Then::Stay);
    bench.pass(Millis::secs(30));
    assert_eq!((bench.drained("n1"), bench.inventory("n1")), ("draining", None));
    bench.lift_and_forget();
    bench.until("it ends", |bench| bench.drained("n1") == "drained_except");
}

#[test]
fn a_daemon_is_not_stopped_under_feeds_that_stayed_and_is_once_they_have_gone() {
    let mut bench = bound_to_n1();
    drain(&mut bench, Some(Millis::ZERO), Then::Stop);
    bench.until("it ends", |bench| bench.drained("n1") == "drained_except");
    let ended = bench.mark();
    bench.pass(Millis::secs(20));
    assert_eq!(bench.cluster().node_by_id("n1").map(|node| node.rec.intent), Some(Intent::Stopping));
    assert_eq!(bench.sent_since(ended, was_told_to_leave), 0);
    bench.goes_on("orders");
    bench.join_labelled("n3", &[("rack", "a")]);
    bench.until("it has moved", |bench| bench.count("orders", "n3") == 4);
    bench.until("n1 may go", |bench| bench.sent_since(ended, was_told_to_leave) > 0);
    assert_eq!((bench.maintainer("orders"), bench.tasks("n1")), ("n3", 0));
    bench.goes_on("orders");
}

#[test]
fn a_daemon_that_has_something_of_a_feed_does_not_leave_whoever_says_so() {
    let mut bench = bound_to_n1();
    drain(&mut bench, Some(Millis::ZERO), Then::Stop);
    bench.until("it ends", |bench| bench.drained("n1") == "drained_except");
    // One that does not know yet what runs there.
    bench.fail_over();
    bench.pass(Millis::secs(10));
    assert_eq!(bench.sent_since(model::Time(0), was_told_to_leave), 0);
    bench.goes_on("orders");
}

#[test]
fn a_tool_that_kills_a_node_at_zero_reads_no_zero_while_feeds_stay() {
    let mut bench = bound_to_n1();
    drain(&mut bench, Some(Millis::ZERO), Then::AwaitStop);
    bench.until("it ends", |bench| bench.drained("n1") == "drained_except");
    let count = |bench: &Bench| {
        let coordinator = bench.coordinator.as_ref().expect("a coordinator");
        let ix = coordinator.capture("n1").expect("a capture");
        coordinator.capture_left(ix).count()
    };
    assert_eq!(count(&bench), 5);
    bench.hold(|letter| matches!(letter, Letter::Up { from: "n1", .. }));
    bench.fail_over();
    assert!(count(&bench) > 0, "nobody knows");
    bench.lift_and_forget();
    bench.pass(Millis::secs(10));
    assert_eq!(count(&bench), 5);
}

#[test]
fn a_feed_that_is_paused_and_has_nowhere_to_go_leaves_only_its_maintainer_behind() {
    let mut bench = bound_to_n1();
    bench.set_feed("orders", FeedState::Paused).expect("a feed to pause");
    bench.until("it is paused", |bench| bench.tasks("n1") == 0);
    drain(&mut bench, Some(Millis::ZERO), Then::Stay);
    bench.until("it ends", |bench| bench.drained("n1") == Ending::DrainedExcept.as_str());
    assert_eq!(left(&bench, "n1"), what_is_left()[..1]);
}
