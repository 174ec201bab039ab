//! How fast rows go from PostgreSQL to PostgreSQL, beside the server's own subscriptions in the same run.

use pipelines::rates;

use crate::{
    real::block,
    report::{Bar, Report},
};

pub const ONE: [&str; 2] = ["feed_rows_postgres_1_dispatcher", "feed_rows_postgres_1_table_subscription"];
pub const TWENTY: [&str; 2] =
    ["feed_rows_postgres_20_dispatchers", "feed_rows_postgres_20_tables_subscription"];

/// Enough to last for seconds.
const CHANGES: u64 = 500_000;

pub fn one(report: &mut Report) -> anyhow::Result<()> {
    block(measure(report, 1, ONE))
}

pub fn twenty(report: &mut Report) -> anyhow::Result<()> {
    block(measure(report, 20, TWENTY))
}

async fn measure(report: &mut Report, tables: usize, [ours, theirs]: [&str; 2]) -> anyhow::Result<()> {
    let rates = rates::feed_rates(tables, CHANGES).await;
    report.line(ours, rates.ours, "changes/s", Bar::None);
    report.line(theirs, rates.subscription, "changes/s", Bar::None);
    Ok(())
}
