//! The world: what exists, what happens when, and one step after the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{Cluster, FeedName, InstanceId, SpanName, Term, Time};
use protocol::{coordinator, edge, node};

use crate::{
    Coverage, Failure, Options, Outcome,
    closed::Told,
    feeds::{FeedWorld, TaskStep},
    machine::Machine,
    net::{Conn, Message},
    office::{OfficeInput, StoreOp},
    process::ProcessEvent,
    rng::Rng,
    script::{Item, Played, Script},
    store::SimStore,
    stores::StoreWorld,
    swarm::{MoveLimits, Swarm},
    trace::Trace,
    workload::Workload,
};

/// Makes the draw about drains one of its own.
const DRAINS: u64 = 0xd7a1_0000_0000_0000;
/// As above, about feeds.
const FEEDS: u64 = 0xfeed_0000_0000_0000;
/// As above, about how much may move at a time.
const LIMITS: u64 = 0x11b1_0000_0000_0000;
/// As above, about faults that came later.
const MORE: u64 = 0x30fe_0000_0000_0000;
/// As above, about feeds of thousands, and what came later about feeds.
const CROWDS: u64 = 0xc40d_0000_0000_0000;
/// Another course of everything that no item of a script decides.
const NOISE: u64 = 0x7015_e000_0000_0000;
/// As above, about stores.
const STORES: u64 = 0x5704_e000_0000_0000;
/// Where the clocks of the machines begin.
pub const EPOCH: u64 = 1_700_000_000_000;
/// A seed that takes more steps goes round in circles.
const STEPS_MAX: u64 = 400_000;
/// One of thousands of spans may take so many more.
const STEPS_PER_SPAN: u64 = 400;
/// The whole state is checked after this many steps of coordinators.
const CHECK_EVERY: u64 = 32;

/// What happens at some time.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a few hundred wait at a time, each in a box")]
pub enum Event {
    Daemon {
        machine: usize,
        life: u64,
        input: ToDaemon,
    },
    Process {
        machine: usize,
        boot: u64,
        id: InstanceId,
        run: u32,
        what: ProcessEvent,
    },
    Deliver {
        conn: u64,
        up: bool,
        message: Message,
    },
    Store {
        machine: usize,
        life: u64,
        op: StoreOp,
    },
    /// A transaction whose answer was lost lands after all.
    StoreLate {
        term: Term,
        head: u64,
        ops: Vec<coordinator::Op>,
    },
    StartDaemon {
        machine: usize,
    },
    ResumeDaemon {
        machine: usize,
    },
    WakeMachine {
        machine: usize,
    },
    PowerOn {
        machine: usize,
    },
    Unblock {
        pairs: Vec<(usize, usize)>,
    },
    ReconnectStore {
        machine: usize,
    },
    Recover {
        machine: usize,
    },
    /// A call reaches a backend.
    Backend {
        machine: usize,
        life: u64,
        term: Term,
        order: Box<coordinator::BackendOrder>,
    },
    Fault,
    Request,
    /// A hand-over is struck: the one that takes over dies, the one before stands still.
    Strike {
        origin: usize,
        taker: usize,
    },
    /// An operator enables this node, as soon as the last request was answered.
    Enable {
        node: String,
    },
    GiveUpRequest {
        id: u64,
    },
    Client,
    Heal,
    LookWhetherQuiet,
}

/// What a daemon has to deal with; waits while it is paused.
#[derive(Clone, Debug)]
pub enum ToDaemon {
    NodeTick(u64),
    EdgeTick(u64),
    Dial,
    Opened {
        conn: u64,
    },
    Disconnected,
    Node(node::Input),
    Check {
        id: InstanceId,
        run: u32,
    },
    Copied {
        id: InstanceId,
        attempt: u64,
    },
    Edge(edge::Input),
    Office(OfficeInput),
    /// Nobody waits any longer for it to end well.
    End,
    Task {
        feed: FeedName,
        span: SpanName,
        run: u32,
        step: TaskStep,
    },
}

pub struct World {
    pub seed: u64,
    pub now: u64,
    pub steps: u64,
    sequence: u64,
    /// Boxed: most of what is moved about when the queue changes would be what nobody looks at.
    queue: BTreeMap<(u64, u64), Box<Event>>,
    pub script: Script,
    /// The next fault and the next request.
    pub next_items: (u64, u64),
    pub played: Vec<Played>,
    pub rng: Rng,
    pub swarm: Swarm,
    pub machines: Vec<Machine>,
    pub store: SimStore,
    /// The committed state, as following the store shows it.
    pub mirror: Cluster,
    pub conns: BTreeMap<u64, Conn>,
    /// Messages from one machine do not reach the other.
    pub blocked: BTreeSet<(usize, usize)>,
    pub store_cut: BTreeSet<usize>,
    /// When it was first committed that an instance is to stop.
    pub stop_decided: BTreeMap<InstanceId, u64>,
    /// Nodes whose part of a drain ends in the transaction that is being stored.
    pub drain_ended: BTreeSet<String>,
    /// Nodes that were to come back with their next life before it.
    pub returning: BTreeSet<String>,
    /// Nodes whose edge has withdrawn, and for which drain.
    pub withdrew: BTreeSet<(String, u64)>,
    /// Instances that have had their scratch data, or have given it up.
    pub scratch_settled: BTreeSet<InstanceId>,
    pub workload: Workload,
    pub feeds: FeedWorld,
    pub told: Told,
    pub stores: StoreWorld,
    /// Faults are over.
    pub calm: bool,
    pub failure: Option<Failure>,
    pub done: bool,
    pub trace: Trace,
    pub cover: Coverage,
    last_number: u64,
    pub looks: u64,
    pub quiet: Option<(u64, u64)>,
    /// When operators opened every node again, after the faults.
    pub reopened: Option<u64>,
}

impl World {
    pub fn new(script: &Script, options: &Options) -> World {
        let seed = script.seed;
        let mut rng = Rng::new(seed);
        let mut swarm = Swarm::draw(&mut rng);
        swarm.draw_drains(&mut Rng::new(seed ^ DRAINS));
        swarm.draw_feeds(&mut Rng::new(seed ^ FEEDS));
        swarm.limits = MoveLimits::draw(&mut Rng::new(seed ^ LIMITS));
        swarm.draw_more(&mut Rng::new(seed ^ MORE));
        swarm.draw_stores(&mut Rng::new(seed ^ STORES));
        swarm.draw_crowds(&mut Rng::new(seed ^ CROWDS));
        script.shape(&mut swarm);
        if script.noise > 0 {
            rng = Rng::new(seed ^ NOISE ^ script.noise);
        }
        let mut world = World {
            seed,
            now: 0,
            steps: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            script: script.clone(),
            next_items: (0, 0),
            played: Vec::new(),
            machines: Vec::new(),
            store: SimStore::default(),
            mirror: Cluster::default(),
            conns: BTreeMap::new(),
            blocked: BTreeSet::new(),
            store_cut: BTreeSet::new(),
            stop_decided: BTreeMap::new(),
            drain_ended: BTreeSet::new(),
            returning: BTreeSet::new(),
            withdrew: BTreeSet::new(),
            scratch_settled: BTreeSet::new(),
            workload: Workload::default(),
            feeds: FeedWorld::default(),
            told: Told::default(),
            stores: StoreWorld::default(),
            calm: false,
            failure: None,
            done: false,
            trace: Trace::new(options.trace, options.lines),
            cover: Coverage::default(),
            last_number: 0,
            looks: 0,
            quiet: None,
            reopened: None,
            rng,
            swarm,
        };
        world.say(format!("{:?}", world.swarm));
        world.build();
        world
    }

    pub fn run(mut self) -> Outcome {
        while self.failure.is_none() && !self.done {
            let Some(((at, _), event)) = self.queue.pop_first() else { break };
            self.now = at;
            self.steps += 1;
            self.trace.step(at);
            let most = STEPS_MAX + STEPS_PER_SPAN * self.swarm.crowd;
            if self.steps > most {
                self.fail(18, format!("still busy after {most} steps"));
                break;
            }
            self.happen(*event);
        }
        if let Some(failure) = &mut self.failure {
            failure.trace = self.trace.tail();
        }
        Outcome {
            seed: self.seed,
            failure: self.failure,
            steps: self.steps,
            trace_hash: self.trace.hash(),
            coverage: self.cover,
            played: self.played,
        }
    }

    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Daemon { machine, life, input } => self.daemon_event(machine, life, input),
            Event::Process { machine, boot, id, run, what } => {
                self.process_event(machine, boot, id, run, what)
            }
            Event::Deliver { conn, up, message } => self.deliver(conn, up, message),
            Event::Store { machine, life, op } => self.at_store(machine, life, op),
            Event::StoreLate { term, head, ops } => self.lands_late(term, head, &ops),
            Event::StartDaemon { machine } => self.start_daemon(machine),
            Event::ResumeDaemon { machine } => self.resume_daemon(machine),
            Event::WakeMachine { machine } => self.wake_machine(machine),
            Event::PowerOn { machine } => self.power_on(machine),
            Event::Unblock { pairs } => self.unblock(&pairs),
            Event::ReconnectStore { machine } => {
                self.store_cut.remove(&machine);
                self.disturb(machine);
            }
            Event::Recover { machine } => self.set_degraded(machine, None),
            Event::Backend { machine, life, term, order } => {
                self.backend_reached(machine, life, term, *order)
            }
            Event::Fault => self.next_fault(),
            Event::Request => self.next_request(),
            Event::Strike { origin, taker } => self.strike(origin, taker),
            Event::Enable { node } => self.enable_soon(node),
            Event::GiveUpRequest { id } => self.give_up_request(id),
            Event::Client => self.next_client(),
            Event::Heal => self.heal(),
            Event::LookWhetherQuiet => self.look_whether_quiet(),
        }
    }

    /// A number that was not given before: lives, connections, pids.
    pub fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), Box::new(event));
    }

    pub fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    /// To the daemon that lives on this machine now, and to no later one.
    pub fn tell_daemon(&mut self, delay: u64, machine: usize, input: ToDaemon) {
        let life = self.machines[machine].life;
        self.after(delay, Event::Daemon { machine, life, input });
    }

    /// What a machine's own clock shows.
    pub fn local(&self, machine: usize) -> Time {
        Time(EPOCH + self.machines[machine].offset + self.now)
    }

    pub fn global(&self, machine: usize, time: Time) -> u64 {
        time.0.saturating_sub(EPOCH + self.machines[machine].offset)
    }

    pub fn say(&mut self, text: String) {
        self.trace.line(self.now, text);
    }

    /// One item of the schedule: what it draws is its own, so that others may be left out without it.
    pub fn play(&mut self, item: Item, act: impl FnOnce(&mut World)) {
        let rest = std::mem::replace(&mut self.rng, Rng::new(item.seed(self.seed)));
        act(self);
        self.rng = rest;
    }

    /// An item of the schedule happens, unless the script leaves it out.
    pub fn plays(&self, item: Item) -> bool {
        self.script.has(item)
    }

    pub fn played(&mut self, item: Item, what: impl FnOnce() -> String) {
        let what = if self.trace.is_kept() { what() } else { String::new() };
        self.say(what.clone());
        self.played.push(Played { item, at: self.now, what });
    }

    pub fn fail(&mut self, invariant: u32, message: String) {
        if self.failure.is_none() {
            self.say(format!("VIOLATION of {invariant}: {message}"));
            self.failure =
                Some(Failure { seed: self.seed, invariant, at: self.now, message, trace: Vec::new() });
        }
    }

    fn daemon_event(&mut self, machine: usize, life: u64, input: ToDaemon) {
        let here = &mut self.machines[machine];
        if here.life != life || here.daemon.is_none() {
            return;
        }
        if here.paused || here.suspended {
            here.held.push_back(Event::Daemon { machine, life, input });
            return;
        }
        match input {
            ToDaemon::NodeTick(at) => self.node_tick(machine, at),
            ToDaemon::EdgeTick(at) => self.edge_tick(machine, at),
            ToDaemon::Dial => self.dial(machine),
            ToDaemon::Opened { conn } => self.opened(machine, conn),
            ToDaemon::Disconnected => self.node_input(machine, node::Input::Disconnected),
            ToDaemon::Node(input) => self.node_input(machine, input),
            ToDaemon::Copied { id, attempt } => self.copy_is_due(machine, id, attempt),
            ToDaemon::Check { id, run } => self.check_process(machine, id, run),
            ToDaemon::Edge(input) => self.edge_input(machine, input),
            ToDaemon::Office(input) => self.office_input(machine, input),
            ToDaemon::End => self.end_daemon(machine),
            ToDaemon::Task { feed, span, run, step } => self.task_step(machine, feed, span, run, step),
        }
        self.arm(machine);
    }

    pub fn release_held(&mut self, machine: usize) {
        let held: VecDeque<Event> = std::mem::take(&mut self.machines[machine].held);
        for event in held {
            self.happen(event);
        }
    }

    /// Whether it is time to look at everything.
    pub fn time_to_check(&mut self) -> bool {
        self.looks += 1;
        self.looks.is_multiple_of(CHECK_EVERY)
    }
}
