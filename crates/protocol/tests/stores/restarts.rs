//! Graceful restarts, and leaders evicted on request.

use model::Actual;
use protocol::coordinator::StoreAction;

use crate::{
    backend::Stage,
    bench::{Bench, group},
};

#[test]
fn a_restart_evicts_waits_for_zero_stops_starts_and_gives_the_leaders_back() {
    let mut bench = Bench::with_stores(3);
    let before = bench.created_at("kv-0");
    bench.act("kv-0", StoreAction::Restart).unwrap();
    let work = bench.status("kv-0").work.unwrap();
    assert_eq!(
        (work.mode.as_str(), work.began_at, work.created_at),
        ("restart", bench.office.now, Some(before))
    );
    while bench.status("kv-0").process == Some(Actual::Ready) && bench.created_at("kv-0") == before {
        bench.second();
    }
    assert_eq!(bench.backend.of("kv-0").leaders, 0, "none is left when it stops");
    assert!(bench.backend.of("kv-0").evictors.contains("ours"));
    bench.until("it is ready again", |bench| bench.status("kv-0").process == Some(Actual::Ready));
    assert!(bench.created_at("kv-0") > work.began_at, "a new process is told by its creation time");
    bench.until("its leaders are back", |bench| bench.is_quiet() && bench.backend.of("kv-0").leaders == 20);
    assert_eq!(bench.node("kv-0"), "n1", "where its volume is");
    assert_eq!(bench.status("kv-0").work, None);
}

#[test]
fn from_zero_leaders_to_the_stop_and_from_ready_to_the_end_of_eviction_is_one_report() {
    let mut bench = Bench::with_stores(3);
    bench.act("kv-0", StoreAction::Restart).unwrap();
    bench.until("no leader is left", |bench| bench.backend.of("kv-0").leaders == 0);
    bench.second();
    let store = bench.store("kv-0");
    assert!(store.restart.unwrap().stopped_at.is_some());
    bench.until("it is ready", |bench| bench.status("kv-0").process == Some(Actual::Ready));
    bench.second();
    assert!(bench.backend.of("kv-0").evictors.is_empty());
}

#[test]
fn a_restart_that_cannot_finish_says_what_it_waits_for_and_can_be_cancelled() {
    let mut bench = Bench::with_stores(3);
    bench.backend.leader_pace = 0;
    bench.act("kv-1", StoreAction::Restart).unwrap();
    bench.seconds(600);
    assert_eq!(bench.waits("kv-1"), "leaders_remaining");
    assert!(bench.status("kv-1").wait.unwrap().message.contains("20 leaders"));
    assert_eq!(bench.status("kv-1").process, Some(Actual::Ready), "it serves on");
    bench.act("kv-1", StoreAction::CancelRestart).unwrap();
    bench.until("nothing is left of it", |bench| bench.is_quiet());
    assert_eq!(bench.act("kv-1", StoreAction::CancelRestart).unwrap_err().code, "not_restarting");
}

#[test]
fn one_store_of_a_group_restarts_at_a_time() {
    let mut bench = Bench::with_stores(3);
    for store in ["kv-2", "kv-0", "kv-1"] {
        bench.act(store, StoreAction::Restart).unwrap();
    }
    bench.seconds(1);
    assert_eq!(bench.waits("kv-1"), "max_parallel");
    for _ in 0..200 {
        let down = bench
            .stores()
            .iter()
            .filter(|s| bench.status(s.id.as_str()).process != Some(Actual::Ready))
            .count();
        let evicting = bench.backend.members.values().filter(|member| !member.evictors.is_empty()).count();
        assert!(down <= 1 && evicting <= 1, "{down} down, {evicting} evicting");
        bench.second();
    }
    assert!(bench.is_quiet());
}

#[test]
fn a_restart_waits_while_another_store_is_down() {
    let mut bench = Bench::with_stores(3);
    bench.office.silence("n3");
    bench.seconds(70);
    bench.act("kv-0", StoreAction::Restart).unwrap();
    bench.seconds(60);
    assert_eq!(bench.waits("kv-0"), "store_unavailable");
    assert!(bench.changes().is_empty(), "{:?}", bench.changes());
    bench.office.connect("n3");
    bench.until("it has restarted", |bench| bench.is_quiet());
}

#[test]
fn evict_leader_alone_keeps_leaders_away_until_it_is_taken_back() {
    let mut bench = Bench::with_stores(3);
    bench.act("kv-0", StoreAction::EvictLeader).unwrap();
    bench.seconds(60);
    let status = bench.status("kv-0");
    assert_eq!(status.leaders.unwrap().value, 0);
    assert_eq!(status.work.unwrap().mode.as_str(), "evict-leader");
    assert!(status.evictor.unwrap().ours && status.wait.is_none());
    assert_eq!(status.process, Some(Actual::Ready), "and nothing else");
    bench.act("kv-0", StoreAction::CancelEvictLeader).unwrap();
    bench.until("they are back", |bench| bench.is_quiet() && bench.backend.of("kv-0").leaders == 20);
}

#[test]
fn restart_wins_over_evict_which_goes_on_afterwards() {
    let mut bench = Bench::with_stores(3);
    let before = bench.created_at("kv-0");
    bench.act("kv-0", StoreAction::EvictLeader).unwrap();
    bench.act("kv-0", StoreAction::Restart).unwrap();
    assert_eq!(bench.status("kv-0").work.unwrap().mode.as_str(), "restart");
    bench.until("it has restarted", |bench| bench.store("kv-0").restart.is_none());
    assert!(bench.created_at("kv-0") > before);
    bench.seconds(5);
    assert!(bench.backend.of("kv-0").evictors.contains("ours"), "nobody took that back");
    bench.act("kv-0", StoreAction::CancelEvictLeader).unwrap();
    bench.until("they are back", |bench| bench.is_quiet());
}

#[test]
fn a_store_that_is_alone_restarts_without_anybody_to_take_its_leaders() {
    let mut bench = Bench::with_stores(1);
    let before = bench.created_at("kv-0");
    bench.act("kv-0", StoreAction::Restart).unwrap();
    bench.until("it has restarted", |bench| bench.is_quiet());
    assert!(bench.created_at("kv-0") > before);
    assert!(bench.changes().is_empty());
}

#[test]
fn a_new_release_restarts_every_store_in_its_turn_gracefully() {
    let mut bench = Bench::with_stores(3);
    let mut changed = group("kv", 3, false);
    let process = model::ServiceSpec { cpu: 200, ..(*changed.process).clone() };
    changed.process = std::sync::Arc::new(process);
    bench.apply(changed).unwrap();
    for _ in 0..200 {
        let down = bench
            .stores()
            .iter()
            .filter(|s| bench.status(s.id.as_str()).process != Some(Actual::Ready))
            .count();
        assert!(down <= 1);
        bench.second();
    }
    assert!(bench.is_quiet());
    let cluster = bench.office.coordinator.cluster();
    let ix = cluster.service_ix("kv").unwrap();
    let wanted: Vec<u32> = cluster.instances_of(ix).filter(|i| i.is_wanted()).map(|i| i.release).collect();
    assert_eq!(wanted, [2, 2, 2]);
}

#[test]
fn a_store_that_is_chosen_to_leave_is_not_restarted_first() {
    let mut bench = Bench::with_stores(4);
    bench.backend.leader_pace = 0;
    bench.act("kv-3", StoreAction::Restart).unwrap();
    bench.seconds(3);
    bench.scale(3).unwrap();
    assert_eq!(bench.store("kv-3").restart, None);
    bench.backend.leader_pace = 10;
    bench.until("it is gone", |bench| bench.names().len() == 3 && bench.is_quiet());
    assert_eq!(bench.backend.of("kv-3").stage, Stage::Removed);
}

#[test]
fn a_store_whose_node_is_silent_is_not_stopped_on_a_guess() {
    let mut bench = Bench::with_stores(3);
    bench.office.silence("n1");
    bench.seconds(70);
    bench.act("kv-0", StoreAction::Restart).unwrap();
    bench.seconds(30);
    assert_eq!(bench.waits("kv-0"), "volume_home_node_offline");
    assert_eq!(bench.store("kv-0").restart.unwrap().stopped_at, None, "it may run, and lead");
    bench.office.connect("n1");
    bench.until("it has restarted, with its leaders elsewhere", |bench| bench.is_quiet());
    assert!(bench.changes().contains(&"evict leaders kv-0".to_owned()));
}
