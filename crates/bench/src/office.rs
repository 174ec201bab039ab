//! The coordinator at size: what it costs when nothing happens, and when a drain is asked for.

use std::time::Instant;

use model::{Cluster, Instance, Millis, Node, NodeIx, Term, Time};
use protocol::{
    Timing,
    coordinator::{
        Asked, ConnId, Coordinator, DrainRequest, Input, Output, Request, RequestId, Start, Stored,
    },
    message::{EdgeReport, Heartbeat, Hello, Inventory, Status, Up, UpBody},
};

const TICKS: u64 = 2_000;
const NOW: Time = Time(60_000);

/// What a coordinator costs when nothing happens, in milliseconds.
pub struct Idle {
    pub tick_mean: f64,
    /// Of all heartbeats and ticks.
    pub step_worst: f64,
}

/// Takes office over this cluster.
pub fn take(cluster: Cluster) -> Coordinator {
    let start = Start {
        cluster,
        head: 1,
        term: Term(2),
        timing: Timing::default(),
        random: 1,
        candidate: "bench".into(),
        api: "127.0.0.1:7070".into(),
        drain: Default::default(),
        feeds: Default::default(),
    };
    let (mut coordinator, outputs) = Coordinator::new(start, NOW);
    commit_all(&mut coordinator, outputs, NOW);
    coordinator
}

/// Milliseconds to decide the drain of the node with the most units, and how many replacements were placed.
pub fn decide_a_drain(coordinator: &mut Coordinator) -> (f64, usize) {
    let nodes = coordinator.cluster().nodes();
    let fullest = nodes.max_by_key(|(_, node)| node.instances.len()).map(|(_, node)| node.rec.id.to_string());
    let request = DrainRequest { nodes: fullest.into_iter().collect(), ..DrainRequest::default() };
    let asked = Asked { who: "bench".into(), from: String::new(), request: Request::Drain(request) };
    let begun = Instant::now();
    let outputs = coordinator.handle(NOW, Input::Request { id: RequestId(1), asked });
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    commit_all(coordinator, outputs, NOW);
    let placed = coordinator.cluster().instances().filter(|instance| instance.replaces.is_some()).count();
    (took, placed)
}

/// Nodes that only send heartbeats.
pub fn idle(mut coordinator: Coordinator) -> Idle {
    let cluster = coordinator.cluster();
    let nodes: Vec<_> = cluster.nodes().map(|(_, node)| node.rec.clone()).collect();
    let inventories: Vec<Vec<Inventory>> = cluster.nodes().map(|(ix, _)| inventory(cluster, ix)).collect();
    let second = |item: &Inventory| Status { number: 2, ..item.status.clone() };
    let mut acknowledgements: Vec<Vec<Status>> =
        inventories.iter().map(|items| items.iter().map(second).collect()).collect();
    let mut now = NOW;
    coordinator.handle(now, Input::OfficeHolds { until: Time(u64::MAX) });
    for (n, (node, inventory)) in nodes.iter().zip(inventories).enumerate() {
        let message = Up { seq: 1, body: UpBody::Hello(hello(node, inventory)) };
        let outputs = coordinator.handle(now, Input::Up { conn: ConnId(n as u64), message });
        commit_all(&mut coordinator, outputs, now);
    }
    let (mut worst, mut total, mut seq) = (0.0f64, 0.0, 1);
    for round in 0..TICKS {
        now = Time(now.0 + 5);
        if round % 200 == 0 {
            seq += 1;
        }
        // Every node beats once a second: of ten thousand, fifty in each 5 ms.
        for n in (round as usize % 200..nodes.len()).step_by(200) {
            // The first one acknowledges the orders that came with the welcome.
            let statuses = std::mem::take(&mut acknowledgements[n]);
            let beat = Heartbeat { epoch: nodes[n].process_epoch, statuses, ..Heartbeat::default() };
            let message = Up { seq, body: UpBody::Heartbeat(beat) };
            let begun = Instant::now();
            let outputs = coordinator.handle(now, Input::Up { conn: ConnId(n as u64), message });
            worst = worst.max(begun.elapsed().as_secs_f64() * 1000.0);
            commit_all(&mut coordinator, outputs, now);
        }
        let begun = Instant::now();
        let outputs = coordinator.handle(now, Input::Tick);
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        (worst, total) = (worst.max(took), total + took);
        commit_all(&mut coordinator, outputs, now);
    }
    Idle { tick_mean: total / TICKS as f64, step_worst: worst }
}

fn hello(node: &Node, inventory: Vec<Inventory>) -> Hello {
    Hello {
        node: node.id.clone(),
        life: node.life,
        succeeds: None,
        roles: node.roles,
        labels: node.labels.clone(),
        capacity: node.capacity,
        host: node.host.clone(),
        api: node.api.clone(),
        rpc: String::new(),
        memory_caps: node.memory_caps.clone(),
        cluster: Some(model::ClusterId(1)),
        inventory,
        edge: EdgeReport::default(),
    }
}

/// What a node says that it has: everything as it was ordered.
fn inventory(cluster: &Cluster, node: NodeIx) -> Vec<Inventory> {
    let item = |instance: &Instance| Inventory {
        service: cluster.service(instance.service).map_or_else(|| "".into(), |entry| entry.rec.name.clone()),
        status: Status {
            instance: instance.id,
            number: 1,
            order: instance.order,
            actual: instance.actual,
            restarts: 0,
            pid: None,
            ports: Vec::new(),
            reason: None,
            message: None,
            exit: None,
            healthy_for: Some(Millis(1)),
        },
    };
    cluster.instances_on(node).map(item).collect()
}

/// A store that takes everything at once.
pub fn commit_all(coordinator: &mut Coordinator, outputs: Vec<Output>, now: Time) {
    let mut outputs = outputs;
    while outputs.iter().any(|output| matches!(output, Output::Transact { .. })) {
        outputs = coordinator.handle(now, Input::Stored(Stored::Committed));
    }
}
