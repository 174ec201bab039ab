//! Faults, one after the other, and their end.

use model::{Code, Life, MemoryCaps, Resources};
use protocol::message::{EdgeReport, Hello, Up, UpBody};

use crate::{
    net::Message,
    script::Item,
    swarm::FaultKind,
    world::{Event, ToDaemon, World},
};

impl World {
    pub fn next_fault(&mut self) {
        if self.calm {
            return;
        }
        let item = Item::Fault(self.next_items.0);
        self.next_items.0 += 1;
        self.play(item, |world| {
            let pause = world.rng.between(1, 2 * world.swarm.fault_every);
            world.after(pause, Event::Fault);
            let slack = if world.rng.chance(100) { world.rng.below(3000) } else { 0 };
            let kinds = world.swarm.kinds.clone();
            let kind = world.rng.pick(&kinds).copied();
            let machine = world.rng.below(world.machines.len() as u64) as usize;
            let plays = world.plays(item);
            world.store.lease_slack = if plays { slack } else { 0 };
            if let Some(kind) = kind.filter(|_| plays) {
                world.played(item, || format!("fault {kind:?} m{machine}"));
                world.fault(kind, machine);
            }
        });
    }

    fn fault(&mut self, kind: FaultKind, machine: usize) {
        match kind {
            FaultKind::Partition | FaultKind::OneWay | FaultKind::Isolate => self.partition(kind, machine),
            FaultKind::BreakConnection => self.break_connection(),
            FaultKind::CutStore => {
                self.store_cut.insert(machine);
                self.disturb(machine);
                let long = self.rng.chance(300);
                let lasts = if long { self.rng.between(8000, 30_000) } else { self.rng.between(200, 8000) };
                self.after(lasts, Event::ReconnectStore { machine });
            }
            FaultKind::CrashDaemon => {
                self.cover.hit("daemon crashed");
                self.kill_daemon(machine, false);
                self.restart_later(machine);
            }
            FaultKind::StopDaemon => {
                self.cover.hit("daemon stopped");
                self.stop_daemon(machine);
            }
            FaultKind::PauseDaemon => self.pause_daemon(machine, 12_000),
            FaultKind::SuspendMachine => self.suspend(machine),
            FaultKind::RebootMachine => {
                self.cover.hit("machine rebooted");
                let off = self.rng.between(100, 15_000);
                self.power_off(machine, off);
            }
            FaultKind::DestroyMachine => {
                self.cover.hit("machine destroyed");
                let off = self.rng.between(20_000, 120_000);
                self.power_off(machine, off);
            }
            FaultKind::DegradeMachine => {
                self.cover.hit("degraded by its own report");
                self.set_degraded(machine, Some(Code::DiskFull));
                let lasts = self.rng.between(500, 8000);
                self.after(lasts, Event::Recover { machine });
            }
            FaultKind::Rival => self.rival(machine),
            FaultKind::StrikeHandOver => self.feeds.strike = true,
            FaultKind::PauseOffice => {
                let in_office = (0..self.machines.len()).find(|at| self.tenure(*at).is_some());
                let short = self.swarm.timing.lease.0 * 4 / 5;
                if let Some(machine) = in_office {
                    self.pause_daemon(machine, short);
                }
            }
            FaultKind::ShrinkMachine => {
                // Its configuration changed: told with the next life.
                let capacity = self.rng.between(2, 12) * 100;
                let here = &mut self.machines[machine];
                here.capacity = capacity;
                here.capacity_max = here.capacity_max.max(capacity);
                if self.swarm.keepers {
                    self.kill_daemon(machine, false);
                    self.restart_later(machine);
                }
            }
        }
    }

    /// The one that takes over is gone before the one before has said anything.
    pub fn strike(&mut self, origin: usize, taker: usize) {
        let here = &mut self.machines[origin];
        if self.calm || origin == taker || here.daemon.is_none() || here.paused || here.suspended {
            return;
        }
        here.paused = true;
        self.disturb(origin);
        self.cover.hit("daemon paused");
        let lasts = self.rng.between(1500, 8000);
        self.after(lasts, Event::ResumeDaemon { machine: origin });
        self.cover.hit("daemon crashed");
        self.kill_daemon(taker, false);
        let pause = self.rng.between(50, 500);
        self.after(pause, Event::StartDaemon { machine: taker });
    }

    /// It ends when it has said its last word, or when nobody waits for that any longer.
    fn stop_daemon(&mut self, machine: usize) {
        self.node_input(machine, protocol::node::Input::Stopping);
        let Some(daemon) = self.machines[machine].daemon.as_mut() else {
            return self.restart_later(machine);
        };
        daemon.stopping = true;
        if daemon.tasks.is_empty() {
            return self.end_daemon(machine);
        }
        let patience = self.rng.between(50, 15_000);
        self.tell_daemon(patience, machine, ToDaemon::End);
    }

    pub fn end_daemon(&mut self, machine: usize) {
        self.kill_daemon(machine, false);
        self.restart_later(machine);
    }

    /// A daemon that was told to end has said goodbye, and dispatchers ran in it.
    pub fn end_if_stopped(&mut self, machine: usize) {
        let daemon = self.machines[machine].daemon.as_ref();
        let ends = daemon.filter(|daemon| daemon.stopping).and_then(|daemon| daemon.node.as_ref());
        if ends.is_some_and(protocol::node::Node::may_end) {
            self.cover.hit("goodbye of a daemon whose dispatchers had stopped");
            self.end_daemon(machine);
        }
    }

    fn restart_later(&mut self, machine: usize) {
        let long = self.rng.chance(300);
        let pause = if long { self.rng.between(3000, 12_000) } else { self.rng.between(50, 2000) };
        self.after(pause, Event::StartDaemon { machine });
    }

    fn partition(&mut self, kind: FaultKind, machine: usize) {
        let others: Vec<usize> = (0..self.machines.len()).filter(|other| *other != machine).collect();
        let Some(other) = self.rng.pick(&others).copied() else { return };
        let pairs: Vec<(usize, usize)> = match kind {
            FaultKind::OneWay => {
                self.cover.hit("partition one way");
                vec![(machine, other)]
            }
            FaultKind::Isolate => {
                self.cover.hit("partition");
                others.iter().flat_map(|other| [(machine, *other), (*other, machine)]).collect()
            }
            _ => {
                self.cover.hit("partition");
                vec![(machine, other), (other, machine)]
            }
        };
        self.blocked.extend(&pairs);
        pairs.iter().for_each(|(from, to)| [*from, *to].into_iter().for_each(|at| self.disturb(at)));
        let lasts = self.rng.between(200, 14_000);
        self.after(lasts, Event::Unblock { pairs });
    }

    fn break_connection(&mut self) {
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        let Some(id) = self.rng.pick(&ids).copied() else { return };
        self.cover.hit("connection broken");
        // A reset: both ends see it, each in its time.
        self.send(id, true, Message::Close);
        self.send(id, false, Message::Close);
    }

    fn pause_daemon(&mut self, machine: usize, at_most: u64) {
        let here = &mut self.machines[machine];
        if here.daemon.is_none() || here.paused || here.suspended {
            return;
        }
        here.paused = true;
        self.disturb(machine);
        self.cover.hit("daemon paused");
        let lasts = self.rng.between(100, at_most);
        self.after(lasts, Event::ResumeDaemon { machine });
    }

    fn suspend(&mut self, machine: usize) {
        let here = &mut self.machines[machine];
        if !here.powered || here.suspended || here.paused {
            return;
        }
        here.suspended = true;
        self.disturb(machine);
        self.cover.hit("machine suspended");
        let lasts = self.rng.between(100, 12_000);
        self.after(lasts, Event::WakeMachine { machine });
    }

    pub fn wake_machine(&mut self, machine: usize) {
        if !std::mem::take(&mut self.machines[machine].suspended) {
            return;
        }
        self.machines[machine].woke_at = self.now;
        self.disturb(machine);
        self.say(format!("m{machine} wakes up"));
        self.keepers_wake(machine);
        self.release_held(machine);
        if self.machines[machine].daemon.is_none() {
            self.start_daemon(machine);
        }
    }

    fn power_off(&mut self, machine: usize, off: u64) {
        let here = &mut self.machines[machine];
        if !here.powered {
            return;
        }
        (here.powered, here.suspended) = (false, false);
        here.held.clear();
        self.kill_daemon(machine, true);
        self.lose_processes(machine);
        let boot = self.number();
        self.machines[machine].boot = boot;
        self.after(off, Event::PowerOn { machine });
    }

    pub fn power_on(&mut self, machine: usize) {
        if !std::mem::replace(&mut self.machines[machine].powered, true) {
            self.say(format!("m{machine} has power"));
            self.start_daemon(machine);
        }
    }

    /// Another machine with the same node id dials.
    fn rival(&mut self, machine: usize) {
        let in_office: Vec<usize> =
            (0..self.machines.len()).filter(|at| self.tenure(*at).is_some()).collect();
        let Some(target) = self.rng.pick(&in_office).copied() else { return };
        let Some(term) = self.tenure(target).map(|tenure| tenure.term) else { return };
        if !self.machines[machine].roles.worker {
            return;
        }
        let (from, to) = ((machine, u64::MAX), (target, self.machines[target].life));
        let conn = self.open_conn(from, to, term);
        let here = &self.machines[machine];
        let hello = Hello {
            node: here.id.clone(),
            life: Life(self.rng.next()),
            succeeds: None,
            roles: here.roles,
            labels: here.labels.clone(),
            capacity: Resources { memory: here.capacity, cpu: 4000 },
            host: "elsewhere".to_owned(),
            api: "elsewhere:7070".to_owned(),
            rpc: String::new(),
            memory_caps: MemoryCaps::CgroupV2,
            cluster: here.memory.cluster,
            inventory: Vec::new(),
            edge: EdgeReport::default(),
        };
        self.send(conn, true, Message::Up(Box::new(Up { seq: 1, body: UpBody::Hello(hello) })));
        self.close_conn(conn, true);
    }

    /// Faults are over: everything is reachable and running again.
    pub fn heal(&mut self) {
        self.say("faults end".to_owned());
        self.calm = true;
        self.stop_sources();
        self.heal_backends();
        (self.store.down_until, self.store.full_until, self.store.lease_slack) = (0, 0, 0);
        self.store_cut.clear();
        let pairs: Vec<(usize, usize)> = self.blocked.iter().copied().collect();
        self.unblock(&pairs);
        for machine in 0..self.machines.len() {
            self.power_on(machine);
            self.wake_machine(machine);
            self.resume_daemon(machine);
            self.start_daemon(machine);
            self.machines[machine].degraded = None;
            self.tell_daemon(0, machine, ToDaemon::Node(protocol::node::Input::Machine { degraded: None }));
        }
        self.after(1000, Event::LookWhetherQuiet);
    }
}
