//! What an edge does when its node drains, one behaviour a test.

use model::{InstanceId, Millis, ServiceName, Term, Time};

use super::{ConnId, Edge, Input, Output, Refused};
use crate::message::{Backend, BackendSet, Duty, SetRevision, Sets, Withdrawal};

const DELAY: Millis = Millis::secs(5);
const GRACE: Millis = Millis::secs(10);
const PORT: u16 = 8080;

struct Bench {
    edge: Edge,
    now: Time,
    number: u64,
    conns: u64,
}

fn rev(number: u64) -> SetRevision {
    SetRevision { term: Term(1), number }
}

fn withdrawal(drain: u64, done: bool) -> Option<Withdrawal> {
    Some(Withdrawal { drain, done })
}

impl Bench {
    fn serving() -> Bench {
        let mut bench = Bench { edge: Edge::with_delay(DELAY), now: Time(1000), number: 0, conns: 0 };
        bench.sets(&[1]);
        bench.give(Input::Listening { port: PORT });
        bench
    }

    /// Withdrawn for drain 3, at revision 1.
    fn withdrawn() -> Bench {
        let mut bench = Bench::serving();
        bench.withdraw(3);
        assert_eq!(bench.pass(DELAY), [Output::Unlisten { port: PORT }]);
        bench.give(Input::Unlistened { port: PORT });
        assert_eq!(bench.edge.withdrawal(), withdrawal(3, true));
        bench
    }

    fn give(&mut self, input: Input) -> Vec<Output> {
        self.edge.handle(input, self.now)
    }

    fn pass(&mut self, span: Millis) -> Vec<Output> {
        self.now = self.now + span;
        self.give(Input::Tick)
    }

    fn withdraw(&mut self, drain: u64) -> Vec<Output> {
        self.give(Input::Duty(Duty::Withdraw { drain }))
    }

    fn serve(&mut self, from: u64) -> Vec<Output> {
        self.give(Input::Duty(Duty::Serve { from: rev(from) }))
    }

    fn sets(&mut self, instances: &[u64]) -> Vec<Output> {
        self.number += 1;
        let backend = |id: &u64| Backend { instance: InstanceId(*id), address: format!("h:{id}") };
        let set = BackendSet {
            service: ServiceName::new("web"),
            listen: Some(PORT),
            grace: GRACE,
            backends: instances.iter().map(backend).collect(),
        };
        let revision = rev(self.number);
        self.give(Input::Sets(Sets { revision, since: revision, full: true, sets: vec![set] }))
    }

    fn accept(&mut self) -> (ConnId, Vec<Output>) {
        self.conns += 1;
        let conn = ConnId(self.conns);
        (conn, self.give(Input::Accepted { conn, port: PORT }))
    }

    /// One that is being copied.
    fn connect(&mut self) -> ConnId {
        let (conn, out) = self.accept();
        let [Output::Dial { attempt, .. }] = out[..] else { panic!("{out:?}") };
        let out = self.give(Input::Dialled { conn, attempt });
        assert!(matches!(out[..], [Output::Copy { .. }]), "{out:?}");
        conn
    }
}

#[test]
fn it_says_so_at_once_and_serves_on_for_its_delay() {
    let mut bench = Bench::serving();
    assert_eq!(bench.withdraw(3), []);
    assert_eq!(bench.edge.report().withdrawal, withdrawal(3, false));
    assert_eq!(bench.pass(Millis(DELAY.0 - 1)), []);
    bench.connect();
    assert_eq!(bench.pass(Millis(1)), [Output::Unlisten { port: PORT }]);
}

#[test]
fn it_has_withdrawn_when_its_ports_are_closed_and_its_last_connection_has_ended() {
    let mut bench = Bench::serving();
    let conn = bench.connect();
    bench.withdraw(3);
    bench.pass(DELAY);
    // The port had somebody in its queue.
    let late = bench.connect();
    bench.give(Input::Unlistened { port: PORT });
    bench.give(Input::Closed { conn });
    assert_eq!(bench.edge.withdrawal(), withdrawal(3, false));
    bench.give(Input::Closed { conn: late });
    assert_eq!(bench.edge.withdrawal(), withdrawal(3, true));
    assert_eq!(bench.edge.next_wake(), None);
    assert!(matches!(bench.accept().1[..], [Output::Refuse { why: Refused::NotServed, .. }]));
}

#[test]
fn connections_that_do_not_end_are_cut_when_their_service_s_grace_is_over() {
    let mut bench = Bench::serving();
    let conn = bench.connect();
    bench.withdraw(3);
    bench.pass(DELAY);
    bench.give(Input::Unlistened { port: PORT });
    assert_eq!(bench.pass(Millis(GRACE.0 - 1)), []);
    assert_eq!(bench.pass(Millis(1)), [Output::Cut { conn, instance: InstanceId(1) }]);
    assert_eq!(bench.edge.withdrawal(), withdrawal(3, true));
}

#[test]
fn told_to_serve_it_comes_back_from_every_step() {
    let mut bench = Bench::serving();
    bench.withdraw(3);
    assert_eq!(bench.serve(1), [], "its port is still open");
    assert_eq!((bench.edge.withdrawal(), bench.edge.next_wake()), (None, None));

    bench.withdraw(4);
    let conn = bench.connect();
    bench.pass(DELAY);
    assert_eq!(bench.serve(1), [Output::Listen { port: PORT }]);
    bench.give(Input::Listening { port: PORT });
    assert_eq!(bench.edge.withdrawal(), None);
    assert_eq!(bench.pass(GRACE), [], "what was open is not cut any more");
    bench.give(Input::Closed { conn });

    let mut bench = Bench::withdrawn();
    assert_eq!(bench.serve(1), [Output::Listen { port: PORT }]);
    bench.give(Input::Listening { port: PORT });
    bench.connect();
}

#[test]
fn one_that_was_not_waited_for_opens_its_ports_only_with_sets_that_are_young_enough() {
    let mut bench = Bench::withdrawn();
    // Instance 1 left at revision 2 and was stopped; this edge was not asked.
    assert_eq!(bench.serve(3), []);
    assert_eq!(bench.edge.withdrawal(), withdrawal(3, true), "told again until it serves");
    assert_eq!(bench.sets(&[2]), [Output::Serves(rev(2))]);
    let out = bench.sets(&[2]);
    assert_eq!(out, [Output::Listen { port: PORT }, Output::Serves(rev(3))]);
    assert_eq!(bench.edge.withdrawal(), None);
}

#[test]
fn sets_are_taken_and_confirmed_while_it_is_away() {
    let mut bench = Bench::withdrawn();
    assert_eq!(bench.sets(&[2]), [Output::Serves(rev(2))]);
    assert_eq!(bench.edge.report().serves, Some(rev(2)));
}

#[test]
fn one_that_never_served_has_nothing_to_wait_for() {
    let mut bench = Bench { edge: Edge::with_delay(DELAY), now: Time(1000), number: 0, conns: 0 };
    bench.withdraw(3);
    assert_eq!(bench.edge.withdrawal(), withdrawal(3, true));
    assert_eq!(bench.sets(&[1]), [Output::Serves(rev(1))], "it opens no port");
}

#[test]
fn told_again_it_does_not_begin_anew_and_another_drain_finds_it_gone() {
    let mut bench = Bench::serving();
    bench.withdraw(3);
    bench.pass(Millis(DELAY.0 - 1));
    bench.withdraw(3);
    assert_eq!(bench.pass(Millis(1)), [Output::Unlisten { port: PORT }]);
    let mut bench = Bench::withdrawn();
    bench.withdraw(8);
    assert_eq!(bench.edge.withdrawal(), withdrawal(8, true));
}
