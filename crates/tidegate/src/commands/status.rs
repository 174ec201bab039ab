//! `status`: what one wants to see at three in the morning, most worrying things last and in words.

use serde_json::{Value, json};
use server::view::{
    BackendsView, DrainStatusView, InstanceView, List, NodeView, ReasonView, ServiceView, StatusView,
};

use super::{Asker, drain, feed, instance, node, store, tables, volume};
use crate::{
    client::{encode, shape},
    failure::{Failure, Outcome},
    out,
    target::{self, Kind},
};

pub async fn status(asker: &Asker, text: Option<&str>) -> Outcome {
    let Some(text) = text else { return cluster(asker).await };
    match target::parse(text)? {
        (Some(Kind::Service), name) => service(asker, name).await,
        (Some(Kind::Node), name) => node::status(asker, name).await,
        (Some(Kind::Instance), name) => instance::status(asker, name).await,
        (Some(Kind::Volume), name) => volume::status(asker, name).await,
        (Some(Kind::Drain), name) => drain::status(asker, name).await,
        (Some(Kind::Feed), name) => feed::status(asker, name).await,
        (Some(Kind::Store), name) => store::status(asker, name).await,
        (Some(Kind::StoreGroup), name) => store::group_status(asker, name).await,
        (None, name) => bare(asker, name).await,
    }
}

/// A bare name: whatever has it, if one thing alone has.
async fn bare(asker: &Asker, name: &str) -> Outcome {
    let mut found = Vec::new();
    for kind in
        [Kind::Service, Kind::Feed, Kind::StoreGroup, Kind::Store, Kind::Node, Kind::Volume, Kind::Instance]
    {
        // Not everything that is a name can be the id of an instance; asking would be an error.
        if kind == Kind::Instance && name.parse::<model::InstanceId>().is_err() {
            continue;
        }
        if asker.client.find(&format!("/v1/{}s/{}", kind.as_str(), encode(name))).await?.is_some() {
            found.push(kind);
        }
    }
    match found.as_slice() {
        [] => {
            let kinds = "service, feed, store group, store, node, volume or instance";
            Err(Failure::error(format!("there is no {kinds} {name:?}")))
        }
        [Kind::Service] => service(asker, name).await,
        [Kind::Feed] => feed::status(asker, name).await,
        [Kind::StoreGroup] => store::group_status(asker, name).await,
        [Kind::Store] => store::status(asker, name).await,
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
    let cluster: StatusView = shape(&status)?;
    let nodes = shape::<List<NodeView>>(&asker.client.get("/v1/nodes").await?)?.items;
    let services = shape::<List<ServiceView>>(&asker.client.get("/v1/services").await?)?.items;
    out::line(format!(
        "cluster {}; coordinator {}, term {}",
        cluster.cluster, cluster.coordinator.id, cluster.coordinator.term
    ))?;
    let drains = drain::unfinished(asker).await?;
    let parts: Vec<&DrainStatusView> = drains.iter().flat_map(|drain| &drain.nodes).collect();
    let part_of = |node: &str| parts.iter().copied().find(|part| part.node == node);
    let about = |reason: &ReasonView| reason.unit.strip_prefix("node/").and_then(part_of);
    let said = |reason: &ReasonView| drain::besides(std::slice::from_ref(reason), about(reason));
    tables::reasons("cluster", &cluster.reasons.iter().flat_map(said).collect::<Vec<_>>())?;
    out::line("")?;
    tables::nodes(asker, &nodes)?;
    for node in &nodes {
        tables::reasons(&node.id, &drain::besides(&node.reasons, part_of(&node.id)))?;
    }
    for part in &parts {
        out::line(format!("  {}", drain::one_line(part)))?;
        drain::blockers(part, "    ")?;
    }
    out::line("")?;
    let feeds = feed::all(asker).await?;
    let groups = store::all_groups(asker).await?;
    if services.is_empty() && feeds.is_empty() && groups.is_empty() {
        return out::line("no services yet; run one with: tidegate apply FILE");
    }
    if !services.is_empty() {
        tables::services(asker, &services)?;
    }
    for service in &services {
        tables::reasons(&service.name, &service.reasons)?;
        rollout_failed(service)?;
    }
    if !feeds.is_empty() {
        if !services.is_empty() {
            out::line("")?;
        }
        feed::table(asker, &feeds)?;
        feeds.iter().try_for_each(feed::worries)?;
    }
    if !groups.is_empty() {
        if !services.is_empty() || !feeds.is_empty() {
            out::line("")?;
        }
        store::group_table(asker, &groups)?;
        groups.iter().try_for_each(store::group_worries)?;
    }
    Ok(())
}

/// A failed rollout is said in words, unless its reason is among the service's already.
fn rollout_failed(service: &ServiceView) -> Outcome {
    let rollout = &service.rollout;
    let code = rollout.reason.as_deref().unwrap_or("unknown");
    if rollout.state != "failed" || service.reasons.iter().any(|reason| reason.code == code) {
        return Ok(());
    }
    let message = rollout.message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
    out::line(format!(
        "  {}: release {} failed ({code}){message} — apply a better one; until then the last healthy release runs",
        service.name, rollout.release
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
    let service: ServiceView = shape(&answer)?;
    let instances = shape::<List<InstanceView>>(&instances)?.items;
    summary(&service)?;
    tables::reasons(&service.name, &service.reasons)?;
    rollout_failed(&service)?;
    if let Some(backends) = backends {
        print_backends(&shape(&backends)?)?;
    }
    out::line("")?;
    tables::instances(asker, &instances, false)?;
    for instance in instances.iter().filter(|instance| instance.desired == "running") {
        // Why an instance that does well was once started anew is in its own status.
        if instance.actual != "ready" {
            tables::reasons(&instance.id, &instance.reasons)?;
        }
    }
    Ok(())
}

fn summary(service: &ServiceView) -> Outcome {
    let spec = &service.spec;
    let removing = if service.removing { ", being removed" } else { "" };
    out::line(format!(
        "service/{}: {}, {}, release {} {}{removing}",
        service.name,
        service.state,
        tables::ready(service),
        service.release,
        service.rollout.state
    ))?;
    out::line(format!("  kind {}; command {}", service.kind, spec.command.join(" ")))?;
    let mut facts = vec![format!("memory {}", spec.memory), format!("cpu {}", spec.cpu)];
    if let Some(edge) = &spec.edge {
        facts.push(format!("edge :{} -> {}", edge.listen, edge.port));
    }
    if let Some(check) = &spec.check {
        facts.push(match (&check.http, &check.tcp) {
            (Some(path), _) => format!("check http {path}"),
            (None, Some(port)) => format!("check tcp {port}"),
            (None, None) => "check by command".to_owned(),
        });
    }
    if let Some(volume) = &spec.volume {
        facts.push(format!("volume {}", volume.name));
    }
    out::line(format!("  {}", facts.join("; ")))
}

fn print_backends(backends: &BackendsView) -> Outcome {
    let Some(listen) = backends.listen else { return Ok(()) };
    let list: Vec<&str> = backends.items.iter().map(|backend| backend.address.as_str()).collect();
    match list.is_empty() {
        true => out::line(format!("  backends of :{listen} none: connections wait or are refused")),
        false => out::line(format!("  backends of :{listen} {}", list.join(", "))),
    }
}
