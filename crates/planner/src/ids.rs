//! Instance ids: handed out in sequence, reserved in blocks so that not every placement writes the
//! counter.

use model::{Change, InstanceId, Meta, Txn};

/// What a dead coordinator leaves of its block is skipped; larger blocks waste more, smaller ones
/// write more often.
pub const IDS_PER_BLOCK: u64 = 1024;

/// The ids this coordinator may give out. Begins at the end of what any predecessor may have used.
#[derive(Clone, Debug)]
pub struct Ids {
    next: u64,
}

impl Ids {
    pub fn new(meta: &Meta) -> Ids {
        Ids { next: meta.instance_ids_reserved }
    }

    /// A new id, reserving the next block in the same group of changes when this one is used up.
    pub fn take(&mut self, txn: &mut Txn<'_>) -> InstanceId {
        if self.next >= txn.meta().instance_ids_reserved {
            let reserved = self.next + IDS_PER_BLOCK;
            txn.put(Change::Meta(Meta { instance_ids_reserved: reserved, ..txn.meta().clone() }));
        }
        let id = InstanceId(self.next);
        self.next += 1;
        id
    }
}
