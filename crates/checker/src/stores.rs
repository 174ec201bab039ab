//! What must hold of stores in one state.

use std::collections::BTreeMap;

use model::{Cluster, Instance, Kind, Store};

use crate::Violation;

pub(crate) fn stores_are_sound(cluster: &Cluster, found: &mut Vec<Violation>) {
    for group in cluster.store_groups() {
        let mut identities: BTreeMap<&str, &Store> = BTreeMap::new();
        for store in cluster.stores_of(group.name.as_str()) {
            let mut wrong =
                |what: &'static str| found.push(Violation::Store { store: store.id.clone(), what });
            if store.ordinal >= group.next_ordinal {
                wrong("has an ordinal that may be given to another");
            }
            if store.removal.as_ref().is_some_and(|removal| removal.forgetting && removal.begun.is_none()) {
                wrong("is forgotten before its way out was begun");
            }
            if store.restart.is_some() && store.offline.is_some() {
                wrong("restarts and leaves");
            }
            let removed = store.removed_at.is_some();
            if let Some(identity) = store.identity.as_deref().filter(|_| !removed)
                && identities.insert(identity, store).is_some()
            {
                wrong("is taken for another in its backend");
            }
        }
    }
    let processes = cluster.services().filter(|(_, entry)| entry.rec.spec().kind == Kind::Store);
    for instance in processes.flat_map(|(ix, _)| cluster.instances_of(ix)) {
        processes_have_stores(cluster, instance, found);
    }
}

/// No process is wanted whose store is no more.
fn processes_have_stores(cluster: &Cluster, instance: &Instance, found: &mut Vec<Violation>) {
    if !instance.is_wanted() || cluster.store_of(instance).is_some() {
        return;
    }
    let store = cluster.instance_name(instance);
    let what = "is wanted and belongs to no store";
    found.push(Violation::Store { store: model::StoreId::new(&store), what });
}
