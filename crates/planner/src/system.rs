//! System services: one instance on every node that satisfies the constraints. Replaced in place, the
//! old one first: a node has room for one.

use std::collections::BTreeMap;

use model::{Code, InstanceId, NodeIx, RolloutState};

use crate::{
    drain::Leave,
    reconcile::{NotPlaced, Plan, is_proven},
    rollout::{self, Progress},
};

pub(crate) fn plan(plan: &mut Plan<'_, '_>) {
    let mut here: BTreeMap<NodeIx, InstanceId> = BTreeMap::new();
    for instance in plan.instances().filter(|instance| !instance.is_over()) {
        here.insert(instance.node, instance.id);
    }
    let nodes: Vec<NodeIx> = eligible(plan);
    let stuck = retire(plan, &nodes, &here);
    let waiting_for = fill(plan, &nodes, &here).or(stuck);
    let rec = plan.service_rec();
    let ready = here.values().filter(|id| {
        plan.cluster().instance(**id).is_some_and(|instance| {
            instance.release == rec.release && is_proven(instance, rec.spec(), plan.now)
        })
    });
    let ready = ready.count() as u32;
    let done = ready as usize >= nodes.len() && !nodes.is_empty();
    plan.wake_when_proven();
    rollout::book(plan, Progress { ready, done, waiting_for });
}

/// The nodes that should have one now.
fn eligible(plan: &Plan<'_, '_>) -> Vec<NodeIx> {
    // While its newest release is halted, a service is what its last healthy one says.
    let rec = plan.service_rec();
    let constraints = &rec.spec_of(rec.release_to_place()).constraints;
    let nodes =
        plan.cluster().nodes().filter(|(_, node)| node.may_place() && node.rec.satisfies(constraints));
    nodes.map(|(ix, _)| ix).collect()
}

fn retire(plan: &mut Plan<'_, '_>, nodes: &[NodeIx], here: &BTreeMap<NodeIx, InstanceId>) -> Option<Code> {
    let rec = plan.service_rec().clone();
    let constraints = &rec.spec_of(rec.release_to_place()).constraints;
    let failed = matches!(rec.rollout.state, RolloutState::Failed { .. });
    // A node whose instance failed and is not placed again yet counts: a rollout does not walk on over
    // broken replacements.
    let (mut old, mut in_flight) = (Vec::new(), nodes.iter().filter(|node| !here.contains_key(node)).count());
    for (node, id) in here {
        let Some(instance) = plan.cluster().instance(*id) else { continue };
        let node = &plan.cluster().node(*node).rec;
        let current = instance.release == rec.release || failed;
        let fallen = failed
            && instance.release == rec.release
            && !instance.is_available()
            && rec.healthy.is_some_and(|healthy| healthy != rec.release);
        if plan.leave(instance) == Leave::Now || !node.satisfies(constraints) || fallen {
            plan.retire(*id, fallen.then_some(Code::Unhealthy));
        } else if node.is_offline() {
            // Left as it is: it may well run on, and nothing takes its place.
        } else if !instance.is_wanted() || (current && !is_proven(instance, rec.spec(), plan.now)) {
            in_flight += 1;
        } else if !current {
            old.push(*id);
        }
    }
    let free = (rec.spec().update.max_parallel as usize).saturating_sub(in_flight);
    plan.make_way(old.into_iter(), free)
}

fn fill(plan: &mut Plan<'_, '_>, nodes: &[NodeIx], here: &BTreeMap<NodeIx, InstanceId>) -> Option<Code> {
    let release = plan.service_rec().release_to_place();
    let mut code = None;
    for node in nodes.iter().filter(|node| !here.contains_key(node)) {
        let placed = plan.backoff(release, None).and_then(|()| plan.place_on(release, *node, None));
        if let Err(why) = placed {
            let limit = matches!(why, NotPlaced::Limit);
            code = plan.explain(why, 1).or(code);
            if limit {
                break;
            }
        }
    }
    code
}
