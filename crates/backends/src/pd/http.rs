//! PD's HTTP API: one request to whichever member answers.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Client, Method, Url};
use serde::de::DeserializeOwned;

use crate::error::BackendError;
use crate::secret::Endpoint;

const PREFIX: &str = "/pd/api/v1";
/// A thousand stores are a few of these; more is not PD.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Of what PD says in an error.
const WORDS_CHARS_MAX: usize = 500;

/// What somebody answered.
pub struct Answer {
    pub status: u16,
    body: Vec<u8>,
    /// Who, without secrets.
    whom: String,
    operation: &'static str,
}

impl Answer {
    /// PD's errors are bare JSON strings.
    pub fn words(&self) -> String {
        let text = serde_json::from_slice::<String>(&self.body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&self.body).trim().to_owned());
        let mut words: String = text.chars().take(WORDS_CHARS_MAX).collect();
        if words.is_empty() {
            words = format!("status {}, without a word", self.status);
        }
        words
    }

    pub fn refused(&self) -> BackendError {
        let words = format!("status {}: {}", self.status, self.words());
        BackendError::Refused { operation: self.operation, whom: self.whom.clone(), words }
    }

    /// What was asked for; any other status is a refusal.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, BackendError> {
        if self.status != 200 {
            return Err(self.refused());
        }
        serde_json::from_slice(&self.body).map_err(|why| BackendError::Refused {
            operation: self.operation,
            whom: self.whom.clone(),
            words: format!("an answer that PD does not give: {why}"),
        })
    }

    /// Another member may do better: this one finds no leader, or is on its way down.
    fn is_without_leader(&self) -> bool {
        let words = self.words();
        self.status == 503
            || self.status == 500 && (words.contains("not leader") || words.contains("server not started"))
            || self.status == 502
            || self.status == 504
    }
}

pub struct Api {
    endpoints: Vec<Endpoint>,
    client: Result<Client, String>,
    /// Who answered last is asked first.
    favourite: AtomicUsize,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Api({:?})", self.endpoints)
    }
}

/// One call of the contract: its name, and until when it may take.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub api: &'a Api,
    pub operation: &'static str,
    pub deadline: Instant,
}

impl Api {
    pub fn new(endpoints: Vec<Endpoint>) -> Api {
        // A proxy of the environment is for the world outside, and a redirection would take a password elsewhere.
        let client = doors::http().no_proxy().redirect(reqwest::redirect::Policy::none());
        Api {
            endpoints,
            client: client.build().map_err(|error| error.to_string()),
            favourite: AtomicUsize::new(0),
        }
    }

    pub fn call(&self, operation: &'static str, within: Duration) -> Call<'_> {
        Call { api: self, operation, deadline: Instant::now() + within }
    }
}

impl Call<'_> {
    pub async fn get(&self, path: &str) -> Result<Answer, BackendError> {
        self.send(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: Option<serde_json::Value>) -> Result<Answer, BackendError> {
        self.send(Method::POST, path, body).await
    }

    pub async fn delete(&self, path: &str) -> Result<Answer, BackendError> {
        self.send(Method::DELETE, path, None).await
    }

    /// Asks one member after the other: each passes on to the leader, and every request here may be made twice.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<Answer, BackendError> {
        let count = self.api.endpoints.len();
        let first = self.api.favourite.load(Ordering::Relaxed);
        let none = "no address of PD is given".to_owned();
        let mut fault = BackendError::NotPossible { operation: self.operation, why: none };
        for turn in 0..count {
            let at = (first + turn) % count;
            let endpoint = &self.api.endpoints[at];
            // one that hangs must not use up the time of those after it
            let left = self.deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(count - turn).unwrap_or(1);
            match self.ask(endpoint, method.clone(), path, body.as_ref(), share).await {
                Ok(answer) if answer.is_without_leader() => {
                    fault = BackendError::Unreachable {
                        operation: self.operation,
                        whom: answer.whom.clone(),
                        why: format!("it answers for no leader: {}", answer.words()),
                    };
                }
                Ok(answer) => {
                    self.api.favourite.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => fault = error,
            }
        }
        Err(fault)
    }

    async fn ask(
        &self,
        endpoint: &Endpoint,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
        within: Duration,
    ) -> Result<Answer, BackendError> {
        let url = self.url(endpoint, path)?;
        let none = |why: &String| BackendError::NotPossible { operation: self.operation, why: why.clone() };
        let client = self.api.client.as_ref().map_err(none)?;
        let mut request = client.request(method, url).timeout(within);
        if let Some(body) = body {
            request = request.json(body);
        }
        let lost = |error: reqwest::Error| BackendError::Unreachable {
            operation: self.operation,
            whom: endpoint.to_string(),
            why: endpoint.scrub(&causes(&error.without_url())),
        };
        let mut response = request.send().await.map_err(lost)?;
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > BODY_BYTES_MAX {
                return Err(BackendError::Refused {
                    operation: self.operation,
                    whom: endpoint.to_string(),
                    words: format!("more than {BODY_BYTES_MAX} bytes of answer"),
                });
            }
        }
        let body = match status {
            200 => bytes,
            // repeated to operators: nobody's password may be in it, whoever put it there
            _ => endpoint.scrub(&String::from_utf8_lossy(&bytes)).into_bytes(),
        };
        Ok(Answer { status, body, whom: endpoint.to_string(), operation: self.operation })
    }

    fn url(&self, endpoint: &Endpoint, path: &str) -> Result<Url, BackendError> {
        let wrong = |why: &str| BackendError::NotPossible {
            operation: self.operation,
            why: format!("{endpoint}: {why}"),
        };
        let base = Url::parse(endpoint.reveal()).map_err(|_| wrong("not an address as http://host:port"))?;
        if base.scheme() != "http" {
            return Err(wrong("only http:// is spoken here, without TLS"));
        }
        if base.host_str().is_none() || base.query().is_some() || base.fragment().is_some() {
            return Err(wrong("not an address as http://host:port"));
        }
        let whole = format!("{}{PREFIX}{path}", base.as_str().trim_end_matches('/'));
        Url::parse(&whole).map_err(|_| wrong("not an address as http://host:port"))
    }
}

/// An error with all that led to it: the outermost says only that sending failed.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
