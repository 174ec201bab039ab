//! Whether everything comes right: where a state is as asked, and whether such a one can be reached from
//! everywhere.
//!
//! Stateright's own `eventually` does not see cycles, and heartbeats go round in them. Instead the search
//! keeps every step that is neither a fault nor a request. The states are finitely many, so that a run
//! without further faults that gives every step its turn ends up going round in a part of the graph that no
//! step leaves, and goes through all of it. If from *every* state one that is as asked can be reached, each
//! such part contains one: the run comes there. And all that remain in it are states from which it comes
//! there again.

use std::collections::{BTreeSet, HashMap};

use model::{Health, InstanceId, Intent};

use crate::{
    step::{Action, Cause},
    world::{Slot, World},
};

/// What is kept of a state for the end of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Everything is as asked, with all machines.
    pub right: bool,
    /// As far as it can be without those that are gone or cut off.
    pub settled: bool,
}

/// Steps between states, by fingerprint.
#[derive(Debug, Default)]
pub struct Graph {
    pub states: HashMap<u64, Flags>,
    /// From, to, and whether nobody had to repair anything for it.
    pub steps: Vec<(u64, u64, bool)>,
}

/// From where nothing good can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub state: u64,
    pub how_many: usize,
}

/// How far the furthest state is from one that is as asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distances {
    pub to_right: usize,
    pub to_settled: usize,
}

impl Graph {
    /// From every state one that is right can be reached, and, without repairs, one that is settled.
    pub fn converges(&self) -> Result<Distances, Stuck> {
        let to_right = self.reaches(|flags| flags.right, |_| true)?;
        let to_settled = self.reaches(|flags| flags.settled, |unaided| unaided)?;
        Ok(Distances { to_right, to_settled })
    }

    fn reaches(&self, good: impl Fn(&Flags) -> bool, takes: impl Fn(bool) -> bool) -> Result<usize, Stuck> {
        let mut before: HashMap<u64, Vec<u64>> = HashMap::new();
        for (from, to, unaided) in &self.steps {
            if takes(*unaided) {
                before.entry(*to).or_default().push(*from);
            }
        }
        let mut reached: BTreeSet<u64> =
            self.states.iter().filter(|(_, flags)| good(flags)).map(|(state, _)| *state).collect();
        let mut edge: Vec<u64> = reached.iter().copied().collect();
        let mut furthest = 0;
        while !edge.is_empty() {
            let next = edge.iter().flat_map(|state| before.get(state).into_iter().flatten().copied());
            let next: Vec<u64> = next.filter(|state| reached.insert(*state)).collect();
            furthest += usize::from(!next.is_empty());
            edge = next;
        }
        let mut stuck = self.states.keys().copied().filter(|state| !reached.contains(state));
        match stuck.next() {
            Some(state) => Err(Stuck { state, how_many: 1 + stuck.count() }),
            None => Ok(furthest),
        }
    }
}

impl Action {
    /// It may be counted on: not a fault, not a request.
    pub fn is_fair(self) -> bool {
        match self.cause() {
            Cause::Soon | Cause::Sometime | Cause::Repair => true,
            Cause::Request | Cause::Fault => false,
        }
    }
}

impl World {
    pub fn flags(&self) -> Flags {
        let settled = self.what_is_wrong().is_none();
        let all = self.machines.iter().all(|machine| machine.daemon.is_some() && !machine.cut);
        Flags { right: settled && all, settled }
    }

    fn is_away(&self, machine: usize) -> bool {
        let here = &self.machines[machine];
        here.daemon.is_none() || here.cut
    }

    /// What is not as it should be, beside machines that are gone or cut off.
    pub fn what_is_wrong(&self) -> Option<String> {
        let mut soon = Vec::new();
        self.soon(&mut soon);
        if let Some(action) = soon.first() {
            return Some(format!("{action:?} is on its way"));
        }
        let (_, office) = match self.in_office() {
            Some(office) if self.offices.len() == 1 => office,
            Some(_) | None => return Some(format!("{} are in office", self.offices.len())),
        };
        if office.coordinator.unwritten().next().is_some() {
            return Some("something is not written".to_owned());
        }
        if self.machines.iter().any(|m| m.daemon.as_ref().is_some_and(|daemon| !daemon.late.is_empty())) {
            return Some("sets are not in force".to_owned());
        }
        self.nodes_are_wrong()
            .or_else(|| self.instances_are_wrong())
            .or_else(|| (0..self.machines.len()).find_map(|machine| self.edge_is_wrong(machine)))
    }

    fn nodes_are_wrong(&self) -> Option<String> {
        let mirror = &self.store.mirror;
        if let Some(drain) = mirror.drains().find(|drain| drain.is_unfinished()) {
            return Some(format!("drain {} is unfinished", drain.epoch));
        }
        (0..self.machines.len()).find_map(|at| {
            let node = &mirror.node_by_id(&World::name(at))?.rec;
            let is = match self.is_away(at) {
                true => node.health == Health::Offline,
                false => node.health == Health::Up && self.daemon(at).is_some_and(|d| d.conn.is_some()),
            };
            (!is).then(|| format!("{} is {:?}", node.id, node.health))
        })
    }

    fn instances_are_wrong(&self) -> Option<String> {
        let mirror = &self.store.mirror;
        let here = |at: &usize| !self.is_away(*at);
        let live = (0..self.machines.len()).filter(here).flat_map(|at| &self.machines[at].slots);
        let live: BTreeSet<InstanceId> = live.filter(|(_, slot)| slot.is_live()).map(|(id, _)| *id).collect();
        let recorded = mirror.instances().filter(|instance| {
            let away = mirror.node(instance.node).rec.is_offline();
            !instance.is_over() && !away
        });
        let recorded: BTreeSet<InstanceId> = recorded.map(|instance| instance.id).collect();
        if live != recorded {
            return Some(format!("{live:?} run, {recorded:?} are recorded"));
        }
        let unwanted = mirror.instances().find(|instance| {
            let node = &mirror.node(instance.node).rec;
            let may_stay = node.intent == Intent::Active && !node.is_offline();
            instance.is_wanted() && !(may_stay && instance.is_available())
        });
        if let Some(instance) = unwanted {
            let (id, actual) = (instance.id, instance.actual);
            return Some(format!("{id} is {actual:?} on {}", mirror.node(instance.node).rec.id));
        }
        let available = mirror.instances().filter(|instance| instance.is_available()).count();
        let lives = (0..self.machines.len()).any(|at| !self.is_away(at));
        (lives && available != self.config.count as usize).then(|| format!("{available} are available"))
    }

    fn edge_is_wrong(&self, machine: usize) -> Option<String> {
        let (_, office) = self.in_office()?;
        let edge = self.daemon(machine).filter(|_| !self.is_away(machine))?.edge.as_ref()?;
        let node = self.store.mirror.node_by_id(&World::name(machine))?;
        let out = node.rec.intent == Intent::Drained;
        let away = edge.withdrawal().is_some_and(|said| said.done);
        if away != out || edge.withdrawal().is_some() != out {
            return Some(format!("the edge on n{machine}: {:?}", edge.withdrawal()));
        }
        if edge.serves() != Some(office.coordinator.sets_revision()) {
            return Some(format!("the edge on n{machine} serves {:?}", edge.serves()));
        }
        let cluster = office.coordinator.cluster();
        let wanted = cluster.services().filter_map(|(ix, _)| office.coordinator.backends(ix));
        let wanted: Vec<_> = wanted.map(|set| &set.backends).collect();
        let sets = edge.sets();
        let has: Vec<_> = sets.iter().flat_map(|sets| &sets.sets).map(|set| &set.backends).collect();
        (has != wanted).then(|| format!("the edge on n{machine} has {has:?}, not {wanted:?}"))
    }

    /// Everything that runs, for people.
    pub fn running(&self) -> Vec<(usize, InstanceId)> {
        let all = self.machines.iter().enumerate().flat_map(|(at, machine)| {
            let live = |(_, slot): &(&InstanceId, &Slot)| slot.is_live();
            machine.slots.iter().filter(live).map(move |(id, _)| (at, *id))
        });
        all.collect()
    }
}
