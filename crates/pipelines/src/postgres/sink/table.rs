//! A table of the sink, and whether rows of a shape fit into it.

use std::sync::Arc;

use super::super::connect::{Session, Side, trouble};
use super::super::names::quoted_table;
use model::SpanName;

use crate::change::{Column, Shape};
use crate::contract::Trouble;

/// The table that a shape's rows go to. It has the same name as in the source.
#[derive(Clone, Debug)]
pub struct Target {
    pub shape: Arc<Shape>,
    /// Per column of the shape, the type that its text is cast to. Without length or precision: a cast
    /// would cut a value to it, an assignment refuses it.
    pub types: Vec<String>,
}

struct Found {
    name: String,
    kind: String,
    generated: bool,
    /// A row cannot be written without it.
    required: bool,
}

impl Target {
    pub fn name(&self) -> String {
        quoted_table(&self.shape.schema, &self.shape.table)
    }

    /// Looks at the table and says in which way it does not fit.
    pub async fn read(session: &Session, shape: &Arc<Shape>) -> Result<Target, Trouble> {
        let shown = format!("{}.{}", shape.schema, shape.table);
        let unfit = |why: String| Trouble::lasting(Side::Sink.unfit(), why);
        let found = columns(session, shape).await?;
        if found.is_empty() {
            return Err(unfit(format!(
                "table {shown} is missing in the sink: make it with the columns of the source's"
            )));
        }
        let mut types = Vec::new();
        for column in &shape.columns {
            match found.iter().find(|found| found.name == column.name) {
                None => {
                    return Err(unfit(format!(
                        "table {shown} of the sink has no column {:?}, which the source's has: add it",
                        column.name
                    )));
                }
                Some(found) if found.generated => {
                    return Err(unfit(format!(
                        "column {:?} of table {shown} is generated in the sink and not in the source",
                        column.name
                    )));
                }
                Some(found) => types.push(found.kind.clone()),
            }
        }
        let known = |name: &str| shape.columns.iter().any(|column| column.name == name);
        if let Some(extra) = found.iter().find(|found| found.required && !known(&found.name)) {
            return Err(unfit(format!(
                "column {:?} of table {shown} in the sink is NOT NULL without a default, and the source does \
                 not have it: give it a default or drop it",
                extra.name
            )));
        }
        if !has_key(session, shape).await? {
            let keys: Vec<&str> = shape.keys().map(|(_, column)| column.name.as_str()).collect();
            return Err(unfit(format!(
                "table {shown} of the sink has no primary key or unique index on ({}), by which rows are told \
                 apart: add one",
                keys.join(", ")
            )));
        }
        Ok(Target { shape: Arc::clone(shape), types })
    }
}

/// The table of the sink that is named as the span; `public` where the span names no schema. Columns that the
/// database fills in by itself are left out.
pub async fn shape_of(session: &Session, span: &SpanName) -> Result<Shape, Trouble> {
    let (schema, table) = span.as_str().split_once('.').unwrap_or(("public", span.as_str()));
    let sql = "SELECT a.attname::text, a.atttypid, coalesce(a.attnum = ANY(i.indkey::int2[]), false)
               FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
               JOIN pg_namespace n ON n.oid = c.relnamespace
               LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
               WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')
                 AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum";
    let rows = session.client.query(sql, &[&schema, &table]).await;
    let rows = rows.map_err(|error| trouble(Side::Sink, "reading the table's columns", &error))?;
    let column =
        |row: &tokio_postgres::Row| Column { name: row.get(0), type_oid: row.get(1), key: row.get(2) };
    let columns: Vec<Column> = rows.iter().map(column).collect();
    let shape = Shape { schema: schema.to_owned(), table: table.to_owned(), columns };
    let unfit =
        |why: &str| Trouble::lasting(Side::Sink.unfit(), format!("table {schema}.{table} of the sink {why}"));
    match shape.columns.is_empty() {
        true => Err(unfit("is missing: make it, with a primary key; its rows are the lines of the span")),
        false if shape.keys().next().is_none() => {
            Err(unfit("has no primary key, by which rows are told apart: add one"))
        }
        false => Ok(shape),
    }
}

async fn columns(session: &Session, shape: &Shape) -> Result<Vec<Found>, Trouble> {
    let sql = "SELECT a.attname::text, format_type(a.atttypid, -1), a.attgenerated <> '',
                      a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attgenerated = ''
               FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
               JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'f', 'v')
                 AND a.attnum > 0 AND NOT a.attisdropped";
    let rows = session.client.query(sql, &[&shape.schema, &shape.table]).await;
    let rows = rows.map_err(|error| trouble(Side::Sink, "reading the table's columns", &error))?;
    let found = rows.iter().map(|row| Found {
        name: row.get(0),
        kind: row.get(1),
        generated: row.get(2),
        required: row.get(3),
    });
    Ok(found.collect())
}

/// A unique index on exactly the key's columns, which every row is in and which is checked at once.
async fn has_key(session: &Session, shape: &Shape) -> Result<bool, Trouble> {
    let mut keys: Vec<&str> = shape.keys().map(|(_, column)| column.name.as_str()).collect();
    keys.sort_unstable();
    let sql = "SELECT EXISTS (
                   SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
                   JOIN pg_namespace n ON n.oid = c.relnamespace
                   WHERE n.nspname = $1 AND c.relname = $2 AND i.indisunique AND i.indisvalid
                     AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
                     AND $3::text[] = (
                         SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE \"C\")
                         FROM pg_attribute a WHERE a.attrelid = c.oid
                           AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])))";
    let row = session.client.query_one(sql, &[&shape.schema, &shape.table, &keys]).await;
    row.map(|row| row.get(0)).map_err(|error| trouble(Side::Sink, "reading the table's keys", &error))
}
