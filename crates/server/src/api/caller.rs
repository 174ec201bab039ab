//! Who asks, and from where.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequestParts, Request};
use axum::http::{Extensions, HeaderMap, Method, StatusCode, request::Parts};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use doors::Peer;
use model::Access;
use protocol::coordinator::{Asked, Request as Wish};

use super::{ApiFailure, forward::FORWARDED_FOR};

/// Bytes kept of what another daemon says about who asked it.
const FROM_BYTES_MAX: usize = 256;

/// Who asks, for the audit log, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub who: String,
    pub from: String,
    pub access: Access,
}

impl Caller {
    pub fn asks(self, request: Wish) -> Asked {
        Asked { who: self.who, from: self.from, request }
    }

    /// Whether it may see what services and feeds are told in confidence.
    pub fn sees_secrets(&self) -> bool {
        self.access == Access::Operator
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Caller, Infallible> {
        // Without tokens everybody is anonymous, and may do everything.
        Ok(parts.extensions.get::<Caller>().cloned().unwrap_or_else(|| Caller {
            who: "anonymous".to_owned(),
            from: from(&parts.headers, &parts.extensions),
            access: Access::Operator,
        }))
    }
}

/// Where a request comes from, as far as can be known.
pub(super) fn from(headers: &HeaderMap, extensions: &Extensions) -> String {
    let peer = extensions.get::<Peer>();
    let addr = peer.map(|peer| peer.addr);
    let addr = addr.or_else(|| extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0));
    let addr = addr.map_or_else(|| "unknown".to_owned(), |addr| addr.to_string());
    let node = peer.and_then(|peer| peer.who.as_ref()?.node());
    let told = headers.get(FORWARDED_FOR).and_then(|value| value.to_str().ok());
    let told = told.map(|told| told.chars().take(FROM_BYTES_MAX).collect::<String>());
    // Anybody can send that header. Where connections are encrypted only daemons are believed; where they
    // are not, whoever sent it is kept beside it.
    match (told, node) {
        (Some(told), Some(node)) => format!("{told} via {node}"),
        (Some(told), None) if !peer.is_some_and(|peer| peer.tls) => format!("{told} via {addr}"),
        (Some(_), None) | (None, _) => addr,
    }
}

/// A browser that shows a page of another site would carry out that page's wishes against a daemon on
/// this machine. It says so itself in a header that pages cannot set.
pub(super) async fn no_cross_site(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let site = request.headers().get("sec-fetch-site").map(|value| value.as_bytes());
    if !reads && matches!(site, Some(b"cross-site" | b"same-site")) {
        let message = "a page of another site may not change anything here";
        return ApiFailure::new(StatusCode::FORBIDDEN, "cross_site", message).into_response();
    }
    next.run(request).await
}
