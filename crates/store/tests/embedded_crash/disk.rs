//! A disk that remembers everything that was written to it and when that was synced, and what may be left of it.

use std::io;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use crate::Dice;

/// What is written whole or not at all, if the disk is a good one.
const SECTOR: usize = 512;

#[derive(Clone, Debug)]
pub enum Step {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
    Sync,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    steps: Vec<Step>,
}

/// Clones are the same disk.
#[derive(Clone, Debug)]
pub struct Recorder {
    begins: Arc<Vec<u8>>,
    kept: Arc<Mutex<Kept>>,
}

impl Recorder {
    pub fn with(bytes: Vec<u8>) -> Recorder {
        let begins = Arc::new(bytes.clone());
        Recorder { begins, kept: Arc::new(Mutex::new(Kept { bytes, steps: Vec::new() })) }
    }

    /// How many steps there were.
    pub fn steps(&self) -> usize {
        self.kept.lock().unwrap().steps.len()
    }

    /// What a power cut after so many steps may leave: all that was synced, and of the rest this and that, in part.
    pub fn image(&self, steps: usize, dice: &mut Dice) -> Vec<u8> {
        let kept = self.kept.lock().unwrap();
        let steps = &kept.steps[..steps];
        let synced = steps.iter().rposition(|step| matches!(step, Step::Sync)).map_or(0, |at| at + 1);
        let mut image = self.begins.as_ref().clone();
        steps[..synced].iter().for_each(|step| apply(&mut image, step));
        let fate = dice.below(5);
        for step in &steps[synced..] {
            match fate {
                // All of it was on its way already.
                0 => apply(&mut image, step),
                // Nothing of it.
                1 => {}
                _ => match dice.below(4) {
                    0 => {}
                    1 => apply(&mut image, &torn(step, dice)),
                    _ => apply(&mut image, step),
                },
            }
        }
        image
    }
}

fn apply(image: &mut Vec<u8>, step: &Step) {
    match step {
        Step::Write { offset, bytes } => {
            let end = offset + bytes.len();
            if image.len() < end {
                image.resize(end, 0);
            }
            image[*offset..end].copy_from_slice(bytes);
        }
        Step::Length(length) => image.resize(*length, 0),
        Step::Sync => {}
    }
}

/// A write that the cut fell into: its beginning up to any sector.
fn torn(step: &Step, dice: &mut Dice) -> Step {
    match step {
        Step::Write { offset, bytes } => {
            let to_boundary = (SECTOR - offset % SECTOR) % SECTOR;
            let sectors = bytes.len().saturating_sub(to_boundary).div_ceil(SECTOR) as u64;
            let whole = to_boundary + dice.below(sectors + 1) as usize * SECTOR;
            Step::Write { offset: *offset, bytes: bytes[..whole.min(bytes.len())].to_vec() }
        }
        Step::Length(_) | Step::Sync => step.clone(),
    }
}

impl StorageBackend for Recorder {
    fn len(&self) -> io::Result<u64> {
        Ok(self.kept.lock().unwrap().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let kept = self.kept.lock().unwrap();
        let begin = offset as usize;
        let found = kept.bytes.get(begin..begin + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.take(Step::Length(length as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.take(Step::Sync)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.take(Step::Write { offset: offset as usize, bytes: bytes.to_vec() })
    }
}

impl Recorder {
    fn take(&self, step: Step) -> io::Result<()> {
        let mut kept = self.kept.lock().unwrap();
        apply(&mut kept.bytes, &step);
        kept.steps.push(step);
        Ok(())
    }
}
