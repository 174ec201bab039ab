//! Traffic that counts what fails: plain HTTP/1.1 over fresh and over kept connections.
//!
//! Strict on purpose. Every request that does not get its whole response is a failure, also one on a
//! kept connection that the server closed while it was idle: a service that promises to serve idle
//! connections through its grace is held to it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Between two requests of one worker, so that the load leaves the machine to what is measured.
const PAUSE: Duration = Duration::from_millis(5);

/// A request that takes longer has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Errors kept as text; the rest are only counted.
const ERRORS_KEPT: usize = 20;

/// Head and body of one response. The services we load answer with a few lines.
const RESPONSE_MAX: usize = 1 << 20;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: load\r\n\r\n";
const REQUEST_AND_CLOSE: &[u8] = b"GET / HTTP/1.1\r\nHost: load\r\nConnection: close\r\n\r\n";

/// What came of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Requests that were made, failed ones included.
    pub requests: u64,
    pub failed_count: u64,
    /// The first few, in full.
    pub failed: Vec<String>,
    /// Connections that were opened.
    pub connections: u64,
    pub latency: Latency,
    /// Responses by the instance that named itself in the line `instance NAME`.
    pub by_instance: BTreeMap<String, u64>,
}

/// How long requests that succeeded took, their connect included where there was one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub p50: Duration,
    pub p90: Duration,
    pub p99: Duration,
    pub max: Duration,
}

/// Loads `addr` until `stop`, with workers that open a connection for each request and workers that
/// keep theirs. Requests under way at the stop are finished and counted.
pub async fn run_load(
    addr: SocketAddr,
    fresh_conns_workers: usize,
    keepalive_workers: usize,
    stop: CancellationToken,
) -> LoadReport {
    let mut workers = JoinSet::new();
    for _ in 0..fresh_conns_workers {
        workers.spawn(work(addr, Keep::No, stop.clone()));
    }
    for _ in 0..keepalive_workers {
        workers.spawn(work(addr, Keep::Yes, stop.clone()));
    }
    let mut total = Tally::default();
    while let Some(worker) = workers.join_next().await {
        match worker {
            Ok(tally) => total.add(tally),
            Err(error) => total.fail(format!("a worker of the load itself failed: {error}")),
        }
    }
    total.finish()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Yes,
    No,
}

#[derive(Default)]
struct Tally {
    report: LoadReport,
    micros: Vec<u32>,
}

impl Tally {
    fn fail(&mut self, error: String) {
        self.report.failed_count += 1;
        if self.report.failed.len() < ERRORS_KEPT {
            self.report.failed.push(error);
        }
    }

    fn add(&mut self, other: Tally) {
        self.report.requests += other.report.requests;
        self.report.connections += other.report.connections;
        self.report.failed_count += other.report.failed_count;
        let room = ERRORS_KEPT.saturating_sub(self.report.failed.len());
        self.report.failed.extend(other.report.failed.into_iter().take(room));
        for (instance, count) in other.report.by_instance {
            *self.report.by_instance.entry(instance).or_default() += count;
        }
        self.micros.extend(other.micros);
    }

    fn finish(mut self) -> LoadReport {
        self.micros.sort_unstable();
        let at = |share: f64| {
            let last = self.micros.len().saturating_sub(1);
            let micros = self.micros.get((last as f64 * share).round() as usize).copied().unwrap_or(0);
            Duration::from_micros(u64::from(micros))
        };
        self.report.latency = Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) };
        self.report
    }
}

async fn work(addr: SocketAddr, keep: Keep, stop: CancellationToken) -> Tally {
    let mut tally = Tally::default();
    let mut kept: Option<TcpStream> = None;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let reused = kept.is_some();
        let result =
            tokio::time::timeout(REQUEST_TIMEOUT, request(addr, keep, kept.take(), &mut tally)).await;
        tally.report.requests += 1;
        match result {
            Ok(Ok((response, connection))) => {
                tally.micros.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
                *tally.report.by_instance.entry(response.instance()).or_default() += 1;
                kept = connection;
            }
            Ok(Err(error)) => {
                let how = if reused { "on a kept connection" } else { "on a fresh connection" };
                tally.fail(format!("{how}, after {:?}: {error:#}", began.elapsed()));
            }
            Err(_) => tally.fail(format!("no response within {REQUEST_TIMEOUT:?}")),
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
    tally
}

/// One request; returns the connection if it may be used again.
async fn request(
    addr: SocketAddr,
    keep: Keep,
    kept: Option<TcpStream>,
    tally: &mut Tally,
) -> Result<(Response, Option<TcpStream>)> {
    let mut stream = match kept {
        Some(stream) => stream,
        None => {
            tally.report.connections += 1;
            let stream = TcpStream::connect(addr).await.with_context(|| format!("connecting to {addr}"))?;
            stream.set_nodelay(true)?;
            stream
        }
    };
    let request = if keep == Keep::Yes { REQUEST } else { REQUEST_AND_CLOSE };
    stream.write_all(request).await.context("sending the request")?;
    let response = read_response(&mut stream).await?;
    ensure!(response.status == 200, "status {}: {}", response.status, response.body.trim());
    let again = keep == Keep::Yes && !response.closes;
    Ok((response, again.then_some(stream)))
}

#[derive(Debug, PartialEq, Eq)]
struct Response {
    status: u16,
    closes: bool,
    body: String,
}

impl Response {
    fn instance(&self) -> String {
        self.body.lines().find_map(|line| line.strip_prefix("instance ")).unwrap_or("unknown").to_owned()
    }
}

async fn read_response(stream: &mut TcpStream) -> Result<Response> {
    let mut bytes = Vec::with_capacity(1024);
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if read_more(stream, &mut bytes).await.context("waiting for a response")? == 0 {
            bail!("closed after {} bytes of a response's head", bytes.len());
        }
    };
    let (status, closes, length) = parse_head(&bytes[..head])?;
    while bytes.len() < head + length {
        if read_more(stream, &mut bytes).await.context("within a response")? == 0 {
            bail!("closed after {} of {length} bytes of a response's body", bytes.len() - head);
        }
    }
    ensure!(bytes.len() == head + length, "{} bytes more than the response has", bytes.len() - head - length);
    Ok(Response { status, closes, body: String::from_utf8_lossy(&bytes[head..]).into_owned() })
}

async fn read_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<usize> {
    ensure!(bytes.len() < RESPONSE_MAX, "a response of more than {RESPONSE_MAX} bytes");
    Ok(stream.read_buf(bytes).await?)
}

/// Status, whether the server closes after it, and the length of the body.
fn parse_head(head: &[u8]) -> Result<(u16, bool, usize)> {
    let head = std::str::from_utf8(head).context("a head that is not text")?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let Some(status) = status else { bail!("not a status line: {first:?}") };
    let (mut closes, mut length) = (false, None);
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("connection") {
            closes = value.trim().eq_ignore_ascii_case("close");
        }
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse().context("Content-Length")?);
        }
    }
    Ok((status, closes, length.context("a response without Content-Length")?))
}
