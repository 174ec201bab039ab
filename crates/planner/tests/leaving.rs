//! Drains that pause, and the edge that leaves last.

#![allow(clippy::unwrap_used)]

mod world;

use model::{Change, Code, DrainOptions, Millis, Roles, spec::EdgeSpec};
use planner::{Drains, drain::preview};
use world::{World, file};

fn options() -> DrainOptions {
    DrainOptions { deadline: None, ..DrainOptions::default() }
}

/// `web` with a count of 4, two on each of two nodes, and a third node that is empty.
fn two_nodes_with_web() -> World {
    let mut world = World::with_nodes(2);
    world.apply(&file("web"), 4);
    world.let_it_run();
    world.node("n3", 1024 * world::MIB, &[]);
    world.plan();
    world
}

fn on(world: &World, node: &str) -> usize {
    world.wanted("web").iter().filter(|instance| world.node_of(instance) == node).count()
}

#[test]
fn while_drains_pause_no_turn_comes_and_nothing_moves() {
    let mut world = two_nodes_with_web();
    world.drains = Drains::Paused;
    world.drain(&["n1"], options());
    assert_eq!(world.plan(), 0);
    assert_eq!((world.drain_state("n1"), on(&world, "n1")), ("queued", 2));

    world.drains = Drains::Go;
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), on(&world, "n1")), ("drained", 0));
}

#[test]
fn what_moves_when_drains_pause_arrives_and_nothing_follows_it() {
    let mut world = two_nodes_with_web();
    world.drain(&["n1"], options());
    world.plan();
    assert_eq!(world.wanted("web").len(), 5, "one replacement is on its way");
    world.drains = Drains::Paused;
    assert_eq!(world.plan(), 0);
    world.let_it_run();
    assert_eq!((world.wanted("web").len(), on(&world, "n1")), (4, 1), "{}", world.show());
    assert_eq!(world.drain_state("n1"), "draining");

    world.drains = Drains::Go;
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), on(&world, "n1")), ("drained", 0));
}

#[test]
fn a_replacement_that_fails_while_drains_pause_has_no_successor_and_the_old_one_stays() {
    let mut world = two_nodes_with_web();
    world.drain(&["n1"], options());
    world.plan();
    world.drains = Drains::Paused;
    let fresh = world.wanted("web").into_iter().find(|instance| instance.replaces.is_some()).unwrap();
    world.fail(fresh.id, Code::CrashLooping);
    world.pass(Millis::secs(120));
    world.let_it_run();
    assert_eq!((world.wanted("web").len(), on(&world, "n1")), (4, 2), "{}", world.show());
}

#[test]
fn what_crashes_on_a_draining_node_while_drains_pause_is_replaced_elsewhere() {
    let mut world = two_nodes_with_web();
    world.drain(&["n1"], options());
    world.drains = Drains::Go;
    world.plan();
    world.become_ready();
    world.drains = Drains::Paused;
    world.let_it_run();
    let left = world.wanted("web").into_iter().find(|instance| world.node_of(instance) == "n1").unwrap();
    world.fail(left.id, Code::CrashLooping);
    world.pass(Millis::secs(120));
    world.let_it_run();
    assert_eq!((world.wanted("web").len(), on(&world, "n1")), (4, 0), "{}", world.show());
}

#[test]
fn a_deadline_that_passes_while_drains_pause_stops_nothing_before_they_go_on() {
    let mut world = two_nodes_with_web();
    world.drain(&["n1"], DrainOptions { deadline: Some(Millis::secs(60)), ..options() });
    world.plan();
    world.drains = Drains::Paused;
    world.let_it_run();
    world.pass(Millis::secs(61));
    assert_eq!(world.plan(), 0);
    assert!(!world.part("n1").deadline_reached);
    world.drains = Drains::Go;
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "drained");
    assert!(world.part("n1").deadline_reached);
}

#[test]
fn the_edge_is_told_to_leave_when_nothing_else_is_left_and_the_drain_ends_when_it_has() {
    let mut world = two_nodes_with_web();
    world.change_node("n1", |node| node.roles = Roles { edge: true, ..Roles::WORKER });
    world.gone = Some(Vec::new());
    let epoch = world.drain(&["n1"], options());
    world.plan();
    assert_eq!(world.part("n1").withdrawing_since, None, "something is left");
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "draining");
    assert_eq!(world.part("n1").withdrawing_since, Some(world.now));

    world.gone = Some(vec![("n1", epoch + 1)]);
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "draining", "that was about another drain");
    world.gone = Some(vec![("n1", epoch)]);
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "drained");
}

#[test]
fn by_force_and_around_what_may_stay_the_edge_leaves_as_well() {
    let force = DrainOptions { deadline: Some(Millis::ZERO), ..options() };
    let around = DrainOptions { ack_stateful: true, ..options() };
    for (options, volume, ending) in [(force, false, "drained"), (around, true, "drained_except")] {
        let mut world = World::with_nodes(2);
        let mut db = file("db");
        db.volume = volume.then(|| model::spec::file::VolumeFile { name: "data".into() });
        world.apply(&db, 1);
        world.let_it_run();
        let node: &'static str = if world.node_of(&world.wanted("db")[0]) == "n1" { "n1" } else { "n2" };
        world.change_node(node, |node| node.roles = Roles { edge: true, ..Roles::WORKER });
        world.gone = Some(Vec::new());
        let epoch = world.drain(&[node], options);
        world.let_it_run();
        assert_eq!(world.drain_state(node), "draining");
        world.gone = Some(vec![(node, epoch)]);
        world.let_it_run();
        assert_eq!(world.drain_state(node), ending);
    }
}

#[test]
fn an_edge_whose_node_does_not_answer_holds_its_drain_no_longer_than_its_node() {
    let mut world = two_nodes_with_web();
    world.change_node("n1", |node| node.roles = Roles { edge: true, ..Roles::WORKER });
    world.gone = Some(Vec::new());
    world.drain(&["n1"], options());
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "draining");
    world.offline("n1");
    world.plan();
    assert_eq!(world.drain_state("n1"), "node_lost");
}

#[test]
fn while_drains_pause_no_edge_is_told_to_leave() {
    let mut world = two_nodes_with_web();
    world.change_node("n1", |node| node.roles = Roles { edge: true, ..Roles::WORKER });
    world.gone = Some(Vec::new());
    world.drain(&["n1"], options());
    while on(&world, "n1") > 0 {
        world.plan();
        world.become_ready();
        if on(&world, "n1") > 0 {
            world.stop_leavers();
        }
    }
    world.drains = Drains::Paused;
    world.let_it_run();
    assert_eq!(world.part("n1").withdrawing_since, None);
    world.drains = Drains::Go;
    world.let_it_run();
    assert!(world.part("n1").withdrawing_since.is_some());
}

#[test]
fn the_preview_says_when_it_is_the_only_edge() {
    let mut world = World::with_nodes(2);
    world.apply(&file("web"), 2);
    let mut web = world.service("web").clone();
    let mut spec = (*web.releases[&1]).clone();
    spec.edge = Some(EdgeSpec { port: "http".into(), listen: 80 });
    web.releases.insert(1, std::sync::Arc::new(spec));
    world.cluster.apply(&Change::Service(web));
    world.let_it_run();
    world.change_node("n1", |node| node.roles = Roles { edge: true, ..Roles::WORKER });
    let says = |world: &World| {
        let seen = preview(&world.cluster, &["n1"], &options(), World::LIMITS, world.now).remove(0);
        seen.waits.iter().any(|wait| wait.code == Code::OnlyEdge)
    };
    assert!(says(&world));
    world.change_node("n2", |node| node.roles = Roles { edge: true, ..Roles::WORKER });
    assert!(!says(&world));
    world.offline("n2");
    assert!(says(&world));
}
