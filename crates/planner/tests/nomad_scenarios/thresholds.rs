//! How many of a service may be on the move: `count` 10, from where some are and how far others are.

use model::{Actual, Change, Desired, DrainState, Exit, Instance, InstanceId, Time};

use super::{World, file, left_on, no_deadline};

/// Where the ten were and are. Replacements are on another node, each for one of the old, first to last.
#[derive(Clone, Copy, Default)]
struct Scene {
    surge: bool,
    max_parallel: i64,
    /// On the node that drains: reported stopped, told to go, ready.
    gone: u64,
    leaving: u64,
    ready: u64,
    /// Elsewhere, from the beginning: ready, and not yet.
    others: u64,
    others_starting: u64,
    /// In the stead of the first of the old.
    new_ready: u64,
    new_starting: u64,
}

/// What one plan makes of it.
#[derive(Debug, PartialEq)]
struct Does {
    starts: usize,
    tells_to_go: usize,
    left: usize,
    state: &'static str,
}

fn does(starts: usize, tells_to_go: usize, left: usize, state: &'static str) -> Does {
    Does { starts, tells_to_go, left, state }
}

fn scene(of: Scene) -> World {
    let mut world = World::with_nodes(2);
    let mut web = file("web");
    (web.migrate.max_parallel, web.update.max_parallel) = (of.max_parallel, of.max_parallel);
    web.migrate.surge = of.surge;
    world.apply(&web, 10);
    // It is not being rolled out.
    let mut rec = world.service("web").clone();
    (rec.rollout.state, rec.healthy) = (model::RolloutState::Complete, Some(1));
    world.cluster.apply(&Change::Service(rec));
    let mut id = 0;
    let mut put = |world: &mut World, node: &str, how_many: u64, make: &dyn Fn(&mut Instance, u64)| {
        let (service, spec) = (world.cluster.service_ix("web").unwrap(), world.service("web").spec().clone());
        for nth in 0..how_many {
            id += 1;
            let node = world.cluster.node_ix(node).unwrap();
            let mut instance = Instance::new(InstanceId(id), service, node, 1, &spec, world.now);
            (instance.actual, instance.healthy_since) = (Actual::Ready, Some(Time(1)));
            make(&mut instance, nth);
            world.cluster.apply(&Change::Instance(instance));
        }
    };
    // Its turn has come before anything left it.
    let epoch = world.drain(&["n1"], no_deadline());
    let mut drain = world.cluster.drain(epoch).unwrap().clone();
    let part = &mut drain.nodes[0];
    (part.state, part.total) = (DrainState::Draining, (of.gone + of.leaving + of.ready) as u32);
    (part.started_at, part.progress_at) = (Some(world.now), Some(world.now));
    world.cluster.apply(&Change::Drain(drain));
    let now = world.now;
    put(&mut world, "n1", of.gone, &|i, _| {
        (i.desired, i.actual) = (Desired::Stopped, Actual::Stopped);
        (i.exit, i.ended_at) = (Some(Exit::Code(0)), Some(now));
    });
    put(&mut world, "n1", of.leaving, &|i, _| i.desired = Desired::Draining);
    put(&mut world, "n1", of.ready, &|_, _| {});
    put(&mut world, "n2", of.others, &|_, _| {});
    put(&mut world, "n2", of.others_starting, &|i, _| i.actual = Actual::Starting);
    put(&mut world, "n2", of.new_ready, &|i, nth| i.replaces = Some(InstanceId(nth + 1)));
    let ready = of.new_ready;
    put(&mut world, "n2", of.new_starting, &|i, nth| {
        (i.actual, i.replaces) = (Actual::Starting, Some(InstanceId(ready + nth + 1)));
    });
    world
}

fn check(says: &str, of: Scene, expected: Does) {
    let mut world = scene(of);
    let (before, leaving) = (world.instances("web").len(), of.leaving as usize);
    world.plan();
    let is_leaving = |i: &&Instance| i.desired != Desired::Running && !i.is_over();
    let done = Does {
        starts: world.instances("web").len() - before,
        tells_to_go: world.instances("web").iter().filter(is_leaving).count() - leaving,
        left: left_on(&world, "n1"),
        state: world.drain_state("n1"),
    };
    assert_eq!(done, expected, "{says}:\n{}", world.show());
}

const SURGE: Scene = Scene {
    surge: true,
    max_parallel: 1,
    gone: 0,
    leaving: 0,
    ready: 0,
    others: 0,
    others_starting: 0,
    new_ready: 0,
    new_starting: 0,
};

#[test]
fn with_surge_as_many_replacements_are_under_way_as_max_parallel_says() {
    let draining = |starts, tells, left| does(starts, tells, left, "draining");
    let ten = Scene { ready: 10, ..SURGE };
    // 20, 33, 32
    check("one at a time", ten, draining(1, 0, 10));
    check("two at a time", Scene { max_parallel: 2, ..ten }, draining(2, 0, 10));
    check("all at once", Scene { max_parallel: 10, ..ten }, draining(10, 0, 10));
    check("more than there are", Scene { max_parallel: 50, ..ten }, draining(10, 0, 10));
    // 21, 22
    check("one is under way", Scene { new_starting: 1, ..ten }, draining(0, 0, 10));
    check(
        "four of five are under way",
        Scene { max_parallel: 5, new_starting: 4, ..ten },
        draining(1, 0, 10),
    );
}

#[test]
fn with_surge_the_next_starts_when_one_is_healthy_and_its_predecessor_told_to_go() {
    let draining = |starts, tells, left| does(starts, tells, left, "draining");
    // 34 to 38: of the ten some have moved, and what is under way counts.
    let two = Scene { max_parallel: 2, ..SURGE };
    check("one has moved", Scene { gone: 1, new_ready: 1, ready: 9, ..two }, draining(2, 0, 9));
    check("eight have moved", Scene { gone: 8, new_ready: 8, ready: 2, ..two }, draining(2, 0, 2));
    check("nine have moved", Scene { gone: 9, new_ready: 9, ready: 1, ..two }, draining(1, 0, 1));
    check("two are healthy", Scene { ready: 10, new_ready: 2, ..two }, draining(2, 2, 10));
    check(
        "one is healthy, one is not",
        Scene { ready: 10, new_ready: 1, new_starting: 1, ..two },
        draining(1, 1, 10),
    );
    let five = Scene { max_parallel: 5, ..SURGE };
    check("five have moved", Scene { gone: 5, new_ready: 5, ready: 5, ..five }, draining(5, 0, 5));
    check(
        "three have moved and two are starting",
        Scene { gone: 3, new_ready: 3, new_starting: 2, ready: 7, ..five },
        draining(3, 0, 7),
    );
    check(
        "four have moved and one of three is starting",
        Scene { max_parallel: 3, gone: 4, new_ready: 4, new_starting: 1, ready: 6, ..SURGE },
        draining(2, 0, 6),
    );
}

#[test]
fn what_is_elsewhere_counts_only_once_it_is_healthy() {
    let draining = |starts, tells, left| does(starts, tells, left, "draining");
    // 24: there, nothing may move; here, a replacement may start, since it takes nothing away.
    check(
        "half of them are starting elsewhere",
        Scene { ready: 5, others_starting: 5, ..SURGE },
        draining(1, 0, 5),
    );
    check(
        "a replacement is healthy and the other half is not",
        Scene { ready: 5, others_starting: 5, new_ready: 1, ..SURGE },
        draining(0, 0, 5),
    );
    // 25, 26
    let last = Scene { ready: 1, others: 9, ..SURGE };
    check("the last one", last, draining(1, 0, 1));
    check("its replacement starts", Scene { new_starting: 1, ..last }, draining(0, 0, 1));
    check("its replacement is healthy", Scene { new_ready: 1, ..last }, draining(0, 1, 1));
}

#[test]
fn a_node_is_drained_when_the_last_one_is_reported_stopped_and_not_when_it_is_told_to() {
    // 23, 27, 29, 30
    check("all are elsewhere", Scene { others: 10, ..SURGE }, does(0, 0, 0, "drained"));
    check(
        "the last one stopped",
        Scene { gone: 1, others: 9, new_ready: 1, ..SURGE },
        does(0, 0, 0, "drained"),
    );
    check("all have stopped", Scene { gone: 10, new_ready: 10, ..SURGE }, does(0, 0, 0, "drained"));
    check(
        "all are told, half have stopped",
        Scene { gone: 5, leaving: 5, new_ready: 10, max_parallel: 10, ..SURGE },
        does(0, 0, 5, "draining"),
    );
    check(
        "the last one is told and has not stopped",
        Scene { leaving: 1, others: 9, new_ready: 1, ..SURGE },
        does(0, 0, 1, "draining"),
    );
}

#[test]
fn without_surge_at_most_max_parallel_are_missing() {
    let bare = Scene { surge: false, ..SURGE };
    let draining = |starts, tells, left| does(starts, tells, left, "draining");
    check("one at a time", Scene { ready: 10, ..bare }, draining(0, 1, 10));
    check("three at a time", Scene { ready: 10, max_parallel: 3, ..bare }, draining(0, 3, 10));
    check("one is on its way out", Scene { leaving: 1, ready: 9, ..bare }, draining(0, 0, 10));
    check("one has stopped", Scene { gone: 1, ready: 9, ..bare }, draining(1, 0, 9));
    check("its successor starts", Scene { gone: 1, ready: 9, others_starting: 1, ..bare }, draining(0, 0, 9));
    check("its successor is up", Scene { gone: 1, ready: 9, others: 1, ..bare }, draining(0, 1, 9));
    check("the last has stopped", Scene { gone: 1, others: 9, ..bare }, does(1, 0, 0, "draining"));
    check("and its successor is up", Scene { gone: 1, others: 10, ..bare }, does(0, 0, 0, "drained"));
}

#[test]
fn two_services_move_in_waves_of_their_own() {
    // 19: two of count 8 that move three at a time, from one node to another.
    let mut world = World::with_nodes(1);
    for name in ["one", "two"] {
        let mut file = file(name);
        (file.migrate.max_parallel, file.memory) = (3, "32MiB".into());
        world.apply(&file, 8);
    }
    world.let_it_run();
    world.node("n2", 1 << 30, &[]);
    world.drain(&["n1"], no_deadline());
    let mut waves = Vec::new();
    while world.drain_state("n1") != "drained" {
        world.plan();
        assert_eq!(world.plan(), 0, "nothing more happens by planning again");
        world.become_ready();
        world.plan();
        let told =
            |name: &str| world.instances(name).iter().filter(|i| i.desired == Desired::Draining).count();
        waves.push((told("one"), told("two")));
        assert!(["one", "two"].iter().all(|name| super::available(&world, name) >= 8));
        world.stop_leavers();
        world.plan();
    }
    assert_eq!(waves, [(3, 3), (3, 3), (2, 2)]);
}
