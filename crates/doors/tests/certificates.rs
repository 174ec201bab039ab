//! Certificates as files: made, believed, refused, followed.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use doors::{Authority, Certificate, Issued, KeyFiles, Keys, Who};
use model::Access;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// So many days from now.
fn days(days: u32) -> SystemTime {
    SystemTime::now() + days * DAY
}

fn hosts() -> Vec<String> {
    vec!["127.0.0.1".to_owned(), "n1.example".to_owned()]
}

fn files(ca: &Path, issued: &Issued) -> KeyFiles {
    KeyFiles { ca: ca.to_owned(), cert: issued.cert.clone(), key: issued.key.clone() }
}

fn refused(files: KeyFiles) -> String {
    Keys::load(files).err().unwrap().to_string()
}

#[test]
fn a_certificate_says_for_whom_it_speaks_and_where() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::init(dir.path()).unwrap();
    let node = authority.node("n1", &hosts(), days(30)).unwrap();
    let seen = Certificate::read(&node.cert).unwrap();
    assert_eq!((seen.who, seen.hosts), (Some(Who::Node("n1".to_owned())), hosts()));
    let viewer = authority.person("bob", Access::Viewer, days(1)).unwrap();
    let who = Keys::load(files(&authority.certificate(), &viewer)).unwrap().who();
    assert_eq!(who, Some(Who::Person { name: "bob".to_owned(), access: Access::Viewer }));
    assert_eq!(Certificate::read(&authority.certificate()).unwrap().who, None);
}

#[test]
fn keys_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let issued = Authority::init(dir.path()).unwrap().node("n1", &hosts(), days(1)).unwrap();
    for key in [dir.path().join("ca.key"), issued.key] {
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600, "{}", key.display());
    }
}

#[test]
fn an_authority_is_made_once_and_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Authority::open(dir.path()).err().unwrap().to_string().contains("tidegate tls init"));
    Authority::init(dir.path()).unwrap();
    assert!(Authority::init(dir.path()).err().unwrap().to_string().contains("is there already"));
    let again = Authority::open(dir.path()).unwrap();
    let issued = again.node("n1", &hosts(), days(1)).unwrap();
    assert!(Keys::load(files(&again.certificate(), &issued)).is_ok());
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::init(dir.path()).unwrap();
    for name in ["", "ca", "../n1", "a/b", "Alice", "a b", "-a", &"a".repeat(64)] {
        assert!(authority.node(name, &hosts(), days(1)).is_err(), "{name}");
        assert!(authority.person(name, Access::Operator, days(1)).is_err(), "{name}");
    }
    for host in ["", "10.0.0.1:7070", "a b", "https://n1"] {
        assert!(authority.node("n1", &[host.to_owned()], days(1)).is_err(), "{host}");
    }
}

#[test]
fn what_cannot_be_believed_is_said_before_anybody_is_asked_to() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let authority = Authority::init(dir.path()).unwrap();
    let ca = authority.certificate();
    let expired = authority.node("old", &hosts(), SystemTime::now() - DAY).unwrap();
    assert!(refused(files(&ca, &expired)).contains("has expired"));
    let stranger = Authority::init(other.path()).unwrap().node("n1", &hosts(), days(1)).unwrap();
    assert!(refused(files(&ca, &stranger)).contains("is not signed by the authority"));
    let (a, b) = (authority.node("a", &[], days(1)).unwrap(), authority.node("b", &[], days(1)).unwrap());
    let mixed = KeyFiles { ca: ca.clone(), cert: a.cert.clone(), key: b.key };
    assert!(refused(mixed).contains("is not the key of"));
    let swapped = KeyFiles { ca: ca.clone(), cert: a.key.clone(), key: a.key };
    assert!(refused(swapped).contains("holds no certificate"));
    let missing = KeyFiles { ca, cert: dir.path().join("none.pem"), key: a.cert };
    assert!(refused(missing).contains("cannot be read"));
}

#[test]
fn files_that_change_are_taken_up_once_they_have_settled() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::init(dir.path()).unwrap();
    let issued = authority.node("n1", &hosts(), days(1)).unwrap();
    let keys = Keys::load(files(&authority.certificate(), &issued)).unwrap();
    assert!(!keys.look(false).unwrap(), "nothing has changed");
    authority.node("n1", &hosts(), days(90)).unwrap();
    assert!(!keys.look(false).unwrap(), "somebody may still be writing");
    assert!(keys.look(false).unwrap());
    assert!(keys.certificate().lives() > 80 * DAY);
    authority.node("n1", &hosts(), days(200)).unwrap();
    assert!(keys.look(true).unwrap(), "asked for at once");
    assert!(keys.certificate().lives() > 190 * DAY);
}

#[test]
fn files_that_cannot_be_used_leave_everything_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::init(dir.path()).unwrap();
    let issued = authority.node("n1", &hosts(), days(1)).unwrap();
    let other = authority.node("n2", &hosts(), days(1)).unwrap();
    let keys = Keys::load(files(&authority.certificate(), &issued)).unwrap();
    fs::write(&issued.cert, "no certificate").unwrap();
    assert!(keys.look(true).is_err());
    fs::copy(&other.cert, &issued.cert).unwrap();
    fs::copy(&other.key, &issued.key).unwrap();
    let error = keys.look(true).unwrap_err().to_string();
    assert!(error.contains("speaks for node:n2"), "a daemon does not become another: {error}");
    assert_eq!(keys.who(), Some(Who::Node("n1".to_owned())));
}
