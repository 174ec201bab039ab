//! One owner at a time: what is out of date reads nothing on and writes nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use model::{Checkpoint, SpanEpoch, SpanName, Time};
use pipelines::testing::wait_for;
use pipelines::{Cell, Change, Column, Control, Row, Shape, SpanSink, Stand, Trouble, postgres};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{Pair, THINGS};

type Run = Pin<Box<dyn Future<Output = Result<Checkpoint, Trouble>> + Send>>;

/// A dispatcher that runs only while it is polled: not polled, it is a paused process.
async fn paused_in_mid_stream(pair: &Pair, epoch: u64) -> Run {
    let prepared = pair.pipeline().prepare(&SpanName::new("public.plain")).await.expect("it can be prepared");
    let (progress, seen) = watch::channel(None);
    let control = Control { stop: CancellationToken::new(), progress };
    let mut run: Run = Box::pin(prepared.run(SpanEpoch(epoch), None, control));
    let end = pair.end().await;
    std::future::poll_fn(|context: &mut Context<'_>| {
        assert!(run.as_mut().poll(context).is_pending(), "it runs");
        let there = seen.borrow().is_some_and(|at: Checkpoint| at.position >= end);
        if there { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_that_wakes_up_after_its_fence_writes_nothing() {
    let pair = Pair::new().await;
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    let zombie = paused_in_mid_stream(&pair, 1).await;
    // This waits for the zombie in its socket's buffer.
    pair.source.batch_execute("INSERT INTO plain VALUES (2, 'two')").await.unwrap();
    let mut successor = pair.start("public.plain", 2).await;
    pair.caught_up(&mut successor).await;
    pair.assert_same("plain").await;
    // Should the zombie write what it holds, the row comes back.
    pair.source.batch_execute("DELETE FROM plain WHERE id = 2").await.unwrap();
    pair.caught_up(&mut successor).await;
    let trouble = zombie.await.expect_err("it lost its sessions");
    assert!(trouble.passes || trouble.fenced, "{trouble}");
    pair.assert_same("plain").await;
    // Its host tries again with what it knows.
    let trouble = pair.start("public.plain", 1).await.trouble().await;
    assert!(trouble.fenced, "{trouble}");
    pair.source.batch_execute("INSERT INTO plain VALUES (3, 'three')").await.unwrap();
    pair.caught_up(&mut successor).await;
    pair.assert_same("plain").await;
    successor.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leftover_reader_of_the_slot_is_ended_by_its_successor() {
    let pair = Pair::new().await;
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    let leftover = paused_in_mid_stream(&pair, 1).await;
    let reader = "SELECT active_pid FROM pg_replication_slots";
    let before: Option<i32> = pair.source.query_one(reader, &[]).await.unwrap().get(0);
    assert!(before.is_some());
    let mut successor = pair.start("public.plain", 2).await;
    pair.source.batch_execute("INSERT INTO plain VALUES (2, 'two')").await.unwrap();
    pair.caught_up(&mut successor).await;
    let after: Option<i32> = pair.source.query_one(reader, &[]).await.unwrap().get(0);
    assert!(after.is_some() && after != before, "{before:?} {after:?}");
    pair.assert_same("plain").await;
    drop(leftover);
    successor.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_was_made_anew_behind_our_back_is_not_believed() {
    let pair = Pair::new().await;
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    let mut running = pair.start("public.plain", 1).await;
    pair.caught_up(&mut running).await;
    running.stop().await;
    let name = postgres::slot_name(&pair.feed, &SpanName::new("public.plain"));
    pair.source.execute("SELECT pg_drop_replication_slot($1)", &[&name]).await.unwrap();
    // What a slot does not remember would be missing for ever.
    pair.source.batch_execute("INSERT INTO plain VALUES (2, 'two')").await.unwrap();
    let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
    pair.source.execute(sql, &[&name]).await.unwrap();
    let mut running = pair.start("public.plain", 2).await;
    pair.caught_up(&mut running).await;
    pair.assert_same("plain").await;
    running.stop().await;
}

fn shape() -> Arc<Shape> {
    let column = |name: &str, key| Column { name: name.to_owned(), type_oid: 0, key };
    let columns = vec![column("id", true), column("v", false)];
    Arc::new(Shape { schema: "public".to_owned(), table: "plain".to_owned(), columns })
}

fn row(id: u32, v: &'static str) -> Row {
    vec![Cell::Text(Bytes::from(id.to_string())), Cell::Text(Bytes::from_static(v.as_bytes()))]
}

async fn span_sink(pair: &Pair) -> Box<dyn SpanSink> {
    let sink = postgres::sink(&pair.feed, &pair.server.url("sink")).expect("a sink");
    sink.prepare(&SpanName::new("public.plain"), &shape()).await.expect("it can be prepared")
}

fn at(position: u64) -> Checkpoint {
    Checkpoint { position, at: Time(position) }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_of_an_older_epoch_is_refused_by_the_sink_itself() {
    let pair = Pair::new().await;
    let mut old = span_sink(&pair).await;
    assert_eq!(old.take_over(SpanEpoch(5)).await.unwrap(), Stand::Empty);
    old.clear().await.unwrap();
    old.load(vec![row(1, "one")]).await.unwrap();
    old.loaded(at(10)).await.unwrap();
    // Raised without ending its session, so that only the comparison stands in its way.
    pair.sink.batch_execute("UPDATE tidegate_checkpoint SET epoch = 6").await.unwrap();
    let refusals = [
        old.write(vec![Change::Insert { row: row(2, "two") }]).await,
        old.write(vec![Change::Truncate]).await,
        old.commit(at(20)).await,
        old.load(vec![row(3, "three")]).await,
        old.loaded(at(30)).await,
        old.clear().await,
        old.is_ours().await,
        old.take_over(SpanEpoch(5)).await.map(|_| ()),
    ];
    for refusal in refusals {
        let trouble = refusal.expect_err("a higher epoch owns the span");
        assert!(trouble.fenced && !trouble.passes, "{trouble}");
    }
    assert_eq!(Pair::rows(&pair.sink, "plain").await, ["(1,one)"]);
    let stored = pair.sink.query_one("SELECT position FROM tidegate_checkpoint", &[]).await.unwrap();
    assert_eq!(stored.get::<_, i64>(0), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_older_epoch_has_in_flight_is_undone_and_holds_nobody_up() {
    let pair = Pair::new().await;
    let mut old = span_sink(&pair).await;
    old.take_over(SpanEpoch(1)).await.unwrap();
    old.loaded(at(10)).await.unwrap();
    // Its transaction is open and holds the lock of the checkpoint's row.
    old.write(vec![Change::Insert { row: row(1, "one") }]).await.unwrap();
    let mut successor = span_sink(&pair).await;
    assert_eq!(successor.take_over(SpanEpoch(2)).await.unwrap(), Stand::At(at(10)));
    let trouble = old.commit(at(20)).await.expect_err("its session was ended");
    assert!(trouble.passes, "{trouble}");
    assert_eq!(Pair::count(&pair.sink, "plain").await, 0);
    successor.write(vec![Change::Insert { row: row(2, "two") }]).await.unwrap();
    successor.commit(at(30)).await.unwrap();
    assert_eq!(Pair::rows(&pair.sink, "plain").await, ["(2,two)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swept_span_is_not_written_by_what_still_runs() {
    let pair = Pair::new().await;
    let mut old = span_sink(&pair).await;
    old.take_over(SpanEpoch(1)).await.unwrap();
    postgres::sink(&pair.feed, &pair.server.url("sink"))
        .unwrap()
        .sweep(&[SpanName::new(THINGS)])
        .await
        .unwrap();
    let trouble = old.write(vec![Change::Insert { row: row(1, "one") }]).await.expect_err("it is forgotten");
    assert!(trouble.fenced, "{trouble}");
    assert_eq!(Pair::count(&pair.sink, "plain").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_leaves_no_slot_and_no_checkpoint_and_touches_none_that_is_kept_or_read() {
    let pair = Pair::new().await;
    let mut things = pair.start(THINGS, 1).await;
    let mut plain = pair.start("public.plain", 1).await;
    pair.caught_up(&mut things).await;
    pair.caught_up(&mut plain).await;
    let others = "SELECT pg_create_logical_replication_slot('somebody_elses', 'pgoutput')";
    pair.source.batch_execute(others).await.unwrap();
    let pipeline = pair.pipeline();
    let trouble = pipeline.sweep(&[]).await.expect_err("both are being read");
    assert!(trouble.passes, "{trouble}");
    assert_eq!(pair.slots().await, 3);
    assert_eq!(Pair::count(&pair.sink, "tidegate_checkpoint").await, 2);
    plain.stop().await;
    pipeline.sweep(&[SpanName::new(THINGS)]).await.unwrap();
    assert_eq!(pair.slots().await, 2);
    assert_eq!(Pair::count(&pair.sink, "tidegate_checkpoint").await, 1);
    pair.source.batch_execute("SELECT make_things(1, 5)").await.unwrap();
    pair.caught_up(&mut things).await;
    pair.assert_same("things").await;
    things.stop().await;
    pipeline.sweep(&[]).await.unwrap();
    pipeline.sweep(&[]).await.unwrap();
    let left = pair.source.query_one("SELECT slot_name::text FROM pg_replication_slots", &[]).await.unwrap();
    assert_eq!(left.get::<_, String>(0), "somebody_elses");
    assert_eq!(Pair::count(&pair.sink, "tidegate_checkpoint").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_prepares_takes_nothing_from_the_one_that_runs() {
    let pair = Pair::new().await;
    let mut running = pair.start("public.plain", 1).await;
    pair.caught_up(&mut running).await;
    let waiting = pair.pipeline().prepare(&SpanName::new("public.plain")).await.unwrap();
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    pair.caught_up(&mut running).await;
    pair.assert_same("plain").await;
    running.stop().await;
    drop(waiting);
    wait_for("the prepared session to end", || async {
        let open = "pg_stat_activity WHERE backend_type = 'walsender'";
        (Pair::count(&pair.source, open).await == 0).then_some(())
    })
    .await;
}
