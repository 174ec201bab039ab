//! What a drain would do, beside what it then does.

#![allow(clippy::unwrap_used)]

mod world;

use std::collections::BTreeMap;

use model::{Actual, DrainOptions, Millis, spec::ServiceFile};
use planner::drain::{Limits, Preview, preview};
use world::{MIB, World, file};

fn options() -> DrainOptions {
    DrainOptions { deadline: None, ..DrainOptions::default() }
}

fn parallel(name: &str, max_parallel: i64) -> ServiceFile {
    let mut file = file(name);
    file.migrate.max_parallel = max_parallel;
    file
}

fn look(world: &World, nodes: &[&str]) -> Vec<Preview> {
    preview(&world.cluster, nodes, &options(), World::LIMITS, world.now)
}

/// Unit by unit: where it would go.
fn told(previews: &[Preview]) -> BTreeMap<String, String> {
    let moves = previews.iter().flat_map(|preview| &preview.moves);
    moves.map(|step| (step.unit.clone(), step.to.clone().unwrap_or_default())).collect()
}

/// Unit by unit: where it went.
fn did(world: &World) -> BTreeMap<String, String> {
    let wanted = world.cluster.instances().filter(|instance| instance.is_wanted());
    let moved = wanted.filter_map(|new| {
        let service = &world.cluster.service(new.service)?.rec.name;
        Some((format!("instance/{}", new.replaces?.named(service)), world.node_of(new)))
    });
    moved.collect()
}

/// Five nodes with two services that move at different speeds.
fn five_nodes() -> World {
    let mut world = World::with_nodes(5);
    world.apply(&parallel("api", 3), 13);
    world.apply(&parallel("web", 1), 10);
    world.let_it_run();
    world
}

#[test]
fn a_preview_of_two_nodes_agrees_unit_by_unit_with_what_the_drain_then_does() {
    let mut world = five_nodes();
    let before = format!("{:?}", world.cluster.instances().collect::<Vec<_>>());
    let seen = look(&world, &["n2", "n4"]);
    assert_eq!(format!("{:?}", world.cluster.instances().collect::<Vec<_>>()), before, "it changes nothing");
    world.drain(&["n2", "n4"], options());
    world.let_it_run();
    assert_eq!((world.drain_state("n2"), world.drain_state("n4")), ("drained", "drained"));
    assert_eq!(told(&seen), did(&world));
    assert!(seen.iter().all(|preview| preview.moves.len() >= 4 && preview.waits.is_empty()));
}

#[test]
fn nothing_is_shown_moving_onto_a_node_that_is_named_too() {
    let world = five_nodes();
    let named = ["n1", "n3", "n5"];
    let seen = look(&world, &named);
    for (unit, to) in told(&seen) {
        assert!(!named.contains(&to.as_str()), "{unit} to {to}");
    }
    // Each node looked at alone would use the others.
    let alone = told(&look(&world, &["n1"]));
    assert!(alone.values().any(|to| named.contains(&to.as_str())), "{alone:?}");
}

#[test]
fn units_are_listed_under_the_node_that_they_leave() {
    let world = five_nodes();
    let seen = look(&world, &["n4", "n2"]);
    for (node, preview) in ["n4", "n2"].iter().zip(&seen) {
        let ix = world.cluster.node_ix(node).unwrap();
        let here =
            world.cluster.instances_on(ix).map(|i| format!("instance/{}", world.cluster.instance_name(i)));
        let mut here: Vec<String> = here.collect();
        let mut shown: Vec<String> = preview.moves.iter().map(|step| step.unit.clone()).collect();
        here.sort();
        shown.sort();
        assert_eq!(shown, here, "{node}");
    }
}

#[test]
fn each_node_counts_its_waves_from_its_own_turn() {
    let world = five_nodes();
    let seen = look(&world, &["n2", "n4"]);
    // Two of web on each, one at a time.
    assert_eq!((seen[0].waves, seen[1].waves), (2, 2));
    assert_eq!(seen[1].moves.iter().map(|step| step.wave).min(), Some(1));
    let at_once = Limits { nodes_at_once: 2, ..World::LIMITS };
    let together = preview(&world.cluster, &["n2", "n4"], &options(), at_once, world.now);
    let longest = together.iter().map(|preview| preview.waves).max();
    assert_eq!(longest, Some(4), "one of web at a time, over both nodes");
}

#[test]
fn a_node_that_is_held_up_does_not_hide_what_the_next_one_would_do() {
    let mut world = World::with_nodes(3);
    let mut crunch = file("crunch");
    crunch.kind = "batch".into();
    world.apply(&crunch, 3);
    world.apply(&parallel("web", 1), 3);
    world.let_it_run();
    let seen = look(&world, &["n1", "n2"]);
    for preview in &seen {
        assert_eq!((preview.moves.len(), preview.waits.len()), (1, 1), "{preview:?}");
    }
}

#[test]
fn room_taken_by_the_first_node_is_gone_for_the_second() {
    let mut world = World::with_nodes(3);
    let mut big = parallel("big", 1);
    big.memory = "400MiB".into();
    world.apply(&big, 3);
    world.let_it_run();
    // Two fit on a node: the third finds no place once the first has moved.
    let seen = look(&world, &["n1", "n2"]);
    let moved: Vec<usize> = seen.iter().map(|preview| preview.moves.len()).collect();
    assert_eq!(moved, [1, 0]);
    assert_eq!(seen[1].waits[0].code.as_str(), "no_capacity_memory");
    assert!(seen[0].waits.is_empty(), "the first has ended by then: {:?}", seen[0].waits);
    world.node("n4", 1024 * MIB, &[]);
    let seen = look(&world, &["n1", "n2"]);
    assert!(seen.iter().all(|preview| preview.moves.len() == 1 && preview.waits.is_empty()));
}

#[test]
fn right_after_a_service_starts_its_waves_are_counted() {
    let mut world = World::with_nodes(3);
    let mut web = parallel("web", 1);
    web.migrate.min_healthy_time = "10s".into();
    world.apply(&web, 6);
    world.plan();
    let waves = |world: &World| {
        let seen = look(world, &["n1"]).remove(0);
        (seen.waves, seen.moves.len())
    };
    assert_eq!(waves(&world), (2, 2), "placed");
    let ids: Vec<_> = world.instances("web").iter().map(|instance| instance.id).collect();
    for id in ids {
        world.set(id, |instance| instance.actual = Actual::Starting);
    }
    assert_eq!(waves(&world), (2, 2), "starting");
    world.become_ready();
    world.pass(Millis::secs(1));
    assert_eq!(waves(&world), (2, 2), "ready, and not for long enough");
    world.pass(Millis::secs(60));
    world.let_it_run();
    assert_eq!(waves(&world), (2, 2), "settled");
}

#[test]
fn another_drain_that_waits_takes_no_turn_of_those_that_are_looked_at() {
    let mut world = five_nodes();
    world.drain(&["n1"], options());
    world.plan();
    world.drain(&["n5"], options());
    world.plan();
    assert_eq!((world.drain_state("n1"), world.drain_state("n5")), ("draining", "queued"));
    let seen = look(&world, &["n2", "n4"]);
    // A replacement that has not started on a node just stops when that node is named.
    for (unit, to) in told(&seen) {
        assert!(to == "n3" || to.is_empty(), "{unit} to {to}: every other node is closed");
    }
    assert!(seen.iter().all(|preview| !preview.moves.is_empty()));
}

#[test]
fn without_surge_and_at_the_deadline_what_stops_is_shown_with_where_its_successor_starts() {
    let places = |world: &World, options: &DrainOptions| {
        let seen = preview(&world.cluster, &["n1"], options, World::LIMITS, world.now).remove(0);
        let mut to: Vec<String> = seen.moves.into_iter().map(|step| step.to.unwrap_or_default()).collect();
        to.sort();
        to
    };
    let mut world = World::with_nodes(3);
    let mut one = file("one");
    one.migrate.surge = false;
    world.apply(&one, 6);
    world.let_it_run();
    assert_eq!(places(&world, &options()), ["n2", "n3"]);
    let mut world = World::with_nodes(3);
    world.apply(&file("web"), 6);
    world.let_it_run();
    let forced = DrainOptions { deadline: Some(Millis::ZERO), ..options() };
    assert_eq!(places(&world, &forced), ["n2", "n3"]);
}
