//! What tests ask for, and what they look at.

use std::{collections::BTreeMap, sync::Arc};

use model::{Cluster, Code, Feed, FeedName, FeedSpec, FeedState, PipelineSpec, SpanName, Time};
use protocol::{
    coordinator::{
        Answer, ApiError, ApplyFeed, Asked, DrainRequest, Input, Request, RequestId, WantedIntent,
    },
    message::FeedReport,
};

use super::{Bench, Key, Letter, Name};

pub fn key(feed: &str, span: &str) -> Key {
    (FeedName::new(feed), SpanName::new(span))
}

impl Bench {
    pub fn ask(&mut self, request: Request) -> Result<Answer, ApiError> {
        self.replies.clear();
        let asked = Asked { who: "test".into(), from: "test".into(), request };
        self.tell(Input::Request { id: RequestId(1), asked });
        self.settle();
        self.replies.pop().unwrap_or_else(|| self.fail("no answer"))
    }

    /// A request whose answer waits for a store that is held.
    pub fn ask_in_vain(&mut self, request: Request) {
        let asked = Asked { who: "test".into(), from: "test".into(), request };
        self.tell(Input::Request { id: RequestId(1), asked });
        self.settle();
    }

    /// Applies a feed whose source has this many spans, `t0` and on.
    pub fn apply(&mut self, name: Name, spans: usize) {
        self.apply_where(name, spans, &[]);
    }

    pub fn apply_where(&mut self, name: Name, spans: usize, labels: &[(&str, &str)]) {
        let feed = self.source(name, spans, labels);
        self.apply_all(vec![feed]);
    }

    /// Feeds of one span each, in one request.
    pub fn apply_together(&mut self, names: &[Name]) {
        let feeds = names.iter().map(|name| self.source(name, 1, &[])).collect();
        self.apply_all(feeds);
    }

    fn source(&mut self, name: Name, spans: usize, labels: &[(&str, &str)]) -> ApplyFeed {
        let all = (0..spans).map(|number| SpanName::new(&format!("t{number}"))).collect();
        self.tables.sources.insert(FeedName::new(name), all);
        let constraints = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let spec = FeedSpec { pipeline: PipelineSpec::Idle { spans: 0 }, constraints: constraints.collect() };
        ApplyFeed { name: FeedName::new(name), spec: Arc::new(spec) }
    }

    fn apply_all(&mut self, feeds: Vec<ApplyFeed>) {
        self.ask(Request::Apply { services: Vec::new(), feeds, groups: Vec::new() })
            .expect("a feed that may be applied");
    }

    /// As [`apply`](Self::apply), and waits until all of it runs.
    pub fn feed(&mut self, name: Name, spans: usize) {
        self.apply(name, spans);
        self.until("the feed runs", |bench| bench.all_run(name));
    }

    /// As [`feed`](Self::feed), with its maintainer on the last node.
    pub fn apply_on_last(&mut self, name: Name, spans: usize) {
        let fillers: &[Name] = &["x0", "x1", "x2", "x3"][..self.machines.len() - 1];
        for filler in fillers {
            self.apply(filler, 0);
            self.until("it is maintained", |bench| bench.acting(filler).len() == 1);
        }
        self.feed(name, spans);
        fillers.iter().for_each(|filler| self.remove(filler));
        let last = *self.machines.keys().next_back().expect("a machine");
        assert_eq!(self.maintainer(name), last);
    }

    /// Removes a feed and waits until it is gone.
    pub fn remove(&mut self, name: Name) {
        self.set_feed(name, FeedState::Removing).expect("a feed to remove");
        self.until("the feed is gone", |bench| bench.cluster().feed(name).is_none());
    }

    pub fn set_feed(&mut self, name: Name, state: FeedState) -> Result<Answer, ApiError> {
        self.ask(Request::SetFeedState { feed: FeedName::new(name), state })
    }

    pub fn drain(&mut self, node: Name) {
        self.drain_all(&[node]);
    }

    pub fn drain_all(&mut self, nodes: &[Name]) {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        let request = DrainRequest { nodes, ..Default::default() };
        self.ask(Request::Drain(request)).expect("a drain that may begin");
    }

    pub fn cancel(&mut self, node: Name) {
        self.ask(Request::CancelNode { node: node.to_owned() }).expect("a drain to cancel");
    }

    pub fn enable(&mut self, node: Name) {
        let intent = WantedIntent::Active;
        self.ask(Request::SetIntent { node: node.to_owned(), intent }).expect("a node to enable");
    }

    pub fn cluster(&self) -> &Cluster {
        match &self.coordinator {
            Some(coordinator) => coordinator.cluster(),
            None => self.fail("nobody is in office"),
        }
    }

    /// How the node's last drain stands.
    pub fn drained(&self, node: Name) -> &'static str {
        let drain = self.cluster().last_drain_of(node).expect("a drain");
        drain.part(node).expect("its part").state_str()
    }

    pub fn record(&self, feed: Name) -> &Feed {
        self.cluster().feed(feed).unwrap_or_else(|| self.fail("no such feed"))
    }

    /// Where its maintainer is to be.
    pub fn maintainer(&self, feed: Name) -> Name {
        let node = self.record(feed).maintainer.as_ref().map(|maintainer| maintainer.node.clone());
        let node = node.unwrap_or_else(|| self.fail("it has no maintainer"));
        self.machines.keys().copied().find(|name| *name == node.as_str()).expect("a machine")
    }

    /// Its maintainer is where the record says, and nobody has to confirm anything.
    pub fn handed_over(&self, feed: Name) -> bool {
        let maintainer = self.record(feed).maintainer.as_ref();
        maintainer.is_some_and(|maintainer| maintainer.from.is_none())
    }

    /// Where maintainers of the feed act, whatever the record says.
    pub fn acting(&self, feed: Name) -> Vec<Name> {
        let acts = self.machines.values().filter(|machine| {
            let mut here = machine.node.iter().flat_map(|node| node.maintainers());
            here.any(|(name, maintainer)| name.as_str() == feed && maintainer.acts())
        });
        acts.map(|machine| machine.name).collect()
    }

    /// Which node works each span of the feed.
    pub fn at_work(&self, feed: Name) -> BTreeMap<String, Name> {
        let mut all = BTreeMap::new();
        for machine in self.machines.values() {
            for ((of, span), _) in machine.tasks.iter().filter(|(_, task)| task.is_at_work()) {
                if of.as_str() == feed {
                    all.insert(span.to_string(), machine.name);
                }
            }
        }
        all
    }

    /// How many dispatchers of the feed are at work on the node.
    pub fn count(&self, feed: Name, node: Name) -> usize {
        self.at_work(feed).values().filter(|on| **on == node).count()
    }

    /// Tasks of all feeds on the node, at work or on their way in.
    pub fn tasks(&self, node: Name) -> usize {
        self.machines[node].tasks.len()
    }

    /// Every span that the source has is at work.
    pub fn all_run(&self, feed: Name) -> bool {
        let source = self.tables.sources.get(feed).map_or(0, |spans| spans.len());
        source > 0 && self.at_work(feed).len() == source
    }

    /// Every sink of the feed holds what its source had by then.
    pub fn caught_up(&self, feed: Name, by: Time) -> bool {
        let spans = self.tables.sources.get(feed).into_iter().flatten();
        let rows = self.tables.rows_at_source(by);
        spans
            .map(|span| self.tables.rows(&(FeedName::new(feed), span.clone())))
            .all(|held| held.is_some_and(|held| held >= rows))
    }

    /// Everything that runs goes on: every row that there is arrives.
    pub fn goes_on(&mut self, feed: Name) {
        let now = self.now;
        self.until("the feed catches up", |bench| bench.all_run(feed) && bench.caught_up(feed, now));
    }

    pub fn report(&self, feed: Name) -> Option<&FeedReport> {
        let seen = self.coordinator.as_ref()?.feed_seen(&FeedName::new(feed))?;
        seen.report.as_ref()
    }

    /// Why the feed's maintainer is not where it should be.
    pub fn waits(&self, feed: Name) -> Option<Code> {
        let seen = self.coordinator.as_ref()?.feed_seen(&FeedName::new(feed))?;
        seen.wait.as_ref().map(|(code, _, _)| *code)
    }

    pub fn troubles(&self, feed: Name) -> Vec<Code> {
        self.report(feed)
            .into_iter()
            .flat_map(|report| &report.troubles)
            .map(|trouble| trouble.code)
            .collect()
    }

    /// What a node says of itself, if it has acknowledged the closed set.
    pub fn inventory(&self, node: Name) -> Option<u32> {
        let coordinator = self.coordinator.as_ref()?;
        let ix = coordinator.cluster().node_ix(node)?;
        coordinator.dispatchers_on(ix).map(|counts| counts.values().sum())
    }

    /// Letters of this kind that were sent since then.
    pub fn sent_since(&self, since: Time, which: impl Fn(&Letter) -> bool) -> usize {
        self.sent.iter().filter(|(at, letter)| *at >= since && which(letter)).count()
    }
}
