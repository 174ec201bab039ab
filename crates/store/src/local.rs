//! What the stores inside one process share: the recent history for followers, and presence.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::contract::{Candidate, Committed, FOLLOW_BUFFER, Follow, Position, Presence};
use crate::error::WatchError;

/// A poisoned lock only says that another thread panicked; every critical section here leaves the data
/// whole at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last transactions, in order. Here a revision is the head's number.
struct History {
    entries: VecDeque<Arc<Committed>>,
    /// Everything up to and including this number is forgotten.
    floor: u64,
    max: usize,
}

enum After {
    Entry(Arc<Committed>),
    NotYet,
    Forgotten,
}

struct Present {
    candidate: Candidate,
    /// Set once nobody extends it any more.
    until: Option<Instant>,
    announcement: u64,
}

pub(crate) struct Local {
    history: Mutex<History>,
    newest: watch::Sender<u64>,
    present: Mutex<BTreeMap<String, Present>>,
    announcements: std::sync::atomic::AtomicU64,
}

impl Local {
    /// `head` is where the history begins; `max` transactions are remembered.
    pub(crate) fn new(head: u64, max: usize) -> Arc<Local> {
        Arc::new(Local {
            history: Mutex::new(History { entries: VecDeque::new(), floor: head, max }),
            newest: watch::Sender::new(head),
            present: Mutex::default(),
            announcements: Default::default(),
        })
    }

    /// Called with each transaction, in order, once it is durable.
    pub(crate) fn append(&self, committed: Committed) {
        let head = committed.head;
        {
            let mut history = lock(&self.history);
            let expected = history.floor + history.entries.len() as u64 + 1;
            if head < expected {
                // resolved twice: an outcome that was unknown turned out to be applied
                return;
            }
            if head > expected {
                history.entries.clear();
                history.floor = head - 1;
            }
            history.entries.push_back(Arc::new(committed));
            while history.entries.len() > history.max {
                history.entries.pop_front();
                history.floor += 1;
            }
        }
        self.newest.send_replace(head);
    }

    pub(crate) fn forget(&self, revision: u64) {
        let mut history = lock(&self.history);
        while history.floor < revision && history.entries.pop_front().is_some() {
            history.floor += 1;
        }
    }

    fn after(&self, head: u64) -> After {
        let history = lock(&self.history);
        if head < history.floor {
            return After::Forgotten;
        }
        match history.entries.get((head - history.floor) as usize) {
            Some(entry) => After::Entry(Arc::clone(entry)),
            None => After::NotYet,
        }
    }

    pub(crate) fn follow(self: &Arc<Self>, after: Position) -> Follow {
        let (send, received) = mpsc::channel(FOLLOW_BUFFER);
        let local = Arc::clone(self);
        let task = tokio::spawn(async move {
            let mut newest = local.newest.subscribe();
            let mut head = after.head;
            loop {
                newest.borrow_and_update();
                let next = match local.after(head) {
                    After::Entry(entry) => {
                        head = entry.head;
                        Ok(Committed::clone(&entry))
                    }
                    After::Forgotten => Err(WatchError::Compacted { after: head }),
                    After::NotYet => match newest.changed().await {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                };
                let over = next.is_err();
                if send.send(next).await.is_err() || over {
                    return;
                }
            }
        });
        Follow::new(received, task)
    }

    pub(crate) fn announce(self: &Arc<Self>, candidate: &Candidate, ttl: Duration) -> Presence {
        let announcement = self.announcements.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let present = Present { candidate: candidate.clone(), until: None, announcement };
        lock(&self.present).insert(candidate.id.clone(), present);
        let (withdraw, withdrawn) = oneshot::channel();
        let (local, id) = (Arc::clone(self), candidate.id.clone());
        let task = tokio::spawn(async move {
            let at_once = withdrawn.await.is_ok();
            let mut all = lock(&local.present);
            // a later announcement of the same candidate is not ours to end
            if let Some(mine) = all.get_mut(&id).filter(|present| present.announcement == announcement) {
                if at_once {
                    all.remove(&id);
                } else {
                    mine.until = Some(Instant::now() + ttl);
                }
            }
        });
        Presence::new(withdraw, task)
    }

    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let now = Instant::now();
        let mut all = lock(&self.present);
        all.retain(|_, present| present.until.is_none_or(|until| now < until));
        all.values().map(|present| present.candidate.clone()).collect()
    }
}
