//! The searches that are made: what goes wrong in each, beside a drain and its cancelling.

use model::Millis;

use crate::config::{Broken, Budget, Config};

/// A drain that may be cancelled, both at any moment.
const DRAIN: Budget = Budget {
    drains: 1,
    cancels: 1,
    enables: 0,
    office_crashes: 0,
    depositions: 0,
    daemon_crashes: 0,
    machine_crashes: 0,
    breaks: 0,
    cuts: 0,
    lost_answers: 0,
};

/// With a drain alone.
const ONCE: Budget = Budget { cancels: 0, ..DRAIN };

/// Two nodes of which the first, which is drained, has an edge.
fn one_edge(name: &'static str, budget: Budget) -> Config {
    Config { edges: 1, ..Config::small(name, budget) }
}

/// As above, with one instance, which is on the node that is drained.
fn one_unit(name: &'static str, budget: Budget) -> Config {
    Config { count: 1, ..one_edge(name, budget) }
}

/// Each of these takes minutes at most.
pub fn small() -> Vec<Config> {
    let crash = Budget { office_crashes: 1, ..ONCE };
    vec![
        Config::small("cancel", DRAIN),
        Config::small("enable", Budget { enables: 1, ..ONCE }),
        one_edge("answer", Budget { lost_answers: 1, ..ONCE }),
        one_edge("stream", Budget { breaks: 1, ..ONCE }),
        one_edge("coordinator", crash),
        Config { surge: false, ..one_edge("fenced", DRAIN) },
        Config { nodes: 3, ..one_edge("three nodes", ONCE) },
        one_unit("one unit machine", Budget { machine_crashes: 1, ..ONCE }),
        one_unit("one unit daemon", Budget { daemon_crashes: 1, ..ONCE }),
        one_edge("cancel coordinator", Budget { cancels: 1, ..crash }),
        one_edge("machine", Budget { machine_crashes: 1, ..ONCE }),
    ]
}

/// Each of these takes from many minutes to hours.
pub fn large() -> Vec<Config> {
    let crash = Budget { office_crashes: 1, ..ONCE };
    let cut = Budget { cuts: 1, ..ONCE };
    let daemon = Budget { daemon_crashes: 1, ..ONCE };
    vec![
        one_unit("one unit cut", cut),
        one_edge("daemon", daemon),
        one_edge("cut", cut),
        one_edge("deposed", Budget { depositions: 1, ..ONCE }),
        one_edge("cancel stream", Budget { breaks: 1, ..DRAIN }),
        one_edge("cancel machine", Budget { machine_crashes: 1, ..DRAIN }),
        Config { slow_starts: false, ..one_edge("machine at once", Budget { machine_crashes: 1, ..ONCE }) },
        Config { deadline: Some(Millis::secs(30)), ..one_edge("deadline cut", cut) },
        Config { surge: false, ..one_edge("fenced cut", cut) },
        Config { surge: false, ..one_edge("fenced daemon", daemon) },
        Config { vacancy: Millis::secs(30), ..one_edge("vacancy", crash) },
        Config::small("two edges coordinator", crash),
        Config { nodes: 3, ..one_edge("three nodes coordinator", crash) },
        one_unit("one unit everything", Budget { cancels: 1, machine_crashes: 1, ..crash }),
        one_edge("everything", Budget { cancels: 1, machine_crashes: 1, ..crash }),
    ]
}

/// Each breaks one rule on purpose, and this invariant with it.
pub fn broken() -> Vec<(Config, u32)> {
    let drain = Budget { cancels: 0, ..DRAIN };
    let small = |name, budget, broken| {
        let config = Config::small(name, budget);
        Config { edges: 1, count: 1, broken: Some(broken), ..config }
    };
    let stream = Budget { drains: 0, breaks: 1, ..drain };
    let deposed = Budget { drains: 2, depositions: 1, ..drain };
    vec![
        (small("an edge confirms too early", drain, Broken::EdgeConfirmsEarly), 15),
        (small("a store takes everything", deposed, Broken::StoreDoesNotFence), 14),
        (small("stops are lost", drain, Broken::StopsAreLost), 18),
        (small("nobody dials again", stream, Broken::NobodyDialsAgain), 18),
    ]
}
