//! Names and numbers by which things are told apart.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(name: &str) -> $name {
                $name(name.into())
            }
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl From<&str> for $name {
            fn from(name: &str) -> $name {
                $name::new(name)
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type!(
    /// A machine that runs the daemon, by the name its configuration gives it.
    NodeId
);
name_type!(
    /// A service, by the name in its file.
    ServiceName
);
name_type!(
    /// A directory on a node that outlives instances: `SERVICE-VOLUME-SLOT`.
    VolumeId
);
name_type!(
    /// A feed, by the name in its file.
    FeedName
);
name_type!(
    /// A group of stores, by the name in its file.
    StoreGroupName
);
name_type!(
    /// A store: `GROUP-ORDINAL`. Ordinals are never used again.
    StoreId
);
name_type!(
    /// What a dispatcher works: a table, a partition of a log.
    SpanName
);

macro_rules! number_type {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number_type!(
    /// Rises with each election; fences every write and every order.
    Term(u64)
);
number_type!(
    /// Granted at registration, rises with each life of a daemon.
    ProcessEpoch(u64)
);
number_type!(
    /// Drawn at random when a daemon starts: tells one life of a node from the next, and two daemons
    /// that claim one node id from each other.
    Life(u64)
);
number_type!(
    /// Drawn at random when a store is first used. Nodes remember it and refuse orders of another.
    ClusterId(u64)
);
number_type!(
    /// Rises with each maintainer of any feed; nodes refuse what an earlier one of theirs asks.
    MaintainerEpoch(u64)
);
number_type!(
    /// Rises with each start of a span; the sink refuses what an earlier one writes. The upper half is
    /// the maintainer epoch that gave it, so that a successor's are higher whatever it knows.
    SpanEpoch(u64)
);
number_type!(
    /// Where a node stands in this process's [`crate::Cluster`]. Never stored, never sent.
    NodeIx(u32)
);
number_type!(
    /// Where a service stands in this process's [`crate::Cluster`]. Never stored, never sent.
    ServiceIx(u32)
);

/// One run of a service on a node. New for each placement and never reused.
///
/// The number comes from a counter that starts at a random place per cluster, so that ids of a
/// cluster whose store was lost do not meet those of its successor on the nodes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InstanceId(pub u64);

/// Crockford's base 32: no letter that reads like a digit.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an instance id (they look like web-1k3f9a2)")]
pub struct ParseIdError(pub String);

impl InstanceId {
    /// The id as people see it: the service's name, then the number.
    pub fn named(self, service: &ServiceName) -> String {
        format!("{service}-{self}")
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; 13];
        let mut at = text.len();
        let mut rest = self.0;
        loop {
            at -= 1;
            text[at] = DIGITS[(rest & 31) as usize];
            rest >>= 5;
            if rest == 0 {
                break;
            }
        }
        f.pad(std::str::from_utf8(&text[at..]).unwrap_or_default())
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{self}")
    }
}

impl FromStr for InstanceId {
    type Err = ParseIdError;

    /// Takes the number alone or with a service's name before it.
    fn from_str(text: &str) -> Result<InstanceId, ParseIdError> {
        let bad = || ParseIdError(text.to_owned());
        let digits = text.rsplit('-').next().unwrap_or(text);
        if digits.is_empty() || digits.len() > 13 {
            return Err(bad());
        }
        let mut number: u64 = 0;
        for byte in digits.bytes() {
            let digit = DIGITS.iter().position(|d| *d == byte).ok_or_else(bad)? as u64;
            number = number.checked_mul(32).and_then(|n| n.checked_add(digit)).ok_or_else(bad)?;
        }
        Ok(InstanceId(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_id_reads_back_as_it_was_written() {
        for number in [0, 1, 31, 32, 1 << 30, u64::MAX] {
            let id = InstanceId(number);
            assert_eq!(id.named(&ServiceName::new("my-web")).parse(), Ok(id));
        }
        assert!("web-".parse::<InstanceId>().is_err());
        assert!("web-ilo".parse::<InstanceId>().is_err());
        assert!("zzzzzzzzzzzzz".parse::<InstanceId>().is_err());
    }
}
