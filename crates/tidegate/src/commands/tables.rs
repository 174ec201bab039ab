//! Tables and lines that several commands share.

use model::units::format_bytes;

use server::view::{InstanceView, NodeView, ReasonView, ServiceView, VolumeView};

use super::Asker;
use crate::{
    failure::Outcome,
    out::{self, Columns, age, cell, or_dash, state},
};

/// `64MiB/8GiB`.
pub fn of(used: u64, capacity: u64) -> String {
    format!("{}/{}", format_bytes(used), format_bytes(capacity))
}

pub fn nodes(asker: &Asker, nodes: &[NodeView]) -> Outcome {
    if nodes.is_empty() {
        return out::line("no nodes yet; a daemon registers when it starts (tidegate run --config FILE)");
    }
    let mut header = vec!["node", "state", "health", "memory", "cpu", "instances", "roles"];
    if asker.is_wide() {
        header.extend(["epoch", "address", "labels", "maintainers", "dispatchers", "unclaimed"]);
    }
    let mut table = Columns::new(&header);
    for node in nodes {
        let roles = node.roles.iter().map(|role| match role.as_str() {
            // Which candidate decides is what one looks for in this column.
            "coordinator" if node.coordinator => "coordinator*",
            other => other,
        });
        // Others run nothing, whatever the machine has.
        let is_worker = node.roles.iter().any(|role| role == "worker");
        let mut row = vec![
            cell(&node.id),
            state(&node.state),
            state(&node.health),
            cell(if is_worker { of(node.used.memory, node.capacity.memory) } else { "-".to_owned() }),
            cell(if is_worker { format!("{}/{}", node.used.cpu, node.capacity.cpu) } else { "-".to_owned() }),
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
                cell(node.counts.maintainers),
                cell(node.counts.dispatchers),
                cell(node.unclaimed.len()),
            ]);
        }
        table.row(row);
    }
    table.print()
}

/// `3/4`; what a batch has finished counts.
pub fn ready(service: &ServiceView) -> String {
    match (service.kind.as_str(), service.complete) {
        ("batch", done) if done > 0 && service.ready == 0 => format!("{done}/{} complete", service.count),
        ("batch", done) if done > 0 => format!("{}+{done}/{} complete", service.ready, service.count),
        _ => format!("{}/{} ready", service.ready, service.count),
    }
}

pub fn services(asker: &Asker, services: &[ServiceView]) -> Outcome {
    let mut header = vec!["service", "kind", "instances", "state", "release", "rollout"];
    if asker.is_wide() {
        header.extend(["memory", "edge", "command"]);
    }
    let mut table = Columns::new(&header);
    for service in services {
        let mut row = vec![
            cell(&service.name),
            cell(&service.kind),
            cell(ready(service)),
            state(&service.state),
            cell(service.release),
            state(&service.rollout.state),
        ];
        if asker.is_wide() {
            let edge = service.spec.edge.as_ref().map_or("-".to_owned(), |edge| edge.listen.to_string());
            row.extend([cell(&service.spec.memory), cell(edge), cell(service.spec.command.join(" "))]);
        }
        table.row(row);
    }
    table.print()
}

/// Those that were told to stop and did are left out unless `all` are wanted: they are history. A
/// batch's are its results.
pub fn instances(asker: &Asker, instances: &[InstanceView], all: bool) -> Outcome {
    let is_shown =
        |instance: &InstanceView| all || instance.actual != "stopped" || instance.desired == "running";
    let (instances, hidden): (Vec<_>, Vec<_>) = instances.iter().partition(|instance| is_shown(instance));
    if !hidden.is_empty() {
        let n = hidden.len();
        out::note(format!(
            "{n} that stopped as they were told are not shown; see `tidegate instance list --all`"
        ));
    }
    if instances.is_empty() {
        return out::line("no instances");
    }
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
                cell(instance.healthy_since.as_deref().map_or("-".to_owned(), age)),
                cell(instance.replaces.as_deref().unwrap_or("-")),
            ]);
        }
        table.row(row);
    }
    table.print()
}

pub fn volumes(asker: &Asker, volumes: &[VolumeView]) -> Outcome {
    let mut header = vec!["volume", "service", "home", "used by", "age"];
    if asker.is_wide() {
        header.push("expected");
    }
    let mut table = Columns::new(&header);
    for volume in volumes {
        let mut row = vec![
            cell(&volume.id),
            cell(&volume.service),
            cell(&volume.home),
            cell(volume.attached_to.as_deref().unwrap_or("-")),
            cell(age(&volume.created_at)),
        ];
        if asker.is_wide() {
            row.push(cell(volume.expected));
        }
        table.row(row);
    }
    table.print()
}

/// `web: no_capacity_memory: short by 96MiB for 2 instances (4m) — add nodes, …`.
pub fn reason_line(about: &str, reason: &ReasonView) -> String {
    // The unit says more than the thing that was asked about, if it is another one.
    let unit = reason.unit.split_once('/').map_or(reason.unit.as_str(), |(_, name)| name);
    let about = if unit.is_empty() { about } else { unit };
    let mut line = format!("{about}: {}", reason.code);
    if !reason.message.is_empty() {
        line.push_str(&format!(": {}", reason.message));
    }
    if let Some(since) = &reason.since {
        line.push_str(&format!(" ({})", age(since)));
    }
    if !reason.hint.is_empty() {
        line.push_str(&format!(" — {}", reason.hint));
    }
    line
}

/// The reasons of one thing, indented below it.
pub fn reasons(about: &str, reasons: &[ReasonView]) -> Outcome {
    for reason in reasons {
        out::line(format!("  {}", reason_line(about, reason)))?;
    }
    Ok(())
}
