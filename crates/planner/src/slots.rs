//! Services whose instances fill numbered places: stateful ones, each bound to its volume's home, and
//! batch, each run once to its end. A place never holds two at a time.

use std::collections::BTreeMap;

use model::{Change, Code, Instance, InstanceId, Kind, NodeIx, RolloutState, Service, Volume, VolumeId};

use crate::{
    Wait,
    drain::Leave,
    reconcile::{NotPlaced, Plan, is_proven},
    rollout::{self, Progress},
};

/// This instance is the reason why its slot needs no other: it is done, or was stopped and must not
/// run again.
pub(crate) fn settles_its_slot(service: &Service, instance: &Instance) -> bool {
    let spec = service.spec();
    spec.kind == Kind::Batch
        && instance.is_over()
        && instance.release == service.release
        && instance.slot < Some(service.count)
        && (instance.is_complete() || (!spec.rerun && stopped_by_us(instance)))
}

fn stopped_by_us(instance: &Instance) -> bool {
    instance.desired != model::Desired::Running && instance.actual == model::Actual::Stopped
}

/// What is in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Not over: nothing else may start here.
    occupant: Option<InstanceId>,
    settled: bool,
}

pub(crate) fn plan(plan: &mut Plan<'_, '_>) {
    let count = plan.service_rec().count;
    let slots = survey(plan);
    let stuck = retire(plan, &slots, count);
    let waiting_for = fill(plan, &slots, count).or(stuck);
    let (mut ready, mut done) = (0, 0);
    let rec = plan.service_rec();
    for slot in slots.range(..count).map(|(_, slot)| slot) {
        let occupant = slot.occupant.and_then(|id| plan.cluster().instance(id));
        let proven = occupant.is_some_and(|instance| {
            instance.release == rec.release && is_proven(instance, rec.spec(), plan.now)
        });
        ready += u32::from(proven || slot.settled);
        done += u32::from(proven || slot.settled);
    }
    let progress = Progress { ready, done: done == count, waiting_for };
    plan.wake_when_proven();
    rollout::book(plan, progress);
}

fn survey(plan: &Plan<'_, '_>) -> BTreeMap<u32, Slot> {
    let rec = plan.service_rec();
    let mut slots: BTreeMap<u32, Slot> = (0..rec.count).map(|slot| (slot, Slot::default())).collect();
    for instance in plan.instances() {
        let slot = slots.entry(instance.slot.unwrap_or(0)).or_default();
        // A lost batch instance no longer holds its place; a stateful one is never marked lost.
        if !instance.is_over() && instance.actual != model::Actual::Lost {
            slot.occupant = Some(instance.id);
        }
        slot.settled |= settles_its_slot(rec, instance);
    }
    slots
}

/// Slots beyond the count are emptied, closed nodes are left (not by stateful instances), and a
/// stateful service's old release goes `max_parallel` at a time.
fn retire(plan: &mut Plan<'_, '_>, slots: &BTreeMap<u32, Slot>, count: u32) -> Option<Code> {
    let rec = plan.service_rec().clone();
    let stateful = rec.spec().is_stateful();
    let failed = matches!(rec.rollout.state, RolloutState::Failed { .. });
    let (mut old, mut in_flight) = (Vec::new(), 0);
    for (number, slot) in slots {
        let Some(instance) = slot.occupant.and_then(|id| plan.cluster().instance(id)) else {
            in_flight += u32::from(*number < count && !slot.settled);
            continue;
        };
        let id = instance.id;
        let current = instance.release == rec.release || failed;
        let fallen = failed
            && stateful
            && instance.release == rec.release
            && !instance.is_available()
            && rec.healthy.is_some_and(|healthy| healthy != rec.release);
        if *number >= count || fallen || plan.leave(instance) == Leave::Now {
            plan.retire(id, fallen.then_some(Code::Unhealthy));
            // Until it is gone its place is on the move like one that is empty.
            in_flight += u32::from(*number < count);
        } else if !instance.is_wanted() || (current && !is_proven(instance, rec.spec(), plan.now)) {
            in_flight += 1;
        } else if !current {
            old.push(id);
        }
    }
    if !stateful {
        // A batch instance of an older release runs to its end; the new release follows it.
        return None;
    }
    let free = rec.spec().update.max_parallel.saturating_sub(in_flight) as usize;
    // Highest slot first: the lowest is where operators look first for trouble.
    plan.make_way(old.into_iter().rev(), free)
}

fn fill(plan: &mut Plan<'_, '_>, slots: &BTreeMap<u32, Slot>, count: u32) -> Option<Code> {
    let release = plan.service_rec().release_to_place();
    let stateful = plan.service_rec().spec_of(release).is_stateful();
    let mut code = None;
    let mut missing = Vec::new();
    for (number, slot) in slots.range(..count) {
        if slot.settled {
            continue;
        }
        if let Some(id) = slot.occupant {
            if let Some(told) = home_offline(plan, id, stateful) {
                code = Some(told);
            }
            continue;
        }
        missing.push(*number);
    }
    for (at, number) in missing.iter().enumerate() {
        let placed = plan.backoff(release, Some(*number)).and_then(|()| match stateful {
            true => place_at_home(plan, release, *number),
            false => plan.choose_node(release).and_then(|node| plan.place_on(release, node, Some(*number))),
        });
        if let Err(why) = placed {
            let stop = matches!(why, NotPlaced::Limit) || !stateful;
            code = plan.explain(why, if stop { missing.len() - at } else { 1 }).or(code);
            if stop {
                break;
            }
        }
    }
    code
}

/// An instance on a volume whose home is offline: whether it runs is unknown, so nothing else starts.
fn home_offline(plan: &mut Plan<'_, '_>, id: InstanceId, stateful: bool) -> Option<Code> {
    let instance = plan.cluster().instance(id)?;
    let node = &plan.cluster().node(instance.node).rec;
    if !stateful || !node.is_offline() {
        return None;
    }
    let (since, message) = (node.health_since, format!("its home {} is offline", node.id));
    plan.reason(Code::VolumeHomeNodeOffline, Some(id), Some(since), message);
    Some(Code::VolumeHomeNodeOffline)
}

pub(crate) fn place_at_home(plan: &mut Plan<'_, '_>, release: u32, slot: u32) -> Result<(), NotPlaced> {
    let rec = plan.service_rec();
    let name = rec.spec_of(release).volume.as_ref().map_or(String::new(), |volume| volume.name.clone());
    let id = VolumeId::new(&format!("{}-{name}-{slot}", rec.name));
    let Some(volume) = plan.cluster().volume(id.as_str()).cloned() else {
        let node = plan.choose_node(release)?;
        let volume = new_volume(plan, id, name, slot, node);
        plan.txn.put(Change::Volume(volume));
        return plan.place_on(release, node, Some(slot));
    };
    let home = plan.cluster().node_ix(volume.home.as_str());
    let Some(home) = home else { return Err(NotPlaced::Wait(Wait::NoEligibleNode)) };
    let (node, closed) = (&plan.cluster().node(home).rec, plan.cluster().node(home).is_closed());
    if closed && !node.is_offline() {
        let message = format!("volume {} is on {}, which is closed", volume.id, node.id);
        plan.reason(Code::VolumeLocal, None, None, message);
        plan.out.starved = true;
        return Ok(());
    }
    if node.is_offline() {
        let message = format!("volume {} is on {}, which is offline", volume.id, node.id);
        let since = node.health_since;
        plan.reason(Code::VolumeHomeNodeOffline, None, Some(since), message);
        plan.out.starved = true;
        return Ok(());
    }
    plan.place_on(release, home, Some(slot))
}

pub(crate) fn new_volume(plan: &Plan<'_, '_>, id: VolumeId, name: String, slot: u32, home: NodeIx) -> Volume {
    Volume {
        id,
        service: plan.service_rec().name.clone(),
        name,
        slot,
        home: plan.cluster().node(home).rec.id.clone(),
        expected: false,
        created_at: plan.now,
    }
}
