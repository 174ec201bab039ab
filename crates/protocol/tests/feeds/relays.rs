//! A maintainer and a node that cannot reach each other, though both live: the coordinator is between them.

use model::{Code, Millis};
use protocol::message::feed::Phase;

use crate::bench::{Bench, Letter, Name};

/// `orders` is maintained on n3, which cannot reach n2.
fn apart() -> Bench {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 9);
    bench.cut("n2", "n3");
    bench
}

fn phase(bench: &Bench) -> Option<Phase> {
    bench.report("orders").filter(|report| report.epoch == bench.record("orders").epoch).map(|r| r.phase)
}

/// The one of n2 and n3 that does not maintain it.
fn other(bench: &Bench) -> Name {
    if bench.maintainer("orders") == "n2" { "n3" } else { "n2" }
}

#[test]
fn a_maintainer_that_takes_over_and_cannot_reach_one_node_gets_to_work_all_the_same() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    assert_eq!(bench.maintainer("orders"), "n1");
    bench.cut("n2", "n3");
    bench.drain("n1");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert_eq!(phase(&bench), Some(Phase::Working));
    assert!(bench.troubles("orders").contains(&Code::PeerUnreachable), "that it is so is said");
    let (at, other) = (bench.maintainer("orders"), other(&bench));
    bench.goes_on("orders");
    assert_eq!(
        (bench.count("orders", at), bench.count("orders", other)),
        (6, 3),
        "none went where it is cut off"
    );
}

#[test]
fn spans_of_a_node_that_died_are_not_kept_waiting_by_one_that_cannot_be_reached() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    bench.cut("n2", "n3");
    bench.kill("n1");
    bench.until("all run", |bench| bench.all_run("orders"));
    let other = other(&bench);
    assert_eq!(bench.count("orders", other), 3, "what it has stays there");
    bench.goes_on("orders");
}

#[test]
fn a_node_that_its_maintainer_cannot_reach_is_drained() {
    let mut bench = apart();
    bench.drain("n2");
    bench.until("the drain ends", |bench| bench.drained("n2") == "drained");
    assert_eq!((bench.tasks("n2"), bench.handed_over("orders")), (0, true));
    bench.goes_on("orders");
}

#[test]
fn the_checkpoint_of_a_feed_rises_though_a_part_of_it_is_told_by_way_of_the_coordinator() {
    let mut bench = apart();
    bench.pass(Millis::secs(15));
    let before = bench.report("orders").and_then(|report| report.checkpoint).expect("a checkpoint");
    bench.pass(Millis::secs(15));
    let after = bench.report("orders").and_then(|report| report.checkpoint).expect("a checkpoint");
    assert!(after.position > before.position, "{before:?}, {after:?}");
}

#[test]
fn nodes_that_reach_each_other_again_need_nobody_between_them() {
    let mut bench = apart();
    bench.until("the coordinator is between them", |bench| {
        bench.sent.iter().any(|(_, letter)| letter.is_relayed())
    });
    bench.mend_all();
    bench.until("that is over", |bench| !bench.troubles("orders").contains(&Code::PeerUnreachable));
    bench.pass(Millis::secs(20));
    let since = bench.mark();
    bench.drain("n1");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert_eq!(bench.sent_since(since, Letter::is_relayed), 0);
}

#[test]
fn nothing_is_passed_on_of_a_maintainer_that_has_been_succeeded() {
    let mut bench = apart();
    bench.hold(|letter| matches!(letter, Letter::Up { from: "n3", .. }) && letter.is_relayed());
    bench.pass(Millis::secs(10));
    assert!(bench.held() > 0);
    bench.hold_no_more();
    bench.drain("n3");
    bench.until("another is at work", |bench| {
        bench.maintainer("orders") != "n3" && bench.handed_over("orders")
    });
    let since = bench.mark();
    bench.lift();
    let down = |letter: &Letter| matches!(letter, Letter::Down { to: "n2", .. }) && letter.is_relayed();
    assert_eq!(bench.sent_since(since, down), 0);
    bench.mend_all();
    bench.until("the drain ends", |bench| bench.drained("n3") == "drained");
    bench.goes_on("orders");
}

#[test]
fn a_coordinator_that_dies_between_them_is_followed_by_another() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    bench.cut("n2", "n3");
    bench.drain("n1");
    bench.pass(Millis::secs(2));
    bench.fail_over();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}
