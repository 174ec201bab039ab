//! A machine: its daemon, its stream to the coordinator and its dispatchers' tasks.

use std::collections::BTreeMap;

use model::{Life, MemoryCaps, NodeId, Resources, Roles, Time};
use protocol::{
    coordinator::{ConnId, Input as Told},
    message::{Hello, Up, UpBody},
    node::{FeedWork, Identity, Input, Memory, Node, Output},
};

use super::{
    Bench, COORDINATOR, Letter, Name, TIMING,
    tables::{Key, TaskAt},
};

pub struct Machine {
    pub name: Name,
    pub life: Life,
    pub node: Option<Node>,
    /// The daemon stands still; what is sent to it waits.
    pub paused: bool,
    pub tasks: BTreeMap<Key, TaskAt>,
    /// Tasks that are told to stop do not.
    pub hangs: bool,
    pub conn: Option<ConnId>,
    pub inbox: Vec<Letter>,
    labels: BTreeMap<String, String>,
    roles: Roles,
    memory: Memory,
    broken: bool,
}

impl Machine {
    pub fn new(name: Name, roles: Roles, labels: &[(&str, &str)], now: Time) -> Machine {
        let mut machine = Machine {
            name,
            life: Life(1),
            node: None,
            paused: false,
            tasks: BTreeMap::new(),
            hangs: false,
            conn: None,
            inbox: Vec::new(),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            roles,
            memory: Memory::default(),
            broken: false,
        };
        machine.start(None, now);
        machine
    }

    fn start(&mut self, succeeds: Option<Life>, now: Time) {
        let identity = Identity {
            node: NodeId::new(self.name),
            life: self.life,
            succeeds,
            roles: self.roles,
            labels: self.labels.clone(),
            capacity: Resources { memory: 100, cpu: 100 },
            host: self.name.to_owned(),
            api: String::new(),
            rpc: format!("{}:1", self.name),
            memory_caps: MemoryCaps::CgroupV2,
            memory: self.memory,
        };
        self.node = Some(Node::new(identity, TIMING, now));
    }

    pub fn stream_breaks(&mut self) {
        (self.conn, self.broken) = (None, true);
    }
}

impl Bench {
    /// The process is gone, and everything in it.
    pub fn kill(&mut self, name: Name) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        (machine.node, machine.paused, machine.broken) = (None, false, false);
        machine.tasks.clear();
        machine.inbox.clear();
        if let Some(conn) = machine.conn.take()
            && !self.cuts.contains(&(name, COORDINATOR))
        {
            self.tell(Told::Closed { conn });
        }
    }

    /// Another life of its daemon, which knows that the one before is over.
    pub fn restart(&mut self, name: Name) {
        let before = self.machines[name].life;
        self.begin_life(name, Some(before));
    }

    /// Another life, with nothing to show that the one before is over.
    pub fn begin_life(&mut self, name: Name, succeeds: Option<Life>) {
        self.kill(name);
        let now = self.now;
        if let Some(machine) = self.machines.get_mut(name) {
            machine.life = Life(machine.life.0 + 1);
            machine.start(succeeds, now);
        }
    }

    /// The daemon is told to end, and does when it may.
    pub fn stop(&mut self, name: Name) {
        self.give(name, Input::Stopping);
        let may = |bench: &Bench| bench.machines[name].node.as_ref().is_some_and(Node::may_end);
        self.until("it may end", may);
        // Last words get out before their streams go.
        self.settle();
        self.kill(name);
    }

    pub fn pause(&mut self, name: Name) {
        self.machines.get_mut(name).expect("a machine").paused = true;
    }

    pub fn wake(&mut self, name: Name) {
        self.machines.get_mut(name).expect("a machine").paused = false;
    }

    /// Another daemon with the same id registers and goes away again.
    pub fn rival(&mut self, name: Name) {
        self.rival_with(name, &[]);
    }

    /// As [`rival`](Self::rival), and says this before it goes.
    pub fn rival_with(&mut self, name: Name, words: &[UpBody]) {
        self.conns += 1;
        let conn = ConnId(self.conns);
        let hello = Hello {
            node: NodeId::new(name),
            life: Life(99),
            succeeds: None,
            roles: self.machines[name].roles,
            labels: BTreeMap::new(),
            capacity: Resources { memory: 100, cpu: 100 },
            host: "elsewhere".to_owned(),
            api: String::new(),
            rpc: "elsewhere:1".to_owned(),
            memory_caps: MemoryCaps::CgroupV2,
            cluster: None,
            inventory: Vec::new(),
            edge: Default::default(),
        };
        self.tell(Told::Up { conn, message: Up { seq: 1, body: UpBody::Hello(hello) } });
        for (body, seq) in words.iter().zip(2..) {
            self.tell(Told::Up { conn, message: Up { seq, body: body.clone() } });
        }
        self.tell(Told::Closed { conn });
        self.settle();
    }

    pub(super) fn take_inbox(&mut self, name: Name) {
        if let Some(machine) = self.machines.get_mut(name).filter(|machine| !machine.paused) {
            self.queue.extend(std::mem::take(&mut machine.inbox));
        }
    }

    /// Daemons whose stream is gone hear of it, if they are awake.
    pub(super) fn disconnect_broken(&mut self) {
        let broken = self.machines.values().filter(|m| m.broken && !m.paused);
        let broken: Vec<Name> = broken.map(|machine| machine.name).collect();
        for name in broken {
            self.machines.get_mut(name).expect("a machine").broken = false;
            self.give(name, Input::Disconnected);
        }
    }

    pub(super) fn connect_waiting(&mut self) {
        if self.coordinator.is_none() {
            return;
        }
        let waiting = self.machines.values().filter(|machine| {
            let awake = machine.node.is_some() && !machine.paused && machine.conn.is_none();
            awake && !self.cuts.contains(&(machine.name, COORDINATOR))
        });
        let waiting: Vec<Name> = waiting.map(|machine| machine.name).collect();
        self.disconnect_broken();
        for name in waiting {
            self.conns += 1;
            self.machines.get_mut(name).expect("a machine").conn = Some(ConnId(self.conns));
            self.give(name, Input::Connected);
        }
    }

    pub fn give(&mut self, name: Name, input: Input) {
        let Some(machine) = self.machines.get_mut(name).filter(|machine| !machine.paused) else { return };
        let Some(node) = &mut machine.node else { return };
        for output in node.handle(self.now, input) {
            self.perform_at(name, output);
        }
    }

    fn perform_at(&mut self, name: Name, output: Output) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        match output {
            Output::Send(message) => {
                if let Some(conn) = machine.conn {
                    self.post(Letter::Up { from: name, conn, message });
                }
            }
            Output::Reconnect { .. } => {
                let conn = machine.conn.take();
                machine.broken = true;
                if let Some(conn) = conn.filter(|_| !self.cuts.contains(&(name, COORDINATOR))) {
                    self.tell(Told::Closed { conn });
                }
            }
            Output::Remember(memory) => machine.memory = memory,
            Output::Feed(work) => self.feed_work(name, work),
            Output::Lease { .. } | Output::Sets(_) | Output::Duty(_) | Output::Leave => {}
            Output::GiveUp { message } => self.fail(&format!("{name} gives up: {message}")),
            Output::Launch { .. }
            | Output::Note { .. }
            | Output::Watch { .. }
            | Output::Signal { .. }
            | Output::Kill { .. }
            | Output::Copy { .. }
            | Output::GiveUpCopy { .. }
            | Output::Erase { .. } => self.fail(&format!("{name} has no instances")),
        }
    }

    fn feed_work(&mut self, name: Name, work: FeedWork) {
        match work {
            FeedWork::Send { to, message, .. } => {
                let to = self.machines.keys().copied().find(|other| *other == to.as_str());
                if let Some(to) = to {
                    self.post(Letter::Peer { from: name, to, message });
                }
            }
            FeedWork::Task { feed, span, task, .. } => self.task(name, (feed, span), task),
            FeedWork::Look { feed, epoch, .. } => self.look(name, feed, epoch),
            FeedWork::Sweep { feed, epoch, keep, .. } => self.sweep(name, feed, epoch, &keep),
        }
    }
}
