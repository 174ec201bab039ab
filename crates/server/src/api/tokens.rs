//! `/v1/tokens`, `/v1/whoami` and `/v1/audit`: who may ask, and who asked for what.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use doors::token;
use model::{Access, AuditEntry, Millis, Token, units::parse_duration};
use protocol::coordinator::Request;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::caller::Caller;
use super::error::{Answer, ApiFailure};
use super::extract::{InBody, InPath, InQuery};
use super::state::ApiState;
use crate::view::{ErrorView, List, rfc3339};

/// Entries of the audit log in one answer, if nobody says how many.
const AUDIT_SHOWN: usize = 100;

/// A token, without what it is: that is nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    pub name: String,
    /// `viewer` or `operator`.
    pub access: String,
    pub created_at: String,
    pub created_by: String,
    pub expires_at: Option<String>,
    pub expired: bool,
}

/// The one answer that holds a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewTokenView {
    pub name: String,
    pub access: String,
    /// Shown this once.
    pub token: String,
    pub expires_at: Option<String>,
}

/// Who the caller is taken for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoamiView {
    /// `token:alice`, `cert:alice`, `anonymous`.
    pub who: String,
    pub access: String,
}

/// Who did what, when, from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    pub number: u64,
    pub at: String,
    pub who: String,
    pub from: String,
    pub what: String,
}

impl AuditView {
    fn of(entry: &AuditEntry) -> AuditView {
        let AuditEntry { number, at, who, from, what } = entry.clone();
        AuditView { number, at: rfc3339(at), who, from, what }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBody {
    name: String,
    /// `viewer` or `operator`.
    access: String,
    /// Like `720h`; left out, it is good until it is revoked.
    expires_in: Option<String>,
}

/// All tokens, by name. For operators.
#[utoipa::path(get, path = "/v1/tokens", tag = "access", operation_id = "list_tokens",
    responses((status = 200, body = List<TokenView>), (status = "default", body = ErrorView)))]
pub(super) async fn list(State(state): State<ApiState>) -> Answer<Json<List<TokenView>>> {
    let seen = state.office()?.read(|coordinator, now| {
        let show = |token: &Token| TokenView {
            name: token.name.clone(),
            access: token.access.as_str().to_owned(),
            created_at: rfc3339(token.created_at),
            created_by: token.created_by.clone(),
            expires_at: token.expires_at.map(rfc3339),
            expired: !token.is_good(now),
        };
        coordinator.cluster().tokens().map(show).collect()
    });
    Ok(Json(List { items: seen.await? }))
}

/// Makes a token, and shows it this once.
#[utoipa::path(post, path = "/v1/tokens", tag = "access", operation_id = "create_token",
    request_body = TokenBody,
    responses((status = 201, body = NewTokenView), (status = 400, body = ErrorView), (status = 409, body = ErrorView)))]
pub(super) async fn create(
    State(state): State<ApiState>,
    caller: Caller,
    InBody(body): InBody<TokenBody>,
) -> Answer<(StatusCode, Json<NewTokenView>)> {
    let TokenBody { name, access, expires_in } = body;
    let access = Access::parse(&access).ok_or_else(|| {
        let message = format!("access: {access:?} is neither \"viewer\" nor \"operator\"");
        ApiFailure::invalid(message).with("key", "access")
    })?;
    let lives = expires_in
        .as_deref()
        .map(parse_duration)
        .transpose()
        .map_err(|error| ApiFailure::invalid(format!("expires_in: {error}")).with("key", "expires_in"))?;
    let token = token::generate().map_err(|error| {
        let message = format!("internal server error: no token was made: {error}");
        ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })?;
    let office = state.office()?;
    let expires_at = match lives {
        Some(lives) => Some(office.peek(move |_, now| now + lives.min(Millis(u64::MAX / 4))).await?),
        None => None,
    };
    let hash = token::hash(&token);
    let request = Request::CreateToken { name: name.clone(), access, hash, expires_at };
    office.ask(caller.asks(request)).await??;
    let access = access.as_str().to_owned();
    let view = NewTokenView { name, access, token, expires_at: expires_at.map(rfc3339) };
    Ok((StatusCode::CREATED, Json(view)))
}

/// Revokes a token: it is refused from the next request on.
#[utoipa::path(delete, path = "/v1/tokens/{name}", tag = "access", operation_id = "revoke_token",
    params(("name" = String, Path)),
    responses((status = 204, description = "it is good for nothing any more"), (status = 404, body = ErrorView)))]
pub(super) async fn revoke(
    State(state): State<ApiState>,
    InPath(name): InPath<String>,
    caller: Caller,
) -> Answer<StatusCode> {
    state.office()?.ask(caller.asks(Request::RevokeToken { name })).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Who the caller is taken for, and what they may do.
#[utoipa::path(get, path = "/v1/whoami", tag = "access", operation_id = "whoami",
    responses((status = 200, body = WhoamiView), (status = "default", body = ErrorView)))]
pub(super) async fn whoami(caller: Caller) -> Json<WhoamiView> {
    Json(WhoamiView { who: caller.who, access: caller.access.as_str().to_owned() })
}

/// How much of the audit log.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// The last so many entries; 100 if left out.
    limit: Option<usize>,
}

/// What was asked for and done, the newest last. The last thousand entries are kept, and beside them the last 200 of
/// requests that were refused with 401 or 403: per minute the first of each host as it was, the others counted.
#[utoipa::path(get, path = "/v1/audit", tag = "access", operation_id = "list_audit", params(AuditQuery),
    responses((status = 200, body = List<AuditView>), (status = 400, body = ErrorView)))]
pub(super) async fn audit(
    State(state): State<ApiState>,
    InQuery(query): InQuery<AuditQuery>,
) -> Answer<Json<List<AuditView>>> {
    let limit = query.limit.unwrap_or(AUDIT_SHOWN);
    state.refusals().settle(&state).await;
    let seen = state.office()?.read(move |coordinator, _| {
        let mut last: Vec<_> = coordinator.cluster().audit().rev().take(limit).map(AuditView::of).collect();
        last.reverse();
        last
    });
    Ok(Json(List { items: seen.await? }))
}
