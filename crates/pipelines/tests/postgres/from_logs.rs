//! From logs to tables: a line that is a JSON object is upserted into the table named as its span.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use model::{Code, FeedSpec, PipelineSpec, SpanName, spec};
use pipelines::{Host, Pipeline};

use crate::support::{Pair, Running, start};

fn pipeline(pair: &Pair, dir: &Path) -> Arc<dyn Pipeline> {
    let source = spec::Source::Log { path: dir.to_str().expect("a name").to_owned() };
    let sink = spec::Sink::Postgres { url: pair.server.url("sink") };
    let spec = FeedSpec {
        pipeline: PipelineSpec::Copy { source, sink },
        constraints: std::collections::BTreeMap::new(),
    };
    pipelines::open(&pair.feed, &spec, &Host::default()).expect("a pipeline")
}

fn append(dir: &Path, text: &str) -> u64 {
    let mut file = OpenOptions::new().create(true).append(true).open(dir.join("orders.log")).expect("a log");
    file.write_all(text.as_bytes()).expect("written");
    file.metadata().expect("a length").len()
}

async fn reached(running: &mut Running, position: u64) {
    let there = |at: &Option<model::Checkpoint>| at.is_some_and(|at| at.position >= position);
    let waited = tokio::time::timeout(pipelines::testing::PATIENCE, running.progress.wait_for(there)).await;
    if waited.expect("it gets there in time").is_err() {
        panic!("it ended: {:?}", (&mut running.task).await);
    }
}

async fn table(pair: &Pair) -> Vec<String> {
    Pair::rows(&pair.sink, "orders").await
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_become_rows_through_stops_and_aborts() {
    let (pair, dir) = (Pair::new().await, tempfile::tempdir().unwrap());
    let ddl =
        "CREATE TABLE orders (id bigint PRIMARY KEY, what text, price numeric(12, 2), doc jsonb, paid bool,
                                    twice numeric GENERATED ALWAYS AS (price * 2) STORED);
               CREATE TABLE seen (id bigint);
               CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
                   $$ BEGIN INSERT INTO public.seen VALUES (NEW.id); RETURN NEW; END $$;
               CREATE TRIGGER note AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note()";
    pair.sink.batch_execute(ddl).await.unwrap();
    let pipeline = pipeline(&pair, dir.path());
    let mut end = append(
        dir.path(),
        "{\"id\": 1, \"what\": \"t\\u00e9a \\\"x\\\"\", \"price\": 1.50, \"doc\": {\"a\": [1, null]}, \"paid\": true}\n\
         {\"id\": 2, \"what\": null}\n{\"id\": 2, \"what\": \"twice in a batch\"}\n",
    );
    assert_eq!(pipeline.look().await.unwrap().spans, [SpanName::new("orders")]);
    let mut running = start(&*pipeline, "orders", 1).await;
    reached(&mut running, end).await;
    assert_eq!(
        table(&pair).await,
        [r#"(1,"téa ""x""",1.50,"{""a"": [1, null]}",t,3.00)"#, r#"(2,"twice in a batch",,,,)"#]
    );
    let mut expected: u64 = 2;
    for epoch in 2..=6 {
        for id in 0..500 {
            end = append(
                dir.path(),
                &format!("{{\"id\": {}, \"price\": {epoch}}}\n", 100 + (epoch * 300) + id),
            );
        }
        match epoch % 2 {
            0 => drop(running.stop().await),
            _ => running.abort().await,
        }
        running = start(&*pipeline, "orders", epoch).await;
        // The next round ends it wherever it is by then.
        running.first_progress().await;
        expected += if epoch == 2 { 500 } else { 300 };
    }
    reached(&mut running, end).await;
    assert_eq!(running.stop().await.position, end);
    assert_eq!(Pair::count(&pair.sink, "orders").await as u64, expected);
    assert_eq!(Pair::count(&pair.sink, "seen").await as u64, expected, "triggers have their say, once a row");
    pipeline.sweep(&[]).await.unwrap();
    assert_eq!(Pair::count(&pair.sink, "tidegate_checkpoint").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_line_does_not_name_keeps_its_value_or_has_its_default() {
    let (pair, dir) = (Pair::new().await, tempfile::tempdir().unwrap());
    let ddl = "CREATE TABLE orders (id bigint, region text, what text NOT NULL, n int DEFAULT 7, note text,
                                    PRIMARY KEY (region, id))";
    pair.sink.batch_execute(ddl).await.unwrap();
    let pipeline = pipeline(&pair, dir.path());
    let end = append(
        dir.path(),
        "{\"id\": 1, \"region\": \"eu\", \"what\": \"tea\"}\n\
         {\"id\": 2, \"region\": \"eu\", \"what\": \"a\", \"note\": \"b\"}\n\
         {\"id\": 2, \"region\": \"eu\", \"n\": 3}\n",
    );
    pipeline.look().await.unwrap();
    let mut running = start(&*pipeline, "orders", 1).await;
    reached(&mut running, end).await;
    assert_eq!(table(&pair).await, ["(1,eu,tea,7,)", "(2,eu,a,3,b)"]);
    // The column that must have a value is left out, for the row has one; null is a value that is named.
    let end = append(
        dir.path(),
        "{\"id\": 1, \"region\": \"eu\", \"n\": null, \"note\": \"x\"}\n\
         {\"id\": 2, \"region\": \"eu\"}\n\
         {\"id\": 2, \"region\": \"us\", \"what\": \"c\"}\n",
    );
    reached(&mut running, end).await;
    assert_eq!(table(&pair).await, ["(1,eu,tea,,x)", "(2,eu,a,3,b)", "(2,us,c,7,)"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_does_not_fit_is_refused_in_words_and_nothing_after_it_gets_past() {
    let (pair, dir) = (Pair::new().await, tempfile::tempdir().unwrap());
    pair.sink
        .batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY, price numeric NOT NULL)")
        .await
        .unwrap();
    let lines = [
        ("plain words", "is no JSON object"),
        ("{\"price\": 1}", "it has no \"id\", which is of the primary key of table public.orders"),
        (
            "{\"id\": 1, \"price\": 1, \"colour\": 2}",
            "it has \"colour\", and table public.orders has no such column",
        ),
        ("{\"id\": 1}", "null value in column \"price\""),
        ("{\"id\": 1, \"price\": \"dear\"}", "column price, row id=1: invalid input syntax for type numeric"),
    ];
    for (number, (line, words)) in lines.into_iter().enumerate() {
        let at = dir.path().join(number.to_string());
        std::fs::create_dir(&at).unwrap();
        append(&at, &format!("{line}\n{{\"id\": 9, \"price\": 9}}\n"));
        let pipeline = pipeline(&pair, &at);
        pipeline.look().await.unwrap();
        let trouble = start(&*pipeline, "orders", 1).await.trouble().await;
        assert_eq!((trouble.code, trouble.passes), (Code::RowRefused, false), "{trouble}");
        assert!(trouble.message.contains(words), "{trouble}");
        assert_eq!(Pair::count(&pair.sink, "orders").await, 0);
        pipeline.sweep(&[]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_missing_or_has_no_key_is_named() {
    let (pair, dir) = (Pair::new().await, tempfile::tempdir().unwrap());
    append(dir.path(), "{}\n");
    let pipeline = pipeline(&pair, dir.path());
    let trouble = async || pipeline.prepare(&SpanName::new("orders")).await.err().expect("it does not fit");
    assert!(trouble().await.message.contains("table public.orders of the sink is missing: make it"));
    pair.sink.batch_execute("CREATE TABLE orders (id bigint)").await.unwrap();
    let without = trouble().await;
    assert_eq!(without.code, Code::SinkUnfit);
    assert!(without.message.contains("has no primary key"), "{without}");
}
