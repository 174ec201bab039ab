//! The coordinator at size: an idle tick among a million instances.

use std::time::Instant;

use model::{Change, Cluster, Instance, Millis, NodeIx, Term, Time};
use protocol::{
    Timing,
    coordinator::{ConnId, Coordinator, Input, Output, Start, Stored},
    message::{EdgeReport, Heartbeat, Hello, Inventory, Status, Up, UpBody},
};

use crate::report::{Bar, Report};

const TICKS: u64 = 2_000;

/// Ten thousand nodes that only send heartbeats: what the coordinator costs when nothing happens.
pub fn idle(report: &mut Report, cluster: Cluster) {
    let nodes: Vec<_> = cluster.nodes().map(|(_, node)| node.rec.clone()).collect();
    let mut inventories: Vec<Vec<Inventory>> =
        cluster.nodes().map(|(ix, _)| inventory(&cluster, ix)).collect();
    let second = |item: &Inventory| Status { number: 2, ..item.status.clone() };
    let mut acknowledgements: Vec<Vec<Status>> =
        inventories.iter().map(|items| items.iter().map(second).collect()).collect();
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
    let begun = Instant::now();
    let (mut coordinator, outputs) = Coordinator::new(start, Time(60_000));
    commit_all(&mut coordinator, outputs, Time(60_000));
    report.line("taking_office_warm_1m", begun.elapsed().as_secs_f64(), "s", Bar::None);
    let mut now = Time(60_000);
    coordinator.handle(now, Input::OfficeHolds { until: Time(u64::MAX) });
    for (n, node) in nodes.iter().enumerate() {
        let hello = Hello {
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
            inventory: std::mem::take(&mut inventories[n]),
            edge: EdgeReport::default(),
        };
        let message = Up { seq: 1, body: UpBody::Hello(hello) };
        let outputs = coordinator.handle(now, Input::Up { conn: ConnId(n as u64), message });
        commit_all(&mut coordinator, outputs, now);
    }
    let (mut worst, mut total, mut seq) = (0.0f64, 0.0, 1);
    for round in 0..TICKS {
        now = Time(now.0 + 5);
        if round % 200 == 0 {
            seq += 1;
        }
        // Every node beats once a second: fifty of them in each 5 ms.
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
    report.line("idle_tick_1m_instances_mean", total / TICKS as f64, "ms", Bar::AtMost(1.0));
    report.line("idle_step_1m_instances_worst", worst, "ms", Bar::None);
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

/// Everything placed is ready and acknowledged, and its rollout complete: nothing is left to decide.
pub fn settle_instances(cluster: &mut Cluster) {
    let instances: Vec<_> = cluster.instances().cloned().collect();
    for mut instance in instances {
        (instance.actual, instance.healthy_since) = (model::Actual::Ready, Some(Time(1)));
        cluster.apply(&Change::Instance(instance));
    }
    let services: Vec<_> = cluster.services().map(|(_, entry)| entry.rec.clone()).collect();
    for mut service in services {
        (service.rollout.state, service.healthy) = (model::RolloutState::Complete, Some(1));
        cluster.apply(&Change::Service(service));
    }
}

/// A store that takes everything at once.
pub fn commit_all(coordinator: &mut Coordinator, outputs: Vec<Output>, now: Time) {
    let mut outputs = outputs;
    while outputs.iter().any(|output| matches!(output, Output::Transact { .. })) {
        outputs = coordinator.handle(now, Input::Stored(Stored::Committed));
    }
}
