//! How others' drains failed, and that ours does not. Numbers are those of docs/lessons.md; what was there
//! before stands in `drains.rs`, `rollouts.rs` and `kinds.rs` under the same names.

#![allow(clippy::unwrap_used)]

mod world;

use model::{
    Actual, Change, Code, DrainOptions, Instance, InstanceId, Intent, Millis, RolloutState, spec::ServiceFile,
};
use world::{World, file};

fn options() -> DrainOptions {
    DrainOptions { deadline: None, ..DrainOptions::default() }
}

fn with_volume(name: &str) -> ServiceFile {
    let mut file = file(name);
    file.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    file
}

fn available(world: &World, service: &str) -> usize {
    world.instances(service).iter().filter(|instance| instance.is_available()).count()
}

fn on(world: &World, node: &str) -> usize {
    let ix = world.cluster.node_ix(node).unwrap();
    world.cluster.instances_on(ix).filter(|instance| !instance.is_over()).count()
}

/// The node reports one more that it runs, which the record had not placed there when its drain began.
fn appears(world: &mut World, service: &str, node: &str) -> InstanceId {
    let (service, node) = (world.cluster.service_ix(service).unwrap(), world.cluster.node_ix(node).unwrap());
    let spec = world.cluster.service(service).unwrap().rec.spec().clone();
    let mut late = Instance::new(InstanceId(1 << 40), service, node, 1, &spec, world.now);
    (late.actual, late.healthy_since) = (Actual::Ready, Some(world.now));
    let id = late.id;
    world.cluster.apply(&Change::Instance(late));
    id
}

#[test]
fn lesson_02_what_is_waited_for_is_not_frozen_at_the_start() {
    let mut world = World::with_nodes(3);
    world.apply(&file("web"), 3);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.plan();
    appears(&mut world, "web", "n1");
    world.become_ready();
    world.plan();
    assert_eq!(on(&world, "n1"), 2);
    for left in [1, 0] {
        assert_eq!(world.drain_state("n1"), "draining", "{left} more must go:\n{}", world.show());
        let ix = world.cluster.node_ix("n1").unwrap();
        let leaving = |i: &&Instance| i.desired != model::Desired::Running && !i.is_over();
        let Some(id) = world.cluster.instances_on(ix).find(leaving).map(|i| i.id) else { break };
        world.set(id, |i| (i.actual, i.ended_at) = (Actual::Stopped, Some(i.created_at)));
        world.plan();
        world.become_ready();
        world.plan();
    }
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), on(&world, "n1")), ("drained", 0));
}

#[test]
fn lesson_03_each_that_was_left_is_listed_with_its_reason_and_what_could_not_move_is_no_success() {
    let mut world = World::with_nodes(1);
    world.apply(&with_volume("db"), 1);
    world.apply(&with_volume("cache"), 1);
    let mut big = file("big");
    big.memory = "600MiB".into();
    world.apply(&big, 1);
    world.let_it_run();
    world.node("n2", 512 * world::MIB, &[]);
    world.drain(&["n1"], DrainOptions { ack_stateful: true, ..options() });
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "draining", "one has no place to go");
    world.node("n3", 1024 * world::MIB, &[]);
    world.let_it_run();
    assert_eq!(world.drain_state("n1"), "drained_except");
    let left = world.part("n1").left;
    let listed = |name: &str| {
        let of = |unit: &str| unit.starts_with(&format!("instance/{name}-"));
        left.iter().filter(|(unit, code)| of(unit) && *code == Code::VolumeLocal).count()
    };
    assert_eq!((left.len(), listed("db"), listed("cache")), (2, 1, 1), "{left:?}");
}

#[test]
fn lesson_06_a_count_of_one_never_drops_to_zero() {
    let mut world = World::with_nodes(2);
    world.apply(&file("web"), 1);
    world.let_it_run();
    let home = world.node_of(&world.wanted("web")[0]);
    world.drain(&[&home], options());
    for step in 0..20 {
        world.plan();
        assert_eq!(available(&world, "web").max(1), available(&world, "web"), "step {step}");
        match step % 3 {
            0 => {}
            1 => world.become_ready(),
            _ => world.stop_leavers(),
        }
    }
    assert_eq!((world.drain_state(&home), on(&world, &home)), ("drained", 0));
    assert_eq!(available(&world, "web"), 1);
}

#[test]
fn lesson_08_a_replacement_that_crashes_is_a_verdict_against_it_and_not_for_going_on() {
    let mut world = World::with_nodes(3);
    world.apply(&file("web"), 3);
    world.let_it_run();
    world.drain(&["n1"], options());
    for _ in 0..10 {
        world.plan();
        let broken: Vec<InstanceId> =
            world.wanted("web").iter().filter(|i| i.replaces.is_some()).map(|i| i.id).collect();
        broken.into_iter().for_each(|id| world.fail(id, Code::CrashLooping));
        world.stop_leavers();
        world.pass(Millis::secs(60));
    }
    world.plan();
    assert_eq!((available(&world, "web"), on(&world, "n1")), (3, 1), "the old one keeps running");
    assert_eq!(world.drain_state("n1"), "draining");
    assert!(world.reasons("web").contains("replacement_unhealthy"), "{}", world.reasons("web"));
}

#[test]
fn lesson_08_a_few_replacements_that_fail_among_many_that_do_not_are_tried_again_and_need_nobody() {
    let mut world = World::with_nodes(3);
    let mut web = file("web");
    (web.memory, web.migrate.max_parallel) = ("8MiB".into(), 20);
    world.apply(&web, 60);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.plan();
    let new: Vec<InstanceId> =
        world.wanted("web").iter().filter(|i| i.replaces.is_some()).map(|i| i.id).collect();
    assert_eq!(new.len(), 20);
    new.into_iter().take(3).for_each(|id| world.fail(id, Code::CrashLooping));
    for _ in 0..10 {
        world.become_ready();
        world.plan();
        world.stop_leavers();
        world.pass(Millis::secs(30));
        world.plan();
    }
    assert_eq!((world.drain_state("n1"), on(&world, "n1")), ("drained", 0), "{}", world.reasons("web"));
}

#[test]
fn lesson_12_a_drain_in_the_middle_of_a_rollout_leaves_the_rollout_whole() {
    for drained in ["n1", "n2", "n3"] {
        for after in 0..8 {
            let mut world = World::with_nodes(3);
            world.apply(&file("web"), 3);
            world.let_it_run();
            let mut next = file("web");
            next.env.insert("RELEASE".into(), "two".into());
            world.apply(&next, 3);
            for step in 0..40 {
                if step == after {
                    world.drain(&[drained], options());
                }
                world.plan();
                let wanted = world.wanted("web");
                assert!(available(&world, "web") >= 3, "{drained} after {after}:\n{}", world.show());
                assert!(wanted.len() <= 4, "one budget: {drained} after {after}:\n{}", world.show());
                let complete = world.service("web").rollout.state == RolloutState::Complete;
                let all_new = wanted.iter().filter(|i| i.release == 2 && i.is_available()).count() >= 3;
                assert!(!complete || all_new, "said too early: {drained} after {after}:\n{}", world.show());
                match step % 2 {
                    0 => world.become_ready(),
                    _ => world.stop_leavers(),
                }
            }
            assert_eq!(world.service("web").rollout.state, RolloutState::Complete);
            assert_eq!(world.drain_state(drained), "drained");
            assert!(world.wanted("web").iter().all(|i| i.release == 2 && world.node_of(i) != drained));
            assert_eq!(world.wanted("web").len(), 3);
        }
    }
}

#[test]
fn lesson_12_while_a_release_is_halted_a_drain_moves_the_last_healthy_one() {
    let mut world = World::with_nodes(3);
    world.apply(&file("web"), 3);
    world.let_it_run();
    let mut broken = file("web");
    broken.env.insert("RELEASE".into(), "broken".into());
    world.apply(&broken, 3);
    for _ in 0..20 {
        world.plan();
        let new: Vec<InstanceId> =
            world.wanted("web").iter().filter(|i| i.release == 2).map(|i| i.id).collect();
        new.into_iter().for_each(|id| world.fail(id, Code::CrashLooping));
        world.stop_leavers();
        world.pass(Millis::secs(60));
    }
    world.plan();
    assert!(matches!(world.service("web").rollout.state, RolloutState::Failed { .. }));
    let home = world.node_of(&world.wanted("web")[0]);
    world.drain(&[&home], options());
    world.let_it_run();
    assert_eq!(world.drain_state(&home), "drained");
    assert!(world.wanted("web").iter().all(|i| i.release == 1), "{}", world.show());
    assert_eq!(available(&world, "web"), 3);
}

#[test]
fn lesson_13_what_a_drain_moved_does_not_move_back_when_it_is_cancelled_or_over() {
    let mut world = World::with_nodes(3);
    world.apply(&file("web"), 6);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.let_it_run();
    let after: Vec<InstanceId> = world.wanted("web").iter().map(|i| i.id).collect();
    // Out, and in again: the plan itself wants nothing back.
    world.change_node("n1", |node| node.intent = Intent::Active);
    world.let_it_run();
    assert_eq!(world.wanted("web").iter().map(|i| i.id).collect::<Vec<_>>(), after);
}

#[test]
fn lesson_18_what_cannot_move_does_not_hold_up_what_can() {
    let mut world = World::with_nodes(2);
    let mut big = file("big");
    big.memory = "600MiB".into();
    world.apply(&big, 2);
    world.apply(&file("web"), 2);
    world.apply(&with_volume("db"), 2);
    let mut bound = file("bound");
    bound.constraints.insert("rack".into(), "r1".into());
    world.change_node("n1", |node| drop(node.labels.insert("rack".into(), "r1".into())));
    world.apply(&bound, 1);
    world.let_it_run();
    world.drain(&["n1"], options());
    world.let_it_run();
    let left: Vec<String> = ["big", "web", "db", "bound"]
        .into_iter()
        .filter(|name| world.instances(name).iter().any(|i| !i.is_over() && world.node_of(i) == "n1"))
        .map(str::to_owned)
        .collect();
    assert_eq!(left, ["big", "db", "bound"], "web has left:\n{}", world.show());
    assert_eq!(world.drain_state("n1"), "draining");
    assert_eq!((available(&world, "big"), available(&world, "bound")), (2, 1));
}

#[test]
fn lesson_36_progress_never_goes_back() {
    let mut world = World::with_nodes(3);
    world.apply(&file("web"), 6);
    world.let_it_run();
    world.drain(&["n1"], options());
    let (mut most, mut late) = (0, None);
    for step in 0..20 {
        world.plan();
        if world.part("n1").done == 1 && late.is_none() {
            most = 1;
            late = Some(appears(&mut world, "web", "n1"));
            world.plan();
        }
        let part = world.part("n1");
        assert!(part.done >= most && part.done <= part.total, "{part:?}");
        most = part.done;
        match step % 2 {
            0 => world.become_ready(),
            _ => world.stop_leavers(),
        }
    }
    assert!(late.is_some());
    assert_eq!((world.drain_state("n1"), most), ("drained", 2));
}
