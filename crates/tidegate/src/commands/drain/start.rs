//! `node drain`: asks for it, makes sure that it holds, and follows it.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use server::view::{DrainStatusView, DrainView, DrainsBody, NodeView};

use super::{super::Asker, follow, is_over, options, plan};
use crate::{
    cli::DrainArgs,
    client::{encode, shape},
    failure::{Failure, Outcome},
    out, target,
};

/// A node is closed by the same write that accepts its drain; another coordinator may answer a moment
/// later than that.
const CLOSED_LOOKS: u32 = 6;
const CLOSED_PAUSE: Duration = Duration::from_millis(500);

pub async fn start(asker: &Asker, args: DrainArgs) -> Outcome {
    let mut nodes: Vec<String> = Vec::new();
    for text in &args.nodes {
        let node = target::expect(target::Kind::Node, text)?;
        if !nodes.iter().any(|known| known == node) {
            nodes.push(node.to_owned());
        }
    }
    let selector = options::selector(&args)?;
    let body = options::body(&args);
    if args.plan {
        return plan::preview(asker, DrainsBody { nodes, selector, options: body }).await;
    }
    let named = if nodes.is_empty() { "these nodes".to_owned() } else { nodes.join(", ") };
    options::confirm(&args, &named)?;
    let (epoch, parts, answer) = match nodes.as_slice() {
        [node] => one(asker, node, json!(body)).await?,
        _ => several(asker, DrainsBody { nodes, selector, options: body }).await?,
    };
    for part in &parts {
        closed(asker, epoch, part).await?;
    }
    let names: Vec<&str> = parts.iter().map(|part| part.node.as_str()).collect();
    let them = names.join(", ");
    let noun = if names.len() == 1 { "is closed" } else { "are closed" };
    if args.detach {
        return asker.done(
            &answer,
            format!(
                "drain {epoch}: {them} {noun}; see: tidegate drain status {epoch}, cancel: tidegate drain cancel {epoch}"
            ),
        );
    }
    out::note(format!("drain {epoch}: {them} {noun}: nothing new is placed there"));
    let names = names.into_iter().map(str::to_owned).collect();
    follow::follow(asker, epoch, names).await
}

type Accepted = (u64, Vec<DrainStatusView>, Value);

async fn one(asker: &Asker, node: &str, body: Value) -> Outcome<Accepted> {
    let path = format!("/v1/nodes/{}/drain", encode(node));
    let answer = asker.client.call(Method::PUT, &path, Some(body)).await?;
    let part: DrainStatusView = shape(&answer)?;
    Ok((part.epoch, vec![part], answer))
}

async fn several(asker: &Asker, body: DrainsBody) -> Outcome<Accepted> {
    let answer = asker.client.call(Method::POST, "/v1/drains", Some(json!(body))).await?;
    let drain: DrainView = shape(&answer)?;
    Ok((drain.epoch, drain.nodes, answer))
}

/// Accepted is not enough to say that it began: the node itself must be seen closed.
async fn closed(asker: &Asker, epoch: u64, part: &DrainStatusView) -> Outcome {
    if is_over(part) {
        return Ok(());
    }
    let name = &part.node;
    for look in 0..CLOSED_LOOKS {
        if look > 0 {
            tokio::time::sleep(CLOSED_PAUSE).await;
        }
        let answer = asker.client.get(&format!("/v1/nodes/{}", encode(name))).await?;
        if shape::<NodeView>(&answer)?.state != "active" {
            return Ok(());
        }
        // Open again, because somebody has cancelled it meanwhile: the ending will tell.
        let answer = asker.client.get(&format!("/v1/drains/{epoch}")).await?;
        let drain: DrainView = shape(&answer)?;
        if drain.nodes.iter().any(|part| part.node == *name && is_over(part)) {
            return Ok(());
        }
    }
    Err(Failure::error(format!(
        "drain {epoch} was accepted, and {name} still takes work; do not touch the machine, see: tidegate drain status {epoch}"
    )))
}
