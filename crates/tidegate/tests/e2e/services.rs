//! What the service file promises, one promise at a time.

use std::collections::BTreeSet;

use reqwest::Method;
use rustix::process::Signal;

use crate::harness::{
    Cluster, Pace, TIDEGATE, free_port, of_service,
    process::{self, Process},
    until, web, with_program,
};

const AT_ONCE: &str = "migrate = { min_healthy_time = \"0s\" }";

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_given_its_names_its_port_its_directory_and_its_variables() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let script = "echo \"$SERVICE $INSTANCE $NODE $RELEASE $PORT_ADMIN_UI $GREETING $1\"; \
                  echo kept > $DISK/file; [ $(pwd) = $DISK ] && echo at home; exec sleep 1000";
    let text = format!(
        "[[service]]\nname = \"speaker\"\ncommand = [\"sh\", \"-c\", '''{script}''', \"sh\", \"${{PORT_ADMIN_UI}}+$$x\"]\n\
         memory = \"16MiB\"\nports = [\"admin-ui\"]\nenv = {{ GREETING = \"hello-${{INSTANCE}}\" }}\n{AT_ONCE}\n"
    );
    cluster.apply(&text).await;
    let it = cluster.api.until_ready("speaker", 1).await.remove(0);
    let port = it.ports["admin-ui"];
    let expected = format!("speaker {0} n1 1 {port} hello-{0} {port}+$x\nat home\n", it.id);
    until("what it says", async || {
        let said = cluster.run(&["instance", "logs", &it.id]).await.stdout;
        if said == expected { Ok(()) } else { Err(said) }
    })
    .await;
    let dir = cluster.daemon("n1").data().join("instances").join(&it.id);
    assert_eq!(std::fs::read_to_string(dir.join("disk/file")).unwrap(), "kept\n");
    assert_eq!(cluster.run(&["remove", "service/speaker"]).await.code, 0);
    until(
        "its directory to go with it",
        async || {
            if dir.exists() { Err(dir.display().to_string()) } else { Ok(()) }
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_a_service_ends_every_process_of_it_and_a_new_one_of_that_name_starts_afresh() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    // Neither it nor its children listen to SIGTERM.
    let stubborn = with_program(
        "stubborn",
        "trap '' TERM; (trap '' TERM; sleep 1000 & sleep 1000) & while :; do sleep 1; done",
        &format!("count = 2\nstop = {{ grace = \"1s\" }}\n{AT_ONCE}"),
    );
    cluster.apply(&stubborn).await;
    let first: BTreeSet<String> =
        cluster.api.until_ready("stubborn", 2).await.into_iter().map(|instance| instance.id).collect();
    assert_eq!(cluster.run(&["remove", "service/stubborn"]).await.code, 0);
    let refused = cluster.run(&["scale", "stubborn", "3"]).await;
    assert_eq!(refused.code, 4, "not while it is being removed: {}", refused.stderr);
    until("it to be gone", async || {
        let (status, _) = cluster.api.ask(Method::GET, "/v1/services/stubborn", None).await?;
        if status == 404 { Ok(()) } else { Err(of_service(&cluster.api.instances("stubborn").await?)) }
    })
    .await;
    assert_eq!(process::marked(cluster.dir()), [], "nor is any process left");
    cluster.apply(&stubborn).await;
    let again = cluster.api.until_ready("stubborn", 2).await;
    assert!(again.iter().all(|instance| !first.contains(&instance.id)), "ids are never used again");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_edge_follows_a_check_that_fails_and_passes_again() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let (port, well) = (free_port(), cluster.dir().join("well"));
    let check = format!(
        "check = {{ command = [\"test\", \"-e\", {well:?}], interval = \"100ms\", timeout = \"5s\" }}"
    );
    let text = web(1, port, AT_ONCE);
    let http = text.lines().find(|line| line.starts_with("check")).unwrap().to_owned();
    cluster.apply(&text.replace(&http, &check)).await;
    let until_backends = async |count: usize, actual: &[&str]| {
        until(&format!("{count} backends"), async || {
            let (_, body) = cluster.api.ask(Method::GET, "/v1/services/web/backends", None).await?;
            let all = cluster.api.instances("web").await?;
            let right = body["items"].as_array().is_some_and(|items| items.len() == count);
            let right = right && all.len() == 1 && actual.contains(&all[0].actual.as_str());
            if right { Ok(all[0].clone()) } else { Err(format!("{body} {}", of_service(&all))) }
        })
        .await
    };
    until_backends(0, &["starting", "unready"]).await;
    std::fs::write(&well, "").unwrap();
    let before = until_backends(1, &["ready"]).await;
    std::fs::remove_file(&well).unwrap();
    let sick = until_backends(0, &["unready"]).await;
    assert_eq!(sick.reasons[0].code, "unhealthy", "{sick:?}");
    std::fs::write(&well, "").unwrap();
    let after = until_backends(1, &["ready"]).await;
    assert_eq!((after.id, after.pid, after.restarts), (before.id, before.pid, 0), "it was never restarted");
    assert!(after.reasons.is_empty(), "{:?}", after.reasons);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tcp_check_passes_once_the_port_is_open() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let text = web(1, free_port(), AT_ONCE);
    let http = text.lines().find(|line| line.starts_with("check")).unwrap().to_owned();
    cluster.apply(&text.replace(&http, "check = { tcp = \"http\", interval = \"100ms\" }")).await;
    cluster.api.until_ready("web", 1).await;
    let deaf = with_program(
        "deaf",
        "exec sleep 1000",
        "ports = [\"a\"]\ncheck = { tcp = \"a\", interval = \"100ms\" }",
    );
    cluster.apply(&deaf).await;
    until("one that does not listen to be found unhealthy", async || {
        let all = cluster.api.instances("deaf").await?;
        let told = all.iter().flat_map(|i| &i.reasons).any(|reason| reason.code == "unhealthy");
        if told && cluster.api.service("deaf").await?.ready == 0 { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_shim_is_killed_is_started_again() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    cluster.apply(&with_program("job", "sleep 1000 & exec sleep 1000", AT_ONCE)).await;
    let before = cluster.api.until_ready("job", 1).await.remove(0);
    cluster.daemon("n1").runs().remove(0).shim.signal(Signal::KILL);
    let after = until("it to be started again", async || {
        let seen = cluster.api.instance(&before.id).await?;
        if seen.actual == "ready" && seen.pid != before.pid { Ok(seen) } else { Err(of_service(&[seen])) }
    })
    .await;
    let left: BTreeSet<u32> = process::marked(cluster.dir()).into_iter().map(|(pid, _)| pid).collect();
    assert!(left.contains(&after.pid.unwrap()) && left.len() == 2, "nothing of the first is left: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_service_is_updated_and_restarted_on_its_volume() {
    let cluster = Cluster::start(2, Pace::Steady).await;
    let release = |mode: &str| {
        format!(
            "[[service]]\nname = \"ledger\"\ncommand = [{TIDEGATE:?}, \"demo\", \"store\"]\nmemory = \"32MiB\"\n\
             ports = [\"http\"]\ncheck = {{ http = \"/ready\", port = \"http\", interval = \"200ms\", timeout = \"2s\" }}\n\
             volume = {{ name = \"data\" }}\nenv = {{ MODE = \"{mode}\" }}\n{AT_ONCE}\n"
        )
    };
    cluster.apply(&release("one")).await;
    let first = cluster.api.until_ready("ledger", 1).await.remove(0);
    let starts = cluster.daemon(&first.node).data().join("volumes/ledger-data-0/starts");
    cluster.apply(&release("two")).await;
    let second = cluster.api.until_ready("ledger", 1).await.remove(0);
    assert_eq!((second.release, &second.node), (2, &first.node));
    assert_ne!(second.id, first.id);
    assert_eq!(std::fs::read_to_string(&starts).unwrap(), "2\n");
    let refused = cluster.run(&["volume", "attach", "ledger-data-0", "--node", "n1"]).await;
    assert_eq!(refused.code, 4, "not while it runs: {}", refused.stderr);
    assert_eq!(cluster.run(&["instance", "stop", &second.id]).await.code, 0);
    until("another on the same volume", async || {
        let text = std::fs::read_to_string(&starts).map_err(|error| error.to_string())?;
        if text == "3\n" { Ok(()) } else { Err(text) }
    })
    .await;
    assert_eq!(cluster.api.until_ready("ledger", 1).await[0].node, first.node);

    // The data outlives the service.
    assert_eq!(cluster.run(&["remove", "service/ledger"]).await.code, 0);
    until("it to be gone", async || {
        let (status, body) = cluster.api.ask(Method::GET, "/v1/services/ledger", None).await?;
        if status == 404 { Ok(()) } else { Err(body.to_string()) }
    })
    .await;
    cluster.apply(&release("one")).await;
    let again = cluster.api.until_ready("ledger", 1).await.remove(0);
    assert_eq!(again.node, first.node);
    assert_eq!(std::fs::read_to_string(&starts).unwrap(), "4\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_a_count_leaves_what_was_scaled() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let file = with_program("job", "exec sleep 1000", AT_ONCE);
    cluster.apply(&file).await;
    cluster.api.until_ready("job", 1).await;
    assert_eq!(cluster.run(&["scale", "job", "3"]).await.code, 0);
    cluster.api.until_ready("job", 3).await;
    assert_eq!(cluster.apply(&file).await, "job unchanged\n");
    cluster.api.until_ready("job", 3).await;
    assert_eq!(cluster.run(&["scale", "job", "0"]).await.code, 0);
    cluster.api.until_ready("job", 0).await;
    assert_eq!(cluster.api.service("job").await.unwrap().state, "ok", "none is what was asked for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_free_port_says_so_and_goes_on_with_the_rest() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let ports: Vec<String> = (0..16).map(|n| format!("\"p{n}\"")).collect();
    let more = format!("count = 4\nports = [{}]\n{AT_ONCE}", ports.join(", "));
    cluster.apply(&with_program("greedy", "exec sleep 1000", &more)).await;
    until("one to say that there is no port", async || {
        let all = cluster.api.instances("greedy").await?;
        let told = all.iter().flat_map(|i| &i.reasons).any(|reason| reason.code == "no_port");
        let ready = all.iter().filter(|i| i.actual == "ready").count();
        if told && ready == 3 { Ok(()) } else { Err(of_service(&all)) }
    })
    .await;
    let all = cluster.api.instances("greedy").await.unwrap();
    let ready: Vec<_> = all.iter().filter(|i| i.actual == "ready").collect();
    let ports: BTreeSet<u16> = ready.iter().flat_map(|i| i.ports.values().copied()).collect();
    assert_eq!(ports.len(), 48, "no port twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_smaller_says_so_and_stops_nothing() {
    let mut cluster = Cluster::start(1, Pace::Steady).await;
    cluster.apply(&with_program("job", "exec sleep 1000", &format!("count = 4\n{AT_ONCE}"))).await;
    let before = cluster.api.until_ready("job", 4).await;
    cluster.daemon_mut("n1").kill();
    let config = cluster.daemon("n1").config().to_owned();
    let text = std::fs::read_to_string(&config).unwrap().replace("1GiB", "64MiB");
    std::fs::write(&config, text).unwrap();
    cluster.daemon_mut("n1").start(&[]);
    until("it to say so", async || {
        let node = cluster.api.node("n1").await?;
        let told = node.reasons.iter().any(|reason| reason.code == "capacity_below_use");
        if told { Ok(()) } else { Err(format!("{node:?}")) }
    })
    .await;
    assert!(before.iter().all(|instance| Process::of(instance.pid.unwrap()).is_alive()));
    assert_eq!(cluster.run(&["scale", "job", "1"]).await.code, 0);
    cluster.api.until_ready("job", 1).await;
    assert!(cluster.api.node("n1").await.unwrap().reasons.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_of_the_edge_moves_with_its_service_and_is_free_for_another() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let (first, second) = (free_port(), free_port());
    cluster.apply(&web(1, first, AT_ONCE)).await;
    cluster.api.until_ready("web", 1).await;
    cluster.apply(&web(1, second, AT_ONCE)).await;
    cluster.api.until_ready("web", 1).await;
    let opens = async |port: u16| tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok();
    until("the new port to be open and the old one closed", async || {
        match (opens(first).await, opens(second).await) {
            (false, true) => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
    cluster.apply(&web(1, first, AT_ONCE).replace("name = \"web\"", "name = \"other\"")).await;
    cluster.api.until_ready("other", 1).await;
    until("both to be open", async || match (opens(first).await, opens(second).await) {
        (true, true) => Ok(()),
        seen => Err(format!("{seen:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_used_by_the_instance_that_is_on_it_and_no_other() {
    let cluster = Cluster::start(1, Pace::Steady).await;
    let release = |volume: &str| {
        with_program(
            "job",
            "exec sleep 1000",
            &format!("count = 2\nvolume = {{ name = \"{volume}\" }}\n{AT_ONCE}"),
        )
    };
    cluster.apply(&release("old")).await;
    cluster.api.until_ready("job", 2).await;
    cluster.apply(&release("new")).await;
    let now = cluster.api.until_ready("job", 2).await;
    for slot in 0..2 {
        let user =
            now.iter().find(|instance| instance.slot == Some(slot)).map(|instance| instance.id.clone());
        assert_eq!(cluster.api.volume(&format!("job-new-{slot}")).await.unwrap().attached_to, user);
        assert_eq!(cluster.api.volume(&format!("job-old-{slot}")).await.unwrap().attached_to, None);
    }
}
