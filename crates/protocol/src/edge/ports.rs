//! The ports an edge listens on: which service each belongs to, and what became of opening it.

use std::collections::{BTreeMap, BTreeSet};

use model::{Millis, ServiceName, Time};

use super::Output;

/// The pause before a port that could not be opened is tried again; doubles up to [`RETRY_MAX`].
/// Short, because the usual reason is a predecessor that is just about to go.
pub const RETRY_FIRST: Millis = Millis(250);

/// The longest such pause: whoever frees the port sees it taken without having to do more.
pub const RETRY_MAX: Millis = Millis::secs(5);

#[derive(Clone, Debug, Default)]
pub(super) struct Ports {
    ports: BTreeMap<u16, Port>,
    /// Ports that more than one service asks for, and what the operator is told.
    disputed: BTreeMap<u16, String>,
    retries: BTreeSet<(Time, u16)>,
    /// Told to close with all others, and not known to be closed.
    closing: BTreeSet<u16>,
}

#[derive(Clone, Debug)]
struct Port {
    owner: ServiceName,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Opening,
    Open,
    /// Stays so while it is tried again, so that the report does not flicker.
    Failed {
        message: String,
        pause: Millis,
        retry: Option<Time>,
    },
}

impl Ports {
    pub fn owner(&self, port: u16) -> Option<&ServiceName> {
        self.ports.get(&port).map(|port| &port.owner)
    }

    /// Opens what is wanted and closes what is not. A service that changes its port keeps the old one
    /// until the other is open, unless somebody else needs it.
    pub fn settle(&mut self, wanted: &BTreeMap<ServiceName, u16>, out: &mut Vec<Output>) {
        self.disputed.clear();
        for (service, port) in wanted {
            let Some(present) = self.ports.get_mut(port) else {
                self.ports.insert(*port, Port { owner: service.clone(), state: State::Opening });
                out.push(Output::Listen { port: *port });
                continue;
            };
            if present.owner == *service {
                continue;
            }
            if wanted.get(&present.owner) == Some(port) {
                let message = format!("both {} and {service} ask for it; {0} has it", present.owner);
                self.disputed.insert(*port, message);
            } else {
                present.owner = service.clone();
            }
        }
        let closed: Vec<u16> = self
            .ports
            .iter()
            .filter(|(number, port)| self.is_over(**number, port, wanted))
            .map(|(n, _)| *n)
            .collect();
        for port in closed {
            self.drop_port(port);
            out.push(Output::Unlisten { port });
        }
    }

    fn is_over(&self, number: u16, port: &Port, wanted: &BTreeMap<ServiceName, u16>) -> bool {
        let Some(now_wanted) = wanted.get(&port.owner) else { return true };
        if *now_wanted == number {
            return false;
        }
        let successor = self.ports.get(now_wanted).filter(|successor| successor.owner == port.owner);
        // A port that was never opened has no clients to keep.
        !matches!(port.state, State::Open) || successor.is_some_and(|s| matches!(s.state, State::Open))
    }

    pub fn listening(&mut self, number: u16) {
        self.set_state(number, State::Open);
    }

    pub fn failed(&mut self, number: u16, message: String, now: Time) {
        let Some(port) = self.ports.get(&number) else { return };
        let pause = match port.state {
            State::Failed { pause, .. } => Millis((pause.0 * 2).min(RETRY_MAX.0)),
            State::Opening | State::Open => RETRY_FIRST,
        };
        let retry = now + pause;
        self.set_state(number, State::Failed { message, pause, retry: Some(retry) });
        self.retries.insert((retry, number));
    }

    pub fn retry(&mut self, now: Time, out: &mut Vec<Output>) {
        while let Some((at, number)) = self.retries.first().copied().filter(|(at, _)| *at <= now) {
            self.retries.remove(&(at, number));
            if let Some(Port { state: State::Failed { retry, .. }, .. }) = self.ports.get_mut(&number) {
                *retry = None;
                out.push(Output::Listen { port: number });
            }
        }
    }

    pub fn next_retry(&self) -> Option<Time> {
        self.retries.first().map(|(at, _)| *at)
    }

    /// Closes every port. Who owned them stays known: what was accepted on the way is served.
    pub fn close(&mut self, out: &mut Vec<Output>) {
        self.retries.clear();
        self.disputed.clear();
        for (number, port) in &mut self.ports {
            port.state = State::Opening;
            self.closing.insert(*number);
            out.push(Output::Unlisten { port: *number });
        }
    }

    pub fn closed(&mut self, number: u16) {
        self.closing.remove(&number);
    }

    pub fn are_closed(&self) -> bool {
        self.closing.is_empty()
    }

    pub fn report(&self) -> Vec<(u16, String)> {
        let failed = self.ports.iter().filter_map(|(number, port)| match &port.state {
            State::Failed { message, .. } => Some((*number, message.clone())),
            State::Opening | State::Open => None,
        });
        let mut all: Vec<(u16, String)> =
            failed.chain(self.disputed.iter().map(|(number, why)| (*number, why.clone()))).collect();
        all.sort();
        all
    }

    fn set_state(&mut self, number: u16, state: State) {
        let Some(port) = self.ports.get_mut(&number) else { return };
        if let State::Failed { retry: Some(retry), .. } = port.state {
            self.retries.remove(&(retry, number));
        }
        port.state = state;
    }

    fn drop_port(&mut self, number: u16) {
        if let Some(Port { state: State::Failed { retry: Some(retry), .. }, .. }) = self.ports.remove(&number)
        {
            self.retries.remove(&(retry, number));
        }
    }
}
