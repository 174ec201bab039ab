//! What a command of the user's may print.

use super::{Answer, last_lines};
use crate::contract::{Eviction, Member, Moving, Preflight, StoreId, StoreState};

#[test]
fn an_answer_of_a_command_is_refused_or_read() {
    hostile::throw!("command_answers", |bytes: &[u8]| {
        drop(serde_json::from_slice::<Answer<Vec<Member>>>(bytes));
        drop(serde_json::from_slice::<Answer<StoreId>>(bytes));
        drop(serde_json::from_slice::<Answer<u64>>(bytes));
        drop(serde_json::from_slice::<Answer<StoreState>>(bytes));
        drop(serde_json::from_slice::<Answer<Eviction>>(bytes));
        drop(serde_json::from_slice::<Answer<Preflight>>(bytes));
        drop(serde_json::from_slice::<Answer<Moving>>(bytes));
        drop(serde_json::from_slice::<Answer<()>>(bytes));
        drop(last_lines(bytes));
    });
}
