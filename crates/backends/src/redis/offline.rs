//! A node's way out of the cluster, back in, and out of everybody's books.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Value;
use tokio::time::sleep;

use crate::contract::{Moving, StoreId};
use crate::error::BackendError;
use crate::redis::link::Session;
use crate::redis::moves::{Pace, close_open_slots, move_slots};
use crate::redis::view::Node;
use crate::redis::{Before, FOLLOW_SLOTS, KEEP_AWAY, failover, slots};

const JOIN_POLL: Duration = Duration::from_millis(50);

/// Primaries that may be given slots, with how many they have: those that answer and that leaders are not kept
/// from. The latter are on their way out themselves.
pub async fn takers(session: &Session, store: &StoreId) -> Result<BTreeMap<StoreId, usize>, BackendError> {
    let mut takers = BTreeMap::new();
    let owners = session.survey.owners();
    for node in session.survey.primaries().filter(|node| node.id != *store && node.healthy) {
        if session.link(&node.id)?.config(KEEP_AWAY).await? != "yes" {
            let owned = owners.iter().flatten().filter(|owner| owner.id == node.id).count();
            takers.insert(node.id.clone(), owned);
        }
    }
    Ok(takers)
}

/// `primaries_min` must be left for slots to be moved; they were when it was asked whether the store can go, or a replica was
/// to take over and did not.
pub async fn begin(
    mut session: Session,
    store: &StoreId,
    primaries_min: u64,
    deadline: Instant,
) -> Result<Moving, BackendError> {
    if !session.survey.is_known(store) {
        return Ok(Moving::Complete);
    }
    if session.survey.slots_of(store).is_empty() && session.survey.open_slots(store).is_empty() {
        // A dead node that leads nothing needs no more than to be forgotten.
        if let Ok(link) = session.link(store) {
            link.configure(KEEP_AWAY, "yes").await?;
        }
        return Ok(Moving::Complete);
    }
    let leads = !session.survey.slots_of(store).is_empty();
    let link = match session.link(store) {
        Ok(link) => Some(link.clone()),
        Err(error) if leads => return Err(error),
        // it died, and what it had half moved is its successor's to finish
        Err(_) => None,
    };
    let left = takers(&session, store).await?.len() as u64;
    if leads && left < primaries_min {
        let why =
            format!("{left} primaries would be left, and {primaries_min} are needed; no replica took over");
        return Err(BackendError::NotPossible { operation: session.operation, why });
    }
    session.fence().await?;
    session.look_again().await?;
    if let Some(link) = link {
        link.configure(KEEP_AWAY, "yes").await?;
        link.configure(FOLLOW_SLOTS, "no").await?;
    }
    let mut pace = Pace::until(deadline);
    if close_open_slots(&mut session, store, &mut pace).await? == Moving::Underway {
        return Ok(Moving::Underway);
    }
    let takers = takers(&session, store).await?;
    let left = session.survey.slots_of(store);
    if takers.is_empty() && !left.is_empty() {
        return Err(BackendError::NotPossible {
            operation: session.operation,
            why: format!("no primary is left that could take {} slots", left.len()),
        });
    }
    for (taker, share) in slots::share_out(&left, &takers) {
        if move_slots(&session, store, &taker, &share, &mut pace).await? == Moving::Underway {
            return Ok(Moving::Underway);
        }
    }
    session.look_again().await?;
    let left = session.survey.slots_of(store).len() + session.survey.open_slots(store).len();
    Ok(if left == 0 { Moving::Complete } else { Moving::Underway })
}

pub async fn cancel(
    mut session: Session,
    store: &StoreId,
    before: &Before,
    deadline: Instant,
) -> Result<Moving, BackendError> {
    if !session.survey.is_known(store) {
        let why = format!("{store} was removed from the cluster already");
        return Err(BackendError::NotPossible { operation: session.operation, why });
    }
    let link = session.link(store)?.clone();
    session.fence().await?;
    session.look_again().await?;
    link.configure(KEEP_AWAY, "no").await?;
    let mut pace = Pace::until(deadline);
    if close_open_slots(&mut session, store, &mut pace).await? == Moving::Underway {
        return Ok(Moving::Underway);
    }
    let wanted = before.slots(session.operation)?;
    if !wanted.is_empty() {
        be_primary(&mut session, store, &wanted).await?;
        let mut away: BTreeMap<StoreId, Vec<u16>> = BTreeMap::new();
        let owners = session.survey.owners();
        for slot in wanted {
            if let Some(owner) = owners[usize::from(slot)].filter(|owner| owner.id != *store) {
                away.entry(owner.id.clone()).or_default().push(slot);
            }
        }
        drop(owners);
        for (owner, slots) in away {
            if move_slots(&session, &owner, store, &slots, &mut pace).await? == Moving::Underway {
                return Ok(Moving::Underway);
            }
        }
        session.look_again().await?;
        call_replicas_back(&session, store, before).await?;
    }
    link.configure(FOLLOW_SLOTS, &before.follow_slots).await?;
    Ok(Moving::Complete)
}

/// A node that led before must be a primary to be given slots. One that was restarted when it was empty may have
/// become a replica: of whoever has its slots, or of some other.
async fn be_primary(
    session: &mut Session,
    store: &StoreId,
    wanted: &BTreeSet<u16>,
) -> Result<(), BackendError> {
    let Some(primary) = session.survey.node(store).and_then(|node| node.replica_of.clone()) else {
        return Ok(());
    };
    let link = session.link(store)?.clone();
    let leads = |session: &Session| session.survey.node(store).is_some_and(|node| node.replica_of.is_none());
    // To take over from one that has other slots, too, would take those as well.
    if *wanted == session.survey.slots_of(&primary) {
        return failover(session, &link, leads).await;
    }
    // What a replica holds is a copy. It keeps its identity, and is introduced anew.
    let place = session.survey.node(store).and_then(|node| Some((node.address.rsplit_once(':')?, &node.bus)));
    let ((host, port), bus) = place.ok_or_else(|| link.refused("has no port"))?;
    let mut meet = redis::cmd("CLUSTER");
    meet.arg("MEET").arg(host).arg(port).arg(bus);
    link.one(redis::cmd("CLUSTER").arg("RESET").arg("SOFT")).await?;
    session.link(&primary)?.one(&meet).await?;
    loop {
        session.look_again().await?;
        let met = |view: &BTreeMap<StoreId, Node>| {
            view.len() >= session.links.len() && view.get(store).is_some_and(|node| node.replica_of.is_none())
        };
        // a primary that has just joined takes nothing yet
        let serves = link.text(redis::cmd("CLUSTER").arg("INFO")).await?.contains("cluster_state:ok");
        if serves && session.survey.views.values().all(met) {
            return Ok(());
        }
        sleep(JOIN_POLL).await;
    }
}

/// Replicas of an emptied primary have followed its slots, and Redis may have given it one of another's instead: every one
/// goes back to whom it followed.
async fn call_replicas_back(session: &Session, store: &StoreId, before: &Before) -> Result<(), BackendError> {
    let own = before.replicas.iter().map(|replica| (replica, store));
    for (replica, primary) in own.chain(&before.others) {
        let follows = session.survey.node(replica).and_then(|node| node.replica_of.as_ref());
        // whom the others follow is nobody's business here, unless it is this store
        let strayed = follows.is_some_and(|now| now != primary && (primary == store || now == store));
        let leads = session.survey.node(primary).is_some_and(|node| node.replica_of.is_none());
        if let (true, true, Ok(link)) = (strayed, leads, session.link(replica)) {
            link.one(redis::cmd("CLUSTER").arg("REPLICATE").arg(&primary.0)).await?;
        }
    }
    Ok(())
}

/// Everybody forgets the node within the minute in which each refuses to hear of it again from others; then the node
/// forgets them.
pub async fn forget(session: Session, store: &StoreId) -> Result<(), BackendError> {
    let survey = &session.survey;
    let held = survey.slots_of(store).len() + survey.open_slots(store).len();
    // A node on its own, after an earlier call, leads nothing either.
    if held > 0 {
        let why = format!("{store} still has {held} slots");
        return Err(BackendError::NotPossible { operation: session.operation, why });
    }
    // One that is silent and not known to have failed would tell the others of it when their minute is over.
    for (id, (node, _)) in survey.silent.iter().filter(|(id, (node, _))| *id != store && node.healthy) {
        session.link(id).map_err(|error| BackendError::Unreachable {
            operation: session.operation,
            whom: node.address.clone(),
            why: error.to_string(),
        })?;
    }
    adopt_orphans(&session, store).await?;
    let others = session.links.iter().filter(|(id, _)| *id != store);
    let told = others.map(|(_, link)| async move {
        let mut forget = redis::pipe();
        forget.cmd("CLUSTER").arg("FORGET").arg(&store.0);
        match link.many(&forget).await?.pop() {
            Some(Value::ServerError(words)) if !words.to_string().contains("Unknown node") => {
                Err(link.refused(&words.to_string()))
            }
            Some(_) | None => Ok(()),
        }
    });
    join_all(told).await.into_iter().collect::<Result<(), _>>()?;
    match session.link(store) {
        Ok(link) => link.one(redis::cmd("CLUSTER").arg("RESET").arg("HARD")).await.map(|_| ()),
        Err(_) => Ok(()),
    }
}

/// A replica cannot forget its primary.
async fn adopt_orphans(session: &Session, store: &StoreId) -> Result<(), BackendError> {
    let orphans = session.survey.nodes().filter(|node| node.replica_of.as_ref() == Some(store));
    let orphans: Vec<StoreId> = orphans.map(|node| node.id.clone()).collect();
    if orphans.is_empty() {
        return Ok(());
    }
    let mut parents: Vec<StoreId> = takers(session, store).await?.into_keys().collect();
    let replicas = |parent: &StoreId| {
        session.survey.nodes().filter(|node| node.replica_of.as_ref() == Some(parent)).count()
    };
    parents.sort_by_key(replicas);
    for (orphan, parent) in orphans.iter().zip(parents.iter().cycle()) {
        session.link(orphan)?.one(redis::cmd("CLUSTER").arg("REPLICATE").arg(&parent.0)).await?;
    }
    Ok(())
}
