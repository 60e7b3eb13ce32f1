package org.leasehold.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RedissonClient;

/** How long it takes until all of many threads that wait for a latch go on. */
final class LatchRate {
    private final RCountDownLatch latch;
    private final int count;
    private final int rounds;

    LatchRate(RedissonClient redisson, Call call) {
        this.latch = redisson.getCountDownLatch(call.name());
        this.count = call.count("threads");
        this.rounds = call.count("rounds");
    }

    /** Nanoseconds from the last count-down to the last thread, for each round. */
    Object run() throws Exception {
        List<Long> times = new ArrayList<>();
        for (int round = 0; round < rounds; round++) {
            times.add(round());
        }
        return times;
    }

    private long round() throws Exception {
        latch.trySetCount(1);
        CountDownLatch ready = new CountDownLatch(count);
        CountDownLatch through = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            Thread thread =
                    new Thread(
                            () -> {
                                ready.countDown();
                                try {
                                    latch.await();
                                    through.countDown();
                                } catch (InterruptedException stopped) {
                                    Thread.currentThread().interrupt();
                                }
                            });
            thread.setDaemon(true);
            thread.start();
        }
        ready.await();
        // Each of them asks and subscribes before it waits.
        Thread.sleep(1500);
        long start = System.nanoTime();
        latch.countDown();
        through.await();
        return System.nanoTime() - start;
    }
}
