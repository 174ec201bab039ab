//! What a seed draws for itself: how big its cluster is, and which faults happen in it. Few faults at a
//! time, differently combined, reach further than all of them always.

use model::Millis;
use protocol::{
    Timing,
    coordinator::{DrainLimits, FeedLimits},
};

use crate::rng::Rng;

#[derive(Clone, Debug)]
pub struct Swarm {
    pub timing: Timing,
    pub workers: usize,
    pub candidates: usize,
    /// Candidates have machines of their own.
    pub apart: bool,
    pub edges: usize,
    /// How long faults and requests go on.
    pub safety_ms: u64,
    /// Keepers kill fenced instances by themselves. Without them only the daemon does, so that then no
    /// daemon is killed, paused or suspended.
    pub keepers: bool,
    /// Mean pause between two faults.
    pub fault_every: u64,
    pub request_every: u64,
    /// Per mille of requests that are about drains; 0: there are none.
    pub drains: u64,
    /// Likewise about feeds.
    pub feeds: u64,
    /// Spans of one feed that has thousands of them; 0: none has.
    pub crowd: u64,
    /// Per mille of spans and nodes that never get along: the one cannot be made ready on the other.
    pub unfit: u64,
    /// Likewise about stores.
    pub stores: u64,
    pub net: NetFaults,
    pub store: StoreFaults,
    pub process: ProcessFaults,
    pub kinds: Vec<FaultKind>,
    pub limits: MoveLimits,
}

/// How much may be on the move at a time; small, so that the limits are met.
#[derive(Clone, Copy, Debug)]
pub struct MoveLimits {
    pub nodes_at_once: u32,
    pub balance_moves: u32,
    pub maintainer_batch: u32,
    pub moves_per_node: u32,
    pub moves_total: u32,
}

impl Default for MoveLimits {
    fn default() -> MoveLimits {
        let (drain, feeds) = (DrainLimits::default(), FeedLimits::default());
        MoveLimits {
            nodes_at_once: drain.nodes_at_once,
            balance_moves: drain.balance_moves,
            maintainer_batch: feeds.maintainer_batch,
            moves_per_node: feeds.moves_per_node,
            moves_total: feeds.moves_total,
        }
    }
}

impl MoveLimits {
    /// Drawn apart, so that seeds stay what they were but for this.
    pub fn draw(rng: &mut Rng) -> MoveLimits {
        if rng.chance(400) {
            return MoveLimits::default();
        }
        MoveLimits {
            nodes_at_once: rng.between(1, 3) as u32,
            balance_moves: rng.between(1, 3) as u32,
            maintainer_batch: rng.between(1, 2) as u32,
            moves_per_node: rng.between(1, 4) as u32,
            moves_total: rng.between(1, 6) as u32,
        }
    }

    pub fn drain(&self) -> DrainLimits {
        let MoveLimits { nodes_at_once, balance_moves, .. } = *self;
        // A seed is over before one would stall by the default.
        let stall_after = Millis::secs(20);
        DrainLimits { nodes_at_once, balance_moves, stall_after, ..DrainLimits::default() }
    }

    pub fn feeds(&self) -> FeedLimits {
        let MoveLimits { maintainer_batch, moves_per_node, moves_total, .. } = *self;
        FeedLimits { maintainer_batch, moves_per_node, moves_total }
    }

    pub fn of_checker(&self) -> checker::Limits {
        checker::Limits {
            nodes_at_once: self.nodes_at_once as usize,
            balance_moves: self.balance_moves as usize,
            maintainer_batch: self.maintainer_batch as usize,
        }
    }
}

/// Per mille of messages.
#[derive(Clone, Debug, Default)]
pub struct NetFaults {
    pub loss: u64,
    pub duplicate: u64,
    pub reorder: u64,
    pub slow: u64,
    /// Of backend sets alone: an edge that lags behind the others.
    pub sets_lost: u64,
}

/// Per mille of operations.
#[derive(Clone, Debug, Default)]
pub struct StoreFaults {
    pub answer_lost: u64,
    pub request_lost: u64,
    pub late: u64,
    pub unavailable: u64,
    pub no_space: u64,
}

/// Per mille of starts.
#[derive(Clone, Debug, Default)]
pub struct ProcessFaults {
    pub start_fails: u64,
    pub crashes: u64,
    pub hangs_on_stop: u64,
    pub sick: u64,
    pub slow: u64,
    /// Of releases that never work.
    pub broken_release: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    Partition,
    OneWay,
    Isolate,
    BreakConnection,
    CutStore,
    CrashDaemon,
    PauseDaemon,
    SuspendMachine,
    RebootMachine,
    DestroyMachine,
    DegradeMachine,
    Rival,
    ShrinkMachine,
    StopDaemon,
    /// The coordinator stands still for less than its lease: what was due meanwhile is due at once.
    PauseOffice,
    /// At the next hand-over of a maintainer its successor's daemon dies, and the one before stands still.
    StrikeHandOver,
}

const KINDS: [FaultKind; 14] = [
    FaultKind::Partition,
    FaultKind::OneWay,
    FaultKind::Isolate,
    FaultKind::BreakConnection,
    FaultKind::CutStore,
    FaultKind::CrashDaemon,
    FaultKind::PauseDaemon,
    FaultKind::SuspendMachine,
    FaultKind::RebootMachine,
    FaultKind::DestroyMachine,
    FaultKind::DegradeMachine,
    FaultKind::Rival,
    FaultKind::ShrinkMachine,
    FaultKind::StopDaemon,
];

impl Swarm {
    /// Drains are drawn apart, so that seeds without them stay what they were.
    pub fn draw_drains(&mut self, rng: &mut Rng) {
        if rng.chance(600) {
            self.drains = rng.between(50, 500);
        }
    }

    /// Faults that came later, drawn apart. Where there are none at all there are none of these.
    pub fn draw_more(&mut self, rng: &mut Rng) {
        if self.kinds.is_empty() {
            return;
        }
        if self.keepers && rng.chance(300) {
            self.kinds.extend([FaultKind::PauseOffice; 2]);
        }
        if rng.chance(200) {
            self.net.sets_lost = rng.between(100, 700);
        }
    }

    pub fn draw(rng: &mut Rng) -> Swarm {
        let mut swarm = Swarm {
            timing: Timing { last_node_after: Millis::secs(10), ..Timing::DEV },
            workers: rng.between(2, 6) as usize,
            candidates: rng.between(1, 3) as usize,
            apart: rng.chance(250),
            edges: rng.between(1, 3) as usize,
            safety_ms: rng.between(30, 90) * 1000,
            keepers: rng.chance(750),
            fault_every: rng.between(500, 4000),
            request_every: rng.between(300, 3000),
            drains: 0,
            feeds: 0,
            crowd: 0,
            unfit: 0,
            stores: 0,
            net: NetFaults::default(),
            store: StoreFaults::default(),
            process: ProcessFaults::default(),
            kinds: Vec::new(),
            limits: MoveLimits::default(),
        };
        swarm.edges = swarm.edges.min(swarm.workers);
        // One in ten has no faults at all: what fails there is not about faults.
        if rng.chance(900) {
            swarm.draw_faults(rng);
        }
        swarm
    }

    fn draw_faults(&mut self, rng: &mut Rng) {
        let mut some = |chance: u64, max: u64| if rng.chance(chance) { rng.between(1, max) } else { 0 };
        self.net = NetFaults {
            loss: some(300, 60),
            duplicate: some(300, 60),
            reorder: some(300, 60),
            slow: some(500, 50),
            sets_lost: 0,
        };
        self.store = StoreFaults {
            answer_lost: some(400, 60),
            request_lost: some(400, 60),
            late: some(400, 60),
            unavailable: some(300, 60),
            no_space: some(200, 30),
        };
        self.process = ProcessFaults {
            start_fails: some(300, 100),
            crashes: some(400, 300),
            hangs_on_stop: some(400, 400),
            sick: some(400, 300),
            slow: some(400, 300),
            broken_release: some(300, 300),
        };
        for kind in KINDS {
            let harms_daemons = matches!(
                kind,
                FaultKind::CrashDaemon
                    | FaultKind::PauseDaemon
                    | FaultKind::StopDaemon
                    | FaultKind::SuspendMachine
            );
            if rng.chance(400) && (self.keepers || !harms_daemons) {
                self.kinds.push(kind);
            }
        }
    }
}
