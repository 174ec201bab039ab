//! What other nodes, and programs that are looked after, may send.

use crate::{checks, scratch};

/// Files are written through a buffer.
const BUFFER_MEMORY: u64 = 1 << 20;

#[test]
fn the_answer_to_a_check_is_a_status_or_none() {
    hostile::throw!("status_lines", |bytes: &[u8]| {
        assert!(checks::parse_status(bytes).is_none_or(|status| (100..600).contains(&status)));
    });
}

#[test]
fn an_archive_of_another_node_is_refused_or_unpacked_within_its_directory() {
    let made = tempfile::tempdir().unwrap();
    let disk = made.path().join("disk");
    std::fs::create_dir_all(disk.join("a/b")).unwrap();
    std::fs::write(disk.join("a/b/file"), "some words").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", disk.join("a/link")).unwrap();
    let mut archive = Vec::new();
    scratch::pack(&disk, &mut archive).unwrap();
    hostile::keep!("archives", &[("small.tar", archive)]);
    hostile::throw!("archives", memory = BUFFER_MEMORY, inputs = 60, |bytes: &[u8]| {
        let home = tempfile::tempdir().unwrap();
        drop(scratch::unpack(bytes, &home.path().join("disk.part"), 2.0));
        for entry in std::fs::read_dir(home.path()).unwrap() {
            assert_eq!(entry.unwrap().file_name(), "disk.part");
        }
    });
}
