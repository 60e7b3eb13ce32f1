//! The check that `docs/fencing.md` offers for Redis works as it is written there.

use leasehold_testkit::RedisServer;

const PAGE: &str = include_str!("../../../../docs/fencing.md");

#[test]
fn fencing_script_refuses_only_smaller_tokens() {
    let (_, rest) = PAGE.split_once("```lua\n").unwrap();
    let (script, _) = rest.split_once("```").unwrap();
    let server = RedisServer::start().unwrap();
    let write = |token: &str, value: &str| {
        let keys = ["{stock:7}:value", "{stock:7}:fence"];
        server.command(&["EVAL", script, "2", keys[0], keys[1], token, value])
    };
    let value = || {
        let reply = server.command(&["GET", "{stock:7}:value"]).unwrap();
        reply.as_text().unwrap().to_owned()
    };
    // The tokens are in the order of arrival, just below the limit up to which Lua counts exactly.
    for (token, told, goes_through) in [
        ("9007199254740988", "10", true),
        ("9007199254740990", "9", true),
        ("9007199254740990", "8", true),
        ("9007199254740989", "late", false),
        ("9007199254740991", "7", true),
    ] {
        let reply = write(token, told);
        let error = format!("{reply:?}");
        assert_eq!(!error.contains("FENCED"), goes_through, "{token}: {error}");
        assert_eq!(value() == told, goes_through);
    }
}
