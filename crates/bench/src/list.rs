//! Every bench there is, in the order in which they run.

use crate::{core, draining, feeds, many_feeds, real, report::Report, scaling, slots, stores};

pub struct Bench {
    /// What it is held against or known for. A filter that is part of one of them runs it; the first names it.
    pub figures: &'static [&'static str],
    /// Programs without which it cannot run.
    pub needs: &'static [&'static str],
    pub run: fn(&mut Report) -> anyhow::Result<()>,
}

const ETCD: &[&str] = &["etcd"];
const POSTGRES: &[&str] = &["postgres"];
const REDIS: &[&str] = &["redis-server", "redis-cli"];

#[rustfmt::skip]
pub const BENCHES: &[Bench] = &[
    Bench { figures: &core::NAMES, needs: &[], run: core::run },
    Bench { figures: &[draining::NAME], needs: &[], run: draining::run },
    Bench { figures: &[scaling::NAME], needs: &[], run: scaling::run },
    Bench { figures: &many_feeds::NAMES, needs: &[], run: many_feeds::run },
    Bench { figures: &[real::hundred::NAME], needs: &[], run: |report| real::block(real::hundred::run(report)) },
    Bench { figures: &[real::traffic::NAME], needs: &[], run: |report| real::block(real::traffic::run(report)) },
    Bench { figures: &[real::failover::NAME], needs: ETCD, run: |report| real::block(real::failover::run(report)) },
    Bench { figures: &real::workers::NAMES, needs: &[], run: |report| real::block(real::workers::run(report)) },
    Bench { figures: &[real::feeds::OFF_A_NODE], needs: &[], run: |report| real::block(real::feeds::off_a_node(report)) },
    Bench { figures: &[real::feeds::GAP], needs: &[], run: |report| real::block(real::feeds::gap(report)) },
    Bench { figures: &[real::feeds::GAP_POSTGRES], needs: POSTGRES, run: |report| real::block(real::feeds::gap_postgres(report)) },
    Bench { figures: &feeds::ONE, needs: POSTGRES, run: feeds::one },
    Bench { figures: &feeds::TWENTY, needs: POSTGRES, run: feeds::twenty },
    Bench { figures: &[stores::REDB], needs: &[], run: |report| real::block(stores::redb(report)) },
    Bench { figures: &[stores::ETCD], needs: ETCD, run: |report| real::block(stores::etcd(report)) },
    Bench { figures: &[stores::COLD_OFFICE], needs: ETCD, run: |report| real::block(stores::cold_office(report)) },
    Bench { figures: &[real::restarts::STOPPED, real::restarts::EVICTOR], needs: &[], run: |report| real::block(real::restarts::run(report)) },
    Bench { figures: &slots::NAMES, needs: REDIS, run: slots::run },
];
