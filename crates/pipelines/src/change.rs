//! What passes from a source to a sink: rows of one table as text, and what happened to them.

use bytes::Bytes;
use serde_json::{Map, Number, Value};

/// The columns of one table, as the source describes them at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    pub schema: String,
    pub table: String,
    pub columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// PostgreSQL's number of the type; zero where the source knows none. Only for rendering: a sink of
    /// tables goes by its own types.
    pub type_oid: u32,
    /// Part of what tells rows apart.
    pub key: bool,
}

/// A value in its text form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Null,
    /// The source did not send it because the change left it as it was.
    Unchanged,
    Text(Bytes),
}

/// One cell per column of the shape. Where only a key is known, the others are null.
pub type Row = Vec<Cell>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Insert {
        row: Row,
    },
    Update {
        /// The key before, where it changed.
        old_key: Option<Row>,
        row: Row,
    },
    /// What is known of a row that may be there or not. The rest is left alone, or gets its default.
    Merge {
        row: Row,
    },
    Delete {
        key: Row,
    },
    Truncate,
}

/// Types whose text form is a JSON value of its own.
const BOOL: u32 = 16;
const INTEGERS: [u32; 4] = [20, 21, 23, 26];
const FLOATS: [u32; 2] = [700, 701];
const JSON: [u32; 2] = [114, 3802];

impl Cell {
    pub fn size(&self) -> usize {
        match self {
            Cell::Null | Cell::Unchanged => 0,
            Cell::Text(text) => text.len(),
        }
    }
}

impl Change {
    /// Bytes of values, as a measure of the memory it takes.
    pub fn size(&self) -> usize {
        let of = |row: &Row| row.iter().map(Cell::size).sum::<usize>() + 40 * row.len();
        match self {
            Change::Insert { row } | Change::Merge { row } => of(row),
            Change::Update { old_key, row } => of(row) + old_key.as_ref().map_or(0, of),
            Change::Delete { key } => of(key),
            Change::Truncate => 0,
        }
    }

    /// The key it was known by before, as JSON.
    pub fn key_json(&self, shape: &Shape) -> Option<Value> {
        let key = match self {
            Change::Insert { row } | Change::Update { old_key: None, row } | Change::Merge { row } => row,
            Change::Update { old_key: Some(key), .. } | Change::Delete { key } => key,
            Change::Truncate => return None,
        };
        Some(shape.object(key, |column| column.key))
    }

    /// For sinks of documents: `op`, the `key` it was known by before, the `columns` it has since. Columns
    /// that the change left alone and the source did not send are left out.
    pub fn to_json(&self, shape: &Shape) -> Value {
        let mut out = Map::new();
        let (op, row) = match self {
            Change::Insert { row } => ("insert", Some(row)),
            Change::Update { row, .. } => ("update", Some(row)),
            Change::Merge { row } => ("merge", Some(row)),
            Change::Delete { .. } => ("delete", None),
            Change::Truncate => ("truncate", None),
        };
        out.insert("op".to_owned(), Value::from(op));
        if let Some(key) = self.key_json(shape) {
            out.insert("key".to_owned(), key);
        }
        if let Some(row) = row {
            out.insert("columns".to_owned(), shape.object(row, |_| true));
        }
        Value::Object(out)
    }
}

impl Shape {
    pub fn keys(&self) -> impl Iterator<Item = (usize, &Column)> {
        self.columns.iter().enumerate().filter(|(_, column)| column.key)
    }

    /// `id=7, region=eu`, for messages.
    pub fn key_words(&self, row: &Row) -> String {
        let one = |(at, column): (usize, &Column)| match row.get(at) {
            Some(Cell::Text(text)) => format!("{}={}", column.name, String::from_utf8_lossy(text)),
            Some(Cell::Null | Cell::Unchanged) | None => format!("{}=null", column.name),
        };
        self.keys().map(one).collect::<Vec<_>>().join(", ")
    }

    fn object(&self, row: &Row, wanted: impl Fn(&Column) -> bool) -> Value {
        let cells = self.columns.iter().zip(row).filter(|(column, _)| wanted(column));
        let pair = |(column, cell): (&Column, &Cell)| {
            let value = match cell {
                Cell::Unchanged => return None,
                Cell::Null => Value::Null,
                Cell::Text(text) => json(column.type_oid, text),
            };
            Some((column.name.clone(), value))
        };
        Value::Object(cells.filter_map(pair).collect())
    }
}

fn json(type_oid: u32, text: &[u8]) -> Value {
    let text = String::from_utf8_lossy(text);
    let own = match type_oid {
        BOOL => Some(Value::from(text == "t")),
        oid if INTEGERS.contains(&oid) => text.parse::<i64>().ok().map(Value::from),
        // Infinity and NaN are no numbers in JSON.
        oid if FLOATS.contains(&oid) => {
            text.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number)
        }
        oid if JSON.contains(&oid) => serde_json::from_str(&text).ok(),
        _ => None,
    };
    own.unwrap_or_else(|| Value::from(text.into_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_as_json_has_numbers_where_the_source_has_and_leaves_out_what_it_does_not_know() {
        let column = |name: &str, type_oid, key| Column { name: name.to_owned(), type_oid, key };
        let columns = vec![
            column("id", 20, true),
            column("ok", BOOL, false),
            column("f", 701, false),
            column("exact", 1700, false),
            column("doc", 3802, false),
            column("big", 25, false),
        ];
        let shape = Shape { schema: "public".to_owned(), table: "t".to_owned(), columns };
        let text = |text: &'static str| Cell::Text(Bytes::from_static(text.as_bytes()));
        let row =
            vec![text("7"), text("t"), text("NaN"), text("1.50"), text("{\"a\": [1]}"), Cell::Unchanged];
        let mut old = vec![Cell::Null; 6];
        old[0] = text("6");
        let update = Change::Update { old_key: Some(old.clone()), row: row.clone() };
        let columns = json!({"id": 7, "ok": true, "f": "NaN", "exact": "1.50", "doc": {"a": [1]}});
        assert_eq!(update.to_json(&shape), json!({"op": "update", "key": {"id": 6}, "columns": columns}));
        let insert = Change::Insert { row };
        assert_eq!(insert.to_json(&shape), json!({"op": "insert", "key": {"id": 7}, "columns": columns}));
        let delete = Change::Delete { key: old };
        assert_eq!(delete.to_json(&shape), json!({"op": "delete", "key": {"id": 6}}));
        assert_eq!(Change::Truncate.to_json(&shape), json!({"op": "truncate"}));
    }
}
