//! What an answer of the backend changes: facts in the store's record, and what was seen of it.

use std::collections::BTreeSet;

use model::{
    BackendAnswer, BackendCall, BackendFailure, BackendState, Change, Cluster, Code, FailureKind, Millis,
    Removal, Store, StoreId, Time, Trouble, Txn,
};

use super::{Evictors, Moved, Sighting};

const BACKOFF_FIRST: Millis = Millis::secs(1);
const BACKOFF_MAX: Millis = Millis::secs(60);

/// A call that was made for a store.
#[derive(Clone, Debug)]
pub struct Asked {
    pub call: BackendCall,
    pub at: Time,
    /// Where its process was reached.
    pub address: Option<String>,
}

/// Books that a call is made: what it may undo is not relied on from here on.
pub fn is_asked(seen: &mut Sighting, call: &BackendCall) {
    match call {
        BackendCall::EvictLeaders { on: false, .. } => seen.evicted_at = None,
        BackendCall::BeginOffline { .. } | BackendCall::CancelOffline { .. } => seen.complete = None,
        BackendCall::Replicas
        | BackendCall::Members
        | BackendCall::Identify { .. }
        | BackendCall::State { .. }
        | BackendCall::Evictors { .. }
        | BackendCall::Preflight { .. }
        | BackendCall::EvictLeaders { on: true, .. }
        | BackendCall::Forget { .. } => {}
    }
}

/// Books an answer. What was asked before something was changed is out of date and says nothing.
pub fn take_answer(
    txn: &mut Txn<'_>,
    id: &StoreId,
    seen: &mut Sighting,
    asked: &Asked,
    result: Result<BackendAnswer, BackendFailure>,
) {
    let Some(store) = txn.store(id.as_str()) else { return };
    let (before, now) = (store.clone(), txn.now());
    let mut store = before.clone();
    let changes_something = asked.call.changes_something();
    match result {
        Ok(answer) => {
            // That a question was answered says nothing of what could not be done.
            let settles = |trouble: &Trouble| trouble.reading || !is_question(&asked.call);
            store.trouble = store.trouble.filter(|trouble| !settles(trouble));
            seen.trouble = seen.trouble.take().filter(|trouble| !settles(trouble));
            let kept = before.trouble.as_ref().or(seen.trouble.as_ref()).cloned();
            let answer = without_others(txn, &before, answer);
            answered(&mut store, seen, asked, answer, kept, now);
        }
        Err(failure) => failed(&mut store, seen, asked, failure, now),
    }
    if changes_something {
        // What it led to is looked at before anything else is done.
        (seen.floor, seen.heard) = (now, Time(0));
    }
    if store != before {
        txn.put(Change::Store(store));
    }
}

/// Whether a member that is nobody else's may be the store that was reached there. Backends may know a host by another
/// name than we do, but hardly by another port; where nobody knows where the store was reached, any may be it.
fn may_be(member: &str, reached: Option<&str>) -> bool {
    let port = |address: &str| address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    match (port(member), reached.map(port)) {
        (Some(member), Some(Some(reached))) => member == reached,
        (Some(_) | None, Some(Some(_) | None) | None) => true,
    }
}

/// Of the members, those that no other store is known to be.
fn without_others(cluster: &Cluster, store: &Store, answer: BackendAnswer) -> BackendAnswer {
    let BackendAnswer::Members(mut members) = answer else { return answer };
    let Some(mine) = cluster.store_group(store.group.as_str()) else {
        return BackendAnswer::Members(members);
    };
    let groups = cluster.store_groups().filter(|group| group.spec.backend == mine.spec.backend);
    let all = groups.flat_map(|group| cluster.stores_of(group.name.as_str()));
    let others: BTreeSet<&str> =
        all.filter(|other| other.id != store.id).filter_map(|other| other.identity.as_deref()).collect();
    members.retain(|(_, id)| !others.contains(id.as_str()));
    BackendAnswer::Members(members)
}

/// What only looks. A preflight is the first step of going: what it says counts as done, or as not.
fn is_question(call: &BackendCall) -> bool {
    !call.changes_something() && !matches!(call, BackendCall::Preflight { .. })
}

fn answered(
    store: &mut Store,
    seen: &mut Sighting,
    asked: &Asked,
    answer: BackendAnswer,
    before: Option<Trouble>,
    now: Time,
) {
    match (&asked.call, answer) {
        (BackendCall::Identify { .. }, BackendAnswer::Identity(identity)) => {
            (seen.absent, seen.unlisted, seen.identified_at) = (false, false, Some(now));
            if store.identity.as_ref() != Some(&identity) {
                (store.identity, seen.state) = (Some(identity), None);
            }
        }
        (BackendCall::Members, BackendAnswer::Members(members)) => {
            seen.identified_at = Some(now);
            seen.unlisted = !members.iter().any(|(address, _)| may_be(address, asked.address.as_deref()));
            let found = members.into_iter().find(|(address, _)| Some(address) == asked.address.as_ref());
            if let Some((_, identity)) = found {
                store.identity = Some(identity);
            }
        }
        (BackendCall::State { removal, .. }, BackendAnswer::State(state)) => {
            looked(seen, asked.at, removal.is_some(), state, now);
        }
        (BackendCall::Evictors { .. }, BackendAnswer::Evictors { names, memo }) => {
            seen.evictors = Some(Evictors { names, memo, at: now });
        }
        (BackendCall::Preflight { .. }, BackendAnswer::Possible { memo }) => {
            seen.complete = None;
            if store.offline.is_some() && store.removal.is_none() {
                let removal =
                    Removal { memo, since: now, skip_eviction: false, begun: None, forgetting: false };
                store.removal = Some(removal);
            }
        }
        (BackendCall::Preflight { .. }, BackendAnswer::Refused(refusal)) => {
            let trouble = trouble(before.as_ref(), refusal.code(), refusal.words(), now);
            put_trouble(store, seen, Trouble { refusal: true, ..trouble });
        }
        (BackendCall::EvictLeaders { on: true, .. }, BackendAnswer::Done) => seen.evicted_at = Some(now),
        (BackendCall::EvictLeaders { on: false, .. }, BackendAnswer::Done) => not_evicting(store, seen),
        (BackendCall::BeginOffline { .. }, BackendAnswer::Moved { complete }) => {
            seen.moved_at = Some(asked.at);
            seen.complete = complete.then_some(Moved::Away);
        }
        (BackendCall::CancelOffline { .. }, BackendAnswer::Moved { complete }) => {
            seen.moved_at = Some(asked.at);
            seen.complete = complete.then_some(Moved::Back);
        }
        (BackendCall::Forget { .. }, BackendAnswer::Done) => seen.moved_at = Some(asked.at),
        (call, answer) => {
            let words = format!("{}: answered with {answer:?}, which is no answer to that", call.name());
            let trouble = trouble(before.as_ref(), Code::BackendError, words, now);
            put_trouble(store, seen, trouble);
        }
    }
}

fn looked(seen: &mut Sighting, asked_at: Time, with_removal: bool, state: BackendState, now: Time) {
    if asked_at < seen.floor {
        return;
    }
    seen.moving_since = match &state {
        BackendState::Removing { data_left, .. } => seen.moving_since.or(Some((now, *data_left))),
        BackendState::Serving { .. } | BackendState::Removed | BackendState::Unknown => None,
    };
    seen.state = Some(state);
    (seen.at, seen.heard, seen.with_removal) = (asked_at, now, with_removal);
}

fn not_evicting(store: &mut Store, seen: &mut Sighting) {
    store.evictor = None;
    (seen.evicted_at, seen.evictors) = (None, None);
}

fn failed(store: &mut Store, seen: &mut Sighting, asked: &Asked, failure: BackendFailure, now: Time) {
    if failure.kind == FailureKind::NotMade || is_settled_by(store, seen, asked, failure.kind, now) {
        return;
    }
    let not_found = failure.kind == FailureKind::NotFound;
    let code = match &asked.call {
        BackendCall::Identify { .. } if not_found => {
            seen.absent = true;
            Code::StoreNotJoined
        }
        BackendCall::BeginOffline { .. } | BackendCall::CancelOffline { .. } | BackendCall::Forget { .. } => {
            (seen.moved_at, seen.complete) = (Some(asked.at), None);
            failure.kind.code()
        }
        BackendCall::Replicas
        | BackendCall::Members
        | BackendCall::Identify { .. }
        | BackendCall::State { .. }
        | BackendCall::Evictors { .. }
        | BackendCall::Preflight { .. }
        | BackendCall::EvictLeaders { .. } => failure.kind.code(),
    };
    let words = format!("{}: {}", asked.call.name(), failure.words);
    let before = store.trouble.as_ref().or(seen.trouble.as_ref());
    let trouble = trouble(before, code, words, now);
    put_trouble(store, seen, Trouble { reading: is_question(&asked.call), ..trouble });
}

/// Some failures say what was to be known.
fn is_settled_by(
    store: &mut Store,
    seen: &mut Sighting,
    asked: &Asked,
    kind: FailureKind,
    now: Time,
) -> bool {
    let (not_found, not_possible) = (kind == FailureKind::NotFound, kind == FailureKind::NotPossible);
    match &asked.call {
        // Where there is no such store nothing keeps leaders from it either.
        BackendCall::EvictLeaders { on: false, .. } if not_found => {
            store.trouble = None;
            not_evicting(store, seen);
            true
        }
        BackendCall::State { removal, .. } if not_found => {
            looked(seen, asked.at, removal.is_some(), BackendState::Unknown, now);
            true
        }
        // They go with the data.
        BackendCall::EvictLeaders { on: true, .. } if not_possible && store.offline.is_some() => {
            let Some(removal) = &mut store.removal else { return false };
            removal.skip_eviction = true;
            store.trouble = None;
            true
        }
        BackendCall::Replicas
        | BackendCall::Members
        | BackendCall::Identify { .. }
        | BackendCall::State { .. }
        | BackendCall::Evictors { .. }
        | BackendCall::Preflight { .. }
        | BackendCall::EvictLeaders { .. }
        | BackendCall::BeginOffline { .. }
        | BackendCall::CancelOffline { .. }
        | BackendCall::Forget { .. } => false,
    }
}

/// After failures, the next try waits: 1 s, 2 s, 4 s, … up to a minute.
fn trouble(before: Option<&Trouble>, code: Code, message: String, now: Time) -> Trouble {
    let failures = before.map_or(0, |trouble| trouble.failures) + 1;
    let pause = Millis(BACKOFF_FIRST.0 << (failures - 1).min(10)).min(BACKOFF_MAX);
    let since = before.filter(|trouble| trouble.code == code).map_or(now, |trouble| trouble.since);
    Trouble { code, message, since, failures, next_try: now + pause, refusal: false, reading: false }
}

fn put_trouble(store: &mut Store, seen: &mut Sighting, trouble: Trouble) {
    match store.is_busy() {
        true => (store.trouble, seen.trouble) = (Some(trouble), None),
        false => seen.trouble = Some(trouble),
    }
}
