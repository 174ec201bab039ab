//! The source goes with any sink of rows: here one of documents, in memory.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use model::{Checkpoint, SpanEpoch, SpanName};
use pipelines::{Change, Row, Shape, Sink, SpanSink, Stand, Trouble, postgres};
use serde_json::{Value, json};

use crate::support::{Pair, start};

#[derive(Default)]
struct Held {
    epoch: SpanEpoch,
    at: Option<Checkpoint>,
    lines: Vec<Value>,
}

#[derive(Clone, Default)]
struct Documents(Arc<Mutex<Held>>);

struct SpanDocuments {
    all: Documents,
    epoch: SpanEpoch,
    shape: Arc<Shape>,
    pending: Vec<Value>,
}

impl SpanDocuments {
    fn change(&self, what: impl FnOnce(&mut Held)) -> Result<(), Trouble> {
        let mut held = self.all.0.lock().expect("no panic");
        if held.epoch != self.epoch {
            return Err(Trouble::fenced("a higher epoch"));
        }
        what(&mut held);
        Ok(())
    }

    fn json(&self, change: &Change) -> Value {
        change.to_json(&self.shape)
    }
}

#[async_trait]
impl Sink for Documents {
    async fn check(&self) -> Result<Option<String>, Trouble> {
        Ok(None)
    }

    async fn prepare(&self, _: &SpanName, shape: &Shape) -> Result<Box<dyn SpanSink>, Trouble> {
        let shape = Arc::new(shape.clone());
        Ok(Box::new(SpanDocuments { all: self.clone(), epoch: SpanEpoch(0), shape, pending: Vec::new() }))
    }

    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble> {
        if keep.is_empty() {
            *self.0.lock().expect("no panic") = Held::default();
        }
        Ok(())
    }
}

#[async_trait]
impl SpanSink for SpanDocuments {
    async fn take_over(&mut self, epoch: SpanEpoch) -> Result<Stand, Trouble> {
        let mut held = self.all.0.lock().expect("no panic");
        (held.epoch, self.epoch) = (epoch, epoch);
        Ok(held.at.map_or(Stand::Empty, Stand::At))
    }

    async fn fit(&mut self, shape: &Arc<Shape>) -> Result<(), Trouble> {
        self.shape = Arc::clone(shape);
        Ok(())
    }

    async fn is_ours(&mut self) -> Result<(), Trouble> {
        self.change(|_| ())
    }

    async fn clear(&mut self) -> Result<(), Trouble> {
        self.change(|held| (held.at, held.lines) = (None, Vec::new()))
    }

    async fn load(&mut self, rows: Vec<Row>) -> Result<(), Trouble> {
        let lines: Vec<Value> = rows.into_iter().map(|row| self.json(&Change::Insert { row })).collect();
        self.change(|held| held.lines.extend(lines))
    }

    async fn loaded(&mut self, at: Checkpoint) -> Result<(), Trouble> {
        self.change(|held| held.at = Some(at))
    }

    async fn write(&mut self, changes: Vec<Change>) -> Result<(), Trouble> {
        let lines: Vec<Value> = changes.iter().map(|change| self.json(change)).collect();
        self.pending.extend(lines);
        Ok(())
    }

    async fn commit(&mut self, at: Checkpoint) -> Result<(), Trouble> {
        let lines = std::mem::take(&mut self.pending);
        self.change(|held| {
            held.lines.extend(lines);
            held.at = Some(at);
        })
    }

    async fn roll_back(&mut self) -> Result<(), Trouble> {
        self.pending.clear();
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_becomes_a_document_in_the_order_of_the_source() {
    let pair = Pair::new().await;
    let ddl = "CREATE TABLE t (id int PRIMARY KEY, ok bool, doc jsonb, big text);
               ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
               ALTER PUBLICATION tide SET TABLE t;
               INSERT INTO t VALUES (1, true, '{\"a\": 1}', repeat('x', 9000))";
    pair.source.batch_execute(ddl).await.unwrap();
    let sink = Documents::default();
    let pipeline =
        postgres::open(&pair.feed, &pair.server.url("source"), "tide", Arc::new(sink.clone())).unwrap();
    let mut running = start(&*pipeline, "public.t", 1).await;
    running.first_progress().await;
    pair.source.batch_execute("UPDATE t SET ok = NULL").await.unwrap();
    pair.caught_up(&mut running).await;
    running.stop().await;
    pair.source.batch_execute("UPDATE t SET id = 2; DELETE FROM t; TRUNCATE t").await.unwrap();
    let mut running = start(&*pipeline, "public.t", 2).await;
    pair.caught_up(&mut running).await;
    running.stop().await;
    let doc = json!({"a": 1});
    let expected = [
        json!({"op": "insert", "key": {"id": 1},
               "columns": {"id": 1, "ok": true, "doc": doc, "big": "x".repeat(9000)}}),
        json!({"op": "update", "key": {"id": 1}, "columns": {"id": 1, "ok": null, "doc": doc}}),
        json!({"op": "update", "key": {"id": 1}, "columns": {"id": 2, "ok": null, "doc": doc}}),
        json!({"op": "delete", "key": {"id": 2}}),
        json!({"op": "truncate"}),
    ];
    assert_eq!(sink.0.lock().unwrap().lines, expected);
    pipeline.sweep(&[]).await.unwrap();
    assert_eq!(pair.slots().await, 0);
    assert!(sink.0.lock().unwrap().at.is_none());
}
