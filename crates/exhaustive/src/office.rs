//! The coordinator's side: taking office, the store, and carrying out what a coordinator asks for.

use std::sync::Arc;

use checker::{Observer, Step};
use model::{Cluster, NodeId, Term, Time, decode_record, load_ranges};
use protocol::coordinator::{
    Asked, ConnId, Coordinator, FeedLimits, Input, Op, Output, Request, RequestId, Start, Stored,
};

use crate::{
    config::{Broken, TIMING},
    world::{Ask, Held, Letter, Office, Store, World},
};

impl Store {
    /// Fenced by the office, comparing the head.
    fn takes(&self, term: Term, head: u64, fences: bool) -> bool {
        !fences || self.office == Some(term) && self.head + 1 == head
    }

    /// The state as a coordinator loads it, through the real codec.
    fn load(&self) -> Result<Cluster, model::CodecError> {
        let mut cluster = Cluster::default();
        for (from, to) in load_ranges() {
            for (key, value) in self.records.range(from..to) {
                let change = decode_record(&cluster, key, Some(value))?;
                cluster.apply(&change);
            }
        }
        Ok(cluster)
    }
}

impl World {
    pub fn take_office(&mut self) {
        let store = self.store.get_mut();
        store.elections += 1;
        let term = Term(store.elections);
        (store.office, store.vacant_since) = (Some(term), None);
        let head = store.head;
        let cluster = match store.load() {
            Ok(cluster) => cluster,
            Err(error) => return self.fail(14, format!("the store cannot be loaded: {error}")),
        };
        let observer = Observer::new(&cluster, self.config.limits_of_checker());
        let start = Start {
            cluster,
            head,
            term,
            timing: TIMING,
            random: 0,
            candidate: format!("c{term}"),
            api: "api".to_owned(),
            drain: self.config.limits(),
            feeds: FeedLimits::default(),
        };
        let (coordinator, outputs) = Coordinator::watched(start, self.time());
        self.offices.insert(term, Held::new(Office { coordinator, observer, asks: None }));
        self.look_at(term);
        self.perform(term, outputs);
        self.coordinate(term, Input::OfficeHolds { until: Time(u64::MAX) });
    }

    /// Its lease is over, and it does not know.
    pub fn depose(&mut self) {
        let until = self.time();
        let store = self.store.get_mut();
        let Some(term) = store.office.take() else { return };
        store.vacant_since = Some(until);
        self.coordinate(term, Input::OfficeHolds { until });
    }

    /// It is gone: its streams break, with what was on its way.
    pub fn leave_office(&mut self, term: Term) {
        self.offices.remove(&term);
        if self.store.office == Some(term) {
            let now = self.time();
            let store = self.store.get_mut();
            (store.office, store.vacant_since) = (None, Some(now));
        }
        let conns: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| conn.term == term).map(|(id, _)| *id).collect();
        for conn in conns {
            self.close(conn);
        }
    }

    /// The coordinator's end is gone; the node sees it at once.
    fn close(&mut self, conn: u64) {
        self.break_conn(conn);
        self.conns.remove(&conn);
    }

    pub fn request(&mut self, request: Request) {
        let Some((term, _)) = self.in_office() else { return };
        let asked = Asked { who: "operator".to_owned(), from: String::new(), request };
        self.coordinate(term, Input::Request { id: RequestId(1), asked });
    }

    pub fn coordinate(&mut self, term: Term, input: Input) {
        let now = self.time();
        let Some(office) = self.offices.get_mut(&term).map(Held::get_mut) else { return };
        let outputs = office.coordinator.handle(now, input);
        self.look_at(term);
        self.perform(term, outputs);
    }

    /// What its last step made of the state it believes in.
    fn look_at(&mut self, term: Term) {
        let now = self.time();
        let Some(office) = self.offices.get_mut(&term).map(Held::get_mut) else { return };
        let changes = office.coordinator.take_journal();
        let Office { coordinator, observer, .. } = office;
        let paused = coordinator.drains_paused(now).is_some();
        let ready = |node: &NodeId| coordinator.knows_roster(node);
        // There are no feeds here.
        let step = Step { now, paused, ready: &ready, acknowledged: &|_| None, at_work: &|_| false };
        let mut found = observer.follow(&changes, &step);
        found.extend(observer.disagrees(coordinator.cluster()));
        found.extend(checker::check(coordinator.cluster()));
        for violation in found {
            self.fail(violation.invariant(), violation.to_string());
        }
    }

    fn perform(&mut self, term: Term, outputs: Vec<Output>) {
        for output in outputs {
            let Some(office) = self.offices.get_mut(&term) else { return };
            match output {
                Output::Send { conn: ConnId(id), message } => {
                    if let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.broken) {
                        conn.down.push_back(Letter::new(message, conn.machine));
                    }
                }
                Output::Close { conn } => self.close(conn.0),
                Output::Reply { .. } | Output::Event(_) => {}
                Output::Backend(order) => {
                    self.fail(0, format!("the model knows nothing of {order:?}"));
                }
                Output::Transact { head, ops } => office.get_mut().asks = Some(Ask::Transact { head, ops }),
                Output::ReadHead => office.get_mut().asks = Some(Ask::Head),
                Output::Resign { .. } | Output::HandOver => self.leave_office(term),
            }
        }
    }

    /// The store answers what was asked. With `lost` it does not say what became of a transaction.
    pub fn answer(&mut self, term: Term, lost: bool) {
        let asks = self.offices.get_mut(&term).and_then(|office| office.get_mut().asks.take());
        let input = match asks {
            None => return,
            Some(Ask::Head) => Input::Head { number: self.store.head, by: self.store.head_term },
            Some(Ask::Transact { head, ops }) => {
                let fences = self.config.broken != Some(Broken::StoreDoesNotFence);
                let outcome = match self.store.takes(term, head, fences) {
                    true => {
                        self.commit(term, head, &ops);
                        Stored::Committed
                    }
                    false => Stored::Refused,
                };
                Input::Stored(if lost { Stored::Unknown } else { outcome })
            }
        };
        self.coordinate(term, input);
    }

    /// A transaction never reached the store, and nobody says so.
    pub fn lose_request(&mut self, term: Term) {
        if let Some(office) = self.offices.get_mut(&term) {
            office.get_mut().asks = None;
        }
        self.coordinate(term, Input::Stored(Stored::Unknown));
    }

    fn commit(&mut self, term: Term, head: u64, ops: &[Op]) {
        if term < self.store.head_term {
            let head_term = self.store.head_term;
            self.fail(14, format!("a write of term {term} follows one of term {head_term}"));
        }
        let nodes: Vec<model::Node> = self.store.mirror.nodes().map(|(_, node)| node.rec.clone()).collect();
        for (key, value) in ops {
            let change = match decode_record(&self.store.mirror, key, value.as_deref()) {
                Ok(change) => change,
                Err(error) => return self.fail(14, format!("what was written cannot be read: {error}")),
            };
            self.check_committed(&change);
            let store = self.store.get_mut();
            match value {
                Some(value) => store.records.insert(key.clone(), Arc::from(value.as_slice())),
                None => store.records.remove(key),
            };
            store.mirror.apply(&change);
        }
        let store = self.store.get_mut();
        (store.head, store.head_term) = (head, term);
        // One that was only not heard of counts like one that is gone.
        self.harmed |= self.store.mirror.nodes().any(|(_, node)| node.rec.is_offline());
        for old in nodes {
            self.check_intent(&old);
        }
        for violation in checker::check(&self.store.mirror) {
            self.fail(violation.invariant(), format!("in the store: {violation}"));
        }
    }
}
