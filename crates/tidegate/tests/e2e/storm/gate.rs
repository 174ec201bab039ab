//! The way in: an edge on a machine that nothing happens to, with a load on it over fresh and kept connections.
//!
//! What is promised. A request may fail only if it was under way between the moment at which the path to a node was cut,
//! or a machine with instances on it went, and the moment at which the cluster had given that node up: its instances in no
//! backend set, and this edge at that set. Whatever else happens, none fails: not through drains and their
//! cancelling, daemons, coordinators and members of etcd that are killed or paused, nor disks that are full.

use std::time::Duration;

use edge::load::LoadReport;
use reqwest::Method;
use server::view::BackendsView;

use crate::harness::{Api, Cluster, Setup, TIDEGATE, Traffic, free_port, until};

pub const SERVICE: &str = "web";
const COUNT: u32 = 4;
const WORKERS: usize = 2;
pub const NAME: &str = "gate";
/// The requests that a period needs to say something.
const REQUESTS_MIN: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    Kept,
    /// A path is cut, or a machine is gone, and nobody knows yet.
    Excused,
}

#[derive(Debug, Default)]
pub struct Count {
    pub requests: u64,
    pub failed: u64,
    pub periods: u64,
    pub slowest: Duration,
    pub words: Vec<String>,
}

impl Count {
    fn add(&mut self, report: LoadReport) {
        self.requests += report.requests;
        self.failed += report.failed_count;
        self.periods += 1;
        self.slowest = self.slowest.max(report.latency.max);
        self.words.extend(report.failed);
    }
}

pub struct Gate {
    addr: std::net::SocketAddr,
    traffic: Option<(Promise, Traffic)>,
    pub kept: Count,
    pub excused: Count,
}

impl Gate {
    pub fn setup() -> Setup {
        let edge_host = std::net::Ipv4Addr::new(127, 0, 0, 9);
        Setup { roles: &["edge"], edge_host, ..Setup::worker(NAME) }
    }

    /// The service is applied and ready, and the load has begun.
    pub async fn open(cluster: &Cluster) -> Gate {
        let port = free_port();
        let service = format!(
            "[[service]]\nname = \"{SERVICE}\"\ncount = {COUNT}\n\
             command = [{TIDEGATE:?}, \"demo\", \"web\", \"--port\", \"${{PORT_HTTP}}\"]\nenv = {{ BIND = \"0.0.0.0\" }}\n\
             memory = \"32MiB\"\nports = [\"http\"]\n\
             check = {{ http = \"/ready\", port = \"http\", interval = \"200ms\", timeout = \"2s\" }}\n\
             edge = {{ port = \"http\", listen = {port} }}\nmigrate = {{ max_parallel = 2, min_healthy_time = \"0s\" }}\n"
        );
        cluster.apply(&service).await;
        until_ready(&cluster.api).await;
        let addr = (Gate::setup().edge_host, port).into();
        let mut gate = Gate { addr, traffic: None, kept: Count::default(), excused: Count::default() };
        gate.promise(cluster, Promise::Kept).await;
        gate
    }

    /// From here on it counts as this. Requests under way are finished and count as what was promised before.
    pub async fn promise(&mut self, cluster: &Cluster, promise: Promise) {
        self.settle().await;
        self.traffic = Some((promise, cluster.load_at(self.addr, WORKERS).await));
    }

    pub async fn settle(&mut self) {
        let Some((promise, traffic)) = self.traffic.take() else { return };
        let report = traffic.end().await;
        match promise {
            Promise::Kept => self.kept.add(report),
            Promise::Excused => self.excused.add(report),
        }
    }

    /// None failed that must not, and enough were made to say so.
    pub fn check(&self) {
        let Gate { kept, excused, .. } = self;
        assert_eq!(kept.failed, 0, "of {} requests: {:#?}", kept.requests, kept.words);
        assert!(kept.requests >= REQUESTS_MIN * kept.periods, "{kept:?}");
        assert!(excused.periods == 0 || excused.requests > excused.failed, "{excused:?}");
    }
}

pub async fn until_ready(api: &Api) {
    api.until_ready(SERVICE, COUNT as usize).await;
}

/// No backend set has an instance at this address, and every edge but the one of the lost node has that set: the lost
/// one cannot have it, so it is the one that is behind.
pub async fn until_given_up(api: &Api, leads: &Api, host: &str) {
    until("the edges to be told", async || {
        let (_, body) = api.ask(Method::GET, &format!("/v1/services/{SERVICE}/backends"), None).await?;
        let set: BackendsView = serde_json::from_value(body).map_err(|error| error.to_string())?;
        if set.items.iter().any(|backend| backend.address.starts_with(&format!("{host}:"))) {
            return Err(format!("{set:?}"));
        }
        let (_, figures) = leads.ask(Method::GET, "/metrics", None).await?;
        let figures = figures.as_str().unwrap_or_default().to_owned();
        let behind = figures.lines().find(|line| line.starts_with("tidegate_edges_behind"));
        let behind = behind.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        match behind {
            Some(behind) if behind <= 1.0 => Ok(()),
            other => Err(format!("{other:?} edges are behind")),
        }
    })
    .await;
}
