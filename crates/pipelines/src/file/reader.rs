//! Reading what a feed has written: the rows of a span, once each, in order.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Take};
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

use super::segment::{Line, Listing, header_of, segment_path, tail_of};
use crate::Trouble;
use crate::rows::Row;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Trouble(#[from] Trouble),
    #[error("reading {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: the line that ends at byte {end} is no row: {why}")]
    NoRow { path: PathBuf, end: u64, why: String },
    #[error("{path}: is {length} bytes long, and its successor counts on {expected}")]
    Short { path: PathBuf, length: u64, expected: u64 },
}

/// The rows of a span as they are at this moment, in the order of the source, each exactly once. `dir` is
/// `PATH/FEED/SPAN`. Rows that come while they are read are not among them.
pub fn read(dir: &Path) -> Result<Rows, ReadError> {
    for _ in 0..TRIES {
        match read_once(dir) {
            // Segments without rows go when their span is taken over; the next listing is without them.
            Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
    }
    read_once(dir)
}

/// How often segments may vanish under a reader before it is taken for damage.
const TRIES: u32 = 5;

fn read_once(dir: &Path) -> Result<Rows, ReadError> {
    let mut parts = Vec::new();
    let mut next = Listing::of(dir)?.segments.last().map(|epoch| (*epoch, None));
    while let Some((epoch, counts)) = next {
        let path = segment_path(dir, epoch);
        let fail = |source| ReadError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(fail)?;
        let (header, first) = header_of(&path, &file)?;
        let end = match counts {
            Some(bytes) => bytes,
            None => tail_of(&path, &file)?.1.bytes,
        };
        let length = file.metadata().map_err(fail)?.len();
        if length < end {
            return Err(ReadError::Short { path, length, expected: end });
        }
        next = header.after.map(|after| (after.epoch, Some(after.bytes)));
        parts.push(Part { path, file, first, end });
    }
    Ok(Rows { parts, current: None })
}

/// Of one segment, what counts.
struct Part {
    path: PathBuf,
    file: File,
    first: u64,
    end: u64,
}

/// An iterator over rows. It ends after the first error.
pub struct Rows {
    /// The latest first.
    parts: Vec<Part>,
    current: Option<Current>,
}

struct Current {
    path: PathBuf,
    lines: Take<BufReader<File>>,
    at: u64,
}

impl Rows {
    fn step(&mut self) -> Result<Option<Row>, ReadError> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(part) = self.parts.pop() else { return Ok(None) };
                self.current = Some(part.open()?);
                continue;
            };
            match current.step()? {
                Some(row) => return Ok(Some(row)),
                None => self.current = None,
            }
        }
    }
}

impl Iterator for Rows {
    type Item = Result<Row, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            (self.parts, self.current) = (Vec::new(), None);
        }
        step.transpose()
    }
}

impl Part {
    fn open(self) -> Result<Current, ReadError> {
        let Part { path, mut file, first, end } = self;
        if let Err(source) = file.seek(SeekFrom::Start(first)) {
            return Err(ReadError::Io { path, source });
        }
        Ok(Current { path, lines: BufReader::new(file).take(end.saturating_sub(first)), at: first })
    }
}

impl Current {
    fn step(&mut self) -> Result<Option<Row>, ReadError> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let read = self.lines.read_until(b'\n', &mut bytes);
            let read = read.map_err(|source| ReadError::Io { path: self.path.clone(), source })?;
            if read == 0 {
                return Ok(None);
            }
            self.at += read as u64;
            let line: Line = serde_json::from_slice(&bytes).map_err(|e| ReadError::NoRow {
                path: self.path.clone(),
                end: self.at,
                why: e.to_string(),
            })?;
            if !line.only_position {
                return Ok(Some(Row {
                    position: line.position,
                    key: line.key.map(RawValue::to_owned),
                    value: line.row.to_owned(),
                    more: line.more,
                }));
            }
        }
    }
}
