//! Daemons of this version on what daemons of an earlier release have left: their state file and their nodes' data.
//!
//! `upgrade/RELEASE/README.md` says how it was made; `crates/model/tests/stored` has records of every kind.

use std::path::{Path, PathBuf};

use reqwest::Method;
use server::view::{DrainView, List};

use crate::harness::{Cluster, Pace, Setup, until};

fn left_by(release: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/upgrade").join(release)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

async fn drains(cluster: &Cluster) -> Vec<DrainView> {
    let (_, body) = cluster.api.ask(Method::GET, "/v1/drains", None).await.unwrap();
    serde_json::from_value::<List<DrainView>>(body).unwrap().items
}

#[tokio::test]
async fn what_the_first_release_has_left_goes_on_under_this_one() {
    let mut cluster = Cluster::empty(Pace::Steady).await;
    copy(&left_by("first"), cluster.dir());
    cluster.add(Setup::control());
    cluster.add(Setup::worker("node-1"));
    cluster.add(Setup::worker("node-2"));
    cluster.until_up().await;
    // Two drains that are over are told of as they ended; the third still waits for somebody who decides about a volume.
    let drains = drains(&cluster).await;
    let told: Vec<_> = drains.iter().map(|drain| (drain.epoch, drain.state.as_str())).collect();
    assert_eq!(told, [(3, "draining"), (2, "drained_except"), (1, "drained")]);
    let first = &drains[2].nodes[0];
    assert_eq!((first.node.as_str(), first.message.as_str()), ("node-1", "kernel update"));
    assert_eq!((first.total, first.done, first.meta["ticket"].as_str()), (2, 2, "OPS-1"));
    assert_eq!(drains[1].nodes[0].left[0].code, "volume_local");
    // The machines have started anew since: what ran there runs again, what was over stays so, the volume is where it was.
    let web = cluster.api.until_ready("web", 3).await;
    assert!(web.iter().all(|instance| instance.node == "node-1"), "node-2 is closed: {web:?}");
    let db = cluster.api.until_ready("db", 1).await;
    assert_eq!((db[0].node.as_str(), db[0].id.as_str()), ("node-2", "db-1g28m03"));
    assert_eq!(cluster.api.volume("db-data-0").await.unwrap().home, "node-2");
    let job = cluster.api.instances("job").await.unwrap();
    assert_eq!((job.len(), job[0].actual.as_str()), (1, "stopped"), "it is complete, and not run again");
    let ended = cluster.api.instance("web-1g28m00").await.unwrap();
    assert_eq!((ended.desired.as_str(), ended.actual.as_str()), ("stopped", "stopped"));
    // And one can go on from there.
    let done = cluster.run(&["drain", "cancel", "3"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    let done = cluster.run(&["node", "drain", "node-1", "--ignore-system", "-y"]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    until("web to be on node-2", async || {
        let web = cluster.api.until_ready("web", 3).await;
        let there = web.iter().all(|instance| instance.node == "node-2");
        if there { Ok(()) } else { Err(format!("{web:?}")) }
    })
    .await;
    let (status, body) = cluster.api.ask(Method::GET, "/v1/drains/4", None).await.unwrap();
    assert_eq!((status, &body["state"]), (200, &"drained".into()), "epochs go on where they were: {body}");
}
