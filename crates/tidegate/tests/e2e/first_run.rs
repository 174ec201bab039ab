//! `tidegate dev`, as somebody tries it for the first time.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::SemaphorePermit;

use crate::harness::{
    Api, TIDEGATE, Talk, free_port, free_ports, of_service, process, take_turn, tidegate, until,
};

const DEMO: &str = include_str!("../../../../examples/demo.toml");
const DEMO_PORT: u16 = 8080;
const NODES: [&str; 2] = ["node-1", "node-2"];

/// A dev cluster; gone when dropped.
struct Dev {
    talk: Option<Talk>,
    api: Api,
    listen: String,
    dir: TempDir,
    _turn: SemaphorePermit<'static>,
}

impl Dev {
    async fn new() -> Dev {
        let _turn = take_turn().await;
        let addr = SocketAddr::from(([127, 0, 0, 1], free_ports(10)));
        let dir = tempfile::Builder::new().prefix("tidegate-e2e-dev-").tempdir().unwrap();
        Dev { talk: None, api: Api::at(addr), listen: addr.to_string(), dir, _turn }
    }

    /// Returns when it says that it is up, with what it printed.
    async fn start(&mut self, more: &[&str]) -> String {
        let mut args = vec!["dev", "--nodes", "2", "--data", "state", "--listen", &self.listen];
        args.extend(more);
        let mut talk = Talk::start(self.dir.path(), "http://127.0.0.1:1", &args);
        talk.until("Ctrl-C stops it").await;
        let printed = talk.heard.join("\n");
        self.talk = Some(talk);
        printed
    }

    fn data(&self, daemon: &str) -> PathBuf {
        self.dir.path().join("state").join(daemon)
    }

    async fn interrupt(&mut self) {
        let mut talk = self.talk.take().unwrap();
        talk.signal(Signal::INT);
        assert_eq!(talk.ended().await.code(), Some(0), "Ctrl-C is how it should end");
    }

    fn alive(&self) -> Vec<process::Run> {
        NODES.iter().flat_map(|node| process::alive(&self.data(node))).collect()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["control", NODES[0], NODES[1]] {
                let log = self.dir.path().join(format!("state/log/{name}.log"));
                let text = std::fs::read_to_string(log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                eprintln!("--- {name} ---\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
            }
        }
        if self.talk.take().is_some() {
            // Its daemons end with it, by themselves; until then they would start again what we kill.
            for daemon in ["control", NODES[0], NODES[1]] {
                kill_daemon_of(&self.data(daemon));
            }
        }
        for node in NODES {
            process::kill_everything(&self.data(node));
            process::remove_cgroups(&self.data(node));
        }
    }
}

/// By the pid it wrote down, if that is still a process of ours.
fn kill_daemon_of(data: &Path) {
    let pid =
        std::fs::read_to_string(data.join("daemon.lock")).ok().and_then(|text| text.trim().parse().ok());
    let ours = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(TIDEGATE))
    };
    if let Some(pid) = pid.filter(ours) {
        process::Process::of(pid).signal(Signal::KILL);
    }
}

/// Everything of the demo is as it should be.
async fn until_all_well(api: &Api, count: usize) {
    until("the demo to be well", async || {
        let services = api.services().await?;
        let well = services.iter().filter(|service| service.state == "ok").count();
        let seen: Vec<_> = services.iter().map(|s| (&s.name, &s.state, s.ready, &s.rollout)).collect();
        if well == count && services.len() == count { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    until("the batch to be complete", async || {
        let complete = api.service("report").await?.complete;
        if complete == 1 { Ok(()) } else { Err(of_service(&api.instances("report").await?)) }
    })
    .await;
}

async fn page(port: u16) -> Result<String, String> {
    let client = doors::http().no_proxy().build().unwrap();
    let page = client.get(format!("http://127.0.0.1:{port}/")).send().await.map_err(|e| format!("{e:?}"))?;
    page.text().await.map_err(|error| format!("{error:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_shows_the_demo_stops_it_on_ctrl_c_and_finds_it_again() {
    let mut dev = Dev::new().await;
    // Somebody may have a demo open; then the same services are applied by hand, on another port.
    let is_free = TcpListener::bind(("127.0.0.1", DEMO_PORT)).is_ok();
    let port = if is_free { DEMO_PORT } else { free_port() };
    let printed = dev.start(if is_free { &["--demo"] } else { &[] }).await;
    assert!(printed.contains(&format!("http://{}", dev.listen)), "where the API is: {printed}");
    let tries: Vec<&str> = printed.lines().skip_while(|line| !line.starts_with("try")).collect();
    let tries = tries.iter().filter(|line| line.contains("tidegate ") || line.contains("curl ")).count();
    assert!(tries >= 3, "what to try: {printed}");
    if is_free {
        assert!(printed.contains("web") && printed.contains("4/4 ready"), "what runs: {printed}");
    } else {
        let demo =
            DEMO.replace("8080", &port.to_string()).replace("[\"tidegate\"", &format!("[{TIDEGATE:?}"));
        std::fs::write(dev.dir.path().join("demo.toml"), demo).unwrap();
        let done = tidegate(dev.dir.path(), dev.api.base(), &["apply", "demo.toml"]).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
    }
    // With the demo's feed comes the service that writes its logs.
    let services = if is_free { 5 } else { 4 };
    until_all_well(&dev.api, services).await;
    let text = until("the edge to serve", async || page(port).await).await;
    let web = dev.api.until_ready("web", 4).await;
    assert!(web.iter().any(|instance| text.contains(&format!("instance {}\n", instance.id))), "{text}");
    let mut agents: Vec<_> = dev.api.until_ready("agent", 2).await.into_iter().map(|i| i.node).collect();
    agents.sort();
    assert_eq!(agents, NODES);
    let ledger = dev.api.until_ready("ledger", 1).await.remove(0);
    let starts = dev.data(&ledger.node).join("volumes/ledger-data-0/starts");
    assert_eq!(std::fs::read_to_string(&starts).unwrap(), "1\n");
    let batch = dev.api.instances("report").await.unwrap();
    let running = dev.alive();
    assert_eq!(running.len(), services + 3, "{running:?}");

    dev.interrupt().await;
    assert_eq!(dev.alive().len(), 0, "no process is left: {:?}", dev.alive());
    assert!(running.iter().all(|run| !run.shim.is_alive() && !run.main.unwrap().is_alive()));

    dev.start(&[]).await;
    until_all_well(&dev.api, services).await;
    let again = dev.api.until_ready("web", 4).await;
    let ids = |all: &[server::view::InstanceView]| all.iter().map(|i| i.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&again), ids(&web), "the same instances, on the same nodes");
    assert_eq!(dev.api.until_ready("ledger", 1).await[0].id, ledger.id);
    assert_eq!(std::fs::read_to_string(&starts).unwrap(), "2\n");
    assert_eq!(dev.api.instances("report").await.unwrap(), batch, "the batch is not run again");
    until("the edge to serve again", async || page(port).await).await;
    dev.interrupt().await;
    assert_eq!(dev.alive().len(), 0, "no process is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dev_that_is_killed_leaves_no_daemon_and_the_next_one_takes_its_instances_over() {
    let mut dev = Dev::new().await;
    dev.start(&[]).await;
    let file = "[[service]]\nname = \"job\"\ncount = 2\ncommand = [\"sleep\", \"1000\"]\nmemory = \"16MiB\"\n\
                migrate = { min_healthy_time = \"0s\" }\n";
    std::fs::write(dev.dir.path().join("job.toml"), file).unwrap();
    let done = tidegate(dev.dir.path(), dev.api.base(), &["apply", "job.toml"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "job created (2 instances)\n"), "{}", done.stderr);
    let before = dev.api.until_ready("job", 2).await;
    let second = Talk::start(dev.dir.path(), "http://127.0.0.1:1", &["dev", "--data", "state"]).ended().await;
    assert_eq!(second.code(), Some(1), "one at a time");

    let mut talk = dev.talk.take().unwrap();
    talk.signal(Signal::KILL);
    talk.ended().await;
    until("the daemons to follow", async || match TcpListener::bind(&dev.listen) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    })
    .await;
    assert_eq!(dev.alive().len(), 2, "instances outlive daemons");
    dev.start(&[]).await;
    let after = dev.api.until_ready("job", 2).await;
    let pids =
        |all: &[server::view::InstanceView]| all.iter().map(|i| (i.id.clone(), i.pid)).collect::<Vec<_>>();
    assert_eq!(pids(&after), pids(&before));
    dev.interrupt().await;
    assert_eq!(dev.alive().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_with_ha_survives_the_loss_of_its_coordinator() {
    let mut dev = Dev::new().await;
    let printed = dev.start(&["--ha"]).await;
    assert!(printed.contains("every node answers"), "{printed}");
    let leads = until("a coordinator", async || dev.api.status().await).await.coordinator;
    let nodes = dev.api.nodes().await.unwrap();
    let other = nodes.iter().find(|node| node.id != leads.id).unwrap();
    let api = Api::at(other.address.parse().unwrap());
    kill_daemon_of(&dev.data(&leads.id));
    until("the other to lead", async || {
        let now = api.status().await?.coordinator;
        if now.id == other.id { Ok(()) } else { Err(now.id) }
    })
    .await;
    dev.interrupt().await;
    assert_eq!(dev.alive().len(), 0);
}
