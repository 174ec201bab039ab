//! A service: what should run, in which release, and how its newest release fares.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{Code, ServiceName, ServiceSpec, Time};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub name: ServiceName,
    pub count: u32,
    /// The release that was applied last.
    pub release: u32,
    /// The last release that was complete and healthy; what replacements are made of while a newer
    /// one is halted.
    pub healthy: Option<u32>,
    /// The specifications of `release`, `healthy` and every release that still has instances.
    pub releases: BTreeMap<u32, Arc<ServiceSpec>>,
    pub rollout: Rollout,
    /// Asked to go: its instances are stopped, then the record is deleted.
    pub removed: bool,
    pub created_at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    pub state: RolloutState,
    /// When it began, or when an instance of it last became ready: what `healthy_deadline` counts from.
    pub progress_at: Time,
    /// How many of its instances have been ready at once; more is progress.
    pub ready_max: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RolloutState {
    Rolling,
    Complete,
    Failed { reason: Code, message: String },
}

impl Service {
    /// The specification that was applied last.
    pub fn spec(&self) -> &Arc<ServiceSpec> {
        self.spec_of(self.release)
    }

    /// A release's specification; that of the present release where it is no longer kept.
    pub fn spec_of(&self, release: u32) -> &Arc<ServiceSpec> {
        let kept = self.releases.get(&release).or_else(|| self.releases.get(&self.release));
        // The codec refuses a record without its present release, and `apply` never drops it.
        kept.expect("a service keeps the specification of its present release")
    }

    /// The release that a missing instance is made of.
    pub fn release_to_place(&self) -> u32 {
        if self.spec().kind == crate::Kind::Batch {
            // An older release of a batch is done: running it again is not what anybody asked for.
            return self.release;
        }
        match (&self.rollout.state, self.healthy) {
            (RolloutState::Failed { .. }, Some(healthy)) => healthy,
            (RolloutState::Failed { .. } | RolloutState::Rolling | RolloutState::Complete, _) => self.release,
        }
    }
}
