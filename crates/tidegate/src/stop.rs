//! Being asked to stop: a signal, or the end of standard input for those that `dev` holds.

use std::io::Read;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Outcome};

/// SIGTERM, SIGINT and SIGHUP, from the moment this is made.
pub struct Signals([(&'static str, Signal); 3]);

impl Signals {
    pub fn listen() -> Outcome<Signals> {
        let on =
            |kind| signal(kind).map_err(|error| Failure::error(format!("cannot wait for signals: {error}")));
        Ok(Signals([
            ("SIGTERM", on(SignalKind::terminate())?),
            ("SIGINT", on(SignalKind::interrupt())?),
            ("SIGHUP", on(SignalKind::hangup())?),
        ]))
    }

    /// The next one, by name.
    pub async fn next(&mut self) -> &'static str {
        let [(term, a), (int, b), (hup, c)] = &mut self.0;
        tokio::select! {
            _ = a.recv() => term,
            _ = b.recv() => int,
            _ = c.recv() => hup,
        }
    }
}

/// Returns when standard input ends: whoever holds its other end has let go, or is dead.
pub async fn stdin_ended() {
    let (tell, ended) = tokio::sync::oneshot::channel();
    // A thread of its own: a read that never returns must not hold up the end of the runtime.
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while let Ok(1..) = std::io::stdin().lock().read(&mut rest) {}
        let _ = tell.send(());
    });
    let _ = ended.await;
}
