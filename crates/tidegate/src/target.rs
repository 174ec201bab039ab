//! What a command is about: `service/web`, `feed/orders`, `node/node-1`, `instance/web-1k3f9a2`, `volume/db-data-0`.

use crate::failure::{Failure, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Service,
    Node,
    Instance,
    Volume,
    Drain,
    Feed,
    Store,
    StoreGroup,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Service => "service",
            Kind::Node => "node",
            Kind::Instance => "instance",
            Kind::Volume => "volume",
            Kind::Drain => "drain",
            Kind::Feed => "feed",
            Kind::Store => "store",
            Kind::StoreGroup => "store-group",
        }
    }
}

/// Splits `KIND/NAME`; a bare name has no kind.
pub fn parse(text: &str) -> Outcome<(Option<Kind>, &str)> {
    let (kind, name) = match text.split_once('/') {
        None => (None, text),
        Some((kind, name)) => (Some(kind), name),
    };
    if name.is_empty() || name.contains('/') {
        return Err(Failure::usage(format!("{text:?} names nothing: write KIND/NAME, like service/web")));
    }
    let kind = match kind {
        None => None,
        Some("service" | "batch" | "system") => Some(Kind::Service),
        Some("node") => Some(Kind::Node),
        Some("instance") => Some(Kind::Instance),
        Some("volume") => Some(Kind::Volume),
        Some("drain") => Some(Kind::Drain),
        Some("feed") => Some(Kind::Feed),
        Some("store") => Some(Kind::Store),
        Some("store-group") => Some(Kind::StoreGroup),
        Some(other) => {
            return Err(Failure::usage(format!(
                "{text:?}: {other:?} is not a kind (service, feed, store-group, store, node, instance, volume or drain)"
            )));
        }
    };
    Ok((kind, name))
}

/// A name where only one kind makes sense; `KIND/` before it may be left out.
pub fn expect(kind: Kind, text: &str) -> Outcome<&str> {
    match parse(text)? {
        (None, name) => Ok(name),
        (Some(given), name) if given == kind => Ok(name),
        (Some(given), _) => {
            let (given, kind) = (given.as_str(), kind.as_str());
            Err(Failure::usage(format!("{text:?} is a {given}; this works on a {kind}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_may_be_left_out_where_only_one_makes_sense() {
        assert_eq!(expect(Kind::Node, "node/node-1").unwrap(), "node-1");
        assert_eq!(expect(Kind::Node, "node-1").unwrap(), "node-1");
        assert_eq!(expect(Kind::Node, "service/web").unwrap_err().code, 2);
        assert_eq!(parse("store/kv-0").unwrap(), (Some(Kind::Store), "kv-0"));
        for wrong in ["", "service/", "a/b/c", "pod/web", "store/"] {
            assert_eq!(parse(wrong).unwrap_err().code, 2, "{wrong}");
        }
    }
}
