//! `status`: what one wants to see at three in the morning, most worrying things last and in words.

use serde_json::{Value, json};

use super::{Asker, instance, node, tables, volume};
use crate::{
    client::{encode, shape},
    failure::{Failure, Outcome},
    out,
    target::{self, Kind},
    view::{Cluster, Instance, Items, Node, Service},
};

pub async fn status(asker: &Asker, text: Option<&str>) -> Outcome {
    let Some(text) = text else { return cluster(asker).await };
    match target::parse(text)? {
        (Some(Kind::Service), name) => service(asker, name).await,
        (Some(Kind::Node), name) => node::status(asker, name).await,
        (Some(Kind::Instance), name) => instance::status(asker, name).await,
        (Some(Kind::Volume), name) => volume::status(asker, name).await,
        (None, name) => bare(asker, name).await,
    }
}

/// A bare name: whatever has it, if one thing alone has.
async fn bare(asker: &Asker, name: &str) -> Outcome {
    let mut found = Vec::new();
    for kind in [Kind::Service, Kind::Node, Kind::Volume, Kind::Instance] {
        // Not everything that is a name can be the id of an instance; asking would be an error.
        if kind == Kind::Instance && name.parse::<model::InstanceId>().is_err() {
            continue;
        }
        if asker.client.find(&format!("/v1/{}s/{}", kind.as_str(), encode(name))).await?.is_some() {
            found.push(kind);
        }
    }
    match found.as_slice() {
        [] => Err(Failure::error(format!("there is no service, node, volume or instance {name:?}"))),
        [Kind::Service] => service(asker, name).await,
        [Kind::Node] => node::status(asker, name).await,
        [Kind::Volume] => volume::status(asker, name).await,
        [Kind::Instance] => instance::status(asker, name).await,
        several => {
            let names: Vec<String> = several.iter().map(|kind| format!("{}/{name}", kind.as_str())).collect();
            Err(Failure::usage(format!("{name:?} may be {}: say which", names.join(" or "))))
        }
    }
}

async fn cluster(asker: &Asker) -> Outcome {
    let status = asker.client.get("/v1/status").await?;
    if asker.is_json() {
        return out::json(&status);
    }
    let cluster: Cluster = shape(&status)?;
    let nodes: Vec<Node> = shape::<Items<Node>>(&asker.client.get("/v1/nodes").await?)?.items;
    let services: Vec<Service> = shape::<Items<Service>>(&asker.client.get("/v1/services").await?)?.items;
    out::line(format!(
        "cluster {}; coordinator {}, term {}",
        out::or_dash(&cluster.cluster_id),
        if cluster.coordinator.is_empty() { "none" } else { &cluster.coordinator },
        cluster.term
    ))?;
    tables::reasons("cluster", &cluster.reasons)?;
    out::line("")?;
    tables::nodes(asker, &nodes)?;
    for node in &nodes {
        tables::reasons(&node.id, &node.reasons)?;
    }
    out::line("")?;
    if services.is_empty() {
        return out::line("no services yet; run one with: tidegate apply FILE");
    }
    tables::services(asker, &services)?;
    for service in &services {
        tables::reasons(&service.name, &service.reasons)?;
        rollout_failed(service)?;
    }
    Ok(())
}

/// A failed rollout is said in words, unless its reason is among the service's already.
fn rollout_failed(service: &Service) -> Outcome {
    let rollout = &service.rollout;
    if rollout.state != "failed" || service.reasons.iter().any(|reason| reason.code == rollout.reason) {
        return Ok(());
    }
    let message = if rollout.message.is_empty() { String::new() } else { format!(": {}", rollout.message) };
    out::line(format!(
        "  {}: release {} failed ({}){message} — apply a better one; until then the last healthy release runs",
        service.name, rollout.release, rollout.reason
    ))
}

async fn service(asker: &Asker, name: &str) -> Outcome {
    let path = format!("/v1/services/{}", encode(name));
    let answer = asker.client.get(&path).await?;
    let instances = asker.client.get(&format!("{path}/instances")).await?;
    let backends = asker.client.find(&format!("{path}/backends")).await?;
    if asker.is_json() {
        let mut whole = answer;
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("instances".to_owned(), instances.get("items").cloned().unwrap_or_default());
            fields.insert("backends".to_owned(), backends.map_or(Value::Null, |list| json!(list)));
        }
        return out::json(&whole);
    }
    let service: Service = shape(&answer)?;
    let instances: Vec<Instance> = shape::<Items<Instance>>(&instances)?.items;
    summary(&service)?;
    tables::reasons(&service.name, &service.reasons)?;
    rollout_failed(&service)?;
    if let Some(backends) = backends {
        print_backends(&backends)?;
    }
    if instances.is_empty() {
        return out::line("  no instances");
    }
    out::line("")?;
    tables::instances(asker, &instances)?;
    for instance in &instances {
        tables::reasons(&instance.id, &instance.reasons)?;
    }
    Ok(())
}

fn summary(service: &Service) -> Outcome {
    let spec = |pointer: &str| match service.spec.pointer(pointer) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    };
    out::line(format!(
        "service/{}: {}, {}/{} ready, release {} {}",
        service.name, service.state, service.ready, service.count, service.release, service.rollout.state
    ))?;
    out::line(format!("  kind {}; command {}", service.kind, tables::command(service)))?;
    let mut facts = vec![
        format!("memory {}", spec("/memory").unwrap_or_default()),
        format!("cpu {}", spec("/cpu").unwrap_or_default()),
    ];
    if let (Some(listen), Some(port)) = (spec("/edge/listen"), spec("/edge/port")) {
        facts.push(format!("edge :{listen} -> {port}"));
    }
    if let Some(path) = spec("/check/http") {
        facts.push(format!("check http {path}"));
    } else if let Some(port) = spec("/check/tcp") {
        facts.push(format!("check tcp {port}"));
    } else if spec("/check/command").is_some() {
        facts.push("check by command".to_owned());
    }
    if let Some(volume) = spec("/volume/name") {
        facts.push(format!("volume {volume}"));
    }
    out::line(format!("  {}", facts.join("; ")))
}

fn print_backends(backends: &Value) -> Outcome {
    let items = backends.get("items").or_else(|| backends.get("backends")).and_then(Value::as_array);
    let Some(items) = items else { return Ok(()) };
    let address = |item: &Value| -> String {
        let text = |key: &str| item.get(key).and_then(Value::as_str).map(str::to_owned);
        item.as_str().map(str::to_owned).or_else(|| text("address")).or_else(|| text("addr")).unwrap_or_else(
            || {
                let host = text("host").unwrap_or_default();
                format!("{host}:{}", item.get("port").map(Value::to_string).unwrap_or_default())
            },
        )
    };
    let list: Vec<String> = items.iter().map(address).collect();
    match list.is_empty() {
        true => out::line("  backends none: connections to the edge are refused"),
        false => out::line(format!("  backends {}", list.join(", "))),
    }
}
