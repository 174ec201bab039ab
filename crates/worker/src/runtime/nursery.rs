//! The daemon's end of the process that forks shims ([`crate::shim::nursery`]).

use std::fs::File;
use std::io::{self, IoSlice, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};

use super::blocking;
use crate::sys;

/// Started when it is needed, and again should it be gone.
#[derive(Debug)]
pub(super) struct Nursery {
    exe: PathBuf,
    root: PathBuf,
    socket: Mutex<Option<Arc<OwnedFd>>>,
}

impl Nursery {
    pub fn new(exe: &Path, root: &Path) -> Nursery {
        Nursery { exe: exe.to_owned(), root: root.to_owned(), socket: Mutex::default() }
    }

    /// Has a shim forked for the run in `dir`. It inherits the lock, and says its first word where it is told
    /// to; our copies of both go. What became of it is told there and nowhere else.
    pub async fn fork_shim(&self, dir: &Path, lock: File, says: PipeWriter) -> io::Result<()> {
        let mut socket = self.socket(None)?;
        // Once more for one that had ended; who asked it meanwhile got no answer.
        for last in [false, true] {
            let mut sent = send(&socket, dir, &lock, &says, SendFlags::DONTWAIT);
            if sent == Err(Errno::AGAIN) {
                let (to, at) = (socket.clone(), dir.to_owned());
                let (lock, says) = (lock.try_clone()?, says.try_clone()?);
                sent = blocking(move || send(&to, &at, &lock, &says, SendFlags::empty())).await;
            }
            match sent {
                Ok(()) => return Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) if !last => {
                    socket = self.socket(Some(&socket))?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// The socket to the one that lives. `gone`: the one behind this does not.
    fn socket(&self, gone: Option<&Arc<OwnedFd>>) -> io::Result<Arc<OwnedFd>> {
        let mut held = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = &*held
            && !gone.is_some_and(|gone| Arc::ptr_eq(gone, socket))
        {
            return Ok(socket.clone());
        }
        let socket = Arc::new(self.start()?);
        *held = Some(socket.clone());
        Ok(socket)
    }

    fn start(&self) -> io::Result<OwnedFd> {
        let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new(&self.exe);
        command.arg("shims").arg(&self.root).current_dir("/");
        command.stdin(Stdio::from(its)).stdout(Stdio::null()).stderr(Stdio::null());
        sys::prepare_nursery(&mut command);
        let mut child = command.spawn()?;
        // Whoever forks reaps. If this daemon goes first, init does it.
        std::thread::Builder::new().name("nursery".into()).spawn(move || child.wait())?;
        Ok(ours)
    }
}

fn send(to: &OwnedFd, dir: &Path, lock: &File, says: &PipeWriter, flags: SendFlags) -> Result<(), Errno> {
    let descriptors = [lock.as_fd(), says.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let parts = [IoSlice::new(dir.as_os_str().as_bytes())];
    loop {
        match sendmsg(to, &parts, &mut control, flags | SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}
