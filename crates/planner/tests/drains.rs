//! Draining nodes.

#![allow(clippy::unwrap_used)]

mod world;

use expect_test::expect;
use model::{
    Actual, Change, Code, Desired, DrainOptions, DrainState, Ending, Intent, Millis, spec::ServiceFile,
};
use planner::drain::preview;
use world::{MIB, World, file};

fn options() -> DrainOptions {
    DrainOptions { deadline: None, ..DrainOptions::default() }
}

fn web() -> ServiceFile {
    file("web")
}

/// Three nodes, `web` running everywhere.
fn running(count: u32, web: &ServiceFile) -> World {
    let mut world = World::with_nodes(3);
    world.apply(web, count);
    world.let_it_run();
    world
}

fn available(world: &World) -> usize {
    world.instances("web").iter().filter(|i| i.is_available()).count()
}

fn on(world: &World, node: &str) -> usize {
    let ix = world.cluster.node_ix(node).unwrap();
    world.cluster.instances_on(ix).filter(|i| !i.is_over()).count()
}

#[test]
fn a_drained_node_is_empty_and_available_never_fell_below_count() {
    let mut world = running(6, &web());
    world.drain(&["n1"], options());
    for _ in 0..20 {
        world.plan();
        assert!(available(&world) >= 6, "{}", world.show());
        world.become_ready();
        world.plan();
        assert!(available(&world) >= 6, "{}", world.show());
        world.stop_leavers();
    }
    world.plan();
    assert_eq!(on(&world, "n1"), 0);
    assert_eq!(world.drain_state("n1"), "drained");
    assert_eq!(world.cluster.node_by_id("n1").unwrap().rec.intent, Intent::Drained);
    assert_eq!(world.part("n1").done, 2);
}

#[test]
fn lesson_1_drained_is_said_only_when_the_node_itself_reported_every_unit_stopped() {
    let mut world = running(3, &web());
    world.drain(&["n1"], options());
    world.plan();
    world.become_ready();
    world.plan();
    assert_eq!(on(&world, "n1"), 1, "told to go, not yet gone");
    assert_eq!(world.drain_state("n1"), "draining");
    world.stop_leavers();
    world.plan();
    assert_eq!(world.drain_state("n1"), "drained");
}

#[test]
fn lesson_6_and_7_without_room_the_old_one_keeps_running_and_goes_on_when_there_is_some() {
    let mut world = World::with_nodes(2);
    let mut big = web();
    big.memory = "600MiB".into();
    world.apply(&big, 2);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.let_it_run();
    assert_eq!(available(&world), 2);
    assert_eq!(world.planned["web"].reasons[0].code, Code::NoCapacityMemory);
    expect!["needs 600MiB; the only node that may take it is short by 176MiB"]
        .assert_eq(&world.planned["web"].reasons[0].message);
    world.node("n3", 1024 * MIB, &[]);
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "drained");
}

#[test]
fn lesson_8_a_drain_does_not_walk_on_over_replacements_that_do_not_get_healthy() {
    let mut world = running(3, &web());
    world.drain(&["n1"], options());
    for _ in 0..40 {
        world.plan();
        world.stop_leavers();
        world.pass(Millis::secs(60));
    }
    world.plan();
    assert_eq!(available(&world), 3, "the old one keeps running");
    assert_eq!(world.drain_state("n1"), "draining");
    expect!["replacement_unhealthy: 3 replacements did not get healthy; the old one keeps running"]
        .assert_eq(&world.reasons("web"));
    let tries = world.instances("web").iter().filter(|i| i.replaces.is_some()).count();
    assert_eq!(tries, 3);
    let nodes: std::collections::BTreeSet<String> =
        world.instances("web").iter().filter(|i| i.replaces.is_some()).map(|i| world.node_of(i)).collect();
    assert!(nodes.len() > 1, "tried elsewhere: {nodes:?}");
}

#[test]
fn lesson_9_max_parallel_holds_over_two_nodes_that_drain_together() {
    let mut world = World::with_nodes(4);
    world.apply(&web(), 8);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.drain(&["n2"], options());
    for _ in 0..40 {
        world.plan();
        assert!(world.wanted("web").len() <= 9, "{}", world.show());
        world.become_ready();
        world.plan();
        world.stop_leavers();
    }
    assert_eq!((world.drain_state("n1"), world.drain_state("n2")), ("drained", "drained"));
}

#[test]
fn lesson_10_nothing_hops_onto_the_node_that_is_next() {
    let mut world = World::with_nodes(3);
    world.apply(&web(), 6);
    world.let_it_run();
    let before = world.instances("web").len();
    world.drain(&["n1", "n2"], options());
    world.plan();
    assert_eq!((world.drain_state("n1"), world.drain_state("n2")), ("draining", "queued"));
    world.let_it_run();
    assert_eq!((on(&world, "n1"), on(&world, "n2"), on(&world, "n3")), (0, 0, 6));
    let placed = world.instances("web").last().unwrap().id.0 - world.instances("web")[0].id.0 + 1;
    assert!(placed as usize <= before + 4, "each of the four moved exactly once: {placed} placements");
}

#[test]
fn a_stateful_instance_blocks_and_is_left_running() {
    let mut world = World::with_nodes(2);
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    world.apply(&db, 1);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "draining");
    assert!(world.part("n1").blocked);
    assert_eq!(on(&world, "n1"), 1);
}

#[test]
fn an_acknowledged_stateful_instance_lets_the_drain_end_without_it() {
    let mut world = World::with_nodes(2);
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    world.apply(&db, 1);
    world.apply(&web(), 2);
    world.let_it_run();
    world.drain(&["n1"], DrainOptions { ack_stateful: true, ..options() });
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "drained_except");
    assert_eq!(world.part("n1").left[0].1, Code::VolumeLocal);
    assert_eq!(on(&world, "n1"), 1);
}

#[test]
fn an_included_stateful_instance_is_stopped_and_its_volume_stays() {
    let mut world = World::with_nodes(2);
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    world.apply(&db, 1);
    world.let_it_run();
    world.drain(&["n1"], DrainOptions { include_stateful: true, ..options() });
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "drained");
    expect!["volume_local: volume db-data-0 is on n1, which is closed"].assert_eq(&world.reasons("db"));
    assert!(world.wanted("db").is_empty(), "nothing starts elsewhere without its data");
}

#[test]
fn batch_runs_on_until_it_ends_or_the_deadline_comes() {
    let mut world = World::with_nodes(2);
    let mut job = file("job");
    job.kind = "batch".into();
    world.apply(&job, 1);
    world.plan();
    world.become_ready();
    world.plan();
    world.drain(&["n1"], DrainOptions { deadline: Some(Millis::secs(100)), ..options() });
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), on(&world, "n1")), ("draining", 1));
    world.pass(Millis::secs(100));
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), on(&world, "n1")), ("drained", 0));
    assert!(world.part("n1").deadline_reached);
    assert_eq!(world.node_of(&world.wanted("job")[0]), "n2", "it runs anew elsewhere");
}

#[test]
fn a_batch_that_must_not_run_again_does_not_after_a_deadline_stopped_it() {
    let mut world = World::with_nodes(2);
    let mut job = file("job");
    (job.kind, job.rerun) = ("batch".into(), false);
    world.apply(&job, 1);
    world.plan();
    world.become_ready();
    world.drain(&["n1"], DrainOptions { deadline: Some(Millis::ZERO), ..options() });
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "drained");
    assert!(world.wanted("job").is_empty());
}

#[test]
fn system_instances_go_last_or_stay_if_they_are_to_be_ignored() {
    for ignore_system in [false, true] {
        let mut world = World::with_nodes(2);
        let mut agent = file("agent");
        agent.kind = "system".into();
        world.apply(&agent, 0);
        world.apply(&web(), 2);
        world.let_it_run();
        world.drain(&["n1"], DrainOptions { ignore_system, ..options() });
        world.plan();
        let agents =
            |world: &World| world.wanted("agent").iter().filter(|i| world.node_of(i) == "n1").count();
        assert_eq!(agents(&world), 1, "web is still there");
        world.let_it_run();
        assert_eq!(agents(&world), usize::from(ignore_system));
        assert_eq!(world.drain_state("n1"), "drained");
    }
}

#[test]
fn at_the_deadline_what_is_left_stops_with_or_without_room() {
    let mut world = World::with_nodes(2);
    let mut big = web();
    big.memory = "600MiB".into();
    world.apply(&big, 2);
    world.let_it_run();
    world.drain(&["n1"], DrainOptions { deadline: Some(Millis::secs(10)), ..options() });
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "draining");
    world.pass(Millis::secs(10));
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), available(&world)), ("drained", 1));
    assert_eq!(world.planned["web"].reasons[0].code, Code::NoCapacityMemory, "its replacement stays pending");
}

#[test]
fn force_never_stops_a_stateful_instance() {
    let mut world = World::with_nodes(2);
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    world.apply(&db, 1);
    world.let_it_run();
    world.drain(&["n1"], DrainOptions { deadline: Some(Millis::ZERO), ..options() });
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), on(&world, "n1")), ("drained_except", 1));
}

#[test]
fn without_surge_it_stops_first_and_the_drain_waits_for_the_replacement() {
    let mut one = web();
    (one.update.surge, one.migrate.surge) = (false, false);
    let mut world = running(3, &one);
    world.drain(&["n1"], options());
    world.plan();
    assert_eq!(world.wanted("web").len(), 2);
    world.stop_leavers();
    world.plan();
    assert_eq!(world.drain_state("n1"), "draining", "its replacement is not up");
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), available(&world)), ("drained", 3));
}

#[test]
fn a_node_that_dies_in_mid_drain_ends_node_lost_and_its_units_run_elsewhere() {
    let mut world = running(3, &web());
    world.drain(&["n1"], options());
    world.plan();
    world.offline("n1");
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "node_lost");
    assert_eq!(available(&world), 3);
}

#[test]
fn a_cancelled_drain_leaves_no_instance_too_many_or_too_few() {
    for steps in 0..6 {
        let mut world = running(3, &web());
        world.drain(&["n1"], options());
        for step in 0..steps {
            world.plan();
            if step % 2 == 1 {
                world.stop_leavers();
            } else {
                world.become_ready();
            }
        }
        let mut drain = world.cluster.last_drain_of("n1").unwrap().clone();
        if drain.is_unfinished() {
            drain.nodes[0].state = DrainState::Ended(Ending::Cancelled);
            world.cluster.apply(&Change::Drain(drain));
        }
        world.let_it_run();
        assert_eq!(world.wanted("web").len(), 3, "after {steps} steps:\n{}", world.show());
        assert_eq!(available(&world), 3);
        let leaving =
            world.instances("web").iter().filter(|i| i.desired != Desired::Running && !i.is_over()).count();
        assert_eq!(leaving, 0);
    }
}

#[test]
fn a_cancel_before_the_old_one_goes_keeps_the_old_one() {
    let mut world = running(3, &web());
    let old: Vec<_> = world.wanted("web").iter().map(|i| i.id).collect();
    world.drain(&["n1"], options());
    world.plan();
    let mut drain = world.cluster.last_drain_of("n1").unwrap().clone();
    drain.nodes[0].state = DrainState::Ended(Ending::Cancelled);
    world.cluster.apply(&Change::Drain(drain));
    world.become_ready();
    world.let_it_run();
    assert_eq!(world.wanted("web").iter().map(|i| i.id).collect::<Vec<_>>(), old);
}

#[test]
fn during_a_rollout_an_instance_on_a_draining_node_is_replaced_by_the_new_release_and_sooner() {
    let mut world = running(3, &web());
    let mut two = web();
    two.env.insert("X".into(), "2".into());
    world.apply(&two, 3);
    world.drain(&["n3"], options());
    world.plan();
    world.become_ready();
    world.plan();
    let leaving: Vec<String> = world
        .instances("web")
        .iter()
        .filter(|i| i.desired != Desired::Running && !i.is_over())
        .map(|i| world.node_of(i))
        .collect();
    assert_eq!(leaving, ["n3"]);
    world.let_it_run();
    assert!(world.wanted("web").iter().all(|i| i.release == 2 && world.node_of(i) != "n3"));
    assert_eq!(world.drain_state("n3"), "drained");
}

#[test]
fn an_empty_node_is_drained_at_once_and_a_blocked_one_gives_its_slot_back() {
    let mut world = World::with_nodes(3);
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    world.apply(&db, 1);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.plan();
    world.drain(&["n2"], options());
    world.plan();
    assert_eq!((world.drain_state("n1"), world.drain_state("n2")), ("draining", "drained"));
}

#[test]
fn lesson_37_the_preview_agrees_with_what_the_drain_then_does_and_changes_nothing() {
    let mut world = running(9, &web());
    let mut other = file("other");
    other.migrate.max_parallel = 2;
    world.apply(&other, 5);
    world.let_it_run();
    let before = format!("{:?}", world.cluster.instances().collect::<Vec<_>>());
    let seen = preview(&world.cluster, &["n2"], &options(), World::LIMITS, world.now).remove(0);
    assert_eq!(format!("{:?}", world.cluster.instances().collect::<Vec<_>>()), before);
    world.drain(&["n2"], options());
    world.let_it_run();
    assert_eq!(world.drain_state("n2"), "drained");
    let mut told: Vec<(String, String)> =
        seen.moves.iter().map(|m| (m.unit.clone(), m.to.clone().unwrap_or_default())).collect();
    let mut did: Vec<(String, String)> = Vec::new();
    for instance in world.cluster.instances().filter(|i| i.is_wanted()) {
        if let Some(old) = instance.replaces {
            let service = &world.cluster.service(instance.service).unwrap().rec.name;
            did.push((format!("instance/{}", old.named(service)), world.node_of(instance)));
        }
    }
    told.sort();
    did.sort();
    assert_eq!(told, did);
    assert_eq!(seen.waves, 3);
}

#[test]
fn lost_and_unknown_units_count_as_remaining() {
    let mut world = running(3, &web());
    world.drain(&["n1"], options());
    world.plan();
    world.become_ready();
    world.plan();
    let ix = world.cluster.node_ix("n1").unwrap();
    let unit = world.cluster.instances_on(ix).next().unwrap().id;
    world.set(unit, |i| i.actual = Actual::Unready);
    world.change_node("n1", |node| node.health = model::Health::Degraded(Code::HeartbeatsLate));
    world.plan();
    assert_eq!(world.drain_state("n1"), "draining");
}

#[test]
fn a_node_that_is_open_again_gets_its_share_back_and_nothing_moves_to_and_fro() {
    let mut world = running(6, &web());
    world.drain(&["n1"], options());
    world.let_it_run();
    assert_eq!((on(&world, "n1"), on(&world, "n2"), on(&world, "n3")), (0, 3, 3));
    assert_eq!(world.balance(2), 0, "it is still out");
    world.change_node("n1", |node| node.intent = Intent::Active);
    let mut moves = 0;
    for _ in 0..10 {
        let started = world.balance(2);
        assert!(started <= 1, "one move per service at a time");
        moves += started;
        world.plan();
        assert!(available(&world) >= 6);
        world.let_it_run();
    }
    assert_eq!((on(&world, "n1"), on(&world, "n2"), on(&world, "n3")), (2, 2, 2));
    assert_eq!(moves, 2);
}

#[test]
fn lesson_13_balance_waits_while_anything_drains() {
    let mut world = running(6, &web());
    world.drain(&["n1"], options());
    world.let_it_run();
    world.change_node("n1", |node| node.intent = Intent::Active);
    world.drain(&["n2"], options());
    world.plan();
    assert_eq!(world.balance(2), 0);
}

#[test]
fn the_preview_of_a_drain_that_runs_goes_by_the_options_it_is_asked_with() {
    let mut world = World::with_nodes(2);
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    world.apply(&db, 2);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.plan();
    let look = |options| preview(&world.cluster, &["n1"], &options, Default::default(), world.now).remove(0);
    let blocked = look(options());
    assert_eq!((blocked.moves.len(), blocked.blockers.len()), (0, 1));
    let included = look(DrainOptions { include_stateful: true, ..options() });
    assert_eq!((included.moves.len(), included.blockers.len()), (1, 0));
}

fn estimate_of(world: &World, node: &str) -> (Option<Millis>, String) {
    let reasons = |service| {
        let name = world.cluster.service(service).map(|entry| entry.rec.name.to_string()).unwrap_or_default();
        world.planned.get(&name).map(|planned| planned.reasons.as_slice()).unwrap_or_default()
    };
    let seen = planner::drain::Seen {
        reasons: &reasons,
        edges_left: &|_| 0,
        paused: None,
        feeds: None,
        stores: &|_| None,
    };
    let status = planner::drain::status(&world.cluster, &world.part(node), &seen, world.now);
    (status.eta, status.eta_basis)
}

#[test]
fn lesson_36_an_estimate_counts_only_what_a_wave_waits_for() {
    let mut world = World::with_nodes(3);
    let mut quick = web();
    quick.migrate.min_healthy_time = "1s".into();
    world.apply(&quick, 3);
    let mut agent = file("agent");
    (agent.kind, agent.migrate.min_healthy_time) = ("system".into(), "1h".into());
    world.apply(&agent, 1);
    world.let_it_run();
    world.pass(Millis::secs(2));
    let seen = preview(&world.cluster, &["n1"], &options(), World::LIMITS, world.now).remove(0);
    // One wave that waits for web's replacement, one in which the agent just stops.
    assert_eq!((seen.waves, seen.eta), (2, Millis::secs(4)));
    world.drain(&["n1"], options());
    world.plan();
    assert_eq!(estimate_of(&world, "n1").0, Some(Millis::secs(3)));
}

#[test]
fn lesson_36_without_room_there_is_no_pace_to_estimate_from() {
    let mut world = World::with_nodes(2);
    let mut big = web();
    big.memory = "600MiB".into();
    world.apply(&big, 2);
    let small = file("small");
    world.apply(&small, 2);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.let_it_run();
    assert!(world.part("n1").done > 0, "the small one has left");
    let (eta, basis) = estimate_of(&world, "n1");
    assert_eq!(eta, None);
    expect!["there is no room elsewhere: until there is, or to the deadline"].assert_eq(&basis);
}

#[test]
fn a_node_that_is_out_already_is_drained_of_what_was_left_behind() {
    let mut world = World::with_nodes(2);
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    let mut agent = file("agent");
    agent.kind = "system".into();
    world.apply(&db, 1);
    world.apply(&agent, 0);
    world.let_it_run();
    let home = world.node_of(&world.wanted("db")[0]);
    let first = DrainOptions { ack_stateful: true, ignore_system: true, ..options() };
    world.drain(&[&home], first);
    world.let_it_run();
    assert_eq!((world.drain_state(&home), on(&world, &home)), ("drained_except", 2));
    world.drain(&[&home], DrainOptions { include_stateful: true, ..options() });
    world.let_it_run();
    assert_eq!((world.drain_state(&home), on(&world, &home)), ("drained", 0));
}

#[test]
fn what_must_go_at_once_stands_in_for_nothing_on_a_draining_node() {
    let mut world = running(3, &web());
    world.drain(&["n1"], options());
    world.plan();
    world.become_ready();
    // Its replacement has come, and the node of that one is disabled before the old one goes.
    let new = world.wanted("web").into_iter().find(|i| i.replaces.is_some()).unwrap();
    let node = world.node_of(&new);
    world.change_node(&node, |node| node.intent = Intent::Disabled);
    world.plan();
    let kept = world.wanted("web").into_iter().filter(|i| world.node_of(i) == "n1").count();
    assert_eq!(kept, 1, "{}", world.show());
}

#[test]
fn after_a_cancel_an_available_replacement_stays_and_the_unavailable_old_one_goes() {
    let mut world = running(3, &web());
    world.drain(&["n1"], options());
    world.plan();
    let old = world.wanted("web").into_iter().find(|i| world.node_of(i) == "n1").unwrap();
    let new = world.wanted("web").into_iter().find(|i| i.replaces == Some(old.id)).unwrap();
    world.become_ready();
    world.set(old.id, |i| (i.actual, i.healthy_since) = (Actual::Unready, None));
    let mut drain = world.cluster.last_drain_of("n1").unwrap().clone();
    drain.nodes[0].state = DrainState::Ended(Ending::Cancelled);
    world.cluster.apply(&Change::Drain(drain));
    world.plan();
    assert_eq!(available(&world), 3, "{}", world.show());
    assert!(world.wanted("web").iter().any(|i| i.id == new.id));
}

#[test]
fn without_surge_and_without_room_the_old_one_stays_and_the_reason_is_given() {
    let mut world = World::with_nodes(2);
    let mut one = web();
    (one.update.surge, one.migrate.surge) = (false, false);
    world.apply(&one, 1);
    world.let_it_run();
    let home = world.node_of(&world.wanted("web")[0]);
    let other = if home == "n1" { "n2" } else { "n1" };
    world.change_node(other, |node| node.intent = Intent::Disabled);
    world.drain(&[&home], options());
    world.let_it_run();
    assert_eq!(on(&world, &home), 1);
    expect!["no_eligible_node: no node takes new work at the moment"].assert_eq(&world.reasons("web"));
    assert!(world.planned["web"].starved, "it is looked at again when there is room");
}

#[test]
fn a_place_that_is_left_by_force_is_on_the_move_until_it_is_empty_and_after() {
    let mut world = World::with_nodes(2);
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    world.apply(&db, 2);
    world.let_it_run();
    world.drain(&["n1"], DrainOptions { include_stateful: true, ..options() });
    world.plan();
    assert_eq!(world.wanted("db").len(), 1);
    db.env.insert("MARK".into(), "2".into());
    world.apply(&db, 2);
    world.plan();
    assert_eq!(world.wanted("db").len(), 1, "one at a time moves, whatever makes it");
}
