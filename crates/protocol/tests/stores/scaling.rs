//! Scale-in in two steps, and its cancel by count.

use protocol::coordinator::{ErrorKind, Request, StoreAction};

use crate::{
    backend::Stage,
    bench::{Bench, group},
};

#[test]
fn a_group_has_as_many_stores_as_it_asks_for_each_with_a_name_a_node_a_volume_and_an_identity() {
    let bench = Bench::with_stores(3);
    assert_eq!(bench.names(), ["kv-0", "kv-1", "kv-2"]);
    let cluster = bench.office.coordinator.cluster();
    for name in bench.names() {
        let status = bench.status(&name);
        assert_eq!((status.state, status.identity), ("serving", Some(format!("id-{name}"))));
        assert!(status.node.is_some() && !status.offline && status.offlining.is_none());
        assert!(cluster.volume(&format!("kv-data-{}", status.ordinal)).is_some());
    }
    assert!(bench.is_quiet());
}

#[test]
fn a_store_leaves_in_two_steps_and_its_process_and_volume_go_only_when_the_backend_says_removed() {
    let mut bench = Bench::with_stores(4);
    bench.scale(3).unwrap();
    assert_eq!(bench.offline(), ["kv-3"], "the newest");
    assert_eq!(bench.offlining("kv-3"), "Pending");
    bench.until("its data moves", |bench| bench.backend.of("kv-3").stage == Stage::Removing);
    assert_eq!(bench.backend.of("kv-3").leaders, 0, "leaders first");
    bench.second();
    assert_eq!(bench.offlining("kv-3"), "Active");
    let status = bench.status("kv-3");
    assert!(status.node.is_some(), "its process serves what is left");
    while bench.backend.of("kv-3").stage != Stage::Removed {
        assert!(bench.status("kv-3").process.is_some());
        bench.second();
    }
    bench.until("its record is gone", |bench| bench.names().len() == 3);
    let cluster = bench.office.coordinator.cluster();
    assert!(cluster.volume("kv-data-3").is_none());
    assert_eq!(bench.backend.of("kv-3").evictors.len(), 0, "nothing of ours outlives it");
    assert!(bench.is_quiet());
    let expected = ["evict leaders kv-3", "begin offline kv-3"];
    let changes = bench.changes();
    let firsts: Vec<&String> =
        expected.iter().map(|call| changes.iter().find(|c| c == call).unwrap()).collect();
    assert_eq!(firsts, expected.iter().collect::<Vec<_>>());
    assert_eq!(changes.last().unwrap(), "stop evicting leaders kv-3");
}

#[test]
fn an_estimate_is_shown_once_data_has_moved() {
    let mut bench = Bench::with_stores(4);
    bench.scale(3).unwrap();
    bench.until("its data moves", |bench| bench.backend.of("kv-3").stage == Stage::Removing);
    bench.seconds(3);
    let status = bench.status("kv-3");
    assert!(status.eta.is_some() && status.rate.is_some(), "{status:?}");
    assert!(status.progress.unwrap() > 0.0);
}

#[test]
fn a_backend_that_wants_to_be_told_forgets_only_what_is_empty_and_was_written_down() {
    let mut bench = Bench::with_stores(4);
    bench.backend.wants_forget = true;
    bench.scale(3).unwrap();
    bench.until("it is forgotten", |bench| bench.backend.of("kv-3").stage == Stage::Removed);
    assert!(bench.backend.log.contains(&"forget kv-3".to_owned()));
    bench.until("its record is gone", |bench| bench.names().len() == 3);
}

#[test]
fn the_flow_of_the_seed_6_to_3_to_5_to_6() {
    let mut bench = Bench::with_stores(6);
    bench.backend.data_pace = 1;
    for store in ["kv-1", "kv-2", "kv-5"] {
        bench.act(store, StoreAction::Mark).unwrap();
    }
    bench.scale(3).unwrap();
    assert_eq!(bench.offline(), ["kv-1", "kv-2", "kv-5"], "those that are marked");
    bench.until("all three move", |bench| {
        ["kv-1", "kv-2", "kv-5"].iter().all(|store| bench.backend.of(store).stage == Stage::Removing)
    });
    // The last one has moved least: of equals it would be the highest ordinal that goes on.
    bench.backend.of_mut("kv-5").data = 5;
    bench.seconds(2);
    bench.scale(5).unwrap();
    assert_eq!(bench.offline(), ["kv-5"], "two of three are rescued");
    bench.until("two serve again", |bench| bench.backend.serving() == 5);
    bench.seconds(2);
    assert_eq!(bench.offlining("kv-1"), "Cancelled");
    bench.scale(6).unwrap();
    bench.until("all serve again", |bench| bench.backend.serving() == 6 && bench.is_quiet());
    assert_eq!(bench.names().len(), 6, "nobody was made anew");
    assert!(bench.stores().iter().all(|store| store.offline.is_none() && store.removal.is_none()));
}

#[test]
fn more_than_can_be_rescued_are_made_anew_and_ordinals_are_never_used_again() {
    let mut bench = Bench::with_stores(4);
    bench.scale(3).unwrap();
    bench.until("it is gone", |bench| bench.names().len() == 3);
    bench.scale(4).unwrap();
    bench.until("another is there", |bench| bench.backend.serving() == 4);
    assert_eq!(bench.names(), ["kv-0", "kv-1", "kv-2", "kv-4"]);
    bench.backend.data_pace = 1;
    bench.scale(3).unwrap();
    bench.until("it moves", |bench| bench.backend.of("kv-4").stage == Stage::Removing);
    bench.scale(5).unwrap();
    assert_eq!(bench.offline(), Vec::<String>::new(), "rescued");
    bench.until("one more is there", |bench| bench.backend.serving() == 5 && bench.is_quiet());
    assert_eq!(bench.names(), ["kv-0", "kv-1", "kv-2", "kv-4", "kv-5"]);
}

#[test]
fn cancelling_what_is_removed_already_is_too_late_and_another_is_made() {
    let mut bench = Bench::with_stores(4);
    bench.scale(3).unwrap();
    bench.until("it is removed", |bench| bench.store("kv-3").removed_at.is_some());
    assert_eq!(bench.offlining("kv-3"), "Completed");
    bench.scale(4).unwrap();
    bench.until("another is there", |bench| {
        bench.backend.of("kv-3").stage == Stage::Removed && bench.is_quiet()
    });
    assert_eq!(bench.names(), ["kv-0", "kv-1", "kv-2", "kv-4"]);
}

#[test]
fn a_cancel_that_meets_a_removal_says_that_it_came_too_late() {
    let mut bench = Bench::with_stores(4);
    bench.backend.data_pace = 1;
    bench.scale(3).unwrap();
    bench.until("it moves", |bench| bench.offlining("kv-3") == "Active");
    // The backend is done before anybody has looked.
    bench.backend.of_mut("kv-3").stage = Stage::Removed;
    bench.scale(4).unwrap();
    bench.until("it is known", |bench| {
        bench.stores().iter().all(|s| s.id.as_str() != "kv-3" || s.removed_at.is_some())
    });
    bench.until("another is there", |bench| bench.is_quiet() && bench.names().len() == 4);
    assert_eq!(bench.names(), ["kv-0", "kv-1", "kv-2", "kv-4"]);
    assert!(bench.office.events.iter().any(|event| event.message.contains("too late")));
}

#[test]
fn cancelling_what_is_pending_touches_no_data() {
    let mut bench = Bench::with_stores(4);
    bench.backend.leader_pace = 0;
    bench.scale(3).unwrap();
    bench.seconds(5);
    assert_eq!((bench.offlining("kv-3"), bench.waits("kv-3")), ("Pending", "leaders_remaining"));
    bench.scale(4).unwrap();
    bench.until("nothing of it is left", |bench| bench.is_quiet());
    assert_eq!(bench.changes(), ["evict leaders kv-3", "stop evicting leaders kv-3"]);
    assert_eq!(bench.offlining("kv-3"), "Cancelled");
}

#[test]
fn rapid_back_and_forth_ends_where_it_was_told_last() {
    let mut bench = Bench::with_stores(5);
    bench.backend.data_pace = 1;
    for round in 0..12 {
        bench.scale(if round % 2 == 0 { 3 } else { 5 }).unwrap();
        bench.seconds(round % 4);
    }
    bench.until("all serve", |bench| bench.is_quiet() && bench.backend.serving() >= 5);
    assert_eq!(bench.names().len(), 5);
    bench.backend.data_pace = 50;
    for replicas in [3, 5, 3, 5, 4] {
        bench.scale(replicas).unwrap();
    }
    bench.until("four are left", |bench| bench.is_quiet() && bench.names().len() == 4);
}

#[test]
fn no_more_are_on_their_way_out_than_the_backend_allows() {
    let mut bench = Bench::with_stores(5);
    bench.backend.data_pace = 1;
    bench.backend.needed = 3;
    // The backend asserts it at every begin; here all four are asked for at once, one more than may go.
    bench.office.ask(Request::SetReplicas { group: "kv".into(), replicas: 3 }).unwrap();
    bench.until("two move", |bench| bench.backend.serving() == 3);
    bench.seconds(20);
    assert_eq!(bench.backend.serving(), 3);
}

#[test]
fn fewer_replicas_than_the_backend_needs_are_refused_with_its_number() {
    let mut bench = Bench::with_stores(4);
    bench.backend.needed = 3;
    bench.seconds(61);
    let error = bench.scale(2).unwrap_err();
    assert_eq!((error.kind, error.code), (ErrorKind::Refused, "replicas_not_enough"));
    assert!(error.message.contains("needs 3"), "{}", error.message);
    assert!(bench.offline().is_empty());
}

#[test]
fn a_store_that_never_joined_goes_at_once() {
    let mut bench = Bench::with_stores(3);
    bench.backend.joins = false;
    bench.scale(4).unwrap();
    bench.seconds(3);
    assert_eq!(bench.status("kv-3").identity, None);
    bench.scale(3).unwrap();
    bench.until("it is gone", |bench| bench.names().len() == 3);
    assert!(bench.changes().is_empty(), "{:?}", bench.changes());
}

#[test]
fn a_store_that_its_backend_may_know_under_another_name_of_its_host_keeps_its_data() {
    let mut bench = Bench::with_stores(3);
    bench.scale(4).unwrap();
    bench.backend.members.remove("kv-3");
    bench.backend.renames_hosts = true;
    bench.seconds(20);
    assert_eq!((bench.status("kv-3").identity, bench.waits("kv-3")), (None, "store_not_joined"));
    bench.scale(3).unwrap();
    bench.seconds(120);
    assert_eq!(
        (bench.names().len(), bench.waits("kv-3")),
        (4, "store_not_joined"),
        "nothing is deleted on a guess"
    );
    // It has surely left.
    bench.backend.joins = false;
    bench.backend.members.remove("kv-3");
    bench.until("it is gone", |bench| bench.names().len() == 3);
}

#[test]
fn one_that_finds_no_place_can_be_scaled_in() {
    let mut bench = Bench::with_stores(3);
    let mut big = group("kv", 3, false);
    let process = model::ServiceSpec { memory: 1 << 40, ..(*big.process).clone() };
    big.process = std::sync::Arc::new(process);
    bench.backend.leader_pace = 0;
    bench.apply(big).unwrap();
    bench.scale(4).unwrap();
    bench.seconds(5);
    assert_eq!(bench.waits("kv-3"), "no_capacity_memory");
    bench.scale(3).unwrap();
    bench.until("it is gone", |bench| bench.names().len() == 3);
}

#[test]
fn a_group_goes_only_with_its_data_and_if_that_is_said() {
    let mut bench = Bench::with_stores(3);
    let refused = bench.office.ask(Request::RemoveStoreGroup { group: "kv".into(), destroy_data: false });
    assert_eq!(refused.unwrap_err().code, "destroys_data");
    bench.act("kv-0", StoreAction::EvictLeader).unwrap();
    bench.seconds(5);
    bench.office.ask(Request::RemoveStoreGroup { group: "kv".into(), destroy_data: true }).unwrap();
    bench.seconds(30);
    let cluster = bench.office.coordinator.cluster();
    assert!(cluster.store_group("kv").is_none() && cluster.service_by_name("kv").is_none());
    assert_eq!((cluster.stores_of("kv").count(), cluster.volumes().count()), (0, 0));
    assert!(bench.backend.of("kv-0").evictors.is_empty());
    assert!(!bench.changes().iter().any(|call| call.starts_with("begin")));
}

#[test]
fn what_is_asked_of_what_is_not_there_is_refused() {
    let mut bench = Bench::with_stores(3);
    assert_eq!(bench.act("kv-9", StoreAction::Mark).unwrap_err().code, "store_not_found");
    bench.backend.leader_pace = 0;
    bench.scale(2).unwrap();
    assert_eq!(bench.act("kv-2", StoreAction::Restart).unwrap_err().code, "store_offline");
    let missing = bench.office.ask(Request::SetReplicas { group: "kw".into(), replicas: 1 });
    assert_eq!(missing.unwrap_err().code, "store_group_not_found");
    let service = bench.office.ask(Request::Remove { service: "kv".into() });
    assert_eq!(service.unwrap_err().code, "service_not_found", "its processes are no service");
    let instance = bench.status("kv-0").instance.unwrap();
    assert_eq!(
        bench.office.ask(Request::StopInstance { id: instance }).unwrap_err().code,
        "instance_of_store"
    );
}
