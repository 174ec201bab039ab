//! Feeds in the world: sources that grow, sinks that compare epochs, dispatchers as tasks of daemons,
//! and what goes between nodes.
//!
//! A source is a number of rows per span that rises with time. A sink is, per span, the highest epoch it
//! has seen and how many rows it holds; it takes a batch only of that epoch, and only where it begins at
//! the row that comes next. So a row that is skipped or written twice shows at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Checkpoint, Code, Feed, FeedName, FeedSpec, FeedState, NodeId, PipelineSpec, SpanEpoch, SpanName, Time,
};
use protocol::{
    coordinator::{ApplyFeed, Coordinator, Request},
    dispatchers::{Task, TaskFailure, TaskNews, TaskWhat},
    maintainer::Looked,
    message::feed::{Held, Peer, PeerBody, SpanOrder},
    node::{FeedNews, FeedWork, Input},
};

use crate::{
    rng::Rng,
    swarm::{FaultKind, MoveLimits, Swarm},
    workload::About,
    world::{EPOCH, Event, ToDaemon, World},
};

const NAMES: [&str; 3] = ["orders", "users", "clicks"];
const SPANS_MAX: u64 = 8;
/// Per mille of seeds in which a feed has thousands of spans: each takes as long as many others.
const CROWDS: u64 = 20;
/// Milliseconds in which a source gets one more row.
const ROW_EVERY: u64 = 40;

/// What feeds read from and write to.
#[derive(Default)]
pub struct FeedWorld {
    /// The spans that the source of each feed has.
    sources: BTreeMap<FeedName, BTreeSet<SpanName>>,
    sinks: BTreeMap<(FeedName, SpanName), SinkRow>,
    /// Sources stop growing then.
    stopped_at: Option<u64>,
    /// On which machines a span could not be made ready.
    pub not_ready_on: BTreeMap<(FeedName, SpanName), BTreeSet<usize>>,
    /// On which machines a span has been at work.
    worked_on: BTreeMap<(FeedName, SpanName), BTreeSet<usize>>,
    /// Moves that people asked for, as they were stored, and when that was first seen.
    wishes: BTreeMap<(FeedName, SpanName, NodeId), u64>,
    /// A hand-over is to be struck.
    pub strike: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct SinkRow {
    epoch: SpanEpoch,
    rows: u64,
}

/// A dispatcher's task in a daemon.
#[derive(Clone, Copy, Debug)]
pub struct SimTask {
    run: u32,
    state: TaskState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    Preparing,
    Prepared,
    Going { epoch: SpanEpoch, rows: u64 },
    Stopping { epoch: SpanEpoch, rows: u64 },
}

/// What a task does next; held back while its daemon is paused.
#[derive(Clone, Debug)]
pub enum TaskStep {
    Ready,
    Work,
    Finish,
}

impl Swarm {
    /// Feeds are drawn apart, so that seeds without them stay what they were.
    pub fn draw_feeds(&mut self, rng: &mut Rng) {
        if rng.chance(400) {
            self.feeds = rng.between(100, 500);
        }
    }

    /// What came later about feeds, drawn apart.
    pub fn draw_crowds(&mut self, rng: &mut Rng) {
        if rng.chance(CROWDS) {
            self.crowd = rng.between(1000, 5000);
            self.feeds = self.feeds.max(250);
            self.drains = self.drains.max(300);
            self.workers = self.workers.max(3);
            self.safety_ms = self.safety_ms.clamp(35_000, 50_000);
            (self.fault_every, self.request_every) =
                (self.fault_every.max(3000), self.request_every.max(1000));
            let MoveLimits { moves_per_node, moves_total, .. } = MoveLimits::default();
            self.limits = MoveLimits { moves_per_node, moves_total, ..self.limits };
        }
        if self.feeds == 0 || self.kinds.is_empty() {
            return;
        }
        if rng.chance(300) {
            self.unfit = rng.between(50, 700);
        }
        if self.keepers && rng.chance(400) {
            self.kinds.extend([FaultKind::StrikeHandOver; 3]);
        }
    }
}

fn checkpoint(rows: u64) -> Checkpoint {
    Checkpoint { position: rows, at: Time(EPOCH + rows) }
}

fn failure(code: Code, passes: bool, fenced: bool) -> TaskFailure {
    TaskFailure { code, message: "it failed".to_owned(), passes, fenced }
}

impl World {
    pub fn draw_feed_request(&mut self) -> (About, Request) {
        let name = FeedName::new(self.rng.pick(&NAMES).copied().unwrap_or("orders"));
        let about = About::Other;
        let drawn = self.rng.below(100);
        let missing = self.misses_crowd();
        let name = if missing { FeedName::new(NAMES[0]) } else { name };
        let crowd = self.swarm.crowd > 0 && name.as_str() == NAMES[0];
        let drawn = match drawn {
            _ if missing => 0,
            // One that is paused or goes away has nothing to move.
            60..72 | 96..100 if crowd && self.rng.chance(800) => 80,
            drawn => drawn,
        };
        match drawn {
            0..45 => {
                self.cover.hit("feed applied");
                let few = self.rng.between(1, SPANS_MAX);
                let count = if crowd { self.swarm.crowd } else { few };
                let source = self.feeds.sources.entry(name.clone()).or_default();
                for number in 0..count {
                    source.insert(SpanName::new(&format!("t{number}")));
                }
                // The pipeline says nothing here: what it has is in `sources`.
                let zone = (self.rng.chance(300) && !crowd).then(|| ("zone".to_owned(), "a".to_owned()));
                let pipeline = PipelineSpec::Idle { spans: 0 };
                let spec = Arc::new(FeedSpec { pipeline, constraints: zone.into_iter().collect() });
                let feeds = vec![ApplyFeed { name, spec }];
                (about, Request::Apply { services: Vec::new(), feeds, groups: Vec::new() })
            }
            45..60 => {
                self.change_source(&name);
                (about, Request::Barrier)
            }
            60..72 => (about, Request::SetFeedState { feed: name, state: FeedState::Paused }),
            72..92 => (about, Request::SetFeedState { feed: name, state: FeedState::Running }),
            92..96 => {
                self.cover.hit("move asked for by hand");
                let span = SpanName::new(&format!("t{}", self.rng.below(SPANS_MAX)));
                let node = self.rng.below(self.swarm.workers as u64) as usize;
                let node = self.machines[node].id.clone();
                let about = About::Move { feed: name.clone(), span: span.clone(), to: node.clone() };
                (about, Request::MoveSpan { feed: name, span, node: node.to_string() })
            }
            _ => {
                self.cover.hit("feed removed");
                (about, Request::SetFeedState { feed: name, state: FeedState::Removing })
            }
        }
    }

    /// Without its feed a seed of thousands is one like others.
    pub fn misses_crowd(&self) -> bool {
        self.swarm.crowd > 0 && self.mirror.feed(NAMES[0]).is_none()
    }

    /// A table is added to the source, or dropped from it.
    fn change_source(&mut self, name: &FeedName) {
        let number = self.rng.below(SPANS_MAX);
        let span = SpanName::new(&format!("t{number}"));
        let Some(source) = self.feeds.sources.get_mut(name) else { return };
        let vanishes = source.remove(&span);
        if !vanishes {
            source.insert(span.clone());
        }
        let (said, mark) = if vanishes { ("loses", "span vanished") } else { ("gets", "span appeared") };
        self.say(format!("{name} {said} {span}"));
        self.cover.hit(mark);
    }

    fn rows_at_source(&self) -> u64 {
        self.feeds.stopped_at.unwrap_or(self.now) / ROW_EVERY
    }

    pub fn stop_sources(&mut self) {
        self.feeds.stopped_at = Some(self.now);
    }

    pub fn feed_work(&mut self, machine: usize, work: FeedWork) {
        match work {
            FeedWork::Send { to, message, .. } => self.send_peer(machine, &to, message),
            FeedWork::Task { feed, span, task, .. } => self.feed_task(machine, feed, span, task),
            FeedWork::Look { feed, epoch, .. } => {
                let fails = !self.calm && self.rng.chance(100);
                let spans = self.feeds.sources.get(&feed).into_iter().flatten().cloned().collect();
                let result = match fails {
                    true => Err(failure(Code::SourceUnreachable, true, false)),
                    false => Ok(Looked { spans, ..Looked::default() }),
                };
                let delay = self.rng.between(5, 300);
                let news = FeedNews::Looked { feed, epoch, result };
                self.tell_daemon(delay, machine, ToDaemon::Node(Input::Feed(news)));
            }
            FeedWork::Sweep { feed, epoch, keep, .. } => {
                let fails = !self.calm && self.rng.chance(100);
                let result = if fails { Err(failure(Code::SourceUnreachable, true, false)) } else { Ok(()) };
                if result.is_ok() {
                    self.sweep(machine, &feed, &keep);
                }
                let delay = self.rng.between(5, 300);
                let news = FeedNews::Swept { feed, epoch, result };
                self.tell_daemon(delay, machine, ToDaemon::Node(Input::Feed(news)));
            }
        }
    }

    /// What is not kept is gone, with its rows: a dispatcher at work on it would lose them.
    fn sweep(&mut self, machine: usize, feed: &FeedName, keep: &[SpanName]) {
        let keep: BTreeSet<&SpanName> = keep.iter().collect();
        let gone = self.feeds.sinks.keys().filter(|(of, span)| of == feed && !keep.contains(span));
        let gone: Vec<(FeedName, SpanName)> = gone.cloned().collect();
        for key in gone {
            let owner = self.feeds.sinks.get(&key).map(|sink| sink.epoch);
            let at_work = (0..self.machines.len()).find(|at| {
                let tasks = self.machines[*at].daemon.as_ref().map(|daemon| &daemon.tasks);
                let task = tasks.and_then(|tasks| tasks.get(&key)).map(|task| task.state);
                let going = matches!(task, Some(TaskState::Going { epoch, .. }) if Some(epoch) == owner);
                going && !self.stands_still(*at)
            });
            if let Some(at) = at_work {
                let (feed, span) = key;
                return self.fail(13, format!("m{machine} sweeps {feed}/{span}, at work on m{at}"));
            }
            self.feeds.sinks.remove(&key);
        }
    }

    fn send_peer(&mut self, from: usize, to: &NodeId, message: Peer) {
        let Some(target) = self.machines.iter().position(|machine| machine.id == *to) else { return };
        let lost = !self.calm && self.rng.chance(self.swarm.net.loss);
        if lost || self.blocked.contains(&(from, target)) {
            self.cover.hit("message between nodes lost");
            return;
        }
        let delay = self.delay();
        self.mark_peer(&message.body);
        if self.trace.is_kept() {
            self.say(format!(
                "m{from} -> m{target} {} e{} {}",
                message.feed,
                message.maintainer,
                short(&message.body)
            ));
        }
        self.tell_daemon(delay, target, ToDaemon::Node(Input::Feed(FeedNews::Heard(message))));
    }

    fn task_mut(&mut self, machine: usize, key: &(FeedName, SpanName)) -> Option<&mut SimTask> {
        self.machines[machine].daemon.as_mut()?.tasks.get_mut(key)
    }

    fn feed_task(&mut self, machine: usize, feed: FeedName, span: SpanName, task: Task) {
        let key = (feed, span);
        match task {
            Task::Prepare { run } => {
                let Some(daemon) = self.machines[machine].daemon.as_mut() else { return };
                daemon.tasks.insert(key.clone(), SimTask { run, state: TaskState::Preparing });
                let delay = self.rng.between(1, 200);
                self.task_soon(machine, &key, run, delay, TaskStep::Ready);
            }
            Task::Go { run, epoch, from } => self.go(machine, &key, run, epoch, from),
            Task::Stop { run } => {
                let hangs = !self.calm && self.rng.chance(30);
                let Some(task) = self.task_mut(machine, &key).filter(|task| task.run == run) else { return };
                if let TaskState::Going { epoch, rows } = task.state {
                    task.state = TaskState::Stopping { epoch, rows };
                }
                let delay = if hangs { 60_000 } else { self.rng.between(1, 200) };
                self.task_soon(machine, &key, run, delay, TaskStep::Finish);
            }
            Task::Abort { run } => {
                let Some(task) = self.task_mut(machine, &key).filter(|task| task.run == run) else { return };
                let _ = task;
                if let Some(daemon) = self.machines[machine].daemon.as_mut() {
                    daemon.tasks.remove(&key);
                }
                self.task_says(machine, &key, run, TaskWhat::Ended(Ok(None)));
            }
        }
    }

    fn task_soon(
        &mut self,
        machine: usize,
        key: &(FeedName, SpanName),
        run: u32,
        delay: u64,
        step: TaskStep,
    ) {
        let (feed, span) = key.clone();
        self.tell_daemon(delay, machine, ToDaemon::Task { feed, span, run, step });
    }

    fn task_says(&mut self, machine: usize, key: &(FeedName, SpanName), run: u32, what: TaskWhat) {
        let (feed, span) = key.clone();
        let news = FeedNews::Task(TaskNews { feed, span, run, what });
        self.tell_daemon(0, machine, ToDaemon::Node(Input::Feed(news)));
    }

    /// The epoch is raised in the sink before anything is read; the sink says where to begin.
    fn go(
        &mut self,
        machine: usize,
        key: &(FeedName, SpanName),
        run: u32,
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
    ) {
        let (feed, span) = key;
        if self.task_mut(machine, key).is_none_or(|task| task.run != run) {
            return;
        }
        self.say(format!("m{machine} starts {feed}/{span}, epoch {:x}", epoch.0));
        let sink = self.feeds.sinks.entry(key.clone()).or_default();
        if epoch < sink.epoch {
            self.cover.hit("late dispatcher refused by its sink");
            return self.task_ends(machine, key, run, Err(failure(Code::Fenced, false, true)));
        }
        let before = sink.epoch;
        sink.epoch = epoch;
        let rows = sink.rows;
        if before != epoch && before != SpanEpoch(0) {
            self.cover.hit("span taken over");
        }
        // Where a span vanished, was swept and came back, a node may remember how far the old one was: the
        // sink is believed.
        let swept = before == SpanEpoch(0);
        if !swept && from.is_some_and(|from| from.position > rows) {
            let from = from.map(|from| from.position);
            let message = format!("{feed}/{span} starts from {from:?}, and its sink holds {rows} rows");
            return self.fail(13, message);
        }
        self.check_alone(machine, key);
        if let Some(task) = self.task_mut(machine, key) {
            task.state = TaskState::Going { epoch, rows };
        }
        self.feeds.worked_on.entry(key.clone()).or_default().insert(machine);
        let first = if self.swarm.crowd > 0 { self.rng.between(50, 5000) } else { 50 };
        self.task_soon(machine, key, run, first, TaskStep::Work);
    }

    /// It does nothing, or did nothing a moment ago: it has not had the time to notice that its lease is
    /// over.
    fn stands_still(&self, machine: usize) -> bool {
        let there = &self.machines[machine];
        let margin = (self.swarm.timing.offline_after.0 - self.swarm.timing.fence_after.0) / 2 + 200;
        there.paused || there.suspended || self.now - there.woke_at <= margin
    }

    /// Nobody else works this span, but for daemons that stand still.
    fn check_alone(&mut self, machine: usize, key: &(FeedName, SpanName)) {
        let twin = (0..self.machines.len()).filter(|at| *at != machine).find(|at| {
            let there = &self.machines[*at];
            let task = there.daemon.as_ref().and_then(|daemon| daemon.tasks.get(key));
            let works = task.is_some_and(|task| {
                matches!(task.state, TaskState::Going { .. } | TaskState::Stopping { .. })
            });
            works && !self.stands_still(*at)
        });
        if let Some(twin) = twin {
            let (feed, span) = key;
            self.fail(3, format!("{feed}/{span} starts on m{machine} and runs on m{twin}"));
        }
    }

    fn task_ends(
        &mut self,
        machine: usize,
        key: &(FeedName, SpanName),
        run: u32,
        result: Result<Option<Checkpoint>, TaskFailure>,
    ) {
        if let Some(daemon) = self.machines[machine].daemon.as_mut() {
            daemon.tasks.remove(key);
        }
        self.task_says(machine, key, run, TaskWhat::Ended(result));
    }

    pub fn task_step(&mut self, machine: usize, feed: FeedName, span: SpanName, run: u32, step: TaskStep) {
        let key = (feed, span);
        let Some(task) = self.task_mut(machine, &key).filter(|task| task.run == run).map(|task| *task) else {
            return;
        };
        match (step, task.state) {
            (TaskStep::Ready, TaskState::Preparing) => {
                let fails = self.rng.chance(50) || self.is_unfit(machine, &key);
                if !self.calm && fails {
                    self.feeds.not_ready_on.entry(key.clone()).or_default().insert(machine);
                    self.cover.hit("preparation failed");
                    return self.task_ends(
                        machine,
                        &key,
                        run,
                        Err(failure(Code::SinkUnreachable, true, false)),
                    );
                }
                if let Some(task) = self.task_mut(machine, &key) {
                    task.state = TaskState::Prepared;
                }
                self.task_says(machine, &key, run, TaskWhat::Prepared);
            }
            (TaskStep::Work, TaskState::Going { epoch, rows }) => {
                if !self.calm && self.rng.chance(20) {
                    self.cover.hit("dispatcher failed");
                    return self.task_ends(
                        machine,
                        &key,
                        run,
                        Err(failure(Code::SinkUnreachable, true, false)),
                    );
                }
                let Some(next) = self.write(machine, &key, epoch, rows) else {
                    self.cover.hit("late dispatcher refused by its sink");
                    return self.task_ends(machine, &key, run, Err(failure(Code::Fenced, false, true)));
                };
                if let Some(task) = self.task_mut(machine, &key) {
                    task.state = TaskState::Going { epoch, rows: next };
                }
                if next != rows {
                    self.task_says(machine, &key, run, TaskWhat::Progressed(checkpoint(next)));
                }
                let pause = match (self.swarm.crowd > 0, self.calm) {
                    (false, _) => self.rng.between(100, 1000),
                    (true, false) => self.rng.between(5000, 20_000),
                    (true, true) => self.rng.between(2000, 5000),
                };
                self.task_soon(machine, &key, run, pause, TaskStep::Work);
            }
            (TaskStep::Finish, TaskState::Stopping { epoch, rows }) => {
                let last = self.write(machine, &key, epoch, rows);
                let result = last.map(|rows| Some(checkpoint(rows)));
                let result = result.ok_or_else(|| failure(Code::Fenced, false, true));
                self.task_ends(machine, &key, run, result);
            }
            (TaskStep::Ready | TaskStep::Work | TaskStep::Finish, _) => {}
        }
    }

    /// This machine never gets this span ready, for as long as there are faults.
    fn is_unfit(&self, machine: usize, (feed, span): &(FeedName, SpanName)) -> bool {
        let text = format!("{feed}/{span}/{machine}");
        let mixed = text.bytes().fold(self.seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.swarm.unfit > 0 && Rng::new(mixed).chance(self.swarm.unfit)
    }

    /// A drain has ended without dispatchers of this feed because nobody could make them ready: every machine
    /// that might have taken one has tried.
    pub fn check_left_unready(&mut self, node: &NodeId, feed: &str) {
        let Some(spec) = self.mirror.feed(feed).map(|feed| feed.spec.clone()) else { return };
        let Some(here) = self.machines.iter().position(|machine| machine.id == *node) else { return };
        let open: Vec<usize> = (0..self.machines.len())
            .filter(|at| {
                let entry = self.mirror.node_by_id(self.machines[*at].id.as_str());
                entry.is_some_and(|entry| entry.may_place() && entry.rec.satisfies(&spec.constraints))
            })
            .collect();
        let tasks = self.machines[here].daemon.iter().flat_map(|daemon| daemon.tasks.keys());
        let untried = tasks.filter(|(of, _)| of.as_str() == feed).find_map(|key| {
            let tried = self.feeds.not_ready_on.get(key);
            let other = open.iter().find(|at| tried.is_none_or(|tried| !tried.contains(at)))?;
            Some(format!("{feed}/{} was left on m{here}, and m{other} was never tried", key.1))
        });
        self.cover.hit("drain left a feed behind that nobody could make ready");
        if let Some(untried) = untried {
            self.fail(6, untried);
        }
    }

    /// A move that somebody asked for was acknowledged: it is stored, or was.
    pub fn check_wish(&mut self, feed: &FeedName, span: &SpanName, to: &NodeId) {
        if !self.feeds.wishes.contains_key(&(feed.clone(), span.clone(), to.clone())) {
            self.fail(
                14,
                format!("{feed}/{span} was to go to {to}, that was acknowledged, and nobody stored it"),
            );
        }
    }

    /// What people asked for leaves the record only when it is done, cannot be, or has waited long enough.
    fn check_asked(&mut self, known: Option<&Feed>, feed: &Feed) {
        for asked in &feed.asked {
            let key = (feed.name.clone(), asked.span.clone(), asked.to.clone());
            let fresh = known.is_none_or(|known| !known.asked.contains(asked));
            let now = self.now;
            self.feeds.wishes.entry(key).and_modify(|at| *at = if fresh { now } else { *at }).or_insert(now);
        }
        let gone = known.into_iter().flat_map(|known| &known.asked);
        let gone: Vec<_> = gone.filter(|asked| feed.asked.iter().all(|a| a.number != asked.number)).collect();
        for asked in gone {
            let key = (feed.name.clone(), asked.span.clone());
            let to = self.machines.iter().position(|machine| machine.id == asked.to);
            let worked =
                self.feeds.worked_on.get(&key).is_some_and(|on| to.is_some_and(|to| on.contains(&to)));
            let wish = self.feeds.wishes.get(&(key.0, key.1, asked.to.clone()));
            let waited = wish.is_some_and(|at| self.now - at >= 60_000);
            let replaced = feed.asked.iter().any(|other| other.span == asked.span);
            let open = self
                .mirror
                .node_by_id(asked.to.as_str())
                .is_some_and(|node| node.may_place() && node.rec.satisfies(&feed.spec.constraints));
            let can = open && feed.state == FeedState::Running && known_span(Some(feed), &asked.span);
            if can && !worked && !waited && !replaced {
                let (span, to) = (&asked.span, &asked.to);
                self.fail(14, format!("{}/{span} was to go to {to}, and is forgotten", feed.name));
            }
        }
    }

    /// One transaction: the sink compares the epoch and takes the rows that come next.
    fn write(
        &mut self,
        machine: usize,
        key: &(FeedName, SpanName),
        epoch: SpanEpoch,
        rows: u64,
    ) -> Option<u64> {
        let upto = self.rows_at_source().max(rows);
        let sink = self.feeds.sinks.get_mut(key)?;
        if sink.epoch != epoch {
            return None;
        }
        if sink.rows != rows {
            let (held, (feed, span)) = (sink.rows, key);
            self.fail(13, format!("m{machine} writes {feed}/{span} from row {rows}, and {held} are there"));
            return None;
        }
        sink.rows = upto;
        Some(upto)
    }

    /// A feed is about to be stored, in place of what is known of it.
    pub fn check_feed(&mut self, feed: &Feed) {
        let known = self.mirror.feed(feed.name.as_str()).filter(|known| known.created_at == feed.created_at);
        let known = known.cloned();
        self.check_asked(known.as_ref(), feed);
        if let Some(before) = known.as_ref().and_then(|known| known.checkpoint)
            && feed.checkpoint.is_none_or(|now| now.position < before.position || now.at < before.at)
        {
            self.fail(13, format!("the checkpoint of {} goes back from {before:?}", feed.name));
        }
        if let Some(checkpoint) = feed.checkpoint {
            let behind = feed.spans.names.iter().find(|span| {
                let sink = self.feeds.sinks.get(&(feed.name.clone(), (*span).clone()));
                // A span that is new begins behind the others.
                sink.is_some_and(|sink| sink.rows < checkpoint.position && known_span(known.as_ref(), span))
            });
            if let Some(span) =
                behind.filter(|_| known.as_ref().is_some_and(|k| k.checkpoint != feed.checkpoint))
            {
                let message = format!("{} is past {span} at {}", feed.name, checkpoint.position);
                self.fail(13, message);
            }
        }
        let moved = known.as_ref().is_some_and(|known| known.epoch != feed.epoch);
        if moved && feed.maintainer.as_ref().is_some_and(|maintainer| maintainer.from.is_some()) {
            self.cover.hit("maintainer handed over");
            self.strike_hand_over(feed);
        } else if moved {
            self.cover.hit("maintainer placed anew");
        }
    }

    fn strike_hand_over(&mut self, feed: &Feed) {
        let Some(taker) = &feed.maintainer else { return };
        let at = |node: &NodeId| self.machines.iter().position(|machine| machine.id == *node);
        let origin = taker.from.as_ref().and_then(|origin| at(&origin.node));
        if let (Some(origin), Some(taker)) = (origin, at(&taker.node))
            && std::mem::take(&mut self.feeds.strike)
        {
            self.after(0, Event::Strike { origin, taker });
        }
    }

    /// At most one maintainer of a feed acts, but for daemons that stand still.
    pub fn check_maintainers(&mut self) {
        let mut acting: BTreeMap<FeedName, usize> = BTreeMap::new();
        let mut twice = None;
        for at in 0..self.machines.len() {
            let here = &self.machines[at];
            let Some(node) = here.daemon.as_ref().and_then(|daemon| daemon.node.as_ref()) else { continue };
            if here.paused || here.suspended || self.now - here.woke_at < 200 {
                continue;
            }
            for (feed, maintainer) in node.maintainers() {
                if !maintainer.acts() {
                    continue;
                }
                if let Some(other) = acting.insert(feed.clone(), at) {
                    twice = Some(format!("maintainers of {feed} act on m{other} and m{at}"));
                }
            }
        }
        if let Some(twice) = twice {
            self.fail(3, twice);
        }
    }

    /// The record says that a life of a daemon has nothing of feeds any more, and never will.
    pub fn check_goodbye(&mut self, node: &model::Node) {
        let Some(at) = self.machines.iter().position(|machine| machine.id == node.id) else { return };
        let here = &self.machines[at];
        if !node.goodbye || here.last_life != Some(node.life) {
            return;
        }
        if let Some(lives) = self.feeds_live_on(&node.id, |_| false) {
            self.fail(3, format!("m{at} has said goodbye, and {lives} is at work on it"));
        }
    }

    /// Something of feeds that lives on a machine, but for what may stay.
    pub fn feeds_live_on(&self, node: &NodeId, may_stay: impl Fn(&str) -> bool) -> Option<String> {
        let machine = self.machines.iter().find(|machine| machine.id == *node)?;
        let daemon = machine.daemon.as_ref()?;
        let maintainers = daemon.node.iter().flat_map(|node| node.maintainers());
        let acting = maintainers.filter(|(_, maintainer)| maintainer.acts()).map(|(feed, _)| feed);
        let mut acting = acting.filter(|feed| !may_stay(&format!("maintainer/{feed}")));
        let mut tasks = daemon.tasks.keys().filter(|(feed, _)| !may_stay(&format!("feed/{feed}")));
        let acting = acting.next().map(|feed| format!("the maintainer of {feed}"));
        acting.or_else(|| tasks.next().map(|(feed, span)| format!("{feed}/{span}")))
    }

    /// Faults are over: every feed that runs has each of its spans at work once, up to its source's end.
    pub fn feeds_are_wrong(&self, coordinator: &Coordinator) -> Option<String> {
        let cluster = coordinator.cluster();
        let mut at_work: BTreeMap<(FeedName, SpanName), Vec<usize>> = BTreeMap::new();
        for (at, machine) in self.machines.iter().enumerate() {
            for (key, _) in machine.daemon.iter().flat_map(|daemon| &daemon.tasks) {
                at_work.entry(key.clone()).or_default().push(at);
            }
        }
        if let Some(((feed, span), at)) = at_work.iter().find(|((feed, span), at)| {
            let wanted = cluster
                .feed(feed.as_str())
                .is_some_and(|feed| feed.state == FeedState::Running && known_span(Some(feed), span));
            !wanted || at.len() > 1
        }) {
            return Some(format!("{feed}/{span} is at work on {at:?}"));
        }
        for feed in cluster.feeds() {
            let eligible = cluster
                .nodes()
                .any(|(_, node)| node.may_place() && node.rec.satisfies(&feed.spec.constraints));
            if feed.state == FeedState::Removing {
                if eligible {
                    return Some(format!("{} is still being removed", feed.name));
                }
                continue;
            }
            let source = self.feeds.sources.get(&feed.name).cloned().unwrap_or_default();
            let spans: BTreeSet<SpanName> = feed.spans.names.iter().cloned().collect();
            if eligible && spans != source {
                return Some(format!("{} has {spans:?}, its source {source:?}", feed.name));
            }
            if feed.state != FeedState::Running || !eligible {
                continue;
            }
            for span in spans {
                let key = (feed.name.clone(), span.clone());
                let rows = self.feeds.sinks.get(&key).map(|sink| sink.rows);
                if !at_work.contains_key(&key) || rows != Some(self.rows_at_source()) {
                    let seen = coordinator.feed_seen(&feed.name).and_then(|seen| seen.report.as_ref());
                    return Some(format!(
                        "{}/{span} has {rows:?} rows and stands still; {seen:?}",
                        feed.name
                    ));
                }
            }
        }
        None
    }
}

pub fn short(body: &PeerBody) -> String {
    let held = |held: &[Held]| {
        let one = |held: &Held| format!("{} {:?} {:x}", held.span, held.state, held.epoch.0);
        held.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    match body {
        PeerBody::Ask { heard, .. } => format!("ask, heard {heard:?}"),
        PeerBody::Orders { orders, .. } => {
            let one = |order: &SpanOrder| format!("{} {:?}", order.span, order.what);
            orders.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        PeerBody::Inventory { number, held: all, .. } => format!("inventory {number}: {}", held(all)),
        PeerBody::Same { number, .. } => format!("same {number}"),
        PeerBody::News { number, held: some, .. } => format!("news {number}: {}", held(some)),
        PeerBody::Progress { spans } => format!("progress of {}", spans.len()),
    }
}

fn known_span(feed: Option<&Feed>, span: &SpanName) -> bool {
    feed.is_some_and(|feed| feed.spans.names.binary_search(span).is_ok())
}
