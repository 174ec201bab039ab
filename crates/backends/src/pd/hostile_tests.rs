//! What a PD, and memos about its stores, may say.

use super::{Before, Kept, read, shapes};
use crate::contract::Memo;

#[test]
fn an_answer_of_pd_is_refused_or_read() {
    hostile::throw!("pd", |bytes: &[u8]| {
        if let Ok(all) = serde_json::from_slice::<shapes::Stores>(bytes) {
            for store in &all.stores {
                let _any = (store.life(), store.is_tiflash(), store.is_well());
            }
        }
        drop(serde_json::from_slice::<shapes::Members>(bytes));
        drop(serde_json::from_slice::<shapes::PdStatus>(bytes));
        drop(serde_json::from_slice::<shapes::RegionCount>(bytes));
        drop(serde_json::from_slice::<shapes::Replicate>(bytes));
        drop(serde_json::from_slice::<shapes::Schedule>(bytes));
        drop(serde_json::from_slice::<shapes::EvictLeader>(bytes));
        drop(serde_json::from_slice::<shapes::Progress>(bytes));
        drop(serde_json::from_slice::<shapes::Limit>(bytes));
        drop(shapes::Size::try_from(String::from_utf8_lossy(bytes).into_owned()));
    });
}

#[test]
fn a_memo_is_refused_or_read() {
    hostile::throw!("memos", |bytes: &[u8]| {
        let memo = Memo(String::from_utf8_lossy(bytes).into_owned());
        drop(read::<Before>(&memo, "test"));
        drop(read::<Kept>(&memo, "test"));
    });
}
