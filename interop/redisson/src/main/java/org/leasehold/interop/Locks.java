package org.leasehold.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
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
        operations.put(
                "lock_and_get_token", of((lock, call) -> newer(lock, "lockAndGetToken")));
        operations.put("token", of((lock, call) -> newer(lock, "getToken")));
    }

    /** The lock a request names. */
    static RLock named(RedissonClient redisson, Call call) {
        String name = call.name();
        String kind = call.text("kind");
        return switch (kind) {
            case "lock" -> redisson.getLock(name);
            case "spin" -> redisson.getSpinLock(name);
            case "fair" -> redisson.getFairLock(name);
            case "fenced" -> (RLock) newer(redisson, "getFencedLock", name);
            case "read" -> redisson.getReadWriteLock(name).readLock();
            case "write" -> redisson.getReadWriteLock(name).writeLock();
            case "multi" -> redisson.getMultiLock(members(redisson, call));
            case "red" -> Wholes.majority(members(redisson, call));
            case "group" -> Wholes.group(redisson, name);
            default -> throw new IllegalArgumentException("no kind of lock `" + kind + "`");
        };
    }

    /** As `a,b`: locks of this client; or `client/a,other/a`. */
    private static RLock[] members(RedissonClient redisson, Call call) {
        return Arrays.stream(call.name().split(","))
                .map(
                        member -> {
                            String[] parts = member.split("/", 2);
                            return parts.length == 1
                                    ? redisson.getLock(member)
                                    : call.clients().named(parts[0]).redisson().getLock(parts[1]);
                        })
                .toArray(RLock[]::new);
    }

    /** A method that the oldest version of Redisson this is compiled with does not have. */
    private static Object newer(Object object, String method, Object... arguments) {
        Class<?>[] types =
                Arrays.stream(arguments).map(Object::getClass).toArray(Class<?>[]::new);
        try {
            return object.getClass().getMethod(method, types).invoke(object, arguments);
        } catch (InvocationTargetException error) {
            throw error.getCause() instanceof RuntimeException cause
                    ? cause
                    : new IllegalStateException(error.getCause());
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException("this version has no " + method, error);
        }
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
