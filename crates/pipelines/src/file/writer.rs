//! Writing a span, and taking it over from whoever wrote it before.
//!
//! Taking over, in this order:
//!
//! 1. [`Claim::raise`]: `<epoch>.claim` is there, durable. From here on no lower epoch reports anything.
//! 2. [`Claim::measure`]: how much of the highest lower segment is whole.
//! 3. [`Measured::publish`]: a segment whose header says so, under its name by one rename.
//!
//! 4. [`Writer::confirm`], then [`Writer::tidy`]: segments without rows, which spans that are moved while they
//!    are idle would leave behind without end, are skipped by the header of the next and removed. Removing
//!    comes after a look for higher claims that comes after publishing: whoever claims later than that
//!    look lists the directory later still, finds this segment, and has no use for those below it.
//!
//! A crash after any of these leaves a claim that nobody owns, or a segment without rows; the next epoch
//! goes over both.
//!
//! Writing a batch: look whether a higher epoch claims the span; write; make it durable; *look again*; only
//! then it may be reported. The second look is what the order above relies on. A predecessor that finds no
//! higher claim after its rows were durable had them durable before the claim was there, hence before
//! the successor measured, hence they are within what the successor's header calls valid. One whose rows
//! came later finds the claim, and reports nothing; whether its rows are in the header or not, the
//! successor goes on from exactly the last one that is. Looking only before the write would not do:
//! the successor could claim, measure and publish between that look and the write.
//!
//! The claim is there so that measuring comes *after* the fence. Without it, with the segment itself as
//! the fence, a predecessor could write, look and report between the successor's measuring and its
//! rename, and what it reported would be left out.
//!
//! Within one epoch there may be two writers: a dispatcher that was aborted while a thread of it wrote, and
//! its restart. The lock on the claim, which dies with its holder, keeps the second out until then.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use model::{Checkpoint, Code, SpanEpoch, Time};
use rustix::fs::{FlockOperation, flock};

use super::segment::{
    After, Header, Listing, Tail, VERSION, WRITE_BYTES, claim_path, line_of, position_line, segment_path,
    tail_of, temporary_path,
};
use super::{Place, sync_dir, trouble};
use crate::Trouble;
use crate::rows::{ROW_BYTES_MAX, Row};

/// The right to write a span with one epoch, as long as no higher one claims it.
pub struct Claim {
    place: Place,
    epoch: SpanEpoch,
    /// Locked.
    _lock: File,
}

impl Claim {
    pub fn raise(place: &Place, epoch: SpanEpoch) -> Result<Claim, Trouble> {
        let path = claim_path(&place.dir, epoch);
        // Looked at first, so that one that is out of date leaves nothing behind.
        fence(&place.dir, epoch)?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let lock = lock.map_err(|e| trouble("creating", &path, &e))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Trouble::passing(
                    Code::SinkUnreachable,
                    format!("{}: an earlier start with this epoch is still writing", path.display()),
                ));
            }
            Err(e) => return Err(trouble("locking", &path, &e.into())),
        }
        sync_dir(&place.dir).map_err(|e| trouble("syncing", &place.dir, &e))?;
        fence(&place.dir, epoch)?;
        Ok(Claim { place: place.clone(), epoch, _lock: lock })
    }

    pub fn measure(self) -> Result<Measured, Trouble> {
        let listing = Listing::of(&self.place.dir)?;
        let own = listing.segments.contains(&self.epoch.0);
        let before = listing.segments.iter().rev().find(|epoch| **epoch < self.epoch.0);
        let before = match before.filter(|_| !own) {
            Some(epoch) => self.measure_one(*epoch)?,
            None => Before::default(),
        };
        Ok(Measured { claim: self, own, before })
    }

    fn measure_one(&self, epoch: u64) -> Result<Before, Trouble> {
        let path = segment_path(&self.place.dir, epoch);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) => {
                // Only a higher epoch would have tidied it away.
                fence(&self.place.dir, self.epoch)?;
                return Err(trouble("opening", &path, &e));
            }
        };
        let (header, tail) = tail_of(&path, &file)?;
        self.belongs(&path, &header)?;
        if tail.is_empty {
            // What is before it was made durable by its own start.
            return Ok(Before { after: header.after, at: header.at, skipped: Some(epoch) });
        }
        settle(&path, &tail)?;
        let after = After { epoch, bytes: tail.bytes, position: tail.position };
        Ok(Before { after: Some(after), at: header.at, skipped: None })
    }

    fn belongs(&self, path: &Path, header: &Header) -> Result<(), Trouble> {
        match header.feed == self.place.feed.as_str() && header.span == self.place.span.as_str() {
            true => Ok(()),
            false => Err(Trouble::lasting(
                Code::SinkUnfit,
                format!("{} is of span {:?} of feed {:?}", path.display(), header.span, header.feed),
            )),
        }
    }
}

/// A claim that knows what is before it.
pub struct Measured {
    claim: Claim,
    /// This epoch has a segment already: it is started once more.
    own: bool,
    before: Before,
}

/// What is before a segment.
#[derive(Default)]
struct Before {
    after: Option<After>,
    /// What the one before it was told.
    at: u64,
    /// Without rows.
    skipped: Option<u64>,
}

impl Measured {
    pub fn publish(self, at: Time) -> Result<Writer, Trouble> {
        let (dir, epoch) = (self.claim.place.dir.clone(), self.claim.epoch);
        let writer = match self.own {
            true => self.open_again(at),
            false => self.create(at),
        };
        // Only a higher epoch would have tidied away what this one was about to use.
        writer.or_else(|trouble| fence(&dir, epoch).and(Err(trouble)))
    }

    fn create(self, at: Time) -> Result<Writer, Trouble> {
        let Measured { claim, before, .. } = self;
        let (dir, epoch) = (claim.place.dir.clone(), claim.epoch.0);
        let (after, at) = (before.after, Time(at.0.max(before.at)));
        let header = Header {
            tidegate_segment: VERSION,
            feed: claim.place.feed.to_string(),
            span: claim.place.span.to_string(),
            epoch,
            at: at.0,
            after,
        };
        let (temporary, path) = (temporary_path(&dir, epoch), segment_path(&dir, epoch));
        let fail = |e: io::Error| trouble("creating", &path, &e);
        let mut bytes = serde_json::to_vec(&header).map_err(|e| fail(e.into()))?;
        bytes.push(b'\n');
        let file = File::create(&temporary).map_err(fail)?;
        file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()).map_err(fail)?;
        std::fs::rename(&temporary, &path).and_then(|()| sync_dir(&dir)).map_err(fail)?;
        let bytes = bytes.len() as u64;
        let position = after.and_then(|after| after.position);
        let tail = Tail { bytes, position, seen_from: bytes, is_empty: true };
        Ok(Writer { skipped: before.skipped, ..Writer::new(claim, file, at, tail) })
    }

    /// The lock is ours, so nobody else writes this segment: what is not whole can go.
    fn open_again(self, at: Time) -> Result<Writer, Trouble> {
        let path = segment_path(&self.claim.place.dir, self.claim.epoch.0);
        let fail = |e: io::Error| trouble("opening", &path, &e);
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(fail)?;
        let (header, tail) = tail_of(&path, &file)?;
        self.claim.belongs(&path, &header)?;
        file.set_len(tail.bytes).map_err(fail)?;
        settle(&path, &tail)?;
        Ok(Writer::new(self.claim, file, Time(at.0.max(header.at)), tail))
    }
}

/// What a batch is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Confirm,
    Write,
    Sync,
}

/// One epoch's writer of a span. Each of its steps may block.
pub struct Writer {
    claim: Claim,
    file: File,
    /// As of the start.
    at: Time,
    /// What is written and durable.
    tail: Tail,
    /// A write began and did not end well: what is behind the tail is unknown.
    broken: bool,
    /// A segment without rows that this one's header passes over.
    skipped: Option<u64>,
    #[cfg(test)]
    meanwhile: Option<Box<dyn Fn(Step) + Send>>,
}

impl Writer {
    fn new(claim: Claim, file: File, at: Time, tail: Tail) -> Writer {
        Writer {
            claim,
            file,
            at,
            tail,
            broken: false,
            skipped: None,
            #[cfg(test)]
            meanwhile: None,
        }
    }

    /// How far the sink is; `None` if it holds nothing of the span.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        self.tail.position.map(|position| Checkpoint { position, at: self.at })
    }

    /// All steps of a batch, in their order.
    pub fn commit(&mut self, rows: &[Row]) -> Result<(), Trouble> {
        let mut lines = Vec::new();
        for row in rows {
            let line = self.line(row)?;
            if !lines.is_empty() && lines.len() + line.len() > WRITE_BYTES {
                self.append(&lines)?;
                lines.clear();
            }
            lines.extend(line);
        }
        if !lines.is_empty() {
            self.append(&lines)?;
        }
        if let Some(row) = rows.iter().rev().find(|row| !row.more) {
            self.tail.position = Some(row.position);
        }
        self.confirm()
    }

    /// A line that says how far the span is, and no more.
    pub fn advance(&mut self, position: u64) -> Result<(), Trouble> {
        let line = position_line(position).map_err(|e| {
            let path = segment_path(&self.claim.place.dir, self.claim.epoch.0);
            trouble("writing", &path, &e.into())
        })?;
        self.append(&line)?;
        self.tail.position = Some(position);
        self.confirm()
    }

    /// One write, durable. What a failed one leaves is not cut off here: a successor may have measured it.
    /// Whoever starts next decides how much of it counts.
    fn append(&mut self, lines: &[u8]) -> Result<(), Trouble> {
        self.confirm()?;
        let result = match std::mem::replace(&mut self.broken, true) {
            true => Err(io::Error::other("an earlier write failed")),
            false => self.write(lines).and_then(|()| self.sync()),
        };
        let path = || segment_path(&self.claim.place.dir, self.claim.epoch.0);
        result.map_err(|e| trouble("writing", &path(), &e))?;
        self.broken = false;
        self.tail.bytes += lines.len() as u64;
        Ok(())
    }

    fn line(&self, row: &Row) -> Result<Vec<u8>, Trouble> {
        let refused = |why: String| {
            let span = &self.claim.place.span;
            Trouble::lasting(Code::RowRefused, format!("the row of {span} at {}: {why}", row.position))
        };
        let line = line_of(row).map_err(|e| refused(e.to_string()))?;
        // Control characters make six bytes of one, so the line of a row that was accepted may be longer.
        match line.len() <= 8 * ROW_BYTES_MAX {
            true => Ok(line),
            false => Err(refused(format!("{} bytes are too long", line.len()))),
        }
    }

    fn write(&self, lines: &[u8]) -> io::Result<()> {
        self.before(Step::Write);
        self.file.write_all_at(lines, self.tail.bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.before(Step::Sync);
        self.file.sync_data()
    }

    /// No higher epoch claims the span. What was durable before this call may be reported.
    pub fn confirm(&self) -> Result<(), Trouble> {
        self.before(Step::Confirm);
        fence(&self.claim.place.dir, self.claim.epoch)
    }

    /// Removes what is of no use any more. Only after a [`Writer::confirm`] that went well: see above.
    /// Left-overs are no harm, so that errors here are none.
    pub fn tidy(&mut self) {
        let (dir, epoch) = (&self.claim.place.dir, self.claim.epoch.0);
        if let Some(skipped) = self.skipped.take() {
            let _ = std::fs::remove_file(segment_path(dir, skipped));
        }
        // Claims below a segment fence nobody whom the segment does not.
        let Ok(listing) = Listing::of(dir) else { return };
        for old in listing.claims.into_iter().filter(|old| *old < epoch) {
            let _ = std::fs::remove_file(claim_path(dir, SpanEpoch(old)));
            let _ = std::fs::remove_file(temporary_path(dir, old));
        }
    }

    #[cfg(not(test))]
    fn before(&self, _step: Step) {}

    /// Tests let others in between any two steps.
    #[cfg(test)]
    fn before(&self, step: Step) {
        if let Some(meanwhile) = &self.meanwhile {
            meanwhile(step);
        }
    }
}

fn fence(dir: &Path, epoch: SpanEpoch) -> Result<(), Trouble> {
    match Listing::of(dir)?.highest() {
        Some(highest) if highest > epoch.0 => {
            let dir = dir.display();
            Err(Trouble::fenced(format!("{dir}: epoch {epoch} is out of date, {highest} writes there")))
        }
        Some(_) | None => Ok(()),
    }
}

/// What a header calls valid must not vanish in a power cut, whoever wrote it. A sync alone would not do: one
/// that failed before leaves pages that are read, count as clean, and are not on the disk. Written once
/// more, with the same bytes, they are.
fn settle(path: &Path, tail: &Tail) -> Result<(), Trouble> {
    let again = || {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let length = tail.bytes.saturating_sub(tail.seen_from);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, tail.seen_from)?;
        file.write_all_at(&bytes, tail.seen_from)?;
        file.sync_all()
    };
    again().map_err(|e| trouble("settling", path, &e))
}

#[cfg(test)]
#[path = "interleaving_tests.rs"]
mod tests;
