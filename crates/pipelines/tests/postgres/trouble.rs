//! What goes wrong is told, and goes on once it is put right.

use model::Code;
use pipelines::testing::Postgres;

use crate::support::{Pair, open, start};

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_does_not_fit_is_named_and_the_feed_goes_on_once_it_does() {
    let pair = Pair::new().await;
    pair.sink.batch_execute("ALTER TABLE plain ALTER v TYPE varchar(5)").await.unwrap();
    let mut running = pair.start("public.plain", 1).await;
    pair.caught_up(&mut running).await;
    pair.source
        .batch_execute("INSERT INTO plain VALUES (1, 'fits'), (2, 'does not fit'), (3, 'fits')")
        .await
        .unwrap();
    let trouble = running.trouble().await;
    assert_eq!((trouble.code, trouble.passes), (Code::RowRefused, false), "{trouble}");
    for word in ["\"public\".\"plain\"", "column v", "id=2", "too long"] {
        assert!(trouble.message.contains(word), "{word:?} in: {trouble}");
    }
    assert_eq!(Pair::count(&pair.sink, "plain").await, 0, "no part of a transaction");
    let trouble = pair.start("public.plain", 1).await.trouble().await;
    assert_eq!(trouble.code, Code::RowRefused, "it stands there");
    pair.sink.batch_execute("ALTER TABLE plain ALTER v TYPE text").await.unwrap();
    let mut running = pair.start("public.plain", 1).await;
    pair.caught_up(&mut running).await;
    pair.assert_same("plain").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn constraints_and_types_of_the_sink_are_quoted_with_their_column() {
    let pair = Pair::new().await;
    let cases = [
        ("ALTER TABLE plain ALTER v SET NOT NULL", "NULL", "column v", "null value"),
        ("ALTER TABLE plain ALTER v DROP NOT NULL, ADD CHECK (v <> 'bad')", "'bad'", "id=1", "plain_v_check"),
        (
            "ALTER TABLE plain DROP CONSTRAINT plain_v_check, ALTER v TYPE int USING 0",
            "'word'",
            "column v",
            "word",
        ),
    ];
    for (epoch, (change, value, place, words)) in (1..).zip(cases) {
        pair.sink.batch_execute(change).await.unwrap();
        pair.sink.batch_execute("DELETE FROM tidegate_checkpoint").await.ok();
        pair.source.batch_execute("TRUNCATE plain").await.unwrap();
        let mut running = pair.start("public.plain", 2 * epoch).await;
        pair.caught_up(&mut running).await;
        let insert = format!("INSERT INTO plain VALUES (1, {value})");
        pair.source.batch_execute(&insert).await.unwrap();
        let streamed = running.trouble().await;
        // The same row as part of the first copy.
        pair.sink.batch_execute("DELETE FROM tidegate_checkpoint").await.unwrap();
        let copied = pair.start("public.plain", 2 * epoch + 1).await.trouble().await;
        for trouble in [&streamed, &copied] {
            assert_eq!(trouble.code, Code::RowRefused, "{trouble}");
            assert!(trouble.message.contains(words), "{words:?} in: {trouble}");
        }
        assert!(streamed.message.contains(place), "{place:?} in: {streamed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_goes_down_is_trouble_that_passes_and_nothing_is_lost() {
    let pair = Pair::new().await;
    let mut other = Postgres::start().await;
    let sink = other.create("sink").await;
    sink.batch_execute("CREATE TABLE plain (id int PRIMARY KEY, v text)").await.unwrap();
    let pipeline = open(&pair.feed, &pair.server.url("source"), &other.url("sink"));
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    let mut running = start(&*pipeline, "public.plain", 1).await;
    pair.caught_up(&mut running).await;
    other.stop();
    pair.source.batch_execute("INSERT INTO plain VALUES (2, 'two')").await.unwrap();
    let trouble = running.trouble().await;
    assert_eq!((trouble.code, trouble.passes), (Code::SinkUnreachable, true), "{trouble}");
    let refused = pipeline.look().await.expect_err("it is down");
    assert_eq!((refused.code, refused.passes), (Code::SinkUnreachable, true), "{refused}");
    other.restart().await;
    let mut running = start(&*pipeline, "public.plain", 1).await;
    pair.caught_up(&mut running).await;
    let sink = other.client("sink").await;
    assert_eq!(Pair::rows(&sink, "plain").await, ["(1,one)", "(2,two)"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_goes_down_is_trouble_that_passes_and_nothing_is_lost() {
    let mut pair = Pair::new().await;
    let other = Postgres::start().await;
    let sink = other.create("sink").await;
    sink.batch_execute("CREATE TABLE plain (id int PRIMARY KEY, v text)").await.unwrap();
    let pipeline = open(&pair.feed, &pair.server.url("source"), &other.url("sink"));
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    let mut running = start(&*pipeline, "public.plain", 1).await;
    pair.caught_up(&mut running).await;
    pair.server.stop();
    let trouble = running.trouble().await;
    assert_eq!((trouble.code, trouble.passes), (Code::SourceUnreachable, true), "{trouble}");
    pair.server.restart().await;
    pair.source = pair.server.client("source").await;
    pair.source.batch_execute("INSERT INTO plain VALUES (2, 'two')").await.unwrap();
    let mut running = start(&*pipeline, "public.plain", 1).await;
    pair.caught_up(&mut running).await;
    assert_eq!(Pair::rows(&sink, "plain").await, ["(1,one)", "(2,two)"]);
    running.stop().await;
}
