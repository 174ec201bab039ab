//! The figures of design.md section 11 that the project reaches for, one line each:
//! `name value unit bar verdict`. Absolute times differ between machines; run it where you care.

#![forbid(unsafe_code)]

mod draining;
mod feeds;
mod many_feeds;
mod office;
mod placing;
mod real;
mod report;
mod slots;
mod stores;

use report::Report;

fn main() -> anyhow::Result<()> {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let mut report = Report::new(filter);
    real::run(&mut report)?;
    if report.names_only(&real::NAMES) {
        return report.finish();
    }
    if report.names_only(&slots::NAMES) {
        slots::run(&mut report)?;
        return report.finish();
    }
    // First: what is in memory already is not counted twice.
    many_feeds::run(&mut report);
    if report.names_only(&many_feeds::NAMES) {
        return report.finish();
    }
    let mut cluster = placing::run(&mut report);
    office::settle_instances(&mut cluster);
    stores::run(&mut report, &cluster)?;
    office::idle(&mut report, cluster);
    draining::run(&mut report);
    feeds::run(&mut report)?;
    slots::run(&mut report)?;
    report.finish()
}
