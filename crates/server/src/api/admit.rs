//! Who is let in, and as what. Decided from a request's head alone: nothing of a body is read for a stranger.
//!
//! The coordinator knows the tokens. Another daemon turns away who shows nothing, passes on who shows
//! something, and for what it answers itself asks the coordinator whose token it is.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use doors::limits::{REFUSED_BODY_BYTES_MAX, REFUSED_BODY_MAX};
use doors::{Peer, Who, token};
use model::Access;

use super::ApiFailure;
use super::caller::{self, Caller};
use super::refusals::Refusal;
use super::state::ApiState;
use super::tokens::WhoamiView;

/// A daemon that is not the coordinator believes its word on a token this long, for what it answers itself.
const VERDICT_FRESH: Duration = Duration::from_secs(30);
/// And this long while there is no coordinator: figures are wanted most when something is wrong.
const VERDICT_KEPT: Duration = Duration::from_secs(600);
/// Tokens so remembered.
const VERDICTS_MAX: usize = 256;
const ASK_MAX: Duration = Duration::from_secs(3);

/// What the coordinator said of tokens, by their hashes.
#[derive(Default)]
pub(super) struct Verdicts(Mutex<BTreeMap<[u8; 32], (Instant, Grant)>>);

#[derive(Clone, Debug)]
struct Grant {
    who: String,
    access: Access,
}

pub(super) async fn admit(State(state): State<ApiState>, mut request: Request, next: Next) -> Response {
    if !state.asks_for_tokens() || is_open(request.uri().path()) {
        return next.run(request).await;
    }
    let head = Head::of(&request);
    let (method, path) = (head.method.to_string(), head.path.clone());
    let from = caller::from(request.headers(), request.extensions());
    let mut who = head.peer.as_ref().map_or_else(|| "nobody".to_owned(), Who::to_string);
    let grant = match grant(&state, head).await {
        // None: the coordinator will say, and write it down.
        Ok(None) => return next.run(request).await,
        Ok(Some(grant)) => {
            who.clone_from(&grant.who);
            let may = !needs_operator(request.method(), &path) || grant.access == Access::Operator;
            if may { Ok(grant) } else { Err(forbidden(&grant)) }
        }
        Err(refused) => Err(refused),
    };
    let response = match grant {
        Ok(grant) => {
            let from = from.clone();
            request.extensions_mut().insert(Caller { who: grant.who, from, access: grant.access });
            next.run(request).await
        }
        Err(refused) => {
            tokio::spawn(hear_out(request.into_body()));
            refused.into_response()
        }
    };
    if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        let refusal = Refusal { who, from, method, path, status: response.status() };
        state.refusals().note(&state, &refusal);
    }
    response
}

/// Reads on while the answer is on its way, and looks at nothing of it.
async fn hear_out(body: Body) {
    let read = to_bytes(body, REFUSED_BODY_BYTES_MAX);
    // One that is longer, or slower, is cut off.
    drop(tokio::time::timeout(REFUSED_BODY_MAX, read).await);
}

/// For load balancers, and for whoever wants to know how to ask.
pub(super) fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/openapi.json")
}

/// What every daemon answers for itself.
fn is_own(path: &str) -> bool {
    matches!(path, "/metrics" | "/api/v1/status")
}

/// A preview is asked for with a body, and changes nothing.
fn needs_operator(method: &Method, path: &str) -> bool {
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let plans = *method == Method::POST && (path.ends_with("/drain/plan") || path == "/v1/drains/plan");
    // Names of those who may come in are for those who let them in.
    !(reads || plans) || path == "/v1/tokens"
}

/// All that is looked at.
struct Head {
    method: Method,
    path: String,
    shown: Option<HeaderValue>,
    peer: Option<Who>,
}

impl Head {
    fn of(request: &Request) -> Head {
        Head {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            shown: request.headers().get(header::AUTHORIZATION).cloned(),
            peer: request.extensions().get::<Peer>().and_then(|peer| peer.who.clone()),
        }
    }
}

async fn grant(state: &ApiState, head: Head) -> Result<Option<Grant>, ApiFailure> {
    let path = head.path.as_str();
    match (&head.shown, head.peer) {
        (Some(shown), _) => {
            let token = token::of_header(shown.as_bytes()).ok_or_else(unknown_token)?;
            let hash = token::hash(token);
            match state.acting() {
                Some(_) => look_up(state, hash).await.map(Some),
                None if is_own(path) => ask(state, shown, hash).await.map(Some),
                None => Ok(None),
            }
        }
        (None, Some(Who::Person { name, access })) => match state.acting().is_some() || is_own(path) {
            true => Ok(Some(Grant { who: format!("cert:{name}"), access })),
            false => Err(misdirected(state)),
        },
        // A daemon asks after its own node for those who ask it.
        (None, Some(Who::Node(node)))
            if head.method == Method::GET && path.strip_prefix("/v1/nodes/") == Some(&node) =>
        {
            Ok(Some(Grant { who: format!("node:{node}"), access: Access::Viewer }))
        }
        (None, Some(Who::Node(_)) | None) => Err(no_token()),
    }
}

/// The coordinator's own memory: a token that is being revoked is refused at once.
async fn look_up(state: &ApiState, hash: [u8; 32]) -> Result<Grant, ApiFailure> {
    let found = state.office()?.peek(move |coordinator, now| {
        let token = coordinator.cluster().token_with(&hash)?;
        Some((token.name.clone(), token.access, token.is_good(now)))
    });
    match found.await? {
        Some((name, access, true)) => Ok(Grant { who: format!("token:{name}"), access }),
        Some((name, _, false)) => Err(unauthorized(format!("the token {name} has expired"))),
        None => Err(unknown_token()),
    }
}

/// Asks the coordinator whose token it is, unless that was just said.
async fn ask(state: &ApiState, shown: &HeaderValue, hash: [u8; 32]) -> Result<Grant, ApiFailure> {
    let before = state.verdicts().of(&hash);
    if let Some((since, grant)) = &before
        && since.elapsed() < VERDICT_FRESH
    {
        return Ok(grant.clone());
    }
    let nobody = |why: &str| match &before {
        Some((since, grant)) if since.elapsed() < VERDICT_KEPT => Ok(grant.clone()),
        Some(_) | None => Err(ApiFailure::no_coordinator(format!("nobody can say whose token it is: {why}"))),
    };
    let Some(api) = state.leader_api() else { return nobody("no coordinator is known") };
    let mut shown = shown.clone();
    shown.set_sensitive(true);
    let url = format!("{}/v1/whoami", state.base_url(&api));
    let asked = state.http().get(url).header(header::AUTHORIZATION, shown).timeout(ASK_MAX).send().await;
    let Ok(answer) = asked else { return nobody("the coordinator does not answer") };
    if answer.status() == StatusCode::UNAUTHORIZED {
        state.verdicts().forget(&hash);
        return Err(unknown_token());
    }
    let Ok(WhoamiView { who, access }) = answer.json::<WhoamiView>().await else {
        return nobody("the coordinator's answer is not understood");
    };
    let Some(access) = Access::parse(&access) else { return nobody("the coordinator is of another version") };
    let grant = Grant { who, access };
    state.verdicts().keep(hash, grant.clone());
    Ok(grant)
}

impl Verdicts {
    fn of(&self, hash: &[u8; 32]) -> Option<(Instant, Grant)> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(hash).cloned()
    }

    fn keep(&self, hash: [u8; 32], grant: Grant) {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.retain(|_, (since, _)| since.elapsed() < VERDICT_KEPT);
        if all.len() < VERDICTS_MAX {
            all.insert(hash, (Instant::now(), grant));
        }
    }

    fn forget(&self, hash: &[u8; 32]) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(hash);
    }
}

fn unauthorized(message: impl Into<String>) -> ApiFailure {
    ApiFailure::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}

fn no_token() -> ApiFailure {
    unauthorized("a token is needed; an operator makes one with `tidegate token create`")
}

fn unknown_token() -> ApiFailure {
    unauthorized("the token is not known: it was revoked, or is of another cluster")
}

fn forbidden(grant: &Grant) -> ApiFailure {
    let Grant { who, access } = grant;
    let message = format!("{who} is a {}: only an operator may do this", access.as_str());
    ApiFailure::new(StatusCode::FORBIDDEN, "forbidden", message)
}

/// A daemon could pass on that it saw a certificate, but then every node could say so of every person.
fn misdirected(state: &ApiState) -> ApiFailure {
    let Some(api) = state.leader_api() else {
        return ApiFailure::no_coordinator("no coordinator is known; an election may be under way");
    };
    let url = state.base_url(&api);
    let message = format!("certificates of people are believed by the coordinator alone: ask {url}");
    ApiFailure::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", message).with("coordinator", url)
}
