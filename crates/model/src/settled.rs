//! Which instances of a service need a look, and how many need none: what makes planning follow what
//! changed instead of how large a service is.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Actual, Desired, Instance, InstanceId, Intent, Millis, NodeEntry, ServiceEntry, Time};

/// The instances of one service in two parts.
///
/// *Settled* are those about which there is nothing to decide but their number: wanted, ready, of the
/// service's release, on a node that is open and not lost, and in nobody's stead who is still wanted.
/// Whether a settled one has been ready for long enough is a matter of the time of asking, so that
/// they are counted by when they became ready. All others are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    count: u32,
    ready_since: BTreeMap<Time, u32>,
    others: BTreeSet<InstanceId>,
    /// Who was replaced, by whom. Kept for replaced ones that are gone too: records are loaded in any
    /// order, and the replaced one may come last.
    replacing: BTreeSet<(InstanceId, InstanceId)>,
}

impl Settled {
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Those that are not settled.
    pub fn others(&self) -> &BTreeSet<InstanceId> {
        &self.others
    }

    /// How many settled ones became ready when.
    pub fn ready_since(&self) -> &BTreeMap<Time, u32> {
        &self.ready_since
    }

    /// How many settled ones have been ready for as long as `held`.
    pub fn proven(&self, now: Time, held: Millis) -> u32 {
        let late = self.ready_since.iter().rev().take_while(|(since, _)| now.since(**since) < held);
        self.count - late.map(|(_, how_many)| how_many).sum::<u32>()
    }

    /// When the next settled one will have been ready for as long as `held`.
    pub fn next_proven(&self, now: Time, held: Millis) -> Option<Time> {
        let due = self.ready_since.keys().rev().map(|since| *since + held);
        due.take_while(|at| *at > now).last()
    }

    /// Who was placed to replace this one, oldest first.
    pub fn replacing(&self, old: InstanceId) -> impl Iterator<Item = InstanceId> {
        self.replacing.range((old, InstanceId(0))..=(old, InstanceId(u64::MAX))).map(|(_, new)| *new)
    }

    fn count_in(&mut self, since: Time) {
        self.count += 1;
        *self.ready_since.entry(since).or_default() += 1;
    }

    fn count_out(&mut self, since: Time) {
        self.count -= 1;
        if let Some(how_many) = self.ready_since.get_mut(&since) {
            *how_many -= 1;
            if *how_many == 0 {
                self.ready_since.remove(&since);
            }
        }
    }

    fn take_out(&mut self, old: &Instance) {
        if !self.others.remove(&old.id) {
            self.count_out(old.healthy_since.unwrap_or_default());
        }
        if let Some(replaced) = old.replaces {
            self.replacing.remove(&(replaced, old.id));
        }
    }
}

/// Whether what is on a node may stay there and is known to be there.
pub(crate) fn is_quiet(node: &NodeEntry) -> bool {
    node.rec.intent == Intent::Active && !node.is_draining() && !node.rec.is_offline()
}

/// The time since when it is ready, if there is nothing to decide about it.
fn settled_since(entry: &ServiceEntry, nodes: &[NodeEntry], instance: &Instance) -> Option<Time> {
    let in_stead = |old: InstanceId| entry.instances.get(&old).is_some_and(Instance::is_wanted);
    let settled = instance.desired == Desired::Running
        && instance.actual == Actual::Ready
        && instance.release == entry.rec.release
        && !instance.replaces.is_some_and(in_stead)
        && is_quiet(&nodes[instance.node.0 as usize]);
    instance.healthy_since.filter(|_| settled)
}

/// Books what became of one instance: `before` is its record before the change, `None` where there was
/// none; after it, the service's entry holds the record that counts, or none.
pub(crate) fn rebook(
    entry: &mut ServiceEntry,
    nodes: &[NodeEntry],
    id: InstanceId,
    before: Option<&Instance>,
) {
    if let Some(old) = before {
        entry.settled.take_out(old);
    }
    let mut wanted = false;
    if let Some(instance) = entry.instances.get(&id) {
        wanted = instance.is_wanted();
        match settled_since(entry, nodes, instance) {
            Some(since) => entry.settled.count_in(since),
            None => {
                entry.settled.others.insert(id);
            }
        }
        if let Some(replaced) = entry.instances.get(&id).and_then(|instance| instance.replaces) {
            entry.settled.replacing.insert((replaced, id));
        }
    }
    if before.is_some_and(Instance::is_wanted) != wanted {
        let stand_ins: Vec<InstanceId> = entry.settled.replacing(id).collect();
        for new in stand_ins {
            look_again(entry, nodes, new);
        }
    }
}

/// Something beside its own record changed that may settle or unsettle an instance.
pub(crate) fn look_again(entry: &mut ServiceEntry, nodes: &[NodeEntry], id: InstanceId) {
    let Some(instance) = entry.instances.get(&id) else { return };
    let was = instance.healthy_since.unwrap_or_default();
    match (settled_since(entry, nodes, instance), entry.settled.others.contains(&id)) {
        (Some(since), true) => {
            entry.settled.others.remove(&id);
            entry.settled.count_in(since);
        }
        (None, false) => {
            entry.settled.count_out(was);
            entry.settled.others.insert(id);
        }
        (Some(_), false) | (None, true) => {}
    }
}
