//! A writer that remembers what was acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backends::testing::keys::MORE_KEYS_MAX as COUNTERS;
use backends::testing::{PATIENCE, RedisNodes};
use tokio::task::JoinHandle;

/// Counts up counters all over the keyspace through a client that follows redirections, until told to stop.
pub struct Writer {
    stop: Arc<AtomicBool>,
    task: JoinHandle<(u64, Vec<(u64, u64)>)>,
    client: redis::cluster_async::ClusterConnection,
}

impl Writer {
    pub async fn start(nodes: &RedisNodes) -> Writer {
        let seeds: Vec<String> = (0..nodes.count()).map(|node| nodes.url(node)).collect();
        let client = redis::cluster::ClusterClientBuilder::new(seeds)
            .retries(50)
            .connection_timeout(PATIENCE)
            .response_timeout(PATIENCE)
            .build()
            .expect("addresses");
        let client = client.get_async_connection().await.expect("a cluster");
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, mut connection) = (stop.clone(), client.clone());
        let task = tokio::spawn(async move {
            // acknowledged, and doubtful: sent without an answer
            let mut counters = vec![(0, 0); COUNTERS];
            let mut rounds = 0;
            while !stopped.load(Ordering::Relaxed) {
                for (n, counter) in counters.iter_mut().enumerate() {
                    let count: Result<u64, _> =
                        redis::cmd("INCR").arg(format!("counter:{n}")).query_async(&mut connection).await;
                    match count {
                        Ok(_) => counter.0 += 1,
                        Err(_) => counter.1 += 1,
                    }
                }
                rounds += 1;
            }
            (rounds, counters)
        });
        Writer { stop, task, client }
    }

    /// No acknowledged write is lost. Gives how many there were.
    pub async fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let (_, counters) = self.task.await.expect("the writer");
        let mut written = 0;
        for (n, (acknowledged, doubtful)) in counters.into_iter().enumerate() {
            let command = redis::cmd("GET").arg(format!("counter:{n}")).clone();
            let found: Option<u64> = command.query_async(&mut self.client).await.expect("an answer");
            let found = found.unwrap_or_default();
            let right = acknowledged..=acknowledged + doubtful;
            assert!(right.contains(&found), "counter {n} is {found}, not within {right:?}");
            written += found;
        }
        written
    }
}
