//! Rows per second from PostgreSQL to PostgreSQL: `cargo run --release -p tidegate-pipelines --features
//! testing --example rates [tables] [changes]`.

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|text| text.parse::<u64>().ok());
    let (tables, changes) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(300_000));
    let rates = pipelines::rates::feed_rates(tables as usize, changes).await;
    println!("{tables} dispatchers {:.0}/s, one subscription {:.0}/s", rates.ours, rates.subscription);
}
