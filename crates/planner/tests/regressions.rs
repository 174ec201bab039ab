//! What the simulator found.

mod world;

use model::{Code, DrainOptions, Intent, Millis, RolloutState};
use planner::drain::{Seen, status};
use world::{MIB, World, file};

#[test]
fn disabling_a_node_lets_no_available_instance_elsewhere_go() {
    let mut world = World::with_nodes(4);
    let mut web = file("web");
    world.apply(&web, 3);
    world.plan();
    world.become_ready();
    world.plan();
    // One of the new release is ready beside the three old ones: one of those is about to go.
    web.env.insert("RELEASE".into(), "2".into());
    world.apply(&web, 3);
    world.plan();
    world.become_ready();
    let on_n1 = world.wanted("web").into_iter().filter(|i| world.node_of(i) == "n1").count();
    world.change_node("n1", |node| node.intent = Intent::Disabled);
    world.plan();
    let available = world.wanted("web").iter().filter(|i| i.is_available()).count();
    assert_eq!(available, 4 - on_n1, "only what was on the node went\n{}", world.show());
}

#[test]
fn a_failed_release_is_not_complete_while_an_old_instance_is_left() {
    let mut world = World::with_nodes(1);
    let mut web = file("web");
    web.update.healthy_deadline = "10s".into();
    world.apply(&web, 1);
    world.plan();
    web.env.insert("RELEASE".into(), "2".into());
    web.memory = "512MiB".into();
    world.apply(&web, 2);
    world.plan();
    world.pass(Millis::secs(11));
    world.plan();
    assert!(matches!(world.service("web").rollout.state, RolloutState::Failed { .. }));
    world.become_ready();
    world.plan();
    let old = world.wanted("web").iter().any(|i| i.release == 1);
    let complete = world.service("web").rollout.state == RolloutState::Complete;
    assert!(old && !complete, "{}", world.show());
}

#[test]
fn a_stateful_instance_waits_when_its_home_lacks_the_labels() {
    let mut world = World::with_nodes(0);
    world.node("n1", 1024 * world::MIB, &[("zone", "a")]);
    world.node("n2", 1024 * world::MIB, &[("zone", "b")]);
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    db.migrate.surge = false;
    db.update.surge = false;
    world.apply(&db, 1);
    world.plan();
    world.become_ready();
    world.plan();
    db.constraints.insert("zone".into(), "b".into());
    world.apply(&db, 1);
    world.plan();
    assert_eq!(world.wanted("db").len(), 1, "the old one keeps running:\n{}", world.show());
    let id = world.wanted("db")[0].id;
    let now = world.now;
    world.set(id, |i| (i.actual, i.ended_at) = (model::Actual::Failed, Some(now - Millis::secs(600))));
    world.plan();
    assert_eq!(world.wanted("db"), [], "{}", world.show());
    let codes: Vec<Code> = world.planned["db"].reasons.iter().map(|reason| reason.code).collect();
    assert!(codes.contains(&Code::ConstraintUnsatisfied), "{codes:?}");
}

#[test]
fn a_system_service_that_fell_back_is_placed_where_its_healthy_release_belongs() {
    let mut world = World::with_nodes(0);
    world.node("n1", 1024 * world::MIB, &[("zone", "a")]);
    world.node("n2", 1024 * world::MIB, &[("zone", "b")]);
    let mut log = file("log");
    log.kind = "system".into();
    log.update.healthy_deadline = "10s".into();
    log.constraints.insert("zone".into(), "a".into());
    world.apply(&log, 0);
    world.plan();
    world.become_ready();
    world.plan();
    assert_eq!(world.service("log").healthy, Some(1));
    log.constraints.insert("zone".into(), "b".into());
    world.apply(&log, 0);
    world.plan();
    world.pass(Millis::secs(11));
    world.plan();
    world.stop_leavers();
    world.plan();
    let places: Vec<_> = world.wanted("log").iter().map(|i| (world.node_of(i), i.release)).collect();
    assert_eq!(places, [("n1".to_owned(), 1)], "{}", world.show());
}

#[test]
fn a_move_whose_replacement_is_ready_and_fills_another_place_says_what_it_really_waits_for() {
    let mut world = World::with_nodes(1);
    let mut web = file("web");
    web.memory = "300MiB".into();
    world.apply(&web, 2);
    world.let_it_run();
    world.node("n2", 300 * MIB, &[]);
    world.drain(&["n1"], DrainOptions { deadline: None, ..DrainOptions::default() });
    world.plan();
    world.apply(&web, 3);
    world.let_it_run();
    let reasons = |_: model::ServiceIx| world.planned["web"].reasons.as_slice();
    let seen = Seen { reasons: &reasons, edges_left: &|_| 0, paused: None, feeds: None, stores: &|_| None };
    let shown = status(&world.cluster, &world.part("n1"), &seen, world.now);
    let codes: Vec<Code> = shown.units.iter().map(|unit| unit.code).collect();
    assert_eq!(codes, [Code::NoCapacityMemory, Code::NoCapacityMemory]);
}
