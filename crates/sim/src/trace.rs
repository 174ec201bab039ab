//! What happened, in order: the last lines for people, a hash of all of them to compare two runs.

use std::collections::VecDeque;

/// Lines that are shown with a failure.
const LINES_KEPT: usize = 60;

pub struct Trace {
    lines: VecDeque<String>,
    hash: u64,
    /// Print every line as it comes.
    aloud: bool,
    /// Lines are kept. Making them takes longer than anything else that a seed does.
    kept: bool,
}

impl Trace {
    pub fn new(aloud: bool, kept: bool) -> Trace {
        Trace { lines: VecDeque::new(), hash: 0xcbf2_9ce4_8422_2325, aloud, kept: kept || aloud }
    }

    /// Whether anybody wants to know.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// What happens when is in the hash even if nobody wants to know what.
    pub fn step(&mut self, at: u64) {
        self.hash = (self.hash ^ at).wrapping_mul(0x0100_0000_01b3);
    }

    pub fn line(&mut self, at: u64, text: String) {
        if !self.kept {
            return;
        }
        let line = format!("{:>9.3}  {text}", at as f64 / 1000.0);
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.aloud {
            eprintln!("{line}");
        }
        if self.lines.len() == LINES_KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn tail(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}
