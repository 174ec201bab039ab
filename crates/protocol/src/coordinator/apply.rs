//! Creating and updating services: all of a request or none of it.

use std::collections::{BTreeMap, BTreeSet};

use model::{Change, Code, Kind, Rollout, RolloutState, Service, ServiceName, Time};

use super::{
    Answer, ApiError, Applied, Apply, ApplyFeed, ApplyStoreGroup, Coordinator, ErrorKind, Outcome,
    requests::being_removed,
};

impl Coordinator {
    pub(super) fn apply(
        &mut self,
        services: Vec<Apply>,
        feeds: Vec<ApplyFeed>,
        groups: Vec<ApplyStoreGroup>,
        now: Time,
    ) -> Result<Answer, ApiError> {
        self.refuse_conflicts(&services)?;
        self.check_feeds(&feeds)?;
        self.check_groups(&groups, &services)?;
        let mut applied = Vec::new();
        for apply in services {
            let (outcome, record) = self.outcome(&apply, now);
            if let Some(record) = record {
                self.change(now, |txn, _| txn.put(Change::Service(record)));
            }
            applied.push(Applied { kind: "service", name: apply.name.to_string(), outcome });
        }
        applied.extend(self.apply_feeds(feeds, now));
        applied.extend(self.apply_groups(groups, now));
        Ok(Answer::Applied(applied))
    }

    fn outcome(&self, apply: &Apply, now: Time) -> (Outcome, Option<Service>) {
        let rolling = Rollout { state: RolloutState::Rolling, progress_at: now, ready_max: 0 };
        let Some(entry) = self.cluster.service_by_name(apply.name.as_str()) else {
            let created = Service {
                name: apply.name.clone(),
                count: apply.count.unwrap_or(1),
                release: 1,
                healthy: None,
                releases: BTreeMap::from([(1, apply.spec.clone())]),
                rollout: rolling,
                removed: false,
                created_at: now,
            };
            return (Outcome::Created, Some(created));
        };
        let mut next = entry.rec.clone();
        next.count = apply.count.unwrap_or(next.count);
        let scaled = (next.count != entry.rec.count).then_some((entry.rec.count, next.count));
        if *next.spec() == apply.spec {
            return match scaled {
                Some((from, to)) => (Outcome::Scaled { from, to }, Some(next)),
                None => (Outcome::Unchanged, None),
            };
        }
        next.release += 1;
        next.releases.insert(next.release, apply.spec.clone());
        next.rollout = rolling;
        (Outcome::Updated { release: next.release, scaled }, Some(next))
    }

    fn refuse_conflicts(&self, services: &[Apply]) -> Result<(), ApiError> {
        let mut names = BTreeSet::new();
        let mut ports: BTreeMap<u16, ServiceName> = BTreeMap::new();
        for (_, entry) in self.cluster.services() {
            let applied_anew = services.iter().any(|apply| apply.name == entry.rec.name);
            if let Some(edge) = entry.rec.spec().edge.as_ref().filter(|_| !applied_anew) {
                ports.insert(edge.listen, entry.rec.name.clone());
            }
        }
        for apply in services {
            if !names.insert(&apply.name) {
                let message = format!("{} is there twice", apply.name);
                return Err(ApiError::new(ErrorKind::Invalid, "duplicate_name", message));
            }
            self.refuse_change_of_kind(apply)?;
            if let Some(edge) = &apply.spec.edge
                && let Some(other) = ports.insert(edge.listen, apply.name.clone())
            {
                let message = format!(
                    "service {}: edge.listen: {other} takes connections on {} already",
                    apply.name, edge.listen
                );
                return Err(ApiError::conflict(Code::EdgePortInUse, message));
            }
        }
        Ok(())
    }

    /// Instances of two kinds in one service could not be counted against each other.
    fn refuse_change_of_kind(&self, apply: &Apply) -> Result<(), ApiError> {
        let Some(entry) = self.cluster.service_by_name(apply.name.as_str()) else { return Ok(()) };
        if entry.rec.spec().kind == Kind::Store {
            let message = format!("{0} is a store group; give the service another name", apply.name);
            return Err(ApiError::new(ErrorKind::Conflict, "name_in_use", message));
        }
        if entry.rec.removed {
            return Err(being_removed(&apply.name));
        }
        let (old, new) = (entry.rec.spec(), &apply.spec);
        let changed = if old.kind != new.kind {
            format!("kind: {} cannot become {}", old.kind.as_str(), new.kind.as_str())
        } else if old.is_stateful() != new.is_stateful() {
            "volume: a service cannot gain or lose its volume".to_owned()
        } else {
            return Ok(());
        };
        let message =
            format!("service {}: {changed}; remove it first, or give the new one another name", apply.name);
        Err(ApiError::new(ErrorKind::Conflict, "kind_changed", message))
    }
}
