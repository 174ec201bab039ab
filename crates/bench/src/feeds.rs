//! How fast rows go from PostgreSQL to PostgreSQL, beside the server's own subscriptions in the same run.

use pipelines::rates;

use crate::report::{Bar, Report};

/// Enough to last for seconds.
const CHANGES: u64 = 500_000;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for (tables, ours, theirs) in [
        (1, "feed_rows_postgres_1_dispatcher", "feed_rows_postgres_1_table_subscription"),
        (20, "feed_rows_postgres_20_dispatchers", "feed_rows_postgres_20_tables_subscription"),
    ] {
        if report.wants(ours) || report.wants(theirs) {
            let rates = runtime.block_on(rates::feed_rates(tables, CHANGES));
            report.line(ours, rates.ours, "changes/s", Bar::None);
            report.line(theirs, rates.subscription, "changes/s", Bar::None);
        }
    }
    Ok(())
}
