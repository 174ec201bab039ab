//! The same planner without the executor: what a drain would do, with budgets played through.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::{
    Actual, Change, Cluster, Code, Desired, Drain, DrainNode, DrainOptions, DrainState, Ending, Exit,
    Instance, InstanceId, Millis, NodeIx, Reason, ServiceIx, Time, Txn,
};

use super::{
    leave::{Class, class_of},
    queue::{Limits, advance, busy, is_only_edge, remaining},
    status::{START_GUESS, only_edge},
};
use crate::{Ids, reconcile};

/// More waves than this are not played through; the preview says so by its number.
const WAVES_MAX: u32 = 10_000;
/// A wave in which instances only stop: most do so well within their grace.
const STOP_GUESS: Millis = Millis::secs(1);
/// Before every real drain, so that it is the first in the queue.
const EPOCH: u64 = 0;

#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    pub unit: String,
    /// `None`: it stops, and nothing takes its place elsewhere.
    pub to: Option<String>,
    pub wave: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preview {
    pub moves: Vec<Move>,
    pub blockers: Vec<Reason>,
    pub waits: Vec<Reason>,
    /// Counted from the node's own turn on, as is the time.
    pub waves: u32,
    pub eta: Millis,
}

/// Plays one drain of these nodes through on a copy: all are closed first and take their turns, every
/// replacement becomes healthy, every stop ends. One preview per node. Changes nothing.
pub fn preview(
    cluster: &Cluster,
    nodes: &[&str],
    options: &DrainOptions,
    limits: Limits,
    now: Time,
) -> Vec<Preview> {
    let mut stage = Stage::new(cluster.clone(), nodes, options, limits, now);
    stage.play();
    let shown: Vec<Preview> = stage.named.iter().map(|named| stage.shown(named, now)).collect();
    let of = |node: &&str| {
        let ix = cluster.node_ix(node);
        stage.named.iter().position(|named| Some(named.ix) == ix).map(|at| shown[at].clone())
    };
    nodes.iter().map(|node| of(node).unwrap_or_default()).collect()
}

/// One of the nodes, with what is known of its way so far.
struct Named {
    ix: NodeIx,
    moves: Vec<Move>,
    waves: u32,
    eta: Millis,
    /// Since its turn came, whether something left it or not.
    waves_passed: u32,
    time_passed: Millis,
}

impl Named {
    fn new(ix: NodeIx) -> Named {
        let (eta, time_passed) = (Millis::ZERO, Millis::ZERO);
        Named { ix, moves: Vec::new(), waves: 0, eta, waves_passed: 0, time_passed }
    }
}

struct Stage {
    world: Cluster,
    ids: Ids,
    limits: Limits,
    now: Time,
    named: Vec<Named>,
    /// Services with something on one of the nodes. Nothing else takes part.
    services: BTreeSet<ServiceIx>,
    reasons: BTreeMap<ServiceIx, Vec<Reason>>,
    /// Units whose move is told.
    told: BTreeSet<InstanceId>,
    /// Stops that nothing was placed to replace, and what was placed to replace nothing in particular:
    /// without surge, and at the deadline, one takes the place of the other.
    gaps: BTreeMap<ServiceIx, VecDeque<(usize, usize)>>,
    stand_ins: BTreeMap<ServiceIx, VecDeque<String>>,
    /// The first id that is placed here only.
    first_id: u64,
    /// Turns that were given out because a node that has its turn is stuck.
    passed: u32,
}

/// What one wave did: which of the nodes something left, and how long the slowest replacement takes to
/// count.
struct Wave {
    left: Vec<bool>,
    hold: Millis,
}

impl Stage {
    fn new(mut world: Cluster, nodes: &[&str], options: &DrainOptions, limits: Limits, now: Time) -> Stage {
        let mut named: Vec<Named> = Vec::new();
        for ix in nodes.iter().filter_map(|node| world.node_ix(node)) {
            if named.iter().all(|other| other.ix != ix) {
                named.push(Named::new(ix));
            }
        }
        for named in &named {
            take_out(&mut world, named.ix, now);
        }
        let part = |named: &Named| DrainNode::queued(world.node(named.ix).rec.id.clone(), options.clone());
        let drain = Drain {
            epoch: EPOCH,
            by: String::new(),
            from: String::new(),
            message: String::new(),
            meta: BTreeMap::new(),
            created_at: now,
            nodes: named.iter().map(part).collect(),
        };
        world.apply(&Change::Drain(drain));
        let here = named.iter().flat_map(|named| world.node(named.ix).instances.values());
        let services = here.map(|here| here.service).collect();
        let ids = Ids::new(world.meta());
        let first_id = world.meta().instance_ids_reserved;
        Stage {
            world,
            ids,
            limits,
            now,
            named,
            services,
            reasons: BTreeMap::new(),
            told: BTreeSet::new(),
            gaps: BTreeMap::new(),
            stand_ins: BTreeMap::new(),
            first_id,
            passed: 0,
        }
    }

    fn play(&mut self) {
        for _ in 0..WAVES_MAX {
            let begun = self.now;
            let wave = self.wave();
            if wave.left.contains(&true) {
                self.now = self.now.max(begun + wave.hold.max(STOP_GUESS));
                self.book(&wave.left, self.now.since(begun));
            } else if self.waits_for_its_turn() {
                // What holds up the one before is among its waits; the next is looked at all the same.
                self.passed += 1;
            } else {
                break;
            }
        }
    }

    fn book(&mut self, left: &[bool], pause: Millis) {
        for (named, left) in self.named.iter_mut().zip(left) {
            if self.world.node(named.ix).is_draining() {
                named.waves_passed += 1;
                named.time_passed = Millis(named.time_passed.0 + pause.0);
            }
            if *left {
                (named.waves, named.eta) = (named.waves_passed.max(1), named.time_passed);
            }
        }
    }

    /// Plan, let what was placed become healthy, let what was told to go be gone.
    fn wave(&mut self) -> Wave {
        let mut here: BTreeMap<InstanceId, usize> = BTreeMap::new();
        for (at, named) in self.named.iter().enumerate() {
            here.extend(remaining(&self.world, named.ix).map(|(id, _)| (id, at)));
        }
        self.plan();
        let hold = self.let_start(&here);
        self.plan();
        if let Some(at) = self.all_proven_at().filter(|_| self.taking_part(is_leaving).is_empty()) {
            self.now = at;
            self.plan();
        }
        self.let_stop(&here);
        self.fill_gaps();
        let mut left = vec![false; self.named.len()];
        for (id, at) in here {
            left[at] |= self.world.instance(id).is_none_or(Instance::is_over);
        }
        Wave { left, hold }
    }

    fn taking_part(&self, which: impl Fn(&Instance) -> bool) -> Vec<Instance> {
        let unsettled = self.services.iter().flat_map(|service| self.world.unsettled_of(*service));
        unsettled.filter(|instance| which(instance)).cloned().collect()
    }

    /// Everything that starts becomes healthy. Returns how long a replacement takes to count.
    fn let_start(&mut self, here: &BTreeMap<InstanceId, usize>) -> Millis {
        let starts = |instance: &Instance| {
            instance.is_wanted() && matches!(instance.actual, Actual::Pending | Actual::Starting)
        };
        let mut hold = Millis::ZERO;
        for mut instance in self.taking_part(starts) {
            let entry = self.world.service(instance.service);
            let spec = entry.map(|entry| entry.rec.spec_of(instance.release));
            let held = spec.map_or(Millis::ZERO, |spec| spec.migrate.min_healthy_time);
            (instance.actual, instance.healthy_since) = (Actual::Ready, Some(self.now - held));
            let old = instance.replaces.and_then(|old| Some((old, *here.get(&old)?)));
            if let Some((old, at)) = old {
                hold = hold.max(Millis(held.0 + START_GUESS.0));
                let to = self.world.node(instance.node).rec.id.to_string();
                self.tell(old, at, Some(to));
            } else if let Some(old) = instance.replaces {
                // It stopped in an earlier wave, and what it left is taken from there.
                let to = self.world.node(instance.node).rec.id.to_string();
                self.fill_gap_of(old, to);
            } else if instance.id.0 >= self.first_id {
                let to = self.world.node(instance.node).rec.id.to_string();
                self.stand_ins.entry(instance.service).or_default().push_back(to);
            }
            self.world.apply(&Change::Instance(instance));
        }
        hold
    }

    fn let_stop(&mut self, here: &BTreeMap<InstanceId, usize>) {
        for mut instance in self.taking_part(is_leaving) {
            if let Some(at) = here.get(&instance.id) {
                self.tell(instance.id, *at, None);
            }
            (instance.desired, instance.actual) = (Desired::Stopped, Actual::Stopped);
            (instance.exit, instance.ended_at) = (Some(Exit::Code(0)), Some(self.now));
            self.world.apply(&Change::Instance(instance));
        }
    }

    /// Where a unit goes is told once: by its replacement, or else when it stops.
    fn tell(&mut self, id: InstanceId, at: usize, to: Option<String>) {
        let Some(instance) = self.world.instance(id) else { return };
        let (unit, service) = (unit_of(&self.world, instance), instance.service);
        if self.told.insert(id) {
            let named = &mut self.named[at];
            if to.is_none() {
                self.gaps.entry(service).or_default().push_back((at, named.moves.len()));
            }
            named.moves.push(Move { unit, to, wave: named.waves_passed + 1 });
        }
    }

    fn fill_gap_of(&mut self, old: InstanceId, to: String) {
        let Some(instance) = self.world.instance(old) else { return };
        let (unit, service) = (unit_of(&self.world, instance), instance.service);
        let Some(gaps) = self.gaps.get_mut(&service) else { return };
        let gap = gaps.iter().position(|(at, step)| self.named[*at].moves[*step].unit == unit);
        if let Some((at, step)) = gap.and_then(|gap| gaps.remove(gap)) {
            self.named[at].moves[step].to = Some(to);
        }
    }

    fn fill_gaps(&mut self) {
        for (service, gaps) in &mut self.gaps {
            let Some(stand_ins) = self.stand_ins.get_mut(service) else { continue };
            while !gaps.is_empty() && !stand_ins.is_empty() {
                let (gap, to) = (gaps.pop_front(), stand_ins.pop_front());
                if let Some((at, step)) = gap {
                    self.named[at].moves[step].to = to;
                }
            }
        }
    }

    fn plan(&mut self) {
        let named: BTreeSet<NodeIx> = self.named.iter().map(|named| named.ix).collect();
        // What else drains is another matter: it takes none of these nodes' turns.
        let beside = busy(&self.world, |ix| !named.contains(&ix));
        let nodes_at_once = self.limits.nodes_at_once.saturating_add(beside).saturating_add(self.passed);
        let limits = Limits { nodes_at_once, ..self.limits };
        let mut txn = Txn::new(&mut self.world, self.now);
        let _wake = advance(&mut txn, limits);
        drop(txn);
        for service in &self.services {
            loop {
                let mut txn = Txn::new(&mut self.world, self.now);
                let planned = reconcile(&mut txn, &mut self.ids, *service);
                if txn.is_empty() {
                    self.reasons.insert(*service, planned.reasons);
                    break;
                }
            }
        }
    }

    /// What is ready and has not been for long enough holds everything up right after a start.
    fn all_proven_at(&self) -> Option<Time> {
        let entries = self.services.iter().filter_map(|service| self.world.service(*service));
        let ready = entries.flat_map(|entry| {
            let held = move |release: u32| entry.rec.spec_of(release).migrate.min_healthy_time;
            let others = entry.unsettled().filter(|instance| instance.is_available());
            let others = others.filter_map(move |i| Some(i.healthy_since? + held(i.release)));
            let settled = entry.settled.ready_since().keys().next_back();
            others.chain(settled.map(|since| *since + held(entry.rec.release)))
        });
        ready.max().filter(|at| *at > self.now)
    }

    fn waits_for_its_turn(&self) -> bool {
        let parts = self.world.drain(EPOCH).into_iter().flat_map(|drain| &drain.nodes);
        parts.into_iter().any(|part| part.state == DrainState::Queued)
    }

    fn shown(&self, named: &Named, now: Time) -> Preview {
        let mut out =
            Preview { moves: named.moves.clone(), waves: named.waves, eta: named.eta, ..Preview::default() };
        let node = self.world.node(named.ix);
        if node.drain.is_some() {
            let services: BTreeSet<ServiceIx> = node.instances.values().map(|here| here.service).collect();
            let reasons = services.iter().filter_map(|service| self.reasons.get(service));
            out.waits.extend(reasons.flatten().cloned());
        }
        for (id, _) in remaining(&self.world, named.ix) {
            if let Some(instance) = self.world.instance(id) {
                leftover(&self.world, instance, &mut out, now);
            }
        }
        if is_only_edge(&self.world, named.ix) {
            out.waits.push(only_edge(node.rec.id.as_str(), now));
        }
        out
    }
}

/// A node that drains already would go on with these options instead.
fn take_out(world: &mut Cluster, ix: NodeIx, now: Time) {
    let node = world.node(ix).rec.id.clone();
    let Some(mut drain) = world.last_drain_of(node.as_str()).cloned() else { return };
    for part in &mut drain.nodes {
        if part.node == node && part.ending().is_none() {
            (part.state, part.ended_at) = (DrainState::Ended(Ending::Cancelled), Some(now));
        }
    }
    world.apply(&Change::Drain(drain));
}

fn is_leaving(instance: &Instance) -> bool {
    instance.desired != Desired::Running && !instance.is_over()
}

fn unit_of(world: &Cluster, instance: &Instance) -> String {
    format!("instance/{}", world.instance_name(instance))
}

fn leftover(world: &Cluster, instance: &Instance, out: &mut Preview, now: Time) {
    let reason = |code: Code, message: &str| Reason {
        code,
        unit: unit_of(world, instance),
        since: Some(now),
        message: message.to_owned(),
    };
    match class_of(world, instance) {
        Class::Stateful => {
            out.blockers.push(reason(Code::VolumeLocal, "its data is on a volume of this node"));
        }
        Class::Batch => out.waits.push(reason(Code::BatchRunning, "runs to its end, or to the deadline")),
        Class::System => out.waits.push(reason(Code::SystemLast, "leaves when nothing else is left")),
        // Told by `preview_stores`.
        Class::Store => {}
        Class::Stateless => {}
    }
}
