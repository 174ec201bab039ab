//! `tidegate shims ROOT`: a process that forks shims, and does nothing else.
//!
//! A daemon is large and has many threads, so that a child of its own has to become another program before it
//! may do anything: loading and linking that costs several times what a shim then does in its life. A child
//! of this one is a shim at once, and shares its memory with all others. The daemon starts it with its first
//! instance; it ends when the daemon's end of the socket closes. Its children live on, as shims do.
//!
//! A message is the directory of a run, with two descriptors: the lock, and where the shim says its first word.
//!
//! *Invariant:* one thread. What is true of the only thread at the fork is true of the whole child.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::process::WaitOptions;

use super::{GREETING, shim_main};
use crate::{host, sys};

/// The longest path that the kernel knows.
pub const DIR_BYTES_MAX: usize = 4096;

/// What comes with a message.
const DESCRIPTORS: usize = 2;

const CODE_DONE: i32 = 0;
const CODE_FAILED: i32 = 1;

/// Ends in a child with the code of its shim, and otherwise with the daemon. Must be called while the process
/// has one thread, with the socket as stdin.
pub fn nursery_main() -> i32 {
    sys::ignore_stop_signals();
    // Refused to who leads a group already, which does no harm.
    let _ = rustix::process::setsid();
    // Asked once for all children.
    host::boot_id();
    match serve() {
        Ok(code) => code,
        Err(_) => CODE_FAILED,
    }
}

fn serve() -> io::Result<i32> {
    let requests = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let ended = sys::notice_of_ended_children()?;
    loop {
        let (asked, child_ended) = sys::wait_for_either(requests.as_fd(), ended.as_fd())?;
        if child_ended {
            let _ = rustix::io::read(&ended, &mut [0u8; 1024]);
            while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        }
        if !asked {
            continue;
        }
        let Some(request) = receive(&requests)? else { return Ok(CODE_DONE) };
        match sys::fork() {
            Ok(Some(_)) => {}
            Ok(None) => {
                drop((requests, ended));
                return Ok(become_shim(request));
            }
            Err(e) => {
                let mut greeting = File::from(request.greeting);
                let _ = writeln!(greeting, "{GREETING} failed fork: {e}");
            }
        }
    }
}

struct Request {
    dir: PathBuf,
    lock: OwnedFd,
    greeting: OwnedFd,
}

/// `None` once nobody can ask any more. What is not a request is dropped, and with it what came along.
fn receive(requests: &OwnedFd) -> io::Result<Option<Request>> {
    let mut bytes = vec![0; DIR_BYTES_MAX];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = match recvmsg(requests, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received,
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let mut descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        });
        let (lock, greeting) = (descriptors.next(), descriptors.next());
        let is_whole = !received.flags.contains(ReturnFlags::TRUNC);
        if let (Some(lock), Some(greeting), true) = (lock, greeting, is_whole) {
            let dir = PathBuf::from(OsStr::from_bytes(&bytes[..received.bytes]));
            return Ok(Some(Request { dir, lock, greeting }));
        }
    }
}

/// In the child: as if the daemon had started it.
fn become_shim(request: Request) -> i32 {
    let Request { dir, lock, greeting } = request;
    sys::hear_all_signals();
    let given = rustix::stdio::dup2_stdin(&lock).and_then(|()| rustix::stdio::dup2_stdout(&greeting));
    drop((lock, greeting));
    if given.is_err() {
        return CODE_FAILED;
    }
    name_thread(&dir);
    shim_main(&dir)
}

/// For `ps` and `top`: all shims have the same command line.
fn name_thread(dir: &Path) {
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if let Ok(name) = CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}
