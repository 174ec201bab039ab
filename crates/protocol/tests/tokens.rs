//! Tokens and the audit log, as the coordinator keeps them.

#![allow(clippy::unwrap_used)]

mod office;

use std::sync::Arc;

use model::{Access, Millis, ServiceName, Time};
use office::{Office, spec};
use protocol::coordinator::{Apply, ErrorKind, Request, TOKEN_NAME_MAX, TOKENS_MAX, WantedIntent};

fn create(name: &str, number: u32, expires_at: Option<Time>) -> Request {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_be_bytes());
    Request::CreateToken { name: name.to_owned(), access: Access::Viewer, hash, expires_at }
}

#[test]
fn the_next_coordinator_knows_the_same_tokens() {
    let mut office = Office::with_nodes(1);
    office.ask(create("alice", 1, None)).unwrap();
    office.ask(create("bob", 2, None)).unwrap();
    office.ask(Request::RevokeToken { name: "alice".to_owned() }).unwrap();
    office.next_coordinator();
    let known: Vec<&str> = office.coordinator.cluster().tokens().map(|token| token.name.as_str()).collect();
    assert_eq!(known, ["bob"]);
    let said: Vec<&str> = office.coordinator.cluster().audit().map(|entry| entry.what.as_str()).collect();
    let last = ["create token/alice for a viewer", "create token/bob for a viewer", "revoke token/alice"];
    assert!(said.ends_with(&last), "{said:?}");
}

#[test]
fn tokens_that_cannot_be_are_refused_and_nothing_is_changed() {
    let mut office = Office::with_nodes(1);
    office.ask(create("alice", 1, None)).unwrap();
    let before = office.coordinator.cluster().audit().count();
    assert_eq!(office.ask(create("alice", 2, None)).unwrap_err().kind, ErrorKind::Conflict);
    let past = office.now - Millis(1);
    assert_eq!(office.ask(create("late", 3, Some(past))).unwrap_err().kind, ErrorKind::Invalid);
    for name in ["", "A", "a/b", "a\nb", "-a", &"a".repeat(TOKEN_NAME_MAX + 1)] {
        assert_eq!(office.ask(create(name, 4, None)).unwrap_err().kind, ErrorKind::Invalid, "{name:?}");
    }
    let gone = Request::RevokeToken { name: "carol".to_owned() };
    assert_eq!(office.ask(gone).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(office.coordinator.cluster().audit().count(), before);
}

#[test]
fn there_is_an_end_to_how_many_tokens_there_are() {
    let mut office = Office::with_nodes(1);
    for number in 0..TOKENS_MAX as u32 {
        office.ask(create(&format!("t{number}"), number, None)).unwrap();
    }
    let refused = office.ask(create("more", u32::MAX, None)).unwrap_err();
    assert_eq!((refused.kind, refused.code), (ErrorKind::Refused, "too_many_tokens"));
}

#[test]
fn the_audit_log_keeps_its_last_thousand_entries() {
    let mut office = Office::with_nodes(1);
    for round in 0..600 {
        let intent = if round % 2 == 0 { WantedIntent::Disabled } else { WantedIntent::Active };
        office.ask(Request::SetIntent { node: "n1".to_owned(), intent }).unwrap();
        let name = format!("t{round}");
        office.ask(create(&name, round, None)).unwrap();
    }
    let cluster = office.coordinator.cluster();
    assert_eq!(cluster.audit().count(), 1000);
    assert_eq!(
        cluster.audit().next_back().map(|entry| entry.what.as_str()),
        Some("create token/t599 for a viewer")
    );
}

#[test]
fn an_entry_of_the_audit_log_is_cut_where_a_request_names_too_much() {
    let mut office = Office::with_nodes(1);
    let apply = |n: u32| Apply {
        name: ServiceName::new(&format!("service-{n}")),
        count: Some(0),
        spec: Arc::new(spec("true")),
    };
    office.ask(Request::apply((0..200).map(apply).collect())).unwrap();
    let last = office.coordinator.cluster().audit().next_back().unwrap();
    assert!(
        last.what.starts_with("apply service-0, service-1, ") && last.what.ends_with('…'),
        "{}",
        last.what
    );
    assert!(last.what.len() < 1100);
}

#[test]
fn a_flood_of_refusals_pushes_nothing_out_of_the_log_that_was_done() {
    let mut office = Office::with_nodes(1);
    office.ask(create("alice", 1, None)).unwrap();
    for number in 0..1500 {
        office.ask(Request::NoteRefusal { what: format!("401 GET /{number}") }).unwrap();
    }
    let cluster = office.coordinator.cluster();
    assert_eq!(cluster.audit().filter(|entry| entry.is_refusal()).count(), 200);
    assert!(cluster.audit().any(|entry| entry.what == "create token/alice for a viewer"));
    let last = cluster.audit().next_back().unwrap();
    assert_eq!(last.what, "refused: 401 GET /1499");
    office.next_coordinator();
    assert_eq!(office.coordinator.cluster().audit().filter(|entry| entry.is_refusal()).count(), 200);
}
