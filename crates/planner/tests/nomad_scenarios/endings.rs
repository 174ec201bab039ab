//! What must leave a node, by what is on it, and when it is done.

use model::{Actual, Code, Ending, Exit, Intent};

use super::{World, file, kind, left_on, no_deadline};

/// One of each kind, the rest of the cluster apart: which of them have ended by themselves or were
/// stopped before the drain begins.
#[derive(Clone, Copy)]
struct On {
    service: Unit,
    batch: Unit,
    system: Unit,
}

#[derive(Clone, Copy, PartialEq)]
enum Unit {
    None,
    Runs,
    Ended,
}

use Unit::{Ended, None as Nothing, Runs};

/// The node with what is on it, and another to go to.
fn node_with(on: On) -> World {
    let mut world = World::with_nodes(1);
    let all = [("web", "service", on.service), ("crunch", "batch", on.batch), ("agent", "system", on.system)];
    for (name, of, unit) in all {
        if unit != Nothing {
            world.apply(&kind(name, of), 1);
        }
    }
    world.let_it_run();
    for (name, _, unit) in all {
        if unit == Ended {
            let id = world.instances(name)[0].id;
            let now = world.now;
            world.set(id, |i| {
                (i.actual, i.exit, i.ended_at) = (Actual::Stopped, Some(Exit::Code(0)), Some(now));
            });
            if name != "crunch" {
                world.scale(name, 0);
                world.remove(name);
            }
        }
    }
    world.node("n2", 1 << 30, &[]);
    world.drain(&["n1"], no_deadline());
    world
}

#[test]
fn what_remains_and_whether_it_is_done_follow_from_what_is_on_the_node() {
    // 9 to 17: (service, batch, system), left after one plan, state.
    let table = [
        ("an empty node", Nothing, Nothing, Nothing, 0, "drained"),
        ("a batch instance", Nothing, Runs, Nothing, 1, "draining"),
        ("a service's instance", Runs, Nothing, Nothing, 1, "draining"),
        ("a system instance", Nothing, Nothing, Runs, 1, "draining"),
        ("all have ended", Ended, Ended, Ended, 0, "drained"),
        ("the service's has ended", Ended, Runs, Runs, 2, "draining"),
        ("all but the batch have ended", Ended, Runs, Ended, 1, "draining"),
        ("all but the system have ended", Ended, Ended, Runs, 1, "draining"),
        ("all run", Runs, Runs, Runs, 3, "draining"),
        ("the batch has ended", Runs, Ended, Runs, 2, "draining"),
    ];
    for (says, service, batch, system, left, state) in table {
        let mut world = node_with(On { service, batch, system });
        world.plan();
        assert_eq!(
            (left_on(&world, "n1"), world.drain_state("n1")),
            (left, state),
            "{says}:\n{}",
            world.show()
        );
    }
}

#[test]
fn system_instances_are_told_to_go_only_when_nothing_else_is_left_and_are_waited_for() {
    // 12, 16: there the drain is over while they still run.
    let told = |world: &World| world.instances("agent").iter().filter(|i| !i.is_wanted()).count();
    let mut world = node_with(On { service: Runs, batch: Nothing, system: Runs });
    world.plan();
    assert_eq!(told(&world), 0, "the service's instance is still there");
    world.become_ready();
    world.plan();
    world.stop_leavers();
    world.plan();
    assert_eq!((told(&world), world.drain_state("n1")), (1, "draining"));
    world.stop_leavers();
    world.plan();
    assert_eq!((left_on(&world, "n1"), world.drain_state("n1")), (0, "drained"));
}

#[test]
fn a_batch_that_ends_by_itself_lets_the_drain_end_and_is_not_run_again() {
    // 28, 31, 52
    let mut world = node_with(On { service: Runs, batch: Runs, system: Runs });
    world.let_it_run();
    assert_eq!((left_on(&world, "n1"), world.drain_state("n1")), (2, "draining"), "batch and system");
    let id = world.wanted("crunch")[0].id;
    let now = world.now;
    world.set(id, |i| (i.actual, i.exit, i.ended_at) = (Actual::Stopped, Some(Exit::Code(0)), Some(now)));
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "drained");
    assert_eq!(world.instances("crunch").len(), 1);
}

#[test]
fn only_the_node_that_is_drained_is_closed_and_only_until_it_is_enabled() {
    // 41, 46, 47, 50
    let mut world = World::with_nodes(2);
    world.drain(&["n1"], no_deadline());
    world.plan();
    let intent = |world: &World, node: &str| world.cluster.node_by_id(node).unwrap().rec.intent;
    assert_eq!(world.drain_state("n1"), "drained", "it was empty");
    assert_eq!((intent(&world, "n1"), intent(&world, "n2")), (Intent::Drained, Intent::Active));
    world.apply(&file("web"), 2);
    world.let_it_run();
    assert_eq!((left_on(&world, "n1"), left_on(&world, "n2")), (0, 2), "it stays closed");
    world.change_node("n1", |node| node.intent = Intent::Active);
    world.apply(&file("api"), 1);
    world.let_it_run();
    assert_eq!(left_on(&world, "n1"), 1);
}

#[test]
fn an_instance_on_a_node_that_vanished_is_not_counted_on() {
    // 40, 53: nine of ten are where they can be seen; the tenth's node is gone for good.
    let mut world = World::with_nodes(3);
    world.apply(&file("web"), 9);
    world.let_it_run();
    world.offline("n3");
    world.drain(&["n1"], no_deadline());
    for _ in 0..20 {
        world.plan();
        let counted = world.wanted("web").iter().filter(|i| world.node_of(i) == "n3").count();
        assert_eq!(counted, 0, "what was there is lost, and replaced");
        world.become_ready();
        world.stop_leavers();
    }
    assert_eq!(world.drain_state("n1"), "drained");
    let there: Vec<String> = world.wanted("web").iter().map(|i| world.node_of(i)).collect();
    assert!(there.iter().all(|node| node == "n2") && there.len() == 9, "{there:?}");
}

#[test]
fn a_draining_node_that_is_late_is_drained_on_and_one_that_dies_ends_lost() {
    // 44: late, then gone.
    let mut world = World::with_nodes(3);
    world.apply(&file("web"), 6);
    world.let_it_run();
    world.drain(&["n1"], no_deadline());
    world.plan();
    world.change_node("n1", |node| node.health = model::Health::Degraded(Code::NodeUnreachable));
    world.plan();
    assert_eq!(world.drain_state("n1"), "draining", "late is not gone");
    world.offline("n1");
    world.let_it_run();
    assert_eq!(world.part("n1").ending(), Some(Ending::NodeLost));
    assert_eq!(super::available(&world, "web"), 6, "its units run elsewhere");
}
