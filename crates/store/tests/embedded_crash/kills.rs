//! A process that commits is killed, again and again, wherever it just is.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use store::Store;
use store::embedded::EmbeddedStore;

use crate::{Dice, elect, is_whole, ops, seed, setting};

const FILE: &str = "TIDEGATE_CRASH_FILE";
const ROUNDS: u64 = 40;

/// Not a test of its own: what the test below starts, and kills. Without a file there is nothing to do.
#[tokio::test]
async fn a_life_that_commits_until_it_is_killed() {
    let Ok(path) = std::env::var(FILE) else { return };
    let store = EmbeddedStore::open(&path).await.unwrap();
    let office = elect(&store).await;
    let mut said = std::io::stdout();
    writeln!(said, "term {}", office.term).unwrap();
    for head in store.head().await.unwrap() + 1.. {
        store.commit(&office, head, &ops(head)).await.unwrap();
        // Whoever is not there any more has killed us, or is dead himself.
        if writeln!(said, "head {head}").and_then(|()| said.flush()).is_err() {
            return;
        }
    }
}

struct Life(Child);

impl Life {
    fn begin(path: &Path) -> Life {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "kills::a_life_that_commits_until_it_is_killed", "--nocapture"]);
        command.env(FILE, path).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        Life(command.spawn().unwrap())
    }

    /// Lets it acknowledge so many transactions and a little more, and kills it. Returns the last ones that it
    /// told of: its term and its head.
    fn kill_after(mut self, transactions: u64, more: Duration) -> (u64, u64) {
        let mut lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let (mut term, mut head) = (0, 0);
        let mut hear = |line: &str| {
            // The harness writes what it is about in front of the first one.
            if let Some((_, number)) = line.rsplit_once("term ") {
                term = number.parse().unwrap();
            } else if let Some(number) = line.strip_prefix("head ") {
                head = number.parse().unwrap();
                return true;
            }
            false
        };
        let mut heard = 0;
        while heard < transactions {
            let line = lines.next().expect("it goes on until it is killed").unwrap();
            heard += u64::from(hear(&line));
        }
        // Not a wait for anything: it moves the blow to another point of what it does.
        let end = Instant::now() + more;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        self.0.kill().unwrap();
        for line in lines.map_while(Result::ok) {
            hear(&line);
        }
        (term, head)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn what_was_acknowledged_before_a_kill_is_there_afterwards_and_terms_and_heads_only_rise() {
    let mut dice = Dice(seed());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.redb");
    let (mut term, mut head) = (0, 0);
    for round in 1..=setting("TIDEGATE_CRASH_ROUNDS", ROUNDS) {
        // Every fifth one is killed while it opens the file or makes it, or soon after.
        let transactions = if round % 5 == 1 { 0 } else { 1 + dice.below(12) };
        let more = Duration::from_micros(dice.below(if transactions == 0 { 30_000 } else { 4_000 }));
        let how = format!("round {round}, killed {more:?} after {transactions} transactions");
        let told = Life::begin(&path).kill_after(transactions, more);
        let store = EmbeddedStore::open(&path).await.unwrap_or_else(|error| panic!("{how}: {error}"));
        let found = is_whole(&store, &how).await;
        let acknowledged = head.max(told.1);
        assert!(found >= acknowledged, "{how}: {acknowledged} was acknowledged, {found} is there");
        assert!(found <= acknowledged + 1, "{how}: one is in flight at a time, and {found} is there");
        let office = elect(&store).await;
        assert!(office.term > told.0.max(term), "{how}: term {} after {told:?}", office.term);
        (term, head) = (office.term, found);
    }
    assert!(head > 20, "hardly anything was written: {head}");
}
