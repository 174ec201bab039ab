//! The search itself: a model for stateright, and what came of it.

use std::{
    collections::{HashMap, HashSet},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex},
};

use model::ServiceName;
use protocol::coordinator::{Apply, Request};
use stateright::{Checker, HasDiscoveries, Model, Property, report::WriteReporter};

use crate::{
    config::{Budget, Config},
    liveness::{Distances, Graph, Stuck},
    step::Action,
    world::World,
};

/// The model goes round in circles before it begins.
const BOOT_STEPS_MAX: usize = 10_000;

/// A state as stateright keeps it: known by its canonical form.
#[derive(Clone)]
pub struct State(pub Arc<World>);

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.fingerprint().hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        self.0.fingerprint() == other.0.fingerprint()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0.fingerprint())
    }
}

pub struct Search {
    first: State,
    graph: Arc<Mutex<Graph>>,
    /// A state to which the way is looked for.
    hunted: Option<u64>,
    /// Whether steps are kept for the look at liveness.
    keeps: bool,
}

/// What came of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub unique: usize,
    pub steps: usize,
    pub depth: usize,
    /// What was broken, and how it came to that.
    pub broken: Option<Broke>,
    pub distances: Distances,
    /// Things that must be reached for the search to mean anything, and were not.
    pub missed: Vec<&'static str>,
}

#[derive(Clone, Debug)]
pub struct Broke {
    pub invariant: u32,
    pub what: String,
    pub path: Vec<String>,
}

/// Everything is as asked, nothing is on its way, and the same happens again and again.
pub fn beginning(config: &Arc<Config>) -> World {
    let sound = Arc::new(Config { broken: None, ..(**config).clone() });
    let mut world = World::new(sound);
    world.take_office();
    for machine in 0..config.nodes {
        world.start_daemon(machine);
    }
    world = run_until(world, |world| world.store.mirror.nodes().count() == config.nodes && is_idle(world));
    let (name, count) = (ServiceName::new("web"), Some(config.count));
    world.request(Request::apply(vec![Apply { name, count, spec: config.spec() }]));
    world.seal();
    world = run_until(world, |world| world.flags().right);
    let mut seen = HashSet::new();
    world = run_until(world, |world| world.flags().right && !seen.insert(world.fingerprint()));
    (world.budget, world.config) = (config.budget, config.clone());
    world.seal();
    world
}

fn is_idle(world: &World) -> bool {
    let mut soon = Vec::new();
    world.soon(&mut soon);
    soon.is_empty()
}

fn run_until(mut world: World, mut is_there: impl FnMut(&World) -> bool) -> World {
    world.seal();
    for _ in 0..BOOT_STEPS_MAX {
        if is_there(&world) {
            return world;
        }
        let mut actions = Vec::new();
        world.actions(&mut actions);
        let Some(action) = actions.first() else { break };
        world = world.after(*action);
    }
    panic!("the model does not begin: {:?}, {:?}", world.wrong, world.what_is_wrong())
}

impl Model for Search {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.first.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.0.actions(actions);
        if self.keeps {
            let (world, mut graph) = (&state.0, lock(&self.graph));
            graph.states.insert(world.fingerprint(), world.flags());
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let next = state.0.after(action);
        if self.keeps && action.is_fair() {
            let unaided = action.cause() != crate::step::Cause::Repair;
            lock(&self.graph).steps.push((state.0.fingerprint(), next.fingerprint(), unaided));
        }
        Some(State(Arc::new(next)))
    }

    fn properties(&self) -> Vec<Property<Search>> {
        vec![
            Property::always("1 nothing is placed where it may not be", holds::<1>),
            Property::always("2 one node drains at a time, one record per epoch", holds::<2>),
            Property::always("3 at most one maintainer acts", holds::<3>),
            Property::always("4 intent follows the table", holds::<4>),
            Property::always("5 moves stay within their limits", holds::<5>),
            Property::always("6 drained means that nothing is left", holds::<6>),
            Property::always("8 destinations are least loaded", holds::<8>),
            Property::always("9 drains rest under a closed coordinator", holds::<9>),
            Property::always("10 a lost node's part ends so", holds::<10>),
            Property::always("11 nothing is lost, nothing runs twice", holds::<11>),
            Property::always("12 with surge as many as asked for run on", holds::<12>),
            Property::always("14 no write of an old term is visible", holds::<14>),
            Property::always("15 no stop before every edge has let go", holds::<15>),
            Property::always("17 nothing is stopped because a record is absent", holds::<17>),
            Property::always("18 nobody is always due", holds::<18>),
            Property::always("the model carries out all that is asked of it", holds::<0>),
            Property::always(HUNTED, |search: &Search, state: &State| {
                search.hunted != Some(state.0.fingerprint())
            }),
            Property::sometimes("a drain ends drained", |_: &Search, state: &State| {
                ended(state, model::Ending::Drained)
            }),
            Property::sometimes("a drain ends cancelled", |_: &Search, state: &State| {
                ended(state, model::Ending::Cancelled)
            }),
            Property::sometimes("a drain ends node_lost", |_: &Search, state: &State| {
                ended(state, model::Ending::NodeLost)
            }),
        ]
    }
}

const HUNTED: &str = "the state that is looked for";

fn holds<const INVARIANT: u32>(_: &Search, state: &State) -> bool {
    state.0.wrong.as_ref().is_none_or(|wrong| wrong.invariant != INVARIANT)
}

fn ended(state: &State, ending: model::Ending) -> bool {
    let mut parts = state.0.store.mirror.drains().flat_map(|drain| &drain.nodes);
    parts.any(|part| part.ending() == Some(ending))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Budget {
    /// How drains must have ended in some run, for the search to have covered what it is about.
    fn must_reach(&self) -> Vec<&'static str> {
        let mut must = Vec::new();
        if self.drains > 0 {
            must.push("a drain ends drained");
            must.extend((self.cancels > 0).then_some("a drain ends cancelled"));
            let lost = self.daemon_crashes + self.machine_crashes + self.cuts > 0;
            must.extend(lost.then_some("a drain ends node_lost"));
        }
        must
    }
}

/// Explores everything that can happen, to the end or to the first thing that is wrong.
pub fn explore(config: Config, threads: usize, progress: bool) -> Outcome {
    let config = Arc::new(config);
    let first = State(Arc::new(beginning(&config)));
    let graph = Arc::new(Mutex::new(Graph::default()));
    let search = Search { first: first.clone(), graph: graph.clone(), hunted: None, keeps: true };
    let any = HasDiscoveries::AnyFailures;
    let checker = search.checker().threads(threads).finish_when(any).spawn_bfs();
    let checker = match progress {
        true => checker.join_and_report(&mut WriteReporter::new(&mut std::io::stderr())),
        false => checker.join(),
    };
    let found = checker.discoveries();
    let must = config.budget.must_reach();
    let mut outcome = Outcome {
        unique: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        broken: None,
        distances: Distances::default(),
        missed: must.into_iter().filter(|name| !found.contains_key(name)).collect(),
    };
    let broken = found.into_values().find(|path| path.last_state().0.wrong.is_some());
    if let Some(path) = broken {
        let wrong = path.last_state().0.wrong.clone();
        outcome.broken = wrong.map(|wrong| Broke {
            invariant: wrong.invariant,
            what: wrong.what,
            path: path.into_actions().into_iter().map(|action| format!("{action:?}")).collect(),
        });
        return outcome;
    }
    drop(checker);
    let graph = std::mem::take(&mut *lock(&graph));
    assert_eq!(graph.states.len(), outcome.unique, "every state was looked at");
    match graph.converges() {
        Ok(distances) => outcome.distances = distances,
        Err(stuck) => outcome.broken = Some(way_to(first, stuck, threads)),
    }
    outcome
}

/// How it comes to a state from which nothing comes right.
fn way_to(first: State, stuck: Stuck, threads: usize) -> Broke {
    let graph = Arc::new(Mutex::new(Graph::default()));
    let search = Search { first, graph, hunted: Some(stuck.state), keeps: false };
    let any = HasDiscoveries::AnyFailures;
    let checker = search.checker().threads(threads).finish_when(any).spawn_bfs().join();
    let found: HashMap<_, _> = checker.discoveries();
    let path = found.into_iter().find(|(name, _)| *name == HUNTED).map(|(_, path)| path);
    let why = path.as_ref().and_then(|path| path.last_state().0.what_is_wrong());
    let path = path.map(|path| path.into_actions()).unwrap_or_default();
    Broke {
        invariant: 18,
        what: format!("from {} states nothing comes right; from this one: {why:?}", stuck.how_many),
        path: path.into_iter().map(|action| format!("{action:?}")).collect(),
    }
}
