//! What the tests beside Redisson run on. Every one of them asks here for its server, so
//! another topology is one more arm here and no new test.

use leasehold_testkit::{RedisServer, server::Builder};

use crate::support::eventually;

const CHOICE: &str = "LEASEHOLD_TOPOLOGY";

/// Starts what `LEASEHOLD_TOPOLOGY` names: `standalone`, which is the default.
pub(crate) fn start() -> RedisServer {
    start_with(RedisServer::builder())
}

/// As [`start`], with these settings.
pub(crate) fn start_with(settings: Builder) -> RedisServer {
    match name().as_str() {
        "standalone" => settings.start().unwrap(),
        other => panic!("{CHOICE}={other}: there is only `standalone`"),
    }
}

pub(crate) fn name() -> String {
    std::env::var(CHOICE).unwrap_or_else(|_| "standalone".into())
}

/// Waits until nothing is left. Redisson takes away the key of its unlock's request (from 3.24
/// on) when the unlock has been answered already.
pub(crate) async fn is_empty(server: &RedisServer) {
    eventually("nothing is left", async || server.keys().is_empty()).await;
}
