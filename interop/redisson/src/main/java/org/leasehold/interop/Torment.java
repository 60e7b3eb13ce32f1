package org.leasehold.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RMap;
import org.redisson.api.RedissonClient;

/**
 * Does the hammer's work in a process that will be killed. Each number is claimed in Redis with the
 * times of its hold. So the work of a process is known after its death, and no number has two
 * owners.
 */
final class Torment {
    private final RedissonClient redisson;
    private final Call call;

    private Torment(RedissonClient redisson, Call call) {
        this.redisson = redisson;
        this.call = call;
    }

    static void register(Map<String, Operations.Operation> operations) {
        operations.put("torment", (redisson, call) -> new Torment(redisson, call).run());
    }

    /** Returns how many numbers were claimed. */
    private long run() throws Exception {
        int count = call.count("threads");
        ExecutorService threads = Executors.newFixedThreadPool(count);
        try {
            List<Future<Long>> running = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                running.add(threads.submit(this::claims));
            }
            long claimed = 0;
            for (Future<Long> thread : running) {
                claimed += thread.get();
            }
            return claimed;
        } finally {
            threads.shutdownNow();
        }
    }

    private long claims() throws InterruptedException {
        RLock lock = Locks.named(redisson, call);
        RBucket<String> counter = redisson.getBucket("counter");
        RMap<String, String> claims = redisson.getMap("claims");
        RBucket<String> over = redisson.getBucket("over");
        String who = call.text("who") + "-" + Thread.currentThread().getId();
        long claimed = 0;
        while (!over.isExists()) {
            long asked = System.nanoTime();
            if (!acquired(lock)) {
                continue;
            }
            long from = System.nanoTime();
            try {
                String value = counter.get();
                long number = value == null ? 1 : Long.parseLong(value) + 1;
                Thread.yield();
                counter.set(Long.toString(number));
                String claim = who + " " + asked + " " + from + " " + System.nanoTime();
                if (!claims.fastPutIfAbsent(Long.toString(number), claim)) {
                    throw new IllegalStateException(number + " was claimed before: " + claim);
                }
                claimed++;
            } finally {
                lock.unlock();
            }
        }
        return claimed;
    }

    /** Acquires the lock. With `wait_ms`, waits only for this time. */
    private boolean acquired(RLock lock) throws InterruptedException {
        if (call.optional("wait_ms").isEmpty()) {
            lock.lock();
            return true;
        }
        return lock.tryLock(call.number("wait_ms"), MILLISECONDS);
    }
}
