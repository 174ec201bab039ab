//! What a source's catalogue says: the tables of a publication, and what would keep them from being read.

use model::{FeedName, SpanName};
use tokio_postgres::Row as SqlRow;

use super::connect::{Session, Side, trouble};
use super::names::{quoted, quoted_table, slot_name, slot_prefix};
use crate::change::{Column, Shape};
use crate::contract::{Outlook, Trouble};

/// Column lists and row filters of publications exist since this version.
const VERSION_WITH_FILTERS: i32 = 150_000;
/// Earlier ones do not tell when a slot has lost its log.
const VERSION_LEAST: i32 = 130_000;

/// One table of the publication.
#[derive(Clone, Debug)]
pub struct Table {
    pub shape: Shape,
    /// As in `pg_class.relkind`: a plain table is copied without those that inherit from it.
    pub kind: String,
    /// As in `pg_class.relreplident`.
    pub identity: String,
    /// The publication's row filter.
    pub filter: Option<String>,
    pub may_select: bool,
}

impl Table {
    pub fn span(&self) -> SpanName {
        SpanName::new(&format!("{}.{}", self.shape.schema, self.shape.table))
    }

    /// Why its rows cannot be told apart, and what to set.
    pub fn unfit(&self) -> Option<String> {
        let span = self.span();
        if self.shape.keys().next().is_some() {
            return None;
        }
        Some(match self.identity.as_str() {
            "n" => format!(
                "table {span} has REPLICA IDENTITY NOTHING: its updates and deletes are not published; \
                 ALTER TABLE … REPLICA IDENTITY DEFAULT (with a primary key)"
            ),
            "i" => format!("table {span}: the index of its replica identity is gone, or not published whole"),
            _ => format!(
                "table {span} has no primary key (or the publication leaves it out): add one, or set \
                 REPLICA IDENTITY USING INDEX with a unique index on columns that are NOT NULL"
            ),
        })
    }
}

async fn version(session: &Session) -> Result<i32, Trouble> {
    let sql = "SELECT current_setting('server_version_num')::int4";
    let row = session.client.query_one(sql, &[]).await;
    row.map(|row| row.get(0)).map_err(|error| trouble(Side::Source, "reading the version", &error))
}

fn tables_sql(version: i32) -> String {
    let (names, filter) = match version >= VERSION_WITH_FILTERS {
        true => ("p.attnames::text[]", "p.rowfilter"),
        false => ("NULL::text[]", "NULL::text"),
    };
    format!(
        "SELECT n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text, {filter},
                has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
                cols.names, cols.types, cols.keys
         FROM pg_publication_tables p
         JOIN pg_namespace n ON n.nspname = p.schemaname
         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
         CROSS JOIN LATERAL (
             SELECT array_agg(a.attname::text ORDER BY a.attnum) AS names,
                    array_agg(a.atttypid ORDER BY a.attnum) AS types,
                    array_agg(a.attnum = ANY(COALESCE(k.attnums, '{{}}')) ORDER BY a.attnum) AS keys
             FROM pg_attribute a
             LEFT JOIN (
                 SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS attnums FROM pg_index i
                 WHERE i.indrelid = c.oid AND CASE c.relreplident
                     WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END
             ) k ON true
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
               AND ({names} IS NULL OR a.attname::text = ANY({names}))
         ) cols
         WHERE p.pubname = $1"
    )
}

fn table(row: &SqlRow) -> Table {
    let names: Option<Vec<String>> = row.get(6);
    let types: Option<Vec<u32>> = row.get(7);
    let keys: Option<Vec<bool>> = row.get(8);
    let columns = names.unwrap_or_default().into_iter().zip(types.unwrap_or_default());
    let columns = columns.zip(keys.unwrap_or_default());
    Table {
        shape: Shape {
            schema: row.get(0),
            table: row.get(1),
            columns: columns.map(|((name, type_oid), key)| Column { name, type_oid, key }).collect(),
        },
        kind: row.get(2),
        identity: row.get(3),
        filter: row.get(4),
        may_select: row.get(5),
    }
}

/// All tables of the publication, sorted.
async fn tables(session: &Session, publication: &str) -> Result<Vec<Table>, Trouble> {
    let sql = tables_sql(version(session).await?);
    let rows = session.client.query(&sql, &[&publication]).await;
    let rows = rows.map_err(|error| trouble(Side::Source, "reading the publication's tables", &error))?;
    let mut tables: Vec<Table> = rows.iter().map(table).collect();
    tables.sort_by_key(Table::span);
    Ok(tables)
}

/// What changes whenever the table, or a partition of it, is truncated or rewritten. Snapshots do not matter to it.
pub async fn storage(session: &Session, shape: &Shape) -> Result<String, Trouble> {
    let sql = "SELECT COALESCE(string_agg(pg_relation_filenode(part)::text, ',' ORDER BY part::oid), '')
               FROM (SELECT $1::text::regclass AS part
                     UNION SELECT relid FROM pg_partition_tree($1::text::regclass)) AS parts";
    let table = quoted_table(&shape.schema, &shape.table);
    let row = session.client.query_one(sql, &[&table]).await;
    Ok(row.map_err(|error| trouble(Side::Source, &format!("looking at {table}"), &error))?.get(0))
}

/// The table that a span stands for, fit to be read.
pub async fn find(session: &Session, publication: &str, span: &SpanName) -> Result<Table, Trouble> {
    let found = tables(session, publication).await?.into_iter().find(|table| table.span() == *span);
    let table = found.ok_or_else(|| {
        Trouble::lasting(Side::Source.unfit(), format!("publication {publication:?} has no table {span}"))
    })?;
    match table.unfit() {
        Some(why) => Err(Trouble::lasting(Side::Source.unfit(), why)),
        None if !table.may_select => Err(no_select(&[&table])),
        None => Ok(table),
    }
}

fn no_select(tables: &[&Table]) -> Trouble {
    let names: Vec<String> =
        tables.iter().map(|t| super::names::quoted_table(&t.shape.schema, &t.shape.table)).collect();
    let mut schemas: Vec<String> = tables.iter().map(|table| quoted(&table.shape.schema)).collect();
    schemas.dedup();
    Trouble::lasting(
        Side::Source.unfit(),
        format!(
            "the user may not read {}: GRANT USAGE ON SCHEMA {} and GRANT SELECT ON these tables to it",
            names.join(", "),
            schemas.join(", ")
        ),
    )
}

/// The look of the trigger dispatcher, and its preflight.
pub async fn look(session: &Session, feed: &FeedName, publication: &str) -> Result<Outlook, Trouble> {
    let unfit = |why: String| Trouble::lasting(Side::Source.unfit(), why);
    let version = version(session).await?;
    if version < VERSION_LEAST {
        return Err(unfit(format!("PostgreSQL 13 or newer is needed, this is {}", version / 10_000)));
    }
    let mut warnings = settings(session, publication).await?;
    let all = tables(session, publication).await?;
    if all.is_empty() {
        warnings.push(format!("publication {publication:?} has no tables"));
    }
    warnings.extend(all.iter().filter_map(Table::unfit).map(|why| format!("left out: {why}")));
    let fit: Vec<&Table> = all.iter().filter(|table| table.unfit().is_none()).collect();
    if fit.is_empty() && !all.is_empty() {
        return Err(unfit(warnings.join("; ")));
    }
    let hidden: Vec<&Table> = fit.iter().filter(|table| !table.may_select).copied().collect();
    if !hidden.is_empty() {
        return Err(no_select(&hidden));
    }
    let spans: Vec<SpanName> = fit.iter().map(|table| table.span()).collect();
    let held_back = room(session, feed, &spans).await?;
    Ok(Outlook { spans, held_back, warnings, mark: None })
}

/// What the server, the user and the publication must be like. Gives warnings.
async fn settings(session: &Session, publication: &str) -> Result<Vec<String>, Trouble> {
    let unfit = |why: String| Trouble::lasting(Side::Source.unfit(), why);
    let sql = "SELECT current_setting('wal_level'), current_user::text, pg_is_in_recovery(),
                      r.rolsuper OR r.rolreplication OR EXISTS (
                          SELECT FROM pg_roles g
                          WHERE g.rolname IN ('rds_replication', 'azure_pg_admin', 'cloudsqlsuperuser')
                            AND pg_has_role(current_user, g.oid, 'MEMBER')),
                      p.oid IS NOT NULL,
                      COALESCE(p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, false)
               FROM pg_roles r LEFT JOIN pg_publication p ON p.pubname = $1
               WHERE r.rolname = current_user";
    let row = session.client.query_one(sql, &[&publication]).await;
    let row = row.map_err(|error| trouble(Side::Source, "reading the settings", &error))?;
    let (level, user): (String, String) = (row.get(0), row.get(1));
    if row.get(2) {
        return Err(unfit("this server is a standby: name the primary".to_owned()));
    }
    if level != "logical" {
        return Err(unfit(format!(
            "wal_level is {level}: ALTER SYSTEM SET wal_level = logical, then restart the server"
        )));
    }
    if !row.get::<_, bool>(3) {
        return Err(unfit(format!(
            "user {user:?} may not replicate: ALTER ROLE {} REPLICATION (on RDS: GRANT rds_replication TO it)",
            quoted(&user)
        )));
    }
    if !row.get::<_, bool>(4) {
        return Err(unfit(format!(
            "there is no publication {publication:?} in this database: CREATE PUBLICATION {} FOR TABLE …",
            quoted(publication)
        )));
    }
    Ok(match row.get(5) {
        true => Vec::new(),
        false => vec![format!(
            "publication {publication:?} does not publish all of insert, update, delete and truncate: \
             what it leaves out does not reach the sink"
        )],
    })
}

/// Whether there are slots and senders enough; gives the bytes that our slots hold back.
async fn room(session: &Session, feed: &FeedName, spans: &[SpanName]) -> Result<Option<u64>, Trouble> {
    let sql = "SELECT s.slot_name::text, s.active,
                      pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::int8,
                      current_setting('max_replication_slots')::int8, current_setting('max_wal_senders')::int8,
                      (SELECT count(*) FROM pg_stat_replication)
               FROM (SELECT 1) one LEFT JOIN pg_replication_slots s ON true";
    let rows = session.client.query(sql, &[]).await;
    let rows = rows.map_err(|error| trouble(Side::Source, "reading the slots", &error))?;
    let prefix = slot_prefix(feed);
    let names: Vec<(String, bool)> =
        rows.iter().filter_map(|row| Some((row.get::<_, Option<String>>(0)?, row.get(1)))).collect();
    let held =
        rows.iter().filter(|row| row.get::<_, Option<String>>(0).is_some_and(|n| n.starts_with(&prefix)));
    let held = held.filter_map(|row| row.get::<_, Option<i64>>(2)).max();
    let Some(first) = rows.first() else { return Ok(None) };
    let (slots_max, senders_max, senders): (i64, i64, i64) = (first.get(3), first.get(4), first.get(5));
    let wanted: Vec<String> = spans.iter().map(|span| slot_name(feed, span)).collect();
    let count = |there: &dyn Fn(&String) -> bool| wanted.iter().filter(|name| !there(name)).count() as i64;
    let slots_needed = count(&|name| names.iter().any(|(slot, _)| slot == name));
    let senders_needed = count(&|name| names.iter().any(|(slot, active)| slot == name && *active));
    let checks = [
        ("max_replication_slots", "slots", slots_needed, slots_max, names.len() as i64),
        ("max_wal_senders", "senders", senders_needed, senders_max, senders),
    ];
    for (setting, what, needed, most, used) in checks {
        let free = most - used;
        if needed > free {
            return Err(Trouble::lasting(
                Side::Source.unfit(),
                format!(
                    "one replication slot and one sender per table: {needed} more {what} are needed, {free} of \
                     {most} are free: ALTER SYSTEM SET {setting} = {} or more, then restart the server",
                    used + needed
                ),
            ));
        }
    }
    Ok(held.map(|bytes| u64::try_from(bytes).unwrap_or(0)))
}
