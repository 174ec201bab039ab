//! Looks at the lengths of all files that are followed: one thread per feed, whatever the number of spans.
//!
//! By looking again and again, not by notification: that is not given for what another machine writes to a
//! shared directory.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::Time;
use tokio::sync::watch;

use crate::wall_clock;

/// Between two looks. Well below the 250 ms within which a hand-over has to be done; a thousand files cost
/// a few percent of a core.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A file that does not change is still said to be looked at, for `at` to rise.
const SAY_EVERY_MS: u64 = 500;

/// What a file was seen to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nobody has looked yet.
    Nothing,
    Length {
        at: Time,
        length: u64,
        /// Device and inode.
        identity: (u64, u64),
    },
    /// It cannot be seen, and why.
    Gone(String),
}

#[derive(Default)]
pub struct Follower(Arc<Mutex<Followed>>);

#[derive(Default)]
struct Followed {
    next: u64,
    files: BTreeMap<u64, Arc<Entry>>,
    /// A thread looks.
    looking: bool,
}

struct Entry {
    path: Box<Path>,
    told: watch::Sender<Look>,
}

/// One file that is followed, until this is dropped.
pub struct Following {
    id: u64,
    followed: Arc<Mutex<Followed>>,
    looks: watch::Receiver<Look>,
}

impl Follower {
    pub fn follow(&self, path: &Path) -> io::Result<Following> {
        let (told, looks) = watch::channel(Look::Nothing);
        let mut followed = lock(&self.0);
        if !followed.looking {
            let shared = self.0.clone();
            std::thread::Builder::new().name("log-follower".into()).spawn(move || look_on(&shared))?;
            followed.looking = true;
        }
        let id = followed.next;
        followed.next += 1;
        followed.files.insert(id, Arc::new(Entry { path: path.into(), told }));
        Ok(Following { id, followed: self.0.clone(), looks })
    }
}

impl Following {
    /// The next look: one that differs from the last, or one that is due.
    pub async fn next(&mut self) -> Look {
        // The sender lives as long as this does: it goes in `drop` below.
        let _ = self.looks.changed().await;
        self.looks.borrow_and_update().clone()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        lock(&self.followed).files.remove(&self.id);
    }
}

fn lock(followed: &Mutex<Followed>) -> MutexGuard<'_, Followed> {
    followed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends with the last file that is followed.
fn look_on(shared: &Mutex<Followed>) {
    loop {
        std::thread::sleep(LOOK_EVERY);
        let files: Vec<Arc<Entry>> = {
            let mut followed = lock(shared);
            if followed.files.is_empty() {
                followed.looking = false;
                return;
            }
            followed.files.values().cloned().collect()
        };
        // Without the lock: a file system may hang.
        for entry in files {
            let look = look_at(&entry.path);
            entry.told.send_if_modified(|told| {
                let news = is_news(told, &look);
                if news {
                    *told = look;
                }
                news
            });
        }
    }
}

fn look_at(path: &Path) -> Look {
    let at = wall_clock();
    match std::fs::metadata(path) {
        Ok(meta) => Look::Length { at, length: meta.len(), identity: (meta.dev(), meta.ino()) },
        Err(e) => Look::Gone(e.to_string()),
    }
}

fn is_news(told: &Look, look: &Look) -> bool {
    match (told, look) {
        (
            Look::Length { at: before, length, identity },
            Look::Length { at, length: other, identity: another },
        ) => length != other || identity != another || at.0.abs_diff(before.0) >= SAY_EVERY_MS,
        (Look::Nothing | Look::Gone(_) | Look::Length { .. }, _) => told != look,
    }
}
