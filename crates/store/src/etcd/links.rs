//! The connection to one member of the cluster, and going over to another when that fails.
//!
//! One member is used at a time. When a call on it fails, all members are dialled at once and the first
//! that answers and has a leader is taken; the one that failed gets a late start. Every answer carries
//! the id of the cluster; a second one is an error, since two clusters under one prefix are two states.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use doors::Keys;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::{Channel, Endpoint};

use super::proto::maintenance_client::MaintenanceClient;
use super::proto::{self, ResponseHeader, StatusRequest};
use super::status;
use crate::error::StoreError;

/// Until one member must have answered.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How much later the member that just failed is dialled.
const FAILED_HANDICAP: Duration = Duration::from_millis(500);

/// At opening: how long the other members may take to say which cluster they belong to.
const SURVEY: Duration = Duration::from_secs(1);

/// Between two tries of a call.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A member that is dead without a FIN is noticed on streams after this. etcd drops clients that ping
/// more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// HTTP/2 windows wide enough that a load is not paced by round trips.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// How long a call may take: one try, and all of them.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) attempt: Duration,
    pub(super) overall: Duration,
}

/// Etcd itself gives up on a request after 5 s and two election timeouts.
pub(super) const USUAL: Bounds = Bounds { attempt: Duration::from_secs(5), overall: Duration::from_secs(10) };

/// An answer of etcd.
pub(super) trait Answer {
    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! answers {
    ($($message:ident),*) => {
        $(impl Answer for proto::$message {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
        })*
    };
}
answers!(
    RangeResponse,
    TxnResponse,
    CompactionResponse,
    WatchResponse,
    LeaseGrantResponse,
    LeaseRevokeResponse,
    LeaseKeepAliveResponse,
    AlarmResponse,
    StatusResponse
);

#[derive(Clone)]
pub(super) struct Link {
    pub(super) channel: Channel,
    endpoint: usize,
    /// Tells a link from its successor, so that a late failure of the old one does not end the new one.
    generation: u64,
}

#[derive(Default)]
struct Current {
    link: Option<Link>,
    failed: Option<usize>,
    generation: u64,
}

pub(super) struct Links {
    endpoints: Vec<(String, Endpoint)>,
    /// For members that are reached through TLS.
    keys: Option<Keys>,
    /// 0 until the first answer.
    cluster: AtomicU64,
    current: Mutex<Current>,
}

/// Why a call failed: the connection and its bounds, or a final answer of the server.
pub(super) enum CallError {
    Store(StoreError),
    Final(tonic::Status),
}

impl Links {
    pub(super) fn new(endpoints: &[String], keys: Option<Keys>) -> Result<Links, StoreError> {
        let parse = |text: &String| {
            let wrong =
                |why: String| StoreError::Configuration { what: format!("etcd endpoint {text}: {why}") };
            // TLS is the dialler's: the endpoint itself speaks plainly over what it is given.
            let plain = match (text.split_once("://"), &keys) {
                (Some(("http", _)), _) => text.clone(),
                (Some(("https", rest)), Some(_)) => format!("http://{rest}"),
                (Some(("https", _)), None) => return Err(wrong("https:// needs certificates".to_owned())),
                (Some(_) | None, _) => return Err(wrong("it is neither http:// nor https://".to_owned())),
            };
            let endpoint = Endpoint::from_shared(plain).map_err(|error| wrong(error.to_string()))?;
            let endpoint = endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_TIMEOUT)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW);
            Ok((text.clone(), endpoint))
        };
        if endpoints.is_empty() {
            return Err(StoreError::Configuration { what: "no etcd endpoint is given".to_owned() });
        }
        Ok(Links {
            endpoints: endpoints.iter().map(parse).collect::<Result<_, _>>()?,
            keys: keys.clone(),
            cluster: AtomicU64::new(0),
            current: Mutex::default(),
        })
    }

    /// For error messages.
    pub(super) fn place(&self) -> String {
        let names: Vec<&str> = self.endpoints.iter().map(|(name, _)| name.as_str()).collect();
        format!("etcd at {}", names.join(", "))
    }

    /// The link in use, or a fresh one. Nothing of the caller's has been sent when this fails.
    pub(super) async fn get(&self, operation: &'static str) -> Result<Link, StoreError> {
        let mut current = self.current.lock().await;
        if let Some(link) = &current.link {
            return Ok(link.clone());
        }
        let (endpoint, channel) = self.dial(operation, current.failed, Duration::ZERO).await?;
        current.generation += 1;
        let link = Link { channel, endpoint, generation: current.generation };
        current.link = Some(link.clone());
        Ok(link)
    }

    /// Dials every member and compares the ids of their clusters; those that are down are left out.
    pub(super) async fn survey(&self) -> Result<(), StoreError> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        loop {
            match self.dial("connecting", None, SURVEY).await {
                Ok(_) => return Ok(()),
                // members that are just electing a leader are worth another try
                Err(StoreError::Unavailable { .. }) if Instant::now() + RETRY_PAUSE < deadline => {
                    sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A call on `link` failed in a way that another member may not.
    pub(super) async fn failed(&self, link: &Link) {
        let mut current = self.current.lock().await;
        if current.link.as_ref().is_some_and(|known| known.generation == link.generation) {
            current.link = None;
            current.failed = Some(link.endpoint);
        }
    }

    /// The first member that answers well. After it, the others have `linger` to show that they belong
    /// to another cluster.
    async fn dial(
        &self,
        operation: &'static str,
        failed: Option<usize>,
        linger: Duration,
    ) -> Result<(usize, Channel), StoreError> {
        let mut deadline = Instant::now() + CONNECT_TIMEOUT;
        let mut tries: FuturesUnordered<_> = (0..self.endpoints.len())
            .map(|endpoint| async move {
                if failed == Some(endpoint) && self.endpoints.len() > 1 {
                    sleep(FAILED_HANDICAP).await;
                }
                (endpoint, self.greet(endpoint).await)
            })
            .collect();
        let mut reasons: Vec<String> = Vec::new();
        let mut found = None;
        while let Ok(Some((endpoint, greeted))) = timeout_at(deadline, tries.next()).await {
            match greeted {
                Ok(channel) if found.is_none() => {
                    found = Some((endpoint, channel));
                    deadline = Instant::now() + linger;
                }
                Ok(_another) => {}
                Err(CallError::Store(error)) => return Err(error),
                Err(CallError::Final(status)) => {
                    reasons.push(format!("{}: {}", self.endpoints[endpoint].0, status::brief(&status)));
                }
            }
            if found.is_some() && linger.is_zero() {
                break;
            }
        }
        found.ok_or_else(|| {
            if reasons.len() < self.endpoints.len() {
                reasons.push(format!("no answer from the others within {CONNECT_TIMEOUT:?}"));
            }
            let source = reasons.join("; ").into();
            StoreError::Unavailable { operation, place: self.place(), source }
        })
    }

    /// Connects and asks for its status: a member that has no leader is of no use.
    async fn greet(&self, endpoint: usize) -> Result<Channel, CallError> {
        let (name, address) = &self.endpoints[endpoint];
        let dialled = match &self.keys {
            Some(keys) if name.starts_with("https://") => keys.dial_server(address.clone()).await,
            Some(_) | None => address.connect().await,
        };
        let channel = dialled.map_err(|error| CallError::Final(tonic::Status::from_error(error.into())))?;
        let answer = MaintenanceClient::new(channel.clone()).status(StatusRequest {}).await;
        let answer = answer.map_err(CallError::Final)?.into_inner();
        self.check(endpoint, &answer).map_err(CallError::Store)?;
        if answer.leader == 0 {
            return Err(CallError::Final(tonic::Status::unavailable("it has no leader")));
        }
        Ok(channel)
    }

    fn check(&self, endpoint: usize, answer: &impl Answer) -> Result<(), StoreError> {
        let Some(found) = answer.header().map(|header| header.cluster_id) else { return Ok(()) };
        match self.cluster.compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_first) => Ok(()),
            Err(expected) if expected == found => Ok(()),
            Err(expected) => {
                let endpoint = self.endpoints[endpoint].0.clone();
                Err(StoreError::OtherCluster { endpoint, expected, found })
            }
        }
    }

    /// For the answers of a stream.
    pub(super) fn check_link(&self, link: &Link, answer: &impl Answer) -> Result<(), StoreError> {
        self.check(link.endpoint, answer)
    }

    /// One call, once, on `link`. `Err(None)` means that no answer came in time.
    pub(super) async fn once<T: Answer>(
        &self,
        link: &Link,
        within: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<Result<T, StoreError>, Option<tonic::Status>> {
        match timeout(within, call).await {
            Ok(Ok(answer)) => {
                let answer = answer.into_inner();
                Ok(self.check(link.endpoint, &answer).map(|()| answer))
            }
            Ok(Err(status)) => {
                if !status::is_final(&status) {
                    self.failed(link).await;
                }
                Err(Some(status))
            }
            Err(_elapsed) => {
                self.failed(link).await;
                Err(None)
            }
        }
    }

    /// A call that may safely be made twice, until some member answers it.
    pub(super) async fn retry<T: Answer, F>(
        &self,
        operation: &'static str,
        bounds: Bounds,
        call: impl Fn(Channel) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let deadline = Instant::now() + bounds.overall;
        loop {
            let failure = match self.get(operation).await {
                Ok(link) => match self.once(&link, bounds.attempt, call(link.channel.clone())).await {
                    Ok(answer) => return answer.map_err(CallError::Store),
                    Err(Some(status)) if status::is_final(&status) => return Err(CallError::Final(status)),
                    Err(Some(status)) => self.unavailable(operation, status::brief(&status)),
                    Err(None) => {
                        self.unavailable(operation, format!("no answer within {:?}", bounds.attempt))
                    }
                },
                Err(error @ StoreError::Unavailable { .. }) => error,
                Err(error) => return Err(CallError::Store(error)),
            };
            if Instant::now() + RETRY_PAUSE >= deadline {
                return Err(CallError::Store(failure));
            }
            tracing::debug!(%failure, "trying again");
            sleep(RETRY_PAUSE).await;
        }
    }

    pub(super) fn unavailable(&self, operation: &'static str, why: String) -> StoreError {
        StoreError::Unavailable { operation, place: self.place(), source: why.into() }
    }

    /// A final answer that the caller has no use for.
    pub(super) fn rejected(&self, operation: &'static str, error: CallError) -> StoreError {
        match error {
            CallError::Store(error) => error,
            CallError::Final(status) => {
                StoreError::Rejected { operation, place: self.place(), source: Box::new(status) }
            }
        }
    }
}
