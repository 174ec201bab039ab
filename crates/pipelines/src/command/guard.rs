//! The guard of a feed's command: a small process between the daemon and the user's.
//!
//! It ends the user's process, with everything that process has started, when
//!
//! - the boot clock passes the fence, whatever the daemon does meanwhile (it may be stopped);
//! - the daemon closes its end of the lease pipe, which a dying daemon does too.
//!
//! The user's process dies with the guard as well. Its three streams are the daemon's pipes: no byte of them
//! passes through here.
//!
//! The lease pipe brings lines, each the point on the boot clock, in milliseconds, up to which the lease
//! holds. The highest counts.
//!
//! *Invariant:* one thread; no tokio, no file, nothing that could block it but the kernel.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::sys;

/// What the guard says on stderr about the end, as its last line; the daemon tells it by this.
pub const ENDING: &str = "tidegate-feed-guard: ";

const CODE_ENDED: i32 = 0;
const CODE_USAGE: i32 = 2;
const CODE_NOT_STARTED: i32 = 3;

/// Between two looks at who is left of what is being killed.
const REAP_PAUSE: Duration = Duration::from_millis(2);

/// What the guard is told when it starts.
struct Arguments {
    pipe: BorrowedFd<'static>,
    fence_ms: u64,
    command: Vec<OsString>,
}

/// `LEASE_FD FENCE_MS PROGRAM [ARGUMENT…]`, as [`arguments`] makes them. Must be called on the main thread: the
/// user's process dies with the thread that forked it.
pub fn guard_main(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    sys::ignore_stop_signals();
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(why) => {
            say(&why);
            return CODE_USAGE;
        }
    };
    match start(&arguments).and_then(|(child, timer)| watch(&arguments, child, &timer)) {
        Ok(how) => {
            say(&how);
            CODE_ENDED
        }
        Err(why) => {
            say(&why);
            CODE_NOT_STARTED
        }
    }
}

/// The arguments that [`guard_main`] takes.
pub fn arguments(pipe: i32, fence_ms: u64, command: &[String]) -> Vec<OsString> {
    let numbers = [pipe.to_string(), fence_ms.to_string()];
    numbers.into_iter().map(OsString::from).chain(command.iter().map(OsString::from)).collect()
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, String> {
    let mut arguments = arguments.into_iter();
    let mut number = |what: &str| {
        let word = arguments.next().ok_or_else(|| format!("{what} is missing"))?;
        word.to_str().and_then(|word| word.parse::<u64>().ok()).ok_or(format!("{what} is no number"))
    };
    let pipe = i32::try_from(number("the lease pipe")?).map_err(|e| format!("the lease pipe: {e}"))?;
    let fence_ms = number("the fence")?;
    let pipe = sys::handed_over(pipe).map_err(|e| format!("the lease pipe: {e}"))?;
    // The user's process must not hold it: it is not its business.
    rustix::io::fcntl_setfd(pipe, rustix::io::FdFlags::CLOEXEC)
        .map_err(|e| format!("the lease pipe: {e}"))?;
    let command: Vec<OsString> = arguments.collect();
    match command.is_empty() {
        true => Err("the command is missing".to_owned()),
        false => Ok(Arguments { pipe, fence_ms, command }),
    }
}

fn say(what: &str) {
    let line = format!("{ENDING}{}\n", what.replace('\n', " "));
    let _ = io::stderr().write_all(line.as_bytes());
}

fn start(arguments: &Arguments) -> Result<(Child, OwnedFd), String> {
    let wrong = |what: &'static str| move |e: rustix::io::Errno| format!("{what}: {e}");
    if arguments.fence_ms <= sys::boot_ms() {
        return Err(FENCED.to_owned());
    }
    // Those that the process leaves behind become our children instead of init's: none escapes.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(wrong("subreaper"))?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).map_err(wrong("timer"))?;
    set(&timer, arguments.fence_ms).map_err(wrong("timer"))?;
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]);
    sys::prepare_command(&mut command);
    let child =
        command.spawn().map_err(|e| format!("cannot start {}: {e}", arguments.command[0].display()))?;
    // The daemon takes the end of its stdout for the end of it all.
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    if let Ok(null) = null {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    Ok((child, timer))
}

const FENCED: &str = "the lease of the node ended";
/// What the daemon has to say about the reason, it knows itself.
pub const LET_GO: &str = "the daemon let it go";

/// Until the process ends or has to; nothing of it is left afterwards.
fn watch(arguments: &Arguments, mut child: Child, timer: &OwnedFd) -> Result<String, String> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("no pid")?;
    let why = match wait(arguments, group, timer) {
        Ok(None) => None,
        Ok(Some(why)) => Some(why.to_owned()),
        // What cannot be watched must not run.
        Err(e) => Some(format!("watching it: {e}")),
    };
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    let status = child.wait();
    end_all();
    Ok(match (why, status) {
        // A process that ends closes its stdout before it has ended; a daemon that lets it go at once has
        // not killed it.
        (Some(why), Ok(status)) if why == LET_GO && status.signal() != Some(libc::SIGKILL) => {
            in_words(status)
        }
        (Some(why), _) => format!("killed: {why}"),
        (None, Ok(status)) => in_words(status),
        (None, Err(e)) => format!("ended, and how is unknown: {e}"),
    })
}

/// `None`: it ended by itself.
fn wait(arguments: &Arguments, group: Pid, timer: &OwnedFd) -> io::Result<Option<&'static str>> {
    let ended = pidfd_open(group, PidfdFlags::empty())?;
    let mut fence_ms = arguments.fence_ms;
    let mut heard = Vec::new();
    loop {
        let mut watched = [
            PollFd::new(&arguments.pipe, PollFlags::IN),
            PollFd::new(timer, PollFlags::IN),
            PollFd::new(&ended, PollFlags::IN),
        ];
        match poll(&mut watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let [pipe, _, over] = watched.map(|fd| !fd.revents().is_empty());
        if over {
            return Ok(None);
        }
        if pipe {
            match hear(arguments.pipe, &mut heard)? {
                Some(later) => fence_ms = fence_ms.max(later),
                None => return Ok(Some(LET_GO)),
            }
            set(timer, fence_ms)?;
        }
        // The clock decides, not the timer: it may have rung for a fence that was moved meanwhile.
        if fence_ms <= sys::boot_ms() {
            return Ok(Some(FENCED));
        }
    }
}

/// The highest fence among whole lines that came; `None` at the end of the pipe.
fn hear(pipe: BorrowedFd<'_>, heard: &mut Vec<u8>) -> io::Result<Option<u64>> {
    let mut buffer = [0; 512];
    let read = match rustix::io::read(pipe, &mut buffer) {
        Ok(read) => read,
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return Ok(Some(0)),
        Err(e) => return Err(e.into()),
    };
    if read == 0 {
        return Ok(None);
    }
    heard.extend_from_slice(&buffer[..read]);
    let Some(end) = heard.iter().rposition(|byte| *byte == b'\n') else { return Ok(Some(0)) };
    let lines = String::from_utf8_lossy(&heard[..end]).into_owned();
    heard.drain(..=end);
    Ok(lines.lines().filter_map(|line| line.trim().parse().ok()).max().or(Some(0)))
}

fn set(timer: impl AsFd, fence_ms: u64) -> rustix::io::Result<()> {
    let seconds = i64::try_from(fence_ms / 1000).unwrap_or(i64::MAX);
    let nanoseconds = (fence_ms % 1000) * 1_000_000;
    // Zero would disarm it, and means "long ago" here.
    let value = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.max(1) as _ };
    let spec = Itimerspec { it_interval: Timespec::default(), it_value: value };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec).map(drop)
}

/// Kills and reaps whatever became our child, until there is none: those that had left the group.
fn end_all() {
    loop {
        for child in children() {
            // It is ours until we reap it, which only happens below: the pid cannot be somebody else's.
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        std::thread::sleep(REAP_PAUSE);
    }
}

fn children() -> Vec<Pid> {
    let me = rustix::process::getpid();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(me)).filter_map(Pid::from_raw).collect()
}

fn parent_of(pid: i32) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold spaces and parentheses itself: what counts is the last one.
    let rest = stat.get(stat.rfind(')')? + 1..)?;
    Pid::from_raw(rest.split_ascii_whitespace().nth(1)?.parse().ok()?)
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}
