//! What nodes of a Redis cluster, and memos about them, may say.

use std::collections::BTreeMap;

use super::{Before, slots, view};
use crate::contract::{Memo, StoreId};

/// A view of all slots is made of whatever was said.
const ALL_SLOTS_MEMORY: u64 = 4 << 20;

#[test]
fn what_a_node_says_of_the_cluster_is_left_out_or_within_its_slots() {
    hostile::throw!("cluster_nodes", memory = ALL_SLOTS_MEMORY, inputs = 500, |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let nodes = view::parse(&text);
        for node in nodes.values() {
            assert!(node.slots.iter().all(|(first, last)| first <= last && *last < slots::SLOTS));
        }
        let tellers: Vec<StoreId> = nodes.keys().cloned().collect();
        let views = tellers.iter().map(|teller| (teller.clone(), nodes.clone())).collect();
        let survey = view::Survey { views, silent: BTreeMap::new() };
        for teller in tellers.iter().take(2) {
            let _any = (survey.slots_of(teller), survey.agrees_on(teller), survey.open_slots(teller));
        }
        if let Some(slots) = slots::from_text(&text) {
            assert_eq!(slots::from_text(&slots::to_text(&slots)), Some(slots));
        }
    });
}

#[test]
fn a_memo_is_refused_or_read() {
    hostile::throw!("memos", memory = ALL_SLOTS_MEMORY, inputs = hostile::INPUTS, |bytes: &[u8]| {
        let memo = Memo(String::from_utf8_lossy(bytes).into_owned());
        if let Ok(before) = Before::read(&memo, "test") {
            drop(before.slots("test"));
        }
    });
}
