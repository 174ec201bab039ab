//! The store of one machine: a redb file, held by exactly one process.
//!
//! redb's own lock on the file keeps other processes away, so its one candidate is granted office at
//! once. The term still rises and is stored with each grant, so what an earlier grant holds is refused
//! as anywhere else.
//!
//! Commits are durable in two phases: redb then answers a damaged page with an error, where a
//! one-phase commit would quietly fall back to the transaction before, and an acknowledged change
//! would be gone.

use std::cell::Cell;
use std::fs;
use std::io::ErrorKind;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::{mpsc, watch};

use crate::contract::{
    Batch, Campaign, Candidate, Committed, FORMAT, Follow, Holder, KeyRange, Office, Op, Position, Presence,
    Record, Status, Store, check_transaction, effective,
};
use crate::error::{Cause, CommitError, KeepAliveError, LoadError, Refusal, StoreError};
use crate::local::{Local, lock};

const RECORDS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const META_FORMAT: &str = "format";
const META_HEAD: &str = "head";
const META_TERM: &str = "term";

/// Transactions remembered for followers; with one candidate there is hardly any.
const HISTORY_MAX: usize = 256;

/// Bytes handed over at a time by a load.
const BATCH_BYTES: usize = 256 * 1024;

/// redb's page cache. The records are kept in the coordinator's memory anyway.
const CACHE_BYTES: usize = 64 << 20;

/// How redb gets at the file.
type Disk = Arc<dyn Fn(&Path) -> Result<Database, redb::DatabaseError> + Send + Sync>;

struct Shared {
    path: PathBuf,
    disk: Disk,
    /// Empty after an I/O error: redb refuses everything from then on, until the file is opened anew.
    database: Mutex<Option<Arc<Database>>>,
    local: Arc<Local>,
    holder: watch::Sender<Option<Holder>>,
}

/// Clones share the one open file.
#[derive(Clone)]
pub struct EmbeddedStore(Arc<Shared>);

impl EmbeddedStore {
    /// Opens the file, or creates it where there is none. All checksums are verified.
    pub async fn open(path: impl Into<PathBuf>) -> Result<EmbeddedStore, StoreError> {
        let path: PathBuf = path.into();
        let at = path.clone();
        run_blocking(&path, "opening", move || {
            match at.try_exists().map_err(|source| file_error("opening", &at, source))? {
                true => Ok(()),
                false => create_file(&at),
            }
        })
        .await??;
        EmbeddedStore::begin(path, Arc::new(|path| builder().open(path))).await
    }

    /// As [`EmbeddedStore::open`], of a file that a test keeps; `path` is for messages alone.
    #[cfg(feature = "testing")]
    pub async fn open_on<B: redb::StorageBackend>(
        path: impl Into<PathBuf>,
        disk: impl Fn() -> B + Send + Sync + 'static,
    ) -> Result<EmbeddedStore, StoreError> {
        EmbeddedStore::begin(path.into(), Arc::new(move |_| builder().create_with_backend(disk()))).await
    }

    async fn begin(path: PathBuf, disk: Disk) -> Result<EmbeddedStore, StoreError> {
        let (at, on) = (path.clone(), Arc::clone(&disk));
        let (database, head) = run_blocking(&path, "opening", move || open_file(&at, &on)).await??;
        Ok(EmbeddedStore(Arc::new(Shared {
            path,
            disk,
            database: Mutex::new(Some(Arc::new(database))),
            local: Local::new(head, HISTORY_MAX),
            holder: watch::Sender::new(None),
        })))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Shared) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.0);
        run_blocking(&self.0.path, operation, move || work(&shared)).await
    }
}

impl Shared {
    fn database(&self) -> Result<Arc<Database>, StoreError> {
        let mut slot = lock(&self.database);
        match &*slot {
            Some(database) => Ok(Arc::clone(database)),
            None => {
                let (database, _head) = open_file(&self.path, &self.disk).map_err(|error| match error {
                    // a load still holds the handle that failed
                    StoreError::Locked { .. } => StoreError::Unavailable {
                        operation: "opening again",
                        place: format!("the state file {}", self.path.display()),
                        source: "it is still being read".into(),
                    },
                    error => error,
                })?;
                let database = Arc::new(database);
                *slot = Some(Arc::clone(&database));
                Ok(database)
            }
        }
    }

    /// Runs one step on the file. Whatever goes wrong in it makes the next step open the file anew.
    fn step<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let database = self.database()?;
        let result = guarded(operation, &self.path, || work(&database));
        if result.is_err() {
            *lock(&self.database) = None;
        }
        result
    }

    fn grant(&self) -> Result<u64, StoreError> {
        self.step("taking office", |database| {
            let txn = begin(database)?;
            let term = {
                let mut meta = txn.open_table(META)?;
                let term = read_meta(&meta, META_TERM)? + 1;
                meta.insert(META_TERM, term)?;
                term
            };
            txn.commit()?;
            Ok(term)
        })
    }

    fn commit(&self, office: &Office, head: u64, ops: Vec<Op>) -> Result<(), CommitError> {
        // set once redb is asked to make it durable: from then on an error says nothing about the outcome
        let mut asked = false;
        let result = self.step("committing", |database| {
            let txn = begin(database)?;
            if let Some(why) = write(&txn, office, head, &ops, &self.holder)? {
                return Ok(Some(why));
            }
            asked = true;
            txn.commit()?;
            Ok(None)
        });
        match result {
            Ok(None) => {
                self.local.append(Committed { head, revision: head, ops });
                Ok(())
            }
            Ok(Some(why)) => Err(CommitError::Refused { head, why }),
            Err(StoreError::File { source, .. }) if source.kind() == ErrorKind::StorageFull => {
                Err(CommitError::SpaceExhausted { head, source: source.into() })
            }
            Err(source @ StoreError::Damaged { .. }) => Err(CommitError::Broken { head, source }),
            Err(error) if asked => Err(CommitError::Unknown { head, source: error.into() }),
            Err(error) => Err(CommitError::Unavailable { head, source: error.into() }),
        }
    }

    fn load(&self, ranges: &[KeyRange], sink: &mpsc::Sender<Batch>) -> Result<Position, LoadError> {
        let loaded = self.step("loading", |database| {
            let txn = database.begin_read()?;
            let head = read_meta(&txn.open_table(META)?, META_HEAD)?;
            let records = txn.open_table(RECORDS)?;
            for range in ranges {
                let mut batch = Packing::default();
                for entry in records.range(range.start.as_slice()..range.end.as_slice())? {
                    let (key, value) = entry?;
                    batch.push(key.value(), value.value());
                    if batch.bytes.len() >= BATCH_BYTES && sink.blocking_send(batch.take()).is_err() {
                        return Ok(None);
                    }
                }
                if !batch.lengths.is_empty() && sink.blocking_send(batch.take()).is_err() {
                    return Ok(None);
                }
            }
            Ok(Some(head))
        })?;
        let head = loaded.ok_or(LoadError::SinkClosed)?;
        Ok(Position { head, revision: head })
    }
}

/// Many small records in one buffer, handed out as slices of it.
#[derive(Default)]
struct Packing {
    bytes: Vec<u8>,
    lengths: Vec<(usize, usize)>,
}

impl Packing {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.lengths.push((key.len(), value.len()));
    }

    fn take(&mut self) -> Batch {
        let mut rest = Bytes::from(std::mem::take(&mut self.bytes));
        let lengths = self.lengths.drain(..);
        lengths.map(|(key, value)| Record { key: rest.split_to(key), value: rest.split_to(value) }).collect()
    }
}

fn begin(database: &Database) -> Result<redb::WriteTransaction, redb::Error> {
    let mut txn = database.begin_write()?;
    txn.set_durability(Durability::Immediate)?;
    txn.set_two_phase_commit(true);
    Ok(txn)
}

fn read_meta(meta: &impl ReadableTable<&'static str, u64>, key: &str) -> Result<u64, redb::Error> {
    let missing = || redb::Error::Corrupted(format!("the meta record {key} is missing"));
    Ok(meta.get(key)?.ok_or_else(missing)?.value())
}

/// Writes into the open transaction, or says why not.
fn write(
    txn: &redb::WriteTransaction,
    office: &Office,
    head: u64,
    ops: &[Op],
    holder: &watch::Sender<Option<Holder>>,
) -> Result<Option<Refusal>, redb::Error> {
    let mut meta = txn.open_table(META)?;
    let in_office = holder.borrow().clone();
    let term = read_meta(&meta, META_TERM)?;
    if term != office.term || in_office.as_ref().is_none_or(|holder| holder.term != office.term) {
        return Ok(Some(Refusal::OfficeLost { term: office.term, holder: in_office }));
    }
    let found = read_meta(&meta, META_HEAD)?;
    if found + 1 != head {
        return Ok(Some(Refusal::HeadIsOther { expected: head - 1, found: Some(found) }));
    }
    meta.insert(META_HEAD, head)?;
    let mut records = txn.open_table(RECORDS)?;
    for op in ops {
        match &op.value {
            Some(value) => drop(records.insert(op.key.as_slice(), value.as_slice())?),
            None => drop(records.remove(op.key.as_slice())?),
        }
    }
    Ok(None)
}

/// A state file appears under its name only when it is whole, so that an empty file is never taken for
/// one that was just begun.
fn create_file(path: &Path) -> Result<(), StoreError> {
    const OPERATION: &str = "creating";
    let mut name = path.as_os_str().to_owned();
    name.push(".creating");
    let begun = PathBuf::from(name);
    if let Err(source) = fs::remove_file(&begun)
        && source.kind() != ErrorKind::NotFound
    {
        return Err(file_error(OPERATION, &begun, source));
    }
    guarded(OPERATION, &begun, || {
        let database = builder().create(&begun)?;
        let txn = begin(&database)?;
        {
            let mut meta = txn.open_table(META)?;
            meta.insert(META_FORMAT, u64::from(FORMAT))?;
            meta.insert(META_HEAD, 0)?;
            meta.insert(META_TERM, 0)?;
            txn.open_table(RECORDS)?;
        }
        txn.commit()?;
        Ok(())
    })?;
    let named = || {
        fs::rename(&begun, path)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    };
    named().map_err(|source| file_error(OPERATION, path, source))
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// The database and its head. Verifies everything, because redb itself looks at checksums only after an
/// unclean end, and meets damage later with a panic or wrong data.
fn open_file(path: &Path, disk: &Disk) -> Result<(Database, u64), StoreError> {
    let (database, format, head) = guarded("opening", path, || {
        let mut database = disk(path)?;
        if !database.check_integrity()? {
            tracing::warn!(path = %path.display(), "the state file was damaged outside of its records, and mended");
        }
        let txn = database.begin_read()?;
        let meta = txn.open_table(META)?;
        let (format, head) = (read_meta(&meta, META_FORMAT)?, read_meta(&meta, META_HEAD)?);
        read_meta(&meta, META_TERM)?;
        txn.open_table(RECORDS)?;
        drop((meta, txn));
        Ok((database, format, head))
    })?;
    if format != u64::from(FORMAT) {
        let place = format!("the state file {}", path.display());
        return Err(StoreError::Format { place, found: format.to_string(), known: FORMAT });
    }
    Ok((database, head))
}

/// Runs code of redb's, which may panic on a damaged file.
fn guarded<T>(
    operation: &'static str,
    path: &Path,
    work: impl FnOnce() -> Result<T, redb::Error>,
) -> Result<T, StoreError> {
    match quietly(work) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(translate(operation, path, error)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(damaged(path, format!("redb panicked: {text}").into()))
        }
    }
}

/// Catches a panic without the report that it would print: the error says it in one line.
fn quietly<T>(work: impl FnOnce() -> T) -> std::thread::Result<T> {
    thread_local!(static EXPECTED: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                before(info);
            }
        }));
    });
    EXPECTED.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    EXPECTED.set(false);
    result
}

fn translate(operation: &'static str, path: &Path, error: redb::Error) -> StoreError {
    match error {
        redb::Error::DatabaseAlreadyOpen => StoreError::Locked { path: path.to_owned() },
        redb::Error::UpgradeRequired(version) => StoreError::Format {
            place: format!("the state file {}", path.display()),
            found: format!("{version} of redb"),
            known: FORMAT,
        },
        // a truncated file ends before the page that is read, or lacks redb's magic number
        redb::Error::Io(source)
            if matches!(source.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData) =>
        {
            damaged(path, source.into())
        }
        redb::Error::Io(source) => file_error(operation, path, source),
        redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
            let place = format!("the state file {}", path.display());
            StoreError::Unavailable { operation, place, source: error.into() }
        }
        error => damaged(path, error.into()),
    }
}

fn damaged(path: &Path, source: Cause) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), source }
}

fn file_error(operation: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    StoreError::File { operation, path: path.to_owned(), source }
}

async fn run_blocking<T: Send + 'static>(
    path: &Path,
    operation: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        let place = format!("the state file {}", path.display());
        StoreError::Unavailable { operation, place, source: error.into() }
    })
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn office(&self, candidate: &Candidate, ttl: Duration) -> Result<Campaign, StoreError> {
        let candidate = candidate.clone();
        self.blocking("taking office", move |shared| {
            let term = shared.grant()?;
            let holder = Holder { candidate: candidate.clone(), term };
            // two grants at once may get here in either order; the higher term is in office
            shared.holder.send_if_modified(|known| {
                let newer = known.as_ref().is_none_or(|known| known.term < term);
                if newer {
                    *known = Some(holder);
                }
                newer
            });
            Ok(Campaign::Elected(Office::new(term, candidate, ttl)))
        })
        .await?
    }

    async fn keep_alive(&self, office: &Office) -> Result<Duration, KeepAliveError> {
        match &*self.0.holder.borrow() {
            Some(holder) if holder.term == office.term => Ok(office.valid_for),
            _ => Err(KeepAliveError::Lost { term: office.term }),
        }
    }

    async fn resign(&self, office: &Office) -> Result<(), StoreError> {
        self.0.holder.send_if_modified(|holder| {
            let mine = holder.as_ref().is_some_and(|holder| holder.term == office.term);
            if mine {
                *holder = None;
            }
            mine
        });
        Ok(())
    }

    async fn holder(&self) -> Result<Option<Holder>, StoreError> {
        Ok(self.0.holder.borrow().clone())
    }

    async fn watch_holder(&self) -> Result<watch::Receiver<Option<Holder>>, StoreError> {
        Ok(self.0.holder.subscribe())
    }

    async fn commit(&self, office: &Office, head: u64, ops: &[Op]) -> Result<(), CommitError> {
        check_transaction(head, ops)?;
        let mut ops: Vec<Op> = effective(ops).into_iter().cloned().collect();
        // neighbours in the tree are written together
        ops.sort_by(|a, b| a.key.cmp(&b.key));
        let office = office.clone();
        let done = self.blocking("committing", move |shared| shared.commit(&office, head, ops)).await;
        done.map_err(|error| CommitError::Unknown { head, source: error.into() })?
    }

    async fn head(&self) -> Result<u64, StoreError> {
        self.blocking("reading the head", |shared| {
            shared.step("reading the head", |database| {
                read_meta(&database.begin_read()?.open_table(META)?, META_HEAD)
            })
        })
        .await?
    }

    async fn load(&self, ranges: &[KeyRange], sink: mpsc::Sender<Batch>) -> Result<Position, LoadError> {
        let ranges = ranges.to_vec();
        self.blocking("loading", move |shared| shared.load(&ranges, &sink)).await?
    }

    async fn watch(&self, after: Position) -> Result<Follow, StoreError> {
        Ok(self.0.local.follow(after))
    }

    async fn announce(&self, candidate: &Candidate, ttl: Duration) -> Result<Presence, StoreError> {
        Ok(self.0.local.announce(candidate, ttl))
    }

    async fn candidates(&self) -> Result<Vec<Candidate>, StoreError> {
        Ok(self.0.local.candidates())
    }

    /// Nothing to do: redb keeps no history.
    async fn compact(&self, _revision: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn status(&self) -> Result<Status, StoreError> {
        let revision = self.head().await?;
        let path = self.0.path.clone();
        let disk_bytes = fs::metadata(&path).map_err(|source| file_error("looking at", &path, source))?.len();
        Ok(Status {
            description: format!("embedded, {}", path.display()),
            revision,
            disk_bytes,
            used_bytes: disk_bytes,
            space_alarm: false,
        })
    }
}
