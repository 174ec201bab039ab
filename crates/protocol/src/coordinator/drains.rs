//! Drains: accepted or refused in one step, changed and cancelled at any time before their ending.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Change, Cluster, Code, Drain, DrainNode, DrainOptions, DrainState, Ending, FeedName, Intent, Meta,
    Millis, NodeDrain, NodeId, NodeIx, Return, Then, Time,
};
use planner::drain::{self, Dispatchers, Edges, Facts, Paused, Preview, Status};

use super::{Answer, ApiError, Coordinator, DrainRequest, ErrorKind, timers::Timer};

/// Finished drains that are kept as history.
const DRAINS_KEPT: usize = 200;
/// Nobody waits longer than this for a drain.
const DEADLINE_MAX: Millis = Millis::secs(30 * 24 * 3600);
/// From one maintainer to the next, where nothing is in the way.
const HAND_OVER_GUESS: Millis = Millis::secs(1);
/// Bytes of message and metadata together.
const META_BYTES_MAX: usize = 16 * 1024;

/// What drains meant for nodes when that was last looked at.
#[derive(Clone, Debug)]
pub(super) struct Turned(BTreeMap<NodeIx, NodeDrain>);

impl Turned {
    pub fn of(cluster: &Cluster) -> Turned {
        Turned(cluster.nodes_in_drains().filter_map(|(ix, node)| Some((ix, node.drain.clone()?))).collect())
    }

    /// Whether it means something else since.
    pub fn take(&mut self, cluster: &Cluster, node: NodeIx) -> bool {
        match &cluster.node(node).drain {
            Some(drain) if self.0.get(&node) == Some(drain) => false,
            Some(drain) => {
                self.0.insert(node, drain.clone());
                true
            }
            None => self.0.remove(&node).is_some(),
        }
    }
}

impl Coordinator {
    pub(super) fn advance_drains(&mut self, now: Time) {
        if !std::mem::take(&mut self.drains_dirty) {
            return;
        }
        self.watch_last_node(now);
        self.watch_own_node(now);
        let limits = self.limits;
        let edges = Edges::Seen(self.withdrawn_edges());
        let dispatchers = Dispatchers::Seen(self.dispatchers_of_closed());
        let stuck = self.stuck_on_closed();
        let facts = Facts { edges, dispatchers, stuck, paused: self.paused_since.is_some() };
        match self.change(now, |txn, _| drain::advance_with(txn, limits, &facts)) {
            Some(at) => self.timers.set(Timer::Drains, at),
            None => self.timers.clear(Timer::Drains),
        }
    }

    /// A coordinator whose own node is closed moves nothing for any drain's sake: it hands over, and the
    /// next one does; or nobody else can lead, and draining on would leave the cluster with nobody.
    fn watch_own_node(&mut self, now: Time) {
        let own = self.cluster.node_by_id(&self.candidate);
        let closed = own.is_some_and(|node| node.is_closed());
        if closed == self.paused_since.is_some() {
            return;
        }
        self.paused_since = closed.then_some(now);
        self.wake_feeds();
        let draining = self.cluster.nodes_in_drains().filter(|(_, node)| node.is_draining());
        let draining: Vec<NodeIx> = draining.map(|(ix, _)| ix).collect();
        for node in draining {
            self.health_follows(node);
        }
    }

    /// Why drains pause, if they do.
    pub fn drains_paused(&self, now: Time) -> Option<Paused> {
        let since = self.paused_since?;
        let open = self
            .cluster
            .nodes()
            .any(|(_, node)| node.rec.roles.coordinator && !node.is_closed() && !node.rec.is_offline());
        // One that was to take over and has not in all that time is not there.
        let moving = open && now.since(since) < self.timing.lease;
        let code = if moving { Code::OfficeMoving } else { Code::CaretakerLeads };
        Some(Paused { code, since })
    }

    pub(super) fn drain(
        &mut self,
        request: DrainRequest,
        (by, from): (&str, &str),
        now: Time,
    ) -> Result<Answer, ApiError> {
        check_sizes(&request)?;
        let nodes = self.named(&request)?;
        if let [node] = nodes.as_slice()
            && let Some(drain) = self.cluster.node(*node).drain.as_ref()
        {
            let epoch = drain.epoch;
            return self.change_options(epoch, *node, &request, now);
        }
        self.preflight(&nodes)?;
        let options =
            options(&DrainOptions { deadline: self.limits.default_deadline, ..Default::default() }, &request);
        let told = (request.message.unwrap_or_default(), request.meta.unwrap_or_default());
        Ok(Answer::Draining(self.store_drain(&nodes, &options, told, (by, from), now)))
    }

    /// From here on the nodes are closed.
    pub(super) fn store_drain(
        &mut self,
        nodes: &[NodeIx],
        options: &DrainOptions,
        (message, meta): (String, BTreeMap<String, String>),
        (by, from): (&str, &str),
        now: Time,
    ) -> u64 {
        let epoch = self.cluster.meta().drain_epoch + 1;
        let part = |ix: &NodeIx| DrainNode::queued(self.cluster.node(*ix).rec.id.clone(), options.clone());
        let record = Drain {
            epoch,
            by: by.to_owned(),
            from: from.to_owned(),
            message,
            meta,
            created_at: now,
            nodes: nodes.iter().map(part).collect(),
        };
        let old = self.cluster.drains().filter(|drain| !drain.is_unfinished()).map(|drain| drain.epoch);
        let old: Vec<u64> = old.collect();
        let gone: Vec<u64> = old[..old.len().saturating_sub(DRAINS_KEPT)].to_vec();
        self.change(now, |txn, _| {
            txn.put(Change::Meta(Meta { drain_epoch: epoch, ..txn.meta().clone() }));
            txn.put(Change::Drain(record));
            for epoch in gone {
                txn.put(Change::DrainGone(epoch));
            }
        });
        epoch
    }

    /// The nodes of a request, in its order, each once.
    fn named(&self, request: &DrainRequest) -> Result<Vec<NodeIx>, ApiError> {
        let invalid = |code, message: &str| Err(ApiError::new(ErrorKind::Invalid, code, message));
        if !request.selector.is_empty() {
            if !request.nodes.is_empty() {
                return invalid("drain_invalid", "a drain has nodes or a selector, not both");
            }
            let all = self.cluster.nodes().filter(|(_, node)| node.rec.satisfies(&request.selector));
            let all: Vec<NodeIx> = all.map(|(ix, _)| ix).collect();
            return match all.is_empty() {
                true => Err(ApiError::not_found("selector_matches_none", "no node has these labels")),
                false => Ok(all),
            };
        }
        let mut seen = BTreeSet::new();
        let mut nodes = Vec::new();
        for node in &request.nodes {
            let ix = self.node_ix(node)?;
            if seen.insert(ix) {
                nodes.push(ix);
            }
        }
        match nodes.is_empty() {
            true => invalid("drain_invalid", "a drain names at least one node, or a selector"),
            false => Ok(nodes),
        }
    }

    /// Refuses before anything is touched.
    fn preflight(&self, nodes: &[NodeIx]) -> Result<(), ApiError> {
        for ix in nodes {
            let node = self.cluster.node(*ix);
            let id = &node.rec.id;
            if let Some(drain) = &node.drain {
                let message = format!("{id} is in drain {} already", drain.epoch);
                return Err(ApiError::new(ErrorKind::Conflict, "drain_in_progress", message));
            }
            if node.rec.intent == Intent::Disabled {
                let message = format!("{id} is disabled; enable it first");
                return Err(ApiError::new(ErrorKind::Conflict, "node_disabled", message));
            }
        }
        let open = |role: fn(&model::Node) -> bool| {
            self.cluster.nodes().any(|(ix, node)| {
                role(&node.rec) && !nodes.contains(&ix) && !node.is_closed() && !node.rec.is_offline()
            })
        };
        let names = |role: fn(&model::Node) -> bool| nodes.iter().any(|ix| role(&self.cluster.node(*ix).rec));
        if names(|node| node.roles.coordinator) && !open(|node| node.roles.coordinator) {
            let message = "no open candidate would be left to coordinate the cluster";
            return Err(ApiError::new(ErrorKind::NotNow, "no_candidate_left", message));
        }
        let busy = nodes.iter().any(|ix| drain::remaining(&self.cluster, *ix).next().is_some());
        if busy && !open(|node| node.roles.worker) {
            let message = "no open node would be left to take what runs there";
            return Err(ApiError::new(ErrorKind::Refused, "no_node_left", message));
        }
        Ok(())
    }

    fn change_options(
        &mut self,
        epoch: u64,
        node: NodeIx,
        request: &DrainRequest,
        now: Time,
    ) -> Result<Answer, ApiError> {
        let id = self.cluster.node(node).rec.id.clone();
        let Some(mut drain) = self.cluster.drain(epoch).cloned() else { return Ok(Answer::Draining(epoch)) };
        if let Some(message) = &request.message {
            drain.message = message.clone();
        }
        if let Some(meta) = &request.meta {
            drain.meta = meta.clone();
        }
        for part in drain.nodes.iter_mut().filter(|part| part.node == id) {
            part.options = options(&part.options, request);
            if part.state == DrainState::Draining && request.deadline.is_some() {
                part.deadline = part.options.deadline.map(|span| now + span);
                part.deadline_reached &= part.deadline.is_some_and(|deadline| deadline <= now);
            }
        }
        if self.cluster.drain(epoch) != Some(&drain) {
            self.change(now, |txn, _| txn.put(Change::Drain(drain)));
        }
        Ok(Answer::Draining(epoch))
    }

    pub(super) fn cancel_node(&mut self, node: &str, now: Time) -> Result<Answer, ApiError> {
        let ix = self.node_ix(node)?;
        let id = self.cluster.node(ix).rec.id.clone();
        let epoch = self.cluster.node(ix).drain.as_ref().map(|drain| drain.epoch);
        let Some(epoch) = epoch else {
            let message = format!("{node} is in no drain");
            return Err(ApiError::new(ErrorKind::Conflict, "no_drain", message));
        };
        self.cancel(epoch, |part| *part == id, now);
        Ok(Answer::Draining(epoch))
    }

    pub(super) fn cancel_drain(&mut self, epoch: u64, now: Time) -> Result<Answer, ApiError> {
        let drain = self.cluster.drain(epoch);
        let drain = drain
            .ok_or_else(|| ApiError::not_found("drain_not_found", format!("there is no drain {epoch}")))?;
        if !drain.is_unfinished() {
            let message = format!("drain {epoch} has ended: {}", drain.state_str());
            return Err(ApiError::new(ErrorKind::Conflict, "drain_over", message));
        }
        self.cancel(epoch, |_| true, now);
        Ok(Answer::Draining(epoch))
    }

    /// Takes nodes out of the drain; the ordinary planner does the rest. Needs no word of any node.
    fn cancel(&mut self, epoch: u64, named: impl Fn(&NodeId) -> bool, now: Time) {
        let Some(mut drain) = self.cluster.drain(epoch).cloned() else { return };
        let mut cancelled: Vec<NodeId> = Vec::new();
        for part in drain.nodes.iter_mut().filter(|part| named(&part.node) && part.ending().is_none()) {
            cancelled.push(part.node.clone());
            part.state = DrainState::Ended(Ending::Cancelled);
            part.ended_at = Some(now);
            (part.blocked, part.stalled) = (false, false);
        }
        self.change(now, |txn, _| {
            txn.put(Change::Drain(drain));
            // A cancelled drain leaves the node active, even if an earlier one had taken it out.
            for id in cancelled {
                let rec = txn.node_by_id(id.as_str()).map(|entry| entry.rec.clone());
                let out = rec.filter(|rec| matches!(rec.intent, Intent::Drained | Intent::Stopping));
                if let Some(rec) = out {
                    txn.put(Change::Node(model::Node { intent: Intent::Active, ..rec }));
                }
            }
        });
    }

    /// The one node that is left, if it is closed: a cluster of which nothing else lives has no use for
    /// a node that takes no work.
    fn last_node(&self) -> Option<NodeIx> {
        let mut live = self.cluster.nodes().filter(|(_, node)| !node.rec.is_offline());
        match (live.next(), live.next()) {
            (Some((ix, node)), None) if node.is_closed() && node.rec.intent != Intent::Disabled => Some(ix),
            _ => None,
        }
    }

    fn watch_last_node(&mut self, now: Time) {
        match self.last_node() {
            Some(_) if self.timers.is_set(Timer::LastNode) => {}
            Some(_) => self.timers.set(Timer::LastNode, now + self.timing.last_node_after),
            None => self.timers.clear(Timer::LastNode),
        }
    }

    /// Still the only one: its drain is cancelled, and it is active again.
    pub(super) fn reopen_last_node(&mut self, now: Time) {
        let Some(ix) = self.last_node() else { return };
        let rec = self.cluster.node(ix).rec.clone();
        if let Some(epoch) = self.cluster.node(ix).drain.as_ref().map(|drain| drain.epoch) {
            self.cancel(epoch, |part| *part == rec.id, now);
        }
        let what = format!("node/{} is the last one: active again", rec.id);
        let next = model::Node { intent: Intent::Active, ..rec };
        self.change(now, |txn, _| txn.put(Change::Node(next)));
        self.health_follows(ix);
        self.audit("system:last_node".to_owned(), String::new(), what, now);
    }

    /// What remains of a node's part of a drain, and why.
    pub fn drain_status(&self, part: &DrainNode, now: Time) -> Status {
        let reasons = |service| self.reasons(service);
        let edges_left = |id| self.edges_left(id);
        let paused = self.drains_paused(now);
        let ix = self.cluster.node_ix(part.node.as_str());
        let wait = |feed: &model::FeedName| self.feed_seen(feed).and_then(|seen| seen.wait.clone());
        let stuck = |feed: &model::FeedName| {
            let stuck = self.stuck_on(&part.node, feed)?;
            Some((stuck.count, stuck.code, stuck.message.clone()))
        };
        let feeds = Some(drain::SeenFeeds {
            stuck: &stuck,
            dispatchers: ix.and_then(|ix| self.dispatchers_on(ix)),
            last_said: ix.and_then(|ix| self.dispatchers_last_said(ix)),
            wait: &wait,
        });
        let stores = |instance: &model::Instance| self.store_status_of(instance, now);
        let seen = drain::Seen { reasons: &reasons, edges_left: &edges_left, paused, feeds, stores: &stores };
        drain::status(&self.cluster, part, &seen, now)
    }

    /// What this drain would do, node by node, on a copy that may be played through elsewhere; refused
    /// as the drain would be. Changes nothing.
    pub fn rehearse_drain(&self, request: &DrainRequest, now: Time) -> Result<Rehearsal, ApiError> {
        check_sizes(request)?;
        let nodes = self.named(request)?;
        let before = match self.running_part(&nodes) {
            Some(part) => part.options.clone(),
            None => {
                self.preflight(&nodes)?;
                DrainOptions { deadline: self.limits.default_deadline, ..Default::default() }
            }
        };
        let said = nodes.iter().map(|ix| self.dispatchers_last_said(*ix).cloned().unwrap_or_default());
        Ok(Rehearsal {
            cluster: self.cluster.clone(),
            nodes: nodes.iter().map(|ix| self.cluster.node(*ix).rec.id.clone()).collect(),
            dispatchers: said.collect(),
            maintainer_batch: self.feed_limits.maintainer_batch,
            options: options(&before, request),
            limits: self.limits,
            now,
        })
    }

    /// The part whose options a request for one node changes.
    fn running_part(&self, nodes: &[NodeIx]) -> Option<&DrainNode> {
        let [node] = nodes else { return None };
        let node = self.cluster.node(*node);
        self.cluster.drain(node.drain.as_ref()?.epoch)?.part(node.rec.id.as_str())
    }
}

/// A drain that is only played through.
pub struct Rehearsal {
    cluster: Cluster,
    nodes: Vec<NodeId>,
    /// Of each of them, as it said last.
    dispatchers: Vec<BTreeMap<FeedName, u32>>,
    maintainer_batch: u32,
    options: DrainOptions,
    limits: drain::Limits,
    now: Time,
}

impl Rehearsal {
    /// One preview per node, in the order of their turns.
    pub fn play(&self) -> Vec<(NodeId, Preview)> {
        let nodes: Vec<&str> = self.nodes.iter().map(NodeId::as_str).collect();
        let mut previews = drain::preview(&self.cluster, &nodes, &self.options, self.limits, self.now);
        self.play_feeds(&mut previews);
        self.play_stores(&mut previews);
        self.nodes.iter().cloned().zip(previews).collect()
    }

    /// Feeds move beside what runs there.
    fn play_feeds(&self, previews: &mut [Preview]) {
        let closed: Vec<NodeIx> =
            self.nodes.iter().filter_map(|node| self.cluster.node_ix(node.as_str())).collect();
        let mut loads = drain::Loads::without(&self.cluster, &closed);
        for ((ix, said), preview) in closed.iter().zip(&self.dispatchers).zip(previews) {
            let (moves, waits) =
                drain::preview_feeds(&self.cluster, *ix, &mut loads, self.maintainer_batch, Some(said));
            let waves = moves.last().map_or(0, |last| last.wave);
            preview.waves = preview.waves.max(waves);
            preview.eta = preview.eta.max(Millis(HAND_OVER_GUESS.0 * u64::from(waves)));
            preview.moves.extend(moves);
            preview.waits.extend(waits);
        }
    }

    fn play_stores(&self, previews: &mut [Preview]) {
        let closed: Vec<NodeIx> =
            self.nodes.iter().filter_map(|node| self.cluster.node_ix(node.as_str())).collect();
        for (ix, preview) in closed.iter().zip(previews) {
            let (moves, waits) = drain::preview_stores(&self.cluster, *ix, &closed);
            preview.waves = preview.waves.max(moves.last().map_or(0, |last| last.wave));
            preview.moves.extend(moves);
            preview.waits.extend(waits);
        }
    }

    /// As it was when it was asked.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}

fn options(before: &DrainOptions, request: &DrainRequest) -> DrainOptions {
    // A node that is stopped comes back when it is started again, unless it was said otherwise.
    let back = match (request.back, request.then) {
        (Some(back), _) => back,
        (None, Some(Then::Stop | Then::AwaitStop)) => Return::Restart,
        (None, _) => before.back,
    };
    DrainOptions {
        deadline: request.deadline.unwrap_or(before.deadline),
        ignore_system: request.ignore_system.unwrap_or(before.ignore_system),
        ack_stateful: request.ack_stateful.unwrap_or(before.ack_stateful),
        include_stateful: request.include_stateful.unwrap_or(before.include_stateful),
        then: request.then.unwrap_or(before.then),
        back,
    }
}

fn check_sizes(request: &DrainRequest) -> Result<(), ApiError> {
    let invalid = |message: String| Err(ApiError::new(ErrorKind::Invalid, "drain_invalid", message));
    if let Some(Some(deadline)) = request.deadline
        && deadline > DEADLINE_MAX
    {
        return invalid(format!("a deadline of {deadline} is longer than {DEADLINE_MAX}"));
    }
    let message = request.message.as_ref().map_or(0, String::len);
    let meta: usize = request.meta.iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
    if message + meta > META_BYTES_MAX {
        return invalid(format!("message and meta are larger than {META_BYTES_MAX} bytes together"));
    }
    Ok(())
}
