//! A feed between two PostgreSQL databases, while nodes are drained and killed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use pipelines::testing::{PASSWORD, Postgres};
use reqwest::Method;
use server::view::FeedView;
use tokio_postgres::Client;

use crate::harness::{Cluster, Pace, until};

const TABLES: usize = 5;

async fn make_tables(side: &Client) {
    for table in 0..TABLES {
        let sql = format!("CREATE TABLE t{table} (id int PRIMARY KEY, n int NOT NULL, words text)");
        side.batch_execute(&sql).await.unwrap();
    }
}

async fn rows(side: &Client, table: usize) -> Vec<String> {
    let rows = side.query(&format!("SELECT t::text FROM t{table} t ORDER BY id"), &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Inserts, updates and deletes in all tables, several in each transaction, until it is told to stop.
async fn write(source: Client, stop: Arc<AtomicBool>) -> Client {
    let mut id = 1000;
    while !stop.load(Ordering::Relaxed) {
        let mut sql = String::from("BEGIN;");
        for table in 0..TABLES {
            let (old, gone) = (id - 7, id - 40);
            sql.push_str(&format!(
                "INSERT INTO t{table} VALUES ({id}, {table}, 'row {id}');
                 UPDATE t{table} SET n = n + {id} WHERE id = {old};
                 DELETE FROM t{table} WHERE id = {gone} AND id % 3 = 0;"
            ));
        }
        sql.push_str("COMMIT;");
        source.batch_execute(&sql).await.unwrap();
        id += 1;
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    source
}

fn all_run(feed: &FeedView) -> bool {
    let works = feed.maintainer.as_ref().is_some_and(|maintainer| maintainer.phase == "working");
    works && feed.dispatchers.values().sum::<u32>() as usize == TABLES && feed.moving == 0 && feed.absent == 0
}

fn is_on(feed: &FeedView, node: &str) -> bool {
    let maintained = feed.maintainer.as_ref().is_some_and(|maintainer| maintainer.node == node);
    maintained || feed.dispatchers.contains_key(node)
}

async fn until_feed(cluster: &Cluster, what: &str, holds: impl Fn(&FeedView) -> bool) -> FeedView {
    until(what, async || {
        let feed = cluster.api.feed("orders").await?;
        if holds(&feed) { Ok(feed) } else { Err(format!("{feed:?}")) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_database_equals_it_after_a_drain_and_a_kill() {
    let server = Postgres::start().await;
    let (source, sink) = (server.create("source").await, server.create("sink").await);
    make_tables(&source).await;
    make_tables(&sink).await;
    for table in 0..TABLES {
        let sql = format!("INSERT INTO t{table} SELECT i, i, 'early ' || i FROM generate_series(1, 500) i");
        source.batch_execute(&sql).await.unwrap();
    }
    source.batch_execute("CREATE PUBLICATION tide FOR ALL TABLES").await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write(source, stop.clone()));

    let mut cluster = Cluster::start(3, Pace::Quick).await;
    let feed = format!(
        "[[feed]]\nname = \"orders\"\n\
         source = {{ kind = \"postgres\", url = \"{}\", publication = \"tide\" }}\n\
         sink = {{ kind = \"postgres\", url = \"{}\" }}\n",
        server.url("source"),
        server.url("sink")
    );
    cluster.apply(&feed).await;
    let feed = until_feed(&cluster, "the feed to run", all_run).await;
    let shown = cluster.run(&["feed", "status", "orders", "-o", "json"]).await.stdout;
    assert!(shown.contains("publication") && !shown.contains(PASSWORD), "{shown}");

    let drained = feed.maintainer.unwrap().node;
    let path = format!("/v1/nodes/{drained}/drain");
    let (status, said) = cluster.api.ask(Method::PUT, &path, Some("{}")).await.unwrap();
    assert!(status < 300, "{status} {said}");
    let moved =
        until_feed(&cluster, "the drained node to be empty", |feed| all_run(feed) && !is_on(feed, &drained))
            .await;
    let killed = moved.dispatchers.keys().next().unwrap().clone();
    cluster.daemon_mut(&killed).kill();
    until_feed(&cluster, "the rest to run it", |feed| all_run(feed) && !is_on(feed, &killed)).await;

    stop.store(true, Ordering::Relaxed);
    let source = writer.await.unwrap();
    for table in 0..TABLES {
        until(&format!("t{table} to be equal"), async || {
            let (there, here) = (rows(&source, table).await, rows(&sink, table).await);
            match there == here {
                true => Ok(()),
                false => Err(format!("{} rows there, {} here", there.len(), here.len())),
            }
        })
        .await;
    }

    let done = cluster.run(&["remove", "feed/orders"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    until("it to be gone", async || {
        let feeds = cluster.api.feeds().await?;
        if feeds.is_empty() { Ok(()) } else { Err(format!("{feeds:?}")) }
    })
    .await;
    let slots = source.query_one("SELECT count(*) FROM pg_replication_slots", &[]).await.unwrap();
    assert_eq!(slots.get::<_, i64>(0), 0);
}
