//! Records that are small: the cluster's own, volumes, audit entries.

use serde::{Deserialize, Serialize};

use crate::{ClusterId, NodeId, ServiceName, Time, VolumeId};

/// What the cluster remembers of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    pub cluster: ClusterId,
    /// Instance ids below this may have been given out. Raised in blocks, so that not every placement
    /// writes it; what a dead coordinator left of its block is skipped.
    pub instance_ids_reserved: u64,
    /// The number of the next audit entry.
    pub audit_next: u64,
    /// The epoch of the last drain.
    pub drain_epoch: u64,
    /// The epoch of the last maintainer of any feed: a feed that is removed and made anew must not meet
    /// what nodes remember of the one before.
    pub maintainer_epoch: u64,
}

/// A directory on a node that outlives instances. The instance of its slot stays on its home node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    pub id: VolumeId,
    pub service: ServiceName,
    /// The name in the specification.
    pub name: String,
    pub slot: u32,
    pub home: NodeId,
    /// An instance has run on it at this home, or the operator brought the data: a directory that is
    /// missing then is said, not silently made anew.
    pub expected: bool,
    pub created_at: Time,
}

/// Who did what, when, from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub number: u64,
    pub at: Time,
    pub who: String,
    pub from: String,
    pub what: String,
}

impl AuditEntry {
    /// How what is said of a request begins that was turned away. Nothing that was done is described so.
    pub const REFUSED: &'static str = "refused: ";

    pub fn is_refusal(&self) -> bool {
        self.what.starts_with(AuditEntry::REFUSED)
    }
}
