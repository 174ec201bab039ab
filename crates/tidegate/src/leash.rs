//! Runs a foreign command for as long as somebody holds our standard input.
//!
//! A program of ours looks at its standard input itself; etcd does not. Without this, an etcd whose
//! `dev` was killed would run for ever.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use crate::{
    failure::{Failure, Outcome},
    stop,
};

/// Then SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

pub async fn leash(words: &[String]) -> Outcome {
    let Some((program, args)) = words.split_first() else {
        return Err(Failure::usage("no command"));
    };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let mut child =
        command.spawn().map_err(|error| Failure::error(format!("cannot start {program}: {error}")))?;
    tokio::select! {
        ended = child.wait() => {
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            return Err(Failure::error(format!("{program} ended: {how}")));
        }
        () = stop::stdin_ended() => {}
    }
    // Not reaped yet, so the pid is still its own.
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
    Ok(())
}
