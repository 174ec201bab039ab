//! The row per span that is the sink's fence, and the authority for where to start.

use std::time::SystemTime;

use model::{Checkpoint, FeedName, SpanEpoch, SpanName, Time};
use tokio_postgres::Row as SqlRow;

use super::super::connect::{Session, Side, Words, trouble};
use crate::contract::Trouble;
use crate::sink::Stand;

const TABLE: &str = "public.tidegate_checkpoint";

/// `backend` and `backend_since` are the session that took over last: its successor ends it, for it may hold
/// the row's lock while its process is paused or its host gone.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS public.tidegate_checkpoint (
    feed text NOT NULL,
    span text NOT NULL,
    epoch bigint NOT NULL,
    copied boolean NOT NULL DEFAULT false,
    position bigint NOT NULL DEFAULT 0,
    at timestamptz NOT NULL DEFAULT 'epoch',
    backend integer NOT NULL,
    backend_since timestamptz,
    PRIMARY KEY (feed, span)
) WITH (fillfactor = 50)";

/// How long a successor waits for the row while what its predecessor has in flight ends.
const TAKE_OVER: &str = "SET lock_timeout = '15s'";

fn lost(doing: &'static str) -> impl Fn(tokio_postgres::Error) -> Trouble {
    move |error| trouble(Side::Sink, doing, &error)
}

/// Makes the table where it is missing.
pub async fn ensure(session: &Session) -> Result<(), Trouble> {
    let sql = "SELECT has_table_privilege(t, 'SELECT') AND has_table_privilege(t, 'INSERT')
                   AND has_table_privilege(t, 'UPDATE') AND has_table_privilege(t, 'DELETE')
               FROM to_regclass($1) t WHERE t IS NOT NULL";
    let there = session.client.query_opt(sql, &[&TABLE]).await;
    match there.map_err(lost("looking for the checkpoints"))?.map(|row| row.get(0)) {
        Some(true) => return Ok(()),
        Some(false) => {
            return Err(Trouble::lasting(
                Side::Sink.unfit(),
                format!(
                    "the user may not use the checkpoints: GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} to it"
                ),
            ));
        }
        None => {}
    }
    match session.client.batch_execute(CREATE).await {
        Ok(()) => Ok(()),
        Err(error) => match error.as_db_error().map(Words::from) {
            // Two made it at once, and one did.
            Some(words) if matches!(words.code.as_str(), "23505" | "42P07") => Ok(()),
            Some(words) if words.code == "42501" => Err(Trouble::lasting(
                Side::Sink.unfit(),
                format!(
                    "the user may not make the table of checkpoints ({words}): GRANT CREATE ON SCHEMA \
                         public to it, or make the table for it: {CREATE}"
                ),
            )),
            Some(_) | None => Err(trouble(Side::Sink, "making the table of checkpoints", &error)),
        },
    }
}

pub async fn spans(session: &Session, feed: &FeedName) -> Result<Vec<SpanName>, Trouble> {
    ensure(session).await?;
    let sql = format!("SELECT span FROM {TABLE} WHERE feed = $1 ORDER BY span");
    let rows = session.client.query(&sql, &[&feed.as_str()]).await;
    let rows = rows.map_err(lost("reading the checkpoints"))?;
    Ok(rows.iter().map(|row| SpanName::new(row.get::<_, &str>(0))).collect())
}

pub async fn forget(session: &Session, feed: &FeedName, spans: &[SpanName]) -> Result<(), Trouble> {
    if spans.is_empty() {
        return Ok(());
    }
    let spans: Vec<&str> = spans.iter().map(SpanName::as_str).collect();
    let sql = format!("DELETE FROM {TABLE} WHERE feed = $1 AND span = ANY($2)");
    let done = session.client.execute(&sql, &[&feed.as_str(), &spans]).await;
    done.map(|_| ()).map_err(lost("forgetting checkpoints"))
}

/// A span's row, and the epoch that this dispatcher has.
pub struct Place {
    pub feed: FeedName,
    pub span: SpanName,
    pub epoch: SpanEpoch,
}

impl Place {
    fn fenced(&self, found: Option<i64>) -> Trouble {
        Trouble::fenced(match found {
            Some(found) => {
                format!("span {}: epoch {found} has taken over in the sink from {}", self.span, self.epoch)
            }
            None => format!("span {}: its checkpoint was removed from the sink", self.span),
        })
    }

    fn check(&self, row: Option<SqlRow>) -> Result<(), Trouble> {
        let found = row.map(|row| row.get::<_, i64>(0));
        if found == Some(self.epoch.0 as i64) { Ok(()) } else { Err(self.fenced(found)) }
    }

    /// Raises the epoch. Afterwards nothing that an older one has in flight can take effect.
    pub async fn take_over(&self, session: &Session) -> Result<Stand, Trouble> {
        self.end_predecessor(session).await?;
        session.run("taking over", TAKE_OVER).await?;
        let sql = format!(
            "INSERT INTO {TABLE} AS c (feed, span, epoch, backend, backend_since)
             VALUES ($1, $2, $3, pg_backend_pid(),
                     (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()))
             ON CONFLICT (feed, span) DO UPDATE
                 SET epoch = EXCLUDED.epoch, backend = EXCLUDED.backend,
                     backend_since = EXCLUDED.backend_since
                 WHERE c.epoch <= EXCLUDED.epoch
             RETURNING copied, position, (extract(epoch FROM at) * 1000)::int8"
        );
        let (feed, span) = (self.feed.as_str(), self.span.as_str());
        let row = session.client.query_opt(&sql, &[&feed, &span, &self.number()]).await;
        let row = row.map_err(lost("taking over"))?;
        session.run("taking over", "SET lock_timeout = 0").await?;
        let Some(row) = row else {
            return Err(self.is_ours(session).await.err().unwrap_or_else(|| self.fenced(None)));
        };
        Ok(match row.get(0) {
            true => Stand::At(Checkpoint {
                position: row.get::<_, i64>(1) as u64,
                at: Time(row.get::<_, i64>(2) as u64),
            }),
            false => Stand::Empty,
        })
    }

    async fn end_predecessor(&self, session: &Session) -> Result<(), Trouble> {
        let sql = format!("SELECT epoch, backend, backend_since FROM {TABLE} WHERE feed = $1 AND span = $2");
        let row = session.client.query_opt(&sql, &[&self.feed.as_str(), &self.span.as_str()]).await;
        let Some(row) = row.map_err(lost("taking over"))? else { return Ok(()) };
        let epoch: i64 = row.get(0);
        if epoch > self.number() {
            return Err(self.fenced(Some(epoch)));
        }
        let (backend, since): (i32, Option<SystemTime>) = (row.get(1), row.get(2));
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE pid = $1 AND backend_start = $2 AND pid <> pg_backend_pid()";
        if let Err(error) = session.client.query(sql, &[&backend, &since]).await {
            // It may be of another user. Then its transaction is waited for instead.
            tracing::debug!(%error, span = %self.span, "the predecessor's session could not be ended");
        }
        Ok(())
    }

    fn number(&self) -> i64 {
        self.epoch.0 as i64
    }

    /// Within a transaction: until it ends, nobody takes over.
    pub async fn lock(&self, session: &Session) -> Result<(), Trouble> {
        let sql = format!("SELECT epoch FROM {TABLE} WHERE feed = $1 AND span = $2 FOR UPDATE");
        let row = session.client.query_opt(&sql, &[&self.feed.as_str(), &self.span.as_str()]).await;
        self.check(row.map_err(lost("locking the checkpoint"))?)
    }

    pub async fn is_ours(&self, session: &Session) -> Result<(), Trouble> {
        let sql = format!("SELECT epoch FROM {TABLE} WHERE feed = $1 AND span = $2");
        let row = session.client.query_opt(&sql, &[&self.feed.as_str(), &self.span.as_str()]).await;
        self.check(row.map_err(lost("reading the checkpoint"))?)
    }

    /// Under the lock.
    pub async fn move_to(&self, session: &Session, stand: Stand) -> Result<(), Trouble> {
        let (copied, at) = match stand {
            Stand::Empty => (false, Checkpoint::default()),
            Stand::At(at) => (true, at),
        };
        let sql = format!(
            "UPDATE {TABLE} SET copied = $4, position = $5, at = 'epoch'::timestamptz + $6 * interval '1 ms'
             WHERE feed = $1 AND span = $2 AND epoch = $3"
        );
        let (position, millis) = (at.position as i64, at.at.0 as f64);
        let done = session
            .client
            .execute(
                &sql,
                &[&self.feed.as_str(), &self.span.as_str(), &self.number(), &copied, &position, &millis],
            )
            .await;
        match done.map_err(lost("writing the checkpoint"))? {
            0 => Err(self.fenced(None)),
            _ => Ok(()),
        }
    }
}
