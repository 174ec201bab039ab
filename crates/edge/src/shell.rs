//! The task that owns the edge's state machine, performs its outputs and feeds it what happens.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use model::{Millis, Time};
use protocol::{
    edge::{Attempt, ConnId, Edge, Input, Output},
    message::{Duty, EdgeReport, Sets},
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    connection::{self, Command},
    handle::Stats,
    listener,
};

/// Connections at once. More would be more than the ports towards one backend address.
const CONNECTIONS_MAX: usize = 28_000;

/// Descriptors left for everything else the daemon does: streams, logs, processes.
const DESCRIPTORS_RESERVED: u64 = 256;

/// A connection holds two sockets: client and backend.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;

/// Events waiting for the owner. When it is full, listeners and connections wait, the owner never does.
const EVENTS_MAX: usize = 1024;

/// What the handle asks for.
pub(crate) enum Control {
    Apply(Sets),
    Duty(Duty),
    Stats(oneshot::Sender<Stats>),
    LastSets(oneshot::Sender<Option<Sets>>),
    Shutdown { grace: Millis, done: oneshot::Sender<()> },
}

/// What happened on a socket.
pub(crate) enum Event {
    Accepted {
        port: u16,
        client: TcpStream,
        permit: OwnedSemaphorePermit,
    },
    /// The port is closed; because it broke, if `lost` says so.
    ListenerClosed {
        port: u16,
        lost: Option<String>,
    },
    Dialled {
        conn: ConnId,
        attempt: Attempt,
    },
    DialFailed {
        conn: ConnId,
        attempt: Attempt,
    },
    Closed {
        conn: ConnId,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Again,
    NoMore,
}

pub(crate) struct Shell {
    edge: Edge,
    bind_host: IpAddr,
    started: Instant,
    listeners: HashMap<u16, CancellationToken>,
    /// Ports on their way to being closed, and whether they are wanted again after that.
    closing: BTreeMap<u16, Wanted>,
    /// Every connection that holds sockets, also those the edge has already forgotten.
    conns: HashMap<ConnId, mpsc::UnboundedSender<Command>>,
    accepted: u64,
    refused: u64,
    limit: usize,
    permits: Arc<Semaphore>,
    events: mpsc::Sender<Event>,
    happened: Option<mpsc::Receiver<Event>>,
    report: watch::Sender<EdgeReport>,
    /// Who waits for the end, once it has been asked for.
    ending: Option<Vec<oneshot::Sender<()>>>,
}

impl Shell {
    pub fn new(bind_host: IpAddr, withdraw_delay: Millis, report: watch::Sender<EdgeReport>) -> Shell {
        let (events, happened) = mpsc::channel(EVENTS_MAX);
        let limit = connection_limit();
        Shell {
            edge: Edge::with_delay(withdraw_delay),
            bind_host,
            started: Instant::now(),
            listeners: HashMap::new(),
            closing: BTreeMap::new(),
            conns: HashMap::new(),
            accepted: 0,
            refused: 0,
            limit,
            permits: Arc::new(Semaphore::new(limit)),
            events,
            happened: Some(happened),
            report,
            ending: None,
        }
    }

    pub async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Control>) {
        let Some(mut happened) = self.happened.take() else { return };
        let mut held = true;
        while self.ending.is_none() || !self.conns.is_empty() || !self.closing.is_empty() {
            // Here and not only below: under load there is always an event, and it would never be its turn.
            let wake = self.edge.next_wake();
            if wake.is_some_and(|wake| wake <= self.now()) {
                self.feed(Input::Tick);
                continue;
            }
            let sleep = tokio::time::sleep_until(self.instant(wake.unwrap_or_default()));
            // Sets before events: a confirmation must not queue behind a burst of connections.
            tokio::select! {
                biased;
                order = orders.recv(), if held => match order {
                    Some(order) => self.obey(order),
                    None => {
                        held = false;
                        self.stop(Millis::ZERO);
                    }
                },
                Some(event) = happened.recv() => self.note(event),
                () = sleep, if wake.is_some() => {}
                else => break,
            }
        }
        for waiting in self.ending.into_iter().flatten() {
            // Whoever asked may have given up waiting.
            let _ = waiting.send(());
        }
    }

    fn now(&self) -> Time {
        Time::default() + Millis::from(self.started.elapsed())
    }

    fn instant(&self, time: Time) -> Instant {
        self.started + Duration::from_millis(time.0)
    }

    fn obey(&mut self, control: Control) {
        match control {
            Control::Apply(sets) => self.feed(Input::Sets(sets)),
            Control::Duty(duty) => {
                tracing::info!(?duty, "told by the coordinator");
                self.feed(Input::Duty(duty));
            }
            // An answer nobody waits for any more is dropped.
            Control::Stats(answer) => drop(answer.send(self.stats())),
            Control::LastSets(answer) => drop(answer.send(self.edge.sets())),
            Control::Shutdown { grace, done } => {
                self.stop(grace);
                self.ending.get_or_insert_default().push(done);
            }
        }
    }

    fn stop(&mut self, grace: Millis) {
        self.ending.get_or_insert_default();
        self.feed(Input::Stop { grace });
    }

    fn stats(&self) -> Stats {
        Stats {
            open: self.conns.len(),
            limit: self.limit,
            accepted: self.accepted,
            refused: self.refused,
            services: self.edge.stats(),
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Accepted { port, client, permit } => {
                self.accepted += 1;
                let conn = ConnId(self.accepted);
                let (commands, told) = mpsc::unbounded_channel();
                self.conns.insert(conn, commands);
                tokio::spawn(connection::run(conn, client, told, self.events.clone(), permit));
                self.feed(Input::Accepted { conn, port });
            }
            Event::ListenerClosed { port, lost } => self.listener_closed(port, lost),
            Event::Dialled { conn, attempt } => self.feed(Input::Dialled { conn, attempt }),
            Event::DialFailed { conn, attempt } => self.feed(Input::DialFailed { conn, attempt }),
            Event::Closed { conn } => {
                self.conns.remove(&conn);
                self.feed(Input::Closed { conn });
            }
        }
    }

    /// Gives the edge an input, performs what it says, and gives it what came of that.
    fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        let mut reports = false;
        let withdrawal = self.edge.withdrawal();
        while let Some(input) = inputs.pop_front() {
            reports |= match input {
                Input::Sets(_)
                | Input::Listening { .. }
                | Input::ListenFailed { .. }
                | Input::Stop { .. } => true,
                Input::Duty(_)
                | Input::Unlistened { .. }
                | Input::Accepted { .. }
                | Input::Dialled { .. }
                | Input::DialFailed { .. }
                | Input::Closed { .. }
                | Input::Tick => false,
            };
            for output in self.edge.handle(input, self.now()) {
                inputs.extend(self.perform(output));
            }
        }
        if withdrawal != self.edge.withdrawal() {
            tracing::info!(withdrawal = ?self.edge.withdrawal(), "withdrawal");
            reports = true;
        }
        if reports {
            let report = self.edge.report();
            self.report.send_if_modified(|last| {
                let changed = *last != report;
                *last = report;
                changed
            });
        }
    }

    fn perform(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Listen { port } => return self.listen(port),
            Output::Unlisten { port } => return self.unlisten(port),
            Output::Dial { conn, attempt, instance, address } => {
                tracing::trace!(conn = conn.0, %instance, %address, "dialling");
                self.tell(conn, Command::Dial { attempt, address });
            }
            Output::Hold { conn } => self.tell(conn, Command::Hold),
            Output::Copy { conn, instance } => {
                tracing::trace!(conn = conn.0, %instance, "copying");
                self.tell(conn, Command::Copy);
            }
            Output::Refuse { conn, why } => {
                tracing::debug!(conn = conn.0, ?why, "refused");
                self.refused += 1;
                self.tell(conn, Command::End);
            }
            Output::Cut { conn, instance } => {
                tracing::debug!(conn = conn.0, %instance, "cut: its grace is over");
                self.tell(conn, Command::End);
            }
            Output::Serves(revision) => tracing::debug!(?revision, "sets in force"),
        }
        None
    }

    /// Opens a port and says what came of it; if it is just being closed, that comes later.
    fn listen(&mut self, port: u16) -> Option<Input> {
        if let Some(wanted) = self.closing.get_mut(&port) {
            *wanted = Wanted::Again;
            return None;
        }
        if self.listeners.contains_key(&port) {
            return Some(Input::Listening { port });
        }
        let address = SocketAddr::new(self.bind_host, port);
        match listener::bind(address) {
            Ok(socket) => {
                tracing::info!(%address, "listening");
                let closed = CancellationToken::new();
                let accept =
                    listener::run(socket, port, self.permits.clone(), self.events.clone(), closed.clone());
                tokio::spawn(accept);
                self.listeners.insert(port, closed);
                Some(Input::Listening { port })
            }
            Err(error) => {
                tracing::warn!(%address, %error, "cannot listen");
                Some(Input::ListenFailed { port, message: format!("cannot listen on {address}: {error}") })
            }
        }
    }

    fn unlisten(&mut self, port: u16) -> Option<Input> {
        if let Some(listener) = self.listeners.remove(&port) {
            tracing::info!(port, "closing");
            listener.cancel();
            self.closing.insert(port, Wanted::NoMore);
        } else if let Some(wanted) = self.closing.get_mut(&port) {
            *wanted = Wanted::NoMore;
        } else {
            return Some(Input::Unlistened { port });
        }
        None
    }

    fn listener_closed(&mut self, port: u16, lost: Option<String>) {
        match self.closing.remove(&port) {
            Some(Wanted::NoMore) => self.feed(Input::Unlistened { port }),
            Some(Wanted::Again) => {
                if let Some(input) = self.listen(port) {
                    self.feed(input);
                }
            }
            None => {
                self.listeners.remove(&port);
                self.feed(Input::ListenFailed { port, message: lost.unwrap_or_default() });
            }
        }
    }

    fn tell(&self, conn: ConnId, command: Command) {
        if let Some(commands) = self.conns.get(&conn) {
            // A connection that has ended has its `Closed` on the way.
            let _ = commands.send(command);
        }
    }
}

/// As many connections as this process has descriptors for. Beyond that `accept` would fail, and with
/// it everything else here that opens a file.
fn connection_limit() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let by_descriptors = descriptors.map_or(usize::MAX, |max| {
        let free = max.saturating_sub(DESCRIPTORS_RESERVED) / DESCRIPTORS_PER_CONNECTION;
        usize::try_from(free).unwrap_or(usize::MAX)
    });
    by_descriptors.clamp(16, CONNECTIONS_MAX)
}
