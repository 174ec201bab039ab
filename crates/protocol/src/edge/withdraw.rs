//! How the edge leaves its node, and comes back.
//!
//! | state | entered | left |
//! |---|---|---|
//! | serving | at the start | told to withdraw |
//! | withdrawing: the health check fails, everything else goes on | told to withdraw | after `withdraw_delay` |
//! | leaving: ports closed, connections finish | by time | with the last connection, cut after its service's grace |
//! | withdrawn | with the last connection | told to serve, once it has the sets for that |
//!
//! Told to serve it comes back from each of them. A daemon that dies in any of them serves when it starts
//! again, until it is told otherwise.
//!
//! *Invariant:* one that says it has withdrawn sends nothing to anybody. The coordinator does not wait for
//! it when instances leave their sets, so that it opens its ports only with sets that are young enough.

use model::Time;

use super::{Due, Edge, Output, Running};
use crate::message::{SetRevision, Withdrawal};

impl Edge {
    /// How far it is with leaving, if it was told to.
    pub fn withdrawal(&self) -> Option<Withdrawal> {
        match self.running {
            Running::Withdrawing { drain, .. } | Running::Leaving { drain } => {
                Some(Withdrawal { drain, done: false })
            }
            Running::Withdrawn { drain, .. } => Some(Withdrawal { drain, done: true }),
            Running::Yes | Running::Stopping | Running::Stopped => None,
        }
    }

    pub(super) fn listens(&self) -> bool {
        matches!(self.running, Running::Yes | Running::Withdrawing { .. })
    }

    pub(super) fn withdraw(&mut self, drain: u64, now: Time, out: &mut Vec<Output>) {
        self.running = match self.running {
            Running::Yes if self.serves.is_none() => {
                // It has no port open: nobody has to see it go.
                self.ports.close(out);
                Running::Leaving { drain }
            }
            Running::Yes => {
                let until = now + self.withdraw_delay;
                self.due.insert((until, Due::Withdraw));
                Running::Withdrawing { drain, until }
            }
            Running::Withdrawing { until, .. } => Running::Withdrawing { drain, until },
            Running::Leaving { .. } => Running::Leaving { drain },
            Running::Withdrawn { .. } => Running::Withdrawn { drain, back: None },
            stopping @ (Running::Stopping | Running::Stopped) => stopping,
        };
    }

    pub(super) fn close_ports(&mut self, now: Time, out: &mut Vec<Output>) {
        let Running::Withdrawing { drain, .. } = self.running else { return };
        self.running = Running::Leaving { drain };
        self.ports.close(out);
        for (name, service) in &self.services {
            self.due.insert((now + service.grace, Due::Away(name.clone())));
        }
    }

    pub(super) fn look_whether_gone(&mut self) {
        if let Running::Leaving { drain } = self.running
            && self.conns.is_empty()
            && self.ports.are_closed()
        {
            self.forget_graces();
            self.running = Running::Withdrawn { drain, back: None };
        }
    }

    pub(super) fn serve_again(&mut self, from: SetRevision, out: &mut Vec<Output>) {
        match self.running {
            Running::Yes | Running::Stopping | Running::Stopped => {}
            Running::Withdrawing { until, .. } => {
                self.due.remove(&(until, Due::Withdraw));
                self.running = Running::Yes;
            }
            Running::Withdrawn { drain, .. } if self.serves.is_none_or(|serves| serves < from) => {
                self.running = Running::Withdrawn { drain, back: Some(from) };
            }
            Running::Leaving { .. } | Running::Withdrawn { .. } => {
                self.forget_graces();
                self.running = Running::Yes;
                self.ports = Default::default();
                self.settle_ports(out);
            }
        }
    }

    fn forget_graces(&mut self) {
        self.due.retain(|(_, due)| !matches!(due, Due::Away(_)));
    }
}
