//! Health checks: is an instance ready? HTTP, TCP and command.
//!
//! A check starts soon after the instance and tries ever less often, down to its interval, until the first
//! pass: a service that is up in 40 ms should not wait for an interval of ten seconds, nor be hammered while
//! it takes a minute. After the first pass it runs every interval. Every result is sent; what a change of
//! results means is the receiver's business.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::shim;
use crate::sys::Pidfd;

/// When the first check runs, and the first step of the backoff.
const FIRST_AFTER: Duration = Duration::from_millis(25);

/// What is ready after some time is seen to be within this part of it: doubling the pause each time would
/// keep a service that takes 200 ms waiting for almost as long again.
const BACKOFF_PART: u32 = 8;

/// The status line of a sane server is far shorter.
const STATUS_LINE_MAX: usize = 8 << 10;

/// Rest of an answer that is read and thrown away, so that the server does not see its answer reset.
const DRAIN_BYTES_MAX: u64 = 64 << 10;
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// Output of a command that goes into the message.
const OUTPUT_BYTES_MAX: usize = 512;

/// After a command has ended, what it printed is read this long.
const OUTPUT_WITHIN: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub enum CheckKind {
    /// GET; any 2xx passes.
    Http { path: String, port: u16 },
    /// A connection is accepted.
    Tcp { port: u16 },
    /// Exit code 0 passes.
    Command { argv: Vec<String> },
}

#[derive(Debug, Clone)]
pub struct Check {
    pub kind: CheckKind,
    pub interval: Duration,
    pub timeout: Duration,
    pub host: IpAddr,
    /// For commands: the environment of the instance.
    pub env: BTreeMap<String, String>,
    /// For commands: the working directory of the instance.
    pub workdir: Option<PathBuf>,
}

impl Check {
    pub fn new(kind: CheckKind, interval: Duration, timeout: Duration) -> Self {
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self { kind, interval, timeout, host, env: BTreeMap::new(), workdir: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    pub passed: bool,
    /// For people: what was answered, or what went wrong.
    pub message: String,
}

/// Runs the check until it is cancelled or nobody receives any more. Dropping the future stops it as well,
/// and kills a command that is under way.
pub async fn run(check: Check, results: mpsc::Sender<CheckResult>, cancel: CancellationToken) {
    let work = async {
        let begun = tokio::time::Instant::now();
        let mut delay = FIRST_AFTER.min(check.interval);
        let mut has_passed = false;
        loop {
            tokio::time::sleep(delay).await;
            let result = once(&check).await;
            has_passed |= result.passed;
            if results.send(result).await.is_err() {
                return;
            }
            delay = next_delay(begun.elapsed(), has_passed, check.interval);
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = work => {}
    }
}

fn next_delay(waited: Duration, has_passed: bool, interval: Duration) -> Duration {
    if has_passed { interval } else { (waited / BACKOFF_PART).max(FIRST_AFTER).min(interval) }
}

/// One check, within its timeout.
pub async fn once(check: &Check) -> CheckResult {
    let outcome = match &check.kind {
        CheckKind::Command { argv } => command(check, argv).await,
        CheckKind::Http { path, port } => within(check.timeout, http(check.host, *port, path)).await,
        CheckKind::Tcp { port } => within(check.timeout, tcp(check.host, *port)).await,
    };
    match outcome {
        Ok(message) => CheckResult { passed: true, message },
        Err(message) => CheckResult { passed: false, message },
    }
}

async fn within(
    timeout: Duration,
    work: impl Future<Output = Result<String, String>>,
) -> Result<String, String> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| Err(format!("no answer within {timeout:?}")))
}

async fn tcp(host: IpAddr, port: u16) -> Result<String, String> {
    let address = SocketAddr::new(host, port);
    TcpStream::connect(address).await.map_err(|e| format!("connect {address}: {e}"))?;
    Ok(format!("connected to {address}"))
}

async fn http(host: IpAddr, port: u16, path: &str) -> Result<String, String> {
    if !path.starts_with('/') || path.chars().any(|c| c.is_control() || c == ' ') {
        return Err(format!("path {path:?} is not valid"));
    }
    let address = SocketAddr::new(host, port);
    let mut stream = TcpStream::connect(address).await.map_err(|e| format!("connect {address}: {e}"))?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: tidegate-check\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.map_err(|e| format!("GET {path}: {e}"))?;
    let line = status_line(&mut stream).await.map_err(|e| format!("GET {path}: {e}"))?;
    tokio::spawn(drain(stream));
    let status = parse_status(&line).ok_or_else(|| format!("GET {path}: not HTTP: {}", printable(&line)))?;
    let message = format!("GET {path}: {status}");
    if (200..300).contains(&status) { Ok(message) } else { Err(message) }
}

async fn drain(stream: TcpStream) {
    let mut rest = stream.take(DRAIN_BYTES_MAX);
    let _ = tokio::time::timeout(DRAIN_WITHIN, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
}

/// The first line; what follows it in the same packet is dropped.
async fn status_line(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut chunk = [0; 512];
    while line.len() < STATUS_LINE_MAX {
        let read = stream.read(&mut chunk).await?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"));
        }
        line.extend_from_slice(&chunk[..read]);
        if let Some(end) = line.iter().position(|b| *b == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
    }
    Err(io::Error::other("the status line does not end"))
}

pub(crate) fn parse_status(line: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.strip_prefix("HTTP/")?.split_ascii_whitespace();
    let (_version, status) = (words.next()?, words.next()?);
    status.parse().ok().filter(|s| (100..600).contains(s))
}

async fn command(check: &Check, argv: &[String]) -> Result<String, String> {
    let (program, arguments) = argv.split_first().ok_or("the command is empty")?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(shim::passed_on()).envs(&check.env);
    command.process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(dir) = &check.workdir {
        command.current_dir(dir);
    }
    let child = command.spawn().map_err(|e| format!("{program}: {e}"))?;
    let mut group = Group::new(child).map_err(|e| format!("{program}: {e}"))?;
    let mut output = Output::default();
    let ended = tokio::time::timeout(check.timeout, group.wait(&mut output)).await;
    let said = printable(&[output.stdout, output.stderr].concat());
    match ended {
        Err(_) => Err(message(&format!("{program}: not done within {:?}", check.timeout), &said)),
        Ok(Err(e)) => Err(format!("{program}: {e}")),
        Ok(Ok(status)) if status.success() => Ok(message(&format!("{program}: passed"), &said)),
        Ok(Ok(status)) => Err(message(&format!("{program}: {status}"), &said)),
    }
}

fn message(what: &str, output: &str) -> String {
    if output.is_empty() { what.into() } else { format!("{what}: {output}") }
}

fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(OUTPUT_BYTES_MAX)]);
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clean.trim().to_owned()
}

/// What a command printed, as far as it is kept. Outside of the future, so that a timeout leaves it to us.
#[derive(Default)]
struct Output {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// A command and everything it forked. Killed as a whole when this goes, however that comes about.
struct Group {
    child: Child,
    id: Pid,
    /// Tells the end without reaping, so that the group's number stays ours until we have killed it.
    pidfd: Pidfd,
}

impl Group {
    fn new(child: Child) -> io::Result<Self> {
        let raw = child.id().and_then(|id| i32::try_from(id).ok());
        let id = raw.and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no pid"))?;
        Ok(Self { child, id, pidfd: Pidfd::open(id)? })
    }

    async fn wait(&mut self, output: &mut Output) -> io::Result<ExitStatus> {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let collect = async {
            tokio::join!(collect(stdout, &mut output.stdout), collect(stderr, &mut output.stderr));
        };
        tokio::pin!(collect);
        let collected = tokio::select! {
            () = &mut collect => true,
            _ = self.pidfd.ended() => false,
        };
        self.pidfd.ended().await?;
        self.kill();
        if !collected {
            let _ = tokio::time::timeout(OUTPUT_WITHIN, collect).await;
        }
        self.child.wait().await
    }

    fn kill(&self) {
        // Not yet reaped: `id` tells so.
        if self.child.id().is_some() {
            let _ = rustix::process::kill_process_group(self.id, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Keeps the beginning and reads the rest away: a full pipe would stop the command.
async fn collect(source: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    let Some(mut source) = source else { return };
    let mut chunk = [0; 1024];
    while let Ok(read @ 1..) = source.read(&mut chunk).await {
        let room = OUTPUT_BYTES_MAX.saturating_sub(into.len());
        into.extend_from_slice(&chunk[..read.min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn status_lines_are_read_and_others_are_not() {
        assert_eq!(parse_status(b"HTTP/1.1 204 No Content\r"), Some(204));
        assert_eq!(parse_status(b"HTTP/1.0 503\r"), Some(503));
        assert_eq!(parse_status(b"SSH-2.0-OpenSSH_9.6"), None);
        assert_eq!(parse_status(b"HTTP/1.1 2000 OK"), None);
        assert_eq!(parse_status(b"\xff\xff"), None);
    }

    /// Answers every connection with the same bytes.
    async fn server(answer: &'static [u8]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer).await;
            }
        });
        port
    }

    fn check(kind: CheckKind) -> Check {
        Check::new(kind, Duration::from_millis(50), Duration::from_secs(2))
    }

    async fn get(port: u16) -> CheckResult {
        once(&check(CheckKind::Http { path: "/ready".into(), port })).await
    }

    #[tokio::test]
    async fn http_passes_on_2xx_alone() {
        let good = get(server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await).await;
        assert_eq!(good, CheckResult { passed: true, message: "GET /ready: 200".into() });
        let bad = get(server(b"HTTP/1.1 503 Not yet\r\n\r\n").await).await;
        assert_eq!(bad, CheckResult { passed: false, message: "GET /ready: 503".into() });
        let redirect = get(server(b"HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n").await).await;
        assert!(!redirect.passed);
        let ssh = get(server(b"SSH-2.0-OpenSSH_9.6\r\n").await).await;
        assert_eq!(ssh.message, "GET /ready: not HTTP: SSH-2.0-OpenSSH_9.6");
        let mute = get(server(b"").await).await;
        assert_eq!(mute.message, "GET /ready: the connection was closed");
    }

    #[tokio::test]
    async fn http_that_hangs_fails_at_its_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut slow = check(CheckKind::Http { path: "/".into(), port });
        slow.timeout = Duration::from_millis(50);
        let result = once(&slow).await;
        assert_eq!(result, CheckResult { passed: false, message: "no answer within 50ms".into() });
    }

    #[tokio::test]
    async fn tcp_passes_when_somebody_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(once(&check(CheckKind::Tcp { port })).await.passed);
        drop(listener);
        let refused = once(&check(CheckKind::Tcp { port })).await;
        assert!(!refused.passed && refused.message.contains("refused"), "{}", refused.message);
    }

    fn shell(script: &str) -> Check {
        check(CheckKind::Command { argv: ["sh", "-c", script].map(String::from).to_vec() })
    }

    #[tokio::test]
    async fn a_command_passes_with_code_0_and_its_output_is_the_message() {
        let mut good = shell("echo all is $MOOD; echo really >&2");
        good.env.insert("MOOD".into(), "well".into());
        let result = once(&good).await;
        assert_eq!(result, CheckResult { passed: true, message: "sh: passed: all is well really".into() });
        let bad = once(&shell("echo no; exit 3")).await;
        assert_eq!(bad.message, "sh: exit status: 3: no");
        let chatty = once(&shell("head -c 1000000 /dev/zero | tr '\\0' x; exit 1")).await;
        assert!(!chatty.passed && chatty.message.len() < 600, "{}", chatty.message.len());
        let missing = once(&check(CheckKind::Command { argv: vec!["/no/such".into()] })).await;
        assert!(missing.message.contains("No such file"), "{}", missing.message);
    }

    #[tokio::test]
    async fn a_command_that_leaves_a_child_behind_does_not_wait_for_it() {
        let mut quick = shell("sleep 1000 & echo $!");
        quick.timeout = Duration::from_secs(30);
        let began = std::time::Instant::now();
        let result = once(&quick).await;
        assert!(result.passed && began.elapsed() < Duration::from_secs(10), "{result:?}");
        let left: i32 = result.message.trim_start_matches("sh: passed: ").parse().unwrap();
        gone(left).await;
    }

    async fn gone(pid: i32) {
        for _ in 0..500 {
            if crate::sys::proc_stat(pid).is_none_or(|s| s.is_dead()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("process {pid} still lives");
    }

    #[tokio::test]
    async fn at_the_timeout_the_whole_group_of_a_command_is_killed() {
        let mut slow = shell("trap '' TERM; sleep 1000 & echo $! $$; wait");
        slow.timeout = Duration::from_millis(300);
        let result = once(&slow).await;
        assert!(!result.passed && result.message.contains("not done within 300ms"), "{result:?}");
        let pids: Vec<i32> = result.message.split(' ').filter_map(|w| w.parse().ok()).collect();
        assert_eq!(pids.len(), 2, "{result:?}");
        for pid in pids {
            gone(pid).await;
        }
    }

    #[test]
    fn checks_back_off_until_the_first_pass_and_then_keep_their_interval() {
        let interval = Duration::from_millis(150);
        let mut delays = vec![FIRST_AFTER];
        while delays[delays.len() - 1] < interval {
            let waited: Duration = delays.iter().sum();
            delays.push(next_delay(waited, false, interval));
            assert!(delays[delays.len() - 1] <= (waited / 8).max(FIRST_AFTER), "seen soon after it is ready");
        }
        let seen: Vec<_> = delays.iter().map(Duration::as_millis).collect();
        assert_eq!(
            seen,
            [
                25, 25, 25, 25, 25, 25, 25, 25, 25, 28, 31, 35, 40, 45, 50, 57, 64, 72, 81, 91, 102, 115,
                130, 146, 150
            ]
        );
        assert_eq!(next_delay(FIRST_AFTER, true, interval), interval);
        let short = Duration::from_millis(10);
        assert_eq!(next_delay(Duration::from_secs(9), false, short), short);
    }

    #[tokio::test]
    async fn a_check_sends_every_result_until_it_is_cancelled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let (sender, mut results) = mpsc::channel(4);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(run(check(CheckKind::Tcp { port }), sender, cancel.clone()));
        assert!(!results.recv().await.unwrap().passed);
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        while !results.recv().await.unwrap().passed {}
        drop(listener);
        while results.recv().await.unwrap().passed {}
        cancel.cancel();
        task.await.unwrap();
        while results.recv().await.is_some() {}
    }
}
