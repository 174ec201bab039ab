//! Who asks, and from where.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequestParts, Request};
use axum::http::{HeaderMap, Method, StatusCode, request::Parts};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use protocol::coordinator::{Asked, Request as Wish};

use super::{ApiFailure, forward::FORWARDED_FOR};

/// Bytes kept of what another daemon says about who asked it.
const FROM_BYTES_MAX: usize = 256;

/// For the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub who: String,
    pub from: String,
}

impl Caller {
    pub fn asks(self, request: Wish) -> Asked {
        Asked { who: self.who, from: self.from, request }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Caller, Infallible> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0);
        Ok(identify(&parts.headers, peer))
    }
}

/// The one place that says who a request is by. There are no tokens yet: everybody is anonymous.
fn identify(headers: &HeaderMap, peer: Option<SocketAddr>) -> Caller {
    let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
    let told = headers.get(FORWARDED_FOR).and_then(|value| value.to_str().ok());
    let from = match told {
        // Anybody can send that header, so the peer that did is kept beside it.
        Some(told) => format!("{} via {peer}", told.chars().take(FROM_BYTES_MAX).collect::<String>()),
        None => peer,
    };
    Caller { who: "anonymous".to_owned(), from }
}

/// Where a request comes from, for the daemon it is forwarded to.
pub(super) fn peer_of(request: &Request) -> String {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0);
    identify(request.headers(), peer).from
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
