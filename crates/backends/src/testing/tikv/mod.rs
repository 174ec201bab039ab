//! A process that plays TiKV to a real PD: it registers, reports, and does with its regions what PD wants, so that leaders
//! and data really move. It serves nobody: what it keeps of a region is a line in a file.

mod books;
mod proto;

use std::fmt::Display;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

pub use books::{Books, Peer, REGION_BYTES, Region};
pub use proto::Role;

/// How often a store looks at the books.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often it reports itself and all that it leads; what has changed is reported at once.
pub const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Before PD is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// Nobody answers longer than this.
const TIMEOUT: Duration = Duration::from_secs(20);
/// PD takes stores of its own version or older.
const VERSION: &str = "8.0.0";
/// Of one region, in the midst of a move.
const PEERS_MAX: usize = 8;
const CAPACITY: u64 = 1 << 40;

/// What a store is told when it is started.
#[derive(Clone, Debug)]
pub struct Tikv {
    /// `http://host:port` of PD.
    pub pd: String,
    /// `host:port`, by which PD knows the store. It listens there, and answers nothing.
    pub address: String,
    /// Has the store's id and data.
    pub volume: PathBuf,
    /// The directory of the [`Books`].
    pub books: PathBuf,
    /// How many regions there are, if this store turns out to be the first.
    pub regions: u64,
    /// A TiFlash: it leads nothing, and holds only what a rule says.
    pub tiflash: bool,
}

/// What went wrong; the store begins again.
type Fault = String;

fn fault(what: &'static str) -> impl Fn(&dyn Display) -> Fault {
    move |error| format!("{what}: {error}")
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A connection to PD, for one cluster.
struct Link {
    channel: Channel,
    header: proto::RequestHeader,
}

impl Link {
    async fn open(pd: &str) -> Result<Link, Fault> {
        let endpoint = Endpoint::from_shared(pd.to_owned()).map_err(|e| fault("address of PD")(&e))?;
        let endpoint = endpoint.connect_timeout(TIMEOUT);
        let channel = endpoint.connect().await.map_err(|e| fault("connect")(&e))?;
        let asked = proto::Ask { header: None };
        let members: proto::Answer =
            proto::call(&channel, "/pdpb.PD/GetMembers", asked).await.map_err(|e| fault("members")(&e))?;
        let header = right(members.header, "members")?;
        Ok(Link { channel, header: proto::RequestHeader { cluster_id: header.cluster_id } })
    }

    async fn number(&self, name: &'static str) -> Result<u64, Fault> {
        let asked = proto::Ask { header: Some(self.header) };
        let answer: proto::NumberAnswer =
            proto::call(&self.channel, name, asked).await.map_err(|e| fault(name)(&e))?;
        right(answer.header, name)?;
        Ok(answer.number)
    }

    async fn fresh_id(&self) -> Result<u64, Fault> {
        self.number("/pdpb.PD/AllocID").await
    }
}

fn right(header: Option<proto::ResponseHeader>, what: &'static str) -> Result<proto::ResponseHeader, Fault> {
    let header = header.ok_or_else(|| format!("{what}: without a header"))?;
    match &header.error {
        Some(error) if error.kind != 0 => Err(format!("{what}: {} ({})", error.message, error.kind)),
        Some(_) | None => Ok(header),
    }
}

impl Tikv {
    /// Plays until the process is killed. What goes wrong is said on stderr, and tried again.
    ///
    /// # Panics
    /// When its own address or directory cannot be had.
    pub async fn play(self) {
        let _open = TcpListener::bind(&self.address).expect("the store's own port is free");
        fs::create_dir_all(&self.volume).expect("a volume");
        let books = Books::at(&self.books).expect("the books");
        let mut lives = None;
        loop {
            let Err(why) = self.serve(&books, &mut lives).await;
            eprintln!("{}: {why}", self.address);
            sleep(PAUSE).await;
        }
    }

    async fn serve(&self, books: &Books, lives: &mut Option<fs::File>) -> Result<Never, Fault> {
        let link = Link::open(&self.pd).await?;
        let store = self.identity(&link).await?;
        if lives.is_none() {
            *lives = Some(books.live(store.id, &self.volume).map_err(|e| fault("books")(&e))?);
        }
        if link.number("/pdpb.PD/IsBootstrapped").await? == 0 {
            self.bootstrap(&link, books, &store).await?;
        }
        let put = proto::PutStore { header: Some(link.header), store: Some(store.clone()) };
        let answer: proto::Answer =
            proto::call(&link.channel, "/pdpb.PD/PutStore", put).await.map_err(|e| fault("put store")(&e))?;
        right(answer.header, "put store")?;
        let (reports, queued) = mpsc::channel(1024);
        let queued = stream::unfold(queued, |mut queued| async {
            let next: proto::RegionHeartbeat = queued.recv().await?;
            Some((next, queued))
        });
        tokio::select! {
            why = obey(&link, queued, books) => why,
            why = self.report(&link, books, store.id, reports) => why,
        }
    }

    /// By its volume it is who it was.
    async fn identity(&self, link: &Link) -> Result<proto::Store, Fault> {
        let place = self.volume.join("id");
        let known = fs::read_to_string(&place).ok().and_then(|text| text.parse().ok());
        let id = match known {
            Some(id) => id,
            None => {
                let id = link.fresh_id().await?;
                fs::write(&place, id.to_string()).map_err(|e| fault("volume")(&e))?;
                id
            }
        };
        let engine = proto::Label { key: "engine".to_owned(), value: "tiflash".to_owned() };
        Ok(proto::Store {
            id,
            address: self.address.clone(),
            labels: self.tiflash.then_some(engine).into_iter().collect(),
            version: VERSION.to_owned(),
            start_timestamp: i64::try_from(seconds()).unwrap_or_default(),
        })
    }

    /// The first store begins with one region of everything, and splits it.
    async fn bootstrap(&self, link: &Link, books: &Books, store: &proto::Store) -> Result<(), Fault> {
        let mut regions = Vec::new();
        for number in 0..self.regions.max(1) {
            let peer = Peer { id: link.fresh_id().await?, store: store.id, role: Role::Voter, ready: true };
            let key = |number: u64| match number {
                0 => Vec::new(),
                number if number >= self.regions => Vec::new(),
                number => format!("k{number:04}").into_bytes(),
            };
            regions.push(Region {
                id: link.fresh_id().await?,
                start: key(number),
                end: key(number + 1),
                conf_ver: 1,
                version: 2,
                term: 6,
                leader: peer.id,
                peers: vec![peer],
            });
        }
        let whole = Region { end: Vec::new(), version: 1, ..regions[0].clone() };
        let header = Some(link.header);
        let asked = proto::Bootstrap { header, store: Some(store.clone()), region: Some(whole.told()) };
        let answer: proto::Answer = proto::call(&link.channel, "/pdpb.PD/Bootstrap", asked)
            .await
            .map_err(|e| fault("bootstrap")(&e))?;
        let error = answer.header.clone().and_then(|header| header.error);
        if error.is_some_and(|error| error.kind == proto::ALREADY_BOOTSTRAPPED) {
            return Ok(());
        }
        right(answer.header, "bootstrap")?;
        books.found(regions).map_err(|e| fault("books")(&e))
    }

    async fn report(
        &self,
        link: &Link,
        books: &Books,
        store: u64,
        reports: mpsc::Sender<proto::RegionHeartbeat>,
    ) -> Result<Never, Fault> {
        let started = seconds();
        let (mut told, mut due) = (Vec::new(), Instant::now());
        loop {
            let regions = books.look(store).map_err(|e| fault("books")(&e))?;
            let whole = Instant::now() >= due;
            let interval = proto::Interval { start: seconds() - REPORT_EVERY.as_secs(), end: seconds() };
            if whole {
                due = Instant::now() + REPORT_EVERY;
                let held = |region: &&Region| region.peers.iter().any(|peer| peer.store == store);
                let count = regions.iter().filter(held).count() as u64;
                self.beat(link, store, count, started, interval).await?;
            }
            let led = |region: &&Region| region.led_from() == Some(store);
            for region in regions.iter().filter(led).filter(|region| whole || !told.contains(*region)) {
                let report = region.report(link.header, interval);
                reports.send(report).await.map_err(|_| "the stream has ended".to_owned())?;
            }
            told = regions;
            sleep(LOOK_EVERY).await;
        }
    }

    async fn beat(
        &self,
        link: &Link,
        store: u64,
        regions: u64,
        started: u64,
        interval: proto::Interval,
    ) -> Result<(), Fault> {
        let used = regions * REGION_BYTES;
        let stats = proto::StoreStats {
            store_id: store,
            capacity: CAPACITY,
            available: CAPACITY - used,
            region_count: u32::try_from(regions).unwrap_or(u32::MAX),
            start_time: u32::try_from(started).unwrap_or_default(),
            used_size: used,
            interval: Some(interval),
        };
        let beat = proto::StoreHeartbeat { header: Some(link.header), stats: Some(stats) };
        let answer: proto::Answer = proto::call(&link.channel, "/pdpb.PD/StoreHeartbeat", beat)
            .await
            .map_err(|e| fault("store heartbeat")(&e))?;
        right(answer.header, "store heartbeat").map(|_| ())
    }
}

/// There is no such value: a store plays until it is killed.
enum Never {}

async fn obey(
    link: &Link,
    reports: impl futures_util::Stream<Item = proto::RegionHeartbeat> + Send + 'static,
    books: &Books,
) -> Result<Never, Fault> {
    let mut wishes =
        proto::report(&link.channel, reports).await.map_err(|e| fault("region heartbeats")(&e))?;
    loop {
        let wish = wishes.message().await.map_err(|e| fault("region heartbeats")(&e))?;
        let wish = wish.ok_or("region heartbeats: PD has ended the stream")?;
        let mut ids = Vec::new();
        for _part in wish.split.iter().flat_map(|split| &split.keys) {
            for _of_region_and_peers in 0..=PEERS_MAX {
                ids.push(link.fresh_id().await?);
            }
        }
        books.obey(&wish, ids).map_err(|e| fault("books")(&e))?;
    }
}
