//! A coordinator over a store in memory, with nodes that do as they are told unless the test says
//! otherwise. Nothing happens by itself: messages are carried and time passes when the test says so.

#![allow(dead_code, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use model::{
    Actual, Cluster, Event, Exit, InstanceId, Kind, Life, MemoryCaps, Millis, NodeId, ProcessEpoch,
    Resources, Roles, ServiceName, ServiceSpec, Term, Time, decode_record,
    spec::{Disk, EdgeSpec, Migrate, Signal, Stop, Update, VolumeSpec},
};
use protocol::{
    Timing,
    coordinator::{
        Answer, ApiError, Apply, Asked, BackendOrder, ConnId, Coordinator, DrainRequest, Input, Op, Output,
        Request, RequestId, Start, Stored,
    },
    message::{
        Down, DownBody, Duty, EdgeReport, Heartbeat, Hello, Inventory, Order, Run, Status, Up, UpBody, What,
        Withdrawal,
    },
};

pub const TIMING: Timing = Timing {
    heartbeat: Millis::secs(1),
    lease: Millis::secs(5),
    degraded_after: Millis::secs(5),
    fence_after: Millis::secs(45),
    offline_after: Millis::secs(60),
    last_node_after: Millis::secs(30),
};

const MIB: u64 = 1 << 20;

pub fn spec(name: &str) -> ServiceSpec {
    let deadline = Millis::secs(300);
    ServiceSpec {
        kind: Kind::Service,
        command: vec![name.to_owned()],
        env: BTreeMap::new(),
        memory: 64 * MIB,
        cpu: 100,
        ports: vec![],
        check: None,
        edge: None,
        stop: Stop { signal: Signal::Term, grace: Millis::secs(30) },
        migrate: Migrate {
            max_parallel: 1,
            min_healthy_time: Millis(0),
            healthy_deadline: deadline,
            surge: true,
        },
        update: Update { max_parallel: 1, healthy_deadline: deadline, surge: true },
        volume: None,
        disk: Disk::default(),
        rerun: true,
        constraints: BTreeMap::new(),
    }
}

/// Behind the edge.
pub fn at_edge(name: &str) -> ServiceSpec {
    let edge = Some(EdgeSpec { port: "http".into(), listen: 8080 });
    ServiceSpec { ports: vec!["http".into()], edge, ..spec(name) }
}

pub fn with_volume(name: &str) -> ServiceSpec {
    ServiceSpec { volume: Some(VolumeSpec { name: "data".into() }), ..spec(name) }
}

pub fn batch(name: &str) -> ServiceSpec {
    ServiceSpec { kind: Kind::Batch, ..spec(name) }
}

/// What a node does about its orders.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    pub starts: bool,
    pub stops: bool,
    /// Its edge confirms the sets that it is sent.
    pub confirms: bool,
}

pub struct FakeNode {
    roles: Roles,
    life: Life,
    conn: Option<ConnId>,
    seq: u64,
    pub epoch: ProcessEpoch,
    numbers: u64,
    pub has: BTreeMap<InstanceId, (ServiceName, Status)>,
    /// Ordered and not done, because of its manners.
    undone: BTreeMap<InstanceId, Order>,
    sent_sets: Option<protocol::message::SetRevision>,
    pub serves: Option<protocol::message::SetRevision>,
    withdrawal: Option<Withdrawal>,
    forgotten: BTreeSet<InstanceId>,
    pub manners: Manners,
    /// Every stop order, as often as it came with a higher revision.
    pub stops: Vec<InstanceId>,
}

/// How the store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreIs {
    Well,
    /// Nothing reaches it.
    Away,
    /// Takes the next one and says nothing; then well.
    Mute,
}

pub struct Office {
    pub coordinator: Coordinator,
    pub now: Time,
    pub records: BTreeMap<String, Vec<u8>>,
    pub head: u64,
    wrote: Term,
    pub store: StoreIs,
    pub nodes: BTreeMap<String, FakeNode>,
    in_flight: Option<(u64, Vec<Op>)>,
    conns: u64,
    requests: u64,
    replies: BTreeMap<u64, Result<Answer, ApiError>>,
    pub events: Vec<Event>,
    /// Calls to backends that nobody has answered.
    pub backend: VecDeque<BackendOrder>,
}

impl Office {
    /// Workers `n1` …, which are edges as well, and a candidate that runs nothing.
    pub fn with_nodes(count: usize) -> Office {
        let now = Time(1_000_000);
        let (coordinator, outputs) = Coordinator::new(start(Cluster::default(), 0, Term(1)), now);
        let mut office = Office {
            coordinator,
            now,
            records: BTreeMap::new(),
            head: 0,
            wrote: Term(0),
            store: StoreIs::Well,
            nodes: BTreeMap::new(),
            in_flight: None,
            conns: 0,
            requests: 0,
            replies: BTreeMap::new(),
            events: Vec::new(),
            backend: VecDeque::new(),
        };
        office.perform(outputs);
        office.give(Input::OfficeHolds { until: Time(u64::MAX) });
        office.join("control", Roles { coordinator: true, worker: false, edge: false });
        for n in 1..=count {
            office.join(&format!("n{n}"), Roles { coordinator: false, worker: true, edge: true });
        }
        office
    }

    pub fn join(&mut self, name: &str, roles: Roles) {
        let manners = Manners { starts: true, stops: true, confirms: true };
        let node = FakeNode {
            roles,
            life: Life(1),
            conn: None,
            seq: 0,
            epoch: ProcessEpoch(0),
            numbers: 0,
            has: BTreeMap::new(),
            undone: BTreeMap::new(),
            sent_sets: None,
            serves: None,
            withdrawal: None,
            forgotten: BTreeSet::new(),
            manners,
            stops: Vec::new(),
        };
        self.nodes.insert(name.to_owned(), node);
        self.connect(name);
    }

    pub fn connect(&mut self, name: &str) {
        self.conns += 1;
        let conn = ConnId(self.conns);
        let node = self.nodes.get_mut(name).unwrap();
        (node.conn, node.seq) = (Some(conn), 1);
        let inventory = node
            .has
            .values()
            .map(|(service, status)| Inventory { service: service.clone(), status: status.clone() });
        let hello = Hello {
            node: NodeId::new(name),
            life: node.life,
            succeeds: None,
            roles: node.roles,
            labels: BTreeMap::new(),
            capacity: Resources { memory: 1024 * MIB, cpu: 4000 },
            host: name.to_owned(),
            api: format!("{name}:1"),
            rpc: String::new(),
            memory_caps: MemoryCaps::CgroupV2,
            cluster: None,
            inventory: inventory.collect(),
            edge: EdgeReport { serves: node.serves, withdrawal: node.withdrawal, ..EdgeReport::default() },
        };
        self.give(Input::Up { conn, message: Up { seq: 1, body: UpBody::Hello(hello) } });
    }

    /// Its daemon ends in good order; what it runs goes on.
    pub fn goodbye(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        node.seq += 1;
        let message = Up { seq: node.seq, body: UpBody::Goodbye };
        if let Some(conn) = node.conn {
            self.give(Input::Up { conn, message });
        }
        self.silence(name);
    }

    /// It is not heard of any more; what it runs goes on.
    pub fn silence(&mut self, name: &str) {
        if let Some(conn) = self.nodes.get_mut(name).unwrap().conn.take() {
            self.give(Input::Closed { conn });
        }
    }

    /// Its daemon starts anew: it has what it had, and its edge serves nothing yet.
    pub fn restart(&mut self, name: &str) {
        self.silence(name);
        let node = self.nodes.get_mut(name).unwrap();
        node.life = Life(node.life.0 + 1);
        (node.serves, node.sent_sets) = (None, None);
        node.undone.clear();
        self.connect(name);
    }

    /// Its machine starts anew, with nothing running.
    pub fn reboot(&mut self, name: &str) {
        self.nodes.get_mut(name).unwrap().has.clear();
        self.restart(name);
    }

    pub fn manners(&mut self, name: &str) -> &mut Manners {
        &mut self.nodes.get_mut(name).unwrap().manners
    }

    pub fn give(&mut self, input: Input) {
        let outputs = self.coordinator.handle(self.now, input);
        self.perform(outputs);
    }

    fn perform(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { conn, message } => self.deliver(conn, message),
                Output::Close { .. } => {}
                Output::Reply { id, result } => drop(self.replies.insert(id.0, result)),
                Output::Event(event) => self.events.push(event),
                Output::Transact { head, ops } => self.transact(head, ops),
                Output::ReadHead => {
                    let (number, by) = (self.head, self.wrote);
                    self.give(Input::Head { number, by });
                }
                Output::Resign { why } => panic!("resigned: {why}"),
                Output::Backend(order) => self.backend.push_back(order),
                Output::HandOver => panic!("nobody asked"),
            }
        }
    }

    fn transact(&mut self, head: u64, ops: Vec<Op>) {
        let answer = match self.store {
            StoreIs::Well => {
                self.write(head, ops);
                Stored::Committed
            }
            StoreIs::Away => Stored::Unavailable,
            StoreIs::Mute => {
                self.write(head, ops);
                self.store = StoreIs::Well;
                Stored::Unknown
            }
        };
        self.give(Input::Stored(answer));
    }

    fn write(&mut self, head: u64, ops: Vec<Op>) {
        assert_eq!(head, self.head + 1, "one after the other");
        (self.head, self.wrote) = (head, self.coordinator.term());
        for (key, value) in ops {
            match value {
                Some(value) => drop(self.records.insert(key, value)),
                None => drop(self.records.remove(&key)),
            }
        }
    }

    fn deliver(&mut self, conn: ConnId, message: Down) {
        let node = self.nodes.values_mut().find(|node| node.conn == Some(conn));
        let Some(node) = node else { return };
        match message.body {
            DownBody::Welcome(welcome) => node.epoch = welcome.epoch,
            DownBody::Orders(orders) => orders.into_iter().for_each(|order| node.take(order)),
            DownBody::Sets(sets) => node.sent_sets = Some(sets.revision),
            DownBody::Duty(Duty::Withdraw { drain }) => {
                node.withdrawal = Some(Withdrawal { drain, done: true });
            }
            DownBody::Duty(Duty::Serve { .. }) => node.withdrawal = None,
            DownBody::Answer(_)
            | DownBody::Refused { .. }
            | DownBody::Roster(_)
            | DownBody::Feeds(_)
            | DownBody::Relay(_)
            | DownBody::Leave => {}
        }
    }

    /// One heartbeat of a node that is connected, with everything it knows.
    pub fn beat(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        let Some(conn) = node.conn else { return };
        node.obey();
        let message = node.heartbeat();
        self.give(Input::Up { conn, message });
    }

    /// A second: what nodes were told they do, and say so.
    pub fn second(&mut self) {
        self.now = self.now + Millis::secs(1);
        self.give(Input::Tick);
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        names.iter().for_each(|name| self.beat(name));
    }

    pub fn seconds(&mut self, seconds: u64) {
        (0..seconds).for_each(|_| self.second());
    }

    /// Long enough for everything that can happen by itself.
    pub fn let_it_run(&mut self) {
        self.seconds(20);
    }

    pub fn asks(&mut self, request: Request) -> u64 {
        self.requests += 1;
        let asked = Asked { who: "token:alice".into(), from: "10.0.0.9:5000".into(), request };
        self.give(Input::Request { id: RequestId(self.requests), asked });
        self.requests
    }

    pub fn reply(&self, request: u64) -> Option<&Result<Answer, ApiError>> {
        self.replies.get(&request)
    }

    /// Asked, and answered at once.
    pub fn ask(&mut self, request: Request) -> Result<Answer, ApiError> {
        let request = self.asks(request);
        self.reply(request).expect("the store is well").clone()
    }

    /// Applied, and running.
    pub fn run(&mut self, name: &str, count: u32, spec: ServiceSpec) {
        self.apply(name, count, spec);
        self.let_it_run();
    }

    pub fn apply(&mut self, name: &str, count: u32, spec: ServiceSpec) {
        let apply = Apply { name: ServiceName::new(name), count: Some(count), spec: Arc::new(spec) };
        self.ask(Request::apply(vec![apply])).unwrap();
    }

    pub fn drain(&mut self, nodes: &[&str]) -> Result<u64, ApiError> {
        self.drain_with(nodes, DrainRequest::default())
    }

    pub fn drain_with(&mut self, nodes: &[&str], request: DrainRequest) -> Result<u64, ApiError> {
        let nodes = nodes.iter().map(|node| node.to_string()).collect();
        match self.ask(Request::Drain(DrainRequest { nodes, ..request }))? {
            Answer::Draining(epoch) => Ok(epoch),
            other => panic!("{other:?}"),
        }
    }

    pub fn cancel(&mut self, node: &str) -> Result<Answer, ApiError> {
        self.ask(Request::CancelNode { node: node.to_owned() })
    }

    /// How a node's part of a drain stands.
    pub fn part(&self, epoch: u64, node: &str) -> &'static str {
        self.coordinator.cluster().drain(epoch).unwrap().part(node).unwrap().state_str()
    }

    pub fn intent(&self, node: &str) -> &'static str {
        self.coordinator.cluster().node_by_id(node).unwrap().rec.intent.as_str()
    }

    pub fn health(&self, node: &str) -> &'static str {
        self.coordinator.cluster().node_by_id(node).unwrap().rec.health.as_str()
    }

    /// Instances of a service that are wanted and able to take work.
    pub fn available(&self, service: &str) -> usize {
        let cluster = self.coordinator.cluster();
        let ix = cluster.service_ix(service).unwrap();
        cluster.instances_of(ix).filter(|instance| instance.is_available()).count()
    }

    /// Instances that a node has not reported stopped, by the record.
    pub fn on(&self, node: &str) -> Vec<InstanceId> {
        let cluster = self.coordinator.cluster();
        let ix = cluster.node_ix(node).unwrap();
        cluster.instances_on(ix).filter(|instance| !instance.is_over()).map(|instance| instance.id).collect()
    }

    /// The codes of what a node's drain waits for.
    pub fn waits(&self, epoch: u64, node: &str) -> Vec<(&'static str, Option<Time>)> {
        let part = self.coordinator.cluster().drain(epoch).unwrap().part(node).unwrap().clone();
        let status = self.coordinator.drain_status(&part, self.now);
        status.units.iter().map(|unit| (unit.code.as_str(), unit.since)).collect()
    }

    /// The coordinator is gone; another takes office with what was committed, and the nodes dial it.
    pub fn next_coordinator(&mut self) {
        let term = Term(self.coordinator.term().0 + 1);
        let mut cluster = Cluster::default();
        let (first, rest): (Vec<_>, Vec<_>) =
            self.records.iter().partition(|(key, _)| matches!(key.as_bytes()[0], b'm' | b'n' | b's'));
        for (key, value) in first.into_iter().chain(rest) {
            let change = decode_record(&cluster, key, Some(value)).unwrap();
            cluster.apply(&change);
        }
        let (coordinator, outputs) = Coordinator::new(start(cluster, self.head, term), self.now);
        self.coordinator = coordinator;
        self.backend.clear();
        self.perform(outputs);
        self.give(Input::OfficeHolds { until: Time(u64::MAX) });
        let connected = self.nodes.iter().filter(|(_, node)| node.conn.is_some());
        let connected: Vec<String> = connected.map(|(name, _)| name.clone()).collect();
        connected.iter().for_each(|name| self.connect(name));
    }
}

impl FakeNode {
    fn take(&mut self, order: Order) {
        self.undone.insert(order.instance, order);
    }

    fn obey(&mut self) {
        if self.manners.confirms {
            self.serves = self.sent_sets;
        }
        for (id, order) in std::mem::take(&mut self.undone) {
            let known = self.has.get(&id).map(|(_, status)| (status.order, status.actual));
            let done = known
                .is_some_and(|(revision, actual)| revision >= order.revision && actual != Actual::Starting);
            match (&order.what, known) {
                (What::Forget | What::Destroy(_), _) => {
                    self.has.remove(&id);
                    self.forgotten.insert(id);
                }
                _ if done => {}
                (What::Run(run), _) => {
                    let actual = if self.manners.starts { Actual::Ready } else { Actual::Starting };
                    self.note(id, Some(run), order.revision, actual);
                    if !self.manners.starts {
                        self.undone.insert(id, order);
                    }
                }
                (What::Drain, _) => self.note(id, None, order.revision, Actual::Unready),
                (What::Stop, _) => {
                    let told = known.is_some_and(|(revision, _)| revision >= order.revision);
                    if !told {
                        self.stops.push(id);
                    }
                    if self.manners.stops {
                        self.note(id, None, order.revision, Actual::Stopped);
                    } else {
                        self.note(id, None, order.revision - 1, Actual::Unready);
                        self.undone.insert(id, order);
                    }
                }
            }
        }
    }

    /// It becomes ready, or fails, by itself.
    pub fn note(&mut self, id: InstanceId, run: Option<&Arc<Run>>, order: u32, actual: Actual) {
        self.numbers += 1;
        let service = match (run, self.has.get(&id)) {
            (Some(run), _) => run.service.clone(),
            (None, Some((service, _))) => service.clone(),
            (None, None) => ServiceName::new("unknown"),
        };
        let status = Status {
            instance: id,
            number: self.numbers,
            order,
            actual,
            restarts: 0,
            pid: Some(4711),
            ports: run.map_or(vec![], |run| vec![20001; run.spec.ports.len()]),
            reason: None,
            message: None,
            exit: (actual == Actual::Stopped).then_some(Exit::Code(0)),
            healthy_for: (actual == Actual::Ready).then_some(Millis(1)),
        };
        self.has.insert(id, (service, status));
    }

    fn heartbeat(&mut self) -> Up {
        self.seq += 1;
        let heartbeat = Heartbeat {
            epoch: self.epoch,
            statuses: self.has.values().map(|(_, status)| status.clone()).collect(),
            forgotten: self.forgotten.iter().copied().collect(),
            degraded: None,
            edge: EdgeReport { serves: self.serves, withdrawal: self.withdrawal, ..EdgeReport::default() },
            ..Heartbeat::default()
        };
        Up { seq: self.seq, body: UpBody::Heartbeat(heartbeat) }
    }

    /// What it would have said in an earlier life, over its present connection.
    pub fn word_of(
        &mut self,
        epoch: ProcessEpoch,
        serves: Option<protocol::message::SetRevision>,
    ) -> (ConnId, Up) {
        self.seq += 1;
        let edge = EdgeReport { serves, ..EdgeReport::default() };
        let heartbeat = Heartbeat { epoch, edge, ..Heartbeat::default() };
        (self.conn.unwrap(), Up { seq: self.seq, body: UpBody::Heartbeat(heartbeat) })
    }
}

fn start(cluster: Cluster, head: u64, term: Term) -> Start {
    Start {
        cluster,
        head,
        term,
        timing: TIMING,
        random: 1 << 20,
        candidate: "control".into(),
        api: "control:1".into(),
        drain: Default::default(),
        feeds: Default::default(),
    }
}
