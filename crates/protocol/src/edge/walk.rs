//! Random walks: whatever comes in whatever order, a confirmation holds and no connection is lost.

use std::collections::{BTreeMap, BTreeSet};

use model::{InstanceId, Millis, ServiceName, Term, Time};
use proptest::prelude::*;

use super::{Attempt, ConnId, Edge, Input, Output};
use crate::message::{Backend, BackendSet, Duty, SetRevision, Sets};

#[derive(Clone, Debug)]
enum Step {
    /// A set of one service: which instances, by bits, and whether it listens.
    Delta {
        service: u8,
        members: u8,
        listens: bool,
    },
    Full {
        members: [u8; 2],
    },
    /// A message that came before, again.
    Repeat {
        which: u8,
    },
    Gap {
        members: u8,
    },
    Accept {
        service: u8,
    },
    /// An answer to any dial ever made, superseded ones included.
    Answer {
        which: u8,
        ok: bool,
    },
    Close {
        which: u8,
    },
    Port {
        service: u8,
        ok: bool,
    },
    Pass {
        millis: u16,
    },
    /// Leave, or come back with the sets of today.
    Duty {
        away: bool,
    },
    /// A port that was told to close is closed.
    Unlistened {
        service: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..2u8, any::<u8>(), prop::bool::weighted(0.8))
            .prop_map(|(service, members, listens)| Step::Delta { service, members, listens }),
        1 => any::<[u8; 2]>().prop_map(|members| Step::Full { members }),
        1 => any::<u8>().prop_map(|which| Step::Repeat { which }),
        1 => any::<u8>().prop_map(|members| Step::Gap { members }),
        6 => (0..2u8).prop_map(|service| Step::Accept { service }),
        8 => (any::<u8>(), any::<bool>()).prop_map(|(which, ok)| Step::Answer { which, ok }),
        3 => any::<u8>().prop_map(|which| Step::Close { which }),
        1 => (0..2u8, any::<bool>()).prop_map(|(service, ok)| Step::Port { service, ok }),
        3 => (0..4000u16).prop_map(|millis| Step::Pass { millis }),
        1 => any::<bool>().prop_map(|away| Step::Duty { away }),
        2 => (0..2u8).prop_map(|service| Step::Unlistened { service }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Copied(InstanceId),
    /// Refused, cut or closed.
    Over,
}

/// The world around an edge: what it confirmed, and what became of each connection.
struct Walk {
    edge: Edge,
    now: Time,
    number: u64,
    sent: Vec<Sets>,
    /// By service: the instances of the revision it last confirmed.
    confirmed: BTreeMap<ServiceName, BTreeSet<InstanceId>>,
    fates: BTreeMap<ConnId, Fate>,
    dials: Vec<(ConnId, Attempt)>,
    current: BTreeMap<ConnId, Attempt>,
    /// It leaves: its connections have their grace.
    may_cut: bool,
}

fn name(service: u8) -> ServiceName {
    ServiceName::new(if service == 0 { "api" } else { "web" })
}

fn port(service: u8) -> u16 {
    8000 + u16::from(service)
}

/// Instances of the two services never share an id.
fn set_of(service: u8, members: u8, listens: bool) -> BackendSet {
    let ids = (0..4u64).filter(|bit| members & (1 << bit) != 0).map(|bit| bit + 100 * u64::from(service));
    let backend = |id| Backend { instance: InstanceId(id), address: format!("h:{id}") };
    BackendSet {
        service: name(service),
        listen: listens.then_some(port(service)),
        grace: Millis(3000),
        backends: ids.map(backend).collect(),
    }
}

impl Walk {
    fn new() -> Walk {
        Walk {
            edge: Edge::new(),
            now: Time(0),
            number: 0,
            sent: Vec::new(),
            confirmed: BTreeMap::new(),
            fates: BTreeMap::new(),
            dials: Vec::new(),
            current: BTreeMap::new(),
            may_cut: false,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Delta { service, members, listens } => {
                self.send(false, vec![set_of(service, members, listens)]);
            }
            Step::Full { members } => {
                self.send(true, vec![set_of(0, members[0], true), set_of(1, members[1], true)]);
            }
            Step::Repeat { which } => {
                if let Some(sets) = pick(&self.sent, which).cloned() {
                    self.give(Input::Sets(sets));
                }
            }
            Step::Gap { members } => {
                let at = |number| SetRevision { term: Term(1), number };
                let sets = vec![set_of(0, members, true)];
                let (revision, since) = (at(self.number + 2), at(self.number + 1));
                let out = self.give(Input::Sets(Sets { revision, since, full: false, sets }));
                assert_eq!(out, [], "a gap must not be applied");
            }
            Step::Accept { service } => {
                let conn = ConnId(self.fates.len() as u64);
                self.fates.insert(conn, Fate::Open);
                self.give(Input::Accepted { conn, port: port(service) });
            }
            Step::Answer { which, ok } => {
                if let Some((conn, attempt)) = pick(&self.dials, which).copied() {
                    self.give(match ok {
                        true => Input::Dialled { conn, attempt },
                        false => Input::DialFailed { conn, attempt },
                    });
                }
            }
            Step::Close { which } => {
                let ids: Vec<ConnId> = self.fates.keys().copied().collect();
                if let Some(conn) = pick(&ids, which).copied() {
                    self.fates.insert(conn, Fate::Over);
                    self.give(Input::Closed { conn });
                }
            }
            Step::Port { service, ok } => {
                let port = port(service);
                self.give(match ok {
                    true => Input::Listening { port },
                    false => Input::ListenFailed { port, message: "in use".to_owned() },
                });
            }
            Step::Pass { millis } => {
                self.now = self.now + Millis(u64::from(millis));
                self.give(Input::Tick);
                assert!(self.edge.next_wake().is_none_or(|wake| wake > self.now), "nothing due is left");
            }
            Step::Duty { away: true } => {
                self.give(Input::Duty(Duty::Withdraw { drain: self.number }));
            }
            Step::Duty { away: false } => self.come_back(),
            Step::Unlistened { service } => {
                self.give(Input::Unlistened { port: port(service) });
            }
        }
        self.check_counts();
    }

    fn come_back(&mut self) {
        let from = SetRevision { term: Term(1), number: self.number };
        self.give(Input::Duty(Duty::Serve { from }));
        let serves = self.edge.serves().is_some_and(|serves| serves >= from);
        assert!(self.edge.withdrawal().is_none() || !serves, "it has what it needs to come back");
    }

    fn send(&mut self, full: bool, sets: Vec<BackendSet>) {
        let since = SetRevision { term: Term(1), number: self.number };
        self.number += 1;
        let sets = Sets { revision: SetRevision { term: Term(1), number: self.number }, since, full, sets };
        self.sent.push(sets.clone());
        self.give(Input::Sets(sets));
    }

    fn give(&mut self, input: Input) -> Vec<Output> {
        let revision = self.edge.serves();
        let answered = match &input {
            Input::Dialled { conn, attempt } => self.current.get(conn) == Some(attempt),
            _ => false,
        };
        let was_open = match &input {
            Input::Dialled { conn, .. } => self.fates.get(conn) == Some(&Fate::Open),
            _ => false,
        };
        let sets = match &input {
            Input::Sets(sets) => Some(sets.clone()),
            _ => None,
        };
        let gone = self.edge.withdrawal().is_some_and(|said| said.done);
        self.may_cut = self.edge.withdrawal().is_some();
        let out = self.edge.handle(input, self.now);
        let sends = out.iter().any(|o| matches!(o, Output::Dial { .. } | Output::Copy { .. }));
        assert!(!(gone && sends), "it has withdrawn and sends somewhere: {out:?}");
        if self.edge.withdrawal().is_some_and(|said| said.done) {
            assert_eq!(self.edge.open(), 0, "it has withdrawn with connections open");
        }
        for output in &out {
            self.perform(output, sets.as_ref());
        }
        let copied = out.iter().any(|output| matches!(output, Output::Copy { .. }));
        assert_eq!(copied, answered && was_open, "an answer to the dial in flight, and only that, copies");
        assert!(self.edge.serves() >= revision, "what it serves never goes back");
        out
    }

    fn perform(&mut self, output: &Output, sets: Option<&Sets>) {
        match output {
            Output::Serves(revision) => {
                let sets = sets.expect("only sets are confirmed");
                assert_eq!(*revision, sets.revision);
                if sets.full {
                    self.confirmed.clear();
                }
                for set in &sets.sets {
                    let members = match set.listen {
                        Some(_) => set.backends.iter().map(|backend| backend.instance).collect(),
                        None => BTreeSet::new(),
                    };
                    self.confirmed.insert(set.service.clone(), members);
                }
            }
            Output::Copy { conn, instance } => {
                let members = self.confirmed.get(&name(u8::from(instance.0 >= 100)));
                assert!(members.is_some_and(|m| m.contains(instance)), "{instance:?} had left the set");
                assert_eq!(self.fates.insert(*conn, Fate::Copied(*instance)), Some(Fate::Open));
            }
            Output::Refuse { conn, .. } => {
                assert_eq!(
                    self.fates.insert(*conn, Fate::Over),
                    Some(Fate::Open),
                    "refused once, not copied"
                );
            }
            Output::Cut { conn, instance } => {
                assert_eq!(self.fates.insert(*conn, Fate::Over), Some(Fate::Copied(*instance)));
                let members = self.confirmed.get(&name(u8::from(instance.0 >= 100)));
                let left = !members.is_some_and(|m| m.contains(instance));
                assert!(left || self.may_cut, "only what left is cut");
            }
            Output::Dial { conn, attempt, .. } => {
                assert_eq!(self.fates.get(conn), Some(&Fate::Open));
                self.dials.push((*conn, *attempt));
                self.current.insert(*conn, *attempt);
            }
            Output::Hold { conn } => {
                assert_eq!(self.fates.get(conn), Some(&Fate::Open));
                self.current.remove(conn);
            }
            Output::Listen { .. } | Output::Unlisten { .. } => {}
        }
    }

    /// The edge counts exactly the connections that are there.
    fn check_counts(&self) {
        let open = self.fates.values().filter(|fate| **fate != Fate::Over).count();
        assert_eq!(self.edge.open(), open);
        let stats = self.edge.stats();
        let counted: usize = stats.iter().map(|s| s.held + s.dialling + s.copying).sum();
        assert_eq!(counted, open);
        for service in 0..2u8 {
            for id in (0..4).map(|bit| InstanceId(bit + 100 * u64::from(service))) {
                let copied = self.fates.values().filter(|fate| **fate == Fate::Copied(id)).count();
                assert_eq!(self.edge.connections(name(service).as_str(), id).1, copied);
            }
        }
    }

    /// The world goes quiet: every connection finds its end within the times the edge promises.
    fn settle(mut self) {
        for (conn, attempt) in self.dials.clone() {
            self.give(Input::DialFailed { conn, attempt });
        }
        while let Some((conn, attempt)) = self
            .current
            .iter()
            .find(|(conn, attempt)| {
                self.fates[conn] == Fate::Open && self.edge.dialling(**conn, **attempt).is_some()
            })
            .map(|(conn, attempt)| (*conn, *attempt))
        {
            self.give(Input::DialFailed { conn, attempt });
        }
        self.come_back();
        self.send(true, vec![]);
        self.now = self.now + Millis(3000);
        self.give(Input::Tick);
        self.check_counts();
        assert!(self.fates.values().all(|fate| *fate == Fate::Over), "{:?}", self.fates);
        assert_eq!(self.edge.next_wake(), None);
        assert_eq!(self.edge.stats(), []);
    }
}

fn pick<T>(from: &[T], which: u8) -> Option<&T> {
    // Counted from the end: what happened lately is what is still going on.
    from.len().checked_sub(1 + usize::from(which) % from.len().clamp(1, 16)).map(|at| &from[at])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_confirmed_set_holds_and_every_connection_has_one_end(steps in prop::collection::vec(step(), 1..200)) {
        let mut walk = Walk::new();
        for step in steps {
            walk.take(step);
        }
        walk.settle();
    }

    #[test]
    fn the_same_inputs_give_the_same_outputs(steps in prop::collection::vec(step(), 1..80)) {
        let run = |steps: Vec<Step>| {
            let mut walk = Walk::new();
            steps.into_iter().for_each(|step| walk.take(step));
            (walk.dials, format!("{:?}", walk.fates))
        };
        prop_assert_eq!(run(steps.clone()), run(steps));
    }
}
