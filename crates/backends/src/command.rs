//! A backend of the user's own: each call is a command that answers in JSON. `docs/stores-command.md` describes it.

use std::fmt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::contract::{Backend, Eviction, Member, Memo, Moving, Preflight, StoreId, StoreState};
use crate::error::BackendError;

/// Lines of the command's stderr that an error repeats.
const STDERR_LINES: usize = 5;
/// Of its stderr only the end is kept.
const STDERR_BYTES: usize = 4096;
/// Of an output that is no answer this much is shown.
const PRINTED_CHARS: usize = 100;
/// An answer is a few numbers, or a list of members.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

#[derive(Clone)]
pub struct CommandConfig {
    /// The program and its first arguments; the name of the call is added.
    pub argv: Vec<String>,
    /// For calls that have no time of their own.
    pub timeout: Duration,
}

impl fmt::Debug for CommandConfig {
    /// Arguments may hold passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommandConfig({} with {} arguments)", self.program(), self.argv.len().saturating_sub(1))
    }
}

impl CommandConfig {
    fn program(&self) -> &str {
        self.argv.first().map_or("", String::as_str)
    }
}

#[derive(Debug)]
pub struct CommandBackend {
    config: CommandConfig,
}

/// What the command reads on its stdin.
#[derive(Debug, Default, Serialize)]
struct Question<'a> {
    call: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<&'a StoreId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memo: Option<&'a Memo>,
    within_ms: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer<T> {
    Ok(T),
    Error { kind: Kind, words: String },
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Unreachable,
    Refused,
    NotFound,
    NotPossible,
}

/// Kills the command and all it has started. The command itself must not be waited for before: until then its number
/// is nobody else's.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        let _gone_already = kill_process_group(self.0, Signal::KILL);
    }
}

struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl CommandBackend {
    pub fn new(config: CommandConfig) -> CommandBackend {
        CommandBackend { config }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        question: Question<'_>,
        within: Duration,
    ) -> Result<T, BackendError> {
        let operation = question.call;
        let whom = || self.config.program().to_owned();
        let question =
            Question { within_ms: u64::try_from(within.as_millis()).unwrap_or(u64::MAX), ..question };
        // One that nobody knows yet is called by its address.
        let store = question.store.cloned().or_else(|| Some(StoreId(question.address?.to_owned())));
        let refused = |words: String| BackendError::Refused { operation, whom: whom(), words };
        let lost = |why: String| BackendError::Unreachable { operation, whom: whom(), why };
        let input = serde_json::to_vec(&question).map_err(|why| refused(why.to_string()))?;
        let mut child = self.spawn(operation)?;
        let output = match timeout(within, run(&mut child, &input)).await {
            Ok(output) => output.map_err(|why| lost(why.to_string()))?,
            Err(_) => return Err(lost(format!("not finished within {within:?}, and killed"))),
        };
        let said = last_lines(&output.stderr);
        if output.stdout.len() > OUTPUT_BYTES_MAX {
            return Err(refused(format!("more than {OUTPUT_BYTES_MAX} bytes of output")));
        }
        if !output.status.success() {
            return Err(refused(format!("{}: {said}", output.status)));
        }
        match serde_json::from_slice::<Answer<T>>(&output.stdout) {
            Ok(Answer::Ok(answer)) => Ok(answer),
            Ok(Answer::Error { kind, words }) => Err(match (kind, store) {
                (Kind::Unreachable, _) => lost(words),
                (Kind::NotFound, Some(store)) => BackendError::NotFound { operation, store },
                (Kind::NotPossible, _) => BackendError::NotPossible { operation, why: words },
                (Kind::Refused, _) | (Kind::NotFound, None) => refused(words),
            }),
            Err(why) => {
                let printed = String::from_utf8_lossy(&output.stdout);
                let printed: String = printed.chars().take(PRINTED_CHARS).collect();
                Err(refused(format!("its output {printed:?} is no answer ({why}): {said}")))
            }
        }
    }

    fn spawn(&self, operation: &'static str) -> Result<Child, BackendError> {
        let wrong = |why: String| BackendError::NotPossible { operation, why };
        let Some((program, arguments)) = self.config.argv.split_first() else {
            return Err(wrong("no command is given".to_owned()));
        };
        Command::new(program)
            .args(arguments)
            .arg(operation)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|why| wrong(format!("{program} cannot be started: {why}")))
    }
}

async fn run(child: &mut Child, input: &[u8]) -> std::io::Result<Output> {
    let gone = || std::io::Error::other("the command has no number or no pipes");
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).ok_or_else(gone)?;
    let group = Group(pid);
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(gone());
    };
    let told = async {
        // a command that needs nothing from its input may end without reading it
        let _unread = stdin.write_all(input).await;
        drop(stdin);
    };
    let ending = async {
        // Seen to have ended, and not waited for yet. The thread ends with the command, which is killed on every way out.
        let seen = move || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _ended = tokio::task::spawn_blocking(move || seen().is_ok()).await;
        // what it has left in the background would hold the pipes
        drop(group);
    };
    let ((), stdout, stderr, ()) =
        tokio::join!(told, read_start(stdout, OUTPUT_BYTES_MAX + 1, pid), read_end(stderr), ending);
    Ok(Output { status: child.wait().await?, stdout, stderr })
}

/// As much as fits; one that says more is killed.
async fn read_start(mut pipe: impl AsyncRead + Unpin, limit: usize, pid: Pid) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _broken = (&mut pipe).take(limit as u64).read_to_end(&mut bytes).await;
    if bytes.len() == limit {
        let _gone_already = kill_process_group(pid, Signal::KILL);
    }
    bytes
}

async fn read_end(mut pipe: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut part = [0; STDERR_BYTES];
    while let Ok(count @ 1..) = pipe.read(&mut part).await {
        bytes.extend_from_slice(&part[..count]);
        bytes.drain(..bytes.len().saturating_sub(STDERR_BYTES));
    }
    bytes
}

fn last_lines(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.is_empty() {
        true => "nothing on stderr".to_owned(),
        false => lines[lines.len().saturating_sub(STDERR_LINES)..].join("\n"),
    }
}

#[async_trait]
impl Backend for CommandBackend {
    async fn members(&self) -> Result<Vec<Member>, BackendError> {
        self.ask(Question { call: "members", ..Question::default() }, self.config.timeout).await
    }

    async fn identify(&self, address: &str) -> Result<StoreId, BackendError> {
        let question = Question { call: "identify", address: Some(address), ..Question::default() };
        self.ask(question, self.config.timeout).await
    }

    async fn replicas(&self) -> Result<u64, BackendError> {
        self.ask(Question { call: "replicas", ..Question::default() }, self.config.timeout).await
    }

    async fn state(&self, store: &StoreId, removal: Option<&Memo>) -> Result<StoreState, BackendError> {
        let question = Question { call: "state", store: Some(store), memo: removal, ..Question::default() };
        match self.ask(question, self.config.timeout).await? {
            StoreState::Removing { progress, .. } if !(0.0..=1.0).contains(&progress) => {
                let whom = self.config.program().to_owned();
                let words = format!("a progress of {progress} is not from 0 to 1");
                Err(BackendError::Refused { operation: "state", whom, words })
            }
            state => Ok(state),
        }
    }

    async fn evictors(&self, store: &StoreId) -> Result<Eviction, BackendError> {
        let question = Question { call: "evictors", store: Some(store), ..Question::default() };
        self.ask(question, self.config.timeout).await
    }

    async fn evict_leaders(
        &self,
        store: &StoreId,
        on: bool,
        memo: &Memo,
        within: Duration,
    ) -> Result<(), BackendError> {
        let call = "evict_leaders";
        let question =
            Question { call, store: Some(store), on: Some(on), memo: Some(memo), ..Question::default() };
        self.ask(question, within).await
    }

    async fn preflight(&self, store: &StoreId) -> Result<Preflight, BackendError> {
        let question = Question { call: "preflight", store: Some(store), ..Question::default() };
        self.ask(question, self.config.timeout).await
    }

    async fn begin_offline(
        &self,
        store: &StoreId,
        memo: &Memo,
        within: Duration,
    ) -> Result<Moving, BackendError> {
        let question =
            Question { call: "begin_offline", store: Some(store), memo: Some(memo), ..Question::default() };
        self.ask(question, within).await
    }

    async fn cancel_offline(
        &self,
        store: &StoreId,
        memo: &Memo,
        within: Duration,
    ) -> Result<Moving, BackendError> {
        let question =
            Question { call: "cancel_offline", store: Some(store), memo: Some(memo), ..Question::default() };
        self.ask(question, within).await
    }

    async fn forget(&self, store: &StoreId, within: Duration) -> Result<(), BackendError> {
        let question = Question { call: "forget", store: Some(store), ..Question::default() };
        self.ask(question, within).await
    }
}

#[cfg(test)]
mod hostile_tests;
