//! Drains: what operators ask for, and what must hold in the world when one begins or ends.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Code, Drain, DrainNode, DrainState, Ending, Instance, Intent, Kind, Millis, Node, Return, RolloutState,
    Then,
};
use protocol::{
    coordinator::{DrainRequest, Request},
    message::Withdrawal,
};

use crate::{process::Slot, workload::About, world::World};

impl World {
    pub fn draw_drain_request(&mut self) -> (About, Request) {
        let in_drain = self.mirror.nodes().filter(|(_, node)| node.drain.is_some());
        let in_drain: Vec<String> = in_drain.map(|(_, node)| node.rec.id.to_string()).collect();
        let out = self.mirror.nodes().filter(|(_, node)| node.rec.is_closed() && node.drain.is_none());
        let out: Vec<String> = out.map(|(_, node)| node.rec.id.to_string()).collect();
        let (what, draining) = (self.rng.below(100), self.rng.pick(&in_drain).cloned());
        let out = self.rng.pick(&out).cloned();
        match (what, draining, out) {
            (0..20, Some(node), _) => {
                self.cover.hit("drain changed");
                (About::Other, Request::Drain(DrainRequest { nodes: vec![node], ..self.draw_options() }))
            }
            (20..30, Some(node), _) => (About::Other, Request::CancelNode { node }),
            (30..35, Some(_), _) => {
                let epoch = self.mirror.drains().find(|drain| drain.is_unfinished()).map(|d| d.epoch);
                (About::Other, Request::CancelDrain { epoch: epoch.unwrap_or(1) })
            }
            (35..48, _, Some(node)) => self.shrink_and_enable(node),
            (48..65, _, Some(node)) => self.enable(node),
            _ => self.draw_drain(),
        }
    }

    fn draw_drain(&mut self) -> (About, Request) {
        let options = self.draw_options();
        if self.swarm.feeds > 0 && self.rng.chance(200) && self.swarm.crowd == 0 {
            // Feeds that are bound to the zone have nowhere to go, and not much time.
            let deadline = Some(Some(Millis(self.rng.below(3000))));
            let selector = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
            return (About::Other, Request::Drain(DrainRequest { selector, deadline, ..options }));
        }
        if self.rng.chance(100) {
            let zone = if self.rng.chance(500) { "a" } else { "b" };
            let selector = BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
            return (About::Other, Request::Drain(DrainRequest { selector, ..options }));
        }
        let several = if self.rng.chance(300) { self.rng.between(2, 3) } else { 1 };
        let workers = self.swarm.workers as u64;
        let nodes = (0..several).map(|_| self.machines[self.rng.below(workers) as usize].id.to_string());
        let nodes = nodes.collect();
        (About::Other, Request::Drain(DrainRequest { nodes, ..options }))
    }

    /// What is not said keeps its value.
    fn draw_options(&mut self) -> DrainRequest {
        let deadline = match self.rng.below(10) {
            0..3 => None,
            3..5 => Some(None),
            5..8 => Some(Some(Millis(self.rng.between(500, 20_000)))),
            _ => Some(Some(Millis::ZERO)),
        };
        let mut flag = || self.rng.chance(400).then(|| self.rng.chance(500));
        let (ignore_system, ack_stateful, include_stateful) = (flag(), flag(), flag());
        let then = self.rng.chance(400).then(|| if self.rng.chance(600) { Then::Stop } else { Then::Stay });
        let back =
            self.rng.chance(300).then(|| if self.rng.chance(500) { Return::Restart } else { Return::Enable });
        DrainRequest {
            deadline,
            ignore_system,
            ack_stateful,
            include_stateful,
            then,
            back,
            ..Default::default()
        }
    }

    /// A drain is about to be stored, in place of what is known of it.
    pub fn check_drain(&mut self, drain: &Drain) {
        let known = self.mirror.drain(drain.epoch).cloned();
        if known.is_none() && drain.nodes.len() > 1 {
            self.cover.hit("drain of several nodes");
        }
        if known.is_none() && drain.epoch != self.mirror.meta().drain_epoch {
            self.fail(2, format!("drain {} is stored, and is not the newest", drain.epoch));
        }
        for part in &drain.nodes {
            let before = known.as_ref().and_then(|known| known.part(part.node.as_str()));
            self.cover_part(before, part);
            let ended = before.is_none_or(|before| before.ending().is_none());
            if let Some(ending) = part.ending().filter(|_| ended) {
                self.drain_ended.insert(part.node.to_string());
                self.check_ending(drain.epoch, part, ending);
            }
        }
    }

    fn cover_part(&mut self, before: Option<&DrainNode>, part: &DrainNode) {
        let turn = before.is_some_and(|before| before.state == DrainState::Queued);
        if turn && part.state == DrainState::Draining {
            self.cover.hit("node's turn to drain");
        }
        if part.blocked {
            self.cover.hit("drain blocked");
        }
        if part.deadline_reached {
            self.cover.hit("drain deadline reached");
        }
    }

    /// What the record says of the node is so: nothing lives there that had to go.
    fn check_ending(&mut self, epoch: u64, part: &DrainNode, ending: Ending) {
        let what = match ending {
            Ending::Drained => "drained",
            Ending::DrainedExcept => "drain left behind what may stay",
            Ending::Cancelled => "drain cancelled",
            Ending::NodeLost => "drain lost its node",
            Ending::Failed => return self.fail(6, format!("the drain of {} failed", part.node)),
        };
        self.cover.hit(what);
        if let Some(lives) = self.lives_on(part).filter(|_| ending <= Ending::DrainedExcept) {
            self.fail(6, format!("{} is {what}, and {lives} lives on it", part.node));
        }
        let unready = part.left.iter().filter(|(_, code)| *code != Code::NoEligibleNode);
        let unready: Vec<String> =
            unready.filter_map(|(unit, _)| unit.strip_prefix("feed/").map(str::to_owned)).collect();
        for feed in unready {
            self.check_left_unready(&part.node, &feed);
        }
        if part.total >= 300 && ending == Ending::Drained {
            self.cover.hit("hundreds of dispatchers left a draining node");
        }
        if part.total >= 300 && ending == Ending::Cancelled {
            self.cover.hit("a drain of hundreds of dispatchers was cancelled");
        }
        let listed = |unit: &str| part.left.iter().any(|(left, _)| left == unit);
        if part
            .left
            .iter()
            .any(|(unit, code)| !unit.starts_with("instance/") && *code == Code::NoEligibleNode)
        {
            self.cover.hit("drain left feeds behind that had nowhere to go");
        }
        let lives = self.feeds_live_on(&part.node, |unit| ending == Ending::DrainedExcept && listed(unit));
        if let Some(lives) = lives.filter(|_| ending <= Ending::DrainedExcept) {
            self.fail(6, format!("{} is {what}, and {lives} is at work on it", part.node));
        }
        let edge = self.machines.iter().any(|machine| machine.id == part.node && machine.roles.edge);
        let withdrew = self.withdrew.contains(&(part.node.to_string(), epoch));
        if ending <= Ending::DrainedExcept && edge && !withdrew {
            self.fail(6, format!("{} is {what}, and its edge did not withdraw", part.node));
        }
    }

    /// The edge of a machine said something else of its leaving than before.
    pub fn note_withdrawal(&mut self, machine: usize, before: Option<Withdrawal>, after: Option<Withdrawal>) {
        if before == after {
            return;
        }
        self.say(format!("m{machine} edge: {after:?}"));
        match (before, after) {
            (_, Some(Withdrawal { drain, done: true })) => {
                self.cover.hit("edge withdrew");
                self.withdrew.insert((self.machines[machine].id.to_string(), drain));
                let daemon = self.machines[machine].daemon.as_ref();
                let listens = daemon.is_some_and(|daemon| !daemon.listening.is_empty());
                let open = daemon.and_then(|daemon| daemon.edge.as_ref()).is_some_and(|edge| edge.open() > 0);
                if listens || open {
                    self.fail(6, format!("the edge on m{machine} has withdrawn and serves on"));
                }
            }
            (Some(Withdrawal { done: true, .. }), None) => {
                self.cover.hit("withdrawn edge came back");
                self.check_return(machine);
            }
            (Some(_), None) => self.cover.hit("edge came back before it had withdrawn"),
            (_, Some(_)) | (None, None) => {}
        }
    }

    /// A process that should have left this node with its drain.
    pub fn lives_on(&self, part: &DrainNode) -> Option<model::InstanceId> {
        let machine = self.machines.iter().find(|machine| machine.id == part.node)?;
        let may_stay = |slot: &Slot| {
            let spec = &slot.run.spec;
            let except = part.ending() == Some(Ending::DrainedExcept);
            (spec.kind == Kind::System && part.options.ignore_system) || (spec.is_stateful() && except)
        };
        let mut live = machine.slots.iter().filter(|(_, slot)| slot.live().is_some() && !may_stay(slot));
        live.next().map(|(id, _)| *id)
    }

    /// Nodes whose last drain lets them come back with their next life.
    pub fn nodes_that_return(&self) -> BTreeSet<String> {
        let ids = self.mirror.nodes().map(|(_, node)| node.rec.id.as_str());
        let returns = |id: &&str| {
            let part = self.mirror.last_drain_of(id).and_then(|drain| drain.part(id));
            part.is_some_and(|part| part.options.back == Return::Restart)
        };
        ids.filter(returns).map(str::to_owned).collect()
    }

    /// A node's intent changes only as the table says.
    pub fn check_intent_change(&mut self, old: &Node) {
        let Some(node) = self.mirror.node_by_id(old.id.as_str()).map(|entry| entry.rec.clone()) else {
            return;
        };
        let id = node.id.as_str();
        let last = self.mirror.last_drain_of(id).and_then(|drain| drain.part(id));
        let ended = |drain: &&Drain| drain.part(id).is_some_and(|part| part.ending().is_some());
        let part = self.mirror.drains().rfind(ended).and_then(|drain| drain.part(id)).cloned();
        let part = part.as_ref();
        // Two lives may have come and gone in one transaction.
        let new_life = old.life != node.life;
        // Another drain may have begun in the same transaction: it came back by the one before.
        let says = |part: Option<&DrainNode>| part.is_some_and(|part| part.options.back == Return::Restart);
        let returns = new_life && (says(last) || says(part));
        let cancelled = part.is_some_and(|part| part.ending() == Some(Ending::Cancelled));
        let others = self.mirror.nodes().filter(|(_, other)| other.rec.id != node.id);
        let last_node = others.filter(|(_, other)| !other.rec.is_offline()).count() == 0;
        let enabled = self.workload.enables.contains(node.id.as_str());
        let ended = |then: Then| {
            part.is_some_and(|part| {
                let out =
                    matches!(part.ending(), Some(Ending::Drained | Ending::DrainedExcept | Ending::NodeLost));
                out && part.options.then == then
            })
        };
        let may = match (old.intent, node.intent) {
            (Intent::Drained | Intent::Stopping, Intent::Active) => {
                returns || last_node || enabled || cancelled
            }
            (Intent::Drained | Intent::Stopping, same) if same == old.intent => {
                // Back with its new life, and out again by the drain that it was in.
                // By the drain that was the last then: another may have begun after it, and before this.
                let was_to = self.returning.contains(id) && says(last);
                !(new_life && was_to) || self.drain_ended.contains(id)
            }
            (Intent::Stopping, Intent::Drained) => new_life || ended(Then::Stay),
            (Intent::Active | Intent::Drained, Intent::Stopping) => ended(Then::Stop),
            // Told to stop, and back with a new life before that was stored.
            (Intent::Active, Intent::Drained) => ended(Then::Stay) || (new_life && ended(Then::Stop)),
            (Intent::Disabled, Intent::Drained | Intent::Stopping) => false,
            (_, Intent::Active | Intent::Disabled | Intent::Drained | Intent::Stopping) => true,
        };
        if returns && old.intent != Intent::Active && node.intent == Intent::Active {
            self.cover.hit("drained node back with a new life");
        }
        if !may {
            let (from, to) = (old.intent.as_str(), node.intent.as_str());
            self.fail(4, format!("{} went from {from} to {to}, and nothing says so", node.id));
        }
    }

    pub fn cover_balance(&mut self, instance: &Instance) {
        let old = instance.replaces.and_then(|old| self.mirror.instance(old));
        let Some(old) = old.filter(|old| old.is_wanted() && old.release == instance.release) else { return };
        let complete = self
            .mirror
            .service(instance.service)
            .is_some_and(|entry| entry.rec.rollout.state == RolloutState::Complete);
        if complete && self.mirror.node(old.node).may_place() && self.mirror.instance(instance.id).is_none() {
            self.cover.hit("balance move");
        }
    }

    /// Somebody starts the daemons that had left.
    pub fn start_those_that_left(&mut self) {
        for machine in 0..self.machines.len() {
            if self.machines[machine].left {
                self.start_daemon(machine);
            }
        }
    }
}
