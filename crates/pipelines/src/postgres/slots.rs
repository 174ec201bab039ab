//! Replication slots: one per span, so that the database itself refuses a second reader.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{FeedName, SpanName, Time};
use tokio::time::{Instant, sleep};

use super::connect::{Session, Side, trouble};
use super::names::{slot_name, slot_prefix};
use crate::contract::Trouble;

/// How long a reader that was told to end may take. Far above what a server needs for it.
const END_WITHIN: Duration = Duration::from_secs(15);
/// How long a slot in use is waited for before a sweep is left to be asked again.
const SWEEP_WAIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(20);
/// A page of the log begins with a header; a position just behind one is the end of the page before.
const PAGE: u64 = 8192;
const PAGE_HEADERS: [u64; 2] = [24, 40];

/// A slot as the server shows it.
#[derive(Clone, Debug)]
pub struct Slot {
    pub reader: Option<i32>,
    /// Everything before this was confirmed, and may be gone.
    pub confirmed: u64,
    /// The server has removed what the slot still needed.
    pub lost: bool,
    /// Of this database, and of our plugin.
    pub ours: bool,
}

pub async fn find(session: &Session, name: &str) -> Result<Option<Slot>, Trouble> {
    let sql = "SELECT active_pid, (confirmed_flush_lsn - '0/0'::pg_lsn)::int8, wal_status = 'lost',
                      plugin = 'pgoutput' AND database = current_database()
               FROM pg_replication_slots WHERE slot_name = $1";
    let row = session.client.query_opt(sql, &[&name]).await;
    let row = row.map_err(|error| trouble(Side::Source, "reading the slot", &error))?;
    Ok(row.map(|row| Slot {
        reader: row.get(0),
        confirmed: row.get::<_, Option<i64>>(1).map_or(0, |confirmed| confirmed as u64),
        lost: row.get::<_, Option<bool>>(2).unwrap_or(false),
        ours: row.get::<_, Option<bool>>(3).unwrap_or(false),
    }))
}

/// Ends whoever reads from the slot. To be called only by the owner of the span: its fence has passed by
/// then, and what still reads is a leftover that the server has not noticed yet.
pub async fn end_reader(session: &Session, name: &str) -> Result<Option<Slot>, Trouble> {
    let deadline = Instant::now() + END_WITHIN;
    loop {
        let slot = find(session, name).await?;
        let Some(pid) = slot.as_ref().and_then(|slot| slot.reader) else { return Ok(slot) };
        if Instant::now() >= deadline {
            return Err(Trouble::passing(
                Side::Source.unreachable(),
                format!("slot {name} is still read by process {pid} of the source, which was told to end"),
            ));
        }
        let ended = session.client.query_one("SELECT pg_terminate_backend($1)", &[&pid]).await;
        ended.map_err(|error| trouble(Side::Source, "ending a leftover reader", &error))?;
        sleep(POLL).await;
    }
}

/// Drops a slot that nobody reads. `false`: somebody does.
async fn drop_idle(session: &Session, name: &str) -> Result<bool, Trouble> {
    let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1";
    match session.client.query(sql, &[&name]).await {
        Ok(_) => Ok(true),
        Err(error) => match error.as_db_error().map(|words| words.code().code()) {
            Some("55006") => Ok(false),
            // Somebody else was faster.
            Some("42704") => Ok(true),
            _ => Err(trouble(Side::Source, "dropping a slot", &error)),
        },
    }
}

/// Ends the slot's reader and drops it.
pub async fn remove(session: &Session, name: &str) -> Result<(), Trouble> {
    let deadline = Instant::now() + END_WITHIN;
    loop {
        end_reader(session, name).await?;
        if drop_idle(session, name).await? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(still_read(name));
        }
    }
}

fn still_read(name: &str) -> Trouble {
    Trouble::passing(Side::Source.unreachable(), format!("slot {name} of the source is still being read"))
}

/// Drops the feed's slots of spans that are not in `keep`. One that is being read is waited for a little.
pub async fn sweep(session: &Session, feed: &FeedName, keep: &[SpanName]) -> Result<(), Trouble> {
    let keep: BTreeSet<String> = keep.iter().map(|span| slot_name(feed, span)).collect();
    let sql = "SELECT slot_name::text FROM pg_replication_slots
               WHERE starts_with(slot_name::text, $1) AND database = current_database()";
    let rows = session.client.query(sql, &[&slot_prefix(feed)]).await;
    let rows = rows.map_err(|error| trouble(Side::Source, "reading the slots", &error))?;
    let names = rows.iter().map(|row| row.get::<_, String>(0)).filter(|name| !keep.contains(name));
    let deadline = Instant::now() + SWEEP_WAIT;
    let mut left = None;
    for name in names {
        while !drop_idle(session, &name).await? {
            if Instant::now() >= deadline {
                left = Some(still_read(&name));
                break;
            }
            sleep(POLL).await;
        }
    }
    left.map_or(Ok(()), Err)
}

/// A moment of the source, and the end of its log then: once the log is read up to there, everything that
/// was committed before that moment has been seen.
pub async fn moment(session: &Session) -> Result<(Time, u64), Trouble> {
    // The clock is read first: what commits in between is behind the position.
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8,
                      (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8";
    let row = session.client.query_one(sql, &[]).await;
    let row = row.map_err(|error| trouble(Side::Source, "reading the clock", &error))?;
    let (at, position) = (row.get::<_, i64>(0) as u64, row.get::<_, i64>(1) as u64);
    let behind = position % PAGE;
    let position = if PAGE_HEADERS.contains(&behind) { position - behind } else { position };
    Ok((Time(at), position))
}
