//! Batch, system and stateful services.

mod world;

use expect_test::expect;
use model::{Actual, Change, Code, Desired, Exit, Intent, Millis, RolloutState, Service};
use world::{MIB, World, file};

fn batch() -> model::spec::ServiceFile {
    let mut batch = file("job");
    batch.kind = "batch".into();
    batch
}

fn db() -> model::spec::ServiceFile {
    let mut db = file("db");
    db.volume = Some(model::spec::file::VolumeFile { name: "data".into() });
    db
}

fn finish(world: &mut World, id: model::InstanceId) {
    let now = world.now;
    world.set(id, |i| (i.actual, i.exit, i.ended_at) = (Actual::Stopped, Some(Exit::Code(0)), Some(now)));
}

#[test]
fn a_batch_instance_that_is_done_is_not_run_again_and_a_failed_one_is() {
    let mut world = World::with_nodes(2);
    world.apply(&batch(), 2);
    world.plan();
    let ids: Vec<_> = world.wanted("job").iter().map(|i| i.id).collect();
    finish(&mut world, ids[0]);
    world.fail(ids[1], Code::CrashLooping);
    world.pass(Millis::secs(1));
    world.plan();
    assert_eq!(world.wanted("job").len(), 1);
    assert_eq!(world.wanted("job")[0].slot, Some(1));
    let again = world.wanted("job")[0].id;
    finish(&mut world, again);
    world.plan();
    assert_eq!(world.wanted("job").len(), 0);
    assert_eq!(world.service("job").rollout.state, RolloutState::Complete);
}

#[test]
fn a_batch_release_that_fails_does_not_run_the_older_one_again() {
    let mut world = World::with_nodes(2);
    world.apply(&batch(), 1);
    world.plan();
    let first = world.wanted("job")[0].id;
    finish(&mut world, first);
    world.plan();
    let mut two = batch();
    two.env.insert("X".into(), "2".into());
    world.apply(&two, 1);
    for _ in 0..400 {
        world.plan();
        for broken in world.wanted("job") {
            assert_eq!(broken.release, 2);
            world.fail(broken.id, Code::CrashLooping);
        }
        world.pass(Millis::secs(1));
    }
    assert!(matches!(
        world.service("job").rollout.state,
        RolloutState::Failed { reason: Code::CrashLooping, .. }
    ));
}

#[test]
fn done_batch_instances_outlive_the_history() {
    let mut world = World::with_nodes(2);
    world.apply(&batch(), 20);
    world.plan();
    for instance in world.wanted("job") {
        finish(&mut world, instance.id);
    }
    let ix = world.cluster.service_ix("job").unwrap();
    assert_eq!(planner::to_forget(&world.cluster, ix), []);
    world.plan();
    assert_eq!(world.wanted("job").len(), 0);
}

#[test]
fn a_lost_batch_instance_is_run_anew_elsewhere() {
    let mut world = World::with_nodes(2);
    world.apply(&batch(), 1);
    world.plan();
    world.become_ready();
    world.offline("n1");
    world.plan();
    expect![[r#"
        n1: job/0 r1 lost leaving
        n2: job/0 r1 pending
    "#]]
    .assert_eq(&world.show());
}

#[test]
fn a_system_service_runs_once_on_every_node_that_takes_work() {
    let mut world = World::with_nodes(3);
    world.change_node("n3", |node| node.intent = Intent::Disabled);
    let mut agent = file("agent");
    agent.kind = "system".into();
    world.apply(&agent, 0);
    world.plan();
    world.become_ready();
    world.plan();
    assert_eq!(world.service("agent").rollout.state, RolloutState::Complete);
    world.node("n4", 1024 * MIB, &[]);
    world.change_node("n1", |node| node.intent = Intent::Disabled);
    world.plan();
    world.stop_leavers();
    world.plan();
    expect![[r#"
        n1: 
        n2: agent r1 ready
        n3: 
        n4: agent r1 pending
    "#]]
    .assert_eq(&world.show());
}

#[test]
fn a_system_service_is_updated_in_place_one_node_at_a_time() {
    let mut world = World::with_nodes(3);
    let mut agent = file("agent");
    agent.kind = "system".into();
    world.apply(&agent, 0);
    world.plan();
    world.become_ready();
    world.plan();
    agent.env.insert("X".into(), "2".into());
    world.apply(&agent, 0);
    for _ in 0..3 {
        world.plan();
        let leaving =
            world.instances("agent").iter().filter(|i| i.desired != Desired::Running && !i.is_over()).count();
        assert_eq!(leaving, 1);
        world.stop_leavers();
        world.plan();
        world.become_ready();
    }
    world.plan();
    assert!(world.wanted("agent").iter().all(|i| i.release == 2));
    assert_eq!(world.service("agent").rollout.state, RolloutState::Complete);
}

#[test]
fn a_system_rollout_does_not_walk_on_over_broken_replacements() {
    let mut world = World::with_nodes(3);
    let mut agent = file("agent");
    agent.kind = "system".into();
    world.apply(&agent, 0);
    world.plan();
    world.become_ready();
    world.plan();
    agent.env.insert("X".into(), "2".into());
    world.apply(&agent, 0);
    for _ in 0..20 {
        world.plan();
        world.stop_leavers();
        world.plan();
        for broken in world.wanted("agent").into_iter().filter(|i| i.release == 2) {
            world.fail(broken.id, Code::StartFailed);
        }
        world.pass(Millis::secs(1));
    }
    let running = world.wanted("agent").iter().filter(|i| i.release == 1 && i.is_available()).count();
    assert_eq!(running, 2, "{}", world.show());
}

#[test]
fn a_stateful_instance_stays_on_its_volume_s_home() {
    let mut world = World::with_nodes(3);
    world.apply(&db(), 2);
    world.plan();
    world.become_ready();
    world.plan();
    let homes: Vec<String> = world.cluster.volumes().map(|v| format!("{} {}", v.id, v.home)).collect();
    assert_eq!(homes, ["db-data-0 n1", "db-data-1 n2"]);
    let first = world.wanted("db")[0].clone();
    world.fail(first.id, Code::CrashLooping);
    world.pass(Millis::secs(1));
    world.plan();
    let again = world.wanted("db").into_iter().find(|i| i.slot == Some(0)).unwrap();
    assert_eq!(world.node_of(&again), "n1");
}

#[test]
fn a_stateful_instance_whose_home_is_offline_is_not_started_elsewhere() {
    let mut world = World::with_nodes(3);
    world.apply(&db(), 1);
    world.plan();
    world.become_ready();
    world.plan();
    world.offline("n1");
    world.plan();
    assert_eq!(world.instances("db").len(), 1);
    expect!["volume_home_node_offline: its home n1 is offline"].assert_eq(&world.reasons("db"));

    // An operator vouches that it is dead: still nothing, until the volume has another home.
    let id = world.instances("db")[0].id;
    let now = world.now;
    world.set(id, |i| (i.desired, i.actual, i.ended_at) = (Desired::Stopped, Actual::Stopped, Some(now)));
    world.plan();
    assert!(world.wanted("db").is_empty());
    expect!["volume_home_node_offline: volume db-data-0 is on n1, which is offline"]
        .assert_eq(&world.reasons("db"));

    let mut volume = world.cluster.volume("db-data-0").unwrap().clone();
    volume.home = "n2".into();
    world.cluster.apply(&Change::Volume(volume));
    world.plan();
    assert_eq!(world.node_of(&world.wanted("db")[0]), "n2");
}

#[test]
fn a_stateful_service_is_updated_slot_by_slot_stop_first() {
    let mut world = World::with_nodes(3);
    world.apply(&db(), 2);
    world.plan();
    world.become_ready();
    world.plan();
    let mut two = db();
    two.env.insert("X".into(), "2".into());
    world.apply(&two, 2);
    world.plan();
    expect![[r#"
        n1: db/0 r1 ready
        n2: db/1 r1 ready leaving
        n3: 
    "#]]
    .assert_eq(&world.show());
    world.stop_leavers();
    world.plan();
    expect![[r#"
        n1: db/0 r1 ready
        n2: db/1 r2 pending
        n3: 
    "#]]
    .assert_eq(&world.show());
}

#[test]
fn a_removed_service_goes_when_its_last_record_has_gone() {
    let mut world = World::with_nodes(2);
    world.apply(&file("web"), 2);
    world.plan();
    world.become_ready();
    let rec = Service { removed: true, ..world.service("web").clone() };
    world.cluster.apply(&Change::Service(rec));
    world.plan();
    assert!(world.cluster.service_by_name("web").is_some());
    world.stop_leavers();
    world.plan();
    let ix = world.cluster.service_ix("web").unwrap();
    let gone = planner::to_forget(&world.cluster, ix);
    assert_eq!(gone.len(), 2);
    for id in gone {
        world.cluster.apply(&Change::InstanceGone(id));
    }
    world.plan();
    assert!(world.cluster.service_by_name("web").is_none());
}

#[test]
fn lesson_7_what_is_replaced_in_place_keeps_running_while_its_successor_would_find_no_room() {
    for (mut file, count) in [(db(), 1), (file("agent"), 0)] {
        if file.name == "agent" {
            file.kind = "system".into();
        }
        let mut world = World::with_nodes(2);
        world.apply(&file, count);
        world.plan();
        world.become_ready();
        world.plan();
        let running = world.wanted(&file.name).len();
        let mut two = file.clone();
        two.memory = "2GiB".into();
        world.apply(&two, count);
        world.plan();
        assert_eq!(world.wanted(&file.name).len(), running, "{}", world.show());
        assert_eq!(world.planned[&file.name].reasons[0].code, Code::NoCapacityMemory);
        world.pass(Millis::secs(300));
        world.plan();
        let state = &world.service(&file.name).rollout.state;
        assert!(matches!(state, RolloutState::Failed { reason: Code::NoCapacityMemory, .. }), "{state:?}");
    }
}
