//! Where maintainers run: placed on the least loaded node, moved off nodes that are to be left.
//!
//! Dispatchers are not here: each maintainer places its own.

use model::{
    Change, Cluster, Code, Feed, FeedName, Maintainer, MaintainerEpoch, Meta, Millis, Node, NodeId, NodeIx,
    Origin, ProcessEpoch, Time, Txn,
};

/// A hand-over that takes longer than this no longer holds up the next one.
const MOVE_PATIENCE: Millis = Millis::secs(10);
/// A maintainer that does not get to work is moved all the same after this.
const UNSTABLE_PATIENCE: Millis = Millis::secs(30);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maintainers that are handed over at a time on a drain's behalf.
    pub maintainer_batch: u32,
    /// Dispatchers that one node takes on at a time.
    pub moves_per_node: u32,
    /// Dispatchers on the move, over all feeds.
    pub moves_total: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { maintainer_batch: 1, moves_per_node: 64, moves_total: 1024 }
    }
}

/// What the coordinator sees beside the records.
pub struct Seen<'a> {
    /// The node is connected, and this life of it has acknowledged the present closed set.
    pub ready: &'a dyn Fn(NodeIx, &Node) -> bool,
    /// Until then a node that is about to be ready is worth waiting for.
    pub patient_until: &'a dyn Fn(&Feed) -> Time,
    /// Drains pause: nobody is handed over for their sake.
    pub paused: bool,
    /// The feed's maintainer says that it works.
    pub working: &'a dyn Fn(&Feed) -> bool,
    /// It says that it has stopped acting, though it was to go on.
    pub gave_up: &'a dyn Fn(&Feed) -> bool,
}

/// Hand-overs that may still begin in this round, shared by all feeds that are planned in it. Those under way
/// are counted when the first asks: most rounds hand nothing over, and there may be many feeds.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    batch: u32,
    counted: Option<UnderWay>,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    count: u32,
    /// When the first of them stops counting.
    wake_at: Option<Time>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "what is not done carries its reason"]
pub struct Planned {
    pub wait: Option<(Code, String)>,
    /// Nothing else happening, look again then.
    pub wake_at: Option<Time>,
}

impl Budget {
    pub fn new(limits: Limits) -> Budget {
        Budget { batch: limits.maintainer_batch, counted: None }
    }

    /// Whether one more may begin; if not, those that are under way.
    fn take(&mut self, txn: &Txn<'_>, seen: &Seen<'_>) -> Result<(), UnderWay> {
        let counted = self.counted.get_or_insert_with(|| UnderWay::count(txn, seen, txn.now()));
        if counted.count >= self.batch {
            return Err(*counted);
        }
        counted.count += 1;
        Ok(())
    }
}

impl UnderWay {
    /// One that takes too long is not counted: a broken feed must not hold up the others.
    fn count(cluster: &Cluster, seen: &Seen<'_>, now: Time) -> UnderWay {
        let under_way = |feed: &Feed| {
            let maintainer = feed.maintainer.as_ref()?;
            let unfinished = maintainer.from.is_some() || !(seen.working)(feed);
            // The first one of a feed is handed over by nobody.
            let counts = maintainer.since > feed.created_at
                && unfinished
                && !leaves(cluster, &maintainer.node)
                && now.since(maintainer.since) < MOVE_PATIENCE;
            counts.then_some(maintainer.since)
        };
        let since: Vec<Time> = cluster.feeds().filter_map(under_way).collect();
        let wake_at = since.iter().min().map(|since| *since + MOVE_PATIENCE);
        UnderWay { count: since.len() as u32, wake_at }
    }
}

/// Brings one feed's maintainer closer to where it should be.
pub fn plan(txn: &mut Txn<'_>, name: &FeedName, seen: &Seen<'_>, budget: &mut Budget) -> Planned {
    confirm_by_lease(txn, name);
    let Some(feed) = txn.feed(name.as_str()).cloned() else { return Planned::default() };
    let Some(maintainer) = &feed.maintainer else { return place(txn, &feed, None, seen) };
    let gone = is_gone(txn, &maintainer.node, maintainer.process);
    let leaves = leaves(txn, &maintainer.node);
    match &maintainer.from {
        // It was never started: another may take it, still after the one before.
        Some(origin) if gone || leaves => place(txn, &feed, Some(origin.clone()), seen),
        Some(origin) => Planned { wait: Some(unconfirmed(origin)), wake_at: None },
        None if gone || (seen.gave_up)(&feed) => place(txn, &feed, None, seen),
        None if leaves => leave(txn, &feed, maintainer, seen, budget),
        None => Planned::default(),
    }
}

/// A maintainer whose node's lease is over has stopped by its own fence, one whose node said goodbye before
/// that, and with a life all of it ends.
fn confirm_by_lease(txn: &mut Txn<'_>, name: &FeedName) {
    let Some(feed) = txn.feed(name.as_str()) else { return };
    let Some(maintainer) = &feed.maintainer else { return };
    let over = maintainer.from.as_ref().is_some_and(|origin| is_gone(txn, &origin.node, origin.process));
    if over {
        let mut next = feed.clone();
        next.maintainer = Some(Maintainer { from: None, ..maintainer.clone() });
        txn.put(Change::Feed(next));
    }
}

/// Nothing of it runs: what counts of the node is another life, or none.
pub fn is_gone(cluster: &Cluster, node: &NodeId, life: ProcessEpoch) -> bool {
    let entry = cluster.node_by_id(node.as_str());
    entry.is_none_or(|entry| entry.rec.is_over() || entry.rec.life_that_counts() != life)
}

/// Some node may take on its maintainer, and its dispatchers: both ask for the same.
pub fn has_destination(cluster: &Cluster, feed: &Feed) -> bool {
    cluster.nodes().any(|(_, entry)| entry.may_place() && entry.rec.satisfies(&feed.spec.constraints))
}

/// Its turn to be emptied has come.
fn leaves(cluster: &Cluster, node: &NodeId) -> bool {
    cluster.node_by_id(node.as_str()).is_none_or(|entry| entry.is_draining() || entry.rec.is_closed())
}

fn leave(
    txn: &mut Txn<'_>,
    feed: &Feed,
    maintainer: &Maintainer,
    seen: &Seen<'_>,
    budget: &mut Budget,
) -> Planned {
    let patient = txn.now().since(maintainer.since) < UNSTABLE_PATIENCE;
    if patient && !(seen.working)(feed) {
        let message = format!("the maintainer on {} is not yet at work", maintainer.node);
        let wake_at = Some(maintainer.since + UNSTABLE_PATIENCE);
        return Planned { wait: Some((Code::MaintainerStarting, message)), wake_at };
    }
    if seen.paused {
        let message = "the coordinator's own node is closed; drains pause".to_owned();
        return Planned { wait: Some((Code::OfficeMoving, message)), wake_at: None };
    }
    let chosen = match choose(txn, feed, seen) {
        Ok(chosen) => chosen,
        // What has nowhere to go takes no turn from the others.
        Err(planned) => return planned,
    };
    let deadline = txn
        .node_by_id(maintainer.node.as_str())
        .and_then(|entry| entry.drain.as_ref())
        .is_some_and(|drain| drain.deadline_reached);
    if !deadline && let Err(under_way) = budget.take(txn, seen) {
        let message = match under_way.count {
            1 => "another maintainer is being handed over".to_owned(),
            several => format!("{several} other maintainers are being handed over"),
        };
        return Planned { wait: Some((Code::MaxParallel, message)), wake_at: under_way.wake_at };
    }
    let Maintainer { node, process, epoch, .. } = maintainer.clone();
    put(txn, feed, chosen, Some(Origin { node, process, epoch }))
}

fn place(txn: &mut Txn<'_>, feed: &Feed, from: Option<Origin>, seen: &Seen<'_>) -> Planned {
    match choose(txn, feed, seen) {
        Ok(chosen) => put(txn, feed, chosen, from),
        Err(planned) => planned,
    }
}

/// The least loaded node that may maintain it. One that has yet to acknowledge the closed set is waited
/// for, but not long: the first to acknowledge would get everything.
fn choose(cluster: &Txn<'_>, feed: &Feed, seen: &Seen<'_>) -> Result<(NodeId, ProcessEpoch), Planned> {
    let now = cluster.now();
    let until = (seen.patient_until)(feed);
    let eligible = cluster.nodes().filter(|(ix, entry)| {
        let may = entry.may_place() && entry.rec.satisfies(&feed.spec.constraints);
        may && (now < until || (seen.ready)(*ix, &entry.rec))
    });
    let least =
        eligible.min_by_key(|(_, entry)| (cluster.maintainer_count(&entry.rec.id), entry.rec.id.as_str()));
    match least.map(|(ix, entry)| (ix, &entry.rec)) {
        Some((ix, rec)) if (seen.ready)(ix, rec) => Ok((rec.id.clone(), rec.process_epoch)),
        Some((_, rec)) => {
            let message = format!("{} has not acknowledged which nodes are closed", rec.id);
            Err(Planned { wait: Some((Code::NoEligibleNode, message)), wake_at: Some(until) })
        }
        None => {
            let message = "no node that may maintain it is open and knows which nodes are closed".to_owned();
            Err(Planned { wait: Some((Code::NoEligibleNode, message)), wake_at: None })
        }
    }
}

fn put(
    txn: &mut Txn<'_>,
    feed: &Feed,
    (node, process): (NodeId, ProcessEpoch),
    from: Option<Origin>,
) -> Planned {
    let wait = from.as_ref().map(unconfirmed);
    let number = txn.meta().maintainer_epoch + 1;
    txn.put(Change::Meta(Meta { maintainer_epoch: number, ..txn.meta().clone() }));
    let epoch = MaintainerEpoch(number);
    let maintainer = Some(Maintainer { node, process, epoch, from, since: txn.now() });
    txn.put(Change::Feed(Feed { maintainer, epoch, ..feed.clone() }));
    Planned { wait, wake_at: None }
}

fn unconfirmed(origin: &Origin) -> (Code, String) {
    let message = format!("the maintainer on {} has not confirmed that it stopped", origin.node);
    (Code::MaintainerUnconfirmed, message)
}
