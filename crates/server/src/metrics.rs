//! What Prometheus is told. The registry is a value of the candidate, not a global.

use std::sync::{Mutex, PoisonError, atomic::AtomicU64};

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};
use prometheus_client::registry::Registry;

use crate::view::{DrainFigures, FeedFigures, StoreFigures};

/// From a hundredth of a millisecond to ten seconds.
const SECONDS: [f64; 13] = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0];

/// From a second to a day.
const DRAIN_SECONDS: [f64; 13] =
    [1.0, 3.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0];

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabel {
    node: String,
    class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FeedLabel {
    feed: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabel {
    store: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MoveLabel {
    class: String,
    outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndingLabel {
    ending: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: String,
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
    pub drains: DrainFigures,
    pub feeds: FeedFigures,
    pub stores: StoreFigures,
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
    evictions: Family<NodeLabel, Counter>,
    drains_ended: Family<EndingLabel, Counter>,
    drain_duration: Family<EndingLabel, Histogram, fn() -> Histogram>,
    pub drain_stateless: Histogram,
    drain_status: Family<NodeLabel, Gauge>,
    drain_remaining: Family<ClassLabel, Gauge>,
    drains_blocked: Family<CodeLabel, Gauge>,
    moves: Family<MoveLabel, Counter>,
    feed_lag: Family<FeedLabel, Seconds>,
    maintainers: Family<NodeLabel, Gauge>,
    dispatchers: Family<NodeLabel, Gauge>,
    store_leaders: Family<StoreLabel, Gauge>,
    store_data: Family<StoreLabel, Gauge>,
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
            evictions: Family::default(),
            drains_ended: Family::default(),
            drain_duration: Family::new_with_constructor(drain_histogram),
            drain_stateless: drain_histogram(),
            drain_status: Family::default(),
            drain_remaining: Family::default(),
            drains_blocked: Family::default(),
            moves: Family::default(),
            feed_lag: Family::default(),
            maintainers: Family::default(),
            dispatchers: Family::default(),
            store_leaders: Family::default(),
            store_data: Family::default(),
        };
        metrics.register();
        metrics.register_drains();
        metrics.register_feeds();
        metrics.register_stores();
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
            "Instances placed anew because of a node that is lost or empties",
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

    fn register_drains(&mut self) {
        let registry = &mut self.registry;
        registry.register("drain_status", "1 while a node drains", self.drain_status.clone());
        registry.register(
            "drain_remaining",
            "What a drain has still to see off",
            self.drain_remaining.clone(),
        );
        registry.register(
            "drains_blocked",
            "Nodes whose drain needs a person, by reason",
            self.drains_blocked.clone(),
        );
        registry.register("drains_ended", "Nodes whose drain has ended", self.drains_ended.clone());
        registry.register(
            "drain_duration_seconds",
            "From a node's turn to its ending",
            self.drain_duration.clone(),
        );
        registry.register(
            "drain_stateless_seconds",
            "From a node's turn until its last stateless instance had stopped",
            self.drain_stateless.clone(),
        );
        registry.register("evictions", "Instances told to leave a node that empties", self.evictions.clone());
    }

    fn register_feeds(&mut self) {
        let registry = &mut self.registry;
        registry.register("moves", "What left one node for another", self.moves.clone());
        registry.register(
            "feed_checkpoint_lag_seconds",
            "How far a feed's sink is behind its source",
            self.feed_lag.clone(),
        );
        registry.register("maintainers", "Maintainers of feeds on a node", self.maintainers.clone());
        registry.register(
            "dispatchers",
            "Dispatchers of feeds on a node, as it said last",
            self.dispatchers.clone(),
        );
    }

    fn register_stores(&mut self) {
        let (leaders, data) = (self.store_leaders.clone(), self.store_data.clone());
        self.registry.register("store_leaders", "Leaders on a store, as its backend said last", leaders);
        self.registry.register("store_data_left", "Bytes on a store, as its backend said last", data);
    }

    fn set_stores(&self, figures: &StoreFigures) {
        for (family, counts) in [(&self.store_leaders, &figures.leaders), (&self.store_data, &figures.data)] {
            family.clear();
            for (store, count) in counts {
                family.get_or_create(&StoreLabel { store: store.clone() }).set(*count);
            }
        }
    }

    pub fn moved(&self, class: &str, outcome: &str, count: u64) {
        if count > 0 {
            let label = MoveLabel { class: class.to_owned(), outcome: outcome.to_owned() };
            self.moves.get_or_create(&label).inc_by(count);
        }
    }

    fn set_feeds(&self, figures: &FeedFigures) {
        self.feed_lag.clear();
        for (feed, lag) in &figures.lags {
            self.feed_lag.get_or_create(&FeedLabel { feed: feed.clone() }).set(*lag);
        }
        self.maintainers.clear();
        self.dispatchers.clear();
        for (node, maintainers, dispatchers) in &figures.nodes {
            let label = NodeLabel { node: node.clone() };
            self.maintainers.get_or_create(&label).set(*maintainers);
            self.dispatchers.get_or_create(&label).set(*dispatchers);
        }
    }

    pub fn evicted(&self, node: &str) {
        self.evictions.get_or_create(&NodeLabel { node: node.to_owned() }).inc();
    }

    /// `took` from its turn; none if that never came.
    pub fn drain_ended(&self, ending: &str, took: Option<f64>) {
        let label = EndingLabel { ending: ending.to_owned() };
        self.drains_ended.get_or_create(&label).inc();
        if let Some(took) = took {
            self.drain_duration.get_or_create(&label).observe(took);
        }
    }

    fn set_drains(&self, figures: &DrainFigures) {
        self.drain_status.clear();
        for (node, draining) in &figures.draining {
            self.drain_status.get_or_create(&NodeLabel { node: node.clone() }).set(*draining);
        }
        self.drain_remaining.clear();
        for (node, class, count) in &figures.remaining {
            let label = ClassLabel { node: node.clone(), class: (*class).to_owned() };
            self.drain_remaining.get_or_create(&label).set(*count);
        }
        self.drains_blocked.clear();
        for (code, count) in &figures.blocked {
            self.drains_blocked.get_or_create(&CodeLabel { code: (*code).to_owned() }).set(*count);
        }
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
        self.set_drains(&figures.drains);
        self.set_feeds(&figures.feeds);
        self.set_stores(&figures.stores);
        self.edges.set(figures.edges);
        self.edges_behind.set(figures.edges_behind);
        self.unclaimed.set(figures.unclaimed);
        self.coordinator.set(i64::from(figures.acting));
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn drain_histogram() -> Histogram {
    Histogram::new(DRAIN_SECONDS)
}
