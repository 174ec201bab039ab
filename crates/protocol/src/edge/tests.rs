//! What an edge does, one behaviour a test.

use model::{InstanceId, Millis, ServiceName, Term, Time};

use super::{
    ConnId, Edge, HELD_PER_SERVICE_MAX, HOLD_MAX, Input, Output, REFUSED_LAST_FOR, RETRY_FIRST, Refused,
};
use crate::message::{Backend, BackendSet, SetRevision, Sets};

const GRACE: Millis = Millis::secs(10);
const PORT: u16 = 8080;

fn rev(number: u64) -> SetRevision {
    SetRevision { term: Term(1), number }
}

fn set_of(service: &str, listen: Option<u16>, instances: &[u64]) -> BackendSet {
    let backend = |id: &u64| Backend { instance: InstanceId(*id), address: format!("10.0.0.{id}:80") };
    BackendSet {
        service: ServiceName::new(service),
        listen,
        grace: GRACE,
        backends: instances.iter().map(backend).collect(),
    }
}

fn web(instances: &[u64]) -> BackendSet {
    set_of("web", Some(PORT), instances)
}

/// An edge with its clock, and a shell that only remembers what it was told.
struct Bench {
    edge: Edge,
    now: Time,
    next: u64,
    number: u64,
}

impl Bench {
    fn serving(sets: Vec<BackendSet>) -> Bench {
        let mut bench = Bench { edge: Edge::new(), now: Time(1000), next: 0, number: 0 };
        let ports: Vec<u16> = sets.iter().filter_map(|set| set.listen).collect();
        bench.full(sets);
        for port in ports {
            bench.give(Input::Listening { port });
        }
        bench
    }

    fn give(&mut self, input: Input) -> Vec<Output> {
        self.edge.handle(input, self.now)
    }

    fn full(&mut self, sets: Vec<BackendSet>) -> Vec<Output> {
        self.number += 1;
        let revision = rev(self.number);
        self.give(Input::Sets(Sets { revision, since: revision, full: true, sets }))
    }

    fn delta(&mut self, sets: Vec<BackendSet>) -> Vec<Output> {
        self.number += 1;
        let (since, revision) = (rev(self.number - 1), rev(self.number));
        self.give(Input::Sets(Sets { revision, since, full: false, sets }))
    }

    fn accept(&mut self) -> (ConnId, Vec<Output>) {
        self.next += 1;
        let conn = ConnId(self.next);
        (conn, self.give(Input::Accepted { conn, port: PORT }))
    }

    /// Accepts a connection and lets its dial succeed.
    fn connect(&mut self) -> (ConnId, InstanceId) {
        let (conn, out) = self.accept();
        let (attempt, instance) = dial_in(&out);
        let out = self.give(Input::Dialled { conn, attempt });
        assert_eq!(out, [Output::Copy { conn, instance }]);
        (conn, instance)
    }

    fn fail(&mut self, conn: ConnId, out: &[Output]) -> Vec<Output> {
        let (attempt, _) = dial_in(out);
        self.give(Input::DialFailed { conn, attempt })
    }

    fn tick_at_wake(&mut self) -> Vec<Output> {
        self.now = self.edge.next_wake().expect("something is due");
        self.give(Input::Tick)
    }
}

fn dial_in(out: &[Output]) -> (super::Attempt, InstanceId) {
    let dials: Vec<_> = out
        .iter()
        .filter_map(|output| match output {
            Output::Dial { attempt, instance, .. } => Some((*attempt, *instance)),
            _ => None,
        })
        .collect();
    assert_eq!(dials.len(), 1, "{out:?}");
    dials[0]
}

#[test]
fn connections_go_where_fewest_are_and_in_turn_among_equals() {
    let mut bench = Bench::serving(vec![web(&[1, 2, 3])]);
    let first: Vec<_> = (0..3).map(|_| bench.connect()).collect();
    assert_eq!(first.iter().map(|(_, i)| i.0).collect::<Vec<_>>(), [1, 2, 3]);
    bench.give(Input::Closed { conn: first[1].0 });
    assert_eq!(bench.connect().1, InstanceId(2));
    // All equal again: the one picked longest ago.
    assert_eq!(bench.connect().1, InstanceId(1));
    // Closed at once each time, they still take turns.
    let mut bench = Bench::serving(vec![web(&[1, 2])]);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let (conn, instance) = bench.connect();
        bench.give(Input::Closed { conn });
        seen.push(instance.0);
    }
    assert_eq!(seen, [1, 2, 1, 2]);
}

#[test]
fn dials_in_flight_count() {
    let mut bench = Bench::serving(vec![web(&[1, 2])]);
    let (_, first) = bench.accept();
    let (_, second) = bench.accept();
    assert_ne!(dial_in(&first).1, dial_in(&second).1);
    assert_eq!(bench.edge.connections("web", InstanceId(1)), (1, 0));
}

#[test]
fn a_backend_that_refuses_is_passed_over_and_each_is_tried_once() {
    let mut bench = Bench::serving(vec![web(&[1, 2, 3])]);
    let (conn, mut out) = bench.accept();
    let mut tried = Vec::new();
    for _ in 0..3 {
        tried.push(dial_in(&out).1.0);
        out = bench.fail(conn, &out);
    }
    assert_eq!(tried, [1, 2, 3]);
    assert_eq!(out, [Output::Refuse { conn, why: Refused::AllRefused }]);
    let stats = &bench.edge.stats()[0];
    assert_eq!((stats.counters.passed_over, stats.counters.refused, stats.dialling), (3, 1, 0));
    assert_eq!(bench.edge.open(), 0);
}

#[test]
fn a_backend_that_refused_comes_last_for_a_while_and_then_is_probed_by_one_dial_at_a_time() {
    let mut bench = Bench::serving(vec![web(&[1, 2])]);
    let (conn, out) = bench.accept();
    let out = bench.fail(conn, &out);
    assert_eq!(dial_in(&out).1, InstanceId(2));
    for _ in 0..3 {
        assert_eq!(bench.connect().1, InstanceId(2), "1 has fewer, but has just refused");
    }
    bench.now = bench.now + REFUSED_LAST_FOR;
    let (probe, out) = bench.accept();
    assert_eq!(dial_in(&out).1, InstanceId(1));
    assert_eq!(bench.connect().1, InstanceId(2), "while the probe is out, the others go elsewhere");
    bench.give(Input::Dialled { conn: probe, attempt: dial_in(&out).0 });
    assert_eq!(bench.connect().1, InstanceId(1), "it took one: it is as good as any");
}

#[test]
fn the_only_backend_is_tried_even_if_it_has_just_refused() {
    let mut bench = Bench::serving(vec![web(&[1])]);
    let (conn, out) = bench.accept();
    bench.fail(conn, &out);
    assert_eq!(bench.connect().1, InstanceId(1));
}

#[test]
fn a_dial_to_an_instance_that_leaves_is_redirected_and_its_answer_ignored() {
    let mut bench = Bench::serving(vec![web(&[1, 2])]);
    let (conn, out) = bench.accept();
    let (stale, instance) = dial_in(&out);
    assert_eq!(instance, InstanceId(1));
    let out = bench.delta(vec![web(&[2])]);
    assert_eq!(dial_in(&out).1, InstanceId(2));
    assert_eq!(out.last(), Some(&Output::Serves(rev(2))));
    assert_eq!(bench.give(Input::Dialled { conn, attempt: stale }), []);
    assert_eq!(bench.give(Input::DialFailed { conn, attempt: stale }), []);
    let copy = bench.give(Input::Dialled { conn, attempt: dial_in(&out).0 });
    assert_eq!(copy, [Output::Copy { conn, instance: InstanceId(2) }]);
}

#[test]
fn a_dial_to_an_address_that_changed_is_redirected() {
    let mut bench = Bench::serving(vec![web(&[1])]);
    let (conn, out) = bench.accept();
    let (stale, _) = dial_in(&out);
    let mut set = web(&[1]);
    set.backends[0].address = "10.0.0.1:81".to_owned();
    let out = bench.delta(vec![set]);
    assert!(out.iter().any(|o| matches!(o, Output::Dial { address, .. } if &**address == "10.0.0.1:81")));
    assert_eq!(bench.give(Input::Dialled { conn, attempt: stale }), []);
}

#[test]
fn connections_of_an_instance_that_left_go_on_until_its_grace_is_over() {
    let mut bench = Bench::serving(vec![web(&[1, 2])]);
    let (kept, _) = bench.connect();
    let (other, _) = bench.connect();
    let (ended, instance) = bench.connect();
    assert_eq!(instance, InstanceId(1));
    assert_eq!(bench.delta(vec![web(&[2])]), [Output::Serves(rev(2))]);
    assert_eq!(bench.edge.connections("web", InstanceId(1)), (0, 2));
    assert_eq!(bench.edge.stats()[0].leaving, 2);
    bench.give(Input::Closed { conn: ended });
    assert_eq!(bench.edge.next_wake(), Some(bench.now + GRACE));
    assert_eq!(bench.give(Input::Tick), []);
    assert_eq!(bench.tick_at_wake(), [Output::Cut { conn: kept, instance: InstanceId(1) }]);
    assert_eq!(bench.edge.next_wake(), None);
    assert_eq!(bench.edge.connections("web", InstanceId(2)), (0, 1));
    bench.give(Input::Closed { conn: kept });
    bench.give(Input::Closed { conn: other });
    assert_eq!(bench.edge.open(), 0);
}

#[test]
fn an_instance_that_comes_back_within_its_grace_keeps_its_connections() {
    let mut bench = Bench::serving(vec![web(&[1])]);
    bench.connect();
    bench.delta(vec![web(&[])]);
    assert!(bench.edge.next_wake().is_some());
    bench.delta(vec![web(&[1])]);
    assert_eq!(bench.edge.next_wake(), None);
    assert_eq!(bench.edge.connections("web", InstanceId(1)), (0, 1));
}

#[test]
fn a_connection_without_a_backend_is_held_until_there_is_one() {
    let mut bench = Bench::serving(vec![web(&[])]);
    let (conn, out) = bench.accept();
    assert_eq!(out, [Output::Hold { conn }]);
    bench.now = bench.now + Millis(1000);
    let out = bench.delta(vec![web(&[7])]);
    assert_eq!(dial_in(&out).1, InstanceId(7));
    assert_eq!(bench.edge.next_wake(), None);
    assert_eq!(bench.give(Input::Dialled { conn, attempt: dial_in(&out).0 }).len(), 1);
}

#[test]
fn a_connection_is_not_held_forever_not_even_by_backends_that_come_and_go() {
    let mut bench = Bench::serving(vec![web(&[])]);
    let (conn, _) = bench.accept();
    let until = bench.now + HOLD_MAX;
    bench.now = bench.now + Millis(2000);
    bench.delta(vec![web(&[1])]);
    bench.delta(vec![web(&[])]);
    assert_eq!(bench.edge.next_wake(), Some(until));
    assert_eq!(bench.tick_at_wake(), [Output::Refuse { conn, why: Refused::NoBackend }]);
}

#[test]
fn only_so_many_connections_are_held() {
    let mut bench = Bench::serving(vec![web(&[])]);
    for _ in 0..HELD_PER_SERVICE_MAX {
        assert!(matches!(bench.accept().1[..], [Output::Hold { .. }]));
    }
    let (conn, out) = bench.accept();
    assert_eq!(out, [Output::Refuse { conn, why: Refused::TooManyHeld }]);
}

#[test]
fn a_service_that_leaves_is_unlistened_and_its_connections_finish_within_their_grace() {
    for full in [true, false] {
        let mut bench = Bench::serving(vec![web(&[1])]);
        let (kept, _) = bench.connect();
        let (dialled, _) = bench.accept();
        let out = if full { bench.full(vec![]) } else { bench.delta(vec![set_of("web", None, &[1])]) };
        let expected = [
            Output::Unlisten { port: PORT },
            Output::Refuse { conn: dialled, why: Refused::NotServed },
            Output::Serves(rev(2)),
        ];
        assert_eq!(out, expected);
        let (late, out) = bench.accept();
        assert_eq!(out, [Output::Refuse { conn: late, why: Refused::NotServed }]);
        assert_eq!(bench.tick_at_wake(), [Output::Cut { conn: kept, instance: InstanceId(1) }]);
        assert_eq!(bench.edge.stats(), []);
    }
}

#[test]
fn stale_and_repeated_sets_are_ignored() {
    let mut bench = Bench::serving(vec![web(&[1])]);
    bench.delta(vec![web(&[2])]);
    for (number, full) in [(1, true), (1, false), (2, true), (2, false)] {
        let sets = Sets { revision: rev(number), since: rev(0), full, sets: vec![web(&[1])] };
        assert_eq!(bench.give(Input::Sets(sets)), []);
    }
    assert_eq!(bench.connect().1, InstanceId(2));
    let later_term = SetRevision { term: Term(2), number: 1 };
    let sets = Sets { revision: later_term, since: later_term, full: true, sets: vec![web(&[3])] };
    assert_eq!(bench.give(Input::Sets(sets)), [Output::Serves(later_term)]);
}

#[test]
fn a_delta_over_a_gap_is_neither_applied_nor_confirmed() {
    let mut bench = Bench::serving(vec![web(&[1])]);
    let gap = Sets { revision: rev(9), since: rev(8), full: false, sets: vec![web(&[2])] };
    assert_eq!(bench.give(Input::Sets(gap.clone())), []);
    assert_eq!(bench.edge.report().serves, Some(rev(1)));
    assert_eq!(bench.connect().1, InstanceId(1));
    let wide = Sets { since: rev(0), ..gap.clone() };
    assert_eq!(bench.give(Input::Sets(wide)), [Output::Serves(rev(9))]);
    let mut empty = Edge::new();
    assert_eq!(empty.handle(Input::Sets(Sets { since: rev(0), ..gap }), Time(0)), []);
    assert_eq!(empty.report().serves, None);
}

#[test]
fn a_port_that_changes_is_open_before_the_old_one_closes() {
    let mut bench = Bench::serving(vec![web(&[1])]);
    let out = bench.delta(vec![set_of("web", Some(9090), &[1])]);
    assert_eq!(out, [Output::Listen { port: 9090 }, Output::Serves(rev(2))]);
    assert_eq!(bench.connect().1, InstanceId(1), "the old port still serves");
    bench.give(Input::ListenFailed { port: 9090, message: "in use".to_owned() });
    assert_eq!(bench.edge.report().failed, [(9090, "in use".to_owned())]);
    assert_eq!(bench.tick_at_wake(), [Output::Listen { port: 9090 }]);
    assert_eq!(bench.give(Input::Listening { port: 9090 }), [Output::Unlisten { port: PORT }]);
    assert_eq!(bench.edge.report().failed, []);
}

#[test]
fn services_that_swap_their_ports_close_neither() {
    let mut bench = Bench::serving(vec![set_of("a", Some(1), &[1]), set_of("b", Some(2), &[2])]);
    let out = bench.delta(vec![set_of("a", Some(2), &[1]), set_of("b", Some(1), &[2])]);
    assert_eq!(out, [Output::Serves(rev(2))]);
    let out = bench.give(Input::Accepted { conn: ConnId(1), port: 1 });
    assert_eq!(dial_in(&out).1, InstanceId(2));
}

#[test]
fn a_port_that_two_services_ask_for_stays_with_the_first_and_is_reported() {
    let mut bench = Bench::serving(vec![web(&[1])]);
    let out = bench.delta(vec![set_of("api", Some(PORT), &[2])]);
    assert_eq!(out, [Output::Serves(rev(2))]);
    assert_eq!(bench.edge.report().failed, [(PORT, "both web and api ask for it; web has it".to_owned())]);
    assert_eq!(bench.connect().1, InstanceId(1));
    bench.delta(vec![set_of("web", None, &[])]);
    assert_eq!(bench.edge.report().failed, []);
    assert_eq!(bench.connect().1, InstanceId(2));
}

#[test]
fn a_port_that_cannot_be_opened_is_tried_again_ever_more_slowly_and_stays_in_the_report() {
    let mut bench = Bench::serving(vec![]);
    bench.full(vec![web(&[1])]);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        bench.give(Input::ListenFailed { port: PORT, message: "in use".to_owned() });
        let before = bench.now;
        assert_eq!(bench.tick_at_wake(), [Output::Listen { port: PORT }]);
        assert_eq!(bench.edge.report().failed.len(), 1, "also while it is tried");
        pauses.push(bench.now.since(before).0);
    }
    assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 5000, 5000]);
    bench.give(Input::Listening { port: PORT });
    assert_eq!(bench.edge.report().failed, []);
    assert_eq!(bench.edge.next_wake(), None);
    bench.give(Input::ListenFailed { port: PORT, message: "lost".to_owned() });
    assert_eq!(bench.edge.next_wake(), Some(bench.now + RETRY_FIRST));
}

#[test]
fn an_edge_that_stops_closes_its_ports_and_gives_its_connections_their_time() {
    let mut bench = Bench::serving(vec![web(&[1])]);
    let (kept, instance) = bench.connect();
    assert_eq!(bench.give(Input::Stop { grace: GRACE }), [Output::Unlisten { port: PORT }]);
    let (_, out) = bench.accept();
    assert_eq!(dial_in(&out).1, InstanceId(1), "accepted while the port closed: still served");
    assert_eq!(bench.delta(vec![web(&[1, 2])]), [Output::Serves(rev(2))]);
    let out = bench.tick_at_wake();
    assert_eq!(out.len(), 2);
    assert_eq!(out[0], Output::Cut { conn: kept, instance });
    assert_eq!(bench.edge.open(), 0);
    let (late, out) = bench.accept();
    assert_eq!(out, [Output::Refuse { conn: late, why: Refused::NotServed }]);
}

#[test]
fn the_sets_in_force_can_be_read_back() {
    let mut bench = Bench::serving(vec![web(&[1, 2])]);
    bench.delta(vec![set_of("api", Some(9), &[3])]);
    let sets = bench.edge.sets().expect("it serves");
    assert_eq!(sets.revision, rev(2));
    assert!(sets.full);
    assert_eq!(sets.sets, [set_of("api", Some(9), &[3]), web(&[1, 2])]);
    let mut again = Edge::new();
    assert!(again.handle(Input::Sets(sets.clone()), Time(0)).contains(&Output::Serves(rev(2))));
    assert_eq!(again.sets(), Some(sets));
}
