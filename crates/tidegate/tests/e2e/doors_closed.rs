//! Daemons with certificates and tokens, as they run on machines that others can reach.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use doors::{Authority, Issued, KeyFiles, Keys, Trust};
use model::{Access, Life, MemoryCaps, NodeId, Resources, Roles};
use protocol::message::{EdgeReport, Hello, Up, UpBody};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::api_document;
use super::harness::{
    Daemon, Done, Pace, Setup, free_port, process, take_turn, tidegate, until, with_program, within,
};

fn in_days(days: u32) -> SystemTime {
    SystemTime::now() + days * Duration::from_secs(24 * 3600)
}

/// n1 coordinates and works, n2 and n3 work; each has an address of its own.
struct Secured {
    authority: Authority,
    daemons: Vec<Daemon>,
    bases: Vec<String>,
    rpc: String,
    dir: TempDir,
    _turn: tokio::sync::SemaphorePermit<'static>,
}

impl Drop for Secured {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            daemon.kill();
            process::kill_everything(&daemon.data());
        }
    }
}

fn setup(number: u8, certs: &Path) -> Setup {
    let (name, ip) = (format!("n{number}"), Ipv4Addr::new(127, 0, 0, number));
    let roles: &[&str] = if number == 1 { &["coordinator", "worker", "edge"] } else { &["worker"] };
    let file = |file: String| certs.join(file).display().to_string();
    let more = format!(
        "[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n[auth]\ntokens = true\n",
        file("ca.pem".to_owned()),
        file(format!("{name}.pem")),
        file(format!("{name}.key")),
    );
    Setup {
        roles,
        edge_host: ip,
        api: (ip, free_port()).into(),
        rpc: (ip, free_port()).into(),
        more,
        ..Setup::worker(&name)
    }
}

impl Secured {
    async fn start() -> Secured {
        let _turn = take_turn().await;
        let dir = tempfile::Builder::new().prefix("tidegate-e2e-").tempdir().unwrap();
        let certs = dir.path().join("certs");
        let nodes = ["n1=127.0.0.1", "n2=127.0.0.2", "n3=127.0.0.3"].map(|node| ["--node", node]).concat();
        let args = [&["tls", "init", "certs", "--person", "alice"], &nodes[..]].concat();
        let done = tidegate(dir.path(), "", &args).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
        let setups: Vec<Setup> = (1..=3).map(|number| setup(number, &certs)).collect();
        let bases = setups.iter().map(|setup| format!("https://{}", setup.api)).collect();
        let rpc = setups[0].rpc;
        let mut daemons = Vec::new();
        for setup in setups {
            let mut daemon = Daemon::new(setup, dir.path(), &[rpc], Pace::Steady);
            daemon.start(&["--log", "debug"]);
            daemons.push(daemon);
        }
        let authority = Authority::open(&certs).unwrap();
        let cluster = Secured { authority, daemons, bases, rpc: rpc.to_string(), dir, _turn };
        cluster.token("ops", "operator").await;
        cluster.until_up().await;
        cluster
    }

    fn certs(&self) -> PathBuf {
        self.dir.path().join("certs")
    }

    /// A command that is given the authority and nothing else.
    async fn run(&self, at: usize, args: &[&str]) -> Done {
        let args = [&["--ca", "certs/ca.pem"], args].concat();
        tidegate(self.dir.path(), &self.bases[at], &args).await
    }

    /// A command with a token that was made here.
    async fn with_token(&self, token: &str, args: &[&str]) -> Done {
        self.run(0, &[&["--token-file", token], args].concat()).await
    }

    async fn ops(&self, args: &[&str]) -> String {
        let done = self.with_token("ops", args).await;
        assert_eq!(done.code, 0, "{args:?}: {}{}", done.stdout, done.stderr);
        done.stdout
    }

    /// Made by alice, with her certificate, and kept in a file of its name. Said to n2, which sends her to the
    /// coordinator.
    async fn token(&self, name: &str, role: &str) -> String {
        let args = [
            "--cert",
            "certs/alice.pem",
            "--key",
            "certs/alice.key",
            "token",
            "create",
            name,
            "--role",
            role,
        ];
        let token = until("the first token", async || {
            let done = self.run(1, &args).await;
            if done.code == 0 { Ok(done.stdout) } else { Err(done.stderr) }
        });
        let token = token.await.trim().to_owned();
        std::fs::write(self.dir.path().join(name), &token).unwrap();
        token
    }

    async fn until_up(&self) {
        until("all nodes to be up", async || {
            let done = self.with_token("ops", &["node", "list", "-o", "json"]).await;
            let nodes: Value = serde_json::from_str(&done.stdout).map_err(|_| done.stderr)?;
            let items = nodes["items"].as_array().cloned().unwrap_or_default();
            let up = items.iter().filter(|node| node["health"] == "up" && node["connected"] == true).count();
            if up == 3 { Ok(()) } else { Err(nodes.to_string()) }
        })
        .await;
    }

    async fn apply(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
        self.ops(&["apply", "--wait", name]).await;
    }

    /// What an HTTP client with the authority's trust, and this certificate, is answered.
    async fn get(&self, url: &str, token: Option<&str>, cert: Option<&Issued>) -> (u16, String) {
        let cert = cert.map(|issued| (issued.cert.clone(), issued.key.clone()));
        let trust = Trust { ca: Some(self.authority.certificate()), cert };
        let client = trust.applied(doors::http().no_proxy()).unwrap().build().unwrap();
        let mut request = client.get(url);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), within("an answer", answer.text()).await.unwrap())
    }
}

const SLEEPER: &str = "migrate = { min_healthy_time = \"0s\" }\ncount = 3";

#[tokio::test]
async fn three_daemons_with_certificates_and_tokens_run_a_service_and_drain_a_node() {
    let cluster = Secured::start().await;
    cluster.apply("s.toml", &with_program("sleeper", "echo hello; exec sleep 1000", SLEEPER)).await;
    let listed: Value =
        serde_json::from_str(&cluster.ops(&["instance", "list", "-o", "json"]).await).unwrap();
    let away = |i: &&Value| i["node"] == "n3";
    let id = listed["items"].as_array().unwrap().iter().find(away).unwrap()["id"].as_str().unwrap();
    until("the logs of another node", async || {
        let done = cluster.with_token("ops", &["instance", "logs", id]).await;
        if done.stdout.contains("hello") { Ok(()) } else { Err(done.stderr) }
    })
    .await;
    let through_a_worker = cluster.run(1, &["--token-file", "ops", "scale", "sleeper", "4"]).await;
    assert_eq!(through_a_worker.code, 0, "{}", through_a_worker.stderr);
    cluster.ops(&["node", "drain", "n2", "--yes", "--message", "kernel"]).await;
    let left = cluster.ops(&["instance", "list", "--node", "n2", "-o", "json"]).await;
    let left: Value = serde_json::from_str(&left).unwrap();
    let running = |i: &&Value| i["desired"] == "running";
    assert_eq!(left["items"].as_array().unwrap().iter().filter(running).count(), 0, "{left}");
    let log = cluster.ops(&["audit"]).await;
    for (who, from, what) in [
        ("cert:alice", "127.0.0.1:", "create token/ops for an operator"),
        ("token:ops", "127.0.0.1:", "apply sleeper"),
        ("token:ops", " via n2 ", "scale service/sleeper to 4"),
        ("token:ops", "127.0.0.1:", "drain n2"),
    ] {
        let said = |line: &str| line.contains(who) && line.contains(from) && line.contains(what);
        assert!(log.lines().any(said), "{who} {from} {what}:\n{log}");
    }
}

fn says(done: &Done, words: &str) {
    assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{}", done.stderr);
    assert!(done.stderr.contains(words), "{words:?} is not in {:?}", done.stderr);
}

#[tokio::test]
async fn whoever_may_not_is_refused_in_words_that_say_why() {
    let cluster = Secured::start().await;
    says(&cluster.run(0, &["node", "list"]).await, "a token is needed");
    cluster.token("gone", "operator").await;
    cluster.ops(&["token", "revoke", "gone"]).await;
    let revoked = cluster.with_token("gone", &["node", "list"]).await;
    says(&revoked, "the token is not known: it was revoked, or is of another cluster");
    let viewer = cluster.token("eve", "viewer").await;
    assert_eq!(cluster.with_token("eve", &["node", "list"]).await.code, 0);
    let drain = cluster.with_token("eve", &["node", "drain", "n2", "--yes"]).await;
    says(&drain, "token:eve is a viewer: only an operator may do this");
    says(&cluster.with_token("eve", &["token", "list"]).await, "only an operator may do this");

    let elsewhere = tempfile::tempdir().unwrap();
    let foreign = Authority::init(elsewhere.path()).unwrap();
    let mallory = foreign.person("alice", Access::Operator, in_days(1)).unwrap();
    let (cert, key) = (mallory.cert.display().to_string(), mallory.key.display().to_string());
    let as_mallory = ["--cert", &cert, "--key", &key, "node", "list"];
    says(&cluster.run(0, &as_mallory).await, "is not signed by the authority in certs/ca.pem");
    let both = elsewhere.path().join("both.pem");
    let pems = [cluster.authority.certificate(), foreign.certificate()]
        .map(|path| std::fs::read_to_string(path).unwrap());
    std::fs::write(&both, pems.concat()).unwrap();
    let trusting = [&["--ca", both.to_str().unwrap()], &as_mallory[..]].concat();
    let refused = tidegate(cluster.dir.path(), &cluster.bases[0], &trusting).await;
    says(&refused, "the certificate in --cert (TIDEGATE_CERT) is not of this cluster's authority");
    let ca = foreign.certificate().display().to_string();
    let distrusting = tidegate(cluster.dir.path(), &cluster.bases[0], &["--ca", &ca, "node", "list"]).await;
    says(&distrusting, "its certificate is not signed by the authority in --ca");
    cluster.authority.person("late", Access::Operator, SystemTime::now() - Duration::from_secs(60)).unwrap();
    let late = ["--cert", "certs/late.pem", "--key", "certs/late.key", "node", "list"];
    says(&cluster.run(0, &late).await, "certs/late.pem has expired");

    let local = format!("{}/v1/local/instances/x/logs", cluster.bases[1]);
    assert_eq!(cluster.get(&local, Some(&viewer), None).await.0, 403, "not even with a token");
    let node = cluster.authority.node("n9", &[], in_days(1)).unwrap();
    assert_eq!(cluster.get(&local, None, Some(&node)).await.0, 404, "a daemon may, and there is nothing");
}

#[tokio::test]
async fn whoever_may_not_is_refused_as_the_document_says() {
    let Some(program) = api_document::schemathesis() else { return };
    let cluster = Secured::start().await;
    let viewer = format!("Authorization: Bearer {}", cluster.token("eve", "viewer").await);
    let (dir, ca) = (cluster.dir.path(), cluster.authority.certificate().display().to_string());
    let trust = ["--tls-verify", ca.as_str()];
    let tried = api_document::run(&program, dir, &cluster.bases[0], api_document::FEW, &trust).await;
    api_document::is_well(&tried);
    let trust = [&trust[..], &["--header", &viewer]].concat();
    api_document::is_well(
        &api_document::run(&program, dir, &cluster.bases[0], api_document::FEW, &trust).await,
    );
}

fn hello(node: &str) -> Up {
    let hello = Hello {
        node: NodeId::new(node),
        life: Life(1),
        succeeds: None,
        roles: Roles::WORKER,
        labels: BTreeMap::new(),
        capacity: Resources { memory: 1 << 40, cpu: 1000 },
        host: "127.0.0.9".to_owned(),
        api: String::new(),
        rpc: String::new(),
        memory_caps: MemoryCaps::CgroupV2,
        cluster: None,
        inventory: Vec::new(),
        edge: EdgeReport::default(),
    };
    Up { seq: 1, body: UpBody::Hello(hello) }
}

/// How a daemon with the certificate of `n2` ends that is configured like this.
async fn ends(cluster: &Secured, name: &str, cert: &str) -> String {
    let mut more = setup(3, &cluster.certs());
    (more.name, more.api, more.rpc) =
        (name.to_owned(), ([127, 0, 0, 3], free_port()).into(), ([127, 0, 0, 3], free_port()).into());
    more.more = more.more.replace("/n3.", &format!("/{cert}."));
    let mut daemon = Daemon::new(more, cluster.dir.path(), &[cluster.rpc.parse().unwrap()], Pace::Steady);
    daemon.start(&[]);
    assert_eq!(daemon.ended().await.code(), Some(1));
    daemon.log()
}

#[tokio::test]
async fn a_daemon_is_the_node_of_its_certificate_or_none() {
    let cluster = Secured::start().await;
    let log = ends(&cluster, "other", "n2").await;
    assert!(log.contains("n2.pem speaks for node:n2, and this is node other"), "{log}");
    let hosts = ["127.0.0.3".to_owned()];
    cluster.authority.node("late", &hosts, SystemTime::now() - Duration::from_secs(60)).unwrap();
    let log = ends(&cluster, "late", "late").await;
    assert!(log.contains("late.pem has expired"), "{log}");
    cluster.authority.node("moved", &["10.1.1.1".to_owned()], in_days(1)).unwrap();
    let log = ends(&cluster, "moved", "moved").await;
    assert!(log.contains("is for 10.1.1.1, and this node is reached at 127.0.0.3"), "{log}");

    let n2 = |kind: &str| cluster.certs().join(format!("n2.{kind}"));
    let files = KeyFiles { ca: cluster.authority.certificate(), cert: n2("pem"), key: n2("key") };
    let keys = Keys::load(files).unwrap();
    let connection = wire::connect_with(&cluster.rpc, Some(&keys)).await.unwrap();
    connection.sender.send(hello("n3")).await.unwrap();
    let end = within("the stream to end", connection.ended).await.unwrap();
    assert!(end.is_refusal(), "{end:?}");
    let words = "the certificate is node n2's: it may not speak for node n3";
    assert!(format!("{end:?}").contains(words), "{end:?}");
    assert!(cluster.daemons[0].log().contains(words), "the coordinator's log says so too");
    cluster.until_up().await;
}

#[tokio::test]
async fn a_certificate_that_is_replaced_is_used_without_a_restart() {
    let cluster = Secured::start().await;
    let token = std::fs::read_to_string(cluster.dir.path().join("ops")).unwrap();
    let url = format!("{}/metrics", cluster.bases[1]);
    let expires = async || {
        let (_, text) = cluster.get(&url, Some(&token), None).await;
        text.lines()
            .find(|line| line.starts_with("tidegate_certificate_expires_at_seconds"))
            .map(str::to_owned)
    };
    let before = expires().await.expect("it is among the figures");
    cluster.authority.node("n2", &["127.0.0.2".to_owned()], in_days(500)).unwrap();
    cluster.daemons[1].signal(Signal::HUP);
    until("the next certificate to be used", async || match expires().await {
        Some(after) if after != before => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    cluster.until_up().await;
    let n2 = cluster.run(1, &["--token-file", "ops", "node", "status", "n2"]).await;
    assert_eq!(n2.code, 0, "{}", n2.stderr);
}

#[tokio::test]
async fn a_node_whose_certificate_is_revoked_loses_its_stream_without_a_restart_and_no_other_does() {
    let cluster = Secured::start().await;
    let done = tidegate(cluster.dir.path(), "", &["tls", "revoke", "certs", "n3"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "n3 is on certs/revoked.txt\n"), "{}", done.stderr);
    cluster.daemons[0].signal(Signal::HUP);
    until("n3 to be cut off", async || {
        let listed = cluster.ops(&["node", "list", "-o", "json"]).await;
        let nodes: Value = serde_json::from_str(&listed).map_err(|error| error.to_string())?;
        let connected = |name: &str| {
            let items = nodes["items"].as_array().into_iter().flatten();
            items.into_iter().any(|node| node["id"] == name && node["connected"] == true)
        };
        match (connected("n1"), connected("n2"), connected("n3")) {
            (true, true, false) => Ok(()),
            seen => Err(format!("{seen:?} {listed}")),
        }
    })
    .await;
    until("a new stream to be refused", async || {
        let log = cluster.daemons[0].log();
        if log.contains("Revoked") { Ok(()) } else { Err(cluster.daemons[0].log_tail(20)) }
    })
    .await;
    let url = format!("{}/v1/nodes", cluster.bases[0]);
    let alice = ["--cert", "certs/alice.pem", "--key", "certs/alice.key", "node", "list"];
    assert_eq!(cluster.run(0, &alice).await.code, 0);
    assert_eq!(cluster.get(&url, None, None).await.0, 401);
}

const PASSWORD: &str = "pw-7f3a-of-a-database";
const IN_ENV: &str = "key-91c2-in-an-environment";
const IN_COMMAND: &str = "key-5be0-among-arguments";

/// Store groups whose backends cannot be had, each told something in confidence.
fn secretive_groups() -> String {
    let group = |name: &str, backend: &str| {
        format!(
            "[[store_group]]\nname = \"{name}\"\nreplicas = 1\ncommand = [\"sleep\", \"100000\"]\nports = [\"kv\"]\n\
             memory = \"16MiB\"\nenv = {{ KEY = \"{IN_ENV}\" }}\nvolume = {{ name = \"data\" }}\nbackend = {backend}\n"
        )
    };
    let url = format!("redis://user:{PASSWORD}@127.0.0.1:{}", free_port());
    let redis = group("kv", &format!("{{ kind = \"redis-cluster\", endpoints = [\"{url}\"] }}"));
    let command = format!(
        "{{ kind = \"command\", command = [\"sh\", \"-c\", \"exit 7\", \"backend\", \"--key={IN_COMMAND}\"] }}"
    );
    let missing =
        format!("{{ kind = \"command\", command = [\"/no/such/program\", \"--key={IN_COMMAND}\"] }}");
    format!("{redis}{}{}", group("own", &command), group("gone", &missing))
}

/// Of every private key that is there, a line that no other file has.
fn private_keys(certs: &Path) -> Vec<String> {
    let files = std::fs::read_dir(certs).unwrap().map(|entry| entry.unwrap().path());
    let keys = files.filter(|path| path.extension().is_some_and(|extension| extension == "key"));
    keys.map(|key| std::fs::read_to_string(key).unwrap().lines().nth(1).unwrap().to_owned()).collect()
}

#[tokio::test]
async fn secrets_are_in_no_log_no_event_no_status_and_no_figure() {
    let cluster = Secured::start().await;
    let viewer = cluster.token("eve", "viewer").await;
    let operator = std::fs::read_to_string(cluster.dir.path().join("ops")).unwrap();
    let env = format!("env = {{ KEY = \"{IN_ENV}\" }}\n{SLEEPER}");
    cluster.apply("s.toml", &with_program("sleeper", "exec sleep 1000", &env)).await;
    // Nobody listens there: it fails, and what it says of that must not name the password.
    let url = format!("postgres://user:{PASSWORD}@127.0.0.1:{}/db", free_port());
    let feed = format!(
        "[[feed]]\nname = \"orders\"\nsource = {{ kind = \"postgres\", url = \"{url}\", publication = \"p\" }}\n\
         sink = {{ kind = \"postgres\", url = \"{url}\" }}\n\
         [[feed]]\nname = \"cmd\"\nkind = \"command\"\ncommand = [\"false\"]\nenv = {{ KEY = \"{IN_ENV}\" }}\n"
    );
    std::fs::write(cluster.dir.path().join("f.toml"), feed + &secretive_groups()).unwrap();
    cluster.ops(&["apply", "f.toml"]).await;
    until("the feeds to be in trouble", async || {
        let (_, text) = cluster.get(&format!("{}/v1/feeds", cluster.bases[0]), Some(&viewer), None).await;
        let feeds: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let troubled = |feed: &&Value| feed["state"] == "warning";
        match feeds["items"].as_array().is_some_and(|all| all.iter().filter(troubled).count() == 2) {
            true => Ok(()),
            false => Err(text),
        }
    })
    .await;
    until("the store groups to be in trouble", async || {
        let url = format!("{}/v1/store-groups", cluster.bases[0]);
        let (_, text) = cluster.get(&url, Some(&viewer), None).await;
        let groups: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let troubled = |group: &&Value| group["reasons"].as_array().is_some_and(|all| !all.is_empty());
        match groups["items"].as_array().is_some_and(|all| all.iter().filter(troubled).count() == 3) {
            true => Ok(()),
            false => Err(text),
        }
    })
    .await;
    cluster.with_token("eve", &["node", "drain", "n3", "--yes"]).await;
    cluster.get(&format!("{}/v1/nodes?key={IN_COMMAND}", cluster.bases[0]), None, None).await;
    cluster.ops(&["node", "drain", "n2", "--yes", "--detach"]).await;

    let mut seen = BTreeMap::new();
    for daemon in &cluster.daemons {
        seen.insert(format!("the log of {}", daemon.name()), daemon.log());
    }
    let paths = [
        "/v1/status",
        "/v1/nodes",
        "/v1/services",
        "/v1/services/sleeper",
        "/v1/instances",
        "/v1/feeds",
        "/v1/feeds/orders",
        "/v1/feeds/cmd",
        "/v1/store-groups",
        "/v1/store-groups/kv",
        "/v1/store-groups/own",
        "/v1/stores",
        "/v1/drains",
        "/v1/events?follow=false",
        "/v1/audit?limit=1000",
        "/v1/doctor",
        "/metrics",
        "/healthz",
        "/api/v1/status",
        "/v1/volumes",
        "/v1/whoami",
    ];
    for (path, base) in paths.iter().flat_map(|path| cluster.bases.iter().map(move |base| (path, base))) {
        let (status, text) = cluster.get(&format!("{base}{path}"), Some(&viewer), None).await;
        assert_eq!(status, 200, "{path} at {base}: {text}");
        seen.insert(format!("{path} at {base}"), text);
    }
    for args in [
        &["status"][..],
        &["status", "service/sleeper"],
        &["status", "feed/orders"],
        &["status", "store-group/kv"],
        &["status", "store-group/own"],
        &["events"],
        &["audit"],
        &["token", "list", "-o", "json"],
    ] {
        seen.insert(format!("{args:?}"), cluster.ops(args).await);
    }
    let hash: String = doors::token::hash(&operator).iter().map(|byte| format!("{byte:02x}")).collect();
    let keys = private_keys(&cluster.certs());
    assert!(keys.len() >= 5, "of the authority, three nodes and a person");
    let told = [PASSWORD, IN_ENV, IN_COMMAND, &operator, &viewer, &hash];
    let secrets: Vec<&str> = told.into_iter().chain(keys.iter().map(String::as_str)).collect();
    for (place, text) in &seen {
        for secret in &secrets {
            assert!(!text.contains(secret), "{secret} is in {place}");
        }
    }
    assert!(seen["[\"audit\"]"].contains("refused: 403"), "{}", seen["[\"audit\"]"]);
    assert!(
        seen.values().any(|text| text.contains("***") || text.contains("(hidden)")),
        "something was hidden"
    );
}
