package org.leasehold.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.Arrays;
import java.util.Map;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** The operations of every kind of {@link RLock}; the field `kind` selects the kind. */
final class Locks {
    private Locks() {}

    static void register(Map<String, Operations.Operation> operations) {
        operations.put("lock", of((lock, call) -> done(lock::lock)));
        operations.put(
                "lock_lease",
                of((lock, call) -> done(() -> lock.lock(call.number("lease_ms"), MILLISECONDS))));
        operations.put(
                "lock_lease_s", of((lock, call) -> done(() -> lock.lock(call.number("lease_s"), SECONDS))));
        operations.put("try_lock", of((lock, call) -> lock.tryLock()));
        operations.put(
                "try_lock_wait",
                of(
                        (lock, call) ->
                                lock.tryLock(
                                        call.number("wait_ms"),
                                        call.number("lease_ms"),
                                        MILLISECONDS)));
        operations.put(
                "try_lock_wait_s", of((lock, call) -> lock.tryLock(call.number("wait_s"), SECONDS)));
        operations.put("unlock", of((lock, call) -> done(lock::unlock)));
        asynchronous(operations);
        operations.put("force_unlock", of((lock, call) -> lock.forceUnlock()));
        operations.put("delete", of((lock, call) -> Newer.call(lock, "delete")));
        operations.put("is_locked", of((lock, call) -> lock.isLocked()));
        operations.put(
                "is_held_by_current_thread", of((lock, call) -> lock.isHeldByCurrentThread()));
        operations.put("hold_count", of((lock, call) -> lock.getHoldCount()));
        operations.put("ttl", of((lock, call) -> lock.remainTimeToLive()));
        tokens(operations);
    }

    private static void asynchronous(Map<String, Operations.Operation> operations) {
        operations.put("lock_async", of((lock, call) -> lock.lockAsync().get()));
        operations.put(
                "lock_lease_async",
                of((lock, call) -> lock.lockAsync(call.number("lease_ms"), MILLISECONDS).get()));
        operations.put(
                "try_lock_wait_async",
                of(
                        (lock, call) ->
                                lock.tryLockAsync(
                                                call.number("wait_ms"),
                                                call.number("lease_ms"),
                                                MILLISECONDS)
                                        .get()));
    }

    private static void tokens(Map<String, Operations.Operation> operations) {
        operations.put(
                "lock_and_get_token", of((lock, call) -> Newer.call(lock, "lockAndGetToken")));
        operations.put(
                "lock_lease_and_get_token",
                of(
                        (lock, call) ->
                                Newer.call(
                                        lock,
                                        "lockAndGetToken",
                                        call.number("lease_ms"),
                                        MILLISECONDS)));
        operations.put(
                "try_lock_and_get_token", of((lock, call) -> Newer.call(lock, "tryLockAndGetToken")));
        operations.put(
                "try_lock_wait_and_get_token",
                of(
                        (lock, call) ->
                                Newer.call(
                                        lock,
                                        "tryLockAndGetToken",
                                        call.number("wait_ms"),
                                        MILLISECONDS)));
        operations.put("token", of((lock, call) -> Newer.call(lock, "getToken")));
    }

    /** Returns the lock that a request names: a new Java object, or the shared one. */
    static RLock named(RedissonClient redisson, Call call) {
        return call.optional("shared").isPresent()
                ? call.shared(() -> fresh(redisson, call))
                : fresh(redisson, call);
    }

    private static RLock fresh(RedissonClient redisson, Call call) {
        return ofKind(redisson, call.text("kind"), call.name(), call);
    }

    private static RLock ofKind(RedissonClient redisson, String kind, String name, Call call) {
        return switch (kind) {
            case "lock" -> redisson.getLock(name);
            case "spin" -> redisson.getSpinLock(name);
            case "fair" -> redisson.getFairLock(name);
            case "fenced" -> (RLock) Newer.call(redisson, "getFencedLock", name);
            case "read" -> redisson.getReadWriteLock(name).readLock();
            case "write" -> redisson.getReadWriteLock(name).writeLock();
            case "multi" -> redisson.getMultiLock(members(redisson, call));
            case "red" -> Wholes.majority(members(redisson, call));
            case "group" -> Wholes.group(redisson, name);
            default -> throw new IllegalArgumentException("no kind of lock `" + kind + "`");
        };
    }

    /** Reads members: `a,b` of this client, `client/a,other/a`, or `fenced:a` of another kind. */
    private static RLock[] members(RedissonClient redisson, Call call) {
        return Arrays.stream(call.name().split(","))
                .map(
                        member -> {
                            String[] parts = member.split("/", 2);
                            String[] kind = member.split(":", 2);
                            if (kind.length == 2) {
                                return ofKind(redisson, kind[0], kind[1], call);
                            }
                            return parts.length == 1
                                    ? redisson.getLock(member)
                                    : call.clients().named(parts[0]).redisson().getLock(parts[1]);
                        })
                .toArray(RLock[]::new);
    }

    private static Operations.Operation of(LockOperation operation) {
        return (redisson, call) -> operation.run(named(redisson, call), call);
    }

    private static Object done(Runnable action) {
        action.run();
        return null;
    }

    /** One operation on the lock that a request names. */
    private interface LockOperation {
        Object run(RLock lock, Call call) throws Exception;
    }
}
