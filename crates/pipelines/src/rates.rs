//! How fast rows go from PostgreSQL to PostgreSQL, for `cargo xtask bench`.
//!
//! The same rows, from the same log, are then taken by the server's own logical replication
//! (`CREATE SUBSCRIPTION`), so that the two figures of one run can be compared.

use std::time::Instant;

use model::{FeedName, SpanEpoch, SpanName};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::contract::{Control, Pipeline};
use crate::postgres;
use crate::testing::{Postgres, wait_for};

/// A transaction of the writer: ten rows come, three change, one goes.
const CHANGES_PER_TRANSACTION: u64 = 14;

const WRITER: &str = "CREATE PROCEDURE fill(name text, rounds int) LANGUAGE plpgsql AS $$
BEGIN
    FOR round IN 1..rounds LOOP
        EXECUTE format('INSERT INTO %I SELECT i, i %% 1000, repeat(md5(i::text), 2), now()
                        FROM generate_series($1, $1 + 9) i', name) USING round * 10;
        EXECUTE format('UPDATE %I SET a = a + 1 WHERE id BETWEEN $1 AND $1 + 2', name) USING round * 10;
        EXECUTE format('DELETE FROM %I WHERE id = $1', name) USING round * 10 + 9;
        COMMIT;
    END LOOP;
END $$";

/// Changes of rows per second.
#[derive(Clone, Copy, Debug)]
pub struct FeedRates {
    pub ours: f64,
    /// One subscription to the same publication.
    pub subscription: f64,
}

/// `tables` dispatchers, or one subscription, catch up with about `changes` changes in all.
///
/// # Panics
/// When PostgreSQL is not installed, or does not do what it is told.
pub async fn feed_rates(tables: usize, changes: u64) -> FeedRates {
    // Commits reach the disk, in source and sink alike.
    let safe = [("fsync", "on"), ("shared_buffers", "256MB"), ("max_wal_size", "4GB")];
    let server = Postgres::start_with(&safe).await;
    let other = Postgres::start_with(&safe).await;
    let source = server.create("source").await;
    let (ours, theirs) = (other.create("ours").await, other.create("theirs").await);
    let names: Vec<String> = (0..tables).map(|table| format!("t{table}")).collect();
    for name in &names {
        let ddl = format!("CREATE TABLE {name} (id bigint PRIMARY KEY, a int, b text, at timestamptz)");
        for side in [&source, &ours, &theirs] {
            run(side, &ddl).await;
        }
    }
    run(&source, WRITER).await;
    run(&source, &format!("CREATE PUBLICATION tide FOR TABLE {}", names.join(", "))).await;
    let feed = FeedName::new("bench");
    let sink = postgres::sink(&feed, &other.url("ours")).expect("a sink");
    let pipeline = postgres::open(&feed, &server.url("source"), "tide", sink).expect("a pipeline");
    let start = end(&source).await;
    dispatchers(&*pipeline, &names, SpanEpoch(1), start).await;
    let subscribe =
        format!("CREATE SUBSCRIPTION theirs CONNECTION '{}' PUBLICATION tide", server.url("source"));
    run(&theirs, &subscribe).await;
    subscribed(&theirs, tables).await;
    run(&theirs, "ALTER SUBSCRIPTION theirs DISABLE").await;

    let rounds = changes / CHANGES_PER_TRANSACTION / tables as u64;
    for name in &names {
        run(&source, &format!("CALL fill('{name}', {rounds})")).await;
    }
    let written = (rounds * CHANGES_PER_TRANSACTION * tables as u64) as f64;
    let end = end(&source).await;

    let begun = Instant::now();
    dispatchers(&*pipeline, &names, SpanEpoch(2), end).await;
    let took = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    run(&theirs, "ALTER SUBSCRIPTION theirs ENABLE").await;
    confirmed(&source, end).await;
    let subscription = written / begun.elapsed().as_secs_f64();
    for name in &names {
        let counts = [count(&source, name).await, count(&ours, name).await, count(&theirs, name).await];
        assert_eq!(counts, [counts[0]; 3], "rows of {name} in source, our sink and theirs");
    }
    run(&theirs, "DROP SUBSCRIPTION theirs").await;
    FeedRates { ours: written / took, subscription }
}

async fn run(client: &Client, sql: &str) {
    if let Err(error) = client.batch_execute(sql).await {
        panic!("{sql}: {error:?}");
    }
}

async fn count(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.expect("a count").get(0)
}

async fn end(source: &Client) -> u64 {
    let sql = "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::int8";
    source.query_one(sql, &[]).await.expect("a position").get::<_, i64>(0) as u64
}

/// Starts a dispatcher per table, and stops them when all have come to `end`.
async fn dispatchers(pipeline: &dyn Pipeline, names: &[String], epoch: SpanEpoch, end: u64) {
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let mut seen = Vec::new();
    for name in names {
        let prepared = pipeline.prepare(&SpanName::new(&format!("public.{name}"))).await.expect("prepared");
        let (progress, watched) = watch::channel(None);
        let control = Control { stop: stop.clone(), progress };
        tasks.spawn(prepared.run(epoch, None, control));
        seen.push(watched);
    }
    for mut progress in seen {
        let there = |at: &Option<model::Checkpoint>| at.is_some_and(|at| at.position >= end);
        progress.wait_for(there).await.expect("it gets there");
    }
    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic").expect("a final checkpoint");
    }
}

/// Waits until the subscription's first copy is whole.
async fn subscribed(theirs: &Client, tables: usize) {
    wait_for("the subscription", || async {
        let sql = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'";
        let ready: i64 = theirs.query_one(sql, &[]).await.expect("a count").get(0);
        (ready == tables as i64).then_some(())
    })
    .await;
}

async fn confirmed(source: &Client, end: u64) {
    loop {
        let sql = "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::int8 FROM pg_replication_slots
                   WHERE slot_name = 'theirs'";
        let confirmed: i64 = source.query_one(sql, &[]).await.expect("a slot").get(0);
        if confirmed as u64 >= end {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
