//! What may be found in a node's directory.

use super::{disk, ledger};

#[test]
fn an_order_on_disk_is_refused_or_read_as_what_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    hostile::throw!("orders", |bytes: &[u8]| {
        std::fs::write(dir.path().join("order.json"), bytes).unwrap();
        let _any = disk::is_over(dir.path());
        let Ok(kept) = disk::load_order(dir.path()) else { return };
        let line = disk::order_line(kept.id, kept.note, &kept.run, &kept.ports, None);
        std::fs::write(dir.path().join("order.json"), line).unwrap();
        let again = disk::load_order(dir.path()).unwrap();
        assert_eq!((again.id, again.note, again.ports), (kept.id, kept.note, kept.ports));
        assert_eq!(again.run.spec, kept.run.spec);
    });
}

#[test]
fn a_ledger_on_disk_is_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    hostile::throw!("ledger", |bytes: &[u8]| {
        let path = dir.path().join("starts.log");
        std::fs::write(&path, bytes).unwrap();
        drop(ledger::read(&path));
    });
}
