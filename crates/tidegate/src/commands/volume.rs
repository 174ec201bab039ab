//! `volume …`.

use reqwest::Method;
use serde_json::json;

use super::{Asker, tables};
use crate::{
    client::{encode, shape},
    failure::Outcome,
    out, target,
    view::{Items, Volume},
};

pub async fn list(asker: &Asker) -> Outcome {
    let answer = asker.client.get("/v1/volumes").await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let volumes = shape::<Items<Volume>>(&answer)?.items;
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
    let volume: Volume = shape(&answer)?;
    out::line(format!(
        "volume/{}: on {}, used by {}",
        volume.id,
        out::or_dash(&volume.node),
        if volume.instance.is_empty() { "nobody" } else { &volume.instance }
    ))?;
    if !volume.path.is_empty() {
        out::line(format!("  path {}", volume.path))?;
    }
    Ok(())
}

pub async fn attach(asker: &Asker, text: &str, node: &str) -> Outcome {
    let volume = target::expect(target::Kind::Volume, text)?;
    let node = target::expect(target::Kind::Node, node)?;
    let path = format!("/v1/volumes/{}/home", encode(volume));
    let answer = asker.client.call(Method::PUT, &path, Some(json!({ "node": node }))).await?;
    asker.done(&answer, format!("{volume} is at home on {node}"))
}
