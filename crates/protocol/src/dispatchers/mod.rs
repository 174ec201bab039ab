//! The dispatchers on one node: what their maintainers ask of it, what their tasks do.
//!
//! *Invariant:* a message of a maintainer that has been succeeded changes nothing. A node that knows
//! itself closed takes nothing on. What runs is stopped by its maintainer or by the fence, never because
//! nobody mentions it.

mod local;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Checkpoint, Code, FeedName, FeedSpec, MaintainerEpoch, Millis, NodeId, ProcessEpoch, SpanEpoch, SpanName,
    Time,
};

use crate::{
    message::{
        SetRevision,
        feed::{Held, HeldState, Peer, PeerBody, SpanOrder, SpanWhat},
    },
    roster::RosterView,
};
use local::Local;
pub use local::STOP_PATIENCE;

/// Progress goes to maintainers this often at most.
const PROGRESS_EVERY: Millis = Millis(500);
/// A maintainer that had to ask by way of the coordinator is told of news that way for this long: it asks
/// again before that.
const RELAY_FOR: Millis = Millis::secs(15);

/// Troubles that are told in words by way of the coordinator; of the others the code has to do. A broken sink
/// is everybody's trouble, and a message of all of them would not fit.
const RELAYED_WORDS_MAX: usize = 256;

/// A feed that nobody has asked about for this long, and of which nothing runs here, is forgotten: it was
/// removed. A maintainer asks every few seconds; what it would want to know of old is in the sink.
const FORGET_AFTER: Millis = Millis::secs(3600);
/// A maintainer asks every few seconds. What was prepared for one that has been silent for so long is given up:
/// it may be gone for good, and its order may have been late.
const SILENT_AFTER: Millis = Millis::secs(30);

/// What is asked of the shell for one span. `run` tells the tasks of a span from each other; the
/// shell answers with [`TaskNews`], and every task ends with `Ended`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Make everything ready, and wait.
    Prepare { run: u32 },
    /// Work, from this checkpoint unless the sink knows better.
    Go { run: u32, epoch: SpanEpoch, from: Option<Checkpoint> },
    /// Finish what is in flight and end.
    Stop { run: u32 },
    /// End at once; what was not committed is undone.
    Abort { run: u32 },
}

/// What the shell says of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskNews {
    pub feed: FeedName,
    pub span: SpanName,
    pub run: u32,
    pub what: TaskWhat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskWhat {
    Prepared,
    /// The sink has committed this much.
    Progressed(Checkpoint),
    /// The task is gone, with its final checkpoint if it ended in good order.
    Ended(Result<Option<Checkpoint>, TaskFailure>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFailure {
    pub code: Code,
    pub message: String,
    /// Trying again without a person's help may work.
    pub passes: bool,
    /// A higher span epoch owns the sink.
    pub fenced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To the maintainer of a feed; `relayed`: by way of the coordinator.
    Peer { to: NodeId, feed: FeedName, maintainer: MaintainerEpoch, body: PeerBody, relayed: bool },
    Task {
        feed: FeedName,
        span: SpanName,
        spec: Arc<FeedSpec>,
        /// What the feed's directories here are compared with.
        mark: Option<String>,
        task: Task,
    },
}

/// One feed, as far as this node is concerned.
#[derive(Clone, Debug)]
struct Hosted {
    maintainer: MaintainerEpoch,
    /// Where that maintainer is.
    at: NodeId,
    heard_at: Time,
    /// How many of the spans are on their way in.
    arriving: usize,
    spec: Arc<FeedSpec>,
    /// Of its maintainer's last look, for as long as that is what the feed is.
    mark: Option<String>,
    spans: BTreeMap<SpanName, Local>,
    /// Of the last news sent to this maintainer.
    number: u64,
    /// What it has not been told.
    news: BTreeMap<SpanName, Option<(Code, String)>>,
    progressed: BTreeSet<SpanName>,
    /// Spans with a timer.
    timed: BTreeSet<SpanName>,
    /// Its maintainer asks by way of the coordinator: until then it is told so, too.
    relay_until: Time,
}

impl Hosted {
    fn silent_at(&self) -> Time {
        self.heard_at + SILENT_AFTER
    }
}

#[derive(Clone, Debug)]
pub struct Dispatchers {
    me: NodeId,
    feeds: BTreeMap<FeedName, Hosted>,
    /// Dispatchers that this node takes on at a time, over all feeds.
    arriving_max: usize,
    arriving: usize,
    live: usize,
    /// It has no lease.
    fenced: bool,
    /// The daemon is to end: whatever leases it gets, it takes nothing on.
    stopping: bool,
    next_progress: Option<Time>,
    /// When it is looked next at what may be forgotten.
    forget_at: Time,
    out: Vec<Output>,
}

impl Dispatchers {
    pub fn new(me: NodeId, arriving_max: u32) -> Dispatchers {
        Dispatchers {
            me,
            feeds: BTreeMap::new(),
            arriving_max: arriving_max.max(1) as usize,
            arriving: 0,
            live: 0,
            fenced: true,
            stopping: false,
            next_progress: None,
            forget_at: Time(0),
            out: Vec::new(),
        }
    }

    pub fn set_limit(&mut self, arriving_max: u32) {
        self.arriving_max = arriving_max.max(1) as usize;
    }

    /// A message of a maintainer. Which life of the sender and of this node it means was checked.
    pub fn heard(&mut self, peer: &Peer, relayed: bool, roster: &RosterView, now: Time) {
        match &peer.body {
            PeerBody::Ask { spec, mark, heard } => {
                self.asked(peer, (spec, mark), *heard, relayed, now);
            }
            PeerBody::Orders { roster: revision, orders } => {
                self.ordered(peer, *revision, orders, roster, now)
            }
            PeerBody::Inventory { .. }
            | PeerBody::Same { .. }
            | PeerBody::News { .. }
            | PeerBody::Progress { .. } => {}
        }
    }

    fn asked(
        &mut self,
        peer: &Peer,
        (spec, mark): (&Arc<FeedSpec>, &Option<String>),
        heard: Option<u64>,
        relayed: bool,
        now: Time,
    ) {
        let hosted = self.feeds.entry(peer.feed.clone()).or_insert_with(|| Hosted {
            maintainer: peer.maintainer,
            at: peer.from.clone(),
            heard_at: now,
            arriving: 0,
            spec: spec.clone(),
            mark: None,
            spans: BTreeMap::new(),
            number: 0,
            news: BTreeMap::new(),
            progressed: BTreeSet::new(),
            timed: BTreeSet::new(),
            relay_until: Time(0),
        });
        if peer.maintainer < hosted.maintainer {
            return;
        }
        if peer.maintainer > hosted.maintainer {
            // What the one before was told counts for nothing.
            (hosted.maintainer, hosted.at, hosted.number) = (peer.maintainer, peer.from.clone(), 0);
            hosted.relay_until = Time(0);
            hosted.news.clear();
        }
        hosted.heard_at = now;
        if relayed {
            hosted.relay_until = now + RELAY_FOR;
        }
        if mark.is_some() || hosted.spec != *spec {
            hosted.mark = mark.clone();
        }
        hosted.spec = spec.clone();
        let body = match heard {
            Some(number) if number == hosted.number && hosted.news.is_empty() => {
                PeerBody::Same { number, load: self.live as u32 }
            }
            Some(_) | None => {
                // Two inventories of one number say the same, whichever comes first.
                hosted.number += u64::from(!hosted.news.is_empty());
                hosted.news.clear();
                let held = hosted.spans.iter().map(|(span, local)| local.held(span));
                let held = if relayed { fewer_words(held.collect()) } else { held.collect() };
                PeerBody::Inventory { number: hosted.number, load: self.live as u32, held }
            }
        };
        let (to, maintainer) = (hosted.at.clone(), hosted.maintainer);
        self.out.push(Output::Peer { to, feed: peer.feed.clone(), maintainer, body, relayed });
    }

    fn ordered(
        &mut self,
        peer: &Peer,
        revision: SetRevision,
        orders: &[SpanOrder],
        roster: &RosterView,
        now: Time,
    ) {
        let hosted = self.feeds.get_mut(&peer.feed).filter(|hosted| hosted.maintainer == peer.maintainer);
        let Some(hosted) = hosted else { return };
        // Who is told news all the time has no reason to ask.
        hosted.heard_at = now;
        // One that knows less of the closed set than the maintainer might be in it.
        let behind = roster.revision().is_none_or(|known| known < revision);
        let refusal = match () {
            () if self.stopping => Some((Code::NoEligibleNode, "its daemon is stopping")),
            () if self.fenced => Some((Code::Fenced, "it has no lease")),
            () if behind => Some((Code::NoEligibleNode, "it has not heard which nodes are closed")),
            () if roster.is_closed(&self.me) => Some((Code::NoEligibleNode, "it is closed")),
            () => None,
        };
        for order in orders {
            self.order(&peer.feed, order, refusal, now);
        }
    }

    fn order(&mut self, feed: &FeedName, order: &SpanOrder, refusal: Option<(Code, &str)>, now: Time) {
        let span = &order.span;
        let there = self.feeds.get(feed).is_some_and(|hosted| hosted.spans.contains_key(span));
        let refuse = |code: Code, why: &str| Some((code, why.to_owned()));
        match &order.what {
            SpanWhat::Prepare => {
                let busy = self.arriving >= self.arriving_max;
                let trouble = match refusal {
                    Some((code, why)) => refuse(code, why),
                    None if busy => refuse(Code::MaxParallel, "as many as it takes on at a time are coming"),
                    None => None,
                };
                let owned =
                    there && self.with(feed, span, |local, _| !local.is_arriving() && local.is_live());
                match (trouble, there) {
                    // What it runs already is no longer a matter of taking it on.
                    _ if owned => self.tell(feed, span, None),
                    (Some(trouble), _) => {
                        let arriving = there && self.with(feed, span, |local, _| local.is_arriving());
                        self.tell(feed, span, (!arriving).then_some(trouble));
                    }
                    (None, true) => {
                        self.with(feed, span, |local, tasks| local.prepare(tasks));
                        self.tell(feed, span, None);
                    }
                    (None, false) => self.take_on(feed, span),
                }
            }
            SpanWhat::Start { epoch, from } => {
                let taken = there
                    && refusal.is_none()
                    && self.with(feed, span, |local, tasks| local.start(*epoch, *from, tasks));
                let already = there && self.with(feed, span, |local, _| local.epoch() >= *epoch);
                let why = refusal.map_or("it was not prepared", |(_, why)| why);
                let code = refusal.map_or(Code::NoEligibleNode, |(code, _)| code);
                let denied = (!taken && !already).then(|| (code, why.to_owned()));
                self.tell(feed, span, denied);
            }
            SpanWhat::Stop { epoch } => {
                if there {
                    self.with(feed, span, |local, tasks| local.stop(*epoch, now, tasks));
                }
                self.tell(feed, span, None);
            }
            SpanWhat::Release => {
                if there && self.with(feed, span, |local, tasks| local.release(tasks)) {
                    self.remove(feed, span);
                }
                self.tell(feed, span, None);
            }
        }
    }

    fn take_on(&mut self, feed: &FeedName, span: &SpanName) {
        let mut tasks = Vec::new();
        let local = Local::preparing(&mut tasks);
        let Some(hosted) = self.feeds.get_mut(feed) else { return };
        hosted.spans.insert(span.clone(), local);
        hosted.news.insert(span.clone(), None);
        hosted.arriving += 1;
        (self.arriving, self.live) = (self.arriving + 1, self.live + 1);
        self.push_tasks(feed, span, tasks);
    }

    fn remove(&mut self, feed: &FeedName, span: &SpanName) {
        if let Some(hosted) = self.feeds.get_mut(feed) {
            hosted.spans.remove(span);
            hosted.timed.remove(span);
            hosted.progressed.remove(span);
        }
    }

    /// The maintainer is told of this span with the next news; `denied` says why it is not here.
    fn tell(&mut self, feed: &FeedName, span: &SpanName, denied: Option<(Code, String)>) {
        if let Some(hosted) = self.feeds.get_mut(feed) {
            hosted.news.insert(span.clone(), denied);
        }
    }

    /// One step of a span, with the books kept around it.
    fn with<R: Default>(
        &mut self,
        feed: &FeedName,
        span: &SpanName,
        step: impl FnOnce(&mut Local, &mut Vec<Task>) -> R,
    ) -> R {
        let Some(hosted) = self.feeds.get_mut(feed) else { return R::default() };
        let Some(local) = hosted.spans.get_mut(span) else { return R::default() };
        let (arriving, live) = (local.is_arriving(), local.is_live());
        let mut tasks = Vec::new();
        let result = step(local, &mut tasks);
        self.arriving = self.arriving + usize::from(local.is_arriving()) - usize::from(arriving);
        hosted.arriving = hosted.arriving + usize::from(local.is_arriving()) - usize::from(arriving);
        self.live = self.live + usize::from(local.is_live()) - usize::from(live);
        match local.next_wake() {
            Some(_) => hosted.timed.insert(span.clone()),
            None => hosted.timed.remove(span),
        };
        self.push_tasks(feed, span, tasks);
        result
    }

    fn push_tasks(&mut self, feed: &FeedName, span: &SpanName, tasks: Vec<Task>) {
        let Some(hosted) = self.feeds.get(feed) else { return };
        self.out.extend(tasks.into_iter().map(|task| Output::Task {
            feed: feed.clone(),
            span: span.clone(),
            spec: hosted.spec.clone(),
            mark: hosted.mark.clone(),
            task,
        }));
    }

    /// The shell says something of a task.
    pub fn task(&mut self, news: TaskNews, now: Time) {
        let TaskNews { feed, span, run, what } = news;
        match what {
            TaskWhat::Prepared => {
                if self.with(&feed, &span, |local, tasks| local.prepared(run, tasks)) {
                    self.tell(&feed, &span, None);
                }
            }
            TaskWhat::Progressed(checkpoint) => {
                if self.with(&feed, &span, |local, _| local.progressed(run, checkpoint)) {
                    self.tell(&feed, &span, None);
                }
                if let Some(hosted) = self.feeds.get_mut(&feed) {
                    hosted.progressed.insert(span);
                    self.next_progress = self.next_progress.or(Some(now + PROGRESS_EVERY));
                }
            }
            TaskWhat::Ended(result) => {
                if self.with(&feed, &span, |local, _| local.ended(run, result, now)) {
                    self.tell(&feed, &span, None);
                }
            }
        }
    }

    /// The closed set changed: a node in it gives up what was only on its way in.
    pub fn roster_changed(&mut self, roster: &RosterView) {
        if roster.is_closed(&self.me) {
            self.give_up_arriving(Code::NoEligibleNode, "it is closed", |_| true);
        }
    }

    fn give_up_arriving(&mut self, code: Code, why: &str, of: impl Fn(&Hosted) -> bool) {
        let feeds = self.feeds.iter().filter(|(_, hosted)| hosted.arriving > 0 && of(hosted));
        let arriving = feeds.flat_map(|(feed, hosted)| {
            let spans = hosted.spans.iter().filter(|(_, local)| local.is_arriving());
            spans.map(|(span, _)| (feed.clone(), span.clone()))
        });
        let arriving: Vec<(FeedName, SpanName)> = arriving.collect();
        for (feed, span) in arriving {
            if self.with(&feed, &span, |local, tasks| local.release(tasks)) {
                self.remove(&feed, &span);
            }
            self.tell(&feed, &span, Some((code, why.to_owned())));
        }
    }

    /// The lease is over: everything stops, what does not by `abort_at` is ended.
    pub fn fence(&mut self, abort_at: Time) {
        if std::mem::replace(&mut self.fenced, true) {
            return;
        }
        self.give_up_arriving(Code::Fenced, "it has no lease", |_| true);
        for (feed, span) in self.all() {
            if self.with(&feed, &span, |local, tasks| local.fence(abort_at, tasks)) {
                self.tell(&feed, &span, None);
            }
        }
    }

    pub fn leased(&mut self) {
        self.fenced = false;
    }

    /// It has no lease, or is about to end.
    pub fn is_fenced(&self) -> bool {
        self.fenced || self.stopping
    }

    /// The daemon is to end: everything stops with its final checkpoint.
    pub fn stop_all(&mut self, now: Time) {
        self.give_up_arriving(Code::NoEligibleNode, "its daemon is stopping", |_| true);
        self.stopping = true;
        for (feed, span) in self.all() {
            self.with(&feed, &span, |local, tasks| local.stop_running(now + STOP_PATIENCE, tasks));
            self.tell(&feed, &span, None);
        }
    }

    fn all(&self) -> Vec<(FeedName, SpanName)> {
        let all = self.feeds.iter().flat_map(|(feed, hosted)| {
            hosted.spans.keys().map(|span| (feed.clone(), span.clone())).collect::<Vec<_>>()
        });
        all.collect()
    }

    /// What time alone brings about, and everything that is to be said.
    pub fn advance(&mut self, now: Time) -> Vec<Output> {
        self.forget_removed(now);
        let due: Vec<(FeedName, SpanName)> = self
            .feeds
            .iter()
            .flat_map(|(feed, hosted)| hosted.timed.iter().map(move |span| (feed.clone(), span.clone())))
            .collect();
        for (feed, span) in due {
            self.with(&feed, &span, |local, tasks| local.advance(now, tasks));
        }
        if self.next_silence().is_some_and(|at| at <= now) {
            let why = "its maintainer has not been heard of";
            self.give_up_arriving(Code::PeerUnreachable, why, |hosted| hosted.silent_at() <= now);
        }
        self.say_progress(now);
        self.say_news(now);
        std::mem::take(&mut self.out)
    }

    fn forget_removed(&mut self, now: Time) {
        if now < self.forget_at {
            return;
        }
        let is_needed = |hosted: &Hosted| {
            now.since(hosted.heard_at) < FORGET_AFTER || hosted.spans.values().any(Local::is_live)
        };
        self.feeds.retain(|_, hosted| is_needed(hosted));
        self.forget_at = now + FORGET_AFTER;
    }

    fn say_news(&mut self, now: Time) {
        let load = self.live as u32;
        for (feed, hosted) in &mut self.feeds {
            if hosted.news.is_empty() {
                continue;
            }
            hosted.number += 1;
            let held = std::mem::take(&mut hosted.news).into_iter().map(|(span, denied)| {
                let held = hosted.spans.get(&span).map(|local| local.held(&span));
                match (held, denied) {
                    (Some(held), None) => held,
                    // The last word of an earlier stay is kept, and the order is refused all the same.
                    (Some(held), Some(why)) if held.state == HeldState::Stopped => {
                        Held { state: HeldState::Absent, trouble: Some(why), ..held }
                    }
                    (Some(held), Some(why)) => Held { trouble: Some(why), ..held },
                    (None, trouble) => Held {
                        span,
                        epoch: SpanEpoch(0),
                        state: HeldState::Absent,
                        checkpoint: None,
                        trouble,
                    },
                }
            });
            let (number, held): (u64, Vec<Held>) = (hosted.number, held.collect());
            let mut say = |held, relayed| {
                let (to, feed, maintainer) = (hosted.at.clone(), feed.clone(), hosted.maintainer);
                let body = PeerBody::News { number, load, held };
                self.out.push(Output::Peer { to, feed, maintainer, body, relayed });
            };
            // Said both ways: their number tells the second from the next.
            if now < hosted.relay_until {
                say(fewer_words(held.clone()), true);
            }
            say(held, false);
        }
    }

    fn say_progress(&mut self, now: Time) {
        if self.next_progress.is_none_or(|at| now < at) {
            return;
        }
        self.next_progress = None;
        for (feed, hosted) in &mut self.feeds {
            let mut spans = Vec::new();
            for span in std::mem::take(&mut hosted.progressed) {
                let Some(local) = hosted.spans.get_mut(&span).filter(|local| local.is_running()) else {
                    continue;
                };
                if local.told != local.checkpoint()
                    && let Some(checkpoint) = local.checkpoint()
                {
                    local.told = Some(checkpoint);
                    spans.push((span, local.epoch(), checkpoint));
                }
            }
            if !spans.is_empty() {
                let (to, maintainer) = (hosted.at.clone(), hosted.maintainer);
                let body = PeerBody::Progress { spans };
                self.out.push(Output::Peer { to, feed: feed.clone(), maintainer, body, relayed: false });
            }
        }
    }

    pub fn next_wake(&self) -> Option<Time> {
        let timed = self.feeds.values().flat_map(|hosted| {
            hosted.timed.iter().filter_map(|span| hosted.spans.get(span).and_then(Local::next_wake))
        });
        timed.chain(self.next_progress).chain(self.next_silence()).min()
    }

    /// When something that is on its way in has waited for its maintainer for too long.
    fn next_silence(&self) -> Option<Time> {
        let waiting = self.feeds.values().filter(|hosted| hosted.arriving > 0 && self.arriving > 0);
        waiting.map(Hosted::silent_at).min()
    }

    /// How many it has of each feed: what a drain counts.
    pub fn inventory(&self) -> Vec<(FeedName, u32)> {
        let count = |hosted: &Hosted| hosted.spans.values().filter(|local| local.is_live()).count() as u32;
        let feeds = self.feeds.iter().map(|(feed, hosted)| (feed.clone(), count(hosted)));
        feeds.filter(|(_, count)| *count > 0).collect()
    }

    pub fn live(&self) -> usize {
        self.live
    }

    /// Feeds that it knows of, for the simulator's checks.
    pub fn feeds(&self) -> impl Iterator<Item = &FeedName> {
        self.feeds.keys()
    }

    /// What runs here with which epoch, for the simulator's checks.
    pub fn running(&self) -> impl Iterator<Item = (&FeedName, &SpanName, SpanEpoch)> {
        self.feeds.iter().flat_map(|(feed, hosted)| {
            let running = hosted.spans.iter().filter(|(_, local)| local.is_running());
            running.map(move |(span, local)| (feed, span, local.epoch()))
        })
    }

    /// Whether this span runs here, for the simulator's checks.
    pub fn is_running(&self, feed: &FeedName, span: &SpanName) -> bool {
        let local = self.feeds.get(feed).and_then(|hosted| hosted.spans.get(span));
        local.is_some_and(Local::is_running)
    }

    /// How many are on their way in, counted anew, for the simulator's checks.
    pub fn arriving(&self) -> usize {
        let locals = self.feeds.values().flat_map(|hosted| hosted.spans.values());
        locals.filter(|local| local.is_arriving()).count()
    }

    /// Whose word counts here.
    pub fn maintainer_of(&self, feed: &FeedName) -> Option<(MaintainerEpoch, &NodeId)> {
        self.feeds.get(feed).map(|hosted| (hosted.maintainer, &hosted.at))
    }
}

fn fewer_words(mut held: Vec<Held>) -> Vec<Held> {
    let troubles = held.iter_mut().filter_map(|held| held.trouble.as_mut());
    troubles.skip(RELAYED_WORDS_MAX).for_each(|(_, words)| words.clear());
    held
}

/// Whether a message means these two lives.
pub fn is_current(peer: &Peer, mine: Option<ProcessEpoch>, roster: &RosterView) -> bool {
    let sender = roster.epoch_of(&peer.from);
    mine == Some(peer.to_epoch) && sender.is_none_or(|known| peer.from_epoch >= known)
}
