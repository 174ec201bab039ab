//! Tables and lines that several commands share.

use model::units::format_bytes;

use super::Asker;
use crate::{
    failure::Outcome,
    out::{self, Columns, age, cell, or_dash, state},
    view::{Instance, Node, Reason, Service, Volume},
};

/// `64MiB/8GiB`.
pub fn of(used: u64, capacity: u64) -> String {
    format!("{}/{}", format_bytes(used), format_bytes(capacity))
}

pub fn nodes(asker: &Asker, nodes: &[Node]) -> Outcome {
    if nodes.is_empty() {
        return out::line("no nodes yet; a daemon registers when it starts (tidegate run --config FILE)");
    }
    let mut header = vec!["node", "state", "health", "memory", "cpu", "instances", "roles"];
    if asker.is_wide() {
        header.extend(["epoch", "address", "labels", "unclaimed"]);
    }
    let mut table = Columns::new(&header);
    for node in nodes {
        let roles = node.roles.iter().map(|role| match role.as_str() {
            // Which candidate decides is what one looks for in this column.
            "coordinator" if node.coordinator => "coordinator*",
            other => other,
        });
        let mut row = vec![
            cell(&node.id),
            state(&node.state),
            state(&node.health),
            cell(of(node.used.memory, node.capacity.memory)),
            cell(format!("{}/{}", node.used.cpu, node.capacity.cpu)),
            cell(node.counts.instances),
            cell(roles.collect::<Vec<_>>().join(",")),
        ];
        if asker.is_wide() {
            let labels: Vec<String> =
                node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            row.extend([
                cell(node.process_epoch),
                cell(or_dash(&node.address)),
                cell(or_dash(&labels.join(","))),
                cell(node.unclaimed.len()),
            ]);
        }
        table.row(row);
    }
    table.print()
}

pub fn services(asker: &Asker, services: &[Service]) -> Outcome {
    let mut header = vec!["service", "kind", "ready", "state", "release", "rollout"];
    if asker.is_wide() {
        header.extend(["memory", "edge", "command"]);
    }
    let mut table = Columns::new(&header);
    for service in services {
        let mut row = vec![
            cell(&service.name),
            cell(&service.kind),
            cell(format!("{}/{}", service.ready, service.count)),
            state(&service.state),
            cell(service.release),
            state(&service.rollout.state),
        ];
        if asker.is_wide() {
            let text = |pointer: &str| match service.spec.pointer(pointer) {
                None | Some(serde_json::Value::Null) => "-".to_owned(),
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            row.extend([cell(text("/memory")), cell(text("/edge/listen")), cell(command(service))]);
        }
        table.row(row);
    }
    table.print()
}

pub fn command(service: &Service) -> String {
    let parts = service.spec.get("command").and_then(serde_json::Value::as_array);
    let parts = parts.into_iter().flatten().filter_map(serde_json::Value::as_str);
    parts.collect::<Vec<_>>().join(" ")
}

pub fn instances(asker: &Asker, instances: &[Instance]) -> Outcome {
    let mut header = vec!["instance", "node", "release", "state", "age", "restarts", "why"];
    if asker.is_wide() {
        header.extend(["desired", "pid", "ports", "healthy", "replaces"]);
    }
    let mut table = Columns::new(&header);
    for instance in instances {
        // An instance on its way out is told as such, whatever it still does.
        let shown = match (instance.desired.as_str(), instance.actual.as_str()) {
            ("draining", "ready" | "unready" | "starting") => "draining",
            (_, actual) => actual,
        };
        let why = instance.reasons.first().map(|reason| reason.code.as_str()).unwrap_or_default();
        let mut row = vec![
            cell(&instance.id),
            cell(&instance.node),
            cell(instance.release),
            state(shown),
            cell(age(&instance.created_at)),
            cell(instance.restarts),
            cell(or_dash(why)),
        ];
        if asker.is_wide() {
            let ports: Vec<String> =
                instance.ports.iter().map(|(name, port)| format!("{name}={port}")).collect();
            row.extend([
                cell(&instance.desired),
                cell(instance.pid.map_or("-".to_owned(), |pid| pid.to_string())),
                cell(or_dash(&ports.join(","))),
                cell(age(&instance.healthy_since)),
                cell(or_dash(&instance.replaces)),
            ]);
        }
        table.row(row);
    }
    table.print()
}

pub fn volumes(asker: &Asker, volumes: &[Volume]) -> Outcome {
    let mut header = vec!["volume", "service", "node", "used by"];
    if asker.is_wide() {
        header.push("path");
    }
    let mut table = Columns::new(&header);
    for volume in volumes {
        let mut row = vec![
            cell(&volume.id),
            cell(or_dash(&volume.service)),
            cell(or_dash(&volume.node)),
            cell(or_dash(&volume.instance)),
        ];
        if asker.is_wide() {
            row.push(cell(or_dash(&volume.path)));
        }
        table.row(row);
    }
    table.print()
}

/// `web: no_capacity_memory: short by 96MiB for 2 instances (4m) — add nodes, …`.
pub fn reason_line(about: &str, reason: &Reason) -> String {
    // The unit says more than the thing that was asked about, if it is another one.
    let unit = reason.unit.split_once('/').map_or(reason.unit.as_str(), |(_, name)| name);
    let about = if unit.is_empty() { about } else { unit };
    let mut line = format!("{about}: {}", reason.code);
    if !reason.message.is_empty() {
        line.push_str(&format!(": {}", reason.message));
    }
    if !reason.since.is_empty() {
        line.push_str(&format!(" ({})", age(&reason.since)));
    }
    if !reason.hint.is_empty() {
        line.push_str(&format!(" — {}", reason.hint));
    }
    line
}

/// The reasons of one thing, indented below it.
pub fn reasons(about: &str, reasons: &[Reason]) -> Outcome {
    for reason in reasons {
        out::line(format!("  {}", reason_line(about, reason)))?;
    }
    Ok(())
}
