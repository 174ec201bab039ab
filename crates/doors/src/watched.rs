//! A connection that ends when the certificate of its other side is revoked.
//!
//! Looked at whenever something is read or written, once per change of the files: what is silent does no harm, and
//! keep-alives see to it that no stream is silent for long.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    keys::Keys,
    revoked::{Fingerprint, fingerprint},
};

pub(crate) struct Watched<S> {
    stream: S,
    keys: Keys,
    /// None: nothing was shown.
    shown: Option<Fingerprint>,
    /// Of the files that it was last compared with.
    generation: u64,
}

impl<S> Watched<S> {
    /// `shown`: the certificate of the other side, which was found good just now.
    pub fn new(stream: S, keys: &Keys, shown: Option<&[u8]>) -> Watched<S> {
        // Zero is no generation: what changed during the handshake is seen at the first look.
        Watched { stream, keys: keys.clone(), shown: shown.map(fingerprint), generation: 0 }
    }

    fn look(&mut self) -> io::Result<()> {
        let Some(shown) = &self.shown else { return Ok(()) };
        let generation = self.keys.generation();
        if self.generation != generation {
            if self.keys.material().revoked.contains(shown) {
                let message = "the certificate of the other side was revoked";
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, message));
            }
            self.generation = generation;
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        // After it: what came while nobody looked is not handed on either.
        if read.is_ready()
            && let Err(error) = self.look()
        {
            buf.set_filled(before);
            return Poll::Ready(Err(error));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.look()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.look()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
