//! The node's side of the stream: registration, heartbeats, the lease and its fence, orders.

use model::{ClusterId, InstanceId, Millis, ProcessEpoch, Term, Time};

use super::{Local, Memory, Node, Output, local};
use crate::message::{
    Down, DownBody, Heartbeat, HeartbeatAnswer, Hello, Inventory, Order, Refusal, Up, UpBody, Welcome, What,
};

/// Directories that are gone are mentioned this long: the coordinator asks again if it missed it.
const FORGOTTEN_TOLD_FOR: Millis = Millis::secs(60);
/// A daemon that is told that its id is in use waits this long for the other one to be noticed dead.
const RIVAL_PATIENCE_LEASES: u64 = 3;
/// Heartbeats whose answers are still waited for.
const HEARTBEATS_IN_FLIGHT_MAX: usize = 64;

impl Node {
    pub(super) fn connected(&mut self, now: Time) {
        self.connected = true;
        self.epoch = None;
        (self.up_seq, self.down_seq) = (0, 0);
        self.sent.clear();
        self.connected_at = now;
        let inventory = self.instances.iter().map(|(id, local)| Inventory {
            service: local.run.service.clone(),
            status: local.status(*id, now),
        });
        let hello = Hello {
            node: self.identity.node.clone(),
            life: self.identity.life,
            succeeds: self.identity.succeeds,
            roles: self.identity.roles,
            labels: self.identity.labels.clone(),
            capacity: self.identity.capacity,
            host: self.identity.host.clone(),
            api: self.identity.api.clone(),
            rpc: self.identity.rpc.clone(),
            memory_caps: self.identity.memory_caps.clone(),
            cluster: self.identity.memory.cluster,
            inventory: inventory.collect(),
            edge: self.edge.clone(),
        };
        self.send(UpBody::Hello(hello));
    }

    pub(super) fn disconnected(&mut self) {
        self.connected = false;
        self.epoch = None;
        self.sent.clear();
    }

    pub(super) fn send(&mut self, body: UpBody) -> u64 {
        self.up_seq += 1;
        self.out.push(Output::Send(Up { seq: self.up_seq, body }));
        self.up_seq
    }

    /// Dispatchers stop with their final checkpoints and maintainers give their last report before the
    /// daemon goes; its instances run on.
    pub(super) fn begin_stopping(&mut self, now: Time) {
        if !self.stopping {
            self.stopping = true;
            self.feeds.stop(now);
            self.hurry(now);
        }
    }

    pub(super) fn say_goodbye(&mut self, now: Time) {
        if !self.stopping || self.goodbye || !self.feeds.is_quiet() {
            return;
        }
        self.goodbye = true;
        if self.connected {
            if let Some(epoch) = self.epoch {
                let last = self.heartbeat(epoch, now);
                self.send(UpBody::Heartbeat(last));
            }
            self.send(UpBody::Goodbye);
        }
    }

    /// The next heartbeat goes out at once.
    pub(super) fn hurry(&mut self, now: Time) {
        self.next_heartbeat = now;
    }

    pub(super) fn take_down(&mut self, down: Down, now: Time) {
        if !self.connected || down.seq <= self.down_seq || !self.obeys(&down, now) {
            return;
        }
        self.down_seq = down.seq;
        match down.body {
            DownBody::Welcome(welcome) => self.welcomed(welcome, (down.cluster, down.term), now),
            DownBody::Refused { why, message } => self.refused(why, message, now),
            DownBody::Answer(answer) => self.answered(answer, now),
            DownBody::Orders(orders) if !self.foreign && self.epoch.is_some() => {
                self.take_orders(orders, now)
            }
            DownBody::Sets(sets) if !self.foreign && self.epoch.is_some() => {
                self.out.push(Output::Sets(sets))
            }
            DownBody::Roster(roster) if !self.foreign && self.epoch.is_some() => {
                if self.feeds.take_roster(&roster, now) {
                    self.hurry(now);
                }
            }
            DownBody::Feeds(orders) if !self.foreign && self.epoch.is_some() => {
                self.feeds.take_orders(orders, now);
            }
            DownBody::Relay(peer) if !self.foreign && self.epoch.is_some() => {
                self.feeds.heard_from(&peer, true, now);
            }
            DownBody::Duty(duty) if !self.foreign && self.epoch.is_some() => {
                self.out.push(Output::Duty(duty))
            }
            // Whatever was found here since then keeps the daemon up.
            DownBody::Leave if !self.foreign && self.is_empty() => self.out.push(Output::Leave),
            DownBody::Orders(_)
            | DownBody::Sets(_)
            | DownBody::Roster(_)
            | DownBody::Feeds(_)
            | DownBody::Relay(_)
            | DownBody::Duty(_)
            | DownBody::Leave => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.feeds.is_empty() && !self.instances.values().any(Local::has_process)
    }

    /// An older term is a coordinator that does not know yet that it was replaced.
    fn obeys(&mut self, down: &Down, _now: Time) -> bool {
        let memory = &mut self.identity.memory;
        let ours = memory.cluster.is_none_or(|cluster| cluster == down.cluster);
        if !ours {
            // It may say so in its welcome; it gets nowhere with orders.
            return matches!(
                down.body,
                DownBody::Welcome(_) | DownBody::Refused { .. } | DownBody::Answer(_)
            );
        }
        if down.term < memory.term {
            self.out.push(Output::Reconnect { why: format!("term {} is over", down.term) });
            return false;
        }
        if down.term > memory.term && memory.cluster.is_some() {
            memory.term = down.term;
            self.out.push(Output::Remember(*memory));
        }
        true
    }

    fn welcomed(&mut self, welcome: Welcome, (cluster, term): (ClusterId, Term), now: Time) {
        let known = self.identity.memory.cluster;
        self.foreign = welcome.foreign || known.is_some_and(|known| known != cluster);
        (self.timing, self.epoch, self.refused_since) = (welcome.timing, Some(welcome.epoch), None);
        if known.is_none() && !self.foreign {
            self.identity.memory = Memory { cluster: Some(cluster), term };
            self.out.push(Output::Remember(self.identity.memory));
        }
        for local in self.instances.values_mut() {
            (local.stored, local.said) = (false, None);
        }
        if !self.foreign {
            let abort_at = now + self.fence_margin();
            self.feeds.welcomed(welcome.epoch, welcome.moves_per_node, abort_at, now);
        }
        self.hurry(now);
    }

    fn refused(&mut self, why: Refusal, message: String, now: Time) {
        let since = *self.refused_since.get_or_insert(now);
        match why {
            Refusal::NodeIdInUse
                if now.since(since).0 > RIVAL_PATIENCE_LEASES * self.timing.degraded_after.0 =>
            {
                self.out.push(Output::GiveUp { message });
            }
            Refusal::NodeIdInUse | Refusal::NotCoordinator => {
                self.out.push(Output::Reconnect { why: message })
            }
        }
    }

    fn answered(&mut self, answer: HeartbeatAnswer, now: Time) {
        let Some(sent_at) = self.sent.get(&answer.heartbeat).copied() else { return };
        self.sent.retain(|seq, _| *seq > answer.heartbeat);
        if self.foreign {
            return;
        }
        // The lease counts from sending: the coordinator cannot have received it earlier.
        self.lease_from = self.lease_from.max(Some(sent_at));
        let fence_at = sent_at + self.timing.fence_after;
        if now < fence_at {
            self.fenced = false;
            self.feeds.leased();
            self.out.push(Output::Lease { fence_at });
        }
        for (feed, number) in &answer.feeds {
            self.feeds.answered(feed, *number);
        }
        for (id, number) in answer.stored {
            if let Some(local) = self.instances.get_mut(&id).filter(|local| local.number == number) {
                local.stored = true;
            }
        }
    }

    fn take_orders(&mut self, orders: Vec<Order>, now: Time) {
        for Order { instance, revision, what } in orders {
            if self.instances.contains_key(&instance) {
                self.with(instance, |local, wishes| local.take(revision, what, wishes));
                // An order that changes nothing is acknowledged all the same.
                self.acknowledge(instance);
                continue;
            }
            match what {
                What::Run(run) => {
                    self.instances.insert(instance, Local::ordered(revision, run, now));
                    self.forgotten.remove(&instance);
                    self.changed(instance);
                }
                What::Forget => {
                    self.forgotten.insert(instance, now);
                    self.hurry(now);
                }
                What::Destroy(volume) => {
                    self.out.push(Output::Erase { id: instance, volume: Some(volume) });
                }
                What::Drain | What::Stop => self.never_here(instance, revision, now),
            }
        }
    }

    fn acknowledge(&mut self, id: InstanceId) {
        if let Some(local) = self.instances.get_mut(&id) {
            (local.stored, local.said) = (false, None);
        }
        self.next_heartbeat = Time(0);
    }

    /// Told to stop what it does not have: it says so, as a status of its own.
    fn never_here(&mut self, id: InstanceId, revision: u32, now: Time) {
        self.status_number += 1;
        let status = local::never_here(id, self.status_number, revision);
        self.absent.insert(id, (status, now));
        self.hurry(now);
    }

    /// Heartbeats carry everything that was not acknowledged.
    pub(super) fn beat(&mut self, now: Time) {
        self.forgotten.retain(|_, at| now.since(*at) < FORGOTTEN_TOLD_FOR);
        self.absent.retain(|_, (_, at)| now.since(*at) < FORGOTTEN_TOLD_FOR);
        let Some(epoch) = self.epoch else {
            // No welcome: the stream may be half open.
            if self.connected && now.since(self.connected_at) >= self.timing.degraded_after {
                self.give_up_stream("no answer to the registration", now);
            }
            return;
        };
        let oldest = self.sent.first_key_value().map(|(_, at)| *at);
        if oldest.is_some_and(|at| now.since(at) >= self.timing.degraded_after) {
            return self.give_up_stream("heartbeats are not answered", now);
        }
        if now < self.next_heartbeat || self.goodbye || self.sent.len() >= HEARTBEATS_IN_FLIGHT_MAX {
            return;
        }
        let heartbeat = self.heartbeat(epoch, now);
        let seq = self.send(UpBody::Heartbeat(heartbeat));
        self.sent.insert(seq, now);
        self.next_heartbeat = now + self.timing.heartbeat;
    }

    fn heartbeat(&mut self, epoch: ProcessEpoch, now: Time) -> Heartbeat {
        let again_after = Millis(2 * self.timing.heartbeat.0);
        let news = self.instances.iter_mut().filter_map(|(id, local)| {
            let news = local.has_news(now, again_after);
            news.then(|| local.status(*id, now))
        });
        let mut statuses: Vec<_> = news.collect();
        statuses.extend(self.absent.values().map(|(status, _)| status.clone()));
        Heartbeat {
            epoch,
            statuses,
            forgotten: self.forgotten.keys().copied().collect(),
            degraded: self.degraded,
            edge: self.edge.clone(),
            roster: self.feeds.roster(),
            feeds: self.feeds.reports(now),
            dispatchers: self.feeds.inventory(),
        }
    }

    fn give_up_stream(&mut self, why: &str, now: Time) {
        self.disconnected();
        self.connected_at = now;
        self.out.push(Output::Reconnect { why: why.to_owned() });
    }

    /// Past the fence the node stops what must not run twice; the coordinator starts it elsewhere only
    /// later.
    pub(super) fn mind_the_fence(&mut self, now: Time) {
        let Some(fence_at) = self.fence_at() else { return };
        if self.fenced || now < fence_at {
            return;
        }
        self.fenced = true;
        let margin = self.fence_margin();
        self.feeds.fence(now + margin, now);
        let ids: Vec<InstanceId> = self.instances.keys().copied().collect();
        for id in ids {
            self.with(id, |local, wishes| {
                let kill_at = now + margin.min(local.run.spec.stop.grace);
                local.fence(wishes, kill_at);
            });
        }
    }

    /// What must not run twice has this long to end in good order.
    fn fence_margin(&self) -> Millis {
        Millis((self.timing.offline_after.0 - self.timing.fence_after.0) / 2)
    }

    fn fence_at(&self) -> Option<Time> {
        self.lease_from.map(|from| from + self.timing.fence_after)
    }

    pub(super) fn session_wake(&self) -> Option<Time> {
        let fence = self.fence_at().filter(|_| !self.fenced);
        let may_beat = !self.goodbye && self.sent.len() < HEARTBEATS_IN_FLIGHT_MAX;
        let beat = self.epoch.filter(|_| may_beat).map(|_| self.next_heartbeat);
        // Before the welcome the registration is waited for, then the oldest unanswered heartbeat.
        let waits_since = match self.epoch {
            Some(_) => self.sent.first_key_value().map(|(_, at)| *at),
            None => self.connected.then_some(self.connected_at),
        };
        let patience = waits_since.map(|at| at + self.timing.degraded_after);
        [fence, beat, patience].into_iter().flatten().min()
    }
}
