//! What remains of stores on a node that drains, and what a drain would do to them.

use model::{Cluster, Code, DrainNode, Instance, Millis, NodeIx, Reason};

use super::{
    leave::Class,
    preview::Move,
    status::{Paused, Seen, UnitStatus, Why, paused_message},
};
use crate::{Placer, stores::left_code};

/// A store is told by its own name: its process may be another tomorrow.
pub(super) fn unit_of(cluster: &Cluster, instance: &Instance) -> String {
    match cluster.store_of(instance) {
        Some(store) => format!("store/{}", store.id),
        None => format!("instance/{}", cluster.instance_name(instance)),
    }
}

/// Why a store has not left.
pub(super) fn why(cluster: &Cluster, part: &DrainNode, instance: &Instance, seen: &Seen<'_>) -> Why {
    let Some(store) = cluster.store_of(instance) else {
        return (Code::GracePeriod, false, "its store is gone; it stops".to_owned(), part.started_at);
    };
    let begun = store.offline.as_ref().map(|offline| offline.since);
    let begun = begun.or(store.restart.as_ref().map(|restart| restart.began_at));
    let since = store.trouble.as_ref().map(|trouble| trouble.since).or(begun).or(part.started_at);
    if let (Some(Paused { code, since }), None) = (seen.paused, begun) {
        return (code, false, paused_message(code).to_owned(), Some(since));
    }
    let wait = (seen.stores)(instance).and_then(|status| status.wait);
    match (wait, &store.trouble) {
        (Some(wait), _) => (wait.code, wait.blocks, wait.message, since),
        (None, Some(trouble)) => {
            (trouble.code, trouble.code != Code::BackendUnreachable, trouble.message.clone(), since)
        }
        (None, None) => (left_code(cluster, instance), false, "it is on its way".to_owned(), since),
    }
}

/// Stores take the longest, by far: how long the slowest takes at its pace.
pub(super) fn estimate(
    cluster: &Cluster,
    units: &[UnitStatus],
    seen: &Seen<'_>,
) -> Option<(Option<Millis>, String)> {
    let stores = units.iter().filter(|unit| unit.class == Class::Store);
    let mut stores = stores.filter_map(|unit| cluster.instance(unit.id)).peekable();
    stores.peek()?;
    let times: Option<Vec<Millis>> =
        stores.map(|instance| (seen.stores)(instance).and_then(|status| status.eta)).collect();
    Some(match times.and_then(|times| times.into_iter().max()) {
        Some(slowest) => (Some(slowest), "data left on its stores, at their pace".to_owned()),
        None => (None, "how fast its stores' data moves is not known".to_owned()),
    })
}

/// Where the stores of a node would go: one on a movable volume restarts elsewhere, for another a new store is made,
/// and it leaves once that one is up. How long data takes to move is for its backend to say.
pub fn preview_stores(cluster: &Cluster, node: NodeIx, closed: &[NodeIx]) -> (Vec<Move>, Vec<Reason>) {
    let (mut moves, mut waits) = (Vec::new(), Vec::new());
    let running = cluster.instances_on(node).filter(|instance| !instance.is_over());
    for instance in running {
        let Some(store) = cluster.store_of(instance) else { continue };
        let Some(group) = cluster.store_group(store.group.as_str()) else { continue };
        let unit = unit_of(cluster, instance);
        let Some(entry) = cluster.service(instance.service) else { continue };
        let spec = entry.rec.spec_of(entry.rec.release_to_place()).clone();
        let avoid = closed.iter().copied().collect();
        let mut placer = Placer::new(cluster, instance.service, spec, avoid, std::iter::empty(), 1);
        let reason = |code: Code, message: String| Reason { code, unit: unit.clone(), since: None, message };
        let found = placer.next(cluster).map_err(|wait| (wait.code(), wait.message()));
        let found = found.and_then(|to| match closed.contains(&to) {
            true => Err((Code::NoEligibleNode, "no node that stays open may take it".to_owned())),
            false => Ok(to),
        });
        match found {
            Ok(to) => {
                let to = cluster.node(to).rec.id.to_string();
                // One of a group at a time.
                let wave = 1 + moves.len() as u32;
                moves.push(Move { unit: unit.clone(), to: Some(to), wave });
            }
            Err((code, message)) => waits.push(reason(code, message)),
        }
        let (code, message) = match group.spec.movable.is_some() {
            true => (Code::LeadersRemaining, "restarts elsewhere once it has no leaders"),
            false => (Code::DataMoving, "another store takes its place first, then its data moves off"),
        };
        waits.push(reason(code, message.to_owned()));
    }
    (moves, waits)
}
