//! Twenty thousand keys of several kinds, put in and compared.

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};

use crate::redis::slots::SLOTS;
use crate::testing::RedisNodes;

pub const KEYS: usize = 20_000;
const BIG: usize = 1 << 20;
/// How many more keys a test may put in.
pub const MORE_KEYS_MAX: usize = 50;

pub fn slot(key: &str) -> u16 {
    let tag = key.find('{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.find('}').filter(|length| *length > 0).map(|length| &rest[..length])
    });
    let crc = tag.unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(byte) << 8,
            |crc, _| if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 },
        )
    });
    crc % SLOTS
}

pub fn key(n: usize) -> String {
    match n % 10 {
        // together in a few slots
        0 => format!("{{tag{}}}:{n}", n % 7),
        _ => format!("key:{n}"),
    }
}

/// Which node serves each slot, by each node's own account.
pub async fn owners(nodes: &RedisNodes, live: &[usize]) -> BTreeMap<u16, usize> {
    let mut owners = BTreeMap::new();
    for node in live {
        let text = nodes.ask(*node, redis::cmd("CLUSTER").arg("NODES").clone()).await;
        let mine = text.lines().find(|line| line.contains("myself,master")).unwrap_or_default();
        for range in mine.split_whitespace().skip(8) {
            assert!(!range.starts_with('['), "a slot is left open at node {node}: {range}");
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u16>().expect("a slot");
            for slot in number(first)..=number(last) {
                let other = owners.insert(slot, *node);
                assert_eq!(other, None, "slot {slot} is claimed by {other:?} and {node}");
            }
        }
    }
    owners
}

fn put(commands: &mut Pipeline, n: usize) {
    let key = key(n);
    match n % 10 {
        1 => commands.cmd("HSET").arg(key).arg("a").arg(n).arg("b").arg(n + 1),
        2 => commands.cmd("RPUSH").arg(key).arg(n).arg(n + 1).arg(n + 2),
        3 => commands.cmd("SADD").arg(key).arg(n),
        4 => commands.cmd("ZADD").arg(key).arg(n).arg("m"),
        5 => commands.cmd("SET").arg(key).arg(n).arg("EX").arg(100_000 + n),
        6 if n % 1_000 == 6 => commands.cmd("SET").arg(key).arg(vec![b'a' + (n % 26) as u8; BIG]),
        7 => commands.cmd("SET").arg(key).arg([0, 13, 10, 255, (n % 251) as u8].as_slice()),
        _ => commands.cmd("SET").arg(key).arg(n),
    };
}

fn get(commands: &mut Pipeline, n: usize) {
    let key = key(n);
    match n % 10 {
        1 => commands.cmd("HGET").arg(key).arg("b"),
        2 => commands.cmd("LRANGE").arg(key).arg(0).arg(-1),
        3 => commands.cmd("SMEMBERS").arg(key),
        4 => commands.cmd("ZSCORE").arg(key).arg("m"),
        5 => commands.cmd("TTL").arg(key),
        _ => commands.cmd("GET").arg(key),
    };
}

fn is_right(n: usize, answer: &Value) -> bool {
    let text = |n: usize| Value::BulkString(n.to_string().into_bytes());
    match n % 10 {
        1 => *answer == text(n + 1),
        2 => *answer == Value::Array(vec![text(n), text(n + 1), text(n + 2)]),
        3 => *answer == Value::Array(vec![text(n)]) || *answer == Value::Set(vec![text(n)]),
        4 => *answer == text(n) || *answer == Value::Double(n as f64),
        5 => matches!(answer, Value::Int(left) if (90_000 + n as i64..=100_000 + n as i64).contains(left)),
        6 if n % 1_000 == 6 => *answer == Value::BulkString(vec![b'a' + (n % 26) as u8; BIG]),
        7 => *answer == Value::BulkString(vec![0, 13, 10, 255, (n % 251) as u8]),
        _ => *answer == text(n),
    }
}

async fn at_owners(
    nodes: &RedisNodes,
    live: &[usize],
    add: fn(&mut Pipeline, usize),
    mut look: impl FnMut(usize, usize, Value),
) {
    let owners = owners(nodes, live).await;
    assert_eq!(owners.len(), usize::from(SLOTS), "every slot is served");
    let mut parts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for n in 0..KEYS {
        parts.entry(owners[&slot(&key(n))]).or_default().push(n);
    }
    for (node, part) in parts {
        let mut connection: MultiplexedConnection = nodes.connect(node).await;
        for part in part.chunks(1_000) {
            let mut commands = Pipeline::new();
            part.iter().for_each(|n| add(&mut commands, *n));
            let answers = connection.send_packed_commands(&commands, 0, part.len()).await.expect("answers");
            part.iter().zip(answers).for_each(|(n, answer)| look(node, *n, answer));
        }
    }
}

pub async fn fill(nodes: &RedisNodes, live: &[usize]) {
    at_owners(nodes, live, put, |_, n, answer| {
        assert!(!matches!(answer, Value::ServerError(_)), "{}: {answer:?}", key(n));
    })
    .await;
}

/// Every key is at the node that serves its slot, with its value and its time to live, and nowhere else.
pub async fn assert_all_there(nodes: &RedisNodes, live: &[usize]) {
    at_owners(nodes, live, get, |node, n, answer| {
        assert!(is_right(n, &answer), "{} at node {node}: {answer:?}", key(n));
    })
    .await;
    let mut sum = 0;
    for node in live {
        if nodes.ask(*node, redis::cmd("ROLE")).await.contains("master") {
            let size = nodes.ask(*node, redis::cmd("DBSIZE")).await;
            sum += size.parse::<usize>().expect("a number");
        }
    }
    assert!((KEYS..=KEYS + MORE_KEYS_MAX).contains(&sum), "{sum} keys");
}
