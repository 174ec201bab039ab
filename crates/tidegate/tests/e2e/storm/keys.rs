//! A store group whose data store is a directory per store and a file per key, and somebody who writes to the keys
//! all the while.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::Method;
use rustix::fs::{FlockOperation, flock};
use server::view::{List, StoreGroupView, StoreMemberView};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::dice::Dice;
use crate::harness::{Api, Cluster, until};

pub const GROUP: &str = "kv";
pub const REPLICAS: usize = 2;
const KEYS: u64 = 40;
const PAUSE: Duration = Duration::from_millis(50);
const BACKEND: &str = include_str!("backend.sh");

/// What each key must hold, and what was wrong on the way.
type Written = (BTreeMap<String, u64>, Vec<String>);

pub struct Keys {
    books: PathBuf,
    stop: CancellationToken,
    task: Option<JoinHandle<Written>>,
}

impl Keys {
    /// The group is applied and serves; every key has been put.
    pub async fn begin(cluster: &Cluster, mut dice: Dice) -> Keys {
        let books = cluster.dir().join("books");
        fs::create_dir(&books).unwrap();
        cluster.apply(&group(&books, &cluster.file("backend.sh", BACKEND))).await;
        until_well(&cluster.api).await;
        let stores = stores_in(&books);
        let names = (0..KEYS).map(|number| format!("key-{number:02}"));
        for (number, name) in names.clone().enumerate() {
            fs::write(stores[number % stores.len()].join("keys").join(name), "0").unwrap();
        }
        let mut values: BTreeMap<String, u64> = names.map(|name| (name, 0)).collect();
        let (stop, at) = (CancellationToken::new(), books.clone());
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut wrong = Vec::new();
            while !stopped.is_cancelled() {
                let name = format!("key-{:02}", dice.below(KEYS));
                let value = values.get_mut(&name).expect("one of ours");
                match tokio::task::block_in_place(|| raise(&at, &name, *value)) {
                    Ok(()) => *value += 1,
                    Err(why) => wrong.push(format!("{name}: {why}")),
                }
                tokio::time::sleep(PAUSE).await;
            }
            (values, wrong)
        });
        Keys { books, stop, task: Some(task) }
    }

    /// Every key is where it belongs, once, with what was last written to it.
    pub async fn check(&mut self, api: &Api) -> u64 {
        self.stop.cancel();
        let (values, wrong) = self.task.take().expect("once").await.unwrap();
        assert!(wrong.is_empty(), "keys were not as they had been left: {wrong:#?}");
        let members: Vec<String> =
            stores(api).await.unwrap().into_iter().filter_map(|it| it.identity).collect();
        let there: Vec<String> = stores_in(&self.books).iter().map(|path| name_of(path)).collect();
        assert_eq!(there.iter().filter(|id| !members.contains(id)).count(), 0, "{there:?}, not {members:?}");
        for (name, value) in &values {
            let found: Vec<String> =
                places(&self.books, name).iter().map(|at| fs::read_to_string(at).unwrap()).collect();
            assert_eq!(found, [value.to_string()], "{name}");
        }
        values.values().sum()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A process joins by itself, once and in one step; its volume is its memory of who it is. `$0` is the books.
const PROCESS: &str = r#"
host=$(ip -4 -o addr show dev eth 2>/dev/null | sed -n 's/.*inet \([0-9.]*\).*/\1/p')
test -n "$host" || host=127.0.0.1
if ! test -s "$VOLUME/id"; then
    if ! test -d "$0/$INSTANCE"; then
        mkdir -p "$0.new/$INSTANCE/keys"
        echo "$host:$PORT_KV" > "$0.new/$INSTANCE/address"
        mv "$0.new/$INSTANCE" "$0/$INSTANCE"
    fi
    echo "$INSTANCE" > "$VOLUME/id"
fi
echo "$host:$PORT_KV" > "$0/$(cat "$VOLUME/id")/address"
exec sleep 100000
"#;

fn group(books: &Path, backend: &Path) -> String {
    let (books, backend) = (books.display(), backend.display());
    format!(
        "[[store_group]]\nname = \"{GROUP}\"\nreplicas = {REPLICAS}\nmemory = \"16MiB\"\ncpu = 10\nports = [\"kv\"]\n\
         command = [\"sh\", \"-c\", '''{PROCESS}''', \"{books}\"]\n\
         volume = {{ name = \"data\" }}\nmax_eviction_time = \"2s\"\n\
         backend = {{ kind = \"command\", command = [\"sh\", \"{backend}\", \"{books}\"] }}\n"
    )
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn stores_in(books: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(books).unwrap().flatten().map(|entry| entry.path()).collect();
    all.sort();
    all
}

fn places(books: &Path, key: &str) -> Vec<PathBuf> {
    stores_in(books).into_iter().map(|store| store.join("keys").join(key)).filter(|at| at.exists()).collect()
}

/// Writes the next number over this one. The data store stands still meanwhile.
fn raise(books: &Path, key: &str, from: u64) -> Result<(), String> {
    let lock = File::create(books.with_extension("lock")).map_err(|error| error.to_string())?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| error.to_string())?;
    let [at] = places(books, key).try_into().map_err(|places| format!("is in {places:?}"))?;
    match fs::read_to_string(&at).map_err(|error| error.to_string())?.parse::<u64>() {
        Ok(found) if found == from => {
            fs::write(&at, (from + 1).to_string()).map_err(|error| error.to_string())
        }
        other => Err(format!("held {other:?}, not {from}")),
    }
}

async fn stores(api: &Api) -> Result<Vec<StoreMemberView>, String> {
    let (_, body) = api.ask(Method::GET, "/v1/stores", None).await?;
    Ok(serde_json::from_value::<List<_>>(body).map_err(|error| error.to_string())?.items)
}

/// As many serve as should, and nothing is on its way.
pub async fn until_well(api: &Api) {
    until("the store group to be well", async || {
        let (_, body) = api.ask(Method::GET, &format!("/v1/store-groups/{GROUP}"), None).await?;
        let group: StoreGroupView = serde_json::from_value(body).map_err(|error| error.to_string())?;
        let all = stores(api).await?;
        let quiet = |it: &StoreMemberView| it.state == "serving" && !it.offline && it.evictor.is_none();
        let well = group.serving as usize == REPLICAS && all.len() == REPLICAS && all.iter().all(quiet);
        if well { Ok(()) } else { Err(format!("{all:#?}")) }
    })
    .await;
}
