//! Whether what counts as one state has one future: what makes leaving out the others right.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use crate::{config::Config, search::beginning, step::Action, world::World};

/// Looks at every arrival at every state, not only at the first, and compares what can follow. Returns how
/// many arrivals at known states there were, or how two of them differ.
pub fn futures_agree(config: Config) -> Result<usize, String> {
    let mut known: HashMap<u64, Vec<(u64, Action)>> = HashMap::new();
    let mut queue = VecDeque::from([beginning(&Arc::new(config))]);
    let mut again = 0;
    while let Some(world) = queue.pop_front() {
        let mut actions = Vec::new();
        world.actions(&mut actions);
        let next: Vec<World> = actions.iter().map(|action| world.after(*action)).collect();
        let mut follow: Vec<(u64, Action)> = next.iter().map(World::fingerprint).zip(actions).collect();
        follow.sort_by_key(|(state, _)| *state);
        match known.get(&world.fingerprint()) {
            Some(first) => {
                again += 1;
                if !first.iter().map(|(state, _)| state).eq(follow.iter().map(|(state, _)| state)) {
                    return Err(format!("one state leads to {first:?} and to {follow:?}"));
                }
            }
            None => {
                known.insert(world.fingerprint(), follow);
                queue.extend(next);
            }
        }
    }
    Ok(again)
}
