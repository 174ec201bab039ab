//! Machines and the daemons on them: what survives what, and carrying out what a node asks for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{Code, FeedName, InstanceId, Life, MemoryCaps, Millis, NodeId, Resources, Roles, SpanName, Term};
use protocol::{
    dispatchers::Task,
    edge::{self, Edge},
    message::{DownBody, SetRevision, UpBody, feed::PeerBody},
    node::{FeedNews, FeedWork, Identity, Input, Memory, Node, Output},
};

use crate::{
    feeds::SimTask,
    net::Message,
    office::{Candidate, OfficeInput},
    process::Slot,
    rng::Rng,
    world::{Event, ToDaemon, World},
};

/// Ticks in a row that leave something due: a daemon would spin.
const SPINS_MAX: u32 = 50;
/// Among thousands of spans those on the move are counted after this many steps.
const COUNT_EVERY: u64 = 61;
/// Makes the draw about machines one of its own.
const MACHINES: u64 = 0x3ac4_0000_0000_0000;
/// Long enough for something to happen in it.
const WITHDRAW_DELAY: Millis = Millis::secs(1);

pub struct Machine {
    pub id: NodeId,
    pub roles: Roles,
    pub labels: BTreeMap<String, String>,
    pub capacity: u64,
    /// The most it ever had: what was placed then may still run.
    pub capacity_max: u64,
    /// How far its clock is ahead.
    pub offset: u64,
    pub powered: bool,
    pub boot: u64,
    /// The daemon is stopped by a signal; processes go on.
    pub paused: bool,
    /// Everything stands still, the clock goes on.
    pub suspended: bool,
    /// When it last went on after standing still.
    pub woke_at: u64,
    /// When something last came between it and others, or it went on or stood still.
    pub disturbed_at: u64,
    /// By what is committed, and since when.
    pub closed: bool,
    pub closed_changed_at: u64,
    /// The number of the present or last life of its daemon.
    pub life: u64,
    pub daemon: Option<Daemon>,
    /// What happened while it was paused or suspended.
    pub held: VecDeque<Event>,
    pub degraded: Option<Code>,
    /// Its daemon was told to leave, and did.
    pub left: bool,
    // On disk:
    pub last_life: Option<Life>,
    pub memory: Memory,
    pub slots: BTreeMap<InstanceId, Slot>,
}

pub struct Daemon {
    pub node: Option<Node>,
    pub edge: Option<Edge>,
    pub candidate: Option<Candidate>,
    pub conn: Option<u64>,
    pub dialling: bool,
    /// The machine that is said to be in office.
    pub hint: Option<usize>,
    /// Until when its lease holds, on the world's clock.
    pub lease_until: u64,
    /// Since when it has held without a break.
    pub leased_since: u64,
    pub listening: BTreeSet<u16>,
    /// It was told to end, and ends when it may.
    pub stopping: bool,
    /// Dispatchers: they end with the daemon.
    pub tasks: BTreeMap<(FeedName, SpanName), SimTask>,
    node_tick: Option<u64>,
    edge_tick: Option<u64>,
    pub office_tick: Option<u64>,
    spins: u32,
}

impl Daemon {
    pub fn term_in_office(&self) -> Option<Term> {
        self.candidate.as_ref().and_then(Candidate::term)
    }

    pub fn serves(&self) -> Option<SetRevision> {
        self.edge.as_ref().and_then(Edge::serves)
    }
}

impl World {
    pub fn build(&mut self) {
        let (workers, candidates) = (self.swarm.workers, self.swarm.candidates);
        let apart = if self.swarm.apart { candidates } else { 0 };
        // Whatever else happens, the machines of a seed stay what they are.
        let mut drawn = Rng::new(self.seed ^ MACHINES);
        for at in 0..workers + apart {
            let worker = at < workers;
            let coordinator = if apart > 0 { !worker } else { at < candidates };
            let roles = Roles { coordinator, worker, edge: worker && at < self.swarm.edges };
            let zone = if at % 2 == 0 { "a" } else { "b" };
            let capacity = drawn.between(4, 12) * 100;
            let boot = self.number();
            let offset = drawn.below(100_000);
            self.machines.push(Machine {
                id: NodeId::new(&format!("n{at}")),
                roles,
                labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
                capacity,
                capacity_max: capacity,
                offset,
                powered: true,
                boot,
                paused: false,
                suspended: false,
                woke_at: 0,
                disturbed_at: 0,
                closed: false,
                closed_changed_at: 0,
                life: 0,
                daemon: None,
                held: VecDeque::new(),
                degraded: None,
                left: false,
                last_life: None,
                memory: Memory::default(),
                slots: BTreeMap::new(),
            });
            let delay = self.rng.below(300);
            self.after(delay, Event::StartDaemon { machine: at });
        }
        let safety = self.swarm.safety_ms;
        self.at(safety, Event::Heal);
        self.after(5000, Event::Fault);
        self.after(3000, Event::Request);
        self.after(4000, Event::Client);
    }

    pub fn start_daemon(&mut self, machine: usize) {
        let here = &self.machines[machine];
        if here.daemon.is_some() || !here.powered || here.suspended {
            return;
        }
        let life = self.number();
        let random = self.rng.next();
        let now = self.local(machine);
        self.disturb(machine);
        let here = &mut self.machines[machine];
        (here.life, here.paused, here.left) = (life, false, false);
        here.held.clear();
        let identity = Identity {
            node: here.id.clone(),
            life: Life(random),
            succeeds: here.last_life.replace(Life(random)),
            roles: here.roles,
            labels: here.labels.clone(),
            capacity: Resources { memory: here.capacity, cpu: 4000 },
            host: here.id.to_string(),
            api: format!("{}:7070", here.id),
            rpc: format!("{}:7071", here.id),
            memory_caps: MemoryCaps::CgroupV2,
            memory: here.memory,
        };
        let worker = here.roles.worker;
        here.daemon = Some(Daemon {
            node: worker.then(|| Node::new(identity, self.swarm.timing, now)),
            edge: here.roles.edge.then(|| Edge::with_delay(WITHDRAW_DELAY)),
            candidate: here.roles.coordinator.then(Candidate::default),
            conn: None,
            dialling: false,
            hint: None,
            lease_until: 0,
            leased_since: 0,
            listening: BTreeSet::new(),
            stopping: false,
            tasks: BTreeMap::new(),
            node_tick: None,
            edge_tick: None,
            office_tick: None,
            spins: 0,
        });
        self.say(format!("m{machine} daemon starts, life {life}"));
        for (id, found) in self.find_processes(machine) {
            self.say(format!("m{machine} finds {id}: {found}"));
            self.node_input(machine, found.into_input(id));
        }
        if worker {
            let degraded = self.machines[machine].degraded;
            self.node_input(machine, Input::Machine { degraded });
            self.redial(machine, 1);
        }
        if self.machines[machine].roles.coordinator {
            let delay = self.rng.between(1, 500);
            self.tell_daemon(delay, machine, ToDaemon::Office(OfficeInput::Campaign));
        }
        self.arm(machine);
    }

    /// The daemon ends at once. Its instances run on.
    pub fn kill_daemon(&mut self, machine: usize, silent: bool) {
        let here = &mut self.machines[machine];
        if here.daemon.take().is_none() {
            return;
        }
        self.mark_daemon_end(machine);
        let here = &mut self.machines[machine];
        let life = here.life;
        here.paused = false;
        // Events of processes and of the machine are not the daemon's to lose.
        here.held.retain(|event| !matches!(event, Event::Daemon { .. }));
        self.close_all(machine, life, silent);
        self.abandon_launches(machine);
    }

    pub fn resume_daemon(&mut self, machine: usize) {
        let here = &mut self.machines[machine];
        if !std::mem::take(&mut here.paused) || here.suspended {
            return;
        }
        here.woke_at = self.now;
        self.disturb(machine);
        self.say(format!("m{machine} daemon goes on"));
        self.release_held(machine);
    }

    pub fn set_degraded(&mut self, machine: usize, degraded: Option<Code>) {
        self.machines[machine].degraded = degraded;
        self.tell_daemon(0, machine, ToDaemon::Node(Input::Machine { degraded }));
    }

    pub fn node_tick(&mut self, machine: usize, at: u64) {
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        if daemon.node_tick != Some(at) {
            return;
        }
        daemon.node_tick = None;
        self.node_input(machine, Input::Tick);
        let now = self.local(machine);
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        let due = daemon.node.as_ref().and_then(Node::next_wake).is_some_and(|wake| wake <= now);
        daemon.spins = if due { daemon.spins + 1 } else { 0 };
        if daemon.spins > SPINS_MAX {
            self.fail(18, format!("m{machine}: the node is always due"));
        }
    }

    pub fn edge_tick(&mut self, machine: usize, at: u64) {
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        if daemon.edge_tick == Some(at) {
            daemon.edge_tick = None;
            self.edge_input(machine, edge::Input::Tick);
        }
    }

    /// Sees to it that each actor is woken when it asks to be.
    pub fn arm(&mut self, machine: usize) {
        let (now, here) = (self.now, &self.machines[machine]);
        let Some(daemon) = here.daemon.as_ref() else { return };
        let soon = |time: model::Time| self.global(machine, time).max(now + 1);
        let node = daemon.node.as_ref().and_then(Node::next_wake).map(soon);
        let edge = daemon.edge.as_ref().and_then(Edge::next_wake).map(soon);
        let office = daemon.candidate.as_ref().and_then(Candidate::next_wake).map(soon);
        let earlier = |known: Option<u64>, wanted: Option<u64>| {
            wanted.filter(|wanted| known.is_none_or(|known| *wanted < known || known <= now))
        };
        let node = earlier(daemon.node_tick, node);
        let edge = earlier(daemon.edge_tick, edge);
        let office = earlier(daemon.office_tick, office);
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        daemon.node_tick = node.or(daemon.node_tick);
        daemon.edge_tick = edge.or(daemon.edge_tick);
        daemon.office_tick = office.or(daemon.office_tick);
        let life = self.machines[machine].life;
        let ticks = [
            node.map(|at| (at, ToDaemon::NodeTick(at))),
            edge.map(|at| (at, ToDaemon::EdgeTick(at))),
            office.map(|at| (at, ToDaemon::Office(OfficeInput::Tick(at)))),
        ];
        for (at, input) in ticks.into_iter().flatten() {
            self.at(at, Event::Daemon { machine, life, input });
        }
    }

    pub fn node_input(&mut self, machine: usize, input: Input) {
        let (now, life) = (self.local(machine), self.machines[machine].life);
        // Everything is counted anew, which takes its time where there are thousands.
        let counts = self.swarm.crowd == 0 || self.steps.is_multiple_of(COUNT_EVERY);
        let before = if counts { self.destinations_on(machine) } else { Default::default() };
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        let Some(node) = daemon.node.as_mut() else { return };
        let ordered = ordered_with(&input);
        let outputs = node.handle(now, input);
        if counts {
            self.check_destinations(machine, &before);
        }
        self.check_taken_on(machine, &outputs, ordered);
        for output in outputs {
            if self.machines[machine].life != life || self.machines[machine].daemon.is_none() {
                return;
            }
            self.node_output(machine, output);
        }
        if self.swarm.feeds > 0 {
            if counts {
                self.check_feed_moves(machine);
            }
            self.check_knows_closed(machine);
        }
        self.end_if_stopped(machine);
    }

    /// Dispatchers that are on their way in, or start: not those that run and are made ready again.
    fn check_taken_on(&mut self, machine: usize, outputs: &[Output], ordered: Option<SetRevision>) {
        for output in outputs {
            let Output::Feed(FeedWork::Task { feed, span, task, .. }) = output else { continue };
            let node = self.machines[machine].daemon.as_ref().and_then(|daemon| daemon.node.as_ref());
            let runs = node.is_some_and(|node| node.dispatchers().is_running(feed, span));
            let what = match task {
                Task::Prepare { .. } if !runs => format!("{feed}/{span}"),
                Task::Go { .. } if ordered.is_some() => format!("the start of {feed}/{span}"),
                Task::Prepare { .. } | Task::Go { .. } | Task::Stop { .. } | Task::Abort { .. } => continue,
            };
            self.check_takes_on(machine, &what, ordered);
        }
    }

    fn node_output(&mut self, machine: usize, output: Output) {
        match output {
            Output::Send(up) => {
                if matches!(up.body, UpBody::Relay { .. }) {
                    self.cover.hit("message between nodes by way of the coordinator");
                }
                let conn = self.machines[machine].daemon.as_ref().and_then(|daemon| daemon.conn);
                if let Some(conn) = conn {
                    self.send(conn, true, Message::Up(Box::new(up)));
                }
            }
            Output::Reconnect { why } => self.reconnect(machine, &why),
            Output::Copy { id, note, what } => self.copy(machine, id, note, what),
            Output::GiveUpCopy { id } => self.give_up_copy(machine, id),
            Output::Launch { id, note, run, what } => self.launch(machine, id, note, run, what),
            Output::Note { id, note } => {
                if let Some(slot) = self.machines[machine].slots.get_mut(&id) {
                    slot.note = note;
                }
            }
            Output::Watch { id, run, what } => self.watch(machine, id, run, &what),
            Output::Signal { id, signal } => self.signal(machine, id, signal),
            Output::Kill { id } => self.kill(machine, id),
            Output::Erase { id, volume } => self.erase(machine, id, volume),
            Output::Remember(memory) => self.machines[machine].memory = memory,
            Output::Lease { fence_at } => self.leased(machine, fence_at),
            Output::Sets(sets) => self.edge_input(machine, edge::Input::Sets(sets)),
            Output::Duty(duty) => self.edge_input(machine, edge::Input::Duty(duty)),
            Output::Feed(work) => self.feed_work(machine, work),
            Output::Leave => self.leave(machine),
            Output::GiveUp { message } => {
                self.say(format!("m{machine} gives up: {message}"));
                self.kill_daemon(machine, false);
                self.after(1000, Event::StartDaemon { machine });
            }
        }
    }

    /// It has drained, and ends as it was asked to.
    fn leave(&mut self, machine: usize) {
        self.say(format!("m{machine} leaves"));
        self.cover.hit("daemon left once drained");
        if self.machines[machine].slots.values().any(|slot| slot.live().is_some()) {
            return self.fail(6, format!("m{machine} leaves with a process alive"));
        }
        if let Some(lives) = self.feeds_live_on(&self.machines[machine].id.clone(), |_| false) {
            return self.fail(6, format!("m{machine} leaves with {lives} at work"));
        }
        self.node_input(machine, Input::Stopping);
        self.kill_daemon(machine, false);
        self.machines[machine].left = true;
        if !self.calm {
            let pause = self.rng.between(500, 20_000);
            self.after(pause, Event::StartDaemon { machine });
        }
    }

    fn reconnect(&mut self, machine: usize, why: &str) {
        self.say(format!("m{machine} dials again: {why}"));
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        if let Some(conn) = daemon.conn.take() {
            self.close_conn(conn, true);
            self.tell_daemon(0, machine, ToDaemon::Disconnected);
        }
        self.redial(machine, 50);
    }

    fn leased(&mut self, machine: usize, fence_at: model::Time) {
        let until = self.global(machine, fence_at);
        if let Some(daemon) = self.machines[machine].daemon.as_mut() {
            if daemon.lease_until <= self.now {
                daemon.leased_since = self.now;
            }
            daemon.lease_until = daemon.lease_until.max(until);
        }
        if self.swarm.keepers {
            self.tell_keepers(machine, until);
        }
    }

    pub fn edge_input(&mut self, machine: usize, input: edge::Input) {
        let now = self.local(machine);
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        let Some(edge) = daemon.edge.as_mut() else { return };
        let before = edge.report();
        let outputs = edge.handle(input, now);
        let after = edge.report();
        for output in outputs {
            self.edge_output(machine, output);
        }
        self.note_withdrawal(machine, before.withdrawal, after.withdrawal);
        if before != after {
            self.node_input(machine, Input::Edge(after));
        }
    }
}

/// The roster that a maintainer knew when it ordered something of this node.
fn ordered_with(input: &Input) -> Option<SetRevision> {
    let body = match input {
        Input::Feed(FeedNews::Heard(peer)) => &peer.body,
        Input::Down(down) => match &down.body {
            DownBody::Relay(peer) => &peer.body,
            DownBody::Answer(_)
            | DownBody::Refused { .. }
            | DownBody::Welcome(_)
            | DownBody::Sets(_)
            | DownBody::Orders(_)
            | DownBody::Duty(_)
            | DownBody::Feeds(_)
            | DownBody::Roster(_)
            | DownBody::Leave => return None,
        },
        _ => return None,
    };
    match body {
        PeerBody::Orders { roster, .. } => Some(*roster),
        PeerBody::Ask { .. }
        | PeerBody::Inventory { .. }
        | PeerBody::Same { .. }
        | PeerBody::News { .. }
        | PeerBody::Progress { .. } => None,
    }
}
