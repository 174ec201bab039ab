//! A node that does everything it is told at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use model::{
    Actual, InstanceId, Life, MemoryCaps, Millis, NodeId, ProcessEpoch, Resources, Roles, ServiceName,
};
use protocol::message::{
    Down, DownBody, Duty, EdgeReport, Heartbeat, Hello, Inventory, Order, SetRevision, Status, Up, UpBody,
    What, Withdrawal,
};
use tokio::task::JoinHandle;

pub struct FakeNode(JoinHandle<()>);

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Running {
    seq: u64,
    epoch: ProcessEpoch,
    numbers: u64,
    has: BTreeMap<InstanceId, Status>,
    forgotten: BTreeSet<InstanceId>,
    edge: EdgeReport,
    /// The closed set that it was told.
    roster: Option<SetRevision>,
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
        FakeNode(tokio::spawn(async move {
            loop {
                run(rpc, hello.clone()).await;
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }))
    }
}

fn hello(id: &str, api: &str, inventory: Vec<Inventory>) -> Hello {
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

async fn run(rpc: SocketAddr, hello: Hello) {
    let Ok(mut stream) = wire::connect(&rpc.to_string()).await else { return };
    let mut life = Running {
        seq: 1,
        epoch: ProcessEpoch(0),
        numbers: 1,
        has: BTreeMap::new(),
        forgotten: BTreeSet::new(),
        edge: EdgeReport::default(),
        roster: None,
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
        let heartbeat = Heartbeat {
            epoch: self.epoch,
            statuses: self.has.values().cloned().collect(),
            forgotten: self.forgotten.iter().copied().collect(),
            degraded: None,
            edge: self.edge.clone(),
            roster: self.roster,
            ..Heartbeat::default()
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
            DownBody::Leave => {}
            DownBody::Roster(roster) => self.roster = Some(roster.revision),
            DownBody::Answer(_) | DownBody::Refused { .. } | DownBody::Feeds(_) => return false,
        }
        true
    }

    fn obey(&mut self, order: &Order) {
        let actual = match &order.what {
            What::Run(_) => Actual::Ready,
            What::Drain => Actual::Unready,
            What::Stop => Actual::Stopped,
            What::Forget => {
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
