//! Moving hash slots from one node to another, under the eyes of clients.
//!
//! A slot moves in five steps, many slots at a time:
//!
//! | step | at | a crash here leaves | found again by |
//! |---|---|---|---|
//! | `IMPORTING` | to | a flag; all is served by `from` | `to`'s flag |
//! | `MIGRATING` | from | both flags; keys that are missing are asked for at `to` | both flags |
//! | `MIGRATE` until no key is left | from | keys on both sides, each served where it is | both flags |
//! | `NODE` | to | `to` owns it with a higher epoch; `from` hears of it | `from`'s flag, or nothing is left to do |
//! | `NODE` | from, others | nothing | |
//!
//! From `MIGRATING` on no key appears at `from`: its number only falls. That is why an empty slot may be handed over,
//! and why of two copies of a key (an answer to `MIGRATE` was lost) the one at `from` is right.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value};

use crate::contract::{Moving, StoreId};
use crate::error::BackendError;
use crate::redis::link::{Link, Session};

/// Slots that are open at a time. Commands with several keys are put off (`TRYAGAIN`) in an open slot.
const SLOTS_AT_ONCE_MAX: usize = 256;
const SLOTS_AT_ONCE_MIN: usize = 8;
/// Keys in one `MIGRATE`, during which a node serves nobody else.
const KEYS_AT_ONCE_MAX: usize = 128;
const KEYS_AT_ONCE_MIN: usize = 1;
/// A batch of `MIGRATE` that takes longer makes the next one smaller; one of a quarter makes it larger.
const BATCH_TIME: Duration = Duration::from_millis(200);

/// How much goes at once; follows how long the last batch took.
pub struct Pace {
    slots: usize,
    keys: usize,
    deadline: Instant,
    last: Duration,
}

impl Pace {
    pub fn until(deadline: Instant) -> Pace {
        Pace { slots: 64, keys: 32, deadline, last: Duration::ZERO }
    }

    fn took(&mut self, time: Duration) {
        self.last = time;
        if time > BATCH_TIME {
            self.slots = (self.slots / 2).max(SLOTS_AT_ONCE_MIN);
            self.keys = (self.keys / 2).max(KEYS_AT_ONCE_MIN);
        } else if time < BATCH_TIME / 4 {
            self.slots = (self.slots * 2).min(SLOTS_AT_ONCE_MAX);
            self.keys = (self.keys * 2).min(KEYS_AT_ONCE_MAX);
        }
    }

    /// Whether another batch is likely to end in time.
    fn allows_another(&self) -> bool {
        Instant::now() + self.last * 2 < self.deadline
    }
}

/// Moves all of these, as far as time allows.
pub async fn move_slots(
    session: &Session,
    from: &StoreId,
    to: &StoreId,
    slots: &[u16],
    pace: &mut Pace,
) -> Result<Moving, BackendError> {
    let mut left = slots;
    while !left.is_empty() {
        if !pace.allows_another() {
            return Ok(Moving::Underway);
        }
        let (batch, rest) = left.split_at(pace.slots.min(left.len()));
        let began = Instant::now();
        move_batch(session, from, to, batch, pace.keys).await?;
        pace.took(began.elapsed());
        left = rest;
    }
    Ok(Moving::Complete)
}

async fn move_batch(
    session: &Session,
    from: &StoreId,
    to: &StoreId,
    slots: &[u16],
    keys: usize,
) -> Result<(), BackendError> {
    let (source, target) = (session.link(from)?, session.link(to)?);
    // "already the owner" and "not the owner" mean that the slot has moved since we looked
    let opened = set_slots(target, slots, "IMPORTING", from, &["already the owner"]).await?;
    let opened = set_slots(source, &opened, "MIGRATING", to, &["not the owner"]).await?;
    let mut full = opened.clone();
    while !full.is_empty() {
        full = drain(session, source, target, &full, keys, true).await?;
    }
    let held = count_keys(source, &opened).await?;
    if let Some((slot, count)) = held.iter().find(|(_, count)| **count > 0) {
        return Err(source.refused(&format!("slot {slot} still holds {count} keys after they were moved")));
    }
    set_slots(target, &opened, "NODE", to, &[]).await?;
    set_slots(source, &opened, "NODE", to, &[]).await?;
    // The rest would hear of it from the new owner; telling them saves clients a detour.
    let others = session.survey.primaries().filter(|node| node.id != *from && node.id != *to);
    let others: Vec<&Link> = others.filter_map(|node| session.links.get(&node.id)).collect();
    let told = others.iter().map(|link| set_slots(link, &opened, "NODE", to, &[""]));
    let _they_hear_of_it = join_all(told).await;
    Ok(())
}

/// `CLUSTER SETSLOT` for many; gives those that were set. Refusals with one of these words in them pass over a slot.
async fn set_slots(
    link: &Link,
    slots: &[u16],
    how: &str,
    peer: &StoreId,
    passed_over: &[&str],
) -> Result<Vec<u16>, BackendError> {
    let mut commands = Pipeline::with_capacity(slots.len());
    for slot in slots {
        commands.cmd("CLUSTER").arg("SETSLOT").arg(*slot).arg(how).arg(&peer.0);
    }
    let mut set = Vec::with_capacity(slots.len());
    if slots.is_empty() {
        return Ok(set);
    }
    for (slot, answer) in slots.iter().zip(link.many(&commands).await?) {
        match answer {
            Value::ServerError(words) => {
                let words = words.to_string();
                if !passed_over.iter().any(|word| words.contains(word)) {
                    return Err(link.refused(&format!("slot {slot}: {words}")));
                }
            }
            _set => set.push(*slot),
        }
    }
    Ok(set)
}

async fn count_keys(link: &Link, slots: &[u16]) -> Result<BTreeMap<u16, i64>, BackendError> {
    let mut commands = Pipeline::with_capacity(slots.len());
    for slot in slots {
        commands.cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(*slot);
    }
    if slots.is_empty() {
        return Ok(BTreeMap::new());
    }
    let counts = link.many(&commands).await?.into_iter().map(|answer| match answer {
        Value::Int(count) => Ok(count),
        other => Err(link.refused(&format!("COUNTKEYSINSLOT: {other:?}"))),
    });
    slots.iter().copied().zip(counts).map(|(slot, count)| Ok((slot, count?))).collect()
}

/// Moves one handful of keys of each slot; gives the slots that may hold more.
async fn drain(
    session: &Session,
    source: &Link,
    target: &Link,
    slots: &[u16],
    keys: usize,
    replace: bool,
) -> Result<Vec<u16>, BackendError> {
    let mut listing = Pipeline::with_capacity(slots.len());
    for slot in slots {
        listing.cmd("CLUSTER").arg("GETKEYSINSLOT").arg(*slot).arg(keys);
    }
    let mut moves = Pipeline::new();
    let mut full = Vec::new();
    for (slot, answer) in slots.iter().zip(source.many(&listing).await?) {
        let found: Vec<Vec<u8>> = redis::from_redis_value(answer)
            .map_err(|error| source.refused(&format!("GETKEYSINSLOT {slot}: {error}")))?;
        if found.len() == keys {
            full.push(*slot);
        }
        if !found.is_empty() {
            moves.add_command(migrate(session, target, &found, replace)?);
        }
    }
    if moves.is_empty() {
        return Ok(full);
    }
    for answer in source.many(&moves).await? {
        if let Value::ServerError(words) = answer {
            let words = words.to_string();
            // without REPLACE a key may be at the owner already; that one is right and stays
            if replace || !words.contains("BUSYKEY") {
                return Err(source.refused(&format!("MIGRATE to {}: {words}", target.address)));
            }
        }
    }
    Ok(full)
}

fn migrate(session: &Session, target: &Link, keys: &[Vec<u8>], replace: bool) -> Result<Cmd, BackendError> {
    let (host, port) = target.address.rsplit_once(':').ok_or_else(|| target.refused("has no port"))?;
    let mut command = redis::cmd("MIGRATE");
    // the time is for one standstill between the nodes, not for the whole
    command.arg(host).arg(port).arg("").arg(0).arg(5_000);
    if replace {
        command.arg("REPLACE");
    }
    match (&session.credentials.user, &session.credentials.password) {
        (Some(user), Some(password)) => command.arg("AUTH2").arg(user).arg(password),
        (None, Some(password)) => command.arg("AUTH").arg(password),
        (Some(_) | None, None) => &mut command,
    };
    command.arg("KEYS").arg(keys);
    Ok(command)
}

/// Ends the moves of single slots that an earlier call has left half done, to or from `store`. Both sides are
/// looked at, and what is half moved goes on in its direction: only so is every key always where clients ask for it.
pub async fn close_open_slots(
    session: &mut Session,
    store: &StoreId,
    pace: &mut Pace,
) -> Result<Moving, BackendError> {
    let open = session.survey.open_slots(store);
    if open.is_empty() {
        return Ok(Moving::Complete);
    }
    let mut onward: BTreeMap<(StoreId, StoreId), Vec<u16>> = BTreeMap::new();
    let mut stale: BTreeMap<(StoreId, StoreId), Vec<u16>> = BTreeMap::new();
    {
        let owners = session.survey.owners();
        for slot in open {
            let Some(owner) = owners[usize::from(slot)] else { continue };
            let to = destination(session, slot, &owner.id)?;
            let holders = session.survey.primaries().filter(|node| node.id != owner.id);
            for node in holders.filter(|node| {
                node.migrating.contains_key(&slot)
                    || node.importing.contains_key(&slot) && Some(&node.id) != to.as_ref()
            }) {
                let keeper = to.clone().unwrap_or_else(|| owner.id.clone());
                stale.entry((node.id.clone(), keeper)).or_default().push(slot);
            }
            match to {
                Some(to) => onward.entry((owner.id.clone(), to)).or_default().push(slot),
                // an owner whose flags lead nowhere
                None => stale.entry((owner.id.clone(), owner.id.clone())).or_default().push(slot),
            }
        }
    }
    for ((node, keeper), slots) in stale {
        settle(session, &node, &keeper, &slots).await?;
    }
    for ((from, to), slots) in onward {
        if move_slots(session, &from, &to, &slots, pace).await? == Moving::Underway {
            return Ok(Moving::Underway);
        }
    }
    session.look_again().await?;
    Ok(Moving::Complete)
}

/// Where a half-moved slot is going: to who imports it, or to whom its owner says.
fn destination(session: &Session, slot: u16, owner: &StoreId) -> Result<Option<StoreId>, BackendError> {
    let survey = &session.survey;
    let says = survey.node(owner).and_then(|node| node.migrating.get(&slot)).cloned();
    let importers: BTreeSet<&StoreId> = survey
        .primaries()
        .filter(|node| node.id != *owner && node.importing.contains_key(&slot))
        .map(|node| &node.id)
        .collect();
    let Some(said) = says.filter(|said| !importers.contains(said)) else {
        let says = survey.node(owner).and_then(|node| node.migrating.get(&slot));
        return Ok(says.or_else(|| importers.first().copied()).cloned());
    };
    // Its keys are where the target's are: after a failover, at the target's former replica.
    match survey.node(&said) {
        Some(node) => Ok(Some(node.replica_of.clone().unwrap_or(said))),
        None => Err(BackendError::NotPossible {
            operation: session.operation,
            why: format!("slot {slot} is half moved to {said}, which nobody knows any more"),
        }),
    }
}

/// Takes flags away that mean nothing any more, and keys that were left under them to where the slot is.
async fn settle(
    session: &Session,
    node: &StoreId,
    keeper: &StoreId,
    slots: &[u16],
) -> Result<(), BackendError> {
    let link = session.link(node)?;
    if node != keeper {
        let held = count_keys(link, slots).await?;
        let held: Vec<u16> = held.into_iter().filter(|(_, count)| *count > 0).map(|(slot, _)| slot).collect();
        if !held.is_empty() {
            drain(session, link, session.link(keeper)?, &held, usize::from(u16::MAX), false).await?;
        }
    }
    let mut commands = Pipeline::with_capacity(slots.len());
    for slot in slots {
        commands.cmd("CLUSTER").arg("SETSLOT").arg(*slot).arg("STABLE");
    }
    link.many(&commands).await.map(|_| ())
}
