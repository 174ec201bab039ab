//! A node that does everything it is told at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use model::{
    Actual, Checkpoint, FeedName, InstanceId, Life, MaintainerEpoch, MemoryCaps, Millis, NodeId,
    ProcessEpoch, Resources, Roles, ServiceName, Time,
};
use protocol::message::{
    Down, DownBody, Duty, EdgeReport, FeedOrder, FeedReport, Heartbeat, Hello, Inventory, Order, SetRevision,
    Status, Up, UpBody, What, Withdrawal,
    feed::{FeedWhat, Phase},
};
use tokio::task::JoinHandle;

pub struct FakeNode {
    task: JoinHandle<()>,
    pub feeds: Arc<Mutex<FakeFeeds>>,
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What it does about feeds: maintains as it is told, and has the dispatchers that a test gives it.
#[derive(Default)]
pub struct FakeFeeds {
    pub dispatchers: BTreeMap<FeedName, u32>,
    /// Says of nothing that it knows it.
    pub mute: bool,
    /// It was told that it may go.
    pub told_to_leave: bool,
    /// Dispatchers that its maintainers have moved.
    pub moved: u64,
    roster: Option<SetRevision>,
    maintains: BTreeMap<FeedName, (MaintainerEpoch, SetRevision, Phase)>,
}

impl FakeFeeds {
    fn take(&mut self, orders: &[FeedOrder]) {
        for order in orders {
            match &order.what {
                FeedWhat::Maintain(maintain) => {
                    let what = (order.epoch, maintain.revision, Phase::Working);
                    self.maintains.insert(order.feed.clone(), what);
                }
                FeedWhat::Quiesce => {
                    let revision =
                        self.maintains.get(&order.feed).map_or(SetRevision::default(), |known| known.1);
                    self.maintains.insert(order.feed.clone(), (order.epoch, revision, Phase::Quiesced));
                }
                FeedWhat::Forget => {
                    self.maintains.remove(&order.feed);
                }
            }
        }
    }

    fn reports(&self, number: u64) -> Vec<FeedReport> {
        let report =
            |(feed, (epoch, revision, phase)): (&FeedName, &(MaintainerEpoch, SetRevision, Phase))| {
                FeedReport {
                    feed: feed.clone(),
                    epoch: *epoch,
                    number,
                    revision: *revision,
                    phase: *phase,
                    spans: None,
                    checkpoint: Some(Checkpoint { position: number, at: Time(1000) }),
                    dispatchers: BTreeMap::new(),
                    moving: 0,
                    moved: self.moved,
                    absent: 0,
                    held_back: None,
                    asked: Vec::new(),
                    troubles: Vec::new(),
                    stuck: BTreeMap::new(),
                }
            };
        self.maintains.iter().map(report).collect()
    }
}

struct Running {
    seq: u64,
    epoch: ProcessEpoch,
    numbers: u64,
    has: BTreeMap<InstanceId, Status>,
    forgotten: BTreeSet<InstanceId>,
    edge: EdgeReport,
    feeds: Arc<Mutex<FakeFeeds>>,
}

impl FakeNode {
    pub fn join(rpc: SocketAddr, id: &str, api: &str) -> FakeNode {
        FakeNode::live(rpc, hello(id, api, Vec::new()))
    }

    /// One that may be elected and runs nothing.
    pub fn join_candidate(rpc: SocketAddr, id: &str) -> FakeNode {
        let roles = Roles { coordinator: true, worker: false, edge: false };
        FakeNode::live(rpc, Hello { roles, ..hello(id, "127.0.0.1:1", Vec::new()) })
    }

    /// With something on its disk that nobody ordered.
    pub fn join_with_unclaimed(rpc: SocketAddr, id: &str) -> FakeNode {
        let status = status(InstanceId(77), 1, 1, Actual::Ready);
        let hello = hello(id, "127.0.0.1:1", vec![Inventory { service: ServiceName::new("old"), status }]);
        FakeNode::live(rpc, hello)
    }

    /// Dials again whenever its stream ends.
    fn live(rpc: SocketAddr, hello: Hello) -> FakeNode {
        let feeds = Arc::new(Mutex::new(FakeFeeds::default()));
        let own = feeds.clone();
        let task = tokio::spawn(async move {
            loop {
                run(rpc, hello.clone(), own.clone()).await;
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        });
        FakeNode { task, feeds }
    }
}

pub fn hello(id: &str, api: &str, inventory: Vec<Inventory>) -> Hello {
    Hello {
        node: NodeId::new(id),
        life: Life(7),
        succeeds: None,
        roles: Roles::ALL,
        labels: BTreeMap::from([("rack".to_owned(), "r1".to_owned())]),
        capacity: Resources { memory: 1 << 30, cpu: 4000 },
        host: "127.0.0.1".to_owned(),
        api: api.to_owned(),
        rpc: String::new(),
        memory_caps: MemoryCaps::None("no cgroup".to_owned()),
        cluster: None,
        inventory,
        edge: EdgeReport::default(),
    }
}

fn status(instance: InstanceId, number: u64, order: u32, actual: Actual) -> Status {
    Status {
        instance,
        number,
        order,
        actual,
        restarts: 0,
        pid: Some(4711),
        ports: vec![20001],
        reason: None,
        message: None,
        exit: None,
        healthy_for: (actual == Actual::Ready).then_some(Millis(5)),
    }
}

async fn run(rpc: SocketAddr, hello: Hello, feeds: Arc<Mutex<FakeFeeds>>) {
    let Ok(mut stream) = wire::connect(&rpc.to_string()).await else { return };
    let mut life = Running {
        seq: 1,
        epoch: ProcessEpoch(0),
        numbers: 1,
        has: BTreeMap::new(),
        forgotten: BTreeSet::new(),
        edge: EdgeReport::default(),
        feeds,
    };
    if stream.sender.send(Up { seq: 1, body: UpBody::Hello(hello) }).await.is_err() {
        return;
    }
    let mut beat = tokio::time::interval(std::time::Duration::from_millis(50));
    loop {
        tokio::select! {
            down = stream.receiver.recv() => match down {
                Some(down) if life.take(&down) => {}
                Some(_) => continue,
                None => return,
            },
            _ = beat.tick() => {}
        }
        if life.epoch > ProcessEpoch(0) && stream.sender.send(life.heartbeat()).await.is_err() {
            return;
        }
    }
}

impl Running {
    fn heartbeat(&mut self) -> Up {
        self.seq += 1;
        let feeds = self.feeds.lock().unwrap();
        let heartbeat = Heartbeat {
            roster: feeds.roster.filter(|_| !feeds.mute),
            dispatchers: feeds.dispatchers.iter().map(|(feed, count)| (feed.clone(), *count)).collect(),
            feeds: feeds.reports(self.seq),
            epoch: self.epoch,
            statuses: self.has.values().cloned().collect(),
            forgotten: self.forgotten.iter().copied().collect(),
            degraded: None,
            edge: self.edge.clone(),
        };
        Up { seq: self.seq, body: UpBody::Heartbeat(heartbeat) }
    }

    /// Whether there is something new to say.
    fn take(&mut self, down: &Down) -> bool {
        match &down.body {
            DownBody::Welcome(welcome) => self.epoch = welcome.epoch,
            DownBody::Orders(orders) => orders.iter().for_each(|order| self.obey(order)),
            DownBody::Sets(sets) => self.edge.serves = Some(sets.revision),
            DownBody::Duty(Duty::Withdraw { drain }) => {
                self.edge.withdrawal = Some(Withdrawal { drain: *drain, done: true });
            }
            DownBody::Duty(Duty::Serve { .. }) => self.edge.withdrawal = None,
            DownBody::Relay(_) => {}
            DownBody::Leave => self.feeds.lock().unwrap().told_to_leave = true,
            DownBody::Roster(roster) => self.feeds.lock().unwrap().roster = Some(roster.revision),
            DownBody::Feeds(orders) => self.feeds.lock().unwrap().take(orders),
            DownBody::Answer(_) | DownBody::Refused { .. } => return false,
        }
        true
    }

    fn obey(&mut self, order: &Order) {
        let actual = match &order.what {
            What::Run(_) => Actual::Ready,
            What::Drain => Actual::Unready,
            What::Stop => Actual::Stopped,
            What::Forget | What::Destroy(_) => {
                self.has.remove(&order.instance);
                self.forgotten.insert(order.instance);
                return;
            }
        };
        self.numbers += 1;
        let status = status(order.instance, self.numbers, order.revision, actual);
        self.has.insert(order.instance, status);
    }
}
