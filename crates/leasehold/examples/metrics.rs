//! Metrics for Prometheus: a recorder with buckets, and the text that Prometheus would read.
//!
//! A service would use `install_recorder` and serve the text of its handle, or `install` and let
//! the exporter listen on a port. Install the recorder before the first client is made, because a
//! client asks for its counters only once.
//!
//! ```console
//! $ cargo run -p leasehold --features metrics --example metrics                          # in process
//! $ cargo run -p leasehold --features metrics --example metrics -- redis://127.0.0.1     # on a server
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use leasehold::Client;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// The upper ends of the buckets for times, in seconds.
const TIMES: [f64; 10] = [
    0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0,
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let prometheus = PrometheusBuilder::new()
        .with_recommended_naming(true)
        // Without buckets, each of these would be a summary, which the alerts can't use.
        .set_buckets_for_metric(Matcher::Suffix("duration".into()), &TIMES)?
        .set_buckets_for_metric(
            Matcher::Suffix("margin".into()),
            &[0.1, 0.2, 0.33, 0.5, 0.6, 1.0],
        )?
        .set_buckets_for_metric(
            Matcher::Suffix("operations".into()),
            &[1.0, 4.0, 16.0, 64.0, 256.0],
        )?
        .install_recorder()?;

    let client = match std::env::args().nth(1) {
        // All orders share one label `name`, because each value of a label is a series of its own.
        Some(url) => {
            Client::builder()
                .metric_names(["orders:*"])
                .connect(&url)
                .await?
        }
        None => Client::embedded(),
    };
    for order in 1..=3 {
        let guard = client.lock(format!("orders:{order}")).acquire().await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        guard.release().await?;
    }
    print!("{}", prometheus.render());
    Ok(())
}
