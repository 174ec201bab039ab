//! What Prometheus is told. The registry is a value of the candidate, not a global.

use std::sync::{Mutex, PoisonError, atomic::AtomicU64};

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use prometheus_client::registry::Registry;

/// From a hundredth of a millisecond to ten seconds.
const SECONDS: [f64; 13] = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabel {
    node: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HealthLabel {
    health: String,
}

type Seconds = Gauge<f64, AtomicU64>;

/// What is counted when it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub node_states: Vec<(String, i64)>,
    pub node_healths: Vec<(String, i64)>,
    pub instances: Vec<(String, i64)>,
    pub services: Vec<(String, i64)>,
    pub heartbeat_ages: Vec<(String, f64)>,
    pub edges: i64,
    pub edges_behind: i64,
    pub unclaimed: i64,
    pub acting: bool,
}

pub(crate) struct Metrics {
    registry: Registry,
    /// Two scrapes at once must not mix what they counted.
    scrape: Mutex<()>,
    pub plan: Histogram,
    pub commit: Histogram,
    pub placements: Counter,
    pub streams: Gauge,
    reschedules: Family<NodeLabel, Counter>,
    nodes: Family<StateLabel, Gauge>,
    nodes_health: Family<HealthLabel, Gauge>,
    instances: Family<StateLabel, Gauge>,
    services: Family<StateLabel, Gauge>,
    heartbeat_age: Family<NodeLabel, Seconds>,
    edges: Gauge,
    edges_behind: Gauge,
    unclaimed: Gauge,
    coordinator: Gauge,
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("tidegate"),
            scrape: Mutex::default(),
            plan: Histogram::new(SECONDS),
            commit: Histogram::new(SECONDS),
            placements: Counter::default(),
            streams: Gauge::default(),
            reschedules: Family::default(),
            nodes: Family::default(),
            nodes_health: Family::default(),
            instances: Family::default(),
            services: Family::default(),
            heartbeat_age: Family::default(),
            edges: Gauge::default(),
            edges_behind: Gauge::default(),
            unclaimed: Gauge::default(),
            coordinator: Gauge::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("coordinator", "1 if this daemon is the coordinator", self.coordinator.clone());
        registry.register("nodes", "Nodes by state", self.nodes.clone());
        registry.register("nodes_health", "Nodes by health", self.nodes_health.clone());
        registry.register("services", "Services by state", self.services.clone());
        registry.register("instances", "Instances by actual state", self.instances.clone());
        registry.register("unclaimed", "What runs on nodes and is in no record", self.unclaimed.clone());
        registry.register("placements", "Instances placed", self.placements.clone());
        registry.register(
            "reschedules",
            "Instances placed anew because of a lost node",
            self.reschedules.clone(),
        );
        registry.register("plan_seconds", "Time to decide on one input", self.plan.clone());
        registry.register("commit_seconds", "Time to commit one transaction", self.commit.clone());
        registry.register("streams", "Daemons connected", self.streams.clone());
        registry.register(
            "heartbeat_age_seconds",
            "Time since the last heartbeat",
            self.heartbeat_age.clone(),
        );
        registry.register("edges", "Nodes with the edge role", self.edges.clone());
        registry.register(
            "edges_behind",
            "Edges that do not serve the newest sets",
            self.edges_behind.clone(),
        );
    }

    pub fn rescheduled(&self, node: &str) {
        self.reschedules.get_or_create(&NodeLabel { node: node.to_owned() }).inc();
    }

    /// The text format, with these figures in it.
    pub fn encode(&self, figures: &Figures) -> Result<String, std::fmt::Error> {
        // The guarded value is empty: there is nothing that a panic could have left half done.
        let _one = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        let by_state = |family: &Family<StateLabel, Gauge>, counts: &[(String, i64)]| {
            family.clear();
            for (state, count) in counts {
                family.get_or_create(&StateLabel { state: state.clone() }).set(*count);
            }
        };
        by_state(&self.nodes, &figures.node_states);
        by_state(&self.instances, &figures.instances);
        by_state(&self.services, &figures.services);
        self.nodes_health.clear();
        for (health, count) in &figures.node_healths {
            self.nodes_health.get_or_create(&HealthLabel { health: health.clone() }).set(*count);
        }
        self.heartbeat_age.clear();
        for (node, age) in &figures.heartbeat_ages {
            self.heartbeat_age.get_or_create(&NodeLabel { node: node.clone() }).set(*age);
        }
        self.edges.set(figures.edges);
        self.edges_behind.set(figures.edges_behind);
        self.unclaimed.set(figures.unclaimed);
        self.coordinator.set(i64::from(figures.acting));
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
