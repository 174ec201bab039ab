//! What happens to each kind of change.

use std::sync::Arc;

use pipelines::testing::wait_for;

use crate::support::{Pair, Running, THINGS};

/// Makes the same table in source and sink, and publishes it alone.
async fn table(pair: &Pair, ddl: &str, identity: &str) {
    for side in [&pair.source, &pair.sink] {
        side.batch_execute(ddl).await.expect("it is made");
    }
    pair.source.batch_execute(identity).await.expect("it is set");
    pair.source.batch_execute("ALTER PUBLICATION tide SET TABLE t").await.expect("it is published");
}

async fn started(pair: &Pair) -> Running {
    let mut running = pair.start("public.t", 1).await;
    pair.caught_up(&mut running).await;
    running
}

async fn after(pair: &Pair, running: &mut Running, sql: &str) {
    pair.source.batch_execute(sql).await.expect("the source takes it");
    pair.caught_up(running).await;
    pair.assert_same("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_update_does_not_send_stays_even_if_the_key_changes() {
    for identity in ["", "ALTER TABLE t REPLICA IDENTITY FULL"] {
        let pair = Pair::new().await;
        let ddl = "CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL";
        table(&pair, ddl, identity).await;
        pair.source
            .batch_execute("INSERT INTO t SELECT i, i, repeat('x', 9000 + i) FROM generate_series(1, 9) i")
            .await
            .unwrap();
        let mut running = started(&pair).await;
        after(&pair, &mut running, "UPDATE t SET n = 10 WHERE id < 5").await;
        after(&pair, &mut running, "UPDATE t SET id = 100 WHERE id = 1").await;
        after(
            &pair,
            &mut running,
            "BEGIN; UPDATE t SET n = 11 WHERE id = 2; UPDATE t SET id = 200 WHERE id = 2; COMMIT",
        )
        .await;
        after(&pair, &mut running, "BEGIN; INSERT INTO t SELECT 300, 1, repeat('y', 9000); UPDATE t SET id = 301 WHERE id = 300; UPDATE t SET n = 2 WHERE id = 301; COMMIT").await;
        after(&pair, &mut running, "BEGIN; UPDATE t SET big = repeat('z', 9000), n = NULL WHERE id = 3; UPDATE t SET n = 4 WHERE id = 3; DELETE FROM t WHERE id = 4; COMMIT").await;
        after(&pair, &mut running, "BEGIN; UPDATE t SET n = 1 WHERE id = 5; TRUNCATE t; INSERT INTO t VALUES (5, NULL, 'small'); COMMIT").await;
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_pass_a_unique_value_between_them_are_written_in_their_order() {
    let pair = Pair::new().await;
    table(&pair, "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE)", "").await;
    pair.source.batch_execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, NULL)").await.unwrap();
    let mut running = started(&pair).await;
    let swap = "BEGIN; UPDATE t SET u = 5 WHERE id = 2; UPDATE t SET u = 2 WHERE id = 1; UPDATE t SET u = 1 WHERE id = 2; COMMIT";
    after(&pair, &mut running, swap).await;
    after(&pair, &mut running, "BEGIN; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (9, 2); COMMIT")
        .await;
    after(
        &pair,
        &mut running,
        "BEGIN; UPDATE t SET id = 1 WHERE id = 9; UPDATE t SET id = 9 WHERE id = 2; COMMIT",
    )
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_be_an_index_of_the_replica_identity_or_have_nothing_beside_it() {
    let pair = Pair::new().await;
    let ddl = "CREATE TABLE t (id int, a text NOT NULL, b int NOT NULL, v text); CREATE UNIQUE INDEX t_ab ON t (b, a) INCLUDE (v)";
    table(&pair, ddl, "ALTER TABLE t REPLICA IDENTITY USING INDEX t_ab").await;
    let mut running = started(&pair).await;
    after(
        &pair,
        &mut running,
        "INSERT INTO t VALUES (1, 'a', 1, 'x'), (NULL, 'a', 2, 'y'), (3, 'b', 1, NULL)",
    )
    .await;
    after(
        &pair,
        &mut running,
        "UPDATE t SET a = a || 'c' WHERE b = 1; DELETE FROM t WHERE b = 2; UPDATE t SET v = 'w'",
    )
    .await;
    running.stop().await;
    let pair = Pair::new().await;
    table(&pair, "CREATE TABLE t (id int PRIMARY KEY)", "").await;
    let mut running = started(&pair).await;
    after(
        &pair,
        &mut running,
        "INSERT INTO t VALUES (1), (2); UPDATE t SET id = 3 WHERE id = 1; DELETE FROM t WHERE id = 2",
    )
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_need_quotes_and_columns_that_are_generated_are_no_hindrance() {
    let pair = Pair::new().await;
    let ddl = "CREATE SCHEMA \"My.Shop\"; CREATE TABLE \"My.Shop\".\"or\"\"der's\" (id int PRIMARY KEY, \"select\" text, \"a\\b\" int, twice int GENERATED ALWAYS AS (id * 2) STORED)";
    for side in [&pair.source, &pair.sink] {
        side.batch_execute(ddl).await.unwrap();
    }
    pair.source.batch_execute("INSERT INTO \"My.Shop\".\"or\"\"der's\" VALUES (1, 'one', 1)").await.unwrap();
    pair.source.batch_execute("ALTER PUBLICATION tide SET TABLE \"My.Shop\".\"or\"\"der's\"").await.unwrap();
    let mut running = pair.start("My.Shop.or\"der's", 1).await;
    pair.caught_up(&mut running).await;
    pair.source.batch_execute("INSERT INTO \"My.Shop\".\"or\"\"der's\" VALUES (2, 'two', 2)").await.unwrap();
    pair.caught_up(&mut running).await;
    pair.assert_same("\"My.Shop\".\"or\"\"der's\"").await;
    assert_eq!(Pair::rows(&pair.sink, "\"My.Shop\".\"or\"\"der's\"").await.len(), 2);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn column_lists_and_row_filters_of_a_publication_hold_for_the_copy_as_for_the_changes() {
    let pair = Pair::new().await;
    pair.source.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text, secret text)").await.unwrap();
    pair.sink.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)").await.unwrap();
    pair.source.batch_execute("INSERT INTO t VALUES (1, 'a', 's'), (-1, 'b', 's')").await.unwrap();
    pair.source.batch_execute("ALTER PUBLICATION tide SET TABLE t (id, v) WHERE (id > 0)").await.unwrap();
    let mut running = started(&pair).await;
    assert_eq!(Pair::rows(&pair.sink, "t").await, ["(1,a)"]);
    pair.source
        .batch_execute(
            "INSERT INTO t VALUES (2, 'c', 's'), (-2, 'd', 's'); UPDATE t SET id = -9 WHERE id = 1",
        )
        .await
        .unwrap();
    pair.caught_up(&mut running).await;
    assert_eq!(Pair::rows(&pair.sink, "t").await, ["(2,c)"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_table_is_one_span_if_it_is_published_as_one() {
    let pair = Pair::new().await;
    let source = "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
                  CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
                  CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)";
    pair.source.batch_execute(source).await.unwrap();
    pair.sink.batch_execute("CREATE TABLE t (id int PRIMARY KEY, v text)").await.unwrap();
    pair.source.batch_execute("INSERT INTO t VALUES (1, 'a'), (11, 'b')").await.unwrap();
    pair.source
        .batch_execute(
            "ALTER PUBLICATION tide SET TABLE t; ALTER PUBLICATION tide SET (publish_via_partition_root)",
        )
        .await
        .unwrap();
    assert_eq!(pair.pipeline().look().await.unwrap().spans.len(), 1);
    let mut running = started(&pair).await;
    pair.assert_same("t").await;
    after(&pair, &mut running, "UPDATE t SET id = 12 WHERE id = 1; INSERT INTO t VALUES (2, 'c')").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_gets_a_column_waits_until_the_sink_has_it() {
    let pair = Pair::new().await;
    table(&pair, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')").await;
    let running = started(&pair).await;
    pair.source
        .batch_execute("ALTER TABLE t ADD w int DEFAULT 5; INSERT INTO t VALUES (2, 'b', 6)")
        .await
        .unwrap();
    let trouble = running.trouble().await;
    assert_eq!(trouble.code, model::Code::SinkUnfit, "{trouble}");
    assert!(trouble.message.contains("public.t") && trouble.message.contains("\"w\""), "{trouble}");
    pair.sink.batch_execute("ALTER TABLE t ADD w int DEFAULT 5").await.unwrap();
    let mut running = pair.start("public.t", 2).await;
    pair.caught_up(&mut running).await;
    pair.assert_same("t").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_larger_than_a_chunk_is_one_in_the_sink() {
    let pair = Pair::new().await;
    let mut running = pair.start("public.plain", 1).await;
    pair.caught_up(&mut running).await;
    let watch = Arc::new(pair.server.client("sink").await);
    let counts = tokio::spawn(async move {
        loop {
            let count = Pair::count(&watch, "plain").await;
            if count > 0 {
                return count;
            }
        }
    });
    let fill = "INSERT INTO plain SELECT i, 'x' || i FROM generate_series(1, 60000) i";
    pair.source.batch_execute(fill).await.unwrap();
    pair.caught_up(&mut running).await;
    assert_eq!(counts.await.unwrap(), 60000, "all of it at once");
    pair.assert_same("plain").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_the_midst_of_a_large_transaction_undoes_its_part() {
    let pair = Pair::new().await;
    let fill = "INSERT INTO plain SELECT i, 'x' || i FROM generate_series(1, 60000) i";
    pair.source.batch_execute(fill).await.unwrap();
    let mut running = pair.start("public.plain", 1).await;
    pair.caught_up(&mut running).await;
    // Somebody in the sink holds a row in the middle of it.
    let holder = pair.server.client("sink").await;
    holder.batch_execute("BEGIN; SELECT FROM plain WHERE id = 20000 FOR UPDATE").await.unwrap();
    pair.source.batch_execute("UPDATE plain SET v = 'y' || id").await.unwrap();
    wait_for("the dispatcher to wait for the row", || async {
        let waits =
            "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO \"public\"%'";
        (Pair::count(&pair.sink, waits).await == 1).then_some(())
    })
    .await;
    running.stop.cancel();
    holder.batch_execute("COMMIT").await.unwrap();
    let end = running.stop().await;
    assert_eq!(Pair::count(&pair.sink, "plain WHERE v LIKE 'y%'").await, 0, "no part of it");
    let mut running = pair.start("public.plain", 2).await;
    pair.caught_up(&mut running).await;
    pair.assert_same("plain").await;
    assert!(running.stop().await > end);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_table_follows_the_clock_and_holds_no_log_back() {
    let pair = Pair::new().await;
    let mut running = pair.start("public.plain", 1).await;
    running.first_progress().await;
    let before = pair
        .source
        .query_one("SELECT restart_lsn::text, now() FROM pg_replication_slots", &[])
        .await
        .unwrap();
    let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8";
    let now = pair.source.query_one(now, &[]).await.unwrap().get::<_, i64>(0) as u64;
    running.progress.wait_for(|at| at.is_some_and(|at| at.at.0 > now)).await.expect("its clock goes on");
    // Another table of the same publication is busy.
    let restart: String = before.get(0);
    wait_for("the slot to let go of the log", || async {
        pair.source.batch_execute("SELECT make_things(1, 50); DELETE FROM things; CHECKPOINT").await.unwrap();
        let sql = "SELECT restart_lsn > $1::text::pg_lsn, confirmed_flush_lsn > $1::text::pg_lsn FROM pg_replication_slots";
        let row = pair.source.query_one(sql, &[&restart]).await.unwrap();
        (row.get(0) && row.get(1)).then_some(())
    })
    .await;
    let end = running.stop().await;
    let stored = pair.sink.query_one("SELECT position FROM tidegate_checkpoint", &[]).await.unwrap();
    assert_eq!(stored.get::<_, i64>(0) as u64, end.position);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_as_done_is_in_the_sink() {
    let pair = Pair::new().await;
    let mut running = pair.start(THINGS, 1).await;
    running.first_progress().await;
    for batch in 0..20 {
        let sql = format!("SELECT make_things({}, {})", batch * 10 + 1, batch * 10 + 10);
        pair.source.batch_execute(&sql).await.unwrap();
        pair.caught_up(&mut running).await;
        assert_eq!(Pair::count(&pair.sink, "things").await, (batch + 1) * 10);
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_row_is_written_twice_by_a_predecessor_and_its_successor() {
    let pair = Pair::new().await;
    // Fires in a session that applies, too.
    let log = "CREATE TABLE log (id int);
               CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
                   $$ BEGIN INSERT INTO log VALUES (NEW.id); RETURN NEW; END $$;
               CREATE TRIGGER note AFTER INSERT OR UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION note();
               ALTER TABLE plain ENABLE ALWAYS TRIGGER note";
    pair.sink.batch_execute(log).await.unwrap();
    // Rows come all the while, also between the making of the slot and the first copy.
    let client = pair.server.client("source").await;
    let done = tokio_util::sync::CancellationToken::new();
    let stop = done.clone();
    let writer = tokio::spawn(async move {
        let mut next = 0;
        while !stop.is_cancelled() {
            client.execute("INSERT INTO plain VALUES ($1, '')", &[&next]).await.expect("the source is there");
            next += 1;
        }
        i64::from(next)
    });
    for epoch in 1..12 {
        let mut running = pair.start("public.plain", epoch).await;
        running.first_progress().await;
        pair.caught_up(&mut running).await;
        if epoch % 2 == 0 {
            running.abort().await;
        } else {
            running.stop().await;
        }
    }
    done.cancel();
    let written = writer.await.expect("no panic");
    let mut running = pair.start("public.plain", 20).await;
    pair.caught_up(&mut running).await;
    running.stop().await;
    pair.assert_same("plain").await;
    assert_eq!(Pair::count(&pair.sink, "log").await, written);
    assert_eq!(Pair::count(&pair.sink, "(SELECT DISTINCT id FROM log) AS d").await, written);
}
