//! Where things are under the prefix, and how the few values of our own are written: as text, so that
//! `etcdctl` shows them.

use crate::contract::KeyRange;
use crate::error::StoreError;

/// ```text
/// {prefix}/format            the layout's version
/// {prefix}/office            who is in office, bound to its lease
/// {prefix}/candidates/{id}   who may be elected, each bound to a lease
/// {prefix}/state/head        the number of the last transaction
/// {prefix}/state/r/{key}     the records
/// ```
/// Head and records share `{prefix}/state/`, so that one watch sees whole transactions and nothing else.
pub(super) struct Keys {
    pub(super) prefix: String,
    pub(super) format: Vec<u8>,
    pub(super) office: Vec<u8>,
    pub(super) candidates: Vec<u8>,
    pub(super) state: Vec<u8>,
    pub(super) head: Vec<u8>,
    pub(super) records: Vec<u8>,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Result<Keys, StoreError> {
        let usable = prefix.starts_with('/')
            && !prefix.ends_with('/')
            && prefix.bytes().all(|byte| byte.is_ascii_graphic());
        if !usable {
            let what = format!("the etcd prefix {prefix:?} must look like /tidegate/prod");
            return Err(StoreError::Configuration { what });
        }
        let under = |name: &str| format!("{prefix}/{name}").into_bytes();
        Ok(Keys {
            prefix: prefix.to_owned(),
            format: under("format"),
            office: under("office"),
            candidates: under("candidates/"),
            state: under("state/"),
            head: under("state/head"),
            records: under("state/r/"),
        })
    }

    pub(super) fn place(&self) -> String {
        format!("the etcd prefix {}", self.prefix)
    }

    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        [self.records.as_slice(), key].concat()
    }

    pub(super) fn candidate(&self, id: &str) -> Vec<u8> {
        [self.candidates.as_slice(), id.as_bytes()].concat()
    }

    pub(super) fn records(&self, range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
        (self.record(&range.start), self.record(&range.end))
    }

    pub(super) fn malformed(&self, key: &[u8], found: &[u8]) -> StoreError {
        StoreError::Malformed {
            place: self.place(),
            key: String::from_utf8_lossy(key).into_owned(),
            found: String::from_utf8_lossy(&found[..found.len().min(80)]).into_owned(),
        }
    }
}

pub(super) fn encode_number(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

pub(super) fn decode_number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}
