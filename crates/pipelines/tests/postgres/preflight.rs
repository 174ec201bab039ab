//! What a look shows, and what it refuses in words that say what to set.

use model::{Code, SpanName};
use pipelines::testing::{PASSWORD, Postgres};
use pipelines::{Pipeline, Trouble};

use crate::support::{Pair, THINGS};

async fn refused(pipeline: &dyn Pipeline, code: Code, words: &[&str]) -> Trouble {
    let trouble = pipeline.look().await.expect_err("it is not fit");
    check(trouble, code, words)
}

fn check(trouble: Trouble, code: Code, words: &[&str]) -> Trouble {
    assert_eq!(trouble.code, code, "{trouble}");
    assert!(!trouble.message.contains(PASSWORD), "{trouble}");
    for word in words {
        assert!(trouble.message.contains(word), "{word:?} in: {trouble}");
    }
    trouble
}

async fn unprepared(pair: &Pair, span: &str, code: Code, words: &[&str]) {
    let refused = pair.pipeline().prepare(&SpanName::new(span)).await;
    let trouble = refused.err().expect("it is not fit");
    assert!(!trouble.passes, "{trouble}");
    check(trouble, code, words);
}

fn names(names: &[&str]) -> Vec<SpanName> {
    names.iter().map(|name| SpanName::new(name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_shows_tables_that_come_and_go_and_what_the_slots_hold_back() {
    let pair = Pair::new().await;
    let pipeline = pair.pipeline();
    let first = pipeline.look().await.unwrap();
    assert_eq!(first.spans, names(&["public.plain", THINGS]));
    assert_eq!((first.held_back, first.warnings.len()), (None, 0));
    pair.source
        .batch_execute(
            "CREATE SCHEMA \"Shop\"; CREATE TABLE \"Shop\".\"a.b\" (id int PRIMARY KEY);
             ALTER PUBLICATION tide ADD TABLE \"Shop\".\"a.b\"; ALTER PUBLICATION tide DROP TABLE things",
        )
        .await
        .unwrap();
    let running = pair.start("public.plain", 1).await;
    let mut running = running;
    pair.caught_up(&mut running).await;
    running.stop().await;
    pair.source.batch_execute("SELECT make_things(1, 100)").await.unwrap();
    let second = pipeline.look().await.unwrap();
    assert_eq!(second.spans, names(&["Shop.a.b", "public.plain"]));
    assert!(second.held_back > Some(100_000), "{:?}", second.held_back);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_without_a_key_are_left_out_with_a_warning_and_refused_if_there_is_nothing_else() {
    let pair = Pair::new().await;
    pair.source
        .batch_execute("CREATE TABLE loose (v text); ALTER PUBLICATION tide ADD TABLE loose")
        .await
        .unwrap();
    let seen = pair.pipeline().look().await.unwrap();
    assert_eq!(seen.spans, names(&["public.plain", THINGS]));
    assert!(
        seen.warnings[0].contains("public.loose") && seen.warnings[0].contains("primary key"),
        "{seen:?}"
    );
    unprepared(&pair, "public.loose", Code::SourceUnfit, &["public.loose", "REPLICA IDENTITY"]).await;
    unprepared(&pair, "public.nothing", Code::SourceUnfit, &["public.nothing", "tide"]).await;
    pair.source.batch_execute("ALTER PUBLICATION tide SET TABLE loose").await.unwrap();
    refused(&*pair.pipeline(), Code::SourceUnfit, &["public.loose"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_is_missing_or_leaves_things_out_is_told() {
    let pair = Pair::new().await;
    pair.source.batch_execute("ALTER PUBLICATION tide SET (publish = 'insert')").await.unwrap();
    let seen = pair.pipeline().look().await.unwrap();
    assert!(seen.warnings[0].contains("does not publish all"), "{seen:?}");
    pair.source.batch_execute("DROP PUBLICATION tide").await.unwrap();
    refused(&*pair.pipeline(), Code::SourceUnfit, &["\"tide\"", "CREATE PUBLICATION"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_logical_replication_is_told_what_to_set() {
    let pair = Pair::on(Postgres::start_with(&[("wal_level", "replica")]).await).await;
    refused(&*pair.pipeline(), Code::SourceUnfit, &["wal_level is replica", "restart"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_slots_or_senders_are_counted_before_anything_is_touched() {
    let few = [("max_replication_slots", "1")];
    let pair = Pair::on(Postgres::start_with(&few).await).await;
    let words = ["2 more slots are needed", "1 of 1 are free", "max_replication_slots = 2"];
    refused(&*pair.pipeline(), Code::SourceUnfit, &words).await;
    assert_eq!(pair.slots().await, 0);
    // What is there counts: one table more would be too many, this one is not.
    let mut running = pair.start("public.plain", 1).await;
    pair.caught_up(&mut running).await;
    refused(&*pair.pipeline(), Code::SourceUnfit, &["1 more slots are needed, 0 of 1"]).await;
    let trouble = pair.start(THINGS, 1).await.trouble().await;
    check(trouble, Code::SourceUnfit, &["replication slots are in use"]);
    running.stop().await;
    drop(pair);
    let pair = Pair::on(Postgres::start_with(&[("max_wal_senders", "1")]).await).await;
    refused(&*pair.pipeline(), Code::SourceUnfit, &["2 more senders", "max_wal_senders = 2"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_the_rights_is_told_which() {
    let pair = Pair::new().await;
    let maker = format!("CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'");
    pair.source.batch_execute(&maker).await.unwrap();
    let pipeline = pair.pipeline_as("reader", "postgres");
    refused(&*pipeline, Code::SourceUnfit, &["may not replicate", "ALTER ROLE \"reader\" REPLICATION"]).await;
    pair.source.batch_execute("ALTER ROLE reader REPLICATION").await.unwrap();
    refused(&*pipeline, Code::SourceUnfit, &["GRANT SELECT", "\"public\".\"plain\""]).await;
    pair.source.batch_execute("GRANT SELECT ON things, plain TO reader").await.unwrap();
    assert_eq!(pipeline.look().await.unwrap().spans.len(), 2);
    // A user with no more than these rights can run the feed to its end.
    let grants = format!(
        "CREATE ROLE writer LOGIN PASSWORD '{PASSWORD}';
         GRANT SELECT, INSERT, UPDATE, DELETE ON plain, things TO writer"
    );
    pair.sink.batch_execute(&grants).await.unwrap();
    let pipeline = pair.pipeline_as("reader", "writer");
    refused(&*pipeline, Code::SinkUnfit, &["GRANT SELECT, INSERT, UPDATE, DELETE ON", "tidegate_checkpoint"])
        .await;
    pair.sink.batch_execute("DROP TABLE tidegate_checkpoint").await.unwrap();
    refused(&*pipeline, Code::SinkUnfit, &["GRANT CREATE ON SCHEMA public", "tidegate_checkpoint"]).await;
    pair.sink.batch_execute("GRANT CREATE ON SCHEMA public TO writer").await.unwrap();
    pipeline.look().await.unwrap();
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    for epoch in 1..3 {
        let mut running = crate::support::start(&*pipeline, "public.plain", epoch).await;
        pair.caught_up(&mut running).await;
        pair.source.batch_execute("TRUNCATE plain; INSERT INTO plain VALUES (2, 'two')").await.unwrap();
        pair.caught_up(&mut running).await;
        pair.assert_same("plain").await;
        running.abort().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_whose_table_is_missing_or_differs_is_told_where() {
    let pair = Pair::new().await;
    let cases: [(&str, &[&str]); 6] = [
        ("DROP TABLE plain", &["public.plain", "missing"]),
        ("CREATE TABLE plain (id int PRIMARY KEY)", &["public.plain", "\"v\""]),
        ("DROP TABLE plain; CREATE TABLE plain (id int, v text)", &["public.plain", "(id)", "unique"]),
        (
            "DROP TABLE plain; CREATE TABLE plain (id int PRIMARY KEY, v text, more int NOT NULL)",
            &["public.plain", "\"more\"", "NOT NULL"],
        ),
        (
            "DROP TABLE plain; CREATE TABLE plain (id int PRIMARY KEY, v text GENERATED ALWAYS AS ('x') STORED)",
            &["\"v\"", "generated"],
        ),
        (
            "DROP TABLE plain; CREATE TABLE plain (id int, v text, UNIQUE (id) DEFERRABLE)",
            &["public.plain", "(id)"],
        ),
    ];
    for (change, words) in cases {
        pair.sink.batch_execute(change).await.unwrap();
        unprepared(&pair, "public.plain", Code::SinkUnfit, words).await;
    }
    // More than the source has is no harm.
    let fitting = "DROP TABLE plain;
                   CREATE TABLE plain (more int DEFAULT 7, v text, id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)";
    pair.sink.batch_execute(fitting).await.unwrap();
    pair.source.batch_execute("INSERT INTO plain VALUES (1, 'one')").await.unwrap();
    let mut running = pair.start("public.plain", 1).await;
    pair.caught_up(&mut running).await;
    pair.source.batch_execute("INSERT INTO plain VALUES (2, 'two')").await.unwrap();
    pair.caught_up(&mut running).await;
    assert_eq!(Pair::rows(&pair.sink, "plain").await, ["(7,one,1)", "(7,two,2)"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_in_no_words() {
    let pair = Pair::new().await;
    let wrong = pair.server.url("source").replace(PASSWORD, "other-s3cret");
    let (sink, gone) = (pair.server.url("sink"), "postgres://me:other-s3cret@127.0.0.1:1/x");
    for url in [wrong.as_str(), gone] {
        let trouble = crate::support::open(&pair.feed, url, &sink).look().await.expect_err("it cannot");
        assert!(!trouble.message.contains("s3cret"), "{trouble}");
        assert_eq!(trouble.passes, url == gone, "{trouble}");
    }
    let unreadable = pipelines::postgres::sink(&pair.feed, "postgres://me:other-s3cret@h:port/x");
    let trouble = unreadable.err().expect("no URL");
    assert!(!trouble.message.contains("s3cret"), "{trouble}");
}
