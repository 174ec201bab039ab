//! The smallest searches, to their end; the others are `cargo xtask exhaust`.

use exhaustive::{Config, Outcome, broken, explore, futures_agree, small};

fn search(config: Config) -> Outcome {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    explore(config, threads, false)
}

/// There is no bound on depth, time or number: a search that ends has seen everything.
fn assert_holds(name: &str) -> Outcome {
    let config = small().into_iter().find(|config| config.name == name);
    let outcome = search(config.unwrap_or_else(|| panic!("there is no search {name:?}")));
    if let Some(broke) = &outcome.broken {
        panic!("invariant {}: {}\n{}", broke.invariant, broke.what, broke.path.join("\n"));
    }
    assert_eq!(outcome.missed, Vec::<&str>::new());
    outcome
}

/// Shows that the search can fail: a rule is broken on purpose.
fn assert_noticed(name: &str) {
    let found = broken().into_iter().find(|(config, _)| config.name == name);
    let (config, invariant) = found.unwrap_or_else(|| panic!("there is no search {name:?}"));
    let broke = search(config).broken.expect("the search notices");
    assert_eq!((broke.invariant, broke.path.is_empty()), (invariant, false), "{}", broke.what);
}

#[test]
fn a_drain_that_may_be_cancelled_at_any_moment_holds_all_that_must_hold() {
    assert!(assert_holds("cancel").unique > 4000);
}

#[test]
fn a_node_that_is_opened_again_after_its_drain_gets_its_share_back() {
    assert!(assert_holds("enable").unique > 2000);
}

#[test]
fn a_coordinator_that_dies_at_any_moment_of_a_drain_is_replaced_by_one_that_ends_it() {
    assert!(assert_holds("coordinator").unique > 20_000);
}

#[test]
fn what_counts_as_one_state_has_one_future() {
    let config = small().into_iter().find(|config| config.name == "answer").unwrap();
    assert!(futures_agree(config).unwrap() > 500);
}

#[test]
fn an_edge_that_confirms_before_it_has_its_sets_is_noticed() {
    assert_noticed("an edge confirms too early");
}

#[test]
fn a_store_that_takes_what_a_deposed_coordinator_writes_is_noticed() {
    assert_noticed("a store takes everything");
}

#[test]
fn a_drain_that_never_ends_is_noticed() {
    assert_noticed("stops are lost");
}

#[test]
fn a_node_that_never_comes_back_is_noticed() {
    assert_noticed("nobody dials again");
}
