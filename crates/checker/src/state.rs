//! What can be seen in one state: one function per thing that must hold.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Candidate, Cluster, Desired, Health, Here, Instance, InstanceId, Intent, NodeEntry, NodeId, NodeIx,
    Resources, ServiceEntry, ServiceIx, Settled, Time, VolumeId,
};

use crate::{Violation, drains::nodes_are_in_one, feeds::feeds_have_one_maintainer};

/// Everything that is wrong with this state. Capacity that an operator lowered below what runs is not:
/// see [`capacity_below_use`].
pub fn check(cluster: &Cluster) -> Vec<Violation> {
    let mut found = Vec::new();
    memory_is_the_sum(cluster, &mut found);
    slots_hold_one(cluster, &mut found);
    stateful_instances_are_at_home(cluster, &mut found);
    specifications_are_kept(cluster, &mut found);
    replaced_ones_are_older(cluster, &mut found);
    indexes_agree(cluster, &mut found);
    place_index_agrees(cluster, &mut found);
    nodes_are_in_one(cluster, &mut found);
    scratch_data_is_taken_once(cluster, &mut found);
    feeds_have_one_maintainer(cluster, &mut found);
    crate::stores::stores_are_sound(cluster, &mut found);
    found
}

/// Nodes on which more is in use than they have. A note, not a violation: capacity may be lowered; that
/// no placement leads there is for [`crate::Observer`] to see.
pub fn capacity_below_use(cluster: &Cluster) -> Vec<NodeId> {
    let over = cluster.nodes().filter(|(_, node)| node.used.memory > node.rec.capacity.memory);
    over.map(|(_, node)| node.rec.id.clone()).collect()
}

fn memory_is_the_sum(cluster: &Cluster, found: &mut Vec<Violation>) {
    let mut sums: BTreeMap<NodeIx, Resources> = BTreeMap::new();
    for instance in cluster.instances().filter(|instance| !instance.is_over()) {
        let sum = sums.entry(instance.node).or_default();
        sum.memory += instance.memory;
        sum.cpu += u64::from(instance.cpu);
    }
    for (ix, node) in cluster.nodes() {
        let sum = sums.get(&ix).copied().unwrap_or_default();
        if sum != node.used {
            let (node, booked) = (node.rec.id.clone(), node.used.memory);
            found.push(Violation::MemoryMiscounted { node, booked, sum: sum.memory });
        }
    }
}

fn slots_hold_one(cluster: &Cluster, found: &mut Vec<Violation>) {
    for (ix, entry) in cluster.services() {
        let mut holds: BTreeMap<u32, InstanceId> = BTreeMap::new();
        for instance in cluster.instances_of(ix) {
            let Some(slot) = instance.slot else { continue };
            // What was given up is stopped should it return; until then there are two.
            if !instance.is_wanted() {
                continue;
            }
            if let Some(one) = holds.insert(slot, instance.id) {
                let service = entry.rec.name.clone();
                found.push(Violation::SlotTwice { service, slot, one, other: instance.id });
            }
        }
    }
}

fn stateful_instances_are_at_home(cluster: &Cluster, found: &mut Vec<Violation>) {
    for (ix, entry) in cluster.services() {
        for instance in cluster.instances_of(ix).filter(|instance| instance.is_wanted()) {
            let spec = entry.rec.spec_of(instance.release);
            let (Some(volume), Some(slot)) = (&spec.volume, instance.slot) else { continue };
            let id = VolumeId::new(&format!("{}-{}-{slot}", entry.rec.name, volume.name));
            let Some(volume) = cluster.volume(id.as_str()) else { continue };
            let node = &cluster.node(instance.node).rec.id;
            if volume.home != *node {
                found.push(Violation::AwayFromHome {
                    instance: instance.id,
                    node: node.clone(),
                    volume: id,
                    home: volume.home.clone(),
                });
            }
        }
    }
}

fn specifications_are_kept(cluster: &Cluster, found: &mut Vec<Violation>) {
    for instance in cluster.instances().filter(|instance| !instance.is_over()) {
        let Some(entry) = cluster.service(instance.service) else {
            found.push(Violation::IndexDisagrees { what: format!("{} has no service", instance.id) });
            continue;
        };
        // One that is to stop needs none: it may have come back after an operator called it dead.
        let needed = instance.desired == Desired::Running;
        if needed && !entry.rec.releases.contains_key(&instance.release) {
            found.push(Violation::SpecificationGone {
                service: entry.rec.name.clone(),
                instance: instance.id,
                release: instance.release,
            });
        }
    }
}

fn replaced_ones_are_older(cluster: &Cluster, found: &mut Vec<Violation>) {
    for instance in cluster.instances() {
        if let Some(replaces) = instance.replaces.filter(|replaces| *replaces >= instance.id) {
            found.push(Violation::ReplacesLater { instance: instance.id, replaces });
        }
    }
}

/// What an instance left is handed to one successor, or to another after that one ended without it.
fn scratch_data_is_taken_once(cluster: &Cluster, found: &mut Vec<Violation>) {
    let mut takers: BTreeMap<InstanceId, InstanceId> = BTreeMap::new();
    for instance in cluster.instances().filter(|instance| instance.scratch.takes()) {
        let Some(from) = instance.replaces.filter(|_| !instance.never_had_scratch()) else { continue };
        if let Some(one) = takers.insert(from, instance.id) {
            found.push(Violation::ScratchTwice { from, one, other: instance.id });
        }
    }
}

fn indexes_agree(cluster: &Cluster, found: &mut Vec<Violation>) {
    let mut wrong = |what: String| found.push(Violation::IndexDisagrees { what });
    // One pass over all instances, not one per node: a cluster has a million of them.
    let mut here: BTreeMap<NodeIx, BTreeMap<InstanceId, Here>> = BTreeMap::new();
    let mut of: BTreeMap<ServiceIx, BTreeSet<InstanceId>> = BTreeMap::new();
    let mut wanted: BTreeMap<ServiceIx, BTreeMap<NodeIx, u32>> = BTreeMap::new();
    for instance in cluster.instances() {
        let (service, release, over) = (instance.service, instance.release, instance.is_over());
        here.entry(instance.node).or_default().insert(instance.id, Here { service, release, over });
        of.entry(instance.service).or_default().insert(instance.id);
        if instance.is_wanted() {
            *wanted.entry(instance.service).or_default().entry(instance.node).or_default() += 1;
        }
    }
    for (ix, node) in cluster.nodes() {
        if here.remove(&ix).unwrap_or_default() != node.instances {
            wrong(format!("the instances on {}", node.rec.id));
        }
    }
    for (what, kept, belongs) in [
        (
            "nodes in drains",
            cluster.nodes_in_drains().map(|(ix, _)| ix).collect(),
            in_drain as fn(&NodeEntry) -> bool,
        ),
        ("edges", cluster.edges().map(|(ix, _)| ix).collect::<BTreeSet<_>>(), is_edge),
    ] {
        if cluster.nodes().filter(|(_, node)| belongs(node)).map(|(ix, _)| ix).collect::<BTreeSet<_>>()
            != kept
        {
            wrong(format!("the {what}"));
        }
    }
    for (ix, entry) in cluster.services() {
        let ServiceEntry { rec, instances, on, settled, spread, served: _ } = entry;
        if !of.remove(&ix).unwrap_or_default().iter().eq(instances.keys()) {
            wrong(format!("the instances of {}", rec.name));
        }
        if wanted.remove(&ix).unwrap_or_default() != *on {
            wrong(format!("the nodes that {} is on", rec.name));
        }
        let constraints = &rec.spec_of(rec.release_to_place()).constraints;
        let may_take = |node: &NodeEntry| node.may_place() && node.rec.satisfies(constraints);
        let mut counts: Vec<u32> =
            on.iter().filter(|(ix, _)| may_take(cluster.node(**ix))).map(|(_, on)| *on).collect();
        counts.sort_unstable();
        if spread.fewest() != counts.first().copied() || spread.nodes() as usize != counts.len() {
            wrong(format!("how {} is spread", rec.name));
        }
        if let Some(what) = settled_disagrees(cluster, ix, settled) {
            wrong(format!("{what} of {}", rec.name));
        }
    }
}

fn in_drain(node: &NodeEntry) -> bool {
    node.drain.is_some()
}

fn is_edge(node: &NodeEntry) -> bool {
    node.rec.roles.edge
}

/// What is kept of settled instances, beside what a look at every one gives.
fn settled_disagrees(cluster: &Cluster, service: ServiceIx, kept: &Settled) -> Option<&'static str> {
    let release = cluster.service(service)?.rec.release;
    let stands_in = |instance: &Instance| {
        let old = instance.replaces.and_then(|old| cluster.instance(old));
        old.is_some_and(|old| old.service == service && old.is_wanted())
    };
    let may_stay = |node: &NodeEntry| {
        node.rec.intent == Intent::Active && !node.is_draining() && node.rec.health != Health::Offline
    };
    let (mut since, mut others) = (BTreeMap::<Time, u32>::new(), BTreeSet::new());
    let mut replacing: BTreeMap<InstanceId, Vec<InstanceId>> = BTreeMap::new();
    for instance in cluster.instances_of(service) {
        let nothing_to_decide = instance.is_available()
            && instance.release == release
            && may_stay(cluster.node(instance.node))
            && !stands_in(instance);
        match instance.healthy_since.filter(|_| nothing_to_decide) {
            Some(at) => *since.entry(at).or_default() += 1,
            None => {
                others.insert(instance.id);
            }
        }
        if let Some(old) = instance.replaces {
            replacing.entry(old).or_default().push(instance.id);
        }
    }
    if *kept.others() != others {
        return Some("the unsettled instances");
    }
    if *kept.ready_since() != since || kept.count() != since.values().sum::<u32>() {
        return Some("the settled instances");
    }
    let all = cluster.instances_of(service).map(|instance| instance.id).chain(replacing.keys().copied());
    let wrong = |old: InstanceId| !kept.replacing(old).eq(replacing.get(&old).into_iter().flatten().copied());
    all.into_iter().any(wrong).then_some("the replacements")
}

fn place_index_agrees(cluster: &Cluster, found: &mut Vec<Violation>) {
    for (_, entry) in cluster.services() {
        for spec in entry.rec.releases.values() {
            let Some(class) = cluster.place_index().class(&spec.constraints) else {
                let what = format!("no candidates for the constraints of {}", entry.rec.name);
                found.push(Violation::IndexDisagrees { what });
                continue;
            };
            let may =
                cluster.nodes().filter(|(_, node)| node.may_place() && node.rec.satisfies(&spec.constraints));
            let recomputed: BTreeSet<Candidate> = may
                .map(|(ix, node)| Candidate {
                    utilisation: cluster.utilisation(ix),
                    id: node.rec.id.clone(),
                    ix,
                })
                .collect();
            if recomputed != *class {
                let what = format!("the candidates for {}", entry.rec.name);
                found.push(Violation::IndexDisagrees { what });
            }
        }
    }
}
