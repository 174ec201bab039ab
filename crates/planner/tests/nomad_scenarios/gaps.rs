//! What Nomad's own tests leave out.

use model::{Actual, Change, Code, Desired, DrainState, Ending};
use planner::drain::Limits;

use super::{World, available, file, left_on, no_deadline};

fn spread(nodes: usize, count: u32, max_parallel: i64) -> World {
    let mut world = World::with_nodes(nodes);
    let mut web = file("web");
    web.migrate.max_parallel = max_parallel;
    world.apply(&web, count);
    world.let_it_run();
    world
}

#[test]
fn a_cancel_in_any_moment_leaves_as_many_as_were_asked_for_and_the_node_open() {
    // Steps of a drain: plan, become ready, plan, stop; cancelled after each number of them.
    for steps in 0..12 {
        let mut world = spread(3, 6, 2);
        world.drain(&["n1"], no_deadline());
        for step in 0..steps {
            match step % 4 {
                0 | 2 => drop(world.plan()),
                1 => world.become_ready(),
                _ => world.stop_leavers(),
            }
            assert!(available(&world, "web") >= 6);
        }
        let mut drain = world.cluster.last_drain_of("n1").unwrap().clone();
        for part in drain.nodes.iter_mut().filter(|part| part.ending().is_none()) {
            part.state = DrainState::Ended(Ending::Cancelled);
        }
        let over = world.part("n1").ending().is_some();
        world.cluster.apply(&Change::Drain(drain));
        world.let_it_run();
        assert_eq!((world.wanted("web").len(), available(&world, "web")), (6, 6), "after {steps} steps");
        assert!(over || world.cluster.node_by_id("n1").unwrap().may_place());
    }
}

#[test]
fn an_instance_that_was_judged_unhealthy_counts_for_nothing() {
    // There, one that was found unhealthy counts as healthy, and the drain walks on.
    let mut world = spread(3, 6, 1);
    world.drain(&["n1"], no_deadline());
    world.plan();
    let new = world.wanted("web").into_iter().find(|i| i.replaces.is_some()).unwrap();
    world.set(new.id, |i| (i.actual, i.reason) = (Actual::Unready, Some(Code::Unhealthy)));
    world.plan();
    assert_eq!(left_on(&world, "n1"), 2);
    assert!(world.instances("web").iter().all(|i| i.desired == Desired::Running), "{}", world.show());
}

#[test]
fn an_instance_whose_node_does_not_answer_counts_for_nothing() {
    // There, "unknown" counts as healthy.
    let mut world = spread(4, 8, 1);
    world.drain(&["n1"], no_deadline());
    world.plan();
    world.become_ready();
    let new = world.wanted("web").into_iter().find(|i| i.replaces.is_some()).unwrap();
    let at = world.node_of(&new);
    world.offline(&at);
    world.plan();
    assert_eq!(left_on(&world, "n1"), 2, "its replacement went with {at}: it stays");
    let there = world.instances("web").into_iter().filter(|i| world.node_of(i) == "n1");
    assert!(there.into_iter().all(|i| i.desired == Desired::Running));
}

#[test]
fn without_a_verdict_for_its_replacement_an_instance_neither_goes_nor_is_the_drain_stuck_for_ever() {
    // There, count 1 with an instance that never gets a verdict is stuck until the deadline.
    let mut world = spread(2, 1, 1);
    let here = world.node_of(&world.wanted("web")[0]);
    world.drain(&[here.as_str()], no_deadline());
    world.plan();
    assert_eq!(world.wanted("web").len(), 2);
    assert_eq!(left_on(&world, &here), 1);
    // One that is itself not ready stands in for nobody, and is replaced like any other.
    let old = world.wanted("web")[0].id;
    world.set(old, |i| i.actual = Actual::Unready);
    world.let_it_run();
    assert_eq!(world.drain_state(&here), "drained");
}

#[test]
fn without_capacity_nothing_is_stopped_and_the_reason_is_given() {
    let mut world = World::with_nodes(2);
    let mut big = file("web");
    big.memory = "700MiB".into();
    world.apply(&big, 2);
    world.let_it_run();
    world.drain(&["n1"], no_deadline());
    world.let_it_run();
    assert_eq!((available(&world, "web"), left_on(&world, "n1")), (2, 1));
    assert_eq!(world.planned["web"].reasons[0].code, Code::NoCapacityMemory);
}

#[test]
fn two_nodes_of_one_service_that_drain_at_once_share_its_budget() {
    for max_parallel in [1, 2, 3] {
        let mut world = spread(4, 12, max_parallel);
        world.limits = Limits { nodes_at_once: 2, ..World::LIMITS };
        world.drain(&["n1", "n2"], no_deadline());
        let mut most = 0;
        while world.drain_state("n1") != "drained" || world.drain_state("n2") != "drained" {
            world.plan();
            most = most.max(world.wanted("web").len() - 12);
            assert!(available(&world, "web") >= 12);
            world.become_ready();
            world.plan();
            world.stop_leavers();
        }
        assert_eq!(most as i64, max_parallel, "on the move at a time");
        assert_eq!(available(&world, "web"), 12);
    }
}

#[test]
fn a_service_that_would_never_move_is_refused_with_its_file() {
    // There, `max_parallel = 0` is taken, and nothing leaves before the deadline.
    let mut web = file("web");
    web.migrate.max_parallel = 0;
    assert!(web.check().is_err());
}

#[test]
fn a_report_that_comes_twice_changes_nothing() {
    let mut world = spread(3, 6, 1);
    world.drain(&["n1"], no_deadline());
    world.let_it_run();
    let before = world.show();
    let gone: Vec<_> = world.instances("web").into_iter().filter(|i| i.is_over()).collect();
    for instance in gone {
        world.cluster.apply(&Change::Instance(instance));
    }
    assert_eq!(world.plan(), 0);
    assert_eq!(world.show(), before);
}

#[test]
fn a_thousand_of_one_service_leave_a_node_in_as_many_waves_as_its_budget_asks_for() {
    let mut world = World::with_nodes(0);
    world.node("n1", 1 << 40, &[]);
    let mut web = file("web");
    (web.migrate.max_parallel, web.update.max_parallel) = (100, 1000);
    world.apply(&web, 1000);
    world.let_it_run();
    world.node("n2", 1 << 40, &[]);
    world.drain(&["n1"], no_deadline());
    let mut waves = 0;
    world.plan();
    while world.drain_state("n1") != "drained" {
        waves += 1;
        world.become_ready();
        world.plan();
        assert!(available(&world, "web") >= 1000);
        world.stop_leavers();
        world.plan();
    }
    assert_eq!(waves, 10);
}
