//! Hash slots as sets, as text, and shared out evenly.

use std::collections::{BTreeMap, BTreeSet};

/// Hash slots of a Redis cluster.
pub const SLOTS: u16 = 16_384;

/// First and last of each run of neighbours, in order.
pub fn ranges(slots: &BTreeSet<u16>) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *slot => *last = *slot,
            Some(_) | None => ranges.push((*slot, *slot)),
        }
    }
    ranges
}

/// `0-5` or `9`.
pub fn range_from_text(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < SLOTS).then_some((first, last))
}

/// `0-5,9` for {0,1,2,3,4,5,9}.
pub fn to_text(slots: &BTreeSet<u16>) -> String {
    let shown = ranges(slots).into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// The inverse of [`to_text`]; `None` for what is no list of slots.
pub fn from_text(text: &str) -> Option<BTreeSet<u16>> {
    let mut slots = BTreeSet::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range_from_text(range)?;
        slots.extend(first..=last);
    }
    Some(slots)
}

/// Gives `slots` to `targets` (with how many each has) so that those with the fewest end with as many as the others.
pub fn share_out<T: Clone + Ord>(
    slots: &BTreeSet<u16>,
    targets: &BTreeMap<T, usize>,
) -> BTreeMap<T, Vec<u16>> {
    let mut has: BTreeSet<(usize, &T)> = targets.iter().map(|(target, has)| (*has, target)).collect();
    let mut quota: BTreeMap<&T, usize> = BTreeMap::new();
    for _ in slots {
        let Some((count, target)) = has.pop_first() else { return BTreeMap::new() };
        *quota.entry(target).or_default() += 1;
        has.insert((count + 1, target));
    }
    // neighbours stay together: clients and nodes keep slots as ranges
    let mut left = slots.iter().copied();
    quota.into_iter().map(|(target, count)| (target.clone(), left.by_ref().take(count).collect())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_survive_their_text() {
        for text in ["", "0", "0-5,9", "0-16383", "3,5,7-8"] {
            assert_eq!(to_text(&from_text(text).unwrap()), text);
        }
        for rubbish in ["x", "5-3", "16384", "1-", "-", "1;2"] {
            assert_eq!(from_text(rubbish), None, "{rubbish}");
        }
    }

    #[test]
    fn those_with_few_slots_get_more() {
        let slots = from_text("0-99").unwrap();
        let shares = share_out(&slots, &BTreeMap::from([("a", 100), ("b", 50), ("c", 0)]));
        assert_eq!(shares.values().map(Vec::len).collect::<Vec<_>>(), [25, 75]);
        assert_eq!(shares["c"].len(), 75);
        let given: BTreeSet<u16> = shares.into_values().flatten().collect();
        assert_eq!(given, slots);
    }

    #[test]
    fn equals_get_equal_shares() {
        let slots = from_text("0-4095").unwrap();
        let shares = share_out(&slots, &BTreeMap::from([("a", 4096), ("b", 4096), ("c", 4096)]));
        assert!(shares.values().all(|share| (1365..=1366).contains(&share.len())));
    }
}
