package org.leasehold.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/**
 * Increments a counter in Redis under a lock from many threads, without an atomic increment. The
 * counter is exact only if the lock is exclusive.
 */
final class Hammer {
    private final RedissonClient redisson;
    private final Call call;
    private final long endNanos;

    private Hammer(RedissonClient redisson, Call call) {
        this.redisson = redisson;
        this.call = call;
        this.endNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(call.number("run_ms"));
    }

    static void register(Map<String, Operations.Operation> operations) {
        operations.put("hammer", (redisson, call) -> new Hammer(redisson, call).run());
    }

    private Map<String, Object> run() throws Exception {
        int count = Math.toIntExact(call.number("threads"));
        ExecutorService threads = Executors.newFixedThreadPool(count);
        try {
            List<Future<List<long[]>>> running = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                running.add(threads.submit(this::increments));
            }
            List<long[]> intervals = new ArrayList<>();
            for (Future<List<long[]>> thread : running) {
                intervals.addAll(thread.get());
            }
            return Map.of("increments", intervals.size(), "intervals", intervals);
        } catch (ExecutionException failed) {
            // The test needs the exception that Redisson threw.
            throw failed.getCause() instanceof Exception cause ? cause : failed;
        } finally {
            threads.shutdownNow();
        }
    }

    /** Does one thread's work. Returns thread id and three times for each increment. */
    private List<long[]> increments() {
        RLock lock = Locks.named(redisson, call);
        RBucket<String> counter = redisson.getBucket(call.text("counter"));
        long thread = Thread.currentThread().getId();
        List<long[]> intervals = new ArrayList<>();
        while (System.nanoTime() - endNanos < 0) {
            long asked = System.nanoTime();
            lock.lock();
            long acquired = System.nanoTime();
            long released;
            try {
                increment(counter);
            } finally {
                released = System.nanoTime();
                lock.unlock();
            }
            intervals.add(new long[] {thread, asked, acquired, released});
        }
        return intervals;
    }

    private static void increment(RBucket<String> counter) {
        String value = counter.get();
        long number = value == null ? 0 : Long.parseLong(value);
        // Gives another thread a chance to interfere, if the lock lets it.
        Thread.yield();
        counter.set(Long.toString(number + 1));
    }
}
