//! A node drain with stores on it.

use model::{Actual, Millis, RestartWhy};
use protocol::coordinator::{DrainRequest, StoreAction};

use crate::{backend::Stage, bench::Bench};

#[test]
fn a_store_on_a_local_volume_is_replaced_first_then_leaves_in_two_steps() {
    let mut bench = Bench::with_stores(3);
    bench.backend.needed = 3;
    ["n4", "n5"].iter().for_each(|node| bench.office.manners(node).starts = false);
    let epoch = bench.office.drain(&["n1"]).unwrap();
    bench.seconds(5);
    assert_eq!(bench.names().len(), 4, "a new one first");
    assert!(bench.offline().is_empty());
    assert_eq!(bench.waits("kv-0"), "replicas_not_enough");
    ["n4", "n5"].iter().for_each(|node| bench.office.manners(node).starts = true);
    bench.until("it leaves", |bench| bench.backend.of("kv-0").stage == Stage::Removing);
    assert_eq!(bench.backend.serving(), 3);
    bench.second();
    assert_eq!(bench.office.waits(epoch, "n1")[0].0, "data_moving");
    bench.until("the node is empty", |bench| bench.office.part(epoch, "n1") == "drained");
    assert_eq!(bench.names(), ["kv-1", "kv-2", "kv-3"]);
    assert!(bench.is_quiet());
}

#[test]
fn a_process_that_its_backend_does_not_count_on_replaces_nobody() {
    let mut bench = Bench::with_stores(3);
    (bench.backend.joins, bench.backend.knows_strangers) = (false, true);
    bench.office.drain(&["n1"]).unwrap();
    bench.until("its process runs", |bench| {
        bench.names().len() == 4 && bench.store("kv-3").identity.is_some()
    });
    bench.seconds(30);
    assert!(bench.offline().is_empty());
    assert_eq!(bench.waits("kv-0"), "replicas_not_enough");
}

#[test]
fn a_store_on_a_movable_volume_restarts_elsewhere_gracefully() {
    let mut bench = Bench::movable(3);
    let epoch = bench.office.drain(&["n1"]).unwrap();
    bench.second();
    assert_eq!(bench.store("kv-0").restart.unwrap().why, RestartWhy::Drain);
    bench.until("the node is empty", |bench| bench.office.part(epoch, "n1") == "drained");
    bench.until("its leaders are back", |bench| bench.is_quiet());
    assert_ne!(bench.node("kv-0"), "n1");
    assert_eq!(bench.names(), ["kv-0", "kv-1", "kv-2"], "the same stores");
    let cluster = bench.office.coordinator.cluster();
    assert_eq!(cluster.volume("kv-data-0").unwrap().home.to_string(), bench.node("kv-0"));
    assert!(!bench.changes().iter().any(|call| call.starts_with("begin")), "no data moves");
}

#[test]
fn without_a_node_for_it_a_movable_store_keeps_running_and_says_why() {
    let mut bench = Bench::movable(3);
    for node in ["n2", "n3", "n4", "n5"] {
        bench.office.ask(disabled(node)).unwrap();
    }
    bench.seconds(2);
    let drained = bench.office.drain(&["n1"]);
    assert!(drained.is_err(), "no open node would be left: refused at the door");
    assert_eq!(bench.status("kv-0").process, Some(Actual::Ready));
}

fn disabled(node: &str) -> protocol::coordinator::Request {
    let intent = protocol::coordinator::WantedIntent::Disabled;
    protocol::coordinator::Request::SetIntent { node: node.into(), intent }
}

#[test]
fn a_deadline_forces_no_data_loss_and_the_stores_way_out_goes_on_after_the_drain() {
    let mut bench = Bench::with_stores(3);
    bench.backend.data_pace = 0;
    let request = DrainRequest { deadline: Some(Some(Millis::secs(60))), ..Default::default() };
    let epoch = bench.office.drain_with(&["n1"], request).unwrap();
    bench.seconds(90);
    assert_eq!(bench.office.part(epoch, "n1"), "drained_except");
    let left = bench.office.coordinator.cluster().drain(epoch).unwrap().part("n1").unwrap().left.clone();
    assert_eq!(left, [("store/kv-0".to_owned(), model::Code::DataMoving)]);
    assert_eq!(bench.status("kv-0").process, Some(Actual::Ready), "its data is still there");
    bench.backend.data_pace = 10;
    bench.until("it is gone in the end", |bench| bench.names() == ["kv-1", "kv-2", "kv-3"]);
}

#[test]
fn cancelling_takes_back_what_can_be_taken_back() {
    let mut bench = Bench::with_stores(3);
    bench.backend.data_pace = 1;
    bench.office.drain(&["n1"]).unwrap();
    bench.until("it leaves", |bench| bench.backend.of("kv-0").stage == Stage::Removing);
    bench.office.cancel("n1").unwrap();
    bench.backend.data_pace = 50;
    bench.until("all is as before", |bench| bench.is_quiet() && bench.names().len() == 3);
    assert_eq!(bench.names(), ["kv-0", "kv-1", "kv-2"], "the one that was there stays, its stand-in goes");
}

#[test]
fn cancelling_the_drain_of_a_movable_store_leaves_it_where_it_is() {
    let mut bench = Bench::movable(3);
    bench.backend.leader_pace = 0;
    bench.office.drain(&["n1"]).unwrap();
    bench.seconds(10);
    assert!(bench.backend.of("kv-0").evictors.contains("ours"));
    bench.office.cancel("n1").unwrap();
    bench.until("nothing is left of it", |bench| bench.is_quiet());
    assert_eq!(bench.node("kv-0"), "n1");
}

#[test]
fn drain_restart_and_scale_in_on_one_group_agree() {
    let mut bench = Bench::with_stores(5);
    bench.backend.needed = 3;
    bench.office.drain(&["n1"]).unwrap();
    bench.act("kv-2", StoreAction::Restart).unwrap();
    bench.scale(4).unwrap();
    for _ in 0..300 {
        let away = bench.backend.members.values().filter(|member| !member.evictors.is_empty()).count();
        let settling = bench.stores().iter().filter(|store| store.removed_at.is_some()).count();
        let moving = bench.backend.members.values().filter(|member| member.stage != Stage::Serving).count();
        assert!(away <= 1 + moving + settling, "{away}");
        assert!(bench.backend.serving() >= 3);
        bench.second();
    }
    assert!(bench.is_quiet(), "{:#?}", bench.stores());
    assert_eq!(
        bench.names(),
        ["kv-1", "kv-2", "kv-3", "kv-4"],
        "the one on the draining node is the one too many"
    );
}

#[test]
fn a_preview_says_where_stores_would_go_and_changes_nothing() {
    let mut bench = Bench::movable(3);
    let before = bench.stores();
    let request = DrainRequest { nodes: vec!["n1".into()], ..Default::default() };
    let rehearsal = bench.office.coordinator.rehearse_drain(&request, bench.office.now).unwrap();
    let (_, preview) = rehearsal.play().remove(0);
    let moved = preview.moves.iter().find(|step| step.unit == "store/kv-0").unwrap();
    assert!(moved.to.is_some());
    assert_eq!(bench.stores(), before);
    bench.second();
}
