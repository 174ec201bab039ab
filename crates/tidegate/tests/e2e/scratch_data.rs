//! Scratch data that comes along when a service leaves a draining node.

use std::path::{Path, PathBuf};

use server::view::InstanceView;

use crate::harness::{Cluster, Pace, of_service, until, with_program};

/// Without a check it is ready as soon as it runs; its data must be there by then.
const MOVES: &str = "disk = { migrate = true }\nmigrate = { min_healthy_time = \"100ms\" }";

/// Adds a line to `log` in its scratch directory when it starts, and another when it is told to stop, after
/// which it does what `last` says.
fn keeper(count: u32, last: &str) -> String {
    let script = format!(
        "trap 'echo stopped $INSTANCE >> $DISK/log; {last} exit 0' TERM; \
         [ -f $DISK/log ] || {{ head -c 3000000 /dev/urandom > $DISK/blob; chmod 640 $DISK/blob; \
         cksum < $DISK/blob > $DISK/sum; ln -s blob $DISK/link; }}; \
         echo started $INSTANCE >> $DISK/log; while :; do sleep 0.1; done"
    );
    with_program("keeper", &script, &format!("count = {count}\n{MOVES}"))
}

fn disk_of(cluster: &Cluster, instance: &InstanceView) -> PathBuf {
    cluster.daemon(&instance.node).data().join("instances").join(&instance.id).join("disk")
}

fn log_of(disk: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(disk.join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// It has said that it started: what follows finds its data complete.
async fn until_started(cluster: &Cluster, instance: &InstanceView) {
    let disk = disk_of(cluster, instance);
    until(&format!("{} to have written", instance.id), async || {
        let log = log_of(&disk);
        match log.contains(&format!("started {}", instance.id)) {
            true => Ok(()),
            false => Err(format!("{log:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_finds_on_its_new_node_what_it_wrote_last_on_the_old_one() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    cluster.apply(&keeper(1, "")).await;
    let old = cluster.api.until_ready("keeper", 1).await.remove(0);
    until_started(&cluster, &old).await;
    let sum = std::fs::read_to_string(disk_of(&cluster, &old).join("sum")).unwrap();

    let done = cluster.run(&["node", "drain", &old.node]).await;
    assert_eq!(done.code, 0, "{}{}", done.stderr, done.stdout);
    let new = cluster.api.until_ready("keeper", 1).await.remove(0);
    assert_ne!(new.node, old.node);
    assert!(new.reasons.is_empty(), "{}", of_service(&[new]));
    until_started(&cluster, &new).await;
    let disk = disk_of(&cluster, &new);
    let lived = [format!("started {}", old.id), format!("stopped {}", old.id), format!("started {}", new.id)];
    assert_eq!(log_of(&disk), lived);
    let blob = std::fs::File::open(disk.join("blob")).unwrap();
    let again = std::process::Command::new("cksum").stdin(blob).output().unwrap().stdout;
    assert_eq!(String::from_utf8_lossy(&again), sum);
    assert_eq!(std::fs::read_link(disk.join("link")).unwrap(), Path::new("blob"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&disk.join("blob").metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o640);

    let left = disk_of(&cluster, &old).parent().unwrap().to_owned();
    until("the old node to clear up", async || match left.exists() {
        true => Err(format!("{} is there", left.display())),
        false => Ok(()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_stops_once_drained_goes_only_when_its_data_is_elsewhere() {
    let mut cluster = Cluster::start(3, Pace::Steady).await;
    cluster.apply(&keeper(3, "")).await;
    let before = cluster.api.until_ready("keeper", 3).await;
    for instance in &before {
        until_started(&cluster, instance).await;
    }
    let old = before[0].clone();

    let done = cluster.run(&["node", "drain", &old.node, "--then", "stop"]).await;
    assert_eq!(done.code, 0, "{}{}", done.stderr, done.stdout);
    let after = cluster.api.until_ready("keeper", 3).await;
    let new = after.iter().find(|new| new.replaces.as_ref() == Some(&old.id)).unwrap().clone();
    assert!(cluster.daemon_mut(&old.node).ended().await.success());
    until_started(&cluster, &new).await;
    assert!(log_of(&disk_of(&cluster, &new)).contains(&format!("stopped {}", old.id)));
    // Those that did not move were left alone.
    for kept in before.iter().filter(|instance| instance.node != old.node) {
        assert_eq!(log_of(&disk_of(&cluster, kept)), [format!("started {}", kept.id)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_whose_data_cannot_be_copied_starts_empty_and_says_so() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    cluster.apply(&keeper(1, "rm -rf $DISK;")).await;
    let old = cluster.api.until_ready("keeper", 1).await.remove(0);
    until_started(&cluster, &old).await;

    let done = cluster.run(&["node", "drain", &old.node]).await;
    assert_eq!(done.code, 0, "{}{}", done.stderr, done.stdout);
    let new = cluster.api.until_ready("keeper", 1).await.remove(0);
    assert_ne!(new.node, old.node);
    until_started(&cluster, &new).await;
    assert_eq!(log_of(&disk_of(&cluster, &new)), [format!("started {}", new.id)]);
    let [reason] = new.reasons.as_slice() else { panic!("{}", of_service(&[new])) };
    assert_eq!(reason.code, "disk_not_copied");
    assert!(reason.message.contains("no scratch data of"), "{}", reason.message);
    let listed = cluster.run(&["instance", "list", "--service", "keeper"]).await;
    assert!(listed.stdout.contains("disk_not_copied"), "{}", listed.stdout);
}

/// The successor, once its node says that it copies.
async fn until_copying(cluster: &Cluster) -> InstanceView {
    until("a successor to copy", async || {
        let all = cluster.api.instances("keeper").await?;
        let copies = |new: &&InstanceView| new.reasons.iter().any(|reason| reason.code == "disk_copying");
        all.iter().find(copies).cloned().ok_or_else(|| of_service(&all))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_that_die_while_data_is_copied_begin_anew_and_half_of_it_is_never_used() {
    let mut cluster = Cluster::start(2, Pace::Steady).await;
    // Large enough to be caught on its way; it takes no room on the old node.
    cluster.apply(&keeper(1, "truncate -s 2G $DISK/large;")).await;
    let old = cluster.api.until_ready("keeper", 1).await.remove(0);
    until_started(&cluster, &old).await;
    let drain = cluster.run(&["node", "drain", &old.node, "--detach"]).await;
    assert_eq!(drain.code, 0, "{}{}", drain.stderr, drain.stdout);

    let new = until_copying(&cluster).await;
    cluster.daemon_mut(&old.node).kill();
    let half = disk_of(&cluster, &new).with_file_name("disk.part");
    until("the broken copy to be thrown away", async || match half.exists() {
        true => Err(format!("{} is there", half.display())),
        false => Ok(()),
    })
    .await;
    assert!(!disk_of(&cluster, &new).exists(), "it was caught on its way");
    cluster.daemon_mut(&old.node).start(&[]);
    until("the copy to be begun anew", async || match half.join("large").exists() {
        true => Ok(()),
        false => Err("nothing came".to_owned()),
    })
    .await;
    cluster.daemon_mut(&new.node).kill();
    assert!(half.exists() && !disk_of(&cluster, &new).exists(), "half of it is left, under its own name");
    cluster.daemon_mut(&new.node).start(&[]);

    let ready = cluster.api.until_ready("keeper", 1).await.remove(0);
    assert_eq!((&ready.id, &ready.node), (&new.id, &new.node));
    assert!(ready.reasons.is_empty(), "{}", of_service(&[ready]));
    until_started(&cluster, &new).await;
    let disk = disk_of(&cluster, &new);
    let lived = [format!("started {}", old.id), format!("stopped {}", old.id), format!("started {}", new.id)];
    assert_eq!(log_of(&disk), lived);
    assert_eq!(disk.join("large").metadata().unwrap().len(), 2 << 30);
    assert!(!half.exists());
}
