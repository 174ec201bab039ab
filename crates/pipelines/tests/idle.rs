//! Spans that do nothing, many of them.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use model::{Checkpoint, Code, FeedName, FeedSpec, PipelineSpec, SpanEpoch, SpanName, Time};
use pipelines::{Control, Host, Pipeline};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const MANY: u32 = 10_000;

fn idle(spans: u32) -> Arc<dyn Pipeline> {
    let spec = FeedSpec { pipeline: PipelineSpec::Idle { spans }, constraints: Default::default() };
    pipelines::open(&FeedName::new("idle"), &spec, &Host::default()).unwrap()
}

#[tokio::test]
async fn spans_are_numbered_and_no_others_are_prepared() {
    let pipeline = idle(12);
    let spans = pipeline.look().await.unwrap().spans;
    assert_eq!(spans.len(), 12);
    assert_eq!((spans[0].as_str(), spans[11].as_str()), ("000001", "000012"));
    assert!(spans.is_sorted());
    for none in ["000000", "000013", "x"] {
        let trouble = pipeline.prepare(&SpanName::new(none)).await.err().expect("refused");
        assert_eq!(trouble.code, Code::SourceUnfit);
    }
    assert!(idle(0).look().await.unwrap().spans.is_empty());
}

#[tokio::test]
async fn many_of_them_rise_with_one_tick_and_stop_at_once() {
    let pipeline = idle(MANY);
    let stop = CancellationToken::new();
    let (mut tasks, mut told) = (tokio::task::JoinSet::new(), Vec::new());
    let from = Checkpoint { position: 7, at: Time(1) };
    for span in pipeline.look().await.unwrap().spans {
        let (progress, receiver) = watch::channel(None);
        let control = Control { stop: stop.clone(), progress };
        let prepared = pipeline.prepare(&span).await.unwrap();
        tasks.spawn(prepared.run(SpanEpoch(1), Some(from), control));
        told.push(receiver);
    }
    let mut started = Vec::new();
    for receiver in &mut told {
        started.push(receiver.wait_for(Option::is_some).await.unwrap().unwrap());
    }
    // A tick reaches every one of them.
    for (receiver, started) in told.iter_mut().zip(&started) {
        let risen = receiver.wait_for(|told| told.is_some_and(|told| told.at > started.at));
        let risen = tokio::time::timeout(Duration::from_secs(60), risen).await.expect("it ticks").unwrap();
        assert_eq!(risen.unwrap().position, 7);
    }
    stop.cancel();
    let mut stopped = 0;
    while let Some(done) = tasks.join_next().await {
        let done = done.unwrap().unwrap();
        assert!(done.position == 7 && done.at >= started[0].at);
        stopped += 1;
    }
    assert_eq!(stopped, MANY);
}

#[tokio::test]
async fn one_that_is_dropped_takes_no_further_part() {
    let pipeline = idle(1);
    let (progress, receiver) = watch::channel(None);
    let control = Control { stop: CancellationToken::new(), progress };
    let run = pipeline.prepare(&SpanName::new("000001")).await.unwrap().run(SpanEpoch(1), None, control);
    let task = tokio::spawn(run);
    receiver.clone().wait_for(Option::is_some).await.unwrap();
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(receiver.has_changed().is_err(), "nobody holds its line any more");
}
