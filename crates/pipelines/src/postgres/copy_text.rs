//! The text form of COPY: one line per row, tabs between values, `\N` for null.

use bytes::{BufMut, Bytes, BytesMut};

use crate::change::{Cell, Row};

/// Reads one line as the server sends it, with or without its end.
pub fn read(line: &Bytes) -> Row {
    let end = if line.last() == Some(&b'\n') { line.len() - 1 } else { line.len() };
    let mut row = Vec::new();
    let mut start = 0;
    for at in 0..=end {
        // A tab within a value travels as `\t`: a bare one always separates.
        if at == end || line[at] == b'\t' {
            row.push(value(line.slice(start..at)));
            start = at + 1;
        }
    }
    row
}

fn value(raw: Bytes) -> Cell {
    if raw.as_ref() == b"\\N" {
        return Cell::Null;
    }
    if !raw.contains(&b'\\') {
        return Cell::Text(raw);
    }
    let mut out = BytesMut::with_capacity(raw.len());
    let mut bytes = raw.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.put_u8(byte);
            continue;
        }
        match bytes.next() {
            Some(b'b') => out.put_u8(8),
            Some(b'f') => out.put_u8(12),
            Some(b'n') => out.put_u8(b'\n'),
            Some(b'r') => out.put_u8(b'\r'),
            Some(b't') => out.put_u8(b'\t'),
            Some(b'v') => out.put_u8(11),
            Some(other) => out.put_u8(other),
            None => out.put_u8(b'\\'),
        }
    }
    Cell::Text(out.freeze())
}

/// Writes one line. A value that was not sent is written as null.
pub fn write(row: &[Cell], out: &mut BytesMut) {
    for (at, cell) in row.iter().enumerate() {
        if at > 0 {
            out.put_u8(b'\t');
        }
        match cell {
            Cell::Null | Cell::Unchanged => out.put_slice(b"\\N"),
            Cell::Text(text) => escape(text, out),
        }
    }
    out.put_u8(b'\n');
}

fn escape(text: &[u8], out: &mut BytesMut) {
    let special = |byte: &u8| matches!(byte, b'\\' | b'\n' | b'\r' | b'\t');
    let mut rest = text;
    while let Some(at) = rest.iter().position(special) {
        out.put_slice(&rest[..at]);
        out.put_slice(match rest[at] {
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            _ => b"\\\\",
        });
        rest = &rest[at + 1..];
    }
    out.put_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_as_written() {
        let texts: [&[u8]; 8] =
            [b"", b"plain", b"\\N", b"a\tb\nc\rd\\", b"\\", b"\x08\x0c\x0b", "ü☃".as_bytes(), b"\\.\n"];
        let mut row: Row = texts.iter().map(|text| Cell::Text(Bytes::copy_from_slice(text))).collect();
        row.insert(3, Cell::Null);
        let mut line = BytesMut::new();
        write(&row, &mut line);
        assert_eq!(read(&line.freeze()), row);
    }
}
