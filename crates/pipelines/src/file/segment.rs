//! A segment: its name, its header, its lines, and how much of it is valid.
//!
//! ```text
//! {"tidegate_segment":1,"feed":"orders","span":"a","epoch":4294967298,"at":1760000000000,
//!  "after":{"epoch":4294967297,"bytes":5120,"position":812}}          (one line)
//! {"position":829,"row":{"id":1}}
//! {"position":840,"row":"plain text"}
//! {"position":912,"only_position":true,"row":null}        (no row: the span is this far)
//! ```

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use model::SpanEpoch;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::trouble;
use crate::Trouble;
use crate::rows::Row;
use model::Code;

pub const VERSION: u32 = 1;

/// Written at once, before it is made durable. Also how far from its end a segment may be damaged by a
/// power cut: everything before the last write was durable.
pub const WRITE_BYTES: usize = 256 << 10;

/// More of a segment's end than this is not held in memory.
const WINDOW_MAX: u64 = 64 << 20;

/// Longer first lines are not ours.
const HEADER_BYTES_MAX: u64 = 64 << 10;

const SEGMENT: &str = ".ndjson";
const CLAIM: &str = ".claim";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of this layout.
    pub tidegate_segment: u32,
    pub feed: String,
    pub span: String,
    pub epoch: u64,
    /// What the epoch before it had reported as done, for whoever starts without being told.
    pub at: u64,
    /// `None`: the first segment of its span.
    pub after: Option<After>,
}

/// How much of the segment before counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct After {
    pub epoch: u64,
    pub bytes: u64,
    /// Of its last row, or of the last one before it.
    pub position: Option<u64>,
}

/// One row as it stands in a segment.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line<'a> {
    pub position: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Not a row: nothing of the span was between the line before and this position.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_position: bool,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a RawValue>,
    #[serde(borrow)]
    pub row: &'a RawValue,
}

/// How far a segment can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    pub bytes: u64,
    pub position: Option<u64>,
    /// Where the lines begin that were looked at to find out. What is before them was durable.
    pub seen_from: u64,
    /// There is no row that counts.
    pub is_empty: bool,
}

/// Which epochs have left something in a span's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Sorted.
    pub segments: Vec<u64>,
    /// Sorted.
    pub claims: Vec<u64>,
}

impl Listing {
    pub fn of(dir: &Path) -> Result<Listing, Trouble> {
        let fail = |e: io::Error| trouble("listing", dir, &e);
        let mut listing = Listing::default();
        for entry in std::fs::read_dir(dir).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            let Some(name) = name.to_str() else { continue };
            if let Some(epoch) = name.strip_suffix(SEGMENT).and_then(epoch_of) {
                listing.segments.push(epoch);
            } else if let Some(epoch) = name.strip_suffix(CLAIM).and_then(epoch_of) {
                listing.claims.push(epoch);
            }
        }
        listing.segments.sort_unstable();
        listing.claims.sort_unstable();
        Ok(listing)
    }

    pub fn highest(&self) -> Option<u64> {
        self.segments.last().copied().max(self.claims.last().copied())
    }
}

fn epoch_of(name: &str) -> Option<u64> {
    match name.len() == 16 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        true => u64::from_str_radix(name, 16).ok(),
        false => None,
    }
}

pub fn segment_path(dir: &Path, epoch: u64) -> PathBuf {
    dir.join(format!("{epoch:016x}{SEGMENT}"))
}

pub fn temporary_path(dir: &Path, epoch: u64) -> PathBuf {
    dir.join(format!("{epoch:016x}{SEGMENT}.tmp"))
}

pub fn claim_path(dir: &Path, epoch: SpanEpoch) -> PathBuf {
    dir.join(format!("{:016x}{CLAIM}", epoch.0))
}

/// A line of its own: JSON has no bare newlines.
pub fn line_of(row: &Row) -> Result<Vec<u8>, serde_json::Error> {
    let line = Line {
        position: row.position,
        more: row.more,
        only_position: false,
        key: row.key.as_deref(),
        row: row.value.as_ref(),
    };
    let mut bytes = serde_json::to_vec(&line)?;
    // A raw value may be spread over lines by whoever made it. Between tokens a space is as good, and
    // within a string there is no bare one.
    bytes.iter_mut().filter(|byte| matches!(**byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    bytes.push(b'\n');
    Ok(bytes)
}

pub fn position_line(position: u64) -> Result<Vec<u8>, serde_json::Error> {
    let line = Line { position, more: false, only_position: true, key: None, row: RawValue::NULL };
    let mut bytes = serde_json::to_vec(&line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The header and its length, newline included.
pub fn header_of(path: &Path, file: &File) -> Result<(Header, u64), Trouble> {
    let strange = |why: &str| {
        Trouble::lasting(Code::SinkUnfit, format!("{} is not a segment of a feed: {why}", path.display()))
    };
    let mut line = Vec::new();
    let mut start = BufReader::new(At { file, offset: 0 }).take(HEADER_BYTES_MAX);
    start.read_until(b'\n', &mut line).map_err(|e| trouble("reading", path, &e))?;
    if line.last() != Some(&b'\n') {
        return Err(strange("its first line has no end"));
    }
    let header: Header = serde_json::from_slice(&line).map_err(|e| strange(&e.to_string()))?;
    match header.tidegate_segment {
        VERSION => Ok((header, line.len() as u64)),
        other => Err(strange(&format!("version {other} is not known here ({VERSION} is)"))),
    }
}

/// The valid end of a segment that has no successor yet: behind the last row that is whole.
///
/// Whatever was reported was durable before the next write began. So damage by a crash lies within the
/// last write: within the last [`WRITE_BYTES`], or within one row that is longer. Lines are read from
/// there on; the first that is no row ends what is valid, even if rows follow it (blocks reach a disk in
/// any order). Rows that wait for others of their position do not count either.
pub fn tail_of(path: &Path, file: &File) -> Result<(Header, Tail), Trouble> {
    let fail = |e: io::Error| trouble("reading", path, &e);
    let (header, first) = header_of(path, file)?;
    let position = header.after.and_then(|after| after.position);
    let none = Tail { bytes: first, position, seen_from: first, is_empty: true };
    let length = file.metadata().map_err(fail)?.len();
    let mut window = WRITE_BYTES as u64 + 1;
    loop {
        if window > WINDOW_MAX && window < length {
            return Ok((header, scan(path, file, first)?.unwrap_or(none)));
        }
        let begin = length.saturating_sub(window).max(first);
        let mut bytes = vec![0; usize::try_from(length.saturating_sub(begin)).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, begin).map_err(fail)?;
        let skip = match begin == first {
            true => Some(0),
            // The window may begin within a row. Its first newline is at the end of that one.
            false => bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1),
        };
        let found = skip.and_then(|skip| last_whole(&bytes[skip..], begin + skip as u64));
        match found {
            Some(tail) => return Ok((header, tail)),
            None if begin == first => return Ok((header, none)),
            None => window = window.saturating_mul(2),
        }
    }
}

/// The same from the first row on, for where the rows at the end that wait for others are too many to hold.
/// What is found is far from the end, and was durable.
fn scan(path: &Path, file: &File, first: u64) -> Result<Option<Tail>, Trouble> {
    let mut lines = BufReader::new(At { file, offset: first });
    let (mut found, mut end, mut highest, mut line) = (None, first, 0, Vec::new());
    loop {
        line.clear();
        let read = lines.read_until(b'\n', &mut line).map_err(|e| trouble("reading", path, &e))?;
        let whole = line.last() == Some(&b'\n');
        let row = serde_json::from_slice::<Line>(&line).ok().filter(|row| whole && row.position >= highest);
        let Some(row) = row else { return Ok(found) };
        (highest, end) = (row.position, end + read as u64);
        if !row.more {
            found = Some(Tail { bytes: end, position: Some(highest), seen_from: end, is_empty: false });
        }
    }
}

/// `offset` is where `bytes`, which begins with a line, stands in the file.
fn last_whole(bytes: &[u8], offset: u64) -> Option<Tail> {
    let (mut found, mut end, mut highest) = (None, offset, 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let whole = line.last() == Some(&b'\n');
        let Some(row) = serde_json::from_slice::<Line>(line).ok().filter(|_| whole) else { break };
        if row.position < highest {
            break;
        }
        highest = row.position;
        end += line.len() as u64;
        if !row.more {
            found =
                Some(Tail { bytes: end, position: Some(row.position), seen_from: offset, is_empty: false });
        }
    }
    found
}

/// Reads a file from a place of its own, whatever else reads it.
pub struct At<'a> {
    pub file: &'a File,
    pub offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const HEADER: &str = r#"{"tidegate_segment":1,"feed":"f","span":"s","epoch":7,"at":5,"after":null}"#;

    /// The valid length without the header, and the position there.
    fn tail(lines: &[u8]) -> (u64, Option<u64>) {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(HEADER.as_bytes()).and_then(|()| file.write_all(b"\n")).expect("written");
        file.write_all(lines).expect("written");
        let (_, tail) = tail_of(Path::new("here"), &file).expect("it is a segment");
        (tail.bytes - HEADER.len() as u64 - 1, tail.position)
    }

    fn line(position: u64, more: bool, size: usize) -> Vec<u8> {
        let value = serde_json::value::to_raw_value(&"x".repeat(size)).expect("a string");
        line_of(&Row { position, key: None, value, more }).expect("it is a row")
    }

    #[test]
    fn a_segment_is_valid_up_to_its_last_whole_row() {
        let rows = [line(10, false, 3), line(20, false, 3)].concat();
        let all = (rows.len() as u64, Some(20));
        assert_eq!(tail(&rows), all);
        for torn in 1..rows.len() / 2 {
            let cut = [&rows[..], &rows[..torn]].concat();
            assert_eq!(tail(&cut), all, "{torn} bytes of a third row");
        }
        assert_eq!(tail(b""), (0, None));
        assert_eq!(tail(b"{\"position\":1"), (0, None));
    }

    #[test]
    fn rows_behind_a_hole_of_a_power_cut_do_not_count() {
        let rows = [line(10, false, 3), vec![0; 4096], line(20, false, 3), line(30, false, 3)].concat();
        assert_eq!(tail(&rows), (line(10, false, 3).len() as u64, Some(10)));
    }

    #[test]
    fn rows_that_wait_for_others_of_their_position_do_not_count() {
        let whole = line(10, false, 3);
        // More than is looked at first, so that it has to go further back.
        let open: Vec<u8> = (0..40).flat_map(|_| line(20, true, 20_000)).collect();
        assert!(open.len() > 2 * WRITE_BYTES);
        let rows = [&whole[..], &open[..]].concat();
        assert_eq!(tail(&rows), (whole.len() as u64, Some(10)));
        let closed = [&rows[..], &line(20, false, 1)[..]].concat();
        assert_eq!(tail(&closed), (closed.len() as u64, Some(20)));
    }

    #[test]
    fn a_row_longer_than_what_is_looked_at_first_is_found() {
        let rows = [line(10, false, 3), line(20, false, 3 * WRITE_BYTES)].concat();
        assert_eq!(tail(&rows), (rows.len() as u64, Some(20)));
        assert_eq!(tail(&rows[..rows.len() - 1]).1, Some(10));
    }
}
