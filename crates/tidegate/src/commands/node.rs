//! `node …`.

use reqwest::Method;
use serde_json::json;
use server::view::{DrainStatusView, InstanceView, List, NodeView};

use super::{Asker, drain, tables};
use crate::{
    client::{encode, shape},
    failure::Outcome,
    out, target,
};

pub async fn list(asker: &Asker) -> Outcome {
    let answer = asker.client.get("/v1/nodes").await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    tables::nodes(asker, &shape::<List<NodeView>>(&answer)?.items)
}

pub async fn status(asker: &Asker, name: &str) -> Outcome {
    let mut answer = asker.client.get(&format!("/v1/nodes/{}", encode(name))).await?;
    let part = asker.client.find(&format!("/v1/nodes/{}/drain", encode(name))).await?;
    if asker.is_json() {
        if let Some(fields) = answer.as_object_mut() {
            fields.insert("drain".to_owned(), json!(part));
        }
        return out::json(&answer);
    }
    let node: NodeView = shape(&answer)?;
    let labels: Vec<String> = node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    out::line(format!("node/{}: {}, {}", node.id, node.state, node.health))?;
    out::line(format!(
        "  roles {}; address {}; process epoch {}",
        node.roles.join(", "),
        out::or_dash(&node.address),
        node.process_epoch
    ))?;
    out::line(format!(
        "  memory {}; cpu {}/{}; labels {}",
        tables::of(node.used.memory, node.capacity.memory),
        node.used.cpu,
        node.capacity.cpu,
        out::or_dash(&labels.join(", "))
    ))?;
    if node.counts.maintainers + node.counts.dispatchers > 0 {
        let (maintainers, dispatchers) = (node.counts.maintainers, node.counts.dispatchers);
        out::line(format!("  feeds: maintainers {maintainers}, dispatchers {dispatchers}"))?;
    }
    if !node.unclaimed.is_empty() {
        let n = node.unclaimed.len();
        out::line(format!(
            "  {n} unclaimed: they run there, this cluster does not know them, and leaves them"
        ))?;
    }
    let part: Option<DrainStatusView> = part.as_ref().map(shape).transpose()?;
    tables::reasons(&node.id, &drain::besides(&node.reasons, part.as_ref()))?;
    if let Some(part) = &part {
        out::line("")?;
        drain::node_part(part)?;
    }
    let answer = asker.client.get(&format!("/v1/instances?node={}", encode(name))).await?;
    let instances = shape::<List<InstanceView>>(&answer)?.items;
    out::line("")?;
    tables::instances(asker, &instances, false)
}

pub async fn set_intent(asker: &Asker, text: &str, intent: &str) -> Outcome {
    let name = target::expect(target::Kind::Node, text)?;
    let path = format!("/v1/nodes/{}/intent", encode(name));
    let answer = asker.client.call(Method::PUT, &path, Some(json!({ "intent": intent }))).await?;
    asker.done(
        &answer,
        match intent {
            "active" => format!("{name} is active: it takes work"),
            _ => format!("{name} is disabled: its instances are replaced elsewhere and stopped"),
        },
    )
}

pub async fn confirm_dead(asker: &Asker, text: &str) -> Outcome {
    let name = target::expect(target::Kind::Node, text)?;
    let path = format!("/v1/nodes/{}/confirm-dead", encode(name));
    let answer = asker.client.call(Method::POST, &path, None).await?;
    asker.done(&answer, format!("{name} is taken for dead: what ran there may start elsewhere"))
}
