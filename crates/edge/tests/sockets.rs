//! The edge over real sockets on loopback.
#![allow(clippy::unwrap_used)] // helpers of tests are not seen as tests by the lint

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};

use edge::{EdgeHandle, Stats, load::run_load};
use model::{InstanceId, Millis, ServiceName, Term};
use protocol::message::{Backend, BackendSet, Duty, EdgeReport, SetRevision, Sets, Withdrawal};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Far beyond what anything here takes: only a hang reaches it.
const LONG: Duration = Duration::from_secs(60);

/// Short: what is tested is the order of things.
const WITHDRAW_DELAY: Millis = Millis(200);

/// Below the range from which the kernel gives out ports for outgoing connections, so that nobody
/// takes one between the look and the use.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset =
            NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add((std::process::id() as u16).wrapping_mul(61));
        let port = 12_000 + offset % 18_000;
        if std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Answers each line with its number and the line, and the end of what it reads with `bye`.
struct Server {
    id: u64,
    port: u16,
    open: Arc<AtomicUsize>,
    accept: JoinHandle<()>,
}

impl Server {
    async fn start(id: u64) -> Server {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(AtomicUsize::new(0));
        let counted = open.clone();
        let accept = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let counted = counted.clone();
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    // A client that breaks off is what some tests do.
                    let _ = answer(id, stream).await;
                    counted.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Server { id, port, open, accept }
    }

    fn backend(&self) -> Backend {
        backend(self.id, self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

async fn answer(id: u64, mut stream: TcpStream) -> std::io::Result<()> {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        write.write_all(format!("{id}:{line}\n").as_bytes()).await?;
    }
    write.write_all(format!("{id}:bye\n").as_bytes()).await
}

fn backend(id: u64, port: u16) -> Backend {
    Backend { instance: InstanceId(id), address: format!("127.0.0.1:{port}") }
}

struct Client(BufReader<TcpStream>);

impl Client {
    async fn connect(port: u16) -> Client {
        let connect = async {
            loop {
                match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                    Ok(stream) => return Client(BufReader::new(stream)),
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        timeout(LONG, connect).await.expect("the edge listens")
    }

    async fn say(&mut self, line: &str) -> String {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).await.unwrap();
        self.hear().await
    }

    /// The next line; empty at the end of the stream or when it was reset.
    async fn hear(&mut self) -> String {
        let mut line = String::new();
        // A reset ends a connection as an end of file does.
        let _ = timeout(LONG, self.0.read_line(&mut line)).await.expect("an answer or an end");
        line.trim_end().to_owned()
    }
}

/// An edge with one service.
struct Bench {
    edge: EdgeHandle,
    port: u16,
    grace: Millis,
    number: u64,
}

impl Bench {
    fn start() -> Bench {
        let edge = EdgeHandle::start(Ipv4Addr::LOCALHOST.into(), WITHDRAW_DELAY);
        Bench { edge, port: free_port(), grace: Millis::secs(600), number: 0 }
    }

    async fn serving(servers: &[&Server]) -> Bench {
        let mut bench = Bench::start();
        bench.apply(servers.iter().map(|server| server.backend()).collect()).await;
        bench
    }

    /// Applies a set and waits until it is confirmed.
    async fn apply(&mut self, backends: Vec<Backend>) {
        self.number += 1;
        let revision = SetRevision { term: Term(1), number: self.number };
        let service = ServiceName::new("web");
        let set = BackendSet { service, listen: Some(self.port), grace: self.grace, backends };
        self.edge.apply(Sets { revision, since: revision, full: true, sets: vec![set] });
        self.until_report(|report| report.serves == Some(revision)).await;
    }

    async fn until_report(&self, wanted: impl FnMut(&EdgeReport) -> bool) {
        let mut watch = self.edge.watch();
        timeout(LONG, watch.wait_for(wanted)).await.expect("the report comes").unwrap();
    }

    async fn until_stats(&self, wanted: impl Fn(&Stats) -> bool) -> Stats {
        let found = async {
            loop {
                let stats = self.edge.stats().await;
                if wanted(&stats) {
                    return stats;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, found).await.expect("the figures come")
    }
}

#[tokio::test]
async fn bytes_pass_both_ways() {
    let server = Server::start(1).await;
    let bench = Bench::serving(&[&server]).await;
    let mut client = Client::connect(bench.port).await;
    assert_eq!(client.say("hello").await, "1:hello");
    assert_eq!(client.say("again").await, "1:again");
    let stats = bench.edge.stats().await;
    assert_eq!((stats.open, stats.accepted, stats.refused), (1, 1, 0));
    drop(client);
    let stats = bench.until_stats(|stats| stats.open == 0).await;
    assert_eq!(stats.services[0].copying, 0);
}

#[tokio::test]
async fn much_passes_both_ways_at_once_whatever_the_pace() {
    const SIZE: usize = 8 << 20;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut bench = Bench::start();
    bench.apply(vec![backend(1, address.port())]).await;
    let stream = Client::connect(bench.port).await.0.into_inner();
    let (mut read, mut write) = stream.into_split();
    let sent: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    let expected = sent.clone();
    let sender = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    timeout(LONG, read.read_to_end(&mut received)).await.unwrap().unwrap();
    sender.await.unwrap();
    assert!(received == expected, "{} of {SIZE} bytes came back", received.len());
}

#[tokio::test]
async fn a_side_that_has_said_all_still_hears_the_rest() {
    let server = Server::start(1).await;
    let bench = Bench::serving(&[&server]).await;
    let mut client = Client::connect(bench.port).await;
    client.0.get_mut().write_all(b"last words\n").await.unwrap();
    client.0.get_mut().shutdown().await.unwrap();
    assert_eq!(client.hear().await, "1:last words");
    assert_eq!(client.hear().await, "1:bye");
    assert_eq!(client.hear().await, "");
    bench.until_stats(|stats| stats.open == 0).await;
}

#[tokio::test]
async fn a_server_that_answers_early_and_closes_is_heard_and_then_all_is_closed() {
    // Closed with unread input, the kernel resets at once; without, when the input comes.
    for unread in [true, false] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"too much\n").await.unwrap();
            if unread {
                stream.peek(&mut [0]).await.unwrap();
            }
        });
        let mut bench = Bench::start();
        bench.apply(vec![backend(1, address.port())]).await;
        let mut client = Client::connect(bench.port).await;
        if !unread {
            bench.until_stats(|stats| stats.services.iter().any(|s| s.copying == 1)).await;
        }
        client.0.get_mut().write_all(&[b'x'; 4096]).await.unwrap();
        assert_eq!(client.hear().await, "too much");
        assert_eq!(client.hear().await, "");
        bench.until_stats(|stats| stats.open == 0).await;
    }
}

#[tokio::test]
async fn a_backend_that_refuses_is_passed_over_within_the_connection() {
    let server = Server::start(2).await;
    let mut bench = Bench::start();
    bench.apply(vec![backend(1, free_port()), server.backend()]).await;
    let mut client = Client::connect(bench.port).await;
    assert_eq!(client.say("hello").await, "2:hello");
    let counters = bench.edge.stats().await.services[0].counters;
    assert_eq!((counters.passed_over, counters.copied, counters.refused), (1, 1, 0));
}

#[tokio::test]
async fn a_connection_that_every_backend_refuses_is_closed() {
    let mut bench = Bench::start();
    bench.apply(vec![backend(1, free_port()), backend(2, free_port())]).await;
    let mut client = Client::connect(bench.port).await;
    assert_eq!(client.hear().await, "");
    let stats = bench.until_stats(|stats| stats.open == 0).await;
    assert_eq!((stats.refused, stats.services[0].counters.passed_over), (1, 2));
}

#[tokio::test]
async fn a_connection_waits_for_the_first_backend() {
    let server = Server::start(7).await;
    let mut bench = Bench::start();
    bench.apply(vec![]).await;
    let mut client = Client::connect(bench.port).await;
    bench.until_stats(|stats| stats.services[0].held == 1).await;
    bench.apply(vec![server.backend()]).await;
    assert_eq!(client.say("hello").await, "7:hello");
}

#[tokio::test]
async fn what_is_connected_to_an_instance_that_leaves_goes_on_and_what_is_new_goes_elsewhere() {
    let (old, new) = (Server::start(1).await, Server::start(2).await);
    let mut bench = Bench::serving(&[&old]).await;
    let mut kept = Client::connect(bench.port).await;
    assert_eq!(kept.say("before").await, "1:before");
    bench.apply(vec![new.backend()]).await;
    for _ in 0..20 {
        assert_eq!(Client::connect(bench.port).await.say("new").await, "2:new");
    }
    assert_eq!(kept.say("after").await, "1:after");
    assert_eq!(bench.edge.stats().await.services[0].leaving, 1);
    drop(kept);
    bench.until_stats(|stats| stats.services[0].leaving == 0).await;
}

#[tokio::test]
async fn the_end_of_its_grace_cuts_what_is_left() {
    let (old, new) = (Server::start(1).await, Server::start(2).await);
    let mut bench = Bench::serving(&[&old, &new]).await;
    let mut clients = [Client::connect(bench.port).await, Client::connect(bench.port).await];
    let mut answers = Vec::new();
    for client in &mut clients {
        answers.push(client.say("hello").await);
    }
    let [first, second] = clients;
    let (mut doomed, mut safe) = if answers[0].starts_with('1') { (first, second) } else { (second, first) };
    bench.grace = Millis(50);
    bench.apply(vec![new.backend()]).await;
    assert_eq!(doomed.hear().await, "", "cut");
    assert_eq!(safe.say("still").await, "2:still");
    let stats = bench.until_stats(|stats| stats.open == 1).await;
    assert_eq!(stats.services[0].counters.cut, 1);
    timeout(LONG, async {
        while old.open.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the backend sees its end too");
}

#[tokio::test]
async fn a_port_in_use_is_reported_and_opened_when_it_is_free() {
    let server = Server::start(1).await;
    let mut bench = Bench::start();
    let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, bench.port)).unwrap();
    bench.apply(vec![server.backend()]).await;
    let port = bench.port;
    let report = bench.edge.report();
    assert_eq!(report.failed.len(), 1);
    assert!(report.failed[0].0 == port && report.failed[0].1.contains("in use"), "{report:?}");
    drop(taken);
    bench.until_report(|report| report.failed.is_empty()).await;
    assert_eq!(Client::connect(port).await.say("hello").await, "1:hello");
}

#[tokio::test]
async fn a_service_that_leaves_and_returns_has_its_port_again() {
    let server = Server::start(1).await;
    let mut bench = Bench::serving(&[&server]).await;
    for _ in 0..10 {
        bench.number += 1;
        let revision = SetRevision { term: Term(1), number: bench.number };
        bench.edge.apply(Sets { revision, since: revision, full: true, sets: vec![] });
        bench.apply(vec![server.backend()]).await;
        assert_eq!(bench.edge.report().failed, []);
        assert_eq!(Client::connect(bench.port).await.say("hello").await, "1:hello");
    }
}

#[tokio::test]
async fn a_shutdown_lets_connections_finish_and_frees_the_port() {
    let server = Server::start(1).await;
    let bench = Bench::serving(&[&server]).await;
    let mut client = Client::connect(bench.port).await;
    assert_eq!(client.say("hello").await, "1:hello");
    let edge = bench.edge.clone();
    let shutdown = tokio::spawn(async move { edge.shutdown(LONG).await });
    timeout(LONG, async {
        while std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, bench.port)).is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the port is freed while the connection goes on");
    assert_eq!(client.say("still").await, "1:still");
    drop(client);
    timeout(LONG, shutdown).await.expect("it ends with its last connection").unwrap();
    assert_eq!(bench.edge.stats().await, Stats::default());
}

#[tokio::test]
async fn an_edge_that_withdraws_closes_its_port_lets_connections_finish_and_comes_back() {
    let server = Server::start(1).await;
    let mut bench = Bench::serving(&[&server]).await;
    let mut client = Client::connect(bench.port).await;
    assert_eq!(client.say("before").await, "1:before");
    bench.edge.duty(Duty::Withdraw { drain: 7 });
    bench.until_report(|report| report.withdrawal == Some(Withdrawal { drain: 7, done: false })).await;
    let refused = async {
        while TcpStream::connect((Ipv4Addr::LOCALHOST, bench.port)).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, refused).await.expect("the port is closed");
    assert_eq!(client.say("still there").await, "1:still there");
    assert_eq!(bench.edge.report().withdrawal, Some(Withdrawal { drain: 7, done: false }));
    drop(client);
    bench.until_report(|report| report.withdrawal == Some(Withdrawal { drain: 7, done: true })).await;

    bench.edge.duty(Duty::Serve { from: SetRevision { term: Term(1), number: bench.number + 1 } });
    let other = Server::start(2).await;
    bench.apply(vec![other.backend()]).await;
    bench.until_report(|report| report.withdrawal.is_none()).await;
    assert_eq!(Client::connect(bench.port).await.say("again").await, "2:again");
}

#[tokio::test]
async fn a_port_that_is_wanted_again_while_it_closes_is_open_in_the_end() {
    let server = Server::start(1).await;
    let bench = Bench::serving(&[&server]).await;
    let from = SetRevision { term: Term(1), number: 1 };
    let mut client = Client::connect(bench.port).await;
    for drain in 1..20 {
        bench.edge.duty(Duty::Withdraw { drain });
        bench.until_report(|report| report.withdrawal.is_some()).await;
        if drain % 2 == 0 {
            assert_eq!(client.say("on").await, "1:on");
            tokio::time::timeout(LONG, async {
                while TcpStream::connect((Ipv4Addr::LOCALHOST, bench.port)).await.is_ok() {
                    tokio::task::yield_now().await;
                }
            })
            .await
            .expect("the port is closed");
        }
        bench.edge.duty(Duty::Serve { from });
        bench.until_report(|report| report.withdrawal.is_none()).await;
    }
    assert_eq!(Client::connect(bench.port).await.say("again").await, "1:again");
    assert_eq!(client.say("and the first").await, "1:and the first");
}

#[tokio::test]
async fn a_shutdown_without_grace_closes_connections() {
    let server = Server::start(1).await;
    let bench = Bench::serving(&[&server]).await;
    let mut client = Client::connect(bench.port).await;
    assert_eq!(client.say("hello").await, "1:hello");
    timeout(LONG, bench.edge.shutdown(Duration::ZERO)).await.unwrap();
    assert_eq!(client.hear().await, "");
}

#[tokio::test]
async fn the_last_sets_can_be_read_back() {
    let server = Server::start(1).await;
    let bench = Bench::serving(&[&server]).await;
    let sets = bench.edge.last_sets().await.expect("it serves");
    assert!(sets.full);
    assert_eq!(sets.sets[0].backends, [server.backend()]);
}

/// An HTTP server that names itself, closing kept connections properly every few requests.
async fn http_server(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                for served in 1.. {
                    let mut close = served % 5 == 0;
                    loop {
                        let mut line = String::new();
                        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                            return;
                        }
                        close |= line.trim() == "Connection: close";
                        if line == "\r\n" {
                            break;
                        }
                    }
                    let body = format!("instance {name}\n");
                    let connection = if close { "close" } else { "keep-alive" };
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: {connection}\r\n",
                        body.len()
                    );
                    if stream.get_mut().write_all(format!("{head}\r\n{body}").as_bytes()).await.is_err()
                        || close
                    {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_while_instances_come_and_go() {
    let (a, b) = (http_server("a").await, http_server("b").await);
    let (a, b) = (backend(1, a.port()), backend(2, b.port()));
    let mut bench = Bench::start();
    bench.apply(vec![a.clone()]).await;
    let stop = CancellationToken::new();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, bench.port));
    let load = tokio::spawn(run_load(address, 4, 4, stop.clone()));
    for round in 0..100 {
        let seen = bench.edge.stats().await.accepted;
        bench.apply(if round % 2 == 0 { vec![b.clone()] } else { vec![a.clone()] }).await;
        bench.until_stats(|stats| stats.accepted > seen + 2).await;
    }
    stop.cancel();
    let report = timeout(LONG, load).await.unwrap().unwrap();
    assert_eq!(report.failed, Vec::<String>::new());
    assert!(report.requests >= 200 && report.connections < report.requests, "{report:?}");
    assert_eq!(report.by_instance.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert!(report.latency.p50 <= report.latency.max && !report.latency.max.is_zero());
}

#[tokio::test]
async fn the_load_counts_what_fails() {
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let stop = CancellationToken::new();
    let load = tokio::spawn(run_load(nobody, 1, 1, stop.clone()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await.unwrap();
    let rude = listener.local_addr().unwrap();
    let second = tokio::spawn(run_load(rude, 0, 1, stop.clone()));
    // Takes one connection after the other and closes it within its response.
    for _ in 0..3 {
        let (mut stream, _) = timeout(LONG, listener.accept()).await.unwrap().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
        let mut request = [0; 256];
        assert!(stream.read(&mut request).await.unwrap() > 0);
    }
    drop(listener);
    stop.cancel();
    let report = timeout(LONG, load).await.unwrap().unwrap();
    assert!(report.failed_count >= 2 && report.failed_count == report.requests, "{report:?}");
    let report = timeout(LONG, second).await.unwrap().unwrap();
    assert!(report.failed_count >= 3, "{report:?}");
    assert!(report.failed[0].contains("closed after 4 of 10 bytes"), "{report:?}");
}
