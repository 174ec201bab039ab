//! The edge: which ports are open, and which instance each connection goes to.
//!
//! Owns the backend sets in force, the choice of a backend, and how connections end when their
//! instance leaves. A shell listens, dials and copies as told, and reports what came of it.
//!
//! A connection is accepted, perhaps held until its service has a backend, dialled (perhaps several
//! times), and then copied or refused. The shell sends nothing to a backend before [`Output::Copy`]:
//! that is what makes a confirmation true. [`Output::Serves`] says that from here on no `Copy` names
//! an instance outside the sets of that revision, whatever was being dialled at the time.
//!
//! An edge without a coordinator gets no input about it and keeps serving its last sets.
//!
//! An edge that is told to withdraw does so in steps (`withdraw.rs`); sets are taken all the while.
//!
//! *Invariant:* a connection that is being dialled is dialled to an instance, at an address, that is in
//! the sets in force.

mod ports;
mod service;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk;
mod withdraw;
#[cfg(test)]
mod withdraw_tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{InstanceId, Millis, ServiceName, Time};

use self::{
    ports::Ports,
    service::{Displaced, Service},
};
use crate::message::{BackendSet, Duty, EdgeReport, SetRevision, Sets};

pub use self::ports::{RETRY_FIRST, RETRY_MAX};
pub use self::service::{Counters, ServiceStats};

/// How long a connection waits for its service to have a backend. Covers the restart of a service
/// with one instance; below the time after which people and most clients give up by themselves.
pub const HOLD_MAX: Millis = Millis::secs(5);

/// Connections of one service that wait for a backend. Each holds a socket: beyond this a service
/// that is down would eat those of services that are up.
pub const HELD_PER_SERVICE_MAX: usize = 512;

/// How long a backend that refused a connection comes after all others. A dead one then costs one
/// failed dial in this time instead of one per connection, and one that restarted in its place is
/// back in the rotation about as fast as its check finds it ready.
pub const REFUSED_LAST_FOR: Millis = Millis::secs(1);

/// How long an edge that withdraws serves on with its health check failing, unless it is told another
/// time: two looks of a load balancer that looks every two seconds.
pub const WITHDRAW_DELAY: Millis = Millis::secs(5);

/// One accepted connection. The shell numbers them and never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Which dial of a connection: an answer to one that has been superseded is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Sets(Sets),
    Duty(Duty),
    /// A client connected to a port this edge listens on.
    Accepted {
        conn: ConnId,
        port: u16,
    },
    /// The backend took the connection. Nothing has been sent to it yet.
    Dialled {
        conn: ConnId,
        attempt: Attempt,
    },
    DialFailed {
        conn: ConnId,
        attempt: Attempt,
    },
    /// The connection is over, at whatever stage, unless the edge ended it itself.
    Closed {
        conn: ConnId,
    },
    Listening {
        port: u16,
    },
    /// The port is closed as told, and everybody whom it had accepted is known.
    Unlistened {
        port: u16,
    },
    /// The port could not be opened, or was lost.
    ListenFailed {
        port: u16,
        message: String,
    },
    /// The edge leaves: it closes its ports for good and gives its connections this long.
    Stop {
        grace: Millis,
    },
    /// `next_wake` has come.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Open the port; for one that is open already the answer is `Listening` again.
    Listen { port: u16 },
    /// Close the port, if it is open; the answer is `Unlistened`, unless it is wanted again before.
    Unlisten { port: u16 },
    /// Connect to the backend. Supersedes an earlier dial of this connection, whether it is in
    /// flight or was answered: what it led to is closed.
    Dial { conn: ConnId, attempt: Attempt, instance: InstanceId, address: Arc<str> },
    /// Keep it open without a backend. Supersedes an earlier dial, as `Dial` does: an instance that
    /// left must not see an idle connection that will never be used.
    Hold { conn: ConnId },
    /// Start copying between client and backend.
    Copy { conn: ConnId, instance: InstanceId },
    /// Close it; it got no backend. The edge has forgotten it.
    Refuse { conn: ConnId, why: Refused },
    /// Close it; its grace is over. The edge has forgotten it.
    Cut { conn: ConnId, instance: InstanceId },
    /// The sets of this revision are in force.
    Serves(SetRevision),
}

/// Why a connection got no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refused {
    /// No service has this port (any more), or the edge has withdrawn or stopped.
    NotServed,
    /// None of its service's backends took it.
    AllRefused,
    /// Its service had no backend for as long as a connection is held.
    NoBackend,
    /// Its service has no backend, and as many connections wait for one as may.
    TooManyHeld,
}

/// What to do when a time has come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Stop holding the connection.
    Held(ConnId),
    /// The grace of an instance that left is over.
    Left(ServiceName, InstanceId),
    /// The edge has failed its health check for long enough.
    Withdraw,
    /// The edge withdraws, and the grace of this service's connections is over.
    Away(ServiceName),
    /// The grace of the edge itself is over.
    Stopped,
}

#[derive(Clone, Debug)]
struct Conn {
    service: ServiceName,
    phase: Phase,
    attempt: Attempt,
    /// Backends that refused it: each is tried at most once.
    refused_by: Vec<InstanceId>,
    /// Fixed when it is first held, so that sets that come and go do not hold it forever.
    hold_until: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between two steps of one `handle`; never seen outside.
    Routing,
    Held,
    Dialling(InstanceId),
    Copying(InstanceId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    Yes,
    /// Its health check fails; it serves on until then.
    Withdrawing {
        drain: u64,
        until: Time,
    },
    /// Its ports are being closed, connections finish.
    Leaving {
        drain: u64,
    },
    /// Nothing is left of it. Told to come back, it waits for sets of this revision.
    Withdrawn {
        drain: u64,
        back: Option<SetRevision>,
    },
    /// Ports are closed, connections have until their grace.
    Stopping,
    Stopped,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Edge {
    serves: Option<SetRevision>,
    /// Services of the sets in force, and those that left and still have connections.
    services: BTreeMap<ServiceName, Service>,
    conns: BTreeMap<ConnId, Conn>,
    ports: Ports,
    due: BTreeSet<(Time, Due)>,
    running: Running,
    withdraw_delay: Millis,
}

impl Default for Edge {
    fn default() -> Edge {
        Edge::new()
    }
}

impl Edge {
    pub fn new() -> Edge {
        Edge::with_delay(WITHDRAW_DELAY)
    }

    pub fn with_delay(withdraw_delay: Millis) -> Edge {
        Edge {
            serves: None,
            services: BTreeMap::new(),
            conns: BTreeMap::new(),
            ports: Ports::default(),
            due: BTreeSet::new(),
            running: Running::Yes,
            withdraw_delay,
        }
    }

    #[must_use]
    pub fn handle(&mut self, input: Input, now: Time) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Sets(sets) => self.take_sets(sets, now, &mut out),
            Input::Duty(Duty::Serve { from }) => self.serve_again(from, &mut out),
            Input::Duty(Duty::Withdraw { drain }) => self.withdraw(drain, now, &mut out),
            Input::Accepted { conn, port } => self.accept(conn, port, now, &mut out),
            Input::Dialled { conn, attempt } => self.dialled(conn, attempt, &mut out),
            Input::DialFailed { conn, attempt } => self.dial_failed(conn, attempt, now, &mut out),
            Input::Closed { conn } => self.forget(conn),
            Input::Listening { port } => {
                self.ports.listening(port);
                self.settle_ports(&mut out);
            }
            Input::Unlistened { port } => self.ports.closed(port),
            Input::ListenFailed { port, message } => {
                if self.listens() {
                    self.ports.failed(port, message, now);
                }
            }
            Input::Stop { grace } => self.stop(grace, now, &mut out),
            Input::Tick => self.tick(now, &mut out),
        }
        self.look_whether_gone();
        out
    }

    /// What the coordinator is told. Changes only with `Sets`, `Listening`, `ListenFailed` and `Stop`, and
    /// as [`withdrawal`](Self::withdrawal) does.
    pub fn report(&self) -> EdgeReport {
        EdgeReport { serves: self.serves, failed: self.ports.report(), withdrawal: self.withdrawal() }
    }

    pub fn serves(&self) -> Option<SetRevision> {
        self.serves
    }

    /// When the next `Tick` is due.
    pub fn next_wake(&self) -> Option<Time> {
        let due = self.due.first().map(|(at, _)| *at);
        [due, self.ports.next_retry()].into_iter().flatten().min()
    }

    /// Connections that go to this instance: in dial, and being copied (its grace included).
    pub fn connections(&self, service: &str, instance: InstanceId) -> (usize, usize) {
        self.services.get(service).map_or((0, 0), |service| service.connections(instance))
    }

    /// Connections known, in any phase.
    pub fn open(&self) -> usize {
        self.conns.len()
    }

    pub fn stats(&self) -> Vec<ServiceStats> {
        self.services.iter().map(|(name, service)| service.stats(name)).collect()
    }

    /// The sets in force, as one full message.
    pub fn sets(&self) -> Option<Sets> {
        let revision = self.serves?;
        let sets = self.services.iter().filter_map(|(name, service)| service.as_set(name)).collect();
        Some(Sets { revision, since: revision, full: true, sets })
    }

    fn take_sets(&mut self, sets: Sets, now: Time, out: &mut Vec<Output>) {
        if !self.follows(&sets) {
            return;
        }
        let mut displaced = Vec::new();
        let mut ports_changed = false;
        if sets.full {
            let named: BTreeSet<&ServiceName> = sets.sets.iter().map(|set| &set.service).collect();
            let gone: Vec<(ServiceName, Millis)> = self
                .services
                .iter()
                .filter(|(name, _)| !named.contains(name))
                .map(|(name, service)| (name.clone(), service.grace))
                .collect();
            for (service, grace) in gone {
                let nothing = BackendSet { service, listen: None, grace, backends: Vec::new() };
                ports_changed |= self.replace_set(nothing, now, &mut displaced);
            }
        }
        for set in sets.sets {
            ports_changed |= self.replace_set(set, now, &mut displaced);
        }
        self.serves = Some(sets.revision);
        if ports_changed {
            self.settle_ports(out);
        }
        for conn in displaced {
            self.route(conn, now, out);
        }
        if let Running::Withdrawn { back: Some(from), .. } = self.running {
            self.serve_again(from, out);
        }
        out.push(Output::Serves(sets.revision));
    }

    /// Whether these sets can be put on top of what is in force. A delta over a gap would leave
    /// instances in force that left within the gap, so it is neither applied nor confirmed.
    fn follows(&self, sets: &Sets) -> bool {
        match self.serves {
            None => sets.full,
            Some(serves) => sets.revision > serves && (sets.full || sets.since <= serves),
        }
    }

    /// Puts one set in force. Connections that need another backend, and those that were waiting
    /// for one, are added to `displaced`. Returns whether the service's port changed.
    fn replace_set(&mut self, set: BackendSet, now: Time, displaced: &mut Vec<ConnId>) -> bool {
        let name = set.service.clone();
        let service = self.services.entry(name.clone()).or_default();
        let port_before = service.listen;
        let Displaced { dials, returned, left } = service.replace(set, now);
        for (until, instance) in returned {
            self.due.remove(&(until, Due::Left(name.clone(), instance)));
        }
        for (until, instance) in left {
            self.due.insert((until, Due::Left(name.clone(), instance)));
        }
        let port_changed = port_before != service.listen;
        let waiting = match service.has_backends() || service.listen.is_none() {
            true => std::mem::take(&mut service.held),
            false => BTreeSet::new(),
        };
        for id in waiting {
            if let Some(until) = self.conns.get(&id).and_then(|conn| conn.hold_until) {
                self.due.remove(&(until, Due::Held(id)));
            }
            displaced.push(id);
        }
        displaced.extend(dials);
        if service.is_over() {
            self.services.remove(&name);
        }
        port_changed
    }

    fn settle_ports(&mut self, out: &mut Vec<Output>) {
        if self.listens() {
            let wanted =
                self.services.iter().filter_map(|(name, s)| Some((name.clone(), s.listen?))).collect();
            self.ports.settle(&wanted, out);
        }
    }

    fn accept(&mut self, id: ConnId, port: u16, now: Time, out: &mut Vec<Output>) {
        if self.conns.contains_key(&id) {
            return;
        }
        let gone = matches!(self.running, Running::Withdrawn { .. } | Running::Stopped);
        let owner = self.ports.owner(port).filter(|_| !gone);
        let Some((name, service)) = owner.and_then(|name| Some((name, self.services.get_mut(name)?))) else {
            out.push(Output::Refuse { conn: id, why: Refused::NotServed });
            return;
        };
        service.counters.accepted += 1;
        let conn = Conn {
            service: name.clone(),
            phase: Phase::Routing,
            attempt: Attempt::default(),
            refused_by: Vec::new(),
            hold_until: None,
        };
        self.conns.insert(id, conn);
        self.route(id, now, out);
    }

    /// Finds a backend for a connection that has none: dials it, holds the connection, or refuses it.
    fn route(&mut self, id: ConnId, now: Time, out: &mut Vec<Output>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.phase = Phase::Routing;
        let Some(service) = self.services.get_mut(&conn.service).filter(|s| s.listen.is_some()) else {
            return self.refuse(id, Refused::NotServed, out);
        };
        if let Some((instance, address)) = service.pick(&conn.refused_by, id, now) {
            conn.phase = Phase::Dialling(instance);
            conn.attempt.0 += 1;
            out.push(Output::Dial { conn: id, attempt: conn.attempt, instance, address });
            return;
        }
        if service.has_backends() {
            return self.refuse(id, Refused::AllRefused, out);
        }
        let until = *conn.hold_until.get_or_insert(now + HOLD_MAX);
        if until <= now {
            return self.refuse(id, Refused::NoBackend, out);
        }
        if service.held.len() >= HELD_PER_SERVICE_MAX {
            return self.refuse(id, Refused::TooManyHeld, out);
        }
        conn.phase = Phase::Held;
        // What refused it before has left the set since: if it comes back, it is worth a try.
        conn.refused_by.clear();
        service.held.insert(id);
        self.due.insert((until, Due::Held(id)));
        out.push(Output::Hold { conn: id });
    }

    fn refuse(&mut self, id: ConnId, why: Refused, out: &mut Vec<Output>) {
        if let Some(service) = self.conns.get(&id).and_then(|conn| self.services.get_mut(&conn.service)) {
            service.counters.refused += 1;
        }
        self.forget(id);
        out.push(Output::Refuse { conn: id, why });
    }

    /// The instance of a dial, unless it has been superseded.
    fn dialling(&self, id: ConnId, attempt: Attempt) -> Option<InstanceId> {
        match self.conns.get(&id) {
            Some(Conn { phase: Phase::Dialling(instance), attempt: current, .. }) if *current == attempt => {
                Some(*instance)
            }
            Some(_) | None => None,
        }
    }

    fn dialled(&mut self, id: ConnId, attempt: Attempt, out: &mut Vec<Output>) {
        let Some(instance) = self.dialling(id, attempt) else { return };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(service) = self.services.get_mut(&conn.service) else { return };
        service.dial_succeeded(instance, id);
        conn.phase = Phase::Copying(instance);
        conn.refused_by = Vec::new();
        out.push(Output::Copy { conn: id, instance });
    }

    fn dial_failed(&mut self, id: ConnId, attempt: Attempt, now: Time, out: &mut Vec<Output>) {
        let Some(instance) = self.dialling(id, attempt) else { return };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(service) = self.services.get_mut(&conn.service) else { return };
        service.dial_failed(instance, id, now);
        conn.refused_by.push(instance);
        self.route(id, now, out);
    }

    /// Takes a connection out of every count, at whatever stage it is.
    fn forget(&mut self, id: ConnId) {
        let Some(conn) = self.conns.remove(&id) else { return };
        let Some(service) = self.services.get_mut(&conn.service) else { return };
        match conn.phase {
            Phase::Routing => {}
            Phase::Held => {
                service.held.remove(&id);
                if let Some(until) = conn.hold_until {
                    self.due.remove(&(until, Due::Held(id)));
                }
            }
            Phase::Dialling(instance) => service.dial_over(instance, id),
            Phase::Copying(instance) => {
                if let Some(until) = service.copy_over(instance, id) {
                    self.due.remove(&(until, Due::Left(conn.service.clone(), instance)));
                }
            }
        }
        if service.is_over() {
            self.services.remove(&conn.service);
        }
    }

    fn cut(&mut self, id: ConnId, instance: InstanceId, out: &mut Vec<Output>) {
        if let Some(service) = self.conns.get(&id).and_then(|conn| self.services.get_mut(&conn.service)) {
            service.counters.cut += 1;
        }
        self.forget(id);
        out.push(Output::Cut { conn: id, instance });
    }

    /// Asked again, the earlier end counts.
    fn stop(&mut self, grace: Millis, now: Time, out: &mut Vec<Output>) {
        if !matches!(self.running, Running::Stopping | Running::Stopped) {
            self.running = Running::Stopping;
            self.ports.close(out);
        }
        self.due.insert((now + grace, Due::Stopped));
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Output>) {
        while let Some((at, due)) = self.due.pop_first() {
            if at > now {
                self.due.insert((at, due));
                break;
            }
            match due {
                Due::Held(id) => self.refuse(id, Refused::NoBackend, out),
                Due::Left(service, instance) => {
                    let left = self.services.get(&service).map(|s| s.leftovers(instance)).unwrap_or_default();
                    for id in left {
                        self.cut(id, instance, out);
                    }
                }
                Due::Withdraw => self.close_ports(now, out),
                Due::Away(service) => self.end_those(|conn| conn.service == service, out),
                Due::Stopped => {
                    self.running = Running::Stopped;
                    self.end_those(|_| true, out);
                }
            }
        }
        self.ports.retry(now, out);
    }

    fn end_those(&mut self, whose: impl Fn(&Conn) -> bool, out: &mut Vec<Output>) {
        let those = self.conns.iter().filter(|(_, conn)| whose(conn));
        let those: Vec<(ConnId, Phase)> = those.map(|(id, conn)| (*id, conn.phase)).collect();
        for (id, phase) in those {
            match phase {
                Phase::Copying(instance) => self.cut(id, instance, out),
                Phase::Routing | Phase::Held | Phase::Dialling(_) => self.refuse(id, Refused::NotServed, out),
            }
        }
    }
}
