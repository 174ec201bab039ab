//! One candidate: it campaigns, follows the state while another is in office, and runs the
//! coordinator while it is elected itself.
//!
//! [`candidate`] is the life of a candidate, [`warm`] its copy of the state while it waits, [`lease`]
//! what keeps it in office, [`term`] the task that owns the coordinator, [`tally`] what it counts,
//! [`backends`] how backends of stores are called, [`commit`] how a write ends, [`upkeep`] what the store needs now and then.

mod backends;
mod candidate;
mod commit;
mod handle;
mod lease;
mod load;
mod tally;
mod term;
mod upkeep;
mod warm;

use std::sync::{Arc, atomic::AtomicBool};

use model::Millis;
use protocol::{
    Timing,
    coordinator::{DrainLimits, FeedLimits},
};
use store::{Holder, Store};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

pub use backends::PD_SETTLE;
pub use handle::{NotCoordinator, OfficeHandle, Slice};
pub use load::{Loaded, StateError, load};

use crate::{events::EventLog, metrics::Metrics};

/// Inputs that wait for the coordinator, of streams and of requests each. Above this, streams and requests are held back.
pub(crate) const INPUTS_MAX: usize = 4096;

pub struct OfficeConfig {
    /// The candidate's id: its node's.
    pub candidate: String,
    /// Where others reach this daemon's HTTP API and its streams, `host:port`.
    pub api: String,
    pub rpc: String,
    pub timing: Timing,
    /// How long a PD must have led for its counts to be believed.
    pub pd_settle: Millis,
    pub drain: DrainLimits,
    pub feeds: FeedLimits,
    pub store: Arc<dyn Store>,
}

/// Who is in office, as far as this candidate knows: where to send others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub id: String,
    pub api: String,
    pub rpc: String,
    pub term: u64,
}

impl Leader {
    pub(crate) fn of(holder: &Holder) -> Leader {
        let (api, rpc) = read_addresses(&holder.candidate.addresses);
        Leader { id: holder.candidate.id.clone(), api, rpc, term: holder.term }
    }
}

/// What the store keeps of a candidate's addresses: one line, readable with etcdctl.
fn write_addresses(api: &str, rpc: &str) -> String {
    format!("api={api} rpc={rpc}")
}

/// The api and rpc addresses; empty where there is none.
pub(crate) fn read_addresses(line: &str) -> (String, String) {
    let find = |key: &str| {
        let words = line.split_whitespace().filter_map(|word| word.split_once('='));
        words
            .into_iter()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value.to_owned())
            .unwrap_or_default()
    };
    (find("api"), find("rpc"))
}

/// What the candidate's tasks and its handles share.
pub(crate) struct Shared {
    pub config: OfficeConfig,
    pub events: EventLog,
    pub metrics: Metrics,
    /// The way to the coordinator while it is here.
    pub acting: watch::Sender<Option<Arc<handle::Link>>>,
    pub leader: watch::Sender<Option<Leader>>,
    pub stop: CancellationToken,
    pub ended: Mutex<Option<tokio::task::JoinHandle<()>>>,
    /// The store says that it is out of space.
    pub space_alarm: AtomicBool,
}

/// One that may be elected.
pub struct Office;

impl Office {
    /// Starts to campaign, within a tokio runtime. Goes on until [`OfficeHandle::shutdown`].
    pub fn start(config: OfficeConfig) -> OfficeHandle {
        let shared = Arc::new(Shared {
            config,
            events: EventLog::default(),
            metrics: Metrics::new(),
            acting: watch::Sender::new(None),
            leader: watch::Sender::new(None),
            stop: CancellationToken::new(),
            ended: Mutex::new(None),
            space_alarm: AtomicBool::new(false),
        });
        let life = tokio::spawn(candidate::live(Arc::clone(&shared)));
        if let Ok(mut ended) = shared.ended.try_lock() {
            *ended = Some(life);
        }
        OfficeHandle::new(shared)
    }
}
