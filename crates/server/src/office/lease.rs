//! Keeps the office.

use std::sync::Arc;
use std::time::Duration;

use model::Millis;
use store::{KeepAliveError, Office as Won};
use tokio::sync::mpsc;

use super::{Shared, term::Control};
use crate::Clock;

/// Extends the office at a third of its lease until it is lost or the task is dropped. What is
/// granted counts from before it was asked for: the store's clock started no earlier.
pub(super) async fn keep(
    shared: Arc<Shared>,
    won: Won,
    clock: Clock,
    control: mpsc::UnboundedSender<Control>,
) {
    let lease = won.valid_for;
    let mut pause = lease / 3;
    loop {
        tokio::time::sleep(pause.max(Duration::from_millis(10))).await;
        let before = clock.now();
        let told = match shared.config.store.keep_alive(&won).await {
            Ok(valid_for) => {
                pause = lease / 3;
                control.send(Control::Holds { until: before + Millis::from(valid_for) })
            }
            Err(error @ KeepAliveError::Lost { .. }) => {
                let _over = control.send(Control::Lost { why: error.to_string() });
                return;
            }
            Err(error @ KeepAliveError::Unavailable { .. }) => {
                tracing::warn!(%error, "the office could not be extended; trying again");
                pause = lease / 10;
                Ok(())
            }
        };
        if told.is_err() {
            return;
        }
    }
}
