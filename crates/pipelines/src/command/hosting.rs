//! All lives of one feed's command on this node, and who waits for what.
//!
//! One task. Without a process it waits for somebody to ask; then it starts one, says hello, and passes
//! questions and answers until the process fails or nobody is left to ask.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model::{Checkpoint, Code, SpanEpoch, SpanName};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::Spec;
use super::guard::LET_GO;
use super::message::{Said, Told, VERSION, checkpoint};
use super::process::{Heard, Process};
use crate::{Outlook, Trouble, sys};

/// More spans than this are taken for a mistake.
const SPANS_MAX: usize = 100_000;
const SPAN_BYTES_MAX: usize = 200;
/// One that ends closes its stdout a moment before: how it ended is only known if it is let be for that long.
const CLOSED_PATIENCE: Duration = Duration::from_secs(1);
/// Of what a command says about itself.
const WORDS_MAX: usize = 1_000;

pub(super) struct Order {
    pub ask: Ask,
    pub answer: Waiter,
}

/// Where an answer goes. `None`: whoever wanted it is gone.
pub(super) type Waiter = Option<oneshot::Sender<Result<Answer, Trouble>>>;

fn reply(to: Waiter, result: Result<Answer, Trouble>) {
    if let Some(to) = to {
        let _ = to.send(result);
    }
}

pub(super) enum Ask {
    Spans,
    Prepare(SpanName),
    Release(SpanName),
    Start { span: SpanName, epoch: SpanEpoch, from: Option<Checkpoint>, events: mpsc::UnboundedSender<Event> },
    Stop { span: SpanName, epoch: SpanEpoch },
    Sweep(Vec<SpanName>),
}

pub(super) enum Answer {
    /// To a stop: it had not been started.
    Done,
    Spans(Outlook),
    Stopped(Checkpoint),
}

/// What a dispatcher is told without asking.
pub(super) enum Event {
    Checkpoint(Checkpoint),
    /// It does not run any more.
    Ended(Trouble),
}

pub(super) struct Hosting {
    spec: Arc<Spec>,
    orders: mpsc::UnboundedReceiver<Order>,
    /// Came while there was no process.
    waiting: VecDeque<Order>,
    failures: u32,
    not_before: Instant,
}

/// A question that was put to the process.
struct Pending {
    what: What,
    until: Instant,
    answer: Waiter,
}

enum What {
    Spans,
    /// Answered with "done".
    Plain(&'static str),
    Start(SpanName, SpanEpoch),
    Stop(SpanName, SpanEpoch),
}

/// A dispatcher that runs in the process, for all we know.
struct Hosted {
    epoch: SpanEpoch,
    events: mpsc::UnboundedSender<Event>,
    stopping: bool,
}

/// One life of the process, from its hello on.
struct Life<'a> {
    spec: &'a Spec,
    process: Process,
    next_id: u64,
    /// Asked in the order of their ids, and all with the same time to answer: the first is due first.
    pending: BTreeMap<u64, Pending>,
    hosted: BTreeMap<SpanName, Hosted>,
    /// Starts that wait for an earlier dispatcher of their span to stop.
    parked: Vec<Order>,
}

/// Who waits for something of a life that has ended.
struct Waiters {
    pending: Vec<Pending>,
    hosted: BTreeMap<SpanName, Hosted>,
    parked: Vec<Order>,
}

/// Why a life ended.
enum End {
    /// Nobody is left to ask.
    Unwanted,
    Failed(String),
}

impl Hosting {
    pub fn new(spec: Arc<Spec>, orders: mpsc::UnboundedReceiver<Order>) -> Hosting {
        Hosting { spec, orders, waiting: VecDeque::new(), failures: 0, not_before: Instant::now() }
    }

    pub async fn serve(mut self) {
        while self.wanted().await {
            let spec = self.spec.clone();
            let begun = Instant::now();
            let ended = match self.start().await {
                Ok(process) => {
                    let mut life = Life::new(&spec, process);
                    let end = self.live(&mut life).await;
                    let (process, waiters, questions) = life.split();
                    self.waiting.extend(questions);
                    let words = self.ended(process, end.is_closed()).await;
                    let end = waiters.close(&spec, end, &words);
                    if begun.elapsed() >= spec.limits.steady_after {
                        self.failures = 0;
                    }
                    end
                }
                Err(trouble) => Some(trouble),
            };
            let Some(trouble) = ended else { return };
            tracing::warn!(feed = %spec.feed, %trouble, "the feed's command failed");
            self.waiting.drain(..).for_each(|order| order.refuse(&trouble));
            self.pause();
        }
    }

    /// Until somebody asks for something that needs a process, and it is time to start one again.
    async fn wanted(&mut self) -> bool {
        loop {
            let pause = sleep_until(self.not_before);
            tokio::select! {
                () = pause, if !self.waiting.is_empty() => return true,
                order = self.orders.recv() => match order {
                    Some(order) => self.queue(order),
                    None => return false,
                },
            }
        }
    }

    /// Keeps an order for the next life. There is nothing to stop or to release where nothing runs, but a
    /// start that waits must not come true once nobody wants it.
    fn queue(&mut self, order: Order) {
        match &order.ask {
            Ask::Stop { span, epoch } => {
                let count = self.waiting.len();
                self.waiting.retain(|waiting| !waiting.starts(span, *epoch));
                match self.waiting.len() < count {
                    true => reply(order.answer, Ok(Answer::Done)),
                    false => order.refuse(&self.trouble("does not run")),
                }
            }
            Ask::Release(_) => reply(order.answer, Ok(Answer::Done)),
            Ask::Spans | Ask::Prepare(_) | Ask::Start { .. } | Ask::Sweep(_) => self.waiting.push_back(order),
        }
    }

    fn pause(&mut self) {
        let limits = &self.spec.limits;
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = (self.failures + 1).min(31);
        self.not_before = Instant::now() + limits.pause_first.saturating_mul(factor).min(limits.pause_max);
    }

    /// A process that has said hello.
    async fn start(&mut self) -> Result<Process, Trouble> {
        let fence_ms = self.spec.lease().fence_ms;
        if fence_ms <= sys::boot_ms() {
            let why = "is not started: the node has no lease, and it must not run without one";
            return Err(self.trouble(why));
        }
        let started = Process::start(&self.spec, fence_ms);
        let (mut process, lease) = started.map_err(|e| self.trouble(&format!("cannot be started: {e}")))?;
        {
            let mut kept = self.spec.lease();
            kept.pipe = Some(lease);
            // It may have been extended while the guard was started.
            kept.tell();
        }
        let hello =
            Told::Hello { version: VERSION, feed: self.spec.feed.to_string(), node: self.spec.node.clone() };
        let limit = self.spec.limits.hello;
        let greeted = async {
            process.tell(&hello)?;
            match timeout(limit, process.said.recv()).await {
                Ok(Some(Heard::Said(Said::Hello { version: VERSION }))) => Ok(()),
                Ok(Some(Heard::Said(Said::Hello { version }))) => {
                    Err(format!("speaks version {version} of the protocol, and this daemon {VERSION}"))
                }
                Ok(Some(Heard::Said(_))) => Err("said something else before its hello".to_owned()),
                Ok(Some(Heard::Rubbish(line))) => Err(rubbish(&line)),
                Ok(None) => Err(CLOSED.to_owned()),
                Err(_) => Err(format!("said no hello within {} ms", limit.as_millis())),
            }
        };
        match greeted.await {
            Ok(()) => Ok(process),
            Err(why) => {
                let words = self.ended(process, why == CLOSED).await;
                Err(self.trouble(&together(&why, &words)))
            }
        }
    }

    /// Ends it, and waits until nothing of it runs: until then a successor could find it still writing.
    /// Those who ask meanwhile wait as well, but not for ever.
    async fn ended(&mut self, mut process: Process, closed: bool) -> String {
        if closed {
            process.left_alone(CLOSED_PATIENCE).await;
        }
        self.spec.lease().pipe = None;
        let ended = process.ended();
        tokio::pin!(ended);
        let mut wanted = true;
        let mut patience = Instant::now() + self.spec.limits.answer;
        loop {
            tokio::select! {
                words = &mut ended => return words,
                order = self.orders.recv(), if wanted => match order {
                    Some(order) => self.queue(order),
                    None => wanted = false,
                },
                () = sleep_until(patience) => {
                    patience += self.spec.limits.answer;
                    let trouble = self.trouble("was killed, and does not end");
                    self.waiting.drain(..).for_each(|order| order.refuse(&trouble));
                }
            }
        }
    }

    fn trouble(&self, why: &str) -> Trouble {
        failed(&self.spec, why)
    }

    async fn live(&mut self, life: &mut Life<'_>) -> End {
        let mut ping = interval(life.spec.limits.ping_every);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while let Some(order) = self.waiting.pop_front() {
            if let Err(why) = life.order(order) {
                return End::Failed(why);
            }
        }
        loop {
            let due = life.pending.first_key_value().map(|(_, pending)| pending.until);
            let step = tokio::select! {
                said = life.process.said.recv() => match said {
                    Some(Heard::Said(said)) => life.heard(said),
                    Some(Heard::Rubbish(line)) => Err(rubbish(&line)),
                    None => Err(CLOSED.to_owned()),
                },
                order = self.orders.recv() => match order {
                    Some(order) => life.order(order),
                    None => return End::Unwanted,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Err(life.silent()),
                _ = ping.tick() => life.ping(),
            };
            if let Err(why) = step {
                return End::Failed(why);
            }
        }
    }
}

impl End {
    fn is_closed(&self) -> bool {
        match self {
            End::Unwanted => false,
            End::Failed(why) => why == CLOSED,
        }
    }
}

const CLOSED: &str = "closed its stdout";

fn rubbish(line: &str) -> String {
    format!("printed what is no message: {line}")
}

/// Its own reason, and what was seen of the end where that says more.
fn together(why: &str, words: &str) -> String {
    match words.strip_prefix("killed: ").and_then(|rest| rest.strip_prefix(LET_GO)) {
        Some(rest) => format!("{why}{rest}"),
        None if why == CLOSED => words.to_owned(),
        None => format!("{why}; {words}"),
    }
}

fn failed(spec: &Spec, why: &str) -> Trouble {
    let program = spec.command.first().map_or("", String::as_str);
    Trouble::passing(Code::CommandFailed, format!("the command {program:?} of feed {}: {why}", spec.feed))
}

impl Order {
    fn refuse(self, trouble: &Trouble) {
        reply(self.answer, Err(trouble.clone()));
    }

    fn starts(&self, wanted: &SpanName, with: SpanEpoch) -> bool {
        match &self.ask {
            Ask::Start { span, epoch, .. } => span == wanted && *epoch == with,
            Ask::Spans | Ask::Prepare(_) | Ask::Release(_) | Ask::Stop { .. } | Ask::Sweep(_) => false,
        }
    }
}

impl<'a> Life<'a> {
    fn new(spec: &'a Spec, process: Process) -> Life<'a> {
        let (pending, hosted) = (BTreeMap::new(), BTreeMap::new());
        Life { spec, process, next_id: 1, pending, hosted, parked: Vec::new() }
    }

    fn order(&mut self, order: Order) -> Result<(), String> {
        let Order { ask, answer } = order;
        let id = self.next_id;
        match ask {
            Ask::Spans => self.put(Told::Spans { id }, What::Spans, answer),
            Ask::Prepare(span) => self.put(Told::Prepare { id, span }, What::Plain("prepare"), answer),
            Ask::Release(span) => self.put(Told::Release { id, span }, What::Plain("release"), answer),
            Ask::Sweep(keep) => self.put(Told::Sweep { id, keep }, What::Plain("sweep"), answer),
            Ask::Start { span, epoch, from, events } => self.start(span, epoch, from, events, answer),
            Ask::Stop { span, epoch } => self.stop(span, epoch, answer),
        }
    }

    fn put(&mut self, told: Told, what: What, answer: Waiter) -> Result<(), String> {
        let until = Instant::now() + self.spec.limits.answer;
        self.pending.insert(self.next_id, Pending { what, until, answer });
        self.next_id += 1;
        self.process.tell(&told)
    }

    fn start(
        &mut self,
        span: SpanName,
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
        events: mpsc::UnboundedSender<Event>,
        answer: Waiter,
    ) -> Result<(), String> {
        match self.hosted.get(&span) {
            Some(there) if there.epoch > epoch => {
                let why = format!("{span}: epoch {epoch} is out of date, {} runs here", there.epoch);
                reply(answer, Err(Trouble::fenced(why)));
                Ok(())
            }
            Some(there) => {
                let (epoch_there, stopping) = (there.epoch, there.stopping);
                let ask = Ask::Start { span: span.clone(), epoch, from, events };
                self.parked.push(Order { ask, answer });
                match stopping {
                    true => Ok(()),
                    false => self.stop(span, epoch_there, None),
                }
            }
            None => {
                self.hosted.insert(span.clone(), Hosted { epoch, events, stopping: false });
                let from = from.map(Into::into);
                let told = Told::Start { id: self.next_id, span: span.clone(), epoch: epoch.0, from };
                self.put(told, What::Start(span, epoch), answer)
            }
        }
    }

    fn stop(&mut self, span: SpanName, epoch: SpanEpoch, answer: Waiter) -> Result<(), String> {
        let count = self.parked.len();
        self.parked.retain(|order| !order.starts(&span, epoch));
        if self.parked.len() < count {
            reply(answer, Ok(Answer::Done));
            return Ok(());
        }
        match self.hosted.get_mut(&span) {
            Some(hosted) if hosted.epoch == epoch => {
                hosted.stopping = true;
                let told = Told::Stop { id: self.next_id, span: span.clone(), epoch: epoch.0 };
                self.put(told, What::Stop(span, epoch), answer)
            }
            Some(_) | None => {
                let why = format!("{span} does not run with epoch {epoch}");
                reply(answer, Err(Trouble::passing(Code::CommandFailed, why)));
                Ok(())
            }
        }
    }

    fn ping(&mut self) -> Result<(), String> {
        // A question that waits shows as well whether it lives.
        match self.pending.is_empty() {
            true => self.put(Told::Ping { id: self.next_id }, What::Plain("ping"), None),
            false => Ok(()),
        }
    }

    fn silent(&self) -> String {
        let what = match self.pending.first_key_value().map(|(_, pending)| &pending.what) {
            Some(What::Spans) => "spans".to_owned(),
            Some(What::Plain(what)) => (*what).to_owned(),
            Some(What::Start(span, _)) => format!("start of {span}"),
            Some(What::Stop(span, _)) => format!("stop of {span}"),
            None => "nothing".to_owned(),
        };
        format!("did not answer {what:?} within {} ms", self.spec.limits.answer.as_millis())
    }

    fn heard(&mut self, said: Said) -> Result<(), String> {
        match said {
            Said::Hello { .. } => Err("said hello twice".to_owned()),
            Said::Done { id } => {
                let pending = self.answered(id)?;
                match pending.what {
                    What::Spans | What::Stop(..) => Err(format!("answered {id} with \"done\"")),
                    What::Plain(_) | What::Start(..) => {
                        reply(pending.answer, Ok(Answer::Done));
                        Ok(())
                    }
                }
            }
            Said::Spans { id, spans, held_back, warnings } => {
                let pending = self.answered(id)?;
                match pending.what {
                    What::Spans => {
                        let outlook = self.outlook(spans, held_back, warnings);
                        reply(pending.answer, outlook.map(Answer::Spans));
                        Ok(())
                    }
                    What::Plain(_) | What::Start(..) | What::Stop(..) => {
                        Err(format!("answered {id} with \"spans\""))
                    }
                }
            }
            Said::Stopped { id, position, at } => self.stopped(id, checkpoint(position, at)),
            Said::Error { id, message, lasting, fenced } => {
                let trouble = self.spoken(&message, lasting, fenced);
                self.refused(id, trouble)
            }
            Said::Checkpoint { span, epoch, position, at } => {
                // One of an earlier epoch may have been on its way.
                if let Some(hosted) = self.hosted.get(span.as_str()).filter(|h| h.epoch.0 == epoch) {
                    let _ = hosted.events.send(Event::Checkpoint(checkpoint(position, at)));
                }
                Ok(())
            }
            Said::Failed { span, epoch, message, lasting, fenced } => {
                let trouble = self.spoken(&message, lasting, fenced);
                let name = SpanName::new(&span);
                match self.runs(&name, SpanEpoch(epoch)) {
                    true => self.leave(&name, trouble),
                    false => Ok(()),
                }
            }
        }
    }

    fn answered(&mut self, id: u64) -> Result<Pending, String> {
        self.pending.remove(&id).ok_or_else(|| format!("answered {id}, which it was not asked"))
    }

    fn stopped(&mut self, id: u64, last: Checkpoint) -> Result<(), String> {
        let pending = self.answered(id)?;
        let What::Stop(span, epoch) = &pending.what else {
            return Err(format!("answered {id}, which is no stop, with \"stopped\""));
        };
        let (span, epoch) = (span.clone(), *epoch);
        reply(pending.answer, Ok(Answer::Stopped(last)));
        // It may have failed and been started again while the stop was on its way.
        match self.runs(&span, epoch) {
            true => self.leave(&span, Trouble::fenced(format!("{span} was started with another epoch"))),
            false => Ok(()),
        }
    }

    fn runs(&self, span: &SpanName, epoch: SpanEpoch) -> bool {
        self.hosted.get(span).is_some_and(|hosted| hosted.epoch == epoch)
    }

    fn refused(&mut self, id: u64, trouble: Trouble) -> Result<(), String> {
        let pending = self.answered(id)?;
        match &pending.what {
            // Whether it runs on is unknown. Nobody else may start it before that is settled.
            What::Stop(span, epoch) if self.runs(span, *epoch) => {
                let why = format!("cannot stop {span}: {}", trouble.message);
                // Told like everybody else, once the process is dead.
                self.pending.insert(id, pending);
                Err(why)
            }
            What::Start(span, epoch) => {
                let (span, epoch) = (span.clone(), *epoch);
                reply(pending.answer, Err(trouble.clone()));
                match self.runs(&span, epoch) {
                    true => self.leave(&span, trouble),
                    false => Ok(()),
                }
            }
            What::Spans | What::Plain(_) | What::Stop(..) => {
                reply(pending.answer, Err(trouble));
                Ok(())
            }
        }
    }

    /// A dispatcher that does not run any more. Starts that waited for it follow.
    fn leave(&mut self, span: &SpanName, trouble: Trouble) -> Result<(), String> {
        if let Some(gone) = self.hosted.remove(span) {
            let _ = gone.events.send(Event::Ended(trouble));
        }
        let follows = |order: &Order| matches!(&order.ask, Ask::Start { span: parked, .. } if parked == span);
        let (next, others) = std::mem::take(&mut self.parked).into_iter().partition(follows);
        self.parked = others;
        let next: Vec<Order> = next;
        next.into_iter().try_for_each(|order| self.order(order))
    }

    fn outlook(
        &self,
        spans: Vec<String>,
        held_back: Option<u64>,
        mut warnings: Vec<String>,
    ) -> Result<Outlook, Trouble> {
        if spans.len() > SPANS_MAX {
            return Err(failed(
                self.spec,
                &format!("listed {} spans, {SPANS_MAX} are too many", spans.len()),
            ));
        }
        let fine = |name: &String| {
            !name.is_empty() && name.len() <= SPAN_BYTES_MAX && !name.chars().any(char::is_control)
        };
        if let Some(name) = spans.iter().find(|name| !fine(name)) {
            let name: String = name.chars().take(SPAN_BYTES_MAX).collect();
            return Err(failed(self.spec, &format!("listed {name:?}, which is no name of a span")));
        }
        let names: BTreeSet<SpanName> = spans.iter().map(|name| SpanName::new(name)).collect();
        warnings.iter_mut().for_each(|warning| *warning = bounded(warning));
        Ok(Outlook { spans: names.into_iter().collect(), held_back, warnings, mark: None })
    }

    fn spoken(&self, message: &str, lasting: bool, fenced: bool) -> Trouble {
        let message = bounded(message);
        match (fenced, lasting) {
            (true, _) => Trouble::fenced(message),
            (false, true) => Trouble::lasting(Code::CommandFailed, message),
            (false, false) => Trouble::passing(Code::CommandFailed, message),
        }
    }

    /// Those who only asked something need not wait for the end of the process, should it take long.
    fn split(self) -> (Process, Waiters, Vec<Order>) {
        let Life { process, pending, hosted, parked, .. } = self;
        let plain = |pending: &Pending| matches!(pending.what, What::Spans | What::Plain(_));
        let (questions, pending): (Vec<Pending>, Vec<Pending>) = pending.into_values().partition(plain);
        let questions =
            questions.into_iter().map(|question| Order { ask: Ask::Spans, answer: question.answer });
        (process, Waiters { pending, hosted, parked }, questions.collect())
    }
}

impl Waiters {
    /// Everybody who waits is told, once nothing of the process runs any more.
    fn close(self, spec: &Spec, end: End, words: &str) -> Option<Trouble> {
        let trouble = match end {
            End::Unwanted => return None,
            End::Failed(why) => failed(spec, &together(&why, words)),
        };
        for pending in self.pending {
            reply(pending.answer, Err(trouble.clone()));
        }
        for hosted in self.hosted.into_values() {
            let _ = hosted.events.send(Event::Ended(trouble.clone()));
        }
        self.parked.into_iter().for_each(|order| order.refuse(&trouble));
        Some(trouble)
    }
}

fn bounded(words: &str) -> String {
    words.chars().take(WORDS_MAX).collect()
}
