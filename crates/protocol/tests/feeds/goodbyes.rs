//! A daemon that ends in good order says so, and nobody waits for it.

use model::{Code, FeedState, Millis, Roles};
use protocol::{
    message::{UpBody, feed::PeerBody},
    node::{Input, Node},
};

use crate::bench::{Bench, COORDINATOR, Letter, Name, TIMING};

fn is_goodbye(letter: &Letter) -> bool {
    matches!(letter, Letter::Up { message, .. } if message.body == UpBody::Goodbye)
}

fn is_over(bench: &Bench, node: Name) -> bool {
    bench.cluster().node_by_id(node).is_some_and(|node| node.rec.is_over())
}

/// `orders` runs everywhere, and is maintained on n1.
fn everywhere() -> Bench {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    assert_eq!(bench.maintainer("orders"), "n1");
    bench
}

#[test]
fn the_spans_and_the_maintainer_of_a_daemon_that_said_goodbye_run_elsewhere_at_once() {
    let mut bench = everywhere();
    bench.stop("n1");
    let since = bench.mark();
    assert!(is_over(&bench, "n1"));
    bench.until("all run elsewhere", |bench| bench.all_run("orders") && bench.handed_over("orders"));
    assert!(bench.now.since(since) < TIMING.degraded_after, "it waited for {:?}", bench.now.since(since));
    assert_eq!(bench.troubles("orders"), []);
    bench.goes_on("orders");
    assert_eq!(bench.troubles("orders"), [], "nobody looks for it");
}

#[test]
fn spans_whose_last_words_were_lost_run_elsewhere_by_the_goodbye_alone() {
    let mut bench = everywhere();
    bench.lose(|letter| {
        matches!(letter, Letter::Peer { from: "n2", message, .. } if matches!(message.body, PeerBody::News { .. }))
    });
    bench.stop("n2");
    let since = bench.mark();
    bench.until("all run elsewhere", |bench| bench.all_run("orders"));
    assert!(bench.now.since(since) < TIMING.degraded_after);
    bench.goes_on("orders");
}

#[test]
fn without_its_goodbye_a_daemon_counts_as_running_until_its_lease_is_over() {
    let mut bench = everywhere();
    bench.lose(is_goodbye);
    bench.lose(|letter| matches!(letter, Letter::Peer { from: "n2", .. }));
    bench.stop("n2");
    let since = bench.mark();
    assert!(!is_over(&bench, "n2"));
    bench.until("all run elsewhere", |bench| bench.all_run("orders"));
    assert!(bench.now.since(since) >= TIMING.fence_after, "it was silent for {:?}", bench.now.since(since));
}

#[test]
fn a_goodbye_is_said_only_when_the_last_dispatcher_has_stopped() {
    let mut bench = everywhere();
    bench.machines.get_mut("n2").expect("a machine").hangs = true;
    bench.give("n2", Input::Stopping);
    bench.pass(Millis::secs(5));
    assert!(bench.tasks("n2") > 0);
    assert_eq!((bench.sent_since(model::Time(0), is_goodbye), is_over(&bench, "n2")), (0, false));
    // What does not stop is aborted after a while.
    bench.until("it may end", |bench| bench.machines["n2"].node.as_ref().is_some_and(Node::may_end));
    assert_eq!(bench.tasks("n2"), 0);
    assert!(is_over(&bench, "n2"));
}

#[test]
fn a_daemon_that_is_about_to_end_takes_nothing_on_whatever_leases_it_gets() {
    let mut bench = everywhere();
    bench.machines.get_mut("n3").expect("a machine").hangs = true;
    bench.give("n3", Input::Stopping);
    let running = bench.tasks("n3");
    // Its heartbeats are still answered, and the others have more than their share.
    bench.set_feed("orders", FeedState::Paused).expect("a feed to pause");
    bench.pass(Millis::secs(2));
    bench.set_feed("orders", FeedState::Running).expect("a feed to resume");
    bench.apply("users", 6);
    bench.until("all run", |bench| bench.all_run("users"));
    assert_eq!(bench.count("users", "n3"), 0);
    assert!(bench.tasks("n3") <= running);
}

#[test]
fn a_daemon_that_loses_the_coordinator_while_it_ends_stops_as_at_the_fence() {
    let mut bench = everywhere();
    bench.machines.get_mut("n2").expect("a machine").hangs = true;
    bench.cut("n2", COORDINATOR);
    bench.pass(Millis(TIMING.fence_after.0 - 500));
    bench.give("n2", Input::Stopping);
    // The bench sees to it that no span is at work twice.
    bench.until("others have them", |bench| bench.all_run("orders") && bench.count("orders", "n2") == 0);
    bench.mend_all();
    bench.goes_on("orders");
}

#[test]
fn a_life_that_follows_a_goodbye_at_once_takes_part_whatever_directory_it_has() {
    for proves in [true, false] {
        let mut bench = everywhere();
        bench.stop("n2");
        let before = bench.machines["n2"].life;
        bench.begin_life("n2", proves.then_some(before));
        let since = bench.mark();
        bench.until("all run", |bench| bench.all_run("orders"));
        bench.until("it has its share", |bench| bench.count("orders", "n2") > 0);
        assert!(!is_over(&bench, "n2"));
        assert_eq!(bench.cluster().node_by_id("n2").and_then(|node| node.rec.lingers), None);
        assert!(bench.now.since(since) < Millis::secs(40));
        bench.goes_on("orders");
    }
}

#[test]
fn a_goodbye_that_comes_after_the_next_life_has_begun_says_nothing_of_that_one() {
    let mut bench = everywhere();
    bench.hold(is_goodbye);
    bench.stop("n2");
    bench.restart("n2");
    bench.pass(Millis::secs(2));
    bench.lift();
    bench.pass(Millis::secs(2));
    assert!(!is_over(&bench, "n2"));
    bench.goes_on("orders");
}

#[test]
fn a_goodbye_ends_its_own_life_and_not_one_before_it_that_may_still_run() {
    let mut bench = everywhere();
    // Cut off with its dispatchers at work; another daemon with its id comes and goes.
    bench.cut_off("n2");
    bench.pass(Millis::secs(1));
    bench.join("n4", Roles::WORKER);
    bench.pass(TIMING.degraded_after);
    bench.rival_with("n2", &[UpBody::Goodbye]);
    let lingers = bench.cluster().node_by_id("n2").and_then(|node| node.rec.lingers);
    assert!(lingers.is_some() && !is_over(&bench, "n2"));
    bench.until("all run elsewhere", |bench| {
        bench.all_run("orders") && bench.count("orders", "n2") == 0 && is_over(bench, "n2")
    });
}

#[test]
fn a_coordinator_that_takes_office_after_a_goodbye_knows_of_it() {
    let mut bench = everywhere();
    bench.stop("n1");
    bench.fail_over();
    let since = bench.mark();
    bench.until("all run elsewhere", |bench| bench.all_run("orders") && bench.handed_over("orders"));
    assert!(bench.now.since(since) < TIMING.degraded_after, "it waited for {:?}", bench.now.since(since));
    bench.goes_on("orders");
    assert!(!bench.troubles("orders").contains(&Code::PeerUnreachable));
}

#[test]
fn a_feed_that_is_applied_after_a_goodbye_does_not_ask_the_one_that_is_gone() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.stop("n1");
    let since = bench.mark();
    bench.feed("orders", 6);
    assert!(bench.now.since(since) < TIMING.degraded_after, "it waited for {:?}", bench.now.since(since));
    assert_eq!(bench.sent_since(since, |letter| matches!(letter, Letter::Peer { to: "n1", .. })), 0);
}
