//! The messages of the output plugin `pgoutput`, version 1.

use bytes::{Buf, Bytes};

use crate::change::{Cell, Row};

#[derive(Debug, PartialEq, Eq)]
pub enum Logical {
    Begin,
    Commit {
        /// The end of the commit record: where to go on from.
        end: u64,
        /// Microseconds since 2000.
        time: i64,
    },
    Relation(Relation),
    Insert {
        relation: u32,
        row: Row,
    },
    Update {
        relation: u32,
        /// The key alone, or with `REPLICA IDENTITY FULL` the whole row before.
        old: Option<Row>,
        row: Row,
    },
    Delete {
        relation: u32,
        old: Row,
    },
    Truncate {
        relations: Vec<u32>,
    },
    /// Types, origins, messages: nothing that changes a row.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    pub id: u32,
    pub schema: String,
    pub table: String,
    /// As in `pg_class.relreplident`.
    pub identity: u8,
    /// Name, type and whether it belongs to the replica identity.
    pub columns: Vec<(String, u32, bool)>,
}

/// The bytes are not what the protocol says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the source's stream cannot be read: {0}")]
pub struct Garbled(&'static str);

/// Reads one message. Rows of relations that `wanted` does not want are not looked into.
pub fn decode(mut data: Bytes, wanted: impl Fn(u32) -> bool) -> Result<Logical, Garbled> {
    let tag = byte(&mut data)?;
    match tag {
        b'B' => Ok(Logical::Begin),
        b'C' => {
            need(&data, 25)?;
            data.advance(9);
            Ok(Logical::Commit { end: data.get_u64(), time: data.get_i64() })
        }
        b'R' => relation(&mut data).map(Logical::Relation),
        b'I' | b'U' | b'D' => {
            let relation = number(&mut data)?;
            match wanted(relation) {
                // Copied, lest a few rows of ours hold on to all that was read along with them.
                true => change(tag, relation, &mut Bytes::copy_from_slice(&data)),
                false => Ok(Logical::Other),
            }
        }
        b'T' => {
            let count = number(&mut data)? as usize;
            byte(&mut data)?;
            need(&data, count.checked_mul(4).ok_or(Garbled("too many tables in a truncate"))?)?;
            Ok(Logical::Truncate { relations: (0..count).map(|_| data.get_u32()).collect() })
        }
        _ => Ok(Logical::Other),
    }
}

fn change(tag: u8, relation: u32, data: &mut Bytes) -> Result<Logical, Garbled> {
    let mut old = None;
    let mut part = byte(data)?;
    if matches!(part, b'K' | b'O') {
        old = Some(tuple(data)?);
        if tag == b'D' {
            return old.map(|old| Logical::Delete { relation, old }).ok_or(Garbled("a delete without a key"));
        }
        part = byte(data)?;
    }
    if part != b'N' {
        return Err(Garbled("a change without a row"));
    }
    let row = tuple(data)?;
    match tag {
        b'I' => Ok(Logical::Insert { relation, row }),
        b'U' => Ok(Logical::Update { relation, old, row }),
        _ => Err(Garbled("a delete with a row")),
    }
}

fn tuple(data: &mut Bytes) -> Result<Row, Garbled> {
    need(data, 2)?;
    let count = data.get_u16() as usize;
    // Each value takes a byte at least: a count alone makes nobody hold memory.
    let mut row = Vec::with_capacity(count.min(data.remaining()));
    for _ in 0..count {
        row.push(match byte(data)? {
            b'n' => Cell::Null,
            b'u' => Cell::Unchanged,
            b't' => {
                let length = number(data)? as usize;
                need(data, length)?;
                Cell::Text(data.split_to(length))
            }
            _ => return Err(Garbled("a value of no known kind")),
        });
    }
    Ok(row)
}

fn relation(data: &mut Bytes) -> Result<Relation, Garbled> {
    let id = number(data)?;
    let schema = text(data)?;
    // The system's own schema travels as an empty name.
    let schema = if schema.is_empty() { "pg_catalog".to_owned() } else { schema };
    let table = text(data)?;
    let identity = byte(data)?;
    need(data, 2)?;
    let count = data.get_u16();
    let mut columns = Vec::with_capacity(usize::from(count).min(data.remaining()));
    for _ in 0..count {
        let key = byte(data)? & 1 == 1;
        let name = text(data)?;
        need(data, 8)?;
        let type_oid = data.get_u32();
        data.advance(4);
        columns.push((name, type_oid, key));
    }
    Ok(Relation { id, schema, table, identity, columns })
}

fn need(data: &Bytes, bytes: usize) -> Result<(), Garbled> {
    if data.remaining() < bytes { Err(Garbled("a message ends too early")) } else { Ok(()) }
}

fn byte(data: &mut Bytes) -> Result<u8, Garbled> {
    need(data, 1)?;
    Ok(data.get_u8())
}

fn number(data: &mut Bytes) -> Result<u32, Garbled> {
    need(data, 4)?;
    Ok(data.get_u32())
}

fn text(data: &mut Bytes) -> Result<String, Garbled> {
    let end = data.iter().position(|byte| *byte == 0).ok_or(Garbled("a name without end"))?;
    let name = data.split_to(end);
    data.advance(1);
    String::from_utf8(name.to_vec()).map_err(|_| Garbled("a name that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_too_early_is_an_error_and_never_a_panic() {
        let mut whole = b"U\0\0\0\x07K\0\x02t\0\0\0\x01an".to_vec();
        whole.extend(b"N\0\x02t\0\0\0\x01bu");
        let all = decode(Bytes::from(whole.clone()), |_| true).expect("it is whole");
        let a = Cell::Text(Bytes::from_static(b"a"));
        let b = Cell::Text(Bytes::from_static(b"b"));
        let (old, row) = (Some(vec![a, Cell::Null]), vec![b, Cell::Unchanged]);
        assert_eq!(all, Logical::Update { relation: 7, old, row });
        for length in 1..whole.len() {
            let part = Bytes::copy_from_slice(&whole[..length]);
            assert!(decode(part, |_| true).is_err(), "{length}");
        }
        assert_eq!(decode(Bytes::from(whole), |_| false), Ok(Logical::Other));
        assert!(decode(Bytes::from_static(b"T\xff\xff\xff\xff\0"), |_| true).is_err());
    }
}
