//! The order of writes: one transaction in flight, each comparing the number of the one before.
//!
//! Groups of changes queue while a transaction is under way and are packed whole into the next one.
//! An unknown outcome is resolved by reading the head and, if need be, sending the same bytes again:
//! a transaction whose answer was lost may still land later, and comparing the head makes that
//! harmless.

use std::{collections::VecDeque, fmt};

use model::Term;

use crate::coordinator::{Op, Stored};

/// Records in one atomic group. Larger groups would not pack into one transaction of etcd.
pub const GROUP_RECORDS_MAX: usize = 64;
/// Records in one transaction: etcd takes 128 operations, of which the head is one.
pub const TXN_RECORDS_MAX: usize = 120;
const _: () = assert!(GROUP_RECORDS_MAX <= TXN_RECORDS_MAX);
/// Bytes in one transaction: etcd takes 1.5 MiB in a request.
pub const TXN_BYTES_MAX: usize = 1 << 20;

/// What to do next with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Transact { head: u64, ops: Vec<Op> },
    ReadHead,
    Resign(String),
}

#[derive(Clone)]
struct Flight {
    head: u64,
    ops: Vec<Op>,
    /// The last group in it.
    through: u64,
    state: FlightState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlightState {
    Sent,
    ReadingHead,
    /// To be sent again, as it is, when the shell says so.
    Held,
}

/// Groups on their way to the store.
#[derive(Clone)]
pub struct CommitLog {
    term: Term,
    head: u64,
    queue: VecDeque<(u64, Vec<Op>)>,
    next_group: u64,
    committed: u64,
    flight: Option<Flight>,
}

impl CommitLog {
    /// `head` is the number of the last transaction in the store that was loaded.
    pub fn new(term: Term, head: u64) -> CommitLog {
        CommitLog { term, head, queue: VecDeque::new(), next_group: 1, committed: 0, flight: None }
    }

    /// Queues a group and returns its number.
    pub fn push(&mut self, ops: Vec<Op>) -> u64 {
        assert!(ops.len() <= GROUP_RECORDS_MAX, "a group of {} records", ops.len());
        let group = self.next_group;
        self.next_group += 1;
        self.queue.push_back((group, ops));
        group
    }

    /// The number of the last group that was queued; what depends on the present state waits for it.
    pub fn last_group(&self) -> u64 {
        self.next_group - 1
    }

    /// Every group up to this one is in the store.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    pub fn head(&self) -> u64 {
        self.head
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The next transaction, if none is in flight.
    pub fn send_next(&mut self) -> Option<Step> {
        if self.flight.is_some() || self.queue.is_empty() {
            return None;
        }
        let (mut ops, mut bytes, mut through) = (Vec::new(), 0, 0);
        while let Some((group, more)) = self.queue.front() {
            let size: usize = more.iter().map(size_of_op).sum();
            let fits = ops.len() + more.len() <= TXN_RECORDS_MAX && bytes + size <= TXN_BYTES_MAX;
            if !fits && !ops.is_empty() {
                break;
            }
            (through, bytes) = (*group, bytes + size);
            if let Some((_, more)) = self.queue.pop_front() {
                merge(&mut ops, more);
            }
        }
        let head = self.head + 1;
        self.flight = Some(Flight { head, ops: ops.clone(), through, state: FlightState::Sent });
        Some(Step::Transact { head, ops })
    }

    /// How the transaction in flight ended.
    pub fn stored(&mut self, outcome: Stored) -> Option<Step> {
        let flight = self.flight.as_mut()?;
        match outcome {
            Stored::Committed => {
                self.landed();
                self.send_next()
            }
            Stored::Unknown => {
                flight.state = FlightState::ReadingHead;
                Some(Step::ReadHead)
            }
            Stored::Unavailable | Stored::NoSpace => {
                flight.state = FlightState::Held;
                None
            }
            Stored::Refused => Some(Step::Resign("the store refused a write: another is in office".into())),
        }
    }

    /// What the head is after an unknown outcome, and who wrote it: a successor may have written a
    /// transaction of the same number after ours was lost.
    pub fn head_is(&mut self, head: u64, by: Term) -> Option<Step> {
        let flight = self.flight.as_mut()?;
        if flight.state != FlightState::ReadingHead {
            return None;
        }
        if head == flight.head && by == self.term {
            self.landed();
            return self.send_next();
        }
        if head + 1 == flight.head && by <= self.term {
            flight.state = FlightState::Sent;
            return Some(Step::Transact { head: flight.head, ops: flight.ops.clone() });
        }
        Some(Step::Resign(format!("the store is at {head}, we were about to write {}", flight.head)))
    }

    /// Sends again what the store surely did not take; called after a pause.
    pub fn retry(&mut self) -> Option<Step> {
        let flight = self.flight.as_mut()?;
        if flight.state != FlightState::Held {
            return None;
        }
        flight.state = FlightState::Sent;
        Some(Step::Transact { head: flight.head, ops: flight.ops.clone() })
    }

    pub fn is_held(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| flight.state == FlightState::Held)
    }

    /// What is not known to be in the store, in the order in which it is written.
    pub fn unwritten(&self) -> impl Iterator<Item = &Op> {
        let waits = self.queue.iter().flat_map(|(_, ops)| ops);
        self.flight.iter().flat_map(|flight| &flight.ops).chain(waits)
    }

    fn landed(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.head = flight.head;
            self.committed = flight.through;
        }
    }
}

/// What is written is bytes: its keys say which records are on their way.
impl fmt::Debug for CommitLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = |ops: &[Op]| ops.iter().map(|op| op.0.clone()).collect::<Vec<String>>();
        let waits = self.queue.iter().map(|(group, ops)| (Group(*group), keys(ops)));
        let flight = self.flight.as_ref();
        f.debug_struct("CommitLog")
            .field("term", &self.term)
            .field("head", &self.head)
            .field("queue", &waits.collect::<Vec<_>>())
            .field("next_group", &Group(self.next_group))
            .field("committed", &Group(self.committed))
            .field("flight", &flight.map(|f| (f.head, keys(&f.ops), Group(f.through), f.state)))
            .finish()
    }
}

/// A group's number, told from others where it is shown.
#[derive(Debug)]
#[expect(dead_code, reason = "it is shown")]
struct Group(u64);

fn size_of_op(op: &Op) -> usize {
    op.0.len() + op.1.as_ref().map_or(0, Vec::len)
}

/// Appends a group to a transaction. The store refuses two writes of one key in a transaction, and
/// only the later one counts.
fn merge(ops: &mut Vec<Op>, more: Vec<Op>) {
    for op in more {
        match ops.iter_mut().find(|known| known.0 == op.0) {
            Some(known) => known.1 = op.1,
            None => ops.push(op),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(key: &str) -> Op {
        (key.to_owned(), Some(vec![1]))
    }

    fn sent(step: Option<Step>) -> (u64, usize) {
        match step {
            Some(Step::Transact { head, ops }) => (head, ops.len()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn groups_that_queue_behind_a_transaction_go_into_the_next_one_whole() {
        let mut log = CommitLog::new(Term(3), 7);
        log.push(vec![op("a")]);
        assert_eq!(sent(log.send_next()), (8, 1));
        for n in 0..4 {
            log.push((0..40).map(|k| op(&format!("{n}-{k}"))).collect());
        }
        assert_eq!(log.send_next(), None);
        assert_eq!(sent(log.stored(Stored::Committed)), (9, 120));
        assert_eq!(log.committed(), 1);
        assert_eq!(sent(log.stored(Stored::Committed)), (10, 40));
        assert_eq!(log.stored(Stored::Committed), None);
        assert_eq!((log.committed(), log.head()), (5, 10));
    }

    #[test]
    fn a_lost_answer_is_resolved_by_the_head() {
        let mut log = CommitLog::new(Term(3), 0);
        log.push(vec![op("a")]);
        assert_eq!(sent(log.send_next()), (1, 1));
        assert_eq!(log.stored(Stored::Unknown), Some(Step::ReadHead));
        assert_eq!(sent(log.head_is(0, Term(2))), (1, 1));
        assert_eq!(log.stored(Stored::Unknown), Some(Step::ReadHead));
        assert_eq!(log.head_is(1, Term(3)), None);
        assert_eq!(log.committed(), 1);
    }

    #[test]
    fn a_head_that_is_not_ours_ends_the_office() {
        let mut log = CommitLog::new(Term(3), 0);
        log.push(vec![op("a")]);
        log.send_next();
        log.stored(Stored::Unknown);
        assert!(matches!(log.head_is(5, Term(4)), Some(Step::Resign(_))));
    }

    #[test]
    fn a_successors_transaction_of_the_same_number_is_not_taken_for_ours() {
        let mut log = CommitLog::new(Term(3), 0);
        log.push(vec![op("a")]);
        log.send_next();
        log.stored(Stored::Unknown);
        assert!(matches!(log.head_is(1, Term(4)), Some(Step::Resign(_))));
        assert_eq!(log.committed(), 0);
    }

    #[test]
    fn the_later_of_two_writes_of_one_record_counts() {
        let mut log = CommitLog::new(Term(3), 0);
        log.push(vec![op("a")]);
        log.push(vec![("a".into(), None), op("b")]);
        assert_eq!(log.send_next(), Some(Step::Transact { head: 1, ops: vec![("a".into(), None), op("b")] }));
    }
}
