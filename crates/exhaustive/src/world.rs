//! A state: the real actors, what is on its way between them, the store, and the machines' disks.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use checker::Observer;
use model::{Cluster, Exit, InstanceId, Life, Term, Time};
use protocol::{
    coordinator::{ConnId, Coordinator, Op},
    edge::Edge,
    message::{Down, Run, Sets, Up},
    node::{Memory, Node, Note},
};

use crate::{
    canon::{self, Form, MACHINES_MAX, Whose},
    config::{Budget, Config},
};

/// Where the clock begins: long enough after zero for every age.
pub const BEGINNING: u64 = 1_000_000;

/// A part of a state, shared with the states before and after it in which it is the same.
#[derive(Clone)]
pub struct Held<T> {
    value: Arc<T>,
    form: Option<Arc<Form>>,
}

impl<T: Clone> Held<T> {
    pub fn new(value: T) -> Held<T> {
        Held { value: Arc::new(value), form: None }
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.form = None;
        Arc::make_mut(&mut self.value)
    }
}

impl<T> std::ops::Deref for Held<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

/// What must not be so, and the number of the invariant that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub invariant: u32,
    pub what: String,
}

#[derive(Clone)]
pub struct World {
    pub config: Arc<Config>,
    pub now: u64,
    pub store: Held<Store>,
    /// Those who believe to be in office, by term.
    pub offices: BTreeMap<Term, Held<Office>>,
    pub machines: Vec<Held<Machine>>,
    pub conns: BTreeMap<u64, Conn>,
    last_conn: u64,
    pub budget: Budget,
    /// A machine was lost, cut off or silent: what it ran may be missing.
    pub harmed: bool,
    pub wrong: Option<Wrong>,
    fingerprint: u64,
}

/// What the store holds. `mirror` is the same, decoded.
#[derive(Clone)]
pub struct Store {
    pub records: BTreeMap<String, Arc<[u8]>>,
    pub head: u64,
    pub head_term: Term,
    /// Who holds the office.
    pub office: Option<Term>,
    /// Since when nobody does.
    pub vacant_since: Option<Time>,
    pub elections: u64,
    pub mirror: Cluster,
}

/// One who believes to be in office.
#[derive(Clone)]
pub struct Office {
    pub coordinator: Coordinator,
    pub observer: Observer,
    /// What it waits for from the store.
    pub asks: Option<Ask>,
}

#[derive(Clone, Debug)]
pub enum Ask {
    Transact { head: u64, ops: Vec<Op> },
    Head,
}

/// A machine with its disk, its daemon and its processes.
#[derive(Clone, Debug)]
pub struct Machine {
    pub daemon: Option<Daemon>,
    pub lives: u64,
    pub cut: bool,
    pub last_life: Option<Life>,
    pub memory: Memory,
    pub slots: BTreeMap<InstanceId, Slot>,
}

#[derive(Clone, Debug)]
pub struct Daemon {
    pub node: Node,
    pub edge: Option<Edge>,
    pub conn: Option<ConnId>,
    /// When it may dial, if it has no stream.
    pub dials_at: Time,
    pub lease_until: Time,
    /// Sets that were confirmed and are not in force: only where that is broken on purpose.
    pub late: VecDeque<Sets>,
}

/// What is on disk of one instance, and its process.
#[derive(Clone, Debug)]
pub struct Slot {
    pub note: Note,
    pub run: Arc<Run>,
    pub runs: u32,
    pub process: Proc,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proc {
    NotStarted,
    /// A launch of this daemon is under way.
    Launching,
    Live {
        /// Its keeper kills it then.
        fence: Option<Time>,
        /// It was told to end, and will.
        ending: bool,
    },
    Ended(Exit),
    /// Gone with the machine's power.
    Lost,
}

/// A stream between a machine and a coordinator: in order, until it breaks.
#[derive(Clone)]
pub struct Conn {
    pub machine: usize,
    pub term: Term,
    pub up: VecDeque<Letter<Up>>,
    pub down: VecDeque<Letter<Down>>,
    /// The node's end is gone; the coordinator has not heard.
    pub broken: bool,
}

#[derive(Clone)]
pub struct Letter<T> {
    pub message: Arc<T>,
    form: Arc<Form>,
}

impl<T: std::fmt::Debug> Letter<T> {
    pub fn new(message: T, machine: usize) -> Letter<T> {
        let whose = Whose { machine: machine as u64, ..Whose::default() };
        let form = Arc::new(Form::of(&message, &whose));
        Letter { message: Arc::new(message), form }
    }
}

impl Slot {
    pub fn is_live(&self) -> bool {
        match self.process {
            Proc::Live { .. } => true,
            Proc::NotStarted | Proc::Launching | Proc::Ended(_) | Proc::Lost => false,
        }
    }
}

impl World {
    pub fn new(config: Arc<Config>) -> World {
        let machine = Machine {
            daemon: None,
            lives: 0,
            cut: false,
            last_life: None,
            memory: Memory::default(),
            slots: BTreeMap::new(),
        };
        World {
            now: BEGINNING,
            store: Held::new(Store {
                records: BTreeMap::new(),
                head: 0,
                head_term: Term(0),
                office: None,
                vacant_since: None,
                elections: 0,
                mirror: Cluster::default(),
            }),
            offices: BTreeMap::new(),
            machines: (0..config.nodes).map(|_| Held::new(machine.clone())).collect(),
            conns: BTreeMap::new(),
            last_conn: 0,
            budget: Budget::default(),
            harmed: false,
            wrong: None,
            fingerprint: 0,
            config,
        }
    }

    pub fn time(&self) -> Time {
        Time(self.now)
    }

    pub fn name(machine: usize) -> String {
        format!("n{machine}")
    }

    pub fn fail(&mut self, invariant: u32, what: String) {
        if self.wrong.is_none() {
            self.wrong = Some(Wrong { invariant, what });
        }
    }

    /// The coordinator whose writes the store takes, if it lives.
    pub fn in_office(&self) -> Option<(Term, &Held<Office>)> {
        let term = self.store.office?;
        self.offices.get(&term).map(|office| (term, office))
    }

    /// Numbers a stream so that it says whose it is.
    pub fn open_conn(&mut self, machine: usize, term: Term) -> u64 {
        self.last_conn += 1;
        let id = self.last_conn * MACHINES_MAX + machine as u64;
        let (up, down) = (VecDeque::new(), VecDeque::new());
        self.conns.insert(id, Conn { machine, term, up, down, broken: false });
        id
    }

    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Makes the canonical form of what changed, and of the whole.
    pub fn seal(&mut self) {
        if self.store.form.is_none() {
            self.store.form = Some(Arc::new(self.store.shown()));
        }
        for (term, office) in &mut self.offices {
            if office.form.is_none() {
                office.form = Some(Arc::new(office.shown(*term)));
            }
        }
        for (at, machine) in self.machines.iter_mut().enumerate() {
            if machine.form.is_none() {
                let whose = Whose { machine: at as u64, ..Whose::default() };
                machine.form = Some(Arc::new(Form::of(&*machine.value, &whose)));
            }
        }
        let invariant = self.wrong.as_ref().map(|wrong| wrong.invariant);
        let terms: Vec<Term> = self.offices.keys().copied().collect();
        let rest = Form::of(&(terms, self.budget, self.harmed, invariant), &Whose::default());
        let conns: Vec<Form> = self.conns.iter().map(|(id, conn)| conn.shown(*id)).collect();
        let letters = self.conns.values().flat_map(|conn| {
            conn.up.iter().map(|letter| &letter.form).chain(conn.down.iter().map(|letter| &letter.form))
        });
        let offices = self.offices.values().map(|office| &office.form);
        let machines = self.machines.iter().map(|machine| &machine.form);
        let held = std::iter::once(&self.store.form).chain(offices).chain(machines);
        let held = held.flatten().chain(letters).map(|form| &**form);
        let all = std::iter::once(&rest).chain(conns.iter()).chain(held);
        self.fingerprint = canon::fingerprint(all, self.now, self.store.head);
    }
}

impl Store {
    fn shown(&self) -> Form {
        let whose = Whose::default();
        Form::of(&(&self.mirror, self.office, self.vacant_since, self.elections, self.head_term), &whose)
    }
}

impl Office {
    /// What is not yet in the store is shown as the records that it is made of.
    fn shown(&self, term: Term) -> Form {
        let cluster = self.coordinator.cluster();
        let machine = |id: &model::NodeId| id.as_str()[1..].parse().unwrap_or(0);
        let machines =
            (0..cluster.nodes().count() as u32).map(|ix| machine(&cluster.node(model::NodeIx(ix)).rec.id));
        let whose = Whose { term: term.0, machines: machines.collect(), ..Whose::default() };
        let mut form = Form::of(&self.coordinator, &whose);
        for (key, value) in self.coordinator.unwritten() {
            match model::decode_record(cluster, key, value.as_deref()) {
                Ok(model::Change::Audit(_) | model::Change::AuditGone(_)) => {}
                Ok(change) => form.append(Form::of(&change, &whose)),
                Err(error) => form.append(Form::of(&error.to_string(), &whose)),
            }
        }
        match &self.asks {
            Some(Ask::Head) => form.append(Form::of(&"asks for the head", &whose)),
            Some(Ask::Transact { .. }) => form.append(Form::of(&"asks to write", &whose)),
            None => {}
        }
        form
    }
}

impl Conn {
    fn shown(&self, id: u64) -> Form {
        let mut form = Form::conn(id);
        let header = (self.term, self.machine, self.up.len(), self.down.len(), self.broken);
        form.append(Form::of(&header, &Whose::default()));
        form
    }
}
