//! The daemon at work: its roles put together, and taken apart in order when it is told to stop.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use doors::{Http, Keys};
use edge::EdgeHandle;
use model::NodeId;
use protocol::message::Withdrawal;
use server::{ApiState, Office, OfficeConfig, OfficeHandle};
use store::{
    Store,
    embedded::EmbeddedStore,
    etcd::{EtcdConfig, EtcdStore},
};
use tokio::{net::TcpListener, sync::Notify, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use wire::{ControlServer, PeerServer};
use worker::{
    agent::{
        Agent, AgentConfig, AgentError, AgentHandle, EdgeLink, LocalCallers, NodeStats, SILENCE_MAX,
        STOP_MAX, local_router,
    },
    feeds::Incoming,
};

use crate::{
    certificates,
    cli::RunArgs,
    config::{Config, StoreConfig},
    failure::{Failure, Outcome},
    stop::{self, Signals},
};

/// Connections through the edge, and requests, that are still open when the daemon is told to stop.
const CONNECTIONS_GRACE: Duration = Duration::from_secs(5);

/// Streams of other nodes that wait to be taken up.
const INCOMING_MAX: usize = 16;

/// Works until it is told to stop.
pub async fn live(config: Config, args: &RunArgs) -> Outcome {
    let mut signals = Signals::listen()?;
    let keys = certificates::load(&config)?;
    let store_keys = certificates::for_store(&config)?;
    let api = bind("listen.api", config.api).await?;
    let rpc = match config.roles.coordinator || config.roles.worker {
        true => Some(bind("listen.rpc", config.rpc).await?),
        false => None,
    };
    let shutdown = CancellationToken::new();
    let office = match config.roles.coordinator {
        true => Some(start_office(&config, &store_keys).await?),
        false => None,
    };
    let (peers, incoming) = peer_streams(&config).unzip();
    let streams =
        rpc.map(|listener| serve_streams(listener, keys.clone(), office.clone(), peers, shutdown.clone()));
    let edge = config.roles.edge.then(|| EdgeHandle::start(config.edge_host, config.withdraw_delay));
    let agent_stop = CancellationToken::new();
    let agent = start_agent(&config, &keys, args.adopt, edge.as_ref(), incoming, agent_stop.clone()).await?;
    let router = router(&config, &keys, office.as_ref(), &agent, edge.as_ref(), &agent_stop)?;
    let answering = tokio::spawn(server::serve(api, keys.clone(), router, shutdown.clone()));
    let reload = Arc::new(Notify::new());
    for keys in [&keys, &store_keys].into_iter().flatten() {
        tokio::spawn(certificates::follow(keys.clone(), Arc::clone(&reload), shutdown.clone()));
    }
    tracing::info!(node = config.id, api = %config.api, "up");
    let mut agent = std::pin::pin!(agent.ended());
    let mut gone = false;
    let stopped = tokio::select! {
        signal = until_told(&mut signals, keys.is_some(), &reload) => Ok(signal),
        () = stop::stdin_ended(), if args.until_stdin_ends => Ok("the end of standard input"),
        ended = &mut agent => match ended {
            Ok(()) => {
                gone = true;
                Ok("the end of its drain")
            }
            Err(fault) => Err(agent_failure(Err(fault))),
        },
    };
    match &stopped {
        Ok(why) => {
            tracing::info!(why, "stopping; instances run on");
            // First of all: its last word needs the coordinator, which may be in this process.
            agent_stop.cancel();
            if !gone {
                // It bounds itself; should it not, the daemon ends all the same.
                let _ = tokio::time::timeout(STOP_MAX + CONNECTIONS_GRACE, agent).await;
            }
        }
        Err(_) => tracing::error!("stopping: this node cannot take part; instances run on"),
    }
    let edge_down = async {
        if let Some(edge) = &edge {
            edge.shutdown(CONNECTIONS_GRACE).await;
        }
    };
    let office_down = async {
        if let Some(office) = &office {
            office.shutdown().await;
        }
        shutdown.cancel();
    };
    tokio::join!(edge_down, office_down);
    for task in [streams, Some(answering)].into_iter().flatten() {
        // A client that does not go is left behind.
        let _ = tokio::time::timeout(CONNECTIONS_GRACE, task).await;
    }
    stopped.map(|_| ())
}

/// Everything that this daemon answers over HTTP.
fn router(
    config: &Config,
    keys: &Option<Keys>,
    office: Option<&OfficeHandle>,
    agent: &AgentHandle,
    edge: Option<&EdgeHandle>,
    stopping: &CancellationToken,
) -> Outcome<Router> {
    let mut state = api_state(config, keys, office, agent)?;
    if let Some(edge) = edge {
        let (report, stopping) = (edge.watch(), stopping.clone());
        state = state.with_health(move || away(report.borrow().withdrawal, stopping.is_cancelled()));
    }
    let local = local_router(agent.instances_dir().to_owned(), local_callers(config));
    Ok(server::router(state).merge(local))
}

/// The signal that ends the daemon. With certificates, SIGHUP has them read again instead, as it does for
/// other daemons.
async fn until_told(signals: &mut Signals, has_keys: bool, reload: &Notify) -> &'static str {
    loop {
        match signals.next().await {
            "SIGHUP" if has_keys => reload.notify_waiters(),
            signal => return signal,
        }
    }
}

fn local_callers(config: &Config) -> LocalCallers {
    match (&config.tls, config.insecure) {
        (Some(_), _) => LocalCallers::Nodes,
        (None, false) => LocalCallers::Loopback,
        (None, true) => LocalCallers::Anyone,
    }
}

/// What takes the streams of other nodes, for a node that takes part in feeds.
fn peer_streams(config: &Config) -> Option<(PeerServer, Incoming)> {
    let (incoming, streams) = tokio::sync::mpsc::channel(INCOMING_MAX);
    let server = PeerServer { me: NodeId::new(&config.id), incoming };
    config.roles.worker.then_some((server, streams))
}

async fn start_agent(
    config: &Config,
    keys: &Option<Keys>,
    adopt: bool,
    edge: Option<&EdgeHandle>,
    incoming: Option<Incoming>,
    stop: CancellationToken,
) -> Outcome<AgentHandle> {
    let exe = std::env::current_exe()
        .map_err(|error| Failure::error(format!("cannot find this program's own file: {error}")))?;
    let agent = AgentConfig {
        node: config.id.clone(),
        data_dir: config.data_dir.clone(),
        roles: config.roles,
        labels: config.labels.clone(),
        memory: config.memory,
        cpu: config.cpu.map(u64::from),
        host: config.host.clone(),
        api: config.reached_at(config.api),
        rpc: if config.roles.worker { config.reached_at(config.rpc) } else { String::new() },
        ports: config.ports.clone(),
        coordinators: config.coordinators.clone(),
        timing: config.timing,
        http: Http::new(keys.clone(), SILENCE_MAX).map_err(no_http)?,
        adopt,
        exe,
    };
    let edge = edge.map(|edge| {
        let (to, told) = (edge.clone(), edge.clone());
        EdgeLink {
            apply: Box::new(move |sets| to.apply(sets)),
            duty: Box::new(move |duty| told.duty(duty)),
            report: edge.watch(),
        }
    });
    Agent::start(agent, edge, incoming, stop).await.map_err(|error| Failure::from(anyhow::Error::new(error)))
}

fn agent_failure(ended: Result<(), AgentError>) -> Failure {
    match ended {
        Ok(()) => Failure::error("the agent ended by itself"),
        Err(error) => Failure::from(anyhow::Error::new(error)),
    }
}

async fn bind(key: &str, addr: SocketAddr) -> Outcome<TcpListener> {
    TcpListener::bind(addr).await.map_err(|error| {
        Failure::error(match error.kind() {
            io::ErrorKind::AddrInUse => format!("{addr} ({key}) is in use already by another process"),
            io::ErrorKind::AddrNotAvailable => format!("{addr} ({key}) is not an address of this machine"),
            io::ErrorKind::PermissionDenied => format!("{addr} ({key}) may not be used by this user"),
            _ => format!("cannot listen on {addr} ({key}): {error}"),
        })
    })
}

async fn start_office(config: &Config, keys: &Option<Keys>) -> Outcome<OfficeHandle> {
    let store = open_store(config, keys).await?;
    Ok(Office::start(OfficeConfig {
        candidate: config.id.clone(),
        api: config.reached_at(config.api),
        rpc: config.reached_at(config.rpc),
        timing: config.timing,
        pd_settle: config.pd_settle,
        drain: config.drain,
        feeds: config.feeds,
        store,
    }))
}

async fn open_store(config: &Config, keys: &Option<Keys>) -> Outcome<Arc<dyn Store>> {
    match &config.store {
        StoreConfig::Embedded => {
            let path = config.data_dir.join("store.redb");
            Ok(Arc::new(EmbeddedStore::open(path).await.map_err(unusable)?))
        }
        StoreConfig::Etcd { endpoints, prefix, keys: _ } => {
            let etcd = EtcdConfig { endpoints: endpoints.clone(), prefix: prefix.clone() };
            let open = |url: &&String| url.starts_with("http://") && !is_local(url);
            if let Some(url) = endpoints.iter().find(open) {
                tracing::warn!(url, "etcd is reached without TLS: whoever reaches it can change everything");
            }
            Ok(Arc::new(EtcdStore::open_with(&etcd, keys.clone()).await.map_err(unusable)?))
        }
    }
}

fn is_local(url: &str) -> bool {
    let host = reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    let host = host.unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The store's errors name the place and the cause themselves.
fn unusable(error: store::StoreError) -> Failure {
    Failure::error(format!("cannot use the store: {error}"))
}

fn serve_streams(
    listener: TcpListener,
    keys: Option<Keys>,
    office: Option<OfficeHandle>,
    peers: Option<PeerServer>,
    shutdown: CancellationToken,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let control = office.map(ControlServer::new);
        if let Err(error) = wire::serve_door(listener, keys, control, peers, shutdown).await {
            tracing::error!(error = format!("{:#}", anyhow::Error::new(error)), "daemons are not answered");
        }
    })
}

fn no_http(error: reqwest::Error) -> Failure {
    Failure::error(format!("cannot set up HTTP: {error}"))
}

fn api_state(
    config: &Config,
    keys: &Option<Keys>,
    office: Option<&OfficeHandle>,
    agent: &AgentHandle,
) -> Outcome<ApiState> {
    let state = match office {
        Some(office) => ApiState::candidate(office.clone()),
        None => ApiState::daemon(&config.id, agent.coordinator.clone()),
    };
    let state = state.and_then(|state| state.with_doors(keys.clone(), config.tokens)).map_err(no_http)?;
    let (id, stats, keys) = (config.id.clone(), agent.stats.clone(), keys.clone());
    Ok(state.with_metrics(move || {
        let certificate = keys.as_ref().map(|keys| certificates::metrics(&id, keys)).unwrap_or_default();
        node_metrics(&id, *stats.borrow()) + &certificate
    }))
}

/// Why a load balancer should send nothing here.
fn away(withdrawal: Option<Withdrawal>, stopping: bool) -> Option<&'static str> {
    match withdrawal {
        _ if stopping => Some("stopping"),
        Some(Withdrawal { done: true, .. }) => Some("withdrawn"),
        Some(Withdrawal { done: false, .. }) => Some("withdrawing"),
        None => None,
    }
}

/// What every daemon tells of its own node, whoever coordinates.
fn node_metrics(id: &str, stats: NodeStats) -> String {
    let gauge = |name: &str, help: &str, value: usize| {
        format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{node=\"{id}\"}} {value}\n")
    };
    let registered = usize::from(stats.registered);
    gauge("tidegate_node_registered", "1 while the node is registered with a coordinator.", registered)
        + &gauge("tidegate_node_instances", "Instances that the node keeps.", stats.instances)
        + &gauge("tidegate_node_processes", "Instances whose process runs.", stats.running)
}
