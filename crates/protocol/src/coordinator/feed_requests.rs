//! What people ask about feeds: created, changed, paused, resumed, removed.

use model::{
    AskedMove, Change, EventKind, Feed, FeedName, FeedState, MaintainerEpoch, SpanName, SpanSet, Time,
};

use super::{
    Answer, ApiError, Applied, ApplyFeed, Coordinator, ErrorKind, Outcome, asked_moves::PATIENCE,
    roster::knows_roster, timers::Timer,
};

impl Coordinator {
    /// Refuses before anything is changed: what else is applied beside it is not, either.
    pub(super) fn check_feeds(&self, feeds: &[ApplyFeed]) -> Result<(), ApiError> {
        for apply in feeds {
            let Some(feed) = self.cluster.feed(apply.name.as_str()) else { continue };
            if feed.state == FeedState::Removing {
                let message = format!("feed {} is being removed; wait until it is gone", apply.name);
                return Err(ApiError::new(ErrorKind::Conflict, "feed_removing", message));
            }
            // A running dispatcher would go on with the pipeline it was started with.
            if feed.spec.pipeline != apply.spec.pipeline && feed.state == FeedState::Running {
                let message =
                    format!("feed {0} runs; `tidegate feed pause {0}` before it is changed", apply.name);
                return Err(ApiError::new(ErrorKind::Conflict, "feed_running", message));
            }
        }
        Ok(())
    }

    pub(super) fn apply_feeds(&mut self, feeds: Vec<ApplyFeed>, now: Time) -> Vec<Applied> {
        feeds.into_iter().map(|apply| self.apply_feed(apply, now)).collect()
    }

    fn apply_feed(&mut self, apply: ApplyFeed, now: Time) -> Applied {
        let (kind, name) = ("feed", apply.name.to_string());
        let (next, outcome) = match self.cluster.feed(apply.name.as_str()) {
            Some(feed) if feed.spec == apply.spec => {
                return Applied { kind, name, outcome: Outcome::Unchanged };
            }
            Some(feed) => (Feed { spec: apply.spec, ..feed.clone() }, Outcome::Changed),
            None => {
                let feed = Feed {
                    name: apply.name,
                    spec: apply.spec,
                    state: FeedState::Running,
                    spans: SpanSet::default(),
                    maintainer: None,
                    epoch: MaintainerEpoch(0),
                    checkpoint: None,
                    created_at: now,
                    asked: Vec::new(),
                };
                (feed, Outcome::Created)
            }
        };
        self.change(now, |txn, _| txn.put(Change::Feed(next)));
        Applied { kind, name, outcome }
    }

    fn feed_rec(&self, name: &FeedName) -> Result<&Feed, ApiError> {
        let feed = self.cluster.feed(name.as_str());
        feed.ok_or_else(|| ApiError::not_found("feed_not_found", format!("there is no feed {name}")))
    }

    pub(super) fn set_feed_state(
        &mut self,
        name: &FeedName,
        state: FeedState,
        now: Time,
    ) -> Result<Answer, ApiError> {
        let feed = self.feed_rec(name)?;
        if feed.state == FeedState::Removing && state != FeedState::Removing {
            let message = format!("feed {name} is being removed");
            return Err(ApiError::new(ErrorKind::Conflict, "feed_removing", message));
        }
        if feed.state != state {
            let next = Feed { state, ..feed.clone() };
            self.change(now, |txn, _| txn.put(Change::Feed(next)));
        }
        Ok(Answer::Done)
    }

    /// Has a span moved to a node that the caller chose. What excludes a node from every other move excludes
    /// it here. Stored before it is answered: a coordinator that takes over goes on with it.
    pub(super) fn move_span(
        &mut self,
        name: &FeedName,
        span: SpanName,
        node: &str,
        now: Time,
    ) -> Result<Answer, ApiError> {
        let feed = self.feed_rec(name)?;
        let conflict = |code, message| Err(ApiError::new(ErrorKind::Conflict, code, message));
        if feed.state != FeedState::Running {
            let message = format!("feed {name} is {}; nothing of it runs", feed.state.as_str());
            return conflict("feed_not_running", message);
        }
        if feed.spans.names.binary_search(&span).is_err() {
            let message = format!("feed {name} has no span {span}");
            return Err(ApiError::not_found("span_not_found", message));
        }
        let ix = self.node_ix(node)?;
        let entry = self.cluster.node(ix);
        if entry.is_closed() {
            let message = format!("{node} is closed: nothing is placed there until it is enabled");
            return conflict("node_closed", message);
        }
        let fits = entry.rec.roles.worker && !entry.rec.foreign;
        if !fits || !entry.rec.satisfies(&feed.spec.constraints) {
            let message = format!("{node} is no worker, or lacks the labels that feed {name} asks for");
            return Err(ApiError::new(ErrorKind::Refused, "constraint_unsatisfied", message));
        }
        let ready = knows_roster(&entry.rec, self.sessions.get(&ix), self.roster.revision());
        if !entry.may_place() || !ready {
            let message = format!("{node} is not up, or has not acknowledged which nodes are closed");
            return Err(ApiError::new(ErrorKind::NotNow, "node_not_ready", message));
        }
        let to = entry.rec.id.clone();
        if self.feeds.asked.count() >= self.feed_limits.moves_total as usize {
            let message = "as many moves as are allowed at a time were asked for; try again later";
            return conflict("max_parallel", message.to_owned());
        }
        self.feeds.asked.add(name, span, to, now);
        self.store_asked(name, now);
        self.give_up_asked(now);
        Ok(Answer::Done)
    }

    fn store_asked(&mut self, name: &FeedName, now: Time) {
        let asked = self.feeds.asked.of(name);
        self.feeds.dirty.insert(name.clone());
        let Some(feed) = self.cluster.feed(name.as_str()).filter(|feed| feed.asked != asked) else { return };
        let next = Feed { asked, ..feed.clone() };
        self.change(now, |txn, _| txn.put(Change::Feed(next)));
    }

    /// Moves that were asked for too long ago are given up, and that is told.
    pub(super) fn give_up_asked(&mut self, now: Time) {
        for (name, gone) in self.feeds.asked.give_up(now) {
            self.store_asked(&name, now);
            for asked in gone {
                self.tell_given_up(&name, &asked, &format!("and has not in {PATIENCE}"), now);
            }
        }
        if let Some(at) = self.feeds.asked.given_up_at() {
            self.timers.set_sooner(Timer::Feeds, at);
        }
    }

    fn tell_given_up(&mut self, name: &FeedName, asked: &AskedMove, why: &str, now: Time) {
        let AskedMove { span, to, .. } = asked;
        let message = format!("{span} was to go to {to}, {why}");
        let fields = vec![("span", span.to_string()), ("to", to.to_string())];
        self.change(now, |txn, _| {
            txn.tell(EventKind::FeedMoveGivenUp, format!("feed/{name}"), message, fields);
        });
    }

    /// Its maintainer has done with these: they are made, or cannot be, which is told.
    pub(super) fn done_with_asked(&mut self, feed: &Feed, gone: &[AskedMove], now: Time) {
        for asked in gone {
            let to = self.cluster.node_by_id(asked.to.as_str());
            let why = match to {
                _ if feed.state != FeedState::Running => format!("and the feed is {}", feed.state.as_str()),
                _ if feed.spans.names.binary_search(&asked.span).is_err() => "and is gone".to_owned(),
                None => "which is not there".to_owned(),
                Some(to) if to.is_closed() => "which is closed".to_owned(),
                Some(to) if to.rec.is_over() => "which is offline".to_owned(),
                Some(to) if !to.rec.satisfies(&feed.spec.constraints) => "which lacks its labels".to_owned(),
                Some(_) => continue,
            };
            self.tell_given_up(&feed.name, asked, &why, now);
        }
    }
}
