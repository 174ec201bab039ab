//! The life of a candidate.
//!
//! | state | entered | left |
//! |---|---|---|
//! | campaigning | at the start, when nobody is in office | by the store's answer |
//! | following | another is in office | when that one is gone, or now and then to make sure |
//! | acting | elected | when the term ends |
//!
//! A crash in any of them is seen by the others when the lease runs out.

use std::sync::Arc;
use std::time::Duration;

use model::{Millis, Term, Time};
use protocol::{candidacy::others_should_lead as others_should_lead_by, coordinator::Output};
use store::{Campaign, Candidate, Holder, Office as Won, Presence};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::load::Loaded;
use super::term::{Channels, Control, End, Tenure};
use super::{
    INPUTS_MAX, Leader, OfficeHandle, Shared, handle::Link, lease, load, upkeep, warm::Warm, write_addresses,
};
use crate::Clock;

/// After trouble with the store, or a term that ended early, before the next try. Doubles up to the
/// larger one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a copy of the state may take to catch up before loading afresh is the better bet.
const CATCH_UP_MAX: Duration = Duration::from_secs(10);
/// A store that does not take the office back in time is left to its lease.
const RESIGN_MAX: Duration = Duration::from_secs(2);
/// How soon a coordinator sees that its own node was closed.
const CLOSED_LOOK: Duration = Duration::from_millis(250);
const STEP_ASIDE: &str = "this node is closed and another candidate is not";

pub(super) async fn live(shared: Arc<Shared>) {
    let config = &shared.config;
    let me = Candidate::new(&config.candidate, write_addresses(&config.api, &config.rpc));
    let presence = tokio::spawn(announce(Arc::clone(&shared), me.clone()));
    let mut life = Life { shared: Arc::clone(&shared), me, warm: None, pause: PAUSE_MIN };
    while !shared.stop.is_cancelled() {
        life.step().await;
    }
    shared.leader.send_replace(None);
    // a task that panicked has nothing left to withdraw
    let _ended = presence.await;
}

/// Announces the candidate until the daemon stops, then withdraws it.
async fn announce(shared: Arc<Shared>, me: Candidate) {
    let ttl = shared.config.timing.lease.as_duration();
    let presence: Presence = loop {
        match shared.config.store.announce(&me, ttl).await {
            Ok(presence) => break presence,
            Err(error) => tracing::warn!(%error, "the candidate could not be announced; trying again"),
        }
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = tokio::time::sleep(PAUSE_MAX) => {}
        }
    };
    shared.stop.cancelled().await;
    // a store that does not answer is left to the lease
    let _late = tokio::time::timeout(RESIGN_MAX, presence.withdraw()).await;
}

struct Life {
    shared: Arc<Shared>,
    me: Candidate,
    warm: Option<Warm>,
    pause: Duration,
}

impl Life {
    /// One try for office and what follows from it.
    async fn step(&mut self) {
        let stop = self.shared.stop.clone();
        let ttl = self.shared.config.timing.lease.as_duration();
        if self.should_stand_back().await {
            let _stopped = stop.run_until_cancelled(tokio::time::sleep(ttl)).await;
            return;
        }
        let clock = Clock::anchored();
        let before = clock.now();
        match self.shared.config.store.office(&self.me, ttl).await {
            Ok(Campaign::Elected(won)) => self.act(won, clock, before).await,
            Ok(Campaign::HeldBy(holder)) => {
                let _stopped = stop.run_until_cancelled(self.follow(holder)).await;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot campaign; trying again");
                self.rest().await;
            }
        }
    }

    /// A closed candidate leaves the office to an open one, if there is any alive.
    async fn should_stand_back(&self) -> bool {
        let Some(warm) = &self.warm else { return false };
        others_should_lead(&self.shared, &warm.closed_nodes()).await
    }

    /// Keeps a copy of the state until the office may be free.
    async fn follow(&mut self, holder: Holder) {
        let store = &self.shared.config.store;
        if self.warm.is_none() {
            self.warm = Some(Warm::start(Arc::clone(store)));
        }
        self.publish_other(Some(&holder));
        let lease = self.shared.config.timing.lease.as_duration();
        let mut holders: watch::Receiver<Option<Holder>> = match store.watch_holder().await {
            Ok(holders) => holders,
            Err(error) => {
                tracing::warn!(%error, "cannot follow who is in office; trying again");
                return self.rest().await;
            }
        };
        self.pause = PAUSE_MIN;
        loop {
            let holder = holders.borrow_and_update().clone();
            self.publish_other(holder.as_ref());
            if holder.is_none() {
                return;
            }
            // Now and then it is tried anyway: a watch may have gone silent.
            match tokio::time::timeout(3 * lease, holders.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return self.rest().await,
                Err(_) => return,
            }
        }
    }

    /// One term, from election to its end.
    async fn act(&mut self, won: Won, clock: Clock, before: Time) {
        let shared = Arc::clone(&self.shared);
        tracing::info!(term = won.term, "elected");
        let (control, from_control) = mpsc::unbounded_channel();
        let (to_inbound, inbound) = mpsc::channel(INPUTS_MAX);
        let (streams, from_streams) = mpsc::channel(INPUTS_MAX);
        let holds_until = before + Millis::from(won.valid_for);
        let keeper = lease::keep(Arc::clone(&shared), won.clone(), clock, control.clone());
        let keeper = AbortOnDrop(tokio::spawn(keeper));
        let channels = Channels { control: control.clone(), from_control, inbound, from_streams };
        let link = Arc::new(Link { inbound: to_inbound, streams });
        let stop = shared.stop.clone();
        let end = match stop.run_until_cancelled(self.prepare(&won, clock, holds_until, channels)).await {
            Some(Ok((tenure, first))) => self.serve(&won, link, control, tenure, first).await,
            Some(Err(why)) => End::Over(why),
            None => End::Stopped,
        };
        drop(keeper);
        // One that is lost already is no error; a store that does not answer is left to the lease.
        let _late = tokio::time::timeout(RESIGN_MAX, shared.config.store.resign(&won)).await;
        match end {
            End::Stopped => tracing::info!(term = won.term, "out of office: stopping"),
            End::Over(why) => tracing::warn!(term = won.term, why, "out of office"),
            End::HandedOver => {
                tracing::info!(term = won.term, "out of office: handed over");
                return self.let_others_lead().await;
            }
        }
        if clock.now().since(before) > Millis::from(PAUSE_MAX) {
            self.pause = PAUSE_MIN;
        }
        self.rest().await;
    }

    /// Stands back until another has taken office. If nobody does, somebody has to.
    async fn let_others_lead(&self) {
        let shared = &self.shared;
        let lease = shared.config.timing.lease.as_duration();
        let taken = async {
            let Ok(mut holders) = shared.config.store.watch_holder().await else {
                return std::future::pending().await;
            };
            let other = |holder: &Option<Holder>| {
                holder.as_ref().is_some_and(|holder| holder.candidate.id != self.me.id)
            };
            if holders.wait_for(other).await.is_err() {
                // nobody says any more who is in office
                std::future::pending::<()>().await;
            }
        };
        let _stopped = shared.stop.run_until_cancelled(tokio::time::timeout(lease, taken)).await;
    }

    /// Acts as the coordinator until the term ends. Nobody finds us here afterwards.
    async fn serve(
        &self,
        won: &Won,
        link: Arc<Link>,
        control: mpsc::UnboundedSender<Control>,
        tenure: Tenure,
        first: Vec<Output>,
    ) -> End {
        let shared = &self.shared;
        let _upkeep = AbortOnDrop(tokio::spawn(upkeep::upkeep(Arc::clone(shared))));
        let _aside = AbortOnDrop(tokio::spawn(step_aside(Arc::clone(shared), control)));
        shared.events.begin(Term(won.term));
        shared.acting.send_replace(Some(link));
        let me = Holder { candidate: self.me.clone(), term: won.term };
        shared.leader.send_replace(Some(Leader::of(&me)));
        // In a task of its own, so that a mistake of ours that panics ends the term, not the candidate.
        let ended = tokio::spawn(tenure.run(first)).await;
        shared.acting.send_replace(None);
        shared.leader.send_replace(None);
        shared.metrics.streams.set(0);
        shared.events.end();
        ended.unwrap_or_else(|error| End::Over(format!("the coordinator failed: {error}")))
    }

    async fn prepare(
        &mut self,
        won: &Won,
        clock: Clock,
        holds_until: Time,
        channels: Channels,
    ) -> Result<(Tenure, Vec<Output>), String> {
        let begun = clock.now();
        let loaded = self.take_state().await?;
        let closed = loaded.cluster.nodes().filter(|(_, node)| node.is_closed());
        let closed: Vec<String> = closed.map(|(_, node)| node.rec.id.to_string()).collect();
        if others_should_lead(&self.shared, &closed).await {
            self.warm = Some(Warm::start(Arc::clone(&self.shared.config.store)));
            return Err(STEP_ASIDE.to_owned());
        }
        let instances = loaded.cluster.instance_count();
        let tenure = Tenure::new(&self.shared, won.clone(), clock, holds_until, loaded, channels)?;
        let took = clock.now().since(begun);
        tracing::info!(term = won.term, instances, %took, "the state is loaded");
        Ok(tenure)
    }

    /// The copy if it is, or soon will be, at the head; else everything from the store.
    async fn take_state(&mut self) -> Result<Loaded, String> {
        let store = &self.shared.config.store;
        if let Some(warm) = self.warm.take() {
            // Read after the election: from here on nobody but us can raise it.
            let head = store.head().await.map_err(|error| error.to_string())?;
            if let Some(loaded) = warm.take(head, CATCH_UP_MAX).await
                && loaded.position.head == head
            {
                return Ok(loaded);
            }
            tracing::warn!("the copy of the state did not catch up; loading it from the store");
        }
        load::load(&**store).await.map_err(|error| error.to_string())
    }

    /// An earlier life of this candidate may still hold the office: it is nobody to send others to.
    fn publish_other(&self, holder: Option<&Holder>) {
        let leader = holder.filter(|holder| holder.candidate.id != self.me.id).map(Leader::of);
        self.shared.leader.send_if_modified(|known| {
            let differs = *known != leader;
            *known = leader;
            differs
        });
    }

    async fn rest(&mut self) {
        let _stopped = self.shared.stop.run_until_cancelled(tokio::time::sleep(self.pause)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// Leaves office once this node is closed and another candidate is not.
async fn step_aside(shared: Arc<Shared>, control: mpsc::UnboundedSender<Control>) {
    let handle = OfficeHandle::new(Arc::clone(&shared));
    let lease = shared.config.timing.lease.as_duration();
    let mut pause = CLOSED_LOOK;
    loop {
        tokio::time::sleep(pause).await;
        let me = shared.config.candidate.clone();
        // Only what is committed: the one who asked for it has been answered by then.
        let closed = handle.read(move |coordinator, _| {
            let cluster = coordinator.cluster();
            cluster.node_ix(&me).filter(|ix| cluster.node(*ix).is_closed())?;
            let nodes = cluster.nodes().filter(|(_, node)| node.is_closed());
            Some(nodes.map(|(_, node)| node.rec.id.to_string()).collect::<Vec<_>>())
        });
        let Ok(closed) = closed.await else { return };
        let Some(closed) = closed else {
            pause = CLOSED_LOOK;
            continue;
        };
        if others_should_lead(&shared, &closed).await {
            let _over = control.send(Control::Lost { why: STEP_ASIDE.to_owned() });
            return;
        }
        // The caretaker: the store is not asked all the time.
        pause = lease;
    }
}

/// A closed candidate leads only if no open one lives (the caretaker). Asked of the store only when we
/// are closed ourselves; a store that does not answer leaves things as they are.
async fn others_should_lead(shared: &Shared, closed: &[String]) -> bool {
    let me = &shared.config.candidate;
    if !closed.contains(me) {
        return false;
    }
    match shared.config.store.candidates().await {
        Ok(all) => {
            let alive = all.iter().map(|other| other.id.as_str());
            others_should_lead_by(me, alive, |node| closed.iter().any(|closed| closed == node))
        }
        Err(_) => false,
    }
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
