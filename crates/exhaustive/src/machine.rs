//! The node's side: what a daemon is told, and carrying out what it asks for.

use std::sync::Arc;

use model::{Exit, InstanceId, Life, MemoryCaps, Millis, NodeId, Resources, Roles, Time};
use protocol::{
    coordinator::ConnId,
    edge::{self, Edge},
    message::Run,
    node::{Identity, Input, Node, Note, Output, Process},
};

use crate::{
    config::{Broken, TIMING},
    world::{Daemon, Letter, Machine, Proc, Slot, World},
};

/// A daemon that was turned away dials again after this.
const REDIAL_PAUSE: Millis = Millis::secs(30);
const PORT: u16 = 8000;

impl World {
    fn machine_mut(&mut self, machine: usize) -> &mut Machine {
        self.machines[machine].get_mut()
    }

    pub fn daemon(&self, machine: usize) -> Option<&Daemon> {
        self.machines[machine].daemon.as_ref()
    }

    fn daemon_mut(&mut self, machine: usize) -> Option<&mut Daemon> {
        self.machines[machine].get_mut().daemon.as_mut()
    }

    /// A daemon starts, and finds what earlier ones left.
    pub fn start_daemon(&mut self, machine: usize) {
        let (now, edges) = (self.time(), self.config.edges);
        let here = self.machine_mut(machine);
        here.lives += 1;
        let life = Life(here.lives);
        let node = NodeId::new(&World::name(machine));
        let identity = Identity {
            life,
            succeeds: here.last_life.replace(life),
            roles: Roles { coordinator: false, worker: true, edge: machine < edges },
            labels: Default::default(),
            capacity: Resources { memory: 1000, cpu: 1000 },
            host: node.to_string(),
            api: format!("{node}:7070"),
            rpc: format!("{node}:7071"),
            memory_caps: MemoryCaps::CgroupV2,
            memory: here.memory,
            node,
        };
        here.daemon = Some(Daemon {
            node: Node::new(identity, TIMING, now),
            edge: (machine < edges).then(|| Edge::with_delay(Millis::ZERO)),
            conn: None,
            dials_at: now,
            lease_until: Time(0),
            late: Default::default(),
        });
        let found: Vec<(InstanceId, Slot)> =
            here.slots.iter().map(|(id, slot)| (*id, slot.clone())).collect();
        for (id, slot) in found {
            let process = match slot.process {
                Proc::NotStarted | Proc::Launching => Process::NotStarted,
                Proc::Live { .. } => Process::Running { pid: slot.runs, ports: vec![PORT] },
                Proc::Ended(exit) => Process::Ended { exit, memory_exceeded: false, message: None },
                Proc::Lost => Process::Lost { message: "the machine was restarted".to_owned() },
            };
            let Slot { note, run, runs, .. } = slot;
            self.node_input(machine, Input::Found { id, note, run, runs, process });
        }
        self.node_input(machine, Input::Machine { degraded: None });
    }

    /// The daemon ends at once; with `power`, so does everything that runs.
    pub fn kill_daemon(&mut self, machine: usize, power: bool) {
        self.lose_conn(machine);
        let here = self.machine_mut(machine);
        here.daemon = None;
        for slot in here.slots.values_mut() {
            slot.process = match &slot.process {
                // It was not started: the launch was the daemon's own.
                Proc::Launching => Proc::NotStarted,
                Proc::Live { .. } if power => Proc::Lost,
                other => other.clone(),
            };
        }
    }

    /// The node's end of its stream is gone, and what was on its way with it.
    fn lose_conn(&mut self, machine: usize) {
        let Some(ConnId(id)) = self.daemon_mut(machine).and_then(|daemon| daemon.conn.take()) else { return };
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.up.clear();
            conn.down.clear();
            conn.broken = true;
        }
    }

    /// A stream breaks; the node sees it at once and dials again.
    pub fn break_conn(&mut self, id: u64) {
        let Some(machine) = self.conns.get(&id).map(|conn| conn.machine) else { return };
        if self.daemon(machine).is_some_and(|daemon| daemon.conn == Some(ConnId(id))) {
            self.lose_conn(machine);
            self.node_input(machine, Input::Disconnected);
        }
    }

    pub fn dial(&mut self, machine: usize, term: model::Term) {
        let id = self.open_conn(machine, term);
        if let Some(daemon) = self.daemon_mut(machine) {
            daemon.conn = Some(ConnId(id));
        }
        self.node_input(machine, Input::Connected);
    }

    pub fn tick_daemon(&mut self, machine: usize) {
        let now = self.time();
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if self.daemon(machine).and_then(|daemon| daemon.edge.as_ref()).is_some_and(|e| due(e.next_wake())) {
            self.edge_input(machine, edge::Input::Tick);
        }
        if self.daemon(machine).is_some_and(|daemon| due(daemon.node.next_wake())) {
            self.node_input(machine, Input::Tick);
        }
        if self.daemon(machine).is_some_and(|daemon| due(daemon.node.next_wake())) {
            self.fail(18, format!("n{machine} is always due"));
        }
    }

    pub fn node_input(&mut self, machine: usize, input: Input) {
        let now = self.time();
        let Some(daemon) = self.daemon_mut(machine) else { return };
        for output in daemon.node.handle(now, input) {
            self.node_output(machine, output);
        }
    }

    fn node_output(&mut self, machine: usize, output: Output) {
        match output {
            Output::Send(up) => {
                let conn = self.daemon(machine).and_then(|daemon| daemon.conn);
                if let Some(conn) = conn.and_then(|conn| self.conns.get_mut(&conn.0)) {
                    conn.up.push_back(Letter::new(up, machine));
                }
            }
            Output::Reconnect { .. } => {
                let (now, has_conn) = (self.time(), self.daemon(machine).is_some_and(|d| d.conn.is_some()));
                if has_conn {
                    self.lose_conn(machine);
                    self.node_input(machine, Input::Disconnected);
                }
                if let Some(daemon) = self.daemon_mut(machine) {
                    daemon.dials_at = now + REDIAL_PAUSE;
                }
            }
            Output::Launch { id, note, run, what } => self.launch(machine, id, note, run, what),
            Output::Note { id, note } => {
                if let Some(slot) = self.machine_mut(machine).slots.get_mut(&id) {
                    slot.note = note;
                }
            }
            Output::Signal { id, .. } | Output::Kill { id } => self.signal(machine, id),
            Output::Erase { id, volume: None } => {
                let slot = self.machine_mut(machine).slots.remove(&id);
                if slot.is_some_and(|slot| slot.is_live()) {
                    self.fail(17, format!("n{machine} erases {id} while its process lives"));
                }
                self.node_input(machine, Input::Erased { id });
            }
            Output::Remember(memory) => self.machine_mut(machine).memory = memory,
            Output::Lease { fence_at } => self.leased(machine, fence_at),
            Output::Sets(sets) => self.take_sets(machine, sets),
            Output::Duty(duty) => self.edge_input(machine, edge::Input::Duty(duty)),
            // Services without checks and scratch data ask for neither.
            Output::Watch { .. } => {}
            Output::Copy { .. }
            | Output::GiveUpCopy { .. }
            | Output::Feed(_)
            | Output::Erase { volume: Some(_), .. } => {
                self.fail(0, format!("the model knows nothing of {output:?}"));
            }
            Output::Leave => {
                if self.machines[machine].slots.values().any(Slot::is_live) {
                    self.fail(6, format!("n{machine} leaves with a process alive"));
                }
                self.kill_daemon(machine, false);
            }
            Output::GiveUp { .. } => self.kill_daemon(machine, false),
        }
    }

    fn take_sets(&mut self, machine: usize, sets: protocol::message::Sets) {
        if self.config.broken != Some(Broken::EdgeConfirmsEarly) {
            return self.edge_input(machine, edge::Input::Sets(sets));
        }
        let revision = sets.revision;
        let Some(daemon) = self.daemon_mut(machine) else { return };
        daemon.late.push_back(sets);
        let Some(mut report) = daemon.edge.as_ref().map(Edge::report) else { return };
        report.serves = Some(revision);
        self.node_input(machine, Input::Edge(report));
    }

    /// Sets that were confirmed before come into force.
    pub fn late_sets(&mut self, machine: usize) {
        let now = self.time();
        let Some(daemon) = self.daemon_mut(machine) else { return };
        let (Some(sets), Some(edge)) = (daemon.late.pop_front(), daemon.edge.as_mut()) else { return };
        drop(edge.handle(edge::Input::Sets(sets), now));
    }

    pub fn edge_input(&mut self, machine: usize, input: edge::Input) {
        let now = self.time();
        let Some(edge) = self.daemon_mut(machine).and_then(|daemon| daemon.edge.as_mut()) else { return };
        let before = edge.report();
        let mut inputs = vec![input];
        // Ports open and close at once; nobody connects.
        while let Some(input) = inputs.pop() {
            for output in edge.handle(input, now) {
                match output {
                    edge::Output::Listen { port } => inputs.push(edge::Input::Listening { port }),
                    edge::Output::Unlisten { port } => inputs.push(edge::Input::Unlistened { port }),
                    edge::Output::Serves(_)
                    | edge::Output::Dial { .. }
                    | edge::Output::Hold { .. }
                    | edge::Output::Copy { .. }
                    | edge::Output::Refuse { .. }
                    | edge::Output::Cut { .. } => {}
                }
            }
        }
        let after = edge.report();
        let opened = before.withdrawal.is_some() && after.withdrawal.is_none();
        if opened {
            self.check_return(machine);
        }
        if before != after {
            self.node_input(machine, Input::Edge(after));
        }
    }

    fn launch(&mut self, machine: usize, id: InstanceId, note: Note, runs: u32, run: Arc<Run>) {
        let slot = Slot { note, run, runs, process: Proc::Launching };
        let before = self.machine_mut(machine).slots.insert(id, slot);
        if before.is_some_and(|slot| slot.is_live()) {
            self.fail(11, format!("n{machine} launches {id} while its process lives"));
        }
    }

    /// A launch is through: the process runs.
    pub fn born(&mut self, machine: usize, id: InstanceId) {
        let (now, lease) = (self.time(), self.daemon(machine).map_or(Time(0), |daemon| daemon.lease_until));
        let Some(slot) = self.machine_mut(machine).slots.get_mut(&id) else { return };
        let (run, fenced) = (slot.runs, slot.run.spec.is_fenced());
        if fenced && lease <= now {
            // Its keeper does not let it begin without a lease.
            slot.process = Proc::Live { fence: Some(now), ending: true };
            return self.exit(machine, id);
        }
        slot.process = Proc::Live { fence: fenced.then_some(lease), ending: false };
        self.check_start(machine, id);
        self.node_input(machine, Input::Launched { id, run, pid: run, ports: vec![PORT] });
    }

    fn signal(&mut self, machine: usize, id: InstanceId) {
        let live = self.machines[machine].slots.get(&id).is_some_and(Slot::is_live);
        if !live {
            return;
        }
        self.check_stop(machine, id);
        let lost = self.config.broken == Some(Broken::StopsAreLost);
        let Some(slot) = self.machine_mut(machine).slots.get_mut(&id) else { return };
        if let Proc::Live { ending, .. } = &mut slot.process {
            *ending = !lost;
        }
    }

    pub fn exit(&mut self, machine: usize, id: InstanceId) {
        let Some(slot) = self.machine_mut(machine).slots.get_mut(&id) else { return };
        let exit = Exit::Signal(15);
        slot.process = Proc::Ended(exit);
        let run = slot.runs;
        let input = Input::Exited { id, run, exit, memory_exceeded: false, message: None };
        self.node_input(machine, input);
    }

    fn leased(&mut self, machine: usize, fence_at: Time) {
        let here = self.machine_mut(machine);
        if let Some(daemon) = &mut here.daemon {
            daemon.lease_until = daemon.lease_until.max(fence_at);
        }
        for slot in here.slots.values_mut() {
            if let Proc::Live { fence: Some(fence), .. } = &mut slot.process {
                *fence = (*fence).max(fence_at);
            }
        }
    }
}
