//! The services of `tidegate dev --demo`: small, and well behaved when they are told to stop.
//!
//! What good behaviour is: an instance that gets its signal goes on serving, also on connections that
//! are idle, asks each client to come back over another connection, and leaves when nobody is left. It
//! never breaks off a response.

use std::{
    fs,
    future::Future,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// How long after the last client has gone the service waits for another before it leaves.
const LINGER: Duration = Duration::from_millis(300);

/// From the signal to the end, whoever is connected. Below the grace a service has by default (10s),
/// so that the last responses end before the kill.
const GRACE_DEFAULT: Duration = Duration::from_millis(8000);

/// What responses under way get beyond that.
const LAST_RESPONSES: Duration = Duration::from_millis(1500);

/// How long a connection we have closed is still read from. Closed with unread input the kernel would
/// reset it, and the client could lose a response it has not read yet.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Logs that the demo's orders are spread over, each a span of the demo's feed.
const ORDER_LOGS: u32 = 4;

const HEAD_MAX: usize = 16 * 1024;

/// Serves `/`, `/ready` and `/slow?ms=N`, on loopback unless `BIND` says another address. Environment: `INSTANCE`,
/// `NODE`, `RELEASE`, `READY_AFTER_MS`, `GRACE_MS`.
pub async fn demo_web(port: u16) -> Result<()> {
    serve_as_told(port, Vec::new()).await
}

/// Counts its starts in a file in `VOLUME` and serves the count on `PORT_HTTP` (or `PORT`), with the
/// paths and the environment of [`demo_web`].
pub async fn demo_store() -> Result<()> {
    let port = std::env::var("PORT_HTTP").or_else(|_| std::env::var("PORT"));
    let port = port.context("PORT_HTTP is not set")?;
    let port = port.parse().with_context(|| format!("PORT_HTTP is {port:?}, not a port"))?;
    let volume = std::env::var("VOLUME").context("VOLUME is not set")?;
    let starts = count_start(Path::new(&volume)).with_context(|| format!("counting a start in {volume}"))?;
    say(&format!("start {starts} on {volume}"));
    serve_as_told(port, vec![("starts", starts.to_string())]).await
}

/// Counts to `STEPS` (10), one every `STEP_MS` (500), and ends.
pub async fn demo_batch() -> Result<()> {
    let steps = number("STEPS", 10)?;
    let pause = Duration::from_millis(number("STEP_MS", 500)?);
    for step in 1..=steps {
        say(&format!("step {step} of {steps}"));
        sleep(pause).await;
    }
    say("done");
    Ok(())
}

/// Says that it is there every `HEARTBEAT_MS` (5000) until SIGTERM.
pub async fn demo_system() -> Result<()> {
    let pause = Duration::from_millis(number("HEARTBEAT_MS", 5000)?);
    let mut terminated = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let node = std::env::var("NODE").unwrap_or_else(|_| "unknown".to_owned());
    for beat in 1u64.. {
        say(&format!("heartbeat {beat} on {node}"));
        tokio::select! {
            _ = terminated.recv() => break,
            () = sleep(pause) => {}
        }
    }
    say("stopping");
    Ok(())
}

/// Appends an order to one of the logs in `dir` after the other, every `ORDER_MS` (200), until SIGTERM. What a
/// feed follows.
pub async fn demo_orders(dir: &Path) -> Result<()> {
    let pause = Duration::from_millis(number("ORDER_MS", 200)?);
    let mut terminated = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let logs = order_logs(dir)?;
    say(&format!("orders go to {}", dir.display()));
    for (order, mut log) in (1u64..).zip(logs.iter().cycle()) {
        // One write a line: while an instance is replaced there are two that append.
        log.write_all(order_line(order).as_bytes())
            .with_context(|| format!("writing to {}", dir.display()))?;
        tokio::select! {
            _ = terminated.recv() => break,
            () = sleep(pause) => {}
        }
    }
    say("stopping");
    Ok(())
}

/// Opens them, and makes those that are missing.
pub fn order_logs(dir: &Path) -> Result<Vec<fs::File>> {
    (0..ORDER_LOGS).map(|log| order_log(dir, log)).collect()
}

fn order_log(dir: &Path, log: u32) -> Result<fs::File> {
    let path = dir.join(format!("orders-{log}.log"));
    let file = fs::OpenOptions::new().create(true).append(true).open(&path);
    file.with_context(|| format!("opening {}", path.display()))
}

fn order_line(order: u64) -> String {
    const ITEMS: [&str; 3] = ["tea", "coffee", "cake"];
    let item = ITEMS[(order % ITEMS.len() as u64) as usize];
    format!("{{\"order\":{order},\"item\":\"{item}\",\"count\":{}}}\n", 1 + order % 5)
}

/// Like `println!`, but a log that is gone is no reason to fall over.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn number(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name} is {text:?}, not a number")),
        Err(_) => Ok(default),
    }
}

/// Reads, adds one, and has it on disk before it returns: after a crash the count is one of the two.
fn count_start(volume: &Path) -> Result<u64> {
    let (file, next) = (volume.join("starts"), volume.join("starts.next"));
    let before: u64 = match fs::read_to_string(&file) {
        Ok(text) => text.trim().parse().with_context(|| format!("{} holds {text:?}", file.display()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
    };
    let mut written = fs::File::create(&next)?;
    writeln!(written, "{}", before + 1)?;
    written.sync_all()?;
    fs::rename(&next, &file)?;
    fs::File::open(volume)?.sync_all()?;
    Ok(before + 1)
}

async fn serve_as_told(port: u16, more: Vec<(&str, String)>) -> Result<()> {
    let host = match std::env::var("BIND") {
        Ok(text) => text.parse().with_context(|| format!("BIND is {text:?}, not an address"))?,
        Err(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
    };
    let listener =
        TcpListener::bind((host, port)).await.with_context(|| format!("listening on port {port}"))?;
    let mut terminated = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| "unknown".to_owned());
    let mut body = String::new();
    for (key, value) in [("instance", "INSTANCE"), ("node", "NODE"), ("release", "RELEASE")] {
        body.push_str(&format!("{key} {}\n", variable(value)));
    }
    for (key, value) in more {
        body.push_str(&format!("{key} {value}\n"));
    }
    let site = Site {
        body,
        ready_at: Instant::now() + Duration::from_millis(number("READY_AFTER_MS", 0)?),
        stopping: CancellationToken::new(),
        closing: CancellationToken::new(),
    };
    let grace = Duration::from_millis(number("GRACE_MS", GRACE_DEFAULT.as_millis() as u64)?);
    say(&format!("serving on port {port}"));
    serve(listener, site, grace, async move {
        terminated.recv().await;
        say("told to stop");
    })
    .await;
    say("stopped");
    Ok(())
}

/// What is served, and how far the service is on its way out.
struct Site {
    body: String,
    ready_at: Instant,
    /// It has its signal: clients are asked to reconnect.
    stopping: CancellationToken,
    /// Its time is over: idle connections are closed.
    closing: CancellationToken,
}

/// Serves until `told` is ready and, after that, nobody is connected or the grace is over.
async fn serve(listener: TcpListener, site: Site, grace: Duration, told: impl Future<Output = ()>) {
    let site = Arc::new(site);
    let mut told = std::pin::pin!(told);
    let mut connections: JoinSet<Served> = JoinSet::new();
    let mut end: Option<Instant> = None;
    let mut quiet_since = Instant::now();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(converse(stream, site.clone()))),
                Err(error) => {
                    say(&format!("cannot accept: {error}"));
                    sleep(Duration::from_millis(20)).await;
                }
            },
            Some(ended) = connections.join_next() => {
                // Checks go on to the end and must not keep it from coming.
                if !matches!(ended, Ok(Served::OnlyChecks)) {
                    quiet_since = Instant::now();
                }
            }
            () = &mut told, if end.is_none() => {
                site.stopping.cancel();
                quiet_since = Instant::now();
                end = Some(quiet_since + grace);
            }
            () = sleep_until(quiet_since + LINGER), if end.is_some() && connections.is_empty() => {
                match next_in_queue(&listener).await {
                    Some(stream) => drop(connections.spawn(converse(stream, site.clone()))),
                    None => return,
                }
            }
            () = sleep_until(end.unwrap_or(quiet_since)), if end.is_some() => break,
        }
    }
    drop(listener);
    site.closing.cancel();
    // Whatever is not done by then is not going to be.
    let _ = timeout(LAST_RESPONSES, async { while connections.join_next().await.is_some() {} }).await;
}

/// Who has connected and was not accepted yet: closing the port would reset them.
async fn next_in_queue(listener: &TcpListener) -> Option<TcpStream> {
    tokio::select! {
        biased;
        accepted = listener.accept() => accepted.ok().map(|(stream, _)| stream),
        () = std::future::ready(()) => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    OnlyChecks,
    Requests,
}

async fn converse(mut stream: TcpStream, site: Arc<Site>) -> Served {
    let mut served = Served::OnlyChecks;
    let mut input = Vec::new();
    // Small responses must not wait for one another's acknowledgement; without it they only come later.
    let _ = stream.set_nodelay(true);
    loop {
        let request = tokio::select! {
            biased;
            request = read_request(&mut stream, &mut input) => request,
            () = site.closing.cancelled() => return served,
        };
        let (request, bad) = match request {
            Ok(Some(request)) => (request, false),
            Ok(None) => return served,
            Err(_) => (Request::default(), true),
        };
        if request.path != "/ready" {
            served = Served::Requests;
        }
        let (status, body) = match bad {
            true => ("400 Bad Request", "not a request that is understood here\n".to_owned()),
            false => answer(&request, &site).await,
        };
        // Asked here and not before: a signal during a slow answer counts for it.
        let close = bad || request.close || site.stopping.is_cancelled();
        if respond(&mut stream, status, &body, request.head_only, close).await.is_err() {
            return served;
        }
        if close {
            let ended = async { while stream.read(&mut [0; 1024]).await.is_ok_and(|bytes| bytes > 0) {} };
            let _ = timeout(CLOSE_WAIT, ended).await;
            return served;
        }
    }
}

async fn answer(request: &Request, site: &Site) -> (&'static str, String) {
    const OK: &str = "200 OK";
    const UNAVAILABLE: &str = "503 Service Unavailable";
    match request.path.as_str() {
        "/" => (OK, site.body.clone()),
        "/ready" if site.stopping.is_cancelled() => (UNAVAILABLE, "stopping\n".to_owned()),
        "/ready" if Instant::now() < site.ready_at => (UNAVAILABLE, "starting\n".to_owned()),
        "/ready" => (OK, "ready\n".to_owned()),
        "/slow" => {
            let wanted = request.query.split('&').find_map(|pair| pair.strip_prefix("ms="));
            match wanted.unwrap_or("1000").parse() {
                Ok(millis) => {
                    sleep(Duration::from_millis(millis)).await;
                    (OK, site.body.clone())
                }
                Err(_) => ("400 Bad Request", "ms is not a number\n".to_owned()),
            }
        }
        _ => ("404 Not Found", "there is /, /ready and /slow?ms=N\n".to_owned()),
    }
}

async fn respond(
    stream: &mut TcpStream,
    status: &str,
    body: &str,
    head_only: bool,
    close: bool,
) -> io::Result<()> {
    let connection = if close { "close" } else { "keep-alive" };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n");
    let body = if head_only { "" } else { body };
    stream.write_all(format!("{head}Connection: {connection}\r\n\r\n{body}").as_bytes()).await?;
    if close { stream.shutdown().await } else { Ok(()) }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    path: String,
    query: String,
    head_only: bool,
    close: bool,
}

/// The next request; `None` when the client has no more. What came after it stays in `input`.
async fn read_request(stream: &mut TcpStream, input: &mut Vec<u8>) -> Result<Option<Request>> {
    let head = loop {
        if let Some(at) = input.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        anyhow::ensure!(input.len() < HEAD_MAX, "a head of more than {HEAD_MAX} bytes");
        match stream.read_buf(input).await {
            // A client that goes within a request is as gone as one that goes before.
            Ok(0) | Err(_) => return Ok(None),
            Ok(_) => {}
        }
    };
    let (request, mut unread) = parse_head(std::str::from_utf8(&input[..head])?)?;
    input.drain(..head);
    while unread > 0 {
        let taken = unread.min(input.len());
        input.drain(..taken);
        unread -= taken;
        if unread > 0 && stream.read_buf(input).await.unwrap_or(0) == 0 {
            return Ok(None);
        }
    }
    Ok(Some(request))
}

/// The request and the length of its body.
fn parse_head(head: &str) -> Result<(Request, usize)> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let head_only = match method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => anyhow::bail!("method {method:?}"),
    };
    let target = target.context("no target")?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        path: path.to_owned(),
        query: query.to_owned(),
        head_only,
        close: version != Some("HTTP/1.1"),
    };
    let mut length = 0;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        if name.eq_ignore_ascii_case("connection") {
            request.close = value.eq_ignore_ascii_case("close");
        }
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().context("Content-Length")?;
        }
        anyhow::ensure!(!name.eq_ignore_ascii_case("transfer-encoding"), "a body in chunks");
    }
    Ok((request, length))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use edge::load::run_load;
    use tokio::task::JoinHandle;

    use super::*;

    /// Far beyond what anything here takes: only a hang reaches it.
    const LONG: Duration = Duration::from_secs(60);

    struct Demo {
        address: SocketAddr,
        told: CancellationToken,
        task: JoinHandle<()>,
    }

    async fn start(ready_after: Duration, grace: Duration) -> Demo {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let told = CancellationToken::new();
        let site = Site {
            body: "instance web-1\nnode node-1\nrelease 1\n".to_owned(),
            ready_at: Instant::now() + ready_after,
            stopping: CancellationToken::new(),
            closing: CancellationToken::new(),
        };
        let task = tokio::spawn(serve(listener, site, grace, told.clone().cancelled_owned()));
        Demo { address, told, task }
    }

    impl Demo {
        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }

        async fn ended(self) {
            timeout(LONG, self.task).await.expect("it leaves").unwrap();
        }
    }

    /// Asks and reads one whole response.
    async fn ask(stream: &mut TcpStream, path: &str) -> String {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        while !is_whole(&String::from_utf8_lossy(&bytes)) {
            let read = timeout(LONG, stream.read_buf(&mut bytes)).await.expect("an answer").unwrap();
            assert!(read > 0, "closed within a response: {:?}", String::from_utf8_lossy(&bytes));
        }
        String::from_utf8(bytes).unwrap()
    }

    fn is_whole(response: &str) -> bool {
        let Some((head, body)) = response.split_once("\r\n\r\n") else { return false };
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        body.len() == length.parse::<usize>().unwrap()
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        timeout(LONG, stream.read(&mut [0; 16])).await.expect("an end").is_ok_and(|bytes| bytes == 0)
    }

    #[tokio::test]
    async fn it_says_who_it_is_and_whether_it_is_ready() {
        let demo = start(Duration::ZERO, LONG).await;
        let mut stream = demo.connect().await;
        let page = ask(&mut stream, "/").await;
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("instance web-1\nnode node-1\n"), "{page}");
        assert!(page.contains("Connection: keep-alive"), "{page}");
        assert!(ask(&mut stream, "/ready").await.starts_with("HTTP/1.1 200"));
        assert!(ask(&mut stream, "/slow?ms=1").await.starts_with("HTTP/1.1 200"));
        assert!(ask(&mut stream, "/slow?ms=x").await.starts_with("HTTP/1.1 400"));
        assert!(ask(&mut stream, "/else").await.starts_with("HTTP/1.1 404"));
        let late = start(LONG, LONG).await;
        assert!(ask(&mut late.connect().await, "/ready").await.starts_with("HTTP/1.1 503"));
    }

    #[tokio::test]
    async fn told_to_stop_it_serves_idle_and_fresh_connections_once_more_and_leaves_with_the_last() {
        let demo = start(Duration::ZERO, LONG).await;
        let mut idle = demo.connect().await;
        ask(&mut idle, "/").await;
        let mut slow = demo.connect().await;
        slow.write_all(b"GET /slow?ms=50 HTTP/1.1\r\n\r\n").await.unwrap();
        demo.told.cancel();
        let mut check = demo.connect().await;
        let page = loop {
            // The signal is asynchronous: until it has arrived the answer is still the old one.
            let page = ask(&mut check, "/ready").await;
            if page.contains("503") {
                break page;
            }
        };
        assert!(page.contains("Connection: close") && page.contains("stopping"), "{page}");
        assert!(is_closed(&mut check).await);
        let mut fresh = demo.connect().await;
        for stream in [&mut idle, &mut fresh] {
            let page = ask(stream, "/").await;
            assert!(page.starts_with("HTTP/1.1 200") && page.contains("Connection: close"), "{page}");
            assert!(is_closed(stream).await);
        }
        let mut rest = String::new();
        timeout(LONG, slow.read_to_string(&mut rest)).await.expect("the slow answer").unwrap();
        assert!(rest.contains("Connection: close") && rest.ends_with("release 1\n"), "{rest}");
        drop((idle, fresh, slow, check));
        demo.ended().await;
    }

    #[tokio::test]
    async fn who_stays_idle_does_not_keep_it_beyond_its_grace() {
        let demo = start(Duration::ZERO, Duration::from_millis(50)).await;
        let mut idle = demo.connect().await;
        ask(&mut idle, "/").await;
        demo.told.cancel();
        assert!(is_closed(&mut idle).await);
        demo.ended().await;
    }

    #[tokio::test]
    async fn the_load_sees_no_failure_while_the_service_asks_to_reconnect() {
        let demo = start(Duration::ZERO, LONG).await;
        // As long as this one is there, so is the service.
        let idle = demo.connect().await;
        let stop = CancellationToken::new();
        let load = tokio::spawn(run_load(demo.address, 2, 2, stop.clone()));
        demo.told.cancel();
        let mut probe = demo.connect().await;
        for _ in 0..20 {
            ask(&mut probe, "/").await;
            probe = demo.connect().await;
        }
        stop.cancel();
        let report = timeout(LONG, load).await.unwrap().unwrap();
        drop((idle, probe));
        assert_eq!((report.failed, report.by_instance.len()), (vec![], 1));
        demo.ended().await;
    }

    #[test]
    fn every_order_is_a_line_of_json_in_a_log_that_is_added_to() {
        let dir = tempfile::tempdir().unwrap();
        for order in 0..6 {
            order_log(dir.path(), 2).unwrap().write_all(order_line(order).as_bytes()).unwrap();
        }
        let text = fs::read_to_string(dir.path().join("orders-2.log")).unwrap();
        let orders = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        assert_eq!(
            orders.map(|order| order["order"].as_u64().unwrap()).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5]
        );
    }

    #[test]
    fn starts_are_counted_on_disk() {
        let volume = tempfile::tempdir().unwrap();
        assert_eq!(count_start(volume.path()).unwrap(), 1);
        assert_eq!(count_start(volume.path()).unwrap(), 2);
        fs::write(volume.path().join("starts"), "rubbish").unwrap();
        assert!(count_start(volume.path()).is_err(), "a file that is not a count is not a fresh start");
    }
}
