//! The `command` pipeline: a process of the user's, one per node and feed, that lists spans and hosts
//! dispatchers over lines of JSON.
//!
//! - [`message`]: what is said; docs/feeds-command.md explains it.
//! - [`guard`]: the process in between that ends the user's in time.
//! - [`process`]: one life of it.
//! - [`hosting`]: all of its lives, and who waits for what.
//!
//! A process that prints rubbish, dies or falls silent is killed. Its dispatchers end with trouble that
//! passes, once nothing of the process runs any more; whoever asks next has it started again, after a
//! while that grows.

pub mod guard;
#[cfg(test)]
mod hostile_tests;
mod hosting;
mod message;
mod process;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use model::{Checkpoint, Code, FeedName, SpanEpoch, SpanName};
use tokio::sync::{mpsc, oneshot};

use crate::copy::tell;
use crate::{Control, Host, Outlook, Pipeline, Prepared, Trouble};
use hosting::{Answer, Ask, Event, Hosting, Order};

/// How long the command may take, and how often it is tried.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From its start to its hello.
    pub hello: Duration,
    /// From a question to its answer. A stop has to finish what is in flight within it.
    pub answer: Duration,
    /// How often a command that is asked nothing is asked whether it lives.
    pub ping_every: Duration,
    /// Between its end and its next start, growing by a factor of two.
    pub pause_first: Duration,
    pub pause_max: Duration,
    /// One that has run for this long is started again as if it had never failed.
    pub steady_after: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            hello: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            ping_every: Duration::from_secs(10),
            pause_first: Duration::from_millis(200),
            pause_max: Duration::from_secs(30),
            steady_after: Duration::from_secs(60),
        }
    }
}

/// What is run, for whom.
pub(crate) struct Spec {
    feed: FeedName,
    node: String,
    guard: Vec<OsString>,
    command: Vec<String>,
    env: BTreeMap<String, String>,
    limits: Limits,
    lease: Mutex<Lease>,
}

/// How long the node's lease holds, and the guard that has to know.
#[derive(Default)]
struct Lease {
    /// Zero: it never had one.
    fence_ms: u64,
    pipe: Option<OwnedFd>,
}

impl Spec {
    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    fn tell(&self) {
        if let Some(pipe) = &self.pipe {
            // Shorter than what a pipe takes whole or not at all. One that is lost shortens the lease.
            let _ = rustix::io::write(pipe, format!("{}\n", self.fence_ms).as_bytes());
        }
    }
}

pub struct CommandPipeline {
    spec: Arc<Spec>,
    orders: OnceLock<mpsc::UnboundedSender<Order>>,
}

impl CommandPipeline {
    pub fn new(
        feed: &FeedName,
        host: &Host,
        command: &[String],
        env: &BTreeMap<String, String>,
        limits: Limits,
    ) -> CommandPipeline {
        let spec = Spec {
            feed: feed.clone(),
            node: host.node.clone(),
            guard: host.guard.clone(),
            command: command.to_vec(),
            env: env.clone(),
            limits,
            lease: Mutex::default(),
        };
        CommandPipeline { spec: Arc::new(spec), orders: OnceLock::new() }
    }

    fn line(&self) -> Line {
        let orders = self.orders.get_or_init(|| {
            let (orders, received) = mpsc::unbounded_channel();
            tokio::spawn(Hosting::new(self.spec.clone(), received).serve());
            orders
        });
        Line(orders.clone())
    }
}

/// To the task that owns the process, which ends when the last of these is gone.
#[derive(Clone)]
struct Line(mpsc::UnboundedSender<Order>);

impl Line {
    /// Asked when it is called, whether or not the answer is waited for.
    fn ask(&self, ask: Ask) -> impl Future<Output = Result<Answer, Trouble>> + Send + use<> {
        let (answer, answered) = oneshot::channel();
        let _ = self.0.send(Order { ask, answer: Some(answer) });
        let gone = || Trouble::passing(Code::CommandFailed, "whoever hosts the feed's command is gone");
        async move { answered.await.unwrap_or_else(|_| Err(gone())) }
    }

    fn tell(&self, ask: Ask) {
        let _ = self.0.send(Order { ask, answer: None });
    }
}

#[async_trait]
impl Pipeline for CommandPipeline {
    async fn look(&self) -> Result<Outlook, Trouble> {
        match self.line().ask(Ask::Spans).await? {
            Answer::Spans(outlook) => Ok(outlook),
            // Never given. An empty outlook would say that all spans are gone.
            Answer::Done | Answer::Stopped(_) => {
                Err(Trouble::passing(Code::CommandFailed, "the feed's command listed no spans"))
            }
        }
    }

    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn Prepared>, Trouble> {
        let line = self.line();
        line.ask(Ask::Prepare(span.clone())).await?;
        Ok(Box::new(Ready { line, span: span.clone(), on_drop: OnDrop::Release }))
    }

    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble> {
        self.line().ask(Ask::Sweep(keep.to_vec())).await.map(drop)
    }

    fn lease(&self, fence_at_boot_ms: u64) {
        let mut lease = self.spec.lease();
        if fence_at_boot_ms > lease.fence_ms {
            lease.fence_ms = fence_at_boot_ms;
            lease.tell();
        }
    }
}

/// A span that the process has prepared, and then hosts.
struct Ready {
    line: Line,
    span: SpanName,
    on_drop: OnDrop,
}

/// What the process has to be told when whoever wanted the span is gone.
#[derive(Clone, Copy)]
enum OnDrop {
    Nothing,
    Release,
    Stop(SpanEpoch),
}

impl Drop for Ready {
    fn drop(&mut self) {
        match self.on_drop {
            OnDrop::Nothing => {}
            OnDrop::Release => self.line.tell(Ask::Release(self.span.clone())),
            OnDrop::Stop(epoch) => self.line.tell(Ask::Stop { span: self.span.clone(), epoch }),
        }
    }
}

#[async_trait]
impl Prepared for Ready {
    async fn run(
        mut self: Box<Self>,
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
        control: Control,
    ) -> Result<Checkpoint, Trouble> {
        let (events, mut heard) = mpsc::unbounded_channel();
        let mut done = from.unwrap_or_default();
        self.on_drop = OnDrop::Stop(epoch);
        let start = Ask::Start { span: self.span.clone(), epoch, from, events };
        let started = self.line.ask(start);
        let started = tokio::select! {
            biased;
            // The process may be a while in coming up; a stop does not wait for that.
            () = control.stop.cancelled() => Ok(()),
            started = started => started.map(drop),
        };
        if let Err(trouble) = started {
            self.on_drop = OnDrop::Nothing;
            return Err(trouble);
        }
        loop {
            let event = tokio::select! {
                biased;
                () = control.stop.cancelled() => break,
                event = heard.recv() => event,
            };
            match event {
                Some(Event::Checkpoint(checkpoint)) => {
                    done.raise(checkpoint);
                    tell(&control, done);
                }
                Some(Event::Ended(trouble)) => {
                    self.on_drop = OnDrop::Nothing;
                    return Err(trouble);
                }
                None => {
                    self.on_drop = OnDrop::Nothing;
                    return Err(Trouble::passing(Code::CommandFailed, "nobody hosts the span any more"));
                }
            }
        }
        // Dropped from here on, the stop is on its way all the same.
        self.on_drop = OnDrop::Nothing;
        let answer = self.line.ask(Ask::Stop { span: self.span.clone(), epoch }).await?;
        while let Ok(Event::Checkpoint(checkpoint)) = heard.try_recv() {
            done.raise(checkpoint);
        }
        match answer {
            Answer::Stopped(last) => done.raise(last),
            // It had not been started.
            Answer::Done | Answer::Spans(_) => {}
        }
        tell(&control, done);
        Ok(done)
    }
}
