//! What a change of a store or its group tells those who follow along.

use crate::{Cluster, Event, EventKind, OfflineWhy, Store, StoreGroup, Time};

type Fields = Vec<(&'static str, String)>;

pub(crate) fn of_group(cluster: &Cluster, group: &StoreGroup, now: Time) -> Option<Event> {
    let message = match cluster.store_group(group.name.as_str()) {
        None => format!("created, {} replicas", group.replicas),
        Some(before) if group.destroyed && !before.destroyed => "to be destroyed with its data".to_owned(),
        Some(before) if before.replicas != group.replicas => {
            format!("replicas {} to {}", before.replicas, group.replicas)
        }
        Some(before) if before.spec != group.spec => "changed".to_owned(),
        Some(_) => return None,
    };
    let unit = format!("store-group/{}", group.name);
    let fields = vec![("replicas", group.replicas.to_string())];
    Some(Event { kind: EventKind::StoreGroupApplied, at: now, unit, message, fields })
}

pub(crate) fn of_store(cluster: &Cluster, store: &Store, now: Time) -> Vec<Event> {
    let before = cluster.store(store.id.as_str());
    let mut events = Vec::new();
    let mut note = |kind: EventKind, message: String, fields: Fields| {
        events.push(Event { kind, at: now, unit: format!("store/{}", store.id), message, fields });
    };
    let blank = Store::new(&store.group, store.ordinal, store.created_at);
    let old = before.unwrap_or(&blank);
    if let Some((to, message)) = offline_changed(old, store) {
        note(EventKind::StoreOfflineChanged, message, vec![("to", to.to_owned())]);
    }
    let evictor = |store: &Store| store.evictor.is_some();
    if evictor(old) != evictor(store) {
        let (to, message) = match evictor(store) {
            true => ("on", "leaders are kept away"),
            false => ("off", "leaders may return"),
        };
        note(EventKind::StoreEvictorChanged, message.to_owned(), vec![("to", to.to_owned())]);
    }
    if let Some((to, message)) = restart_changed(old, store) {
        note(EventKind::StoreRestartChanged, message.to_owned(), vec![("to", to.to_owned())]);
    }
    events
}

fn offline_changed(old: &Store, new: &Store) -> Option<(&'static str, String)> {
    if old.removed_at.is_none() && new.removed_at.is_some() {
        let message = match new.offline.is_some() {
            true => "the backend has removed it; its process and its volume go",
            false => {
                "the backend had removed it when its way out was cancelled: too late; its process and volume go"
            }
        };
        return Some(("removed", message.to_owned()));
    }
    match (&old.offline, &new.offline) {
        (None, Some(offline)) => {
            let why = match offline.why {
                OfflineWhy::ScaleIn => "there are more than asked for",
                OfflineWhy::Drain => "its node is to be emptied",
            };
            return Some(("offline", format!("to leave its backend: {why}")));
        }
        (Some(_), None) => return Some(("online", "to stay after all".to_owned())),
        (Some(_), Some(_)) | (None, None) => {}
    }
    let begun = |store: &Store| store.removal.as_ref().is_some_and(|removal| removal.begun.is_some());
    match (begun(old), begun(new)) {
        (false, true) => Some(("removing", "its data is taken elsewhere".to_owned())),
        (true, false) if new.removed_at.is_none() => Some(("serving", "it serves again".to_owned())),
        (true, true) | (false, false) | (true, false) => None,
    }
}

fn restart_changed(old: &Store, new: &Store) -> Option<(&'static str, &'static str)> {
    match (&old.restart, &new.restart) {
        (None, Some(_)) => Some(("begun", "to be restarted once it has no leaders")),
        (Some(before), Some(after)) if before.stopped_at.is_none() && after.stopped_at.is_some() => {
            Some(("stopped", "told to stop; it starts again once it has"))
        }
        (Some(_), None) => Some(("ended", "restart ended")),
        (Some(_), Some(_)) | (None, None) => None,
    }
}
