//! The few system calls that need `unsafe`, and the small safe ones that several modules share.
//!
//! *Invariant:* this is the only file of the crate with `unsafe` in it. What runs between fork and exec
//! ([`prepare_nursery`], [`prepare_instance`]) makes system calls only: no allocation, no locks.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Highest signal number the kernel knows (`_NSIG` on all Linux targets we build for).
const SIGNALS_MAX: i32 = 64;

/// Now on CLOCK_BOOTTIME, in milliseconds. It counts while the machine is suspended, as leases must.
pub fn boottime_ms() -> u64 {
    let t = clock_gettime(ClockId::Boottime);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1000 + u64::try_from(t.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Now as milliseconds since 1970, for records that people read.
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// A process id that can be a target: positive, and neither "my group" (0) nor "everybody" (-1).
pub fn pid(raw: i32) -> Option<Pid> {
    if raw > 1 { Pid::from_raw(raw) } else { None }
}

/// What `/proc/PID/stat` says of a process, as far as we need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcStat {
    /// Of the first thread. `Z` and `X` are dead; the process may live on in its others.
    pub state: char,
    pub threads: u32,
    pub parent: i32,
    pub group: i32,
    /// Field 22, clock ticks since boot. Together with the pid it names one process of this boot.
    pub start_time: u64,
}

impl ProcStat {
    pub fn is_dead(&self) -> bool {
        // With one thread left the others have closed their files too: locks are free.
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }
}

/// `None` when there is no such process (any more).
pub fn proc_stat(pid: i32) -> Option<ProcStat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<ProcStat> {
    // The command in parentheses may hold spaces and parentheses itself: what counts is the last one.
    let rest = text.get(text.rfind(')')? + 1..)?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // Fields 20 and 22 of the line; the group was field 5.
    let threads = fields.nth(14)?.parse().ok()?;
    let start_time = fields.nth(1)?.parse().ok()?;
    Some(ProcStat { state, threads, parent, group, start_time })
}

/// True when that very process is there, dead or not: until it is reaped its pid is its own.
pub fn exists(pid: i32, start_time: u64) -> bool {
    proc_stat(pid).is_some_and(|s| s.start_time == start_time)
}

/// True when that very process lives; a zombie counts as dead.
pub fn is_alive(pid: i32, start_time: u64) -> bool {
    proc_stat(pid).is_some_and(|s| s.start_time == start_time && !s.is_dead())
}

/// All process ids that `/proc` lists at the moment.
pub fn all_pids() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Writes a file so that a reader, or a crash, sees the old content or the new one, never a part.
pub fn write_atomic(path: &Path, content: &[u8]) -> io::Result<()> {
    let tmp = tmp_path(path);
    let mut file = File::create(&tmp)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    drop(file);
    written.and_then(|()| std::fs::rename(&tmp, path)).inspect_err(|_| {
        // Half a file that nobody reads takes room that is missing already.
        let _ = std::fs::remove_file(&tmp);
    })?;
    sync_parent(path)
}

/// There is no room for it. What a daemon needs to look after what runs must do without.
pub fn is_full(fault: &io::Error) -> bool {
    matches!(fault.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(crate) fn tmp_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// Writes a file for readers of this boot: what a loss of power leaves of it is open. Where there was none, a
/// reader, or a daemon that is killed, may see an empty one for a moment; what was there is replaced whole.
/// Making a file is what a disk takes its time for: one that is there once is written once.
pub fn write_for_this_boot(path: &Path, content: &[u8]) -> io::Result<()> {
    match File::create_new(path) {
        Ok(mut file) => file.write_all(content).inspect_err(|_| {
            // Half of it would be taken for a broken record instead of for none.
            let _ = std::fs::remove_file(path);
        }),
        Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists => {
            let tmp = tmp_path(path);
            std::fs::write(&tmp, content)?;
            std::fs::rename(&tmp, path)
        }
        Err(fault) => Err(fault),
    }
}

/// Makes a rename or removal in the directory of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

/// A short path to `name` inside the open directory `dir`. Addresses of unix sockets end at 107 bytes,
/// data directories do not.
pub fn short_path(dir: &impl AsRawFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}

/// Makes this process deaf to what a terminal or a stopping service manager sends to everybody.
#[allow(unsafe_code)]
pub fn ignore_stop_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP, libc::SIGPIPE] {
        // SAFETY: SIG_IGN is a valid disposition and installs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Everything but stdin, stdout and stderr is closed at exec. What the daemon itself inherited (a pipe of
/// whoever started it) must not be held open for as long as an instance lives.
#[allow(unsafe_code)]
fn close_others_on_exec() {
    // SAFETY: close_range with this flag closes nothing now; it takes three integers. Kernels before 5.11
    // do not know it, and then what was inherited stays open, which is untidy but no error.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// What forks shims gets a session of its own before it runs a single instruction of ours, so that Ctrl-C in
/// the terminal of the daemon never reaches it.
#[allow(unsafe_code)]
pub fn prepare_nursery(command: &mut std::process::Command) {
    // SAFETY: the closure makes async-signal-safe system calls only and touches no memory of the parent.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            close_others_on_exec();
            Ok(())
        });
    }
}

/// What happens in the forked child of the shim before it becomes the instance.
///
/// - a session and process group of its own;
/// - it dies with the shim: PR_SET_PDEATHSIG follows the *thread* that forked, so the caller must be a
///   thread that lives as long as the shim;
/// - into the cgroup, through an open `cgroup.procs`, before it can allocate or fork;
/// - signals as they are by default: ignored ones would stay ignored across exec.
#[allow(unsafe_code)]
pub fn prepare_instance(command: &mut std::process::Command, cgroup_procs: Option<OwnedFd>) {
    let shim = rustix::process::getpid();
    // SAFETY: the closure makes async-signal-safe system calls only; it neither allocates nor locks. The
    // descriptor it writes to is owned by the closure, which outlives the fork.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The shim may have died before the line above took effect.
            if rustix::process::getppid() != Some(shim) {
                return Err(io::Error::from_raw_os_error(libc::ECHILD));
            }
            if let Some(procs) = &cgroup_procs {
                rustix::io::write(procs, b"0")?;
            }
            reset_signals();
            close_others_on_exec();
            Ok(())
        });
    }
}

#[allow(unsafe_code)]
fn reset_signals() {
    // SAFETY: signal, sigemptyset and sigprocmask are async-signal-safe and work on local memory. Those
    // signals that cannot be changed refuse; nothing is lost by that.
    unsafe {
        for signal in 1..=SIGNALS_MAX {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Waits until some child of this process has ended and says which, *without* reaping it: until it is
/// reaped its pid cannot become somebody else's. `None` when there are no children.
#[allow(unsafe_code)]
pub fn wait_any_child() -> io::Result<Option<Pid>> {
    loop {
        // SAFETY: siginfo_t is plain data for which zeroes are valid; waitid writes it before we read it.
        let (result, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOWAIT), info)
        };
        if result == 0 {
            // SAFETY: waitid succeeded, so this is a SIGCHLD siginfo, which has a pid.
            return Ok(Pid::from_raw(unsafe { info.si_pid() }));
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            e if e.kind() == io::ErrorKind::Interrupted => {}
            e => return Err(e),
        }
    }
}

/// A copy of this process; `None` in the copy. Only for a process with one thread: the copy has only the one
/// that called, and what others had locked would stay locked in it.
#[allow(unsafe_code)]
pub fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the caller has one thread, so that the copy may do whatever the original may.
    match unsafe { libc::fork() } {
        ..0 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}

/// A descriptor that can be read once children have ended. Nothing else tells this process any more.
#[allow(unsafe_code)]
pub fn notice_of_ended_children() -> io::Result<OwnedFd> {
    // SAFETY: the set is local memory that sigemptyset initialises; the descriptor is new and nobody else's.
    unsafe {
        let mut ended: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut ended);
        libc::sigaddset(&mut ended, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, &ended, std::ptr::null_mut());
        let fd = libc::signalfd(-1, &ended, libc::SFD_CLOEXEC);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Takes back what [`notice_of_ended_children`] held back, in a child.
#[allow(unsafe_code)]
pub fn hear_all_signals() {
    // SAFETY: sigemptyset and sigprocmask work on local memory.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Waits until one of two can be read, or has ended, and says which.
#[allow(unsafe_code)]
pub fn wait_for_either(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<(bool, bool)> {
    let asked = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut both = [asked(one), asked(other)];
    loop {
        // SAFETY: the array is ours, and as long as is said.
        if unsafe { libc::poll(both.as_mut_ptr(), both.len() as libc::nfds_t, -1) } >= 0 {
            return Ok((both[0].revents != 0, both[1].revents != 0));
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => {}
            e => return Err(e),
        }
    }
}

/// Sends a signal by number (real-time signals too) to a whole process group.
#[allow(unsafe_code)]
pub fn signal_group(group: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two integers.
    let result = unsafe { libc::kill(-group.as_raw_nonzero().get(), signal) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Tells the end of one process, without reaping it. It means this process for ever, as a pid does not.
#[derive(Debug)]
pub struct Pidfd(AsyncFd<OwnedFd>);

impl Pidfd {
    /// Must be called within a tokio runtime.
    #[allow(unsafe_code)]
    pub fn open(pid: Pid) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // SAFETY: an OwnedFd is open and the same descriptor as long as the AsyncFd that owns it.
        Ok(Self(unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?))
    }

    /// Returns once the process has ended, at once if it had before. May be called again.
    pub async fn ended(&self) -> io::Result<()> {
        // The readiness is not cleared: whoever asks next gets the same answer.
        self.0.readable().await.map(drop)
    }
}

/// An eventfd for the v1 memory controller's out-of-memory notice.
#[allow(unsafe_code)]
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: eventfd takes two integers; the descriptor it returns is new and nobody else's.
    unsafe {
        let fd: RawFd = libc::eventfd(0, libc::EFD_CLOEXEC);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The number of a signal given as `SIGTERM`, `TERM` or `15`.
pub fn signal_number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse::<i32>() {
        return (1..=SIGNALS_MAX).contains(&number).then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    SIGNAL_NAMES.iter().find(|(n, _)| *n == short).map(|(_, number)| *number)
}

/// `SIGKILL` for 9; `signal 40` for those without a name.
pub fn signal_name(number: i32) -> String {
    match SIGNAL_NAMES.iter().find(|(_, n)| *n == number) {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

const SIGNAL_NAMES: &[(&str, i32)] = &[
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let line = "42 (a) R 1 ) b) S 7 42 42 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 98765 1 2 3";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat, ProcStat { state: 'S', threads: 1, parent: 7, group: 42, start_time: 98765 });
    }

    #[test]
    fn this_process_is_alive_with_its_own_start_time_and_no_other() {
        let me = i32::try_from(std::process::id()).unwrap();
        let start = proc_stat(me).unwrap().start_time;
        assert!(is_alive(me, start));
        assert!(!is_alive(me, start + 1));
    }

    #[test]
    fn signals_are_known_by_long_name_short_name_and_number() {
        for name in ["SIGTERM", "term", "15"] {
            assert_eq!(signal_number(name), Some(15));
        }
        assert_eq!(signal_number("SIGNOPE"), None);
        assert_eq!(signal_number("0"), None);
        assert_eq!(signal_name(9), "SIGKILL");
    }

    #[test]
    fn pids_that_mean_more_than_one_process_are_no_targets() {
        assert!(pid(0).is_none() && pid(-1).is_none() && pid(1).is_none());
    }
}
