//! What can happen in a state, and what becomes of it.

use model::{InstanceId, Intent, Term, Time};
use protocol::{
    coordinator::{ConnId, DrainRequest, Input, Request, WantedIntent},
    message::DownBody,
    node,
};

use crate::{
    config::{Broken, Budget},
    world::{Ask, Proc, World},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The store answers a coordinator.
    Store(Term),
    /// A message arrives at its coordinator.
    Up(u64),
    /// A message arrives at its node.
    Down(u64),
    /// A coordinator sees that a stream is gone.
    Closed(u64),
    Dial {
        machine: usize,
        term: Term,
    },
    Born(usize, InstanceId),
    Exit(usize, InstanceId),
    /// A keeper kills what has no lease.
    Keeper(usize, InstanceId),
    TickDaemon(usize),
    TickOffice(Term),
    /// Sets that were confirmed too early come into force.
    LateSets(usize),
    /// Nothing is on its way: time passes until somebody is due.
    Advance,
    TakeOffice,
    /// One who was deposed sees it.
    StepDown(Term),
    Restart(usize),
    Heal(usize),
    Drain,
    Cancel,
    Enable,
    CrashOffice(Term),
    Depose,
    CrashDaemon(usize),
    CrashMachine(usize),
    Break(u64),
    Cut(usize),
    /// The answer of the store is lost; what was asked was done, or not.
    LoseAnswer {
        term: Term,
        done: bool,
    },
}

/// Who makes an action happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It happens by itself, before time passes.
    Soon,
    /// It happens by itself, some time.
    Sometime,
    /// Somebody starts or connects a machine again, some time.
    Repair,
    Request,
    Fault,
}

impl Action {
    pub fn cause(self) -> Cause {
        match self {
            Action::Store(_)
            | Action::Up(_)
            | Action::Down(_)
            | Action::Closed(_)
            | Action::Dial { .. }
            | Action::Born(..)
            | Action::Exit(..)
            | Action::Keeper(..)
            | Action::TickDaemon(_)
            | Action::TickOffice(_) => Cause::Soon,
            Action::LateSets(_) | Action::Advance | Action::TakeOffice | Action::StepDown(_) => {
                Cause::Sometime
            }
            Action::Restart(_) | Action::Heal(_) => Cause::Repair,
            Action::Drain | Action::Cancel | Action::Enable => Cause::Request,
            Action::CrashOffice(_)
            | Action::Depose
            | Action::CrashDaemon(_)
            | Action::CrashMachine(_)
            | Action::Break(_)
            | Action::Cut(_)
            | Action::LoseAnswer { .. } => Cause::Fault,
        }
    }
}

impl World {
    /// Everything that can happen here.
    pub fn actions(&self, out: &mut Vec<Action>) {
        if self.wrong.is_some() {
            return;
        }
        self.soon(out);
        if let Some((first, machine)) = self.commutes(out) {
            out.clear();
            out.push(first);
            return self.faults_of(machine, out);
        }
        if out.is_empty() && self.next_wake().is_some() && !self.is_vacant_too_long() {
            out.push(Action::Advance);
        }
        self.sometime(out);
        self.requests(out);
        self.faults(out);
    }

    fn is_vacant_too_long(&self) -> bool {
        let vacant = self.store.vacant_since.map(|since| self.time().since(since));
        vacant.is_some_and(|vacant| vacant >= self.config.vacancy)
    }

    /// Nobody breaks a stream any more, but for those who go with their machine.
    fn streams_hold(&self) -> bool {
        let Budget { office_crashes, depositions, breaks, .. } = self.budget;
        office_crashes + depositions + breaks == 0
            && self.offices.len() == 1
            && self.store.office.is_some()
            && self.config.broken.is_none()
    }

    /// A message to a node that has nothing else to do, or its dialling: it may as well come before all
    /// else.
    ///
    /// Until it comes, nothing that others do concerns that node, but for putting more messages behind this
    /// one; and this one does not concern them, but for putting messages behind theirs. Whatever they do
    /// first, the same follows. What the machine itself may suffer meanwhile is looked at as well; that
    /// concerns others only by what it has sent, so that nothing of it may be on its way then.
    ///
    /// Nothing that is wrong is missed by it either: a lease and an order to stop only make the laws
    /// stricter. Sets and duties make them laxer, and so have their turn at every moment.
    fn commutes(&self, soon: &[Action]) -> Option<(Action, usize)> {
        if !self.streams_hold() {
            return None;
        }
        let suffers = self.budget.daemon_crashes + self.budget.machine_crashes + self.budget.cuts > 0;
        let concerns = |action: &Action| match action {
            Action::Down(id) => self.conns.get(id).map(|conn| conn.machine),
            Action::Born(at, _) | Action::Exit(at, _) | Action::Keeper(at, _) | Action::TickDaemon(at) => {
                Some(*at)
            }
            Action::Dial { machine, .. } => Some(*machine),
            _ => None,
        };
        (0..self.machines.len()).find_map(|machine| {
            let mut own = soon.iter().filter(|action| concerns(action) == Some(machine));
            let (Some(only), None) = (own.next(), own.next()) else { return None };
            let id = match only {
                Action::Down(id) => id,
                // Without a stream nothing reaches it.
                Action::Dial { .. } => return Some((*only, machine)),
                _ => return None,
            };
            // A coordinator closes a stream only for another of the same node.
            let streams = self.conns.values().filter(|conn| conn.machine == machine).count();
            let conn = self.conns.get(id).filter(|conn| streams == 1 && (conn.up.is_empty() || !suffers))?;
            let stricter = match conn.down.front()?.message.body {
                DownBody::Welcome(_) | DownBody::Answer(_) | DownBody::Orders(_) => true,
                DownBody::Refused { .. }
                | DownBody::Sets(_)
                | DownBody::Relay(_)
                | DownBody::Roster(_)
                | DownBody::Feeds(_)
                | DownBody::Duty(_)
                | DownBody::Leave => false,
            };
            stricter.then_some((*only, machine))
        })
    }

    /// What happens before time passes.
    pub fn soon(&self, out: &mut Vec<Action>) {
        let now = self.time();
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        for (term, office) in &self.offices {
            if office.asks.is_some() {
                out.push(Action::Store(*term));
            }
            if due(office.coordinator.next_wake()) {
                out.push(Action::TickOffice(*term));
            }
        }
        for (id, conn) in self.conns.iter().filter(|(_, conn)| !self.machines[conn.machine].cut) {
            out.extend((!conn.up.is_empty()).then_some(Action::Up(*id)));
            out.extend((!conn.down.is_empty()).then_some(Action::Down(*id)));
            out.extend(conn.broken.then_some(Action::Closed(*id)));
        }
        for (at, machine) in self.machines.iter().enumerate() {
            for (id, slot) in &machine.slots {
                match slot.process {
                    Proc::Launching => out.push(Action::Born(at, *id)),
                    Proc::Live { ending: true, .. } => out.push(Action::Exit(at, *id)),
                    Proc::Live { fence: Some(fence), .. } if fence <= now => {
                        out.push(Action::Keeper(at, *id));
                    }
                    Proc::Live { .. } | Proc::NotStarted | Proc::Ended(_) | Proc::Lost => {}
                }
            }
            let Some(daemon) = &machine.daemon else { continue };
            let edge = daemon.edge.as_ref().and_then(|edge| edge.next_wake());
            if due(daemon.node.next_wake()) || due(edge) {
                out.push(Action::TickDaemon(at));
            }
            let dials = daemon.conn.is_none() && daemon.dials_at <= now && !machine.cut;
            if dials && self.may_dial() {
                let terms = self.offices.keys();
                out.extend(terms.map(|term| Action::Dial { machine: at, term: *term }));
            }
        }
    }

    fn may_dial(&self) -> bool {
        self.config.broken != Some(Broken::NobodyDialsAgain)
            || self.budget.breaks == self.config.budget.breaks
    }

    fn sometime(&self, out: &mut Vec<Action>) {
        let quiet = out.iter().all(|action| *action == Action::Advance);
        if self.store.office.is_none() {
            out.push(Action::TakeOffice);
        }
        let deposed = self.offices.keys().filter(|term| self.store.office != Some(**term));
        out.extend(deposed.map(|term| Action::StepDown(*term)));
        for (at, machine) in self.machines.iter().enumerate() {
            let starts = machine.daemon.is_none() && (quiet || !self.config.slow_starts);
            out.extend(starts.then_some(Action::Restart(at)));
            out.extend(machine.cut.then_some(Action::Heal(at)));
            let late = machine.daemon.as_ref().is_some_and(|daemon| !daemon.late.is_empty());
            out.extend(late.then_some(Action::LateSets(at)));
        }
    }

    fn requests(&self, out: &mut Vec<Action>) {
        let Some((_, office)) = self.in_office() else { return };
        let cluster = office.coordinator.cluster();
        let Some(node) = cluster.node_by_id("n0") else { return };
        let budget = &self.budget;
        out.extend((budget.drains > 0 && node.drain.is_none()).then_some(Action::Drain));
        out.extend((budget.cancels > 0 && node.drain.is_some()).then_some(Action::Cancel));
        let out_already = node.rec.intent == Intent::Drained && node.drain.is_none();
        out.extend((budget.enables > 0 && out_already).then_some(Action::Enable));
    }

    fn faults(&self, out: &mut Vec<Action>) {
        let budget = &self.budget;
        if let Some((term, office)) = self.in_office() {
            out.extend((budget.office_crashes > 0).then_some(Action::CrashOffice(term)));
            out.extend((budget.depositions > 0).then_some(Action::Depose));
            if budget.lost_answers > 0 && matches!(office.asks, Some(Ask::Transact { .. })) {
                out.extend([false, true].map(|done| Action::LoseAnswer { term, done }));
            }
        }
        if budget.breaks > 0 {
            let whole = self.conns.iter().filter(|(_, conn)| !conn.broken);
            out.extend(whole.map(|(id, _)| Action::Break(*id)));
        }
        for machine in 0..self.machines.len() {
            self.faults_of(machine, out);
        }
    }

    fn faults_of(&self, at: usize, out: &mut Vec<Action>) {
        let (budget, machine) = (&self.budget, &self.machines[at]);
        if machine.daemon.is_some() {
            out.extend((budget.daemon_crashes > 0).then_some(Action::CrashDaemon(at)));
            out.extend((budget.machine_crashes > 0).then_some(Action::CrashMachine(at)));
            out.extend((budget.cuts > 0 && !machine.cut).then_some(Action::Cut(at)));
        }
    }

    /// When somebody is due next.
    pub fn next_wake(&self) -> Option<Time> {
        let offices = self.offices.values().filter_map(|office| office.coordinator.next_wake());
        let machines = self.machines.iter().flat_map(|machine| {
            let fences = machine.slots.values().filter_map(|slot| match slot.process {
                Proc::Live { fence, .. } => fence,
                Proc::NotStarted | Proc::Launching | Proc::Ended(_) | Proc::Lost => None,
            });
            let daemon = machine.daemon.as_ref();
            let node = daemon.and_then(|daemon| daemon.node.next_wake());
            let edge = daemon.and_then(|daemon| daemon.edge.as_ref()).and_then(|edge| edge.next_wake());
            let dials = daemon.filter(|daemon| daemon.conn.is_none()).map(|daemon| daemon.dials_at);
            let dials = dials.filter(|at| *at > self.time());
            fences.chain([node, edge, dials].into_iter().flatten()).collect::<Vec<Time>>()
        });
        offices.chain(machines).min()
    }

    /// The state that follows.
    pub fn after(&self, action: Action) -> World {
        let mut next = self.clone();
        next.happen(action);
        next.forget_what_cannot_be();
        next.seal();
        next
    }

    /// What can never be asked for again makes no difference any more.
    fn forget_what_cannot_be(&mut self) {
        if self.budget.drains > 0 || self.budget.cancels + self.budget.enables == 0 {
            return;
        }
        let believed = self.offices.values().map(|office| office.coordinator.cluster());
        let nodes = believed.chain([&self.store.mirror]).filter_map(|cluster| cluster.node_by_id("n0"));
        let (mut drains, mut closed) = (false, false);
        for node in nodes {
            drains |= node.drain.is_some();
            closed |= node.is_closed();
        }
        self.budget.cancels *= u8::from(drains);
        self.budget.enables *= u8::from(closed);
    }

    fn happen(&mut self, action: Action) {
        match action {
            Action::Store(term) => self.answer(term, false),
            Action::Up(id) => {
                let conn = self.conns.get_mut(&id);
                let Some((term, letter)) = conn.and_then(|conn| Some((conn.term, conn.up.pop_front()?)))
                else {
                    return;
                };
                let message = (*letter.message).clone();
                self.coordinate(term, Input::Up { conn: ConnId(id), message });
            }
            Action::Down(id) => {
                let conn = self.conns.get_mut(&id);
                let Some((machine, letter)) =
                    conn.and_then(|conn| Some((conn.machine, conn.down.pop_front()?)))
                else {
                    return;
                };
                self.node_input(machine, node::Input::Down((*letter.message).clone()));
            }
            Action::Closed(id) => {
                if let Some(conn) = self.conns.remove(&id) {
                    self.coordinate(conn.term, Input::Closed { conn: ConnId(id) });
                }
            }
            Action::Dial { machine, term } => self.dial(machine, term),
            Action::Born(machine, id) => self.born(machine, id),
            Action::Exit(machine, id) | Action::Keeper(machine, id) => self.exit(machine, id),
            Action::TickDaemon(machine) => self.tick_daemon(machine),
            Action::TickOffice(term) => {
                self.coordinate(term, Input::Tick);
                let now = self.time();
                let wake = self.offices.get(&term).and_then(|office| office.coordinator.next_wake());
                if wake.is_some_and(|at| at <= now) {
                    self.fail(18, format!("the coordinator of term {term} is always due"));
                }
            }
            Action::LateSets(machine) => self.late_sets(machine),
            Action::Advance => self.now = self.next_wake().map_or(self.now, |at| at.0),
            Action::TakeOffice => self.take_office(),
            Action::StepDown(term) => self.leave_office(term),
            Action::Restart(machine) => self.start_daemon(machine),
            Action::Heal(machine) => self.machines[machine].get_mut().cut = false,
            Action::Drain | Action::Cancel | Action::Enable => self.ask(action),
            Action::CrashOffice(_)
            | Action::Depose
            | Action::CrashDaemon(_)
            | Action::CrashMachine(_)
            | Action::Break(_)
            | Action::Cut(_)
            | Action::LoseAnswer { .. } => self.go_wrong(action),
        }
    }

    fn ask(&mut self, action: Action) {
        let (node, budget) = ("n0".to_owned(), &mut self.budget);
        let request = match action {
            Action::Drain => {
                budget.drains -= 1;
                let nodes = vec![node];
                Request::Drain(DrainRequest { nodes, ..DrainRequest::default() })
            }
            Action::Cancel => {
                budget.cancels -= 1;
                Request::CancelNode { node }
            }
            _ => {
                budget.enables -= 1;
                Request::SetIntent { node, intent: WantedIntent::Active }
            }
        };
        self.request(request);
    }

    fn go_wrong(&mut self, action: Action) {
        let budget = &mut self.budget;
        match action {
            Action::CrashOffice(term) => {
                budget.office_crashes -= 1;
                self.leave_office(term);
            }
            Action::Depose => {
                budget.depositions -= 1;
                self.depose();
            }
            Action::CrashDaemon(machine) => {
                (budget.daemon_crashes, self.harmed) = (budget.daemon_crashes - 1, true);
                self.kill_daemon(machine, false);
            }
            Action::CrashMachine(machine) => {
                (budget.machine_crashes, self.harmed) = (budget.machine_crashes - 1, true);
                self.kill_daemon(machine, true);
            }
            Action::Break(id) => {
                budget.breaks -= 1;
                self.break_conn(id);
            }
            Action::Cut(machine) => {
                (budget.cuts, self.harmed) = (budget.cuts - 1, true);
                self.machines[machine].get_mut().cut = true;
            }
            Action::LoseAnswer { term, done } => {
                budget.lost_answers -= 1;
                match done {
                    true => self.answer(term, true),
                    false => self.lose_request(term),
                }
            }
            _ => {}
        }
    }
}
