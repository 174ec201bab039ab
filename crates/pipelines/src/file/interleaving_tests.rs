//! Every order in which the steps of two writers can fall, and many orders of more, on real files.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use model::{FeedName, SpanName};
use proptest::prelude::*;
use serde_json::value::to_raw_value;

use super::*;
use crate::file::{read, segment::Line};

/// Rows that a writer adds at once.
const BATCH: u64 = 2;
const ALL: u64 = 20;

fn rows(after: u64, count: u64) -> Vec<Row> {
    let row = |position| Row {
        position,
        key: None,
        value: to_raw_value(&position).expect("a number"),
        more: false,
    };
    (after + 1..=after + count).map(row).collect()
}

/// Orders are tried here, not disks: in memory where that is possible.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

fn place(dir: &Path) -> Place {
    let span_dir = dir.join("s");
    std::fs::create_dir_all(&span_dir).expect("made");
    Place { dir: span_dir, feed: FeedName::new("f"), span: SpanName::new("s") }
}

fn begin(place: &Place, epoch: u64) -> Result<Writer, Trouble> {
    let mut writer = Claim::raise(place, SpanEpoch(epoch))?.measure()?.publish(Time(0))?;
    writer.confirm()?;
    writer.tidy();
    Ok(writer)
}

fn position(writer: &Writer) -> u64 {
    writer.checkpoint().map_or(0, |checkpoint| checkpoint.position)
}

fn held(place: &Place) -> Vec<u64> {
    read(&place.dir).expect("readable").map(|row| row.expect("a row").position).collect()
}

enum State {
    Waiting,
    Claimed(Claim),
    Measured(Measured),
    Writing(Writer),
    Fenced,
}

/// A writer that is taken through its steps one by one.
struct Actor {
    epoch: u64,
    state: State,
    step: usize,
    begun: u64,
    reported: u64,
}

const STEPS: usize = 9;
/// Until it has taken over, and until it writes.
const OPENING: usize = 3;
const SETTLED: usize = 5;

impl Actor {
    fn new(epoch: u64) -> Actor {
        Actor { epoch, state: State::Waiting, step: 0, begun: 0, reported: 0 }
    }

    /// After its last step, the next batch.
    fn go_on(&mut self, place: &Place) {
        if self.step == STEPS {
            self.step = SETTLED;
            if let State::Writing(writer) = &self.state {
                self.begun = position(writer);
            }
        }
        self.advance(place);
    }

    fn advance(&mut self, place: &Place) {
        let before = std::mem::replace(&mut self.state, State::Fenced);
        match self.next(place, before) {
            Ok(state) => self.state = state,
            Err(trouble) => assert!(trouble.fenced, "epoch {}: {trouble}", self.epoch),
        }
        self.step += 1;
    }

    fn next(&mut self, place: &Place, state: State) -> Result<State, Trouble> {
        Ok(match (state, self.step) {
            (State::Waiting, 0) => State::Claimed(Claim::raise(place, SpanEpoch(self.epoch))?),
            (State::Claimed(claim), 1) => State::Measured(claim.measure()?),
            (State::Measured(measured), 2) => {
                let writer = measured.publish(Time(0))?;
                self.begun = position(&writer);
                State::Writing(writer)
            }
            (State::Writing(mut writer), step) => {
                let batch = rows(self.begun, BATCH);
                let lines: Vec<u8> = batch.iter().flat_map(|row| line_of(row).expect("a row")).collect();
                match step {
                    3 | 5 => writer.confirm()?,
                    4 => writer.tidy(),
                    6 => writer.write(&lines).expect("written"),
                    7 => {
                        writer.sync().expect("synced");
                        writer.tail.bytes += lines.len() as u64;
                        writer.tail.position = Some(self.begun + BATCH);
                    }
                    8 => {
                        writer.confirm()?;
                        self.reported = position(&writer);
                    }
                    step => panic!("no step {step}"),
                }
                State::Writing(writer)
            }
            (State::Fenced, _) => State::Fenced,
            (State::Waiting | State::Claimed(_) | State::Measured(_), step) => panic!("step {step}"),
        })
    }
}

/// All orders of `a` times false and `b` times true.
fn orders(a: usize, b: usize) -> Vec<Vec<bool>> {
    if a == 0 && b == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (turn, left) in [(false, a.checked_sub(1).map(|a| (a, b))), (true, b.checked_sub(1).map(|b| (a, b)))]
    {
        let Some((a, b)) = left else { continue };
        all.extend(orders(a, b).into_iter().map(|mut order| {
            order.insert(0, turn);
            order
        }));
    }
    all
}

/// Two writers in one order, then a third that finishes. What readers see grows in order all along and
/// always holds what was reported.
fn play(order: &[bool], mut old: Actor, mut young: Actor, place: &Place) {
    for turn in order {
        if *turn { &mut young } else { &mut old }.advance(place);
        let held = held(place);
        let last = held.last().copied().unwrap_or(0);
        assert_eq!(held, (1..=last).collect::<Vec<_>>(), "{order:?}");
        assert!(last >= old.reported.max(young.reported), "{order:?}: reported rows are not there");
        if matches!(young.state, State::Writing(_)) {
            assert!(young.begun >= old.reported, "{order:?}: left out what was reported");
        }
    }
    let mut last = begin(place, 99).expect("the highest epoch");
    let after = position(&last);
    assert!(after >= old.reported.max(young.reported), "{order:?}");
    last.commit(&rows(after, ALL - after)).expect("committed");
    // Those who were paused wake up and write what they had.
    for zombie in [&old, &young] {
        if let State::Writing(writer) = &zombie.state {
            writer.write(b"{\"position\":1000,\"row\":\"of a zombie\"}\n").expect("the file takes it");
            assert!(writer.confirm().is_err_and(|trouble| trouble.fenced));
        }
    }
    assert_eq!(held(place), (1..=ALL).collect::<Vec<_>>(), "{order:?}");
}

#[test]
fn a_predecessor_never_reports_what_its_successor_left_out_whatever_the_order() {
    for order in orders(STEPS - OPENING, SETTLED) {
        let dir = scratch();
        let place = place(dir.path());
        let mut old = Actor::new(1);
        (0..OPENING).for_each(|_| old.advance(&place));
        play(&order, old, Actor::new(2), &place);
    }
}

#[test]
fn of_two_that_take_over_at_once_the_higher_wins_whatever_the_order() {
    for order in orders(STEPS, SETTLED) {
        let dir = scratch();
        let place = place(dir.path());
        begin(&place, 1).and_then(|mut first| first.commit(&rows(0, 3))).expect("committed");
        play(&order, Actor::new(2), Actor::new(3), &place);
    }
}

#[test]
fn a_torn_last_line_is_cut_off_by_the_successors_header() {
    let dir = scratch();
    let place = place(dir.path());
    let mut first = begin(&place, 1).expect("begun");
    first.commit(&rows(0, 3)).expect("committed");
    first.write(b"{\"position\":4,\"ro").expect("written");
    drop(first);
    assert_eq!(held(&place), [1, 2, 3]);
    let mut second = begin(&place, 2).expect("begun");
    assert_eq!(position(&second), 3);
    second.commit(&rows(3, 2)).expect("committed");
    assert_eq!(held(&place), [1, 2, 3, 4, 5]);
}

#[test]
fn an_epoch_that_is_started_again_goes_on_in_its_segment_once_its_writer_is_gone() {
    let dir = scratch();
    let place = place(dir.path());
    let mut first = begin(&place, 5).expect("begun");
    first.commit(&rows(0, 2)).expect("committed");
    first.write(b"torn").expect("written");
    let busy = begin(&place, 5).err().expect("the first is still there");
    assert!(busy.passes && !busy.fenced, "{busy}");
    drop(first);
    let mut again = begin(&place, 5).expect("begun");
    assert_eq!(position(&again), 2);
    let length = std::fs::metadata(segment_path(&place.dir, 5)).expect("there").len();
    assert_eq!(length, again.tail.bytes, "what was torn is gone");
    again.commit(&rows(2, 1)).expect("committed");
    assert_eq!(held(&place), [1, 2, 3]);
}

#[test]
fn many_rows_go_through_in_several_writes() {
    let dir = scratch();
    let place = place(dir.path());
    let mut writer = begin(&place, 1).expect("begun");
    let long = to_raw_value(&"x".repeat(WRITE_BYTES / 3)).expect("a string");
    let batch: Vec<Row> = rows(0, 8).into_iter().map(|row| Row { value: long.clone(), ..row }).collect();
    writer.commit(&batch).expect("committed");
    assert_eq!(held(&place), (1..=8).collect::<Vec<_>>());
    let text = std::fs::read_to_string(segment_path(&place.dir, 1)).expect("there");
    assert!(text.lines().skip(1).all(|line| serde_json::from_str::<Line>(line).is_ok()));
}

#[test]
fn a_writer_of_an_earlier_epoch_leaves_nothing_behind() {
    let dir = scratch();
    let place = place(dir.path());
    begin(&place, 7).expect("begun");
    let before = Listing::of(&place.dir).expect("listed");
    assert!(begin(&place, 6).is_err_and(|trouble| trouble.fenced));
    assert_eq!(Listing::of(&place.dir).expect("listed"), before);
}

#[test]
fn a_directory_of_another_feed_is_not_written_to() {
    let dir = scratch();
    let here = place(dir.path());
    begin(&here, 1).expect("begun");
    let other = Place { feed: FeedName::new("g"), ..here };
    let trouble = begin(&other, 2).err().expect("refused");
    assert_eq!(trouble.code, Code::SinkUnfit);
    assert!(trouble.message.contains("feed \"f\""), "{trouble}");
}

/// In the midst of a batch of one writer, at each of its steps, another takes over and goes on.
#[test]
fn a_batch_during_which_another_takes_over_is_reported_only_if_it_counts() {
    let mut outcomes = Vec::new();
    // Confirm, write, sync, confirm.
    for at in 0..4 {
        let dir = scratch();
        let here = place(dir.path());
        let mut old = begin(&here, 1).expect("begun");
        old.commit(&rows(0, 3)).expect("committed");
        let (calls, young) = (AtomicUsize::new(0), Arc::new(Mutex::new(None)));
        let (there, taken) = (here.clone(), young.clone());
        old.meanwhile = Some(Box::new(move |_| {
            if calls.fetch_add(1, Ordering::Relaxed) == at {
                let mut young = begin(&there, 2).expect("begun");
                let after = position(&young);
                young.commit(&rows(after, 10 - after)).expect("committed");
                *taken.lock().expect("no panic") = Some(after);
            }
        }));
        let result = old.commit(&rows(3, 2));
        let began_at = young.lock().expect("no panic").expect("taken over");
        assert!(result.is_err_and(|trouble| trouble.fenced), "step {at}");
        assert_eq!(held(&here), (1..=10).collect::<Vec<_>>(), "step {at}");
        outcomes.push(began_at);
    }
    // Rows that were written and not reported may count or not; the successor goes on behind those that do.
    assert_eq!(outcomes, [3, 3, 5, 5]);
}

#[test]
fn one_that_is_started_again_after_a_higher_epoch_tidied_its_segment_away_is_fenced() {
    let dir = scratch();
    let place = place(dir.path());
    drop(begin(&place, 1).expect("begun"));
    let again = Claim::raise(&place, SpanEpoch(1)).and_then(Claim::measure).expect("it is the highest");
    begin(&place, 2).expect("begun");
    assert!(again.publish(Time(0)).is_err_and(|trouble| trouble.fenced));
}

#[derive(Clone, Debug)]
enum Act {
    /// One more, with the next epoch.
    Join,
    Step(usize),
    /// It is gone, and may have been writing.
    Kill(usize, usize),
    /// It is started again with its epoch.
    Again(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        2 => Just(Act::Join),
        12 => (0..4usize).prop_map(Act::Step),
        1 => (0..4usize, 0..60usize).prop_map(|(who, torn)| Act::Kill(who, torn)),
        1 => (0..4usize).prop_map(Act::Again),
    ];
    prop::collection::vec(act, 1..80)
}

fn torn(actor: &Actor, bytes: usize) {
    if let State::Writing(writer) = &actor.state {
        let lines: Vec<u8> =
            rows(position(writer), 3).iter().flat_map(|r| line_of(r).expect("a row")).collect();
        writer.write(&lines[..bytes.min(lines.len())]).expect("written");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whoever_steps_is_killed_or_wakes_up_readers_see_each_row_once_in_order(acts in acts()) {
        let dir = scratch();
        let place = place(dir.path());
        let (mut actors, mut epoch, mut reported) = (Vec::<Actor>::new(), 0, 0);
        for act in &acts {
            let count = actors.len();
            match act {
                Act::Join => {
                    epoch += 1;
                    actors.push(Actor::new(epoch));
                }
                Act::Step(who) if count > 0 => actors[who % count].go_on(&place),
                Act::Kill(who, bytes) if count > 0 => {
                    let gone = actors.swap_remove(who % count);
                    // A write that nobody looked at the fence before: that was done long ago.
                    torn(&gone, *bytes);
                }
                Act::Again(who) if count > 0 => {
                    let again = &mut actors[who % count];
                    *again = Actor { reported: again.reported, ..Actor::new(again.epoch) };
                }
                Act::Step(_) | Act::Kill(..) | Act::Again(_) => {}
            }
            reported = actors.iter().map(|actor| actor.reported).fold(reported, u64::max);
            let held = held(&place);
            let last = held.last().copied().unwrap_or(0);
            prop_assert_eq!(&held, &(1..=last).collect::<Vec<_>>());
            prop_assert!(last >= reported, "{} rows are there, {} were reported", last, reported);
        }
        let mut last = begin(&place, epoch + 1).expect("the highest epoch");
        let after = position(&last);
        last.commit(&rows(after, 2)).expect("committed");
        actors.iter().for_each(|zombie| torn(zombie, 1000));
        prop_assert_eq!(held(&place), (1..=after + 2).collect::<Vec<_>>());
    }
}

#[test]
fn a_span_that_is_moved_while_idle_leaves_no_trail_of_segments() {
    let dir = scratch();
    let place = place(dir.path());
    for epoch in 1..50 {
        assert_eq!(begin(&place, epoch).map(|writer| position(&writer)).expect("begun"), 0);
    }
    begin(&place, 50).and_then(|mut writer| writer.commit(&rows(0, 3))).expect("committed");
    for epoch in 51..100 {
        assert_eq!(begin(&place, epoch).map(|writer| position(&writer)).expect("begun"), 3);
    }
    let listing = Listing::of(&place.dir).expect("listed");
    assert_eq!((listing.segments, listing.claims), (vec![50, 99], vec![99]));
    begin(&place, 100).and_then(|mut writer| writer.commit(&rows(3, 2))).expect("committed");
    assert_eq!(held(&place), [1, 2, 3, 4, 5]);
}
