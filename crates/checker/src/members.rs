//! The instances of one service as far as replacing them is concerned, made from the records alone.

use model::{
    Actual, Cluster, Instance, Intent, Kind, RolloutState, ServiceEntry, ServiceIx, ServiceSpec, Time,
};

/// A difference between two nodes from which on an instance is moved to even it out.
const UNEVEN_FROM: u32 = 2;

/// One service at one moment.
pub(crate) struct Members<'a> {
    pub cluster: &'a Cluster,
    pub service: ServiceIx,
    pub entry: &'a ServiceEntry,
    pub now: Time,
    /// Drains rest: of what is on draining nodes only that leaves whose replacement is on its way.
    pub paused: bool,
}

impl<'a> Members<'a> {
    pub fn of(cluster: &'a Cluster, service: ServiceIx, now: Time, paused: bool) -> Option<Members<'a>> {
        // Who of a store group goes, and where another comes from, is its backend's affair as well: see `stores`.
        let entry = cluster.service(service).filter(|entry| entry.rec.spec().kind != Kind::Store)?;
        Some(Members { cluster, service, entry, now, paused })
    }

    pub fn spec(&self) -> &ServiceSpec {
        self.entry.rec.spec()
    }

    pub fn wanted(&self) -> impl Iterator<Item = &'a Instance> {
        self.cluster.instances_of(self.service).filter(|instance| instance.is_wanted())
    }

    pub fn count_wanted(&self) -> usize {
        self.wanted().count()
    }

    /// A healthy one comes before an old one goes.
    pub fn surges(&self) -> bool {
        let spec = self.spec();
        spec.update.surge && spec.migrate.surge
    }

    pub fn has_failed(&self) -> bool {
        matches!(self.entry.rec.rollout.state, RolloutState::Failed { .. })
    }

    /// It stands in for one that is wanted as well: a move that is under way.
    pub fn replaces_wanted(&self, instance: &Instance) -> Option<&'a Instance> {
        let old = self.cluster.instance(instance.replaces?)?;
        (instance.is_wanted() && old.is_wanted() && old.service == instance.service).then_some(old)
    }

    fn is_being_replaced(&self, old: &Instance) -> bool {
        self.wanted().any(|new| new.replaces == Some(old.id))
    }

    /// It is told to go without being waited for: its time is over, or its node was disabled.
    pub fn is_forced(&self, instance: &Instance) -> bool {
        let node = self.cluster.node(instance.node);
        let spec = self.entry.rec.spec_of(instance.release);
        let drain = node.drain.as_ref().filter(|drain| drain.draining);
        match (spec.kind, spec.is_stateful()) {
            (Kind::Store, _) => false,
            (Kind::Service, true) => drain.is_some_and(|drain| drain.include_stateful),
            (Kind::Service | Kind::Batch | Kind::System, _) => {
                node.rec.intent == Intent::Disabled || drain.is_some_and(|drain| drain.deadline_reached)
            }
        }
    }

    /// It is told to go whatever becomes of the others; not while drains rest, unless its replacement is there.
    pub fn goes_anyway(&self, instance: &Instance) -> bool {
        let node = self.cluster.node(instance.node);
        let rests = self.paused && node.is_draining() && node.rec.intent != Intent::Disabled;
        self.is_forced(instance) && (!rests || self.is_being_replaced(instance))
    }

    /// It is to leave its node; for services without a place of their own.
    pub fn leaves(&self, instance: &Instance) -> bool {
        let node = self.cluster.node(instance.node);
        let draining = node.is_draining();
        if self.paused && draining && node.rec.intent != Intent::Disabled {
            return self.is_being_replaced(instance);
        }
        match node.rec.intent {
            Intent::Active => draining,
            Intent::Drained | Intent::Stopping | Intent::Disabled => true,
        }
    }

    /// Of another release than what is rolling out.
    pub fn is_outdated(&self, instance: &Instance) -> bool {
        instance.release != self.entry.rec.release && !self.has_failed()
    }

    /// Somebody was placed to relieve its node, and still does.
    pub fn is_relieved(&self, old: &Instance) -> bool {
        let on = |node| self.wanted().filter(|other| other.node == node).count() as u32;
        self.entry.rec.rollout.state == RolloutState::Complete
            && self
                .wanted()
                .any(|new| new.replaces == Some(old.id) && on(old.node) + 1 >= on(new.node) + UNEVEN_FROM)
    }

    /// Wanted, and to be replaced.
    pub fn is_old(&self, instance: &Instance) -> bool {
        instance.is_wanted()
            && (self.is_outdated(instance) || self.leaves(instance) || self.is_relieved(instance))
    }

    /// It brings its scratch data along, and so stops before its successor starts.
    pub fn stops_first(&self, instance: &Instance) -> bool {
        let spec = self.entry.rec.spec_of(instance.release);
        let brings = spec.disk.migrate && spec.kind == Kind::Service && !spec.is_stateful();
        brings && self.leaves(instance) && !self.is_forced(instance)
    }

    /// Ready for as long as its specification asks.
    pub fn is_proven(&self, instance: &Instance) -> bool {
        let held = instance.healthy_since.map(|since| self.now.since(since));
        let needed = self.entry.rec.spec_of(instance.release).migrate.min_healthy_time;
        instance.is_available() && held.is_some_and(|held| held >= needed)
    }

    /// What stopped so that its successor takes its scratch data over, and is not gone.
    pub fn still_leaving(&self) -> usize {
        let placed = self.entry.rec.spec_of(self.entry.rec.release_to_place());
        let brings = placed.disk.migrate && placed.kind == Kind::Service && !placed.is_stateful();
        let leaving = |i: &&Instance| i.scratch.is_left() && !i.is_over() && i.actual != Actual::Lost;
        if brings { self.cluster.instances_of(self.service).filter(leaving).count() } else { 0 }
    }

    /// One more would be beyond the count: it comes in the stead of one that is to be replaced.
    pub fn is_full(&self) -> bool {
        self.count_wanted() + self.still_leaving() >= self.entry.rec.count as usize
    }

    /// Those that are replaced once a healthy one is there.
    pub fn replaced_later(&self) -> impl Iterator<Item = &'a Instance> {
        self.wanted().filter(|instance| self.is_old(instance) && !self.stops_first(instance))
    }

    /// How many may be on the move at a time: one budget for rollouts and drains.
    pub fn budget(&self) -> usize {
        let spec = self.spec();
        let moves = self.wanted().any(|instance| self.leaves(instance));
        let updates = self.wanted().any(|instance| self.is_old(instance) && !self.leaves(instance));
        let for_moves = if moves { spec.migrate.max_parallel } else { 0 };
        let for_updates = if updates { spec.update.max_parallel } else { 0 };
        for_moves.max(for_updates).max(1) as usize
    }
}
