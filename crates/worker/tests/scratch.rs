//! Scratch directories as archives and back, with real files.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use tar::{Builder, EntryType, Header};
use worker::scratch::{UnpackError, pack, unpack};

/// Never full.
const ROOM: f64 = 2.0;

/// What a directory holds: mode and content of everything in it, links as they are.
fn listing(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else if meta.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else {
            fs::read(&path).unwrap()
        };
        let mode = if meta.is_symlink() { 0 } else { meta.permissions().mode() & 0o7777 };
        found.insert(path.strip_prefix(root).unwrap().to_owned(), (mode, content));
    }
    found
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn packed(disk: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    pack(disk, &mut archive).unwrap();
    archive
}

/// A bit of everything that a program may leave.
fn sample(root: &Path) -> PathBuf {
    let disk = root.join("from");
    fs::create_dir_all(disk.join("a/b")).unwrap();
    fs::create_dir(disk.join("empty")).unwrap();
    fs::write(disk.join("a/b/deep"), "down here").unwrap();
    fs::write(disk.join("a/tool"), "#!/bin/sh\n").unwrap();
    set_mode(&disk.join("a/tool"), 0o755);
    fs::write(disk.join("secret"), "x").unwrap();
    set_mode(&disk.join("secret"), 0o600);
    fs::write(disk.join("nothing"), "").unwrap();
    fs::write(disk.join("n".repeat(200)), "a long name").unwrap();
    symlink("a/b/deep", disk.join("inside")).unwrap();
    symlink("/etc/passwd", disk.join("outside")).unwrap();
    symlink("nowhere", disk.join("dangling")).unwrap();
    set_mode(&disk.join("a/b"), 0o500);
    set_mode(&disk, 0o750);
    disk
}

#[test]
fn files_directories_and_links_come_with_their_modes_and_no_link_is_followed() {
    let root = tempfile::tempdir().unwrap();
    let (from, to) = (sample(root.path()), root.path().join("to"));
    unpack(packed(&from).as_slice(), &to, ROOM).unwrap();
    assert_eq!(listing(&to), listing(&from));
    assert!(fs::symlink_metadata(to.join("outside")).unwrap().is_symlink());
    let modified = |disk: &Path| fs::metadata(disk.join("secret")).unwrap().modified().unwrap();
    let apart = modified(&from).duration_since(modified(&to)).unwrap_or_default();
    assert!(apart.as_secs() < 1, "times are kept to the second");
    set_mode(&from.join("a/b"), 0o700);
    set_mode(&to.join("a/b"), 0o700);
}

#[test]
fn a_big_file_comes_byte_for_byte() {
    let root = tempfile::tempdir().unwrap();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    fs::create_dir(&from).unwrap();
    let bytes: Vec<u8> = (0..40u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(from.join("big"), &bytes).unwrap();
    unpack(packed(&from).as_slice(), &to, ROOM).unwrap();
    assert!(fs::read(to.join("big")).unwrap() == bytes);
}

#[test]
fn sockets_are_left_out() {
    let root = tempfile::tempdir().unwrap();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    fs::create_dir(&from).unwrap();
    let _socket = UnixListener::bind(from.join("socket")).unwrap();
    fs::write(from.join("file"), "kept").unwrap();
    unpack(packed(&from).as_slice(), &to, ROOM).unwrap();
    let names: Vec<_> = listing(&to).into_keys().collect();
    assert_eq!(names, [PathBuf::new(), PathBuf::from("file")]);
}

#[test]
fn an_archive_that_was_cut_anywhere_is_never_taken_for_a_whole_one() {
    let root = tempfile::tempdir().unwrap();
    let from = root.path().join("from");
    fs::create_dir_all(from.join("d")).unwrap();
    fs::write(from.join("d/one"), "1".repeat(700)).unwrap();
    fs::write(from.join("two"), "2").unwrap();
    let archive = packed(&from);
    // Up to the last word there is nothing that says that this was all.
    let last = archive.windows(4).rposition(|at| at == b"all\0").unwrap();
    for cut in (0..last).step_by(64).chain([last]) {
        let to = root.path().join(format!("to-{cut}"));
        let ended = unpack(&archive[..cut], &to, ROOM);
        assert!(matches!(ended, Err(UnpackError::Half | UnpackError::Read(_))), "{cut}: {ended:?}");
    }
}

#[test]
fn what_the_old_node_cannot_read_is_told_in_its_words() {
    let root = tempfile::tempdir().unwrap();
    let archive = packed(&root.path().join("gone"));
    let ended = unpack(archive.as_slice(), &root.path().join("to"), ROOM);
    assert!(matches!(&ended, Err(UnpackError::Source(why)) if why.contains("gone")), "{ended:?}");
}

#[test]
fn a_disk_that_would_get_full_takes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let from = sample(root.path());
    let ended = unpack(packed(&from).as_slice(), &root.path().join("to"), 0.0);
    assert!(matches!(&ended, Err(UnpackError::Refused(why)) if why.contains("fill the disk")), "{ended:?}");
    set_mode(&from.join("a/b"), 0o700);
}

/// An archive that no honest node would send. Written byte by byte: the writer refuses such names.
fn forged(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    let all = [(EntryType::Directory, "disk", "")];
    let count = (entries.len() + 1).to_string();
    let last = [(EntryType::Regular, "all", count.as_str())];
    for (kind, name, content) in all.iter().chain(entries).chain(&last) {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o755);
        let data = match kind {
            EntryType::Symlink | EntryType::Link => {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
                ""
            }
            _ => content,
        };
        header.set_size(data.len() as u64);
        header.set_cksum();
        archive.append(&header, data.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn an_archive_that_leads_out_of_its_directory_is_refused_and_writes_nothing_there() {
    use EntryType::{Directory, Link, Regular, Symlink};
    let cases: &[&[(EntryType, &str, &str)]] = &[
        &[(Regular, "disk/../escaped", "x")],
        &[(Regular, "/tmp/escaped", "x")],
        &[(Regular, "escaped", "x")],
        &[(Symlink, "disk/link", ".."), (Regular, "disk/link/escaped", "x")],
        &[(Symlink, "disk/link", ".."), (Directory, "disk/link", ""), (Regular, "disk/link/escaped", "x")],
        &[(Symlink, "disk/link", "../escaped"), (Regular, "disk/link", "x")],
        &[(Link, "disk/hard", "/etc/passwd")],
        &[(EntryType::Char, "disk/device", "")],
        &[(Regular, "disk/no/such/dir", "x")],
    ];
    for case in cases {
        let root = tempfile::tempdir().unwrap();
        let to = root.path().join("deep/to");
        fs::create_dir(root.path().join("deep")).unwrap();
        let ended = unpack(forged(case).as_slice(), &to, ROOM);
        assert!(
            matches!(ended, Err(UnpackError::Refused(_) | UnpackError::Write { .. })),
            "{case:?}: {ended:?}"
        );
        let escaped = listing(root.path()).into_keys().find(|path| path.ends_with("escaped"));
        assert_eq!(escaped, None, "{case:?}");
    }
    let harmless = forged(&[(Regular, "disk/file", "x")]);
    let root = tempfile::tempdir().unwrap();
    unpack(harmless.as_slice(), &root.path().join("to"), ROOM).unwrap();
}

#[test]
fn fewer_files_than_the_old_node_counted_are_half_an_archive() {
    let root = tempfile::tempdir().unwrap();
    let mut archive = forged(&[(EntryType::Regular, "disk/file", "x")]);
    // The file's two blocks go; what is left is well formed.
    archive.drain(512..1536);
    let ended = unpack(archive.as_slice(), &root.path().join("to"), ROOM);
    assert!(matches!(ended, Err(UnpackError::Half)), "{ended:?}");
}

#[test]
fn a_reader_that_fails_is_told_apart_from_a_disk_that_does() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
    let root = tempfile::tempdir().unwrap();
    assert!(matches!(unpack(Broken, &root.path().join("to"), ROOM), Err(UnpackError::Read(_))));
    let archive = forged(&[]);
    let nowhere = root.path().join("no/such/dir");
    assert!(matches!(unpack(archive.as_slice(), &nowhere, ROOM), Err(UnpackError::Write { .. })));
}
