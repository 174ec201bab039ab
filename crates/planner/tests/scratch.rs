//! Scratch data that comes along when an instance leaves a draining node (`disk.migrate`).

#![allow(clippy::unwrap_used)]

mod world;

use model::{
    Actual, Code, DrainOptions, Instance, InstanceId, Millis, Scratch, ServiceIx, Time, spec::ServiceFile,
};
use planner::{
    HISTORY_KEPT,
    drain::{Seen, preview, status},
    to_forget,
};
use world::{MIB, World, file};

fn options() -> DrainOptions {
    DrainOptions { deadline: None, ..DrainOptions::default() }
}

/// With surge, as is the default: the move stops first all the same.
fn cache() -> ServiceFile {
    let mut file = file("cache");
    file.disk.migrate = true;
    file
}

fn running(nodes: usize, count: u32, file: &ServiceFile) -> World {
    let mut world = World::with_nodes(nodes);
    world.apply(file, count);
    world.let_it_run();
    world
}

fn available(world: &World) -> usize {
    world.instances("cache").iter().filter(|i| i.is_available()).count()
}

fn on(world: &World, node: &str) -> Vec<Instance> {
    world.instances("cache").into_iter().filter(|i| world.node_of(i) == node && !i.is_over()).collect()
}

fn takers(world: &World) -> Vec<Instance> {
    world.instances("cache").into_iter().filter(|i| i.scratch == Scratch::Takes).collect()
}

fn copying(world: &mut World, id: InstanceId) {
    world.set(id, |i| (i.actual, i.reason) = (Actual::Starting, Some(Code::DiskCopying)));
}

fn ready(world: &mut World, id: InstanceId, reason: Option<Code>) {
    let now = world.now;
    world.set(id, |i| (i.actual, i.reason, i.healthy_since) = (Actual::Ready, reason, Some(now)));
}

fn forgotten(world: &World) -> Vec<InstanceId> {
    to_forget(&world.cluster, world.cluster.service_ix("cache").unwrap())
}

/// Drained up to where the successor copies: the old one, and the one that takes over.
fn copying_from_n1(world: &mut World) -> (Instance, Instance) {
    world.drain(&["n1"], options());
    world.plan();
    world.stop_leavers();
    world.plan();
    let taker = takers(world).pop().unwrap();
    copying(world, taker.id);
    world.plan();
    let old = world.cluster.instance(taker.replaces.unwrap()).unwrap().clone();
    (old, world.cluster.instance(taker.id).unwrap().clone())
}

#[test]
fn the_old_one_stops_before_its_successor_is_placed_which_takes_its_data_over() {
    let mut world = running(3, 3, &cache());
    let old = on(&world, "n1").pop().unwrap();
    world.drain(&["n1"], options());
    world.plan();
    assert_eq!(
        world.wanted("cache").len(),
        2,
        "it is told to go, and nothing is placed yet: {}",
        world.show()
    );
    assert_eq!(world.cluster.instance(old.id).unwrap().scratch, Scratch::Left);
    world.stop_leavers();
    world.plan();
    let taker = takers(&world).pop().unwrap();
    assert_eq!(taker.replaces, Some(old.id));
    assert_ne!(world.node_of(&taker), "n1");
    assert_eq!(world.wanted("cache").len(), 3);
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), available(&world)), ("drained", 3));
}

#[test]
fn at_most_max_parallel_are_missing() {
    for allowed in [1, 2] {
        let mut file = cache();
        file.migrate.max_parallel = allowed;
        let mut world = running(2, 8, &file);
        world.drain(&["n1"], options());
        for _ in 0..20 {
            world.plan();
            assert!(available(&world) >= 8 - allowed as usize, "{}", world.show());
            world.stop_leavers();
            world.plan();
            assert!(available(&world) >= 8 - allowed as usize, "{}", world.show());
            assert!(world.wanted("cache").len() <= 8);
            world.become_ready();
        }
        assert_eq!(world.drain_state("n1"), "drained");
        let replaced: std::collections::BTreeSet<_> =
            takers(&world).iter().map(|taker| taker.replaces.unwrap()).collect();
        assert_eq!(replaced.len(), 4, "each has its own predecessor");
    }
}

#[test]
fn it_keeps_running_until_its_successor_is_sure_to_find_room() {
    let mut big = cache();
    big.memory = "600MiB".into();
    let mut world = running(2, 2, &big);
    world.drain(&["n1"], options());
    world.let_it_run();
    assert_eq!(available(&world), 2, "{}", world.show());
    assert_eq!(world.planned["cache"].reasons[0].code, Code::NoCapacityMemory);
    world.node("n3", 1024 * MIB, &[]);
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), available(&world)), ("drained", 2));
    assert_eq!(takers(&world).len(), 1);
}

#[test]
fn with_room_for_one_only_one_stops_however_many_may_move() {
    let mut file = cache();
    file.memory = "300MiB".into();
    file.migrate.max_parallel = 2;
    let mut world = running(2, 4, &file);
    assert_eq!(on(&world, "n1").len(), 2);
    world.drain(&["n1"], options());
    world.let_it_run();
    assert_eq!((available(&world), on(&world, "n1").len()), (4, 1), "{}", world.show());
    assert_eq!(world.planned["cache"].reasons[0].code, Code::NoCapacityMemory);
}

#[test]
fn a_release_does_not_fail_for_data_that_is_on_its_way() {
    let mut world = running(3, 3, &cache());
    let mut changed = cache();
    changed.env.insert("A".into(), "1".into());
    world.apply(&changed, 3);
    world.drain(&["n1"], options());
    world.plan();
    world.stop_leavers();
    world.plan();
    let taker = takers(&world).pop().unwrap();
    copying(&mut world, taker.id);
    world.pass(Millis::secs(3600));
    world.plan();
    assert_eq!(world.service("cache").rollout.state, model::RolloutState::Rolling);
    ready(&mut world, taker.id, None);
    world.let_it_run();
    assert_eq!(world.service("cache").rollout.state, model::RolloutState::Complete);
}

#[test]
fn the_drain_waits_for_the_copy_and_says_so() {
    let mut world = running(3, 3, &cache());
    let (old, taker) = copying_from_n1(&mut world);
    assert_eq!(world.drain_state("n1"), "draining");
    let (reasons, edges) = (|_: ServiceIx| -> &[model::Reason] { &[] }, |_: InstanceId| 0);
    let seen = Seen { reasons: &reasons, edges_left: &edges, paused: None, feeds: None, stores: &|_| None };
    let shown = status(&world.cluster, &world.part("n1"), &seen, world.now);
    assert_eq!(shown.units.len(), 1);
    assert_eq!((shown.units[0].id, shown.units[0].code), (old.id, Code::DiskCopying));
    let to = world.node_of(&taker);
    assert!(shown.units[0].message.contains(&format!("on {to} takes its scratch data over")));
    ready(&mut world, taker.id, None);
    world.plan();
    assert_eq!(world.drain_state("n1"), "drained");
}

#[test]
fn the_old_directory_is_kept_until_the_data_is_taken_and_then_goes_at_once() {
    let mut world = running(3, 3, &cache());
    let (old, taker) = copying_from_n1(&mut world);
    // However much else is over.
    for _ in 0..3 * HISTORY_KEPT {
        let victim = world.wanted("cache").iter().map(|i| i.id).find(|id| *id != taker.id).unwrap();
        world.fail(victim, Code::CrashLooping);
        world.pass(Millis::secs(120));
        world.plan();
        let starting: Vec<_> =
            world.wanted("cache").iter().map(|i| i.id).filter(|id| *id != taker.id).collect();
        starting.into_iter().for_each(|id| ready(&mut world, id, None));
    }
    assert!(!forgotten(&world).is_empty());
    assert!(!forgotten(&world).contains(&old.id));
    ready(&mut world, taker.id, None);
    assert!(forgotten(&world).contains(&old.id));
}

#[test]
fn what_could_not_be_copied_is_kept_like_any_other_that_is_over() {
    let mut world = running(3, 3, &cache());
    let (old, taker) = copying_from_n1(&mut world);
    ready(&mut world, taker.id, Some(Code::DiskNotCopied));
    world.plan();
    assert_eq!(world.drain_state("n1"), "drained");
    assert!(!forgotten(&world).contains(&old.id), "somebody may want to look for it there");
}

#[test]
fn data_is_never_handed_to_two() {
    let mut world = running(3, 3, &cache());
    let (old, taker) = copying_from_n1(&mut world);
    ready(&mut world, taker.id, None);
    world.plan();
    // It had the data, and crashes: its replacement begins empty, as after any crash.
    world.fail(taker.id, Code::CrashLooping);
    world.pass(Millis::secs(120));
    world.let_it_run();
    assert_eq!(available(&world), 3);
    assert_eq!(takers(&world).iter().filter(|i| i.replaces == Some(old.id)).count(), 1);
}

#[test]
fn one_that_took_data_over_and_leaves_in_its_turn_hands_on_its_own() {
    let mut world = running(4, 3, &cache());
    let (old, taker) = copying_from_n1(&mut world);
    ready(&mut world, taker.id, None);
    world.let_it_run();
    let second = world.node_of(&taker);
    world.drain(&[&second], options());
    world.let_it_run();
    assert_eq!(world.cluster.instance(taker.id).unwrap().scratch, Scratch::PassedOn);
    let next: Vec<_> = takers(&world);
    assert!(next.iter().any(|i| i.replaces == Some(taker.id)), "{next:?}");
    assert!(next.iter().all(|i| i.replaces != Some(old.id)), "{next:?}");
}

#[test]
fn one_that_ended_before_it_had_anything_leaves_the_data_for_another() {
    let mut world = running(3, 3, &cache());
    let (old, taker) = copying_from_n1(&mut world);
    let now = world.now;
    world.set(taker.id, |i| (i.actual, i.ended_at) = (Actual::Stopped, Some(now)));
    world.plan();
    let heirs: Vec<_> =
        takers(&world).into_iter().filter(|i| i.replaces == Some(old.id) && i.is_wanted()).collect();
    assert_eq!(heirs.len(), 1);
    assert_ne!(heirs[0].id, taker.id);
    assert!(!forgotten(&world).contains(&old.id));
}

#[test]
fn one_that_still_copies_stays_until_it_has_its_data() {
    let mut world = running(4, 3, &cache());
    let (_, taker) = copying_from_n1(&mut world);
    let second = world.node_of(&taker);
    let cancelled = world.part("n1").node.to_string();
    world.drain(&[&second], options());
    world.change_drain_to_cancelled(&cancelled);
    world.plan();
    assert!(world.cluster.instance(taker.id).unwrap().is_wanted(), "{}", world.show());
    ready(&mut world, taker.id, None);
    world.plan();
    assert_eq!(world.cluster.instance(taker.id).unwrap().scratch, Scratch::PassedOn);
}

#[test]
fn a_cancelled_drain_lets_the_one_that_stops_be_replaced_with_its_data_and_moves_nothing_else() {
    let mut world = running(3, 6, &cache());
    world.drain(&["n1"], options());
    world.plan();
    world.change_drain_to_cancelled("n1");
    world.let_it_run();
    assert_eq!((available(&world), takers(&world).len()), (6, 1), "{}", world.show());
}

#[test]
fn at_the_deadline_it_stops_without_room_and_its_successor_takes_the_data_when_there_is_some() {
    let mut big = cache();
    big.memory = "600MiB".into();
    let mut world = running(2, 2, &big);
    world.drain(&["n1"], DrainOptions { deadline: Some(Millis::ZERO), ..options() });
    world.plan();
    world.plan();
    world.stop_leavers();
    world.plan();
    assert_eq!(world.drain_state("n1"), "drained", "nothing is waited for past the deadline");
    world.node("n3", 1024 * MIB, &[]);
    world.let_it_run();
    assert_eq!((available(&world), takers(&world).len()), (2, 1));
}

#[test]
fn a_node_that_is_lost_in_mid_drain_leaves_a_successor_that_says_what_it_did_not_get() {
    let mut world = running(3, 3, &cache());
    world.drain(&["n1"], options());
    world.plan();
    world.offline("n1");
    world.plan();
    let taker = takers(&world).pop().unwrap();
    assert_eq!(world.node_of(world.cluster.instance(taker.replaces.unwrap()).unwrap()), "n1");
}

#[test]
fn a_destination_that_is_lost_with_half_the_data_is_followed_by_one_that_says_so() {
    let mut world = running(4, 3, &cache());
    let (old, taker) = copying_from_n1(&mut world);
    let to = world.node_of(&taker);
    world.offline(&to);
    world.plan();
    let next = takers(&world).into_iter().find(|i| i.replaces == Some(taker.id)).unwrap();
    assert!(next.is_wanted(), "placed at once: {}", world.show());
    assert!(takers(&world).iter().all(|i| i.replaces != Some(old.id)), "the lost one may have it");
    assert!(!forgotten(&world).contains(&old.id), "it is still where it was, for a person to fetch");
}

#[test]
fn rollouts_and_crashes_and_balance_bring_nothing_along() {
    let mut world = running(2, 4, &cache());
    let mut changed = cache();
    changed.env.insert("A".into(), "1".into());
    world.apply(&changed, 4);
    world.plan();
    assert_eq!(world.wanted("cache").len(), 5, "a rollout surges as ever");
    world.let_it_run();
    let victim = world.wanted("cache")[0].id;
    world.fail(victim, Code::CrashLooping);
    world.pass(Millis::secs(120));
    world.let_it_run();
    world.node("n3", 1024 * MIB, &[]);
    assert_eq!(world.balance(2), 0, "evenness is not worth the data");
    world.plan();
    assert!(world.instances("cache").iter().all(|i| i.scratch == Scratch::Own));
}

#[test]
fn a_rollout_in_the_middle_of_a_drain_takes_no_place_that_waits_for_data() {
    let mut world = running(3, 3, &cache());
    let old = on(&world, "n1").pop().unwrap();
    let mut changed = cache();
    changed.env.insert("A".into(), "1".into());
    world.drain(&["n1"], options());
    world.plan();
    world.apply(&changed, 3);
    world.plan();
    world.stop_leavers();
    world.plan();
    assert!(takers(&world).iter().any(|i| i.replaces == Some(old.id)), "{}", world.show());
    world.let_it_run();
    assert_eq!((world.drain_state("n1"), available(&world)), ("drained", 3));
    assert!(world.wanted("cache").iter().all(|i| i.release == 2));
}

#[test]
fn a_drain_does_not_end_while_a_rollout_hides_that_somebody_is_to_take_the_data() {
    let mut world = running(3, 3, &cache());
    let mut changed = cache();
    changed.env.insert("A".into(), "1".into());
    world.drain(&["n1"], options());
    world.plan();
    world.apply(&changed, 3);
    world.plan();
    world.become_ready();
    assert_eq!(available(&world), 3, "one of the rollout stands beside two old ones: {}", world.show());
    world.stop_leavers();
    world.plan();
    assert_eq!(world.drain_state("n1"), "draining");
    assert!(takers(&world).iter().any(Instance::awaits_scratch), "{}", world.show());
}

#[test]
fn what_nobody_needed_does_not_turn_up_in_a_successor_of_somebody_else() {
    for surge in [true, false] {
        let mut file = cache();
        (file.migrate.surge, file.update.surge) = (surge, surge);
        let mut world = running(3, 3, &file);
        let surplus = on(&world, "n1").pop().unwrap();
        world.drain(&["n1"], options());
        world.plan();
        world.apply(&file, 2);
        world.let_it_run();
        assert_eq!(takers(&world), [], "{}", world.show());
        // Much later another one moves, and is not gone yet.
        let other = on(&world, "n2").pop().unwrap();
        world.change_node("n1", |node| node.intent = model::Intent::Active);
        world.drain(&["n2"], options());
        world.plan();
        assert_eq!(takers(&world), [], "its place is not free: {}", world.show());
        world.let_it_run();
        let replaced: Vec<_> = takers(&world).iter().filter_map(|i| i.replaces).collect();
        assert_eq!(replaced, [other.id], "and not {}", surplus.id);
    }
}

#[test]
fn the_preview_says_where_it_goes() {
    let world = running(3, 3, &cache());
    let plan = preview(&world.cluster, &["n1"], &options(), World::LIMITS, Time(world.now.0)).remove(0);
    assert_eq!(plan.moves.len(), 1);
    assert!(matches!(plan.moves[0].to.as_deref(), Some("n2" | "n3")), "{plan:?}");
}
