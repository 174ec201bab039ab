//! Streams between daemons and coordinators: slow, lossy, out of order, cut in one direction or both.

use std::collections::VecDeque;

use model::Term;
use protocol::message::{Down, DownBody, Up, UpBody};

use crate::world::{Event, ToDaemon, World};
use crate::{machine::Daemon, office::OfficeInput};

#[derive(Clone, Debug)]
pub enum Message {
    Up(Box<Up>),
    Down(Box<Down>),
    Close,
}

fn is_sets(message: &Message) -> bool {
    matches!(message, Message::Down(down) if matches!(down.body, DownBody::Sets(_)))
}

/// One end of a stream: a life of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub machine: usize,
    pub life: u64,
    pub open: bool,
}

#[derive(Debug)]
pub struct Conn {
    pub node: End,
    pub office: End,
    pub term: Term,
    /// What a partition holds back, per direction: up, down.
    held: [VecDeque<Message>; 2],
    last_at: [u64; 2],
}

impl Conn {
    fn ends(&self, up: bool) -> (End, End) {
        if up { (self.node, self.office) } else { (self.office, self.node) }
    }
}

impl World {
    /// How long a message is on its way.
    pub fn delay(&mut self) -> u64 {
        match !self.calm && self.rng.chance(self.swarm.net.slow) {
            true => self.rng.between(100, 3000),
            false => self.rng.between(1, 20),
        }
    }

    pub fn open_conn(&mut self, node: (usize, u64), office: (usize, u64), term: Term) -> u64 {
        let id = self.number();
        let end = |(machine, life)| End { machine, life, open: true };
        let held = [VecDeque::new(), VecDeque::new()];
        self.conns.insert(id, Conn { node: end(node), office: end(office), term, held, last_at: [0; 2] });
        id
    }

    pub fn send(&mut self, id: u64, up: bool, message: Message) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (from, to) = conn.ends(up);
        if !from.open {
            return;
        }
        let lossy = !self.calm && self.swarm.net.loss > 0;
        let cut = self.blocked.contains(&(from.machine, to.machine));
        let close = matches!(message, Message::Close);
        if cut && lossy || !close && !self.calm && self.rng.chance(self.swarm.net.loss) {
            return;
        }
        if self.swarm.net.sets_lost > 0 && is_sets(&message) && !self.calm {
            let lost = self.rng.chance(self.swarm.net.sets_lost);
            if lost {
                return self.cover.hit("sets lost on their way to an edge");
            }
        }
        let direction = usize::from(up);
        let behind = self.conns.get(&id).is_some_and(|conn| !conn.held[direction].is_empty());
        if cut || behind {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.held[direction].push_back(message);
            }
            return;
        }
        self.travel(id, up, message);
    }

    fn travel(&mut self, id: u64, up: bool, message: Message) {
        let local = self.conns.get(&id).is_some_and(|conn| conn.node.machine == conn.office.machine);
        let delay = if local { 0 } else { self.delay() };
        let close = matches!(message, Message::Close);
        let (twice, out_of_order) = match self.calm || close {
            true => (false, false),
            false => (self.rng.chance(self.swarm.net.duplicate), self.rng.chance(self.swarm.net.reorder)),
        };
        let mut at = self.now + delay;
        if let Some(conn) = self.conns.get_mut(&id) {
            let last = &mut conn.last_at[usize::from(up)];
            if !out_of_order {
                at = at.max(*last);
                *last = at;
            }
        }
        if twice {
            let again = at + self.rng.between(0, 500);
            self.at(again, Event::Deliver { conn: id, up, message: message.clone() });
        }
        self.at(at, Event::Deliver { conn: id, up, message });
    }

    pub fn deliver(&mut self, id: u64, up: bool, message: Message) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (_, to) = conn.ends(up);
        if !to.open {
            return;
        }
        if let Message::Close = message {
            match up {
                true => conn.office.open = false,
                false => conn.node.open = false,
            }
        }
        let (machine, life) = (to.machine, to.life);
        let input = match message {
            Message::Up(up) => {
                let term = conn.term;
                self.trace_up(machine, id, &up);
                ToDaemon::Office(OfficeInput::Up { term, conn: id, message: *up })
            }
            Message::Down(down) => {
                self.trace_down(machine, id, &down);
                let ours = self.machines[machine].daemon.as_ref().is_some_and(|d| d.conn == Some(id));
                if !ours || self.machines[machine].life != life {
                    return;
                }
                ToDaemon::Node(protocol::node::Input::Down(*down))
            }
            Message::Close if up => ToDaemon::Office(OfficeInput::Closed { term: conn.term, conn: id }),
            Message::Close => return self.lost_conn(machine, life, id),
        };
        self.happen(Event::Daemon { machine, life, input });
    }

    fn trace_up(&mut self, machine: usize, conn: u64, up: &Up) {
        if !self.trace.is_kept() {
            return;
        }
        let what = match &up.body {
            UpBody::Hello(hello) => format!("hello of {} with {}", hello.node, hello.inventory.len()),
            UpBody::Heartbeat(heartbeat) => {
                let statuses = heartbeat.statuses.iter();
                let statuses: Vec<String> =
                    statuses.map(|s| format!("{}={} o{}", s.instance, s.actual.as_str(), s.order)).collect();
                format!("heartbeat [{}]", statuses.join(" "))
            }
            UpBody::Relay { to, message } => format!("to {to}, {}", crate::feeds::short(&message.body)),
            UpBody::Goodbye => "goodbye".to_owned(),
        };
        self.say(format!("m{machine} <- c{conn} #{} {what}", up.seq));
    }

    fn trace_down(&mut self, machine: usize, conn: u64, down: &Down) {
        if !self.trace.is_kept() {
            return;
        }
        let what = match &down.body {
            DownBody::Welcome(welcome) => format!("welcome, epoch {}", welcome.epoch),
            DownBody::Refused { why, .. } => format!("refused: {why:?}"),
            DownBody::Roster(roster) => {
                let closed = roster.nodes.iter().filter(|node| node.closed).count();
                format!("roster {:?}, {closed} of {} closed", roster.revision, roster.nodes.len())
            }
            DownBody::Feeds(orders) => {
                let order = |order: &protocol::message::FeedOrder| {
                    let what = match &order.what {
                        protocol::message::feed::FeedWhat::Maintain(order) => {
                            format!(
                                "maintain r{} moves {} {}",
                                order.revision.number,
                                order.moves,
                                order.state.as_str()
                            )
                        }
                        protocol::message::feed::FeedWhat::Quiesce => "quiesce".to_owned(),
                        protocol::message::feed::FeedWhat::Forget => "forget".to_owned(),
                    };
                    format!("{what} {} e{}", order.feed, order.epoch)
                };
                orders.iter().map(order).collect::<Vec<_>>().join(", ")
            }
            DownBody::Answer(answer) => format!("answer to {}", answer.heartbeat),
            DownBody::Orders(orders) => {
                let order = |order: &protocol::message::Order| {
                    let what = match &order.what {
                        protocol::message::What::Run(_) => "run",
                        protocol::message::What::Drain => "drain",
                        protocol::message::What::Stop => "stop",
                        protocol::message::What::Forget => "forget",
                        protocol::message::What::Destroy(_) => "destroy",
                    };
                    format!("{what} {} o{}", order.instance, order.revision)
                };
                format!("orders [{}]", orders.iter().map(order).collect::<Vec<_>>().join(", "))
            }
            DownBody::Leave => "leave".to_owned(),
            DownBody::Relay(peer) => format!("from {}, {}", peer.from, crate::feeds::short(&peer.body)),
            DownBody::Duty(duty) => format!("{duty:?}"),
            DownBody::Sets(sets) => format!("sets {}.{}", sets.revision.term, sets.revision.number),
        };
        self.say(format!("m{machine} <- c{conn} #{} t{} {what}", down.seq, down.term));
    }

    /// The node's end of a stream is gone: it dials again.
    fn lost_conn(&mut self, machine: usize, life: u64, id: u64) {
        let here = &mut self.machines[machine];
        let Some(daemon) = here.daemon.as_mut().filter(|daemon| daemon.conn == Some(id)) else { return };
        if here.life != life {
            return;
        }
        daemon.conn = None;
        self.tell_daemon(0, machine, ToDaemon::Disconnected);
        self.redial(machine, 10);
    }

    /// Closed by one end, or because its daemon died; the kernel tells the other.
    pub fn close_conn(&mut self, id: u64, by_node: bool) {
        self.send(id, by_node, Message::Close);
        if let Some(conn) = self.conns.get_mut(&id) {
            match by_node {
                true => conn.node.open = false,
                false => conn.office.open = false,
            }
        }
    }

    /// The connections of a life that ended. With `silent` nobody is told: the machine lost its power.
    pub fn close_all(&mut self, machine: usize, life: u64, silent: bool) {
        let here = |end: &End| end.machine == machine && end.life == life && end.open;
        let ends: Vec<(u64, bool)> = self
            .conns
            .iter()
            .flat_map(|(id, conn)| [(*id, true, here(&conn.node)), (*id, false, here(&conn.office))])
            .filter(|(.., is)| *is)
            .map(|(id, by_node, _)| (id, by_node))
            .collect();
        for (id, by_node) in ends {
            if !silent {
                self.close_conn(id, by_node);
            } else if let Some(conn) = self.conns.get_mut(&id) {
                match by_node {
                    true => conn.node.open = false,
                    false => conn.office.open = false,
                }
            }
        }
        self.conns.retain(|_, conn| conn.node.open || conn.office.open);
    }

    pub fn unblock(&mut self, pairs: &[(usize, usize)]) {
        for pair in pairs {
            self.blocked.remove(pair);
            self.disturb(pair.0);
            self.disturb(pair.1);
        }
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        for id in ids {
            for up in [false, true] {
                let Some(conn) = self.conns.get_mut(&id) else { continue };
                let (from, to) = conn.ends(up);
                if self.blocked.contains(&(from.machine, to.machine)) {
                    continue;
                }
                for message in std::mem::take(&mut conn.held[usize::from(up)]) {
                    self.travel(id, up, message);
                }
            }
        }
    }

    pub fn redial(&mut self, machine: usize, pause: u64) {
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        if daemon.node.is_none() || daemon.dialling || daemon.conn.is_some() {
            return;
        }
        daemon.dialling = true;
        let pause = pause + self.rng.between(1, 200);
        self.tell_daemon(pause, machine, ToDaemon::Dial);
    }

    /// Asks some candidate, which takes the stream or says who is in office.
    pub fn dial(&mut self, machine: usize) {
        let candidates: Vec<usize> =
            (0..self.machines.len()).filter(|at| self.machines[*at].roles.coordinator).collect();
        let hint = self.machines[machine].daemon.as_mut().and_then(|daemon| daemon.hint.take());
        let target = hint.or_else(|| self.rng.pick(&candidates).copied()).unwrap_or(0);
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        daemon.dialling = false;
        if daemon.conn.is_some() {
            return;
        }
        let reached =
            !self.blocked.contains(&(machine, target)) && !self.blocked.contains(&(target, machine));
        let there = &self.machines[target];
        let asked = there.daemon.as_ref().filter(|_| reached && !there.suspended && there.powered);
        match asked.map(Daemon::term_in_office) {
            Some(Some(term)) => {
                let (from, to) = ((machine, self.machines[machine].life), (target, there.life));
                let conn = self.open_conn(from, to, term);
                let delay = self.delay();
                self.tell_daemon(delay, machine, ToDaemon::Opened { conn });
                if let Some(daemon) = self.machines[machine].daemon.as_mut() {
                    daemon.dialling = true;
                }
            }
            Some(None) => {
                let now = self.now;
                let holder = self.store.holder(now).map(|holder| holder.machine);
                let holder = holder.filter(|_| !self.store_cut.contains(&target));
                if let Some(daemon) = self.machines[machine].daemon.as_mut() {
                    daemon.hint = holder;
                }
                self.redial(machine, if holder.is_some() { 5 } else { 200 });
            }
            None => self.redial(machine, 300),
        }
    }

    pub fn opened(&mut self, machine: usize, conn: u64) {
        let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
        daemon.dialling = false;
        if !self.conns.get(&conn).is_some_and(|conn| conn.node.open) {
            return self.redial(machine, 50);
        }
        daemon.conn = Some(conn);
        self.say(format!("m{machine} connected, c{conn}"));
        self.node_input(machine, protocol::node::Input::Connected);
    }
}
