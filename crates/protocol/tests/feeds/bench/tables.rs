//! What feeds read and write: sources that grow, sinks that compare epochs, and the tasks in between.
//!
//! A sink is, per span, the highest epoch it has seen and how many rows it holds. It takes a batch only of
//! that epoch, and only where it begins at the row that comes next.

use std::collections::{BTreeMap, BTreeSet};

use model::{Checkpoint, Code, FeedName, MaintainerEpoch, SpanEpoch, SpanName, Time};
use protocol::{
    dispatchers::{Task, TaskFailure, TaskNews, TaskWhat},
    maintainer::Looked,
    node::FeedNews,
};

use super::{Bench, Letter, Name};

pub type Key = (FeedName, SpanName);

/// Milliseconds in which a source gets one more row.
const ROW_EVERY: u64 = 40;

pub struct Tables {
    /// The spans that the source of each feed has.
    pub sources: BTreeMap<FeedName, BTreeSet<SpanName>>,
    /// Sources that do not answer.
    pub dark: BTreeSet<FeedName>,
    /// Feeds whose sinks do not answer, and on which node they are missed.
    pub broken: BTreeSet<(Name, FeedName)>,
    /// Tasks that could not be made ready: when, and where.
    pub failed: Vec<(Time, Name)>,
    /// Tasks that were made ready.
    pub prepared: usize,
    /// Every start that reached a sink.
    pub begun: Vec<Begun>,
    /// Writes that sinks refused, and who made them.
    pub refused: Vec<(Name, Key)>,
    pub swept: Vec<Key>,
    sinks: BTreeMap<Key, Sink>,
    since: Time,
}

#[derive(Clone, Copy, Default)]
struct Sink {
    epoch: SpanEpoch,
    rows: u64,
}

#[derive(Clone, Debug)]
pub struct Begun {
    pub at: Time,
    pub on: Name,
    pub key: Key,
    pub epoch: SpanEpoch,
    pub from: Option<Checkpoint>,
    /// What the sink held.
    pub rows: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct TaskAt {
    run: u32,
    pub state: TaskState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    Prepared,
    Going { epoch: SpanEpoch, rows: u64 },
    Stopping { epoch: SpanEpoch, rows: u64 },
}

impl TaskAt {
    pub fn is_arriving(&self) -> bool {
        self.state == TaskState::Prepared
    }

    pub fn is_at_work(&self) -> bool {
        match self.state {
            TaskState::Prepared => false,
            TaskState::Going { .. } | TaskState::Stopping { .. } => true,
        }
    }
}

impl Tables {
    pub fn new(since: Time) -> Tables {
        Tables {
            sources: BTreeMap::new(),
            dark: BTreeSet::new(),
            broken: BTreeSet::new(),
            failed: Vec::new(),
            prepared: 0,
            begun: Vec::new(),
            refused: Vec::new(),
            swept: Vec::new(),
            sinks: BTreeMap::new(),
            since,
        }
    }

    pub fn rows(&self, key: &Key) -> Option<u64> {
        self.sinks.get(key).map(|sink| sink.rows)
    }

    pub fn rows_at_source(&self, now: Time) -> u64 {
        now.since(self.since).0 / ROW_EVERY
    }
}

fn checkpoint(rows: u64) -> Checkpoint {
    Checkpoint { position: rows, at: Time(rows) }
}

fn failure(code: Code, fenced: bool) -> TaskFailure {
    TaskFailure { code, message: "it failed".to_owned(), passes: !fenced, fenced }
}

impl Bench {
    pub(super) fn look(&mut self, at: Name, feed: FeedName, epoch: MaintainerEpoch) {
        let spans = self.tables.sources.get(&feed).into_iter().flatten().cloned().collect();
        let result = match self.tables.dark.contains(&feed) {
            true => Err(failure(Code::SourceUnreachable, false)),
            false => Ok(Looked { spans, ..Looked::default() }),
        };
        self.shell_says(at, FeedNews::Looked { feed, epoch, result });
    }

    pub(super) fn sweep(&mut self, at: Name, feed: FeedName, epoch: MaintainerEpoch, keep: &[SpanName]) {
        let gone = self.tables.sinks.keys().filter(|(of, span)| *of == feed && !keep.contains(span));
        let gone: Vec<Key> = gone.cloned().collect();
        for key in gone {
            if let Some(other) = self.machines.values().find(|m| m.tasks.contains_key(&key)) {
                self.fail(&format!("{at} sweeps {key:?}, at work on {}", other.name));
            }
            self.tables.sinks.remove(&key);
            self.tables.swept.push(key);
        }
        self.shell_says(at, FeedNews::Swept { feed, epoch, result: Ok(()) });
    }

    fn shell_says(&mut self, at: Name, news: FeedNews) {
        let life = self.machines[at].life;
        self.post(Letter::Shell { at, life, news });
    }

    fn task_says(&mut self, at: Name, (feed, span): &Key, run: u32, what: TaskWhat) {
        let (feed, span) = (feed.clone(), span.clone());
        self.shell_says(at, FeedNews::Task(TaskNews { feed, span, run, what }));
    }

    fn task_mut(&mut self, at: Name, key: &Key, run: u32) -> Option<&mut TaskAt> {
        self.machines.get_mut(at)?.tasks.get_mut(key).filter(|task| task.run == run)
    }

    pub(super) fn task(&mut self, at: Name, key: Key, task: Task) {
        match task {
            Task::Prepare { run } => {
                if self.tables.broken.contains(&(at, key.0.clone())) {
                    self.tables.failed.push((self.now, at));
                    let failed = Err(failure(Code::SinkUnreachable, false));
                    return self.task_says(at, &key, run, TaskWhat::Ended(failed));
                }
                self.tables.prepared += 1;
                let machine = self.machines.get_mut(at).expect("a machine");
                machine.tasks.insert(key.clone(), TaskAt { run, state: TaskState::Prepared });
                self.task_says(at, &key, run, TaskWhat::Prepared);
            }
            Task::Go { run, epoch, from } => self.go(at, &key, run, epoch, from),
            Task::Stop { run } => {
                let Some(task) = self.task_mut(at, &key, run) else { return };
                let TaskState::Going { epoch, rows } = task.state else { return };
                task.state = TaskState::Stopping { epoch, rows };
                if !self.machines[at].hangs {
                    let last = self.write(at, &key, epoch, rows);
                    self.task_ends(at, &key, run, last.map(Some));
                }
            }
            Task::Abort { run } => {
                if self.task_mut(at, &key, run).is_some() {
                    self.task_ends(at, &key, run, Ok(None));
                }
            }
        }
    }

    fn task_ends(&mut self, at: Name, key: &Key, run: u32, rows: Result<Option<u64>, TaskFailure>) {
        self.machines.get_mut(at).expect("a machine").tasks.remove(key);
        let result = rows.map(|rows| rows.map(checkpoint));
        self.task_says(at, key, run, TaskWhat::Ended(result));
    }

    /// The epoch is raised in the sink before anything is read; the sink says where to begin.
    fn go(&mut self, at: Name, key: &Key, run: u32, epoch: SpanEpoch, from: Option<Checkpoint>) {
        if self.task_mut(at, key, run).is_none() {
            return;
        }
        let sink = self.tables.sinks.entry(key.clone()).or_default();
        if epoch < sink.epoch {
            self.tables.refused.push((at, key.clone()));
            return self.task_ends(at, key, run, Err(failure(Code::Fenced, true)));
        }
        let (before, rows) = (sink.epoch, sink.rows);
        sink.epoch = epoch;
        self.tables.begun.push(Begun { at: self.now, on: at, key: key.clone(), epoch, from, rows });
        if before != SpanEpoch(0) && from.is_some_and(|from| from.position > rows) {
            self.fail(&format!("{key:?} starts from {from:?}, and its sink holds {rows} rows"));
        }
        let others = self.machines.values().filter(|other| other.name != at && !other.paused);
        let mut twins = others.filter(|other| other.tasks.get(key).is_some_and(TaskAt::is_at_work));
        if let Some(twin) = twins.next() {
            self.fail(&format!("{key:?} starts on {at} and runs on {}", twin.name));
        }
        if let Some(task) = self.task_mut(at, key, run) {
            task.state = TaskState::Going { epoch, rows };
        }
    }

    /// Every dispatcher of a machine that is awake writes what its source has.
    pub(super) fn work(&mut self, at: Name) {
        let machine = &self.machines[at];
        if machine.paused || machine.node.is_none() {
            return;
        }
        let tasks: Vec<(Key, TaskAt)> =
            machine.tasks.iter().map(|(key, task)| (key.clone(), *task)).collect();
        for (key, TaskAt { run, state }) in tasks {
            let TaskState::Going { epoch, rows } = state else { continue };
            match self.write(at, &key, epoch, rows) {
                Ok(next) => {
                    if let Some(task) = self.task_mut(at, &key, run) {
                        task.state = TaskState::Going { epoch, rows: next };
                    }
                    if next != rows {
                        self.task_says(at, &key, run, TaskWhat::Progressed(checkpoint(next)));
                    }
                }
                Err(refused) => self.task_ends(at, &key, run, Err(refused)),
            }
        }
    }

    /// One transaction: the sink compares the epoch and takes the rows that come next.
    fn write(&mut self, at: Name, key: &Key, epoch: SpanEpoch, rows: u64) -> Result<u64, TaskFailure> {
        let upto = self.tables.rows_at_source(self.now).max(rows);
        let sink = self.tables.sinks.get_mut(key).filter(|sink| sink.epoch == epoch);
        let Some(sink) = sink else {
            self.tables.refused.push((at, key.clone()));
            return Err(failure(Code::Fenced, true));
        };
        if sink.rows != rows {
            let held = sink.rows;
            self.fail(&format!("{at} writes {key:?} from row {rows}, and {held} are there"));
        }
        sink.rows = upto;
        Ok(upto)
    }
}
