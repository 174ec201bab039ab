//! Store groups with their stores.

use std::collections::BTreeMap;

use crate::{Store, StoreGroup, StoreGroupName, StoreId};

#[derive(Clone, Debug, Default)]
pub(crate) struct StoreTable {
    groups: BTreeMap<StoreGroupName, StoreGroup>,
    stores: BTreeMap<StoreId, Store>,
    /// By ordinal: `kv-10` comes after `kv-9`.
    of: BTreeMap<StoreGroupName, BTreeMap<u32, StoreId>>,
}

impl StoreTable {
    pub fn groups(&self) -> impl Iterator<Item = &StoreGroup> {
        self.groups.values()
    }

    pub fn group(&self, name: &str) -> Option<&StoreGroup> {
        self.groups.get(name)
    }

    pub fn put_group(&mut self, group: &StoreGroup) {
        self.groups.insert(group.name.clone(), group.clone());
    }

    pub fn remove_group(&mut self, name: &StoreGroupName) {
        self.groups.remove(name);
    }

    pub fn get(&self, id: &str) -> Option<&Store> {
        self.stores.get(id)
    }

    pub fn of(&self, group: &str) -> impl DoubleEndedIterator<Item = &Store> {
        let ids = self.of.get(group).into_iter().flat_map(BTreeMap::values);
        ids.filter_map(|id| self.stores.get(id))
    }

    pub fn at(&self, group: &str, ordinal: u32) -> Option<&Store> {
        self.stores.get(self.of.get(group)?.get(&ordinal)?)
    }

    pub fn put(&mut self, store: &Store) {
        self.of.entry(store.group.clone()).or_default().insert(store.ordinal, store.id.clone());
        self.stores.insert(store.id.clone(), store.clone());
    }

    pub fn remove(&mut self, id: &StoreId) {
        let Some(old) = self.stores.remove(id) else { return };
        if let Some(of) = self.of.get_mut(&old.group) {
            of.remove(&old.ordinal);
            if of.is_empty() {
                self.of.remove(&old.group);
            }
        }
    }
}
