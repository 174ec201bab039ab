//! What people ask about stores: groups created, scaled, destroyed; stores marked, restarted, relieved of leaders.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Change, Code, Evict, Kind, Restart, RestartWhy, Rollout, RolloutState, Service, ServiceName, Store,
    StoreGroup, StoreGroupName, Time, spec::COUNT_MAX,
};
use planner::stores::{Process, process_of};

use super::{
    Answer, ApiError, Applied, Apply, ApplyStoreGroup, Coordinator, ErrorKind, Outcome, StoreAction,
    requests::being_removed,
};

impl StoreAction {
    pub(super) fn describe(self) -> &'static str {
        match self {
            StoreAction::Mark => "mark",
            StoreAction::Unmark => "unmark",
            StoreAction::Restart => "restart",
            StoreAction::CancelRestart => "cancel the restart of",
            StoreAction::EvictLeader => "evict the leaders of",
            StoreAction::CancelEvictLeader => "stop evicting the leaders of",
        }
    }
}

impl Coordinator {
    /// Refuses before anything is changed: what else is applied beside it is not, either.
    pub(super) fn check_groups(
        &self,
        groups: &[ApplyStoreGroup],
        services: &[Apply],
    ) -> Result<(), ApiError> {
        let mut names: BTreeSet<&str> = services.iter().map(|apply| apply.name.as_str()).collect();
        for apply in groups {
            let name = &apply.name;
            if !names.insert(name.as_str()) {
                let message = format!("{name} is there twice: store groups and services share their names");
                return Err(ApiError::new(ErrorKind::Invalid, "duplicate_name", message));
            }
            let service = self.cluster.service_by_name(name.as_str());
            match (self.cluster.store_group(name.as_str()), service) {
                (None, Some(entry)) if entry.rec.spec().kind == Kind::Store => {
                    return Err(being_removed(&entry.rec.name));
                }
                (None, Some(_)) => {
                    let message = format!("{name} is a service; give the store group another name");
                    return Err(ApiError::new(ErrorKind::Conflict, "name_in_use", message));
                }
                (Some(group), Some(entry)) => self.check_group_change(group, &entry.rec, apply)?,
                (Some(_), None) | (None, None) => {}
            }
        }
        Ok(())
    }

    fn check_group_change(
        &self,
        group: &StoreGroup,
        service: &Service,
        apply: &ApplyStoreGroup,
    ) -> Result<(), ApiError> {
        let name = &group.name;
        if group.destroyed {
            return Err(group_removing(name));
        }
        let changed = if group.spec.movable != apply.spec.movable {
            "volume: it cannot become movable, or cease to be, or change its path"
        } else if service.spec().volume != apply.process.volume {
            "volume.name: it would begin with empty volumes"
        } else if group.spec.backend.kind() != apply.spec.backend.kind() {
            "backend.kind: its data is where it is"
        } else {
            return self.check_replicas(group, apply.replicas.unwrap_or(group.replicas));
        };
        let message = format!("store group {name}: {changed}; give the new one another name");
        Err(ApiError::new(ErrorKind::Conflict, "kind_changed", message))
    }

    pub(super) fn apply_groups(&mut self, groups: Vec<ApplyStoreGroup>, now: Time) -> Vec<Applied> {
        groups.into_iter().map(|apply| self.apply_group(apply, now)).collect()
    }

    fn apply_group(&mut self, apply: ApplyStoreGroup, now: Time) -> Applied {
        let (kind, name) = ("store-group", apply.name.to_string());
        let before = self.cluster.store_group(apply.name.as_str()).cloned();
        let service = self.cluster.service_by_name(apply.name.as_str()).map(|entry| entry.rec.clone());
        let (Some(before), Some(service)) = (before, service) else {
            self.create_group(apply, now);
            return Applied { kind, name, outcome: Outcome::Created };
        };
        let replicas = apply.replicas.unwrap_or(before.replicas);
        let scaled = (replicas != before.replicas).then_some((before.replicas, replicas));
        let mut next = Service { count: replicas, ..service.clone() };
        let released = *service.spec() != apply.process;
        if released {
            next.release += 1;
            next.releases.insert(next.release, apply.process);
            next.healthy = Some(next.release);
        }
        let group = StoreGroup { replicas, spec: apply.spec, ..before.clone() };
        let outcome = match (released, scaled, group.spec != before.spec) {
            (true, scaled, _) => Outcome::Updated { release: next.release, scaled },
            (false, _, true) => Outcome::Changed,
            (false, Some((from, to)), false) => Outcome::Scaled { from, to },
            (false, None, false) => return Applied { kind, name, outcome: Outcome::Unchanged },
        };
        self.change(now, |txn, _| {
            txn.put(Change::StoreGroup(group));
            txn.put(Change::Service(next));
        });
        Applied { kind, name, outcome }
    }

    fn create_group(&mut self, apply: ApplyStoreGroup, now: Time) {
        let replicas = apply.replicas.unwrap_or(1);
        let service = Service {
            name: ServiceName::new(apply.name.as_str()),
            count: replicas,
            release: 1,
            healthy: Some(1),
            releases: BTreeMap::from([(1, apply.process)]),
            rollout: Rollout { state: RolloutState::Complete, progress_at: now, ready_max: 0 },
            removed: false,
            created_at: now,
        };
        let group = StoreGroup {
            name: apply.name,
            replicas,
            spec: apply.spec,
            next_ordinal: 0,
            destroyed: false,
            created_at: now,
        };
        self.change(now, |txn, _| {
            txn.put(Change::StoreGroup(group));
            txn.put(Change::Service(service));
        });
    }

    fn group_rec(&self, name: &StoreGroupName) -> Result<&StoreGroup, ApiError> {
        let group = self.cluster.store_group(name.as_str());
        group.ok_or_else(|| {
            ApiError::not_found("store_group_not_found", format!("there is no store group {name}"))
        })
    }

    /// The backend needs as many stores as it says, over all groups that share it.
    fn check_replicas(&self, group: &StoreGroup, replicas: u32) -> Result<(), ApiError> {
        if replicas > COUNT_MAX {
            let message = format!("replicas {replicas} is not between 0 and {COUNT_MAX}");
            return Err(ApiError::new(ErrorKind::Invalid, "replicas_invalid", message));
        }
        let Some(needed) = self.replicas_needed(&group.name).filter(|_| replicas < group.replicas) else {
            return Ok(());
        };
        let beside = self.cluster.store_groups().filter(|other| {
            other.name != group.name && !other.destroyed && other.spec.backend == group.spec.backend
        });
        let left = u64::from(replicas) + beside.map(|other| u64::from(other.replicas)).sum::<u64>();
        if left < needed {
            let message =
                format!("{left} stores would be left while the backend of {} needs {needed}", group.name);
            return Err(ApiError::new(ErrorKind::Refused, Code::ReplicasNotEnough.as_str(), message));
        }
        Ok(())
    }

    pub(super) fn set_replicas(
        &mut self,
        name: &StoreGroupName,
        replicas: u32,
        now: Time,
    ) -> Result<Answer, ApiError> {
        let group = self.group_rec(name)?.clone();
        if group.destroyed {
            return Err(group_removing(name));
        }
        self.check_replicas(&group, replicas)?;
        if group.replicas != replicas {
            let service = self.cluster.service_by_name(name.as_str()).map(|entry| entry.rec.clone());
            self.change(now, |txn, _| {
                txn.put(Change::StoreGroup(StoreGroup { replicas, ..group }));
                if let Some(service) = service {
                    txn.put(Change::Service(Service { count: replicas, ..service }));
                }
            });
        }
        Ok(Answer::Done)
    }

    pub(super) fn remove_store_group(
        &mut self,
        name: &StoreGroupName,
        destroy_data: bool,
        now: Time,
    ) -> Result<Answer, ApiError> {
        let group = self.group_rec(name)?.clone();
        if !destroy_data {
            let message = format!(
                "store group {name} holds data, and all of it goes with it; say so (`--destroy-data`), or scale it in"
            );
            return Err(ApiError::new(ErrorKind::NotNow, "destroys_data", message));
        }
        if !group.destroyed {
            self.change(now, |txn, _| txn.put(Change::StoreGroup(StoreGroup { destroyed: true, ..group })));
        }
        Ok(Answer::Done)
    }

    pub(super) fn act_on_store(
        &mut self,
        id: &str,
        action: StoreAction,
        now: Time,
    ) -> Result<Answer, ApiError> {
        let store = self.cluster.store(id);
        let store = store
            .ok_or_else(|| ApiError::not_found("store_not_found", format!("there is no store {id}")))?
            .clone();
        let next = match action {
            StoreAction::Mark => Store { marked: true, ..store.clone() },
            StoreAction::Unmark => Store { marked: false, ..store.clone() },
            StoreAction::Restart => self.restarted(&store, now)?,
            StoreAction::CancelRestart => not_restarted(&store)?,
            StoreAction::EvictLeader => {
                refuse_leaving(&store, "leaders leave it anyway")?;
                let evict = store.evict.clone().or(Some(Evict { began_at: now }));
                Store { evict, trouble: None, ..store.clone() }
            }
            StoreAction::CancelEvictLeader => match store.evict {
                Some(_) => Store { evict: None, trouble: None, ..store.clone() },
                None => {
                    let message = format!("nobody asked for the leaders of {id} to be evicted");
                    return Err(ApiError::new(ErrorKind::Conflict, "not_evicting", message));
                }
            },
        };
        if next != store {
            self.change(now, |txn, _| txn.put(Change::Store(next)));
        }
        Ok(Answer::Done)
    }

    fn restarted(&self, store: &Store, now: Time) -> Result<Store, ApiError> {
        refuse_leaving(store, "it is not restarted")?;
        if store.restart.is_some() {
            return Ok(store.clone());
        }
        let instance = match process_of(&self.cluster, store) {
            Process::Ready { id, .. }
            | Process::Starting { id, .. }
            | Process::Unseen { id }
            | Process::Stopping { id } => Some(id),
            Process::None { .. } | Process::Lost => None,
        };
        let restart = Restart { began_at: now, why: RestartWhy::Asked, instance, stopped_at: None };
        Ok(Store { restart: Some(restart), trouble: None, ..store.clone() })
    }
}

fn not_restarted(store: &Store) -> Result<Store, ApiError> {
    let conflict = |code, message| Err(ApiError::new(ErrorKind::Conflict, code, message));
    match &store.restart {
        Some(restart) if restart.why == RestartWhy::Asked => {
            Ok(Store { restart: None, trouble: None, ..store.clone() })
        }
        Some(restart) => {
            let why = match restart.why {
                RestartWhy::Drain => "its node drains: cancel that",
                RestartWhy::Update | RestartWhy::Asked => "its group was changed: apply what it was before",
            };
            conflict("restart_not_asked", format!("{} restarts because {why}", store.id))
        }
        None => conflict("not_restarting", format!("{} is not being restarted", store.id)),
    }
}

fn refuse_leaving(store: &Store, so: &str) -> Result<(), ApiError> {
    if store.offline.is_some() || store.removed_at.is_some() {
        let message = format!("{} is going offline: {so}", store.id);
        return Err(ApiError::new(ErrorKind::Conflict, "store_offline", message));
    }
    Ok(())
}

fn group_removing(name: &StoreGroupName) -> ApiError {
    let message = format!("store group {name} is being destroyed; wait until it is gone");
    ApiError::new(ErrorKind::Conflict, "store_group_removing", message)
}
