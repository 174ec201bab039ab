//! Giving a node that is open again its share back, slowly.
//!
//! A move for balance is an ordinary replacement: one more instance where fewest are, named as the
//! replacement of one where most are; the planner of services lets the old one go once the new one has
//! proven itself. Only a difference of two or more counts, so that nothing ever moves back.

use model::{Change, Cluster, Instance, InstanceId, Kind, NodeIx, RolloutState, ServiceIx, Time, Txn};

use crate::{Ids, Placer, reconcile::failures};

/// Below this difference between two nodes a move would only turn it around.
const DIFFERENCE_MIN: u32 = 2;

/// Whether one of these instances was placed to relieve the other's node, and still does.
pub(crate) fn relieves(cluster: &Cluster, new: &Instance, old: &Instance) -> bool {
    let on = |node: NodeIx| {
        let entry = cluster.service(new.service);
        entry.and_then(|entry| entry.on.get(&node)).copied().unwrap_or(0)
    };
    // Both are counted: the new one is there already.
    new.service == old.service && on(old.node) + 1 >= on(new.node) + DIFFERENCE_MIN
}

/// Services that have a move for balance under way.
pub fn in_flight(cluster: &Cluster) -> usize {
    let moving = cluster.services().filter(|(ix, entry)| {
        entry.rec.rollout.state == RolloutState::Complete
            && cluster.unsettled_of(*ix).any(|instance| {
                let old = instance.replaces.and_then(|old| cluster.instance(old));
                instance.is_wanted() && old.is_some_and(Instance::is_wanted)
            })
    });
    moving.count()
}

/// Starts up to `how_many` moves, one per service at a time; returns how many. None while anything
/// drains.
pub fn start(txn: &mut Txn<'_>, ids: &mut Ids, how_many: usize) -> usize {
    if txn.drains().any(|drain| drain.is_unfinished()) {
        return 0;
    }
    let services: Vec<ServiceIx> = txn.services().map(|(ix, _)| ix).collect();
    let mut started = 0;
    for service in services {
        if started == how_many {
            break;
        }
        let Some((victim, to)) = wanted_move(txn, service, txn.now()) else { continue };
        let Some(entry) = txn.service(service) else { continue };
        let (release, spec) = (entry.rec.release, entry.rec.spec().clone());
        let id = ids.take(txn);
        let mut instance = Instance::new(id, service, to, release, &spec, txn.now());
        instance.replaces = Some(victim);
        txn.put(Change::Instance(instance));
        started += 1;
    }
    started
}

/// From where most are to where the planner would put one more, if that evens things out.
fn wanted_move(cluster: &Cluster, service: ServiceIx, now: Time) -> Option<(InstanceId, NodeIx)> {
    let entry = cluster.service(service)?;
    let spec = entry.rec.spec();
    let may = spec.kind == Kind::Service
        && !spec.is_stateful()
        && spec.migrate.surge
        && spec.update.surge
        // A move for balance leaves scratch data behind: evenness is not worth that.
        && !spec.disk.migrate
        && !entry.rec.removed
        && entry.rec.rollout.state == RolloutState::Complete;
    let mut wanted = entry.settled.count();
    let mut steady = true;
    for instance in entry.unsettled().filter(|instance| instance.is_wanted()) {
        wanted += 1;
        steady &= instance.release == entry.rec.release && instance.is_available();
    }
    steady &= wanted == entry.rec.count;
    if !may || !steady {
        return None;
    }
    // Not where it has just failed: it would come back, and be moved there again.
    let avoid = failures(entry, now, entry.rec.release, None).map(|(_, node, _)| node).collect();
    let none = std::iter::empty();
    let to = Placer::new(cluster, service, spec.clone(), avoid, none, 1).next(cluster).ok()?;
    let on = |node: NodeIx| entry.on.get(&node).copied().unwrap_or(0);
    let most = entry.on.values().copied().max()?;
    if most < on(to) + DIFFERENCE_MIN {
        return None;
    }
    let wanted = entry.instances.values().filter(|instance| instance.is_wanted());
    let victim = wanted.max_by_key(|instance| (on(instance.node), instance.id))?;
    Some((victim.id, to))
}
