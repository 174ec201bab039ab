//! Releases, scaling and failures of stateless services.

mod world;

use expect_test::expect;
use model::{Actual, Code, Intent, Millis, RolloutState, spec::ServiceFile};
use world::{World, file};

fn web(release: &str) -> ServiceFile {
    let mut web = file("web");
    web.env.insert("RELEASE_NAME".into(), release.into());
    web
}

/// `web` with `count` ready instances of release 1 on three nodes.
fn running(count: u32) -> World {
    let mut world = World::with_nodes(3);
    world.apply(&web("one"), count);
    world.plan();
    world.become_ready();
    world.plan();
    assert_eq!(world.service("web").rollout.state, RolloutState::Complete);
    world
}

fn available(world: &World) -> usize {
    world.instances("web").iter().filter(|i| i.is_available()).count()
}

#[test]
fn with_surge_a_healthy_one_comes_before_an_old_one_goes() {
    let mut world = running(3);
    world.apply(&web("two"), 3);
    for _ in 0..3 {
        world.plan();
        assert_eq!(world.wanted("web").len(), 4, "one more than asked for, not two:\n{}", world.show());
        world.become_ready();
        world.plan();
        assert!(available(&world) >= 3, "{}", world.show());
        world.stop_leavers();
    }
    world.plan();
    expect![[r#"
        n1: web r2 ready
        n2: web r2 ready
        n3: web r2 ready
    "#]]
    .assert_eq(&world.show());
    assert_eq!(world.service("web").rollout.state, RolloutState::Complete);
    assert_eq!(world.service("web").releases.len(), 1, "the old specification is dropped");
}

#[test]
fn max_parallel_bounds_the_surge() {
    let mut world = running(6);
    let mut two = web("two");
    two.update.max_parallel = 2;
    world.apply(&two, 6);
    world.plan();
    assert_eq!(world.wanted("web").len(), 8);
}

#[test]
fn a_replacement_counts_only_after_min_healthy_time() {
    let mut world = running(1);
    let mut two = web("two");
    two.migrate.min_healthy_time = "10s".into();
    world.apply(&two, 1);
    world.plan();
    world.become_ready();
    world.plan();
    assert_eq!(world.wanted("web").len(), 2, "it is ready, but not for long enough");
    world.pass(Millis::secs(10));
    world.plan();
    assert_eq!(world.wanted("web").len(), 1);
}

#[test]
fn a_release_that_does_not_get_healthy_stops_there_and_leaves_the_old_ones_running() {
    let mut world = running(3);
    world.apply(&web("two"), 3);
    world.plan();
    world.pass(Millis::secs(299));
    world.plan();
    assert_eq!(world.service("web").rollout.state, RolloutState::Rolling);
    world.pass(Millis::secs(1));
    world.plan();
    let RolloutState::Failed { reason, .. } = &world.service("web").rollout.state else { panic!() };
    assert_eq!(*reason, Code::Unhealthy);
    world.stop_leavers();
    world.plan();
    expect![[r#"
        n1: web r1 ready
        n2: web r1 ready
        n3: web r1 ready
    "#]]
    .assert_eq(&world.show());
    expect!["unhealthy: release 2 failed: 0 ready, no further one within 5m"]
        .assert_eq(&world.reasons("web"));
}

#[test]
fn while_a_release_is_halted_replacements_are_of_the_last_healthy_one() {
    let mut world = running(3);
    world.apply(&web("two"), 3);
    world.plan();
    world.pass(Millis::secs(300));
    world.plan();
    world.stop_leavers();
    world.offline("n1");
    world.plan();
    assert!(world.wanted("web").iter().all(|i| i.release == 1), "{}", world.show());
    assert_eq!(world.wanted("web").len(), 3);
}

#[test]
fn a_release_without_room_fails_with_that_reason_and_the_old_ones_run_on() {
    let mut world = running(3);
    let mut two = web("two");
    two.memory = "2GiB".into();
    world.apply(&two, 3);
    world.plan();
    assert_eq!(world.wanted("web").len(), 3);
    world.pass(Millis::secs(300));
    world.plan();
    let RolloutState::Failed { reason, .. } = &world.service("web").rollout.state else { panic!() };
    assert_eq!(*reason, Code::NoCapacityMemory);
    assert_eq!(available(&world), 3);
}

#[test]
fn a_crash_looping_release_fails_with_that_reason() {
    let mut world = running(1);
    world.apply(&web("two"), 1);
    for _ in 0..400 {
        world.plan();
        let newest = world.wanted("web").into_iter().find(|i| i.release == 2);
        if let Some(newest) = newest {
            world.fail(newest.id, Code::CrashLooping);
        }
        world.pass(Millis::secs(1));
    }
    let RolloutState::Failed { reason, .. } = &world.service("web").rollout.state else { panic!() };
    assert_eq!(*reason, Code::CrashLooping);
    assert_eq!(available(&world), 1);
    let tries = world.instances("web").iter().filter(|i| i.release == 2).count();
    assert!((4..=12).contains(&tries), "{tries} tries in 300 s: the pauses keep it from thrashing");
}

#[test]
fn a_new_release_replaces_one_that_failed() {
    let mut world = running(2);
    world.apply(&web("two"), 2);
    world.plan();
    world.pass(Millis::secs(300));
    world.plan();
    world.stop_leavers();
    world.apply(&web("three"), 2);
    for _ in 0..3 {
        world.plan();
        world.become_ready();
        world.plan();
        world.stop_leavers();
    }
    world.plan();
    assert!(world.wanted("web").iter().all(|i| i.release == 3 && i.is_available()));
    assert_eq!(world.service("web").rollout.state, RolloutState::Complete);
}

#[test]
fn without_surge_no_second_copy_starts_before_the_first_is_known_to_have_stopped() {
    let mut world = World::with_nodes(3);
    let mut one = web("one");
    (one.update.surge, one.migrate.surge) = (false, false);
    world.apply(&one, 2);
    world.plan();
    world.become_ready();
    world.plan();
    let mut two = one.clone();
    two.env.insert("RELEASE_NAME".into(), "two".into());
    world.apply(&two, 2);
    world.plan();
    let not_over = world.instances("web").iter().filter(|i| !i.is_over()).count();
    assert_eq!((world.wanted("web").len(), not_over), (1, 2), "{}", world.show());
    world.stop_leavers();
    world.plan();
    assert_eq!(world.wanted("web").len(), 2);
    assert_eq!(available(&world), 1, "the second waits until the first is back");
    world.become_ready();
    world.plan();
    world.stop_leavers();
    world.plan();
    world.become_ready();
    world.plan();
    assert!(world.wanted("web").iter().all(|i| i.release == 2));
    assert_eq!(world.service("web").rollout.state, RolloutState::Complete);
}

#[test]
fn scaling_down_takes_the_unavailable_first_and_scaling_up_makes_no_release() {
    let mut world = running(3);
    let broken = world.wanted("web")[0].id;
    world.set(broken, |i| i.actual = Actual::Unready);
    world.apply(&web("one"), 2);
    world.plan();
    assert!(world.wanted("web").iter().all(|i| i.id != broken));
    assert_eq!(available(&world), 2);
    world.apply(&web("one"), 5);
    world.plan();
    assert_eq!(world.wanted("web").len(), 5);
    assert_eq!(world.service("web").release, 1);
    world.apply(&web("one"), 0);
    world.plan();
    assert_eq!(world.wanted("web").len(), 0);
}

#[test]
fn a_lost_node_s_instances_are_placed_elsewhere_at_once_under_new_ids() {
    let mut world = running(3);
    let before: Vec<_> = world.wanted("web").iter().map(|i| i.id).collect();
    world.offline("n2");
    world.plan();
    let lost = world.instances("web").into_iter().find(|i| i.actual == Actual::Lost).unwrap();
    assert!(before.contains(&lost.id));
    assert_ne!(lost.desired, model::Desired::Running, "it is stopped should the node come back");
    assert_eq!(world.wanted("web").len(), 3);
    assert!(world.wanted("web").iter().all(|i| world.node_of(i) != "n2"));
    assert_eq!(world.plan(), 0, "planning again makes no move");
}

#[test]
fn a_disabled_node_s_instances_leave_without_waiting_for_their_replacements() {
    let mut world = running(3);
    world.change_node("n1", |node| node.intent = Intent::Disabled);
    world.plan();
    assert!(world.wanted("web").iter().all(|i| world.node_of(i) != "n1"));
    assert_eq!(world.wanted("web").len(), 3);
}

#[test]
fn a_first_release_that_never_got_room_is_placed_as_soon_as_there_is_some() {
    let mut world = World::with_nodes(1);
    let mut big = file("web");
    big.memory = "4GiB".into();
    world.apply(&big, 1);
    world.plan();
    world.pass(Millis::secs(300));
    world.plan();
    assert!(matches!(world.service("web").rollout.state, RolloutState::Failed { .. }));
    world.node("n9", 8 << 30, &[]);
    world.plan();
    world.become_ready();
    world.plan();
    assert_eq!(world.service("web").rollout.state, RolloutState::Complete);
}

#[test]
fn lesson_7_without_surge_nothing_stops_while_its_successor_would_find_no_room() {
    let mut world = World::with_nodes(2);
    let mut one = web("one");
    (one.update.surge, one.migrate.surge) = (false, false);
    world.apply(&one, 2);
    world.plan();
    world.become_ready();
    world.plan();
    let mut two = one.clone();
    two.memory = "2GiB".into();
    world.apply(&two, 2);
    world.plan();
    assert_eq!(available(&world), 2, "{}", world.show());
}
