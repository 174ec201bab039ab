//! What a worker asks of a pipeline.

use async_trait::async_trait;
use model::{Checkpoint, Code, SpanEpoch, SpanName};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// One feed's pipeline on one node, shared by all its dispatchers there.
#[async_trait]
pub trait Pipeline: Send + Sync + 'static {
    /// The trigger dispatcher's look at the source: which spans there are, and what holds back. It is
    /// asked again and again; an error leaves the spans as they were.
    ///
    /// Also the preflight: what would keep dispatchers from working (rights, settings, slots, keys) is an
    /// error here, in words that say what to set.
    async fn look(&self) -> Result<Outlook, Trouble>;

    /// Everything of a span that can be done before its dispatcher elsewhere stops: connections, shape of
    /// tables, a warm process. Takes nothing over and writes nothing that another owns.
    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn Prepared>, Trouble>;

    /// Removes what this feed left behind in source and sink for spans that are not in `keep` (slots,
    /// checkpoint rows). Asked when spans vanish, when a maintainer takes over, and with an empty `keep`
    /// when the feed is removed; a feed that merely has no spans at the moment is not swept. Idempotent;
    /// never touches what a running dispatcher uses.
    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble>;

    /// The node's lease holds until this point on the boot clock. What runs outside of this process must
    /// be dead by then, whether or not this process still runs.
    fn lease(&self, fence_at_boot_ms: u64) {
        let _ = fence_at_boot_ms;
    }

    /// What the maintainer's look showed as [`Outlook::mark`]: from here on this node's directories are
    /// compared with it. Without it they are only looked at for having a mark at all.
    fn expect(&self, mark: &str) {
        let _ = mark;
    }
}

/// A span that is ready to start.
#[async_trait]
pub trait Prepared: Send {
    /// Works the span until `control.stop` is cancelled, then finishes what is in flight and returns the
    /// final checkpoint; nothing takes effect afterwards. `from` is what the predecessor ended with; a
    /// sink that keeps checkpoints knows better and is believed instead. Raises the epoch in the sink
    /// before it reads. Dropping the future is an abort: what it had written and not committed is undone.
    async fn run(
        self: Box<Self>,
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
        control: Control,
    ) -> Result<Checkpoint, Trouble>;
}

/// A dispatcher's line to its host.
#[derive(Clone, Debug)]
pub struct Control {
    /// Cancelled: stop in good order.
    pub stop: CancellationToken,
    /// What the sink has committed. Only ever raised.
    pub progress: watch::Sender<Option<Checkpoint>>,
}

/// What a look at the source shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Sorted.
    pub spans: Vec<SpanName>,
    /// Bytes that the source keeps for this feed alone (of its write-ahead log).
    pub held_back: Option<u64>,
    /// Worth saying, in the way of nothing: tables that are left out, and why.
    pub warnings: Vec<String>,
    /// Tells the directories that every node must have from others at the same path.
    pub mark: Option<String>,
}

/// What is in the way, in words for the operator. Never holds a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Trouble {
    pub code: Code,
    pub message: String,
    /// Trying again without a person's help may work.
    pub passes: bool,
    /// Another epoch owns the span: this dispatcher is out of date and must not be tried again.
    pub fenced: bool,
}

impl Trouble {
    /// Something that may pass by itself: it is tried again with backoff.
    pub fn passing(code: Code, message: impl Into<String>) -> Trouble {
        Trouble { code, message: message.into(), passes: true, fenced: false }
    }

    /// Something that a person has to put right; it is looked at again, but rarely.
    pub fn lasting(code: Code, message: impl Into<String>) -> Trouble {
        Trouble { code, message: message.into(), passes: false, fenced: false }
    }

    /// A higher span epoch owns the sink.
    pub fn fenced(message: impl Into<String>) -> Trouble {
        Trouble { code: Code::Fenced, message: message.into(), passes: false, fenced: true }
    }
}
