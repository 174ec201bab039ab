//! What comes back after a loss of power, and what does not.

#![allow(clippy::unwrap_used)]

use super::*;

/// An order as an earlier release wrote it will do: what is in it is not looked at here.
const ORDER: &str = include_str!("../disk/earlier_order.json");

struct Machine {
    data: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        Machine { data: tempfile::tempdir().unwrap() }
    }

    fn instances(&self) -> PathBuf {
        self.data.path().join("instances")
    }

    fn open(&self) -> Ledger {
        Ledger::open(self.data.path(), &self.instances()).unwrap()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.data.path().join(LEDGER)).unwrap()
    }

    /// What is on disk for good is all that is left, and the next boot is another one.
    fn loses_power(&self) {
        let text = self.text().replace(&host::boot_id(), "another");
        std::fs::write(self.data.path().join(LEDGER), text).unwrap();
    }

    fn is_ordered(&self, instance: &str) -> bool {
        disk::load_order(&self.instances().join(instance)).is_ok()
    }
}

#[tokio::test]
async fn a_start_that_the_disk_has_lost_comes_back_after_a_loss_of_power() {
    let machine = Machine::new();
    let ledger = machine.open();
    ledger.begins("web-1", ORDER).await.unwrap();
    ledger.begins("web-2", ORDER).await.unwrap();
    // Of one nothing is left, of the other an empty file.
    std::fs::create_dir_all(machine.instances().join("web-2")).unwrap();
    std::fs::write(machine.instances().join("web-2/order.json"), "").unwrap();
    machine.loses_power();
    machine.open();
    assert!(machine.is_ordered("web-1") && machine.is_ordered("web-2"));
}

#[tokio::test]
async fn what_has_gone_does_not_come_back() {
    let machine = Machine::new();
    let ledger = machine.open();
    ledger.begins("web-1", ORDER).await.unwrap();
    ledger.goes("web-1").await.unwrap();
    machine.loses_power();
    machine.open();
    assert!(!machine.instances().join("web-1").exists());
    assert_eq!(machine.text(), "");
}

#[tokio::test]
async fn what_somebody_removed_within_a_boot_does_not_come_back() {
    let machine = Machine::new();
    machine.open().begins("web-1", ORDER).await.unwrap();
    machine.open();
    machine.loses_power();
    machine.open();
    assert!(!machine.instances().join("web-1").exists());
}

#[tokio::test]
async fn an_order_that_is_there_is_left_as_it_is() {
    let machine = Machine::new();
    machine.open().begins("web-1", ORDER).await.unwrap();
    let dir = machine.instances().join("web-1");
    let later = ORDER.replace("\"ready\": true", "\"ready\": false");
    disk::save_order(&dir, &later).unwrap();
    machine.loses_power();
    machine.open();
    assert_eq!(std::fs::read_to_string(dir.join("order.json")).unwrap(), later);
}

#[tokio::test]
async fn half_a_line_at_the_end_was_waited_for_by_nobody() {
    let machine = Machine::new();
    machine.open().begins("web-1", ORDER).await.unwrap();
    let text = machine.text();
    let half = format!("{text}{}", &text[..text.len() / 2]);
    std::fs::write(machine.data.path().join(LEDGER), half).unwrap();
    machine.loses_power();
    machine.open();
    assert!(machine.is_ordered("web-1"));
}

#[tokio::test]
async fn it_stays_small_and_forgets_nothing_that_is_left() {
    let machine = Machine::new();
    let ledger = machine.open();
    ledger.begins("web-0", ORDER).await.unwrap();
    let times = 3 * BYTES_MIN / ORDER.len();
    let mut last = None;
    for number in 1..=times {
        last = Some((ledger.begins(&format!("job-{number}"), ORDER), ledger.goes(&format!("job-{number}"))));
    }
    let (begun, gone) = last.unwrap();
    begun.await.unwrap();
    gone.await.unwrap();
    ledger.begins("web-9", ORDER).await.unwrap();
    assert!(machine.text().len() <= BYTES_MIN, "{}", machine.text().len());
    machine.loses_power();
    machine.open();
    assert!(machine.is_ordered("web-0") && machine.is_ordered("web-9"));
    assert!(!machine.instances().join("job-1").exists());
}

#[test]
fn a_version_that_is_not_known_is_refused_in_words() {
    let machine = Machine::new();
    let line = r#"{"version":9,"instance":"web-1","boot":"x"}"#;
    std::fs::write(machine.data.path().join(LEDGER), line).unwrap();
    let fault = Ledger::open(machine.data.path(), &machine.instances()).err().unwrap();
    assert!(fault.to_string().ends_with("version 9 is not known"), "{fault}");
}

/// What may be on disk of lines that nobody had synced: some of it, none, or room that was never written.
fn remains(rest: &[u8], dice: &mut u64) -> Vec<u8> {
    let mut throw = |bound: usize| {
        *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*dice >> 33) as usize % bound
    };
    let mut left = rest[..throw(rest.len() + 1)].to_vec();
    if !left.is_empty() && throw(3) == 0 {
        let (from, to) = (throw(left.len()), throw(left.len() + 1));
        left[from.min(to)..from.max(to)].fill(0);
    }
    left
}

#[tokio::test]
async fn whatever_a_loss_of_power_leaves_of_what_was_not_synced_every_start_that_was_waited_for_comes_back() {
    let machine = Machine::new();
    let ledger = machine.open();
    let mut live = std::collections::BTreeSet::new();
    // How long the file was, and what lived, whenever somebody was told that it is on disk.
    let mut told = vec![(0, live.clone())];
    for number in 0..40_u32 {
        let name = format!("web-{}", number % 17);
        match live.remove(&name) {
            true => ledger.goes(&name).await.unwrap(),
            false => {
                ledger.begins(&name, ORDER).await.unwrap();
                live.insert(name);
            }
        }
        told.push((machine.text().len(), live.clone()));
    }
    let bytes = machine.text().replace(&host::boot_id(), &"a".repeat(host::boot_id().len())).into_bytes();
    let mut dice = 7;
    for (at, (length, wanted)) in told.iter().enumerate() {
        let (next, then) = told.get(at + 1).unwrap_or(&told[at]);
        for _ in 0..3 {
            let after = Machine::new();
            let image = [&bytes[..*length], &remains(&bytes[*length..*next], &mut dice)].concat();
            std::fs::write(after.data.path().join(LEDGER), &image).unwrap();
            // One that was being written anew when it went dark was not in force yet.
            std::fs::write(after.data.path().join(format!("{LEDGER}.tmp")), &image[..image.len() / 2])
                .unwrap();
            let ledger = after.open();
            let lost = |name: &&String| !after.is_ordered(name);
            // The line that was on its way may say that one of them goes.
            let wrong: Vec<_> = wanted.iter().filter(lost).filter(|name| then.contains(*name)).collect();
            assert!(wrong.is_empty(), "{wrong:?} did not come back after {at} starts and ends");
            ledger.begins("web-99", ORDER).await.unwrap();
            drop(ledger);
            let again = read(&after.data.path().join(LEDGER)).unwrap();
            assert!(again.contains_key("web-99"), "it goes on behind what was left");
            assert!(wanted.intersection(then).all(|name| again.contains_key(name)));
        }
    }
}
