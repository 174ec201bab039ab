//! Twenty tables of four shapes, and writers that never let them rest.

use std::{fmt::Write as _, time::Duration};

use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::dice::Dice;

pub const TABLES: usize = 20;
pub const WRITERS: usize = 4;
const EARLY_ROWS: u64 = 300;
/// Between two transactions of a writer: the storm is about what happens to nodes, not about speed.
const PAUSE: Duration = Duration::from_millis(100);

pub fn name(table: usize) -> String {
    format!("t{table:02}")
}

fn definition(table: usize) -> String {
    let name = name(table);
    let columns = match table % 4 {
        0 => "id bigint PRIMARY KEY, n int NOT NULL, words text",
        1 => "a int, b text, n int NOT NULL, words text, PRIMARY KEY (b, a)",
        // Its large values are not sent with updates that leave them alone.
        2 => "id text PRIMARY KEY, n int NOT NULL, words text, big text",
        // A value that only one row may have passes from row to row.
        _ => "id int PRIMARY KEY, n int NOT NULL, words text, seat int UNIQUE",
    };
    let storage = match table % 4 {
        2 => format!("ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL;"),
        _ => String::new(),
    };
    format!("CREATE TABLE {name} ({columns}); {storage}")
}

/// The condition for the row with this number.
fn key(table: usize, k: u64) -> String {
    match table % 4 {
        1 => format!("a = {} AND b = 'b{k}'", k % 7),
        2 => format!("id = md5('{k}')"),
        _ => format!("id = {k}"),
    }
}

fn insert(table: usize, from: u64, to: u64) -> String {
    let name = name(table);
    let values = match table % 4 {
        0 => "k, k % 100, 'row ' || k",
        1 => "k % 7, 'b' || k, k % 100, repeat('x', (k % 50)::int)",
        2 => "md5(k::text), k % 100, NULL, CASE k % 3 WHEN 0 THEN repeat(md5(k::text), 120) END",
        _ => "k, k % 100, E'a\\\\b\\tc ' || k, k",
    };
    format!("INSERT INTO {name} SELECT {values} FROM generate_series({from}, {to}) k ON CONFLICT DO NOTHING;")
}

fn change_key(table: usize, k: u64) -> String {
    let (name, at) = (name(table), key(table, k));
    match table % 4 {
        0 => format!("UPDATE {name} SET id = id + 1000000000 WHERE {at};"),
        1 => format!("UPDATE {name} SET a = a + 10 WHERE {at};"),
        2 => format!("UPDATE {name} SET id = 'moved ' || id WHERE {at};"),
        _ => format!(
            "WITH gone AS (DELETE FROM {name} WHERE {at} RETURNING n, words, seat)
             INSERT INTO {name} SELECT {k} + 1000000000, n + 1, words, seat FROM gone;"
        ),
    }
}

pub async fn make_tables(side: &Client) {
    for table in 0..TABLES {
        side.batch_execute(&definition(table)).await.unwrap();
    }
}

pub async fn fill(side: &Client) {
    for table in 0..TABLES {
        side.batch_execute(&insert(table, 1, EARLY_ROWS)).await.unwrap();
    }
}

/// A writer of some of the tables, which nobody else writes to.
struct Writer {
    tables: Vec<usize>,
    dice: Dice,
    /// The number of the next row.
    k: u64,
}

impl Writer {
    fn change(&mut self, table: usize) -> String {
        let (name, old) = (name(table), self.k.saturating_sub(1 + self.dice.below(400)));
        let at = key(table, old);
        match self.dice.below(10) {
            0..3 => {
                self.k += 1;
                insert(table, self.k, self.k)
            }
            3..6 => format!("UPDATE {name} SET n = n + {}, words = words || '.' WHERE {at};", self.k % 13),
            6 => format!("UPDATE {name} SET words = NULL WHERE {at};"),
            7 => change_key(table, old),
            _ => format!("DELETE FROM {name} WHERE {at};"),
        }
    }

    fn transaction(&mut self) -> String {
        let mut sql = String::from("BEGIN;");
        if self.dice.once_in(150) {
            // Two at once, and rows before and after in the same transaction.
            let (one, other) = (*self.dice.one_of(&self.tables), *self.dice.one_of(&self.tables));
            sql.push_str(&self.change(one));
            let _ = write!(
                sql,
                "TRUNCATE {}{};",
                name(one),
                match one == other {
                    true => String::new(),
                    false => format!(", {}", name(other)),
                }
            );
            sql.push_str(&insert(one, self.k + 1, self.k + 20));
            self.k += 20;
        }
        if self.dice.once_in(60) {
            let table = *self.dice.one_of(&self.tables);
            sql.push_str(&insert(table, self.k + 1, self.k + 200));
            self.k += 200;
        }
        for _ in 0..=self.dice.below(5) {
            let table = *self.dice.one_of(&self.tables);
            for _ in 0..=self.dice.below(4) {
                sql.push_str(&self.change(table));
            }
        }
        sql.push_str(if self.dice.once_in(10) { "ROLLBACK;" } else { "COMMIT;" });
        sql
    }

    async fn write(mut self, source: Client, stop: CancellationToken) -> u64 {
        let mut transactions = 0;
        while !stop.is_cancelled() {
            source.batch_execute(&self.transaction()).await.unwrap();
            transactions += 1;
            tokio::time::sleep(PAUSE).await;
        }
        transactions
    }
}

/// All of them at work until they are told to stop; they say how many transactions they wrote.
pub struct Writers {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<u64>>,
}

impl Writers {
    pub fn begin(sessions: Vec<Client>, dice: &Dice) -> Writers {
        let stop = CancellationToken::new();
        let task = |(number, source)| {
            let tables = (0..TABLES).filter(|table| table % WRITERS == number).collect();
            let writer = Writer { tables, dice: dice.branch(1 + number as u64), k: EARLY_ROWS };
            tokio::spawn(writer.write(source, stop.clone()))
        };
        Writers { tasks: sessions.into_iter().enumerate().map(task).collect(), stop }
    }

    pub async fn end(&mut self) -> u64 {
        self.stop.cancel();
        let mut transactions = 0;
        for task in self.tasks.drain(..) {
            transactions += task.await.unwrap();
        }
        transactions
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Every row of a table, as text.
pub async fn rows(side: &Client, table: usize) -> Vec<String> {
    let sql = format!("SELECT t::text FROM {} t ORDER BY t::text COLLATE \"C\"", name(table));
    side.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}
