//! Deadlines, force, and what is changed about them on the way.

use model::{Change, Millis};
use planner::drain::{DEADLINE_WINDOW, Limits};

use super::{World, available, file, forced, kind, left_on, no_deadline, within};

/// Nodes whose batch instances hold their drains up, all at a time.
fn held_up(nodes: usize) -> World {
    let mut world = World::with_nodes(nodes + 1);
    let mut crunch = kind("crunch", "batch");
    crunch.rerun = false;
    world.apply(&crunch, nodes as u32 + 1);
    world.let_it_run();
    world.limits = Limits { nodes_at_once: nodes as u32, ..World::LIMITS };
    world
}

fn is_reached(world: &World, node: &str) -> bool {
    world.part(node).deadline_reached
}

/// Another deadline, from here on, as changing the options of a drain that runs sets it.
fn change_deadline(world: &mut World, node: &str, deadline: Option<Millis>) {
    let mut drain = world.cluster.last_drain_of(node).unwrap().clone();
    for part in drain.nodes.iter_mut().filter(|part| part.node.as_str() == node) {
        part.options.deadline = deadline;
        part.deadline = deadline.map(|span| world.now + span);
    }
    world.cluster.apply(&Change::Drain(drain));
}

fn cancel(world: &mut World, node: &str) {
    let mut drain = world.cluster.last_drain_of(node).unwrap().clone();
    for part in drain.nodes.iter_mut().filter(|part| part.node.as_str() == node) {
        part.state = model::DrainState::Ended(model::Ending::Cancelled);
    }
    world.cluster.apply(&Change::Drain(drain));
}

#[test]
fn a_deadline_is_acted_on_when_it_is_due_and_not_before() {
    // 2
    let mut world = held_up(1);
    world.drain(&["n1"], within(Millis::secs(10)));
    world.plan();
    assert_eq!(world.wake, Some(world.now + Millis::secs(10)));
    world.pass(Millis(9_999));
    world.plan();
    assert!(!is_reached(&world, "n1"));
    world.pass(Millis(1));
    world.plan();
    assert!(is_reached(&world, "n1"));
}

#[test]
fn the_deadline_that_was_set_last_counts() {
    // 3, 45: sooner, later, none at all. (deadline at first, then after 1 s, reached after so long)
    let secs = |s| Some(Millis::secs(s));
    let table = [
        ("sooner", secs(3600), secs(10), secs(11)),
        ("later", secs(10), secs(60), secs(61)),
        ("none any more", secs(10), None, None),
        ("one after none", None, secs(10), secs(11)),
    ];
    for (says, first, then, reached) in table {
        let mut world = held_up(1);
        world.drain(&["n1"], model::DrainOptions { deadline: first, ..no_deadline() });
        world.plan();
        world.pass(Millis::secs(1));
        change_deadline(&mut world, "n1", then);
        let mut after = None;
        for second in 1..=100 {
            world.plan();
            if is_reached(&world, "n1") {
                after = secs(second);
                break;
            }
            world.pass(Millis::secs(1));
        }
        assert_eq!(after, reached, "{says}");
    }
}

#[test]
fn a_node_that_was_taken_out_is_left_alone_when_its_deadline_would_have_come() {
    // 4, 42
    let mut world = held_up(2);
    world.drain(&["n1", "n2"], within(Millis::secs(10)));
    world.plan();
    cancel(&mut world, "n1");
    world.pass(Millis::secs(10));
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), world.drain_state("n2")), ("cancelled", "drained"));
    assert_eq!((left_on(&world, "n1"), left_on(&world, "n2")), (1, 0));
}

#[test]
fn deadlines_close_together_are_acted_on_in_one_step_and_a_later_group_in_another() {
    // 5: (deadline of each of four nodes) and the moments at which how many are reached.
    let mut world = held_up(4);
    for (node, deadline) in [("n1", 10_000), ("n2", 12_000), ("n3", 14_999), ("n4", 15_000)] {
        world.drain(&[node], within(Millis(deadline)));
    }
    let begun = world.now;
    world.plan();
    let mut steps = Vec::new();
    // Nothing else happens: every step is one that the drains asked for.
    while let Some(at) = world.wake {
        world.now = at;
        world.plan();
        let reached = ["n1", "n2", "n3", "n4"].iter().filter(|node| is_reached(&world, node)).count();
        if steps.last().is_none_or(|(_, known)| *known != reached) {
            steps.push((at.since(begun), reached));
        }
        if reached == 4 {
            break;
        }
    }
    assert_eq!(steps, [(Millis(14_999), 3), (Millis(15_000), 4)]);
    assert_eq!(DEADLINE_WINDOW, Millis::secs(5), "the window that these times are about");
}

#[test]
fn another_step_in_between_neither_splits_a_group_of_deadlines_nor_delays_it() {
    let mut world = held_up(2);
    world.drain(&["n1"], within(Millis::secs(10)));
    world.drain(&["n2"], within(Millis::secs(13)));
    world.plan();
    world.pass(Millis::secs(11));
    world.plan();
    assert!(!is_reached(&world, "n1"), "it waits for the other");
    world.pass(Millis::secs(2));
    world.plan();
    assert!(is_reached(&world, "n1") && is_reached(&world, "n2"));
}

#[test]
fn after_a_long_silence_every_deadline_that_has_passed_is_acted_on_at_once() {
    let mut world = held_up(3);
    for (node, deadline) in [("n1", 10), ("n2", 30), ("n3", 1000)] {
        world.drain(&[node], within(Millis::secs(deadline)));
    }
    world.plan();
    world.pass(Millis::secs(500));
    world.plan();
    let reached = ["n1", "n2", "n3"].map(|node| is_reached(&world, node));
    assert_eq!(reached, [true, true, false]);
}

#[test]
fn force_waits_for_no_other_deadline_and_works_a_second_time() {
    // 6, 62
    let mut world = held_up(3);
    world.drain(&["n3"], within(Millis::secs(2)));
    world.plan();
    world.drain(&["n1"], forced());
    world.plan();
    assert!(is_reached(&world, "n1") && !is_reached(&world, "n3"));
    world.drain(&["n2"], forced());
    world.plan();
    assert!(is_reached(&world, "n2") && !is_reached(&world, "n3"));
    change_deadline(&mut world, "n3", Some(Millis::ZERO));
    world.plan();
    assert!(is_reached(&world, "n3"));
}

#[test]
fn a_batch_is_left_alone_until_force_stops_it_be_it_from_no_deadline_or_a_far_one() {
    // 55, 56
    for deadline in [None, Some(Millis::secs(3600))] {
        let mut world = held_up(1);
        world.drain(&["n1"], model::DrainOptions { deadline, ..no_deadline() });
        world.pass(Millis::secs(30));
        world.let_it_run();
        assert_eq!((left_on(&world, "n1"), world.drain_state("n1")), (1, "draining"));
        change_deadline(&mut world, "n1", Some(Millis::ZERO));
        world.let_it_run();
        assert_eq!((left_on(&world, "n1"), world.drain_state("n1")), (0, "drained"));
        assert!(is_reached(&world, "n1"));
    }
}

#[test]
fn at_the_deadline_everything_stops_though_nothing_can_take_it_and_is_waited_for() {
    // 49, 61: no other node; there the drain is over before anything has stopped.
    let mut world = World::with_nodes(1);
    world.apply(&file("web"), 2);
    world.let_it_run();
    world.drain(&["n1"], within(Millis::secs(1)));
    world.let_it_run();
    assert_eq!((available(&world, "web"), world.drain_state("n1")), (2, "draining"));
    world.pass(Millis::secs(1));
    world.plan();
    assert_eq!((left_on(&world, "n1"), world.drain_state("n1")), (2, "draining"), "told, and not yet gone");
    world.stop_leavers();
    world.plan();
    assert_eq!((left_on(&world, "n1"), world.drain_state("n1")), (0, "drained"));
    assert!(is_reached(&world, "n1"));
}

#[test]
fn at_the_deadline_all_kinds_go_and_services_went_before_batch_and_system() {
    // 51, 57
    for ignore_system in [false, true] {
        let mut world = World::with_nodes(1);
        world.apply(&file("web"), 2);
        let mut crunch = kind("crunch", "batch");
        crunch.rerun = false;
        world.apply(&crunch, 2);
        world.apply(&kind("agent", "system"), 1);
        world.let_it_run();
        world.node("n2", 1 << 30, &[]);
        world.drain(&["n1"], model::DrainOptions { ignore_system, ..within(Millis::secs(100)) });
        world.let_it_run();
        let on_old = |world: &World, name: &str| {
            world.instances(name).iter().filter(|i| !i.is_over() && world.node_of(i) == "n1").count()
        };
        assert_eq!((on_old(&world, "web"), on_old(&world, "crunch"), on_old(&world, "agent")), (0, 2, 1));
        world.pass(Millis::secs(100));
        world.let_it_run();
        let agents = usize::from(ignore_system);
        assert_eq!((on_old(&world, "crunch"), on_old(&world, "agent")), (0, agents), "{}", world.show());
        assert_eq!(world.drain_state("n1"), "drained");
        assert_eq!(left_on(&world, "n2"), 3, "two of web and the node's own agent: no batch is run again");
    }
}
