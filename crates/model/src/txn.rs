//! A group of changes that is applied while it is being made.

use crate::{Change, Cluster};

/// Applies each change at once, so that the next decision sees it, and keeps them in order for the
/// store.
pub struct Txn<'a> {
    cluster: &'a mut Cluster,
    changes: Vec<Change>,
}

impl<'a> Txn<'a> {
    pub fn new(cluster: &'a mut Cluster) -> Txn<'a> {
        Txn { cluster, changes: Vec::new() }
    }

    pub fn put(&mut self, change: Change) {
        self.cluster.apply(&change);
        self.changes.push(change);
    }

    pub fn cluster(&self) -> &Cluster {
        self.cluster
    }

    pub fn len(&self) -> usize {
        self.changes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes so far, in order; what they did stays done.
    pub fn finish(self) -> Vec<Change> {
        self.changes
    }
}

impl std::ops::Deref for Txn<'_> {
    type Target = Cluster;
    fn deref(&self) -> &Cluster {
        self.cluster
    }
}
