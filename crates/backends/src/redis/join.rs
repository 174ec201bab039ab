//! A process that is in no cluster yet joins the one that its group is.
//!
//! It becomes a replica of the primary that has the fewest: the number of primaries is for people to decide, and a
//! replica can take over from one that leaves without a slot being moved.

use std::time::Duration;

use tokio::time::sleep;

use crate::contract::StoreId;
use crate::error::BackendError;
use crate::redis::link::{Link, Session};
use crate::redis::view::{self, Node};

const JOIN_POLL: Duration = Duration::from_millis(50);

/// `link` is to the process. Nothing is done unless it is empty and leads nothing, and the others are a cluster: one
/// without slots is for people to make. A call that is cut off is made again.
pub async fn join(session: &Session, link: &Link, store: &StoreId) -> Result<(), BackendError> {
    let own = view::parse(&link.text(redis::cmd("CLUSTER").arg("NODES")).await?);
    let Some(me) = own.get(store) else { return Ok(()) };
    let others: Vec<&Node> =
        session.survey.nodes().filter(|node| node.id != *store && node.healthy).collect();
    let leads = |node: &&Node| node.replica_of.is_none() && !session.survey.slots_of(&node.id).is_empty();
    let followers = |id: &StoreId| others.iter().filter(|node| node.replica_of.as_ref() == Some(id)).count();
    let primaries = others.iter().copied().filter(leads);
    let Some(primary) = primaries.min_by_key(|node| (followers(&node.id), &node.id)) else { return Ok(()) };
    let is_fresh = me.replica_of.is_none() && me.slots.is_empty();
    if !is_fresh || has_keys(link).await? {
        return Ok(());
    }
    if !session.survey.is_known(store) {
        // One that knows others belongs to another cluster.
        let (1, Some((host, port))) = (own.len(), link.address.rsplit_once(':')) else { return Ok(()) };
        let mut meet = redis::cmd("CLUSTER");
        meet.arg("MEET").arg(host).arg(port).arg(&me.bus);
        session.link(&primary.id)?.one(&meet).await?;
    }
    while !view::parse(&link.text(redis::cmd("CLUSTER").arg("NODES")).await?).contains_key(&primary.id) {
        sleep(JOIN_POLL).await;
    }
    link.one(redis::cmd("CLUSTER").arg("REPLICATE").arg(&primary.id.0)).await.map(|_| ())
}

async fn has_keys(link: &Link) -> Result<bool, BackendError> {
    let keys = link.one(&redis::cmd("DBSIZE")).await?;
    Ok(keys != redis::Value::Int(0))
}
