//! What an operator reads: logs, events, the doctor, metrics.

use reqwest::Method;
use rustix::process::Signal;

use crate::harness::{Cluster, Pace, Talk, free_port, until, web, with_program};

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_shown_and_followed_across_rotation() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let go = cluster.dir().join("go");
    // More than one file holds (10 MiB), in lines of 100 bytes, then one more when asked.
    let script = format!(
        "echo the beginning; yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \
         | head -n 150000; echo first half; while [ ! -e {} ]; do sleep 0.05; done; \
         yes bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb \
         | head -n 150000; echo second half; exec sleep 1000",
        go.display()
    );
    cluster.apply(&with_program("talker", &script, "migrate = { min_healthy_time = \"0s\" }")).await;
    let id = cluster.api.until_ready("talker", 1).await.remove(0).id;
    until("the first half", async || {
        let done = cluster.run(&["instance", "logs", &id, "--lines", "2"]).await;
        if done.stdout.ends_with("aaa\nfirst half\n") { Ok(()) } else { Err(done.stdout + &done.stderr) }
    })
    .await;
    let mut follower =
        Talk::start(cluster.dir(), cluster.api.base(), &["instance", "logs", "-f", &id, "--lines", "1"]);
    assert_eq!(follower.until("half").await, "first half");
    std::fs::write(&go, "").unwrap();
    follower.until("second half").await;
    assert_eq!(follower.heard.len(), 1 + 150_000 + 1, "every line, once");
    assert!(follower.heard[1..=150_000].iter().all(|line| line.len() == 99 && line.starts_with('b')));
    let all = cluster.run(&["instance", "logs", &id, "--lines", "300003"]).await.stdout;
    assert!(
        all.starts_with("the beginning\n") && all.lines().count() == 100_000 || all.lines().count() > 99_000
    );
    let missing = cluster.run(&["instance", "logs", "talker-zzzz"]).await;
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("there is no instance"), "{}", missing.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn following_a_batch_ends_with_it() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let go = cluster.dir().join("go");
    let script = format!("echo begins; while [ ! -e {} ]; do sleep 0.05; done; echo ends", go.display());
    cluster.apply(&with_program("batch", &script, "kind = \"batch\"")).await;
    let id = cluster.api.until_ready("batch", 1).await.remove(0).id;
    let mut follower = Talk::start(cluster.dir(), cluster.api.base(), &["instance", "logs", "-f", &id]);
    follower.until("begins").await;
    std::fs::write(&go, "").unwrap();
    follower.until("ends").await;
    assert_eq!(follower.ended().await.code(), Some(0));
    let later = cluster.run(&["instance", "logs", "-f", &id]).await;
    assert_eq!((later.code, later.stdout.as_str()), (0, "begins\nends\n"), "also when it is over already");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_followed_over_the_death_of_the_coordinator() {
    let mut cluster = Cluster::start(1, Pace::Steady).await;
    let mut follower = Talk::start(cluster.dir(), cluster.api.base(), &["events", "--follow", "-o", "json"]);
    follower.until("coordinator.elected").await;
    cluster.apply(&with_program("job", "exec sleep 1000", "migrate = { min_healthy_time = \"0s\" }")).await;
    follower.until("instance.allocated").await;
    follower.until("\"ready\"").await;
    cluster.daemon_mut("control").kill();
    cluster.daemon_mut("control").start(&[]);
    cluster.until_up().await;
    follower.until("coordinator.elected").await;
    cluster.run(&["scale", "job", "2"]).await;
    follower.until("instance.allocated").await;
    let events: Vec<serde_json::Value> =
        follower.heard.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["number"].as_u64()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "each once, in order: {numbers:?}");
    follower.signal(Signal::TERM);
    follower.ended().await;

    let middle = numbers[numbers.len() / 2];
    let since = cluster.run(&["events", "--since", &middle.to_string(), "-o", "json"]).await;
    assert_eq!(since.code, 0, "{}", since.stderr);
    let later = since.stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    assert!(later.filter_map(|event| event["number"].as_u64()).all(|number| number > middle));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_the_tables_and_the_metrics_say_that_all_is_well() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    cluster.apply(&web(2, free_port(), "migrate = { min_healthy_time = \"200ms\" }")).await;
    let id = cluster.api.until_ready("web", 2).await.remove(0).id;
    for (args, words) in [
        (&["doctor"][..], &["all invariants hold (2 instances"][..]),
        (&["status"], &["control", "n1", "n2", "web", "2/2 ready"]),
        (&["status", "service/web"], &["web", "n1", "n2"]),
        (&["node", "list"], &["coordinator", "worker"]),
        (&["node", "status", "n1"], &["n1", "up"]),
        (&["instance", "status", &id], &[&id, "ready"]),
        (&["volume", "list"], &["no volumes"]),
        (&["completions", "bash"], &["tidegate", "confirm-dead"]),
    ] {
        let done = cluster.run(args).await;
        assert_eq!(done.code, 0, "{args:?}: {}", done.stderr);
        for word in words {
            assert!(done.stdout.contains(word), "{args:?} without {word:?}: {}", done.stdout);
        }
        assert!(
            done.stdout.lines().all(|line| line.chars().count() <= 200 || args[0] == "completions"),
            "{args:?}"
        );
    }
    for args in [
        &["status"][..],
        &["status", "web"],
        &["status", "node/n1"],
        &["node", "list"],
        &["node", "status", "n1"],
        &["node", "enable", "n1"],
        &["instance", "list"],
        &["instance", "status", &id],
        &["volume", "list"],
        &["scale", "web", "2"],
        &["doctor"],
    ] {
        let done = cluster.run(&[args, &["-o", "json"]].concat()).await;
        assert_eq!(done.code, 0, "{args:?}: {}", done.stderr);
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(&done.stdout);
        assert!(parsed.is_ok(), "{args:?}: {}", done.stdout);
    }
    for name in ["control", "n1"] {
        let api = cluster.api_of(name);
        assert_eq!(api.ask(Method::GET, "/healthz", None).await.unwrap().0, 200);
        let (status, metrics) = api.ask(Method::GET, "/metrics", None).await.unwrap();
        assert_eq!(status, 200);
        assert!(metrics.as_str().unwrap().ends_with("# EOF\n"), "{metrics}");
        assert_eq!(api.nodes().await.unwrap().len(), 3, "{name} answers or passes on");
    }
    let (_, metrics) = cluster.api.ask(Method::GET, "/metrics", None).await.unwrap();
    for name in [
        "tidegate_nodes{",
        "tidegate_placements_total",
        "tidegate_streams",
        "tidegate_heartbeat_age_seconds{",
    ] {
        assert!(metrics.as_str().unwrap().contains(name), "{name} in {metrics}");
    }
    let (status, openapi) = cluster.api.ask(Method::GET, "/openapi.json", None).await.unwrap();
    assert_eq!(status, 200);
    assert!(openapi["paths"]["/v1/services"].is_object());
}
