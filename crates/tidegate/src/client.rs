//! Talking to the cluster: `/v1` over HTTP, errors turned into one line that says what to do.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    access::Access,
    cli::Global,
    failure::{Failure, Outcome},
    out,
};

/// A cluster that takes longer to answer has trouble of its own.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// An election takes about as long as the office lease (5 s by default).
const COORDINATOR_WITHIN: Duration = Duration::from_secs(15);
const COORDINATOR_PAUSE: Duration = Duration::from_millis(500);
/// Two daemons that send us to each other must not make a busy loop.
const MOVED_PAUSE: Duration = Duration::from_millis(50);

/// One look at something that is looked at again and again.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// What a look brought.
pub enum Look {
    Seen(Value),
    /// Nobody who knows: no connection, no coordinator, an answer that broke off. Worth another look.
    Nobody(String),
    /// An answer that another look would not change.
    Refused(Failure),
}

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    /// Where certificates are believed, once a daemon has said so.
    coordinator: Arc<Mutex<Option<String>>>,
    token: Option<String>,
    quiet: bool,
}

impl Client {
    pub fn new(global: &Global) -> Outcome<Client> {
        let access = Access::of(global)?;
        let base = base_of(&access.addr)?;
        if base.starts_with("https://") && access.trust.ca.is_none() {
            return Err(Failure::usage(format!("{base} needs the cluster's authority: --ca or TIDEGATE_CA")));
        }
        let mut http = doors::http().connect_timeout(CONNECT_WITHIN);
        // A proxy of the environment does not know this machine's loopback.
        if let Ok(url) = reqwest::Url::parse(&base)
            && url.host_str().is_some_and(is_loopback)
        {
            http = http.no_proxy();
        }
        let http = access.trust.applied(http).map_err(|error| Failure::from(anyhow::Error::new(error)))?;
        let http = http.build().map_err(|error| Failure::error(format!("cannot set up HTTP: {error}")))?;
        Ok(Client { http, base, coordinator: Arc::default(), token: access.token, quiet: false })
    }

    /// Says nothing of waiting: for one that knows that it will have to.
    pub fn be_quiet(&mut self) {
        self.quiet = true;
    }

    pub async fn get(&self, path: &str) -> Outcome<Value> {
        self.call(Method::GET, path, None).await
    }

    /// `None`: there is no such thing.
    pub async fn find(&self, path: &str) -> Outcome<Option<Value>> {
        let response = self.answered(Method::GET, path, None).await?;
        if response.status() == StatusCode::NOT_FOUND {
            // A server that knows the path says so in its own words; anything else is not Tidegate.
            let text = response.text().await.unwrap_or_default();
            return match serde_json::from_str::<Value>(&text) {
                Ok(value) if value.get("error").is_some() => Ok(None),
                _ => Err(self.strange(StatusCode::NOT_FOUND)),
            };
        }
        self.value(response).await.map(Some)
    }

    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Outcome<Value> {
        let response = self.answered(method, path, body).await?;
        self.value(response).await
    }

    /// Looks once, and leaves it to the caller to look again.
    pub async fn look(&self, path: &str) -> Look {
        let nobody = |failure: Failure| Look::Nobody(failure.message.unwrap_or_default());
        let response = match self.request(Method::GET, path).timeout(LOOK_WITHIN).send().await {
            Ok(response) => response,
            Err(error) if error.is_timeout() && !error.is_connect() => {
                let (base, seconds) = (&self.base, LOOK_WITHIN.as_secs());
                return Look::Nobody(format!("{base} did not answer within {seconds}s"));
            }
            Err(error) => return nobody(self.unreachable(&error)),
        };
        let status = response.status();
        if status == StatusCode::MISDIRECTED_REQUEST {
            return match self.follow(response).await {
                Ok(()) => Look::Nobody("the coordinator is elsewhere".to_owned()),
                Err(failure) => Look::Refused(failure),
            };
        }
        if status.is_server_error() {
            return nobody(self.refusal(response).await);
        }
        if !status.is_success() {
            return Look::Refused(self.refusal(response).await);
        }
        match response.text().await {
            Err(error) => nobody(self.unreachable(&error)),
            Ok(text) => {
                serde_json::from_str(&text).map_or_else(|_| Look::Refused(self.strange(status)), Look::Seen)
            }
        }
    }

    /// A body that goes on for as long as the caller reads.
    pub async fn stream(&self, path: &str, last_event: Option<u64>) -> Outcome<Response> {
        let ask = async || {
            let mut request = self.request(Method::GET, path);
            if let Some(id) = last_event {
                request = request.header("last-event-id", id.to_string());
            }
            request.send().await.map_err(|error| self.unreachable(&error))
        };
        let mut response = ask().await?;
        if response.status() == StatusCode::MISDIRECTED_REQUEST {
            self.follow(response).await?;
            response = ask().await?;
        }
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.refusal(response).await),
        }
    }

    /// Asks from here on where a daemon sends those who show it a certificate.
    async fn follow(&self, response: Response) -> Outcome {
        let body: Value = response.json().await.unwrap_or(Value::Null);
        match body.pointer("/error/details/coordinator").and_then(Value::as_str) {
            // Never to a plain connection.
            Some(url) if url.starts_with("https://") => {
                *self.elsewhere() = Some(base_of(url)?);
                Ok(())
            }
            _ => Err(self.strange(StatusCode::MISDIRECTED_REQUEST)),
        }
    }

    fn elsewhere(&self) -> MutexGuard<'_, Option<String>> {
        self.coordinator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let base = self.elsewhere().clone().unwrap_or_else(|| self.base.clone());
        let request = self.http.request(method, format!("{base}{path}"));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Waits out an election: 503 means that nobody decides at the moment, and nothing was done.
    async fn answered(&self, method: Method, path: &str, body: Option<Value>) -> Outcome<Response> {
        let until = Instant::now() + COORDINATOR_WITHIN;
        let mut told = self.quiet;
        loop {
            let mut request = self.request(method.clone(), path).timeout(ANSWER_WITHIN);
            if let Some(body) = &body {
                request = request.json(body);
            }
            let response = request.send().await.map_err(|error| self.unreachable(&error))?;
            if response.status() == StatusCode::MISDIRECTED_REQUEST && Instant::now() <= until {
                self.follow(response).await?;
                tokio::time::sleep(MOVED_PAUSE).await;
                continue;
            }
            let waits = response.headers().contains_key("retry-after");
            if response.status() != StatusCode::SERVICE_UNAVAILABLE || !waits || Instant::now() > until {
                return Ok(response);
            }
            if !told {
                out::note("no coordinator at the moment; waiting for one");
                told = true;
            }
            tokio::time::sleep(COORDINATOR_PAUSE).await;
        }
    }

    async fn value(&self, response: Response) -> Outcome<Value> {
        let status = response.status();
        if !status.is_success() {
            return Err(self.refusal(response).await);
        }
        let text = response.text().await.map_err(|error| self.unreachable(&error))?;
        if text.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).map_err(|_| self.strange(status))
    }

    async fn refusal(&self, response: Response) -> Failure {
        let status = response.status();
        let body: Value = response.json().await.unwrap_or(Value::Null);
        let Some(message) = body.pointer("/error/message").and_then(Value::as_str) else {
            return self.strange(status);
        };
        match status {
            StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED | StatusCode::UNPROCESSABLE_ENTITY => {
                Failure::refused(message)
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Failure::error(format!("{message} (tokens: TIDEGATE_TOKEN, --token-file)"))
            }
            _ => Failure::error(message),
        }
    }

    fn strange(&self, status: StatusCode) -> Failure {
        Failure::error(format!("{} answered {status} in no known form; is it a Tidegate server?", self.base))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let went = self.elsewhere().take();
        let base = went.as_ref().unwrap_or(&self.base);
        if error.is_timeout() && !error.is_connect() {
            let seconds = ANSWER_WITHIN.as_secs();
            return Failure::error(format!("{base} did not answer within {seconds}s; is its daemon well?"));
        }
        let cause = root_cause(error);
        if let Some(words) = tls_words(&cause) {
            return Failure::error(format!("{base}: {words}"));
        }
        if !error.is_connect() {
            return Failure::error(format!("the talk with {base} broke off: {}", root_cause(error)));
        }
        Failure::error(format!(
            "cannot reach {base}: {}; start a cluster here with `tidegate dev`, or name another with --addr or TIDEGATE_ADDR",
            root_cause(error)
        ))
    }
}

/// Fits an answer into its shape. A server of another version may send what we do not understand.
pub fn shape<T: DeserializeOwned>(value: &Value) -> Outcome<T> {
    T::deserialize(value).map_err(|error| {
        Failure::error(format!("the server's answer is not understood ({error}); is it of another version?"))
    })
}

/// One piece of a path or query, safe to put into a URL.
pub fn encode(piece: &str) -> String {
    let mut text = String::with_capacity(piece.len());
    for byte in piece.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte))
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn base_of(addr: &str) -> Outcome<String> {
    let addr = addr.trim();
    let base = if addr.contains("://") { addr.to_owned() } else { format!("http://{addr}") };
    let base = base.strip_suffix('/').map_or(base.clone(), str::to_owned);
    match reqwest::Url::parse(&base) {
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && url.host_str().is_some_and(|host| !host.is_empty()) =>
        {
            Ok(base)
        }
        _ => Err(Failure::usage(format!(
            "{addr:?} is not an address; write it like http://127.0.0.1:7070 (--addr or TIDEGATE_ADDR)"
        ))),
    }
}

/// What TLS found wrong, in words that say whose certificate it is about.
fn tls_words(cause: &str) -> Option<String> {
    let words = match cause {
        _ if cause.contains("unknownissuer") || cause.contains("badsignature") => {
            "its certificate is not signed by the authority in --ca (TIDEGATE_CA)"
        }
        _ if cause.contains("invalid peer certificate") && cause.contains("expired") => {
            "its certificate has expired; `tidegate tls node` makes the next"
        }
        _ if cause.contains("not valid for name") || cause.contains("notvalidforname") => {
            "its certificate is for another host; use the address that it was made for"
        }
        _ if cause.contains("alert: certificateexpired") => {
            "the certificate in --cert (TIDEGATE_CERT) has expired; `tidegate tls person` makes the next"
        }
        _ if cause.contains("alert: unknownca") || cause.contains("alert: decrypterror") => {
            "the certificate in --cert (TIDEGATE_CERT) is not of this cluster's authority"
        }
        _ if cause.contains("fatal alert") => return Some(format!("refused this connection: {cause}")),
        _ if cause.contains("invalid http version") => {
            "answers, but not in plain HTTP; use https:// and --ca"
        }
        _ if cause.contains("corrupt message") || cause.contains("invalidcontenttype") => {
            "does not speak TLS; use http://"
        }
        _ => return None,
    };
    Some(words.to_owned())
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The innermost cause says it best: "Connection refused", not "error sending request".
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    let text = text.split(" (os error").next().unwrap_or_default().trim();
    text.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_no_scheme_and_bears_a_slash() {
        assert_eq!(base_of("10.0.0.1:7070").unwrap(), "http://10.0.0.1:7070");
        assert_eq!(base_of("http://h:1/").unwrap(), "http://h:1");
        assert_eq!(base_of("https://h:1/").unwrap(), "https://h:1");
        for wrong in ["", "ftp://h", "http://"] {
            assert_eq!(base_of(wrong).unwrap_err().code, 2, "{wrong}");
        }
    }

    #[test]
    fn a_piece_of_a_path_cannot_leave_its_place() {
        assert_eq!(encode("../a b?c"), "..%2Fa%20b%3Fc");
    }
}
