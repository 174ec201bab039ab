//! What must not run twice does not, even while its node is out of reach.

use std::{collections::BTreeMap, path::Path};

use crate::harness::{Cluster, Pace, of_service, process::Process, until, with_program};

/// When each instance was first and last seen alive by itself, on the boot clock, in hundredths.
fn lives(witness: &Path) -> BTreeMap<String, (u64, u64)> {
    let mut lives = BTreeMap::new();
    for line in std::fs::read_to_string(witness).unwrap().lines() {
        let (who, when) = line.split_once(' ').unwrap();
        let when: u64 = when.replace('.', "").parse().unwrap();
        let life = lives.entry(who.to_owned()).or_insert((when, when));
        *life = (life.0.min(when), life.1.max(when));
    }
    lives
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_not_run_twice_is_killed_by_its_own_shim_before_another_starts() {
    let mut cluster = Cluster::start(2, Pace::Quick).await;
    let witness = cluster.dir().join("witness");
    let script = format!(
        "while :; do read up idle < /proc/uptime; echo $INSTANCE $up >> {}; sleep 0.05; done",
        witness.display()
    );
    let single = with_program(
        "single",
        &script,
        "migrate = { surge = false, min_healthy_time = \"0s\" }\nupdate = { surge = false }",
    );
    cluster.apply(&single).await;
    let old = cluster.api.until_ready("single", 1).await.remove(0);
    let process = Process::of(old.pid.unwrap());

    cluster.daemon_mut(&old.node).kill();
    until(
        "the shim to kill it",
        async || {
            if process.is_alive() { Err("it lives".to_owned()) } else { Ok(()) }
        },
    )
    .await;
    let new = until("it to run elsewhere", async || {
        let all = cluster.api.instances("single").await?;
        let ready = all.iter().find(|i| i.id != old.id && i.actual == "ready" && i.node != old.node);
        ready.cloned().ok_or_else(|| of_service(&all))
    })
    .await;
    until("the other to say so itself", async || {
        let seen = lives(&witness);
        if seen.contains_key(&new.id) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;

    cluster.daemon_mut(&old.node).start(&[]);
    let stopped = until("the old one to be known as stopped", async || {
        let seen = cluster.api.instance(&old.id).await?;
        if seen.actual == "stopped" { Ok(seen) } else { Err(of_service(&[seen])) }
    })
    .await;
    let told = &stopped.reasons[0];
    assert!(told.code == "exited" && told.message.contains("lost the lease"), "{told:?}");
    let only = cluster.api.until_ready("single", 1).await.remove(0);
    assert_eq!((only.id, only.pid), (new.id, new.pid), "the return of the old node changed nothing");
    let mut lives: Vec<_> = lives(&witness).into_iter().collect();
    lives.sort_by_key(|(_, life)| *life);
    assert_eq!(lives.len(), 2, "{lives:?}");
    assert!(lives[0].1.1 < lives[1].1.0, "two at a time: {lives:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_without_surge_never_has_two_at_a_time() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let witness = cluster.dir().join("witness");
    let script = format!(
        "while :; do read up idle < /proc/uptime; echo $INSTANCE $up >> {}; sleep 0.05; done",
        witness.display()
    );
    let release = |mode: &str| {
        let more = "migrate = { surge = false, min_healthy_time = \"200ms\" }\nupdate = { surge = false }";
        with_program("single", &script, &format!("{more}\nenv = {{ MODE = \"{mode}\" }}"))
    };
    for (mode, number) in [("one", 1), ("two", 2), ("three", 3)] {
        cluster.apply(&release(mode)).await;
        let now = cluster.api.until_ready("single", 1).await.remove(0);
        assert_eq!(now.release, number);
        until("it to say so itself", async || {
            let seen = lives(&witness);
            if seen.contains_key(&now.id) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    }
    let mut lives: Vec<_> = lives(&witness).into_values().collect();
    lives.sort();
    assert_eq!(lives.len(), 3);
    assert!(lives.windows(2).all(|pair| pair[0].1 < pair[1].0), "two at a time: {lives:?}");
}
