//! What the nodes of a Redis cluster say of each other, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::StoreId;
use crate::redis::slots::{self, SLOTS};

/// One line of `CLUSTER NODES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: StoreId,
    /// `ip:port`.
    pub address: String,
    /// The port on which nodes speak among themselves.
    pub bus: String,
    pub myself: bool,
    pub replica_of: Option<StoreId>,
    /// Neither failed nor about to be called so.
    pub healthy: bool,
    pub epoch: u64,
    /// First and last of each range, in order. Kept as told: every view names every slot of the cluster.
    pub slots: Vec<(u16, u16)>,
    /// Slot and where to. Only a node's own line has these.
    pub migrating: BTreeMap<u16, StoreId>,
    /// Slot and from where. Only a node's own line has these.
    pub importing: BTreeMap<u16, StoreId>,
}

/// The answer to `CLUSTER NODES`. Lines that make no sense are left out: nodes in handshake, without an address.
pub fn parse(text: &str) -> BTreeMap<StoreId, Node> {
    text.lines().filter_map(parse_line).map(|node| (node.id.clone(), node)).collect()
}

fn parse_line(line: &str) -> Option<Node> {
    let mut words = line.split_ascii_whitespace();
    let id = StoreId(words.next()?.to_owned());
    let place = words.next()?.split(',').next()?;
    let (address, bus) = place.split_once('@')?;
    let (address, bus) = (address.to_owned(), bus.to_owned());
    let flags: Vec<&str> = words.next()?.split(',').collect();
    if flags.contains(&"handshake") || flags.contains(&"noaddr") {
        return None;
    }
    let replica_of =
        words.next().filter(|primary| *primary != "-").map(|primary| StoreId(primary.to_owned()));
    let epoch = words.nth(2)?.parse().ok()?;
    let _link = words.next()?;
    let mut node = Node {
        id,
        address,
        bus,
        myself: flags.contains(&"myself"),
        replica_of,
        healthy: !flags.contains(&"fail") && !flags.contains(&"fail?"),
        epoch,
        slots: Vec::new(),
        migrating: BTreeMap::new(),
        importing: BTreeMap::new(),
    };
    words.for_each(|word| take_slots(&mut node, word));
    Some(node)
}

fn take_slots(node: &mut Node, word: &str) {
    let open = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
    if let Some((slot, to)) = open.and_then(|open| open.split_once("->-")) {
        node.migrating.extend(slot.parse().ok().map(|slot: u16| (slot, StoreId(to.to_owned()))));
    } else if let Some((slot, from)) = open.and_then(|open| open.split_once("-<-")) {
        node.importing.extend(slot.parse().ok().map(|slot: u16| (slot, StoreId(from.to_owned()))));
    } else {
        node.slots.extend(slots::range_from_text(word));
    }
}

/// What every node that answered says, put together.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// By who said it.
    pub views: BTreeMap<StoreId, BTreeMap<StoreId, Node>>,
    /// Known to somebody, and did not answer; with why.
    pub silent: BTreeMap<StoreId, (Node, String)>,
}

impl Survey {
    pub fn answered(&self, id: &StoreId) -> bool {
        self.views.contains_key(id)
    }

    /// A node by its own account, or by that of others when it is silent.
    pub fn node(&self, id: &StoreId) -> Option<&Node> {
        let own = self.views.get(id).and_then(|view| view.get(id));
        own.or_else(|| self.silent.get(id).map(|(node, _)| node))
    }

    /// Everybody, each by the best account.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.views.keys().chain(self.silent.keys()).filter_map(|id| self.node(id))
    }

    /// Primaries that answered, by their own account.
    pub fn primaries(&self) -> impl Iterator<Item = &Node> {
        self.views.keys().filter_map(|id| self.node(id)).filter(|node| node.replica_of.is_none())
    }

    /// Whose each slot is: of those who claim it, the one with the highest epoch, as Redis itself decides.
    pub fn owners(&self) -> Vec<Option<&Node>> {
        let mut owners: Vec<Option<&Node>> = vec![None; usize::from(SLOTS)];
        for node in self.nodes().filter(|node| node.replica_of.is_none()) {
            for slot in node.slots.iter().flat_map(|(first, last)| *first..=*last) {
                let owner = &mut owners[usize::from(slot)];
                if owner.is_none_or(|owner| owner.epoch < node.epoch) {
                    *owner = Some(node);
                }
            }
        }
        owners
    }

    pub fn slots_of(&self, id: &StoreId) -> BTreeSet<u16> {
        let owners = self.owners();
        (0..SLOTS).filter(|slot| owners[usize::from(*slot)].is_some_and(|owner| owner.id == *id)).collect()
    }

    /// Whether all who answered agree on which slots are the store's, and everybody answered who is not known to
    /// have failed. Gossip after a failover takes a moment; until then a count may be too low.
    pub fn agrees_on(&self, id: &StoreId) -> bool {
        let slots = slots::ranges(&self.slots_of(id));
        let same = |view: &BTreeMap<StoreId, Node>| {
            view.get(id).map_or(slots.is_empty(), |node| node.slots == slots)
        };
        self.views.values().all(same) && self.silent.values().all(|(node, _)| !node.healthy || node.id == *id)
    }

    /// Whether anybody but itself knows the store.
    pub fn is_known(&self, id: &StoreId) -> bool {
        self.views.iter().any(|(teller, view)| teller != id && view.contains_key(id))
    }

    /// Slots that are half moved, to or from the store.
    pub fn open_slots(&self, id: &StoreId) -> BTreeSet<u16> {
        let mut open = BTreeSet::new();
        for node in self.views.keys().filter_map(|id| self.node(id)) {
            let flags = node.migrating.iter().chain(&node.importing);
            open.extend(flags.filter(|(_, peer)| node.id == *id || *peer == id).map(|(slot, _)| *slot));
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> StoreId {
        StoreId(name.to_owned())
    }

    fn survey(views: &[(&str, &str)]) -> Survey {
        let views = views.iter().map(|(teller, text)| (id(teller), parse(text))).collect();
        Survey { views, silent: BTreeMap::new() }
    }

    #[test]
    fn a_line_of_cluster_nodes_is_understood() {
        let nodes = parse(
            "a 127.0.0.1:30004@31004,host myself,master - 0 1426238317239 4 connected 0-5 9 [93-<-b] [77->-c]\n\
             b 127.0.0.1:30001@31001 slave,fail? a 0 1 3 connected\n\
             c :0@0 master,noaddr - 0 1 3 disconnected\n",
        );
        assert_eq!(nodes.len(), 2);
        let a = &nodes[&id("a")];
        assert_eq!((a.address.as_str(), a.myself, a.healthy, a.epoch), ("127.0.0.1:30004", true, true, 4));
        assert_eq!(a.slots, [(0, 5), (9, 9)]);
        assert_eq!(a.importing[&93], id("b"));
        assert_eq!(a.migrating[&77], id("c"));
        let b = &nodes[&id("b")];
        assert_eq!((b.healthy, b.replica_of.clone()), (false, Some(id("a"))));
    }

    #[test]
    fn of_two_who_claim_a_slot_the_later_epoch_owns_it_and_the_count_is_incomplete() {
        let survey = survey(&[
            ("a", "a h:1@2 myself,master - 0 0 1 connected 0-5\nb h:2@3 master - 0 0 2 connected 6-9"),
            ("b", "a h:1@2 master - 0 0 1 connected 0-4\nb h:2@3 myself,master - 0 0 2 connected 5-9"),
        ]);
        assert_eq!(survey.slots_of(&id("a")).len(), 5);
        assert_eq!(survey.slots_of(&id("b")).len(), 5);
        assert!(!survey.agrees_on(&id("a")));
    }

    #[test]
    fn views_that_agree_make_a_complete_count() {
        let survey = survey(&[
            ("a", "a h:1@2 myself,master - 0 0 1 connected 0-4\nb h:2@3 master - 0 0 2 connected 5-9"),
            ("b", "a h:1@2 master - 0 0 1 connected 0-4\nb h:2@3 myself,master - 0 0 2 connected 5-9"),
        ]);
        assert!(survey.agrees_on(&id("a")) && survey.agrees_on(&id("b")));
    }

    #[test]
    fn open_slots_are_those_of_either_side() {
        let survey = survey(&[
            ("a", "a h:1@2 myself,master - 0 0 1 connected 0-4 [3->-b]"),
            ("b", "b h:2@3 myself,master - 0 0 2 connected 5-9 [4-<-a] [8->-c]"),
        ]);
        assert_eq!(survey.open_slots(&id("a")), BTreeSet::from([3, 4]));
    }
}
