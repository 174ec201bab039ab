//! Dispatchers as tasks: each has one, from being prepared to its last word.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use model::{Checkpoint, Code, FeedName, FeedSpec, SpanEpoch, SpanName};
use pipelines::{Control, Host, Outlook, Pipeline, Trouble};
use protocol::{
    dispatchers::{Task, TaskFailure, TaskNews, TaskWhat},
    maintainer::Looked,
    node::FeedNews,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use wire::limits::{SPAN_BYTES_MAX, SPANS_BYTES_MAX, SPANS_MAX};

/// How often the progress of all dispatchers together is looked at: none is reported more often.
pub(crate) const PROGRESS_PAUSE: Duration = Duration::from_millis(250);
/// A look at the source, or a sweep, that takes longer is given up and tried again.
const CHORE_PATIENCE: Duration = Duration::from_secs(60);
/// A pipeline that nobody uses is kept this long: its maintainer looks at the source now and then, and a
/// warm process is worth keeping in between.
const UNUSED_KEPT: Duration = Duration::from_secs(15);

/// One feed's pipeline, as of one specification.
struct Opened {
    spec: Arc<FeedSpec>,
    pipeline: Arc<dyn Pipeline>,
    used_at: Instant,
}

struct Dispatcher {
    go: Option<oneshot::Sender<(SpanEpoch, Option<Checkpoint>)>>,
    stop: CancellationToken,
    abort: CancellationToken,
    progress: watch::Receiver<Option<Checkpoint>>,
}

/// The tasks of a span are told from each other by their run.
type Key = (FeedName, SpanName, u32);

pub(crate) struct FeedHost {
    host: Host,
    /// The last of each is the one in use; those before it serve what was started with them.
    opened: BTreeMap<FeedName, Vec<Opened>>,
    dispatchers: BTreeMap<Key, Dispatcher>,
    fence_ms: Option<u64>,
    news: mpsc::UnboundedSender<FeedNews>,
}

impl FeedHost {
    pub fn new(host: Host, news: mpsc::UnboundedSender<FeedNews>) -> FeedHost {
        FeedHost { host, opened: BTreeMap::new(), dispatchers: BTreeMap::new(), fence_ms: None, news }
    }

    pub fn is_idle(&self) -> bool {
        self.dispatchers.is_empty()
    }

    /// The pipeline of a feed, opened anew if it is another than before.
    fn pipeline(&mut self, feed: &FeedName, spec: &Arc<FeedSpec>) -> Result<Arc<dyn Pipeline>, Trouble> {
        let all = self.opened.entry(feed.clone()).or_default();
        if let Some(last) = all.last_mut().filter(|last| last.spec.pipeline == spec.pipeline) {
            last.used_at = Instant::now();
            return Ok(last.pipeline.clone());
        }
        let pipeline = pipelines::open(feed, spec, &self.host)?;
        if let Some(fence_ms) = self.fence_ms {
            pipeline.lease(fence_ms);
        }
        all.push(Opened { spec: spec.clone(), pipeline: pipeline.clone(), used_at: Instant::now() });
        Ok(pipeline)
    }

    /// The node's lease holds until this point on the boot clock.
    pub fn lease(&mut self, fence_ms: u64) {
        self.fence_ms = Some(fence_ms);
        for all in self.opened.values_mut() {
            let last = all.len().saturating_sub(1);
            let mut place = 0..;
            all.retain(|opened| {
                let is_last = place.next() == Some(last);
                let used = Arc::strong_count(&opened.pipeline) > 1;
                used || (is_last && opened.used_at.elapsed() < UNUSED_KEPT)
            });
            all.iter().for_each(|opened| opened.pipeline.lease(fence_ms));
        }
        self.opened.retain(|_, all| !all.is_empty());
    }

    pub fn task(
        &mut self,
        feed: FeedName,
        span: SpanName,
        (spec, mark): (Arc<FeedSpec>, Option<String>),
        task: Task,
    ) {
        match task {
            Task::Prepare { run } => self.prepare((feed, span, run), &spec, mark.as_deref()),
            Task::Go { run, epoch, from } => {
                let go = self.dispatchers.get_mut(&(feed, span, run)).and_then(|found| found.go.take());
                // One that has failed since then says so itself.
                if let Some(go) = go {
                    let _ = go.send((epoch, from));
                }
            }
            Task::Stop { run } => {
                if let Some(dispatcher) = self.dispatchers.get(&(feed, span, run)) {
                    dispatcher.stop.cancel();
                }
            }
            Task::Abort { run } => {
                if let Some(dispatcher) = self.dispatchers.get(&(feed, span, run)) {
                    dispatcher.abort.cancel();
                }
            }
        }
    }

    fn prepare(&mut self, key: Key, spec: &Arc<FeedSpec>, mark: Option<&str>) {
        let pipeline = match self.pipeline(&key.0, spec) {
            Ok(pipeline) => pipeline,
            Err(trouble) => {
                let _ = self.news.send(task_news(key, TaskWhat::Ended(Err(failure(trouble)))));
                return;
            }
        };
        if let Some(mark) = mark {
            pipeline.expect(mark);
        }
        let (go, started) = oneshot::channel();
        let (told, progress) = watch::channel(None);
        let (stop, abort) = (CancellationToken::new(), CancellationToken::new());
        let control = Control { stop: stop.clone(), progress: told };
        self.dispatchers
            .insert(key.clone(), Dispatcher { go: Some(go), stop, abort: abort.clone(), progress });
        let news = self.news.clone();
        tokio::spawn(async move {
            let work = work(pipeline, &key, started, control, &news);
            // Whatever a pipeline does, the daemon lives on.
            let ended = tokio::select! {
                ended = AssertUnwindSafe(work).catch_unwind() => Some(ended),
                () = abort.cancelled() => None,
            };
            let result = match ended {
                Some(Ok(result)) => result.map_err(failure),
                Some(Err(panic)) => Err(failure(panicked(panic.as_ref()))),
                None => Ok(None),
            };
            let _ = news.send(task_news(key, TaskWhat::Ended(result)));
        });
    }

    /// A task has said its last word.
    pub fn ended(&mut self, news: &TaskNews) {
        if let TaskWhat::Ended(_) = news.what {
            self.dispatchers.remove(&(news.feed.clone(), news.span.clone(), news.run));
        }
    }

    /// What dispatchers have committed since this was asked last.
    pub fn progressed(&mut self) -> Vec<FeedNews> {
        let mut all = Vec::new();
        for (key, dispatcher) in &mut self.dispatchers {
            if dispatcher.progress.has_changed().unwrap_or(false)
                && let Some(checkpoint) = *dispatcher.progress.borrow_and_update()
            {
                all.push(task_news(key.clone(), TaskWhat::Progressed(checkpoint)));
            }
        }
        all
    }

    pub fn look(&mut self, feed: FeedName, epoch: model::MaintainerEpoch, spec: &Arc<FeedSpec>) {
        let pipeline = self.pipeline(&feed, spec);
        let news = self.news.clone();
        tokio::spawn(async move {
            let look = async { looked(pipeline?.look().await?) };
            let result = chore(look).await.map_err(failure);
            let _ = news.send(FeedNews::Looked { feed, epoch, result });
        });
    }

    pub fn sweep(
        &mut self,
        feed: FeedName,
        epoch: model::MaintainerEpoch,
        spec: &Arc<FeedSpec>,
        keep: Vec<SpanName>,
    ) {
        let pipeline = self.pipeline(&feed, spec);
        let news = self.news.clone();
        tokio::spawn(async move {
            let sweep = async { pipeline?.sweep(&keep).await };
            let result = chore(sweep).await.map_err(failure);
            let _ = news.send(FeedNews::Swept { feed, epoch, result });
        });
    }
}

async fn work(
    pipeline: Arc<dyn Pipeline>,
    key: &Key,
    started: oneshot::Receiver<(SpanEpoch, Option<Checkpoint>)>,
    control: Control,
    news: &mpsc::UnboundedSender<FeedNews>,
) -> Result<Option<Checkpoint>, Trouble> {
    let prepared = pipeline.prepare(&key.1).await?;
    let _ = news.send(task_news(key.clone(), TaskWhat::Prepared));
    // Nobody is left to start it.
    let Ok((epoch, from)) = started.await else { return Ok(None) };
    prepared.run(epoch, from, control).await.map(Some)
}

/// What is done for a maintainer: within bounds, and without taking the daemon down.
async fn chore<T>(work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    match tokio::time::timeout(CHORE_PATIENCE, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(panicked(panic.as_ref())),
        Err(_) => {
            let message = format!("no answer within {} s", CHORE_PATIENCE.as_secs());
            Err(Trouble::passing(Code::SourceUnreachable, message))
        }
    }
}

/// What is too much to be told others is not begun with.
fn looked(outlook: Outlook) -> Result<Looked, Trouble> {
    let Outlook { spans, held_back, warnings, mark } = outlook;
    if let Some(long) = spans.iter().find(|span| span.as_str().len() > SPAN_BYTES_MAX) {
        let start: String = long.as_str().chars().take(60).collect();
        let message = format!("the name of span {start:?}… is longer than {SPAN_BYTES_MAX} bytes");
        return Err(Trouble::lasting(Code::SourceUnfit, message));
    }
    let bytes: usize = spans.iter().map(|span| span.as_str().len()).sum();
    if spans.len() > SPANS_MAX || bytes > SPANS_BYTES_MAX {
        let message = format!(
            "{} spans with names of {bytes} bytes are more than a feed may have ({SPANS_MAX} and {SPANS_BYTES_MAX})",
            spans.len()
        );
        return Err(Trouble::lasting(Code::SourceUnfit, message));
    }
    Ok(Looked { spans, held_back, warnings, mark })
}

fn task_news((feed, span, run): Key, what: TaskWhat) -> FeedNews {
    FeedNews::Task(TaskNews { feed, span, run, what })
}

fn failure(trouble: Trouble) -> TaskFailure {
    let Trouble { code, message, passes, fenced } = trouble;
    TaskFailure { code, message, passes, fenced }
}

fn panicked(panic: &(dyn Any + Send)) -> Trouble {
    let words = panic.downcast_ref::<&str>().copied();
    let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let message = format!("the pipeline itself failed: {}", words.unwrap_or("it did not say why"));
    tracing::error!("{message}");
    Trouble::passing(Code::ProcessLost, message)
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
