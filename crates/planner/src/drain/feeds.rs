//! What remains of feeds on a node that drains, and what a drain would do to them.

use std::collections::BTreeMap;

use model::{Cluster, Code, DrainNode, DrainState, Feed, FeedName, NodeId, NodeIx, Reason, Time};

use super::preview::Move;
use crate::feeds::has_destination;

/// Feeds on a node, as its part of a drain sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedsLeft {
    pub maintainers: u32,
    /// By the node's own inventory.
    pub dispatchers: BTreeMap<FeedName, u32>,
    /// The node has not said what it runs since it was closed: there may be more.
    pub unknown: bool,
}

/// Why a maintainer is not where it should be, and since when.
pub type FeedWait = (Code, String, Time);

/// How many dispatchers nobody else can make ready, and why.
pub type FeedStuck = (u32, Code, String);

/// What the coordinator knows of feeds beside the records.
pub struct SeenFeeds<'a> {
    /// What the node says it runs; `None`: it has not acknowledged the closed set.
    pub dispatchers: Option<&'a BTreeMap<FeedName, u32>>,
    /// What it said last, acknowledged or not: for display.
    pub last_said: Option<&'a BTreeMap<FeedName, u32>>,
    pub wait: &'a dyn Fn(&FeedName) -> Option<FeedWait>,
    /// How many of a feed's dispatchers here nobody else can make ready, and why.
    pub stuck: &'a dyn Fn(&FeedName) -> Option<FeedStuck>,
}

/// What is left, and what each feed waits for.
pub(super) fn left(cluster: &Cluster, part: &DrainNode, seen: &SeenFeeds<'_>) -> (FeedsLeft, Vec<Reason>) {
    let mut waits = Vec::new();
    let queued = part.state == DrainState::Queued;
    for name in cluster.maintainers_on(&part.node) {
        let Some(feed) = cluster.feed(name.as_str()) else { continue };
        let (code, message, since) = match (seen.wait)(name) {
            _ if queued => (Code::DrainQueued, "its node waits for its turn".to_owned(), None),
            Some((code, message, since)) => (code, message, Some(since)),
            None => maintainer_waits(feed, &part.node),
        };
        waits.push(Reason { code, unit: format!("maintainer/{name}"), since, message });
    }
    let counts = seen.dispatchers.or(seen.last_said).cloned().unwrap_or_default();
    for (name, count) in counts.iter().filter(|(_, count)| **count > 0) {
        let some = plural(*count, "dispatcher");
        let nowhere = cluster.feed(name.as_str()).is_some_and(|feed| !has_destination(cluster, feed));
        let (code, message) = match (queued, nowhere, (seen.stuck)(name)) {
            (true, _, _) => (Code::DrainQueued, "its node waits for its turn".to_owned()),
            (false, true, _) => (Code::NoEligibleNode, format!("no open node may take {some} of it")),
            (false, false, Some((stuck, code, why))) => {
                (code, format!("{stuck} of {some} cannot be made ready elsewhere; {why}"))
            }
            (false, false, None) => (Code::DispatchersMoving, format!("{some} left")),
        };
        waits.push(Reason { code, unit: format!("feed/{name}"), since: part.started_at, message });
    }
    let unknown = seen.dispatchers.is_none();
    if unknown && cluster.feeds().next().is_some() {
        let message = "it has not said which dispatchers it runs since it was closed".to_owned();
        let (unit, since) = (format!("node/{}", part.node), part.started_at);
        waits.push(Reason { code: Code::NodeUnreachable, unit, since, message });
    }
    let maintainers = cluster.maintainer_count(&part.node) as u32;
    (FeedsLeft { maintainers, dispatchers: counts, unknown }, waits)
}

/// What of feeds is on a node, if none of it has anywhere to go: no open node may take it, or each has failed to
/// make it ready. A maintainer that is on its way to another node has: the hand-over is waited for.
pub(super) fn stranded(
    cluster: &Cluster,
    node: &NodeId,
    dispatchers: &BTreeMap<FeedName, u32>,
    stuck: &BTreeMap<FeedName, (u32, Code)>,
) -> Option<Vec<(String, Code)>> {
    let stays = |name: &FeedName| {
        let feed = cluster.feed(name.as_str());
        feed.is_none_or(|feed| !has_destination(cluster, feed))
    };
    let is_here = |name: &FeedName| {
        let maintainer = cluster.feed(name.as_str()).and_then(|feed| feed.maintainer.as_ref());
        maintainer.is_some_and(|maintainer| maintainer.node == *node)
    };
    let mut left = Vec::new();
    for name in cluster.maintainers_on(node) {
        if !(is_here(name) && stays(name)) {
            return None;
        }
        left.push((format!("maintainer/{name}"), Code::NoEligibleNode));
    }
    for (name, count) in dispatchers.iter().filter(|(_, count)| **count > 0) {
        let code = match (stays(name), stuck.get(name)) {
            (true, _) => Code::NoEligibleNode,
            (false, Some((stuck, code))) if stuck >= count => *code,
            (false, Some(_) | None) => return None,
        };
        left.push((format!("feed/{name}"), code));
    }
    Some(left)
}

/// `1 dispatcher`, `2 dispatchers`.
fn plural(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn maintainer_waits(feed: &Feed, node: &NodeId) -> (Code, String, Option<Time>) {
    let Some(maintainer) = &feed.maintainer else {
        return (Code::MaintainerMoving, "it is being placed".to_owned(), None);
    };
    let since = Some(maintainer.since);
    match maintainer.from.as_ref().filter(|origin| origin.node == *node) {
        Some(_) => {
            let message =
                format!("{} takes over once this one has confirmed that it stopped", maintainer.node);
            (Code::MaintainerUnconfirmed, message, since)
        }
        None => (Code::MaintainerMoving, "it is to be handed over".to_owned(), since),
    }
}

/// Maintainers of the nodes that would be open, while several are played through one after the other.
pub struct Loads(BTreeMap<NodeId, usize>);

impl Loads {
    pub fn without(cluster: &Cluster, closed: &[NodeIx]) -> Loads {
        let open = cluster.nodes().filter(|(ix, entry)| entry.may_place() && !closed.contains(ix));
        Loads(
            open.map(|(_, entry)| (entry.rec.id.clone(), cluster.maintainer_count(&entry.rec.id))).collect(),
        )
    }
}

/// Where the maintainers of a node would go, a batch after the other, and how many dispatchers follow.
/// Those are placed by their maintainers, one by one; who gets how many is not foreseen here.
pub fn preview_feeds(
    cluster: &Cluster,
    node: NodeIx,
    loads: &mut Loads,
    batch: u32,
    dispatchers: Option<&BTreeMap<FeedName, u32>>,
) -> (Vec<Move>, Vec<Reason>) {
    let id = &cluster.node(node).rec.id;
    let (mut moves, mut waits) = (Vec::new(), Vec::new());
    for name in cluster.maintainers_on(id) {
        let Some(feed) = cluster.feed(name.as_str()) else { continue };
        // One that is on its way to another node need not go anywhere else.
        if feed.maintainer.as_ref().is_none_or(|maintainer| maintainer.node != *id) {
            continue;
        }
        let may = |to: &NodeId| {
            cluster.node_by_id(to.as_str()).is_some_and(|entry| entry.rec.satisfies(&feed.spec.constraints))
        };
        let open = loads.0.iter_mut().filter(|(to, _)| may(to));
        let unit = format!("maintainer/{name}");
        match open.min_by_key(|(to, count)| (**count, (*to).clone())) {
            Some((to, count)) => {
                *count += 1;
                let wave = 1 + moves.len() as u32 / batch.max(1);
                moves.push(Move { unit, to: Some(to.to_string()), wave });
            }
            None => {
                let message = "no other open node may maintain it".to_owned();
                waits.push(Reason { code: Code::NoEligibleNode, unit, since: None, message });
            }
        }
    }
    for (name, count) in dispatchers.into_iter().flatten().filter(|(_, count)| **count > 0) {
        let (some, follow) = (plural(*count, "dispatcher"), if *count == 1 { "follows" } else { "follow" });
        let message = format!("{some} {follow} their maintainer's plan to the other nodes");
        let unit = format!("feed/{name}");
        waits.push(Reason { code: Code::DispatchersMoving, unit, since: None, message });
    }
    (moves, waits)
}
