package org.leasehold.interop;

import java.util.Map;
import org.redisson.api.RedissonClient;

/** The operations of the bench program: many calls at once, each with its duration. */
final class Rates {
    private Rates() {}

    static void register(Map<String, Operations.Operation> operations) {
        operations.put("pairs", (redisson, call) -> new Pairs(redisson, call).run());
        operations.put("hand_over", (redisson, call) -> new HandOver(redisson, call).run());
        operations.put("latch", (redisson, call) -> new Latch(redisson, call).run());
        operations.put("hold", (redisson, call) -> new Held(redisson, call).acquire());
        operations.put("let_go", (redisson, call) -> new Held(redisson, call).release());
    }
}
