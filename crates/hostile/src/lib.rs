//! What strangers may send: known inputs, the same ones damaged, and bytes at random, thrown at one decoder.
//!
//! Owns [`throw!`]. The known inputs are the files below `__fuzz__/<name>/corpus` beside the test, where a fuzzer that
//! is told about the coverage (`cargo bolero test`) looks for them and leaves what it finds.
//!
//! *Invariant:* for tests only. A run is bounded by a number of inputs, never by time; what fails is printed as the
//! `BOLERO_RANDOM_SEED` that makes it again.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

pub use allocation_counter;
pub use bolero;

/// Inputs at random for one decoder, each of them taken as it is and as damage to a known input.
pub const INPUTS: usize = 2_000;
/// Their length.
pub const INPUT_BYTES_MAX: usize = 512;

/// What a decoder may hold at a time for nothing: messages of errors, tables that begin with room for a few.
pub const MEMORY_FREE: u64 = 64 << 10;
/// And per byte that it was given. A byte of an encoding stands for a record of a few words at most; a length that is
/// believed before its content has come is far beyond it.
pub const MEMORY_PER_BYTE: u64 = 256;

/// Throws everything at `$decode`, which takes `&[u8]` and must neither panic nor take more memory than its input
/// justifies. What it finds wrong with what it decoded, it says by a panic. `memory`: what it may hold in any case, where
/// that is more than [`MEMORY_FREE`]; `inputs`: how many, where one of them takes long.
#[macro_export]
macro_rules! throw {
    ($name:literal, $decode:expr) => {
        $crate::throw!($name, memory = $crate::MEMORY_FREE, inputs = $crate::INPUTS, $decode)
    };
    ($name:literal, memory = $memory:expr, inputs = $inputs:expr, $decode:expr) => {{
        let known = $crate::known(env!("CARGO_MANIFEST_DIR"), file!(), $name);
        let decode = $decode;
        $crate::bolero::check!(name = $name)
            .with_iterations($inputs)
            .with_max_len($crate::INPUT_BYTES_MAX)
            .for_each(|bytes: &[u8]| {
                $crate::within_bounds(bytes, $memory, &decode);
                $crate::within_bounds(&$crate::damaged(&known, bytes), $memory, &decode);
            });
    }};
}

/// Keeps what a program makes, as known inputs of a test: written with `UPDATE_EXPECT` set, and otherwise just there.
#[macro_export]
macro_rules! keep {
    ($name:literal, $examples:expr) => {
        $crate::keep_all(&$crate::corpus(env!("CARGO_MANIFEST_DIR"), file!(), $name), $examples)
    };
}

/// See [`keep!`].
///
/// # Panics
/// When one of them is not there.
pub fn keep_all(dir: &Path, examples: &[(&str, Vec<u8>)]) {
    for (name, bytes) in examples {
        let file = dir.join(name);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&file, bytes));
            assert!(written.is_ok(), "{}: {written:?}", file.display());
        }
        assert!(file.exists(), "{} is missing: run this test with UPDATE_EXPECT=1", file.display());
    }
}

/// Runs the decoder, and counts what it takes.
///
/// # Panics
/// When it takes too much.
pub fn within_bounds(bytes: &[u8], free: u64, decode: &dyn Fn(&[u8])) {
    let taken = allocation_counter::measure(|| decode(bytes)).bytes_max;
    let bound = free + MEMORY_PER_BYTE * bytes.len() as u64;
    assert!(taken <= bound, "{} bytes of input made the decoder take {taken} bytes of memory", bytes.len());
}

/// The corpus of one test.
///
/// # Panics
/// When there is none: damage to nothing finds nothing.
pub fn known(manifest_dir: &str, file: &str, name: &str) -> Vec<Vec<u8>> {
    let dir = corpus(manifest_dir, file, name);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    // Directories are listed in any order; a seed must mean the same everywhere.
    files.sort();
    let known: Vec<Vec<u8>> = files.iter().filter_map(|file| std::fs::read(file).ok()).collect();
    assert!(!known.is_empty(), "{} holds no known inputs", dir.display());
    known
}

/// Where the known inputs of one test are.
pub fn corpus(manifest_dir: &str, file: &str, name: &str) -> PathBuf {
    let file = Path::new(file);
    // The compiler names files from the top of the workspace.
    let at = Path::new(manifest_dir).ancestors().map(|dir| dir.join(file)).find(|path| path.exists());
    let beside = at.as_deref().and_then(Path::parent).unwrap_or(Path::new(manifest_dir));
    beside.join("__fuzz__").join(name).join("corpus")
}

/// A known input, changed in up to eight places as `script` says: its first byte picks which, then five bytes each say
/// how, where and with what.
pub fn damaged(known: &[Vec<u8>], script: &[u8]) -> Vec<u8> {
    let Some((which, steps)) = script.split_first() else { return Vec::new() };
    let mut bytes = known[usize::from(*which) % known.len()].clone();
    for step in steps.chunks_exact(5).take(8) {
        let length = bytes.len().max(1);
        let at = usize::from(u16::from_le_bytes([step[1], step[2]])) % length;
        let (with, much) = (step[3], usize::from(step[4]));
        match step[0] % 6 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), with),
            2 if at < bytes.len() => bytes[at] = with,
            // Lengths and counts are where it hurts.
            3 if at < bytes.len() => bytes[at] = [0x00, 0x7f, 0x80, 0xff][much % 4],
            4 if at < bytes.len() => drop(bytes.drain(at..(at + 1 + much % 16).min(length))),
            5 => {
                let part = bytes[at.min(bytes.len())..(at + much).min(bytes.len())].to_vec();
                bytes.splice(at.min(bytes.len())..at.min(bytes.len()), part);
            }
            _ => bytes.push(with),
        }
    }
    bytes
}
