//! A source and a sink as two databases of one server, a feed between them, and a writer.

use model::{Checkpoint, FeedName, SpanEpoch, SpanName};
use pipelines::testing::Postgres;
use pipelines::{Control, Pipeline, Trouble, postgres};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

pub const THINGS: &str = "public.things";

/// A row of many types; `big` is kept out of line, so that an update which leaves it alone does not send it.
const SCHEMA: &str = "
CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'ünïcode');
CREATE TABLE things (
    id bigint NOT NULL, part text NOT NULL, n int, num numeric(30, 8), f float8, txt text, v varchar(40),
    c char(6), b bytea, ts timestamptz, d date, iv interval, arr int[], texts text[], j jsonb, js json,
    u uuid, ok bool, m mood, r int4range, big text, PRIMARY KEY (id, part));
ALTER TABLE things ALTER big SET STORAGE EXTERNAL;
CREATE TABLE plain (id int PRIMARY KEY, v text);
";

/// A thing for each number, every third with nulls, with all that quoting may stumble over.
const MAKER: &str = r#"
CREATE FUNCTION make_things(first bigint, last bigint) RETURNS void LANGUAGE sql AS $$
INSERT INTO things
SELECT i, 'p' || i % 3, CASE WHEN i % 3 > 0 THEN i * 7 END, (i * 1.00000001)::numeric, i / 3.0,
       E'q''uo"te \\ back\ttab\nline\r\u2603 ' || i, CASE WHEN i % 3 > 0 THEN '' END, 'ab' || i % 10,
       decode(md5(i::text) || '00ff5c0a', 'hex'), '2024-02-29 23:59:59.123456+05:30'::timestamptz + i * interval '1 min',
       '0044-03-15 BC'::date + i::int, (i || ' days 3.5 seconds')::interval, ARRAY[i, NULL, -i]::int[],
       ARRAY['a,b', 'c"d', NULL, '{}', ''], jsonb_build_object('k', i, 's', E'x\\y"z'), '{"a":  [1, 2 ]}',
       md5(i::text)::uuid, i % 2 = 0, (ARRAY['sad', 'it''s ok', 'ünïcode'])[1 + i % 3]::mood,
       int4range(i::int, i::int + 5), repeat(md5(i::text), 200)
FROM generate_series(first, last) i ON CONFLICT DO NOTHING $$;
"#;

pub struct Pair {
    pub server: Postgres,
    pub source: Client,
    pub sink: Client,
    pub feed: FeedName,
}

/// A dispatcher in a task.
pub struct Running {
    pub stop: CancellationToken,
    pub progress: watch::Receiver<Option<Checkpoint>>,
    pub task: JoinHandle<Result<Checkpoint, Trouble>>,
}

impl Pair {
    pub async fn new() -> Pair {
        Pair::on(Postgres::start().await).await
    }

    pub async fn on(server: Postgres) -> Pair {
        let source = server.create("source").await;
        let sink = server.create("sink").await;
        for side in [&source, &sink] {
            side.batch_execute(SCHEMA).await.expect("tables");
        }
        source.batch_execute(MAKER).await.expect("a function");
        source.batch_execute("CREATE PUBLICATION tide FOR TABLE things, plain").await.expect("a publication");
        Pair { server, source, sink, feed: FeedName::new("orders") }
    }

    pub fn pipeline(&self) -> Box<dyn Pipeline> {
        self.pipeline_as("postgres", "postgres")
    }

    pub fn pipeline_as(&self, source: &str, sink: &str) -> Box<dyn Pipeline> {
        let (source, sink) = (self.server.url_as(source, "source"), self.server.url_as(sink, "sink"));
        open(&self.feed, &source, &sink)
    }

    /// Prepares and starts.
    pub async fn start(&self, span: &str, epoch: u64) -> Running {
        start(&*self.pipeline(), span, epoch).await
    }

    /// The end of the source's log.
    pub async fn end(&self) -> u64 {
        let sql = "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn";
        let row = self.source.query_one(&format!("SELECT ({sql})::int8"), &[]).await.expect("a position");
        row.get::<_, i64>(0) as u64
    }

    /// Waits until the sink has all that is in the source by now.
    pub async fn caught_up(&self, running: &mut Running) {
        let end = self.end().await;
        let there = |at: &Option<Checkpoint>| at.is_some_and(|at| at.position >= end);
        let waited =
            tokio::time::timeout(pipelines::testing::PATIENCE, running.progress.wait_for(there)).await;
        let ended = waited.expect("it gets there in time").is_err();
        if ended {
            panic!("it ended: {:?}", (&mut running.task).await);
        }
    }

    pub async fn rows(side: &Client, table: &str) -> Vec<String> {
        let rows = side.query(&format!("SELECT t::text FROM {table} t ORDER BY t.id, t::text"), &[]).await;
        rows.expect("rows").iter().map(|row| row.get(0)).collect()
    }

    /// Row by row.
    pub async fn assert_same(&self, table: &str) {
        let (source, sink) = (Pair::rows(&self.source, table).await, Pair::rows(&self.sink, table).await);
        if let Some((there, here)) = source.iter().zip(&sink).find(|(there, here)| there != here) {
            panic!("a row differs:\nsource {there}\nsink   {here}");
        }
        assert_eq!(source.len(), sink.len(), "rows of {table}");
    }

    pub async fn count(side: &Client, what: &str) -> i64 {
        side.query_one(&format!("SELECT count(*) FROM {what}"), &[]).await.expect("a count").get(0)
    }

    pub async fn slots(&self) -> i64 {
        Pair::count(&self.source, "pg_replication_slots").await
    }
}

pub fn open(feed: &FeedName, source: &str, sink: &str) -> Box<dyn Pipeline> {
    let sink = postgres::sink(feed, sink).expect("a sink");
    postgres::open(feed, source, "tide", sink).expect("a pipeline")
}

pub async fn start(pipeline: &dyn Pipeline, span: &str, epoch: u64) -> Running {
    let prepared = pipeline.prepare(&SpanName::new(span)).await.expect("it can be prepared");
    let (sender, progress) = watch::channel(None);
    let stop = CancellationToken::new();
    let control = Control { stop: stop.clone(), progress: sender };
    let task = tokio::spawn(prepared.run(SpanEpoch(epoch), None, control));
    Running { stop, progress, task }
}

impl Running {
    /// In good order.
    pub async fn stop(self) -> Checkpoint {
        self.stop.cancel();
        let ended = tokio::time::timeout(pipelines::testing::PATIENCE, self.task).await;
        ended.expect("it stops in time").expect("no panic").expect("a final checkpoint")
    }

    /// Drops the future, wherever it is.
    pub async fn abort(self) {
        self.task.abort();
        let _aborted = self.task.await;
    }

    /// The trouble it ends with by itself.
    pub async fn trouble(self) -> Trouble {
        let ended = tokio::time::timeout(pipelines::testing::PATIENCE, self.task).await;
        let trouble = ended.expect("it ends in time").expect("no panic").expect_err("it is in trouble");
        assert!(!trouble.message.contains(pipelines::testing::PASSWORD), "{trouble}");
        trouble
    }

    pub async fn first_progress(&mut self) {
        if self.progress.wait_for(Option::is_some).await.is_err() {
            panic!("it ended: {:?}", (&mut self.task).await);
        }
    }
}

/// Changes things for as long as it lives, in transactions of one or several statements.
pub struct Writer {
    stop: CancellationToken,
    task: JoinHandle<u64>,
}

impl Writer {
    pub async fn start(pair: &Pair, seed: u64, truncates: bool) -> Writer {
        let client = pair.server.client("source").await;
        let stop = CancellationToken::new();
        let (ended, mut dice) = (stop.clone(), Dice(seed));
        let task = tokio::spawn(async move {
            let mut written = 0;
            while !ended.is_cancelled() {
                let statements: Vec<String> =
                    (0..1 + dice.roll(4)).map(|_| statement(&mut dice, truncates)).collect();
                let all = format!("BEGIN; {}; COMMIT", statements.join("; "));
                // Two keys may meet; then it is undone as a whole.
                match client.batch_execute(&all).await {
                    Ok(()) => written += 1,
                    Err(_) => client.batch_execute("ROLLBACK").await.expect("the source is there"),
                }
            }
            written
        });
        Writer { stop, task }
    }

    /// How many transactions it made.
    pub async fn stop(self) -> u64 {
        self.stop.cancel();
        self.task.await.expect("no panic")
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn statement(dice: &mut Dice, truncates: bool) -> String {
    let id = dice.roll(600);
    match dice.roll(if truncates { 400 } else { 399 }) {
        0..=120 => format!("SELECT make_things({id}, {})", id + dice.roll(12)),
        121..=200 => format!("UPDATE things SET n = COALESCE(n, 0) + 1, txt = txt || 'é' WHERE id = {id}"),
        201..=240 => format!("UPDATE things SET big = repeat('z', {}) WHERE id = {id}", 8000 + dice.roll(9)),
        241..=260 => format!("UPDATE things SET big = NULL, j = NULL, ts = 'infinity' WHERE id = {id}"),
        // The key changes, and `big` is not sent along.
        261..=310 => format!("UPDATE things SET id = {} WHERE id = {id}", dice.roll(600)),
        311..=330 => format!("UPDATE things SET part = 'p' || {}, n = 0 WHERE id = {id}", dice.roll(5)),
        331..=380 => format!("DELETE FROM things WHERE id = {id}"),
        381..=398 => format!("DELETE FROM things WHERE id BETWEEN {id} AND {}", id + 20),
        _ => "TRUNCATE things".to_owned(),
    }
}
