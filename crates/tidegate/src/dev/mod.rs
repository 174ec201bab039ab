//! `tidegate dev`: a cluster on this machine, as separate processes, that goes away on Ctrl-C and is
//! found again by the next one with the same directory.
//!
//! What a person kills on purpose is not started again: that is what they want to see.

mod children;
mod instances;
mod layout;
mod orders;

use std::time::{Duration, Instant};

use server::view::{List, NodeView, ServiceView};

use self::{
    children::{Children, Ended, describe, last_words},
    layout::Layout,
};
use crate::{
    cli::{DevArgs, Global},
    client::shape,
    commands::{self, Asker},
    failure::{Failure, Outcome},
    lock::{self, DirLock},
    out, service_file,
    stop::Signals,
};

const DEMO: &str = include_str!("../../../../examples/demo.toml");

/// From starting the processes to all nodes being up.
const UP_WITHIN: Duration = Duration::from_secs(30);
/// The demo's services are shown once they run, or as far as they are by then.
const DEMO_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub fn dev(args: DevArgs) -> Outcome {
    if !args.listen.ip().is_loopback() {
        return Err(Failure::usage(format!(
            "{}: dev listens on this machine only; for more, see `tidegate run --help`",
            args.listen
        )));
    }
    if args.listen.port() == 0 {
        return Err(Failure::usage("--listen needs a port"));
    }
    if args.ha && find_in_path("etcd").is_none() {
        let message = "--ha needs etcd, and there is none in PATH; install it, or leave --ha out";
        return Err(Failure::error(message));
    }
    let dir = layout::absolute(&args.data)?;
    let _lock = DirLock::take(&dir, "tidegate dev")?;
    let exe = std::env::current_exe()
        .map_err(|error| Failure::error(format!("cannot find this program's own file: {error}")))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::error(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let layout = Layout::write(&args, dir)?;
        let mut dev = Dev { asker: asker(&layout)?, children: Children::new(exe.clone()), layout, exe };
        let outcome = tokio::select! {
            outcome = dev.live(&args) => outcome,
            _ = signals.next() => Ok(()),
        };
        dev.stop(&mut signals).await;
        outcome
    })
}

fn asker(layout: &Layout) -> Outcome<Asker> {
    let addr = format!("http://{}", layout.api);
    let mut asker = Asker::new(&Global::plain(addr))?;
    asker.client.be_quiet();
    Ok(asker)
}

struct Dev {
    layout: Layout,
    asker: Asker,
    children: Children,
    exe: std::path::PathBuf,
}

impl Dev {
    /// Starts everything and watches it. Ends only by an error, or when it is dropped.
    async fn live(&mut self, args: &DevArgs) -> Outcome {
        let began = Instant::now();
        out::note(format!(
            "starting {} nodes; everything is kept in {}",
            args.nodes,
            self.layout.dir.display()
        ));
        self.start().await?;
        self.until_up().await?;
        if args.demo {
            self.apply_demo().await?;
        }
        self.show(began.elapsed(), args.demo).await?;
        loop {
            let ended = self.children.next_ended().await;
            self.tell(&ended);
        }
    }

    async fn start(&mut self) -> Outcome {
        if let Some(etcd) = self.layout.etcd.clone() {
            self.children.start_etcd(&etcd)?;
            self.until_etcd(&etcd).await?;
        }
        for daemon in self.layout.daemons.clone() {
            self.children.start_daemon(&daemon)?;
        }
        Ok(())
    }

    async fn until_etcd(&mut self, etcd: &layout::Etcd) -> Outcome {
        let until = Instant::now() + UP_WITHIN;
        while tokio::net::TcpStream::connect(etcd.client).await.is_err() {
            if Instant::now() > until {
                let seconds = UP_WITHIN.as_secs();
                return Err(Failure::error(format!(
                    "etcd is not up after {seconds}s; see {}",
                    etcd.log.display()
                )));
            }
            self.none_ended_for(LOOK_EVERY).await?;
        }
        Ok(())
    }

    /// All nodes are there and well. One that ends meanwhile is an error with its last words.
    async fn until_up(&mut self) -> Outcome {
        let until = Instant::now() + UP_WITHIN;
        loop {
            let up = match self.nodes().await {
                Ok(nodes) => nodes.iter().filter(|node| node.connected && node.health == "up").count(),
                Err(_) => 0,
            };
            if up >= self.layout.daemons.len() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Failure::error(format!(
                    "only {up} of {} daemons are up after {}s; see {}",
                    self.layout.daemons.len(),
                    UP_WITHIN.as_secs(),
                    self.layout.log_dir().display()
                )));
            }
            self.none_ended_for(LOOK_EVERY).await?;
        }
    }

    async fn none_ended_for(&mut self, time: Duration) -> Outcome {
        let Ok(ended) = tokio::time::timeout(time, self.children.next_ended()).await else { return Ok(()) };
        let log = self.layout.log_dir().join(format!("{}.log", ended.name));
        let (name, how) = (&ended.name, describe(ended.status));
        Err(Failure::error(format!("{name} did not start ({how}): {}", last_words(&log))))
    }

    /// Asked through the address people use, quickly: the daemon may be on its way up or down.
    async fn nodes(&self) -> Outcome<Vec<NodeView>> {
        let answer = tokio::time::timeout(Duration::from_secs(2), self.asker.client.get("/v1/nodes")).await;
        let answer = answer.map_err(|_| Failure::error("no answer"))??;
        Ok(shape::<List<NodeView>>(&answer)?.items)
    }

    async fn services(&self) -> Outcome<Vec<ServiceView>> {
        let answer = self.asker.client.get("/v1/services").await?;
        Ok(shape::<List<ServiceView>>(&answer)?.items)
    }

    async fn apply_demo(&mut self) -> Outcome {
        // As it stands: nodes look for commands beside their own binary too, so that applying the file
        // by hand changes nothing.
        let mut file = service_file::check_text("examples/demo.toml", DEMO)?;
        let orders = orders::write(&self.layout.dir)?;
        file.service.extend(orders.service);
        file.feed.extend(orders.feed);
        commands::send(&self.asker, &file).await?;
        let until = Instant::now() + DEMO_WITHIN;
        while Instant::now() < until {
            let services = self.services().await?;
            let named = |name: &str| file.service.iter().any(|service| service.name == name);
            if services.iter().filter(|service| named(&service.name)).all(|service| service.state == "ok") {
                break;
            }
            self.none_ended_for(LOOK_EVERY).await?;
        }
        Ok(())
    }

    /// Where it is, what runs, where the logs are, what to try.
    async fn show(&self, took: Duration, demo: bool) -> Outcome {
        let (nodes, services) = (self.nodes().await?, self.services().await?);
        out::line(format!(
            "\nthe cluster is up after {:.1}s: http://{}\n",
            took.as_secs_f64(),
            self.layout.api
        ))?;
        commands::nodes(&self.asker, &nodes)?;
        if !services.is_empty() {
            out::line("")?;
            commands::services(&self.asker, &services)?;
        }
        let reasons =
            nodes.iter().flat_map(|node| node.reasons.iter().map(|reason| (&node.id, reason))).chain(
                services
                    .iter()
                    .flat_map(|service| service.reasons.iter().map(|reason| (&service.name, reason))),
            );
        for (about, reason) in reasons {
            out::line(format!("  {}", commands::reason_line(about, reason)))?;
        }
        if self.layout.etcd.is_some() {
            let apis: Vec<String> = nodes.iter().map(|node| format!("http://{}", node.address)).collect();
            out::line(format!("\nevery node answers: {}", apis.join(" ")))?;
        }
        out::line(format!("\nlogs of the daemons: {}", self.layout.log_dir().display()))?;
        out::line(format!("try, in another terminal:{}", self.addr_hint()))?;
        let tries: &[&str] = match demo {
            true => &[
                "curl http://127.0.0.1:8080/",
                "tidegate scale web 6",
                "tidegate status web",
                "tidegate feed status orders",
                "tidegate node drain node-1 --plan            (what would happen; changes nothing)",
                "tidegate node drain node-1 --ack-stateful",
            ],
            false => &[
                "tidegate status",
                "tidegate apply FILE     (what a file holds: docs/service-file.md)",
                "tidegate events --follow",
            ],
        };
        for text in tries {
            out::line(format!("  {text}"))?;
        }
        out::line("Ctrl-C stops it; `tidegate dev` with the same --data finds it again.")
    }

    fn addr_hint(&self) -> String {
        match self.layout.api.to_string().as_str() {
            "127.0.0.1:7070" => String::new(),
            addr => format!("\n  export TIDEGATE_ADDR=http://{addr}"),
        }
    }

    fn tell(&self, ended: &Ended) {
        let Ended { name, pid, status } = ended;
        let how = describe(*status);
        match self.layout.daemons.iter().find(|daemon| daemon.name == *name) {
            Some(daemon) => out::note(format!(
                "{name} (pid {pid}) ended: {how}; start it again with: {} run --config {}",
                self.exe.display(),
                daemon.config.display()
            )),
            None => out::note(format!("{name} (pid {pid}) ended: {how}; nothing can be changed without it")),
        }
    }

    /// Workers first, so that nobody replaces what is stopped; then instances; the store last.
    async fn stop(&mut self, signals: &mut Signals) {
        out::note("\nstopping everything (Ctrl-C again kills it at once)");
        let in_order = async {
            self.children.stop(|name| name != "etcd").await;
            self.stop_strangers().await;
            instances::stop_all(&self.layout, &self.exe).await;
            self.children.stop(|_| true).await;
        };
        let hurried = tokio::select! {
            () = in_order => false,
            _ = signals.next() => true,
        };
        if hurried {
            out::note("killing everything");
            self.children.kill(|_| true);
            self.children.stop(|_| true).await;
            instances::kill_all(&self.layout, &self.exe).await;
        }
        out::note(format!("stopped; its state is in {}", self.layout.dir.display()));
    }

    /// Daemons of this cluster that somebody started by hand, as [`Dev::tell`] suggests.
    async fn stop_strangers(&self) {
        let strangers =
            || self.layout.daemons.iter().filter_map(|daemon| lock::holder(&daemon.data, "daemon"));
        for pid in strangers().filter_map(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let until = Instant::now() + Duration::from_secs(5);
        while strangers().next().is_some() && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn find_in_path(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
