//! Where instances go, and what is said when they cannot.

mod world;

use expect_test::expect;
use model::{Actual, Code, Health, Intent, Millis};
use world::{MIB, World, file};

#[test]
fn instances_of_one_service_are_spread_over_the_nodes() {
    let mut world = World::with_nodes(3);
    world.apply(&file("web"), 4);
    world.plan();
    expect![[r#"
        n1: web r1 pending, web r1 pending
        n2: web r1 pending
        n3: web r1 pending
    "#]]
    .assert_eq(&world.show());
}

#[test]
fn the_least_utilised_of_equally_spread_nodes_wins_and_what_is_on_its_way_counts() {
    let mut world = World::with_nodes(3);
    world.apply(&file("a"), 1);
    world.apply(&file("b"), 1);
    world.apply(&file("c"), 1);
    world.apply(&file("d"), 1);
    world.plan();
    expect![[r#"
        n1: a r1 pending, d r1 pending
        n2: b r1 pending
        n3: c r1 pending
    "#]]
    .assert_eq(&world.show());
}

#[test]
fn memory_is_never_exceeded_and_what_lacks_room_says_by_how_much() {
    let mut world = World::with_nodes(2);
    let mut big = file("big");
    big.memory = "600MiB".into();
    world.apply(&big, 4);
    world.plan();
    expect![[r#"
        n1: big r1 pending
        n2: big r1 pending
    "#]]
    .assert_eq(&world.show());
    expect!["no_capacity_memory: 2 instances wait: each needs 600MiB; the emptiest of 2 nodes that may take it is short by 176MiB"]
        .assert_eq(&world.reasons("big"));
    assert!(world.planned["big"].starved);

    world.node("n3", 2048 * MIB, &[]);
    world.plan();
    assert_eq!(world.wanted("big").len(), 4);
    expect![""].assert_eq(&world.reasons("big"));
}

#[test]
fn an_instance_that_is_not_confirmed_stopped_still_takes_its_memory() {
    let mut world = World::with_nodes(1);
    let mut big = file("big");
    big.memory = "600MiB".into();
    world.apply(&big, 1);
    world.plan();
    world.become_ready();
    let id = world.wanted("big")[0].id;
    world.set(id, |i| i.desired = model::Desired::Stopped);
    world.plan();
    assert_eq!(world.planned["big"].reasons[0].code, Code::NoCapacityMemory);
    world.stop_leavers();
    world.plan();
    assert_eq!(world.wanted("big").len(), 1);
}

#[test]
fn constraints_bind_and_an_unsatisfied_one_is_named() {
    let mut world = World::with_nodes(2);
    world.node("ssd1", 1024 * MIB, &[("disk", "ssd")]);
    let mut fast = file("fast");
    fast.constraints.insert("disk".into(), "ssd".into());
    world.apply(&fast, 2);
    let mut gpu = file("gpu");
    gpu.constraints.insert("gpu".into(), "yes".into());
    world.apply(&gpu, 1);
    world.plan();
    expect![[r#"
        n1: 
        n2: 
        ssd1: fast r1 pending, fast r1 pending
    "#]]
    .assert_eq(&world.show());
    expect!["constraint_unsatisfied: no node has the labels gpu=yes"].assert_eq(&world.reasons("gpu"));
}

#[test]
fn closed_degraded_and_offline_nodes_get_nothing() {
    let mut world = World::with_nodes(4);
    world.change_node("n1", |node| node.intent = Intent::Disabled);
    world.change_node("n2", |node| node.health = Health::Degraded(Code::DiskFull));
    world.offline("n3");
    world.apply(&file("web"), 3);
    world.plan();
    expect![[r#"
        n1: 
        n2: 
        n3: 
        n4: web r1 pending, web r1 pending, web r1 pending
    "#]]
    .assert_eq(&world.show());
    world.change_node("n4", |node| node.intent = Intent::Disabled);
    world.apply(&file("late"), 1);
    world.plan();
    expect!["no_eligible_node: no node takes new work at the moment"].assert_eq(&world.reasons("late"));
}

#[test]
fn a_node_on_which_it_failed_is_taken_last_and_only_after_a_pause() {
    let mut world = World::with_nodes(2);
    world.apply(&file("web"), 1);
    world.plan();
    let first = world.wanted("web")[0].clone();
    assert_eq!(world.node_of(&first), "n1");
    world.fail(first.id, Code::CrashLooping);
    world.plan();
    assert!(world.wanted("web").is_empty(), "not before its pause is over");
    expect!["crash_looping: failed once in the last 10m; tried again after a pause"]
        .assert_eq(&world.reasons("web"));
    assert_eq!(world.planned["web"].wake_at, Some(world.now + Millis::secs(1)));

    world.pass(Millis::secs(1));
    world.plan();
    let second = world.wanted("web")[0].clone();
    assert_eq!(world.node_of(&second), "n2");
    world.fail(second.id, Code::CrashLooping);
    world.pass(Millis::secs(1));
    world.plan();
    assert!(world.wanted("web").is_empty(), "the pause doubles");
    world.pass(Millis::secs(1));
    world.plan();
    assert_eq!(world.wanted("web").len(), 1, "where it failed is better than nowhere");
}

#[test]
fn bulk_placing_puts_instances_exactly_where_one_by_one_does() {
    let place = |at_once: bool| {
        let mut world = World::with_nodes(7);
        world.node("small", 200 * MIB, &[]);
        let mut small = file("web");
        small.memory = "20MiB".into();
        world.apply(&file("other"), 3);
        world.plan();
        for count in if at_once { 60..=60 } else { 1..=60 } {
            world.apply(&small, count);
            world.plan();
        }
        world.show()
    };
    assert_eq!(place(true), place(false));
}

#[test]
fn a_replacement_is_not_kept_from_a_node_by_one_that_another_is_about_to_replace() {
    let mut world = World::with_nodes(2);
    let mut web = file("web");
    world.apply(&web, 2);
    world.let_it_run();
    let mut big = file("big");
    big.memory = "256MiB".into();
    world.apply(&big, 1);
    world.let_it_run();
    web.env.insert("MARK".into(), "2".into());
    world.apply(&web, 2);
    world.plan();
    // The first of the new release is on n2, in the stead of that on n1; then the old one on n2 fails.
    let old = world.wanted("web").into_iter().find(|i| i.release == 1 && on(&world, i) == "n2").unwrap();
    let now = world.now;
    world.set(old.id, |i| (i.actual, i.ended_at) = (Actual::Failed, Some(now)));
    world.plan();
    let new: Vec<String> =
        world.wanted("web").iter().filter(|i| i.release == 2).map(|i| on(&world, i)).collect();
    assert_eq!(new, ["n2", "n1"], "n1 will have none when both have come");
}

#[test]
fn nothing_is_moved_for_balance_to_where_it_has_just_failed() {
    let mut world = World::with_nodes(2);
    world.change_node("n1", |node| node.intent = Intent::Disabled);
    world.apply(&file("web"), 4);
    world.let_it_run();
    world.change_node("n1", |node| node.intent = Intent::Active);
    assert_eq!(world.balance(2), 1);
    let moved = world.wanted("web").pop().unwrap();
    assert_eq!(on(&world, &moved), "n1");
    let now = world.now;
    world.set(moved.id, |i| (i.actual, i.ended_at) = (Actual::Failed, Some(now)));
    world.plan();
    assert_eq!(world.balance(2), 0, "it would fail there again");
    world.now = now + Millis::secs(601);
    assert_eq!(world.balance(2), 1, "and is tried again once that is forgiven");
}

fn on(world: &World, instance: &model::Instance) -> String {
    world.cluster.node(instance.node).rec.id.to_string()
}
