package org.leasehold.interop;

import com.google.gson.JsonElement;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** Counts the pairs of acquire and release that each of many threads makes in a given time. */
final class Pairs {
    private static final long LEASE_MS = 30_000;

    private final RedissonClient redisson;
    private final Call call;
    private final long endNanos;

    Pairs(RedissonClient redisson, Call call) {
        this.redisson = redisson;
        this.call = call;
        this.endNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(call.number("run_ms"));
    }

    Object run() throws Exception {
        prepare();
        int count = call.count("tasks");
        ExecutorService threads = Executors.newFixedThreadPool(count);
        try {
            List<Future<Worker>> running = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                running.add(threads.submit(new Worker(i)));
            }
            List<Long> pairs = new ArrayList<>();
            Delays delays = new Delays();
            for (Future<Worker> thread : running) {
                Worker done = thread.get();
                pairs.add(done.pairs);
                delays.add(done.delays);
            }
            return Map.of("pairs", pairs, "delays", delays.counts());
        } catch (ExecutionException failed) {
            throw failed.getCause() instanceof Exception cause ? cause : failed;
        } finally {
            threads.shutdownNow();
        }
    }

    private void prepare() {
        switch (call.text("what")) {
            case "semaphore" -> redisson.getSemaphore(call.name()).trySetPermits(permits());
            case "expirable" ->
                    redisson.getPermitExpirableSemaphore(call.name()).trySetPermits(permits());
            default -> {}
        }
    }

    private int permits() {
        return call.count("permits");
    }

    /** One pair of a thread. `turn` counts the thread's pairs. */
    private interface Pair {
        void run(long turn) throws Exception;
    }

    private Pair pair(int thread) {
        boolean own = call.optional("own_names").map(JsonElement::getAsBoolean).orElse(false);
        String name = own ? call.name() + ":" + thread : call.name();
        return switch (call.text("what")) {
            case "lock" -> once(redisson.getLock(name));
            case "fair" -> once(redisson.getFairLock(name));
            case "reentrant" -> again(redisson.getLock(name));
            case "rw" -> readOrWrite(redisson.getReadWriteLock(name));
            case "semaphore" -> permit(redisson.getSemaphore(name));
            case "expirable" -> permit(redisson.getPermitExpirableSemaphore(name));
            case "connect" -> turn -> connect(name);
            default -> throw new IllegalArgumentException("no `" + call.text("what") + "`");
        };
    }

    private static Pair once(RLock lock) {
        return turn -> {
            lock.lock();
            lock.unlock();
        };
    }

    private static Pair again(RLock lock) {
        return turn -> {
            if (turn == 0) {
                lock.lock();
            }
            lock.lock();
            lock.unlock();
        };
    }

    private Pair readOrWrite(RReadWriteLock lock) {
        int writesEvery = call.count("writes_every");
        Pair read = once(lock.readLock());
        Pair write = once(lock.writeLock());
        return turn ->
                (ThreadLocalRandom.current().nextInt(writesEvery) == 0 ? write : read).run(turn);
    }

    private static Pair permit(RSemaphore semaphore) {
        return turn -> {
            semaphore.acquire();
            semaphore.release();
        };
    }

    private static Pair permit(RPermitExpirableSemaphore semaphore) {
        return turn -> semaphore.release(semaphore.acquire(LEASE_MS, TimeUnit.MILLISECONDS));
    }

    private void connect(String name) {
        RedissonClient other = Redisson.create(redisson.getConfig());
        try {
            RLock lock = other.getLock(name);
            lock.lock();
            lock.unlock();
        } finally {
            other.shutdown(0, 0, TimeUnit.SECONDS);
        }
    }

    /** The pairs of one thread. */
    private final class Worker implements Callable<Worker> {
        private final int thread;
        private final Delays delays = new Delays();
        private long pairs;

        private Worker(int thread) {
            this.thread = thread;
        }

        @Override
        public Worker call() throws Exception {
            Pair pair = pair(thread);
            long before = System.nanoTime();
            while (before - endNanos < 0) {
                pair.run(pairs++);
                long now = System.nanoTime();
                delays.add(now - before);
                before = now;
            }
            if (call.text("what").equals("reentrant")) {
                redisson.getLock(call.name()).unlock();
            }
            return this;
        }
    }
}
