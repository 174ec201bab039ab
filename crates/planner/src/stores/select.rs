//! Who goes, who is rescued.

use std::{cmp::Reverse, collections::BTreeMap};

use model::{Actual, BackendState, Cluster, Store, StoreGroupSpec, StoreId};

use super::{Sighting, process::instance_of};

/// Who goes first: marked, then unhealthy, then the one whose absence keeps the parts of the site even, then the newest.
///
/// `staying` are all that are to stay so far; each choice is made with those before it gone.
pub fn selection_order(
    cluster: &Cluster,
    spec: &StoreGroupSpec,
    staying: &[&Store],
    how_many: usize,
) -> Vec<StoreId> {
    let mut left: Vec<&Store> = staying.to_vec();
    let mut chosen = Vec::new();
    while chosen.len() < how_many && !left.is_empty() {
        let mut crowd: BTreeMap<Option<String>, usize> = BTreeMap::new();
        for store in &left {
            *crowd.entry(part_of(cluster, spec, store)).or_default() += 1;
        }
        let key = |store: &&Store| {
            let part = part_of(cluster, spec, store);
            // One that is nowhere holds nothing up anywhere.
            let crowded = if part.is_none() { usize::MAX } else { crowd.get(&part).copied().unwrap_or(0) };
            (!store.marked, is_healthy(cluster, store), Reverse(crowded), Reverse(store.ordinal))
        };
        let at = left.iter().enumerate().min_by_key(|(_, store)| key(store)).map(|(at, _)| at);
        let Some(at) = at else { break };
        chosen.push(left.remove(at).id.clone());
    }
    chosen
}

/// Who is rescued first: unmarked, then with most data left, then with the lowest ordinal.
pub fn rescue_order<'a>(
    going: impl Iterator<Item = &'a Store>,
    seen: &BTreeMap<StoreId, Sighting>,
) -> Vec<&'a Store> {
    let data = |store: &Store| {
        let state = seen.get(&store.id).and_then(|seen| seen.state.as_ref());
        match &store.removal {
            // Nothing of it has left.
            None => u64::MAX,
            Some(removal) if removal.begun.is_none() => u64::MAX,
            Some(_) => state.and_then(BackendState::data).unwrap_or(0),
        }
    };
    let mut going: Vec<&Store> = going.collect();
    going.sort_by_key(|store| (store.marked, Reverse(data(store)), store.ordinal));
    going
}

/// Ready, and known to its backend.
fn is_healthy(cluster: &Cluster, store: &Store) -> bool {
    let ready = instance_of(cluster, store).is_some_and(|instance| {
        instance.actual == Actual::Ready && !cluster.node(instance.node).rec.is_offline()
    });
    ready && store.identity.is_some() && store.trouble.is_none()
}

/// Which part of the site it is in: by the group's label, or its node.
fn part_of(cluster: &Cluster, spec: &StoreGroupSpec, store: &Store) -> Option<String> {
    let node = &cluster.node(instance_of(cluster, store)?.node).rec;
    match &spec.topology {
        Some(label) => node.labels.get(label).cloned(),
        None => Some(node.id.to_string()),
    }
}
