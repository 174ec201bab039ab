//! Spans and feeds over their lives: who owns them, how they come and go.

use model::{Code, FeedName, FeedState, Millis, Roles, SpanName};
use protocol::coordinator::FeedLimits;

use crate::bench::*;

fn span(name: &str) -> SpanName {
    SpanName::new(name)
}

// Who may say what.

#[test]
fn a_maintainer_that_has_been_succeeded_changes_nothing_at_any_node() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    assert_eq!(bench.maintainer("orders"), "n1");
    bench.hold(|letter| letter.asks("n1") || (letter.ends().0 == "n1" && letter.orders().next().is_some()));
    bench.tables.sources.get_mut("orders").expect("a source").extend([span("u0"), span("u1"), span("u2")]);
    bench.until("it has asked and ordered", |bench| {
        let asked = bench.sent.iter().rev().take(500).any(|(_, letter)| letter.asks("n1"));
        asked && bench.held() > 2
    });
    bench.pause("n1");
    bench.until("another acts", |bench| bench.maintainer("orders") != "n1" && bench.all_run("orders"));
    bench.pass(Millis(2000));
    let (before, epoch) = (bench.at_work("orders"), bench.record("orders").epoch);
    let (since, prepared) = (bench.mark(), bench.tables.prepared);
    bench.lift();
    let answers = |letter: &Letter| letter.is_answer_of("n2") || letter.is_answer_of("n3");
    assert_eq!((bench.sent_since(since, answers), bench.tables.prepared), (0, prepared), "nobody listens");
    bench.wake("n1");
    bench.pass(Millis(1000));
    assert_eq!((bench.at_work("orders"), bench.tables.prepared), (before, prepared));
    for node in ["n2", "n3"] {
        let node = bench.machines[node].node.as_ref().expect("a node");
        let whose = node.dispatchers().maintainer_of(&FeedName::new("orders"));
        assert_eq!(whose.map(|(epoch, _)| epoch), Some(epoch));
    }
    bench.goes_on("orders");
}

#[test]
fn an_answer_that_was_meant_for_the_maintainer_before_does_not_count_for_its_successor() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.hold(|letter| letter.is_answer_of("n3") && letter.to() == Some("n1"));
    bench.pass(Millis(6000));
    assert!(bench.held() > 0);
    bench.drain("n1");
    bench.until("another acts", |bench| bench.handed_over("orders") && bench.maintainer("orders") != "n1");
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("orders");
}

// Starts.

#[test]
fn a_start_that_is_denied_goes_elsewhere() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 3);
    bench.hold(|letter| letter.starts("n2"));
    bench.drain("n1");
    bench.until("a start is on its way to n2", |bench| bench.held() > 0);
    bench.lose(|letter| letter.is_answer_of("n2"));
    let owned = bench.sent.iter().filter(|(_, letter)| letter.starts("n2")).flat_map(|(_, l)| l.started());
    let owned: Vec<Key> = owned.collect();
    bench.drain("n2");
    bench.pass(Millis(500));
    let since = bench.mark();
    bench.lift();
    bench.until("all run", |bench| bench.all_run("orders"));
    for key in owned {
        let begun = bench.tables.begun.iter().find(|begun| begun.at >= since && begun.key == key);
        assert_eq!(begun.map(|begun| begun.on), Some("n3"), "{key:?}");
    }
    bench.goes_on("orders");
}

#[test]
fn a_start_that_never_arrives_is_never_given_to_another_and_is_repeated() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 3);
    bench.lose(|letter| letter.starts("n2"));
    bench.tables.sources.get_mut("orders").expect("a source").extend([span("u0"), span("u1"), span("u2")]);
    bench.until("it was told to start", |bench| {
        bench.sent.iter().any(|(_, l)| l.started().len() == 1 && l.starts("n2"))
    });
    bench.pass(Millis::secs(30));
    let told = bench.sent.iter().filter(|(_, letter)| letter.starts("n2")).flat_map(|(_, l)| l.started());
    let owned = told.last().expect("a span");
    assert!(bench.tables.begun.iter().all(|begun| begun.key != owned));
    assert_eq!(bench.at_work("orders").len(), 5, "the others run");
    bench.lift();
    bench.until("it runs", |bench| bench.all_run("orders"));
    assert_eq!(bench.at_work("orders")[owned.1.as_str()], "n2");
}

#[test]
fn a_start_whose_answer_is_lost_runs_where_it_was_sent_and_nowhere_else() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 3);
    bench.pass(Millis(1000));
    // The answers to its preparation come, those to its start do not.
    bench.lose(|letter| match letter {
        Letter::Peer { from: "n2", message, .. } => match &message.body {
            protocol::message::feed::PeerBody::News { held, .. }
            | protocol::message::feed::PeerBody::Inventory { held, .. } => held.iter().any(|held| {
                held.state == protocol::message::feed::HeldState::Running
                    && held.span.as_str().starts_with('u')
            }),
            _ => false,
        },
        _ => letter.is_relayed(),
    });
    bench.tables.sources.get_mut("orders").expect("a source").extend([span("u0"), span("u1"), span("u2")]);
    bench.until("all run", |bench| bench.all_run("orders"));
    let before = bench.at_work("orders");
    bench.pass(Millis::secs(40));
    assert_eq!(bench.at_work("orders"), before);
    assert!(bench.report("orders").is_some_and(|report| report.absent > 0), "it has not heard that it runs");
    bench.lift();
    bench.until("it has heard", |bench| bench.report("orders").is_some_and(|report| report.absent == 0));
    assert_eq!(bench.at_work("orders"), before);
}

#[test]
fn a_dispatcher_that_does_not_stop_is_aborted_after_a_while_and_its_span_goes_on_elsewhere() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 3);
    bench.machines.get_mut("n1").expect("a machine").hangs = true;
    bench.drain("n1");
    let since = bench.now;
    bench.until("it has left", |bench| bench.count("orders", "n1") == 0 && bench.all_run("orders"));
    assert!(bench.now.since(since) >= protocol::dispatchers::STOP_PATIENCE);
    bench.goes_on("orders");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
}

// Lives.

#[test]
fn a_node_that_is_restarted_loses_its_dispatchers_and_they_run_again_at_once() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    assert_eq!(bench.count("orders", "n2"), 2);
    bench.restart("n2");
    assert_eq!(bench.at_work("orders").len(), 4);
    let since = bench.now;
    bench.until("all run", |bench| bench.all_run("orders"));
    assert!(bench.now.since(since) < TIMING.fence_after, "its lock says that the life before is over");
    bench.goes_on("orders");
}

#[test]
fn a_maintainer_whose_node_is_restarted_is_placed_again_at_once() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    assert_eq!(bench.acting("orders"), ["n1"]);
    let epoch = bench.record("orders").epoch;
    bench.restart("n1");
    let since = bench.now;
    bench.until("one acts", |bench| bench.acting("orders").len() == 1 && bench.all_run("orders"));
    assert!(bench.now.since(since) < TIMING.fence_after);
    assert!(bench.record("orders").epoch > epoch);
    bench.goes_on("orders");
}

#[test]
fn what_was_ordered_of_an_earlier_life_of_a_node_changes_nothing_in_the_next() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.hold(|letter| letter.prepares("n2"));
    bench.tables.sources.get_mut("orders").expect("a source").extend([span("u0"), span("u1"), span("u2")]);
    bench.until("one is on its way to n2", |bench| bench.held() > 0);
    bench.hold_no_more();
    bench.restart("n2");
    bench.until("all run", |bench| bench.all_run("orders"));
    bench.pass(Millis(1000));
    let (before, prepared) = (bench.at_work("orders"), bench.tables.prepared);
    bench.lift();
    bench.pass(Millis(500));
    assert_eq!((bench.at_work("orders"), bench.tables.prepared), (before, prepared));
}

#[test]
fn what_an_earlier_life_of_a_node_said_does_not_count_for_the_next() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.hold(|letter| letter.is_answer_of("n2"));
    bench.tables.sources.get_mut("orders").expect("a source").extend([span("u0"), span("u1"), span("u2")]);
    bench.until("it has said something", |bench| bench.held() > 0);
    bench.hold_no_more();
    bench.restart("n2");
    bench.pass(Millis(100));
    bench.lift();
    bench.until("all run", |bench| bench.all_run("orders"));
    bench.goes_on("orders");
}

#[test]
fn a_life_that_cannot_prove_that_the_one_before_is_over_waits_for_its_lease() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.begin_life("n2", None);
    let (began, since) = (bench.now, bench.mark());
    bench.pass(Millis(1000));
    assert_eq!(bench.at_work("orders").len(), 4, "the other life may still run the rest");
    bench.until("all run", |bench| bench.all_run("orders"));
    assert!(bench.now.since(began).0 + TIMING.heartbeat.0 >= TIMING.offline_after.0);
    let first = bench.tables.begun.iter().find(|begun| begun.at >= since).expect("some began").at;
    assert!(first.since(began).0 + TIMING.heartbeat.0 >= TIMING.offline_after.0);
    bench.goes_on("orders");
}

#[test]
fn a_drain_does_not_end_while_an_earlier_life_of_the_node_may_still_run() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.lose(|letter| letter.stops("n2"));
    bench.drain("n2");
    bench.pass(Millis(500));
    assert_eq!(bench.count("orders", "n2"), 2);
    bench.begin_life("n2", None);
    let began = bench.now;
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n2") == "drained");
    let after = bench.now.since(began);
    assert!(after.0 + TIMING.heartbeat.0 >= TIMING.offline_after.0, "{after}: nobody knows what it runs");
    bench.goes_on("orders");
}

#[test]
fn a_maintainer_of_a_life_that_may_still_run_is_not_succeeded_before_its_lease_is_over() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    let epoch = bench.record("orders").epoch;
    bench.begin_life("n1", None);
    let began = bench.now;
    bench.until("another is named", |bench| bench.record("orders").epoch > epoch);
    assert!(bench.now.since(began).0 + TIMING.heartbeat.0 >= TIMING.offline_after.0);
    bench.goes_on("orders");
}

#[test]
fn a_node_whose_id_another_daemon_had_meanwhile_stops_what_counts_as_over_before_others_start_it() {
    for node in ["n1", "n2"] {
        let mut bench = Bench::new(&["n1", "n2", "n3"]);
        bench.feed("orders", 6);
        bench.cut(node, COORDINATOR);
        bench.pass(Millis(TIMING.degraded_after.0 + 100));
        bench.rival(node);
        bench.mend_all();
        // It is back within its lease, and nobody may take that for the life that was there before.
        bench.pass(TIMING.offline_after);
        bench.goes_on("orders");
        bench.pass(TIMING.offline_after);
        bench.goes_on("orders");
        assert_eq!(bench.acting("orders").len(), 1);
    }
}

#[test]
fn a_daemon_that_is_told_to_end_hands_its_dispatchers_over_with_their_last_words() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    let since = bench.mark();
    bench.stop("n2");
    bench.until("all run", |bench| bench.all_run("orders"));
    for begun in bench.tables.begun.iter().filter(|begun| begun.at >= since) {
        assert_eq!(begun.from.expect("a last word").position, begun.rows);
    }
    bench.goes_on("orders");
}

#[test]
fn a_daemon_that_is_told_to_end_gives_the_last_report_of_its_maintainers() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    let (epoch, since) = (bench.record("orders").epoch, bench.mark());
    bench.stop("n1");
    bench.until("another is named", |bench| bench.record("orders").epoch > epoch);
    assert!(bench.now.since(since) < TIMING.fence_after, "it said that it had stopped");
    bench.goes_on("orders");
}

// The source changes.

#[test]
fn a_span_that_vanishes_is_stopped_and_swept_and_begins_anew_when_it_returns() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.pass(Millis(2000));
    let gone = key("orders", "t4");
    let old = bench.tables.begun.iter().rfind(|begun| begun.key == gone).expect("it began").epoch;
    bench.tables.sources.get_mut("orders").expect("a source").remove("t4");
    bench.until("it is swept", |bench| bench.tables.swept.contains(&gone));
    assert_eq!(bench.at_work("orders").len(), 5);
    let stays: Vec<Key> = bench.tables.swept.iter().filter(|key| **key != gone).cloned().collect();
    assert_eq!(stays, [], "nothing else was swept");
    bench.pass(Millis(1000));
    bench.tables.sources.get_mut("orders").expect("a source").insert(span("t4"));
    bench.until("it runs again", |bench| bench.all_run("orders"));
    let anew = bench.tables.begun.iter().rfind(|begun| begun.key == gone).expect("it began");
    assert_eq!((anew.rows, anew.from), (0, None));
    assert!(anew.epoch > old);
    bench.goes_on("orders");
}

#[test]
fn a_node_that_remembers_a_vanished_span_has_no_say_in_the_one_that_returns_under_its_name() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.pass(Millis(2000));
    let (name, _) = bench.at_work("orders").into_iter().find(|(_, on)| *on == "n2").expect("one of n2");
    let gone = key("orders", &name);
    bench.lose(|letter| letter.releases("n2"));
    bench.tables.sources.get_mut("orders").expect("a source").remove(name.as_str());
    bench.until("it is swept", |bench| bench.tables.swept.contains(&gone));
    bench.tables.sources.get_mut("orders").expect("a source").insert(span(&name));
    bench.until("it runs again", |bench| bench.all_run("orders"));
    let anew = bench.tables.begun.iter().rfind(|begun| begun.key == gone).expect("it began");
    assert_eq!((anew.on, anew.rows, anew.from), ("n2", 0, None));
    bench.goes_on("orders");
}

#[test]
fn a_span_that_vanishes_and_returns_across_a_hand_over_begins_anew() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.pass(Millis(2000));
    let gone = key("orders", "t4");
    bench.tables.sources.get_mut("orders").expect("a source").remove("t4");
    bench.until("it is swept", |bench| bench.tables.swept.contains(&gone));
    let since = bench.mark();
    bench.drain("n1");
    bench.tables.sources.get_mut("orders").expect("a source").insert(span("t4"));
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained" && bench.all_run("orders"));
    let anew = bench.tables.begun.iter().find(|begun| begun.at >= since && begun.key == gone);
    assert_eq!(anew.map(|begun| (begun.rows, begun.from)), Some((0, None)));
    bench.goes_on("orders");
}

#[test]
fn a_source_that_does_not_answer_is_named_and_what_runs_runs_on() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.tables.dark.insert("orders".into());
    bench.until("it is named", |bench| bench.troubles("orders").contains(&Code::SourceUnreachable));
    bench.goes_on("orders");
    assert_eq!(bench.record("orders").spans.names.len(), 6);
    bench.tables.dark.clear();
    bench.until("that is over", |bench| bench.troubles("orders").is_empty());
}

#[test]
fn the_checkpoint_of_a_feed_does_not_pass_a_span_that_stands_still() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.pass(Millis(3000));
    bench.pause("n2");
    let still: Vec<Key> = bench.machines["n2"].tasks.keys().cloned().collect();
    let rows = still.iter().filter_map(|key| bench.tables.rows(key)).min().expect("it has spans");
    bench.pass(Millis(3000));
    let said = bench.report("orders").and_then(|report| report.checkpoint).expect("a checkpoint");
    assert!(said.position <= rows, "{} is past {rows}", said.position);
    assert!(bench.tables.rows_at_source(bench.now) > rows + 50);
    bench.wake("n2");
    bench.until("it goes on", |bench| {
        bench.report("orders").and_then(|report| report.checkpoint).is_some_and(|c| c.position > rows + 50)
    });
}

#[test]
fn the_checkpoint_that_a_maintainer_has_said_does_not_go_back_when_it_dies() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.apply_on_last("orders", 6);
    bench.pass(Millis(4000));
    let (node, epoch) = (bench.maintainer("orders"), bench.record("orders").epoch);
    let said = bench.report("orders").and_then(|report| report.checkpoint).expect("a checkpoint");
    let stored = bench.record("orders").checkpoint.unwrap_or_default();
    assert!(said.position > stored.position, "it had got further since it was last stored");
    bench.kill(node);
    bench.until("its successor reports", |bench| {
        bench.report("orders").is_some_and(|report| report.epoch > epoch)
    });
    let next = bench.report("orders").and_then(|report| report.checkpoint).expect("a checkpoint");
    assert!(next.position >= said.position && next.at >= said.at, "{said:?}, then {next:?}");
}

#[test]
fn what_was_prepared_for_a_maintainer_that_is_gone_is_given_up() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.hold(|letter| letter.prepares("n2"));
    bench.apply("orders", 6);
    bench.until("it is asked to prepare", |bench| bench.held() > 0);
    bench.hold_no_more();
    bench.remove("orders");
    // It was on its way for so long that nobody is left who would tell the node to let go of it.
    bench.lift();
    bench.until("it arrives", |bench| bench.tasks("n2") > 0);
    bench.until("it is given up", |bench| bench.tasks("n2") == 0);
}

// What people ask for.

#[test]
fn a_checkpoint_of_fewer_spans_is_not_stored_for_those_that_came_meanwhile() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 3);
    bench.pass(Millis::secs(15));
    let node = bench.maintainer("orders");
    // It looks at its source and is not told that there is more to do.
    bench.hold(move |letter| {
        matches!(letter, Letter::Down { to, message, .. }
            if *to == node && matches!(message.body, protocol::message::DownBody::Feeds(_)))
    });
    bench.tables.sources.get_mut("orders").expect("a source").insert(span("u0"));
    bench.until("the set is stored", |bench| bench.record("orders").spans.names.len() == 4);
    let before = bench.record("orders").clone();
    assert!(before.checkpoint.is_some());
    bench.pass(Millis::secs(15));
    assert_eq!(bench.record("orders").spans, before.spans, "it is the same set, however often it is seen");
    assert_eq!(bench.record("orders").checkpoint, before.checkpoint);
    bench.lift();
    bench.goes_on("orders");
    bench.until("it rises again", |bench| bench.record("orders").checkpoint > before.checkpoint);
}

#[test]
fn a_feed_that_is_paused_stops_and_goes_on_where_it_was_when_it_is_resumed() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.set_feed("orders", FeedState::Paused).expect("it may be paused");
    bench.until("it has stopped", |bench| bench.at_work("orders").is_empty());
    bench.pass(Millis::secs(20));
    assert_eq!(["n1", "n2", "n3"].map(|node| bench.tasks(node)), [0, 0, 0]);
    assert_eq!((bench.acting("orders").len(), bench.tables.swept.len()), (1, 0), "nothing is cleared away");
    let since = bench.mark();
    bench.set_feed("orders", FeedState::Running).expect("it may be resumed");
    bench.goes_on("orders");
    for begun in bench.tables.begun.iter().filter(|begun| begun.at >= since) {
        assert_eq!(begun.from.expect("where it was").position, begun.rows);
    }
}

#[test]
fn a_feed_that_is_paused_in_the_middle_of_a_drain_leaves_the_node_and_resumes_elsewhere() {
    let limits = FeedLimits { maintainer_batch: 1, moves_per_node: 1, moves_total: 2 };
    let mut bench = Bench::limited(limits, &["n1", "n2", "n3"]);
    bench.feed("orders", 12);
    bench.drain("n1");
    bench.pass(Millis(150));
    assert_eq!(bench.drained("n1"), "draining");
    bench.set_feed("orders", FeedState::Paused).expect("it may be paused");
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert_ne!(bench.maintainer("orders"), "n1");
    bench.fail_over();
    bench.set_feed("orders", FeedState::Running).expect("it may be resumed");
    bench.goes_on("orders");
    assert_eq!(bench.count("orders", "n1"), 0);
}

#[test]
fn a_feed_that_is_removed_stops_is_swept_and_leaves_nothing_at_any_node() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.feed("users", 3);
    bench.remove("orders");
    assert_eq!((bench.at_work("orders").len(), bench.acting("orders").len()), (0, 0));
    assert_eq!(bench.tables.swept.len(), 6);
    assert!(bench.tables.swept.iter().all(|(feed, _)| feed.as_str() == "orders"));
    bench.goes_on("users");
    let refused = bench.set_feed("orders", FeedState::Running).expect_err("it is gone");
    assert_eq!(refused.code, "feed_not_found");
}

#[test]
fn a_feed_is_removed_though_coordinators_die_and_nodes_are_drained_meanwhile() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.drain("n1");
    bench.set_feed("orders", FeedState::Removing).expect("it may be removed");
    let refused = bench.set_feed("orders", FeedState::Running).expect_err("there is no way back");
    assert_eq!(refused.code, "feed_removing");
    bench.fail_over();
    bench.pass(Millis(100));
    if bench.cluster().feed("orders").is_some() {
        bench.fail_over();
    }
    bench.until("it is gone", |bench| bench.cluster().feed("orders").is_none());
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    assert_eq!(["n1", "n2", "n3"].map(|node| bench.tasks(node)), [0, 0, 0]);
}

#[test]
fn a_feed_that_is_removed_and_made_anew_begins_from_the_start_whatever_comes_late() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.pass(Millis(3000));
    let (epoch, spans) = (bench.record("orders").epoch, bench.tables.begun.len());
    let highest = bench.tables.begun.iter().map(|begun| begun.epoch).max().expect("some began");
    // Words of the first one that arrive only when the second runs.
    bench.hold(|letter| {
        matches!(letter, Letter::Peer { message, .. }
        if matches!(message.body, protocol::message::feed::PeerBody::Progress { .. }))
    });
    bench.pass(Millis(1000));
    assert!(bench.held() > 0);
    bench.remove("orders");
    bench.apply("orders", 6);
    assert_eq!(bench.record("orders").checkpoint, None);
    bench.lift();
    bench.until("it runs", |bench| bench.all_run("orders"));
    assert!(bench.record("orders").epoch > epoch);
    let anew = &bench.tables.begun[spans..];
    assert_eq!(anew.len(), 6);
    for begun in anew {
        assert_eq!((begun.rows, begun.from), (0, None));
        assert!(begun.epoch > highest);
    }
    bench.goes_on("orders");
}

// Limits, and not being held up.

#[test]
fn no_node_takes_on_more_at_a_time_than_it_may_whoever_asks() {
    let limits = FeedLimits { maintainer_batch: 8, moves_per_node: 3, moves_total: 100 };
    let mut bench = Bench::limited(limits, &["n1"]);
    for feed in ["a", "b", "c"] {
        bench.feed(feed, 6);
    }
    bench.join("n2", Roles::WORKER);
    bench.pass(Millis(500));
    bench.hold(|letter| letter.is_ready_at("n2"));
    bench.drain("n1");
    bench.pass(Millis(1500));
    assert_eq!(bench.tasks("n2"), 3, "over all feeds");
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    ["a", "b", "c"].into_iter().for_each(|feed| bench.goes_on(feed));
}

#[test]
fn a_feed_whose_sink_is_broken_elsewhere_does_not_hold_up_the_others() {
    let mut bench = Bench::new(&["n1"]);
    for feed in ["bad", "good"] {
        bench.feed(feed, 4);
    }
    bench.join("n2", Roles::WORKER);
    bench.pass(Millis(500));
    bench.tables.broken.insert(("n2", "bad".into()));
    bench.drain("n1");
    bench.until("the other has left", |bench| bench.count("good", "n2") == 4);
    bench.pass(Millis::secs(10));
    assert_eq!(bench.count("bad", "n1"), 4, "it runs on where it can");
    assert_eq!(bench.drained("n1"), "draining");
    assert!(bench.caught_up("bad", bench.now));
    bench.tables.broken.clear();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
    bench.goes_on("bad");
}

#[test]
fn a_hand_over_that_takes_too_long_does_not_hold_up_the_next_one() {
    let mut bench = Bench::new(&["n1"]);
    for feed in ["a", "b", "c"] {
        bench.feed(feed, 1);
    }
    bench.join("n2", Roles::WORKER);
    bench.pass(Millis(500));
    bench.lose(|letter| letter.quiesces_of("a"));
    bench.drain("n1");
    bench.pass(Millis(5000));
    assert_eq!((bench.maintainer("b"), bench.waits("b")), ("n1", Some(Code::MaxParallel)));
    bench.until("the others have left", |bench| {
        ["b", "c"].iter().all(|feed| bench.handed_over(feed) && bench.maintainer(feed) == "n2")
    });
    assert_eq!((bench.acting("a"), bench.waits("a")), (vec!["n1"], Some(Code::MaintainerUnconfirmed)));
    bench.lift();
    bench.until("the drain ends", |bench| bench.drained("n1") == "drained");
}

#[test]
fn a_dispatcher_that_fails_is_tried_again_where_it_is_and_named_until_it_works() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 3);
    for node in ["n1", "n2", "n3"] {
        bench.tables.broken.insert((node, "orders".into()));
    }
    bench.set_feed("orders", FeedState::Paused).expect("it may be paused");
    bench.until("it has stopped", |bench| bench.at_work("orders").is_empty());
    bench.set_feed("orders", FeedState::Running).expect("it may be resumed");
    bench.until("it is named", |bench| bench.report("orders").is_some_and(|report| report.absent == 3));
    bench.pass(Millis::secs(10));
    assert_eq!(bench.at_work("orders").len(), 0);
    bench.tables.broken.clear();
    bench.goes_on("orders");
    bench.until("all is well", |bench| {
        bench.report("orders").is_some_and(|report| report.absent == 0 && report.troubles.is_empty())
    });
}

#[test]
fn a_life_that_may_still_run_is_waited_for_under_the_next_coordinator_too() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    bench.begin_life("n2", None);
    let (began, since) = (bench.now, bench.mark());
    bench.pass(Millis(500));
    bench.fail_over();
    bench.until("all run", |bench| bench.all_run("orders"));
    let first = bench.tables.begun.iter().find(|begun| begun.at >= since).expect("some began").at;
    assert!(first.since(began).0 + TIMING.heartbeat.0 >= TIMING.offline_after.0, "{}", first.since(began));
    bench.goes_on("orders");
}
