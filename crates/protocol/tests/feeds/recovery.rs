//! x
use crate::bench::*;
use model::Millis;
#[test]
fn smoke() {
    let mut bench = Bench::new(&["n1", "n2", "n3"]);
    bench.feed("orders", 6);
    assert_eq!(bench.count("orders", "n1"), 2);
    bench.drain("n1");
    bench.until("drained", |b| b.drained("n1") == "drained");
    bench.goes_on("orders");
    bench.pass(Millis(1000));
}
