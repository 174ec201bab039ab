//! Taking one of four primaries off, by this crate and by `redis-cli --cluster reshard`, with the same data in the
//! same cluster: `cargo run -p tidegate-backends --features testing --example reshard`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use backends::testing::RedisNodes;
use backends::{Backend, Moving, Preflight, RedisCluster};

#[allow(dead_code, reason = "shared with the tests, which use all of it")]
#[path = "../tests/data/mod.rs"]
mod data;

const LONG: Duration = Duration::from_secs(600);
const ALL: [usize; 4] = [0, 1, 2, 3];

#[tokio::main]
async fn main() {
    let nodes = RedisNodes::start(4, 0).await;
    data::fill(&nodes, &ALL).await;
    let backend = RedisCluster::new(nodes.config());
    let store = nodes.id(3).await;
    let Ok(Preflight::Possible { memo }) = backend.preflight(&store).await else {
        panic!("it can be removed")
    };
    println!("4096 slots and a quarter of {} keys off one node", data::KEYS);
    for round in 1..=2 {
        let began = Instant::now();
        assert_eq!(backend.begin_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
        let ours = began.elapsed();
        println!("round {round}: tidegate {ours:.2?}");
        data::assert_all_there(&nodes, &ALL).await;
        let began = Instant::now();
        assert_eq!(backend.cancel_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
        let back = began.elapsed();
        data::assert_all_there(&nodes, &ALL).await;

        println!("round {round}: tidegate, and back {back:.2?}");
        // its favourite case: one target, so that it starts and checks the cluster once
        let target = nodes.id(0).await;
        let began = Instant::now();
        let status = Command::new("redis-cli")
            .args(["--cluster", "reshard", &nodes.address(0), "--cluster-from", &store.0])
            .args(["--cluster-to", &target.0, "--cluster-slots", "4096", "--cluster-yes"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        let theirs = began.elapsed();
        assert!(status.is_ok_and(|status| status.success()), "redis-cli failed");
        data::assert_all_there(&nodes, &ALL).await;
        assert_eq!(backend.cancel_offline(&store, &memo, LONG).await, Ok(Moving::Complete));
        let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
        println!("round {round}: redis-cli {theirs:.2?}, {ratio:.1} times as long");
    }
}
