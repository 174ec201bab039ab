//! A failing seed made shorter: faults and requests are left out, and what the swarm does beside them is
//! switched off, for as long as the same invariant fails.

use crate::{Failure, Item, Options, Outcome, Script, play, script::switches};

/// Other courses of the same items that are tried before one counts as needed.
const COURSES: u64 = 3;
/// What follows the last item takes this long at least.
const AFTERMATH: u64 = 10_000;

/// What is left of a failing seed.
#[derive(Clone, Debug)]
pub struct Shrunk {
    pub script: Script,
    pub failure: Failure,
    /// Items of the seed until it failed, and of the script.
    pub items: (usize, usize),
    pub runs: u32,
    text: String,
}

impl Shrunk {
    /// What `tidegate-sim --script` takes.
    pub fn text(&self) -> &str {
        &self.text
    }
}

struct Shrinker {
    invariant: u32,
    runs: u32,
    runs_max: u32,
}

/// Makes a failing seed shorter; `None` if it does not fail.
pub fn shrink(seed: u64, runs_max: u32) -> Option<Shrunk> {
    let whole = play(&Script::whole(seed), &Options::default());
    let invariant = whole.failure.as_ref()?.invariant;
    let all: Vec<Item> = whole.played.iter().map(|played| played.item).collect();
    let mut script = Script { items: Some(all.iter().copied().collect()), ..Script::whole(seed) };
    let mut shrinker = Shrinker { invariant, runs: 1, runs_max };
    shrinker.switch_off(&mut script);
    let left = reduce(all.clone(), |some| shrinker.try_items(&mut script, some));
    script.items = Some(left.iter().copied().collect());
    shrinker.switch_off(&mut script);
    shrinker.end_sooner(&mut script);
    let last = play(&script, &Options { lines: true, ..Options::default() });
    let failure = last.failure?;
    let head = format!("{failure}\n{} of {} faults and requests are left", left.len(), all.len());
    let text = script.explained(&last.played, &head);
    Some(Shrunk { script, failure, items: (all.len(), left.len()), runs: shrinker.runs, text })
}

impl Shrinker {
    /// Whether it still fails, in this course of things or another; the script then names the course.
    fn fails(&mut self, script: &mut Script) -> Option<Outcome> {
        let first = script.noise;
        for noise in std::iter::once(first).chain((0..COURSES).filter(|noise| *noise != first)) {
            if self.runs >= self.runs_max {
                break;
            }
            self.runs += 1;
            script.noise = noise;
            let outcome = play(script, &Options::default());
            if outcome.failure.as_ref().is_some_and(|failure| failure.invariant == self.invariant) {
                return Some(outcome);
            }
        }
        script.noise = first;
        None
    }

    fn try_items(&mut self, script: &mut Script, some: &[Item]) -> bool {
        let mut tried = Script { items: Some(some.iter().copied().collect()), ..script.clone() };
        let fails = self.fails(&mut tried).is_some();
        if fails {
            *script = tried;
        }
        fails
    }

    fn switch_off(&mut self, script: &mut Script) {
        let on: Vec<&str> = switches().filter(|name| !script.off.contains(*name)).collect();
        let left = reduce(on.clone(), |some| {
            let off = on.iter().filter(|name| !some.contains(name)).map(|name| (*name).to_owned());
            let mut tried = script.clone();
            tried.off.extend(off);
            let fails = self.fails(&mut tried).is_some();
            if fails {
                script.noise = tried.noise;
            }
            fails
        });
        script.off.extend(on.iter().filter(|name| !left.contains(name)).map(|name| (*name).to_owned()));
    }

    /// Nothing has to go on long after the last item.
    fn end_sooner(&mut self, script: &mut Script) {
        let outcome = play(script, &Options::default());
        let Some(last) = outcome.played.iter().map(|played| played.at).max() else { return };
        let mut tried = Script { end: Some(last + AFTERMATH), ..script.clone() };
        if self.fails(&mut tried).is_some() {
            *script = tried;
        }
    }
}

/// Leaves out as many as possible while `fails` holds of the rest: halves first, then smaller parts (ddmin). It
/// holds of all of them.
pub fn reduce<T: Clone>(mut items: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut parts = 1;
    while !items.is_empty() {
        let size = items.len().div_ceil(parts);
        let mut at = 0;
        let mut less = false;
        while at < items.len() {
            let mut rest = items.clone();
            rest.drain(at..(at + size).min(items.len()));
            if fails(&rest) {
                (items, less) = (rest, true);
            } else {
                at += size;
            }
        }
        if size == 1 && !less {
            break;
        }
        if !less || parts == 1 {
            parts = (parts * 2).min(items.len().max(1));
        }
    }
    items
}
