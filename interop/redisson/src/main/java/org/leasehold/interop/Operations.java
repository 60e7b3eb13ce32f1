package org.leasehold.interop;

import java.util.HashMap;
import java.util.Map;
import org.redisson.api.RedissonClient;

/**
 * The operations that a request can run on a thread, by name. Each primitive defines its operations
 * in a class of its own and registers them here.
 */
final class Operations {
    private final Map<String, Operation> operations = new HashMap<>();

    Operations() {
        operations.put("thread_id", (redisson, call) -> Thread.currentThread().getId());
        Locks.register(operations);
        Hammer.register(operations);
        Synchronizers.register(operations);
        Torment.register(operations);
        Methods.register(operations);
        Rates.register(operations);
    }

    Operation named(String name) {
        Operation operation = operations.get(name);
        if (operation == null) {
            throw new IllegalArgumentException("no operation `" + name + "`");
        }
        return operation;
    }

    /** One operation. Its result becomes the value of the answer. */
    interface Operation {
        Object run(RedissonClient redisson, Call call) throws Exception;
    }
}
