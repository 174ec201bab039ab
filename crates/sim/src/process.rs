//! Simulated processes with their keepers: they start slowly or not at all, crash, hang, fall sick, and
//! live on when the daemon does not.

use std::sync::Arc;

use model::{Code, Exit, InstanceId, Kind, spec::Signal};
use protocol::{
    message::{Run, VolumeOrder},
    node::{Input, Note, Process},
};

use crate::world::{Event, ToDaemon, World};

#[derive(Clone, Copy, Debug)]
pub enum ProcessEvent {
    /// Its launch, asked for by this life of the daemon, is through.
    Born {
        life: u64,
    },
    Exits(Exit),
    /// Its keeper looks at the fence.
    Fence,
}

/// What is on a machine's disk of one instance, and its process.
pub struct Slot {
    pub note: Note,
    pub run: Arc<Run>,
    pub runs: u32,
    /// A launch is under way.
    launching: bool,
    pub launched_at: u64,
    pub state: State,
    /// Whose scratch data is in its directory, whole.
    pub took: Option<InstanceId>,
    /// The copy that is under way, and the life of the daemon that began one last.
    pub copy: Option<u64>,
    pub copy_life: u64,
}

pub enum State {
    NotStarted,
    Live(Live),
    Ended { exit: Exit },
    Lost,
}

pub struct Live {
    pub pid: u32,
    pub ports: Vec<u16>,
    born_at: u64,
    /// Passes its check from then on.
    healthy_from: u64,
    /// Fails its check between these times.
    sick: Option<(u64, u64)>,
    ignores_signals: bool,
    /// Its keeper kills it then.
    fence: Option<u64>,
    /// It was told to stop by an order.
    pub told_to_stop: bool,
}

/// What a new life of the daemon finds.
pub struct FoundProcess {
    note: Note,
    run: Arc<Run>,
    runs: u32,
    process: Process,
}

impl std::fmt::Display for FoundProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Note { order, wanted, over, .. } = self.note;
        let (service, release, process) = (&self.run.service, self.run.release, &self.process);
        write!(f, "{service} r{release}, o{order} {wanted:?} over={over:?}, {process:?}")
    }
}

impl FoundProcess {
    pub fn into_input(self, id: InstanceId) -> Input {
        Input::Found { id, note: self.note, run: self.run, runs: self.runs, process: self.process }
    }
}

impl Slot {
    /// Written down, and not started.
    pub fn to_be_filled(note: Note, run: Arc<Run>, now: u64) -> Slot {
        let (launched_at, state) = (now, State::NotStarted);
        let (took, copy, copy_life) = (None, None, 0);
        Slot { note, run, runs: 0, launching: false, launched_at, state, took, copy, copy_life }
    }

    pub fn live(&self) -> Option<&Live> {
        match &self.state {
            State::Live(live) => Some(live),
            State::NotStarted | State::Ended { .. } | State::Lost => None,
        }
    }

    fn live_mut(&mut self) -> Option<&mut Live> {
        match &mut self.state {
            State::Live(live) => Some(live),
            State::NotStarted | State::Ended { .. } | State::Lost => None,
        }
    }
}

impl World {
    pub fn launch(&mut self, machine: usize, id: InstanceId, note: Note, run: u32, what: Arc<Run>) {
        self.say(format!("m{machine} launches {id}, run {run}"));
        let slots = &mut self.machines[machine].slots;
        let alive = slots.get(&id).is_some_and(|slot| slot.live().is_some());
        let took = slots.get(&id).and_then(|slot| slot.took);
        let slot = Slot::to_be_filled(note, what, self.now);
        slots.insert(id, Slot { runs: run, launching: true, took, ..slot });
        if alive {
            self.fail(11, format!("m{machine} launches {id} while its process lives"));
        }
        self.check_scratch(machine, id);
        // Without keepers nothing stops a launch that is under way when the fence comes.
        let slow = !self.calm && self.swarm.keepers && self.rng.chance(self.swarm.process.slow);
        let delay = if slow { self.rng.between(500, 5000) } else { self.rng.between(5, 100) };
        let (boot, life) = (self.machines[machine].boot, self.machines[machine].life);
        self.after(delay, Event::Process { machine, boot, id, run, what: ProcessEvent::Born { life } });
    }

    pub fn process_event(&mut self, machine: usize, boot: u64, id: InstanceId, run: u32, what: ProcessEvent) {
        let here = &mut self.machines[machine];
        if here.boot != boot {
            return;
        }
        if here.suspended {
            here.held.push_back(Event::Process { machine, boot, id, run, what });
            return;
        }
        if here.slots.get(&id).is_none_or(|slot| slot.runs != run) {
            return;
        }
        match what {
            ProcessEvent::Born { life } if here.life == life && here.daemon.is_some() => {
                self.born(machine, id, run);
            }
            ProcessEvent::Born { .. } => {}
            ProcessEvent::Exits(exit) => self.exits(machine, id, exit),
            ProcessEvent::Fence => self.keeper_looks(machine, id),
        }
    }

    fn born(&mut self, machine: usize, id: InstanceId, run: u32) {
        let lease = self.machines[machine].daemon.as_ref().map_or(0, |daemon| daemon.lease_until);
        let Some(slot) = self.machines[machine].slots.get_mut(&id) else { return };
        if !std::mem::take(&mut slot.launching) {
            return;
        }
        let what = slot.run.clone();
        let broken = self.workload.brokenness(&what);
        let fails = !self.calm && (self.rng.chance(self.swarm.process.start_fails) || broken == Some(0));
        let fenced = what.spec.is_fenced() && self.swarm.keepers && lease <= self.now;
        if fails {
            self.cover.hit("start failed");
            let code = if self.rng.chance(300) { Code::NoPort } else { Code::StartFailed };
            let message = "it could not be started".to_owned();
            let input = Input::LaunchFailed { id, run, code, message };
            return self.tell_daemon(1, machine, ToDaemon::Node(input));
        }
        if fenced {
            self.end(machine, id, Exit::Signal(9));
            return;
        }
        let (pid, first) = (self.number() as u32, 20_000 + (self.number() % 20_000) as u16);
        let ports: Vec<u16> = (0..what.spec.ports.len() as u16).map(|at| first + at).collect();
        let live = self.draw_life(&what, pid, ports.clone(), lease, broken);
        self.say(format!("m{machine} {id} of {} runs, pid {pid}", what.service));
        self.plan_exit(machine, id, run, &what, broken);
        if let Some(slot) = self.machines[machine].slots.get_mut(&id) {
            slot.state = State::Live(live);
        }
        self.check_start(machine, id);
        self.tell_daemon(1, machine, ToDaemon::Node(Input::Launched { id, run, pid, ports }));
        if what.spec.is_fenced() && self.swarm.keepers {
            let boot = self.machines[machine].boot;
            self.at(lease, Event::Process { machine, boot, id, run, what: ProcessEvent::Fence });
        }
    }

    fn draw_life(&mut self, what: &Run, pid: u32, ports: Vec<u16>, lease: u64, broken: Option<u64>) -> Live {
        let faults = self.swarm.process.clone();
        let slow = !self.calm && self.rng.chance(faults.slow);
        let settle = if slow { self.rng.between(500, 8000) } else { self.rng.between(0, 300) };
        let sick = (!self.calm && self.rng.chance(faults.sick)).then(|| {
            let from = self.now + self.rng.between(1000, 15_000);
            (from, from + self.rng.between(500, 10_000))
        });
        let never = !self.calm && broken == Some(1);
        Live {
            pid,
            ports,
            born_at: self.now,
            healthy_from: if never { u64::MAX } else { self.now + settle },
            sick,
            ignores_signals: !self.calm && self.rng.chance(faults.hangs_on_stop),
            fence: (what.spec.is_fenced() && self.swarm.keepers).then_some(lease),
            told_to_stop: false,
        }
    }

    fn plan_exit(&mut self, machine: usize, id: InstanceId, run: u32, what: &Run, broken: Option<u64>) {
        let boot = self.machines[machine].boot;
        let crashes = !self.calm && (self.rng.chance(self.swarm.process.crashes) || broken == Some(2));
        let batch = what.spec.kind == Kind::Batch;
        let (delay, exit) = match (crashes, batch) {
            (true, _) if broken == Some(2) => (self.rng.between(1, 500), Exit::Code(3)),
            (true, _) => (self.rng.between(100, 20_000), Exit::Code(1)),
            (false, true) => (self.rng.between(500, 15_000), Exit::Code(0)),
            (false, false) => return,
        };
        self.after(delay, Event::Process { machine, boot, id, run, what: ProcessEvent::Exits(exit) });
    }

    fn exits(&mut self, machine: usize, id: InstanceId, exit: Exit) {
        let alive = self.machines[machine].slots.get(&id).is_some_and(|slot| slot.live().is_some());
        if alive {
            self.end(machine, id, exit);
        }
    }

    fn end(&mut self, machine: usize, id: InstanceId, exit: Exit) {
        let Some(slot) = self.machines[machine].slots.get_mut(&id) else { return };
        slot.state = State::Ended { exit };
        let run = slot.runs;
        let batch = slot.run.spec.kind == Kind::Batch;
        self.say(format!("m{machine} {id} ended: {exit:?}"));
        if batch && exit == Exit::Code(0) {
            self.cover.hit("batch complete");
        }
        if self.machines[machine].daemon.is_none() {
            self.cover.hit("ended while the daemon was dead");
            return;
        }
        let input = Input::Exited { id, run, exit, memory_exceeded: false, message: None };
        let delay = self.rng.between(0, 5);
        self.tell_daemon(delay, machine, ToDaemon::Node(input));
    }

    /// A daemon that dies in the middle of a launch leaves it done or not done.
    pub fn abandon_launches(&mut self, machine: usize) {
        let ids: Vec<InstanceId> = self.machines[machine]
            .slots
            .iter_mut()
            .filter_map(|(id, slot)| {
                slot.copy = None;
                std::mem::take(&mut slot.launching).then_some(*id)
            })
            .collect();
        for id in ids {
            if !self.rng.chance(500) || !self.machines[machine].powered {
                continue;
            }
            let Some(slot) = self.machines[machine].slots.get(&id) else { continue };
            let (what, run) = (slot.run.clone(), slot.runs);
            if what.spec.is_fenced() {
                continue;
            }
            let pid = self.number() as u32;
            let ports: Vec<u16> = (0..what.spec.ports.len() as u16).map(|at| 50_000 + at).collect();
            let live = self.draw_life(&what, pid, ports, 0, None);
            self.plan_exit(machine, id, run, &what, None);
            if let Some(slot) = self.machines[machine].slots.get_mut(&id) {
                slot.state = State::Live(live);
            }
            self.check_start(machine, id);
        }
    }

    pub fn find_processes(&mut self, machine: usize) -> Vec<(InstanceId, FoundProcess)> {
        let mut adopted = false;
        let found = self.machines[machine].slots.iter().map(|(id, slot)| {
            let process = match &slot.state {
                State::NotStarted => Process::NotStarted,
                State::Live(live) => {
                    adopted = true;
                    Process::Running { pid: live.pid, ports: live.ports.clone() }
                }
                State::Ended { exit } => {
                    Process::Ended { exit: *exit, memory_exceeded: false, message: None }
                }
                State::Lost => Process::Lost { message: "the machine was restarted".to_owned() },
            };
            (*id, FoundProcess { note: slot.note, run: slot.run.clone(), runs: slot.runs, process })
        });
        let found = found.collect();
        if adopted {
            self.cover.hit("adopted after a restart of the daemon");
        }
        found
    }

    /// Nothing survives a loss of power but the disk.
    pub fn lose_processes(&mut self, machine: usize) {
        for slot in self.machines[machine].slots.values_mut() {
            slot.launching = false;
            if slot.live().is_some() {
                slot.state = State::Lost;
            }
        }
    }

    pub fn watch(&mut self, machine: usize, id: InstanceId, run: u32, what: &Run) {
        if what.spec.check.is_some() {
            let delay = self.rng.between(25, 100);
            self.tell_daemon(delay, machine, ToDaemon::Check { id, run });
        }
    }

    pub fn check_process(&mut self, machine: usize, id: InstanceId, run: u32) {
        let now = self.now;
        let Some(slot) = self.machines[machine].slots.get(&id).filter(|slot| slot.runs == run) else {
            return;
        };
        let Some(live) = slot.live() else { return };
        let sick = !self.calm && live.sick.is_some_and(|(from, to)| (from..to).contains(&now));
        let passed = (self.calm || live.healthy_from <= now) && !sick;
        let interval = slot.run.spec.check.as_ref().map_or(500, |check| check.interval.0);
        let message = if passed { String::new() } else { "not ready".to_owned() };
        self.node_input(machine, Input::Checked { id, run, passed, message });
        self.tell_daemon(interval, machine, ToDaemon::Check { id, run });
    }

    pub fn signal(&mut self, machine: usize, id: InstanceId, signal: Signal) {
        self.say(format!("m{machine} signals {id}"));
        let Some(slot) = self.machines[machine].slots.get(&id) else { return };
        let (run, boot) = (slot.runs, self.machines[machine].boot);
        if slot.live().is_none() {
            return;
        }
        self.check_stop(machine, id);
        let Some(live) = self.machines[machine].slots.get_mut(&id).and_then(Slot::live_mut) else { return };
        if live.ignores_signals && signal != Signal::Kill {
            return;
        }
        let exit = if self.rng.chance(500) { Exit::Code(0) } else { Exit::Signal(signal.number()) };
        let delay = self.rng.between(1, 400);
        self.after(delay, Event::Process { machine, boot, id, run, what: ProcessEvent::Exits(exit) });
    }

    pub fn kill(&mut self, machine: usize, id: InstanceId) {
        self.say(format!("m{machine} kills {id}"));
        let Some(slot) = self.machines[machine].slots.get(&id) else { return };
        let (run, boot) = (slot.runs, self.machines[machine].boot);
        if slot.live().is_none() {
            return;
        }
        self.cover.hit("killed after its grace");
        let delay = self.rng.between(1, 20);
        let exit = ProcessEvent::Exits(Exit::Signal(9));
        self.after(delay, Event::Process { machine, boot, id, run, what: exit });
    }

    pub fn erase(&mut self, machine: usize, id: InstanceId, volume: Option<VolumeOrder>) {
        let slot = self.machines[machine].slots.remove(&id);
        if slot.is_some_and(|slot| slot.live().is_some()) {
            self.fail(17, format!("m{machine} erases {id} while its process lives"));
        }
        self.check_erased(id);
        if let Some(volume) = volume {
            self.destroyed_volume(machine, &volume);
        }
        self.cover.hit("forgotten");
        let delay = self.rng.between(1, 20);
        self.tell_daemon(delay, machine, ToDaemon::Node(Input::Erased { id }));
    }

    /// The lease was extended: keepers of what must not run twice are told.
    pub fn tell_keepers(&mut self, machine: usize, until: u64) {
        let boot = self.machines[machine].boot;
        let mut told = Vec::new();
        for (id, slot) in &mut self.machines[machine].slots {
            let (fenced, run) = (slot.run.spec.is_fenced(), slot.runs);
            if let Some(live) = slot.live_mut().filter(|live| fenced && live.fence < Some(until)) {
                live.fence = Some(until);
                told.push((*id, run));
            }
        }
        for (id, run) in told {
            self.at(until, Event::Process { machine, boot, id, run, what: ProcessEvent::Fence });
        }
    }

    fn keeper_looks(&mut self, machine: usize, id: InstanceId) {
        let now = self.now;
        let Some(live) = self.machines[machine].slots.get(&id).and_then(Slot::live) else { return };
        if live.fence.is_some_and(|fence| fence <= now) {
            self.cover.hit("fence fired in a keeper");
            self.end(machine, id, Exit::Signal(9));
        }
    }

    /// A machine that wakes up: timers that are over ring before anything else happens.
    pub fn keepers_wake(&mut self, machine: usize) {
        let ids: Vec<InstanceId> = self.machines[machine].slots.keys().copied().collect();
        for id in ids {
            self.keeper_looks(machine, id);
        }
    }

    /// Takes connections at this address.
    pub fn accepts(&self, machine: usize, id: InstanceId, port: u16) -> bool {
        let here = &self.machines[machine];
        let live = here.slots.get(&id).and_then(Slot::live);
        !here.suspended && live.is_some_and(|live| live.ports.contains(&port) && live.born_at <= self.now)
    }
}
