//! What people ask about feeds: created, changed, paused, resumed, removed.

use model::{Change, Feed, FeedName, FeedState, MaintainerEpoch, SpanSet, Time};

use super::{Answer, ApiError, Applied, ApplyFeed, Coordinator, ErrorKind, Outcome};

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
}
