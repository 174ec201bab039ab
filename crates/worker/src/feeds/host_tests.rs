use std::collections::BTreeMap;

use model::{MaintainerEpoch, PipelineSpec, Time};

use super::*;

fn feed() -> FeedName {
    FeedName::new("orders")
}

fn idle(spans: u32) -> Arc<FeedSpec> {
    Arc::new(FeedSpec { pipeline: PipelineSpec::Idle { spans }, constraints: BTreeMap::new() })
}

fn host() -> (FeedHost, mpsc::UnboundedReceiver<FeedNews>) {
    let (news, heard) = mpsc::unbounded_channel();
    (FeedHost::new(Host::default(), news), heard)
}

fn span(number: u32) -> SpanName {
    SpanName::new(&format!("{number:06}"))
}

impl FeedHost {
    fn order(&mut self, number: u32, task: Task) {
        self.task(feed(), span(number), (idle(3), None), task);
    }
}

/// The next word of a task.
async fn word(heard: &mut mpsc::UnboundedReceiver<FeedNews>) -> TaskNews {
    match heard.recv().await {
        Some(FeedNews::Task(news)) => news,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_dispatcher_is_prepared_works_and_ends_with_its_last_checkpoint() {
    let (mut host, mut heard) = host();
    host.order(1, Task::Prepare { run: 1 });
    let prepared = word(&mut heard).await;
    assert_eq!((prepared.span, prepared.run, prepared.what), (span(1), 1, TaskWhat::Prepared));
    let from = Some(Checkpoint { position: 0, at: Time(5) });
    host.order(1, Task::Go { run: 1, epoch: SpanEpoch(1), from });
    let said = loop {
        match host.progressed().pop() {
            Some(FeedNews::Task(news)) => break news,
            Some(other) => panic!("{other:?}"),
            None => tokio::task::yield_now().await,
        }
    };
    assert!(matches!(said.what, TaskWhat::Progressed(checkpoint) if checkpoint.at > Time(5)), "{said:?}");
    host.order(1, Task::Stop { run: 1 });
    let ended = word(&mut heard).await;
    assert!(matches!(ended.what, TaskWhat::Ended(Ok(Some(_)))), "{ended:?}");
    assert!(!host.is_idle());
    host.ended(&ended);
    assert!(host.is_idle());
}

#[tokio::test]
async fn one_that_is_aborted_says_so_whatever_it_was_at() {
    let (mut host, mut heard) = host();
    for (number, starts) in [(1, false), (2, true)] {
        host.order(number, Task::Prepare { run: 7 });
        assert_eq!(word(&mut heard).await.what, TaskWhat::Prepared);
        if starts {
            host.order(number, Task::Go { run: 7, epoch: SpanEpoch(1), from: None });
        }
        // Of another run: it is left alone.
        host.order(number, Task::Abort { run: 6 });
        host.order(number, Task::Abort { run: 7 });
        let ended = word(&mut heard).await;
        assert_eq!((ended.run, ended.what), (7, TaskWhat::Ended(Ok(None))));
    }
}

#[tokio::test]
async fn what_a_pipeline_complains_of_is_told_as_it_is() {
    let (mut host, mut heard) = host();
    host.order(99, Task::Prepare { run: 1 });
    let TaskWhat::Ended(Err(failure)) = word(&mut heard).await.what else { panic!("it does not exist") };
    assert_eq!((failure.code, failure.passes, failure.fenced), (Code::SourceUnfit, false, false));
}

#[tokio::test]
async fn a_look_shows_the_spans_and_a_sweep_is_answered() {
    let (mut host, mut heard) = host();
    host.look(feed(), MaintainerEpoch(3), &idle(2));
    let Some(FeedNews::Looked { epoch, result, .. }) = heard.recv().await else { panic!("no look") };
    assert_eq!((epoch, result.expect("it is there").spans), (MaintainerEpoch(3), vec![span(1), span(2)]));
    host.sweep(feed(), MaintainerEpoch(3), &idle(2), vec![]);
    let Some(FeedNews::Swept { result, .. }) = heard.recv().await else { panic!("no sweep") };
    assert_eq!(result, Ok(()));
}

#[tokio::test]
async fn a_pipeline_is_shared_until_the_feed_is_another() {
    let (mut host, _heard) = host();
    let (first, same) = (host.pipeline(&feed(), &idle(2)), host.pipeline(&feed(), &idle(2)));
    let (first, same) = (first.expect("open"), same.expect("open"));
    assert!(Arc::ptr_eq(&first, &same));
    let other = host.pipeline(&feed(), &idle(3)).expect("open");
    assert!(!Arc::ptr_eq(&first, &other));
    host.lease(1_000);
    assert_eq!(host.opened[&feed()].len(), 2, "the first is in use");
    drop((first, same));
    host.lease(2_000);
    assert_eq!(host.opened[&feed()].len(), 1, "nobody needs the first any more");
}

struct Broken;

#[async_trait::async_trait]
impl Pipeline for Broken {
    async fn look(&self) -> Result<Outlook, Trouble> {
        panic!("no look")
    }
    async fn prepare(&self, _span: &SpanName) -> Result<Box<dyn pipelines::Prepared>, Trouble> {
        panic!("out of range")
    }
    async fn sweep(&self, _keep: &[SpanName]) -> Result<(), Trouble> {
        panic!("no sweep")
    }
}

#[tokio::test]
async fn a_pipeline_that_panics_fails_and_the_daemon_lives_on() {
    let (mut host, mut heard) = host();
    let opened = Opened { spec: idle(3), pipeline: Arc::new(Broken), used_at: Instant::now() };
    host.opened.insert(feed(), vec![opened]);
    host.order(1, Task::Prepare { run: 1 });
    let TaskWhat::Ended(Err(failure)) = word(&mut heard).await.what else { panic!("it panicked") };
    assert!(failure.passes && failure.message.contains("out of range"), "{failure:?}");
    host.look(feed(), MaintainerEpoch(1), &idle(3));
    let Some(FeedNews::Looked { result, .. }) = heard.recv().await else { panic!("no look") };
    assert!(result.is_err());
}

#[test]
fn spans_that_cannot_be_told_others_are_refused_in_words() {
    let long = SpanName::new(&"x".repeat(SPAN_BYTES_MAX + 1));
    let trouble = looked(Outlook { spans: vec![long], ..Outlook::default() }).expect_err("too long");
    assert!(trouble.message.contains("longer than 512 bytes"), "{trouble}");
    let names = (0..SPANS_MAX + 1).map(|n| SpanName::new(&n.to_string()));
    let trouble = looked(Outlook { spans: names.collect(), ..Outlook::default() }).expect_err("too many");
    assert!(trouble.message.contains("131073 spans"), "{trouble}");
}
