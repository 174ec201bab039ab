//! Whose turn it is, whose time is over, and who is done.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Change, Cluster, Code, Drain, DrainNode, DrainState, Ending, FeedName, Instance, InstanceId, Intent,
    Millis, Node, NodeEntry, NodeIx, ServiceIx, Then, Time, Txn,
};

use super::{
    feeds::stranded,
    leave::{Class, class_of, class_of_release},
    stores::unit_of,
};
use crate::{
    scratch,
    stores::{Process, left_code, process_of},
};

/// Deadlines that fall within this of the first of them are acted on together, at the last of them: one
/// plan sees everything that must go. None is acted on early, and none later than this.
pub const DEADLINE_WINDOW: Millis = Millis::secs(5);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Nodes that drain at a time; the others wait, closed, so that nothing hops from one to the next.
    pub nodes_at_once: u32,
    /// Without progress for this long, a drain says that it is stalled.
    pub stall_after: Millis,
    /// Of a drain that names none; `None` for none.
    pub default_deadline: Option<Millis>,
    /// Moves that give an open node its share back, at a time.
    pub balance_moves: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            nodes_at_once: 1,
            stall_after: Millis::secs(120),
            default_deadline: Some(Millis::secs(3600)),
            balance_moves: 2,
        }
    }
}

/// What is seen beside the records.
#[derive(Clone, Debug)]
pub struct Facts {
    pub edges: Edges,
    pub dispatchers: Dispatchers,
    /// How many of them every node that might take them has failed to make ready, and why.
    pub stuck: BTreeMap<NodeIx, BTreeMap<FeedName, (u32, Code)>>,
    /// No turn comes, no time is over and no edge is told to leave; what is on its way arrives.
    pub paused: bool,
}

/// Which edges have withdrawn.
#[derive(Clone, Debug)]
pub enum Edges {
    /// Every one, as soon as it is told to: the drain is only played through.
    Assumed,
    /// These have said so, each for the sake of this drain.
    Seen(BTreeSet<(NodeIx, u64)>),
}

/// How many dispatchers nodes have of each feed.
#[derive(Clone, Debug)]
pub enum Dispatchers {
    /// None, anywhere: the drain is only played through.
    Assumed,
    /// By the node's own inventory. One that is not named has not acknowledged the closed set, or is
    /// silent: nobody knows.
    Seen(BTreeMap<NodeIx, BTreeMap<FeedName, u32>>),
}

impl Facts {
    /// `None`: unknown, which is never zero.
    fn dispatchers_on(&self, node: NodeIx) -> Option<&BTreeMap<FeedName, u32>> {
        match &self.dispatchers {
            Dispatchers::Assumed => Some(const { &BTreeMap::new() }),
            Dispatchers::Seen(counts) => counts.get(&node),
        }
    }

    fn has_withdrawn(&self, node: NodeIx, drain: u64) -> bool {
        match &self.edges {
            Edges::Assumed => true,
            Edges::Seen(gone) => gone.contains(&(node, drain)),
        }
    }
}

/// For whose sake the edge of this node is to be away: the last that leaves a draining node, and it stays
/// away for as long as the node is out.
pub fn edge_leaves_for(cluster: &Cluster, node: NodeIx) -> Option<u64> {
    let entry = cluster.node(node);
    if !entry.rec.roles.edge || entry.rec.foreign || !entry.is_closed() {
        return None;
    }
    let out = matches!(entry.rec.intent, Intent::Drained | Intent::Stopping);
    let last = cluster.last_drain_of(entry.rec.id.as_str());
    let part = last.and_then(|drain| drain.part(entry.rec.id.as_str()));
    let told = part.is_some_and(|part| part.ending().is_none() && part.withdrawing_since.is_some());
    (out || told).then(|| last.map_or(0, |drain| drain.epoch))
}

/// No other edge is open: when this one leaves, nobody takes connections for services.
pub(super) fn is_only_edge(cluster: &Cluster, node: NodeIx) -> bool {
    let open =
        |(ix, other): (NodeIx, &NodeEntry)| ix != node && !other.is_closed() && !other.rec.is_offline();
    cluster.node(node).rec.roles.edge
        && !cluster.edges().any(open)
        && cluster.services().any(|(_, entry)| entry.rec.spec().edge.is_some())
}

/// As [`advance_with`], where nobody is there to look at.
pub fn advance(txn: &mut Txn<'_>, limits: Limits) -> Option<Time> {
    advance_with(
        txn,
        limits,
        &Facts {
            edges: Edges::Assumed,
            dispatchers: Dispatchers::Assumed,
            stuck: BTreeMap::new(),
            paused: false,
        },
    )
}

/// Brings every unfinished drain to where it stands now; returns when to look again.
pub fn advance_with(txn: &mut Txn<'_>, limits: Limits, facts: &Facts) -> Option<Time> {
    let unfinished: Vec<Drain> = txn.drains().filter(|drain| drain.is_unfinished()).cloned().collect();
    let mut wake: Option<Time> = None;
    let due = deadlines(txn).into_iter().rfind(|at| *at <= txn.now());
    for mut drain in unfinished.clone() {
        let before = drain.clone();
        let epoch = drain.epoch;
        for part in &mut drain.nodes {
            if part.state == DrainState::Draining {
                let due = due.filter(|_| !facts.paused);
                part.deadline_reached |= part.deadline.is_some_and(|deadline| Some(deadline) <= due);
                step(txn, (epoch, part), limits, facts);
            }
        }
        store(txn, &before, drain);
    }
    let at_once = if facts.paused { 0 } else { limits.nodes_at_once };
    let mut slots = at_once.saturating_sub(busy(txn, |_| true));
    for epoch in unfinished.iter().map(|drain| drain.epoch) {
        let Some(before) = txn.drain(epoch).cloned() else { continue };
        let mut drain = before.clone();
        for part in drain.nodes.iter_mut().filter(|part| part.state == DrainState::Queued) {
            if slots == 0 {
                break;
            }
            slots -= 1;
            begin(txn, part);
            // It may have nothing on it, or no time at all.
            step(txn, (epoch, part), limits, facts);
        }
        store(txn, &before, drain);
    }
    for part in txn.drains().flat_map(|drain| &drain.nodes).filter(|part| part.state == DrainState::Draining)
    {
        let stall = part.progress_at.map(|at| at + limits.stall_after).filter(|at| *at > txn.now());
        wake = [wake, stall].into_iter().flatten().min();
    }
    let deadline = deadlines(txn).into_iter().next().filter(|_| !facts.paused);
    deadline.into_iter().chain(wake).min()
}

/// When deadlines that are not reached are acted on, soonest first.
fn deadlines(cluster: &Cluster) -> Vec<Time> {
    let parts = cluster.drains().flat_map(|drain| &drain.nodes);
    let waiting = parts.filter(|part| part.state == DrainState::Draining && !part.deadline_reached);
    let times: BTreeSet<Time> = waiting.filter(|part| !is_forced(part)).filter_map(|p| p.deadline).collect();
    let mut together: Vec<(Time, Time)> = Vec::new();
    for at in times {
        match together.last_mut() {
            Some((first, last)) if at.since(*first) < DEADLINE_WINDOW => *last = at,
            Some(_) | None => together.push((at, at)),
        }
    }
    together.into_iter().map(|(_, last)| last).collect()
}

/// Its deadline is now, whenever that is asked for: it waits for no other.
fn is_forced(part: &DrainNode) -> bool {
    part.options.deadline == Some(Millis::ZERO)
}

fn store(txn: &mut Txn<'_>, before: &Drain, drain: Drain) {
    if *before == drain {
        return;
    }
    let ended: Vec<DrainNode> = drain
        .nodes
        .iter()
        .filter(|part| {
            part.ending().is_some() && before.part(part.node.as_str()).is_some_and(|b| b.ending().is_none())
        })
        .cloned()
        .collect();
    txn.put(Change::Drain(drain));
    for part in ended {
        follow_ending(txn, &part);
    }
}

/// A node that has drained stays out; one whose drain was cancelled or failed was never out.
fn follow_ending(txn: &mut Txn<'_>, part: &DrainNode) {
    let Some(Ending::Drained | Ending::DrainedExcept | Ending::NodeLost) = part.ending() else { return };
    let Some(entry) = txn.node_by_id(part.node.as_str()) else { return };
    let intent = match part.options.then {
        Then::Stay => Intent::Drained,
        Then::Stop | Then::AwaitStop => Intent::Stopping,
    };
    let next = Node { intent, ..entry.rec.clone() };
    txn.put(Change::Node(next));
}

/// Of these nodes, how many use a slot. One with nothing but blockers left gives it back.
pub(super) fn busy(cluster: &Cluster, of: impl Fn(NodeIx) -> bool) -> u32 {
    let draining = cluster.nodes_in_drains().filter(|(ix, node)| node.is_draining() && of(*ix));
    let draining = draining.filter(|(ix, node)| {
        let included = node.drain.as_ref().is_some_and(|drain| drain.include_stateful);
        let mut units = remaining(cluster, *ix).map(|(id, class)| match class {
            Class::Stateful => !included,
            Class::Store => is_blocked_store(cluster, id),
            Class::Stateless | Class::Batch | Class::System => false,
        });
        // The first that is not blocked will do, and nothing left at all is no blocker either.
        let movable = units.next().is_none_or(|blocked| !blocked || units.any(|blocked| !blocked));
        movable || cluster.maintainer_count(&node.rec.id) > 0
    });
    draining.count() as u32
}

fn begin(txn: &Txn<'_>, part: &mut DrainNode) {
    let now = txn.now();
    part.state = DrainState::Draining;
    part.started_at = Some(now);
    part.progress_at = Some(now);
    part.deadline = part.options.deadline.map(|span| now + span);
    let units = |ix| left(txn, ix, part.options.ignore_system).count() as u32;
    let maintainers = txn.maintainer_count(&part.node) as u32;
    part.total = txn.node_ix(part.node.as_str()).map_or(0, units) + maintainers;
}

/// What a drain of this node still has to see off: everything the node has not reported stopped.
pub fn remaining(cluster: &Cluster, node: NodeIx) -> impl Iterator<Item = (InstanceId, Class)> {
    let ignore_system = cluster.node(node).drain.as_ref().is_some_and(|drain| drain.ignore_system);
    left(cluster, node, ignore_system)
}

/// What runs on a node as far as anybody knows, oldest first.
pub(super) fn left(
    cluster: &Cluster,
    node: NodeIx,
    ignore_system: bool,
) -> impl Iterator<Item = (InstanceId, Class)> {
    let running = cluster.node(node).instances.iter().filter(|(_, here)| !here.over);
    let units = running.map(|(id, here)| (*id, class_of_release(cluster, here.service, here.release)));
    units.filter(move |(_, class)| !ignore_system || *class != Class::System)
}

/// One look at a node that drains.
fn step(txn: &Txn<'_>, (epoch, part): (u64, &mut DrainNode), limits: Limits, facts: &Facts) {
    let now = txn.now();
    let Some(ix) = txn.node_ix(part.node.as_str()) else {
        return end(part, Ending::Failed, now);
    };
    if txn.node(ix).rec.is_offline() {
        return end(part, Ending::NodeLost, now);
    }
    let forced = is_forced(part) && part.deadline.is_some_and(|deadline| deadline <= now);
    part.deadline_reached |= forced && !facts.paused;
    let (mut units, mut stateful, mut stores) = (0, Vec::new(), Vec::new());
    for (id, class) in left(txn, ix, part.options.ignore_system) {
        units += 1;
        stateful.extend((class == Class::Stateful).then_some(id));
        stores.extend((class == Class::Store).then_some(id));
    }
    let maintainers = txn.maintainer_count(&part.node) as u32;
    let dispatchers = facts.dispatchers_on(ix).map(|by_feed| by_feed.values().sum::<u32>());
    let all = units + maintainers + dispatchers.unwrap_or(0);
    // How many dispatchers there are may become known only after it began.
    if dispatchers.is_some_and(|count| count > 0) {
        part.total = part.total.max(part.done + all);
    }
    let done = part.total.saturating_sub(all);
    if done > part.done && dispatchers.is_some() {
        (part.done, part.progress_at) = (done, Some(now));
    }
    let unacknowledged = !part.options.include_stateful && !part.options.ack_stateful;
    part.blocked =
        (!stateful.is_empty() && unacknowledged) || stores.iter().any(|id| is_blocked_store(txn, *id));
    part.stalled = part.progress_at.is_some_and(|at| now.since(at) >= limits.stall_after);
    let may_stay = !part.options.include_stateful && (part.options.ack_stateful || part.deadline_reached);
    let Some(stranded) = feeds_that_stay(txn, ix, part, facts) else { return };
    if units == 0 && stranded.is_empty() {
        // What is copied from the node needs the node; past the deadline nothing is waited for.
        let done_with = || replacements_are_up(txn, ix, part) && scratch::handed_over(txn, ix).is_empty();
        let up = part.deadline_reached || done_with();
        if up && edge_is_gone(txn, ix, (epoch, part), facts) {
            end(part, Ending::Drained, now);
        }
        return;
    }
    // A store's way out is its own record: it goes on after the drain has ended, and no deadline shortens it.
    let only_stay = stateful.len() + stores.len() == units as usize
        && (stateful.is_empty() || may_stay)
        && (stores.is_empty() || part.deadline_reached);
    if only_stay && edge_is_gone(txn, ix, (epoch, part), facts) {
        let unit = |instance: &Instance| match class_of(txn, instance) {
            Class::Store => (unit_of(txn, instance), left_code(txn, instance)),
            Class::Stateless | Class::Stateful | Class::Batch | Class::System => {
                (unit_of(txn, instance), Code::VolumeLocal)
            }
        };
        let left = stateful.iter().chain(&stores).filter_map(|id| txn.instance(*id));
        part.left = left.map(unit).chain(stranded).collect();
        end(part, Ending::DrainedExcept, now);
    }
}

/// What of feeds is left on the node and does not keep the drain from its end. `None`: something does.
/// Only a deadline lets feeds stay, and only those that no open node may take, or could make ready: nothing of
/// them is stopped.
fn feeds_that_stay(
    txn: &Txn<'_>,
    ix: NodeIx,
    part: &DrainNode,
    facts: &Facts,
) -> Option<Vec<(String, Code)>> {
    let dispatchers = facts.dispatchers_on(ix)?;
    if txn.maintainer_count(&part.node) == 0 && dispatchers.values().all(|count| *count == 0) {
        return Some(Vec::new());
    }
    let over = part.deadline_reached && !facts.paused;
    let none = BTreeMap::new();
    let stuck = facts.stuck.get(&ix).unwrap_or(&none);
    over.then(|| stranded(txn, &part.node, dispatchers, stuck)).flatten()
}

/// Its backend refuses: a person is needed.
fn is_blocked_store(cluster: &Cluster, id: InstanceId) -> bool {
    let store = cluster.instance(id).and_then(|instance| cluster.store_of(instance));
    let trouble = store.and_then(|store| store.trouble.as_ref());
    trouble.is_some_and(|trouble| trouble.code != Code::BackendUnreachable)
}

/// The edge leaves when nothing else does; it is told to here. One whose node does not answer is not
/// waited for longer than its node.
fn edge_is_gone(txn: &Txn<'_>, ix: NodeIx, (epoch, part): (u64, &mut DrainNode), facts: &Facts) -> bool {
    let rec = &txn.node(ix).rec;
    if !rec.roles.edge || rec.foreign {
        return true;
    }
    if part.withdrawing_since.is_none() && !facts.paused {
        (part.withdrawing_since, part.progress_at) = (Some(txn.now()), Some(txn.now()));
        part.stalled = false;
    }
    part.withdrawing_since.is_some() && facts.has_withdrawn(ix, epoch)
}

fn end(part: &mut DrainNode, ending: Ending, now: Time) {
    part.state = DrainState::Ended(ending);
    part.ended_at = Some(now);
    (part.blocked, part.stalled) = (false, false);
}

/// Without surge an instance stops before its replacement starts: the drain is done when that one is up.
fn replacements_are_up(cluster: &Cluster, node: NodeIx, part: &DrainNode) -> bool {
    let since = part.started_at.unwrap_or_default();
    let gone = cluster.instances_on(node).filter(|i| i.is_over() && i.ended_at.is_some_and(|at| at >= since));
    let (stores, gone): (Vec<&Instance>, Vec<&Instance>) =
        gone.partition(|instance| class_of(cluster, instance) == Class::Store);
    // A store that is still one runs elsewhere.
    let mut moved = stores.into_iter().filter_map(|instance| cluster.store_of(instance));
    if moved.any(|store| {
        store.removed_at.is_none() && !matches!(process_of(cluster, store), Process::Ready { .. })
    }) {
        return false;
    }
    let stateless = gone.into_iter().filter(|instance| class_of(cluster, instance) == Class::Stateless);
    let services: BTreeSet<ServiceIx> = stateless.map(|instance| instance.service).collect();
    services.into_iter().all(|service| {
        let Some(entry) = cluster.service(service) else { return true };
        entry.rec.removed || entry.available() >= entry.rec.count as usize
    })
}
