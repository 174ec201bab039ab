//! The simulated store: records, the head, and the office with its lease. Answers at once and truly; that
//! answers get lost or come late is done by the world around it.

use std::collections::BTreeMap;

use model::{Cluster, CodecError, Term, decode_record, load_ranges};
use protocol::coordinator::Op;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub machine: usize,
    pub life: u64,
    pub term: Term,
    pub expires_at: u64,
}

#[derive(Default)]
pub struct SimStore {
    pub records: BTreeMap<String, Vec<u8>>,
    pub head: u64,
    pub head_term: Term,
    pub office: Option<Holder>,
    /// Candidates that have been heard of, and until when that counts.
    pub presence: BTreeMap<usize, u64>,
    elections: u64,
    /// When it last left somebody without an answer.
    pub failed_at: u64,
    pub down_until: u64,
    pub full_until: u64,
    /// Leases outlive their holder by this much: etcd's own leader may have changed.
    pub lease_slack: u64,
}

impl SimStore {
    fn expire(&mut self, now: u64) {
        if self.office.as_ref().is_some_and(|holder| holder.expires_at <= now) {
            self.office = None;
        }
    }

    pub fn holder(&mut self, now: u64) -> Option<&Holder> {
        self.expire(now);
        self.office.as_ref()
    }

    pub fn campaign(&mut self, machine: usize, life: u64, lease: u64, now: u64) -> Option<Term> {
        self.expire(now);
        if self.office.is_some() {
            return None;
        }
        self.elections += 1;
        let term = Term(self.elections);
        self.office = Some(Holder { machine, life, term, expires_at: now + lease + self.lease_slack });
        Some(term)
    }

    pub fn keep_alive(&mut self, term: Term, lease: u64, now: u64) -> bool {
        self.expire(now);
        let slack = self.lease_slack;
        match self.office.as_mut().filter(|holder| holder.term == term) {
            Some(holder) => {
                holder.expires_at = now + lease + slack;
                true
            }
            None => false,
        }
    }

    pub fn resign(&mut self, term: Term) {
        if self.office.as_ref().is_some_and(|holder| holder.term == term) {
            self.office = None;
        }
    }

    /// Whether a transaction may be applied: fenced by the office, comparing the head.
    pub fn takes(&mut self, term: Term, head: u64, now: u64) -> bool {
        self.expire(now);
        self.office.as_ref().is_some_and(|holder| holder.term == term) && self.head + 1 == head
    }

    pub fn apply(&mut self, term: Term, head: u64, ops: &[Op]) {
        for (key, value) in ops {
            match value {
                Some(value) => self.records.insert(key.clone(), value.clone()),
                None => self.records.remove(key),
            };
        }
        (self.head, self.head_term) = (head, term);
    }

    /// The state as a coordinator loads it, through the real codec.
    pub fn load(&self) -> Result<Cluster, CodecError> {
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
