package org.leasehold.interop;

import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RedissonClient;

/** Measures how long it takes until each of many threads that wait for a latch continues. */
final class Latch {
    private final RCountDownLatch latch;
    private final int count;

    Latch(RedissonClient redisson, Call call) {
        this.latch = redisson.getCountDownLatch(call.name());
        this.count = call.count("tasks");
    }

    Object run() throws Exception {
        latch.trySetCount(1);
        CountDownLatch ready = new CountDownLatch(count);
        CountDownLatch through = new CountDownLatch(count);
        long[] ends = new long[count];
        for (int i = 0; i < count; i++) {
            int place = i;
            Thread thread =
                    new Thread(
                            () -> {
                                ready.countDown();
                                try {
                                    latch.await();
                                    ends[place] = System.nanoTime();
                                    through.countDown();
                                } catch (InterruptedException stopped) {
                                    Thread.currentThread().interrupt();
                                }
                            });
            thread.setDaemon(true);
            thread.start();
        }
        ready.await();
        // Each thread asks and subscribes before it waits.
        Thread.sleep(1500);
        long start = System.nanoTime();
        latch.countDown();
        through.await();
        Delays delays = new Delays();
        for (long end : ends) {
            delays.add(Math.max(end - start, 1));
        }
        return Map.of("pairs", new long[] {count}, "delays", delays.counts());
    }
}
