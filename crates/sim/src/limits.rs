//! Moves of feeds: no more at a time than may be, and to where the fewest are.

use std::collections::BTreeMap;

use model::{FeedName, MaintainerEpoch, NodeId, SpanName};

use crate::world::World;

/// Where each maintainer on a node sends its spans.
pub type Destinations = BTreeMap<(FeedName, MaintainerEpoch), BTreeMap<SpanName, NodeId>>;

impl World {
    /// What a node takes on at a time, over all feeds; and what all feeds have on the move.
    pub fn check_feed_moves(&mut self, machine: usize) {
        let limits = self.swarm.limits;
        let node = |at: usize| self.machines[at].daemon.as_ref().and_then(|daemon| daemon.node.as_ref());
        let arriving = node(machine).map_or(0, |node| node.dispatchers().arriving());
        // What only maintainers do changes only where they are.
        let acts = node(machine).is_some_and(|node| node.maintainers().any(|(_, m)| m.acts()));
        let maintainers = (0..self.machines.len()).filter_map(node).flat_map(|node| node.maintainers());
        let acting = maintainers.filter(|(_, m)| acts && m.acts());
        let moving: usize = acting.map(|(_, m)| m.moving()).sum();
        if acts {
            self.check_maintainers();
        }
        if arriving > limits.moves_per_node as usize {
            let most = limits.moves_per_node;
            self.fail(
                5,
                format!("m{machine} takes on {arriving} dispatchers at a time, {most} at most may be"),
            );
        }
        if moving > limits.moves_total as usize {
            let most = limits.moves_total;
            self.fail(5, format!("{moving} dispatchers are on the move, {most} at most may be"));
        }
    }

    pub fn destinations_on(&self, machine: usize) -> Destinations {
        if self.swarm.feeds == 0 {
            return Destinations::new();
        }
        let node = self.machines[machine].daemon.as_ref().and_then(|daemon| daemon.node.as_ref());
        let maintainers = node.into_iter().flat_map(|node| node.maintainers());
        let sends = maintainers.map(|(feed, maintainer)| {
            let to = maintainer.destinations().map(|(span, to)| (span.clone(), to.clone()));
            ((feed.clone(), maintainer.epoch()), to.collect())
        });
        sends.collect()
    }

    /// What was sent on its way in this step went to where the fewest of its feed are. Of equals the less
    /// loaded is preferred, by what hosts said last; that is for the maintainer's own tests.
    pub fn check_destinations(&mut self, machine: usize, before: &Destinations) {
        if self.swarm.feeds == 0 {
            return;
        }
        let now = self.local(machine);
        let Some(node) = self.machines[machine].daemon.as_ref().and_then(|daemon| daemon.node.as_ref())
        else {
            return;
        };
        let (mut wrong, mut closed) = (None, None);
        for (feed, maintainer) in node.maintainers().filter(|(_, maintainer)| maintainer.acts()) {
            let known = before.get(&(feed.clone(), maintainer.epoch()));
            let chosen = maintainer.destinations().filter(|(span, to)| {
                // A maintainer that has just come learns of what is under way; it has chosen nothing. Where
                // people asked for a span to be, they have chosen.
                known.is_some_and(|known| known.get(*span) != Some(*to)) && !maintainer.is_asked(span, to)
            });
            for (span, to) in chosen {
                if node.roster_view().is_closed(to) {
                    closed =
                        Some(format!("{feed}/{span} goes to {to}, which its maintainer knows to be closed"));
                }
                let mine = maintainer.share(to).saturating_sub(1);
                let others = maintainer.may_take(span, node.roster_view(), now);
                let better = others.into_iter().find(|(other, share)| other != to && *share < mine);
                if let Some((better, share)) = better {
                    wrong = Some(format!("{feed}/{span} goes to {to} with {mine}, and {better} has {share}"));
                }
            }
        }
        if let Some(closed) = closed {
            self.fail(7, closed);
        }
        if let Some(wrong) = wrong {
            self.fail(8, wrong);
        }
    }
}
