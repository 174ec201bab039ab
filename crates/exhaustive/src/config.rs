//! What a search covers: how large the cluster is, what is asked of it, and what goes wrong how often.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Millis, ServiceSpec,
    spec::{EdgeSpec, Kind, Migrate, Signal, Stop, Update},
};
use protocol::{
    Timing,
    coordinator::{DrainLimits, FeedLimits},
};

/// Few heartbeats lie between all that the protocol waits for, so that few moments are to be told apart.
pub const TIMING: Timing = Timing {
    heartbeat: Millis::secs(30),
    lease: Millis::secs(30),
    degraded_after: Millis::secs(60),
    fence_after: Millis::secs(75),
    offline_after: Millis::secs(90),
    last_node_after: Millis::secs(90),
};
/// Longer than anything here takes: processes of the model start, or their node is lost.
const HEALTHY_DEADLINE: Millis = Millis::secs(600);
const STALL_AFTER: Millis = Millis::secs(60);
const _: () = assert!(STALL_AFTER.0 <= crate::canon::OLD && TIMING.offline_after.0 <= crate::canon::OLD);

#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    pub nodes: usize,
    /// The first so many nodes have an edge.
    pub edges: usize,
    pub count: u32,
    /// A replacement comes before what it replaces goes.
    pub surge: bool,
    /// The drain's deadline.
    pub deadline: Option<Millis>,
    /// A machine that is gone starts again only when nothing is on its way: starting takes longer than
    /// messages do. Otherwise at any moment.
    pub slow_starts: bool,
    /// For how long nobody is in office, at most.
    pub vacancy: Millis,
    pub budget: Budget,
    pub broken: Option<Broken>,
}

/// How often each thing may still happen, at whatever moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// The first node is drained.
    pub drains: u8,
    pub cancels: u8,
    /// The first node is opened again after its drain.
    pub enables: u8,
    /// The coordinator dies; another takes office.
    pub office_crashes: u8,
    /// Another takes office while the one before does not know yet.
    pub depositions: u8,
    /// A daemon dies and is started again; what it runs goes on.
    pub daemon_crashes: u8,
    /// A machine loses its power and is started again.
    pub machine_crashes: u8,
    /// A stream breaks with everything that is on its way.
    pub breaks: u8,
    /// A machine is cut off from the coordinator, and reached again.
    pub cuts: u8,
    /// The store does not say what became of a transaction.
    pub lost_answers: u8,
}

/// A rule that is broken on purpose: the search must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Edges confirm sets before they have them in force.
    EdgeConfirmsEarly,
    /// The store takes what anybody writes, whatever it was written upon.
    StoreDoesNotFence,
    /// A machine that lost its stream does not dial again.
    NobodyDialsAgain,
    /// Processes that were told to stop never end, and the node is not told.
    StopsAreLost,
}

impl Config {
    /// Two nodes with an edge each, and two instances with surge.
    pub fn small(name: &'static str, budget: Budget) -> Config {
        Config {
            name,
            nodes: 2,
            edges: 2,
            count: 2,
            surge: true,
            deadline: None,
            slow_starts: true,
            vacancy: Millis::ZERO,
            budget,
            broken: None,
        }
    }

    pub fn limits(&self) -> DrainLimits {
        DrainLimits { stall_after: STALL_AFTER, default_deadline: self.deadline, ..DrainLimits::default() }
    }

    /// The same, for the checker.
    pub fn limits_of_checker(&self) -> checker::Limits {
        let drains = self.limits();
        checker::Limits {
            nodes_at_once: drains.nodes_at_once as usize,
            balance_moves: drains.balance_moves as usize,
            maintainer_batch: FeedLimits::default().maintainer_batch as usize,
        }
    }

    pub fn spec(&self) -> Arc<ServiceSpec> {
        let edge = EdgeSpec { port: "http".to_owned(), listen: 80 };
        Arc::new(ServiceSpec {
            kind: Kind::Service,
            command: vec!["web".to_owned()],
            env: BTreeMap::new(),
            memory: 100,
            cpu: 100,
            ports: vec!["http".to_owned()],
            check: None,
            edge: (self.edges > 0).then_some(edge),
            stop: Stop { signal: Signal::Term, grace: Millis::secs(30) },
            migrate: Migrate {
                max_parallel: 1,
                min_healthy_time: Millis::ZERO,
                healthy_deadline: HEALTHY_DEADLINE,
                surge: self.surge,
            },
            update: Update { max_parallel: 1, healthy_deadline: HEALTHY_DEADLINE, surge: self.surge },
            volume: None,
            disk: Default::default(),
            rerun: true,
            constraints: BTreeMap::new(),
        })
    }
}
