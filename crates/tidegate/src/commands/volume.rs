//! `volume …`.

use reqwest::Method;
use serde_json::json;
use server::view::{List, VolumeView};

use super::{Asker, tables};
use crate::{
    client::{encode, shape},
    failure::Outcome,
    out, target,
};

pub async fn list(asker: &Asker) -> Outcome {
    let answer = asker.client.get("/v1/volumes").await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let volumes = shape::<List<VolumeView>>(&answer)?.items;
    if volumes.is_empty() {
        return out::line("no volumes");
    }
    tables::volumes(asker, &volumes)
}

pub async fn status(asker: &Asker, id: &str) -> Outcome {
    let answer = asker.client.get(&format!("/v1/volumes/{}", encode(id))).await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let volume: VolumeView = shape(&answer)?;
    out::line(format!(
        "volume/{}: on {}, used by {}",
        volume.id,
        volume.home,
        volume.attached_to.as_deref().unwrap_or("nobody")
    ))?;
    out::line(format!(
        "  volume {:?} of service {}, place {}; created {} ago",
        volume.name,
        volume.service,
        volume.slot,
        out::age(&volume.created_at)
    ))
}

pub async fn attach(asker: &Asker, text: &str, node: &str) -> Outcome {
    let volume = target::expect(target::Kind::Volume, text)?;
    let node = target::expect(target::Kind::Node, node)?;
    let path = format!("/v1/volumes/{}/home", encode(volume));
    let answer = asker.client.call(Method::PUT, &path, Some(json!({ "node": node }))).await?;
    asker.done(&answer, format!("{volume} is at home on {node}"))
}
