//! A backend with a mind of its own: it moves leaders and data by itself, a little every second.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    BackendAnswer, BackendCall, BackendFailure, BackendRefusal, BackendState, Cluster, Count, FailureKind,
    Kind,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Serving,
    Removing,
    Removed,
}

#[derive(Clone, Debug)]
pub struct Member {
    pub address: String,
    pub stage: Stage,
    pub leaders: u64,
    pub data: u64,
    pub evictors: BTreeSet<&'static str>,
}

pub struct Backend {
    /// By store: `kv-0`. The backend calls it `id-kv-0`.
    pub members: BTreeMap<String, Member>,
    pub needed: u64,
    /// Leaders and bytes that leave in a second.
    pub leader_pace: u64,
    pub data_pace: u64,
    /// An empty store is removed only when it is told to be forgotten.
    pub wants_forget: bool,
    /// Processes join by themselves when they are ready.
    pub joins: bool,
    /// Hosts of those that join have other names here.
    pub renames_hosts: bool,
    /// Processes know who they are before they have joined.
    pub knows_strangers: bool,
    /// Every call fails like this.
    pub fails: Option<FailureKind>,
    /// Calls of this name fail like this.
    pub fails_at: Option<(&'static str, FailureKind)>,
    pub refuses: Option<BackendRefusal>,
    /// Its counts are not complete.
    pub incomplete: bool,
    pub log: Vec<String>,
}

impl Backend {
    pub fn new() -> Backend {
        Backend {
            members: BTreeMap::new(),
            needed: 1,
            leader_pace: 10,
            data_pace: 10,
            wants_forget: false,
            joins: true,
            renames_hosts: false,
            knows_strangers: false,
            fails: None,
            fails_at: None,
            refuses: None,
            incomplete: false,
            log: Vec::new(),
        }
    }

    /// Processes that are ready are members, where they are.
    pub fn look_around(&mut self, cluster: &Cluster) {
        for (ix, entry) in cluster.services().filter(|(_, entry)| entry.rec.spec().kind == Kind::Store) {
            for instance in cluster.instances_of(ix).filter(|instance| instance.is_available() && self.joins)
            {
                let name = format!("{}-{}", entry.rec.name, instance.slot.unwrap());
                let mut address = planner::stores::address_of(cluster, instance).unwrap();
                if self.renames_hosts {
                    address = format!("elsewhere:{}", address.rsplit_once(':').unwrap().1);
                }
                let fresh = Member {
                    address: address.clone(),
                    stage: Stage::Serving,
                    leaders: 20,
                    data: 100,
                    evictors: BTreeSet::new(),
                };
                self.members.entry(name).or_insert(fresh).address = address;
            }
        }
    }

    /// A second passes in it.
    pub fn tick(&mut self) {
        let (leader_pace, data_pace, wants_forget) = (self.leader_pace, self.data_pace, self.wants_forget);
        for member in self.members.values_mut() {
            let away = !member.evictors.is_empty() || member.stage != Stage::Serving;
            member.leaders = match away {
                true => member.leaders.saturating_sub(leader_pace),
                false => (member.leaders + leader_pace).min(20),
            };
            match member.stage {
                Stage::Removing => {
                    member.data = member.data.saturating_sub(data_pace);
                    if member.data == 0 && !wants_forget {
                        (member.stage, member.leaders) = (Stage::Removed, 0);
                    }
                }
                Stage::Serving => member.data = (member.data + data_pace).min(100),
                Stage::Removed => {}
            }
        }
    }

    pub fn of(&self, store: &str) -> &Member {
        &self.members[store]
    }

    pub fn of_mut(&mut self, store: &str) -> &mut Member {
        self.members.get_mut(store).unwrap()
    }

    pub fn serving(&self) -> u64 {
        self.members.values().filter(|member| member.stage == Stage::Serving).count() as u64
    }

    pub fn answer(&mut self, call: &BackendCall) -> Result<BackendAnswer, BackendFailure> {
        let fail = |kind| Err(BackendFailure { kind, words: "its own words".to_owned() });
        if let Some(kind) = self.fails {
            return fail(kind);
        }
        if let Some((name, kind)) = self.fails_at
            && name == call.name()
        {
            return fail(kind);
        }
        let id = |store: &str| store.strip_prefix("id-").unwrap().to_owned();
        let complete = !self.incomplete;
        match call {
            BackendCall::Replicas => Ok(BackendAnswer::Replicas(self.needed)),
            BackendCall::Members => {
                let there = self.members.iter().filter(|(_, member)| member.stage != Stage::Removed);
                let members = there.map(|(name, m)| (m.address.clone(), format!("id-{name}")));
                Ok(BackendAnswer::Members(members.collect()))
            }
            BackendCall::Identify { address } => {
                // One that is removed is nobody's identity, whoever runs at its address.
                let there = |member: &Member| member.address == *address && member.stage != Stage::Removed;
                match self.members.iter().find(|(_, member)| there(member)) {
                    Some((name, _)) => Ok(BackendAnswer::Identity(format!("id-{name}"))),
                    None if self.knows_strangers => {
                        Ok(BackendAnswer::Identity(format!("id-stranger-{address}")))
                    }
                    None => fail(FailureKind::NotFound),
                }
            }
            BackendCall::State { store, .. } => {
                let Some(member) = self.members.get(&id(store)) else {
                    return Ok(BackendAnswer::State(BackendState::Unknown));
                };
                let leaders = Count { value: if complete { member.leaders } else { 0 }, complete };
                Ok(BackendAnswer::State(match member.stage {
                    Stage::Serving => BackendState::Serving { leaders, data: member.data },
                    Stage::Removing => {
                        let progress = 1.0 - member.data as f64 / 100.0;
                        BackendState::Removing { leaders, data_left: member.data, progress }
                    }
                    Stage::Removed => BackendState::Removed,
                }))
            }
            BackendCall::Evictors { store } => {
                let names = self.of(&id(store)).evictors.iter().map(|name| (*name).to_owned()).collect();
                Ok(BackendAnswer::Evictors { names, memo: "memo of evictors".to_owned() })
            }
            BackendCall::Preflight { .. } => {
                let left = self.serving() - 1;
                if let Some(refusal) = &self.refuses {
                    return Ok(BackendAnswer::Refused(refusal.clone()));
                }
                if left < self.needed {
                    let refusal = BackendRefusal::TooFewReplicas { left, needed: self.needed };
                    return Ok(BackendAnswer::Refused(refusal));
                }
                Ok(BackendAnswer::Possible { memo: "memo of preflight".to_owned() })
            }
            BackendCall::EvictLeaders { store, on, memo } => {
                assert_eq!(memo, "memo of evictors");
                let Some(member) = self.members.get_mut(&id(store)) else {
                    return fail(FailureKind::NotFound);
                };
                match on {
                    true => member.evictors.insert("ours"),
                    false => member.evictors.remove("ours"),
                };
                Ok(BackendAnswer::Done)
            }
            BackendCall::BeginOffline { store, memo } => {
                assert_eq!(memo, "memo of preflight");
                let (left, needed) = (self.serving(), self.needed);
                let member = self.of_mut(&id(store));
                if member.stage == Stage::Serving {
                    assert!(left > needed, "one too many leaves");
                    member.stage = Stage::Removing;
                }
                Ok(BackendAnswer::Moved { complete: member.data == 0 })
            }
            BackendCall::CancelOffline { store, .. } => {
                let member = self.of_mut(&id(store));
                if member.stage == Stage::Removed {
                    return fail(FailureKind::NotPossible);
                }
                member.stage = Stage::Serving;
                Ok(BackendAnswer::Moved { complete: true })
            }
            BackendCall::Forget { store } => {
                let member = self.of_mut(&id(store));
                assert_eq!((member.data, self.wants_forget), (0, true), "forgets what holds data");
                self.of_mut(&id(store)).stage = Stage::Removed;
                Ok(BackendAnswer::Done)
            }
        }
    }
}
