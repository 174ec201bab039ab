//! Daemons that are connected: registration, heartbeats, health, and what they report.

use std::collections::BTreeMap;

use model::{
    Actual, Change, ClusterId, Code, Desired, FeedName, Health, Instance, InstanceId, Intent, Life, Node,
    NodeIx, ProcessEpoch, Return, Term, Then, Time, VolumeId,
};

use super::{ConnId, Coordinator, Output, Seen, timers::Timer};
use crate::message::{
    Down, DownBody, EdgeReport, Heartbeat, HeartbeatAnswer, Hello, Inventory, Refusal, SetRevision, Status,
    Up, UpBody, Welcome,
};

/// What was last ordered of an instance on this connection.
#[derive(Clone, Copy, Debug)]
struct Told {
    revision: u32,
    at: Time,
}

/// One daemon in this term.
#[derive(Clone, Debug)]
pub(super) struct Session {
    conn: Option<ConnId>,
    life: Life,
    epoch: ProcessEpoch,
    up_seq: u64,
    down_seq: u64,
    last_heartbeat: Time,
    told: BTreeMap<InstanceId, u32>,
    unacked: BTreeMap<InstanceId, Told>,
    /// The number of the last status taken of each instance.
    numbers: BTreeMap<InstanceId, u64>,
    unclaimed: Vec<Inventory>,
    pub edge: EdgeReport,
    pub sets_sent: Option<SetRevision>,
    pub sets_sent_at: Time,
    /// Where other daemons reach it.
    pub rpc: String,
    /// The closed set that this life of it acknowledged.
    pub roster: Option<SetRevision>,
    pub roster_sent: Option<SetRevision>,
    pub roster_sent_at: Time,
    /// Its own inventory.
    pub dispatchers: BTreeMap<FeedName, u32>,
    /// The drain for whose sake its edge was told to be away; `Some(None)`: it was told to serve.
    pub duty_sent: Option<Option<u64>>,
    pub duty_sent_at: Time,
}

impl Session {
    fn new(conn: ConnId, life: Life, epoch: ProcessEpoch, now: Time) -> Session {
        Session {
            conn: Some(conn),
            life,
            epoch,
            up_seq: 0,
            down_seq: 0,
            last_heartbeat: now,
            told: BTreeMap::new(),
            unacked: BTreeMap::new(),
            numbers: BTreeMap::new(),
            unclaimed: Vec::new(),
            edge: EdgeReport::default(),
            sets_sent: None,
            sets_sent_at: now,
            rpc: String::new(),
            roster: None,
            roster_sent: None,
            roster_sent_at: now,
            dispatchers: BTreeMap::new(),
            duty_sent: None,
            duty_sent_at: now,
        }
    }

    pub fn is_open(&self) -> bool {
        self.conn.is_some()
    }

    pub fn seen(&self) -> Seen<'_> {
        Seen {
            connected: self.is_open(),
            last_heartbeat: self.last_heartbeat,
            unclaimed: &self.unclaimed,
            edge: &self.edge,
        }
    }

    pub fn told(&self, id: InstanceId) -> Option<u32> {
        self.told.get(&id).copied()
    }

    pub fn tell(&mut self, id: InstanceId, revision: u32, at: Time) {
        self.told.insert(id, revision);
        self.unacked.insert(id, Told { revision, at });
    }

    /// The drain for whose sake its edge is away or will be: what it was told counts, before that what
    /// it said.
    pub fn told_or_said(&self) -> Option<u64> {
        self.duty_sent.unwrap_or(self.edge.withdrawal.map(|said| said.drain))
    }

    pub fn waits_for_acks(&self) -> bool {
        !self.unacked.is_empty()
    }

    /// What was sent before `before` and not acknowledged.
    pub fn unacknowledged(&self, before: Time) -> Vec<InstanceId> {
        self.unacked.iter().filter(|(_, told)| told.at <= before).map(|(id, _)| *id).collect()
    }

    fn acknowledged(&mut self, id: InstanceId, order: u32) {
        if self.unacked.get(&id).is_some_and(|told| order >= told.revision) {
            self.unacked.remove(&id);
        }
    }

    fn forgotten(&mut self, id: InstanceId) {
        self.unacked.remove(&id);
        self.told.remove(&id);
        self.numbers.remove(&id);
    }

    pub fn next_down(
        session: &mut Session,
        cluster: ClusterId,
        term: Term,
        body: DownBody,
    ) -> (ConnId, Down) {
        session.down_seq += 1;
        let conn = session.conn.unwrap_or(ConnId(0));
        (conn, Down { seq: session.down_seq, cluster, term, body })
    }
}

impl Coordinator {
    pub(super) fn heard_from(&mut self, conn: ConnId, message: Up, now: Time) {
        if let UpBody::Hello(hello) = message.body {
            return self.hello(conn, message.seq, hello, now);
        }
        let Some(node) = self.conns.get(&conn).copied() else { return };
        let Some(session) = self.sessions.get_mut(&node) else { return };
        if session.conn != Some(conn) || message.seq <= session.up_seq {
            return;
        }
        session.up_seq = message.seq;
        match message.body {
            UpBody::Hello(_) => {}
            UpBody::Heartbeat(heartbeat) => self.heartbeat(node, message.seq, heartbeat, now),
            UpBody::Relay { to, message } => self.relay(node, &to, message),
            UpBody::Goodbye => {
                self.lost_stream(conn);
                self.goodbye(node, now);
            }
        }
    }

    /// A daemon's last word: its dispatchers have stopped and its maintainers do not act, nor will any in this
    /// life. Stored, because the daemon that hears it may be the one that says it.
    fn goodbye(&mut self, node: NodeIx, now: Time) {
        let rec = &self.cluster.node(node).rec;
        if !rec.goodbye && !rec.foreign {
            let next = Node { goodbye: true, ..rec.clone() };
            self.change(now, |txn, _| txn.put(Change::Node(next)));
        }
    }

    pub(super) fn lost_stream(&mut self, conn: ConnId) {
        let Some(node) = self.conns.remove(&conn) else { return };
        if let Some(session) = self.sessions.get_mut(&node).filter(|session| session.conn == Some(conn)) {
            session.conn = None;
        }
    }

    fn hello(&mut self, conn: ConnId, seq: u64, hello: Hello, now: Time) {
        if self.conns.contains_key(&conn) {
            // One registration per stream: a repeated one would number our messages anew, and the node
            // would drop them as out of date.
            return;
        }
        let known = self.cluster.node_ix(hello.node.as_str());
        let rival = known.and_then(|ix| self.sessions.get(&ix)).filter(|session| {
            session.life != hello.life
                && session.is_open()
                && now.since(session.last_heartbeat) < self.timing.degraded_after
        });
        if rival.is_some() {
            return self.refuse_rival(conn, &hello, known);
        }
        let before = known.map(|ix| self.cluster.node(ix).rec.clone());
        let record = self.registration(&hello, before.as_ref(), now);
        let (epoch, foreign) = (record.process_epoch, record.foreign);
        if before.as_ref() != Some(&record) {
            self.change(now, |txn, _| txn.put(Change::Node(record)));
        }
        let Some(node) = self.cluster.node_ix(hello.node.as_str()) else { return };
        self.watch_lingering(node, now, None);
        self.open_session(node, conn, seq, &hello, epoch, now);
        self.registration_follows(node, before.as_ref());
        if let Some(session) = self.sessions.get_mut(&node) {
            // Old entries go: the inventory is everything the node has.
            session.unclaimed.clear();
        }
        for item in hello.inventory {
            match self.claims(node, item.status.instance) && !foreign {
                true => {
                    self.take_status(node, item.status, now);
                }
                false if !is_over(item.status.actual) => self.unclaimed(node, item),
                false => {}
            }
        }
        let welcome = Welcome {
            epoch,
            timing: self.timing,
            foreign,
            api: self.api.clone(),
            moves_per_node: self.feed_limits.moves_per_node,
        };
        self.send(node, DownBody::Welcome(welcome));
        self.send_all_orders(node, now);
        // Before its sets: one that is to stay away opens no port.
        self.tell_edge(node, now);
        if self.cluster.node(node).rec.roles.edge && !foreign {
            self.send_all_sets(node, now);
        }
        self.roster_follows(node, now);
        if self.cluster.node(node).rec.roles.worker && !foreign {
            self.feeds_of_new_session(node, now);
        }
    }

    /// A node that is as it was asks for nothing: after a fail-over ten thousand of them come back at
    /// once. What it should clear away is asked for again.
    fn registration_follows(&mut self, node: NodeIx, before: Option<&Node>) {
        let rec = &self.cluster.node(node).rec;
        let as_it_was = before.is_some_and(|old| {
            (old.health, old.intent, old.foreign, old.roles, old.capacity, old.goodbye)
                == (rec.health, rec.intent, rec.foreign, rec.roles, rec.capacity, rec.goodbye)
                && old.labels == rec.labels
        });
        if as_it_was {
            let over = self.cluster.instances_on(node).filter(|instance| instance.is_over());
            let over: Vec<_> = over.map(|instance| instance.service).collect();
            self.dirty.extend(over);
            return;
        }
        self.health_follows(node);
        self.roomier();
    }

    fn refuse_rival(&mut self, conn: ConnId, hello: &Hello, known: Option<NodeIx>) {
        let api = known.map_or("", |ix| self.cluster.node(ix).rec.api.as_str());
        let message = format!(
            "another daemon with the id {} is alive (its API is at {api}); give each machine its own node.id",
            hello.node
        );
        let body = DownBody::Refused { why: Refusal::NodeIdInUse, message };
        let message = Down { seq: 1, cluster: self.cluster.meta().cluster, term: self.term, body };
        let group = self.log.last_group();
        self.outbox.push_back((group, Output::Send { conn, message }));
        self.outbox.push_back((group, Output::Close { conn }));
    }

    fn registration(&self, hello: &Hello, before: Option<&Node>, now: Time) -> Node {
        let epoch = match before {
            // One whose lease was over has stopped what must not run twice; what others heard of it before does
            // not hold of what it runs from here on, and must not be taken for it.
            Some(node) if node.life == hello.life && !node.is_offline() => node.process_epoch,
            Some(node) => ProcessEpoch(node.process_epoch.0 + 1),
            None => ProcessEpoch(1),
        };
        let was_up = before.filter(|node| node.health == Health::Up);
        Node {
            id: hello.node.clone(),
            roles: hello.roles,
            intent: before.map_or(Intent::Active, |node| self.intent_of_life(node, hello.life)),
            health: Health::Up,
            health_since: was_up.map_or(now, |node| node.health_since),
            labels: hello.labels.clone(),
            capacity: hello.capacity,
            process_epoch: epoch,
            life: hello.life,
            host: hello.host.clone(),
            api: hello.api.clone(),
            memory_caps: hello.memory_caps.clone(),
            foreign: hello.cluster.is_some_and(|cluster| cluster != self.cluster.meta().cluster),
            registered_at: before.map_or(now, |node| node.registered_at),
            lingers: self.lingers(before, hello, now),
            goodbye: before.is_some_and(|node| node.goodbye && node.life == hello.life),
        }
    }

    /// A node that was to stop once drained is told so, until its daemon is gone.
    fn let_it_stop(&mut self, node: NodeIx) {
        let entry = self.cluster.node(node);
        if entry.rec.intent != Intent::Stopping || entry.drain.is_some() {
            return;
        }
        let id = entry.rec.id.as_str();
        let part = self.cluster.last_drain_of(id).and_then(|drain| drain.part(id));
        if part.is_some_and(|part| part.options.then == Then::AwaitStop) {
            return;
        }
        // What is left keeps running, and the daemon is needed for it.
        let said = self.dispatchers_last_said(node);
        let feeds = self.cluster.maintainer_count(&entry.rec.id) > 0
            || said.is_some_and(|counts| counts.values().any(|count| *count > 0));
        if !feeds && self.cluster.instances_on(node).all(|instance| instance.is_over()) {
            self.send(node, DownBody::Leave);
        }
    }

    /// A node that left to come back with its next life is active again with it.
    fn intent_of_life(&self, before: &Node, life: Life) -> Intent {
        let ended = matches!(before.intent, Intent::Drained | Intent::Stopping);
        let last = self.cluster.last_drain_of(before.id.as_str());
        let part = last.and_then(|drain| drain.part(before.id.as_str()));
        let returns = part.is_some_and(|part| part.options.back == Return::Restart);
        match (ended && before.life != life, returns, before.intent) {
            (true, true, _) => Intent::Active,
            // It was started again and nobody said that it may take work: it stays out, and up.
            (true, false, Intent::Stopping) => Intent::Drained,
            (_, _, intent) => intent,
        }
    }

    fn open_session(
        &mut self,
        node: NodeIx,
        conn: ConnId,
        seq: u64,
        hello: &Hello,
        epoch: ProcessEpoch,
        now: Time,
    ) {
        let mut session = Session::new(conn, hello.life, epoch, now);
        session.up_seq = seq;
        session.edge = hello.edge.clone();
        session.rpc = hello.rpc.clone();
        self.drains_dirty |= session.edge.withdrawal.is_some();
        if let Some(old) = self.sessions.remove(&node) {
            if let Some(stale) = old.conn.filter(|stale| *stale != conn) {
                self.conns.remove(&stale);
                self.outbox.push_back((self.log.last_group(), Output::Close { conn: stale }));
            }
            if old.life == hello.life {
                session.numbers = old.numbers;
            }
        }
        self.sessions.insert(node, session);
        self.conns.insert(conn, node);
        self.heard.insert(node, now);
        self.timers.set(Timer::Node(node), now + self.timing.degraded_after);
    }

    fn heartbeat(&mut self, node: NodeIx, seq: u64, heartbeat: Heartbeat, now: Time) {
        let Some(session) = self.sessions.get_mut(&node) else { return };
        if session.epoch != heartbeat.epoch {
            return;
        }
        // Its lease is over: it registers anew, with another epoch.
        if let Some(conn) = session.conn.filter(|_| self.cluster.node(node).rec.is_offline()) {
            self.lost_stream(conn);
            return self.outbox.push_back((self.log.last_group(), Output::Close { conn }));
        }
        session.last_heartbeat = now;
        self.drains_dirty |= session.edge.withdrawal != heartbeat.edge.withdrawal;
        session.edge = heartbeat.edge;
        self.heard.insert(node, now);
        let health = heartbeat.degraded.map_or(Health::Up, Health::Degraded);
        self.set_health(node, health, now);
        let (mut stored, mut feeds) = (Vec::new(), Vec::new());
        if !self.cluster.node(node).rec.foreign {
            for status in heartbeat.statuses {
                stored.push((status.instance, status.number));
                self.take_status(node, status, now);
            }
            for id in heartbeat.forgotten {
                self.forgotten(node, id, now);
            }
            feeds = self.take_feeds(node, heartbeat.roster, heartbeat.feeds, heartbeat.dispatchers, now);
        }
        self.remind_edge(node, now);
        self.catch_up_edge(node, now);
        self.let_it_stop(node);
        // A coordinator whose own office may be over grants nothing.
        if now < self.office_until {
            self.send(node, DownBody::Answer(HeartbeatAnswer { heartbeat: seq, stored, feeds }));
        }
    }

    pub(super) fn check_health(&mut self, node: NodeIx, now: Time) {
        let Some(heard) = self.heard.get(&node).copied() else { return };
        let silent = now.since(heard);
        let again = if silent >= self.timing.offline_after {
            self.set_health(node, Health::Offline, now);
            return;
        } else if silent >= self.timing.degraded_after {
            if self.cluster.node(node).rec.health != Health::Offline {
                self.set_health(node, Health::Degraded(Code::HeartbeatsLate), now);
            }
            heard + self.timing.offline_after
        } else {
            heard + self.timing.degraded_after
        };
        self.timers.set(Timer::Node(node), again);
    }

    fn set_health(&mut self, node: NodeIx, health: Health, now: Time) {
        let rec = &self.cluster.node(node).rec;
        if rec.health == health {
            return;
        }
        let lingers = rec.lingers.filter(|_| health != Health::Offline);
        let next = Node { health, health_since: now, lingers, ..rec.clone() };
        self.change(now, |txn, _| txn.put(Change::Node(next)));
        if health != Health::Offline {
            self.timers.set(Timer::Node(node), now + self.timing.degraded_after);
        }
        self.health_follows(node);
    }

    /// Everything with instances on a node is looked at again when its health changes, and system
    /// services always.
    pub(super) fn health_follows(&mut self, node: NodeIx) {
        self.dirty.extend(self.cluster.node(node).instances.values().map(|here| here.service));
        let system =
            self.cluster.services().filter(|(_, entry)| entry.rec.spec().kind == model::Kind::System);
        let system: Vec<_> = system.map(|(ix, _)| ix).collect();
        self.dirty.extend(system);
    }

    /// The record says that this instance belongs on this node.
    fn claims(&self, node: NodeIx, id: InstanceId) -> bool {
        self.cluster.instance(id).is_some_and(|instance| instance.node == node)
    }

    fn unclaimed(&mut self, node: NodeIx, item: Inventory) {
        if let Some(session) = self.sessions.get_mut(&node) {
            session.unclaimed.retain(|known| known.status.instance != item.status.instance);
            session.unclaimed.push(item);
        }
    }

    fn forgotten(&mut self, node: NodeIx, id: InstanceId, now: Time) {
        if let Some(session) = self.sessions.get_mut(&node) {
            session.forgotten(id);
        }
        let Some(instance) = self.cluster.instance(id).filter(|i| i.node == node && i.is_over()) else {
            return;
        };
        let service = instance.service;
        self.change(now, |txn, _| txn.put(Change::InstanceGone(id)));
        self.dirty.insert(service);
    }

    /// Takes a node's word on one instance.
    fn take_status(&mut self, node: NodeIx, status: Status, now: Time) {
        let id = status.instance;
        let Some(session) = self.sessions.get_mut(&node) else { return };
        session.acknowledged(id, status.order);
        let last = session.numbers.entry(id).or_insert(0);
        if status.number <= *last {
            return;
        }
        *last = status.number;
        if let Some(at) = session.unclaimed.iter().position(|item| item.status.instance == id) {
            match is_over(status.actual) {
                true => drop(session.unclaimed.remove(at)),
                false => session.unclaimed[at].status = status.clone(),
            }
        }
        let Some(before) = self.cluster.instance(id).filter(|instance| instance.node == node) else { return };
        let after = reported(before, &status, now);
        if after == *before {
            return;
        }
        let over = after.is_over() && !before.is_over();
        let volume = (after.actual == Actual::Ready).then(|| self.volume_in_use(&after)).flatten();
        self.change(now, |txn, _| {
            txn.put(Change::Instance(after));
            if let Some(volume) = volume {
                txn.put(Change::Volume(volume));
            }
        });
        if over {
            self.roomier();
        }
    }

    /// From the first time that a stateful instance is ready on it, a volume is expected to be there.
    fn volume_in_use(&self, instance: &Instance) -> Option<model::Volume> {
        let rec = &self.cluster.service(instance.service)?.rec;
        let name = &rec.spec_of(instance.release).volume.as_ref()?.name;
        let id = VolumeId::new(&format!("{}-{name}-{}", rec.name, instance.slot?));
        let volume = self.cluster.volume(id.as_str())?;
        (!volume.expected).then(|| model::Volume { expected: true, ..volume.clone() })
    }
}

fn is_over(actual: Actual) -> bool {
    matches!(actual, Actual::Stopped | Actual::Failed)
}

/// What the coordinator noted when it gave an instance up says more than its node's last words: a process
/// that ended again and again says `restarting` to its end, and would be tried for ever.
fn reason_after(before: (Desired, Option<Code>), said: (Actual, Option<Code>)) -> Option<Code> {
    match (before, said) {
        ((Desired::Draining | Desired::Stopped, Some(Code::Unhealthy)), _) => Some(Code::Unhealthy),
        // Only its node says so, and only while it is so: one that ended otherwise has had its data.
        ((_, Some(Code::DiskCopying)), (_, said)) => said,
        ((_, noted), (actual, said)) => said.or(noted.filter(|_| is_over(actual))),
    }
}

/// The record after a node's report.
fn reported(before: &Instance, status: &Status, now: Time) -> Instance {
    let mut after = before.clone();
    after.actual = status.actual;
    after.restarts = status.restarts;
    after.pid = status.pid;
    if !status.ports.is_empty() {
        after.ports = status.ports.clone().into_boxed_slice();
    }
    after.exit = status.exit;
    after.reason = reason_after((before.desired, before.reason), (status.actual, status.reason));
    let said = status.message.as_deref().map(Into::into);
    // A later life of the daemon knows that the data did not come, and no longer why.
    let known = before.message.clone();
    after.message = said.or(known
        .filter(|_| after.reason == Some(Code::DiskNotCopied) && before.reason == Some(Code::DiskNotCopied)));
    after.healthy_since = match (status.healthy_for, before.healthy_since) {
        (None, _) => None,
        (Some(_), Some(since)) if before.pid == status.pid => Some(since),
        (Some(held), _) => Some(now - held),
    };
    after.ended_at = match is_over(status.actual) {
        true => before.ended_at.or(Some(now)),
        false => None,
    };
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lesson_8_one_given_up_as_unhealthy_stays_so_whatever_its_node_says_while_it_stops() {
        let given_up = (Desired::Stopped, Some(Code::Unhealthy));
        for actual in [Actual::Stopping, Actual::Stopped, Actual::Failed] {
            for said in [None, Some(Code::Restarting), Some(Code::CrashLooping)] {
                assert_eq!(reason_after(given_up, (actual, said)), Some(Code::Unhealthy));
            }
        }
        // Whether it has had its scratch data is its node's word alone.
        let copying = (Desired::Running, Some(Code::DiskCopying));
        assert_eq!(reason_after(copying, (Actual::Stopped, None)), None);
        // One that is wanted may get better, or worse.
        let wanted = (Desired::Running, Some(Code::Unhealthy));
        assert_eq!(reason_after(wanted, (Actual::Ready, None)), None);
        assert_eq!(
            reason_after(wanted, (Actual::Failed, Some(Code::CrashLooping))),
            Some(Code::CrashLooping)
        );
    }
}
