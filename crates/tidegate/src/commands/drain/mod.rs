//! `node drain`, `node cancel`, `drain …`.

mod follow;
mod frame;
mod lines;
mod options;
mod plan;
mod print;
mod start;
mod tally;

use reqwest::Method;
use server::view::{DrainStatusView, DrainView, List};

use super::Asker;
use crate::{
    client::{encode, shape},
    failure::{Failure, Outcome},
    out, target,
};

pub use print::{besides, blockers, node_part, one_line};
pub use start::start;

pub async fn list(asker: &Asker) -> Outcome {
    let answer = asker.client.get("/v1/drains").await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    print::table(asker, shape::<List<DrainView>>(&answer)?.items)
}

pub async fn status(asker: &Asker, text: &str) -> Outcome {
    let epoch = epoch(text)?;
    let answer = asker.client.get(&format!("/v1/drains/{epoch}")).await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    print::whole(&shape::<DrainView>(&answer)?)
}

pub async fn cancel(asker: &Asker, text: &str) -> Outcome {
    let epoch = epoch(text)?;
    let answer = asker.client.call(Method::DELETE, &format!("/v1/drains/{epoch}"), None).await?;
    asker.done(&answer, format!("drain {epoch} is cancelled: its nodes take work again"))
}

pub async fn cancel_node(asker: &Asker, text: &str) -> Outcome {
    let node = target::expect(target::Kind::Node, text)?;
    let path = format!("/v1/nodes/{}/drain", encode(node));
    let answer = asker.client.call(Method::DELETE, &path, None).await?;
    asker.done(&answer, format!("{node} is out of its drain and takes work again"))
}

/// Those that have not ended.
pub async fn unfinished(asker: &Asker) -> Outcome<Vec<DrainView>> {
    let drains = shape::<List<DrainView>>(&asker.client.get("/v1/drains").await?)?.items;
    Ok(drains.into_iter().filter(|drain| !drain.nodes.iter().all(is_over)).collect())
}

fn is_over(part: &DrainStatusView) -> bool {
    !matches!(part.state.as_str(), "queued" | "draining")
}

fn epoch(text: &str) -> Outcome<u64> {
    let number = target::expect(target::Kind::Drain, text)?;
    number.parse().map_err(|_| {
        Failure::usage(format!("{text:?} is not the number of a drain; see `tidegate drain list`"))
    })
}
