//! One term in office: the one task that owns the coordinator.
//!
//! Entered with the office won and the state loaded. Left when the office is lost, when the lease can
//! no longer hold by our own clock, when the coordinator resigns, or when the daemon stops. A crash
//! here loses nothing: all that anybody was told is in the store.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{BackendAnswer, BackendFailure, Event, EventKind, Millis, Term, Time};
use protocol::coordinator::{
    Answer, ApiError, Asked, BackendOrder, CallId, ConnId, Coordinator, Input, Output, Request, RequestId,
    Start, Stored,
};
use protocol::message::Down;
use store::Office as Won;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use wire::{ConnEvent, Outbox};

use super::{Shared, backends::Backends, commit, load::Loaded, tally::Tally};
use crate::Clock;

/// Sleeps are cut into pieces: the timer stands still while the machine is suspended, the boot clock
/// does not.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// A wake-up that stays due must not keep the task from its other inputs.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// Hands out what a reader waits for.
pub(crate) type Release = Box<dyn FnOnce() + Send>;
pub(crate) type Look = Box<dyn FnOnce(&Coordinator, Time) -> Release + Send>;

/// From outside; held back when too many wait.
pub(crate) enum Inbound {
    Ask { asked: Asked, reply: oneshot::Sender<Result<Answer, ApiError>> },
    Look { look: Look, committed: bool },
}

/// From this office's own tasks.
pub(crate) enum Control {
    Stored(Stored),
    Head { number: u64, by: Term },
    Holds { until: Time },
    Lost { why: String },
    Backend { call: CallId, result: Result<BackendAnswer, BackendFailure> },
}

enum Next {
    Stop,
    Control(Control),
    Stream(ConnId, ConnEvent),
    Inbound(Inbound),
    /// Time has passed.
    Nothing,
}

enum Waiting {
    Reply(oneshot::Sender<Result<Answer, ApiError>>),
    Release(Release),
}

/// Why a term ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The daemon stops.
    Stopped,
    /// Not ours any more, or given up.
    Over(String),
    /// Given up so that another may have it.
    HandedOver,
}

pub(crate) struct Tenure {
    shared: Arc<Shared>,
    won: Won,
    clock: Clock,
    coordinator: Coordinator,
    /// By our own clock, counted from before the request that granted it.
    holds_until: Time,
    streams: BTreeMap<ConnId, Outbox>,
    waiting: BTreeMap<RequestId, Waiting>,
    next_request: u64,
    tasks: JoinSet<()>,
    tally: Tally,
    backends: Backends,
    control: mpsc::UnboundedSender<Control>,
    from_control: mpsc::UnboundedReceiver<Control>,
    inbound: mpsc::Receiver<Inbound>,
    from_streams: mpsc::Receiver<(wire::ConnId, ConnEvent)>,
}

/// The channels of one term, made before the state is loaded: the lease is kept meanwhile.
pub(crate) struct Channels {
    pub control: mpsc::UnboundedSender<Control>,
    pub from_control: mpsc::UnboundedReceiver<Control>,
    pub inbound: mpsc::Receiver<Inbound>,
    pub from_streams: mpsc::Receiver<(wire::ConnId, ConnEvent)>,
}

impl Tenure {
    pub fn new(
        shared: &Arc<Shared>,
        won: Won,
        clock: Clock,
        holds_until: Time,
        loaded: Loaded,
        channels: Channels,
    ) -> Result<(Tenure, Vec<Output>), String> {
        let start = Start {
            cluster: loaded.cluster,
            head: loaded.position.head,
            term: Term(won.term),
            timing: shared.config.timing,
            random: random()?,
            candidate: shared.config.candidate.clone(),
            api: shared.config.api.clone(),
            drain: shared.config.drain,
            feeds: shared.config.feeds,
        };
        let (coordinator, outputs) = Coordinator::new(start, clock.now());
        let term = Tenure {
            shared: Arc::clone(shared),
            won,
            clock,
            coordinator,
            holds_until,
            streams: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_request: 1,
            tasks: JoinSet::new(),
            tally: Tally::default(),
            backends: Backends::new(shared.config.pd_settle),
            control: channels.control,
            from_control: channels.from_control,
            inbound: channels.inbound,
            from_streams: channels.from_streams,
        };
        Ok((term, outputs))
    }

    pub async fn run(mut self, first: Vec<Output>) -> End {
        let until = self.holds_until;
        let begun = match self.perform(first) {
            ControlFlow::Continue(()) => self.handle(Input::OfficeHolds { until }),
            over => over,
        };
        let end = match begun {
            ControlFlow::Continue(()) => self.serve().await,
            ControlFlow::Break(end) => end,
        };
        // Dropping a million records takes a while; nobody should wait for it.
        tokio::task::spawn_blocking(move || drop(self));
        end
    }

    async fn serve(&mut self) -> End {
        loop {
            let next = self.next().await;
            if let ControlFlow::Break(end) = self.take(next) {
                return end;
            }
        }
    }

    async fn next(&mut self) -> Next {
        let sleep = tokio::time::sleep(self.pause());
        tokio::select! {
            () = self.shared.stop.cancelled() => Next::Stop,
            Some(control) = self.from_control.recv() => Next::Control(control),
            Some((conn, event)) = self.from_streams.recv() => Next::Stream(ConnId(conn.0), event),
            Some(inbound) = self.inbound.recv() => Next::Inbound(inbound),
            () = sleep => Next::Nothing,
        }
    }

    /// The lease is looked at after every wait and before anything is answered: the machine may have
    /// been suspended in between, and another elected.
    fn take(&mut self, next: Next) -> ControlFlow<End> {
        let next = match next {
            Next::Control(control) => {
                self.control(control)?;
                Next::Nothing
            }
            other => other,
        };
        // An input that took long must not make us overlook that the lease was extended meanwhile.
        while let Ok(control) = self.from_control.try_recv() {
            self.control(control)?;
        }
        let now = self.clock.now();
        if now >= self.holds_until {
            return ControlFlow::Break(End::Over(
                "the office lease ran out before it was extended".to_owned(),
            ));
        }
        match next {
            Next::Stop => return ControlFlow::Break(End::Stopped),
            Next::Stream(conn, event) => self.stream(conn, event)?,
            Next::Inbound(inbound) => self.inbound(inbound)?,
            Next::Control(_) | Next::Nothing => {}
        }
        match self.coordinator.next_wake() {
            Some(wake) if wake <= now => self.handle(Input::Tick),
            Some(_) | None => ControlFlow::Continue(()),
        }
    }

    /// How long nothing needs to be done unless something comes in.
    fn pause(&self) -> Duration {
        let now = self.clock.now();
        let due = self.coordinator.next_wake().map_or(Millis(u64::MAX), |wake| wake.since(now));
        let lease = self.holds_until.since(now);
        due.min(lease).as_duration().clamp(SLEEP_MIN, SLEEP_MAX)
    }

    fn control(&mut self, control: Control) -> ControlFlow<End> {
        match control {
            Control::Stored(outcome) => self.handle(Input::Stored(outcome)),
            Control::Head { number, by } => self.handle(Input::Head { number, by }),
            Control::Holds { until } => {
                self.holds_until = until;
                self.handle(Input::OfficeHolds { until })
            }
            Control::Lost { why } => ControlFlow::Break(End::Over(why)),
            Control::Backend { call, result } => self.handle(Input::Backend { call, result }),
        }
    }

    fn stream(&mut self, conn: ConnId, event: ConnEvent) -> ControlFlow<End> {
        match event {
            ConnEvent::Opened(outbox) => {
                self.streams.insert(conn, outbox);
                self.shared.metrics.streams.set(self.streams.len() as i64);
                ControlFlow::Continue(())
            }
            // What a stream said before it was cut off is out of date.
            ConnEvent::Message(_) if !self.streams.contains_key(&conn) => ControlFlow::Continue(()),
            ConnEvent::Message(message) => self.handle(Input::Up { conn, message }),
            ConnEvent::Closed => {
                self.streams.remove(&conn);
                self.shared.metrics.streams.set(self.streams.len() as i64);
                self.handle(Input::Closed { conn })
            }
        }
    }

    fn inbound(&mut self, inbound: Inbound) -> ControlFlow<End> {
        match inbound {
            Inbound::Ask { asked, reply } => self.ask(asked, Waiting::Reply(reply)),
            Inbound::Look { look, committed } => {
                let release = look(&self.coordinator, self.clock.now());
                if !committed {
                    release();
                    return ControlFlow::Continue(());
                }
                let asked = Asked { who: String::new(), from: String::new(), request: Request::Barrier };
                self.ask(asked, Waiting::Release(release))
            }
        }
    }

    fn ask(&mut self, asked: Asked, waiting: Waiting) -> ControlFlow<End> {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.waiting.insert(id, waiting);
        self.handle(Input::Request { id, asked })
    }

    fn handle(&mut self, input: Input) -> ControlFlow<End> {
        let begun = Instant::now();
        let outputs = self.coordinator.handle(self.clock.now(), input);
        self.shared.metrics.plan.observe(begun.elapsed().as_secs_f64());
        self.tally.count_feeds(&self.shared.metrics, self.coordinator.feed_moves());
        self.perform(outputs)
    }

    fn perform(&mut self, outputs: Vec<Output>) -> ControlFlow<End> {
        for output in outputs {
            match output {
                Output::Send { conn, message } => self.send(conn, message),
                Output::Close { conn } => {
                    // The stream's own task sees its end and says `Closed`.
                    self.streams.remove(&conn);
                }
                Output::Reply { id, result } => match (self.waiting.remove(&id), result) {
                    (Some(Waiting::Reply(reply)), result) => {
                        // who asked may be gone
                        let _gone = reply.send(result);
                    }
                    (Some(Waiting::Release(release)), Ok(_)) => release(),
                    // dropped unreleased: the reader learns that the coordinator is gone
                    (Some(Waiting::Release(_)), Err(_)) | (None, _) => {}
                },
                Output::Event(event) => self.event(event),
                Output::Backend(order) => self.call(&order),
                Output::Transact { head, ops } => self.transact(head, ops),
                Output::ReadHead => self.read_head(),
                Output::Resign { why } => return ControlFlow::Break(End::Over(why)),
                Output::HandOver => return ControlFlow::Break(End::HandedOver),
            }
        }
        ControlFlow::Continue(())
    }

    fn send(&mut self, conn: ConnId, message: Down) {
        let Some(stream) = self.streams.get(&conn) else { return };
        if stream.send(message).is_err() {
            // Behind by a whole queue, or gone: `Closed` follows, and the daemon starts afresh.
            self.streams.remove(&conn);
        }
    }

    fn event(&mut self, event: Event) {
        log(&event);
        self.tally.count(&self.shared.metrics, self.coordinator.cluster(), &event);
        self.shared.events.push(event);
    }

    fn transact(&mut self, head: u64, ops: Vec<protocol::coordinator::Op>) {
        let (shared, won, control) = (Arc::clone(&self.shared), self.won.clone(), self.control.clone());
        self.spawn(async move {
            let outcome = commit::commit(&shared, &won, head, ops).await;
            let _over = control.send(Control::Stored(outcome));
        });
    }

    fn read_head(&mut self) {
        let (shared, won, control) = (Arc::clone(&self.shared), self.won.clone(), self.control.clone());
        self.spawn(async move {
            let (number, by) = commit::read_head(&shared, &won).await;
            let _over = control.send(Control::Head { number, by });
        });
    }

    fn call(&mut self, order: &BackendOrder) {
        let cluster = self.coordinator.cluster();
        self.backends.retain(|group| cluster.store_group(group.as_str()).is_some());
        let (id, answer, control) = (order.id, self.backends.call(order, self.clock), self.control.clone());
        self.spawn(async move {
            let result = answer.await;
            let _over = control.send(Control::Backend { call: id, result });
        });
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }
}

/// A rollout of a thousand instances is one line, not thousands.
fn log(event: &Event) {
    let (kind, unit, message) = (event.kind.as_str(), event.unit.as_str(), event.message.as_str());
    match event.kind {
        EventKind::InstanceAllocated
        | EventKind::InstanceDesiredStateChanged
        | EventKind::InstanceStatusChanged => tracing::debug!(kind, unit, "{message}"),
        _ => tracing::info!(kind, unit, "{message}"),
    }
}

fn random() -> Result<u64, String> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_le_bytes(bytes)),
        Ok(n) => Err(format!("the system gave {n} random bytes of 8")),
        Err(error) => Err(format!("no random bytes from the system: {error}")),
    }
}
