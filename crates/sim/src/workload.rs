//! What operators ask for, and what they may rely on afterwards: what was acknowledged stays, what was
//! refused did not happen, and what got no answer is one or the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    FeedName, Intent, Kind, Millis, Node, NodeId, Service, ServiceName, ServiceSpec, SpanName,
    spec::{Check, Disk, EdgeSpec, Migrate, Probe, Signal, Stop, Update, VolumeSpec},
};
use protocol::{
    coordinator::{Answer, ApiError, Apply, Request, WantedIntent},
    message::Run,
};

use crate::{
    office::OfficeInput,
    script::Item,
    world::{Event, ToDaemon, World},
};

const NAMES: [&str; 8] = ["web", "api", "db", "job", "log", "one", "cache", "mail"];
/// An operator who gets no answer gives up.
const PATIENCE: u64 = 8000;

/// What a service should be: `None` is not there, or on its way out.
type Wish = Option<(u32, Arc<ServiceSpec>)>;

#[derive(Default)]
pub struct Workload {
    /// What each service may be now.
    services: BTreeMap<ServiceName, Vec<Wish>>,
    intents: BTreeMap<String, Vec<Intent>>,
    pub pending: Option<Pending>,
    /// Nodes that somebody may be about to enable.
    pub enables: BTreeSet<String>,
    /// How a release is broken, by a mark in its command.
    next_id: u64,
}

pub struct Pending {
    id: u64,
    about: About,
}

pub enum About {
    Service { name: ServiceName, before: Vec<Wish>, after: Vec<Wish> },
    Node { node: String, before: Vec<Intent>, after: Intent },
    Move { feed: FeedName, span: SpanName, to: NodeId },
    Other,
}

impl Workload {
    /// 0: does not start, 1: never gets healthy, 2: crashes at once.
    pub fn brokenness(&self, run: &Run) -> Option<u64> {
        run.spec.env.get("BROKEN").and_then(|how| how.parse().ok())
    }

    pub fn services(&self) -> impl Iterator<Item = (&ServiceName, &[Wish])> {
        self.services.iter().map(|(name, wishes)| (name, wishes.as_slice()))
    }

    fn may_be(&self, name: &ServiceName) -> Vec<Wish> {
        self.services.get(name).cloned().unwrap_or_else(|| vec![None])
    }
}

impl World {
    pub fn next_request(&mut self) {
        if self.calm {
            return;
        }
        let item = Item::Request(self.next_items.1);
        self.next_items.1 += 1;
        self.play(item, |world| {
            let pause = world.rng.between(1, 2 * world.swarm.request_every);
            world.after(pause, Event::Request);
            if world.plays(item) {
                world.request(item);
            }
        });
    }

    fn request(&mut self, item: Item) {
        let in_office: Vec<usize> =
            (0..self.machines.len()).filter(|at| self.tenure(*at).is_some()).collect();
        let target = self.rng.pick(&in_office).copied().filter(|_| self.workload.pending.is_none());
        let Some(target) = target else { return };
        let about_drains =
            self.swarm.drains > 0 && self.rng.chance(self.swarm.drains) && !self.misses_crowd();
        let about_feeds = !about_drains && self.swarm.feeds > 0 && self.rng.chance(self.swarm.feeds);
        let about_feeds = about_feeds || self.misses_crowd();
        let others = about_drains || about_feeds;
        let about_stores = !others && self.swarm.stores > 0 && self.rng.chance(self.swarm.stores);
        let (about, request) = match (about_drains, about_feeds) {
            (true, _) => self.draw_drain_request(),
            (false, true) => self.draw_feed_request(),
            (false, false) if about_stores => self.draw_store_request(),
            (false, false) => self.draw_request(),
        };
        self.played(item, || format!("request to m{target}: {}", short(&request)));
        self.ask(target, about, request);
    }

    /// Somebody takes this node in, while what was asked for before still goes on.
    pub fn enable_soon(&mut self, node: String) {
        let in_office = (0..self.machines.len()).find(|at| self.tenure(*at).is_some());
        match in_office.filter(|_| self.workload.pending.is_none()) {
            Some(target) => {
                let (about, request) = self.enable(node);
                self.ask(target, about, request);
            }
            None if self.calm => {}
            None => self.after(20, Event::Enable { node }),
        }
    }

    /// Fewer of a service that edges send to, and right after that a node whose edge had left is taken in.
    pub fn shrink_and_enable(&mut self, node: String) -> (About, Request) {
        let served = self.mirror.services().filter(|(_, entry)| entry.rec.spec().edge.is_some());
        let served: Vec<ServiceName> = served
            .filter(|(_, entry)| entry.rec.count > 0)
            .map(|(_, entry)| entry.rec.name.clone())
            .collect();
        let Some(name) = self.rng.pick(&served).cloned() else { return self.enable(node) };
        let before = self.workload.may_be(&name);
        let after = before.iter().map(|wish| wish.as_ref().map(|(_, spec)| (0, spec.clone()))).collect();
        let pause = self.rng.between(20, 1500);
        self.after(pause, Event::Enable { node });
        (About::Service { name: name.clone(), before, after }, Request::Scale { service: name, count: 0 })
    }

    pub fn ask(&mut self, target: usize, about: About, request: Request) {
        self.workload.next_id += 1;
        let id = self.workload.next_id;
        if self.trace.is_kept() {
            self.say(format!("request {id} to m{target}: {}", short(&request)));
        }
        match &about {
            About::Service { name, before, after } => {
                let either = before.iter().chain(after).cloned().collect();
                self.workload.services.insert(name.clone(), either);
            }
            About::Node { node, before, after } => {
                if *after == Intent::Active {
                    self.workload.enables.insert(node.clone());
                }
                let either = before.iter().copied().chain([*after]).collect();
                self.workload.intents.insert(node.clone(), either);
            }
            About::Move { .. } | About::Other => {}
        }
        self.workload.pending = Some(Pending { id, about });
        self.tell_daemon(5, target, ToDaemon::Office(OfficeInput::Request { id, request }));
        self.after(PATIENCE, Event::GiveUpRequest { id });
    }

    pub fn give_up_request(&mut self, id: u64) {
        if self.workload.pending.as_ref().is_some_and(|pending| pending.id == id) {
            self.cover.hit("request lost");
            self.say(format!("request {id} got no answer"));
            self.workload.pending = None;
        }
    }

    pub fn replied(&mut self, id: u64, result: Result<Answer, ApiError>) {
        let said = result.as_ref().err().map_or("ok".to_owned(), ToString::to_string);
        self.say(format!("reply to {id}: {said}"));
        let Some(pending) = self.workload.pending.take_if(|pending| pending.id == id) else { return };
        if result.is_ok() {
            self.cover.hit("request acknowledged");
        }
        if let Ok(Answer::Draining(epoch)) = &result
            && self.mirror.drain(*epoch).is_none()
        {
            self.fail(14, format!("drain {epoch} was acknowledged and is not in the store"));
        }
        match pending.about {
            About::Service { name, before, after } => {
                let known = if result.is_ok() { after } else { before };
                self.workload.services.insert(name.clone(), known);
                let stored = self.mirror.service_by_name(name.as_str()).map(|entry| entry.rec.clone());
                self.check_expected(&name, stored.as_ref());
            }
            About::Node { node, before, after } => {
                let known = if result.is_ok() { vec![after] } else { before };
                self.workload.intents.insert(node.clone(), known);
                self.workload.enables.remove(&node);
                if let Some(rec) = self.mirror.node_by_id(&node).map(|entry| entry.rec.clone()) {
                    self.check_intent(&rec);
                }
            }
            About::Move { feed, span, to } if result.is_ok() => self.check_wish(&feed, &span, &to),
            About::Move { .. } | About::Other => {}
        }
    }

    /// The store holds what operators may expect.
    pub fn check_expected(&mut self, name: &ServiceName, stored: Option<&Service>) {
        let is: Wish = stored.filter(|rec| !rec.removed).map(|rec| (rec.count, rec.spec().clone()));
        let may = self.workload.may_be(name);
        // A service on its way out cannot be applied anew before it is gone: both are `None`.
        if !may.contains(&is) {
            let show =
                |wish: &Wish| wish.as_ref().map_or("none".to_owned(), |(count, _)| format!("count {count}"));
            let may: Vec<String> = may.iter().map(show).collect();
            self.fail(14, format!("{name} is {} in the store and should be one of {may:?}", show(&is)));
        }
    }

    pub fn check_intent(&mut self, node: &Node) {
        let may = self.workload.intents.get(node.id.as_str());
        // What a drain makes of an active node is for `check_intent_change` to judge.
        let asked = match node.intent {
            Intent::Drained | Intent::Stopping => Intent::Active,
            Intent::Active | Intent::Disabled => node.intent,
        };
        if may.is_some_and(|may| !may.contains(&asked)) {
            self.fail(4, format!("{} is {} and should not be", node.id, node.intent.as_str()));
        }
    }

    fn draw_request(&mut self) -> (About, Request) {
        let name = ServiceName::new(self.rng.pick(&NAMES).copied().unwrap_or("web"));
        let before = self.workload.may_be(&name);
        match self.rng.below(100) {
            0..60 => self.draw_apply(name, before),
            60..70 => {
                self.cover.hit("service scaled");
                let count = self.rng.below(5) as u32;
                let after = before.iter().map(|wish| wish.as_ref().map(|(_, spec)| (count, spec.clone())));
                let after = after.collect();
                (
                    About::Service { name: name.clone(), before, after },
                    Request::Scale { service: name, count },
                )
            }
            70..77 => {
                self.cover.hit("service removed");
                let about = About::Service { name: name.clone(), before, after: vec![None] };
                (about, Request::Remove { service: name })
            }
            77..87 => self.draw_intent(),
            87..92 => {
                let ids: Vec<_> = self.mirror.instances().filter(|i| !i.is_over()).map(|i| i.id).collect();
                match self.rng.pick(&ids) {
                    Some(id) => {
                        self.cover.hit("stopped by an operator");
                        (About::Other, Request::StopInstance { id: *id })
                    }
                    None => (About::Other, Request::Barrier),
                }
            }
            92..96 => self.draw_attach(),
            _ => self.draw_confirm_dead(),
        }
    }

    fn draw_apply(&mut self, name: ServiceName, before: Vec<Wish>) -> (About, Request) {
        let count = self.rng.below(5) as u32;
        let spec = Arc::new(self.draw_spec(&name));
        if before.iter().any(Option::is_some) {
            self.cover.hit("service updated");
        }
        let after = vec![Some((count, spec.clone()))];
        let about = About::Service { name: name.clone(), before, after };
        (about, Request::apply(vec![Apply { name, count: Some(count), spec }]))
    }

    fn intents_of(&self, node: &str) -> Vec<Intent> {
        self.workload.intents.get(node).cloned().unwrap_or_else(|| vec![Intent::Active])
    }

    pub fn enable(&self, node: String) -> (About, Request) {
        let about = About::Node { node: node.clone(), before: self.intents_of(&node), after: Intent::Active };
        (about, Request::SetIntent { node, intent: WantedIntent::Active })
    }

    fn draw_intent(&mut self) -> (About, Request) {
        let at = self.rng.below(self.swarm.workers as u64) as usize;
        let node = self.machines[at].id.to_string();
        let (wanted, after) = match self.rng.chance(400) {
            true => (WantedIntent::Disabled, Intent::Disabled),
            false => (WantedIntent::Active, Intent::Active),
        };
        if wanted == WantedIntent::Disabled {
            self.cover.hit("node disabled");
        }
        let about = About::Node { node: node.clone(), before: self.intents_of(&node), after };
        (about, Request::SetIntent { node, intent: wanted })
    }

    fn draw_attach(&mut self) -> (About, Request) {
        let volumes: Vec<String> = self.mirror.volumes().map(|volume| volume.id.to_string()).collect();
        let at = self.rng.below(self.swarm.workers as u64) as usize;
        let node = self.machines[at].id.to_string();
        match self.rng.pick(&volumes) {
            Some(volume) => {
                self.cover.hit("volume attached");
                (About::Other, Request::AttachVolume { volume: volume.clone(), node })
            }
            None => (About::Other, Request::Barrier),
        }
    }

    /// Operators are honest: they vouch only for machines without power.
    fn draw_confirm_dead(&mut self) -> (About, Request) {
        let dead: Vec<usize> = (0..self.swarm.workers).filter(|at| !self.machines[*at].powered).collect();
        match self.rng.pick(&dead).copied() {
            Some(at) => {
                self.cover.hit("confirmed dead");
                (About::Other, Request::ConfirmDead { node: self.machines[at].id.to_string() })
            }
            None => (About::Other, Request::Barrier),
        }
    }

    fn draw_spec(&mut self, name: &ServiceName) -> ServiceSpec {
        let kind = match name.as_str() {
            "job" => Kind::Batch,
            "log" => Kind::System,
            _ => Kind::Service,
        };
        let stateful = name.as_str() == "db";
        let surge = name.as_str() != "one" && self.rng.chance(700);
        let edge = matches!(name.as_str(), "web" | "api" | "one") && self.rng.chance(900);
        let listen = 8000 + NAMES.iter().position(|known| *known == name.as_str()).unwrap_or(0) as u16;
        let mut env = BTreeMap::from([("MARK".to_owned(), self.rng.below(4).to_string())]);
        if self.rng.chance(self.swarm.process.broken_release) {
            env.insert("BROKEN".to_owned(), self.rng.below(3).to_string());
        }
        let millis = |ms: u64| Millis(ms);
        let check = Check {
            probe: Probe::Tcp { port: "http".to_owned() },
            interval: millis(self.rng.between(200, 500)),
            timeout: millis(200),
        };
        let max_parallel = self.rng.between(1, 3) as u32;
        let healthy_deadline = millis(self.rng.between(3000, 20_000));
        let zone = if self.rng.chance(500) { "a" } else { "b" };
        let mut spec = ServiceSpec {
            kind,
            command: vec!["/bin/true".to_owned()],
            env,
            memory: self.rng.between(20, 150),
            cpu: 100,
            ports: vec!["http".to_owned()],
            check: self.rng.chance(600).then_some(check),
            edge: edge.then(|| EdgeSpec { port: "http".to_owned(), listen }),
            stop: Stop { signal: Signal::Term, grace: millis(self.rng.between(100, 8000)) },
            migrate: Migrate {
                max_parallel,
                min_healthy_time: millis(self.rng.between(0, 1500)),
                healthy_deadline,
                surge,
            },
            update: Update { max_parallel, healthy_deadline, surge },
            volume: stateful.then(|| VolumeSpec { name: "data".to_owned() }),
            disk: Disk::default(),
            rerun: self.rng.chance(700),
            constraints: match self.rng.chance(150) {
                true => BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
                false => BTreeMap::new(),
            },
        };
        // Not drawn, so that seeds without it stay what they were.
        spec.disk.migrate = matches!(name.as_str(), "cache" | "mail") && spec.memory.is_multiple_of(2);
        spec
    }

    /// The last thing operators do: every node may work again.
    pub fn enable_all(&mut self) {
        self.start_those_that_left();
        let in_office: Vec<usize> =
            (0..self.machines.len()).filter(|at| self.tenure(*at).is_some()).collect();
        let Some(target) = in_office.first().copied() else { return };
        if self.workload.pending.is_some() {
            return;
        }
        let unfinished = self.mirror.drains().find(|drain| drain.is_unfinished()).map(|drain| drain.epoch);
        if let Some(epoch) = unfinished {
            return self.ask(target, About::Other, Request::CancelDrain { epoch });
        }
        let disabled = self.mirror.nodes().find(|(_, node)| node.rec.intent != Intent::Active);
        let Some(node) = disabled.map(|(_, node)| node.rec.id.to_string()) else { return };
        let (about, request) = self.enable(node);
        self.ask(target, about, request);
    }
}

fn short(request: &Request) -> String {
    match request {
        Request::Apply { services: applies, .. } if !applies.is_empty() => {
            let one = |apply: &Apply| {
                let spec = &apply.spec;
                format!(
                    "{} {} x{:?} surge={} mem={} check={} edge={} env={:?} min={} dead={} grace={} par={}",
                    spec.kind.as_str(),
                    apply.name,
                    apply.count,
                    spec.migrate.surge,
                    spec.memory,
                    spec.check.is_some(),
                    spec.edge.is_some(),
                    spec.env,
                    spec.migrate.min_healthy_time,
                    spec.update.healthy_deadline,
                    spec.stop.grace,
                    spec.update.max_parallel,
                )
            };
            format!("apply {}", applies.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        other => format!("{other:?}"),
    }
}
