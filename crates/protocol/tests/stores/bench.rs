//! An office with a store group and its backend.

use std::sync::Arc;

use model::{
    BackendSpec, Millis, Roles, ServiceSpec, Store, StoreGroupName, StoreGroupSpec, Time, spec::VolumeSpec,
};
use protocol::coordinator::{
    Answer, ApiError, ApplyStoreGroup, BackendOrder, Input, Request, StoreAction, StoreStatus,
};

use crate::{
    backend::{Backend, Stage},
    office::{Office, spec},
};

pub struct Bench {
    pub office: Office,
    pub backend: Backend,
    /// Calls stay unanswered.
    pub mute: bool,
}

pub fn group(name: &str, replicas: u32, movable: bool) -> ApplyStoreGroup {
    let process = ServiceSpec {
        kind: model::Kind::Store,
        ports: vec!["kv".into()],
        volume: Some(VolumeSpec { name: "data".into() }),
        ..spec(name)
    };
    let group = StoreGroupSpec {
        backend: BackendSpec::Command { command: vec!["backend".into()] },
        port: "kv".into(),
        movable: movable.then(|| "/mnt/kv".to_owned()),
        max_eviction: Millis::secs(60),
        topology: None,
    };
    ApplyStoreGroup {
        name: StoreGroupName::new(name),
        replicas: Some(replicas),
        spec: Arc::new(group),
        process: Arc::new(process),
    }
}

impl Bench {
    /// A group `kv` of so many stores, one on each of `n1` …, and two nodes more.
    pub fn with_stores(replicas: u32) -> Bench {
        Bench::with(replicas, false)
    }

    pub fn movable(replicas: u32) -> Bench {
        Bench::with(replicas, true)
    }

    fn with(replicas: u32, movable: bool) -> Bench {
        let office = Office::with_nodes(replicas as usize);
        let mut bench = Bench { office, backend: Backend::new(), mute: false };
        bench.apply(group("kv", replicas, movable)).unwrap();
        bench.seconds(20);
        let roles = Roles { coordinator: false, worker: true, edge: false };
        for n in 1..=2 {
            bench.office.join(&format!("n{}", replicas + n), roles);
        }
        bench.seconds(2);
        assert_eq!(bench.backend.serving(), u64::from(replicas));
        bench.backend.log.clear();
        bench
    }

    pub fn apply(&mut self, group: ApplyStoreGroup) -> Result<Answer, ApiError> {
        self.office.ask(Request::Apply { services: vec![], feeds: vec![], groups: vec![group] })
    }

    pub fn scale(&mut self, replicas: u32) -> Result<Answer, ApiError> {
        self.office.ask(Request::SetReplicas { group: "kv".into(), replicas })
    }

    pub fn act(&mut self, store: &str, action: StoreAction) -> Result<Answer, ApiError> {
        self.office.ask(Request::Store { store: store.into(), action })
    }

    pub fn second(&mut self) {
        self.office.second();
        self.backend.look_around(self.office.coordinator.cluster());
        self.backend.tick();
        self.answer_all();
    }

    pub fn answer_all(&mut self) {
        for _ in 0..1000 {
            if self.mute {
                return;
            }
            let Some(order) = self.office.backend.pop_front() else { return };
            self.answer(order);
        }
        panic!("calls without end: {:?}", &self.backend.log[self.backend.log.len() - 10..]);
    }

    pub fn answer(&mut self, order: BackendOrder) {
        let store = order.store.as_ref().map_or("", |id| id.as_str());
        self.backend.log.push(format!("{} {store}", order.call.name()));
        let result = self.backend.answer(&order.call);
        self.office.give(Input::Backend { call: order.id, result });
    }

    /// The coordinator is gone, with every call that was under way.
    pub fn next_coordinator(&mut self) {
        self.office.backend.clear();
        self.office.next_coordinator();
    }

    pub fn seconds(&mut self, seconds: u64) {
        (0..seconds).for_each(|_| self.second());
    }

    /// Until this holds; panics if it never does.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Bench) -> bool) {
        for _ in 0..600 {
            if holds(self) {
                return;
            }
            self.second();
        }
        panic!(
            "never: {what}; {:#?}",
            self.stores().iter().map(|store| self.status(&store.id.to_string())).collect::<Vec<_>>()
        );
    }

    pub fn stores(&self) -> Vec<Store> {
        self.office.coordinator.cluster().stores_of("kv").cloned().collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.stores().iter().map(|store| store.id.to_string()).collect()
    }

    /// Those that are to leave.
    pub fn offline(&self) -> Vec<String> {
        let stores = self.stores();
        stores.iter().filter(|store| store.offline.is_some()).map(|store| store.id.to_string()).collect()
    }

    pub fn store(&self, id: &str) -> Store {
        self.office.coordinator.cluster().store(id).unwrap().clone()
    }

    pub fn status(&self, id: &str) -> StoreStatus {
        self.office.coordinator.store_status(&self.store(id), self.office.now)
    }

    /// The reason of the condition `Offlining`.
    pub fn offlining(&self, id: &str) -> &'static str {
        self.status(id).offlining.map_or("", |condition| condition.reason.as_str())
    }

    /// The code of what it waits for.
    pub fn waits(&self, id: &str) -> &'static str {
        self.status(id).wait.map_or("", |wait| wait.code.as_str())
    }

    pub fn node(&self, id: &str) -> String {
        self.status(id).node.unwrap().to_string()
    }

    /// Calls since the log was cleared that change something, in order.
    pub fn changes(&self) -> Vec<String> {
        let reads = ["replicas", "members", "identify", "state", "evictors", "preflight"];
        self.backend
            .log
            .iter()
            .filter(|call| !reads.iter().any(|read| call.starts_with(read)))
            .cloned()
            .collect()
    }

    /// All serve, nothing of ours is left in the backend, nothing is asked of any store.
    pub fn is_quiet(&self) -> bool {
        let members = self.stores().iter().all(|store| {
            let member = self.backend.members.get(store.id.as_str());
            member.is_some_and(|member| member.stage == Stage::Serving && !member.evictors.contains("ours"))
        });
        members && self.stores().iter().all(|store| !store.is_busy())
    }

    pub fn created_at(&self, id: &str) -> Time {
        let status = self.status(id);
        self.office.coordinator.cluster().instance(status.instance.unwrap()).unwrap().created_at
    }
}
