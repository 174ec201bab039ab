//! The drain tests of HashiCorp Nomad, in our terms, and what those leave untested.
//!
//! The behaviour is ours: with surge a replacement is healthy before the old one is told to go, so that
//! a threshold says how many replacements are under way where Nomad says how many are stopped.
//! Numbers in comments are those of the list of its tests that these were taken from.
//!
//! What makes no sense here:
//!
//! - interfaces that are implemented (1, 18): there are none to implement;
//! - requests split by size (7, 8): changes are split by the commit log, which has tests of its own;
//! - "migrated" counted once by an index (39): nothing is counted, the state is looked at;
//! - a node that is deleted (43): node records are not deleted; one that is gone is offline;
//! - the same job in two namespaces (54): there are no namespaces; two services are (19);
//! - data of an old instance found by the new one (58): scratch data is not copied yet;
//! - ineligible kept after a cancel (59): a cancelled drain leaves a node active, disabling it is apart;
//! - kill timeouts (60): a worker's matter; here, what its node has not reported stopped remains;
//! - writes that fail and leaders that change in mid-drain: no planner sees them; the simulator has both;
//! - `sysbatch`, CSI plugins: there is no such kind, there are no plugins;
//! - `drain_on_shutdown`: a daemon that stops drains nothing; its instances run on.

#![allow(clippy::unwrap_used)]

mod world;

#[path = "nomad_scenarios/deadlines.rs"]
mod deadlines;
#[path = "nomad_scenarios/endings.rs"]
mod endings;
#[path = "nomad_scenarios/gaps.rs"]
mod gaps;
#[path = "nomad_scenarios/thresholds.rs"]
mod thresholds;

use model::{DrainOptions, Millis, spec::ServiceFile};
use world::{World, file};

fn no_deadline() -> DrainOptions {
    DrainOptions { deadline: None, ..DrainOptions::default() }
}

fn within(deadline: Millis) -> DrainOptions {
    DrainOptions { deadline: Some(deadline), ..DrainOptions::default() }
}

fn forced() -> DrainOptions {
    within(Millis::ZERO)
}

fn kind(name: &str, kind: &str) -> ServiceFile {
    let mut file = file(name);
    file.kind = kind.into();
    file
}

/// What its node has not reported stopped.
fn left_on(world: &World, node: &str) -> usize {
    let ix = world.cluster.node_ix(node).unwrap();
    world.cluster.instances_on(ix).filter(|instance| !instance.is_over()).count()
}

fn available(world: &World, service: &str) -> usize {
    world.instances(service).iter().filter(|instance| instance.is_available()).count()
}
