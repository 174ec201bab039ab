//! The one elected daemon that decides, as a pure state machine.
//!
//! Everything comes in through [`Coordinator::handle`] and leaves as [`Output`]s. What an input
//! changes is applied to the [`Cluster`] at once; what may be seen from outside (orders, replies,
//! events) waits until those changes are committed.

mod apply;
mod asked_moves;
mod captures;
mod drains;
mod edges;
mod feed_requests;
mod feeds;
mod orders;
mod request;
mod requests;
mod roster;
mod sessions;
mod sets;
mod settle;
mod store_requests;
mod stores;
mod timers;
mod tokens;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{
    BackendAnswer, BackendFailure, Change, Cluster, Code, Event, EventKind, Feed, Health, Instance,
    InstanceId, Meta, NodeIx, Reason, ServiceIx, Term, Time, Txn, encode_change,
};
pub use planner::drain::{
    Class, Limits as DrainLimits, Move, Paused, Preview, Status as DrainStatus, UnitStatus, class_of,
};
pub use planner::feeds::Limits as FeedLimits;
use planner::{Ids, drain::Limits};

pub use captures::{ANOTHER_DRAIN, CaptureLeft, Liveness, NODE_DISABLED};
pub use drains::Rehearsal;
use drains::Turned;
use feeds::FeedDesk;
pub use feeds::{FeedMoves, FeedSeen};
pub use planner::stores::{
    EvictorShown, Mode as StoreMode, Offlining, OffliningReason, StoreStatus, Wait as StoreWait,
    Work as StoreWork,
};
pub use request::{
    Answer, ApiError, Applied, Apply, ApplyFeed, ApplyStoreGroup, Asked, DrainRequest, ErrorKind, Outcome,
    Request, StoreAction, WantedIntent,
};
use stores::StoreDesk;
pub use stores::{BackendOrder, CALL_MAX, CallId};
pub use tokens::{TOKEN_NAME_MAX, TOKENS_MAX};

use crate::{
    Timing,
    commit::{CommitLog, GROUP_RECORDS_MAX, Step},
    message::{BackendSet, Down, EdgeReport, Inventory, SetRevision, Up},
};

use roster::RosterTable;
use sessions::Session;
use sets::SetTable;
use timers::{Timer, Timers};

/// A node that changed gets its share back only after this: it may just be coming and going.
const BALANCE_AFTER: model::Millis = model::Millis::secs(10);
/// Between two looks while moves for balance are under way.
const BALANCE_PAUSE: model::Millis = model::Millis::secs(2);

/// The store is asked again this long after it was surely not reached.
const COMMIT_RETRY: model::Millis = model::Millis(200);

/// One stream to a daemon. The shell numbers them and never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// Numbered by the shell; the reply carries it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A record as the store keeps it: key, and value or deletion.
pub type Op = (String, Option<Vec<u8>>);

#[derive(Clone, Debug)]
pub enum Input {
    /// A message of a daemon.
    Up {
        conn: ConnId,
        message: Up,
    },
    /// The stream is gone.
    Closed {
        conn: ConnId,
    },
    Request {
        id: RequestId,
        asked: Asked,
    },
    /// How a call to a backend ended.
    Backend {
        call: CallId,
        result: Result<BackendAnswer, BackendFailure>,
    },
    /// The office lease was renewed and holds until then. Heartbeats are answered only while it does.
    OfficeHolds {
        until: Time,
    },
    /// How the transaction in flight ended.
    Stored(Stored),
    /// What the head is and in which term it was written, asked for after an unknown outcome.
    Head {
        number: u64,
        by: Term,
    },
    /// Time has passed; called when [`Coordinator::next_wake`] is due.
    Tick,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    Committed,
    /// The answer was lost: it may have been applied, or may still be.
    Unknown,
    /// Surely not applied; try again.
    Unavailable,
    /// The store holds nothing more: shown as `store_space`, tried again.
    NoSpace,
    /// Somebody else is in office, or the head is not ours.
    Refused,
}

#[derive(Clone, Debug)]
pub enum Output {
    Send {
        conn: ConnId,
        message: Down,
    },
    /// End this stream.
    Close {
        conn: ConnId,
    },
    Reply {
        id: RequestId,
        result: Result<Answer, ApiError>,
    },
    Event(Event),
    /// Ask a backend, and tell how it went: [`Input::Backend`].
    Backend(BackendOrder),
    /// One transaction: fenced by the office, comparing the head with `head - 1`.
    Transact {
        head: u64,
        ops: Vec<Op>,
    },
    ReadHead,
    /// Give up office: drop this coordinator, campaign again.
    Resign {
        why: String,
    },
    /// As `Resign`, because it was asked for: let another take office.
    HandOver,
}

/// What a coordinator takes office with.
#[derive(Debug)]
pub struct Start {
    /// As loaded from the store; empty if it holds nothing yet.
    pub cluster: Cluster,
    /// The number of the last transaction in it.
    pub head: u64,
    pub term: Term,
    pub timing: Timing,
    /// Random bits: the id of the cluster, if the store is empty.
    pub random: u64,
    /// Who takes office, for the event.
    pub candidate: String,
    /// Where it answers HTTP.
    pub api: String,
    pub drain: Limits,
    pub feeds: FeedLimits,
}

/// What is seen of a node, beside its record.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub connected: bool,
    pub last_heartbeat: Time,
    /// What runs there and is in no record.
    pub unclaimed: &'a [Inventory],
    pub edge: &'a EdgeReport,
}

#[derive(Clone, Debug)]
pub struct Coordinator {
    cluster: Cluster,
    term: Term,
    timing: Timing,
    /// Leases are granted only before this.
    office_until: Time,
    log: CommitLog,
    /// What waits for a group to be committed before it may be seen.
    outbox: VecDeque<(u64, Output)>,
    sessions: BTreeMap<NodeIx, Session>,
    conns: BTreeMap<ConnId, NodeIx>,
    /// When each node was last heard; the taking of office counts.
    heard: BTreeMap<NodeIx, Time>,
    sets: SetTable,
    /// Instances that wait for the edges before they get their stop signal.
    draining: BTreeSet<InstanceId>,
    ids: Ids,
    dirty: BTreeSet<ServiceIx>,
    starved: BTreeSet<ServiceIx>,
    /// Instances whose records changed: their nodes may have to be told.
    touched: BTreeSet<InstanceId>,
    reasons: BTreeMap<ServiceIx, Vec<Reason>>,
    timers: Timers,
    no_space_since: Option<Time>,
    resigned: bool,
    api: String,
    limits: Limits,
    /// Something changed that a drain may be waiting for.
    drains_dirty: bool,
    turned: Turned,
    roster: RosterTable,
    feeds: FeedDesk,
    feed_limits: FeedLimits,
    stores: StoreDesk,
    /// Who is in office here, and since when.
    candidate: String,
    in_office_since: Time,
    /// Since when this coordinator's own node is closed: drains pause under it.
    paused_since: Option<Time>,
    /// Nodes whose edges may have to be told what to do.
    edges_touched: BTreeSet<NodeIx>,
    /// Every change in the order in which it was made, for whoever watches.
    journal: Option<Vec<Change>>,
}

impl Coordinator {
    /// Takes office. Nobody is declared offline before `offline_after` has passed from here.
    pub fn new(start: Start, now: Time) -> (Coordinator, Vec<Output>) {
        Coordinator::take_office(start, now, None)
    }

    /// As [`Coordinator::new`], with a journal of what it changes: see [`Coordinator::take_journal`].
    pub fn watched(start: Start, now: Time) -> (Coordinator, Vec<Output>) {
        Coordinator::take_office(start, now, Some(Vec::new()))
    }

    fn take_office(start: Start, now: Time, journal: Option<Vec<Change>>) -> (Coordinator, Vec<Output>) {
        let mut this = Coordinator {
            ids: Ids::new(start.cluster.meta()),
            term: start.term,
            timing: start.timing,
            office_until: now,
            log: CommitLog::new(start.term, start.head),
            outbox: VecDeque::new(),
            sessions: BTreeMap::new(),
            conns: BTreeMap::new(),
            heard: BTreeMap::new(),
            sets: SetTable::new(start.term),
            draining: BTreeSet::new(),
            dirty: BTreeSet::new(),
            starved: BTreeSet::new(),
            touched: BTreeSet::new(),
            reasons: BTreeMap::new(),
            timers: Timers::default(),
            no_space_since: None,
            resigned: false,
            api: start.api,
            limits: start.drain,
            drains_dirty: true,
            turned: Turned::of(&start.cluster),
            roster: RosterTable::new(start.term),
            feeds: FeedDesk::default(),
            feed_limits: start.feeds,
            stores: StoreDesk::default(),
            candidate: start.candidate.clone(),
            in_office_since: now,
            paused_since: None,
            edges_touched: BTreeSet::new(),
            journal,
            cluster: start.cluster,
        };
        if this.cluster.meta().cluster.0 == 0 {
            this.found(start.random, now);
        }
        this.outbox
            .push_back((this.log.last_group(), Output::Event(elected(start.term, start.candidate, now))));
        this.look_at_everything(now);
        this.settle(now);
        let outputs = this.flush();
        (this, outputs)
    }

    /// An empty store becomes a cluster. Ids begin at a random place, so that they do not meet those
    /// of a cluster whose store was lost.
    fn found(&mut self, random: u64, now: Time) {
        let first = (1 << 30) + (random >> 16) % (1 << 34);
        let meta = Meta {
            cluster: model::ClusterId(random | 1),
            instance_ids_reserved: first,
            ..self.cluster.meta().clone()
        };
        self.change(now, |txn, _| txn.put(Change::Meta(meta)));
        self.ids = Ids::new(self.cluster.meta());
    }

    fn look_at_everything(&mut self, now: Time) {
        let services: Vec<ServiceIx> = self.cluster.services().map(|(ix, _)| ix).collect();
        for service in &services {
            self.recompute_set(*service);
        }
        self.dirty.extend(services);
        let draining = self.cluster.instances().filter(|i| i.desired == model::Desired::Draining);
        self.draining.extend(draining.map(|instance| instance.id));
        let up: Vec<NodeIx> = self
            .cluster
            .nodes()
            .filter(|(_, node)| node.rec.health != Health::Offline)
            .map(|(ix, _)| ix)
            .collect();
        self.inherit_feeds(now);
        let all: Vec<NodeIx> = self.cluster.nodes().map(|(ix, _)| ix).collect();
        for node in all {
            self.watch_lingering(node, now, Some(now));
            self.roster_follows(node, now);
            self.feeds_follow(node);
        }
        for node in up {
            self.heard.insert(node, now);
            self.timers.set(Timer::Node(node), now + self.timing.degraded_after);
        }
    }

    /// Takes one input, decides what follows, and returns what may leave now.
    pub fn handle(&mut self, now: Time, input: Input) -> Vec<Output> {
        if self.resigned {
            return Vec::new();
        }
        match input {
            Input::Up { conn, message } => self.heard_from(conn, message, now),
            Input::Closed { conn } => self.lost_stream(conn),
            Input::Request { id, asked } => {
                let hands_over = matches!(asked.request, Request::HandOver);
                let result = self.answer(asked, now);
                self.outbox.push_back((self.log.last_group(), Output::Reply { id, result }));
                if hands_over {
                    // Who asked is answered first.
                    self.outbox.push_back((self.log.last_group(), Output::HandOver));
                }
            }
            Input::Backend { call, result } => self.backend_answered(call, result, now),
            Input::OfficeHolds { until } => self.office_until = until,
            Input::Stored(outcome) => return self.stored(outcome, now),
            Input::Head { number, by } => {
                let step = self.log.head_is(number, by);
                return self.flush_with(step);
            }
            Input::Tick => {}
        }
        self.run_timers(now);
        self.settle(now);
        self.flush()
    }

    fn stored(&mut self, outcome: Stored, now: Time) -> Vec<Output> {
        match &outcome {
            Stored::NoSpace => self.no_space_since = self.no_space_since.or(Some(now)),
            Stored::Committed => self.no_space_since = None,
            Stored::Unknown | Stored::Unavailable | Stored::Refused => {}
        }
        let step = self.log.stored(outcome);
        if self.log.is_held() {
            self.timers.set(Timer::Commit, now + COMMIT_RETRY);
        }
        self.flush_with(step)
    }

    /// When `Tick` is due next.
    pub fn next_wake(&self) -> Option<Time> {
        self.timers.next()
    }

    fn run_timers(&mut self, now: Time) {
        while let Some(timer) = self.timers.due(now) {
            match timer {
                Timer::Service(service) => {
                    self.dirty.insert(service);
                }
                Timer::Node(node) => self.check_health(node, now),
                Timer::Drains => self.drains_dirty = true,
                Timer::Balance => self.balance(now),
                Timer::LastNode => self.reopen_last_node(now),
                Timer::Feeds => {
                    self.give_up_asked(now);
                    self.wake_feeds();
                }
                Timer::Roster => self.send_roster(now),
                Timer::Lingers(node) => self.lingers_no_more(node, now),
                Timer::Resend(node) => self.resend_orders(node, now),
                Timer::Commit => {
                    if let Some(step) = self.log.retry() {
                        self.outbox.push_front((0, store_output(step)));
                    }
                }
            }
        }
    }

    /// Makes changes and queues them for the store in groups. A group may end between any two
    /// changes: each leaves a state that the planner can go on from.
    fn change<R>(&mut self, now: Time, make: impl FnOnce(&mut Txn<'_>, &mut Ids) -> R) -> R {
        let mut txn = Txn::new(&mut self.cluster, now);
        let result = make(&mut txn, &mut self.ids);
        let made = txn.finish();
        self.changed(made, now);
        result
    }

    fn changed(&mut self, (changes, events): (Vec<Change>, Vec<Event>), now: Time) {
        if let Some(journal) = &mut self.journal {
            journal.extend(changes.iter().cloned());
        }
        self.take_note(&changes, now);
        for group in changes.chunks(GROUP_RECORDS_MAX) {
            let ops = group.iter().map(|change| encode_change(&self.cluster, change)).collect();
            self.log.push(ops);
        }
        let group = self.log.last_group();
        self.outbox.extend(events.into_iter().map(|event| (group, Output::Event(event))));
    }

    /// What has to be looked at again because of these changes.
    fn take_note(&mut self, changes: &[Change], now: Time) {
        let mut closed: BTreeSet<NodeIx> = BTreeSet::new();
        let mut changed: BTreeSet<NodeIx> = BTreeSet::new();
        let drains = self.cluster.drains().rev().any(model::Drain::is_unfinished);
        for change in changes {
            match change {
                Change::Instance(instance) => closed.extend(self.take_note_of(instance, drains)),
                Change::InstanceGone(id) => {
                    self.draining.remove(id);
                    self.sets.forget(*id);
                }
                Change::Node(node) => {
                    changed.extend(self.cluster.node_ix(node.id.as_str()));
                    self.edges_touched.extend(self.cluster.node_ix(node.id.as_str()));
                    self.drains_dirty = true;
                    self.timers.set(Timer::Balance, now + BALANCE_AFTER);
                    self.dirty.extend(std::mem::take(&mut self.starved));
                }
                Change::Drain(drain) => {
                    self.drains_dirty = true;
                    self.timers.set(Timer::Balance, now + BALANCE_AFTER);
                    let nodes =
                        drain.nodes.iter().filter_map(|part| self.cluster.node_ix(part.node.as_str()));
                    let nodes: Vec<NodeIx> = nodes.collect();
                    self.edges_touched.extend(&nodes);
                    // How far it is goes into the same record, with every unit of hundreds of nodes.
                    let turned = nodes.into_iter().filter(|node| self.turned.take(&self.cluster, *node));
                    let turned: Vec<NodeIx> = turned.collect();
                    changed.extend(&turned);
                    closed.extend(turned);
                }
                Change::Feed(Feed { name, .. }) | Change::FeedGone(name) => {
                    self.drains_dirty |= drains;
                    self.feeds.dirty.insert(name.clone());
                }
                Change::Service(service) => {
                    self.drains_dirty |= drains;
                    self.dirty.extend(self.cluster.service_ix(service.name.as_str()));
                }
                Change::StoreGroup(group) => {
                    self.drains_dirty |= drains;
                    self.dirty.extend(self.cluster.service_ix(group.name.as_str()));
                }
                Change::Store(store) => {
                    self.drains_dirty |= drains;
                    self.dirty.extend(self.cluster.service_ix(store.group.as_str()));
                }
                Change::StoreGroupGone(_) | Change::StoreGone(_) => self.drains_dirty |= drains,
                Change::Meta(_)
                | Change::ServiceGone(_)
                | Change::Volume(_)
                | Change::VolumeGone(_)
                | Change::Audit(_)
                | Change::AuditGone(_)
                | Change::DrainGone(_)
                | Change::Token(_)
                | Change::TokenGone(_) => {}
            }
        }
        for node in changed {
            self.roster_follows(node, now);
            self.feeds_follow(node);
        }
        for node in closed {
            self.health_follows(node);
            self.roomier();
        }
    }

    /// The node on which others may wait for this one to be gone.
    fn take_note_of(&mut self, instance: &Instance, drains: bool) -> Option<NodeIx> {
        self.touched.insert(instance.id);
        self.dirty.insert(instance.service);
        match instance.desired {
            model::Desired::Draining => self.draining.insert(instance.id),
            model::Desired::Running | model::Desired::Stopped => self.draining.remove(&instance.id),
        };
        // It may be the replacement that a node's ending waits for.
        self.drains_dirty |= drains && instance.is_available();
        if !self.cluster.node(instance.node).is_draining() {
            return None;
        }
        self.drains_dirty = true;
        // System instances wait for the last of the others.
        instance.is_over().then_some(instance.node)
    }

    /// What may leave: everything that waits for nothing, and the next transaction.
    fn flush(&mut self) -> Vec<Output> {
        let step = self.log.send_next();
        self.flush_with(step)
    }

    fn flush_with(&mut self, step: Option<Step>) -> Vec<Output> {
        let mut outputs: Vec<Output> = step.into_iter().map(store_output).collect();
        if outputs.iter().any(|output| matches!(output, Output::Resign { .. })) {
            self.resigned = true;
            return outputs;
        }
        let committed = self.log.committed();
        while self.outbox.front().is_some_and(|(group, _)| *group <= committed) {
            outputs.extend(self.outbox.pop_front().map(|(_, output)| output));
            if matches!(outputs.last(), Some(Output::HandOver)) {
                self.resigned = true;
                break;
            }
        }
        outputs
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What was changed since this was last asked, one by one: the state alone does not show in which order
    /// a step decided. Empty unless it is [watched](Coordinator::watched).
    pub fn take_journal(&mut self) -> Vec<Change> {
        self.journal.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What was decided and is not known to be in the store, in the order in which it is written.
    pub fn unwritten(&self) -> impl Iterator<Item = &Op> {
        self.log.unwritten()
    }

    pub fn term(&self) -> Term {
        self.term
    }

    /// `None`: not heard of in this term.
    pub fn seen(&self, node: NodeIx) -> Option<Seen<'_>> {
        self.sessions.get(&node).map(Session::seen)
    }

    /// Streams that are open.
    pub fn streams(&self) -> usize {
        self.conns.len()
    }

    /// Why a service is not as asked.
    pub fn reasons(&self, service: ServiceIx) -> &[Reason] {
        self.reasons.get(&service).map_or(&[], Vec::as_slice)
    }

    /// What concerns the cluster as a whole.
    pub fn cluster_reasons(&self) -> Vec<Reason> {
        let no_space = |since| Reason {
            code: Code::StoreSpace,
            unit: "cluster".to_owned(),
            since: Some(since),
            message: "the store takes no more writes; nothing can be changed".to_owned(),
        };
        self.no_space_since.map(no_space).into_iter().collect()
    }

    /// The backends of a service as edges are told, if it is behind the edge.
    pub fn backends(&self, service: ServiceIx) -> Option<&BackendSet> {
        self.sets.get(service)
    }

    pub fn sets_revision(&self) -> SetRevision {
        self.sets.revision()
    }
}

fn elected(term: Term, candidate: String, now: Time) -> Event {
    Event {
        kind: EventKind::CoordinatorElected,
        at: now,
        unit: format!("node/{candidate}"),
        message: format!("{candidate} is coordinator in term {term}"),
        fields: vec![("term", term.to_string()), ("candidate", candidate)],
    }
}

fn store_output(step: Step) -> Output {
    match step {
        Step::Transact { head, ops } => Output::Transact { head, ops },
        Step::ReadHead => Output::ReadHead,
        Step::Resign(why) => Output::Resign { why },
    }
}
