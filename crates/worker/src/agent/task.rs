//! The one task that owns the node.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use model::{Code, Exit, InstanceId, NodeId, Time};
use pipelines::Host;
use protocol::{
    dispatchers::STOP_PATIENCE,
    message::{Down, DownBody, Run, Up, VolumeOrder},
    node::{CopyEnd, FeedNews, FeedWork, Input, Node, Note, Output, Process},
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use wire::Connection;

use super::{
    AgentConfig, AgentError, Clock, EdgeLink, NodeStats, copy, disk,
    launch::{self, Failure, Plan, chain},
    ledger::Ledger,
    link::{self, Link},
};
use crate::{
    feeds::{
        Ears, FeedEvent,
        host::{FeedHost, PROGRESS_PAUSE},
        peers::{PeerEvent, Peers},
    },
    host,
    ports::Ports,
    runtime::{Ended, Found, Handle, RESTARTED, Runtime, blocking},
    volumes::Volumes,
};

/// After so many notes an order is written anew: one whose check comes and goes must not fill the disk.
const NOTES_MAX: u32 = 64;
/// How often the machine is looked at.
const MACHINE_INTERVAL: Duration = Duration::from_secs(5);
/// A data directory fuller than this gets nothing new.
const DISK_FULL_AT: f64 = 0.95;
/// Something that cannot be told dead or alive is looked at again at this pace.
const UNCLEAR_PAUSE: Duration = Duration::from_secs(1);

/// A drained daemon answers for this long before it goes: whoever follows the drain through it sees
/// how it ended.
const LINGER: Duration = Duration::from_secs(2);

/// A daemon that ends waits this long for its dispatchers: they have [`STOP_PATIENCE`] to finish what is in
/// flight, and are aborted then.
pub const STOP_MAX: Duration = Duration::from_secs(15);
const _: () = assert!(STOP_MAX.as_millis() > STOP_PATIENCE.0 as u128);
/// For last words to get out.
const FLUSH: Duration = Duration::from_millis(100);

/// What happened, told to the task.
pub(super) enum Event {
    Down { link: u64, down: Down },
    LinkEnded { link: u64 },
    Connected(Box<Connection>),
    Started { id: InstanceId, run: u32, handle: Handle },
    Input(Input),
}

/// An instance as the shell knows it.
struct Held {
    name: String,
    what: Arc<Run>,
    run: u32,
    ports: Vec<u16>,
    note: Note,
    /// Notes below its order on disk; none can be added while the order itself is being written.
    notes: Notes,
    handle: Option<Handle>,
    checks: CancellationToken,
    copy: CancellationToken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notes {
    /// Its order is being written, with this note.
    Later {
        written: Note,
    },
    Added(u32),
}

/// What of this node outlives the daemon.
pub(super) struct Disk {
    pub runtime: Runtime,
    pub ledger: Ledger,
}

pub(super) struct Task {
    node: Node,
    clock: Clock,
    config: AgentConfig,
    runtime: Arc<Runtime>,
    ledger: Ledger,
    volumes: Arc<Volumes>,
    ports: Ports,
    edge: Option<EdgeLink>,
    held: BTreeMap<InstanceId, Held>,
    link: Option<Link>,
    links: u64,
    dialling: bool,
    fence_ms: Option<u64>,
    refused: Option<String>,
    /// When it was told for the first time that it may go; it is told again with every heartbeat.
    may_leave_since: Option<Time>,
    left: bool,
    feeds: FeedHost,
    peers: Peers,
    events: mpsc::UnboundedSender<Event>,
    coordinator: watch::Sender<Option<String>>,
}

impl Task {
    pub fn new(
        node: Node,
        clock: Clock,
        config: AgentConfig,
        disk: Disk,
        edge: Option<EdgeLink>,
        events: mpsc::UnboundedSender<Event>,
        coordinator: watch::Sender<Option<String>>,
    ) -> (Task, Ears) {
        // Volumes are the operator's: their marker names this kind of data, not one cluster's life.
        let volumes = Arc::new(Volumes::new(&config.data_dir, "tidegate"));
        let seed = host::boottime_ms() as u16;
        let ports = Ports::new(config.ports.clone(), seed);
        let guard = vec![config.exe.clone().into_os_string(), "guard".into()];
        let (news, from_tasks) = mpsc::unbounded_channel();
        let (peers, peer_events) = Peers::new(NodeId::new(&config.node), config.http.keys().cloned());
        let ears = Ears { news: from_tasks, peers: peer_events, incoming: None };
        let task = Task {
            node,
            clock,
            runtime: Arc::new(disk.runtime),
            ledger: disk.ledger,
            volumes,
            ports,
            edge,
            held: BTreeMap::new(),
            link: None,
            links: 0,
            dialling: false,
            fence_ms: None,
            refused: None,
            may_leave_since: None,
            left: false,
            feeds: FeedHost::new(Host { node: config.node.clone(), guard }, news),
            peers,
            events,
            coordinator,
            config,
        };
        (task, ears)
    }

    pub async fn run(
        mut self,
        mut events: mpsc::UnboundedReceiver<Event>,
        mut ears: Ears,
        stats: watch::Sender<NodeStats>,
        shutdown: CancellationToken,
    ) -> Result<(), AgentError> {
        self.find_what_runs().await?;
        self.dial();
        let mut machine = tokio::time::interval(MACHINE_INTERVAL);
        let mut progress = tokio::time::interval(PROGRESS_PAUSE);
        progress.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut edge = self.edge.as_ref().map(|edge| edge.report.clone());
        if let Some(report) = &mut edge {
            let report = report.borrow_and_update().clone();
            self.handle(Input::Edge(report));
        }
        let mut ends_by: Option<tokio::time::Instant> = None;
        loop {
            let now_seen = self.stats();
            stats.send_if_modified(|stats| std::mem::replace(stats, now_seen) != now_seen);
            let wake = self.node.next_wake();
            let pause = wake.map(|at| at.since(self.clock.now()).as_duration());
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(pause.unwrap_or(MACHINE_INTERVAL)) => self.handle(Input::Tick),
                _ = machine.tick() => {
                    let degraded = self.look_at_machine();
                    self.handle(Input::Machine { degraded });
                }
                changed = changed(&mut edge) => match changed {
                    Some(report) => self.handle(Input::Edge(report)),
                    None => edge = None,
                },
                event = ears.next() => self.take_feed_event(event),
                _ = progress.tick(), if !self.feeds.is_idle() => {
                    let news = self.feeds.progressed();
                    if !news.is_empty() {
                        self.handle(Input::Feeds(news));
                    }
                }
                () = shutdown.cancelled(), if ends_by.is_none() => ends_by = Some(self.begin_to_stop()),
                () = until(ends_by) => {
                    tracing::warn!("its dispatchers have not stopped in {STOP_MAX:?}; they end with it");
                    break;
                }
            }
            if let Some(message) = self.refused.take() {
                return Err(AgentError::Refused(message));
            }
            if self.left && ends_by.is_none() {
                tracing::info!("drained, and told to stop then");
                ends_by = Some(self.begin_to_stop());
            }
            if ends_by.is_some() && self.node.may_end() {
                break;
            }
        }
        // Last words get out before their streams go.
        self.peers.close();
        self.link = None;
        tokio::time::sleep(FLUSH).await;
        Ok(())
    }

    /// Dispatchers stop with their final checkpoints; when that has to be over.
    fn begin_to_stop(&mut self) -> tokio::time::Instant {
        self.handle(Input::Stopping);
        tokio::time::Instant::now() + STOP_MAX
    }

    fn take_feed_event(&mut self, event: FeedEvent) {
        match event {
            FeedEvent::News(news) => self.take_feed_news(news),
            FeedEvent::Peers(events) => self.take_heard(events),
            FeedEvent::Stream(from, stream) if self.node.knows(&from) => self.peers.accept(from, *stream),
            FeedEvent::Stream(from, _) => tracing::debug!("{from} is not known here: its stream is refused"),
        }
    }

    fn take_feed_news(&mut self, news: Vec<FeedNews>) {
        for news in &news {
            if let FeedNews::Task(news) = news {
                self.feeds.ended(news);
            }
        }
        self.handle(Input::Feeds(news));
    }

    fn take_heard(&mut self, events: Vec<PeerEvent>) {
        let mut news = Vec::new();
        for event in events {
            match event {
                // Forgotten since it greeted: it is not asked who it is with every message.
                PeerEvent::Heard { from, message } if self.node.knows(&from) => {
                    news.push(FeedNews::Heard(message));
                }
                PeerEvent::Heard { .. } => {}
                PeerEvent::Ended { node, number, lived } => self.peers.ended(&node, number, lived),
            }
        }
        if !news.is_empty() {
            self.handle(Input::Feeds(news));
        }
    }

    fn work(&mut self, work: FeedWork) {
        match work {
            FeedWork::Send { to, rpc, message } => self.peers.send(&to, &rpc, message),
            FeedWork::Task { feed, span, spec, mark, task } => {
                self.feeds.task(feed, span, (spec, mark), task);
            }
            FeedWork::Look { feed, epoch, spec } => self.feeds.look(feed, epoch, &spec),
            FeedWork::Sweep { feed, epoch, spec, keep } => self.feeds.sweep(feed, epoch, &spec, keep),
        }
    }

    fn stats(&self) -> NodeStats {
        let running = self.node.instances().filter(|(_, _, has_process)| *has_process).count();
        NodeStats { registered: self.node.epoch().is_some(), instances: self.held.len(), running }
    }

    fn handle(&mut self, input: Input) {
        let outputs = self.node.handle(self.clock.now(), input);
        for output in outputs {
            self.perform(output);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Connected(connection) => {
                self.dialling = false;
                self.links += 1;
                self.link = Some(Link::open(*connection, self.links, self.events.clone()));
                self.handle(Input::Connected);
            }
            Event::Down { link, down } if link == self.links => {
                if let DownBody::Welcome(welcome) = &down.body {
                    tracing::info!("registered with the coordinator at {} (term {})", welcome.api, down.term);
                    self.coordinator.send_replace(Some(welcome.api.clone()));
                }
                self.handle(Input::Down(down));
            }
            Event::LinkEnded { link } if link == self.links => {
                self.link = None;
                self.handle(Input::Disconnected);
                self.dial();
            }
            Event::Down { .. } | Event::LinkEnded { .. } => {}
            Event::Started { id, run, handle } => self.started(id, run, handle),
            Event::Input(input) => {
                if let Input::Exited { id, run, .. } = &input {
                    self.ended(*id, *run);
                }
                if let Input::LaunchFailed { id, run, .. } = &input {
                    self.written(*id, *run);
                }
                if let Input::Erased { id } = &input {
                    self.held.remove(id);
                }
                self.handle(input);
            }
        }
    }

    fn dial(&mut self) {
        if self.dialling || self.link.is_some() {
            return;
        }
        self.dialling = true;
        let (candidates, events) = (self.config.coordinators.clone(), self.events.clone());
        let keys = self.config.http.keys().cloned();
        tokio::spawn(async move {
            let connection = link::dial(candidates, None, keys).await;
            let _ = events.send(Event::Connected(Box::new(connection)));
        });
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Send(up) => self.send(up),
            Output::Reconnect { why } => {
                tracing::info!("dialling again: {why}");
                // The task behind the link reports its end, and that dials.
                if self.link.take().is_none() {
                    self.dial();
                }
            }
            Output::Copy { id, note, what } => self.copy(id, note, what),
            Output::GiveUpCopy { id } => {
                if let Some(held) = self.held.get(&id) {
                    held.copy.cancel();
                }
            }
            Output::Launch { id, note, run, what } => self.launch(id, note, run, what),
            Output::Note { id, note } => self.note(id, note),
            Output::Watch { id, run, what } => self.watch(id, run, what),
            Output::Signal { id, signal } => {
                self.on_handle(id, move |handle| async move { handle.signal(signal.number()).await });
            }
            Output::Kill { id } => self.on_handle(id, |handle| async move { handle.kill().await }),
            Output::Erase { id, volume } => self.erase(id, volume),
            Output::Remember(memory) => {
                if let Err(fault) = disk::save_memory(&self.config.data_dir, memory) {
                    tracing::error!(
                        "cannot remember the cluster in {}: {fault}",
                        self.config.data_dir.display()
                    );
                }
            }
            Output::Lease { fence_at } => self.renew_fences(self.clock.boottime(fence_at)),
            Output::Sets(sets) => {
                if let Some(edge) = &self.edge {
                    (edge.apply)(sets);
                }
            }
            Output::Duty(duty) => {
                if let Some(edge) = &self.edge {
                    (edge.duty)(duty);
                }
            }
            Output::Leave => {
                // One that is opened again meanwhile is not told again, and stays.
                let now = self.clock.now();
                let since = *self.may_leave_since.get_or_insert(now);
                self.left = now.since(since).as_duration() >= LINGER;
            }
            Output::Feed(work) => self.work(work),
            Output::GiveUp { message } => self.refused = Some(message),
        }
    }

    fn send(&mut self, up: Up) {
        let Some(link) = &self.link else { return };
        if link.up.try_send(up).is_err() {
            // A stream that takes nothing is as good as broken; its end is noticed and dialled anew.
            self.link = None;
        }
    }

    /// Brings scratch data here. What is ordered is on disk first, so that the next life goes on with it.
    fn copy(&mut self, id: InstanceId, note: Note, what: Arc<Run>) {
        let name = id.named(&what.service);
        let dir = self.runtime.dir(&name);
        let saved = disk::save_order(&dir, &disk::order_line(id, note, &what, &[], None));
        let (checks, cancel) = (CancellationToken::new(), CancellationToken::new());
        let (copy, order) = (cancel.clone(), what.clone());
        self.held.insert(
            id,
            Held {
                name: name.clone(),
                what,
                run: 0,
                ports: vec![],
                note,
                notes: Notes::Added(0),
                handle: None,
                checks,
                copy,
            },
        );
        let (events, http) = (self.events.clone(), self.config.http.clone());
        tokio::spawn(async move {
            let end = match saved {
                Ok(()) => copy::fetch(&order, &dir, DISK_FULL_AT, cancel, &http).await,
                Err(fault) => CopyEnd::Impossible { message: format!("{}: {fault}", dir.display()) },
            };
            tracing::info!("{name}: its scratch data: {end:?}");
            let _ = events.send(Event::Input(Input::CopyEnded { id, end }));
        });
    }

    fn launch(&mut self, id: InstanceId, note: Note, run: u32, what: Arc<Run>) {
        let before = self.held.remove(&id);
        if let Some(held) = &before {
            held.checks.cancel();
        }
        let ports = match self.ports_for(before.map(|held| held.ports), &what) {
            Ok(ports) => ports,
            Err(failure) => return self.launch_failed(id, run, failure),
        };
        let fence_ms = what.spec.is_fenced().then_some(self.fence_ms).flatten();
        let node = self.config.node.clone();
        let path = launch::search_path(&self.config.exe);
        let plan = Plan { id, run, what: what.clone(), ports: ports.clone(), node, fence_ms, path };
        let (name, checks, copy) = (plan.name(), CancellationToken::new(), CancellationToken::new());
        let order = disk::order_line(id, note, &what, &ports, Some(run));
        let on_disk = self.ledger.begins(&name, &order);
        let notes = Notes::Later { written: note };
        self.held.insert(id, Held { name, what, run, ports, note, notes, handle: None, checks, copy });
        let (runtime, volumes, events) = (self.runtime.clone(), self.volumes.clone(), self.events.clone());
        tokio::spawn(async move {
            let preparer = runtime.clone();
            let prepared = blocking(move || launch::prepare(&preparer, &volumes, &plan, &order)).await;
            let on_disk = on_disk.await.map_err(|fault| Failure {
                code: Code::StartFailed,
                message: format!("its start does not reach the disk: {fault}"),
            });
            let launched = match on_disk.and(prepared) {
                Ok(prepared) => launch::start(&runtime, prepared).await,
                Err(failure) => Err(failure),
            };
            let event = match launched {
                Ok(handle) => Event::Started { id, run, handle },
                Err(Failure { code, message }) => {
                    Event::Input(Input::LaunchFailed { id, run, code, message })
                }
            };
            let _ = events.send(event);
        });
    }

    fn launch_failed(&mut self, id: InstanceId, run: u32, failure: Failure) {
        let Failure { code, message } = failure;
        // Through the queue: the node is in the middle of an input.
        let _ = self.events.send(Event::Input(Input::LaunchFailed { id, run, code, message }));
    }

    /// The ports it had before, if they are still free; otherwise others.
    fn ports_for(&mut self, before: Option<Vec<u16>>, what: &Run) -> Result<Vec<u16>, Failure> {
        let wanted = what.spec.ports.len();
        let taken: BTreeSet<u16> = self.held.values().flat_map(|held| held.ports.iter().copied()).collect();
        if let Some(ports) = before.filter(|ports| ports.len() == wanted)
            && ports.iter().all(|port| !taken.contains(port) && crate::ports::is_free(*port))
        {
            return Ok(ports);
        }
        let none = |fault| Failure { code: Code::NoPort, message: chain(&fault) };
        self.ports.allocate(wanted, &taken).map_err(none)
    }

    fn started(&mut self, id: InstanceId, run: u32, handle: Handle) {
        self.written(id, run);
        let Some(held) = self.held.get_mut(&id).filter(|held| held.run == run) else { return };
        let (pid, ports) = (handle.pid() as u32, held.ports.clone());
        held.handle = Some(handle.clone());
        self.wait_for_end(id, run, handle);
        self.handle(Input::Launched { id, run, pid, ports });
    }

    fn wait_for_end(&self, id: InstanceId, run: u32, handle: Handle) {
        let events = self.events.clone();
        tokio::spawn(async move {
            let ended = loop {
                match handle.wait_exit().await {
                    // Not known to have ended counts as running.
                    Ended::Unclear { why } => {
                        tracing::warn!("{}: {why}", handle.instance());
                        tokio::time::sleep(UNCLEAR_PAUSE).await;
                    }
                    ended => break ended,
                }
            };
            let _ = events.send(Event::Input(exited(id, run, ended)));
        });
    }

    fn ended(&mut self, id: InstanceId, run: u32) {
        if let Some(held) = self.held.get_mut(&id).filter(|held| held.run == run) {
            held.checks.cancel();
            held.handle = None;
        }
    }

    fn note(&mut self, id: InstanceId, note: Note) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.note = note;
        let Notes::Added(added) = held.notes else { return };
        let dir = self.runtime.dir(&held.name);
        let saved = if added < NOTES_MAX {
            held.notes = Notes::Added(added + 1);
            disk::save_note(&dir, note)
        } else {
            held.notes = Notes::Added(0);
            let start = (held.run > 0).then_some(held.run);
            disk::save_order(&dir, &disk::order_line(id, note, &held.what, &held.ports, start))
        };
        if let Err(fault) = saved {
            tracing::error!("cannot write the order of {}: {fault}", held.name);
        }
    }

    /// Its order is written down: what was noted meanwhile can follow.
    fn written(&mut self, id: InstanceId, run: u32) {
        let Some(held) = self.held.get_mut(&id).filter(|held| held.run == run) else { return };
        let Notes::Later { written } = held.notes else { return };
        held.notes = Notes::Added(0);
        if held.note != written {
            let note = held.note;
            self.note(id, note);
        }
    }

    fn watch(&mut self, id: InstanceId, run: u32, what: Arc<Run>) {
        let Some(held) = self.held.get(&id) else { return };
        let node = self.config.node.clone();
        let path = launch::search_path(&self.config.exe);
        let plan = Plan { id, run, what, ports: held.ports.clone(), node, fence_ms: None, path };
        let Some(check) = launch::check(&self.runtime, &self.volumes, &plan) else { return };
        let (sender, mut results) = mpsc::channel(4);
        tokio::spawn(crate::checks::run(check, sender, held.checks.clone()));
        let events = self.events.clone();
        tokio::spawn(async move {
            while let Some(result) = results.recv().await {
                let input = Input::Checked { id, run, passed: result.passed, message: result.message };
                if events.send(Event::Input(input)).is_err() {
                    break;
                }
            }
        });
    }

    fn on_handle<F, Fut>(&self, id: InstanceId, act: F)
    where
        F: FnOnce(Handle) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), crate::runtime::ControlError>> + Send,
    {
        let Some(handle) = self.held.get(&id).and_then(|held| held.handle.clone()) else { return };
        tokio::spawn(async move {
            let name = handle.instance().to_owned();
            if let Err(fault) = act(handle).await {
                tracing::debug!("{name}: {}", chain(&fault));
            }
        });
    }

    fn erase(&mut self, id: InstanceId, volume: Option<VolumeOrder>) {
        let name = self.held.get(&id).map(|held| {
            held.checks.cancel();
            held.name.clone()
        });
        let gone = name.as_ref().map(|name| self.ledger.goes(name));
        let (runtime, volumes, events) = (self.runtime.clone(), self.volumes.clone(), self.events.clone());
        tokio::spawn(async move {
            if let Some(volume) = volume {
                while let Err(fault) = volumes.under(volume.mounted.as_deref()).remove(volume.id.as_str()) {
                    tracing::warn!("cannot destroy volume {}: {}", volume.id, chain(&fault));
                    tokio::time::sleep(UNCLEAR_PAUSE).await;
                }
            }
            // Before the directory: otherwise a loss of power could bring back what was forgotten.
            if let Some(gone) = gone
                && let Err(fault) = gone.await
            {
                tracing::warn!("instance {id}: that it has gone does not reach the disk: {fault}");
            }
            while let Some(name) = &name
                && let Err(fault) = runtime.remove(name).await
            {
                tracing::warn!("cannot remove the directory of {name}: {}", chain(&fault));
                tokio::time::sleep(UNCLEAR_PAUSE).await;
            }
            let _ = events.send(Event::Input(Input::Erased { id }));
        });
    }

    /// Shims of what must not run twice are told until when they may let it run.
    fn renew_fences(&mut self, fence_ms: u64) {
        self.fence_ms = Some(fence_ms);
        self.feeds.lease(fence_ms);
        for (id, held) in &self.held {
            if held.what.spec.is_fenced() && held.handle.is_some() {
                self.on_handle(*id, move |handle| async move { handle.set_fence(Some(fence_ms)).await });
            }
        }
    }

    fn look_at_machine(&self) -> Option<Code> {
        let full = host::disk(&self.config.data_dir).is_ok_and(|disk| disk.fullness() >= DISK_FULL_AT);
        match (full, host::memory_pressure().is_high()) {
            (true, _) => Some(Code::DiskFull),
            (false, true) => Some(Code::MemoryPressure),
            (false, false) => None,
        }
    }

    /// Everything on disk becomes an input before the first word to the coordinator.
    async fn find_what_runs(&mut self) -> Result<(), AgentError> {
        let data = |source| AgentError::Data { dir: self.config.data_dir.clone(), source };
        for dir in self.runtime.scan().map_err(data)? {
            let adopted = self.runtime.adopt(&dir).await;
            let kept = match disk::load_order(&dir) {
                Ok(kept) => kept,
                Err(fault) => {
                    tracing::warn!(
                        "{}: what was ordered cannot be read ({fault}); left alone",
                        dir.display()
                    );
                    continue;
                }
            };
            let (id, note, what, ports) = (kept.id, kept.note, kept.run, kept.ports);
            let run = adopted.launch.as_ref().map_or(0, |launch| launch.run);
            let run = run.max(kept.started_before_boot.unwrap_or(0));
            let found = match adopted.found {
                Found::NeverStarted if kept.started_before_boot.is_some() => {
                    Found::Lost { why: RESTARTED.to_owned() }
                }
                found => found,
            };
            let halted = disk::take_halted(&dir);
            let process = self.found(id, run, found, &dir, &ports, halted);
            let name = id.named(&what.service);
            let handle = process.1;
            let (checks, copy) = (CancellationToken::new(), CancellationToken::new());
            let notes = Notes::Added(0);
            self.held
                .insert(id, Held { name, what: what.clone(), run, ports, note, notes, handle, checks, copy });
            self.handle(Input::Found { id, note, run: what, runs: run, process: process.0 });
        }
        let removed = self.runtime.cgroups().remove_empty();
        tracing::debug!("{} instances found, {removed} empty cgroups removed", self.held.len());
        Ok(())
    }

    fn found(
        &self,
        id: InstanceId,
        run: u32,
        found: Found,
        dir: &std::path::Path,
        ports: &[u16],
        halted: bool,
    ) -> (Process, Option<Handle>) {
        match found {
            Found::Running(handle) => {
                self.wait_for_end(id, run, handle.clone());
                let process = Process::Running { pid: handle.pid() as u32, ports: ports.to_vec() };
                (process, Some(handle))
            }
            Found::Exited(_) if halted => {
                (Process::Lost { message: "it was stopped together with its daemon".to_owned() }, None)
            }
            Found::Exited(record) => match exited(id, run, Ended::Exited(record)) {
                Input::Exited { exit, memory_exceeded, message, .. } => {
                    (Process::Ended { exit, memory_exceeded, message }, None)
                }
                _ => (Process::NotStarted, None),
            },
            Found::Lost { why } => (Process::Lost { message: why }, None),
            Found::NeverStarted => (Process::NotStarted, None),
            Found::Unclear { why } => {
                tracing::warn!("{}: {why}; it counts as running until that is clear", dir.display());
                self.look_again(id, run, dir.to_owned());
                (Process::Running { pid: 0, ports: ports.to_vec() }, None)
            }
        }
    }

    /// What could not be told dead or alive is looked at until it can.
    fn look_again(&self, id: InstanceId, run: u32, dir: std::path::PathBuf) {
        let (runtime, events) = (self.runtime.clone(), self.events.clone());
        tokio::spawn(async move {
            let ended = loop {
                tokio::time::sleep(UNCLEAR_PAUSE).await;
                match runtime.adopt(&dir).await.found {
                    Found::Unclear { .. } => {}
                    Found::Running(handle) => break handle.wait_exit().await,
                    Found::Exited(record) => break Ended::Exited(record),
                    Found::Lost { why } => break Ended::Lost { why },
                    Found::NeverStarted => break Ended::Lost { why: "it never started".to_owned() },
                }
            };
            let _ = events.send(Event::Input(exited(id, run, ended)));
        });
    }
}

fn exited(id: InstanceId, run: u32, ended: Ended) -> Input {
    let (exit, memory_exceeded, message) = match ended {
        Ended::Exited(record) => {
            let exit = match (record.code, record.signal) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal(signal),
                (None, None) => Exit::Unknown,
            };
            let said = (record.start_failed.is_some() || record.fenced).then(|| record.describe());
            (exit, record.memory_exceeded, said)
        }
        Ended::Lost { why } | Ended::Unclear { why } => (Exit::Unknown, false, Some(why)),
    };
    Input::Exited { id, run, exit, memory_exceeded, message }
}

async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The edge's next report; never, if there is no edge.
async fn changed(
    edge: &mut Option<watch::Receiver<protocol::message::EdgeReport>>,
) -> Option<protocol::message::EdgeReport> {
    match edge {
        Some(report) => match report.changed().await {
            Ok(()) => Some(report.borrow_and_update().clone()),
            Err(_) => None,
        },
        None => std::future::pending().await,
    }
}
