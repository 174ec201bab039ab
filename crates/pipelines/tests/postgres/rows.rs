//! Every row arrives as it is, whatever happens to dispatchers on the way.

use crate::support::{Pair, Running, THINGS, Writer};

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_and_the_changes_after_it_arrive_row_by_row_while_somebody_writes() {
    let pair = Pair::new().await;
    pair.source.batch_execute("SELECT make_things(1, 3000)").await.unwrap();
    pair.sink.batch_execute("INSERT INTO things (id, part) VALUES (1, 'left over')").await.unwrap();
    let writer = Writer::start(&pair, 1, false).await;
    let mut running = pair.start(THINGS, 1).await;
    running.first_progress().await;
    pair.caught_up(&mut running).await;
    assert!(writer.stop().await > 0);
    pair.caught_up(&mut running).await;
    pair.assert_same("things").await;
    let end = running.stop().await;
    assert!(end.position > 0 && end.at.0 > 0);
    pair.assert_same("things").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_goes_on_where_its_predecessor_stopped_and_nothing_is_lost_or_doubled() {
    let pair = Pair::new().await;
    pair.source.batch_execute("SELECT make_things(1, 300)").await.unwrap();
    let writer = Writer::start(&pair, 2, true).await;
    let mut before = None;
    for epoch in 1..8 {
        let mut running = pair.start(THINGS, epoch).await;
        running.first_progress().await;
        pair.caught_up(&mut running).await;
        let end = running.stop().await;
        assert!(before < Some(end), "it goes on: {before:?} {end:?}");
        before = Some(end);
        let (copied, position): (bool, i64) = {
            let sql = "SELECT copied, position FROM tidegate_checkpoint";
            let row = pair.sink.query_one(sql, &[]).await.unwrap();
            (row.get(0), row.get(1))
        };
        assert!(copied);
        assert_eq!(position as u64, end.position, "the sink knows it, too");
    }
    assert!(writer.stop().await > 0);
    let mut last = pair.start(THINGS, 100).await;
    pair.caught_up(&mut last).await;
    pair.assert_same("things").await;
    last.stop().await;
    assert_eq!(pair.slots().await, 1, "one slot, always the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_anywhere_loses_nothing_and_doubles_nothing() {
    let pair = Pair::new().await;
    pair.source.batch_execute("SELECT make_things(1, 2000)").await.unwrap();
    let writer = Writer::start(&pair, 3, true).await;
    for epoch in 1..25 {
        let running = pair.start(THINGS, epoch).await;
        // Not a wait for anything: it only spreads the aborts over all that a start does.
        for _ in 0..epoch * epoch * 3 {
            tokio::task::yield_now().await;
        }
        let pause = std::time::Duration::from_millis(epoch * 7);
        let _spread = tokio::time::timeout(pause, std::future::pending::<()>()).await;
        running.abort().await;
    }
    writer.stop().await;
    let mut last = pair.start(THINGS, 100).await;
    pair.caught_up(&mut last).await;
    pair.assert_same("things").await;
    last.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_first_copy_is_cleared_and_starts_anew() {
    let pair = Pair::new().await;
    let fill = "INSERT INTO plain SELECT i, 'x' || i FROM generate_series(1, 100000) i";
    pair.source.batch_execute(fill).await.unwrap();
    // The sink keeps the copy waiting at one row for as long as a lock is held.
    let gate = "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$;
                CREATE TRIGGER wait BEFORE INSERT ON plain FOR EACH ROW WHEN (NEW.id = 90000)
                    EXECUTE FUNCTION wait();
                ALTER TABLE plain ENABLE ALWAYS TRIGGER wait";
    pair.sink.batch_execute(gate).await.unwrap();
    let holder = pair.server.client("sink").await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let running = pair.start("public.plain", 1).await;
    pipelines::testing::wait_for("the copy to stand at the row", || async {
        let waits = "pg_locks WHERE locktype = 'advisory' AND NOT granted";
        (Pair::count(&pair.sink, waits).await == 1).then_some(())
    })
    .await;
    running.abort().await;
    assert!(Pair::count(&pair.sink, "plain").await > 0, "a part is there");
    let copied = pair.sink.query_one("SELECT copied FROM tidegate_checkpoint", &[]).await.unwrap();
    assert!(!copied.get::<_, bool>(0), "and is known to be one");
    // Rows that were copied and are gone since must not come back.
    pair.source.batch_execute("DELETE FROM plain WHERE id % 2 = 0; UPDATE plain SET v = 'y'").await.unwrap();
    let mut running = pair.start("public.plain", 2).await;
    pair.caught_up(&mut running).await;
    pair.assert_same("plain").await;
    running.stop().await;
    assert_eq!(pair.slots().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_the_first_copy_is_heeded_and_the_successor_copies() {
    let pair = Pair::new().await;
    pair.source
        .batch_execute("INSERT INTO plain SELECT i, 'x' FROM generate_series(1, 200000) i")
        .await
        .unwrap();
    let running: Running = pair.start("public.plain", 1).await;
    let end = running.stop().await;
    assert_eq!(end.position, 0, "nothing is vouched for");
    let mut running = pair.start("public.plain", 2).await;
    pair.caught_up(&mut running).await;
    pair.assert_same("plain").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_vanished_leads_to_a_fresh_copy() {
    let pair = Pair::new().await;
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one'), (2, 'two')").await.unwrap();
    let mut running = pair.start("public.plain", 1).await;
    pair.caught_up(&mut running).await;
    running.stop().await;
    let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
    pair.source.batch_execute(drop).await.unwrap();
    pair.source.batch_execute("DELETE FROM plain WHERE id = 1").await.unwrap();
    let mut running = pair.start("public.plain", 2).await;
    pair.caught_up(&mut running).await;
    pair.assert_same("plain").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_heeded_while_open_transactions_keep_the_slot_from_being_made() {
    let pair = Pair::new().await;
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    let holder = pair.server.client("source").await;
    holder.batch_execute("BEGIN; INSERT INTO plain VALUES (2, 'two')").await.unwrap();
    let running = pair.start("public.plain", 1).await;
    pipelines::testing::wait_for("the slot to be begun", || async {
        (pair.slots().await == 1).then_some(())
    })
    .await;
    let end = running.stop().await;
    assert_eq!(end.position, 0, "nothing is vouched for");
    // Its successor finds the half-made slot, ends it, and waits in its place.
    let mut running = pair.start("public.plain", 2).await;
    pair.source.batch_execute("INSERT INTO plain VALUES (3, 'three')").await.unwrap();
    holder.batch_execute("COMMIT").await.unwrap();
    pair.caught_up(&mut running).await;
    pair.assert_same("plain").await;
    assert_eq!(Pair::count(&pair.sink, "plain").await, 3);
    running.stop().await;
}
