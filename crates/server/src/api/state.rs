//! What the handlers stand on.

use std::sync::Arc;
use std::time::Duration;

use doors::{Http, Keys};
use tokio::sync::watch;

use super::ApiFailure;
use super::admit::Verdicts;
use super::refusals::Refusals;
use crate::{Leader, OfficeHandle};

/// A daemon that does not answer a connection in this time is down or cut off.
const CONNECT_MAX: Duration = Duration::from_secs(3);

enum Place {
    Candidate(OfficeHandle),
    /// Told by its own stream where the coordinator's API is.
    Daemon(watch::Receiver<Option<String>>),
}

struct Inner {
    id: String,
    place: Place,
    http: Http,
    tokens: bool,
    verdicts: Verdicts,
    refusals: Refusals,
    more_metrics: Vec<Arc<dyn Fn() -> String + Send + Sync>>,
    away: Option<Away>,
}

/// Why this daemon should get no connections, if it should not.
type Away = Box<dyn Fn() -> Option<&'static str> + Send + Sync>;

/// Cheap to clone.
#[derive(Clone)]
pub struct ApiState(Arc<Inner>);

impl ApiState {
    /// For a daemon with the coordinator role.
    pub fn candidate(office: OfficeHandle) -> Result<ApiState, reqwest::Error> {
        let id = office.candidate().to_owned();
        ApiState::new(id, Place::Candidate(office))
    }

    /// For any other daemon: everything of `/v1` is forwarded to the API address in `coordinator`.
    pub fn daemon(
        id: impl Into<String>,
        coordinator: watch::Receiver<Option<String>>,
    ) -> Result<ApiState, reqwest::Error> {
        ApiState::new(id.into(), Place::Daemon(coordinator))
    }

    fn new(id: String, place: Place) -> Result<ApiState, reqwest::Error> {
        let (tokens, verdicts) = (false, Verdicts::default());
        let http = Http::new(None, CONNECT_MAX)?;
        Ok(ApiState(Arc::new(Inner {
            id,
            place,
            http,
            tokens,
            verdicts,
            refusals: Refusals::default(),
            more_metrics: Vec::new(),
            away: None,
        })))
    }

    /// With keys, daemons speak TLS with each other; with `tokens`, nobody is answered who shows neither a
    /// token nor a person's certificate. Before the state is cloned.
    pub fn with_doors(mut self, keys: Option<Keys>, tokens: bool) -> Result<ApiState, reqwest::Error> {
        let http = Http::new(keys, CONNECT_MAX)?;
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            (inner.http, inner.tokens) = (http, tokens);
        }
        Ok(self)
    }

    /// Whether people must say who they are.
    pub(super) fn asks_for_tokens(&self) -> bool {
        self.0.tokens
    }

    pub(super) fn verdicts(&self) -> &Verdicts {
        &self.0.verdicts
    }

    pub(super) fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// Adds what another part of the daemon has to tell to `/metrics`, in the text format. Before the
    /// state is cloned.
    pub fn with_metrics(mut self, more: impl Fn() -> String + Send + Sync + 'static) -> ApiState {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.more_metrics.push(Arc::new(more));
        }
        self
    }

    /// While `away` gives a reason, the health check fails with it. Before the state is cloned.
    pub fn with_health(
        mut self,
        away: impl Fn() -> Option<&'static str> + Send + Sync + 'static,
    ) -> ApiState {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.away = Some(Box::new(away));
        }
        self
    }

    pub(super) fn away(&self) -> Option<&'static str> {
        self.0.away.as_ref().and_then(|away| away())
    }

    pub(super) fn id(&self) -> &str {
        &self.0.id
    }

    pub(super) fn http(&self) -> reqwest::Client {
        self.0.http.client()
    }

    /// `host:port` of a daemon, as a URL without a slash at its end.
    pub(super) fn base_url(&self, address: &str) -> String {
        self.0.http.base_url(address)
    }

    pub(super) fn more_metrics(&self) -> impl Iterator<Item = String> + '_ {
        self.0.more_metrics.iter().map(|more| more())
    }

    pub(super) fn candidate_office(&self) -> Option<&OfficeHandle> {
        match &self.0.place {
            Place::Candidate(office) => Some(office),
            Place::Daemon(_) => None,
        }
    }

    /// The coordinator, if it is in this process.
    pub(super) fn acting(&self) -> Option<&OfficeHandle> {
        self.candidate_office().filter(|office| office.is_acting())
    }

    pub(super) fn office(&self) -> Result<&OfficeHandle, ApiFailure> {
        self.acting().ok_or_else(|| ApiFailure::no_coordinator("this daemon is not the coordinator"))
    }

    pub(super) fn leader(&self) -> Option<Leader> {
        self.candidate_office().and_then(|office| office.leader().borrow().clone())
    }

    /// Where the coordinator's API is, as far as is known here.
    pub(super) fn leader_api(&self) -> Option<String> {
        let api = match &self.0.place {
            Place::Candidate(_) => self.leader().map(|leader| leader.api),
            Place::Daemon(coordinator) => coordinator.borrow().clone(),
        };
        api.filter(|api| !api.is_empty())
    }

    /// Ends once the coordinator is known not to be at `api` any more.
    pub(super) async fn leader_left(&self, api: &str) {
        let known = match &self.0.place {
            Place::Candidate(office) => {
                let elsewhere =
                    |leader: &Option<Leader>| leader.as_ref().is_none_or(|leader| leader.api != api);
                office.leader().wait_for(elsewhere).await.is_ok()
            }
            Place::Daemon(coordinator) => {
                coordinator.clone().wait_for(|known| known.as_deref() != Some(api)).await.is_ok()
            }
        };
        if !known {
            // Whoever knew is gone: nobody will ever say.
            std::future::pending().await
        }
    }
}
