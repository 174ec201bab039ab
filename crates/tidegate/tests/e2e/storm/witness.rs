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
const ANSWER_WITHIN: Duration = Duration::from_millis(700);

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
        let tasks = vec![
            tokio::spawn(watch_feed(apis, stop.clone())),
            tokio::spawn(watch_spans(sink, stop.clone())),
        ];
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

/// One daemon after the other: an answer that comes after another one must not be older than it.
async fn watch_feed(apis: Vec<(String, Api)>, stop: CancellationToken) -> Testimony {
    let mut said = Testimony::default();
    let mut last: Option<(String, FeedView)> = None;
    while !stop.is_cancelled() {
        for (name, api) in &apis {
            let Ok(Ok(feed)) = timeout(ANSWER_WITHIN, api.feed(FEED)).await else { continue };
            said.looks += 1;
            if let Some((before, seen)) = &last {
                let at = |feed: &FeedView| feed.checkpoint.as_ref().map(|c| (c.position, c.at.clone()));
                let (old, new) = (at(seen), at(&feed));
                let back = old.is_some()
                    && (new.as_ref().map(|new| new.0) < old.as_ref().map(|old| old.0)
                        || new.as_ref().map(|new| &new.1) < old.as_ref().map(|old| &old.1));
                let epoch = |feed: &FeedView| feed.maintainer.as_ref().map(|m| m.epoch);
                if back || epoch(&feed) < epoch(seen) {
                    said.wrong.push(format!("{before} showed {seen:?}, then {name} showed {feed:?}"));
                }
            }
            last = Some((name.clone(), feed));
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
                && (new.0 < old.0 || new.1 < old.1 || new.2 < old.2 || new.3 < old.3)
            {
                said.wrong.push(format!("{span}: {old:?} became {new:?}"));
            }
            last.insert(span, new);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    said
}
