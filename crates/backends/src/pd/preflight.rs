//! Whether a store can go, by what PD knows. Touches nothing.
//!
//! PD itself refuses only when too few stores would be up or none could lead. It does not look at space, and counts stores
//! that are silent: a removal then never ends, and nobody says why.

use std::collections::BTreeSet;

use crate::contract::Refusal;
use crate::error::BackendError;
use crate::pd::http::Call;
use crate::pd::shapes::{Replicate, Schedule, Store};

/// What the rules look at.
pub struct Facts {
    pub replicas: u64,
    /// The share of a store up to which PD fills it.
    pub fill: f64,
    pub stores: Vec<Store>,
    pub evicted: BTreeSet<u64>,
}

impl Facts {
    pub async fn read(
        call: &Call<'_>,
        stores: Vec<Store>,
        evicted: BTreeSet<u64>,
    ) -> Result<Facts, BackendError> {
        let replicate: Replicate = call.get("/config/replicate").await?.read()?;
        let schedule: Schedule = call.get("/config/schedule").await?.read()?;
        Ok(Facts {
            replicas: replicate.max_replicas,
            fill: schedule.low_space_ratio.clamp(0.0, 1.0),
            stores,
            evicted,
        })
    }

    pub fn refusal(&self, leaving: &Store) -> Option<Refusal> {
        let kind = leaving.is_tiflash();
        let takers = || {
            let others = self.stores.iter().filter(|store| store.store.id != leaving.store.id);
            others.filter(move |store| store.is_well() && store.is_tiflash() == kind)
        };
        // a TiFlash store holds further copies, and leads nothing
        if !kind {
            let left = takers().count() as u64;
            if left < self.replicas {
                return Some(Refusal::TooFewReplicas { left, needed: self.replicas });
            }
            if takers().all(|store| self.evicted.contains(&store.store.id)) {
                return Some(Refusal::NoStoreForLeaders { leaders: leaving.status.leader_count });
            }
        }
        let data = leaving.status.used_size.0;
        let room = takers().map(|store| self.room(store)).sum::<u64>();
        (data > room).then_some(Refusal::NoRoom { data, room })
    }

    fn room(&self, store: &Store) -> u64 {
        let kept = (store.status.capacity.0 as f64 * (1.0 - self.fill)) as u64;
        store.status.available.0.saturating_sub(kept)
    }
}
