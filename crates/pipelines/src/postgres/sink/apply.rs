//! Changes as few statements: per chunk, what becomes of each key in the end.
//!
//! Applied like that, rows that pass a unique value between them may meet in a way that they did not in the
//! source; and a row that does not fit takes its whole chunk with it. Then the chunk is undone and its
//! changes are applied one by one, in their order.

use std::collections::HashMap;
use std::error::Error as StdError;

use bytes::{BufMut, BytesMut};
use model::Code;
use tokio_postgres::Statement;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::super::connect::{Session, Side, Words, trouble};
use super::super::names::quoted;
use super::copy_in;
use super::table::Target;
use crate::change::{Cell, Change, Row};
use crate::contract::Trouble;

/// A text as it came; whether it is one is for the sink to say.
#[derive(Debug)]
struct Raw<'a>(&'a [u8]);

impl ToSql for Raw<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_slice(self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TEXT
    }

    to_sql_checked!();
}

/// What becomes of a key.
#[derive(Debug)]
enum End {
    Upsert(Row),
    /// Some cells are not known and stay as they are.
    Patch(Row),
    /// The same, and a row that is not there is made, with defaults for what is not known.
    Merge(Row),
    Delete(Row),
}

/// The ends of all keys of a chunk, in the order of their last change.
#[derive(Debug, Default)]
struct Ends {
    ends: Vec<Option<End>>,
    at: HashMap<Vec<u8>, usize>,
}

pub struct Statements {
    pub target: Target,
    keys: Vec<usize>,
    upsert: Option<Statement>,
    delete: Option<Statement>,
    /// By which cells are known.
    patches: HashMap<Vec<bool>, Statement>,
    merges: HashMap<Vec<bool>, Statement>,
}

fn known(row: &Row) -> Vec<bool> {
    row.iter().map(|cell| *cell != Cell::Unchanged).collect()
}

fn is_whole(row: &Row) -> bool {
    !row.contains(&Cell::Unchanged)
}

impl Statements {
    pub fn new(target: Target) -> Statements {
        let keys = target.shape.keys().map(|(at, _)| at).collect();
        Statements {
            target,
            keys,
            upsert: None,
            delete: None,
            patches: HashMap::new(),
            merges: HashMap::new(),
        }
    }

    /// Within a transaction. Afterwards either all of it is done or it failed.
    pub async fn apply(&mut self, session: &Session, changes: Vec<Change>) -> Result<(), Trouble> {
        session.run("writing", "SAVEPOINT chunk").await?;
        match self.apply_together(session, &changes).await {
            Ok(()) => return session.run("writing", "RELEASE SAVEPOINT chunk").await,
            Err(error) => match error.as_db_error().map(Words::from) {
                Some(words) if words.is_about_a_row() || words.code == "21000" => {}
                Some(_) | None => return Err(self.trouble(&error)),
            },
        }
        session.run("writing", "ROLLBACK TO SAVEPOINT chunk; RELEASE SAVEPOINT chunk").await?;
        for change in changes {
            session.run("writing", "SAVEPOINT one").await?;
            let one = std::slice::from_ref(&change);
            if let Err(error) = self.apply_together(session, one).await {
                return Err(self.refused(session, &change, &error).await);
            }
            session.run("writing", "RELEASE SAVEPOINT one").await?;
        }
        Ok(())
    }

    fn trouble(&self, error: &tokio_postgres::Error) -> Trouble {
        trouble(Side::Sink, &format!("writing to {}", self.target.name()), error)
    }

    /// Says which row it is, and which column.
    async fn refused(&self, session: &Session, change: &Change, error: &tokio_postgres::Error) -> Trouble {
        let Some(words) = error.as_db_error().map(Words::from) else { return self.trouble(error) };
        if !words.is_about_a_row() {
            return self.trouble(error);
        }
        let row = match change {
            Change::Insert { row } | Change::Update { row, .. } | Change::Merge { row } => Some(row),
            Change::Delete { key } => Some(key),
            Change::Truncate => None,
        };
        let mut column = words.column.clone();
        if let (None, Some(row)) = (&column, row) {
            column = self.column_refused(session, row).await;
        }
        let column = column.map(|column| format!(", column {column}")).unwrap_or_default();
        let key = row.map(|row| format!(", row {}", self.target.shape.key_words(row))).unwrap_or_default();
        Trouble::lasting(Code::RowRefused, format!("table {}{column}{key}: {words}", self.target.name()))
    }

    /// A failed cast does not name its column; a COPY of the same row does. It is undone with the rest.
    async fn column_refused(&self, session: &Session, row: &Row) -> Option<String> {
        session.client.batch_execute("ROLLBACK TO SAVEPOINT one").await.ok()?;
        let error = copy_in(session, &self.target, std::slice::from_ref(row)).await.err()?;
        error.as_db_error().map(Words::from).and_then(|words| column_in(&words))
    }

    async fn apply_together(
        &mut self,
        session: &Session,
        changes: &[Change],
    ) -> Result<(), tokio_postgres::Error> {
        // Inserts alone are of different keys.
        if changes.iter().all(|change| matches!(change, Change::Insert { .. })) {
            let rows = changes.iter().filter_map(|change| match change {
                Change::Insert { row } => Some(row),
                Change::Update { .. } | Change::Merge { .. } | Change::Delete { .. } | Change::Truncate => {
                    None
                }
            });
            return self.upsert(session, &rows.collect::<Vec<_>>()).await;
        }
        let mut ends = Ends::default();
        for change in changes {
            match change {
                Change::Insert { row } => ends.set(self.key(row), End::Upsert(row.clone())),
                Change::Update { old_key: None, row } => ends.update(self.key(row), row.clone()),
                Change::Update { old_key: Some(old), row } => {
                    if let Some(row) = ends.moved(&self.key(old), row.clone()) {
                        ends.set(self.key(old), End::Delete(old.clone()));
                        ends.set(self.key(&row), End::Upsert(row));
                    } else {
                        // What the source did not send is only in the old row: it must stay one row.
                        self.finish(session, std::mem::take(&mut ends)).await?;
                        self.patch(session, &[(old, row)]).await?;
                    }
                }
                Change::Merge { row } => {
                    let key = self.key(row);
                    if matches!(ends.before(&key), Some(End::Delete(_))) {
                        // Nothing of the row that goes may be found in the one that comes.
                        self.finish(session, std::mem::take(&mut ends)).await?;
                    }
                    ends.merge(key, row.clone());
                }
                Change::Delete { key } => ends.set(self.key(key), End::Delete(key.clone())),
                Change::Truncate => {
                    ends = Ends::default();
                    empty(session, &self.target).await?;
                }
            }
        }
        self.finish(session, ends).await
    }

    fn key(&self, row: &Row) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.keys.len() * 12);
        for at in &self.keys {
            match &row[*at] {
                Cell::Text(text) => {
                    key.extend((text.len() as u32).to_be_bytes());
                    key.extend_from_slice(text);
                }
                Cell::Null | Cell::Unchanged => key.extend(u32::MAX.to_be_bytes()),
            }
        }
        key
    }

    /// Deletes come first: they free the values that others take.
    async fn finish(&mut self, session: &Session, ends: Ends) -> Result<(), tokio_postgres::Error> {
        let (mut upserts, mut deletes) = (Vec::new(), Vec::new());
        let mut patches: HashMap<Vec<bool>, Vec<(&Row, &Row)>> = HashMap::new();
        let mut merges: HashMap<Vec<bool>, Vec<&Row>> = HashMap::new();
        for end in ends.ends.iter().flatten() {
            match end {
                End::Upsert(row) => upserts.push(row),
                End::Delete(key) => deletes.push(key),
                End::Patch(row) => patches.entry(known(row)).or_default().push((row, row)),
                End::Merge(row) => merges.entry(known(row)).or_default().push(row),
            }
        }
        self.delete(session, &deletes).await?;
        self.upsert(session, &upserts).await?;
        for rows in patches.values() {
            self.patch(session, rows).await?;
        }
        for (known, rows) in &merges {
            self.merge(session, known, rows).await?;
        }
        Ok(())
    }

    async fn upsert(&mut self, session: &Session, rows: &[&Row]) -> Result<(), tokio_postgres::Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let statement = match &self.upsert {
            Some(statement) => statement.clone(),
            None => self.upsert.insert(session.client.prepare(&upsert_sql(&self.target)).await?).clone(),
        };
        let columns = 0..self.target.shape.columns.len();
        execute(session, &statement, columns.map(|at| cells(rows.iter().copied(), at))).await
    }

    async fn delete(&mut self, session: &Session, keys: &[&Row]) -> Result<(), tokio_postgres::Error> {
        if keys.is_empty() {
            return Ok(());
        }
        let statement = match &self.delete {
            Some(statement) => statement.clone(),
            None => {
                let sql = delete_sql(&self.target, &self.keys);
                self.delete.insert(session.client.prepare(&sql).await?).clone()
            }
        };
        execute(session, &statement, self.keys.iter().map(|at| cells(keys.iter().copied(), *at))).await
    }

    /// Sets the known cells of rows that are found by the key before. All know the same cells.
    async fn patch(&mut self, session: &Session, rows: &[(&Row, &Row)]) -> Result<(), tokio_postgres::Error> {
        let Some((_, first)) = rows.first() else { return Ok(()) };
        let known = known(first);
        let statement = match self.patches.get(&known) {
            Some(statement) => statement.clone(),
            None => {
                let sql = patch_sql(&self.target, &self.keys, &known);
                let statement = session.client.prepare(&sql).await?;
                self.patches.insert(known.clone(), statement.clone());
                statement
            }
        };
        let before = self.keys.iter().map(|at| cells(rows.iter().map(|(old, _)| *old), *at));
        let after = (0..known.len()).filter(|at| known[*at]);
        let after = after.map(|at| cells(rows.iter().map(|(_, row)| *row), at));
        execute(session, &statement, before.chain(after)).await
    }

    /// Writes the known cells of rows that may be there or not.
    async fn merge(
        &mut self,
        session: &Session,
        known: &[bool],
        rows: &[&Row],
    ) -> Result<(), tokio_postgres::Error> {
        let statement = match self.merges.get(known) {
            Some(statement) => statement.clone(),
            None => {
                let statement = session.client.prepare(&merge_sql(&self.target, known)).await?;
                self.merges.insert(known.to_vec(), statement.clone());
                statement
            }
        };
        let columns = (0..known.len()).filter(|at| known[*at]);
        execute(session, &statement, columns.map(|at| cells(rows.iter().copied(), at))).await
    }
}

impl End {
    fn merged(row: Row) -> End {
        if is_whole(&row) { End::Upsert(row) } else { End::Merge(row) }
    }
}

impl Ends {
    fn set(&mut self, key: Vec<u8>, end: End) {
        let next = self.ends.len();
        if let Some(before) = self.at.insert(key, next) {
            self.ends[before] = None;
        }
        self.ends.push(Some(end));
    }

    fn before(&self, key: &[u8]) -> Option<&End> {
        self.at.get(key).and_then(|at| self.ends[*at].as_ref())
    }

    /// A row under its old key. What it does not know is taken from what is pending for it.
    fn update(&mut self, key: Vec<u8>, row: Row) {
        let end = match (is_whole(&row), self.before(&key)) {
            (true, _) => End::Upsert(row),
            (false, Some(End::Upsert(before))) => End::Upsert(filled(row, before)),
            (false, Some(End::Patch(before))) => {
                let row = filled(row, before);
                if is_whole(&row) { End::Upsert(row) } else { End::Patch(row) }
            }
            (false, Some(End::Merge(before))) => End::merged(filled(row, before)),
            (false, Some(End::Delete(_)) | None) => End::Patch(row),
        };
        self.set(key, end);
    }

    /// What is known of a row that may be there or not.
    fn merge(&mut self, key: Vec<u8>, row: Row) {
        let end = match self.before(&key) {
            Some(End::Upsert(before)) => End::Upsert(filled(row, before)),
            Some(End::Patch(before) | End::Merge(before)) => End::merged(filled(row, before)),
            Some(End::Delete(_)) | None => End::merged(row),
        };
        self.set(key, end);
    }

    /// A row that leaves its old key, if all of it is known.
    fn moved(&self, old_key: &[u8], row: Row) -> Option<Row> {
        let row = match self.before(old_key) {
            Some(End::Upsert(before) | End::Patch(before) | End::Merge(before)) if !is_whole(&row) => {
                filled(row, before)
            }
            Some(_) | None => row,
        };
        is_whole(&row).then_some(row)
    }
}

fn filled(mut row: Row, from: &Row) -> Row {
    for (cell, before) in row.iter_mut().zip(from) {
        if *cell == Cell::Unchanged {
            *cell = before.clone();
        }
    }
    row
}

fn cells<'a>(rows: impl Iterator<Item = &'a Row>, at: usize) -> Vec<Option<Raw<'a>>> {
    let cell = |row: &'a Row| match &row[at] {
        Cell::Text(text) => Some(Raw(text)),
        Cell::Null | Cell::Unchanged => None,
    };
    rows.map(cell).collect()
}

async fn execute<'a>(
    session: &Session,
    statement: &Statement,
    columns: impl Iterator<Item = Vec<Option<Raw<'a>>>>,
) -> Result<(), tokio_postgres::Error> {
    let columns: Vec<Vec<Option<Raw<'_>>>> = columns.collect();
    let parameters: Vec<&(dyn ToSql + Sync)> = columns.iter().map(|c| c as &(dyn ToSql + Sync)).collect();
    session.client.execute(statement, &parameters).await.map(|_| ())
}

/// Removes all rows, in the quick way if the sink lets us: another table may refer to this one.
pub async fn empty(session: &Session, target: &Target) -> Result<(), tokio_postgres::Error> {
    let name = target.name();
    session.client.batch_execute("SAVEPOINT emptying").await?;
    if session.client.batch_execute(&format!("TRUNCATE {name}")).await.is_err() {
        session.client.batch_execute("ROLLBACK TO SAVEPOINT emptying").await?;
        session.client.batch_execute(&format!("DELETE FROM {name}")).await?;
    }
    session.client.batch_execute("RELEASE SAVEPOINT emptying").await
}

/// `unnest($1::text[], …) AS u(c1, …)`
fn unnested(count: usize) -> String {
    let arrays: Vec<String> = (1..=count).map(|n| format!("${n}::text[]")).collect();
    let names: Vec<String> = (1..=count).map(|n| format!("c{n}")).collect();
    format!("unnest({}) AS u({})", arrays.join(", "), names.join(", "))
}

fn column(target: &Target, at: usize) -> String {
    quoted(&target.shape.columns[at].name)
}

fn upsert_sql(target: &Target) -> String {
    let all: Vec<String> = (0..target.types.len()).map(|at| column(target, at)).collect();
    let values: Vec<String> = target.types.iter().enumerate().map(|(at, kind)| cast(at + 1, kind)).collect();
    let keys: Vec<String> = target.shape.keys().map(|(at, _)| column(target, at)).collect();
    let others = target.shape.columns.iter().filter(|column| !column.key);
    let sets: Vec<String> =
        others.map(|c| quoted(&c.name)).map(|name| format!("{name} = EXCLUDED.{name}")).collect();
    let action = match sets.is_empty() {
        true => "NOTHING".to_owned(),
        false => format!("UPDATE SET {}", sets.join(", ")),
    };
    format!(
        "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} ON CONFLICT ({}) DO {action}",
        target.name(),
        all.join(", "),
        values.join(", "),
        unnested(target.types.len()),
        keys.join(", ")
    )
}

fn cast(number: usize, kind: &str) -> String {
    format!("u.c{number}::{kind}")
}

fn by_key(target: &Target, keys: &[usize]) -> String {
    let equal =
        |(n, at): (usize, &usize)| format!("t.{} = {}", column(target, *at), cast(n + 1, &target.types[*at]));
    keys.iter().enumerate().map(equal).collect::<Vec<_>>().join(" AND ")
}

fn delete_sql(target: &Target, keys: &[usize]) -> String {
    format!("DELETE FROM {} t USING {} WHERE {}", target.name(), unnested(keys.len()), by_key(target, keys))
}

fn patch_sql(target: &Target, keys: &[usize], known: &[bool]) -> String {
    let set: Vec<usize> = (0..known.len()).filter(|at| known[*at]).collect();
    let sets = set
        .iter()
        .enumerate()
        .map(|(n, at)| format!("{} = {}", column(target, *at), cast(keys.len() + n + 1, &target.types[*at])));
    format!(
        "UPDATE {} t SET {} FROM {} WHERE {}",
        target.name(),
        sets.collect::<Vec<_>>().join(", "),
        unnested(keys.len() + set.len()),
        by_key(target, keys)
    )
}

/// Updates first: where a row is there, columns that it must have may be left out.
fn merge_sql(target: &Target, known: &[bool]) -> String {
    let name = target.name();
    let set: Vec<usize> = (0..known.len()).filter(|at| known[*at]).collect();
    let values =
        set.iter().enumerate().map(|(n, at)| format!("{} AS c{}", cast(n + 1, &target.types[*at]), n + 1));
    let values = values.collect::<Vec<_>>().join(", ");
    let numbered = |key: bool| {
        let of = set.iter().enumerate().filter(move |(_, at)| target.shape.columns[**at].key == key);
        of.map(|(n, at)| (n + 1, column(target, *at)))
    };
    let same = numbered(true).map(|(n, key)| format!("t.{key} = u.c{n}")).collect::<Vec<_>>().join(" AND ");
    let keys: Vec<String> = numbered(true).map(|(_, key)| key).collect();
    let sets: Vec<String> = numbered(false).map(|(n, other)| format!("{other} = u.c{n}")).collect();
    let excluded: Vec<String> =
        numbered(false).map(|(_, other)| format!("{other} = EXCLUDED.{other}")).collect();
    let (there, action) = match sets.is_empty() {
        true => (format!("SELECT {} FROM {name} t, u WHERE {same}", of_t(&keys)), "NOTHING".to_owned()),
        false => (
            format!("UPDATE {name} t SET {} FROM u WHERE {same} RETURNING {}", sets.join(", "), of_t(&keys)),
            format!("UPDATE SET {}", excluded.join(", ")),
        ),
    };
    let all: Vec<String> = set.iter().map(|at| column(target, *at)).collect();
    let cells: Vec<String> = (1..=set.len()).map(|n| format!("u.c{n}")).collect();
    format!(
        "WITH u AS MATERIALIZED (SELECT {values} FROM {}), t AS MATERIALIZED ({there})
         INSERT INTO {name} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM u
         WHERE NOT EXISTS (SELECT FROM t WHERE {same}) ON CONFLICT ({}) DO {action}",
        unnested(set.len()),
        all.join(", "),
        cells.join(", "),
        keys.join(", ")
    )
}

fn of_t(columns: &[String]) -> String {
    columns.iter().map(|column| format!("t.{column}")).collect::<Vec<_>>().join(", ")
}

/// The column that a COPY's error names: `COPY t, line 1, column v: "…"`.
pub fn column_in(words: &Words) -> Option<String> {
    let (_, rest) = words.context.as_ref()?.split_once(", column ")?;
    rest.split_once(':').map(|(column, _)| column.to_owned())
}
