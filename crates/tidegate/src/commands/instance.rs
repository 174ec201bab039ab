//! `instance …`.

use reqwest::Method;
use server::view::{InstanceView, List};

use super::{Asker, tables};
use crate::{
    client::{encode, shape},
    failure::{Failure, Outcome},
    out, target,
};

pub async fn list(asker: &Asker, service: Option<String>, node: Option<String>, all: bool) -> Outcome {
    let mut query = Vec::new();
    if let Some(service) = &service {
        query.push(format!("service={}", encode(target::expect(target::Kind::Service, service)?)));
    }
    if let Some(node) = &node {
        query.push(format!("node={}", encode(target::expect(target::Kind::Node, node)?)));
    }
    let answer = asker.client.get(&format!("/v1/instances?{}", query.join("&"))).await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    tables::instances(asker, &shape::<List<InstanceView>>(&answer)?.items, all)
}

pub async fn status(asker: &Asker, id: &str) -> Outcome {
    let answer = asker.client.get(&format!("/v1/instances/{}", encode(id))).await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let instance: InstanceView = shape(&answer)?;
    let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    let ports: Vec<String> = instance.ports.iter().map(|(name, port)| format!("{name}={port}")).collect();
    out::line(format!("instance/{}: {} (wanted: {})", instance.id, instance.actual, instance.desired))?;
    out::line(format!(
        "  service {}, release {}, on {}; created {} ago",
        instance.service,
        instance.release,
        instance.node,
        out::age(&instance.created_at)
    ))?;
    out::line(format!(
        "  pid {}; ports {}; restarts {}; healthy for {}",
        or_none(instance.pid.map(|pid| pid.to_string()).unwrap_or_default()),
        or_none(ports.join(", ")),
        instance.restarts,
        instance.healthy_since.as_deref().map_or("0s".to_owned(), out::age)
    ))?;
    if let Some(old) = &instance.replaces {
        out::line(format!("  replaces {old}"))?;
    }
    if let (Some(exit), Some(ended)) = (instance.exit, &instance.ended_at) {
        let how = match (exit.code, exit.signal) {
            (Some(code), _) => format!("with code {code}"),
            (None, Some(signal)) => format!("by signal {signal}"),
            (None, None) => "unseen".to_owned(),
        };
        out::line(format!("  ended {how}, {} ago", out::age(ended)))?;
    }
    tables::reasons(&instance.id, &instance.reasons)
}

pub async fn logs(asker: &Asker, text: &str, follow: bool, lines: u32) -> Outcome {
    let id = target::expect(target::Kind::Instance, text)?;
    let path = format!("/v1/instances/{}/logs?lines={lines}&follow={follow}", encode(id));
    let mut response = asker.client.stream(&path, None).await?;
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => out::bytes(&chunk)?,
            Ok(None) => return Ok(()),
            Err(error) => return Err(Failure::error(format!("the log of {id} broke off: {error}"))),
        }
    }
}

pub async fn stop(asker: &Asker, text: &str) -> Outcome {
    let id = target::expect(target::Kind::Instance, text)?;
    let path = format!("/v1/instances/{}", encode(id));
    let answer = asker.client.call(Method::DELETE, &path, None).await?;
    asker.done(&answer, format!("{id} is stopping; its service starts another in its place"))
}
