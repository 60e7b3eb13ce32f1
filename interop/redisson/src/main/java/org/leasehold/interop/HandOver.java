package org.leasehold.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Acquires a lock again and again, with a pause in which another client acquires it. */
final class HandOver {
    private final RLock lock;
    private final Call call;
    private final long endNanos;

    HandOver(RedissonClient redisson, Call call) {
        this.lock = redisson.getLock(call.name());
        this.call = call;
        this.endNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(call.number("run_ms"));
    }

    /** Returns the times of each request, grant and release. */
    Object run() throws Exception {
        List<long[]> holds = new ArrayList<>();
        while (System.nanoTime() - endNanos < 0) {
            long asked = System.nanoTime();
            lock.lock();
            long granted = System.nanoTime();
            Thread.sleep(call.number("hold_ms"));
            long released = System.nanoTime();
            lock.unlock();
            holds.add(new long[] {asked, granted, released});
            Thread.sleep(call.number("pause_ms"));
        }
        return Map.of("holds", holds);
    }
}
