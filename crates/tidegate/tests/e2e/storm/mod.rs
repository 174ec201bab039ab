//! The long proofs: nodes are drained, killed, paused and cut off, in an order that nobody chose.
//!
//! Of feeds: twenty tables are copied from one database to another while they are written to. Of everything: beside
//! that, a service is under load behind the edge and keys of a store group are written to, etcd has three members, and they
//! too are killed and paused, machines go and disks run full (`gate.rs` says what requests are promised).
//!
//! `TIDEGATE_STORM_SEED` gives the order of an earlier run, `TIDEGATE_STORM_ROUNDS` more of it.

mod blows;
mod dice;
mod gate;
mod keys;
mod witness;
mod writers;

use std::time::Instant;

use pipelines::testing::Postgres;
use server::view::FeedView;
use store::testing::EtcdCluster;
use tokio_postgres::Client;

use self::{
    blows::Blow,
    dice::Dice,
    gate::Gate,
    keys::Keys,
    witness::Witness,
    writers::{TABLES, WRITERS, Writers},
};
use crate::harness::{
    Cluster, Pace, Setup,
    disks::Disks,
    net::{Net, say_loudly},
    process, until,
};

/// The order of blows unless TIDEGATE_STORM_SEED says another: the one that once found a checkpoint that went back.
const SEED: u64 = 527_024;
/// Likewise of everything; its first blows are of all sorts.
const SEED_OF_EVERYTHING: u64 = 8_560;
/// What one round of everything takes of its blows unless more rounds are asked for: the others are for those who wait.
const BLOWS_OF_EVERYTHING: usize = 7;
const FEED: &str = "storm";
const NODES: [&str; 3] = ["n1", "n2", "n3"];

fn all_run(feed: &FeedView) -> bool {
    let works = feed.maintainer.as_ref().is_some_and(|maintainer| maintainer.phase == "working");
    works && feed.dispatchers.values().sum::<u32>() as usize == TABLES && feed.moving == 0 && feed.absent == 0
}

fn is_off(feed: &FeedView, node: &str) -> bool {
    let maintained = feed.maintainer.as_ref().is_some_and(|maintainer| maintainer.node == node);
    !maintained && feed.dispatchers.get(node).copied().unwrap_or(0) == 0
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// What the daemons have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Realm {
    Feeds,
    Everything,
}

/// Beside the feed. In the order in which they have to go.
struct More {
    gate: Gate,
    keys: Keys,
}

/// The parts in the order in which they have to go.
struct Storm {
    dice: Dice,
    began: Instant,
    writers: Writers,
    witness: Witness,
    source: Client,
    sink: Client,
    more: Option<More>,
    cluster: Cluster,
    disks: Option<Disks>,
    _server: Postgres,
    etcd: EtcdCluster,
    net: Option<Net>,
}

fn number_of(node: &str) -> usize {
    1 + NODES.iter().position(|name| *name == node).expect("one of ours")
}

fn disks() -> Option<Disks> {
    match Disks::make(NODES.len()) {
        Ok(disks) => {
            if disks.kind != "loop" {
                say_loudly(&format!("no loop devices: small disks are of {} here", disks.kind));
            }
            Some(disks)
        }
        Err(why) => {
            say_loudly(&format!("SKIPPED: no disk is filled, for nothing can be mounted here: {why}"));
            None
        }
    }
}

fn network() -> Option<Net> {
    match Net::make(NODES.len() as u8) {
        Ok(net) => Some(net),
        Err(why) => {
            say_loudly(&format!(
                "SKIPPED: no node is cut off from the network, for no namespaces can be made here: {why}"
            ));
            None
        }
    }
}

impl Realm {
    fn roles(self) -> &'static [&'static str] {
        match self {
            Realm::Feeds => &["coordinator", "worker"],
            Realm::Everything => &["coordinator", "worker", "edge"],
        }
    }

    fn members(self) -> usize {
        match self {
            Realm::Feeds => 1,
            Realm::Everything => 3,
        }
    }
}

impl More {
    async fn begin(cluster: &mut Cluster, dice: &Dice) -> More {
        cluster.add(Gate::setup());
        cluster.until_up().await;
        let keys = Keys::begin(cluster, dice.branch(100)).await;
        More { gate: Gate::open(cluster).await, keys }
    }

    /// What no backend or edge has to be asked about any more.
    async fn end(&mut self, cluster: &Cluster) -> (u64, u64, u64) {
        let raised = self.keys.check(&cluster.api).await;
        self.gate.settle().await;
        self.gate.check();
        for what in [&["remove", "service/web"][..], &["remove", "store-group/kv", "--destroy-data"][..]] {
            let done = cluster.run(what).await;
            assert_eq!(done.code, 0, "{}", done.stderr);
        }
        until("services to be gone", async || {
            let left = cluster.api.services().await?;
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        (raised, self.gate.kept.requests, self.gate.excused.failed)
    }
}

impl Storm {
    /// A feed of twenty tables over three daemons, each of which may be the coordinator.
    async fn gather(dice: Dice, realm: Realm) -> Storm {
        let net = network();
        let disks = (realm == Realm::Everything).then(disks).flatten();
        let host = net.as_ref().map_or(std::net::Ipv4Addr::LOCALHOST, Net::host);
        let settings = [("max_connections", "200"), ("max_wal_senders", "80")];
        let (server, etcd) = tokio::join!(
            Postgres::start_at(host, &settings),
            EtcdCluster::start_at(host, realm.members(), &["--unsafe-no-fsync"])
        );
        let (source, sink) = (server.create("source").await, server.create("sink").await);
        writers::make_tables(&source).await;
        writers::make_tables(&sink).await;
        writers::fill(&source).await;
        source.batch_execute("CREATE PUBLICATION tide FOR ALL TABLES").await.unwrap();
        let mut sessions = Vec::new();
        for _ in 0..WRITERS {
            sessions.push(server.client("source").await);
        }
        let writers = Writers::begin(sessions, &dice);
        let setup = |number: usize| {
            let setup = Setup::with_all_roles(number, &etcd.endpoints());
            let data = disks.as_ref().map(|disks| disks.data(number));
            let setup = Setup { roles: realm.roles(), data, ..setup };
            match &net {
                Some(net) => setup.living_at(net.place(number as u8)),
                None => setup,
            }
        };
        let mut cluster = Cluster::start_all((1..=NODES.len()).map(setup).collect(), Pace::Patient).await;
        let more = match realm {
            Realm::Feeds => None,
            Realm::Everything => Some(More::begin(&mut cluster, &dice).await),
        };
        let feed = format!(
            "[[feed]]\nname = \"{FEED}\"\n\
             source = {{ kind = \"postgres\", url = \"{}\", publication = \"tide\" }}\n\
             sink = {{ kind = \"postgres\", url = \"{}\" }}\n",
            server.url("source"),
            server.url("sink")
        );
        cluster.apply(&feed).await;
        let apis = NODES.iter().map(|name| ((*name).to_owned(), cluster.api_of(name))).collect();
        let witness = Witness::begin(apis, server.client("sink").await);
        let began = Instant::now();
        Storm {
            dice,
            began,
            writers,
            witness,
            source,
            sink,
            more,
            cluster,
            disks,
            _server: server,
            etcd,
            net,
        }
    }

    /// For whoever reads how a run failed.
    fn say(&self, what: &str) {
        eprintln!("{:7.2} s   {what}", self.began.elapsed().as_secs_f64());
    }

    async fn until_all_up(&self) {
        until("all daemons to be up and open", async || {
            let nodes = self.cluster.api.nodes().await?;
            let well = |name: &str| {
                let node = nodes.iter().find(|node| node.id == name);
                node.is_some_and(|node| node.connected && node.health == "up" && node.state == "active")
            };
            if NODES.iter().all(|name| well(name)) { Ok(()) } else { Err(format!("{nodes:?}")) }
        })
        .await;
    }

    /// All spans run, and the feed has come past what had been written when it was asked.
    async fn until_it_flows(&self) {
        until("the feed to run", async || {
            let feed = self.cluster.api.feed(FEED).await?;
            if all_run(&feed) { Ok(()) } else { Err(format!("{feed:?}")) }
        })
        .await;
        let end = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8";
        let end = self.source.query_one(end, &[]).await.unwrap().get::<_, i64>(0) as u64;
        until(&format!("the feed to come past {end}"), async || {
            let feed = self.cluster.api.feed(FEED).await?;
            let past = feed.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.position >= end);
            if past { Ok(()) } else { Err(format!("{feed:?}")) }
        })
        .await;
    }

    /// Everything does what it is there for.
    async fn until_well(&self) {
        self.until_it_flows().await;
        if self.more.is_some() {
            gate::until_ready(&self.cluster.api).await;
            keys::until_well(&self.cluster.api).await;
        }
    }

    async fn blow(&mut self, round: u64, blows: &[Blow], count: usize) {
        let mut blows = blows.to_vec();
        self.dice.shuffle(&mut blows);
        for blow in blows.into_iter().take(count) {
            self.say(&format!("round {round}: {blow:?}"));
            self.strike(blow).await;
            // Every other one falls on a cluster that still has the last one to get over.
            if self.dice.once_in(2) {
                self.until_well().await;
            }
        }
        self.until_well().await;
    }

    async fn until_equal(&self) {
        for table in 0..TABLES {
            let name = writers::name(table);
            let there = writers::rows(&self.source, table).await;
            until(&format!("{name} to be equal"), async || {
                let here = writers::rows(&self.sink, table).await;
                if there == here {
                    return Ok(());
                }
                let differs = there.iter().zip(&here).find(|(there, here)| there != here);
                Err(format!("{} rows there, {} here, first {differs:?}", there.len(), here.len()))
            })
            .await;
        }
    }

    async fn count(&self, sql: &str) -> i64 {
        self.sink.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn remove_the_feed(&self) {
        let done = self.cluster.run(&["remove", &format!("feed/{FEED}")]).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
        until("it to be gone", async || {
            let feeds = self.cluster.api.feeds().await?;
            if feeds.is_empty() { Ok(()) } else { Err(format!("{feeds:?}")) }
        })
        .await;
        assert_eq!(self.count("SELECT count(*) FROM pg_replication_slots").await, 0, "no slot is left over");
        assert_eq!(self.count("SELECT count(*) FROM public.tidegate_checkpoint").await, 0);
    }

    async fn end_the_daemons(&mut self) {
        for name in NODES.into_iter().chain(self.more.is_some().then_some(gate::NAME)) {
            let ended = self.cluster.daemon_mut(name).terminate().await;
            assert!(ended.success(), "{name}: {ended:?}");
        }
        let mut left = process::that_name(self.cluster.dir());
        left.extend(self.disks.iter().flat_map(|disks| process::that_name(disks.dir())));
        // The shell that holds the disks is ours.
        left.retain(|(_, line)| !line.starts_with("sh -c \nclean()"));
        assert!(left.is_empty(), "processes are left over: {left:?}");
        until("the databases to have no session of theirs", async || {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tidegate%'";
            match self.count(sql).await {
                0 => Ok(()),
                some => Err(format!("{some} sessions")),
            }
        })
        .await;
    }

    /// Blows, and what is left after them: everything that was written, everywhere, and nothing that went back.
    async fn rage(mut self, seed: u64, rounds: u64, blows: &[Blow], count: usize) {
        eprintln!("TIDEGATE_STORM_SEED={seed} TIDEGATE_STORM_ROUNDS={rounds}");
        self.until_well().await;
        for round in 1..=rounds {
            self.blow(round, blows, count).await;
        }
        let transactions = self.writers.end().await;
        self.say(&format!("over; {transactions} transactions were written"));
        self.until_equal().await;
        let said = self.witness.end().await;
        if let Some(mut more) = self.more.take() {
            let (raised, requests, excused) = more.end(&self.cluster).await;
            self.say(&format!("{raised} writes to keys, {requests} requests, {excused} failed that might"));
            self.more = Some(more);
        }
        self.remove_the_feed().await;
        self.end_the_daemons().await;
        for testimony in said {
            // How many there are depends on how busy the machine is: one for each blow is the least.
            assert!(testimony.looks >= rounds * count as u64, "{testimony:?}");
            assert!(
                testimony.wrong.is_empty(),
                "went back {} times: {:#?}",
                testimony.wrong.len(),
                testimony.wrong
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_twenty_tables_is_equal_and_never_went_back_after_a_storm_of_drains_kills_pauses_and_cuts()
{
    let seed = setting("TIDEGATE_STORM_SEED").unwrap_or(SEED);
    let rounds = setting("TIDEGATE_STORM_ROUNDS").unwrap_or(1);
    let storm = Storm::gather(Dice::new(seed), Realm::Feeds).await;
    storm.rage(seed, rounds, &Blow::OF_FEEDS, Blow::OF_FEEDS.len()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_rows_and_keys_come_through_a_storm_of_everything() {
    let seed = setting("TIDEGATE_STORM_SEED").unwrap_or(SEED_OF_EVERYTHING);
    let rounds = setting("TIDEGATE_STORM_ROUNDS");
    let count = rounds.map_or(BLOWS_OF_EVERYTHING, |_| Blow::ALL.len());
    let storm = Storm::gather(Dice::new(seed), Realm::Everything).await;
    storm.rage(seed, rounds.unwrap_or(1), &Blow::ALL, count).await;
}
