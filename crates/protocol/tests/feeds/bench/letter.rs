//! What is under way from one end to another.

use std::fmt;

use model::Life;
use protocol::{
    coordinator::ConnId,
    dispatchers::TaskWhat,
    message::{
        Down, DownBody, FeedReport, Up, UpBody,
        feed::{FeedOrder, FeedWhat, Peer, PeerBody, SpanWhat},
    },
    node::FeedNews,
};

use super::{COORDINATOR, Key, Name};

#[derive(Clone, Debug)]
pub enum Letter {
    Up {
        from: Name,
        conn: ConnId,
        message: Up,
    },
    Down {
        to: Name,
        conn: ConnId,
        message: Down,
    },
    Peer {
        from: Name,
        to: Name,
        message: Peer,
    },
    /// What a node's own shell says to it.
    Shell {
        at: Name,
        life: Life,
        news: FeedNews,
    },
}

impl Letter {
    pub fn ends(&self) -> (Name, Name) {
        match self {
            Letter::Up { from, .. } => (from, COORDINATOR),
            Letter::Down { to, .. } => (COORDINATOR, to),
            Letter::Peer { from, to, .. } => (from, to),
            Letter::Shell { at, .. } => (at, at),
        }
    }

    /// The node that it goes to.
    pub fn to(&self) -> Option<Name> {
        match self {
            Letter::Up { .. } => None,
            Letter::Down { to, .. } | Letter::Peer { to, .. } => Some(to),
            Letter::Shell { at, .. } => Some(at),
        }
    }

    /// What a maintainer orders of a node.
    pub fn orders(&self) -> impl Iterator<Item = &SpanWhat> {
        let orders = match self {
            Letter::Peer { message: Peer { body: PeerBody::Orders { orders, .. }, .. }, .. } => {
                orders.as_slice()
            }
            _ => &[],
        };
        orders.iter().map(|order| &order.what)
    }

    pub fn prepares(&self, on: Name) -> bool {
        self.to() == Some(on) && self.orders().any(|what| matches!(what, SpanWhat::Prepare))
    }

    pub fn starts(&self, on: Name) -> bool {
        self.to() == Some(on) && self.orders().any(|what| matches!(what, SpanWhat::Start { .. }))
    }

    /// The spans that it tells a node to start.
    pub fn started(&self) -> Vec<Key> {
        let Letter::Peer { message, .. } = self else { return Vec::new() };
        let PeerBody::Orders { orders, .. } = &message.body else { return Vec::new() };
        let starts = orders.iter().filter(|order| matches!(order.what, SpanWhat::Start { .. }));
        starts.map(|order| (message.feed.clone(), order.span.clone())).collect()
    }

    pub fn stops(&self, on: Name) -> bool {
        self.to() == Some(on) && self.orders().any(|what| matches!(what, SpanWhat::Stop { .. }))
    }

    pub fn releases(&self, on: Name) -> bool {
        self.to() == Some(on) && self.orders().any(|what| matches!(what, SpanWhat::Release))
    }

    /// It only says how far something is.
    pub fn is_progress(&self) -> bool {
        match self {
            Letter::Shell { news: FeedNews::Task(news), .. } => matches!(news.what, TaskWhat::Progressed(_)),
            Letter::Peer { message, .. } => matches!(message.body, PeerBody::Progress { .. }),
            Letter::Shell { .. } | Letter::Up { .. } | Letter::Down { .. } => false,
        }
    }

    pub fn is_answer_of(&self, node: Name) -> bool {
        match self {
            Letter::Peer { from, message, .. } => {
                *from == node
                    && matches!(
                        message.body,
                        PeerBody::Inventory { .. } | PeerBody::News { .. } | PeerBody::Same { .. }
                    )
            }
            Letter::Up { .. } | Letter::Down { .. } | Letter::Shell { .. } => false,
        }
    }

    /// Between two nodes, by way of the coordinator.
    pub fn is_relayed(&self) -> bool {
        match self {
            Letter::Up { message, .. } => matches!(message.body, UpBody::Relay { .. }),
            Letter::Down { message, .. } => matches!(message.body, DownBody::Relay(_)),
            Letter::Peer { .. } | Letter::Shell { .. } => false,
        }
    }

    fn feed_orders(&self) -> &[FeedOrder] {
        match self {
            Letter::Down { message: Down { body: DownBody::Feeds(orders), .. }, .. } => orders,
            _ => &[],
        }
    }

    pub fn quiesces(&self) -> bool {
        self.feed_orders().iter().any(|order| order.what == FeedWhat::Quiesce)
    }

    pub fn quiesces_of(&self, feed: &str) -> bool {
        self.quiesces() && self.feed_orders().iter().all(|order| order.feed.as_str() == feed)
    }

    pub fn asks(&self, from: Name) -> bool {
        matches!(self, Letter::Peer { from: node, message, .. }
            if *node == from && matches!(message.body, PeerBody::Ask { .. }))
    }

    pub fn announces_roster(&self, to: Name) -> bool {
        matches!(self, Letter::Down { to: there, message: Down { body: DownBody::Roster(_), .. }, .. } if *there == to)
    }

    pub fn reports(&self) -> &[FeedReport] {
        match self {
            Letter::Up { message: Up { body: UpBody::Heartbeat(heartbeat), .. }, .. } => &heartbeat.feeds,
            _ => &[],
        }
    }

    /// The task of a node says that it is ready.
    pub fn is_ready_at(&self, node: Name) -> bool {
        self.task_at(node).is_some_and(|what| *what == TaskWhat::Prepared)
    }

    fn task_at(&self, node: Name) -> Option<&TaskWhat> {
        match self {
            Letter::Shell { at, news: FeedNews::Task(news), .. } if *at == node => Some(&news.what),
            _ => None,
        }
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = self.ends();
        write!(f, "{from} -> {to} ")?;
        match self {
            Letter::Up { message, .. } => match &message.body {
                UpBody::Hello(hello) => write!(f, "hello, life {}", hello.life),
                UpBody::Heartbeat(heartbeat) => write!(
                    f,
                    "heartbeat, roster {:?}, {:?}, {:?}",
                    heartbeat.roster.map(|revision| (revision.term.0, revision.number)),
                    heartbeat.dispatchers,
                    heartbeat
                        .feeds
                        .iter()
                        .map(|r| (&r.feed, r.epoch.0, r.phase, r.moving))
                        .collect::<Vec<_>>()
                ),
                UpBody::Relay { to, message } => {
                    write!(f, "to {to}, {} of {}: {:?}", message.feed, message.maintainer, message.body)
                }
                UpBody::Goodbye => write!(f, "goodbye"),
            },
            Letter::Down { message, .. } => write!(f, "{:?}", message.body),
            Letter::Peer { message, .. } => {
                write!(f, "{} of {}: {:?}", message.feed, message.maintainer, message.body)
            }
            Letter::Shell { news, .. } => write!(f, "{news:?}"),
        }
    }
}
