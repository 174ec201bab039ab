//! The shim: a small process per run of an instance, which outlives the daemon.
//!
//! It is the parent of the instance, so it is the one that learns how it ended; it holds the other end of
//! its output, so that a restart of the daemon neither blocks nor breaks it; and it holds the fence, so that
//! what must not run twice stops in time even if the daemon is dead.
//!
//! A run lives in one directory (DIR):
//!
//! | file | |
//! |---|---|
//! | `run` | what was wanted, what runs, how it ended ([`book`]); flock held exclusively by the shim as long as it lives: held = alive |
//! | `shim.sock` | the control socket; the protocol and its rules are in [`control`] |
//! | `current.log` and others | the output ([`log`]) |
//! | `shim.err` | what the shim itself had to complain about; not there on a good day |
//!
//! Shims are forked by a process of the daemon's that does nothing else ([`nursery`]).
//!
//! One life: take the lock (usually inherited from the daemon, as stdin, so that there is no moment without
//! it) → record that a run begins → fork → record the pid → tell the daemon on stdout → wait → kill what the
//! main process left behind → record the ending → remove the cgroup → exit. A crash at any of these leaves
//! the lock free and the records say how far it came; `runtime::adopt` reads them. A shim that is killed
//! takes the main process with it (PR_SET_PDEATHSIG); what that one had forked is killed by the daemon.
//!
//! *Invariant:* std threads, no tokio, no network; nothing here reads configuration or decides policy.

pub mod book;
pub mod charge;
pub mod control;
mod fence;
#[cfg(test)]
mod hostile_tests;
pub mod log;
pub mod nursery;
pub mod record;

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::Pid;

use crate::{host, sys};
use book::{BOOK, Book};
use charge::{Charge, Ending};
use record::{ExitRecord, LaunchRecord, Record, RunRecord};

/// Where earlier releases had the output.
const EARLIER_LOGS: &str = "logs";
const COMPLAINTS: &str = "shim.err";

/// First word of the one line a shim says on stdout. `started`, `ended` or `failed` follows, and why.
pub const GREETING: &str = "tidegate-shim";

/// Given to the instance, so that it can say who it is.
pub const INSTANCE_ENV: &str = "TIDEGATE_INSTANCE";

/// Given to the instance; by it the daemon finds processes of a lost shim where there are no cgroups.
pub const MARK_ENV: &str = "TIDEGATE_MARK";

/// The instance gets these of our own environment, and nothing else: a daemon's holds tokens.
const ENV_PASSED_ON: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// Threads here call a few functions deep; what they need most for is JSON nested as deep as serde allows.
const STACK_BYTES: usize = 512 << 10;

/// After the last process is dead, what it printed is read to its end. Longer than this only if it handed
/// its output to a stranger.
const LOG_DRAIN_MAX: Duration = Duration::from_secs(1);

/// A disk that refuses the ending is tried again for this long.
const EXIT_RETRIES: u32 = 50;
const EXIT_RETRY_PAUSE: Duration = Duration::from_millis(100);

const CODE_DONE: i32 = 0;
const CODE_FAILED: i32 = 1;
const CODE_BUSY: i32 = 3;

/// `tidegate shim DIR`. Must be called on the main thread: the instance dies with the thread that forked it.
pub fn shim_main(dir: &Path) -> i32 {
    sys::ignore_stop_signals();
    let complaints = dir.to_owned();
    std::panic::set_hook(Box::new(move |panic| complain(&complaints, &panic.to_string())));
    // Started by hand we may lead a group already, which is refused and does no harm.
    let _ = rustix::process::setsid();
    let lock = match hold_lock(dir) {
        Ok(lock) => lock,
        Err(e) => {
            say("failed", &format!("{}: {e}", dir.join(BOOK).display()));
            return CODE_BUSY;
        }
    };
    let launch = match book::read_record::<LaunchRecord>(dir) {
        Ok(Some(launch)) => launch,
        Ok(None) => return fail(dir, "there is no launch"),
        Err(why) => return fail(dir, &why),
    };
    let ran = Book::resume(lock).map_err(|e| e.to_string()).and_then(|mut book| run(dir, &launch, &mut book));
    match ran {
        Ok(()) => CODE_DONE,
        Err(e) => fail(dir, &e),
    }
}

/// Where the output of the instance in this directory is.
pub fn logs_in(dir: &Path) -> PathBuf {
    let earlier = dir.join(EARLIER_LOGS);
    if earlier.is_dir() { earlier } else { dir.to_owned() }
}

fn fail(dir: &Path, why: &str) -> i32 {
    say("failed", why);
    complain(dir, why);
    CODE_FAILED
}

/// Into a file that is made for it: a shim has nobody to tell, and rarely anything to say.
fn complain(dir: &Path, text: &str) {
    let file = OpenOptions::new().create(true).append(true).open(dir.join(COMPLAINTS));
    let _ = file.and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()));
}

/// One line to the daemon, if it still listens.
fn say(word: &str, text: &str) {
    let line = format!("{GREETING} {word} {}\n", record::one_line(text));
    let _ = io::stdout().write_all(line.as_bytes()).and_then(|()| io::stdout().flush());
}

/// The daemon hands its lock over as stdin: an open file keeps its flock through fork and exec. Started by
/// hand, the shim takes it itself.
fn hold_lock(dir: &Path) -> io::Result<File> {
    let own = OpenOptions::new().read(true).write(true).open(dir.join(BOOK))?;
    let stdin = File::from(rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?);
    let (a, b) = (own.metadata()?, stdin.metadata()?);
    let lock = if (a.dev(), a.ino()) == (b.dev(), b.ino()) { stdin } else { own };
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(lock)
}

/// `Err` only for what leaves no ending on record: then there is nothing that could be believed.
fn run(dir: &Path, launch: &LaunchRecord, book: &mut Book) -> Result<(), String> {
    // Those the instance leaves behind become our children instead of init's, so that none escapes.
    let me = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(me)).map_err(|e| format!("subreaper: {e}"))?;
    let mut run = first_record(launch, me);
    let on_record = |e: io::Error| format!("{}: {e}", dir.join(BOOK).display());
    book.reserve().and_then(|()| book.add(&run)).map_err(on_record)?;
    let ended = match start(dir, launch, &mut run, book) {
        Ok(started) => {
            say("started", "");
            quiet();
            supervise(dir, launch, started)
        }
        Err(why) => start_failed(launch, &why),
    };
    let recorded = record_exit(dir, launch, &ended, book);
    remove_group(dir, launch);
    if ended.start_failed.is_some() {
        say("ended", "");
    }
    recorded.map_err(on_record)
}

fn first_record(launch: &LaunchRecord, me: Pid) -> RunRecord {
    let shim_pid = me.as_raw_nonzero().get();
    RunRecord {
        version: RunRecord::VERSION,
        instance: launch.instance.clone(),
        run: launch.run,
        boot_id: host::boot_id(),
        mark: launch.mark.clone(),
        shim_pid,
        shim_start: sys::proc_stat(shim_pid).map_or(0, |s| s.start_time),
        child_pid: None,
        child_start: None,
        started_at_ms: sys::unix_ms(),
        cgroup: launch.cgroup.clone(),
    }
}

struct Started {
    charge: Arc<Charge>,
    main: Pid,
    log_done: Receiver<()>,
}

/// Everything up to a running instance. An error means that nothing of it runs, and says why.
fn start(dir: &Path, launch: &LaunchRecord, run: &mut RunRecord, book: &mut Book) -> Result<Started, String> {
    if launch.boot_id != run.boot_id {
        return Err("the machine restarted between the order and the start".into());
    }
    if launch.fence_ms.is_some_and(|deadline| deadline <= sys::boottime_ms()) {
        return Err("the lease of the node ended before the start".into());
    }
    if !launch.workdir.is_dir() {
        return Err(format!("working directory {}: no such directory", launch.workdir.display()));
    }
    if let Some(group) = &launch.cgroup {
        group.create(launch.memory_limit).map_err(|e| format!("cgroup {}: {e}", group.path.display()))?;
    }
    let say = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
    let charge = Arc::new(Charge::new(launch.cgroup.clone(), launch.fence_ms).map_err(say("fence timer"))?);
    let listener = control::bind(dir).map_err(say("control socket"))?;
    let (output, input) = io::pipe().map_err(say("pipe"))?;
    let mut command = command(launch, input).map_err(say("pipe"))?;
    let spawned = command.spawn();
    // Our own copies of the writing end would keep the log from ever ending.
    drop(command);
    let child = spawned.map_err(|e| format!("{}: {e}", launch.command.first().map_or("", String::as_str)))?;
    let main = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("no pid")?;
    charge.started(main);
    run.child_pid = Some(main.as_raw_nonzero().get());
    run.child_start = sys::proc_stat(main.as_raw_nonzero().get()).map(|s| s.start_time);
    let threads = book.add(run).and_then(|()| threads(dir, launch, &charge, output, listener, run));
    match threads {
        Ok(log_done) => Ok(Started { charge, main, log_done }),
        Err(e) => {
            // A run that is not on record, or that nobody can stop, must not go on.
            charge.kill();
            let _ = charge.wait(main);
            Err(format!("its start on record: {e}"))
        }
    }
}

fn command(launch: &LaunchRecord, output: io::PipeWriter) -> io::Result<Command> {
    let Some((program, arguments)) = launch.command.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"));
    };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&launch.workdir).env_clear();
    command
        .envs(passed_on())
        .envs(&launch.env)
        .env(INSTANCE_ENV, &launch.instance)
        .env(MARK_ENV, &launch.mark);
    // One pipe for both streams: lines keep the order in which they were written.
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let procs = launch.cgroup.as_ref().map(|g| g.open_procs()).transpose()?;
    sys::prepare_instance(&mut command, procs);
    Ok(command)
}

/// What an instance, and a command that checks it, gets of our own environment.
pub(crate) fn passed_on() -> impl Iterator<Item = (&'static str, OsString)> {
    ENV_PASSED_ON.iter().filter_map(|key| Some((*key, std::env::var_os(key)?)))
}

fn threads(
    dir: &Path,
    launch: &LaunchRecord,
    charge: &Arc<Charge>,
    output: io::PipeReader,
    listener: std::os::unix::net::UnixListener,
    run: &RunRecord,
) -> io::Result<Receiver<()>> {
    let mut writer = log::LogWriter::new(&logs_in(dir), launch.log, charge.log_bytes_lost.clone());
    let (done, log_done) = sync_channel(1);
    spawn_thread("log", move || {
        writer.copy_from(output);
        let _ = done.send(());
    })?;
    let (fenced, watched, served, run) = (charge.clone(), charge.clone(), charge.clone(), run.clone());
    spawn_thread("fence", move || fenced.watch_fence())?;
    spawn_thread("memory", move || watched.watch_memory())?;
    spawn_thread("accept", move || control::serve(&listener, &served, &run))?;
    Ok(log_done)
}

pub(crate) fn spawn_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(body).map(drop)
}

/// The daemon has heard us: its end of the pipe goes.
fn quiet() {
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

fn supervise(dir: &Path, launch: &LaunchRecord, started: Started) -> ExitRecord {
    let ending = started.charge.wait(started.main);
    let _ = started.log_done.recv_timeout(LOG_DRAIN_MAX);
    let mut ended = blank_exit(launch);
    ended.log_bytes_lost = started.charge.log_bytes_lost.load(Ordering::Relaxed);
    match ending {
        Ok(Ending { status, memory_exceeded, fenced }) => {
            ended.code = status.exit_status();
            ended.signal = status.terminating_signal();
            ended.memory_exceeded = memory_exceeded;
            ended.fenced = fenced;
        }
        Err(e) => complain(dir, &format!("waiting for the instance: {e}")),
    }
    ended
}

fn start_failed(launch: &LaunchRecord, why: &str) -> ExitRecord {
    ExitRecord { start_failed: Some(record::one_line(why)), ..blank_exit(launch) }
}

fn blank_exit(launch: &LaunchRecord) -> ExitRecord {
    ExitRecord {
        version: ExitRecord::VERSION,
        instance: launch.instance.clone(),
        run: launch.run,
        code: None,
        signal: None,
        start_failed: None,
        memory_exceeded: false,
        fenced: false,
        log_bytes_lost: 0,
        at_ms: sys::unix_ms(),
    }
}

fn record_exit(dir: &Path, launch: &LaunchRecord, ended: &ExitRecord, book: &mut Book) -> io::Result<()> {
    let _ = std::fs::remove_file(dir.join(control::SOCKET));
    let mut tried = 0;
    loop {
        let lasts = |book: &Book| if launch.lasting_exit { book.sync(dir) } else { Ok(()) };
        match book.add(ended).and_then(|()| lasts(book)) {
            Err(_) if tried < EXIT_RETRIES => tried += 1,
            result => return result,
        }
        std::thread::sleep(EXIT_RETRY_PAUSE);
    }
}

fn remove_group(dir: &Path, launch: &LaunchRecord) {
    if let Some(group) = &launch.cgroup
        && let Err(e) = group.remove()
    {
        complain(dir, &format!("cgroup {}: {e}", group.path.display()));
    }
}
