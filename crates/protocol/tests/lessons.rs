//! How others' drains failed in the machinery around the planner, and that ours does not. Numbers are
//! those of docs/lessons.md.

#![allow(clippy::unwrap_used)]

mod office;

use model::{Kind, Millis, Return, Roles, ServiceSpec};
use office::{Office, StoreIs, TIMING, at_edge, batch, spec, with_volume};
use protocol::coordinator::{Answer, DrainRequest, ErrorKind, Input, Request, WantedIntent};

/// What a node's drain waits for, without since when.
fn codes(office: &Office, epoch: u64, node: &str) -> Vec<&'static str> {
    office.waits(epoch, node).into_iter().map(|(code, _)| code).collect()
}

#[test]
fn lesson_04_how_a_drain_ended_stays_on_record_whatever_becomes_of_the_node() {
    let mut office = Office::with_nodes(3);
    office.run("web", 3, spec("web"));
    let drained = office.drain(&["n1"]).unwrap();
    office.let_it_run();
    assert_eq!((office.part(drained, "n1"), office.intent("n1")), ("drained", "drained"));
    office.ask(Request::SetIntent { node: "n1".into(), intent: WantedIntent::Active }).unwrap();

    let empty = office.drain(&["n1"]).unwrap();
    // It has nothing left to move but its edge.
    office.let_it_run();
    office.cancel("n1").unwrap_err();
    assert_eq!(office.part(empty, "n1"), "drained");
    office.ask(Request::SetIntent { node: "n1".into(), intent: WantedIntent::Active }).unwrap();
    office.run("job", 3, batch("job"));
    let cancelled = office.drain(&["n1"]).unwrap();
    office.cancel("n1").unwrap();

    let lost = office.drain(&["n1"]).unwrap();
    office.silence("n1");
    office.seconds(61);
    office.connect("n1");
    office.let_it_run();
    let endings = [drained, cancelled, lost].map(|epoch| office.part(epoch, "n1"));
    assert_eq!(endings, ["drained", "cancelled", "node_lost"]);
    assert_eq!(office.health("n1"), "up", "and nothing of that can be read from the node");
    office.next_coordinator();
    assert_eq!([drained, cancelled, lost].map(|epoch| office.part(epoch, "n1")), endings);
}

#[test]
fn lesson_11_nobody_is_told_to_stop_before_every_edge_has_confirmed() {
    let mut office = Office::with_nodes(3);
    office.run("web", 3, at_edge("web"));
    let old = office.on("n1");
    office.manners("n3").confirms = false;
    let epoch = office.drain(&["n1"]).unwrap();
    // However long it takes: time is no confirmation.
    office.seconds(600);
    assert_eq!(codes(&office, epoch, "n1"), ["edge_confirming"]);
    assert!(office.nodes["n1"].stops.is_empty());
    office.manners("n3").confirms = true;
    office.let_it_run();
    assert_eq!(office.nodes["n1"].stops, old);
    assert_eq!(office.part(epoch, "n1"), "drained");
}

#[test]
fn lesson_14_a_drain_goes_on_under_the_next_coordinator_from_wherever_it_was_and_stops_each_once() {
    for (seconds, confirms) in (0..12).flat_map(|seconds| [(seconds, true), (seconds, false)]) {
        let mut office = Office::with_nodes(3);
        office.run("web", 6, at_edge("web"));
        let old = office.on("n1");
        office.manners("n3").confirms = confirms;
        let epoch = office.drain(&["n1"]).unwrap();
        office.seconds(seconds);
        office.next_coordinator();
        office.manners("n3").confirms = true;
        for _ in 0..30 {
            office.second();
            assert!(office.available("web") >= 6, "killed after {seconds} s");
        }
        assert_eq!(office.part(epoch, "n1"), "drained", "killed after {seconds} s");
        let mut stops = office.nodes["n1"].stops.clone();
        stops.sort();
        assert_eq!(stops, old, "each once, killed after {seconds} s");
        let running = |node: &str| office.on(node).len();
        assert_eq!((running("n1"), running("n2") + running("n3")), (0, 6), "none left over");
    }
}

#[test]
fn lesson_14_a_drain_is_cancelled_from_any_state_and_after_any_failover() {
    for seconds in 0..12 {
        let mut office = Office::with_nodes(3);
        office.run("web", 6, at_edge("web"));
        office.run("db", 3, with_volume("db"));
        // The volume keeps it going for ever.
        let epoch = office.drain(&["n1", "n2"]).unwrap();
        office.seconds(seconds);
        office.next_coordinator();
        office.ask(Request::CancelDrain { epoch }).unwrap();
        assert_eq!((office.part(epoch, "n1"), office.part(epoch, "n2")), ("cancelled", "cancelled"));
        assert_eq!((office.intent("n1"), office.intent("n2")), ("active", "active"));
        office.let_it_run();
        assert_eq!((office.available("web"), office.available("db")), (6, 3), "after {seconds} s");
        let all: usize = ["n1", "n2", "n3"].iter().map(|node| office.on(node).len()).sum();
        assert_eq!(all, 9, "exactly the counts, after {seconds} s");
    }
}

#[test]
fn lesson_15_what_was_under_way_for_a_cancelled_drain_does_not_complete_the_next_one() {
    let mut office = Office::with_nodes(3);
    office.run("web", 3, spec("web"));
    office.run("job", 3, batch("job"));
    office.manners("n1").stops = false;
    let first = office.drain(&["n1"]).unwrap();
    office.seconds(5);
    assert!(codes(&office, first, "n1").contains(&"grace_period"));
    office.cancel("n1").unwrap();
    let second = office.drain(&["n1"]).unwrap();
    assert_eq!(second, first + 1);
    // The stop of the first drain is reported during the second.
    office.manners("n1").stops = true;
    office.let_it_run();
    assert_eq!((office.part(first, "n1"), office.part(second, "n1")), ("cancelled", "draining"));
    assert_eq!(codes(&office, second, "n1"), ["batch_running"], "its own work is not done");
    let force = DrainRequest { deadline: Some(Some(Millis(0))), ..Default::default() };
    office.drain_with(&["n1"], force).unwrap();
    office.let_it_run();
    assert_eq!((office.part(first, "n1"), office.part(second, "n1")), ("cancelled", "drained"));
}

#[test]
fn lesson_16_of_two_requests_that_race_only_one_passes() {
    let mut office = Office::with_nodes(2);
    office.run("web", 2, spec("web"));
    // Neither is in the store when the other is looked at.
    office.store = StoreIs::Away;
    let drain = |node: &str| Request::Drain(DrainRequest { nodes: vec![node.into()], ..Default::default() });
    let (one, two) = (office.asks(drain("n1")), office.asks(drain("n2")));
    assert!(
        office.reply(one).is_none() && office.reply(two).is_none(),
        "nothing is said before it is stored"
    );
    office.store = StoreIs::Well;
    office.second();
    assert_eq!(office.reply(one), Some(&Ok(Answer::Draining(1))));
    let refused = office.reply(two).unwrap().as_ref().unwrap_err();
    assert_eq!((refused.kind, refused.code), (ErrorKind::Refused, "no_node_left"));
    office.let_it_run();
    assert_eq!((office.part(1, "n1"), office.available("web")), ("drained", 2));
}

#[test]
fn lesson_17_the_ending_is_written_until_it_is_in_the_store_and_said_only_then() {
    let mut office = Office::with_nodes(3);
    office.run("web", 3, spec("web"));
    office.manners("n1").stops = false;
    let epoch = office.drain(&["n1"]).unwrap();
    office.seconds(5);
    let ended = |office: &Office| office.events.iter().any(|event| event.kind.as_str() == "drain.ended");
    office.store = StoreIs::Away;
    office.manners("n1").stops = true;
    office.seconds(30);
    assert!(!ended(&office), "not in the store, not said");
    // It is taken, and the answer is lost.
    office.store = StoreIs::Mute;
    office.seconds(2);
    assert_eq!(office.store, StoreIs::Well);
    assert!(ended(&office));
    office.next_coordinator();
    assert_eq!((office.part(epoch, "n1"), office.intent("n1")), ("drained", "drained"));
}

#[test]
fn lesson_18_a_node_that_is_lost_does_not_take_the_others_of_its_drain_along() {
    let mut office = Office::with_nodes(4);
    office.run("web", 4, spec("web"));
    office.run("job", 4, batch("job"));
    let epoch = office.drain(&["n1", "n2", "n3"]).unwrap();
    assert_eq!((office.part(epoch, "n1"), office.part(epoch, "n2")), ("draining", "queued"));
    office.silence("n1");
    office.silence("n3");
    office.seconds(61);
    assert_eq!(office.part(epoch, "n1"), "node_lost");
    let force = DrainRequest { deadline: Some(Some(Millis(0))), ..Default::default() };
    office.drain_with(&["n2"], force).unwrap();
    office.let_it_run();
    assert_eq!((office.part(epoch, "n2"), office.part(epoch, "n3")), ("drained", "node_lost"));
    assert_eq!(office.available("web"), 4);
}

#[test]
fn lesson_19_what_an_earlier_life_confirmed_does_not_count() {
    let mut office = Office::with_nodes(3);
    office.run("web", 3, at_edge("web"));
    office.manners("n3").confirms = false;
    let epoch = office.drain(&["n1"]).unwrap();
    office.seconds(5);
    let before = office.nodes["n3"].epoch;
    office.restart("n3");
    assert!(office.nodes["n3"].epoch > before);
    // A word of the earlier life arrives late and says all that is wanted.
    let serves = Some(office.coordinator.sets_revision());
    let (conn, message) = office.nodes.get_mut("n3").unwrap().word_of(before, serves);
    office.give(Input::Up { conn, message });
    office.seconds(30);
    assert_eq!(codes(&office, epoch, "n1"), ["edge_confirming"]);
    assert!(office.nodes["n1"].stops.is_empty());
    office.manners("n3").confirms = true;
    office.let_it_run();
    assert_eq!(office.part(epoch, "n1"), "drained");
}

#[test]
fn lesson_20_an_edge_that_cannot_be_reached_is_named_and_waited_for_until_its_lease_is_over() {
    let mut office = Office::with_nodes(3);
    office.run("web", 3, at_edge("web"));
    office.join("edge", Roles { coordinator: false, worker: false, edge: true });
    office.let_it_run();
    office.silence("edge");
    let epoch = office.drain(&["n1"]).unwrap();
    office.seconds(TIMING.offline_after.0 / 1000 - 10);
    let waits = office.waits(epoch, "n1");
    assert_eq!(waits[0].0, "edge_confirming", "it says what it waits for");
    assert!(office.nodes["n1"].stops.is_empty());
    office.seconds(20);
    assert_eq!(office.health("edge"), "offline");
    assert_eq!(office.part(epoch, "n1"), "drained");
}

#[test]
fn lesson_20_no_time_frees_an_owner() {
    let mut office = Office::with_nodes(3);
    office.run("db", 3, with_volume("db"));
    office.silence("n1");
    office.seconds(3600);
    assert_eq!(office.health("n1"), "offline");
    let elsewhere = office.on("n2").len() + office.on("n3").len();
    assert_eq!((elsewhere, office.on("n1").len()), (2, 1), "it may still run there");
    let owner = office.coordinator.cluster().instance(office.on("n1")[0]).unwrap();
    assert!(owner.is_wanted(), "and is still the one that is wanted: {owner:?}");
}

#[test]
fn lesson_22_the_last_node_that_lives_is_active_again_and_its_drain_cancelled() {
    let mut office = Office::with_nodes(2);
    office.run("web", 2, spec("web"));
    office.manners("n1").stops = false;
    let epoch = office.drain(&["n1"]).unwrap();
    office.seconds(5);
    office.silence("n2");
    office.silence("control");
    office.seconds(TIMING.offline_after.0 / 1000 + 1);
    assert_eq!(office.part(epoch, "n1"), "draining", "others may come back");
    office.seconds(TIMING.last_node_after.0 / 1000 + 1);
    assert_eq!((office.part(epoch, "n1"), office.intent("n1")), ("cancelled", "active"));
    let audit: Vec<String> = office.coordinator.cluster().audit().map(|entry| entry.who.clone()).collect();
    assert_eq!(audit.last().map(String::as_str), Some("system:last_node"));
    office.manners("n1").stops = true;
    office.let_it_run();
    assert_eq!(office.available("web"), 2, "it takes all the work");
}

#[test]
fn lesson_23_the_drain_of_a_dark_node_is_cancelled_without_asking_it() {
    for dark_for in [0, 10, 61] {
        let mut office = Office::with_nodes(3);
        office.run("web", 3, spec("web"));
        office.run("job", 3, batch("job"));
        let epoch = office.drain(&["n1", "n2"]).unwrap();
        office.silence("n1");
        office.silence("n2");
        office.seconds(dark_for);
        office.next_coordinator();
        // Within one step, whatever the nodes say.
        let cancelled = office.ask(Request::CancelDrain { epoch });
        match dark_for {
            61 => assert_eq!(cancelled.unwrap_err().code, "drain_over", "it ended node_lost"),
            _ => {
                cancelled.unwrap();
                assert_eq!((office.part(epoch, "n1"), office.part(epoch, "n2")), ("cancelled", "cancelled"));
                assert_eq!((office.intent("n1"), office.intent("n2")), ("active", "active"));
            }
        }
    }
}

#[test]
fn lesson_40_whether_a_node_comes_back_with_its_reboot_is_what_the_drain_said() {
    for (back, expected) in [(Return::Restart, "active"), (Return::Enable, "drained")] {
        let mut office = Office::with_nodes(3);
        office.run("web", 3, spec("web"));
        let request = DrainRequest { back: Some(back), ..Default::default() };
        let epoch = office.drain_with(&["n1"], request).unwrap();
        office.let_it_run();
        assert_eq!((office.part(epoch, "n1"), office.intent("n1")), ("drained", "drained"));
        office.silence("n1");
        office.connect("n1");
        assert_eq!(office.intent("n1"), "drained", "a stream that breaks is no reboot");
        office.reboot("n1");
        assert_eq!(office.intent("n1"), expected);
        assert_eq!(office.part(epoch, "n1"), "drained");
    }
}

#[test]
fn each_wait_of_a_drain_says_since_when() {
    let mut office = Office::with_nodes(3);
    office.run("web", 3, at_edge("web"));
    office.run("job", 3, batch("job"));
    office.manners("n1").stops = false;
    office.manners("n3").confirms = false;
    let began = office.now;
    let epoch = office.drain(&["n1", "n2"]).unwrap();
    office.seconds(3);
    let since = |office: &Office, node: &str, code: &str| {
        let found = office.waits(epoch, node).into_iter().find(|(seen, _)| *seen == code);
        found.unwrap_or_else(|| panic!("{node} does not wait for {code}")).1.expect(code)
    };
    assert_eq!(since(&office, "n2", "drain_queued"), began);
    let left = since(&office, "n1", "edge_confirming");
    assert!(left > began && left <= office.now);
    office.seconds(10);
    assert_eq!(since(&office, "n1", "edge_confirming"), left, "it does not move");
    office.next_coordinator();
    assert_eq!(since(&office, "n1", "edge_confirming"), left, "nor with the coordinator");
    assert_eq!(since(&office, "n2", "drain_queued"), began);

    office.manners("n3").confirms = true;
    office.seconds(3);
    let told = since(&office, "n1", "grace_period");
    assert!(told > left + Millis::secs(10), "the wait for the edges is over, another began: {told:?}");
    office.seconds(5);
    office.next_coordinator();
    assert_eq!(since(&office, "n1", "grace_period"), told);
}

#[test]
fn lesson_39_the_audit_says_who_drained_and_cancelled_what_and_from_where() {
    let mut office = Office::with_nodes(3);
    office.run("job", 3, batch("job"));
    let request = DrainRequest {
        message: Some("kernel update".into()),
        meta: Some([("ticket".to_owned(), "OPS-1".to_owned())].into()),
        ..Default::default()
    };
    let epoch = office.drain_with(&["n1"], request).unwrap();
    office.cancel("n1").unwrap();
    office.next_coordinator();
    let cluster = office.coordinator.cluster();
    let drain = cluster.drain(epoch).unwrap();
    assert_eq!((drain.by.as_str(), drain.from.as_str()), ("token:alice", "10.0.0.9:5000"));
    assert_eq!((drain.message.as_str(), drain.meta["ticket"].as_str()), ("kernel update", "OPS-1"));
    let said: Vec<_> =
        cluster.audit().map(|entry| (entry.who.as_str(), entry.from.as_str(), &entry.what)).collect();
    let [.., (who, from, drained), (_, _, cancelled)] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!((*who, *from), ("token:alice", "10.0.0.9:5000"));
    assert!(drained.contains("drain") && drained.contains("n1"), "{drained}");
    assert!(cancelled.contains("cancel") && cancelled.contains("n1"), "{cancelled}");
}

#[test]
fn a_node_whose_daemon_said_goodbye_gets_nothing_and_gets_what_it_missed_when_it_is_back_at_once() {
    let mut office = Office::with_nodes(3);
    office.goodbye("n1");
    office.apply("web", 4, spec("web"));
    office.apply("log", 1, ServiceSpec { kind: Kind::System, ..spec("log") });
    assert_eq!((office.health("n1"), office.on("n1").len()), ("up", 0));
    office.restart("n1");
    office.let_it_run();
    assert_eq!(office.available("log"), 3);
}
