//! Candidates: campaigning, loading, being in office, and losing it without noticing at once.

use checker::{Observer, Step};
use model::{BackendAnswer, BackendFailure, Change, Cluster, Code, Feed, InstanceId, NodeId, Term, Time};
use protocol::{
    candidacy::others_should_lead,
    coordinator::{
        self, Asked, CallId, ConnId, Coordinator, Input, Op, Output, Request, RequestId, Start, Stored,
    },
    message::{DownBody, Refusal, feed::Phase},
};

use crate::{
    closed::{ClosedDesk, Told},
    net::Message,
    world::{Event, ToDaemon, World},
};

/// How soon a coordinator sees that its own node was closed.
const CLOSED_LOOK: u64 = 250;

#[derive(Clone, Debug)]
pub enum OfficeInput {
    Tick(u64),
    Campaign,
    /// It looks whether its own node was closed.
    Look {
        term: Term,
    },
    /// Whether another candidate lives whose node is open; nothing if the store did not answer.
    OpenCandidate {
        term: Term,
        lives: Option<bool>,
    },
    Keep {
        term: Term,
    },
    Campaigned {
        elected: Option<Term>,
        asked_at: u64,
    },
    /// How a call to a backend ended.
    Backend {
        term: Term,
        call: CallId,
        result: Result<BackendAnswer, BackendFailure>,
    },
    Kept {
        term: Term,
        holds: Option<bool>,
        asked_at: u64,
    },
    Load {
        term: Term,
    },
    Loaded {
        term: Term,
        loaded: Option<Box<(Cluster, u64)>>,
    },
    Stored {
        term: Term,
        outcome: Stored,
    },
    Head {
        term: Term,
        head: Option<(u64, Term)>,
    },
    Up {
        term: Term,
        conn: u64,
        message: protocol::message::Up,
    },
    Closed {
        term: Term,
        conn: u64,
    },
    Request {
        id: u64,
        request: Request,
    },
}

#[derive(Clone, Debug)]
pub enum StoreOp {
    Campaign,
    Announce,
    Candidates { term: Term },
    Keep { term: Term },
    Load { term: Term },
    Commit { term: Term, head: u64, ops: Vec<Op> },
    Head { term: Term },
    Resign { term: Term },
}

#[derive(Default)]
pub enum Candidate {
    #[default]
    Idle,
    Loading {
        term: Term,
        holds_until: u64,
    },
    InOffice(Box<Tenure>),
}

pub struct Tenure {
    pub coordinator: Coordinator,
    observer: Observer,
    pub term: Term,
    holds_until: u64,
    /// Inputs it still handles after its lease ran out: it was stopped right after looking at it, or
    /// they were on their way through its queues.
    blind_for: u64,
    /// What was ordered on which connection: sending it again is seen by this.
    ordered: std::collections::BTreeSet<(ConnId, InstanceId, u32)>,
    pub desk: ClosedDesk,
    pub taken_at: u64,
    /// Heartbeats that reached it when its office was over.
    late: std::collections::BTreeSet<(ConnId, u64)>,
}

impl Tenure {
    /// What the last step changed, seen by the checker.
    fn watch(&mut self, changes: &[Change], now: Time, paused: bool, told: &Told) -> Vec<checker::Violation> {
        let coordinator = &self.coordinator;
        let at_work = |feed: &Feed| {
            let report = coordinator.feed_seen(&feed.name).and_then(|seen| seen.report.as_ref());
            report.is_some_and(|report| {
                report.epoch == feed.epoch && matches!(report.phase, Phase::Working | Phase::Cleaned)
            })
        };
        let ready = |node: &NodeId| coordinator.knows_roster(node);
        let acknowledged = |node: &NodeId| self.desk.acknowledged(node, told);
        let step = Step { now, paused, ready: &ready, acknowledged: &acknowledged, at_work: &at_work };
        self.observer.follow(changes, &step)
    }

    /// In office, as far as it can know.
    pub fn holds(&self, now: u64) -> bool {
        now < self.holds_until
    }

    /// The checker's own state is the coordinator's.
    pub fn disagrees(&self) -> Option<checker::Violation> {
        self.observer.disagrees(self.coordinator.cluster())
    }
}

impl Candidate {
    /// In office, as far as it knows.
    pub fn term(&self) -> Option<Term> {
        match self {
            Candidate::InOffice(tenure) => Some(tenure.term),
            Candidate::Idle | Candidate::Loading { .. } => None,
        }
    }

    pub fn next_wake(&self) -> Option<Time> {
        match self {
            Candidate::InOffice(tenure) => tenure.coordinator.next_wake(),
            Candidate::Idle | Candidate::Loading { .. } => None,
        }
    }
}

impl World {
    pub fn tenure(&self, machine: usize) -> Option<&Tenure> {
        match self.machines[machine].daemon.as_ref()?.candidate.as_ref()? {
            Candidate::InOffice(tenure) => Some(tenure),
            Candidate::Idle | Candidate::Loading { .. } => None,
        }
    }

    pub fn tenure_mut(&mut self, machine: usize) -> Option<&mut Tenure> {
        match self.machines[machine].daemon.as_mut()?.candidate.as_mut()? {
            Candidate::InOffice(tenure) => Some(tenure),
            Candidate::Idle | Candidate::Loading { .. } => None,
        }
    }

    fn ask_store(&mut self, machine: usize, op: StoreOp) {
        let delay = self.rng.between(1, 10);
        let life = self.machines[machine].life;
        self.after(delay, Event::Store { machine, life, op });
    }

    pub fn office_input(&mut self, machine: usize, input: OfficeInput) {
        let (in_office, over) = match self.tenure(machine) {
            Some(tenure) => (Some(tenure.term), self.now >= tenure.holds_until),
            None => (None, false),
        };
        if over {
            let Some(tenure) = self.tenure_mut(machine) else { return };
            if tenure.blind_for == 0 {
                return self.leave_office(machine, "its lease ran out");
            }
            tenure.blind_for -= 1;
            self.cover.hit("coordinator noticed late that its office was over");
        }
        let ours = |term: Term| in_office == Some(term);
        match input {
            OfficeInput::Tick(at) => self.office_tick(machine, at),
            OfficeInput::Campaign => self.campaign(machine),
            OfficeInput::Look { term } if ours(term) => self.look_at_own_node(machine, term),
            OfficeInput::OpenCandidate { term, lives } if ours(term) => match lives {
                Some(true) => {
                    self.cover.hit("closed coordinator handed over");
                    self.leave_office(machine, "its node is closed and another candidate's is not");
                }
                Some(false) | None => {
                    let pause = self.swarm.timing.lease.0;
                    self.tell_daemon(pause, machine, ToDaemon::Office(OfficeInput::Look { term }));
                }
            },
            OfficeInput::Campaigned { elected, asked_at } => self.campaigned(machine, elected, asked_at),
            OfficeInput::Keep { term } => self.keep_office(machine, term),
            OfficeInput::Kept { term, holds, asked_at } => self.kept(machine, term, holds, asked_at),
            OfficeInput::Load { term } => self.ask_store(machine, StoreOp::Load { term }),
            OfficeInput::Loaded { term, loaded } => self.take_office(machine, term, loaded),
            OfficeInput::Stored { term, outcome } if ours(term) => {
                self.coordinate(machine, Input::Stored(outcome));
            }
            OfficeInput::Head { term, head } if ours(term) => match head {
                Some((number, by)) => self.coordinate(machine, Input::Head { number, by }),
                None => self.ask_store(machine, StoreOp::Head { term }),
            },
            OfficeInput::Up { term, conn, message } if ours(term) => {
                if let Some(tenure) = self.tenure_mut(machine).filter(|_| over) {
                    tenure.late.insert((ConnId(conn), message.seq));
                }
                self.coordinate(machine, Input::Up { conn: ConnId(conn), message });
            }
            OfficeInput::Backend { term, call, result } if ours(term) => {
                self.coordinate(machine, Input::Backend { call, result })
            }
            OfficeInput::Closed { term, conn } if ours(term) => {
                self.coordinate(machine, Input::Closed { conn: ConnId(conn) });
            }
            OfficeInput::Request { id, request } => self.request_arrives(machine, id, request),
            OfficeInput::Look { .. }
            | OfficeInput::OpenCandidate { .. }
            | OfficeInput::Stored { .. }
            | OfficeInput::Head { .. }
            | OfficeInput::Up { .. }
            | OfficeInput::Backend { .. }
            | OfficeInput::Closed { .. } => {}
        }
    }

    fn office_tick(&mut self, machine: usize, at: u64) {
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        if daemon.office_tick != Some(at) {
            return;
        }
        daemon.office_tick = None;
        if daemon.term_in_office().is_some() {
            self.coordinate(machine, Input::Tick);
        }
    }

    fn request_arrives(&mut self, machine: usize, id: u64, request: Request) {
        let stop = match &request {
            Request::StopInstance { id } => Some(*id),
            _ => None,
        };
        let Some(tenure) = self.tenure_mut(machine) else { return };
        if let Some(id) = stop {
            tenure.observer.asked_to_stop(id);
        }
        let asked = Asked { who: "sim".to_owned(), from: "sim".to_owned(), request };
        self.coordinate(machine, Input::Request { id: RequestId(id), asked });
    }

    fn campaign(&mut self, machine: usize) {
        let daemon = self.machines[machine].daemon.as_ref();
        let idle = daemon.and_then(|daemon| daemon.candidate.as_ref());
        if !matches!(idle, Some(Candidate::Idle)) {
            return;
        }
        if self.should_stand_back(machine) {
            self.cover.hit("closed candidate stood back");
            // It has been heard of all the same: candidates announce themselves.
            self.ask_store(machine, StoreOp::Announce);
            let pause = self.swarm.timing.lease.0;
            self.tell_daemon(pause, machine, ToDaemon::Office(OfficeInput::Campaign));
        } else {
            self.ask_store(machine, StoreOp::Campaign);
        }
    }

    /// By what is committed.
    pub fn is_closed(&self, machine: usize) -> bool {
        self.mirror.node_by_id(self.machines[machine].id.as_str()).is_some_and(|node| node.is_closed())
    }

    /// Its node is closed, and another candidate was heard of lately whose node is not.
    fn should_stand_back(&self, machine: usize) -> bool {
        let heard = self.store.presence.iter().filter(|(_, until)| **until > self.now);
        let alive = heard.map(|(other, _)| self.machines[*other].id.as_str());
        let me = self.machines[machine].id.as_str();
        let is_closed = |id: &str| self.mirror.node_by_id(id).is_some_and(|node| node.is_closed());
        others_should_lead(me, alive, is_closed)
    }

    fn look_at_own_node(&mut self, machine: usize, term: Term) {
        if self.is_closed(machine) {
            return self.ask_store(machine, StoreOp::Candidates { term });
        }
        self.tell_daemon(CLOSED_LOOK, machine, ToDaemon::Office(OfficeInput::Look { term }));
    }

    fn campaign_again(&mut self, machine: usize) {
        let pause = self.rng.between(100, 1000);
        self.tell_daemon(pause, machine, ToDaemon::Office(OfficeInput::Campaign));
    }

    fn campaigned(&mut self, machine: usize, elected: Option<Term>, asked_at: u64) {
        let Some(term) = elected else { return self.campaign_again(machine) };
        let lease = self.swarm.timing.lease.0;
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        daemon.candidate = Some(Candidate::Loading { term, holds_until: asked_at + lease });
        self.say(format!("m{machine} is elected, term {term}"));
        self.tell_daemon(0, machine, ToDaemon::Office(OfficeInput::Load { term }));
        self.tell_daemon(lease / 3, machine, ToDaemon::Office(OfficeInput::Keep { term }));
    }

    fn keep_office(&mut self, machine: usize, term: Term) {
        let candidate = self.machines[machine].daemon.as_ref().and_then(|d| d.candidate.as_ref());
        let ours = match candidate {
            Some(Candidate::Loading { term: now, .. }) => *now == term,
            Some(Candidate::InOffice(tenure)) => tenure.term == term,
            Some(Candidate::Idle) | None => false,
        };
        if ours {
            self.ask_store(machine, StoreOp::Keep { term });
        }
    }

    fn kept(&mut self, machine: usize, term: Term, holds: Option<bool>, asked_at: u64) {
        let lease = self.swarm.timing.lease.0;
        let until = asked_at + lease;
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        let ours = match daemon.candidate.as_mut() {
            Some(Candidate::Loading { term: now, holds_until }) if *now == term => {
                if holds == Some(true) {
                    *holds_until = until;
                }
                true
            }
            Some(Candidate::InOffice(tenure)) if tenure.term == term => {
                if holds == Some(true) {
                    tenure.holds_until = until;
                }
                true
            }
            Some(_) | None => false,
        };
        if !ours {
            return;
        }
        match holds {
            Some(true) => {
                let local = Time(self.local(machine).0 - self.now + until);
                if self.tenure(machine).is_some() {
                    self.coordinate(machine, Input::OfficeHolds { until: local });
                }
                self.tell_daemon(lease / 3, machine, ToDaemon::Office(OfficeInput::Keep { term }));
            }
            Some(false) => self.leave_office(machine, "its lease is lost"),
            None => self.tell_daemon(lease / 10, machine, ToDaemon::Office(OfficeInput::Keep { term })),
        }
    }

    fn take_office(&mut self, machine: usize, term: Term, loaded: Option<Box<(Cluster, u64)>>) {
        let (now, random) = (self.local(machine), self.rng.next());
        let candidate = self.machines[machine].daemon.as_ref().and_then(|d| d.candidate.as_ref());
        let holds_until = match candidate {
            Some(Candidate::Loading { term: now, holds_until }) if *now == term => *holds_until,
            Some(_) | None => return,
        };
        let Some(loaded) = loaded else {
            return self.tell_daemon(100, machine, ToDaemon::Office(OfficeInput::Load { term }));
        };
        if self.now >= holds_until {
            return self.leave_office(machine, "its lease ran out while loading");
        }
        if self.should_stand_back(machine) {
            return self.leave_office(machine, "its node is closed and another candidate's is not");
        }
        let (cluster, head) = *loaded;
        if cluster.instance_count() > 0 {
            self.cover.hit("fail-over");
        }
        self.mark_fail_over(&cluster);
        let candidate = self.machines[machine].id.to_string();
        let api = format!("{candidate}:7070");
        let observer = Observer::new(&cluster, self.swarm.limits.of_checker());
        let start = Start {
            cluster,
            head,
            term,
            timing: self.swarm.timing,
            random,
            candidate,
            api,
            drain: self.swarm.limits.drain(),
            feeds: self.swarm.limits.feeds(),
        };
        self.check_takes_office(machine, term);
        let (coordinator, outputs) = Coordinator::watched(start, now);
        let ordered = std::collections::BTreeSet::new();
        let blind_for = match self.rng.below(10) {
            0..5 => 0,
            5..9 => self.rng.between(1, 30),
            // Nothing may rest on a coordinator's own care.
            _ => self.rng.between(100, 1000),
        };
        let late = std::collections::BTreeSet::new();
        let (desk, taken_at) = (ClosedDesk::default(), self.now);
        let tenure =
            Tenure { coordinator, observer, term, holds_until, blind_for, ordered, desk, taken_at, late };
        if let Some(daemon) = self.machines[machine].daemon.as_mut() {
            daemon.candidate = Some(Candidate::InOffice(Box::new(tenure)));
            daemon.office_tick = None;
        }
        self.say(format!("m{machine} takes office, term {term}, head {head}"));
        self.perform(machine, outputs);
        let until = Time(now.0 + holds_until - self.now);
        self.coordinate(machine, Input::OfficeHolds { until });
        self.tell_daemon(CLOSED_LOOK, machine, ToDaemon::Office(OfficeInput::Look { term }));
    }

    pub fn leave_office(&mut self, machine: usize, why: &str) {
        self.say(format!("m{machine} leaves office: {why}"));
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        let left = daemon.candidate.replace(Candidate::Idle);
        let term = match left {
            Some(Candidate::InOffice(tenure)) => tenure.term,
            Some(Candidate::Loading { term, .. }) => term,
            Some(Candidate::Idle) | None => return,
        };
        let life = self.machines[machine].life;
        let conns: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| {
                conn.office.machine == machine && conn.office.life == life && conn.term == term
            })
            .map(|(id, _)| *id)
            .collect();
        for conn in conns {
            self.close_conn(conn, false);
        }
        self.ask_store(machine, StoreOp::Resign { term });
        self.campaign_again(machine);
    }

    fn coordinate(&mut self, machine: usize, input: Input) {
        let now = self.local(machine);
        let Some(tenure) = self.tenure_mut(machine) else { return };
        match &input {
            Input::Up { conn, message } => tenure.desk.heard(*conn, message),
            Input::Closed { conn } => tenure.desk.closed(*conn),
            Input::Request { .. }
            | Input::Backend { .. }
            | Input::OfficeHolds { .. }
            | Input::Stored(_)
            | Input::Head { .. }
            | Input::Tick => {}
        }
        let outputs = tenure.coordinator.handle(now, input);
        let (changes, paused, found) = self.watch_step(machine, now);
        let Some(tenure) = self.tenure_mut(machine) else { return };
        let drains = tenure.coordinator.cluster().drains().any(|drain| drain.is_unfinished());
        match paused.filter(|_| drains) {
            Some(Code::CaretakerLeads) => self.cover.hit("drains paused under a caretaker"),
            Some(_) => self.cover.hit("drains paused while the office moves"),
            None => {}
        }
        self.say_changes(&found, &changes);
        for violation in found {
            self.fail(violation.invariant(), violation.to_string());
        }
        if self.time_to_check() {
            self.check_coordinator(machine);
        }
        self.perform(machine, outputs);
    }

    /// What a step did, and what the checker says of it.
    fn watch_step(
        &mut self,
        machine: usize,
        now: Time,
    ) -> (Vec<Change>, Option<Code>, Vec<checker::Violation>) {
        let (told, at) = (std::mem::take(&mut self.told), self.now);
        let me = self.machines[machine].id.clone();
        let (mut seen, mut closed) = ((Vec::new(), None, Vec::new()), false);
        if let Some(tenure) = self.tenure_mut(machine) {
            let paused = tenure.coordinator.drains_paused(now).map(|paused| paused.code);
            let changes = tenure.coordinator.take_journal();
            // By the records, whatever the coordinator makes of them.
            let own = tenure.coordinator.cluster().node_by_id(me.as_str());
            closed = own.is_some_and(|node| node.is_closed());
            let found = tenure.watch(&changes, now, closed, &told);
            tenure.desk.follow(&tenure.coordinator, at);
            seen = (changes, paused, found);
        }
        self.told = told;
        if closed {
            self.check_rests(machine);
        }
        self.check_who_leads();
        seen
    }

    /// A step that broke something: what it did, one by one.
    fn say_changes(&mut self, found: &[checker::Violation], changes: &[Change]) {
        if found.is_empty() || !self.trace.is_kept() {
            return;
        }
        for change in changes {
            self.say(format!("changes {change:?}"));
        }
    }

    fn perform(&mut self, machine: usize, outputs: Vec<Output>) {
        for output in outputs {
            let Some(term) = self.tenure(machine).map(|tenure| tenure.term) else { return };
            match output {
                Output::Send { conn, message } => {
                    self.note_sent(machine, conn, &message.body);
                    self.send(conn.0, false, Message::Down(Box::new(message)));
                }
                Output::Close { conn } => self.close_conn(conn.0, false),
                Output::Reply { id, result } => self.replied(id.0, result),
                Output::Event(event) => self.note_event(&event),
                Output::Backend(order) => self.backend_asked(machine, order),
                Output::Transact { head, ops } => {
                    self.ask_store(machine, StoreOp::Commit { term, head, ops })
                }
                Output::ReadHead => self.ask_store(machine, StoreOp::Head { term }),
                Output::Resign { why } => self.leave_office(machine, &why),
                Output::HandOver => self.leave_office(machine, "it was asked to"),
            }
        }
    }

    fn note_event(&mut self, event: &model::Event) {
        if self.trace.is_kept() {
            self.say(format!("event {} {}: {}", event.kind.as_str(), event.unit, event.message));
        }
        if event.kind == model::EventKind::RolloutChanged && event.message.ends_with("complete") {
            self.cover.hit("rollout complete");
        }
        if event.kind == model::EventKind::RolloutChanged && event.message.contains("failed") {
            self.cover.hit("rollout failed");
        }
    }

    fn note_sent(&mut self, machine: usize, conn: ConnId, body: &DownBody) {
        self.note_told(machine, conn, body);
        match body {
            DownBody::Refused { why: Refusal::NodeIdInUse, .. } => self.cover.hit("node id refused"),
            DownBody::Orders(orders) => {
                let Some(tenure) = self.tenure_mut(machine) else { return };
                let again =
                    orders.iter().filter(|o| !tenure.ordered.insert((conn, o.instance, o.revision))).count();
                if again > 0 {
                    self.cover.hit("orders resent");
                }
            }
            DownBody::Answer(answer) => {
                let late = |tenure: &Tenure| tenure.late.contains(&(conn, answer.heartbeat));
                if self.tenure(machine).is_some_and(late) {
                    self.fail(14, format!("m{machine} grants a lease, and its own office was over"));
                }
            }
            DownBody::Refused { .. }
            | DownBody::Welcome(_)
            | DownBody::Sets(_)
            | DownBody::Relay(_)
            | DownBody::Duty(_)
            | DownBody::Roster(_)
            | DownBody::Feeds(_)
            | DownBody::Leave => {}
        }
    }

    pub fn at_store(&mut self, machine: usize, life: u64, op: StoreOp) {
        let (now, lease) = (self.now, self.swarm.timing.lease.0);
        let faults = self.swarm.store.clone();
        let unavailable = !self.calm && self.rng.chance(faults.unavailable);
        if unavailable || self.store.down_until > now || self.store_cut.contains(&machine) {
            if self.store_cut.contains(&machine) {
                self.cover.hit("store cut off");
            } else {
                self.cover.hit("store unavailable");
            }
            return self.answer_nothing(machine, life, op);
        }
        self.store.presence.insert(machine, now + lease);
        let answer = match op {
            StoreOp::Announce => return,
            StoreOp::Candidates { term } => {
                OfficeInput::OpenCandidate { term, lives: Some(self.should_stand_back(machine)) }
            }
            StoreOp::Campaign => {
                let elected = self.store.campaign(machine, life, lease, now);
                OfficeInput::Campaigned { elected, asked_at: now.saturating_sub(10) }
            }
            StoreOp::Keep { term } => {
                let holds = Some(self.store.keep_alive(term, lease, now));
                OfficeInput::Kept { term, holds, asked_at: now.saturating_sub(10) }
            }
            StoreOp::Load { term } => match self.store.load() {
                Ok(cluster) => {
                    OfficeInput::Loaded { term, loaded: Some(Box::new((cluster, self.store.head))) }
                }
                Err(error) => return self.fail(14, format!("the store cannot be loaded: {error}")),
            },
            StoreOp::Head { term } => {
                OfficeInput::Head { term, head: Some((self.store.head, self.store.head_term)) }
            }
            StoreOp::Commit { term, head, ops } => {
                let outcome = self.commit(term, head, ops);
                OfficeInput::Stored { term, outcome }
            }
            StoreOp::Resign { term } => return self.store.resign(term),
        };
        let late = matches!(&answer, OfficeInput::Stored { outcome: Stored::Unknown, .. });
        let delay = if late { self.rng.between(300, 1500) } else { self.rng.between(1, 10) };
        self.after(delay, Event::Daemon { machine, life, input: ToDaemon::Office(answer) });
    }

    /// The store was not reached, or did not answer.
    fn answer_nothing(&mut self, machine: usize, life: u64, op: StoreOp) {
        let asked_at = self.now;
        self.store.failed_at = asked_at;
        let answer = match op {
            StoreOp::Campaign => OfficeInput::Campaigned { elected: None, asked_at },
            StoreOp::Candidates { term } => OfficeInput::OpenCandidate { term, lives: None },
            StoreOp::Keep { term } => OfficeInput::Kept { term, holds: None, asked_at },
            StoreOp::Load { term } => OfficeInput::Loaded { term, loaded: None },
            StoreOp::Head { term } => OfficeInput::Head { term, head: None },
            StoreOp::Commit { term, .. } => {
                let known = self.rng.chance(500);
                let outcome = if known { Stored::Unavailable } else { Stored::Unknown };
                OfficeInput::Stored { term, outcome }
            }
            StoreOp::Announce | StoreOp::Resign { .. } => return,
        };
        let delay = self.rng.between(100, 1000);
        self.after(delay, Event::Daemon { machine, life, input: ToDaemon::Office(answer) });
    }

    fn commit(&mut self, term: Term, head: u64, ops: Vec<Op>) -> Stored {
        let faults = self.swarm.store.clone();
        if !self.calm {
            if self.store.full_until > self.now {
                self.cover.hit("no space");
                return Stored::NoSpace;
            }
            if self.rng.chance(faults.no_space) {
                self.store.full_until = self.now + self.rng.between(100, 3000);
                return Stored::NoSpace;
            }
            if self.rng.chance(faults.request_lost) {
                self.cover.hit("commit answer lost, it was not applied");
                return Stored::Unknown;
            }
            if self.rng.chance(faults.late) {
                let delay = self.rng.between(100, 6000);
                self.after(delay, Event::StoreLate { term, head, ops });
                return Stored::Unknown;
            }
        }
        if !self.store.takes(term, head, self.now) {
            self.cover.hit("commit refused");
            return Stored::Refused;
        }
        self.committed(term, head, &ops);
        if !self.calm && self.rng.chance(faults.answer_lost) {
            self.cover.hit("commit answer lost, it was applied");
            return Stored::Unknown;
        }
        Stored::Committed
    }

    pub fn lands_late(&mut self, term: Term, head: u64, ops: &[coordinator::Op]) {
        if self.store.takes(term, head, self.now) {
            self.cover.hit("commit applied late");
            self.say(format!("transaction {head} of term {term} lands late"));
            self.committed(term, head, ops);
        }
    }
}
