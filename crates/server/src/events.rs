//! What happened in this term, kept for a while for those who follow along.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{Event, Term};
use tokio::sync::watch;

/// Events kept in memory. A program that falls further behind is told so and reads the state anew.
pub const EVENTS_KEPT_MAX: usize = 16_384;

/// Bits of an event's number that count within a term. Terms of etcd are revisions, which rise at
/// least as fast as a 24-bit count of events overflows: a transaction makes a few hundred at most.
const COUNT_BITS: u32 = 24;

/// Events handed over at a time.
const BATCH_MAX: usize = 256;

#[derive(Default)]
struct Ring {
    term: Term,
    /// The number of the oldest that is kept, minus one.
    floor: u64,
    kept: VecDeque<Arc<Event>>,
    open: bool,
}

/// What a reader gets next.
#[derive(Debug)]
pub enum Next {
    /// Events after the reader's place, with their numbers.
    Events(Vec<(u64, Arc<Event>)>),
    /// Some between the reader's place and `resume` are gone.
    Gone { resume: u64 },
    /// Nothing yet.
    Wait,
    /// This daemon is not the coordinator any more.
    Ended,
}

/// The ring, its readers' wake-up.
pub struct EventLog {
    ring: Mutex<Ring>,
    changed: watch::Sender<u64>,
}

impl Default for EventLog {
    fn default() -> EventLog {
        EventLog { ring: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl EventLog {
    /// Begins a term, empty: what happened meanwhile under others is not known here, and a reader
    /// must not take the gap for silence.
    pub fn begin(&self, term: Term) {
        let base = term.0.saturating_mul(1 << COUNT_BITS).min(u64::MAX / 2);
        *self.lock() = Ring { term, floor: base, kept: VecDeque::new(), open: true };
        self.wake();
    }

    /// Ends the term: readers are let go, so that they look for the new coordinator.
    pub fn end(&self) {
        self.lock().open = false;
        self.wake();
    }

    pub fn push(&self, event: Event) {
        {
            let mut ring = self.lock();
            ring.kept.push_back(Arc::new(event));
            if ring.kept.len() > EVENTS_KEPT_MAX {
                ring.kept.pop_front();
                ring.floor += 1;
            }
        }
        self.wake();
    }

    /// Where a reader who wants everything that is kept begins, and the term it is of.
    pub fn oldest(&self) -> (u64, Term) {
        let ring = self.lock();
        (ring.floor, ring.term)
    }

    /// What comes after `seen`, for a reader who began in `term`.
    pub fn after(&self, seen: u64, term: Term) -> Next {
        let ring = self.lock();
        if !ring.open || ring.term != term {
            return Next::Ended;
        }
        let newest = ring.floor + ring.kept.len() as u64;
        if seen < ring.floor || seen > newest {
            return Next::Gone { resume: ring.floor };
        }
        let skip = (seen - ring.floor) as usize;
        let events = ring.kept.iter().skip(skip).take(BATCH_MAX).cloned();
        let events: Vec<_> = (seen + 1..).zip(events).collect();
        if events.is_empty() { Next::Wait } else { Next::Events(events) }
    }

    /// Changes with every event and every end of a term.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn wake(&self) {
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // A poisoned lock only says that another thread panicked; the ring is whole at every step.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{EventKind, Time};

    fn event(n: usize) -> Event {
        let (unit, message) = ("node/a".to_owned(), n.to_string());
        Event { kind: EventKind::NodeHealthChanged, at: Time(1), unit, message, fields: Vec::new() }
    }

    #[test]
    fn a_reader_who_comes_back_misses_nothing_that_is_kept() {
        let log = EventLog::default();
        log.begin(Term(7));
        (0..5).for_each(|n| log.push(event(n)));
        let (start, term) = log.oldest();
        let Next::Events(all) = log.after(start, term) else { panic!() };
        assert_eq!(all.len(), 5);
        let Next::Events(rest) = log.after(all[2].0, term) else { panic!() };
        assert_eq!(rest.iter().map(|(_, e)| e.message.as_str()).collect::<Vec<_>>(), ["3", "4"]);
        assert!(matches!(log.after(all[4].0, term), Next::Wait));
    }

    #[test]
    fn what_is_gone_is_said() {
        let log = EventLog::default();
        log.begin(Term(7));
        let (start, term) = log.oldest();
        (0..EVENTS_KEPT_MAX + 3).for_each(|n| log.push(event(n)));
        let Next::Gone { resume } = log.after(start, term) else { panic!() };
        assert_eq!(resume, start + 3);
        let Next::Events(events) = log.after(resume, term) else { panic!() };
        assert_eq!(events[0].1.message, "3");
    }

    #[test]
    fn numbers_rise_over_terms_and_an_older_terms_reader_is_let_go() {
        let log = EventLog::default();
        log.begin(Term(7));
        log.push(event(0));
        let (start, seven) = log.oldest();
        log.begin(Term(8));
        assert!(log.oldest().0 > start + 1);
        assert!(matches!(log.after(start, seven), Next::Ended));
        assert!(matches!(log.after(start + 1, Term(8)), Next::Gone { .. }));
        log.end();
        assert!(matches!(log.after(log.oldest().0, Term(8)), Next::Ended));
    }
}
