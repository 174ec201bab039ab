//! A store in this process's memory, for tests. Keeps the whole contract, leases included, and can be
//! told to lose answers, requests and space.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::contract::{
    Batch, Campaign, Candidate, Committed, Follow, Holder, KeyRange, Office, Op, Position, Presence, Record,
    Status, Store, check_transaction, effective,
};
use crate::error::{CommitError, KeepAliveError, LoadError, Refusal, StoreError};
use crate::local::{Local, lock};

/// Transactions remembered for followers.
const HISTORY_MAX: usize = 4096;

/// Records handed over at a time.
const BATCH_RECORDS: usize = 4096;

/// What shall happen to a commit instead of the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Applied, and the answer is lost.
    LoseAnswer,
    /// Lost on the way, with the same error as a lost answer.
    LoseRequest,
    /// The caller gets no answer; it is applied, or refused, at [`MemoryStore::deliver_late`].
    Late,
    /// Surely not applied.
    Unavailable,
    /// As if another were in office.
    Refuse,
    /// Not applied, for lack of space.
    SpaceExhausted,
    /// Applied, and answered with lack of space, as etcd does when it crosses its quota.
    SpaceExhaustedAfterApplying,
}

struct Late {
    office: Office,
    head: u64,
    ops: Vec<Op>,
}

struct Held {
    holder: Holder,
    ttl: Duration,
    until: Instant,
}

#[derive(Default)]
struct State {
    records: BTreeMap<Bytes, Bytes>,
    head: u64,
    term: u64,
    office: Option<Held>,
    faults: VecDeque<Fault>,
    late: Vec<Late>,
    space_alarm: bool,
}

impl State {
    /// Leases end when somebody looks.
    fn in_office(&mut self) -> Option<&mut Held> {
        if self.office.as_ref().is_some_and(|held| held.until <= Instant::now()) {
            self.office = None;
        }
        self.office.as_mut()
    }

    fn apply(&mut self, office: &Office, head: u64, ops: &[Op], local: &Local) -> Result<(), CommitError> {
        let holder = self.in_office().map(|held| held.holder.clone());
        if holder.as_ref().is_none_or(|holder| holder.term != office.term) {
            return Err(CommitError::Refused {
                head,
                why: Refusal::OfficeLost { term: office.term, holder },
            });
        }
        if self.head + 1 != head {
            let why = Refusal::HeadIsOther { expected: head - 1, found: Some(self.head) };
            return Err(CommitError::Refused { head, why });
        }
        let ops: Vec<Op> = effective(ops).into_iter().cloned().collect();
        for op in &ops {
            let key = Bytes::copy_from_slice(&op.key);
            match &op.value {
                Some(value) => self.records.insert(key, Bytes::copy_from_slice(value)),
                None => self.records.remove(&key),
            };
        }
        self.head = head;
        local.append(Committed { head, revision: head, ops });
        Ok(())
    }
}

struct Shared {
    state: Mutex<State>,
    local: Arc<Local>,
    /// Rises with each change of office or its lease, so that those who wait look again.
    office_changes: watch::Sender<u64>,
}

/// Clones are further handles on the same state, as those of several candidates would be.
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore(Arc::new(Shared {
            state: Mutex::default(),
            local: Local::new(0, HISTORY_MAX),
            office_changes: watch::Sender::new(0),
        }))
    }

    /// Each fault strikes one commit, in the order injected.
    pub fn inject(&self, fault: Fault) {
        lock(&self.0.state).faults.push_back(fault);
    }

    /// Lets the transactions held back by [`Fault::Late`] arrive. Returns how many were applied.
    pub fn deliver_late(&self) -> usize {
        let mut state = lock(&self.0.state);
        let late = std::mem::take(&mut state.late);
        late.into_iter()
            .filter(|late| state.apply(&late.office, late.head, &late.ops, &self.0.local).is_ok())
            .count()
    }

    /// Ends the office's lease now, as if it had run out.
    pub fn depose(&self) {
        lock(&self.0.state).office = None;
        self.office_changed();
    }

    pub fn set_space_alarm(&self, raised: bool) {
        lock(&self.0.state).space_alarm = raised;
    }

    fn office_changed(&self) {
        self.0.office_changes.send_modify(|n| *n += 1);
    }
}

fn lost(head: u64, what: &'static str) -> CommitError {
    CommitError::Unknown { head, source: what.into() }
}

#[async_trait]
impl Store for MemoryStore {
    async fn office(&self, candidate: &Candidate, ttl: Duration) -> Result<Campaign, StoreError> {
        let office = {
            let mut state = lock(&self.0.state);
            if let Some(held) = state.in_office() {
                return Ok(Campaign::HeldBy(held.holder.clone()));
            }
            state.term += 1;
            let term = state.term;
            let holder = Holder { candidate: candidate.clone(), term };
            state.office = Some(Held { holder, ttl, until: Instant::now() + ttl });
            Office::new(term, candidate.clone(), ttl)
        };
        self.office_changed();
        Ok(Campaign::Elected(office))
    }

    async fn keep_alive(&self, office: &Office) -> Result<Duration, KeepAliveError> {
        let ttl = {
            let mut state = lock(&self.0.state);
            let held = state.in_office().filter(|held| held.holder.term == office.term);
            let held = held.ok_or(KeepAliveError::Lost { term: office.term })?;
            held.until = Instant::now() + held.ttl;
            held.ttl
        };
        self.office_changed();
        Ok(ttl)
    }

    async fn resign(&self, office: &Office) -> Result<(), StoreError> {
        {
            let mut state = lock(&self.0.state);
            if state.in_office().is_some_and(|held| held.holder.term == office.term) {
                state.office = None;
            }
        }
        self.office_changed();
        Ok(())
    }

    async fn holder(&self) -> Result<Option<Holder>, StoreError> {
        Ok(lock(&self.0.state).in_office().map(|held| held.holder.clone()))
    }

    async fn watch_holder(&self) -> Result<watch::Receiver<Option<Holder>>, StoreError> {
        let sender = watch::Sender::new(self.holder().await?);
        let receiver = sender.subscribe();
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            let mut changes = shared.office_changes.subscribe();
            loop {
                changes.borrow_and_update();
                let (holder, until) = match lock(&shared.state).in_office() {
                    Some(held) => (Some(held.holder.clone()), Some(held.until)),
                    None => (None, None),
                };
                sender.send_if_modified(|known| {
                    let differs = *known != holder;
                    *known = holder;
                    differs
                });
                let runs_out = async {
                    match until {
                        Some(until) => tokio::time::sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = runs_out => {}
                    () = sender.closed() => return,
                }
            }
        });
        Ok(receiver)
    }

    async fn commit(&self, office: &Office, head: u64, ops: &[Op]) -> Result<(), CommitError> {
        check_transaction(head, ops)?;
        let mut state = lock(&self.0.state);
        let local = &self.0.local;
        match state.faults.pop_front() {
            None => state.apply(office, head, ops, local),
            Some(Fault::LoseAnswer) => {
                let _answer = state.apply(office, head, ops, local);
                Err(lost(head, "the answer was lost"))
            }
            Some(Fault::LoseRequest) => Err(lost(head, "the answer was lost")),
            Some(Fault::Late) => {
                state.late.push(Late { office: office.clone(), head, ops: ops.to_vec() });
                Err(lost(head, "no answer in time"))
            }
            Some(Fault::Unavailable) => {
                Err(CommitError::Unavailable { head, source: "not connected".into() })
            }
            Some(Fault::Refuse) => {
                let why = Refusal::OfficeLost { term: office.term, holder: None };
                Err(CommitError::Refused { head, why })
            }
            Some(Fault::SpaceExhausted) => {
                Err(CommitError::SpaceExhausted { head, source: "database space exceeded".into() })
            }
            Some(Fault::SpaceExhaustedAfterApplying) => {
                state.apply(office, head, ops, local)?;
                Err(CommitError::SpaceExhausted { head, source: "database space exceeded".into() })
            }
        }
    }

    async fn head(&self) -> Result<u64, StoreError> {
        Ok(lock(&self.0.state).head)
    }

    async fn load(&self, ranges: &[KeyRange], sink: mpsc::Sender<Batch>) -> Result<Position, LoadError> {
        let (records, head) = {
            let state = lock(&self.0.state);
            let in_ranges = ranges.iter().flat_map(|range| {
                let (start, end) = (Bytes::copy_from_slice(&range.start), Bytes::copy_from_slice(&range.end));
                state.records.range(start..end)
            });
            let records: Vec<Record> =
                in_ranges.map(|(key, value)| Record { key: key.clone(), value: value.clone() }).collect();
            (records, state.head)
        };
        for batch in records.chunks(BATCH_RECORDS) {
            sink.send(batch.to_vec()).await.map_err(|_| LoadError::SinkClosed)?;
        }
        Ok(Position { head, revision: head })
    }

    async fn watch(&self, after: Position) -> Result<Follow, StoreError> {
        Ok(self.0.local.follow(after))
    }

    async fn announce(&self, candidate: &Candidate, ttl: Duration) -> Result<Presence, StoreError> {
        Ok(self.0.local.announce(candidate, ttl))
    }

    async fn candidates(&self) -> Result<Vec<Candidate>, StoreError> {
        Ok(self.0.local.candidates())
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.0.local.forget(revision);
        Ok(())
    }

    async fn status(&self) -> Result<Status, StoreError> {
        let state = lock(&self.0.state);
        let bytes = state.records.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
        Ok(Status {
            description: "memory".to_owned(),
            revision: state.head,
            disk_bytes: 0,
            used_bytes: bytes,
            space_alarm: state.space_alarm,
        })
    }
}
