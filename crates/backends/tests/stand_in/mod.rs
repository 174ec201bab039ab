//! Answers as PD does over HTTP, for what this crate asks: paths, statuses, words and shapes as its source has them.
//! It moves nothing by itself; tests change its books.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use backends::{Endpoint, PdConfig};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const MIB: u64 = 1 << 20;
const UNLIMITED: f64 = 100_000_000.0;
const EVICTOR: &str = "evict-leader-scheduler";

#[derive(Clone, Debug)]
pub struct Store {
    pub state: u64,
    pub node_state: u64,
    /// What PD makes of its silence; by its state otherwise.
    pub name: Option<&'static str>,
    pub tiflash: bool,
    pub leaders: u64,
    pub region_mib: u64,
    pub used: &'static str,
    pub available: &'static str,
    pub destroyed: bool,
    pub limit: (f64, f64),
}

impl Store {
    pub fn up(leaders: u64) -> Store {
        Store {
            state: 0,
            node_state: 1,
            name: None,
            tiflash: false,
            leaders,
            region_mib: 96,
            used: "100GiB",
            available: "900GiB",
            destroyed: false,
            limit: (15.0, 15.0),
        }
    }

    pub fn bury(&mut self) {
        (self.state, self.node_state, self.leaders, self.region_mib) = (2, 3, 0, 0);
    }

    fn shown(&self, id: u64) -> Value {
        let names = ["Up", "Offline", "Tombstone"];
        let name = self.name.unwrap_or_else(|| names[usize::try_from(self.state).expect("a state of PD")]);
        let mut store = json!({ "id": id, "address": format!("mock://tikv-{id}:1"), "version": "8.5.5",
            "last_heartbeat": 1_763_200_000_000_000_000_u64, "state_name": name });
        // zeros are left out
        for (field, value) in [("state", self.state), ("node_state", self.node_state)] {
            if value != 0 {
                store[field] = json!(value);
            }
        }
        if self.tiflash {
            store["labels"] = json!([{ "key": "engine", "value": "tiflash" }]);
        }
        let status = json!({ "capacity": "1TiB", "available": self.available, "used_size": self.used,
            "leader_count": self.leaders, "leader_weight": 1, "leader_score": self.leaders, "leader_size": 96,
            "region_count": 3, "region_weight": 1, "region_score": 3.5, "region_size": self.region_mib,
            "slow_score": 1, "uptime": "1h2m3s" });
        json!({ "store": store, "status": status })
    }
}

/// What one member does instead of answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ill {
    No,
    Hangs,
    FindsNoLeader,
    IsTakenForTheLeader,
    /// A web server that is not PD.
    Status(u16, &'static str),
}

pub struct Books {
    pub cluster: u64,
    pub leader: u64,
    pub started: i64,
    pub max_replicas: u64,
    pub stores: BTreeMap<u64, Store>,
    /// Beyond those that stores lead: nobody has reported them yet.
    pub regions_without_leader: u64,
    pub evictors: Option<BTreeSet<u64>>,
    pub evictors_are_hidden: bool,
    /// It has just begun to lead.
    pub schedulers_are_starting: bool,
    pub limits_of_version_two: bool,
    /// By store: progress, MiB a second, seconds left.
    pub progress: BTreeMap<u64, (f64, f64, f64)>,
    /// The leader changes while counts are read.
    pub leader_changes_at_counts: bool,
    pub refuses_to_remove: Option<(u16, &'static str)>,
    /// Everything but reading, in order: `METHOD path body`.
    pub asked: Vec<String>,
    pub authorization: Option<String>,
    ill: Vec<Ill>,
    /// How often each member was asked.
    pub heard: Vec<usize>,
}

pub struct StandIn {
    books: Arc<Mutex<Books>>,
    pub addresses: Vec<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl StandIn {
    /// Stores 1 to 4, each with ten leaders, and three copies wanted.
    pub async fn start(members: usize) -> StandIn {
        let books = Arc::new(Mutex::new(Books {
            cluster: 7_000_000_000_000_000_001,
            leader: 11,
            started: 1_763_000_000,
            max_replicas: 3,
            stores: (1..=4).map(|id| (id, Store::up(10))).collect(),
            regions_without_leader: 0,
            evictors: None,
            evictors_are_hidden: false,
            schedulers_are_starting: false,
            limits_of_version_two: false,
            progress: BTreeMap::new(),
            leader_changes_at_counts: false,
            refuses_to_remove: None,
            asked: Vec::new(),
            authorization: None,
            ill: vec![Ill::No; members],
            heard: vec![0; members],
        }));
        let (mut addresses, mut tasks) = (Vec::new(), Vec::new());
        for member in 0..members {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            addresses.push(listener.local_addr().expect("bound"));
            let router = axum::Router::new().fallback(answer).with_state((member, books.clone()));
            tasks.push(tokio::spawn(async move {
                let _aborted = axum::serve(listener, router).await;
            }));
        }
        StandIn { books, addresses, tasks }
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no test panics in it")
    }

    pub fn make(&self, member: usize, ill: Ill) {
        self.books().ill[member] = ill;
    }

    /// Counts are believed at first sight.
    pub fn config(&self) -> PdConfig {
        let endpoints = self.addresses.iter().map(|address| Endpoint::new(format!("http://{address}")));
        let timeout = std::time::Duration::from_secs(60);
        PdConfig { settle: std::time::Duration::ZERO, timeout, ..PdConfig::new(endpoints) }
    }
}

fn reply(status: u16, body: &Value) -> Response {
    let text = serde_json::to_string_pretty(body).expect("JSON");
    (StatusCode::from_u16(status).expect("a status"), [("content-type", "application/json")], text)
        .into_response()
}

fn error(status: u16, words: &str) -> Response {
    reply(status, &json!(words))
}

async fn answer(State((member, books)): State<(usize, Arc<Mutex<Books>>)>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.expect("a small body");
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str()).to_owned();
    let ill = {
        let mut books = books.lock().expect("no test panics in it");
        books.heard[member] += 1;
        let header = parts.headers.get("authorization").and_then(|value| value.to_str().ok());
        books.authorization = header.map(str::to_owned);
        books.ill[member]
    };
    match ill {
        Ill::No => {}
        Ill::Hangs => std::future::pending().await,
        Ill::FindsNoLeader => return error(503, "redirect finds no leader"),
        Ill::IsTakenForTheLeader => return error(500, "redirect to not leader"),
        Ill::Status(status, text) => {
            return (StatusCode::from_u16(status).expect("a status"), text).into_response();
        }
    }
    let mut books = books.lock().expect("no test panics in it");
    let Some(path) = path.strip_prefix("/pd/api/v1") else {
        return (StatusCode::NOT_FOUND, "404 page not found").into_response();
    };
    let body = String::from_utf8_lossy(&body).into_owned();
    match parts.method.as_str() {
        "GET" => books.read(path),
        method => {
            books.asked.push(format!("{method} {path} {body}").trim_end().to_owned());
            let body = serde_json::from_str(&body).unwrap_or(Value::Null);
            books.change(method, path, &body)
        }
    }
}

impl Books {
    fn read(&mut self, path: &str) -> Response {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        match path {
            "/members" => {
                let member =
                    json!({ "name": "pd-1", "member_id": self.leader, "client_urls": ["http://pd-1:2379"] });
                let header = json!({ "cluster_id": self.cluster });
                reply(
                    200,
                    &json!({ "header": header, "members": [member], "leader": member, "etcd_leader": member }),
                )
            }
            "/status" => reply(200, &json!({ "version": "v8.5.5", "start_timestamp": self.started })),
            "/config/replicate" => {
                reply(200, &json!({ "max-replicas": self.max_replicas, "location-labels": "" }))
            }
            "/config/schedule" => {
                let kinds =
                    ["balance-region"].into_iter().chain(self.evictors.as_ref().map(|_| "evict-leader"));
                let kept: Vec<Value> =
                    kinds.map(|kind| json!({ "type": kind, "args": null, "disable": false })).collect();
                reply(
                    200,
                    &json!({ "low-space-ratio": 0.8, "leader-schedule-limit": 4, "schedulers-v2": kept }),
                )
            }
            "/stores" => {
                let alive = self.stores.iter().filter(|(_, store)| store.state != 2);
                let shown: Vec<Value> = alive.map(|(id, store)| store.shown(*id)).collect();
                reply(200, &json!({ "count": shown.len(), "stores": shown }))
            }
            "/regions/count" => {
                self.leader += u64::from(self.leader_changes_at_counts);
                let led: u64 = self.stores.values().map(|store| store.leaders).sum();
                reply(200, &json!({ "count": led + self.regions_without_leader, "regions": null }))
            }
            "/schedulers" if self.schedulers_are_starting => reply(200, &json!([])),
            "/schedulers" => {
                let evictor = self.evictors.as_ref().map(|_| EVICTOR);
                reply(
                    200,
                    &json!(["balance-region-scheduler"].into_iter().chain(evictor).collect::<Vec<_>>()),
                )
            }
            "/scheduler-config/evict-leader-scheduler/list" => match &self.evictors {
                Some(stores) if !self.evictors_are_hidden && !self.schedulers_are_starting => {
                    let range = json!([{ "start-key": "", "end-key": "" }]);
                    let ranges: BTreeMap<String, Value> =
                        stores.iter().map(|id| (id.to_string(), range.clone())).collect();
                    reply(200, &json!({ "store-id-ranges": ranges, "batch": 3 }))
                }
                Some(_) | None => error(404, "scheduler not found"),
            },
            "/stores/limit" if self.limits_of_version_two => {
                error(400, "current store limit version:v2 not support get limit")
            }
            "/stores/limit" => {
                let shown =
                    |store: &Store| json!({ "add-peer": store.limit.0, "remove-peer": store.limit.1 });
                let limits: BTreeMap<String, Value> =
                    self.stores.iter().map(|(id, store)| (id.to_string(), shown(store))).collect();
                reply(200, &json!(limits))
            }
            "/stores/progress" => {
                let id = query.strip_prefix("id=").and_then(|id| id.parse().ok()).unwrap_or_default();
                match self.progress.get(&id) {
                    Some((progress, speed, left)) => reply(
                        200,
                        &json!({ "action": "removing", "store_id": id,
                        "progress": progress, "current_speed": speed, "left_seconds": left }),
                    ),
                    None => error(404, "[PD:progress:ErrProgressNotFound]no progress found"),
                }
            }
            path => match path.strip_prefix("/store/").and_then(|id| id.parse().ok()) {
                Some(id) => match self.stores.get(&id) {
                    Some(store) => reply(200, &store.shown(id)),
                    None => error(404, &format!("[PD:core:ErrStoreNotFound]store {id} not found")),
                },
                None => (StatusCode::NOT_FOUND, "404 page not found").into_response(),
            },
        }
    }

    fn change(&mut self, method: &str, path: &str, body: &Value) -> Response {
        if (method, path) == ("POST", "/schedulers") {
            return self.add_evictor(body);
        }
        if (method, path) == ("DELETE", "/stores/remove-tombstone") {
            self.stores.retain(|_, store| store.state != 2);
            return reply(200, &json!("Remove tombstone successfully."));
        }
        if let Some(id) = path.strip_prefix("/schedulers/evict-leader-scheduler-") {
            let id = id.parse().expect("a store");
            return match self.evictors.as_mut().is_some_and(|stores| stores.remove(&id)) {
                true => {
                    self.evictors = self.evictors.take().filter(|stores| !stores.is_empty());
                    reply(200, &json!("The scheduler is removed."))
                }
                false => error(404, "scheduler not found"),
            };
        }
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let (id, what) = path
            .strip_prefix("/store/")
            .and_then(|rest| {
                let (id, what) = rest.split_once('/').unwrap_or((rest, ""));
                Some((id.parse::<u64>().ok()?, what))
            })
            .expect("a path that PD has");
        let Some(store) = self.stores.get_mut(&id) else {
            return error(404, &format!("[PD:core:ErrStoreNotFound]store {id} not found"));
        };
        if store.state == 2 && what != "limit" {
            return error(410, &format!("[PD:core:ErrStoreRemoved]store {id} has been removed"));
        }
        match (method, what, query) {
            ("DELETE", "", "") => {
                if let Some((status, words)) = self.refuses_to_remove {
                    return error(status, words);
                }
                (store.state, store.node_state, store.limit.1) = (1, 2, UNLIMITED);
                reply(200, &json!("The store is set as Offline."))
            }
            ("POST", "state", "state=Up") if store.destroyed => {
                error(400, &format!("[PD:core:ErrStoreDestroyed]store {id} has been physically destroyed"))
            }
            ("POST", "state", "state=Up") => {
                (store.state, store.node_state) = (0, 1);
                reply(200, &json!("The store's state is updated."))
            }
            ("POST", "limit", "") => {
                let rate = body["rate"].as_f64().expect("a rate");
                match body["type"].as_str() {
                    Some("add-peer") => store.limit.0 = rate,
                    Some("remove-peer") => store.limit.1 = rate,
                    _ => return error(400, "unknown type"),
                }
                reply(200, &json!("The store's limit is updated."))
            }
            _ => (StatusCode::METHOD_NOT_ALLOWED, "").into_response(),
        }
    }

    fn add_evictor(&mut self, body: &Value) -> Response {
        match (body["name"].as_str(), body["store_id"].as_u64()) {
            (Some(EVICTOR), Some(id)) => {
                self.evictors.get_or_insert_default().insert(id);
                reply(200, &json!("The scheduler is created."))
            }
            (Some(EVICTOR), None) => error(400, "missing store id"),
            _ => error(400, "unknown scheduler"),
        }
    }
}

pub fn bytes(mib: u64) -> u64 {
    mib * MIB
}
