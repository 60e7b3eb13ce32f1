package org.leasehold.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** How many pairs of acquire and release many threads make on one semaphore. */
final class SemaphoreRate {
    private final RSemaphore semaphore;
    private final int count;
    private final long endNanos;

    SemaphoreRate(RedissonClient redisson, Call call) {
        this.semaphore = redisson.getSemaphore(call.name());
        this.count = call.count("threads");
        this.endNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(call.number("run_ms"));
    }

    Object run() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(count);
        try {
            List<Future<Long>> running = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                running.add(threads.submit(this::pairs));
            }
            long pairs = 0;
            for (Future<Long> thread : running) {
                pairs += thread.get();
            }
            return pairs;
        } finally {
            threads.shutdownNow();
        }
    }

    private long pairs() throws InterruptedException {
        long pairs = 0;
        while (System.nanoTime() - endNanos < 0) {
            semaphore.acquire();
            semaphore.release();
            pairs++;
        }
        return pairs;
    }
}
