//! Deciding the drain of a node with a thousand of a million instances.

use std::time::Instant;

use model::{Term, Time};
use protocol::{
    Timing,
    coordinator::{Asked, Coordinator, DrainRequest, Input, Request, RequestId, Start},
};

use crate::{
    office::{commit_all, settle_instances},
    placing::place_a_million,
    report::{Bar, Report},
};

const NODES: usize = 1_000;

pub fn run(report: &mut Report) {
    if !report.wants("deciding_a_drain_of_1000_of_1m") {
        return;
    }
    let (mut cluster, ..) = place_a_million(NODES);
    settle_instances(&mut cluster);
    let start = Start {
        cluster,
        head: 1,
        term: Term(2),
        timing: Timing::default(),
        random: 1,
        candidate: "bench".into(),
        api: "127.0.0.1:7070".into(),
        drain: Default::default(),
        feeds: Default::default(),
    };
    let now = Time(60_000);
    let (mut coordinator, outputs) = Coordinator::new(start, now);
    commit_all(&mut coordinator, outputs, now);
    let request = DrainRequest { nodes: vec!["node-00007".into()], ..DrainRequest::default() };
    let asked = Asked { who: "bench".into(), from: String::new(), request: Request::Drain(request) };
    let begun = Instant::now();
    let outputs = coordinator.handle(now, Input::Request { id: RequestId(1), asked });
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    commit_all(&mut coordinator, outputs, now);
    let placed = coordinator.cluster().instances().filter(|instance| instance.replaces.is_some()).count();
    report.line("deciding_a_drain_of_1000_of_1m", took, "ms", Bar::AtMost(20.0));
    report.line("replacements_it_placed", placed as f64, "instances", Bar::None);
}
