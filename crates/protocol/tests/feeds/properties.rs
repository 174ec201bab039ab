//! What holds in every drain of feeds, as far as a single case shows it.

use model::{Code, FeedName, Millis, NodeId, Roles, SpanName};
use protocol::{
    coordinator::FeedLimits,
    message::{
        SetRevision,
        feed::{Roster, RosterNode},
    },
    node::FeedNews,
    roster::RosterView,
};

use crate::bench::*;

/// Nothing was prepared or started there since then.
fn was_given_nothing(bench: &Bench, node: Name, since: model::Time) -> bool {
    let given = bench.sent_since(since, |letter| letter.prepares(node) || letter.starts(node));
    given == 0 && bench.tables.begun.iter().all(|begun| begun.on != node || begun.at < since)
}

fn add_spans(bench: &mut Bench, feed: Name, names: &[&str]) {
    let source = bench.tables.sources.get_mut(feed).expect("a source");
    source.extend(names.iter().map(|name| SpanName::new(name)));
}

// Nothing goes to a closed node.

#[test]
fn spans_that_appear_during_a_drain_start_on_open_nodes() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 3);
    bench.machines.get_mut("n1").unwrap().hangs = true;
    let since = bench.mark();
    bench.drain("n1");
    add_spans(&mut bench, "orders", &["u0", "u1", "u2", "u3", "u4", "u5"]);
    bench.until("they run", |bench| bench.all_run("orders"));
    assert_eq!(bench.drained("n1"), "draining");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert!(was_given_nothing(&bench, "n1", since));
    bench.goes_on("orders");
}

#[test]
fn what_leaves_one_draining_node_does_not_go_to_the_next_one() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.feed("users", 6);
    let since = bench.mark();
    bench.drain_all(&["n1", "n2"]);
    bench.until("both have ended", |bench| {
        (bench.drained("n1"), bench.drained("n2")) == ("drained", "drained")
    });
    assert!(was_given_nothing(&bench, "n2", since));
    assert_eq!((bench.count("orders", "n3"), bench.count("users", "n3")), (6, 6));
    assert_eq!((bench.maintainer("orders"), bench.maintainer("users")), ("n3", "n3"));
}

#[test]
fn a_node_that_has_drained_gets_nothing_however_uneven_the_others_are_until_it_is_enabled() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.drain("n1");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    let since = bench.mark();
    bench.kill("n3");
    bench.until("n2 has all", |bench| bench.count("orders", "n2") == 6);
    bench.pass(Millis(20_000));
    assert!(was_given_nothing(&bench, "n1", since));
    bench.enable("n1");
    bench.until("n1 has its share", |bench| bench.count("orders", "n1") == 3);
    bench.goes_on("orders");
}

#[test]
fn nothing_moves_twice_for_one_drain_and_nothing_moves_back() {
    let limits = FeedLimits { maintainer_batch: 1, moves_per_node: 2, moves_total: 3 };
    let mut bench = Bench::limited(limits, &["n1", "n2", "n3"]);
    bench.feed("orders", 9);
    bench.feed("users", 9);
    let since = bench.mark();
    bench.drain("n1");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.pass(Millis::secs(30));
    let moved: Vec<&Key> = bench.tables.begun.iter().filter(|b| b.at >= since).map(|b| &b.key).collect();
    let once: std::collections::BTreeSet<&Key> = moved.iter().copied().collect();
    assert!(once.len() >= 6, "all that was on n1");
    assert_eq!(moved.len(), once.len());
    assert!(was_given_nothing(&bench, "n1", since));
}

#[test]
fn what_is_even_stays_as_it_is() {
    let mut bench = Bench::new(&["n1", "n2"]);
    bench.feed("orders", 9);
    bench.join("n3", Roles::WORKER);
    bench.until("n3 has its share", |bench| bench.count("orders", "n3") == 3);
    bench.pass(Millis(1000));
    let before = bench.tables.begun.len();
    bench.pass(Millis::secs(60));
    assert_eq!(bench.tables.begun.len(), before);
    bench.goes_on("orders");
}

#[test]
fn shares_are_evened_out_under_a_coordinator_that_did_not_see_how_they_came_about() {
    let mut bench = Bench::new(&["n1", "n2"]);
    bench.feed("orders", 9);
    bench.join("n3", Roles::WORKER);
    bench.pass(Millis(1000));
    bench.fail_over();
    bench.until("n3 has its share", |bench| bench.count("orders", "n3") == 3);
    bench.goes_on("orders");
}

#[test]
fn a_node_whose_turn_has_not_come_is_closed_and_keeps_its_maintainers() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.feed("users", 6);
    assert_eq!((bench.maintainer("orders"), bench.maintainer("users")), ("n1", "n2"));
    bench.machines.get_mut("n1").unwrap().hangs = true;
    let since = bench.mark();
    bench.drain_all(&["n1", "n2"]);
    bench.pass(Millis(3000));
    assert_eq!((bench.drained("n1"), bench.drained("n2")), ("draining", "queued"));
    assert_eq!((bench.maintainer("orders"), bench.maintainer("users")), ("n3", "n2"));
    assert!(was_given_nothing(&bench, "n2", since));
    bench.until("both have ended", |bench| {
        (bench.drained("n1"), bench.drained("n2")) == ("drained", "drained")
    });
}

#[test]
fn a_feed_that_is_applied_during_a_drain_is_maintained_elsewhere() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.drain("n1");
    for feed in ["orders", "users", "clicks"] {
        bench.feed(feed, 3);
        assert_ne!(bench.maintainer(feed), "n1");
        assert_eq!(bench.count(feed, "n1"), 0);
    }
}

#[test]
fn a_node_that_knows_itself_closed_refuses_a_maintainer_that_does_not_know() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 3);
    bench.feed("users", 3);
    assert_eq!(bench.maintainer("users"), "n2");
    bench.lose(|letter| letter.announces_roster("n2"));
    let since = bench.mark();
    bench.drain("n1");
    add_spans(&mut bench, "users", &["u0", "u1", "u2"]);
    bench.until("they run", |bench| bench.all_run("users"));
    assert!(bench.sent_since(since, |letter| letter.prepares("n1")) > 0, "n2 did not know");
    let began = bench.tables.begun.iter().filter(|begun| begun.at >= since && begun.on == "n1");
    assert_eq!(began.count(), 0);
}

#[test]
fn a_node_that_knows_less_of_the_closed_set_than_the_maintainer_takes_nothing_on() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.lose(|letter| letter.announces_roster("n3"));
    bench.drain("n1");
    bench.until("what n2 can take has left", |bench| bench.count("orders", "n1") == 0);
    assert_eq!((bench.count("orders", "n2"), bench.count("orders", "n3")), (4, 2));
    assert_eq!(bench.maintainer("orders"), "n2");
}

// One acts, and the trigger is with it.

#[test]
fn of_all_maintainers_of_a_feed_one_acts_and_only_its_node_looks_at_the_source() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    for node in ["n1", "n2", "n3"] {
        let at = bench.maintainer("orders");
        let since = bench.mark();
        bench.pass(Millis(12_000));
        let looks = |bench: &Bench, which: &dyn Fn(Name) -> bool| {
            bench.sent_since(since, |letter| match letter {
                Letter::Shell { at, news: FeedNews::Looked { .. }, .. } => which(at),
                _ => false,
            })
        };
        assert!(looks(&bench, &|on| on == at) >= 2);
        assert_eq!(looks(&bench, &|on| on != at), 0);
        bench.drain(node);
        bench.until("the drain ends", |bench| bench.drained(node) == "drained");
        assert_eq!(bench.acting("orders").len(), 1);
        assert_ne!(bench.acting("orders"), [node]);
        bench.enable(node);
        bench.pass(Millis(500));
    }
}

// Limits.

fn many_maintainers_on_n1(limits: FeedLimits) -> Bench {
    let mut bench = Bench::limited(limits, &["n1"]);
    for feed in ["a", "b", "c", "d", "e", "f"] {
        bench.feed(feed, 1);
    }
    for node in ["n2", "n3", "n4"] {
        bench.join(node, Roles::WORKER);
    }
    bench.pass(Millis(1000));
    bench
}

fn under_way(bench: &Bench) -> usize {
    bench.cluster().feeds().filter(|feed| feed.maintainer.as_ref().is_some_and(|m| m.from.is_some())).count()
}

#[test]
fn no_more_maintainers_are_handed_over_at_a_time_than_the_batch_allows() {
    for batch in [1, 2] {
        let limits = FeedLimits { maintainer_batch: batch, ..FeedLimits::default() };
        let mut bench = many_maintainers_on_n1(limits);
        bench.hold(Letter::quiesces);
        bench.drain("n1");
        bench.pass(Millis(2000));
        assert_eq!(under_way(&bench), batch as usize);
        let waiting = ["a", "b", "c", "d", "e", "f"].iter();
        let waiting = waiting.filter(|feed| bench.waits(feed) == Some(Code::MaxParallel)).count();
        assert_eq!(waiting, 6 - batch as usize);
        bench.lift();
        bench.until("the drain ends", |bench| {
            assert!(under_way(bench) <= batch as usize);
            bench.drained("n1") == "drained"
        });
    }
}

#[test]
fn a_feed_that_no_other_node_may_maintain_takes_no_turn_from_the_others() {
    let mut bench = Bench::new(&[]);
    bench.join_labelled("n1", &[("disk", "ssd")]);
    bench.pass(Millis(500));
    bench.apply_where("a", 1, &[("disk", "ssd")]);
    bench.feed("b", 1);
    bench.join("n2", Roles::WORKER);
    bench.pass(Millis(500));
    bench.drain("n1");
    bench.until("the other has left", |bench| bench.maintainer("b") == "n2" && bench.count("b", "n2") == 1);
    assert_eq!((bench.maintainer("a"), bench.waits("a")), ("n1", Some(Code::NoEligibleNode)));
    assert_eq!((bench.count("a", "n1"), bench.drained("n1")), (1, "draining"));
}

#[test]
fn the_next_maintainer_leaves_only_when_the_one_before_is_at_work() {
    let mut bench = many_maintainers_on_n1(FeedLimits::default());
    // The successor of the first asks in vain.
    bench.lose(|letter| {
        matches!(letter, Letter::Peer { from: "n2", message, .. }
        if matches!(message.body, protocol::message::feed::PeerBody::Ask { .. }))
    });
    bench.lose(Letter::is_relayed);
    bench.drain("n1");
    bench.pass(Millis(2000));
    assert_eq!((bench.maintainer("a"), bench.handed_over("a")), ("n2", true));
    assert_eq!(bench.maintainer("b"), "n1");
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
}

#[test]
fn feeds_that_are_applied_together_are_maintained_all_over_the_cluster() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_together(&["a", "b", "c", "d", "e", "f"]);
    bench.until("all run", |bench| ["a", "b", "c", "d", "e", "f"].iter().all(|feed| bench.all_run(feed)));
    for node in ["n1", "n2", "n3"] {
        assert_eq!(bench.cluster().maintainer_count(&NodeId::new(node)), 2, "{node}");
    }
}

#[test]
fn maintainers_go_to_the_nodes_with_the_fewest_those_under_way_counted() {
    let limits = FeedLimits { maintainer_batch: 6, ..FeedLimits::default() };
    let mut bench = many_maintainers_on_n1(limits);
    bench.hold(Letter::quiesces);
    bench.drain("n1");
    bench.pass(Millis(500));
    assert_eq!(under_way(&bench), 6);
    for node in ["n2", "n3", "n4"] {
        assert_eq!(bench.cluster().maintainer_count(&NodeId::new(node)), 2);
    }
}

#[test]
fn dispatchers_go_to_the_nodes_with_the_fewest_those_under_way_counted() {
    let mut bench = Bench::new(&["n1"]);
    bench.feed("orders", 9);
    for node in ["n2", "n3", "n4"] {
        bench.join(node, Roles::WORKER);
    }
    bench.pass(Millis(1000));
    for node in ["n2", "n3", "n4"] {
        bench.hold(move |letter| letter.is_ready_at(node));
    }
    bench.drain("n1");
    bench.pass(Millis(500));
    assert_eq!(bench.count("orders", "n1"), 9, "none has left");
    for node in ["n2", "n3", "n4"] {
        assert_eq!(bench.tasks(node), 3);
    }
}

#[test]
fn a_node_that_has_more_of_other_feeds_comes_later_among_equals() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.kill("n3");
    bench.until("n3 is offline", |bench| bench.cluster().node_by_id("n3").unwrap().rec.is_offline());
    bench.feed("users", 8);
    bench.restart("n3");
    bench.pass(Millis(1000));
    let loads = [bench.tasks("n1"), bench.tasks("n2"), bench.tasks("n3")];
    bench.feed("orders", 1);
    assert_eq!(bench.count("orders", "n3"), 1, "{loads:?}");
}

// When it is done.

#[test]
fn a_drain_of_a_node_with_nothing_on_it_ends_only_when_the_node_has_acknowledged_the_closed_set() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 1);
    assert_eq!(bench.tasks("n3"), 0);
    bench.lose(|letter| letter.announces_roster("n3"));
    bench.drain("n3");
    bench.pass(Millis(5000));
    assert_eq!((bench.drained("n3"), bench.inventory("n3")), ("draining", None), "nobody knows");
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n3") == "drained");
    assert_eq!(bench.inventory("n3"), Some(0));
}

#[test]
fn a_drain_ends_only_when_the_nodes_own_inventory_is_empty_whatever_the_maintainer_says() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 3);
    bench.machines.get_mut("n1").unwrap().hangs = true;
    bench.drain("n1");
    bench.pass(Millis(5000));
    let left = bench.tasks("n1") as u32;
    assert!(bench.count("orders", "n1") > 0, "it does not stop");
    assert_eq!((bench.drained("n1"), bench.inventory("n1")), ("draining", Some(left)));
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert_eq!(bench.tasks("n1"), 0);
}

#[test]
fn a_drain_ends_only_when_the_last_maintainer_is_handed_over() {
    let mut bench = Bench::new(&["n1", "n2"]);
    bench.apply("orders", 0);
    bench.pass(Millis(1000));
    assert_eq!(bench.acting("orders"), ["n1"]);
    bench.lose(Letter::quiesces);
    bench.drain("n1");
    bench.pass(Millis(5000));
    assert_eq!((bench.drained("n1"), bench.waits("orders")), ("draining", Some(Code::MaintainerUnconfirmed)));
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert_eq!(bench.acting("orders"), ["n2"]);
}

// How it gets about.

#[test]
fn every_node_is_told_of_a_closed_one_at_once_and_acknowledges_it() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 2);
    bench.pass(Millis(1000));
    let since = bench.mark();
    // Nothing is on it, so that nothing else has to be said.
    assert_eq!((bench.maintainer("orders"), bench.tasks("n3")), ("n1", 0));
    bench.drain("n3");
    for node in ["n1", "n2", "n3"] {
        assert_eq!(bench.sent_since(since, |letter| letter.announces_roster(node)), 1, "{node}");
        assert!(bench.inventory(node).is_some(), "{node} has acknowledged it before any time passed");
    }
}

#[test]
fn what_a_node_does_not_acknowledge_is_said_again_until_it_does() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 3);
    bench.lose(|letter| letter.announces_roster("n3"));
    let since = bench.mark();
    bench.drain("n1");
    bench.pass(Millis(4000));
    assert!(bench.sent_since(since, |letter| letter.announces_roster("n3")) >= 3);
    assert_eq!(bench.inventory("n3"), None);
    bench.lift();
    bench.pass(Millis(1000));
    assert!(bench.inventory("n3").is_some());
    let quiet = bench.mark();
    bench.pass(Millis(5000));
    assert_eq!(bench.sent_since(quiet, |letter| letter.announces_roster("n3")), 0, "once is enough");
}

#[test]
fn a_node_that_joins_during_a_drain_learns_of_it_before_it_gets_anything() {
    let mut bench = Bench::new(&["n1", "n2"]);
    bench.feed("orders", 4);
    bench.drain("n1");
    bench.lose(|letter| letter.announces_roster("n3"));
    bench.join("n3", Roles::WORKER);
    bench.pass(Millis(200));
    bench.apply("users", 6);
    bench.pass(Millis(2000));
    assert_eq!(bench.tasks("n3"), 0);
    bench.lift();
    bench.until("the other feed runs", |bench| bench.all_run("users"));
    assert_eq!(bench.count("users", "n3"), 3);
    assert_eq!(bench.tasks("n1"), 0);
}

fn roster(term: u64, number: u64, since: Option<u64>, closed: bool) -> Roster {
    let revision = |number| SetRevision { term: model::Term(term), number };
    let node = RosterNode {
        node: NodeId::new("n1"),
        epoch: model::ProcessEpoch(1),
        rpc: String::new(),
        closed,
        offline: false,
        labels: Default::default(),
    };
    let nodes = vec![node];
    let since_revision = since.map(revision).unwrap_or_default();
    Roster { revision: revision(number), since: since_revision, full: since.is_none(), nodes }
}

#[test]
fn a_closed_set_that_is_out_of_date_or_builds_on_a_missed_one_changes_nothing() {
    let mut view = RosterView::default();
    assert!(view.take(&roster(2, 5, None, true)));
    assert!(!view.take(&roster(2, 4, None, false)), "older");
    assert!(!view.take(&roster(2, 5, None, false)), "the same");
    assert!(!view.take(&roster(1, 9, None, false)), "of an older term");
    assert!(!view.take(&roster(2, 8, Some(7), false)), "it builds on what never came");
    assert!(view.is_closed(&NodeId::new("n1")));
    assert!(view.take(&roster(2, 8, Some(5), false)));
    assert!(!view.is_closed(&NodeId::new("n1")));
    assert!(view.is_closed(&NodeId::new("n2")), "nobody knows it");
}

#[test]
fn a_drained_node_stays_out_and_its_maintainers_and_dispatchers_stay_away() {
    let mut bench = Bench::new(&["n1", "n2"]);
    bench.feed("orders", 4);
    bench.drain("n1");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.restart("n1");
    bench.fail_over();
    bench.pass(Millis(20_000));
    assert_eq!((bench.tasks("n1"), bench.maintainer("orders")), (0, "n2"));
    assert!(bench.cluster().node_by_id("n1").unwrap().is_closed());
    assert!(bench.cluster().feed("orders").is_some_and(|feed| feed.name == FeedName::new("orders")));
}
