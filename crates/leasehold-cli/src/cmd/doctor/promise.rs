//! The sentences of `docs/guarantees.md` that a finding breaks.

pub(super) const EXCLUSION: &str = "For one name, the intervals of two holders do not overlap.";
pub(super) const DRIFT: &str = "Two holders' intervals do not overlap even if the clocks of server and holder drift apart within a lease, by as much as the client's setting allows.";
pub(super) const TOKENS: &str = "A fencing token is greater than the token of every earlier hold, even after its counter was lost.";
pub(super) const KEPT: &str =
    "A renewed lock survives failed renewals as long as one succeeds before the deadline.";
pub(super) const WAKE_UPS: &str = "Every release wakes the waiters, and so does a forced one.";
pub(super) const ACCESS: &str = "When an ACL denies an operation, the error names the ACL rule that would allow it. A user with that rule can use every operation on the names that it covers.";
pub(super) const MEMORY: &str =
    "Releasing, renewing and counting down work when the server is out of memory.";
pub(super) const SERVERS: &str = "On every server that [servers.md](servers.md) lists, Leasehold handles replies in the same way, even errors inside a script.";
pub(super) const FAILOVER: &str = "A hold outlives the failover of its server if, before the lease ends, the server's name points to a server that has the hold.";
pub(super) const SENTINELS: &str = "Behind sentinels, a failover ends neither a replicated hold nor a wait: calls, subscriptions and renewals go to the new master.";
pub(super) const CLUSTER: &str = "In a cluster, operations survive a failover: calls and the waiters' subscriptions move to the new master.";
pub(super) const CONFIRMED: &str =
    "A grant counts when as many replicas have confirmed it as the lock requires";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sentence_is_in_the_guarantees() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guarantees.md");
        let page = std::fs::read_to_string(page).expect("it is there");
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        for sentence in [
            EXCLUSION, DRIFT, TOKENS, KEPT, WAKE_UPS, ACCESS, MEMORY, SERVERS, FAILOVER, SENTINELS,
            CLUSTER, CONFIRMED,
        ] {
            assert!(page.contains(sentence), "{sentence}");
        }
    }
}
