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
