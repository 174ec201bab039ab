//! Follows the changes of one table from its slot into its sink.
//!
//! Transactions of the source are gathered for as long as more of them are at hand, and go to the sink as
//! one. A transaction is never parted: a large one is written in chunks within one transaction of the sink.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use model::{Checkpoint, Time};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, timeout};

use super::Source;
use super::catalog::Table;
use super::connect::{Side, unreachable};
use super::names::server_time;
use super::pgoutput::{Logical, Relation, decode};
use super::wal::{Fault, Frame, Wal};
use crate::change::{Cell, Change, Column, Row, Shape};
use crate::contract::{Control, Trouble};
use crate::sink::SpanSink;

/// What is held in memory before it goes to the sink: per dispatcher, and there are many on a node.
const CHUNK_ROWS: usize = 4096;
const CHUNK_BYTES: usize = 4 << 20;
/// A transaction of the sink takes whole transactions of the source until it has this many changes, or is
/// this old: what it commits becomes visible and is confirmed.
const GATHER_ROWS: usize = 32 * 1024;
const GATHER_TIME: Duration = Duration::from_millis(500);
/// How often the source's clock is asked, for a table in which nothing happens.
const TICK: Duration = Duration::from_secs(1);
/// How often the sink's checkpoint follows a source in which nothing happens to this table: rarely, for
/// there may be thousands of such tables; often enough that the log is not held back for long.
const IDLE_COMMIT: Duration = Duration::from_secs(5);
/// While the sink takes its time, the server hears from us this often: well below `wal_sender_timeout`.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// Frames between two looks at whether to stop.
const FRAMES_PER_LOOK: usize = 256;

pub struct Stream<'a> {
    source: &'a Source,
    wal: Wal,
    sink: &'a mut dyn SpanSink,
    table: &'a Table,
    control: &'a Control,
    shape: Arc<Shape>,
    /// The number under which our table's rows come.
    relation: Option<u32>,
    /// Not yet given to the sink.
    pending: Vec<Change>,
    pending_bytes: usize,
    /// How many of `pending` belong to transactions that came whole.
    whole: usize,
    in_transaction: bool,
    /// The sink was given changes of a transaction that has not come whole.
    parted: bool,
    /// Changes of the open transaction of the sink, and since when it gathers.
    gathered: usize,
    since: Option<Instant>,
    /// Everything before this has come.
    seen: Checkpoint,
    /// Everything before this is committed in the sink.
    committed: Checkpoint,
    committed_at: Instant,
    /// A moment of the source whose log has not been read yet.
    moment: Option<(Time, u64)>,
}

fn lost(fault: Fault) -> Trouble {
    fault.trouble("reading the changes")
}

impl<'a> Stream<'a> {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        source: &'a Source,
        wal: Wal,
        sink: &'a mut dyn SpanSink,
        table: &'a Table,
        shape: Arc<Shape>,
        at: Checkpoint,
        control: &'a Control,
    ) -> Stream<'a> {
        Stream {
            source,
            wal,
            sink,
            table,
            control,
            shape,
            relation: None,
            pending: Vec::new(),
            pending_bytes: 0,
            whole: 0,
            in_transaction: false,
            parted: false,
            gathered: 0,
            since: None,
            seen: at,
            committed: at,
            committed_at: Instant::now(),
            moment: None,
        }
    }

    /// Until told to stop; then gives what the sink has committed last.
    pub async fn follow(mut self) -> Result<Checkpoint, Trouble> {
        self.report();
        self.read_on().await?;
        self.wind_up().await?;
        let committed = self.committed;
        self.wal.finish().await;
        Ok(committed)
    }

    async fn read_on(&mut self) -> Result<(), Trouble> {
        let stop = self.control.stop.clone();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut frames = 0;
        loop {
            frames += 1;
            if frames % FRAMES_PER_LOOK == 0 {
                if stop.is_cancelled() {
                    return Ok(());
                }
                // A stream that is busy, if only with other tables, must not keep the clock waiting, nor the
                // rest of the runtime.
                if ticks.tick().now_or_never().is_some() {
                    self.tick().await?;
                }
                tokio::task::yield_now().await;
            }
            if let Some(frame) = self.wal.ready().map_err(lost)? {
                self.take(frame).await?;
                continue;
            }
            if !self.in_transaction && self.has_changes() {
                self.commit().await?;
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                read = self.wal.fill() => read.map_err(lost)?,
                _ = ticks.tick() => self.tick().await?,
            }
        }
    }

    fn has_changes(&self) -> bool {
        self.gathered > 0 || !self.pending.is_empty()
    }

    async fn take(&mut self, frame: Frame) -> Result<(), Trouble> {
        match frame {
            Frame::KeepAlive { end, reply } => {
                if !self.in_transaction {
                    self.advance(end, None);
                }
                if reply {
                    self.confirm(false).await?;
                }
                Ok(())
            }
            Frame::Data(data) => {
                let ours = self.relation;
                let logical = decode(data, |relation| Some(relation) == ours);
                let logical =
                    logical.map_err(|garbled| unreachable(Side::Source, "reading the changes", garbled))?;
                self.apply(logical).await
            }
        }
    }

    async fn apply(&mut self, logical: Logical) -> Result<(), Trouble> {
        match logical {
            Logical::Begin => self.in_transaction = true,
            Logical::Commit { end, time } => {
                self.in_transaction = false;
                self.parted = false;
                self.whole = self.pending.len();
                self.advance(end, Some(server_time(time)));
                let old = self.since.is_some_and(|since| since.elapsed() >= GATHER_TIME);
                if self.has_changes() && (old || self.gathered + self.pending.len() >= GATHER_ROWS) {
                    self.commit().await?;
                }
            }
            Logical::Relation(relation) => self.describe(relation).await?,
            Logical::Insert { row, .. } => {
                let row = self.checked(row)?;
                self.push(Change::Insert { row }).await?;
            }
            Logical::Update { old, row, .. } => {
                let (old_key, row) = self.update(old, row)?;
                self.push(Change::Update { old_key, row }).await?;
            }
            Logical::Delete { old, .. } => {
                let key = self.checked(old)?;
                self.push(Change::Delete { key }).await?;
            }
            Logical::Truncate { relations } => {
                if self.relation.is_some_and(|ours| relations.contains(&ours)) {
                    self.push(Change::Truncate).await?;
                }
            }
            Logical::Other => {}
        }
        Ok(())
    }

    /// The source describes a table before its rows come, and again after it was altered.
    async fn describe(&mut self, relation: Relation) -> Result<(), Trouble> {
        let ours = relation.schema == self.table.shape.schema && relation.table == self.table.shape.table;
        if !ours {
            if self.relation == Some(relation.id) {
                return Err(unreachable(Side::Source, "reading the changes", "the table was renamed"));
            }
            return Ok(());
        }
        self.relation = Some(relation.id);
        // With a full identity every column is one of it, and the key is what the catalogue says.
        let full = relation.identity == b'f';
        let in_key = |name: &str| self.table.shape.keys().any(|(_, column)| column.name == name);
        let column = |(name, type_oid, key): (String, u32, bool)| {
            let key = if full { in_key(&name) } else { key };
            Column { name, type_oid, key }
        };
        let columns = relation.columns.into_iter().map(column).collect();
        let shape = Shape { schema: relation.schema, table: relation.table, columns };
        if shape == *self.shape {
            return Ok(());
        }
        self.hand_over().await?;
        self.shape = Arc::new(shape);
        let (sink, shape) = (&mut self.sink, &self.shape);
        sink.fit(shape).await
    }

    fn checked(&self, row: Row) -> Result<Row, Trouble> {
        if row.len() == self.shape.columns.len() {
            return Ok(row);
        }
        Err(unreachable(Side::Source, "reading the changes", "a row has other columns than its table"))
    }

    /// Fills in what the old row tells, and finds out whether the key changed.
    fn update(&self, old: Option<Row>, row: Row) -> Result<(Option<Row>, Row), Trouble> {
        let mut row = self.checked(row)?;
        let Some(old) = old else { return Ok((None, row)) };
        let old = self.checked(old)?;
        for (cell, before) in row.iter_mut().zip(&old) {
            // In a key alone, what is not of the key is null.
            if *cell == Cell::Unchanged && *before != Cell::Null {
                *cell = before.clone();
            }
        }
        let moved = self.shape.keys().any(|(at, _)| row[at] != old[at]);
        Ok((moved.then_some(old), row))
    }

    async fn push(&mut self, change: Change) -> Result<(), Trouble> {
        self.since.get_or_insert_with(Instant::now);
        self.pending_bytes += change.size();
        self.pending.push(change);
        if self.pending.len() >= CHUNK_ROWS || self.pending_bytes >= CHUNK_BYTES {
            self.hand_over().await?;
        }
        Ok(())
    }

    /// Gives the sink what is pending, in its open transaction.
    async fn hand_over(&mut self) -> Result<(), Trouble> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.parted |= self.pending.len() > self.whole;
        self.gathered += self.pending.len();
        (self.whole, self.pending_bytes) = (0, 0);
        let changes = std::mem::take(&mut self.pending);
        self.pending.reserve(changes.len());
        alive(&mut self.wal, self.committed.position, self.sink.write(changes)).await
    }

    async fn commit(&mut self) -> Result<(), Trouble> {
        self.hand_over().await?;
        let to = self.seen;
        alive(&mut self.wal, self.committed.position, self.sink.commit(to)).await?;
        (self.gathered, self.since) = (0, None);
        self.committed = to;
        self.committed_at = Instant::now();
        self.report();
        self.confirm(false).await
    }

    /// Everything before `position` has come, and with it what was committed until `at`.
    fn advance(&mut self, position: u64, at: Option<Time>) {
        self.seen.position = self.seen.position.max(position);
        if let Some(at) = at {
            self.seen.at = self.seen.at.max(at);
        }
        if let Some((at, end)) = self.moment
            && end <= self.seen.position
        {
            self.seen.at = self.seen.at.max(at);
            self.moment = None;
        }
        if !self.has_changes() {
            self.report();
        }
    }

    /// Tells the host how far the sink is. Where nothing is on its way, that is as far as has come.
    fn report(&self) {
        let done = if self.has_changes() { self.committed } else { self.seen };
        self.control.progress.send_if_modified(|progress| {
            let before = *progress;
            progress.get_or_insert_default().raise(done);
            *progress != before
        });
    }

    async fn confirm(&mut self, answer: bool) -> Result<(), Trouble> {
        self.wal.confirm(self.committed.position, answer).await.map_err(lost)
    }

    async fn tick(&mut self) -> Result<(), Trouble> {
        if self.moment.is_none() {
            // Without it the clock stands still; the rows do not, nor does a stop wait for it.
            self.moment = timeout(TICK, self.source.moment()).await.ok().and_then(Result::ok);
        }
        let behind = self.seen.position > self.committed.position;
        if behind && !self.in_transaction && !self.has_changes() && self.committed_at.elapsed() >= IDLE_COMMIT
        {
            self.commit().await?;
        }
        // The keepalive in return says how far the server has read.
        self.confirm(true).await
    }

    /// Commits the transactions that came whole, undoes the rest.
    async fn wind_up(&mut self) -> Result<(), Trouble> {
        if self.parted {
            self.sink.roll_back().await?;
            return Ok(());
        }
        self.pending.truncate(self.whole);
        if self.has_changes() || self.seen != self.committed {
            self.in_transaction = false;
            self.commit().await?;
        }
        Ok(())
    }
}

/// Waits for the sink, and gives the server a sign of life meanwhile.
async fn alive<T>(
    wal: &mut Wal,
    position: u64,
    work: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    tokio::pin!(work);
    let mut ticks = interval_at(Instant::now() + SIGN_OF_LIFE, SIGN_OF_LIFE);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = ticks.tick() => wal.confirm(position, false).await.map_err(lost)?,
        }
    }
}
