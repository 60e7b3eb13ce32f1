package org.leasehold.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;

/** The operations of semaphores and latches that both versions have. */
final class Synchronizers {
    private Synchronizers() {}

    static void register(Map<String, Operations.Operation> operations) {
        semaphores(operations);
        expirable(operations);
        latches(operations);
    }

    private static void semaphores(Map<String, Operations.Operation> operations) {
        operations.put(
                "semaphore_set", semaphore((s, call) -> s.trySetPermits(call.count("permits"))));
        operations.put("semaphore_set_for", semaphore(Synchronizers::setFor));
        operations.put(
                "semaphore_acquire",
                semaphore((s, call) -> done(() -> s.acquire(call.count("permits")))));
        operations.put(
                "semaphore_acquire_async",
                semaphore((s, call) -> s.acquireAsync(call.count("permits")).get()));
        operations.put(
                "semaphore_try",
                semaphore(
                        (s, call) ->
                                s.tryAcquire(
                                        call.count("permits"),
                                        call.number("wait_ms"),
                                        MILLISECONDS)));
        operations.put(
                "semaphore_release",
                semaphore((s, call) -> done(() -> s.release(call.count("permits")))));
        operations.put(
                "semaphore_add",
                semaphore((s, call) -> done(() -> s.addPermits(call.count("permits")))));
        operations.put("semaphore_available", semaphore((s, call) -> s.availablePermits()));
        operations.put("semaphore_drain", semaphore((s, call) -> s.drainPermits()));
    }

    private static void expirable(Map<String, Operations.Operation> operations) {
        operations.put(
                "expirable_set", expirable((s, call) -> s.trySetPermits(call.count("permits"))));
        operations.put("expirable_acquire", expirable((s, call) -> s.acquire()));
        operations.put(
                "expirable_acquire_lease",
                expirable((s, call) -> s.acquire(call.number("lease_ms"), MILLISECONDS)));
        operations.put(
                "expirable_try",
                expirable(
                        (s, call) ->
                                s.tryAcquire(
                                        call.number("wait_ms"),
                                        call.number("lease_ms"),
                                        MILLISECONDS)));
        operations.put("expirable_release", expirable((s, call) -> s.tryRelease(call.text("permit"))));
        operations.put(
                "expirable_update",
                expirable(
                        (s, call) ->
                                s.updateLeaseTime(
                                        call.text("permit"), call.number("lease_ms"), MILLISECONDS)));
        operations.put(
                "expirable_release_many",
                expirable(
                        (s, call) ->
                                Newer.call(s, "release", List.of(call.text("permits").split(",")))));
        operations.put("expirable_available", expirable((s, call) -> s.availablePermits()));
    }

    private static void latches(Map<String, Operations.Operation> operations) {
        operations.put("latch_set", latch((l, call) -> l.trySetCount(call.number("count"))));
        operations.put("latch_down", latch((l, call) -> done(l::countDown)));
        operations.put("latch_count", latch((l, call) -> l.getCount()));
        operations.put("latch_await", latch((l, call) -> done(l::await)));
        operations.put(
                "latch_await_for",
                latch((l, call) -> l.await(call.number("wait_ms"), MILLISECONDS)));
        operations.put("latch_delete", latch((l, call) -> l.delete()));
    }

    /** Makes a semaphore that expires. The older version has none, so this uses reflection. */
    private static Object setFor(RSemaphore semaphore, Call call) throws Exception {
        return RSemaphore.class
                .getMethod("trySetPermits", int.class, Duration.class)
                .invoke(
                        semaphore,
                        call.count("permits"),
                        Duration.ofMillis(call.number("ttl_ms")));
    }

    private static Operations.Operation semaphore(Body<RSemaphore> body) {
        return (redisson, call) -> body.run(redisson.getSemaphore(call.name()), call);
    }

    private static Operations.Operation expirable(Body<RPermitExpirableSemaphore> body) {
        return (redisson, call) ->
                body.run(redisson.getPermitExpirableSemaphore(call.name()), call);
    }

    private static Operations.Operation latch(Body<RCountDownLatch> body) {
        return (redisson, call) -> body.run(redisson.getCountDownLatch(call.name()), call);
    }

    private static Object done(Action action) throws Exception {
        action.run();
        return null;
    }

    /** One operation on the object that a request names. */
    private interface Body<T> {
        Object run(T object, Call call) throws Exception;
    }

    private interface Action {
        void run() throws Exception;
    }
}
