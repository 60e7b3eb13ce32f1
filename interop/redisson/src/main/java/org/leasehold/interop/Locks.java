package org.leasehold.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.Map;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** The operations of everything that is an {@link RLock}; `kind` says which one. */
final class Locks {
    private Locks() {}

    static void register(Map<String, Operations.Operation> operations) {
        operations.put("lock", of((lock, call) -> done(lock::lock)));
        operations.put(
                "lock_lease",
                of((lock, call) -> done(() -> lock.lock(call.number("lease_ms"), MILLISECONDS))));
        operations.put("try_lock", of((lock, call) -> lock.tryLock()));
        operations.put(
                "try_lock_wait",
                of(
                        (lock, call) ->
                                lock.tryLock(
                                        call.number("wait_ms"),
                                        call.number("lease_ms"),
                                        MILLISECONDS)));
        operations.put("unlock", of((lock, call) -> done(lock::unlock)));
        operations.put("force_unlock", of((lock, call) -> lock.forceUnlock()));
        operations.put("is_locked", of((lock, call) -> lock.isLocked()));
        operations.put(
                "is_held_by_current_thread", of((lock, call) -> lock.isHeldByCurrentThread()));
        operations.put("hold_count", of((lock, call) -> lock.getHoldCount()));
        operations.put("ttl", of((lock, call) -> lock.remainTimeToLive()));
    }

    /** The lock a request names. */
    static RLock named(RedissonClient redisson, Call call) {
        String name = call.name();
        String kind = call.text("kind");
        return switch (kind) {
            case "lock" -> redisson.getLock(name);
            case "spin" -> redisson.getSpinLock(name);
            case "fair" -> redisson.getFairLock(name);
            case "read" -> redisson.getReadWriteLock(name).readLock();
            case "write" -> redisson.getReadWriteLock(name).writeLock();
            default -> throw new IllegalArgumentException("no kind of lock `" + kind + "`");
        };
    }

    private static Operations.Operation of(LockOperation operation) {
        return (redisson, call) -> operation.run(named(redisson, call), call);
    }

    private static Object done(Runnable action) {
        action.run();
        return null;
    }

    /** One operation on the lock a request names. */
    private interface LockOperation {
        Object run(RLock lock, Call call) throws Exception;
    }
}
