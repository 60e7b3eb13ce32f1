//! What the tests beside Redisson run on. Every one of them asks here for its server, so
//! another topology is one more arm here and no new test.

use leasehold_testkit::RedisServer;

const CHOICE: &str = "LEASEHOLD_TOPOLOGY";

/// Starts what `LEASEHOLD_TOPOLOGY` names: `standalone`, which is the default.
pub(crate) fn start() -> RedisServer {
    match name().as_str() {
        "standalone" => RedisServer::start().unwrap(),
        other => panic!("{CHOICE}={other}: there is only `standalone`"),
    }
}

pub(crate) fn name() -> String {
    std::env::var(CHOICE).unwrap_or_else(|_| "standalone".into())
}
