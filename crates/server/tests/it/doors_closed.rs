//! Tokens and certificates: who is answered, who is turned away, and in which words.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use doors::{Authority, Issued, KeyFiles, Keys, Trust, token};
use model::{Access, Millis};
use protocol::coordinator::{Asked, Request};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use server::ApiState;
use store::memory::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::daemon::{Daemon, eventually, web};

const PATIENCE: Duration = Duration::from_secs(30);

/// A door that asks for tokens, in front of a coordinator.
struct Guarded {
    daemon: Daemon,
    api: SocketAddr,
    _stop: DropGuard,
}

async fn listen(state: ApiState, keys: Option<Keys>, stop: &CancellationToken) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = listener.local_addr().unwrap();
    tokio::spawn(server::serve(listener, keys, server::router(state), stop.clone()));
    api
}

impl Guarded {
    async fn start() -> Guarded {
        Guarded::with(None).await
    }

    async fn with(keys: Option<Keys>) -> Guarded {
        let daemon = Daemon::acting(&MemoryStore::new()).await;
        let stop = CancellationToken::new();
        let state = ApiState::candidate(daemon.office.clone()).unwrap();
        let api = listen(state.with_doors(keys.clone(), true).unwrap(), keys, &stop).await;
        Guarded { daemon, api, _stop: stop.drop_guard() }
    }

    /// As the first one would, with a certificate.
    async fn token(&self, name: &str, access: Access) -> String {
        let token = token::generate().unwrap();
        let (name, hash) = (name.to_owned(), token::hash(&token));
        let request = Request::CreateToken { name, access, hash, expires_at: None };
        let asked = Asked { who: "cert:root".to_owned(), from: "here".to_owned(), request };
        self.daemon.office.ask(asked).await.unwrap().unwrap();
        token
    }

    async fn ask(&self, method: Method, path: &str, token: &str, body: Option<Value>) -> (StatusCode, Value) {
        ask(self.api, method, path, token, body).await
    }

    async fn get(&self, path: &str, token: &str) -> (StatusCode, Value) {
        self.ask(Method::GET, path, token, None).await
    }
}

async fn ask(
    api: SocketAddr,
    method: Method,
    path: &str,
    token: &str,
    body: Option<Value>,
) -> (StatusCode, Value) {
    let client = Trust::default().applied(doors::http().no_proxy()).unwrap().build().unwrap();
    let mut request = client.request(method, format!("http://{api}{path}"));
    if !token.is_empty() {
        request = request.bearer_auth(token);
    }
    if let Some(body) = body {
        request = request.json(&body);
    }
    answered(request).await
}

async fn answered(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn message(body: &Value) -> &str {
    body["error"]["message"].as_str().unwrap()
}

#[tokio::test]
async fn nobody_is_answered_who_shows_nothing_but_for_health_and_the_document() {
    let guarded = Guarded::start().await;
    for path in
        ["/v1/status", "/v1/nodes", "/v1/events", "/metrics", "/api/v1/status", "/nowhere", "/v1/audit"]
    {
        let (status, body) = guarded.get(path, "").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(message(&body), "a token is needed; an operator makes one with `tidegate token create`");
    }
    for path in ["/healthz", "/openapi.json"] {
        assert_eq!(guarded.get(path, "").await.0, StatusCode::OK, "{path}");
    }
    let (status, body) = guarded.get("/v1/status", &token::generate().unwrap()).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(message(&body), "the token is not known: it was revoked, or is of another cluster");
}

/// The answer to a request of which only the head was sent.
async fn answer_to_a_head(api: SocketAddr, token: &str) -> String {
    let mut stream = TcpStream::connect(api).await.unwrap();
    let shown = if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    let head = format!("POST /v1/apply HTTP/1.1\r\nhost: a\r\n{shown}content-length: 1000000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 512];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test]
async fn strangers_and_viewers_are_turned_away_before_anything_of_a_body_is_there() {
    let guarded = Guarded::start().await;
    let viewer = guarded.token("bob", Access::Viewer).await;
    let answer = answer_to_a_head(guarded.api, "").await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(answer.to_lowercase().contains("www-authenticate: bearer"), "{answer}");
    let answer = answer_to_a_head(guarded.api, &viewer).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[tokio::test]
async fn a_viewer_may_look_and_preview_and_nothing_else() {
    let guarded = Guarded::start().await;
    let viewer = guarded.token("bob", Access::Viewer).await;
    assert_eq!(guarded.get("/v1/status", &viewer).await.0, StatusCode::OK);
    assert_eq!(guarded.get("/metrics", &viewer).await.0, StatusCode::OK);
    assert_eq!(guarded.get("/v1/audit", &viewer).await.0, StatusCode::OK);
    let plan = guarded.ask(Method::POST, "/v1/drains/plan", &viewer, Some(json!({"nodes": ["x"]}))).await;
    assert_ne!(plan.0, StatusCode::FORBIDDEN);
    let changes = [
        (Method::PUT, "/v1/services/web"),
        (Method::DELETE, "/v1/services/web"),
        (Method::POST, "/v1/apply"),
        (Method::POST, "/v1/drains"),
        (Method::PUT, "/v1/nodes/n1/drain"),
        (Method::PUT, "/api/v2/captures/n1/drain"),
        (Method::POST, "/api/v1/owner/resign"),
        (Method::POST, "/v1/tokens"),
        (Method::GET, "/v1/tokens"),
        (Method::DELETE, "/v1/tokens/bob"),
    ];
    for (method, path) in changes {
        let (status, body) = guarded.ask(method, path, &viewer, None).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(message(&body), "token:bob is a viewer: only an operator may do this");
    }
}

#[tokio::test]
async fn an_operator_makes_tokens_which_are_listed_without_what_they_are_and_revoked() {
    let guarded = Guarded::start().await;
    let alice = guarded.token("alice", Access::Operator).await;
    let body = json!({"name": "carol", "access": "operator", "expires_in": "1h"});
    let (status, made) = guarded.ask(Method::POST, "/v1/tokens", &alice, Some(body.clone())).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let carol = made["token"].as_str().unwrap().to_owned();
    assert_eq!(
        guarded.get("/v1/whoami", &carol).await.1,
        json!({"who": "token:carol", "access": "operator"})
    );
    let (status, twice) = guarded.ask(Method::POST, "/v1/tokens", &alice, Some(body)).await;
    assert_eq!((status, message(&twice).contains("already")), (StatusCode::CONFLICT, true));
    let (_, listed) = guarded.get("/v1/tokens", &alice).await;
    assert_eq!(listed["items"][1]["created_by"], "token:alice");
    let text = listed.to_string();
    let hash: String = token::hash(&carol).iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!text.contains(&carol) && !text.contains(&hash), "{text}");
    let (status, _) = guarded.ask(Method::DELETE, "/v1/tokens/carol", &alice, None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(guarded.get("/v1/whoami", &carol).await.0, StatusCode::UNAUTHORIZED);
    let (status, _) = guarded.ask(Method::DELETE, "/v1/tokens/carol", &alice, None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_token_that_has_expired_is_refused_in_words_of_its_own() {
    let guarded = Guarded::start().await;
    let token = token::generate().unwrap();
    let hash = token::hash(&token);
    let expires_at = guarded.daemon.office.peek(|_, now| now + Millis(1)).await.unwrap();
    let name = "short".to_owned();
    let request = Request::CreateToken { name, access: Access::Viewer, hash, expires_at: Some(expires_at) };
    let asked = Asked { who: "cert:root".to_owned(), from: "here".to_owned(), request };
    // It may have expired before it is made, which is refused: then there is nothing to show.
    let Ok(_) = guarded.daemon.office.ask(asked).await.unwrap() else { return };
    eventually("it has expired", async || {
        let (status, body) = guarded.get("/v1/status", &token).await;
        status == StatusCode::UNAUTHORIZED && message(&body) == "the token short has expired"
    })
    .await;
}

#[tokio::test]
async fn the_audit_log_says_who_changed_what_from_where() {
    let guarded = Guarded::start().await;
    let alice = guarded.token("alice", Access::Operator).await;
    let (status, _) = guarded.ask(Method::PUT, "/v1/services/web", &alice, Some(web(1))).await;
    assert_eq!(status, StatusCode::CREATED);
    let (_, log) = guarded.get("/v1/audit", &alice).await;
    let seen: Vec<_> = log["items"].as_array().unwrap().iter().map(|e| (&e["who"], &e["what"])).collect();
    assert_eq!(seen[0], (&json!("cert:root"), &json!("create token/alice for an operator")));
    assert_eq!(seen[1], (&json!("token:alice"), &json!("apply web")));
    assert!(log["items"][1]["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{log}");
    let (_, last) = guarded.get("/v1/audit?limit=1", &alice).await;
    assert_eq!(last["items"].as_array().unwrap().len(), 1);
    assert_eq!(last["items"][0], log["items"][1]);
}

#[tokio::test]
async fn what_services_and_feeds_are_told_in_confidence_is_hidden_from_viewers() {
    let guarded = Guarded::start().await;
    let (alice, bob) =
        (guarded.token("alice", Access::Operator).await, guarded.token("bob", Access::Viewer).await);
    let mut service = web(1);
    service["env"] = json!({"KEY": "hunter2"});
    let feed = json!({"name": "f", "kind": "command", "command": ["./f"], "env": {"KEY": "hunter2"}});
    let file = json!({"service": [service], "feed": [feed]});
    let (status, body) = guarded.ask(Method::POST, "/v1/apply", &alice, Some(file)).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    for path in ["/v1/services", "/v1/services/web", "/v1/feeds", "/v1/feeds/f"] {
        let (_, seen) = guarded.get(path, &alice).await;
        assert!(seen.to_string().contains("hunter2"), "operators see it at {path}");
        let (_, seen) = guarded.get(path, &bob).await;
        assert!(!seen.to_string().contains("hunter2") && seen.to_string().contains("KEY"), "{path}: {seen}");
    }
}

#[tokio::test]
async fn other_daemons_pass_tokens_on_and_ask_for_what_they_answer_themselves() {
    let guarded = Guarded::start().await;
    let viewer = guarded.token("bob", Access::Viewer).await;
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let (leader, known) = watch::channel(Some(guarded.api.to_string()));
    let other = ApiState::daemon("w", known).unwrap().with_doors(None, true).unwrap();
    let other = listen(other, None, &stop).await;
    assert_eq!(ask(other, Method::GET, "/v1/status", "", None).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(other, Method::GET, "/v1/status", &viewer, None).await.0, StatusCode::OK);
    let (status, body) = ask(other, Method::POST, "/v1/apply", &viewer, None).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{body}");
    assert_eq!(ask(other, Method::GET, "/metrics", &viewer, None).await.0, StatusCode::OK);
    let unknown = token::generate().unwrap();
    assert_eq!(ask(other, Method::GET, "/metrics", &unknown, None).await.0, StatusCode::UNAUTHORIZED);
    leader.send_replace(None);
    let (status, _) = ask(other, Method::GET, "/metrics", &viewer, None).await;
    assert_eq!(status, StatusCode::OK, "figures are wanted most when something is wrong");
    let (status, _) = ask(other, Method::GET, "/metrics", &unknown, None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "nobody can say");
}

fn keys(ca: &Path, issued: &Issued) -> Keys {
    let files = KeyFiles { ca: ca.to_owned(), cert: issued.cert.clone(), key: issued.key.clone() };
    Keys::load(files).unwrap()
}

fn client(ca: &Path, issued: Option<&Issued>) -> reqwest::Client {
    let cert = issued.map(|issued| (issued.cert.clone(), issued.key.clone()));
    let trust = Trust { ca: Some(ca.to_owned()), cert };
    trust.applied(doors::http().no_proxy()).unwrap().build().unwrap()
}

#[tokio::test]
async fn people_with_certificates_make_the_first_token_at_the_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let tomorrow = SystemTime::now() + Duration::from_secs(24 * 3600);
    let authority = Authority::init(dir.path()).unwrap();
    let ca = authority.certificate();
    let own = keys(&ca, &authority.node("a", &["127.0.0.1".to_owned()], tomorrow).unwrap());
    let guarded = Guarded::with(Some(own.clone())).await;
    let base = format!("https://{}", guarded.api);
    let alice = authority.person("alice", Access::Operator, tomorrow).unwrap();
    let body = json!({"name": "ci", "access": "viewer"});
    let made = client(&ca, Some(&alice)).post(format!("{base}/v1/tokens")).json(&body);
    let (status, made) = answered(made).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let (_, log) = answered(client(&ca, Some(&alice)).get(format!("{base}/v1/audit"))).await;
    assert_eq!(log["items"][0]["who"], "cert:alice");
    let with_token =
        client(&ca, None).get(format!("{base}/v1/nodes")).bearer_auth(made["token"].as_str().unwrap());
    assert_eq!(answered(with_token).await.0, StatusCode::OK);
    let viewer = authority.person("bob", Access::Viewer, tomorrow).unwrap();
    let (status, body) = answered(client(&ca, Some(&viewer)).delete(format!("{base}/v1/tokens/ci"))).await;
    assert_eq!(
        (status, message(&body)),
        (StatusCode::FORBIDDEN, "cert:bob is a viewer: only an operator may do this")
    );
    let node = authority.node("w", &[], tomorrow).unwrap();
    let as_node = |path: &str| answered(client(&ca, Some(&node)).get(format!("{base}{path}")));
    assert_eq!(as_node("/v1/services").await.0, StatusCode::UNAUTHORIZED, "a node is not an operator");
    assert_eq!(as_node("/v1/nodes/w").await.0, StatusCode::NOT_FOUND, "it may ask after itself");

    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let (_leader, known) = watch::channel(Some(guarded.api.to_string()));
    let other = ApiState::daemon("w", known).unwrap().with_doors(Some(own.clone()), true).unwrap();
    let other = listen(other, Some(own), &stop).await;
    let (status, body) = answered(client(&ca, Some(&alice)).get(format!("https://{other}/v1/nodes"))).await;
    assert_eq!(status, StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(body["error"]["details"]["coordinator"], base);
    let (status, _) = answered(client(&ca, Some(&alice)).get(format!("https://{other}/metrics"))).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_certificate_of_another_authority_opens_nothing() {
    let (dir, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tomorrow = SystemTime::now() + Duration::from_secs(24 * 3600);
    let authority = Authority::init(dir.path()).unwrap();
    let own = authority.node("a", &["127.0.0.1".to_owned()], tomorrow).unwrap();
    let guarded = Guarded::with(Some(keys(&authority.certificate(), &own))).await;
    let foreign = Authority::init(foreign.path()).unwrap();
    let mallory = foreign.person("alice", Access::Operator, tomorrow).unwrap();
    let both = dir.path().join("both.pem");
    let pems =
        [authority.certificate(), foreign.certificate()].map(|path| std::fs::read_to_string(path).unwrap());
    std::fs::write(&both, pems.concat()).unwrap();
    let url = format!("https://{}/v1/nodes", guarded.api);
    assert!(client(&both, Some(&mallory)).get(&url).send().await.is_err());
    assert!(
        client(&foreign.certificate(), None).get(&url).send().await.is_err(),
        "and is not believed either"
    );
}

#[tokio::test]
async fn whoever_is_still_sending_a_body_hears_the_refusal_and_may_ask_again() {
    let guarded = Guarded::start().await;
    let mut stream = TcpStream::connect(guarded.api).await.unwrap();
    let mut seen = String::new();
    for time in 1..=3 {
        let head = "POST /v1/apply HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        while seen.matches("a token is needed").count() < time {
            let mut part = [0; 4096];
            let read = tokio::time::timeout(PATIENCE, stream.read(&mut part)).await.unwrap().unwrap();
            assert!(read > 0, "closed after {seen}");
            seen.push_str(&String::from_utf8_lossy(&part[..read]));
        }
        stream.write_all(b"{\"service\":[]}").await.unwrap();
    }
}

fn refusals(log: &Value) -> Vec<(String, String)> {
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let all = log["items"].as_array().unwrap().iter().map(|entry| (text(entry, "who"), text(entry, "what")));
    all.filter(|(_, what)| what.starts_with("refused: ")).collect()
}

#[tokio::test]
async fn refused_requests_are_in_the_audit_log_and_a_flood_of_them_is_a_few_entries() {
    let guarded = Guarded::start().await;
    let (alice, bob) =
        (guarded.token("alice", Access::Operator).await, guarded.token("bob", Access::Viewer).await);
    for _ in 0..300 {
        assert_eq!(guarded.get("/v1/nodes", "").await.0, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(guarded.ask(Method::DELETE, "/v1/tokens/alice", &bob, None).await.0, StatusCode::FORBIDDEN);
    eventually("both kinds are told", async || {
        let (_, log) = guarded.get("/v1/audit?limit=1000", &alice).await;
        let said = refusals(&log);
        let by = |who: &str, words: &str| said.iter().any(|(w, what)| w == who && what.contains(words));
        by("nobody", "401 GET /v1/nodes") && by("token:bob", "403 DELETE /v1/tokens/alice")
    })
    .await;
    let (_, log) = guarded.get("/v1/audit?limit=1000", &alice).await;
    let said = refusals(&log);
    let counted =
        |what: &String| what.strip_prefix("refused: ")?.split_once(" more with 401")?.0.parse::<u64>().ok();
    let told = said.iter().filter(|(_, what)| what.contains("401 GET")).count() as u64;
    let more: u64 = said.iter().filter_map(|(_, what)| counted(what)).sum();
    assert_eq!(told + more, 300, "none is left out: {said:?}");
    assert!(said.len() < 30, "{said:?}");
    assert!(log.to_string().contains("create token/alice"), "what was done is still there");
    assert!(!log.to_string().contains(&alice) && !log.to_string().contains(&bob));
}
