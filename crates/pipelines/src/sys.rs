//! The few system calls that need `unsafe`, and the boot clock.
//!
//! *Invariant:* this is the only file of the crate with `unsafe` in it. What runs between fork and exec makes
//! system calls only: no allocation, no locks.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

/// Highest signal number the kernel knows (`_NSIG` on all Linux targets we build for).
const SIGNALS_MAX: i32 = 64;

/// Now on CLOCK_BOOTTIME, in milliseconds. It counts while the machine is suspended, as leases must.
pub fn boot_ms() -> u64 {
    let t = clock_gettime(ClockId::Boottime);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1000 + u64::try_from(t.tv_nsec).unwrap_or(0) / 1_000_000
}

/// A process that a signal to the daemon's terminal or group does not reach, and that inherits `kept`
/// besides its three streams.
#[allow(unsafe_code)]
pub fn prepare_guard(command: &mut std::process::Command, kept: OwnedFd) {
    // SAFETY: the closure makes async-signal-safe system calls only and touches no memory of the parent.
    // The descriptor is owned by the closure, which outlives the fork; its flag is changed in the child.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            // Whatever else the daemon inherited from whoever started it stays with the daemon.
            libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            rustix::io::fcntl_setfd(&kept, rustix::io::FdFlags::empty())?;
            Ok(())
        });
    }
}

/// A process that leads a group of its own and dies with the *thread* that forked it.
#[allow(unsafe_code)]
pub fn prepare_command(command: &mut std::process::Command) {
    let guard = rustix::process::getpid();
    // SAFETY: the closure makes async-signal-safe system calls only; it neither allocates nor locks.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setpgid(None, None)?;
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The guard may have died before the line above took effect.
            if rustix::process::getppid() != Some(guard) {
                return Err(io::Error::from_raw_os_error(libc::ECHILD));
            }
            reset_signals();
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

/// Makes this process deaf to what a terminal or a stopping service manager sends to everybody.
#[allow(unsafe_code)]
pub fn ignore_stop_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP, libc::SIGPIPE] {
        // SAFETY: SIG_IGN is a valid disposition and installs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// A descriptor that was handed to this process by its number, for as long as the process lives.
#[allow(unsafe_code)]
pub fn handed_over(number: RawFd) -> io::Result<BorrowedFd<'static>> {
    if number <= 2 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a descriptor of its own"));
    }
    // SAFETY: F_GETFD takes two integers and changes nothing.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, as was just seen, and nobody in this process closes it.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}
