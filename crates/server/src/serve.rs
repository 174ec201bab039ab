//! The API's listener: connections within their limits, each request with who sent it.

use std::net::SocketAddr;
use std::pin::pin;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use doors::limits::{
    API_CONNECTIONS_MAX, API_CONNECTIONS_PER_HOST_MAX, HEADER_BYTES_MAX, HEADER_MAX, HEADERS_MAX,
};
use doors::{Callers, Door, Io, Keys};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

/// Answers until `shutdown`, then until the requests that were begun are answered. With keys over TLS, with
/// the certificates of those who have one.
pub async fn serve(listener: TcpListener, keys: Option<Keys>, router: Router, shutdown: CancellationToken) {
    let door = Door {
        name: "api",
        keys,
        callers: Callers::Anyone,
        connections_max: API_CONNECTIONS_MAX,
        per_host_max: API_CONNECTIONS_PER_HOST_MAX,
    };
    let mut incoming = doors::open(listener, door, shutdown.clone());
    let open = TaskTracker::new();
    while let Some(io) = incoming.recv().await {
        open.spawn(answer(io, router.clone(), shutdown.clone()));
    }
    open.close();
    open.wait().await;
}

async fn answer(io: Io, router: Router, shutdown: CancellationToken) {
    let peer = io.peer().clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo::<SocketAddr>(peer.addr));
        request.extensions_mut().insert(peer.clone());
        router.clone().oneshot(request.map(Body::new))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_MAX)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEADER_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the API broke off");
    }
}
