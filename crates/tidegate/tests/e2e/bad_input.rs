//! Each gets one clear error and changes nothing.

use reqwest::Method;
use serde_json::Value;

use crate::harness::{Cluster, Pace, TIDEGATE, free_port, take_turn, tidegate, until, web, with_program};

const NOBODY: &str = "http://127.0.0.1:1";

async fn services(cluster: &Cluster) -> Value {
    let (status, body) = cluster.api.ask(Method::GET, "/v1/services", None).await.unwrap();
    assert_eq!(status, 200);
    body
}

/// One line on stderr that says what is wrong.
fn assert_one_error(what: &str, stderr: &str, words: &[&str]) {
    assert_eq!(stderr.lines().count(), 1, "{what}: {stderr}");
    assert!(stderr.starts_with("error: ") && stderr.len() < 500, "{what}: {stderr}");
    for word in words {
        assert!(stderr.contains(word), "{what} without {word:?}: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_is_one_error_with_its_place_and_changes_nothing() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let port = free_port();
    cluster.apply(&web(1, port, "migrate = { min_healthy_time = \"0s\" }")).await;
    cluster.api.until_ready("web", 1).await;
    let before = services(&cluster).await;
    let good = "[[service]]\nname = \"a\"\ncommand = [\"true\"]\nmemory = \"16MiB\"\n";
    let other =
        web(1, port, "").replace("\"web\"", "\"other\"").replacen("demo\", \"other\"", "demo\", \"web\"", 1);
    let huge = format!("{good}env = {{ A = \"{}\" }}\n", "x".repeat(1 << 20));
    let cases: &[(&str, String, &[&str])] = &[
        ("unknown key", format!("{good}colour = \"blue\"\n"), &["bad.toml:5", "colour"]),
        ("unknown inner key", format!("{good}stop = {{ grase = \"1s\" }}\n"), &["bad.toml:5", "grase"]),
        ("missing key", good.replace("memory = \"16MiB\"\n", ""), &["bad.toml:1", "memory"]),
        ("wrong type", good.replace("\"16MiB\"", "16"), &["bad.toml:4", "memory"]),
        ("bad unit", good.replace("16MiB", "16 bananas"), &["bad.toml:4", "memory"]),
        (
            "bad duration",
            format!("{good}stop = {{ grace = \"1 fortnight\" }}\n"),
            &["bad.toml:5", "stop.grace"],
        ),
        ("duplicate name", format!("{good}{good}"), &["bad.toml:6", "twice"]),
        ("edge port of another", other, &[&port.to_string(), "web"]),
        ("memory 0", good.replace("16MiB", "0"), &["bad.toml:4", "memory"]),
        ("count below 0", format!("{good}count = -1\n"), &["bad.toml:5", "count"]),
        ("absurd count", format!("{good}count = 1000000000\n"), &["bad.toml:5", "count"]),
        ("1 MiB and more", huge, &["bad.toml"]),
        ("not TOML", "[[service]\n".to_owned(), &["bad.toml:1"]),
        ("nothing in it", String::new(), &["bad.toml"]),
        ("unknown variable", good.replace("\"true\"", "\"${NOPE}\""), &["bad.toml:3", "NOPE"]),
        ("another kind", web(1, port, "").replace("count = 1", "kind = \"batch\""), &["bad.toml", "edge"]),
        ("a volume later", web(1, port, "volume = { name = \"data\" }"), &["web", "volume"]),
        ("good and bad", format!("{good}{}", good.replace("\"a\"", "\"b c\"")), &["bad.toml:6", "name"]),
    ];
    for (what, text, words) in cases {
        cluster.file("bad.toml", text);
        let done = cluster.run(&["apply", "bad.toml"]).await;
        assert!((1..=4).contains(&done.code) && done.code != 3, "{what}: {}", done.code);
        assert_eq!(done.stdout, "", "{what}");
        assert_one_error(what, &done.stderr, words);
        assert_eq!(services(&cluster).await, before, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_command_or_request_is_one_error_and_changes_nothing() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    cluster.apply(&with_program("job", "exec sleep 1000", "migrate = { min_healthy_time = \"0s\" }")).await;
    cluster.api.until_ready("job", 1).await;
    let before = services(&cluster).await;
    let commands: &[(&[&str], i32)] = &[
        (&["apply", "nothing.toml"], 1),
        (&["remove", "service/nope"], 1),
        (&["scale", "nope", "3"], 1),
        (&["scale", "job", "1000000000"], 1),
        (&["status", "service/nope"], 1),
        (&["node", "status", "nope"], 1),
        (&["node", "enable", "nope"], 1),
        (&["node", "confirm-dead", "nope"], 1),
        (&["node", "confirm-dead", "n1"], 4),
        (&["instance", "status", "nope"], 1),
        (&["instance", "stop", "job-zzzz"], 1),
        (&["volume", "attach", "nope", "--node", "n1"], 1),
    ];
    for (args, code) in commands {
        let done = cluster.run(args).await;
        assert_eq!((done.code, done.stdout.as_str()), (*code, ""), "{args:?}: {}", done.stderr);
        assert_one_error(&format!("{args:?}"), &done.stderr, &[]);
        assert_eq!(services(&cluster).await, before, "{args:?}");
    }
    let huge =
        format!(r#"{{"command": ["true"], "memory": "16MiB", "env": {{"A": "{}"}}}}"#, "x".repeat(1 << 20));
    let requests: &[(Method, &str, &str, &[u16])] = &[
        (Method::PUT, "/v1/services/a", "not json", &[400]),
        (Method::PUT, "/v1/services/a", "[1, 2]", &[400]),
        (Method::PUT, "/v1/services/a", "{}", &[400]),
        (Method::PUT, "/v1/services/a", r#"{"command": ["true"], "memory": "16MiB", "colour": 1}"#, &[400]),
        (Method::PUT, "/v1/services/a", r#"{"command": ["true"], "memory": 16}"#, &[400]),
        (Method::PUT, "/v1/services/a", r#"{"command": [], "memory": "16MiB"}"#, &[400]),
        (Method::PUT, "/v1/services/a", r#"{"name": "b", "command": ["true"], "memory": "16MiB"}"#, &[400]),
        (Method::PUT, "/v1/services/..%2f", r#"{"command": ["true"], "memory": "16MiB"}"#, &[400, 404]),
        (Method::PUT, "/v1/services/a", &huge, &[400, 413]),
        (Method::PUT, "/v1/services/job/count", r#"{"count": -1}"#, &[400]),
        (Method::PUT, "/v1/services/job/count", r#"{"count": 1000000000}"#, &[400]),
        (Method::PUT, "/v1/services/nope/count", r#"{"count": 1}"#, &[404]),
        (Method::POST, "/v1/apply?dry=true", r#"{"service": []}"#, &[400]),
        (Method::PUT, "/v1/nodes/n1/intent", r#"{"intent": "asleep"}"#, &[400]),
        (Method::POST, "/v1/nodes/n1/confirm-dead", "", &[412]),
        (Method::DELETE, "/v1/services/nope", "", &[404]),
        (Method::DELETE, "/v1/instances/nope", "", &[404]),
        (Method::GET, "/v1/nothing", "", &[404]),
        (Method::DELETE, "/v1/services", "", &[405]),
        (Method::GET, "/v1/events?since=many", "", &[400]),
    ];
    for (method, path, body, expected) in requests {
        let asked = (!body.is_empty()).then_some(*body);
        let (status, answer) = cluster.api.ask(method.clone(), path, asked).await.unwrap();
        assert!(expected.contains(&status), "{method} {path}: {status} {answer}");
        let error = &answer["error"];
        let message = error["message"].as_str().unwrap_or_default();
        assert!(error["code"].is_string() && !message.is_empty(), "{method} {path}: {answer}");
        assert_eq!(services(&cluster).await, before, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_broken_or_out_of_reach_is_said_in_words() {
    let mut cluster = Cluster::start(1, Pace::Steady).await;
    cluster.apply(&with_program("job", "exec sleep 1000", "migrate = { min_healthy_time = \"0s\" }")).await;
    let pid = cluster.api.until_ready("job", 1).await[0].pid;
    cluster.daemon_mut("control").kill();
    let store = cluster.daemon("control").data().join("store.redb");
    let config = cluster.daemon("control").config().to_str().unwrap().to_owned();
    let whole = std::fs::read(&store).unwrap();
    let mangled = |from: usize, to: usize| {
        let mut bytes = whole.clone();
        bytes[from..to].fill(0xa5);
        bytes
    };
    let cases = [
        ("without its end", whole[..whole.len() / 3].to_vec()),
        ("without its last page", whole[..whole.len() - 4096].to_vec()),
        ("without its head", mangled(0, 4096)),
        ("with a hole", mangled(4096, whole.len())),
        ("of another sort", b"hello".to_vec()),
        ("empty", Vec::new()),
    ];
    for (what, bytes) in cases {
        std::fs::write(&store, bytes).unwrap();
        // Not better by itself the second time.
        for _ in 0..2 {
            let done = tidegate(cluster.dir(), NOBODY, &["run", "--config", &config]).await;
            assert_eq!(done.code, 1, "{what}: {}", done.stderr);
            let error = done.stderr.lines().last().unwrap();
            assert!(error.starts_with("error: ") && error.contains("store.redb"), "{what}: {error}");
            assert_eq!(error.matches("store.redb").count(), 1, "once: {what}: {error}");
            assert!(error.contains("backup"), "it says what to do: {what}: {error}");
            assert!(!done.stderr.contains("thread '"), "no panic is shown: {what}: {}", done.stderr);
        }
    }
    std::fs::write(&store, &whole).unwrap();
    cluster.daemon_mut("control").start(&[]);
    cluster.until_up().await;
    assert_eq!(cluster.api.until_ready("job", 1).await[0].pid, pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_is_down_is_named() {
    let _turn = take_turn().await;
    let dir = tempfile::tempdir().unwrap();
    let (api, rpc, etcd) = (free_port(), free_port(), free_port());
    let config = format!(
        "[node]\nid = \"a\"\ndata_dir = \"data\"\n[listen]\napi = \"127.0.0.1:{api}\"\nrpc = \"127.0.0.1:{rpc}\"\n\
         [store]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:{etcd}\"]\n"
    );
    std::fs::write(dir.path().join("a.toml"), config).unwrap();
    let done = tidegate(dir.path(), NOBODY, &["run", "--config", "a.toml"]).await;
    assert_eq!(done.code, 1, "{}", done.stderr);
    let error = done.stderr.lines().last().unwrap();
    assert!(
        error.starts_with("error: cannot use the store: ") && error.contains(&etcd.to_string()),
        "{error}"
    );
    assert_eq!(error.matches("no answer within").count() + error.matches("refused").count(), 1, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_with_the_same_id_port_or_directory_is_refused_and_the_first_unharmed() {
    let cluster = Cluster::start(1, Pace::Quick).await;
    cluster.apply(&with_program("job", "exec sleep 1000", "migrate = { min_healthy_time = \"0s\" }")).await;
    let pid = cluster.api.until_ready("job", 1).await[0].pid;
    let first = std::fs::read_to_string(cluster.daemon("n1").config()).unwrap();
    let data = cluster.daemon("n1").data();
    let api = cluster.daemon("n1").api().base().trim_start_matches("http://").to_owned();
    let elsewhere = first.replace(data.to_str().unwrap(), "other");
    let on_other_ports = elsewhere.lines().map(|line| match line.split_once(" = ") {
        Some((key @ ("api" | "rpc"), _)) => format!("{key} = \"127.0.0.1:{}\"", free_port()),
        Some(_) | None => line.to_owned(),
    });
    let on_other_ports = on_other_ports.collect::<Vec<_>>().join("\n");
    assert!(!on_other_ports.contains(&api), "{on_other_ports}");
    let cases: [(&str, String, &[&str]); 3] = [
        ("directory", first.clone(), &["another daemon", data.to_str().unwrap()]),
        ("port", elsewhere.clone(), &["listen.api", "in use"]),
        ("node id", on_other_ports, &["another daemon", "n1"]),
    ];
    for (what, config, words) in cases {
        cluster.file("second.toml", &config);
        let done = tidegate(cluster.dir(), NOBODY, &["run", "--config", "second.toml"]).await;
        assert_eq!(done.code, 1, "{what}: {}", done.stderr);
        let error = done.stderr.lines().last().unwrap();
        assert!(error.starts_with("error: "), "{what}: {error}");
        for word in words {
            assert!(error.contains(word), "{what} without {word:?}: {error}");
        }
        let node = cluster.api.node("n1").await.unwrap();
        assert_eq!((node.process_epoch, node.connected, node.health.as_str()), (1, true, "up"), "{what}");
    }
    assert_eq!(cluster.api.until_ready("job", 1).await[0].pid, pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_of_the_edge_that_somebody_else_holds_is_said_and_taken_when_it_is_free() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let port = free_port();
    let holder = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    cluster.apply(&web(1, port, "migrate = { min_healthy_time = \"0s\" }")).await;
    until("the edge to say so", async || {
        let node = cluster.api.node("control").await?;
        let told = node.reasons.iter().find(|reason| reason.code == "edge_listen_failed");
        match told.filter(|reason| reason.message.contains(&port.to_string())) {
            Some(_) => Ok(()),
            None => Err(format!("{node:?}")),
        }
    })
    .await;
    drop(holder);
    cluster.api.until_ready("web", 1).await;
    until("the edge to listen", async || {
        let node = cluster.api.node("control").await?;
        if node.reasons.is_empty() { Ok(()) } else { Err(format!("{:?}", node.reasons)) }
    })
    .await;
    let traffic = cluster.load(port, 1).await;
    until("an answer", async || {
        let seen = cluster.run(&["status", "web"]).await;
        if seen.code == 0 { Ok(()) } else { Err(seen.stderr) }
    })
    .await;
    let report = traffic.end().await;
    assert!(report.failed.is_empty() && report.requests > 0, "{:?} {TIDEGATE}", report.failed);
}
