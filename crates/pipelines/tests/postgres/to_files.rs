//! From tables to files: what the files say, applied in order, is what the table says, and nothing is in them
//! twice.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use model::{FeedSpec, PipelineSpec, SpanName, spec};
use pipelines::{Host, Pipeline, file};
use serde_json::{Map, Value, json};

use crate::support::{Pair, Running, THINGS, Writer, start};

fn pipeline(pair: &Pair, dir: &Path) -> Arc<dyn Pipeline> {
    let source = spec::Source::Postgres { url: pair.server.url("source"), publication: "tide".to_owned() };
    let sink = spec::Sink::File { path: dir.to_str().expect("a name").to_owned() };
    let spec = FeedSpec {
        pipeline: PipelineSpec::Copy { source, sink },
        constraints: std::collections::BTreeMap::new(),
    };
    pipelines::open(&pair.feed, &spec, &Host::default()).expect("a pipeline")
}

/// The rows of a table by their keys, made of what was written. A change that does not follow from those before
/// it is a panic: one that is there twice, or is missing.
#[derive(Default)]
struct Replayed {
    rows: BTreeMap<String, Map<String, Value>>,
    truncates: usize,
    position: u64,
}

fn replay(pair: &Pair, dir: &Path, span: &str) -> Replayed {
    let mut all = Replayed::default();
    for row in file::read(&file::span_dir(dir, &pair.feed, &SpanName::new(span))).expect("it can be read") {
        let row = row.expect("a row");
        assert!(row.position >= all.position, "positions only rise");
        all.position = row.position;
        let value: Map<String, Value> = serde_json::from_str(row.value.get()).expect("an object");
        let key = row.key.map(|key| key.get().to_owned()).unwrap_or_default();
        let columns = value.get("columns").and_then(Value::as_object).cloned();
        match value["op"].as_str().expect("an op") {
            "insert" => {
                let before = all.rows.insert(key.clone(), columns.expect("columns"));
                assert!(before.is_none(), "{key} is inserted twice");
            }
            "update" => {
                let mut held =
                    all.rows.remove(&key).unwrap_or_else(|| panic!("{key} is updated and missing"));
                held.extend(columns.expect("columns"));
                let names = serde_json::from_str::<Map<String, Value>>(&key).expect("a key");
                let moved: Map<String, Value> =
                    names.keys().map(|name| (name.clone(), held[name].clone())).collect();
                assert!(all.rows.insert(json!(moved).to_string(), held).is_none(), "two rows meet");
            }
            "delete" => {
                all.rows.remove(&key).unwrap_or_else(|| panic!("{key} is deleted and missing"));
            }
            "truncate" => {
                all.truncates += 1;
                all.rows.clear();
            }
            other => panic!("{other:?}"),
        }
    }
    all
}

async fn assert_same(pair: &Pair, replayed: &Replayed) {
    let sql = "SELECT id, part, n, txt, big FROM things ORDER BY id, part";
    let rows = pair.source.query(sql, &[]).await.expect("rows");
    let mut source: Vec<Value> = rows
        .iter()
        .map(|row| {
            let (id, part): (i64, String) = (row.get(0), row.get(1));
            let (n, txt, big): (Option<i32>, Option<String>, Option<String>) =
                (row.get(2), row.get(3), row.get(4));
            json!([id, part, n, txt, big])
        })
        .collect();
    let of =
        |row: &Map<String, Value>| json!(["id", "part", "n", "txt", "big"].map(|name| row[name].clone()));
    let mut sink: Vec<Value> = replayed.rows.values().map(of).collect();
    let order = |row: &Value| (row[0].as_i64(), row[1].as_str().map(str::to_owned));
    source.sort_by_key(order);
    sink.sort_by_key(order);
    assert_eq!(source.len(), sink.len(), "rows");
    if let Some((there, here)) = source.iter().zip(&sink).find(|(there, here)| there != here) {
        panic!("a row differs:\nsource {there}\nsink   {here}");
    }
}

/// Waits until the span has this many bytes on the disk, whether or not they count.
async fn grown(dir: &Path, running: &Running, bytes: u64) {
    let size = || {
        let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum::<u64>()
    };
    let until = tokio::time::Instant::now() + pipelines::testing::PATIENCE;
    while size() < bytes {
        assert!(!running.task.is_finished(), "it ended");
        assert!(tokio::time::Instant::now() < until, "{} bytes are there", size());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn through_stops_and_aborts_the_files_tell_what_happened_exactly_once() {
    let (pair, dir) = (Pair::new().await, tempfile::tempdir().unwrap());
    pair.source.batch_execute("SELECT make_things(1, 300)").await.unwrap();
    let pipeline = pipeline(&pair, dir.path());
    let outlook = pipeline.look().await.unwrap();
    pipeline.expect(&outlook.mark.expect("a mark of the directory"));
    let writer = Writer::start(&pair, 7, true).await;
    for epoch in 1..=6 {
        let mut running = start(&*pipeline, THINGS, epoch).await;
        pair.caught_up(&mut running).await;
        match epoch % 2 {
            0 => drop(running.stop().await),
            _ => running.abort().await,
        }
    }
    assert!(writer.stop().await > 0);
    let mut running = start(&*pipeline, THINGS, 7).await;
    pair.caught_up(&mut running).await;
    let done = running.stop().await;
    let replayed = replay(&pair, dir.path(), THINGS);
    assert_same(&pair, &replayed).await;
    assert!(replayed.position <= done.position);
    pipeline.sweep(&[]).await.unwrap();
    assert_eq!(pair.slots().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_copy_and_a_large_transaction_that_are_cut_short_are_in_the_files_once() {
    let (pair, dir) = (Pair::new().await, tempfile::tempdir().unwrap());
    pair.source.batch_execute("SELECT make_things(1, 2000)").await.unwrap();
    let pipeline = pipeline(&pair, dir.path());
    pipeline.look().await.unwrap();
    let at = file::span_dir(dir.path(), &pair.feed, &SpanName::new(THINGS));
    let running = start(&*pipeline, THINGS, 1).await;
    grown(&at, &running, 2 << 20).await;
    running.abort().await;
    let mut running = start(&*pipeline, THINGS, 2).await;
    running.first_progress().await;
    assert_eq!(replay(&pair, dir.path(), THINGS).rows.len(), 2000);
    let before =
        std::fs::read_dir(&at).unwrap().flatten().map(|file| file.metadata().unwrap().len()).sum::<u64>();
    pair.source.batch_execute("UPDATE things SET big = big || '.', id = id + 10000").await.unwrap();
    grown(&at, &running, before + (2 << 20)).await;
    running.abort().await;
    let mut running = start(&*pipeline, THINGS, 3).await;
    pair.caught_up(&mut running).await;
    running.stop().await;
    let replayed = replay(&pair, dir.path(), THINGS);
    assert_same(&pair, &replayed).await;
    assert_eq!(replayed.truncates, 0, "nothing was copied anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_in_which_nothing_happens_is_not_copied_anew_by_the_next_owner() {
    let (pair, dir) = (Pair::new().await, tempfile::tempdir().unwrap());
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    let pipeline = pipeline(&pair, dir.path());
    pipeline.look().await.unwrap();
    for epoch in 1..=4 {
        let mut running = start(&*pipeline, "public.plain", epoch).await;
        pair.source.batch_execute("SELECT make_things(1, 50); DELETE FROM things").await.unwrap();
        pair.caught_up(&mut running).await;
        running.stop().await;
    }
    let replayed = replay(&pair, dir.path(), "public.plain");
    assert_eq!((replayed.rows.len(), replayed.truncates), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_source_lost_the_slot_the_copy_follows_a_truncate() {
    let (pair, dir) = (Pair::new().await, tempfile::tempdir().unwrap());
    pair.source.batch_execute("SELECT make_things(1, 20)").await.unwrap();
    let pipeline = pipeline(&pair, dir.path());
    pipeline.look().await.unwrap();
    let mut running = start(&*pipeline, THINGS, 1).await;
    running.first_progress().await;
    running.stop().await;
    pair.source
        .batch_execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        .await
        .unwrap();
    pair.source.batch_execute("DELETE FROM things WHERE id < 5").await.unwrap();
    let mut running = start(&*pipeline, THINGS, 2).await;
    pair.caught_up(&mut running).await;
    running.stop().await;
    let replayed = replay(&pair, dir.path(), THINGS);
    assert_same(&pair, &replayed).await;
    assert_eq!(replayed.truncates, 1);
}
