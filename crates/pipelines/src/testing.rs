//! A real PostgreSQL on loopback, for the tests and benches of any crate.
//!
//! The server runs under a small shell that ends it when the [`Postgres`] is dropped, and also when the test
//! process itself ends without dropping it: the shell's input ends then, too.

use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, Config, NoTls};

/// How long a test waits for something that must happen. Generous: machines are slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Of the user `postgres`, for sessions over TCP. Nothing that is shown may hold it.
pub const PASSWORD: &str = "very-s3cret";

const POLL: Duration = Duration::from_millis(20);
/// Ports are picked by binding and letting go, so somebody else may grab one in between.
const START_TRIES: usize = 5;

/// `$0` is the directory, the rest is the command. Prints the pid and waits for a line, or the end of its
/// input; then ends the server at once, which unlike a kill leaves no shared memory behind. Without a line
/// nobody is left who removes the directories.
const SUPERVISOR: &str = r#"
"$@" >>"$0/log" 2>&1 </dev/null &
echo $!
read -r keep
kill -QUIT $!
wait $!
[ -n "$keep" ] || rm -rf "$0" "$TEMPLATE"
"#;

/// Waits until `condition` gives something.
///
/// # Panics
/// When [`PATIENCE`] is over.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        sleep(POLL).await;
    }
}

struct Running {
    supervisor: Child,
    pid: Pid,
}

impl Drop for Running {
    fn drop(&mut self) {
        // paused, it would not hear the order
        let _gone_already = kill_process(self.pid, Signal::CONT);
        if let Some(mut orders) = self.supervisor.stdin.take() {
            let _gone_already = orders.write_all(b"keep\n");
        }
        let _gone = self.supervisor.wait();
    }
}

/// One server with data of its own; it is gone when this is dropped.
pub struct Postgres {
    // ended before its directory is removed
    running: Option<Running>,
    host: Ipv4Addr,
    port: u16,
    settings: Vec<(String, String)>,
    directory: TempDir,
    template: Arc<TempDir>,
}

/// Making the data of a server takes longer than most tests: those that run at the same time share a copy.
static TEMPLATE: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());

fn template() -> Arc<TempDir> {
    let mut held = TEMPLATE.lock().unwrap_or_else(PoisonError::into_inner);
    held.upgrade().unwrap_or_else(|| {
        let made = Arc::new(directory());
        initialise(made.path());
        *held = Arc::downgrade(&made);
        made
    })
}

fn directory() -> TempDir {
    let made = tempfile::Builder::new().prefix("tidegate-postgres-").tempdir().expect("a directory");
    fs::set_permissions(made.path(), fs::Permissions::from_mode(0o755)).expect("our own directory");
    if let Some((uid, gid)) = user() {
        chown(made.path(), Some(uid), Some(gid)).expect("root may");
    }
    made
}

impl Postgres {
    /// Starts a server that can be a source as well as a sink, and waits until it serves.
    ///
    /// # Panics
    /// When PostgreSQL is not installed or does not start.
    pub async fn start() -> Postgres {
        Postgres::start_with(&[]).await
    }

    /// As [`Postgres::start`], with further settings.
    pub async fn start_with(settings: &[(&str, &str)]) -> Postgres {
        Postgres::start_at(Ipv4Addr::LOCALHOST, settings).await
    }

    /// As [`Postgres::start_with`], at another address of this machine: whoever reaches it is let in, for
    /// passwords cost an unoptimised client most of its time.
    pub async fn start_at(host: Ipv4Addr, settings: &[(&str, &str)]) -> Postgres {
        let (template, directory) = (template(), directory());
        let data = template.path().join("data");
        let copied = Command::new("cp").arg("-a").arg(data).arg(directory.path()).status();
        assert!(copied.is_ok_and(|status| status.success()), "the data could not be copied");
        let access = directory.path().join("data/pg_hba.conf");
        let mut access = fs::OpenOptions::new().append(true).open(access).expect("initdb made it");
        access.write_all(b"host all all all trust\n").expect("our own directory");
        let address = host.to_string();
        let usual = [
            ("wal_level", "logical"),
            ("max_replication_slots", "40"),
            ("max_wal_senders", "40"),
            ("fsync", "off"),
            ("shared_buffers", "32MB"),
            ("listen_addresses", address.as_str()),
        ];
        let settings = usual.iter().chain(settings);
        let settings = settings.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut server = Postgres { running: None, host, port: 0, settings, directory, template };
        for _ in 1..START_TRIES {
            server.port = free_port(host);
            if server.launch().await.is_ok() {
                return server;
            }
        }
        server.port = free_port(host);
        if let Err(why) = server.launch().await {
            panic!("PostgreSQL did not start: {why}");
        }
        server
    }

    async fn launch(&mut self) -> Result<(), String> {
        let data = self.directory.path().join("data");
        let mut command = Command::new("sh");
        command.env("TEMPLATE", self.template.path()).args(["-c", SUPERVISOR]).arg(self.directory.path());
        command.args(as_user(&binary("postgres"))).arg("-D").arg(&data);
        command.arg("-p").arg(self.port.to_string()).arg("-k").arg(self.directory.path());
        for (key, value) in &self.settings {
            command.arg("-c").arg(format!("{key}={value}"));
        }
        let mut supervisor = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // out of the terminal's group: an interrupt must reach it through its input only
            .process_group(0)
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let output = supervisor.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("the shell says the pid");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
        self.running = Some(Running { supervisor, pid });
        let deadline = Instant::now() + PATIENCE;
        while self.try_client("postgres").await.is_err() {
            if !is_alive(pid) || Instant::now() >= deadline {
                self.running = None;
                return Err(tail(&self.directory.path().join("log")));
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// For a feed: over TCP, with a password.
    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", database)
    }

    /// As another user, who must have been given [`PASSWORD`].
    pub fn url_as(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}:{PASSWORD}@{}:{}/{database}", self.host, self.port)
    }

    async fn try_client(&self, database: &str) -> Result<Client, tokio_postgres::Error> {
        let mut config = Config::new();
        config.host_path(self.directory.path()).port(self.port).user("postgres").dbname(database);
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// A session of the superuser.
    pub async fn client(&self, database: &str) -> Client {
        self.try_client(database).await.expect("the server takes a session")
    }

    /// Makes a database and gives a session in it.
    pub async fn create(&self, database: &str) -> Client {
        let client = self.client("postgres").await;
        client.batch_execute(&format!("CREATE DATABASE {database}")).await.expect("a database");
        self.client(database).await
    }

    /// Ends the server at once, as a crash does.
    pub fn stop(&mut self) {
        self.running = None;
    }

    /// Starts it again at the same port.
    pub async fn restart(&mut self) {
        assert!(self.running.is_none(), "the server runs");
        let deadline = Instant::now() + PATIENCE;
        while let Err(why) = self.launch().await {
            assert!(Instant::now() < deadline, "PostgreSQL did not start again: {why}");
        }
    }
}

fn free_port(host: Ipv4Addr) -> u16 {
    let socket = TcpListener::bind((host, 0)).expect("a free port");
    socket.local_addr().expect("a bound socket has an address").port()
}

/// Debian keeps the programs of each version apart from the PATH; the newest is taken.
fn binary(name: &str) -> PathBuf {
    let version = |path: &PathBuf| {
        let version = path.file_name().and_then(|name| name.to_str());
        version.and_then(|version| version.parse::<u32>().ok()).unwrap_or(0)
    };
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    versions.sort_by_key(version);
    let debian =
        versions.into_iter().rev().map(|path| path.join("bin").join(name)).find(|path| path.exists());
    debian.unwrap_or_else(|| PathBuf::from(name))
}

/// The server refuses to run as root.
fn user() -> Option<(u32, u32)> {
    if !geteuid().is_root() {
        return None;
    }
    let accounts = fs::read_to_string("/etc/passwd").expect("the accounts of this machine");
    ["postgres", "nobody"].into_iter().find_map(|name| {
        let mut fields =
            accounts.lines().find(|line| line.starts_with(&format!("{name}:")))?.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

fn as_user(program: &Path) -> Vec<String> {
    let program = program.display().to_string();
    match user() {
        Some((uid, gid)) => vec![
            "setpriv".to_owned(),
            format!("--reuid={uid}"),
            format!("--regid={gid}"),
            "--clear-groups".to_owned(),
            program,
        ],
        None => vec![program],
    }
}

fn initialise(directory: &Path) {
    let password = directory.join("password");
    fs::write(&password, PASSWORD).expect("our own directory");
    if let Some((uid, gid)) = user() {
        chown(&password, Some(uid), Some(gid)).expect("root may");
    }
    let command = as_user(&binary("initdb"));
    let made = Command::new(&command[0])
        .args(&command[1..])
        .args(["-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=4"])
        .args(["--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile"])
        .arg(&password)
        .arg("-D")
        .arg(directory.join("data"))
        .output();
    let made = made.expect("PostgreSQL is not installed: run cargo xtask test, which installs it");
    assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
}

fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let state = stat.ok().and_then(|stat| stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('Z')));
    state == Some(false)
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
