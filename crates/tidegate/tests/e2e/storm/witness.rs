//! Looks at checkpoints all the while, and remembers whether one was ever seen to go back: that of the feed as
//! any daemon shows it, and those of the spans as the sink has them.

use std::{collections::BTreeMap, time::Duration};

use server::view::FeedView;
use tokio::{task::JoinHandle, time::timeout};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::harness::Api;

use super::FEED;

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A daemon that is paused or cut off does not answer; the others are asked meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Testimony {
    pub looks: u64,
    pub wrong: Vec<String>,
}

/// A span's checkpoint as the sink has it: each of the parts only rises.
type Stand = (i64, bool, i64, i64);

pub struct Witness {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<Testimony>>,
}

impl Witness {
    pub fn begin(apis: Vec<(String, Api)>, sink: Client) -> Witness {
        let stop = CancellationToken::new();
        let tasks =
            vec![tokio::spawn(watch_feed(apis, stop.clone())), tokio::spawn(watch_spans(sink, stop.clone()))];
        Witness { stop, tasks }
    }

    /// What was seen at the daemons, and in the sink.
    pub async fn end(&mut self) -> Vec<Testimony> {
        self.stop.cancel();
        let mut said = Vec::new();
        for task in self.tasks.drain(..) {
            said.push(task.await.unwrap());
        }
        said
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What a daemon showed, and the terms before and after it was asked.
struct Shown {
    by: String,
    feed: FeedView,
    terms: (u64, u64),
}

impl Shown {
    async fn by(name: &str, api: &Api) -> Option<Shown> {
        let asked = async {
            let before = api.status().await?.coordinator.term;
            let feed = api.feed(FEED).await?;
            let after = api.status().await?.coordinator.term;
            Ok::<_, String>(Shown { by: name.to_owned(), feed, terms: (before, after) })
        };
        timeout(ANSWER_WITHIN, asked).await.ok()?.ok()
    }

    fn epoch(&self) -> u64 {
        self.feed.maintainer.as_ref().map_or(0, |maintainer| maintainer.epoch)
    }

    /// Whether it is older than what was shown before it.
    fn is_older_than(&self, before: &Shown) -> bool {
        let (Some(old), Some(new)) = (&before.feed.checkpoint, &self.feed.checkpoint) else { return false };
        // With coordinator and maintainer at once everything goes that knew more than what is stored.
        let both_died = self.epoch() > before.epoch() && self.terms.1 > before.terms.0;
        !both_died && (new.position < old.position || new.at < old.at)
    }
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shown { by, feed, terms } = self;
        let FeedView { maintainer, dispatchers, moving, absent, checkpoint, troubles, .. } = feed;
        write!(
            f,
            "{by} in terms {terms:?}: {checkpoint:?} by {maintainer:?}, {dispatchers:?}, {moving} moving, \
             {absent} absent, {troubles:?}"
        )
    }
}

/// One daemon after the other: an answer that comes after another one must not be older than it.
async fn watch_feed(apis: Vec<(String, Api)>, stop: CancellationToken) -> Testimony {
    let mut said = Testimony::default();
    let mut last: Option<Shown> = None;
    while !stop.is_cancelled() {
        for (name, api) in &apis {
            let Some(shown) = Shown::by(name, api).await else { continue };
            said.looks += 1;
            if let Some(before) = &last
                && (shown.is_older_than(before) || shown.epoch() < before.epoch())
            {
                said.wrong.push(format!("{before}; then {shown}"));
            }
            if shown.feed.checkpoint.is_some() {
                last = Some(shown);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    said
}

async fn watch_spans(sink: Client, stop: CancellationToken) -> Testimony {
    let mut said = Testimony::default();
    let mut last: BTreeMap<String, Stand> = BTreeMap::new();
    let sql = "SELECT span, epoch, copied, position, (extract(epoch FROM at) * 1000)::int8
               FROM public.tidegate_checkpoint";
    while !stop.is_cancelled() {
        // The table is not there at first.
        for row in sink.query(sql, &[]).await.unwrap_or_default() {
            said.looks += 1;
            let span: String = row.get(0);
            let new: Stand = (row.get(1), row.get(2), row.get(3), row.get(4));
            if let Some(old) = last.get(&span)
                && (new.0 < old.0 || (old.1 && !new.1) || new.2 < old.2 || new.3 < old.3)
            {
                said.wrong.push(format!("{span}: {old:?} became {new:?}"));
            }
            last.insert(span, new);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    said
}
