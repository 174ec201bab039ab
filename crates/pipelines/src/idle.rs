//! The `idle` pipeline: spans that do nothing, to try moving many of them.
//!
//! One tick for all dispatchers of a node raises their `at`; a dispatcher itself sleeps until it is stopped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use model::{Checkpoint, Code, SpanEpoch, SpanName};

use crate::copy::tell;
use crate::{Control, Outlook, Pipeline, Prepared, Trouble, wall_clock};

/// How often idle spans say how far they are: often enough to see that they live.
const TICK: Duration = Duration::from_secs(1);

pub struct Idle {
    spans: u32,
    hosted: Arc<Mutex<Hosted>>,
}

#[derive(Default)]
struct Hosted {
    next: u64,
    dispatchers: BTreeMap<u64, Control>,
    ticking: bool,
}

impl Idle {
    pub fn new(spans: u32) -> Idle {
        Idle { spans, hosted: Arc::default() }
    }
}

#[async_trait]
impl Pipeline for Idle {
    async fn look(&self) -> Result<Outlook, Trouble> {
        let spans = (1..=self.spans).map(|number| SpanName::new(&format!("{number:06}"))).collect();
        Ok(Outlook { spans, ..Outlook::default() })
    }

    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn Prepared>, Trouble> {
        match span.as_str().parse::<u32>() {
            Ok(number) if (1..=self.spans).contains(&number) => {
                Ok(Box::new(Resting { hosted: self.hosted.clone() }))
            }
            Ok(_) | Err(_) => Err(Trouble::lasting(
                Code::SourceUnfit,
                format!("there is no span {span} among {}", self.spans),
            )),
        }
    }

    async fn sweep(&self, _keep: &[SpanName]) -> Result<(), Trouble> {
        Ok(())
    }
}

struct Resting {
    hosted: Arc<Mutex<Hosted>>,
}

#[async_trait]
impl Prepared for Resting {
    async fn run(
        self: Box<Self>,
        _epoch: SpanEpoch,
        from: Option<Checkpoint>,
        control: Control,
    ) -> Result<Checkpoint, Trouble> {
        let mut done = from.unwrap_or_default();
        done.raise(Checkpoint { position: 0, at: wall_clock() });
        tell(&control, done);
        let seat = Seat::take(&self.hosted, &control);
        control.stop.cancelled().await;
        drop(seat);
        done.raise(Checkpoint { position: 0, at: wall_clock() });
        // The tick may have told more than this clock says, if it was set back.
        done.raise(control.progress.borrow().unwrap_or_default());
        Ok(done)
    }
}

/// A place among those that the tick raises, until it is dropped.
struct Seat {
    id: u64,
    hosted: Arc<Mutex<Hosted>>,
}

impl Seat {
    fn take(hosted: &Arc<Mutex<Hosted>>, control: &Control) -> Seat {
        let mut all = lock(hosted);
        let id = all.next;
        all.next += 1;
        all.dispatchers.insert(id, control.clone());
        if !std::mem::replace(&mut all.ticking, true) {
            tokio::spawn(tick(Arc::downgrade(hosted)));
        }
        Seat { id, hosted: hosted.clone() }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.hosted).dispatchers.remove(&self.id);
    }
}

fn lock(hosted: &Mutex<Hosted>) -> MutexGuard<'_, Hosted> {
    hosted.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn tick(hosted: Weak<Mutex<Hosted>>) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(hosted) = hosted.upgrade() else { return };
        let mut all = lock(&hosted);
        if all.dispatchers.is_empty() {
            all.ticking = false;
            return;
        }
        let now = Checkpoint { position: 0, at: wall_clock() };
        all.dispatchers.values().for_each(|control| tell(control, now));
    }
}
